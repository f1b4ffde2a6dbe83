"""Search: minimise, sweep, choose among candidates and compare."""

from .candidates import failed_row, row
from .choice import Choice, choose, default_bounds, free_name
from .comparison import compare, ranked
from .descent import Curvature, DescentResult, find_curvature
from .landscape import data_free_landscape
from .minimum import Minimum, minimize
from .objective import Objective
from .options import RunOptions, SearchOptions, check_options
from .space import SearchSpace, search_space
from .sweeps import sweep

__all__ = [
    "Choice",
    "Curvature",
    "DescentResult",
    "Minimum",
    "Objective",
    "RunOptions",
    "SearchOptions",
    "SearchSpace",
    "check_options",
    "choose",
    "compare",
    "data_free_landscape",
    "default_bounds",
    "failed_row",
    "find_curvature",
    "free_name",
    "minimize",
    "ranked",
    "row",
    "search_space",
    "sweep",
]
