"""The steps of a minimisation: descents at one tolerance and on one set of nodes after the other."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from ..errors import PilescoreError, as_count, require
from ..inference import START_TOLERANCE, Pile, Score, systems_of
from ..model import Model
from ..parallel import EvaluationPool, checked_client, refuse_nested_clusters
from ..solvers import TIGHTEST, contradiction, with_tolerances
from .descent import Curvature, Descent, find_curvature, run_descents
from .objective import EvaluationLog, Objective
from .options import RunOptions, SearchOptions, describe_saving
from .resolution import Resolution, check_resolution, fine_enough, floored
from .space import SearchSpace, Side, Ties, bounds_reached, search_space

AT_BOUND = 1e-6
"""The distance to a bound that counts as at the bound, as a fraction of the range."""

GUARD_NATS = 8.0
"""How much worse, in nats, the default score may predict the data than hyperparameters chosen for the data alone."""

TOLERANCES = (START_TOLERANCE, TIGHTEST)
"""The successive tolerances of exact equations, relative to the prior."""

MAX_REFINEMENTS = 4
"""How often nodes are refined."""


def _bends(model: Model) -> bool:
    """Whether the solution misses exact equations: given a source, a small prior scale costs the data nothing."""
    exact = any(model.is_exact(i) for i in range(len(model.blocks)))
    return exact and bool(contradiction(systems_of(model, Score(), explain=False).whole))


def is_contestable(model: Model, score: Score) -> bool:
    """Whether the default score differs from that of the data given all physics."""
    return bool(model.data) and len(score.given_blocks(model)) < len(model.physics)


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """The best point of a search, and how it was found."""

    objective: Objective
    descents: tuple[Descent, ...]
    best: Descent
    interrupted: bool
    curvature: Curvature | None
    resolution: Resolution | None = None
    why: str = ""

    @property
    def u(self) -> Float[np.ndarray, " p"]:
        """The coordinates of the best point."""
        assert self.best.best is not None
        return self.best.best[0]

    @property
    def pile(self) -> Pile:
        """The score there."""
        assert self.best.best is not None
        return self.best.best[1]

    @property
    def model(self) -> Model:
        """The model there; a profiled scale is not applied."""
        return self.objective.space.model_at(self.objective.space.decode(self.u))

    @property
    def at_bounds(self) -> dict[str, Side]:
        """The hyperparameters at a bound."""
        return bounds_reached(self.objective.space.positions(self.u), AT_BOUND)


class Steps:
    """The steps of one minimisation: descents at one tolerance and one set of nodes after the other."""

    def __init__(
        self,
        over: Mapping[str, Any],
        ties: Ties | None,
        score: Score,
        search: SearchOptions,
        run: RunOptions,
    ) -> None:
        self.over, self.ties, self.score, self.options, self.run = over, ties, score, search, run
        self.update: Any = lambda count: None
        self.log: EvaluationLog | None = None
        self.evaluations = 0

    @property
    def progress(self) -> str:
        """How far the work got, for an error about a cluster."""
        saved = describe_saving(None if self.log is None else self.log.file)
        return f"{self.evaluations} evaluations were started; {saved}"

    def search(self, model: Model, starts: int | Sequence[Mapping[str, Any]]) -> Found:
        """Return the minimum, with exact equations at their final tolerance and on enough nodes."""
        exact = any(model.is_exact(i) for i in range(len(model.blocks)))
        if not exact:
            return self.descend(model, starts, last=True)
        first: Found | None = None
        # A model that has tolerances comes from an earlier search, whose end is its start.
        fresh = any(model.is_exact(i) and not block.exact for i, block in enumerate(model.blocks))
        for tolerance in TOLERANCES if fresh else TOLERANCES[-1:]:
            last = tolerance == TOLERANCES[-1]
            try:
                found = self.descend(with_tolerances(fine_enough(model), tolerance, renew=True), starts, last=last)
            except PilescoreError:
                if first is None:
                    raise
                # Rounding does not allow a tighter tolerance: the curvature is found at the looser one.
                found = self.descend(with_tolerances(model, TOLERANCES[0], renew=True), 1, last=True)
            model, starts = found.model, 1
            first = first or found
            if found.interrupted:
                break
        assert first is not None
        found = dataclasses.replace(found, descents=first.descents)
        return found if found.interrupted else self.refined(found)

    def refined(self, found: Found) -> Found:
        """Return the minimum on enough nodes, or as many as can be afforded."""
        for _ in range(MAX_REFINEMENTS):
            resolution = check_resolution(found.model, at_floor=self.at_floor(found))
            found = dataclasses.replace(found, resolution=resolution)
            if resolution.resolved or resolution.finer is None:
                break
            finer = with_tolerances(resolution.finer, TOLERANCES[-1], renew=True)
            try:
                again = self.descend(finer, 1, last=True)
            except PilescoreError:  # rounding: the resolution says that the nodes are too few
                break
            found = dataclasses.replace(again, descents=found.descents, resolution=resolution)
            if again.interrupted:
                break
        return found

    def at_floor(self, found: Found) -> list[str]:
        """Return the lengths that the distance between nodes keeps from being shorter."""
        asked = search_space(found.objective.space.model, self.over, self.ties)
        limits = zip(asked.names, asked.low, found.objective.space.low, strict=True)
        return [name for name, low, now in limits if now > low and found.at_bounds.get(name) == "lower"]

    def guarded(self, found: Found, model: Model, starts: int | Sequence[Mapping[str, Any]]) -> Found:
        """Return the minimum by the default score or, if it misses the data, by that of the data given the physics."""
        if found.interrupted:
            return found
        mine = self.score
        self.score = dataclasses.replace(mine, given="physics")
        try:
            here = systems_of(found.model, self.score, found.best.warm_start, explain=False).pile(self.score)
            nearby = self.descend(found.model, 1, last=False)
            lost = 0.5 * here.size * (here.value - nearby.pile.value)
            if lost <= GUARD_NATS or nearby.interrupted or _bends(nearby.model):
                return found
            why = f"the data given the physics: {mine.described(model)} would predict the data {lost:.3g} nats worse"
            given = self.search(model, starts)
            return found if _bends(given.model) else dataclasses.replace(given, why=why)
        except PilescoreError:  # the data given the physics cannot be scored there: nothing to compare with
            return found
        finally:
            self.score = mine

    def descend(self, model: Model, starts: int | Sequence[Mapping[str, Any]], *, last: bool) -> Found:
        """Return the minimum from all starts for one model; the last descent finds the curvature too."""
        space = search_space(model, floored(model, self.over), self.ties)
        asked = search_space(model, self.over, self.ties)
        points = [
            space.encode(np.clip(asked.decode(point), space.low, space.high))
            for point in start_points(asked, starts, self.options.seed)
        ]
        objective = Objective(space, self.score, self.options)
        objective.update, objective.log = self.update, self.log
        if self.log is not None:
            self.log.stage += 1
        with _workers(objective, self.run.client) as objective.workers:
            try:
                descents, interrupted = run_descents(objective, points)
                succeeded = [descent for descent in descents if descent.best is not None]
                if not succeeded:
                    if interrupted:
                        raise KeyboardInterrupt
                    text = "; ".join(dict.fromkeys(descent.reason for descent in descents))
                    raise type(descents[0].failure or PilescoreError())(
                        f"PILE could not be computed at any start. {text}"
                    )
                best = min(succeeded, key=lambda descent: descent.best[1].value if descent.best else math.inf)
                found = Found(objective, tuple(descents), best, interrupted, None)
                if last and self.options.curvature and not interrupted:
                    free = [name for name in space.names if name not in found.at_bounds]
                    try:
                        curvature = find_curvature(objective, found.u, free, found.pile.size, best.warm_start)
                        found = dataclasses.replace(found, curvature=curvature)
                        if curvature is not None:
                            best.settle(curvature)
                    except KeyboardInterrupt:
                        found = dataclasses.replace(found, interrupted=True)
            finally:
                self.evaluations += objective.evaluations
        return found


def _workers(objective: Objective, client: Any) -> Any:
    """Return the workers of a client as a context manager; its value is None without a client."""
    if client is None:
        return contextlib.nullcontext()
    model, ties = objective.space.model, objective.space.ties
    refuse_nested_clusters(checked_client(client), model.solver)
    return EvaluationPool(client, model.size, objective.function, {"model": model, "ties": dict(ties)})


def start_points(
    space: SearchSpace, starts: int | Sequence[Mapping[str, Any]], seed: int
) -> list[Float[np.ndarray, " p"]]:
    """Return the starts in coordinates."""
    if isinstance(starts, Mapping):
        starts = [starts]
    if isinstance(starts, list | tuple):
        require(len(starts) > 0, "starts", starts, "at least one start")
        for start in starts:
            require(isinstance(start, Mapping), "starts", start, "mappings of names to values")
        return [space.start(start) for start in starts]
    counted = isinstance(starts, int | np.integer)
    require(counted, "starts", starts, "a number of starts, or a list of mappings of names to values")
    count = as_count(starts, "starts")
    return [space.start({}), *space.sobol(count - 1, seed)]
