"""Rules by which hyperparameters may be chosen, and how good their choices are where the truth is known."""

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
"""Rules that take the point of a grid with the least of a criterion."""
RULES = (PILE, GIVEN, *CRITERIA)
OTHERS = tuple(rule for rule in RULES if "PILE" not in rule)
"""Rules that are not PILE in any form."""
FOLDS = 5
SEARCH: dict[str, Any] = {"starts": 4, "tolerance": 1e-7, "max_evaluations": 120, "progress": False}


@dataclasses.dataclass(frozen=True)
class Choice:
    """What a rule chose, and the relative L² error of the posterior mean there."""

    values: Mapping[str, float]
    error: float


@dataclasses.dataclass(frozen=True, eq=False)
class Judged:
    """What all rules chose for one model, and how good that is."""

    best: ps.Minimum
    """The minimum for diagnoses: of PILE given physics where the equation is exact, of both where it was measured."""
    choices: Mapping[str, Choice]
    correlations: Mapping[str, float]
    """Spearman's rank correlation of each criterion with the true error, over the grid."""
    oracle: float
    """The least true error of all models that were tried: those of the grid, and those that were chosen."""
    failed: int
    """Points of the grid whose covariance could not be factored."""

    @property
    def error(self) -> float:
        """The true error of what is diagnosed."""
        return self.choices[GIVEN if self.best.given_physics else PILE].error


def judged(case: Case, model: ps.Model, seed: int) -> Judged:
    """Return what every rule chooses for a model of a case, and the true errors there."""
    truth = true_values(case)
    joint, given = (minimum(model, case.over, seed, given_physics=each) for each in (False, True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.PrecisionWarning)  # a grid goes where nobody would stay
        errors = _errors(case, model, truth)
        scores = criteria(model, case.grid, seed)
        chosen = {rule: _least(scores[column], case.grid) for rule, column in CRITERIA.items()}
        tried = {PILE: joint.values, GIVEN: given.values, **chosen}
        choices = {
            rule: Choice(dict(values), relative_error(model.replace(values), case.on, truth))
            for rule, values in tried.items()
        }
    ranks = {rule: _correlation(scores[column], errors) for rule, column in CRITERIA.items()}
    oracle = min(float(errors.min()), *(choice.error for choice in choices.values()))
    return Judged(given if case.given_physics else joint, choices, ranks, oracle, int(errors.isnull().sum()))


def minimum(model: ps.Model, over: Mapping[str, Any], seed: int, *, given_physics: bool) -> ps.Minimum:
    """Return the minimum of PILE by its gradient from four starts, none of them taken from a grid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.PrecisionWarning)  # a diagnosis says it
        best = ps.minimize(model, over, seed=seed, given_physics=given_physics, **SEARCH)
    if best.ending == "interrupted":
        raise KeyboardInterrupt
    return best


def true_values(case: Case) -> Float[np.ndarray, " m"]:
    """Return the truth at the nodes of the rule for the error."""
    return np.asarray(jax.vmap(case.truth)(jnp.asarray(case.on.points)))


def relative_error(model: ps.Model, on: ps.Nodes, truth: Float[np.ndarray, " m"]) -> float:
    """Return the relative L² error of the posterior mean against a truth at nodes."""
    error = ps.posterior(model).mean(on.points) - truth
    return float(on.weights @ error**2 / (on.weights @ truth**2)) ** 0.5


def criteria(model: ps.Model, grid: Mapping[str, Any], seed: int) -> xr.Dataset:
    """Return all criteria on a grid; NaN where a covariance cannot be factored.

    The evidence of the data alone is blind to the temperature of the physics, and the same for all of its values.
    """
    found = swept(model, grid, losses=True)
    alone = dataclasses.replace(model, physics=())
    seen = {name: values for name, values in grid.items() if _has(alone, name)}
    return xr.Dataset(
        {
            "pile": found["pile"],
            "given": swept(model, grid, given_physics=True)["pile"],
            # At the best scale η the fit is one: 1 + log det C/N + log(fit) + log 2π.
            "profiled": 1 + found["complexity"] + np.log(found["fit"]) + found["constant"],
            "data_only": swept(alone, seen)["pile"],
            "leave_one_out": found["leave_one_out"],
            "cross_validation": cross_validation(model, grid, folds(model, seed)),
            "training_loss": found["data_loss"] + found["physics_loss"],
        }
    )


def swept(model: ps.Model, grid: Mapping[str, Any], **options: Any) -> xr.Dataset:
    """Return a sweep, or end if it was interrupted."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "interrupted", UserWarning)
        found = ps.sweep(model, grid, progress=False, **options)
    if (found["status"] == "pending").any():
        raise KeyboardInterrupt
    return found


def folds(model: ps.Model, seed: int) -> list[np.ndarray]:
    """Return the data in five parts at random: places in the stacked vector of values."""
    count = sum(block.size for block in model.data)
    return np.array_split(np.random.default_rng(seed).permutation(count), FOLDS)


def cross_validation(model: ps.Model, grid: Mapping[str, Any], parts: list[np.ndarray]) -> xr.DataArray:
    """Return the mean squared error at the data of each part, of the model fitted to the other parts and all physics.

    The physics is conditioned on first: under it the data have a mean `m` and a covariance `K`, and with noise
    `V = K + S`. The residuals of a part that is left out are `[V⁻¹]_pp⁻¹ [V⁻¹(y − m)]_p`.
    """
    values = np.concatenate([block.values for block in model.data])
    physics = dataclasses.replace(model, data=())
    known: dict[tuple[float, ...], Any] = {}
    scores = np.full([len(axis) for axis in grid.values()], np.nan)
    for place, point in points(grid):
        prior = {name: value for name, value in point.items() if _has(physics, name)}
        key = tuple(prior.values())
        try:
            if key not in known:
                known[key] = _data_given_physics(physics.replace(prior), model.data)
        except ps.NotPositiveDefiniteError:
            known[key] = None
        if known[key] is None:
            continue
        mean, covariance = known[key]
        inverse = np.linalg.inv(covariance + np.diag(model.replace(point).noise[: len(values)]))
        alpha = inverse @ (values - mean)
        left = [np.linalg.solve(inverse[np.ix_(part, part)], alpha[part]) for part in parts]
        scores[place] = np.mean(np.concatenate(left) ** 2)
    return xr.DataArray(scores, dict(grid), list(grid))


def points(grid: Mapping[str, Any]) -> Iterator[tuple[tuple[int, ...], dict[str, float]]]:
    """Iterate over the points of a grid: where each stands, and its values by name."""
    for place in itertools.product(*(range(len(axis)) for axis in grid.values())):
        yield place, {name: float(axis[i]) for (name, axis), i in zip(grid.items(), place, strict=True)}


def _data_given_physics(physics: ps.Model, data: tuple[ps.Observation, ...]) -> tuple[np.ndarray, np.ndarray]:
    post = ps.posterior(physics)
    parts = [(block.points, block.operator) for block in data if isinstance(block.operator, ps.Operator)]
    mean = [post.mean(points, operator) for points, operator in parts]
    covariance = [[post.covariance(*one, *other) for other in parts] for one in parts]
    return np.concatenate(mean), np.block(covariance)


def _has(model: ps.Model, name: str) -> bool:
    """Whether a model has a hyperparameter, or the vector that it is an element of."""
    return name.partition("[")[0] in model.parameters


def _errors(case: Case, model: ps.Model, truth: Float[np.ndarray, " m"]) -> xr.DataArray:
    """Return the true errors on the grid of a case; NaN where a covariance cannot be factored."""
    errors = np.full([len(axis) for axis in case.grid.values()], np.nan)
    for place, point in points(case.grid):
        try:
            errors[place] = relative_error(model.replace(point), case.on, truth)
        except ps.NotPositiveDefiniteError:
            continue
    return xr.DataArray(errors, dict(case.grid), list(case.grid))


def _least(score: xr.DataArray, grid: Mapping[str, Any]) -> dict[str, float]:
    """Return where a criterion is least; what it is blind to is taken at the geometric middle of the grid."""
    place = np.unravel_index(np.nanargmin(score.values), score.shape)
    chosen = {str(name): float(score[name][i]) for name, i in zip(score.dims, place, strict=True)}
    return {name: chosen.get(name, float(np.exp(np.mean(np.log(axis))))) for name, axis in grid.items()}


def _correlation(score: xr.DataArray, errors: xr.DataArray) -> float:
    known = xr.broadcast(score, errors)
    first, second = (each.transpose(*errors.dims).values.ravel() for each in known)
    good = np.isfinite(first) & np.isfinite(second)
    return float(spearmanr(first[good], second[good]).statistic)
