"""The density of searched hyperparameters given the observations, in coordinates without bounds.

A coordinate `u` of a search lies between bounds; `t = log((u − low)/(high − u))` does not. In `t` a density that is cut
off at a bound, or flat between its bounds, has a single smooth peak, so Gaussian approximations, proposals and samplers
need no special cases.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float
from scipy.special import expit, log_ndtr, logit

from ...errors import PilescoreError
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

    @property
    def bounds(self) -> tuple[Float[np.ndarray, " p"], Float[np.ndarray, " p"]]:
        """The bounds of the coordinates `u`."""
        low, high = np.array(self.space.bounds).T
        return low, high

    def inside(self, u: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
        """Return the coordinates without bounds of a point, moved off its bounds."""
        low, high = self.bounds
        return np.asarray(logit(np.clip((u - low) / (high - low), INSIDE, 1.0 - INSIDE)))

    def coordinates(self, t: Float[np.ndarray, "*k p"]) -> Float[np.ndarray, "*k p"]:
        """Return the coordinates of the search, `u`."""
        low, high = self.bounds
        return low + (high - low) * expit(t)

    def values(self, t: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
        """Return the hyperparameters."""
        return self.space.decode(self.coordinates(t))

    def model(self, t: Float[np.ndarray, " p"]) -> Model:
        """Return the model with these hyperparameters."""
        return self.space.model_at(self.values(t))

    def pile(self, t: Float[np.ndarray, " p"]) -> Pile:
        """Return the score; raise a `PilescoreError` if there is none."""
        pile = systems_of(self.model(t), self.score, self.warm_start, explain=False).pile(self.score)
        check_rounding(pile)
        return pile

    def value(self, t: Float[np.ndarray, " p"]) -> float:
        """Return the log density; minus infinity where the model cannot be scored."""
        try:
            return self.pile(t).log_evidence + self.log_prior(t)[0]
        except PilescoreError:
            return -math.inf

    def value_and_slope(self, t: Float[np.ndarray, " p"]) -> tuple[float, Float[np.ndarray, " p"]]:
        """Return the log density and its gradient; minus infinity and zeros where the model cannot be scored."""
        u = self.coordinates(t)
        try:
            pile, slope = CoordinateScore(self.space, self.score)(u, self.warm_start)
        except PilescoreError:
            return -math.inf, np.zeros_like(t)
        prior, by_t = self.log_prior(t)
        return pile.log_evidence + prior, by_t - 0.5 * pile.size * slope * self.stretch(t)

    def stretch(self, t: Float[np.ndarray, "*k p"]) -> Float[np.ndarray, "*k p"]:
        """Return `du/dt`."""
        low, high = self.bounds
        return (high - low) * expit(t) * expit(-t)

    def log_prior(self, t: Float[np.ndarray, " p"]) -> tuple[float, Float[np.ndarray, " p"]]:
        """Return the log density of the priors in `t`, and its gradient.

        The densities of priors that belong to the model are in the evidence, per unit of the value or of its
        logarithm. Here they only change coordinates.
        """
        values = self.values(t)
        slope = self.space.slope(values)  # dv/du
        total = float(np.log(self.stretch(t)).sum())
        gradient = 1.0 - 2.0 * expit(t)
        for name, rows in self.space.groups.items():
            at = list(rows)
            own = self._own.get(self.space.targets[name][0] if name in self.space.targets else name)
            prior = self.priors[name] if own is None else own
            if prior is None:
                low, high = self.bounds
                total -= float(np.log(high - low)[at].sum())
                continue
            shape = self.space.shapes[name]
            part = values[at].reshape(shape)
            if prior.logarithmic:
                total += float(np.log(slope[at] / values[at]).sum())
                by_value = np.where(self.space.logarithmic[at], 0.0, -1.0 / values[at])
            else:
                total += float(np.log(slope[at]).sum())
                by_value = np.where(self.space.logarithmic[at], 1.0 / values[at], 0.0)
            if own is None:
                total += prior.log_density(part) - self._log_mass[name]
                by_value = by_value + np.ravel(prior.slope(part))
            gradient[at] += by_value * slope[at] * self.stretch(t)[at]
        return total, gradient

    @functools.cached_property
    def _own(self) -> Mapping[str, Prior]:
        """The priors of the model."""
        return dict(getattr(self.space.model, "priors", {}))

    @functools.cached_property
    def _log_mass(self) -> dict[str, float]:
        """The logarithm of the probability that each prior gives to the values between the bounds."""
        found = {}
        for name, rows in self.space.groups.items():
            prior = self.priors[name]
            if prior is None:
                continue
            at = list(rows)
            ends = (self.space.low[at], self.space.high[at])
            if prior.logarithmic:
                with np.errstate(divide="ignore", invalid="ignore"):
                    ends = tuple(np.where(end > 0.0, np.log(end), -np.inf) for end in ends)
            deviations = np.sqrt(np.linalg.inv(prior.precision(len(at))).diagonal())
            low, high = ((end - prior.centre(len(at))) / deviations for end in ends)
            # Each element by itself: exact if they are independent.
            found[name] = float(_log_probability(low, high).sum())
        return found


def _log_probability(low: Float[np.ndarray, " n"], high: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return the log probability that a standard normal number lies between two limits."""
    # In the tail on the side of the smaller magnitude, so that both terms do not round to one.
    swap = low > 0.0
    low, high = np.where(swap, -high, low), np.where(swap, -low, high)
    upper, lower = log_ndtr(high), log_ndtr(low)
    return np.asarray(upper + np.log1p(-np.exp(lower - upper)))
