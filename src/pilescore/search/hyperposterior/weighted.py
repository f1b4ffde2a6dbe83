"""Weighted points around the peaks of a density: adaptive importance sampling with few evaluations.

The first points are drawn around the peaks along the axes of their curvature. Their weights show where the density is
wider, narrower or lopsided, and the next points are drawn from distributions that know it. Each point is weighted by
the density over the mixture of all distributions that points were drawn from (Cornuet et al. 2012), so a poor first
guess costs points, not correctness. Points are scrambled Sobol points: their means have less noise than random ones.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp
from scipy.stats import qmc

from .density import HyperparameterDensity
from .peak import Peak
from .proposal import SplitT, mixture_log_density

ROUNDS = (16, 24, 24)
"""How many points are drawn in each round."""

LEAST_SCALE, MOST_SCALE = 0.4, 3.0
"""The least and largest change of a scale from one round to the next."""


@dataclasses.dataclass(frozen=True, eq=False)
class WeightedPoints:
    """Points with weights that stand for a density."""

    t: Float[np.ndarray, "k p"]
    log_weights: Float[np.ndarray, " k"]
    """Logarithms of the density over that of the points; minus infinity where the model cannot be scored."""

    @property
    def weights(self) -> Float[np.ndarray, " k"]:
        """The weights, with the sum one."""
        return np.asarray(np.exp(self.log_weights - logsumexp(self.log_weights)))

    @property
    def effective_size(self) -> float:
        """`1/Σw²`: how many independent points would be as good."""
        return 1.0 / float(np.sum(self.weights**2))

    @property
    def log_integral(self) -> float:
        """The log integral of the density: the log evidence, integrated over the hyperparameters."""
        return float(logsumexp(self.log_weights)) - math.log(len(self.t))


def weighted_points(
    density: Callable[[Float[np.ndarray, " p"]], float],
    peaks: Sequence[Peak],
    seed: int,
    rounds: Sequence[int] = ROUNDS,
    evaluate: Callable[..., list[float]] | None = None,
) -> WeightedPoints:
    dimension = len(peaks[0].t)
    shares = np.exp([peak.log_integral for peak in peaks] - logsumexp([peak.log_integral for peak in peaks]))
    shares = np.maximum(shares, 0.5 / len(shares) * (len(shares) > 1))
    shares = shares / shares.sum()
    parts = [(float(share), _around(peak)) for share, peak in zip(shares, peaks, strict=True)]
    t, values = np.empty((0, dimension)), np.empty(0)
    drawn: list[tuple[float, SplitT]] = []  # how many points were drawn from each distribution
    log_weights = np.empty(0)
    for number, count in enumerate(rounds):
        if number:
            parts = adapted(parts, t, log_weights)
        unit = qmc.Sobol(dimension, rng=np.random.default_rng([seed, number])).random_base2(max(count - 1, 1).bit_length())[:count]
        ends = np.round(np.cumsum([share for share, _ in parts]) * count).astype(int)
        for (share, part), first, last in zip(parts, [0, *ends[:-1]], ends, strict=True):
            if last == first:
                continue
            new = part.at(unit[first:last])
            t = np.concatenate([t, new])
            values = np.concatenate([values, [density(each) for each in new]])
            drawn.append((float(last - first), part))
        total = float(len(t))
        log_weights = values - mixture_log_density([(n / total, part) for n, part in drawn], t)
    return WeightedPoints(t, log_weights)


def _around(peak: Peak) -> SplitT:
    variances, vectors = np.linalg.eigh(peak.covariance)
    axes = vectors * np.sqrt(variances)
    ones = np.ones(len(variances))
    return SplitT(peak.t, axes, ones, ones)


def adapted(parts, t, log_weights):
    """Refit each part to the points nearest to it."""
    weights = np.exp(log_weights - logsumexp(log_weights))
    logs = np.array([np.log(share) + part.log_density(t) for share, part in parts])
    owners = np.exp(logs - logsumexp(logs, axis=0))
    new = []
    for (share, part), owner in zip(parts, owners, strict=True):
        w = weights * owner
        mass = float(w.sum())
        w = w / mass
        size = 1.0 / float(np.sum(w**2))
        p = t.shape[1]
        # A prior of p + 2 points in favour of the last guess keeps the covariance well-conditioned.
        trust = size / (size + p)
        mean = w @ t
        away = t - mean
        old = part.axes * np.sqrt(0.5 * (part.below**2 + part.above**2))
        covariance = trust * (away * w[:, None]).T @ away + (1 - trust) * old @ old.T
        centre = trust * mean + (1 - trust) * part.centre
        variances, vectors = np.linalg.eigh(covariance)
        axes = vectors * np.sqrt(variances)
        z = (t - centre) @ np.linalg.inv(axes).T
        # One-sided second moments about the mode-ish centre
        below, above = np.ones(p), np.ones(p)
        for k in range(p):
            third = float(w @ z[:, k] ** 3)
            skew = np.clip(trust * third, -1.0, 1.0)
            # shift centre towards the mode and split the scales
            below[k], above[k] = 1.0 - 0.35 * skew, 1.0 + 0.35 * skew
        shift = -(above - below) * 0.8
        new.append((max(mass, 0.05), SplitT(centre + axes @ shift, axes, below, above)))
    total = sum(m for m, _ in new)
    return [(m / total, part) for m, part in new]
