"""Figures on paper: `charts` drawn by matplotlib, and what paper and page share."""

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
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patheffects import withStroke
from matplotlib.transforms import ScaledTranslation

from .charts import Curve, Figure, Lines, Mark, Panel, Picture
from .files import replace

# Okabe and Ito's colours, with a grey for their yellow, which is too pale for a thin line on white.
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
    """Return the name of matplotlib's colour map for a picture."""
    return "RdBu_r" if picture.diverging else "viridis"


def with_gaps(values: Any, log: bool = False) -> np.ndarray:
    """Return numbers with NaN in place of all that an axis cannot show."""
    numbers = np.array(values, dtype=float)
    numbers[~np.isfinite(numbers) | (log & (numbers <= 0))] = math.nan
    return numbers


def band_of(curve: Curve, log: bool) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the edges of a curve's band; on a logarithmic axis, one that reaches zero ends at the least value."""
    if curve.low is None or curve.high is None:
        return None
    low, high = with_gaps(curve.low), with_gaps(curve.high, log)
    if log and np.any(low <= 0):
        shown = np.concatenate([low, high, with_gaps(curve.y)])
        low[low <= 0] = np.min(shown[shown > 0], initial=math.inf)
    return with_gaps(np.minimum(low, high), log), high


def grid_of(picture: Picture) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `x`, `y`, `z` of a picture without the columns and rows that have no place, and with gaps."""
    x, y = with_gaps(picture.x), with_gaps(picture.y)
    columns, rows = np.isfinite(x), np.isfinite(y)
    return x[columns], y[rows], with_gaps(picture.z)[np.ix_(rows, columns)]


def extent(places: np.ndarray) -> tuple[float, float] | None:
    """Return the outer edges of the first and last cell of a picture along one axis."""
    if len(places) < 2:
        return None
    return float(1.5 * places[0] - 0.5 * places[1]), float(1.5 * places[-1] - 0.5 * places[-2])


def colour_limits(picture: Picture) -> tuple[float, float]:
    """Return the two ends of the colour scale, which differ."""
    shown = with_gaps(picture.z if picture.limits is None else picture.limits)
    shown = shown[np.isfinite(shown)]
    low, high = (float(shown.min()), float(shown.max())) if shown.size else (0.0, 0.0)
    if picture.diverging:
        high = max(abs(low), abs(high)) or 1.0
        return -high, high
    return (low, high) if low < high else (low - 0.5, low + 0.5)


def marks_of(panel: Panel) -> list[tuple[int, Mark]]:
    """Return the marks that have a place, each with its number, which gives it a look of its own."""
    log_x, log_y = (panel.x_log, panel.y_log) if isinstance(panel, Lines) else (False, False)

    def has_place(mark: Mark) -> bool:
        places = [(value, log) for value, log in ((mark.x, log_x), (mark.y, log_y)) if value is not None]
        return bool(places) and all(math.isfinite(value) and (value > 0 or not log) for value, log in places)

    return [(number, mark) for number, mark in enumerate(panel.marks) if has_place(mark)]


def draw(figure: Figure) -> matplotlib.figure.Figure:
    """Return a figure drawn by matplotlib."""
    columns = max(1, min(figure.columns, len(figure.panels)))
    rows = math.ceil(len(figure.panels) / columns)
    width = {1: 5.6, 2: 4.3}.get(columns, 3.7)
    entries = max((legend_entries(panel) for panel in figure.panels), default=0)
    height = 0.72 * width + 0.17 * entries
    with matplotlib.rc_context(STYLE):
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, wspace=0.03, hspace=0.04)
        canvas = matplotlib.figure.Figure(figsize=(columns * width, rows * height), layout=layout)
        for number, panel in enumerate(figure.panels):
            axes = canvas.add_subplot(rows, columns, number + 1)
            axes.set_title(_text(panel.title, int(11 * width)))
            axes.set_xlabel(_text(panel.x_label, int(11 * width)))
            axes.set_ylabel(_text(panel.y_label, int(8 * width)))
            handles = _draw_lines(axes, panel) if isinstance(panel, Lines) else _draw_picture(axes, panel)
            handles += [_draw_mark(axes, mark, place, isinstance(panel, Picture)) for place, mark in marks_of(panel)]
            _draw_legend(axes, handles, int(11 * width))
    return canvas


def save(figure: Figure, directory: Path) -> tuple[Path, Path]:
    """Write `NAME.png` and `NAME.pdf` and return their paths. The same figure has the same bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    canvas = draw(figure)
    paths = directory / f"{figure.name}.png", directory / f"{figure.name}.pdf"
    for path, metadata in zip(paths, (None, {"CreationDate": None}), strict=True):
        file = io.BytesIO()
        with matplotlib.rc_context(STYLE):
            canvas.savefig(file, format=path.suffix[1:], dpi=200, metadata=metadata)
        # The layout is found once, which takes as long as the drawing.
        canvas.set_layout_engine("none")
        replace(path, file.getvalue())
    return paths


def legend_entries(panel: Panel) -> int:
    """Return how many entries the legend of a panel has."""
    return len(marks_of(panel)) + (len(panel.curves) if isinstance(panel, Lines) else 0)


def _text(text: str, width: int = 40) -> str:
    """Return a text in lines, with dollar signs that matplotlib does not take for mathematics."""
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
    return [
        _draw_curve(axes, curve, panel.x_log, panel.y_log)
        if right is None or curve.axis == "left"
        else _draw_curve(right, curve, panel.x_log, panel.right_log)
        for curve in panel.curves
    ]


def entry_name(curve: Curve) -> str:
    """Return what the legend says of a curve."""
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


def _draw_mark(axes: Axes, mark: Mark, number: int, on_picture: bool) -> Any:
    colour = colour_of(mark.colour)
    # A white edge keeps a mark visible on dark and on light colours.
    edge = [withStroke(linewidth=2.6, foreground="white")] if on_picture else []
    line: dict[str, Any] = {"color": colour, "linewidth": 1.1, "label": mark.label, "path_effects": edge, "zorder": 3}
    line["linestyle"] = MARK_LINES[number % len(MARK_LINES)]
    if mark.y is None:
        return axes.axvline(mark.x or 0.0, **line)
    if mark.x is None:
        return axes.axhline(mark.y, **line)
    line |= {"linestyle": "", "marker": MARK_POINTS[number % len(MARK_POINTS)], "markersize": 6.5}
    return axes.plot([mark.x], [mark.y], markeredgecolor="white", markeredgewidth=0.9, clip_on=False, **line)[0]


def _draw_legend(axes: Axes, handles: list[Any], width: int) -> None:
    if not handles:
        return
    for handle in handles:
        handle.set_label(_text(handle.get_label(), width))
    # Under the axis label nothing can lie beneath the legend, and the axes of a row stay in line.
    below = ScaledTranslation(0, -34 / 72, axes.figure.dpi_scale_trans)
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0, 0), bbox_transform=axes.transAxes + below, borderaxespad=0
    )
