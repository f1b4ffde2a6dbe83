"""Clusters of Dask workers: checks of a client, local worker processes, and supervised task graphs.

Dask is imported on first use. It is installed by `pip install 'pilescore[scale]'`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import multiprocessing
import os
import platform
import shutil
import tempfile
import threading
import time
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from ..errors import InputError, MemoryLimitError, PilescoreError, require

STALLED_SECONDS = 30.0
"""Time without any activity on the workers after which a computation is abandoned."""

CHECK_SECONDS = 1.0
"""Time between checks of the workers while no task finishes."""

IGNORE_CTRL_C = "import signal\ndef dask_setup(worker):\n    signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
"""Setup code for local workers: Ctrl-C in a terminal reaches all processes, but only the main one should stop."""


def checked_client(client: Any) -> Any:
    """Check that a client is a synchronous, running `distributed.Client` with workers, and return it.

    Examples
    --------
    >>> from pilescore.parallel.cluster import checked_client
    >>> checked_client("tcp://127.0.0.1:8786")
    Traceback (most recent call last):
    ...
    pilescore.errors.InputError: client: expected a dask.distributed.Client; got 'tcp://127.0.0.1:8786'
    """
    distributed = import_distributed()
    require(isinstance(client, distributed.Client), "client", client, "a dask.distributed.Client")
    require(not client.asynchronous, "client", client, "a synchronous Client (without asynchronous=True)")
    if client.status != "running":
        raise InputError(f"client: expected a connected Client; this one is {client.status}. Open a new one.")
    if not _workers(client):
        raise InputError(
            "client: expected a Client with at least one worker; its scheduler has none. Start workers "
            "(`dask worker <address of the scheduler>`), or call client.wait_for_workers(1) first."
        )
    return client


def import_distributed() -> Any:
    """Import and return the package `distributed`."""
    try:
        import distributed
    except ImportError as error:
        raise InputError(
            "Dask is required for computations on several workers, but is not installed: pip install 'pilescore[scale]'"
        ) from error
    return distributed


def as_bytes(value: Any, argument: str) -> float:
    """Convert an amount of memory, in bytes or as text such as `"4GB"`, to bytes."""
    import_distributed()
    from dask.utils import parse_bytes

    expected = "a positive number of bytes, or text like '4GB'"
    try:
        amount = float(parse_bytes(value)) if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        raise InputError(f"{argument}: expected {expected}; got {value!r}") from None
    require(0 < amount < float("inf"), argument, value, expected)
    return amount


@dataclasses.dataclass(frozen=True)
class WorkerState:
    """Memory, disk and threads of a worker."""

    host: str
    device: int
    """Device number of the disk for spilled results."""
    free: float
    """Free bytes on that disk."""
    limit: float
    """Memory limit in bytes."""
    used: float
    """Bytes in use before the computation."""
    threads: int
    capacity: float
    """Bytes of results that fit in memory before spilling."""
    spills: bool
    pause: float
    """Memory in bytes at which the worker stops accepting tasks."""


def _state(dask_worker: Any) -> WorkerState:
    """Return the state of the worker on which this runs."""
    memory, manager = psutil.virtual_memory(), dask_worker.memory_manager
    limit = float(manager.memory_limit or memory.total)
    used, folder = float(psutil.Process().memory_info().rss), dask_worker.local_directory
    spills = bool(manager.memory_limit) and hasattr(dask_worker.data, "spilled_total")
    pause = limit * float(manager.memory_pause_fraction or 1.0) if manager.memory_limit else limit
    kept = float(manager.memory_target_fraction or 0.6) * limit if spills else pause - used
    return WorkerState(
        host=platform.node(),
        device=os.stat(folder).st_dev,
        free=float(shutil.disk_usage(folder).free),
        limit=limit,
        used=used,
        threads=int(dask_worker.state.nthreads),
        capacity=max(0.0, kept),
        spills=spills,
        pause=pause,
    )


def worker_states(client: Any) -> list[WorkerState]:
    """Return the state of each worker; raise an `InputError` if pilescore cannot be imported there."""
    states = client.run(_state, on_error="return")
    for address, state in states.items():
        if isinstance(state, BaseException):
            raise InputError(
                f"client: expected workers that can import pilescore; {address} answered: "
                f"{type(state).__name__}: {state}. Install the same versions of pilescore, JAX and Dask everywhere."
            )
    return list(states.values())


def free_disk(workers: Sequence[WorkerState]) -> float:
    """Return the free space on the disks for spilled results; workers may share a disk, which counts once."""
    return sum({(worker.host, worker.device): worker.free for worker in workers if worker.spills}.values())


class LocalWorkers:
    """Worker processes on this machine, started on first use and restarted if they have died."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.client: Any = None
        self.resources = contextlib.ExitStack()

    def running(self, workers: int, limit: float, target: float, folder: str | None) -> Any:
        """Return a client for the workers, starting them if necessary."""
        with self.lock:
            if self.client is not None and self.client.status == "running" and _workers(self.client):
                return self.client
            self.close()
            with contextlib.ExitStack() as resources:
                self.client = _started(resources, workers, limit, target, folder)
                self.resources = resources.pop_all()
            return self.client

    def close(self) -> None:
        """End the processes and remove their spilled results."""
        with self.lock:
            self.client = None
            self.resources.close()


def _started(resources: contextlib.ExitStack, workers: int, limit: float, target: float, folder: str | None) -> Any:
    """Return a client of new worker processes; `resources` closes everything that was started, also after a failure."""
    distributed = import_distributed()
    import dask

    guard = (
        "Worker processes import the main script: put code of the script that must run only once below "
        "`if __name__ == '__main__':`."
    )
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise InputError(f"solver: a worker process cannot start workers while it is being started. {guard}")
    if folder is not None and not Path(folder).is_dir():
        raise InputError(f"local_directory: expected an existing directory; got {folder!r}")
    spill = tempfile.mkdtemp(prefix="pilescore-", dir=folder)
    resources.callback(shutil.rmtree, spill, ignore_errors=True)
    settings = {
        "distributed.worker.memory.target": target / limit,
        "distributed.worker.memory.spill": 0.9,
        "distributed.worker.memory.pause": 0.95,  # `Distributed` checks that its tasks fit below it
        "distributed.worker.memory.terminate": 0.98,
    }
    try:
        with dask.config.set(settings):
            cluster = distributed.LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                memory_limit=int(limit),
                local_directory=spill,
                dashboard_address=None,
                scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # any free port, not Dask's default one
                silence_logs=logging.CRITICAL,
                env={"JAX_ENABLE_X64": "1"},
                preload=[IGNORE_CTRL_C],
            )
        resources.callback(_closed, cluster)
        client = distributed.Client(cluster, set_as_default=False)
    except Exception as error:
        raise PilescoreError(f"could not start the workers ({error}) {guard}") from error
    resources.callback(_closed, client)
    return client


def _closed(opened: Any) -> None:
    with contextlib.suppress(Exception):
        opened.close(timeout=10)


class TaskRunner:
    """Runs the task graphs of one computation on a cluster, watches them, and drops them after a failure.

    Parameters
    ----------
    client
        Checked client.
    advice
        Advice for error messages when workers fail.
    """

    def __init__(self, client: Any, advice: str) -> None:
        self.client = client
        self.advice = advice
        self.reached: Callable[[], str] = lambda: "no task had finished"
        self.prefix = f"pilescore-{uuid.uuid4().hex[:12]}"
        self.count = 0
        self.futures: weakref.WeakSet[Any] = weakref.WeakSet()

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Release all tasks sent within this context if it fails, also on Ctrl-C, so that they do not run."""
        before = {future.key for future in self.futures}
        try:
            yield
        except BaseException:  # `Client.cancel` fails on graphs with unwanted intermediate results
            for future in [future for future in self.futures if future.key not in before]:
                with contextlib.suppress(Exception):
                    future.release()
            raise

    def send(self, calls: TaskGraph, priority: int = 0) -> dict[Any, Any]:
        """Send a graph, and return the futures of its wanted calls by name."""
        if self.client.status != "running":
            raise PilescoreError(f"the client is {self.client.status}. {self._account()}")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sending large graph", category=UserWarning)
            futures = self.client.get(calls.tasks, list(calls.wanted.values()), sync=False, priority=priority)
        self.futures.update(futures)
        return dict(zip(calls.wanted, futures, strict=True))

    def graph(self) -> TaskGraph:
        """Return an empty graph."""
        return TaskGraph(self)

    def wait(
        self, futures: Iterable[Any], at_most: int = 0, finished: Callable[[int], object] | None = None
    ) -> list[Any]:
        """Wait until at most `at_most` futures are unfinished, and return them; raise the error of a failed task."""
        pending, pause, working, looked = list(futures), 0.001, time.monotonic(), time.monotonic()
        while True:
            left = []
            for future in pending:
                if future.status == "pending":
                    left.append(future)
                elif future.status != "finished":
                    raise self.failure(future)
            if len(left) < len(pending):
                working, pause = time.monotonic(), 0.001
                if finished is not None:
                    finished(len(pending) - len(left))
            pending = left
            if len(pending) <= at_most:
                return pending
            now = time.monotonic()
            if now - max(working, looked) > CHECK_SECONDS:
                looked = now
                idle = self._idle()
                if idle is None:
                    working = now
                elif now - working > STALLED_SECONDS:
                    raise PilescoreError(
                        f"no task has finished for {STALLED_SECONDS:.0f} seconds: {idle}. {self._account()}"
                    )
            time.sleep(pause)
            pause = min(1.5 * pause, 0.05)

    def gather(self, futures: Sequence[Any]) -> list[Any]:
        """Wait for small results, and return them."""
        self.wait(futures)
        return list(self.client.gather(list(futures)))

    def failure(self, future: Any) -> Exception:
        """Return the error of a failed future, as a `PilescoreError` if a worker failed."""
        distributed = import_distributed()
        if future.status != "error":
            return PilescoreError(
                f"a task was lost ({future.status}): the scheduler or the client was closed. {self._account()}"
            )
        error = future.exception()
        if isinstance(error, distributed.KilledWorker):
            return PilescoreError(f"workers died repeatedly while working on a task. {self._account()}")
        if isinstance(error, MemoryError) and not isinstance(error, PilescoreError):
            return MemoryLimitError(f"a worker ran out of memory. {self._account()}")
        return error if isinstance(error, Exception) else PilescoreError(str(error))

    def _idle(self) -> str | None:
        """Return why no worker is active, or None if one is."""
        if self.client.status != "running":
            return f"the client is {self.client.status}"
        workers = _workers(self.client)
        if not workers:
            return "no workers are left"
        counts = [worker.get("metrics", {}).get("task_counts", {}) for worker in workers.values()]
        if any(count.get(state, 0) for count in counts for state in ("executing", "long-running", "flight")):
            return None
        paused = sum(worker.get("status") == "paused" for worker in workers.values())
        if paused:
            return f"{paused} of {len(workers)} workers are paused because their memory is full"
        return None if any(count.get("ready", 0) for count in counts) else "no worker has a task"

    def _account(self) -> str:
        """Describe the progress, the state of the workers, and what to change."""
        state = "the workers do not answer"
        with contextlib.suppress(Exception):
            workers = list(_workers(self.client).values()) if self.client.status == "running" else []
            limits = sorted({worker["memory_limit"] for worker in workers})
            folders = {worker["local_directory"] for worker in workers}
            free = [shutil.disk_usage(folder).free for folder in folders if Path(folder).is_dir()]
            state = f"{len(workers)} workers are left"
            if limits and limits[0]:
                state += f", with a memory limit of {limits[0] / 1e9:.3g} GB"
            if free:
                state += f" and {min(free) / 1e9:.3g} GB of free disk"
        return f"{self.reached()}; {state}. {self.advice}"


class TaskGraph:
    """Function calls on the results of other calls, sent together. Only wanted results are kept on the workers."""

    def __init__(self, tasks: TaskRunner) -> None:
        from dask.task_spec import Task, TaskRef

        self._task, self._reference = Task, TaskRef
        self.owner = tasks
        self.tasks: dict[str, Any] = {}
        self.wanted: dict[Any, str] = {}
        """Keys of the wanted calls, by name."""

    def call(self, name: Any, function: Callable[..., Any], *arguments: Any, wanted: bool = True) -> Any:
        """Add a call, and return a reference to its result. Arguments may be such references, or futures."""
        self.owner.count += 1
        key = f"{self.owner.prefix}-{function.__name__}-{self.owner.count}"
        arguments = tuple(self._reference(each.key) if hasattr(each, "key") else each for each in arguments)
        self.tasks[key] = self._task(key, function, *arguments)
        if wanted:
            self.wanted[name] = key
        return self._reference(key)


def _workers(client: Any) -> dict[str, Any]:
    # Not client.scheduler_info(): that returns a shared attribute which the client also refreshes in the background,
    # without workers, so now and then a cluster seems to have none.
    return dict(client.sync(client.scheduler.identity, n_workers=-1)["workers"])
