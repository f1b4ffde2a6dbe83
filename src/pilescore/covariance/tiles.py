"""Observations arranged for assembly: a layout of tiles, each a run of rows whose operators share multi-indices."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..kernels import MultiIndex
from ..model import Observation, labels

TILE = 512
"""Largest number of rows of a tile: a block of 512 × 512 doubles is 2 MB and stays in cache."""

SMALL_GROUP = 256
"""Groups with fewer rows than this are merged: each pair of distinct operator structures costs one compilation."""

Indices: TypeAlias = tuple[tuple[MultiIndex, ...], ...]
"""Multi-indices of an operator, grouped: the members of a group have the same coefficient at every point."""


@dataclasses.dataclass(frozen=True, eq=False)
class Tile:
    """A run of rows whose operators share their multi-indices."""

    rows: slice
    """Position in assembled order."""
    indices: Indices
    points: Float[Array, "d q"]
    table: Float[Array, "groups q"]
    """Operator coefficients, one row per group of multi-indices; zero for padding points."""
    matrix: Float[np.ndarray, "n q"] | None
    """The matrix `R` of functionals; None for pointwise observations."""

    @property
    def size(self) -> int:
        """Number of values."""
        return self.rows.stop - self.rows.start

    @property
    def width(self) -> int:
        """Number of points, including padding."""
        return int(self.points.shape[1])

    def to_points(self, values: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, "q ..."]:
        """Return `Rᵀv` for functionals, and values padded with zeros for pointwise rows."""
        if self.matrix is not None:
            return self.matrix.T @ values
        padding = self.width - self.size
        return np.pad(values, ((0, padding), *[(0, 0)] * (values.ndim - 1))) if padding else values

    def to_values(self, values: Float[np.ndarray, "q ..."]) -> Float[np.ndarray, "n ..."]:
        """Return `Rv` for functionals, and values without padding for pointwise rows."""
        return values[: self.size] if self.matrix is None else self.matrix @ values


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """The observations of a model in assembled order."""

    tiles: tuple[Tile, ...]
    order: np.ndarray
    """Maps an assembled row to its row in the stacked vector."""

    @property
    def size(self) -> int:
        """Number of values, N."""
        return len(self.order)

    def pairs(self) -> Iterator[tuple[Tile, Tile]]:
        """Iterate over the pairs of tiles on and above the diagonal."""
        for i, first in enumerate(self.tiles):
            for second in self.tiles[i:]:
                yield first, second


def single_tile(tile: Tile) -> Layout:
    """Return a layout of one tile."""
    return Layout((dataclasses.replace(tile, rows=slice(0, tile.size)),), np.arange(tile.rows.start, tile.rows.stop))


@dataclasses.dataclass(frozen=True, eq=False)
class Assembly:
    """The parts of a model that do not depend on hyperparameters: its layout, and its vectors in assembled order."""

    rows: Layout
    labels: tuple[str, ...]
    values: Float[np.ndarray, " N"]
    block: Int[np.ndarray, " N"]
    """Index of the block of each row."""
    spread: Float[np.ndarray, " N"]
    """Noise variances at temperature one, `1/2w`."""

    def by_block(self, vector: Float[np.ndarray, " N"]) -> dict[str, float]:
        """Sum a vector in assembled order over each block."""
        return dict(zip(self.labels, np.bincount(self.block, weights=vector).tolist(), strict=True))


def assembly(blocks: tuple[Observation, ...]) -> Assembly:
    """Return the assembly of blocks, cached by the identity of the blocks."""
    if any(block.table is None for block in blocks):
        return _assembly(blocks)
    return _remembered(_ById(blocks))


class _ById:
    """Cache key that compares blocks by identity: blocks are immutable, and searches score the same ones many times."""

    def __init__(self, blocks: tuple[Observation, ...]) -> None:
        self.blocks = blocks  # keeps them alive: Python reuses the id of an object that is gone
        self.ids = tuple(map(id, blocks))

    def __hash__(self) -> int:
        return hash(self.ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and self.ids == other.ids


@functools.lru_cache(maxsize=8)
def _remembered(key: _ById) -> Assembly:
    return _assembly(key.blocks)


def _assembly(blocks: tuple[Observation, ...]) -> Assembly:
    rows = layout(blocks)
    values = np.concatenate([block.values for block in blocks])[rows.order]
    spread = np.concatenate([0.5 / block.weights for block in blocks])[rows.order]
    number = np.repeat(np.arange(len(blocks)), [block.size for block in blocks])[rows.order]
    return Assembly(rows, labels(blocks), values, number, spread)


def layout(blocks: Sequence[Observation], tables: Sequence[Any] | None = None) -> Layout:
    """Cut blocks into tiles. `tables` replaces the coefficients of their operators."""
    if tables is None:
        tables = [block.coefficients for block in blocks]
    starts = np.cumsum([0, *(block.size for block in blocks)])
    groups: dict[tuple[MultiIndex, ...], list[int]] = {}
    plain = [i for i, block in enumerate(blocks) if block.matrix is None]
    for i in plain:
        groups.setdefault(tuple(sorted(blocks[i].indices)), []).append(i)
    # A small model becomes one tile: zero coefficients cost less than compiling a block per pair of operators.
    fuse = sum(blocks[i].size for i in plain) <= TILE
    small = [key for key, members in groups.items() if fuse or sum(blocks[i].size for i in members) < SMALL_GROUP]
    if len(small) > 1:
        union = tuple(sorted({alpha for key in small for alpha in key}))
        members = sorted(i for key in small for i in groups.pop(key))
        groups[union] = sorted(groups.get(union, []) + members)
    tiles: list[Tile] = []
    order: list[np.ndarray] = []
    filled = 0
    for indices, members in groups.items():
        points = np.concatenate([blocks[i].points for i in members])
        table = np.concatenate([_spread(blocks[i], tables[i], indices) for i in members], axis=1)
        order.extend(np.arange(starts[i], starts[i + 1]) for i in members)
        count = len(points)
        # Equal widths, rounded up, so that all tiles of a group share one compiled shape and little is padding.
        width = -(-count // -(-count // TILE))
        for start in range(0, count, width):
            stop = min(start + width, count)
            rows = slice(filled + start, filled + stop)
            tiles.append(_tile(rows, indices, points[start:stop], table[:, start:stop], None, width))
        filled += count
    for i, block in enumerate(blocks):
        if block.matrix is None:
            continue
        indices = tuple(sorted(block.indices))
        table = _spread(block, tables[i], indices)
        order.append(np.arange(starts[i], starts[i + 1]))
        for part, used in _pieces(block.matrix):
            rows = slice(filled + part.start, filled + part.stop)
            matrix = block.matrix[part][:, used]
            tiles.append(_tile(rows, indices, block.points[used], table[:, used], matrix, len(used)))
        filled += block.size
    return Layout(tuple(tiles), np.concatenate(order))


PADDING_STEP = 64
"""Selected rows and grid axes are padded to a multiple of this number, which limits the shapes that are compiled."""


def select_rows(rows: Layout, which: Int[np.ndarray, " n"]) -> tuple[Layout, Int[np.ndarray, " n"]]:
    """Select rows of a layout.

    Returns
    -------
    Layout
        The selected rows; `order` holds their row numbers in `rows`.
    ndarray
        For each row of the new layout, its index in `which`.
    """
    starts = np.array([tile.rows.start for tile in rows.tiles])
    home = np.searchsorted(starts, which, side="right") - 1
    groups: dict[Any, list[int]] = {}
    for number in np.unique(home).tolist():
        tile = rows.tiles[number]
        key = tile.indices if tile.matrix is None else number
        groups.setdefault(key, []).append(number)
    tiles: list[Tile] = []
    places: list[np.ndarray] = []
    filled = 0
    for members in groups.values():
        selected = np.flatnonzero(np.isin(home, members))
        first = rows.tiles[members[0]]
        local = which[selected] - starts[home[selected]]
        if first.matrix is not None:
            chosen = slice(filled, filled + len(selected))
            tiles.append(dataclasses.replace(first, rows=chosen, matrix=first.matrix[local]))
        else:
            points = np.empty((len(selected), first.points.shape[0]))
            table = np.empty((len(first.table), len(selected)))
            for number in members:
                here, tile = home[selected] == number, rows.tiles[number]
                points[here] = np.asarray(tile.points).T[local[here]]
                table[:, here] = np.asarray(tile.table)[:, local[here]]
            for start in range(0, len(selected), TILE):
                stop = min(start + TILE, len(selected))
                width = -(-(stop - start) // PADDING_STEP) * PADDING_STEP
                cut = slice(filled + start, filled + stop)
                tiles.append(_padded(cut, first.indices, points[start:stop], table[:, start:stop], width))
        places.append(selected)
        filled += len(selected)
    position = np.concatenate(places)
    return Layout(tuple(tiles), which[position]), position


def query(
    points: Float[np.ndarray, "n d"],
    indices: tuple[MultiIndex, ...],
    coefficients: Callable[[np.ndarray], Any],
    widest: int = TILE,
) -> Layout:
    """Return the layout of one operator at many points, for prediction."""
    count = len(points)
    width = min(widest, count)
    tiles = []
    for start in range(0, count, width):
        part = points[start : start + width]
        table = np.asarray(coefficients(part))
        tiles.append(_tile(slice(start, start + len(part)), indices, part, table, None, width))
    return Layout(tuple(tiles), np.arange(count))


def _spread(block: Observation, table: Any, indices: tuple[MultiIndex, ...]) -> np.ndarray:
    """Embed a block's coefficients in a larger set of multi-indices."""
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
    groups: dict[bytes, list[int]] = {}
    for i, coefficients in enumerate(table):
        # Equal coefficient rows are factored out of the sum over derivatives, as in a Laplacian.
        groups.setdefault(coefficients.tobytes(), []).append(i)
    together = tuple(tuple(indices[i] for i in members) for members in groups.values())
    first = [members[0] for members in groups.values()]
    return _padded(rows, together, points, table[first], width, matrix)


def _padded(
    rows: slice, indices: Indices, points: np.ndarray, table: np.ndarray, width: int, matrix: np.ndarray | None = None
) -> Tile:
    """Return a tile padded to `width` by repeating the last point with zero coefficients."""
    # A repeated point, not zeros: kernels and coefficients are defined there, and zero times infinity would be NaN.
    short = width - len(points)
    if short:
        points = np.concatenate([points, np.repeat(points[-1:], short, axis=0)])
        table = np.pad(table, ((0, 0), (0, short)))
    return Tile(rows, indices, jnp.asarray(points.T), jnp.asarray(table), matrix)


def _pieces(matrix: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Cut functionals into runs of rows that use at most `TILE` points where possible, with the points of each run."""
    start, used = 0, np.zeros(matrix.shape[1], dtype=bool)
    for row in range(len(matrix)):
        grown = used | (matrix[row] != 0)
        if row > start and grown.sum() > TILE:
            yield slice(start, row), np.flatnonzero(used)
            start, grown = row, matrix[row] != 0
        used = grown
    yield slice(start, len(matrix)), np.flatnonzero(used)
