"""What in a problem cannot all be true: conditions given twice, readings of one point that disagree."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..domains import Box, Slice
from ..nonlinear import Nonlinear
from ..observations import evaluate
from ..operators import Operator, identity
from ..quadrature import ClenshawCurtis
from .blocks import Ground, Held, Piece, Readings
from .faces import face_text

IMPOSSIBLE = 8.0
"""Deviations of each of two readings of one thing that cannot both be so wrong."""

NAMED = 3
"""Contradictions between readings that are named one by one."""

SAMPLES = {1: 33, 2: 9}
"""Points on each axis of a face at which values are compared, by its dimension; three beyond."""

ROUNDING = (1e-9, 1e-15)
"""Differences that are due to rounding: relative to the largest value that a condition has anywhere, and absolute."""


def check_conditions(pieces: Sequence[Piece], ground: Ground) -> None:
    """Report operators that two conditions hold on one face, and warn of values that jump where faces meet."""
    held = [each for piece in pieces for each in piece.held]
    largest = _largest(held)
    for first, second in itertools.combinations(held, 2):
        if first.face.fixed == second.face.fixed and _terms(first.operator) == _terms(second.operator):
            if first.value is None and second.value is None:
                continue  # points of one face from two files
            what = f"{_text(first.operator, ground)} on the face {face_text(first.face)} is already given by "
            what += ground.notes.label(first.place[:-1])
            apart = _apart(first, second, first.face, first.face, largest)
            differing = f", and they contradict each other: {apart}" if apart else ""
            ground.notes(second.place, f"{what}{differing}; expected one condition on it")
        elif _terms(first.operator) == _terms(second.operator) == _terms(identity):
            corner = _corner(ground.box, first.face, second.face)
            apart = "" if corner is None else _apart(first, second, corner, corner, largest)
            if apart:
                labels = [ground.notes.label(each.place[:-1]) for each in (first, second)]
                ground.notes.warnings.append(
                    f"{ground.unknown} jumps where two faces meet ({labels[0]}, {labels[1]}): {apart}"
                )


def check_periodic(pieces: Sequence[Piece], ground: Ground) -> None:
    """Report a periodic condition on faces whose values are given and differ."""
    held = [each for piece in pieces for each in piece.held if _terms(each.operator) == _terms(identity)]
    largest, values = _largest(held), {each.face.fixed: each for each in held}
    seen: dict[int, Piece] = {}
    for piece in pieces:
        if piece.pair is None:
            continue
        first, second = piece.pair
        axis = first.fixed[0][0]
        if axis in seen:
            earlier = ground.notes.label(seen[axis].place)
            ground.notes((*piece.place, "face"), f"these faces are already periodic by {earlier}; expected it once")
        seen[axis] = piece
        if first.fixed in values and second.fixed in values:
            apart = _apart(values[first.fixed], values[second.fixed], first, second, largest)
            if apart:
                faces = f"{face_text(first)} and {face_text(second)}"
                text = (
                    f"{ground.unknown} is to agree on the faces {faces}, but other conditions contradict that: {apart}"
                )
                ground.notes(piece.place, text)


def check_readings(pieces: Sequence[Piece], ground: Ground) -> None:
    """Report readings of one operator at one point that differ by more than their noise can explain."""
    groups: dict[Any, list[Readings]] = {}
    for piece in pieces:
        if piece.readings is not None and piece.readings.noise is not None:
            groups.setdefault(_terms(piece.readings.operator), []).append(piece.readings)
    for group in groups.values():
        _check_group(group, ground)


def _check_group(group: Sequence[Readings], ground: Ground) -> None:
    points = np.concatenate([each.points for each in group])
    factors = np.concatenate([np.full(len(each.values), _leading(each.operator)) for each in group])
    values = np.concatenate([each.values for each in group]) / factors
    noise = np.concatenate([each.noise for each in group if each.noise is not None]) / np.abs(factors)
    origin = [(each, row) for each in group for row in range(len(each.values))]
    _, place = np.unique(points, axis=0, return_inverse=True)
    order = np.argsort(place, kind="stable")
    found = []
    for members in np.split(order, np.flatnonzero(np.diff(place[order])) + 1):
        low = members[np.argmin(values[members] + IMPOSSIBLE * noise[members])]
        high = members[np.argmax(values[members] - IMPOSSIBLE * noise[members])]
        if values[high] - IMPOSSIBLE * noise[high] > values[low] + IMPOSSIBLE * noise[low]:
            found.append((low, high))
    for low, high in found[:NAMED]:
        (one, i), (other, j) = origin[low], origin[high]
        at = ", ".join(f"{name} = {value:.6g}" for name, value in zip(ground.box.names, points[low], strict=True))
        ground.notes(
            one.place,
            f"two readings of {_text(one.operator, ground)} at {at} contradict each other: {one.values[i]:.6g} in "
            f"{one.file} line {one.lines[i]}, {other.values[j]:.6g} in {other.file} line {other.lines[j]}, with "
            f"deviations {noise[low]:.2g} and {noise[high]:.2g}; expected one value, or more noise",
        )
    if len(found) > NAMED:
        ground.notes(group[0].place, f"readings contradict each other at {len(found) - NAMED} more points")


def _index(alpha: Sequence[int]) -> tuple[int, ...]:
    """Return a multi-index without zeros at its end, which operators without coordinates leave out."""
    return tuple(alpha[: max((i + 1 for i, order in enumerate(alpha) if order), default=0)])


def _leading(operator: Operator | Nonlinear) -> float:
    """Return the number before the highest term of an operator; one where there is not a number alone."""
    if isinstance(operator, Nonlinear):
        return 1.0
    _, coefficient = max((_index(alpha), coefficient) for alpha, coefficient in operator.terms)
    return coefficient[0][1] if len(coefficient) == 1 and not coefficient[0][0] else 1.0


def _terms(operator: Operator | Nonlinear) -> frozenset[Any]:
    """Return the terms of an operator up to a factor, however they are ordered; a nonlinear one is as it is written."""
    if isinstance(operator, Nonlinear):
        return frozenset([operator.name])
    factor, names = _leading(operator), [str(atom) for atom in operator.atoms]
    found = set()
    for alpha, coefficient in operator.terms:
        for monomial, number in coefficient:
            found.add((_index(alpha), frozenset((names[i], power) for i, power in monomial), number / factor))
    return frozenset(found)


def _text(operator: Operator | Nonlinear, ground: Ground) -> str:
    if isinstance(operator, Nonlinear):
        return operator.name
    return ground.unknown if str(operator) == "Id" else f"{operator} of {ground.unknown}"


def _corner(box: Box, first: Slice, second: Slice) -> Slice | None:
    fixed = dict(first.fixed) | dict(second.fixed)
    if len(fixed) < 2:
        return None  # opposite faces do not meet
    return box.slice(**{box.names[axis]: value for axis, value in fixed.items()})


def _values(held: Held, on: Slice) -> tuple[np.ndarray, np.ndarray]:
    """Return points of a face, or part of one, and what is held there, for an operator that begins with 1."""
    free = on.dimension - len(on.fixed)
    nodes = on(ClenshawCurtis(SAMPLES.get(free, 3)))
    assert held.value is not None
    return nodes.points, evaluate(held.value, nodes.points, "value").astype(float) / _leading(held.operator) + 0.0


def _largest(held: Sequence[Held]) -> float:
    """Return the largest value that a condition has anywhere."""
    found = [_values(each, each.face)[1] for each in held if each.value is not None]
    return max((float(np.abs(each[np.isfinite(each)]).max(initial=0.0)) for each in found), default=0.0)


def _apart(first: Held, second: Held, on: Slice, other: Slice, largest: float) -> str:
    """Return where two conditions differ, in words; nothing if they agree or one comes from a file."""
    if first.value is None or second.value is None:
        return ""
    (points, one), (_, two) = _values(first, on), _values(second, other)
    gap = np.where(np.isfinite(one) & np.isfinite(two), np.abs(one - two), 0.0)  # what is not finite is said elsewhere
    worst = int(np.argmax(gap))
    if gap[worst] <= ROUNDING[0] * largest + ROUNDING[1]:
        return ""
    at = ", ".join(f"{name} = {value:.6g}" for name, value in zip(on.names, points[worst], strict=True))
    return f"at {at} it is {one[worst]:.6g} by the one and {two[worst]:.6g} by the other"
