"""Whether intervals of unknown coefficients cover the true ones, and those from plain standard errors.

Three of the `problems`, one of them nonlinear, by the defaults of the library: each draw has other coefficients,
another solution, other places of readings and other noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import norm

import pilescore as ps

from .coverage import LEVELS, minimum_of
from .problems import problem
from .runs import Done, Measured, Run, failures, good, table

NAMES = ("heat-diffusivity", "transport", "pendulum")
DRAWS, QUICK = 40, 8

LOWEST, HIGHEST = 0.90, 0.99
"""The aim for the coverage of intervals of 95%."""

PROBABILITIES = tuple(0.5 + side * 0.5 * level for level in LEVELS for side in (-1, 1))
"""The lower and upper ends of the interval of each level, in turn."""

KINDS = {"plain": "the standard error of the search", "with": "the distribution of hyperparameters"}
"""What intervals are from, in the order of columns."""


def runs(*, quick: bool, smoke: bool, draws: int | None, seeds: Sequence[int] | None) -> list[Run]:
    """Return the runs: 40 draws of each problem, or 8 with `quick`; one draw of one problem with `smoke`."""
    names = ("pendulum",) if smoke else NAMES
    chosen = range(draws or (1 if smoke else QUICK if quick else DRAWS)) if seeds is None else seeds
    return [Run("parameters", name, seed) for name in names for seed in chosen]


def measured(name: str, seed: int) -> Measured:
    """Return the ends of the intervals of each coefficient in one draw of a problem."""
    truth = problem(name).instance(seed).coefficients
    best = minimum_of(name, seed)
    hyper = ps.hyperposterior(best, seed=seed)
    quantiles = hyper.quantiles(PROBABILITIES)
    coefficients = {}
    for each, value in truth.items():
        found, error = best.values[each], best.standard_errors[each]
        coefficients[each] = {
            "truth": value,
            "found": found,
            "standard error": error,
            "mean": float(hyper.table.loc[each, "mean"]),
            "deviation": float(hyper.table.loc[each, "deviation"]),
            "plain": [found + error * float(deviations) for deviations in np.asarray(norm.ppf(PROBABILITIES))],
            "with": quantiles.loc[each].to_numpy().tolist(),
        }
    return {
        "coefficients": coefficients,
        "effective size": float(hyper.effective_size),
        "evaluations": int(hyper.evaluations),
        "warnings": list(hyper.warnings),
        "status": best.status,
        "at bounds": dict(best.at_bounds),
    }


def covered(truth: float, ends: Sequence[float]) -> list[bool]:
    """Return whether the interval of each level contains the truth; an interval of NaN does not."""
    return [low <= truth <= high for low, high in zip(ends[::2], ends[1::2], strict=True)]


def summary(done: Sequence[Done]) -> dict[str, Any]:
    """Return the coverage of each coefficient and of all, for both kinds of intervals."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for each in good(done):
        for name, found in each.measured["coefficients"].items():
            rows.setdefault(f"{each.run.problem}: {name}", []).append(found)
    found = {name: _averages(of) for name, of in rows.items()}
    return {"coefficients": found, "all": _averages([each for of in rows.values() for each in of])} if found else {}


def _averages(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the coverage, the root mean square of standardised errors, and the median widths of intervals."""
    truth = np.array([each["truth"] for each in found])
    of: dict[str, Any] = {"draws": len(found)}
    for kind, (centre, deviation) in {"plain": ("found", "standard error"), "with": ("mean", "deviation")}.items():
        errors = np.array([each[centre] for each in found]) - truth
        deviations = np.array([each[deviation] for each in found])
        has = np.isfinite(deviations)
        of[kind] = {
            "coverage": np.mean([covered(each["truth"], each[kind]) for each in found], axis=0).tolist(),
            "rms": _root_mean_square(errors[has] / deviations[has]),
            "without": int(np.sum(~has)),
            "error": float(np.median(np.abs(errors / truth))),
        }
    return of


def _root_mean_square(values: Float[np.ndarray, " n"]) -> float:
    return float(np.sqrt(np.mean(values**2))) if len(values) else float("nan")


def report(done: Sequence[Done]) -> str:
    """Return the table of all coefficients, as Markdown."""
    of = summary(done)
    if not of:
        return "\n".join(failures(done))
    levels = "/".join(f"{100 * level:.0f}" for level in LEVELS)
    header = ["coefficient", "draws", "median relative error"]
    for words in ("standard error", "hyperposterior"):
        header += [f"covered {levels}%, {words}", "rms standardised error"]
    rows = [_row(name, each) for name, each in of["coefficients"].items()]
    parts = [table(header, [*rows, _row("**all**", of["all"])]), ""]
    for kind, words in KINDS.items():
        wide = {name: each[kind]["coverage"][-1] for name, each in of["coefficients"].items()}
        outside = [f"{name} {value:.1%}" for name, value in wide.items() if not LOWEST <= value <= HIGHEST]
        without = of["all"][kind]["without"]
        parts.append(
            f"Intervals of 95% from {words} cover {of['all'][kind]['coverage'][-1]:.1%} of all coefficients (aim: "
            f"{LOWEST:.0%} to {HIGHEST:.0%}); outside the aim: {', '.join(outside) or 'none'}."
            f"{f' Draws without an interval: {without}.' if without else ''}\n"
        )
    warned = sum(bool(each.measured["warnings"]) for each in good(done))
    parts.append(f"The hyperposterior warns in {warned} of {len(good(done))} runs.\n")
    return "\n".join([*parts, *failures(done)])


def _row(name: str, of: Mapping[str, Any]) -> list[str]:
    cells = [name, str(of["draws"]), f"{of['with']['error']:.2g}"]
    for kind in KINDS:
        cells += ["/".join(f"{100 * value:.1f}" for value in of[kind]["coverage"]), f"{of[kind]['rms']:.2f}"]
    return cells
