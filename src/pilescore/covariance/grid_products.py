"""Matrix-vector products with covariances of tensor grids through Kronecker factors.

If the kernel is a product over coordinates, the covariance between two grids is a sum of Kronecker products of small
matrices, one per axis. Variable operator coefficients only scale rows and columns.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..errors import InputError, require_float64
from ..kernels import Kernel
from ..parallel import threads
from .gram import product
from .grids import Axis, Grid, GridStructure, Term, Weighted, find_grids
from .linear_operator import KernelCovariance, RowSet
from .tiles import Tile

CHUNK_ENTRIES = 2**22
"""Target number of entries of the intermediate arrays between scattered points and a grid."""

SECONDS_PER_PAIR, SECONDS_PER_FLOP, SECONDS_PER_CALL = 3e-9, 1e-10, 1e-4
"""Rough costs: one covariance of two rows computed in tiles, one operation of a matrix product, one small product."""


def pairwise(factor: Kernel, a: int, b: int, x: Float[Array, " n"], y: Float[Array, " m"]) -> Float[Array, "n m"]:
    """Return `∂₁^a ∂₂^b k(x_i, y_j)` for a kernel of one coordinate, inside compiled functions."""

    def one(first: Array, second: Array) -> Array:
        return jnp.asarray(factor.derivative((a,), (b,), (first,), (second,)), dtype=float)

    return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(x, y)


_compiled = eqx.filter_jit(pairwise)


def axis_matrix(factor: Kernel, a: int, b: int, x: Axis, y: Axis) -> Float[np.ndarray, "n m"]:
    """Return `∂₁^a ∂₂^b k(x_i, y_j)` for a kernel of one coordinate on the nodes of two axes."""
    require_float64()
    values = np.asarray(_compiled(factor, a, b, x.padded, y.padded))
    return np.ascontiguousarray(values[: len(x.nodes), : len(y.nodes)])


def along(
    tensor: Float[np.ndarray, "k ..."], matrix: Float[np.ndarray, "m n"], axis: int
) -> Float[np.ndarray, "k ..."]:
    """Apply a matrix along one axis of a batch of tensors; the batch axis is not counted."""
    shape = tensor.shape
    before, after = math.prod(shape[: axis + 1]), math.prod(shape[axis + 2 :])
    if after == 1:
        out = tensor.reshape(before, -1) @ matrix.T
    else:
        out = matrix @ tensor.reshape(before, shape[axis + 1], after)
    return out.reshape(*shape[: axis + 1], len(matrix), *shape[axis + 2 :])


def kron(
    matrices: Sequence[Float[np.ndarray, "_ _"]], tensor: Float[np.ndarray, "k ..."]
) -> Float[np.ndarray, "k ..."]:
    """Apply one matrix along each axis of a batch of tensors, the most shrinking ones first.

    Examples
    --------
    >>> import numpy as np
    >>> a, b = np.arange(6.0).reshape(2, 3), np.arange(8.0).reshape(4, 2)
    >>> bool(np.allclose(kron([a, b], np.ones((1, 3, 2))).ravel(), np.kron(a, b) @ np.ones(6)))
    True
    """
    for axis in sorted(range(len(matrices)), key=lambda i: matrices[i].shape[0] / matrices[i].shape[1]):
        tensor = along(tensor, matrices[axis], axis)
    return tensor


Lookup: TypeAlias = Callable[[int, int, int], np.ndarray | None]
"""Maps an axis and the orders of differentiation on both sides to a matrix, or to None if it vanishes."""


def _products(left: Weighted, right: Weighted, matrix: Lookup) -> Iterator[list[np.ndarray]]:
    """Iterate over the Kronecker products whose sum is `Σ w_α v_β ⊗_a K_a`."""
    # Products that differ in the first axis only are merged by adding the matrices of that axis.
    merged: dict[tuple[tuple[int, int], ...], dict[tuple[int, int], float]] = {}
    for (alpha, w), (beta, v) in itertools.product(left, right):
        first, *rest = zip(alpha, beta, strict=True)
        sums = merged.setdefault(tuple(rest), {})
        sums[first] = sums.get(first, 0.0) + w * v
    for rest_key, sums in merged.items():
        others = [matrix(axis, a, b) for axis, (a, b) in enumerate(rest_key, 1)]
        firsts = [(weight, matrix(0, a, b)) for (a, b), weight in sums.items()]
        present = [weight * values for weight, values in firsts if values is not None]
        nonzero = [values for values in others if values is not None]
        if present and len(nonzero) == len(others):
            yield [sum(present[1:], start=present[0]), *nonzero]


@dataclasses.dataclass(frozen=True, eq=False)
class GridCovariance(KernelCovariance):
    """A covariance that multiplies through Kronecker factors where rows form grids; see `use_grid_products`."""

    @functools.cached_property
    def _factors(self) -> tuple[Kernel, ...]:
        factors = self.kernel.factors(self.rows.tiles[0].points.shape[0])
        if factors is None:
            raise InputError(f"kernel: expected a product of kernels of one coordinate each; got {self.kernel!r}")
        return factors

    @functools.cached_property
    def structure(self) -> GridStructure:
        """The grids and the scattered rows."""
        return find_grids(self.rows)

    @functools.cached_property
    def _rest(self) -> RowSet:
        return self.select(self.structure.scattered)

    @functools.cached_property
    def _matrices(self) -> dict[tuple[int, int, int, Axis, Axis], np.ndarray | None]:
        return {}

    def _matrix(self, x: Axis, y: Axis, axis: int, a: int, b: int) -> np.ndarray | None:
        """Return the matrix of one axis, cached together with its transpose."""
        cached = self._matrices
        if (axis, a, b, x, y) in cached:
            return cached[axis, a, b, x, y]
        if (axis, b, a, y, x) in cached:
            other = cached[axis, b, a, y, x]
            return None if other is None else other.T
        values = axis_matrix(self._factors[axis], a, b, x, y)
        cached[axis, a, b, x, y] = values if values.any() else None
        return cached[axis, a, b, x, y]

    def product(self, vectors: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "N k"]:
        """Return `ηQV`: Kronecker products between grids, tiles between scattered rows."""
        out = np.zeros_like(vectors)
        grids = self.structure.grids
        with threads(max((max(grid.shape) for grid in grids), default=0)):
            for source in grids:
                for term in source.terms:
                    tensor = source.tensor(term.scaled(vectors[source.rows]))
                    for target in grids:
                        self._between(target, source, term, tensor, out)
                    if len(self.structure.scattered):
                        self._scattered(source, term, tensor, vectors, out)
        if len(self.structure.scattered):
            rows = self._rest.rows
            out[rows.order] += product(self.kernel, rows, 1.0, vectors[rows.order])
        return np.multiply(out, self.eta, out=out)

    def _between(self, target: Grid, source: Grid, term: Term, tensor: np.ndarray, out: np.ndarray) -> None:
        """Add the product of the covariance between two grids with vectors to `out`."""

        def matrix(axis: int, a: int, b: int) -> np.ndarray | None:
            return self._matrix(target.axes[axis], source.axes[axis], axis, a, b)

        for other in target.terms:
            for matrices in _products(other.parts, term.parts, matrix):
                out[target.rows] += other.scaled(target.flat(kron(matrices, tensor)))

    def _scattered(self, grid: Grid, term: Term, tensor: np.ndarray, vectors: np.ndarray, out: np.ndarray) -> None:
        """Add the products of the covariance between a grid and scattered points, in both directions, to `out`."""
        rows, total = self._rest.rows, np.zeros_like(tensor)
        for tile in rows.tiles:
            places = rows.order[tile.rows]
            on_points = tile.to_points(vectors[places])
            lookup = functools.cache(functools.partial(self._to_points, tile, grid))
            gathered = np.zeros((len(tensor), tile.width))
            for alphas, table in zip(tile.indices, np.asarray(tile.table), strict=True):
                for matrices in _products(tuple((alpha, 1.0) for alpha in alphas), term.parts, lookup):
                    gathered += table * _gathered(matrices, tensor)
                    total += _spread(matrices, on_points.T * table)
            out[places] += tile.to_values(gathered.T)
        out[grid.rows] += term.scaled(grid.flat(total))

    def _to_points(self, tile: Tile, grid: Grid, axis: int, a: int, b: int) -> np.ndarray | None:
        nodes = grid.axes[axis]
        values = np.asarray(_compiled(self._factors[axis], a, b, tile.points[axis], nodes.padded))
        return values[:, : len(nodes.nodes)] if values.any() else None


def _step(shape: tuple[int, ...]) -> int:
    return max(1, CHUNK_ENTRIES // math.prod(shape[:-1]))


def _gathered(matrices: Sequence[np.ndarray], tensor: Float[np.ndarray, "k ..."]) -> Float[np.ndarray, "k m"]:
    """Return `Σ_i Π_a K_a[m, i_a] T[i]` for every point `m`."""
    points, step = len(matrices[0]), _step(tensor.shape)
    out = np.empty((len(tensor), points))
    for start in range(0, points, step):
        cut = [matrix[start : start + step].T for matrix in matrices]
        partial = tensor @ cut[-1]
        for matrix in reversed(cut[:-1]):
            partial = np.einsum("...im,im->...m", partial, matrix)
        out[:, start : start + step] = partial
    return out


def _spread(matrices: Sequence[np.ndarray], values: Float[np.ndarray, "k m"]) -> Float[np.ndarray, "k ..."]:
    """Return `Σ_m Π_a K_a[m, i_a] v_m` for every node `i`."""
    shape = (len(values), *(matrix.shape[1] for matrix in matrices))
    out, step = np.zeros(shape), _step(shape)
    for start in range(0, values.shape[1], step):
        partial = values[:, start : start + step]
        for matrix in matrices[:-1]:
            partial = partial[..., None, :] * matrix[start : start + step].T
        out += partial @ matrices[-1][start : start + step]
    return out


def use_grid_products(covariance: KernelCovariance) -> KernelCovariance:
    """Return a covariance that multiplies through Kronecker factors if that is cheaper; otherwise the same covariance.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> from pilescore.covariance.linear_operator import KernelCovariance
    >>> from pilescore.covariance.tiles import assembly
    >>> box = ps.Box(x=(0, 1), y=(0, 1))
    >>> parts = assembly((ps.impose(ps.identity, 0.0, on=box.interior(ps.GaussLegendre(80))),))
    >>> plain = KernelCovariance(ps.RBF(0.3), parts.rows, 1.0, parts.values, parts.spread)
    >>> fast, ones = use_grid_products(plain), np.ones((6400, 1))
    >>> type(fast).__name__, bool(np.allclose(fast.product(ones), plain.product(ones)))
    ('GridCovariance', True)
    """
    if type(covariance) is not KernelCovariance:
        return covariance
    if covariance.kernel.factors(covariance.rows.tiles[0].points.shape[0]) is None:
        return covariance
    structure, size = find_grids(covariance.rows), covariance.size
    orders = {order for grid in structure.grids for term in grid.terms for alpha, _ in term.parts for order in alpha}
    axes = [set(same) for same in zip(*(grid.axes for grid in structure.grids), strict=True)]
    memory = 8.0 * len(orders) ** 2 * sum(sum(len(axis.nodes) for axis in same) ** 2 for same in axes)
    # The factor of one half favours tiles: the estimates are rough, and tiles need no memory for axis matrices.
    if memory > 2**28 + 256.0 * size or _seconds(structure) > 0.5 * SECONDS_PER_PAIR * size**2:
        return covariance
    return GridCovariance(**vars(covariance))


def _seconds(structure: GridStructure) -> float:
    """Estimate the time of one product."""
    rest, total = len(structure.scattered), 0.0
    terms = [sum(len(term.parts) for term in grid.terms) for grid in structure.grids]
    for (first, m), (second, n) in itertools.product(zip(structure.grids, terms, strict=True), repeat=2):
        longest = sum(max(pair) for pair in zip(first.shape, second.shape, strict=True))
        total += m * n * (SECONDS_PER_CALL + 2 * SECONDS_PER_FLOP * max(first.size, second.size) * longest)
    for grid, n in zip(structure.grids, terms, strict=True):
        total += n * -(-rest // 512) * SECONDS_PER_CALL + 4 * n * SECONDS_PER_FLOP * rest * grid.size
    return total + SECONDS_PER_PAIR * rest**2
