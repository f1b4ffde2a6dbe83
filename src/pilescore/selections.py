"""Choosing what a problem leaves open, kept in a directory from which it can be loaded back."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import json
import math
import os
import platform
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from pydantic import ValidationError

from .cluster import checked_client
from .comparison import ranked
from .errors import InputError, OutsideDomainWarning, PilescoreError, as_points, require
from .files import replace
from .findings import Diagnosis
from .folders import DIGEST, RESULTS, SUMMARY, Folder
from .misfit import left_out_residuals, left_out_variances, system_losses
from .model import Model
from .outcomes import cautions, diagnosed, searched, solution
from .posterior import Posterior
from .predictions import Predictor
from .problems import Problem, block_text, digest, load_problem
from .records import Record
from .solving import Solved
from .summaries import Check, Summary

COPY = "pilescore-problem"
"""The directory within the directory of a selection that holds the problem file and its data."""

PREDICTIONS = "predictions.csv"
FIELD = {1: 201, 2: 61}
"""Points on each axis of what a report shows; of more coordinates it shows two."""

SHOWN = 6
"""Operators that a report shows, at most."""

PACKAGES = ("pilescore", "jax", "jaxlib", "numpy", "scipy", "pandas", "xarray")


@dataclasses.dataclass(frozen=True, eq=False)
class Selection:
    """What was chosen for a problem; made by `select`, or loaded by `load_selection`.

    Examples
    --------
    >>> import pathlib, tempfile, pilescore as ps
    >>> text = '''
    ... domain = { x = [0, 1] }
    ... condition = { type = "dirichlet", face = "all", value = 0 }
    ... equation = { equation = "dxx(u) = -pi**2*sin(pi*x)", nodes = 8, noise = 0.1 }
    ... kernel = { type = "rbf", bandwidth = { unknown = [0.3, 3] } }
    ... '''
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = pathlib.Path(directory, "rod.toml")
    ...     _ = path.write_text(text)
    ...     found = ps.select(ps.load_problem(path), pathlib.Path(directory, "found"))
    ...     table = found.predict([[0.25], [0.5]], ["u", "dxx(u)"])
    >>> found.kernel, list(found.values)
    ('rbf', ['kernel.bandwidth', 'eta'])
    >>> table.round(3)  # sin πx and −π² sin πx
          x      u  u_std  dxx(u)  dxx(u)_std
    0  0.25  0.707  0.004  -6.958       0.075
    1  0.50  1.000  0.006  -9.898       0.076
    >>> found.diagnosis.healthy
    True
    """

    directory: Path
    """Where it is kept."""
    problem: Problem
    """The problem as it was, from the copy in the directory."""
    summary: Mapping[str, Any]
    """All numbers, as in `summary.json`."""
    results: xr.Dataset
    """All arrays, as in `results.nc`."""

    @property
    def kernel(self) -> str:
        """The name of the chosen kernel."""
        return str(self.summary["kernel"])

    @property
    def values(self) -> dict[str, float]:
        """The chosen hyperparameters and the inferred parameters."""
        return dict(self._chosen["values"])

    @property
    def standard_errors(self) -> dict[str, float]:
        """Their standard errors; NaN where there is none."""
        found = self._chosen["standard_errors"]
        return {name: math.nan if value is None else value for name, value in found.items()}

    @property
    def table(self) -> pd.DataFrame:
        """The kernels, best first, as `compare` gives them."""
        rows = {each["name"]: each["row"] for each in self.summary["kernels"]}
        return pd.DataFrame.from_dict(rows, orient="index")

    @property
    def model(self) -> Model:
        """The chosen model."""
        return self._predictor.model

    @property
    def posterior(self) -> Posterior:
        """The chosen model, conditioned on its observations; inferred parameters are taken as known.

        Nonlinear equations are linearised at their most likely solution.
        """
        return self._predictor.posterior

    @property
    def solved(self) -> Solved | None:
        """The most likely solution of nonlinear equations; None where there are none."""
        return self._predictor.solved

    @property
    def diagnosis(self) -> Diagnosis:
        """What `diagnose` found in the chosen model; of details only outliers are kept."""
        return Diagnosis(tuple(Check.model_validate(each).finding() for each in self.summary["diagnosis"]))

    def predict(self, points: Any = None, operators: Sequence[str] | None = None) -> pd.DataFrame:
        """Return mean and deviation of operators of the unknown at points.

        Parameters
        ----------
        points
            Of shape (n, d); by default those of the problem file.
        operators
            As they are written in problem files, `["u", "k*dx(u)"]`; by default those of the problem file.

        Returns
        -------
        pandas.DataFrame
            The coordinates, then for each operator `A` the columns `A` and `A_std`. The deviation has the posterior's
            variance and, to first order, that of inferred parameters; chosen hyperparameters are taken as known. What
            is nonlinear in the unknown, as `u**2`, is that of the mean, with a deviation to first order.
        """
        box = self.problem.box
        at = self.problem.points if points is None else as_points(points, "points")
        require(at.shape[1] == box.dimension, "points", at, f"points with the coordinates {', '.join(box.names)}")
        outside = int((~box.contains(at)).sum())
        if outside:
            warnings.warn(
                f"{outside} of {len(at)} points lie outside the domain, where no equation holds",
                OutsideDomainWarning,
                stacklevel=2,
            )
        return self._predictor.table(at, self.problem.operators if operators is None else tuple(operators))

    @functools.cached_property
    def _predictor(self) -> Predictor:
        return Predictor(self.problem, self.kernel, self.values, self._chosen["covariance"])

    @property
    def _chosen(self) -> Mapping[str, Any]:
        return next(each for each in self.summary["kernels"] if each["name"] == self.kernel)

    def __repr__(self) -> str:
        values = ", ".join(f"{name} = {value:.4g}" for name, value in self.values.items())
        return f"Selection({self.problem.title!r}, kernel {self.kernel}, PILE {self.summary['pile']:.6g}, {values})"


def select(
    problem: Problem,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    overwrite: bool = False,
    say: Callable[[str], None] | None = None,
    progress: bool | None = None,
    client: Any = None,
) -> Selection:
    """Minimise PILE over all that a problem leaves open, for each of its kernels, and keep what was found.

    Stopped at any time, by Ctrl-C or `kill -9`, it goes on with `resume=True` and comes to the same result.

    Parameters
    ----------
    problem
        Made by `load_problem`.
    out
        A directory, which is made. It takes a copy of the problem and its data, so that `load_selection` needs
        nothing else.
    resume
        Go on with what is in the directory.
    overwrite
        Replace the work that is in the directory; other files there are left alone.
    say
        Takes a line now and then that says what is being done.
    progress
        Show a progress bar: by default on a terminal only.
    client
        A `dask.distributed.Client` whose workers compute the scores, as for `minimize`.

    Examples
    --------
    >>> import pathlib, tempfile, numpy as np, pandas as pd, pilescore as ps
    >>> text = '''
    ... [domain]
    ... t = [0, 3]
    ... [parameters]
    ... rate = { unknown = [0.1, 10.0] }
    ... [[equation]]
    ... equation = "dt(u) + rate*u = 0"
    ... [[data]]
    ... file = "decay.csv"
    ... value = "u"
    ... noise = 0.02
    ... '''
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     t = np.linspace(0, 3, 25)
    ...     u = np.exp(-0.7 * t) + 0.02 * np.random.default_rng(0).standard_normal(25)
    ...     pd.DataFrame({"t": t, "u": u}).to_csv(pathlib.Path(directory, "decay.csv"))
    ...     _ = pathlib.Path(directory, "problem.toml").write_text(text)
    ...     problem = ps.load_problem(pathlib.Path(directory, "problem.toml"))
    ...     found = ps.select(problem, pathlib.Path(directory, "found"))
    ...     table = found.predict([[0.0], [1.0]], ["u", "rate*u"])
    >>> round(found.values["rate"], 1), abs(found.values["rate"] - 0.7) < 2 * found.standard_errors["rate"]
    (0.7, True)
    >>> list(table.columns), table["u"].round(1).tolist()
    (['t', 'u', 'u_std', 'rate*u', 'rate*u_std'], [1.0, 0.5])
    """
    require(isinstance(problem, Problem), "problem", problem, "a problem made by ps.load_problem")
    client = None if client is None else checked_client(client)
    tell = say or (lambda text: None)
    version = importlib.metadata.version("pilescore")
    settings = {f"problem{DIGEST}": problem.digest, "file": problem.path.name, "pilescore": version}
    folder = Folder(out, settings, resume=resume, overwrite=overwrite)
    copy = folder.path / COPY
    if copy.is_symlink() or problem.path.resolve().is_relative_to(copy.resolve()):
        raise InputError(
            f"out: {copy} is for the copy of a problem, and cannot hold the problem; use another directory"
        )
    contents = _contents(problem)
    with folder.entered():
        if not folder.finished:
            for name, content in contents.items():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                replace(copy / name, content)
            results, summary, predictions = _chosen(problem, folder, tell, progress, client)
            replace(folder.path / PREDICTIONS, predictions.to_csv(index=False).encode())
            folder.finish(results, summary)
        folder.close()
    return load_selection(folder.path)


def load_selection(directory: str | os.PathLike[str]) -> Selection:
    """Return a selection that `select` or `pilescore select` has kept in a directory.

    Parameters
    ----------
    directory
        The `out` of `select`. It needs nothing else, and can be copied to another machine.

    Examples
    --------
    >>> import pathlib, tempfile, pilescore as ps
    >>> text = '''
    ... domain = { x = [0, 1] }
    ... condition = { type = "dirichlet", face = "all", value = 0 }
    ... equation = { equation = "dxx(u) = -pi**2*sin(pi*x)", nodes = 8, noise = 0.1 }
    ... kernel = { type = "rbf", bandwidth = { unknown = [0.3, 3] } }
    ... '''
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = pathlib.Path(directory, "rod.toml")
    ...     _ = path.write_text(text)
    ...     chosen = ps.select(ps.load_problem(path), pathlib.Path(directory, "found"))
    ...     path.unlink()  # the copy will do
    ...     again = ps.load_selection(pathlib.Path(directory, "found"))
    >>> again.values == chosen.values
    True
    >>> again.posterior.mean([0.25, 0.5]).round(2)  # sin πx
    array([0.71, 1.  ])
    """
    require(isinstance(directory, str | os.PathLike), "directory", directory, "the path of a directory")
    path = Path(directory)
    try:
        summary = json.loads((path / SUMMARY).read_text(encoding="utf-8"))
        Summary.model_validate(summary)
        name = summary["settings"]["file"]
        results = Record(path / RESULTS).read()
    except (OSError, ValueError, ValidationError) as error:
        raise InputError(
            f"{path}: expected the directory of a finished selection, as `pilescore select FILE --out DIR` makes it; "
            f"{SUMMARY} or {RESULTS} is not there, or damaged"
        ) from error
    if results is None:
        raise InputError(f"{path}: {RESULTS} is not there")
    require(Path(name).name == name, f"{SUMMARY}: file", name, "the name of a file")
    problem = load_problem(path / COPY / name)
    if problem.digest != summary["settings"][f"problem{DIGEST}"]:
        raise InputError(f"{path / COPY}: the copy of the problem has been changed; select again")
    names = [each["name"] for each in summary["kernels"]]
    require(summary["kernel"] in names and {*names} <= {*problem.models}, SUMMARY, names, "kernels of the problem")
    return Selection(path, problem, summary, results)


def _contents(problem: Problem) -> dict[str, bytes]:
    """Return the problem file and the files it reads; they must be what they were when it was loaded."""
    try:
        found = {name: (problem.path.parent / name).read_bytes() for name in (problem.path.name, *problem.files)}
    except OSError as error:
        raise InputError(f"problem: {error.filename} cannot be read any more: {error.strerror}") from error
    if digest(found.values()) != problem.digest:
        raise InputError(f"problem: {problem.path} or its data have changed since they were loaded; load them again")
    return found


def _chosen(
    problem: Problem, folder: Folder, say: Callable[[str], None], progress: bool | None, client: Any
) -> tuple[xr.Dataset, dict[str, Any], pd.DataFrame]:
    """Return arrays, numbers and predictions of the kernel that scores best."""
    found: dict[str, Any] = {}
    for i, name in enumerate(problem.models):
        say(f"kernel {i + 1} of {len(problem.models)}: {name}")
        compute = functools.partial(searched, problem, name, folder.save(f"evaluations-{i}"), progress, client)
        found[name] = json.loads(folder.part(f"kernel-{i}", compute).attrs["found"])
    table = ranked(problem.models, {name: each["row"] for name, each in found.items()})
    best = str(table.index[0])
    if not math.isfinite(table["pile"].iloc[0]):
        reasons = "; ".join(f"{name}: {each['row']['warnings']}" for name, each in found.items())
        raise PilescoreError(f"no kernel could be scored. {reasons}")
    say("predicting")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        predictor = Predictor(problem, best, found[best]["values"], found[best]["covariance"])
        predictions = predictor.table(problem.points, problem.operators)
        results, shown = _shown(predictor)
        solved = None if predictor.solved is None else solution(predictor.solved, problem.given_physics)
    notes = [" ".join(str(each.message).split()).split(". ")[0] for each in caught]
    say("diagnosing")
    checks = folder.part("diagnosis", functools.partial(diagnosed, problem, best, predictor.model)).attrs["found"]
    rows = {str(name): each for name, each in table.to_dict(orient="index").items()}
    versions = {package: importlib.metadata.version(package) for package in PACKAGES}
    summary = {
        "title": problem.title,
        "settings": folder.settings,
        "versions": versions | {"python": platform.python_version()},
        "kernel": best,
        "pile": found[best]["row"]["pile"],
        "score": "data given physics" if problem.given_physics else "PILE",
        "warnings": list(dict.fromkeys([*cautions(problem, found[best], solved), *problem.warnings, *notes])),
        "diagnosis": json.loads(checks),
        "kernels": [{"name": name, **found[name], "row": _plain(each)} for name, each in rows.items()],
        "files": [PREDICTIONS, *(f"{COPY}/{name}" for name in (problem.path.name, *problem.files))],
        "figures": ["solution", *(["readings"] if predictor.model.data else [])],
        "solved": solved,
        **shown,
    }
    return results, summary, predictions


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a table with numbers that JSON has, null for those that are missing."""
    present = {key: None if pd.isna(each) else each for key, each in values.items()}
    return {key: each.item() if isinstance(each, np.generic) else each for key, each in present.items()}


def _shown(predictor: Predictor) -> tuple[xr.Dataset, dict[str, Any]]:
    """Return what a report shows: operators along one or two coordinates, and each reading beside its prediction."""
    problem, model, system = predictor.problem, predictor.model, predictor.posterior.system
    box = problem.box
    texts = list(dict.fromkeys([problem.unknown, *problem.operators]))[:SHOWN]
    count = min(box.dimension, 2)
    axes = [np.linspace(box.lower[i], box.upper[i], FIELD[count]) for i in range(count)]
    cut = _largest(predictor)[count:]
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)
    table = predictor.table(np.column_stack([grid, np.tile(cut, (len(grid), 1))]), texts)
    dims, shape = ("first", "second")[:count], tuple(len(axis) for axis in axes)
    apart = left_out_variances(system)
    readings = np.concatenate([np.empty(0), *(block.values for block in model.data)])
    residuals = np.empty(model.size)
    residuals[system.rows.order] = system.noise * system.alpha
    results = xr.Dataset(
        {
            "mean": (("operator", *dims), table[texts].to_numpy().T.reshape(-1, *shape)),
            "std": (("operator", *dims), table[[f"{text}_std" for text in texts]].to_numpy().T.reshape(-1, *shape)),
            "reading": ("row", readings),
            "reading_point": (("row", "coordinate"), np.concatenate([np.empty((0, box.dimension)), *_points(model)])),
            "reading_block": ("row", np.repeat(np.arange(len(model.data)), [block.size for block in model.data])),
            "fitted": ("row", readings - residuals[: len(readings)]),
            "left_out": ("row", readings - left_out_residuals(system, apart)),
            "left_out_std": ("row", np.sqrt(apart)),
        },
        {"operator": texts, **dict(zip(dims, axes, strict=True))},
    )
    parts = np.split(residuals / np.sqrt(model.noise), np.cumsum([block.size for block in model.blocks])[:-1])
    blocks = [
        {
            "name": label,
            "role": block.role,
            "observed": f"{block_text(block, problem.unknown)} = {problem.texts[label]}",
            "size": block.size,
            "noise": float(np.sqrt(np.median(0.5 * temperature / block.weights))),
            "residual": float(np.sqrt(np.mean(part**2))),
        }
        for label, block, temperature, part in zip(model.labels, model.blocks, model.temperatures, parts, strict=True)
    ]
    scores = dataclasses.asdict(system_losses(system, apart))
    return results, {"losses": scores, "blocks": blocks, "slice": dict(zip(box.names[count:], cut, strict=True))}


def _largest(predictor: Predictor) -> list[float]:
    """Return a point at which the unknown is large, through which to cut what has more than two coordinates."""
    box = predictor.problem.box
    if box.dimension <= 2:
        return [0.5 * (a + b) for a, b in zip(box.lower, box.upper, strict=True)]
    points = np.random.default_rng(0).uniform(box.lower, box.upper, (500, box.dimension))
    return points[np.argmax(np.abs(predictor.posterior.mean(points)))].round(6).tolist()


def _points(model: Model) -> list[np.ndarray]:
    """Return the points of data; of functionals, the mean of their points."""
    return [b.points if b.matrix is None else np.tile(b.points.mean(axis=0), (b.size, 1)) for b in model.data]
