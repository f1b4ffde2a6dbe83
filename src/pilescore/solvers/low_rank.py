"""Scores within proved bounds, from a pivoted partial Cholesky factor and conjugate gradients, without N² memory."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import psutil
from jaxtyping import Float

from ..covariance import Covariance, GridCovariance, KernelCovariance, use_grid_products
from ..errors import ToleranceError, as_count, as_positive
from ..model import Solver
from .interface import Bounds, Estimate, Factored
from .pivoted_cholesky import MOST_CANDIDATE_ROWS, LowRankCotangent, NystromApproximation, Pivots

MOST_FOR_PRODUCTS = 200_000
"""Number of observations up to which a product with the full covariance, with its N² entries, is worth its cost."""

ALWAYS_TRIED_RANK = 1000
"""Rank that is tried before giving up, however few the observations."""

MOST_ITERATIONS = 200
"""Largest number of conjugate-gradient iterations."""

PRECISE = 1e-10
"""Squared energy norm of the error of a precise solution, relative to the solution."""


@dataclasses.dataclass(frozen=True)
class LowRank(Solver, name="low_rank"):
    """Certified low-rank approximation: a proved interval for PILE, without forming the covariance.

    A pivoted partial Cholesky factor of rank `r` gives `M = S + UUᵀ ≤ C`. Then `log det C` lies between `log det M` and
    `log det M + (N−r) log(1 + τ/(N−r))`, where `τ` is the trace of the residual in units of the noise. Conjugate
    gradients, preconditioned with `M`, bound `ỹᵀC⁻¹ỹ` from both sides with exact products. The bounds include an
    estimate of rounding. The cost is `N r²`, plus a few products with the full covariance if needed.

    Parameters
    ----------
    tolerance
        Largest width of the interval on PILE.
    rank
        Largest rank. The default is a quarter of the observations, at least 1000, and less if memory is short. If the
        tolerance is not reached, the `ToleranceError` carries the interval that was.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 400)
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.2), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.1)
    >>> score = ps.pile(model.replace(solver=ps.solvers.LowRank(tolerance=1e-4)))
    >>> score.upper - score.lower < 1e-4 and score.lower <= ps.pile(model).value <= score.upper
    True
    """

    tolerance: float = 1e-3
    rank: int | None = None

    def __post_init__(self) -> None:
        as_positive(self.tolerance, "tolerance")
        if self.rank is not None:
            as_count(self.rank, "rank")

    @property
    def identity(self) -> str:
        """A string that determines the results of this solver."""
        return f"low rank, tolerance {self.tolerance!r}, rank {self.rank!r}"

    def limit(self, size: int) -> int:
        """Return the largest rank to try."""
        if self.rank is not None:
            return min(self.rank, size)
        # At rank N/4 the 4 N r² operations are close to the N³/3 of a dense factorisation, which is exact.
        rows = min(size, MOST_CANDIDATE_ROWS)
        fits = int(0.4 * psutil.virtual_memory().available / (8.0 * 3.0 * rows))
        return max(min(max(size // 4, ALWAYS_TRIED_RANK), fits, size), 1)

    def estimate(self, covariance: Covariance) -> Estimate:
        """Estimate memory and operations at the largest rank; smooth kernels need a small fraction of it."""
        n, r = covariance.size, self.limit(covariance.size)
        memory = 8.0 * (3.0 * min(n, MOST_CANDIDATE_ROWS) * r + 3.0 * r**2 + min(n * r, 1.25e8) + 12.0 * n)
        return Estimate(f"low rank, up to {r}", memory, 4.0 * n * float(r) ** 2)

    def factor(self, covariance: Covariance) -> LowRankFactored:
        """Raise the rank until the bounds are narrow enough."""
        if isinstance(covariance, KernelCovariance):
            covariance = use_grid_products(covariance)
        n, limit = covariance.size, self.limit(covariance.size)
        products = n <= MOST_FOR_PRODUCTS or isinstance(covariance, GridCovariance)
        pivots, goal = Pivots(covariance), 0.5 * self.tolerance * n
        while True:
            pivots.extend(goal, limit)
            approximation = NystromApproximation(covariance, np.array(pivots.chosen, dtype=int))
            # Conjugate gradients narrow the quadratic form only. They are worth their products with the full covariance
            # once the log determinant has left room for it.
            narrow = approximation.logdet.width + 2.0 * approximation.rounding <= 0.9 * self.tolerance * n
            factored = LowRankFactored(approximation, self.tolerance, products and narrow)
            if factored.width <= self.tolerance * n:
                return factored
            if pivots.exhausted or pivots.rank >= limit:
                raise self._failed(factored, pivots, limit)
            # The bounds are proportional to the trace of the residual, so the goal for the trace shrinks as they must.
            # Badly approximated rows join the pool of candidate pivots.
            shrink = 0.5 * self.tolerance * n / factored.width
            goal = min(0.5 * goal, shrink * approximation.logdet.width)
            pivots.add_rows(np.argsort(approximation.slack)[-min(2000, n) :])

    def _failed(self, factored: LowRankFactored, pivots: Pivots, limit: int) -> ToleranceError:
        n = factored.covariance.size
        total = factored.quadratic + factored.logdet
        lower, upper = (bound / n + math.log(2 * math.pi) for bound in (total.lower, total.upper))
        rounding = factored.approximation.rounding / n
        if pivots.exhausted or 2.0 * rounding > 0.5 * self.tolerance:
            why = (
                f"rounding hides the residual (it accounts for {2.0 * rounding:.1e} of the interval): raise gamma, rho "
                "or tolerance"
            )
        else:
            why = (
                f"a rank of {factored.approximation.rank} is too small for this kernel, which is rough, or short "
                f"compared with the domain. Raise rank (now {limit}) or tolerance"
            )
        return ToleranceError(
            f"the interval on PILE is {upper - lower:.1e} wide, from {lower:.6g} to {upper:.6g}, and not "
            f"{self.tolerance:.1e}: {why}; or use solver='dense' ({8e-9 * n**2:.3g} GB), ps.solvers.Distributed(), a "
            "smoother kernel, or a longer bandwidth.",
            lower,
            upper,
        )


class LowRankFactored(Factored):
    """A covariance approximated by a low-rank one, with bounds."""

    method = "low rank"

    def __init__(self, approximation: NystromApproximation, tolerance: float, products: bool) -> None:
        self.approximation = approximation
        self.covariance = approximation.covariance
        self.alpha = approximation.alpha
        self.error = approximation.rounding
        self.logdet = widened(approximation.logdet, approximation.rounding)
        free = float(approximation.distance(approximation.alpha[:, None])[0])
        first = Bounds(approximation.quadratic - free, approximation.quadratic)
        self.quadratic = widened(first, approximation.rounding)
        steps = 0
        allowed = tolerance * self.covariance.size - self.logdet.width - 2.0 * approximation.rounding
        if self.width > tolerance * self.covariance.size and products:
            solved = conjugate_gradients(approximation, self.covariance.values[:, None], max(0.5 * allowed, 0.0))
            self.alpha, steps = solved.solution[:, 0], solved.steps
            tight = Bounds(float(solved.quadratic[0]), float(solved.quadratic[0] + solved.energy[0]))
            self.quadratic = widened(tight, approximation.rounding)
        self.account = (
            f"low rank: rank {approximation.rank} of {self.covariance.size} observations, "
            f"{steps} product{'s' * (steps != 1)} with the full covariance"
        )

    @property
    def width(self) -> float:
        """Width of the bounds on `N·PILE`."""
        return self.logdet.width + self.quadratic.width

    @functools.cached_property
    def precise_alpha(self) -> Float[np.ndarray, " N"]:
        """`C⁻¹ỹ` by converged conjugate gradients."""
        return conjugate_gradients(self.approximation, self.covariance.values[:, None]).solution[:, 0]

    def solve(self, right: Float[np.ndarray, "N k"]) -> tuple[Float[np.ndarray, "N k"], Float[np.ndarray, "N k"]]:
        """Return `C⁻¹B` and a bound on the error of each entry."""
        solved = conjugate_gradients(self.approximation, right)
        return solved.solution, np.sqrt(solved.energy) / self.approximation.root[:, None]

    def reduced(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "k k"]:
        """Return `BᵀC⁻¹B`."""
        product = right.T @ self.solve(right)[0]
        return 0.5 * (product + product.T)  # solutions of finite precision leave it slightly asymmetric

    def reduced_diagonal(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, " k"]:
        """Return the diagonal of `BᵀC⁻¹B`, from `M` alone where the bound on the error allows it."""
        near = self.approximation.solve(right)
        upper = np.einsum("ij,ij->j", right, near)
        apart = self.approximation.distance(near)
        if np.all(apart <= 1e-6 * upper):
            return upper - 0.5 * apart
        solved = conjugate_gradients(self.approximation, right)
        return solved.quadratic + 0.5 * solved.energy

    def cotangent(self, scale: float) -> LowRankCotangent:
        """Return the derivative of the midpoint of the bounds, with the pivots held fixed."""
        return LowRankCotangent(self.approximation.trimmed(), self.alpha, scale)


@dataclasses.dataclass(frozen=True, eq=False)
class ConjugateGradientSolution:
    """Solutions of `Cx = b` by conjugate gradients, with bounds."""

    solution: Float[np.ndarray, "N k"]
    quadratic: Float[np.ndarray, " k"]
    """Lower bound `2bᵀx − xᵀCx ≤ bᵀC⁻¹b`."""
    energy: Float[np.ndarray, " k"]
    """Width `rᵀM⁻¹r` of the bracket: `bᵀC⁻¹b ≤ quadratic + energy`."""
    steps: int
    """Number of products with the full covariance."""


def conjugate_gradients(
    approximation: NystromApproximation, right: Float[np.ndarray, "N k"], absolute: float = 0.0
) -> ConjugateGradientSolution:
    """Solve `Cx = b` by conjugate gradients preconditioned with `M`, to an absolute or precise energy of the error.

    For any `x` with residual `r = b − Cx`, the identity `bᵀC⁻¹b = (2bᵀx − xᵀCx) + rᵀC⁻¹r` gives a lower bound, and
    `M ≤ C`, hence `C⁻¹ ≤ M⁻¹`, bounds the last term by `rᵀM⁻¹r`, which the iteration computes anyway. The bracket
    therefore holds at every step, not only at convergence.
    """
    noise = approximation.covariance.noise[:, None]

    def multiply(vectors: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "N k"]:
        return approximation.covariance.product(vectors) + noise * vectors

    # Starting from `M⁻¹b`, the first residual is `(M − C) M⁻¹b`: already small where `M` is close to `C`.
    x = approximation.solve(right)
    first = np.einsum("ij,ij->j", right, x)
    target = np.maximum(absolute, PRECISE * first)
    residual = right - multiply(x)
    quadratic = first + np.einsum("ij,ij->j", x, residual)  # 2bᵀx − xᵀCx = bᵀx + xᵀr
    preconditioned = approximation.solve(residual)
    energy = np.einsum("ij,ij->j", residual, preconditioned)
    direction, steps = preconditioned.copy(), 1
    while np.any(energy > target) and steps < MOST_ITERATIONS:
        product = multiply(direction)
        steps += 1
        curvature = np.einsum("ij,ij->j", direction, product)
        length = _ratio(energy, curvature)
        x += length * direction
        residual -= length * product
        # Conjugate directions make the lower bound grow by `length · rᵀM⁻¹r` per step, a sum of positive terms: no
        # cancellation as in `2bᵀx − xᵀCx`.
        quadratic = quadratic + length * energy
        preconditioned = approximation.solve(residual)
        new_energy = np.einsum("ij,ij->j", residual, preconditioned)
        if np.all(new_energy >= energy):  # rounding: the residual no longer decreases
            energy = np.maximum(new_energy, energy)
            break
        direction = preconditioned + _ratio(new_energy, energy) * direction
        energy = new_energy
    return ConjugateGradientSolution(x, quadratic, np.maximum(energy, 0.0), steps)


def _ratio(above: Float[np.ndarray, " k"], below: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
    """Return a quotient, and zero for right-hand sides that have converged: they stand still while others go on."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def widened(bounds: Bounds, rounding: float) -> Bounds:
    """Widen bounds by a rounding error."""
    return Bounds(bounds.lower - 0.5 * rounding, bounds.upper + 0.5 * rounding)
