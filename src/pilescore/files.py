"""Files that are replaced whole or not at all, and files that can be read."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import FileError, Mistake, SaveError, did_you_mean, listed

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


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


def require_regular(path: Path, file: str, suffixes: Sequence[str]) -> int:
    """Return the size of a file in bytes; raise a `FileError` if there is none, or opening it could block or do harm.

    Parameters
    ----------
    path
        The file.
    file
        What it is called in messages.
    suffixes
        The suffixes of files that could have been meant instead.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise FileError([Mistake(f"no such file{_others(path, suffixes)}", file=file)]) from None
    except (OSError, ValueError) as error:
        raise unreadable(file, error) from error
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        raise FileError([Mistake(f"found {_KINDS.get(kind, 'something else')}; expected a file", file=file)])
    return status.st_size


def unreadable(file: str, error: Exception) -> FileError:
    """Return the error to raise where the system refuses to read a file."""
    reason = getattr(error, "strerror", None) or error
    return FileError([Mistake(f"cannot be read: {reason}", file=file)])


def _others(path: Path, suffixes: Sequence[str]) -> str:
    """Return the end of a message about a file that is not there: which there are."""
    directory = path.parent
    if not directory.is_dir():
        return f"; there is no directory {str(directory)!r}"
    try:
        names = sorted(other.name for other in directory.iterdir() if other.suffix.lower() in suffixes)
    except OSError:
        return ""
    hint = did_you_mean(path.name, names)
    if hint or not names:
        return hint
    shown = [repr(name) for name in names[:5]]
    return f"; its directory has {listed(shown) if len(names) <= 5 else ', '.join(shown) + ', …'}"
