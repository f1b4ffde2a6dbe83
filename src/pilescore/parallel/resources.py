"""Cores, memory and BLAS threads that this process may use, and progress bars for long computations."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from typing import Any

import psutil
from threadpoolctl import ThreadpoolController
from tqdm import tqdm

from ..errors import MemoryLimitError, require

SMALLEST_THREADED = 256
"""Size up to which matrix operations use one BLAS thread.

Threads gain little on such small matrices. On a busy machine each of the many short operations waits for the slowest
thread, and takes many times longer than on one thread.
"""


ALWAYS_FITS_BYTES = 1e8
"""Amount of memory below which the available memory is not checked."""


def require_memory(size: int, extra: float = 0.0, purpose: str = "the covariance") -> None:
    """Raise before allocation if a matrix of `size`² doubles and `extra` bytes does not fit in memory."""
    needed = 8.0 * size**2 + extra
    if needed < ALWAYS_FITS_BYTES:
        return
    available = psutil.virtual_memory().available
    if needed > available:
        fits = int(size * (available / needed) ** 0.5)
        raise MemoryLimitError(
            f"{purpose} of N = {size} observations needs {needed / 1e9:.1f} GB, but only {available / 1e9:.1f} GB are "
            f"available. Use at most about {fits} observations: fewer nodes in a rule, or thinned data."
        )


@functools.cache
def _blas_libraries() -> list[Any]:
    return [library for library in ThreadpoolController().lib_controllers if library.user_api == "blas"]


class _OneThread:
    """Context manager that limits BLAS to one thread while any Python thread is inside."""

    # The number of BLAS threads is global to the process. Counting the users restores it when the last one leaves, in
    # whatever order they leave; restoring it on each exit would leave one thread behind, or many too early.

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.before: list[int] = []

    def __enter__(self) -> None:
        with self.lock:
            if self.users == 0:
                self.before = [library.get_num_threads() for library in _blas_libraries()]
                for library in _blas_libraries():
                    library.set_num_threads(1)
            self.users += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.users -= 1
            if self.users == 0:
                for library, count in zip(_blas_libraries(), self.before, strict=True):
                    library.set_num_threads(count)


ONE_BLAS_THREAD = _OneThread()


def threads(size: int) -> contextlib.AbstractContextManager[None]:
    """Return a context that limits BLAS to one thread for small matrices."""
    return ONE_BLAS_THREAD if size <= SMALLEST_THREADED else contextlib.nullcontext()


def cores() -> int:
    """Return the number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def progress_bar(total: int, what: str, progress: bool | None, initial: int = 0) -> Any:
    """Return a progress bar on standard error; `progress=None` shows it on terminals only."""
    require(progress is None or isinstance(progress, bool), "progress", progress, "True, False or None")
    return tqdm(total=total, desc=what, initial=initial, disable=None if progress is None else not progress)
