"""The tangent of a network: what it predicts for blocks of observations, and its Jacobian there, held or streamed.

The framework of a network is behind `Network`, which knows derivatives of a function and their gradients in the
parameters; operators, functionals and scales are dealt with here, for all frameworks alike.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
import psutil
from jaxtyping import Float

from .atoms import MultiIndex
from .domains import Nodes, Region, Slice, Union
from .errors import InputError, MemoryLimitError
from .frames import pure_linearised
from .linalg import self_product, threads
from .model import Model
from .nonlinear import Nonlinear
from .observations import Observation, impose
from .quadrature import MonteCarlo
from .running import progress_bar

CHUNK_BYTES = 1.9e8
"""Bytes in use while rows of a Jacobian are made."""

COPIES = 6
"""Vectors of the parameters that are held: their values, prior, gradients."""

FRESH = 0x70696C65
"""Sets the streams of fresh points apart from those of rules with the same seed."""

POINTS = 8192
"""Points at which a network is evaluated at a time."""


@runtime_checkable
class Network(Protocol):
    """A scalar function of a point with parameters, at their trained values."""

    @property
    def size(self) -> int:
        """The number of parameters, P."""

    @property
    def displacement(self) -> Float[np.ndarray, " P"]:
        """`θ̂ − θ_c`."""

    @property
    def spread(self) -> Float[np.ndarray, " P"]:
        """`Λ`, the prior variances of the parameters relative to each other."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What is worth knowing of how the network was read."""

    @property
    def arrays(self) -> tuple[tuple[str, int], ...]:
        """The names and sizes of the arrays that the parameters are made of, in their order."""

    def making(self, order: int) -> int:
        """Return how many times the memory of rows is in use while they are made, for derivatives of an order."""

    def derivatives(
        self, points: Float[np.ndarray, "n d"], indices: tuple[MultiIndex, ...]
    ) -> Float[np.ndarray, "indices n"]:
        """Return `∂^α f` at points."""

    def jacobian(
        self, points: Float[np.ndarray, "n d"], indices: tuple[MultiIndex, ...], table: Float[np.ndarray, "indices n"]
    ) -> Float[np.ndarray, "n P"]:
        """Return the gradients in the parameters of `Σ_α c_α ∂^α f` at points."""


@dataclasses.dataclass(frozen=True, eq=False)
class Seen:
    """A block of observations as a network sees it."""

    block: Observation
    predicted: Float[np.ndarray, " n"]
    """`F(θ̂)`."""
    table: Float[np.ndarray, "indices q"]
    """The coefficients of its operator, linearised at the network where it is not linear."""

    @property
    def residuals(self) -> Float[np.ndarray, " n"]:
        """`t − F(θ̂)`."""
        return self.block.values - self.predicted


def seen(network: Network, block: Observation, label: str) -> Seen:
    """Return what a network predicts for a block."""
    jets = np.concatenate(
        [network.derivatives(points, block.indices)[:, :count] for points, count in _padded(block.points, POINTS)],
        axis=1,
    )
    if isinstance(block.operator, Nonlinear):
        values, table = map(np.asarray, pure_linearised(block.operator, block.points, jnp.asarray(jets)))
    else:
        table = np.asarray(block.coefficients)
        values = np.einsum("an,an->n", table, jets)
    bad = np.flatnonzero(~np.isfinite(values) | ~np.isfinite(table).all(axis=0))
    if bad.size:
        raise InputError(
            f"network: expected finite values; {block.operator} of it is NaN or infinite at {bad.size} of "
            f"{len(values)} points of block {label!r}, the first at {block.points[bad[0]]}"
        )
    return Seen(block, values if block.matrix is None else block.matrix @ values, table)


def _padded(points: Float[np.ndarray, "n d"], size: int) -> Iterator[tuple[np.ndarray, int]]:
    """Give points in parts of one size, the last one filled up, so that a function is compiled for one shape only."""
    size = min(size, len(points))
    for start in range(0, len(points), size):
        part = points[start : start + size]
        yield np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)]), len(part)


def drawn_afresh(model: Model, seed: int) -> tuple[tuple[Observation, ...], list[str]]:
    """Return the blocks of a model with physics at new random points, and the labels of those that could not be moved.

    Functionals have points of their own, and data are where they were measured.
    """
    blocks: list[Observation] = list(model.data)
    kept = []
    labels = model.labels[len(model.data) :]
    for number, (block, label) in enumerate(zip(model.physics, labels, strict=True)):
        moved = block if block.matrix is not None else _moved(block, label, (seed, number))
        if moved is None:
            kept.append(label)
        blocks.append(block if moved is None else moved)
    return tuple(blocks), kept


def _moved(block: Observation, label: str, stream: tuple[int, ...]) -> Observation | None:
    """Return a block at new points of its region, unless only the old ones have a value or a noise."""
    if block.region is None or block.nodes is None or block.source is None:
        return None
    on = _drawn(block.region, block.points, stream)
    temperature = None if block.temperature is None else float(block.temperature)
    if np.array_equal(block.weights, block.nodes.weights):
        return impose(block.operator, block.source, on=on, rho=temperature, name=label)
    if temperature is None or not np.all(block.weights == block.weights[0]):
        return None
    deviation = math.sqrt(0.5 * temperature / block.weights[0])
    return impose(block.operator, block.source, on=on, noise=deviation, name=label)


def _drawn(region: Region, points: Float[np.ndarray, "n d"], stream: tuple[int, ...]) -> Nodes:
    """Return as many random nodes of a region, in each part of a union as many as there are points in it."""
    if not isinstance(region, Union):
        seed = int(np.random.SeedSequence([FRESH, *stream]).generate_state(1, np.uint64)[0])
        return region(MonteCarlo(len(points), seed))
    left = np.ones(len(points), dtype=bool)
    parts: dict[int, Nodes] = {}

    def is_whole(pair: tuple[int, Region]) -> bool:
        return pair[1].normal is None and not isinstance(pair[1], Slice)

    numbered = sorted(enumerate(region.regions), key=is_whole)  # faces and slices lie in the interior
    for number, part in numbered:
        mine = left & (part.contains(points) | (number == numbered[-1][0]))
        left &= ~mine
        if mine.any():
            parts[number] = _drawn(part, points[mine], (*stream, number))
    first, *others = (parts[number] for number in sorted(parts))
    return sum(others, start=first)


@runtime_checkable
class Rows(Protocol):
    """A Jacobian by its rows, which are made when they are asked for, as often as they are."""

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of observations and of parameters."""

    @property
    def making(self) -> int:
        """How many times the memory of rows is in use while they are made."""

    @property
    def made(self) -> str:
        """What making rows is called."""

    def cells(self) -> list[slice]:
        """Return runs of rows that are made together, one after the other."""

    def make(self, cell: int) -> Float[np.ndarray, "n P"]:
        """Return the rows of a cell."""


class NetworkRows:
    """The Jacobian of a network."""

    made = "made"

    def __init__(self, network: Network, blocks: Sequence[Seen], memory: float | None = None) -> None:
        self.network = network
        self.blocks = tuple(blocks)
        self.shape = (sum(each.block.size for each in blocks), network.size)
        self.making = max(network.making(max(map(sum, each.block.indices))) for each in blocks)
        room = CHUNK_BYTES
        if memory is not None:  # half of what is left beside the Gram matrix, the other half for rows that are held
            room = min(room, 0.5 * (memory - _beside(*self.shape)) * self.making / (self.making + 1))
        self.chunk = max(1, min(1024, int(room / (8 * self.making * network.size))))
        self._places: list[tuple[Seen, slice]] = []
        self._cells: list[slice] = []
        done = 0
        for each in blocks:
            for start in range(0, each.block.size, self.chunk):
                stop = min(start + self.chunk, each.block.size)
                self._places.append((each, slice(start, stop)))
                self._cells.append(slice(done + start, done + stop))
            done += each.block.size

    def cells(self) -> list[slice]:
        """Return runs of rows of one block each."""
        return self._cells

    def make(self, cell: int) -> Float[np.ndarray, "n P"]:
        """Return the rows of a cell."""
        each, rows = self._places[cell]
        matrix = each.block.matrix
        if matrix is None:
            return self._points(each, np.arange(rows.start, rows.stop))
        used = np.flatnonzero(matrix[rows].any(axis=0))
        out = np.zeros((rows.stop - rows.start, self.shape[1]))
        for start in range(0, len(used), self.chunk):
            part = used[start : start + self.chunk]
            out += matrix[rows][:, part] @ self._points(each, part)
        return out

    def _points(self, each: Seen, which: np.ndarray) -> Float[np.ndarray, "n P"]:
        size = min(self.chunk, len(each.block.points))
        filled = np.concatenate([which, np.repeat(which[-1:], size - len(which))])
        found = self.network.jacobian(each.block.points[filled], each.block.indices, each.table[:, filled])
        return found[: len(which)]


@dataclasses.dataclass(frozen=True)
class GivenRows:
    """A Jacobian that is there: its rows are only scaled."""

    matrix: Any
    making = 2
    made = "read"

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of observations and of parameters."""
        return self.matrix.shape

    def cells(self) -> list[slice]:
        """Return runs of as many rows as may be scaled at a time."""
        n, p = self.shape
        step = max(1, int(CHUNK_BYTES / (8 * self.making * p)))
        return [slice(start, min(start + step, n)) for start in range(0, n, step)]

    def make(self, cell: int) -> Float[np.ndarray, "n P"]:
        """Return the rows of a cell."""
        return self.matrix[self.cells()[cell]]


@dataclasses.dataclass(frozen=True)
class Plan:
    """How the Gram matrix of a Jacobian is made, and the memory that it takes."""

    of_rows: bool
    """Whether `AAᵀ` is decomposed, of size N, instead of `AᵀA`, of size P."""
    slab: int | None
    """Rows of the Jacobian that are held at a time; None if all are."""
    needed: float
    """Bytes."""
    text: str


def plan(rows: Rows, memory: float | None) -> Plan:
    """Return how to make the Gram matrix within the memory that may be used; refuse before any work if it cannot be."""
    n, p = rows.shape
    side = min(n, p)
    available = float(psutil.virtual_memory().available) if memory is None else memory
    largest = max(cell.stop - cell.start for cell in rows.cells())
    making = 8.0 * p * rows.making * largest
    square = _beside(n, p)
    whole = 8.0 * n * p + making + square
    name = f"{n} × {p}"
    gram = f"the eigendecomposition of the {side} × {side} Gram matrix {_size(square)}"
    if whole <= available:
        return Plan(n <= p, None, whole, f"the {name} Jacobian is held ({_size(8.0 * n * p)}), {gram}")
    slab = n if n > p else int((available - square - making) / (8.0 * p))
    if square + making > available or slab < largest:
        least = square + making + (0 if n > p else 8.0 * p * largest)
        raise MemoryLimitError(
            f"memory: a network with {p} parameters at {n} rows needs at least {_size(least)}: {gram}, the rest for "
            f"rows of the Jacobian while they are {rows.made}. {_size(available)} may be used. Score fewer rows (fewer "
            "nodes in a rule), or fewer parameters (those of the last layer)"
        )
    if n > p:
        text = f"the {name} Jacobian is streamed, {largest} rows at a time; {gram}"
        return Plan(False, largest, square + making, text)
    slab = min(slab, n)
    again = -(-n // slab)
    needed = square + making + 8.0 * p * slab
    held = f"{slab} rows held at a time ({_size(8.0 * p * slab)}), the others {rows.made} up to {again} times"
    return Plan(True, slab, needed, f"the {name} Jacobian is streamed, {held}; {gram}")


def _beside(n: int, p: int) -> float:
    """Return the bytes of the Gram matrix, its eigenvectors, the workspace of the decomposition, and of parameters."""
    return 8.0 * (3 * min(n, p) ** 2 + COPIES * p)


def _size(count: float) -> str:
    return f"{count / 1e9:.2g} GB" if count >= 1e8 else f"{count / 1e6:.2g} MB"


@dataclasses.dataclass(frozen=True, eq=False)
class Whitened:
    """`A = D^{-½} J Λ^{½}` by its rows, all of them held or not."""

    rows: Rows
    inverse_root: Float[np.ndarray, " N"]
    """`D^{-½}`."""
    root: Float[np.ndarray, " P"] | None
    """`Λ^{½}`; None for ones."""
    plan: Plan
    held: Float[np.ndarray, "N P"] | None = None

    def cell(self, number: int) -> Float[np.ndarray, "n P"]:
        """Return the rows of a cell."""
        where = self.rows.cells()[number]
        if self.held is not None:
            return self.held[where]
        return self.scaled(self.rows.make(number)) * self.inverse_root[where, None]

    def scaled(self, jacobian: Float[np.ndarray, "n P"]) -> Float[np.ndarray, "n P"]:
        """Return `JΛ^{½}`."""
        return jacobian if self.root is None else jacobian * self.root

    def backward(self, vector: Float[np.ndarray, " N"]) -> Float[np.ndarray, " P"]:
        """Return `Aᵀw`."""
        if self.held is not None:
            return self.held.T @ vector
        total = np.zeros(self.rows.shape[1])
        for number, where in enumerate(self.rows.cells()):
            total += self.cell(number).T @ vector[where]
        return total

    def times(self, right: Float[np.ndarray, "P k"]) -> Float[np.ndarray, "N k"]:
        """Return `AB`."""
        if self.held is not None:
            return self.held @ right
        return np.concatenate([self.cell(i) @ right for i in range(len(self.rows.cells()))])


def whiten(
    rows: Rows, noise: Float[np.ndarray, " N"], spread: Float[np.ndarray, " P"], way: Plan, progress: bool | None
) -> Whitened:
    """Return the whitened Jacobian, with all its rows made if they are to be held."""
    root = None if np.all(spread == 1.0) else np.sqrt(spread)
    streamed = Whitened(rows, 1.0 / np.sqrt(noise), root, way)
    if way.slab is not None:
        return streamed
    held = np.empty(rows.shape)
    cells = rows.cells()
    with progress_bar(len(noise), way.text, progress) as bar:
        for number, where in enumerate(cells):
            np.multiply(streamed.scaled(rows.make(number)), streamed.inverse_root[where, None], out=held[where])
            bar.update(where.stop - where.start)
    return dataclasses.replace(streamed, held=held)


def gram_matrix(whitened: Whitened, progress: bool | None) -> Float[np.ndarray, "k k"]:
    """Return `AAᵀ` (its lower triangle is filled at least) or `AᵀA`."""
    way, held = whitened.plan, whitened.held
    with threads(min(whitened.rows.shape)):
        if held is not None:
            return self_product(held if way.of_rows else held.T)
        cells = whitened.rows.cells()
        n, p = whitened.rows.shape
        if not way.of_rows:
            total = np.zeros((p, p))
            with progress_bar(n, way.text, progress) as bar:
                for number, where in enumerate(cells):
                    total += self_product(whitened.cell(number).T)
                    bar.update(where.stop - where.start)
            return total
        assert way.slab is not None
        slabs = list(_slabs(cells, way.slab))
        out, room = np.zeros((n, n)), np.empty((way.slab, p))
        with progress_bar(sum(n - cells[first].start for first, _ in slabs), way.text, progress) as bar:
            for first, last in slabs:
                columns = slice(cells[first].start, cells[last - 1].stop)
                slab = room[: columns.stop - columns.start]
                for number in range(first, last):
                    start = cells[number].start - columns.start
                    slab[start : start + cells[number].stop - cells[number].start] = whitened.cell(number)
                out[columns, columns] = self_product(slab)
                bar.update(columns.stop - columns.start)
                for number in range(last, len(cells)):
                    out[cells[number], columns] = whitened.cell(number) @ slab.T
                    bar.update(cells[number].stop - cells[number].start)
        return out


def _slabs(cells: list[slice], size: int) -> Iterator[tuple[int, int]]:
    """Give runs of cells that have at most `size` rows together."""
    first = 0
    for number, cell in enumerate(cells):
        if cell.stop - cells[first].start > size:
            yield first, number
            first = number
    yield first, len(cells)
