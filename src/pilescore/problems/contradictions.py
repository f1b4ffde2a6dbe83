"""What in a problem cannot all be true: conditions given twice, readings of one point that disagree."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from ..domains import Box, Slice
from ..expressions import Function
from ..observations import evaluate
from ..operators import Operator, identity
from ..quadrature import ClenshawCurtis
from .blocks import Ground, Held, Piece, Readings
from .faces import face_text

IMPOSSIBLE = 8.0
"""Deviations by which two readings of one thing may differ at most."""

SAMPLES = {0: 1, 1: 33, 2: 9}
"""Points on each axis of a face at which values are compared, by its dimension; three beyond."""


def check_conditions(pieces: Sequence[Piece], ground: Ground) -> None:
    """Report operators that two conditions hold on one face, and warn of values that jump where faces meet."""
    held = [each for piece in pieces for each in piece.held]
    for first, second in itertools.combinations(held, 2):
        if first.face.fixed == second.face.fixed and _same(first.operator, second.operator):
            what = f"{_text(first.operator, ground)} on the face {face_text(first.face)} is already given by "
            what += ground.notes.label(first.place[:-1])
            apart = _apart(first, second, first.face)
            differing = f", and they contradict each other: {apart}" if apart else ""
            ground.notes(second.place, f"{what}{differing}; expected one condition on it")
        elif _same(first.operator, identity) and _same(second.operator, identity):
            corner = _corner(ground.box, first.face, second.face)
            apart = _apart(first, second, corner) if corner is not None else ""
            if apart:
                labels = [ground.notes.label(each.place[:-1]) for each in (first, second)]
                ground.notes.warnings.append(
                    f"{ground.unknown} jumps where two faces meet ({labels[0]}, {labels[1]}): {apart}"
                )


def check_periodic(pieces: Sequence[Piece], ground: Ground) -> None:
    """Report a periodic condition on faces whose values are given and differ."""
    values = {each.face.fixed: each for p in pieces for each in p.held if _same(each.operator, identity)}
    seen: dict[object, Piece] = {}
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
            apart = _apart(values[first.fixed], values[second.fixed], first, second)
            if apart:
                ground.notes(
                    piece.place,
                    f"{ground.unknown} is to agree on the faces {face_text(first)} and {face_text(second)}, but "
                    f"other conditions contradict that: {apart}",
                )


def check_readings(pieces: Sequence[Piece], ground: Ground) -> None:
    """Report readings of one operator at one point that differ by more than their noise can explain."""
    remaining = [piece.readings for piece in pieces if piece.readings is not None and piece.readings.noise is not None]
    while remaining:
        first, *others = remaining
        group = [first, *(each for each in others if _same(each.operator, first.operator))]
        remaining = [each for each in others if not _same(each.operator, first.operator)]
        _check_group(group, ground)


def _check_group(group: Sequence[Readings], ground: Ground) -> None:
    points, values = np.concatenate([r.points for r in group]), np.concatenate([r.values for r in group])
    noise = np.concatenate([r.noise for r in group if r.noise is not None])
    origin = [(each, row) for each in group for row in range(len(each.values))]
    _, place = np.unique(points, axis=0, return_inverse=True)
    order = np.argsort(place, kind="stable")
    reported = 0
    for members in np.split(order, np.flatnonzero(np.diff(place[order])) + 1):
        if len(members) == 1:
            continue
        low, high = members[np.argmin(values[members])], members[np.argmax(values[members])]
        if values[high] - values[low] > IMPOSSIBLE * np.hypot(noise[high], noise[low]):
            reported += 1
            if reported <= 3:
                (one, i), (other, j) = origin[low], origin[high]
                at = ", ".join(f"{n} = {v:.6g}" for n, v in zip(ground.box.names, points[low], strict=True))
                lines = [f"{r.file} line {r.lines[k]}" for r, k in ((one, i), (other, j))]
                where = next(p for p in (*group,) if p is one)
                ground.notes(
                    _place_of(where, ground),
                    f"two readings of {_text(one.operator, ground)} at {at} contradict each other: "
                    f"{values[low]:.6g} in {lines[0]}, {values[high]:.6g} in {lines[1]}, with deviations "
                    f"{noise[low]:.2g} and {noise[high]:.2g}; expected one value, or more noise",
                )


def _place_of(readings: Readings, ground: Ground) -> tuple[str | int, ...]:
    tables = ground.notes.document.content.get("data")
    for i, table in enumerate(tables if isinstance(tables, list) else []):
        if isinstance(table, dict) and table.get("file") == readings.file:
            return ("data", i)
    return ("data",)


def _same(first: Operator, second: Operator) -> bool:
    padded = [identity + each - identity if not each.names else each for each in (first, second)]
    return str(padded[0]) == str(padded[1]) and (first.order, len(first.terms)) == (second.order, len(second.terms))


def _text(operator: Operator, ground: Ground) -> str:
    return ground.unknown if str(operator) == "Id" else f"{operator} of {ground.unknown}"


def _corner(box: Box, first: Slice, second: Slice) -> Slice | None:
    fixed = dict(first.fixed) | dict(second.fixed)
    if len(fixed) < 2:
        return None  # opposite faces do not meet
    return box.slice(**{box.names[axis]: value for axis, value in fixed.items()})


def _apart(first: Held, second: Held, on: Slice, other: Slice | None = None) -> str:
    """Return where two conditions differ, in words; nothing if they agree or come from files."""
    if first.value is None or second.value is None:
        return ""
    free = on.dimension - len(on.fixed)
    nodes = on(ClenshawCurtis(max(SAMPLES.get(free, 3), 2))) if free else on(ClenshawCurtis(2))
    moved = nodes.points.copy()
    if other is not None:
        for axis, value in other.fixed:
            moved[:, axis] = value
    one, two = _values(first.value, nodes.points), _values(second.value, moved)
    size = max(float(np.abs(one).max()), float(np.abs(two).max()))
    worst = int(np.argmax(np.abs(one - two)))
    if abs(one[worst] - two[worst]) <= 1e-9 * size:
        return ""
    at = ", ".join(f"{name} = {value:.6g}" for name, value in zip(on.names, nodes.points[worst], strict=True))
    return f"at {at} it is {one[worst]:.6g} by the one and {two[worst]:.6g} by the other"


def _values(function: Function, points: np.ndarray) -> np.ndarray:
    return np.nan_to_num(evaluate(function, points, "value").astype(float))
