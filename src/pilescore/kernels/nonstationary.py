"""Nonstationary kernels, and kernels given by a function of two points."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..equations import MultiIndex
from ..errors import as_array, as_count, call, require
from .base import (
    Hyperparameter,
    Kernel,
    Point,
    Scalar,
    differentiate,
    hyperparameter,
    require_coordinates,
    require_supported,
    total,
)


class Constant(Kernel):
    """The constant kernel: an unknown offset with the given variance.

    Parameters
    ----------
    value
        The variance.

    Examples
    --------
    >>> import pilescore as ps
    >>> float((ps.RBF(0.5) + ps.kernels.Constant(4.0))((0.0,), (0.0,)))
    5.0
    """

    value: Hyperparameter = hyperparameter("variance", "Constant value", default=1.0)

    @property
    def smoothness(self) -> float | int:
        """Infinite."""
        return math.inf

    def derivative(self, alpha: MultiIndex, beta: MultiIndex, x: Point, y: Point) -> Scalar:
        """Return the value; every derivative is zero."""
        return 0.0 if any(alpha) or any(beta) else self.value

    def factors(self, dimension: int) -> tuple[Kernel, ...] | None:
        """Return the kernel for the first coordinate and the constant 1 for the others."""
        return (self, *(Constant(1.0) for _ in range(dimension - 1)))


class Polynomial(Kernel):
    """The polynomial kernel `(x·y + c)^p`: all polynomials of degree at most `p`.

    Parameters
    ----------
    degree
        The degree `p`, a positive integer.
    offset
        The offset `c`, positive.

    Examples
    --------
    >>> import pilescore as ps
    >>> float(ps.kernels.Polynomial(2)((1.0, 2.0), (3.0, 4.0)))
    144.0
    """

    degree: int = eqx.field(static=True, converter=lambda v: as_count(v, "Polynomial degree"))
    offset: Hyperparameter = hyperparameter("ratio", "Polynomial offset", default=1.0)

    smoothness = Constant.smoothness

    def derivative(self, alpha: MultiIndex, beta: MultiIndex, x: Point, y: Point) -> Scalar:
        """Return the derivative in closed form; it is zero beyond the degree.

        With `s = x·y + c`: `∂₁^α s^p = p!/(p−|α|)! y^α s^{p−|α|}`, and `∂₂^β` of this follows by the Leibniz rule.
        """
        left = self.degree - sum(alpha)
        terms = []
        for gamma in itertools.product(*(range(min(a, b) + 1) for a, b in zip(alpha, beta, strict=True))):
            power = left - sum(beta) + sum(gamma)
            if left < 0 or power < 0:
                continue
            count = math.perm(self.degree, sum(alpha)) * math.perm(left, sum(beta) - sum(gamma))
            term: Scalar = (_dot(x, y) + self.offset) ** power
            for a, b, g, p, q in zip(alpha, beta, gamma, x, y, strict=True):
                count *= math.comb(b, g) * math.perm(a, g)
                term = term * q ** (a - g) * p ** (b - g)
            terms.append(count * term)
        return total(terms)


class Linear(Kernel):
    """The linear kernel `x·y`: linear functions through the origin.

    Examples
    --------
    >>> import pilescore as ps
    >>> float(ps.kernels.Linear()((1.0, 2.0), (3.0, 4.0)))
    11.0
    """

    smoothness = Constant.smoothness

    def derivative(self, alpha: MultiIndex, beta: MultiIndex, x: Point, y: Point) -> Scalar:
        """Return `x·y`, a coordinate, one, or zero."""
        if max(sum(alpha), sum(beta)) > 1:
            return 0.0
        if any(alpha) and any(beta):
            return 1.0 if alpha == beta else 0.0
        if any(alpha):
            return y[alpha.index(1)]
        if any(beta):
            return x[beta.index(1)]
        return _dot(x, y)


def _dot(x: Point, y: Point) -> Scalar:
    return total([a * b for a, b in zip(x, y, strict=True)])


class Wiener(Kernel):
    """The Wiener kernel `min(x, y)` on `x, y ≥ 0`: Brownian motion from zero. It has no derivatives.

    Examples
    --------
    >>> import pilescore as ps
    >>> float(ps.kernels.Wiener()((0.3,), (0.8,)))
    0.3
    """

    @property
    def smoothness(self) -> float | int:
        """Zero."""
        return 0

    def derivative(self, alpha: MultiIndex, beta: MultiIndex, x: Point, y: Point) -> Scalar:
        """Return `min(x, y)`."""
        require_supported(self, alpha, beta)
        return jnp.minimum(x[0], y[0])

    def check_points(self, points: Float[np.ndarray, "n d"]) -> None:
        """Require one dimension and no negative points."""
        name = type(self).__name__
        require_coordinates(name, points, points.shape[1] == 1, "1 coordinate (use .on(axis) to pick one)")
        least = float(points.min(initial=0.0))
        require(least >= 0, name, f"a point at {least:g}", "points at or after 0, where the process starts")


class IntegratedWiener(Kernel):
    """The once integrated Wiener kernel on `x, y ≥ 0`: `m²(3M − m)/6`, `m = min(x, y)`, `M = max(x, y)`.

    Its first derivative is Brownian motion: `(d/dx ⊗ d/dy) k = min(x, y)`.

    Examples
    --------
    >>> import pilescore as ps
    >>> float(ps.kernels.IntegratedWiener().derivative((1,), (1,), (0.3,), (0.8,)))
    0.3
    """

    @property
    def smoothness(self) -> float | int:
        """One."""
        return 1

    def derivative(self, alpha: MultiIndex, beta: MultiIndex, x: Point, y: Point) -> Scalar:
        """Return `k`, `∂₁k = m(y − m/2)`, `∂₂k = m(x − m/2)` or `∂₁∂₂k = m`."""
        require_supported(self, alpha, beta)
        a, b = x[0], y[0]
        least = jnp.minimum(a, b)
        if alpha[0] and beta[0]:
            return least
        if alpha[0] or beta[0]:
            return least * ((b if alpha[0] else a) - 0.5 * least)
        return least**2 * (3 * jnp.maximum(a, b) - least) / 6

    check_points = Wiener.check_points


class FunctionKernel(Kernel):
    """A kernel given by any smooth positive definite function of two points, differentiated automatically.

    Parameters
    ----------
    function
        `function(x, y, **parameters)` of two points of shape (d,), written with `jax.numpy`.
    parameters
        The hyperparameters by name; the model calls them `kernel.parameters.NAME`.
    smoothness
        The highest order of derivative on each side. Default: infinite. Automatic differentiation is wrong where
        the formula has a kink or divides by a distance; state an order that is safe.

    Examples
    --------
    >>> import jax.numpy as jnp, pilescore as ps
    >>> def gibbs(x, y, scale):
    ...     return jnp.exp(-jnp.sum((x - y) ** 2) / scale)
    >>> kernel = ps.kernels.FunctionKernel(gibbs, {"scale": 2.0})
    >>> float(kernel.derivative((1,), (1,), (0.0,), (0.0,)))
    1.0
    """

    function: Callable[..., Scalar]
    parameters: dict[str, Float[Array, "..."]]
    limit: float | int = eqx.field(static=True)

    def __init__(
        self,
        function: Callable[..., Scalar],
        parameters: Mapping[str, Any] | None = None,
        smoothness: float | int = math.inf,
    ) -> None:
        require(callable(function), "FunctionKernel function", function, "a function of two points")
        require(smoothness >= 0, "FunctionKernel smoothness", smoothness, "a number of derivatives, ≥ 0")
        self.function = function
        self.parameters = {
            name: jnp.asarray(as_array(value, f"FunctionKernel parameter {name!r}"))
            for name, value in (parameters or {}).items()
        }
        self.limit = smoothness

    @property
    def smoothness(self) -> float | int:
        """The order given by the user."""
        return self.limit

    def derivative(self, alpha: MultiIndex, beta: MultiIndex, x: Point, y: Point) -> Scalar:
        """Return the derivative by nested forward-mode differentiation."""

        def at(point: Any) -> Scalar:
            return differentiate(lambda u, v: self.function(u, v, **self.parameters), alpha, beta, *point)

        value = call(at, (x, y), "FunctionKernel function", "a function of two points and its named parameters")
        require(jnp.ndim(value) == 0, "FunctionKernel function", value, "a function that returns one number")
        return value
