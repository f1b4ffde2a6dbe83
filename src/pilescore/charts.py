"""What a figure shows, as plain data: drawn on paper by `plots`, on a page by `report`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """One curve, or a set of dots, of a panel."""

    name: str
    """What the legend and the hover say."""
    x: Any
    y: Any
    low: Any = None
    """The lower edge of a band around the curve; with `high`."""
    high: Any = None
    colour: int = 0
    """The number of a colour of the palette: the same number is the same colour in all panels."""
    style: Literal["line", "dashed", "dots", "line and dots"] = "line"
    axis: Literal["left", "right"] = "left"


@dataclasses.dataclass(frozen=True)
class Mark:
    """A vertical line (`x` alone), a horizontal one (`y` alone) or a point, with a short label."""

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
    """The label of the axis on the right, where a curve asks for one."""
    right_log: bool = False
    y_limits: tuple[float, float] | None = None
    """What to show of the left axis, where not all."""


@dataclasses.dataclass(frozen=True, eq=False)
class Picture:
    """A panel that shows a function of two variables by colours, `z[i, j]` at `y[i]`, `x[j]`."""

    title: str
    x_label: str
    y_label: str
    x: Any
    y: Any
    z: Any
    z_label: str
    marks: tuple[Mark, ...] = ()
    diverging: bool = False
    """Colours with a middle at zero."""
    limits: tuple[float, float] | None = None
    """The ends of the colour scale, shared by panels that are to be compared."""


Panel = Lines | Picture


@dataclasses.dataclass(frozen=True, eq=False)
class Figure:
    """Panels that belong together, and the sentence that says what to see in them."""

    name: str
    """The stem of its files."""
    title: str
    caption: str
    panels: tuple[Panel, ...]
    columns: int = 2
    """How many panels stand side by side where there is room."""


@dataclasses.dataclass(frozen=True)
class TextTable:
    """A small table of words and numbers that are already formatted."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    strong: int | None = None
    """The number of a row to stress."""


@dataclasses.dataclass(frozen=True, eq=False)
class Section:
    """A heading with paragraphs, then figures, then tables."""

    heading: str
    paragraphs: tuple[str, ...]
    figures: tuple[Figure, ...] = ()
    tables: tuple[TextTable, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
    """All that a page says."""

    title: str
    lead: str
    """One paragraph: what was asked, and the answer."""
    verdicts: tuple[tuple[str, str], ...]
    """A few figures that matter most, each with what it is: `("0.39", "the bandwidth that PILE chose")`."""
    sections: tuple[Section, ...]
    details: tuple[tuple[str, str], ...]
    """Settings, versions, seeds: at the end of the page."""

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All figures, in order."""
        return tuple(figure for section in self.sections for figure in section.figures)


def digits(value: float | int | None) -> str:
    """Return a number with three significant digits, as one would write it; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "—"
    if 1e-3 <= abs(value) < 1e4 or value == 0:
        shown = f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"
        return shown.replace("-", "−")
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa}·10{str(int(exponent)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}".replace("-", "−")
