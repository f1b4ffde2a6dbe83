"""What every kernel offers: a value, its mixed partial derivatives, and how many of them it has."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..errors import SmoothnessError, as_array, require

MultiIndex: TypeAlias = tuple[int, ...]
"""Orders of differentiation, one for each coordinate: `(2, 0)` is ∂²/∂x² in two dimensions."""

Scalar: TypeAlias = Any
"""One real number: a float, a 0-d array or a tracer of one."""

Hyperparameter: TypeAlias = Any
"""A number, or several, that may be chosen: given as any array of reals, held as a float64 JAX array."""

Point: TypeAlias = Sequence[Scalar] | Array | np.ndarray
"""The coordinates of one point."""


class Kernel(eqx.Module):
    """A covariance function `k(x, y)` of one pair of points, with its derivatives.

    A kernel sees one pair of points; vectorising over pairs happens in `pilescore.gram` alone. A new
    kernel is one class with a `derivative` and a `smoothness`; kernels add, multiply and scale.

    Examples
    --------
    An unknown amount of what decays at a rate, `k(x, y) = e^{−rx} e^{−ry}`:

    >>> import equinox as eqx, jax, jax.numpy as jnp, pilescore as ps
    >>> class Decay(ps.Kernel):
    ...     rate: jax.Array = eqx.field(converter=jnp.asarray)  # an array of floats may be chosen by its evidence
    ...     smoothness = float("inf")
    ...     def derivative(self, alpha, beta, x, y):
    ...         return (-self.rate) ** (alpha[0] + beta[0]) * jnp.exp(-self.rate * (x[0] + y[0]))
    >>> kernel = 4.0 * Decay(2.0) + ps.RBF(0.5)
    >>> float(kernel((0.0,), (0.0,))), float(kernel.derivative((1,), (0,), (0.0,), (0.0,)))
    (5.0, -8.0)
    >>> model = ps.Model(Decay(2.0), data=ps.observe(ps.identity, values=[3.0], at=[0.0]), gamma=1e-9)
    >>> list(model.parameters), ps.posterior(model).mean([0.5]).round(3)  # 3/e
    (['kernel.rate', 'gamma', 'eta'], array([1.104]))
    """

    @property
    @abc.abstractmethod
    def smoothness(self) -> float | int:
        """The largest order of derivative that the kernel bears on each side (may be infinite)."""

    @abc.abstractmethod
    def derivative(self, alpha: MultiIndex, beta: MultiIndex, x: Point, y: Point) -> Scalar:
        """Return `∂₁^α ∂₂^β k(x, y)`; a derivative that vanishes identically is the float `0.0`."""

    def bears(self, alpha: MultiIndex) -> bool:
        """Whether `∂^α` may be applied on one side (and so on both)."""
        return sum(alpha) <= self.smoothness

    def check_points(self, points: Float[np.ndarray, "n d"]) -> None:
        """Raise an `InputError` if the kernel cannot take these points (of which there may be none)."""
        return

    def factors(self, dimension: int) -> tuple[Kernel, ...] | None:
        """Return kernels of one coordinate each whose product is this one, `k(x, y) = Π_a k_a(x_a, y_a)`, or None.

        Examples
        --------
        >>> import pilescore as ps
        >>> ps.RBF(bandwidth=[0.5, 2.0]).factors(2)
        (RBF(bandwidth=0.5), RBF(bandwidth=2.))
        >>> ps.Matern(bandwidth=0.5).factors(2) is None
        True
        """
        return (self,) if dimension == 1 else None

    def __call__(self, x: Point, y: Point) -> Scalar:
        """Return `k(x, y)`."""
        zero = (0,) * len(x)
        return self.derivative(zero, zero, x, y)

    def __add__(self, other: Kernel) -> Kernel:
        from .algebra import Sum

        return Sum((self, other)) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: Any) -> Kernel:
        from .algebra import Product, Scaled

        if isinstance(other, Kernel):
            return Product((self, other))
        return Scaled(other, self) if np.ndim(other) == 0 else NotImplemented

    def __rmul__(self, other: Any) -> Kernel:
        return self * other

    __array_ufunc__ = None  # so that a NumPy number times a kernel is left to the kernel

    def on(self, *axes: int) -> Kernel:
        """Return this kernel acting on the given coordinates only.

        Examples
        --------
        >>> import pilescore as ps
        >>> time_by_space = ps.Matern(2.5, bandwidth=0.3).on(0) * ps.RBF(bandwidth=0.5).on(1, 2)
        >>> time_by_space.bears((2, 4, 4)), time_by_space.bears((3, 0, 0))
        (True, False)
        """
        from .algebra import On

        return On(self, axes)

    def __repr__(self) -> str:
        parts = (f"{f.name}={_show(getattr(self, f.name))}" for f in dataclasses.fields(self))
        return f"{type(self).__name__}({', '.join(parts)})"


def _show(value: Any) -> str:
    if isinstance(value, Array | np.ndarray):
        return np.array2string(np.asarray(value), precision=6, separator=", ")
    return repr(value)


def differentiate(
    function: Callable[[Array, Array], Scalar], alpha: MultiIndex, beta: MultiIndex, x: Point, y: Point
) -> Scalar:
    """Return `∂₁^α ∂₂^β` of any smooth JAX function of two points by nested forward-mode autodiff."""
    first, second = jnp.stack(tuple(x)), jnp.stack(tuple(y))
    for axis, order in enumerate(alpha):
        for _ in range(order):
            function = partial(_directional, function, axis, 0)
    for axis, order in enumerate(beta):
        for _ in range(order):
            function = partial(_directional, function, axis, 1)
    return function(first, second)


def _directional(function: Callable[[Array, Array], Scalar], axis: int, side: int, x: Array, y: Array) -> Scalar:
    along = jnp.zeros_like(x).at[axis].set(1.0)
    if side == 0:
        return jax.jvp(lambda u: function(u, y), (x,), (along,))[1]
    return jax.jvp(lambda v: function(x, v), (y,), (along,))[1]


def raised(alpha: MultiIndex, axis: int, by: int = 1) -> MultiIndex:
    """Return `α + by·e_axis`."""
    return (*alpha[:axis], alpha[axis] + by, *alpha[axis + 1 :])


def require_borne(kernel: Kernel, alpha: MultiIndex, beta: MultiIndex) -> None:
    """Raise a `SmoothnessError` if a kernel is asked for a derivative that it does not have."""
    for index in (alpha, beta):
        if not kernel.bears(index):
            raise SmoothnessError(
                f"{kernel!r} was asked for a derivative of order {sum(index)} on one side; it bears at most "
                f"{kernel.smoothness}"
            )


def vanishes(value: Scalar) -> bool:
    """Whether a derivative is the exact zero of a structure, as opposed to a number that may be zero."""
    return isinstance(value, float) and value == 0.0


def real(argument: str, ndim: int) -> Callable[[Any], Float[Array, "..."]]:
    """Return a converter that checks for finite numbers of the given number of dimensions."""

    def convert(value: Any) -> Float[Array, "..."]:
        array = as_array(value, argument)
        expected = ("a number", "a vector", "a matrix")[ndim]
        require(array.ndim == ndim and array.size > 0, argument, value, expected)
        return jnp.asarray(array)

    return convert


@dataclasses.dataclass(frozen=True)
class Positive:
    """A converter that checks for a positive scalar (or vector) and gives a JAX array; searches take its logarithm."""

    argument: str
    vector: bool = True

    def __call__(self, value: Any) -> Float[Array, "..."]:
        """Return the value as an array."""
        array = as_array(value, self.argument)
        expected = "a positive number" + (" or a vector of them, one for each coordinate" if self.vector else "")
        require(array.ndim <= int(self.vector) and array.size > 0, self.argument, value, expected)
        require(bool(np.all(array > 0)), self.argument, value, expected)
        return jnp.asarray(array)
