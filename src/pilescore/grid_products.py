"""Products with covariances of tensor grids through Kronecker factors.

Where the kernel is a product over the coordinates, the covariances of two grids are a sum of Kronecker products of
small matrices, one for each axis, whatever the coefficients of the operators: these only scale rows and columns.
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

from .covariances import KernelCovariance, Part
from .errors import require, require_float64
from .gram import product
from .grids import Axis, Grid, Structure, Term, Weighted, structure
from .kernels import Kernel
from .layouts import Tile
from .linalg import threads

CHUNK = 2**22
"""Numbers of an array between scattered points and a grid at most, where it can be."""

PAIR, FLOP, CALL = 3e-9, 1e-10, 1e-4
"""Seconds, about: a pair of rows by tiles, an operation of products, and a small product."""


def pairwise(factor: Kernel, a: int, b: int, x: Float[Array, " n"], y: Float[Array, " m"]) -> Float[Array, "n m"]:
    """Return `∂₁^a ∂₂^b k(x_i, y_j)` of a kernel of one coordinate, within compiled functions."""

    def one(first: Array, second: Array) -> Array:
        return jnp.asarray(factor.derivative((a,), (b,), (first,), (second,)), dtype=float)

    return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(x, y)


_compiled = eqx.filter_jit(pairwise)


def axis_matrix(factor: Kernel, a: int, b: int, x: Axis, y: Axis) -> Float[np.ndarray, "n m"]:
    """Return `∂₁^a ∂₂^b k(x_i, y_j)` of a kernel of one coordinate on the nodes of two axes."""
    require_float64()
    values = np.asarray(_compiled(factor, a, b, x.padded, y.padded))
    return np.ascontiguousarray(values[: len(x.nodes), : len(y.nodes)])


def along(
    tensor: Float[np.ndarray, "k ..."], matrix: Float[np.ndarray, "m n"], axis: int
) -> Float[np.ndarray, "k ..."]:
    """Apply a matrix along one axis of tensors (of which the first, their number, does not count)."""
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
    """Apply a matrix along each axis, those that shorten it most first.

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
"""Axis and orders of differentiation on both sides → matrix, or None where it vanishes."""


def _products(left: Weighted, right: Weighted, matrix: Lookup) -> Iterator[list[np.ndarray]]:
    """Iterate over the Kronecker products whose sum is `Σ w_α v_β ⊗_a K_a`; alike but for the first axis is one."""
    merged: dict[tuple[tuple[int, int], ...], dict[tuple[int, int], float]] = {}
    for (alpha, w), (beta, v) in itertools.product(left, right):
        first, *rest = zip(alpha, beta, strict=True)
        sums = merged.setdefault(tuple(rest), {})
        sums[first] = sums.get(first, 0.0) + w * v
    for rest_key, sums in merged.items():
        others = [matrix(axis, a, b) for axis, (a, b) in enumerate(rest_key, 1)]
        firsts = [(weight, matrix(0, a, b)) for (a, b), weight in sums.items()]
        present = [weight * held for weight, held in firsts if held is not None]
        known = [held for held in others if held is not None]
        if present and len(known) == len(others):
            yield [sum(present[1:], start=present[0]), *known]


@dataclasses.dataclass(frozen=True, eq=False)
class GridCovariance(KernelCovariance):
    """A covariance whose products go through Kronecker factors where rows are grids; see `structured`."""

    def __post_init__(self) -> None:
        require(self._factors is not None, "kernel", self.kernel, "a product of kernels of one coordinate each")

    @functools.cached_property
    def _factors(self) -> tuple[Kernel, ...] | None:
        return self.kernel.factors(self.rows.tiles[0].points.shape[0])

    @functools.cached_property
    def structure(self) -> Structure:
        """The grids."""
        return structure(self.rows)

    @functools.cached_property
    def _rest(self) -> Part:
        return self.part(self.structure.scattered)

    @functools.cached_property
    def _matrices(self) -> dict[tuple[int, int, int, Axis, Axis], np.ndarray | None]:
        return {}

    def _matrix(self, x: Axis, y: Axis, axis: int, a: int, b: int) -> np.ndarray | None:
        """Return a matrix of one axis, computed once for both triangles."""
        known = self._matrices
        if (axis, a, b, x, y) in known:
            return known[axis, a, b, x, y]
        if (axis, b, a, y, x) in known:
            other = known[axis, b, a, y, x]
            return None if other is None else other.T
        assert self._factors is not None
        values = axis_matrix(self._factors[axis], a, b, x, y)
        known[axis, a, b, x, y] = values if values.any() else None
        return known[axis, a, b, x, y]

    def product(self, vectors: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "N k"]:
        """Return `ηQV` by Kronecker products between grids, and tile by tile between scattered rows."""
        out = np.zeros_like(vectors)
        grids = self.structure.grids
        with threads(self.structure.longest):
            for source in grids:
                for term in source.terms:
                    held = source.tensor(term.scaled(vectors[source.rows]))
                    for target in grids:
                        self._between(target, source, term, held, out)
                    if len(self.structure.scattered):
                        self._scattered(source, term, held, vectors, out)
        if len(self.structure.scattered):
            rows = self._rest.rows
            out[rows.order] += product(self.kernel, rows, 1.0, vectors[rows.order])
        return np.multiply(out, self.eta, out=out)

    def _between(self, target: Grid, source: Grid, term: Term, held: np.ndarray, out: np.ndarray) -> None:
        """Add the product of the covariances of two grids with vectors."""

        def matrix(axis: int, a: int, b: int) -> np.ndarray | None:
            return self._matrix(target.axes[axis], source.axes[axis], axis, a, b)

        for other in target.terms:
            for matrices in _products(other.parts, term.parts, matrix):
                out[target.rows] += other.scaled(target.flat(kron(matrices, held)))

    def _scattered(self, grid: Grid, term: Term, held: np.ndarray, vectors: np.ndarray, out: np.ndarray) -> None:
        """Add the products of the covariances of a grid with scattered points, both ways."""
        rows, total = self._rest.rows, np.zeros_like(held)
        assert self._factors is not None
        for tile in rows.tiles:
            places = rows.order[tile.rows]
            mine = vectors[places]
            mine = np.pad(mine, ((0, tile.width - tile.size), (0, 0))) if tile.matrix is None else tile.matrix.T @ mine
            known = functools.cache(functools.partial(self._to_points, tile, grid))
            gathered = np.zeros((len(held), tile.width))
            for alphas, table in zip(tile.indices, np.asarray(tile.table), strict=True):
                for matrices in _products(tuple((alpha, 1.0) for alpha in alphas), term.parts, known):
                    gathered += table * _gathered(matrices, held)
                    total += _spread(matrices, mine.T * table)
            out[places] += gathered[:, : tile.size].T if tile.matrix is None else tile.matrix @ gathered.T
        out[grid.rows] += term.scaled(grid.flat(total))

    def _to_points(self, tile: Tile, grid: Grid, axis: int, a: int, b: int) -> np.ndarray | None:
        assert self._factors is not None
        nodes = grid.axes[axis]
        values = np.asarray(_compiled(self._factors[axis], a, b, tile.points[axis], nodes.padded))
        return values[:, : len(nodes.nodes)] if values.any() else None


def _step(shape: tuple[int, ...]) -> int:
    return max(1, CHUNK // math.prod(shape[:-1]))


def _gathered(matrices: Sequence[np.ndarray], tensor: Float[np.ndarray, "k ..."]) -> Float[np.ndarray, "k m"]:
    """Return `Σ Π_a K_a[m, i_a] T[i]` for every point `m`."""
    points, step = len(matrices[0]), _step(tensor.shape)
    out = np.empty((len(tensor), points))
    for start in range(0, points, step):
        cut = [matrix[start : start + step].T for matrix in matrices]
        held = tensor @ cut[-1]
        for matrix in reversed(cut[:-1]):
            held = np.einsum("...im,im->...m", held, matrix)
        out[:, start : start + step] = held
    return out


def _spread(matrices: Sequence[np.ndarray], values: Float[np.ndarray, "k m"]) -> Float[np.ndarray, "k ..."]:
    """Return `Σ_m Π_a K_a[m, i_a] v_m` for every node `i`."""
    shape = (len(values), *(matrix.shape[1] for matrix in matrices))
    out, step = np.zeros(shape), _step(shape)
    for start in range(0, values.shape[1], step):
        held = values[:, start : start + step]
        for matrix in matrices[:-1]:
            held = held[..., None, :] * matrix[start : start + step].T
        out += held @ matrices[-1][start : start + step]
    return out


def structured(covariance: KernelCovariance) -> KernelCovariance:
    """Return a covariance that multiplies through Kronecker factors if that is cheaper, else the same one.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> from pilescore.covariances import KernelCovariance
    >>> from pilescore.layouts import assembly
    >>> box = ps.Box(x=(0, 1), y=(0, 1))
    >>> parts = assembly((ps.impose(ps.identity, 0.0, on=box.interior(ps.GaussLegendre(80))),))
    >>> plain = KernelCovariance(ps.RBF(0.3), parts.rows, 1.0, parts.values, parts.spread)
    >>> fast, ones = structured(plain), np.ones((6400, 1))
    >>> type(fast).__name__, bool(np.allclose(fast.product(ones), plain.product(ones)))
    ('GridCovariance', True)
    """
    if type(covariance) is not KernelCovariance:
        return covariance
    if covariance.kernel.factors(covariance.rows.tiles[0].points.shape[0]) is None:
        return covariance
    found, size = structure(covariance.rows), covariance.size
    orders = {order for grid in found.grids for term in grid.terms for alpha, _ in term.parts for order in alpha}
    nodes = [{grid.axes[axis]: grid.shape[axis] for grid in found.grids} for axis in range(_dimension(found))]
    memory = 8.0 * len(orders) ** 2 * sum(sum(axis.values()) ** 2 for axis in nodes)
    if memory > 2**28 + 256.0 * size or _seconds(found) > 0.5 * PAIR * size**2:
        return covariance
    names = [field.name for field in dataclasses.fields(covariance)]
    return GridCovariance(*(getattr(covariance, name) for name in names))


def _dimension(found: Structure) -> int:
    return len(found.grids[0].axes) if found.grids else 0


def _seconds(found: Structure) -> float:
    """Return about how long a product takes."""
    rest, total = len(found.scattered), 0.0
    terms = [sum(len(term.parts) for term in grid.terms) for grid in found.grids]
    for (first, m), (second, n) in itertools.product(zip(found.grids, terms, strict=True), repeat=2):
        longest = sum(max(pair) for pair in zip(first.shape, second.shape, strict=True))
        total += m * n * (CALL + 2 * FLOP * max(first.size, second.size) * longest)
    for grid, n in zip(found.grids, terms, strict=True):
        total += n * -(-rest // 512) * CALL + 4 * n * FLOP * rest * grid.size
    return total + PAIR * rest**2
