"""A directory in which long work keeps its parts, so that it can be stopped at any time and go on later."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import xarray as xr

from .errors import InputError, require
from .files import replace
from .records import Record, fingerprint

PARTS, SETTINGS, RESULTS, SUMMARY, FIGURES, REPORT = (
    "pilescore-parts",
    "settings.json",
    "results.nc",
    "summary.json",
    "figures",
    "report.html",
)
KINDS = ("png", "pdf")
DIGEST = " digest"
"""How the names of settings end that are digests of something larger."""


class Folder:
    """The directory of one piece of work: its parts while it is under way, then its results.

    Work is done within `entered`, where nobody else can be at the same time.

    Parameters
    ----------
    path
        The directory. It need not be there.
    settings
        All that the results depend on, as JSON can hold it. Work that is resumed must have the same.
    resume
        Go on with what is in the directory.
    overwrite
        Replace such work in the directory; all other files there are left alone.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        settings: Mapping[str, Any],
        *,
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        self.path = Path(path).absolute()
        self.settings = json.loads(json.dumps(settings))
        if resume and overwrite:
            raise InputError("--resume goes on with what is there and --overwrite replaces it; give one of the two")
        self._check_place()
        if not resume and not overwrite and self._holds_something():
            raise InputError(
                f"out: {self.path} is not empty. Give another directory, --resume to go on with what is there, or "
                "--overwrite to replace it."
            )
        if resume:
            self._check_same()
        self.overwrite = overwrite

    @property
    def finished(self) -> bool:
        """Whether all is done: results and summary of these settings are there, and no parts."""
        same = _loaded(self.path / SUMMARY, "settings") == self.settings
        return same and (self.path / RESULTS).is_file() and not self._parts.exists()

    @contextlib.contextmanager
    def entered(self) -> Iterator[Folder]:
        """Make the directory, and keep others out of it while work goes on."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"out: {self.path} cannot be made: {error.strerror}") from error
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(f"out: another process is at work in {self.path}") from error
            except OSError as error:
                raise InputError(f"out: {self.path} cannot be locked: {error.strerror}") from error
            if self.overwrite:
                self._clear()
            if not self.finished and not self._parts.exists():
                beginning = self.path / f".{PARTS}"  # parts without settings could not be resumed
                beginning.mkdir(exist_ok=True)
                replace(beginning / SETTINGS, _as_bytes(self.settings))
                beginning.rename(self._parts)
            yield self
        finally:
            os.close(handle)

    def save(self, name: str) -> Path:
        """Return where a part that saves itself is to do so."""
        return self._parts / f"{name}.nc"

    def part(self, name: str, compute: Callable[[], xr.Dataset]) -> xr.Dataset:
        """Return a part: as it is on disk, or computed and put there."""
        record = Record(self.save(name))
        mark = fingerprint([json.dumps(self.settings, sort_keys=True), name])
        found = record.read()
        if found is None or found.attrs["fingerprint"] != mark:
            record.write(compute().assign_attrs(fingerprint=mark))
            found = record.read()
            assert found is not None
        del found.attrs["fingerprint"]
        return found

    def finish(self, results: xr.Dataset, summary: Mapping[str, Any]) -> None:
        """Write the results."""
        Record(self.path / RESULTS).write(results.assign_attrs(fingerprint=fingerprint([json.dumps(self.settings)])))
        replace(self.path / SUMMARY, _as_bytes(summary))

    def read(self) -> tuple[xr.Dataset, dict[str, Any]]:
        """Return the results that were written."""
        results = Record(self.path / RESULTS).read()
        require(results is not None, "out", str(self.path), f"a directory with {RESULTS}")
        assert results is not None
        return results, json.loads((self.path / SUMMARY).read_text(encoding="utf-8"))

    def close(self) -> None:
        """Remove the parts: all that they hold is in the results."""
        shutil.rmtree(self._parts, ignore_errors=True)

    @property
    def _parts(self) -> Path:
        return self.path / PARTS

    def _check_place(self) -> None:
        require(not self.path.exists() or self.path.is_dir(), "out", str(self.path), "a directory, not a file")
        nearest = next(place for place in (self.path, *self.path.parents) if place.exists())
        require(nearest.is_dir(), "out", str(self.path), f"a path in a directory; {nearest} is a file")
        try:
            with tempfile.TemporaryFile(dir=nearest):
                pass
        except OSError as error:
            raise InputError(f"out: {nearest} cannot be written to: {error.strerror}") from error

    def _check_same(self) -> None:
        """Refuse to go on with other work than that which is there."""
        if not self._holds_something():
            return
        found = _loaded(self._parts / SETTINGS)
        if found is None:
            found = _loaded(self.path / SUMMARY, "settings")
        if not isinstance(found, dict):
            raise InputError(f"out: {self.path} holds nothing that could be resumed")
        names = sorted(name for name in {*found, *self.settings} if found.get(name) != self.settings.get(name))
        if names:
            pairs = [
                f"the {name.removesuffix(DIGEST)} has changed since"
                if name.endswith(DIGEST)
                else f"{name} was {found.get(name)!r}, now {self.settings.get(name)!r}"
                for name in names
            ]
            raise InputError(
                f"out: {self.path} holds other work: {'; '.join(pairs)}. Nothing was changed. Give another "
                "directory, or --overwrite to replace it."
            )

    def _holds_something(self) -> bool:
        return self.path.is_dir() and any(each.name != f".{PARTS}" for each in self.path.iterdir())

    def _clear(self) -> None:
        """Remove the work of an earlier run, which is known by its summary."""
        if isinstance(_loaded(self.path / SUMMARY, "settings"), dict):
            names, files = (_as_list(_loaded(self.path / SUMMARY, key)) for key in ("figures", "files"))
            drawn = [f"{FIGURES}/{name}.{kind}" for name in names for kind in KINDS]
            for name in (RESULTS, SUMMARY, REPORT, *drawn, *files):
                path = self.path / str(name).replace("\0", "")
                if path.resolve().is_relative_to(self.path.resolve()) and path.is_file():  # whatever a summary says
                    path.unlink()
        self.close()


def _as_list(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def _as_bytes(content: Any) -> bytes:
    return (json.dumps(_finite(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _finite(content: Any) -> Any:
    """Return the same with null for numbers that JSON does not have."""
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _loaded(path: Path, *keys: str) -> Any:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        for key in keys:
            found = found[key]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found
