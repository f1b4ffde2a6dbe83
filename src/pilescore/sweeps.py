"""Scores on a grid of hyperparameters, as a labelled dataset that is written as it grows."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from jaxtyping import Float

from .accuracy import Reference, Risk, measured, reference
from .domains import Nodes
from .errors import (
    InputError,
    NotPositiveDefiniteError,
    NotSolvedError,
    PrecisionWarning,
    SaveError,
    as_count,
    as_vector,
    require,
)
from .evaluation import Trail, evaluated
from .families import scores_by_temperature
from .misfit import left_out_variances, quadrature_weights, system_losses
from .model import Model, as_grid, check_bears, find, is_temperature, named_paths
from .observations import check_names, check_nodes, evaluate
from .operators import Operator, identity
from .posterior import Posterior
from .quadrature import GaussLegendre
from .records import Record, Table, fingerprint, kernel_values
from .running import progress_bar
from .score import Pile, check_given, scored, value
from .system import IMPRECISE, System, solve

TERMS = {"pile": "value", "fit": "fit", "complexity": "complexity", "constant": "constant", "rounding": "rounding"}
FAILURES = (NotPositiveDefiniteError, NotSolvedError, InputError)
LOSSES = {"data_loss": "data", "physics_loss": "physics", "leave_one_out": "leave_one_out"}
RISKS = {"": "value", "_bias": "bias", "_variance": "variance", "_relative_l2": "relative_l2"}


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
    truth, on, operator, operator_truth, scale
        As for `accuracy`. Without `on`, Gauss–Legendre nodes, 30 a side, of the region of the equation; without
        `operator`, its operator if that is linear. The equation is the physics block with the highest derivatives, the
        first of such.
    profiled, given_physics
        As for `pile`.
    losses
        Add what `ps.losses` returns, for comparison: `data_loss`, `physics_loss` and `leave_one_out`.
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
        name, and `seed`.

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
    numbers = None if seeds is None else _seeds(seeds)
    models = _models(model, numbers, truth)
    check_given(models[0], given_physics)
    require(isinstance(losses, bool), "losses", losses, "True or False")
    axes = as_grid(models[0], grid)
    known = _reference(models[0], truth, on, operator, operator_truth, scale)
    wanted = _Wanted(profiled, given_physics, losses, known)
    _check_names(models[0], axes, wanted.columns)
    record = None if save is None else Record(save)
    groups = _alike(models)
    mark = fingerprint(_parts(models, groups, axes, numbers, wanted))
    repeated = {} if numbers is None else {"seed": np.array(numbers, dtype=np.int32)}
    table = Table({**axes, **repeated}, wanted.columns, models[0].labels, mark)
    if record is not None:
        table.resume(record)
    interrupted = False
    try:
        with progress_bar(table.size, "sweep", progress, initial=table.done) as bar:
            for where, outcome in _outcomes(models, groups, axes, table, wanted):
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


@dataclasses.dataclass(frozen=True, eq=False)
class _Wanted:
    """What is to be found at every point."""

    profiled: bool
    given_physics: bool
    losses: bool
    known: Reference | None
    """The known solution."""

    @property
    def columns(self) -> list[str]:
        """The names of the results."""
        kinds = [] if self.known is None else ["data", "phys"][: len(self.known.operators)]
        risks = [f"R_{kind}{part}" for kind in kinds for part in RISKS]
        return [*TERMS, *(["eta_hat"] if self.profiled else []), *(LOSSES if self.losses else []), *risks]

    @property
    def scores_only(self) -> bool:
        """Whether a reduced covariance gives all of it."""
        return self.known is None and not self.given_physics and not self.losses


def _check_names(model: Model, axes: Mapping[str, np.ndarray], columns: list[str]) -> None:
    known = named_paths(model)
    once = len({find(model, known, name) for name in axes}) == len(axes)
    require(once, "grid", list(axes), "each hyperparameter once")
    for name in {*columns, "shares", "status", "reason", "block", "seed"} & axes.keys():
        raise InputError(f"grid: a result is called {name!r} too; give the parameter another name")


def _parts(
    models: list[Model], groups: list[list[int]], axes: Mapping[str, np.ndarray], seeds: Any, wanted: _Wanted
) -> Iterator[Any]:
    """Give all that a sweep depends on."""
    yield from (seeds, wanted.profiled, wanted.given_physics)
    for group in groups:
        yield from (group, models[group[0]], *(models[s].values for s in group))
    for name, column in axes.items():
        yield from (name, column)
    if wanted.losses:
        yield from ("losses", *map(quadrature_weights, models))
    if wanted.known is not None:
        known, points = wanted.known, wanted.known.on.points
        yield from (points, known.on.weights, *known.scales, *known.targets)
        for operator in known.operators:
            yield from (operator.indices(points.shape[1]), operator.coefficients(points))
        yield from (kernel_values(models[group[0]].kernel, points) for group in groups)


def _outcomes(
    models: list[Model], groups: list[list[int]], axes: Mapping[str, np.ndarray], table: Table, wanted: _Wanted
) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    """Score the points that are pending: those of one kernel together, and those of seeds that differ in values."""
    known = named_paths(models[0])
    temperatures = [name for name in axes if is_temperature(known[find(models[0], known, name)[0]][0])]
    others = [name for name in axes if name not in temperatures]
    reducible = bool(temperatures) and wanted.scores_only and not models[0].is_nonlinear
    several = "seed" in table.axes

    def position(chosen: Mapping[str, int], seed: int) -> tuple[int, ...]:
        return (*(chosen[name] for name in axes), *((seed,) if several else ()))

    for group in groups:
        trail = Trail(models[group[0]])
        for outer in _indices(axes, others):
            places = [outer | inner for inner in _indices(axes, temperatures)]
            if not any(table.pending(position(place, s)) for place in places for s in group):
                continue
            fixed = {name: axes[name][i] for name, i in outer.items()}
            local = {s: models[s].replace(fixed) for s in group}
            points = [{name: float(axes[name][place[name]]) for name in temperatures} for place in places]
            scores: Iterable[tuple[int, Pile | None]] = ((k, None) for k in range(len(points)))
            if reducible and len(group) == 1:
                left = [table.pending(position(place, group[0])) for place in places]
                scores = scores_by_temperature(local[group[0]], points, wanted.profiled, left)
            for k, score in scores:
                if score is not None:
                    yield position(places[k], group[0]), _scored(score)
                    continue
                todo = [s for s in group if table.pending(position(places[k], s))]
                if todo:
                    solved = _solved([local[s].replace(points[k]) for s in todo], wanted, trail)
                    yield from zip((position(places[k], s) for s in todo), solved, strict=True)


def _indices(axes: Mapping[str, np.ndarray], names: list[str]) -> Iterator[dict[str, int]]:
    for chosen in itertools.product(*(range(len(axes[name])) for name in names)):
        yield dict(zip(names, chosen, strict=True))


def _alike(models: list[Model]) -> list[list[int]]:
    """Return the numbers of the models in groups that have the same covariance: they differ in their values only."""
    if models[0].is_nonlinear:  # each is linearised at a solution of its own
        return [[s] for s in range(len(models))]
    groups: dict[Any, list[int]] = {}
    for s, model in enumerate(models):
        leaves, form = jax.tree.flatten(model.kernel)
        arrays = [leaf for leaf in leaves if eqx.is_array(leaf)]
        functions = tuple(id(leaf) for leaf in leaves if not eqx.is_array(leaf))
        parts: list[Any] = [*arrays, model.gamma, model.rho, model.eta, model.labels]
        for block in model.blocks:
            parts += [block.role, block.indices, block.points, block.coefficients, block.matrix, block.weights]
            parts += [block.temperature]
        groups.setdefault((form, functions, fingerprint(parts)), []).append(s)
    return list(groups.values())


def _solved(models: list[Model], wanted: _Wanted, trail: Trail) -> Iterator[dict[str, Any]]:
    """Score models that differ in their values only, by one factorisation; a nonlinear one comes alone."""
    try:
        nonlinear = evaluated(models[0], wanted.given_physics, trail, explain=True) if models[0].is_nonlinear else None
        first = solve(models[0]) if nonlinear is None else nonlinear.system
        models = models if nonlinear is None else [first.model]
    except FAILURES as failure:
        yield from ({"status": "failed", "reason": str(failure)} for _ in models)
        return
    systems = [_with_values(first, model) for model in models]
    alphas = np.stack([system.alpha for system in systems], axis=1)
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
            found = {"status": "failed", "reason": str(failure)}
        yield found


def _with_values(system: System, model: Model) -> System:
    """Return the system of a model that differs from that of another in its values only."""
    if model is system.model:
        return system
    values = model.values[system.rows.order]
    alpha, error = system.factor.solve_with_rounding(values)
    parts = dataclasses.replace(system.assembly, values=values)
    return dataclasses.replace(system, model=model, assembly=parts, alpha=alpha, error=error)


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
    found = {name: getattr(score, term) for name, term in TERMS.items()}
    found |= {"eta_hat": score.eta, "shares": list(score.shares.values()), "status": "ok"}
    if score.rounding > IMPRECISE:
        found |= {"status": "imprecise", "reason": f"rounding leaves PILE uncertain by {score.rounding:.1e}"}
    return found


def _risks(kind: str, risk: Risk | None) -> dict[str, float]:
    return {} if risk is None else {f"R_{kind}{part}": getattr(risk, name) for part, name in RISKS.items()}


def _seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    require(isinstance(seeds, Iterable), "seeds", seeds, "whole numbers, as range(10)")
    numbers = tuple(as_count(seed, "seeds", least=0) for seed in seeds)
    require(len(numbers) > 0 and len(set(numbers)) == len(numbers), "seeds", numbers, "at least one, each once")
    require(max(numbers) < 2**31, "seeds", max(numbers), "numbers below 2³¹, which every format can hold")
    return numbers


def _models(model: Any, seeds: tuple[int, ...] | None, truth: Callable[[Any], Any] | None) -> list[Model]:
    if isinstance(model, Model):
        if seeds is None:
            return [model]
        expected = "a truth to draw data from, or a function from a seed to a model"
        require(truth is not None and len(model.data) > 0, "seeds", "a model whose data are given", expected)
        return _redrawn(model, truth, seeds)
    require(callable(model), "model", model, "a ps.Model, or a function from a seed to one")
    require(seeds is not None, "seeds", seeds, "seeds to give to the function")
    models = [model(seed) for seed in seeds or ()]
    for each in models:
        require(isinstance(each, Model), "model", each, "a function that returns a ps.Model")
        same = each.labels == models[0].labels and each.parameters.keys() == models[0].parameters.keys()
        require(same, "model", each, "models with the same blocks and hyperparameters for all seeds")
    return models


def _redrawn(model: Model, truth: Any, seeds: tuple[int, ...]) -> list[Model]:
    """Return the model with data drawn anew for each seed: the operator of the truth plus noise."""
    exact = []
    for block, temperature in zip(model.data, model.temperatures, strict=False):
        values = as_vector(evaluate(block.operator(truth), block.points, "truth"), "truth", len(block.points), "point")
        exact.append((values if block.matrix is None else block.matrix @ values, 0.5 * temperature / block.weights))
    models = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        drawn = [mean + np.sqrt(variance) * rng.standard_normal(len(mean)) for mean, variance in exact]
        models.append(copy.copy(model))
        blocks = [eqx.tree_at(lambda b: b.values, *pair) for pair in zip(model.data, drawn, strict=True)]
        object.__setattr__(models[-1], "data", tuple(blocks))
    return models


def _reference(
    model: Model, truth: Any, on: Nodes | None, operator: Operator | None, operator_truth: Any, scale: Any
) -> Reference | None:
    if truth is None:
        for name, given in (("on", on), ("operator", operator), ("scale", scale), ("operator_truth", operator_truth)):
            require(given is None, name, given, "nothing without a truth")
        return None
    equation = max(model.physics, key=lambda block: (block.region is not None, block.operator.order), default=None)
    if on is None:
        region = None if equation is None else equation.region
        expected = "nodes to integrate the errors on: physics has no region to take them from"
        require(region is not None, "on", on, expected)
        assert region is not None
        on = region(GaussLegendre(30))
    if operator is None and equation is not None and isinstance(equation.operator, Operator):
        operator = equation.operator
    check_nodes(on, "on")
    dimension = model.blocks[0].dimension
    require(on.points.shape[1] == dimension, "on", on.points, f"nodes with {dimension} coordinates")
    model.kernel.check_points(on.points)
    if isinstance(operator, Operator):
        check_names(operator, model.names, "operator")
        check_bears(model.kernel, operator.indices(dimension), f"the operator {operator}")
    return reference(truth, on, operator, operator_truth=operator_truth, scale=scale)
