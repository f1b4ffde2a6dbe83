"""PILE of any model, linear or not: what searches, sweeps, comparisons and diagnoses call."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from .errors import InputError, NotPositiveDefiniteError, NotSolvedError
from .gauss_newton import Map
from .model import Model, named_paths
from .score import Pile, physics_alone, plain, scored, value_and_gradient
from .sensitivity import gradient
from .solving import Solved, followed, frozen
from .system import System, solve


@dataclasses.dataclass
class Trail:
    """Where the solution of a nonlinear model is sought from: by all observations, and by the physics alone.

    It is the solution of one model, the origin, whatever is solved after it and in whichever order: so a score depends
    on the model alone.
    """

    origin: Model | None = None
    whole: Float[np.ndarray, " F"] | None = None
    physics: Float[np.ndarray, " G"] | None = None
    done: set[bool] = dataclasses.field(default_factory=set)
    """Whether each of the two has been sought."""

    def values(self, alone: bool) -> Float[np.ndarray, " _"] | None:
        """Return the solution of the origin, by physics alone or by all; None if it has none."""
        known = self.physics if alone else self.whole
        if known is None and self.origin is not None and alone not in self.done:
            self.done.add(alone)
            try:
                found = followed(physics_alone(self.origin) if alone else self.origin, None, explain=False)
                known = found.state.values if found.converged else None
            except (NotPositiveDefiniteError, InputError):
                known = None
            if alone:
                self.physics = known
            else:
                self.whole = known
        return known


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluated:
    """The systems of a model that a score is read from."""

    system: System
    prior: System | None
    """Of the physics alone, if the data are scored given it."""
    caution: str = ""
    """What is to be said of the solution of a nonlinear model."""


def evaluated(model: Model, given_physics: bool, trail: Trail | None = None, *, explain: bool) -> Evaluated:
    """Return the systems of a model; of a nonlinear one they are linearised at its most likely solution."""
    if not model.is_nonlinear:
        alone = solve(physics_alone(model), explain=explain) if given_physics else None
        return Evaluated(solve(model, explain=explain), alone)
    whole, prior = _solutions(model, given_physics, trail or Trail(), explain)
    caution = f"{whole.status}: {whole.reason}" if whole.status == "unsatisfied" else ""
    return Evaluated(whole.system, None if prior is None else prior.system, caution)


def score_of(model: Model, profiled: bool, given_physics: bool, trail: Trail | None = None, *, explain: bool) -> Pile:
    """Return PILE of a model; a nonlinear one is solved, from the trail where there is one."""
    found = evaluated(model, given_physics, trail, explain=explain)
    return scored(found.system, found.prior, profiled)


def score_and_gradient(
    model: Model, wanted: Sequence[str], profiled: bool, given_physics: bool, trail: Trail | None = None
) -> tuple[Pile, dict[str, Any]]:
    """Return PILE of a model and its gradient by name."""
    if not model.is_nonlinear:
        return value_and_gradient(model, wanted, profiled, given_physics, warn=False)
    whole, prior = _solutions(model, given_physics, trail or Trail(), False)
    found = scored(whole.system, None if prior is None else prior.system, profiled)
    scale = found.eta / whole.system.eta if profiled else 1.0
    total = gradient(whole, wanted, scale)
    if prior is not None:
        known = named_paths(prior.frame.model)
        part = gradient(prior, [name for name in wanted if name in known], scale)
        total = {name: each - part.get(name, 0.0) for name, each in total.items()}
    return found, {name: plain(each / found.size) for name, each in total.items()}


def solved(model: Model, trail: Trail) -> Solved:
    """Return the solution of a nonlinear model that a trail leads to."""
    found, _ = _solutions(model, False, trail, True)
    return frozen(found, len(found.steps))


def _solutions(model: Model, given_physics: bool, trail: Trail, explain: bool) -> tuple[Map, Map | None]:
    whole = _solution(model, trail.values(False), explain)
    if not given_physics:
        return whole, None
    alone = physics_alone(model)
    try:
        return whole, _solution(alone, trail.values(True), explain)
    except (InputError, NotSolvedError):  # what the data say of it is a start, too
        if any(block.is_nonlinear for block in model.data):  # their functionals come first, too
            raise
        return whole, _solution(alone, whole.state.values[sum(block.size for block in model.data) :], explain)


def _solution(model: Model, before: Float[np.ndarray, " F"] | None, explain: bool) -> Map:
    found = followed(model, before, explain=explain)
    if not found.converged:
        raise NotSolvedError(f"the nonlinear model was not solved: {found.status}: {found.reason}")
    return found
