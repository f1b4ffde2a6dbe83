"""Forms in the unknown: `Σ c_α(x) a^p ∂^α u + …` and what is not linear, before they are operators.

Coefficients are known functions times whole powers of parameters that are to be inferred; what is not linear in the
unknown, or not made of whole powers of parameters, is kept apart as one function of them. What cannot be made raises
an `ArithmeticError` whose message goes on from "… at column 3: ".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import jax.numpy as jnp

from ..atoms import Atom as OperatorAtom
from ..atoms import Coefficient, Field, Monomial, MultiIndex, Parameter
from ..nonlinear import Nonlinear
from ..operators import Operator
from .jets import Jets, Key, check_operations, raised_index
from .scalars import Atom, Scalar

MAX_TERMS = 200
"""Of a form: derivatives of the unknown times different powers of parameters."""
MAX_PARAMETER_POWER = 10
"""Of an expression with parameters that are to be inferred, up to which it is multiplied out."""


@dataclass(frozen=True, eq=False, repr=False)
class Form:
    """Known functions by the derivative of the unknown and the powers of parameters they multiply, and the rest."""

    terms: Mapping[Key, Scalar]
    rest: Scalar
    """What is not linear in the unknown, or holds parameters otherwise than by whole powers."""
    jets: tuple[MultiIndex, ...]
    """The derivatives of the unknown in the rest."""
    names: tuple[str, ...]
    """The parameters in the rest."""

    @property
    def is_linear(self) -> bool:
        """Whether there is no rest."""
        return not self.rest.terms

    @property
    def has_unknown(self) -> bool:
        """Whether the unknown is in it."""
        return bool(self.jets) or any(alpha is not None for alpha, _ in self.terms)

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters in it."""
        return list(dict.fromkeys([*(name for _, powers in self.terms for name, _ in powers), *self.names]))

    @property
    def known(self) -> Scalar | None:
        """It as a known function, if it is one."""
        return None if self.has_unknown or self.parameters else self.terms.get((None, ()), Scalar())


class Ring:
    """The forms in one unknown, with parameters at their present values."""

    def __init__(self, algebra: Jets, parameters: Mapping[str, float]) -> None:
        self.algebra, self.name = algebra, algebra.unknown
        self._zero = (0,) * len(algebra.names)
        self._values = {name: float(v) for name, v in parameters.items()}

    def known(self, scalar: Scalar) -> Form:
        """Return a known function as a form."""
        return self._collected([((None, ()), scalar)])

    def unknown(self) -> Form:
        """Return the unknown."""
        return self._collected([((self._zero, ()), self.algebra.number(1.0))])

    def parameter(self, name: str) -> Form:
        """Return a parameter that is to be inferred."""
        return self._collected([((None, ((name, 1),)), self.algebra.number(1.0))])

    def add(self, *forms: Form) -> Form:
        """Return the sum."""
        pairs = [pair for form in forms for pair in form.terms.items()]
        return self._collected(pairs, self.algebra.add(*(form.rest for form in forms)))

    def subtract(self, first: Form, second: Form) -> Form:
        """Return the difference."""
        return self.add(first, self.negative(second))

    def negative(self, form: Form) -> Form:
        """Return minus the form."""
        minus = self.algebra.number(-1.0)
        pairs = [(key, self.algebra.multiply(minus, scalar)) for key, scalar in form.terms.items()]
        return self._collected(pairs, self.algebra.multiply(minus, form.rest))

    def multiply(self, first: Form, second: Form) -> Form:
        """Return the product: multiplied out where that leaves something linear in the unknown."""
        if first.is_linear and second.is_linear and not (first.has_unknown and second.has_unknown):
            return self._product(first, second)
        for one, other in ((first, second), (second, first)):
            number = one.known is not None and one.known.value is not None
            if one.is_linear and not one.has_unknown and (number or any(alpha is not None for alpha, _ in other.terms)):
                rest = self._form(self.algebra.multiply(self.whole(one), other.rest))
                return self.add(self._product(one, self._collected(other.terms.items())), rest)
        return self._form(self.algebra.multiply(self.whole(first), self.whole(second)))

    def divide(self, first: Form, second: Form) -> Form:
        """Return the quotient."""
        if not second.terms and second.is_linear:
            raise ArithmeticError("divides by zero, and is not a finite number")
        if second.has_unknown or not second.is_linear or len(second.terms) > 1:
            return self.multiply(first, self._form(self.algebra.reciprocal(self.whole(second))))
        (((_, powers), scalar),) = second.terms.items()
        inverse = tuple((name, -power) for name, power in powers)
        return self.multiply(self._collected([((None, inverse), self.algebra.reciprocal(scalar))]), first)

    def power(self, base: Form, exponent: Form) -> Form:
        """Return a power: multiplied out where it is a whole one of what holds parameters alone."""
        if base.known is not None and exponent.known is not None:
            return self.known(self.algebra.power(base.known, exponent.known))
        n = None if exponent.known is None else exponent.known.value
        if n == 1:
            return base
        whole = n is not None and n == int(n) and 0 < abs(n) <= MAX_PARAMETER_POWER
        if n is None or not whole or base.has_unknown or not base.is_linear or (n < 0 and len(base.terms) > 1):
            return self._form(self.algebra.power(self.whole(base), self.whole(exponent)))
        result = one = self.known(self.algebra.number(1.0))
        for _ in range(abs(int(n))):
            result = self.multiply(result, base)
        return result if n > 0 else self.divide(one, result)

    def call(self, name: str, argument: Form) -> Form:
        """Return a function of a form."""
        if argument.known is not None:
            return self.known(self.algebra.call(name, argument.known))
        return self._form(self.algebra.call(name, self.whole(argument)))

    def derivative(self, form: Form, axis: int) -> Form:
        """Return the derivative along an axis, by the rules of Leibniz and of the chain."""
        terms: list[tuple[Key, Scalar]] = []
        for (alpha, powers), scalar in form.terms.items():
            if alpha is not None:
                terms.append(((raised_index(alpha, axis), powers), scalar))
            terms.append(((alpha, powers), self.algebra.derivative(scalar, axis)))
        return self.add(self._collected(terms), self._form(self.algebra.total(form.rest, axis)))

    def whole(self, form: Form) -> Scalar:
        """Return all of a form as one function of the unknown and of parameters."""
        algebra, parts = self.algebra, []
        for (alpha, powers), scalar in form.terms.items():
            for name, power in powers:
                scalar = algebra.multiply(scalar, algebra.power(algebra.parameter(name), algebra.number(power)))
            parts.append(scalar if alpha is None else algebra.multiply(scalar, algebra.jet(alpha)))
        return algebra.add(*parts, form.rest)

    def part(self, form: Form, with_unknown: bool) -> Form:
        """Return the terms with the unknown, or those without."""
        terms = [(key, c) for key, c in form.terms.items() if (key[0] is not None) == with_unknown]
        rest = [each for each in form.rest.terms if bool(self.algebra.jets_in(Scalar((each,)))) == with_unknown]
        return self._collected(terms, Scalar(tuple(rest)))

    def operator(self, form: Form) -> Operator | Nonlinear:
        """Return the operator that makes the form of the unknown; a form without it multiplies."""
        alone = [key for key in form.terms if key[0] is None and key[1]]
        if form.is_linear and not (form.has_unknown and alone):
            return self._linear(form)
        linear, others = (
            {key: c for key, c in form.terms.items() if (key[0] is None) == without} for without in (False, True)
        )
        jets = self.algebra.jets_in(form.rest)
        if all(alpha in jets for alpha, _ in linear):
            linear, others = {}, dict(form.terms)
        function = self.algebra.pointwise(self.whole(self._collected(others.items(), form.rest)), bool(linear))
        of = [self._linear(self._collected(linear.items()))] if linear else []
        of += [Operator(self.algebra.names, ((alpha, (((), 1.0),)),), ()) for alpha in jets]
        values = {name: self._values[name] for name in function.parameters}
        return Nonlinear(function, of, parameters=values, name=self.whole(form).text)

    def _linear(self, form: Form) -> Operator:
        names = form.parameters
        atoms: list[OperatorAtom] = [Parameter(name, jnp.asarray(self._values[name])) for name in names]
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

    def _product(self, first: Form, second: Form) -> Form:
        """Return the product of forms without rest, of which one factor at most has the unknown."""
        if len(first.terms) * len(second.terms) > 10 * MAX_TERMS:
            self._refuse_size()
        return self._collected(
            ((alpha if beta is None else beta, _merged(left, right)), self.algebra.multiply(a, b))
            for (alpha, left), a in first.terms.items()
            for (beta, right), b in second.terms.items()
        )

    def _form(self, scalar: Scalar) -> Form:
        """Return a function of the unknown and of parameters as a form."""
        return self._collected(*self.algebra.sorted(scalar))

    def _collected(self, pairs: Iterable[tuple[Key, Scalar]], rest: Scalar | None = None) -> Form:
        terms: dict[Key, Scalar] = {}
        for key, scalar in pairs:
            terms[key] = self.algebra.add(terms[key], scalar) if key in terms else scalar
        if len(terms) > MAX_TERMS:
            self._refuse_size()
        kept = {key: scalar for key, scalar in terms.items() if scalar.value != 0}
        if rest is None or not rest.terms:
            return Form(kept, Scalar(), (), ())
        check_operations(rest)
        return Form(kept, rest, tuple(self.algebra.jets_in(rest)), tuple(self.algebra.parameters_in(rest)))

    def _refuse_size(self) -> NoReturn:
        raise ArithmeticError(f"has more than {MAX_TERMS} terms when multiplied out; expected a shorter equation")


def _merged(first: tuple[tuple[str, int], ...], second: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    powers = dict(first)
    for name, power in second:
        powers[name] = powers.get(name, 0) + power
    return tuple(sorted((name, power) for name, power in powers.items() if power))
