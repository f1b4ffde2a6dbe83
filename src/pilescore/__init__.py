"""pilescore: the Physics-Informed Log Evidence of models fitted to data and to a differential equation.

Importing this package turns on JAX's float64 mode for the whole process: a log determinant in float32 has no
digits left.
"""

from importlib.metadata import version as _version

import jax as _jax

_jax.config.update("jax_enable_x64", True)

from .accuracy import Accuracy, Risk, accuracy  # noqa: E402
from .conditions import cauchy, dirichlet, neumann, periodic, robin  # noqa: E402
from .domains import Box, Nodes, Region, Slice, Union, nodes  # noqa: E402
from .errors import (  # noqa: E402
    InputError,
    MemoryLimitError,
    NotPositiveDefiniteError,
    OutsideDomainWarning,
    PilescoreError,
    PrecisionWarning,
    SmoothnessError,
)
from .kernels import (  # noqa: E402
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
from .model import Model  # noqa: E402
from .observations import Functional, Observation, difference, impose, integral, observe, stack  # noqa: E402
from .operators import (  # noqa: E402
    Operator,
    divergence,
    field,
    gradient,
    identity,
    laplacian,
    normal_derivative,
    parameter,
    partials,
)
from .posterior import Posterior, posterior  # noqa: E402
from .quadrature import (  # noqa: E402
    Chebyshev,
    ClenshawCurtis,
    Fejer,
    GaussLegendre,
    MonteCarlo,
    Rule,
    Sobol,
    Tensor,
)
from .score import Pile, pile, pile_and_gradient, pile_many  # noqa: E402
from .shapes import Annulus, Ball, Disk, Sphere, Triangulation  # noqa: E402

__version__ = _version("pilescore")

__all__ = [
    "RBF",
    "Accuracy",
    "AnisotropicRBF",
    "Annulus",
    "Ball",
    "Box",
    "Chebyshev",
    "ClenshawCurtis",
    "Constant",
    "Cosine",
    "Disk",
    "Fejer",
    "FullCovarianceRBF",
    "FunctionKernel",
    "Functional",
    "GaussLegendre",
    "InputError",
    "IntegratedWiener",
    "Kernel",
    "Linear",
    "LinearMap",
    "Matern",
    "MemoryLimitError",
    "Model",
    "MonteCarlo",
    "Nodes",
    "NotPositiveDefiniteError",
    "Observation",
    "Operator",
    "OutsideDomainWarning",
    "Periodic",
    "Pile",
    "PilescoreError",
    "Polynomial",
    "Posterior",
    "PrecisionWarning",
    "RationalQuadratic",
    "Region",
    "Risk",
    "Rule",
    "Slice",
    "SmoothnessError",
    "Sobol",
    "Sphere",
    "Tensor",
    "Triangulation",
    "Union",
    "Warped",
    "Wiener",
    "accuracy",
    "cauchy",
    "difference",
    "dirichlet",
    "divergence",
    "field",
    "gradient",
    "identity",
    "impose",
    "integral",
    "laplacian",
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
    "spectral_mixture",
    "stack",
]
