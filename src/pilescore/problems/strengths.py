"""How strongly things hold: a strength for every block, and bounds of those that are to be chosen."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..choosing import free_name
from ..gram import variances
from ..kernels import RBF, Kernel
from ..layouts import query
from ..observations import Observation
from . import schema
from .blocks import Ground, Piece

EXACT = 1e-3
"""Conditions without a strength of their own hold to this part of the size of what they hold."""

RANGE = (1e-6, 1.0)
"""Bounds of noise variances that are chosen, in units of the squared size of what is observed."""

SCALES = (1e-3, 1e4)
"""Bounds of the prior variance, in units of the squared size of the unknown."""

USUAL, SHORT = 0.3, 0.05
"""Bandwidths, in parts of the domain, of the priors by which things are measured."""

LARGEST = 1e100
"""Of values: squares of larger ones, times anything, are not numbers."""


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """Observations with their strengths, temperatures at their starts, and the bounds of those to be chosen."""

    data: tuple[Observation, ...]
    physics: tuple[Observation, ...]
    texts: tuple[str, ...]
    """The values of each block as they are written, data first."""
    temperatures: Mapping[str, float]
    over: Mapping[str, tuple[float, float]]


def setting(pieces: Mapping[str, Sequence[Piece]], given: schema.Temperatures, ground: Ground) -> Setting | None:
    """Give every block its strength: its own, the one that is shared, or one that suits the size of things."""
    data, physics = list(pieces["data"]), [p for kind in ("equation", "condition", "constraint") for p in pieces[kind]]
    sizes = _Sizes([*data, *physics], ground)
    if ground.notes.mistakes:
        return None
    over: dict[str, tuple[float, float]] = {}
    start = {"gamma": 1.0, "rho": 1.0, "eta": _start(given.eta, sizes.prior)}
    if given.eta is None or isinstance(given.eta, schema.Unknown):
        over["eta"] = _bounds(given.eta, (SCALES[0] * sizes.unknown, SCALES[1] * sizes.prior))
    for symbol, parts, temperature in (("gamma", data, given.gamma), ("rho", physics, given.rho)):
        shared = [block for piece in parts for block in piece.blocks if block.temperature is None]
        if shared and (symbol == "gamma" or temperature is not None):
            spreads = [2.0 * _spread(block) or sizes.unknown for block in shared]
            bounds = (RANGE[0] * min(spreads), RANGE[1] * max(spreads))
            start[symbol] = _start(temperature, _middle(bounds))
            if not isinstance(temperature, float):
                over[symbol] = _bounds(temperature, bounds)
        elif temperature is not None:
            ground.notes.warnings.append(
                f"{symbol} in [temperatures] is not used: all that it is for has its own noise"
            )
    measured = [(piece, block) for piece in data for block in piece.blocks]
    for i, (piece, _) in enumerate(measured):
        if piece.choice is not None:
            over[f"data.{i}.gamma"] = _bounds(piece.choice)
    held = _strengthened(physics, sizes, over, given.rho is not None)
    taken: set[str] = set()
    named = [_named(block, taken) for block in (*(block for _, block in measured), *held)]
    texts = tuple(text for piece in (*data, *physics) for text in piece.texts)
    return Setting(tuple(named[: len(measured)]), tuple(named[len(measured) :]), texts, start, over)


class _Sizes:
    """How large things are: squared sizes of the unknown, and of what each block observes.

    The unknown is measured by its own values where there are any. Else it is as large as the sources say: at most so
    under a prior of the usual bandwidth, at least so under one of a short bandwidth.
    """

    def __init__(self, pieces: Sequence[Piece], ground: Ground) -> None:
        extent = np.array(ground.box.upper) - np.array(ground.box.lower)
        blocks = [(piece, block) for piece in pieces for block in piece.blocks]
        self.usual = {id(block): _prior(RBF(USUAL * extent), block) for _, block in blocks}
        for piece, block in blocks:
            largest = float(np.abs(block.values).max())
            if largest > LARGEST:
                ground.notes(piece.place, f"found values as large as {largest:.1e}; expected at most {LARGEST:.0e}")
            if self.usual[id(block)] == 0:
                ground.notes(piece.place, f"the operator {block.operator} is zero at all its points: it says nothing")
        self.unknown = self.prior = 1.0
        known = [block for _, block in blocks if block.values.any() and self.usual[id(block)] > 0]
        own = [_square(block) for block in known if block.matrix is None and str(block.operator) == "Id"]
        if own:
            self.unknown = self.prior = max(own)
        elif known and not ground.notes.mistakes:
            self.prior = max(_square(block) / self.usual[id(block)] for block in known)
            self.unknown = min(_square(block) / _prior(RBF(SHORT * extent), block) for block in known)

    def of(self, block: Observation) -> float:
        """Return the squared size of what a block observes."""
        return max(self.unknown * self.usual[id(block)], _square(block))


def _square(block: Observation) -> float:
    return float(np.mean(np.minimum(np.abs(block.values), LARGEST) ** 2))


def _spread(block: Observation) -> float:
    """Return the variance of values about their mean, or their mean square where they are all the same."""
    return float(np.var(block.values)) or _square(block)


def _prior(kernel: Kernel, block: Observation) -> float:
    """Return the mean prior variance of what a block observes, or of its operator times the size of a functional."""
    rows = query(block.points, block.indices, lambda part: block.operator.coefficients(part))
    mean = float(np.mean(np.concatenate([variances(kernel, tile, 1.0) for tile in rows.tiles])))
    return mean if block.matrix is None else mean * float(np.mean(np.abs(block.matrix).sum(axis=1) ** 2))


def _strengthened(
    physics: Sequence[Piece], sizes: _Sizes, over: dict[str, tuple[float, float]], shared: bool
) -> tuple[Observation, ...]:
    """Return physics in which each block has a strength: equations one that is chosen, conditions a fixed one."""
    held: list[Observation] = []
    for piece in physics:
        for block in piece.blocks:
            name, size = f"physics.{len(held)}.rho", sizes.of(block)
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


def _named(block: Observation, taken: set[str]) -> Observation:
    """Return a block with a name that no other has."""
    name = free_name(block.name or block.role, taken)
    taken.add(name)
    return dataclasses.replace(block, name=name)


def _start(choice: Any, default: float) -> float:
    return float(default if choice is None else choice.value if isinstance(choice, schema.Unknown) else choice)


def _middle(bounds: tuple[float, float]) -> float:
    return math.sqrt(bounds[0] * bounds[1])


def _bounds(given: schema.Unknown | None, default: tuple[float, float] = (0.0, 0.0)) -> tuple[float, float]:
    return default if given is None else (given.unknown[0], given.unknown[1])
