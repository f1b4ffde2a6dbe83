"""Detection of tensor grids among the rows of a layout: the interior of a box, its faces, or runs of data."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import weakref
from collections.abc import Iterator
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..kernels import MultiIndex
from .tiles import PADDING_STEP, Layout

SMALLEST_GRID = 16
"""Smallest number of points of a grid, unless it holds all points; smaller ones stay scattered."""

MOST_GRIDS = 64
"""Largest number of grids: only the largest ones are used, since each pair of grids costs several calls."""

MOST_FAILURES = 1000
"""Number of failed attempts to start a grid after which the rest of a run of rows stays scattered."""

Weighted: TypeAlias = tuple[tuple[MultiIndex, float], ...]
"""Multi-indices with constant coefficients."""

Fields: TypeAlias = list[tuple[list[MultiIndex], np.ndarray]]
"""Coefficients at points, each with the multi-indices that share it."""


@dataclasses.dataclass(frozen=True, eq=False)
class Axis:
    """The nodes of a grid along one axis. Equal nodes share one object, which serves as a cache key."""

    nodes: Float[np.ndarray, " n"]

    @functools.cached_property
    def padded(self) -> Float[Array, " m"]:
        """The nodes padded by repeating the last one, which limits the shapes that are compiled."""
        return jnp.asarray(np.pad(self.nodes, (0, -len(self.nodes) % PADDING_STEP), mode="edge"))


@dataclasses.dataclass(frozen=True, eq=False)
class Term:
    """The operator `f(p) Σ_α w_α ∂^α` at the points of a grid."""

    field: Float[np.ndarray, " n"] | None
    """`f` at the points; None if it is one everywhere."""
    parts: Weighted

    def scaled(self, vectors: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n k"]:
        """Multiply vectors by the field."""
        return vectors if self.field is None else self.field[:, None] * vectors


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """Rows whose points are all combinations of nodes along the axes."""

    rows: slice
    order: tuple[int, ...]
    """Axes from slowest to fastest."""
    axes: tuple[Axis, ...]
    terms: tuple[Term, ...]
    """The operator, as a sum of terms."""

    @property
    def size(self) -> int:
        """Number of points."""
        return self.rows.stop - self.rows.start

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of nodes along each axis."""
        return tuple(len(axis.nodes) for axis in self.axes)

    def tensor(self, vectors: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "k ..."]:
        """Reshape vectors over the rows into tensors over the axes."""
        inner = vectors.T.reshape(-1, *(self.shape[axis] for axis in self.order))
        return np.ascontiguousarray(inner.transpose(0, *(1 + np.argsort(self.order))))

    def flat(self, tensor: Float[np.ndarray, "k ..."]) -> Float[np.ndarray, "n k"]:
        """Reshape tensors over the axes into vectors over the rows."""
        return tensor.transpose(0, *(1 + axis for axis in self.order)).reshape(len(tensor), -1).T


@dataclasses.dataclass(frozen=True, eq=False)
class GridStructure:
    """The rows of a layout, divided into grids and scattered rows."""

    grids: tuple[Grid, ...]
    scattered: Int[np.ndarray, " s"]
    """Numbers of the rows outside all grids."""


_cache: weakref.WeakKeyDictionary[Layout, GridStructure] = weakref.WeakKeyDictionary()


def find_grids(rows: Layout) -> GridStructure:
    """Find the tensor grids among the rows of a layout. The result is cached while the layout is alive.

    Examples
    --------
    >>> import pilescore as ps
    >>> from pilescore.covariance.tiles import assembly
    >>> box = ps.Box(x=(0, 1), y=(0, 2))
    >>> inside = ps.impose(ps.identity, 0.0, on=box.interior(ps.GaussLegendre((5, 7))))
    >>> [grid.shape for grid in find_grids(assembly((inside,)).rows).grids]
    [(5, 7)]
    """
    if rows not in _cache:
        _cache[rows] = _structure(rows)
    return _cache[rows]


def _structure(rows: Layout) -> GridStructure:
    grids: list[Grid] = []
    axes: dict[bytes, Axis] = {}
    for first, points, fields in _segments(rows):
        for start, stop, order, nodes in _cuts(points):
            shared = tuple(axes.setdefault(each.tobytes(), Axis(each.copy())) for each in nodes)
            terms = _terms(fields, slice(start, stop))
            grids.append(Grid(slice(first + start, first + stop), order, shared, terms))
    grids = sorted(sorted(grids, key=lambda grid: -grid.size)[:MOST_GRIDS], key=lambda grid: grid.rows.start)
    scattered = np.ones(rows.size, dtype=bool)
    for grid in grids:
        scattered[grid.rows] = False
    return GridStructure(tuple(grids), np.flatnonzero(scattered))


def _segments(rows: Layout) -> Iterator[tuple[int, Float[np.ndarray, "n d"], Fields]]:
    """Iterate over runs of tiles whose operators share multi-indices: first row, points and coefficients."""
    plain = (tile for tile in rows.tiles if tile.matrix is None)
    for indices, run in itertools.groupby(plain, lambda tile: frozenset(itertools.chain(*tile.indices))):
        tiles = list(run)
        points = np.concatenate([np.asarray(tile.points)[:, : tile.size].T for tile in tiles])
        tables = [np.asarray(tile.table)[:, : tile.size] for tile in tiles]
        fields: Fields = []
        for alpha in sorted(indices):
            homes = [next(i for i, group in enumerate(tile.indices) if alpha in group) for tile in tiles]
            field = np.concatenate([table[home] for table, home in zip(tables, homes, strict=True)])
            same = [alphas for alphas, known in fields if np.array_equal(known, field)]
            if same:
                same[0].append(alpha)
            else:
                fields.append(([alpha], field))
        yield tiles[0].rows.start, points, fields


def _terms(fields: Fields, cut: slice) -> tuple[Term, ...]:
    constant: list[tuple[MultiIndex, float]] = []
    terms: list[Term] = []
    for alphas, field in fields:
        values = field[cut]
        # Constant coefficients need no scaling of rows, so all constant terms merge into one.
        if (values == values[0]).all():
            constant.extend((alpha, float(values[0])) for alpha in alphas if values[0])
        else:
            terms.append(Term(values, tuple((alpha, 1.0) for alpha in alphas)))
    return (Term(None, tuple(constant)), *terms) if constant else tuple(terms)


Cut: TypeAlias = tuple[int, int, tuple[int, ...], list[np.ndarray]]
"""Start and stop of a grid, its axes from slowest to fastest, and the nodes along each axis."""


def _cuts(points: Float[np.ndarray, "n d"]) -> Iterator[Cut]:
    """Cut points into the longest tensor grids, in order; points between them are omitted."""
    count, dimension = points.shape
    if dimension == 1:
        yield 0, count, (0,), [points[:, 0]]
        return
    changes = points[1:] != points[:-1]
    along = np.where(changes.sum(axis=1) == 1, changes.argmax(axis=1), -1)  # the single coordinate that a step changes
    turns = np.append(np.flatnonzero(along[1:] != along[:-1]) + 1, count - 1)
    starts = np.flatnonzero(along >= 0)
    start = failures = 0
    while failures < MOST_FAILURES and (place := int(np.searchsorted(starts, start))) < len(starts):
        start = int(starts[place])
        stop = int(turns[np.searchsorted(turns, start, side="right")]) + 1
        size, order, nodes = _grown(points[start:], stop - start, int(along[start]))
        if size >= SMALLEST_GRID or size == count:
            yield start, start + size, order, nodes
        else:
            failures += 1
        start += size


def _grown(points: Float[np.ndarray, "n d"], size: int, axis: int) -> tuple[int, tuple[int, ...], list[np.ndarray]]:
    """Grow a grid from a run along one axis: return its size, the order of its axes and the nodes along each axis."""
    size = _distinct(points[:size, axis])
    nodes = {axis: points[:size, axis]}
    # Each pass adds one slower axis: the points found so far must repeat with exactly one other coordinate changed.
    while 2 * size <= len(points):
        differ = np.flatnonzero(points[0] != points[size])
        if len(differ) != 1 or int(differ[0]) in nodes:
            break
        axis = int(differ[0])
        count = _distinct(points[: size * _repeats(points, size, axis) : size, axis])
        if count < 2:
            break
        nodes[axis] = points[: size * count : size, axis]
        size *= count
    rest = [other for other in range(points.shape[1]) if other not in nodes]
    order = (*rest, *reversed(nodes))
    return size, order, [nodes.get(axis, points[:1, axis]) for axis in range(points.shape[1])]


def _distinct(nodes: Float[np.ndarray, " n"]) -> int:
    """Return the number of nodes before the first repetition, where another grid may begin."""
    again = np.ones(len(nodes), dtype=bool)
    again[np.unique(nodes, return_index=True)[1]] = False
    return int(again.argmax()) if again.any() else len(nodes)


def _repeats(points: Float[np.ndarray, "n d"], size: int, axis: int) -> int:
    """Return how often the first `size` points repeat, each time with another constant value of one coordinate."""
    others = np.arange(points.shape[1]) != axis
    first, whole = points[:size, others], len(points) // size
    count = step = 1
    while count < whole:
        take = min(step, whole - count)
        blocks = points[count * size : (count + take) * size].reshape(take, size, -1)
        constant = (blocks[:, :, axis] == blocks[:, :1, axis]).all(axis=1)
        same = constant & (blocks[:, :, others] == first).all(axis=(1, 2))
        if not same.all():
            return count + int(np.argmin(same))
        # The number of compared blocks doubles, so a long grid takes few array operations and a short one little work.
        count, step = count + take, 2 * step
    return count
