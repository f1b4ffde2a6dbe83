"""Changes of the physics that are tried one at a time.

In an equation another coefficient, one more term, another source; in a condition other values.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..equations import MultiIndex, Nonlinear, Operator, parameter
from ..model import Model, Observation
from .findings import digits
from .residuals import Residuals, block_kind

FREED = "freed_by_diagnosis"
"""The name of the parameter that a change adds to a model."""

COEFFICIENT_BOUNDS = (-3.0, 4.0)
"""Bounds of the relative change of a coefficient: it may change its sign."""

TERM_BOUNDS = (-5.0, 5.0)
"""Bounds of a new term, as a multiple of the size of the others."""

ONE = (((), 1.0),)
"""The coefficient one."""


@dataclasses.dataclass(frozen=True, eq=False)
class Change:
    """One number that is fixed in an equation and might be another."""

    kind: str
    """`coefficient`, `term`, `source`, or `value` of a condition."""
    label: str
    """The label of the equation."""
    number: int
    """The position of its block."""
    unit: float
    """What one step of the number adds, in the user's units: to the coefficient of `symbol`, or to the source."""
    present: float | None
    """The present coefficient; None if it is not one number."""
    symbol: str
    """The term, as text."""
    operator: Observation | None
    """The block with the derivative of its operator, if that changes."""
    values: Float[np.ndarray, " n"] | None
    """The derivative of the imposed values, or of those of the linearised equation."""
    freed: Callable[[Model], Model] | None
    """Returns a model with the number as the parameter `FREED`; None if it is in the imposed values."""
    bounds: tuple[float, float]

    def described(self, step: float, error: float) -> str:
        """Return the change that the data would like, in words."""
        off = f" ± {digits(abs(self.unit) * error)}" if math.isfinite(error) else ""
        if self.kind == "coefficient" and self.present is not None:
            there = f"{digits(self.present + self.unit * step)}{off} instead of {digits(self.present)}"
            return f"in {self.label!r} the coefficient of {self.symbol} would be {there}"
        if self.kind == "coefficient":
            # Not one number: a function of the point, or the nonlinear part.
            off = f" ± {digits(error)}" if math.isfinite(error) else ""
            return f"in {self.label!r} the term {self.symbol} would be {digits(1.0 + step)}{off} times as large"
        there = f"{digits(self.unit * step)}{off}"
        if self.kind == "value":
            return f"the values imposed by {self.label!r} would be larger{self.symbol} by {there}"
        if self.kind == "source":
            return f"the imposed values of {self.label!r} would be larger by {there}"
        return f"{self.label!r} would have the term {there} {self.symbol} besides"


def equation_changes(source: Model, residuals: Residuals) -> list[Change]:
    """Return the changes of the equations of a model that are not another way to write the same equation.

    Parameters
    ----------
    source
        The model as it was given, with tolerances of exact equations.
    residuals
        Its residuals, of the linearised model if it is nonlinear.
    """
    changes: list[Change] = []
    for number, (block, linear) in enumerate(zip(source.blocks, residuals.model.blocks, strict=True)):
        if block_kind(block, source) == "equation" and not block.is_functional and block.role == "physics":
            changes += _changes_of(source, number, block, linear, residuals)
    return changes


def condition_changes(source: Model, residuals: Residuals) -> list[Change]:
    """Return changes of the values that conditions impose.

    They are a constant, a slope along each axis, and a constant on one face of several.
    """
    changes = []
    data = source.values[residuals.data]
    size = float(np.std(data)) or float(np.sqrt(np.mean(data**2))) or 1.0
    for number, block in enumerate(source.blocks):
        if block_kind(block, source) != "conditions":
            continue
        unit = size * float(
            np.sqrt(np.mean(residuals.prior[source.rows[number]]) / np.mean(residuals.prior[residuals.data]))
        )
        for name, shape in _shapes(block, source.names):
            label, values = source.labels[number], unit * shape
            changes.append(Change("value", label, number, unit, None, name, None, values, None, TERM_BOUNDS))
    return changes


def _shapes(block: Observation, names: tuple[str, ...]) -> Iterator[tuple[str, Float[np.ndarray, " n"]]]:
    """Iterate over functions on the nodes of a condition, of size one, with their names."""
    yield "", np.ones(block.size)
    centres = block.centres
    axes = names or tuple(f"x{i}" for i in range(block.dimension))
    for axis, name in enumerate(axes):
        place = centres[:, axis]
        if np.ptp(place) > 0 and block.size > 2:
            yield f" at the end of {name}", 2.0 * (place - place.min()) / np.ptp(place) - 1.0
        for end in (place.min(), place.max()):
            on_face = np.isclose(place, end, rtol=0.0, atol=1e-9 * (np.ptp(centres) or 1.0))
            if 1 < on_face.sum() < block.size:
                yield f" at {name} = {end:.4g}", on_face.astype(float)


def _changes_of(
    source: Model, number: int, block: Observation, linear: Observation, residuals: Residuals
) -> Iterator[Change]:
    label, operator = source.labels[number], block.operator
    coefficients = np.asarray(linear.coefficients)
    terms = [row * residuals.mean_of(alpha, linear) for row, alpha in zip(coefficients, linear.indices, strict=True)]
    size = math.sqrt(max(float(np.mean(np.square(terms).sum(axis=0) + block.values**2)), 1e-300))
    if isinstance(operator, Nonlinear):
        yield from _nonlinear_changes(operator, number, block, linear, label, residuals)
    else:
        parts = _parts(operator)
        tables = [np.asarray(part.coefficients(block.points)) for part in parts]
        means = [residuals.mean_of(part.indices(block.dimension)[0], block) for part in parts]
        for i in _free_parts(block, parts, [table * mean for table, mean in zip(tables, means, strict=True)]):
            yield _coefficient(block, parts[i], tables[i], number, label)
    present = {*linear.indices}
    for alpha in _candidates(block.dimension):
        if alpha in present or not source.kernel.supports(alpha):
            continue
        ones = dataclasses.replace(linear, indices=(alpha,), table=np.ones((1, block.size)), values=linear.values)
        scale = float(np.sqrt(np.mean(residuals.mean_of(alpha, linear) ** 2)))
        if scale > 0:
            yield _term(block, number, alpha, size / scale, label, ones, source.names)
    # A constant source; with an unknown that occurs without derivatives it is not the same as another unknown.
    shift = np.full(block.size, size)
    yield Change("source", label, number, size, None, "", None, shift, None, TERM_BOUNDS)


def _parts(operator: Operator) -> list[Operator]:
    """Return the summands of an operator: one for each product in each coefficient."""
    return [
        Operator(operator.names, ((alpha, (product,)),), operator.atoms)
        for alpha, coefficient in operator.terms
        for product in coefficient
    ]


def _free_parts(block: Observation, parts: list[Operator], sizes: list[np.ndarray]) -> list[int]:
    """Return the summands whose coefficient may be freed.

    A multiple of an equation whose values are zero is the same equation. So a single term says nothing, and of two
    terms one is enough: not the one whose coefficient is one.
    """
    every = [i for i, size in enumerate(sizes) if np.abs(size).max() > 0]
    if not block.zero or len(every) > 2:
        return every
    if len(every) < 2:
        return []
    plain = [i for i in every if _number(parts[i]) in (1.0, -1.0)]
    return [i for i in every if i != (plain or every)[0]]


def _number(part: Operator) -> float | None:
    """Return the coefficient of a summand if it is a number."""
    product, factor = part.terms[0][1][0]
    return None if product else float(factor)


def _coefficient(block: Observation, part: Operator, table: np.ndarray, number: int, label: str) -> Change:
    alpha = part.terms[0][0]
    bare = Operator(part.names if any(alpha) else (), ((alpha, ONE),), ())
    # A number, or a parameter with its present value; else a function of the point.
    present = float(table[0, 0]) if np.ptp(table) == 0.0 else None
    tangent = dataclasses.replace(block, indices=part.indices(block.dimension), table=table)

    def freed(model: Model) -> Model:
        return _with_operator(model, number, lambda old: old + parameter(FREED, 0.0) * part)

    symbol, unit = (str(part), 1.0) if present is None else (str(bare), present)
    return Change("coefficient", label, number, unit, present, symbol, tangent, None, freed, COEFFICIENT_BOUNDS)


def _term(
    block: Observation, number: int, alpha: MultiIndex, unit: float, label: str, ones: Observation, names: Any
) -> Change:
    plain = block.operator.names or names or tuple(f"x{i}" for i in range(block.dimension))
    bare = Operator(plain if any(alpha) else (), ((alpha if any(alpha) else (), ONE),), ())
    tangent = dataclasses.replace(ones, table=np.full((1, block.size), unit))

    def freed(model: Model) -> Model:
        return _with_operator(model, number, lambda old: _plus(old, unit * bare))

    return Change("term", label, number, unit, None, str(bare), tangent, None, freed, TERM_BOUNDS)


def _plus(old: Operator | Nonlinear, term: Operator) -> Operator | Nonlinear:
    """Return an operator with another term, multiplied by the parameter `FREED`, which is zero."""
    if isinstance(old, Operator):
        return old + parameter(FREED, 0.0) * term
    function = old.function

    def with_term(step: Any, point: Any, values: Any, numbers: Any) -> Any:
        return function(point, *values[:-1], **numbers) + step * values[-1]

    return _freed(old, with_term, (term,))


Family: TypeAlias = Callable[[Any, Any, Any, Any], Any]
"""A function of a step, a point, the values of the linear operators, and the parameters by name; `P` at step zero."""


def _freed(old: Nonlinear, family: Family, more: tuple[Operator, ...] = ()) -> Nonlinear:
    """Return a nonlinear operator with the step of a family of functions as the parameter `FREED`."""

    def function(point: Any, *values: Any, **numbers: Any) -> Any:
        return family(numbers.pop(FREED), point, values, numbers)

    known = {atom.name: atom.value for atom in old.atoms}
    return Nonlinear(function, (*old.of, *more), parameters={**known, FREED: 0.0}, name=old.name)


def _families(operator: Nonlinear, dimension: int) -> Iterator[tuple[str, Family]]:
    """Iterate over the parts of a nonlinear operator that may have another factor, each with its name.

    They are its parameters, the linear part in each of its arguments, `∂P/∂v` at zero times `v`, and the rest.
    """
    function = operator.function

    def slopes(point: Any, values: Any, numbers: Any) -> Any:
        zeros = tuple(jnp.zeros(()) for _ in values)
        return jax.grad(lambda v: jnp.asarray(function(point, *v, **numbers), dtype=float))(zeros)

    for atom in operator.atoms:

        def scaled(step: Any, point: Any, values: Any, numbers: Any, name: str = atom.name) -> Any:
            return function(point, *values, **{**numbers, name: numbers[name] * (1.0 + step)})

        yield atom.name, scaled
    for q, each in enumerate(operator.of):

        def larger(step: Any, point: Any, values: Any, numbers: Any, q: int = q) -> Any:
            return function(point, *values, **numbers) + step * slopes(point, values, numbers)[q] * values[q]

        yield str(each), larger
    if operator.nonlinear_in(dimension):

        def bent(step: Any, point: Any, values: Any, numbers: Any) -> Any:
            straight = sum(a * v for a, v in zip(slopes(point, values, numbers), values, strict=True))
            whole, at_zero = function(point, *values, **numbers), function(point, *[0.0 * v for v in values], **numbers)
            return whole + step * (whole - at_zero - straight)

        yield "that is not linear", bent


def _nonlinear_changes(
    operator: Nonlinear, number: int, block: Observation, linear: Observation, label: str, residuals: Residuals
) -> Iterator[Change]:
    """Iterate over the changes of the parts of a nonlinear operator, linearised at its solution."""
    points = jnp.asarray(block.points)
    tables = [np.asarray(each.coefficients(block.points)) for each in operator.of]
    indices = [each.indices(block.dimension) for each in operator.of]
    means = {alpha: residuals.mean_of(alpha, linear) for alpha in {*itertools.chain(*indices)}}
    at = [
        sum(row * means[alpha] for row, alpha in zip(table, places, strict=True))
        for table, places in zip(tables, indices, strict=True)
    ]
    numbers = {atom.name: atom.value for atom in operator.atoms}
    for name, family in _families(operator, block.dimension):

        def slope(point: Any, values: Any, family: Family = family) -> Any:
            changed = lambda step: jnp.asarray(family(step, point, values, numbers), dtype=float)  # noqa: E731
            return jax.jvp(changed, (jnp.zeros(()),), (jnp.ones(()),))[1]

        values, partial = jax.vmap(jax.value_and_grad(slope, argnums=1))(points, tuple(map(jnp.asarray, at)))
        if not np.any(np.asarray(values)):
            continue
        whole = {alpha: np.zeros(block.size) for alpha in linear.indices}
        for part, table, places in zip(partial, tables, indices, strict=True):
            for row, alpha in zip(table, places, strict=True):
                whole[alpha] = whole[alpha] + np.asarray(part) * row
        tangent = dataclasses.replace(linear, table=np.stack([whole[alpha] for alpha in linear.indices]))
        # The linearised equation is B f = t − F(f̂) + B f̂.
        moved = sum(np.asarray(part) * v for part, v in zip(partial, at, strict=True)) - np.asarray(values)

        def freed(model: Model, family: Family = family) -> Model:
            return _with_operator(model, number, lambda old: _freed(old, family))

        known = float(numbers[name]) if name in numbers else None
        unit = 1.0 if known is None else known
        yield Change("coefficient", label, number, unit, known, name, tangent, moved, freed, COEFFICIENT_BOUNDS)


def _with_operator(model: Model, number: int, changed: Callable[[Any], Any]) -> Model:
    """Return a model with another operator in one block; everything else, tolerances included, is kept."""
    blocks = list(model.physics)
    place = number - len(model.data)
    old = blocks[place]
    operator = changed(old.operator)
    indices = operator.indices(old.dimension)
    blocks[place] = dataclasses.replace(old, operator=operator, indices=indices, table=None)
    return model.replace(physics=blocks)


def shifted(model: Model, change: Change, step: float) -> Model:
    """Return a model with other imposed values; it is scored given the same blocks as before."""
    blocks = list(model.physics)
    place = change.number - len(model.data)
    assert change.values is not None
    values = blocks[place].values + step * change.values
    blocks[place] = dataclasses.replace(blocks[place], values=values, source=None)
    return model.replace(physics=blocks)


def _candidates(dimension: int) -> list[MultiIndex]:
    """Return the multi-indices of the identity, of first derivatives and of second derivatives along one axis."""
    unit = np.eye(dimension, dtype=int)
    return [tuple(map(int, row)) for row in (*np.zeros((1, dimension), dtype=int), *unit, *(2 * unit))]
