"""pilescore: the Physics-Informed Log Evidence of models fitted to data and to a differential equation.

Importing this package turns on JAX's float64 mode for the whole process: a log determinant in float32 has no
digits left.
"""

from importlib.metadata import version as _version

import jax as _jax

_jax.config.update("jax_enable_x64", True)

from .accuracy import Accuracy, Risk, accuracy
from .automatic import Auto
from .bases import Basis, FourierBasis, HilbertBasis, RandomFourierBasis, UserBasis
from .calculus import divergence, gradient, laplacian, normal_derivative
from .choosing import Search, search, search_equations, search_kernels
from .comparison import compare
from .conditions import cauchy, dirichlet, neumann, periodic, robin
from .descent import Curvature, Run
from .diagnosis import diagnose
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
from .linalg import Bounds, Dense, Estimate, Solver
from .low_rank import LowRank
from .minimum import Minimum, minimize
from .misfit import Losses, losses
from .model import Model
from .networks import NetworkPile, network_pile_from_jacobian
from .nonlinear import Nonlinear
from .observations import Functional, Observation, difference, impose, integral, observe, stack
from .operators import Operator, field, identity, parameter, partials
from .posterior import Posterior, posterior
from .problems import Problem, load_problem
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
from .selections import Selection, load_selection, select
from .shapes import Annulus, Ball, Disk, Sphere, Triangulation
from .solving import Solved, solve_nonlinear
from .sweeps import sweep
from .system import estimate
from .tiled import Distributed

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
