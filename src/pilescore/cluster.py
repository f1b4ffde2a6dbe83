"""Clusters of Dask workers: checks of a client, a cluster of one's own, and tasks that are watched.

Dask is imported where it is needed: it comes with `pip install 'pilescore[scale]'`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import multiprocessing
import os
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

from .errors import InputError, MemoryLimitError, PilescoreError, require

STALLED = 30.0
"""Seconds without any work going on after which a computation is given up."""

LOOK = 1.0
"""Seconds between looks at the workers while nothing finishes."""

DEAF = "import signal\ndef dask_setup(worker):\n    signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
"""What a worker of our own runs first: Ctrl-C in a terminal reaches all processes, and is not meant for it."""


def checked_client(client: Any) -> Any:
    """Return a `distributed.Client` that is synchronous, running and has workers; say what is wrong with another.

    Examples
    --------
    >>> from pilescore.cluster import checked_client
    >>> checked_client("tcp://127.0.0.1:8786")
    Traceback (most recent call last):
    ...
    pilescore.errors.InputError: client: expected a dask.distributed.Client; got 'tcp://127.0.0.1:8786'
    """
    distributed = imported()
    require(isinstance(client, distributed.Client), "client", client, "a dask.distributed.Client")
    require(not client.asynchronous, "client", client, "a synchronous Client (without asynchronous=True)")
    if client.status != "running":
        raise InputError(f"client: expected a Client that is connected; this one is {client.status}. Open a new one.")
    if not _workers(client):
        raise InputError(
            "client: expected a Client with at least one worker; its scheduler has none. Start workers "
            "(`dask worker <address of the scheduler>`), or call client.wait_for_workers(1) before."
        )
    return client


def imported() -> Any:
    """Return the package `distributed`."""
    try:
        import distributed
    except ImportError as error:
        raise InputError(
            "Dask is needed for a computation on several workers, and is not installed: pip install 'pilescore[scale]'"
        ) from error
    return distributed


def as_bytes(value: Any, argument: str) -> float:
    """Return an amount of memory, a number of bytes or text like `"4GB"`, in bytes."""
    imported()
    from dask.utils import parse_bytes

    expected = "bytes as a positive number, or text like '4GB'"
    try:
        amount = float(parse_bytes(value)) if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        raise InputError(f"{argument}: expected {expected}; got {value!r}") from None
    require(0 < amount < float("inf"), argument, value, expected)
    return amount


@dataclasses.dataclass(frozen=True)
class Worker:
    """What a worker has."""

    address: str
    host: str
    device: int
    """Of the disk that it spills to."""
    free: float
    """Bytes on that disk."""
    limit: float
    """Bytes of memory that it may use."""
    used: float
    """Bytes that it uses before it begins."""
    threads: int
    capacity: float
    """Bytes of results that it keeps in memory."""
    spills: bool
    pause: float
    """Bytes of memory at which it stops taking tasks."""


def _state(dask_worker: Any) -> dict[str, Any]:
    """Return what a worker has; runs on the worker."""
    memory, manager = psutil.virtual_memory(), dask_worker.memory_manager
    limit = float(manager.memory_limit or memory.total)
    used, folder = float(psutil.Process().memory_info().rss), dask_worker.local_directory
    spills = bool(manager.memory_limit) and hasattr(dask_worker.data, "spilled_total")
    pause = limit * float(manager.memory_pause_fraction or 1.0) if manager.memory_limit else limit
    kept = float(manager.memory_target_fraction or 0.6) * limit if spills else pause - used
    return {
        "host": os.uname().nodename if hasattr(os, "uname") else "",
        "device": os.stat(folder).st_dev,
        "free": float(shutil.disk_usage(folder).free),
        "limit": limit,
        "used": used,
        "threads": int(dask_worker.state.nthreads),
        "capacity": max(0.0, kept),
        "spills": spills,
        "pause": pause,
    }


def survey(client: Any) -> list[Worker]:
    """Return what each worker has; raise an `InputError` where pilescore cannot be imported there."""
    found = client.run(_state, on_error="return")
    for address, state in found.items():
        if isinstance(state, BaseException):
            raise InputError(
                f"client: expected workers on which pilescore can be imported; {address} answered: "
                f"{type(state).__name__}: {state}. Install the same versions of pilescore, JAX and Dask everywhere."
            )
    return [Worker(address, **state) for address, state in found.items()]


def free_disk(workers: Sequence[Worker]) -> float:
    """Return the bytes that are free on the disks that workers spill to, each disk counted once."""
    return sum({(worker.host, worker.device): worker.free for worker in workers if worker.spills}.values())


class Own:
    """A cluster of processes on this machine that is started when it is first needed, and started again if it died."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.client: Any = None
        self.stop: Callable[[], None] | None = None

    def running(self, workers: int, limit: float, target: float, folder: str | None) -> Any:
        """Return a client of the cluster."""
        with self.lock:
            if self.client is not None and self.client.status == "running" and _workers(self.client):
                return self.client
            self._close()
            self.client, self.stop = _started(workers, limit, target, folder)
            return self.client

    def close(self) -> None:
        """End the processes, and remove what they spilled."""
        with self.lock:
            self._close()

    def _close(self) -> None:
        stop, self.client, self.stop = self.stop, None, None
        if stop is not None:
            stop()


def _started(workers: int, limit: float, target: float, folder: str | None) -> tuple[Any, Callable[[], None]]:
    distributed = imported()
    import dask

    guard = (
        "Workers are processes that import the main script: in a script, put what is to be run once below "
        "`if __name__ == '__main__':`."
    )
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise InputError(f"solver: a worker that is being started cannot start workers. {guard}")
    if folder is not None and not Path(folder).is_dir():
        raise InputError(f"local_directory: expected an existing folder; got {folder!r}")
    own = tempfile.mkdtemp(prefix="pilescore-", dir=folder)
    settings = {
        "distributed.worker.memory.target": target / limit,
        "distributed.worker.memory.spill": 0.9,
        "distributed.worker.memory.pause": 0.95,
        "distributed.worker.memory.terminate": 0.98,
    }
    cluster = client = None
    try:
        with dask.config.set(settings):
            cluster = distributed.LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                memory_limit=int(limit),
                local_directory=own,
                dashboard_address=None,
                scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # not the port that others expect theirs at
                silence_logs=logging.CRITICAL,
                env={"JAX_ENABLE_X64": "1"},
                preload=[DEAF],
            )
        client = distributed.Client(cluster, set_as_default=False)
    except BaseException as error:
        _end(client, cluster, own)
        if isinstance(error, Exception):
            raise PilescoreError(f"the workers could not be started ({error}) {guard}") from error
        raise
    return client, lambda: _end(client, cluster, own)


def _end(client: Any, cluster: Any, folder: str) -> None:
    for each in (client, cluster):
        if each is not None:
            with contextlib.suppress(Exception):
                each.close(timeout=10)
    shutil.rmtree(folder, ignore_errors=True)


class Tasks:
    """Tasks of one computation on a cluster: sent as graphs, watched while they run, and dropped if it fails.

    Parameters
    ----------
    client
        A client that has been checked.
    advice
        What is said to do where workers fail.
    """

    def __init__(self, client: Any, advice: str) -> None:
        self.client = client
        self.advice = advice
        self.reached: Callable[[], str] = lambda: "nothing was finished yet"
        self.prefix = f"pilescore-{uuid.uuid4().hex[:12]}"
        self.count = 0
        self.futures: weakref.WeakSet[Any] = weakref.WeakSet()

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Drop what was sent since where anything goes wrong, Ctrl-C too: tasks that nobody wants are not run."""
        before = {future.key for future in self.futures}
        try:
            yield
        except BaseException:  # `Client.cancel` fails on graphs of which not every result is wanted
            for future in [future for future in self.futures if future.key not in before]:
                with contextlib.suppress(Exception):
                    future.release()
            raise

    def send(self, calls: Graph, priority: int = 0) -> dict[Any, Any]:
        """Send a graph; return the futures of the calls that are wanted, by their names."""
        if self.client.status != "running":
            raise PilescoreError(f"the client is {self.client.status}. {self._account()}")
        wanted = {name: key for name, key in calls.keys.items() if name in calls.wanted}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sending large graph", category=UserWarning)
            futures = self.client.get(calls.tasks, list(wanted.values()), sync=False, priority=priority)
        self.futures.update(futures)
        return dict(zip(wanted, futures, strict=True))

    def graph(self) -> Graph:
        """Return a graph without tasks."""
        return Graph(self)

    def wait(
        self, futures: Iterable[Any], at_most: int = 0, finished: Callable[[int], object] | None = None
    ) -> list[Any]:
        """Wait until at most so many futures are not finished, and return those; raise what went wrong."""
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
            if now - max(working, looked) > LOOK:
                looked = now
                idle = self._idle()
                if idle is None:
                    working = now
                elif now - working > STALLED:
                    raise PilescoreError(f"no task has finished for {STALLED:.0f} seconds: {idle}. {self._account()}")
            time.sleep(pause)
            pause = min(1.5 * pause, 0.05)

    def gather(self, futures: Sequence[Any]) -> list[Any]:
        """Return results that are small."""
        self.wait(futures)
        return list(self.client.gather(list(futures)))

    def failure(self, future: Any) -> Exception:
        """Return the error that a future ended with, as one of pilescore's where a worker failed."""
        distributed = imported()
        if future.status != "error":
            return PilescoreError(
                f"a task was lost ({future.status}): the scheduler or the client was closed. {self._account()}"
            )
        error = future.exception()
        if isinstance(error, distributed.KilledWorker):
            return PilescoreError(f"workers died again and again while they worked on a task. {self._account()}")
        if isinstance(error, MemoryError) and not isinstance(error, PilescoreError):
            return MemoryLimitError(f"a worker ran out of memory. {self._account()}")
        return error if isinstance(error, Exception) else PilescoreError(str(error))

    def _idle(self) -> str | None:
        """Return why no worker works at present, or None where one does."""
        if self.client.status != "running":
            return f"the client is {self.client.status}"
        workers = _workers(self.client)
        if not workers:
            return "there are no workers left"
        counts = [worker.get("metrics", {}).get("task_counts", {}) for worker in workers.values()]
        if any(count.get(state, 0) for count in counts for state in ("executing", "long-running", "flight")):
            return None
        paused = sum(worker.get("status") == "paused" for worker in workers.values())
        if paused:
            return f"{paused} of {len(workers)} workers are paused, their memory being full"
        return None if any(count.get("ready", 0) for count in counts) else "no worker has anything to do"

    def _account(self) -> str:
        """Say how far it came, what the workers have, and what to change."""
        state = "the workers can no longer be asked"
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


class Graph:
    """Calls of functions on results of others, to be sent together; only the results that are wanted are kept."""

    def __init__(self, tasks: Tasks) -> None:
        from dask.task_spec import Task, TaskRef

        self._task, self._reference = Task, TaskRef
        self.owner = tasks
        self.tasks: dict[str, Any] = {}
        self.keys: dict[Any, str] = {}
        self.wanted: set[Any] = set()

    def call(self, name: Any, function: Callable[..., Any], *given: Any, wanted: bool = True) -> Any:
        """Add a call; return what stands for its result in further calls, where a future may stand as well."""
        self.owner.count += 1
        key = f"{self.owner.prefix}-{function.__name__}-{self.owner.count}"
        given = tuple(self._reference(each.key) if hasattr(each, "key") else each for each in given)
        self.tasks[key] = self._task(key, function, *given)
        self.keys[name] = key
        if wanted:
            self.wanted.add(name)
        return self._reference(key)


def _workers(client: Any) -> dict[str, Any]:
    return dict(client.scheduler_info(n_workers=-1)["workers"])
