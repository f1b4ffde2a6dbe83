"""What choosing with one kernel gave, what a diagnosis finds in it, and what is to be said of the search."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from .comparison import failed_row, row
from .diagnosis import diagnose
from .errors import ClusterError, PilescoreError, PrecisionWarning
from .evaluation import score_of
from .findings import Finding
from .minimum import Minimum, minimize
from .model import Model
from .predictions import parameter_covariance
from .problems import Problem, parameter_text
from .solving import Solved
from .space import space

TOLERANCE, EVALUATIONS = 1e-7, 300
"""When a descent has converged, and how many evaluations it may take: chosen numbers need not have many digits."""

STAGES, GAIN, WIDTH = 3, 0.01, 10.0
"""How often a search goes on in narrower ranges, the nats that make it worth while, and the deviations of a range."""

SHORTER = 0.25
"""How much shorter the bandwidths of the second start are than those of the first."""

STRICTER = 10.0
"""How far above its lower bound the second start has the temperature of an equation."""

CLOSE = 1.0
"""Nats by which starts that found the same minimum differ at most."""

SOLVED = ("converged", "stagnated")
"""How solving nonlinear equations may end."""

KEPT = ("outliers",)
"""Details of findings that are kept."""


def searched(problem: Problem, name: str, save: Path, progress: bool | None, client: Any = None) -> xr.Dataset:
    """Return what minimising with one kernel gave, as JSON in the attributes of a dataset."""
    model, over = problem.models[name], problem.over[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrecisionWarning)  # kept as the rounding error of the score
            if not over:
                found = _nothing() | {"row": row(model, False, problem.given_physics)}
            else:
                best, ranges = _minimum(problem, name, save, progress, client)
                found = _of_minimum(best, parameter_covariance(best, ranges))
    except PilescoreError as failure:
        if isinstance(failure, OSError | ClusterError):  # they say nothing about the kernel
            raise
        found = _nothing() | {"row": failed_row(str(failure))}
    return xr.Dataset(attrs={"found": json.dumps(found)})


def _minimum(
    problem: Problem, name: str, save: Path, progress: bool | None, client: Any
) -> tuple[Minimum, dict[str, tuple[float, float]]]:
    """Return the minimum from all starts, and the ranges of inferred parameters in which its curvature is measured.

    A parameter of an equation is often known a thousand times more sharply than hyperparameters, which a descent over
    its whole range then hardly moves. So it goes on in a range of a few deviations, as long as that gains something.
    """
    model, over = problem.models[name], problem.over[name]
    first = starts(model, over, problem.starts, problem.seed)
    best = _descended(problem, model, over, first, save, progress, client)
    ranges = {each: over[each] for each in problem.inferred}
    for stage in range(STAGES):
        narrow = _narrowed(best, ranges, over)
        if not narrow:
            break
        file = save.with_stem(f"{save.stem}-{stage + 2}")
        again = _descended(problem, best.model, {**over, **ranges, **narrow}, [{}], file, progress, client)
        gain = 0.5 * best.pile.size * (best.pile.value - again.pile.value)
        ranges |= narrow
        sides = {each: side for each, side in again.at_bounds.items() if each not in narrow} | {
            each: side for each, side in best.at_bounds.items() if each in problem.inferred
        }
        kept: dict[str, Any] = {"runs": best.runs, "evaluations": best.evaluations + again.evaluations}
        if again.ending == "stalled" and gain < GAIN:  # at the minimum, as far as rounding tells
            kept |= {"ending": best.ending, "reason": best.reason}
        best = dataclasses.replace(again, at_bounds=sides, **kept)
        if gain < GAIN and not {*again.at_bounds} & {*narrow}:
            break
    return best, ranges


def _descended(
    problem: Problem,
    model: Model,
    over: Mapping[str, Any],
    first: Sequence[Mapping[str, Any]],
    save: Path,
    progress: bool | None,
    client: Any,
) -> Minimum:
    best = minimize(
        model,
        over,
        starts=first,
        given_physics=problem.given_physics,
        tolerance=TOLERANCE,
        max_evaluations=EVALUATIONS,
        client=client,
        save=save,
        progress=progress,
    )
    if best.ending == "interrupted":
        raise KeyboardInterrupt
    return best


def _narrowed(
    best: Minimum, ranges: Mapping[str, tuple[float, float]], over: Mapping[str, Any]
) -> dict[str, tuple[float, float]]:
    """Return ranges of a few deviations about inferred parameters, where those are much narrower than at present."""
    found: dict[str, tuple[float, float]] = {}
    for name, (low, high) in ranges.items():
        if best.curvature is None or name not in best.curvature.names:
            continue
        row = best.curvature.names.index(name)
        bend, value = float(best.curvature.hessian[row, row]), best.values[name]
        if bend > 0:
            reach = WIDTH * (high - low) / math.sqrt(bend)
            narrow = (max(over[name][0], value - reach), min(over[name][1], value + reach))
            if narrow[1] - narrow[0] < 0.5 * (high - low) or not low < value < high:
                found[name] = narrow
    return found


def starts(model: Model, over: Mapping[str, Any], count: int, seed: int) -> list[dict[str, Any]]:
    """Return where to start: at the model's values, at short bandwidths with strict equations, and at Sobol points."""
    strict: dict[str, Any] = {}
    for name, (low, high) in over.items():
        now = np.asarray(model.parameters[name])
        if name.endswith(".bandwidth"):
            strict[name] = np.clip(SHORTER * now, low, high)
        elif name.endswith("rho"):
            strict[name] = np.clip(STRICTER * np.asarray(low), low, np.maximum(now, low))
    where = space(model, over)
    others = where.sobol(max(count - 2, 0), seed)
    return [{}, strict, *(where.named(where.decode(u)) for u in others)][:count]


def diagnosed(problem: Problem, name: str, model: Model) -> xr.Dataset:
    """Return all checks of a model that was chosen with one kernel, as JSON in the attributes of a dataset.

    Inferred parameters at a bound are left to `cautions`: that one is no matter of bounds that are too narrow.
    """
    over = {each: bounds for each, bounds in problem.over[name].items() if each not in problem.inferred}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)  # it is a finding
        found = diagnose(model, over=over or None, given_physics=problem.given_physics, progress=False)
    return xr.Dataset(attrs={"found": json.dumps([_check(each, problem) for each in found.checked])})


def _check(found: Finding, problem: Problem) -> dict[str, Any]:
    """Return a check as JSON has it, hyperparameters named as one reads them."""

    def readable(text: str) -> str:
        return re.sub(r"\w+(?:\.\w+)+(?:\[\d+\])?", lambda match: parameter_text(match[0], problem), text)

    return {
        "name": found.name,
        "status": found.status,
        "severity": found.severity,
        "value": found.value if math.isfinite(found.value) else None,
        "threshold": found.threshold,
        "below": found.below,
        "measure": found.measure,
        "meaning": readable(found.meaning),
        "advice": readable(found.advice),
        "details": {key: found.details[key] for key in KEPT if key in found.details},
    }


def solution(solved: Solved, given_physics: bool) -> dict[str, Any]:
    """Return how a nonlinear equation was solved, as JSON has it; scores per observation."""
    try:
        score = score_of(solved.nonlinear, False, given_physics, explain=False).value
    except PilescoreError:
        score = math.nan
    numbers = {"pile": score, "gap": solved.gap, "second_order": solved.second_order}
    found = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    return found | {"status": solved.status, "reason": solved.reason, "iterations": solved.iterations}


def cautions(problem: Problem, found: Mapping[str, Any], solution: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Yield, in words, what may be wrong with a nonlinear solution, with the search, and with inferred parameters."""
    errors = found["standard_errors"]
    if solution is not None:
        yield from _solution_cautions(solution, found["row"])
    if found["ending"] not in ("converged", "fixed"):
        yield f"the search has not converged: {found['reason']}"
    for name in problem.inferred:
        side, error = found["at_bounds"].get(name, ""), errors.get(name)
        if side:
            yield f"{name} is at its {side} bound: it wants to go further, or something else in the problem is wrong"
        elif name in errors and (error is None or not math.isfinite(error)):
            yield f"{name} has no standard error: the score has no clear minimum there; deviations leave it out"
    ends = [0.5 * found["row"]["size"] * run["pile"] for run in found["runs"]]
    behind = [end - min(ends) for end in ends if math.isfinite(end) and end - min(ends) > CLOSE] if ends else []
    if len(ends) > 1 and len(behind) >= len(ends) - 1:
        shown = ", ".join(f"{gap:.3g}" for gap in sorted(behind))
        yield f"one of {len(ends)} starts came to this score; the others ended {shown} nats behind. Try more starts"


def _solution_cautions(solution: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[str]:
    status, score = solution["status"], solution["pile"]
    if status not in SOLVED:
        yield f"the nonlinear equations are not solved ({status}): {solution['reason']}"
    if score is None or 0.5 * row["size"] * abs(score - row["pile"]) > CLOSE:
        yield "solved anew, the equations have another solution than in the search: there are several"
    elif status in SOLVED and solution["second_order"] is None:
        yield "the most likely solution is hardly determined: its exact curvature is not positive"


def _nothing() -> dict[str, Any]:
    return {
        "values": {},
        "standard_errors": {},
        "covariance": None,
        "at_bounds": {},
        "runs": [],
        "ending": "fixed",
        "reason": "",
        "evaluations": 1,
    }


def _of_minimum(best: Minimum, covariance: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "values": dict(best.values),
        "standard_errors": dict(best.standard_errors),
        "covariance": covariance,
        "at_bounds": dict(best.at_bounds),
        "ending": best.ending,
        "reason": best.reason,
        "evaluations": best.evaluations,
        "runs": [
            {name: getattr(run, name) for name in ("start", "end", "pile", "ending", "reason")} for run in best.runs
        ],
        "row": row(best, False, False),
    }
