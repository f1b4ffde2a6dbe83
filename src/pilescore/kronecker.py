"""The exact solver of one tensor grid: eigendecompositions of one matrix for each axis.

`C = A ⊗_a K_a + ⊗_a D_a` with diagonal `D_a`, the noise. With `D_a^{−½} K_a D_a^{−½} = V_a λ_a V_aᵀ` and
`W_a = D_a^{−½} V_a`, `C⁻¹ = W (I + Λ)⁻¹ Wᵀ`, `W = ⊗ W_a`, `Λ = A ⊗ λ_a`, and nothing larger than the grid is formed.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from .covariances import CoefficientTangent, KernelCovariance, KernelTangent
from .errors import InputError, NotPositiveDefiniteError
from .grid_products import along, axis_matrix, kron, pairwise
from .grids import Grid, structure
from .kernels import Kernel, MultiIndex
from .linalg import EPS, NotFactorableError, require_memory, self_product, threads
from .solvers import Bounds, Covariance, Estimate, Factored, Pull, Solver, Tangent

SEPARABLE = 1e-12
"""How far noise may be from a product over the axes, relative to itself."""

NEGATIVE = 100 * EPS
"""How negative rounding may make an eigenvalue of a factor, relative to its trace."""


@dataclasses.dataclass(frozen=True)
class Kronecker(Solver):
    """Eigendecompositions of the factors of one tensor grid: exact, `Σ n_a³ + N Σ n_a` operations, a few vectors.

    It needs a kernel that is a product over the coordinates, observations that are all combinations of nodes on the
    axes, one derivative (or the value) with a constant coefficient, and noise that is a product over the axes, as
    that of a tensor rule is. `applies` says what does not fit.

    Examples
    --------
    >>> import pilescore as ps
    >>> from pilescore.kronecker import Kronecker
    >>> box = ps.Box(x=(0, 1), y=(0, 1))
    >>> law = ps.impose(ps.identity, lambda p: p[0] * p[1], on=box.interior(ps.GaussLegendre(12)))
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.3), physics=law, rho=1e-2)
    >>> abs(ps.pile(model, solver=Kronecker()).value - ps.pile(model).value) < 1e-9
    True
    """

    @property
    def identity(self) -> str:
        """What results depend on."""
        return "kronecker"

    def applies(self, covariance: Covariance) -> str:
        """Return why it cannot be used for a covariance; nothing if it can."""
        found = _fit(covariance)
        return found if isinstance(found, str) else ""

    def estimate(self, covariance: Covariance) -> Estimate:
        """Return what it needs."""
        shape, size = _fitted(covariance).grid.shape, covariance.size
        memory = 8.0 * (20 * size + 8 * sum(n**2 for n in shape))
        return Estimate("kronecker", memory, float(sum(10 * n**3 + 4 * size * n for n in shape)))

    def factor(self, covariance: Covariance) -> KroneckerFactored:
        """Decompose the factors."""
        return KroneckerFactored(_fitted(covariance))


@dataclasses.dataclass(frozen=True, eq=False)
class _Fit:
    """One grid that covers all rows, with the operator `c ∂^α` and the noise `⊗ D_a`."""

    covariance: KernelCovariance
    grid: Grid
    factors: tuple[Kernel, ...]
    alpha: MultiIndex
    coefficient: float
    noise: list[Float[np.ndarray, " _"]]
    deviation: float
    """How far the noise is from the product, relative to itself."""


def _fitted(covariance: Covariance) -> _Fit:
    found = _fit(covariance)
    if isinstance(found, str):
        raise InputError(f"solver: ps.Kronecker() does not fit: {found}. Use ps.LowRank()")
    return found


def _fit(covariance: Covariance) -> _Fit | str:
    """Return what the solver needs, or what is not so."""
    if not isinstance(covariance, KernelCovariance):
        return f"it needs the covariance of a kernel, not a {type(covariance).__name__}"
    dimension = int(covariance.rows.tiles[0].points.shape[0])
    factors = covariance.kernel.factors(dimension)
    if factors is None:
        return f"the kernel {covariance.kernel!r} is not a product of kernels of one coordinate each"
    found = structure(covariance.rows)
    if len(found.grids) != 1 or len(found.scattered):
        return (
            f"the {covariance.size} observations are not one tensor grid with one operator, but {len(found.grids)} "
            f"grids and {len(found.scattered)} scattered ones"
        )
    (grid,) = found.grids
    parts = [part for term in grid.terms for part in term.parts]
    if len(parts) != 1:
        return f"the operator has {len(parts)} derivatives instead of one"
    if grid.terms[0].field is not None:
        return "the coefficient of the operator is not constant"
    noise = grid.tensor(covariance.noise[:, None])[0]
    if not (np.isfinite(noise).all() and (noise > 0).all()):
        return "the noise is not positive and finite"
    axes = [
        noise[tuple(slice(None) if i == axis else 0 for i in range(dimension))] / (noise.flat[0] if axis else 1.0)
        for axis in range(dimension)
    ]
    deviation = float(np.abs(_outer(axes) / noise - 1.0).max())
    if deviation > SEPARABLE:
        return f"the noise is not a product over the axes (it differs from one by {deviation:.1e} of itself)"
    ((alpha, coefficient),) = parts
    return _Fit(covariance, grid, factors, alpha, coefficient, axes, deviation)


class KroneckerFactored(Factored):
    """A covariance by the eigendecompositions of its factors; tensors have the axes of the grid."""

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
        """Refuse a matrix whose smallest eigenvalue rounding has made negative, naming the row that it is most of."""
        if self.plus.min() > 0:
            return
        worst = np.unravel_index(int(np.argmin(self.plus)), self.plus.shape)
        place = [int(np.abs(w[:, i]).argmax()) for w, i in zip(self.vectors, worst, strict=True)]
        grid = self.fit.grid
        sizes = tuple(grid.shape[axis] for axis in grid.order)
        raise NotFactorableError(int(np.ravel_multi_index(tuple(place[axis] for axis in grid.order), sizes)))

    def _rounding(self, z: Float[np.ndarray, "..."]) -> float:
        """Return an estimate of the rounding error of `ỹᵀC⁻¹ỹ + log det C`.

        Rounding moves each `λ_a` by about `eps max λ_a`, with it `Λ`, `log det C` by `Σ δΛ/(1+Λ)` and the quadratic
        form by `Σ δΛ z²/(1+Λ)²`, whether it makes eigenvalues that are zero positive or negative. Noise that is not
        quite a product moves `log det C` by its share of `N`, and the sums are rounded themselves.
        """
        sizes = [np.abs(values) for values in self.eigenvalues]
        moved = np.full_like(z, 0.0)
        for axis, values in enumerate(sizes):
            held = [np.full(len(values), values.max()) if i == axis else other for i, other in enumerate(sizes)]
            moved += _outer(held)
        share = EPS * self.amplitude * moved / self.plus
        spectrum = float(share.sum() + np.vdot(share, z**2 / self.plus))
        noise = self.covariance.noise
        product = self.fit.deviation + EPS
        rest = product * float(len(noise) + self.alpha**2 @ noise)
        logs = EPS * float(np.abs(np.log(noise)).sum() + np.abs(np.log(self.plus)).sum())
        return spectrum + rest + logs + EPS * self.quadratic.value

    def solve(self, right: Float[np.ndarray, "N k"]) -> tuple[Float[np.ndarray, "N k"], Float[np.ndarray, "N k"]]:
        """Return `C⁻¹B`, exact."""
        with threads(max(self.fit.grid.shape)):
            inner = kron([w.T for w in self.vectors], self.fit.grid.tensor(right))
            inner /= self.plus
            return self.fit.grid.flat(kron(self.vectors, inner)), np.zeros_like(right)

    def _half(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "k N"]:
        """Return `(I + Λ)^{−½} WᵀB`, transposed."""
        with threads(max(self.fit.grid.shape)):
            inner = kron([w.T for w in self.vectors], self.fit.grid.tensor(right))
        inner /= np.sqrt(self.plus)
        return inner.reshape(len(inner), -1)

    def reduced(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "k k"]:
        """Return `BᵀC⁻¹B`."""
        half = self._half(right)
        return self_product(half)

    def reduced_diagonal(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, " k"]:
        """Return the diagonal of `BᵀC⁻¹B`."""
        half = self._half(right)
        return np.einsum("ij,ij->i", half, half)

    def pull(self, scale: float) -> Pull:
        """Return `G` by the same factors."""
        return _KroneckerPull(self, scale)


class _KroneckerPull(Pull):
    def __init__(self, factored: KroneckerFactored, scale: float) -> None:
        self.factored = factored
        self.scale = scale
        grid = factored.fit.grid
        with threads(max(grid.shape)):
            inverse = kron([w**2 for w in factored.vectors], 1.0 / factored.plus[None])
        self.diagonal = grid.flat(inverse)[:, 0] - factored.alpha**2 / scale

    def contract(self, tangent: Tangent) -> Float[np.ndarray, " p"]:
        if isinstance(tangent, KernelTangent):
            return self._kernel(tangent)
        if isinstance(tangent, CoefficientTangent):
            changes = [self._change(tangent, i) for i in range(len(tangent.moved))]
            known = [change for change in changes if change is not None]
            if len(known) == len(changes):
                return np.array([float(2.0 * self._mixed @ change) for change in known])
        return self._by_strips(tangent)

    def _kernel(self, tangent: KernelTangent) -> Float[np.ndarray, " p"]:
        """Return `Σ_a Σ_ij (G_a)_ij ∂(K_a)_ij` in each number."""
        fit = self.factored.fit
        total: list[np.ndarray] = []
        for leaf in tangent.leaves:
            sums: list[np.ndarray] = []
            for axis, weights in enumerate(self._weights):
                nodes, order = fit.grid.axes[axis], fit.alpha[axis]
                moved = _tangents(fit.covariance.kernel, leaf, axis, len(fit.alpha), order, nodes.padded)
                n = len(nodes.nodes)
                sums.append(np.array([float(np.vdot(weights, np.asarray(each)[:n, :n])) for each in moved]))
            total.append(np.sum(sums, axis=0))
        return np.concatenate(total)

    @functools.cached_property
    def _weights(self) -> list[Float[np.ndarray, "_ _"]]:
        """`G_a`, the derivative in `K_a`: `A (W_a diag(R_a) W_aᵀ − M_a/scale)`.

        `R_a = Σ (I + Λ)⁻¹ Π_b λ_b` over the other axes, and `M_a` is `α (⊗_b K_b) αᵀ`, `α` unfolded along the axis.
        """
        done, weights = self.factored, []
        alpha = done.fit.grid.tensor(done.alpha[:, None])
        with threads(max(done.fit.grid.shape)):
            for axis, vectors in enumerate(done.vectors):
                trace, held = 1.0 / done.plus[None], alpha
                for other, values in enumerate(done.eigenvalues):
                    if other != axis:
                        trace = along(trace, values[None], other)
                        held = along(held, done.matrices[other], other)
                left, right = (np.moveaxis(t[0], axis, 0).reshape(len(vectors), -1) for t in (alpha, held))
                both = (vectors * trace.ravel()) @ vectors.T - (left @ right.T) / self.scale
                weights.append(done.amplitude * both)
        return weights

    def _change(self, tangent: CoefficientTangent, number: int) -> Float[np.ndarray, " N"] | None:
        """Return the relative change of the coefficient of each row; None if another derivative comes in."""
        fit, change = self.factored.fit, np.empty(self.factored.covariance.size)
        for tile in tangent.moved[number].tiles:
            for alphas, table in zip(tile.indices, np.asarray(tile.table)[:, : tile.size], strict=True):
                if fit.alpha in alphas:
                    change[tile.rows] = table / fit.coefficient
                if table.any() and set(alphas) != {fit.alpha}:
                    return None
        return change

    @functools.cached_property
    def _mixed(self) -> Float[np.ndarray, " N"]:
        """The diagonal of `GQ`: of `W Λ(I + Λ)⁻¹ W⁻¹`, less `α ∘ Qα / scale`."""
        done = self.factored
        orthogonal = [np.sqrt(d)[:, None] * w for d, w in zip(done.fit.noise, done.vectors, strict=True)]
        share = kron([v**2 for v in orthogonal], (1.0 - 1.0 / done.plus)[None])
        prior = done.covariance.values - done.covariance.noise * done.alpha
        return done.fit.grid.flat(share)[:, 0] - done.alpha * prior / self.scale

    def _by_strips(self, tangent: Tangent) -> Float[np.ndarray, " p"]:
        """Return any contraction by columns of `G`, a strip of them at a time."""
        done = self.factored
        total: Float[np.ndarray, " p"] | None = None
        for columns, second in done.covariance.strips():
            unit = np.zeros((done.covariance.size, columns.stop - columns.start))
            unit[columns] = np.eye(unit.shape[1])
            weights = done.solve(unit)[0] - np.outer(done.alpha, done.alpha[columns] / self.scale)
            for rows, first in done.covariance.strips():
                part = tangent.block(first, second, weights[rows])
                total = part if total is None else total + part
        assert total is not None
        return total


def _outer(vectors: list[Float[np.ndarray, " _"]]) -> Float[np.ndarray, "..."]:
    """Return the tensor of all products."""
    return functools.reduce(np.multiply.outer, vectors)


@eqx.filter_jit
def _tangents(
    kernel: Kernel, leaf: int, axis: int, dimension: int, order: int, nodes: Float[Array, " n"]
) -> list[Float[Array, "n n"]]:
    """Return the derivatives of the matrix of one axis in each entry of one of the kernel's numbers."""
    held, rest = eqx.partition(kernel, eqx.is_inexact_array)
    numbers, tree = jax.tree.flatten(held)

    def matrix(value: Array) -> Array:
        moved = eqx.combine(jax.tree.unflatten(tree, [*numbers[:leaf], value, *numbers[leaf + 1 :]]), rest)
        return pairwise(moved.factors(dimension)[axis], order, order, nodes, nodes)

    units = np.eye(math.prod(numbers[leaf].shape)).reshape(-1, *numbers[leaf].shape)
    return [jax.jvp(matrix, (numbers[leaf],), (unit,))[1] for unit in units]
