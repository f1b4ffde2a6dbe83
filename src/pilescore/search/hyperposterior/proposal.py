"""Distributions from which points are drawn: products of split t distributions along axes."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp
from scipy.stats import t as student

DEGREES = 7.0
"""The degrees of freedom of the t distributions: heavier tails than normal ones, so weights stay bounded."""


@dataclasses.dataclass(frozen=True, eq=False)
class SplitT:
    """A product of t distributions along the columns of `axes`, each with one scale below its centre and one above."""

    centre: Float[np.ndarray, " p"]
    axes: Float[np.ndarray, "p p"]
    """One axis in each column; in units of it a symmetric density has scale one."""
    below: Float[np.ndarray, " p"]
    above: Float[np.ndarray, " p"]
    degrees: float = DEGREES

    def at(self, unit: Float[np.ndarray, "n p"]) -> Float[np.ndarray, "n p"]:
        """Return the points that uniform numbers between 0 and 1 stand for."""
        split = self.below / (self.below + self.above)  # the probability below the centre
        low = unit < split
        inner = np.where(low, 0.5 * unit / split, 0.5 + 0.5 * (unit - split) / (1.0 - split))
        z = student.ppf(inner, self.degrees) * np.where(low, self.below, self.above)
        return np.asarray(self.centre + z @ self.axes.T)

    def log_density(self, t: Float[np.ndarray, "n p"]) -> Float[np.ndarray, " n"]:
        """Return the log density of points."""
        z = (t - self.centre) @ self._inverse.T
        scale = np.where(z < 0.0, self.below, self.above)
        each = student.logpdf(z / scale, self.degrees) - np.log(0.5 * (self.below + self.above))
        return np.asarray(each.sum(axis=1) - self._logdet)

    @functools.cached_property
    def _inverse(self) -> Float[np.ndarray, "p p"]:
        return np.asarray(np.linalg.inv(self.axes))

    @functools.cached_property
    def _logdet(self) -> float:
        return float(np.linalg.slogdet(self.axes)[1])


def mixture_log_density(
    parts: list[tuple[float, SplitT]], t: Float[np.ndarray, "n p"]
) -> Float[np.ndarray, " n"]:
    """Return the log density of a mixture of distributions with these weights."""
    logs = np.array([np.log(weight) + part.log_density(t) for weight, part in parts])
    return np.asarray(logsumexp(logs, axis=0))
