"""Check of the equation: whether another coefficient, or one more term, would make the data far more probable."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from scipy.special import fdtrc

from ...errors import PilescoreError
from ...inference import Score
from ...model import Model
from ...search import Found, RunOptions, SearchOptions, Steps
from ..calibration import calibrate
from ..context import DiagnosisContext, is_precise
from ..equation_changes import FREED, Change, equation_changes, shifted
from ..findings import Finding
from ..residuals import Residuals, without_rows
from ..score_tests import ScoreTests

PROMISING_NATS = 2.0
"""Changes that promise less are not searched."""

MOST_SEARCHED = 3
"""The largest number of changes that are searched."""

LARGEST_TESTED = 3000
"""The largest number of observations for which score tests are made: they need several products of `N³` operations."""

SEARCH = SearchOptions(tolerance=1e-6, max_evaluations=40, curvature=False)
"""How the other hyperparameters follow a change: its gain needs few digits."""

WIDEST_FACTOR = 1e3
"""Bounds of other hyperparameters where no bounds are known, as a factor both ways."""


GIVEN_PHYSICS = Score("physics")
"""What is scored: only data can tell that an equation is wrong. The values of an equation with a source are a smooth
function, not a draw of the prior, in directions of which exact values have very precise, and wrong, opinions."""


@dataclasses.dataclass(frozen=True, eq=False)
class Tried:
    """A change of an equation, and what it gains."""

    change: Change
    promised: float
    """The gain in nats that the score test promises."""
    gain: float
    """The gain in nats, with all searched hyperparameters free."""
    step: float
    """The best value of the number that is freed."""
    error: float
    """Its standard error."""
    model: Model


def wrong_equation(context: DiagnosisContext) -> Finding:
    """Check whether another coefficient, one more term or another source makes the observations more probable."""
    name = "wrong_equation"
    model = context.model
    if not (model.data and "equation" in context.residuals.groups):
        return context.skip(name, "This needs both data and an equation within a region.")
    if model.size > LARGEST_TESTED:
        return context.skip(name, f"There are {model.size} observations, more than {LARGEST_TESTED}.")
    search = EquationSearch(context)
    if not search.changes:
        return context.skip(name, "No coefficient or term of the equation can be another one.")
    tried = search.best()
    if tried is None:
        return context.finding(
            name, float(search.promised.max()), "failure", "the gain that the best change of an equation promises, in nats, is", "", "",
            fires=False, p_value=search.p_value(float(search.promised.max())), promised=search.table(),
        )  # fmt: skip
    return context.finding(
        name,
        tried.gain,
        "failure",
        "the gain by the best change of an equation, in nats, is",
        f"The equation is wrong, or a term is missing: {tried.change.described(tried.step, tried.error)}. The "
        "observations would be far more probable.",
        "check coefficients, units and signs of the equation; infer a doubtful coefficient as a ps.parameter; compare "
        "equations (ps.choose).",
        p_value=search.p_value(tried.gain),
        change=tried.change.kind,
        step=tried.step,
        error=tried.error,
        promised=search.table(),
    )


class EquationSearch:
    """The score tests of all changes of the equations of a model, and the search of those that promise most."""

    def __init__(self, context: DiagnosisContext) -> None:
        self.context = context
        self.source = without_rows(context.source, context.outlying) if len(context.outlying) else context.source
        residuals = context.cleaned
        self.calibration = calibrate(residuals.model, GIVEN_PHYSICS.given_blocks(self.source), draws=0)
        self.over = _bounds(context)
        free = [name for name in self.over if name not in context.at_bounds]
        tests = ScoreTests(residuals.model, self.calibration, free)
        self.changes, self.tests = [], []
        for change in equation_changes(self.source, residuals):
            test = tests.test(tests.of_block(change.number, change.operator, change.values))
            if test.information > 0:
                self.changes.append(change)
                self.tests.append(test)
        whitened = self.calibration.whitened[:, None]
        self.promised = np.array([float(test.nats(whitened)[0]) for test in self.tests])
        self.freedom = residual_freedom(residuals)

    @functools.cached_property
    def count(self) -> float:
        """The effective number of changes: of `k` changes with the same effect it is one.

        With `λ` the eigenvalues of the correlations of their scores it is `(Σ√λ)²/Σλ`.
        """
        directions = [test.direction for test in self.tests]
        table = np.array([[first.information(second) for second in directions] for first in directions])
        size = np.sqrt(table.diagonal())
        roots = np.sqrt(np.maximum(np.linalg.eigvalsh(table / np.outer(size, size)), 0.0))
        return float(roots.sum() ** 2 / (roots**2).sum())

    def p_value(self, gain: float) -> float:
        """Return the probability that the best of all changes gains as much under the model.

        Twice the gain by one number follows a `χ²` distribution. Where the noise is estimated from few data, `n` of
        them free, it is `n log(1 + F/n)` instead, with `F` from an F distribution.
        """
        n = self.freedom
        one = float(fdtrc(1.0, n, n * math.expm1(min(2.0 * gain / n, 500.0)))) if gain > 0 else 1.0
        return min(1.0, self.count * one)

    def table(self) -> dict[str, float]:
        """Return the nats that each change promises."""
        names = [f"{each.label}: {each.kind} {each.symbol}".strip() for each in self.changes]
        return dict(zip(names, self.promised.tolist(), strict=True))

    def best(self) -> Tried | None:
        """Return the change that gains most, of those that promise most; None if none promises enough."""
        order = np.argsort(-self.promised)[:MOST_SEARCHED]
        tried = [self.tried(int(i)) for i in order if self.promised[i] >= PROMISING_NATS]
        return max((each for each in tried if each is not None), key=lambda each: each.gain, default=None)

    def tried(self, i: int) -> Tried | None:
        """Return what a change gains if all searched hyperparameters follow it; None if it cannot be scored."""
        change, test = self.changes[i], self.tests[i]
        step, error = test.step(self.calibration.whitened)
        low, high = change.bounds
        start = float(np.clip(step, 0.5 * low, 0.5 * high))
        before = self.energy
        try:
            if change.freed is None:
                found = self.descend(shifted(self.source, change, start), {})
                value = start
            else:
                found = self.descend(change.freed(self.source), {FREED: start})
                value = found.values[FREED]
        except PilescoreError:
            return None
        if not is_precise(found.pile):
            return None
        gain = max(before - found.pile.free_energy, 0.0)
        return Tried(change, float(self.promised[i]), gain, value, error, found.model)

    @functools.cached_property
    def energy(self) -> float:
        """The free energy without a change, with all searched hyperparameters at their best."""
        return float(self.descend(self.source, {}).pile.free_energy)

    def descend(self, model: Model, start: dict[str, float]) -> Found:
        """Return the best model from the present hyperparameters, with a start for the number that is freed."""
        over = dict(self.over)
        if start:
            over[FREED] = next(each.bounds for each in self.changes if each.freed is not None)
        minimum = self.context.minimum
        ties = minimum.ties if minimum is not None else None
        steps = Steps(over, ties, GIVEN_PHYSICS, SEARCH, RunOptions(progress=False))
        return steps.descend(model, [start])


def residual_freedom(residuals: Residuals) -> float:
    """Return the expected `Σ e²/s²` of the residuals of data: their number minus what the solution adapts to."""
    rows = residuals.data
    return max(1.0, float(np.sum(residuals.noise[rows] / residuals.left_out_variances[rows])))


def _bounds(context: DiagnosisContext) -> dict[str, tuple[Any, Any]]:
    """Return the bounds of searched hyperparameters; wide ones about the present values if no search is known."""
    minimum = context.minimum
    space = minimum.end.space if minimum is not None and minimum.end is not None else context.space
    if space is not None:
        return {name: (low, high) for name, low, high in zip(space.names, space.low, space.high, strict=True)}
    model = context.source
    roles = {"length", "data_temperature", "physics_temperature", "scale"}
    values = {name: value for name, value in model.parameters.items() if model.roles[name] in roles}
    return {name: (value / WIDEST_FACTOR, value * WIDEST_FACTOR) for name, value in values.items()}
