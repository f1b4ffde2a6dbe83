"""The covariance of a model's observations as an operator for solvers, and its derivatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int

from .gram import (
    block,
    block_gradient,
    coefficient_gradient,
    covariance,
    kernel_gradient,
    product,
    variance_gradient,
    variances,
)
from .kernels import Kernel
from .layouts import Layout, alone, taken
from .solvers import Covariance, Tangent, Weights


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """Some rows: their layout, and where each row of the layout stands in the part (None: where it is)."""

    rows: Layout
    places: Int[np.ndarray, " n"] | None = None

    def spread(self, values: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, "n ..."]:
        """Return values of the rows of the layout in the order of the part."""
        if self.places is None:
            return values
        out = np.empty_like(values)
        out[self.places] = values
        return out

    def gathered(self, values: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, "n ..."]:
        """Return values in the order of the part by the rows of the layout."""
        return values if self.places is None else values[self.places]


@dataclasses.dataclass(frozen=True, eq=False)
class KernelCovariance(Covariance):
    """`C = ηQ + S` of a kernel and the rows of a layout."""

    kernel: Kernel
    rows: Layout
    eta: float
    values: Float[np.ndarray, " N"]
    noise: Float[np.ndarray, " N"]

    def part(self, which: Int[np.ndarray, " n"]) -> Part:
        """Return the part of the rows with these numbers, in this order."""
        return Part(*taken(self.rows, np.asarray(which)))

    def strips(self) -> Iterator[tuple[slice, Part]]:
        """Iterate over all rows, a tile at a time."""
        for tile in self.rows.tiles:
            yield tile.rows, Part(alone(tile))

    def block(self, first: Part, second: Part) -> Float[np.ndarray, "n m"]:
        """Return prior covariances of the rows of one part with those of another."""
        raw = block(self.kernel, first.rows, second.rows, self.eta)
        return second.spread(first.spread(raw).T).T

    def variances(self, part: Part) -> Float[np.ndarray, " n"]:
        """Return prior variances of a part."""
        return part.spread(np.concatenate([variances(self.kernel, tile, self.eta) for tile in part.rows.tiles]))

    def product(self, vectors: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "N k"]:
        """Return `ηQV`, tile by tile."""
        return product(self.kernel, self.rows, self.eta, vectors)

    def dense(self) -> Float[np.ndarray, "N N"]:
        """Return `ηQ` by its lower triangle."""
        return covariance(self.kernel, self.rows, self.eta)

    def tangent(self, leaves: Sequence[int]) -> KernelTangent:
        """Return the derivatives in the kernel's numbers that are named by their positions."""
        return KernelTangent(self.kernel, self.rows, self.eta, leaves)

    def moved(self, layouts: Sequence[Layout]) -> CoefficientTangent:
        """Return the derivatives in parameters of operators, whose tangents are the coefficients of these layouts."""
        return CoefficientTangent(self.kernel, self.rows, self.eta, tuple(layouts))


@dataclasses.dataclass(frozen=True, eq=False)
class KernelTangent(Tangent):
    """Derivatives in the kernel's numbers that are named by their positions: one for each entry of each."""

    kernel: Kernel
    rows: Layout
    eta: float
    leaves: Sequence[int]

    def block(self, first: Part, second: Part, weights: Float[np.ndarray, "n m"]) -> Float[np.ndarray, " p"]:
        """Return the contractions over the rows of one part with those of another."""
        held = second.gathered(first.gathered(weights).T).T
        return block_gradient(self.kernel, self.leaves, first.rows, second.rows, self.eta, held)

    def variances(self, part: Part, weights: Float[np.ndarray, " n"]) -> Float[np.ndarray, " p"]:
        """Return the contractions over the diagonal of a part."""
        return variance_gradient(self.kernel, self.leaves, part.rows, self.eta, part.gathered(weights))

    def dense(self, weights: Weights) -> Float[np.ndarray, " p"]:
        """Return the contractions over all rows with all."""
        return np.concatenate(
            [total.ravel() for total in kernel_gradient(self.kernel, self.leaves, self.rows, self.eta, weights)]
        )


@dataclasses.dataclass(frozen=True, eq=False)
class CoefficientTangent(Tangent):
    """Derivatives in parameters inside operators: layouts whose coefficients are the tangents, one for each entry."""

    kernel: Kernel
    rows: Layout
    eta: float
    moved: tuple[Layout, ...]

    def block(self, first: Part, second: Part, weights: Float[np.ndarray, "n m"]) -> Float[np.ndarray, " p"]:
        """Return the contractions over the rows of one part with those of another."""
        held = second.gathered(first.gathered(weights).T).T
        total = []
        for moved in self.moved:
            left = self._mixed(moved, first.rows, second.rows)
            total.append(float(np.vdot(held, left) + np.vdot(held.T, self._mixed(moved, second.rows, first.rows))))
        return np.array(total)

    def variances(self, part: Part, weights: Float[np.ndarray, " n"]) -> Float[np.ndarray, " p"]:
        """Return the contractions over the diagonal of a part."""
        held = part.gathered(weights)
        mixed = [self._mixed(moved, part.rows, part.rows).diagonal() for moved in self.moved]
        return np.array([2.0 * float(held @ each) for each in mixed])

    def _mixed(self, moved: Layout, first: Layout, second: Layout) -> Float[np.ndarray, "n m"]:
        """Return the covariances of the moved operators of some rows with those of others."""
        tangents = Part(*taken(moved, first.order))
        return tangents.spread(block(self.kernel, tangents.rows, second, self.eta))

    def dense(self, weights: Weights) -> Float[np.ndarray, " p"]:
        """Return the contractions over all rows with all."""
        each = [coefficient_gradient(self.kernel, moved, self.rows, self.eta, weights) for moved in self.moved]
        return np.array(each)
