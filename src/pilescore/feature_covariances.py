"""The covariance `ηΦΦᵀ + S` of a finite basis as an operator for solvers, and its derivatives."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .bases import Basis, State
from .covariances import KernelCovariance, Part
from .errors import require_float64
from .layouts import Indices, Layout, Tile, taken
from .linalg import ALWAYS_FITS, require_memory, self_product
from .solvers import Covariance, Tangent, Weights


@dataclasses.dataclass(frozen=True, eq=False)
class FeatureCovariance(Covariance):
    """`C = ηΦΦᵀ + S`: the rows, values and noise of a covariance, with the kernel of a basis."""

    full: KernelCovariance
    """That of the kernel itself."""
    basis: Basis

    @property
    def values(self) -> Float[np.ndarray, " N"]:  # type: ignore[override]
        """`ỹ`."""
        return self.full.values

    @property
    def noise(self) -> Float[np.ndarray, " N"]:  # type: ignore[override]
        """The diagonal of `S`."""
        return self.full.noise

    @property
    def dimension(self) -> int:
        """The number of coordinates of a point."""
        return int(self.full.rows.tiles[0].points.shape[0])

    @functools.cached_property
    def rank(self) -> int:
        """The number of features, r."""
        return self.basis.rank(self.full.kernel, self.dimension)

    @functools.cached_property
    def state(self) -> State:
        """The arrays of the basis."""
        return self.basis.state(self.full.kernel, self.dimension)

    def part(self, which: Int[np.ndarray, " n"]) -> Part:
        """Return the part of the rows with these numbers, in this order."""
        return self.full.part(which)

    def strips(self) -> Iterator[tuple[slice, Part]]:
        """Iterate over all rows, a tile at a time."""
        return self.full.strips()

    def features(self, part: Part) -> Float[np.ndarray, "n r"]:
        """Return `√η Φ` of a part."""
        return part.spread(np.concatenate([self._reduced(tile, self._started(tile)) for tile in part.rows.tiles]))

    def featured(self) -> Iterator[tuple[slice, Part, Float[np.ndarray, "n r"]]]:
        """Iterate over all rows with their features, which are kept if they are small."""
        if self._kept is not None:
            yield from self._kept
        else:
            yield from self._streamed()

    @functools.cached_property
    def _kept(self) -> list[tuple[slice, Part, Float[np.ndarray, "n r"]]] | None:
        return list(self._streamed()) if 8.0 * self.size * self.rank <= ALWAYS_FITS else None

    def _streamed(self) -> Iterator[tuple[slice, Part, Float[np.ndarray, "n r"]]]:
        """Iterate over all rows; features of a strip are computed while those of the one before are in use."""
        pending: tuple[slice, Part, Array] | None = None
        for where, part in self.strips():
            started = self._started(part.rows.tiles[0])
            if pending is not None:
                yield pending[0], pending[1], self._reduced(pending[1].rows.tiles[0], pending[2])
            pending = where, part, started
        if pending is not None:
            yield pending[0], pending[1], self._reduced(pending[1].rows.tiles[0], pending[2])

    def _started(self, tile: Tile) -> Array:
        require_float64()
        self.basis.check_points(np.asarray(tile.points))
        return _features(self.basis, tile.indices, self.state, math.sqrt(self.full.eta), tile.points, tile.table)

    def _reduced(self, tile: Tile, values: Array) -> Float[np.ndarray, "n r"]:
        out = np.asarray(values)
        return out[: tile.size] if tile.matrix is None else tile.matrix @ out

    def block(self, first: Part, second: Part) -> Float[np.ndarray, "n m"]:
        """Return prior covariances of the rows of one part with those of another."""
        if first.rows.size > second.rows.size:
            return self.block(second, first).T
        left, out = self.features(first), np.empty((first.rows.size, second.rows.size))
        for tile in second.rows.tiles:  # which may be all rows
            out[:, tile.rows] = left @ self._reduced(tile, self._started(tile)).T
        return second.spread(out.T).T

    def variances(self, part: Part) -> Float[np.ndarray, " n"]:
        """Return prior variances of a part."""
        return squares(self.features(part))

    def product(self, vectors: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "N k"]:
        """Return `ηΦΦᵀV`."""
        inner = np.zeros((self.rank, vectors.shape[1]))
        for where, _, phi in self.featured():
            inner += phi.T @ vectors[where]
        out = np.empty_like(vectors)
        for where, _, phi in self.featured():
            out[where] = phi @ inner
        return out

    def applied(self, part: Part, vector: Float[np.ndarray, " N"]) -> Float[np.ndarray, " n"]:
        """Return `ηΦΦᵀv` of the rows of a part, which may be others than the N."""
        return self.features(part) @ self._inner(vector)

    def _inner(self, vector: Float[np.ndarray, " N"]) -> Float[np.ndarray, " r"]:
        """Return `√η Φᵀv`; remembered for the vector that was asked for last."""
        held = self._last
        if not held or not np.array_equal(held[0], vector):
            held[:] = [vector.copy(), sum(phi.T @ vector[where] for where, _, phi in self.featured())]
        return held[1]

    @functools.cached_property
    def _last(self) -> list[np.ndarray]:
        return []

    def dense(self) -> Float[np.ndarray, "N N"]:
        """Return `ηΦΦᵀ`."""
        require_memory(self.size, 8.0 * self.size * self.rank)
        phi = np.empty((self.size, self.rank))
        for where, _, rows in self.featured():
            phi[where] = rows
        return self_product(phi).T

    def tangent(self, leaves: Sequence[int]) -> FeatureTangent:
        """Return the derivatives in the kernel's numbers that are named by their positions."""
        return _KernelTangent(self, tuple(leaves))

    def moved(self, layouts: Sequence[Layout]) -> FeatureTangent:
        """Return the derivatives in coefficients of operators: layouts that hold their tangents."""
        return _CoefficientTangent(self, tuple(layouts))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _features(basis: Basis, indices: Indices, state: State, scale: float | Array, points: Array, table: Array) -> Array:
    return basis.rows(state, indices, points, scale * table)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _pulled_back(
    basis: Basis, indices: Indices, state: State, scale: float | Array, points: Array, table: Array, weights: Array
) -> Array:
    """Return `Σ_ij W_ij ∂Φ_ij` for every entry of the state."""
    _, pull = jax.vjp(lambda moved: _features(basis, indices, moved, scale, points, table), state)
    return jnp.concatenate([each.ravel() for each in pull(weights)[0]])


class FeatureTangent(Tangent):
    """Derivatives of `ηΦΦᵀ`, by those of `Φ`."""

    covariance: FeatureCovariance

    @abc.abstractmethod
    def pulled(self, part: Part, weights: Float[np.ndarray, "n r"]) -> Float[np.ndarray, " p"]:
        """Return `Σ_ij W_ij ∂Φ_ij` over the rows of a part."""

    def block(self, first: Part, second: Part, weights: Float[np.ndarray, "n m"]) -> Float[np.ndarray, " p"]:
        """Return the contractions over the rows of one part with those of another."""
        left = self.pulled(first, weights @ self.covariance.features(second))
        return left + self.pulled(second, weights.T @ self.covariance.features(first))

    def variances(self, part: Part, weights: Float[np.ndarray, " n"]) -> Float[np.ndarray, " p"]:
        """Return the contractions over the diagonal of a part."""
        return self.pulled(part, 2.0 * weights[:, None] * self.covariance.features(part))

    def dense(self, weights: Weights) -> Float[np.ndarray, " p"]:
        """Return the contractions over all rows with all."""
        upper = np.triu(weights.matrix)
        whole = upper + np.triu(upper, 1).T - np.outer(weights.vector, weights.vector / weights.scale)
        phi = np.concatenate([rows for _, _, rows in self.covariance.featured()])
        pulled = [self.pulled(part, 2.0 * whole[where] @ phi) for where, part, _ in self.covariance.featured()]
        return np.sum(pulled, axis=0)


class _KernelTangent(FeatureTangent):
    """In the kernel's numbers: back to the arrays of the basis, and forward from the numbers to them."""

    def __init__(self, covariance: FeatureCovariance, leaves: tuple[int, ...]) -> None:
        self.covariance = covariance
        numbers, rest = eqx.partition(covariance.full.kernel, eqx.is_inexact_array)
        held, structure = jax.tree.flatten(numbers)
        rows = []
        for leaf in leaves:

            def state(value: Array, leaf: int = leaf) -> State:
                moved = jax.tree.unflatten(structure, [*held[:leaf], value, *held[leaf + 1 :]])
                return covariance.basis.state(eqx.combine(moved, rest), covariance.dimension)

            for unit in np.eye(held[leaf].size):
                _, change = jax.jvp(state, (held[leaf],), (jnp.asarray(unit.reshape(held[leaf].shape)),))
                rows.append(np.concatenate([np.zeros(0), *(np.asarray(each).ravel() for each in change)]))
        self.directions = np.stack(rows) if rows else np.zeros((0, sum(each.size for each in covariance.state)))

    def pulled(self, part: Part, weights: Float[np.ndarray, "n r"]) -> Float[np.ndarray, " p"]:
        full, total = self.covariance.full, np.zeros(self.directions.shape[1])
        if not total.size:
            return np.zeros(len(self.directions))
        held = part.gathered(weights)
        for tile in part.rows.tiles:
            rows = held[tile.rows]
            short = tile.width - tile.size
            rows = np.pad(rows, ((0, short), (0, 0))) if tile.matrix is None else tile.matrix.T @ rows
            given = math.sqrt(full.eta), tile.points, tile.table, rows
            total += np.asarray(_pulled_back(self.covariance.basis, tile.indices, self.covariance.state, *given))
        return self.directions @ total


class _CoefficientTangent(FeatureTangent):
    """In coefficients of operators, in which features are linear."""

    def __init__(self, covariance: FeatureCovariance, layouts: tuple[Layout, ...]) -> None:
        self.covariance = covariance
        self.layouts = layouts

    def pulled(self, part: Part, weights: Float[np.ndarray, "n r"]) -> Float[np.ndarray, " p"]:
        held = part.gathered(weights)
        parts = [Part(*taken(rows, part.rows.order)) for rows in self.layouts]
        return np.array([float(np.vdot(held, self.covariance.features(each))) for each in parts])


def squares(rows: Float[np.ndarray, "n k"]) -> Float[np.ndarray, " n"]:
    """Return the sum of squares of each row."""
    return np.einsum("ij,ij->i", rows, rows)
