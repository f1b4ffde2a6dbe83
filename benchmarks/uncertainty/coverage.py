"""Whether intervals of the solution cover it, with and without the uncertainty of hyperparameters.

On every problem of `benchmarks.selection` and of `problems`, by the defaults of the library: how large the errors of
the mean are in stated standard deviations, and how often central intervals cover the truth, at test points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import norm

import pilescore as ps

from ..default_score import left_alone
from ..selection.cases import CASES
from ..selection.cases import case as case_of
from ..selection.rules import true_values
from .problems import PROBLEMS, problem
from .runs import Done, Measured, Run, failures, good, table

LEVELS = (0.5, 0.8, 0.95)
"""The nominal coverage of central intervals."""

LARGE = 2.0
"""A root mean square of standardised errors above this is bad: the stated deviations are far too small."""

POINTS_AIM, LARGE_AIM = 0.03, 0.03
"""How far the mean coverage may be from the nominal one, and the fraction of runs with large standardised errors."""

SUITE = tuple(each.name for each in CASES)
NEW = tuple(each.name for each in PROBLEMS)
GROUPS: Mapping[str, tuple[str, ...]] = {"problems of the suite": SUITE, "new problems": NEW}
KINDS = {"without": "hyperparameters as if known", "with": "with their uncertainty"}
"""The two posteriors, in the order of columns."""


def runs(*, quick: bool, smoke: bool, draws: int | None, seeds: Sequence[int] | None) -> list[Run]:
    """Return the runs: all problems with three seeds, or one with `quick`; one problem of each group with `smoke`."""
    count = draws or (1 if quick else 3)
    names = ("oscillator", "rough-curve") if smoke else (*SUITE, *NEW)
    chosen = range(1) if smoke else range(count) if seeds is None else seeds
    return [Run("coverage", name, seed) for name in names for seed in chosen]


def minimum_of(name: str, seed: int) -> ps.Minimum:
    """Return the minimum of a new problem by the defaults, from four starts as on the suite."""
    drawn = problem(name).instance(seed)
    return ps.minimize(drawn.model, drawn.over, starts=4, run=ps.RunOptions(progress=False))


def measured(name: str, seed: int) -> Measured:
    """Return standardised errors and coverage on one problem with one seed."""
    if name in SUITE:
        case = case_of(name)
        best, truth, on = left_alone(case, seed), true_values(case), case.on
    else:
        drawn = problem(name).instance(seed)
        best, truth, on = minimum_of(name, seed), drawn.truth(drawn.on.points), drawn.on
    hyper = ps.hyperposterior(best, seed=seed)
    weights = on.weights / on.weights.sum()
    probabilities = [0.5 + side * 0.5 * level for level in LEVELS for side in (-1, 1)]
    plain, mixture = ps.posterior(best.model), ps.posterior(hyper)
    mean, deviation = plain.mean(on.points), plain.std(on.points)
    ends = mean + np.asarray(norm.ppf(probabilities))[:, None] * deviation
    return {
        "without": judged(truth, mean, deviation, ends, weights),
        "with": judged(
            truth,
            mixture.mean(on.points),
            mixture.std(on.points),
            mixture.quantiles(on.points, probabilities),
            weights,
        ),
        "size": best.model.size,
        "hyperparameters": len(best.values),
        "effective size": float(hyper.effective_size),
        "evaluations": int(hyper.evaluations),
        "warnings": list(hyper.warnings),
        "status": best.status,
        "at bounds": dict(best.at_bounds),
    }


def judged(
    truth: Float[np.ndarray, " n"],
    mean: Float[np.ndarray, " n"],
    deviation: Float[np.ndarray, " n"],
    ends: Float[np.ndarray, "e n"],
    weights: Float[np.ndarray, " n"],
) -> Measured:
    """Return the root mean square of the standardised errors, the coverage of each level, and relative errors.

    Parameters
    ----------
    truth, mean, deviation
        The solution, its posterior mean and standard deviation at test points.
    ends
        The lower and upper ends of the intervals of each level, in turn.
    weights
        The weights of the points, with the sum one.
    """
    error = mean - truth
    inside = [(low <= truth) & (truth <= high) for low, high in zip(ends[::2], ends[1::2], strict=True)]
    size = float(weights @ truth**2) ** 0.5
    return {
        "rms": float(weights @ (error / deviation) ** 2) ** 0.5,
        "coverage": [float(weights @ each) for each in inside],
        "error": float(weights @ error**2) ** 0.5 / size,
        "deviation": float(weights @ deviation**2) ** 0.5 / size,
    }


def summary(done: Sequence[Done]) -> dict[str, Any]:
    """Return the coverage of each problem, and of each group against the aims."""
    found: dict[str, Any] = {"problems": {}, "groups": {}}
    for name in dict.fromkeys(each.run.problem for each in done):
        of = [each for each in done if each.run.problem == name]
        found["problems"][name] = {"runs": len(of), **_averages(of)} if good(of) else {"runs": len(of)}
    for group, names in GROUPS.items():
        of = [each for each in done if each.run.problem in names]
        if good(of):
            found["groups"][group] = {"runs": len(of), **_averages(of)}
    return found


def _averages(done: Sequence[Done]) -> dict[str, Any]:
    """Return mean coverage, the fraction of large standardised errors and the worst, for both posteriors."""
    rows = good(done)
    found: dict[str, Any] = {"results": len(rows), "warned": sum(bool(each.measured["warnings"]) for each in rows)}
    for kind in KINDS:
        rms = np.array([each.measured[kind]["rms"] for each in rows])
        worst = int(np.argmax(np.where(np.isnan(rms), np.inf, rms)))
        found[kind] = {
            "coverage": np.mean([each.measured[kind]["coverage"] for each in rows], axis=0).tolist(),
            "rms": float(np.sqrt(np.mean(rms**2))),
            "median rms": float(np.median(rms)),
            "large": float(np.mean(~(rms <= LARGE))),  # NaN is large
            "worst rms": float(rms[worst]),
            "worst": rows[worst].run.key.removeprefix("coverage "),
            "error": float(np.median([each.measured[kind]["error"] for each in rows])),
        }
    return found


def report(done: Sequence[Done]) -> str:
    """Return the tables of all problems and groups, as Markdown."""
    of = summary(done)
    levels = "/".join(f"{level:.0%}"[:-1] for level in LEVELS)
    header = ["problem", "runs", "median error", f"covered {levels}% as if known", "rms standardised error"]
    header += [f"covered {levels}% with uncertainty", "rms standardised error", "warned"]
    parts = []
    for group, names in GROUPS.items():
        if group not in of["groups"]:
            continue
        rows = [_row(name, of["problems"][name]) for name in names if "with" in of["problems"].get(name, {})]
        parts += [f"{group.capitalize()}\n", table(header, [*rows, _row("**all**", of["groups"][group])]), ""]
        for kind, words in KINDS.items():
            each = of["groups"][group][kind]
            away = [value - level for value, level in zip(each["coverage"], LEVELS, strict=True)]
            parts.append(
                f"{words.capitalize()}: coverage is {', '.join(f'{100 * value:+.1f}' for value in away)} points from "
                f"nominal (aim: within {100 * POINTS_AIM:g}); rms standardised error above {LARGE:g} in "
                f"{each['large']:.1%} of runs (aim: at most {LARGE_AIM:.0%}); worst {each['worst rms']:.3g} "
                f"({each['worst']}).\n"
            )
    return "\n".join([*parts, *failures(done)])


def _row(name: str, of: Mapping[str, Any]) -> list[str]:
    cells = [name, str(of["runs"]), f"{of['with']['error']:.2g}"]
    for kind in KINDS:
        cells += ["/".join(f"{100 * value:.0f}" for value in of[kind]["coverage"]), f"{of[kind]['rms']:.2f}"]
    return [*cells, str(of["warned"])]
