"""Many evaluations on a cluster of Dask workers: what they are sent once, their tasks, and what is said of a loss."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import importlib.metadata
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from .cluster import checked_client, imported
from .errors import ClusterError, InputError, PilescoreError, require_float64
from .linalg import ONE_BLAS_THREAD, threads
from .running import cores
from .solvers import Solver

TOGETHER = 64
"""Evaluations of one task, at most."""

TASKS = 6
"""Tasks for each thread of a worker, at least, where there are as many evaluations."""

SECONDS = 2.0
"""What a task may take, about: as long as sweeps wait between writings."""

OVERHEAD, SPEED = 0.01, 1e10
"""Seconds that an evaluation takes besides linear algebra, and operations in a second, about."""

LISTEN, PATIENCE = 5.0, 60.0
"""Seconds after which the workers of a silent cluster are counted, and for which there may be none."""

OPENED = 4
"""Parcels that a worker keeps open."""

READY = 30.0
"""Seconds that a cluster has to answer, and for its first worker."""

T = TypeVar("T")


class LostError(Exception):
    """A task has no outcome, and its point is not to blame; `reported` turns it into an error for users."""


class Farm:
    """The workers of a client, to whom the content of a computation is sent once.

    A task is the call of a function of this package, `function(content, *arguments)`. As a context it ends with
    nothing left on the cluster.

    Parameters
    ----------
    client
        A running `distributed.Client`.
    size
        The observations of a model: small matrices get one BLAS thread.
    content
        What every task needs.
    named
        Arguments of the user's that are parts of it, by name; one that cannot be sent is named in the error.
    """

    def __init__(self, client: Any, size: int, content: Any, named: Mapping[str, Any]) -> None:
        self.client = checked_client(client)
        self.size = size
        self._open: set[Any] = set()
        self._lock = threading.Lock()
        parcel = _packed(content, named)
        self._token = hashlib.sha256(parcel).hexdigest()
        self._parcel = _delivery(self.client, parcel)

    @property
    def threads(self) -> int:
        """How many tasks the workers do at once."""
        return max(1, sum(self.client.nthreads().values()))

    def submit(self, function: Callable[..., T], *arguments: Any) -> Any:
        """Begin a task."""
        return self.submit_all(function, [arguments])[0]

    def submit_all(self, function: Callable[..., T], tasks: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Begin a task for each of several tuples of arguments."""
        about = (function, self._token, self.size, importlib.metadata.version("pilescore"))
        wrapped = [_Task(arguments) for arguments in tasks]
        try:
            futures = self.client.map(_work, wrapped, about=_Task(about), parcel=self._parcel, pure=False)
        except OSError as error:
            raise LostError(f"the scheduler does not answer: {error}") from error
        with self._lock:
            self._open |= set(futures)
        return list(futures)

    def result(self, future: Any) -> Any:
        """Wait for the outcome of a task; a `PilescoreError` of its function is raised."""
        listening = _Listening(self.client)
        try:
            while True:
                try:
                    kind, value = future.result(timeout=LISTEN)
                except imported().TimeoutError:
                    if future.status == "error":  # the task's own
                        raise
                    listening.check()
                    continue
                break
        except Exception as error:
            text = _loss(error, of_task=future.status == "error")
            if text is None:
                raise
            raise LostError(text) from error
        finally:
            with self._lock:
                self._open.discard(future)
        if kind == "refused":
            raise value
        if kind == "unread":
            raise LostError(value)
        return value

    def each(self, function: Callable[..., T], tasks: Iterable[tuple[Any, ...]]) -> Iterator[T]:
        """Give the outcomes of tasks as they come."""
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        futures = self.submit_all(function, tasks)
        for future in futures:
            future.add_done_callback(done.put)
        left = len(futures)
        del futures
        listening = _Listening(self.client)
        while left:
            try:
                future = done.get(timeout=LISTEN)
            except queue.Empty:
                try:
                    listening.check()
                except OSError as error:
                    raise LostError(f"the scheduler does not answer: {error}") from error
                continue
            left -= 1
            yield self.result(future)

    def cancel(self) -> None:
        """Cancel what is under way."""
        with self._lock:
            futures, self._open = list(self._open), set()
        if futures:
            with contextlib.suppress(OSError, RuntimeError):  # the scheduler may be gone
                self.client.cancel(futures, reason="pilescore has no use for it any more", force=True)

    def __enter__(self) -> Farm:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
        self._parcel = None


class _Listening:
    """Finds out, while a cluster is silent, that nobody is left to work."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.heard = time.monotonic()

    def check(self) -> None:
        """Raise a `LostError` if there has been no worker for long."""
        if self.client.status not in ("running", "connecting"):
            raise LostError(f"the client is {self.client.status}")
        if self.client.nthreads():
            self.heard = time.monotonic()
        elif time.monotonic() - self.heard > PATIENCE:
            raise LostError(f"the scheduler has had no workers for {PATIENCE:.0f} seconds")


class _Task:
    """Arguments of a call, in which Dask is not to look for its own."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.arguments = arguments


def _packed(content: Any, named: Mapping[str, Any]) -> bytes:
    import cloudpickle  # type: ignore[import-untyped, unused-ignore]

    try:
        return bytes(cloudpickle.dumps(content))
    except Exception as whole:
        for name, part in named.items():
            try:
                cloudpickle.dumps(part)
            except Exception as error:
                raise InputError(
                    f"{name}: expected what can be sent to the workers of a cluster (client=...); pickling it gave "
                    f"{type(error).__name__}: {error}. A function in it must not hold an open file, a lock, a "
                    "connection or a generator; or leave client out"
                ) from error
        raise InputError(f"client: the model cannot be sent to its workers: {whole}") from whole


def _delivery(client: Any, parcel: bytes) -> Any:
    """Return a parcel as a task: what is scattered would be lost with the last worker that has it."""
    import dask

    with dask.config.set({"distributed.admin.large-graph-warning-threshold": len(parcel) + 2**24}):
        return client.submit(_delivered, parcel, pure=False)


def _delivered(parcel: bytes) -> bytes:
    return parcel


_parcels: collections.OrderedDict[str, Any] = collections.OrderedDict()
_opening = threading.Lock()


def _opened(token: str, parcel: bytes) -> Any:
    """Return the content of a parcel, which is opened once by each worker: what JAX compiles belongs to its objects."""
    import cloudpickle  # type: ignore[import-untyped, unused-ignore]

    with _opening:
        if token not in _parcels:
            _parcels[token] = cloudpickle.loads(parcel)
        _parcels.move_to_end(token)
        while len(_parcels) > OPENED:
            _parcels.popitem(last=False)
        return _parcels[token]


def _work(task: _Task, about: _Task, parcel: bytes) -> tuple[str, Any]:
    """Do a task, on a worker; an error is an outcome as any other."""
    function, token, size, version = about.arguments
    try:
        require_float64()
        here = importlib.metadata.version("pilescore")
        if here != version:
            return "unread", f"they have pilescore {here}, and {version} is here: install the same"
        content = _opened(token, parcel)
    except Exception as error:
        return "unread", (
            f"they cannot read what they are sent: {type(error).__name__}: {error}. A function in a module of yours "
            "has to be there, too: client.upload_file(...), or cloudpickle.register_pickle_by_value(module)"
        )
    with _limits(size):
        try:
            return "done", function(content, *task.arguments)
        except PilescoreError as error:
            return "refused", error


def _limits(size: int) -> contextlib.AbstractContextManager[None]:
    """Return a context with one BLAS thread where a worker does several tasks at once, and for small matrices."""
    return ONE_BLAS_THREAD if imported().get_worker().state.nthreads > 1 else threads(size)


def _loss(error: Exception, of_task: bool) -> str | None:
    """Return what is to be said of an error of the cluster itself; None for those of a task."""
    distributed = imported()
    if isinstance(error, LostError):
        return str(error)
    if isinstance(error, distributed.scheduler.KilledWorker):
        count = error.allowed_failures + 1
        return (
            f"{count} of them died one after the other while at the same task; often because they ran out of memory. "
            "Give them more, or fewer threads"
        )
    if of_task:
        return None
    if isinstance(error, distributed.CancelledError):
        return f"a task was cancelled: {error}"
    if isinstance(error, OSError):
        return f"the scheduler does not answer: {error}"
    return None


@contextlib.contextmanager
def reported(reached: Callable[[], str]) -> Iterator[None]:
    """Turn the loss of a cluster into an error that says what was reached before it."""
    try:
        yield
    except LostError as lost:
        raise ClusterError(f"client: the workers of the cluster are lost to this computation: {lost}. {reached()}") \
            from lost.__cause__  # fmt: skip


def refuse_nested(client: Any, solver: Solver) -> None:
    """Refuse to have workers of a cluster solve by a cluster of their own."""
    if client is not None and solver.identity.startswith("distributed"):
        raise InputError(
            f"client: expected None with the solver {solver.identity!r}, which has a cluster at work on each score; "
            "leave client out, or use another solver"
        )


def evaluations_a_task(size: int, count: float | int, workers: int, cost: float = 1.0) -> float:
    """Return how many evaluations a task is to have.

    Parameters
    ----------
    size
        Observations of a model.
    count
        Evaluations in all.
    workers
        Tasks that are done at once.
    cost
        Of an evaluation, in factorisations.

    Examples
    --------
    >>> from pilescore.farm import evaluations_a_task
    >>> evaluations_a_task(100, 100_000, workers=8), evaluations_a_task(10_000, 100_000, workers=8)
    (64.0, 1.0)
    >>> evaluations_a_task(100, 96, workers=8)
    2.0
    """
    seconds = OVERHEAD + cost * size**3 / 3 / SPEED
    return max(1.0, min(float(TOGETHER), SECONDS / seconds, count / (TASKS * workers)))


def batched(units: Iterable[T], weight: Callable[[T], float], most: float | int) -> Iterator[list[T]]:
    """Give units in runs that weigh about as much as is wanted.

    Examples
    --------
    >>> from pilescore.farm import batched
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
def connected(address: str | None) -> Iterator[Any]:
    """Give a client of the cluster at an address, of one of this machine's cores for `"local"`, or None for None."""
    if address is None:
        yield None
        return
    try:
        distributed = imported()
    except InputError as error:
        raise InputError("--cluster: needs Dask, which is not installed: pip install 'pilescore[scale]'") from error
    if address == "local":
        with contextlib.ExitStack() as stack:
            with _ctrl_c_kept_from_children():
                options: dict[str, Any] = {"n_workers": cores(), "threads_per_worker": 1, "dashboard_address": ":0"}
                cluster = stack.enter_context(distributed.LocalCluster(**options))
            yield checked_client(stack.enter_context(distributed.Client(cluster)))
        return
    try:
        client = distributed.Client(address, timeout=READY)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"--cluster: expected the address of a Dask scheduler, as tcp://host:8786, or local; nobody answers at "
            f"{address!r} ({error})"
        ) from error
    with client:
        with contextlib.suppress(distributed.TimeoutError):
            client.wait_for_workers(1, timeout=READY)
        yield checked_client(client)


@contextlib.contextmanager
def _ctrl_c_kept_from_children() -> Iterator[None]:
    """Have processes that are started within ignore Ctrl-C, which a terminal sends to all: it is for this one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
