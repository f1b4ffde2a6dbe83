"""Descents of PILE from several starts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize as scipy_minimize

from ..errors import PilescoreError, listed
from ..inference import Pile, Score, WarmStart, systems_of
from ..parallel import ONE_BLAS_THREAD, cores, threads
from .curvature import Curvature, find_curvature
from .objective import DescentStart, Evaluated, Objective, SearchStoppedError

FIRST_STEP = 0.5
"""The length of the first step in the coordinate that moves most: half a unit of a logarithm, or half a range."""

NEGLIGIBLE_NATS = 0.01
"""A descent that rounding stops has converged if its slopes promise less than this, in nats."""

MOST_NEWTON_STEPS = 20
"""How many Newton steps follow a descent that has stopped in a narrow valley."""

MOST_HALVINGS = 6
"""How often a Newton step is halved where the evidence does not fall as promised."""

SUFFICIENT = 0.1
"""A step is taken if it gains at least this fraction of what the slope along it promises."""

PARALLEL_SIZES = range(500, 4000)
"""Numbers of observations for which starts run in parallel, with one BLAS thread each. Below, Python takes most of the
time, and threads cannot share it; above, LAPACK uses all cores by itself."""

AT_NODES = 1e-6
"""The distance, in coordinates, to the least length that nodes resolve at which a length counts as this short."""

MOST_IN_VAIN = 5
"""How many trial points in a row may fail in a descent that another one follows. The step is then a thousandth."""

HINDERED_NATS = 1.0
"""Nodes hinder a descent if a length at the least that they resolve promises more than this, in nats, when it is
shortened by a factor of e."""

Status = Literal["converged", "stalled", "hindered", "out of evaluations", "interrupted", "failed"]


@dataclasses.dataclass(frozen=True, eq=False)
class DescentResult:
    """One descent of a search: where it started, where it ended and why.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 12)
    >>> model = ps.Model(ps.RBF(0.5), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.01)
    >>> best = ps.minimize(model, over={"kernel.bandwidth": (0.01, 10.0)}, starts=3)
    >>> for descent in best.descents:
    ...     start, end = (point["kernel.bandwidth"] for point in (descent.start, descent.end))
    ...     print(f"{start:.2g} → {end:.2g}: {descent.pile:.3f}, {descent.status}")
    0.5 → 0.31: -0.678, converged
    0.17 → 0.31: -0.678, converged
    1.8 → 0.31: -0.678, converged
    >>> bool(np.all(np.diff(best.descents[0].path["pile"]) < 0))  # every accepted step goes down
    True
    """

    start: Mapping[str, float]
    """The hyperparameters at the start, by name."""
    end: Mapping[str, float]
    """The best point of this descent; the start if no point could be scored."""
    pile: float
    """PILE at the end; NaN if no point could be scored."""
    path: Mapping[str, Float[np.ndarray, " k"]]
    """The accepted points from the start on: one array for each hyperparameter, and `pile`."""
    evaluations: int
    """The number of scores with gradient."""
    rejected: int
    """The number of trial points that could not be scored; the step was shortened there."""
    status: Status
    """`converged`; `stalled`: no step goes down; `hindered`: shorter lengths need finer nodes, on which the search went
    on from the best descent; `out of evaluations`; `interrupted`; or `failed`."""
    reason: str
    """The status in a sentence."""

    def __repr__(self) -> str:
        return f"DescentResult(pile={self.pile:.6g}, evaluations={self.evaluations}, status={self.status!r})"


class Descent:
    """One descent by L-BFGS-B.

    The optimiser sees `φ = scale · (PILE − PILE at the start)`: its first step is the gradient of `φ`, and the scale
    gives that step the length `FIRST_STEP`.
    """

    def __init__(self, objective: Objective, start: Float[np.ndarray, " p"]) -> None:
        self.objective = objective
        self.start = start
        self.warm_start = WarmStart()
        self.best: tuple[Float[np.ndarray, " p"], Pile] | None = None
        self.path: list[tuple[Float[np.ndarray, " p"], float]] = []
        self.evaluations = 0
        self.limit = objective.budget
        """The number of evaluations at which it ends; Newton steps have a budget of their own."""
        self.rejected = self.in_vain = 0
        self.status: Status = "interrupted"
        self.reason = "interrupted"
        self.failure: PilescoreError | None = None
        self.hindered: tuple[str, ...] = ()
        """The lengths that would be shorter on finer nodes, if that ended the descent."""
        self.first = self.scale = 0.0
        self.trial = self.last = (start, 0.0, start)
        """The last point tried and the last point accepted: coordinates, `φ` and its gradient."""

    def run(self) -> None:
        """Descend until the end, and set status and reason."""
        objective = self.objective
        space = objective.space
        try:
            if space.model.is_nonlinear:
                self.warm_start = DescentStart(space.model_at(space.decode(self.start)), point=self.start)
            pile, gradient = self._evaluate(self.start)
        except SearchStoppedError:
            return
        except PilescoreError as failure:
            self._fail(failure)
            return
        self.path.append((self.start, pile.value))
        if self._is_hindered(self.start, gradient):
            return
        bounds = space.bounds
        low, high = np.array(bounds).T
        # Coordinates at a bound that the gradient points out of do not move: they must not set the first step.
        blocked = np.where(gradient > 0, self.start <= low, self.start >= high)
        steepest = np.abs(np.where(blocked, 0.0, gradient)).max()
        self.first, self.scale = pile.value, FIRST_STEP / max(steepest, FIRST_STEP)
        self.last = (self.start, 0.0, self.scale * gradient)
        at_start = {self.start.tobytes(): self.last[1:]}

        def function(u: Float[np.ndarray, " p"]) -> tuple[float, Float[np.ndarray, " p"]]:
            # SciPy evaluates the start again: it is known already.
            return at_start.pop(u.tobytes()) if u.tobytes() in at_start else self._function(u)

        # Near the minimum the decrease is quadratic in the slope, so the two tolerances stop at about the same point.
        tolerance = max(objective.tolerance, 2.0 * objective.nats / pile.size)
        slope = 0.1 * math.sqrt(tolerance)
        options: Any = {
            "ftol": tolerance * self.scale,
            "gtol": slope * self.scale,
            "maxfun": 10 * objective.budget,  # the budget is counted in _evaluate
            "maxiter": 10 * objective.budget,
        }
        try:
            end = scipy_minimize(
                function,
                self.start,
                jac=True,
                method="L-BFGS-B",
                bounds=bounds,
                callback=self._accept,
                options=options,
            )
        except SearchStoppedError:
            if self.status == "interrupted" and not objective.halted.is_set():
                self.status, self.reason = "out of evaluations", f"{objective.budget} evaluations are used up"
            return
        if not end.success:
            rounding = self.best[1].rounding if self.best else math.nan
            self.status = "stalled"
            self.reason = f"no step lowers PILE further; rounding leaves it uncertain by about {rounding:.1e}"
            if self.rejected:
                self.reason += f", and {self.rejected} trial points could not be scored"
        elif "GRADIENT" in end.message:
            self.status, self.reason = "converged", f"no slope exceeds {slope:.1e}"
        else:
            self.status, self.reason = "converged", f"the last step lowered PILE by less than {tolerance:.1e}"

    def settle(self, curvature: Curvature) -> None:
        """Count a descent that rounding has stopped as converged if slopes and curvature promise next to nothing."""
        if self.status != "stalled" or self.best is None or not self.scale:
            return
        free = [self.objective.space.names.index(name) for name in curvature.names]
        promised = self._promised(free, curvature.hessian)
        if promised < NEGLIGIBLE_NATS:
            self.status = "converged"
            self.reason = f"rounding allows no further step, and a full step promises {promised:.1e} nats"

    def polish(self) -> None:
        """Go on by Newton steps if L-BFGS-B has stopped where slopes promise more.

        Precise data determine some directions 10⁴ times as sharply as others. L-BFGS-B cannot follow such a narrow
        valley: its steps are as long as the valley is wide. Newton's are as long as the valley. Second derivatives are
        computed by differences, updated with each step, and computed again before the end is believed.
        """
        if not self.is_misled or self.best is None:
            return
        objective, u = self.objective, self.best[0]
        low, high = np.array(objective.space.bounds).T
        self.limit = self.evaluations + objective.budget
        hessian, updated = None, False
        free: list[int] = []
        try:
            pile, gradient = self._evaluate(u)
            for _ in range(MOST_NEWTON_STEPS):
                slopes, before = 0.5 * pile.size * gradient, free
                free = np.flatnonzero(np.where(slopes > 0, u > low, u < high)).tolist()
                if hessian is not None and set(free) <= set(before):
                    kept = [before.index(i) for i in free]
                    hessian = hessian[np.ix_(kept, kept)]
                else:
                    hessian, updated = self._hessian(u, free, pile.size), False
                step, promised = self._newton_step(u, slopes, free, hessian)
                if promised < NEGLIGIBLE_NATS and updated:
                    hessian, updated = self._hessian(u, free, pile.size), False
                    step, promised = self._newton_step(u, slopes, free, hessian)
                if promised < NEGLIGIBLE_NATS:
                    self.status, self.reason = "converged", f"a Newton step promises {promised:.1e} nats"
                    return
                found = self._along(u, step, pile, slopes)
                if found is None and not updated:
                    return
                if found is None:  # the updated second derivatives mislead
                    hessian = None
                    continue
                ahead, pile, gradient = found
                moved, change = (ahead - u)[free], (0.5 * pile.size * gradient - slopes)[free]
                u, hessian, updated = ahead, updated_hessian(hessian, moved, change), True
                self.last = (u, self.scale * (pile.value - self.first), self.scale * gradient)
                self.path.append((u, pile.value))
                if self._is_hindered(u, gradient):
                    return
            self.reason = f"{MOST_NEWTON_STEPS} Newton steps have not reached the end of a narrow valley"
        except SearchStoppedError:
            self.reason = "Newton steps in a narrow valley are out of evaluations"
        except PilescoreError:  # a neighbour cannot be scored, so there are no second derivatives
            return

    def _hessian(self, u: Float[np.ndarray, " p"], free: Sequence[int], size: int) -> Float[np.ndarray, "q q"]:
        """Return the second derivatives of the free energy in some coordinates."""
        objective, before = self.objective, self.objective.evaluations
        names = [objective.space.names[i] for i in free]
        try:
            curvature = find_curvature(objective, u, names, size, self.warm_start) if names else None
        finally:
            self.evaluations += objective.evaluations - before
        if curvature is None and names:
            raise PilescoreError("a neighbour of the last point cannot be scored")
        return np.zeros((0, 0)) if curvature is None else curvature.hessian

    def _newton_step(
        self,
        u: Float[np.ndarray, " p"],
        slopes: Float[np.ndarray, " p"],
        free: Sequence[int],
        hessian: Float[np.ndarray, "q q"],
    ) -> tuple[Float[np.ndarray, " p"], float]:
        """Return the Newton step along free coordinates, and what it promises, in nats.

        Coordinates at a bound do not move if others would push them across it.
        """
        low, high = np.array(self.objective.space.bounds).T
        kept = list(range(len(free)))
        while True:
            moving = [free[i] for i in kept]
            eigenvalues, vectors = np.linalg.eigh(hessian[np.ix_(kept, kept)])
            step = np.zeros(len(slopes))
            # Flat and downward directions: no farther than if a unit, a factor of e, were worth half a nat.
            step[moving] = -vectors @ ((vectors.T @ slopes[moving]) / np.maximum(np.abs(eigenvalues), 1.0))
            blocked = np.where(step > 0, u >= high, (step < 0) & (u <= low))
            if not blocked.any():
                return step, -0.5 * float(step @ slopes)
            kept = [i for i in kept if not blocked[free[i]]]

    def _along(
        self,
        u: Float[np.ndarray, " p"],
        step: Float[np.ndarray, " p"],
        pile: Pile,
        slopes: Float[np.ndarray, " p"],
    ) -> tuple[Float[np.ndarray, " p"], Pile, Float[np.ndarray, " p"]] | None:
        """Return the first point along a step, shortened as needed, that is lower; None if there is none."""
        low, high = np.array(self.objective.space.bounds).T
        # As far as the first bound: beyond it, a step along the bound would leave a narrow valley.
        with np.errstate(divide="ignore", invalid="ignore"):
            reach = np.nanmin(np.where(step > 0, (high - u) / step, np.where(step < 0, (low - u) / step, np.inf)))
        for halvings in range(MOST_HALVINGS + 1):
            ahead = np.clip(u + min(1.0, reach) * 0.5**halvings * step, low, high)
            try:
                found, gradient = self._evaluate(ahead)
            except PilescoreError:
                self.rejected += 1
                continue
            if pile.free_energy - found.free_energy > -SUFFICIENT * float((ahead - u) @ slopes) > 0.0:
                return ahead, found, gradient
        return None

    @property
    def is_misled(self) -> bool:
        """Whether the descent has stopped where slopes promise more.

        The valley is too narrow for L-BFGS-B, or rounding leaves slopes too few digits.
        """
        if self.status != "stalled" or self.best is None or not self.scale:
            return False
        low, high = np.array(self.objective.space.bounds).T
        u, _, slopes = self.last
        free = np.flatnonzero(np.where(slopes > 0, u > low, u < high)).tolist()
        return self._promised(free, np.eye(len(free))) > NEGLIGIBLE_NATS

    def _promised(self, free: Sequence[int], hessian: Float[np.ndarray, "q q"]) -> float:
        """Return what a full step promises, in nats, from the slopes along free coordinates and the curvature."""
        assert self.best is not None
        slopes = 0.5 * self.best[1].size * self.last[2][list(free)] / self.scale
        eigenvalues, vectors = np.linalg.eigh(hessian)
        # Flat directions count as if a unit, a factor of e, changed the evidence by half a nat.
        return 0.5 * float(np.sum((vectors.T @ slopes) ** 2 / np.maximum(eigenvalues, 1.0)))

    def _fail(self, failure: PilescoreError) -> None:
        """Record that the start cannot be scored. The error is explained in full, unlike those of trial points."""
        space = self.objective.space
        values = space.decode(self.start)
        self.failure = failure
        try:
            systems_of(space.model_at(values), Score())
        except PilescoreError as explained:
            self.failure = explained
        shown = ", ".join(f"{name} = {value:g}" for name, value in space.by_name(values).items())
        self.status, self.reason = "failed", f"At the start {shown}: {self.failure}"

    def _evaluate(self, u: Float[np.ndarray, " p"]) -> Evaluated:
        if self.evaluations >= self.limit:
            raise SearchStoppedError
        self.evaluations += 1
        pile, gradient = self.objective.evaluate(u, self.warm_start)
        if self.best is None or pile.value < self.best[1].value:
            self.best = (u.copy(), pile)
        return pile, gradient

    def _function(self, u: Float[np.ndarray, " p"]) -> tuple[float, Float[np.ndarray, " p"]]:
        try:
            pile, gradient = self._evaluate(u)
        except PilescoreError:
            self.rejected += 1
            self.in_vain += 1
            if self.objective.nats and self.in_vain >= MOST_IN_VAIN:
                self.status, self.reason = "stalled", f"{self.in_vain} trial points in a row could not be scored"
                raise SearchStoppedError from None
            return self._wall(u)
        self.trial = (u.copy(), self.scale * (pile.value - self.first), self.scale * gradient)
        return self.trial[1:]

    def _wall(self, u: Float[np.ndarray, " p"]) -> tuple[float, Float[np.ndarray, " p"]]:
        """Return a value and gradient that send the line search back to a quarter of the step.

        Infinity would break the cubic interpolation of the line search. These are the value and gradient of the
        parabola along the step that leaves the last accepted point with its slope `a` and is lowest at a quarter of the
        way. At the trial point it lies `|a|` above the last value, so the point is never accepted.
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
        self.in_vain = 0
        if self.objective.nats and self.best is not None and len(self.path) > 1:
            gained = self.path[-2][1] - self.path[-1][1]
            if gained < self.best[1].rounding:
                self.status, self.reason = "stalled", f"the last step lowered PILE by {gained:.1e}, less than rounding"
                raise SearchStoppedError
        if np.array_equal(u, self.last[0]) and self._is_hindered(u, self.last[2] / self.scale):
            raise SearchStoppedError

    def _is_hindered(self, u: Float[np.ndarray, " p"], gradient: Float[np.ndarray, " p"]) -> bool:
        """Whether a length at the least that the nodes resolve would be shorter; it sets the status if so."""
        objective = self.objective
        if not objective.least_by_nodes or self.best is None:
            return False
        low = np.array(objective.space.bounds)[:, 0]
        promised = np.where(u <= low + AT_NODES, 0.5 * self.best[1].size * gradient, 0.0)
        pairs = zip(objective.space.names, promised, strict=True)
        self.hindered = tuple(n for n, nats in pairs if n in objective.least_by_nodes and nats > HINDERED_NATS)
        if self.hindered:
            self.status, self.reason = "hindered", f"{listed(list(self.hindered))} would be shorter on finer nodes"
        return bool(self.hindered)

    def result(self) -> DescentResult:
        """Return the result that users see."""
        space = self.objective.space
        columns = np.array([space.decode(u) for u, _ in self.path]).reshape(-1, len(space.names)).T
        path = dict(zip(space.names, columns, strict=True)) | {"pile": np.array([value for _, value in self.path])}
        end, pile = (self.start, math.nan) if self.best is None else (self.best[0], self.best[1].value)
        first, last = (space.by_name(space.decode(u)) for u in (self.start, end))
        return DescentResult(first, last, pile, path, self.evaluations, self.rejected, self.status, self.reason)


def run_descents(objective: Objective, starts: Iterable[Float[np.ndarray, " p"]]) -> tuple[list[Descent], bool]:
    """Descend from every start, in threads if that is faster; return the descents and whether Ctrl-C came.

    Descents run in other threads: the main thread waits and receives Ctrl-C. With workers of a cluster, as many starts
    run at once as the workers can score; the descents themselves stay in this process.
    """
    descents = [Descent(objective, start) for start in starts]
    size = objective.space.model.size
    at_once = min(cores(), len(descents)) if size in PARALLEL_SIZES else 1
    if objective.workers is not None:
        at_once = min(objective.workers.threads, len(descents))
    # Set here, because threadpoolctl may not limit the threads of other threads.
    limits = ONE_BLAS_THREAD if at_once > 1 else threads(size)
    interrupted = False
    with limits, ThreadPoolExecutor(at_once) as pool:
        try:
            for future in [pool.submit(descent.run) for descent in descents]:
                future.result()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            objective.halted.set()  # the pool waits for the evaluations that have begun
            objective.cancel()
    objective.halted.clear()
    return descents, interrupted


def updated_hessian(
    hessian: Float[np.ndarray, "q q"], moved: Float[np.ndarray, " q"], change: Float[np.ndarray, " q"]
) -> Float[np.ndarray, "q q"] | None:
    """Return second derivatives updated by BFGS with a step and the change of the slopes along it.

    None if the slope does not rise along the step: they have to be computed again.
    """
    rise, expected = float(moved @ change), hessian @ moved
    if rise <= 0.0 or float(moved @ expected) <= 0.0:
        return None
    return np.asarray(
        hessian + np.outer(change, change) / rise - np.outer(expected, expected) / float(moved @ expected)
    )
