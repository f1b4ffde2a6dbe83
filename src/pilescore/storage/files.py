"""Atomic replacement of files, and checks before reading one."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import stat
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

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
        # Without this, a power failure after the file is renamed could leave an empty file.
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
    # Each writer needs its own path: two writers of one temporary file would publish each other's half-written content,
    # or rename it away from each other. The path names host and process, which distinguishes leftovers of a killed
    # process from files still being written. `tempfile` is not used: it restricts permissions to the owner.
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


@contextlib.contextmanager
def opened(path: Path, file: str, suffixes: Sequence[str]) -> Iterator[BinaryIO]:
    """Open a file for reading; raise a `FileError` if it is missing, not a regular file or unreadable.

    Parameters
    ----------
    path
        The file.
    file
        The name of the file in messages.
    suffixes
        The suffixes of files to suggest instead.
    """
    if "\0" in str(path):
        raise file_error(file, "cannot be read: embedded null byte")
    try:
        # Check the kind first: opening a pipe or a device could block or have side effects.
        kind = stat.S_IFMT(path.stat().st_mode)
        if kind != stat.S_IFREG:
            raise file_error(file, f"found {_KINDS.get(kind, 'something else')}; expected a file")
        with path.open("rb") as stream:
            yield stream
    except (FileNotFoundError, NotADirectoryError):
        raise file_error(file, f"no such file{_others(path, suffixes)}") from None
    except OSError as error:
        raise file_error(file, f"cannot be read: {error.strerror or error}") from error


def file_error(file: str, text: str, line: int | None = None) -> FileError:
    """Return the error for one mistake in a file."""
    return FileError([Mistake(text, line=line, file=file)])


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
