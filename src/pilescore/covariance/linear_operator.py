"""Covariances as linear operators: blocks, products and derivatives for solvers, without forming the matrix."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ..kernels import Kernel
from .gram import (
    Weights,
    block,
    block_gradient,
    coefficient_gradient,
    covariance,
    kernel_gradient,
    product,
    variance_gradient,
    variances,
)
from .tiles import Layout, select_rows, single_tile


class Covariance(abc.ABC):
    """The covariance `C = Q + S` of N observations: prior covariances `Q`, which need not be formed, and noise `S`.

    Rows are in assembled order. `select` and `strips` return subsets of the rows, opaque to the caller, for `block`.
    """

    values: Float[np.ndarray, " N"]
    """The observed values `ỹ`."""
    noise: Float[np.ndarray, " N"]
    """The diagonal of `S`."""

    @property
    def size(self) -> int:
        """The number of observations, N."""
        return len(self.noise)

    @abc.abstractmethod
    def select(self, which: Int[np.ndarray, " n"]) -> Any:
        """Return the subset of rows with these numbers, in this order."""

    @abc.abstractmethod
    def strips(self) -> Iterator[tuple[slice, Any]]:
        """Iterate over all rows in runs of moderate length: the position of each run, and its subset."""

    @abc.abstractmethod
    def block(self, first: Any, second: Any) -> Float[np.ndarray, "n m"]:
        """Return `Q` between two subsets of rows."""

    @abc.abstractmethod
    def variances(self, subset: Any) -> Float[np.ndarray, " n"]:
        """Return the diagonal of `Q` for a subset."""

    @abc.abstractmethod
    def product(self, vectors: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "N k"]:
        """Return `QV` without forming `Q`."""

    def applied(self, subset: Any, vector: Float[np.ndarray, " N"]) -> Float[np.ndarray, " n"]:
        """Return the rows of `Qv` in a subset, which may lie outside the N observations."""
        return sum(self.block(subset, strip) @ vector[where] for where, strip in self.strips())

    @abc.abstractmethod
    def dense(self) -> Float[np.ndarray, "N N"]:
        """Return `Q`, Fortran ordered, with its lower triangle filled."""

    @abc.abstractmethod
    def tangent(self, leaves: Sequence[int]) -> CovarianceTangent:
        """Return the derivatives of `Q` with respect to the kernel arrays with these positions."""

    @abc.abstractmethod
    def coefficient_tangent(self, layouts: Sequence[Any]) -> CovarianceTangent:
        """Return the derivatives of `Q` with respect to operator parameters, given layouts of coefficient tangents."""


class CovarianceTangent(abc.ABC):
    """Derivatives of `Q` with respect to p hyperparameters, contracted with weights: `Σ_ij G_ij ∂Q_ij`."""

    @abc.abstractmethod
    def block(self, first: Any, second: Any, weights: Float[np.ndarray, "n m"]) -> Float[np.ndarray, " p"]:
        """Contract over the block between two subsets."""

    @abc.abstractmethod
    def variances(self, subset: Any, weights: Float[np.ndarray, " n"]) -> Float[np.ndarray, " p"]:
        """Contract over the diagonal of a subset."""

    @abc.abstractmethod
    def dense(self, weights: Weights) -> Float[np.ndarray, " p"]:
        """Contract over all pairs of rows."""


@dataclasses.dataclass(frozen=True, eq=False)
class RowSet:
    """A subset of rows: its layout, and the position of each layout row in the subset (None: the same order)."""

    rows: Layout
    places: Int[np.ndarray, " n"] | None = None

    def spread(self, values: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, "n ..."]:
        """Reorder values from the rows of the layout to the subset."""
        if self.places is None:
            return values
        out = np.empty_like(values)
        out[self.places] = values
        return out

    def gathered(self, values: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, "n ..."]:
        """Reorder values from the subset to the rows of the layout."""
        return values if self.places is None else values[self.places]


@dataclasses.dataclass(frozen=True, eq=False)
class KernelCovariance(Covariance):
    """`C = ηQ + S` for a kernel and a layout of observations."""

    kernel: Kernel
    rows: Layout
    eta: float
    values: Float[np.ndarray, " N"]
    noise: Float[np.ndarray, " N"]

    def select(self, which: Int[np.ndarray, " n"]) -> RowSet:
        """Return the subset of rows with these numbers, in this order."""
        return RowSet(*select_rows(self.rows, np.asarray(which)))

    def strips(self) -> Iterator[tuple[slice, RowSet]]:
        """Iterate over all rows, one tile at a time."""
        for tile in self.rows.tiles:
            yield tile.rows, RowSet(single_tile(tile))

    def block(self, first: RowSet, second: RowSet) -> Float[np.ndarray, "n m"]:
        """Return the prior covariances between two subsets."""
        raw = block(self.kernel, first.rows, second.rows, self.eta)
        return second.spread(first.spread(raw).T).T

    def variances(self, subset: RowSet) -> Float[np.ndarray, " n"]:
        """Return the prior variances of a subset."""
        return subset.spread(np.concatenate([variances(self.kernel, tile, self.eta) for tile in subset.rows.tiles]))

    def product(self, vectors: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "N k"]:
        """Return `ηQV`, tile by tile."""
        return product(self.kernel, self.rows, self.eta, vectors)

    def dense(self) -> Float[np.ndarray, "N N"]:
        """Return `ηQ` with its lower triangle filled."""
        return covariance(self.kernel, self.rows, self.eta)

    def tangent(self, leaves: Sequence[int]) -> KernelTangent:
        """Return the derivatives with respect to the kernel arrays with these positions."""
        return KernelTangent(self.kernel, self.rows, self.eta, leaves)

    def coefficient_tangent(self, layouts: Sequence[Layout]) -> CoefficientTangent:
        """Return the derivatives with respect to operator parameters, given layouts of coefficient derivatives."""
        return CoefficientTangent(self.kernel, self.rows, self.eta, tuple(layouts))


@dataclasses.dataclass(frozen=True, eq=False)
class KernelTangent(CovarianceTangent):
    """Derivatives with respect to every entry of the kernel arrays with these positions."""

    kernel: Kernel
    rows: Layout
    eta: float
    leaves: Sequence[int]

    def block(self, first: RowSet, second: RowSet, weights: Float[np.ndarray, "n m"]) -> Float[np.ndarray, " p"]:
        """Contract over the block between two subsets."""
        weights = second.gathered(first.gathered(weights).T).T
        return block_gradient(self.kernel, self.leaves, first.rows, second.rows, self.eta, weights)

    def variances(self, subset: RowSet, weights: Float[np.ndarray, " n"]) -> Float[np.ndarray, " p"]:
        """Contract over the diagonal of a subset."""
        return variance_gradient(self.kernel, self.leaves, subset.rows, self.eta, subset.gathered(weights))

    def dense(self, weights: Weights) -> Float[np.ndarray, " p"]:
        """Contract over all pairs of rows."""
        return kernel_gradient(self.kernel, self.leaves, self.rows, self.eta, weights)


@dataclasses.dataclass(frozen=True, eq=False)
class CoefficientTangent(CovarianceTangent):
    """Derivatives with respect to operator parameters: one layout of coefficient derivatives per parameter entry."""

    kernel: Kernel
    rows: Layout
    eta: float
    layouts: tuple[Layout, ...]

    def block(self, first: RowSet, second: RowSet, weights: Float[np.ndarray, "n m"]) -> Float[np.ndarray, " p"]:
        """Contract over the block between two subsets."""
        weights = second.gathered(first.gathered(weights).T).T
        total = []
        for layout in self.layouts:  # product rule: either operator may be the one that changes
            left, right = self._mixed(layout, first.rows, second.rows), self._mixed(layout, second.rows, first.rows)
            total.append(float(np.vdot(weights, left) + np.vdot(weights.T, right)))
        return np.array(total)

    def variances(self, subset: RowSet, weights: Float[np.ndarray, " n"]) -> Float[np.ndarray, " p"]:
        """Contract over the diagonal of a subset."""
        weights = subset.gathered(weights)
        diagonals = [self._mixed(layout, subset.rows, subset.rows).diagonal() for layout in self.layouts]
        return np.array([2.0 * float(weights @ diagonal) for diagonal in diagonals])

    def _mixed(self, layout: Layout, first: Layout, second: Layout) -> Float[np.ndarray, "n m"]:
        """Return the covariances between differentiated operators of some rows and the operators of others."""
        tangents = RowSet(*select_rows(layout, first.order))  # `order` holds row numbers of the whole layout
        return tangents.spread(block(self.kernel, tangents.rows, second, self.eta))

    def dense(self, weights: Weights) -> Float[np.ndarray, " p"]:
        """Contract over all pairs of rows."""
        gradients = [coefficient_gradient(self.kernel, layout, self.rows, self.eta, weights) for layout in self.layouts]
        return np.array(gradients)
