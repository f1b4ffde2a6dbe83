"""Observations from the tables [[condition]]: conditions on faces of the domain."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..domains import Nodes, Slice
from ..equations import Nonlinear, Operator, identity, normal_derivative
from ..equations.text import KnownFunction
from ..errors import Mistake, require
from ..model import Observation, impose, periodic
from . import schema
from .observations import BoundaryValue, ParsedTable, ParsingContext, impose_options, nodes_on, physics, read_file
from .reader import Place


def condition(table: schema.ConditionTable, place: Place, context: ParsingContext) -> ParsedTable | None:
    """Return a condition imposed on faces."""
    if isinstance(table, schema.PeriodicBoundaryTable):
        return _periodic(table, place, context)
    log, texts = context.log, [table.face] if isinstance(table.face, str) else table.face
    if texts == ["all"]:
        faces: list[Slice | None] = list(context.box.faces)
    else:
        faces = [log.attempt((*place, "face"), parse_face, context, text) for text in texts]
    values = [getattr(table, key, None) for key in ("value", "flux")]
    files = [value.file for value in values if isinstance(value, schema.FileTable)]
    if files and len(faces) > 1:
        log((*place, "face"), f"found {len(faces)} faces; expected one face, since the values come from a file")
        return None
    blocks, texts, boundary = [], [], []
    for face in (face for face in faces if face is not None):
        for key, operator in _operators(table, face, place, context):
            block, text, function = _on_face(table, key, operator, face, place, context)
            blocks.append(block)
            texts.append(text)
            if operator is not None:
                boundary.append(BoundaryValue(face, operator, function, (*place, key)))
    if None in faces:
        return None
    return physics(table, place, blocks, texts, boundary=tuple(boundary), files=tuple(dict.fromkeys(files)))


def parse_face(context: ParsingContext, text: str) -> Slice:
    """Return the face described by a text such as "x = -1"."""
    matched = re.fullmatch(r"\s*(\w+)\s*=\s*([^=]+)", text)
    require(matched is not None, "face", text, 'a coordinate at a bound, as "x = -1", or "all"')
    assert matched is not None
    value = context.language.function(matched[2]).constant
    require(value is not None, "face", text, 'a coordinate at a bound, as "x = -1"')
    return context.box.face(**{matched[1]: value})


def face_text(face: Slice) -> str:
    """Return a face as text: `x = -1`."""
    return ", ".join(f"{face.names[axis]} = {value:.6g}" for axis, value in face.fixed)


def _operators(
    table: schema.BoundaryTable, face: Slice, place: Place, context: ParsingContext
) -> Iterator[tuple[str, Operator | Nonlinear | None]]:
    """Yield each operator of a condition with the key of its values; None for an operator with a mistake."""
    log, language = context.log, context.language
    if isinstance(table, schema.OperatorTable):
        yield "value", log.attempt((*place, "operator"), language.operator, table.operator)
    elif isinstance(table, schema.RobinTable):
        a, b = (log.attempt((*place, key), language.coefficient, str(getattr(table, key))) for key in ("a", "b"))
        yield "value", None if a is None or b is None else a * identity + b * normal_derivative(face)
    elif isinstance(table, schema.CauchyTable):
        yield "value", identity
        yield "flux", normal_derivative(face)
    else:
        yield "value", identity if table.type == "dirichlet" else normal_derivative(face)


def _on_face(
    table: schema.BoundaryTable,
    key: str,
    operator: Operator | Nonlinear | None,
    face: Slice,
    place: Place,
    context: ParsingContext,
) -> tuple[Observation | None, str, KnownFunction | None]:
    """Return the block of one operator on one face, its values as text, and as a function (None for a file)."""
    log, given = context.log, getattr(table, key)
    values: Any
    function = None
    if isinstance(given, schema.FileTable):
        read = _from_file(given, face, (*place, key), table, context)
        nodes, values = (None, None) if read is None else read
        text = f"{given.value!r} in {given.file}"
    else:
        values = function = log.attempt((*place, key), context.language.function, str(given))
        nodes, text = log.attempt((*place, "nodes"), nodes_on, face, table, context.box), str(function)
    if operator is None or nodes is None or values is None:
        return None, text, None
    name = f"{table.name or table.type} {'flux ' if key == 'flux' else ''}{face_text(face)}"
    single = isinstance(table.face, str) and table.face != "all" and not isinstance(table, schema.CauchyTable)
    if table.name and single:
        name = table.name
    return log.attempt((*place, key), impose, operator, values, nodes, **impose_options(table, name)), text, function


def _from_file(
    table: schema.FileTable, face: Slice, place: Place, owner: schema.BoundaryTable, context: ParsingContext
) -> tuple[Nodes, np.ndarray] | None:
    """Return points on a face and the values there; the column of the fixed coordinate is optional."""
    log, names = context.log, context.box.names
    if owner.nodes is not None:
        log((*place[:-1], "nodes"), "nodes are given, but the points come from the file; expected one of them")
    ((axis, value),) = face.fixed
    before = len(log.mistakes)
    read = read_file(table, place, context, fixed={names[axis]: value})
    if read is None:
        return None
    points, cells, lines = read
    off = np.flatnonzero(~face.contains(points))
    if off.size:
        found = f"found {points[off[0], axis]:.6g}, which is not on the face {face_text(face)}"
        text = f"{found}; {off.size} of {len(lines)} rows are off the face"
        column = f"column {table.columns.get(names[axis], names[axis])!r}"
        log.mistakes.append(Mistake(text, column, int(lines[off[0]]), table.file))
    if len(log.mistakes) > before:
        return None
    # The points share the measure of the face equally: a file has no quadrature weights.
    return Nodes(points, np.full(len(lines), face.measure / len(lines)), names, face), cells[table.value]


def _periodic(table: schema.PeriodicBoundaryTable, place: Place, context: ParsingContext) -> ParsedTable | None:
    log = context.log
    first, second = (log.attempt((*place, "face"), parse_face, context, text) for text in table.face)
    if first is None or second is None:
        return None
    if first.fixed[0][0] != second.fixed[0][0] or first.fixed == second.fixed:
        log((*place, "face"), f"found {table.face}; expected two opposite faces of one coordinate")
        return None
    nodes = [log.attempt((*place, "nodes"), nodes_on, face, table, context.box) for face in (first, second)]
    if nodes[0] is None or nodes[1] is None:
        return None
    name = table.name or f"periodic in {context.box.names[first.fixed[0][0]]}"
    blocks = log.attempt(place, periodic, nodes[0], nodes[1], table.derivatives, **impose_options(table, name))
    if blocks is None:
        return None
    named = [dataclasses.replace(block, name=f"{name}, order {k}" if k else name) for k, block in enumerate(blocks)]
    return physics(table, place, named, ["0"] * len(named), pair=(first, second))
