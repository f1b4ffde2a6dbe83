"""The kernels of a problem file as models, and what of each is to be chosen within which bounds."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..choosing import default_bounds, free_name
from ..errors import InputError, listed, require
from ..gram import variances
from ..kernels import RBF, AnisotropicRBF, Kernel, Matern, Periodic, RationalQuadratic
from ..layouts import query
from ..model import Model, is_positive, named_paths
from ..observations import Observation
from . import schema
from .blocks import Ground, Piece
from .schema import Place

EXACT = 1e-3
"""Conditions without a strength of their own hold to this part of the size that the unknown has."""

RANGE = (1e-6, 1.0)
"""Bounds of noise variances that are chosen, in units of the size of what is observed."""

SCALES = (1e-3, 1e4)
"""Bounds of the prior variance, in units of the size of the unknown."""

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
            over[name] = _bounds(leaf.given)
        elif leaf.given is None:
            now = np.asarray(model.parameters[name])
            over[name] = default_bounds(leaf.field, now, is_positive(model, known[name][0]), leaf.extent)
    return over


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """Observations with their strengths, temperatures at their starts, and the bounds of those to be chosen."""

    data: tuple[Observation, ...]
    physics: tuple[Observation, ...]
    texts: tuple[str, ...]
    """The values of each block as they are written, data first."""
    temperatures: Mapping[str, float]
    over: Mapping[str, tuple[float, float]]


def setting(pieces: Mapping[str, Sequence[Piece]], given: schema.Temperatures, ground: Ground) -> Setting:
    """Give every block its strength: its own, the one that is shared, or one that suits the size of things.

    The size is that of a prior with bandwidths of 0.3 of the domain and the variance that fits the values observed.
    """
    extent = np.array(ground.box.upper) - np.array(ground.box.lower)
    kernel = RBF(0.3 * extent)
    data, physics = list(pieces["data"]), [p for kind in ("equation", "condition", "constraint") for p in pieces[kind]]
    blocks = [block for piece in (*data, *physics) for block in piece.blocks]
    sizes = {id(block): _prior(kernel, block) for block in blocks}
    ratios = [float(np.mean(b.values**2)) / sizes[id(b)] for b in blocks if np.any(b.values) and sizes[id(b)] > 0]
    eta = max(ratios, default=1.0)
    over: dict[str, tuple[float, float]] = {}
    start = {"gamma": 1.0, "rho": 1.0, "eta": _start(given.eta, eta)}
    if given.eta is None or isinstance(given.eta, schema.Unknown):
        over["eta"] = _bounds(given.eta, (SCALES[0] * eta, SCALES[1] * eta))
    shared = [block for piece in data for block in piece.blocks if block.temperature is None]
    if shared:
        size = 2.0 * float(np.mean(np.concatenate([block.values for block in shared]) ** 2)) or eta
        _shared("gamma", given.gamma, size, start, over)
    if given.rho is not None and any(block.temperature is None for piece in physics for block in piece.blocks):
        _shared("rho", given.rho, 1.0, start, over)
    measured = [(piece, block) for piece in data for block in piece.blocks]
    for i, (piece, _) in enumerate(measured):
        if piece.choice is not None:
            over[f"data.{i}.gamma"] = _bounds(piece.choice)
    held = _strengthened(physics, sizes, eta, over, given.rho is not None)
    taken: set[str] = set()
    named = [_named(block, taken) for block in (*(block for _, block in measured), *held)]
    texts = tuple(text for piece in (*data, *physics) for text in piece.texts)
    return Setting(tuple(named[: len(measured)]), tuple(named[len(measured) :]), texts, start, over)


def _named(block: Observation, taken: set[str]) -> Observation:
    """Return a block with a name that no other has."""
    name = free_name(block.name or block.role, taken)
    taken.add(name)
    return dataclasses.replace(block, name=name)


def _prior(kernel: Kernel, block: Observation) -> float:
    """Return the mean prior variance of what a block observes, or of its operator times the size of a functional."""
    rows = query(block.points, block.indices, lambda part: block.operator.coefficients(part))
    mean = float(np.mean(np.concatenate([variances(kernel, tile, 1.0) for tile in rows.tiles])))
    return mean if block.matrix is None else mean * float(np.mean(np.abs(block.matrix).sum(axis=1) ** 2))


def _strengthened(
    physics: Sequence[Piece],
    sizes: Mapping[int, float],
    eta: float,
    over: dict[str, tuple[float, float]],
    shared: bool,
) -> tuple[Observation, ...]:
    """Return physics in which each block has a strength: equations one that is chosen, conditions a fixed one."""
    held: list[Observation] = []
    for piece in physics:
        for block in piece.blocks:
            name, size = f"physics.{len(held)}.rho", eta * sizes[id(block)]
            if piece.choice is not None:
                over[name] = _bounds(piece.choice)
            elif block.temperature is None and not shared and piece.place[0] == "equation":
                rho = 2.0 * float(np.mean(block.weights)) * size
                over[name] = (RANGE[0] * rho, RANGE[1] * rho)
                block = dataclasses.replace(block, temperature=jnp.asarray(_middle(over[name])))
            elif block.temperature is None and not shared:
                weights = np.full(block.size, 1.0 / (EXACT**2 * size))
                block = dataclasses.replace(block, temperature=jnp.asarray(2.0), weights=weights)
            held.append(block)
    return tuple(held)


def _shared(name: str, given: Any, size: float, start: dict[str, float], over: dict[str, tuple[float, float]]) -> None:
    bounds = (RANGE[0] * size, RANGE[1] * size)
    start[name] = _start(given, _middle(bounds))
    if given is None or isinstance(given, schema.Unknown):
        over[name] = _bounds(given, bounds)


def _middle(bounds: tuple[float, float]) -> float:
    return math.sqrt(bounds[0] * bounds[1])


def _bounds(given: schema.Unknown | None, default: tuple[float, float] = (0.0, 0.0)) -> tuple[float, float]:
    return default if given is None else (given.unknown[0], given.unknown[1])
