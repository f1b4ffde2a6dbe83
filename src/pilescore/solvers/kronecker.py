"""Exact solver for one tensor grid, from an eigendecomposition per axis.

The covariance is `C = A ⊗_a K_a + ⊗_a D_a`, with diagonal noise factors `D_a`. A sum of two Kronecker products has no
Kronecker inverse, but whitening turns the second one into the identity, which commutes with the eigenvectors of the
first. With `D_a^{−½} K_a D_a^{−½} = V_a λ_a V_aᵀ` and `W_a = D_a^{−½} V_a`, the inverse is `C⁻¹ = W (I + Λ)⁻¹ Wᵀ`,
where `W = ⊗ W_a` and `Λ = A ⊗ λ_a`. Nothing larger than the grid is formed.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from ..covariance import (
    CoefficientTangent,
    Covariance,
    CovarianceTangent,
    Grid,
    KernelCovariance,
    KernelTangent,
    Layout,
    along,
    axis_matrix,
    entry_tangents,
    find_grids,
    join,
    kron,
    pairwise,
    split,
)
from ..errors import InputError, NotPositiveDefiniteError
from ..kernels import Kernel, MultiIndex
from ..model import Solver
from ..parallel import require_memory, threads
from .interface import Bounds, Cotangent, Estimate
from .lapack import EPS, ExactFactored, NotFactorableError

SEPARABLE = 1e-12
"""Largest relative deviation of the noise from a product over the axes."""

NEGATIVE = 100 * EPS
"""Most negative eigenvalue of a factor that rounding explains, relative to its trace."""


@dataclasses.dataclass(frozen=True)
class Kronecker(Solver, name="kronecker"):
    """Solve one tensor grid by eigendecompositions of its factors: exact, `Σ n_a³ + N Σ n_a` operations, a few vectors.

    The solver requires a kernel that is a product over coordinates, observations at all combinations of nodes along the
    axes, one derivative (or the value) with a constant coefficient, and noise that is a product over the axes, as for a
    tensor-product rule. `applies` returns what does not fit.

    Examples
    --------
    >>> import pilescore as ps
    >>> from pilescore.solvers.kronecker import Kronecker
    >>> box = ps.Box(x=(0, 1), y=(0, 1))
    >>> law = ps.impose(ps.identity, lambda p: p[0] * p[1], on=box.interior(ps.GaussLegendre(12)))
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.3), physics=law, rho=1e-2)
    >>> abs(ps.pile(model.replace(solver=Kronecker())).value - ps.pile(model).value) < 1e-9
    True
    """

    @property
    def identity(self) -> str:
        """A string that determines the results of this solver."""
        return "kronecker"

    def applies(self, covariance: Covariance) -> str:
        """Return why the solver cannot handle a covariance; empty if it can."""
        fit = _fit(covariance)
        return fit if isinstance(fit, str) else ""

    def estimate(self, covariance: Covariance) -> Estimate:
        """Estimate memory and operations."""
        shape, size = _fitted(covariance).grid.shape, covariance.size
        memory = 8.0 * (20 * size + 8 * sum(n**2 for n in shape))
        return Estimate("kronecker", memory, float(sum(10 * n**3 + 4 * size * n for n in shape)))

    def factor(self, covariance: Covariance) -> KroneckerFactored:
        """Decompose the factors."""
        return KroneckerFactored(_fitted(covariance))


@dataclasses.dataclass(frozen=True, eq=False)
class _Fit:
    """A grid that covers all rows, with the operator `c ∂^α` and the noise `⊗ D_a`."""

    covariance: KernelCovariance
    grid: Grid
    factors: tuple[Kernel, ...]
    alpha: MultiIndex
    coefficient: float
    noise: list[Float[np.ndarray, " _"]]
    deviation: float
    """Relative deviation of the noise from a product."""


def _fitted(covariance: Covariance) -> _Fit:
    fit = _fit(covariance)
    if isinstance(fit, str):
        raise InputError(f"solver: ps.solvers.Kronecker() does not fit: {fit}. Use ps.solvers.LowRank()")
    return fit


def _fit(covariance: Covariance) -> _Fit | str:
    """Return the ingredients of the solver, or why it does not apply."""
    if not isinstance(covariance, KernelCovariance):
        return f"it needs the covariance of a kernel, not a {type(covariance).__name__}"
    dimension = int(covariance.rows.tiles[0].points.shape[0])
    factors = covariance.kernel.factors(dimension)
    if factors is None:
        return f"the kernel {covariance.kernel!r} is not a product of kernels of one coordinate each"
    structure = find_grids(covariance.rows)
    if len(structure.grids) != 1 or len(structure.scattered):
        return (
            f"the {covariance.size} observations do not form one tensor grid with one operator, but "
            f"{len(structure.grids)} grids and {len(structure.scattered)} scattered points"
        )
    (grid,) = structure.grids
    parts = [part for term in grid.terms for part in term.parts]
    if len(parts) != 1:
        return f"the operator has {len(parts)} derivatives instead of one"
    if grid.terms[0].field is not None:
        return "the coefficient of the operator is not constant"
    noise = grid.tensor(covariance.noise[:, None])[0]
    if not (np.isfinite(noise).all() and (noise > 0).all()):
        return "the noise is not positive and finite"
    # If the noise is a product, its lines through one corner determine it. Each line contains the corner, so all but
    # one are divided by it.
    axes = [
        noise[tuple(slice(None) if i == axis else 0 for i in range(dimension))] / (noise.flat[0] if axis else 1.0)
        for axis in range(dimension)
    ]
    deviation = float(np.abs(_outer(axes) / noise - 1.0).max())
    if deviation > SEPARABLE:
        return f"the noise is not a product over the axes (relative deviation {deviation:.1e})"
    ((alpha, coefficient),) = parts
    return _Fit(covariance, grid, factors, alpha, coefficient, axes, deviation)


class KroneckerFactored(ExactFactored):
    """A covariance with the eigendecompositions of its factors. Tensors have the axes of the grid."""

    method = "kronecker"

    def __init__(self, fit: _Fit) -> None:
        covariance, grid = fit.covariance, fit.grid
        self.covariance = covariance
        self.fit = fit
        self.amplitude = covariance.eta * fit.coefficient**2
        shape = " × ".join(map(str, grid.shape))
        self.account = f"kronecker: eigendecompositions of the axes of a grid of {shape}"
        self.matrices: list[Float[np.ndarray, "_ _"]] = []
        self.eigenvalues: list[Float[np.ndarray, " _"]] = []
        self.vectors: list[Float[np.ndarray, "_ _"]] = []
        with threads(max(grid.shape)):
            for axis, (factor, order) in enumerate(zip(fit.factors, fit.alpha, strict=True)):
                self._decompose(axis, factor, order)
            self.plus = 1.0 + self.amplitude * _outer(self.eigenvalues)
            self._require_positive()
            z = kron([w.T for w in self.vectors], grid.tensor(covariance.values[:, None]))[0]
            self.alpha = grid.flat(kron(self.vectors, (z / self.plus)[None]))[:, 0]
        logdet = float(np.log(covariance.noise).sum() + np.log(self.plus).sum())
        quadratic = float(np.vdot(z, z / self.plus))
        self.logdet, self.quadratic = Bounds(logdet, logdet), Bounds(quadratic, quadratic)
        self.error = self._rounding(z)

    def _decompose(self, axis: int, factor: Kernel, order: int) -> None:
        nodes = self.fit.grid.axes[axis]
        require_memory(len(nodes.nodes), 32.0 * len(nodes.nodes) ** 2, "the factor of one axis")
        matrix = axis_matrix(factor, order, order, nodes, nodes)
        if not np.isfinite(matrix).all():
            raise InputError(
                f"kernel: its factor {factor!r} on axis {axis} has NaN or infinite covariances on the grid"
            )
        half = 1.0 / np.sqrt(self.fit.noise[axis])
        values, vectors = np.linalg.eigh(half[:, None] * matrix * half)
        if values[0] < -NEGATIVE * np.abs(values).sum():
            raise NotPositiveDefiniteError(
                f"the factor {factor!r} of the kernel on axis {axis} is not positive semidefinite on the grid: its "
                f"eigenvalues reach from {values[0]:.1e} to {values[-1]:.1e}. Use another kernel."
            )
        self.matrices.append(matrix)
        self.eigenvalues.append(values)
        self.vectors.append(half[:, None] * vectors)

    def _require_positive(self) -> None:
        """Raise if rounding makes the smallest eigenvalue negative, naming the row with the largest share of it."""
        # Slightly negative `λ_a` are not clipped, which would bias the log determinant. Only `1 + Λ ≤ 0` is fatal.
        if self.plus.min() > 0:
            return
        worst = np.unravel_index(int(np.argmin(self.plus)), self.plus.shape)
        place = [int(np.abs(w[:, i]).argmax()) for w, i in zip(self.vectors, worst, strict=True)]
        grid = self.fit.grid
        sizes = tuple(grid.shape[axis] for axis in grid.order)
        raise NotFactorableError(int(np.ravel_multi_index(tuple(place[axis] for axis in grid.order), sizes)))

    def _rounding(self, z: Float[np.ndarray, "..."]) -> float:
        """Estimate the rounding error of `ỹᵀC⁻¹ỹ + log det C`.

        Rounding changes each `λ_a` by about `eps max λ_a`, and `Λ` accordingly by `δΛ`. This changes `log det C` by
        `Σ δΛ/(1+Λ)` and the quadratic form by `Σ δΛ z²/(1+Λ)²`. Noise that deviates from a product changes
        `log det C` by the deviation times `N`, and the sums are rounded as well.
        """
        sizes = [np.abs(values) for values in self.eigenvalues]
        perturbation = np.full_like(z, 0.0)
        for axis, values in enumerate(sizes):
            spectra = [np.full(len(values), values.max()) if i == axis else other for i, other in enumerate(sizes)]
            perturbation += _outer(spectra)
        share = EPS * self.amplitude * perturbation / self.plus
        spectrum = float(share.sum() + np.vdot(share, z**2 / self.plus))
        noise = self.covariance.noise
        product = self.fit.deviation + EPS
        rest = product * float(len(noise) + self.alpha**2 @ noise)
        logs = EPS * float(np.abs(np.log(noise)).sum() + np.abs(np.log(self.plus)).sum())
        return spectrum + rest + logs + EPS * self.quadratic.value

    def solve(self, right: Float[np.ndarray, "N k"]) -> tuple[Float[np.ndarray, "N k"], Float[np.ndarray, "N k"]]:
        """Return `C⁻¹B`."""
        with threads(max(self.fit.grid.shape)):
            inner = kron([w.T for w in self.vectors], self.fit.grid.tensor(right))
            inner /= self.plus
            return self.fit.grid.flat(kron(self.vectors, inner)), np.zeros_like(right)

    def half_solve(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "N k"]:
        """Return `(I + Λ)^{−½} WᵀB`, in the order of the tensor."""
        with threads(max(self.fit.grid.shape)):
            inner = kron([w.T for w in self.vectors], self.fit.grid.tensor(right))
        inner /= np.sqrt(self.plus)
        return inner.reshape(len(inner), -1).T

    def cotangent(self, scale: float) -> Cotangent:
        """Return `G` from the same factors."""
        return _KroneckerCotangent(self, scale)


class _KroneckerCotangent(Cotangent):
    def __init__(self, factored: KroneckerFactored, scale: float) -> None:
        self.factored = factored
        self.scale = scale
        grid = factored.fit.grid
        with threads(max(grid.shape)):
            inverse = kron([w**2 for w in factored.vectors], 1.0 / factored.plus[None])
        self.diagonal = grid.flat(inverse)[:, 0] - factored.alpha**2 / scale

    def contract(self, tangent: CovarianceTangent) -> Float[np.ndarray, " p"]:
        if isinstance(tangent, KernelTangent):
            return self._kernel(tangent)
        if isinstance(tangent, CoefficientTangent):
            changes = [self._change(layout) for layout in tangent.layouts]
            constant = [change for change in changes if change is not None]
            if len(constant) == len(changes):
                return np.array([float(2.0 * self._mixed @ change) for change in constant])
        return self._by_strips(tangent)

    def _kernel(self, tangent: KernelTangent) -> Float[np.ndarray, " p"]:
        """Return `Σ_a Σ_ij (G_a)_ij ∂(K_a)_ij` for every entry of the kernel arrays."""
        fit = self.factored.fit
        sums = []
        for axis, weights in enumerate(self._weights):
            nodes, leaves = fit.grid.axes[axis], tuple(tangent.leaves)
            tangents = _tangents(fit.covariance.kernel, leaves, axis, fit.alpha, nodes.padded)
            n = len(nodes.nodes)
            sums.append([float(np.vdot(weights, np.asarray(matrix)[:n, :n])) for matrix in tangents])
        return np.sum(sums, axis=0)

    @functools.cached_property
    def _weights(self) -> list[Float[np.ndarray, "_ _"]]:
        """`G_a`, the derivative with respect to `K_a`: `A (W_a diag(R_a) W_aᵀ − M_a/scale)`.

        `R_a = Σ (I + Λ)⁻¹ Π_b λ_b` sums over the other axes, and `M_a = α (⊗_b K_b) αᵀ` with `α` unfolded along axis a.
        """
        factored, weights = self.factored, []
        alpha = factored.fit.grid.tensor(factored.alpha[:, None])
        with threads(max(factored.fit.grid.shape)):
            for axis, vectors in enumerate(factored.vectors):
                trace, product = 1.0 / factored.plus[None], alpha
                for other, values in enumerate(factored.eigenvalues):
                    if other != axis:
                        trace = along(trace, values[None], other)
                        product = along(product, factored.matrices[other], other)
                left, right = (np.moveaxis(t[0], axis, 0).reshape(len(vectors), -1) for t in (alpha, product))
                both = (vectors * trace.ravel()) @ vectors.T - (left @ right.T) / self.scale
                weights.append(factored.amplitude * both)
        return weights

    def _change(self, layout: Layout) -> Float[np.ndarray, " N"] | None:
        """Return the relative change of each row's coefficient; None if another derivative appears."""
        fit, change = self.factored.fit, np.empty(self.factored.covariance.size)
        for tile in layout.tiles:
            for alphas, table in zip(tile.indices, np.asarray(tile.table)[:, : tile.size], strict=True):
                if fit.alpha in alphas:
                    change[tile.rows] = table / fit.coefficient
                if table.any() and set(alphas) != {fit.alpha}:
                    return None
        return change

    @functools.cached_property
    def _mixed(self) -> Float[np.ndarray, " N"]:
        """Diagonal of `GQ`: of `W Λ(I + Λ)⁻¹ W⁻¹`, minus `α ∘ Qα / scale`."""
        factored = self.factored
        orthogonal = [np.sqrt(d)[:, None] * w for d, w in zip(factored.fit.noise, factored.vectors, strict=True)]
        share = kron([v**2 for v in orthogonal], (1.0 - 1.0 / factored.plus)[None])
        # `Qα = ỹ − Sα`, without another product with the kernel matrices.
        prior = factored.covariance.values - factored.covariance.noise * factored.alpha
        return factored.fit.grid.flat(share)[:, 0] - factored.alpha * prior / self.scale

    def _by_strips(self, tangent: CovarianceTangent) -> Float[np.ndarray, " p"]:
        """Contract any tangent with columns of `G`, one strip at a time."""
        factored = self.factored
        parts = []
        for columns, second in factored.covariance.strips():
            unit = np.eye(factored.covariance.size, columns.stop - columns.start, -columns.start)
            weights = factored.solve(unit)[0] - np.outer(factored.alpha, factored.alpha[columns] / self.scale)
            parts += [tangent.block(first, second, weights[rows]) for rows, first in factored.covariance.strips()]
        return functools.reduce(np.add, parts)


def _outer(vectors: list[Float[np.ndarray, " _"]]) -> Float[np.ndarray, "..."]:
    """Return the outer product of vectors."""
    return functools.reduce(np.multiply.outer, vectors)


@eqx.filter_jit
def _tangents(
    kernel: Kernel, leaves: tuple[int, ...], axis: int, alpha: MultiIndex, nodes: Float[Array, " n"]
) -> list[Float[Array, "n n"]]:
    """Return the derivatives of the matrix of one axis with respect to each entry of some kernel arrays."""
    numbers, form = split(kernel)

    def matrix(changed: list[Array]) -> Array:
        factors: Any = join(form, changed).factors(len(alpha))
        return pairwise(factors[axis], alpha[axis], alpha[axis], nodes, nodes)

    return list(entry_tangents(matrix, numbers, leaves))
