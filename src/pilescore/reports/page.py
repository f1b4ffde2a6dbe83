"""The HTML page of a report: one file with interactive figures that works offline."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from ..storage import FIGURES, REPORT, replace
from .contents import Figure, Panel, Report, TextTable
from .matplotlib_figures import legend_entries, save
from .plotly_figures import FONT, plotly_panel

SENTENCE_LENGTH = 60
"""The number of characters above which a table cell counts as a sentence."""


def write_report(report: Report, directory: Path) -> None:
    """Write a report as `report.html`, and its figures as PNG and PDF files in `figures/`."""
    pictures = {figure.name: save(figure, directory / FIGURES)[0].read_bytes() for figure in report.figures}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pilescore.reports"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    page = environment.get_template("report.html").render(
        report=report,
        font=Markup(FONT),
        plotlyjs=Markup(get_plotlyjs()),
        panels_of=_plotly_panels,
        pictures={name: base64.b64encode(content).decode("ascii") for name, content in pictures.items()},
        number_columns=_number_columns,
        word_columns=_word_columns,
    )
    replace(directory / REPORT, page.encode("utf-8"))


def _plotly_panels(figure: Figure) -> list[tuple[Panel, dict[str, Any]]]:
    entries = max((legend_entries(panel) for panel in figure.panels), default=0)
    return [(panel, plotly_panel(panel, entries)) for panel in figure.panels]


def _number_columns(table: TextTable) -> list[bool]:
    """Return for each column whether all of its cells are numbers or dashes."""
    return [
        not long and all(re.match(r"[-+−±≈<>≤≥~]?\s*[\d.]|[—–-]?$", row[column]) is not None for row in table.rows)
        for column, long in enumerate(_word_columns(table))
    ]


def _word_columns(table: TextTable) -> list[bool]:
    """Return for each column whether it has sentences, which need line breaks."""
    return [any(len(row[column]) > SENTENCE_LENGTH for row in table.rows) for column in range(len(table.header))]
