"""Observations laid out for assembly: cut into tiles, rows whose operators share their multi-indices."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .kernels import MultiIndex
from .observations import Observation, labels

TILE = 512
"""Rows of a tile at most: its square of doubles stays in cache."""

SMALL = 256
"""Groups of fewer rows are merged into one, so that few structures are compiled."""

Indices: TypeAlias = tuple[tuple[MultiIndex, ...], ...]
"""Multi-indices of operators, in groups that have the same coefficients everywhere, as those of a Laplacian."""


@dataclasses.dataclass(frozen=True, eq=False)
class Tile:
    """Rows of the stacked vector whose operators share their multi-indices."""

    rows: slice
    """Where they stand in the order of assembly."""
    indices: Indices
    points: Float[Array, "d q"]
    table: Float[Array, "groups q"]
    """Coefficients of the operators, one row for each group of indices; zeros where padded."""
    matrix: Float[np.ndarray, "n q"] | None
    """`R` of functionals, else None."""

    @property
    def size(self) -> int:
        """The number of values."""
        return self.rows.stop - self.rows.start

    @property
    def width(self) -> int:
        """The number of points, with padding."""
        return int(self.points.shape[1])


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


def alone(tile: Tile) -> Layout:
    """Return one tile as a layout."""
    return Layout((dataclasses.replace(tile, rows=slice(0, tile.size)),), np.arange(tile.rows.start, tile.rows.stop))


@dataclasses.dataclass(frozen=True, eq=False)
class Assembly:
    """What does not change with hyperparameters: the layout of blocks, and vectors in its order."""

    rows: Layout
    labels: tuple[str, ...]
    values: Float[np.ndarray, " N"]
    block: Int[np.ndarray, " N"]
    """The number of the block that each row belongs to."""
    spread: Float[np.ndarray, " N"]
    """`1/2w`: noise variances at temperature one."""

    def by_block(self, vector: Float[np.ndarray, " N"]) -> dict[str, float]:
        """Return the sums over each block of a vector in the order of assembly."""
        return dict(zip(self.labels, np.bincount(self.block, weights=vector).tolist(), strict=True))


def assembly(blocks: tuple[Observation, ...]) -> Assembly:
    """Return the assembly of blocks; remembered while the same blocks are scored again."""
    if any(block.table is None for block in blocks):
        return _assembly(blocks)
    return _remembered(_ById(blocks))


class _ById:
    """Blocks, compared by identity: they are immutable, and scored many times with other hyperparameters."""

    def __init__(self, blocks: tuple[Observation, ...]) -> None:
        self.blocks = blocks

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.blocks)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _ById) or len(other.blocks) != len(self.blocks):
            return False
        return all(a is b for a, b in zip(self.blocks, other.blocks, strict=True))


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
    """Cut blocks into tiles; `tables` replaces the coefficients of their operators, if given."""
    if tables is None:
        tables = [block.coefficients for block in blocks]
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


STEP = 64
"""Some rows are padded to a multiple of so many, so that few sizes are compiled."""


def taken(rows: Layout, which: Int[np.ndarray, " n"]) -> tuple[Layout, Int[np.ndarray, " n"]]:
    """Return the layout of some rows of another, with `order` their numbers there, and their places among `which`."""
    starts = np.array([tile.rows.start for tile in rows.tiles])
    home = np.searchsorted(starts, which, side="right") - 1
    groups: dict[Any, list[int]] = {}
    for number in np.unique(home).tolist():
        tile = rows.tiles[number]
        key = tile.indices if tile.matrix is None else number
        groups.setdefault(key, []).append(number)
    tiles: list[Tile] = []
    places: list[np.ndarray] = []
    done = 0
    for members in groups.values():
        mine = np.flatnonzero(np.isin(home, members))
        first = rows.tiles[members[0]]
        local = which[mine] - starts[home[mine]]
        if first.matrix is not None:
            chosen = slice(done, done + len(mine))
            tiles.append(dataclasses.replace(first, rows=chosen, matrix=first.matrix[local]))
        else:
            points, table = np.empty((len(mine), first.points.shape[0])), np.empty((len(first.table), len(mine)))
            for number in members:
                here, tile = home[mine] == number, rows.tiles[number]
                points[here] = np.asarray(tile.points).T[local[here]]
                table[:, here] = np.asarray(tile.table)[:, local[here]]
            for start in range(0, len(mine), TILE):
                stop = min(start + TILE, len(mine))
                width = -(-(stop - start) // STEP) * STEP
                cut = slice(done + start, done + stop)
                tiles.append(_padded(cut, first.indices, points[start:stop], table[:, start:stop], width))
        places.append(mine)
        done += len(mine)
    position = np.concatenate(places)
    return Layout(tuple(tiles), which[position]), position


def query(
    points: Float[np.ndarray, "n d"],
    indices: tuple[MultiIndex, ...],
    coefficients: Callable[[np.ndarray], Any],
    widest: int = TILE,
) -> Layout:
    """Return the layout of one operator at any number of points, for prediction."""
    count = len(points)
    width = min(widest, count)
    tiles = []
    for start in range(0, count, width):
        part = points[start : start + width]
        table = np.asarray(coefficients(part))
        tiles.append(_tile(slice(start, start + len(part)), indices, part, table, None, width))
    return Layout(tuple(tiles), np.arange(count))


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
    groups: dict[bytes, list[int]] = {}
    for i, coefficients in enumerate(table):
        groups.setdefault(coefficients.tobytes(), []).append(i)
    together = tuple(tuple(indices[i] for i in members) for members in groups.values())
    first = [members[0] for members in groups.values()]
    return _padded(rows, together, points, table[first], width, matrix)


def _padded(
    rows: slice, indices: Indices, points: np.ndarray, table: np.ndarray, width: int, matrix: np.ndarray | None = None
) -> Tile:
    """Return a tile with its last point repeated, with zero coefficients, up to a width."""
    short = width - len(points)
    if short:
        points = np.concatenate([points, np.repeat(points[-1:], short, axis=0)])
        table = np.pad(table, ((0, 0), (0, short)))
    return Tile(rows, indices, jnp.asarray(points.T), jnp.asarray(table), matrix)


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
