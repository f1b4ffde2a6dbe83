"""Equations as text, such as `dt(u) + beta*dx(u) = f`, to operators and known functions."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import keyword
import math
import types
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array

from ...errors import as_array, listed, nearest, require
from ..nonlinear import Nonlinear
from ..operators import Operator
from .expressions import FUNCTIONS, MAX_COST, MAX_ORDER, Expression
from .linear_part import Form, FormAlgebra
from .parser import CHAIN, ExpressionError, Node, NonlinearError, equals_sign, is_name, parse
from .unknown import UnknownAlgebra

CONSTANTS = ("pi", "e")
CALCULUS = {"laplacian": "laplacian(u)", "grad": "grad(u)", "div": "div(v)", "dot": "dot(v, w)"}
"""The functions of vector calculus, each with an example of its use."""
RESERVED_WORDS = {*CONSTANTS, "π", *FUNCTIONS, *CALCULUS, "integral"}
TIME = ("t", "time")
"""Coordinates that the gradient, the divergence and the Laplacian leave out."""

_SYNONYMS = {
    "π": "pi",
    "Pi": "pi",
    "PI": "pi",
    "ln": "log",
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "Δ": "laplacian",
    "lap": "laplacian",
    "nabla": "grad",
}

Value: TypeAlias = Form | tuple[Form, ...]
"""The meaning of an expression: a form, or a vector of forms."""

_EMPTY: Mapping[str, Any] = types.MappingProxyType({})


@dataclasses.dataclass(frozen=True, eq=False)
class KnownFunction:
    """A known function of the point, written with jax.numpy; call it with one point of shape (d,).

    `text` is its formula. `constant` is its value if it does not depend on the point, else None. `depends` are the
    names of the coordinates with which it may vary.
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
class ParameterFunction:
    """A function of the inferred parameters alone; call it with their values by name.

    `text` is its formula.
    """

    text: str
    parameters: tuple[str, ...]
    compute: Callable[..., Any] = dataclasses.field(repr=False)

    def __call__(self, values: Mapping[str, Any]) -> Array:
        """Return the value; other names are ignored."""
        return jnp.asarray(self.compute(**{name: values[name] for name in self.parameters}), dtype=float)

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True, eq=False)
class ParsedEquation:
    """`operator(u) = source`; the operator is a `Nonlinear` if it cannot be linear."""

    operator: Operator | Nonlinear
    source: KnownFunction

    def __str__(self) -> str:
        left = f"({self.operator}) u" if isinstance(self.operator, Operator) else self.operator
        return f"{left} = {self.source}"


@dataclasses.dataclass(frozen=True, eq=False)
class IntegralEquation:
    """`∫ operator(u) d(over) = value`; the value is a function of the other coordinates."""

    operator: Operator
    over: tuple[str, ...]
    value: KnownFunction

    def __str__(self) -> str:
        return f"∫ ({self.operator}) u d{' d'.join(self.over)} = {self.value}"


class Language:
    """The meaning of texts, given the coordinates, the unknown and the parameters.

    Parameters
    ----------
    names
        The names of the coordinates, in order.
    unknown
        The name of the unknown function.
    numbers
        Known parameters and their values.
    inferred
        Inferred parameters and their present values; they become `ps.parameter`.

    Examples
    --------
    >>> from pilescore.equations.text import Language
    >>> language = Language(["t", "x"], numbers={"k": 0.5}, inferred={"beta": 30.0})
    >>> language.define("f", "sin(pi*x)**2")
    >>> print(language.equation("dt(u) + beta*dx(u) = k*dxx(u) + f"))
    (∂t + beta ∂x - 0.5 ∂x²) u = f
    >>> language.operator("-div((1 + x**2)*grad(u))")
    -(1 + x²) ∂x² - 2 x ∂x
    >>> language.equation("dt(u) + u*dx(u) = k*dxx(u)").operator
    ∂t u - k ∂x² u + u ∂x u
    >>> language.function("exp(-t)*sin(pi*x)")
    KnownFunction(text='exp(-t) sin(π x)', constant=None, depends=frozenset({...}))
    >>> float(language.function("exp(-t)*sin(pi*x)")([0.0, 0.5]))
    1.0
    """

    def __init__(
        self,
        names: Sequence[str],
        unknown: str = "u",
        numbers: Mapping[str, Any] = _EMPTY,
        inferred: Mapping[str, Any] = _EMPTY,
    ) -> None:
        self.names, self.unknown = tuple(names), unknown
        self.numbers, self.inferred = dict(numbers), dict(inferred)
        self._texts: dict[str, str] = {}
        self._meaning: dict[str, Form] = {}
        self._check_names()
        algebra = UnknownAlgebra(self.names, unknown)
        self._forms = forms = FormAlgebra(algebra, self.inferred)
        for axis, name in enumerate(self.names):
            self._meaning[name] = forms.known(algebra.coordinate(axis))
        for name, value in ({"pi": math.pi, "e": math.e} | self.numbers).items():
            self._meaning[name] = forms.known(algebra.constant("π" if name == "pi" else name, float(value)))
        self._meaning |= {name: forms.parameter(name) for name in self.inferred}
        self._meaning[unknown] = forms.unknown()
        self._evaluator = _Evaluator(forms, self._meaning)

    def _check_names(self) -> None:
        if not self.names:
            raise ExpressionError("names: expected at least one coordinate; got none")
        roles = [("coordinate", self.names), ("unknown", (self.unknown,))]
        roles += [("parameter", (*self.numbers, *self.inferred))]
        taken: list[str] = []
        coordinates = tuple(name for name in self.names if isinstance(name, str) and name)
        for role, names in roles:
            for name in names:
                check_name(name, role, coordinates, taken)
                taken.append(name)
        check_unambiguous(self.names)
        for name, value in (self.numbers | self.inferred).items():
            try:
                good = as_array(value, f"parameter {name!r}").ndim == 0
            except ValueError as error:
                raise ExpressionError(str(error)) from None
            if not good:
                raise ExpressionError(f"parameter {name!r}: expected a single number; got {value!r}")

    def define(self, name: str, text: str) -> None:
        """Define a known function of the coordinates, the known parameters and earlier functions."""
        check_name(name, "function", self.names, self._meaning)
        tree = parse(text)
        expression = self._known(tree)
        with _blaming(tree):
            self._meaning[name] = self._forms.known(self._forms.algebra.named(name, expression))
        self._texts[name] = text

    def with_values(self, inferred: Mapping[str, Any]) -> Language:
        """Return the same language with the given inferred parameters turned into known numbers."""
        for name in inferred:
            expected = f"names of inferred parameters: {listed(list(self.inferred)) or 'none'}"
            require(name in self.inferred, "inferred", name, expected)
        rest = {name: value for name, value in self.inferred.items() if name not in inferred}
        language = Language(self.names, self.unknown, self.numbers | dict(inferred), rest)
        for name, text in self._texts.items():
            language.define(name, text)
        return language

    def function(self, text: str) -> KnownFunction:
        """Return a known function, which contains neither the unknown nor an inferred parameter."""
        return self._function(self._known(parse(text)))

    def derived(self, name: str, text: str) -> ParameterFunction:
        """Return a quantity with a name of its own: an expression of parameters, known and inferred ones.

        Examples
        --------
        >>> from pilescore.equations.text import Language
        >>> quantity = Language(["t"], numbers={"c": 3.0}, inferred={"k": 0.5}).derived("S", "4*k*c")
        >>> quantity, float(quantity({"k": 2.0}))
        (ParameterFunction(text='4 c k', parameters=('k',)), 24.0)
        """
        check_name(name, "derived quantity", self.names, self._meaning)
        tree = parse(text)
        form = self._evaluator.form(tree)
        if form.has_unknown:
            raise self._first(tree, [self.unknown]).error(f"expected an expression without {self.unknown}")
        algebra = self._forms.algebra
        with _blaming(tree):
            expression = self._forms.whole(form)
            function = algebra.pointwise(expression, False)
        depends = [self.names[axis] for axis in sorted(expression.depends) if axis < len(self.names)]
        if depends:
            where = self._first(tree, depends)
            raise where.error(f"depends on {listed(depends)}; expected an expression of parameters and numbers")
        point = jnp.zeros(len(self.names))
        return ParameterFunction(expression.text, tuple(function.parameters), functools.partial(function, point))

    def coefficient(self, text: str) -> Operator:
        """Return multiplication by an expression without the unknown; it may contain inferred parameters."""
        tree = parse(text)
        form = self._evaluator.form(tree)
        if form.has_unknown:
            raise self._first(tree, [self.unknown]).error(f"expected an expression without {self.unknown}")
        if not form.is_linear:
            raise self._first(tree, form.names).error(
                "is inferred: here it may multiply or divide, also as an integer power, but not be inside a function"
            )
        with _blaming(tree):
            return self._linear(tree, form)

    def operator(self, text: str) -> Operator | Nonlinear:
        """Return the operator of an expression in the unknown, such as `-k*dx(u)` or `u*dx(u)`."""
        tree = parse(text)
        form = self._homogeneous(tree)
        with _blaming(tree):
            return self._forms.operator(form)

    def equation(self, text: str) -> ParsedEquation:
        """Return the operator and the source of an equation; both sides may contain the unknown and sources."""
        place = equals_sign(text)
        left, right = parse(text, 0, place), parse(text, place + 1)
        both = Node("-", None, (left, right), text, left.start, right.end)
        forms = self._forms
        with _blaming(both):
            form = forms.subtract(self._evaluator.form(left), self._evaluator.form(right))
            if not form.has_unknown:
                raise both.error(f"expected an equation for {self.unknown}; it does not appear, or it cancels")
            source = form.terms.get((None, ()), Expression())
            operator = forms.operator(forms.subtract(form, forms.known(source)))
            negated = forms.algebra.multiply(forms.algebra.number(-1.0), source)
            return ParsedEquation(operator, self._function(negated))

    def integral(self, text: str) -> IntegralEquation:
        """Return the operator, the coordinates and the value of `integral(EXPRESSION, x, …) = VALUE`."""
        place = equals_sign(text)
        left, right = parse(text, 0, place), parse(text, place + 1)
        if (left.kind, left.value) != ("call", "integral") or len(left.parts) < 2:
            example = f"integral({self.unknown}, {self.names[-1]})"
            raise left.error(f"expected an integral such as {example} on the left of the equals sign")
        over: list[str] = []
        for part in left.parts[1:]:
            good = part.kind == "name" and part.value in self.names and part.value not in over
            if not good:
                raise part.error(f"expected different coordinates to integrate over, among {listed(self.names)}")
            over.append(part.value)
        operator = self._linear(left.parts[0], self._homogeneous(left.parts[0]))
        value = self._function(self._known(right))
        both = sorted(value.depends.intersection(over), key=self.names.index)
        if both:
            raise self._first(right, both).error(f"the value depends on {listed(both)}, which is integrated over")
        return IntegralEquation(operator, tuple(over), value)

    def _function(self, expression: Expression) -> KnownFunction:
        depends = frozenset(self.names[axis] for axis in expression.depends)
        return KnownFunction(expression.text, expression.value, depends, self.names, expression.compute)

    def _linear(self, tree: Node, form: Form) -> Operator:
        """Return the operator of a form that must be linear."""
        with _blaming(tree):
            operator = self._forms.operator(form)
        if isinstance(operator, Nonlinear):
            what = f"is not linear in {self.unknown}, or has an inferred parameter inside a function"
            node = self._summand(tree, lambda term: not term.is_linear)
            raise node.error(f"{what}; expected a linear expression", NonlinearError)
        return operator

    def _homogeneous(self, tree: Node) -> Form:
        """Return the form of an expression that must have the unknown in every term."""
        form = self._evaluator.form(tree)
        u = self.unknown
        example = f"expected an expression with {u} in every term, such as d{self.names[-1]}({u})"
        if self._forms.has_term_without_unknown(form):
            term = self._summand(tree, self._forms.has_term_without_unknown)
            raise term.error(f"does not contain {u}; {example}")
        if not form.has_unknown:
            raise tree.error(f"is zero; {example}")
        return form

    def _known(self, tree: Node) -> Expression:
        """Return the expression of a tree that must be a known function."""
        form = self._evaluator.form(tree)
        if form.has_unknown:
            raise self._first(tree, [self.unknown]).error(f"expected an expression without {self.unknown}")
        if form.known is None:
            raise self._first(tree, form.parameters).error(
                "is inferred, and cannot be part of a value, a source or a function, which must be known"
            )
        return form.known

    def _summand(self, tree: Node, wrong: Callable[[Form], bool]) -> Node:
        """Return the first wrong term of a sum."""
        terms = (node for node in tree.walk(into="+-") if node.kind not in "+-")
        return next((term for term in terms if wrong(self._evaluator.form(term))), tree)

    def _first(self, tree: Node, names: Sequence[str]) -> Node:
        """Return the first node that is one of the names."""
        return next((node for node in tree.walk() if node.kind == "name" and node.value in names), tree)


@contextlib.contextmanager
def _blaming(node: Node) -> Iterator[None]:
    """Turn an `ArithmeticError` into an `ExpressionError` that quotes the node's text."""
    try:
        yield
    except ArithmeticError as problem:
        raise node.error(str(problem)) from None


class _Evaluator:
    """Turns syntax trees into forms, given the meanings of names."""

    def __init__(self, forms: FormAlgebra, meaning: Mapping[str, Form]) -> None:
        self._forms, self._meaning = forms, meaning
        self.names, self.unknown = forms.algebra.names, forms.algebra.unknown

    def form(self, node: Node) -> Form:
        """Return the form of a tree, which must not be a vector."""
        value = self._value(node)
        if isinstance(value, tuple):
            raise node.error("is a vector; expected a single expression. Take its components, div(v) or dot(v, w)")
        return value

    def _vector(self, node: Node) -> tuple[Form, ...]:
        value = self._value(node)
        if isinstance(value, Form):
            raise node.error("is not a vector; expected one such as [a, b] or grad(u)")
        return value

    def _value(self, node: Node) -> Value:
        """Return the form or the vector of forms of a tree; chains of operations are evaluated in a loop."""
        spine: list[Node] = []
        while node.kind in CHAIN:
            spine.append(node)
            node = node.parts[0]
        with _blaming(node):
            value = self._simple(node)
        for outer in reversed(spine):
            second = self._value(outer.parts[1])
            with _blaming(outer):
                value = self._combined(outer, value, second)
        with _blaming(spine[0] if spine else node):
            for form in value if isinstance(value, tuple) else (value,):
                if any(expression.cost > MAX_COST for expression in form.terms.values()):
                    raise ArithmeticError(f"needs more than {MAX_COST} operations; use a shorter expression")
        return value

    def _combined(self, node: Node, first: Value, second: Value) -> Value:
        forms = self._forms
        if node.kind in "+-":
            combine = forms.add if node.kind == "+" else forms.subtract
            if isinstance(first, Form) and isinstance(second, Form):
                return combine(first, second)
            if isinstance(first, Form) or isinstance(second, Form) or len(first) != len(second):
                raise node.error("adds a vector to something that is not a vector of the same length")
            return tuple(combine(a, b) for a, b in zip(first, second, strict=True))
        if isinstance(second, tuple):
            if isinstance(first, tuple) or node.kind == "/":
                raise node.error("multiply vectors with dot(v, w); nothing can be divided by a vector")
            return tuple(forms.multiply(first, component) for component in second)
        combine = forms.multiply if node.kind == "*" else forms.divide
        if isinstance(first, tuple):
            return tuple(combine(component, second) for component in first)
        return combine(first, second)

    def _simple(self, node: Node) -> Value:
        forms = self._forms
        match node.kind:
            case "number":
                return forms.known(forms.algebra.number(node.value))
            case "name":
                if node.value not in self._meaning:
                    raise node.error(unknown_name(node.value, list(self._meaning), self.unknown, self.names))
                return self._meaning[node.value]
            case "negative":
                value = self._value(node.parts[0])
                return tuple(map(forms.negative, value)) if isinstance(value, tuple) else forms.negative(value)
            case "**":
                return forms.power(self.form(node.parts[0]), self.form(node.parts[1]))
            case "vector":
                return tuple(self.form(part) for part in node.parts)
            case _:
                return self._call(node)

    def _call(self, node: Node) -> Value:
        forms, name = self._forms, node.value
        axes = derivative_axes(name, self.names)
        if name == "integral":
            raise node.error("an integral must stand alone on the left of a constraint, as in integral(u, x) = 1")
        if name not in FUNCTIONS and name not in CALCULUS and axes is None:
            raise node.error(unknown_function(name, list(self._meaning), self.unknown, self.names))
        count = 2 if name == "dot" else 1
        if len(node.parts) != count:
            raise node.error(f"expected {count} {'argument' if count == 1 else 'arguments'}; got {len(node.parts)}")
        if name in FUNCTIONS:
            return forms.call(name, self.form(node.parts[0]))
        if axes is not None:
            return self._differentiated(node, self.form(node.parts[0]), axes)
        if name == "dot":
            first, second = self._vector(node.parts[0]), self._vector(node.parts[1])
            if len(first) != len(second):
                raise node.error(f"expected vectors of the same length; got {len(first)} and {len(second)} components")
            return forms.add(*[forms.multiply(a, b) for a, b in zip(first, second, strict=True)])
        space = [axis for axis, coordinate in enumerate(self.names) if coordinate not in TIME]
        if not space:
            raise node.error(f"expected a spatial coordinate besides {listed(self.names)}; there is none")
        if name == "div":
            components = self._vector(node.parts[0])
            if len(components) != len(space):
                coordinates = listed([self.names[axis] for axis in space])
                raise node.error(f"expected {len(space)} components, for {coordinates}; got {len(components)}")
            return forms.add(*[forms.derivative(part, axis) for part, axis in zip(components, space, strict=True)])
        form = self.form(node.parts[0])
        if name == "grad":
            return tuple(forms.derivative(form, axis) for axis in space)
        return forms.add(*[self._differentiated(node, form, (axis, axis)) for axis in space])

    def _differentiated(self, node: Node, form: Form, axes: Sequence[int]) -> Form:
        if len(axes) > MAX_ORDER:
            raise node.error(f"expected derivatives of order at most {MAX_ORDER}")
        for axis in axes:
            form = self._forms.derivative(form, axis)
        return form


@functools.lru_cache(maxsize=1000)
def derivative_axes(word: str, names: tuple[str, ...]) -> tuple[int, ...] | None:
    """Return the axes of a derivative such as `dxy`, in order, or None if the word is not a derivative."""
    if not word.startswith("d") or len(word) == 1:
        return None
    # Dynamic programming: axes_of_prefix[n] are the axes spelt by the first n letters after the "d", or None.
    axes_of_prefix: list[tuple[int, ...] | None] = [()]
    rest = word[1:]
    for end in range(1, len(rest) + 1):
        axes = None
        for axis, name in enumerate(names):
            before = axes_of_prefix[end - len(name)] if len(name) <= end else None
            if before is not None and rest[:end].endswith(name):
                axes = (*before, axis)
        axes_of_prefix.append(axes)
    return axes_of_prefix[-1]


def check_name(name: object, role: str, names: tuple[str, ...], taken: Iterable[str]) -> None:
    """Raise an `ExpressionError` if a name cannot be used in expressions."""
    why = ""
    if not isinstance(name, str) or not is_name(name):
        why = "expected a letter followed by letters, digits or _"
    elif keyword.iskeyword(name):
        why = "it is a Python keyword"
    elif unicodedata.normalize("NFKC", name) != name:
        why = f"Python reads it as {unicodedata.normalize('NFKC', name)!r}; use that name"
    elif name in RESERVED_WORDS:
        why = "it has a fixed meaning in expressions"
    elif name in taken:
        why = "the name is already in use"
    elif derivative_axes(name, names) is not None:
        why = "it would be read as a derivative"
    if why:
        raise ExpressionError(f"{role} {name!r} is not a valid name: {why}")


def check_unambiguous(names: Sequence[str]) -> None:
    """Raise an `ExpressionError` if a derivative could be read in two ways, such as `dxx` with x and xx.

    This is the Sardinas-Patterson test for unique decodability: `ahead` maps what the longer of two readings has
    beyond the shorter one to the letters read so far.
    """
    ahead = {b[len(a) :]: b for a in names for b in names if a != b and b.startswith(a)}
    seen: set[str] = set()
    while ahead:
        surplus = next(iter(ahead))
        letters = ahead.pop(surplus)
        seen.add(surplus)
        for name in names:
            if name == surplus:
                raise ExpressionError(
                    f"coordinates {', '.join(names)}: 'd{letters}' could be read as a derivative in two ways. "
                    "Rename one of the coordinates"
                )
            if name.startswith(surplus) and name[len(surplus) :] not in seen:
                ahead[name[len(surplus) :]] = letters + name[len(surplus) :]
            if surplus.startswith(name) and surplus[len(name) :] not in seen:
                ahead[surplus[len(name) :]] = letters
    for word in sorted(RESERVED_WORDS):
        if derivative_axes(word, tuple(names)) is not None:
            raise ExpressionError(
                f"coordinates {', '.join(names)}: {word!r} could be read as a derivative. Rename one of the coordinates"
            )


def unknown_name(name: str, known: Sequence[str], unknown: str, names: tuple[str, ...]) -> str:
    """Return the error message for a name without a meaning."""
    if name in FUNCTIONS or name in CALCULUS:
        return f"is a function: write {CALCULUS.get(name, name + '(…)')}"
    if derivative_axes(name, names) is not None:
        return f"is a derivative: write {name}({unknown})"
    for prefix in (f"{unknown}_", unknown):
        word = "d" + name.removeprefix(prefix)
        if name.startswith(prefix) and derivative_axes(word, names) is not None:
            return f"is not a known name: write {word}({unknown}) for this derivative"
    if name in (f"d{unknown}", f"d2{unknown}"):
        return f"is not a known name: write derivatives as d{names[-1]}({unknown})"
    return f"is not a known name.{_suggestion(name, known)} Known names: {', '.join(known)}"


def unknown_function(name: str, known: Sequence[str], unknown: str, names: tuple[str, ...]) -> str:
    """Return the error message for a call of something that is not a function."""
    example = f"d{names[-1]}({unknown})"
    if name in known:
        return f"{name} takes no argument: write {name} for its value at the point, or {name}*(…) for a product"
    if name in ("diff", "D", "d", "Derivative"):
        return f"there is no function {name!r}: write derivatives as {example}"
    functions = [*FUNCTIONS, *CALCULUS]
    hint = _suggestion(name, [*functions, *(f"d{c}" for c in names), *(f"d{c}{c}" for c in names)])
    return f"there is no function {name!r}.{hint} Functions: {', '.join(functions)}, and derivatives such as {example}"


def _suggestion(name: str, known: Sequence[str]) -> str:
    near = _SYNONYMS.get(name) or nearest(name, known)
    return f" Did you mean {near!r}?" if near else ""
