"""Checks for contradictions: a condition given twice, or measurements at one point that disagree."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..domains import Box, ClenshawCurtis, Slice
from ..equations import Nonlinear, Operator, identity
from ..model import evaluate
from .boundaries import face_text
from .observations import BoundaryValue, Measurements, ParsedTable, ParsingContext

MAX_DEVIATIONS = 8.0
"""Two measurements contradict each other if both would have to be wrong by more standard deviations than this."""

MAX_REPORTED = 3
"""The number of contradictions between measurements that are reported one by one."""

SAMPLES = {1: 33, 2: 9}
"""Points on each axis of a face where values are compared, by the dimension of the face; three in higher dimensions."""

RELATIVE_ROUNDING, ABSOLUTE_ROUNDING = 1e-9, 1e-15
"""Differences due to rounding: relative to the largest value of any condition, and absolute."""


def check_conditions(tables: Sequence[ParsedTable], context: ParsingContext) -> None:
    """Report operators given twice on one face, and warn about values that jump where faces meet."""
    values = [value for table in tables for value in table.boundary]
    largest = _largest(values)
    for first, second in itertools.combinations(values, 2):
        if first.face.fixed == second.face.fixed and _terms(first.operator) == _terms(second.operator):
            if first.value is None and second.value is None:
                continue  # two files may hold different points of one face
            what = f"{_text(first.operator, context)} on the face {face_text(first.face)} is already given by "
            what += context.log.label(first.place[:-1])
            difference = _difference(first, second, first.face, first.face, largest)
            differing = f", and they contradict each other: {difference}" if difference else ""
            context.log(second.place, f"{what}{differing}; expected one condition on it")
        elif _terms(first.operator) == _terms(second.operator) == _terms(identity):
            corner = _corner(context.box, first.face, second.face)
            difference = "" if corner is None else _difference(first, second, corner, corner, largest)
            if difference:
                labels = [context.log.label(value.place[:-1]) for value in (first, second)]
                context.log.warnings.append(
                    f"{context.unknown} jumps where two faces meet ({labels[0]}, {labels[1]}): {difference}"
                )


def check_periodic(tables: Sequence[ParsedTable], context: ParsingContext) -> None:
    """Report periodic conditions on faces whose given values differ, and faces that are periodic twice."""
    direct = [value for table in tables for value in table.boundary if _terms(value.operator) == _terms(identity)]
    largest, values = _largest(direct), {value.face.fixed: value for value in direct}
    seen: dict[int, ParsedTable] = {}
    for table in tables:
        if table.pair is None:
            continue
        first, second = table.pair
        axis = first.fixed[0][0]
        if axis in seen:
            earlier = context.log.label(seen[axis].place)
            context.log((*table.place, "face"), f"these faces are already periodic by {earlier}; expected this once")
        seen[axis] = table
        if first.fixed in values and second.fixed in values:
            difference = _difference(values[first.fixed], values[second.fixed], first, second, largest)
            if difference:
                faces = f"{face_text(first)} and {face_text(second)}"
                text = f"{context.unknown} must be equal on the faces {faces}, but other conditions contradict this"
                context.log(table.place, f"{text}: {difference}")


def check_measurements(tables: Sequence[ParsedTable], context: ParsingContext) -> None:
    """Report measurements of one operator at one point that differ by more than their noise can explain."""
    groups: dict[Any, list[Measurements]] = {}
    for table in tables:
        if table.measurements is not None and table.measurements.noise is not None:
            groups.setdefault(_terms(table.measurements.operator), []).append(table.measurements)
    for group in groups.values():
        _check_group(group, context)


def _check_group(group: Sequence[Measurements], context: ParsingContext) -> None:
    points = np.concatenate([each.points for each in group])
    factors = np.concatenate([np.full(len(each.values), _leading(each.operator)) for each in group])
    values = np.concatenate([each.values for each in group]) / factors
    noise = np.concatenate([each.noise for each in group if each.noise is not None]) / np.abs(factors)
    origin = [(each, row) for each in group for row in range(len(each.values))]
    _, position = np.unique(points, axis=0, return_inverse=True)
    order = np.argsort(position, kind="stable")
    found = []
    # Intervals of values at one point contradict each other if the lowest upper end is below the highest lower end:
    # one pass per point instead of all pairs.
    for members in np.split(order, np.flatnonzero(np.diff(position[order])) + 1):
        low = members[np.argmin(values[members] + MAX_DEVIATIONS * noise[members])]
        high = members[np.argmax(values[members] - MAX_DEVIATIONS * noise[members])]
        if values[high] - MAX_DEVIATIONS * noise[high] > values[low] + MAX_DEVIATIONS * noise[low]:
            found.append((low, high))
    for low, high in found[:MAX_REPORTED]:
        (one, i), (other, j) = origin[low], origin[high]
        at = ", ".join(f"{name} = {value:.6g}" for name, value in zip(context.box.names, points[low], strict=True))
        context.log(
            one.place,
            f"two measurements of {_text(one.operator, context)} at {at} contradict each other: {one.values[i]:.6g} in "
            f"{one.file} line {one.lines[i]}, {other.values[j]:.6g} in {other.file} line {other.lines[j]}, with "
            f"standard deviations {noise[low]:.2g} and {noise[high]:.2g}; expected equal values, or more noise",
        )
    if len(found) > MAX_REPORTED:
        context.log(group[0].place, f"measurements contradict each other at {len(found) - MAX_REPORTED} more points")


def _index(alpha: Sequence[int]) -> tuple[int, ...]:
    """Return a multi-index without trailing zeros, which operators without coordinates omit."""
    return tuple(alpha[: max((i + 1 for i, order in enumerate(alpha) if order), default=0)])


def _leading(operator: Operator | Nonlinear) -> float:
    """Return the constant factor of the highest term of an operator; 1 if that is not a plain number."""
    if isinstance(operator, Nonlinear):
        return 1.0
    _, coefficient = max((_index(alpha), coefficient) for alpha, coefficient in operator.terms)
    return coefficient[0][1] if len(coefficient) == 1 and not coefficient[0][0] else 1.0


def _terms(operator: Operator | Nonlinear) -> frozenset[Any]:
    """Return the terms of an operator up to a factor and their order; the text of a nonlinear operator."""
    if isinstance(operator, Nonlinear):
        return frozenset([operator.name])
    factor, names = _leading(operator), [str(atom) for atom in operator.atoms]
    terms = set()
    for alpha, coefficient in operator.terms:
        for monomial, number in coefficient:
            terms.add((_index(alpha), frozenset((names[i], power) for i, power in monomial), number / factor))
    return frozenset(terms)


def _text(operator: Operator | Nonlinear, context: ParsingContext) -> str:
    if isinstance(operator, Nonlinear):
        return operator.name
    return context.unknown if str(operator) == "Id" else f"{operator} of {context.unknown}"


def _corner(box: Box, first: Slice, second: Slice) -> Slice | None:
    fixed = dict(first.fixed) | dict(second.fixed)
    if len(fixed) < 2:
        return None  # opposite faces do not meet
    return box.slice(**{box.names[axis]: value for axis, value in fixed.items()})


def _values(value: BoundaryValue, on: Slice) -> tuple[np.ndarray, np.ndarray]:
    """Return sample points on (part of) a face and the values there, divided by the operator's leading factor."""
    free = on.dimension - len(on.fixed)
    nodes = on(ClenshawCurtis(SAMPLES.get(free, 3)))
    assert value.value is not None
    found = evaluate(value.value, nodes.points, "value").astype(float)
    return nodes.points, found / _leading(value.operator) + 0.0  # + 0.0 turns −0 into 0 for messages


def _largest(values: Sequence[BoundaryValue]) -> float:
    """Return the largest absolute value of any condition."""
    samples = [_values(value, value.face)[1] for value in values if value.value is not None]
    return max((float(np.abs(sample[np.isfinite(sample)]).max(initial=0.0)) for sample in samples), default=0.0)


def _difference(first: BoundaryValue, second: BoundaryValue, on: Slice, other: Slice, largest: float) -> str:
    """Describe where two conditions differ; empty if they agree or if one comes from a file."""
    if first.value is None or second.value is None:
        return ""
    (points, one), (_, two) = _values(first, on), _values(second, other)
    # Values that are not finite are reported by `impose`.
    gap = np.where(np.isfinite(one) & np.isfinite(two), np.abs(one - two), 0.0)
    worst = int(np.argmax(gap))
    if gap[worst] <= RELATIVE_ROUNDING * largest + ABSOLUTE_ROUNDING:
        return ""
    at = ", ".join(f"{name} = {value:.6g}" for name, value in zip(on.names, points[worst], strict=True))
    return f"at {at} one gives {one[worst]:.6g} and the other {two[worst]:.6g}"
