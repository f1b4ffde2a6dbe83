"""A nonlinear model as a pointwise function of linear functionals of the unknown, and its linearisation.

Each nonlinear block `P(p, L₁f, …, L_Qf)` is written as `g(p, v) + Λf`. The values `v` belong to the operators in which
`P` is nonlinear; one linear operator `Λ` collects all the others. The model stacks the functionals of all blocks. At
their values `v` the linearised model has the coefficients `∂P/∂v`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..covariance import Layout, covariance, cross, expansion, layout, query
from ..equations import Coefficient, CoefficientFunction, MultiIndex, Nonlinear, Operator
from ..errors import InputError, call, require
from ..model import Model, Observation
from ..solvers import symmetric_product


@dataclasses.dataclass(frozen=True, eq=False)
class NonlinearBlock:
    """A nonlinear block of observations, and where its functionals are stored."""

    block: Observation
    rows: slice
    """Its rows in the stacked vector of observed values."""
    curved: tuple[int, ...]
    """The numbers of the operators in which `P` is nonlinear."""
    entries: tuple[slice, ...]
    """The positions of these operators' values among the functionals; the last slice is `Λf` if `Λ` is not zero."""
    tables: tuple[Float[np.ndarray, "indices m"], ...]
    """The coefficients of each entry's operator on the multi-indices of the block."""

    @property
    def operator(self) -> Nonlinear:
        """The nonlinear operator."""
        assert isinstance(self.block.operator, Nonlinear)
        return self.block.operator

    @property
    def curved_entries(self) -> tuple[slice, ...]:
        """The positions of the values in which `P` is nonlinear."""
        return self.entries[: len(self.curved)]

    def values(self, functional_values: Float[np.ndarray, " F"]) -> Float[np.ndarray, "curved m"]:
        """Return the values in which `P` is nonlinear."""
        rows = [functional_values[entry] for entry in self.curved_entries]
        return np.stack(rows) if rows else np.empty((0, self.block.size))


@dataclasses.dataclass(frozen=True, eq=False)
class Functionals:
    """The F linear functionals `φ` that a model's observations depend on, and their prior covariance `Θ`.

    Linear blocks contribute one functional for each observed value, nonlinear blocks several. The Jacobian `J` of the
    observations in the functionals has one entry in each column, so a vector of F slopes represents it.
    """

    model: Model
    nonlinear_blocks: tuple[NonlinearBlock, ...]
    layout: Layout
    row: Int[np.ndarray, " F"]
    """The observation that each functional belongs to, as a row of the stacked values."""
    linear_entries: tuple[slice, ...]
    """The positions of the linear blocks among the functionals."""
    theta: Float[np.ndarray, "F F"]
    """`Θ` in the assembled order of the layout; only the lower triangle is filled."""

    @property
    def size(self) -> int:
        """The number of functionals, F."""
        return len(self.row)

    @property
    def entries(self) -> list[slice]:
        """The positions of the functionals of each operator, those of nonlinear blocks first."""
        return [*(entry for each in self.nonlinear_blocks for entry in each.entries), *self.linear_entries]

    @functools.cached_property
    def deviations(self) -> Float[np.ndarray, " F"]:
        """The prior standard deviations of the functionals."""
        out = np.empty(self.size)
        out[self.layout.order] = np.sqrt(np.maximum(self.theta.diagonal(), 0.0))
        return out

    def product(self, coefficients: Float[np.ndarray, " F"]) -> Float[np.ndarray, " F"]:
        """Return `Θc`, the functionals of `f = Σ c_i φ_i k`."""
        out = np.empty(self.size)
        out[self.layout.order] = symmetric_product(self.theta, coefficients[self.layout.order])
        return out

    def forward(self, slopes: Float[np.ndarray, " F"], values: Float[np.ndarray, " F"]) -> Float[np.ndarray, " N"]:
        """Return `Jv` for the Jacobian with these slopes."""
        return np.bincount(self.row, weights=slopes * values, minlength=self.model.size)

    def backward(self, slopes: Float[np.ndarray, " F"], weights: Float[np.ndarray, " N"]) -> Float[np.ndarray, " F"]:
        """Return `Jᵀa` for the Jacobian with these slopes."""
        return slopes * weights[self.row]

    def linearise(self, values: Float[np.ndarray, " F"]) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " F"]]:
        """Return the noise-free observations `F(v)` and the slopes of `F` there; not finite where `P` is not."""
        out, slopes = np.empty(self.model.size), np.ones(self.size)
        for entry in self.linear_entries:
            out[self.row[entry]] = values[entry]
        for nonlinear in self.nonlinear_blocks:
            inner, derivatives = _linearise(
                nonlinear.operator, nonlinear.curved, nonlinear.block.points, nonlinear.values(values)
            )
            rest = values[nonlinear.entries[-1]] if len(nonlinear.entries) > len(nonlinear.curved) else 0.0
            out[nonlinear.rows] = np.asarray(inner) + rest
            for entry, slope in zip(nonlinear.entries, np.asarray(derivatives), strict=False):
                slopes[entry] = slope  # the slope of Λf stays one
        return out, slopes

    def second_derivatives(self, values: Float[np.ndarray, " F"]) -> list[Float[np.ndarray, "curved curved m"]]:
        """Return the second derivatives of `P` for each nonlinear block, at its nodes."""
        return [
            np.asarray(_second_derivatives(each.operator, each.curved, each.block.points, each.values(values)))
            for each in self.nonlinear_blocks
        ]

    def pointwise_product(
        self, blocks: Sequence[Float[np.ndarray, "_ _ _"]], vector: Float[np.ndarray, " F"]
    ) -> Float[np.ndarray, " F"]:
        """Return a product with a matrix that couples only curved values at the same node of the same block.

        `blocks` holds an array of shape (curved, curved, nodes) for each nonlinear block.
        """
        out = np.zeros(self.size)
        for nonlinear, matrices in zip(self.nonlinear_blocks, blocks, strict=True):
            for entry, row in zip(nonlinear.curved_entries, matrices, strict=True):
                terms = (each * vector[other] for each, other in zip(row, nonlinear.curved_entries, strict=True))
                out[entry] = sum(terms)
        return out

    def values_of(self, function: Callable[[Any], Any]) -> Float[np.ndarray, " F"]:
        """Return the functionals of a JAX function of the point."""

        def checked(point: Array) -> Array:
            value = call(function, point, "starts")
            scalar = isinstance(value, int | float | np.ndarray | np.number | Array) and np.shape(value) == ()
            require(scalar, "starts", value, "a function that returns one number at each point")
            return jnp.asarray(value, dtype=float)

        values = np.zeros(self.size)
        linear_blocks = (block for block in self.model.blocks if not block.is_nonlinear)
        for block, entry in zip(linear_blocks, self.linear_entries, strict=True):
            assert isinstance(block.operator, Operator)
            at_points = np.asarray(jax.vmap(block.operator(checked))(jnp.asarray(block.points)))
            values[entry] = block.observed(at_points)
        for nonlinear in self.nonlinear_blocks:
            points = jnp.asarray(nonlinear.block.points)
            inputs = np.stack([np.asarray(jax.vmap(each(checked))(points)) for each in nonlinear.operator.of])
            for number, entry in zip(nonlinear.curved, nonlinear.entries, strict=False):
                values[entry] = inputs[number]
            if len(nonlinear.entries) > len(nonlinear.curved):
                slopes = _linear_slopes(nonlinear.operator, nonlinear.curved, nonlinear.block.points)
                values[nonlinear.entries[-1]] = (np.asarray(slopes) * inputs).sum(axis=0)
        return values

    def tables(self, weights: Float[np.ndarray, " F"]) -> list[Float[np.ndarray, "indices q"]]:
        """Return for each block the coefficients of `Σ_q w_q L_q` at its points."""
        tables, linear, nonlinear = [], iter(self.linear_entries), iter(self.nonlinear_blocks)
        for block in self.model.blocks:
            if block.is_nonlinear:
                each = next(nonlinear)
                tables.append(sum(weights[e] * t for e, t in zip(each.entries, each.tables, strict=True)) + 0.0)
            else:
                own = weights[next(linear)]
                tables.append(np.asarray(block.coefficients) * (1.0 if block.is_functional else own))
        return tables

    def term_sizes(self, nonlinear: NonlinearBlock, coefficients: Float[np.ndarray, " F"]) -> Float[np.ndarray, " m"]:
        """Return `Σ_q |∂P/∂v_q L_q f|` at the nodes of a block, for `f` with these coefficients."""
        rows = layout(self.scaled_blocks(coefficients))
        jets = jets_of(self.model, nonlinear.block, rows, np.ones(self.model.size))
        return np.asarray(_term_sizes(nonlinear.operator, nonlinear.block.points, jnp.asarray(jets)))

    def scaled_blocks(self, weights: Float[np.ndarray, " F"]) -> tuple[Observation, ...]:
        """Return the blocks of the linearised model with each row replaced by `Σ_q w_q L_q`."""
        linear, blocks = iter(self.linear_entries), []
        for block, table in zip(self.model.blocks, self.tables(weights), strict=True):
            own = None if block.is_nonlinear else weights[next(linear)]
            matrix = None if block.matrix is None or own is None else own[:, None] * block.matrix
            blocks.append(_replaced(block, table=table, matrix=matrix))
        return tuple(blocks)


def jets_of(
    model: Model, block: Observation, rows: Layout, vector: Float[np.ndarray, " N"]
) -> Float[np.ndarray, "indices q"]:
    """Return the derivatives of `η Σ_j u_j L_j k(·, p_j)` at the points of a block, on its multi-indices."""
    eta, jets = float(model.eta), []
    for alpha in block.indices:
        asked = query(block.points, (alpha,), lambda some: np.ones((1, len(some))))
        jets.append(np.concatenate([cross(model.kernel, tile, rows, eta) @ vector for tile in asked.tiles]))
    return np.stack(jets)


def observed_at(block: Observation, jets: Float[np.ndarray, "indices q"]) -> Float[np.ndarray, " n"]:
    """Return the noise-free observations of a block, given the derivatives of the unknown at its points."""
    return block.observed(np.asarray(linearised_block(block, jets)[0]))


def linearised_block(block: Observation, jets: Any) -> tuple[Any, Any]:
    """Return `L f` at the points of a block, given the derivatives of `f` there, and its slopes in them."""
    if isinstance(block.operator, Nonlinear):
        return linearise_in_jets(block.operator, block.points, jnp.asarray(jets))
    table = block.coefficients
    return (table * jets).sum(axis=0), table


def functionals_of(model: Model) -> Functionals:
    """Return the functionals of a model with their prior covariance."""
    observations: list[Observation] = []
    nonlinear: list[NonlinearBlock] = []
    row: list[np.ndarray] = []
    linear: list[slice] = []
    done = first = 0
    for block in model.blocks:
        rows = slice(first, first + block.size)
        first += block.size
        if not isinstance(block.operator, Nonlinear):
            observations.append(block)
            linear.append(slice(done, done + block.size))
            row.append(np.arange(rows.start, rows.stop))
            done += block.size
            continue
        curved = block.operator.nonlinear_in(block.dimension)
        tables = [np.asarray(each) for each in _functional_tables(block.operator, curved, block.points)]
        rest = tables.pop()  # Λ: the factored matrix does not grow with the operators in which P is linear
        if rest.any() or not curved:
            tables.append(rest)
        entries = [slice(done + i * block.size, done + (i + 1) * block.size) for i in range(len(tables))]
        for table in tables:
            observations.append(_functional(block, table))
            row.append(np.arange(rows.start, rows.stop))
        done += block.size * len(tables)
        nonlinear.append(NonlinearBlock(block, rows, curved, tuple(entries), tuple(tables)))
    assembled = layout(observations)
    theta = covariance(model.kernel, assembled, float(model.eta))
    return Functionals(model, tuple(nonlinear), assembled, np.concatenate(row), tuple(linear), theta)


@dataclasses.dataclass(frozen=True, eq=False)
class LinearisedOperator:
    """The derivative of a nonlinear operator at a solution `f̂`, at any point: `f̂` is known everywhere."""

    operator: Nonlinear
    jet: Callable[[Array, MultiIndex], Array]
    """Evaluates a derivative of `f̂` at a point."""
    source: Any
    """The number or function that gave the values of the block, or None."""

    def coefficient(self, point: Array, alpha: MultiIndex) -> Array:
        """Return the coefficient of one derivative at a point."""
        place = self.operator.indices(point.shape[0]).index(alpha)
        return self._at(point)[1][place]

    def target(self, point: Array) -> Array:
        """Return the linearised target `r − A(f̂) + B f̂` at a point."""
        value, slopes, jets = self._at(point)
        source = self.source(point) if callable(self.source) else self.source
        return source - value + jnp.dot(slopes, jets)

    def _at(self, point: Array) -> tuple[Array, Array, Array]:
        jets = jnp.stack([self.jet(point, alpha) for alpha in self.operator.indices(point.shape[0])])
        value, slopes = jax.value_and_grad(value_from_jets, argnums=2)(self.operator, point, jets)
        return value, slopes, jets


def linear_model(
    functionals: Functionals,
    slopes: Float[np.ndarray, " F"],
    targets: Float[np.ndarray, " N"],
    coefficients: Float[np.ndarray, " F"] | None = None,
) -> Model:
    """Return the linearised model: `J` in place of the nonlinear operators, and the linearised targets.

    With the coefficients of `f̂` its operators can be evaluated at any point; without them, at the nodes only.
    """
    model, tables = functionals.model, functionals.tables(slopes)
    jet = None
    if coefficients is not None:
        ones = np.ones(model.size)
        # The rows of Σ_q c_q L_q with weights one expand f̂ in as many terms as there are observations, not functionals.
        jet = expansion(model.kernel, layout(functionals.scaled_blocks(coefficients)), ones, float(model.eta))
    nonlinear, blocks = iter(functionals.nonlinear_blocks), []
    for block, table in zip(model.blocks, tables, strict=True):
        if block.is_nonlinear:
            each = next(nonlinear)
            operator: Operator | Nonlinear = each.operator
            source = None
            if jet is not None:
                linearised = LinearisedOperator(each.operator, jet, block.source)
                operator = _as_operator(linearised, each)
                source = None if block.source is None else linearised.target
            block = _replaced(block, operator=operator, table=table, values=targets[each.rows], source=source)
        blocks.append(block)
    return model.replace(data=blocks[: len(model.data)], physics=blocks[len(model.data) :])


def value_from_jets(operator: Nonlinear, point: Float[Array, " d"], jets: Float[Array, " indices"]) -> Array:
    """Return `P` at one point, given the derivatives of the unknown on the operator's multi-indices."""
    return operator.at(point, list(_coefficients(operator, point) @ jets))


@eqx.filter_jit
def linearise_in_jets(operator: Nonlinear, points: Any, jets: Float[Array, "indices m"]) -> tuple[Array, Array]:
    """Return `P` and its slopes in all jets, at all points."""
    one = jax.value_and_grad(value_from_jets, argnums=2)
    value, slopes = jax.vmap(one, (None, 0, 1), (0, 1))(operator, jnp.asarray(points), jets)
    return value, slopes


@eqx.filter_jit
def _term_sizes(operator: Nonlinear, points: Any, jets: Float[Array, "indices m"]) -> Array:
    def at(point: Array, jet: Array) -> Array:
        values = list(_coefficients(operator, point) @ jet)
        slopes = jax.grad(operator.at, argnums=1)(point, values)
        return sum((jnp.abs(s * v) for s, v in zip(slopes, values, strict=True)), start=jnp.zeros(()))

    return jax.vmap(at, (0, 1))(jnp.asarray(points), jets)


def _coefficients(operator: Nonlinear, point: Float[Array, " d"]) -> Float[Array, "of indices"]:
    """Return the coefficients of all input operators at one point, on the multi-indices of all."""
    indices = operator.indices(point.shape[0])
    rows = []
    for each in operator.of:
        by_index = dict(zip(each.indices(point.shape[0]), each.coefficients(point[None])[:, 0], strict=True))
        rows.append(jnp.stack([by_index.get(alpha, jnp.zeros(())) for alpha in indices]))
    return jnp.stack(rows)


def _inner(operator: Nonlinear, curved: tuple[int, ...], point: Array, values: Array) -> Array:
    """Return `g`: `P` with zeros for the operators in which it is linear."""
    by_number = dict(zip(curved, values, strict=True))
    return operator.at(point, [by_number.get(i, jnp.zeros(())) for i in range(len(operator.of))])


@eqx.filter_jit
def _linearise(operator: Nonlinear, curved: tuple[int, ...], points: Any, values: Any) -> tuple[Array, Array]:
    """Return `g` and its derivatives at all points."""
    if not curved:
        return jax.vmap(lambda p: _inner(operator, curved, p, jnp.empty(0)))(jnp.asarray(points)), jnp.empty((0, 0))
    one = jax.value_and_grad(_inner, argnums=3)
    return jax.vmap(one, (None, None, 0, 1), (0, 1))(operator, curved, jnp.asarray(points), values)


@eqx.filter_jit
def _second_derivatives(operator: Nonlinear, curved: tuple[int, ...], points: Any, values: Any) -> Array:
    if not curved:
        return jnp.empty((0, 0, len(points)))
    one = jax.hessian(_inner, argnums=3)
    return jax.vmap(one, (None, None, 0, 1), 2)(operator, curved, jnp.asarray(points), values)


@eqx.filter_jit
def _functional_tables(operator: Nonlinear, curved: tuple[int, ...], points: Any) -> list[Array]:
    """Return the coefficients of the operators in `curved`, then those of `Λ`, at all points."""

    def at(point: Array) -> Array:
        every = _coefficients(operator, point)
        return jnp.stack([*(every[i] for i in curved), _linear_slopes_at(operator, curved, point) @ every])

    return list(jax.vmap(at, out_axes=2)(jnp.asarray(points)))


@eqx.filter_jit
def _linear_slopes(operator: Nonlinear, curved: tuple[int, ...], points: Any) -> Array:
    return jax.vmap(lambda point: _linear_slopes_at(operator, curved, point), out_axes=1)(jnp.asarray(points))


def _linear_slopes_at(operator: Nonlinear, curved: tuple[int, ...], point: Array) -> Array:
    """Return the derivatives of `P` in the values in which it is linear, and zero for the others."""
    # P is linear in these values, so their slopes are the same everywhere: zero will do.
    slopes = jax.grad(operator.at, argnums=1)(point, [jnp.zeros(())] * len(operator.of))
    return jnp.stack([jnp.zeros(()) if i in curved else slope for i, slope in enumerate(slopes)])


def _functional(block: Observation, table: Float[np.ndarray, "indices m"]) -> Observation:
    """Return a block that observes one functional of a nonlinear block."""
    # Each multi-index costs kernel derivatives, against every other: leave out those with zero coefficients.
    used = [i for i, line in enumerate(table) if line.any()] or [0]
    indices = tuple(block.indices[i] for i in used)
    return _replaced(block, indices=indices, table=table[used])


def _replaced(block: Observation, **changes: Any) -> Observation:
    """Return a block with changed fields, without the checks of its constructor, which linearised tables would fail."""
    new = object.__new__(Observation)
    for entry in dataclasses.fields(block):
        object.__setattr__(new, entry.name, changes.get(entry.name, getattr(block, entry.name)))
    return new


def _as_operator(linearised: LinearisedOperator, nonlinear: NonlinearBlock) -> Operator:
    """Return a linearisation as an operator, with numbers for constant coefficients and functions for the others."""
    names, block = linearised.operator.names, nonlinear.block
    curved = nonlinear.tables[: len(nonlinear.curved)]
    rest = nonlinear.tables[len(nonlinear.curved) :]
    # A coefficient that is equal at all nodes may still vary elsewhere: compare it at a few points off the nodes too.
    reach = np.ptp(block.points, axis=0) + 1.0
    others = block.points[:9] + reach * np.random.default_rng(0).uniform(-1.0, 1.0, (len(block.points[:9]), len(reach)))
    elsewhere = np.asarray(_functional_tables(nonlinear.operator, nonlinear.curved, others)[-1])
    terms: list[tuple[MultiIndex, Coefficient]] = []
    atoms: list[CoefficientFunction] = []
    for i, alpha in enumerate(block.indices):
        short = alpha if names else ()
        line = np.concatenate([rest[0][i], elsewhere[i]]) if rest else np.zeros(1)
        if any(table[i].any() for table in curved) or np.ptp(line) != 0.0:
            terms.append((short, ((((len(atoms), 1),), 1.0),)))
            function = functools.partial(linearised.coefficient, alpha=alpha)
            atoms.append(CoefficientFunction(f"c{len(atoms)}", names, (0,) * len(names), function))
        elif line.any():
            terms.append((short, (((), float(line[0])),)))
    return Operator(names, tuple(terms), tuple(atoms))


def check_finite(
    functionals: Functionals, values: np.ndarray, predicted: np.ndarray, slopes: np.ndarray, when: str
) -> None:
    """Raise an `InputError` that names the first node where `P` or its derivative is not finite."""
    for nonlinear in functionals.nonlinear_blocks:
        finite = np.isfinite(np.stack([slopes[entry] for entry in nonlinear.entries])).all(axis=0)
        for what, bad in (("its value", ~np.isfinite(predicted[nonlinear.rows])), ("a derivative", ~finite)):
            if bad.any():
                first = int(np.flatnonzero(bad)[0])
                at_node = zip(nonlinear.curved, nonlinear.values(values)[:, first], strict=True)
                inputs = ", ".join(f"{nonlinear.operator.of[q]} = {v:.4g}" for q, v in at_node)
                raise InputError(
                    f"{nonlinear.operator}: {what} is NaN or infinite at {int(bad.sum())} of {nonlinear.block.size} "
                    f"nodes {when}, the first at {nonlinear.block.points[first]} with {inputs}. Start where it is "
                    "defined and differentiable: ps.solve_nonlinear(model, starts=[a function of the point])"
                )
