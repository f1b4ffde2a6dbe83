"""The noise of every block: given, shared, or derived from the size of what the block observes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..covariance import MAX_VALUE, mean_square, operator_size
from ..kernels import RBF
from ..model import TEMPERATURES, Observation, Prior
from ..search import free_name
from . import schema
from .observations import ParsedTable, ParsingContext

LARGEST_NOISE = 1.0
"""The default upper bound of noise variances, in units of the squared size of what is observed."""

START_NOISE = 1e-3
"""The noise variance at the start of a search, in the same units."""

LEAST_NOISE, LEAST_ROUNDING = 1e-7, 0.1
"""The default lower bound of noise deviations: the first as a fraction of the size of the values, or the second as a
fraction of the deviation that rounding the values to their last digit adds, whichever is larger."""

ETA_RANGE = (1e-3, 1e6)
"""Default bounds of the prior variance, in units of the squared size of the unknown. Under a kernel that is long
compared with the solution, even a plain solution is many standard deviations away from zero."""

USUAL_BANDWIDTH, SHORT_BANDWIDTH = 0.3, 0.05
"""Bandwidths, as fractions of the domain, of the priors that sizes are derived from."""


@dataclasses.dataclass(frozen=True, eq=False)
class NoiseModel:
    """Observations with their noise, temperatures at their starts, and the bounds of temperatures to choose."""

    data: tuple[Observation, ...]
    physics: tuple[Observation, ...]
    texts: tuple[str, ...]
    """The observed values of each block as text, data first."""
    temperatures: Mapping[str, float]
    over: Mapping[str, tuple[float, float]]
    priors: Mapping[str, Prior]
    """What the file says about temperatures to choose."""


def own_temperature(role: str, index: int) -> str:
    """Return the name of the own temperature of a block: `data.0.gamma` or `physics.1.rho`."""
    return f"{role}.{index}.{TEMPERATURES[role]}"


def noise_model(
    parsed: Mapping[str, Sequence[ParsedTable]],
    given: schema.TemperaturesSection,
    context: ParsingContext,
    profiled: bool = False,
) -> NoiseModel | None:
    """Give every block its noise: its own, the shared one, or a default that suits the size of what it observes.

    Parameters
    ----------
    parsed
        The tables of the file by kind.
    given
        The section about shared temperatures.
    context
        The domain, and the log of mistakes.
    profiled
        Whether the scale η is found in closed form and needs no bounds.
    """
    data = list(parsed["data"])
    physics = [table for kind in ("equation", "condition", "constraint") for table in parsed[kind]]
    sizes = _Sizes([*data, *physics], context)
    if context.log.mistakes:
        return None
    over: dict[str, tuple[float, float]] = {}
    start = {"gamma": 1.0, "eta": float(schema.start_of(given.eta, sizes.prior))}
    if not profiled and not isinstance(given.eta, float):
        default = (ETA_RANGE[0] * sizes.unknown, ETA_RANGE[1] * sizes.prior)
        over["eta"] = default if given.eta is None else given.eta.bounds
    for symbol, tables, temperature in (("gamma", data, given.gamma), ("rho", physics, given.rho)):
        shared = [block for table in tables for block in table.blocks if block.temperature is None]
        if shared and (symbol == "gamma" or temperature is not None):
            # The noise variance is half of the temperature, hence the factor 2.
            spreads = [_spread(block) or sizes.unknown for block in shared]
            least = min(_least_variance(block, spread) for block, spread in zip(shared, spreads, strict=True))
            bounds = (2.0 * least, 2.0 * LARGEST_NOISE * max(spreads))
            usual = max(2.0 * START_NOISE * min(spreads), bounds[0])
            start[symbol] = float(schema.start_of(temperature, usual))
            if not isinstance(temperature, float):
                over[symbol] = bounds if temperature is None else temperature.bounds
        elif temperature is not None:
            context.log.warnings.append(
                f"{symbol} in [temperatures] is not used: everything it applies to has its own noise"
            )
    shares = {"gamma": given.gamma, "rho": given.rho, "eta": given.eta}
    priors = {name: prior for name, each in shares.items() if name in over and (prior := schema.prior_of(each))}
    measured = _with_noise("data", data, sizes, over, priors)
    imposed = _with_noise("physics", physics, sizes, over, priors)
    named: dict[str, Observation] = {}
    for block in (*measured, *imposed):
        name = free_name(block.name or block.role, {*named})
        named[name] = dataclasses.replace(block, name=name)
    blocks, count = tuple(named.values()), len(measured)
    texts = tuple(text for table in (*data, *physics) for text in table.texts)
    return NoiseModel(blocks[:count], blocks[count:], texts, start, over, priors)


class _Sizes:
    """The squared size of the unknown.

    The size of the unknown is the size of its own observed values, if there are any. Otherwise the sources imply it: an
    upper estimate by a prior with the usual bandwidth, a lower estimate by a prior with a short bandwidth.
    """

    def __init__(self, tables: Sequence[ParsedTable], context: ParsingContext) -> None:
        extent = np.array(context.box.upper) - np.array(context.box.lower)
        blocks = [(table, block) for table in tables for block in table.blocks]
        self.usual = {id(block): operator_size(RBF(USUAL_BANDWIDTH * extent), block) for _, block in blocks}
        for table, block in blocks:
            largest = float(np.abs(block.values).max())
            if largest > MAX_VALUE:
                context.log(table.place, f"found values as large as {largest:.1e}; expected at most {MAX_VALUE:.0e}")
            size = self.usual[id(block)].size(1.0)
            if not size > 0:
                what = "zero" if size == 0 else "not a number"
                text = f"the operator {block.operator} is {what} at all its points, and so has no effect"
                context.log(table.place, text)
        self.unknown = self.prior = 1.0
        nonzero = [block for _, block in blocks if self.usual[id(block)].target > 0]
        direct = [mean_square(block) for block in nonzero if not block.is_functional and str(block.operator) == "Id"]
        if direct:
            self.unknown = self.prior = max(direct)
        elif nonzero and not context.log.mistakes:
            self.prior = max(self.usual[id(block)].scale() for block in nonzero)
            self.unknown = min(operator_size(RBF(SHORT_BANDWIDTH * extent), block).scale() for block in nonzero)

    def of(self, block: Observation) -> float:
        """Return the squared size of what a block observes."""
        return max(self.usual[id(block)].size(self.unknown), mean_square(block))


def _spread(block: Observation) -> float:
    """Return the variance of the values, or their mean square if they are all equal."""
    return float(np.var(block.values)) or mean_square(block)


def _least_variance(block: Observation, spread: float) -> float:
    """Return the least noise variance that the values of a block can have."""
    size = math.sqrt(max(spread, mean_square(block)))
    return max(LEAST_NOISE * size, LEAST_ROUNDING * last_digit(block.values) / math.sqrt(12.0)) ** 2


def last_digit(values: Float[np.ndarray, " n"]) -> float:
    """Return the unit of the last decimal digit of values, such as 0.01 for 1.25 and 3.5; zero if there is none."""
    for digits in range(-6, 13):
        scaled = values * 10.0**digits
        # A decimal number differs from the nearest double by a relative 1e-16, and a product by a few times that.
        if np.all(np.abs(scaled - np.round(scaled)) <= 1e-14 * np.abs(scaled)):
            return 10.0**-digits
    return 0.0


def _with_noise(
    role: str,
    tables: Sequence[ParsedTable],
    sizes: _Sizes,
    over: dict[str, tuple[float, float]],
    priors: dict[str, Prior],
) -> list[Observation]:
    """Return the blocks of tables with their noise, and add the bounds and priors of noise to choose.

    Physics without a noise is exact. Values that a file holds are readings: without a noise, it is chosen.
    """
    blocks: list[Observation] = []
    for table in tables:
        read = bool(table.boundary) and all(each.value is None for each in table.boundary)
        for block in table.blocks:
            name = own_temperature(role, len(blocks))
            if table.temperature is not None:
                over[name] = table.temperature.bounds
                prior = schema.prior_of(table.temperature)
                priors |= {} if prior is None else {name: prior}
            elif read and block.temperature is None:
                spread = _spread(block) or sizes.unknown
                # With ρ the noise variance of a reading of weight one is ρ/2.
                over[name] = (2.0 * _least_variance(block, spread), 2.0 * LARGEST_NOISE * spread)
                start = jnp.asarray(max(2.0 * START_NOISE * spread, over[name][0]))
                block = dataclasses.replace(block, temperature=start, weights=np.ones(block.size))
            blocks.append(block)
    return blocks
