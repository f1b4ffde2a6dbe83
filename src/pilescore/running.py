"""Long work: how far it is, and on how many cores."""

from __future__ import annotations

import os
from typing import Any

from tqdm import tqdm

from .errors import require


def progress_bar(total: int, what: str, progress: bool | None, initial: int = 0) -> Any:
    """Return a progress bar on standard error; with `progress=None` it shows on a terminal only."""
    require(progress is None or isinstance(progress, bool), "progress", progress, "True, False or None")
    return tqdm(total=total, desc=what, initial=initial, disable=None if progress is None else not progress)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
