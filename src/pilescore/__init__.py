"""pilescore: the Physics-Informed Log Evidence of models fitted to data and to a differential equation.

Importing this package turns on JAX's float64 mode for the whole process: a log determinant in float32 has no digits.
"""

import jax as _jax

_jax.config.update("jax_enable_x64", True)

from .domains import *
from .quadrature import *
from .kernels import *
from .operators import identity, partials, gradient, laplacian, divergence, normal_derivative, parameter, field
from .observations import *
from .model import Model
from .score import Pile, pile, pile_and_gradient, pile_many
