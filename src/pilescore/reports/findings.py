"""The section of a report about a diagnosis: findings, their pictures, and outliers."""

from __future__ import annotations

import numpy as np

from ..diagnosis import Chart, Finding, digits
from ..problems import Selection
from .contents import Curve, Figure, Lines, Section, TextTable

COLOURS = (0, 1, 6, 7)
"""The colours of the palette of reports for those of charts: blue, orange, grey and black."""


def sentence(text: str) -> str:
    """Return a text with a capital letter and a full stop."""
    return f"{text[0].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def diagnosis_section(selection: Selection) -> Section:
    """Return the findings about the chosen model, the most severe first, and the checks without findings."""
    diagnosis = selection.diagnosis
    parts = []
    for status, verbs in (("fine", ("is fine", "are fine")), ("skipped", ("does not apply", "do not apply"))):
        names = [check.name.replace("_", " ") for check in diagnosis.checked if check.status == status]
        if names:
            parts.append(f"{len(names)} {verbs[len(names) > 1]} ({', '.join(names)})")
    text = f"of {len(diagnosis.checked)} checks, {', and '.join(parts)}"
    if not diagnosis.findings:
        return Section("Diagnosis", (f"Nothing was found: {text}.",))
    rows = [(f.severity, f.name.replace("_", " "), _measured(f), f.meaning, sentence(f.advice)) for f in diagnosis]
    header = ("", "finding", "measured", "meaning", "what to try")
    tables = [TextTable("Findings, the most severe first.", header, tuple(rows))]
    if "outliers" in diagnosis:
        tables.append(_outliers(selection, diagnosis["outliers"]))
    charts = [finding.details["chart"] for finding in diagnosis if finding.details.get("chart") is not None]
    tables += [_table(chart) for chart in charts if len(chart.rows) > 1]
    panels = tuple(_panel(chart) for chart in charts if not chart.rows)
    caption = "What the findings are based on. Left-out errors are in predicted standard deviations."
    figures = (Figure("diagnosis", "What was found", caption, panels),) if panels else ()
    return Section("Diagnosis", (sentence(text),), figures, tuple(tables))


def _panel(chart: Chart) -> Lines:
    """Return the picture of a finding."""
    curves = [
        Curve(series.name or "two deviations", series.x, series.y, colour=COLOURS[series.colour], style=series.style)
        for series in chart.series
    ]
    return Lines(chart.title, chart.x_label, chart.y_label, tuple(curves), x_log=chart.x_log)


def _table(chart: Chart) -> TextTable:
    """Return numbers by name, which are a picture with rows elsewhere, as a table."""
    (series,) = chart.series
    rows = tuple(zip(chart.rows, map(digits, series.x), strict=True))
    return TextTable(f"{sentence(chart.title)[:-1]}: {chart.x_label}.", ("", chart.x_label), rows)


def _measured(finding: Finding) -> str:
    return sentence(finding.measured)


def _outliers(selection: Selection, finding: Finding) -> TextTable:
    """Return a table of outliers with their coordinates."""
    results, names = selection.results, selection.problem.box.names
    labels = list(selection.model.labels)
    rows = []
    for outlier in finding.details["outliers"]:
        first = int(np.flatnonzero(results["reading_block"].values == labels.index(outlier["block"]))[0])
        point = results["reading_point"].values[first + outlier["index"]]
        where = ", ".join(f"{name} = {value:.4g}" for name, value in zip(names, point, strict=True))
        numbers = (outlier["value"], outlier["predicted"], outlier["deviations"])
        rows.append((outlier["block"], where, *map(digits, numbers)))
    header = ("readings", "where", "measured", "predicted", "deviations")
    return TextTable("Outliers, with their predictions from all other readings and the physics.", header, tuple(rows))
