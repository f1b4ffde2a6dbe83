"""The most likely solution of a nonlinear model: `solve_nonlinear`, and what it returns."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .errors import (
    InputError,
    NotPositiveDefiniteError,
    PilescoreError,
    as_array,
    as_count,
    as_positive,
    check_coordinates,
    require,
)
from .frames import Frame, frame, linear_model
from .gauss_newton import LOOSE, Iteration, Map, State, Status, Step
from .hessians import Hessian, newton_step
from .model import Model
from .running import progress_bar
from .score import Pile, value
from .system import solve

TOLERANCE, SHARP = 1e-10, 1e-15
"""The squared Newton decrement, relative to `1 + 2Φ`, at which an iteration has converged, unless given, and within a
search: `log det C` moves by its root, and a search needs the score to many digits."""

CONTINUATION = (1e4, 1e2, 1.0)
"""Factors of all noise variances, one after the other."""

ESCAPES = 3
"""How often a point that is stationary but no minimum is left."""

TRIED = 5
"""Random directions that are tried where an equation is missed, before that is taken for the best there is."""

LOWER = 1e-10
"""How much lower, of the objective, a point has to be to go on from there."""

FLAT = 1e-6
"""A curvature that is no more negative, in parts of Gauss–Newton's, is zero but for rounding."""

AGAIN = 4
"""Random starts that are tried within a search where the zero function does not lead to a solution."""

MISSED = (5.0, 0.1)
"""An equation is not satisfied if it is missed by so many noise deviations and by this part of its terms, by the root
mean square over its nodes."""

BUDGET = 100
"""Linearisations of a start at most, unless given."""

FOLLOWED = 15
"""Linearisations that a warm start may take before it is given up for a fresh one."""

Start: TypeAlias = "float | int | Callable[[Any], Any] | Solved"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Solved:
    """The most likely solution of a nonlinear model; made by `solve_nonlinear`.

    Examples
    --------
    A probe that measures `eᵘ`:

    >>> import jax.numpy as jnp, pilescore as ps
    >>> grown = ps.Nonlinear(lambda p, u: jnp.exp(u), of=(ps.identity,))
    >>> model = ps.Model(ps.RBF(0.5), data=ps.observe(grown, values=[2.0, 3.0], at=[0.0, 1.0], noise=0.01))
    >>> solved = ps.solve_nonlinear(model)
    >>> solved.status, solved.converged, solved.iterations < 30
    ('converged', True, True)
    >>> ps.posterior(solved.model).mean([0.0, 1.0]).round(2)  # log 2 and log 3
    array([0.69, 1.1 ])
    >>> abs(solved.pile.value - ps.pile(solved.model).value) < 1e-10, abs(solved.gap) < 1e-8
    (True, True)
    """

    model: Model
    """The model linearised there: ready for `pile`, `posterior`, `losses`, `accuracy` and `diagnose`."""
    nonlinear: Model
    """The model as it was given."""
    pile: Pile
    """PILE in its linearised form, that of `model`."""
    laplace: float
    """PILE in Laplace's form: the misfit, the norm of the solution and `log det 2πC`, over N."""
    status: Status
    """`converged`; `stagnated`, at rounding; `unsatisfied`: a minimum at which an equation does not hold; `not a
    minimum`; `stuck`: no step goes down; `diverged`; or `out of iterations`."""
    reason: str
    """The status in a sentence."""
    steps: tuple[Step, ...]
    """All linearisations of the start that was best."""
    factorisations: int
    """Of the covariance, over all starts."""
    state: State
    """The solution by the coefficients of its functionals and their values, for what goes on from there."""

    @property
    def converged(self) -> bool:
        """Whether the equation is solved as far as noise and rounding tell."""
        return self.status in ("converged", "stagnated")

    @property
    def iterations(self) -> int:
        """The linearisations of the start that was best."""
        return len(self.steps)

    @property
    def gap(self) -> float:
        """`laplace − pile`: the squared Newton decrement over N, zero at the exact minimum."""
        return self.laplace - self.pile.value

    @functools.cached_property
    def second_order(self) -> float:
        """What the exact Hessian would add to PILE: `log det(I − ΣM)/N`; NaN where it is not positive definite.

        Computed when first asked for, by a factorisation as large as the number of values that enter nonlinearly.
        """
        whole, system = frame(self.nonlinear), solve(self.model)
        predicted, slopes = whole.linearised(self.state.values)
        last = self.steps[-1]
        parts = (self.state, predicted, slopes, system, system.stacked_alpha, last.objective, last.decrement)
        found = Map(whole, *parts, self.status, self.reason, self.steps)
        return Hessian(found).log_determinant() / self.pile.size

    def __float__(self) -> float:
        return self.pile.value

    def __repr__(self) -> str:
        return (
            f"Solved({self.status} after {self.iterations} linearisations, PILE {self.pile.value:.6g}, "
            f"gap {self.gap:.1e})"
        )


def solve_nonlinear(
    model: Model,
    *,
    starts: int | Start | Sequence[Start] = 1,
    seed: int = 0,
    tolerance: float | int = TOLERANCE,
    max_iterations: int = BUDGET,
    continuation: Sequence[float] = CONTINUATION,
    progress: bool | None = None,
) -> Solved:
    """Return the most likely solution of a model with nonlinear operators, and the model linearised there.

    Gauss–Newton in dual form with an Armijo line search. At first all noise variances are larger by the factors of
    `continuation`, each level starting from the one before. A point that turns out to be no minimum is left along
    the direction of negative curvature.

    Parameters
    ----------
    model
        The model. A linear one is solved in one step.
    starts
        How many: the zero function (or, where `P` is not defined there, the most likely one by the linear blocks), then
        random functions by the prior. Or the starts themselves: functions of the point (with `jax.numpy`), numbers, or
        results of an earlier call. The one with the lowest objective is returned.
    seed
        Of the random functions.
    tolerance
        It has converged when the squared Newton decrement is below this times `1 + 2Φ`, with `Φ` the negative log
        posterior up to a constant.
    max_iterations
        Linearisations of each start.
    continuation
        Factors of the noise variances, falling to one. An earlier result as a start goes on at one directly.
    progress
        Show a progress bar, of linearisations: by default on a terminal only.

    Examples
    --------
    `u'' = u² − 1` with zero ends; the residual of the most likely solution is small:

    >>> import numpy as np, pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> equation = ps.Nonlinear(lambda p, u, u_xx: u_xx - u**2, of=(ps.identity, dx**2))
    >>> model = ps.Model(
    ...     kernel=ps.RBF(bandwidth=0.3),
    ...     physics=[
    ...         ps.impose(equation, -1.0, on=line.interior(ps.GaussLegendre(12)), noise=1e-3),
    ...         ps.impose(ps.identity, 0.0, on=line.boundary(ps.GaussLegendre(1)), noise=1e-4),
    ...     ],
    ... )
    >>> solved = ps.solve_nonlinear(model)
    >>> solved.status, solved.gap < 1e-8
    ('converged', True)
    >>> ps.posterior(solved.model).mean([0.5]).round(3)
    array([0.124])
    """
    require(isinstance(model, Model), "model", model, "a ps.Model")
    small, budget = as_positive(tolerance, "tolerance"), as_count(max_iterations, "max_iterations")
    levels = tuple(float(level) for level in as_array(continuation, "continuation").ravel())
    falling = len(levels) > 0 and levels[-1] == 1.0 and all(a > b for a, b in itertools.pairwise(levels))
    require(falling, "continuation", continuation, "factors that fall to 1, as (1e4, 1e2, 1.0)")
    given = _starts(model, starts)
    whole = frame(model)
    if not any(part.bent for part in whole.parts):
        levels = (1.0,)
    draws = _draws(whole, given, seed) if isinstance(given, int) else [_start(whole, each) for each in given]
    best: Map | None = None
    failure: PilescoreError | None = None
    count = 0
    with progress_bar(0, "solve", progress) as bar:
        for start, warm in draws:
            iteration = Iteration(whole, small, budget, True, newton_step, bar.update)
            try:
                found = _minimum(iteration, start, (1.0,) if warm else levels)
            except (InputError, NotPositiveDefiniteError) as problem:  # P is not defined there, or far too steep
                failure, found = failure or problem, None
                if isinstance(given, int) and start is draws[0][0]:
                    draws += [(state, False) for state in _by_linear_blocks(whole)]
            count += len(iteration.steps)
            if found is not None and (best is None or _rank(found) < _rank(best)):
                best = found
    if best is None:
        assert failure is not None
        raise failure
    best.system.warn_if_imprecise(stacklevel=3)
    return frozen(best, count)


def followed(model: Model, before: Float[np.ndarray, " F"] | None, *, explain: bool) -> Map:
    """Return the most likely solution of a model: from the values of a similar one, or else afresh.

    Where that ends badly, other starts are tried: the zero function, then random ones.
    """
    whole = frame(model)
    zero = State(np.zeros(whole.size), np.zeros(whole.size))
    starts: list[tuple[State | Float[np.ndarray, " F"], int, tuple[float, ...]]] = [(zero, BUDGET, CONTINUATION)]
    if before is not None and len(before) == whole.size:
        starts.insert(0, (before, FOLLOWED, (1.0,)))
    best: Map | None = None
    failure: PilescoreError | None = None
    while starts:
        start, budget, levels = starts.pop(0)
        try:
            found = _minimum(Iteration(whole, SHARP, budget, explain, newton_step), start, levels)
            best = found if best is None or _rank(found) < _rank(best) else best
            if _is_good(best):
                return best
        except (InputError, NotPositiveDefiniteError) as problem:
            failure = failure or problem
            if start is zero and isinstance(problem, NotPositiveDefiniteError):
                raise  # with all that noise: no other start will do
            if start is zero:
                starts += [(state, BUDGET, CONTINUATION) for state in _by_linear_blocks(whole)]
        if start is zero:
            starts += [(state, BUDGET, CONTINUATION) for state in _random(whole, AGAIN, 0)]
    if best is None:
        assert failure is not None
        raise failure
    return best


def frozen(found: Map, factorisations: int) -> Solved:
    """Return what a user sees of the end of an iteration."""
    whole = found.frame
    targets = whole.model.values - found.predicted + whole.forward(found.slopes, found.state.values)
    linear = linear_model(whole, found.slopes, targets, found.state.coefficients)
    score = value(found.system, False, False, warn=False)
    n = score.size
    laplace = 2.0 * found.objective / n + score.complexity + score.constant
    parts = found.status, found.reason, found.steps, factorisations, found.state
    return Solved(linear, whole.model, score, laplace, *parts)


def _is_good(found: Map) -> bool:
    """Whether there is no reason to look for a better solution."""
    near = found.decrement <= LOOSE * (1.0 + 2.0 * abs(found.objective))
    return found.status == "converged" or (found.status == "stagnated" and near)


def _rank(found: Map) -> tuple[bool, float]:
    return found.status not in ("converged", "stagnated"), found.objective


def _starts(model: Model, starts: Any) -> int | list[Any]:
    if isinstance(starts, int | np.integer):
        return as_count(starts, "starts")
    given = list(starts) if isinstance(starts, list | tuple) else [starts]
    expected = "how many, or a list of functions of the point, numbers, or results of ps.solve_nonlinear"
    require(len(given) > 0, "starts", starts, expected)
    for each in given:
        number = isinstance(each, float | int | np.floating | np.integer) and math.isfinite(each)
        require(number or callable(each) or isinstance(each, Solved), "starts", each, expected)
        if callable(each):
            check_coordinates(each, model.blocks[0].points[0], "starts")
        if isinstance(each, Solved):
            same = len(each.nonlinear.blocks) == len(model.blocks) and all(
                a.size == b.size and a.is_nonlinear == b.is_nonlinear
                for a, b in zip(each.nonlinear.blocks, model.blocks, strict=True)
            )
            require(same, "starts", each, "a result for the same blocks of observations")
    return given


def _start(whole: Frame, each: Any) -> tuple[State | Float[np.ndarray, " F"], bool]:
    """Return where to start, and whether that is warm."""
    if isinstance(each, Solved):
        same = len(each.state.values) == whole.size
        require(same, "starts", each, "a result for a model of the same operators")
        return each.state.values, True
    function = each if callable(each) else (lambda p: jnp.asarray(float(each)) + 0.0 * p[0])
    return whole.start(function), False


def _draws(whole: Frame, count: int, seed: int) -> list[tuple[State | Float[np.ndarray, " F"], bool]]:
    """Return the zero function, and random functions of about the size that the prior gives them."""
    zero = State(np.zeros(whole.size), np.zeros(whole.size))
    return [(state, False) for state in (zero, *_random(whole, count - 1, as_count(seed, "seed", least=0)))]


def _by_linear_blocks(whole: Frame) -> list[State]:
    """Return the most likely function by the linear blocks alone, if there are any: where zero is no start."""
    model, parts = whole.model, {}
    for role in ("data", "physics"):
        parts[role] = tuple(block for block in getattr(model, role) if not block.is_nonlinear)
    if not any(parts.values()):
        return []
    linear = copy.copy(model)
    for role, blocks in parts.items():
        object.__setattr__(linear, role, blocks)
    coefficients = np.zeros(whole.size)
    alpha = solve(linear, explain=False).stacked_alpha
    coefficients[np.concatenate([np.arange(each.start, each.stop) for each in whole.linear_entries])] = alpha
    return [State(coefficients, whole.product(coefficients))]


def _random(whole: Frame, count: int, seed: int) -> list[State]:
    """Return random functions of about the size that the prior gives them."""
    found, rng = [], np.random.default_rng(seed)
    deviation = whole.deviations
    scale = np.divide(1.0, deviation, out=np.zeros(whole.size), where=deviation > 0)
    for _ in range(count):
        coefficients = scale * rng.standard_normal(whole.size)
        values = whole.product(coefficients)
        size = float(np.sqrt(np.mean((scale * values) ** 2))) or 1.0
        found.append(State(coefficients / size, values / size))
    return found


def _minimum(iteration: Iteration, start: State | Float[np.ndarray, " F"], levels: tuple[float, ...]) -> Map:
    """Run Gauss–Newton, and leave points that are no minimum along the direction of negative curvature."""
    found = iteration.run(start, levels)
    for left in range(ESCAPES, -1, -1):
        if not found.converged:
            return dataclasses.replace(found, reason="; ".join(filter(None, [found.reason, _missed(found)])))
        largest, direction = Hessian(found).most_negative()
        bent, missed = largest > 1.0 + FLAT, _missed(found)
        directions = _random(found.frame, TRIED, 0) if missed else []
        if bent and direction is not None:
            directions = [direction]
        state = _beyond(iteration, found, directions) if left else None
        if state is None and bent:
            reason = f"stationary, but the exact Hessian has the curvature {1.0 - largest:.1e} of Gauss–Newton's"
            return dataclasses.replace(found, status="not a minimum", reason=reason)
        if state is None and missed:
            why = "no step nearby goes down: there may be no solution, or other starts may find it"
            return dataclasses.replace(found, status="unsatisfied", reason=f"{missed}; {why}")
        if state is None:
            return found
        found = iteration.run(state, (1.0,))
    return found


def _beyond(iteration: Iteration, found: Map, directions: Sequence[State]) -> State | None:
    """Return the lowest point along directions on both sides, by steps of all lengths, or None if none is lower."""
    lengths = [sign * 10.0**power for power in np.arange(-4.0, 4.5, 0.5) for sign in (1.0, -1.0)]
    states = [found.state.towards(each, length) for each in directions for length in lengths]
    objectives = [iteration.objective(state, 1.0) for state in states]
    lowest = min(range(len(states)), key=objectives.__getitem__, default=None)
    if lowest is None or not objectives[lowest] < found.objective - LOWER * abs(found.objective):
        return None
    return states[lowest]


def _missed(found: Map) -> str:
    """Return, in words, which equation is missed by far; nothing if none is."""
    model = found.frame.model
    residual, noise = model.values - found.predicted, model.noise
    for part in found.frame.parts:
        rows = part.rows
        missed = float(np.mean(residual[rows] ** 2))
        deviations = float(np.sqrt(np.mean(residual[rows] ** 2 / noise[rows])))
        if deviations <= MISSED[0]:
            continue
        terms = np.abs(model.values[rows]) + np.abs(found.predicted[rows])
        if missed > MISSED[1] ** 2 * float(np.mean(terms**2)):
            terms = terms + found.frame.terms(part, found.state.coefficients)
        share = math.sqrt(missed / max(float(np.mean(terms**2)), 1e-300))
        if share > MISSED[1]:
            label = next(name for name, block in zip(model.labels, model.blocks, strict=True) if block is part.block)
            return f"{label!r} is missed by {deviations:.0f} noise deviations, {100 * share:.0f}% of its terms"
    return ""
