"""How well a candidate of any kind predicts observations that it was not fitted to."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from .errors import InputError, PrecisionWarning, require
from .model import TEMPERATURES
from .networks import NetworkPile
from .observations import Observation, labels
from .operators import Operator
from .posterior import Posterior
from .system import IMPRECISE

Predictor: TypeAlias = Posterior | NetworkPile

INTERVAL = 1.959963984540054
"""Deviations to either side that hold 95% of a normal distribution."""


@dataclasses.dataclass(frozen=True, eq=False)
class Forecast:
    """What a candidate says of held-out values: a normal distribution for each, noise included."""

    errors: Float[np.ndarray, " n"]
    """Held-out values less their means."""
    variances: Float[np.ndarray, " n"]
    notes: tuple[str, ...] = ()

    @property
    def log_densities(self) -> Float[np.ndarray, " n"]:
        """The logarithm of the density of each value by itself."""
        return -0.5 * (np.log(2 * math.pi * self.variances) + self.errors**2 / self.variances)

    @property
    def rmse(self) -> float:
        """The root mean square of the errors."""
        return math.sqrt(float(np.mean(self.errors**2)))

    @property
    def coverage(self) -> float:
        """The share of values within their 95% intervals."""
        return float(np.mean(np.abs(self.errors) <= INTERVAL * np.sqrt(self.variances)))


def as_held_out(given: Any) -> tuple[Observation, ...]:
    """Return held-out blocks: linear ones, all of as many coordinates."""
    several = isinstance(given, Iterable) and not isinstance(given, Observation | str)
    blocks = tuple(given) if several else (given,)
    expected = "a block made by ps.observe or ps.impose, or a list of them"
    require(len(blocks) > 0, "held_out", given, expected)
    for block in blocks:
        require(isinstance(block, Observation), "held_out", block, expected)
        if not isinstance(block.operator, Operator):
            raise InputError(
                f"held_out: expected linear observations; {block} is nonlinear, and what is predicted of it is not a "
                "normal distribution. Hold out values of the unknown, or of a linear operator of it"
            )
        same = block.dimension == blocks[0].dimension
        require(same, "held_out", block.points, f"points with {blocks[0].dimension} coordinates, as in {blocks[0]}")
    return blocks


def forecast(candidate: Predictor, blocks: Sequence[Observation]) -> Forecast:
    """Return what a candidate predicts for held-out blocks, with what is to be said of it."""
    notes = []
    if isinstance(candidate, Posterior) and candidate.system.rounding > IMPRECISE:
        notes.append(f"rounding leaves its PILE uncertain by {candidate.system.rounding:.1e}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PrecisionWarning)
        parts = [_predicted(candidate, block) for block in blocks]
    for each in caught:
        if issubclass(each.category, PrecisionWarning):
            notes.append(str(each.message))
        else:
            warnings.warn(each.message, each.category, stacklevel=4)
    model = candidate.model if isinstance(candidate, Posterior) else candidate.tangent.model
    count, size = _shared(blocks, () if model is None else model.blocks), sum(block.size for block in blocks)
    if count:
        notes.append(f"{count} of {size} held-out values were fitted")
    noise = [_noise(candidate, block, label) for block, label in zip(blocks, labels(blocks), strict=True)]
    errors = np.concatenate([block.values - mean for block, (mean, _) in zip(blocks, parts, strict=True)])
    total = np.concatenate([variance + extra for (_, variance), extra in zip(parts, noise, strict=True)])
    return Forecast(errors, total, tuple(notes))


def _predicted(candidate: Predictor, block: Observation) -> tuple[np.ndarray, np.ndarray]:
    """Return the means and variances of what a block observes, without noise."""
    assert isinstance(block.operator, Operator)
    mean, matrix = candidate.mean(block.points, block.operator), block.matrix
    if matrix is None:
        return mean, candidate.variance(block.points, block.operator)
    joint = candidate.covariance(block.points, block.operator)
    found = np.einsum("nq,nq->n", matrix @ joint, matrix)
    below = found < 0
    if below.any():
        text = f"{int(below.sum())} of {len(found)} variances of functionals are below rounding and are given as zero"
        warnings.warn(text, PrecisionWarning, stacklevel=2)
    return matrix @ mean, np.where(below, 0.0, found)


def _noise(candidate: Predictor, block: Observation, label: str) -> Float[np.ndarray, " n"]:
    """Return the noise variances of held-out values: their own, or those that the candidate assumes."""
    if block.temperature is not None:
        return 0.5 * float(block.temperature) / block.weights
    if isinstance(candidate, NetworkPile):
        return candidate.noise_variance(block)
    model, name = candidate.model, TEMPERATURES[block.role]
    temperature = float(getattr(model, name))
    used = any(other.temperature is None for other in model.blocks if other.role == block.role)
    if not used and temperature == 1.0:  # what it is where it was not given
        raise InputError(
            f"held_out: no noise is known for {label!r}: it has none of its own, and no block of the model uses "
            f"{name}. Give it one: noise= or {name}= in ps.{'observe' if block.role == 'data' else 'impose'}"
        )
    return 0.5 * temperature / block.weights


def _shared(held: Sequence[Observation], fitted: Sequence[Observation]) -> int:
    """Return how many held-out values are among the fitted ones: one operator, one point, one value."""
    pool = Counter(key for block in fitted for key in _keys(block))
    return sum(pool[key] > 0 for block in held for key in _keys(block))


def _keys(block: Observation) -> Iterator[Hashable]:
    """Give what identifies each value of a linear block, to ten digits of the operator's coefficients."""
    if not isinstance(block.operator, Operator):
        return
    table = np.asarray(block.coefficients)
    at = [
        (tuple(point), frozenset((a, f"{c:.9e}") for a, c in zip(block.indices, column, strict=True) if c))
        for point, column in zip(block.points.tolist(), table.T.tolist(), strict=True)
    ]
    for i, value in enumerate(block.values.tolist()):
        if block.matrix is None:
            yield value, at[i]
        else:
            row = block.matrix[i]
            yield value, frozenset((at[j], f"{row[j]:.9e}") for j in np.flatnonzero(row))
