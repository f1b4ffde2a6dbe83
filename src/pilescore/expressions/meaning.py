"""What the tree of an expression means: a form in the unknown, or a vector of forms."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from ..errors import listed
from .forms import Form, Ring
from .grammar import CHAIN, Node
from .scalars import FUNCTIONS, MAX_COST, MAX_ORDER
from .vocabulary import CALCULUS, TIME, derivative_axes, missing_function, missing_name

Value: TypeAlias = Form | tuple[Form, ...]


@contextlib.contextmanager
def blaming(node: Node) -> Iterator[None]:
    """Say of a piece of text what cannot be made of it."""
    try:
        yield
    except ArithmeticError as problem:
        raise node.error(str(problem)) from None


class Evaluator:
    """Turns trees into forms, given what names mean."""

    def __init__(self, ring: Ring, meaning: Mapping[str, Form]) -> None:
        self._ring, self._meaning = ring, meaning
        self.names, self.unknown = ring.algebra.names, ring.name

    def form(self, node: Node) -> Form:
        """Return what a tree means, unless it is a vector."""
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
        """Return what a tree means: a form, or a vector of forms."""
        spine: list[Node] = []
        while node.kind in CHAIN:
            spine.append(node)
            node = node.parts[0]
        with blaming(node):
            value = self._simple(node)
        for outer in reversed(spine):
            second = self._value(outer.parts[1])
            with blaming(outer):
                value = self._joined(outer, value, second)
        with blaming(spine[0] if spine else node):
            for form in value if isinstance(value, tuple) else (value,):
                _check_cost(form)
        return value

    def _joined(self, node: Node, first: Value, second: Value) -> Value:
        ring = self._ring
        if node.kind in "+-":
            join = ring.add if node.kind == "+" else ring.subtract
            if isinstance(first, Form) and isinstance(second, Form):
                return join(first, second)
            if isinstance(first, Form) or isinstance(second, Form) or len(first) != len(second):
                raise node.error("joins a vector with what is not a vector of as many components")
            return tuple(join(a, b) for a, b in zip(first, second, strict=True))
        if isinstance(second, tuple):
            if isinstance(first, tuple) or node.kind == "/":
                raise node.error("vectors are multiplied by dot(v, w), and do not divide")
            return tuple(ring.multiply(first, part) for part in second)
        join = ring.multiply if node.kind == "*" else ring.divide
        return tuple(join(part, second) for part in first) if isinstance(first, tuple) else join(first, second)

    def _simple(self, node: Node) -> Value:
        ring = self._ring
        match node.kind:
            case "number":
                return ring.known(ring.algebra.number(node.value))
            case "name":
                if node.value not in self._meaning:
                    raise node.error(missing_name(node.value, list(self._meaning), self.unknown, self.names))
                return self._meaning[node.value]
            case "negative":
                value = self._value(node.parts[0])
                return tuple(map(ring.negative, value)) if isinstance(value, tuple) else ring.negative(value)
            case "**":
                return ring.power(self.form(node.parts[0]), self.form(node.parts[1]))
            case "vector":
                return tuple(self.form(part) for part in node.parts)
            case _:
                return self._call(node)

    def _call(self, node: Node) -> Value:
        ring, name = self._ring, node.value
        axes = derivative_axes(name, self.names)
        if name == "integral":
            raise node.error("an integral stands alone on the left of a constraint, as in integral(u, x) = 1")
        if name not in FUNCTIONS and name not in CALCULUS and axes is None:
            raise node.error(missing_function(name, list(self._meaning), self.unknown, self.names))
        wanted = 2 if name == "dot" else 1
        if len(node.parts) != wanted:
            raise node.error(f"expected {wanted} {'argument' if wanted == 1 else 'arguments'}; got {len(node.parts)}")
        if name in FUNCTIONS:
            return ring.call(name, self.form(node.parts[0]))
        if axes is not None:
            return self._differentiated(node, self.form(node.parts[0]), axes)
        if name == "dot":
            first, second = self._vector(node.parts[0]), self._vector(node.parts[1])
            if len(first) != len(second):
                raise node.error(f"expected vectors of one length; got {len(first)} and {len(second)} components")
            return ring.add(*[ring.multiply(a, b) for a, b in zip(first, second, strict=True)])
        space = [axis for axis, each in enumerate(self.names) if each not in TIME]
        if not space:
            raise node.error(f"expected a coordinate of space besides {listed(self.names)}; there is none")
        if name == "div":
            parts = self._vector(node.parts[0])
            if len(parts) != len(space):
                wanted_names = listed([self.names[axis] for axis in space])
                raise node.error(f"expected {len(space)} components, for {wanted_names}; got {len(parts)}")
            return ring.add(*[ring.derivative(part, axis) for part, axis in zip(parts, space, strict=True)])
        form = self.form(node.parts[0])
        if name == "grad":
            return tuple(ring.derivative(form, axis) for axis in space)
        return ring.add(*[self._differentiated(node, form, (axis, axis)) for axis in space])

    def _differentiated(self, node: Node, form: Form, axes: Sequence[int]) -> Form:
        if len(axes) > MAX_ORDER:
            raise node.error(f"expected derivatives of order at most {MAX_ORDER}")
        for axis in axes:
            form = self._ring.derivative(form, axis)
        return form


def _check_cost(form: Form) -> None:
    for scalar in form.terms.values():
        if scalar.cost > MAX_COST:
            raise ArithmeticError(f"takes more than {MAX_COST} operations; expected a shorter expression")
