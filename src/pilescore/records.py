"""Tables that survive being killed: fingerprints, and files that are replaced whole or not at all."""

from __future__ import annotations

import abc
import hashlib
import importlib.util
import math
import os
import shutil
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Float

from .errors import InputError, SaveError, require
from .files import write
from .frames import pure_linearised
from .kernels import Kernel
from .model import Model
from .nonlinear import Nonlinear
from .observations import Observation

WRITE_EVERY = 2.0
"""Seconds between writings, at least; a point that takes longer is written as soon as it is there."""

WRITE_SHARE = 0.05
"""The part of the time that is spent writing, at most."""


def fingerprint(parts: Iterable[Any]) -> str:
    """Return a digest of models, arrays, numbers and strings: equal for what is computed alike, in any process."""
    digest = hashlib.sha256()
    for part in parts:
        for piece in _pieces(part):
            digest.update(piece)
            digest.update(b"|")
    return digest.hexdigest()[:32]


def kernel_values(kernel: Kernel, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "2 n"]:
    """Return a kernel at every point and at every pair of neighbours, to ten digits: functions are known by these."""
    first = jnp.asarray(points)
    return ten_digits([jax.vmap(kernel)(first, other) for other in (first, jnp.roll(first, 1, axis=0))])


def function_values(model: Model) -> Iterator[Any]:
    """Give what depends on a model's hyperparameters, to ten digits."""
    yield kernel_values(model.kernel, np.concatenate([block.points for block in model.blocks]))
    yield ten_digits([model.eta, *model.temperatures])
    yield from (_signature(block) for block in model.blocks if block.table is None)


def ten_digits(numbers: Any) -> np.ndarray:
    """Return numbers to ten digits: what is computed has these on any machine."""
    array = np.asarray(numbers, dtype=float)
    return np.array([f"{number:.9e}" for number in array.ravel().tolist()], dtype=float).reshape(array.shape)


class Record:
    """A dataset in a netCDF file or a zarr directory, written as a whole beside the old one, then put in its place."""

    def __init__(self, save: Any) -> None:
        good = isinstance(save, str | os.PathLike) and Path(save).suffix in (".nc", ".zarr")
        require(good, "save", save, "a path that ends in .nc (a file) or .zarr (a directory)")
        path = Path(save).absolute()
        require(path.parent.is_dir(), "save", str(save), f"a path in a directory that is there; {path.parent} is not")
        if path.suffix == ".zarr" and importlib.util.find_spec("zarr") is None:
            raise InputError(
                "save: a .zarr directory needs the package zarr: pip install 'pilescore[zarr]'; or use .nc"
            )
        self.path = path.resolve()  # what a link points to is replaced, not the link
        self.beside = self.path.with_name(f".{self.path.name}.new")
        self.before = self.path.with_name(f".{self.path.name}.old")
        self._restore()

    def read(self) -> xr.Dataset | None:
        """Return what is on disk, in memory, or None if there is nothing."""
        if not self.path.exists():
            return None
        options: dict[str, Any] = {"engine": "scipy"}
        if self.path.suffix == ".zarr":
            options = {"engine": "zarr", "consolidated": True}
        try:
            with xr.open_dataset(self.path, **options) as opened:
                found = opened.load()
            known = "fingerprint" in found.attrs
            why = "it has no fingerprint"
        except Exception as error:
            known, why = False, str(error)
        if not known:
            raise InputError(
                f"save: {self.path} is there but is not a dataset that pilescore has written, or cannot be read "
                f"({why}). Nothing was changed; move it away, or choose another name."
            )
        return found

    def write(self, dataset: xr.Dataset) -> None:
        """Put a dataset in the place of what is on disk; if that fails, what was there is still there."""
        for name in map(str, dataset.dims):
            good = "/" not in name and (name.isascii() or self.path.suffix == ".zarr")
            require(good, "save", name, "names of ASCII letters (in .zarr any letters) without /, as files want them")
        try:
            if self.path.suffix == ".nc":
                write(self.beside, dataset.to_netcdf(engine="scipy"))
            else:
                self._restore()
                self._remove(self.beside)
                for name, content in _zarr_files(dataset).items():
                    (self.beside / name).parent.mkdir(parents=True, exist_ok=True)
                    write(self.beside / name, content)
                self._remove(self.before)
                if self.path.exists():
                    os.replace(self.path, self.before)
            os.replace(self.beside, self.path)
            self._restore()
        except Exception as error:
            self._restore()
            self._remove(self.beside)
            raise SaveError(f"could not write {self.path}: {error}", dataset) from error

    def _restore(self) -> None:
        """Put things right where the writer of a directory was stopped between its two renames, or after them."""
        if self.path.suffix == ".zarr" and self.before.exists():
            if self.path.exists():
                self._remove(self.before)
            else:
                os.replace(self.before, self.path)

    @staticmethod
    def _remove(path: Path) -> None:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


class Kept(abc.ABC):
    """Results that grow and are kept on disk: what is there is taken over, and written now and then."""

    work: str
    """What they are of, in messages."""
    depends: str
    """What that depends on."""

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
        """Return what is there."""

    @abc.abstractmethod
    def take(self, old: xr.Dataset) -> None:
        """Take over what is on disk."""

    def resume(self, record: Record) -> None:
        """Take over what is on disk, and write, to see before any work that it can be written."""
        old = record.read()
        if old is not None:
            if old.attrs["fingerprint"] != self.mark:
                raise InputError(
                    f"save: {record.path} holds a {self.work} of another {self.depends} (fingerprint "
                    f"{old.attrs['fingerprint']}, here {self.mark}). Nothing was changed; choose another name, or "
                    "move it away."
                )
            self.take(old)
        if not self.complete:
            self._write(record)

    def checkpoint(self, record: Record | None) -> None:
        """Write if it is time and no other thread is at it; a failure is a warning as long as the work goes on."""
        if record is None or time.monotonic() < self.next_writing or not self.writing.acquire(blocking=False):
            return
        try:
            self._write(record)
            self.failing = False
        except SaveError as error:
            if not self.failing:
                warnings.warn(f"{error}; the {self.work} goes on and will try again", UserWarning, stacklevel=3)
            self.failing = True
        finally:
            self.writing.release()

    def finish(self, record: Record | None) -> None:
        """Write what is not yet written; a failure here is an error that carries the dataset."""
        if record is not None:
            with self.writing:
                if self.changed:
                    self._write(record)

    def _write(self, record: Record) -> None:
        start = time.monotonic()
        self.changed = False  # before it is read: other threads may add to it from now on
        try:
            record.write(self.dataset())
        except BaseException:
            self.changed = True
            raise
        finally:
            now = time.monotonic()
            self.next_writing = now + max(WRITE_EVERY, (now - start) / WRITE_SHARE)


class Table(Kept):
    """Results on a grid, by name: point after point is filled in."""

    work = "sweep"
    depends = "model, grid, seeds, truth or option"

    def __init__(self, axes: Mapping[str, np.ndarray], names: Sequence[str], blocks: Sequence[str], mark: str) -> None:
        super().__init__(mark)
        self.axes = axes
        self.blocks = np.array(blocks, dtype=object)
        shape = tuple(len(column) for column in axes.values())
        self.arrays = {name: np.full(shape, math.nan) for name in names}
        self.shares = np.full((*shape, len(blocks)), math.nan)
        self.status = np.full(shape, "pending", dtype=object)
        self.reason = np.full(shape, "", dtype=object)

    @property
    def size(self) -> int:
        """The number of points."""
        return self.status.size

    @property
    def done(self) -> int:
        """The number of points that are not pending."""
        return int((self.status != "pending").sum())

    def pending(self, where: tuple[int, ...]) -> bool:
        """Whether a point is still to be scored."""
        return bool(self.status[where] == "pending")

    def put(self, where: tuple[int, ...], outcome: Mapping[str, Any]) -> None:
        """Set one point."""
        for name, array in self.arrays.items():
            array[where] = outcome.get(name, math.nan)
        self.shares[where] = outcome.get("shares", math.nan)
        self.reason[where] = outcome.get("reason", "")
        self.status[where] = outcome["status"]  # last: it says that the rest is there
        self.changed = True

    def dataset(self) -> xr.Dataset:
        """Return what is there."""
        dims = tuple(self.axes)
        variables: dict[str, Any] = {name: (dims, array.copy()) for name, array in self.arrays.items()}
        variables["shares"] = ((*dims, "block"), self.shares.copy())
        variables["status"] = (dims, self.status.copy())
        variables["reason"] = (dims, self.reason.copy())
        return xr.Dataset(variables, {**self.axes, "block": self.blocks}, {"fingerprint": self.mark})

    @property
    def complete(self) -> bool:
        """Whether no point is pending."""
        return self.done == self.size

    def take(self, old: xr.Dataset) -> None:
        """Take over what is on disk."""
        for name in self.arrays:
            self.arrays[name] = old[name].values.astype(float)
        self.shares = old["shares"].values.astype(float)
        self.status, self.reason = (old[name].values.astype(object) for name in ("status", "reason"))


def _zarr_files(dataset: xr.Dataset) -> dict[str, bytes]:
    """Return the files of a zarr directory; zarr itself would still be writing some after another has failed."""
    import zarr

    files: dict[str, Any] = {}
    texts = {name: array.astype(str) for name, array in dataset.variables.items() if array.dtype == object}
    store = zarr.storage.MemoryStore(files)
    dataset.assign(texts).to_zarr(store, mode="w", zarr_format=2, consolidated=True)
    return {name: content.to_bytes() for name, content in files.items()}


def _pieces(part: Any) -> Iterable[bytes]:
    if isinstance(part, Model):
        yield from _of_model(part)
    elif isinstance(part, np.ndarray | jax.Array):
        array = np.asarray(part)
        yield f"{array.dtype}{array.shape}".encode()
        yield np.ascontiguousarray(array).tobytes()
    else:
        yield repr(part).encode()


def _of_model(model: Model) -> Iterable[bytes]:
    yield from _pieces(_outline(model.kernel))
    for part in [*filter(eqx.is_array, jax.tree.leaves(model.kernel)), model.gamma, model.rho, model.eta]:
        yield from _pieces(part)
    for block, label in zip(model.blocks, model.labels, strict=True):
        yield from _pieces((label, block.role, block.indices))
        known = _signature(block) if block.is_nonlinear else block.coefficients
        for array in (block.points, known, block.matrix, block.values, block.weights, block.temperature):
            yield from _pieces(array)
        if block.table is None and not block.is_nonlinear:  # β∂ and β²∂ are alike where β = 1
            yield from _pieces(str(block.operator))
    yield from _pieces(kernel_values(model.kernel, np.concatenate([block.points for block in model.blocks])))


def _signature(block: Observation) -> np.ndarray:
    """Return what an operator is known by: its coefficients, or what a nonlinear one gives at random derivatives."""
    if not isinstance(block.operator, Nonlinear):
        return ten_digits(block.coefficients)
    rng = np.random.default_rng(0)
    tried = [size * rng.standard_normal((len(block.indices), len(block.points))) for size in (0.3, 1.0, 3.0)]
    moved = jax.tree.map(lambda leaf: 1.37 * leaf if eqx.is_inexact_array(leaf) else leaf, block.operator)
    given = [(each, jets) for jets in tried for each in (block.operator, moved)]  # with other parameters, too
    found = [pure_linearised(each, block.points, jnp.asarray(jets)) for each, jets in given]
    return np.stack([np.vstack([ten_digits(value)[None], ten_digits(slopes)]) for value, slopes in found])


def _outline(node: Any) -> Any:
    """Return the classes and static numbers of a kernel."""
    if isinstance(node, eqx.Module):
        return (type(node).__name__, *(_outline(getattr(node, name)) for name in node.__dataclass_fields__))
    if isinstance(node, tuple | list):
        return tuple(_outline(each) for each in node)
    if isinstance(node, dict):
        return tuple((key, _outline(each)) for key, each in node.items())
    if eqx.is_array(node) or isinstance(node, np.ndarray):
        return "array"
    return node if isinstance(node, int | float | str | None) else type(node).__name__
