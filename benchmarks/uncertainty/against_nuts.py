"""Weighted points and Laplace's approximation, against draws by the No-U-Turn Sampler.

On four of the `problems`: means and standard deviations of every hyperparameter, of its logarithm if it is positive.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

import pilescore as ps

from .problems import Over, problem
from .runs import Done, Measured, Run, failures, good, table

CASES: Mapping[str, tuple[str, ...]] = {
    "rough-curve": ("kernel.bandwidth", "gamma"),
    "heat-diffusivity": (),
    "plane-waves": (),
    "pendulum": (),
}
"""Problems, and what is searched; nothing stands for all unknowns: two hyperparameters, a coefficient, an anisotropic
kernel with an unknown boundary, and a nonlinear equation."""

METHODS: tuple[Literal["weighted", "laplace", "nuts"], ...] = ("weighted", "laplace", "nuts")
REFERENCE = "nuts"
DRAWS, QUICK = 2, 1

COUNT = 20_000
"""How many draws means and deviations are computed from. They add errors of 0.007 deviations and of 0.5%."""

MEAN_AIM, DEVIATION_AIM = 0.1, 0.1
"""The largest difference of means, in deviations of the reference, and the largest relative one of deviations."""


def runs(*, quick: bool, smoke: bool, draws: int | None, seeds: Sequence[int] | None) -> list[Run]:
    """Return the runs: two draws of each problem, or one with `quick`; the smallest problem with `smoke`."""
    names = ("rough-curve",) if smoke else tuple(CASES)
    chosen = range(draws or (1 if smoke else QUICK if quick else DRAWS)) if seeds is None else seeds
    return [Run("against_nuts", name, seed) for name in names for seed in chosen]


def measured(name: str, seed: int) -> Measured:
    """Return the moments of each hyperparameter by each method."""
    drawn = problem(name).instance(seed)
    over = {each: drawn.over[each] for each in CASES[name] or drawn.over}
    best = ps.minimize(drawn.model, over, starts=4, run=ps.RunOptions(progress=False))
    found: Measured = {"size": best.model.size, "status": best.status}
    for method in METHODS:
        begun = time.perf_counter()
        hyper = ps.hyperposterior(best, method=method, seed=seed)
        seconds = time.perf_counter() - begun
        found[method] = {
            "moments": moments(hyper.sample(COUNT, seed), over),
            "log evidence": float(hyper.log_evidence),
            "log evidence error": float(hyper.log_evidence_error),
            "effective size": float(hyper.effective_size),
            "evaluations": int(hyper.evaluations),
            "warnings": list(hyper.warnings),
            "seconds": seconds,
        }
    return found


def moments(draws: Mapping[str, Float[np.ndarray, " k"]], over: Over) -> dict[str, list[float]]:
    """Return the mean and the standard deviation of each hyperparameter, of its logarithm if its bounds are positive.

    Parameters
    ----------
    draws
        Draws of each hyperparameter; an element of an array has an index in its name.
    over
        The bounds by name.
    """
    found = {}
    for name, values in draws.items():
        bounds = over[name] if name in over else over[name.partition("[")[0]]
        t = np.log(values) if np.all(np.asarray(bounds[0]) > 0) else values
        found[name] = [float(np.mean(t)), float(np.std(t))]
    return found


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return, by name, the difference of means in deviations of the other, and the relative one of deviations.

    Parameters
    ----------
    one, other
        What `moments` returned.
    """
    return {
        name: ((one[name][0] - mean) / deviation, one[name][1] / deviation - 1.0)
        for name, (mean, deviation) in other.items()
    }


def summary(done: Sequence[Done]) -> dict[str, Any]:
    """Return the differences of each hyperparameter from the reference, and how many are within the aims."""
    rows: dict[str, Any] = {}
    for each in good(done):
        reference = each.measured[REFERENCE]
        apart = {
            method: differences(each.measured[method]["moments"], reference["moments"])
            for method in METHODS
            if method != REFERENCE
        }
        size = reference["effective size"]
        for name in reference["moments"]:
            rows[f"{each.run.problem} {each.run.seed}: {name}"] = {
                **{method: list(of[name]) for method, of in apart.items()},
                "errors": [1.0 / math.sqrt(size), 1.0 / math.sqrt(2.0 * size)],
            }
    return {"hyperparameters": rows, "methods": {name: _judged(rows, name) for name in METHODS if name != REFERENCE}}


def _judged(rows: Mapping[str, Any], method: str) -> dict[str, Any]:
    shifts = np.array([row[method][0] for row in rows.values()])
    ratios = np.array([row[method][1] for row in rows.values()])
    within = (np.abs(shifts) <= MEAN_AIM) & (np.abs(ratios) <= DEVIATION_AIM)
    return {
        "within": int(within.sum()),
        "of": len(rows),
        "largest": [float(np.abs(values).max(initial=0.0)) for values in (shifts, ratios)],
        "outside": [name for name, good in zip(rows, within, strict=True) if not good],
    }


def report(done: Sequence[Done]) -> str:
    """Return the tables of differences and of costs, as Markdown."""
    of = summary(done)
    header = ["problem, draw and hyperparameter"]
    for words in ("weighted", "Laplace"):
        header += [f"{words}: mean, in deviations", "deviation"]
    header += ["Monte Carlo error of NUTS: mean", "deviation"]
    rows = [
        [
            name,
            *_cells(row["weighted"]),
            *_cells(row["laplace"]),
            f"±{row['errors'][0]:.3f}",
            f"±{row['errors'][1]:.1%}",
        ]
        for name, row in of["hyperparameters"].items()
    ]
    parts = [table(header, rows), ""]
    for method, each in of["methods"].items():
        parts.append(
            f"`{method}`: {each['within']} of {each['of']} hyperparameters are within the aims: means within "
            f"{MEAN_AIM:g} deviations of NUTS, deviations within {DEVIATION_AIM:.0%}. Largest differences: "
            f"{each['largest'][0]:.3f} and {each['largest'][1]:.1%}. Outside: {', '.join(each['outside']) or 'none'}.\n"
        )
    header = ["problem and draw", "N", "unknowns"]
    header += [f"{method}: {what}" for method in METHODS for what in ("scores", "log evidence")]
    parts += [table([*header, "effective draws of NUTS"], map(_cost, good(done))), ""]
    warned = [
        f"{each.run.problem} {each.run.seed}, {method}: {' '.join(each.measured[method]['warnings'])}"
        for each in good(done)
        for method in METHODS
        if each.measured[method]["warnings"]
    ]
    parts += [f"Warnings: {'; '.join(warned)}\n"] if warned else []
    return "\n".join([*parts, *failures(done)])


def _cells(values: Sequence[float]) -> list[str]:
    return [f"{values[0]:+.3f}", f"{100 * values[1]:+.1f}%"]


def _cost(done: Done) -> list[str]:
    of = done.measured
    cells = [f"{done.run.problem} {done.run.seed}", str(of["size"]), str(len(of[REFERENCE]["moments"]))]
    for method in METHODS:
        each = of[method]
        error = each["log evidence error"]
        cells += [
            str(each["evaluations"]),
            f"{each['log evidence']:.2f}" + (f" ± {error:.2g}" if math.isfinite(error) else ""),
        ]
    return [*cells, f"{of[REFERENCE]['effective size']:.0f}"]
