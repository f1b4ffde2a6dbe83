"""Descents of PILE from several starts, and the curvature where one ends."""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize as scipy_minimize

from .errors import PilescoreError
from .evaluation import Trail, evaluated, score_and_gradient
from .farm import Farm, LostError
from .journals import Journal, Scored
from .linalg import ONE_BLAS_THREAD, threads
from .running import cores
from .score import Pile
from .space import Space

FIRST_STEP = 0.5
"""The length of the first step in the coordinate that moves most: half a nat of a logarithm, or half a range."""

FIRST_DIFFERENCE = 1e-3
"""The first step of differences of the gradient."""

SADDLE = 1.0
"""A curvature that is more negative is a saddle. Down to it a factor of e, or a whole range, changes the evidence by
half a nat at most: a direction about which it says next to nothing."""

SIDE_BY_SIDE = range(500, 4000)
"""Observations with which starts run side by side, one BLAS thread each. With fewer, Python's own work cannot be
shared among cores; with more, LAPACK fills them."""

Ending = Literal["converged", "stalled", "out of evaluations", "interrupted", "failed"]


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """What became of one start.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 12)
    >>> model = ps.Model(ps.RBF(0.5), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.01)
    >>> best = ps.minimize(model, over={"kernel.bandwidth": (0.01, 10.0)}, starts=3)
    >>> for run in best.runs:
    ...     start, end = (where["kernel.bandwidth"] for where in (run.start, run.end))
    ...     print(f"{start:.2g} → {end:.2g}: {run.pile:.3f}, {run.ending}")
    0.5 → 0.31: -0.678, converged
    0.17 → 0.31: -0.678, converged
    1.8 → 0.31: -0.678, converged
    >>> bool(np.all(np.diff(best.runs[0].path["pile"]) < 0))  # every accepted step goes down
    True
    """

    start: Mapping[str, float]
    """Where it began, by name."""
    end: Mapping[str, float]
    """The best point of this run; the start if nothing could be scored."""
    pile: float
    """PILE there; NaN if nothing could be scored."""
    path: Mapping[str, Float[np.ndarray, " k"]]
    """The accepted points, start first: one array for each hyperparameter, and `pile`."""
    evaluations: int
    """Scores with gradients that were computed."""
    rejected: int
    """Trial points at which the score could not be computed; the step was shortened."""
    ending: Ending
    """`converged`; `stalled`: no step goes down; `out of evaluations`; `interrupted`; or `failed`."""
    reason: str
    """The ending in a sentence."""

    def __repr__(self) -> str:
        return f"Run(pile={self.pile:.6g}, evaluations={self.evaluations}, ending={self.ending!r})"


@dataclasses.dataclass(frozen=True, eq=False)
class Curvature:
    """The Hessian of the free energy `F = N·PILE/2` at the optimum, in the coordinates of the search.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 20)
    >>> noisy = np.sin(6 * x) + 0.1 * np.random.default_rng(0).standard_normal(20)
    >>> model = ps.Model(ps.RBF(0.3), data=ps.observe(ps.identity, noisy, at=x), gamma=0.02)
    >>> best = ps.minimize(model, over={"kernel.bandwidth": (0.05, 5.0), "gamma": (1e-4, 1.0)})
    >>> curvature = best.curvature
    >>> curvature.names, curvature.hessian.shape, len(curvature.flat)
    (('kernel.bandwidth', 'gamma'), (2, 2), 0)
    >>> relative = curvature.standard_errors["gamma"]  # of log γ, and so relative
    >>> abs(best.standard_errors["gamma"] - relative * best.values["gamma"]) < 1e-12
    True
    """

    names: tuple[str, ...]
    """The hyperparameters that are not at a bound, one for each row."""
    hessian: Float[np.ndarray, "q q"]
    """`∂²F` in `log v` of positive hyperparameters and, for others, in `v` over the range of its bounds."""
    standard_errors: Mapping[str, float]
    """Square roots of the diagonal of the inverse Hessian, in the same coordinates; NaN at a saddle. Flat directions
    count as wide as the box. Where `η` is profiled, its uncertainty is part of that of temperatures."""
    flat: tuple[Mapping[str, float], ...]
    """Unit directions along which the evidence says next to nothing: one deviation leaves the box of the bounds, or the
    evidence rises a little on both sides."""


class _StopError(Exception):
    """Ends a run from within its objective."""


@dataclasses.dataclass
class _Led(Trail):
    """A trail from the solution at the start of a descent."""

    start: Float[np.ndarray, " p"] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Score:
    """The score that a search minimises, as a function of the coordinates: what workers of a cluster are sent."""

    where: Space
    profiled: bool
    given_physics: bool

    def __call__(self, u: Float[np.ndarray, " p"], trail: Trail | None) -> Scored:
        """Return PILE and its gradient in the coordinates."""
        values = self.where.decode(u)
        model, options = self.where.at(values), (self.profiled, self.given_physics)
        score, by_name = score_and_gradient(model, self.where.wanted, *options, trail)
        gradient = self.where.gradient(values, by_name)
        if not (math.isfinite(score.value) and np.isfinite(gradient).all()):
            raise PilescoreError("the score or its gradient is not finite")
        return score, gradient

    def sought(self, start: Float[np.ndarray, " p"]) -> tuple[Any, Any]:
        """Return the solutions of a nonlinear model at a start, by all observations and by the physics alone."""
        trail = Trail(self.where.at(self.where.decode(start)))
        return trail.values(False), trail.values(True) if self.given_physics else None

    def after(self, u: Float[np.ndarray, " p"], whole: Any, physics: Any) -> Scored:
        """Return PILE and its gradient by solutions that were sought before."""
        return self(u, Trail(None, whole, physics))


class Objective:
    """What all runs of one search share."""

    def __init__(self, where: Space, profiled: bool, given_physics: bool, tolerance: float, budget: int) -> None:
        self.where = where
        self.profiled = profiled
        self.given_physics = given_physics
        self.tolerance = tolerance
        self.budget = budget
        self.halted = threading.Event()
        self.lock = threading.Lock()
        self.evaluations = 0
        self.update: Any = lambda count: None
        self.journal: Journal | None = None
        self.farm: Farm | None = None
        """Workers of a cluster that compute the score, of which the content is `self.score`."""
        self.expected: dict[bytes, Any] = {}

    @property
    def score(self) -> Score:
        """The score, without what was compiled for it."""
        return Score(dataclasses.replace(self.where), self.profiled, self.given_physics)

    def evaluate(self, u: Float[np.ndarray, " p"], trail: Trail | None = None) -> Scored:
        """Return PILE and its gradient in the coordinates; raise a `PilescoreError` where there is none."""
        if self.halted.is_set():
            raise _StopError
        with self.lock:
            self.evaluations += 1
            self.update(1)
        compute = functools.partial(self._compute, trail)
        return compute(u) if self.journal is None else self.journal.look_up(u, compute)

    def expect(self, points: Iterable[Float[np.ndarray, " p"]], trail: Trail | None) -> None:
        """Have workers begin with points that are going to be evaluated; without workers it does nothing."""
        if self.farm is None:
            return
        known = {} if self.journal is None else self.journal.entries
        for u in points:
            if u.tobytes() not in known and u.tobytes() not in self.expected:
                self.expected[u.tobytes()] = self._begun(self.farm, trail, u)

    def forget(self) -> None:
        """Cancel what workers have begun."""
        self.expected.clear()
        if self.farm is not None:
            self.farm.cancel()

    def _compute(self, trail: Trail | None, u: Float[np.ndarray, " p"]) -> Scored:
        if self.farm is None:
            return Score(self.where, self.profiled, self.given_physics)(u, trail)
        try:
            begun = self.expected.pop(u.tobytes(), None)
            found: Scored = self.farm.result(self._begun(self.farm, trail, u) if begun is None else begun)
        except LostError:
            if self.halted.is_set():  # it was cancelled
                raise _StopError from None
            raise
        return found

    def _begun(self, farm: Farm, trail: Trail | None, u: Float[np.ndarray, " p"]) -> Any:
        """Begin an evaluation, once it is known where a nonlinear model is to be solved from."""
        if isinstance(trail, _Led) and not {False, self.given_physics} <= trail.done:
            trail.whole, trail.physics = farm.result(farm.submit(Score.sought, trail.start))
            trail.done |= {False, self.given_physics}
        trail = Trail() if trail is None else trail
        return farm.submit(Score.after, u, trail.whole, trail.physics)


class Descent:
    """One descent. `φ = scale · (PILE − PILE at the start)` is what L-BFGS-B sees: its first step has a set length."""

    def __init__(self, search: Objective, start: Float[np.ndarray, " p"]) -> None:
        self.search = search
        self.start = start
        self.trail = Trail()
        self.best: tuple[Float[np.ndarray, " p"], Pile] | None = None
        self.path: list[tuple[Float[np.ndarray, " p"], float]] = []
        self.evaluations = 0
        self.rejected = 0
        self.ending: Ending = "interrupted"
        self.reason = "interrupted"
        self.failure: PilescoreError | None = None
        self.first = self.scale = 0.0
        self.trial = self.last = (start, 0.0, start)
        """The last point tried, and the last accepted: coordinates, `φ` and its gradient."""

    def descend(self) -> None:
        """Run until it ends, and say why."""
        search = self.search
        try:
            if search.where.model.is_nonlinear:
                self.trail = _Led(search.where.at(search.where.decode(self.start)), start=self.start)
            score, gradient = self._evaluate(self.start)
        except _StopError:
            return
        except PilescoreError as failure:
            values = search.where.decode(self.start)
            given = ", ".join(f"{n} = {v:g}" for n, v in search.where.named(values).items())
            self.failure = failure
            try:
                evaluated(search.where.at(values), False, explain=True)  # trial points are not explained, starts are
            except PilescoreError as explained:
                self.failure = explained
            self.ending, self.reason = "failed", f"At the start {given}: {self.failure}"
            return
        self.path.append((self.start, score.value))
        bounds = search.where.bounds
        low, high = np.array(bounds).T
        held = np.where(gradient > 0, self.start <= low, self.start >= high)
        step = np.abs(np.where(held, 0.0, gradient)).max()
        self.first, self.scale = score.value, FIRST_STEP / max(step, FIRST_STEP)
        self.last = (self.start, 0.0, self.scale * gradient)
        known = {self.start.tobytes(): self.last[1:]}

        def objective(u: Float[np.ndarray, " p"]) -> tuple[float, Float[np.ndarray, " p"]]:
            return known.pop(u.tobytes()) if u.tobytes() in known else self._objective(u)

        flat = 0.1 * math.sqrt(search.tolerance)
        options: Any = {
            "ftol": search.tolerance * self.scale,
            "gtol": flat * self.scale,
            "maxfun": 10 * search.budget,
            "maxiter": 10 * search.budget,
        }
        try:
            end = scipy_minimize(
                objective,
                self.start,
                jac=True,
                method="L-BFGS-B",
                bounds=bounds,
                callback=self._accept,
                options=options,
            )
        except _StopError:
            if not search.halted.is_set():
                self.ending, self.reason = "out of evaluations", f"{search.budget} evaluations are used up"
            return
        if not end.success:
            rounding = self.best[1].rounding if self.best else math.nan
            self.ending = "stalled"
            self.reason = (
                f"no step lowers PILE further; rounding leaves it uncertain by about {rounding:.1e}, and "
                f"{self.rejected} trial points could not be scored"
            )
        elif "GRADIENT" in end.message:
            self.ending, self.reason = "converged", f"no slope exceeds {flat:.1e}"
        else:
            self.ending, self.reason = "converged", f"the last step lowered PILE by less than {search.tolerance:.1e}"

    def _evaluate(self, u: Float[np.ndarray, " p"]) -> Scored:
        if self.evaluations >= self.search.budget:
            raise _StopError
        self.evaluations += 1
        score, gradient = self.search.evaluate(u, self.trail)
        if self.best is None or score.value < self.best[1].value:
            self.best = (u.copy(), score)
        return score, gradient

    def _objective(self, u: Float[np.ndarray, " p"]) -> tuple[float, Float[np.ndarray, " p"]]:
        try:
            score, gradient = self._evaluate(u)
        except PilescoreError:
            self.rejected += 1
            return self._wall(u)
        self.trial = (u.copy(), self.scale * (score.value - self.first), self.scale * gradient)
        return self.trial[1:]

    def _wall(self, u: Float[np.ndarray, " p"]) -> tuple[float, Float[np.ndarray, " p"]]:
        """Return a value and gradient that send the line search back to a quarter of the step.

        Along the step they are those of the parabola that leaves the last accepted point with its slope `a` and is
        lowest at a quarter of the way; at the trial point it is `a` above the last value, so never accepted.
        """
        origin, value, gradient = self.last
        step = u - origin
        slope = min(float(gradient @ step), -1e-300)
        return value - slope, gradient - 4.0 * slope * step / float(step @ step)

    def _accept(self, intermediate_result: Any) -> None:
        u = np.array(intermediate_result.x)
        if np.array_equal(u, self.trial[0]):
            self.last = self.trial
        self.path.append((u, self.first + float(intermediate_result.fun) / self.scale))

    def frozen(self) -> Run:
        """Return what a user sees."""
        where = self.search.where
        columns = np.array([where.decode(u) for u, _ in self.path]).reshape(-1, len(where.names)).T
        path = dict(zip(where.names, columns, strict=True)) | {"pile": np.array([value for _, value in self.path])}
        end, pile = (self.start, math.nan) if self.best is None else (self.best[0], self.best[1].value)
        first, last = (where.named(where.decode(u)) for u in (self.start, end))
        return Run(first, last, pile, path, self.evaluations, self.rejected, self.ending, self.reason)


def side_by_side(search: Objective, points: Iterable[Float[np.ndarray, " p"]]) -> tuple[list[Descent], bool]:
    """Descend from every start, in threads; the caller's thread waits, so that Ctrl-C reaches it.

    With workers of a cluster, as many starts at once as they can score; the descents themselves stay here.
    """
    runs = [Descent(search, point) for point in points]
    size = search.where.model.size
    workers = min(cores(), len(runs)) if size in SIDE_BY_SIDE else 1
    if search.farm is not None:
        workers = min(search.farm.threads, len(runs))
    limits = ONE_BLAS_THREAD if workers > 1 else threads(size)  # set here: threadpoolctl may not heed other threads
    interrupted = False
    with limits, ThreadPoolExecutor(workers) as pool:
        try:
            for future in [pool.submit(run.descend) for run in runs]:
                future.result()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            search.halted.set()  # the pool waits for what is under way
            search.forget()
    search.halted.clear()
    return runs, interrupted


def find_curvature(
    search: Objective, u: Float[np.ndarray, " p"], free: Sequence[str], size: int, trail: Trail | None = None
) -> Curvature | None:
    """Return the curvature in the hyperparameters that are not at a bound, by differences of the gradient."""
    where = search.where
    rows = [where.names.index(name) for name in free]
    if not rows:
        return None
    hessian, scale = np.empty((len(rows), len(rows))), np.empty(len(rows))
    try:
        search.expect((each for row in rows for each in _sides(u, row, FIRST_DIFFERENCE)), trail)
        for i, row in enumerate(rows):
            step = FIRST_DIFFERENCE
            for _ in range(4):  # until the step is short beside the deviation that it measures
                sides = _sides(u, row, step)
                search.expect(sides, trail)
                after, before = (search.evaluate(each, trail) for each in sides)
                hessian[i] = 0.5 * size * (after[1] - before[1])[rows] / (2 * step)
                scale[i] = math.log(after[0].eta / before[0].eta) / (2 * step)  # read where η is profiled
                deviation = 1.0 / math.sqrt(abs(hessian[i, i])) if hessian[i, i] else math.inf
                if step <= 0.01 * deviation:
                    break
                step = 0.005 * deviation
    except PilescoreError:
        return None
    finally:
        search.forget()
    hessian = 0.5 * (hessian + hessian.T)
    eigenvalues, vectors = np.linalg.eigh(hessian)
    low, high = np.array(where.bounds).T
    least = (np.abs(vectors) / (high - low)[rows, None]).max(axis=0) ** 2  # a deviation from one bound to the other
    covariance = vectors / np.maximum(eigenvalues, least) @ vectors.T
    variances = covariance.diagonal()
    if search.profiled:
        moved = covariance @ scale
        variances = variances + where.temperatures[rows] * (2.0 * moved + scale @ moved + 2.0 / size)
    if np.any(eigenvalues <= -np.maximum(least, SADDLE)):
        variances = np.full(len(rows), math.nan)
    flat = [dict(zip(free, vector.tolist(), strict=True)) for vector in vectors.T[eigenvalues < least]]
    return Curvature(tuple(free), hessian, dict(zip(free, np.sqrt(variances).tolist(), strict=True)), tuple(flat))


def _sides(u: Float[np.ndarray, " p"], row: int, step: float) -> list[Float[np.ndarray, " p"]]:
    """Return the points at a distance from another, after it and before it, along one coordinate."""
    unit = np.zeros(len(u))
    unit[row] = step
    return [u + unit, u - unit]
