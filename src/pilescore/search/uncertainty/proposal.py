"""Distributions from which points are drawn: products of split t distributions along axes, and their mixtures."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy.special import gammaln, stdtrit

from ..space import sobol_points

DEGREES = 7.0
"""The degrees of freedom of the t distributions: heavier tails than normal ones, so weights stay bounded."""

FARTHEST = 0.002
"""Points are not drawn further out along an axis than this probability: one of them would stand for a whole tail."""

MOST_SKEWNESS = 0.8
"""The largest skewness along an axis; that of any split normal distribution is below one."""

LEAST_VARIANCE = 1e-12
"""The least variance along an axis, as a fraction of the largest."""


@dataclasses.dataclass(frozen=True, eq=False)
class SplitT:
    """A product of t distributions along the columns of `axes`, each with one scale below its centre and one above."""

    centre: Float[np.ndarray, " p"]
    axes: Float[np.ndarray, "p p"]
    """One axis in each column; in units of it a symmetric density has scale one."""
    below: Float[np.ndarray, " p"]
    above: Float[np.ndarray, " p"]

    def widened(self, factor: float) -> SplitT:
        """Return the distribution with larger scales."""
        return dataclasses.replace(self, below=factor * self.below, above=factor * self.above)

    def at(self, unit: Float[np.ndarray, "n p"]) -> Float[np.ndarray, "n p"]:
        """Return the points at which the distribution functions along the axes have these values between 0 and 1."""
        split = self.below / (self.below + self.above)  # the probability below the centre
        unit = FARTHEST + (1.0 - 2.0 * FARTHEST) * unit
        low = unit < split
        inner = np.where(low, 0.5 * unit / split, 0.5 + 0.5 * (unit - split) / (1.0 - split))
        z = stdtrit(DEGREES, inner) * np.where(low, self.below, self.above)
        return np.asarray(self.centre + z @ self.axes.T)

    def whitened(self, t: Float[np.ndarray, "n p"]) -> Float[np.ndarray, "n p"]:
        """Return points in units of the axes, from the centre."""
        return np.asarray((t - self.centre) @ self._inverse.T)

    def log_density(self, t: Float[np.ndarray, "n p"]) -> Float[np.ndarray, " n"]:
        """Return the log density of points that can be drawn."""
        z = self.whitened(t)
        scale = np.where(z < 0.0, self.below, self.above)
        # What is not drawn, further out, belongs to the others: a few per cent in many dimensions.
        each = _log_student(z / scale) - np.log(0.5 * (self.below + self.above) * (1.0 - 2.0 * FARTHEST))
        return np.asarray(each.sum(axis=1) - self._logdet)

    @functools.cached_property
    def _inverse(self) -> Float[np.ndarray, "p p"]:
        return np.asarray(np.linalg.inv(self.axes))

    @functools.cached_property
    def _logdet(self) -> float:
        return float(np.linalg.slogdet(self.axes)[1])


def _log_student(z: Float[np.ndarray, "n p"]) -> Float[np.ndarray, "n p"]:
    """Return the log density of the t distribution, without `scipy.stats`, which is slow to import."""
    constant = gammaln(0.5 * (DEGREES + 1.0)) - gammaln(0.5 * DEGREES) - 0.5 * math.log(DEGREES * math.pi)
    return np.asarray(constant - 0.5 * (DEGREES + 1.0) * np.log1p(z**2 / DEGREES))


def around(centre: Float[np.ndarray, " p"], covariance: Float[np.ndarray, "p p"]) -> SplitT:
    """Return the symmetric distribution with this centre and the principal axes of a covariance."""
    variances, vectors = np.linalg.eigh(covariance)
    ones = np.ones(len(centre))
    return SplitT(centre, vectors * np.sqrt(np.maximum(variances, LEAST_VARIANCE * variances.max())), ones, ones)


def moments(
    t: Float[np.ndarray, "n p"], weights: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " p"], Float[np.ndarray, "p p"]]:
    """Return the mean and the covariance of weighted points."""
    mean = weights @ t
    away = t - mean
    return mean, (away * weights[:, None]).T @ away


def fitted(t: Float[np.ndarray, "n p"], weights: Float[np.ndarray, " n"]) -> SplitT:
    """Return the distribution with the mean, covariance and skewness along principal axes of weighted points.

    A split normal distribution with scales `a` below and `b` above its mode, and `d = b − a`, has its mean `√(2/π) d`
    above its mode, the variance `(1 − 2/π)d² + ab`, and the third central moment
    `√(2/π) d [(4/π − 1)d² + ab]`.
    """
    mean, covariance = moments(t, weights)
    whole = around(mean, covariance)
    skewness = np.clip(weights @ whole.whitened(t) ** 3, -MOST_SKEWNESS, MOST_SKEWNESS)
    root = math.sqrt(2.0 / math.pi)
    d = skewness / root
    for _ in range(20):  # of unit variance: γ = √(2/π) d [1 − (2 − 6/π)d²], a contraction for |γ| ≤ 0.8
        d = skewness / root / (1.0 - (2.0 - 6.0 / math.pi) * d**2)
    above = 0.5 * (d + np.sqrt(d**2 + 4.0 * (1.0 - (1.0 - 2.0 / math.pi) * d**2)))
    return SplitT(mean - whole.axes @ (root * d), whole.axes, above - d, above)


@dataclasses.dataclass(frozen=True, eq=False)
class Mixture:
    """A mixture of distributions."""

    shares: Float[np.ndarray, " k"]
    parts: Sequence[SplitT]

    def shared_log_densities(self, t: Float[np.ndarray, "n p"]) -> Float[np.ndarray, "k n"]:
        """Return the log density of points in each part, times its share."""
        pairs = zip(self.shares, self.parts, strict=True)
        return np.array([math.log(share) + part.log_density(t) for share, part in pairs])

    def log_density(self, t: Float[np.ndarray, "n p"]) -> Float[np.ndarray, " n"]:
        """Return the log density of points."""
        return np.asarray(np.logaddexp.reduce(self.shared_log_densities(t), axis=0))

    def owners(self, t: Float[np.ndarray, "n p"]) -> Float[np.ndarray, "k n"]:
        """Return the probability that each point comes from each part."""
        logs = self.shared_log_densities(t)
        return np.asarray(np.exp(logs - np.logaddexp.reduce(logs, axis=0)))

    def joined(self, part: SplitT, share: float) -> Mixture:
        """Return the mixture with another distribution, which gets this share."""
        return Mixture(np.append((1.0 - share) * self.shares, share), [*self.parts, part])

    def draw(self, count: int, seed: list[int]) -> Float[np.ndarray, "n p"]:
        """Return points, in numbers as the shares: scrambled Sobol points, whose means have little noise."""
        unit = sobol_points(count, len(self.parts[0].centre), seed)
        # Every k-th point for a part with the share 1/k: consecutive points of a Sobol sequence are balanced by
        # themselves, so each part gets a run of them.
        ends = np.round(np.cumsum(self.shares) * count).astype(int)
        runs = zip(self.parts, [0, *ends[:-1]], ends, strict=True)
        return np.concatenate([part.at(unit[first:last]) for part, first, last in runs])
