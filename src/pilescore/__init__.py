"""pilescore: the Physics-Informed Log Evidence of models fitted to data and to a differential equation.

Importing this package turns on JAX's float64 mode for the whole process: a log determinant in float32 has no
digits left.
"""

import typing as _typing
from importlib import import_module as _import_module
from importlib.metadata import version as _version

import jax as _jax

_jax.config.update("jax_enable_x64", True)

from . import domains, errors, kernels, solvers
from .domains import Annulus, Box, Disk, GaussLegendre, quadrature
from .equations import (
    Nonlinear,
    Operator,
    coefficient,
    divergence,
    gradient,
    identity,
    laplacian,
    normal_derivative,
    parameter,
    partials,
)
from .inference import (
    KnownSolution,
    Pile,
    Posterior,
    Score,
    accuracy,
    data_free_pile,
    fredholm_logdet,
    log_evidence_function,
    losses,
    next_points,
    pile,
    pile_and_gradient,
    posterior,
)
from .kernels import RBF, AnisotropicRBF, Kernel, Matern
from .model import (
    Model,
    Observation,
    cauchy,
    difference,
    dirichlet,
    impose,
    integral,
    neumann,
    observe,
    periodic,
    priors,
    robin,
)
from .nonlinear import solve_nonlinear

# Models and their scores are imported at once. Packages that search, compare and read files are imported when one of
# their names is first used (PEP 562): they need pandas, xarray, pydantic and scipy.optimize, and `import pilescore`
# would take twice as long. Type checkers read the imports, Python reads the table; tests/test_imports.py compares them.
if _typing.TYPE_CHECKING:
    from . import diagnosis as diagnosis
    from . import networks as networks
    from . import problems as problems
    from . import search as search
    from .diagnosis import diagnose
    from .networks import network_pile, network_pile_from_jacobian
    from .problems import load_problem, load_selection, select
    from .search import (
        Minimum,
        RunOptions,
        SearchOptions,
        choose,
        compare,
        data_free_landscape,
        hyperposterior,
        minimize,
        sweep,
    )
else:
    _LAZY = {
        "diagnosis": ("diagnose",),
        "networks": ("network_pile", "network_pile_from_jacobian"),
        "problems": ("load_problem", "load_selection", "select"),
        "search": (
            "Minimum",
            "RunOptions",
            "SearchOptions",
            "choose",
            "compare",
            "data_free_landscape",
            "hyperposterior",
            "minimize",
            "sweep",
        ),
    }

    def __getattr__(name):
        if name in _LAZY:  # importing a package sets its name here
            return _import_module(f"{__name__}.{name}")
        for package, names in _LAZY.items():
            if name in names:
                value = globals()[name] = getattr(_import_module(f"{__name__}.{package}"), name)
                return value
        elsewhere = [
            space.__name__ for space in (kernels, domains, quadrature, solvers, priors, errors) if hasattr(space, name)
        ]
        hint = f"; there is {elsewhere[0]}.{name}" if elsewhere else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")

    def __dir__():
        return sorted({*__all__, *_LAZY, "inference", "model", "nonlinear"})


__version__ = _version("pilescore")

__all__ = [
    "RBF",
    "AnisotropicRBF",
    "Annulus",
    "Box",
    "Disk",
    "GaussLegendre",
    "Kernel",
    "KnownSolution",
    "Matern",
    "Minimum",
    "Model",
    "Nonlinear",
    "Observation",
    "Operator",
    "Pile",
    "Posterior",
    "RunOptions",
    "Score",
    "SearchOptions",
    "accuracy",
    "cauchy",
    "choose",
    "coefficient",
    "compare",
    "data_free_landscape",
    "data_free_pile",
    "diagnose",
    "difference",
    "dirichlet",
    "divergence",
    "domains",
    "errors",
    "fredholm_logdet",
    "gradient",
    "hyperposterior",
    "identity",
    "impose",
    "integral",
    "kernels",
    "laplacian",
    "load_problem",
    "load_selection",
    "log_evidence_function",
    "losses",
    "minimize",
    "network_pile",
    "network_pile_from_jacobian",
    "neumann",
    "next_points",
    "normal_derivative",
    "observe",
    "parameter",
    "partials",
    "periodic",
    "pile",
    "pile_and_gradient",
    "posterior",
    "priors",
    "quadrature",
    "robin",
    "select",
    "solve_nonlinear",
    "solvers",
    "sweep",
]
