"""A pool of Dask workers that evaluate scores: shared content is sent once, then many small tasks."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from ..errors import ClusterError, InputError, PilescoreError, require_float64
from .cluster import IGNORE_CTRL_C, checked_client, import_distributed
from .resources import ONE_BLAS_THREAD, cores, threads

MOST_PER_TASK = 64
"""Largest number of evaluations in one task."""

TASKS_PER_THREAD = 6
"""Smallest number of tasks for each worker thread, if there are enough evaluations."""

TASK_SECONDS = 2.0
"""Target duration of a task; sweeps save their results about as often."""

OVERHEAD_SECONDS, FLOPS_PER_SECOND = 0.01, 1e10
"""Rough time of an evaluation apart from linear algebra, and rough speed of linear algebra."""

CHECK_SECONDS, PATIENCE_SECONDS = 5.0, 60.0
"""Time between checks of a silent cluster, and time that it may stay without workers."""

CACHED_CONTENTS = 4
"""Number of unpickled contents that a worker keeps."""

CONNECT_SECONDS = 30.0
"""Time allowed for a scheduler to answer, and for its first worker to appear."""

T = TypeVar("T")


class WorkersLostError(Exception):
    """A task has no outcome, for reasons of the cluster, not of its point; `cluster_errors` converts it for users."""


class EvaluationPool:
    """The workers of a client, with the content of a computation, which is sent once.

    A task calls a function of this package: `function(content, *arguments)`. At the end of a `with` block nothing is
    left on the cluster.

    Parameters
    ----------
    client
        A running `distributed.Client`.
    size
        Number of observations of the model: small matrices use one BLAS thread.
    content
        Object that every task needs.
    named
        Parts of the content that are arguments of the user, by name: the error names one that cannot be pickled.
    """

    def __init__(self, client: Any, size: int, content: Any, named: Mapping[str, Any]) -> None:
        self.client = checked_client(client)
        self.size = size
        self._open: set[Any] = set()
        self._lock = threading.Lock()
        self._pickled = _sent(self.client, _pickle(content, named))

    @property
    def threads(self) -> int:
        """Number of tasks that run at once."""
        return max(1, sum(self.client.nthreads().values()))

    def submit(self, function: Callable[..., T], *arguments: Any) -> Any:
        """Start a task."""
        return self.submit_all(function, [arguments])[0]

    def submit_all(self, function: Callable[..., T], tasks: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Start a task for each tuple of arguments."""
        about = (function, self.size, importlib.metadata.version("pilescore"))
        wrapped = [_Task(arguments) for arguments in tasks]
        try:
            futures = self.client.map(_work, wrapped, about=_Task(about), pickled=self._pickled, pure=False)
        except OSError as error:
            raise WorkersLostError(f"the scheduler does not answer: {error}") from error
        with self._lock:
            self._open |= set(futures)
        return list(futures)

    def result(self, future: Any) -> Any:
        """Wait for the outcome of a task; raise the `PilescoreError` of its function."""
        watch = _WorkerWatch(self.client)
        try:
            while True:
                try:
                    kind, value = future.result(timeout=CHECK_SECONDS)
                except import_distributed().TimeoutError:
                    if future.status == "error":  # a timeout raised by the task itself
                        raise
                    watch.check()
                    continue
                break
        except Exception as error:
            text = _loss(error, of_task=future.status == "error")
            if text is None:
                raise
            raise WorkersLostError(text) from error
        finally:
            with self._lock:
                self._open.discard(future)
        if kind == "refused":
            raise value
        if kind == "unread":
            raise WorkersLostError(value)
        return value

    def each(self, function: Callable[..., T], tasks: Iterable[tuple[Any, ...]]) -> Iterator[T]:
        """Yield the outcomes of tasks in order of completion."""
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        futures = self.submit_all(function, tasks)
        for future in futures:
            future.add_done_callback(done.put)
        left = len(futures)
        del futures
        watch = _WorkerWatch(self.client)
        while left:
            try:
                future = done.get(timeout=CHECK_SECONDS)
            except queue.Empty:
                try:
                    watch.check()
                except OSError as error:
                    raise WorkersLostError(f"the scheduler does not answer: {error}") from error
                continue
            left -= 1
            yield self.result(future)

    def cancel(self) -> None:
        """Cancel all running and waiting tasks."""
        with self._lock:
            futures, self._open = list(self._open), set()
        if futures:
            with contextlib.suppress(OSError, RuntimeError):  # the scheduler may be gone
                self.client.cancel(futures, reason="pilescore no longer needs it", force=True)

    def __enter__(self) -> EvaluationPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
        self._pickled = None


class _WorkerWatch:
    """Detects, while a cluster is silent, that no workers are left."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.last_seen = time.monotonic()

    def check(self) -> None:
        """Raise a `WorkersLostError` if there have been no workers for too long."""
        if self.client.status not in ("running", "connecting"):
            raise WorkersLostError(f"the client is {self.client.status}")
        if self.client.nthreads():
            self.last_seen = time.monotonic()
        elif time.monotonic() - self.last_seen > PATIENCE_SECONDS:
            raise WorkersLostError(f"the scheduler has had no workers for {PATIENCE_SECONDS:.0f} seconds")


class _Task:
    """Arguments of a call, wrapped because Dask would search tuples and lists for futures."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.arguments = arguments


def _pickle(content: Any, named: Mapping[str, Any]) -> bytes:
    import cloudpickle  # type: ignore[import-untyped, unused-ignore]

    try:
        return bytes(cloudpickle.dumps(content))
    except Exception as whole:
        for name, part in named.items():
            try:
                cloudpickle.dumps(part)
            except Exception as error:
                raise InputError(
                    f"{name}: expected an object that can be sent to workers (client=...); pickling it raised "
                    f"{type(error).__name__}: {error}. Its functions must not hold an open file, a lock, a "
                    "connection or a generator; or omit client"
                ) from error
        raise InputError(f"client: the model cannot be sent to the workers: {whole}") from whole


def _sent(client: Any, pickled: bytes) -> Any:
    """Return a future of the pickled content. It is a task, because scattered data would be lost with its worker."""
    import dask

    with dask.config.set({"distributed.admin.large-graph-warning-threshold": len(pickled) + 2**24}):
        return client.submit(bytes, pickled, pure=False)


_contents_lock = threading.Lock()


@functools.lru_cache(maxsize=CACHED_CONTENTS)
def _unpickled(pickled: bytes) -> Any:
    """Return the unpickled content, cached on each worker: compiled JAX functions belong to its objects."""
    import cloudpickle  # type: ignore[import-untyped, unused-ignore]

    return cloudpickle.loads(pickled)


def _work(task: _Task, about: _Task, pickled: bytes) -> tuple[str, Any]:
    """Run a task on a worker, and return its kind of outcome and its value or error."""
    function, size, version = about.arguments
    try:
        require_float64()
        here = importlib.metadata.version("pilescore")
        if here != version:
            return "unread", f"they have pilescore {here}, and this process has {version}: install the same version"
        with _contents_lock:  # threads of a worker would each unpickle a copy of their own, and compile for it
            content = _unpickled(pickled)
    except Exception as error:
        return "unread", (
            f"they cannot unpickle the content: {type(error).__name__}: {error}. Functions from your own modules must "
            "exist on the workers: use client.upload_file(...) or cloudpickle.register_pickle_by_value(module)"
        )
    # A worker that runs several tasks at once keeps its cores busy without BLAS threads.
    with ONE_BLAS_THREAD if import_distributed().get_worker().state.nthreads > 1 else threads(size):
        try:
            return "done", function(content, *task.arguments)
        except PilescoreError as error:
            return "refused", error


def _loss(error: Exception, of_task: bool) -> str | None:
    """Return a description of a failure of the cluster; None for an error of the task."""
    distributed = import_distributed()
    if isinstance(error, WorkersLostError):
        return str(error)
    if isinstance(error, distributed.scheduler.KilledWorker):
        count = error.allowed_failures + 1
        return (
            f"{count} of them died one after the other on the same task, often because they ran out of memory. "
            "Give them more memory, or fewer threads"
        )
    if of_task:
        return None
    if isinstance(error, distributed.CancelledError):
        return f"a task was cancelled: {error}"
    if isinstance(error, OSError):
        return f"the scheduler does not answer: {error}"
    return None


@contextlib.contextmanager
def cluster_errors(reached: Callable[[], str]) -> Iterator[None]:
    """Convert the loss of workers to a `ClusterError` that states the progress made."""
    try:
        yield
    except WorkersLostError as lost:
        message = f"client: the workers cannot be used: {lost}. {reached()}"
        raise ClusterError(message) from lost.__cause__


def refuse_nested_clusters(client: Any, solver: Any) -> None:
    """Raise if workers of a cluster would each solve with a cluster of their own."""
    if client is not None and solver.uses_cluster:
        raise InputError(
            f"client: expected None with the solver {solver.identity!r}, which uses a cluster for each score; "
            "omit client, or use another solver"
        )


def evaluations_per_task(size: int, count: float | int, workers: int, cost: float = 1.0) -> float:
    """Return the number of evaluations per task.

    Parameters
    ----------
    size
        Number of observations of the model.
    count
        Total number of evaluations.
    workers
        Number of tasks that run at once.
    cost
        Cost of an evaluation, in factorisations.

    Examples
    --------
    >>> from pilescore.parallel.evaluation_pool import evaluations_per_task
    >>> evaluations_per_task(100, 100_000, workers=8), evaluations_per_task(10_000, 100_000, workers=8)
    (64.0, 1.0)
    >>> evaluations_per_task(100, 96, workers=8)
    2.0
    """
    seconds = OVERHEAD_SECONDS + cost * size**3 / 3 / FLOPS_PER_SECOND
    return max(1.0, min(float(MOST_PER_TASK), TASK_SECONDS / seconds, count / (TASKS_PER_THREAD * workers)))


def batched(units: Iterable[T], weight: Callable[[T], float], most: float | int) -> Iterator[list[T]]:
    """Group units into runs of limited total weight.

    Examples
    --------
    >>> from pilescore.parallel.evaluation_pool import batched
    >>> list(batched([1, 1, 1, 5, 1], weight=float, most=2))
    [[1, 1], [1], [5], [1]]
    """
    batch: list[T] = []
    total = 0.0
    for unit in units:
        if batch and total + weight(unit) > most:
            yield batch
            batch, total = [], 0.0
        batch.append(unit)
        total += weight(unit)
    if batch:
        yield batch


@contextlib.contextmanager
def connect(address: str | None) -> Iterator[Any]:
    """Open a client for the cluster at an address, or for local worker processes if it is `"local"`; None for None."""
    if address is None:
        yield None
        return
    try:
        distributed = import_distributed()
    except InputError as error:
        raise InputError("--cluster: needs Dask, which is not installed: pip install 'pilescore[scale]'") from error
    if address == "local":
        cluster = distributed.LocalCluster(
            n_workers=cores(), threads_per_worker=1, dashboard_address=":0", preload=[IGNORE_CTRL_C]
        )
        with cluster, distributed.Client(cluster) as client:
            yield checked_client(client)
        return
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"--cluster: expected the address of a Dask scheduler such as tcp://host:8786, or local; nothing answers "
            f"at {address!r} ({error})"
        ) from error
    with client:
        with contextlib.suppress(distributed.TimeoutError):
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        yield checked_client(client)
