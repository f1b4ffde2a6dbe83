"""Checks of the hyperparameters: bounds that were reached, and directions that do not matter."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ...errors import PilescoreError, listed
from ...model import Model, find, is_positive, named_paths, path_of
from ...search import Curvature, Objective, SearchOptions, Side, find_curvature, search_space
from ..context import DiagnosisContext
from ..findings import Finding

BEYOND_NATS = 1.0
"""A bound matters if a factor of two beyond it gains more nats."""

COMPARABLE_NATS = 2.0
"""Optima within these nats have comparable evidence."""

APART = 0.7
"""Optima are different if a hyperparameter differs by more than a factor of two, or by this fraction of its size."""

CONSEQUENCES = {
    ("data_temperature", "upper"): "the model takes the data for noise, and explains less of them than it could",
    ("data_temperature", "lower"): "the data are more precise than the bounds allow, and deviations are too wide",
    ("physics_temperature", "upper"): "the model takes the equation for noise, and does not obey it",
    ("length", "lower"): "no smooth function fits: an error in the model, or too few nodes for shorter lengths",
    ("length", "upper"): "the solution is smoother than the bounds allow, and deviations are too wide",
    ("coefficient", "lower"): "its value and standard error mean nothing",
    ("coefficient", "upper"): "its value and standard error mean nothing",
    ("angle", "lower"): "the kernel's direction is not the best one",
    ("angle", "upper"): "the kernel's direction is not the best one",
    ("ratio", "lower"): "the kernel is not stretched as far as the solution is",
    ("ratio", "upper"): "the kernel is not stretched as far as the solution is",
    ("period", "lower"): "the period is not the best one",
    ("period", "upper"): "the period is not the best one",
}
"""What it means that a hyperparameter of some kind is at a bound. A rho at its lower bound only says that the equation
holds, and an eta at a bound has a check of its own."""

FLAT_NATS = 1.0
"""A direction is flat if a factor of ten along it changes the evidence by fewer nats."""

IDLE_NATS = 0.1
"""A temperature is idle if a tenth and ten times its value change the evidence by fewer nats."""

LOG_TEN = math.log(10.0)

WIDEST_FACTOR = 1e3
"""Bounds about the present hyperparameters where no bounds are known, as a factor both ways."""


def at_bound(context: DiagnosisContext) -> Finding:
    """Check which hyperparameters are at a bound of the search, if that has consequences."""
    if context.minimum is None and context.space is None:
        return context.skip("at_bound", "No bounds are known: give over=, or the result of ps.minimize.")
    sides, model = context.at_bounds, context.source
    gains = {name: _gain_beyond(context, name, side) for name, side in sides.items()}
    texts: dict[str, str] = {}
    for name, side in sides.items():
        text = CONSEQUENCES.get((model.roles[name.partition("[")[0]], side), "")
        if text and (gains[name] > BEYOND_NATS or model.roles[name.partition("[")[0]] == "coefficient"):
            texts[name] = text
    coefficients = [name for name in texts if model.roles[name.partition("[")[0]] == "coefficient"]
    worst = max((gains[name] for name in texts), default=0.0)
    return context.finding(
        "at_bound",
        worst,
        "failure" if coefficients else "warning",
        "the gain by a factor of two beyond a bound, in nats, is",
        " ".join(f"{name} is at its {sides[name]} bound: {text}." for name, text in texts.items())
        or "Nothing is at a bound that matters.",
        "wider bounds, if values beyond them make sense; otherwise find out what the model lacks.",
        threshold=BEYOND_NATS,
        fires=bool(texts),
        at_bounds=sides,
        gains=gains,
    )


def _gain_beyond(context: DiagnosisContext, name: str, side: Side) -> float:
    """Return the nats gained beyond a bound: by a factor of two, or a tenth of the size of what may be negative."""
    base, index = find(context.source, named_paths(context.source), name)
    value = float(np.asarray(context.source.parameters[base])[index])
    if is_positive(context.source, path_of(context.source, name)):
        beyond = value * (2.0 if side == "upper" else 0.5)
    else:
        beyond = value + (0.1 if side == "upper" else -0.1) * (abs(value) or 1.0)
    return context.energy - context.energy_with({name: beyond})


def several_optima(context: DiagnosisContext) -> Finding:
    """Check whether descents from other starts ended elsewhere, with nearly as much evidence."""
    name, best = "several_optima", context.minimum
    if best is None or len(best.descents) < 2:
        return context.skip(name, "This needs the result of ps.minimize with several starts.")
    ends = [each for each in best.descents if math.isfinite(each.pile)]
    first = min(ends, key=lambda end: end.pile)
    size = best.pile.size
    others = {}
    for end in ends:
        nats = 0.5 * size * (end.pile - first.pile)
        if nats < COMPARABLE_NATS and _distance(context.source, first.end, end.end) > APART:
            others[nats] = end
    fewest = min(others, default=math.nan)
    shown = ""
    if others:
        moved = sorted(first.end, key=lambda key: -_distance(context.source, {key: first.end[key]}, others[fewest].end))
        shown = listed([f"{key} = {others[fewest].end[key]:.3g} instead of {first.end[key]:.3g}" for key in moved[:3]])
    return context.finding(
        name,
        fewest,
        "warning",
        "the evidence of the next best optimum is lower, in nats, by",
        f"Another optimum has nearly as much evidence, with {shown}: the choice between them is arbitrary.",
        "average over both (ps.hyperposterior, ps.posterior of it), or collect data that tell them apart "
        "(ps.next_points).",
        threshold=COMPARABLE_NATS,
        below=True,
        optima=len(others) + 1,
    )


def _distance(model: Model, first: Mapping[str, float], second: Mapping[str, float]) -> float:
    """Return the largest difference of hyperparameters that matter: of logarithms, or relative to their size."""
    far = 0.0
    for name, value in first.items():
        if is_positive(model, path_of(model, name)):
            difference = abs(math.log(value / second[name]))
        else:
            difference = abs(value - second[name]) / (max(abs(value), abs(second[name])) or 1.0)
        far = max(far, difference)
    return far


def flat_direction(context: DiagnosisContext) -> Finding:
    """Check along which direction the evidence is nearly constant; η alone is harmless."""
    name, best = "flat_direction", context.minimum
    slope: np.ndarray | None = None
    curvature = None if best is None else best.curvature
    if curvature is None:
        if best is not None and set(best.values) <= set(best.at_bounds):
            return context.skip(name, "All hyperparameters are at a bound.")
        try:
            curvature, slope = _curvature(context)
        except PilescoreError as failure:
            return context.skip(name, f"The Hessian could not be computed: {failure}")
    if curvature is None:
        return context.skip(name, "There is no Hessian: nothing was searched over, or the score fails nearby.")
    eigenvalues, vectors = np.linalg.eigh(curvature.hessian)
    slopes = np.zeros(len(eigenvalues)) if slope is None else np.abs(slope @ vectors)
    # The second-order change of the free energy over a factor of ten.
    changes = slopes * LOG_TEN + 0.5 * np.abs(eigenvalues) * LOG_TEN**2
    flattest = int(np.argmin(changes))
    direction = dict(zip(curvature.names, vectors[:, flattest].tolist(), strict=True))
    (first, largest), *others = _largest(direction)
    shown = _coordinate(first, context.source)  # an eigenvector has no sign or size of its own: the largest part is 1
    for each, part in others:
        shown += f" {part / largest:+.2g}·{_coordinate(each, context.source)}"
    return context.finding(
        name,
        float(changes[flattest]),
        "note",
        "the change of the evidence over a decade of the flattest direction, in nats, is",
        f"The evidence does not determine {shown}.",
        f"fix {'one of them, or tie them' if others else 'it'}; predictions hardly depend on it.",
        threshold=FLAT_NATS,
        below=True,
        fires=False if first == "eta" and not others else None,
        direction=direction,
        changes=changes.tolist(),
    )


def idle_temperature(context: DiagnosisContext) -> Finding:
    """Check which temperature has no effect."""
    changes = {
        name: max(abs(context.energy_with({name: factor * value}) - context.energy) for factor in (0.1, 10.0))
        for name, value in context.temperatures.items()
        if context.was_searched(name)
    }
    if not changes:
        return context.skip("idle_temperature", "No temperature was searched over.")
    idle = min(changes, key=lambda name: changes[name])
    return context.finding(
        "idle_temperature",
        changes[idle],
        "note",
        "the change of the evidence by a tenth or ten times the least effective temperature, in nats, is",
        f"{idle} has no effect: the evidence is the same with a tenth or ten times its value.",
        f"fix {idle}, and leave it out of the search.",
        threshold=IDLE_NATS,
        below=True,
        changes=changes,
    )


def _coordinate(name: str, model: Model) -> str:
    """Return the search coordinate of a hyperparameter: its logarithm, or itself divided by its range."""
    return f"log {name}" if is_positive(model, path_of(model, name)) else f"{name}/range"


def _largest(direction: Mapping[str, float]) -> list[tuple[str, float]]:
    parts = sorted(direction.items(), key=lambda item: -abs(item[1]))
    return parts[:1] + [part for part in parts[1:4] if abs(part[1]) > 0.2]


def _curvature(context: DiagnosisContext) -> tuple[Curvature | None, np.ndarray | None]:
    """Return the Hessian about the model's own hyperparameters, and the slope there."""
    model, paths = context.source, named_paths(context.source)
    over = {}
    for name, value in model.parameters.items():
        array = np.asarray(value)
        reach = np.where(array == 0, 1.0, np.abs(array))
        positive = is_positive(model, paths[name][0])
        over[name] = (array / WIDEST_FACTOR, array * WIDEST_FACTOR) if positive else (array - reach, array + reach)
    space = search_space(model, over)
    objective = Objective(space, context.score, SearchOptions(max_evaluations=1))
    u = space.start({})
    pile, slope = objective.evaluate(u, context.warm_start)
    free = [name for name in space.names if context.was_searched(name) and name not in context.at_bounds]
    rows = [space.names.index(name) for name in free]
    return find_curvature(objective, u, free, pile.size, context.warm_start), 0.5 * pile.size * slope[rows]
