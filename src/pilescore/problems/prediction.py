"""Predictions with the uncertainty of hyperparameters, and the arrays and tables of the report."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Array, Float

from ..equations import Nonlinear, Operator
from ..errors import InputError, PrecisionWarning
from ..inference import (
    MixturePosterior,
    ModelMixture,
    Posterior,
    WarmStart,
    WeightedModel,
    left_out_residuals,
    left_out_variances,
    posterior,
)
from ..model import Model, follow, operator_paths
from ..nonlinear import Solution, linearise_in_jets, solve_nonlinear
from ..search import with_nodes
from ..solvers import solve, with_tolerances
from .description import block_text
from .problem import Problem
from .summary import BlockSummary, HyperposteriorSummary, KernelResult

FIGURE_POINTS = {1: 201, 2: 61}
"""Points on each axis of the figures, which show one or two coordinates."""

MAX_FIGURE_VALUES = 10_000
"""The largest number of values over two coordinates, for all operators together: about eighty models predict each."""

MAX_FIGURE_OPERATORS = 6
"""The largest number of operators in the figures."""

IMPRECISE_WEIGHT = 0.5
"""The weight of models, on average over operators, above which a warning about rounding counts."""

NONLINEAR_STARTS = 4
"""The number of starts for nonlinear equations, if the first does not lead to a solution."""


def chosen_model(problem: Problem, chosen: KernelResult) -> Model:
    """Return the model that was chosen for a kernel, with nodes and tolerances of exact equations as in the search."""
    model = with_nodes(problem.models[chosen.name], chosen.nodes).replace(chosen.values)
    return with_tolerances(model, chosen.tolerance)


class Predictor:
    """Predicts with the weighted models of a problem, conditioned on its observations.

    Means and variances are those of the mixture, `Σ_i w_i p(f | y, θ_i)`: they contain the uncertainty of the chosen
    hyperparameters and inferred parameters. Without their distribution the chosen model predicts. A nonlinear model is
    linearised at its most likely solution. Everything else, such as residuals, belongs to the chosen model.
    """

    def __init__(
        self,
        problem: Problem,
        chosen: KernelResult,
    ) -> None:
        self.problem = problem
        self.model = chosen_model(problem, chosen)
        self.values = dict(chosen.values)
        self.solution, self.posterior = _condition(self.model)
        self.mixture: MixturePosterior | None = None
        if chosen.hyperposterior is not None:
            self.mixture = posterior(_StoredModels(self.model, chosen.hyperposterior, _warm_start(self.solution)))

    def condition(self) -> None:
        """Condition all weighted models; raise a `PilescoreError` if models that matter cannot be solved."""
        if self.mixture is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PrecisionWarning)  # already given for the chosen model
                self.mixture.each(lambda conditioned, part: None)

    def table(self, points: Float[np.ndarray, "n d"], texts: Sequence[str], known: bool = False) -> pd.DataFrame:
        """Return a table of the coordinates, and the mean and standard deviation of each operator.

        Parameters
        ----------
        points, texts
            Points, and operators as text.
        known
            Whether to take the chosen hyperparameters as known, and the chosen model alone.
        """
        operators = [self.problem.operator(text) for text in texts]
        totals = [_Moments() for _ in texts]
        imprecise: dict[str, float] = {}

        def add(conditioned: Posterior, weight: float, values: Mapping[str, Any]) -> None:
            for text, operator, total in zip(texts, operators, totals, strict=True):
                mean, linear = _linearised(conditioned, points, _with_values(operator, values))
                if not np.isfinite(mean).all():
                    bad = points[np.flatnonzero(~np.isfinite(mean))[0]]
                    raise InputError(f"{text!r} cannot be predicted: it is NaN or infinite at the point {bad}")
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always", PrecisionWarning)
                    total.add(weight, mean, conditioned.variance(points, linear))
                for warning in caught:
                    imprecise[str(warning.message)] = imprecise.get(str(warning.message), 0.0) + weight

        if known or self.mixture is None:
            add(self.posterior, 1.0, self.values)
        else:
            self.condition()
            self.mixture.each(lambda conditioned, part: add(conditioned, part.weight, part.values))
        # Variances of less than half of the models that rounding has made zero hardly change those of the mixture.
        if sum(imprecise.values()) > IMPRECISE_WEIGHT * len(texts):
            warnings.warn(max(imprecise, key=imprecise.__getitem__), PrecisionWarning, stacklevel=3)
        columns: dict[str, Any] = {name: points[:, axis] for axis, name in enumerate(self.problem.box.names)}
        for text, total in zip(texts, totals, strict=True):
            columns |= {text: total.mean, f"{text}_std": total.std}
        return pd.DataFrame(columns)

    @functools.cached_property
    def left_out_variances(self) -> Float[np.ndarray, " n"]:
        """The variance of each measurement as predicted from all other observations."""
        return left_out_variances(self.posterior.system)


class _StoredModels(ModelMixture):
    """The weighted models of a selection."""

    def __init__(self, chosen: Model, stored: HyperposteriorSummary, near: WarmStart | None) -> None:
        self.chosen, self.stored, self.near = chosen, stored, near

    @functools.cached_property
    def weighted_models(self) -> Sequence[WeightedModel]:
        """The models: the chosen one, with its nodes and tolerances, at other hyperparameters."""
        rows = [dict(zip(self.stored.names, point, strict=True)) for point in self.stored.points]
        weighted = zip(self.stored.weights, rows, strict=True)
        return [WeightedModel(weight, self.chosen.replace(row), row, self.near) for weight, row in weighted]


class _Moments:
    """The mean and the standard deviation of a mixture, from means and variances that are added one by one."""

    def __init__(self) -> None:
        self.mean: Any = 0.0
        self.weight = 0.0
        self._within: Any = 0.0
        self._between: Any = 0.0

    def add(self, weight: float, mean: Float[np.ndarray, " n"], variance: Float[np.ndarray, " n"]) -> None:
        """Add a component."""
        self.weight += weight
        # The variance of the means is updated, not computed as a difference of squares, which would cancel.
        away = mean - self.mean
        self.mean = self.mean + (weight / self.weight) * away
        self._between = self._between + weight * away * (mean - self.mean)
        self._within = self._within + weight * variance

    @property
    def std(self) -> Float[np.ndarray, " n"]:
        """The standard deviation: the mean of the variances plus the variance of the means, under the root."""
        return np.asarray(np.sqrt((self._within + self._between) / self.weight))


def _warm_start(solution: Solution | None) -> WarmStart | None:
    """Return the solution of the chosen model as a start for models near it."""
    if solution is None or not solution.converged:
        return None
    return WarmStart(solution=solution.expansion.values, solved=True)


def _condition(model: Model) -> tuple[Solution | None, Posterior]:
    """Return the solution of a nonlinear model, and the posterior."""
    if not model.is_nonlinear:
        return None, posterior(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)  # `posterior` gives it again
        solved = solve_nonlinear(model, starts=1)
        if not solved.converged:
            solved = solve_nonlinear(model, starts=NONLINEAR_STARTS)
    # Not `posterior`, which refuses a model whose equations do not hold: the selection has a warning that says so.
    system = solve(solved.model)
    system.warn_if_imprecise(stacklevel=3)
    return solved, Posterior(system)


def _with_values(operator: Operator | Nonlinear, values: Mapping[str, Any]) -> Operator | Nonlinear:
    """Return an operator with these values of its parameters."""
    paths = [(name, path) for name, found in operator_paths(operator).items() for path in found]
    if not paths:
        return operator
    # Values are leaves: the compiled code is the same for all models.
    new = [jnp.asarray(values[name], dtype=float) for name, _ in paths]
    changed: Operator | Nonlinear = eqx.tree_at(lambda root: [follow(root, path) for _, path in paths], operator, new)
    return changed


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


def _residuals(predictor: Predictor) -> np.ndarray:
    """Return `ỹ − ηQα = Sα`, the residuals of the posterior mean, in the order of the model's blocks."""
    system = predictor.posterior.system
    residuals = np.empty(predictor.model.size)
    residuals[system.rows.order] = system.noise * system.alpha  # the difference itself would cancel
    return residuals


def figure_arrays(predictor: Predictor) -> tuple[xr.Dataset, dict[str, float]]:
    """Return the arrays behind the figures, and the fixed coordinates of the figures.

    The arrays are operators along one or two coordinates, with the uncertainty of hyperparameters, and of the chosen
    model alone (`mean_known`, `std_known`); and each measurement beside its predictions.
    """
    problem, model, system = predictor.problem, predictor.model, predictor.posterior.system
    box = problem.box
    texts = list(dict.fromkeys([problem.unknown, *problem.operators]))[:MAX_FIGURE_OPERATORS]
    count = min(box.dimension, 2)
    size = min(FIGURE_POINTS[count], int((MAX_FIGURE_VALUES / len(texts)) ** (1 / count)))
    axes = [np.linspace(box.lower[i], box.upper[i], size) for i in range(count)]
    fixed = _slice_point(predictor)[count:]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, count)
    points = np.column_stack([grid, np.tile(fixed, (len(grid), 1))])
    dims, shape = ("first", "second")[:count], [len(axis) for axis in axes]
    curves = {}
    for suffix in ("", "_known"):
        table = predictor.table(points, texts, known=bool(suffix))
        for what, columns in (("mean", texts), ("std", [f"{text}_std" for text in texts])):
            curves[what + suffix] = ("operator", *dims), table[columns].to_numpy().T.reshape(-1, *shape)
    readings = np.concatenate([np.empty(0), *(block.values for block in model.data)])
    # The point of a functional is the mean of its nodes.
    where = [np.tile(b.points.mean(axis=0), (b.size, 1)) if b.is_functional else b.points for b in model.data]
    results = xr.Dataset(
        {
            **curves,
            "reading": ("row", readings),
            "reading_point": (("row", "coordinate"), np.concatenate([np.empty((0, box.dimension)), *where])),
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
