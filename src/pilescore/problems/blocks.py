"""From the tables of a problem file to observations: equations, data and integrals."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ..domains import Box, Nodes, Slice
from ..errors import FileError, InputError, Mistake, did_you_mean, listed, require
from ..expressions import Function, Language
from ..nonlinear import Nonlinear
from ..observations import Observation, impose, integral, observe, stack
from ..operators import Operator
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

MOST_INTEGRATED = 5_000
"""Nodes of all integrals of one table: their covariances are held at once."""


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
    texts: tuple[str, ...] = ()
    """What each block observes to be equal to, as it is written."""
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
    operator: Operator | Nonlinear
    value: Function | None
    """None where the values come from a file."""
    place: Place


@dataclasses.dataclass(frozen=True, eq=False)
class Readings:
    """Measurements as they were read."""

    operator: Operator | Nonlinear
    points: np.ndarray
    values: np.ndarray
    noise: np.ndarray | None
    lines: np.ndarray
    file: str
    place: Place


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """A block with its name and the text of its values; no block where something is wrong."""

    name: str
    text: str
    block: Observation | None


def equation(table: schema.Equation, place: Place, ground: Ground) -> Piece | None:
    """Return an equation imposed in the domain."""
    notes = ground.notes
    found = notes.attempt((*place, "equation"), ground.language.equation, table.equation)
    nodes = notes.attempt((*place, "nodes"), nodes_on, ground.box, table, ground.box)
    if found is None or nodes is None:
        return None
    block = notes.attempt((*place, "equation"), impose, found.operator, found.source, nodes, **strength(table))
    return made(table, place, [Part(table.name or "equation", str(found.source), block)], notes)


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
    notes.attempt((*place, "file"), check_inside, ground.box, points, lines, table.file, columns)
    if noise is not None:
        notes.attempt((*place, "noise"), _check_noise, noise, values, lines, table)
    if operator is None:
        return None
    fixed = np.full(len(values), math.sqrt(0.5 * table.gamma)) if isinstance(table.gamma, float) else noise
    readings = Readings(operator, points, values, fixed, lines, table.file, place)
    if noise is not None and (noise <= 0).any():
        return Piece(place, (), readings=readings, files=(table.file,))
    temperature = {"noise": noise} if noise is not None else {"gamma": number(table.gamma)}
    name = table.name or PurePosixPath(table.file).stem
    block = notes.attempt(place, observe, operator, values, points, name=name, **temperature)
    choice = table.gamma if isinstance(table.gamma, schema.Unknown) else None
    if block is None:
        return None
    return Piece(place, (block,), (f"{table.value!r} in {table.file}",), choice, readings=readings, files=(table.file,))


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
    wanted_integrals = math.prod(map(len, lists))
    functionals, values = [], []
    for point in itertools.product(*lists):
        fixed = dict(zip(others, point, strict=True))
        region = notes.attempt((*place, "at"), _slice, box, fixed)
        nodes = None if region is None else notes.attempt((*place, "nodes"), nodes_on, region, table, box)
        if nodes is None:
            return None
        if wanted_integrals * len(nodes) > MOST_INTEGRATED:
            text = f"found {wanted_integrals} integrals of {len(nodes)} nodes; expected {MOST_INTEGRATED} nodes in all"
            notes((*place, "at"), f"{text} at most")
            return None
        functionals.append(integral(nodes, found.operator))
        values.append(float(found.value(nodes.points[0])))
    block = notes.attempt(place, impose, stack(*functionals), np.array(values), None, **strength(table))
    return made(table, place, [Part(table.name or "integral", str(found.value), block)], notes)


def _slice(box: Box, fixed: Mapping[str, float]) -> Box | Slice:
    return box.slice(**fixed) if fixed else box


def file_within(directory: Path, text: str) -> Path:
    """Return the path of a file in a directory or below it; others are refused, for the file may be a stranger's."""
    path = PurePosixPath(text)
    good = not path.is_absolute() and ".." not in path.parts and not re.search(r"^[A-Za-z]:|[\\\0]", text)
    expected = "a path within the directory of the problem file, with / between names (a link there may lead elsewhere)"
    require(good, "file", text, expected)
    return directory / path


def coordinate_columns(given: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the column of each coordinate."""
    for name in given:
        hint = did_you_mean(name, names, 0.3)
        require(name in names, "columns", name, f"names of coordinates, {listed(list(names))}{hint}")
    columns = {name: given.get(name, name) for name in names}
    require(
        len(set(columns.values())) == len(columns), "columns", dict(given), "a column of its own for each coordinate"
    )
    return columns


def nodes_on(region: Box | Slice, table: schema.Physics, box: Box) -> Nodes:
    """Return the nodes that a table asks for on a region of the box."""
    fixed = dict(region.fixed) if isinstance(region, Slice) else {}
    free = [name for axis, name in enumerate(box.names) if axis not in fixed]
    sampled = table.rule in ("sobol", "monte-carlo")
    given = table.nodes if table.nodes is not None else DEFAULT_NODES.get(box.dimension, 4)
    if table.nodes is None and sampled:
        given = 2 ** math.ceil(len(free) * math.log2(DEFAULT_NODES.get(box.dimension, 4)))  # as many in all
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


def number(choice: Any) -> Any:
    """Return a number, where to start with one that is to be chosen, or None."""
    return choice.value if isinstance(choice, schema.Unknown) else choice


def strength(table: schema.Physics) -> dict[str, Any]:
    """Return the option of `impose` that a table gives."""
    return {"noise": table.noise} if table.noise is not None else {"rho": number(table.rho)}


def made(table: schema.Physics, place: Place, parts: Sequence[Part], notes: Notes, **more: Any) -> Piece | None:
    """Return what a table of physics gave, if nothing is wrong with it."""
    if table.noise is not None and table.rho is not None:
        notes((*place, "rho"), "noise and rho are both given; expected one of them")
    named = [dataclasses.replace(part.block, name=part.name) for part in parts if part.block is not None]
    if len(named) < len(parts):
        return None
    choice = table.rho if isinstance(table.rho, schema.Unknown) else None
    return Piece(place, tuple(named), tuple(part.text for part in parts), choice, **more)


def check_inside(box: Box, points: np.ndarray, lines: np.ndarray, file: str, columns: Mapping[str, str]) -> None:
    """Raise a `FileError` that names rows whose points lie outside the domain."""
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
