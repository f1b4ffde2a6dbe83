"""Equations as text, such as `dt(u) + beta*dx(u) = f`, to operators and known functions."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from ..errors import as_array, listed, require
from ..nonlinear import Nonlinear
from ..operators import Operator
from .forms import Form, Ring
from .grammar import ExpressionError, Node, NonlinearError, parse, split
from .jets import Jets
from .meaning import Evaluator, blaming
from .scalars import Scalar
from .vocabulary import check_coordinates_apart, check_word

__all__ = ["Equation", "ExpressionError", "Function", "IntegralEquation", "Language", "NonlinearError"]

_NOTHING: Mapping[str, Any] = types.MappingProxyType({})


@dataclasses.dataclass(frozen=True, eq=False)
class Function:
    """A known function of the point, to be called with one point of shape (d,); jax.numpy inside.

    `text` is how it is written; `constant` is its value where it does not depend on the point, and `depends`
    are the coordinates it may vary with.
    """

    text: str
    constant: float | None
    depends: frozenset[str]
    names: tuple[str, ...] = dataclasses.field(repr=False)
    compute: Callable[[Any], Any] = dataclasses.field(repr=False)

    def __call__(self, point: Any) -> Array:
        """Return the value at one point."""
        p = jnp.asarray(point, dtype=float)
        require(p.shape == (len(self.names),), self.text, p, f"one point with the coordinates {listed(self.names)}")
        return jnp.asarray(self.compute(p), dtype=float)

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True, eq=False)
class Equation:
    """`operator(u) = source`; the operator is a `Nonlinear` where it cannot be a linear one."""

    operator: Operator | Nonlinear
    source: Function

    def __str__(self) -> str:
        left = f"({self.operator}) u" if isinstance(self.operator, Operator) else self.operator
        return f"{left} = {self.source}"


@dataclasses.dataclass(frozen=True, eq=False)
class IntegralEquation:
    """`∫ operator(u) d(over) = value`, a function of the other coordinates."""

    operator: Operator
    over: tuple[str, ...]
    value: Function

    def __str__(self) -> str:
        return f"∫ ({self.operator}) u d{' d'.join(self.over)} = {self.value}"


class Language:
    """What texts mean, given the coordinates, the unknown and the parameters.

    Parameters
    ----------
    names
        The coordinates in their order.
    unknown
        The name of the unknown function.
    numbers
        Parameters that are known.
    inferred
        Parameters that are to be inferred, with their present values; they become `ps.parameter`.

    Examples
    --------
    >>> from pilescore.expressions import Language
    >>> language = Language(["t", "x"], numbers={"k": 0.5}, inferred={"beta": 30.0})
    >>> language.define("f", "sin(pi*x)**2")
    >>> language.equation("dt(u) + beta*dx(u) = k*dxx(u) + f")
    Equation(operator=∂t + beta ∂x - 0.5 ∂x², source=Function(text='f', constant=None, depends=frozenset({'x'})))
    >>> language.operator("-div((1 + x**2)*grad(u))")
    -(1 + x²) ∂x² - 2 x ∂x
    >>> language.equation("dt(u) + u*dx(u) = k*dxx(u)").operator
    ∂t u - k ∂x² u + u ∂x u
    >>> float(language.function("exp(-t)*sin(pi*x)")([0.0, 0.5]))
    1.0
    """

    def __init__(
        self,
        names: Sequence[str],
        unknown: str = "u",
        numbers: Mapping[str, Any] = _NOTHING,
        inferred: Mapping[str, Any] = _NOTHING,
    ) -> None:
        self.names, self.unknown = tuple(names), unknown
        self.numbers, self.inferred = dict(numbers), dict(inferred)
        self._texts: dict[str, str] = {}
        self._meaning: dict[str, Form] = {}
        self._check_names()
        algebra = Jets(self.names, unknown)
        self._ring = ring = Ring(algebra, self.inferred)
        for axis, name in enumerate(self.names):
            self._meaning[name] = ring.known(algebra.coordinate(axis))
        for name, value in ({"pi": math.pi, "e": math.e} | self.numbers).items():
            self._meaning[name] = ring.known(algebra.constant("π" if name == "pi" else name, float(value)))
        self._meaning |= {name: ring.parameter(name) for name in self.inferred}
        self._meaning[unknown] = ring.unknown()
        self._evaluator = Evaluator(ring, self._meaning)

    def _check_names(self) -> None:
        if not self.names:
            raise ExpressionError("names: expected at least one coordinate; got none")
        roles = [("coordinate", self.names), ("unknown", (self.unknown,))]
        roles += [("parameter", (*self.numbers, *self.inferred))]
        taken: list[str] = []
        coordinates = tuple(name for name in self.names if isinstance(name, str) and name)
        for role, words in roles:
            for word in words:
                check_word(word, role, coordinates, taken)
                taken.append(word)
        check_coordinates_apart(self.names)
        for name, value in (self.numbers | self.inferred).items():
            try:
                good = as_array(value, f"parameter {name!r}").ndim == 0
            except ValueError as error:
                raise ExpressionError(str(error)) from None
            if not good:
                raise ExpressionError(f"parameter {name!r}: expected a single number; got {value!r}")

    def define(self, name: str, text: str) -> None:
        """Give a name to a known function of the coordinates, known parameters and functions defined before."""
        check_word(name, "function", self.names, self._meaning)
        tree = parse(text)
        scalar = self._known(tree)
        ring = self._ring
        with blaming(tree):
            self._meaning[name] = ring.known(ring.algebra.named(name, scalar))
        self._texts[name] = text

    def with_values(self, inferred: Mapping[str, Any]) -> Language:
        """Return the same language, where parameters that were to be inferred have become these numbers."""
        for name in inferred:
            known = listed(list(self.inferred)) or "none"
            require(name in self.inferred, "inferred", name, f"names of parameters that are to be inferred, {known}")
        rest = {name: value for name, value in self.inferred.items() if name not in inferred}
        language = Language(self.names, self.unknown, self.numbers | dict(inferred), rest)
        for name, text in self._texts.items():
            language.define(name, text)
        return language

    def function(self, text: str) -> Function:
        """Return a known function, which does not hold the unknown or a parameter that is to be inferred."""
        return self._function(self._known(parse(text)))

    def coefficient(self, text: str) -> Operator:
        """Return multiplication by an expression without the unknown; it may hold parameters to be inferred."""
        tree = parse(text)
        form = self._evaluator.form(tree)
        if form.has_unknown:
            raise self._first(tree, [self.unknown]).error(f"expected an expression without {self.unknown}")
        if not form.is_linear:
            raise self._first(tree, form.names).error(
                "is to be inferred: it can multiply or divide here, also by whole powers, but stand in no function"
            )
        with blaming(tree):
            return self._linear(tree, form)

    def operator(self, text: str) -> Operator | Nonlinear:
        """Return the operator of an expression in the unknown, such as `-k*dx(u)` or `u*dx(u)`."""
        return self._operator(parse(text))

    def equation(self, text: str) -> Equation:
        """Return the operator and the source of an equation; both sides may hold the unknown and sources."""
        place = split(text)
        left, right = parse(text, 0, place), parse(text, place + 1)
        both = Node("-", None, (left, right), text, left.start, right.end)
        ring = self._ring
        with blaming(both):
            form = ring.subtract(self._evaluator.form(left), self._evaluator.form(right))
            if not form.has_unknown:
                raise both.error(f"expected an equation for {self.unknown}, which is not in it or cancels")
            source = form.terms.get((None, ()), Scalar())
            operator = ring.operator(ring.subtract(form, ring.known(source)))
            return Equation(operator, self._function(ring.algebra.multiply(ring.algebra.number(-1.0), source)))

    def integral(self, text: str) -> IntegralEquation:
        """Return the operator, the coordinates and the value of `integral(EXPRESSION, x, …) = VALUE`."""
        place = split(text)
        left, right = parse(text, 0, place), parse(text, place + 1)
        if (left.kind, left.value) != ("call", "integral") or len(left.parts) < 2:
            what = f"expected integral({self.unknown}, {self.names[-1]}) or the like on the left of the equals sign"
            raise left.error(what)
        over: list[str] = []
        for part in left.parts[1:]:
            good = part.kind == "name" and part.value in self.names and part.value not in over
            if not good:
                raise part.error(f"expected different coordinates to integrate over, among {listed(self.names)}")
            over.append(part.value)
        operator = self._linear(left.parts[0], self._held(left.parts[0]))
        value = self._function(self._known(right))
        both = sorted(value.depends.intersection(over), key=self.names.index)
        if both:
            raise self._first(right, both).error(f"the value depends on {listed(both)}, which the integral is over")
        return IntegralEquation(operator, tuple(over), value)

    def _function(self, scalar: Scalar) -> Function:
        depends = frozenset(self.names[axis] for axis in scalar.depends)
        return Function(scalar.text, scalar.value, depends, self.names, scalar.compute)

    def _operator(self, tree: Node) -> Operator | Nonlinear:
        form = self._held(tree)
        with blaming(tree):
            return self._ring.operator(form)

    def _linear(self, tree: Node, form: Form) -> Operator:
        """Return the operator of a form that must be linear."""
        with blaming(tree):
            operator = self._ring.operator(form)
        if isinstance(operator, Nonlinear):
            what = f"is not linear in {self.unknown}, or has a parameter that is to be inferred within a function"
            node = self._summand(tree, lambda part: not part.is_linear)
            raise node.error(f"{what}; expected an expression that is linear here", NonlinearError)
        return operator

    def _held(self, tree: Node) -> Form:
        """Return the form of an expression that has the unknown in every term."""
        form = self._evaluator.form(tree)
        u = self.unknown
        example = f"expected an expression in which {u} is in every term, such as d{self.names[-1]}({u})"
        if self._alone(form):
            raise self._summand(tree, self._alone).error(f"is without {u}; {example}")
        if not form.has_unknown:
            raise tree.error(f"is zero; {example}")
        return form

    def _alone(self, form: Form) -> bool:
        """Whether something in a form is without the unknown."""
        rest = self._ring.part(form, False)
        return bool(rest.terms) or not rest.is_linear

    def _known(self, tree: Node) -> Scalar:
        form = self._evaluator.form(tree)
        if form.has_unknown:
            raise self._first(tree, [self.unknown]).error(f"expected an expression without {self.unknown}")
        if form.known is None:
            node = self._first(tree, form.parameters)
            raise node.error(
                "is to be inferred, and cannot stand in a value, a source or a function: they must be known"
            )
        return form.known

    def _summand(self, tree: Node, wrong: Callable[[Form], bool]) -> Node:
        """Return the first term of a sum that is wrong."""
        terms: list[Node] = []
        stack = [tree]
        while stack:
            node = stack.pop()
            if node.kind in "+-":
                stack.extend(reversed(node.parts))
            else:
                terms.append(node)
        return next((term for term in terms if wrong(self._evaluator.form(term))), tree)

    def _first(self, tree: Node, names: Sequence[str]) -> Node:
        """Return the first place where one of the names stands."""
        stack = [tree]
        while stack:
            node = stack.pop()
            if node.kind == "name" and node.value in names:
                return node
            stack.extend(reversed(node.parts))
        return tree
