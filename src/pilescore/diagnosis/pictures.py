"""Pictures of findings: charts as plain data, from the details of a finding, and their drawing by matplotlib."""

from __future__ import annotations

import base64
import dataclasses
import io
import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.special import ndtri

if TYPE_CHECKING:  # matplotlib takes as long to import as half of the package
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#8A8A8A", "#222222")
"""Blue, orange, grey and black: distinct for colour-blind readers."""

MOST_ROWS = 8
"""The largest number of rows of a chart with a row for each of several things."""

LARGE, VERY_LARGE = 2.0, 3.0
"""Errors are shown in classes, in predicted deviations."""

LEAST_LOSS, LOSS_FACTOR = 10.0, 2.0
"""A profile is cut off at a loss of so many nats, or so many times the largest gain."""

LABELS = {
    "promised": "gain promised by a first step, in nats",
    "gains": "gain in nats",
    "fits": "fit per value (about 1 is right)",
    "shares": "explained fraction of the mean square",
    "changes": "change of the evidence, in nats",
    "direction": "part in the direction",
}
"""What numbers by name are, in the details of findings, in the order of preference."""

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.edgecolor": "#555555",
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "pilescore",
}


@dataclasses.dataclass(frozen=True)
class Series:
    """Points or a line of a chart."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    style: Literal["dots", "line", "dashed", "line and dots"] = "dots"
    colour: int = 0


@dataclasses.dataclass(frozen=True)
class Chart:
    """The picture of a finding as plain data."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    rows: tuple[str, ...] = ()
    """The names of rows, if `y` is the number of a row."""
    x_log: bool = False


def chart_of(name: str, value: float, threshold: float, measure: str, details: Mapping[str, Any]) -> Chart:
    """Return the picture of a finding, from its details; at least its value and its threshold."""
    stored, title = details.get("chart"), name.replace("_", " ")
    if isinstance(stored, Chart):
        return stored
    picture = details.get("picture")
    if picture is not None:
        return {"space": _space, "quantiles": _quantiles}[picture["kind"]](title, picture)
    if "profile" in details:
        return _profile(title, details["profile"])
    if "coverage" in details:
        return _coverage(title, details["coverage"])
    if "energies" in details:
        present, finer = details["energies"]
        numbers = {"with the present nodes": 0.0, "with finer nodes": float(finer - present)}
        return _rows(title, "change of the free energy, in nats", numbers)
    for key, label in LABELS.items():
        numbers = _numbers(details.get(key))
        if numbers:
            return _rows(title, label, numbers)
    shown = {"measured": value, "fires beyond": threshold}
    return _rows(title, measure.removesuffix(" is"), {key: each for key, each in shown.items() if math.isfinite(each)})


def draw(chart: Chart, axes: Axes) -> None:
    """Draw a chart on matplotlib axes."""
    markers = {"dots": ("", "o"), "line": ("-", ""), "dashed": ("--", ""), "line and dots": ("-", "o")}
    for series in chart.series:
        line, marker = markers[series.style]
        colour = COLOURS[series.colour % len(COLOURS)]
        if chart.rows:
            axes.hlines(series.y, 0.0, series.x, color=colour, linewidth=2.5, alpha=0.5)
        axes.plot(series.x, series.y, color=colour, linestyle=line, marker=marker, markersize=4, label=series.name)
    if chart.x_log:
        axes.set_xscale("log")
        ticks = sorted({x for series in chart.series for x in series.x})
        axes.set_xticks(ticks, [f"{tick:.2g}" for tick in ticks])
        axes.set_xticks([], minor=True)
    if chart.rows:
        axes.set_yticks(range(len(chart.rows)), [_safe(row, 30) for row in chart.rows])
        axes.set_ylim(len(chart.rows) - 0.4, -0.6)  # the first row on top
    elif any(series.name for series in chart.series) and len(chart.series) > 1:
        axes.figure.legend(loc="outside lower left", ncols=2)
    axes.set_title(_safe(chart.title, 60))
    axes.set_xlabel(_safe(chart.x_label, 60))
    axes.set_ylabel(_safe(chart.y_label, 40))


def svg(chart: Chart) -> str:
    """Return a chart as an SVG image, an HTML element that no other one on a page disturbs."""
    import matplotlib
    from matplotlib.figure import Figure

    file = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        height = 2.6 if not chart.rows else 1.1 + 0.34 * len(chart.rows)
        canvas = Figure(figsize=(4.6, height), layout="constrained")
        draw(chart, canvas.add_subplot())
        canvas.savefig(file, format="svg", metadata={"Date": None})
    content = base64.b64encode(file.getvalue()).decode("ascii")
    return f'<img alt="" style="width:460px;max-width:100%" src="data:image/svg+xml;base64,{content}">'


def _space(title: str, picture: Mapping[str, Any]) -> Chart:
    """Return the places of data, by the sizes of their left-out errors."""
    points, sizes = np.asarray(picture["points"]), np.asarray(picture["sizes"])
    axes, marked = list(picture["axes"]), np.asarray(picture["marked"])
    if points.shape[1] == 1:
        shown = [_series("left-out error", points[:, 0], sizes)]
        if len(marked):
            shown.append(_series("outlier", marked[:, 0], picture["marked_sizes"], colour=1))
        ends = (float(points.min()), float(points.max()))
        limits = [Series("", ends, (side, side), "dashed", 2) for side in (-LARGE, LARGE)]
        return Chart(f"{title}: left-out errors", axes[0], "predicted deviations", (*shown, *limits))
    size = np.abs(sizes)
    classes = (
        (f"error below {LARGE:g} deviations", size < LARGE, 2),
        (f"{LARGE:g} to {VERY_LARGE:g}", (size >= LARGE) & (size < VERY_LARGE), 0),
        (f"above {VERY_LARGE:g}", size >= VERY_LARGE, 3),
    )
    shown = [_series(name, points[some, 0], points[some, 1], colour) for name, some, colour in classes if some.any()]
    if len(marked):
        shown.append(_series("outlier", marked[:, 0], marked[:, 1], 1))
    where = "" if len(axes) == 2 else f" (seen along {', '.join(axes[2:])})"
    return Chart(f"{title}: sizes of left-out errors{where}", axes[0], axes[1], tuple(shown))


def _quantiles(title: str, picture: Mapping[str, Any]) -> Chart:
    """Return sorted errors against the quantiles of a normal distribution."""
    sizes = np.sort(np.asarray(picture["sizes"]))
    expected = ndtri((np.arange(len(sizes)) + 0.5) / len(sizes))
    ends = (float(expected[0]), float(expected[-1]))
    return Chart(
        f"{title}: quantiles",
        "normal distribution",
        "left-out errors, in deviations",
        (_series("errors", expected, sizes), Series("normal", ends, ends, "dashed", 2)),
    )


def _profile(title: str, profile: Mapping[float, float]) -> Chart:
    """Return the nats gained by other lengths."""
    known = {factor: gain for factor, gain in {**profile, 1.0: 0.0}.items() if math.isfinite(gain)}
    # Lengths that are far worse would hide the gains of the others.
    least = -max(LEAST_LOSS, LOSS_FACTOR * max(known.values()))
    factors, gains = zip(*sorted((factor, max(gain, least)) for factor, gain in known.items()), strict=True)
    profile_line = Series("other lengths", factors, gains, "line and dots")
    present = Series("present lengths", (1.0,), (0.0,), "dots", 1)
    return Chart(
        f"{title}: gain by other lengths", "factor of all lengths", "nats", (profile_line, present), x_log=True
    )


def _coverage(title: str, coverage: Mapping[int, float]) -> Chart:
    """Return how many left-out data the intervals contain."""
    stated = tuple(float(level) for level in coverage)
    found = _series("intervals", np.array(stated), 100.0 * np.array([*coverage.values()]))
    ideal = Series("as stated", (0.0, 100.0), (0.0, 100.0), "dashed", 2)
    return Chart(f"{title}: coverage of intervals", "stated, in percent", "contained, in percent", (found, ideal))


def _rows(title: str, label: str, numbers: Mapping[str, float]) -> Chart:
    """Return a row for each number, the largest first."""
    names = sorted(numbers, key=lambda key: -abs(numbers[key]))[:MOST_ROWS]
    values = tuple(float(numbers[name]) for name in names)
    return Chart(title, label, "", (Series("", values, tuple(map(float, range(len(names))))),), tuple(names))


def _numbers(found: Any) -> dict[str, float]:
    """Return the finite numbers by name, if that is what was found."""
    if not isinstance(found, Mapping):
        return {}
    pairs = ((str(name), each) for name, each in found.items() if isinstance(each, int | float))
    return {name: float(each) for name, each in pairs if math.isfinite(each)}


def _series(name: str, x: Any, y: Any, colour: int = 0) -> Series:
    return Series(name, tuple(map(float, x)), tuple(map(float, y)), "dots", colour)


def _safe(text: str, width: int) -> str:
    """Break a text into lines, and escape dollar signs, which matplotlib would read as mathematics."""
    return textwrap.fill(text, width).replace("$", r"\$")
