"""Choosing what a problem leaves open, kept in a directory from which it can be loaded back."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import json
import math
import os
import platform
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from .comparison import failed_row, ranked, row
from .errors import InputError, OutsideDomainWarning, PilescoreError, PrecisionWarning, as_points, require
from .files import replace
from .folders import SUMMARY, Folder
from .minimum import Minimum, minimize
from .misfit import left_out_residuals, left_out_variances, system_losses
from .model import Model
from .posterior import Posterior, posterior
from .problems import Problem, block_text, load_problem
from .score import pile

COPY = "problem"
"""The directory within the directory of a selection that holds the problem file and its data."""

PREDICTIONS = "predictions.csv"
FIELD = {1: 201, 2: 61}
"""Points on each axis of what a report shows; of more coordinates it shows two."""

SHOWN = 6
"""Operators that a report shows, at most."""

PACKAGES = ("pilescore", "jax", "jaxlib", "numpy", "scipy", "pandas", "xarray")


@dataclasses.dataclass(frozen=True, eq=False)
class Selection:
    """What was chosen for a problem; made by `select`, or loaded by `load_selection`."""

    directory: Path
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

    @functools.cached_property
    def model(self) -> Model:
        """The chosen model."""
        return self.problem.models[self.kernel].replace(self.values)

    @functools.cached_property
    def posterior(self) -> Posterior:
        """The chosen model, conditioned on its observations."""
        return posterior(self.model)

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
            The coordinates, then for each operator `A` the columns `A` and `A_std`.
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
        texts = self.problem.operators if operators is None else tuple(operators)
        return _predicted(self.problem, self.posterior, self.values, at, texts)

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
    tell = say or (lambda text: None)
    settings = {
        "problem": problem.digest,
        "file": problem.path.name,
        "pilescore": importlib.metadata.version("pilescore"),
    }
    with Folder(out, settings, resume=resume, overwrite=overwrite).entered() as folder:
        if not folder.finished:
            _copy(problem, folder.path / COPY)
            results, summary, predictions = _chosen(problem, folder, tell, progress)
            replace(folder.path / PREDICTIONS, predictions.to_csv(index=False).encode())
            folder.finish(results, summary)
        folder.close()
    return load_selection(folder.path)


def load_selection(directory: str | os.PathLike[str]) -> Selection:
    """Return a selection that `select` or `pilescore select` has kept in a directory.

    See `select` for an example.
    """
    require(isinstance(directory, str | os.PathLike), "directory", directory, "the path of a directory")
    path = Path(directory)
    try:
        settings = json.loads((path / SUMMARY).read_text(encoding="utf-8"))["settings"]
        name = settings["file"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: expected the directory of a finished selection, as `pilescore select FILE --out DIR` makes it; "
            f"{SUMMARY} is not there or not one of a selection"
        ) from error
    results, summary = Folder(path, settings, resume=True).read()
    problem = load_problem(path / COPY / name)
    if problem.digest != settings["problem"]:
        raise InputError(f"{path / COPY}: the copy of the problem has been changed; select again")
    return Selection(path, problem, summary, results)


def _copy(problem: Problem, to: Path) -> None:
    """Put the problem file and the files it reads into a directory, as they are named."""
    shutil.rmtree(to, ignore_errors=True)
    for name in (problem.path.name, *problem.files):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        replace(to / name, (problem.path.parent / name).read_bytes())


def _chosen(
    problem: Problem, folder: Folder, say: Callable[[str], None], progress: bool | None
) -> tuple[xr.Dataset, dict[str, Any], pd.DataFrame]:
    """Return arrays, numbers and predictions of the kernel that scores best."""
    found: dict[str, Any] = {}
    for i, name in enumerate(problem.models):
        say(f"kernel {i + 1} of {len(problem.models)}: {name}")
        compute = functools.partial(_searched, problem, name, folder.save(f"evaluations-{i}"), progress)
        found[name] = json.loads(folder.part(f"kernel-{i}", compute).attrs["found"])
    table = ranked(problem.models, {name: each["row"] for name, each in found.items()})
    best = str(table.index[0])
    if not math.isfinite(table["pile"].iloc[0]):
        reasons = "; ".join(f"{name}: {each['row']['warnings']}" for name, each in found.items())
        raise PilescoreError(f"no kernel could be scored. {reasons}")
    say("predicting")
    values = found[best]["values"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        conditioned = posterior(problem.models[best].replace(values))
        predictions = _predicted(problem, conditioned, values, problem.points, problem.operators)
        results, shown = _shown(problem, conditioned, values)
    notes = dict.fromkeys(" ".join(str(each.message).split()) for each in caught)
    rows = {str(name): each for name, each in table.to_dict(orient="index").items()}
    versions = {package: importlib.metadata.version(package) for package in PACKAGES}
    summary = {
        "title": problem.title,
        "settings": folder.settings,
        "versions": versions | {"python": platform.python_version()},
        "kernel": best,
        "pile": found[best]["row"]["pile"],
        "score": "data given physics" if problem.given_physics else "PILE",
        "warnings": [*problem.warnings, *notes],
        "kernels": [{"name": name, **found[name], "row": _plain(each)} for name, each in rows.items()],
        "files": [PREDICTIONS, *(f"{COPY}/{name}" for name in (problem.path.name, *problem.files))],
        **shown,
    }
    return results, summary, predictions


def _searched(problem: Problem, name: str, save: Path, progress: bool | None) -> xr.Dataset:
    """Return what minimising with one kernel gave, in words and numbers."""
    model, over = problem.models[name], problem.over[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrecisionWarning)  # kept as the rounding error of the score
            if not over:
                score = pile(model, given_physics=problem.given_physics)
                found = _nothing() | {"row": row(score, False, False), "rounding": score.rounding}
            else:
                best = minimize(
                    model,
                    over,
                    starts=problem.starts,
                    seed=problem.seed,
                    given_physics=problem.given_physics,
                    save=save,
                    progress=progress,
                )
                if best.ending == "interrupted":
                    raise KeyboardInterrupt
                found = _of_minimum(best)
    except PilescoreError as failure:
        if isinstance(failure, OSError):
            raise
        found = _nothing() | {"row": failed_row(str(failure))}
    return xr.Dataset(attrs={"found": json.dumps(found)})


def _nothing() -> dict[str, Any]:
    return {"values": {}, "standard_errors": {}, "at_bounds": {}, "runs": [], "ending": "fixed", "evaluations": 1}


def _of_minimum(best: Minimum) -> dict[str, Any]:
    return {
        "values": dict(best.values),
        "standard_errors": dict(best.standard_errors),
        "at_bounds": dict(best.at_bounds),
        "ending": best.ending,
        "reason": best.reason,
        "evaluations": best.evaluations,
        "rounding": best.pile.rounding,
        "shares": dict(best.pile.shares),
        "runs": [
            {name: getattr(run, name) for name in ("start", "end", "pile", "ending", "reason")} for run in best.runs
        ],
        "row": row(best, False, False),
    }


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a table with numbers that JSON has, null for those that are missing."""
    present = {key: None if pd.isna(each) else each for key, each in values.items()}
    return {key: each.item() if isinstance(each, np.generic) else each for key, each in present.items()}


def _predicted(
    problem: Problem, conditioned: Posterior, values: Mapping[str, float], points: np.ndarray, texts: Sequence[str]
) -> pd.DataFrame:
    found = {text: problem.operator(text, values) for text in texts}
    columns: dict[str, Any] = {name: points[:, axis] for axis, name in enumerate(problem.box.names)}
    for text, operator in found.items():
        columns[text] = conditioned.mean(points, operator)
        columns[f"{text}_std"] = conditioned.std(points, operator)
    return pd.DataFrame(columns)


def _shown(problem: Problem, conditioned: Posterior, values: Mapping[str, float]) -> tuple[xr.Dataset, dict[str, Any]]:
    """Return what a report shows: operators along one or two coordinates, and each reading beside its prediction."""
    box, model = problem.box, conditioned.model
    shown = min(box.dimension, 2)
    axes = [np.linspace(box.lower[i], box.upper[i], FIELD[shown]) for i in range(shown)]
    middle = [0.5 * (a + b) for a, b in zip(box.lower, box.upper, strict=True)][shown:]
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)
    points = np.column_stack([grid, np.tile(middle, (len(grid), 1))])
    dims = ("first", "second")[:shown]
    texts = list(dict.fromkeys([problem.unknown, *problem.operators]))[:SHOWN]
    table = _predicted(problem, conditioned, values, points, texts)
    shape = tuple(len(axis) for axis in axes)
    system = conditioned.system
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
    standard = residuals / np.sqrt(model.noise)
    ends = np.cumsum([block.size for block in model.blocks])
    blocks = [
        {
            "name": label,
            "role": block.role,
            "observed": block_text(block, problem.unknown),
            "size": block.size,
            "noise": float(np.sqrt(np.median(0.5 * temperature / block.weights))),
            "residual": float(np.sqrt(np.mean(part**2))),
        }
        for label, block, temperature, part in zip(
            model.labels, model.blocks, model.temperatures, np.split(standard, ends[:-1]), strict=True
        )
    ]
    scores = system_losses(system, apart)
    found = {"losses": dataclasses.asdict(scores), "blocks": blocks, "unknown": problem.unknown}
    return results, found | {"coordinates": list(box.names), "middle": middle, "inferred": list(problem.inferred)}


def _points(model: Model) -> list[np.ndarray]:
    """Return the points of data; of functionals, the mean of their points."""
    return [
        block.points if block.matrix is None else np.tile(block.points.mean(0), (block.size, 1)) for block in model.data
    ]
