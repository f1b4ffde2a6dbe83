"""Checks of the hyperparameters: bounds that were reached, and directions that do not matter."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ...errors import PilescoreError
from ...model import Model, is_positive, named_paths, path_of
from ...search import Curvature, Objective, SearchOptions, find_curvature, search_space
from ..context import AT_BOUND, DiagnosisContext
from ..findings import Finding

FLAT_NATS = 1.0
"""A direction is flat if a factor of ten along it changes the evidence by fewer nats."""

IDLE_NATS = 0.1
"""A temperature is idle if a tenth and ten times its value change the evidence by fewer nats."""

LOG_TEN = math.log(10.0)

WIDEST_FACTOR = 1e3
"""Bounds about the present hyperparameters where no bounds are known, as a factor both ways."""


def at_bound(context: DiagnosisContext) -> Finding:
    """Check which hyperparameters are at a bound of the search."""
    if context.minimum is None and context.space is None:
        return context.skip("at_bound", "No bounds are known: give over=, or the result of ps.minimize.")
    sides = context.at_bounds
    nearest = 0.0 if sides else min((min(at, 1 - at) for at in context.positions.values()), default=math.nan)
    roles = {name: context.source.roles.get(name.split("[")[0]) for name in sides}
    upper = [
        n for n, side in sides.items() if side == "upper" and roles[n] in ("data_temperature", "physics_temperature")
    ]
    short = [n for n, side in sides.items() if side == "lower" and roles[n] == "length"]
    named = ", ".join(f"{name} at its {side} bound" for name, side in sides.items())
    meaning = f"The evidence is higher beyond the bounds: {named}."
    if upper:
        meaning += f" With {' and '.join(upper)} so large, the model takes these observations for noise."
    if short:
        meaning += f" With {' and '.join(short)} so short, no smooth function fits: an error, or too few nodes."
    return context.finding(
        "at_bound",
        nearest,
        "warning" if upper or short else "note",
        "the distance to the nearest bound, as a fraction of the range, is",
        meaning,
        "wider bounds. A rho at its lower bound only says that the equation holds as closely as the bounds allow; an "
        "eta or a length at its upper bound says that the solution is smoother than the bounds allow.",
        threshold=AT_BOUND,
        below=True,
        fires=bool(sides),
        at_bounds=sides,
    )


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
