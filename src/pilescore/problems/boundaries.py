"""Observations from the tables [[condition]]: conditions on faces of the domain."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..domains import Nodes, Slice
from ..equations import Nonlinear, Operator, identity, normal_derivative
from ..errors import FileError, Mistake, require
from ..model import impose, periodic
from . import schema
from .data_files import read_table
from .observations import (
    BoundaryValue,
    NamedBlock,
    ParsedTable,
    ParsingContext,
    check_inside,
    coordinate_columns,
    file_within,
    nodes_on,
    noise_option,
    physics,
)
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
    boundary, blocks = [], []
    for face in (face for face in faces if face is not None):
        for key, operator in _operators(table, face, place, context):
            value, block = _on_face(table, key, operator, face, place, context)
            boundary += [value] if value is not None else []
            blocks.append(block)
    if None in faces or any(block is None for block in blocks):
        return None
    good = [block for block in blocks if block is not None]
    return physics(table, place, good, log, boundary=tuple(boundary), files=tuple(dict.fromkeys(files)))


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
) -> tuple[BoundaryValue | None, NamedBlock | None]:
    """Return one operator on one face: its value, for consistency checks, and its block."""
    log, given = context.log, getattr(table, key)
    values: Any
    if isinstance(given, schema.FileTable):
        read = _from_file(given, face, (*place, key), table, context)
        nodes, values = (None, None) if read is None else read
        text, function = f"{given.value!r} in {given.file}", None
    else:
        values = function = log.attempt((*place, key), context.language.function, str(given))
        nodes, text = log.attempt((*place, "nodes"), nodes_on, face, table, context.box), str(function)
    if operator is None or nodes is None or values is None:
        return None, None
    name = f"{table.name or table.type} {'flux ' if key == 'flux' else ''}{face_text(face)}"
    single = isinstance(table.face, str) and table.face != "all" and not isinstance(table, schema.CauchyTable)
    if table.name and single:
        name = table.name
    block = log.attempt((*place, key), impose, operator, values, nodes, **noise_option(table))
    return BoundaryValue(face, operator, function, (*place, key)), NamedBlock(name, text, block)


def _from_file(
    table: schema.FileTable, face: Slice, place: Place, owner: schema.BoundaryTable, context: ParsingContext
) -> tuple[Nodes, np.ndarray] | None:
    """Return points on a face and the values there; the column of the fixed coordinate is optional."""
    log, names = context.log, context.box.names
    if owner.nodes is not None:
        log((*place[:-1], "nodes"), "nodes are given, but the points come from the file; expected one of them")
    columns = log.attempt((*place, "columns"), coordinate_columns, table.columns, names)
    path = log.attempt((*place, "file"), file_within, context.directory, table.file)
    if columns is None or path is None:
        return None
    ((axis, value),) = face.fixed
    fixed = columns[names[axis]]
    free = [columns[name] for name in names if columns[name] != fixed]
    read = log.attempt((*place, "file"), read_table, path, [*free, table.value], table.file, [fixed])
    if read is None:
        return None
    cells, lines = read
    points = np.column_stack([cells.get(columns[name], np.full(len(lines), value)) for name in names])
    before = len(log.mistakes)
    log.attempt((*place, "file"), check_inside, context.box, points, lines, table.file, columns)
    log.attempt((*place, "file"), _check_on_face, face, points, lines, table.file, fixed)
    if len(log.mistakes) > before:
        return None
    # The points share the measure of the face equally: a file has no quadrature weights.
    return Nodes(points, np.full(len(lines), face.measure / len(lines)), names, face), cells[table.value]


def _check_on_face(face: Slice, points: np.ndarray, lines: np.ndarray, file: str, column: str) -> None:
    off = np.flatnonzero(~face.contains(points))
    if off.size:
        axis = face.fixed[0][0]
        found = f"found {points[off[0], axis]:.6g}, which is not on the face {face_text(face)}"
        text = f"{found}; {off.size} of {len(points)} rows are off the face"
        raise FileError([Mistake(text, f"column {column!r}", int(lines[off[0]]), file)])


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
    blocks = log.attempt(place, periodic, nodes[0], nodes[1], table.derivatives, **noise_option(table))
    if blocks is None:
        return None
    name = table.name or f"periodic in {context.box.names[first.fixed[0][0]]}"
    named = [NamedBlock(f"{name}, order {k}" if k else name, "0", block) for k, block in enumerate(blocks)]
    return physics(table, place, named, log, pair=(first, second))
