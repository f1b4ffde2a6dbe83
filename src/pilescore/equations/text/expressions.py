"""Symbolic expressions of the point: sums of products of powers, kept as written and never multiplied out.

An `Expression` is `Σ c Π f^p` over *factors* `f`: coordinates, named constants and functions, calls, sums in brackets,
derivatives. Equal factors of one `Algebra` are one object. An operation without a result raises an `ArithmeticError`;
its message continues "'…' at column 3: ".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..coefficients import MultiIndex, derivative_text, number_text, power_text, raised, sum_text
from .parser import MAX_DEPTH

MAX_ORDER = 8
"""The highest order of a derivative."""
MAX_POWER = 1000
"""The largest integer power."""
MAX_COST = 10_000
"""The largest number of operations in one evaluation of a factor."""

Powers: TypeAlias = "tuple[tuple[Factor, int], ...]"

FUNCTIONS: dict[str, tuple[Callable[[float], float], Callable[[Any], Any]]] = {
    "sqrt": (math.sqrt, jnp.sqrt),
    "exp": (math.exp, jnp.exp),
    "log": (math.log, jnp.log),
    "sin": (math.sin, jnp.sin),
    "cos": (math.cos, jnp.cos),
    "tan": (math.tan, jnp.tan),
    "arcsin": (math.asin, jnp.arcsin),
    "arccos": (math.acos, jnp.arccos),
    "arctan": (math.atan, jnp.arctan),
    "sinh": (math.sinh, jnp.sinh),
    "cosh": (math.cosh, jnp.cosh),
    "tanh": (math.tanh, jnp.tanh),
    "abs": (abs, jnp.abs),
    "erf": (math.erf, jax.scipy.special.erf),
    "sign": (lambda v: float((v > 0) - (v < 0)), jnp.sign),
    "heaviside": (lambda v: (1 + (v > 0) - (v < 0)) / 2, lambda v: jnp.heaviside(v, 0.5)),
}
"""Functions of one number: a version for Python floats, and one for JAX."""


@dataclass(frozen=True, eq=False, repr=False)
class ExtendedPoint:
    """A point with further coordinates: the derivatives of the unknown and the parameters."""

    point: Any
    beyond: Mapping[int, Any]

    def __getitem__(self, axis: int) -> Any:
        return self.beyond[axis] if axis in self.beyond else self.point[axis]


@dataclass(frozen=True, eq=False, repr=False)
class Factor:
    """An indivisible function of the point; calling it with one point returns a JAX number."""

    text: str
    """The text, which can be followed by a power."""
    depends: frozenset[int]
    """The axes along which the factor may vary."""
    compute: Callable[[Any], Any]
    value: float | None = None
    """The value of a constant."""
    cost: int = 1
    depth: int = 1
    axis: int | None = None
    """The axis of a coordinate."""
    inside: Expression | None = None
    """The sum inside a bracket."""
    of: Factor | None = None
    """The function whose derivative this is."""
    order: MultiIndex = ()
    """The order of that derivative."""
    bare: str = ""
    """A shorter text, which can only end a product."""
    function: str = ""
    """The name of a called function, or `**`."""
    arguments: tuple[Expression, ...] = ()
    """The arguments of the call, or the base and the exponent of the power."""

    def __call__(self, point: Any) -> Array:
        """Return the value at one point."""
        return jnp.asarray(self.compute(jnp.asarray(point, dtype=float)), dtype=float)


@dataclass(frozen=True, eq=False, repr=False)
class Expression:
    """A sum of products of powers of factors, each with a numerical coefficient, in the order of writing."""

    terms: tuple[tuple[Powers, float], ...] = ()

    @property
    def factors(self) -> list[Factor]:
        """The factors of all terms."""
        return [factor for powers, _ in self.terms for factor, _ in powers]

    @property
    def depends(self) -> frozenset[int]:
        """The axes along which the expression may vary."""
        return frozenset().union(*(factor.depends for factor in self.factors))

    @property
    def cost(self) -> int:
        """The approximate number of operations of one evaluation."""
        return len(self.terms) + sum(factor.cost for factor in self.factors)

    @property
    def depth(self) -> int:
        """The number of levels of nested functions."""
        return max((factor.depth for factor in self.factors), default=0)

    @property
    def value(self) -> float | None:
        """The value of a constant expression; None if it depends on the point."""
        if any(factor.value is None for factor in self.factors):
            return None
        return finite(lambda: math.fsum(number * _product(powers) for powers, number in self.terms))

    @property
    def text(self) -> str:
        """The sum in mathematical notation."""
        return sum_text((number, _monomial_text(powers, abs(number))) for powers, number in self.terms)

    @property
    def bracketed(self) -> str:
        """The text, in brackets unless it is a single symbol or number."""
        whole = not self.terms or (len(self.terms) == 1 and self.terms[0][1] >= 0 and not self.terms[0][0])
        single = len(self.terms) == 1 and self.terms[0][1] == 1 and [p for _, p in self.terms[0][0]] == [1]
        if single:
            return self.terms[0][0][0][0].text
        return self.text if whole else f"({self.text})"

    def compute(self, point: Any) -> Any:
        """Return the value at one point, a JAX array."""
        total: Any = 0.0
        for powers, number in self.terms:
            value: Any = number
            for factor, power in powers:
                value = value * factor.compute(point) ** power
            total = total + value
        return total


def _real(value: Any) -> float:
    if isinstance(value, complex) or not math.isfinite(value):
        raise ArithmeticError("is not a finite number")
    return float(value)


def finite(compute: Callable[[], Any]) -> float:
    """Return a computed number; raise an `ArithmeticError` unless it is real and finite."""
    try:
        return _real(compute())
    except (ArithmeticError, ValueError):
        raise ArithmeticError("is not a finite number") from None


def _product(powers: Powers) -> float:
    """Return the product of the constant factors."""
    return math.prod((factor.value**power for factor, power in powers if factor.value is not None), start=1.0)


def _monomial_text(powers: Powers, size: float) -> str:
    above = [power_text(factor.text, power) for factor, power in powers if power > 0 and not factor.bare]
    below = [power_text(factor.text, -power) for factor, power in powers if power < 0]
    last = [(factor, power) for factor, power in powers if power > 0 and factor.bare]
    ends = len(last) == 1 and last[0][1] == 1 and not below
    above += [factor.bare if ends else power_text(factor.text, power) for factor, power in last]
    if size != 1 or not above:
        above = [number_text(size), *above]
    divisor = below[0] if len(below) == 1 else f"({' '.join(below)})"
    return " ".join(above) + (f"/{divisor}" if below else "")


class Algebra:
    """The arithmetic and calculus of expressions of points with the given coordinates."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._factors: dict[str, Factor] = {}

    def number(self, value: float | int) -> Expression:
        """Return a constant."""
        value = finite(lambda: float(value))
        return Expression((((), value),)) if value else Expression()

    def constant(self, name: str, value: float) -> Expression:
        """Return a constant that prints as its name."""
        return single(self._shared(Factor(name, frozenset(), lambda p: value, value)))

    def coordinate(self, axis: int) -> Expression:
        """Return a coordinate."""
        return single(self._shared(Factor(self.names[axis], frozenset([axis]), lambda p: p[axis], axis=axis)))

    def named(self, name: str, expression: Expression) -> Expression:
        """Return an expression that prints as its name."""
        return self._wrapped(name, expression.compute, [expression], expression.value, "")

    def call(self, name: str, argument: Expression) -> Expression:
        """Return one of `FUNCTIONS` of an argument."""
        number, function = FUNCTIONS[name]
        inner = argument.value
        value = None if inner is None else finite(lambda: number(inner))
        text = f"{name}({argument.text})"
        return self._wrapped(text, lambda p: function(argument.compute(p)), [argument], value, name)

    def add(self, *summands: Expression) -> Expression:
        """Return the sum, with like terms collected."""
        total: dict[frozenset[tuple[Factor, int]], tuple[Powers, float]] = {}
        for powers, number in (term for summand in summands for term in summand.terms):
            key = frozenset(powers)
            first, before = total.get(key, (powers, 0.0))
            total[key] = first, _real(before + number)
        return Expression(tuple((powers, number) for powers, number in total.values() if number))

    def multiply(self, first: Expression, second: Expression) -> Expression:
        """Return the product; a sum stays a sum, in brackets."""
        for one, other in ((first, second), (second, first)):
            if len(one.terms) == 1 and not one.terms[0][0]:
                return self._scaled(other, one.terms[0][1])
        if first.value == 0 or second.value == 0:
            return Expression()
        (left, a), (right, b) = self._single_term(first), self._single_term(second)
        product = dict(left)
        for factor, power in right:
            product[factor] = product.get(factor, 0) + power
        return Expression(((_checked(product.items()), _real(a * b)),))

    def power(self, base: Expression, exponent: Expression) -> Expression:
        """Return a power; integer powers of sums are not multiplied out."""
        n, value = exponent.value, base.value
        if n is not None and value is not None and not base.factors:
            return self.number(finite(lambda: value**n))
        if n is not None and n == math.floor(n):
            if abs(n) > MAX_POWER:
                raise ArithmeticError(f"expected integer powers between -{MAX_POWER} and {MAX_POWER}")
            if n == 0:
                return self.number(1.0)
            if value == 0:
                return self.number(finite(lambda: 0.0**n))
            powers, number = self._single_term(base)
            integer = int(n)
            product = _checked((factor, p * integer) for factor, p in powers)
            return Expression(((product, finite(lambda: number**integer)),))
        fixed = None if n is None or value is None else finite(lambda: value**n)
        text = f"({base.bracketed}^{exponent.bracketed})"

        def compute(point: Any) -> Any:
            return jnp.power(base.compute(point), exponent.compute(point) if n is None else n)

        return self._wrapped(text, compute, [base, exponent], fixed, "**")

    def reciprocal(self, expression: Expression) -> Expression:
        """Return `1 / expression`."""
        if expression.value == 0:
            raise ArithmeticError("divides by zero")
        return self.power(expression, self.number(-1.0))

    def derivative(self, expression: Expression, axis: int) -> Expression:
        """Return the derivative along an axis.

        Sums and powers are differentiated by rule. Products of several factors that vary along the axis are
        differentiated automatically as one function, which keeps repeated derivatives short.
        """
        terms: list[Expression] = []
        for powers, number in expression.terms:
            varying = tuple((factor, power) for factor, power in powers if axis in factor.depends)
            if len(varying) > 1 and not any(self.is_open(factor) for factor, _ in varying):
                outer = Expression(((tuple(entry for entry in powers if entry not in varying), number),))
                inner = self._factor_derivative(self._bracket(Expression(((varying, 1.0),))), axis)
                terms.append(self.multiply(outer, inner))
                continue
            for factor, power in varying:
                lowered = [(each, p - (each is factor)) for each, p in powers]
                outer = Expression(((_checked(lowered), number * power),))
                terms.append(self.multiply(outer, self._inner_derivative(factor, axis)))
        return self.add(*terms)

    def is_open(self, factor: Factor) -> bool:
        """Whether a factor contains the unknown or a parameter, and is therefore differentiated by rule only."""
        return any(axis >= len(self.names) for axis in factor.depends)

    def factorised(self, expression: Expression) -> tuple[float, Powers]:
        """Return a nonzero expression as a number times powers of factors that vary."""
        if expression.value is not None:
            return expression.value, ()
        powers, number = self._single_term(expression)
        fixed = finite(lambda: number * _product(powers))
        return fixed, tuple((factor, power) for factor, power in powers if factor.value is None)

    def _inner_derivative(self, factor: Factor, axis: int) -> Expression:
        if factor.axis is not None:
            return self.number(1.0)
        return self.derivative(factor.inside, axis) if factor.inside else self._factor_derivative(factor, axis)

    def _factor_derivative(self, factor: Factor, axis: int) -> Expression:
        """Return the derivative of a factor as a new factor, by automatic differentiation."""
        base = factor if factor.of is None else factor.of
        order = raised_order(factor.order or (0,) * len(self.names), axis)

        def compute(point: Any) -> Any:
            at = point.point if isinstance(point, ExtendedPoint) else point
            return jax.jvp(factor, (at,), (jnp.zeros_like(at).at[axis].set(1.0),))[1]

        text = f"({derivative_text(order, self.names)} {base.text})"
        # A forward-mode derivative costs about twice the function, and adds about five levels of tracing.
        cost, depth = 2 * factor.cost + 1, factor.depth + 5
        return single(self._shared(Factor(text, base.depends, compute, None, cost, depth, of=base, order=order)))

    def _scaled(self, expression: Expression, by: float) -> Expression:
        return Expression(tuple((powers, _real(number * by)) for powers, number in expression.terms))

    def _single_term(self, expression: Expression) -> tuple[Powers, float]:
        """Return a nonzero expression as one term; a sum becomes a bracket with its sign in front."""
        if len(expression.terms) == 1:
            return expression.terms[0]
        sign = math.copysign(1.0, expression.terms[0][1])
        return ((self._bracket(self._scaled(expression, sign)), 1),), sign

    def _bracket(self, expression: Expression) -> Factor:
        factor = _enclosing(f"({expression.text})", expression.compute, [expression], expression.value)
        return self._shared(dataclasses.replace(factor, inside=expression if len(expression.terms) > 1 else None))

    def _wrapped(
        self, text: str, compute: Callable[[Any], Any], arguments: list[Expression], value: float | None, function: str
    ) -> Expression:
        factor = _enclosing(text, compute, arguments, value)
        return single(self._shared(dataclasses.replace(factor, function=function, arguments=tuple(arguments))))

    def _shared(self, new: Factor) -> Factor:
        """Return the factor with the same text if there is one, so that equal factors are one object."""
        if new.cost > MAX_COST:
            raise ArithmeticError(f"needs more than {MAX_COST} operations; use a shorter expression")
        if new.depth > MAX_DEPTH:
            raise ArithmeticError(f"nests functions more than {MAX_DEPTH} levels deep, including named functions")
        return self._factors.setdefault(new.text, new)


def _enclosing(text: str, compute: Callable[[Any], Any], arguments: list[Expression], value: float | None) -> Factor:
    """Return a factor made of expressions."""
    depends = frozenset[int]().union(*(argument.depends for argument in arguments))
    cost, depth = 1 + sum(argument.cost for argument in arguments), 1 + max(argument.depth for argument in arguments)
    factor = Factor(text, depends, compute, value, cost, depth)
    return factor if value is None else dataclasses.replace(factor, compute=lambda p: value, cost=1)


def raised_order(alpha: MultiIndex, axis: int) -> MultiIndex:
    """Return `α + e_axis`, the index of one more derivative; raise an `ArithmeticError` if its order is too high."""
    if sum(alpha) >= MAX_ORDER:
        raise ArithmeticError(f"expected derivatives of order at most {MAX_ORDER}")
    return raised(alpha, axis)


def single(factor: Factor) -> Expression:
    """Return a factor as an expression."""
    return Expression(((((factor, 1),), 1.0),))


def _checked(powers: Iterable[tuple[Factor, int]]) -> Powers:
    """Return the nonzero powers; raise an `ArithmeticError` if one is too large."""
    kept = tuple((factor, power) for factor, power in powers if power)
    if any(abs(power) > MAX_POWER for _, power in kept):
        raise ArithmeticError(f"expected integer powers between -{MAX_POWER} and {MAX_POWER}")
    return kept
