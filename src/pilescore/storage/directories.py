"""Working directories of long computations, which can be stopped at any time and resumed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import xarray as xr

from ..errors import InputError, require
from .datasets import DatasetFile
from .files import replace

PARTS, SETTINGS = "pilescore-parts", "settings.json"
RESULTS, SUMMARY, REPORT = "results.nc", "summary.json", "report.html"
FIGURES, FIGURE_SUFFIXES = "figures", ("png", "pdf")
DIGEST = " digest"
"""The suffix of settings whose value is a digest of something larger."""


class Folder:
    """The directory of one computation: its parts while it runs, then its results.

    Work happens within `entered`, which excludes other processes.

    Parameters
    ----------
    path
        The directory, which need not exist.
    settings
        Everything that the results depend on, in JSON types. Resumed work must have the same settings.
    resume
        Continue the work in the directory.
    overwrite
        Replace the work in the directory; other files there are kept.
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
            raise InputError("--resume continues the work in a directory and --overwrite replaces it; give one of them")
        self._check_place()
        if not resume and not overwrite and self._holds_something():
            raise InputError(
                f"out: {self.path} is not empty. Give another directory, --resume to continue the work in it, or "
                "--overwrite to replace it."
            )
        if resume:
            self._check_same()
        self.overwrite = overwrite

    @property
    def finished(self) -> bool:
        """Whether results and summary of these settings exist, and no parts are left."""
        same = self._summary.get("settings") == self.settings
        return same and (self.path / RESULTS).is_file() and not self._parts.exists()

    @contextlib.contextmanager
    def entered(self) -> Iterator[Folder]:
        """Create the directory, and exclude other processes from it while the work runs."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"out: {self.path} cannot be created: {error.strerror}") from error
        try:
            try:
                # The system releases this lock when the process ends, even by `kill -9`.
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(f"out: another process is working in {self.path}") from error
            except OSError as error:
                raise InputError(f"out: {self.path} cannot be locked: {error.strerror}") from error
            if self.overwrite:
                self._clear()
            if not self.finished and not self._parts.exists():
                # Renamed when it is complete: parts without settings could not be resumed.
                beginning = self.path / f".{PARTS}"
                beginning.mkdir(exist_ok=True)
                replace(beginning / SETTINGS, _as_bytes(self.settings))
                beginning.rename(self._parts)
            yield self
        finally:
            os.close(handle)

    def save(self, name: str) -> Path:
        """Return the path for a part that saves itself."""
        return self._parts / f"{name}.nc"

    def part(self, name: str, compute: Callable[[], xr.Dataset]) -> xr.Dataset:
        """Return a part from disk, or compute and save it."""
        file = DatasetFile(self.save(name))
        fingerprint = _digest(self.settings, name)
        dataset = file.read()
        if dataset is None or dataset.attrs["fingerprint"] != fingerprint:
            file.write(compute().assign_attrs(fingerprint=fingerprint))
            dataset = file.read()
            assert dataset is not None
        del dataset.attrs["fingerprint"]
        return dataset

    def finish(self, results: xr.Dataset, summary: Mapping[str, Any]) -> None:
        """Write the results and their summary."""
        DatasetFile(self.path / RESULTS).write(results.assign_attrs(fingerprint=_digest(self.settings)))
        replace(self.path / SUMMARY, _as_bytes(summary))

    def read(self) -> tuple[xr.Dataset, dict[str, Any]]:
        """Read the results and their summary."""
        results = DatasetFile(self.path / RESULTS).read()
        require(results is not None, "out", str(self.path), f"a directory with {RESULTS}")
        assert results is not None
        return results, self._summary

    def close(self) -> None:
        """Remove the parts, whose content is now in the results."""
        shutil.rmtree(self._parts, ignore_errors=True)

    @property
    def _parts(self) -> Path:
        return self.path / PARTS

    @property
    def _summary(self) -> dict[str, Any]:
        return _loaded(self.path / SUMMARY) or {}

    def _check_place(self) -> None:
        require(not self.path.exists() or self.path.is_dir(), "out", str(self.path), "a directory, not a file")
        nearest = next(place for place in (self.path, *self.path.parents) if place.exists())
        require(nearest.is_dir(), "out", str(self.path), f"a path in a directory; {nearest} is a file")
        try:
            # Write for real: permissions do not tell about full or read-only file systems.
            with tempfile.TemporaryFile(dir=nearest):
                pass
        except OSError as error:
            raise InputError(f"out: {nearest} cannot be written to: {error.strerror}") from error

    def _check_same(self) -> None:
        """Raise if the directory holds other work."""
        if not self._holds_something():
            return
        saved = _loaded(self._parts / SETTINGS)
        if saved is None:
            saved = self._summary.get("settings")
        if not isinstance(saved, dict):
            raise InputError(f"out: {self.path} holds no work that can be resumed")
        names = sorted(name for name in {*saved, *self.settings} if saved.get(name) != self.settings.get(name))
        if names:
            pairs = [
                f"the {name.removesuffix(DIGEST)} has changed"
                if name.endswith(DIGEST)
                else f"{name} was {saved.get(name)!r}, now {self.settings.get(name)!r}"
                for name in names
            ]
            raise InputError(
                f"out: {self.path} holds other work: {'; '.join(pairs)}. Nothing was changed. Give another "
                "directory, or --overwrite to replace it."
            )

    def _holds_something(self) -> bool:
        return self.path.is_dir() and any(each.name != f".{PARTS}" for each in self.path.iterdir())

    def _clear(self) -> None:
        """Remove the files of an earlier run, as listed in its summary."""
        summary = self._summary
        if isinstance(summary.get("settings"), dict):
            # The summary may be damaged, or written by a stranger.
            listed = [summary.get(key) for key in ("figures", "files")]
            names, files = (names if isinstance(names, list) else [] for names in listed)
            drawn = [f"{FIGURES}/{name}.{suffix}" for name in names for suffix in FIGURE_SUFFIXES]
            for name in (RESULTS, SUMMARY, REPORT, *drawn, *files):
                path = self.path / str(name).replace("\0", "")
                if path.resolve().is_relative_to(self.path.resolve()) and path.is_file():  # never outside the directory
                    path.unlink()
        self.close()


def _digest(settings: Mapping[str, Any], *names: str) -> str:
    """Return a digest of settings and names, which identifies results."""
    text = json.dumps([settings, *names], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _as_bytes(content: Mapping[str, Any]) -> bytes:
    """Return the content as JSON, with null for NaN and infinity, which JSON does not have."""
    finite = json.loads(json.dumps(content), parse_constant=lambda name: None)
    return (json.dumps(finite, indent=1, ensure_ascii=False) + "\n").encode()


def _loaded(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if the file is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
