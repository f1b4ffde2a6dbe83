"""Observations from the tables [[equation]], [[data]] and [[constraint]]."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ..domains import Box, Chebyshev, ClenshawCurtis, Fejer, GaussLegendre, MonteCarlo, Nodes, Rule, Slice, Sobol
from ..equations import Nonlinear, Operator
from ..equations.text import KnownFunction, Language
from ..errors import FileError, InputError, Mistake, did_you_mean, listed, require
from ..model import Observation, impose, integral, join_functionals, observe
from . import schema
from .data_files import read_table
from .reader import MistakeLog, Place

RULES: dict[str, Callable[[Any], Rule]] = {
    "gauss-legendre": GaussLegendre,
    "fejer": Fejer,
    "clenshaw-curtis": ClenshawCurtis,
    "chebyshev": Chebyshev,
    "sobol": Sobol,
    "monte-carlo": MonteCarlo,
}
DEFAULT_NODES = {1: 40, 2: 16, 3: 7}
"""The default number of nodes on each axis by dimension; four in higher dimensions. Exact equations refine them."""

MAX_NODES = 100_000
"""The largest number of nodes of one block. More could not be factored."""

MAX_INTEGRAL_NODES = 5_000
"""The largest total number of nodes of the integrals of one table. Their covariances are in memory together."""

OUTSIDE_MARGIN = 1e-9
"""How far outside the domain a point may lie, as a fraction of the interval, because of rounding."""


@dataclasses.dataclass(frozen=True, eq=False)
class ParsingContext:
    """Everything needed to interpret the expressions and files of a problem."""

    box: Box
    language: Language
    unknown: str
    directory: Path
    log: MistakeLog


@dataclasses.dataclass(frozen=True, eq=False)
class ParsedTable:
    """The observations of one table, with what later checks need."""

    place: Place
    blocks: tuple[Observation, ...]
    texts: tuple[str, ...] = ()
    """The observed values of each block as text."""
    temperature: schema.Unknown | None = None
    """The bounds of the blocks' own temperature, if the file gives any."""
    boundary: tuple[BoundaryValue, ...] = ()
    pair: tuple[Slice, Slice] | None = None
    """The two faces of a periodic condition."""
    measurements: Measurements | None = None
    files: tuple[str, ...] = ()
    has_nodes: bool = False
    """Whether the file gives the nodes of an equation."""


@dataclasses.dataclass(frozen=True, eq=False)
class BoundaryValue:
    """The value of an operator on a face, given by a condition."""

    face: Slice
    operator: Operator | Nonlinear
    value: KnownFunction | None
    """None if the values come from a file."""
    place: Place


@dataclasses.dataclass(frozen=True, eq=False)
class Measurements:
    """Measurements as read from a file."""

    operator: Operator | Nonlinear
    points: np.ndarray
    values: np.ndarray
    noise: np.ndarray | None
    lines: np.ndarray
    file: str
    place: Place


def equation(table: schema.EquationTable, place: Place, context: ParsingContext) -> ParsedTable | None:
    """Return an equation imposed at nodes in the domain."""
    log = context.log
    parsed = log.attempt((*place, "equation"), context.language.equation, table.equation)
    nodes = log.attempt((*place, "nodes"), nodes_on, context.box, table, context.box)
    if parsed is None or nodes is None:
        return None
    options = impose_options(table, table.name or "equation")
    block = log.attempt((*place, "equation"), impose, parsed.operator, parsed.source, nodes, **options)
    return physics(table, place, [block], [str(parsed.source)], has_nodes=table.nodes is not None)


def data(table: schema.DataTable, place: Place, context: ParsingContext) -> ParsedTable | None:
    """Return measurements from a file."""
    log = context.log
    operator = log.attempt((*place, "measures"), context.language.operator, table.measures or context.unknown)
    read = read_file(table, place, context, [table.noise] if isinstance(table.noise, str) else [])
    if read is None:
        return None
    points, cells, lines = read
    values, noise = cells[table.value], None
    if table.noise is not None:
        noise = cells[table.noise] if isinstance(table.noise, str) else np.full(len(values), table.noise)
        log.attempt((*place, "noise"), _check_noise, noise, values, lines, table)
    if operator is None:
        return None
    # A temperature γ is a noise variance of γ/2 for data, whose weights are one.
    deviation = np.full(len(values), math.sqrt(0.5 * table.gamma)) if isinstance(table.gamma, float) else noise
    measurements = Measurements(operator, points, values, deviation, lines, table.file, place)
    if noise is not None and (noise <= 0).any():
        return ParsedTable(place, (), measurements=measurements, files=(table.file,))
    temperature = {"noise": noise} if noise is not None else {"gamma": schema.start_of(table.gamma)}
    name = table.name or PurePosixPath(table.file).stem
    block = log.attempt(place, observe, operator, values, points, name=name, **temperature)
    if block is None:
        return None
    return ParsedTable(
        place,
        (block,),
        (f"{table.value!r} in {table.file}",),
        table.gamma if isinstance(table.gamma, schema.Unknown) else None,
        measurements=measurements,
        files=(table.file,),
    )


def constraint(table: schema.ConstraintTable, place: Place, context: ParsingContext) -> ParsedTable | None:
    """Return integrals with known values."""
    log, box = context.log, context.box
    parsed = log.attempt((*place, "equation"), context.language.integral, table.equation)
    if parsed is None:
        return None
    others = [name for name in box.names if name not in parsed.over]
    if sorted(table.at) != sorted(others):
        expected = f"values of {listed(others)}" if others else "nothing, since every coordinate is integrated over"
        log((*place, "at") if table.at else place, f"found at = {table.at}; expected {expected}")
        return None
    lists = [value if isinstance(value, list) else [value] for value in (table.at[name] for name in others)]
    count = math.prod(map(len, lists))
    functionals, values = [], []
    for point in itertools.product(*lists):
        fixed = dict(zip(others, point, strict=True))
        region = log.attempt((*place, "at"), box.slice, **fixed) if fixed else box
        nodes = None if region is None else log.attempt((*place, "nodes"), nodes_on, region, table, box)
        if nodes is None:
            return None
        if count * len(nodes) > MAX_INTEGRAL_NODES:
            text = f"found {count} integrals with {len(nodes)} nodes each; expected at most {MAX_INTEGRAL_NODES} nodes"
            log((*place, "at"), f"{text} in total")
            return None
        functionals.append(integral(nodes, parsed.operator))
        # The value depends on the fixed coordinates only, so any of the nodes will do.
        values.append(float(parsed.value(nodes.points[0])))
    options = impose_options(table, table.name or "integral")
    block = log.attempt(place, impose, join_functionals(*functionals), np.array(values), None, **options)
    return physics(table, place, [block], [str(parsed.value)])


def read_file(
    table: schema.FileTable,
    place: Place,
    context: ParsingContext,
    others: Sequence[str] = (),
    fixed: Mapping[str, float] | None = None,
) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray] | None:
    """Return the points in a file, the columns, and the line of each row; None if the file cannot be used at all.

    Parameters
    ----------
    table
        The table that names the file.
    place
        The place of the table.
    context
        The domain, and the log of mistakes.
    others
        The names of more columns to read.
    fixed
        The coordinates that are known, whose columns are optional.
    """
    log, names, fixed = context.log, context.box.names, fixed or {}
    columns = log.attempt((*place, "columns"), coordinate_columns, table.columns, names)
    path = log.attempt((*place, "file"), file_within, context.directory, table.file)
    if columns is None or path is None:
        return None
    needed = [*(columns[name] for name in names if name not in fixed), table.value, *others]
    optional = [columns[name] for name in fixed]
    read = log.attempt((*place, "file"), read_table, path, needed, table.file, optional)
    if read is None:
        return None
    cells, lines = read
    known = {columns[name]: np.full(len(lines), value) for name, value in fixed.items()} | cells
    points = np.column_stack([known[columns[name]] for name in names])
    log.attempt((*place, "file"), _check_inside, context.box, points, lines, table.file, columns)
    return points, cells, lines


def file_within(directory: Path, text: str) -> Path:
    """Return the path of a file in a directory or below it. Other paths are refused: the author may be a stranger."""
    path = PurePosixPath(text)
    good = not path.is_absolute() and ".." not in path.parts and not re.search(r"^[A-Za-z]:|[\\\0]", text)
    expected = "a path within the directory of the problem file, with / between names (a link there may lead elsewhere)"
    require(good, "file", text, expected)
    return directory / path


def coordinate_columns(given: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the column name of each coordinate."""
    for name in given:
        hint = did_you_mean(name, names, 0.3)
        require(name in names, "columns", name, f"names of coordinates, {listed(list(names))}{hint}")
    columns = {name: given.get(name, name) for name in names}
    distinct = len(set(columns.values())) == len(columns)
    require(distinct, "columns", dict(given), "a different column for each coordinate")
    return columns


def nodes_on(region: Box | Slice, table: schema.PhysicsTable, box: Box) -> Nodes:
    """Return the nodes of a table on a region of the box."""
    fixed = dict(region.fixed) if isinstance(region, Slice) else {}
    free = [name for axis, name in enumerate(box.names) if axis not in fixed]
    sampled = table.rule in ("sobol", "monte-carlo")
    counts = table.nodes
    if counts is None:
        counts = DEFAULT_NODES.get(box.dimension, 4)
        if sampled:
            # As many points in total as the default grid, rounded up to a power of two, as Sobol points need.
            counts = 2 ** math.ceil(len(free) * math.log2(counts))
    if isinstance(counts, dict):
        require(not sampled, "nodes", counts, f"one whole number, since {table.rule} draws points, not a grid")
        require(set(counts) == set(free), "nodes", counts, f"a number for each of {listed(free)}")
    else:
        counts = dict.fromkeys(free[:1] if sampled else free, counts)
    if not free:  # a face of an interval is a single point
        return region(GaussLegendre(1))
    total = math.prod(counts.values())
    require(total <= MAX_NODES, "nodes", f"{total} nodes in total", f"at most {MAX_NODES}")
    if sampled:
        return region(RULES[table.rule](total))
    return region(RULES[table.rule](tuple(counts.get(name, 2) for name in box.names)))  # fixed axes ignore the 2


def impose_options(table: schema.PhysicsTable, name: str) -> dict[str, Any]:
    """Return the options of `impose` for a block of a table: its noise and its name."""
    noise = {"noise": table.noise} if table.noise is not None else {"rho": schema.start_of(table.rho)}
    return noise | {"name": name}


def physics(
    table: schema.PhysicsTable, place: Place, blocks: Sequence[Observation | None], texts: Sequence[str], **more: Any
) -> ParsedTable | None:
    """Return the blocks of a table of physics; None if one of them has a mistake."""
    good = tuple(block for block in blocks if block is not None)
    if len(good) < len(blocks):
        return None
    temperature = table.rho if isinstance(table.rho, schema.Unknown) else None
    return ParsedTable(place, good, tuple(texts), temperature, **more)


def _check_inside(box: Box, points: np.ndarray, lines: np.ndarray, file: str, columns: Mapping[str, str]) -> None:
    """Raise a `FileError` that names rows whose points lie outside the domain."""
    mistakes = []
    for axis, name in enumerate(box.names):
        low, high = box.lower[axis], box.upper[axis]
        margin = OUTSIDE_MARGIN * (high - low)
        outside = np.flatnonzero((points[:, axis] < low - margin) | (points[:, axis] > high + margin))
        for row in outside[:3]:
            text = f"found {points[row, axis]:.6g}, outside the domain; expected {low:.6g} to {high:.6g}"
            mistakes.append(Mistake(text, f"column {columns[name]!r}", int(lines[row]), file))
        if len(outside) > 3:
            more = f"{len(outside)} of {len(points)} rows lie outside the domain. Check the columns and the units"
            mistakes.append(Mistake(more, f"column {columns[name]!r}", None, file))
    if mistakes:
        raise FileError(tuple(mistakes))


def _check_noise(noise: np.ndarray, values: np.ndarray, lines: np.ndarray, table: schema.DataTable) -> None:
    """Raise an error about standard deviations that are zero or negative."""
    bad = np.flatnonzero(noise <= 0)
    if not bad.size:
        return
    small = 1e-6 * float(np.abs(values).max()) or 1e-6
    expected = f"a positive standard deviation; for exact values use a negligible one, such as {small:.1g}"
    if isinstance(table.noise, str):
        key = f"column {table.noise!r}"
        raise FileError(
            [Mistake(f"found {noise[i]:.6g}; expected {expected}", key, int(lines[i]), table.file) for i in bad[:3]]
        )
    raise InputError(f"found {table.noise}; expected {expected}")
