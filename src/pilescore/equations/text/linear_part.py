"""Forms: expressions split into the part that is linear in the unknown and the rest, and the operators of forms.

The linear part is `Σ c_α(x) a^p ∂^α u`: known functions times integer powers of inferred parameters times derivatives
of the unknown. The rest is one function of the point, the unknown and the parameters. An operation without a result
raises an `ArithmeticError`; its message continues "'…' at column 3: ".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import jax.numpy as jnp

from ..coefficients import Atom, Coefficient, CoefficientFunction, Monomial, MultiIndex, Parameter, multiply_powers
from ..nonlinear import Nonlinear
from ..operators import Operator
from .expressions import Expression, Factor, raised_order
from .unknown import Key, UnknownAlgebra, check_operations

MAX_TERMS = 200
"""The largest number of terms of a form: derivatives of the unknown times different powers of parameters."""
MAX_PARAMETER_POWER = 10
"""The largest power up to which an expression of parameters is multiplied out."""


@dataclass(frozen=True, eq=False, repr=False)
class Form:
    """The linear part of an expression, as known functions by what they multiply, and the rest."""

    terms: Mapping[Key, Expression]
    rest: Expression
    """The terms that are not linear in the unknown, or that have parameters other than in integer powers."""
    jets: tuple[MultiIndex, ...]
    """The derivatives of the unknown in the rest."""
    names: tuple[str, ...]
    """The parameters in the rest."""

    @property
    def is_linear(self) -> bool:
        """Whether the rest is zero."""
        return not self.rest.terms

    @property
    def has_unknown(self) -> bool:
        """Whether the form contains the unknown."""
        return bool(self.jets) or any(alpha is not None for alpha, _ in self.terms)

    @property
    def parameters(self) -> list[str]:
        """The names of all parameters."""
        return list(dict.fromkeys([*(name for _, powers in self.terms for name, _ in powers), *self.names]))

    @property
    def known(self) -> Expression | None:
        """The form as a known function; None if it contains the unknown or a parameter."""
        return None if self.has_unknown or self.parameters else self.terms.get((None, ()), Expression())


class FormAlgebra:
    """The arithmetic and calculus of forms, and the operators made of them."""

    def __init__(self, algebra: UnknownAlgebra, parameters: Mapping[str, float]) -> None:
        self.algebra = algebra
        self._zero = (0,) * len(algebra.names)
        self._values = {name: float(v) for name, v in parameters.items()}

    def known(self, expression: Expression) -> Form:
        """Return a known function as a form."""
        return self._collected([((None, ()), expression)])

    def unknown(self) -> Form:
        """Return the unknown."""
        return self._collected([((self._zero, ()), self.algebra.number(1.0))])

    def parameter(self, name: str) -> Form:
        """Return an inferred parameter."""
        return self._collected([((None, ((name, 1),)), self.algebra.number(1.0))])

    def add(self, *forms: Form) -> Form:
        """Return the sum."""
        terms = [term for form in forms for term in form.terms.items()]
        return self._collected(terms, self.algebra.add(*(form.rest for form in forms)))

    def subtract(self, first: Form, second: Form) -> Form:
        """Return the difference."""
        return self.add(first, self.negative(second))

    def negative(self, form: Form) -> Form:
        """Return minus the form."""
        minus = self.algebra.number(-1.0)
        terms = [(key, self.algebra.multiply(minus, expression)) for key, expression in form.terms.items()]
        return self._collected(terms, self.algebra.multiply(minus, form.rest))

    def multiply(self, first: Form, second: Form) -> Form:
        """Return the product, multiplied out where this leaves terms that are linear in the unknown."""
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
            raise ArithmeticError("divides by zero")
        if second.has_unknown or not second.is_linear or len(second.terms) > 1:
            return self.multiply(first, self._form(self.algebra.reciprocal(self.whole(second))))
        (((_, powers), expression),) = second.terms.items()
        inverse = tuple((name, -power) for name, power in powers)
        return self.multiply(self._collected([((None, inverse), self.algebra.reciprocal(expression))]), first)

    def power(self, base: Form, exponent: Form) -> Form:
        """Return a power; small integer powers of forms without the unknown are multiplied out."""
        if base.known is not None and exponent.known is not None:
            return self.known(self.algebra.power(base.known, exponent.known))
        n = None if exponent.known is None else exponent.known.value
        if n == 1:
            return base
        small_integer = n is not None and n == int(n) and 0 < abs(n) <= MAX_PARAMETER_POWER
        if n is None or not small_integer or base.has_unknown or not base.is_linear or (n < 0 and len(base.terms) > 1):
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
        """Return the derivative along an axis, by the product rule and the chain rule."""
        terms: list[tuple[Key, Expression]] = []
        for (alpha, powers), expression in form.terms.items():
            if alpha is not None:
                terms.append(((raised_order(alpha, axis), powers), expression))
            terms.append(((alpha, powers), self.algebra.derivative(expression, axis)))
        return self.add(self._collected(terms), self._form(self.algebra.total(form.rest, axis)))

    def whole(self, form: Form) -> Expression:
        """Return a form as one expression of the unknown and the parameters."""
        algebra, terms = self.algebra, []
        for (alpha, powers), expression in form.terms.items():
            for name, power in powers:
                expression = algebra.multiply(expression, algebra.power(algebra.parameter(name), algebra.number(power)))
            terms.append(expression if alpha is None else algebra.multiply(expression, algebra.jet(alpha)))
        return algebra.add(*terms, form.rest)

    def has_term_without_unknown(self, form: Form) -> bool:
        """Whether some term does not contain the unknown."""
        rest = (self.algebra.jets_in(Expression((term,))) for term in form.rest.terms)
        return any(alpha is None for alpha, _ in form.terms) or not all(rest)

    def operator(self, form: Form) -> Operator | Nonlinear:
        """Return the operator that maps the unknown to a form; a form without the unknown multiplies."""
        constants = [key for key in form.terms if key[0] is None and key[1]]
        if form.is_linear and not (form.has_unknown and constants):
            return self._linear(form)
        linear, others = (
            {key: c for key, c in form.terms.items() if (key[0] is None) == without} for without in (False, True)
        )
        jets = self.algebra.jets_in(form.rest)
        if all(alpha in jets for alpha, _ in linear):
            # The rest takes all of these derivatives anyway, so it can hold the linear terms too.
            linear, others = {}, dict(form.terms)
        function = self.algebra.pointwise(self.whole(self._collected(others.items(), form.rest)), bool(linear))
        of = [self._linear(self._collected(linear.items()))] if linear else []
        of += [Operator(self.algebra.names, ((alpha, (((), 1.0),)),), ()) for alpha in jets]
        values = {name: self._values[name] for name in function.parameters}
        return Nonlinear(function, of, parameters=values, name=self.whole(form).text)

    def _linear(self, form: Form) -> Operator:
        names = form.parameters
        atoms: list[Atom] = [Parameter(name, jnp.asarray(self._values[name])) for name in names]
        places: dict[Factor, int] = {}
        terms: dict[MultiIndex, dict[Monomial, float]] = {}
        for (alpha, powers), expression in form.terms.items():
            number, functions = self.algebra.factorised(expression)
            for factor, _ in functions:
                if factor not in places:
                    places[factor] = len(atoms)
                    atoms.append(self._coefficient(factor))
            monomial = [(names.index(name), power) for name, power in powers]
            monomial += [(places[factor], power) for factor, power in functions]
            terms.setdefault(alpha or self._zero, {})[tuple(sorted(monomial))] = number
        rows: list[tuple[MultiIndex, Coefficient]] = [(alpha, tuple(row.items())) for alpha, row in terms.items()]
        return Operator(self.algebra.names, tuple(rows), tuple(atoms))

    def _coefficient(self, factor: Factor) -> CoefficientFunction:
        base, order = (factor, self._zero) if factor.of is None else (factor.of, factor.order)
        return CoefficientFunction(base.text, self.algebra.names, order, base)

    def _product(self, first: Form, second: Form) -> Form:
        """Return the product of two linear forms; at most one of them contains the unknown."""
        if len(first.terms) * len(second.terms) > 10 * MAX_TERMS:
            self._refuse_size()
        return self._collected(
            ((alpha if beta is None else beta, multiply_powers(left, right)), self.algebra.multiply(a, b))
            for (alpha, left), a in first.terms.items()
            for (beta, right), b in second.terms.items()
        )

    def _form(self, expression: Expression) -> Form:
        """Return an expression of the unknown and the parameters as a form."""
        return self._collected(*self.algebra.split(expression))

    def _collected(self, pairs: Iterable[tuple[Key, Expression]], rest: Expression | None = None) -> Form:
        """Return a form with like terms collected and zeros removed."""
        terms: dict[Key, Expression] = {}
        for key, expression in pairs:
            terms[key] = self.algebra.add(terms[key], expression) if key in terms else expression
        if len(terms) > MAX_TERMS:
            self._refuse_size()
        nonzero = {key: expression for key, expression in terms.items() if expression.value != 0}
        if rest is None or not rest.terms:
            return Form(nonzero, Expression(), (), ())
        check_operations(rest)
        return Form(nonzero, rest, tuple(self.algebra.jets_in(rest)), tuple(self.algebra.parameters_in(rest)))

    def _refuse_size(self) -> NoReturn:
        raise ArithmeticError(f"has more than {MAX_TERMS} terms when multiplied out; use a shorter equation")
