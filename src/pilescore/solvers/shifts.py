"""Score many covariances `C(t) = A + t diag(d)` against the same values after one reduction.

Rows with `d = 0` are eliminated once by a Cholesky factorisation. The Schur complement of the other rows, divided by
`√d` on both sides, is a matrix `M`, which Householder reflections reduce once to a tridiagonal `T = Uᵀ M U`. Each
shift `t` then costs one factorisation of `T + t I`, linear in the size, and one product with `U`.
"""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import blas, lapack

from ..errors import require
from ..parallel import threads
from .lapack import EPS, CholeskyFactor, NotFactorableError, checked, cholesky, probe, self_product

LARGEST_SERIAL = 2000
"""Size up to which reflections use one thread: they are thousands of small products, and threads wait at each."""

SMALLEST_BLOCKED = 17
"""Number of columns from which LAPACK's blocked application of reflections is faster."""


@dataclasses.dataclass(frozen=True, eq=False)
class ShiftedScores:
    """The terms of the score of `C(t)`, for each of k shifts.

    If `C(t)` is not positive definite to working precision, or not finite, all entries are NaN and `rounding` is
    infinite. A plain factorisation of that `C(t)` tells the reason.
    """

    quadratic: Float[np.ndarray, " k"]
    """`yᵀC⁻¹y`."""
    logdet: Float[np.ndarray, " k"]
    alpha: Float[np.ndarray, "n k"]
    """`C⁻¹y`, one column for each shift."""
    rounding: Float[np.ndarray, " k"]
    """Estimated rounding error of `quadratic + logdet`; infinite if no digit can be trusted."""


@dataclasses.dataclass(frozen=True, eq=False)
class ShiftedCovariance:
    """The reduced form of `A + t diag(d)` and of two right-hand sides: the values, and a random probe of scale `scale`.

    `L` is the factor of the fixed rows F, which have `d = 0`. V are the varying rows, and `root` is their `√d`.
    """

    fixed: Int[np.ndarray, " f"]
    varying: Int[np.ndarray, " v"]
    root: Float[np.ndarray, " v"]
    scale: Float[np.ndarray, " n"]
    """`√|A_ii|`, for rounding estimates."""
    factor: CholeskyFactor
    cross: Float[np.ndarray, "f v"]
    """`L⁻¹ A_FV`, its columns divided by `root`."""
    half: Float[np.ndarray, "f 2"]
    """`L⁻¹` times the right-hand sides."""
    rotated: Float[np.ndarray, "v 2"]
    """`Uᵀ` times the right-hand sides after elimination, divided by `root`."""
    reflectors: Float[np.ndarray, "v _"]
    """`U` without its first row and column, in LAPACK's form of a `Q` with `tau`; the last row is unused."""
    tau: Float[np.ndarray, " _"]
    diagonal: Float[np.ndarray, " v"]
    off_diagonal: Float[np.ndarray, " _"]
    """The diagonal and off-diagonal of `T`."""
    eigenvalues: Float[np.ndarray, " v"]
    """Eigenvalues of `T`, for rounding estimates; NaN if they could not be computed."""

    def scores(self, shifts: Float[np.ndarray, " k"]) -> ShiftedScores:
        """Return the terms of the score of `C(t)` for each shift `t`.

        The rounding error of the elimination is estimated as in `CholeskyFactor.solve_with_rounding`, with the diagonal
        of `A`. The reduction and the shift change `T + t I` by about `δ = eps (‖T‖ + t)`. This changes `log det C` by
        `δ tr (T + t I)⁻¹` and `yᵀC⁻¹y` by `δ |(T + t I)⁻¹ z|²`, where `z` are the reduced values.
        """
        quadratic, logdet, probed = np.full((3, len(shifts)), np.nan)
        solved = np.zeros((len(self.root), len(shifts)), order="F")
        constant = self.factor.logdet + 2.0 * float(np.log(self.root).sum())
        squares = (self.half**2).sum(axis=0)
        with threads(len(self.scale)), np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            for k, shift in enumerate(shifts):
                pivots, ratios, info = lapack.dpttrf(self.diagonal + shift, self.off_diagonal, overwrite_d=1)
                if info != 0:
                    continue
                both = checked(lapack.dpttrs(pivots, ratios, self.rotated))
                solved[:, k] = both[:, 0]
                quadratic[k], probed[k] = squares + (self.rotated * both).sum(axis=0)
                logdet[k] = constant + float(np.log(pivots).sum())
            # A shifted eigenvalue that is not positive leaves no digit: its reciprocal, infinity, says so.
            traces = (1.0 / np.maximum(self.eigenvalues + shifts[:, None], 0.0)).sum(axis=1)
            perturbation = (np.abs(self.eigenvalues).max() + np.abs(shifts)) * (traces + (solved**2).sum(axis=0))
            alpha = np.empty((len(self.scale), len(shifts)), order="F")
            whitened = _rotate(self.reflectors, self.tau, solved, "N")
            alpha[self.varying] = whitened / self.root[:, None]
            if self.fixed.size:
                rest = np.asfortranarray(self.half[:, :1] - self.cross @ whitened)
                alpha[self.fixed] = blas.dtrsm(1.0, self.factor.matrix, rest, lower=1, trans_a=1, overwrite_b=1)
            rounding = EPS * (probed + (self.scale @ np.abs(alpha)) ** 2 + perturbation)
        alpha[:, np.isnan(logdet)] = np.nan
        return ShiftedScores(quadratic, logdet, alpha, np.where(np.isnan(rounding), np.inf, rounding))


def reduce_shifted(
    matrix: Float[np.ndarray, "n n"], spread: Float[np.ndarray, " n"], values: Float[np.ndarray, " n"]
) -> ShiftedCovariance:
    """Reduce `C(t) = A + t diag(d)` for scoring against `values` at many `t`.

    Parameters
    ----------
    matrix
        `A` in its lower triangle, Fortran ordered. If every `d` is positive, its memory is overwritten and belongs to
        the result.
    spread
        `d`: not negative, and positive somewhere.
    values
        `y`.

    Raises
    ------
    NotFactorableError
        If the rows with `d = 0` are not positive definite to working precision; then no `C(t)` is. It carries the row
        of `matrix`.
    """
    require(bool((spread >= 0.0).all() and (spread > 0.0).any()), "spread", spread, "d >= 0, positive somewhere")
    fixed, varying = np.flatnonzero(spread == 0.0), np.flatnonzero(spread)
    root = np.sqrt(spread[varying])
    scale = np.sqrt(np.abs(matrix.diagonal()))
    right = np.stack([values, scale * probe(len(scale))], axis=1)
    reduced_right = right[varying] / root[:, None]
    with threads(len(scale)), np.errstate(invalid="ignore", over="ignore"):  # the upper triangle may hold anything
        # Indexing the transpose keeps the Fortran order, which LAPACK overwrites without a copy.
        reduced = matrix.T[np.ix_(varying, varying)].T if fixed.size else matrix
        reduced /= root[:, None]
        reduced /= root
        half, cross = np.empty((0, 2)), np.empty((0, len(varying)))
        try:
            factor = cholesky(matrix.T[np.ix_(fixed, fixed)].T)
        except NotFactorableError as error:
            raise NotFactorableError(int(fixed[error.row])) from None
        if fixed.size:
            half = factor.half_solve(np.asfortranarray(right[fixed]))
            # Only the lower triangle is filled: the larger index is the row.
            cross = matrix[np.maximum.outer(varying, fixed), np.minimum.outer(varying, fixed)] / root[:, None]
            cross = factor.half_solve(cross.T)
            reduced -= self_product(cross.T)
            reduced_right -= cross.T @ half
        work = int(checked(lapack.dsytrd_lwork(len(root), lower=1)))
        with _few_threads(len(root)):
            reduced, diagonal, off_diagonal, tau, _ = lapack.dsytrd(reduced, lower=1, lwork=work, overwrite_a=1)
        # SciPy has no dormtr. The reflectors of dsytrd start one entry below the diagonal; read from the next entry in
        # memory, they look like those of a QR factorisation, which dormqr applies.
        reflectors = reduced.T.ravel()[1 : 1 + tau.size * len(root)].reshape(tau.size, len(root)).T
        off_diagonal = off_diagonal if off_diagonal.size else np.zeros(1)  # SciPy requires at least one entry
        eigenvalues, info = lapack.dsterf(diagonal, off_diagonal)
        eigenvalues = eigenvalues if info == 0 else np.full(len(root), np.nan)
        rotated = _rotate(reflectors, tau, reduced_right, "T")
    return ShiftedCovariance(
        fixed, varying, root, scale, factor, cross, half, rotated, reflectors, tau, diagonal, off_diagonal, eigenvalues
    )


def _rotate(
    reflectors: Float[np.ndarray, "v _"], tau: Float[np.ndarray, " _"], right: Float[np.ndarray, "v k"], trans: str
) -> Float[np.ndarray, "v k"]:
    """Return `U B`, or `Uᵀ B` if `trans` is "T"."""
    if not tau.size:
        return right
    out = right.copy(order="F")
    work = out.shape[1]
    with _few_threads(len(out)):
        if work >= SMALLEST_BLOCKED:
            work = int(lapack.dormqr("L", trans, reflectors, tau, out[1:], -1)[1][0])
        turned, _, info = lapack.dormqr("L", trans, reflectors, tau, out[1:], max(work, 1))
    out[1:] = checked((turned, info))
    return out


def _few_threads(size: int) -> contextlib.AbstractContextManager[None]:
    return threads(0 if size <= LARGEST_SERIAL else size)
