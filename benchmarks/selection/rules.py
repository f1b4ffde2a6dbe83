"""Rules that choose hyperparameters, and the true errors of their choices."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy.stats import spearmanr

import pilescore as ps

from .cases import Case

PILE = "PILE (gradient)"
GIVEN = "PILE given physics (gradient)"
DATA_ONLY = "data-only evidence"
CRITERIA = {
    "PILE (grid)": "pile",
    "PILE given physics (grid)": "given",
    "profiled PILE (grid)": "profiled",
    DATA_ONLY: "data_only",
    "leave-one-out": "leave_one_out",
    "5-fold cross-validation": "cross_validation",
    "training loss": "training_loss",
}
"""Rules that choose the grid point with the least value of a criterion, and the column of the criterion."""
RULES = (PILE, GIVEN, *CRITERIA)
OTHERS = tuple(rule for rule in RULES if "PILE" not in rule)
"""Rules that do not use PILE."""
FOLDS = 5
SEARCH = ps.SearchOptions(tolerance=1e-7, max_evaluations=120)


@dataclasses.dataclass(frozen=True)
class RuleChoice:
    """The hyperparameters that a rule chose, and the relative L² error of their posterior mean."""

    values: Mapping[str, float]
    error: float


@dataclasses.dataclass(frozen=True, eq=False)
class RuleComparison:
    """The choices of all rules for one model, and their true errors."""

    best: ps.Minimum
    """The diagnosed minimum: of PILE given physics if the source is exact, of joint PILE if it was measured."""
    choices: Mapping[str, RuleChoice]
    correlations: Mapping[str, float]
    """The rank correlation of each criterion with the true error, over the grid."""
    oracle: float
    """The least true error of all models on the grid and all chosen models."""
    failed: int
    """The number of grid points whose covariance could not be factored."""

    @property
    def error(self) -> float:
        """The true error of the diagnosed minimum."""
        return self.choices[GIVEN if self.best.score.given == "physics" else PILE].error


def compare_rules(case: Case, model: ps.Model, seed: int) -> RuleComparison:
    """Return the choices of all rules for a model of a case, and their true errors."""
    truth = true_values(case)
    joint, given = (minimum(model, case.over, seed, given_physics=given_physics) for given_physics in (False, True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.errors.PrecisionWarning)  # grids include models that nobody would use
        errors = _errors(case, model, truth)
        scores = criteria(model, case.grid, seed)
        chosen = {rule: _least(scores[column], case.grid) for rule, column in CRITERIA.items()}
        tried = {PILE: joint.values, GIVEN: given.values, **chosen}
        choices = {
            rule: RuleChoice(dict(values), relative_error(model.replace(values), case.on, truth))
            for rule, values in tried.items()
        }
    ranks = {rule: _correlation(scores[column], errors) for rule, column in CRITERIA.items()}
    oracle = min(float(errors.min()), *(choice.error for choice in choices.values()))
    return RuleComparison(given if case.given_physics else joint, choices, ranks, oracle, int(errors.isnull().sum()))


def minimum(model: ps.Model, over: Mapping[str, Any], seed: int, *, given_physics: bool) -> ps.Minimum:
    """Minimise PILE by its gradient from four starts, independent of the grid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.errors.PrecisionWarning)  # the diagnosis reports it
        best = ps.minimize(
            model,
            over,
            score=ps.Score("physics" if given_physics else "exact"),
            starts=4,
            search=dataclasses.replace(SEARCH, seed=seed),
            run=ps.RunOptions(progress=False),
        )
    if best.status == "interrupted":
        raise KeyboardInterrupt
    return best


def true_values(case: Case) -> Float[np.ndarray, " m"]:
    """Evaluate the truth at the quadrature nodes for errors."""
    return np.asarray(jax.vmap(case.truth)(jnp.asarray(case.on.points)))


def relative_error(model: ps.Model, on: ps.domains.Nodes, truth: Float[np.ndarray, " m"]) -> float:
    """Return the relative L² error of the posterior mean, for a truth at quadrature nodes."""
    error = ps.posterior(model).mean(on.points) - truth
    return float(on.weights @ error**2 / (on.weights @ truth**2)) ** 0.5


def criteria(model: ps.Model, grid: Mapping[str, Any], seed: int) -> xr.Dataset:
    """Return all criteria on a grid; NaN if a covariance cannot be factored.

    The evidence of the data alone does not depend on ρ.
    """
    scores = sweep(model, grid, losses=True)
    data_only = model.replace(physics=())
    data_grid = {name: values for name, values in grid.items() if _has(data_only, name)}
    return xr.Dataset(
        {
            "pile": scores["pile"],
            "given": sweep(model, grid, score="given_physics")["pile"],
            # At the best scale η the fit is one: 1 + log det C/N + log(fit) + log 2π.
            "profiled": 1 + scores["complexity"] + np.log(scores["fit"]) + scores["constant"],
            "data_only": sweep(data_only, data_grid)["pile"],
            "leave_one_out": scores["leave_one_out"],
            "cross_validation": cross_validation(model, grid, folds(model, seed)),
            "training_loss": scores["data_loss"] + scores["physics_loss"],
        }
    )


def sweep(model: ps.Model, grid: Mapping[str, Any], **options: Any) -> xr.Dataset:
    """Return a sweep, or raise `KeyboardInterrupt` if it was interrupted."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "interrupted", UserWarning)
        scores = ps.sweep(model, grid, **{"score": "joint"} | options, run=ps.RunOptions(progress=False))
    if (scores["status"] == "pending").any():
        raise KeyboardInterrupt
    return scores


def folds(model: ps.Model, seed: int) -> list[np.ndarray]:
    """Split the data at random into five parts: indices into the stacked vector of values."""
    count = sum(block.size for block in model.data)
    return np.array_split(np.random.default_rng(seed).permutation(count), FOLDS)


def cross_validation(model: ps.Model, grid: Mapping[str, Any], parts: list[np.ndarray]) -> xr.DataArray:
    """Return the mean squared error of each part, predicted by the other parts and the physics.

    Given the physics, the data have the mean `m` and the covariance `V = K + S`, where S is their noise. The residuals
    of a left-out part p are `[V⁻¹]_pp⁻¹ [V⁻¹(y − m)]_p`, so the model is not fitted again for each part.
    """
    values = np.concatenate([block.values for block in model.data])
    physics = model.replace(data=())
    # γ does not change the posterior given the physics, so it is computed once for all values of γ.
    posteriors: dict[tuple[float, ...], Any] = {}
    scores = np.full([len(axis) for axis in grid.values()], np.nan)
    for index, point in points(grid):
        prior = {name: value for name, value in point.items() if _has(physics, name)}
        key = tuple(prior.values())
        try:
            if key not in posteriors:
                posteriors[key] = _data_given_physics(physics.replace(prior), model.data)
        except ps.errors.NotPositiveDefiniteError:
            posteriors[key] = None
        if posteriors[key] is None:
            continue
        mean, covariance = posteriors[key]
        inverse = np.linalg.inv(covariance + np.diag(model.replace(point).noise[: len(values)]))
        alpha = inverse @ (values - mean)
        residuals = [np.linalg.solve(inverse[np.ix_(part, part)], alpha[part]) for part in parts]
        scores[index] = np.mean(np.concatenate(residuals) ** 2)
    return xr.DataArray(scores, dict(grid), list(grid))


def points(grid: Mapping[str, Any]) -> Iterator[tuple[tuple[int, ...], dict[str, float]]]:
    """Iterate over the points of a grid: their indices, and their values by name."""
    for index in itertools.product(*(range(len(axis)) for axis in grid.values())):
        yield index, {name: float(axis[i]) for (name, axis), i in zip(grid.items(), index, strict=True)}


def _data_given_physics(physics: ps.Model, data: tuple[ps.Observation, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance of the data, without their noise, given the physics."""
    post = ps.posterior(physics)
    parts = [(block.points, block.operator) for block in data if isinstance(block.operator, ps.Operator)]
    mean = [post.mean(points, operator) for points, operator in parts]
    covariance = [[post.covariance(*one, *other) for other in parts] for one in parts]
    return np.concatenate(mean), np.block(covariance)


def _has(model: ps.Model, name: str) -> bool:
    """Whether a model has a hyperparameter, or the vector of which it is an element."""
    return name.partition("[")[0] in model.parameters


def _errors(case: Case, model: ps.Model, truth: Float[np.ndarray, " m"]) -> xr.DataArray:
    """Return the true errors on the grid of a case; NaN if a covariance cannot be factored."""
    errors = np.full([len(axis) for axis in case.grid.values()], np.nan)
    for index, point in points(case.grid):
        try:
            errors[index] = relative_error(model.replace(point), case.on, truth)
        except ps.errors.NotPositiveDefiniteError:
            continue
    return xr.DataArray(errors, dict(case.grid), list(case.grid))


def _least(score: xr.DataArray, grid: Mapping[str, Any]) -> dict[str, float]:
    """Return the minimum of a criterion. Values on which it does not depend are the geometric middle of the grid."""
    index = np.unravel_index(np.nanargmin(score.values), score.shape)
    chosen = {str(name): float(score[name][i]) for name, i in zip(score.dims, index, strict=True)}
    return {name: chosen.get(name, float(np.exp(np.mean(np.log(axis))))) for name, axis in grid.items()}


def _correlation(score: xr.DataArray, errors: xr.DataArray) -> float:
    first, second = (array.transpose(*errors.dims).values.ravel() for array in xr.broadcast(score, errors))
    finite = np.isfinite(first) & np.isfinite(second)
    return float(spearmanr(first[finite], second[finite]).statistic)
