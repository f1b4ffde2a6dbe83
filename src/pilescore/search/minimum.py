"""The minimum of PILE over hyperparameters, by its exact gradient and from several starts."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from ..errors import InputError, PilescoreError, PrecisionWarning, UnresolvedWarning, require
from ..inference import Pile, Score, WarmStart, as_score, at_profiled_scale, check_exact, contradictory, systems_of
from ..model import Model
from ..nonlinear import Solution
from ..parallel import cluster_errors, progress_bar
from ..solvers import contradiction
from ..storage import DatasetFile
from .curvature import Curvature
from .degrees_of_freedom import degrees_of_freedom, degrees_text
from .derived import Derived, derived_value
from .descent import DescentResult, Status
from .fingerprint import fingerprint, function_values, ten_digits
from .nodes import fine_enough, floored
from .objective import EvaluationLog, Objective
from .options import RunOptions, SearchOptions, check_options
from .resolution import Resolution
from .space import SearchSpace, Side, Ties, search_space, start_points
from .standard_errors import coefficient_information, searched_covariance
from .steps import Found, Steps, is_contestable


@dataclasses.dataclass(frozen=True, eq=False)
class SearchEnd:
    """Where a search ended."""

    space: SearchSpace
    """Its coordinates and bounds, and the model with the last nodes and tolerances."""
    u: Float[np.ndarray, " p"]
    """The coordinates of the minimum."""
    warm_start: WarmStart
    """Where nonlinear models are solved from."""


@dataclasses.dataclass(frozen=True, eq=False)
class Minimum:
    """The result of `minimize`: the best model found from all starts, and how it was found.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 20)
    >>> noisy = np.sin(6 * x) + 0.1 * np.random.default_rng(0).standard_normal(20)
    >>> model = ps.Model(ps.RBF(0.5), data=ps.observe(ps.identity, noisy, at=x), gamma=0.02)
    >>> best = ps.minimize(model, over={"kernel.bandwidth": (0.05, 5.0), "gamma": (0.015, 1.0)})
    >>> best
    Minimum(PILE -0.837077, converged after ... evaluations
      gamma = 0.015  at its lower bound
      kernel.bandwidth = 0.29337 ± 0.047)
    >>> best.converged, dict(best.at_bounds)
    (True, {'gamma': 'lower'})
    >>> abs(best.pile.value - ps.pile(best.model).value) < 1e-12  # best.model is the one to use
    True
    """

    model: Model
    """The model with the chosen hyperparameters."""
    pile: Pile
    """Its score."""
    values: Mapping[str, float]
    """The chosen hyperparameters."""
    standard_errors: Mapping[str, float]
    """Their standard errors; NaN at a bound, or without a curvature. Those of coefficients are as in nonlinear least
    squares: from the first derivatives of the model and, if the noise of the data was searched too, with `n − p`
    degrees of freedom. The others are from the curvature of the evidence."""
    at_bounds: Mapping[str, Side]
    """Hyperparameters that ended at a bound: beyond it the evidence is higher."""
    curvature: Curvature | None
    """None if all hyperparameters are at a bound, if it was not requested, or if a neighbour cannot be scored."""
    descents: tuple[DescentResult, ...]
    """One for each start."""
    status: Status
    """How the best descent ended: `converged`, `stalled`, `hindered`, `out of evaluations` or `interrupted`."""
    reason: str
    """The status in a sentence."""
    evaluations: int
    """The number of scores with gradient, including those for the curvature and those read from disk."""
    score: Score
    """What was scored. If it is profiled, η was found too, in closed form."""
    why: str = ""
    """What was scored, and given what, in words."""
    resolution: Resolution | None = None
    """Whether the nodes of exact equations suffice; None if no equation is exact."""
    covariance: Float[np.ndarray, "p p"] | None = None
    """The covariance of the chosen hyperparameters, in the order of `values`: its diagonal holds the squares of
    `standard_errors`. NaN for those at a bound; None without a curvature."""
    degrees_of_freedom: float | None = None
    """`n − p`, if coefficients and the noise of data were searched together: `n` data with a searched noise, minus the
    coefficients and the free constants of the solution (in general the trace of the smoother). None if the noise was
    given, or ended at a bound: standard errors then follow from the given noise."""
    ties: Ties = dataclasses.field(default_factory=dict)
    """The hyperparameters that follow others, as given to `minimize`."""
    end: SearchEnd | None = dataclasses.field(default=None, repr=False)
    """Where the search ended, in its own coordinates."""

    def derived(self, function: Callable[[Mapping[str, Any]], Any]) -> Derived:
        """Return a function of hyperparameters at the minimum, with its standard error by the delta method.

        The variance is `gᵀVg`, with the gradient `g` by the searched values and their `covariance` `V`. It is right to
        first order: the function should be nearly linear within a few standard errors.

        Parameters
        ----------
        function
            A JAX function of the model's hyperparameters by name, known and searched ones: `lambda p: 4 * p["k"] *
            p["c"]`. Its value is one number.

        Examples
        --------
        >>> import numpy as np, pilescore as ps
        >>> line = ps.Box(t=(0, 3))
        >>> (dt,) = ps.partials(line)
        >>> t = np.linspace(0, 3, 25)
        >>> u = np.exp(-0.7 * t) + 0.02 * np.random.default_rng(0).standard_normal(25)
        >>> cooling = ps.impose(dt + ps.parameter("rate", 1.0), 0.0, on=line.interior(ps.GaussLegendre(9)), noise=1e-3)
        >>> model = ps.Model(ps.RBF(2.0), ps.observe(ps.identity, u, at=t), cooling, gamma=0.001)
        >>> best = ps.minimize(model, {"rate": (0.1, 10), "gamma": (1e-5, 1)}, score="given_physics")
        >>> best.derived(lambda p: np.log(2) / p["rate"])  # the half-life
        Derived(0.983863 ± 0.016)
        """
        return derived_value(function, self.model, self.values, self.covariance, self.ties)

    def within(self, over: Mapping[str, Any]) -> Minimum:
        """Return the same minimum of a search between wider bounds, which uniform priors then extend to.

        Lengths stay above those that the nodes of exact equations allow.

        Parameters
        ----------
        over
            Bounds of the same hyperparameters, as in `minimize`.
        """
        end = self.end
        if end is None:
            raise InputError("within: expected a result of ps.minimize with its search; this one was changed since")
        # Lengths that evade exact equations between their nodes stay excluded.
        space, narrow = search_space(end.space.model, floored(self.model, over), self.ties), end.space
        require(space.names == narrow.names, "over", ", ".join(space.names), f"bounds of {', '.join(narrow.names)}")
        values = narrow.decode(end.u)
        inside = bool(np.all((space.low <= values) & (values <= space.high)))
        require(inside, "over", space.by_name(values), "bounds that contain the minimum")
        curvature = None
        if self.curvature is not None:
            stretch = space.slope(values) / narrow.slope(values)
            curvature = self.curvature.stretched(dict(zip(space.names, stretch.tolist(), strict=True)))
        return dataclasses.replace(
            self, curvature=curvature, end=SearchEnd(space, space.encode(values), end.warm_start)
        )

    @property
    def solution(self) -> Solution | None:
        """The solution of a nonlinear model, with the model linearised there; None for a linear model."""
        return self.pile.solution

    @property
    def converged(self) -> bool:
        """Whether the descent that found the minimum converged."""
        return self.status == "converged"

    def __float__(self) -> float:
        return self.pile.value

    def __repr__(self) -> str:
        lines = [f"Minimum(PILE {self.pile.value:.6g}, {self.status} after {self.evaluations} evaluations"]
        if self.why and self.model.physics:
            lines.append(f"  scored: {self.why}")
        for name, value in sorted(self.values.items(), key=lambda item: item[0] not in self.at_bounds):
            note = f"  at its {self.at_bounds[name]} bound" if name in self.at_bounds else ""
            error = self.standard_errors[name]
            lines.append(f"  {name} = {value:.6g}" + (f" ± {error:.2g}" if math.isfinite(error) else "") + note)
        if len(self.descents) > 1:
            ends = sorted((descent.pile for descent in self.descents), key=lambda end: (math.isnan(end), end))
            shown = [f"{end:.4g}" for end in ends[:8]] + ["…"] * (len(ends) > 8)
            when = "" if self.resolution is None else ", before exact equations were tightened and refined"
            lines.append(f"  {len(self.descents)} starts ended at {', '.join(shown)}{when}")
        if self.degrees_of_freedom is not None:
            lines.append(f"  {degrees_text(self.degrees_of_freedom)}")
        if self.resolution is not None and not self.resolution.resolved:
            lines.append(f"  {self.resolution.text}")
        return "\n".join(lines) + ")"


def minimize(
    model: Model,
    over: Mapping[str, Any],
    *,
    score: Score | str = "auto",
    starts: int | Sequence[Mapping[str, Any]] = 1,
    ties: Ties | None = None,
    search: SearchOptions = SearchOptions(),  # noqa: B008  (frozen)
    run: RunOptions = RunOptions(),  # noqa: B008
) -> Minimum:
    """Return the minimum of PILE over hyperparameters, by L-BFGS-B on its exact gradient.

    The search moves in the logarithm of positive hyperparameters; others are scaled by the range of their bounds. If a
    trial point cannot be scored, the step is shortened. Where precise data make a valley too narrow for L-BFGS-B,
    Newton steps follow. Interrupted by Ctrl-C, it returns the best model so far.

    Exact equations hold everywhere, not at their nodes only. The tolerance to which they hold is tightened, and their
    nodes are refined, until score, hyperparameters and predictions stop moving. Lengths stay above one and a half
    times the distance between nodes, so that the unknown cannot evade an equation between them. An exact equation
    often has a second minimum that explains the data by noise; so one more minimum is followed from a loose equation
    to the exact one, and the lower one is returned.

    Parameters
    ----------
    model
        The model. Its own values are the first start.
    over
        Bounds `(low, high)` by name, with names as in `Model.replace`. The bounds of a vector hold for each element,
        or are vectors themselves.
    score
        What is scored, as in `pile`. `"auto"` scores the data and the imposed values that vary, given the physics whose
        values are constant, zero in particular: the density of a zero says nothing about the model, but rewards small
        operators and small priors. If this predicts the data more than 8 nats worse, given all physics, than
        hyperparameters chosen for the data alone, the data given the physics are scored instead. The result says which,
        and why. With `"profiled"`, η is found in closed form with `γ/η` and `ρ/η` held fixed, and bounds on
        temperatures hold at the model's η. If the solver gives bounds on PILE, their midpoint is minimised.
    starts
        How many: the model's own values, then scrambled Sobol points within the bounds. Or a list of starts such as
        `[{"kernel.bandwidth": 0.3}, …]`; other hyperparameters start at the model's values. Starts run in parallel if
        that is faster.
    ties
        Hyperparameters that follow others: `{"kernel.theta": lambda p: jnp.arctan(p["beta"])}`, a JAX function of the
        searched values by name.
    search
        How the search proceeds: tolerance, budget, seed, curvature.
    run
        Where it runs and is saved: Dask client, file, progress bar.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 30)
    >>> noisy = np.sin(6 * x) + 0.1 * np.random.default_rng(0).standard_normal(30)
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.5), data=ps.observe(ps.identity, noisy, at=x), gamma=0.1)
    >>> best = ps.minimize(model, over={"kernel.bandwidth": (0.05, 5), "gamma": (1e-4, 1), "eta": (0.01, 100)})
    >>> best.status, 0.05 < (best.values["gamma"] / 2) ** 0.5 < 0.15  # the added noise: 0.1
    ('converged', True)
    """
    check_options(run, search)
    requested = as_score(score)
    objective, points = prepare(model, over, requested, starts, ties, search)
    scoring = requested.resolved(model)
    steps = Steps(over, ties, scoring, search, run)
    with (
        cluster_errors(lambda: steps.progress),
        progress_bar(0, "minimize", run.progress) as bar,
        _log(objective, points, search, run.save) as log,
    ):
        steps.update, steps.log = bar.update, log
        contested = requested.given == "auto" and is_contestable(model, scoring)
        found = steps.search(model, starts, contested=contested)
        if log is not None and not found.interrupted:
            log.close()
    return _minimum(found, steps)


def _minimum(found: Found, steps: Steps) -> Minimum:
    """Return the result that users see, with warnings about its precision."""
    space, scoring, pile = found.objective.space, found.objective.score, found.pile
    values, chosen = space.decode(found.u), found.model
    if scoring.profiled:
        chosen = at_profiled_scale(chosen, pile)
        values = space.values_of(chosen)
    if found.resolution is not None and not chosen.is_nonlinear:
        missed = contradiction(systems_of(chosen, Score(), explain=False).whole)
        if missed:
            raise InputError(contradictory(missed))
    if pile.is_imprecise:
        warnings.warn(
            f"rounding leaves PILE at the minimum uncertain by about {pile.rounding:.1e}; ps.pile(minimum.model) "
            "names the blocks involved and what helps",
            PrecisionWarning,
            stacklevel=3,
        )
    if chosen.is_nonlinear:
        pile = dataclasses.replace(pile, solution=systems_of(chosen, Score(), found.best.warm_start).solution)
    if pile.solution is not None and not pile.solution.converged:
        warnings.warn(
            f"at the minimum of PILE the nonlinear model is {pile.solution.status}: {pile.solution.reason}",
            stacklevel=3,
        )
    if found.resolution is not None and not found.resolution.resolved:
        warnings.warn(found.resolution.text, UnresolvedWarning, stacklevel=3)
    if found.lost > 0.0:
        warnings.warn(
            f"the data are predicted {found.lost:.3g} nats worse than by other hyperparameters, with which the "
            "equations do not hold on these nodes: the data may be taken for noise. Try more nodes, more starts, "
            "narrower bounds, or score='given_physics'",
            stacklevel=3,
        )
    curvature, interrupted, degrees, covariance = found.curvature, found.interrupted, None, None
    if curvature is not None:
        try:
            near = found.best.warm_start
            information = coefficient_information(space, values, chosen, curvature, scoring, near)
            degrees = degrees_of_freedom(space, values, chosen, curvature, information, near)
            inflation = {} if degrees is None else dict(degrees.inflation)
            covariance = searched_covariance(space, values, curvature, information, inflation)
        except KeyboardInterrupt:
            curvature, interrupted = None, True
    errors = [math.nan] * len(values) if covariance is None else np.sqrt(covariance.diagonal()).tolist()
    return Minimum(
        chosen,
        pile,
        space.by_name(values),
        dict(zip(space.names, errors, strict=True)),
        found.at_bounds,
        curvature,
        tuple(descent.result() for descent in found.descents),
        "interrupted" if interrupted else found.best.status,
        "interrupted: this is the best so far" if interrupted else found.best.reason,
        steps.evaluations,
        scoring,
        found.why or scoring.described(chosen),
        found.resolution,
        covariance,
        None if degrees is None else degrees.remaining,
        space.ties,
        SearchEnd(space, found.u, found.best.warm_start),
    )


def prepare(
    model: Model,
    over: Mapping[str, Any],
    score: Score | str,
    starts: int | Sequence[Mapping[str, Any]],
    ties: Ties | None,
    search: SearchOptions,
) -> tuple[Objective, list[Float[np.ndarray, " p"]]]:
    """Check the arguments of `minimize`, and return its objective and its starts in coordinates."""
    require(isinstance(model, Model), "model", model, "a ps.Model")
    scoring = as_score(score)
    scoring.check(model)
    require(scoring.formula == "consistent", "score", scoring, "the consistent formula, which has a gradient")
    space = search_space(model, over, ties)
    roles = model.roles
    scales = [name for name, (base, _) in space.targets.items() if roles[base] == "scale"]
    require(not (scoring.profiled and scales), "over", ", ".join(scales), "no bounds on eta if it is profiled")
    check_exact(model, fine_enough)
    return Objective(space, scoring, search), start_points(space, starts, search.seed)


def _log(objective: Objective, points: list[Float[np.ndarray, " p"]], search: SearchOptions, save: Any) -> Any:
    """Return the log of a search as a context manager, with the evaluations on disk; its value is None without one."""
    if save is None:
        return contextlib.nullcontext()
    file, space = DatasetFile(save), objective.space
    digest = fingerprint(_inputs(objective, points, search))
    return EvaluationLog(space.names, space.model.labels, digest, file)


def _inputs(objective: Objective, points: list[Float[np.ndarray, " p"]], search: SearchOptions) -> Iterator[Any]:
    """Yield everything that a minimum depends on; functions such as ties are known by their values at a few points."""
    space, scoring = objective.space, objective.score
    yield from ("minimize", space.model, space.names, space.low, space.high, ten_digits(points))
    yield from (scoring.profiled, scoring.given, objective.tolerance, objective.budget, search.curvature, search.refine)
    solver = space.model.solver
    if not solver.forms_covariance:
        yield from ("solver", solver.identity)
    for u in (points[0], *space.sobol(4, 0)):
        try:
            yield from function_values(space.model_at(space.decode(u)))
        except PilescoreError:  # a tie gives a value that the model does not allow
            yield "refused"
