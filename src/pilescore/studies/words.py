"""Pieces that the reports of studies have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from pilescore.charts import Curve, Lines, Mark, Section, TextTable, digits


def angle(value: float) -> str:
    """Return an angle with five digits after the point."""
    return f"{value:.5f}".replace("-", "−")


def percent(part: float) -> str:
    """Return a part of one in percent."""
    return f"{100 * part:.0f}%"


def sweep_panel(
    title: str, label: str, scores: Mapping[str, xr.DataArray], of_physics: str, marks: tuple[Mark, ...]
) -> Lines:
    """Return both errors and, on the right axis, PILE along a sweep: means over seeds, ± two deviations."""
    (along,) = (str(name) for name in scores["pile"].dims if name != "seed")
    pile = scores["pile"]
    return Lines(
        title=title,
        x_label=label,
        y_label="relative error",
        curves=(
            _error_curve("R_data, error in f", scores["R_data"], along, 0),
            _error_curve(f"R_phys, error in {of_physics}", scores["R_phys"], along, 1),
            _score_curve("PILE", pile, along, 2),
        ),
        marks=marks,
        x_log=True,
        y_log=True,
        right_label="PILE",
        right_log=bool((pile > 0).all()) and float(pile.max()) > 10 * float(pile.min()),
    )


def _error_curve(name: str, errors: xr.DataArray, along: str, colour: int) -> Curve:
    """Return errors that are shown by their logarithm: the geometric mean over seeds, ± two deviations."""
    logs: Any = np.log(errors)
    mean, band = logs.mean("seed"), 2 * _deviation(logs)
    return Curve(
        name, errors[along].values, np.exp(mean).values, np.exp(mean - band).values, np.exp(mean + band).values, colour
    )


def _score_curve(name: str, score: xr.DataArray, along: str, colour: int) -> Curve:
    """Return a score on the right axis: the mean over seeds, ± two deviations."""
    mean, band = score.mean("seed"), 2 * _deviation(score)
    low, high = (mean - band).values, (mean + band).values
    return Curve(name, score[along].values, mean.values, low, high, colour, axis="right")


def _deviation(values: xr.DataArray) -> xr.DataArray:
    return values.std("seed", ddof=min(1, values.sizes["seed"] - 1))


def checks_table(summary: Mapping[str, Any]) -> Section:
    """Return the figures that should come out, and which did."""
    rows = [
        (each["what"], each["expected"], shown(each["found"]), "yes" if each["holds"] else "NO")
        for each in summary["checks"]
    ]
    return Section(
        "Did it come out as it should?",
        ("Computed in this run, from these settings.",),
        (),
        (TextTable("Figures that are expected of this study.", ("figure", "expected", "found", "holds"), tuple(rows)),),
    )


def shown(found: Any) -> str:
    """Return what a check found."""
    if isinstance(found, bool):
        return str(found).lower()
    if isinstance(found, list):
        return " to ".join(digits(value) for value in found)
    return digits(found)


def details(summary: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return settings and versions, for the end of the page."""
    return (
        *((name.replace("_", " "), str(value)) for name, value in summary["settings"].items()),
        *((f"{name} version", version) for name, version in summary["versions"].items()),
    )
