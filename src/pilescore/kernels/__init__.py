"""Kernels and their derivatives: stationary and nonstationary kernels, and the algebra that combines them.

`__all__` lists the public names; names imported `as` themselves are for the other packages.
"""

from ..equations import MultiIndex as MultiIndex
from .algebra import LinearMap, Warped, spectral_mixture
from .algebra import On as On
from .algebra import Product as Product
from .algebra import Scaled as Scaled
from .algebra import Sum as Sum
from .base import Kernel, hyperparameter
from .base import Point as Point
from .base import Positive as Positive
from .base import Scalar as Scalar
from .base import real as real
from .evolution import Evolution
from .nonstationary import Constant, FunctionKernel, IntegratedWiener, Linear, Polynomial, Wiener
from .spectral_density import draw_frequencies as draw_frequencies
from .spectral_density import is_separately_even as is_separately_even
from .spectral_density import log_spectral_density as log_spectral_density
from .stationary import RBF, AnisotropicRBF, Cosine, FullCovarianceRBF, Matern, Periodic, RationalQuadratic, ShearedRBF
from .stationary import Radial as Radial
from .stationary import Stationary as Stationary

__all__ = [
    "RBF",
    "AnisotropicRBF",
    "Constant",
    "Cosine",
    "Evolution",
    "FullCovarianceRBF",
    "FunctionKernel",
    "IntegratedWiener",
    "Kernel",
    "Linear",
    "LinearMap",
    "Matern",
    "Periodic",
    "Polynomial",
    "RationalQuadratic",
    "ShearedRBF",
    "Warped",
    "Wiener",
    "hyperparameter",
    "spectral_mixture",
]
