"""Progress bars for long computations."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm

from ..errors import require


def progress_bar(total: int, what: str, progress: bool | None, initial: int = 0) -> Any:
    """Return a progress bar on standard error; `progress=None` shows it on terminals only."""
    require(progress is None or isinstance(progress, bool), "progress", progress, "True, False or None")
    return tqdm(total=total, desc=what, initial=initial, disable=None if progress is None else not progress)
