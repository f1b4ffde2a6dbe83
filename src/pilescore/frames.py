"""A nonlinear model as a pointwise function of linear functionals of the unknown, and its linearisation.

Each nonlinear block `P(p, L₁f, …, L_Qf)` is `g(p, v) + Λf`: `v` are the values of those operators in which `P` is not
linear, and all the others are gathered in one linear operator `Λ`. The functionals of all blocks, one after the other,
are the frame of the model. At values `v` of the frame the model is linear with the coefficients `∂P/∂v`.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .atoms import Coefficient, Field, MultiIndex
from .errors import InputError, call, require
from .gram import covariance, cross, expansion
from .layouts import Layout, layout, query
from .linalg import symmetric_product
from .model import Model
from .nonlinear import Nonlinear
from .observations import Observation
from .operators import Operator


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """A nonlinear block in a frame."""

    block: Observation
    rows: slice
    """Its rows in the stacked vector of values."""
    bent: tuple[int, ...]
    """The numbers of the operators in which it is not linear."""
    entries: tuple[slice, ...]
    """Where their values stand in the frame, and last those of `Λf`, if there are others."""
    tables: tuple[Float[np.ndarray, "indices m"], ...]
    """The coefficients of the same on the multi-indices of the block."""

    @property
    def operator(self) -> Nonlinear:
        """Its operator."""
        assert isinstance(self.block.operator, Nonlinear)
        return self.block.operator

    def values(self, frame_values: Float[np.ndarray, " F"]) -> Float[np.ndarray, "bent m"]:
        """Return the values in which it is not linear."""
        held = [frame_values[each] for each in self.entries[: len(self.bent)]]
        return np.stack(held) if held else np.empty((0, self.block.size))


@dataclasses.dataclass(frozen=True, eq=False)
class Frame:
    """The functionals of a model, and their prior covariance `Θ`."""

    model: Model
    parts: tuple[Part, ...]
    layout: Layout
    row: Int[np.ndarray, " F"]
    """The row of the stacked values that each functional belongs to."""
    linear_entries: tuple[slice, ...]
    """Where linear blocks stand in the frame."""
    theta: Float[np.ndarray, "F F"]
    """`Θ` in the order of the layout, by its lower triangle."""

    @property
    def size(self) -> int:
        """The number of functionals."""
        return len(self.row)

    @functools.cached_property
    def deviations(self) -> Float[np.ndarray, " F"]:
        """The prior deviations of the functionals."""
        out = np.empty(self.size)
        out[self.layout.order] = np.sqrt(np.maximum(self.theta.diagonal(), 0.0))
        return out

    def product(self, coefficients: Float[np.ndarray, " F"]) -> Float[np.ndarray, " F"]:
        """Return `Θc`: the functionals of `f = Σ c_i φ_i k`."""
        out = np.empty(self.size)
        out[self.layout.order] = symmetric_product(self.theta, coefficients[self.layout.order])
        return out

    def forward(self, slopes: Float[np.ndarray, " F"], values: Float[np.ndarray, " F"]) -> Float[np.ndarray, " N"]:
        """Return `Jv`, with `J` given by its entries."""
        return np.bincount(self.row, weights=slopes * values, minlength=self.model.size)

    def backward(self, slopes: Float[np.ndarray, " F"], weights: Float[np.ndarray, " N"]) -> Float[np.ndarray, " F"]:
        """Return `Jᵀa`."""
        return slopes * weights[self.row]

    def observed(self, values: Float[np.ndarray, " F"]) -> Float[np.ndarray, " N"]:
        """Return what the blocks would observe, `F(f)`; not finite where `P` is not."""
        return self.linearised(values)[0]

    def linearised(self, values: Float[np.ndarray, " F"]) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " F"]]:
        """Return `F(f)` and the entries of its derivative `J`."""
        out, slopes = np.empty(self.model.size), np.ones(self.size)
        for where in self.linear_entries:
            out[self.row[where]] = values[where]
        for part in self.parts:
            held, bends = _linearised(part.operator, part.bent, part.block.points, part.values(values))
            rest = values[part.entries[-1]] if len(part.entries) > len(part.bent) else 0.0
            out[part.rows] = np.asarray(held) + rest
            for where, slope in zip(part.entries, np.asarray(bends), strict=False):
                slopes[where] = slope
        return out, slopes

    def bends(self, values: Float[np.ndarray, " F"]) -> list[Float[np.ndarray, "bent bent m"]]:
        """Return the second derivatives of each nonlinear block."""
        return [np.asarray(_bends(p.operator, p.bent, p.block.points, p.values(values))) for p in self.parts]

    def start(self, function: Callable[[Any], Any]) -> Float[np.ndarray, " F"]:
        """Return the values that a JAX function has."""

        def checked(point: Array) -> Array:
            value = call(function, point, "starts")
            good = isinstance(value, int | float | np.ndarray | np.number | Array) and np.shape(value) == ()
            require(good, "starts", value, "a function that returns one number at each point")
            return jnp.asarray(value, dtype=float)

        values = np.zeros(self.size)
        for block, where in zip((b for b in self.model.blocks if not b.is_nonlinear), self.linear_entries, strict=True):
            assert isinstance(block.operator, Operator)
            seen = np.asarray(jax.vmap(block.operator(checked))(jnp.asarray(block.points)))
            values[where] = seen if block.matrix is None else block.matrix @ seen
        for part in self.parts:
            at = jnp.asarray(part.block.points)
            seen = np.stack([np.asarray(jax.vmap(each(checked))(at)) for each in part.operator.of])
            for number, where in zip(part.bent, part.entries, strict=False):
                values[where] = seen[number]
            if len(part.entries) > len(part.bent):
                slopes = _straight_slopes(part.operator, part.bent, part.block.points)
                values[part.entries[-1]] = (np.asarray(slopes) * seen).sum(axis=0)
        return values

    def tables(self, weights: Float[np.ndarray, " F"]) -> list[Float[np.ndarray, "indices q"]]:
        """Return for each block the coefficients of `Σ_q w_q L_q` at its points."""
        found, linear, parts = [], iter(self.linear_entries), iter(self.parts)
        for block in self.model.blocks:
            if block.is_nonlinear:
                part = next(parts)
                found.append(sum(weights[e] * t for e, t in zip(part.entries, part.tables, strict=True)) + 0.0)
            else:
                own = weights[next(linear)]
                found.append(np.asarray(block.coefficients) * (own if block.matrix is None else 1.0))
        return found

    def terms(self, part: Part, coefficients: Float[np.ndarray, " F"]) -> Float[np.ndarray, " m"]:
        """Return `Σ_q |∂P/∂v_q L_q f|` over the operators of a block, at its nodes, for `f` by its coefficients."""
        rows = layout(self.scaled_blocks(coefficients))
        jets = self.jets(part.block, rows, np.ones(self.model.size))
        return np.asarray(_term_sizes(part.operator, part.block.points, jnp.asarray(jets)))

    def jets(self, block: Observation, rows: Layout, vector: Float[np.ndarray, " N"]) -> Float[np.ndarray, "indices q"]:
        """Return the derivatives at the points of a block, on its multi-indices, of `η Σ_j u_j L_j k(·, p_j)`."""
        eta, found = float(self.model.eta), []
        for alpha in block.indices:
            asked = query(block.points, (alpha,), lambda some: np.ones((1, len(some))))
            found.append(np.concatenate([cross(self.model.kernel, tile, rows, eta) @ vector for tile in asked.tiles]))
        return np.stack(found)

    def scaled_blocks(self, weights: Float[np.ndarray, " F"]) -> tuple[Observation, ...]:
        """Return the blocks of the linearised model with each row replaced by `Σ_q w_q L_q`."""
        linear, blocks = iter(self.linear_entries), []
        for block, table in zip(self.model.blocks, self.tables(weights), strict=True):
            own = None if block.is_nonlinear else weights[next(linear)]
            matrix = None if block.matrix is None or own is None else own[:, None] * block.matrix
            blocks.append(_replaced(block, table=table, matrix=matrix))
        return tuple(blocks)


def frame(model: Model) -> Frame:
    """Return the functionals of a model with their prior covariance."""
    functionals: list[Observation] = []
    parts: list[Part] = []
    row: list[np.ndarray] = []
    linear: list[slice] = []
    done = first = 0
    for block in model.blocks:
        rows = slice(first, first + block.size)
        first += block.size
        if not isinstance(block.operator, Nonlinear):
            functionals.append(block)
            linear.append(slice(done, done + block.size))
            row.append(np.arange(rows.start, rows.stop))
            done += block.size
            continue
        bent = block.operator.nonlinear_in(block.dimension)
        tables = [np.asarray(each) for each in _functional_tables(block.operator, bent, block.points)]
        rest = tables.pop()
        if rest.any() or not bent:
            tables.append(rest)
        entries = [slice(done + i * block.size, done + (i + 1) * block.size) for i in range(len(tables))]
        for table in tables:
            functionals.append(_functional(block, table))
            row.append(np.arange(rows.start, rows.stop))
        done += block.size * len(tables)
        parts.append(Part(block, rows, bent, tuple(entries), tuple(tables)))
    cut = layout(functionals)
    theta = covariance(model.kernel, cut, float(model.eta))
    return Frame(model, tuple(parts), cut, np.concatenate(row), tuple(linear), theta)


@dataclasses.dataclass(frozen=True, eq=False)
class Linearised:
    """What a linearisation is made of where it is asked for at other points than the nodes: `f̂` is known everywhere."""

    operator: Nonlinear
    jet: Callable[[Array, MultiIndex], Array]
    """A derivative of `f̂` at a point."""
    source: Any
    """The number or the function that the values of the block were computed from, where they were."""

    def coefficient(self, point: Array, alpha: MultiIndex) -> Array:
        """Return the coefficient of one derivative at a point."""
        place = self.operator.indices(point.shape[0]).index(alpha)
        return self._pure(point)[1][place]

    def target(self, point: Array) -> Array:
        """Return `r − A(f̂) + B f̂`."""
        value, slopes, jets = self._pure(point)
        given = self.source(point) if callable(self.source) else self.source
        return given - value + jnp.dot(slopes, jets)

    def _pure(self, point: Array) -> tuple[Array, Array, Array]:
        jets = jnp.stack([self.jet(point, alpha) for alpha in self.operator.indices(point.shape[0])])
        value, slopes = jax.value_and_grad(of_jets, argnums=2)(self.operator, point, jets)
        return value, slopes, jets


def linear_model(
    whole: Frame,
    slopes: Float[np.ndarray, " F"],
    targets: Float[np.ndarray, " N"],
    coefficients: Float[np.ndarray, " F"] | None = None,
) -> Model:
    """Return the linearised model: `J` in place of nonlinear operators, and other values.

    With the coefficients of `f̂` its operators are known at all points; without, at the nodes only.
    """
    model, tables = whole.model, whole.tables(slopes)
    jet = None
    if coefficients is not None:
        ones = np.ones(model.size)
        jet = expansion(model.kernel, layout(whole.scaled_blocks(coefficients)), ones, float(model.eta))
    parts, blocks = iter(whole.parts), []
    for block, table in zip(model.blocks, tables, strict=True):
        if block.is_nonlinear:
            part = next(parts)
            operator: Operator | Nonlinear = part.operator
            source = None
            if jet is not None:
                known = Linearised(part.operator, jet, block.source)
                operator = _operator(known, part)
                source = None if block.source is None else known.target
            block = _replaced(block, operator=operator, table=table, values=targets[part.rows], source=source)
        blocks.append(block)
    found = copy.copy(model)
    object.__setattr__(found, "data", tuple(blocks[: len(model.data)]))
    object.__setattr__(found, "physics", tuple(blocks[len(model.data) :]))
    return found


def of_jets(operator: Nonlinear, point: Float[Array, " d"], jets: Float[Array, " indices"]) -> Array:
    """Return `P` at one point, given the derivatives of the unknown on the multi-indices of the operator."""
    return operator.at(point, list(_coefficients(operator, point) @ jets))


@eqx.filter_jit
def pure_linearised(operator: Nonlinear, points: Any, jets: Float[Array, "indices m"]) -> tuple[Array, Array]:
    """Return `P` and its derivatives in all jets, at all points."""
    one = jax.value_and_grad(of_jets, argnums=2)
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
    """Return the coefficients of all operators at one point, on the multi-indices of all."""
    indices = operator.indices(point.shape[0])
    rows = []
    for each in operator.of:
        held = dict(zip(each.indices(point.shape[0]), each.coefficients(point[None])[:, 0], strict=True))
        rows.append(jnp.stack([held.get(alpha, jnp.zeros(())) for alpha in indices]))
    return jnp.stack(rows)


def _inner(operator: Nonlinear, bent: tuple[int, ...], point: Array, values: Array) -> Array:
    """Return `g`: `P` with zeros for the operators in which it is linear."""
    held = dict(zip(bent, values, strict=True))
    return operator.at(point, [held.get(i, jnp.zeros(())) for i in range(len(operator.of))])


@eqx.filter_jit
def _linearised(operator: Nonlinear, bent: tuple[int, ...], points: Any, values: Any) -> tuple[Array, Array]:
    if not bent:
        return jax.vmap(lambda p: _inner(operator, bent, p, jnp.empty(0)))(jnp.asarray(points)), jnp.empty((0, 0))
    one = jax.value_and_grad(_inner, argnums=3)
    return jax.vmap(one, (None, None, 0, 1), (0, 1))(operator, bent, jnp.asarray(points), values)


@eqx.filter_jit
def _bends(operator: Nonlinear, bent: tuple[int, ...], points: Any, values: Any) -> Array:
    if not bent:
        return jnp.empty((0, 0, len(points)))
    one = jax.hessian(_inner, argnums=3)
    return jax.vmap(one, (None, None, 0, 1), 2)(operator, bent, jnp.asarray(points), values)


@eqx.filter_jit
def _functional_tables(operator: Nonlinear, bent: tuple[int, ...], points: Any) -> list[Array]:
    """Return the coefficients of the operators in `bent`, and of `Λ`, at all points."""

    def at(point: Array) -> Array:
        every = _coefficients(operator, point)
        return jnp.stack([*(every[i] for i in bent), _straight(operator, bent, point) @ every])

    return list(jax.vmap(at, out_axes=2)(jnp.asarray(points)))


@eqx.filter_jit
def _straight_slopes(operator: Nonlinear, bent: tuple[int, ...], points: Any) -> Array:
    return jax.vmap(lambda point: _straight(operator, bent, point), out_axes=1)(jnp.asarray(points))


def _straight(operator: Nonlinear, bent: tuple[int, ...], point: Array) -> Array:
    """Return the derivatives of `P` in the values that it is linear in, zero for the others."""
    slopes = jax.grad(operator.at, argnums=1)(point, [jnp.zeros(())] * len(operator.of))
    return jnp.stack([jnp.zeros(()) if i in bent else slope for i, slope in enumerate(slopes)])


def _functional(block: Observation, table: Float[np.ndarray, "indices m"]) -> Observation:
    """Return a block that observes one functional of a nonlinear one."""
    used = [i for i, line in enumerate(table) if line.any()] or [0]
    indices = tuple(block.indices[i] for i in used)
    return _replaced(block, indices=indices, table=table[used])


def _replaced(block: Observation, **changes: Any) -> Observation:
    """Return a block with other fields, some of which are no longer arrays of one."""
    new = object.__new__(Observation)
    for entry in dataclasses.fields(block):
        object.__setattr__(new, entry.name, changes.get(entry.name, getattr(block, entry.name)))
    return new


def _operator(known: Linearised, part: Part) -> Operator:
    """Return a linearisation as an operator: numbers where coefficients are constant, else functions of the point."""
    names, block = known.operator.names, part.block
    bent, rest = part.tables[: len(part.bent)], part.tables[len(part.bent) :]
    reach = np.ptp(block.points, axis=0) + 1.0
    others = block.points[:9] + reach * np.random.default_rng(0).uniform(-1.0, 1.0, (len(block.points[:9]), len(reach)))
    elsewhere = np.asarray(_functional_tables(part.operator, part.bent, others)[-1])
    terms: list[tuple[MultiIndex, Coefficient]] = []
    atoms: list[Field] = []
    for i, alpha in enumerate(block.indices):
        short = alpha if names else ()
        line = np.concatenate([rest[0][i], elsewhere[i]]) if rest else np.zeros(1)
        if any(table[i].any() for table in bent) or np.ptp(line) != 0.0:
            terms.append((short, ((((len(atoms), 1),), 1.0),)))
            function = functools.partial(known.coefficient, alpha=alpha)
            atoms.append(Field(f"c{len(atoms)}", names, (0,) * len(names), function))
        elif line.any():
            terms.append((short, (((), float(line[0])),)))
    return Operator(names, tuple(terms), tuple(atoms))


def check_finite(whole: Frame, values: np.ndarray, predicted: np.ndarray, slopes: np.ndarray, when: str) -> None:
    """Raise an `InputError` that names the node where `P` or its derivative is not finite."""
    for part in whole.parts:
        good = np.isfinite(np.stack([slopes[each] for each in part.entries])).all(axis=0)
        for what, bad in (("its value", ~np.isfinite(predicted[part.rows])), ("a derivative", ~good)):
            if bad.any():
                first = int(np.flatnonzero(bad)[0])
                at = zip(part.bent, part.values(values)[:, first], strict=True)
                held = ", ".join(f"{part.operator.of[q]} = {v:.4g}" for q, v in at)
                raise InputError(
                    f"{part.operator}: {what} is NaN or infinite at {int(bad.sum())} of {part.block.size} nodes "
                    f"{when}, the first at {part.block.points[first]} with {held}. Start where it is defined and "
                    "differentiable: ps.solve_nonlinear(model, starts=[a function of the point])"
                )
