"""The evidence of a small linear model as one compiled function of its hyperparameters."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..covariance import Indices, entry_tangents, split, symmetric
from ..equations import Operator
from ..model import Model, Observation, is_temperature
from ..solvers import EPS, Auto, Dense, probe, traced_tolerances
from .evidence import LOG_TWO_PI
from .score import Score
from .traced import Leaves, Targets, TracedEvidence

COMPILED_UP_TO = 512
"""The largest number of points of a model whose evidence is compiled as a whole; larger ones call the solvers back.

Above it LAPACK's inverse of the covariance, which XLA does not have, saves more time than a callback costs."""


def can_be_compiled(model: Model) -> bool:
    """Return whether the evidence of a model can be compiled as a whole: it is linear, dense and small."""
    is_dense = isinstance(model.solver, Dense | Auto)
    is_small = sum(len(block.points) for block in model.blocks) <= COMPILED_UP_TO
    return is_dense and is_small and all(isinstance(block.operator, Operator) for block in model.blocks)


class CompiledEvidence(TracedEvidence):
    """The evidence of a small linear model, assembled and factored inside one compiled function.

    The given blocks come first, so that the trailing rows of the Cholesky factor are those of the scored observations
    given the others.
    """

    def __init__(self, targets: Targets, score: Score) -> None:
        self.targets = targets
        self.model = model = targets.model
        given = score.given_blocks(model)
        self.order = sorted(range(len(model.blocks)), key=lambda i: (i not in given, model.blocks[i].indices))
        self.first = sum(model.blocks[i].size for i in given)
        self.size = model.size
        self.values = np.concatenate([model.blocks[i].values for i in self.order])
        self.tiles = _tiles(model, self.order)
        self.tolerances = traced_tolerances(model)
        moving = [target.paths[0] for target in targets.all]
        self.inside = [i for i, path in enumerate(moving) if not is_temperature(path)]
        """The positions of the hyperparameters of the kernel and of operators."""

    def value(self, leaves: Leaves) -> Float[Array, ""]:
        """Return the log evidence."""
        model = self.targets.changed(leaves)
        factor = _cholesky(self._covariance(model, self._noise(leaves)))
        return self._evidence(factor, self._half(factor)) + self.targets.log_prior(model)

    def value_and_rounding(self, leaves: Leaves) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
        """Return the log evidence, the rounding error of twice its value, and the quadratic form in it.

        The error is estimated as in `pile`, from the same formula.
        """
        model = self.targets.changed(leaves)
        covariance = self._covariance(model, self._noise(leaves))
        factor = _cholesky(covariance)
        half = self._half(factor)
        scale = jnp.sqrt(jnp.diagonal(covariance))
        scored = _solved(factor, scale * probe(self.size))[self.first :]
        given = half.at[self.first :].set(0.0)
        both = _solved(factor, jnp.stack([half - given, half + given], axis=1), transpose=True)
        sizes = scale @ jnp.abs(both)
        error = EPS * (scored @ scored + sizes[0] * sizes[1])
        quadratic = half[self.first :] @ half[self.first :]
        return self._evidence(factor, half) + self.targets.log_prior(model), error, quadratic

    def value_and_slopes(self, leaves: Leaves) -> tuple[Float[Array, ""], list[Float[Array, "..."]]]:
        """Return the log evidence and its derivatives, `−½ tr[(WᵀW − ααᵀ + ββᵀ) ∂C]`.

        `W` are the scored rows of `L⁻¹`, `α = C⁻¹ỹ`, and `β` is `C⁻¹ỹ` of the given rows alone.
        """
        model = self.targets.changed(leaves)
        noise, pull = jax.vjp(self._noise, list(leaves))
        factor = _cholesky(self._covariance(model, noise))
        half = self._half(factor)
        first, scored = self.first, self.size - self.first
        ends = jnp.eye(self.size, scored, k=-first)
        rows = _solved(factor, ends, transpose=True)
        before = jnp.zeros(self.size)
        if first:
            before = before.at[:first].set(_solved(factor[:first, :first], half[:first], transpose=True))
        alpha = before + rows @ half[first:]
        weights = rows @ rows.T - alpha[:, None] * alpha + before[:, None] * before
        diagonal = jnp.diagonal(weights)
        (by_noise,) = pull(diagonal)
        slopes = [jnp.asarray(slope) for slope in by_noise]
        # η ∂C/∂η = ηQ = C − S, and the contraction with C is known.
        by_eta = (scored - half[first:] @ half[first:] - noise @ diagonal) / model.eta
        weights = self._mirrored(jnp.asarray(model.eta) * weights)
        tangents = entry_tangents(lambda new: self._prior(self.targets.changed(new)), list(leaves), self.inside)
        contracted = iter([jnp.vdot(weights, tangent) for tangent in tangents])
        for i, target in enumerate(self.targets.all):
            if i in self.inside:
                entries = [next(contracted) for _ in range(math.prod(target.shape))]
                slopes[i] += jnp.reshape(jnp.stack(entries), target.shape)
            elif target.base == "eta":
                slopes[i] += by_eta
        by_prior = jax.grad(lambda new: jnp.asarray(self.targets.log_prior(self.targets.changed(new))))(list(leaves))
        value = self._evidence(factor, half) + self.targets.log_prior(model)
        return value, [-0.5 * slope + other for slope, other in zip(slopes, by_prior, strict=True)]

    def _prior(self, model: Model) -> Float[Array, "N N"]:
        """Return the prior covariance `Q` of the observations; above its diagonal tiles it is zero."""
        numbers, form = split(model.kernel)
        parts = []
        for tile in self.tiles:
            tables = [jnp.asarray(model.blocks[i].coefficients) for i in tile.blocks]
            rows = [jnp.concatenate([table[group] for table in tables]) for group in tile.first]
            parts.append((jnp.asarray(tile.points), jnp.stack(rows), tile.matrix))
        shapes = tuple((tile.size, tile.groups) for tile in self.tiles)
        return symmetric((form, shapes), numbers, 1.0, parts)

    def _mirrored(self, weights: Float[Array, "N N"]) -> Float[Array, "N N"]:
        """Return weights whose sum with entries of `_prior` is that of symmetric weights with all of `Q`."""
        sizes = [tile.size for tile in self.tiles]
        number = np.repeat(np.arange(len(sizes)), sizes)
        above, below = number[:, None] < number, number[:, None] > number
        return jnp.where(above, 0.0, jnp.where(below, 2.0 * weights, weights))

    def _noise(self, leaves: Leaves) -> Float[Array, " N"]:
        """Return the noise variances."""
        model = self.targets.changed(leaves)
        deviations = self.tolerances(model)
        parts: list[Any] = []
        for i in self.order:
            block = model.blocks[i]
            if i in deviations:
                parts.append(deviations[i] ** 2)
                continue
            shared = model.gamma if block.role == "data" else model.rho
            temperature: Any = shared if block.temperature is None else block.temperature
            parts.append(temperature * (0.5 / block.weights))
        return jnp.concatenate(parts)

    def _covariance(self, model: Model, noise: Array) -> Float[Array, "N N"]:
        """Return `C = ηRQRᵀ + S`; above its diagonal tiles it is zero."""
        return jnp.asarray(model.eta) * self._prior(model) + jnp.diag(noise)

    def _half(self, factor: Array) -> Float[Array, " N"]:
        """Return `L⁻¹ỹ`."""
        return _solved(factor, jnp.asarray(self.values))

    def _evidence(self, factor: Array, half: Array) -> Float[Array, ""]:
        scored = half[self.first :]
        logdet = 2.0 * jnp.log(jnp.diagonal(factor)[self.first :]).sum()
        return -0.5 * (scored @ scored + logdet + len(scored) * LOG_TWO_PI)


@jax.custom_jvp
def _cholesky(lower: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Return the Cholesky factor of a symmetric matrix, given by its lower triangle; NaN if it has none."""
    return jax.lax.linalg.cholesky(lower, symmetrize_input=False)


@_cholesky.defjvp
def _cholesky_tangent(primals: Any, tangents: Any) -> Any:
    # JAX's rule needs both triangles, which are filled only here because values and gradients do not need the rule.
    whole = [jnp.tril(each) + jnp.tril(each, -1).T for each in (*primals, *tangents)]
    return jax.jvp(functools.partial(jax.lax.linalg.cholesky, symmetrize_input=False), whole[:1], whole[1:])


def _solved(factor: Float[Array, "n n"], right: Float[Array, "n ..."], transpose: bool = False) -> Array:
    """Return `L⁻¹B` or `L⁻ᵀB`."""
    columns = right if right.ndim == 2 else right[:, None]
    solution = jax.lax.linalg.triangular_solve(factor, columns, left_side=True, lower=True, transpose_a=transpose)
    return solution.reshape(right.shape)


@dataclasses.dataclass(frozen=True, eq=False)
class BlockTile:
    """Blocks that observe the same derivatives: one part of the rows of a compiled covariance."""

    blocks: list[int]
    """The positions of the blocks in the model."""
    points: Float[np.ndarray, "d q"]
    matrix: Float[np.ndarray, "n q"] | None
    """The matrix that maps values at the points to observed values; None if it is the identity."""
    groups: Indices
    """The multi-indices, grouped: members of a group have the same coefficient at every point."""
    first: list[int]
    """The position of the first member of each group among the coefficients of a block."""

    @property
    def size(self) -> int:
        """The number of rows."""
        return self.points.shape[1] if self.matrix is None else len(self.matrix)


def _tiles(model: Model, order: Sequence[int]) -> list[BlockTile]:
    """Return the tiles of the blocks of a model in an order. The fewer tiles, the faster the compilation."""
    tiles = []
    # A functional has a tile of its own, as its matrix would otherwise mix the points of other blocks.
    keys = {i: (model.blocks[i].indices, i if model.blocks[i].is_functional else -1) for i in order}
    for (indices, _), members in itertools.groupby(order, keys.__getitem__):
        numbers = list(members)
        blocks = [model.blocks[i] for i in numbers]
        groups: dict[Any, list[int]] = {}
        for k in range(len(indices)):
            groups.setdefault(tuple(_coefficient(block, k) for block in blocks), []).append(k)
        points = np.concatenate([block.points for block in blocks]).T
        named = tuple(tuple(indices[k] for k in group) for group in groups.values())
        tiles.append(BlockTile(numbers, points, blocks[0].matrix, named, [group[0] for group in groups.values()]))
    return tiles


def _coefficient(block: Observation, number: int) -> Any:
    """Return an object that is equal for equal coefficients of a block."""
    if block.table is not None:
        return block.table[number].tobytes()
    assert isinstance(block.operator, Operator)
    return block.operator.terms[number][1]
