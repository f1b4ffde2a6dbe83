"""Tiled Cholesky factorisation on Dask workers: the tasks, and the graphs that connect them.

The factorisation is left-looking: the first task of tile `(i, k)` assembles it from coordinates, and tasks subtract
`Σ_j L_ij L_kjᵀ` a few `j` at a time. A right-looking factorisation would keep and rewrite all tiles of the remaining
matrix. Here only finished tiles of `L` are stored, each written once, and Dask spills those that do not fit in a
worker's memory to its disk. Chunks of a few pairs bound the memory of one task.

Tasks use one BLAS thread per worker thread and do not modify the tiles they receive, which other tasks may share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.linalg import blas, lapack

from ..covariance import Covariance, CovarianceTangent
from ..errors import PilescoreError, require_float64
from ..model import Solver
from ..parallel import ONE_BLAS_THREAD, TaskGraph, TaskRunner, import_distributed, progress_bar
from .interface import Bounds, Cotangent
from .lapack import EPS, ExactFactored, NotFactorableError, checked, cholesky, probe

SOLVE_STRIP = 256
"""Columns per triangular solve: SciPy holds Python's global lock during each one, which stops other worker threads."""

TileArray = Float[np.ndarray, "n m"]
Range = tuple[int, int]


class IndefiniteTileError(Exception):
    """A pivot is not positive; the argument is its row. The exception is pickled between processes."""


def unpickle(pickled: bytes) -> Any:
    """Return a covariance or tangent from its pickled form, once on each worker that needs it."""
    require_float64()
    return import_distributed().protocol.pickle.loads(pickled)


def assemble_tile(covariance: Covariance, rows: Range, columns: Range) -> TileArray:
    """Return a tile of `C`."""
    left = covariance.select(np.arange(*rows))
    right = left if rows == columns else covariance.select(np.arange(*columns))
    tile = np.array(covariance.block(left, right), order="C")
    # JAX in a worker process computes in float32, without a word, if it was started without JAX_ENABLE_X64.
    if tile.dtype != np.float64:
        raise PilescoreError(f"a tile of the covariance has type {tile.dtype} on a worker; expected float64")
    if rows == columns:
        tile.flat[:: len(tile) + 1] += covariance.noise[slice(*rows)]
    return tile


def factor_tile(
    covariance: Covariance | None, before: TileArray | None, rows: Range, columns: Range, pivot: Any, *tiles: TileArray
) -> TileArray:
    """Subtract `Σ L_ij L_kjᵀ` from a tile, which is assembled first if it is new, and divide it by its pivot tile.

    `pivot` is `L_kk` below the diagonal, True on the diagonal, and None if further tasks subtract more.
    """
    with ONE_BLAS_THREAD:
        total = assemble_tile(covariance, rows, columns) if covariance is not None else np.array(before)
        half = len(tiles) if rows == columns else len(tiles) // 2
        for left, right in zip(tiles[:half], tiles[-half:] if half else (), strict=True):
            total -= left @ right.T
        if pivot is None:
            return total
        if pivot is not True:
            return _divided(total, pivot)
        lower = np.asfortranarray(total)
        try:
            cholesky(lower)
        except NotFactorableError as error:
            raise IndefiniteTileError(rows[0] + error.row) from None
        return np.ascontiguousarray(np.tril(lower))


def _divided(tile: TileArray, pivot: TileArray) -> TileArray:
    """Return `A L⁻ᵀ`, overwriting `A`, in strips of columns."""
    for start in range(0, len(pivot), SOLVE_STRIP):
        now = slice(start, start + SOLVE_STRIP)
        if start:
            tile[:, now] -= tile[:, :start] @ pivot[now, :start].T
        # A row-major `L` is a column-major `Lᵀ`: solving with the upper triangle of the transpose avoids a copy.
        tile[:, now] = blas.dtrsm(1.0, pivot[now, now].T, tile[:, now].T, lower=0, trans_a=1).T
    return tile


def tile_diagonal(tile: TileArray) -> Float[np.ndarray, " n"]:
    """Return the diagonal of a tile."""
    return tile.diagonal().copy()


def multiply_tile(tile: TileArray, vectors: TileArray, transposed: bool) -> TileArray:
    """Return the product of a tile, or of its transpose, with vectors."""
    with ONE_BLAS_THREAD:
        return (tile.T if transposed else tile) @ vectors


def solve_tile(pivot: TileArray, right: TileArray, transposed: bool, *sums: TileArray) -> TileArray:
    """Return `L⁻¹` or `L⁻ᵀ` times the right-hand side minus the sums."""
    with ONE_BLAS_THREAD:
        rest = np.array(right)
        for each in sums:
            rest -= each
        return np.ascontiguousarray(blas.dtrsm(1.0, pivot.T, rest, lower=0, trans_a=0 if transposed else 1))


def invert_tile(pivot: TileArray) -> TileArray:
    """Return `L⁻¹` of a diagonal tile."""
    with ONE_BLAS_THREAD:
        return np.ascontiguousarray(np.tril(checked(lapack.dtrtri(pivot.T, lower=0)).T))


def inverse_factor_tile(before: TileArray | None, pivot: TileArray | None, *tiles: TileArray) -> TileArray:
    """Add `Σ L_ik Z_kj`, and finish the tile `Z_ij` of `L⁻¹` if `pivot = Z_ii` is given."""
    with ONE_BLAS_THREAD:
        half = len(tiles) // 2
        total = _summed(before, tiles[:half], tiles[half:])
        return total if pivot is None else -(pivot @ total)


def inverse_tile(before: TileArray | None, twice: bool, *tiles: TileArray) -> TileArray:
    """Add `Σ Z_kiᵀ Z_kj` to a tile of `C⁻¹`; `twice` means that both factors are the same."""
    with ONE_BLAS_THREAD:
        half = 0 if twice else len(tiles) // 2
        return _summed(before, [tile.T for tile in tiles[: half or None]], tiles[half:])


def _summed(before: TileArray | None, left: Sequence[TileArray], right: Sequence[TileArray]) -> TileArray:
    """Return a new tile: the sum so far, if any, plus the products."""
    total = None if before is None else np.array(before)
    for first, second in zip(left, right, strict=True):
        product = first @ second
        total = product if total is None else np.add(total, product, out=total)
    assert total is not None
    return total


def contract_tile(
    covariance: Covariance,
    tangent: CovarianceTangent,
    inverse: TileArray,
    rows: Range,
    columns: Range,
    left: Any,
    right: Any,
) -> Float[np.ndarray, " p"]:
    """Return `Σ G_ij ∂Q_ij` over a tile with `G = C⁻¹ − uvᵀ`; a tile below the diagonal counts for both triangles."""
    require_float64()
    with ONE_BLAS_THREAD:
        first = covariance.select(np.arange(*rows))
        if rows == columns:
            return tangent.block(first, first, inverse - np.outer(left, right))
        return 2.0 * tangent.block(first, covariance.select(np.arange(*columns)), inverse - np.outer(left, right))


PAIRS_PER_TASK = 4
"""Pairs of tiles that one task multiplies; all of them are in memory at once."""

COLUMNS_PER_SOLVE = 256
"""Number of right-hand sides per pass over the factor."""


class TiledFactored(ExactFactored):
    """A covariance with the tiles of its Cholesky factor on Dask workers.

    Parameters
    ----------
    solver
        Solver whose worker processes must live as long as this object.
    covariance
        Covariance to factor.
    client
        Checked client.
    tile
        Rows of a tile.
    width
        Total number of worker threads.
    advice
        Advice for error messages when workers fail.
    """

    method = "distributed"

    def __init__(self, solver: Solver, covariance: Covariance, client: Any, tile: int, width: int, advice: str) -> None:
        n = covariance.size
        self.solver = solver
        self.covariance = covariance
        self.ranges = [(start, min(start + tile, n)) for start in range(0, n, tile)]
        self.width = width
        self.tasks = TaskRunner(client, advice)
        self.lower: dict[tuple[int, int], Any] = {}
        self.inverse: dict[tuple[int, int], Any] = {}
        with self.tasks.guarded():
            self.source = self.send(covariance)
            self._factor()
            logdet = 2.0 * float(np.log(self.diagonal(self.lower)).sum())
            self.alpha, self.error = self._solve_with_rounding()
        quadratic = float(covariance.values @ self.alpha)
        self.logdet, self.quadratic = Bounds(logdet, logdet), Bounds(quadratic, quadratic)
        self.account = (
            f"distributed: the Cholesky factor of {n} observations by {len(self.ranges)} × {len(self.ranges)} tiles "
            f"of {tile} rows on {width} worker thread{'s' * (width > 1)}"
        )

    def send(self, thing: Any) -> Any:
        """Return the future of a covariance or tangent. A task creates it, so Dask can recreate it if a worker dies."""
        graph = self.tasks.graph()
        graph.call("source", unpickle, import_distributed().protocol.pickle.dumps(thing))
        return self.tasks.send(graph)["source"]

    def stages(
        self, what: str, add: Callable[[TaskGraph, int], None], into: dict[Any, Any], done: Callable[[int], None]
    ) -> None:
        """Send stages with enough tasks in flight to keep the workers busy; call `done(stage)` when one is finished."""
        count = len(self.ranges)
        pending: list[Any] = []
        unfinished: dict[int, list[Any]] = {}
        with progress_bar(count * (count + 1) // 2, what, None) as bar:
            for stage in range(count):
                graph = self.tasks.graph()
                add(graph, stage)
                futures = self.tasks.send(graph, -stage)
                into.update(futures)
                unfinished[stage] = list(futures.values())
                # A few columns in flight hide the wait for pivot tiles; more would only keep more tiles in memory.
                at_most = max(len(futures), 4 * self.width) if stage < count - 1 else 0
                pending = self.tasks.wait([*pending, *futures.values()], at_most, bar.update)
                for ended in [s for s, each in unfinished.items() if all(f.status == "finished" for f in each)]:
                    del unfinished[ended]
                    done(ended)

    def _factor(self) -> None:
        count, finished = len(self.ranges), list[int]()
        self.tasks.reached = lambda: f"{len(finished)} of {count} columns of tiles were factored"

        def column(graph: TaskGraph, k: int) -> None:
            for i in range(k, count):
                before: Any = None
                for js, last in chunks(range(k)):
                    left = [self.lower[i, j] for j in js]
                    right = [self.lower[k, j] for j in js] if i != k else []
                    pivot = None if not last else True if i == k else self.lower[k, k]
                    arguments = before, self.ranges[i], self.ranges[k], pivot, *left, *right
                    source = self.source if before is None else None
                    name = (i, k) if last else (i, k, js[0])
                    before = graph.call(name, factor_tile, source, *arguments, wanted=last)
                self.lower[i, k] = before

        try:
            self.stages("tiled Cholesky", column, self.lower, finished.append)
        except IndefiniteTileError as error:
            raise NotFactorableError(int(error.args[0])) from None

    def diagonal(self, matrix: Mapping[tuple[int, int], Any]) -> Float[np.ndarray, " N"]:
        """Return the diagonal of a tiled matrix."""
        graph = self.tasks.graph()
        for k in range(len(self.ranges)):
            graph.call(k, tile_diagonal, matrix[k, k])
        return np.concatenate(self.tasks.gather(list(self.tasks.send(graph).values())))

    def _swept(self, right: Sequence[Any], transposed: bool) -> list[Any]:
        """Return futures of the tiles of `L⁻¹B` or `L⁻ᵀB`. Each product runs on the worker that holds the tile."""
        if not self.lower:
            raise PilescoreError("a gradient has overwritten the factor: factor the covariance again")
        graph, count = self.tasks.graph(), len(self.ranges)
        solved: dict[int, Any] = {}
        for k in reversed(range(count)) if transposed else range(count):
            sums = []
            for j in solved:
                tile = self.lower[j, k] if transposed else self.lower[k, j]
                sums.append(graph.call((k, j), multiply_tile, tile, solved[j], transposed, wanted=False))
            solved[k] = graph.call(k, solve_tile, self.lower[k, k], right[k], transposed, *sums)
        futures = self.tasks.send(graph)
        return [futures[k] for k in range(count)]

    def _solved(self, right: Float[np.ndarray, "N k"], *transposed: bool) -> Float[np.ndarray, "N k"]:
        """Multiply by `L⁻¹` or, transposed, `L⁻ᵀ`, once for each flag; columns pass in runs that fit in memory."""
        columns = []
        with self.tasks.guarded():
            for start in range(0, right.shape[1], COLUMNS_PER_SOLVE):
                tiles: list[Any] = [right[slice(*rows), start : start + COLUMNS_PER_SOLVE] for rows in self.ranges]
                for each in transposed:
                    tiles = self._swept(tiles, each)
                columns.append(np.concatenate(self.tasks.gather(tiles)))
        return np.concatenate(columns, axis=1)

    def half_solve(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "N k"]:
        """Return `L⁻¹B`."""
        return self._solved(right, False)

    def _solve_with_rounding(self) -> tuple[Float[np.ndarray, " N"], float]:
        """Return `α` and its rounding estimate, as in `CholeskyFactor.solve_with_rounding`."""
        variances = [self.covariance.variances(part) for _, part in self.covariance.strips()]
        scale = np.sqrt(np.concatenate(variances) + self.covariance.noise)
        half = self.half_solve(np.stack([self.covariance.values, scale * probe(len(scale))], axis=1))
        alpha = self._solved(half[:, :1], True)[:, 0]
        return alpha, EPS * float(half[:, 1] @ half[:, 1] + (np.abs(alpha) @ scale) ** 2)

    def solve(self, right: Float[np.ndarray, "N k"]) -> tuple[Float[np.ndarray, "N k"], Float[np.ndarray, "N k"]]:
        """Return `C⁻¹B`."""
        return self._solved(right, False, True), np.zeros_like(right)

    def cotangent(self, scale: float) -> Cotangent:
        """Return `G`. The tiles of the inverse replace those of the factor."""
        if not self.inverse:
            with self.tasks.guarded():
                self._invert()
        return TiledCotangent(self, scale)

    def _invert(self) -> None:
        """Replace the tiles of `L` by `Z = L⁻¹`, row by row, then by `ZᵀZ`, column by column."""
        count, lower = len(self.ranges), self.lower
        part: dict[Any, Any] = {}

        def row(graph: TaskGraph, i: int) -> None:
            part[i, i] = graph.call((i, i), invert_tile, lower[i, i])
            for j in range(i):
                before: Any = None
                for ks, last in chunks(range(j, i)):
                    arguments = part[i, i] if last else None, *(lower[i, k] for k in ks), *(part[k, j] for k in ks)
                    name = (i, j) if last else (i, j, ks[0])
                    before = graph.call(name, inverse_factor_tile, before, *arguments, wanted=last)

        def row_done(i: int) -> None:
            for j in range(i + 1):
                del lower[i, j]

        def column(graph: TaskGraph, j: int) -> None:
            for i in range(j, count):
                before: Any = None
                for ks, last in chunks(range(i, count)):
                    right = [part[k, j] for k in ks] if i != j else []
                    name = (i, j) if last else (i, j, ks[0])
                    arguments = i == j, *(part[k, i] for k in ks), *right
                    before = graph.call(name, inverse_tile, before, *arguments, wanted=last)

        def column_done(j: int) -> None:
            for k in range(j, count):
                del part[k, j]

        self.tasks.reached = lambda: "the factor is complete, its inverse is not"
        self.stages("inverse of the factor", row, part, row_done)
        self.stages("inverse", column, self.inverse, column_done)


class TiledCotangent(Cotangent):
    """`G` in tiles on the workers, where it is contracted."""

    def __init__(self, factored: TiledFactored, scale: float) -> None:
        self.factored = factored
        self.scale = scale
        with factored.tasks.guarded():
            self.diagonal = factored.diagonal(factored.inverse) - factored.alpha**2 / scale

    def contract(self, tangent: CovarianceTangent) -> Float[np.ndarray, " p"]:
        """Return the derivatives with respect to the hyperparameters of a tangent."""
        owner, ranges = self.factored, self.factored.ranges
        with owner.tasks.guarded():
            graph, tangent_future = owner.tasks.graph(), owner.send(tangent)
            for (i, j), tile in owner.inverse.items():
                left, right = owner.alpha[slice(*ranges[i])], owner.alpha[slice(*ranges[j])] / self.scale
                graph.call((i, j), contract_tile, owner.source, tangent_future, tile, ranges[i], ranges[j], left, right)
            parts = owner.tasks.gather(list(owner.tasks.send(graph).values()))
        return np.sum(parts, axis=0)


def chunks(numbers: range) -> Iterator[tuple[range, bool]]:
    """Iterate over runs of a few numbers, and whether a run is the last; an empty range gives one empty run."""
    for start in range(0, max(1, len(numbers)), PAIRS_PER_TASK):
        yield numbers[start : start + PAIRS_PER_TASK], start + PAIRS_PER_TASK >= len(numbers)
