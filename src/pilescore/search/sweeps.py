"""Scores on a grid of hyperparameters, as a labelled dataset that is saved while it grows."""

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

from ..equations import Operator, identity
from ..errors import (
    InputError,
    NotPositiveDefiniteError,
    NotSolvedError,
    PilescoreError,
    PrecisionWarning,
    SaveError,
    ToleranceError,
    require,
)
from ..inference import (
    KnownSolution,
    Pile,
    Posterior,
    Risk,
    Score,
    WarmStart,
    as_score,
    left_out_variances,
    measured,
    quadrature_weights,
    scores_by_temperature,
    system_losses,
    systems_of,
)
from ..model import Model, as_grid, find, named_paths
from ..parallel import (
    EvaluationPool,
    batched,
    checked_client,
    cluster_errors,
    evaluations_per_task,
    progress_bar,
    refuse_nested_clusters,
)
from ..storage import DatasetFile, SweepTable
from .fingerprint import fingerprint, kernel_values
from .options import RunOptions, check_options, describe_saving
from .sweep_plan import (
    BOUND_COLUMNS,
    LOSS_COLUMNS,
    NONLINEAR_COST,
    PILE_COLUMNS,
    PRIOR_COLUMNS,
    RISK_COLUMNS,
    SweepOutputs,
    SweepPlan,
    SweepTask,
    as_seeds,
    make_plan,
    pending_tasks,
    resolve_known,
    seeded_models,
    split_task,
    task_cost,
)

POINT_FAILURES = (NotPositiveDefiniteError, NotSolvedError, ToleranceError, InputError)
"""Errors that concern one point: they are recorded and the sweep continues."""


def sweep(
    model: Model | Callable[[int], Model],
    grid: Mapping[str, Any],
    *,
    seeds: Iterable[int] | None = None,
    known: KnownSolution | None = None,
    score: Score | str = "auto",
    losses: bool = False,
    run: RunOptions = RunOptions(),  # noqa: B008  (frozen)
) -> xr.Dataset:
    """Return PILE, its terms and, if requested, losses and true errors on a grid of hyperparameters.

    If the covariance of a point cannot be factored, the reason is recorded and the sweep continues. Interrupted by
    Ctrl-C, it returns the points scored so far and marks the rest `pending`.

    Parameters
    ----------
    model
        The model, or a function from a seed to a model.
    grid
        Values by name, such as `{"kernel.bandwidth": np.geomspace(0.05, 2, 40)}`, with names as in `Model.replace`.
    seeds
        Integers, one for each repetition. They are passed to the function. For a model with a known solution, they draw
        new data: the operator applied to the solution, plus noise with the model's temperatures.
    known
        The known solution to compare with, for true errors.
    score
        What is scored, as in `pile`.
    losses
        Whether to add the results of `ps.losses`: `data_loss`, `physics_loss` and `leave_one_out`.
    run
        Where it runs and is saved: Dask client, file, progress bar.

    Returns
    -------
    xarray.Dataset
        `pile`, `fit`, `complexity`, `constant`, `rounding`, `shares` (by block), `status` (ok, imprecise, unsatisfied,
        failed or pending) and `reason`; if profiled, the best scale `eta_hat`; the losses; with a known solution
        `R_data` and `R_phys`, their parts `_bias` and `_variance`, and `_relative_l2`. There is one dimension for each
        name, and `seed`. Solvers other than the dense one add the bounds on PILE, `lower` and `upper`; priors add their
        part of PILE, `prior`.

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
    check_options(run)
    require(known is None or isinstance(known, KnownSolution), "known", known, "a ps.KnownSolution")
    numbers = None if seeds is None else as_seeds(seeds)
    models = seeded_models(model, numbers, None if known is None else known.truth)
    scoring = as_score(score)
    scoring.check(models[0])
    require(scoring.formula == "consistent", "score", scoring, "the consistent formula")
    require(isinstance(losses, bool), "losses", losses, "True or False")
    if run.client is not None:
        refuse_nested_clusters(checked_client(run.client), models[0].solver)
    axes = as_grid(models[0], grid)
    exact, priors = models[0].solver.forms_covariance, any(each.priors for each in models)
    outputs = SweepOutputs(scoring, losses, resolve_known(models[0], known), exact, priors)
    _check_names(models[0], axes, outputs.columns)
    file = None if run.save is None else DatasetFile(run.save)
    plan = make_plan(models, axes, outputs, seeded=numbers is not None)
    seed_axis = {} if numbers is None else {"seed": np.array(numbers, dtype=np.int32)}
    table = SweepTable({**axes, **seed_axis}, outputs.columns, models[0].labels, fingerprint(_inputs(plan, numbers)))
    if file is not None:
        table.resume(file)
    interrupted = False
    with cluster_errors(lambda: f"{table.done} of {table.size} points are scored; {describe_saving(file)}"):
        try:
            with (
                progress_bar(table.size, "sweep", run.progress, initial=table.done) as bar,
                contextlib.closing(_all_results(plan, table, run.client)) as results,
            ):
                for position, result in results:
                    table.put(position, result)
                    bar.update(1)
                    table.checkpoint(file)
        except KeyboardInterrupt:
            interrupted = True
        except Exception:
            with contextlib.suppress(SaveError):
                table.finish(file)
            raise
    table.finish(file)
    if interrupted:
        left = table.size - table.done
        warnings.warn(f"interrupted: {left} of {table.size} points are pending", UserWarning, stacklevel=2)
    return table.dataset()


def _check_names(model: Model, axes: Mapping[str, np.ndarray], columns: list[str]) -> None:
    paths = named_paths(model)
    once = len({find(model, paths, name) for name in axes}) == len(axes)
    require(once, "grid", list(axes), "each hyperparameter once")
    for name in {*columns, "shares", "status", "reason", "block", "seed"} & axes.keys():
        raise InputError(f"grid: a result is called {name!r} too; give the parameter another name")


def _inputs(plan: SweepPlan, seeds: Any) -> Iterator[Any]:
    """Yield everything that the results of a sweep depend on."""
    models, groups, outputs = plan.models, plan.groups, plan.outputs
    yield from (seeds, outputs.score.profiled, outputs.score.given)
    for group in groups:
        yield from (group, models[group[0]], *(models[s].values for s in group))
    for name, column in plan.axes.items():
        yield from (name, column)
    if outputs.losses:
        yield from ("losses", *map(quadrature_weights, models))
    if not outputs.exact:
        yield from ("solver", models[0].solver.identity)
    if outputs.known is not None:
        known, points = outputs.known, outputs.known.on.points
        yield from (points, known.on.weights, *known.scales, *known.targets)
        for operator in known.operators:
            yield from (operator.indices(points.shape[1]), operator.coefficients(points))
        yield from (kernel_values(models[group[0]].kernel, points) for group in groups)


def _all_results(plan: SweepPlan, table: SweepTable, client: Any) -> Generator[Any, None, None]:
    """Yield positions and results of all pending points, computed here or by the workers of a client."""
    tasks = pending_tasks(plan, table)
    if client is None:
        for task in tasks:
            yield from _task_results(plan, task)
        return
    pending = list(tasks)
    if not pending:
        return
    size, cost = plan.models[0].size, NONLINEAR_COST if plan.models[0].is_nonlinear else 1.0
    named = {"model": plan.models, "truth": plan.outputs.known}
    with EvaluationPool(client, size, plan, named) as workers:
        most = evaluations_per_task(size, sum(task_cost(plan, task) for task in pending), workers.threads, cost)
        parts = (part for task in pending for part in split_task(plan, task, most))
        batches = [(batch,) for batch in batched(parts, lambda part: task_cost(plan, part), most)]
        for results, failure in workers.each(_batch_results, batches):
            yield from results
            if failure is not None:
                raise failure


_warm_start_lock = threading.Lock()


def _batch_results(plan: SweepPlan, tasks: list[SweepTask]) -> tuple[list[Any], Exception | None]:
    """Return the results of tasks, on a worker, with the error that ended them, if any."""
    results: list[Any] = []
    try:
        for task in tasks:
            if plan.models[0].is_nonlinear:
                with _warm_start_lock:  # threads of one worker share the warm start
                    plan.warm_starts[task.group].values()
            results.extend(_task_results(plan, task))
    except PilescoreError as failure:
        return results, failure
    return results, None


def _task_results(plan: SweepPlan, task: SweepTask) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    """Yield position and result of each point of a task."""
    axes, outputs, group = plan.axes, plan.outputs, plan.groups[task.group]
    points = plan.points(task.outer)
    fixed = {name: axes[name][i] for name, i in task.outer.items()}
    models = {s: plan.models[s].replace(fixed) for s in group}
    temperatures = [{name: float(axes[name][point[name]]) for name in plan.temperatures} for point in points]
    scores: Iterable[tuple[int, Pile | None]] = ((k, None) for k in range(len(points)))
    if plan.shares_reduction(task):
        pending = task.pending[:, 0].tolist()
        scores = scores_by_temperature(models[group[0]], temperatures, outputs.score.profiled, pending)
    for k, score in scores:
        if score is not None:
            yield plan.position(points[k], group[0]), _pile_columns(score)
            continue
        seeds = [s for s, pending in zip(group, task.pending[k], strict=True) if pending]
        if seeds:
            at_point = [models[s].replace(temperatures[k]) for s in seeds]
            results = _point_results(at_point, outputs, plan.warm_starts[task.group])
            yield from zip((plan.position(points[k], s) for s in seeds), results, strict=True)


def _point_results(models: list[Model], outputs: SweepOutputs, warm_start: WarmStart) -> Iterator[dict[str, Any]]:
    """Yield the results of models that differ in their values only, from one factorisation."""
    try:
        first = systems_of(models[0], outputs.score, warm_start)
    except POINT_FAILURES as failure:
        yield from (_failure_columns(failure) for _ in models)
        return
    # A nonlinear model is alone in its group; from here on it is linearised.
    models = [first.whole.model] if models[0].is_nonlinear else models
    systems = [first.whole.with_values(model) for model in models]
    alphas = np.empty((first.whole.alpha.size, 0))
    if outputs.known is not None:
        alphas = np.stack([system.factored.precise_alpha for system in systems], axis=1)
    shared: dict[tuple[str, int], np.ndarray] = {}
    left_out = left_out_variances(first.whole) if outputs.losses else None
    for index, system in enumerate(systems):
        try:
            pile = first.pile(outputs.score, system)
            columns = _pile_columns(pile)
            if first.caution:
                columns |= {"status": "unsatisfied", "reason": first.caution}
            if left_out is not None:
                losses = system_losses(system, left_out)
                columns |= {name: getattr(losses, field) for name, field in LOSS_COLUMNS.items()}
            if outputs.known is not None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", PrecisionWarning)  # the status says it
                    posterior = _SharedPosterior(system, alphas, index, shared)
                    errors = measured(posterior, outputs.known, pile.eta / system.eta)
                columns |= _risk_columns("data", errors.data) | _risk_columns("phys", errors.physics)
        except POINT_FAILURES as failure:
            columns = _failure_columns(failure)
        yield columns


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _SharedPosterior(Posterior):
    """One of several posteriors that differ in their values only; covariances with the nodes are computed once."""

    alphas: Float[np.ndarray, "N s"]
    index: int
    """Which column of `alphas` belongs to this posterior."""
    shared: dict[tuple[str, int], np.ndarray]
    """Means of all posteriors, and their common variances, by operator."""

    def mean(self, points: Any, operator: Operator = identity) -> Float[np.ndarray, " n"]:
        """Return the posterior mean of `A f`."""
        if ("mean", id(operator)) not in self.shared:
            crosses = self._cross(self._query(points, operator))
            self.shared["mean", id(operator)] = np.concatenate([block @ self.alphas for _, block in crosses])
        return self.shared["mean", id(operator)][:, self.index]

    def variance(self, points: Any, operator: Operator = identity) -> Float[np.ndarray, " n"]:
        """Return the posterior variance of `A f`."""
        if ("variance", id(operator)) not in self.shared:
            self.shared["variance", id(operator)] = super().variance(points, operator)
        return self.shared["variance", id(operator)]


def _pile_columns(pile: Pile) -> dict[str, Any]:
    columns = {name: getattr(pile, field) for name, field in (PILE_COLUMNS | PRIOR_COLUMNS | BOUND_COLUMNS).items()}
    columns |= {"eta_hat": pile.eta, "shares": list(pile.shares.values()), "status": "ok"}
    if pile.is_imprecise:
        columns |= {"status": "imprecise", "reason": f"rounding leaves PILE uncertain by {pile.rounding:.1e}"}
    return columns


def _failure_columns(failure: Exception) -> dict[str, Any]:
    """Return the columns of a failure: its reason, and bounds on PILE that are wider than the tolerance."""
    bounds = {"lower": failure.lower, "upper": failure.upper} if isinstance(failure, ToleranceError) else {}
    return bounds | {"status": "failed", "reason": str(failure)}


def _risk_columns(kind: str, risk: Risk | None) -> dict[str, float]:
    return {} if risk is None else {f"R_{kind}{part}": getattr(risk, name) for part, name in RISK_COLUMNS.items()}
