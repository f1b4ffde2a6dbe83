"""The Jacobian of a network in its parameters, kept in memory or streamed, and its Gram matrix."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import psutil
from jaxtyping import Float

from ..errors import MemoryLimitError
from ..parallel import progress_bar, threads
from ..solvers import self_product
from .interface import BlockPrediction, Network

CHUNK_BYTES = 1.9e8
"""The memory, in bytes, used while rows of a Jacobian are computed."""

PARAMETER_VECTORS = 6
"""The number of vectors of parameters in memory: their values, prior, gradients."""


class NetworkRows:
    """The Jacobian of a network at blocks of observations, in cells of consecutive rows.

    A cell is computed when it is requested, and not stored.
    """

    made = "computed"
    """The word for computing rows in messages."""

    def __init__(self, network: Network, blocks: Sequence[BlockPrediction], memory: float | None = None) -> None:
        self.network = network
        self.blocks = tuple(blocks)
        self.shape = (sum(each.block.size for each in blocks), network.size)
        """The numbers of observations, N, and of parameters, P."""
        self.making = max(network.making(max(map(sum, each.block.indices))) for each in blocks)
        """The peak memory while rows are computed, as a multiple of theirs."""
        room = CHUNK_BYTES
        if memory is not None:  # half of what the Gram matrix leaves; the other half is for rows kept in memory
            room = min(room, 0.5 * (memory - _gram_bytes(*self.shape)) * self.making / (self.making + 1))
        self.chunk = max(1, min(1024, int(room / (8 * self.making * network.size))))
        self._places: list[tuple[BlockPrediction, slice]] = []
        self._cells: list[slice] = []
        done = 0
        for each in blocks:
            for start in range(0, each.block.size, self.chunk):
                stop = min(start + self.chunk, each.block.size)
                self._places.append((each, slice(start, stop)))
                self._cells.append(slice(done + start, done + stop))
            done += each.block.size

    def cells(self) -> list[slice]:
        """Return runs of rows, each within one block."""
        return self._cells

    def make(self, cell: int) -> Float[np.ndarray, "n P"]:
        """Return the rows of a cell."""
        prediction, rows = self._places[cell]
        matrix = prediction.block.matrix
        if matrix is None:
            return self._at_points(prediction, np.arange(rows.start, rows.stop))
        used = np.flatnonzero(matrix[rows].any(axis=0))
        out = np.zeros((rows.stop - rows.start, self.shape[1]))
        for start in range(0, len(used), self.chunk):
            some = used[start : start + self.chunk]
            out += matrix[rows][:, some] @ self._at_points(prediction, some)
        return out

    def _at_points(self, prediction: BlockPrediction, which: np.ndarray) -> Float[np.ndarray, "n P"]:
        """Return rows at some points of a block, padded to one shape: another shape would be compiled again."""
        block = prediction.block
        padded = np.pad(which, (0, min(self.chunk, len(block.points)) - len(which)), mode="edge")
        rows = self.network.jacobian(block.points[padded], block.indices, prediction.table[:, padded])
        return rows[: len(which)]


@dataclasses.dataclass(frozen=True)
class MatrixRows:
    """A Jacobian given as a matrix; see `NetworkRows`."""

    matrix: Any
    making = 2
    made = "read"

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of observations, N, and of parameters, P."""
        return self.matrix.shape

    def cells(self) -> list[slice]:
        """Return runs of rows that may be scaled at a time."""
        n, p = self.shape
        step = max(1, int(CHUNK_BYTES / (8 * self.making * p)))
        return [slice(start, min(start + step, n)) for start in range(0, n, step)]

    def make(self, cell: int) -> Float[np.ndarray, "n P"]:
        """Return the rows of a cell."""
        return self.matrix[self.cells()[cell]]


JacobianRows = NetworkRows | MatrixRows


@dataclasses.dataclass(frozen=True)
class JacobianPlan:
    """How the Gram matrix of a Jacobian is computed."""

    of_rows: bool
    """Whether `AAᵀ`, of size N, is decomposed; otherwise `AᵀA`, of size P."""
    slab: int | None
    """The number of rows of the Jacobian kept in memory at a time; None for all rows."""
    text: str
    """The plan in words, with the memory it takes."""


def plan_jacobian(rows: JacobianRows, memory: float | None) -> JacobianPlan:
    """Return how to compute the Gram matrix within a memory limit; raise an error before any work if that cannot be."""
    n, p = rows.shape
    side = min(n, p)
    available = float(psutil.virtual_memory().available) if memory is None else memory
    largest = max(cell.stop - cell.start for cell in rows.cells())
    making = 8.0 * p * rows.making * largest
    square = _gram_bytes(n, p)
    whole = 8.0 * n * p + making + square
    name = f"{n} × {p}"
    gram = f"the eigendecomposition of the {side} × {side} Gram matrix {_readable(square)}"
    if whole <= available:
        text = f"the {name} Jacobian is held in memory ({_readable(8.0 * n * p)}), {gram}"
        return JacobianPlan(n <= p, None, text)
    # AᵀA is a sum over rows: one pass suffices. AAᵀ pairs all rows with each other: rows are recomputed once for
    # each slab that is kept.
    slab = n if n > p else int((available - square - making) / (8.0 * p))
    if square + making > available or slab < largest:
        least = square + making + (0 if n > p else 8.0 * p * largest)
        raise MemoryLimitError(
            f"memory: a network with {p} parameters at {n} rows needs at least {_readable(least)}: {gram}, the rest "
            f"for rows of the Jacobian while they are {rows.made}. The limit is {_readable(available)}. Score fewer "
            "rows (rules with fewer nodes), or fewer parameters (the last layer)"
        )
    if n > p:
        text = f"the {name} Jacobian is streamed, {largest} rows at a time; {gram}"
        return JacobianPlan(False, largest, text)
    slab = min(slab, n)
    passes = -(-n // slab)
    kept = f"{slab} rows in memory at a time ({_readable(8.0 * p * slab)}), the others {rows.made} up to {passes} times"
    return JacobianPlan(True, slab, f"the {name} Jacobian is streamed, {kept}; {gram}")


def _gram_bytes(n: int, p: int) -> float:
    """Return the bytes of the Gram matrix, its eigenvectors, the workspace of the decomposition, and parameters."""
    return 8.0 * (3 * min(n, p) ** 2 + PARAMETER_VECTORS * p)


def _readable(count: float) -> str:
    return f"{count / 1e9:.2g} GB" if count >= 1e8 else f"{count / 1e6:.2g} MB"


@dataclasses.dataclass(frozen=True, eq=False)
class WhitenedJacobian:
    """The whitened Jacobian `A = D^{-½} J Λ^{½}`, in memory or streamed by cells."""

    rows: JacobianRows
    inverse_root: Float[np.ndarray, " N"]
    """`D^{-½}`."""
    root: Float[np.ndarray, " P"] | None
    """`Λ^{½}`; None if all are one."""
    plan: JacobianPlan
    matrix: Float[np.ndarray, "N P"] | None = None
    """All rows, if they fit into memory."""

    def cell(self, number: int) -> Float[np.ndarray, "n P"]:
        """Return the rows of a cell."""
        where = self.rows.cells()[number]
        if self.matrix is not None:
            return self.matrix[where]
        return self.scaled(self.rows.make(number)) * self.inverse_root[where, None]

    def scaled(self, jacobian: Float[np.ndarray, "n P"]) -> Float[np.ndarray, "n P"]:
        """Return `JΛ^{½}`."""
        return jacobian if self.root is None else jacobian * self.root

    def backward(self, vector: Float[np.ndarray, " N"]) -> Float[np.ndarray, " P"]:
        """Return `Aᵀw`."""
        if self.matrix is not None:
            return self.matrix.T @ vector
        total = np.zeros(self.rows.shape[1])
        for number, where in enumerate(self.rows.cells()):
            total += self.cell(number).T @ vector[where]
        return total

    def times(self, right: Float[np.ndarray, "P k"]) -> Float[np.ndarray, "N k"]:
        """Return `AB`."""
        if self.matrix is not None:
            return self.matrix @ right
        return np.concatenate([self.cell(i) @ right for i in range(len(self.rows.cells()))])


def whiten(
    rows: JacobianRows,
    noise: Float[np.ndarray, " N"],
    spread: Float[np.ndarray, " P"],
    plan: JacobianPlan,
    progress: bool | None,
) -> WhitenedJacobian:
    """Return the whitened Jacobian; all its rows are computed now if the plan keeps them in memory."""
    root = None if np.all(spread == 1.0) else np.sqrt(spread)
    streamed = WhitenedJacobian(rows, 1.0 / np.sqrt(noise), root, plan)
    if plan.slab is not None:
        return streamed
    matrix = np.empty(rows.shape)
    with progress_bar(len(noise), plan.text, progress) as bar:
        for number, where in enumerate(rows.cells()):
            np.multiply(streamed.scaled(rows.make(number)), streamed.inverse_root[where, None], out=matrix[where])
            bar.update(where.stop - where.start)
    return dataclasses.replace(streamed, matrix=matrix)


def gram_matrix(whitened: WhitenedJacobian, progress: bool | None) -> Float[np.ndarray, "k k"]:
    """Return `AAᵀ`, with at least its lower triangle filled, or `AᵀA`."""
    plan, matrix = whitened.plan, whitened.matrix
    with threads(min(whitened.rows.shape)):
        if matrix is not None:
            return self_product(matrix if plan.of_rows else matrix.T)
        cells = whitened.rows.cells()
        n, p = whitened.rows.shape
        if not plan.of_rows:
            total = np.zeros((p, p))
            with progress_bar(n, plan.text, progress) as bar:
                for number, where in enumerate(cells):
                    total += self_product(whitened.cell(number).T)
                    bar.update(where.stop - where.start)
            return total
        assert plan.slab is not None
        slabs = list(_slabs(cells, plan.slab))
        out, buffer = np.zeros((n, n)), np.empty((plan.slab, p))
        with progress_bar(sum(n - cells[first].start for first, _ in slabs), plan.text, progress) as bar:
            for first, last in slabs:
                # Keep one slab, and stream the rows below it: only the lower triangle is needed.
                columns = slice(cells[first].start, cells[last - 1].stop)
                slab = buffer[: columns.stop - columns.start]
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
    """Yield runs of cells with at most `size` rows together."""
    first = 0
    for number, cell in enumerate(cells):
        if cell.stop - cells[first].start > size:
            yield first, number
            first = number
    yield first, len(cells)
