"""The search with one kernel of a problem, the diagnosis of its result, and warnings about both."""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..diagnosis import Finding, diagnose
from ..errors import ClusterError, PilescoreError, PrecisionWarning, UncertaintyWarning, UnresolvedWarning
from ..inference import Score, at_profiled_scale, pile, systems_of
from ..model import Model
from ..nonlinear import Solution
from ..search import (
    Hyperposterior,
    Minimum,
    RunOptions,
    SearchOptions,
    derived_value,
    failed_row,
    hyperposterior,
    minimize,
    node_grids,
    row,
    search_space,
)
from ..solvers import present_tolerance
from .description import parameter_text
from .problem import Problem
from .summary import (
    ChartSummary,
    CheckSummary,
    DerivedSummary,
    DescentSummary,
    DiagnosisSummary,
    HyperposteriorSummary,
    KernelResult,
    KernelScore,
    SolutionSummary,
)

SEARCH = SearchOptions(tolerance=1e-7, max_evaluations=300)
"""The options of one descent. The chosen numbers do not need many digits."""

MAX_STAGES = 3
"""How often a search continues in narrower ranges of inferred parameters."""

MIN_GAIN_NATS = 0.01
"""The gain that makes another stage worthwhile."""

RANGE_DEVIATIONS = 10.0
"""The half-width of a narrower range, in standard deviations of the parameter with all others fixed."""

LEAST_DEVIATIONS = 3.0
"""The least half-width of a narrower range, in standard deviations of the parameter together with all others."""

SHORT_START = 0.25
"""The bandwidths of the second start, relative to those of the first."""

STRICT_START = 10.0
"""The temperature of equations at the second start, relative to its lower bound."""

SAME_MINIMUM_NATS = 1.0
"""Starts whose results differ by less found the same minimum."""

PICTURE_DRAWS = 400
"""The number of draws of hyperparameters that are stored for pictures."""

DERIVED_DRAWS = 4000
"""The number of draws of parameters that quantiles of derived quantities come from."""

INTERVAL = (0.025, 0.5, 0.975)
"""The probabilities of stored quantiles."""

SOLVED = ("converged", "stagnated")
"""The statuses of nonlinear solutions that can be used."""

TEMPERATURE_ROLES = ("scale", "data_temperature", "physics_temperature")
"""The roles of hyperparameters that a profiled score rescales together."""


def search_kernel(
    problem: Problem, name: str, save: Path, progress: bool | None, client: Any = None, score: Score | None = None
) -> KernelResult:
    """Return the result of the search with one kernel; a kernel that cannot be scored has a row with the reason."""
    model, score = problem.models[name], score or problem.score
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrecisionWarning)  # the row has a warning about rounding
            if not problem.over[name]:
                fixed = score.resolved(model)
                scored = KernelScore(**row(model, fixed))
                if score.profiled and math.isfinite(scored.pile):
                    model = at_profiled_scale(model, pile(model, score))
                return KernelResult(
                    name=name,
                    row=scored,
                    values=_rescaled(problem, model),
                    derived=_derived(problem, model, {}, None, None),
                    score=fixed.given,
                    why=fixed.described(model),
                )
            best = _minimum(problem, name, save, progress, client, score)
            hyper, why_known = _hyperposterior(problem, name, best, progress)
    except PilescoreError as failure:
        if isinstance(failure, OSError | ClusterError):  # not the fault of the kernel
            raise
        return KernelResult(name=name, row=KernelScore(**failed_row(str(failure))))
    values = {**best.values, **_rescaled(problem, best.model)}
    return KernelResult(
        name=name,
        row=KernelScore(**(row(best, best.score, why_known) if hyper is None else row(hyper, best.score))),
        values=values,
        standard_errors=dict.fromkeys(values, math.nan) | dict(best.standard_errors),
        hyperposterior=None if hyper is None else _hyperposterior_summary(hyper),
        why_known=why_known,
        degrees_of_freedom=best.degrees_of_freedom,
        derived=_derived(problem, best.model, best.values, best.covariance, hyper),
        at_bounds=dict(best.at_bounds),
        status=best.status,
        reason=best.reason,
        evaluations=best.evaluations,
        descents=[DescentSummary.model_validate(descent, from_attributes=True) for descent in best.descents],
        score=best.score.given,
        why=best.why,
        nodes={label: list(grid) for label, grid in node_grids(best.model).items()},
        tolerance=present_tolerance(best.model),
        resolution="" if best.resolution is None else best.resolution.text,
        resolved=best.resolution is None or best.resolution.resolved,
    )


def _hyperposterior(
    problem: Problem, name: str, best: Minimum, progress: bool | None
) -> tuple[Hyperposterior | None, str]:
    """Return the distribution of what was searched; if there is none, why."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UncertaintyWarning)  # warnings of the selection say it
            return hyperposterior(best.within(problem.over[name]), progress=progress), ""
    except (PilescoreError, np.linalg.LinAlgError) as failure:
        if isinstance(failure, OSError | ClusterError):  # not the fault of the kernel
            raise
        return None, " ".join(str(failure).split())


def _hyperposterior_summary(hyper: Hyperposterior) -> HyperposteriorSummary:
    """Return what is stored of a distribution: the models that matter, draws for pictures, and intervals."""
    parts = hyper.weighted_models
    rows = [{name: float(value) for name, value in part.values.items()} for part in parts]
    table, draws = hyper.table, hyper.sample(PICTURE_DRAWS)
    shown = [name for name in hyper.names if name in hyper.minimum.values]  # a profiled score was not searched over η
    quantiles = hyper.quantiles(INTERVAL).loc[shown].to_numpy().tolist()
    return HyperposteriorSummary(
        names=list(rows[0]),
        points=[list(row.values()) for row in rows],
        weights=[part.weight for part in parts],
        draws={name: [float(f"{value:.6g}") for value in draws[name]] for name in shown},
        deviations={name: float(table.loc[name, "deviation"]) for name in shown},
        quantiles=dict(zip(shown, quantiles, strict=True)),
        effective_size=hyper.effective_size,
        evaluations=hyper.evaluations,
        log_evidence=hyper.log_evidence,
        log_evidence_error=hyper.log_evidence_error,
        warnings=list(hyper.warnings),
    )


def _derived(
    problem: Problem,
    model: Model,
    values: Mapping[str, float],
    covariance: np.ndarray | None,
    hyper: Hyperposterior | None,
) -> dict[str, DerivedSummary]:
    """Return the derived quantities of the problem, given the chosen values, their covariance and distribution."""
    draws = {} if hyper is None or not problem.derived else hyper.sample(DERIVED_DRAWS)
    found = {}
    for name, function in problem.derived.items():
        derived = derived_value(function, model, values, covariance)
        quantiles = None
        used = {each: jnp.asarray(draws[each]) for each in function.parameters if each in draws}
        if used:  # otherwise it follows from known numbers
            drawn = np.asarray(jax.vmap(function)(used))
            # Where the formula is not defined, as a logarithm of a negative draw, there is no interval.
            low, middle, high = np.quantile(drawn, INTERVAL).tolist()
            quantiles = (low, middle, high)
        found[name] = DerivedSummary(
            text=function.text, value=derived.value, standard_error=derived.standard_error, quantiles=quantiles
        )
    return found


def _rescaled(problem: Problem, model: Model) -> dict[str, float]:
    """Return the temperatures that a profiled score has rescaled, whether or not they were searched."""
    if not problem.score.profiled:
        return {}
    roles = model.roles
    return {name: float(value) for name, value in model.parameters.items() if roles[name] in TEMPERATURE_ROLES}


def _minimum(problem: Problem, name: str, save: Path, progress: bool | None, client: Any, score: Score) -> Minimum:
    """Return the minimum from all starts.

    A parameter of an equation is often determined a thousand times more sharply than hyperparameters, which a descent
    over its whole range then hardly moves. The search therefore continues in a range of a few standard deviations, as
    long as that gains something.
    """
    model, over = problem.models[name], problem.over[name]

    def descend(model: Model, over: Mapping[str, Any], first: Sequence[Mapping[str, Any]], file: Path) -> Minimum:
        where = RunOptions(client=client, save=file, progress=progress)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnresolvedWarning)  # a warning of the selection says it
            found = minimize(model, over, starts=first, score=score, search=SEARCH, run=where)
        if found.status == "interrupted":
            raise KeyboardInterrupt
        return found

    best = last = descend(model, over, starts(model, over, problem.starts, problem.seed), save)
    ranges = {parameter: over[parameter] for parameter in problem.inferred}
    for stage in range(MAX_STAGES):
        narrow = _narrowed(best, ranges, over)
        if not narrow:
            break
        file = save.with_stem(f"{save.stem}-{stage + 2}")
        end = dict(last.values)
        if score.profiled:  # bounds on temperatures hold at the original scale
            factor, roles = float(model.eta) / float(last.model.eta), last.model.roles
            end |= {each: factor * end[each] for each in end if roles[each.split("[")[0]] in TEMPERATURE_ROLES}
        score = last.score  # the default score has been decided
        # The nodes of exact equations, and their tolerances, stay as the search has left them.
        model = model.replace(physics=last.model.physics) if last.resolution is not None else model
        last = descend(model.replace(end), {**over, **ranges, **narrow}, [{}], file)
        gain = 0.5 * best.pile.size * (best.pile.value - last.pile.value)
        ranges |= narrow
        # A parameter at the edge of its narrow range is not at a bound of the problem.
        sides = {each: side for each, side in last.at_bounds.items() if each not in narrow} | {
            each: side for each, side in best.at_bounds.items() if each in problem.inferred
        }
        kept: dict[str, Any] = {"descents": best.descents, "evaluations": best.evaluations + last.evaluations}
        if last.status == "stalled" and gain < MIN_GAIN_NATS:  # already at the minimum, up to rounding
            kept |= {"status": best.status, "reason": best.reason}
        best = dataclasses.replace(last, at_bounds=sides, **kept)
        if gain < MIN_GAIN_NATS and not {*last.at_bounds} & {*narrow}:
            break
    return best


def _narrowed(
    best: Minimum, ranges: Mapping[str, tuple[float, float]], over: Mapping[str, Any]
) -> dict[str, tuple[float, float]]:
    """Return ranges of a few standard deviations about inferred parameters, if they are much narrower than now."""
    narrower: dict[str, tuple[float, float]] = {}
    for name, (low, high) in ranges.items():
        if best.curvature is None or name not in best.curvature.names:
            continue
        index = best.curvature.names.index(name)
        second, value = float(best.curvature.hessian[index, index]), best.values[name]
        if second > 0:
            # The Hessian is in units of the range. A parameter that is correlated with others deviates much farther
            # with them than alone, and the range bounds its standard error.
            together = np.nan_to_num(best.curvature.standard_errors[name])
            reach = (high - low) * max(RANGE_DEVIATIONS / math.sqrt(second), LEAST_DEVIATIONS * together)
            narrow = (max(over[name][0], value - reach), min(over[name][1], value + reach))
            if narrow[1] - narrow[0] < 0.5 * (high - low) or not low < value < high:
                narrower[name] = narrow
    return narrower


def starts(model: Model, over: Mapping[str, Any], count: int, seed: int) -> list[dict[str, Any]]:
    """Return the starts of a search: the model's values, short lengths with strict equations, then Sobol points."""
    strict: dict[str, Any] = {}
    for name, (low, high) in over.items():
        now, role = np.asarray(model.parameters[name]), model.roles[name]
        if role == "length":
            strict[name] = np.clip(SHORT_START * now, low, high)
        elif role == "physics_temperature":
            strict[name] = np.clip(STRICT_START * np.asarray(low), low, np.maximum(now, low))
    where = search_space(model, over)
    others = where.sobol(max(count - 2, 0), seed)
    return [{}, strict, *(where.by_name(where.decode(u)) for u in others)][:count]


def diagnose_choice(problem: Problem, name: str, model: Model, score: Score) -> DiagnosisSummary:
    """Return all checks of the model chosen with one kernel.

    Inferred parameters at a bound are left to `selection_warnings`, since wider bounds are not the remedy there.
    """
    original = problem.models[name]
    factor = float(model.eta) / float(original.eta) if problem.score.profiled else 1.0
    over = {
        parameter: (factor * low, factor * high) if original.roles[parameter] in TEMPERATURE_ROLES else (low, high)
        for parameter, (low, high) in problem.over[name].items()
        if parameter not in problem.inferred
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)  # a check reports it
        checked = diagnose(model, over=over or None, score=score, progress=False).checked
    return DiagnosisSummary([_check_summary(finding, problem) for finding in checked])


def _check_summary(finding: Finding, problem: Problem) -> CheckSummary:
    """Return a check with readable names of hyperparameters."""
    stored = dataclasses.replace(
        finding,
        value=finding.value if math.isfinite(finding.value) else math.nan,
        meaning=_readable(finding.meaning, problem),
        advice=_readable(finding.advice, problem),
        details={key: value for key, value in finding.details.items() if key == "outliers"},
    )
    parts: dict[str, Any] = {field.name: getattr(stored, field.name) for field in dataclasses.fields(stored)}
    if finding.status == "fired":
        chart = dataclasses.replace(finding.chart, rows=tuple(_readable(row, problem) for row in finding.chart.rows))
        parts["chart"] = ChartSummary.model_validate(chart, from_attributes=True)
    return CheckSummary.model_validate(parts)


def _readable(text: str, problem: Problem) -> str:
    """Return a text with readable names of hyperparameters."""
    return re.sub(r"\w+(?:\.\w+)+(?:\[\d+\])?", lambda match: parameter_text(match[0], problem), text)


def solution_summary(solved: Solution, score: Score) -> SolutionSummary:
    """Return how the nonlinear equations were solved."""
    try:
        value = systems_of(solved.nonlinear, score, explain=False).pile(score).value
    except PilescoreError:
        value = math.nan
    return SolutionSummary(
        status=solved.status,
        reason=solved.reason,
        iterations=solved.iterations,
        pile=value,
        gap=solved.gap,
        second_order=solved.second_order,
    )


def selection_warnings(
    problem: Problem, result: KernelResult, solution: SolutionSummary | None = None
) -> Iterator[str]:
    """Yield warnings about the nonlinear solution, the search, and the inferred parameters."""
    if solution is not None:
        yield from _solution_warnings(solution, result.row)
    if not result.resolved:
        yield result.resolution
    if result.status not in ("converged", "fixed"):
        yield f"the search has not converged: {result.reason}"
    for name in problem.inferred:
        side = result.at_bounds.get(name, "")
        if side:
            yield f"{name} is at its {side} bound: the data favour a value beyond it, or the problem has a mistake"
        elif name in result.standard_errors and not math.isfinite(result.standard_errors[name]):
            left = result.degrees_of_freedom
            why = "the score has no clear minimum"
            if left is not None and left <= 0:
                why = f"n − p = {left:.3g}: too few data".replace("= -", "= −")
            yield f"{name} has no standard error: {why}"
    if result.why_known:
        yield f"the standard deviations of predictions take all chosen numbers as known: {result.why_known}"
    elif result.hyperposterior is not None:
        told = [name for name in problem.inferred if name in result.at_bounds]  # above
        for text in result.hyperposterior.warnings:
            if not any(re.search(rf"\bbound of {re.escape(name)},", text) for name in told):
                yield _readable(text, problem)
    size = result.row.size or 0
    # Descents that coarse nodes have ended did not reach a minimum to compare.
    hindered = any(descent.status == "hindered" for descent in result.descents)
    ends = [] if hindered else [0.5 * size * descent.pile for descent in result.descents]
    reached = sorted(end for end in ends if math.isfinite(end))  # the others failed at their starts
    behind = [end - reached[0] for end in reached if end - reached[0] > SAME_MINIMUM_NATS]
    if len(ends) > 1 and len(behind) == len(reached) - 1:
        shown = [f"{gap:.3g} nats behind" for gap in behind] + ["failed"] * (len(ends) - len(reached))
        yield f"only one of {len(ends)} starts reached this score; the others: {', '.join(shown)}. Try more starts"


def _solution_warnings(solution: SolutionSummary, scored: KernelScore) -> Iterator[str]:
    status = solution.status
    if status not in SOLVED:
        yield f"the nonlinear equations are not solved ({status}): {solution.reason}"
    difference = 0.5 * (scored.size or 0) * abs(solution.pile - scored.pile)
    if not difference <= SAME_MINIMUM_NATS:  # NaN too
        yield "the equations have several solutions: solving them again gave another one than the search"
    elif status in SOLVED and not math.isfinite(solution.second_order):
        yield "the most likely solution is poorly determined: its exact curvature is not positive"
