"""The part of a covariance that some of its columns span, `M = S + UUᵀ ≤ C`, and how far it is from the whole.

In units of the noise, `U = W_·P L⁻ᵀ` with `W_PP = LLᵀ` for the pivots `P`. Rows are made in strips, and kept where
there is room. `E = C − M` is positive semi-definite with the diagonal `e`, which every pass over the rows finds: so
`|vᵀEv| ≤ (Σ |v_i| √e_i)²` for every vector, and `log det C − log det M ≤ n log(1 + Σe/n)`, `n = N − r`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import blas, lapack

from .linalg import EPS, NotFactorableError, checked, cholesky
from .pivots import columns_over
from .solvers import Bounds, Covariance, Pull, Tangent

KEPT = 1e9
"""Bytes of rows of `U` that are kept; above it they are made anew in every pass."""


DIVIDED = 1e-10
"""Pivots that are smaller, relative to the largest, are left out of derivatives."""


class Nystrom:
    """`M = S + UUᵀ` of chosen pivots."""

    def __init__(self, covariance: Covariance, chosen: Int[np.ndarray, " r"]) -> None:
        self.covariance = covariance
        self.root = np.sqrt(covariance.noise)
        self.chosen, self.triangle = _factored(covariance, chosen)
        self.part = covariance.part(self.chosen)
        self.kept: dict[int, np.ndarray] | None = {} if 8.0 * covariance.size * self.rank <= KEPT else None
        values = covariance.values / self.root
        inner, right = np.eye(self.rank), np.zeros(self.rank)
        self.variances, self.left = np.empty(covariance.size), np.empty(covariance.size)
        for where, strip, rows in self.strips():
            inner += rows.T @ rows
            right += rows.T @ values[where]
            self.variances[where] = covariance.variances(strip) / covariance.noise[where]
            self.left[where] = self.variances[where] - np.einsum("ij,ij->i", rows, rows)
        self.left[self.chosen] = 0.0  # a pivot is spanned by itself
        self.inner = cholesky(np.asfortranarray(inner))
        """The factor of `B = I + UᵀU`."""
        mean = self.inner.solve(right)
        self.alpha = np.empty(covariance.size)
        """`M⁻¹ỹ`."""
        inverse = np.empty(covariance.size)
        for where, _, rows in self.strips():
            self.alpha[where] = (values[where] - rows @ mean) / self.root[where]
            half = self.inner.half_solve(rows.T.copy(order="F"))  # it is overwritten
            inverse[where] = 1.0 - np.einsum("ij,ij->j", half, half)
        self.inverse = inverse
        """The diagonal of `S^½ M⁻¹ S^½`."""
        scaled = self.alpha * self.root
        self.quadratic = float(scaled @ scaled + mean @ mean)
        """`ỹᵀM⁻¹ỹ`, as a sum of squares."""

    @property
    def rank(self) -> int:
        """The number of pivots."""
        return len(self.chosen)

    @property
    def rounding(self) -> float:
        """An estimate of what rounding does to `log det` and to the quadratic form together."""
        magnitude = np.sqrt(self.variances + 1.0)
        dual = float(np.abs(self.alpha * self.root) @ magnitude)
        return max(4.0 * EPS, self.lost) * (float((self.variances + 1.0) @ np.abs(self.inverse)) + dual**2)

    @property
    def slack(self) -> Float[np.ndarray, " N"]:
        """Bounds on `e`, the diagonal of `E` in units of the noise, with room for rounding."""
        lost = max(8.0 * EPS * math.sqrt(self.rank + 1.0), self.lost)
        return np.maximum(self.left, 0.0) + lost * (self.variances + 1.0)

    @property
    def lost(self) -> float:
        """How negative a residual is, relative to its variance: it can be by rounding only."""
        return float(np.max(-self.left / (self.variances + 1.0), initial=0.0))

    @property
    def logdet(self) -> Bounds:
        """Bounds on `log det C`."""
        low = self.inner.logdet + float(np.log(self.covariance.noise).sum())
        others = max(self.covariance.size - self.rank, 1)
        return Bounds(low, low + others * math.log1p(float(self.slack.sum()) / others))

    def strips(self) -> Iterator[tuple[slice, Any, Float[np.ndarray, "n r"]]]:
        """Iterate over the rows of `U`: where they stand, the part, and the rows."""
        scale = self.root[self.chosen]
        for where, strip in self.covariance.strips():
            rows = None if self.kept is None else self.kept.get(where.start)
            if rows is None:
                columns = self.covariance.block(strip, self.part) / (self.root[where, None] * scale)
                rows = columns_over(self.triangle, columns)
                if self.kept is not None:
                    self.kept[where.start] = rows
            yield where, strip, rows

    def solve(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "N k"]:
        """Return `M⁻¹B`."""
        scaled = right / self.root[:, None]
        inner = np.zeros((self.rank, right.shape[1]))
        for where, _, rows in self.strips():
            inner += rows.T @ scaled[where]
        inner = self.inner.solve(inner)
        for where, _, rows in self.strips():
            scaled[where] -= rows @ inner
        return scaled / self.root[:, None]

    def trimmed(self) -> Nystrom:
        """Return the part of the first pivots only whose derivatives rounding leaves alone: they divide by pivots."""
        squares = self.triangle.diagonal() ** 2
        small = np.flatnonzero(squares < DIVIDED * squares.max())
        return self if len(small) == 0 else Nystrom(self.covariance, self.chosen[: small[0]])

    def distance(self, vectors: Float[np.ndarray, "N k"]) -> Float[np.ndarray, " k"]:
        """Return bounds on `vᵀEv`."""
        return (np.sqrt(self.slack) @ np.abs(vectors * self.root[:, None])) ** 2


def _factored(covariance: Covariance, chosen: Int[np.ndarray, " r"]) -> tuple[np.ndarray, Float[np.ndarray, "r r"]]:
    """Return the pivots, as far as they can be told from each other, and the triangle of their covariance."""
    scale = np.sqrt(covariance.noise[chosen])
    part = covariance.part(chosen)
    matrix = np.asfortranarray(covariance.block(part, part) / (scale[:, None] * scale))
    try:
        return chosen, np.asfortranarray(np.tril(cholesky(matrix).matrix))
    except NotFactorableError as failure:
        if failure.row == 0:
            raise
        return _factored(covariance, chosen[: failure.row])


class NystromPull(Pull):
    """The derivative of `log det M + ½n log(1 + Σe/n) − αᵀ(∂C)α/scale`, with the pivots held."""

    def __init__(self, found: Nystrom, alpha: Float[np.ndarray, " N"], scale: float) -> None:
        self.found, self.alpha, self.scale = found, alpha, scale
        others = max(found.covariance.size - found.rank, 1)
        self.weight = 0.5 / (1.0 + float(found.slack.sum()) / others)
        """The derivative of the midpoint in `Σe`."""
        noise = found.covariance.noise
        self.diagonal = (found.inverse - self.weight * found.left) / noise - alpha**2 / scale

    def contract(self, tangent: Tangent) -> Float[np.ndarray, " p"]:
        """Return the derivative in hyperparameters of `Q`: rows × pivots, pivots × pivots, and the diagonal."""
        found, root = self.found, self.found.root
        inverse = checked(lapack.dpotri(np.tril(found.inner.matrix), lower=1))
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        scaled = self.alpha * root
        along = sum((rows.T @ scaled[where] for where, _, rows in found.strips()), np.zeros(found.rank))
        spread = sum((rows.T @ rows for _, _, rows in found.strips()), np.zeros((found.rank, found.rank)))
        scale = root[found.chosen]
        total: Any = 0.0
        for where, strip, rows in found.strips():
            pulled = rows @ inverse - self.weight * rows - np.outer(scaled[where], along / self.scale)
            weights = 2.0 * _over(found.triangle, pulled) / (root[where, None] * scale)
            total = total + tangent.block(strip, found.part, weights)
            total = total + tangent.variances(strip, np.full(len(rows), self.weight) / root[where] ** 2)
        middle = np.eye(found.rank) - inverse - self.weight * spread - np.outer(along, along) / self.scale
        square = _over(found.triangle, np.asfortranarray(_over(found.triangle, middle).T))
        return total - tangent.block(found.part, found.part, square / (scale[:, None] * scale))


def _over(triangle: Float[np.ndarray, "r r"], rows: Float[np.ndarray, "n r"]) -> Float[np.ndarray, "n r"]:
    """Return `X L⁻¹`."""
    return blas.dtrsm(1.0, triangle, np.asfortranarray(rows), side=1, lower=1, trans_a=0)
