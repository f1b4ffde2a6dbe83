"""Selection: choose what a problem leaves open, store it in a directory, and load it back."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import math
import os
import platform
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import xarray as xr
from pydantic import BaseModel

from ..diagnosis import Diagnosis
from ..errors import InputError, OutsideDomainWarning, PilescoreError, as_points, require
from ..inference import MixturePosterior, Posterior, system_losses
from ..model import Model, find, named_paths
from ..nonlinear import Solution
from ..parallel import checked_client
from ..search import Derived, on_common_nodes, ranked, row
from ..storage import DIGEST, RESULTS, SUMMARY, DatasetFile, Folder, replace
from .kernel_search import diagnose_choice, search_kernel, selection_warnings, solution_summary
from .loading import digest, load_problem
from .prediction import Predictor, block_summaries, chosen_model, figure_arrays
from .problem import Problem
from .summary import DiagnosisSummary, KernelResult, KernelScore, SelectionSummary

T = TypeVar("T", bound=BaseModel)
COPY = "pilescore-problem"
"""The subdirectory of a selection with a copy of the problem file and its data."""

PREDICTIONS = "predictions.csv"
PACKAGES = ("pilescore", "jax", "jaxlib", "numpy", "scipy", "pandas", "xarray")


@dataclasses.dataclass(frozen=True, eq=False)
class Selection:
    """The result of `select`: the chosen kernel and numbers, with predictions; loaded by `load_selection`.

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
    >>> list(table)
    ['x', 'u', 'u_std', 'dxx(u)', 'dxx(u)_std']
    >>> table[["x", "u", "dxx(u)"]].round(2)  # sin πx and −π² sin πx
          x     u  dxx(u)
    0  0.25  0.71   -6.97
    1  0.50  1.00   -9.88
    >>> found.diagnosis.healthy
    True
    """

    directory: Path
    """The directory that stores it."""
    problem: Problem
    """The problem, from the copy in the directory."""
    summary: SelectionSummary
    """All numbers, as in `summary.json`."""
    results: xr.Dataset
    """All arrays, as in `results.nc`."""

    @property
    def kernel(self) -> str:
        """The name of the chosen kernel."""
        return self.summary.kernel

    @property
    def values(self) -> dict[str, float]:
        """The chosen hyperparameters and the inferred parameters."""
        return dict(self.summary.chosen.values)

    @property
    def standard_errors(self) -> dict[str, float]:
        """Their standard errors; NaN if unknown."""
        return dict(self.summary.chosen.standard_errors)

    @property
    def derived(self) -> dict[str, Derived]:
        """The derived quantities of the problem file, each with its value and standard error."""
        stored = self.summary.chosen.derived
        return {name: Derived(each.value, each.standard_error) for name, each in stored.items()}

    @property
    def intervals(self) -> pd.DataFrame:
        """The 2.5%, 50% and 97.5% quantiles of what was searched and of derived quantities, one row for each name.

        They average over all searched numbers together. The table is empty if their distribution is not known.
        """
        chosen = self.summary.chosen
        rows: dict[str, Any] = {} if chosen.hyperposterior is None else dict(chosen.hyperposterior.quantiles)
        rows |= {name: each.quantiles for name, each in chosen.derived.items() if each.quantiles is not None}
        return pd.DataFrame.from_dict(rows, orient="index", columns=["2.5%", "50%", "97.5%"], dtype=float)

    @property
    def roles(self) -> dict[str, str]:
        """What kind of quantity each chosen number is, as in `Model.roles`."""
        model = self.problem.models[self.kernel]
        known, roles = named_paths(model), model.roles
        return {name: roles[find(model, known, name)[0]] for name in self.values}

    @property
    def table(self) -> pd.DataFrame:
        """The kernels, best first, as in the table of `compare`."""
        rows = {kernel.name: kernel.row.model_dump() for kernel in self.summary.kernels}
        return pd.DataFrame.from_dict(rows, orient="index")

    @property
    def model(self) -> Model:
        """The chosen model."""
        return self._predictor.model

    @property
    def posterior(self) -> MixturePosterior | Posterior:
        """The posterior averaged over the distribution of what was searched: a mixture of weighted models.

        It contains the uncertainty of hyperparameters and inferred parameters. `ps.posterior(selection.model)` takes
        them as known; so does this posterior if nothing was searched, or if their distribution is not known. Nonlinear
        equations are linearised at their most likely solution.
        """
        return self._predictor.mixture or self._predictor.posterior

    @property
    def solution(self) -> Solution | None:
        """The most likely solution of nonlinear equations; None if all equations are linear."""
        return self._predictor.solution

    @property
    def diagnosis(self) -> Diagnosis:
        """The findings of `diagnose` about the chosen model; only outliers are stored in detail."""
        return self.summary.diagnosis.diagnosis()

    def predict(self, points: Any = None, operators: Sequence[str] | None = None) -> pd.DataFrame:
        """Return the mean and standard deviation of operators of the unknown at points.

        Parameters
        ----------
        points
            An array of shape (n, d); by default the points of the problem file.
        operators
            Operators as in problem files, `["u", "k*dx(u)"]`; by default those of the problem file.

        Returns
        -------
        pandas.DataFrame
            The coordinates, then for each operator `A` the columns `A` and `A_std`. Both average over
            the distribution of the chosen hyperparameters and inferred parameters, so the standard deviation contains
            their uncertainty. A nonlinear operator such as `u**2` is linearised around the mean of each weighted model.
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
        return Predictor(self.problem, self.summary.chosen)

    def __repr__(self) -> str:
        values = ", ".join(f"{name} = {value:.4g}" for name, value in self.values.items())
        return f"Selection({self.problem.title!r}, kernel {self.kernel}, PILE {self.summary.pile:.6g}, {values})"


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
    """Minimise PILE over everything a problem leaves open, for each of its kernels, and store the result.

    If it is stopped, even by `kill -9`, the same call with `resume=True` continues and reaches the same result.

    Parameters
    ----------
    problem
        A problem from `load_problem`.
    out
        The directory to create. It gets a copy of the problem and its data, and `load_selection` needs nothing else.
    resume
        Continue the work in the directory.
    overwrite
        Replace the work in the directory; other files there are left alone.
    say
        A function that is called with a line of text at each step.
    progress
        Show a progress bar; by default only on a terminal.
    client
        A `dask.distributed.Client` whose workers compute the scores.

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
            f"out: {copy} is reserved for the copy of the problem and cannot hold the problem itself; use another "
            "directory"
        )
    contents = _contents(problem)
    with folder.entered():
        if not folder.finished:
            for name, content in contents.items():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                replace(copy / name, content)
            results, summary, predictions = _choose(problem, folder, tell, progress, client)
            replace(folder.path / PREDICTIONS, predictions.to_csv(index=False).encode())
            # Last: the summary marks the directory as finished.
            folder.finish(results, summary.model_dump())
        folder.close()
    return load_selection(folder.path)


def load_selection(directory: str | os.PathLike[str]) -> Selection:
    """Load a selection that `select` or `pilescore select` has stored.

    Parameters
    ----------
    directory
        The directory `out` of `select`. It is complete, and can be copied to another machine.

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
    ...     path.unlink()  # the directory has a copy
    ...     again = ps.load_selection(pathlib.Path(directory, "found"))
    >>> again.values == chosen.values
    True
    >>> again.posterior.mean([0.25, 0.5]).round(2)  # sin πx
    array([0.71, 1.  ])
    """
    require(isinstance(directory, str | os.PathLike), "directory", directory, "the path of a directory")
    path = Path(directory)
    try:
        summary = SelectionSummary.model_validate_json((path / SUMMARY).read_bytes())
        results = DatasetFile(path / RESULTS).read()
    except (OSError, ValueError) as error:  # a ValidationError of pydantic is a ValueError
        raise InputError(
            f"{path}: expected the directory of a finished selection, as `pilescore select FILE --out DIR` writes it; "
            f"{SUMMARY} or {RESULTS} is missing or damaged"
        ) from error
    if results is None:
        raise InputError(f"{path}: {RESULTS} is missing")
    name = summary.settings["file"]
    # The summary may come from a stranger: the name must not lead out of the directory.
    require(Path(name).name == name, f"{SUMMARY}: file", name, "the name of a file")
    problem = load_problem(path / COPY / name)
    if problem.digest != summary.settings[f"problem{DIGEST}"]:
        raise InputError(f"{path / COPY}: the copy of the problem has been changed; select again")
    names = [kernel.name for kernel in summary.kernels]
    require({*names} <= {*problem.models}, SUMMARY, names, "kernels of the problem")
    return Selection(path, problem, summary, results)


def _contents(problem: Problem) -> dict[str, bytes]:
    """Return the contents of the problem file and its data files; they must not have changed since loading."""
    try:
        contents = {name: (problem.path.parent / name).read_bytes() for name in (problem.path.name, *problem.files)}
    except OSError as error:
        raise InputError(f"problem: {error.filename} can no longer be read: {error.strerror}") from error
    if digest(contents.values()) != problem.digest:
        raise InputError(f"problem: {problem.path} or its data have changed since they were loaded; load them again")
    return contents


def _part(folder: Folder, name: str, kind: type[T], compute: Callable[[], T]) -> T:
    """Return a part of the work: from its JSON file if there is one, else computed and stored."""
    path = folder.save(name).with_suffix(".json")
    with contextlib.suppress(OSError, ValueError):  # missing or damaged
        return kind.model_validate_json(path.read_bytes())
    result = compute()
    replace(path, result.model_dump_json(indent=1).encode())
    return result


def _choose(
    problem: Problem, folder: Folder, say: Callable[[str], None], progress: bool | None, client: Any
) -> tuple[xr.Dataset, SelectionSummary, pd.DataFrame]:
    """Return the arrays, numbers and predictions of the best kernel."""
    searched: dict[str, KernelResult] = {}
    for i, name in enumerate(problem.models):
        say(f"kernel {i + 1} of {len(problem.models)}: {name}")
        compute = functools.partial(search_kernel, problem, name, folder.save(f"evaluations-{i}"), progress, client)
        searched[name] = _part(folder, f"kernel-{i}", KernelResult, compute)
    scored = [result for result in searched.values() if math.isfinite(result.row.pile)]
    if len({result.score for result in scored}) > 1:  # only equal scores are comparable: the fallback counts for all
        for i, name in enumerate(problem.models):
            if searched[name] in scored and searched[name].score != "physics":
                say(f"kernel {i + 1} of {len(problem.models)}: {name}, the data given the physics")
                save = folder.save(f"evaluations-{i}-given-physics")
                compute = functools.partial(
                    search_kernel,
                    problem,
                    name,
                    save,
                    progress,
                    client,
                    dataclasses.replace(problem.score, given="physics"),
                )
                searched[name] = _part(folder, f"kernel-{i}-given-physics", KernelResult, compute)
    kernels = _ranked(problem, _comparable(problem, searched))
    best = kernels[0]
    if not math.isfinite(best.row.pile):
        reasons = "; ".join(f"{name}: {result.row.warnings}" for name, result in searched.items())
        raise PilescoreError(f"no kernel could be scored. {reasons}{_remedy(problem)}")
    say("predicting")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        predictor = Predictor(problem, best)
        try:
            predictor.condition()
        except PilescoreError as failure:
            best = kernels[0] = best.model_copy(update={"hyperposterior": None, "why_known": str(failure)})
            predictor = Predictor(problem, best)
        predictions = predictor.table(problem.points, problem.operators)
        results, fixed = figure_arrays(predictor)
        score = dataclasses.replace(problem.score, given=best.score)
        solution = None if predictor.solution is None else solution_summary(predictor.solution, score)
    notes = [" ".join(str(warning.message).split()).split(". ")[0] for warning in caught]
    say("diagnosing")
    compute_checks = functools.partial(diagnose_choice, problem, best.name, predictor.model, score)
    versions = {package: importlib.metadata.version(package) for package in PACKAGES}
    summary = SelectionSummary(
        title=problem.title,
        settings=folder.settings,
        versions=versions | {"python": platform.python_version()},
        kernel=best.name,
        pile=best.row.pile,
        score=best.why,
        warnings=list(dict.fromkeys([*selection_warnings(problem, best, solution), *problem.warnings, *notes])),
        diagnosis=_part(folder, "diagnosis", DiagnosisSummary, compute_checks),
        kernels=kernels,
        why_kernels=problem.why_kernels,
        files=[PREDICTIONS, *(f"{COPY}/{name}" for name in (problem.path.name, *problem.files))],
        figures=["solution", *(["readings"] if predictor.model.data else []), *(["pairs"] if _has_pairs(best) else [])],
        solution=solution,
        losses=dataclasses.asdict(system_losses(predictor.posterior.system, predictor.left_out_variances)),
        blocks=block_summaries(predictor),
        slice=fixed,
    )
    return results, summary, predictions


def _has_pairs(chosen: KernelResult) -> bool:
    """Return whether the report shows at least two numbers together."""
    return chosen.hyperposterior is not None and len(chosen.hyperposterior.draws) > 1


def _remedy(problem: Problem) -> str:
    """Return which kernels to try if none of those of a problem can be scored."""
    untried, models = [], problem.models.values()
    if problem.box.dimension == 2 and not any("shear" in model.roles.values() for model in models):
        untried.append('type = "sheared-rbf", if something travels')
    for name, model in problem.models.items():
        for parameter, (low, high) in problem.over[name].items():
            if model.roles[parameter] == "shear":
                now = f"[{float(low):.3g}, {float(high):.3g}]"
                untried.append(
                    f'type = "sheared-rbf" with wider bounds of its shear than {now}, if something is faster'
                )
    if all(math.isinf(model.kernel.smoothness) for model in models):
        untried.append('type = "matern", if the solution is rough')
    return f". Kernels to try, in [[kernel]]: {'; '.join(untried)}" if untried else ""


def _comparable(problem: Problem, searched: Mapping[str, KernelResult]) -> dict[str, KernelResult]:
    """Return the results with scores on the same nodes, if exact values are scored and kernels needed other nodes.

    A kernel that cannot satisfy the equations on the nodes that another one needed is a failure.
    """
    results = dict(searched)
    scored = {name: result for name, result in searched.items() if math.isfinite(result.row.pile)}
    if len(scored) < 2 or any(model.is_nonlinear for model in problem.models.values()):
        return results
    score = dataclasses.replace(problem.score, given=next(iter(scored.values())).score)
    models = {name: chosen_model(problem, result) for name, result in scored.items()}
    given = score.given_blocks(problem.model)
    if all(i in given or not problem.model.is_exact(i) for i in range(len(problem.model.blocks))):
        return results
    rows = {name: row(model, score) for name, model in on_common_nodes(models, score).items()}
    if any(math.isfinite(each["pile"]) for each in rows.values()):
        for name, result in scored.items():
            notes = result.row.warnings if math.isfinite(rows[name]["pile"]) else rows[name]["warnings"]
            # The evidence changes with the nodes about as much as at the chosen values.
            change = 0.5 * (result.row.size or 0) * (result.row.pile - rows[name]["pile"])
            integrated = {"log_evidence": result.row.log_evidence + change, "error": result.row.error}
            kept = {"fitted": result.row.fitted, "warnings": notes, **integrated}
            results[name] = result.model_copy(update={"row": KernelScore(**rows[name] | kept)})
    return results


def _ranked(problem: Problem, searched: Mapping[str, KernelResult]) -> list[KernelResult]:
    """Return the results for all kernels, best first, with ranks and differences."""
    later = {"rank", "difference", "nats", "probability"}
    rows = {name: result.row.model_dump(exclude=later) for name, result in searched.items()}
    # Rows of failed kernels have no size. pandas takes NaN for a missing number, the summary None.
    numbers = {
        name: {key: math.nan if value is None else value for key, value in row.items()} for name, row in rows.items()
    }
    table = ranked(problem.models, numbers)
    columns = table.astype(object).where(table.notna(), None).to_dict(orient="index")
    return [
        searched[str(name)].model_copy(update={"row": KernelScore(**rows[str(name)] | row)})
        for name, row in columns.items()
    ]
