"""The search for a change of the physics, or of the kernel, that makes the data far more probable."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from scipy.special import fdtrc

from ..errors import PilescoreError
from ..inference import Score
from ..kernels import RBF, Kernel, Matern, RationalQuadratic
from ..model import Model
from ..search import Found, Minimum, RunOptions, SearchOptions, SearchSpace, Steps
from .calibration import calibrate
from .equation_changes import FREED, Change, condition_changes, equation_changes, shifted
from .residuals import Residuals
from .score_tests import ScoreTest, ScoreTests

PROMISING_NATS = 2.0
"""Changes that promise less are not searched."""

MOST_SEARCHED = 3
"""The largest number of changes of equations that are searched, and of changes of conditions."""

CLOSE_NATS = 2.0
"""Changes whose gains differ by less, in nats, explain the data equally well."""

DOUBTFUL = 0.05
"""Other kernels are tried only if the p-value of a change is below this."""

THOROUGH = SearchOptions(tolerance=1e-6, max_evaluations=40, curvature=False)
"""How the hyperparameters without a change are found: what is lost here would look like a gain."""

QUICK = SearchOptions(tolerance=1e-3, max_evaluations=15, curvature=False)
"""How they follow a change. Its gain needs few digits, and less than all of it is no false alarm."""

UNDECIDED = (5e-4, 0.3)
"""A change with a p-value between these is searched once more, from where the search ended."""

WIDEST_FACTOR = 1e3
"""Bounds of other hyperparameters where no bounds are known, as a factor both ways."""

GIVEN_PHYSICS = Score("physics")
"""What is scored: only data can tell that physics is wrong. The values of an equation with a source are a smooth
function, not a draw of the prior, in directions of which exact values have very precise, and wrong, opinions."""


@dataclasses.dataclass(frozen=True, eq=False)
class Tried:
    """A change of the physics, and what it gains."""

    change: Change
    gain: float
    """The gain in nats, with all searched hyperparameters free."""
    p_value: float
    """The probability that the best of all such changes gains as much if nothing is wrong."""
    step: float
    """The best value of the number that is freed."""
    error: float
    """Its standard error."""
    model: Model
    """The model with the change."""

    @property
    def described(self) -> str:
        """The change that the data would like, in words."""
        return self.change.described(self.step, self.error)


class ChangeSearch:
    """The score tests of all changes of equations and conditions, and the search of those that promise most.

    Parameters
    ----------
    source
        The model as it was given, without outliers.
    residuals
        Its residuals; of the linearised model if it is nonlinear.
    over
        The bounds of the hyperparameters that follow a change.
    minimum
        The search that found the model, if there was one.
    fixed
        Hyperparameters that do not follow: those at a bound.
    """

    def __init__(
        self,
        source: Model,
        residuals: Residuals,
        over: Mapping[str, Any],
        minimum: Minimum | None,
        fixed: Mapping[str, Any],
    ) -> None:
        self.source, self.over, self.minimum = source, dict(over), minimum
        self.calibration = calibrate(residuals.model, GIVEN_PHYSICS.given_blocks(source), draws=0)
        self.freedom = residual_freedom(residuals)
        tests = ScoreTests(residuals.model, self.calibration, [name for name in self.over if name not in fixed])
        self.tests: dict[str, list[tuple[Change, ScoreTest]]] = {}
        changes = {"equation": equation_changes(source, residuals), "condition": condition_changes(source, residuals)}
        for kind, every in changes.items():
            tested = [(each, tests.test(tests.of_block(each.number, each.operator, each.values))) for each in every]
            self.tests[kind] = [(each, test) for each, test in tested if test.information > 0]

    def promised(self, kind: str) -> dict[str, float]:
        """Return the nats that each change of a kind promises."""
        whitened = self.calibration.whitened[:, None]
        return {
            f"{each.label}: {each.kind} {each.symbol}".strip(): float(test.nats(whitened)[0])
            for each, test in self.tests[kind]
        }

    def count(self, kind: str) -> float:
        """Return the effective number of changes of a kind: of `k` changes with the same effect it is one.

        With `λ` the eigenvalues of the correlations of their scores it is `(Σ√λ)²/Σλ`.
        """
        directions = [test.direction for _, test in self.tests[kind]]
        table = np.array([[first.information(second) for second in directions] for first in directions])
        size = np.sqrt(table.diagonal())
        roots = np.sqrt(np.maximum(np.linalg.eigvalsh(table / np.outer(size, size)), 0.0))
        return float(roots.sum() ** 2 / (roots**2).sum())

    def p_value(self, kind: str, gain: float) -> float:
        """Return the probability that the best of all changes of a kind gains as much if nothing is wrong."""
        return min(1.0, self.count(kind) * p_value_of_gain(gain, self.freedom))

    @functools.cached_property
    def found(self) -> dict[str, Tried | None]:
        """The change of each kind that gains most, of those that promise most; None if none promises enough."""
        return {kind: self._best(kind) for kind in self.tests}

    def _best(self, kind: str) -> Tried | None:
        whitened = self.calibration.whitened[:, None]
        promised = [(float(test.nats(whitened)[0]), i) for i, (_, test) in enumerate(self.tests[kind])]
        chosen = [i for nats, i in sorted(promised, reverse=True)[:MOST_SEARCHED] if nats >= PROMISING_NATS]
        tried = [self._tried(kind, *self.tests[kind][i]) for i in chosen]
        known = [each for each in tried if each is not None]
        most = max((each.gain for each in known), default=0.0)
        # Another coefficient is a simpler explanation than another term.
        close = [each for each in known if each.gain > most - CLOSE_NATS or each.gain == most]
        best = max(close, key=lambda each: (each.change.kind == "coefficient", each.gain), default=None)
        if best is None:
            return None
        if UNDECIDED[0] < best.p_value < UNDECIDED[1] and best.change.freed is not None:
            best = self._followed(kind, best.change, best.model, best.step, best.error) or best
        return self._settled(best)

    def _tried(self, kind: str, change: Change, test: ScoreTest) -> Tried | None:
        """Return what a change gains if all searched hyperparameters follow it; None if it cannot be scored."""
        step, error = test.step(self.calibration.whitened)
        low, high = change.bounds
        start = float(np.clip(step, 0.5 * low, 0.5 * high))
        # Not from the best model without the change, which may have given the data up as noise.
        model = shifted(self.source, change, start) if change.freed is None else change.freed(self.source)
        return self._followed(kind, change, model, start, error)

    def _followed(self, kind: str, change: Change, model: Model, start: float, error: float) -> Tried | None:
        """Return what a change gains from a start; None if it cannot be scored."""
        more = {} if change.freed is None else {FREED: (start, *change.bounds)}
        try:
            found = self.descend(model, more)
        except PilescoreError:
            return None
        gain = max(self.energy - found.pile.free_energy, 0.0)
        return Tried(change, gain, self.p_value(kind, gain), found.values.get(FREED, start), error, found.model)

    def _settled(self, tried: Tried) -> Tried:
        """Return a change with its number and error by the hyperparameters that followed it."""
        change = tried.change
        if tried.p_value > DOUBTFUL or tried.model.is_nonlinear:
            return tried
        given = GIVEN_PHYSICS.given_blocks(tried.model)
        tests = ScoreTests(tried.model, calibrate(tried.model, given, draws=0), ())
        test = tests.test(tests.of_block(change.number, change.operator, change.values))
        if not test.information > 0:
            return tried
        further, error = test.step(tests.calibration.whitened)
        # Imposed values were held at the first step; a coefficient has been searched.
        return dataclasses.replace(tried, step=tried.step + (further if change.freed is None else 0.0), error=error)

    @functools.cached_property
    def base(self) -> Found:
        """The model without a change, with all searched hyperparameters at their best."""
        return self.descend(self.source, search=THOROUGH)

    @property
    def energy(self) -> float:
        """Its free energy."""
        return float(self.base.pile.free_energy)

    def descend(
        self,
        model: Model,
        more: Mapping[str, tuple[float, float, float]] | None = None,
        search: SearchOptions = QUICK,
    ) -> Found:
        """Return the best model from the present hyperparameters; `more` are the start and the bounds of others."""
        more = more or {}
        known = {name for name in self.over if name.partition("[")[0] in model.parameters}
        over = {name: bounds for name, bounds in self.over.items() if name in known}
        over |= {name: (low, high) for name, (_, low, high) in more.items()}
        ties = self.minimum.ties if self.minimum is not None else None
        steps = Steps(over, ties, GIVEN_PHYSICS, search, RunOptions(progress=False))
        return steps.descend(model, [{name: start for name, (start, _, _) in more.items()}])

    @functools.cached_property
    def other_kernel(self) -> tuple[str, float]:
        """The kernel that gains most, in words, and its gain in nats; an empty text if none gains anything."""
        best = ("", 0.0)
        for text, kernel, more in _other_kernels(self.base.model):
            try:
                found = self.descend(self.base.model.replace(kernel=kernel), more)
            except PilescoreError:
                continue
            best = max(best, (text, self.energy - float(found.pile.free_energy)), key=lambda each: each[1])
        return best


def _other_kernels(model: Model) -> Iterator[tuple[str, Kernel, dict[str, tuple[float, float, float]]]]:
    """Iterate over rougher kernels, and one with a length for each axis."""
    kernel = model.kernel
    if not isinstance(kernel, RBF | Matern):
        return
    lengths = np.asarray(kernel.bandwidth)
    order = max(max(map(sum, block.indices)) for block in model.blocks)
    for nu in (order + 1.5, order + 0.5):
        if 2.5 <= nu <= 6.5 and not (isinstance(kernel, Matern) and kernel.nu <= nu):
            yield f"the rougher kernel Matern({nu:g})", Matern(nu, lengths), {}
    if isinstance(kernel, RBF):
        yield "a kernel with short and long lengths (RationalQuadratic)", RationalQuadratic(2.0, lengths), {}
    dimension = model.blocks[0].dimension
    if lengths.ndim == 0 and dimension > 1:
        each = np.full(dimension, float(lengths))
        bounds = {f"kernel.bandwidth[{i}]": (each[i], each[i] / 100, each[i] * 100) for i in range(dimension)}
        yield "a length for each axis", dataclasses.replace(kernel, bandwidth=each), bounds


def p_value_of_gain(gain: float, freedom: float, count: int = 1) -> float:
    """Return the probability that some more numbers gain this many nats if they should not be there.

    Twice the gain by `k` numbers follows a `χ²` distribution. Where the noise is estimated from few data, `n` of them
    free, it is `n log(1 + kF/n)` instead, with `F` from an F distribution.
    """
    if not gain > 0:
        return 1.0
    return float(fdtrc(float(count), freedom, freedom / count * math.expm1(min(2.0 * gain / freedom, 500.0))))


def residual_freedom(residuals: Residuals) -> float:
    """Return the expected `Σ e²/s²` of the residuals of data: their number minus what the solution adapts to."""
    rows = residuals.data
    return max(1.0, float(np.sum(residuals.noise[rows] / residuals.left_out_variances[rows])))


def bounds_about(model: Model, minimum: Minimum | None, space: SearchSpace | None) -> dict[str, tuple[Any, Any]]:
    """Return the bounds of searched hyperparameters; wide ones about the present values if no search is known."""
    space = minimum.end.space if minimum is not None and minimum.end is not None else space
    if space is not None:
        return {name: (low, high) for name, low, high in zip(space.names, space.low, space.high, strict=True)}
    # Not the temperatures of physics: with enough noise no equation is wrong.
    roles = {"length", "data_temperature", "scale"}
    values = {name: value for name, value in model.parameters.items() if model.roles[name] in roles}
    return {name: (value / WIDEST_FACTOR, value * WIDEST_FACTOR) for name, value in values.items()}
