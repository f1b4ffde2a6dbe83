"""The dense solver, by LAPACK: solve, log determinant, inverse, how many digits survived, memory and threads.

Matrices are Fortran ordered with their lower triangle filled, and are overwritten: one N² array serves as the
covariance, its factor and its inverse in turn.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import threading
from typing import Any

import numpy as np
import psutil
from jaxtyping import Float
from scipy.linalg import blas, cython_lapack, lapack
from threadpoolctl import ThreadpoolController

from .errors import MemoryLimitError, PilescoreError
from .solvers import Bounds, Covariance, Estimate, Factored, Pull, Solver, Tangent, Weights

PANEL = 4096
"""Columns of a panel of the blocked factorisation."""

SMALLEST_THREADED = 256
"""Up to this size threads gain little, and on a busy machine wait many times longer for each other."""

LARGEST_THREADED = 12_000
"""Above this size threaded factorisations and symmetric products have been seen to end the process: panels are used."""

ALWAYS_FITS = 1e8
"""Bytes below which the available memory is not asked for."""

EPS = float(np.finfo(np.float64).eps)


class NotFactorableError(PilescoreError):
    """The leading minor that ends at row `row` is not positive; `pilescore.score` says whose row that is."""

    def __init__(self, row: int) -> None:
        super().__init__(f"the leading minor of order {row + 1} is not positive definite")
        self.row = row


def require_memory(size: int, extra: float = 0.0, purpose: str = "the covariance") -> None:
    """Refuse, before allocating, a matrix of `size`² doubles (and `extra` bytes) that does not fit."""
    needed = 8.0 * size**2 + extra
    if needed < ALWAYS_FITS:
        return
    available = psutil.virtual_memory().available
    if needed > available:
        fits = int(size * (available / needed) ** 0.5)
        raise MemoryLimitError(
            f"{purpose} of N = {size} observations needs {needed / 1e9:.1f} GB and {available / 1e9:.1f} GB are "
            f"available. Use at most about {fits} observations: fewer nodes in a rule, or thinned data."
        )


@dataclasses.dataclass(frozen=True)
class Dense(Solver):
    """LAPACK's Cholesky factor: exact, `N³/3` operations, one array of `N²` numbers.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 30)
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.5), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.1)
    >>> ps.pile(model, solver=ps.Dense()).value == ps.pile(model).value
    True
    """

    @property
    def identity(self) -> str:
        """What results depend on."""
        return "dense"

    def estimate(self, covariance: Covariance) -> Estimate:
        """Return what it needs."""
        n = covariance.size
        return Estimate("dense", 8.0 * n**2, n**3 / 3)

    def factor(self, covariance: Covariance) -> DenseFactored:
        """Form the covariance and factor it."""
        matrix = covariance.dense()
        matrix.T.flat[:: covariance.size + 1] += covariance.noise
        return DenseFactored(covariance, cholesky(matrix))


class DenseFactored(Factored):
    """A covariance by its Cholesky factor."""

    method = "dense"

    def __init__(self, covariance: Covariance, factor: Factor) -> None:
        self.covariance = covariance
        self.factor = factor
        self.account = f"dense: the Cholesky factor of {covariance.size} observations"
        logdet = factor.logdet
        self.logdet = Bounds(logdet, logdet)
        self.alpha, self.error = factor.solve_with_rounding(covariance.values)
        quadratic = float(covariance.values @ self.alpha)
        self.quadratic = Bounds(quadratic, quadratic)

    def solve(self, right: Float[np.ndarray, "N k"]) -> tuple[Float[np.ndarray, "N k"], Float[np.ndarray, "N k"]]:
        """Return `C⁻¹B`."""
        return self.factor.solve(right), np.zeros_like(right)

    def reduced(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "k k"]:
        """Return `BᵀC⁻¹B`."""
        return self_product(self.factor.half_solve(right).T)

    def reduced_diagonal(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, " k"]:
        """Return the diagonal of `BᵀC⁻¹B`."""
        half = self.factor.half_solve(right)
        return np.einsum("ij,ij->j", half, half)

    def pull(self, scale: float) -> DensePull:
        """Return `G`, the inverse in the place of the factor."""
        return DensePull(Weights(self.factor.invert().T, self.alpha, scale))


class DensePull(Pull):
    """`G` as a whole."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.diagonal = weights.matrix.diagonal() - weights.vector**2 / weights.scale

    def contract(self, tangent: Tangent) -> Float[np.ndarray, " p"]:
        """Return the derivative in hyperparameters of `Q`."""
        return tangent.dense(self.weights)


@dataclasses.dataclass(frozen=True, eq=False)
class Factor:
    """The Cholesky factor `L` of `C = L Lᵀ`, in the lower triangle of `matrix`."""

    matrix: Float[np.ndarray, "n n"]
    diagonal: Float[np.ndarray, " n"]
    """The diagonal of `C`, kept for the estimate of rounding."""

    @property
    def logdet(self) -> float:
        """`log det C`."""
        return 2.0 * float(np.log(self.matrix.diagonal()).sum())

    def solve_with_rounding(self, values: Float[np.ndarray, " n"]) -> tuple[Float[np.ndarray, " n"], float]:
        """Return `α = C⁻¹y` and an estimate of the rounding error of `yᵀC⁻¹y + log det C`.

        Rounding moves the entries of `C` by about `eps √(C_ii C_jj)`, and so `log det C` by at most about
        `eps tr(D C⁻¹ D)`, `D² = diag C`, and `yᵀC⁻¹y` by at most `eps (Σ |α_i| D_ii)²`. The trace is estimated by
        `zᵀ D C⁻¹ D z` with one vector `z` of normal numbers, solved for beside `y`.
        """
        scale = np.sqrt(self.diagonal)
        half = blas.dtrsv(self.matrix, scale * probe(len(scale)), lower=1)
        alpha = blas.dtrsv(self.matrix, blas.dtrsv(self.matrix, values, lower=1), lower=1, trans=1)
        return alpha, EPS * float(half @ half + (np.abs(alpha) @ scale) ** 2)

    def solve(self, right: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, "n ..."]:
        """Return `C⁻¹ b`."""
        return checked(lapack.dpotrs(self.matrix, right, lower=1))

    def half_solve(self, right: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n k"]:
        """Return `L⁻¹ B`, overwriting `B` where it is Fortran ordered."""
        return blas.dtrsm(1.0, self.matrix, right, lower=1, overwrite_b=1)

    def condition(self, steps: int = 12) -> float:
        """Return an estimate (from below) of the condition number by power iterations with the factor."""
        rng = np.random.default_rng(0)
        top = bottom = rng.standard_normal(len(self.diagonal))
        for _ in range(steps):
            top = top / np.linalg.norm(top)
            top = blas.dtrmv(self.matrix, blas.dtrmv(self.matrix, top, lower=1, trans=1), lower=1)
            bottom = self.solve(bottom / np.linalg.norm(bottom))
        return float(np.linalg.norm(top) * np.linalg.norm(bottom))

    def invert(self) -> Float[np.ndarray, "n n"]:
        """Return `C⁻¹` in the lower triangle of the same memory; the factor is gone after it."""
        if len(self.diagonal) <= LARGEST_THREADED:
            with threads(len(self.diagonal)):
                return checked((self.matrix, _in_place("dpotri", self.matrix)))
        return _panel_inverse(self.matrix)


def cholesky(matrix: Float[np.ndarray, "n n"]) -> Factor:
    """Factor a symmetric matrix in place, given by its lower triangle.

    Raises `NotFactorableError` where it is not positive definite to working precision. Nothing is ever added to
    the diagonal.
    """
    diagonal = matrix.diagonal().copy()
    if len(diagonal) <= LARGEST_THREADED:
        with threads(len(diagonal)):
            _potrf(matrix, 0)
    else:
        _panel_cholesky(matrix)
    return Factor(matrix, diagonal)


def symmetric_product(matrix: Float[np.ndarray, "n n"], vector: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return `Ax` of a symmetric matrix that is Fortran ordered, with its lower triangle filled."""
    with threads(len(vector)):
        return blas.dsymv(1.0, matrix, vector, lower=1)


def self_product(matrix: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n n"]:
    """Return `AAᵀ`, by panels of many rows: NumPy would use a threaded symmetric product, which ends the process."""
    n = len(matrix)
    if n <= LARGEST_THREADED:
        return matrix @ matrix.T
    out = np.empty((n, n))
    for start in range(0, n, PANEL):
        rows = slice(start, start + PANEL)
        np.matmul(matrix[rows], matrix.T, out=out[rows])
    return out


@functools.lru_cache(maxsize=8)
def probe(size: int) -> Float[np.ndarray, " n"]:
    """Return a fixed vector of normal numbers: unlike one of signs it sees every direction, twin rows' too."""
    return np.random.default_rng(0).standard_normal(size)


@functools.cache
def _blas_libraries() -> list[Any]:
    return [library for library in ThreadpoolController().lib_controllers if library.user_api == "blas"]


class _OneThread:
    """One BLAS thread while any small matrix is at work, whichever Python threads ask for it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.before: list[int] = []

    def __enter__(self) -> None:
        with self.lock:
            if self.users == 0:
                self.before = [library.get_num_threads() for library in _blas_libraries()]
                for library in _blas_libraries():
                    library.set_num_threads(1)
            self.users += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.users -= 1
            if self.users == 0:
                for library, count in zip(_blas_libraries(), self.before, strict=True):
                    library.set_num_threads(count)


ONE_BLAS_THREAD = _OneThread()


def threads(size: int) -> contextlib.AbstractContextManager[None]:
    """Return a context with one BLAS thread for small matrices."""
    return ONE_BLAS_THREAD if size <= SMALLEST_THREADED else contextlib.nullcontext()


def checked(answer: tuple[Any, int]) -> Any:
    """Return what LAPACK computed, unless it says that it could not."""
    value, info = answer
    if info != 0:
        raise PilescoreError(f"LAPACK returned the error code {info}")
    return value


@functools.cache
def _without_lock(name: str) -> Any:
    """Return a LAPACK routine of SciPy's that runs while other Python threads do; `scipy.linalg.lapack` stops them."""
    capsule, api = dict(cython_lapack.__pyx_capi__)[name], ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)(address)


def _in_place(name: str, matrix: Float[np.ndarray, "n n"]) -> int:
    """Apply a routine of `uplo, n, a, lda, info` to the lower triangle of a matrix, and return its `info`."""
    work = np.asfortranarray(matrix, dtype=np.float64)
    n, rows, info = ctypes.c_int(len(work)), ctypes.c_int(max(1, len(work))), ctypes.c_int(0)
    _without_lock(name)(b"L", ctypes.byref(n), work.ctypes.data, ctypes.byref(rows), ctypes.byref(info))
    if work is not matrix:
        matrix[...] = work
    return info.value


def _potrf(block: Float[np.ndarray, "n n"], first_row: int) -> None:
    info = _in_place("dpotrf", block)
    if info > 0:
        raise NotFactorableError(first_row + info - 1)
    checked((block, info))
    if not np.isfinite(block.diagonal()).all():
        raise NotFactorableError(first_row + int(np.argmin(np.isfinite(block.diagonal()))))


def _panel_cholesky(matrix: Float[np.ndarray, "n n"], width: int = PANEL) -> None:
    """Left-looking factorisation by panels of columns: products only, and small factorisations."""
    n = len(matrix)
    for start in range(0, n, width):
        stop = min(start + width, n)
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
    """Return `C⁻¹` from `L` in place: first `L⁻¹`, then `L⁻ᵀ L⁻¹`, each by products of panels."""
    n = len(matrix)
    cuts = [(start, min(start + width, n)) for start in range(0, n, width)]
    for a, b in cuts:
        matrix[a:b, a:b] = checked(lapack.dtrtri(np.tril(matrix[a:b, a:b]), lower=1))
        left = -matrix[a:b, a:b] @ matrix[a:b, :a]
        for c, d in cuts:
            if c < a:
                matrix[a:b, c:d] = left[:, c:] @ matrix[c:a, c:d]
    for a, b in cuts:  # ascending, so that each product reads what is still L⁻¹
        for e, f in cuts:
            if e >= a:
                matrix[e:f, a:b] = matrix[e:, e:f].T @ matrix[e:, a:b]
    return matrix
