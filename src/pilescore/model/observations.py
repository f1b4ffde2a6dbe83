"""Observations: noisy values of operators and functionals applied to the unknown function.

Data and physics are one concept. A block of observations is `v = R (L f)(P) + ε`, `ε_i ~ N(0, τ / 2w_i)`, with a
temperature `τ`: γ for data (where `w = 1` unless given), ρ for physics (where `w` are quadrature weights).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.linalg import block_diag

from ..domains import Factor, Nodes, Region
from ..equations import MultiIndex, Nonlinear, Operator, identity
from ..errors import InputError, as_array, as_points, as_positive, as_vector, call, check_coordinates, require

TEMPERATURES = {"data": "gamma", "physics": "rho"}
"""The name of the temperature that blocks of each role share."""


@dataclasses.dataclass(frozen=True, eq=False)
class Functional:
    """Linear functionals `R · (L f)(points)`, such as integrals, averages and differences.

    Parameters
    ----------
    operator
        `L`.
    points
        The points of evaluation, of shape (q, d).
    matrix
        `R`, of shape (n, q): one row for each functional.
    weights
        The quadrature weight of each functional when it is imposed, of shape (n,).
    pair
        For differences `(L f)(p_j) − (L f)(q_j)`, the nodes `p` and `q`; finer ones can be made from them.

    Examples
    --------
    The average of two probes:

    >>> import pilescore as ps
    >>> average = ps.model.Functional(ps.identity, points=[0.2, 0.8], matrix=[[0.5, 0.5]], weights=1.0)
    >>> average
    Functional(1 of Id at 2 points)
    >>> model = ps.Model(ps.RBF(0.3), data=ps.observe(average, values=3.0), gamma=1e-8)
    >>> ps.posterior(model).mean([0.2, 0.8]).round(3)
    array([3., 3.])
    """

    operator: Operator
    points: Any
    matrix: Any
    weights: Any
    pair: tuple[Nodes, Nodes] | None = None

    def __post_init__(self) -> None:
        _check_operator(self.operator)
        points, matrix = as_points(self.points, "points"), as_array(self.matrix, "matrix")
        shape = f"shape (n, {len(points)}), a column for each point"
        require(matrix.ndim == 2 and matrix.shape[1] == len(points) and len(matrix) > 0, "matrix", matrix, shape)
        require(bool(matrix.any(axis=1).all()), "matrix", matrix, "rows that are not all zero")
        weights = as_vector(self.weights, "weights", len(matrix), "functional")
        require(bool(np.all(weights > 0)), "weights", float(weights.min()), "positive weights")
        for name, array in (("points", points), ("matrix", matrix), ("weights", weights)):
            object.__setattr__(self, name, array)

    def __repr__(self) -> str:
        return f"Functional({len(self.matrix)} of {self.operator} at {len(self.points)} points)"


def integral(over: Nodes, operator: Operator = identity) -> Functional:
    """Return the functional `∫ L f` over a domain, a face or a slice.

    Parameters
    ----------
    over
        Nodes and weights of the integral.
    operator
        `L`.

    Examples
    --------
    >>> import pilescore as ps
    >>> strip = ps.Box(t=(0, 1), x=(0, 2))
    >>> mass = ps.integral(strip.slice(t=0.5)(ps.GaussLegendre(20)))
    >>> ps.observe(mass, values=1.0)
    observe(1 functional of Id at 20 points)
    """
    check_nodes(over, "over")
    _check_operator(operator)
    check_names(operator, () if over.region is None else over.names, "over")
    return Functional(operator, over.points, over.weights[None, :], np.ones(1))


def difference(first: Nodes, second: Nodes, operator: Operator = identity) -> Functional:
    """Return the functionals `(L f)(p_j) − (L f)(q_j)` for two sets of equally many nodes.

    Parameters
    ----------
    first, second
        The nodes `p` and `q`. Imposed functionals have the weights of the first set.
    operator
        `L`.

    Examples
    --------
    >>> import pilescore as ps
    >>> strip = ps.Box(t=(0, 1), x=(0, 2))
    >>> rule = ps.GaussLegendre(10)
    >>> jump = ps.difference(strip.face(x=2)(rule), strip.face(x=0)(rule))
    >>> ps.impose(jump, 0.0)
    impose(10 functionals of Id at 20 points)
    """
    check_nodes(first, "first")
    check_nodes(second, "second")
    _check_operator(operator)
    check_names(operator, () if first.region is None else first.names, "first")
    counts = f"{len(first)} and {len(second)} nodes"
    require(len(first) == len(second), "difference", counts, "two sets of equally many nodes")
    eye = np.eye(len(first))
    points = np.concatenate([first.points, second.points])
    return Functional(operator, points, np.concatenate([eye, -eye], axis=1), first.weights, (first, second))


def join_functionals(*functionals: Functional) -> Functional:
    """Return several functionals of one operator as one block.

    Parameters
    ----------
    functionals
        Functionals of the same operator.

    Examples
    --------
    >>> import pilescore as ps
    >>> strip = ps.Box(t=(0, 1), x=(0, 2))
    >>> slices = [strip.slice(t=t)(ps.GaussLegendre(20)) for t in (0.2, 0.5, 0.8)]
    >>> masses = ps.model.join_functionals(*[ps.integral(nodes) for nodes in slices])
    >>> ps.observe(masses, values=[1.0, 1.0, 1.0])
    observe(3 functionals of Id at 60 points)
    """
    require(len(functionals) > 0, "functionals", functionals, "at least one")
    first = functionals[0]
    for other in functionals[1:]:
        require(first.operator.same(other.operator), "functionals", other.operator, f"one operator, {first.operator}")
    points, weights = (np.concatenate([getattr(f, name) for f in functionals]) for name in ("points", "weights"))
    return Functional(first.operator, points, block_diag(*(f.matrix for f in functionals)), weights)


class Observation(eqx.Module):
    """A block of observations `v = R (L f)(P) + ε`, `ε_i ~ N(0, τ / 2w_i)`, as made by `observe` and `impose`.

    Examples
    --------
    >>> import pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> block = ps.impose(dx, lambda p: 2 * p[0], on=line.interior(ps.GaussLegendre(2)), rho=0.1, name="slope")
    >>> block
    impose(∂x at 2 points, name='slope')
    >>> block.role, block.size, block.values.round(3), block.weights
    ('physics', 2, array([0.423, 1.577]), array([0.5, 0.5]))
    >>> model = ps.Model(ps.RBF(0.5), physics=block)
    >>> model.noise  # ρ/2w
    array([0.1, 0.1])
    """

    role: Literal["data", "physics"] = eqx.field(static=True)
    """`data` if observed, `physics` if imposed."""
    name: str | None = eqx.field(static=True)
    """The label, if given."""
    operator: Operator | Nonlinear
    """`L`."""
    points: Float[np.ndarray, "q d"]
    """`P`."""
    matrix: Float[np.ndarray, "n q"] | None
    """`R`; None is the identity."""
    values: Float[np.ndarray, " n"]
    """`v`."""
    weights: Float[np.ndarray, " n"]
    """`w`: ones for data, the quadrature weights for physics, or `1/noise²` if a noise was given."""
    temperature: Float[Array, ""] | None
    """`τ` of this block; None if it shares the model's `gamma` or `rho`."""
    nodes: Nodes | None = eqx.field(static=True)
    """The nodes that physics was imposed on; of differences between two sets of nodes, the first set."""
    region: Region | None = eqx.field(static=True)
    """The region of the nodes, or the domain of the measurements."""
    indices: tuple[MultiIndex, ...] = eqx.field(static=True)
    """The multi-indices of the operator's terms."""
    table: Float[np.ndarray, "terms q"] | None
    """The operator's coefficients at the points; None if they depend on parameters."""
    source: Any = eqx.field(static=True, default=None)
    """The number or function that the values of physics were computed from; None if values were given."""
    zero: bool = eqx.field(static=True, default=False)
    """Whether it is physics whose imposed values are all zero. A curved block is not: its linearised targets vary."""
    constant: bool = eqx.field(static=True, default=False)
    """Whether it is physics whose imposed values are all the same, zero included."""
    exact: bool = eqx.field(static=True, default=False)
    """Whether the block holds exactly: its weights are those of a tolerance near rounding, not of a noise."""
    opposite: Nodes | None = eqx.field(static=True, default=None)
    """The second set of nodes, if the block consists of differences between two sets."""

    @property
    def size(self) -> int:
        """The number of values."""
        return len(self.values)

    @property
    def dimension(self) -> int:
        """The number of coordinates."""
        return int(self.points.shape[1])

    @property
    def is_functional(self) -> bool:
        """Whether the block observes functionals `R (L f)(P)` instead of values at its points."""
        return self.matrix is not None

    def observed(self, at_points: Float[np.ndarray, " q"]) -> Float[np.ndarray, " n"]:
        """Return the observed values from the values of `L f` at the points."""
        return at_points if self.matrix is None else self.matrix @ at_points

    def observed_variances(self, at_points: Float[np.ndarray, "q q"]) -> Float[np.ndarray, " n"]:
        """Return the variances of the observed values from the covariance of `L f` at the points."""
        if self.matrix is None:
            return at_points.diagonal()
        return np.einsum("nq,nq->n", self.matrix @ at_points, self.matrix)

    @property
    def centres(self) -> Float[np.ndarray, "n d"]:
        """A point for each value; for a functional, the mean of its points weighted by their influence."""
        if self.matrix is None:
            return self.points
        influence = np.abs(self.matrix)
        return influence @ self.points / influence.sum(axis=1, keepdims=True)

    @property
    def is_nonlinear(self) -> bool:
        """Whether the block observes a nonlinear function of `f` that has not been linearised."""
        return isinstance(self.operator, Nonlinear) and self.table is None

    @property
    def is_curved(self) -> bool:
        """Whether the block observes a nonlinear function of `f`, not only one of the parameters of its source."""
        return isinstance(self.operator, Nonlinear) and bool(self.operator.nonlinear_in(self.dimension))

    @property
    def linear_operator(self) -> Operator | None:
        """The operator; None if it is nonlinear, even if the block has been linearised."""
        return self.operator if isinstance(self.operator, Operator) else None

    @property
    def has_fixed_coefficients(self) -> bool:
        """Whether the coefficients do not depend on parameters or on the point of linearisation."""
        return self.table is not None

    @property
    def coefficients(self) -> Float[np.ndarray | Array, "terms q"]:
        """The operator's coefficients at the points."""
        if self.table is not None:
            return self.table
        assert isinstance(self.operator, Operator)
        return _compiled_coefficients(self.operator, self.points)

    def scaled(self, factors: Float[np.ndarray, " n"]) -> Observation:
        """Return the block with each row of `R L` multiplied by a factor; the observed values stay."""
        table = np.asarray(self.coefficients)
        if self.matrix is None:
            return dataclasses.replace(self, table=table * factors)
        return dataclasses.replace(self, table=table, matrix=self.matrix * factors[:, None])

    def restricted(self, keep: Int[np.ndarray, " k"]) -> Observation:
        """Return the block with some of its values only."""
        parts: dict[str, Any] = {"values": self.values[keep], "weights": self.weights[keep]}
        if self.matrix is not None:
            parts["matrix"] = self.matrix[keep]
        else:
            parts |= {"points": self.points[keep], "table": None if self.table is None else self.table[:, keep]}
        return dataclasses.replace(self, **parts)

    @property
    def unrefinable(self) -> str:
        """Why the nodes of the block cannot be refined; empty if they can."""
        if self.nodes is None:
            return "consists of functionals, which have no rule to refine"
        if self.nodes.rule is None or (self.opposite is not None and self.opposite.rule != self.nodes.rule):
            return "has nodes at explicit points, or a sum of nodes by different rules, which cannot be refined"
        if not (self.exact or np.array_equal(self.weights, self.nodes.weights)):
            return "has a noise for each node instead of weights: finer rules do not converge"
        return ""

    def refined(self, factor: Factor, value: Any = None) -> Observation | None:
        """Return the block imposed on `factor` times the nodes on each axis, or None if it cannot be refined.

        It can be refined if it was imposed by a quadrature rule and its noise follows from the weights of the rule;
        `unrefinable` says why not.

        Parameters
        ----------
        factor
            One number, or one for each axis of the rule; may be below one.
        value
            The value to impose; by default the number or function that the block was made with.

        Examples
        --------
        >>> import pilescore as ps
        >>> line = ps.Box(x=(0, 1))
        >>> (dx,) = ps.partials(line)
        >>> ps.impose(dx, 0.0, on=line.interior(ps.GaussLegendre(4))).refined(1.5)
        impose(∂x at 6 points)
        >>> ps.impose(dx, 0.0, on=line.interior(ps.GaussLegendre(4)), noise=0.1).refined(1.5) is None
        True
        """
        value = self.source if value is None else value
        if value is None or self.nodes is None or self.unrefinable:
            return None
        on, rho = self.nodes.refined(factor), None if self.exact else self.temperature
        if self.opposite is None:
            return impose(self.operator, value, on=on, rho=rho, name=self.name)
        assert isinstance(self.operator, Operator)  # functionals are linear
        return impose(difference(on, self.opposite.refined(factor), self.operator), value, rho=rho, name=self.name)

    def within(self, deviations: Float[np.ndarray, " n"]) -> Observation:
        """Return the block as an exact one that holds to within these deviations."""
        return dataclasses.replace(self, weights=1.0 / deviations**2, temperature=jnp.asarray(2.0), exact=True)

    def __deepcopy__(self, memo: dict[int, Any]) -> Observation:
        """Return the block itself: it is immutable, and a copy would lose the function of its source."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Drop a function, which may not be picklable: only refining the rule needs it."""
        return {**self.__dict__, "source": None if callable(self.source) else self.source}

    def __repr__(self) -> str:
        verb = "observe" if self.role == "data" else "impose"
        label = f", name={self.name!r}" if self.name else ""
        count = len(self.points)
        if self.is_functional:
            many = "functional" if self.size == 1 else "functionals"
            return f"{verb}({self.size} {many} of {self.operator} at {count} points{label})"
        return f"{verb}({self.operator} at {count} {'point' if count == 1 else 'points'}{label})"


@eqx.filter_jit
def _compiled_coefficients(operator: Operator, points: Any) -> Any:
    """Return coefficients that depend on parameters; compiled because searches evaluate them many times."""
    return operator.coefficients(points)


def observe(
    operator: Operator | Nonlinear | Functional,
    values: Any,
    at: Any = None,
    *,
    gamma: Any = None,
    noise: Any = None,
    domain: Region | None = None,
    name: str | None = None,
) -> Observation:
    """Return a block of measurements `y_i = (L f)(x_i) + ε_i`, `ε_i ~ N(0, γ/2)`.

    Parameters
    ----------
    operator
        What was measured: `identity`, any operator, a `Functional`, or a `Nonlinear`.
    values
        `y`, one for each point, or a number for all.
    at
        The points `x`, of shape (n, d), or (n,) in one dimension. Functionals have their own.
    gamma
        The temperature of this block; by default the model's `gamma`.
    noise
        The known standard deviation of the noise, one for each value or one for all, instead of a temperature. The
        block then has `γ = 2` and weights `1/noise²`.
    domain
        If given, points outside it raise an error.
    name
        A label for reports.

    Examples
    --------
    >>> import pilescore as ps
    >>> ps.observe(ps.identity, values=[0.1, 0.4, 0.2], at=[0.0, 0.5, 1.0], noise=0.05)
    observe(Id at 3 points)
    """
    if isinstance(operator, Functional):
        require(at is None, "at", at, "nothing: a functional has its own points")
        points, matrix = operator.points, operator.matrix
        target: Operator | Nonlinear = operator.operator
    else:
        _check_operator(operator, Nonlinear)
        require(at is not None, "at", at, "the points of measurement")
        points, matrix, target = as_points(at, "at"), None, operator
    count = len(points) if matrix is None else len(matrix)
    vector = as_vector(values, "values", count, "point" if matrix is None else "functional")
    if domain is not None:
        _check_inside(points, domain)
    return _observation("data", name, target, points, matrix, vector, np.ones(count), gamma, noise, None, domain)


def impose(
    operator: Operator | Nonlinear | Functional,
    value: Any,
    on: Nodes | None = None,
    *,
    rho: Any = None,
    noise: Any = None,
    name: str | None = None,
) -> Observation:
    """Return a block of physics: `(A f)(z_j) = r_j` at quadrature nodes.

    Without `rho` and `noise` the equation is exact: it is part of the prior, and holds to a tolerance near rounding.
    With a temperature ρ it is a soft constraint with noise variance `ρ / 2w_j`, as in the paper; with a `noise` it is
    a measurement.

    Parameters
    ----------
    operator
        `A`: an operator, a `Nonlinear`, or a `Functional` (which has its own nodes).
    value
        `r`: a number, a function of the point, or an array with one value for each node.
    on
        Nodes and weights, such as `square.interior(ps.GaussLegendre(13))` or `ps.domains.nodes_at(points, weights)`.
    rho
        The temperature of this block; by default the model's `rho`, if it has one.
    noise
        The standard deviation of the equation's residual at each node, instead of a temperature.
    name
        A label for reports.

    Examples
    --------
    >>> import pilescore as ps
    >>> square = ps.Box(x=(-1, 1), y=(-1, 1))
    >>> ps.impose(ps.laplacian(square), lambda p: p[0] * p[1], on=square.interior(ps.GaussLegendre(5)))
    impose(∂x² + ∂y² at 25 points)
    """
    if isinstance(operator, Functional):
        require(on is None, "on", on, "nothing: a functional has its own nodes")
        points, matrix, weights = operator.points, operator.matrix, operator.weights
        target: Operator | Nonlinear = operator.operator
        require(not callable(value), "value", value, "numbers: a functional has no single point")
    else:
        _check_operator(operator, Nonlinear)
        check_nodes(on, "on")
        assert on is not None
        points, matrix, target, weights = on.points, None, operator, on.weights
        check_names(target, () if on.region is None else on.names, "on")
    count = len(weights)
    numbers = evaluate(value, points, "value") if callable(value) else value
    vector = as_vector(numbers, "value", count, "node" if matrix is None else "functional")
    region = None if on is None else on.region
    opposite = None
    if isinstance(operator, Functional) and operator.pair is not None:
        on, opposite = operator.pair
    block = _observation("physics", name, target, points, matrix, vector, weights, rho, noise, on, region)
    block = dataclasses.replace(block, opposite=opposite)
    if callable(value):
        return dataclasses.replace(block, source=value)
    return dataclasses.replace(block, source=float(value)) if np.ndim(value) == 0 else block


def labels(blocks: Sequence[Observation]) -> tuple[str, ...]:
    """Return the label of each block: its name, or its role and its number within the role."""
    counts = {"data": itertools.count(), "physics": itertools.count()}
    numbered = [(block, next(counts[block.role])) for block in blocks]
    return tuple(block.name or f"{block.role}.{i}" for block, i in numbered)


def evaluate(function: Callable[[Any], Any], points: Float[np.ndarray, "n d"], argument: str) -> np.ndarray:
    """Evaluate a function of one point at each point: vectorised if it is a JAX function, otherwise in a loop."""
    check_coordinates(function, points[0], argument)
    try:
        return np.asarray(jax.vmap(function)(jnp.asarray(points)))
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError, TypeError):
        return np.asarray([call(function, point, argument) for point in points])


def _observation(
    role: Literal["data", "physics"],
    name: str | None,
    operator: Operator | Nonlinear,
    points: Float[np.ndarray, "q d"],
    matrix: Float[np.ndarray, "n q"] | None,
    values: Float[np.ndarray, " n"],
    weights: Float[np.ndarray, " n"],
    temperature: Any,
    noise: Any,
    nodes: Nodes | None,
    region: Region | None,
) -> Observation:
    indices, symbol = operator.indices(points.shape[1]), TEMPERATURES[role]
    require(temperature is None or noise is None, "noise", noise, f"either {symbol} or noise, not both")
    if noise is not None:  # τ/2w is the variance noise²
        deviation = as_vector(noise, "noise", len(values), "value")
        require(bool(np.all(deviation > 0)), "noise", float(deviation.min()), "positive standard deviations")
        weights, temperature = 1.0 / deviation**2, 2.0
    if temperature is not None:
        as_positive(temperature, symbol)
    table = None
    if isinstance(operator, Nonlinear):
        operator.check(points.shape[1])
        for each in operator.of:
            _table(each, points)
    else:
        table = _table(operator, points)
    for array in (points, matrix, values, weights, table):
        if array is not None:
            array.flags.writeable = False  # blocks are immutable: results computed from them are cached
    scalar = None if temperature is None else jnp.asarray(float(temperature))
    known = None if isinstance(operator, Operator) and operator.has_parameters else table
    block = Observation(
        role,
        name,
        operator,
        points,
        matrix,
        values,
        weights,
        scalar,
        nodes,
        region,
        indices,
        known,
        constant=role == "physics" and bool(np.all(values == values[0])),
    )
    return dataclasses.replace(block, zero=role == "physics" and not values.any() and not block.is_curved)


def _table(operator: Operator, points: Float[np.ndarray, "q d"]) -> Float[np.ndarray, "terms q"]:
    require(len(operator.terms) > 0, "operator", operator, "an operator that is not zero")
    table = np.array(operator.coefficients(points))
    if not np.isfinite(table).all():
        bad = points[np.flatnonzero(~np.isfinite(table).all(axis=0))[0]]
        raise InputError(f"operator {operator}: a coefficient is NaN or infinite at the point {bad}")
    return table


def _check_operator(operator: Any, *others: type) -> None:
    expected = "an operator such as ps.identity or ps.laplacian(box), or a functional such as ps.integral(nodes)"
    if isinstance(operator, Nonlinear) and not others:
        expected = "a linear operator: a functional of a nonlinear one cannot be imposed"
    require(isinstance(operator, (Operator, *others)), "operator", operator, expected)


def check_names(operator: Operator | Nonlinear, names: tuple[str, ...], argument: str) -> None:
    """Raise an `InputError` if an operator acts on coordinates of other names; unnamed coordinates always match."""
    if operator.names and names and operator.names != names:
        raise InputError(
            f"{argument}: the operator {operator} acts on ({', '.join(operator.names)}), but the coordinates are "
            f"({', '.join(names)})"
        )


def check_nodes(on: Any, argument: str) -> None:
    """Raise an `InputError` unless the argument is `Nodes`."""
    expected = "nodes with weights: box.interior(rule), box.face(x=0)(rule) or ps.domains.nodes_at(points, weights)"
    require(isinstance(on, Nodes), argument, on, expected)


def _check_inside(points: Float[np.ndarray, "n d"], domain: Region) -> None:
    require(points.shape[1] == domain.dimension, "at", points, f"points with {domain.dimension} coordinates")
    outside = np.flatnonzero(~domain.contains(points))
    if outside.size:
        first = ", ".join(f"{name} = {v:g}" for name, v in zip(domain.names, points[outside[0]], strict=True))
        raise InputError(
            f"at: {outside.size} of {len(points)} points lie outside {domain!r}; the first is number "
            f"{outside[0]}, ({first}). Check the order of the columns and the units."
        )
