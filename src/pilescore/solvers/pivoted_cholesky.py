"""Low-rank approximation `M = S + UUᵀ ≤ C` from a pivoted partial Cholesky factorisation, with error bounds.

All matrices are whitened: in units of the noise, `W = S^-½ Q S^-½` and `C` becomes `I + W`. Noise levels of different
blocks may differ by orders of magnitude. After whitening, a residual of one is as large as the noise in every row, so
one threshold serves all rows, and `M ≥ I`, which the bounds below need.

With pivots `P` and `W_PP = LLᵀ`, the factor is `U = W_·P L⁻ᵀ`, computed in strips of rows and kept if memory allows.
The certificate: `E = C − M` is a Schur complement, hence positive semi-definite, and each pass over the rows computes
its diagonal `e`. Two bounds follow. `|E_ij| ≤ √(e_i e_j)` gives `vᵀEv ≤ (Σ |v_i| √e_i)²` for every vector. And the
eigenvalues of `M^-½ E M^-½`, at most `n = N − r` of them nonzero, sum to at most `Σe`, since `M ≥ I`; concavity of the
logarithm then gives the trace bound `log det C − log det M ≤ n log(1 + Σe/n)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import blas, lapack

from ..covariance import Covariance, CovarianceTangent
from ..errors import PilescoreError
from .interface import Bounds, Cotangent
from .lapack import EPS, NotFactorableError, checked, cholesky

MOST_CANDIDATE_ROWS = 20_000
"""Largest number of rows to search for pivots; larger problems sample rows from each strip."""

BATCH = 128
"""Rows whose columns are computed together; rows that become redundant within the batch are dropped."""

WORTHWHILE = 0.1
"""Candidates become pivots down to this fraction of the largest residual in their batch."""


class Pivots:
    """Pivots of `W = S^-½ Q S^-½` among a pool of rows, in the order of selection."""

    def __init__(self, covariance: Covariance) -> None:
        self.covariance = covariance
        self.rng = np.random.default_rng(0)
        self.chosen: list[int] = []
        """Row numbers of the pivots."""
        self.exhausted = False
        """Whether rounding hides the remaining residual."""
        self.pool = np.empty(0, dtype=int)
        self.root, self.initial, self.residual = np.empty((3, 0))
        self.factor = np.empty((0, 0))
        self.add_rows(self._sample())

    @property
    def rank(self) -> int:
        """Number of pivots."""
        return len(self.chosen)

    @property
    def significant(self) -> Float[np.ndarray, " n"]:
        """Residuals of the pool, with zero where they are within rounding."""
        return np.where(self.residual > self._rounding, self.residual, 0.0)

    @property
    def _rounding(self) -> Float[np.ndarray, " n"]:
        # A residual is what many subtractions leave of the initial variance, and inherits its absolute rounding error.
        return 64.0 * EPS * self.initial

    @property
    def trace(self) -> float:
        """Trace of the residual of all rows, extrapolated from the pool."""
        return float(self.significant.sum()) * self.covariance.size / len(self.pool)

    def extend(self, goal: float, limit: int) -> None:
        """Add pivots until `log det C` is known to within `goal`, up to a limit, or until only rounding is left."""
        while not self.exhausted and self.rank < limit:
            if trace_bound(self.trace, self.covariance.size - self.rank) <= goal:
                break
            self._add(min(BATCH, limit - self.rank))
        # A caller that asks for less and less would never be refused if the residual has vanished.
        self.exhausted = self.exhausted or self.trace == 0.0

    def add_rows(self, which: Int[np.ndarray, " n"]) -> None:
        """Add rows to the pool, such as rows that a pass over all rows found badly approximated."""
        fresh = np.setdiff1d(which, self.pool)
        if len(fresh) == 0:
            return
        subset, root = self.covariance.select(fresh), np.sqrt(self.covariance.noise[fresh])
        start = self.covariance.variances(subset) / root**2
        if not np.isfinite(start).all():
            raise PilescoreError("the prior variances are not all finite: check the kernel and the operators")
        rows = np.empty((len(fresh), 0), order="F")
        if self.rank:
            chosen = self.covariance.select(np.array(self.chosen))
            scale = np.sqrt(self.covariance.noise[self.chosen])
            columns = self.covariance.block(subset, chosen) / (root[:, None] * scale)
            rows = _right_solve(columns, self._triangle(), transposed=True)
        self.pool = np.concatenate([self.pool, fresh])
        self.subset = self.covariance.select(self.pool)
        self.root = np.concatenate([self.root, root])
        self.initial = np.concatenate([self.initial, start])
        self.residual = np.concatenate([self.residual, start - np.einsum("ij,ij->i", rows, rows)])
        self.factor = np.asfortranarray(np.concatenate([self.factor, rows]))
        self.exhausted = False

    def _triangle(self) -> Float[np.ndarray, "r r"]:
        place = {int(row): i for i, row in enumerate(self.pool)}
        return np.asfortranarray(self.factor[[place[row] for row in self.chosen]])

    def _sample(self) -> Int[np.ndarray, " n"]:
        size = self.covariance.size
        if size <= MOST_CANDIDATE_ROWS:
            return np.arange(size)
        share = MOST_CANDIDATE_ROWS / size
        picked = []
        for where, _ in self.covariance.strips():
            count = where.stop - where.start
            few = min(count, max(math.ceil(share * count), 4))
            picked.append(where.start + np.sort(self.rng.choice(count, few, replace=False)))
        return np.concatenate(picked)

    def _add(self, count: int) -> None:
        rounding, weight = self._rounding, self.significant
        alive = int((weight > 0).sum())
        if alive == 0:
            self.exhausted = True
            return
        # Rows are drawn with probability proportional to their residual (randomly pivoted Cholesky), which is less
        # misled by outliers than greedy selection. The largest residual is always included.
        drawn = self.rng.choice(len(weight), min(count, alive), replace=False, p=weight / weight.sum())
        drawn = np.unique(np.append(drawn, int(np.argmax(weight))))[: max(count, 1)]
        subset = self.covariance.select(self.pool[drawn])
        columns = self.covariance.block(self.subset, subset) / (self.root[:, None] * self.root[drawn])
        # What remains after the earlier pivots: a left-looking Cholesky step.
        columns -= self.factor @ self.factor[drawn].T
        order, triangle = pivoted(columns[drawn], WORTHWHILE, rounding[drawn])
        if len(order) == 0:
            self.residual[drawn] = np.minimum(self.residual[drawn], rounding[drawn])
            return
        new = _right_solve(columns[:, order], triangle, transposed=True)
        self.factor = np.asfortranarray(np.hstack([self.factor, new]))
        self.residual -= np.einsum("ij,ij->i", new, new)
        rows = drawn[order]
        self.residual[rows] = 0.0  # exactly zero in exact arithmetic
        self.chosen += self.pool[rows].tolist()


def trace_bound(trace: float, count: int) -> float:
    """Return `n log(1 + τ/n)`, the largest `log det C − log det M` if n eigenvalues of the residual sum to `τ`."""
    count = max(count, 1)
    return count * math.log1p(trace / count)


def _right_solve(
    rows: Float[np.ndarray, "n r"], triangle: Float[np.ndarray, "r r"], *, transposed: bool
) -> Float[np.ndarray, "n r"]:
    """Return `X L⁻ᵀ` if transposed, else `X L⁻¹`. A Fortran ordered `X` is overwritten."""
    return blas.dtrsm(1.0, triangle, np.asfortranarray(rows), side=1, lower=1, trans_a=int(transposed), overwrite_b=1)


def pivoted(
    matrix: Float[np.ndarray, "c c"], worth: float, least: Float[np.ndarray, " c"]
) -> tuple[Int[np.ndarray, " k"], Float[np.ndarray, "k k"]]:
    """Return the pivots of a small matrix above a fraction of the largest and above rounding, and their triangle."""
    left = matrix.diagonal().copy()
    floor = worth * float(left.max())
    order: list[int] = []
    columns = np.zeros_like(matrix)
    for k in range(len(left)):
        best = int(np.argmax(left))
        column = matrix[:, best] - columns[:, :k] @ columns[best, :k]
        # The updated diagonal and the recomputed pivot agree except for rounding; both must be safely positive.
        if not min(left[best], column[best]) > max(floor, least[best]):
            break
        columns[:, k] = column / math.sqrt(column[best])
        order.append(best)
        left -= columns[:, k] ** 2
        left[order] = -math.inf
    rows = np.array(order, dtype=int)
    return rows, np.asfortranarray(np.tril(columns[rows, : len(rows)]))


CACHED_BYTES = 1e9
"""Memory for cached rows of `U`; larger factors are recomputed in every pass."""


SMALLEST_DIFFERENTIATED = 1e-10
"""Pivots below this fraction of the largest are omitted from derivatives, which divide by them."""


class NystromApproximation:
    """`M = S + UUᵀ` for chosen pivots."""

    def __init__(self, covariance: Covariance, chosen: Int[np.ndarray, " r"]) -> None:
        self.covariance = covariance
        self.root = np.sqrt(covariance.noise)
        self.chosen, self.triangle = _factored(covariance, chosen)
        self.subset = covariance.select(self.chosen)
        self.cache: dict[int, np.ndarray] | None = {} if 8.0 * covariance.size * self.rank <= CACHED_BYTES else None
        values = covariance.values / self.root
        inner, right = np.eye(self.rank), np.zeros(self.rank)
        self.variances, self.residual = np.empty(covariance.size), np.empty(covariance.size)
        for where, strip, rows in self.strips():
            inner += rows.T @ rows
            right += rows.T @ values[where]
            self.variances[where] = covariance.variances(strip) / covariance.noise[where]
            self.residual[where] = self.variances[where] - np.einsum("ij,ij->i", rows, rows)
        self.residual[self.chosen] = 0.0  # a pivot row is represented exactly
        self.inner = cholesky(np.asfortranarray(inner))
        """Cholesky factor of `B = I + UᵀU`."""
        mean = self.inner.solve(right)
        self.alpha = np.empty(covariance.size)
        """`M⁻¹ỹ`."""
        inverse = np.empty(covariance.size)
        for where, _, rows in self.strips():
            self.alpha[where] = (values[where] - rows @ mean) / self.root[where]
            half = self.inner.half_solve(rows.T.copy(order="F"))  # overwrites its argument, which may be cached
            inverse[where] = 1.0 - np.einsum("ij,ij->j", half, half)
        self.inverse = inverse
        """The diagonal of `S^½ M⁻¹ S^½`."""
        scaled = self.alpha * self.root
        self.quadratic = float(scaled @ scaled + mean @ mean)
        """`ỹᵀM⁻¹ỹ`, computed as a sum of squares to avoid cancellation."""

    @property
    def rank(self) -> int:
        """Number of pivots."""
        return len(self.chosen)

    @property
    def rounding(self) -> float:
        """Estimated rounding error of `log det` and of the quadratic form together."""
        magnitude = np.sqrt(self.variances + 1.0)
        dual = float(np.abs(self.alpha * self.root) @ magnitude)
        return max(4.0 * EPS, self.lost) * (float((self.variances + 1.0) @ np.abs(self.inverse)) + dual**2)

    @property
    def slack(self) -> Float[np.ndarray, " N"]:
        """Upper bounds on `e`, the diagonal of `E` in units of the noise, including rounding."""
        lost = max(8.0 * EPS * math.sqrt(self.rank + 1.0), self.lost)
        return np.maximum(self.residual, 0.0) + lost * (self.variances + 1.0)

    @property
    def lost(self) -> float:
        """Most negative residual, relative to its variance."""
        # Exact residuals are nonnegative, so a negative one measures lost digits. It enters the bounds: cancellation
        # widens them instead of making them wrong.
        return float(np.max(-self.residual / (self.variances + 1.0), initial=0.0))

    @property
    def logdet(self) -> Bounds:
        """Bounds on `log det C` from the trace bound."""
        low = self.inner.logdet + float(np.log(self.covariance.noise).sum())
        return Bounds(low, low + trace_bound(float(self.slack.sum()), self.covariance.size - self.rank))

    def strips(self) -> Iterator[tuple[slice, Any, Float[np.ndarray, "n r"]]]:
        """Iterate over the rows of `U`: their position, the subset, and the rows."""
        scale = self.root[self.chosen]
        for where, strip in self.covariance.strips():
            rows = None if self.cache is None else self.cache.get(where.start)
            if rows is None:
                columns = self.covariance.block(strip, self.subset) / (self.root[where, None] * scale)
                rows = _right_solve(columns, self.triangle, transposed=True)
                if self.cache is not None:
                    self.cache[where.start] = rows
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

    def trimmed(self) -> NystromApproximation:
        """Return the approximation from the leading pivots that are large enough to divide by."""
        squares = self.triangle.diagonal() ** 2
        small = np.flatnonzero(squares < SMALLEST_DIFFERENTIATED * squares.max())
        return self if len(small) == 0 else NystromApproximation(self.covariance, self.chosen[: small[0]])

    def distance(self, vectors: Float[np.ndarray, "N k"]) -> Float[np.ndarray, " k"]:
        """Return upper bounds on `vᵀEv`."""
        return (np.sqrt(self.slack) @ np.abs(vectors * self.root[:, None])) ** 2


def _factored(covariance: Covariance, chosen: Int[np.ndarray, " r"]) -> tuple[np.ndarray, Float[np.ndarray, "r r"]]:
    """Return the numerically independent leading pivots, and the Cholesky triangle of their whitened covariance."""
    scale = np.sqrt(covariance.noise[chosen])
    subset = covariance.select(chosen)
    matrix = np.asfortranarray(covariance.block(subset, subset) / (scale[:, None] * scale))
    try:
        return chosen, np.asfortranarray(np.tril(cholesky(matrix).matrix))
    except NotFactorableError as failure:
        # Pivots were chosen by updated residuals. In the exact block, a late one may depend on those before it.
        if failure.row == 0:
            raise
        return _factored(covariance, chosen[: failure.row])


class LowRankCotangent(Cotangent):
    """The derivative of `log det M + ½n log(1 + Σe/n) − αᵀ(∂C)α/scale`, with the pivots held fixed."""

    def __init__(self, nystrom: NystromApproximation, alpha: Float[np.ndarray, " N"], scale: float) -> None:
        self.nystrom, self.alpha, self.scale = nystrom, alpha, scale
        others = max(nystrom.covariance.size - nystrom.rank, 1)
        self.weight = 0.5 / (1.0 + float(nystrom.slack.sum()) / others)
        """Derivative of the midpoint with respect to `Σe`."""
        noise = nystrom.covariance.noise
        self.diagonal = (nystrom.inverse - self.weight * nystrom.residual) / noise - alpha**2 / scale

    def contract(self, tangent: CovarianceTangent) -> Float[np.ndarray, " p"]:
        """Contract over rows × pivots, pivots × pivots and the diagonal."""
        nystrom, root = self.nystrom, self.nystrom.root
        inverse = checked(lapack.dpotri(np.tril(nystrom.inner.matrix), lower=1))
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        scaled = self.alpha * root
        along = sum((rows.T @ scaled[where] for where, _, rows in nystrom.strips()), np.zeros(nystrom.rank))
        gram = sum((rows.T @ rows for _, _, rows in nystrom.strips()), np.zeros((nystrom.rank, nystrom.rank)))
        scale = root[nystrom.chosen]
        total: Any = 0.0
        # `UUᵀ = W_·P W_PP⁻¹ W_P·` changes with the rows × pivots block on both sides, hence the factor 2, and with the
        # inverse of the pivot block, hence the minus sign of the last term.
        for where, strip, rows in nystrom.strips():
            weights = rows @ inverse - self.weight * rows - np.outer(scaled[where], along / self.scale)
            weights = 2.0 * _right_solve(weights, nystrom.triangle, transposed=False) / (root[where, None] * scale)
            total = total + tangent.block(strip, nystrom.subset, weights)
            total = total + tangent.variances(strip, np.full(len(rows), self.weight) / root[where] ** 2)
        middle = np.eye(nystrom.rank) - inverse - self.weight * gram - np.outer(along, along) / self.scale
        half = _right_solve(middle, nystrom.triangle, transposed=False)
        square = _right_solve(half.T, nystrom.triangle, transposed=False)
        return total - tangent.block(nystrom.subset, nystrom.subset, square / (scale[:, None] * scale))
