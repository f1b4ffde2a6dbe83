"""Panels of the HTML page: data and layout for plotly."""

from __future__ import annotations

import html
import math
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import to_hex
from matplotlib.ticker import MaxNLocator

from .contents import Curve, Lines, Mark, Panel, Picture
from .matplotlib_figures import (
    band_of,
    colour_limits,
    colour_map,
    colour_of,
    entry_name,
    extent,
    grid_of,
    marks_of,
    with_gaps,
)

INK = "#1a1a1a"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
MODES = {"line": "lines", "dashed": "lines", "dots": "markers", "line and dots": "lines+markers"}
MARK_DASHES = ("dot", "dashdot", "dash", "6px,2px,1px,2px,1px,2px")
MARK_SYMBOLS = ("diamond", "square", "triangle-up", "circle")

# Heights in pixels: the axes, the space above and below them, and one legend entry.
AXES_HEIGHT, ABOVE, BELOW, ENTRY = 270, 8, 52, 20


def plotly_panel(panel: Panel, entries: int = 0) -> dict[str, Any]:
    """Return the plotly data and layout of a panel, with room for the given number of legend entries."""
    traces: list[dict[str, Any]] = []
    x_log = y_log = False
    if isinstance(panel, Lines):
        x_log, y_log = panel.x_log, panel.y_log
        for number, curve in enumerate(panel.curves):
            traces += _curve_traces(panel, curve, f"curve {number}")
    else:
        traces.append(_heatmap(panel))
    marks = marks_of(panel)
    for index, mark in marks:
        traces += _mark_traces(mark, index, panel)
    below = BELOW + ENTRY * entries
    height = ABOVE + AXES_HEIGHT + below
    layout: dict[str, Any] = {
        "height": height,
        "margin": {"l": 62, "r": 14, "t": ABOVE, "b": below},
        "font": {"family": FONT, "size": 12, "color": INK},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "hovermode": "closest",
        "hoverlabel": {"align": "left", "bgcolor": "white", "font": {"family": FONT, "size": 12, "color": INK}},
        # On a phone, a swipe that starts on a panel must still scroll the page.
        "dragmode": False,
        "showlegend": True,
        # A list of fixed height below the axes: it covers nothing, and the axes of a row stay aligned.
        "legend": {
            "x": 0,
            "xanchor": "left",
            "yref": "container",
            "y": (ENTRY * entries + 6) / height,
            "yanchor": "top",
            "tracegroupgap": 0,
            "bgcolor": "rgba(0,0,0,0)",
            "itemwidth": 30,
            "itemdoubleclick": False,
        },
        "xaxis": _axis(panel.x_label, x_log, _values(traces, "x", "x")),
        "yaxis": _axis(panel.y_label, y_log, _values(traces, "y", "y")) | {"automargin": "width"},
    }
    if isinstance(panel, Lines) and panel.y_limits is not None:
        layout["yaxis"]["range"] = [math.log10(end) if y_log else end for end in panel.y_limits]
    if isinstance(panel, Picture):
        for axis, centres in zip(("xaxis", "yaxis"), grid_of(panel), strict=False):
            layout[axis] |= {"showgrid": False, "range": extent(centres)}
        layout["plot_bgcolor"] = "#eeeeee"
        # Plotly writes the title of a colour bar over its numbers. An annotation beside the widest number does not.
        beside = 36 + 7 * max((len(text) for text in traces[0]["colorbar"]["ticktext"]), default=0)
        place = {"xref": "paper", "yref": "paper", "x": 1, "y": 0.5, "xshift": beside, "xanchor": "center"}
        label = {"text": _text(panel.z_label), "textangle": -90, "showarrow": False, "font": {"size": 13}}
        layout["annotations"] = [label | place]
        layout["margin"]["r"] = beside + 12
    elif any(curve.axis == "right" for curve in panel.curves):
        layout["yaxis2"] = _axis(panel.right_label, panel.right_log, _values(traces, "y", "y2"))
        layout["yaxis2"] |= {"overlaying": "y", "side": "right", "showgrid": False, "automargin": "width"}
        # Without a tick mode plotly copies the ticks of the left axis. The mode "auto" would ignore `dtick`.
        modes = {"tickvals": "array", "dtick": "linear"}
        layout["yaxis2"]["tickmode"] = next((mode for key, mode in modes.items() if key in layout["yaxis2"]), "auto")
        layout["margin"]["r"] = 62
    # Lines across the panel are curves on hidden axes from 0 to 1: only curves have a legend entry and a hover box.
    hidden = {"range": [0, 1], "visible": False, "fixedrange": True}
    if any(mark.y is None for _, mark in marks):
        layout["yaxis3"] = hidden | {"overlaying": "y"}
    if any(mark.x is None for _, mark in marks):
        layout["xaxis3"] = hidden | {"overlaying": "x"}
    return {"data": traces, "layout": layout}


def _numbers(values: np.ndarray) -> list[Any]:
    """Return numbers for JSON, with null for gaps. Seven digits keep the page small."""
    if values.ndim > 1:
        return [_numbers(row) for row in values]
    return [float(f"{value:.7g}") if np.isfinite(value) else None for value in values]


def _text(text: str) -> str:
    """Escape a text for plotly, which interprets some HTML."""
    return html.escape(text, quote=False).replace("%{", "% {")


def _hover_line(label: str, coordinate: str) -> str:
    """Return a line of a hover box that shows a coordinate with four digits."""
    return f"{_text(label)}: %{{{coordinate}:.4~g}}"


def _values(traces: list[dict[str, Any]], coordinate: str, axis: str) -> list[Any]:
    """Return the values of all traces on an axis."""
    on_axis = [trace for trace in traces if trace.get(f"{coordinate}axis", coordinate) == axis]
    return [value for trace in on_axis for value in trace[coordinate]]


def _axis(label: str, log: bool, values: list[Any]) -> dict[str, Any]:
    axis: dict[str, Any] = {
        "title": {"text": _text(label), "standoff": 8, "font": {"size": 13}},
        "type": "log" if log else "linear",
        "exponentformat": "power",
        "gridcolor": "#ececec",
        "linecolor": "#888888",
        "showline": True,
        "zeroline": False,
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": "#888888",
        "nticks": 7,
    }
    positive = [value for value in values if value is not None and value > 0]
    decades = math.log10(max(positive) / min(positive)) if log and positive else 0.0
    ticks = np.outer(10.0 ** np.arange(-12, 13), [1, 2, 5]).ravel()
    ticks = ticks[(ticks > 0.99 * min(positive, default=0)) & (ticks < 1.01 * max(positive, default=0))]
    if 0 < decades < 2 and len(ticks) > 1:
        # By default plotly shows every digit, or numbers such as 0.3162.
        axis |= {"tickvals": ticks.tolist(), "ticktext": [f"{tick:g}" for tick in ticks]}
    elif decades >= 2:
        # By default plotly adds digits between the powers of ten. They overlap in a narrow panel.
        axis["dtick"] = math.ceil(decades / 6)
        # Plotly enlarges powers of ten by 25%.
        axis["tickfont"] = {"size": 9.6}
    return axis


def _curve_traces(panel: Lines, curve: Curve, group: str) -> list[dict[str, Any]]:
    colour = colour_of(curve.colour)
    axis, y_label, y_log = "y", panel.y_label, panel.y_log
    if curve.axis == "right":
        axis, y_label, y_log = "y2", panel.right_label, panel.right_log
    x = with_gaps(curve.x, panel.x_log)
    band = band_of(curve, y_log)
    common = {"type": "scatter", "legendgroup": group, "name": _text(entry_name(curve)), "xaxis": "x", "yaxis": axis}
    hover = f"<b>{_text(curve.name)}</b><br>{_hover_line(panel.x_label, 'x')}<br>{_hover_line(y_label, 'y')}"
    line = {
        **common,
        "x": _numbers(x),
        "y": _numbers(with_gaps(curve.y, y_log)),
        "mode": MODES[curve.style],
        "line": {"color": colour, "width": 2, "dash": "dash" if curve.style == "dashed" else "solid"},
        "marker": {"color": colour, "size": 6},
        "hovertemplate": hover + "<extra></extra>",
    }
    if band is None:
        return [line]
    edges = zip(np.asarray(curve.low, dtype=float), np.asarray(curve.high, dtype=float), strict=True)
    line["customdata"] = [f"{low:.4g} to {high:.4g}" for low, high in edges]
    line["hovertemplate"] = hover + "<br>band: %{customdata}<extra></extra>"
    return [{**common, **_band(x, *band), "fillcolor": _faint(colour)}, line]


def _band(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> dict[str, Any]:
    """Return the band as one closed outline per stretch without gaps, because plotly fills across gaps."""
    outline: tuple[list[Any], list[Any]] = ([], [])
    for stretch in np.ma.clump_unmasked(np.ma.masked_invalid(x + low + high)):  # type: ignore[no-untyped-call]
        outline[0].extend([*_numbers(x[stretch]), *_numbers(x[stretch][::-1]), None])
        outline[1].extend([*_numbers(high[stretch]), *_numbers(low[stretch][::-1]), None])
    fill = {"mode": "lines", "fill": "toself", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    return {"x": outline[0], "y": outline[1], **fill}


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def _heatmap(picture: Picture) -> dict[str, Any]:
    x, y, z = grid_of(picture)
    low, high = colour_limits(picture)
    colours = matplotlib.colormaps[colour_map(picture)]
    ticks = np.asarray(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high))
    ticks = ticks[(low <= ticks) & (ticks <= high)]
    return {
        "type": "heatmap",
        "x": _numbers(x),
        "y": _numbers(y),
        "z": _numbers(z),
        "zmin": low,
        "zmax": high,
        "colorscale": [[place, to_hex(colours(place))] for place in np.linspace(0, 1, 33).tolist()],
        "colorbar": {
            "thickness": 11,
            "outlinewidth": 0,
            "x": 1,
            "xpad": 8,
            "ypad": 0,
            "tickvals": ticks.tolist(),
            "ticktext": [f"{tick:.5g}".replace("-", "−") for tick in ticks],
        },
        "hoverongaps": False,
        "hovertemplate": f"{_hover_line(picture.x_label, 'x')}<br>{_hover_line(picture.y_label, 'y')}<br>"
        f"{_hover_line(picture.z_label, 'z')}<extra></extra>",
    }


def _mark_traces(mark: Mark, index: int, panel: Panel) -> list[dict[str, Any]]:
    colour = colour_of(mark.colour)
    trace: dict[str, Any] = {"type": "scatter", "name": _text(mark.label), "legendgroup": f"mark {index}"}
    position = [f"{_text(panel.x_label)}: {mark.x:.4g}"] if mark.x is not None else []
    position += [f"{_text(panel.y_label)}: {mark.y:.4g}"] if mark.y is not None else []
    trace["hovertemplate"] = f"<b>{_text(mark.label)}</b><br>{'<br>'.join(position)}<extra></extra>"
    if mark.x is not None and mark.y is not None:
        marker = {"color": colour, "size": 11, "symbol": MARK_SYMBOLS[index % len(MARK_SYMBOLS)]}
        marker["line"] = {"color": "white", "width": 1.5}
        return [trace | {"x": [mark.x], "y": [mark.y], "mode": "markers", "marker": marker, "cliponaxis": False}]
    # Many points along the line, because plotly shows a hover box at points only.
    along = np.linspace(0, 1, 41).tolist()
    if mark.y is None:
        trace |= {"x": [mark.x] * len(along), "y": along, "yaxis": "y3"}
    else:
        trace |= {"x": along, "y": [mark.y] * len(along), "xaxis": "x3"}
    trace["mode"] = "lines"
    line = trace | {"line": {"color": colour, "width": 1.5, "dash": MARK_DASHES[index % len(MARK_DASHES)]}}
    if isinstance(panel, Lines):
        return [line]
    # A white edge keeps a mark visible on dark and light colours.
    return [trace | {"line": {"color": "white", "width": 3.5}, "showlegend": False, "hoverinfo": "skip"}, line]
