"""Sizes of operators under a prior: how large the values are that a block observes."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..equations import Nonlinear, Operator
from ..kernels import Kernel
from ..model import Observation
from .gram import variances
from .tiles import query

MAX_VALUE = 1e100
"""The largest allowed value. Squares of larger values overflow in products."""

DRAWS = 61
"""The number of random draws, and of points, from which the size of a nonlinear operator is estimated."""

NORMAL_MEDIAN_SQUARE = 0.4549
"""The median of the square of a standard normal number."""

MAX_DECADES = 40.0
"""The size of the unknown is searched between 10 to the power of minus and plus this number."""


@dataclasses.dataclass(frozen=True, eq=False)
class LinearSize:
    """The squared size of a linear operator: its prior variance."""

    variance: float
    target: float
    """The mean square of the observed values."""

    def size(self, scale: float) -> float:
        """Return the squared size of the operator if the squared size of the unknown is `scale`."""
        return scale * self.variance

    def scale(self) -> float:
        """Return the squared size of the unknown at which the operator is as large as the target."""
        return self.target / self.variance if self.variance > 0 else 1.0


class NonlinearSize:
    """The squared size of a nonlinear operator: its median square over random draws of its arguments.

    Draws at which it is not defined are left out. The value of the operator at the zero function is subtracted from the
    observed values.
    """

    def __init__(self, kernel: Kernel, block: Observation, operator: Nonlinear) -> None:
        rows = np.unique(np.linspace(0, block.size - 1, min(block.size, DRAWS)).astype(int))
        points = block.points[rows]
        spread = np.sqrt([prior_variances(kernel, points, argument) for argument in operator.of])
        self._drawn = spread[None] * np.random.default_rng(0).standard_normal((DRAWS, *spread.shape))
        self._at = jax.jit(jax.vmap(jax.vmap(operator.at, (0, 1)), (None, 0)))
        self._points = points
        at_zero = self._values(0.0)[0]
        self._at_zero = np.where(np.isfinite(at_zero), at_zero, 0.0)
        self.target = float(np.mean(np.minimum(np.abs(block.values[rows] - self._at_zero), MAX_VALUE) ** 2))

    def size(self, scale: float) -> float:
        """Return the squared size of the operator if the squared size of the unknown is `scale`."""
        return self._change(scale) + float(np.mean(self._at_zero**2))

    def scale(self) -> float:
        """Return the squared size of the unknown at which the operator is as large as the target; 1 if there is none.

        The size need not be monotone or finite, so this is a bisection of the logarithm that cannot fail.
        """
        low, high = -MAX_DECADES, MAX_DECADES
        for _ in range(40):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self._change(10.0**middle) > self.target else (middle, high)
        return float(10.0**middle) if -0.9 * MAX_DECADES < middle < 0.9 * MAX_DECADES else 1.0

    def _change(self, scale: float) -> float:
        """Return the squared size of the operator's change from the zero function; NaN if it is defined nowhere."""
        values = self._values(scale)
        defined = ~np.isnan(values)
        with np.errstate(over="ignore"):
            squares = np.sort(np.where(defined, values - self._at_zero, np.inf) ** 2, axis=0)
        count = defined.sum(axis=0)
        # The median, not the mean: the mean square of exp(u) or 1/u is dominated by a few draws or infinite.
        medians = np.take_along_axis(squares, count[None] // 2, axis=0)[0][count > 0]
        return float(np.mean(np.minimum(medians / NORMAL_MEDIAN_SQUARE, MAX_VALUE))) if medians.size else math.nan

    def _values(self, scale: float) -> Float[np.ndarray, "draws m"]:
        return np.asarray(self._at(jnp.asarray(self._points), jnp.asarray(math.sqrt(scale) * self._drawn)))


def operator_size(kernel: Kernel, block: Observation) -> LinearSize | NonlinearSize:
    """Return the squared size of what a block observes, under a prior with this kernel, as a function of its scale."""
    if isinstance(block.operator, Nonlinear):
        return NonlinearSize(kernel, block, block.operator)
    mean = float(np.mean(prior_variances(kernel, block.points, block.operator)))
    factor = 1.0 if block.matrix is None else float(np.mean(np.abs(block.matrix).sum(axis=1) ** 2))
    return LinearSize(mean * factor, mean_square(block))


def prior_variances(kernel: Kernel, points: Float[np.ndarray, "n d"], operator: Operator) -> Float[np.ndarray, " n"]:
    """Return the prior variances of an operator at points."""
    rows = query(points, operator.indices(points.shape[1]), operator.coefficients)
    return np.concatenate([variances(kernel, tile, 1.0) for tile in rows.tiles])


def mean_square(block: Observation) -> float:
    """Return the mean square of the observed values."""
    return float(np.mean(np.minimum(np.abs(block.values), MAX_VALUE) ** 2))


def term_variances(kernel: Kernel, block: Observation) -> Float[np.ndarray, " q"]:
    """Return `Σ_α c_α² Var[∂^α f]` of a linear block at its points: the size of the terms of its operator."""
    total = np.zeros(len(block.points))
    for alpha, coefficients in zip(block.indices, np.asarray(block.coefficients), strict=True):
        rows = query(block.points, (alpha,), lambda points: np.ones((1, len(points))))
        total += coefficients**2 * np.concatenate([variances(kernel, tile, 1.0) for tile in rows.tiles])
    return total
