"""Forms that are linear in the unknown: `Σ c_α(x) a^p ∂^α u + …`, what an expression means before it is an operator.

Coefficients are known functions times whole powers of parameters that are to be inferred. What is not such a form
raises an `ArithmeticError`, or a `NonlinearFormError`, whose message goes on from "… at column 3: ".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import jax.numpy as jnp

from ..atoms import Atom as OperatorAtom
from ..atoms import Coefficient, Field, Monomial, MultiIndex, Parameter
from ..errors import listed
from ..operators import Operator
from .scalars import MAX_ORDER, Algebra, Atom, Scalar

MAX_TERMS = 200
"""Of a form: derivatives of the unknown times different powers of parameters."""
MAX_PARAMETER_POWER = 10
"""Of an expression with a parameter that is to be inferred, which is multiplied out."""

Key: TypeAlias = tuple[MultiIndex | None, tuple[tuple[str, int], ...]]
"""The derivative of the unknown (None where there is no unknown), and the powers of parameters."""


class NonlinearFormError(ArithmeticError):
    """What would be made is not linear in the unknown."""


@dataclass(frozen=True, eq=False, repr=False)
class Form:
    """Known functions by the derivative of the unknown and the powers of parameters they multiply."""

    terms: Mapping[Key, Scalar]

    @property
    def has_unknown(self) -> bool:
        """Whether the unknown is in it."""
        return any(alpha is not None for alpha, _ in self.terms)

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters in it."""
        return list(dict.fromkeys(name for _, powers in self.terms for name, _ in powers))

    @property
    def known(self) -> Scalar | None:
        """It as a known function, if it is one."""
        return None if self.has_unknown or self.parameters else self.terms.get((None, ()), Scalar())

    def part(self, with_unknown: bool) -> Form:
        """Return the terms with the unknown, or those without."""
        return Form({key: c for key, c in self.terms.items() if (key[0] is not None) == with_unknown})


class Ring:
    """The forms in one unknown, with parameters at their present values."""

    def __init__(self, algebra: Algebra, unknown: str, parameters: Mapping[str, float]) -> None:
        self.algebra, self.name = algebra, unknown
        self._zero = (0,) * len(algebra.names)
        self._parameters = {name: Parameter(name, jnp.asarray(float(v))) for name, v in parameters.items()}

    def known(self, scalar: Scalar) -> Form:
        """Return a known function as a form."""
        return self._collected([((None, ()), scalar)])

    def unknown(self) -> Form:
        """Return the unknown."""
        return Form({(self._zero, ()): self.algebra.number(1.0)})

    def parameter(self, name: str) -> Form:
        """Return a parameter that is to be inferred."""
        return Form({(None, ((name, 1),)): self.algebra.number(1.0)})

    def add(self, first: Form, second: Form) -> Form:
        """Return the sum."""
        return self._collected([*first.terms.items(), *second.terms.items()])

    def subtract(self, first: Form, second: Form) -> Form:
        """Return the difference."""
        return self.add(first, self.negative(second))

    def negative(self, form: Form) -> Form:
        """Return minus the form."""
        return self.multiply(self.known(self.algebra.number(-1.0)), form)

    def multiply(self, first: Form, second: Form) -> Form:
        """Return the product, of which one factor at most has the unknown."""
        if first.has_unknown and second.has_unknown:
            raise self._nonlinear(f"multiplies {self.name} by itself")
        if len(first.terms) * len(second.terms) > 10 * MAX_TERMS:
            self._refuse_size()
        return self._collected(
            ((alpha if beta is None else beta, _merged(left, right)), self.algebra.multiply(a, b))
            for (alpha, left), a in first.terms.items()
            for (beta, right), b in second.terms.items()
        )

    def divide(self, first: Form, second: Form) -> Form:
        """Return the quotient by a known function times powers of parameters."""
        if second.has_unknown:
            raise self._nonlinear(f"divides by {self.name}")
        if not second.terms:
            raise ArithmeticError("divides by zero, and is not a finite number")
        if len(second.terms) > 1:
            raise ArithmeticError(
                f"divides by a sum with {_inferred(second)}; expected a single product as the divisor of an equation"
            )
        (((_, powers), scalar),) = second.terms.items()
        inverse = tuple((name, -power) for name, power in powers)
        return self.multiply(Form({(None, inverse): self.algebra.reciprocal(scalar)}), first)

    def power(self, base: Form, exponent: Form) -> Form:
        """Return a power: any of a known function, a whole one of an expression with parameters."""
        if exponent.has_unknown:
            raise self._nonlinear(f"has {self.name} in an exponent")
        if exponent.known is None:
            raise ArithmeticError(f"has an exponent with {_inferred(exponent)}; expected one that is known")
        n = exponent.known.value
        if base.known is not None:
            return self.known(self.algebra.power(base.known, exponent.known))
        if n == 1:
            return base
        if base.has_unknown:
            raise self._nonlinear(f"takes a power of {self.name}")
        if n is None or n != int(n) or abs(n) > MAX_PARAMETER_POWER:
            most = f"expected a whole number between -{MAX_PARAMETER_POWER} and {MAX_PARAMETER_POWER}"
            raise ArithmeticError(f"is a power of {_inferred(base)}, with an exponent that cannot be used; {most}")
        result = one = self.known(self.algebra.number(1.0))
        for _ in range(abs(int(n))):
            result = self.multiply(result, base)
        return result if n >= 0 else self.divide(one, result)

    def call(self, name: str, argument: Form) -> Form:
        """Return a function of a known function."""
        if argument.has_unknown:
            raise self._nonlinear(f"takes {name} of {self.name}")
        if argument.known is None:
            raise ArithmeticError(
                f"takes {name} of {_inferred(argument)}. An equation can hold sums and products of such a parameter "
                "and whole powers of it, but no other function"
            )
        return self.known(self.algebra.call(name, argument.known))

    def derivative(self, form: Form, axis: int) -> Form:
        """Return the derivative along an axis, by the rule of Leibniz."""
        terms: list[tuple[Key, Scalar]] = []
        for (alpha, powers), scalar in form.terms.items():
            if alpha is not None:
                if sum(alpha) >= MAX_ORDER:
                    raise ArithmeticError(f"expected derivatives of order at most {MAX_ORDER}")
                raised = tuple(order + (i == axis) for i, order in enumerate(alpha))
                terms.append(((raised, powers), scalar))
            terms.append(((alpha, powers), self.algebra.derivative(scalar, axis)))
        return self._collected(terms)

    def operator(self, form: Form) -> Operator:
        """Return the operator that makes the form of the unknown; a form without it multiplies."""
        names = form.parameters
        atoms: list[OperatorAtom] = [self._parameters[name] for name in names]
        places: dict[Atom, int] = {}
        terms: dict[MultiIndex, dict[Monomial, float]] = {}
        for (alpha, powers), scalar in form.terms.items():
            number, functions = self.algebra.factors(scalar)
            for atom, _ in functions:
                if atom not in places:
                    places[atom] = len(atoms)
                    atoms.append(self._field(atom))
            monomial = [(names.index(name), power) for name, power in powers]
            monomial += [(places[atom], power) for atom, power in functions]
            terms.setdefault(alpha or self._zero, {})[tuple(sorted(monomial))] = number
        rows: list[tuple[MultiIndex, Coefficient]] = [(alpha, tuple(row.items())) for alpha, row in terms.items()]
        return Operator(self.algebra.names, tuple(rows), tuple(atoms))

    def _field(self, atom: Atom) -> Field:
        base, order = (atom, self._zero) if atom.of is None else (atom.of, atom.order)
        return Field(base.text, self.algebra.names, order, base)

    def _collected(self, pairs: Iterable[tuple[Key, Scalar]]) -> Form:
        terms: dict[Key, Scalar] = {}
        for key, scalar in pairs:
            terms[key] = self.algebra.add(terms[key], scalar) if key in terms else scalar
        if len(terms) > MAX_TERMS:
            self._refuse_size()
        return Form({key: scalar for key, scalar in terms.items() if scalar.value != 0})

    def _nonlinear(self, why: str) -> NonlinearFormError:
        return NonlinearFormError(f"is not linear in {self.name}: it {why}")

    def _refuse_size(self) -> NoReturn:
        raise ArithmeticError(f"has more than {MAX_TERMS} terms when multiplied out; expected a shorter equation")


def _inferred(form: Form) -> str:
    names = form.parameters
    if len(names) == 1:
        return f"the parameter {names[0]}, which is to be inferred"
    return f"the parameters {listed(names)}, which are to be inferred"


def _merged(first: tuple[tuple[str, int], ...], second: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    powers = dict(first)
    for name, power in second:
        powers[name] = powers.get(name, 0) + power
    return tuple(sorted((name, power) for name, power in powers.items() if power))
