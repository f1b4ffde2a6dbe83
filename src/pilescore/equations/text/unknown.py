"""Expressions that contain the unknown: its derivatives at the point (its *jet*), and inferred parameters.

They are expressions with further coordinates, one for each derivative of the unknown and for each parameter. They are
differentiated by rule; a derivative of such an expression is therefore such an expression again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..coefficients import MultiIndex, derivative_text
from .expressions import FUNCTIONS, Algebra, Expression, ExtendedPoint, Factor, raised_order, single

MAX_OPERATIONS = 2000
"""The largest number of operations in an expression of the unknown, which is compiled with its derivatives."""

Key: TypeAlias = tuple[MultiIndex | None, tuple[tuple[str, int], ...]]
"""What a known function multiplies: a derivative of the unknown (None if there is none), and powers of parameters."""


class UnknownAlgebra(Algebra):
    """The algebra of expressions of the point, the unknown with its derivatives, and inferred parameters."""

    def __init__(self, names: tuple[str, ...], unknown: str) -> None:
        super().__init__(names)
        self.unknown = unknown
        self._beyond: list[MultiIndex | str] = []
        """The coordinates beyond those of the point: derivatives of the unknown, or names of parameters."""

    def jet(self, alpha: MultiIndex) -> Expression:
        """Return a derivative of the unknown."""
        symbols = derivative_text(alpha, self.names)
        bare = f"{symbols} {self.unknown}" if symbols else ""
        return self._variable(alpha, f"({bare})" if bare else self.unknown, bare)

    def parameter(self, name: str) -> Expression:
        """Return an inferred parameter."""
        return self._variable(name, name, "")

    def jets_in(self, expression: Expression) -> list[MultiIndex]:
        """Return the derivatives of the unknown in an expression, low orders first."""
        jets = [variable for variable in self._variables(expression.depends) if not isinstance(variable, str)]
        return sorted(jets, key=lambda alpha: (sum(alpha), [-order for order in alpha]))

    def parameters_in(self, expression: Expression) -> list[str]:
        """Return the names of the parameters in an expression."""
        return [variable for variable in self._variables(expression.depends) if isinstance(variable, str)]

    def total(self, expression: Expression, axis: int) -> Expression:
        """Return the total derivative along a coordinate, by the chain rule through the unknown."""
        terms = [self.derivative(expression, axis)]
        for alpha in self.jets_in(expression):
            slope = self.derivative(expression, self._axis(alpha))
            check_operations(slope)
            higher = self.jet(raised_order(alpha, axis))
            terms += [self.multiply(Expression((term,)), higher) for term in slope.terms]
        return self.add(*terms)

    def split(self, expression: Expression) -> tuple[list[tuple[Key, Expression]], Expression]:
        """Return the terms linear in the unknown with integer powers of parameters, and the remaining terms."""
        linear: list[tuple[Key, Expression]] = []
        rest = []
        for powers, number in expression.terms:
            open_powers = [(factor, power) for factor, power in powers if self.is_open(factor)]
            symbols = [(self._symbol(factor), power) for factor, power in open_powers]
            parameters = tuple(sorted((symbol, power) for symbol, power in symbols if isinstance(symbol, str)))
            derivatives = [symbol for symbol, power in symbols if isinstance(symbol, tuple) and power == 1]
            if len(parameters) + len(derivatives) < len(open_powers) or len(derivatives) > 1:
                rest.append((powers, number))
                continue
            known = tuple(entry for entry in powers if not self.is_open(entry[0]))
            linear.append(((derivatives[0] if derivatives else None, parameters), Expression(((known, number),))))
        return linear, Expression(tuple(rest))

    def pointwise(self, expression: Expression, with_linear: bool) -> Pointwise:
        """Return an expression as a function for `Nonlinear`."""
        jets, names = self.jets_in(expression), self.parameters_in(expression)
        axes = {name: self._axis(name) for name in names}
        return Pointwise(expression, with_linear, tuple(self._axis(alpha) for alpha in jets), axes)

    def _variable(self, variable: MultiIndex | str, text: str, bare: str) -> Expression:
        axis = self._axis(variable)
        return single(self._shared(Factor(text, frozenset([axis]), lambda p: p[axis], axis=axis, bare=bare)))

    def _axis(self, variable: MultiIndex | str) -> int:
        if variable not in self._beyond:
            self._beyond.append(variable)
        return len(self.names) + self._beyond.index(variable)

    def _symbol(self, factor: Factor) -> MultiIndex | str | None:
        """Return the derivative of the unknown or the parameter that a factor is, or None if it is neither."""
        return None if factor.axis is None else self._beyond[factor.axis - len(self.names)]

    def _variables(self, depends: frozenset[int]) -> Iterator[MultiIndex | str]:
        count = len(self.names)
        return (self._beyond[axis - count] for axis in sorted(depends) if axis >= count)

    def _factor_derivative(self, factor: Factor, axis: int) -> Expression:
        """Return the derivative of a factor, by rule if it contains the unknown or a parameter."""
        if not self.is_open(factor):
            return super()._factor_derivative(factor, axis)
        base, *others = factor.arguments
        inner = self.derivative(base, axis)
        if factor.function != "**":
            return self.multiply(DERIVATIVES[factor.function](self, base), inner)
        # (b^e)' = e b^{e−1} b' + b^e log(b) e', without the parts that vanish: log(b) may not exist.
        exponent = others[0]
        terms = []
        if inner.terms:
            lower = self.power(base, self.add(exponent, self.number(-1.0)))
            terms.append(self.multiply(self.multiply(exponent, lower), inner))
        growth = self.derivative(exponent, axis)
        if growth.terms:
            terms.append(self.multiply(self.multiply(single(factor), self.call("log", base)), growth))
        return self.add(*terms)


@dataclass(frozen=True, eq=False, repr=False)
class Pointwise:
    """An expression as a function of one point, the values of its jet there, and parameters by name."""

    expression: Expression
    with_linear: bool
    """Whether the first value is that of a linear operator, to be added to the expression."""
    jets: tuple[int, ...]
    parameters: dict[str, int]

    def __call__(self, point: Any, /, *values: Any, **parameters: Any) -> Any:
        """Return the value."""
        first, jet = (values[0], values[1:]) if self.with_linear else (0.0, values)
        beyond = dict(zip(self.jets, jet, strict=True))
        beyond |= {axis: parameters[name] for name, axis in self.parameters.items()}
        return first + self.expression.compute(ExtendedPoint(point, beyond))


def check_operations(expression: Expression) -> None:
    """Raise an `ArithmeticError` if an expression would take too long to compile."""
    if expression.cost > MAX_OPERATIONS:
        raise ArithmeticError(
            f"needs more than {MAX_OPERATIONS} operations with its derivatives; use a shorter expression"
        )


DerivativeRule: TypeAlias = Callable[[UnknownAlgebra, Expression], Expression]


def _power(n: float, name: str = "") -> DerivativeRule:
    """Return the rule `v ↦ vⁿ`, or `v ↦ name(v)ⁿ`."""
    return lambda a, v: a.power(a.call(name, v) if name else v, a.number(n))


def _one_plus(factor: float, inner: DerivativeRule) -> DerivativeRule:
    return lambda a, v: a.add(a.number(1.0), a.multiply(a.number(factor), inner(a, v)))


def _times(factor: float, inner: DerivativeRule) -> DerivativeRule:
    return lambda a, v: a.multiply(a.number(factor), inner(a, v))


def _gaussian(a: UnknownAlgebra, v: Expression) -> Expression:
    return a.call("exp", a.multiply(a.number(-1.0), a.power(v, a.number(2.0))))


def _arcsin_slope(a: UnknownAlgebra, v: Expression) -> Expression:
    return a.power(_one_plus(-1.0, _power(2.0))(a, v), a.number(-0.5))


DERIVATIVES: dict[str, DerivativeRule] = {
    "sqrt": _times(0.5, _power(-1.0, "sqrt")),
    "exp": _power(1.0, "exp"),
    "log": _power(-1.0),
    "sin": _power(1.0, "cos"),
    "cos": _times(-1.0, _power(1.0, "sin")),
    "tan": _one_plus(1.0, _power(2.0, "tan")),
    "arcsin": _arcsin_slope,
    "arccos": _times(-1.0, _arcsin_slope),
    "arctan": lambda a, v: a.reciprocal(_one_plus(1.0, _power(2.0))(a, v)),
    "sinh": _power(1.0, "cosh"),
    "cosh": _power(1.0, "sinh"),
    "tanh": _one_plus(-1.0, _power(2.0, "tanh")),
    "abs": _power(1.0, "sign"),
    "erf": _times(2 / math.sqrt(math.pi), _gaussian),
    "sign": lambda a, v: Expression(),
    "heaviside": lambda a, v: Expression(),
}
"""The derivatives of the functions of one number."""

assert DERIVATIVES.keys() == FUNCTIONS.keys()
