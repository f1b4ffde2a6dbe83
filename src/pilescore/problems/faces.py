"""From the tables of a problem file to observations: conditions on faces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..calculus import normal_derivative
from ..conditions import periodic
from ..domains import Nodes, Slice
from ..errors import FileError, Mistake, require
from ..nonlinear import Nonlinear
from ..observations import impose
from ..operators import Operator, identity
from . import schema
from .blocks import Ground, Held, Part, Piece, check_inside, coordinate_columns, file_within, made, nodes_on, strength
from .schema import Place
from .tables import read_table


def condition(table: schema.Condition, place: Place, ground: Ground) -> Piece | None:
    """Return a condition imposed on faces."""
    if isinstance(table, schema.PeriodicFaces):
        return _periodic(table, place, ground)
    notes, texts = ground.notes, [table.face] if isinstance(table.face, str) else table.face
    if texts == ["all"]:
        faces: list[Slice | None] = list(ground.box.faces)
    else:
        faces = [notes.attempt((*place, "face"), face, ground, text) for text in texts]
    files = [each.file for key in ("value", "flux") if isinstance(each := getattr(table, key, None), schema.File)]
    if files and len(faces) > 1:
        notes((*place, "face"), f"found {len(faces)} faces; expected one, whose points the file has")
        return None
    held, parts = [], []
    for on in (each for each in faces if each is not None):
        for key, operator in _operators(table, on, place, ground):
            one, part = _held(table, key, operator, on, place, ground)
            held += [one] if one is not None else []
            parts.append(part)
    if None in faces or any(part is None for part in parts):
        return None
    good = [part for part in parts if part is not None]
    return made(table, place, good, notes, held=tuple(held), files=tuple(dict.fromkeys(files)))


def face(ground: Ground, text: str) -> Slice:
    """Return the face of a text such as "x = -1"."""
    parts = re.fullmatch(r"\s*(\w+)\s*=\s*([^=]+)", text)
    require(parts is not None, "face", text, 'a coordinate at a bound, as "x = -1", or "all"')
    assert parts is not None
    value = ground.language.function(parts[2]).constant
    require(value is not None, "face", text, 'a coordinate at a bound, as "x = -1"')
    return ground.box.face(**{parts[1]: value})


def face_text(face: Slice) -> str:
    """Return a face as one writes it: `x = -1`."""
    return ", ".join(f"{face.names[axis]} = {value:.6g}" for axis, value in face.fixed)


def _operators(
    table: schema.OnFace, on: Slice, place: Place, ground: Ground
) -> Iterator[tuple[str, Operator | Nonlinear | None]]:
    """Yield what is held on a face, each with the key of its values; None where it cannot be understood."""
    notes, language = ground.notes, ground.language
    if isinstance(table, schema.OperatorOnFace):
        yield "value", notes.attempt((*place, "operator"), language.operator, table.operator)
    elif isinstance(table, schema.Robin):
        a, b = (notes.attempt((*place, key), language.coefficient, str(getattr(table, key))) for key in ("a", "b"))
        yield "value", None if a is None or b is None else a * identity + b * normal_derivative(on)
    elif isinstance(table, schema.Cauchy):
        yield "value", identity
        yield "flux", normal_derivative(on)
    else:
        yield "value", identity if table.type == "dirichlet" else normal_derivative(on)


def _held(
    table: schema.OnFace, key: str, operator: Operator | Nonlinear | None, on: Slice, place: Place, ground: Ground
) -> tuple[Held | None, Part | None]:
    """Return an operator held on a face, as it is compared with others and as it is imposed."""
    notes, given = ground.notes, getattr(table, key)
    values: Any
    if isinstance(given, schema.File):
        read = _from_file(given, on, (*place, key), table, ground)
        nodes, values = (None, None) if read is None else read
        text, function = f"{given.value!r} in {given.file}", None
    else:
        values = function = notes.attempt((*place, key), ground.language.function, str(given))
        nodes, text = notes.attempt((*place, "nodes"), nodes_on, on, table, ground.box), str(function)
    if operator is None or nodes is None or values is None:
        return None, None
    name = f"{table.name or table.type} {'flux ' if key == 'flux' else ''}{face_text(on)}"
    if table.name and isinstance(table.face, str) and table.face != "all" and not isinstance(table, schema.Cauchy):
        name = table.name
    block = notes.attempt((*place, key), impose, operator, values, nodes, **strength(table))
    return Held(on, operator, function, (*place, key)), Part(name, text, block)


def _from_file(
    table: schema.File, on: Slice, place: Place, owner: schema.OnFace, ground: Ground
) -> tuple[Nodes, np.ndarray] | None:
    """Return points of a face and the values there; the coordinate that is fixed need not be in the file."""
    notes, names = ground.notes, ground.box.names
    if owner.nodes is not None:
        notes((*place[:-1], "nodes"), "nodes are given, but the file has its own points; expected one of them")
    columns = notes.attempt((*place, "columns"), coordinate_columns, table.columns, names)
    path = notes.attempt((*place, "file"), file_within, ground.directory, table.file)
    if columns is None or path is None:
        return None
    ((axis, value),) = on.fixed
    fixed = columns[names[axis]]
    free = [columns[name] for name in names if columns[name] != fixed]
    read = notes.attempt((*place, "file"), read_table, path, [*free, table.value], table.file, [fixed])
    if read is None:
        return None
    cells, lines = read
    points = np.column_stack([cells.get(columns[name], np.full(len(lines), value)) for name in names])
    before = len(notes.mistakes)
    notes.attempt((*place, "file"), check_inside, ground.box, points, lines, table.file, columns)
    notes.attempt((*place, "file"), _check_on, on, points, lines, table.file, fixed)
    if len(notes.mistakes) > before:
        return None
    return Nodes(points, np.full(len(lines), on.measure / len(lines)), names, on), cells[table.value]


def _check_on(on: Slice, points: np.ndarray, lines: np.ndarray, file: str, column: str) -> None:
    off = np.flatnonzero(~on.contains(points))
    if off.size:
        axis = on.fixed[0][0]
        text = f"found {points[off[0], axis]:.6g}, not on the face {face_text(on)}; {off.size} rows are not"
        raise FileError([Mistake(text, f"column {column!r}", int(lines[off[0]]), file)])


def _periodic(table: schema.PeriodicFaces, place: Place, ground: Ground) -> Piece | None:
    notes = ground.notes
    faces = [notes.attempt((*place, "face"), face, ground, text) for text in table.face]
    if faces[0] is None or faces[1] is None:
        return None
    first, second = faces[0], faces[1]
    if first.fixed[0][0] != second.fixed[0][0] or first.fixed == second.fixed:
        notes((*place, "face"), f"found {table.face}; expected two opposite faces of one coordinate")
        return None
    nodes = [notes.attempt((*place, "nodes"), nodes_on, each, table, ground.box) for each in (first, second)]
    if nodes[0] is None or nodes[1] is None:
        return None
    blocks = notes.attempt(place, periodic, nodes[0], nodes[1], table.derivatives, **strength(table))
    if blocks is None:
        return None
    name = table.name or f"periodic in {ground.box.names[first.fixed[0][0]]}"
    parts = [Part(f"{name}, order {k}" if k else name, "0", block) for k, block in enumerate(blocks)]
    return made(table, place, parts, notes, pair=(first, second))
