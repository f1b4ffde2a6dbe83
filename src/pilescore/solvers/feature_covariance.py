"""The covariance `ηΦΦᵀ + S` of a finite basis as a linear operator, and its derivatives."""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..covariance import (
    Covariance,
    CovarianceTangent,
    Indices,
    KernelCovariance,
    Layout,
    RowSet,
    Tile,
    Weights,
    entry_tangents,
    join,
    select_rows,
    split,
    started_ahead,
)
from ..errors import require_float64
from ..parallel import ALWAYS_FITS_BYTES, require_memory
from .bases import Basis, BasisState
from .lapack import self_product


class FeatureCovariance(Covariance):
    """`C = ηΦΦᵀ + S`: the rows, values and noise of a kernel covariance, with the kernel replaced by a basis."""

    def __init__(self, full: KernelCovariance, basis: Basis) -> None:
        self.full = full
        """The covariance of the kernel itself."""
        self.basis = basis
        self.values, self.noise = full.values, full.noise
        self.dimension = int(full.rows.tiles[0].points.shape[0])
        """Number of coordinates of a point."""
        self.rank = basis.rank(full.kernel, self.dimension)
        """Number of features, r."""
        self._last: list[np.ndarray] = []

    @functools.cached_property
    def state(self) -> BasisState:
        """The arrays of the basis."""
        return self.basis.state(self.full.kernel, self.dimension)

    def select(self, which: Int[np.ndarray, " n"]) -> RowSet:
        """Return the subset of rows with these numbers, in this order."""
        return self.full.select(which)

    def strips(self) -> Iterator[tuple[slice, RowSet]]:
        """Iterate over all rows, one tile at a time."""
        return self.full.strips()

    def features(self, subset: RowSet) -> Float[np.ndarray, "n r"]:
        """Return `√η Φ` for a subset."""
        return subset.spread(np.concatenate([self._rows(tile) for tile in subset.rows.tiles]))

    def featured(self) -> Iterator[tuple[slice, RowSet, Float[np.ndarray, "n r"]]]:
        """Iterate over all rows with their features, which are cached if they are small."""
        if self._cached is not None:
            yield from self._cached
        else:
            yield from self._streamed()

    @functools.cached_property
    def _cached(self) -> list[tuple[slice, RowSet, Float[np.ndarray, "n r"]]] | None:
        return list(self._streamed()) if 8.0 * self.size * self.rank <= ALWAYS_FITS_BYTES else None

    def _streamed(self) -> Iterator[tuple[slice, RowSet, Float[np.ndarray, "n r"]]]:
        started = ((where, subset, self._started(subset.rows.tiles[0])) for where, subset in self.strips())
        for where, subset, values in started_ahead(started):
            yield where, subset, subset.rows.tiles[0].to_values(np.asarray(values))

    def _started(self, tile: Tile) -> Array:
        require_float64()
        self.basis.check_points(np.asarray(tile.points))
        return _features(self.basis, tile.indices, self.state, math.sqrt(self.full.eta), tile.points, tile.table)

    def _rows(self, tile: Tile) -> Float[np.ndarray, "n r"]:
        return tile.to_values(np.asarray(self._started(tile)))

    def block(self, first: RowSet, second: RowSet) -> Float[np.ndarray, "n m"]:
        """Return the prior covariances between two subsets."""
        if first.rows.size > second.rows.size:
            return self.block(second, first).T
        left, out = self.features(first), np.empty((first.rows.size, second.rows.size))
        for tile in second.rows.tiles:  # tile by tile, since the larger subset may hold all rows
            out[:, tile.rows] = left @ self._rows(tile).T
        return second.spread(out.T).T

    def variances(self, subset: RowSet) -> Float[np.ndarray, " n"]:
        """Return the prior variances of a subset."""
        return squares(self.features(subset))

    def product(self, vectors: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "N k"]:
        """Return `ηΦΦᵀV`."""
        inner = np.zeros((self.rank, vectors.shape[1]))
        for where, _, phi in self.featured():
            inner += phi.T @ vectors[where]
        out = np.empty_like(vectors)
        for where, _, phi in self.featured():
            out[where] = phi @ inner
        return out

    def applied(self, subset: RowSet, vector: Float[np.ndarray, " N"]) -> Float[np.ndarray, " n"]:
        """Return the rows of `ηΦΦᵀv` in a subset, which may lie outside the N observations."""
        return self.features(subset) @ self._inner(vector)

    def _inner(self, vector: Float[np.ndarray, " N"]) -> Float[np.ndarray, " r"]:
        """Return `√η Φᵀv`, cached for the last vector."""
        if not self._last or not np.array_equal(self._last[0], vector):
            self._last = [vector.copy(), sum(phi.T @ vector[where] for where, _, phi in self.featured())]
        return self._last[1]

    def dense(self) -> Float[np.ndarray, "N N"]:
        """Return `ηΦΦᵀ`."""
        require_memory(self.size, 8.0 * self.size * self.rank)
        phi = np.empty((self.size, self.rank))
        for where, _, rows in self.featured():
            phi[where] = rows
        return self_product(phi).T

    def tangent(self, leaves: Sequence[int]) -> FeatureTangent:
        """Return the derivatives with respect to the kernel arrays with these positions."""
        return _KernelTangent(self, tuple(leaves))

    def coefficient_tangent(self, layouts: Sequence[Layout]) -> FeatureTangent:
        """Return the derivatives with respect to operator parameters, given layouts of coefficient derivatives."""
        return _CoefficientTangent(self, tuple(layouts))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _features(
    basis: Basis, indices: Indices, state: BasisState, scale: float | Array, points: Array, table: Array
) -> Array:
    return basis.rows(state, indices, points, scale * table)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _pulled_back(
    basis: Basis, indices: Indices, state: BasisState, scale: float | Array, points: Array, table: Array, weights: Array
) -> Array:
    """Return `Σ_ij W_ij ∂Φ_ij` for every entry of the basis state."""
    _, pull = jax.vjp(lambda changed: _features(basis, indices, changed, scale, points, table), state)
    return _joined(pull(weights)[0])


def _joined(state: BasisState) -> Float[Array, " s"]:
    """Return all entries of a basis state, which may be empty."""
    return jnp.concatenate([jnp.zeros(0), *(array.ravel() for array in state)])


class FeatureTangent(CovarianceTangent):
    """Derivatives of `ηΦΦᵀ` through derivatives of `Φ`."""

    covariance: FeatureCovariance

    @abc.abstractmethod
    def contract_features(self, subset: RowSet, weights: Float[np.ndarray, "n r"]) -> Float[np.ndarray, " p"]:
        """Return `Σ_ij W_ij ∂Φ_ij` over a subset of rows."""

    def block(self, first: RowSet, second: RowSet, weights: Float[np.ndarray, "n m"]) -> Float[np.ndarray, " p"]:
        """Contract over the block between two subsets."""
        left = self.contract_features(first, weights @ self.covariance.features(second))
        return left + self.contract_features(second, weights.T @ self.covariance.features(first))

    def variances(self, subset: RowSet, weights: Float[np.ndarray, " n"]) -> Float[np.ndarray, " p"]:
        """Contract over the diagonal of a subset."""
        return self.contract_features(subset, 2.0 * weights[:, None] * self.covariance.features(subset))

    def dense(self, weights: Weights) -> Float[np.ndarray, " p"]:
        """Contract over all pairs of rows."""
        upper = np.triu(weights.matrix)
        whole = upper + np.triu(upper, 1).T - np.outer(weights.vector, weights.vector / weights.scale)
        phi = np.concatenate([rows for _, _, rows in self.covariance.featured()])
        pulled = [
            self.contract_features(subset, 2.0 * whole[where] @ phi) for where, subset, _ in self.covariance.featured()
        ]
        return np.sum(pulled, axis=0)


class _KernelTangent(FeatureTangent):
    """Derivatives with respect to kernel arrays: reverse mode to the basis state, forward mode from the kernel."""

    def __init__(self, covariance: FeatureCovariance, leaves: tuple[int, ...]) -> None:
        self.covariance = covariance
        arrays, form = split(covariance.full.kernel)

        def state(changed: list[Array]) -> Array:
            return _joined(covariance.basis.state(join(form, changed), covariance.dimension))

        self.directions = np.stack([np.asarray(change) for change in entry_tangents(state, arrays, leaves)])

    def contract_features(self, subset: RowSet, weights: Float[np.ndarray, "n r"]) -> Float[np.ndarray, " p"]:
        full, total = self.covariance.full, np.zeros(self.directions.shape[1])
        if not total.size:
            return np.zeros(len(self.directions))
        weights = subset.gathered(weights)
        for tile in subset.rows.tiles:
            arguments = math.sqrt(full.eta), tile.points, tile.table, tile.to_points(weights[tile.rows])
            total += np.asarray(_pulled_back(self.covariance.basis, tile.indices, self.covariance.state, *arguments))
        return self.directions @ total


class _CoefficientTangent(FeatureTangent):
    """Derivatives with respect to operator parameters; the features are linear in the coefficients."""

    def __init__(self, covariance: FeatureCovariance, layouts: tuple[Layout, ...]) -> None:
        self.covariance = covariance
        self.layouts = layouts

    def contract_features(self, subset: RowSet, weights: Float[np.ndarray, "n r"]) -> Float[np.ndarray, " p"]:
        weights = subset.gathered(weights)
        tangents = [RowSet(*select_rows(layout, subset.rows.order)) for layout in self.layouts]
        return np.array([float(np.vdot(weights, self.covariance.features(tangent))) for tangent in tangents])


def squares(rows: Float[np.ndarray, "n k"]) -> Float[np.ndarray, " n"]:
    """Return the sum of squares of each row."""
    return np.einsum("ij,ij->i", rows, rows)
