"""The most likely solution of a nonlinear model: `solve_nonlinear` and its result."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..errors import (
    InputError,
    NotPositiveDefiniteError,
    PilescoreError,
    as_array,
    as_count,
    as_positive,
    check_coordinates,
    require,
)
from ..model import Model
from ..parallel import progress_bar
from ..solvers import solve, with_tolerances
from .gauss_newton import LOOSE_DECREMENT, DualExpansion, GaussNewton, GaussNewtonStep, MapEstimate, StartPoint, Status
from .hessian import Hessian, newton_step
from .linearisation import Functionals, functionals_of, linear_model

TOLERANCE, SEARCH_TOLERANCE, NEAR_TOLERANCE = 1e-10, 1e-15, 1e-9
"""The squared Newton decrement, relative to `1 + 2Φ`, at which an iteration has converged: by default, within a search,
and for values near a solution. `log det C` changes by the root of the decrement, and a search needs many digits of the
score and of its gradient."""

CONTINUATION = (1e4, 1e2, 1.0)
"""The successive factors of all noise variances."""

LOOSER = (100.0, 10.0)
"""The successive factors of the tolerances of exact equations. Unlike `CONTINUATION` they leave the data their weight,
which keeps the solution near the data while the valley around the exact solutions narrows."""

MAX_ESCAPES = 3
"""How many times the iteration may leave a stationary point that is not a minimum."""

RANDOM_DIRECTIONS = 5
"""The number of random directions tried at a minimum where an equation does not hold."""

ESCAPE_DECREASE = 1e-10
"""The relative decrease of the objective that justifies moving on from a stationary point."""

FLAT_CURVATURE = 1e-6
"""A negative curvature below this fraction of Gauss–Newton's is attributed to rounding."""

RANDOM_STARTS = 4
"""The number of random starts within a search if the zero function does not lead to a solution."""

MISSED_DEVIATIONS, MISSED_FRACTION = 5.0, 0.1
"""An equation is unsatisfied if its root mean square residual exceeds both this many noise deviations and this fraction
of its terms."""

MAX_EVALUATIONS = 100
"""The default limit of linearisations for each start."""

WARM_EVALUATIONS, FRESH_EVALUATIONS = 30, 100
"""The limit of linearisations for a warm start within a search, and for the fresh start that replaces it. A search that
cannot solve a model takes a shorter step, which costs less."""

NEAR_EVALUATIONS = 12
"""The limit for a warm start that goes straight to the tolerance of exact equations."""

PASSING_EVALUATIONS = 30
"""The limit at each looser tolerance: the solution there only has to lead near the next one."""

Start: TypeAlias = "float | int | Callable[[Any], Any] | Solution"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Solution:
    """The most likely solution of a nonlinear model, as returned by `solve_nonlinear`.

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
    >>> abs(solved.linearised - ps.pile(solved.model).value) < 1e-10, abs(solved.gap) < 1e-8
    (True, True)
    """

    model: Model
    """The model linearised at the solution, ready for `pile`, `posterior`, `losses`, `accuracy` and `diagnose`."""
    nonlinear: Model
    """The nonlinear model as it was given."""
    linearised: float
    """PILE in linearised form: the PILE of `model`."""
    laplace: float
    """PILE in Laplace's form: the misfit, the norm of the solution and `log det 2πC`, over N."""
    status: Status
    """`converged`; `stagnated` at rounding; `unsatisfied`: a minimum at which an equation does not hold; `not a
    minimum`; `stuck`: no step lowers the objective; `diverged`; or `out of evaluations`."""
    reason: str
    """The status in a sentence."""
    steps: tuple[GaussNewtonStep, ...]
    """All linearisations of the best start."""
    factorisations: int
    """The number of covariance factorisations over all starts."""
    expansion: DualExpansion
    """The solution by its coefficients and functional values, for use as a start."""

    @property
    def converged(self) -> bool:
        """Whether the equation is solved up to noise and rounding."""
        return self.status in ("converged", "stagnated")

    @property
    def iterations(self) -> int:
        """The number of linearisations of the best start."""
        return len(self.steps)

    @property
    def gap(self) -> float:
        """`laplace − linearised`: the squared Newton decrement over N, zero at the exact minimum."""
        return self.laplace - self.linearised

    @functools.cached_property
    def second_order(self) -> float:
        """The change of PILE under the exact Hessian, `log det(I − ΣM)/N`; NaN if it is not positive definite.

        It is computed on first access, by a factorisation of the size of the values that enter nonlinearly.
        """
        functionals, system = functionals_of(self.nonlinear), solve(self.model)
        predicted, slopes = functionals.linearise(self.expansion.values)
        last = self.steps[-1]
        linearisation = (predicted, slopes, system, system.stacked_alpha, last.objective, last.decrement)
        ending = (self.status, self.reason, self.steps)
        estimate = MapEstimate(functionals, self.expansion, *linearisation, *ending)
        return Hessian(estimate).log_determinant() / self.model.size

    def __float__(self) -> float:
        return self.linearised

    def __repr__(self) -> str:
        return (
            f"Solution({self.status} after {self.iterations} linearisations, PILE {self.linearised:.6g}, "
            f"gap {self.gap:.1e})"
        )


def solve_nonlinear(
    model: Model,
    *,
    starts: int | Start | Sequence[Start] = 1,
    seed: int = 0,
    tolerance: float | int = TOLERANCE,
    max_evaluations: int = MAX_EVALUATIONS,
    continuation: Sequence[float] = CONTINUATION,
    progress: bool | None = None,
) -> Solution:
    """Return the most likely solution of a model with nonlinear operators, and the model linearised there.

    The method is Gauss–Newton in dual form with an Armijo line search. All noise variances are first inflated by the
    factors in `continuation`; each level starts from the solution of the previous one. If a stationary point is not a
    minimum, the iteration leaves it along the direction of negative curvature.

    Parameters
    ----------
    model
        The model. A linear model is solved in one step.
    starts
        The number of starts: first the zero function (if `P` is not defined there, the most likely function given the
        linear blocks), then random functions from the prior. Or the starts themselves: functions of the point (with
        `jax.numpy`), numbers, or results of an earlier call. The solution with the lowest objective is returned.
    seed
        The seed of the random functions.
    tolerance
        The iteration has converged when the squared Newton decrement is below this times `1 + 2Φ`, where `Φ` is the
        negative log posterior up to a constant.
    max_evaluations
        The largest number of linearisations for each start.
    continuation
        Decreasing factors of the noise variances that end at one. A start from an earlier result uses the last only.
    progress
        Whether to show a progress bar of linearisations; by default only on a terminal.

    Examples
    --------
    `u'' = u² − 1` with zero boundary values:

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
    decrement, budget = as_positive(tolerance, "tolerance"), as_count(max_evaluations, "max_evaluations")
    levels = tuple(float(level) for level in as_array(continuation, "continuation").ravel())
    decreasing = len(levels) > 0 and levels[-1] == 1.0 and all(a > b for a, b in itertools.pairwise(levels))
    require(decreasing, "continuation", continuation, "factors that decrease to 1, such as (1e4, 1e2, 1.0)")
    checked = _checked_starts(model, starts)
    model = with_tolerances(model)
    functionals = functionals_of(model)
    if not any(nonlinear.curved for nonlinear in functionals.nonlinear_blocks):
        levels = (1.0,)
    queue: list[tuple[StartPoint, bool]]
    if isinstance(checked, int):
        random = _random(functionals, checked - 1, as_count(seed, "seed", least=0))
        queue = [(start, False) for start in (_zero(functionals), *random)]
    else:
        queue = [_as_start(functionals, start) for start in checked]
    with progress_bar(0, "solve", progress) as bar:
        attempts = _Attempts(functionals, decrement, True, bar.update)
        for start, warm in queue:
            error = attempts.run(start, budget, (1.0,) if warm else levels)
            if error is not None and isinstance(checked, int) and start is queue[0][0]:
                queue += [(fallback, False) for fallback in _by_linear_blocks(functionals)]
    best = attempts.result()
    best.system.warn_if_imprecise(stacklevel=3)
    return as_solution(best, attempts.count)


def solve_or_follow(
    model: Model,
    before: Float[np.ndarray, " F"] | None,
    *,
    explain: bool,
    near: bool = False,
) -> MapEstimate:
    """Return the most likely solution of a model, starting from the functional values of a similar model if given.

    If that fails, the zero function follows; if there is nothing to start from, then random functions. If the similar
    model is `near`, the solution is found faster, to the digits that a value needs; a gradient needs more.
    """
    functionals = functionals_of(model)
    attempts = _Attempts(functionals, NEAR_TOLERANCE if near else SEARCH_TOLERANCE, explain)
    if before is not None and len(before) == functionals.size:
        if near and attempts.is_curved_and_exact:  # the looser tolerances of exact equations would be a detour
            attempts.run(before, NEAR_EVALUATIONS, (1.0,), looser=())
            if attempts.is_good():
                return attempts.result()
        attempts.run(before, WARM_EVALUATIONS, (1.0,))
        if attempts.is_good():
            return attempts.result()
        attempts.run(_zero(functionals), FRESH_EVALUATIONS, CONTINUATION)
        return attempts.result()
    error = attempts.run(_zero(functionals), MAX_EVALUATIONS, CONTINUATION)
    if isinstance(error, NotPositiveDefiniteError):
        raise error  # it failed even with inflated noise: no other start can help
    if not attempts.is_good():
        fallbacks = [] if error is None else _by_linear_blocks(functionals)
        for start in (*fallbacks, *_random(functionals, RANDOM_STARTS, 0)):
            attempts.run(start, MAX_EVALUATIONS, CONTINUATION)
            if attempts.is_good():
                break
    return attempts.result()


@dataclasses.dataclass(eq=False)
class _Attempts:
    """Gauss–Newton from several starts. The best estimate and the first failure are kept."""

    functionals: Functionals
    tolerance: float
    explain: bool
    update: Callable[[int], object] = lambda count: None
    best: MapEstimate | None = None
    failure: PilescoreError | None = None
    count: int = 0
    """The number of factorisations."""

    def run(
        self, start: StartPoint, budget: int, levels: tuple[float, ...], looser: tuple[float, ...] = LOOSER
    ) -> PilescoreError | None:
        """Run from a start; return the error if `P` is not defined there or far too steep."""
        for factor in (*looser, 1.0) if self.is_curved_and_exact else (1.0,):
            loosened = _loosened(self.functionals, factor)
            tolerance = self.tolerance if factor == 1.0 else LOOSE_DECREMENT
            limit = budget if factor == 1.0 else min(budget, PASSING_EVALUATIONS)
            iteration = GaussNewton(loosened, tolerance, limit, self.explain, newton_step, self.update)
            try:
                # Only the last one has to be a minimum.
                estimate = (_minimum if factor == 1.0 else GaussNewton.run)(iteration, start, levels)
            except (InputError, NotPositiveDefiniteError) as error:
                self.failure = self.failure or error
                return error
            finally:
                self.count += len(iteration.steps)
            start, levels = estimate.expansion, (1.0,)
        if self.best is None or _rank(estimate) < _rank(self.best):
            self.best = estimate
        return None

    @property
    def is_curved_and_exact(self) -> bool:
        """Whether a nonlinear equation is exact: the objective is then a narrow, curved valley."""
        return any(each.block.exact and each.curved for each in self.functionals.nonlinear_blocks)

    def is_good(self) -> bool:
        """Whether there is no reason to look for a better solution."""
        if self.best is None:
            return False
        near = self.best.decrement <= LOOSE_DECREMENT * (1.0 + 2.0 * abs(self.best.objective))
        return self.best.status == "converged" or (self.best.status == "stagnated" and near)

    def result(self) -> MapEstimate:
        """Return the best estimate, or raise the first failure if there is none."""
        if self.best is None:
            assert self.failure is not None
            raise self.failure
        return self.best


def _loosened(functionals: Functionals, factor: float) -> Functionals:
    """Return the functionals of the model with tolerances of exact blocks that are larger by a factor."""
    if factor == 1.0:
        return functionals
    model = functionals.model
    physics = [b.within(factor / np.sqrt(b.weights)) if b.exact else b for b in model.physics]
    changed = model.replace(physics=physics)
    blocks = iter([block for block in changed.blocks if block.is_nonlinear])
    nonlinear = tuple(dataclasses.replace(each, block=next(blocks)) for each in functionals.nonlinear_blocks)
    return dataclasses.replace(functionals, model=changed, nonlinear_blocks=nonlinear)


def as_solution(estimate: MapEstimate, factorisations: int) -> Solution:
    """Return an estimate in the form that users see."""
    functionals = estimate.functionals
    linear_part = functionals.forward(estimate.slopes, estimate.expansion.values)
    targets = functionals.model.values - estimate.predicted + linear_part
    linear = linear_model(functionals, estimate.slopes, targets, estimate.expansion.coefficients)
    system, n = estimate.system, functionals.model.size
    complexity = system.logdet.value / n + math.log(2.0 * math.pi)
    linearised, laplace = system.quadratic / n + complexity, 2.0 * estimate.objective / n + complexity
    ending = estimate.status, estimate.reason, estimate.steps, factorisations, estimate.expansion
    return Solution(linear, functionals.model, linearised, laplace, *ending)


def _rank(estimate: MapEstimate) -> tuple[bool, float]:
    """Return a key that sorts solutions before failures, then by the objective."""
    return estimate.status not in ("converged", "stagnated"), estimate.objective


def _checked_starts(model: Model, starts: Any) -> int | list[Any]:
    if isinstance(starts, int | np.integer):
        return as_count(starts, "starts")
    every = list(starts) if isinstance(starts, list | tuple) else [starts]
    expected = "a count, or a list of functions of the point, numbers, or results of ps.solve_nonlinear"
    require(len(every) > 0, "starts", starts, expected)
    for start in every:
        number = isinstance(start, float | int | np.floating | np.integer) and math.isfinite(start)
        require(number or callable(start) or isinstance(start, Solution), "starts", start, expected)
        if callable(start):
            check_coordinates(start, model.blocks[0].points[0], "starts")
        if isinstance(start, Solution):
            same = len(start.nonlinear.blocks) == len(model.blocks) and all(
                a.size == b.size and a.is_nonlinear == b.is_nonlinear
                for a, b in zip(start.nonlinear.blocks, model.blocks, strict=True)
            )
            require(same, "starts", start, "a result for the same blocks of observations")
    return every


def _as_start(functionals: Functionals, start: Any) -> tuple[StartPoint, bool]:
    """Return the functional values of a start, and whether it is an earlier solution."""
    if isinstance(start, Solution):
        same = len(start.expansion.values) == functionals.size
        require(same, "starts", start, "a result for a model with the same operators")
        # Values only: under other hyperparameters the coefficients would belong to another function.
        return start.expansion.values, True
    function = start if callable(start) else (lambda p: jnp.asarray(float(start)) + 0.0 * p[0])
    return functionals.values_of(function), False


def _zero(functionals: Functionals) -> DualExpansion:
    return DualExpansion(np.zeros(functionals.size), np.zeros(functionals.size))


def _by_linear_blocks(functionals: Functionals) -> list[DualExpansion]:
    """Return the most likely function given the linear blocks alone, if there are any: a start where zero is none."""
    model = functionals.model
    data, physics = (tuple(b for b in blocks if not b.is_nonlinear) for blocks in (model.data, model.physics))
    if not (data or physics):
        return []
    linear = model.replace(data=data, physics=physics)
    coefficients = np.zeros(functionals.size)
    alpha = solve(linear, explain=False).stacked_alpha
    coefficients[np.concatenate([np.arange(entry.start, entry.stop) for entry in functionals.linear_entries])] = alpha
    return [DualExpansion(coefficients, functionals.product(coefficients))]


def _random(functionals: Functionals, count: int, seed: int) -> list[DualExpansion]:
    """Return random functions of about the size that the prior gives them."""
    # A draw from the prior would need a factor of Θ, which is larger than C and may be singular. Random coefficients
    # instead, scaled so that the functionals have their prior deviations on average.
    functions, rng = [], np.random.default_rng(seed)
    deviation = functionals.deviations
    scale = np.divide(1.0, deviation, out=np.zeros(functionals.size), where=deviation > 0)
    for _ in range(count):
        coefficients = scale * rng.standard_normal(functionals.size)
        values = functionals.product(coefficients)
        size = float(np.sqrt(np.mean((scale * values) ** 2))) or 1.0
        functions.append(DualExpansion(coefficients / size, values / size))
    return functions


def _minimum(iteration: GaussNewton, start: StartPoint, levels: tuple[float, ...]) -> MapEstimate:
    """Run Gauss–Newton, and leave stationary points that are not minima along directions of negative curvature."""
    estimate = iteration.run(start, levels)
    for escapes_left in range(MAX_ESCAPES, -1, -1):
        missed = _missed(estimate)
        if not estimate.converged:
            return dataclasses.replace(estimate, reason="; ".join(filter(None, [estimate.reason, missed])))
        # Gauss–Newton's Hessian is always positive definite, so its convergence cannot exclude a saddle point.
        largest, direction = Hessian(estimate).most_negative()
        saddle = largest > 1.0 + FLAT_CURVATURE
        directions = _random(estimate.functionals, RANDOM_DIRECTIONS, 0) if missed else []
        if saddle and direction is not None:
            directions = [direction]
        lower = _lower_point(iteration, estimate, directions) if escapes_left else None
        if lower is None and saddle:
            reason = f"stationary, but the exact Hessian has the curvature {1.0 - largest:.1e} of Gauss–Newton's"
            return dataclasses.replace(estimate, status="not a minimum", reason=reason)
        if lower is None and missed:
            why = "no nearby step lowers the objective: there may be no solution, or other starts may find it"
            return dataclasses.replace(estimate, status="unsatisfied", reason=f"{missed}; {why}")
        if lower is None:
            return estimate
        estimate = iteration.run(lower, (1.0,))
    return estimate


def _lower_point(
    iteration: GaussNewton, estimate: MapEstimate, directions: Sequence[DualExpansion]
) -> DualExpansion | None:
    """Return the lowest of many points on both sides along the directions, or None if none is below the estimate."""
    lengths = [sign * 10.0**power for power in np.arange(-4.0, 4.5, 0.5) for sign in (1.0, -1.0)]
    points = [estimate.expansion.towards(direction, length) for direction in directions for length in lengths]
    objectives = [iteration.objective(point, 1.0) for point in points]
    lowest = min(range(len(points)), key=objectives.__getitem__, default=None)
    if lowest is None or not objectives[lowest] < estimate.objective - ESCAPE_DECREASE * abs(estimate.objective):
        return None
    return points[lowest]


def _missed(estimate: MapEstimate) -> str:
    """Describe the first equation that the estimate does not satisfy; return an empty string if there is none."""
    model = estimate.functionals.model
    residual, noise = model.values - estimate.predicted, model.noise
    for nonlinear in estimate.functionals.nonlinear_blocks:
        rows = nonlinear.rows
        square = float(np.mean(residual[rows] ** 2))
        deviations = float(np.sqrt(np.mean(residual[rows] ** 2 / noise[rows])))
        if deviations <= MISSED_DEVIATIONS:
            continue
        # Value and prediction may be small because large terms cancel, as in u_t + u u_x ≈ 0: then compare the
        # residual with the terms themselves, which cost a product with the kernel.
        terms = np.abs(model.values[rows]) + np.abs(estimate.predicted[rows])
        if square > MISSED_FRACTION**2 * float(np.mean(terms**2)):
            terms = terms + estimate.functionals.term_sizes(nonlinear, estimate.expansion.coefficients)
        fraction = math.sqrt(square / max(float(np.mean(terms**2)), 1e-300))
        if fraction > MISSED_FRACTION:
            pairs = zip(model.labels, model.blocks, strict=True)
            label = next(name for name, block in pairs if block is nonlinear.block)
            return f"{label!r} is missed by {deviations:.0f} noise deviations, {100 * fraction:.0f}% of its terms"
    return ""
