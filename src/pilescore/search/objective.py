"""The function that a search minimises: PILE and its gradient in coordinates, with a budget, a log and workers."""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float

from ..errors import (
    InputError,
    MemoryLimitError,
    NotPositiveDefiniteError,
    NotSolvedError,
    PilescoreError,
    SaveError,
    SmoothnessError,
)
from ..inference import Pile, Score, WarmStart, systems_of
from ..parallel import EvaluationPool, WorkersLostError
from ..storage import DatasetFile, ResumableResults
from .options import SearchOptions
from .space import SearchSpace

PILE_FIELDS = [field.name for field in dataclasses.fields(Pile) if field.name not in ("shares", "solver", "solution")]
"""The numbers of a `Pile`, one column each in a log."""

MOST_ROUNDING_NATS = 3.0
"""The largest rounding error of a score, in nats, at which a search accepts a model with exact equations."""

MOST_ROUNDING = 0.05
"""The same as a fraction of the fit: far from the data, where the fit is large, rounding is too."""

LOGGED_ERRORS = {
    kind.__name__: kind for kind in (InputError, SmoothnessError, NotPositiveDefiniteError, NotSolvedError)
}

Evaluated = tuple[Pile, Float[np.ndarray, " p"]]
"""PILE and its gradient in the coordinates of a search."""


class SearchStoppedError(Exception):
    """Ends a descent from within its objective."""


@dataclasses.dataclass
class DescentStart(WarmStart):
    """The warm start of a descent: the solution of a nonlinear model at its first point, which workers may compute."""

    point: Float[np.ndarray, " p"] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class CoordinateScore:
    """PILE and its gradient as a function of the coordinates of a search. It can be pickled and sent to workers."""

    space: SearchSpace
    score: Score

    def __call__(self, u: Float[np.ndarray, " p"], warm_start: WarmStart | None) -> Evaluated:
        """Return PILE and its gradient."""
        values = self.space.decode(u)
        systems = systems_of(self.space.model_at(values), self.score, warm_start, explain=False)
        pile, by_name = systems.pile_and_gradient(self.space.gradient_names, self.score)
        check_rounding(pile)
        gradient = self.space.gradient(values, by_name)
        if not (math.isfinite(pile.value) and np.isfinite(gradient).all()):
            raise PilescoreError("the score or its gradient is not finite")
        return pile, gradient

    def solve_start(self, u: Float[np.ndarray, " p"]) -> Float[np.ndarray, " F"] | None:
        """Return the solution of a nonlinear model at a start; None if it was not found."""
        return WarmStart(self.space.model_at(self.space.decode(u))).values()

    def from_solution(self, u: Float[np.ndarray, " p"], solution: Float[np.ndarray, " F"] | None) -> Evaluated:
        """Return PILE and its gradient with a nonlinear model solved from this solution."""
        return self(u, WarmStart(None, solution))


def check_rounding(pile: Pile) -> None:
    """Raise a `PilescoreError` if rounding leaves too few digits of the score of a model with exact equations.

    A minimum must not be an accident of rounding, which exact equations under a long kernel invite.
    """
    if pile.exact and has_lost_digits(pile.size * pile.rounding, pile.size * pile.fit):
        raise PilescoreError(f"rounding leaves the score uncertain by about {pile.rounding:.1e}")


def has_lost_digits(
    rounding: Float[np.ndarray, "*n"] | float, quadratic: Float[np.ndarray, "*n"] | float
) -> Bool[np.ndarray, "*n"]:
    """Return whether rounding errors of `N·PILE` are too large for a search, given the quadratic form in it."""
    return np.asarray(rounding > np.maximum(2.0 * MOST_ROUNDING_NATS, MOST_ROUNDING * np.asarray(quadratic)))


class Objective:
    """The function that all descents of one search share, with its budget, log and workers."""

    def __init__(self, space: SearchSpace, score: Score, options: SearchOptions) -> None:
        self.space = space
        self.score = score
        self.tolerance = float(options.tolerance)
        self.budget = options.max_evaluations
        self.nats = 0.0
        """The gain of a step, in nats, below which a descent has converged, if that is more than the tolerance."""
        self.least_by_nodes: frozenset[str] = frozenset()
        """Lengths whose lower bound is set by nodes that can be refined: a descent ends where they would be shorter."""
        self.halted = threading.Event()
        self.lock = threading.Lock()
        self.evaluations = 0
        self.update: Any = lambda count: None
        self.log: EvaluationLog | None = None
        self.workers: EvaluationPool | None = None
        """Workers of a cluster that compute scores; they were sent `self.function`."""
        self._pending: dict[bytes, Any] = {}

    @property
    def function(self) -> CoordinateScore:
        """The score as a function that can be pickled: a new space has no compiled functions in its cache."""
        return CoordinateScore(dataclasses.replace(self.space), self.score)

    def evaluate(self, u: Float[np.ndarray, " p"], warm_start: WarmStart | None = None) -> Evaluated:
        """Return PILE and its gradient in coordinates; raise a `PilescoreError` if the point cannot be scored."""
        if self.halted.is_set():
            raise SearchStoppedError
        with self.lock:
            self.evaluations += 1
            self.update(1)
        compute = functools.partial(self._compute, warm_start)
        return compute(u) if self.log is None else self.log.get_or_compute(u, compute)

    def prefetch(self, points: Iterable[Float[np.ndarray, " p"]], warm_start: WarmStart | None) -> None:
        """Let workers begin with points that will be evaluated; without workers it does nothing."""
        if self.workers is None:
            return
        logged = {} if self.log is None else self.log.entries
        for u in points:
            key = u.tobytes() if self.log is None else self.log.key(u)
            if key not in logged and u.tobytes() not in self._pending:
                self._pending[u.tobytes()] = self._submit(self.workers, warm_start, u)

    def cancel(self) -> None:
        """Cancel the evaluations that workers have begun."""
        self._pending.clear()
        if self.workers is not None:
            self.workers.cancel()

    def _compute(self, warm_start: WarmStart | None, u: Float[np.ndarray, " p"]) -> Evaluated:
        if self.workers is None:
            return CoordinateScore(self.space, self.score)(u, warm_start)
        try:
            task = self._pending.pop(u.tobytes(), None)
            evaluated: Evaluated = self.workers.result(
                self._submit(self.workers, warm_start, u) if task is None else task
            )
        except WorkersLostError:
            if self.halted.is_set():  # the task was cancelled
                raise SearchStoppedError from None
            raise
        return evaluated

    def _submit(self, workers: EvaluationPool, warm_start: WarmStart | None, u: Float[np.ndarray, " p"]) -> Any:
        """Send one evaluation to the workers, after the solution that a nonlinear model is solved from."""
        if isinstance(warm_start, DescentStart) and not warm_start.solved:
            task = workers.submit(CoordinateScore.solve_start, warm_start.point)
            warm_start.solution, warm_start.solved = workers.result(task), True
        return workers.submit(CoordinateScore.from_solution, u, None if warm_start is None else warm_start.solution)


@dataclasses.dataclass(frozen=True, eq=False)
class LogEntry:
    """One evaluation: the score with its gradient, or the error."""

    u: Float[np.ndarray, " p"]
    evaluated: Evaluated | None
    error: str = ""
    reason: str = ""
    stage: int = 0
    """The number of the descents that it belongs to: scores of later ones have other tolerances or nodes."""

    def outcome(self) -> Evaluated:
        """Return the score, or raise the error again."""
        if self.evaluated is not None:
            return self.evaluated
        raise LOGGED_ERRORS.get(self.error, PilescoreError)(self.reason)


class EvaluationLog(ResumableResults):
    """The evaluations of one search on disk, by the exact bits of their coordinates.

    L-BFGS-B and the Newton steps after it are deterministic: a search that is run again asks for the same points bit by
    bit and finds them here. As a context manager the log is on disk when the context ends.
    """

    work = "minimisation"
    depends = "model, bounds, starts, ties or option"

    def __init__(self, names: Sequence[str], blocks: Sequence[str], fingerprint: str, file: DatasetFile) -> None:
        super().__init__(fingerprint)
        self.names = tuple(names)
        self.blocks = tuple(blocks)
        self.file = file
        self.entries: dict[tuple[int, bytes], LogEntry] = {}
        self.closed = False
        self.stage = 0
        """The number of the present descents: the same coordinates are scored again with other tolerances or nodes."""
        self.resume(file)

    def __enter__(self) -> EvaluationLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.finish(self.file)
        except SaveError:
            if kind is None:  # do not hide the error that ended the search
                raise

    @property
    def complete(self) -> bool:
        """Whether the search was not interrupted."""
        return self.closed

    def close(self) -> None:
        """Note that the search was not interrupted."""
        self.changed |= not self.closed
        self.closed = True

    def key(self, u: Float[np.ndarray, " p"]) -> tuple[int, bytes]:
        """Return the key of an evaluation of the present descents."""
        return self.stage, u.tobytes()

    def get_or_compute(
        self, u: Float[np.ndarray, " p"], compute: Callable[[Float[np.ndarray, " p"]], Evaluated]
    ) -> Evaluated:
        """Return the logged evaluation at `u`, or compute and log it; several threads may call this at once."""
        key = self.key(u)
        if key not in self.entries:
            try:
                entry = LogEntry(u.copy(), compute(u), stage=self.stage)
            except MemoryLimitError:  # depends on the machine, not on the point
                raise
            except PilescoreError as failure:
                entry = LogEntry(u.copy(), None, type(failure).__name__, str(failure), self.stage)
            self.entries.setdefault(key, entry)
            self.changed = True
            self.checkpoint(self.file)
        return self.entries[key].outcome()

    def dataset(self) -> xr.Dataset:
        """Return the log as a dataset with one row for each evaluation."""
        entries = list(self.entries.values())
        coordinates = {"hyperparameter": _texts(self.names), "block": _texts(self.blocks)}
        attributes = {"fingerprint": self.mark, "complete": "yes" if self.closed else "no"}
        if not entries:
            return xr.Dataset({}, coordinates, attributes)
        count = len(entries)
        u, gradient = np.full((2, count, len(self.names)), np.nan)
        shares, terms = np.full((count, len(self.blocks)), np.nan), np.full((len(PILE_FIELDS), count), np.nan)
        for i, entry in enumerate(entries):
            u[i] = entry.u
            if entry.evaluated is not None:
                pile, gradient[i] = entry.evaluated
                terms[:, i] = [getattr(pile, name) for name in PILE_FIELDS]
                shares[i] = [pile.shares[block] for block in self.blocks]
        variables: dict[str, Any] = {name: ("evaluation", row) for name, row in zip(PILE_FIELDS, terms, strict=True)}
        variables["u"] = (("evaluation", "hyperparameter"), u)
        variables["stage"] = ("evaluation", np.array([entry.stage for entry in entries]))
        variables["gradient"] = (("evaluation", "hyperparameter"), gradient)
        variables["shares"] = (("evaluation", "block"), shares)
        solvers = ("" if entry.evaluated is None else entry.evaluated[0].solver for entry in entries)
        variables["solver"] = ("evaluation", _texts(solvers))
        variables["error"] = ("evaluation", _texts(entry.error for entry in entries))
        variables["reason"] = ("evaluation", _texts(entry.reason for entry in entries))
        return xr.Dataset(variables, coordinates, attributes)

    def take(self, old: xr.Dataset) -> None:
        """Read the evaluations of a dataset."""
        self.closed = old.attrs["complete"] == "yes"
        if "u" not in old:
            return
        points, gradients, shares = (old[name].values.astype(float) for name in ("u", "gradient", "shares"))
        if "prior" not in old:  # written before models had priors
            old = old.assign(prior=xr.zeros_like(old["value"]))
        terms = np.array([old[name].values.astype(float) for name in PILE_FIELDS]).T
        errors, reasons, solvers, stages = (
            old[name].values.tolist() for name in ("error", "reason", "solver", "stage")
        )
        for i, u in enumerate(points):
            evaluated = None
            if not errors[i]:
                fields: dict[str, Any] = dict(zip(PILE_FIELDS, terms[i].tolist(), strict=True))
                kinds = {"size": int, "given": int, "exact": bool}
                fields |= {name: kind(fields[name]) for name, kind in kinds.items()}
                fields["shares"] = dict(zip(self.blocks, shares[i].tolist(), strict=True))
                evaluated = Pile(**fields, solver=solvers[i]), gradients[i]
            self.entries[stages[i], u.tobytes()] = LogEntry(u, evaluated, errors[i], reasons[i], stages[i])


def _texts(texts: Iterable[str]) -> np.ndarray:
    return np.array(list(texts), dtype=object)
