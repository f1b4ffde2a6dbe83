"""Atomic replacement of files, and checks before reading one."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import stat
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from ..errors import FileError, Mistake, SaveError, did_you_mean, listed

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def write(path: Path, content: Any) -> None:
    """Write bytes to a file and flush them to disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, content: Any) -> None:
    """Replace a file atomically: after a failure, the old content is still there."""
    temporary = temporary_path(path)
    try:
        write(temporary, content)
        os.replace(temporary, path)
    except OSError as error:
        raise SaveError(f"could not write {path}: {error.strerror or error}") from error
    finally:
        remove(temporary)


def temporary_path(path: Path) -> Path:
    """Return a new path in the same directory for a writer of `path`, and remove those of writers that have died."""
    # Each writer needs a path of its own: two writers of one temporary file would publish each other's half-written
    # content, or rename it away from each other. The path names host and process, so that leftovers of a killed process
    # are told from files that somebody is still writing. `tempfile` is not used: it restricts permissions to the owner.
    prefix = f".{path.name}.{platform.node()}-"
    with contextlib.suppress(OSError):
        for entry in path.parent.iterdir():
            match = re.fullmatch(r"(\d+)-[0-9a-f]{12}\.new", entry.name.removeprefix(prefix))
            if entry.name.startswith(prefix) and match and not psutil.pid_exists(int(match[1])):
                remove(entry)
    return path.with_name(f"{prefix}{os.getpid()}-{uuid.uuid4().hex[:12]}.new")


def remove(path: Path) -> None:
    """Remove a file or a directory, if it exists."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def require_regular(path: Path, file: str, suffixes: Sequence[str]) -> int:
    """Return the size of a file in bytes; raise a `FileError` if it is missing or not a regular file.

    Opening a pipe or a device could block or have side effects.

    Parameters
    ----------
    path
        The file.
    file
        Name of the file in messages.
    suffixes
        Suffixes of files to suggest instead.
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
    """Return the error for a file that the system refuses to read."""
    reason = getattr(error, "strerror", None) or error
    return FileError([Mistake(f"cannot be read: {reason}", file=file)])


def _others(path: Path, suffixes: Sequence[str]) -> str:
    """Return the end of a message about a missing file: which similar files exist."""
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
