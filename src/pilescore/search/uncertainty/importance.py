"""Weighted points that stand for a density, where it can be computed often: adaptive importance sampling.

Rounds of points are drawn, each from a distribution with the moments of all points before it. A point's weight is the
density over the mixture of all distributions that points were drawn from (Cornuet et al. 2012), so early distributions,
which were poor, do no harm. Nothing is assumed about the density between the points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from ...errors import PilescoreError
from .peak import Peak
from .proposal import Mixture, around, fitted, moments
from .weighted import LEAST_SHARE, UNSCORABLE, WeightedPoints, at_least, balanced

COUNT = 48
"""How many points are drawn in a round."""

LEAST_ROUNDS, MOST_ROUNDS = 5, 16

LEAST_DIMENSION = 3
"""Fewer hyperparameters are better known from few points and a smooth function, which also need no compilation."""

ENOUGH, LARGE_ENOUGH = 200.0, 100.0
"""The effective size at which no more rounds follow, for small models and for larger ones, whose scores cost more.
Means then have errors of about 0.07 and 0.1 deviations."""

LARGE = 256
"""From this number of observations on a model is a larger one."""

WIDER_FIRST, WIDER = 1.5, 0.9
"""How much wider distributions are than the curvature and, later, the moments say, as a fraction, in one dimension; in
`p` dimensions divided by `√p`. Moments of the points so far miss the tails that these have not reached."""

MODELS = 80
"""How many of the points predictions average over."""

SAFETY = 5.0
"""Stated errors of the log integral, in standard deviations. Weights do not show what lies beyond all points."""


def importance_points(
    density: Callable[[Float[np.ndarray, "n p"]], Float[np.ndarray, " n"]],
    peaks: Sequence[Peak],
    seed: int,
    enough: float = ENOUGH,
) -> WeightedPoints:
    """Return weighted points for a density.

    Parameters
    ----------
    density
        The log density of many points; minus infinity where there is none.
    peaks
        Its peaks that matter.
    seed
        The seed of the points.
    enough
        The effective size at which no more rounds follow.
    """
    dimension = len(peaks[0].t)
    integrals = np.array([peak.log_integral for peak in peaks])
    first, later = (1.0 + wider / math.sqrt(dimension) for wider in (WIDER_FIRST, WIDER))
    shares = at_least(np.exp(integrals - logsumexp(integrals)), LEAST_SHARE)
    proposal = Mixture(shares, [around(peak.t, first**2 * peak.covariance) for peak in peaks])
    t, values, mixed = np.empty((0, dimension)), np.empty(0), np.empty(0)
    drawn: list[Mixture] = []
    while True:
        new = proposal.draw(COUNT, [seed, len(drawn)])
        t, values = np.concatenate([t, new]), np.concatenate([values, density(new)])
        if not np.isfinite(values).any():
            raise PilescoreError(UNSCORABLE)
        mixed = np.logaddexp(mixed, proposal.log_density(t[: len(mixed)]))
        drawn.append(proposal)
        mixed = np.append(mixed, np.logaddexp.reduce([mixture.log_density(new) for mixture in drawn], axis=0))
        importance = values - mixed + math.log(len(drawn))
        weights = np.exp(importance - logsumexp(importance))
        size = 1.0 / float(np.sum(weights**2))
        if len(drawn) >= LEAST_ROUNDS and (size >= enough or len(drawn) == MOST_ROUNDS):
            break
        # Truncated weights (Ionides 2008): one point must not stand for everything.
        truncated = np.minimum(weights, 1.0 / math.sqrt(len(t)))
        owners = proposal.owners(t) * (truncated / truncated.sum())
        masses = owners.sum(axis=1)
        parts = [
            fitted(t, own / mass).widened(later) if np.count_nonzero(own) > dimension else part
            for own, mass, part in zip(owners, masses, proposal.parts, strict=True)
        ]
        proposal = Mixture(at_least(masses / masses.sum(), LEAST_SHARE), parts)
    integral = float(logsumexp(importance)) - math.log(len(t))
    error = SAFETY * math.sqrt(max(1.0 / size - 1.0 / len(t), 0.0))
    chosen, shares = _chosen(t, weights), drawn[0].owners(t) @ weights  # later distributions may have moved elsewhere
    models, counts = np.unique(chosen, return_counts=True)
    model_weights = balanced(t[models], counts / len(chosen), t, weights)
    failed = int(np.isinf(values).sum())
    return WeightedPoints(t[models], model_weights, t, weights, integral, error, size, math.inf, shares, failed, len(t))


def _chosen(t: Float[np.ndarray, "n p"], weights: Float[np.ndarray, " n"]) -> np.ndarray:
    """Return the numbers of points that stand for all: evenly spaced in probability along the widest direction."""
    mean, covariance = moments(t, weights)
    order = np.argsort((t - mean) @ np.linalg.eigh(covariance)[1][:, -1], kind="stable")
    ends = np.cumsum(weights[order])
    places = (np.arange(MODELS) + 0.5) / MODELS * ends[-1]
    return np.asarray(order[np.minimum(np.searchsorted(ends, places), len(t) - 1)])
