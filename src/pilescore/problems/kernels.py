"""Kernels from the tables [[kernel]], and the bounds of their hyperparameters."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ..errors import InputError, listed, require
from ..kernels import RBF, AnisotropicRBF, Kernel, Matern, Periodic, RationalQuadratic
from ..model import Model, is_of_kernel, is_positive, named_paths, role_of
from ..search import default_bounds
from . import schema
from .observations import ParsingContext
from .reader import Place
from .schema import start_of

MAX_DEPTH = 4
"""The largest number of nested levels of sums and products."""


@dataclasses.dataclass(frozen=True, eq=False)
class KernelCandidate:
    """A kernel at its start, with what the file says about its hyperparameters."""

    name: str
    kernel: Kernel
    numbers: tuple[tuple[Any, np.ndarray], ...]
    """For each leaf of the kernel what the file gives (numbers, bounds or None), and the lengths that default bounds
    are derived from."""


def kernel_candidate(table: schema.KernelTable, place: Place, context: ParsingContext) -> KernelCandidate | None:
    """Return the kernel of a table."""
    made = context.log.attempt(place, _candidate, table, place, context, context.box.names, 0)
    return None if made is None else dataclasses.replace(made, name=table.name or made.name)


def _candidate(
    table: schema.KernelTable, place: Place, context: ParsingContext, names: Sequence[str], depth: int
) -> KernelCandidate:
    require(depth < MAX_DEPTH, "kernel", f"{depth} nested levels of parts", f"at most {MAX_DEPTH - 1}")
    on = list(names) if table.on is None else table.on
    for name in on:
        require(name in names, "on", name, f"coordinates among {listed(list(names))}")
    require(len(set(on)) == len(on), "on", on, "each coordinate once")
    box = context.box
    extent = np.array([box.upper[box.axis(name)] - box.lower[box.axis(name)] for name in on])
    if isinstance(table, schema.CompositeKernelTable):
        made = _composite(table, place, context, on, depth)
    else:
        kernel = _simple(table, extent)
        # The length of a periodic kernel is relative to its period, not to the domain.
        unit = np.ones(1) if isinstance(table, schema.PeriodicKernelTable) else extent
        leaves = jax.tree_util.tree_flatten_with_path(kernel)[0]
        fields = [path[-1].name for path, leaf in leaves if eqx.is_inexact_array(leaf)]
        numbers = [(getattr(table, field), extent if field == "period" else unit) for field in fields]
        name = f"matern-{table.nu:g}" if isinstance(table, schema.MaternTable) else table.type
        made = KernelCandidate(name, kernel, tuple(numbers))
    if list(on) == list(names):
        return made
    axes = [list(names).index(name) for name in on]
    return dataclasses.replace(made, name=f"{made.name}({', '.join(on)})", kernel=made.kernel.on(*axes))


def _composite(
    table: schema.CompositeKernelTable, place: Place, context: ParsingContext, names: Sequence[str], depth: int
) -> KernelCandidate:
    parts = []
    for i, raw in enumerate(table.parts):
        inner = (*place, "parts", i)
        part = schema.validated(schema.KERNELS, raw, inner, context.log)
        made = None if part is None else context.log.attempt(inner, _candidate, part, inner, context, names, depth + 1)
        if made is not None:
            parts.append(made)
    if len(parts) < len(table.parts):
        raise InputError("a part has a mistake, which is reported separately")
    combine, sign = (operator.add, " + ") if table.type == "sum" else (operator.mul, " × ")
    kernel = functools.reduce(combine, [part.kernel for part in parts])
    numbers = tuple(number for part in parts for number in part.numbers)
    return KernelCandidate(sign.join(part.name for part in parts), kernel, numbers)


def _simple(table: schema.KernelTable, extent: np.ndarray) -> Kernel:
    """Return a kernel at its start. The keys of its table have the names of its fields."""
    dimension, usual = len(extent), float(0.3 * np.exp(np.log(extent).mean()))
    if isinstance(table, schema.PeriodicKernelTable):
        return Periodic(start_of(table.period, float(extent.max())), start_of(table.bandwidth, 1.0))
    if isinstance(table, schema.AnisotropicRBFTable):
        require(dimension == 2, "type", table.type, f"two coordinates, not {dimension}")
        diagonal = float(np.arctan2(extent[1], extent[0]))
        return AnisotropicRBF(start_of(table.theta, diagonal), start_of(table.s, 0.7), start_of(table.bandwidth, usual))
    assert isinstance(table, schema.RadialTable)
    given = table.bandwidth
    if isinstance(given, list):
        require(len(given) == dimension, "bandwidth", given, f"{dimension} numbers, one for each coordinate")
        start: Any = np.array(given)
    else:
        start = start_of(given, 0.3 * extent if table.per_axis else usual)
        start = np.broadcast_to(start, (dimension,)) if table.per_axis and dimension > 1 else np.ravel(start)[0]
    if isinstance(table, schema.MaternTable):
        return Matern(table.nu, start)
    if isinstance(table, schema.RationalQuadraticTable):
        return RationalQuadratic(start_of(table.alpha, 1.0), start)
    return RBF(start)


def kernel_bounds(model: Model, candidate: KernelCandidate) -> dict[str, Any]:
    """Return the bounds of the kernel's hyperparameters that are not fixed."""
    paths = {name: places[0] for name, places in named_paths(model).items() if is_of_kernel(places[0])}
    over: dict[str, Any] = {}
    for (name, path), (given, extent) in zip(paths.items(), candidate.numbers, strict=True):
        if isinstance(given, schema.Unknown):
            over[name] = given.bounds
        elif given is None:
            now = np.asarray(model.parameters[name])
            over[name] = default_bounds(role_of(model, path), now, is_positive(model, path), extent)
    return over
