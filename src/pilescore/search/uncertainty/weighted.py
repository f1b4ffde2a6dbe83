"""Weighted points that stand for a density, from few evaluations.

The first points are drawn around the peaks along the axes of their curvature. A smooth function through the computed
log densities shows the shape of the density between them, and the next points are drawn from distributions of that
shape. Each point is weighted by the density over the mixture of all distributions that points were drawn from (adaptive
importance sampling, Cornuet et al. 2012). Eighty weights have the noise of eighty points; so they are then moved, as
little as possible, to have the mean and covariance of a large sample of the smooth function.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

from ...errors import PilescoreError
from .peak import Peak
from .proposal import Mixture, SplitT, around, fitted, moments
from .surrogate import Surrogate, surrogate

ROUNDS = (24, 28, 28)
"""How many points are drawn in each round around one peak."""

MORE = 0.5
"""How many more, as a fraction, for each other peak."""

WIDER_FIRST, WIDER = 1.5, 0.7
"""How much wider distributions are than the curvature and, later, the smooth function say, as a fraction, in one
dimension; in `p` dimensions divided by `√p`. The tails, which few readings make heavy, are not known before points are
in them."""

NARROW = (1.1, 1.0)
"""The factors if there are several peaks."""

SAMPLE = 4096
"""The size of the sample of the smooth function."""

ROUGH_SAMPLE = 1024
"""Its size in the first rounds, where it only shapes the next distribution."""

BEYOND = 1.2
"""How far this sample reaches, relative to the farthest computed point."""

MOST_EXTRA_ROUNDS = 3
"""How many more rounds follow while the effective size is too small."""

LEAST_SIZE = 25.0
"""The effective size at which no more rounds follow."""

HEAVY = 0.1
"""A point with a larger weight is looked at more closely in the next round."""

OUTLIER_SHARE = 0.3
"""The share of points that are then drawn around it."""

LEAST_SHARE = 0.1
"""The least share of points for a peak."""

ABOVE_NATS = 0.3
"""The smooth function is not believed further above the highest log density than this."""

DISAGREEMENT = 3.0
"""The smooth function is not used if its integral is further from the one by importance weights, in deviations."""

OWNED = 0.02
"""A point counts for a peak from this probability on that it comes from there."""

MOST_MISFIT_NATS = 0.7
"""The smooth function is not used if it misses log densities by more, in the root mean square over the density."""

MOST_ERROR_NATS = 3.0
"""Errors in the tails count as no more than this."""

SAFETY = 3.0
"""Stated errors of the log integral, in standard deviations."""

RIDGE = 1e-3
"""How much weights resist being moved."""


UNSCORABLE = (
    "no point around the minimum can be scored, so there is no distribution around it. What helps: more noise, or a "
    "kernel that is less smooth"
)


@dataclasses.dataclass(frozen=True, eq=False)
class WeightedPoints:
    """Points with weights that stand for a density, and a large sample of it."""

    t: Float[np.ndarray, "k p"]
    weights: Float[np.ndarray, " k"]
    """The weights of the points, with the sum one."""
    sample: Float[np.ndarray, "n p"]
    sample_weights: Float[np.ndarray, " n"]
    """Those of the sample."""
    log_integral: float
    """The log integral of the density: the log evidence, integrated over the hyperparameters."""
    log_integral_error: float
    effective_size: float
    """`1/Σw²` of importance weights: how many independent points would be as good, without the smooth function."""
    misfit: float
    """The root mean square, over the density, of log densities minus their predictions from the others, in nats;
    infinite if there are no predictions."""
    shares: Float[np.ndarray, " peaks"]
    """The probability of each peak."""
    failed: int
    """How many points could not be scored."""
    count: int
    """How many points were computed."""


def weighted_points(
    density: Callable[[Float[np.ndarray, " p"]], float],
    peaks: Sequence[Peak],
    seed: int,
    rounds: Sequence[int] = ROUNDS,
) -> WeightedPoints:
    """Return weighted points for a density.

    Parameters
    ----------
    density
        The log density; minus infinity where there is none.
    peaks
        Its peaks that matter.
    seed
        The seed of the points.
    rounds
        How many points are drawn in each round, if there is one peak.
    """
    integrals = np.array([peak.log_integral for peak in peaks])
    shares = at_least(np.exp(integrals - logsumexp(integrals)), LEAST_SHARE)
    dimension = len(peaks[0].t)
    first, later = NARROW  # wide distributions around several peaks overlap: points would belong to all of them
    if len(peaks) == 1:
        first, later = (1.0 + wider / math.sqrt(dimension) for wider in (WIDER_FIRST, WIDER))
    proposal = Mixture(shares, [around(peak.t, first**2 * peak.covariance) for peak in peaks])
    frames = [around(peak.t, peak.covariance) for peak in peaks]
    t, values = np.empty((0, dimension)), np.empty(0)
    drawn: list[tuple[int, Mixture]] = []
    outlier: SplitT | None = None
    for number, base in enumerate([*rounds, *[rounds[-1]] * MOST_EXTRA_ROUNDS]):
        count = round(base * (1.0 + MORE * (len(peaks) - 1)))
        source = proposal if outlier is None else proposal.joined(outlier, OUTLIER_SHARE)
        new = source.draw(count, [seed, number])
        t, values = np.concatenate([t, new]), np.concatenate([values, [density(each) for each in new]])
        if not np.isfinite(values).any():
            raise PilescoreError(UNSCORABLE)
        drawn.append((count, source))
        logs = [math.log(n / len(t)) + mixture.log_density(t) for n, mixture in drawn]
        importance = values - logsumexp(logs, axis=0)
        plain = float(logsumexp(importance)) - math.log(len(t))
        heaviest = int(np.argmax(importance))
        # Truncated weights (Ionides 2008): one point must not stand for everything.
        weights = np.exp(np.minimum(importance, plain + 0.5 * math.log(len(t))) - plain)
        weights /= weights.sum()
        untruncated = np.exp(importance - plain) / len(t)
        size = 1.0 / float(np.sum(untruncated**2))
        shape = _Shape.through(t, values, proposal, frames)
        sample_size = SAMPLE if number + 1 >= len(rounds) else ROUGH_SAMPLE
        sample = proposal.draw(sample_size, [seed, len(rounds) + MOST_EXTRA_ROUNDS + number])
        drawn_logs = proposal.log_density(sample)
        sample_logs, hopeful_logs = (logs_here - drawn_logs for logs_here in shape.log_density(sample))
        sample_weights = np.exp(sample_logs - logsumexp(sample_logs))
        owners = proposal.owners(sample) * sample_weights
        masses = owners.sum(axis=1)
        misfit = math.sqrt(float(weights @ np.minimum(np.abs(shape.left_out), MOST_ERROR_NATS) ** 2))
        if number + 1 >= len(rounds) and (size >= LEAST_SIZE or misfit <= MOST_MISFIT_NATS):
            break
        parts = [fitted(sample, own / mass).widened(later) for own, mass in zip(owners, masses, strict=True)]
        frames = [around(*moments(sample, own / mass)) for own, mass in zip(owners, masses, strict=True)]
        proposal = Mixture(at_least(masses / masses.sum(), LEAST_SHARE), parts)
        # A point in a tail that no distribution reaches: the next ones are drawn around it too.
        heavy = untruncated[heaviest] > HEAVY
        outlier = dataclasses.replace(_nearest(frames, t[heaviest]), centre=t[heaviest]) if heavy else None
    plain_error = math.sqrt(max(1.0 / size - 1.0 / len(t), 0.0))
    failed = int(np.isinf(values).sum())
    integral = float(logsumexp(sample_logs)) - math.log(SAMPLE)
    apart = abs(integral - plain) > DISAGREEMENT * plain_error + MOST_MISFIT_NATS
    if misfit > MOST_MISFIT_NATS or apart:
        own = proposal.owners(t) @ weights
        # Weights do not show mass that no point has reached; the smooth function may.
        error = SAFETY * plain_error + min(abs(integral - plain), SAFETY * plain_error)
        return WeightedPoints(t, weights, t, weights, plain, error, size, misfit, own, failed, len(t))
    # The density minus its prediction from other points, averaged over the points with importance weights. The points
    # in the middle, which matter most, are predicted better than those at the edge.
    missed = weights * np.expm1(np.minimum(-shape.left_out, MOST_ERROR_NATS))
    # Points that would be on the wrong side of the border of what cannot be scored.
    wrong = np.exp(shape.smooth(t)[0] - logsumexp(logs, axis=0) - integral)[shape.disputed] / len(t)
    error = SAFETY * math.sqrt(float(np.sum(missed**2) + np.sum(wrong**2)))
    error += SAFETY * math.sqrt(max(float(np.sum(sample_weights**2)) - 1.0 / SAMPLE, 0.0))
    # What may be where no point was drawn: the function knows how little it knows there.
    error += max(float(logsumexp(hopeful_logs)) - math.log(SAMPLE) - integral, 0.0)
    error = max(error, abs(integral - plain) - 2.0 * plain_error)
    moved = balanced(t, weights, sample, sample_weights)
    return WeightedPoints(
        t, moved, sample, sample_weights, integral, error, size, misfit, masses / masses.sum(), failed, len(t)
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Shape:
    """A smooth function through the log densities around each peak."""

    proposal: Mixture
    """Its parts say which peak a point belongs to."""
    frames: Sequence[SplitT]
    """The mean and standard deviations around each peak."""
    surrogates: Sequence[Surrogate]
    points: Sequence[np.ndarray]
    """The points that each function goes through, and those that could not be scored, in units of the frame."""
    failed: Sequence[np.ndarray]
    """Which of them could not be scored."""
    disputed: np.ndarray
    """Which computed points could be scored, but not both of their nearest neighbours, or the reverse."""
    left_out: Float[np.ndarray, " k"]
    """Each log density minus its prediction from the others."""
    top: float
    """The highest log density."""

    @classmethod
    def through(
        cls,
        t: Float[np.ndarray, "k p"],
        values: Float[np.ndarray, " k"],
        proposal: Mixture,
        frames: Sequence[SplitT],
    ) -> _Shape:
        """Return the function through these log densities."""
        owners = proposal.owners(t)
        surrogates, points, failed, left_out = [], [], [], np.zeros(len(t))
        scored, disputed = np.isfinite(values), np.zeros(len(t), dtype=bool)
        for own, frame in zip(owners, frames, strict=True):
            mine = (own >= OWNED) | (own == owners.max(axis=0))
            known = mine & scored
            if not known.any():  # no point of this peak: the others say what is known
                known = scored
            points.append(frame.whitened(t[mine]))
            failed.append(~scored[mine])
            surrogates.append(surrogate(frame.whitened(t[known]), values[known]))
            left_out[known] += own[known] * surrogates[-1].left_out_errors
            if failed[-1].any():
                squares = cdist(points[-1], points[-1], "sqeuclidean")
                np.fill_diagonal(squares, np.inf)
                nearest = np.argsort(squares, axis=1)[:, :2]
                disputed[mine] |= (failed[-1][nearest] != failed[-1][:, None]).any(axis=1)
        return cls(proposal, frames, surrogates, points, failed, disputed, left_out, float(values.max()))

    def log_density(self, t: Float[np.ndarray, "n p"]) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Return log densities at points, and how high they may be.

        The first are minus infinity far from all points. Both are minus infinity nearest to a point without a score.
        """
        likely, hopeful = self.smooth(t)
        parts = zip(self.proposal.owners(t), self.frames, self.points, self.failed, strict=True)
        for own, frame, points, failed in parts:
            z = frame.whitened(t)
            outside = np.linalg.norm(z, axis=1) > BEYOND * np.linalg.norm(points, axis=1).max()
            likely[(own > OWNED) & outside] = -np.inf
            if failed.any():
                lost = (own > OWNED) & failed[cdist(z, points, "sqeuclidean").argmin(axis=1)]
                likely[lost] = hopeful[lost] = -np.inf
        return likely, hopeful

    def smooth(self, t: Float[np.ndarray, "n p"]) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Return log densities at points as if all could be scored, and how high they may be."""
        total = np.zeros((2, len(t)))
        for own, frame, function in zip(self.proposal.owners(t), self.frames, self.surrogates, strict=True):
            at = own > 0.0
            total[:, at] += own[at] * np.array(function(frame.whitened(t[at])))
        likely, hopeful = np.minimum(total, self.top + ABOVE_NATS)
        return likely, hopeful


def _nearest(frames: Sequence[SplitT], t: Float[np.ndarray, " p"]) -> SplitT:
    """Return the distribution whose centre is nearest to a point, in its own deviations."""
    return min(frames, key=lambda frame: float(np.sum(frame.whitened(t[None]) ** 2)))


def at_least(shares: Float[np.ndarray, " k"], least: float) -> Float[np.ndarray, " k"]:
    """Return shares that are raised to the least one if there are several."""
    raised = np.maximum(shares, least if len(shares) > 1 else 0.0)
    return np.asarray(raised / raised.sum())


def balanced(
    t: Float[np.ndarray, "k p"],
    weights: Float[np.ndarray, " k"],
    sample: Float[np.ndarray, "n p"],
    sample_weights: Float[np.ndarray, " n"],
) -> Float[np.ndarray, " k"]:
    """Return weights near the given ones with the mean and covariance of a sample, by Newton steps on their dual.

    They are `w exp(λᵀφ)`, up to a constant, with `φ` the moments: the closest in relative entropy.
    """
    frame = around(*moments(sample, sample_weights))

    def features(points: Float[np.ndarray, "m p"]) -> Float[np.ndarray, "m q"]:
        z = frame.whitened(points)
        rows, columns = np.triu_indices(z.shape[1])
        return np.concatenate([z, z[:, rows] * z[:, columns]], axis=1)

    away = features(t) - sample_weights @ features(sample)
    with np.errstate(divide="ignore"):
        logs = np.log(weights)

    def dual(multipliers: Float[np.ndarray, " q"]) -> float:
        return float(logsumexp(logs + away @ multipliers) + 0.5 * RIDGE * multipliers @ multipliers)

    multipliers = np.zeros(away.shape[1])
    for _ in range(50):
        exponents = logs + away @ multipliers
        now = np.exp(exponents - logsumexp(exponents))
        mean = now @ away
        slope = mean + RIDGE * multipliers
        curvature = (away * now[:, None]).T @ away - np.outer(mean, mean) + RIDGE * np.eye(len(mean))
        step = np.linalg.solve(curvature, slope)
        promised = float(slope @ step)
        if promised < 1e-10:
            break
        length, here = 1.0, dual(multipliers)
        while dual(multipliers - length * step) > here - 1e-4 * length * promised and length > 1e-6:
            length *= 0.5
        multipliers = multipliers - length * step
    return np.asarray(now)
