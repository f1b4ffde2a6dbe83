"""A page with figures to explore: one HTML file that needs no network."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from .charts import Figure, Panel, Report, TextTable
from .files import replace
from .folders import FIGURES, REPORT
from .panels import FONT, plotly_panel
from .plots import legend_entries, save

LONG = 60
"""Letters in a cell of a table from which on it is a sentence."""


def write_report(report: Report, directory: Path) -> None:
    """Write a report as one HTML file, and every figure as PNG and PDF in `figures/` beside it."""
    pictures = {figure.name: save(figure, directory / FIGURES)[0].read_bytes() for figure in report.figures}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pilescore"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    page = environment.get_template("report.html").render(
        report=report,
        font=Markup(FONT),
        plotlyjs=Markup(get_plotlyjs()),
        panels_of=_panels,
        pictures={name: base64.b64encode(content).decode("ascii") for name, content in pictures.items()},
        number_columns=_number_columns,
        word_columns=_word_columns,
    )
    replace(directory / REPORT, page.encode("utf-8"))


def _panels(figure: Figure) -> list[tuple[Panel, dict[str, Any]]]:
    entries = max((legend_entries(panel) for panel in figure.panels), default=0)
    return [(panel, plotly_panel(panel, entries)) for panel in figure.panels]


def _number_columns(table: TextTable) -> list[bool]:
    return [
        not long and all(re.match(r"[-+−±≈<>≤≥~]?\s*[\d.]|[—–-]?$", row[column]) is not None for row in table.rows)
        for column, long in enumerate(_word_columns(table))
    ]


def _word_columns(table: TextTable) -> list[bool]:
    """Return which columns have sentences, whose lines are to be broken."""
    return [any(len(row[column]) > LONG for row in table.rows) for column in range(len(table.header))]
