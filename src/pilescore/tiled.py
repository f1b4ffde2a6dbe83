"""Exact factorisations on many workers: `Distributed`, and what it asks of their memory and disks."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any

from .cluster import Own, Worker, as_bytes, checked_client, free_disk, imported, survey
from .errors import MemoryLimitError, as_count, require
from .running import cores
from .solvers import Covariance, Estimate, Solver
from .tile_graphs import CHUNK, TiledFactored

TILES = (2048, 1536, 1024, 512, 256)
"""Rows of a tile: one of these unless given."""

BASE = 4.5e8
"""Bytes of a worker that has imported JAX and compiled a kernel."""

REPLICAS = 1.25
"""Tiles that workers hold, for each tile there is: some are held twice for a while."""


def task_bytes(tile: int) -> float:
    """Return the bytes that a task holds: its tiles, what it computes, and what assembly needs beside it."""
    return 8.0 * tile**2 * (2 * CHUNK + 4)


def triangle_bytes(size: int, tile: int) -> float:
    """Return the bytes of the lower triangle by tiles."""
    return 4.0 * size * (size + tile)


def target_bytes(limit: float, tile: int) -> float:
    """Return how many bytes of tiles a worker of our own keeps in memory."""
    return min(0.6 * limit, max(0.05 * limit, 0.9 * (0.9 * limit - BASE - task_bytes(tile))))


def chosen_tile(size: int, workers: int, room: float) -> int:
    """Return the rows of a tile: many enough for products to be fast, few enough that all have work and it fits."""
    fits = [tile for tile in TILES if 2.5 * task_bytes(tile) <= room]
    busy = [tile for tile in fits if size >= tile * max(10, 4 * workers)]
    return busy[0] if busy else fits[-1] if fits else TILES[-1]


@dataclasses.dataclass(frozen=True, eq=False)
class Distributed(Solver):
    """The Cholesky factor by tiles on many workers of Dask: exact, and past the memory of one process.

    Tiles are assembled on the workers from the coordinates, and spilled to disk where they do not fit in memory.
    Dask comes with `pip install 'pilescore[scale]'`.

    Parameters
    ----------
    client
        A `dask.distributed.Client`; it is not closed. Unless given, processes are started on this machine, one for
        each core, kept for further evaluations, and ended with `close()`, the end of a `with`, or this object.
    workers
        How many processes to start.
    memory_limit
        Bytes for each of them, or text like `"4GB"`; an equal share of nine tenths of this machine's unless given.
    tile
        Rows of a tile; from the number of observations, the workers and their memory unless given.
    local_directory
        The folder that is spilled to; a temporary one unless given.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 30)
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.5), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.1)
    >>> with ps.Distributed(workers=1, tile=16) as solver:
    ...     found = ps.pile(model, solver=solver)
    >>> abs(found.value - ps.pile(model).value) < 1e-12
    True
    """

    client: Any = None
    workers: int | None = None
    memory_limit: Any = None
    tile: int | None = None
    local_directory: str | None = None
    _own: Own = dataclasses.field(default_factory=Own, init=False, repr=False)

    def __post_init__(self) -> None:
        imported()
        for name in ("workers", "tile"):
            if getattr(self, name) is not None:
                as_count(getattr(self, name), name)
        if self.memory_limit is not None:
            as_bytes(self.memory_limit, "memory_limit")
        if self.client is not None:
            for name in ("workers", "memory_limit", "local_directory"):
                given = getattr(self, name)
                require(given is None, name, given, "None with a client: its workers have been started already")
        weakref.finalize(self, self._own.close)

    def __enter__(self) -> Distributed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that were started here; a client that was given is left alone."""
        self._own.close()

    @property
    def identity(self) -> str:
        """What results depend on."""
        return "distributed"

    def estimate(self, covariance: Covariance) -> Estimate:
        """Return what it needs: the memory is that of one worker."""
        n = covariance.size
        if self.client is None:
            count, tile, base = self._count, self._own_tile(n), BASE
            kept = count * target_bytes(self._limit, tile)
        else:
            staff = survey(checked_client(self.client))
            count, tile = len(staff), self._tile_for(n, staff)
            base, kept = max(worker.used for worker in staff), sum(worker.capacity for worker in staff)
        triangle = triangle_bytes(n, tile)
        memory = base + task_bytes(tile) + min(triangle, kept) / count
        disk = max(0.0, REPLICAS * triangle - kept)
        return Estimate(f"distributed over {count} workers", memory, n**3 / 3, disk)

    def factor(self, covariance: Covariance) -> TiledFactored:
        """Factor a covariance on the workers."""
        n = covariance.size
        if self.client is None:
            count, limit, tile = self._count, self._limit, self._own_tile(n)
            _require_room(tile, BASE, 0.95 * limit, 1, limit)
            client = self._own.running(count, limit, target_bytes(limit, tile), self.local_directory)
            staff = survey(client)
        else:
            client = checked_client(self.client)
            staff = survey(client)
            tile = self._tile_for(n, staff)
            for worker in staff:
                _require_room(tile, max(BASE, worker.used), worker.pause, worker.threads, worker.limit)
        _require_disk(REPLICAS * triangle_bytes(n, tile), staff)
        advice = (
            f"What helps: more memory for each worker (a task on tiles of {tile} rows takes "
            f"{task_bytes(tile) / 1e9:.2g} GB beside {BASE / 1e9:.2g} GB of Python and JAX), a smaller tile, more free "
            "disk for what is spilled, or fewer observations."
        )
        return TiledFactored(self, covariance, client, tile, sum(worker.threads for worker in staff), advice)

    @property
    def _count(self) -> int:
        return self.workers or cores()

    @property
    def _limit(self) -> float:
        if self.memory_limit is not None:
            return as_bytes(self.memory_limit, "memory_limit")
        return 0.9 * float(imported().system.MEMORY_LIMIT) / self._count

    def _own_tile(self, size: int) -> int:
        return self.tile or chosen_tile(size, self._count, 0.9 * self._limit - BASE)

    def _tile_for(self, size: int, staff: Sequence[Worker]) -> int:
        room = min((worker.pause - max(BASE, worker.used)) / worker.threads for worker in staff)
        return self.tile or chosen_tile(size, sum(worker.threads for worker in staff), room)


def _require_room(tile: int, base: float, pause: float, threads: int, limit: float) -> None:
    """Refuse tiles of which a task does not fit in the memory of a worker."""
    needed = base + threads * task_bytes(tile)
    if needed <= pause:
        return
    largest = int((max(0.0, pause - base) / threads / task_bytes(1)) ** 0.5)
    smaller = f", or tile={largest} or less" if largest >= 64 else ""
    raise MemoryLimitError(
        f"memory_limit: a worker with {threads} thread{'s' * (threads > 1)} needs {needed / 1e9:.3g} GB for tasks on "
        f"tiles of {tile} rows ({base / 1e9:.2g} GB of it for Python and JAX), and its limit of {limit / 1e9:.3g} GB "
        f"leaves {pause / 1e9:.3g} GB. Use a limit of {needed * limit / pause / 1e9:.3g} GB or more{smaller}."
    )


def _require_disk(needed: float, staff: Sequence[Worker]) -> None:
    """Refuse a factor that workers can neither hold nor spill."""
    held, free = sum(worker.capacity for worker in staff), free_disk(staff)
    if needed <= held + free:
        return
    raise MemoryLimitError(
        f"local_directory: the factor takes {needed / 1e9:.3g} GB; the workers hold {held / 1e9:.3g} GB of it in "
        f"memory and have {free / 1e9:.3g} GB of disk to spill to. Use a folder on a larger disk, or more "
        "workers or memory."
    )
