"""Nonlinear operators `A(f)(p) = P(p, L₁f(p), …, L_Q f(p))`: pointwise functions of linear operators."""

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

from ..errors import InputError, call, check_coordinates, require
from .coefficients import MultiIndex, Parameter, as_parameter
from .operators import RESERVED, Operator

SIGNATURE = "a function of the point, one number for each operator in `of`, and the parameters by name"

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
"""JAX primitives whose derivatives do not show the whole dependence on their arguments."""


class Nonlinear(eqx.Module):
    """A nonlinear differential operator: a pointwise function of linear ones.

    Parameters
    ----------
    function
        `P(p, *values, **parameters)`: a differentiable JAX function that returns one number. It takes one point of
        shape (d,), the value of each operator in `of` at that point, and named numbers.
    of
        The linear operators `L₁, …, L_Q`.
    parameters
        Numbers that `P` takes by name. They become hyperparameters of the model, like those of `parameter`.
    name
        The name to print.

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
        operators = (of,) if isinstance(of, Operator) else of
        expected = "linear operators such as (ps.identity, dx, ps.laplacian(box))"
        require(isinstance(operators, Sequence) and len(operators) > 0, "of", of, expected)
        for operator in operators:
            require(isinstance(operator, Operator) and len(operator.terms) > 0, "of", operator, expected)
        coordinates = {operator.names for operator in operators if operator.names}
        require(len(coordinates) <= 1, "of", sorted(coordinates), "operators on the same coordinates")
        require(parameters is None or isinstance(parameters, Mapping), "parameters", parameters, "numbers by name")
        atoms = []
        for key, value in (parameters or {}).items():
            good = isinstance(key, str) and key.isidentifier() and key not in RESERVED
            require(good, "parameters", key, "a name such as 'nu'")
            atoms.append(as_parameter(key, value))
        require(name is None or isinstance(name, str), "name", name, "a string")
        self.function = function
        self.of = tuple(operators)
        self.atoms = tuple(atoms)
        listed_parameters = f"; {', '.join(atom.name for atom in atoms)}" if atoms else ""
        self.name = name or f"P({', '.join(map(str, operators))}{listed_parameters})"

    @property
    def linear_parts(self) -> tuple[Operator, ...]:
        """The linear operators that the function takes."""
        return self.of

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the coordinates; empty if the operators fit any space."""
        return next((operator.names for operator in self.of if operator.names), ())

    @property
    def order(self) -> int:
        """The highest order of differentiation."""
        return max(operator.order for operator in self.of)

    def indices(self, dimension: int) -> tuple[MultiIndex, ...]:
        """Return the multi-indices of all operators, for points with `dimension` coordinates."""
        return tuple(sorted({alpha for operator in self.of for alpha in operator.indices(dimension)}))

    def at(self, point: Float[Array, " d"], values: Any) -> Array:
        """Return `P` at one point, given the value of each operator there."""
        label = f"the function {self.name}"
        result = call(self._at_values(values), point, label, SIGNATURE)
        is_number = isinstance(result, int | float | complex | np.ndarray | np.number | Array)
        require(is_number, label, result, "one number at each point")
        number = jnp.asarray(result)
        require(number.shape == (), label, number, "one number at each point")
        real = jnp.issubdtype(number.dtype, jnp.floating) or jnp.issubdtype(number.dtype, jnp.integer)
        require(real, label, number.dtype, "a real number, which can be differentiated")
        return number.astype(float)

    def _at_values(self, values: Any) -> Callable[[Any], Any]:
        """Return `P` as a function of the point alone."""
        named = {atom.name: atom.value for atom in self.atoms}
        return lambda point: self.function(point, *values, **named)

    def __call__(self, function: Callable[[Array], Any]) -> Callable[[Any], Array]:
        """Return the function `p ↦ A(f)(p)` for any JAX function `f` of one point."""

        def applied(point: Any) -> Array:
            p = jnp.asarray(point, dtype=float)
            return self.at(p, [operator(function)(p) for operator in self.of])

        return applied

    def check(self, dimension: int) -> None:
        """Raise an `InputError` unless JAX can differentiate `P` twice at points with `dimension` coordinates."""
        for operator in self.of:
            operator.check_dimension(dimension)
        point, values = jnp.zeros(dimension), [jnp.zeros(())] * len(self.of)
        check_coordinates(self._at_values(values), np.zeros(dimension), f"the function {self.name}")
        # The parameters are traced here, as they are in a search: a function that converts them to floats fails now.
        eqx.filter_eval_shape(Nonlinear.at, self, point, values)
        try:
            jax.eval_shape(jax.hessian(self.at, argnums=1), point, values)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise InputError(
                f"the function {self.name}: expected a function that JAX can differentiate twice; "
                f"differentiating it gave: {str(error).splitlines()[0]}"
            ) from error

    def nonlinear_in(self, dimension: int) -> tuple[int, ...]:
        """Return the positions in `of` of the operators in whose values `P` is not linear.

        `P` is linear in a value if the derivative with respect to it is computed without any of the values. If `P`
        may jump, which derivatives do not show, it counts as nonlinear in every value.
        """
        find = _cached_nonlinear_in if isinstance(self.function, Hashable) else _nonlinear_in
        return find(self.function, len(self.of), tuple(atom.name for atom in self.atoms), dimension)

    def _refused(self, _: object) -> NoReturn:
        raise InputError(f"{self.name}: nonlinear operators do not add or multiply; do so inside the function")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = __rmatmul__ = __truediv__ = _refused
    __array_ufunc__ = None  # NumPy then leaves `number * operator` to `__rmul__`, which refuses it

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


def _nonlinear_in(function: Callable[..., Any], count: int, names: tuple[str, ...], dimension: int) -> tuple[int, ...]:
    def at(point: Array, values: list[Array], numbers: list[Array]) -> Array:
        return jnp.asarray(function(point, *values, **dict(zip(names, numbers, strict=True))), dtype=float)

    arguments = jnp.zeros(dimension), [jnp.zeros(())] * count, [jnp.ones(())] * len(names)
    if any(step.primitive.name in JUMPS for step in _steps(jax.make_jaxpr(at)(*arguments).jaxpr)):
        return tuple(range(count))
    graph = jax.make_jaxpr(jax.grad(at, argnums=1))(*arguments).jaxpr
    # Follow the data flow: everything computed from a value depends on it. invars[0] is the point.
    dependent = set(graph.invars[1 : 1 + count])
    for step in graph.eqns:
        if not dependent.isdisjoint(_variables(step.invars)):
            dependent.update(step.outvars)
    return tuple(i for i, out in enumerate(graph.outvars) if not dependent.isdisjoint(_variables([out])))


_cached_nonlinear_in = functools.lru_cache(maxsize=64)(_nonlinear_in)


def _variables(inputs: Sequence[Any]) -> list[Any]:
    return [variable for variable in inputs if not isinstance(variable, Literal)]  # literals are not hashable


def _steps(graph: Any) -> Iterator[Any]:
    """Yield all steps of a traced function, including the steps of functions inside it."""
    for step in graph.eqns:
        yield step
        for inner in jax.tree.leaves(step.params, is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            if hasattr(inner, "eqns"):
                yield from _steps(inner)
