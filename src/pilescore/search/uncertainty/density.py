"""The density of searched hyperparameters given the observations, in coordinates without bounds.

A coordinate `u` of a search lies between bounds; `t = Φ⁻¹((u − low)/(high − low))`, with the distribution function `Φ`
of the standard normal distribution, does not. In `t` a uniform density is exactly normal, and one that is cut off at a
bound has a smooth peak and the tails of a normal density, so normal approximations, proposals and samplers need no
special cases.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr, ndtri

from ...errors import MemoryLimitError, PilescoreError
from ...inference import Pile, Score, WarmStart, systems_of
from ...model import Model
from ...model.priors import Prior
from ..objective import CoordinateScore, check_rounding
from ..space import SearchSpace

INSIDE = 1e-4
"""How far from a bound a search for the peak starts at least, as a fraction of the range."""


@dataclasses.dataclass(frozen=True, eq=False)
class HyperparameterDensity:
    """`log p(t | observations) + log p(observations)`: the log evidence, the priors, and the change of coordinates."""

    space: SearchSpace
    score: Score
    priors: Mapping[str, Prior | None]
    """The prior of each searched name, besides those that the model has; None is uniform between the bounds."""
    warm_start: WarmStart | None = None

    @functools.cached_property
    def bounds(self) -> tuple[Float[np.ndarray, " p"], Float[np.ndarray, " p"]]:
        """The bounds of the coordinates `u`."""
        low, high = np.array(self.space.bounds).T
        return low, high

    def inside(self, u: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
        """Return the coordinates without bounds of a point, moved off its bounds."""
        low, high = self.bounds
        return np.asarray(ndtri(np.clip((u - low) / (high - low), INSIDE, 1.0 - INSIDE)))

    def coordinates(self, t: Float[np.ndarray, "*k p"]) -> Float[np.ndarray, "*k p"]:
        """Return the coordinates of the search, `u`."""
        low, high = self.bounds
        return low + (high - low) * ndtr(t)

    def values(self, t: Float[np.ndarray, "*k p"]) -> Float[np.ndarray, "*k p"]:
        """Return the hyperparameters."""
        return self.space.decode(self.coordinates(t))

    def model(self, t: Float[np.ndarray, " p"]) -> Model:
        """Return the model with these hyperparameters."""
        return self.space.model_at(self.values(t))

    def pile(self, t: Float[np.ndarray, " p"]) -> Pile:
        """Return the score; raise a `PilescoreError` if there is none."""
        pile = systems_of(self.model(t), self.score, self._near, explain=False).pile(self.score)
        check_rounding(pile)
        return pile

    @functools.cached_property
    def _near(self) -> WarmStart | None:
        """The warm start, solved, for values alone."""
        if self.warm_start is None:
            return None
        self.warm_start.values()
        return dataclasses.replace(self.warm_start, near=True)

    def value(self, t: Float[np.ndarray, " p"]) -> float:
        """Return the log density; minus infinity where the model cannot be scored."""
        try:
            found = self.pile(t).log_evidence + self.log_prior(t)[0]
        except MemoryLimitError:  # depends on the machine, not on the point
            raise
        except PilescoreError:
            return -math.inf
        return found if math.isfinite(found) else -math.inf

    def is_uniform(self, row: int) -> bool:
        """Return whether the prior of a coordinate is uniform between its bounds."""
        group = next(name for name, rows in self.space.groups.items() if row in rows)
        return self._own(row) is None and self.priors[group] is None

    def prior_of(self, row: int) -> Prior | None:
        """Return the prior of a coordinate, the model's own or the one by role; None if it is uniform."""
        group = next(name for name, rows in self.space.groups.items() if row in rows)
        return self._own(row) or self.priors[group]

    def prior_along(self, row: int, at: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return the density of the prior of one coordinate, in units of the search; of arrays, of one element."""
        space, prior = self.space, self.prior_of(row)
        low, high = self.bounds
        if prior is None:
            return np.full(len(at), 1.0 / (high[row] - low[row]))
        values = np.exp(at) if space.logarithmic[row] else space.low[row] + at * (space.high[row] - space.low[row])
        size, position = self._place(row)
        deviation = math.sqrt(float(np.linalg.inv(prior.precision(size))[position, position]))
        t = np.log(values) if prior.logarithmic else values
        # From the density per unit of the value, or of its logarithm, to that per unit of the coordinate.
        stretch = (values if space.logarithmic[row] else space.high[row] - space.low[row]) / (
            values if prior.logarithmic else 1.0
        )
        away = (t - prior.centre(size)[position]) / deviation
        return np.asarray(np.exp(-0.5 * away**2) / (deviation * math.sqrt(2.0 * math.pi)) * stretch)

    def prior_text(self, row: int) -> str:
        """Return the prior of a coordinate in words."""
        prior = self.prior_of(row)
        if prior is None:
            ends = f"{self.space.low[row]:.3g} to {self.space.high[row]:.3g}"
            return f"log-uniform, {ends}" if self.space.logarithmic[row] else f"uniform, {ends}"
        size, position = self._place(row)
        centre = float(prior.centre(size)[position])
        deviation = math.sqrt(float(np.linalg.inv(prior.precision(size))[position, position]))
        if prior.logarithmic:
            return f"log-normal, {math.exp(centre):.3g} within a factor {math.exp(deviation):.3g}"
        return f"normal, {centre:.3g} ± {deviation:.3g}"

    def _place(self, row: int) -> tuple[int, int]:
        """Return the number of elements that the prior of a coordinate is on, and which of them the coordinate is."""
        name = self.space.names[row]
        if name in self.space.model.priors:
            return 1, 0
        base, index = self.space.targets[name]
        shape = np.shape(self.space.model.parameters[base])
        if base in self.space.model.priors:
            return math.prod(shape), int(np.ravel_multi_index(index, shape)) if index else 0
        group = next(rows for rows in self.space.groups.values() if row in rows)
        return len(group), group.index(row)

    def value_and_slope(self, t: Float[np.ndarray, " p"]) -> tuple[float, Float[np.ndarray, " p"]]:
        """Return the log density and its gradient; minus infinity and zeros where the model cannot be scored."""
        u = self.coordinates(t)
        try:
            pile, slope = CoordinateScore(self.space, self.score)(u, self.warm_start)
        except MemoryLimitError:
            raise
        except PilescoreError:
            return -math.inf, np.zeros_like(t)
        prior, by_t = self.log_prior(t)
        return pile.log_evidence + prior, by_t - 0.5 * pile.size * slope * self.stretch(t)

    def stretch(self, t: Float[np.ndarray, "*k p"]) -> Float[np.ndarray, "*k p"]:
        """Return `du/dt`."""
        low, high = self.bounds
        return (high - low) * np.exp(-0.5 * t**2) / math.sqrt(2.0 * math.pi)

    def log_prior(self, t: Float[np.ndarray, " p"]) -> tuple[float, Float[np.ndarray, " p"]]:
        """Return the log density of the priors in `t`, and its gradient.

        The densities of priors that belong to the model are in the evidence, per unit of the value or of its
        logarithm. Here they only change coordinates.
        """
        value, gradient = self.log_priors(t[None])
        return float(value[0]), gradient[0]

    def log_priors(self, t: Float[np.ndarray, "n p"]) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n p"]]:
        """Return the log density of the priors at many points, and its gradient."""
        constant, bent, logarithmic, centre, precision = self._prior_parts
        values = self.values(t)
        positive = np.where(logarithmic | (bent != 0.0), values, 1.0)  # only positive hyperparameters have a logarithm
        logs = np.log(positive)
        away = np.where(logarithmic, logs, values) - centre
        pull = away @ precision
        value = constant - 0.5 * np.sum(t**2 + away * pull, axis=1) + logs @ bent
        by_value = bent / positive - pull / np.where(logarithmic, positive, 1.0)
        return value, by_value * self.space.slope(values) * self.stretch(t) - t

    @functools.cached_property
    def _prior_parts(self) -> tuple[float, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The parts of the log prior that do not depend on the point.

        A constant; the power of each value in the change of coordinates; whether the prior of the search is normal in
        the logarithm; its mean; and its precision, zero where there is none.
        """
        space, (low, high) = self.space, self.bounds
        size = len(low)
        width = np.log(high - low)
        constant = float(width.sum()) - 0.5 * size * math.log(2.0 * math.pi)
        bent, centre, precision = np.zeros(size), np.zeros(size), np.zeros((size, size))
        logarithmic = np.zeros(size, dtype=bool)
        for name, rows in space.groups.items():
            own = [self._own(row) for row in rows]
            prior = None if any(own) else self.priors[name]
            for row, mine in zip(rows, own, strict=True):
                used = prior if mine is None else mine
                if used is None:  # uniform
                    constant -= width[row]
                    continue
                # From the density per unit of the value, or of its logarithm, to that per unit of the coordinate.
                bent[row] = float(space.logarithmic[row]) - float(used.logarithmic)
                constant += 0.0 if space.logarithmic[row] else math.log(space.high[row] - space.low[row])
            if prior is not None:
                at, count = list(rows), len(rows)
                precision[np.ix_(at, at)], centre[at] = prior.precision(count), prior.centre(count)
                logarithmic[at] = prior.logarithmic
                logdet = float(np.linalg.slogdet(precision[np.ix_(at, at)])[1])
                constant += 0.5 * logdet - 0.5 * count * math.log(2.0 * math.pi) - self._log_mass[name]
        return constant, bent, logarithmic, centre, precision

    def _own(self, row: int) -> Prior | None:
        """Return the prior that the model itself has for a coordinate."""
        return own_prior(self.space, row)

    @functools.cached_property
    def _log_mass(self) -> dict[str, float]:
        """The logarithm of the probability that each prior gives to the values between the bounds.

        Elements of an array count one by one, which is exact if they are independent.
        """
        found = {}
        for name, rows in self.space.groups.items():
            prior = self.priors[name]
            if prior is None:
                continue
            at = list(rows)
            found[name] = float(prior.log_probability(self.space.low[at], self.space.high[at]).sum())
        return found


def own_prior(space: SearchSpace, row: int) -> Prior | None:
    """Return the prior that the model itself has for a coordinate of a search."""
    name, priors = space.names[row], space.model.priors
    return priors.get(name, priors.get(space.targets[name][0]))
