"""A problem: models, bounds and predictions, as a problem file describes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from ..domains import Box
from ..equations import Nonlinear, Operator
from ..equations.text import Language, ParameterFunction
from ..inference import NAMED_SCORES, Score
from ..model import Model
from ..solvers import Solver


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """A problem file with its data, as models; made by `load_problem`.

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
    Problem('A hanging cable', Box(x=(0, 1)), N = 42, kernels rbf)
    >>> list(problem.over["rbf"])  # to be chosen; the equation and the conditions are exact
    ['kernel.bandwidth', 'eta']
    >>> problem.operator("load*dx(u)")
    2 ∂x
    >>> ps.posterior(problem.model).mean([0.5]).round(2)  # x(x − 1)
    array([-0.25])
    """

    path: Path
    """The path of the file."""
    title: str
    """The title in the file, or the name of the file."""
    box: Box
    """The domain."""
    unknown: str
    """The name of the unknown function."""
    language: Language
    """The parser of expressions, with the coordinates, parameters and functions of the file."""
    models: Mapping[str, Model]
    """A model for each kernel, at its start."""
    texts: Mapping[str, str]
    """The observed values of each block by label, as text."""
    over: Mapping[str, Mapping[str, Any]]
    """For each kernel the bounds of the hyperparameters to choose, as `minimize` takes them."""
    score: Score
    """What is minimised."""
    starts: int
    """The number of starts of the search for each kernel."""
    seed: int
    """The seed of the starts."""
    inferred: tuple[str, ...]
    """The names of the parameters to infer."""
    operators: tuple[str, ...]
    """The operators to predict, as text."""
    points: Float[np.ndarray, "n d"]
    """The points to predict at."""
    warnings: tuple[str, ...]
    """Warnings about the file that are not mistakes."""
    files: tuple[str, ...]
    """The data files, relative to the directory of the problem file."""
    digest: str
    """A digest of the problem file and its data files at the time of loading."""
    solver: Solver | None = None
    """The solver, if the file has a section [solver]; the models have it too."""
    derived: Mapping[str, ParameterFunction] = dataclasses.field(default_factory=dict)
    """The quantities derived from parameters, by name."""
    why_kernels: str = ""
    """Why these kernels are tried, in words; empty if the file names them."""

    @property
    def model(self) -> Model:
        """The model with the first kernel."""
        return next(iter(self.models.values()))

    def operator(self, text: str, values: Mapping[str, float] | None = None) -> Operator | Nonlinear:
        """Return the operator of a text such as `"k*dx(u)"`, with these values of the inferred parameters."""
        if values is None:
            return self.language.operator(text)
        return self.language.with_values({name: values[name] for name in self.inferred}).operator(text)

    @property
    def score_name(self) -> str:
        """The score by its name in problem files and in Python."""
        return next(name for name, score in NAMED_SCORES.items() if score == self.score)

    def __repr__(self) -> str:
        return f"Problem({self.title!r}, {self.box!r}, N = {self.model.size}, kernels {', '.join(self.models)})"
