"""The tangent of a trained network, decomposed once: its evidence at every η and σ², and predictive covariances.

With the whitened Jacobian `A = D^{-½} J Λ^{½}`, the covariance of the rows is `C = D^{½}(ηAAᵀ + σ²I)D^{½}`. One
eigendecomposition of the smaller of `AAᵀ` and `AᵀA` gives the evidence of all three forms at any η and σ² in O(N).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy.linalg import eigh
from scipy.optimize import minimize_scalar

from ..errors import InputError
from ..model import Model
from ..parallel import threads
from ..solvers import EPS, self_product
from .interface import Network
from .jacobians import JacobianRows, NetworkRows, WhitenedJacobian, gram_matrix, plan_jacobian, whiten
from .scoring_points import RowScaling

Form = Literal["laplace", "linearised", "tangent"]

LARGE_EIGENVALUE = 1e-6
"""An eigenvalue is large if it exceeds this fraction of the largest."""

LARGEST_SQUARABLE = 1e150
"""Numbers from here on overflow when their squares are summed."""

SMALLEST_RATIO = (1e-26, 1e5 * EPS)
"""The range of the smallest `σ²/η` tried, relative to the largest eigenvalue."""

LOGDET_ERROR_PER_ROW = 3e-3
"""The rounding error of the log determinant, per row, that is accepted at the smallest `σ²/η`."""

LARGEST_RATIO = 1e8
"""The largest `σ²/η` tried, relative to the largest eigenvalue; only noise matters there."""

FLAT_NATS = 1e-6
"""If the energy changes by less than this over all ratios, the rows do not determine the ratio."""

RATIO_GRID = 241
"""The number of values of `σ²/η` tried before the best is refined."""


@dataclasses.dataclass(frozen=True, eq=False)
class QuadraticTerm:
    """The quadratic term `q(r)/η` of the evidence, with `r = σ²/η`.

    `q = Σ_i along_i / (λ_i + r) + across / r + fixed`. For the linearised and tangent forms `along` and `across` are
    the squared components of a vector `w` along the eigenvectors and across them. For the laplace form `across` is the
    misfit and `fixed` the prior term.
    """

    along: Float[np.ndarray, " k"]
    across: float
    fixed: float
    vector_error: float = 0.0
    """The rounding error of `w`, as a norm."""
    along_errors: Float[np.ndarray, " k"] | float = 0.0
    """Rounding errors of `along` that `across` compensates."""


@dataclasses.dataclass(frozen=True, eq=False)
class Spectrum:
    """The evidence of one form at every η and σ²."""

    eigenvalues: Float[np.ndarray, " k"]
    size: int
    """The number of observations, N; N − k eigenvalues of `AAᵀ` are zero."""
    term: QuadraticTerm
    offset: float
    """`log det D`, for noise variances `σ²D`."""

    def quadratic(self, ratio: float) -> float:
        """Return `q(r)`."""
        term = self.term
        return float(np.sum(term.along / (self.eigenvalues + ratio))) + term.across / ratio + term.fixed

    def logdet(self, ratio: float) -> float:
        """Return `log det(C/η)`."""
        zero = (self.size - len(self.eigenvalues)) * math.log(ratio)
        return float(np.sum(np.log(self.eigenvalues + ratio))) + zero + self.offset

    def energy(self, eta: float, sigma2: float) -> float:
        """Return twice the negative log evidence, without `N log 2π`."""
        ratio = sigma2 / eta
        return self.quadratic(ratio) / eta + self.size * math.log(eta) + self.logdet(ratio)

    def rounding(self, eta: float, sigma2: float) -> float:
        """Return an estimate of the rounding error of `energy`, with eigenvalues exact to `eps √N` of the largest."""
        ratio, shift = sigma2 / eta, self._eigenvalue_error
        shifted = self.eigenvalues + ratio
        moved = float(np.sum(self.term.along / shifted**2)) * shift / eta
        summed = EPS * (abs(self.quadratic(ratio)) / eta + float(np.sum(np.abs(np.log(shifted)))) + abs(self.offset))
        return shift * float(np.sum(1.0 / shifted)) + moved + self._vector_rounding(eta, sigma2) + summed

    def _vector_rounding(self, eta: float, sigma2: float) -> float:
        """Return an estimate of the rounding error from the squared vector itself."""
        error = self.term.vector_error / math.sqrt(sigma2)
        size = math.sqrt(abs(self.quadratic(sigma2 / eta)) / eta)
        damping = self.eigenvalues / (self.eigenvalues + sigma2 / eta)
        moved = float(np.sum(self.term.along_errors * damping)) / sigma2
        return moved + error * (2 * size + error)

    @property
    def _eigenvalue_error(self) -> float:
        return EPS * math.sqrt(self.size) * float(self.eigenvalues[-1])

    @property
    def least_ratio(self) -> float:
        """The smallest `σ²/η` at which the log determinant keeps its digits."""
        ratios = float(self.eigenvalues[-1]) * np.geomspace(*SMALLEST_RATIO, 60)
        for ratio in ratios:
            error = self._eigenvalue_error * float(np.sum(1.0 / (self.eigenvalues + ratio)))
            if error <= LOGDET_ERROR_PER_ROW * self.size:
                break
        return float(ratio)

    def profiled(self, eta: float | None, sigma2: float | None) -> tuple[float, float, str]:
        """Return η and σ², and a remark if a limit was hit. None means the value that minimises the energy."""
        if eta is not None and sigma2 is not None:
            return eta, sigma2, ""
        if not self.quadratic(float(self.eigenvalues[-1])) > 0:
            raise InputError(
                "eta, sigma2: expected numbers: the quadratic term of the score is zero, which determines no scale"
            )

        def best(ratio: float) -> tuple[float, float]:
            if eta is not None:
                return eta, ratio * eta
            if sigma2 is not None:
                return sigma2 / ratio, sigma2
            # At a fixed ratio the overall scale is known in closed form (profiled PILE).
            scale = self.quadratic(ratio) / self.size
            return scale, ratio * scale

        ratio, remark = _best_ratio(lambda r: self.energy(*best(r)), self.least_ratio, float(self.eigenvalues[-1]))
        return (*best(ratio), remark)


def _best_ratio(energy: Callable[[float], float], least: float, largest: float) -> tuple[float, str]:
    """Return the ratio with the lowest energy, and a remark if it is at a limit.

    The energy may have several minima: the best value of a logarithmic grid is refined between its neighbours.
    """
    logs = np.linspace(math.log(least), math.log(LARGEST_RATIO * largest), RATIO_GRID)
    energies = np.array([energy(math.exp(x)) for x in logs])
    if np.ptp(energies) < FLAT_NATS:
        return largest, "sigma2/eta was set to the largest eigenvalue: the rows do not determine it"
    i = int(np.argmin(energies))
    between = (float(logs[max(i - 1, 0)]), float(logs[min(i + 1, RATIO_GRID - 1)]))
    refined = minimize_scalar(lambda x: energy(math.exp(x)), bounds=between, method="bounded", options={"xatol": 1e-9})
    x = float(refined.x) if float(refined.fun) < energies[i] else float(logs[i])
    margin = 0.01 * (logs[1] - logs[0])
    if x < logs[0] + margin:
        return math.exp(x), (
            "sigma2/eta is at the smallest value that rounding allows: the parameters explain the rows to the last "
            "digits"
        )
    if x > logs[-1] - margin:
        return math.exp(x), "sigma2/eta is at its largest value: noise alone explains the rows better than the network"
    return math.exp(x), ""


@dataclasses.dataclass(frozen=True, eq=False)
class NetworkTangent:
    """The eigendecomposition of the Gram matrix of a network's whitened Jacobian, and the network.

    The Gram matrix is `AAᵀ` (k = N) if the plan of the Jacobian says so, else `AᵀA` (k = P).
    """

    eigenvalues: Float[np.ndarray, " k"]
    vectors: Float[np.ndarray, "k k"]
    whitened: WhitenedJacobian
    residuals: Float[np.ndarray, " N"]
    """`D^{-½}e`."""
    targets: Float[np.ndarray, " N"] | None
    """`D^{-½}t`, if known."""
    displacement: Float[np.ndarray, " P"] | None
    """`Λ^{-½}(θ̂ − θ_c)`, if known."""
    network: Network | None
    model: Model | None
    scaling: RowScaling

    @property
    def largest(self) -> float:
        """The largest eigenvalue."""
        return float(self.eigenvalues[-1])

    def spectrum(self, form: Form) -> Spectrum:
        """Return the evidence of a form at every η and σ²."""
        inverse = self.whitened.inverse_root
        offset = -2.0 * float(np.log(inverse).sum())
        return Spectrum(self.eigenvalues, len(inverse), self._quadratic_term(form), offset)

    def same_rows(self, other: NetworkTangent) -> bool:
        """Whether another network was scored on the same rows with the same noise, as far as is known."""
        pairs = [(self.whitened.inverse_root, other.whitened.inverse_root), (self.targets, other.targets)]
        mine, its = self.whitened.rows, other.whitened.rows
        if isinstance(mine, NetworkRows) and isinstance(its, NetworkRows) and len(mine.blocks) == len(its.blocks):
            pairs += [(a.block.points, b.block.points) for a, b in zip(mine.blocks, its.blocks, strict=True)]
        return all(a is not None and b is not None and np.array_equal(a, b) for a, b in pairs if a is not b)

    def _quadratic_term(self, form: Form) -> QuadraticTerm:
        e, t, delta = self.residuals, self.targets, self.displacement
        if form == "tangent":
            if t is None:
                raise InputError("targets: expected the observed values t, for the tangent form; got None")
            return self._term_of_vector(t, 0.0)
        if delta is None:
            raise InputError(f"params: expected the trained parameters θ̂, for the {form} form; got None")
        if form == "laplace":
            return QuadraticTerm(np.zeros(len(self.eigenvalues)), float(e @ e), float(delta @ delta))
        moved = self.whitened.times(delta[:, None])[:, 0]
        return self._term_of_vector(e + moved, EPS * math.sqrt(len(e)) * float(np.linalg.norm(moved)))

    def _term_of_vector(self, vector: Float[np.ndarray, " N"], error: float) -> QuadraticTerm:
        """Return the quadratic term of a vector with a known rounding error."""
        values, vectors = self.eigenvalues, self.vectors
        if self.whitened.plan.of_rows:
            return QuadraticTerm((vectors.T @ vector) ** 2, 0.0, 0.0, error)
        # From the eigenvectors of AᵀA, those of AAᵀ follow by A, divided by the root of the eigenvalue. Components
        # along large eigenvalues are subtracted from the vector row by row, which keeps the digits of what is left: as
        # a difference of squares |w|² − Σ along these digits would cancel. Along small eigenvalues the division
        # amplifies rounding: there squares are subtracted, so an error in `along` is compensated in `across`.
        large, nonzero = (values > fraction * self.largest for fraction in (LARGE_EIGENVALUE, 100 * EPS))
        roots = np.sqrt(np.where(nonzero, values, 1.0))
        components = np.where(large, vectors.T @ self.whitened.backward(vector), 0.0) / roots
        left = vector - self.whitened.times((vectors @ (components / roots))[:, None])[:, 0]
        small = nonzero & ~large
        if small.any():
            components = components + np.where(small, vectors.T @ self.whitened.backward(left), 0.0) / roots
        square = float(left @ left)
        error += EPS * math.sqrt(len(components) / LARGE_EIGENVALUE) * float(np.linalg.norm(vector))
        errors = np.where(small, 4 * EPS * np.sqrt(len(components) * square * self.largest) / roots, 0.0)
        across = max(square - float(np.sum(components[small] ** 2)), 0.0)
        return QuadraticTerm(components**2, across, 0.0, error, errors * (2 * np.abs(components) + errors))

    def covariance(self, queried: Float[np.ndarray, "n P"], ratio: float) -> Float[np.ndarray, "n n"]:
        """Return the posterior covariance, divided by η, of linear functions of the parameters."""
        right, half = self._halves(queried, ratio)
        return self_product(right) - self_product(half) if self.whitened.plan.of_rows else ratio * self_product(half)

    def variances(
        self, queried: Float[np.ndarray, "n P"], ratio: float
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Return the diagonal of the covariance, and estimates of its rounding errors."""
        right, half = self._halves(queried, ratio)
        prior, explained = (np.einsum("ij,ij->i", part, part) for part in (right, half))
        # Rounding moves the Gram matrix G by about eps √k of its norm, hence bᵀ(G + r)⁻¹b by that times |(G + r)⁻¹b|².
        half /= np.sqrt(self.eigenvalues + ratio)
        moved = math.sqrt(len(self.eigenvalues)) * self.largest * np.einsum("ij,ij->i", half, half)
        if self.whitened.plan.of_rows:
            return prior - explained, EPS * (math.sqrt(right.shape[1]) * prior + moved)
        return ratio * explained, EPS * ratio * moved

    def _halves(self, queried: Float[np.ndarray, "n P"], ratio: float) -> tuple[np.ndarray, np.ndarray]:
        """Return `B = JΛ^{½}`, and the transpose of `(G + r)^{-½}` times `Bᵀ` or `ABᵀ`, with the Gram matrix `G`."""
        right = self.whitened.scaled(queried)
        projected = self.whitened.times(right.T).T if self.whitened.plan.of_rows else right
        return right, projected @ self.vectors / np.sqrt(self.eigenvalues + ratio)


def decompose_tangent(
    rows: JacobianRows,
    residuals: Float[np.ndarray, " N"],
    targets: Float[np.ndarray, " N"] | None,
    displacement: Float[np.ndarray, " P"] | None,
    noise: Float[np.ndarray, " N"],
    spread: Float[np.ndarray, " P"],
    *,
    network: Network | None = None,
    model: Model | None = None,
    scaling: RowScaling = "prior",
    memory: float | None = None,
    progress: bool | None = False,
) -> NetworkTangent:
    """Return the decomposed tangent of a trained network; nearly all the cost of a score is here."""
    inverse = 1.0 / np.sqrt(noise)
    e = residuals * inverse
    t = None if targets is None else targets * inverse
    delta = None if displacement is None else displacement / np.sqrt(spread)
    for name, vector in (("residuals", e), ("targets", t), ("params", delta)):
        if vector is not None and not float(np.abs(vector).max()) < LARGEST_SQUARABLE:
            largest = np.abs(vector).max()
            raise InputError(f"{name}: expected numbers that can be squared; scaled, they are up to {largest:.1e}")
    plan = plan_jacobian(rows, memory)
    whitened = whiten(rows, noise, spread, plan, progress)
    matrix = gram_matrix(whitened, progress)
    if not np.isfinite(matrix.diagonal()).all():
        raise InputError("jacobian: expected finite numbers; gradients of the network are NaN or infinite")
    with threads(len(matrix)):
        # Only the lower triangle of AAᵀ is filled: the upper one of its transpose, which LAPACK overwrites in place.
        values, vectors = eigh(matrix.T, lower=False, overwrite_a=True, check_finite=False, driver="evd")
    if not values[-1] > 0:
        raise InputError("jacobian: expected one that is not zero: no parameter changes any of the observed values")
    # Rounding may leave small negative eigenvalues; those of a Gram matrix are not negative.
    values = np.where(values > 0, values, 0.0)
    return NetworkTangent(values, vectors, whitened, e, t, delta, network, model, scaling)
