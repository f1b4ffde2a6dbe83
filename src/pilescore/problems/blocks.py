"""From the tables of a problem file to observations: equations, conditions, data and integrals."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ..calculus import normal_derivative
from ..conditions import periodic
from ..domains import Box, Nodes, Slice
from ..errors import FileError, InputError, Mistake, listed, require
from ..expressions import Function, Language
from ..observations import Observation, impose, integral, observe, stack
from ..operators import Operator, identity
from ..quadrature import Chebyshev, ClenshawCurtis, Fejer, GaussLegendre, MonteCarlo, Rule, Sobol
from . import schema
from .notes import Notes
from .schema import Place
from .tables import read_table

RULES: dict[str, Callable[[Any], Rule]] = {
    "gauss-legendre": GaussLegendre,
    "fejer": Fejer,
    "clenshaw-curtis": ClenshawCurtis,
    "chebyshev": Chebyshev,
    "sobol": Sobol,
    "monte-carlo": MonteCarlo,
}
DEFAULT_NODES = {1: 30, 2: 12, 3: 6}
"""Nodes on each axis by the dimension of the domain, four beyond."""

MOST_NODES = 100_000
"""Of one block; more could not be factored."""


@dataclasses.dataclass(frozen=True, eq=False)
class Ground:
    """What expressions and files of a problem are read with."""

    box: Box
    language: Language
    unknown: str
    directory: Path
    notes: Notes


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """What a table gave."""

    place: Place
    blocks: tuple[Observation, ...]
    choice: schema.Unknown | None = None
    """Bounds of a temperature of its own, for each of the blocks."""
    held: tuple[Held, ...] = ()
    pair: tuple[Slice, Slice] | None = None
    """Faces of a periodic condition."""
    readings: Readings | None = None
    files: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Held:
    """An operator that a condition holds at given values on a face."""

    face: Slice
    operator: Operator
    value: Function | None
    """None where the values come from a file."""
    place: Place


@dataclasses.dataclass(frozen=True, eq=False)
class Readings:
    """Measurements as they were read."""

    operator: Operator
    points: np.ndarray
    values: np.ndarray
    noise: np.ndarray | None
    lines: np.ndarray
    file: str


def equation(table: schema.Equation, place: Place, ground: Ground) -> Piece | None:
    """Return an equation imposed in the domain."""
    notes = ground.notes
    found = notes.attempt((*place, "equation"), ground.language.equation, table.equation)
    nodes = notes.attempt((*place, "nodes"), _nodes, ground.box, table, ground.box)
    if found is None or nodes is None:
        return None
    block = notes.attempt((*place, "equation"), impose, found.operator, found.source, nodes, **_strength(table))
    return _piece(table, place, [(table.name or "equation", block)], notes)


def condition(table: schema.Condition, place: Place, ground: Ground) -> Piece | None:
    """Return a condition imposed on faces."""
    if isinstance(table, schema.PeriodicFaces):
        return _periodic(table, place, ground)
    notes, texts = ground.notes, [table.face] if isinstance(table.face, str) else table.face
    if texts == ["all"]:
        faces: list[Slice | None] = list(ground.box.faces)
    else:
        faces = [notes.attempt((*place, "face"), face, ground, text) for text in texts]
    sides = [_side(table, each, place, ground) for each in faces if each is not None]
    good = [side for side in sides if side is not None]
    if len(good) < len(faces):
        return None
    held = tuple(each for side in good for each in side.held)
    found = [each for side in good for each in _imposed(table, side, place, notes)]
    files = tuple(dict.fromkeys(file for side in good for file in side.files))
    return _piece(table, place, found, notes, held, files)


def data(table: schema.Data, place: Place, ground: Ground) -> Piece | None:
    """Return measurements from a file."""
    notes, names = ground.notes, ground.box.names
    measured = ground.unknown if table.measures is None else table.measures
    operator = notes.attempt((*place, "measures"), ground.language.operator, measured)
    if table.noise is not None and table.gamma is not None:
        notes((*place, "gamma"), "noise and gamma are both given; expected one of them")
    columns = notes.attempt((*place, "columns"), coordinate_columns, table.columns, names)
    path = notes.attempt((*place, "file"), file_within, ground.directory, table.file)
    if columns is None or path is None:
        return None
    by_row = [table.noise] if isinstance(table.noise, str) else []
    read = notes.attempt((*place, "file"), read_table, path, [*columns.values(), table.value, *by_row], table.file)
    if read is None:
        return None
    cells, lines = read
    points, values = np.column_stack([cells[columns[name]] for name in names]), cells[table.value]
    noise = None
    if table.noise is not None:
        noise = cells[table.noise] if isinstance(table.noise, str) else np.full(len(values), table.noise)
    notes.attempt((*place, "file"), _check_inside, ground.box, points, lines, table.file, columns)
    if noise is not None:
        notes.attempt((*place, "noise"), _check_noise, noise, values, lines, table)
    if operator is None:
        return None
    readings = Readings(operator, points, values, noise, lines, table.file)
    if noise is not None and (noise <= 0).any():
        return Piece(place, (), readings=readings, files=(table.file,))
    temperature = {"noise": noise} if noise is not None else {"gamma": _number(table.gamma)}
    name = table.name or PurePosixPath(table.file).stem
    block = notes.attempt(place, observe, operator, values, points, name=name, **temperature)
    choice = table.gamma if isinstance(table.gamma, schema.Unknown) else None
    return None if block is None else Piece(place, (block,), choice, readings=readings, files=(table.file,))


def constraint(table: schema.Constraint, place: Place, ground: Ground) -> Piece | None:
    """Return integrals that are known."""
    notes, box = ground.notes, ground.box
    found = notes.attempt((*place, "equation"), ground.language.integral, table.equation)
    if found is None:
        return None
    others = [name for name in box.names if name not in found.over]
    if sorted(table.at) != sorted(others):
        wanted = f"values of {listed(others)}" if others else "nothing: all coordinates are integrated over"
        notes((*place, "at") if table.at else place, f"found at = {table.at}; expected {wanted}")
        return None
    lists = [each if isinstance(each, list) else [each] for each in (table.at[name] for name in others)]
    functionals, values = [], []
    for point in itertools.product(*lists):
        fixed = dict(zip(others, point, strict=True))
        region = notes.attempt((*place, "at"), box.slice, **fixed) if fixed else box
        nodes = None if region is None else notes.attempt((*place, "nodes"), _nodes, region, table, box)
        if nodes is not None:
            functionals.append(integral(nodes, found.operator))
            values.append(float(found.value(nodes.points[0])))
    if len(functionals) < math.prod(map(len, lists)):
        return None
    block = notes.attempt(place, impose, stack(*functionals), np.array(values), None, **_strength(table))
    return _piece(table, place, [(table.name or "integral", block)], notes)


def face(ground: Ground, text: str) -> Slice:
    """Return the face of a text such as "x = -1"."""
    parts = re.fullmatch(r"\s*(\w+)\s*=\s*([^=]+)", text)
    require(parts is not None, "face", text, 'a coordinate at a bound, as "x = -1", or "all"')
    assert parts is not None
    value = ground.language.function(parts[2]).constant
    require(value is not None, "face", text, 'a coordinate at a bound, as "x = -1"')
    return ground.box.face(**{parts[1]: value})


def file_within(directory: Path, text: str) -> Path:
    """Return the path of a file in a directory or below it; others are refused, for the file may be a stranger's."""
    path = PurePosixPath(text.replace("\\", "/"))
    good = not path.is_absolute() and ".." not in path.parts and not re.match(r"[A-Za-z]:", text)
    require(good, "file", text, "a path within the directory of the problem file (a link there may point elsewhere)")
    return directory / path


def coordinate_columns(given: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the column of each coordinate."""
    for name in given:
        near = difflib.get_close_matches(name, names, 1, 0.3)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        require(name in names, "columns", name, f"names of coordinates, {listed(list(names))}{hint}")
    return {name: given.get(name, name) for name in names}


@dataclasses.dataclass(frozen=True, eq=False)
class _Side:
    """A condition on one face: its nodes, and operators with their values there."""

    face: Slice
    parts: tuple[tuple[Operator, Any, Nodes], ...]
    held: tuple[Held, ...]
    files: tuple[str, ...]


def _side(table: schema.OnFace, on: Slice, place: Place, ground: Ground) -> _Side | None:
    notes, language = ground.notes, ground.language
    operators: list[tuple[str, Operator | None]] = []
    if isinstance(table, schema.OperatorOnFace):
        operators.append(("value", notes.attempt((*place, "operator"), language.operator, table.operator)))
    elif isinstance(table, schema.Robin):
        a, b = (notes.attempt((*place, key), language.coefficient, str(getattr(table, key))) for key in ("a", "b"))
        operators.append(("value", None if a is None or b is None else a * identity + b * normal_derivative(on)))
    elif isinstance(table, schema.Cauchy):
        operators += [("value", identity), ("flux", normal_derivative(on))]
    else:
        operators.append(("value", identity if table.type == "dirichlet" else normal_derivative(on)))
    nodes: Nodes | None = None
    parts: list[tuple[Operator, Any, Nodes]] = []
    held, files = [], []
    for key, operator in operators:
        value = getattr(table, key)
        if isinstance(value, schema.File):
            read = _from_file(value, on, (*place, key), table, ground)
            if operator is not None and read is not None:
                parts.append((operator, read[1], read[0]))
                held.append(Held(on, operator, None, (*place, key)))
                files.append(value.file)
            continue
        function = notes.attempt((*place, key), language.function, str(value))
        nodes = nodes or notes.attempt((*place, "nodes"), _nodes, on, table, ground.box)
        if operator is not None and function is not None and nodes is not None:
            parts.append((operator, function, nodes))
            held.append(Held(on, operator, function, (*place, key)))
    return _Side(on, tuple(parts), tuple(held), tuple(files)) if len(parts) == len(operators) else None


def _imposed(table: schema.OnFace, side: _Side, place: Place, notes: Notes) -> list[tuple[str, Observation | None]]:
    """Return the blocks of one face, with names that tell them apart."""
    found = []
    for key, (operator, value, nodes) in zip(("value", "flux"), side.parts, strict=False):
        name = f"{table.name or table.type} {'flux ' if key == 'flux' else ''}{face_text(side.face)}"
        if table.name and len(side.parts) == 1 and isinstance(table.face, str) and table.face != "all":
            name = table.name
        found.append((name, notes.attempt((*place, key), impose, operator, value, nodes, **_strength(table))))
    return found


def face_text(face: Slice) -> str:
    """Return a face as one writes it: `x = -1`."""
    return ", ".join(f"{face.names[axis]} = {value:.6g}" for axis, value in face.fixed)


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
    fixed = {names[axis]: value for axis, value in on.fixed}
    free = [columns[name] for name in names if name not in fixed]
    read = notes.attempt((*place, "file"), read_table, path, [*free, table.value], table.file)
    if read is None:
        return None
    cells, lines = read
    length = len(lines)
    points = np.column_stack([np.full(length, fixed[n]) if n in fixed else cells[columns[n]] for n in names])
    before = len(notes.mistakes)
    notes.attempt((*place, "file"), _check_inside, ground.box, points, lines, table.file, columns)
    if len(notes.mistakes) > before:
        return None
    return Nodes(points, np.full(length, on.measure / length), names, on), cells[table.value]


def _periodic(table: schema.PeriodicFaces, place: Place, ground: Ground) -> Piece | None:
    notes = ground.notes
    faces = [notes.attempt((*place, "face"), face, ground, text) for text in table.face]
    if faces[0] is None or faces[1] is None:
        return None
    first, second = faces[0], faces[1]
    if first.fixed[0][0] != second.fixed[0][0] or first.fixed == second.fixed:
        notes((*place, "face"), f"found {table.face}; expected two opposite faces of one coordinate")
        return None
    nodes = [notes.attempt((*place, "nodes"), _nodes, each, table, ground.box) for each in (first, second)]
    if nodes[0] is None or nodes[1] is None:
        return None
    blocks = notes.attempt(place, periodic, nodes[0], nodes[1], table.derivatives, **_strength(table))
    if blocks is None:
        return None
    name = table.name or f"periodic in {ground.box.names[first.fixed[0][0]]}"
    named = [(f"{name}, order {k}" if k else name, block) for k, block in enumerate(blocks)]
    piece = _piece(table, place, named, notes)
    return None if piece is None else dataclasses.replace(piece, pair=(first, second))


def _nodes(region: Box | Slice, table: schema.Physics, box: Box) -> Nodes:
    fixed = dict(region.fixed) if isinstance(region, Slice) else {}
    free = [name for axis, name in enumerate(box.names) if axis not in fixed]
    given = table.nodes if table.nodes is not None else DEFAULT_NODES.get(box.dimension, 4)
    sampled = table.rule in ("sobol", "monte-carlo")
    if isinstance(given, dict):
        require(not sampled, "nodes", given, f"one whole number: {table.rule} draws whole points")
        require(set(given) == set(free), "nodes", given, f"a number for each of {listed(free)}")
    else:
        given = dict.fromkeys(free[:1] if sampled else free, given)
    if not free:
        return region(GaussLegendre(1))
    total = math.prod(given.values())
    require(total <= MOST_NODES, "nodes", f"{total} nodes in all", f"at most {MOST_NODES}")
    if sampled:
        return region(RULES[table.rule](total))
    return region(RULES[table.rule](tuple(given.get(name, 2) for name in box.names)))  # what is fixed has no nodes


def _number(choice: Any) -> Any:
    return choice.value if isinstance(choice, schema.Unknown) else choice


def _strength(table: schema.Physics) -> dict[str, Any]:
    return {"noise": table.noise} if table.noise is not None else {"rho": _number(table.rho)}


def _piece(
    table: schema.Physics,
    place: Place,
    blocks: Sequence[tuple[str, Observation | None]],
    notes: Notes,
    held: tuple[Held, ...] = (),
    files: tuple[str, ...] = (),
) -> Piece | None:
    if table.noise is not None and table.rho is not None:
        notes((*place, "rho"), "noise and rho are both given; expected one of them")
    named = [dataclasses.replace(block, name=name) for name, block in blocks if block is not None]
    if len(named) < len(blocks):
        return None
    return Piece(place, tuple(named), table.rho if isinstance(table.rho, schema.Unknown) else None, held, files=files)


def _check_inside(box: Box, points: np.ndarray, lines: np.ndarray, file: str, columns: Mapping[str, str]) -> None:
    mistakes = []
    for axis, name in enumerate(box.names):
        low, high = box.lower[axis], box.upper[axis]
        margin = 1e-9 * (high - low)
        outside = np.flatnonzero((points[:, axis] < low - margin) | (points[:, axis] > high + margin))
        for row in outside[:3]:
            found = f"found {points[row, axis]:.6g}, outside the domain; expected {low:.6g} to {high:.6g}"
            mistakes.append(Mistake(found, f"column {columns[name]!r}", int(lines[row]), file))
        if len(outside) > 3:
            more = f"{len(outside)} of {len(points)} rows lie outside the domain. Check the columns and the units"
            mistakes.append(Mistake(more, f"column {columns[name]!r}", None, file))
    if mistakes:
        raise FileError(tuple(mistakes))


def _check_noise(noise: np.ndarray, values: np.ndarray, lines: np.ndarray, table: schema.Data) -> None:
    bad = np.flatnonzero(noise <= 0)
    if not bad.size:
        return
    small = 1e-6 * float(np.abs(values).max()) or 1e-6
    wanted = (
        "a positive standard deviation; for values without noise give an error that would not matter, "
        f"such as {small:.1g}"
    )
    if isinstance(table.noise, str):
        key = f"column {table.noise!r}"
        raise FileError(
            [Mistake(f"found {noise[i]:.6g}; expected {wanted}", key, int(lines[i]), table.file) for i in bad[:3]]
        )
    raise InputError(f"found {table.noise}; expected {wanted}")
