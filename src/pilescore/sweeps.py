"""Scores on a grid of hyperparameters, as a labelled dataset that is written as it grows."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from .accuracy import Risk, measured
from .cluster import checked_client
from .domains import Nodes
from .errors import (
    InputError,
    NotPositiveDefiniteError,
    NotSolvedError,
    PilescoreError,
    PrecisionWarning,
    SaveError,
    ToleranceError,
    require,
)
from .evaluation import Trail, evaluated
from .families import scores_by_temperature
from .farm import Farm, batched, evaluations_a_task, refuse_nested, reported
from .methods import solver_of, with_solver
from .misfit import left_out_variances, quadrature_weights, system_losses
from .model import Model, as_grid, find, named_paths
from .operators import Operator, identity
from .plans import BOUNDS, LOSSES, NONLINEAR, RISKS, TERMS, Plan, Unit, Wanted, pending_units, pieces, planned, weight
from .posterior import Posterior
from .records import Record, Table, fingerprint, kernel_values
from .repetitions import as_seeds, known_solution
from .repetitions import seeded_models as _models
from .running import progress_bar
from .score import Pile, check_given, scored, value
from .solvers import Solver
from .system import IMPRECISE, solve

FAILURES = (NotPositiveDefiniteError, NotSolvedError, ToleranceError, InputError)


def sweep(
    model: Model | Callable[[int], Model],
    grid: Mapping[str, Any],
    *,
    seeds: Iterable[int] | None = None,
    truth: Callable[[Any], Any] | None = None,
    on: Nodes | None = None,
    operator: Operator | None = None,
    operator_truth: Any = None,
    scale: Any = None,
    profiled: bool = False,
    given_physics: bool = False,
    losses: bool = False,
    solver: Solver | str | None = None,
    client: Any = None,
    save: Any = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Return PILE, its terms and, if asked for, losses and true errors on a grid of hyperparameters.

    A point whose covariance cannot be factored is recorded with its reason and the rest goes on. Interrupted
    (Ctrl-C), what is there so far is returned, the rest marked `pending`.

    Parameters
    ----------
    model
        The model, or a function from a seed to a model.
    grid
        Values by name, as `{"kernel.bandwidth": np.geomspace(0.05, 2, 40)}`; names are those of `Model.replace`.
    seeds
        Whole numbers, one for each repetition: given to the function, or, for a model with a known `truth`, used to
        draw its data anew, as `L truth` plus noise of the model's own temperatures.
    truth
        As for `accuracy`.
    on
        As for `accuracy`; unless given, Gauss–Legendre nodes, 30 a side, of the region of the equation: the physics
        block with the highest derivatives, the first of such.
    operator
        As for `accuracy`; unless given, that of the equation if it is linear.
    operator_truth
        As for `accuracy`.
    scale
        As for `accuracy`.
    profiled, given_physics
        As for `pile`.
    losses
        Add what `ps.losses` returns, for comparison: `data_loss`, `physics_loss` and `leave_one_out`.
    solver
        As for `pile`.
    client
        A `dask.distributed.Client` (with the extra `scale`): its workers score the points, and the rest is as without:
        the file, what is left when it is stopped, and the numbers, up to rounding.
    save
        A file `run.nc` or a directory `run.zarr` (with the extra `zarr`) to write to as it goes. If it is there and is
        of the same sweep, the sweep continues from it; if of another, it is refused.
    progress
        Show a progress bar: by default on a terminal only.

    Returns
    -------
    xarray.Dataset
        `pile`, `fit`, `complexity`, `constant`, `rounding`, `shares` (by block), `status` (ok, imprecise, unsatisfied,
        failed or pending) and `reason`; if profiled, the best scale `eta_hat`; the losses, if asked for; with `truth`
        also `R_data` and `R_phys`, their parts `_bias` and `_variance`, and `_relative_l2`. One dimension for each
        name, and `seed`. With a solver other than the dense one also the bounds on PILE, `lower` and `upper`.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 20)
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.5), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.02)
    >>> scores = ps.sweep(model, {"kernel.bandwidth": [0.1, 0.3, 1.0], "gamma": [0.01, 0.1]})
    >>> dict(scores["pile"].sizes)
    {'kernel.bandwidth': 3, 'gamma': 2}
    >>> float(scores["pile"].sel(gamma=0.01).idxmin())
    0.3
    """
    numbers = None if seeds is None else as_seeds(seeds)
    models = [with_solver(each, solver) for each in _models(model, numbers, truth)]
    check_given(models[0], given_physics)
    require(isinstance(losses, bool), "losses", losses, "True or False")
    method = solver_of(models[0]).identity
    if client is not None:
        refuse_nested(checked_client(client), solver_of(models[0]))
    axes = as_grid(models[0], grid)
    known = known_solution(models[0], truth, on, operator, operator_truth, scale)
    wanted = Wanted(profiled, given_physics, losses, known, method)
    _check_names(models[0], axes, wanted.columns)
    record = None if save is None else Record(save)
    plan = planned(models, axes, wanted, several=numbers is not None)
    mark = fingerprint(_parts(plan, numbers))
    repeated = {} if numbers is None else {"seed": np.array(numbers, dtype=np.int32)}
    table = Table({**axes, **repeated}, wanted.columns, models[0].labels, mark)
    if record is not None:
        table.resume(record)
    interrupted = False
    with reported(lambda: _reached(table, record)):
        try:
            with (
                progress_bar(table.size, "sweep", progress, initial=table.done) as bar,
                contextlib.closing(_outcomes(plan, table, client)) as outcomes,
            ):
                for where, outcome in outcomes:
                    table.put(where, outcome)
                    bar.update(1)
                    table.checkpoint(record)
        except KeyboardInterrupt:
            interrupted = True
        except Exception:
            with contextlib.suppress(SaveError):
                table.finish(record)
            raise
    table.finish(record)
    if interrupted:
        left = table.size - table.done
        warnings.warn(f"interrupted: {left} of {table.size} points are pending", UserWarning, stacklevel=2)
    return table.dataset()


def _reached(table: Table, record: Record | None) -> str:
    kept = "none of them is kept, as there is no save=" if record is None else f"they are kept in {record.path}"
    return f"{table.done} of {table.size} points are scored; {kept}"


def _check_names(model: Model, axes: Mapping[str, np.ndarray], columns: list[str]) -> None:
    known = named_paths(model)
    once = len({find(model, known, name) for name in axes}) == len(axes)
    require(once, "grid", list(axes), "each hyperparameter once")
    for name in {*columns, "shares", "status", "reason", "block", "seed"} & axes.keys():
        raise InputError(f"grid: a result is called {name!r} too; give the parameter another name")


def _parts(plan: Plan, seeds: Any) -> Iterator[Any]:
    """Give all that a sweep depends on."""
    models, groups, wanted = plan.models, plan.groups, plan.wanted
    yield from (seeds, wanted.profiled, wanted.given_physics)
    for group in groups:
        yield from (group, models[group[0]], *(models[s].values for s in group))
    for name, column in plan.axes.items():
        yield from (name, column)
    if wanted.losses:
        yield from ("losses", *map(quadrature_weights, models))
    if wanted.method != "dense":
        yield from ("solver", wanted.method)
    if wanted.known is not None:
        known, points = wanted.known, wanted.known.on.points
        yield from (points, known.on.weights, *known.scales, *known.targets)
        for operator in known.operators:
            yield from (operator.indices(points.shape[1]), operator.coefficients(points))
        yield from (kernel_values(models[group[0]].kernel, points) for group in groups)


def _outcomes(plan: Plan, table: Table, client: Any) -> Generator[Any, None, None]:
    """Score the points that are pending, here or by the workers of a client."""
    units = pending_units(plan, table)
    if client is None:
        for unit in units:
            yield from _found(plan, unit)
        return
    pending = list(units)
    if not pending:
        return
    size, cost = plan.models[0].size, NONLINEAR if plan.models[0].is_nonlinear else 1.0
    named = {"model": plan.models, "truth": plan.wanted.known}
    with Farm(client, size, plan, named) as farm:
        most = evaluations_a_task(size, sum(weight(plan, unit) for unit in pending), farm.threads, cost)
        parts = (piece for unit in pending for piece in pieces(plan, unit, most))
        tasks = [(batch,) for batch in batched(parts, lambda piece: weight(plan, piece), most)]
        for found, failure in farm.each(_found_all, tasks):
            yield from found
            if failure is not None:
                raise failure


_leading = threading.Lock()


def _found_all(plan: Plan, units: list[Unit]) -> tuple[list[Any], Exception | None]:
    """Score the points of units, on a worker; what was found before an error is not lost."""
    found: list[Any] = []
    try:
        for unit in units:
            if plan.models[0].is_nonlinear:
                with _leading:  # threads of one worker share the trail
                    for alone in {False, plan.wanted.given_physics}:
                        plan.trails[unit.group].values(alone)
            found.extend(_found(plan, unit))
    except PilescoreError as failure:
        return found, failure
    return found, None


def _found(plan: Plan, unit: Unit) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    """Score the points of a unit."""
    axes, wanted, group = plan.axes, plan.wanted, plan.groups[unit.group]
    places = plan.places(unit.outer)
    fixed = {name: axes[name][i] for name, i in unit.outer.items()}
    local = {s: plan.models[s].replace(fixed) for s in group}
    points = [{name: float(axes[name][place[name]]) for name in plan.temperatures} for place in places]
    scores: Iterable[tuple[int, Pile | None]] = ((k, None) for k in range(len(points)))
    if plan.reducible and len(group) == 1:
        scores = scores_by_temperature(local[group[0]], points, wanted.profiled, unit.left[:, 0].tolist())
    for k, score in scores:
        if score is not None:
            yield plan.position(places[k], group[0]), _scored(score)
            continue
        todo = [s for s, left in zip(group, unit.left[k], strict=True) if left]
        if todo:
            solved = _solved([local[s].replace(points[k]) for s in todo], wanted, plan.trails[unit.group])
            yield from zip((plan.position(places[k], s) for s in todo), solved, strict=True)


def _solved(models: list[Model], wanted: Wanted, trail: Trail) -> Iterator[dict[str, Any]]:
    """Score models that differ in their values only, by one factorisation; a nonlinear one comes alone."""
    try:
        nonlinear = evaluated(models[0], wanted.given_physics, trail, explain=True) if models[0].is_nonlinear else None
        first = solve(models[0]) if nonlinear is None else nonlinear.system
        models = models if nonlinear is None else [first.model]
    except FAILURES as failure:
        yield from (_failed(failure) for _ in models)
        return
    systems = [first.with_values(model) for model in models]
    alphas = np.empty((first.alpha.size, 0))
    if wanted.known is not None:
        alphas = np.stack([system.factored.precise_alpha for system in systems], axis=1)
    shared: dict[tuple[str, int], np.ndarray] = {}
    left_out = left_out_variances(first) if wanted.losses else None
    for place, system in enumerate(systems):
        try:
            if nonlinear is None:
                score = value(system, wanted.profiled, wanted.given_physics, warn=False)
                found = _scored(score)
            else:
                score = scored(system, nonlinear.prior, wanted.profiled)
                found = _scored(score)
                found |= {"status": "unsatisfied", "reason": nonlinear.caution} if nonlinear.caution else {}
            if left_out is not None:
                losses = system_losses(system, left_out)
                found |= {name: getattr(losses, kind) for name, kind in LOSSES.items()}
            if wanted.known is not None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", PrecisionWarning)  # said by the status
                    post = _Together(system, alphas, place, shared)
                    errors = measured(post, wanted.known, score.eta / system.eta)
                found |= _risks("data", errors.data) | _risks("phys", errors.physics)
        except FAILURES as failure:
            found = _failed(failure)
        yield found


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _Together(Posterior):
    """One of several posteriors that differ in their values only: what they share at the nodes is computed once."""

    alphas: Float[np.ndarray, "N s"]
    place: int
    """Which of them."""
    shared: dict[tuple[str, int], np.ndarray]
    """Means of all, and variances, by operator."""

    def mean(self, points: Any, operator: Operator = identity) -> Float[np.ndarray, " n"]:
        """Return the posterior mean of `A f`."""
        if ("mean", id(operator)) not in self.shared:
            crosses = self._cross(self._query(points, operator))
            self.shared["mean", id(operator)] = np.concatenate([block @ self.alphas for _, block in crosses])
        return self.shared["mean", id(operator)][:, self.place]

    def variance(self, points: Any, operator: Operator = identity) -> Float[np.ndarray, " n"]:
        """Return the posterior variance of `A f`."""
        if ("variance", id(operator)) not in self.shared:
            self.shared["variance", id(operator)] = super().variance(points, operator)
        return self.shared["variance", id(operator)]


def _scored(score: Pile) -> dict[str, Any]:
    found = {name: getattr(score, term) for name, term in (TERMS | BOUNDS).items()}
    found |= {"eta_hat": score.eta, "shares": list(score.shares.values()), "status": "ok"}
    if score.rounding > IMPRECISE:
        found |= {"status": "imprecise", "reason": f"rounding leaves PILE uncertain by {score.rounding:.1e}"}
    return found


def _failed(failure: Exception) -> dict[str, Any]:
    """Return what is recorded of a failure: its reason, and bounds that are wider than was wanted."""
    bounds = {"lower": failure.lower, "upper": failure.upper} if isinstance(failure, ToleranceError) else {}
    return bounds | {"status": "failed", "reason": str(failure)}


def _risks(kind: str, risk: Risk | None) -> dict[str, float]:
    return {} if risk is None else {f"R_{kind}{part}": getattr(risk, name) for part, name in RISKS.items()}
