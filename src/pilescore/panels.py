"""Panels on a page: `charts` as data and layout for plotly."""

from __future__ import annotations

import html
import math
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import to_hex
from matplotlib.ticker import MaxNLocator

from .charts import Curve, Lines, Mark, Panel, Picture
from .plots import band_of, colour_limits, colour_map, colour_of, entry_name, extent, grid_of, marks_of, with_gaps

INK = "#1a1a1a"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
MODES = {"line": "lines", "dashed": "lines", "dots": "markers", "line and dots": "lines+markers"}
MARK_DASHES = ("dot", "dashdot", "dash", "6px,2px,1px,2px,1px,2px")
MARK_SYMBOLS = ("diamond", "square", "triangle-up", "circle")
DIGITS = ".4~g"

# Heights in pixels: of the axes, of what stands above and below them, and of one legend entry.
AXES_HEIGHT, ABOVE, BELOW, ENTRY = 270, 8, 52, 20


def plotly_panel(panel: Panel, entries: int = 0) -> dict[str, Any]:
    """Return the data and layout of a panel for plotly, with room for so many legend entries."""
    traces = _lines_traces(panel) if isinstance(panel, Lines) else [_heatmap(panel)]
    x_log, y_log = (panel.x_log, panel.y_log) if isinstance(panel, Lines) else (False, False)
    marks = marks_of(panel)
    for number, mark in marks:
        traces += _mark_traces(mark, number, panel)
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
        # A finger that starts on a panel must still scroll the page.
        "dragmode": False,
        "showlegend": True,
        # A list of fixed height under the axes: nothing lies beneath it, and the axes of a row stay in line.
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
        for axis, places in zip(("xaxis", "yaxis"), grid_of(panel), strict=False):
            layout[axis] |= {"showgrid": False, "range": extent(places)}
        layout["plot_bgcolor"] = "#eeeeee"
        # Plotly writes the title of a colour bar across its numbers; this one stands beside the widest of them.
        beside = 36 + 7 * max((len(text) for text in traces[0]["colorbar"]["ticktext"]), default=0)
        place = {"xref": "paper", "yref": "paper", "x": 1, "y": 0.5, "xshift": beside, "xanchor": "center"}
        label = {"text": _text(panel.z_label), "textangle": -90, "showarrow": False, "font": {"size": 13}}
        layout["annotations"] = [label | place]
        layout["margin"]["r"] = beside + 12
    elif any(curve.axis == "right" for curve in panel.curves):
        layout["yaxis2"] = _axis(panel.right_label, panel.right_log, _values(traces, "y", "y2"))
        layout["yaxis2"] |= {"overlaying": "y", "side": "right", "showgrid": False, "automargin": "width"}
        layout["yaxis2"]["tickmode"] = "array" if "tickvals" in layout["yaxis2"] else "auto"  # not those of the left
        layout["margin"]["r"] = 62
    # Lines across the panel live on hidden axes from 0 to 1, so that they are curves with a legend entry and a hover.
    hidden = {"range": [0, 1], "visible": False, "fixedrange": True}
    if any(mark.y is None for _, mark in marks):
        layout["yaxis3"] = hidden | {"overlaying": "y"}
    if any(mark.x is None for _, mark in marks):
        layout["xaxis3"] = hidden | {"overlaying": "x"}
    return {"data": traces, "layout": layout}


def _numbers(values: np.ndarray) -> list[Any]:
    """Return numbers for JSON, null for a gap; more than seven digits would make the page long for nothing."""
    if values.ndim > 1:
        return [_numbers(row) for row in values]
    return [float(f"{value:.7g}") if np.isfinite(value) else None for value in values]


def _text(text: str) -> str:
    """Return a text as plotly wants it, which reads some HTML."""
    return html.escape(text, quote=False).replace("%{", "% {")


def _values(traces: list[dict[str, Any]], coordinate: str, axis: str) -> list[Any]:
    """Return the values that all traces have on an axis."""
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
    shown = [value for value in values if value is not None and value > 0]
    decades = math.log10(max(shown) / min(shown)) if log and shown else 0.0
    places = np.outer(10.0 ** np.arange(-12, 13), [1, 2, 5]).ravel()
    inside = places[(places > 0.99 * min(shown, default=0)) & (places < 1.01 * max(shown, default=0))]
    if 0 < decades < 2 and len(inside) > 1:
        # Plotly's own choice is every digit, or numbers such as 0.3162.
        axis |= {"tickvals": inside.tolist(), "ticktext": [f"{place:g}" for place in inside]}
    elif decades >= 2:
        # Plotly's own choice puts small digits between the powers of ten, which run into each other in a narrow panel.
        axis["dtick"] = math.ceil(decades / 6)
        # Plotly enlarges powers of ten by a quarter.
        axis["tickfont"] = {"size": 9.6}
    return axis


def _lines_traces(panel: Lines) -> list[dict[str, Any]]:
    traces = []
    for number, curve in enumerate(panel.curves):
        right = curve.axis == "right"
        traces += _curve_traces(panel, curve, f"curve {number}", panel.right_log if right else panel.y_log)
    return traces


def _curve_traces(panel: Lines, curve: Curve, group: str, y_log: bool) -> list[dict[str, Any]]:
    colour = colour_of(curve.colour)
    x = with_gaps(curve.x, panel.x_log)
    band = band_of(curve, y_log)
    right = curve.axis == "right"
    common = {"type": "scatter", "legendgroup": group, "name": _text(entry_name(curve)), "xaxis": "x"}
    common["yaxis"] = "y2" if right else "y"
    y_label = panel.right_label if right else panel.y_label
    hover = (
        f"<b>{_text(curve.name)}</b><br>{_text(panel.x_label)}: %{{x:{DIGITS}}}<br>{_text(y_label)}: %{{y:{DIGITS}}}"
    )
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
    given = zip(np.asarray(curve.low, dtype=float), np.asarray(curve.high, dtype=float), strict=True)
    line["customdata"] = [f"{low:.4g} to {high:.4g}" for low, high in given]
    line["hovertemplate"] = hover + "<br>band: %{customdata}<extra></extra>"
    return [{**common, **_band(x, *band), "fillcolor": _faint(colour)}, line]


def _band(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> dict[str, Any]:
    """Return one closed outline for each stretch without a gap: plotly would fill across gaps between two curves."""
    gaps = np.flatnonzero(~np.isfinite(x + low + high))
    outline: tuple[list[Any], list[Any]] = ([], [])
    for stretch in np.split(np.arange(len(x)), gaps):
        inside = stretch[~np.isin(stretch, gaps)]
        if len(inside):
            outline[0].extend([*_numbers(x[inside]), *_numbers(x[inside[::-1]]), None])
            outline[1].extend([*_numbers(high[inside]), *_numbers(low[inside[::-1]]), None])
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
        "hovertemplate": f"{_text(picture.x_label)}: %{{x:{DIGITS}}}<br>{_text(picture.y_label)}: %{{y:{DIGITS}}}<br>"
        f"{_text(picture.z_label)}: %{{z:{DIGITS}}}<extra></extra>",
    }


def _mark_traces(mark: Mark, number: int, panel: Panel) -> list[dict[str, Any]]:
    colour = colour_of(mark.colour)
    trace: dict[str, Any] = {"type": "scatter", "name": _text(mark.label), "legendgroup": f"mark {number}"}
    places = [f"{_text(panel.x_label)}: {mark.x:.4g}"] if mark.x is not None else []
    places += [f"{_text(panel.y_label)}: {mark.y:.4g}"] if mark.y is not None else []
    trace["hovertemplate"] = f"<b>{_text(mark.label)}</b><br>{'<br>'.join(places)}<extra></extra>"
    if mark.x is not None and mark.y is not None:
        marker = {"color": colour, "size": 11, "symbol": MARK_SYMBOLS[number % len(MARK_SYMBOLS)]}
        marker["line"] = {"color": "white", "width": 1.5}
        return [trace | {"x": [mark.x], "y": [mark.y], "mode": "markers", "marker": marker, "cliponaxis": False}]
    # Points along the line, because plotly's hover finds points and not what joins them.
    along = np.linspace(0, 1, 41).tolist()
    if mark.y is None:
        trace |= {"x": [mark.x] * len(along), "y": along, "yaxis": "y3"}
    else:
        trace |= {"x": along, "y": [mark.y] * len(along), "xaxis": "x3"}
    trace["mode"] = "lines"
    line = trace | {"line": {"color": colour, "width": 1.5, "dash": MARK_DASHES[number % len(MARK_DASHES)]}}
    if isinstance(panel, Lines):
        return [line]
    # A white edge keeps a mark visible on dark and on light colours.
    return [trace | {"line": {"color": "white", "width": 3.5}, "showlegend": False, "hoverinfo": "skip"}, line]
