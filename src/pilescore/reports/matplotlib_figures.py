"""Figures as PNG and PDF files, drawn by matplotlib, and the rules that both kinds of figures share."""

from __future__ import annotations

import io
import math
import textwrap
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.figure
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation

from ..storage import replace
from .contents import Curve, Figure, Lines, Mark, Panel, Picture

# The palette of Okabe and Ito. Grey replaces their yellow, which is too pale for a thin line on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A", "#222222")

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": "#1a1a1a",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.labelcolor": "#1a1a1a",
    "axes.edgecolor": "#555555",
    "axes.linewidth": 0.7,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "pdf.fonttype": 42,
}

LINE_STYLES = {"line": ("-", ""), "dashed": ("--", ""), "dots": ("", "o"), "line and dots": ("-", "o")}
MARK_LINES = (":", "-.", "--", (0, (6, 2, 1, 2, 1, 2)))
MARK_POINTS = ("D", "s", "^", "o")


def colour_of(number: int) -> str:
    """Return the colour of a curve or mark."""
    return PALETTE[number % len(PALETTE)]


def colour_map(picture: Picture) -> str:
    """Return the name of the matplotlib colour map for a picture."""
    return "RdBu_r" if picture.diverging else "viridis"


def with_gaps(values: Any, log: bool = False) -> np.ndarray:
    """Replace values that the axis cannot show by NaN."""
    numbers = np.array(values, dtype=float)
    numbers[~np.isfinite(numbers) | (log & (numbers <= 0))] = math.nan
    return numbers


def band_of(curve: Curve, log: bool) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the lower and upper edge of the band of a curve.

    A logarithmic axis cannot show zero. There the band ends at the smallest positive value of the curve and its band.
    """
    if curve.low is None or curve.high is None:
        return None
    low, high = with_gaps(curve.low), with_gaps(curve.high, log)
    if log and np.any(low <= 0):
        values = np.concatenate([low, high, with_gaps(curve.y)])
        low[low <= 0] = np.min(values[values > 0], initial=math.inf)
    return with_gaps(np.minimum(low, high), log), high


def grid_of(picture: Picture) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `x`, `y`, `z` of a picture, without rows and columns whose coordinate is not finite."""
    x, y = with_gaps(picture.x), with_gaps(picture.y)
    columns, rows = np.isfinite(x), np.isfinite(y)
    return x[columns], y[rows], with_gaps(picture.z)[np.ix_(rows, columns)]


def extent(centres: np.ndarray) -> tuple[float, float] | None:
    """Return the outer edges of the first and the last cell of a picture, or None with fewer than two cells."""
    if len(centres) < 2:
        return None
    return float(1.5 * centres[0] - 0.5 * centres[1]), float(1.5 * centres[-1] - 0.5 * centres[-2])


def colour_limits(picture: Picture) -> tuple[float, float]:
    """Return the ends of the colour scale. They differ, even for a constant picture."""
    values = with_gaps(picture.z if picture.limits is None else picture.limits)
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    if picture.diverging:
        high = max(abs(low), abs(high)) or 1.0
        return -high, high
    return (low, high) if low < high else (low - 0.5, low + 0.5)


def marks_of(panel: Panel) -> list[tuple[int, Mark]]:
    """Return the marks that the axes can show, with their indices. The index selects the line style or symbol."""
    log_x, log_y = (panel.x_log, panel.y_log) if isinstance(panel, Lines) else (False, False)

    def visible(mark: Mark) -> bool:
        coordinates = [(value, log) for value, log in ((mark.x, log_x), (mark.y, log_y)) if value is not None]
        return bool(coordinates) and all(math.isfinite(value) and (value > 0 or not log) for value, log in coordinates)

    return [(index, mark) for index, mark in enumerate(panel.marks) if visible(mark)]


def draw(figure: Figure) -> matplotlib.figure.Figure:
    """Draw a figure with matplotlib."""
    columns = max(1, min(figure.columns, len(figure.panels)))
    rows = math.ceil(len(figure.panels) / columns)
    width = {1: 5.6, 2: 4.3}.get(columns, 3.7)
    entries = max((legend_entries(panel) for panel in figure.panels), default=0)
    height = 0.72 * width + 0.17 * entries
    with matplotlib.rc_context(STYLE):
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, wspace=0.03, hspace=0.04)
        canvas = matplotlib.figure.Figure(figsize=(columns * width, rows * height), layout=layout)
        for position, panel in enumerate(figure.panels, 1):
            axes = canvas.add_subplot(rows, columns, position)
            axes.set_title(_text(panel.title, int(11 * width)))
            axes.set_xlabel(_text(panel.x_label, int(11 * width)))
            axes.set_ylabel(_text(panel.y_label, int(8 * width)))
            handles = _draw_lines(axes, panel) if isinstance(panel, Lines) else _draw_picture(axes, panel)
            handles += [_draw_mark(axes, mark, index, isinstance(panel, Picture)) for index, mark in marks_of(panel)]
            _draw_legend(axes, handles, int(11 * width))
    return canvas


def save(figure: Figure, directory: Path) -> tuple[Path, Path]:
    """Write `NAME.png` and `NAME.pdf` and return their paths. Equal figures give equal bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    canvas = draw(figure)
    paths = directory / f"{figure.name}.png", directory / f"{figure.name}.pdf"
    for path, metadata in zip(paths, (None, {"CreationDate": None}), strict=True):
        file = io.BytesIO()
        with matplotlib.rc_context(STYLE):
            canvas.savefig(file, format=path.suffix[1:], dpi=200, metadata=metadata)
        # Computing the layout takes as long as drawing, so the PDF reuses that of the PNG.
        canvas.set_layout_engine("none")
        replace(path, file.getvalue())
    return paths


def legend_entries(panel: Panel) -> int:
    """Return the number of legend entries of a panel."""
    return len(marks_of(panel)) + (len(panel.curves) if isinstance(panel, Lines) else 0)


def _text(text: str, width: int = 40) -> str:
    """Break a text into lines, and escape dollar signs, which matplotlib would read as mathematics."""
    return textwrap.fill(text, width).replace("$", r"\$")


def _draw_lines(axes: Axes, panel: Lines) -> list[Any]:
    axes.grid(True)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xscale("log" if panel.x_log else "linear")
    axes.set_yscale("log" if panel.y_log else "linear")
    if panel.y_limits is not None:
        axes.set_ylim(*panel.y_limits)
    right = None
    if any(curve.axis == "right" for curve in panel.curves):
        right = axes.twinx()
        right.set_yscale("log" if panel.right_log else "linear")
        right.spines[["top", "left"]].set_visible(False)
        right.spines["right"].set_visible(True)
        right.set_ylabel(_text(panel.right_label))
    handles = [
        _draw_curve(axes, curve, panel.x_log, panel.y_log)
        if right is None or curve.axis == "left"
        else _draw_curve(right, curve, panel.x_log, panel.right_log)
        for curve in panel.curves
    ]
    for drawn in (axes.xaxis, axes.yaxis, *([right.yaxis] if right is not None else [])):
        _label_short_log_axis(drawn)
    return handles


def _label_short_log_axis(axis: Axis) -> None:
    """Label 1, 2, 5 and their multiples if a logarithmic axis is too short for powers of ten.

    By default matplotlib labels all digits there, and the labels overlap.
    """
    low, high = sorted(axis.get_view_interval())
    if axis.get_scale() == "log" and 5 * low < high < 100 * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def entry_name(curve: Curve) -> str:
    """Return the legend text of a curve."""
    return f"{curve.name} (right axis)" if curve.axis == "right" else curve.name


def _draw_curve(axes: Axes, curve: Curve, x_log: bool, y_log: bool) -> Any:
    colour = colour_of(curve.colour)
    x = with_gaps(curve.x, x_log)
    band = band_of(curve, y_log)
    if band is not None:
        axes.fill_between(x, *band, color=colour, alpha=0.18, linewidth=0)
    line, marker = LINE_STYLES[curve.style]
    (handle,) = axes.plot(
        x, with_gaps(curve.y, y_log), color=colour, linestyle=line, marker=marker, markersize=3.5, linewidth=1.5
    )
    handle.set_label(entry_name(curve))
    return handle


def _draw_picture(axes: Axes, picture: Picture) -> list[Any]:
    x, y, z = grid_of(picture)
    low, high = colour_limits(picture)
    if z.size:
        mesh = axes.pcolormesh(
            x, y, np.ma.masked_invalid(z), cmap=colour_map(picture), vmin=low, vmax=high, shading="auto"
        )
        # Thousands of vector cells make a PDF slow to open and show seams between them.
        mesh.set_rasterized(True)
        bar = axes.figure.colorbar(mesh, ax=axes, pad=0.02, aspect=25)
        bar.set_label(_text(picture.z_label))
        bar.outline.set_visible(False)
        for edges, limit in ((extent(x), axes.set_xlim), (extent(y), axes.set_ylim)):
            if edges is not None:
                limit(*edges)
    axes.set_facecolor("#eeeeee")
    return []


def _draw_mark(axes: Axes, mark: Mark, index: int, on_picture: bool) -> Any:
    colour = colour_of(mark.colour)
    # A white edge keeps a mark visible on dark and light colours.
    edge = [withStroke(linewidth=2.6, foreground="white")] if on_picture else []
    line: dict[str, Any] = {"color": colour, "linewidth": 1.1, "label": mark.label, "path_effects": edge, "zorder": 3}
    line["linestyle"] = MARK_LINES[index % len(MARK_LINES)]
    if mark.y is None:
        return axes.axvline(mark.x or 0.0, **line)
    if mark.x is None:
        return axes.axhline(mark.y, **line)
    line |= {"linestyle": "", "marker": MARK_POINTS[index % len(MARK_POINTS)], "markersize": 6.5}
    return axes.plot([mark.x], [mark.y], markeredgecolor="white", markeredgewidth=0.9, clip_on=False, **line)[0]


def _draw_legend(axes: Axes, handles: list[Any], width: int) -> None:
    if not handles:
        return
    for handle in handles:
        handle.set_label(_text(handle.get_label(), width))
    # Below the axis label the legend covers nothing, and the axes of a row stay aligned.
    below = ScaledTranslation(0, -34 / 72, axes.figure.dpi_scale_trans)
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0, 0), bbox_transform=axes.transAxes + below, borderaxespad=0
    )
