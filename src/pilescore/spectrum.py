"""Evidence of a linear model `C = ηAAᵀ + σ²I` at every η and σ², from one eigendecomposition of a Gram matrix."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.linalg import eigh
from scipy.optimize import minimize_scalar

from .errors import InputError
from .linalg import EPS, threads

SMALLEST_RATIO = (1e-26, 1e5 * EPS)
"""Between these, relative to the largest eigenvalue, the least `σ²/η` that is tried."""

UNCERTAIN = 3e-3
"""The rounding error, for each row, of the log determinant that is borne for a smaller one."""

LARGEST_RATIO = 1e8
"""The largest, at which nothing but noise is left."""

FLAT = 1e-6
"""Nats by which the energy changes over all ratios where they do not matter."""

GRID = 241
"""Values of `σ²/η` that are tried before the best is refined."""


@dataclasses.dataclass(frozen=True, eq=False)
class Gram:
    """The eigenvalues and eigenvectors of `AAᵀ` (N of them) or of `AᵀA` (P)."""

    eigenvalues: Float[np.ndarray, " k"]
    vectors: Float[np.ndarray, "k k"]
    of_rows: bool
    """Whether it is `AAᵀ`."""

    @property
    def largest(self) -> float:
        """The largest eigenvalue."""
        return float(self.eigenvalues[-1])


def gram(matrix: Float[np.ndarray, "k k"], of_rows: bool) -> Gram:
    """Return the eigendecomposition of `AAᵀ` or `AᵀA`, which is overwritten."""
    with threads(len(matrix)):
        values, vectors = eigh(matrix.T, lower=False, overwrite_a=True, check_finite=False, driver="evd")
    if not values[-1] > 0:
        raise InputError("jacobian: expected one that is not zero: no parameter changes any of the observed values")
    return Gram(np.where(values > 0, values, 0.0), vectors, of_rows)


@dataclasses.dataclass(frozen=True, eq=False)
class Squares:
    """What a form squares: components of a vector `w`, or misfit and prior of a trained model.

    The quadratic term of the evidence is `q(r)/η` with `r = σ²/η` and
    `q = Σ_i along_i / (λ_i + r) + across / r + fixed`.
    """

    along: Float[np.ndarray, " k"]
    across: float
    fixed: float
    blurred: float = 0.0
    """The size of the rounding error of `w`."""
    lost: Float[np.ndarray, " k"] | None = None
    """Rounding errors of `along` that are made up for in `across`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Spectrum:
    """The evidence of one form at every η and σ²."""

    eigenvalues: Float[np.ndarray, " k"]
    size: int
    """The number of observations, N; N − k eigenvalues of `AAᵀ` are zero."""
    squares: Squares
    offset: float
    """`log det D`, for noise variances `σ²D`."""

    def quadratic(self, ratio: float) -> float:
        """Return `q(r)`."""
        parts = self.squares
        return float(np.sum(parts.along / (self.eigenvalues + ratio))) + parts.across / ratio + parts.fixed

    def logdet(self, ratio: float) -> float:
        """Return `log det(C/η)`."""
        zero = (self.size - len(self.eigenvalues)) * math.log(ratio)
        return float(np.sum(np.log(self.eigenvalues + ratio))) + zero + self.offset

    def energy(self, eta: float, sigma2: float) -> float:
        """Return twice the negative log evidence, without `N log 2π`."""
        ratio = sigma2 / eta
        return self.quadratic(ratio) / eta + self.size * math.log(eta) + self.logdet(ratio)

    def rounding(self, eta: float, sigma2: float) -> float:
        """Return an estimate of the rounding error of `energy`: eigenvalues are known to `eps √N` of the largest."""
        ratio, shift = sigma2 / eta, self._shift
        shifted = self.eigenvalues + ratio
        moved = float(np.sum(self.squares.along / shifted**2)) * shift / eta
        summed = EPS * (abs(self.quadratic(ratio)) / eta + float(np.sum(np.abs(np.log(shifted)))) + abs(self.offset))
        return shift * float(np.sum(1.0 / shifted)) + moved + self._lost(eta, sigma2) + summed

    def _lost(self, eta: float, sigma2: float) -> float:
        """Return an estimate of the rounding error that comes with the squared vector itself."""
        blurred = self.squares.blurred / math.sqrt(sigma2)
        size = math.sqrt(abs(self.quadratic(sigma2 / eta)) / eta)
        moved = 0.0
        if self.squares.lost is not None:
            ratio = sigma2 / eta
            moved = float(np.sum(self.squares.lost * (self.eigenvalues / (self.eigenvalues + ratio)))) / sigma2
        return moved + blurred * (2 * size + blurred)

    @property
    def _shift(self) -> float:
        """How far rounding may have moved eigenvalues."""
        return EPS * math.sqrt(self.size) * float(self.eigenvalues[-1])

    @property
    def least_ratio(self) -> float:
        """The least `σ²/η` at which rounding leaves the log determinant its digits."""
        ratios = float(self.eigenvalues[-1]) * np.geomspace(*SMALLEST_RATIO, 60)
        for ratio in ratios:
            if self._shift * float(np.sum(1.0 / (self.eigenvalues + ratio))) <= UNCERTAIN * self.size:
                return float(ratio)
        return float(ratios[-1])

    def profiled(self, eta: float | None, sigma2: float | None) -> tuple[float, float, str]:
        """Return the η and σ² with the least energy, where they are not given, and a remark if an end was reached."""
        if eta is not None and sigma2 is not None:
            return eta, sigma2, ""
        if not self.quadratic(float(self.eigenvalues[-1])) > 0:
            raise InputError("eta, sigma2: expected numbers, since what the score squares is zero and sets no scale")

        def best(ratio: float) -> tuple[float, float]:
            if eta is not None:
                return eta, ratio * eta
            if sigma2 is not None:
                return sigma2 / ratio, sigma2
            scale = self.quadratic(ratio) / self.size
            return scale, ratio * scale

        ratio, end = _least(lambda r: self.energy(*best(r)), self.least_ratio, float(self.eigenvalues[-1]))
        return (*best(ratio), end)


def _least(energy: Callable[[float], float], least: float, largest: float) -> tuple[float, str]:
    """Return the ratio with the least energy: the best of a logarithmic grid, refined between its neighbours."""
    logs = np.linspace(math.log(least), math.log(LARGEST_RATIO * largest), GRID)
    energies = np.array([energy(math.exp(x)) for x in logs])
    if np.ptp(energies) < FLAT:
        return largest, "sigma2/eta was set so that the largest eigenvalue equals it: the rows do not determine it"
    i = int(np.argmin(energies))
    between = (float(logs[max(i - 1, 0)]), float(logs[min(i + 1, GRID - 1)]))
    found = minimize_scalar(lambda x: energy(math.exp(x)), bounds=between, method="bounded", options={"xatol": 1e-9})
    x = float(found.x) if float(found.fun) < energies[i] else float(logs[i])
    reach = 0.01 * (logs[1] - logs[0])
    if x < logs[0] + reach:
        return math.exp(x), (
            "sigma2/eta is at the least value that rounding allows: the parameters explain the rows to the last digits"
        )
    if x > logs[-1] - reach:
        return math.exp(x), "sigma2/eta is at its largest value: noise alone explains the rows better than the network"
    return math.exp(x), ""
