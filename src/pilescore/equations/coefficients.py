"""The building blocks of an operator's coefficients: named numbers, and named functions with their derivatives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..errors import InputError, as_array, call, require

MultiIndex: TypeAlias = tuple[int, ...]
"""Orders of differentiation, one for each coordinate: `(2, 0)` is ∂²/∂x² in two dimensions."""

Monomial: TypeAlias = tuple[tuple[int, int], ...]
"""A product of powers of atoms: sorted pairs `(index of atom, power)` without zero powers; empty for the number one."""

Coefficient: TypeAlias = tuple[tuple[Monomial, float], ...]
"""A polynomial in the atoms: its monomials and their numerical factors."""


class Parameter(eqx.Module):
    """A named number inside an operator. All occurrences of a name are one hyperparameter."""

    name: str = eqx.field(static=True)
    value: Float[Array, ""]

    def same(self, other: Any) -> bool:
        """Whether both are the same symbol; the same name with two values raises an `InputError`."""
        if not isinstance(other, Parameter) or other.name != self.name:
            return False
        if other.value != self.value:
            raise InputError(f"parameter {self.name!r} has two values: {self.value} and {other.value}")
        return True

    def at(self, point: Array) -> Array:
        """Return the value, which is the same at every point."""
        return self.value

    def __str__(self) -> str:
        return self.name


def as_parameter(name: str, value: Any) -> Parameter:
    """Return a parameter after checking that its value is a single number."""
    number = as_array(value, f"parameter {name!r}")
    require(number.ndim == 0, f"parameter {name!r}", value, "a single number")
    return Parameter(name, jnp.asarray(number))


class CoefficientFunction(eqx.Module):
    """A known function of the coordinates inside an operator, or one of its partial derivatives."""

    name: str = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    order: MultiIndex = eqx.field(static=True)
    function: Callable[[Array], Any]

    def same(self, other: Any) -> bool:
        """Whether both are the same derivative of the same function object."""
        return isinstance(other, CoefficientFunction) and other.function is self.function and other.order == self.order

    def at(self, point: Array) -> Array:
        """Return the derivative of the function at one point."""
        value = call(partial_derivative(self.function, self.order), point, f"the function {self.name}")
        return jnp.asarray(value, dtype=float)

    def __str__(self) -> str:
        return f"({derivative_text(self.order, self.names)} {self.name})" if any(self.order) else self.name


Atom: TypeAlias = Parameter | CoefficientFunction
"""An indivisible factor of a coefficient."""


def raised(alpha: MultiIndex, axis: int, by: int = 1) -> MultiIndex:
    """Return `α + by·e_axis`."""
    return (*alpha[:axis], alpha[axis] + by, *alpha[axis + 1 :])


def leibniz_terms(alpha: MultiIndex) -> Iterator[tuple[MultiIndex, MultiIndex, int]]:
    """Yield `γ`, `α − γ` and `C(α, γ)` for all `γ ≤ α`, as in `∂^α (f g) = Σ_γ C(α, γ) ∂^γ f ∂^{α−γ} g`."""
    for gamma in itertools.product(*(range(order + 1) for order in alpha)):
        rest = tuple(a - c for a, c in zip(alpha, gamma, strict=True))
        yield gamma, rest, math.prod(map(math.comb, alpha, gamma))


def multiply_powers(first: tuple[tuple[Any, int], ...], second: tuple[tuple[Any, int], ...]) -> Any:
    """Return the product of two products of powers, sorted and without zero powers."""
    powers = dict(first)
    for symbol, power in second:
        powers[symbol] = powers.get(symbol, 0) + power
    return tuple(sorted((symbol, power) for symbol, power in powers.items() if power))


def partial_derivative(function: Callable[[Array], Any], alpha: MultiIndex) -> Callable[[Array], Any]:
    """Return the partial derivative `∂^α` of a function of one point, by nested forward-mode differentiation."""
    for axis, order in enumerate(alpha):
        for _ in range(order):
            function = _along(function, axis)
    return function


def _along(function: Callable[[Array], Any], axis: int) -> Callable[[Array], Any]:
    def derivative(point: Array) -> Any:
        return jax.jvp(function, (point,), (jnp.zeros_like(point).at[axis].set(1.0),))[1]

    return derivative


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power_text(symbol: str, power: int) -> str:
    """Return a symbol with its power as text, such as `x²`."""
    return symbol if power == 1 else symbol + str(power).translate(_SUPERSCRIPTS)


def derivative_text(alpha: MultiIndex, names: tuple[str, ...]) -> str:
    """Return a partial derivative as text, such as `∂t∂x²`."""
    return "".join(power_text(f"∂{name}", order) for name, order in zip(names, alpha, strict=False) if order)


def sum_text(terms: Iterable[tuple[float, str]]) -> str:
    """Return a sum as text; each term is given by its factor, which has the sign, and its text without a sign."""
    text = "".join(f" - {term}" if factor < 0 else f" + {term}" for factor, term in terms)
    return text[3:] if text.startswith(" + ") else f"-{text[3:]}" if text else "0"


def number_text(value: float) -> str:
    """Return a non-negative number as text; whole numbers have no decimal point."""
    return repr(int(value)) if value == int(value) and value < 1e15 else repr(value)
