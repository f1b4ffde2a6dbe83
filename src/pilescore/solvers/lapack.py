"""The dense solver: Cholesky factorisation, solution, inverse and rounding estimates with LAPACK.

Matrices are Fortran ordered, hold their lower triangle and are overwritten: one N² array serves as covariance, factor
and inverse in turn.
"""

from __future__ import annotations

import abc
import ctypes
import dataclasses
import functools
import re
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.linalg import blas, cython_lapack, lapack

from ..covariance import Covariance, CovarianceTangent, Weights
from ..errors import PilescoreError
from ..model import Solver
from ..parallel import threads
from .interface import Bounds, Cotangent, Estimate, Factored

PANEL = 4096
"""Columns of a panel: enough for `gemm` at full speed, far fewer than `LARGEST_THREADED`."""


LARGEST_THREADED = 12_000
"""Largest size for threaded `potrf`, `potri` and `syrk`; larger matrices are processed in panels.

Threaded OpenBLAS has crashed the process in these routines on larger matrices. The panels use `gemm` for nearly all
of the work, which has not, and call the other routines on matrices of `PANEL` columns only.
"""


EPS = float(np.finfo(np.float64).eps)


class NotFactorableError(PilescoreError):
    """The leading minor ending at `row` is not positive definite; `solvers.system` reports the block of that row."""

    def __init__(self, row: int) -> None:
        super().__init__(f"the leading minor of order {row + 1} is not positive definite")
        self.row = row


@dataclasses.dataclass(frozen=True)
class Dense(Solver, name="dense"):
    """Solve with LAPACK's Cholesky factorisation: exact, `N³/3` operations, one array of `N²` numbers.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 30)
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.5), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.1)
    >>> ps.pile(model.replace(solver=ps.solvers.Dense())).value == ps.pile(model).value
    True
    """

    forms_covariance = True

    @property
    def identity(self) -> str:
        """A string that determines the results of this solver."""
        return "dense"

    def for_nonlinear(self) -> Dense:
        """Return itself: every linearisation is factored."""
        return self

    def estimate(self, covariance: Covariance) -> Estimate:
        """Estimate memory and operations."""
        n = covariance.size
        return Estimate("dense", 8.0 * n**2, n**3 / 3)

    def factor(self, covariance: Covariance) -> DenseFactored:
        """Form and factor the covariance."""
        matrix = covariance.dense()
        # The transpose of a Fortran ordered array is C ordered, so `flat` steps along the diagonal in memory.
        matrix.T.flat[:: covariance.size + 1] += covariance.noise
        return DenseFactored(covariance, cholesky(matrix))

    def factor_given(self, covariance: Covariance, given: Bool[np.ndarray, " N"]) -> ConditionalFactored:
        """Form and factor the covariance to score some rows given others."""
        return ConditionalFactored(covariance, given)


class ExactFactored(Factored):
    """A covariance factored exactly: `C⁻¹ = HᵀH`."""

    @abc.abstractmethod
    def half_solve(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "N k"]:
        """Return `HB`; `B` may be overwritten."""

    def reduced(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "k k"]:
        """Return `BᵀC⁻¹B`."""
        return self_product(self.half_solve(right).T)

    def reduced_diagonal(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, " k"]:
        """Return the diagonal of `BᵀC⁻¹B`."""
        half = self.half_solve(right)
        return np.einsum("ij,ij->j", half, half)


class DenseFactored(ExactFactored):
    """A covariance with its Cholesky factor."""

    method = "dense"

    def __init__(self, covariance: Covariance, factor: CholeskyFactor) -> None:
        self.covariance = covariance
        self.factor = factor
        self.account = f"dense: the Cholesky factor of {covariance.size} observations"
        logdet = factor.logdet
        self.logdet = Bounds(logdet, logdet)
        self.alpha, self.error = factor.solve_with_rounding(covariance.values)
        quadratic = float(covariance.values @ self.alpha)
        self.quadratic = Bounds(quadratic, quadratic)

    def with_values(self, covariance: Covariance) -> DenseFactored:
        """Return the same factor with the values of another covariance."""
        return DenseFactored(covariance, self.factor)

    def solve(self, right: Float[np.ndarray, "N k"]) -> tuple[Float[np.ndarray, "N k"], Float[np.ndarray, "N k"]]:
        """Return `C⁻¹B`."""
        return self.factor.solve(right), np.zeros_like(right)

    def half_solve(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "N k"]:
        """Return `L⁻¹B`."""
        return self.factor.half_solve(right)

    def cotangent(self, scale: float) -> DenseCotangent:
        """Return `G`. The inverse overwrites the factor."""
        return DenseCotangent(Weights(self.factor.invert().T, self.alpha, scale))


class ConditionalFactored(ExactFactored):
    """Observations scored given others: `−2 log p(y | r)` from one Cholesky factor with the given rows first.

    With `C = LLᵀ`, the rows of `L` that belong to `y` hold the factor of the covariance of `y` given `r`. The
    difference of two log determinants, `log det C − log det C_rr`, has fewer digits: both terms are far larger than it
    if the given rows are nearly exact.
    """

    method = "dense"

    def __init__(self, covariance: Covariance, given: Bool[np.ndarray, " N"], factor: CholeskyFactor | None = None):
        self.covariance = covariance
        self.given = given
        self.order = np.argsort(~given, kind="stable")
        first, size = int(given.sum()), covariance.size
        if factor is None:
            matrix = covariance.dense()
            matrix.T.flat[:: size + 1] += covariance.noise
            try:
                factor = cholesky(_given_first(matrix, self.order[:first], self.order[first:]))
            except NotFactorableError as failure:
                raise NotFactorableError(int(self.order[failure.row])) from None
        self.factor = factor
        self._scored = size - first
        self.account = f"dense: the Cholesky factor of {size} observations, {self.scored} given {first}"
        logdet = 2.0 * float(np.log(factor.matrix.diagonal()[first:]).sum())
        half = blas.dtrsv(factor.matrix, covariance.values[self.order], lower=1)
        quadratic = float(half[first:] @ half[first:])
        self.logdet, self.quadratic = Bounds(logdet, logdet), Bounds(quadratic, quadratic)
        self.alpha = self._back(half)
        # C⁻¹ỹ of the given rows alone: what the score of y does not share
        before = np.zeros(size)
        before[:first] = blas.dtrsv(factor.matrix[:first, :first], half[:first], lower=1, trans=1) if first else 0.0
        self._given_alpha = np.empty(size)
        self._given_alpha[self.order] = before
        self.error = self._rounding(first)

    @property
    def scored(self) -> int:
        """The number of observations that are scored."""
        return self._scored

    @property
    def given_alpha(self) -> Float[np.ndarray, " N"]:
        """`C⁻¹ỹ` of the given rows alone."""
        return self._given_alpha

    def _back(self, half: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        out = np.empty(len(half))
        out[self.order] = blas.dtrsv(self.factor.matrix, half, lower=1, trans=1)
        return out

    def _rounding(self, first: int) -> float:
        """Return an estimate of the rounding error of the score, as `CholeskyFactor.solve_with_rounding` does.

        A change `E` of `C` changes the log determinant by `tr(WEWᵀ)`, with `W` the scored rows of `L⁻¹`, and the
        quadratic form by `(α − β)ᵀE(α + β)`, with `β` the `α` of the given rows alone.
        """
        scale = np.sqrt(self.factor.diagonal)
        half = blas.dtrsv(self.factor.matrix, scale * probe(len(scale)), lower=1)[first:]
        alpha, beta = self.alpha[self.order], self.given_alpha[self.order]
        return EPS * float(half @ half + (np.abs(alpha - beta) @ scale) * (np.abs(alpha + beta) @ scale))

    def with_values(self, covariance: Covariance) -> ConditionalFactored:
        """Return the same factor with the values of another covariance."""
        return ConditionalFactored(covariance, self.given, self.factor)

    def solve(self, right: Float[np.ndarray, "N k"]) -> tuple[Float[np.ndarray, "N k"], Float[np.ndarray, "N k"]]:
        """Return `C⁻¹B`."""
        out = np.empty_like(right)
        out[self.order] = self.factor.solve(right[self.order])
        return out, np.zeros_like(right)

    def half_solve(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "N k"]:
        """Return `L⁻¹B` for rows in the order of the factor."""
        return self.factor.half_solve(np.asfortranarray(right[self.order]))

    def reduced_given(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "k k"]:
        """Return `BᵀC⁻¹B` without its part of the given observations alone, from the scored rows of `L⁻¹B`."""
        half = self.half_solve(right)[-self.scored :]
        return half.T @ half

    def cotangent(self, scale: float) -> DenseCotangent:
        """Return the derivative of the score in `C`: `WᵀW − (ααᵀ − ββᵀ)/scale`."""
        size, first = self.covariance.size, self.covariance.size - self.scored
        with threads(size):
            rows = checked(lapack.dtrtri(np.tril(self.factor.matrix), lower=1))[first:]
            product = self_product(np.ascontiguousarray(rows.T))
        matrix = np.empty((size, size))
        matrix[np.ix_(self.order, self.order)] = product
        matrix += np.outer(self.given_alpha / scale, self.given_alpha)
        return DenseCotangent(Weights(matrix, self.alpha, scale))


class DenseCotangent(Cotangent):
    """`G` as a dense matrix."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.diagonal = weights.matrix.diagonal() - weights.vector**2 / weights.scale

    def contract(self, tangent: CovarianceTangent) -> Float[np.ndarray, " p"]:
        """Return the derivatives with respect to the hyperparameters of a tangent."""
        return tangent.dense(self.weights)


@dataclasses.dataclass(frozen=True, eq=False)
class CholeskyFactor:
    """The Cholesky factor `L` of `C = L Lᵀ`, in the lower triangle of `matrix`."""

    matrix: Float[np.ndarray, "n n"]
    diagonal: Float[np.ndarray, " n"]
    """Diagonal of `C`, kept for rounding estimates."""

    @property
    def logdet(self) -> float:
        """`log det C`."""
        return 2.0 * float(np.log(self.matrix.diagonal()).sum())

    def solve_with_rounding(self, values: Float[np.ndarray, " n"]) -> tuple[Float[np.ndarray, " n"], float]:
        """Return `α = C⁻¹y` and an estimate of the rounding error of `yᵀC⁻¹y + log det C`.

        Rounding changes the entries of `C` by about `eps √(C_ii C_jj)`. This changes `log det C` by at most about
        `eps tr(D C⁻¹ D)`, with `D² = diag C`, and `yᵀC⁻¹y` by at most `eps (Σ |α_i| D_ii)²`. The trace is estimated by
        `zᵀ D C⁻¹ D z` with one vector `z` of standard normal numbers.
        """
        scale = np.sqrt(self.diagonal)
        half = blas.dtrsv(self.matrix, scale * probe(len(scale)), lower=1)
        alpha = blas.dtrsv(self.matrix, blas.dtrsv(self.matrix, values, lower=1), lower=1, trans=1)
        return alpha, EPS * float(half @ half + (np.abs(alpha) @ scale) ** 2)

    def solve(self, right: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, "n ..."]:
        """Return `C⁻¹ b`."""
        return checked(lapack.dpotrs(self.matrix, right, lower=1))

    def half_solve(self, right: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n k"]:
        """Return `L⁻¹ B`. A Fortran ordered `B` is overwritten."""
        return blas.dtrsm(1.0, self.matrix, right, lower=1, overwrite_b=1)

    def condition(self, steps: int = 12) -> float:
        """Estimate the condition number from below by power iterations with the factor."""
        # `dpocon` estimates the condition number in the 1-norm, which may be N times larger.
        top = bottom = probe(len(self.diagonal))
        for _ in range(steps):
            top = top / np.linalg.norm(top)
            top = blas.dtrmv(self.matrix, blas.dtrmv(self.matrix, top, lower=1, trans=1), lower=1)
            bottom = self.solve(bottom / np.linalg.norm(bottom))
        return float(np.linalg.norm(top) * np.linalg.norm(bottom))

    def invert(self) -> Float[np.ndarray, "n n"]:
        """Return `C⁻¹` in the lower triangle of the same memory. The factor is lost."""
        if len(self.diagonal) <= LARGEST_THREADED:
            with threads(len(self.diagonal)):
                return checked((self.matrix, _in_place("dpotri", self.matrix)))
        return _panel_inverse(self.matrix)


def cholesky(matrix: Float[np.ndarray, "n n"]) -> CholeskyFactor:
    """Factor a symmetric matrix, given by its lower triangle, in place.

    Raises `NotFactorableError` if the matrix is not positive definite to working precision. No jitter is added to the
    diagonal.
    """
    diagonal = matrix.diagonal().copy()
    if len(diagonal) <= LARGEST_THREADED:
        with threads(len(diagonal)):
            _potrf(matrix, 0)
    else:
        _panel_cholesky(matrix)
    return CholeskyFactor(matrix, diagonal)


def symmetric_product(matrix: Float[np.ndarray, "n n"], vector: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return `Ax` for a symmetric Fortran ordered matrix with its lower triangle filled."""
    with threads(len(vector)):
        return blas.dsymv(1.0, matrix, vector, lower=1)


def self_product(matrix: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n n"]:
    """Return `AAᵀ`."""
    n = len(matrix)
    if n <= LARGEST_THREADED:
        return matrix @ matrix.T
    # NumPy would call a threaded `syrk` for the product of a matrix with its own transpose.
    out = np.empty((n, n))
    for start in range(0, n, PANEL):
        rows = slice(start, start + PANEL)
        np.matmul(matrix[rows], matrix.T, out=out[rows])
    return out


def _given_first(
    matrix: Float[np.ndarray, "n n"], given: Int[np.ndarray, " g"], scored: Int[np.ndarray, " s"]
) -> Float[np.ndarray, "n n"]:
    """Return a symmetric matrix, given by its lower triangle, with some rows first; both sets of rows ascend."""
    first, out = len(given), np.empty(matrix.shape, order="F")
    out[:first, :first] = matrix[_block(given, given)]
    out[first:, first:] = matrix[_block(scored, scored)]
    if not first or not len(scored):
        return out
    if given[0] > scored[-1]:
        out[first:, :first] = matrix[_block(given, scored)].T
    elif given[-1] < scored[0]:
        out[first:, :first] = matrix[_block(scored, given)]
    else:
        lower, upper = matrix[np.ix_(scored, given)], matrix[np.ix_(given, scored)].T
        out[first:, :first] = np.where(scored[:, None] > given, lower, upper)
    return out


def _block(rows: Int[np.ndarray, " r"], columns: Int[np.ndarray, " c"]) -> Any:
    """Return an index of a block of a matrix; of consecutive rows and columns, by slices, which are fast."""
    both = (rows, columns)
    if all(len(each) and each[-1] - each[0] + 1 == len(each) for each in both):
        return tuple(slice(each[0], each[-1] + 1) for each in both)
    return np.ix_(rows, columns)


@functools.lru_cache(maxsize=8)
def probe(size: int) -> Float[np.ndarray, " n"]:
    """Return a fixed vector of standard normal numbers."""
    # Normal numbers instead of signs: with signs, the contributions of two identical rows could cancel exactly and hide
    # that the matrix is singular.
    return np.random.default_rng(0).standard_normal(size)


def checked(answer: tuple[Any, int]) -> Any:
    """Return the result of a LAPACK call, or raise if its error code is not zero."""
    value, info = answer
    if info != 0:
        raise PilescoreError(f"LAPACK returned the error code {info}")
    return value


@functools.cache
def _unlocked_routine(name: str) -> Any:
    """Return SciPy's C routine `name`, callable without Python's global lock; None if its integers are not 32-bit."""
    # `scipy.linalg.lapack` holds the lock for the whole call, so starts that run side by side would wait for each other
    # (SciPy 1.17: another thread gets one turn during a `dpotrf`). `numpy.linalg.cholesky` releases the lock, but
    # copies the matrix. A ctypes call releases it and works in place.
    capsule, api = dict(cython_lapack.__pyx_capi__)[name], ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    signature = api.PyCapsule_GetName(capsule)
    if not _has_int32_arguments(signature):
        return None
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = api.PyCapsule_GetPointer(capsule, signature)
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)(address)


def _has_int32_arguments(signature: bytes) -> bool:
    """Whether a C signature, which SciPy gives its capsules as names, is `uplo, n, a, lda, info` with `int`."""
    return re.fullmatch(rb"void \(char \*, int \*, \w+ \*, int \*, int \*\)", signature) is not None


def _in_place(name: str, matrix: Float[np.ndarray, "n n"]) -> int:
    """Apply `dpotrf` or `dpotri` to the lower triangle of a matrix, and return its error code."""
    work = np.asfortranarray(matrix, dtype=np.float64)
    routine = _unlocked_routine(name)
    if routine is None:  # LAPACK with 64-bit integers: SciPy's wrapper knows the type, but holds Python's global lock
        options = {"clean": 0, "overwrite_a": 1} if name == "dpotrf" else {"overwrite_c": 1}
        work, code = getattr(lapack, name)(work, lower=1, **options)
    else:
        n, rows, info = ctypes.c_int(len(work)), ctypes.c_int(max(1, len(work))), ctypes.c_int(0)
        routine(b"L", ctypes.byref(n), work.ctypes.data, ctypes.byref(rows), ctypes.byref(info))
        code = info.value
    if work is not matrix:
        matrix[...] = work
    return int(code)


def _potrf(block: Float[np.ndarray, "n n"], first_row: int) -> None:
    info = _in_place("dpotrf", block)
    if info > 0:
        raise NotFactorableError(first_row + info - 1)
    checked((block, info))
    # OpenBLAS stops at a pivot that is not positive, a test that NaN and infinity pass.
    if not np.isfinite(block.diagonal()).all():
        raise NotFactorableError(first_row + int(np.argmin(np.isfinite(block.diagonal()))))


def _panel_cholesky(matrix: Float[np.ndarray, "n n"], width: int = PANEL) -> None:
    """Factor by panels of columns, left-looking: matrix products and small factorisations only."""
    n = len(matrix)
    for start in range(0, n, width):
        stop = min(start + width, n)
        # Left-looking: a panel gets all its updates at once, by long products, and is written once.
        for row in range(start, n, width):
            rows = slice(row, min(row + width, n))
            if start:
                matrix[rows, start:stop] -= matrix[rows, :start] @ matrix[start:stop, :start].T
            if row == start:
                pivot = np.asfortranarray(matrix[rows, start:stop])
                _potrf(pivot, start)
                matrix[rows, start:stop] = pivot
            else:
                block = np.asfortranarray(matrix[rows, start:stop])
                matrix[rows, start:stop] = blas.dtrsm(1.0, pivot, block, side=1, lower=1, trans_a=1, overwrite_b=1)


def _panel_inverse(matrix: Float[np.ndarray, "n n"], width: int = PANEL) -> Float[np.ndarray, "n n"]:
    """Return `C⁻¹` from `L` in place: first `L⁻¹`, then `L⁻ᵀ L⁻¹`, both by products of panels."""
    n = len(matrix)
    cuts = [(start, min(start + width, n)) for start in range(0, n, width)]
    for a, b in cuts:
        matrix[a:b, a:b] = checked(lapack.dtrtri(np.tril(matrix[a:b, a:b]), lower=1))
        left = -matrix[a:b, a:b] @ matrix[a:b, :a]
        for c, d in cuts:
            if c < a:
                matrix[a:b, c:d] = left[:, c:] @ matrix[c:a, c:d]
    for a, b in cuts:  # ascending: each product reads panels that still hold L⁻¹
        for e, f in cuts:
            if e >= a:
                matrix[e:f, a:b] = matrix[e:, e:f].T @ matrix[e:, a:b]
    return matrix
