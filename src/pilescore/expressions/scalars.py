"""Known functions of a point, kept as written: sums of products of powers, never multiplied out.

A `Scalar` is `Σ c Π a^p` over *atoms*: coordinates, named constants and functions, calls, sums in brackets,
derivatives. Equal atoms of one `Algebra` are one object. What cannot be computed raises an `ArithmeticError`
whose message goes on from "… at column 3: ".
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

from ..atoms import MultiIndex, number_text, power_text
from .grammar import MAX_DEPTH

MAX_ORDER = 8
"""Of derivatives."""
MAX_POWER = 1000
"""Of whole powers."""
MAX_COST = 10_000
"""Operations in one evaluation of an atom."""

Powers: TypeAlias = "tuple[tuple[Atom, int], ...]"

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
"""Functions of one number: for numbers, and for JAX."""


@dataclass(frozen=True, eq=False, repr=False)
class Surroundings:
    """A point together with numbers that count as further coordinates of it."""

    point: Any
    beyond: Mapping[int, Any]

    def __getitem__(self, axis: int) -> Any:
        return self.beyond[axis] if axis in self.beyond else self.point[axis]


@dataclass(frozen=True, eq=False, repr=False)
class Atom:
    """A function of the point that is not taken apart; called with one point, it returns a JAX number.

    `text` can be followed by a power as it is; `bare` is shorter and can end a product. `depends` holds the axes it may
    vary along; `value` is its value where there are none. `inside` is the sum of an atom in brackets, `of` and `order`
    are those of a derivative, `function` and `parts` those of a call or a power.
    """

    text: str
    depends: frozenset[int]
    compute: Callable[[Any], Any]
    value: float | None = None
    cost: int = 1
    depth: int = 1
    axis: int | None = None
    inside: Scalar | None = None
    of: Atom | None = None
    order: MultiIndex = ()
    bare: str = ""
    function: str = ""
    parts: tuple[Scalar, ...] = ()

    def __call__(self, point: Any) -> Array:
        """Return the value at one point."""
        return jnp.asarray(self.compute(jnp.asarray(point, dtype=float)), dtype=float)


@dataclass(frozen=True, eq=False, repr=False)
class Scalar:
    """A sum of monomials in atoms with their factors, in the order they were written."""

    terms: tuple[tuple[Powers, float], ...] = ()

    @property
    def atoms(self) -> list[Atom]:
        """The atoms in it."""
        return [atom for powers, _ in self.terms for atom, _ in powers]

    @property
    def depends(self) -> frozenset[int]:
        """The axes along which it may vary."""
        return frozenset().union(*(atom.depends for atom in self.atoms))

    @property
    def cost(self) -> int:
        """How many operations it takes, about."""
        return len(self.terms) + sum(atom.cost for atom in self.atoms)

    @property
    def depth(self) -> int:
        """How many levels of functions of functions it has."""
        return max((atom.depth for atom in self.atoms), default=0)

    @property
    def value(self) -> float | None:
        """Its value where it does not depend on the point."""
        if any(atom.value is None for atom in self.atoms):
            return None
        return finite(lambda: math.fsum(factor * _product(powers) for powers, factor in self.terms))

    @property
    def text(self) -> str:
        """The sum as mathematical text."""
        pieces: list[str] = []
        for powers, factor in self.terms:
            sign = ("-" if factor < 0 else "") if not pieces else (" - " if factor < 0 else " + ")
            pieces.append(sign + _monomial(powers, abs(factor)))
        return "".join(pieces) or "0"

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
        for powers, factor in self.terms:
            value: Any = factor
            for atom, power in powers:
                value = value * atom.compute(point) ** power
            total = total + value
        return total


def _real(value: Any) -> float:
    if isinstance(value, complex) or not math.isfinite(value):
        raise ArithmeticError("is not a finite number")
    return float(value)


def finite(compute: Callable[[], Any]) -> float:
    """Return a number, or raise if there is none."""
    try:
        return _real(compute())
    except (ArithmeticError, ValueError):
        raise ArithmeticError("is not a finite number") from None


def _product(powers: Powers) -> float:
    """Return the product of the constants among powers of atoms."""
    product = 1.0
    for atom, power in powers:
        product *= 1.0 if atom.value is None else atom.value**power
    return product


def _monomial(powers: Powers, size: float) -> str:
    above = [power_text(atom.text, power) for atom, power in powers if power > 0 and not atom.bare]
    below = [power_text(atom.text, -power) for atom, power in powers if power < 0]
    last = [(atom, power) for atom, power in powers if power > 0 and atom.bare]
    ends = len(last) == 1 and last[0][1] == 1 and not below
    above += [atom.bare if ends else power_text(atom.text, power) for atom, power in last]
    if size != 1 or not above:
        above = [number_text(size), *above]
    divisor = below[0] if len(below) == 1 else f"({' '.join(below)})"
    return " ".join(above) + (f"/{divisor}" if below else "")


class Algebra:
    """The known functions of points with these coordinates."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._atoms: dict[str, Atom] = {}

    def number(self, value: float | int) -> Scalar:
        """Return a constant."""
        value = finite(lambda: float(value))
        return Scalar((((), value),)) if value else Scalar()

    def constant(self, name: str, value: float) -> Scalar:
        """Return a constant that prints by its name."""
        return _single(self._atom(Atom(name, frozenset(), lambda p: value, value)))

    def coordinate(self, axis: int) -> Scalar:
        """Return a coordinate."""
        return _single(self._atom(Atom(self.names[axis], frozenset([axis]), lambda p: p[axis], axis=axis)))

    def named(self, name: str, scalar: Scalar) -> Scalar:
        """Return a function that prints by its name."""
        return self._wrapped(name, scalar.compute, [scalar], scalar.value, "")

    def call(self, name: str, argument: Scalar) -> Scalar:
        """Return one of `FUNCTIONS` of an argument."""
        number, function = FUNCTIONS[name]
        inner = argument.value
        value = None if inner is None else finite(lambda: number(inner))
        text = f"{name}({argument.text})"
        return self._wrapped(text, lambda p: function(argument.compute(p)), [argument], value, name)

    def add(self, *parts: Scalar) -> Scalar:
        """Return the sum, with what is alike in one term."""
        total: dict[frozenset[tuple[Atom, int]], tuple[Powers, float]] = {}
        for powers, factor in (term for part in parts for term in part.terms):
            key = frozenset(powers)
            known, before = total.get(key, (powers, 0.0))
            total[key] = known, _real(before + factor)
        return Scalar(tuple((powers, factor) for powers, factor in total.values() if factor))

    def multiply(self, first: Scalar, second: Scalar) -> Scalar:
        """Return the product; a sum stays a sum, in brackets."""
        for one, other in ((first, second), (second, first)):
            if len(one.terms) == 1 and not one.terms[0][0]:
                return self._scaled(other, one.terms[0][1])
        if first.value == 0 or second.value == 0:
            return Scalar()
        (left, a), (right, b) = self._single_term(first), self._single_term(second)
        together = dict(left)
        for atom, power in right:
            together[atom] = together.get(atom, 0) + power
        return Scalar(((_checked(together.items()), _real(a * b)),))

    def power(self, base: Scalar, exponent: Scalar) -> Scalar:
        """Return a power; a whole one of a sum is not multiplied out."""
        n, value = exponent.value, base.value
        if n is not None and value is not None and not base.atoms:
            return self.number(finite(lambda: value**n))
        if n is not None and n == math.floor(n):
            if abs(n) > MAX_POWER:
                raise ArithmeticError(f"expected whole powers between -{MAX_POWER} and {MAX_POWER}")
            if n == 0:
                return self.number(1.0)
            if value == 0:
                return self.number(finite(lambda: 0.0**n))
            powers, factor = self._single_term(base)
            whole = int(n)
            return Scalar(((_checked((atom, p * whole) for atom, p in powers), finite(lambda: factor**whole)),))
        fixed = None if n is None or value is None else finite(lambda: value**n)
        text = f"({base.bracketed}^{exponent.bracketed})"

        def compute(point: Any) -> Any:
            return jnp.power(base.compute(point), exponent.compute(point) if n is None else n)

        return self._wrapped(text, compute, [base, exponent], fixed, "**")

    def reciprocal(self, scalar: Scalar) -> Scalar:
        """Return one over a function."""
        if scalar.value == 0:
            raise ArithmeticError("divides by zero, and is not a finite number")
        return self.power(scalar, self.number(-1.0))

    def derivative(self, scalar: Scalar, axis: int) -> Scalar:
        """Return the derivative along an axis: by rule for sums and powers, else by automatic differentiation."""
        parts: list[Scalar] = []
        for powers, factor in scalar.terms:
            inner = tuple((atom, power) for atom, power in powers if axis in atom.depends)
            if len(inner) > 1 and not any(self.is_open(atom) for atom, _ in inner):
                outer = Scalar(((tuple(entry for entry in powers if entry not in inner), factor),))
                moved = self._raised(self._bracket(Scalar(((inner, 1.0),))), axis)
                parts.append(self.multiply(outer, moved))
                continue
            for atom, power in inner:
                lowered = [(each, p - (each is atom)) for each, p in powers]
                outer = Scalar(((_checked(lowered), factor * power),))
                parts.append(self.multiply(outer, self._atom_derivative(atom, axis)))
        return self.add(*parts)

    def is_open(self, atom: Atom) -> bool:
        """Whether an atom holds more than the point, so that its derivatives are taken by rule alone."""
        return any(axis >= len(self.names) for axis in atom.depends)

    def factors(self, scalar: Scalar) -> tuple[float, Powers]:
        """Return a scalar that is not zero as a number times powers of atoms that vary."""
        if scalar.value is not None:
            return scalar.value, ()
        powers, factor = self._single_term(scalar)
        fixed = finite(lambda: factor * _product(powers))
        return fixed, tuple((atom, power) for atom, power in powers if atom.value is None)

    def _atom_derivative(self, atom: Atom, axis: int) -> Scalar:
        if atom.axis is not None:
            return self.number(1.0)
        return self.derivative(atom.inside, axis) if atom.inside is not None else self._raised(atom, axis)

    def _raised(self, atom: Atom, axis: int) -> Scalar:
        """Return the derivative of an atom as an atom."""
        base = atom if atom.of is None else atom.of
        order = tuple(o + (i == axis) for i, o in enumerate(atom.order or (0,) * len(self.names)))
        if sum(order) > MAX_ORDER:
            raise ArithmeticError(f"expected derivatives of order at most {MAX_ORDER}")
        symbols = "".join(power_text(f"∂{name}", o) for name, o in zip(self.names, order, strict=True) if o)

        def compute(point: Any) -> Any:
            at = point.point if isinstance(point, Surroundings) else point
            return jax.jvp(atom, (at,), (jnp.zeros_like(at).at[axis].set(1.0),))[1]

        text = f"({symbols} {base.text})"
        made = Atom(text, base.depends, compute, None, 2 * atom.cost + 1, atom.depth + 5, of=base, order=order)
        return _single(self._atom(made))

    def _scaled(self, scalar: Scalar, by: float) -> Scalar:
        return Scalar(tuple((powers, _real(factor * by)) for powers, factor in scalar.terms))

    def _single_term(self, scalar: Scalar) -> tuple[Powers, float]:
        """Return a scalar that is not zero as one monomial: a sum with its sign before the bracket."""
        if len(scalar.terms) == 1:
            return scalar.terms[0]
        sign = math.copysign(1.0, scalar.terms[0][1])
        return ((self._bracket(self._scaled(scalar, sign)), 1),), sign

    def _bracket(self, scalar: Scalar) -> Atom:
        atom = _enclosing(f"({scalar.text})", scalar.compute, [scalar], scalar.value)
        return self._atom(dataclasses.replace(atom, inside=scalar if len(scalar.terms) > 1 else None))

    def _wrapped(
        self, text: str, compute: Callable[[Any], Any], parts: list[Scalar], value: float | None, function: str
    ) -> Scalar:
        atom = _enclosing(text, compute, parts, value)
        return _single(self._atom(dataclasses.replace(atom, function=function, parts=tuple(parts))))

    def _atom(self, made: Atom) -> Atom:
        if made.cost > MAX_COST:
            raise ArithmeticError(f"takes more than {MAX_COST} operations; expected a shorter expression")
        if made.depth > MAX_DEPTH:
            raise ArithmeticError(f"has functions of functions more than {MAX_DEPTH} deep, with those it names")
        return self._atoms.setdefault(made.text, made)


def _enclosing(text: str, compute: Callable[[Any], Any], parts: list[Scalar], value: float | None) -> Atom:
    """Return an atom made of scalars."""
    depends = frozenset[int]().union(*(part.depends for part in parts))
    cost, depth = 1 + sum(part.cost for part in parts), 1 + max(part.depth for part in parts)
    made = Atom(text, depends, compute, value, cost, depth)
    return made if value is None else dataclasses.replace(made, compute=lambda p: value, cost=1)


def _single(atom: Atom) -> Scalar:
    return Scalar(((((atom, 1),), 1.0),))


def _checked(powers: Iterable[tuple[Atom, int]]) -> Powers:
    kept = tuple((atom, power) for atom, power in powers if power)
    if any(abs(power) > MAX_POWER for _, power in kept):
        raise ArithmeticError(f"expected whole powers between -{MAX_POWER} and {MAX_POWER}")
    return kept
