"""Predictions by a problem's model: means, and deviations that know of inferred parameters."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from .errors import PrecisionWarning
from .linalg import EPS
from .minimum import Minimum
from .posterior import Posterior, posterior
from .problems import Problem


class Predictor:
    """A model of a problem with chosen values, conditioned on its observations.

    The variance of what is predicted is that of the posterior, plus, to first order, what the uncertainty of inferred
    parameters adds: `Σ_k ((m(θ + v_k) − m(θ − v_k))/2)²`, where `Σ_k v_k v_kᵀ` is their covariance and `m` the mean.
    """

    def __init__(
        self, problem: Problem, kernel: str, values: Mapping[str, float], covariance: Mapping[str, Any] | None
    ) -> None:
        self.problem = problem
        self.model = problem.models[kernel].replace(values)
        self.values = dict(values)
        self.over = problem.over[kernel]
        self.covariance = covariance
        self.posterior: Posterior = posterior(self.model)

    def table(self, points: Float[np.ndarray, "n d"], texts: Sequence[str]) -> pd.DataFrame:
        """Return the coordinates, and mean and deviation of each operator."""
        columns: dict[str, Any] = {name: points[:, axis] for axis, name in enumerate(self.problem.box.names)}
        for text in texts:
            operator = self.problem.operator(text, self.values)
            columns[text] = self.posterior.mean(points, operator)
            variance = self.posterior.variance(points, operator)
            for reach, above, below in self._varied:
                means = [each.mean(points, self.problem.operator(text, values)) for values, each in (above, below)]
                variance = variance + ((means[0] - means[1]) / (2 * reach)) ** 2
            columns[f"{text}_std"] = np.sqrt(variance)
        return pd.DataFrame(columns)

    @functools.cached_property
    def _varied(self) -> list[tuple[float, Any, Any]]:
        """For each principal direction of the covariance: how far it is followed, and the posteriors at both ends."""
        if self.covariance is None:
            return []
        names = self.covariance["names"]
        spreads, directions = np.linalg.eigh(np.array(self.covariance["matrix"]))
        centre = np.array([self.values[name] for name in names])
        low, high = np.array([self.over[name] for name in names]).T
        found = []
        for spread, direction in zip(spreads, directions.T, strict=True):
            step = np.sqrt(max(spread, 0.0)) * direction
            room = np.minimum(high - centre, centre - low)[step != 0] / np.abs(step[step != 0])
            reach = min(1.0, 0.9 * float(room.min(initial=np.inf)))  # parameters stay within their bounds
            moved = [(centre + sign * reach * step).tolist() for sign in (1, -1)]
            values = [self.values | dict(zip(names, each, strict=True)) for each in moved]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PrecisionWarning)  # it was said of the posterior in the middle
                above, below = ((each, posterior(self.model.replace(each))) for each in values)
            found.append((reach, above, below))
        return found


def parameter_covariance(best: Minimum, ranges: Mapping[str, tuple[float, float]]) -> dict[str, Any] | None:
    """Return the covariance of inferred parameters by the curvature of the score; None where there is none.

    `ranges` are the bounds within which each was searched: the curvature is measured in units of these.
    """
    curvature = best.curvature
    names = [] if curvature is None else [name for name in ranges if name in curvature.names]
    if curvature is None or not names or not np.isfinite([curvature.standard_errors[name] for name in names]).all():
        return None
    rows = [curvature.names.index(name) for name in names]
    eigenvalues, vectors = np.linalg.eigh(curvature.hessian)
    inverse = (vectors / np.maximum(eigenvalues, EPS * eigenvalues[-1])) @ vectors.T
    deviations = np.sqrt(inverse.diagonal()[rows])
    correlations = inverse[np.ix_(rows, rows)] / np.outer(deviations, deviations)
    errors = np.array([best.standard_errors[name] for name in names])
    return {"names": names, "matrix": (correlations * np.outer(errors, errors)).tolist()}
