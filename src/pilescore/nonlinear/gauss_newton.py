"""Gauss–Newton in dual form for the most likely solution of a nonlinear model.

The solution is `f = Σ c_i φ_i k` with the model's functionals `φ`, and `v = Θc` are their values. A step linearises
at `v`, factors the covariance `C = JΘJᵀ + S` of the linearised model, and moves towards `c = Jᵀ C⁻¹ t̃`. Only this
N×N matrix is factored, never the larger `Θ`. The objective is `Φ = ½ |t − F(v)|²/S + ½ cᵀv`, the negative log
posterior up to a constant.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Float

from ..parallel import threads
from ..solvers import EPS, System, solve
from .linearisation import Functionals, check_finite, linear_model

ARMIJO_FRACTION = 1e-4
"""A step must achieve at least this fraction of the decrease that the slope predicts."""

MAX_HALVINGS = 30
"""The largest number of times a step is halved."""

LOOSE_DECREMENT = 1e-2
"""All continuation levels but the last stop at this squared decrement, relative to `1 + 2Φ`."""

NEARLY_LINEAR = 0.9
"""All levels but the last also stop once a full step achieves this fraction of the predicted decrease."""

NEWTON_RANGE, FAST_DECREASE = 1e-2, 1e-3
"""Newton steps replace Gauss–Newton steps once the squared decrement is below `NEWTON_RANGE · (1 + 2Φ)`, unless the
last step reduced it by the factor `FAST_DECREASE`."""

ROUNDING_MULTIPLE = 10.0
"""A decrement within this multiple of the rounding error of `2Φ` counts as zero."""

JUMP = 1e-3
"""At convergence, only a discontinuity of `P` can raise the objective by more than this, relative to `1 + 2Φ`."""

Status = Literal["converged", "stagnated", "unsatisfied", "not a minimum", "stuck", "diverged", "out of evaluations"]


@dataclasses.dataclass(frozen=True)
class GaussNewtonStep:
    """A record of one linearisation and the step taken from it."""

    level: float
    """The factor of all noise variances."""
    objective: float
    """`Φ` at the linearisation."""
    decrement: float
    """The squared Newton decrement there: twice the decrease of the linearised objective."""
    length: float
    """The fraction of the full step that was taken; zero if the iteration stopped here."""


@dataclasses.dataclass(frozen=True, eq=False)
class DualExpansion:
    """A function `f = Σ c_i φ_i k`, or a direction, by its coefficients `c` and the values `v = Θc` of its functionals.

    Both are stored because products with `Θ` dominate the cost of a trial step, and `v` is linear in `c`.
    """

    coefficients: Float[np.ndarray, " F"]
    values: Float[np.ndarray, " F"]

    def towards(self, step: DualExpansion, length: float) -> DualExpansion:
        """Return this function plus `length` times a step."""
        return DualExpansion(self.coefficients + length * step.coefficients, self.values + length * step.values)


StartPoint = DualExpansion | Float[np.ndarray, " F"]
"""A function, or only the values of its functionals, to linearise at."""


@dataclasses.dataclass(frozen=True, eq=False)
class MapEstimate:
    """The maximum a posteriori estimate where Gauss–Newton stopped, with the linearisation there."""

    functionals: Functionals
    expansion: DualExpansion
    predicted: Float[np.ndarray, " N"]
    """`F(f̂)`."""
    slopes: Float[np.ndarray, " F"]
    """The entries of `J`."""
    system: System
    """The factored system of the linearised model."""
    alpha: Float[np.ndarray, " N"]
    """`C⁻¹t̃` in the stacked order."""
    objective: float
    decrement: float
    status: Status
    reason: str
    steps: tuple[GaussNewtonStep, ...]

    @property
    def converged(self) -> bool:
        """Whether this is a minimum, up to rounding."""
        return self.status in ("converged", "stagnated", "unsatisfied")


class GaussNewton:
    """Gauss–Newton on the functionals of one model; it records its steps."""

    def __init__(
        self,
        functionals: Functionals,
        tolerance: float,
        budget: int,
        explain: bool,
        refine: Callable[[MapEstimate, DualExpansion], DualExpansion | None],
        update: Callable[[int], object] = lambda count: None,
    ) -> None:
        self.functionals = functionals
        self.tolerance = tolerance
        self.budget = budget
        self.explain = explain
        self.refine = refine
        """Turns a Gauss–Newton step into a Newton step, or returns None."""
        self.update = update
        self.steps: list[GaussNewtonStep] = []
        self.targets = functionals.model.values
        self.noise = functionals.model.noise

    def objective(self, at: DualExpansion, level: float) -> float:
        """Return `Φ`; it is infinite where `P` is not finite."""
        with np.errstate(invalid="ignore", over="ignore"):
            residual = self.targets - self.functionals.linearise(at.values)[0]
            total = 0.5 * float(residual**2 @ (1.0 / (level * self.noise)) + at.coefficients @ at.values)
        return total if math.isfinite(total) else math.inf

    def run(self, start: StartPoint, levels: tuple[float, ...]) -> MapEstimate:
        """Run through the noise levels from a function, or from functional values to linearise at.

        Continuation: with inflated noise the objective is close to the prior's quadratic, so the first levels find the
        right basin cheaply; each level starts from the solution of the one before.
        """
        with threads(self.functionals.model.size):
            for level in levels[:-1]:
                if len(self.steps) + 1 >= self.budget:
                    break
                start = self._run_level(start, level, True).expansion
            return self._run_level(start, levels[-1], False)

    def _run_level(self, start: StartPoint, level: float, passing: bool) -> MapEstimate:
        """Iterate at one noise level; a passing level is one before the last."""
        functionals, precision = self.functionals, 1.0 / (level * self.noise)
        current = None if isinstance(start, np.ndarray) else start
        values = start if isinstance(start, np.ndarray) else start.values
        enough = max(LOOSE_DECREMENT, self.tolerance) if passing else self.tolerance
        objective = math.inf if current is None else self.objective(current, level)
        before: list[GaussNewtonStep] = []
        while True:
            predicted, slopes = functionals.linearise(values)
            check_finite(functionals, values, predicted, slopes, "at the start" if not self.steps else "on the way")
            targets = self.targets - predicted + functionals.forward(slopes, values)
            system = solve(linear_model(functionals, slopes, targets), noise_factor=level, explain=self.explain)
            self.update(1)
            alpha = system.stacked_alpha
            coefficients = functionals.backward(slopes, alpha)
            if current is None:
                current, objective, length = self._first(values, slopes, coefficients, system, level)
                values = current.values
                self.steps.append(GaussNewtonStep(level, math.nan, math.nan, length))
                continue
            change = coefficients - current.coefficients
            step = DualExpansion(change, functionals.product(change))
            observed_change = functionals.forward(slopes, step.values)
            # cᵀΘc can come out below zero by rounding where Θ is nearly singular.
            decrement = float(observed_change**2 @ precision + max(change @ step.values, 0.0))
            linearisation = (predicted, slopes, system, alpha, objective, decrement)
            here = MapEstimate(functionals, current, *linearisation, "converged", "", ())
            limit = self.budget - passing  # leave at least one linearisation for the last level
            newton = None if passing or self._is_fast(here, before, enough) else self.refine(here, step)
            slope = decrement
            if newton is not None:
                along = functionals.forward(slopes, newton.values)
                slope = float((observed_change * along) @ precision + change @ newton.values)
                newton = newton if slope > 0.0 else None  # an ascent direction: the exact curvature is negative
            answer = self._next(here, newton or step, slope if newton else decrement, level, enough, before, limit)
            if newton is not None and answer[0] in ("stuck", "diverged"):
                newton, answer = None, self._next(here, step, decrement, level, enough, before, limit)
            step = newton or step
            status, reason, length, ahead = answer
            self.steps.append(GaussNewtonStep(level, objective, decrement, length))
            there = current.towards(step, length)
            as_predicted = length == 1.0 and objective - ahead >= NEARLY_LINEAR * 0.5 * decrement
            if status is not None or (passing and as_predicted):
                ending = (status or "converged", reason, tuple(self.steps))
                return MapEstimate(functionals, there, *linearisation, *ending)
            before.append(self.steps[-1])
            current, values, objective = there, there.values, ahead

    def _first(
        self,
        values: Float[np.ndarray, " F"],
        slopes: Float[np.ndarray, " F"],
        coefficients: Float[np.ndarray, " F"],
        system: System,
        level: float,
    ) -> tuple[DualExpansion, float, float]:
        """Return the function after a step from functional values alone, its objective, and the step length.

        Values alone have no coefficients, hence no prior norm. The step starts from the linearised model's posterior
        mean for these values as targets: the function closest to them that prior and noise allow.
        """
        kept = self.functionals.backward(slopes, system.solve_stacked(self.functionals.forward(slopes, values)))
        change = coefficients - kept
        current = DualExpansion(kept, self.functionals.product(kept))
        step = DualExpansion(change, self.functionals.product(change))
        best = current, self.objective(current, level), 0.0
        for length in 0.5 ** np.arange(MAX_HALVINGS):
            ahead = current.towards(step, float(length))
            objective = self.objective(ahead, level)
            if objective < best[1]:
                return ahead, objective, float(length)
        return best

    @staticmethod
    def _is_fast(here: MapEstimate, before: list[GaussNewtonStep], enough: float) -> bool:
        """Whether Gauss–Newton converges fast by itself, or is still too far away for Newton steps to help."""
        size = 1.0 + 2.0 * abs(here.objective)
        fast = max(enough * size, FAST_DECREASE * (before[-1].decrement if before else math.inf))
        return here.decrement <= fast or here.decrement > NEWTON_RANGE * size

    def _next(
        self,
        here: MapEstimate,
        step: DualExpansion,
        slope: float,
        level: float,
        enough: float,
        before: list[GaussNewtonStep],
        limit: int,
    ) -> tuple[Status | None, str, float, float]:
        """Return the status and reason if the iteration stops here, else the step length and the objective there."""
        current, objective, decrement, system = here.expansion, here.objective, here.decrement, here.system
        size = 1.0 + 2.0 * abs(objective)
        rounding = self._rounding(here, level)
        if decrement <= enough * size:
            rise = self.objective(current.towards(step, 1.0), level) - objective
            if rise > JUMP * size + ROUNDING_MULTIPLE * rounding:  # P jumps between here and the linearised minimum
                reason = f"a tiny step raises the objective by {rise:.1e}: P is not continuous there"
                return "stuck", reason, 0.0, objective
            return "converged", f"the squared decrement is {decrement:.1e}", 0.0, objective
        if len(self.steps) + 1 >= limit:
            return "out of evaluations", f"{self.budget} linearisations are used up", 0.0, objective
        floor = ROUNDING_MULTIPLE * (system.error + 2.0 * rounding)
        at_rounding = (
            f"the squared decrement, {decrement:.1e}, is within the rounding error of 2Φ, about "
            f"{floor / ROUNDING_MULTIPLE:.1e}"
        )
        last = before[-1] if before else None
        if decrement <= floor and last is not None and last.length == 1.0 and decrement > 0.9 * last.decrement:
            return "stagnated", at_rounding, 0.0, objective
        length = 1.0
        for _ in range(MAX_HALVINGS):
            ahead = self.objective(current.towards(step, length), level)
            # Armijo's condition. Without the rounding error it would reject good steps near the minimum, where the
            # predicted decrease is smaller than the last digit of Φ.
            if ahead <= objective - ARMIJO_FRACTION * length * slope + rounding:
                return None, "", length, ahead
            length *= 0.5
        if decrement <= floor:
            return "stagnated", at_rounding, 0.0, objective
        if not math.isfinite(self.objective(current.towards(step, 2.0**-MAX_HALVINGS), level)):
            return "diverged", "the objective is not finite all along the step", 0.0, objective
        reason = (
            f"no step lowers the objective, though its slope predicts {decrement:.1e}: P is not differentiable there, "
            "or its derivative does not match its values"
        )
        return "stuck", reason, 0.0, objective

    def _rounding(self, here: MapEstimate, level: float) -> float:
        """Return an estimate of the rounding error of `Φ`, propagated from that of `v = Θc`."""
        spread = self.functionals.deviations
        # |Θ_ij| ≤ s_i s_j, so the error of each v_i is about EPS s_i |s·c|.
        values = EPS * spread * float(np.linalg.norm(spread * here.expansion.coefficients))
        predicted = np.sqrt(np.bincount(self.functionals.row, (here.slopes * values) ** 2, minlength=len(self.targets)))
        predicted += EPS * np.abs(here.predicted)
        weights = 1.0 / (level * self.noise)
        residual = np.linalg.norm((self.targets - here.predicted) * predicted * weights)
        norm = np.linalg.norm(here.expansion.coefficients * values)
        return float(residual + norm + 0.5 * (predicted**2 @ weights) + EPS * abs(here.objective))
