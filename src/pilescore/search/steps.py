"""The steps of a minimisation: descents at one tolerance and on one set of nodes after the other."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from ..errors import PilescoreError
from ..inference import START_TOLERANCE, Pile, Score, systems_of
from ..model import Model
from ..parallel import EvaluationPool, checked_client, refuse_nested_clusters
from ..solvers import TIGHTEST, contradiction, with_tolerances
from .curvature import Curvature, find_curvature
from .descent import Descent, run_descents
from .nodes import fine_enough, floored, with_shorter
from .objective import EvaluationLog, Objective
from .options import RunOptions, SearchOptions, describe_saving
from .resolution import Resolution, check_resolution, missed
from .space import Side, Starts, Ties, bounds_reached, search_space, start_points

AT_BOUND = 1e-6
"""The distance to a bound that counts as at the bound, as a fraction of the range."""

GUARD_NATS = 8.0
"""How much worse, in nats, the default score may predict the data than hyperparameters chosen for the data alone."""

TOLERANCES = (START_TOLERANCE, 10 * TIGHTEST, TIGHTEST)
"""The tolerances of exact equations: at the start of a search, and at its end, where the last one is tried first."""

LOOSE = (0.1, 0.01, 0.001, 1e-4)
"""The tolerances at which a minimum is followed from equations that hardly bind to exact ones, relative to their terms.
Exact equations separate hyperparameters that fit the data from those that do not. A descent that begins among the
latter explains the data by noise, and ends there."""

FOLLOWED_NATS = 1.0
"""How much lower, in nats, a minimum that was followed has to be. Where both explain the data, the kernel of the one
that was not followed is nearer to the starts: loose equations favour long kernels, which cost digits."""

LOOSE_NATS = 0.1
"""A descent that another one follows has converged when a step gains less than this, in nats."""

SAME_NATS = 0.1
"""Scores that differ by less, in nats, are equally good."""

LOOSER_NATS = 0.5
"""How much a looser tolerance may move the score, in nats, if slopes are only reliable there."""

MISSED = 10.0
"""A curved exact equation counts as missed above this mean square residual in tolerances or, if there are only
conditions and no data, above this fit. Both are about one or less where it holds."""

MAX_REFINEMENTS = 4
"""How often nodes are refined."""


def _bends(model: Model) -> bool:
    """Whether the solution misses exact equations: given a source, a small prior scale costs the data nothing."""
    exact = any(model.is_exact(i) for i in range(len(model.blocks)))
    return exact and bool(contradiction(systems_of(model, Score(), explain=False).whole))


def _has_curved(model: Model) -> bool:
    """Whether a nonlinear equation is exact."""
    return any(model.is_exact(i) and block.is_curved for i, block in enumerate(model.blocks))


def _is_missed(model: Model, pile: Pile) -> bool:
    """Whether nonlinear exact equations do not hold, or only far from what the prior expects."""
    return _has_curved(model) and max(pile.missed, 0.0 if model.data else pile.fit) > MISSED


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
    lost: float = 0.0
    """How much better, in nats, the data could be predicted by hyperparameters that miss the equations."""

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
    def values(self) -> dict[str, float]:
        """The searched hyperparameters there; a profiled scale is not applied."""
        return self.objective.space.by_name(self.objective.space.decode(self.u))

    @property
    def model(self) -> Model:
        """The model there; a profiled scale is not applied."""
        return self.objective.space.model_at(self.objective.space.decode(self.u))

    @property
    def at_bounds(self) -> dict[str, Side]:
        """The hyperparameters at a bound."""
        return bounds_reached(self.objective.space.positions(self.u), AT_BOUND)

    @property
    def has_saddle(self) -> bool:
        """Whether the curvature is that of a saddle, so that there are no standard errors."""
        return self.curvature is not None and bool(np.isnan(self.curvature.covariance).any())


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
        self.tolerances: tuple[float, ...] = TOLERANCES
        """Those that are still tried at the end, the last one first."""
        self.update: Any = lambda count: None
        self.log: EvaluationLog | None = None
        self.evaluations = 0

    @property
    def progress(self) -> str:
        """How far the work got, for an error about a cluster."""
        saved = describe_saving(None if self.log is None else self.log.file)
        return f"{self.evaluations} evaluations were started; {saved}"

    def search(self, model: Model, starts: Starts, *, contested: bool = False) -> Found:
        """Return the minimum, with exact equations at their final tolerance and on enough nodes.

        Parameters
        ----------
        model
            The model.
        starts
            The starts, as in `minimize`.
        contested
            Whether the score of the data given the physics is used instead if this one predicts the data worse.
        """
        found = self.refined(model, starts, contested=contested)
        if found.curvature is not None or _is_missed(found.model, found.pile):  # no minimum, so no curvature
            return found
        found = self.with_curvature(found)
        if found.resolution is not None and found.has_saddle and len(self.tolerances) > 1 and not found.interrupted:
            # Rounding bends a flat score: the curvature needs more digits of the slopes than the score itself.
            again = self.loosened(found)
            again = found if again is found else self.with_curvature(again)
            return found if again.has_saddle else dataclasses.replace(again, descents=found.descents)
        return found

    def refined(self, model: Model, starts: Starts, *, contested: bool) -> Found:
        """Return the minimum with exact equations on enough nodes, without its curvature."""
        exact = any(model.is_exact(i) for i in range(len(model.blocks)))
        found = self.tightened(model, starts) if exact else self.descend(model, starts)
        if found.interrupted:
            return found
        rival = self.rival(model, starts) if contested else None
        for _ in range(MAX_REFINEMENTS if exact else 0):
            if rival is not None and self.loss(found, rival) > GUARD_NATS:
                # Many nodes of a known source can outweigh the data: finer ones do not help.
                given = self.guarded(found, rival)
                if given is not found:
                    return given
                rival = None
            if _is_missed(found.model, found.pile):
                return dataclasses.replace(found, resolution=missed(found.model))
            resolution = check_resolution(found.model, at_floor=self.at_floor(found))
            found = dataclasses.replace(found, resolution=resolution)
            if resolution.resolved or resolution.finer is None or not self.options.refine:
                break
            try:
                again = self.tightest(resolution.finer, 1)
            except PilescoreError:  # rounding: the resolution says that the nodes are too few
                break
            found = dataclasses.replace(again, descents=found.descents, resolution=resolution)
            if found.interrupted:
                return found
        return found if rival is None else self.guarded(found, rival)

    def begun(self, model: Model, starts: Starts) -> Found:
        """Return the minimum with exact equations at their first tolerance."""
        followed = self.followed(model, starts)
        if followed is not None:
            # A fresh start of a curved equation may end at another of its solutions, and each of its scores takes long.
            solved = _has_curved(model) and followed.best.status == "converged"
            if followed.interrupted or solved:
                return followed
        try:
            found = self.unhindered(model, starts, TOLERANCES[0], loose=True)
        except PilescoreError:
            if followed is None:
                raise
            return followed
        if followed is None or found.interrupted:
            return found
        gained = found.pile.free_energy - followed.pile.free_energy
        return dataclasses.replace(followed if gained > FOLLOWED_NATS else found, descents=found.descents)

    def followed(self, model: Model, starts: Starts) -> Found | None:
        """Return the minimum that is followed from loose equations to exact ones; None if it cannot be followed."""
        exact = any(model.is_exact(i) for i in range(len(model.blocks)))
        if not (exact and model.data):
            return None
        for tolerance in (*LOOSE, TOLERANCES[0]):
            try:
                found = self.descend(self.prepared(model, tolerance), starts)
            except PilescoreError:
                return None
            if found.interrupted:
                break
            starts = [found.values]
        return found

    def tightened(self, model: Model, starts: Starts) -> Found:
        """Return the minimum with exact equations at their final tolerance, or as tight as rounding allows."""
        descents: tuple[Descent, ...] | None = None
        # A model that has tolerances comes from an earlier search, whose end is its start.
        if any(model.is_exact(i) and not block.exact for i, block in enumerate(model.blocks)):
            found = self.begun(model, starts)
            if found.interrupted or _is_missed(found.model, found.pile):  # no tolerance and no digit will mend that
                return found
            model, starts, descents = found.model, 1, found.descents
        found = self.tightest(model, starts)
        return dataclasses.replace(found, descents=descents or found.descents)

    def tightest(self, model: Model, starts: Starts) -> Found:
        """Return the minimum at the tightest tolerance at which rounding does not matter."""
        while len(self.tolerances) > 1:
            with contextlib.suppress(PilescoreError):  # rounding takes too many digits
                found = self.unhindered(model, starts, self.tolerances[-1], loose=False)
                if not found.pile.is_imprecise:
                    return self.loosened(found) if found.best.is_misled and not found.interrupted else found
            self.tolerances = self.tolerances[:-1]  # rounding matters on finer nodes all the more
        return self.unhindered(model, starts, self.tolerances[-1], loose=False)

    def loosened(self, found: Found) -> Found:
        """Return the minimum at the next tolerance, if slopes lead to it there and the score is the same."""
        with contextlib.suppress(PilescoreError):
            again = self.unhindered(found.model, 1, self.tolerances[-2], loose=False)
            moved = abs(again.pile.free_energy - found.pile.free_energy)
            if again.interrupted or (not again.best.is_misled and moved < LOOSER_NATS):
                self.tolerances = self.tolerances[:-1]
                return dataclasses.replace(again, resolution=found.resolution)
        return found

    def unhindered(self, model: Model, starts: Starts, tolerance: float, *, loose: bool) -> Found:
        """Return the minimum on nodes that do not hinder it, as far as they can be afforded.

        A curved equation whose solution the nodes cannot resolve is missed, and its misfit dominates the score. What
        else a descent would choose on such nodes means nothing, and each score takes many linearisations. So a descent
        ends where a length would be shorter on finer nodes, and goes on there, from the best start alone.
        """
        model = self.prepared(model, tolerance)
        curved = _has_curved(model)
        found, stops = None, curved and self.options.refine
        while True:
            try:
                found = self.descend(model, starts, loose=loose and curved, stops=stops)
            except PilescoreError:
                if found is None or not stops:
                    raise
                model, stops = found.model, False  # not on the finer nodes: to the end on those before
                continue
            if found.interrupted or found.best.status != "hindered":
                return found
            asked = search_space(found.objective.space.model, self.over, self.ties)
            least = dict(zip(asked.names, asked.low.tolist(), strict=True))
            finer = with_shorter(found.model, {name: least[name] for name in found.best.hindered})
            if finer is None and _is_missed(found.model, found.pile):
                return found  # other hyperparameters only adapt to what these nodes miss
            stops = finer is not None
            model, starts = with_tolerances(finer or found.model, tolerance, renew=True), 1

    def prepared(self, model: Model, tolerance: float) -> Model:
        """Return the model with a tolerance for exact equations, and nodes that resolve its own lengths."""
        return with_tolerances(fine_enough(model), tolerance, renew=True)

    def at_floor(self, found: Found) -> list[str]:
        """Return the lengths that the distance between nodes keeps from being shorter."""
        asked = search_space(found.objective.space.model, self.over, self.ties)
        limits = zip(asked.names, asked.low, found.objective.space.low, strict=True)
        return [name for name, low, now in limits if now > low and found.at_bounds.get(name) == "lower"]

    def rival(self, model: Model, starts: Starts) -> Found | None:
        """Return the minimum of the score of the data given the physics on the first nodes; None if there is none.

        It starts afresh. Where another score has given the data up, this one has a minimum too, far from the best.
        """
        with self.given_physics():
            try:
                return self.begun(model, starts)
            except PilescoreError:  # the data given the physics cannot be scored: nothing to compare with
                return None

    def loss(self, found: Found, rival: Found) -> float:
        """Return how much worse, in nats, the data are predicted than by the rival's hyperparameters.

        Each is scored at a tolerance that its own prior allows: under that of the other one, its covariance may have
        no digits left.
        """
        models = (found.model, self.rival_model(found, rival))
        with self.given_physics():
            try:
                mine, its = (
                    systems_of(self.prepared(each, TOLERANCES[0]), self.score, found.best.warm_start, explain=False)
                    .pile(self.score)
                    .free_energy
                    for each in models
                )
            except PilescoreError:  # not on these nodes
                return -math.inf
        return mine - its

    def rival_model(self, found: Found, rival: Found) -> Model:
        """Return the model with the rival's hyperparameters."""
        space = found.objective.space
        return space.model_at(np.array([rival.values[name] for name in space.names]))

    def guarded(self, found: Found, rival: Found) -> Found:
        """Return the minimum by the default score or, if it misses the data, by that of the data given the physics."""
        if rival.interrupted:
            return dataclasses.replace(found, interrupted=True)
        described = self.score.described(found.model)
        with self.given_physics():
            try:
                model = self.prepared(self.rival_model(found, rival), TOLERANCES[0])
                nearby = self.descend(model, [found.values, rival.values])
                lost = self.loss(found, nearby)
                if nearby.interrupted:
                    return dataclasses.replace(found, interrupted=True)
                if lost <= GUARD_NATS:
                    return found
                why = f"the data given the physics: {described} would predict the data {lost:.3g} nats worse"
                ends = [dataclasses.replace(nearby, best=descent) for descent in nearby.descents if descent.best]
                for end in sorted(ends, key=lambda end: end.pile.value):
                    # A long kernel may fit the data as well, but not the equation.
                    if self.loss(found, end) > lost - GUARD_NATS and not _bends(end.model):
                        given = self.search(end.model, 1)
                        if not _bends(given.model):
                            return dataclasses.replace(given, descents=rival.descents, why=why)
                return dataclasses.replace(found, lost=lost)
            except PilescoreError:  # the data given the physics cannot be scored there: nothing to compare with
                return found

    @contextlib.contextmanager
    def given_physics(self) -> Iterator[None]:
        """Score the data given the physics in this context."""
        mine = self.score
        self.score = dataclasses.replace(mine, given="physics")
        try:
            yield
        finally:
            self.score = mine

    def descend(self, model: Model, starts: Starts, *, loose: bool = False, stops: bool = False) -> Found:
        """Return the minimum from all starts for one model.

        Parameters
        ----------
        model
            The model.
        starts
            The starts, as in `minimize`.
        loose
            Whether another descent will go on from here, so that few digits do.
        stops
            Whether a descent ends where a length would be shorter on finer nodes.
        """
        space = search_space(model, floored(model, self.over), self.ties)
        asked = search_space(model, self.over, self.ties)
        points = [
            space.encode(np.clip(asked.decode(point), space.low, space.high))
            for point in start_points(asked, starts, self.options.seed)
        ]
        objective = Objective(space, self.score, self.options)
        objective.update, objective.log = self.update, self.log
        if stops:
            raised = zip(space.names, asked.low, space.low, strict=True)
            objective.least_by_nodes = frozenset(name for name, low, now in raised if now > low)
        if loose:
            objective.nats = LOOSE_NATS
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
                best = min(succeeded, key=lambda descent: self.rank(model, descent))
                if not (interrupted or loose):
                    try:
                        best.polish()
                    except KeyboardInterrupt:
                        interrupted = True
                return Found(objective, tuple(descents), best, interrupted, None)
            finally:
                self.evaluations += objective.evaluations

    def rank(self, model: Model, descent: Descent) -> tuple[int, float]:
        """Return a key that sorts descents: by their scores, but those that miss curved exact equations come last.

        Among them, those that finer nodes may mend come first, whatever the others gain by giving the equations up. A
        descent that rounding has stopped has to be lower by `SAME_NATS`: where the evidence is flat, it is drawn to
        where the score has the fewest digits.
        """
        assert descent.best is not None
        pile = descent.best[1]
        handicap = 2.0 * SAME_NATS / pile.size if descent.status == "stalled" else 0.0
        return _is_missed(model, pile) * (1 if descent.status == "hindered" else 2), pile.value + handicap

    def with_curvature(self, found: Found) -> Found:
        """Return a minimum with the curvature there, unless the search was interrupted or does without."""
        if found.interrupted or not self.options.curvature:
            return found
        objective, before = found.objective, found.objective.evaluations
        free = [name for name in objective.space.names if name not in found.at_bounds]
        with _workers(objective, self.run.client) as objective.workers:
            try:
                curvature = find_curvature(objective, found.u, free, found.pile.size, found.best.warm_start)
            except KeyboardInterrupt:
                return dataclasses.replace(found, interrupted=True)
            finally:
                self.evaluations += objective.evaluations - before
        if curvature is not None:
            found.best.settle(curvature)
        return dataclasses.replace(found, curvature=curvature)


def _workers(objective: Objective, client: Any) -> Any:
    """Return the workers of a client as a context manager; its value is None without a client."""
    if client is None:
        return contextlib.nullcontext()
    model, ties = objective.space.model, objective.space.ties
    refuse_nested_clusters(checked_client(client), model.solver)
    return EvaluationPool(client, model.size, objective.function, {"model": model, "ties": dict(ties)})
