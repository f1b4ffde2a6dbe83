"""Kernels and their derivatives: stationary ones, others, and the algebra that combines them."""

from .algebra import LinearMap, On, Product, Scaled, Sum, Warped, spectral_mixture
from .base import Kernel, MultiIndex, Point, Positive, Scalar
from .others import Constant, FunctionKernel, IntegratedWiener, Linear, Polynomial, Wiener
from .stationary import (
    RBF,
    AnisotropicRBF,
    Cosine,
    FullCovarianceRBF,
    Matern,
    Periodic,
    Radial,
    RationalQuadratic,
    Stationary,
)

__all__ = [
    "RBF",
    "AnisotropicRBF",
    "Constant",
    "Cosine",
    "FullCovarianceRBF",
    "FunctionKernel",
    "IntegratedWiener",
    "Kernel",
    "Linear",
    "LinearMap",
    "Matern",
    "MultiIndex",
    "On",
    "Periodic",
    "Point",
    "Polynomial",
    "Positive",
    "Product",
    "Radial",
    "RationalQuadratic",
    "Scalar",
    "Scaled",
    "Stationary",
    "Sum",
    "Warped",
    "Wiener",
    "spectral_mixture",
]
