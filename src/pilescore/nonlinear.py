"""Nonlinear operators `A(f)(p) = P(p, L₁f(p), …, L_Q f(p))`: a function of the point and of linear operators there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from jaxtyping import Array, Float

from .atoms import MultiIndex, Parameter
from .errors import InputError, as_array, call, check_coordinates, require
from .operators import RESERVED, Operator

SIGNATURE = "a function of the point, of one number for each operator in `of`, and of the parameters by name"

JUMPS = {
    "round",
    "floor",
    "ceil",
    "sign",
    "nextafter",
    "rem",
    "eq",
    "ne",
    "lt",
    "gt",
    "le",
    "ge",
    "is_finite",
    "stop_gradient",
    "convert_element_type",
    "argmax",
    "argmin",
    "custom_jvp_call",
    "custom_vjp_call",
    "while",
    "cond",
    "scan",
    "pure_callback",
    "reduce_precision",
    "bitcast_convert_type",
}
"""Steps of a traced function whose derivatives do not tell all of how it depends on its arguments."""


class Nonlinear(eqx.Module):
    """A nonlinear differential operator: a pointwise function of linear ones.

    Parameters
    ----------
    function
        `P(p, *values, **parameters)`: a JAX function of one point of shape (d,), of the value of each operator in `of`
        there, and of named numbers. It returns one number and is differentiable.
    of
        The linear operators `L₁, …, L_Q`.
    parameters
        Numbers that `P` takes by name: hyperparameters of the model, as those of `parameter` are.
    name
        How it prints.

    Examples
    --------
    >>> import jax.numpy as jnp, pilescore as ps
    >>> dt, dx = ps.partials(ps.Box(t=(0, 1), x=(-1, 1)))
    >>> burgers = ps.Nonlinear(
    ...     lambda p, u, u_t, u_x, u_xx, nu: u_t + u * u_x - nu * u_xx,
    ...     of=(ps.identity, dt, dx, dx**2),
    ...     parameters={"nu": 0.02},
    ... )
    >>> burgers
    P(Id, ∂t, ∂x, ∂x²; nu)
    >>> burgers(lambda p: p[0] * p[1])((2.0, 3.0)).item()  # x + (t x) t
    15.0
    """

    function: Callable[..., Any]
    of: tuple[Operator, ...]
    atoms: tuple[Parameter, ...]
    name: str = eqx.field(static=True)

    def __init__(
        self,
        function: Callable[..., Any],
        of: Operator | Sequence[Operator],
        *,
        parameters: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> None:
        require(callable(function), "function", function, SIGNATURE)
        given = (of,) if isinstance(of, Operator) else of
        expected = "linear operators such as (ps.identity, dx, ps.laplacian(box))"
        require(isinstance(given, Sequence) and len(given) > 0, "of", of, expected)
        for each in given:
            require(isinstance(each, Operator) and len(each.terms) > 0, "of", each, expected)
        named = {each.names for each in given if each.names}
        require(len(named) <= 1, "of", sorted(named), "operators on the same coordinates")
        require(parameters is None or isinstance(parameters, Mapping), "parameters", parameters, "numbers by name")
        atoms = []
        for key, value in (parameters or {}).items():
            good = isinstance(key, str) and key.isidentifier() and key not in RESERVED
            require(good, "parameters", key, "a name such as 'nu'")
            number = as_array(value, f"parameter {key!r}")
            require(number.ndim == 0, f"parameter {key!r}", value, "a single number")
            atoms.append(Parameter(key, jnp.asarray(number)))
        require(name is None or isinstance(name, str), "name", name, "a text")
        self.function = function
        self.of = tuple(given)
        self.atoms = tuple(atoms)
        own = f"; {', '.join(atom.name for atom in atoms)}" if atoms else ""
        self.name = name or f"P({', '.join(map(str, given))}{own})"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the coordinates, where an operator knows them."""
        return next((each.names for each in self.of if each.names), ())

    @property
    def order(self) -> int:
        """The highest order of differentiation."""
        return max(each.order for each in self.of)

    def same(self, other: object) -> bool:
        """Whether both are the same function of the same operators and parameters."""
        if not isinstance(other, Nonlinear) or other.function is not self.function or len(other.of) != len(self.of):
            return False
        mine, its = ({atom.name: float(atom.value) for atom in each.atoms} for each in (self, other))
        return mine == its and all(a.same(b) for a, b in zip(self.of, other.of, strict=True))

    def indices(self, dimension: int) -> tuple[MultiIndex, ...]:
        """Return the multi-indices of all operators for points of this dimension."""
        return tuple(sorted({alpha for each in self.of for alpha in each.indices(dimension)}))

    def at(self, point: Float[Array, " d"], values: Any) -> Array:
        """Return `P` at one point, given the value of each operator there."""
        named = {atom.name: atom.value for atom in self.atoms}
        evaluate = functools.partial(self._called, values=list(values), named=named)
        found = call(evaluate, point, f"the function {self.name}", SIGNATURE)
        number = isinstance(found, int | float | complex | np.ndarray | np.number | Array)
        require(number, f"the function {self.name}", found, "one number at each point")
        out = jnp.asarray(found)
        require(out.shape == (), f"the function {self.name}", out, "one number at each point")
        real = jnp.issubdtype(out.dtype, jnp.floating) or jnp.issubdtype(out.dtype, jnp.integer)
        require(real, f"the function {self.name}", out.dtype, "a real number, which can be differentiated")
        return out.astype(float)

    def _called(self, point: Any, values: list[Any], named: Mapping[str, Any]) -> Any:
        return self.function(point, *values, **named)

    def __call__(self, function: Callable[[Array], Any]) -> Callable[[Any], Array]:
        """Return the function `p ↦ A(f)(p)` for any JAX function `f` of one point."""

        def applied(point: Any) -> Array:
            p = jnp.asarray(point, dtype=float)
            return self.at(p, [each(function)(p) for each in self.of])

        return applied

    def check(self, dimension: int) -> None:
        """Raise an `InputError` unless `P` is a JAX function of points of this dimension that can be differentiated."""
        for each in self.of:
            each.check_dimension(dimension)
        point, values = jnp.zeros(dimension), [jnp.zeros(())] * len(self.of)
        named = {atom.name: atom.value for atom in self.atoms}
        evaluate = functools.partial(self._called, values=values, named=named)
        check_coordinates(evaluate, np.zeros(dimension), f"the function {self.name}")
        eqx.filter_eval_shape(Nonlinear.at, self, point, values)  # with parameters that are traced, as in a search
        try:
            jax.eval_shape(jax.hessian(self.at, argnums=1), point, values)
        except (TypeError, ValueError, NotImplementedError) as error:
            expected = "a function that JAX can differentiate twice"
            what = str(error).splitlines()[0]
            raise InputError(f"the function {self.name}: expected {expected}; doing so gave: {what}") from error

    def nonlinear_in(self, dimension: int) -> tuple[int, ...]:
        """Return the numbers of those operators in `of` in whose values `P` is not linear.

        `P` is linear in a value where its derivative in it is computed without any of the values, unless something in
        `P` may jump, which derivatives do not see.
        """
        known = isinstance(self.function, Hashable)
        find = _remembered_nonlinear_in if known else _nonlinear_in
        return find(self.function, len(self.of), tuple(atom.name for atom in self.atoms), dimension)

    def _refused(self, _: object) -> NoReturn:
        raise InputError(f"{self.name}: a nonlinear operator has no sums or products; write them inside its function")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = __rmatmul__ = __truediv__ = _refused
    __array_ufunc__ = None  # so that a NumPy number times it is left to it

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


def _nonlinear_in(function: Callable[..., Any], count: int, names: tuple[str, ...], dimension: int) -> tuple[int, ...]:
    def at(point: Array, values: list[Array], numbers: list[Array]) -> Array:
        return jnp.asarray(function(point, *values, **dict(zip(names, numbers, strict=True))), dtype=float)

    given = jnp.zeros(dimension), [jnp.zeros(())] * count, [jnp.ones(())] * len(names)
    if any(equation.primitive.name in JUMPS for equation in _equations(jax.make_jaxpr(at)(*given).jaxpr)):
        return tuple(range(count))
    graph = jax.make_jaxpr(jax.grad(at, argnums=1))(*given).jaxpr
    moving = set(graph.invars[1 : 1 + count])
    for equation in graph.eqns:
        if not moving.isdisjoint(_variables(equation.invars)):
            moving.update(equation.outvars)
    return tuple(i for i, out in enumerate(graph.outvars) if not moving.isdisjoint(_variables([out])))


_remembered_nonlinear_in = functools.lru_cache(maxsize=64)(_nonlinear_in)


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, Literal)]


def _equations(graph: Any) -> Iterator[Any]:
    """Give all steps of a traced function, those of functions within it too."""
    for equation in graph.eqns:
        yield equation
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda each: hasattr(each, "eqns")):
            if hasattr(inner, "eqns"):
                yield from _equations(inner)
