"""Datasets on disk: atomic files with fingerprints, and results that are saved while they grow and can be resumed."""

from __future__ import annotations

import abc
import contextlib
import fcntl
import importlib.util
import math
import os
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from ..errors import InputError, SaveError, require
from .files import remove, temporary_path, write

WRITE_EVERY = 2.0
"""The shortest time between writes, in seconds. A result that takes longer is written immediately."""

WRITE_SHARE = 0.05
"""The largest fraction of the time spent on writing."""


class DatasetFile:
    """A dataset in a netCDF file or a zarr directory that is always replaced as a whole.

    Several threads and processes may write the same path: the last one wins.
    """

    def __init__(self, save: Any) -> None:
        good = isinstance(save, str | os.PathLike) and Path(save).suffix in (".nc", ".zarr")
        require(good, "save", save, "a path that ends in .nc (a file) or .zarr (a directory)")
        path = Path(save).absolute()
        require(path.parent.is_dir(), "save", str(save), f"a path in a directory that exists; {path.parent} does not")
        if path.suffix == ".zarr" and importlib.util.find_spec("zarr") is None:
            raise InputError(
                "save: a .zarr directory needs the package zarr: pip install 'pilescore[zarr]'; or use .nc"
            )
        self.path = path.resolve()  # a link is kept, and its target replaced
        self.is_directory = path.suffix == ".zarr"
        self.old = self.path.with_name(f".{self.path.name}.old")
        temporary_path(self.path)  # removes leftovers of killed writers
        with self._locked():
            self._restore()

    def read(self) -> xr.Dataset | None:
        """Load the dataset into memory; None if there is none."""
        options: dict[str, Any] = {"engine": "zarr", "consolidated": True} if self.is_directory else {"engine": "scipy"}
        with self._locked():
            if not self.path.exists():
                return None
            try:
                with xr.open_dataset(self.path, **options) as opened:
                    dataset = opened.load()
                why = "" if "fingerprint" in dataset.attrs else "it has no fingerprint"
            except Exception as error:
                why = str(error) or type(error).__name__
        if why:
            raise InputError(
                f"save: {self.path} exists but is not a dataset written by pilescore, or cannot be read ({why}). "
                "Nothing was changed; move it away, or choose another name."
            )
        return dataset

    def write(self, dataset: xr.Dataset) -> None:
        """Replace the dataset on disk; after a failure, the old one is still there."""
        for name in map(str, dataset.dims):
            good = "/" not in name and (name.isascii() or self.is_directory)
            require(good, "save", name, "names of ASCII letters (in .zarr any letters) without /, as files require")
        temporary = temporary_path(self.path)
        try:
            if self.is_directory:
                for name, content in _zarr_files(dataset).items():
                    (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                    write(temporary / name, content)
                with self._locked():
                    self._exchange(temporary)
            else:
                write(temporary, dataset.to_netcdf(engine="scipy"))
                os.replace(temporary, self.path)
        except Exception as error:
            reason = getattr(error, "strerror", None) or error  # without the name of the temporary file
            raise SaveError(f"could not write {self.path}: {reason}", dataset) from error
        finally:
            remove(temporary)

    def _exchange(self, temporary: Path) -> None:
        """Put a new directory in place, by two renames: directories cannot be exchanged atomically."""
        try:
            self._restore()
            if self.path.exists():
                os.replace(self.path, self.old)
            os.replace(temporary, self.path)
        finally:
            self._restore()

    def _restore(self) -> None:
        """Repair a directory whose writer was stopped between the two renames, or after them."""
        if self.is_directory and self.old.exists():
            if self.path.exists():
                remove(self.old)
            else:
                os.replace(self.old, self.path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude other threads and processes, which must not see or repair a directory between the two renames."""
        if not self.is_directory:  # a file is replaced by one atomic rename
            yield
            return
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # some network file systems cannot lock
                handle = os.open(self.path.parent, os.O_RDONLY)
                stack.callback(os.close, handle)
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield


class ResumableResults(abc.ABC):
    """Results that grow and are saved regularly. An interrupted computation resumes from the saved ones."""

    work: str
    """The name of the computation in messages."""
    depends: str
    """What the computation depends on, in messages."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.next_writing = 0.0
        self.changed = False
        self.failing = False
        self.writing = threading.RLock()

    @property
    @abc.abstractmethod
    def complete(self) -> bool:
        """Whether nothing is left to compute."""

    @abc.abstractmethod
    def dataset(self) -> xr.Dataset:
        """Return the results so far."""

    @abc.abstractmethod
    def take(self, old: xr.Dataset) -> None:
        """Adopt the results of an earlier run."""

    def resume(self, record: DatasetFile) -> None:
        """Adopt saved results, and write once: a path that cannot be written fails before any work."""
        old = record.read()
        if old is not None:
            if old.attrs["fingerprint"] != self.mark:
                raise InputError(
                    f"save: {record.path} holds a {self.work} for another {self.depends} (fingerprint "
                    f"{old.attrs['fingerprint']}, here {self.mark}). Nothing was changed; choose another name, or "
                    "move it away."
                )
            self.take(old)
        if not self.complete:
            self._write(record)

    def checkpoint(self, record: DatasetFile | None) -> None:
        """Write if it is time and no other thread is writing; a failure is only a warning while the work continues."""
        if record is None or time.monotonic() < self.next_writing or not self.writing.acquire(blocking=False):
            return
        try:
            self._write(record)
            self.failing = False
        except SaveError as error:
            if not self.failing:
                warnings.warn(f"{error}; the {self.work} continues and will try again", UserWarning, stacklevel=3)
            self.failing = True
        finally:
            self.writing.release()

    def finish(self, record: DatasetFile | None) -> None:
        """Write unsaved results; a failure raises an error that carries the dataset."""
        if record is not None:
            with self.writing:
                if self.changed:
                    self._write(record)

    def _write(self, record: DatasetFile) -> None:
        start = time.monotonic()
        self.changed = False  # before the results are copied: other threads may add to them from now on
        try:
            record.write(self.dataset())
        except BaseException:
            self.changed = True
            raise
        finally:
            now = time.monotonic()
            self.next_writing = now + max(WRITE_EVERY, (now - start) / WRITE_SHARE)


class SweepTable(ResumableResults):
    """Results of a sweep on a grid of hyperparameters, filled in point by point."""

    work = "sweep"
    depends = "model, grid, seeds, truth or option"

    def __init__(self, axes: Mapping[str, np.ndarray], names: Sequence[str], blocks: Sequence[str], mark: str) -> None:
        super().__init__(mark)
        self.axes = axes
        self.blocks = np.array(blocks, dtype=object)
        shape = tuple(len(column) for column in axes.values())
        self.arrays = {name: np.full(shape, math.nan) for name in names}
        self.arrays["shares"] = np.full((*shape, len(blocks)), math.nan)
        self.arrays["status"] = np.full(shape, "pending", dtype=object)
        self.arrays["reason"] = np.full(shape, "", dtype=object)

    @property
    def size(self) -> int:
        """The number of points."""
        return self.arrays["status"].size

    @property
    def done(self) -> int:
        """The number of points that are not pending."""
        return int((self.arrays["status"] != "pending").sum())

    def pending(self, where: tuple[int, ...]) -> bool:
        """Whether a point has not been scored yet."""
        return bool(self.arrays["status"][where] == "pending")

    def put(self, where: tuple[int, ...], outcome: Mapping[str, Any]) -> None:
        """Store the outcome of one point."""
        for name in self.arrays.keys() - {"status"}:
            self.arrays[name][where] = outcome.get(name, "" if name == "reason" else math.nan)
        # The status comes last: after an interrupt in between, the point is still pending.
        self.arrays["status"][where] = outcome["status"]
        self.changed = True

    def dataset(self) -> xr.Dataset:
        """Return the results so far."""
        dims = {"shares": (*self.axes, "block")}
        variables = {name: (dims.get(name, tuple(self.axes)), array.copy()) for name, array in self.arrays.items()}
        return xr.Dataset(variables, {**self.axes, "block": self.blocks}, {"fingerprint": self.mark})

    @property
    def complete(self) -> bool:
        """Whether no point is pending."""
        return self.done == self.size

    def take(self, old: xr.Dataset) -> None:
        """Adopt the results of an earlier run."""
        self.arrays = {name: old[name].values.astype(array.dtype) for name, array in self.arrays.items()}


def _zarr_files(dataset: xr.Dataset) -> dict[str, bytes]:
    """Return the files of a zarr directory: zarr itself would go on writing some after the failure of another."""
    import zarr

    files: dict[str, Any] = {}
    texts = {name: array.astype(str) for name, array in dataset.variables.items() if array.dtype == object}
    store = zarr.storage.MemoryStore(files)
    dataset.assign(texts).to_zarr(store, mode="w", zarr_format=2, consolidated=True)
    return {name: content.to_bytes() for name, content in files.items()}
