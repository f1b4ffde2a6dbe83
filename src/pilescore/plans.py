"""What a sweep computes, and in which pieces: points of one kernel, and of models that differ in values, together."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Bool

from .accuracy import Reference
from .evaluation import Trail
from .families import REDUCTION, SHIFT
from .methods import solver_of
from .model import Model, find, is_temperature, named_paths
from .records import Table, fingerprint

TERMS = {"pile": "value", "fit": "fit", "complexity": "complexity", "constant": "constant", "rounding": "rounding"}
LOSSES = {"data_loss": "data", "physics_loss": "physics", "leave_one_out": "leave_one_out"}
RISKS = {"": "value", "_bias": "bias", "_variance": "variance", "_relative_l2": "relative_l2"}
BOUNDS = {"lower": "lower", "upper": "upper"}
NONLINEAR = 20.0
"""What solving a nonlinear model costs, in factorisations, about."""


@dataclasses.dataclass(frozen=True, eq=False)
class Wanted:
    """What is to be found at every point."""

    profiled: bool
    given_physics: bool
    losses: bool
    known: Reference | None
    """The known solution."""
    method: str = "dense"
    """The identity of the solver."""

    @property
    def columns(self) -> list[str]:
        """The names of the results."""
        kinds = [] if self.known is None else ["data", "phys"][: len(self.known.operators)]
        risks = [f"R_{kind}{part}" for kind in kinds for part in RISKS]
        bounds = [] if self.method == "dense" else BOUNDS
        return [*TERMS, *bounds, *(["eta_hat"] if self.profiled else []), *(LOSSES if self.losses else []), *risks]

    @property
    def scores_only(self) -> bool:
        """Whether a reduced covariance gives all of it."""
        return self.known is None and not self.given_physics and not self.losses and self.method == "dense"


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """All that the scores of a sweep are computed from."""

    models: list[Model]
    groups: list[list[int]]
    """Numbers of models that differ in their values only."""
    axes: Mapping[str, np.ndarray]
    wanted: Wanted
    several: bool
    """Whether the seed is a dimension."""
    trails: list[Trail]
    """Where the solutions of nonlinear models are sought from, for each group."""
    temperatures: list[str]
    others: list[str]

    @property
    def reducible(self) -> bool:
        """Whether points of one kernel can share a reduction of the covariance."""
        return bool(self.temperatures) and self.wanted.scores_only and not self.models[0].is_nonlinear

    def places(self, outer: Mapping[str, int]) -> list[dict[str, int]]:
        """Return the points of one kernel, by their indices."""
        return [{**outer, **inner} for inner in _indices(self.axes, self.temperatures)]

    def position(self, chosen: Mapping[str, int], seed: int) -> tuple[int, ...]:
        """Return where a point stands in the table."""
        return (*(chosen[name] for name in self.axes), *((seed,) if self.several else ()))


@dataclasses.dataclass(frozen=True, eq=False)
class Unit:
    """Points of one kernel and of models that differ in their values only."""

    group: int
    outer: Mapping[str, int]
    left: Bool[np.ndarray, "points seeds"]
    """Which are to be scored."""


def planned(models: list[Model], axes: Mapping[str, np.ndarray], wanted: Wanted, several: bool) -> Plan:
    """Return the plan of a sweep."""
    groups = _alike(models)
    known = named_paths(models[0])
    temperatures = [name for name in axes if is_temperature(known[find(models[0], known, name)[0]][0])]
    others = [name for name in axes if name not in temperatures]
    trails = [Trail(models[group[0]]) for group in groups]
    return Plan(models, groups, axes, wanted, several, trails, temperatures, others)


def pending_units(plan: Plan, table: Table) -> Iterator[Unit]:
    """Give what is pending: the points of one kernel together, and those of seeds that differ in values."""
    for number, group in enumerate(plan.groups):
        for outer in _indices(plan.axes, plan.others):
            places = plan.places(outer)
            left = np.array([[table.pending(plan.position(place, s)) for s in group] for place in places])
            if left.any():
                yield Unit(number, outer, left)


def pieces(plan: Plan, unit: Unit, most: float) -> Iterator[Unit]:
    """Give a unit in pieces that tasks can be made of; points that share a reduction stay together."""
    marks = np.arange(len(unit.left)) // max(1, int(most))
    if plan.reducible and len(plan.groups[unit.group]) == 1:
        longest = min(plan.temperatures, key=lambda name: (-len(plan.axes[name]), name))
        rest = [name for name in plan.temperatures if name != longest and "eta" not in plan.temperatures]
        keys = [tuple(place[name] for name in rest) for place in plan.places(unit.outer)]
        numbers = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        marks = np.array([numbers[key] for key in keys])
    for mark in dict.fromkeys(marks[unit.left.any(axis=1)].tolist()):
        yield dataclasses.replace(unit, left=unit.left & (marks == mark)[:, None])


def weight(plan: Plan, unit: Unit) -> float:
    """Return what a unit costs, in factorisations."""
    count = float(unit.left.any(axis=1).sum())
    reduced = plan.reducible and len(plan.groups[unit.group]) == 1
    return min(count, REDUCTION + SHIFT * count) if reduced else count


def _indices(axes: Mapping[str, np.ndarray], names: list[str]) -> Iterator[dict[str, int]]:
    for chosen in itertools.product(*(range(len(axes[name])) for name in names)):
        yield dict(zip(names, chosen, strict=True))


def _alike(models: list[Model]) -> list[list[int]]:
    """Return the numbers of the models in groups that have the same covariance: they differ in their values only."""
    if models[0].is_nonlinear or solver_of(models[0]).identity != "dense":
        # each is linearised at a solution of its own, or solved for its own values
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
