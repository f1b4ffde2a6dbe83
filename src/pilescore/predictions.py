"""Predictions by a problem's model: means, and deviations that know of inferred parameters."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float

from .errors import InputError, PrecisionWarning
from .frames import pure_linearised
from .linalg import EPS
from .minimum import Minimum
from .model import Model
from .nonlinear import Nonlinear
from .operators import Operator
from .posterior import Posterior, posterior
from .problems import Problem
from .solving import Solved, solve_nonlinear

STARTS = 4
"""Of solving nonlinear equations where one does not lead to a solution."""


class Predictor:
    """A model of a problem with chosen values, conditioned on its observations.

    The variance of what is predicted is that of the posterior, plus, to first order, what the uncertainty of inferred
    parameters adds: `Σ_k ((m(θ + v_k) − m(θ − v_k))/2)²`, where `Σ_k v_k v_kᵀ` is their covariance and `m` the mean.
    Of a nonlinear equation the posterior is that of the model linearised at its most likely solution.
    """

    def __init__(
        self, problem: Problem, kernel: str, values: Mapping[str, float], covariance: Mapping[str, Any] | None
    ) -> None:
        self.problem = problem
        self.model = problem.models[kernel].replace(values)
        self.values = dict(values)
        self.over = problem.over[kernel]
        self.covariance = covariance
        self.solved, self.posterior = _conditioned(self.model)

    def table(self, points: Float[np.ndarray, "n d"], texts: Sequence[str]) -> pd.DataFrame:
        """Return the coordinates, and mean and deviation of each operator."""
        columns: dict[str, Any] = {name: points[:, axis] for axis, name in enumerate(self.problem.box.names)}
        for text in texts:
            operator = self.problem.operator(text, self.values)
            columns[text] = _mean(self.posterior, points, operator)
            if not np.isfinite(columns[text]).all():
                bad = points[np.flatnonzero(~np.isfinite(columns[text]))[0]]
                raise InputError(f"{text!r} cannot be predicted: it is NaN or infinite at the point {bad}")
            variance = self.posterior.variance(points, _linearised(self.posterior, points, operator))
            for reach, above, below in self._varied:
                means = [_mean(each, points, self.problem.operator(text, values)) for values, each in (above, below)]
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
                above, below = ((each, _conditioned(self.model.replace(each), self.solved)[1]) for each in values)
            found.append((reach, above, below))
        return found


def _conditioned(model: Model, near: Solved | None = None) -> tuple[Solved | None, Posterior]:
    """Return the posterior, of a nonlinear model with its most likely solution, sought from that of a similar one."""
    if not model.is_nonlinear:
        return None, posterior(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)  # it is said of the posterior
        solved = solve_nonlinear(model, starts=1 if near is None else [near])
        if not solved.converged:
            solved = solve_nonlinear(model, starts=STARTS)
    return solved, posterior(solved.model)


def _mean(
    given: Posterior, points: Float[np.ndarray, "n d"], operator: Operator | Nonlinear
) -> Float[np.ndarray, " n"]:
    """Return the posterior mean of an operator, or a nonlinear one of the posterior mean."""
    return given.mean(points, operator) if isinstance(operator, Operator) else _around(given, points, operator)[0]


def _linearised(given: Posterior, points: Float[np.ndarray, "n d"], operator: Operator | Nonlinear) -> Operator:
    """Return an operator, or what a nonlinear one is at points for small changes of the posterior mean."""
    if isinstance(operator, Operator):
        return operator
    held = dict(zip((point.tobytes() for point in points), _around(given, points, operator)[1].T, strict=True))
    terms = tuple((alpha, (((), 1.0),)) for alpha in operator.indices(points.shape[1]))
    return _Tabulated(operator.names, terms, (), held)


def _around(
    given: Posterior, points: Float[np.ndarray, "n d"], operator: Nonlinear
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "indices n"]]:
    """Return a nonlinear operator of the posterior mean, and its derivatives there."""
    indices = operator.indices(points.shape[1])
    pure = [Operator(operator.names, ((alpha, (((), 1.0),)),), ()) for alpha in indices]
    jets = np.stack([given.mean(points, each) for each in pure])
    value, slopes = pure_linearised(operator, points, jnp.asarray(jets))
    return np.asarray(value), np.asarray(slopes)


class _Tabulated(Operator):
    """An operator whose coefficients are known at certain points only."""

    held: Mapping[bytes, Float[np.ndarray, " terms"]]

    def coefficients(self, points: Float[np.ndarray | Array, "n d"]) -> Float[Array, "terms n"]:
        """Return the coefficient of each term at each of these points."""
        return jnp.asarray(np.stack([self.held[np.asarray(point).tobytes()] for point in points], axis=1))


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
