"""The model: observations, conditions, a kernel, temperatures, and the names of its hyperparameters.

`__all__` lists the public names; names imported `as` themselves are for the other packages.
"""

from .conditions import cauchy, dirichlet, neumann, periodic, robin
from .hyperparameters import Path as Path
from .hyperparameters import as_grid as as_grid
from .hyperparameters import eta_and_temperatures as eta_and_temperatures
from .hyperparameters import find as find
from .hyperparameters import follow as follow
from .hyperparameters import is_of_kernel as is_of_kernel
from .hyperparameters import is_positive as is_positive
from .hyperparameters import is_temperature as is_temperature
from .hyperparameters import kernel_paths as kernel_paths
from .hyperparameters import named_paths as named_paths
from .hyperparameters import operator_paths as operator_paths
from .hyperparameters import path_of as path_of
from .hyperparameters import require_name as require_name
from .hyperparameters import role_of as role_of
from .model import Model
from .model import check_smoothness as check_smoothness
from .observations import TEMPERATURES as TEMPERATURES
from .observations import Functional, Observation, difference, impose, integral, join_functionals, observe
from .observations import check_names as check_names
from .observations import check_nodes as check_nodes
from .observations import evaluate as evaluate
from .observations import labels as labels
from .priors import LogNormal as LogNormal
from .priors import Normal as Normal
from .priors import Prior as Prior
from .priors import require_prior_between as require_prior_between
from .solver import Solver
from .solver import as_solver as as_solver

__all__ = [
    "Functional",
    "Model",
    "Observation",
    "Solver",
    "cauchy",
    "difference",
    "dirichlet",
    "impose",
    "integral",
    "join_functionals",
    "neumann",
    "observe",
    "periodic",
    "robin",
]
