"""Loading of problem files: from TOML to models that can be scored."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from ..domains import Box
from ..equations import RESERVED, Parameter
from ..equations.text import Language, ParameterFunction
from ..errors import InputError, describe, listed, require
from ..inference import as_score, equation_blocks
from ..kernels import RBF, AnisotropicRBF, Evolution, Kernel, Matern, Periodic, RationalQuadratic, ShearedRBF
from ..model import (
    Model,
    Observation,
    Prior,
    check_smoothness,
    is_of_kernel,
    is_positive,
    named_paths,
    require_prior_between,
    role_of,
)
from ..parallel import require_memory
from ..search import data_free_choice, default_bounds, free_name
from ..solvers import Solver, as_solver
from . import observations, schema
from .boundaries import condition
from .consistency import check_conditions, check_measurements, check_periodic
from .data_files import read_table
from .noise import NoiseModel, noise_model
from .observations import DEFAULT_NODES, ParsedTable, ParsingContext
from .problem import Problem
from .reader import Document, MistakeLog, Place, read_document
from .schema import start_of

DEFAULT_GRID = {1: 201, 2: 41, 3: 15}
"""The default number of prediction points on each axis by dimension; seven in higher dimensions."""

MAX_POINTS = 2_000_000
"""The largest number of prediction points."""

TIME = "t"
"""The name of the coordinate that is the time."""

MOST_SNAPSHOTS, SNAPSHOT_TIMES, MOST_SNAPSHOT_NODES = 2, 4, 120
"""Data at this many times are snapshots of an evolution; the number of times at which its equation is then imposed by
default, and the largest number of nodes on each other axis to begin with."""

FEWEST_READINGS = 5
"""The least number of readings at one time that show a state."""

USUAL_STATE = 0.1
"""The bandwidth of a state at the start, as a fraction of the domain. There are readings across the whole of it."""

MAX_SHEAR_NODES = 256
"""The largest number of nodes on which the shear of a kernel is chosen without data, if nodes come from a rule."""

MAX_KERNEL_DEPTH = 4
"""The largest number of nested levels of sums and products of kernels."""

TAKEN_NAMES = ("gamma", "rho", "eta", *RESERVED)
"""Names that a parameter cannot have, because hyperparameters of every model have them."""


def load_problem(path: str | os.PathLike[str]) -> Problem:
    """Load a problem file, and the data files it names, into models.

    All checks come before any computation. All mistakes are raised together, as one `FileError`.

    Parameters
    ----------
    path
        A TOML file. docs/problems.md describes its keys, and `pilescore new` writes one to start from.

    Examples
    --------
    >>> import pathlib, tempfile, pilescore as ps
    >>> text = '''
    ... [domain]
    ... x = [0, 1]
    ... [[equation]]
    ... equation = "dxx(u) = -1"
    ... [[condition]]
    ... type = "dirichlet"
    ... face = "all"
    ... value = 0
    ... '''
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = pathlib.Path(directory, "problem.toml")
    ...     _ = path.write_text(text)
    ...     problem = ps.load_problem(path)
    >>> problem.model.physics[:2]
    (impose(∂x² at 40 points, name='equation'), impose(Id at 1 point, name='dirichlet x = 0'))
    >>> ps.posterior(problem.model).mean([0.5]).round(4)  # x(1 − x)/2
    array([0.125])
    """
    require(isinstance(path, str | os.PathLike), "path", path, "the path of a problem file")
    document = read_document(Path(path))
    log = MistakeLog(document)
    schema.validated(schema.WholeFile, document.content, (), log)
    sections = _Sections(document, log)
    context = sections.context()
    parsed: dict[str, list[ParsedTable]] = {kind: sections.tables(kind, context) for kind in _OBSERVATIONS}
    kernels = sections.tables("kernel", context)
    temperatures = sections.section("temperatures", schema.TemperaturesSection)
    choice = sections.section("select", schema.SelectSection)
    prediction = sections.section("predict", schema.PredictSection)
    solver = sections.solver()
    if not any(document.content.get(kind) for kind in parsed):
        log((), "the problem has no observations; expected at least one [[equation]], [[condition]] or [[data]]")
    if context is None:
        log.raise_any()
    assert context is not None
    derived = sections.derived(context)
    check_conditions(parsed["condition"], context)
    check_periodic(parsed["condition"], context)
    check_measurements(parsed["data"], context)
    if not log.mistakes:
        sections.check_inferred(parsed)
        sections.check_score(parsed, choice, temperatures)
    operators, points, prediction_files = sections.predictions(prediction, context)
    log.raise_any()
    why_kernels = ""
    if not kernels:
        tables, why_kernels = _default_kernels(parsed, context, bool(sections.inferred))
        kernels = [kernel_candidate(table, ("kernel",), context) for table in tables]
        if isinstance(tables[0], schema.EvolutionTable):
            parsed["equation"] = [_for_snapshots(table, parsed["data"], context) for table in parsed["equation"]]
    # Default noise follows from the sizes of all observed values, so it needs a file without mistakes so far.
    noise = noise_model(parsed, temperatures, context, choice.score == "profiled")
    log.raise_any()
    assert noise is not None
    models: dict[str, Model] = {}
    over: dict[str, dict[str, Any]] = {}
    bounds = {name: unknown.bounds for name, unknown in sections.inferred.items()}
    priors = {n: prior for n, unknown in sections.inferred.items() if (prior := schema.prior_of(unknown))}
    for name, prior in priors.items():
        low, high = (np.array([end]) for end in bounds[name])
        log.attempt(("parameters", name), require_prior_between, "prior", prior, low, high)
    for i, candidate in enumerate(kernels):
        place = () if why_kernels else ("kernel", i)
        model = log.attempt(place, _model, candidate, noise, priors, operators, context, solver)
        if model is not None:
            name = free_name(candidate.name, {*models})
            over[name] = kernel_bounds(model, candidate) | dict(noise.over) | bounds
            models[name] = _with_data_free_shear(model, candidate, over[name], bool(bounds))
    first = next(iter(models.values()), None)
    if first is not None and first.solver.forms_covariance:
        log.attempt((), require_memory, first.size, 8.0 * first.size**2 + jet_bytes(first))
    if first is not None and any(over.values()):
        log.attempt(("select", "score"), as_score(choice.score).check, first)
    log.raise_any()
    assert first is not None
    data_files = [file for tables in parsed.values() for table in tables for file in table.files]
    files = tuple(dict.fromkeys([*data_files, *prediction_files]))
    return Problem(
        path=document.path,
        title=str(document.content.get("title", document.path.stem)),
        box=context.box,
        unknown=context.unknown,
        language=context.language,
        models=models,
        texts=dict(zip(first.labels, noise.texts, strict=True)),
        over=over,
        score=as_score(choice.score),
        starts=choice.starts,
        seed=choice.seed,
        inferred=tuple(sections.inferred),
        operators=operators,
        points=points,
        warnings=tuple(log.warnings),
        files=files,
        digest=digest((document.path.parent / name).read_bytes() for name in (document.path.name, *files)),
        solver=solver,
        derived=derived,
        why_kernels=why_kernels,
    )


def digest(contents: Iterable[bytes]) -> str:
    """Return a digest of the contents of a problem file and its data files."""
    total = hashlib.sha256()
    # A digest of digests: text that moves from one file to the next changes it.
    for content in contents:
        total.update(hashlib.sha256(content).digest())
    return total.hexdigest()[:32]


class _Sections:
    """Reads the sections of a document, and records mistakes in a log."""

    def __init__(self, document: Document, log: MistakeLog) -> None:
        self.document = document
        self.log = log
        self.inferred: dict[str, schema.Unknown] = {}

    def context(self) -> ParsingContext | None:
        """Return the domain and the language of expressions, or None if they have mistakes."""
        content, log = self.document.content, self.log
        bounds = {name: self._entry("interval", raw, ("domain", name)) for name, raw in self._mapping("domain").items()}
        given = {n: self._entry("parameter", raw, ("parameters", n)) for n, raw in self._mapping("parameters").items()}
        self.inferred = {name: value for name, value in given.items() if isinstance(value, schema.Unknown)}
        for name in sorted({*self.inferred} & {*TAKEN_NAMES}):
            log(("parameters", name), f"found {name!r}; expected another name, since every model has its own {name}")
        unknown = content.get("unknown", "u")
        if not bounds or None in bounds.values() or None in given.values() or not isinstance(unknown, str):
            return None
        box = log.attempt(("domain",), lambda: Box(**bounds))
        language = log.attempt(("unknown",) if "unknown" in content else ("domain",), Language, tuple(bounds), unknown)
        known: dict[str, float] = {}
        starts: dict[str, float] = {}
        # Parameters are added one by one: a bad name is then reported at its own line.
        for name, value in given.items() if language is not None else ():
            (starts if isinstance(value, schema.Unknown) else known)[name] = start_of(value)
            language = log.attempt(("parameters", name), Language, tuple(bounds), unknown, known, starts)
            if language is None:
                return None
        if box is None or language is None:
            return None
        for name, raw in self._mapping("functions").items():
            text = self._entry("expression", raw, ("functions", name))
            if text is None or log.attempt(("functions", name), _define, language, name, str(text)) is None:
                return None
        return ParsingContext(box, language, unknown, self.document.path.parent, log)

    def derived(self, context: ParsingContext) -> dict[str, ParameterFunction]:
        """Return the quantities of the section [derived]."""
        quantities: dict[str, ParameterFunction] = {}
        for name, raw in self._mapping("derived").items():
            place, text = ("derived", name), self._entry("expression", raw, ("derived", name))
            if name in TAKEN_NAMES:
                self.log(place, f"found {name!r}; expected another name, since every model has its own {name}")
            elif text is not None:
                made = self.log.attempt(place, context.language.derived, name, str(text))
                quantities |= {} if made is None else {name: made}
        return quantities

    def tables(self, key: str, context: ParsingContext | None) -> list[Any]:
        """Return what the valid tables `[[key]]` describe; a single table `[key]` is accepted too."""
        raw = self.document.content.get(key, [])
        entries: list[tuple[Place, Any]] = [((key,), raw)] if isinstance(raw, Mapping) else []
        if isinstance(raw, list):
            entries = [((key, i), entry) for i, entry in enumerate(raw)]
        elif not entries:
            self.log((key,), f"found {describe(raw)}; expected one or more tables [[{key}]]")
        kind, make = _TABLES[key]
        results = []
        for place, entry in entries:
            table = schema.validated(kind, entry, place, self.log)
            if table is None:
                continue
            for temperature in ("gamma", "rho"):
                if getattr(table, "noise", None) is not None and getattr(table, temperature, None) is not None:
                    text = f"noise and {temperature} are both given; expected one of them"
                    self.log((*place, temperature), text)
            made = None if context is None else make(table, place, context)
            if made is not None:
                results.append(made)
        return results

    def check_inferred(self, parsed: Mapping[str, Sequence[ParsedTable]]) -> None:
        """Report parameters that cannot be inferred."""
        blocks = [block for tables in parsed.values() for table in tables for block in table.blocks]
        used = {name for block in blocks for name in _parameters(block)}
        for name in self.inferred:
            if name not in used:
                text = "cannot be inferred: no equation, condition or measured operator contains it"
                self.log(("parameters", name), text)
            elif not parsed["data"]:
                self.log(("parameters", name), "cannot be inferred: there are no [[data]]")

    def check_score(
        self,
        parsed: Mapping[str, Sequence[ParsedTable]],
        choice: schema.SelectSection,
        temperatures: schema.TemperaturesSection,
    ) -> None:
        """Report a score that the problem cannot have."""
        if choice.score == "given_physics":
            for kinds in (("data",), ("equation", "condition", "constraint")):
                if not any(parsed[kind] for kind in kinds):
                    text = f"found 'given_physics' but no [[{kinds[0]}]]; expected both data and physics"
                    self.log(("select", "score"), text)
        if choice.score == "profiled" and isinstance(temperatures.eta, schema.Unknown):
            text = 'found bounds, but score = "profiled" finds eta in closed form; expected a number or nothing'
            self.log(("temperatures", "eta"), text)

    def section(self, key: str, kind: type[schema.T]) -> schema.T:
        """Return an optional section; all defaults if it is missing."""
        return schema.validated(kind, self._mapping(key), (key,), self.log) or kind()

    def solver(self) -> Solver | None:
        """Return the solver of the section [solver]; None without such a section."""
        if "solver" not in self.document.content:
            return None
        table = self.section("solver", schema.SolverSection)
        options = table.model_dump(exclude={"method"}, exclude_none=True)
        allowed = {"low_rank": {"tolerance", "rank"}, "auto": {"tolerance"}}.get(table.method, set())
        for key in options.keys() - allowed:
            methods = "auto or low_rank" if key == "tolerance" else "low_rank"
            found = f"found {options[key]!r}, but the method {table.method!r} has no {key}"
            self.log(("solver", key), f"{found}; expected it with {methods}")
        if not options.keys() <= allowed:
            return None
        place = ("solver", "method") if "method" in self._mapping("solver") else ("solver",)
        if options:
            return self.log.attempt(place, Solver.by_name[table.method], **options)
        return self.log.attempt(place, as_solver, table.method)

    def predictions(
        self, section: schema.PredictSection, context: ParsingContext
    ) -> tuple[tuple[str, ...], Float[np.ndarray, "n d"], tuple[str, ...]]:
        """Return the operators and points of predictions, and the file of the points."""
        texts = tuple(section.operators or [context.unknown])
        for text in texts:
            self.log.attempt(("predict", "operators"), context.language.operator, text)
        if section.grid is not None and section.file is not None:
            self.log(("predict", "grid"), "grid and file are both given; expected one of them")
        if section.file is None:
            points = self.log.attempt(("predict", "grid"), _grid, context.box, section.grid)
        else:
            path = self.log.attempt(("predict", "file"), observations.file_within, context.directory, section.file)
            points = None if path is None else self.log.attempt(("predict", "file"), read_points, path, context.box)
        none = np.empty((0, context.box.dimension))
        return texts, none if points is None else points, () if section.file is None else (section.file,)

    def _mapping(self, key: str) -> Mapping[str, Any]:
        raw = self.document.content.get(key, {})
        return raw if isinstance(raw, Mapping) else {}

    def _entry(self, field: str, raw: Any, place: Place) -> Any:
        """Return the value of one entry of [domain], [parameters], [functions] or [derived]."""
        found = schema.validated(schema.SingleEntry, {field: raw}, place, lambda _, text: self.log(place, text))
        return None if found is None else getattr(found, field)


@dataclasses.dataclass(frozen=True, eq=False)
class KernelCandidate:
    """A kernel at its start, with what the file says about its hyperparameters."""

    name: str
    kernel: Kernel
    numbers: tuple[tuple[Any, np.ndarray], ...]
    """For each leaf of the kernel what the file gives (numbers, bounds or None), and the lengths that default bounds
    are derived from."""


def kernel_candidate(table: schema.KernelTable, place: Place, context: ParsingContext) -> KernelCandidate | None:
    """Return the kernel of a table."""
    made = context.log.attempt(place, _candidate, table, place, context, context.box.names, 0)
    return None if made is None else dataclasses.replace(made, name=table.name or made.name)


def _candidate(
    table: schema.KernelTable, place: Place, context: ParsingContext, names: Sequence[str], depth: int
) -> KernelCandidate:
    require(depth < MAX_KERNEL_DEPTH, "kernel", f"{depth} nested levels of parts", f"at most {MAX_KERNEL_DEPTH - 1}")
    on = _default_coordinates(table, names) if table.on is None else table.on
    for name in on:
        require(name in names, "on", name, f"coordinates among {listed(list(names))}")
    require(len(set(on)) == len(on), "on", on, "each coordinate once")
    box = context.box
    extent = np.array([box.upper[box.axis(name)] - box.lower[box.axis(name)] for name in on])
    if isinstance(table, schema.CompositeKernelTable):
        made = _composite(table, place, context, on, depth)
    else:
        kernel = _evolution(table, on, box) if isinstance(table, schema.EvolutionTable) else _simple(table, extent)
        # The length of a periodic kernel is relative to its period, not to the domain.
        unit = np.ones(1) if isinstance(table, schema.PeriodicKernelTable) else extent
        unit = extent[1:] if isinstance(table, schema.EvolutionTable) else unit
        leaves = jax.tree_util.tree_flatten_with_path(kernel)[0]
        fields = [path[-1].name for path, leaf in leaves if eqx.is_inexact_array(leaf)]
        numbers = [(getattr(table, field), extent if field == "period" else unit) for field in fields]
        name = f"matern-{table.nu:g}" if isinstance(table, schema.MaternTable) else table.type
        made = KernelCandidate(name, kernel, tuple(numbers))
    if list(on) == list(names):
        return made
    axes = [list(names).index(name) for name in on]
    return dataclasses.replace(made, name=f"{made.name}({', '.join(on)})", kernel=made.kernel.on(*axes))


def _default_coordinates(table: schema.KernelTable, names: Sequence[str]) -> list[str]:
    """Return all coordinates; kernels of moving frames and of evolutions have the time first."""
    timed = isinstance(table, schema.ShearedRBFTable | schema.EvolutionTable)
    first = [name for name in names if name == TIME and timed]
    return [*first, *(name for name in names if name not in first)]


def _composite(
    table: schema.CompositeKernelTable, place: Place, context: ParsingContext, names: Sequence[str], depth: int
) -> KernelCandidate:
    parts = []
    for i, raw in enumerate(table.parts):
        inner = (*place, "parts", i)
        part = schema.validated(schema.KERNELS, raw, inner, context.log)
        made = None if part is None else context.log.attempt(inner, _candidate, part, inner, context, names, depth + 1)
        if made is not None:
            parts.append(made)
    if len(parts) < len(table.parts):
        raise InputError("a part has a mistake, which is reported separately")
    combine, sign = (operator.add, " + ") if table.type == "sum" else (operator.mul, " × ")
    kernel = functools.reduce(combine, [part.kernel for part in parts])
    numbers = tuple(number for part in parts for number in part.numbers)
    return KernelCandidate(sign.join(part.name for part in parts), kernel, numbers)


def _simple(table: schema.KernelTable, extent: np.ndarray) -> Kernel:
    """Return a kernel at its start. The keys of its table have the names of its fields."""
    dimension, usual = len(extent), float(0.3 * np.exp(np.log(extent).mean()))
    if isinstance(table, schema.PeriodicKernelTable):
        return Periodic(start_of(table.period, float(extent.max())), start_of(table.bandwidth, 1.0))
    if isinstance(table, schema.AnisotropicRBFTable):
        require(dimension == 2, "type", table.type, f"two coordinates, not {dimension}")
        diagonal = float(np.arctan2(extent[1], extent[0]))
        return AnisotropicRBF(start_of(table.theta, diagonal), start_of(table.s, 0.7), start_of(table.bandwidth, usual))
    if isinstance(table, schema.ShearedRBFTable):
        require(dimension == 2, "type", table.type, f"two coordinates, not {dimension}")
        lengths = table.bandwidth if isinstance(table.bandwidth, list) else start_of(table.bandwidth, 0.3 * extent)
        require(np.size(lengths) in (1, 2), "bandwidth", lengths, "2 numbers, one for each coordinate")
        return ShearedRBF(start_of(table.shear, 0.0), np.broadcast_to(np.asarray(lengths, float), (2,)))
    assert isinstance(table, schema.RadialTable)
    given = table.bandwidth
    if isinstance(given, list):
        require(len(given) == dimension, "bandwidth", given, f"{dimension} numbers, one for each coordinate")
        start: Any = np.array(given)
    else:
        start = start_of(given, 0.3 * extent if table.per_axis else usual)
        start = np.broadcast_to(start, (dimension,)) if table.per_axis and dimension > 1 else np.ravel(start)[0]
    if isinstance(table, schema.MaternTable):
        return Matern(table.nu, start)
    if isinstance(table, schema.RationalQuadraticTable):
        return RationalQuadratic(start_of(table.alpha, 1.0), start)
    return RBF(start)


def _evolution(table: schema.EvolutionTable, on: Sequence[str], box: Box) -> Kernel:
    """Return a kernel of evolutions at its start."""
    require(len(on) > 1, "on", on, "the time and at least one other coordinate")
    time, *others = (box.axis(name) for name in on)
    extent = np.array([box.upper[axis] - box.lower[axis] for axis in others])
    given = table.bandwidth
    good = not isinstance(given, list) or len(given) == len(extent)
    require(good, "bandwidth", given, f"{len(extent)} numbers, one for each coordinate except the time")
    start = np.array(given) if isinstance(given, list) else start_of(given, USUAL_STATE * extent)
    lengths = np.broadcast_to(np.asarray(start, float), extent.shape)
    return Evolution(RBF(lengths if len(extent) > 1 else lengths[0]), (box.lower[time], box.upper[time]))


def _for_snapshots(table: ParsedTable, data: Sequence[ParsedTable], context: ParsingContext) -> ParsedTable:
    """Return an equation on a few nodes in time, and as many in space as there are readings in a snapshot.

    Nodes that the file gives stay.
    """
    time = context.box.axis(TIME)
    readings = max(sum(block.size for one in data for block in one.blocks) // MOST_SNAPSHOTS, 1)
    across = min(readings ** (1 / (context.box.dimension - 1)), MOST_SNAPSHOT_NODES)
    blocks = []
    for block in table.blocks:
        rule = None if block.nodes is None else block.nodes.rule
        if not table.has_nodes and rule is not None and not rule.sampled:
            now = DEFAULT_NODES.get(context.box.dimension, 4)
            wanted = [SNAPSHOT_TIMES if axis == time else max(across, now) for axis in range(context.box.dimension)]
            block = block.refined([count / now for count in wanted]) or block
        blocks.append(block)
    return dataclasses.replace(table, blocks=tuple(blocks))


def _are_snapshots(parsed: Mapping[str, Sequence[ParsedTable]], context: ParsingContext) -> bool:
    """Whether all data are values of the unknown at very few times, and the equations are of first order in time."""
    box = context.box
    data = [block for table in parsed["data"] for block in table.blocks]
    equations = [block for table in parsed["equation"] for block in table.blocks]
    if TIME not in box.names or box.dimension < 2 or not data or not equations:
        return False
    time = box.axis(TIME)
    times, counts = np.unique(np.concatenate([block.points[:, time] for block in data]), return_counts=True)
    orders = [max(alpha[time] for alpha in block.indices) for block in equations]
    values = all(str(block.operator) == "Id" and not block.is_functional for block in data)
    enough = len(times) == MOST_SNAPSHOTS and bool(counts.min() >= FEWEST_READINGS)
    return values and enough and set(orders) == {1}


def _default_kernels(
    parsed: Mapping[str, Sequence[ParsedTable]], context: ParsingContext, inferred: bool
) -> tuple[list[schema.KernelTable], str]:
    """Return the kernels of a file that names none, and why these, in words."""
    if inferred and _are_snapshots(parsed, context):
        # Under a kernel with a length in time, the prior of the state depends on the coefficients, and biases them.
        why = (
            "the file names no kernel: evolution is the default for unknown coefficients of an equation of first order "
            "in time and data at two times"
        )
        return [schema.EvolutionTable(type="evolution")], why
    tables: list[schema.KernelTable] = [schema.RBFTable(type="rbf")]
    why = "the file names no kernel: rbf is the default"
    equations = [block for table in parsed["equation"] for block in table.blocks]
    known = bool(equations) and not inferred and not any(block.is_nonlinear for block in equations)
    if known and not parsed["data"] and context.box.dimension == 2:
        # Data show how the solution varies inside the domain. Without any, a wave that travels from a boundary is all
        # but impossible for a kernel along the axes, however short it is.
        tables.append(schema.ShearedRBFTable(type="sheared-rbf"))
        why += (
            ", and sheared-rbf is tried too, since there are no data and the solution may be constant along a "
            "direction; it starts in the direction that suits the equation best, by its data-free score"
        )
    return tables, why


def _with_data_free_shear(model: Model, candidate: KernelCandidate, over: Mapping[str, Any], inferred: bool) -> Model:
    """Return the model with shears that suit its equations, if the file has no start for them and equations are known.

    The evidence has many optima in the shear, and a search from a wrong velocity does not find the right one. The
    data-free score has one.
    """
    equations = equation_blocks(model)
    if inferred or not equations or any(block.is_nonlinear for block in equations):
        return model
    roles = model.roles
    kernel = [name for name, places in named_paths(model).items() if is_of_kernel(places[0])]
    for name, (given, _) in zip(kernel, candidate.numbers, strict=True):
        free = given is None or (isinstance(given, schema.Unknown) and given.start is None)
        if free and roles[name] == "shear":
            coarse = [_thinned(block, MAX_SHEAR_NODES) for block in equations]
            chosen = data_free_choice(model.replace(data=(), physics=coarse), {name: over[name]})
            model = model.replace({name: chosen[name]})
    return model


def _thinned(block: Observation, most: int) -> Observation:
    """Return an equation on at most about this many nodes, if its nodes come from a rule."""
    factor = (most / block.size) ** (1 / block.dimension)
    return block if factor >= 1 else block.refined(factor, 0.0) or block


def kernel_bounds(model: Model, candidate: KernelCandidate) -> dict[str, Any]:
    """Return the bounds of the kernel's hyperparameters that are not fixed."""
    paths = {name: places[0] for name, places in named_paths(model).items() if is_of_kernel(places[0])}
    over: dict[str, Any] = {}
    for (name, path), (given, extent) in zip(paths.items(), candidate.numbers, strict=True):
        if isinstance(given, schema.Unknown):
            over[name] = given.bounds
        elif given is None:
            now = np.asarray(model.parameters[name])
            over[name] = default_bounds(role_of(model, path), now, is_positive(model, path), extent)
    return over


def kernel_priors(model: Model, candidate: KernelCandidate) -> dict[str, Prior]:
    """Return what the file says about the kernel's hyperparameters."""
    names = [name for name, places in named_paths(model).items() if is_of_kernel(places[0])]
    given = {name: schema.prior_of(choice) for name, (choice, _) in zip(names, candidate.numbers, strict=True)}
    return {name: prior for name, prior in given.items() if prior is not None}


_OBSERVATIONS = ("equation", "condition", "data", "constraint")
_TABLES: dict[str, tuple[Any, Callable[[Any, Place, ParsingContext], Any]]] = {
    "equation": (schema.EquationTable, observations.equation),
    "condition": (schema.CONDITIONS, condition),
    "data": (schema.DataTable, observations.data),
    "constraint": (schema.ConstraintTable, observations.constraint),
    "kernel": (schema.KERNELS, kernel_candidate),
}
"""The schema of each kind of table, and the function that makes observations or a kernel from it."""


def read_points(path: Path, box: Box) -> Float[np.ndarray, "n d"]:
    """Return the points in a file with a column for each coordinate."""
    cells, _ = read_table(path, box.names, path.name)
    return np.column_stack([cells[name] for name in box.names])


def _define(language: Language, name: str, text: str) -> bool:
    language.define(name, text)
    return True


def _parameters(block: Observation) -> list[str]:
    """Return the names of the parameters in the operator of a block."""
    operators = (block.operator, *block.operator.linear_parts)
    return [atom.name for operator in operators for atom in operator.atoms if isinstance(atom, Parameter)]


def _model(
    candidate: KernelCandidate,
    noise: NoiseModel,
    priors: Mapping[str, Prior],
    operators: Sequence[str],
    context: ParsingContext,
    solver: Any,
) -> Model:
    kernel, temperatures = candidate.kernel, dict[str, Any](noise.temperatures)
    model = Model(kernel, noise.data, noise.physics, solver=solver or "dense", **temperatures)
    model = model.replace(priors={**priors, **noise.priors, **kernel_priors(model, candidate)})
    for text in operators:
        indices = context.language.operator(text).indices(context.box.dimension)
        check_smoothness(kernel, indices, f"the prediction {text!r}")
    return model


def jet_bytes(model: Model) -> float:
    """Return the memory for the joint covariance of all arguments of nonlinear operators; zero for a linear model."""
    counts = [len(block.operator.linear_parts) for block in model.blocks]
    rows = sum(count * block.size for count, block in zip(counts, model.blocks, strict=True))
    return 8.0 * rows**2 if model.is_nonlinear else 0.0


def _grid(box: Box, given: Any) -> Float[np.ndarray, "n d"]:
    """Return the points of a regular grid over the domain."""
    sizes = (
        given if isinstance(given, Mapping) else dict.fromkeys(box.names, given or DEFAULT_GRID.get(box.dimension, 7))
    )
    require(set(sizes) == set(box.names), "grid", given, f"a number for each of {', '.join(box.names)}")
    total = math.prod(int(sizes[name]) for name in box.names)
    require(total <= MAX_POINTS, "grid", f"{total} points", f"at most {MAX_POINTS}")
    axes = [np.linspace(a, b, sizes[n]) for n, a, b in zip(box.names, box.lower, box.upper, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, box.dimension)
