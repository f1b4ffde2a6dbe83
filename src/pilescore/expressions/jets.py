"""Functions of the point, of the unknown with its derivatives there, and of parameters that are to be inferred.

They are scalars with further coordinates: one for each derivative of the unknown (together its *jet*) and for each
parameter. Their derivatives are taken by rule, so that those of functions of the unknown are such functions again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..atoms import MultiIndex, derivative_text
from .scalars import FUNCTIONS, MAX_ORDER, Algebra, Atom, Scalar, Surroundings

MAX_OPERATIONS = 2000
"""In one evaluation of what holds the unknown, which is compiled together with its derivatives."""

Key: TypeAlias = tuple[MultiIndex | None, tuple[tuple[str, int], ...]]
"""The derivative of the unknown (None where there is no unknown), and the powers of parameters."""


class Jets(Algebra):
    """The functions of points with these coordinates, of the unknown, and of parameters."""

    def __init__(self, names: tuple[str, ...], unknown: str) -> None:
        super().__init__(names)
        self.unknown = unknown
        self._beyond: list[MultiIndex | str] = []
        """What the coordinates beyond those of the point are: derivatives of the unknown, or parameters."""

    def jet(self, alpha: MultiIndex) -> Scalar:
        """Return a derivative of the unknown."""
        symbols = derivative_text(alpha, self.names)
        bare = f"{symbols} {self.unknown}" if symbols else ""
        return self._variable(alpha, f"({bare})" if bare else self.unknown, bare)

    def parameter(self, name: str) -> Scalar:
        """Return a parameter that is to be inferred."""
        return self._variable(name, name, "")

    def jets_in(self, scalar: Scalar) -> list[MultiIndex]:
        """Return the derivatives of the unknown in it, lower ones first."""
        found = [each for each in self._variables(scalar.depends) if not isinstance(each, str)]
        return sorted(found, key=lambda alpha: (sum(alpha), [-order for order in alpha]))

    def parameters_in(self, scalar: Scalar) -> list[str]:
        """Return the names of the parameters in it."""
        return [each for each in self._variables(scalar.depends) if isinstance(each, str)]

    def total(self, scalar: Scalar, axis: int) -> Scalar:
        """Return the derivative along a coordinate of the point, with which the unknown varies too."""
        parts = [self.derivative(scalar, axis)]
        for alpha in self.jets_in(scalar):
            slope = self.derivative(scalar, self._axis(alpha))
            check_operations(slope)
            raised = self.jet(raised_index(alpha, axis))
            parts += [self.multiply(Scalar((term,)), raised) for term in slope.terms]
        return self.add(*parts)

    def sorted(self, scalar: Scalar) -> tuple[list[tuple[Key, Scalar]], Scalar]:
        """Return what is linear in the unknown with whole powers of parameters, by these, and all the rest."""
        plain: list[tuple[Key, Scalar]] = []
        rest = []
        for powers, factor in scalar.terms:
            entries = [(atom, power) for atom, power in powers if self.is_open(atom)]
            symbols = [(self._symbol(atom), power) for atom, power in entries]
            parameters = tuple(sorted((each, power) for each, power in symbols if isinstance(each, str)))
            derivatives = [each for each, power in symbols if isinstance(each, tuple) and power == 1]
            if len(parameters) + len(derivatives) < len(entries) or len(derivatives) > 1:
                rest.append((powers, factor))
                continue
            known = tuple(entry for entry in powers if not self.is_open(entry[0]))
            plain.append(((derivatives[0] if derivatives else None, parameters), Scalar(((known, factor),))))
        return plain, Scalar(tuple(rest))

    def pointwise(self, scalar: Scalar, linear: bool) -> Pointwise:
        """Return it as a function of the point, of a number to add if asked for, of its jet and of its parameters."""
        jets, names = self.jets_in(scalar), self.parameters_in(scalar)
        axes = {name: self._axis(name) for name in names}
        return Pointwise(scalar, linear, tuple(self._axis(alpha) for alpha in jets), axes)

    def _variable(self, what: MultiIndex | str, text: str, bare: str) -> Scalar:
        axis = self._axis(what)
        made = self._atom(Atom(text, frozenset([axis]), lambda p: p[axis], axis=axis, bare=bare))
        return Scalar(((((made, 1),), 1.0),))

    def _axis(self, what: MultiIndex | str) -> int:
        if what not in self._beyond:
            self._beyond.append(what)
        return len(self.names) + self._beyond.index(what)

    def _symbol(self, atom: Atom) -> MultiIndex | str | None:
        """Return the derivative of the unknown or the parameter that an atom is, if it is one."""
        return None if atom.axis is None else self._beyond[atom.axis - len(self.names)]

    def _variables(self, depends: frozenset[int]) -> Iterator[MultiIndex | str]:
        count = len(self.names)
        return (self._beyond[axis - count] for axis in sorted(depends) if axis >= count)

    def _raised(self, atom: Atom, axis: int) -> Scalar:
        """Return the derivative of an atom: by rule where it holds the unknown or a parameter."""
        if not self.is_open(atom):
            return super()._raised(atom, axis)
        base, *others = atom.parts
        inner = self.derivative(base, axis)
        if atom.function != "**":
            return self.multiply(SLOPES[atom.function](self, base), inner)
        exponent, whole = others[0], Scalar(((((atom, 1),), 1.0),))
        parts = []
        if inner.terms:
            lower = self.power(base, self.add(exponent, self.number(-1.0)))
            parts.append(self.multiply(self.multiply(exponent, lower), inner))
        growth = self.derivative(exponent, axis)
        if growth.terms:
            parts.append(self.multiply(self.multiply(whole, self.call("log", base)), growth))
        return self.add(*parts)


@dataclass(frozen=True, eq=False, repr=False)
class Pointwise:
    """A scalar as a function of one point, of the values of its jet there, and of parameters by name."""

    scalar: Scalar
    linear: bool
    """Whether the first value is added as it is."""
    jets: tuple[int, ...]
    parameters: dict[str, int]

    def __call__(self, point: Any, /, *values: Any, **parameters: Any) -> Any:
        """Return its value."""
        first, jet = (values[0], values[1:]) if self.linear else (0.0, values)
        beyond = dict(zip(self.jets, jet, strict=True))
        beyond |= {axis: parameters[name] for name, axis in self.parameters.items()}
        return first + self.scalar.compute(Surroundings(point, beyond))


def raised_index(alpha: Sequence[int], axis: int) -> MultiIndex:
    """Return the index of the derivative along an axis of a derivative."""
    if sum(alpha) >= MAX_ORDER:
        raise ArithmeticError(f"expected derivatives of order at most {MAX_ORDER}")
    return tuple(order + (i == axis) for i, order in enumerate(alpha))


def check_operations(scalar: Scalar) -> None:
    """Refuse what would take too long to compile."""
    if scalar.cost > MAX_OPERATIONS:
        raise ArithmeticError(
            f"takes more than {MAX_OPERATIONS} operations with its derivatives; expected a shorter expression"
        )


def _power(n: float, name: str = "") -> Callable[[Jets, Scalar], Scalar]:
    """Return the rule that gives a power of the argument, or of a function of it."""
    return lambda a, v: a.power(a.call(name, v) if name else v, a.number(n))


def _one_plus(factor: float, inner: Callable[[Jets, Scalar], Scalar]) -> Callable[[Jets, Scalar], Scalar]:
    return lambda a, v: a.add(a.number(1.0), a.multiply(a.number(factor), inner(a, v)))


def _times(factor: float, inner: Callable[[Jets, Scalar], Scalar]) -> Callable[[Jets, Scalar], Scalar]:
    return lambda a, v: a.multiply(a.number(factor), inner(a, v))


def _bell(a: Jets, v: Scalar) -> Scalar:
    return a.call("exp", a.multiply(a.number(-1.0), a.power(v, a.number(2.0))))


def _arc(a: Jets, v: Scalar) -> Scalar:
    return a.power(_one_plus(-1.0, _power(2.0))(a, v), a.number(-0.5))


SLOPES: dict[str, Callable[[Jets, Scalar], Scalar]] = {
    "sqrt": _times(0.5, _power(-1.0, "sqrt")),
    "exp": _power(1.0, "exp"),
    "log": _power(-1.0),
    "sin": _power(1.0, "cos"),
    "cos": _times(-1.0, _power(1.0, "sin")),
    "tan": _one_plus(1.0, _power(2.0, "tan")),
    "arcsin": _arc,
    "arccos": _times(-1.0, _arc),
    "arctan": lambda a, v: a.reciprocal(_one_plus(1.0, _power(2.0))(a, v)),
    "sinh": _power(1.0, "cosh"),
    "cosh": _power(1.0, "sinh"),
    "tanh": _one_plus(-1.0, _power(2.0, "tanh")),
    "abs": _power(1.0, "sign"),
    "erf": _times(2 / math.sqrt(math.pi), _bell),
    "sign": lambda a, v: Scalar(),
    "heaviside": lambda a, v: Scalar(),
}
"""The derivatives of functions of one number."""

assert SLOPES.keys() == FUNCTIONS.keys()
