"""The tasks of a factorisation by tiles: the Cholesky factor, solutions, the inverse and its contractions.

The factor is left-looking: tile `(i, k)` is assembled from the coordinates by the first of the tasks that subtract
`Σ_j L_ij L_kjᵀ`, a few `j` at a time, so that a task holds few tiles and only tiles of `L` are ever kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from . import tiles
from .cluster import Graph, Tasks, imported
from .errors import PilescoreError
from .linalg import EPS, NotFactorableError, probe, self_product
from .running import progress_bar
from .solvers import Bounds, Covariance, Factored, Pull, Solver, Tangent

CHUNK = 4
"""Pairs of tiles that one task multiplies: all of a task's tiles are in memory at once."""

WIDTH = 256
"""Right-hand sides that are solved for at once."""


class TiledFactored(Factored):
    """A covariance by the tiles of its Cholesky factor, which are on workers.

    Parameters
    ----------
    solver
        Whose processes are to live as long as this.
    covariance
        What is factored.
    client
        A client that has been checked.
    tile
        Rows of a tile.
    width
        Threads of all workers together.
    advice
        What is said to do where workers fail.
    """

    method = "distributed"

    def __init__(self, solver: Solver, covariance: Covariance, client: Any, tile: int, width: int, advice: str) -> None:
        n = covariance.size
        self.solver = solver
        self.covariance = covariance
        self.ranges = [(start, min(start + tile, n)) for start in range(0, n, tile)]
        self.width = width
        self.tasks = Tasks(client, advice)
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
        """Return the future of a covariance or a tangent: made by a task, so that it survives a worker."""
        graph = self.tasks.graph()
        graph.call("held", tiles.held, imported().protocol.pickle.dumps(thing))
        return self.tasks.send(graph)["held"]

    def stages(
        self, what: str, add: Callable[[Graph, int], None], into: dict[Any, Any], release: Callable[[int], None]
    ) -> None:
        """Send stage after stage, no more at once than keeps the workers busy; `release` what a finished one used."""
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
                at_most = max(len(futures), 4 * self.width) if stage < count - 1 else 0
                pending = self.tasks.wait([*pending, *futures.values()], at_most, bar.update)
                for done in [s for s, each in unfinished.items() if all(f.status == "finished" for f in each)]:
                    del unfinished[done]
                    release(done)

    def _factor(self) -> None:
        count, finished = len(self.ranges), [0]
        self.tasks.reached = lambda: f"{finished[0]} of {count} columns of tiles were factored"

        def column(graph: Graph, k: int) -> None:
            for i in range(k, count):
                before: Any = None
                for js, last in chunks(range(k)):
                    left = [self.lower[i, j] for j in js]
                    right = [self.lower[k, j] for j in js] if i != k else []
                    pivot = None if not last else True if i == k else self.lower[k, k]
                    given = before, self.ranges[i], self.ranges[k], pivot, *left, *right
                    source = self.source if before is None else None
                    name = (i, k) if last else (i, k, js[0])
                    before = graph.call(name, tiles.factored, source, *given, wanted=last)
                self.lower[i, k] = before

        def done(_: int) -> None:
            finished[0] += 1

        try:
            self.stages("tiled Cholesky", column, self.lower, done)
        except tiles.IndefiniteTileError as error:
            raise NotFactorableError(int(error.args[0])) from None

    def diagonal(self, matrix: Mapping[tuple[int, int], Any]) -> Float[np.ndarray, " N"]:
        """Return the diagonal of a matrix of tiles."""
        graph = self.tasks.graph()
        for k in range(len(self.ranges)):
            graph.call(k, tiles.diagonal, matrix[k, k])
        return np.concatenate(self.tasks.gather(list(self.tasks.send(graph).values())))

    def _swept(self, right: Sequence[Any], transposed: bool) -> list[Any]:
        """Return the futures of the tiles of `L⁻¹B` or `L⁻ᵀB`; a product runs where its tile is."""
        if not self.lower:
            raise PilescoreError("the factor has been used up by a gradient: factor the covariance again")
        graph, count = self.tasks.graph(), len(self.ranges)
        found: dict[int, Any] = {}
        for k in reversed(range(count)) if transposed else range(count):
            sums = []
            for j in found:
                tile = self.lower[j, k] if transposed else self.lower[k, j]
                sums.append(graph.call((k, j), tiles.applied, tile, found[j], transposed, wanted=False))
            found[k] = graph.call(k, tiles.solved, self.lower[k, k], right[k], transposed, *sums)
        futures = self.tasks.send(graph)
        return [futures[k] for k in range(count)]

    def _cut(self, right: Float[np.ndarray, "N k"]) -> list[Float[np.ndarray, "n k"]]:
        return [right[slice(*each)] for each in self.ranges]

    def _half_solved(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "N k"]:
        """Return `L⁻¹B`."""
        with self.tasks.guarded():
            columns = []
            for start in range(0, right.shape[1], WIDTH):
                futures = self._swept(self._cut(right[:, start : start + WIDTH]), transposed=False)
                columns.append(np.concatenate(self.tasks.gather(futures)))
            return np.concatenate(columns, axis=1)

    def _solve_with_rounding(self) -> tuple[Float[np.ndarray, " N"], float]:
        """Return `α` and the estimate of rounding, as `Factor.solve_with_rounding` does."""
        variances = [self.covariance.variances(part) for _, part in self.covariance.strips()]
        scale = np.sqrt(np.concatenate(variances) + self.covariance.noise)
        half = self._half_solved(np.stack([self.covariance.values, scale * probe(len(scale))], axis=1))
        back = self._swept(self._cut(half[:, :1]), transposed=True)
        alpha = np.concatenate(self.tasks.gather(back))[:, 0]
        return alpha, EPS * float(half[:, 1] @ half[:, 1] + (np.abs(alpha) @ scale) ** 2)

    def solve(self, right: Float[np.ndarray, "N k"]) -> tuple[Float[np.ndarray, "N k"], Float[np.ndarray, "N k"]]:
        """Return `C⁻¹B`."""
        out = np.empty_like(right)
        with self.tasks.guarded():
            for start in range(0, right.shape[1], WIDTH):
                half = self._swept(self._cut(right[:, start : start + WIDTH]), transposed=False)
                back = self._swept(half, transposed=True)
                out[:, start : start + WIDTH] = np.concatenate(self.tasks.gather(back))
        return out, np.zeros_like(right)

    def reduced(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "k k"]:
        """Return `BᵀC⁻¹B`."""
        return self_product(self._half_solved(right).T)

    def reduced_diagonal(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, " k"]:
        """Return the diagonal of `BᵀC⁻¹B`."""
        half = self._half_solved(right)
        return np.einsum("ij,ij->j", half, half)

    def pull(self, scale: float) -> Pull:
        """Return `G`, by the tiles of the inverse in the place of those of the factor."""
        if not self.inverse:
            with self.tasks.guarded():
                self._invert()
        return TiledPull(self, scale)

    def _invert(self) -> None:
        """Replace the tiles of `L` by those of `Z = L⁻¹`, row after row, and these by those of `ZᵀZ`, by columns."""
        count, lower = len(self.ranges), self.lower
        part: dict[Any, Any] = {}

        def row(graph: Graph, i: int) -> None:
            part[i, i] = graph.call((i, i), tiles.inverted, lower[i, i])
            for j in range(i):
                before: Any = None
                for ks, last in chunks(range(j, i)):
                    given = part[i, i] if last else None, *(lower[i, k] for k in ks), *(part[k, j] for k in ks)
                    name = (i, j) if last else (i, j, ks[0])
                    before = graph.call(name, tiles.eliminated, before, *given, wanted=last)

        def row_done(i: int) -> None:
            for j in range(i + 1):
                del lower[i, j]

        def column(graph: Graph, j: int) -> None:
            for i in range(j, count):
                before: Any = None
                for ks, last in chunks(range(i, count)):
                    right = [part[k, j] for k in ks] if i != j else []
                    name = (i, j) if last else (i, j, ks[0])
                    given = i == j, *(part[k, i] for k in ks), *right
                    before = graph.call(name, tiles.joined, before, *given, wanted=last)

        def column_done(j: int) -> None:
            for k in range(j, count):
                del part[k, j]

        self.tasks.reached = lambda: "the factor was found, its inverse was not"
        self.stages("inverse of the factor", row, part, row_done)
        self.stages("inverse", column, self.inverse, column_done)


class TiledPull(Pull):
    """`G` by tiles on workers, contracted there."""

    def __init__(self, factored: TiledFactored, scale: float) -> None:
        self.factored = factored
        self.scale = scale
        with factored.tasks.guarded():
            self.diagonal = factored.diagonal(factored.inverse) - factored.alpha**2 / scale

    def contract(self, tangent: Tangent) -> Float[np.ndarray, " p"]:
        """Return the derivative in hyperparameters of `Q`."""
        owner, ranges = self.factored, self.factored.ranges
        with owner.tasks.guarded():
            graph, moved = owner.tasks.graph(), owner.send(tangent)
            for (i, j), tile in owner.inverse.items():
                left, right = owner.alpha[slice(*ranges[i])], owner.alpha[slice(*ranges[j])] / self.scale
                graph.call((i, j), tiles.contracted, owner.source, moved, tile, ranges[i], ranges[j], left, right)
            parts = owner.tasks.gather(list(owner.tasks.send(graph).values()))
        return np.sum(parts, axis=0)


def chunks(numbers: range) -> Iterator[tuple[range, bool]]:
    """Iterate over runs of a few numbers, and whether a run is the last; once where there are none."""
    for start in range(0, max(1, len(numbers)), CHUNK):
        yield numbers[start : start + CHUNK], start + CHUNK >= len(numbers)
