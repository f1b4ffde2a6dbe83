"""The kernels of a problem file as models, and what of each is to be chosen within which bounds."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ..choosing import default_bounds
from ..errors import InputError, listed, require
from ..kernels import RBF, AnisotropicRBF, Kernel, Matern, Periodic, RationalQuadratic
from ..model import Model, is_positive, named_paths
from . import schema
from .blocks import Ground
from .schema import Place

DEEPEST = 4
"""Levels of sums and products within one another."""


@dataclasses.dataclass(frozen=True, eq=False)
class Leaf:
    """A number of a kernel, or a vector of them."""

    field: str
    given: Any
    """What the file says of it: numbers, bounds, or nothing."""
    extent: np.ndarray
    """The lengths by which it is to be measured where the file says nothing."""


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A kernel, and what the file says of its numbers, in the order of its leaves."""

    name: str
    kernel: Kernel
    leaves: tuple[Leaf, ...]


def candidate(table: schema.Kernel, place: Place, ground: Ground) -> Candidate | None:
    """Return the kernel of a table."""
    made = ground.notes.attempt(place, _made, table, place, ground, ground.box.names, 0)
    return None if made is None else dataclasses.replace(made, name=table.name or made.name)


def default_candidate(ground: Ground) -> Candidate:
    """Return what is used where the file names no kernel."""
    found = candidate(schema.RBF(type="rbf"), ("kernel",), ground)
    assert found is not None
    return found


def _made(table: schema.Kernel, place: Place, ground: Ground, names: Sequence[str], depth: int) -> Candidate:
    require(depth < DEEPEST, "kernel", f"parts within parts {depth} times", f"at most {DEEPEST - 1} times")
    on = list(names) if table.on is None else table.on
    for name in on:
        require(name in names, "on", name, f"coordinates among {listed(list(names))}")
    require(len(set(on)) == len(on), "on", on, "each coordinate once")
    box = ground.box
    extent = np.array([box.upper[box.axis(name)] - box.lower[box.axis(name)] for name in on])
    if isinstance(table, schema.Composite):
        found = _composite(table, place, ground, on, depth)
    else:
        kernel, given, text = _simple(table, extent)
        measured = np.ones(1) if isinstance(table, schema.Periodic) else extent
        fields = [path[-1].name for path, _ in _arrays(kernel)]
        leaves = [Leaf(field, given[field], extent if field == "period" else measured) for field in fields]
        found = Candidate(text, kernel, tuple(leaves))
    if list(on) == list(names):
        return found
    return dataclasses.replace(
        found, name=f"{found.name}({', '.join(on)})", kernel=found.kernel.on(*[list(names).index(name) for name in on])
    )


def _composite(table: schema.Composite, place: Place, ground: Ground, names: Sequence[str], depth: int) -> Candidate:
    parts = []
    for i, raw in enumerate(table.parts):
        inner = (*place, "parts", i)
        part = schema.by_type(schema.KERNELS, raw, inner, ground.notes)
        made = None if part is None else ground.notes.attempt(inner, _made, part, inner, ground, names, depth + 1)
        if made is not None:
            parts.append(made)
    if len(parts) < len(table.parts):
        raise InputError("a part of it cannot be used, as said there")
    combine, sign = (operator.add, " + ") if table.type == "sum" else (operator.mul, " × ")
    kernel = functools.reduce(combine, [part.kernel for part in parts])
    return Candidate(sign.join(part.name for part in parts), kernel, tuple(leaf for p in parts for leaf in p.leaves))


def _simple(table: schema.Kernel, extent: np.ndarray) -> tuple[Kernel, dict[str, Any], str]:
    """Return a kernel at its start, what the file says of each field, and a name."""
    dimension = len(extent)
    if isinstance(table, schema.Periodic):
        period, width = _start(table.period, float(extent.max())), _start(table.bandwidth, 1.0)
        return Periodic(period, width), {"period": table.period, "bandwidth": table.bandwidth}, "periodic"
    if isinstance(table, schema.AnisotropicRBF):
        require(dimension == 2, "type", table.type, f"two coordinates, not {dimension}")
        theta, s = _start(table.theta, float(np.arctan2(extent[1], extent[0]))), _start(table.s, 0.7)
        turned = AnisotropicRBF(theta, s, _start(table.bandwidth, float(0.3 * np.exp(np.log(extent).mean()))))
        return turned, {"theta": table.theta, "s": table.s, "bandwidth": table.bandwidth}, "anisotropic-rbf"
    assert isinstance(table, schema.Radial)
    given = table.bandwidth
    if isinstance(given, list):
        good = len(given) == dimension
        require(good, "bandwidth", given, f"{dimension} numbers, one for each coordinate")
        start: Any = np.array(given)
    else:
        start = _start(given, 0.3 * extent if table.per_axis else float(0.3 * np.exp(np.log(extent).mean())))
        start = np.broadcast_to(start, (dimension,)) if table.per_axis and dimension > 1 else np.ravel(start)[0]
    if isinstance(table, schema.Matern):
        return Matern(table.nu, start), {"bandwidth": given}, f"matern-{table.nu:g}"
    if isinstance(table, schema.RationalQuadratic):
        kernel = RationalQuadratic(_start(table.alpha, 1.0), start)
        return kernel, {"alpha": table.alpha, "bandwidth": given}, "rational-quadratic"
    return RBF(start), {"bandwidth": given}, "rbf"


def _start(choice: Any, default: Any) -> Any:
    return default if choice is None else choice.value if isinstance(choice, schema.Unknown) else choice


def _arrays(kernel: Kernel) -> list[tuple[Any, Any]]:
    found = jax.tree_util.tree_flatten_with_path(kernel)[0]
    return [(path, leaf) for path, leaf in found if eqx.is_inexact_array(leaf)]


def kernel_bounds(model: Model, leaves: Sequence[Leaf]) -> dict[str, Any]:
    """Return the bounds of what is to be chosen of a model's kernel."""
    known = named_paths(model)
    names = [name for name in model.parameters if name.startswith("kernel.")]
    over: dict[str, Any] = {}
    for name, leaf in zip(names, leaves, strict=True):
        if isinstance(leaf.given, schema.Unknown):
            over[name] = (leaf.given.unknown[0], leaf.given.unknown[1])
        elif leaf.given is None:
            now = np.asarray(model.parameters[name])
            over[name] = default_bounds(leaf.field, now, is_positive(model, known[name][0]), leaf.extent)
    return over
