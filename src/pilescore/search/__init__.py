"""Search: minimise, sweep, choose among candidates and compare.

`__all__` lists the public names; names imported `as` themselves are for the other packages.
"""

from .candidates import failed_row as failed_row
from .candidates import row as row
from .choice import Choice, choose
from .choice import default_bounds as default_bounds
from .choice import free_name as free_name
from .comparison import compare
from .comparison import ranked as ranked
from .curvature import Curvature
from .curvature import find_curvature as find_curvature
from .degrees_of_freedom import degrees_text as degrees_text
from .derived import Derived
from .derived import derived_value as derived_value
from .descent import DescentResult
from .landscape import data_free_choice, data_free_landscape
from .minimum import Minimum, minimize
from .nodes import node_gaps as node_gaps
from .nodes import node_grids as node_grids
from .nodes import with_nodes as with_nodes
from .objective import Objective as Objective
from .options import RunOptions, SearchOptions
from .options import check_options as check_options
from .resolution import Resolution
from .resolution import check_resolution as check_resolution
from .resolution import on_common_nodes as on_common_nodes
from .space import SearchSpace as SearchSpace
from .space import Side as Side
from .space import Ties as Ties
from .space import bounds_reached as bounds_reached
from .space import search_space as search_space
from .steps import Found as Found
from .steps import Steps as Steps
from .sweeps import sweep
from .uncertainty import Hyperposterior, hyperposterior

__all__ = [
    "Choice",
    "Curvature",
    "Derived",
    "DescentResult",
    "Hyperposterior",
    "Minimum",
    "Resolution",
    "RunOptions",
    "SearchOptions",
    "choose",
    "compare",
    "data_free_choice",
    "data_free_landscape",
    "hyperposterior",
    "minimize",
    "sweep",
]
