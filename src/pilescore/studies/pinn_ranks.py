"""Rank correlations with bootstrap intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import rankdata

LEVEL = 0.95
"""Of the intervals."""


def spearman(first: Any, second: Any) -> Float[np.ndarray, "..."]:
    """Return the rank correlations along the last axis, ties with their mean rank; NaN where all are the same.

    Examples
    --------
    >>> from pilescore.studies.pinn_ranks import spearman
    >>> float(spearman([1.0, 2.0, 3.0], [10.0, 30.0, 20.0]))
    0.5
    """
    a, b = (rankdata(values, axis=-1) for values in (first, second))
    a, b = (ranks - ranks.mean(axis=-1, keepdims=True) for ranks in (a, b))
    spread = np.sqrt((a**2).sum(axis=-1) * (b**2).sum(axis=-1))
    with np.errstate(invalid="ignore"):
        return np.asarray((a * b).sum(axis=-1) / spread)


def rank_correlation(score: np.ndarray, error: np.ndarray, resamples: int) -> dict[str, Any]:
    """Return the rank correlation of a score with the error, and its bootstrap interval.

    With two axes the rows are drawn, each with all that it has: what is in one row is not independent.
    """
    drawn = _resampled(len(score), resamples)
    flat = (len(drawn), -1)
    found = spearman(score[drawn].reshape(flat), error[drawn].reshape(flat))
    return {"value": float(spearman(score.ravel(), error.ravel())), "interval": _interval(found)}


def difference(first: np.ndarray, second: np.ndarray, error: np.ndarray, resamples: int) -> dict[str, Any]:
    """Return by how much the first score ranks better than the second one, and the interval of that."""
    drawn = _resampled(len(error), resamples)
    found = spearman(first[drawn], error[drawn]) - spearman(second[drawn], error[drawn])
    return {"value": float(spearman(first, error) - spearman(second, error)), "interval": _interval(found)}


def _resampled(count: int, resamples: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, count, (resamples, count))


def _interval(found: np.ndarray) -> list[float]:
    """Return the interval of resamples, leaving out those in which all are the same; NaN where there are no others."""
    tail, known = (1 - LEVEL) / 2, found[np.isfinite(found)]
    return [float(end) for end in np.quantile(known, [tail, 1 - tail])] if known.size else [float("nan")] * 2
