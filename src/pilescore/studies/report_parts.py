"""Panels, tables and text shared by the reports of several studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from ..reports import Curve, Lines, Mark, Picture, Section, TextTable, digits


def percent(fraction: float) -> str:
    """Format a fraction as a percentage."""
    return f"{100 * fraction:.0f}%"


def picture(
    title: str, field: xr.DataArray, symbol: str, labels: Sequence[str] | None = None, **options: Any
) -> Picture:
    """Return a panel of a field over its two dimensions, with their names as labels if no others are given."""
    x_label, y_label = labels or map(str, field.dims)
    x, y = (field[name].values for name in field.dims)
    return Picture(title, x_label, y_label, x, y, field.values.T, symbol, **options)


def limits(field: xr.DataArray) -> tuple[float, float]:
    """Return the smallest and the largest value, for colour scales."""
    return float(field.min()), float(field.max())


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
            Curve("PILE", pile[along].values, *_band(pile), colour=2, axis="right"),
        ),
        marks=marks,
        x_log=True,
        y_log=True,
        right_label="PILE",
        right_log=bool((pile > 0).all()) and float(pile.max()) > 10 * float(pile.min()),
    )


def _error_curve(name: str, errors: xr.DataArray, along: str, colour: int) -> Curve:
    """Return errors on a logarithmic axis: the geometric mean over seeds, ± two deviations of the logarithm."""
    mean, low, high = (np.exp(each) for each in _band(np.log(errors)))
    return Curve(name, errors[along].values, mean, low, high, colour)


def _band(values: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean over seeds, and the mean ∓ two standard deviations."""
    # With one seed the unbiased deviation would be NaN; without the correction it is zero.
    mean, band = values.mean("seed"), 2 * values.std("seed", ddof=min(1, values.sizes["seed"] - 1))
    return mean.values, (mean - band).values, (mean + band).values


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
