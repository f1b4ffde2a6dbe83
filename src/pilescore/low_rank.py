"""Scores within proved bounds, from a pivoted partial Cholesky factor and conjugate gradients; never N² memory."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import psutil
from jaxtyping import Float

from .covariances import KernelCovariance
from .errors import ToleranceError, as_count, as_positive
from .grid_products import GridCovariance, structured
from .nystrom import Nystrom, NystromPull
from .pivots import POOL, Pivots
from .solvers import Bounds, Covariance, Estimate, Factored, Solver

EXACT_PRODUCTS = 200_000
"""Observations up to which a product with the whole covariance is worth its N² entries."""

WHOLE = 1000
"""The rank up to which every one is tried, however few the observations."""

ITERATIONS = 200
"""Of conjugate gradients, at most."""

PRECISE = 1e-10
"""The energy of the error of a solution, relative to that of the solution."""


@dataclasses.dataclass(frozen=True)
class LowRank(Solver):
    """Certified low rank: PILE within an interval that is proved, without ever forming the covariance.

    A pivoted partial Cholesky factor of rank `r` gives `M = S + UUᵀ ≤ C`. `log det C` is at least `log det M`, and
    at most that plus `(N−r) log(1 + τ/(N−r))` with the trace `τ` of what is left, in units of the noise. `ỹᵀC⁻¹ỹ` is
    bounded from both sides by conjugate gradients that `M` preconditions, with exact products. Bounds are widened
    by an estimate of rounding. It costs `N r²`, and a few products with the whole covariance where they are needed.

    Parameters
    ----------
    tol
        How wide the interval on PILE may be.
    rank
        The largest rank; unless given, a quarter of the observations or 1000, or less where memory is short. If the
        tolerance is not reached, a `ToleranceError` has the interval that was.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 400)
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.2), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.1)
    >>> score = ps.pile(model, solver=ps.LowRank(tol=1e-4))
    >>> score.upper - score.lower < 1e-4 and score.lower <= ps.pile(model).value <= score.upper
    True
    """

    tol: float = 1e-3
    rank: int | None = None

    def __post_init__(self) -> None:
        as_positive(self.tol, "tol")
        if self.rank is not None:
            as_count(self.rank, "rank")

    @property
    def identity(self) -> str:
        """What results depend on."""
        return f"low rank, tol {self.tol!r}, rank {self.rank!r}"

    def limit(self, size: int) -> int:
        """Return the largest rank that is tried."""
        if self.rank is not None:
            return min(self.rank, size)
        rows = min(size, POOL)
        fits = int(0.4 * psutil.virtual_memory().available / (8.0 * 3.0 * rows))
        return max(min(max(size // 4, WHOLE), fits, size), 1)

    def estimate(self, covariance: Covariance) -> Estimate:
        """Return what it needs at the largest rank; smooth kernels need a small part of it."""
        n, r = covariance.size, self.limit(covariance.size)
        memory = 8.0 * (3.0 * min(n, POOL) * r + 3.0 * r**2 + min(n * r, 1.25e8) + 12.0 * n)
        return Estimate(f"low rank, up to {r}", memory, 4.0 * n * float(r) ** 2)

    def factor(self, covariance: Covariance) -> LowRankFactored:
        """Find a rank at which the bounds are as narrow as wanted."""
        if isinstance(covariance, KernelCovariance):
            covariance = structured(covariance)
        n, limit = covariance.size, self.limit(covariance.size)
        products = n <= EXACT_PRODUCTS or isinstance(covariance, GridCovariance)
        pivots, goal = Pivots(covariance), 0.5 * self.tol * n
        while True:
            pivots.extend(functools.partial(_small, n, goal), limit)
            found = Nystrom(covariance, np.array(pivots.chosen, dtype=int))
            narrow = found.logdet.width + 2.0 * found.rounding <= 0.9 * self.tol * n
            answer = LowRankFactored(found, self.tol, products and narrow)
            if answer.width <= self.tol * n:
                return answer
            if pivots.exhausted or pivots.rank >= limit:
                raise self._failed(answer, pivots, limit)
            # What is left has to shrink as the bounds do, which are proportional to it; rows that are badly spanned
            # become candidates.
            shrink = 0.5 * self.tol * n / answer.width
            goal = min(0.5 * goal, shrink * found.logdet.width)
            pivots.add_rows(np.argsort(found.slack)[-min(2000, n) :])

    def _failed(self, answer: LowRankFactored, pivots: Pivots, limit: int) -> ToleranceError:
        n = answer.covariance.size
        total = answer.quadratic + answer.logdet
        lower, upper = (bound / n + math.log(2 * math.pi) for bound in (total.lower, total.upper))
        rounding = answer.found.rounding / n
        if pivots.exhausted or 2.0 * rounding > 0.5 * self.tol:
            why = (
                f"rounding hides what is left (it is worth {2.0 * rounding:.1e} of the interval): raise gamma or rho, "
                "or tol"
            )
        else:
            why = (
                f"a rank of {answer.found.rank} is not enough for this kernel, which is rough, or short beside the "
                f"domain. Raise rank (now {limit}) or tol"
            )
        return ToleranceError(
            f"the interval on PILE is {upper - lower:.1e} wide, from {lower:.6g} to {upper:.6g}, and not "
            f"{self.tol:.1e}: {why}; or use solver='dense' ({8e-9 * n**2:.3g} GB), ps.Distributed(), a smoother "
            "kernel, or a longer bandwidth.",
            lower,
            upper,
        )


def _small(size: int, goal: float, trace: float, rank: int) -> bool:
    """Whether a trace is so small that it leaves `log det` open by no more than a goal."""
    others = max(size - rank, 1)
    return others * math.log1p(max(trace, 0.0) / others) <= goal


class LowRankFactored(Factored):
    """A covariance by a part of it, with bounds."""

    method = "low rank"

    def __init__(self, found: Nystrom, tol: float, products: bool) -> None:
        self.found = found
        self.covariance = found.covariance
        self.alpha = found.alpha
        self.error = found.rounding
        self.logdet = widened(found.logdet, found.rounding)
        free = float(found.distance(found.alpha[:, None])[0])
        self.quadratic = widened(Bounds(found.quadratic - free, found.quadratic), found.rounding)
        steps = 0
        allowed = tol * self.covariance.size - self.logdet.width - 2.0 * found.rounding
        if self.width > tol * self.covariance.size and products:
            solved = conjugate_gradients(found, self.covariance.values[:, None], max(0.5 * allowed, 0.0))
            self.alpha, steps = solved.solution[:, 0], solved.steps
            tight = Bounds(float(solved.quadratic[0]), float(solved.quadratic[0] + solved.energy[0]))
            self.quadratic = widened(tight, found.rounding)
        self.account = (
            f"low rank: rank {found.rank} of {self.covariance.size} observations, "
            f"{steps} product{'s' * (steps != 1)} with the whole covariance"
        )

    @property
    def width(self) -> float:
        """How wide the bounds on `N·PILE` are."""
        return self.logdet.width + self.quadratic.width

    @functools.cached_property
    def precise_alpha(self) -> Float[np.ndarray, " N"]:
        """`C⁻¹ỹ` by conjugate gradients to their end."""
        return conjugate_gradients(self.found, self.covariance.values[:, None]).solution[:, 0]

    def solve(self, right: Float[np.ndarray, "N k"]) -> tuple[Float[np.ndarray, "N k"], Float[np.ndarray, "N k"]]:
        """Return `C⁻¹B`, and how far each entry may be from it."""
        solved = conjugate_gradients(self.found, right)
        return solved.solution, np.sqrt(solved.energy) / self.found.root[:, None]

    def reduced(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "k k"]:
        """Return `BᵀC⁻¹B`."""
        half = right.T @ self.solve(right)[0]
        return 0.5 * (half + half.T)

    def reduced_diagonal(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, " k"]:
        """Return the diagonal of `BᵀC⁻¹B`: by `M` alone where that is known to be near enough."""
        near = self.found.solve(right)
        upper = np.einsum("ij,ij->j", right, near)
        apart = self.found.distance(near)
        if np.all(apart <= 1e-6 * upper):
            return upper - 0.5 * apart
        solved = conjugate_gradients(self.found, right)
        return solved.quadratic + 0.5 * solved.energy

    def pull(self, scale: float) -> NystromPull:
        """Return the derivative of the midpoint, with the pivots held."""
        return NystromPull(self.found.trimmed(), self.alpha, scale)


@dataclasses.dataclass(frozen=True, eq=False)
class Solved:
    """Solutions of `Cx = b` by conjugate gradients, with bounds."""

    solution: Float[np.ndarray, "N k"]
    quadratic: Float[np.ndarray, " k"]
    """`2bᵀx − xᵀCx ≤ bᵀC⁻¹b`."""
    energy: Float[np.ndarray, " k"]
    """`rᵀM⁻¹r ≥ bᵀC⁻¹b − (2bᵀx − xᵀCx)`, with the residual `r = b − Cx`: since `M ≤ C`."""
    steps: int
    """Products with the whole covariance."""


def conjugate_gradients(
    found: Nystrom, right: Float[np.ndarray, "N k"], absolute: float = 0.0, relative: float = PRECISE
) -> Solved:
    """Solve with the whole covariance, preconditioned by `M`, until the energy of the error is as small as wanted.

    The first guess is `M⁻¹b`, whose residual is what `M` leaves of the covariance.
    """
    noise = found.covariance.noise[:, None]

    def times(vectors: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "N k"]:
        return found.covariance.product(vectors) + noise * vectors

    x = found.solve(right)
    first = np.einsum("ij,ij->j", right, x)
    wanted = np.maximum(absolute, relative * first)
    residual = right - times(x)
    quadratic = first + np.einsum("ij,ij->j", x, residual)  # 2bᵀx − xᵀCx = bᵀx + xᵀr
    steered = found.solve(residual)
    energy = np.einsum("ij,ij->j", residual, steered)
    direction, steps = steered.copy(), 1
    while np.any(energy > wanted) and steps < ITERATIONS:
        product = times(direction)
        steps += 1
        curvature = np.einsum("ij,ij->j", direction, product)
        length = np.where(curvature > 0, energy / np.where(curvature > 0, curvature, 1.0), 0.0)
        x += length * direction
        residual -= length * product
        quadratic = quadratic + length * energy
        steered = found.solve(residual)
        fresh = np.einsum("ij,ij->j", residual, steered)
        if np.all(fresh >= energy):  # rounding: it will not get better
            energy = np.maximum(fresh, energy)
            break
        direction = steered + np.where(energy > 0, fresh / np.where(energy > 0, energy, 1.0), 0.0) * direction
        energy = fresh
    return Solved(x, quadratic, np.maximum(energy, 0.0), steps)


def widened(bounds: Bounds, rounding: float) -> Bounds:
    """Return bounds with room for rounding on both sides."""
    return Bounds(bounds.lower - 0.5 * rounding, bounds.upper + 0.5 * rounding)
