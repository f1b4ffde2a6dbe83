"""Run a case study: compute its parts, write them to disk, and draw the report from the files.

The functions at the end are shared by the studies.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Float

import pilescore as ps

from ..reports import Report, write_report
from ..storage import Folder

PACKAGES = ("pilescore", "jax", "jaxlib", "numpy", "scipy", "xarray", "matplotlib", "plotly")


@dataclasses.dataclass(frozen=True)
class Study:
    """A case study: a computation, and a report on its results."""

    name: str
    settings: Any
    """The dataclass of settings. Its class method `quick` returns smaller sizes."""
    compute: Callable[[Any, StudyRun], tuple[xr.Dataset, dict[str, Any]]]
    """Computes the dataset and the numbers in the report, including `checks`, from the settings."""
    report: Callable[[xr.Dataset, Mapping[str, Any]], Report]
    """Makes the report from the dataset and the summary, as they were read from disk."""


@dataclasses.dataclass(frozen=True)
class StudyRun:
    """A run of a study: its directory, its progress messages, and where and how models are solved.

    Every part is stored as soon as it is complete. An interrupted run resumes from there.
    """

    folder: Folder
    say: Callable[[str], None]
    """Shows a progress message."""
    client: Any = None
    """A `dask.distributed.Client` whose workers compute the scores."""
    solver: str | None = None
    """The solver of sweeps, minimisations and posteriors. None is dense."""

    def sweep(self, name: str, model: Any, grid: Mapping[str, Any], **options: Any) -> xr.Dataset:
        """Return a sweep, stored under a name, without the shares of blocks. `kernel.bandwidth` becomes `bandwidth`.

        An interrupted sweep raises `KeyboardInterrupt`.
        """
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "interrupted", UserWarning)
                where = ps.RunOptions(client=self.client, save=self.folder.save(name))
                scores = ps.sweep(self.with_solver(model), grid, run=where, **{"score": "joint"} | options)
        except UserWarning as warning:
            if not str(warning).startswith("interrupted"):
                raise
            # Even if all points were done: the study must not start its next part after Ctrl-C.
            raise KeyboardInterrupt from None
        scores = scores.drop_vars(["shares", "block"], errors="ignore")
        return scores.rename({name: name.removeprefix("kernel.") for name in map(str, scores.dims)})

    def with_solver(self, model: Any) -> Any:
        """Set the solver of the study in a model, or in every model that a function returns for a seed."""
        if self.solver is None:
            return model
        if isinstance(model, ps.Model):
            return model.replace(solver=self.solver)
        return lambda seed: model(seed).replace(solver=self.solver)

    def minimize(self, name: str, model: ps.Model, over: Mapping[str, Any], start: Mapping[str, Any]) -> xr.Dataset:
        """Return a minimisation from one start, stored under a name. If interrupted, raise `KeyboardInterrupt`."""

        def compute() -> xr.Dataset:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ps.errors.PrecisionWarning)  # the rounding error is stored instead
                where = ps.RunOptions(client=self.client)
                best = ps.minimize(self.with_solver(model), over, score="joint", starts=[start], run=where)
            if best.status == "interrupted":
                raise KeyboardInterrupt
            return minimum_dataset(best)

        return self.folder.part(name, compute)


def stored_settings(study: Study, settings: Any, solver: str | None = None) -> dict[str, Any]:
    """Return everything that determines the results. `--resume` compares it with the directory."""
    solvers = {} if solver is None else {"solver": solver}
    return {"study": study.name, "pilescore": ps.__version__, **dataclasses.asdict(settings), **solvers}


def minimum_dataset(best: ps.Minimum) -> xr.Dataset:
    """Return the result of a minimisation from one start as a dataset, indexed by hyperparameter."""
    (descent,) = best.descents
    names = list(best.values)
    columns = {"start": descent.start, "end": best.values, "standard_error": best.standard_errors}
    return xr.Dataset(
        {column: ("parameter", [values[name] for name in names]) for column, values in columns.items()}
        | {"at_bound": ("parameter", [best.at_bounds.get(name, "") for name in names])}
        | {"path": ("step", np.asarray(descent.path["pile"])), "pile": best.pile.value, "rounding": best.pile.rounding}
        | {"evaluations": best.evaluations, "status": best.status},
        {"parameter": names},
    )


def run_study(study: Study, settings: Any, run: StudyRun) -> tuple[dict[str, Any], Report]:
    """Compute missing parts, write the results, draw the report from the files; return summary and report."""
    folder = run.folder
    if not folder.finished:
        results, numbers = study.compute(settings, run)
        versions = {name: importlib.metadata.version(name) for name in PACKAGES} | {"python": platform.python_version()}
        summary = {"study": study.name, "settings": folder.settings, "versions": versions, **numbers}
        summary["seeds"] = list(range(settings.seeds))
        summary["figures"] = [figure.name for figure in study.report(results, summary).figures]
        folder.finish(results, summary)
    # The report is always drawn from the files, so a resumed study gives the same page as an uninterrupted one.
    results, summary = folder.read()
    report = study.report(results, summary)
    run.say("drawing the figures and the report")
    write_report(report, folder.path)
    folder.close()
    return summary, report


def check(what: str, expected: str, found: Any, holds: Any) -> dict[str, Any]:
    """Return a check for the summary: a quantity, its expected range, its value, and whether it is in the range."""
    return {"what": what, "expected": expected, "found": found, "holds": bool(holds)}


def counted(count: int, thing: str) -> str:
    """Return a number of things as text, such as "1 seed" or "3 seeds"."""
    return f"{count} {thing}{'s' * (count != 1)}"


def at(function: Callable[[Any], Any], points: Any) -> Float[np.ndarray, " n"]:
    """Evaluate a function of one point at many points."""
    return np.asarray(jax.vmap(function)(jnp.asarray(points)))


def plane(*sides: np.ndarray) -> Float[np.ndarray, "n 2"]:
    """Return the points of a rectangular grid; the last coordinate varies fastest."""
    return np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, len(sides))


def columns(rows: Sequence[Mapping[str, Any]], dimension: str, prefix: str = "") -> dict[str, tuple[str, list[Any]]]:
    """Return the variables of a dataset from rows with equal keys."""
    return {f"{prefix}{name}": (dimension, [row[name] for row in rows]) for name in rows[0]}


def prefixed(dataset: xr.Dataset, prefix: str) -> xr.Dataset:
    """Add a prefix to the names of all variables, but not to coordinates."""
    return dataset.rename({str(name): f"{prefix}_{name}" for name in dataset.data_vars})
