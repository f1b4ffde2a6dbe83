"""Problem files: a scientific problem written in TOML, read into models that are ready to be scored."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from ..atoms import Parameter
from ..choosing import free_name
from ..domains import Box
from ..errors import InputError, MemoryLimitError, describe, require
from ..expressions import Language
from ..linalg import require_memory
from ..methods import NAMES, as_solver, solver_of, with_solver
from ..model import Model, check_bears
from ..nonlinear import Nonlinear
from ..observations import Observation
from ..operators import RESERVED, Operator
from ..solvers import Solver
from . import blocks, candidates, faces, schema
from .blocks import Ground, Piece
from .contradictions import check_conditions, check_periodic, check_readings
from .documents import Document, read_document
from .notes import Notes
from .schema import Place
from .strengths import Setting, setting
from .tables import read_table

T = TypeVar("T")
GRID = {1: 201, 2: 41, 3: 15}
"""Points on each axis of the grid of predictions by the dimension of the domain, seven beyond."""

TAKEN = ("gamma", "rho", "eta", *RESERVED)
"""Names of what a model may choose besides parameters."""

MOST_POINTS = 2_000_000
"""Of predictions."""


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """What a problem file says; made by `load_problem`.

    Examples
    --------
    >>> import pathlib, tempfile, pilescore as ps
    >>> text = '''
    ... title = "A hanging cable"
    ... [domain]
    ... x = [0, 1]
    ... [parameters]
    ... load = 2.0
    ... [[equation]]
    ... equation = "dxx(u) = load"
    ... [[condition]]
    ... type = "dirichlet"
    ... face = "all"
    ... value = 0
    ... [[kernel]]
    ... type = "rbf"
    ... '''
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = pathlib.Path(directory, "problem.toml")
    ...     _ = path.write_text(text)
    ...     problem = ps.load_problem(path)
    >>> problem
    Problem('A hanging cable', Box(x=(0, 1)), N = 32, kernels rbf)
    >>> list(problem.over["rbf"])  # what is to be chosen
    ['kernel.bandwidth', 'eta', 'physics.0.rho']
    >>> problem.operator("load*dx(u)")
    2 ∂x
    >>> ps.posterior(problem.model).mean([0.5]).round(2)  # x(x − 1)
    array([-0.25])
    """

    path: Path
    """Of the file."""
    title: str
    """As the file has it, else the name of the file."""
    box: Box
    """The domain."""
    unknown: str
    """The name of the function that is sought."""
    language: Language
    """What expressions mean."""
    models: Mapping[str, Model]
    """A model for each kernel, at its start."""
    texts: Mapping[str, str]
    """The values of each block by its label, as they are written in the file."""
    over: Mapping[str, Mapping[str, Any]]
    """For each kernel the bounds of what is to be chosen, as `minimize` takes them."""
    given_physics: bool
    """Whether the data are scored given the physics, as they are where an equation has unknown parameters."""
    starts: int
    """Of the search for each kernel, as for `minimize`."""
    seed: int
    """Of the starts."""
    inferred: tuple[str, ...]
    """The parameters that are to be inferred."""
    operators: tuple[str, ...]
    """What to predict."""
    points: Float[np.ndarray, "n d"]
    """Where to predict it."""
    warnings: tuple[str, ...]
    """What is worth knowing, but no mistake."""
    files: tuple[str, ...]
    """The files that it reads, besides its own."""
    digest: str
    """A digest of the problem file and all that it reads, as they were when they were read."""
    solver: Solver | None = None
    """How covariances are solved, where the file says so; the models have it."""

    @property
    def model(self) -> Model:
        """The model with the first kernel."""
        return next(iter(self.models.values()))

    def operator(self, text: str, values: Mapping[str, float] | None = None) -> Operator | Nonlinear:
        """Return the operator of a text such as `"k*dx(u)"`, with these values of the parameters to be inferred."""
        if values is None:
            return self.language.operator(text)
        return self.language.with_values({name: values[name] for name in self.inferred}).operator(text)

    def __repr__(self) -> str:
        return f"Problem({self.title!r}, {self.box!r}, N = {self.model.size}, kernels {', '.join(self.models)})"


def load_problem(path: str | os.PathLike[str]) -> Problem:
    """Read a problem file, and the data that it names, into models.

    Everything is checked before anything is computed; what is wrong is raised together, as one `FileError`.

    Parameters
    ----------
    path
        A TOML file; its keys are described in docs/problems.md, and `pilescore new` writes one to start from.

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
    (impose(∂x² at 30 points, name='equation'), impose(Id at 1 point, name='dirichlet x = 0'))
    >>> ps.posterior(problem.model).mean([0.5]).round(2)  # x(1 − x)/2
    array([0.12])
    """
    require(isinstance(path, str | os.PathLike), "path", path, "the path of a problem file")
    document = read_document(Path(path))
    notes = Notes(document)
    schema.validated(schema.Problem, document.content, (), notes)
    read = _Reader(document, notes)
    ground = read.ground()
    pieces = {kind: read.each(kind, make, ground) for kind, make in _MAKERS.items()}
    kernels = read.each("kernel", candidates.candidate, ground)
    shared = read.section("temperatures", schema.Temperatures)
    choosing = read.section("select", schema.Select)
    wanted = read.section("predict", schema.Predict)
    solver = read.solver()
    if not any(document.content.get(kind) for kind in pieces):
        notes((), "there is nothing to learn from; expected at least one [[equation]], [[condition]] or [[data]]")
    if ground is None:
        notes.finish()
    assert ground is not None
    check_conditions(pieces["condition"], ground)
    check_periodic(pieces["condition"], ground)
    check_readings(pieces["data"], ground)
    read.check_inferred(pieces, choosing)
    operators, points, predicted = read.predictions(wanted, ground)
    notes.finish()
    set_up = setting(pieces, shared, ground)
    notes.finish()
    assert set_up is not None
    models: dict[str, Model] = {}
    over: dict[str, dict[str, Any]] = {}
    bounds = {name: (each.unknown[0], each.unknown[1]) for name, each in read.inferred.items()}
    for i, each in enumerate(kernels or [candidates.default_candidate(ground)]):
        model = notes.attempt(("kernel", i), _model, each.kernel, set_up, operators, ground)
        if model is not None:
            name = free_name(each.name, {*models})
            models[name] = with_solver(model, solver)
            over[name] = candidates.kernel_bounds(model, each.leaves) | dict(set_up.over) | bounds
    given = choosing.score == "data-given-physics" or (choosing.score == "auto" and _is_given(set_up))
    for model in list(models.values())[:1]:
        if solver_of(model).identity == "dense":
            notes.attempt((), _check_memory, model)
    notes.finish()
    files = [file for each in pieces.values() for piece in each for file in piece.files]
    names = tuple(dict.fromkeys([*files, *predicted]))
    return Problem(
        path=document.path,
        title=str(document.content.get("title", document.path.stem)),
        box=ground.box,
        unknown=ground.unknown,
        language=ground.language,
        models=models,
        texts=dict(zip(next(iter(models.values())).labels, set_up.texts, strict=True)),
        over=over,
        given_physics=given,
        starts=choosing.starts,
        seed=choosing.seed,
        inferred=tuple(read.inferred),
        operators=operators,
        points=points,
        warnings=tuple(notes.warnings),
        files=names,
        digest=digest((document.path.parent / name).read_bytes() for name in (document.path.name, *names)),
        solver=solver,
    )


def digest(contents: Iterable[bytes]) -> str:
    """Return a digest of a problem file and all that it reads."""
    found = hashlib.sha256()
    for content in contents:
        found.update(hashlib.sha256(content).digest())
    return found.hexdigest()[:32]


class _Reader:
    """Reads the sections of a document."""

    def __init__(self, document: Document, notes: Notes) -> None:
        self.document = document
        self.notes = notes
        self.inferred: dict[str, schema.Unknown] = {}

    def ground(self) -> Ground | None:
        """Return domain and language, or None where they cannot be used."""
        content, notes = self.document.content, self.notes
        bounds = {name: self._entry("interval", raw, ("domain", name)) for name, raw in self._mapping("domain").items()}
        given = {n: self._entry("parameter", raw, ("parameters", n)) for n, raw in self._mapping("parameters").items()}
        self.inferred = {name: each for name, each in given.items() if isinstance(each, schema.Unknown)}
        for name in sorted({*self.inferred} & {*TAKEN}):
            notes(("parameters", name), f"found {name!r}; expected another name: the model has a {name} of its own")
        unknown = content.get("unknown", "u")
        if not bounds or None in bounds.values() or None in given.values() or not isinstance(unknown, str):
            return None
        box = notes.attempt(("domain",), lambda: Box(**bounds))
        language = notes.attempt(
            ("unknown",) if "unknown" in content else ("domain",), Language, tuple(bounds), unknown
        )
        known: dict[str, float] = {}
        starts: dict[str, float] = {}
        for name, each in given.items() if language is not None else ():
            (starts if isinstance(each, schema.Unknown) else known)[name] = blocks.number(each)
            language = notes.attempt(("parameters", name), Language, tuple(bounds), unknown, known, starts)
            if language is None:
                return None
        if box is None or language is None:
            return None
        for name, raw in self._mapping("functions").items():
            text = self._entry("expression", raw, ("functions", name))
            if text is None or notes.attempt(("functions", name), _defined, language, name, str(text)) is None:
                return None
        return Ground(box, language, unknown, self.document.path.parent, notes)

    def each(self, key: str, make: Callable[[Any, Place, Ground], T | None], ground: Ground | None) -> list[T]:
        """Return what is made of the tables of a kind that hold what they should; one outside an array will do."""
        raw = self.document.content.get(key, [])
        tables: list[tuple[Place, Any]] = [((key,), raw)] if isinstance(raw, Mapping) else []
        if isinstance(raw, list):
            tables = [((key, i), each) for i, each in enumerate(raw)]
        elif not tables:
            self.notes((key,), f"found {describe(raw)}; expected a table [[{key}]], or several")
        found = []
        for place, each in tables:
            table: Any
            if key in ("condition", "kernel"):
                kinds: Any = schema.CONDITIONS if key == "condition" else schema.KERNELS
                table = schema.by_type(kinds, each, place, self.notes)
            else:
                table = schema.validated(_KINDS[key], each, place, self.notes)
            made = None if table is None or ground is None else make(table, place, ground)
            if made is not None:
                found.append(made)
        return found

    def check_inferred(self, pieces: Mapping[str, Sequence[Piece]], choosing: schema.Select) -> None:
        """Report parameters that cannot be inferred, and a score that needs data where there are none."""
        if self.notes.mistakes:
            return
        used = {n for each in pieces.values() for piece in each for block in piece.blocks for n in _parameters(block)}
        for name in self.inferred:
            if name not in used:
                text = "is to be inferred but no equation, condition or measured operator has it"
                self.notes(("parameters", name), text)
            elif not pieces["data"]:
                self.notes(("parameters", name), "is to be inferred but there are no [[data]] to infer it from")
        if choosing.score == "data-given-physics":
            for kinds in (("data",), ("equation", "condition", "constraint")):
                if not any(pieces[kind] for kind in kinds):
                    text = f"found 'data-given-physics' but no [[{kinds[0]}]]; expected both data and physics"
                    self.notes(("select", "score"), text)

    def section(self, key: str, kind: type[schema.T]) -> schema.T:
        """Return a section that may be left out."""
        return schema.validated(kind, self._mapping(key), (key,), self.notes) or kind()

    def solver(self) -> Solver | None:
        """Return the solver of the section about it; None without one."""
        if "solver" not in self.document.content:
            return None
        table = self.section("solver", schema.Solver)
        taken = {"low_rank": ("tol", "rank"), "auto": ("tol",)}.get(table.method, ())
        given = {key: value for key in ("tol", "rank") if (value := getattr(table, key)) is not None}
        for key in given:
            if key not in taken:
                text = f"found {given[key]!r} with the method {table.method!r}, which has no {key}; expected it with "
                self.notes(("solver", key), text + ("auto or low_rank" if key == "tol" else "low_rank"))
        if not given.keys() <= {*taken}:
            return None
        place = ("solver", "method") if "method" in self._mapping("solver") else ("solver",)
        return self.notes.attempt(place, named_solver, table.method, given)

    def predictions(
        self, wanted: schema.Predict, ground: Ground
    ) -> tuple[tuple[str, ...], Float[np.ndarray, "n d"], tuple[str, ...]]:
        """Return the operators and the points of predictions, and the file they come from."""
        texts = tuple(wanted.operators or [ground.unknown])
        for text in texts:
            self.notes.attempt(("predict", "operators"), ground.language.operator, text)
        if wanted.grid is not None and wanted.file is not None:
            self.notes(("predict", "grid"), "grid and file are both given; expected one of them")
        none = np.empty((0, ground.box.dimension))
        if wanted.file is None:
            points = self.notes.attempt(("predict", "grid"), _grid, ground.box, wanted.grid)
            return texts, none if points is None else points, ()
        path = self.notes.attempt(("predict", "file"), blocks.file_within, ground.directory, wanted.file)
        points = None if path is None else self.notes.attempt(("predict", "file"), read_points, path, ground.box)
        return texts, none if points is None else points, (wanted.file,)

    def _mapping(self, key: str) -> Mapping[str, Any]:
        raw = self.document.content.get(key, {})
        return raw if isinstance(raw, Mapping) else {}

    def _entry(self, field: str, raw: Any, place: Place) -> Any:
        """Return the value of one entry of a table of entries."""
        mistakes: list[str] = []
        found = schema.validated(schema.Entry, {field: raw}, place, lambda _, text: mistakes.append(text))
        for text in mistakes:
            self.notes(place, text)
        return None if found is None else getattr(found, field)


_MAKERS: dict[str, Callable[[Any, Place, Ground], Piece | None]] = {
    "equation": blocks.equation,
    "condition": faces.condition,
    "data": blocks.data,
    "constraint": blocks.constraint,
}
_KINDS: dict[str, type[schema.Table]] = {
    "equation": schema.Equation,
    "data": schema.Data,
    "constraint": schema.Constraint,
}


def read_points(path: Path, box: Box) -> Float[np.ndarray, "n d"]:
    """Return the points of a file with a column for each coordinate."""
    cells, _ = read_table(path, box.names, path.name)
    return np.column_stack([cells[name] for name in box.names])


def _defined(language: Language, name: str, text: str) -> bool:
    language.define(name, text)
    return True


def _parameters(block: Observation) -> list[str]:
    operator = block.operator
    atoms = [*operator.atoms]
    if isinstance(operator, Nonlinear):
        atoms += [atom for each in operator.of for atom in each.atoms]
    return [atom.name for atom in atoms if isinstance(atom, Parameter)]


def _is_given(set_up: Setting) -> bool:
    """Whether to score the data given the physics: where it has unknown parameters, or all its values are zero.

    There PILE proper rewards an operator, or a prior, for being small.
    """
    silent = bool(set_up.physics) and not any(block.values.any() for block in set_up.physics)
    return bool(set_up.data) and (silent or any(_parameters(block) for block in set_up.physics))


def _model(kernel: Any, set_up: Setting, operators: Sequence[str], ground: Ground) -> Model:
    temperatures: dict[str, Any] = dict(set_up.temperatures)
    model = Model(kernel, set_up.data, set_up.physics, **temperatures)
    for text in operators:
        indices = ground.language.operator(text).indices(ground.box.dimension)
        check_bears(kernel, indices, f"the prediction {text!r}")
    return model


def frame_bytes(model: Model) -> float:
    """Return the memory for the covariance of all that a nonlinear model is a function of; none of a linear one."""
    held = [len(b.operator.of) if isinstance(b.operator, Nonlinear) else 1 for b in model.blocks]
    count = sum(each * block.size for each, block in zip(held, model.blocks, strict=True))
    return 8.0 * count**2 if model.is_nonlinear else 0.0


def named_solver(method: str, options: Mapping[str, Any]) -> Solver:
    """Return a solver by its name and options."""
    return NAMES[method](**options) if method in NAMES and options else as_solver(method)


def _check_memory(model: Model) -> None:
    try:
        require_memory(model.size, 8.0 * model.size**2 + frame_bytes(model))
    except MemoryLimitError as error:
        raise InputError(str(error)) from error


def _grid(box: Box, given: Any) -> Float[np.ndarray, "n d"]:
    sizes = given if isinstance(given, Mapping) else dict.fromkeys(box.names, given or GRID.get(box.dimension, 7))
    require(set(sizes) == set(box.names), "grid", given, f"a number for each of {', '.join(box.names)}")
    total = math.prod(int(sizes[name]) for name in box.names)
    require(total <= MOST_POINTS, "grid", f"{total} points", f"at most {MOST_POINTS}")
    axes = [np.linspace(a, b, sizes[n]) for n, a, b in zip(box.names, box.lower, box.upper, strict=True)]
    return np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)
