"""pilescore: the Physics-Informed Log Evidence of models fitted to data and to a differential equation.

Importing this package turns on JAX's float64 mode for the whole process: a log determinant in float32 has no
digits left.
"""

from importlib import import_module as _import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING

import jax as _jax

_jax.config.update("jax_enable_x64", True)

from .accuracy import Accuracy, Risk, accuracy
from .automatic import Auto
from .bases import Basis, FourierBasis, HilbertBasis, RandomFourierBasis, UserBasis
from .calculus import divergence, gradient, laplacian, normal_derivative
from .conditions import cauchy, dirichlet, neumann, periodic, robin
from .domains import Box, Nodes, Region, Slice, Union, nodes
from .errors import (
    ClusterError,
    FileError,
    InputError,
    MemoryLimitError,
    Mistake,
    NotPositiveDefiniteError,
    NotSolvedError,
    OutsideDomainWarning,
    PilescoreError,
    PrecisionWarning,
    SaveError,
    SmoothnessError,
    ToleranceError,
    TrainingPointsWarning,
)
from .features import Features
from .kernels import (
    RBF,
    AnisotropicRBF,
    Constant,
    Cosine,
    FullCovarianceRBF,
    FunctionKernel,
    IntegratedWiener,
    Kernel,
    Linear,
    LinearMap,
    Matern,
    Periodic,
    Polynomial,
    RationalQuadratic,
    Warped,
    Wiener,
    spectral_mixture,
)
from .kronecker import Kronecker
from .linalg import Dense
from .low_rank import LowRank
from .misfit import Losses, losses
from .model import Model
from .nonlinear import Nonlinear
from .observations import Functional, Observation, difference, impose, integral, observe, stack
from .operators import Operator, field, identity, parameter, partials
from .posterior import Posterior, posterior
from .quadrature import (
    Chebyshev,
    ClenshawCurtis,
    Fejer,
    GaussLegendre,
    MonteCarlo,
    Rule,
    Sobol,
    Tensor,
)
from .score import Pile, pile, pile_and_gradient, pile_many
from .shapes import Annulus, Ball, Disk, Sphere, Triangulation
from .solvers import Bounds, Estimate, Solver
from .system import estimate
from .tiled import Distributed

# Models and their scores are imported at once. What searches, compares and reads files is imported when a name of it
# is first asked for (PEP 562): it needs pandas, xarray, pydantic and scipy.optimize, and `import pilescore` would take
# twice as long. Type checkers read the imports, Python the table; tests/test_imports.py compares them. A name that is
# also a module's, such as `accuracy`, cannot be among them: importing the module sets the name.
if TYPE_CHECKING:
    from .choosing import Search, search, search_equations, search_kernels
    from .comparison import compare
    from .descent import Curvature, Run
    from .diagnosis import diagnose
    from .findings import Diagnosis, Finding, Thresholds
    from .fredholm import (
        DataFreePile,
        FredholmDeterminant,
        calibrated_rho,
        data_free_landscape,
        data_free_pile,
        fredholm_logdet,
    )
    from .jax_networks import network_pile
    from .minimum import Minimum, minimize
    from .networks import NetworkPile, network_pile_from_jacobian
    from .problems import Problem, load_problem
    from .selections import Selection, load_selection, select
    from .solving import Solved, solve_nonlinear
    from .sweeps import sweep
else:
    _LATER = {
        "choosing": ("Search", "search", "search_equations", "search_kernels"),
        "comparison": ("compare",),
        "descent": ("Curvature", "Run"),
        "diagnosis": ("diagnose",),
        "findings": ("Diagnosis", "Finding", "Thresholds"),
        "fredholm": (
            "DataFreePile",
            "FredholmDeterminant",
            "calibrated_rho",
            "data_free_landscape",
            "data_free_pile",
            "fredholm_logdet",
        ),
        "jax_networks": ("network_pile",),
        "minimum": ("Minimum", "minimize"),
        "networks": ("NetworkPile", "network_pile_from_jacobian"),
        "problems": ("Problem", "load_problem"),
        "selections": ("Selection", "load_selection", "select"),
        "solving": ("Solved", "solve_nonlinear"),
        "sweeps": ("sweep",),
    }

    def __getattr__(name):
        for module, names in _LATER.items():
            if name in names:
                found = globals()[name] = getattr(_import_module(f"{__name__}.{module}"), name)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})


__version__ = _version("pilescore")

__all__ = [
    "RBF",
    "Accuracy",
    "AnisotropicRBF",
    "Annulus",
    "Auto",
    "Ball",
    "Basis",
    "Bounds",
    "Box",
    "Chebyshev",
    "ClenshawCurtis",
    "ClusterError",
    "Constant",
    "Cosine",
    "Curvature",
    "DataFreePile",
    "Dense",
    "Diagnosis",
    "Disk",
    "Distributed",
    "Estimate",
    "Features",
    "Fejer",
    "FileError",
    "Finding",
    "FourierBasis",
    "FredholmDeterminant",
    "FullCovarianceRBF",
    "FunctionKernel",
    "Functional",
    "GaussLegendre",
    "HilbertBasis",
    "InputError",
    "IntegratedWiener",
    "Kernel",
    "Kronecker",
    "Linear",
    "LinearMap",
    "Losses",
    "LowRank",
    "Matern",
    "MemoryLimitError",
    "Minimum",
    "Mistake",
    "Model",
    "MonteCarlo",
    "NetworkPile",
    "Nodes",
    "Nonlinear",
    "NotPositiveDefiniteError",
    "NotSolvedError",
    "Observation",
    "Operator",
    "OutsideDomainWarning",
    "Periodic",
    "Pile",
    "PilescoreError",
    "Polynomial",
    "Posterior",
    "PrecisionWarning",
    "Problem",
    "RandomFourierBasis",
    "RationalQuadratic",
    "Region",
    "Risk",
    "Rule",
    "Run",
    "SaveError",
    "Search",
    "Selection",
    "Slice",
    "SmoothnessError",
    "Sobol",
    "Solved",
    "Solver",
    "Sphere",
    "Tensor",
    "Thresholds",
    "ToleranceError",
    "TrainingPointsWarning",
    "Triangulation",
    "Union",
    "UserBasis",
    "Warped",
    "Wiener",
    "accuracy",
    "calibrated_rho",
    "cauchy",
    "compare",
    "data_free_landscape",
    "data_free_pile",
    "diagnose",
    "difference",
    "dirichlet",
    "divergence",
    "estimate",
    "field",
    "fredholm_logdet",
    "gradient",
    "identity",
    "impose",
    "integral",
    "laplacian",
    "load_problem",
    "load_selection",
    "losses",
    "minimize",
    "network_pile",
    "network_pile_from_jacobian",
    "neumann",
    "nodes",
    "normal_derivative",
    "observe",
    "parameter",
    "partials",
    "periodic",
    "pile",
    "pile_and_gradient",
    "pile_many",
    "posterior",
    "robin",
    "search",
    "search_equations",
    "search_kernels",
    "select",
    "solve_nonlinear",
    "spectral_mixture",
    "stack",
    "sweep",
]
