"""PILE of any model, linear or not: what searches, sweeps, comparisons and diagnoses call."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from .errors import NotSolvedError
from .gauss_newton import Map
from .model import Model, named_paths
from .score import Pile, physics_alone, plain, scored, value, value_and_gradient
from .sensitivity import gradient
from .solving import Solved, followed, frozen
from .system import System, solve


@dataclasses.dataclass
class Trail:
    """Solutions of a nonlinear model from which others start: by all observations, and by the physics alone.

    With an origin they are those of that model, whatever is solved after it, and in whichever order; without, the last.
    """

    origin: Model | None = None
    whole: Float[np.ndarray, " F"] | None = None
    physics: Float[np.ndarray, " G"] | None = None


def score_of(model: Model, profiled: bool, given_physics: bool, trail: Trail | None = None, *, explain: bool) -> Pile:
    """Return PILE of a model; a nonlinear one is solved, from the last solution of the trail where there is one."""
    if not model.is_nonlinear:
        return value(solve(model, explain=explain), profiled, given_physics, warn=False)
    whole, prior = _solutions(model, given_physics, trail or Trail(), explain)
    return scored(whole.system, _system(prior), profiled)


def score_and_gradient(
    model: Model, wanted: Sequence[str], profiled: bool, given_physics: bool, trail: Trail | None = None
) -> tuple[Pile, dict[str, Any]]:
    """Return PILE of a model and its gradient by name."""
    if not model.is_nonlinear:
        return value_and_gradient(model, wanted, profiled, given_physics, warn=False)
    whole, prior = _solutions(model, given_physics, trail or Trail(), False)
    found = scored(whole.system, _system(prior), profiled)
    scale = found.eta / whole.system.eta if profiled else 1.0
    total = gradient(whole, wanted, scale)
    if isinstance(prior, Map):
        known = named_paths(prior.frame.model)
        part = gradient(prior, [name for name in wanted if name in known], scale)
        total = {name: each - part.get(name, 0.0) for name, each in total.items()}
    return found, {name: plain(each / found.size) for name, each in total.items()}


def solved_system(model: Model) -> System:
    """Return the system of a model, or of a nonlinear one linearised at its most likely solution."""
    return solved_systems(model, False, Trail())[0] if model.is_nonlinear else solve(model)


def solved(model: Model, trail: Trail) -> Solved:
    """Return the solution of a nonlinear model that a trail leads to."""
    found, _ = _solutions(model, False, trail, True)
    return frozen(found, len(found.steps))


def solved_systems(model: Model, given_physics: bool, trail: Trail) -> tuple[System, System | None]:
    """Return the systems of a nonlinear model and, if the data are to be scored given it, of its physics alone."""
    whole, prior = _solutions(model, given_physics, trail, True)
    return whole.system, _system(prior)


def _solutions(model: Model, given_physics: bool, trail: Trail, explain: bool) -> tuple[Map, Map | None]:
    origin = trail.origin
    if origin is not None and trail.whole is None:
        trail.whole = _solution(origin, None, explain).state.values
    if origin is not None and given_physics and trail.physics is None:
        trail.physics = _solution(physics_alone(origin), None, explain).state.values
    whole = _solution(model, trail.whole, explain)
    prior = _solution(physics_alone(model), trail.physics, explain) if given_physics else None
    if origin is None:
        trail.whole, trail.physics = whole.state.values, None if prior is None else prior.state.values
    return whole, prior


def _solution(model: Model, before: Float[np.ndarray, " F"] | None, explain: bool) -> Map:
    found = followed(model, before, explain=explain)
    if not found.converged:
        raise NotSolvedError(f"the nonlinear model was not solved: {found.status}: {found.reason}")
    return found


def _system(found: Map | None) -> System | None:
    return None if found is None else found.system
