"""How strongly things hold: a strength for every block, and bounds of those that are to be chosen."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..choosing import free_name
from ..gram import variances
from ..kernels import RBF, Kernel
from ..layouts import query
from ..nonlinear import Nonlinear
from ..observations import Observation
from ..operators import Operator
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

DRAWS, MEDIAN = 61, 0.4549
"""Draws by which a nonlinear operator is measured, at as many points at most; the median square of a normal number."""

SEARCHED = 40.0
"""Decimal logarithms, either way, among which the size of the unknown is sought."""


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
        self.usual = {id(block): _measure(RBF(USUAL * extent), block) for _, block in blocks}
        for piece, block in blocks:
            largest = float(np.abs(block.values).max())
            if largest > LARGEST:
                ground.notes(piece.place, f"found values as large as {largest:.1e}; expected at most {LARGEST:.0e}")
            size = self.usual[id(block)].size(1.0)
            if not size > 0:
                what = "zero" if size == 0 else "not a number"
                ground.notes(piece.place, f"the operator {block.operator} is {what} at all its points: it says nothing")
        self.unknown = self.prior = 1.0
        known = [block for _, block in blocks if self.usual[id(block)].target > 0]
        own = [_square(block) for block in known if block.matrix is None and str(block.operator) == "Id"]
        if own:
            self.unknown = self.prior = max(own)
        elif known and not ground.notes.mistakes:
            self.prior = max(self.usual[id(block)].scale() for block in known)
            self.unknown = min(_measure(RBF(SHORT * extent), block).scale() for block in known)

    def of(self, block: Observation) -> float:
        """Return the squared size of what a block observes."""
        return max(self.usual[id(block)].size(self.unknown), _square(block))


@dataclasses.dataclass(frozen=True, eq=False)
class _Linear:
    """How large a linear operator is, by its prior variance."""

    variance: float
    target: float
    """The squared size of what it is to be equal to."""

    def size(self, scale: float) -> float:
        """Return the squared size of what is observed where that of the unknown is `scale`."""
        return scale * self.variance

    def scale(self) -> float:
        """Return the squared size of the unknown at which what is observed is as large as the target."""
        return self.target / self.variance if self.variance > 0 else 1.0


class _Drawn:
    """How large a nonlinear operator is: its median square over draws of its arguments, where it is defined.

    What it is where the unknown is zero counts with what it is to be equal to.
    """

    def __init__(self, kernel: Kernel, block: Observation, operator: Nonlinear) -> None:
        some = np.unique(np.linspace(0, block.size - 1, min(block.size, DRAWS)).astype(int))
        points = block.points[some]
        spread = np.sqrt([_variances(kernel, points, each) for each in operator.of])
        self._drawn = spread[None] * np.random.default_rng(0).standard_normal((DRAWS, *spread.shape))
        self._at = jax.jit(jax.vmap(jax.vmap(operator.at, (0, 1)), (None, 0)))
        self._points = points
        nothing = self._values(0.0)[0]
        self._nothing = np.where(np.isfinite(nothing), nothing, 0.0)
        self.target = float(np.mean(np.minimum(np.abs(block.values[some] - self._nothing), LARGEST) ** 2))

    def size(self, scale: float) -> float:
        """Return the squared size of what is observed where that of the unknown is `scale`."""
        return self._moved(scale) + float(np.mean(self._nothing**2))

    def scale(self) -> float:
        """Return the squared size of the unknown at which what is observed is as large as the target, or one."""
        low, high = -SEARCHED, SEARCHED
        for _ in range(40):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self._moved(10.0**middle) > self.target else (middle, high)
        return float(10.0**middle) if -0.9 * SEARCHED < middle < 0.9 * SEARCHED else 1.0

    def _moved(self, scale: float) -> float:
        """Return the squared size of what changes with the unknown; NaN where it is defined nowhere."""
        values = self._values(scale)
        defined = ~np.isnan(values)
        with np.errstate(over="ignore"):
            squares = np.sort(np.where(defined, values - self._nothing, np.inf) ** 2, axis=0)
        count = defined.sum(axis=0)
        found = np.take_along_axis(squares, count[None] // 2, axis=0)[0][count > 0]
        return float(np.mean(np.minimum(found / MEDIAN, LARGEST))) if found.size else math.nan

    def _values(self, scale: float) -> Float[np.ndarray, "draws m"]:
        return np.asarray(self._at(jnp.asarray(self._points), jnp.asarray(math.sqrt(scale) * self._drawn)))


def _measure(kernel: Kernel, block: Observation) -> _Linear | _Drawn:
    if isinstance(block.operator, Nonlinear):
        return _Drawn(kernel, block, block.operator)
    mean = float(np.mean(_variances(kernel, block.points, block.operator)))
    factor = 1.0 if block.matrix is None else float(np.mean(np.abs(block.matrix).sum(axis=1) ** 2))
    return _Linear(mean * factor, _square(block))


def _variances(kernel: Kernel, points: Float[np.ndarray, "n d"], operator: Operator) -> Float[np.ndarray, " n"]:
    """Return the prior variances of an operator of the unknown."""
    rows = query(points, operator.indices(points.shape[1]), operator.coefficients)
    return np.concatenate([variances(kernel, tile, 1.0) for tile in rows.tiles])


def _square(block: Observation) -> float:
    return float(np.mean(np.minimum(np.abs(block.values), LARGEST) ** 2))


def _spread(block: Observation) -> float:
    """Return the variance of values about their mean, or their mean square where they are all the same."""
    return float(np.var(block.values)) or _square(block)


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
