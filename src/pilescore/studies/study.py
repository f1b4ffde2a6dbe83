"""What a study is, and how it is run: computed by parts, written, and drawn from what was written."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr

import pilescore as ps
from pilescore.charts import Report
from pilescore.folders import Folder

PACKAGES = ("pilescore", "jax", "jaxlib", "numpy", "scipy", "xarray", "matplotlib", "plotly")


@dataclasses.dataclass(frozen=True)
class Study:
    """A study: from settings to results and numbers, and from those to a report."""

    name: str
    compute: Callable[[Any, Workbench], tuple[xr.Dataset, dict[str, Any]]]
    """From settings to the dataset, and the numbers that the report states, among them `checks`."""
    report: Callable[[xr.Dataset, Mapping[str, Any]], Report]
    """From the dataset and the summary, as they are on disk, to what the page says."""


@dataclasses.dataclass(frozen=True)
class Workbench:
    """Where the parts of a study are made and kept."""

    folder: Folder
    say: Callable[[str], None]
    """Tells the user what is being done."""
    client: Any = None
    """A `dask.distributed.Client` whose workers compute the scores."""
    solver: str | None = None
    """The solver of sweeps, minimisations and posteriors; None is dense."""

    def sweep(self, name: str, model: Any, grid: Mapping[str, Any], **options: Any) -> xr.Dataset:
        """Return a sweep that is kept, or end if it was interrupted."""
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "interrupted", UserWarning)
                same: Any = {"client": self.client, "solver": self.solver, "save": self.folder.save(name)}
                return ps.sweep(model, grid, **same, **options)
        except UserWarning as warning:
            if not str(warning).startswith("interrupted"):
                raise
            raise KeyboardInterrupt from None  # also if no point was left: what comes next is not begun

    def minimum(self, name: str, model: ps.Model, over: Mapping[str, Any], start: Mapping[str, Any]) -> xr.Dataset:
        """Return a minimisation from one start that is kept, or end if it was interrupted."""

        def compute() -> xr.Dataset:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ps.PrecisionWarning)  # kept as the rounding error of the score
                best = ps.minimize(model, over, starts=[start], client=self.client, solver=self.solver)
            if best.ending == "interrupted":
                raise KeyboardInterrupt
            return described(best)

        return self.folder.part(name, compute)


def kept_settings(study: Study, settings: Any, solver: str | None = None) -> dict[str, Any]:
    """Return all that the results depend on, for the folder."""
    named = {} if solver is None else {"solver": solver}
    return {"study": study.name, "pilescore": ps.__version__, **dataclasses.asdict(settings), **named}


def described(best: ps.Minimum) -> xr.Dataset:
    """Return what a minimisation from one start found, by the names of hyperparameters."""
    (run,) = best.runs
    names = list(best.values)
    columns = {"start": run.start, "end": best.values, "standard_error": best.standard_errors}
    return xr.Dataset(
        {column: ("parameter", [values[name] for name in names]) for column, values in columns.items()}
        | {"at_bound": ("parameter", [best.at_bounds.get(name, "") for name in names])}
        | {"path": ("step", np.asarray(run.path["pile"])), "pile": best.pile.value, "rounding": best.pile.rounding}
        | {"evaluations": best.evaluations, "ending": best.ending},
        {"parameter": names},
    )


def run(
    study: Study,
    settings: Any,
    folder: Folder,
    say: Callable[[str], None],
    client: Any = None,
    solver: str | None = None,
) -> tuple[dict[str, Any], Report]:
    """Compute what is missing, write the results, draw them from the files; return the summary and the report."""
    from pilescore.report import write_report  # matplotlib and plotly take a while to import

    if not folder.finished:
        results, numbers = study.compute(settings, Workbench(folder, say, client, solver))
        versions = {name: importlib.metadata.version(name) for name in PACKAGES} | {"python": platform.python_version()}
        summary = {"study": study.name, "settings": folder.settings, "versions": versions, **numbers}
        summary["seeds"] = list(range(settings.seeds))
        summary["figures"] = [figure.name for figure in study.report(results, summary).figures]
        folder.finish(results, summary)
    results, summary = folder.read()
    report = study.report(results, summary)
    say("drawing the figures and the report")
    write_report(report, folder.path)
    folder.close()
    return summary, report


def check(what: str, expected: str, found: Any, holds: Any) -> dict[str, Any]:
    """Return one figure that must come out, and whether it did."""
    return {"what": what, "expected": expected, "found": found, "holds": bool(holds)}


def seeds(count: int) -> str:
    """Return a number of seeds in words."""
    return "1 seed" if count == 1 else f"{count} seeds"
