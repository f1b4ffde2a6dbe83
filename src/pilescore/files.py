"""Files that are replaced whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .errors import SaveError


def write(path: Path, content: Any) -> None:
    """Write bytes to a file and see that they are on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, content: Any) -> None:
    """Put bytes in the place of a file; if that fails, what was there is still there."""
    beside = path.with_name(f".{path.name}.new")
    try:
        write(beside, content)
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise SaveError(f"could not write {path}: {error.strerror or error}") from error
