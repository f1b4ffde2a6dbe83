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
class KernelNumber:
    """What the file says about one hyperparameter of a kernel (a number or a vector)."""

    given: Any
    """A number, a list of numbers, bounds, or None."""
    extent: np.ndarray
    """The lengths that default bounds are derived from."""


@dataclasses.dataclass(frozen=True, eq=False)
class KernelCandidate:
    """A kernel at its start, with what the file says about its hyperparameters, in the order of its leaves."""

    name: str
    kernel: Kernel
    numbers: tuple[KernelNumber, ...]


def kernel_candidate(table: schema.KernelTable, place: Place, context: ParsingContext) -> KernelCandidate | None:
    """Return the kernel of a table."""
    made = context.log.attempt(place, _candidate, table, place, context, context.box.names, 0)
    return None if made is None else dataclasses.replace(made, name=table.name or made.name)


def default_candidate(context: ParsingContext) -> KernelCandidate:
    """Return the kernel for a file without [[kernel]]."""
    made = kernel_candidate(schema.RBFTable(type="rbf"), ("kernel",), context)
    assert made is not None
    return made


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
        kernel, given, title = _simple(table, extent)
        # The length of a periodic kernel is relative to its period, not to the domain.
        unit = np.ones(1) if isinstance(table, schema.PeriodicKernelTable) else extent
        leaves = jax.tree_util.tree_flatten_with_path(kernel)[0]
        fields = [path[-1].name for path, leaf in leaves if eqx.is_inexact_array(leaf)]
        roles = {entry.name: entry.metadata.get("role") for entry in dataclasses.fields(kernel)}
        numbers = [KernelNumber(given[field], extent if roles[field] == "period" else unit) for field in fields]
        made = KernelCandidate(title, kernel, tuple(numbers))
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


def _simple(table: schema.KernelTable, extent: np.ndarray) -> tuple[Kernel, dict[str, Any], str]:
    """Return a kernel at its start, what the file says about each of its fields, and its name."""
    dimension = len(extent)
    if isinstance(table, schema.PeriodicKernelTable):
        period, width = start_of(table.period, float(extent.max())), start_of(table.bandwidth, 1.0)
        return Periodic(period, width), {"period": table.period, "bandwidth": table.bandwidth}, "periodic"
    if isinstance(table, schema.AnisotropicRBFTable):
        require(dimension == 2, "type", table.type, f"two coordinates, not {dimension}")
        theta, s = start_of(table.theta, float(np.arctan2(extent[1], extent[0]))), start_of(table.s, 0.7)
        rotated = AnisotropicRBF(theta, s, start_of(table.bandwidth, float(0.3 * np.exp(np.log(extent).mean()))))
        return rotated, {"theta": table.theta, "s": table.s, "bandwidth": table.bandwidth}, "anisotropic-rbf"
    assert isinstance(table, schema.RadialTable)
    given = table.bandwidth
    if isinstance(given, list):
        good = len(given) == dimension
        require(good, "bandwidth", given, f"{dimension} numbers, one for each coordinate")
        start: Any = np.array(given)
    else:
        start = start_of(given, 0.3 * extent if table.per_axis else float(0.3 * np.exp(np.log(extent).mean())))
        start = np.broadcast_to(start, (dimension,)) if table.per_axis and dimension > 1 else np.ravel(start)[0]
    if isinstance(table, schema.MaternTable):
        return Matern(table.nu, start), {"bandwidth": given}, f"matern-{table.nu:g}"
    if isinstance(table, schema.RationalQuadraticTable):
        kernel = RationalQuadratic(start_of(table.alpha, 1.0), start)
        return kernel, {"alpha": table.alpha, "bandwidth": given}, "rational-quadratic"
    return RBF(start), {"bandwidth": given}, "rbf"


def kernel_bounds(model: Model, numbers: Sequence[KernelNumber]) -> dict[str, Any]:
    """Return the bounds of the kernel's hyperparameters that are not fixed."""
    paths = {name: places[0] for name, places in named_paths(model).items() if is_of_kernel(places[0])}
    over: dict[str, Any] = {}
    for (name, path), number in zip(paths.items(), numbers, strict=True):
        if isinstance(number.given, schema.Unknown):
            over[name] = number.given.bounds
        elif number.given is None:
            now = np.asarray(model.parameters[name])
            over[name] = default_bounds(role_of(model, path), now, is_positive(model, path), number.extent)
    return over
