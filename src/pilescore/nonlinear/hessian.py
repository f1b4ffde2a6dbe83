"""The exact Hessian at the most likely solution of a nonlinear model, relative to the Gauss–Newton Hessian.

In the functional values `v`, the Gauss–Newton Hessian is `Σ⁻¹`, with the posterior covariance `Σ = Θ − ΘJᵀC⁻¹JΘ` of
the linearised model. The exact Hessian is `Σ⁻¹ − M`. The curvature matrix `M` holds the second derivatives of `P` times
the residuals over their noise variances. It couples only values at the same node, and only those in which `P` is
nonlinear.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import eigh_tridiagonal, lapack

from ..parallel import require_memory
from ..solvers import NotFactorableError, cholesky, self_product
from .gauss_newton import DualExpansion, MapEstimate

LANCZOS_STEPS = 8
"""The largest number of Lanczos steps in the search for a direction of negative curvature."""

EIGENVALUE_TOLERANCE = 0.1
"""Lanczos stops when the largest eigenvalue changes by less than this, relative to its distance from one."""

GMRES_STEPS = 60
"""The largest number of GMRES steps; each applies the posterior covariance once."""


def newton_step(estimate: MapEstimate, step: DualExpansion) -> DualExpansion | None:
    """Return the Newton step `(I − ΣM)⁻¹ s` for a Gauss–Newton step `s`, or None if it cannot be computed."""
    hessian = Hessian(estimate)
    # (I − ΣM)⁻¹ = I + Σ(I − MΣ)⁻¹M. The correction is solved loosely: its error only slows convergence down.
    correction = hessian.solve_adjoint(hessian.times_curvature(step.values), 1e-3, 0.1)
    if not np.isfinite(correction).all():
        return None
    return step.towards(hessian.times_posterior(correction), 1.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Hessian:
    """The posterior covariance `Σ` and the curvature `M` at an estimate."""

    estimate: MapEstimate

    @functools.cached_property
    def curvature(self) -> list[Float[np.ndarray, "curved curved m"]]:
        """`M` for each nonlinear block, node by node."""
        # At the minimum the weighted residual (t − F)/s² equals α = C⁻¹t̃, which is computed without cancellation.
        functionals = self.estimate.functionals
        second = functionals.second_derivatives(self.estimate.expansion.values)
        pairs = zip(functionals.nonlinear_blocks, second, strict=True)
        return [derivatives * self.estimate.alpha[nonlinear.rows] for nonlinear, derivatives in pairs]

    @functools.cached_property
    def curved(self) -> Int[np.ndarray, " b"]:
        """The positions of the functionals in which a block is nonlinear."""
        blocks = self.estimate.functionals.nonlinear_blocks
        places = [np.arange(entry.start, entry.stop) for each in blocks for entry in each.curved_entries]
        return np.concatenate([np.empty(0, dtype=int), *places])

    def times_curvature(self, vector: Float[np.ndarray, " F"]) -> Float[np.ndarray, " F"]:
        """Return `Mx`."""
        return self.estimate.functionals.pointwise_product(self.curvature, vector)

    def times_posterior(self, vector: Float[np.ndarray, " F"]) -> DualExpansion:
        """Return `Σx` as values, with its coefficients `x − JᵀC⁻¹JΘx`."""
        functionals, slopes = self.estimate.functionals, self.estimate.slopes
        prior = functionals.product(vector)
        weights = self.estimate.system.solve_stacked(functionals.forward(slopes, prior))
        removed = functionals.backward(slopes, weights)
        return DualExpansion(vector - removed, prior - functionals.product(removed))

    def solve_adjoint(
        self, right: Float[np.ndarray, " F"], precision: float, accepted: float
    ) -> Float[np.ndarray, " F"]:
        """Solve `(I − MΣ) x = b` for `b` on the curved functionals.

        The result is NaN unless its relative residual is at most `accepted`.
        """
        curved, size = self.curved, len(right)
        if not right.any():
            return np.zeros(size)

        def apply(vector: Float[np.ndarray, " b"]) -> Float[np.ndarray, " b"]:
            whole = np.zeros(size)
            whole[curved] = vector
            return vector - self.times_curvature(self.times_posterior(whole).values)[curved]

        from scipy.sparse.linalg import LinearOperator, gmres  # a slow import

        operator: Any = LinearOperator((len(curved), len(curved)), matvec=apply, dtype=float)
        solution, _ = gmres(operator, right[curved], rtol=precision, restart=GMRES_STEPS, maxiter=1)
        # GMRES reports its recurrence, which drifts from the true residual: compute that.
        solved = np.linalg.norm(apply(solution) - right[curved]) <= accepted * np.linalg.norm(right)
        out = np.zeros(size)
        out[curved] = solution if solved else math.nan
        return out

    def most_negative(self) -> tuple[float, DualExpansion | None]:
        """Return an estimate of the largest eigenvalue of `ΣM` by a few Lanczos steps, and its direction.

        The exact Hessian is positive definite if all eigenvalues are below one. Lanczos runs on `MΣ`, which is
        symmetric in the inner product `xᵀΣy`; neither `Σ` nor a square root of it is formed.
        """
        if not any(block.any() for block in self.curvature):
            return 0.0, None
        vector = np.zeros(self.estimate.functionals.size)
        vector[self.curved] = np.random.default_rng(0).standard_normal(len(self.curved))
        vector = self.times_curvature(vector)
        basis: list[np.ndarray] = []
        images: list[DualExpansion] = []
        diagonal: list[float] = []
        off_diagonal: list[float] = []
        largest, direction = -math.inf, None
        for _ in range(LANCZOS_STEPS):
            image = self.times_posterior(vector)
            norm = math.sqrt(max(float(vector @ image.values), 0.0))
            if not norm > 1e-7 * math.sqrt(float(np.abs(vector) @ np.abs(image.values)) + 1e-300):
                break  # the norm is rounding: the Krylov space is exhausted
            if basis:
                off_diagonal.append(norm)
            vector = vector / norm
            image = DualExpansion(image.coefficients / norm, image.values / norm)
            basis.append(vector)
            images.append(image)
            following = self.times_curvature(image.values)
            diagonal.append(float(following @ image.values))
            # Full reorthogonalisation: the three-term recurrence alone loses orthogonality by rounding.
            for old, old_image in zip(basis, images, strict=True):
                following = following - float(following @ old_image.values) * old
            values, vectors = eigh_tridiagonal(np.array(diagonal), np.array(off_diagonal[: len(diagonal) - 1]))
            before, largest = largest, float(values[-1])
            direction = DualExpansion(np.zeros(len(vector)), np.zeros(len(vector)))
            for weight, each in zip(vectors[:, -1], images, strict=True):
                direction = direction.towards(each, float(weight))
            if largest > 1.0 or largest - before < EIGENVALUE_TOLERANCE * (1.0 - largest):
                break
            vector = following
        return largest, direction

    def log_determinant(self) -> float:
        """Return `log det(I − ΣM)`; NaN if the exact Hessian is not positive definite."""
        functionals, slopes, system = self.estimate.functionals, self.estimate.slopes, self.estimate.system
        curved, count = self.curved, len(self.curved)
        if count == 0:
            return 0.0
        require_memory(count, 8.0 * (3 * count**2 + 2 * count * system.model.size), "the exact Hessian")
        place = np.argsort(functionals.layout.order)  # the inverse of the permutation
        # Θ is stored by its lower triangle: read each entry at (larger, smaller) index.
        prior = functionals.theta[np.maximum.outer(place, place[curved]), np.minimum.outer(place, place[curved])]
        cross = np.zeros((system.model.size, count), order="F")
        for entry in functionals.entries:
            cross[functionals.row[entry]] += slopes[entry, None] * prior[entry]
        half = system.factor.half_solve(np.asfortranarray(cross[system.rows.order]))
        covariance = prior[curved] - self_product(half.T)
        # With Σ = LLᵀ, det(I − ΣM) = det(I − LᵀML), which is symmetric. Pivoting reveals the numerical rank: Σ is
        # nearly singular where the equation determines the values.
        root, order, rank, _ = lapack.dpstrf(covariance, lower=1)
        factor = np.zeros((count, rank))
        factor[order - 1] = np.tril(root)[:, :rank]
        product, start = np.empty_like(factor), 0
        for nonlinear, block in zip(functionals.nonlinear_blocks, self.curvature, strict=True):
            size = nonlinear.block.size
            own = [slice(start + i * size, start + (i + 1) * size) for i in range(len(nonlinear.curved))]
            for i, into in enumerate(own):
                product[into] = sum(block[i, j][:, None] * factor[of] for j, of in enumerate(own))
            start += size * len(own)
        try:
            return cholesky(np.asfortranarray(np.eye(rank) - factor.T @ product)).logdet
        except NotFactorableError:
            return math.nan
