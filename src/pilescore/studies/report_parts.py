"""Panels, tables and text shared by the reports of several studies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from ..reports import Curve, Lines, Mark, Section, TextTable, digits


def percent(fraction: float) -> str:
    """Format a fraction as a percentage."""
    return f"{100 * fraction:.0f}%"


def sweep_panel(
    title: str, label: str, scores: Mapping[str, xr.DataArray], of_physics: str, marks: tuple[Mark, ...]
) -> Lines:
    """Return a panel of both errors and, on the right axis, PILE along a sweep: means over seeds ± two deviations."""
    pile = scores["pile"]
    (along,) = (str(name) for name in pile.dims if name != "seed")
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
    """Return errors on a logarithmic axis: the geometric mean over seeds, ± two deviations of the logarithm."""
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
    """Return the standard deviation over seeds. With one seed it is zero, not NaN."""
    return values.std("seed", ddof=min(1, values.sizes["seed"] - 1))


def checks_section(summary: Mapping[str, Any]) -> Section:
    """Return the section with the expected results of the study."""
    rows = tuple(
        (check["what"], check["expected"], value_text(check["found"]), "yes" if check["holds"] else "NO")
        for check in summary["checks"]
    )
    return Section(
        "Are the results as expected?",
        ("All values were computed in this run, with the settings below.",),
        (),
        (TextTable("Expected results of this study.", ("quantity", "expected", "computed", "as expected"), rows),),
    )


def value_text(value: Any) -> str:
    """Format the value of a check: a number, a range of two numbers, or a truth value."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return " to ".join(map(digits, value))
    return digits(value)


def details(summary: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return settings and versions, for the end of the page."""
    return (
        *((name.replace("_", " "), str(value)) for name, value in summary["settings"].items()),
        *((f"{name} version", version) for name, version in summary["versions"].items()),
    )
