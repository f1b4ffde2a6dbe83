"""Rows of a layout whose points are tensor grids, found: the inside of a box, its faces, or runs of data."""

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

from .kernels import MultiIndex
from .layouts import STEP, Layout, Tile

LEAST = 16
"""Points of a grid at least, unless there are no others; fewer are left scattered."""

MOST = 64
"""Grids at most, the largest; each pair of them costs calls."""

TRIES = 1000
"""Rows that look like the start of a grid and are not, after which a run of rows is left as it is."""

Weighted: TypeAlias = tuple[tuple[MultiIndex, float], ...]
"""Multi-indices with constant weights."""

Fields: TypeAlias = list[tuple[list[MultiIndex], np.ndarray]]
"""Coefficients at points, each with the multi-indices that have them."""


@dataclasses.dataclass(frozen=True, eq=False)
class Axis:
    """The nodes of a grid on one axis; the same object for the same nodes."""

    nodes: Float[np.ndarray, " n"]

    @functools.cached_property
    def padded(self) -> Float[Array, " m"]:
        """The nodes, the last of them repeated, so that few sizes are compiled."""
        return jnp.asarray(np.pad(self.nodes, (0, -len(self.nodes) % STEP), mode="edge"))


@dataclasses.dataclass(frozen=True, eq=False)
class Term:
    """The operator `f(p) Σ_α w_α ∂^α` at the points of a grid."""

    field: Float[np.ndarray, " n"] | None
    """`f` at the points; None where it is one."""
    parts: Weighted

    def scaled(self, vectors: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n k"]:
        """Return vectors times the field."""
        return vectors if self.field is None else self.field[:, None] * vectors


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """Rows whose points are all combinations of the nodes of the axes."""

    rows: slice
    order: tuple[int, ...]
    """Axes from the slowest to the fastest."""
    axes: tuple[Axis, ...]
    terms: tuple[Term, ...]
    """The operator."""

    @property
    def size(self) -> int:
        """The number of points."""
        return self.rows.stop - self.rows.start

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of nodes on each axis."""
        return tuple(len(axis.nodes) for axis in self.axes)

    def tensor(self, vectors: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "k ..."]:
        """Return vectors over the rows as tensors over the axes."""
        inner = vectors.T.reshape(-1, *(self.shape[axis] for axis in self.order))
        return np.ascontiguousarray(inner.transpose(0, *(1 + np.argsort(self.order))))

    def flat(self, tensor: Float[np.ndarray, "k ..."]) -> Float[np.ndarray, "n k"]:
        """Return tensors over the axes as vectors over the rows."""
        return tensor.transpose(0, *(1 + axis for axis in self.order)).reshape(len(tensor), -1).T


@dataclasses.dataclass(frozen=True, eq=False)
class Structure:
    """The rows of a layout as grids and the rest."""

    grids: tuple[Grid, ...]
    scattered: Int[np.ndarray, " s"]
    """The numbers of the other rows."""

    @property
    def longest(self) -> int:
        """The nodes of the longest axis."""
        return max((max(grid.shape) for grid in self.grids), default=0)


_known: weakref.WeakKeyDictionary[Layout, Structure] = weakref.WeakKeyDictionary()


def structure(rows: Layout) -> Structure:
    """Return the grids among the rows of a layout; remembered as long as the layout is.

    Examples
    --------
    >>> import pilescore as ps
    >>> from pilescore.layouts import assembly
    >>> box = ps.Box(x=(0, 1), y=(0, 2))
    >>> inside = ps.impose(ps.identity, 0.0, on=box.interior(ps.GaussLegendre((5, 7))))
    >>> [grid.shape for grid in structure(assembly((inside,)).rows).grids]
    [(5, 7)]
    """
    if rows not in _known:
        _known[rows] = _structure(rows)
    return _known[rows]


def _structure(rows: Layout) -> Structure:
    grids: list[Grid] = []
    axes: dict[bytes, Axis] = {}
    for first, points, fields in _segments(rows):
        for start, stop, order, nodes in _cuts(points):
            held = tuple(axes.setdefault(each.tobytes(), Axis(each.copy())) for each in nodes)
            terms = _terms(fields, slice(start, stop))
            grids.append(Grid(slice(first + start, first + stop), order, held, terms))
    grids = sorted(sorted(grids, key=lambda grid: -grid.size)[:MOST], key=lambda grid: grid.rows.start)
    alone = np.ones(rows.size, dtype=bool)
    for grid in grids:
        alone[grid.rows] = False
    return Structure(tuple(grids), np.flatnonzero(alone))


def _segments(rows: Layout) -> Iterator[tuple[int, Float[np.ndarray, "n d"], Fields]]:
    """Iterate over runs of tiles whose operators have the same multi-indices: first row, points, coefficients."""
    plain = (tile for tile in rows.tiles if tile.matrix is None)
    for indices, run in itertools.groupby(plain, _indices):
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


def _indices(tile: Tile) -> frozenset[MultiIndex]:
    return frozenset(itertools.chain.from_iterable(tile.indices))


def _terms(fields: Fields, cut: slice) -> tuple[Term, ...]:
    constant: list[tuple[MultiIndex, float]] = []
    terms: list[Term] = []
    for alphas, field in fields:
        held = field[cut]
        if (held == held[0]).all():
            constant.extend((alpha, float(held[0])) for alpha in alphas if held[0])
        else:
            terms.append(Term(held, tuple((alpha, 1.0) for alpha in alphas)))
    return (Term(None, tuple(constant)), *terms) if constant else tuple(terms)


Cut: TypeAlias = tuple[int, int, tuple[int, ...], list[np.ndarray]]
"""Start and end of a grid, its axes from the slowest to the fastest, and the nodes of each axis."""


def _cuts(points: Float[np.ndarray, "n d"]) -> Iterator[Cut]:
    """Cut points into tensor grids, each the longest that starts where it does; what is between them is left out."""
    count, dimension = points.shape
    if dimension == 1:
        yield 0, count, (0,), [points[:, 0]]
        return
    moved = points[1:] != points[:-1]
    along = np.where(moved.sum(axis=1) == 1, moved.argmax(axis=1), -1)  # the one coordinate that a step changes
    turns = np.append(np.flatnonzero(along[1:] != along[:-1]) + 1, count - 1)
    starts = np.flatnonzero(along >= 0)
    start = tries = 0
    while tries < TRIES and (place := int(np.searchsorted(starts, start))) < len(starts):
        start = int(starts[place])
        stop = int(turns[np.searchsorted(turns, start, side="right")]) + 1
        size, order, nodes = _grown(points[start:], stop - start, int(along[start]))
        if size >= LEAST or size == count:
            yield start, start + size, order, nodes
        else:
            tries += 1
        start += size


def _grown(points: Float[np.ndarray, "n d"], size: int, axis: int) -> tuple[int, tuple[int, ...], list[np.ndarray]]:
    """Return the size, the order of axes and the nodes of the grid that starts with a run along one axis."""
    size = _distinct(points[:size, axis])
    nodes = {axis: points[:size, axis]}
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
    """Return how many nodes there are before one comes again: where it does, another block may begin."""
    again = np.ones(len(nodes), dtype=bool)
    again[np.unique(nodes, return_index=True)[1]] = False
    return int(again.argmax()) if again.any() else len(nodes)


def _repeats(points: Float[np.ndarray, "n d"], size: int, axis: int) -> int:
    """Return how often the first points come again and again, with another value of one coordinate each time."""
    others = np.arange(points.shape[1]) != axis
    first, whole = points[:size, others], len(points) // size
    count = step = 1
    while count < whole:
        take = min(step, whole - count)
        blocks = points[count * size : (count + take) * size].reshape(take, size, -1)
        same = (blocks[:, :, others] == first).all(axis=(1, 2)) & (blocks[:, :, axis] == blocks[:, :1, axis]).all(
            axis=1
        )
        if not same.all():
            return count + int(np.argmin(same))
        count, step = count + take, 2 * step
    return count
