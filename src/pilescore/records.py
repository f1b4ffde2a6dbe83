"""Datasets on disk that survive being killed: fingerprints, and files that are replaced whole or not at all."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import xarray as xr

from .errors import InputError, SaveError, require
from .model import Model


def fingerprint(parts: Iterable[Any]) -> str:
    """Return a digest of models, arrays, numbers and strings: equal for what is computed alike, in any process."""
    digest = hashlib.sha256()
    for part in parts:
        for piece in _pieces(part):
            digest.update(piece)
            digest.update(b"|")
    return digest.hexdigest()[:32]


class Record:
    """A dataset in a netCDF file or a zarr directory, written as a whole beside the old one, then put in its place."""

    def __init__(self, save: Any) -> None:
        path = Path(save)
        require(
            path.suffix in (".nc", ".zarr"),
            "save",
            str(save),
            "a path that ends in .nc (a file) or .zarr (a directory)",
        )
        require(path.parent.is_dir(), "save", str(save), f"a path in a directory that is there; {path.parent} is not")
        if path.suffix == ".zarr" and importlib.util.find_spec("zarr") is None:
            raise InputError(
                "save: a .zarr directory needs the package zarr: pip install 'pilescore[zarr]'; or use .nc"
            )
        self.path = path
        self.beside = path.with_name(f".{path.name}.new")
        self.before = path.with_name(f".{path.name}.old")
        if self.before.exists() and not path.exists():  # killed between the two renames below
            os.replace(self.before, path)

    def read(self) -> xr.Dataset | None:
        """Return what is on disk, in memory, or None if there is nothing."""
        if not self.path.exists():
            return None
        try:
            opened = xr.open_dataset(self.path, engine="scipy" if self.path.suffix == ".nc" else "zarr")
        except Exception as error:
            raise InputError(
                f"save: {self.path} is there but is not a dataset that pilescore has written ({error}). "
                "Move it away, or choose another name."
            ) from error
        with opened:
            return opened.load()

    def write(self, dataset: xr.Dataset) -> None:
        """Put a dataset in the place of what is on disk; if that fails, what was there is still there."""
        try:
            if self.path.suffix == ".nc":
                dataset.to_netcdf(self.beside, engine="scipy")
                with self.beside.open("rb") as written:
                    os.fsync(written.fileno())
                os.replace(self.beside, self.path)
            else:
                self._remove(self.beside)
                dataset.to_zarr(self.beside, mode="w", zarr_format=2, consolidated=True)
                self._remove(self.before)
                if self.path.exists():
                    os.replace(self.path, self.before)
                os.replace(self.beside, self.path)
                self._remove(self.before)
        except OSError as error:
            self._remove(self.beside)
            raise SaveError(f"could not write {self.path}: {error}", dataset) from error

    @staticmethod
    def _remove(path: Path) -> None:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


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
    for part in jax.tree.leaves((model.kernel, model.gamma, model.rho, model.eta), is_leaf=eqx.is_array):
        yield from _pieces(part if eqx.is_array(part) else getattr(part, "__qualname__", type(part).__name__))
    yield from _pieces(_outline(model.kernel))
    for block, label in zip(model.blocks, model.labels, strict=True):
        yield from _pieces((label, block.role, block.indices))
        for array in (block.points, block.coefficients, block.matrix, block.values, block.weights, block.temperature):
            yield from _pieces(array)
    some = model.blocks[0].points[:5]  # functions inside a kernel are known by what they give
    yield from _pieces(np.array([[float(f"{float(model.kernel(x, y)):.10e}") for y in some] for x in some]))


def _outline(node: Any) -> Any:
    """Return the classes and static numbers of a kernel."""
    if isinstance(node, eqx.Module):
        return (type(node).__name__, *(_outline(getattr(node, name)) for name in node.__dataclass_fields__))
    if isinstance(node, tuple | list):
        return tuple(_outline(each) for each in node)
    return node if isinstance(node, int | float | str | None) else type(node).__name__
