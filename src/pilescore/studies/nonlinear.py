"""The study of nonlinear equations: PILE chooses the bandwidth, without any measurement.

Run it with `pilescore study nonlinear`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import xarray as xr
from scipy.stats import spearmanr
from threadpoolctl import threadpool_limits

import pilescore as ps

from ..reports import digits
from .nonlinear_problems import PROBLEMS, NonlinearProblem
from .nonlinear_report import report
from .runner import Study, StudyRun, at, check, counted, plane

GOOD_REGRET = 2.0
"""The largest regret of a good choice."""
RULES = {"PILE": "pile", "training residual": "physics_loss"}
COLUMNS = ("pile", "rounding", "eta_hat", "physics_loss", "R_data_relative_l2", "status", "reason")
SOLVED = ("converged", "stagnated")


@dataclasses.dataclass(frozen=True)
class NonlinearSettings:
    """Everything that determines the results."""

    seeds: int = 5
    """The number of sets of random points."""
    share: float = 1.0
    """The fraction of the points that is used."""
    values: int = 14
    """The number of bandwidths in a sweep."""
    picture: int = 61
    """Points along each side of the pictures."""

    @classmethod
    def quick(cls, seeds: int = 2) -> NonlinearSettings:
        """Return settings for a quick run, with fewer points, sets and bandwidths."""
        return cls(seeds=seeds, share=0.6, values=12)


def compute(settings: NonlinearSettings, run: StudyRun) -> tuple[xr.Dataset, dict[str, Any]]:
    """Sweep the bandwidth for each problem and set of points, and solve with the chosen bandwidth."""
    results, problems = [], {}
    for number, problem in enumerate(PROBLEMS, 1):
        inside, side = problem.counts(settings.share)
        around = len(problem.boundary(side))
        what = f"{settings.values} bandwidths, {counted(settings.seeds, 'set')} of {inside} + {around} points"
        run.say(f"[{number}/{len(PROBLEMS)}] {problem.title}: {what}")
        with threadpool_limits(1, "blas"):  # with matrices of this size BLAS threads mostly wait for each other
            scores = _sweep(problem, settings, run)
            choices = _choices(scores)
            length = choices["sets"][0]["PILE"]["length"]
            fit = run.folder.part(f"{problem.name}-fit", functools.partial(_fit, problem, length, settings))
        results += [_prefixed(scores, problem.name), _prefixed(fit, problem.name)]
        problems[problem.name] = {
            "title": problem.title,
            "equation": problem.equation,
            "conditions": problem.conditions,
            "reference": problem.reference,
            "points": [inside, around],
            "noise": list(problem.noise),
            "aspect": problem.aspect,
            "coordinates": list(problem.region.names),
            "known": problem.known if settings.share == 1 else None,
            "limit": problem.limit if settings.share == 1 else None,
            **choices,
            "solve": _solve_numbers(fit),
        }
    return xr.merge(results), {"problems": problems, "checks": _checks(problems)}


def _sweep(problem: NonlinearProblem, settings: NonlinearSettings, run: StudyRun) -> xr.Dataset:
    """Return scores and true errors for each kernel length and set of points."""
    scores = run.sweep(
        problem.name,
        lambda seed: problem.model(seed, settings.share),
        {"kernel.bandwidth": problem.bandwidths(settings.values)},
        seeds=range(settings.seeds),
        known=ps.KnownSolution(problem.truth, on=problem.fine),
        score="profiled",
        losses=True,
    )
    scores = scores[list(COLUMNS)].rename({"bandwidth": "length"})
    scores = scores.assign_coords(length=scores["length"] * problem.stretch)
    return scores.assign(error=scores["R_data_relative_l2"] * root_mean_square(problem))


def root_mean_square(problem: NonlinearProblem) -> float:
    """Return the root mean square of the solution."""
    nodes = problem.fine
    truth = at(jax.jit(problem.truth), nodes.points)
    return math.sqrt(float(nodes.weights @ truth**2) / float(nodes.weights.sum()))


def _prefixed(dataset: xr.Dataset, prefix: str) -> xr.Dataset:
    """Add a prefix to all variables and dimensions except the seed, which the problems share."""
    names = {*map(str, dataset.variables), *map(str, dataset.dims)} - {"seed"}
    return dataset.rename({name: f"{prefix}_{name}" for name in names})


def _choices(scores: xr.Dataset) -> dict[str, Any]:
    """Return the choice of each rule and its error, and the least error, for each set of points."""
    sets = []
    for seed in scores["seed"].values:
        of_set = scores.sel(seed=seed)
        error = of_set["error"]
        least = float(error.min())
        row: dict[str, Any] = {"least": {"length": float(error.idxmin()), "error": least}}
        for rule, column in RULES.items():
            length = float(of_set[column].idxmin())
            there = of_set.sel(length=length)
            row[rule] = {
                "length": length,
                "error": float(there["error"]),
                "relative": float(there["R_data_relative_l2"]),
                "regret": float(there["error"]) / least,
            }
        solved = np.isfinite(error.values)
        row["correlation"] = float(spearmanr(of_set["pile"].values[solved], error.values[solved]).statistic)
        row["failed"] = int((~solved).sum())
        sets.append(row)
    errors, correlations = [row["PILE"]["error"] for row in sets], [row["correlation"] for row in sets]
    return {
        "sets": sets,
        "largest_error": max(errors),
        "median_error": float(np.median(errors)),
        "largest_regret": max(row["PILE"]["regret"] for row in sets),
        "residual_regret": max(row["training residual"]["regret"] for row in sets),
        "correlation": [min(correlations), max(correlations)],
        "failed": sum(row["failed"] for row in sets),
    }


def _fit(problem: NonlinearProblem, length: float, settings: NonlinearSettings) -> xr.Dataset:
    """Return the solution for the first set of points with the chosen kernel, and the steps of the solver."""
    model = problem.model(0, settings.share).replace({"kernel.bandwidth": length / problem.stretch})
    sides = [
        np.linspace(a, b, settings.picture) for a, b in zip(problem.region.lower, problem.region.upper, strict=True)
    ]
    points = plane(*sides)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.errors.PrecisionWarning)  # the sweep stores the rounding error
        solved = ps.solve_nonlinear(model, progress=False)
        score = ps.pile(solved.model, score="profiled")
        posterior = ps.posterior(solved.model)
        mean = posterior.mean(points)
        # The posterior has the η of the model; the profiled η scales its covariance.
        deviation = math.sqrt(score.eta / float(model.eta)) * posterior.std(points)
        second = solved.second_order
    # Profiled PILE contains the logarithm of the quadratic form, so a gap of this form enters by log(1 + …).
    gap = math.log1p(solved.gap * float(model.eta) / score.eta)
    truth = at(jax.jit(problem.truth), points)
    shape = ("across", "up")
    steps = {name: [getattr(step, name) for step in solved.steps] for name in ("level", "objective", "decrement")}
    fields = {"truth": truth, "mean": mean, "deviation": deviation, "miss": np.abs(mean - truth)}
    return xr.Dataset(
        {name: (shape, field.reshape(settings.picture, settings.picture)) for name, field in fields.items()}
        | {f"step_{name}": ("step", column) for name, column in steps.items()}
        | {"solve_pile": score.value, "solve_eta": score.eta, "solve_second_order": second}
        | {"solve_gap": gap, "solve_status": solved.status}
        | {"solve_factorisations": np.int32(solved.factorisations)}
        | {"solve_within": float(np.mean(np.abs(mean - truth) <= 2 * deviation))},
        {"across": sides[0], "up": sides[1]},
    )  # fmt: skip


def _solve_numbers(fit: xr.Dataset) -> dict[str, Any]:
    numbers = {str(name).removeprefix("solve_"): fit[name].item() for name in fit.data_vars if "solve_" in str(name)}
    return numbers | {"largest_miss": float(fit["miss"].max()), "largest_deviation": float(fit["deviation"].max())}


def _checks(problems: Mapping[str, Any]) -> list[dict[str, Any]]:
    checks = []
    for of in problems.values():
        error, limit, regret = of["largest_error"], of["limit"], of["largest_regret"]
        if limit is not None:
            what = f"{of['title']}: largest error at PILE's bandwidth over all sets of points"
            checks.append(check(what, f"at most {digits(limit)}", error, error <= limit))
        what = f"{of['title']}: largest regret over all sets of points"
        checks.append(check(what, f"at most {GOOD_REGRET:g}", regret, regret <= GOOD_REGRET))
    solved = [of["solve"]["status"] in SOLVED for of in problems.values()]
    what = "equations solved with the chosen kernel, first set of points"
    return [*checks, check(what, f"all {len(solved)}", sum(solved), all(solved))]


STUDY = Study("nonlinear", NonlinearSettings, compute, report)
