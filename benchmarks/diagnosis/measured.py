"""One run of the benchmark: a problem, a planted failure and a draw; and the time of all checks."""

from __future__ import annotations

import functools
import statistics
import time
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

import pilescore as ps

from ..evidence import poisson, seconds
from ..uncertainty.problems import Over
from ..uncertainty.runs import Done, Measured, Run
from . import suite
from .planted import REFUSED, SOUND, failure, generator
from .problems import Problem, problem

COST = "cost"
"""The part of runs that measure time."""

COST_MODELS: Mapping[str, tuple[int, bool]] = {
    "Poisson, measured source": (16, False),
    "Poisson, exact": (16, True),
}
"""The nodes on each axis, and whether the equation is exact."""

GRADIENTS = 5
"""How often a value with gradient is computed before each diagnosis."""
DIAGNOSES = 2
"""How often the diagnosis is repeated."""

REFUSALS = (ps.errors.PilescoreError, ArithmeticError, ValueError)
"""Errors that a user would see instead of a result."""


def make_run(run: Run) -> Done:
    """Make a run. An error of a search or a diagnosis is a finding; one of anything else is a failure of the run."""
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        measured = cost(run.problem) if run.part == COST else diagnosed(run.part, run.problem, run.seed)
    return Done(run, measured, "", time.perf_counter() - begun)


def problem_of(name: str) -> Problem | suite.SuiteProblem:
    """Return a new problem or one of the suite by its name."""
    return suite.problem(name) if name.startswith(suite.PREFIX) else problem(name)


@functools.lru_cache(maxsize=2)
def sound(name: str, seed: int) -> tuple[Any, ps.Minimum, Over, float]:
    """Return a draw, its sound fit by the defaults, the bounds and the relative error; failures of a draw share it."""
    drawn = problem_of(name).instance(seed)
    model, over = drawn.posed()
    best = ps.minimize(model, over, run=ps.RunOptions(progress=False))
    return drawn, best, over, relative_error(drawn, best.model)


def relative_error(drawn: Any, model: ps.Model) -> float:
    """Return the relative error of the posterior mean in L²."""
    weights, truth = drawn.on.weights, drawn.truth(drawn.on.points)
    error = ps.posterior(model).mean(drawn.on.points) - truth
    return float(weights @ error**2 / (weights @ truth**2)) ** 0.5


def diagnosed(kind: str, name: str, seed: int) -> Measured:
    """Return the findings for a planted failure, and the true errors of its model and of the sound fit."""
    try:
        drawn, best, over, sound_error = sound(name, seed)
    except REFUSALS as error:
        return {"planted": kind == SOUND, "findings": {REFUSED: refusal(error)}, "error": None}
    truth = drawn.truth(drawn.on.points)
    rms = float(drawn.on.weights @ truth**2 / drawn.on.weights.sum()) ** 0.5
    found: Measured = {"planted": True, "sound error": sound_error, "noise": drawn.noise / rms}
    subject: ps.Model | ps.Minimum = best
    try:
        begun = time.perf_counter()
        if kind != SOUND:
            made = failure(kind).make(drawn, best, over, generator(kind, name, seed))
            if made is None:
                return {"planted": False, "findings": {}}
            subject, over, fitted = made
            if fitted:
                subject = ps.minimize(subject, over, run=ps.RunOptions(progress=False))
        model = subject.model if isinstance(subject, ps.Minimum) else subject
        found |= {"size": model.size, "fit seconds": time.perf_counter() - begun}
        found |= {"error": relative_error(drawn, model)}
        if isinstance(subject, ps.Minimum):
            found |= described(subject)
        begun = time.perf_counter()
        over_or_none = None if isinstance(subject, ps.Minimum) else over
        checked = ps.diagnose(subject, over=over_or_none, progress=False).checked
    except REFUSALS as error:
        return found | {"findings": {REFUSED: refusal(error)}}
    found["diagnosis seconds"] = time.perf_counter() - begun
    return found | {"findings": {each.name: finding(each) for each in checked}}


def described(best: ps.Minimum) -> Measured:
    """Return what the search itself says about a minimum."""
    return {
        "status": best.status,
        "resolved": None if best.resolution is None else best.resolution.resolved,
        "at bounds": dict(best.at_bounds),
        "values": {name: float(np.asarray(value)) for name, value in best.values.items()},
    }


def finding(each: ps.diagnosis.Finding) -> dict[str, Any]:
    """Return what is stored of a finding."""
    stored: dict[str, Any] = {"status": each.status, "severity": each.severity, "value": float(each.value)}
    stored["seconds"] = getattr(each, "seconds", None)
    if each.status == "skipped":
        stored["reason"] = each.meaning
    return stored


def refusal(error: Exception) -> dict[str, Any]:
    """Return an error as a finding."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return {"status": "fired", "severity": "failure", "value": 1.0, "reason": text[:300]}


def timed_minimum(name: str) -> tuple[ps.Minimum, Over]:
    """Return a minimum of one of `COST_MODELS`, or of a draw of a problem, and its bounds."""
    if name not in COST_MODELS:
        _, best, bounds, _ = sound(name, 0)
        return best, bounds
    side, exact = COST_MODELS[name]
    model = poisson(side)
    over = {"kernel.bandwidth": (0.02, 5.0), "gamma": (1e-4, 1.0), "eta": (0.01, 100.0)}
    if exact:
        model = model.replace(rho=None)
    else:
        over["rho"] = (1e-6, 1.0)
    options = ps.SearchOptions(refine=False)  # nodes stay, so that the size is known
    return ps.minimize(model, over, search=options, run=ps.RunOptions(progress=False)), over


def cost(name: str) -> Measured:
    """Return the time of all checks in units of one score with gradient."""
    best, over = timed_minimum(name)

    def gradient() -> None:
        ps.pile_and_gradient(best.model, list(over), score=best.score)

    def diagnosis() -> None:
        checked.append(ps.diagnose(best, progress=False))

    checked: list[ps.diagnosis.Diagnosis] = []
    gradient()
    first = seconds(diagnosis)
    gradients, diagnoses = [], []
    for _ in range(DIAGNOSES):
        gradients += [seconds(gradient) for _ in range(GRADIENTS)]
        diagnoses.append(seconds(diagnosis) if name in COST_MODELS else first)
    one = statistics.median(gradients)
    each = {finding.name: getattr(finding, "seconds", None) for finding in checked[-1].checked}
    if name in COST_MODELS and None in each.values():  # the time of what checks share is in each
        each = {check: seconds(functools.partial(ps.diagnose, best, checks=check, progress=False)) for check in each}
    return {
        "size": best.model.size,
        "gradient": one,
        "ratio": statistics.median(diagnoses) / one,
        "first ratio": first / one,
        "checks": {check: value / one for check, value in each.items() if value is not None},
    }
