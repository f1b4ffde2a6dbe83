"""Nonlinear equations: solved, and the bandwidth chosen by PILE, without a single measurement.

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
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy.stats import spearmanr
from threadpoolctl import threadpool_limits

import pilescore as ps
from pilescore.charts import digits

from .nonlinear_problems import PROBLEMS, Problem
from .nonlinear_report import report
from .study import Study, Workbench, check

SOUND = 2.0
"""The regret up to which a choice is sound."""
RULES = {"PILE": "pile", "training residual": "physics_loss"}
COLUMNS = ("pile", "rounding", "eta_hat", "physics_loss", "R_data_relative_l2", "status", "reason")
SOLVED = ("converged", "stagnated")


@dataclasses.dataclass(frozen=True)
class Settings:
    """All that the results depend on."""

    seeds: int = 5
    """Sets of random points."""
    share: float = 1.0
    """Which part of the points is used."""
    values: int = 14
    """Bandwidths."""
    picture: int = 61
    """Points on each side of the pictures."""

    @classmethod
    def quick(cls, seeds: int = 2) -> Settings:
        """Return settings for a first look: fewer points, sets and bandwidths."""
        return cls(seeds=seeds, share=0.6, values=12)


def compute(settings: Settings, bench: Workbench) -> tuple[xr.Dataset, dict[str, Any]]:
    """Sweep the bandwidth for each problem and set of points, solve with the chosen one, and say how good it is."""
    with threadpool_limits(1, "blas"):  # for matrices of this size threads mostly wait for each other
        return _computed(settings, bench)


def _computed(settings: Settings, bench: Workbench) -> tuple[xr.Dataset, dict[str, Any]]:
    results, problems = [], {}
    for number, problem in enumerate(PROBLEMS, 1):
        inside, side = problem.counts(settings.share)
        around = len(problem.boundary(side))
        sets = "1 set" if settings.seeds == 1 else f"{settings.seeds} sets"
        what = f"{settings.values} bandwidths, {sets} of {inside} + {around} points"
        bench.say(f"[{number}/{len(PROBLEMS)}] {problem.title}: {what}")
        scores = _sweep(problem, settings, bench)
        judged = _judged(scores)
        first = judged["sets"][0]["PILE"]["length"]
        fit = bench.folder.part(f"{problem.name}-fit", functools.partial(_fit, problem, first, settings))
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
            **judged,
            "solve": _solve_numbers(fit),
        }
    numbers = {"problems": problems}
    return xr.merge(results), numbers | {"checks": _checks(problems)}


def _sweep(problem: Problem, settings: Settings, bench: Workbench) -> xr.Dataset:
    """Return scores and true errors by the length of the kernel and the set of points."""
    scores = bench.sweep(
        problem.name,
        lambda seed: problem.model(seed, settings.share),
        {"kernel.bandwidth": problem.bandwidths(settings.values)},
        seeds=range(settings.seeds),
        truth=problem.truth,
        on=problem.fine,
        profiled=True,
        losses=True,
    )
    scores = scores[list(COLUMNS)].rename({"kernel.bandwidth": "length"})
    scores = scores.assign_coords(length=scores["length"] * problem.stretch)
    return scores.assign(error=scores["R_data_relative_l2"] * root_mean_square(problem))


def root_mean_square(problem: Problem) -> float:
    """Return the root of the mean square of the solution."""
    nodes = problem.fine
    return math.sqrt(float(nodes.weights @ _at(problem, nodes.points) ** 2) / float(nodes.weights.sum()))


def _at(problem: Problem, points: np.ndarray) -> Float[np.ndarray, " n"]:
    return np.asarray(jax.jit(jax.vmap(problem.truth))(jnp.asarray(points)))


def _prefixed(found: xr.Dataset, prefix: str) -> xr.Dataset:
    kept = ("seed",)
    return found.rename({name: f"{prefix}_{name}" for name in map(str, found.variables) if name not in kept} |
                        {name: f"{prefix}_{name}" for name in map(str, found.dims) if name not in kept})  # fmt: skip


def _judged(scores: xr.Dataset) -> dict[str, Any]:
    """Return for each set what was chosen, the errors there, and the least error."""
    sets = []
    for seed in scores["seed"].values:
        mine = scores.sel(seed=seed)
        error = mine["error"]
        least = float(error.min())
        row: dict[str, Any] = {"least": {"length": float(error.idxmin()), "error": least}}
        for rule, column in RULES.items():
            length = float(mine[column].idxmin())
            there = mine.sel(length=length)
            row[rule] = {
                "length": length,
                "error": float(there["error"]),
                "relative": float(there["R_data_relative_l2"]),
                "regret": float(there["error"]) / least,
            }
        solved = np.isfinite(error.values)
        row["correlation"] = float(spearmanr(mine["pile"].values[solved], error.values[solved]).statistic)
        row["failed"] = int((~solved).sum())
        sets.append(row)
    return {
        "sets": sets,
        "largest_error": max(row["PILE"]["error"] for row in sets),
        "median_error": float(np.median([row["PILE"]["error"] for row in sets])),
        "largest_regret": max(row["PILE"]["regret"] for row in sets),
        "residual_regret": max(row["training residual"]["regret"] for row in sets),
        "correlation": [min(row["correlation"] for row in sets), max(row["correlation"] for row in sets)],
        "failed": sum(row["failed"] for row in sets),
    }


def _fit(problem: Problem, length: float, settings: Settings) -> xr.Dataset:
    """Return the solution for the first set of points with the chosen kernel, and how it was found."""
    model = problem.model(0, settings.share).replace({"kernel.bandwidth": length / problem.stretch})
    sides = [
        np.linspace(a, b, settings.picture) for a, b in zip(problem.region.lower, problem.region.upper, strict=True)
    ]
    points = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.PrecisionWarning)  # kept as the rounding error of the score
        solved = ps.solve_nonlinear(model, progress=False)
        score = ps.pile(solved.model, profiled=True)
        posterior = ps.posterior(solved.model)
        mean = posterior.mean(points)
        deviation = math.sqrt(score.eta / float(model.eta)) * posterior.std(points)
        second = solved.second_order
    truth = _at(problem, points)
    shape = ("across", "up")
    steps = {name: [getattr(step, name) for step in solved.steps] for name in ("level", "objective", "decrement")}
    fields = {"truth": truth, "mean": mean, "deviation": deviation, "miss": np.abs(mean - truth)}
    return xr.Dataset(
        {name: (shape, field.reshape(settings.picture, settings.picture)) for name, field in fields.items()}
        | {f"step_{name}": ("step", column) for name, column in steps.items()}
        | {"solve_pile": score.value, "solve_eta": score.eta, "solve_second_order": second}
        | {"solve_gap": math.log1p(solved.gap / solved.pile.fit)}
        | {"solve_status": solved.status, "solve_factorisations": np.int32(solved.factorisations)}
        | {"solve_within": float(np.mean(np.abs(mean - truth) <= 2 * deviation))},
        {"across": sides[0], "up": sides[1]},
    )  # fmt: skip


def _solve_numbers(fit: xr.Dataset) -> dict[str, Any]:
    prefix = "solve_"
    found = {str(name).removeprefix(prefix): fit[name].item() for name in fit.data_vars if str(name).startswith(prefix)}
    return found | {"largest_miss": float(fit["miss"].max()), "largest_deviation": float(fit["deviation"].max())}


def _checks(problems: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = []
    for of in problems.values():
        if of["limit"] is not None:
            what = f"{of['title']}: error at PILE's bandwidth, the largest of all sets of points"
            found.append(
                check(what, f"at most {digits(of['limit'])}", of["largest_error"], of["largest_error"] <= of["limit"])
            )
        what = f"{of['title']}: that error over the least of the sweep, the largest of all sets"
        found.append(check(what, f"at most {SOUND:g}", of["largest_regret"], of["largest_regret"] <= SOUND))
    ends = [of["solve"]["status"] in SOLVED for of in problems.values()]
    found.append(check("equations solved with the chosen kernel, first set", f"all {len(ends)}", sum(ends), all(ends)))
    return found


STUDY = Study("nonlinear", compute, report)
