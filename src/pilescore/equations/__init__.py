"""The language of equations: linear operators, vector calculus, nonlinear operators, and equations as text."""

from .calculus import divergence, gradient, laplacian, normal_derivative
from .coefficients import (
    Coefficient,
    CoefficientFunction,
    MultiIndex,
    Parameter,
    leibniz_terms,
    partial_derivative,
    raised,
)
from .nonlinear import Nonlinear
from .operators import RESERVED, Operator, coefficient, identity, parameter, partials

__all__ = [
    "RESERVED",
    "Coefficient",
    "CoefficientFunction",
    "MultiIndex",
    "Nonlinear",
    "Operator",
    "Parameter",
    "coefficient",
    "divergence",
    "gradient",
    "identity",
    "laplacian",
    "leibniz_terms",
    "normal_derivative",
    "parameter",
    "partial_derivative",
    "partials",
    "raised",
]
