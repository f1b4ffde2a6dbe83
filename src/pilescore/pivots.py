"""Pivoted partial Cholesky: rows of a covariance whose columns nearly span it, columns made as they are needed."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import blas

from .errors import PilescoreError
from .solvers import Covariance

POOL = 20_000
"""Rows among which pivots are sought, at most; of more rows a sample of each strip is taken."""

CANDIDATES = 128
"""Rows whose columns are made together; those that the others have made needless are left."""

WORTH = 0.1
"""The part of the largest residual of a set of candidates down to which they become pivots."""


class Pivots:
    """The pivots of `W = S^-½ Q S^-½` among a pool of rows, in the order in which they were found."""

    def __init__(self, covariance: Covariance, seed: int = 0) -> None:
        self.covariance = covariance
        self.rng = np.random.default_rng(seed)
        self.pool = self._sample()
        self.part = covariance.part(self.pool)
        self.root = np.sqrt(covariance.noise[self.pool])
        self.residual = covariance.variances(self.part) / self.root**2
        self.start = self.residual.copy()
        if not np.isfinite(self.residual).all():
            raise PilescoreError("the prior variances are not all finite: check the kernel and the operators")
        self.chosen: list[int] = []
        """Numbers of rows of the whole."""
        self.factor = np.empty((len(self.pool), 0), order="F")
        self.exhausted = False
        """Whether what is left cannot be told from rounding."""

    @property
    def rank(self) -> int:
        """The number of pivots."""
        return len(self.chosen)

    @property
    def trace(self) -> float:
        """The trace of the residual of all rows, estimated from that of the pool."""
        return float(self.residual.sum()) * self.covariance.size / len(self.pool)

    def extend(self, enough: Callable[[float, int], bool], limit: int) -> None:
        """Add pivots until `enough(trace, rank)` or the limit, or until nothing but rounding is left."""
        while not self.exhausted and self.rank < limit and not enough(self.trace, self.rank):
            self._add(min(CANDIDATES, limit - self.rank))

    def add_rows(self, which: Int[np.ndarray, " n"]) -> None:
        """Put more rows into the pool: those that a pass over all has found to be badly spanned."""
        fresh = np.setdiff1d(which, self.pool)
        if len(fresh) == 0:
            return
        part, root = self.covariance.part(fresh), np.sqrt(self.covariance.noise[fresh])
        start = self.covariance.variances(part) / root**2
        rows = np.empty((len(fresh), 0), order="F")
        if self.rank:
            chosen = self.covariance.part(np.array(self.chosen))
            scale = np.sqrt(self.covariance.noise[self.chosen])
            columns = self.covariance.block(part, chosen) / (root[:, None] * scale)
            rows = columns_over(self._triangle(), columns)
        self.pool = np.concatenate([self.pool, fresh])
        self.part = self.covariance.part(self.pool)
        self.root = np.concatenate([self.root, root])
        self.start = np.concatenate([self.start, start])
        self.residual = np.concatenate([self.residual, start - np.einsum("ij,ij->i", rows, rows)])
        self.factor = np.asfortranarray(np.concatenate([self.factor, rows]))
        self.exhausted = False

    def _triangle(self) -> Float[np.ndarray, "r r"]:
        place = {int(row): i for i, row in enumerate(self.pool)}
        return np.asfortranarray(self.factor[[place[row] for row in self.chosen]])

    def _sample(self) -> Int[np.ndarray, " n"]:
        size = self.covariance.size
        if size <= POOL:
            return np.arange(size)
        share = POOL / size
        picked = []
        for where, _ in self.covariance.strips():
            count = where.stop - where.start
            few = min(count, max(math.ceil(share * count), 4))
            picked.append(where.start + np.sort(self.rng.choice(count, few, replace=False)))
        return np.concatenate(picked)

    def _add(self, count: int) -> None:
        rounding = 64.0 * np.finfo(float).eps * self.start
        weight = np.where(self.residual > rounding, self.residual, 0.0)
        alive = int((weight > 0).sum())
        if alive == 0:
            self.exhausted = True
            return
        # Rows are drawn in proportion to what is left of them; the worst is always among them.
        drawn = self.rng.choice(len(weight), min(count, alive), replace=False, p=weight / weight.sum())
        drawn = np.unique(np.append(drawn, int(np.argmax(weight))))[: max(count, 1)]
        part = self.covariance.part(self.pool[drawn])
        columns = self.covariance.block(self.part, part) / (self.root[:, None] * self.root[drawn])
        columns -= self.factor @ self.factor[drawn].T
        order, triangle = pivoted(columns[drawn], WORTH, rounding[drawn])
        if len(order) == 0:
            self.residual[drawn] = np.minimum(self.residual[drawn], rounding[drawn])
            return
        new = columns_over(triangle, columns[:, order])
        self.factor = np.asfortranarray(np.hstack([self.factor, new]))
        self.residual -= np.einsum("ij,ij->i", new, new)
        rows = drawn[order]
        self.residual[rows] = 0.0  # by construction
        self.chosen += self.pool[rows].tolist()


def columns_over(triangle: Float[np.ndarray, "r r"], columns: Float[np.ndarray, "n r"]) -> Float[np.ndarray, "n r"]:
    """Return `K L⁻ᵀ`."""
    return blas.dtrsm(1.0, triangle, np.asfortranarray(columns), side=1, lower=1, trans_a=1, overwrite_b=1)


def pivoted(
    matrix: Float[np.ndarray, "c c"], worth: float, least: Float[np.ndarray, " c"]
) -> tuple[Int[np.ndarray, " k"], Float[np.ndarray, "k k"]]:
    """Return the pivots of a small matrix down to a part of the largest, or to rounding, and their triangle."""
    left = matrix.diagonal().copy()
    floor = worth * float(left.max())
    order: list[int] = []
    columns = np.zeros_like(matrix)
    for k in range(len(left)):
        best = int(np.argmax(left))
        column = matrix[:, best] - columns[:, :k] @ columns[best, :k]
        if not min(left[best], column[best]) > max(floor, least[best]):
            break
        columns[:, k] = column / math.sqrt(column[best])
        order.append(best)
        left -= columns[:, k] ** 2
        left[order] = -math.inf
    rows = np.array(order, dtype=int)
    return rows, np.asfortranarray(np.tril(columns[rows, : len(rows)]))
