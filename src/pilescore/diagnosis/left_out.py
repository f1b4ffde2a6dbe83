"""Statistics of left-out errors for many data sets at once: score tests of the noise, and tests of its distribution.

With the covariance `B` of data given everything else, `P = B⁻¹` and `α = P e`, the slope of the log density of the
errors `e` in a change `R` of the covariance is `½ (αᵀ R α − tr P R)`, and its variance is `½ tr(P R P R)`. No statistic
needs a refit.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from scipy.spatial import cKDTree
from scipy.special import log_ndtr


def variance_scores(
    precision: Float[np.ndarray, "n n"],
    alpha: Float[np.ndarray, "m n"],
    noise: Float[np.ndarray, " n"],
    directions: Float[np.ndarray, "n p"],
) -> Float[np.ndarray, "m p"]:
    """Return score tests of a noise whose logarithm changes along directions, in standard deviations.

    The level of the noise is free: each data set is scaled to the mean square of one, and directions are made
    orthogonal to a constant in the information.
    """
    information = 0.5 * noise * noise[:, None] * precision**2
    level = information.sum(axis=0)
    directions = directions - (level @ directions) / level.sum()
    deviations = np.sqrt(np.maximum(np.einsum("ip,ij,jp->p", directions, information, directions), 1e-300))
    return 0.5 * (noise * (_scaled(precision, alpha) ** 2 - precision.diagonal())) @ directions / deviations


def correlation_scores(
    precision: Float[np.ndarray, "n n"],
    alpha: Float[np.ndarray, "m n"],
    noise: Float[np.ndarray, " n"],
    correlations: Float[np.ndarray, "p n n"],
) -> tuple[Float[np.ndarray, "m p"], Float[np.ndarray, " p"]]:
    """Return score tests of noise with given correlations, in standard deviations, and their information.

    The level of the noise is free. A score divided by the root of its information is a one-step estimate of the
    fraction of the noise that is correlated.

    Parameters
    ----------
    precision, alpha, noise
        `P`, `α` of each data set, and the noise variances.
    correlations
        Matrices with zero diagonal.
    """
    scaled, deviation = _scaled(precision, alpha), np.sqrt(noise)
    level = precision * noise  # P S
    own = 0.5 * float(np.sum(level * level.T))
    scores, information = np.empty((len(alpha), len(correlations))), np.empty(len(correlations))
    for number, correlation in enumerate(correlations):
        change = deviation * deviation[:, None] * correlation
        product = precision @ change
        slope = 0.5 * (np.einsum("mi,mi->m", scaled @ change, scaled) - product.trace())
        shared = 0.5 * float(np.sum(product * level.T))
        of_level = 0.5 * (scaled**2 @ noise - level.trace())
        information[number] = max(0.5 * float(np.sum(product * product.T)) - shared**2 / own, 1e-300)
        scores[:, number] = (slope - shared / own * of_level) / np.sqrt(information[number])
    return scores, information


def standardised(precision: Float[np.ndarray, "n n"], alpha: Float[np.ndarray, "m n"]) -> Float[np.ndarray, "m n"]:
    """Return left-out errors in predicted deviations, scaled to a mean square of one."""
    sizes = alpha / np.sqrt(precision.diagonal())
    scale = np.sqrt(np.mean(sizes**2, axis=1, keepdims=True))
    return sizes / np.where(scale > 0, scale, 1.0)


def normality(sizes: Float[np.ndarray, "m n"]) -> Float[np.ndarray, " m"]:
    """Return the Anderson–Darling distance of standardised errors from a normal distribution with their variance.

    Correlated errors, and a scale that was estimated, change its distribution: compare it with simulated data.
    """
    count = sizes.shape[1]
    ordered = np.sort(sizes, axis=1)
    weights = 2.0 * np.arange(1, count + 1) - 1.0
    return -count - (log_ndtr(ordered) + log_ndtr(-ordered[:, ::-1])) @ weights / count


def excess_kurtosis(sizes: Float[np.ndarray, "m n"]) -> Float[np.ndarray, " m"]:
    """Return the excess kurtosis of errors: positive for heavy tails, negative for bounded errors."""
    return np.mean(sizes**4, axis=1) / np.mean(sizes**2, axis=1) ** 2 - 3.0


def neighbour_correlations(
    points: Float[np.ndarray, "n d"], block: Int[np.ndarray, " n"], factors: tuple[float, ...]
) -> tuple[Float[np.ndarray, "p n n"], Float[np.ndarray, " p"]]:
    """Return correlations that decay with distance within blocks, and their lengths.

    Lengths are multiples of the median distance to the nearest other point, in coordinates scaled to the extent of all.
    """
    extent = np.ptp(points, axis=0)
    places = points / np.where(extent > 0, extent, 1.0)
    apart = np.sqrt(((places[:, None] - places) ** 2).sum(axis=-1))
    same = block[:, None] == block
    others = np.where(same & ~np.eye(len(points), dtype=bool), apart, np.inf)
    near = others.min(axis=1)
    usable = near[np.isfinite(near) & (near > 0)]
    if not len(usable):
        return np.zeros((0, len(points), len(points))), np.zeros(0)
    lengths = float(np.median(usable)) * np.array(factors)
    matrices = np.exp(-apart / lengths[:, None, None]) * same
    matrices[:, np.arange(len(points)), np.arange(len(points))] = 0.0
    return matrices, lengths


def neighbourhoods(points: Float[np.ndarray, "n d"], size: int) -> Float[np.ndarray, "n p"]:
    """Return for each point which points are nearest to it, in coordinates scaled to the extent of all; none twice."""
    extent = np.ptp(points, axis=0)
    places = points / np.where(extent > 0, extent, 1.0)
    nearest = np.asarray(cKDTree(places).query(places, k=size)[1]).reshape(len(points), size)
    groups = np.unique(np.sort(nearest, axis=1), axis=0)
    inside = np.zeros((len(points), len(groups)))
    inside[groups.T, np.arange(len(groups))] = 1.0
    return inside


def draw(precision: Float[np.ndarray, "n n"], count: int, seed: int) -> Float[np.ndarray, "m n"]:
    """Return `α` of data sets drawn from the model; their covariance is `P`."""
    return np.random.default_rng(seed).standard_normal((count, len(precision))) @ np.linalg.cholesky(precision).T


def _scaled(precision: Float[np.ndarray, "n n"], alpha: Float[np.ndarray, "m n"]) -> Float[np.ndarray, "m n"]:
    """Return `α` of data sets that are scaled to a mean square of one, `eᵀPe = n`."""
    squares = np.sum(np.linalg.solve(np.linalg.cholesky(precision), alpha.T) ** 2, axis=0)
    return alpha * np.sqrt(alpha.shape[1] / np.where(squares > 0, squares, 1.0))[:, None]
