"""The contents of a report as plain data: sections, figures and tables.

`matplotlib_figures` draws the figures for print, `plotly_figures` for the HTML page.
"""

from __future__ import annotations

import dataclasses
import numbers
from typing import Any, Literal

from ..diagnosis import digits


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """A curve or a set of points in a panel."""

    name: str
    """The text in the legend and in the hover box."""
    x: Any
    y: Any
    low: Any = None
    """The lower edge of a band around the curve. It needs `high`."""
    high: Any = None
    colour: int = 0
    """An index into the palette. Equal numbers give equal colours in all panels."""
    style: Literal["line", "dashed", "dots", "line and dots"] = "line"
    axis: Literal["left", "right"] = "left"


@dataclasses.dataclass(frozen=True)
class Mark:
    """A labelled vertical line (`x` only), horizontal line (`y` only) or point (both)."""

    label: str
    x: float | None = None
    y: float | None = None
    colour: int = 7


@dataclasses.dataclass(frozen=True, eq=False)
class Lines:
    """A panel of curves."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    marks: tuple[Mark, ...] = ()
    x_log: bool = False
    y_log: bool = False
    right_label: str = ""
    """The label of the right axis, for curves with `axis="right"`."""
    right_log: bool = False
    y_limits: tuple[float, float] | None = None
    """The visible range of the left axis. None shows all curves."""


@dataclasses.dataclass(frozen=True, eq=False)
class Picture:
    """A panel that shows a function of two variables as colours: `z[i, j]` at `y[i]`, `x[j]`."""

    title: str
    x_label: str
    y_label: str
    x: Any
    y: Any
    z: Any
    z_label: str
    marks: tuple[Mark, ...] = ()
    diverging: bool = False
    """Whether the colour scale is centred at zero."""
    limits: tuple[float, float] | None = None
    """The ends of the colour scale. Panels with equal limits can be compared."""


Panel = Lines | Picture


@dataclasses.dataclass(frozen=True, eq=False)
class Figure:
    """Panels side by side with a title and a caption."""

    name: str
    """The file name, without its suffix."""
    title: str
    caption: str
    panels: tuple[Panel, ...]
    columns: int = 2
    """The largest number of panels in a row."""


@dataclasses.dataclass(frozen=True)
class TextTable:
    """A small table. Cells may be text or numbers; numbers are formatted with three significant digits."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    """The cells. After construction all of them are text."""
    strong: int | None = None
    """The index of the highlighted row."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(tuple(map(_cell_text, row)) for row in self.rows))


def _cell_text(cell: Any) -> str:
    return str(cell) if isinstance(cell, str | numbers.Integral) else digits(cell)


@dataclasses.dataclass(frozen=True, eq=False)
class Section:
    """A heading followed by paragraphs, figures and tables, in this order."""

    heading: str
    paragraphs: tuple[str, ...]
    figures: tuple[Figure, ...] = ()
    tables: tuple[TextTable, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
    """The contents of one HTML page."""

    title: str
    lead: str
    """The first paragraph: the question and the answer."""
    verdicts: tuple[tuple[str, str], ...]
    """The main numbers, each with its meaning: `("0.39", "the bandwidth chosen by PILE")`."""
    sections: tuple[Section, ...]
    details: tuple[tuple[str, str], ...]
    """Settings, versions and seeds, shown at the end of the page."""

    @property
    def figures(self) -> tuple[Figure, ...]:
        """The figures of all sections."""
        return tuple(figure for section in self.sections for figure in section.figures)
