"""Exact factorisation on many Dask workers: the `Distributed` solver, and its memory and disk requirements."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any

from ..covariance import Covariance
from ..errors import MemoryLimitError, as_count, require
from ..model import Solver
from ..parallel import (
    LocalWorkers,
    WorkerState,
    as_bytes,
    checked_client,
    cores,
    free_disk,
    import_distributed,
    worker_states,
)
from .interface import Estimate
from .tile_cholesky import PAIRS_PER_TASK, TiledFactored

TILE_ROWS = (2048, 1536, 1024, 512, 256)
"""Candidates for the number of rows of a tile."""

WORKER_BYTES = 4.5e8
"""Memory of a worker process after importing JAX and compiling a kernel."""

REPLICAS = 1.25
"""Copies of each tile that the workers hold on average: transfers create temporary duplicates."""


def task_bytes(tile: int) -> float:
    """Return the memory of a task: its tiles, its result, and temporary arrays of assembly."""
    return 8.0 * tile**2 * (2 * PAIRS_PER_TASK + 4)


def triangle_bytes(size: int, tile: int) -> float:
    """Return the memory of the tiled lower triangle."""
    return 4.0 * size * (size + tile)


def target_bytes(limit: float, tile: int) -> float:
    """Return the memory for tiles, before spilling, of a worker process that this module starts."""
    # Dask counts results only. Python, JAX and the arrays of a running task must fit beside them, below the limit.
    return min(0.6 * limit, max(0.05 * limit, 0.9 * (0.9 * limit - WORKER_BYTES - task_bytes(tile))))


def chosen_tile(size: int, workers: int, room: float) -> int:
    """Return the rows per tile: large enough for fast products, small enough to fit and to keep all workers busy."""
    fits = [tile for tile in TILE_ROWS if 2.5 * task_bytes(tile) <= room]
    busy = [tile for tile in fits if size >= tile * max(10, 4 * workers)]
    return busy[0] if busy else fits[-1] if fits else TILE_ROWS[-1]


@dataclasses.dataclass(frozen=True, eq=False)
class Distributed(Solver, name="distributed"):
    """Tiled Cholesky factorisation on many Dask workers: exact, and not limited by the memory of one process.

    Workers assemble tiles from coordinates, and spill them to disk if they do not fit in memory.
    Requires Dask: `pip install 'pilescore[scale]'`.

    Parameters
    ----------
    client
        A `dask.distributed.Client`, which is not closed. By default, one process per core is started on this machine,
        kept for further evaluations, and ended by `close()`, at the end of a `with` block, or with this object.
    workers
        Number of processes to start.
    memory_limit
        Memory of each process, in bytes or as text such as `"4GB"`. By default, an equal share of 90% of the machine.
    tile
        Rows of a tile. The default depends on the number of observations, the workers and their memory.
    local_directory
        Directory for spilled tiles. The default is a temporary one.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 30)
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.5), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.1)
    >>> with ps.solvers.Distributed(workers=1, tile=16) as solver:
    ...     score = ps.pile(model.replace(solver=solver))
    >>> abs(score.value - ps.pile(model).value) < 1e-12
    True
    """

    uses_cluster = True

    client: Any = None
    workers: int | None = None
    memory_limit: Any = None
    tile: int | None = None
    local_directory: str | None = None
    _local: LocalWorkers = dataclasses.field(default_factory=LocalWorkers, init=False, repr=False)

    def __post_init__(self) -> None:
        import_distributed()
        for name in ("workers", "tile"):
            if getattr(self, name) is not None:
                as_count(getattr(self, name), name)
        if self.memory_limit is not None:
            as_bytes(self.memory_limit, "memory_limit")
        if self.client is not None:
            for name in ("workers", "memory_limit", "local_directory"):
                given = getattr(self, name)
                require(given is None, name, given, "None with a client, whose workers are already running")
        weakref.finalize(self, self._local.close)

    def __enter__(self) -> Distributed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that this object started; a client passed by the user stays open."""
        self._local.close()

    @property
    def identity(self) -> str:
        """A string that determines the results of this solver."""
        return "distributed"

    def estimate(self, covariance: Covariance) -> Estimate:
        """Estimate disk, operations, and the memory of one worker."""
        n = covariance.size
        if self.client is None:
            count, tile, base = self._count, self._own_tile(n), WORKER_BYTES
            kept = count * target_bytes(self._limit, tile)
        else:
            staff = worker_states(checked_client(self.client))
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
            _require_room(tile, WORKER_BYTES, 0.95 * limit, 1, limit)
            client = self._local.running(count, limit, target_bytes(limit, tile), self.local_directory)
            staff = worker_states(client)
        else:
            client = checked_client(self.client)
            staff = worker_states(client)
            tile = self._tile_for(n, staff)
            for worker in staff:
                _require_room(tile, max(WORKER_BYTES, worker.used), worker.pause, worker.threads, worker.limit)
        _require_disk(REPLICAS * triangle_bytes(n, tile), staff)
        advice = (
            f"What helps: more memory per worker (a task on tiles of {tile} rows needs "
            f"{task_bytes(tile) / 1e9:.2g} GB, besides {WORKER_BYTES / 1e9:.2g} GB for Python and JAX), a smaller "
            "tile, more free disk space for spilled tiles, or fewer observations."
        )
        return TiledFactored(self, covariance, client, tile, sum(worker.threads for worker in staff), advice)

    @property
    def _count(self) -> int:
        return self.workers or cores()

    @property
    def _limit(self) -> float:
        if self.memory_limit is not None:
            return as_bytes(self.memory_limit, "memory_limit")
        return 0.9 * float(import_distributed().system.MEMORY_LIMIT) / self._count

    def _own_tile(self, size: int) -> int:
        return self.tile or chosen_tile(size, self._count, 0.9 * self._limit - WORKER_BYTES)

    def _tile_for(self, size: int, staff: Sequence[WorkerState]) -> int:
        room = min((worker.pause - max(WORKER_BYTES, worker.used)) / worker.threads for worker in staff)
        return self.tile or chosen_tile(size, sum(worker.threads for worker in staff), room)


def _require_room(tile: int, base: float, pause: float, threads: int, limit: float) -> None:
    """Raise if a task on tiles of this size does not fit in the memory of a worker."""
    needed = base + threads * task_bytes(tile)
    if needed <= pause:
        return
    largest = int((max(0.0, pause - base) / threads / task_bytes(1)) ** 0.5)
    smaller = f", or tile={largest} or less" if largest >= 64 else ""
    raise MemoryLimitError(
        f"memory_limit: a worker with {threads} thread{'s' * (threads > 1)} needs {needed / 1e9:.3g} GB for tasks on "
        f"tiles of {tile} rows (including {base / 1e9:.2g} GB for Python and JAX), but its limit of "
        f"{limit / 1e9:.3g} GB leaves {pause / 1e9:.3g} GB. Use a limit of "
        f"{needed * limit / pause / 1e9:.3g} GB or more{smaller}."
    )


def _require_disk(needed: float, staff: Sequence[WorkerState]) -> None:
    """Raise if the workers can neither hold nor spill the factor."""
    held, free = sum(worker.capacity for worker in staff), free_disk(staff)
    if needed <= held + free:
        return
    raise MemoryLimitError(
        f"local_directory: the factor needs {needed / 1e9:.3g} GB; the workers hold {held / 1e9:.3g} GB of it in "
        f"memory and have {free / 1e9:.3g} GB of free disk. Use a directory on a larger disk, or more "
        "workers or memory."
    )
