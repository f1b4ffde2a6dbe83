"""Many covariances `C(t) = A + t diag(d)` scored against the same values after one reduction.

Rows with `d = 0` are eliminated once by a Cholesky factorisation. What is left of the others, divided by `√d`, is
a matrix `M`, reduced once by reflections to a tridiagonal `T = Uᵀ M U`. A shift `t` then costs a factorisation of
`T + t I`, which is linear in the size, and one product with `U`.
"""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import blas, lapack

from .errors import require
from .linalg import EPS, Factor, NotFactorableError, checked, cholesky, probe, self_product, threads

LARGEST_SERIAL = 2000
"""Up to this size reflections use one thread: they are thousands of small products, and threads wait at each."""

SMALLEST_BLOCKED = 17
"""From this many columns on it pays to gather reflections into blocks before they are applied."""


@dataclasses.dataclass(frozen=True, eq=False)
class PencilScores:
    """What a score needs of `C(t)`, for each of k shifts.

    Where `C(t)` is not positive definite to working precision, or not finite, everything is NaN and `rounding` is
    infinite: a plain factorisation of that `C(t)` says why.
    """

    quadratic: Float[np.ndarray, " k"]
    """`yᵀC⁻¹y`."""
    logdet: Float[np.ndarray, " k"]
    alpha: Float[np.ndarray, "n k"]
    """`C⁻¹y`, one column for each shift."""
    rounding: Float[np.ndarray, " k"]
    """An estimate of the rounding error of `quadratic + logdet`; infinite where no digit is known to be right."""


@dataclasses.dataclass(frozen=True, eq=False)
class Pencil:
    """The reduced form of `A + t diag(d)` and of two right-hand sides: the values, and `scale` with random factors.

    `L` is the factor of the fixed rows F, those with `d = 0`; V are the varying ones and `root` is their `√d`.
    """

    fixed: Int[np.ndarray, " f"]
    varying: Int[np.ndarray, " v"]
    root: Float[np.ndarray, " v"]
    scale: Float[np.ndarray, " n"]
    """`√|A_ii|`, for the estimate of rounding."""
    factor: Factor
    cross: Float[np.ndarray, "f v"]
    """`L⁻¹ A_FV`, its columns divided by `root`."""
    half: Float[np.ndarray, "f 2"]
    """`L⁻¹` times the right-hand sides."""
    rotated: Float[np.ndarray, "v 2"]
    """`Uᵀ` times what the elimination leaves of the right-hand sides, divided by `root`."""
    reflectors: Float[np.ndarray, "v _"]
    """`U` without its first row and column, as LAPACK keeps a `Q` with `tau`; the last row is not used."""
    tau: Float[np.ndarray, " _"]
    diagonal: Float[np.ndarray, " v"]
    beside: Float[np.ndarray, " _"]
    """The diagonal of `T` and the entries beside it."""
    eigenvalues: Float[np.ndarray, " v"]
    """Those of `T`, for the estimate of rounding; NaN where they could not be found."""

    def scores(self, shifts: Float[np.ndarray, " k"]) -> PencilScores:
        """Return the scores of `C(t)` for each shift `t`.

        The rounding of the elimination is estimated as that of a factorisation of `C(t)` is, by
        `Factor.solve_with_rounding`, but with the diagonal of `A`. The reduction moves `T`, and the shift `T + t I`,
        by about `eps (‖T‖ + t)`, and so `log det C` by that times `tr (T + t I)⁻¹` and `yᵀC⁻¹y` by that times
        `|(T + t I)⁻¹ z|²`, where `z` are the reduced values.
        """
        quadratic, logdet, probed = np.full((3, len(shifts)), np.nan)
        solved = np.zeros((len(self.root), len(shifts)), order="F")
        constant = self.factor.logdet + 2.0 * float(np.log(self.root).sum())
        squares = (self.half**2).sum(axis=0)
        with threads(len(self.scale)), np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            for k, shift in enumerate(shifts):
                pivots, ratios, info = lapack.dpttrf(self.diagonal + shift, self.beside, overwrite_d=1)
                if info != 0:
                    continue
                both = checked(lapack.dpttrs(pivots, ratios, self.rotated))
                solved[:, k] = both[:, 0]
                quadratic[k], probed[k] = squares + (self.rotated * both).sum(axis=0)
                logdet[k] = constant + float(np.log(pivots).sum())
            traces = (1.0 / np.maximum(self.eigenvalues + shifts[:, None], 0.0)).sum(axis=1)
            moved = (np.abs(self.eigenvalues).max() + np.abs(shifts)) * (traces + (solved**2).sum(axis=0))
            alpha = np.empty((len(self.scale), len(shifts)), order="F")
            whitened = _rotate(self.reflectors, self.tau, solved, "N")
            alpha[self.varying] = whitened / self.root[:, None]
            if self.fixed.size:
                rest = np.asfortranarray(self.half[:, :1] - self.cross @ whitened)
                alpha[self.fixed] = blas.dtrsm(1.0, self.factor.matrix, rest, lower=1, trans_a=1, overwrite_b=1)
            rounding = EPS * (probed + (self.scale @ np.abs(alpha)) ** 2 + moved)
        alpha[:, np.isnan(logdet)] = np.nan
        return PencilScores(quadratic, logdet, alpha, np.where(np.isnan(rounding), np.inf, rounding))


def pencil(
    matrix: Float[np.ndarray, "n n"], spread: Float[np.ndarray, " n"], values: Float[np.ndarray, " n"]
) -> Pencil:
    """Reduce `C(t) = A + t diag(d)` once for all `t`, to be scored against the values.

    `A` is the lower triangle of `matrix`, Fortran ordered. Its memory is overwritten, and belongs to the pencil, where
    every `d` is positive; otherwise it is copied in parts. `d` is `spread`: not negative, and positive somewhere.
    Raises `NotFactorableError`, with the row of `matrix`, where the rows with `d = 0` are not positive definite to
    working precision: then no `C(t)` is.
    """
    require(bool((spread >= 0.0).all() and (spread > 0.0).any()), "spread", spread, "d >= 0, positive somewhere")
    fixed, varying = np.flatnonzero(spread == 0.0), np.flatnonzero(spread)
    root = np.sqrt(spread[varying])
    scale = np.sqrt(np.abs(matrix.diagonal()))
    right = np.stack([values, scale * probe(len(scale))], axis=1)
    left = right[varying] / root[:, None]
    with threads(len(scale)), np.errstate(invalid="ignore", over="ignore"):  # the upper triangle can be anything
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
            cross = matrix[np.maximum.outer(varying, fixed), np.minimum.outer(varying, fixed)] / root[:, None]
            cross = factor.half_solve(cross.T)
            reduced -= self_product(cross.T)
            left -= cross.T @ half
        work = int(checked(lapack.dsytrd_lwork(len(root), lower=1)))
        with _few_threads(len(root)):
            reduced, diagonal, beside, tau, _ = lapack.dsytrd(reduced, lower=1, lwork=work, overwrite_a=1)
        # SciPy has no dormtr: a QR's reflectors start at the diagonal, as these do read one entry later.
        reflectors = reduced.T.ravel()[1 : 1 + tau.size * len(root)].reshape(tau.size, len(root)).T
        beside = beside if beside.size else np.zeros(1)  # SciPy wants one entry even of none
        eigenvalues, info = lapack.dsterf(diagonal, beside)
        eigenvalues = eigenvalues if info == 0 else np.full(len(root), np.nan)
        rotated = _rotate(reflectors, tau, left, "T")
    return Pencil(
        fixed, varying, root, scale, factor, cross, half, rotated, reflectors, tau, diagonal, beside, eigenvalues
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
