"""Checks that score the model at other hyperparameters, or by finer rules."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from .descent import Curvature, Objective, find_curvature
from .errors import PilescoreError
from .examination import STRETCHES, Examination, bandwidths, finding, skipped
from .findings import Finding
from .model import Model, find, is_positive, named_paths
from .observations import Observation, impose
from .score import value, value_and_gradient
from .space import space
from .system import solve

DECADE = math.log(10.0)

WIDE = 1e3
"""How far hyperparameters may go either way where no bounds are known."""

FINER = 1.5
"""How many times the nodes on each axis a finer rule has."""

LARGEST_REFINED = 5000
"""Observations with the finer rule, at most."""


def smoothing(examination: Examination) -> list[Finding]:
    """Return whether shorter or longer bandwidths would be better: two findings."""
    model, both = examination.model, ("over_smoothed", "under_smoothed")
    names = bandwidths(model)
    if not names:
        return [skipped(examination, name, f"{model.kernel!r} has no bandwidth.") for name in both]
    given = {name: np.asarray(model.parameters[name]) for name in names}
    _, slopes = value_and_gradient(model, names, False, examination.given_physics, warn=False)
    n = model.size if not examination.given_physics else sum(block.size for block in model.data)
    slope = 0.5 * n * float(sum(np.sum(slopes[name] * given[name]) for name in names))
    profile = examination.stretched
    found = []
    for name, factors, words, other in (
        ("over_smoothed", STRETCHES[:3], "shorter", "long"),
        ("under_smoothed", STRETCHES[3:], "longer", "short"),
    ):
        best = max(factors, key=lambda factor: profile[factor])
        found.append(
            finding(
                examination,
                name,
                max(profile[best], 0.0),
                "warning",
                f"nats gained by {words} bandwidths are",
                f"The kernel is too {other}: bandwidths × {best:.2g} would gain {profile[best]:.3g} nats (the slope "
                f"of the free energy in log h is {slope:+.3g}).",
                f"{words} bandwidths: ps.minimize(model, over={{'{names[0]}': (low, high), …}}).",
                slope=slope,
                profile=profile,
            )
        )
    return found


def at_bound(examination: Examination) -> Finding:
    """Say which hyperparameters are at a bound of the search."""
    if examination.minimum is None and examination.where is None:
        return skipped(examination, "at_bound", "No bounds are known: give over=, or the result of ps.minimize.")
    sides = examination.at_bounds
    nearest = 0.0 if sides else min((min(at, 1 - at) for at in examination.places.values()), default=math.nan)
    upper = [n for n, side in sides.items() if side == "upper" and n.split(".")[-1] in ("gamma", "rho")]
    short = [n for n, side in sides.items() if side == "lower" and "bandwidth" in n]
    named = ", ".join(f"{name} at its {side} bound" for name, side in sides.items())
    meaning = f"The evidence wanted to go further: {named}."
    if upper:
        meaning += f" With {' and '.join(upper)} so large, {'they are' if len(upper) > 1 else 'it is'} taken for noise."
    if short:
        meaning += (
            f" With {' and '.join(short)} so short, no smooth function fits: something is wrong, or nodes too few."
        )
    return finding(
        examination,
        "at_bound",
        nearest,
        "warning" if upper or short else "note",
        "the distance to the nearest bound, in parts of the range, is",
        meaning,
        "wider bounds; a rho at its lower bound only says that the equation is met as closely as it may be, and an "
        "eta or bandwidth at its upper bound that the solution is smoother than the bounds allow for.",
        below=True,
        fires=bool(sides),
        at_bounds=sides,
    )


def flat_direction(examination: Examination) -> Finding:
    """Say along which direction the evidence says nothing."""
    name, best = "flat_direction", examination.minimum
    slope: np.ndarray | None = None
    found = None if best is None else best.curvature
    if found is None:
        if best is not None and set(best.values) <= set(best.at_bounds):
            return skipped(examination, name, "All hyperparameters are at a bound.")
        try:
            found, slope = _curvature(examination)
        except PilescoreError as failure:
            return skipped(examination, name, f"The Hessian could not be computed: {failure}")
    if found is None:
        return skipped(examination, name, "There is no Hessian: nothing is open, or the score fails nearby.")
    values, vectors = np.linalg.eigh(found.hessian)
    rises = np.zeros(len(values)) if slope is None else np.abs(slope @ vectors)
    changes = rises * DECADE + 0.5 * np.abs(values) * DECADE**2
    flattest = int(np.argmin(changes))
    direction = dict(zip(found.names, vectors[:, flattest].tolist(), strict=True))
    shown = " ".join(f"{part:+.2g}·{_unit(each, examination.source)}" for each, part in _largest(direction))
    return finding(
        examination,
        name,
        float(changes[flattest]),
        "note",
        "nats by which the flattest direction changes the evidence in a decade are",
        f"The evidence does not tell these apart: {shown} may be anything.",
        "fix one of them, or tie them; predictions hardly depend on it.",
        below=True,
        direction=direction,
        changes=changes.tolist(),
    )


def _unit(name: str, model: Model) -> str:
    """Return the coordinate of a hyperparameter in a search: its logarithm, or itself in parts of its range."""
    base, _ = find(model, named_paths(model), name)
    return f"log {name}" if is_positive(model, named_paths(model)[base][0]) else f"{name}/range"


def _largest(direction: Mapping[str, float]) -> list[tuple[str, float]]:
    parts = sorted(direction.items(), key=lambda item: -abs(item[1]))
    return [part for part in parts[:4] if abs(part[1]) > 0.2]


def _curvature(examination: Examination) -> tuple[Curvature | None, np.ndarray | None]:
    """Return the Hessian about the model's own hyperparameters, and the slope there."""
    model, known = examination.source, named_paths(examination.source)
    over = {}
    for name, given in model.parameters.items():
        array = np.asarray(given)
        reach = np.where(array == 0, 1.0, np.abs(array))
        positive = is_positive(model, known[name][0])
        over[name] = (array / WIDE, array * WIDE) if positive else (array - reach, array + reach)
    where = space(model, over)
    search = Objective(where, False, examination.given_physics, 1e-8, 1)
    u = where.start({})
    score, slope = search.evaluate(u, examination.trail)
    free = [name for name in where.names if examination.is_open(name) and name not in examination.at_bounds]
    rows = [where.names.index(name) for name in free]
    return find_curvature(search, u, free, score.size, examination.trail), 0.5 * score.size * slope[rows]


def idle_temperature(examination: Examination) -> Finding:
    """Say which temperature changes nothing."""
    changes = {
        name: max(abs(examination.energy({name: factor * now}) - examination.base) for factor in (0.1, 10.0))
        for name, now in examination.temperatures.items()
        if examination.is_open(name)
    }
    if not changes:
        return skipped(examination, "idle_temperature", "No temperature was chosen.")
    idle = min(changes, key=lambda name: changes[name])
    return finding(
        examination,
        "idle_temperature",
        changes[idle],
        "note",
        "nats by which a tenth or ten times the idlest temperature changes the evidence are",
        f"{idle} has no effect: the model is the same with a tenth or ten times of it.",
        f"fix {idle}, and leave it out of the search.",
        below=True,
        changes=changes,
    )


def unresolved_quadrature(examination: Examination) -> Finding:
    """Say whether the score is another by a finer rule."""
    model, name = examination.model, "unresolved_quadrature"
    if not model.physics:
        return skipped(examination, name, "There is no physics.")
    try:
        finer = [_refined(block) for block in model.physics]
    except Exception as failure:  # whatever a user's function says at other points
        return skipped(examination, name, f"Values at the nodes of a finer rule fail: {failure}")
    if all(each is None for each in finer):
        return skipped(
            examination, name, "No rule can be refined: nodes are explicit, or have values or a noise of their own."
        )
    blocks = [new or old for new, old in zip(finer, model.physics, strict=True)]
    size = sum(block.size for block in (*model.data, *blocks))
    if size > LARGEST_REFINED:
        return skipped(examination, name, f"A finer rule has {size} observations, more than {LARGEST_REFINED}.")
    try:
        fine = Model(model.kernel, model.data, blocks, model.gamma, model.rho, model.eta)
        before, after = (_comparable(each) for each in (model, fine))
    except PilescoreError as failure:
        return skipped(examination, name, f"With a finer rule the score fails: {failure}")
    what = "data given the physics" if model.data else "physics"
    return finding(
        examination,
        name,
        abs(after - before),
        "note",
        "nats by which a finer rule changes the evidence are",
        f"The nodes are too few: with {FINER:g} times as many on each axis the free energy of the {what} changes by "
        f"{after - before:+.3g} nats.",
        "more nodes: a larger number in the rule of ps.impose.",
        energies=(before, after),
        not_refined=[label for label, new in zip(model.labels[len(model.data) :], finer, strict=True) if new is None],
    )


def _refined(block: Observation) -> Observation | None:
    """Return a block by a finer rule, or None where there is no rule, or no value at other nodes."""
    if block.nodes is None or block.nodes.rule is None or block.source is None:
        return None
    if not np.array_equal(block.weights, block.nodes.weights):
        return None
    on = block.nodes.refined(FINER)
    return impose(block.operator, block.source, on=on, rho=block.temperature, name=block.name)


def _comparable(model: Model) -> float:
    """Return a free energy that has a limit as rules are refined: over that of pure noise, where there are no data."""
    if model.data:
        return value(solve(model, explain=False), False, True, warn=False).free_energy
    system = solve(model, explain=False)
    noise = 0.5 * float(np.log(system.noise).sum() + model.values @ (model.values / model.noise))
    return 0.5 * (system.logdet.value + system.quadratic) - noise
