"""Where operators meet kernels: covariance blocks `η (L_i ⊗ L_j) k(p_i, p_j)`, by tiles, one triangle.

Observations are cut into tiles: rows whose operators share their multi-indices, up to a few hundred of them.
The covariance of two tiles is one fused loop over pairs of points, `Σ_αβ c_α(i) c_β(j) ∂₁^α ∂₂^β k`, compiled once
for each pair of structures and used for every size, hyperparameter and coefficient.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from .errors import require_float64
from .kernels import Kernel, MultiIndex, Scalar
from .linalg import require_memory
from .observations import Observation

TILE = 512
"""Rows of a tile at most: its square of doubles stays in cache."""

SMALL = 256
"""Groups of fewer rows are merged into one, so that few structures are compiled."""

Spec: TypeAlias = tuple[Any, tuple[MultiIndex, ...], tuple[MultiIndex, ...]]
"""What a compiled block depends on: the kernel's structure and the multi-indices of both tiles."""


@dataclasses.dataclass(frozen=True, eq=False)
class Tile:
    """Rows of the stacked vector whose operators share the multi-indices `indices`."""

    rows: slice
    """Where they stand in the order of assembly."""
    indices: tuple[MultiIndex, ...]
    points: Float[np.ndarray, "d q"]
    table: Float[np.ndarray, "terms q"]
    """Coefficients of the operators; a row of zeros where padded."""
    matrix: Float[np.ndarray, "n q"] | None
    """`R` of functionals, else None."""

    @property
    def size(self) -> int:
        """The number of values."""
        return self.rows.stop - self.rows.start


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """The observations of a model in the order of assembly."""

    tiles: tuple[Tile, ...]
    order: np.ndarray
    """Assembled row → row of the stacked vector."""

    @property
    def size(self) -> int:
        """The number of values, N."""
        return len(self.order)

    def pairs(self) -> Iterator[tuple[Tile, Tile]]:
        """Iterate over the pairs of tiles on and above the diagonal."""
        for i, first in enumerate(self.tiles):
            for second in self.tiles[i:]:
                yield first, second


def layout(blocks: Sequence[Observation], tables: Sequence[Any] | None = None) -> Layout:
    """Cut blocks into tiles; `tables` replaces the coefficients of their operators, if given."""
    if tables is None:
        tables = [block.coefficients() for block in blocks]
    starts = np.cumsum([0, *(block.size for block in blocks)])
    groups: dict[tuple[MultiIndex, ...], list[int]] = {}
    plain = [i for i, block in enumerate(blocks) if block.matrix is None]
    for i in plain:
        groups.setdefault(tuple(sorted(blocks[i].indices)), []).append(i)
    fuse = sum(blocks[i].size for i in plain) <= TILE
    small = [key for key, members in groups.items() if fuse or sum(blocks[i].size for i in members) < SMALL]
    if len(small) > 1:
        union = tuple(sorted({alpha for key in small for alpha in key}))
        members = sorted(i for key in small for i in groups.pop(key))
        groups[union] = sorted(groups.get(union, []) + members)
    tiles: list[Tile] = []
    order: list[np.ndarray] = []
    done = 0
    for indices, members in groups.items():
        points = np.concatenate([blocks[i].points for i in members])
        table = np.concatenate([_spread(blocks[i], tables[i], indices) for i in members], axis=1)
        order.extend(np.arange(starts[i], starts[i + 1]) for i in members)
        count = len(points)
        width = -(-count // -(-count // TILE))
        for start in range(0, count, width):
            stop = min(start + width, count)
            rows = slice(done + start, done + stop)
            tiles.append(_tile(rows, indices, points[start:stop], table[:, start:stop], None, width))
        done += count
    for i, block in enumerate(blocks):
        if block.matrix is None:
            continue
        indices = tuple(sorted(block.indices))
        table = _spread(block, tables[i], indices)
        order.append(np.arange(starts[i], starts[i + 1]))
        for part, used in _pieces(block.matrix):
            rows = slice(done + part.start, done + part.stop)
            matrix = block.matrix[part][:, used]
            tiles.append(_tile(rows, indices, block.points[used], table[:, used], matrix, len(used)))
        done += block.size
    return Layout(tuple(tiles), np.concatenate(order))


def query(points: Float[np.ndarray, "n d"], indices: tuple[MultiIndex, ...], table: Any) -> Layout:
    """Return the layout of one operator at any number of points, for prediction."""
    count = len(points)
    width = min(TILE, count)
    cuts = [slice(start, min(start + width, count)) for start in range(0, count, width)]
    values = np.asarray(table)
    tiles = tuple(_tile(cut, indices, points[cut], values[:, cut], None, width) for cut in cuts)
    return Layout(tiles, np.arange(count))


def covariance(kernel: Kernel, rows: Layout, eta: float) -> Float[np.ndarray, "N N"]:
    """Return `ηQ` in assembled order: Fortran ordered, its lower triangle filled."""
    require_float64()
    require_memory(rows.size)
    upper = np.empty((rows.size, rows.size))

    def keep(first: Tile, second: Tile, block: np.ndarray) -> None:
        upper[first.rows, second.rows] = block

    _each(kernel, rows.pairs(), eta, keep)
    return upper.T


def cross(kernel: Kernel, first: Tile, rows: Layout, eta: float) -> Float[np.ndarray, "n N"]:
    """Return the covariances `η (A ⊗ L) k` of one tile with all rows of a layout."""
    out = np.empty((first.size, rows.size))

    def keep(_: Tile, second: Tile, block: np.ndarray) -> None:
        out[:, second.rows] = block

    _each(kernel, ((first, second) for second in rows.tiles), eta, keep)
    return out


def variances(kernel: Kernel, tile: Tile, eta: float) -> Float[np.ndarray, " n"]:
    """Return the prior variances of the rows of a tile (not of functionals)."""
    require_float64()
    arrays, form = _split(kernel)
    out = _diagonal((form, tile.indices, tile.indices), arrays, tile.points, tile.table)
    return eta * np.asarray(out)[: tile.size]


def kernel_gradient(
    kernel: Kernel,
    directions: Sequence[Kernel],
    rows: Layout,
    eta: float,
    weight: Callable[[Tile, Tile], Float[np.ndarray, "n m"]],
) -> Float[np.ndarray, " directions"]:
    """Return `Σ_ij G_ij ∂C_ij` for changes of the kernel's hyperparameters, given `G` by tiles."""
    arrays, form = _split(kernel)
    tangents = [_split(direction)[0] for direction in directions]
    total = np.zeros(len(directions))
    for first, second in rows.pairs():
        weights = _on_points(first, second, weight(first, second))
        spec = (form, first.indices, second.indices)
        args = first.points, first.table, second.points, second.table
        for i, product in enumerate(_weighted_tangents(spec, arrays, tangents, weights, *args)):
            total[i] += eta * float(np.asarray(product).sum())
    return total


def coefficient_gradient(
    kernel: Kernel,
    moved: Sequence[Layout],
    rows: Layout,
    eta: float,
    weight: Callable[[Tile, Tile], Float[np.ndarray, "n m"]],
) -> Float[np.ndarray, " directions"]:
    """Return `Σ_ij G_ij ∂C_ij` for changes of the operators' coefficients: layouts that hold their tangents."""
    total = np.zeros(len(moved))
    for k, tangent in enumerate(moved):
        pairs = zip(rows.pairs(), tangent.pairs(), strict=True)
        for (first, second), (first_dot, second_dot) in pairs:
            weights = weight(first, second)
            for a, b in ((first_dot, second), (first, second_dot)):
                _each(kernel, [(a, b)], eta, lambda _a, _b, block, w=weights: _accumulate(total, k, w, block))
    return total


def _accumulate(total: np.ndarray, k: int, weights: np.ndarray, block: np.ndarray) -> None:
    total[k] += float(np.vdot(weights, block))


def _each(
    kernel: Kernel,
    pairs: Iterator[tuple[Tile, Tile]] | Sequence[tuple[Tile, Tile]],
    eta: float,
    keep: Callable[[Tile, Tile, np.ndarray], None],
) -> None:
    """Compute the covariance of each pair of tiles, one ahead of the copy of the one before."""
    require_float64()
    arrays, form = _split(kernel)
    pending: tuple[Tile, Tile, Array] | None = None
    for first, second in pairs:
        spec = (form, first.indices, second.indices)
        block = _block(spec, arrays, first.points, eta * first.table, second.points, second.table)
        if pending is not None:
            keep(*pending[:2], _reduced(*pending))
        pending = (first, second, block)
    if pending is not None:
        keep(*pending[:2], _reduced(*pending))


def _reduced(first: Tile, second: Tile, block: Array) -> Float[np.ndarray, "n m"]:
    """Apply the functionals' matrices, or drop the padding."""
    out = np.asarray(block)
    out = out[: first.size] if first.matrix is None else first.matrix @ out
    return out[:, : second.size] if second.matrix is None else out @ second.matrix.T


def _on_points(first: Tile, second: Tile, weights: np.ndarray) -> np.ndarray:
    """Return weights of pairs of values as weights of pairs of points (zero where padded)."""
    if first.matrix is not None:
        weights = first.matrix.T @ weights
    if second.matrix is not None:
        weights = weights @ second.matrix
    short = (first.points.shape[1] - weights.shape[0], second.points.shape[1] - weights.shape[1])
    return np.pad(weights, ((0, short[0]), (0, short[1]))) if any(short) else weights


def _split(kernel: Kernel) -> tuple[list[Array], Any]:
    """Return a kernel's numbers, and its hashable structure."""
    leaves, structure = jax.tree.flatten(kernel)
    numbers = [leaf for leaf in leaves if eqx.is_inexact_array(leaf)]
    others = tuple(None if eqx.is_inexact_array(leaf) else leaf for leaf in leaves)
    return numbers, (structure, others)


def _joined(form: Any, numbers: Sequence[Array]) -> Kernel:
    structure, others = form
    left = iter(numbers)
    return jax.tree.unflatten(structure, [next(left) if leaf is None else leaf for leaf in others])


def _pair(spec: Spec, kernel: Kernel, x: Any, cx: Any, y: Any, cy: Any) -> Scalar:
    """Return `Σ_αβ c_α c_β ∂₁^α ∂₂^β k(x, y)` for one pair of points."""
    _, left, right = spec
    total: Scalar = 0.0
    for i, alpha in enumerate(left):
        for j, beta in enumerate(right):
            total = total + cx[i] * cy[j] * kernel.derivative(alpha, beta, x, y)
    return total


def _pairs(spec: Spec, kernel: Kernel, x: Array, cx: Array, y: Array, cy: Array) -> Array:
    """Return all pairs: coordinates and coefficients go in as separate vectors so that XLA fuses one loop."""
    one = partial(_pair, spec, kernel)
    rows = jax.vmap(jax.vmap(one, (None, None, 0, 0)), (0, 0, None, None))
    return rows(tuple(x), tuple(cx), tuple(y), tuple(cy))


@partial(jax.jit, static_argnums=0)
def _block(spec: Spec, numbers: list[Array], x: Array, cx: Array, y: Array, cy: Array) -> Array:
    return _pairs(spec, _joined(spec[0], numbers), x, cx, y, cy)


@partial(jax.jit, static_argnums=0)
def _diagonal(spec: Spec, numbers: list[Array], x: Array, cx: Array) -> Array:
    one = partial(_pair, spec, _joined(spec[0], numbers))
    return jax.vmap(lambda p, c: one(p, c, p, c))(tuple(x), tuple(cx))


@partial(jax.jit, static_argnums=0)
def _weighted_tangents(
    spec: Spec,
    numbers: list[Array],
    tangents: list[list[Array]],
    weights: Array,
    x: Array,
    cx: Array,
    y: Array,
    cy: Array,
) -> list[Array]:
    """Return `G ∘ ∂Q` for each direction, to be summed outside: XLA would repeat the work for a fused sum."""

    def block(values: list[Array]) -> Array:
        return _pairs(spec, _joined(spec[0], values), x, cx, y, cy)

    return [weights * jax.jvp(block, (numbers,), (tangent,))[1] for tangent in tangents]


def _spread(block: Observation, table: Any, indices: tuple[MultiIndex, ...]) -> np.ndarray:
    """Return a block's coefficients on a larger set of multi-indices."""
    values = np.asarray(table)
    out = np.zeros((len(indices), values.shape[1]))
    for row, alpha in zip(values, block.indices, strict=True):
        out[indices.index(alpha)] = row
    return out


def _tile(
    rows: slice,
    indices: tuple[MultiIndex, ...],
    points: np.ndarray,
    table: np.ndarray,
    matrix: np.ndarray | None,
    width: int,
) -> Tile:
    short = width - len(points)
    if short:
        points = np.concatenate([points, np.repeat(points[-1:], short, axis=0)])
        table = np.pad(table, ((0, 0), (0, short)))
    return Tile(rows, indices, np.ascontiguousarray(points.T), np.ascontiguousarray(table), matrix)


def _pieces(matrix: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Cut functionals into runs of rows, each with the points it uses, of at most a tile where it can be."""
    start, used = 0, np.zeros(matrix.shape[1], dtype=bool)
    for row in range(len(matrix)):
        grown = used | (matrix[row] != 0)
        if row > start and grown.sum() > TILE:
            yield slice(start, row), np.flatnonzero(used)
            start, grown = row, matrix[row] != 0
        used = grown
    yield slice(start, len(matrix)), np.flatnonzero(used)

