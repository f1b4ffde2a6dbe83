"""Predictions with the uncertainty of inferred parameters, and the arrays and tables of the report."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Array, Float

from ..equations import Nonlinear, Operator
from ..errors import InputError, PrecisionWarning
from ..inference import Posterior, left_out_residuals, left_out_variances, posterior
from ..model import Model
from ..nonlinear import Solution, linearise_in_jets, solve_nonlinear
from ..search import Minimum, with_nodes
from ..solvers import solve, with_tolerances
from .description import block_text
from .problem import Problem
from .summary import BlockSummary, KernelResult, ParameterCovariance

FIGURE_POINTS = {1: 201, 2: 61}
"""Points on each axis of the figures, which show one or two coordinates."""

MAX_FIGURE_OPERATORS = 6
"""The largest number of operators in the figures."""

NONLINEAR_STARTS = 4
"""The number of starts for nonlinear equations, if the first does not lead to a solution."""


def chosen_model(problem: Problem, chosen: KernelResult) -> Model:
    """Return the model that was chosen for a kernel, with nodes and tolerances of exact equations as in the search."""
    model = with_nodes(problem.models[chosen.name], chosen.nodes).replace(chosen.values)
    return with_tolerances(model, chosen.tolerance)


class Predictor:
    """Predicts with the chosen model of a problem, conditioned on its observations.

    The variance of a prediction is the posterior variance plus, to first order, the contribution of inferred
    parameters: `Σ_k ((m(θ + v_k) − m(θ − v_k))/2)²`, where `Σ_k v_k v_kᵀ` is their covariance and `m` the mean.
    A nonlinear model is linearised at its most likely solution.
    """

    def __init__(
        self,
        problem: Problem,
        chosen: KernelResult,
    ) -> None:
        self.problem = problem
        self.model = chosen_model(problem, chosen)
        self.values = dict(chosen.values)
        self.over = problem.over[chosen.name]
        self.covariance = chosen.covariance
        self.solution, self.posterior = _condition(self.model)

    def table(self, points: Float[np.ndarray, "n d"], texts: Sequence[str]) -> pd.DataFrame:
        """Return a table of the coordinates, and the mean and standard deviation of each operator."""
        columns: dict[str, Any] = {name: points[:, axis] for axis, name in enumerate(self.problem.box.names)}
        for text in texts:
            operator = self.problem.operator(text, self.values)
            columns[text], linear = _linearised(self.posterior, points, operator)
            if not np.isfinite(columns[text]).all():
                bad = points[np.flatnonzero(~np.isfinite(columns[text]))[0]]
                raise InputError(f"{text!r} cannot be predicted: it is NaN or infinite at the point {bad}")
            variance = self.posterior.variance(points, linear)
            # A central difference is exact to second order. Shortened steps are scaled back to one standard deviation.
            for reach, *ends in self._perturbed:
                above, below = (_linearised(at, points, self.problem.operator(text, values))[0] for values, at in ends)
                variance = variance + ((above - below) / (2 * reach)) ** 2
            columns[f"{text}_std"] = np.sqrt(variance)
        return pd.DataFrame(columns)

    @functools.cached_property
    def left_out_variances(self) -> Float[np.ndarray, " n"]:
        """The variance of each measurement as predicted from all other observations."""
        return left_out_variances(self.posterior.system)

    @functools.cached_property
    def _perturbed(self) -> list[tuple[float, Any, Any]]:
        """For each principal direction of the covariance: the step as a fraction, and the posteriors at both ends."""
        if self.covariance is None:
            return []
        names = self.covariance.names
        variances, directions = np.linalg.eigh(np.array(self.covariance.matrix))
        centre = np.array([self.values[name] for name in names])
        low, high = np.array([self.over[name] for name in names]).T
        ends = []
        for variance, direction in zip(variances, directions.T, strict=True):
            step = np.sqrt(max(variance, 0.0)) * direction  # rounding can make the smallest variance negative
            room = np.minimum(high - centre, centre - low)[step != 0] / np.abs(step[step != 0])
            reach = min(1.0, 0.9 * float(room.min(initial=np.inf)))  # parameters stay within their bounds
            shifted = [(centre + sign * reach * step).tolist() for sign in (1, -1)]
            both = [self.values | dict(zip(names, parameters, strict=True)) for parameters in shifted]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PrecisionWarning)  # already given for the posterior in the middle
                above, below = ((values, _condition(self.model.replace(values), self.solution)[1]) for values in both)
            ends.append((reach, above, below))
        return ends


def _condition(model: Model, near: Solution | None = None) -> tuple[Solution | None, Posterior]:
    """Return the solution of a nonlinear model, started near a similar one, and the posterior."""
    if not model.is_nonlinear:
        return None, posterior(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)  # `posterior` gives it again
        solved = solve_nonlinear(model, starts=1 if near is None else [near])
        if not solved.converged:
            solved = solve_nonlinear(model, starts=NONLINEAR_STARTS)
    # Not `posterior`, which refuses a model whose equations do not hold: the selection has a warning that says so.
    system = solve(solved.model)
    system.warn_if_imprecise(stacklevel=3)
    return solved, Posterior(system)


def _linearised(
    conditioned: Posterior, points: Float[np.ndarray, "n d"], operator: Operator | Nonlinear
) -> tuple[Float[np.ndarray, " n"], Operator]:
    """Return an operator of the posterior mean at points, and the linear operator to first order around it."""
    if isinstance(operator, Operator):
        return conditioned.mean(points, operator), operator
    terms = tuple((alpha, (((), 1.0),)) for alpha in operator.indices(points.shape[1]))
    derivatives = [Operator(operator.names, (term,), ()) for term in terms]
    jets = np.stack([conditioned.mean(points, derivative) for derivative in derivatives])
    value, slopes = linearise_in_jets(operator, points, jnp.asarray(jets))
    by_point = dict(zip((point.tobytes() for point in points), np.asarray(slopes).T, strict=True))
    return np.asarray(value), _TabulatedOperator(operator.names, terms, (), by_point)


class _TabulatedOperator(Operator):
    """An operator whose coefficients are known only at certain points.

    They are looked up by the bits of a point, since the posterior takes the points in blocks.
    """

    by_point: Mapping[bytes, Float[np.ndarray, " terms"]]

    def coefficients(self, points: Float[np.ndarray | Array, "n d"]) -> Float[Array, "terms n"]:
        """Return the coefficient of each term at each point."""
        return jnp.asarray(np.stack([self.by_point[np.asarray(point).tobytes()] for point in points], axis=1))


def parameter_covariance(best: Minimum, inferred: Sequence[str]) -> ParameterCovariance | None:
    """Return the covariance of inferred parameters at a minimum; None if they have none.

    Parameters without a standard error, such as those at a bound, are left out.
    """
    names = [name for name in inferred if np.isfinite(best.standard_errors[name])]
    if best.covariance is None or not names:
        return None
    # The block of the covariance marginalises the hyperparameters; they are not taken as known.
    rows = [list(best.values).index(name) for name in names]
    return ParameterCovariance(names=names, matrix=best.covariance[np.ix_(rows, rows)].tolist())


def _residuals(predictor: Predictor) -> np.ndarray:
    """Return `ỹ − ηQα = Sα`, the residuals of the posterior mean, in the order of the model's blocks."""
    system = predictor.posterior.system
    residuals = np.empty(predictor.model.size)
    residuals[system.rows.order] = system.noise * system.alpha  # the difference itself would cancel
    return residuals


def figure_arrays(predictor: Predictor) -> tuple[xr.Dataset, dict[str, float]]:
    """Return the arrays behind the figures, and the fixed coordinates of the figures.

    The arrays are operators along one or two coordinates, and each measurement beside its predictions.
    """
    problem, model, system = predictor.problem, predictor.model, predictor.posterior.system
    box = problem.box
    texts = list(dict.fromkeys([problem.unknown, *problem.operators]))[:MAX_FIGURE_OPERATORS]
    count = min(box.dimension, 2)
    axes = [np.linspace(box.lower[i], box.upper[i], FIGURE_POINTS[count]) for i in range(count)]
    fixed = _slice_point(predictor)[count:]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, count)
    table = predictor.table(np.column_stack([grid, np.tile(fixed, (len(grid), 1))]), texts)
    dims, shape = ("first", "second")[:count], [len(axis) for axis in axes]
    readings = np.concatenate([np.empty(0), *(block.values for block in model.data)])
    # The point of a functional is the mean of its nodes.
    points = [np.tile(b.points.mean(axis=0), (b.size, 1)) if b.is_functional else b.points for b in model.data]
    results = xr.Dataset(
        {
            "mean": (("operator", *dims), table[texts].to_numpy().T.reshape(-1, *shape)),
            "std": (("operator", *dims), table[[f"{text}_std" for text in texts]].to_numpy().T.reshape(-1, *shape)),
            "reading": ("row", readings),
            "reading_point": (("row", "coordinate"), np.concatenate([np.empty((0, box.dimension)), *points])),
            "reading_block": ("row", np.repeat(np.arange(len(model.data)), [block.size for block in model.data])),
            "fitted": ("row", readings - _residuals(predictor)[: len(readings)]),
            "left_out": ("row", readings - left_out_residuals(system, predictor.left_out_variances)),
            "left_out_std": ("row", np.sqrt(predictor.left_out_variances)),
        },
        {"operator": texts, **dict(zip(dims, axes, strict=True))},
    )
    return results, dict(zip(box.names[count:], fixed, strict=True))


def block_summaries(predictor: Predictor) -> list[BlockSummary]:
    """Return each block of observations with its noise and its residual."""
    problem, model = predictor.problem, predictor.model
    scaled = _residuals(predictor) / np.sqrt(model.noise)
    by_block = np.split(scaled, np.cumsum([block.size for block in model.blocks])[:-1])
    return [
        BlockSummary(
            name=label,
            role=block.role,
            observed=f"{block_text(block, problem.unknown)} = {problem.texts[label]}",
            size=block.size,
            noise=float(np.sqrt(np.median(0.5 * temperature / block.weights))),
            residual=float(np.sqrt(np.mean(residuals**2))),
            exact=block.exact,
        )
        for label, block, temperature, residuals in zip(
            model.labels, model.blocks, model.temperatures, by_block, strict=True
        )
    ]


def _slice_point(predictor: Predictor) -> list[float]:
    """Return a point where the unknown is large; the figures of more than two coordinates are slices through it."""
    box = predictor.problem.box
    if box.dimension <= 2:
        return [0.5 * (a + b) for a, b in zip(box.lower, box.upper, strict=True)]
    points = np.random.default_rng(0).uniform(box.lower, box.upper, (500, box.dimension))
    return points[np.argmax(np.abs(predictor.posterior.mean(points)))].round(6).tolist()
