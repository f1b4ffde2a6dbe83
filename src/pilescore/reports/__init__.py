"""Reports: figures drawn by matplotlib and plotly, and the HTML page that holds them."""

from ..diagnosis import digits
from .contents import Curve, Figure, Lines, Mark, Picture, Report, Section, TextTable
from .page import write_report
from .selection import chosen_text, interval_text, ordered, selection_report, with_error

__all__ = [
    "Curve",
    "Figure",
    "Lines",
    "Mark",
    "Picture",
    "Report",
    "Section",
    "TextTable",
    "chosen_text",
    "digits",
    "interval_text",
    "ordered",
    "selection_report",
    "with_error",
    "write_report",
]
