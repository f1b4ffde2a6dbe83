"""Sequential deletion of the worst data: exact updates of left-out errors, and a test for several outliers."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.optimize import minimize_scalar
from scipy.special import fdtrc, ndtri, stdtr

from ..errors import require

DELETED_FRACTION = 0.2
"""Up to this fraction of the data is deleted, one after the other."""

SUSPECTED = 0.2
"""Data that are deleted at this level or below do not count when the noise is estimated again."""

MOST_ESTIMATED = 600
"""The noise is estimated from so many data at most."""

ROUNDS = 3
"""How often the noise is estimated without suspected data; it hardly changes after two."""

SINGLE = 0.8
"""The fraction of the false alarms that is given to single outliers."""

LEAST = 1e-300
"""The smallest level."""

LOG_RANGE = 14.0
"""The bound on the logarithm of a noise factor, both ways."""


@dataclasses.dataclass(frozen=True, eq=False)
class Deletions:
    """The worst data of each of `m` data sets in the order in which they are deleted."""

    rows: Int[np.ndarray, "m k"]
    """The deleted rows."""
    sizes: Float[np.ndarray, "m k"]
    """The left-out error of each, in deviations that are estimated from the data not yet deleted, without it."""
    levels: Float[np.ndarray, "m k"]
    """A bound on the probability that, without outliers, the largest error of those left is at least as large."""
    joint_levels: Float[np.ndarray, "m k"]
    """A bound on the probability that, without outliers, any so many data reduce the sum of squares by as much."""

    @property
    def p_values(self) -> Float[np.ndarray, " m"]:
        """The p-value of the hypothesis that a data set has no outliers: the smallest joint level."""
        return self.joint_levels.min(axis=1)

    def count(self, level: float) -> Int[np.ndarray, " m"]:
        """Return how many data are outliers: the last deletion at a level decides, which sees through masking."""
        beyond = self.levels <= level
        steps = np.arange(1, beyond.shape[1] + 1)
        return np.max(np.where(beyond, steps, 0), axis=1)


def most_deleted(count: int) -> int:
    """Return how many of `count` data are deleted at most."""
    return max(1, min(int(DELETED_FRACTION * count), count - 3))


def delete_worst(
    precision: Float[np.ndarray, "n n"],
    alpha: Float[np.ndarray, "m n"],
    noise: Float[np.ndarray, " n"],
    most: int,
) -> Deletions:
    """Delete the datum with the largest left-out error, then the next, with exact updates.

    For data with covariance `B`, the left-out error of datum `i` in deviations is `z_i = α_i / √P_ii`, where `P = B⁻¹`
    and `α = P e`. Without datum `i` the sum of squares `eᵀP e` is smaller by `z_i²`, and `P` and `α` change by a
    rank-one update. The noise level is estimated without the datum, from the residuals `Sα` of the others: their sum of
    squares in deviations of the noise has the expectation `ν = Σ s_i P_ii`, the degrees of freedom that the unknown
    leaves to the noise. With `k` data deleted, the ratio of mean squares is compared with an F distribution with `k`
    and `ν` degrees, and that of one datum with a Student distribution. Both are exact if the unknown is known. The
    levels are multiplied by the number of data, or of sets of `k` data, that might have been the worst.

    Parameters
    ----------
    precision
        `P`, the inverse of the covariance of the data given everything else.
    alpha
        `α` of one or more data sets.
    noise
        The noise variances `s` in `B`, correct up to a factor.
    most
        The number of deletions.

    Examples
    --------
    >>> import numpy as np
    >>> from pilescore.diagnosis.deletion import delete_worst
    >>> errors = np.random.default_rng(0).standard_normal(30)
    >>> errors[[4, 9, 20]] = 9.0, 8.5, -9.5  # each hides the others
    >>> found = delete_worst(np.eye(30), errors[None], np.ones(30), most=6)
    >>> sorted(found.rows[0, : found.count(0.01)[0]].tolist())
    [4, 9, 20]
    """
    m, n = alpha.shape
    require(0 < most <= n - 2, "most", most, f"at least 1 and at most {n - 2}")
    each = np.arange(m)
    alpha, diagonal = alpha.copy(), np.tile(precision.diagonal(), (m, 1))
    # The columns of P without deleted rows are those of P minus a product of k vectors: no n² entries per data set.
    removed = np.zeros((m, most, n))
    rows = np.zeros((m, most), dtype=int)
    sizes, levels, joint = (np.zeros((m, most)) for _ in range(3))
    dropped, left = np.zeros(m), np.ones((m, n), dtype=bool)
    for step in range(most):
        scores = np.where(left, alpha**2 / np.where(left, diagonal, 1.0), -1.0)
        worst = np.argmax(scores, axis=1)
        largest, k = scores[each, worst], step + 1
        column = precision[worst] - np.einsum("mkn,mk->mn", removed[:, :step], removed[each, :step, worst])
        pivot = diagonal[each, worst]
        alpha -= column * (alpha[each, worst] / pivot)[:, None]
        removed[:, step] = column / np.sqrt(pivot)[:, None]
        diagonal -= removed[:, step] ** 2
        left[each, worst] = False
        dropped += largest
        freedom = np.maximum(np.sum(noise * np.where(left, diagonal, 0.0), axis=1), 1.0)
        variance = np.sum(noise * np.where(left, alpha, 0.0) ** 2, axis=1) / freedom
        size = np.sqrt(np.divide(largest, variance, out=np.full(m, np.inf), where=variance > 0))
        size = np.where(largest > 0, size, 0.0)
        rows[:, step], sizes[:, step] = worst, size
        levels[:, step] = np.clip(2.0 * (n - step) * stdtr(freedom, -size), LEAST, 1.0)
        ratio = np.divide(dropped / k, variance, out=np.full(m, np.inf), where=variance > 0)
        tail = fdtrc(k, freedom, np.where(dropped > 0, ratio, 0.0))
        sets = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        # Sets of several data overlap, so that the bound on any of them is far from sharp: their false alarms fit into
        # the rest of those of single outliers.
        logs = np.log(np.maximum(tail, LEAST)) + sets - math.log(SINGLE)
        joint[:, step] = np.exp(np.clip(logs, math.log(LEAST), 0.0))
    return Deletions(rows, sizes, levels, joint)


def noise_factor(
    errors: Float[np.ndarray, " n"], known: Float[np.ndarray, "n n"], noise: Float[np.ndarray, " n"]
) -> tuple[float, float]:
    """Return the factor `τ` for which errors are most probable under `N(0, B₀ + τS)`, and the nats gained over `τ = 1`.

    Parameters
    ----------
    errors
        The errors of data predicted from everything else.
    known
        `B₀`, their covariance without noise.
    noise
        The noise variances, the diagonal of `S`.
    """
    deviation = np.sqrt(noise)
    eigenvalues, vectors = np.linalg.eigh(known / deviation / deviation[:, None])
    eigenvalues, squares = np.maximum(eigenvalues, 0.0), (vectors.T @ (errors / deviation)) ** 2

    def energy(log_factor: float) -> float:
        variances = eigenvalues + math.exp(log_factor)
        return 0.5 * float(np.sum(np.log(variances) + squares / variances))

    # The energy may have two minima (a rough solution or noise): the better half of the range is searched first.
    grid = np.linspace(-LOG_RANGE, LOG_RANGE, 57)
    start = float(grid[np.argmin([energy(each) for each in grid])])
    best = minimize_scalar(energy, bounds=(start - 0.5, start + 0.5), method="bounded")
    gain = energy(0.0) - float(best.fun)
    return (math.exp(float(best.x)), gain) if gain > 0 else (1.0, 0.0)


def noise_gains(
    errors: Float[np.ndarray, "m n"], known: Float[np.ndarray, "n n"], noise: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " m"]:
    """Return the nats that another noise level gains for each data set, for levels from a twentieth to twenty times."""
    deviation = np.sqrt(noise)
    eigenvalues, vectors = np.linalg.eigh(known / deviation / deviation[:, None])
    variances = np.maximum(eigenvalues, 0.0) + np.exp(np.linspace(-3.0, 3.0, 121))[:, None]
    energies = 0.5 * (
        np.log(variances).sum(axis=1)[:, None] + (1.0 / variances) @ ((errors / deviation) @ vectors).T ** 2
    )
    return energies[60] - energies.min(axis=0)  # the middle is the present level


@dataclasses.dataclass(frozen=True, eq=False)
class OutlierSearch:
    """The worst data of one data set, with the noise estimated without them."""

    rows: Int[np.ndarray, " k"]
    sizes: Float[np.ndarray, " k"]
    levels: Float[np.ndarray, " k"]
    joint_levels: Float[np.ndarray, " k"]
    p_value: float
    """The p-value of the hypothesis that there are no outliers."""
    noise_factor: float
    """The noise variance without the suspected data, divided by that of the model."""
    precision: Float[np.ndarray, "n n"]
    """The inverse of the covariance of all data given everything else, with this noise."""
    alpha: Float[np.ndarray, " n"]

    def outliers(self, level: float) -> Int[np.ndarray, " j"]:
        """Return the outliers at a level, in the order of deletion: the last step that is beyond it decides."""
        if self.p_value > level:
            return self.rows[:0]
        steps = 1 + np.flatnonzero(self.levels <= level)
        # Outliers of equal size may be unlikely together and not one by one.
        return self.rows[: int(steps[-1]) if len(steps) else 1 + int(np.argmin(self.joint_levels))]

    def predicted_errors(self, rows: Int[np.ndarray, " j"]) -> tuple[Float[np.ndarray, " j"], Float[np.ndarray, " j"]]:
        """Return the errors of data predicted without any of them, and these errors in predicted deviations."""
        covariance = np.linalg.inv(self.precision[np.ix_(rows, rows)])
        errors = covariance @ self.alpha[rows]
        return errors, errors / np.sqrt(covariance.diagonal())

    def without(self, rows: Int[np.ndarray, " j"]) -> tuple[Float[np.ndarray, "k k"], Float[np.ndarray, " k"]]:
        """Return the precision of the errors of the other data, and their `α`, by an exact update."""
        kept = np.setdiff1d(np.arange(len(self.alpha)), rows)
        both, own = self.precision[np.ix_(kept, rows)], self.precision[np.ix_(rows, rows)]
        gain = np.linalg.solve(own, both.T).T
        return self.precision[np.ix_(kept, kept)] - gain @ both.T, self.alpha[kept] - gain @ self.alpha[rows]

    def kept(self, level: float) -> Bool[np.ndarray, " n"]:
        """Return which data are not outliers at a level."""
        kept = np.ones(len(self.alpha), dtype=bool)
        kept[self.outliers(level)] = False
        return kept


def search_outliers(
    errors: Float[np.ndarray, " n"],
    covariance: Float[np.ndarray, "n n"],
    noise: Float[np.ndarray, " n"],
    most: int | None = None,
) -> OutlierSearch:
    """Search for outliers among data, with a noise level that they do not inflate.

    Outliers inflate the noise that a search finds, and hide behind it. The worst data are deleted one after the other;
    then the noise is estimated from those that are not suspected, and all begins again with it.

    Parameters
    ----------
    errors
        The errors of data predicted from everything else.
    covariance
        Their covariance, with the noise.
    noise
        The noise variances of the data.
    most
        The number of deletions; by default a fifth of the data.
    """
    count = len(errors)
    most = most_deleted(count) if most is None else most
    known, factor = covariance - np.diag(noise), 1.0

    def search() -> OutlierSearch:
        precision = np.linalg.inv(known + factor * np.diag(noise))
        precision = 0.5 * (precision + precision.T)
        alpha = precision @ errors
        found = delete_worst(precision, alpha[None], factor * noise, most)
        rows, sizes, levels, joint = (each[0] for each in (found.rows, found.sizes, found.levels, found.joint_levels))
        return OutlierSearch(rows, sizes, levels, joint, float(joint.min()), factor, precision, alpha)

    def estimated(kept: Bool[np.ndarray, " n"]) -> float:
        rows = np.flatnonzero(kept)
        if len(rows) > MOST_ESTIMATED:  # a part of the data is a model of its own
            rows = rows[np.linspace(0, len(rows) - 1, MOST_ESTIMATED).round().astype(int)]
        return noise_factor(errors[rows], known[np.ix_(rows, rows)], noise[rows])[0]

    found = search()
    # Where many outliers have inflated the noise, none is suspected: begin with the noise of the best data.
    kept = np.ones(count, dtype=bool)
    kept[found.rows] = False
    factor = estimated(kept) / trimmed_variance(most / count)
    for _ in range(ROUNDS):
        found = search()
        again = estimated(found.kept(SUSPECTED))
        if abs(math.log(again / factor)) < 0.02:
            break
        factor = again
    return found


def trimmed_variance(fraction: float) -> float:
    """Return the variance of a standard normal variable whose largest sizes, a fraction of all, are cut off.

    Examples
    --------
    >>> from pilescore.diagnosis.deletion import trimmed_variance
    >>> round(trimmed_variance(0.2), 3)
    0.438
    """
    end = -float(ndtri(0.5 * fraction))
    return 1.0 - 2.0 * end * math.exp(-0.5 * end**2) / math.sqrt(2.0 * math.pi) / (1.0 - fraction)
