"""Kernels that are not stationary, and any function of two points."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..errors import as_array, as_count, call, require
from .base import Hyperparameter, Kernel, MultiIndex, Point, Positive, Scalar, differentiate, require_borne


class Constant(Kernel):
    """The constant kernel: an unknown offset of the given variance.

    Parameters
    ----------
    value
        The variance.

    Examples
    --------
    >>> import pilescore as ps
    >>> float((ps.RBF(0.5) + ps.Constant(4.0))((0.0,), (0.0,)))
    5.0
    """

    value: Hyperparameter = eqx.field(converter=Positive("Constant value", vector=False), default=1.0)

    @property
    def smoothness(self) -> float | int:
        """Infinite."""
        return math.inf

    def derivative(self, alpha: MultiIndex, beta: MultiIndex, x: Point, y: Point) -> Scalar:
        """Return the value, or zero for any derivative."""
        return 0.0 if any(alpha) or any(beta) else self.value

    def factors(self, dimension: int) -> tuple[Kernel, ...] | None:
        """Return itself, and ones."""
        return (self, *(Constant(1.0) for _ in range(dimension - 1)))


class Polynomial(Kernel):
    """The polynomial kernel `(x·y + c)^p`: all polynomials of degree at most `p`.

    Parameters
    ----------
    degree
        `p`, a positive integer.
    offset
        `c`, positive.

    Examples
    --------
    >>> import pilescore as ps
    >>> float(ps.Polynomial(2)((1.0, 2.0), (3.0, 4.0)))
    144.0
    """

    degree: int = eqx.field(static=True, converter=lambda v: as_count(v, "Polynomial degree"))
    offset: Hyperparameter = eqx.field(converter=Positive("Polynomial offset", vector=False), default=1.0)

    @property
    def smoothness(self) -> float | int:
        """Infinite."""
        return math.inf

    def derivative(self, alpha: MultiIndex, beta: MultiIndex, x: Point, y: Point) -> Scalar:
        """Return the derivative in closed form, zero beyond the degree.

        With `s = x·y + c`: `∂₁^α s^p = p!/(p−|α|)! y^α s^{p−|α|}`, then `∂₂^β` of that by the rule of Leibniz.
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
        return sum(terms[1:], start=terms[0]) if terms else 0.0


class Linear(Kernel):
    """The linear kernel `x·y`: linear functions through the origin.

    Examples
    --------
    >>> import pilescore as ps
    >>> float(ps.Linear()((1.0, 2.0), (3.0, 4.0)))
    11.0
    """

    @property
    def smoothness(self) -> float | int:
        """Infinite."""
        return math.inf

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
    products = [a * b for a, b in zip(x, y, strict=True)]
    return sum(products[1:], start=products[0])


class Wiener(Kernel):
    """The Wiener kernel `min(x, y)` on `x, y ≥ 0`: Brownian motion from zero. It bears no derivative.

    Examples
    --------
    >>> import pilescore as ps
    >>> float(ps.Wiener()((0.3,), (0.8,)))
    0.3
    """

    @property
    def smoothness(self) -> float | int:
        """Zero."""
        return 0

    def derivative(self, alpha: MultiIndex, beta: MultiIndex, x: Point, y: Point) -> Scalar:
        """Return `min(x, y)`."""
        require_borne(self, alpha, beta)
        return jnp.minimum(x[0], y[0])

    def check_points(self, points: Float[np.ndarray, "n d"]) -> None:
        """Require one dimension and no negative points."""
        name, dimension = type(self).__name__, points.shape[1]
        have = f"points with {dimension} coordinates"
        require(dimension == 1, name, have, "1 coordinate (use .on(axis) to pick one)")
        least = float(points.min(initial=0.0))
        require(least >= 0, name, f"a point at {least:g}", "points at or after 0, where the process starts")


class IntegratedWiener(Kernel):
    """The once integrated Wiener kernel on `x, y ≥ 0`: `m²(3M − m)/6`, `m = min(x, y)`, `M = max(x, y)`.

    Its first derivative is Brownian motion: `(d/dx ⊗ d/dy) k = min(x, y)`.

    Examples
    --------
    >>> import pilescore as ps
    >>> float(ps.IntegratedWiener().derivative((1,), (1,), (0.3,), (0.8,)))
    0.3
    """

    @property
    def smoothness(self) -> float | int:
        """One."""
        return 1

    def derivative(self, alpha: MultiIndex, beta: MultiIndex, x: Point, y: Point) -> Scalar:
        """Return `k`, `∂₁k = m(y − m/2)`, `∂₂k = m(x − m/2)` or `∂₁∂₂k = m`."""
        require_borne(self, alpha, beta)
        a, b = x[0], y[0]
        least = jnp.minimum(a, b)
        if alpha[0] and beta[0]:
            return least
        if alpha[0] or beta[0]:
            return least * ((b if alpha[0] else a) - 0.5 * least)
        return least**2 * (3 * jnp.maximum(a, b) - least) / 6

    check_points = Wiener.check_points


class FunctionKernel(Kernel):
    """Any smooth positive definite function of two points, differentiated by autodiff.

    Parameters
    ----------
    function
        `function(x, y, **parameters)` of two points of shape (d,), written with `jax.numpy`.
    parameters
        Its hyperparameters by name, addressed as `kernel.parameters.NAME`.
    smoothness
        How many derivatives it has on each side. Autodiff is wrong at points where the formula has a kink
        or divides by a distance, so state this with care; infinite unless given.

    Examples
    --------
    >>> import jax.numpy as jnp, pilescore as ps
    >>> def gibbs(x, y, scale):
    ...     return jnp.exp(-jnp.sum((x - y) ** 2) / scale)
    >>> kernel = ps.FunctionKernel(gibbs, {"scale": 2.0})
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
        """As stated."""
        return self.limit

    def derivative(self, alpha: MultiIndex, beta: MultiIndex, x: Point, y: Point) -> Scalar:
        """Return the derivative by nested forward-mode autodiff."""

        def at(point: Any) -> Scalar:
            return differentiate(lambda u, v: self.function(u, v, **self.parameters), alpha, beta, *point)

        value = call(at, (x, y), "FunctionKernel function", "a function of two points and its named parameters")
        require(jnp.ndim(value) == 0, "FunctionKernel function", value, "a function that returns one number")
        return value
