"""The plan of a sweep: its models, its columns, and which points share a factorisation."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Bool

from ..domains import GaussLegendre
from ..equations import Operator
from ..errors import as_count, as_vector, require
from ..inference import REDUCTION, SHIFT, KnownSolution, Reference, Score, WarmStart, reference
from ..model import Model, check_names, check_nodes, check_smoothness, evaluate, is_temperature, path_of
from ..storage import SweepTable
from .fingerprint import fingerprint

PILE_COLUMNS = {"pile": "value"} | {name: name for name in ("fit", "complexity", "constant", "rounding")}
PRIOR_COLUMNS = {"prior": "prior"}
BOUND_COLUMNS = {"lower": "lower", "upper": "upper"}
LOSS_COLUMNS = {"data_loss": "data", "physics_loss": "physics", "leave_one_out": "leave_one_out"}
RISK_COLUMNS = {"": "value", "_bias": "bias", "_variance": "variance", "_relative_l2": "relative_l2"}

NONLINEAR_COST = 20.0
"""The approximate cost of solving a nonlinear model, in factorisations."""


@dataclasses.dataclass(frozen=True, eq=False)
class SweepOutputs:
    """What a sweep computes at every point."""

    score: Score
    losses: bool = False
    known: Reference | None = None
    """The known solution that errors are computed against."""
    exact: bool = True
    """Whether the solver factors the whole covariance; otherwise there are bounds on PILE."""
    priors: bool = False
    """Whether the model has priors."""

    @property
    def columns(self) -> list[str]:
        """The names of the results."""
        kinds = [] if self.known is None else ["data", "phys"][: len(self.known.operators)]
        return [
            *PILE_COLUMNS,
            *(PRIOR_COLUMNS if self.priors else []),
            *([] if self.exact else BOUND_COLUMNS),
            *(["eta_hat"] if self.score.profiled else []),
            *(LOSS_COLUMNS if self.losses else []),
            *(f"R_{kind}{part}" for kind in kinds for part in RISK_COLUMNS),
        ]

    @property
    def scores_only(self) -> bool:
        """Whether a tridiagonal reduction of the covariance gives all results."""
        return self.exact and self.known is None and not self.losses


@dataclasses.dataclass(frozen=True, eq=False)
class SweepPlan:
    """Everything that the scores of a sweep are computed from."""

    models: list[Model]
    groups: list[list[int]]
    """Indices of models that differ in their values only."""
    axes: Mapping[str, np.ndarray]
    outputs: SweepOutputs
    seeded: bool
    """Whether the seed is a dimension."""
    warm_starts: list[WarmStart]
    """Where nonlinear models are solved from, for each group."""
    temperatures: list[str]
    """The axes that are temperatures."""
    others: list[str]
    """The other axes: a new value of one of them needs a new covariance."""

    def shares_reduction(self, task: SweepTask) -> bool:
        """Whether points of a task that differ in temperatures only share a reduction of the covariance."""
        alone, model = len(self.groups[task.group]) == 1, self.models[0]
        plain = not (model.is_nonlinear or self.outputs.score.given_blocks(model))
        return alone and bool(self.temperatures) and self.outputs.scores_only and plain

    def points(self, outer: Mapping[str, int]) -> list[dict[str, int]]:
        """Return the points with these indices of the other axes: one for each combination of temperatures."""
        return [{**outer, **inner} for inner in _indices(self.axes, self.temperatures)]

    def position(self, point: Mapping[str, int], seed: int) -> tuple[int, ...]:
        """Return the position of a point in the table."""
        return (*(point[name] for name in self.axes), *((seed,) if self.seeded else ()))


@dataclasses.dataclass(frozen=True, eq=False)
class SweepTask:
    """Points of one kernel and of models that differ in their values only."""

    group: int
    outer: Mapping[str, int]
    """The indices of the axes that are not temperatures."""
    pending: Bool[np.ndarray, "points seeds"]
    """Which points this task scores."""


def make_plan(models: list[Model], axes: Mapping[str, np.ndarray], outputs: SweepOutputs, seeded: bool) -> SweepPlan:
    """Return the plan of a sweep."""
    groups = _same_covariance(models)
    temperatures = [name for name in axes if is_temperature(path_of(models[0], name))]
    others = [name for name in axes if name not in temperatures]
    warm_starts = [WarmStart(models[group[0]]) for group in groups]
    return SweepPlan(models, groups, axes, outputs, seeded, warm_starts, temperatures, others)


def pending_tasks(plan: SweepPlan, table: SweepTable) -> Iterator[SweepTask]:
    """Yield the pending points of the table, one task for each kernel and each group of models."""
    for number, group in enumerate(plan.groups):
        for outer in _indices(plan.axes, plan.others):
            points = plan.points(outer)
            pending = np.array([[table.pending(plan.position(point, s)) for s in group] for point in points])
            if pending.any():
                yield SweepTask(number, outer, pending)


def split_task(plan: SweepPlan, task: SweepTask, most: float) -> Iterator[SweepTask]:
    """Split a task into smaller ones; points that share a reduction stay together.

    Parameters
    ----------
    plan
        The plan of the sweep.
    task
        The task.
    most
        The largest number of points in a part, for points that do not share a reduction.
    """
    parts = np.arange(len(task.pending)) // max(1, int(most))
    if plan.shares_reduction(task):
        # As in scores_by_temperature: one reduction serves all points along the longest axis of temperatures. The scale
        # η divides all other temperatures, so with it as an axis the points are not split further.
        longest = min(plan.temperatures, key=lambda name: (-len(plan.axes[name]), name))
        roles = plan.models[0].roles
        with_scale = any(roles[name] == "scale" for name in plan.temperatures)
        rest = [name for name in plan.temperatures if name != longest and not with_scale]
        keys = [tuple(point[name] for name in rest) for point in plan.points(task.outer)]
        numbers = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        parts = np.array([numbers[key] for key in keys])
    for part in dict.fromkeys(parts[task.pending.any(axis=1)].tolist()):
        yield dataclasses.replace(task, pending=task.pending & (parts == part)[:, None])


def task_cost(plan: SweepPlan, task: SweepTask) -> float:
    """Return the approximate cost of a task, in factorisations."""
    count = float(task.pending.any(axis=1).sum())
    return min(count, REDUCTION + SHIFT * count) if plan.shares_reduction(task) else count


def _indices(axes: Mapping[str, np.ndarray], names: list[str]) -> Iterator[dict[str, int]]:
    for indices in itertools.product(*(range(len(axes[name])) for name in names)):
        yield dict(zip(names, indices, strict=True))


def _same_covariance(models: list[Model]) -> list[list[int]]:
    """Return the indices of models in groups with the same covariance: they differ in their values only."""
    if models[0].is_nonlinear or not models[0].solver.forms_covariance:
        # Each is linearised at its own solution, or solved for its own values.
        return [[s] for s in range(len(models))]
    groups: dict[Any, list[int]] = {}
    for s, model in enumerate(models):
        leaves, form = jax.tree.flatten(model.kernel)
        arrays = [leaf for leaf in leaves if eqx.is_array(leaf)]
        functions = tuple(id(leaf) for leaf in leaves if not eqx.is_array(leaf))
        parts: list[Any] = [*arrays, model.gamma, model.rho, model.eta, model.labels, model.priors]
        for block in model.blocks:
            parts += [block.role, block.indices, block.points, block.coefficients, block.matrix, block.weights]
            parts += [block.temperature]
        groups.setdefault((form, functions, fingerprint(parts)), []).append(s)
    return list(groups.values())


def as_seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    """Return seeds as a tuple after checking them."""
    require(isinstance(seeds, Iterable), "seeds", seeds, "whole numbers, as range(10)")
    numbers = tuple(as_count(seed, "seeds", least=0) for seed in seeds)
    require(len(numbers) > 0 and len(set(numbers)) == len(numbers), "seeds", numbers, "at least one, each once")
    require(max(numbers) < 2**31, "seeds", max(numbers), "numbers below 2³¹, which every format can hold")
    return numbers


def seeded_models(model: Any, seeds: tuple[int, ...] | None, truth: Callable[[Any], Any] | None) -> list[Model]:
    """Return one model for each seed; without seeds, the model itself."""
    if isinstance(model, Model):
        if seeds is None:
            return [model]
        expected = "a truth to draw data from, or a function from a seed to a model"
        require(truth is not None and len(model.data) > 0, "seeds", "a model whose data are given", expected)
        return _with_drawn_data(model, truth, seeds)
    require(callable(model), "model", model, "a ps.Model, or a function from a seed to one")
    require(seeds is not None, "seeds", seeds, "seeds to give to the function")
    models = [model(seed) for seed in seeds or ()]
    for made in models:
        require(isinstance(made, Model), "model", made, "a function that returns a ps.Model")
        same = made.labels == models[0].labels and made.parameters.keys() == models[0].parameters.keys()
        require(same, "model", made, "models with the same blocks and hyperparameters for all seeds")
        same = made.solver.identity == models[0].solver.identity
        require(same, "model", made.solver, "models with the same solver for all seeds")
    return models


def _with_drawn_data(model: Model, truth: Any, seeds: tuple[int, ...]) -> list[Model]:
    """Return the model with new data for each seed: the operator applied to the truth, plus noise."""
    exact = []
    for block, temperature in zip(model.data, model.temperatures, strict=False):
        values = as_vector(evaluate(block.operator(truth), block.points, "truth"), "truth", len(block.points), "point")
        exact.append((block.observed(values), 0.5 * temperature / block.weights))
    models = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        drawn = [mean + np.sqrt(variance) * rng.standard_normal(len(mean)) for mean, variance in exact]
        blocks = [eqx.tree_at(lambda b: b.values, *pair) for pair in zip(model.data, drawn, strict=True)]
        models.append(model.replace(data=blocks))
    return models


def resolve_known(model: Model, known: KnownSolution | None) -> Reference | None:
    """Return the known solution at its nodes; nodes and operator default to those of the equation."""
    if known is None:
        return None
    on, operator = known.on, known.operator
    # The equation is the block of the highest order on a region; conditions have lower orders.
    equation = max(model.physics, key=lambda block: (block.region is not None, block.operator.order), default=None)
    if on is None:
        region = None if equation is None else equation.region
        expected = "nodes to integrate the errors on: physics has no region to take them from"
        require(region is not None, "on", on, expected)
        assert region is not None
        on = region(GaussLegendre(30))
    if operator is None and equation is not None:
        operator = equation.linear_operator
    check_nodes(on, "on")
    dimension = model.blocks[0].dimension
    require(on.points.shape[1] == dimension, "on", on.points, f"nodes with {dimension} coordinates")
    model.kernel.check_points(on.points)
    if isinstance(operator, Operator):
        check_names(operator, model.names, "operator")
        check_smoothness(model.kernel, operator.indices(dimension), f"the operator {operator}")
    return reference(dataclasses.replace(known, on=on, operator=operator))
