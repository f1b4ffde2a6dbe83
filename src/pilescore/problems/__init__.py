"""Problem files: problems written in TOML, loaded into models, solved, and used for predictions."""

from .description import describe_problem, parameter_text, score_text
from .loading import load_problem, read_points
from .problem import Problem
from .selection import PREDICTIONS, Selection, load_selection, select
from .summary import HyperposteriorSummary as HyperposteriorSummary
from .summary import SelectionSummary

__all__ = [
    "PREDICTIONS",
    "Problem",
    "Selection",
    "SelectionSummary",
    "describe_problem",
    "load_problem",
    "load_selection",
    "parameter_text",
    "read_points",
    "score_text",
    "select",
]
