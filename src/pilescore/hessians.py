"""The exact Hessian at the most likely solution of a nonlinear model, beside that of Gauss–Newton.

In the values `v` of the frame, Gauss–Newton's Hessian is `Σ⁻¹`, with the posterior covariance `Σ = Θ − ΘJᵀC⁻¹JΘ` of
the linearised model. The exact one is `Σ⁻¹ − M`, where `M` has the second derivatives of `P` times the residuals over
their noise variances, node by node. `M` involves only the functionals in which `P` is not linear.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import eigh_tridiagonal, lapack
from scipy.sparse.linalg import LinearOperator, gmres

from .gauss_newton import Map, State
from .linalg import NotFactorableError, cholesky, require_memory, self_product

PROBES = 8
"""Lanczos steps in the search for a direction of negative curvature."""

SETTLED = 0.1
"""The change of the largest eigenvalue, relative to its distance from one, at which it is known well enough."""

RESTART = 60
"""Steps of GMRES at most; each applies the posterior covariance once."""


def newton_step(found: Map, step: State) -> State | None:
    """Return Newton's step at a linearisation from that of Gauss–Newton: `(I − ΣM)⁻¹` of it; None if there is none."""
    hessian = Hessian(found)
    pulled = hessian.times_inverse(hessian.times_bends(step.values), 1e-3, 0.1)
    if not np.isfinite(pulled).all():
        return None
    more = hessian.conditioned(pulled)
    return State(step.coefficients + more.coefficients, step.values + more.values)


@dataclasses.dataclass(frozen=True, eq=False)
class Hessian:
    """`Σ` and `M` at the end of Gauss–Newton."""

    found: Map

    @functools.cached_property
    def bends(self) -> list[Float[np.ndarray, "bent bent m"]]:
        """`M` of each nonlinear block."""
        second = self.found.frame.bends(self.found.state.values)
        return [h * self.found.alpha[part.rows] for part, h in zip(self.found.frame.parts, second, strict=True)]

    @functools.cached_property
    def bent(self) -> Int[np.ndarray, " b"]:
        """The functionals in which a block is not linear."""
        parts = [np.arange(w.start, w.stop) for p in self.found.frame.parts for w in p.entries[: len(p.bent)]]
        return np.concatenate([np.empty(0, dtype=int), *parts])

    def times_bends(self, vector: Float[np.ndarray, " F"]) -> Float[np.ndarray, " F"]:
        """Return `Mx`."""
        out = np.zeros(len(vector))
        for part, block in zip(self.found.frame.parts, self.bends, strict=True):
            entries = part.entries[: len(part.bent)]
            for i, where in enumerate(entries):
                out[where] = sum(block[i, j] * vector[other] for j, other in enumerate(entries))
        return out

    def conditioned(self, vector: Float[np.ndarray, " F"]) -> State:
        """Return `Σx` as values, with its coefficients `x − JᵀC⁻¹JΘx`."""
        frame, slopes = self.found.frame, self.found.slopes
        prior = frame.product(vector)
        weights = self.found.system.solve_stacked(frame.forward(slopes, prior))
        removed = frame.backward(slopes, weights)
        return State(vector - removed, prior - frame.product(removed))

    def times_inverse(
        self, right: Float[np.ndarray, " F"], precision: float, accepted: float
    ) -> Float[np.ndarray, " F"]:
        """Return `x` with `(I − MΣ) x = b`, for `b` on the bent functionals; NaN unless it is found to `accepted`."""
        bent, size = self.bent, len(right)
        if not right.any():
            return np.zeros(size)

        def apply(vector: Float[np.ndarray, " b"]) -> Float[np.ndarray, " b"]:
            whole = np.zeros(size)
            whole[bent] = vector
            return vector - self.times_bends(self.conditioned(whole).values)[bent]

        operator: Any = LinearOperator((len(bent), len(bent)), matvec=apply, dtype=float)
        solution, _ = gmres(operator, right[bent], rtol=precision, restart=RESTART, maxiter=1)
        good = np.linalg.norm(apply(solution) - right[bent]) <= accepted * np.linalg.norm(right)
        out = np.zeros(size)
        out[bent] = solution if good else math.nan
        return out

    def most_negative(self) -> tuple[float, State | None]:
        """Return the largest eigenvalue of `ΣM` as far as a few Lanczos steps find it, and its direction.

        The exact Hessian is positive definite where all are below one. The steps are those of `MΣ`, which is
        symmetric in the inner product `xᵀΣy`.
        """
        if not any(block.any() for block in self.bends):
            return 0.0, None
        size = self.found.frame.size
        vector = np.zeros(size)
        vector[self.bent] = np.random.default_rng(0).standard_normal(len(self.bent))
        vector = self.times_bends(vector)
        basis: list[np.ndarray] = []
        images: list[State] = []
        diagonal: list[float] = []
        beside: list[float] = []
        largest, direction = -math.inf, None
        for _ in range(PROBES):
            image = self.conditioned(vector)
            norm = math.sqrt(max(float(vector @ image.values), 0.0))
            if not norm > 1e-7 * math.sqrt(float(np.abs(vector) @ np.abs(image.values)) + 1e-300):
                break
            if basis:
                beside.append(norm)
            vector = vector / norm
            image = State(image.coefficients / norm, image.values / norm)
            basis.append(vector)
            images.append(image)
            following = self.times_bends(image.values)
            diagonal.append(float(following @ image.values))
            for old, seen in zip(basis, images, strict=True):  # all of them, for rounding
                following = following - float(following @ seen.values) * old
            values, vectors = eigh_tridiagonal(np.array(diagonal), np.array(beside[: len(diagonal) - 1]))
            before, largest = largest, float(values[-1])
            weights = vectors[:, -1]
            direction = State(
                sum(w * s.coefficients for w, s in zip(weights, images, strict=True)) + np.zeros(size),
                sum(w * s.values for w, s in zip(weights, images, strict=True)) + np.zeros(size),
            )
            if largest > 1.0 or largest - before < SETTLED * (1.0 - largest):
                break
            vector = following
        return largest, direction

    def log_determinant(self) -> float:
        """Return `log det(I − ΣM)`: NaN where the exact Hessian is not positive definite."""
        frame, slopes, system = self.found.frame, self.found.slopes, self.found.system
        bent, count = self.bent, len(self.bent)
        if count == 0:
            return 0.0
        require_memory(count, 8.0 * (3 * count**2 + 2 * count * system.model.size), "the exact Hessian")
        place = np.empty(frame.size, dtype=int)
        place[frame.layout.order] = np.arange(frame.size)
        prior = frame.theta[np.maximum.outer(place, place[bent]), np.minimum.outer(place, place[bent])]
        cross = np.zeros((system.model.size, count), order="F")
        for where in frame.linear_entries:
            cross[frame.row[where]] = prior[where]
        for part in frame.parts:
            for where in part.entries:
                cross[part.rows] += slopes[where, None] * prior[where]
        half = system.factor.half_solve(np.asfortranarray(cross[system.rows.order]))
        covariance = prior[bent] - self_product(half.T)
        root, order, rank, _ = lapack.dpstrf(covariance, lower=1)
        factor = np.zeros((count, rank))
        factor[order - 1] = np.tril(root)[:, :rank]
        product, start = np.empty_like(factor), 0
        for part, block in zip(frame.parts, self.bends, strict=True):
            own = [slice(start + i * part.block.size, start + (i + 1) * part.block.size) for i in range(len(part.bent))]
            for i, into in enumerate(own):
                product[into] = sum(block[i, j][:, None] * factor[of] for j, of in enumerate(own))
            start += part.block.size * len(own)
        try:
            return cholesky(np.asfortranarray(np.eye(rank) - factor.T @ product)).logdet
        except NotFactorableError:
            return math.nan
