"""The interface of kernels: values, mixed partial derivatives, and the orders that exist."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..equations import MultiIndex, partial_derivative
from ..errors import SmoothnessError, as_array, require

Scalar: TypeAlias = Any
"""One real number: a float, a 0-d array, or a traced 0-d array."""

Hyperparameter: TypeAlias = Any
"""One or more free numbers: any array of reals on input, stored as a float64 JAX array."""

Role: TypeAlias = Literal["length", "period", "variance", "ratio", "angle", "shear", "number"]
"""The kind of quantity of a hyperparameter."""

ROLES = get_args(Role)

Point: TypeAlias = Sequence[Scalar] | Array | np.ndarray
"""The coordinates of one point."""


class Kernel(eqx.Module):
    """A covariance function `k(x, y)` of one pair of points, with its derivatives.

    A kernel sees one pair of points; only `pilescore.covariance.gram` vectorises over pairs. A new kernel is one class
    with a `derivative` and a `smoothness`. Kernels add, multiply and scale.

    Examples
    --------
    An unknown amount of a substance that decays at rate r, `k(x, y) = e^{−rx} e^{−ry}`:

    >>> import jax, jax.numpy as jnp, pilescore as ps
    >>> class Decay(ps.Kernel):
    ...     rate: jax.Array = ps.kernels.hyperparameter("number")  # searches may change it
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
        """The highest order of derivative that the kernel supports on each side; it may be infinite."""

    @abc.abstractmethod
    def derivative(self, alpha: MultiIndex, beta: MultiIndex, x: Point, y: Point) -> Scalar:
        """Return `∂₁^α ∂₂^β k(x, y)`; the float `0.0` stands for a derivative that vanishes identically.

        Parameters
        ----------
        alpha, beta
            Orders of differentiation in `x` and in `y`: tuples with one number for each coordinate.
        x, y
            Two points: one scalar for each coordinate. They may be tuples, so write `x[0] - y[0]`, not `x - y`.
        """

    def supports(self, alpha: MultiIndex) -> bool:
        """Whether the kernel has the derivative `∂^α` on each side."""
        return sum(alpha) <= self.smoothness

    def check_points(self, points: Float[np.ndarray, "n d"]) -> None:
        """Raise an `InputError` if the kernel is not defined at these points; the array may have no rows."""
        return

    def factors(self, dimension: int) -> tuple[Kernel, ...] | None:
        """Return one kernel for each coordinate with `k(x, y) = Π_a k_a(x_a, y_a)`, or None if there are none.

        Examples
        --------
        >>> import pilescore as ps
        >>> ps.RBF(bandwidth=[0.5, 2.0]).factors(2)
        (RBF(bandwidth=0.5), RBF(bandwidth=2.))
        >>> ps.Matern(bandwidth=0.5).factors(2) is None
        True
        """
        return (self,) if dimension == 1 else None

    def distances(self, x: Float[np.ndarray, "n d"], y: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "n m"]:
        """Return the distance between every two points in units of the kernel's own lengths.

        Nodes of equations have to be closer than the kernel is long. By default a distance is `√Σ_i δ_i²/h_i²`, with
        the hyperparameters `h` whose role is a length, or the largest distance by a kernel that this one is made of. It
        is zero for a kernel without lengths, such as a polynomial.

        Parameters
        ----------
        x, y
            The points.

        Examples
        --------
        >>> import numpy as np, pilescore as ps
        >>> start, later = np.array([[0.0, 0.0]]), np.array([[0.1, 0.0], [0.1, 5.0]])
        >>> ps.RBF(bandwidth=0.5).distances(start, later).round(2)
        array([[ 0.2, 10. ]])
        >>> ps.kernels.ShearedRBF(shear=50.0, bandwidth=[10.0, 0.5]).distances(start, later).round(2)
        array([[10.  ,  0.01]])
        """
        largest = np.zeros((len(x), len(y)))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.metadata.get("role") == "length":
                own = np.linalg.norm((x[:, None, :] - y[None, :, :]) / np.asarray(value), axis=-1)
                largest = np.maximum(largest, own)
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, Kernel):
                    largest = np.maximum(largest, part.distances(x, y))
        return largest

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

    __array_ufunc__ = None  # NumPy then leaves `number * kernel` to `__rmul__` instead of making an object array

    def on(self, *axes: int) -> Kernel:
        """Return the kernel of the given coordinates only, constant in the others.

        Examples
        --------
        >>> import pilescore as ps
        >>> time_by_space = ps.Matern(2.5, bandwidth=0.3).on(0) * ps.RBF(bandwidth=0.5).on(1, 2)
        >>> time_by_space.supports((2, 4, 4)), time_by_space.supports((3, 0, 0))
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
    """Return `∂₁^α ∂₂^β` of a smooth JAX function of two points, by nested forward-mode differentiation."""
    first, second = jnp.stack(tuple(x)), jnp.stack(tuple(y))

    def of_second(v: Array) -> Scalar:
        return partial_derivative(lambda u: function(u, v), alpha)(first)

    return partial_derivative(of_second, beta)(second)


def require_supported(kernel: Kernel, alpha: MultiIndex, beta: MultiIndex) -> None:
    """Raise a `SmoothnessError` unless the kernel has the derivatives `∂^α` and `∂^β`."""
    for index in (alpha, beta):
        if not kernel.supports(index):
            raise SmoothnessError(
                f"{kernel!r} was asked for a derivative of order {sum(index)} on one side; it supports at most "
                f"order {kernel.smoothness}"
            )


def require_coordinates(what: str, points: Float[np.ndarray, "n d"], good: bool, expected: str) -> None:
    """Raise an `InputError` that states the number of coordinates of the points, unless they are good."""
    require(good, what, f"points with {points.shape[1]} coordinates", expected)


def vanishes(value: Scalar) -> bool:
    """Whether a term vanishes identically; such terms are Python floats, while numbers that may be zero are arrays."""
    return isinstance(value, float) and value == 0.0


def total(terms: Sequence[Scalar]) -> Scalar:
    """Return the sum without terms that vanish identically; the float `0.0` if none is left."""
    present = [term for term in terms if not vanishes(term)]
    return sum(present[1:], start=present[0]) if present else 0.0


def real(argument: str, ndim: int) -> Callable[[Any], Float[Array, "..."]]:
    """Return a converter to a JAX array that requires finite numbers and `ndim` dimensions."""

    def convert(value: Any) -> Float[Array, "..."]:
        array = as_array(value, argument)
        expected = ("a number", "a vector", "a matrix")[ndim]
        require(array.ndim == ndim and array.size > 0, argument, value, expected)
        return jnp.asarray(array)

    return convert


@dataclasses.dataclass(frozen=True)
class Positive:
    """A converter to a JAX array that requires a positive number or vector; searches use the logarithm."""

    argument: str
    vector: bool = True

    def __call__(self, value: Any) -> Float[Array, "..."]:
        """Return the value as an array."""
        array = as_array(value, self.argument)
        expected = "a positive number" + (" or a vector of them, one for each coordinate" if self.vector else "")
        require(array.ndim <= int(self.vector) and array.size > 0, self.argument, value, expected)
        require(bool(np.all(array > 0)), self.argument, value, expected)
        return jnp.asarray(array)


def hyperparameter(
    role: Role, label: str = "", *, converter: Callable[[Any], Any] | None = None, **options: Any
) -> Any:
    """Declare a kernel's field that may be searched, and its role.

    Searches, starts, diagnosis and reports read the role: a `length` gets bounds from the extent of the data and both
    short and long starts, whatever the field is called.

    Parameters
    ----------
    role
        `length`, `period`, `variance` and `ratio` are positive; `angle` is in radians; `number` is any real number.
    label
        The name of the field in error messages, such as `"RBF bandwidth"`.
    converter
        Checks and converts a value to a JAX array. By default positive roles accept a positive number (or a vector, one
        for each coordinate, for lengths and periods), the others a real number.
    options
        Options of `dataclasses.field`, such as `default`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, pilescore as ps
    >>> class Exponential(ps.Kernel):
    ...     lengthscale: jax.Array = ps.kernels.hyperparameter("length", default=1.0)
    ...     smoothness = 0
    ...     def derivative(self, alpha, beta, x, y):
    ...         return jnp.exp(-abs(x[0] - y[0]) / self.lengthscale)
    >>> data = ps.observe(ps.identity, values=[0.0, 1.0], at=[0.0, 1.0])
    >>> ps.Model(Exponential(), data=data).roles["kernel.lengthscale"]
    'length'
    """
    require(role in ROLES, "role", role, f"one of {', '.join(ROLES)}")
    if converter is None:
        positive = role in ("length", "period", "variance", "ratio")
        text = label or f"a kernel's {role}"
        converter = Positive(text, vector=role in ("length", "period")) if positive else real(text, ndim=0)
    return eqx.field(converter=converter, metadata={"role": role}, **options)
