"""Gauss–Newton in dual form to the most likely solution of a nonlinear model.

The unknown is `f = Σ c_i φ_i k` with the functionals `φ` of the model's frame, and `v = Θc` are their values. A step
linearises there, factors the covariance `C = JΘJᵀ + S` of the linearised model, and goes towards `c = Jᵀ C⁻¹ t̃`.
The objective is `Φ = ½ |t − F(v)|²/S + ½ cᵀv`, the negative log posterior up to a constant.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Float

from .frames import Frame, check_finite, linear_model
from .linalg import EPS, threads
from .system import System, solve

ARMIJO = 1e-4
"""The part of the decrease that the slope promises which a step has to bring."""

HALVINGS = 30
"""How often a step is halved at most."""

LOOSE = 1e-2
"""The squared decrement, relative to `1 + 2Φ`, at which a level of the continuation but the last has done enough."""

STRAIGHT = 0.9
"""The part of the promised decrease after which a level but the last has done enough, too: it is nearly linear."""

NEAR, QUICK = 1e-2, 1e-3
"""Steps are refined to Newton's where the squared decrement is this small, relative to `1 + 2Φ`, and has fallen by less
than this."""

ROUNDING = 10.0
"""A decrement within so many estimates of the rounding error of `2Φ` cannot be told from zero."""

JUMP = 1e-3
"""The rise of the objective, relative to `1 + 2Φ`, after a step at convergence that only a jump of `P` can make."""

Status = Literal["converged", "stagnated", "unsatisfied", "not a minimum", "stuck", "diverged", "out of iterations"]


@dataclasses.dataclass(frozen=True)
class Step:
    """One linearisation, and the step that followed."""

    level: float
    """The factor of all noise variances."""
    objective: float
    """`Φ` at the linearisation."""
    decrement: float
    """The squared Newton decrement there: twice what the linearised problem would gain."""
    length: float
    """The part of the full step that was taken; zero if none was."""


@dataclasses.dataclass(frozen=True, eq=False)
class State:
    """An iterate: `f` by its coefficients and the values of the functionals."""

    coefficients: Float[np.ndarray, " F"]
    values: Float[np.ndarray, " F"]

    def towards(self, step: State, length: float) -> State:
        """Return the state after a part of a step."""
        return State(self.coefficients + length * step.coefficients, self.values + length * step.values)


@dataclasses.dataclass(frozen=True, eq=False)
class Map:
    """Where Gauss–Newton ended, with the linearisation there."""

    frame: Frame
    state: State
    predicted: Float[np.ndarray, " N"]
    """`F(f̂)`."""
    slopes: Float[np.ndarray, " F"]
    """The entries of `J`."""
    system: System
    """Of the linearised model."""
    alpha: Float[np.ndarray, " N"]
    """`C⁻¹t̃` in the stacked order."""
    objective: float
    decrement: float
    status: Status
    reason: str
    steps: tuple[Step, ...]

    @property
    def converged(self) -> bool:
        """Whether this is a minimum as far as rounding tells."""
        return self.status in ("converged", "stagnated", "unsatisfied")


class Iteration:
    """Gauss–Newton on one frame; it counts what it does."""

    def __init__(
        self,
        frame: Frame,
        tolerance: float,
        budget: int,
        explain: bool,
        refine: Callable[[Map, State], State | None],
        update: Callable[[int], object] = lambda count: None,
    ) -> None:
        self.frame = frame
        self.tolerance = tolerance
        self.budget = budget
        self.explain = explain
        self.refine = refine
        """Turns a step of Gauss–Newton into one of Newton, where it can."""
        self.update = update
        self.steps: list[Step] = []
        self.targets = frame.model.values
        self.noise = frame.model.noise

    def objective(self, state: State, level: float) -> float:
        """Return `Φ`; infinite where `P` is not finite."""
        with np.errstate(invalid="ignore", over="ignore"):
            residual = self.targets - self.frame.observed(state.values)
            total = 0.5 * float(residual**2 @ (1.0 / (level * self.noise)) + state.coefficients @ state.values)
        return total if math.isfinite(total) else math.inf

    def run(self, start: State | Float[np.ndarray, " F"], levels: tuple[float, ...]) -> Map:
        """Go from a state, or from values to linearise at, down the levels of noise."""
        with threads(self.frame.model.size):
            for level in levels[:-1]:
                if len(self.steps) + 1 >= self.budget:
                    break
                start = self._level(start, level, True).state
            return self._level(start, levels[-1], False)

    def _level(self, start: State | Float[np.ndarray, " F"], level: float, passing: bool) -> Map:
        state = None if isinstance(start, np.ndarray) else start
        values = start if isinstance(start, np.ndarray) else start.values
        enough = max(LOOSE, self.tolerance) if passing else self.tolerance
        objective = math.inf if state is None else self.objective(state, level)
        before: list[Step] = []
        while True:
            predicted, slopes = self.frame.linearised(values)
            check_finite(self.frame, values, predicted, slopes, "at the start" if not self.steps else "on the way")
            targets = self.targets - predicted + self.frame.forward(slopes, values)
            system = solve(linear_model(self.frame, slopes, targets), noise_factor=level, explain=self.explain)
            self.update(1)
            alpha = system.stacked_alpha
            coefficients = self.frame.backward(slopes, alpha)
            if state is None:
                state, objective, length = self._first(values, slopes, coefficients, system, level)
                values = state.values
                self.steps.append(Step(level, math.nan, math.nan, length))
                continue
            change = coefficients - state.coefficients
            step = State(change, self.frame.product(change))
            moved = self.frame.forward(slopes, step.values)
            decrement = float(moved**2 @ (1.0 / (level * self.noise)) + max(change @ step.values, 0.0))
            parts = (predicted, slopes, system, alpha, objective, decrement)
            here = Map(self.frame, state, *parts, "converged", "", ())
            limit = self.budget - passing  # the last level has one linearisation at least
            refined = None if passing or self._quick(here, before, enough) else self.refine(here, step)
            slope = decrement
            if refined is not None:
                along = self.frame.forward(slopes, refined.values)
                slope = float((moved * along) @ (1.0 / (level * self.noise)) + change @ refined.values)
                refined = refined if slope > 0.0 else None  # else its curvature is negative: towards a saddle
            answer = self._next(here, refined or step, slope if refined else decrement, level, enough, before, limit)
            if refined is not None and answer[0] in ("stuck", "diverged"):
                refined, answer = None, self._next(here, step, decrement, level, enough, before, limit)
            step = refined or step
            status, reason, length, ahead = answer
            self.steps.append(Step(level, objective, decrement, length))
            there = state.towards(step, length)
            as_promised = length == 1.0 and objective - ahead >= STRAIGHT * 0.5 * decrement
            if status is not None or (passing and as_promised):
                ending = (status or "converged", reason, tuple(self.steps))
                return Map(self.frame, there, *parts, *ending)
            before.append(self.steps[-1])
            state, values, objective = there, there.values, ahead

    def _first(
        self,
        values: Float[np.ndarray, " F"],
        slopes: Float[np.ndarray, " F"],
        coefficients: Float[np.ndarray, " F"],
        system: System,
        level: float,
    ) -> tuple[State, float, float]:
        """Return the state after a step from mere values, its objective, and the part of the step that was taken.

        The step starts from the function that has these values, as far as the prior and the noise let one have them.
        """
        kept = self.frame.backward(slopes, system.solve_stacked(self.frame.forward(slopes, values)))
        change = coefficients - kept
        state, step = State(kept, self.frame.product(kept)), State(change, self.frame.product(change))
        best = state, self.objective(state, level), 0.0
        for length in 0.5 ** np.arange(HALVINGS):
            ahead = state.towards(step, float(length))
            objective = self.objective(ahead, level)
            if objective < best[1]:
                return ahead, objective, float(length)
        return best

    @staticmethod
    def _quick(here: Map, before: list[Step], enough: float) -> bool:
        """Whether Gauss–Newton does well by itself, or has to come nearer before a step of Newton would do better."""
        size = 1.0 + 2.0 * abs(here.objective)
        near = here.decrement <= NEAR * size
        return here.decrement <= max(enough * size, QUICK * (before[-1].decrement if before else math.inf)) or not near

    def _next(
        self, here: Map, step: State, slope: float, level: float, enough: float, before: list[Step], limit: int
    ) -> tuple[Status | None, str, float, float]:
        """Return why to stop here, if so, or how far to go and the objective there."""
        state, objective, decrement, system = here.state, here.objective, here.decrement, here.system
        size = 1.0 + 2.0 * abs(objective)
        rounding = self._rounding(here, level)
        if decrement <= enough * size:
            risen = self.objective(state.towards(step, 1.0), level) - objective
            if risen > JUMP * size + ROUNDING * rounding:  # where the linearised model is, P is another
                return (
                    "stuck",
                    f"a tiny step raises the objective by {risen:.1e}: P is not continuous there",
                    0.0,
                    objective,
                )
            return "converged", f"the squared decrement is {decrement:.1e}", 0.0, objective
        if len(self.steps) + 1 >= limit:
            return "out of iterations", f"{self.budget} linearisations are used up", 0.0, objective
        fine = ROUNDING * (system.error + 2.0 * rounding)
        text = (
            f"the squared decrement, {decrement:.1e}, is within the rounding error of 2Φ, about {fine / ROUNDING:.1e}"
        )
        last = before[-1] if before else None
        if decrement <= fine and last is not None and last.length == 1.0 and decrement > 0.9 * last.decrement:
            return "stagnated", text, 0.0, objective
        length = 1.0
        for _ in range(HALVINGS):
            ahead = self.objective(state.towards(step, length), level)
            if ahead <= objective - ARMIJO * length * slope + rounding:
                return None, "", length, ahead
            length *= 0.5
        if decrement <= fine:
            return "stagnated", text, 0.0, objective
        if not math.isfinite(self.objective(state.towards(step, 2.0**-HALVINGS), level)):
            return "diverged", "the objective is not finite all along the step", 0.0, objective
        return (
            "stuck",
            f"no step lowers the objective, though its slope promises {decrement:.1e}: P is not differentiable there, "
            "or its derivative is not that of its values",
            0.0,
            objective,
        )

    def _rounding(self, here: Map, level: float) -> float:
        """Return an estimate of the rounding error of `Φ`: of `v = Θc`, and of what follows from it."""
        spread = self.frame.deviations
        values = EPS * spread * float(np.linalg.norm(spread * here.state.coefficients))
        predicted = np.sqrt(np.bincount(self.frame.row, (here.slopes * values) ** 2, minlength=len(self.targets)))
        predicted += EPS * np.abs(here.predicted)
        weights = 1.0 / (level * self.noise)
        residual = np.linalg.norm((self.targets - here.predicted) * predicted * weights)
        norm = np.linalg.norm(here.state.coefficients * values)
        return float(residual + norm + 0.5 * (predicted**2 @ weights) + EPS * abs(here.objective))
