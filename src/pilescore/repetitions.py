"""The models of a sweep: one for each seed, and the solution that they are judged by."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import numpy as np

from .accuracy import Reference, reference
from .domains import Nodes
from .errors import as_count, as_vector, require
from .methods import solver_of
from .model import Model, check_bears
from .observations import check_names, check_nodes, evaluate
from .operators import Operator
from .quadrature import GaussLegendre


def as_seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    """Return seeds that were checked."""
    require(isinstance(seeds, Iterable), "seeds", seeds, "whole numbers, as range(10)")
    numbers = tuple(as_count(seed, "seeds", least=0) for seed in seeds)
    require(len(numbers) > 0 and len(set(numbers)) == len(numbers), "seeds", numbers, "at least one, each once")
    require(max(numbers) < 2**31, "seeds", max(numbers), "numbers below 2³¹, which every format can hold")
    return numbers


def seeded_models(model: Any, seeds: tuple[int, ...] | None, truth: Callable[[Any], Any] | None) -> list[Model]:
    """Return a model for each seed, or the only one."""
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
        alike = solver_of(each).identity == solver_of(models[0]).identity
        require(alike, "model", solver_of(each), "models with the same solver for all seeds")
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


def known_solution(
    model: Model, truth: Any, on: Nodes | None, operator: Operator | None, operator_truth: Any, scale: Any
) -> Reference | None:
    """Return what models are judged by, with what was left out taken from the equation; None without a truth."""
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
