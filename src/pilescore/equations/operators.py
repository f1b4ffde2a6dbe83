"""Linear differential operators and their algebra.

An operator is a finite sum `Σ_α c_α(x) ∂^α`. Each coefficient is a polynomial in *atoms*: named parameters, and
named functions of the coordinates with their derivatives. A number, a parameter or a function is itself an
operator of order zero (it multiplies), hence `*` always means composition.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..errors import InputError, as_array, as_count, check_coordinates, require
from .coefficients import (
    Atom,
    Coefficient,
    CoefficientFunction,
    Monomial,
    MultiIndex,
    Parameter,
    as_parameter,
    derivative_text,
    leibniz_terms,
    multiply_powers,
    number_text,
    partial_derivative,
    power_text,
    raised,
    sum_text,
)

RESERVED = ("kernel", "data", "physics")
"""Names that functions and parameters cannot have: they are the first parts of hyperparameter names."""


@runtime_checkable
class HasCoordinates(Protocol):
    """An object with named coordinates, such as a `Box`."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the coordinates, in order."""
        ...


class Operator(eqx.Module):
    """A linear differential operator `Σ_α c_α(x) ∂^α`.

    Build operators with `partials`, `identity`, `parameter` and `coefficient`. Combine them with `+`, `-`, `*`
    (composition; `@` is the same) and `**`, and divide by a number, a parameter or a coefficient. Numbers and
    functions of a point act as operators of order zero.

    Examples
    --------
    >>> import pilescore as ps
    >>> dt, dx = ps.partials(ps.Box(t=(0, 1), x=(0, 1)))
    >>> dt + 30 * dx
    ∂t + 30 ∂x
    >>> (dt + 30 * dx) * (dt - 30 * dx)
    ∂t² - 900 ∂x²
    >>> a = ps.coefficient(lambda p: p[1] ** 2, "a")
    >>> dx * (a * dx)
    a ∂x² + (∂x a) ∂x
    >>> dx**2 / ps.parameter("Re", 100.0)
    Re⁻¹ ∂x²
    >>> (dt + 30 * dx)(lambda p: p[0] * p[1])((2.0, 3.0)).item()  # x + 30 t
    63.0
    """

    names: tuple[str, ...] = eqx.field(static=True)
    """The names of the coordinates; empty if the operator fits any space, like `identity`."""
    terms: tuple[tuple[MultiIndex, Coefficient], ...] = eqx.field(static=True)
    """Each multi-index `α` with its coefficient, a polynomial in the atoms."""
    atoms: tuple[Atom, ...]
    """The parameters and functions in the coefficients."""

    @property
    def linear_parts(self) -> tuple[Operator, ...]:
        """The operator itself; of a nonlinear one, the linear operators that it takes."""
        return (self,)

    @property
    def order(self) -> int:
        """The highest order of differentiation."""
        return max((sum(alpha) for alpha, _ in self.terms), default=0)

    @property
    def has_parameters(self) -> bool:
        """Whether a coefficient contains a hyperparameter."""
        return any(eqx.is_array(leaf) for leaf in jax.tree.leaves(self.atoms))

    def same(self, other: Operator) -> bool:
        """Whether both have the same terms, parameters and functions, in the same order."""
        alike = self.names == other.names and self.terms == other.terms and len(self.atoms) == len(other.atoms)
        return alike and all(a.same(b) for a, b in zip(self.atoms, other.atoms, strict=True))

    def indices(self, dimension: int) -> tuple[MultiIndex, ...]:
        """Return the multi-index of each term, for points with `dimension` coordinates."""
        self.check_dimension(dimension)
        return tuple(_padded(alpha, dimension) for alpha, _ in self.terms)

    def check_dimension(self, dimension: int) -> None:
        """Raise an `InputError` unless the operator acts on functions of `dimension` coordinates."""
        good = not self.names or len(self.names) == dimension
        found = f"points with {dimension} coordinates"
        require(good, f"operator {self}", found, f"{len(self.names)} coordinates ({', '.join(self.names)})")

    def coefficients(self, points: Float[np.ndarray | Array, "n d"]) -> Float[Array, "terms n"]:
        """Return the coefficient of each term at each point."""
        count = points.shape[0]
        for atom in self.atoms:
            if isinstance(atom, CoefficientFunction) and isinstance(points, np.ndarray) and count:
                check_coordinates(atom.function, points[0], f"the function {atom.name}")
        atom_values = [jax.vmap(atom.at)(jnp.asarray(points)) for atom in self.atoms]
        for atom, values in zip(self.atoms, atom_values, strict=True):
            require(values.shape == (count,), f"the function {atom}", values, "one number at each point")
        rows = []
        for _, coefficient in self.terms:
            row = jnp.zeros(count)
            for monomial, factor in coefficient:
                value: Any = factor
                for index, power in monomial:
                    value = value * atom_values[index] ** power
                row = row + value
            rows.append(row)
        return jnp.stack(rows) if rows else jnp.zeros((0, count))

    def __call__(self, function: Callable[[Array], Any]) -> Callable[[Any], Array]:
        """Return the function `p ↦ (L f)(p)` for any JAX function `f` of one point."""

        def applied(point: Any) -> Array:
            p = jnp.asarray(point, dtype=float)
            self.check_dimension(p.shape[0])
            coefficients = self.coefficients(p[None])[:, 0]
            terms = [
                coefficients[i] * partial_derivative(function, _padded(alpha, p.shape[0]))(p)
                for i, (alpha, _) in enumerate(self.terms)
            ]
            return sum(terms, start=jnp.zeros(()))

        return applied

    def __add__(self, other: Any) -> Operator:
        second = _coerce(other)
        if second is None:
            return NotImplemented
        build = _Builder(self, second)
        for operator in (self, second):
            for alpha, coefficient in operator.terms:
                build.add(alpha, build.translated(operator, coefficient))
        return build.finish()

    def __mul__(self, other: Any) -> Operator:
        """Return the composition; the Leibniz rule differentiates the coefficients of the second operator."""
        second = _coerce(other)
        if second is None:
            return NotImplemented
        build = _Builder(self, second)
        d = len(build.names)
        for alpha, left in self.terms:
            outer = build.translated(self, left)
            for beta, right in second.terms:
                inner = build.translated(second, right)
                # ∂^α (c ∂^β f) = Σ_{γ ≤ α} C(α, γ) (∂^γ c) ∂^{β + α − γ} f
                for gamma, rest, count in leibniz_terms(_padded(alpha, d)):
                    differentiated = build.derivative(inner, gamma)
                    if differentiated:
                        index = tuple(a + b for a, b in zip(rest, _padded(beta, d), strict=True))
                        build.add(index, _multiply(_multiply((((), float(count)),), outer), differentiated))
        return build.finish()

    def __radd__(self, other: Any) -> Operator:
        first = _coerce(other)
        return NotImplemented if first is None else first + self

    def __rmul__(self, other: Any) -> Operator:
        first = _coerce(other)
        return NotImplemented if first is None else first * self

    __matmul__ = __mul__
    __rmatmul__ = __rmul__
    __array_ufunc__ = None  # NumPy then leaves `number * operator` to `__rmul__` instead of making an object array

    def __neg__(self) -> Operator:
        return -1.0 * self

    def __sub__(self, other: Any) -> Operator:
        second = _coerce(other)
        return NotImplemented if second is None else self + (-second)

    def __rsub__(self, other: Any) -> Operator:
        return other + (-self)

    def __truediv__(self, other: Any) -> Operator:
        """Return the operator divided by a number, or by a single product of parameters and functions."""
        if isinstance(other, Operator):
            return _reciprocal(other) * self
        divisor = as_array(other, "divisor of an operator")
        require(divisor.ndim == 0 and float(divisor) != 0, "divisor of an operator", other, "a non-zero number")
        return (1.0 / float(divisor)) * self

    def __rtruediv__(self, other: Any) -> Operator:
        first = _coerce(other)
        return NotImplemented if first is None else first / self

    def __pow__(self, power: Any) -> Operator:
        result = identity
        for _ in range(as_count(power, "power of an operator", least=0)):
            result = result * self
        return result

    def __repr__(self) -> str:
        terms: list[tuple[float, str]] = []
        for alpha, coefficient in self.terms:
            symbol = derivative_text(alpha, self.names) or "Id"
            for monomial, factor in coefficient:
                names = [power_text(str(self.atoms[i]), power) for i, power in monomial]
                size = [] if abs(factor) == 1 else [number_text(abs(factor))]
                terms.append((factor, " ".join([*size, *names, symbol])))
        return sum_text(terms)

    __str__ = __repr__


identity = Operator((), (((), (((), 1.0),)),), ())
"""The identity `f ↦ f`, in any number of dimensions.

Examples
--------
>>> import pilescore as ps
>>> ps.observe(ps.identity, values=[0.1, 0.4], at=[0.0, 1.0])  # measurements of the unknown itself
observe(Id at 2 points)
>>> dx, dy = ps.partials(ps.Box(x=(0, 1), y=(0, 1)))
>>> dx**2 + dy**2 + 9 * ps.identity
∂x² + ∂y² + 9 Id
"""


def partials(domain: HasCoordinates) -> tuple[Operator, ...]:
    """Return the partial derivatives `∂/∂x_i` along the coordinates of a domain, in order.

    Parameters
    ----------
    domain
        A region, or any object with the `names` of its coordinates.

    Examples
    --------
    >>> import pilescore as ps
    >>> dx, dy = ps.partials(ps.Box(x=(-1, 1), y=(-1, 1)))
    >>> dx**2 + dy**2
    ∂x² + ∂y²
    """
    names = tuple(domain.names)
    unit = (((), 1.0),)
    return tuple(
        Operator(names, ((tuple(int(i == j) for j in range(len(names))), unit),), ()) for i in range(len(names))
    )


def parameter(name: str, value: Any) -> Operator:
    """Return a named hyperparameter for use in an operator.

    Parameters
    ----------
    name
        An identifier. Operators that use the same name share the number.
    value
        The initial value.

    Examples
    --------
    >>> import pilescore as ps
    >>> dt, dx = ps.partials(ps.Box(t=(0, 1), x=(0, 1)))
    >>> dt + ps.parameter("beta", 30.0) * dx
    ∂t + beta ∂x
    """
    require(isinstance(name, str) and name.isidentifier(), "name", name, "a name such as 'beta'")
    return _multiplication(as_parameter(name, value))


def coefficient(function: Callable[[Array], Any], name: str = "c") -> Operator:
    """Return multiplication by a known function of the point: a variable coefficient of an operator.

    Parameters
    ----------
    function
        A JAX function of one point of shape (d,). Arrays inside an Equinox module become hyperparameters.
    name
        The name to print, and the first part of the names of its hyperparameters.

    Examples
    --------
    >>> import pilescore as ps
    >>> dx, dy = ps.partials(ps.Box(x=(0, 1), y=(0, 1)))
    >>> ps.coefficient(lambda p: p[0] * p[1], "a") * dx - dy
    a ∂x - ∂y
    """
    require(_is_function(function), "function", function, "a function of one point")
    good = isinstance(name, str) and name.isidentifier() and name not in RESERVED
    require(good, "name", name, f"a name such as 'a' (not {' or '.join(map(repr, RESERVED))})")
    return _multiplication(CoefficientFunction(name, (), (), function))


def _multiplication(atom: Atom) -> Operator:
    return Operator((), (((), ((((0, 1),), 1.0),)),), (atom,))


class _Builder:
    """Collects the terms of a new operator over a common list of coordinates and atoms."""

    def __init__(self, first: Operator, second: Operator) -> None:
        self.names = first.names or second.names
        if first.names and second.names and first.names != second.names:
            raise InputError(
                f"operators on different coordinates: {first} acts on ({', '.join(first.names)}), "
                f"{second} on ({', '.join(second.names)})"
            )
        self.atoms: list[Atom] = []
        self.terms: dict[MultiIndex, dict[Monomial, float]] = {}

    def index(self, atom: Atom) -> int:
        """Return the position of an atom in the common list; append the atom if it is new."""
        for i, existing in enumerate(self.atoms):
            if existing.same(atom):
                return i
        self.atoms.append(atom)
        return len(self.atoms) - 1

    def translated(self, operator: Operator, coefficient: Coefficient) -> Coefficient:
        """Return a coefficient of `operator` in terms of the common list of atoms."""
        place = {}
        for i, atom in enumerate(operator.atoms):
            if isinstance(atom, CoefficientFunction) and len(atom.order) < len(self.names):
                order = _padded(atom.order, len(self.names))
                atom = CoefficientFunction(atom.name, self.names, order, atom.function)
            place[i] = self.index(atom)
        return tuple((tuple(sorted((place[i], p) for i, p in mono)), factor) for mono, factor in coefficient)

    def add(self, alpha: MultiIndex, coefficient: Coefficient) -> None:
        row = self.terms.setdefault(_padded(alpha, len(self.names)), {})
        for monomial, factor in coefficient:
            row[monomial] = row.get(monomial, 0.0) + factor

    def derivative(self, coefficient: Coefficient, order: MultiIndex) -> Coefficient:
        """Return the derivative of a polynomial in the atoms; parameters are constants."""
        for axis, times in enumerate(order):
            for _ in range(times):
                result: dict[Monomial, float] = {}
                for monomial, factor in coefficient:
                    for i, power in monomial:
                        atom = self.atoms[i]
                        if isinstance(atom, Parameter):
                            continue
                        order_above = raised(atom.order, axis)
                        j = self.index(CoefficientFunction(atom.name, atom.names, order_above, atom.function))
                        key = multiply_powers(monomial, ((i, -1), (j, 1)))
                        result[key] = result.get(key, 0.0) + factor * power
                coefficient = tuple(result.items())
        return coefficient

    def finish(self) -> Operator:
        """Return the operator without the terms that cancelled and the atoms that are no longer used."""
        kept = {
            alpha: {monomial: factor for monomial, factor in row.items() if factor != 0}
            for alpha, row in self.terms.items()
        }
        used = sorted({i for row in kept.values() for monomial in row for i, _ in monomial})
        place = {i: position for position, i in enumerate(used)}
        terms = tuple(
            (alpha, tuple((tuple((place[i], p) for i, p in mono), factor) for mono, factor in row.items()))
            for alpha, row in kept.items()
            if row
        )
        return Operator(self.names, terms, tuple(self.atoms[i] for i in used))


def _is_function(value: Any) -> bool:
    """Whether a value is callable and not a `Nonlinear` operator, which cannot be a coefficient."""
    return callable(value) and not hasattr(value, "nonlinear_in")


def _coerce(value: Any) -> Operator | None:
    """Return a number or a function as an operator of order zero, or None if the value is neither."""
    if isinstance(value, Operator):
        return value
    if _is_function(value):
        label = getattr(value, "__name__", "c")
        return coefficient(value, label if label.isidentifier() and label not in RESERVED else "c")
    if isinstance(value, int | float | np.number | np.ndarray | Array) and np.ndim(value) == 0:
        number = float(as_array(value, "coefficient of an operator"))
        return Operator((), (((), (((), number),)),), ())
    return None


def _reciprocal(operator: Operator) -> Operator:
    """Return `1/(c a^p b^q …)` for an operator of order zero with a single monomial."""
    monomials = [(alpha, *entry) for alpha, coefficient in operator.terms for entry in coefficient]
    good = len(monomials) == 1 and operator.order == 0
    expected = 'a non-zero number, or one product of parameters and functions such as ps.parameter("Re", 100.0)'
    require(good, "divisor of an operator", operator, expected)
    ((alpha, monomial, factor),) = monomials
    inverse = tuple((i, -power) for i, power in monomial)
    return Operator(operator.names, ((alpha, ((inverse, 1.0 / factor),)),), operator.atoms)


def _multiply(first: Coefficient, second: Coefficient) -> Coefficient:
    result: dict[Monomial, float] = {}
    for (mono, factor), (other, times) in itertools.product(first, second):
        key = multiply_powers(mono, other)
        result[key] = result.get(key, 0.0) + factor * times
    return tuple(result.items())


def _padded(alpha: MultiIndex, dimension: int) -> MultiIndex:
    return alpha + (0,) * (dimension - len(alpha))
