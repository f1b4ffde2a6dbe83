"""Residuals of a solved model: fitted and left-out errors, and groups of blocks predicted from all others."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.optimize import minimize as scipy_minimize
from scipy.optimize import minimize_scalar
from scipy.spatial import cKDTree
from scipy.special import bdtrc

from ..covariance import Layout, cross, query
from ..domains import Region, RegionUnion, Slice
from ..equations import MultiIndex
from ..model import Model, Observation
from ..parallel import threads
from ..solvers import EPS, solve
from .deletion import OutlierSearch, search_outliers

LARGEST_GROUP = 600
"""The largest number of rows that are searched for a systematic difference; larger groups are thinned to it."""

DIFFERENCE_LENGTHS = (0.1, 0.3, 1.0, 3.0)
"""Lengths of a systematic difference, as fractions of the extent of a group."""

SYSTEMATIC = 0.01
"""Data that are far off are not outliers if so many neighbours on the same side are as unlikely as this."""

LOG_RANGE = 14.0
"""The bound on the logarithms of a noise factor and of an amplitude, both ways."""


@dataclasses.dataclass(frozen=True, eq=False)
class Residuals:
    """Residuals and their variances from `C⁻¹` and `α` of a model. Vectors are in the stacked order of its blocks."""

    model: Model
    alpha: Float[np.ndarray, " N"]
    noise: Float[np.ndarray, " N"]
    prior: Float[np.ndarray, " N"]
    """The prior variances `ηQ_ii`."""
    left_out_variances: Float[np.ndarray, " N"]
    """`1/(C⁻¹)_ii`."""
    rounding: tuple[float, float]
    """Estimates of the rounding errors of `log det C` and of `ỹᵀC⁻¹ỹ`."""
    terms: tuple[float, float]
    """`log det C` and `ỹᵀC⁻¹ỹ`."""
    condition: float
    inverse: Float[np.ndarray, "N N"]
    """`C⁻¹`, its lower triangle, in the order of assembly."""
    order: Int[np.ndarray, " N"]
    """The position of each stacked row in the order of assembly."""
    rows: Layout
    eta: float

    @functools.cached_property
    def fitted(self) -> Float[np.ndarray, " N"]:
        """Residuals of the posterior mean, `Sα`."""
        return self.noise * self.alpha

    @functools.cached_property
    def left_out(self) -> Float[np.ndarray, " N"]:
        """Residuals of each value predicted from all others, `α_i/(C⁻¹)_ii`."""
        return self.alpha * self.left_out_variances

    @functools.cached_property
    def scaled(self) -> Float[np.ndarray, " N"]:
        """Left-out residuals divided by their predicted deviations."""
        return self.alpha * np.sqrt(self.left_out_variances)

    @property
    def data(self) -> slice:
        """The rows of the data."""
        return slice(0, sum(block.size for block in self.model.data))

    @functools.cached_property
    def groups(self) -> dict[str, Int[np.ndarray, " n"]]:
        """The rows of the data, of the equations and of the conditions, if the model has them."""
        kinds = np.array([block_kind(block, self.model) for block in self.model.blocks])
        names = [name for name in ("data", "equation", "conditions") if name in kinds]
        return {name: np.flatnonzero(kinds[self.block] == name) for name in names}

    def equation_mismatch(self) -> float:
        """Return the residual of the posterior mean in the worst equation, as a fraction of the size of its terms."""
        worst = 0.0
        for block, rows in zip(self.model.blocks, self.model.rows, strict=True):
            if block_kind(block, self.model) == "equation" and not block.is_functional:
                weights = block.weights / block.weights.sum()
                table = np.asarray(block.coefficients)
                terms = [row * self.mean_of(alpha, block) for row, alpha in zip(table, block.indices, strict=True)]
                total = float(weights @ (block.values**2 + np.square(terms).sum(axis=0)))
                if total > 0:
                    worst = max(worst, math.sqrt(float(weights @ self.fitted[rows] ** 2) / total))
        return worst

    def mean_of(self, alpha: MultiIndex, block: Observation) -> Float[np.ndarray, " n"]:
        """Return a derivative of the posterior mean at the points of a block."""
        ones = query(block.points, (alpha,), lambda points: np.ones((1, len(points))))
        mean = np.concatenate([cross(self.model.kernel, tile, self.rows, self.eta) for tile in ones.tiles])
        return np.asarray(mean @ self.alpha[np.argsort(self.order)])

    @functools.cached_property
    def block(self) -> Int[np.ndarray, " N"]:
        """The number of the block of each row."""
        return np.repeat(np.arange(len(self.model.blocks)), [block.size for block in self.model.blocks])

    def predicted(self, group: str) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n n"]]:
        """Return the errors of a group of rows predicted from all others, and their covariance, noise included.

        With `g` the rows of the group they are `[C⁻¹]_gg⁻¹ α_g` and `[C⁻¹]_gg⁻¹`: nothing is refitted.
        """
        if group not in self._predicted:
            rows = self.groups[group]
            covariance = cho_solve(cho_factor(self.precision(rows), lower=True), np.eye(len(rows)))
            self._predicted[group] = covariance @ self.alpha[rows], covariance
        return self._predicted[group]

    def precision(self, rows: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n n"]:
        """Return `[C⁻¹]_gg`, the inverse of the covariance of the rows `g` given all others."""
        # Only the lower triangle of the inverse is known: rows have to be taken in the order of assembly.
        place = np.sort(self.order[rows])
        part = np.tril(self.inverse[np.ix_(place, place)])
        part += np.tril(part, -1).T
        back = np.searchsorted(place, self.order[rows])
        return part[np.ix_(back, back)]

    @functools.cached_property
    def outlier_search(self) -> OutlierSearch:
        """The worst data, with the noise estimated without them."""
        errors, covariance = self.predicted("data")
        return search_outliers(errors, 0.5 * (covariance + covariance.T), self.noise[self.data])

    def squares(self, group: str) -> float:
        """Return `eᵀB⁻¹e` of a group predicted from all others, which follows a `χ²` distribution of its size."""
        return float(self.predicted(group)[0] @ self.alpha[self.groups[group]])

    @functools.cached_property
    def _predicted(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        return {}


def are_neighbours(
    rows: Int[np.ndarray, " k"], signs: Float[np.ndarray, " k"], points: Float[np.ndarray, "n d"]
) -> bool:
    """Return whether data that are far off are neighbours, off to the same side, more often than by chance.

    Then something is systematically wrong there, such as a boundary value, and they are no outliers.
    """
    if len(rows) < 3:
        return False
    extent = np.ptp(points, axis=0)
    places = points / np.where(extent > 0, extent, 1.0)
    nearest = np.asarray(cKDTree(places).query(places[rows], k=2)[1])[:, 1]
    side = np.zeros(len(points))
    side[rows] = np.sign(signs)
    alike = int(np.sum(side[nearest] == np.sign(signs)))
    by_chance = 0.5 * (len(rows) - 1) / (len(points) - 1)
    # Two that are each other's neighbours count twice: a single pair is chance.
    return alike >= max(3, 0.5 * len(rows)) and float(bdtrc(alike - 1, len(rows), by_chance)) < SYSTEMATIC


def residuals_of(model: Model) -> Residuals:
    """Return the residuals of a linear model, from one factorisation and one inverse."""
    system = solve(model)
    order = np.argsort(system.rows.order)
    logdet, quadratic, condition = system.factor.logdet, system.quadratic, system.factor.condition()
    scale = np.sqrt(system.factor.diagonal)
    inverse = system.factor.invert()
    diagonal = inverse.diagonal().copy()
    rounding = (EPS * float(diagonal @ scale**2), EPS * float(np.abs(system.alpha) @ scale) ** 2)
    parts = (system.alpha, system.noise, scale**2 - system.noise, 1.0 / diagonal)
    alpha, noise, prior, variances = (part[order] for part in parts)
    rows, eta = system.rows, system.eta
    return Residuals(
        model, alpha, noise, prior, variances, rounding, (logdet, quadratic), condition, inverse, order, rows, eta
    )


def without_rows(model: Model, rows: Int[np.ndarray, " k"]) -> Model:
    """Return a model without some of its data, given by their rows in the stacked order."""
    left = [
        (block, np.setdiff1d(np.arange(block.size), rows - where.start))
        for block, where in zip(model.data, model.rows, strict=False)
    ]
    return model.replace(data=[block.restricted(keep) for block, keep in left if len(keep)])


def block_kind(block: Observation, model: Model) -> str:
    """Return `data`, `equation` (within a region) or `conditions` (on part of its boundary)."""
    if block.role == "data":
        return "data"
    if block.region is not None:
        return "conditions" if _on_boundary(block.region) else "equation"
    # Explicit nodes have no region: the equation has the highest derivatives.
    highest = max(_order(each) for each in model.physics)
    return "conditions" if block.is_functional or _order(block) < highest else "equation"


def axis_names(model: Model) -> list[str]:
    """Return the names of the coordinates, from the region of any block; `x0`, `x1`, … if no block has a region."""
    names: list[tuple[str, ...]] = [block.region.names for block in model.blocks if block.region is not None]
    return list(names[0]) if names else [f"x{i}" for i in range(model.blocks[0].dimension)]


def _order(block: Observation) -> int:
    return max(map(sum, block.indices))


def _on_boundary(region: Region) -> bool:
    if isinstance(region, RegionUnion):
        return all(map(_on_boundary, region.regions))
    return isinstance(region, Slice) or region.normal is not None


@dataclasses.dataclass(frozen=True)
class Disagreement:
    """How a group of observations differs from its prediction by all others."""

    gain: float
    """The nats gained by a smooth difference, compared with noise of any size."""
    energy: float
    """`−log p(group | others)` with the best noise, up to a constant of the group."""
    noise_factor: float
    """The best noise variance divided by the noise variance of the model."""
    share: float
    """The fraction of the squared errors that the smooth difference explains."""
    length: float
    """Its length as a fraction of the extent of the group."""


def disagreement(residuals: Residuals, group: str, *, smooth: bool = True) -> Disagreement:
    """Return how much more probable a group is given all others if it may differ from them by a smooth function.

    The errors `e` of the group, predicted from all others, are compared under `N(0, B + τS)` with the model's noise `S`
    and under `N(0, B + τS + aK)`. `K` is a Gaussian kernel within each block, scaled by the block's noise, with the
    best of several lengths; the best `τ` and `a` are taken in both.
    """
    rows = residuals.groups[group]
    errors, covariance = residuals.predicted(group)
    centres = np.concatenate([block.centres for block in residuals.model.blocks])[rows]
    if len(rows) > LARGEST_GROUP:  # sorted by position: the choice does not depend on the order of the rows
        some = np.lexsort(centres.T)[np.linspace(0, len(rows) - 1, LARGEST_GROUP).round().astype(int)]
        rows, errors, covariance, centres = rows[some], errors[some], covariance[np.ix_(some, some)], centres[some]
    deviation = np.sqrt(residuals.noise[rows])
    errors = errors / deviation
    known = covariance / deviation / deviation[:, None] - np.eye(len(rows))
    block = residuals.block[rows]
    # The difference is smooth before errors are divided by their noise; its mean square in each block is a.
    scale = 1.0 / deviation
    for number in np.unique(block):
        scale[block == number] /= np.sqrt(np.mean(scale[block == number] ** 2))
    size = float(np.mean(errors**2))
    with threads(len(rows)):
        null = minimize_scalar(
            lambda t: _energy(known, errors, np.exp(t)), bounds=(-LOG_RANGE, LOG_RANGE), method="bounded"
        )
        best = Disagreement(0.0, float(null.fun), float(np.exp(null.x)), 0.0, float("nan"))
        extent = np.where(np.ptp(centres, axis=0) > 0, np.ptp(centres, axis=0), 1.0)
        for length in DIFFERENCE_LENGTHS if smooth and len(rows) > 3 and size > 0 else ():
            apart = (centres[:, None] - centres) / (length * extent)
            kernel = np.exp(-0.5 * (apart**2).sum(axis=-1)) * (block[:, None] == block)
            kernel = kernel * scale * scale[:, None]
            energy, noise, amplitude = _smooth(known, kernel, errors, null.x, np.log(size))
            if best.energy - energy > best.gain:
                total = known + noise * np.eye(len(rows)) + amplitude * kernel
                explained = amplitude * kernel @ np.linalg.solve(total, errors)
                share = 1.0 - float(np.sum((errors - explained) ** 2) / np.sum(errors**2))
                best = dataclasses.replace(best, gain=best.energy - energy, share=share, length=length)
    return best


def _energy(known: np.ndarray, errors: np.ndarray, noise: float) -> float:
    return _with_slopes(known + noise * np.eye(len(errors)), errors, (), ())[0]


def _smooth(
    known: np.ndarray, kernel: np.ndarray, errors: np.ndarray, noise: float, size: float
) -> tuple[float, float, float]:
    """Return the lowest energy with a smooth difference, its noise factor and its amplitude."""
    parts = (np.eye(len(errors)), kernel)

    def objective(u: np.ndarray) -> tuple[float, np.ndarray]:
        scale = np.exp(u)
        value, slopes = _with_slopes(known, errors, parts, scale)
        return value, slopes * scale

    bounds = [(-LOG_RANGE, LOG_RANGE), (size - LOG_RANGE, size + LOG_RANGE)]
    places = ((noise, size - 3.0), (noise, size), (noise - 2.0, size), (noise - 6.0, size))
    starts = [np.clip(start, *np.transpose(bounds)) for start in places]
    ends: list[Any] = [scipy_minimize(objective, u, jac=True, method="L-BFGS-B", bounds=bounds) for u in starts]
    best = min(ends, key=lambda end: end.fun)
    return float(best.fun), float(np.exp(best.x[0])), float(np.exp(best.x[1]))


def _with_slopes(known: np.ndarray, errors: np.ndarray, parts: Any, factors: Any) -> tuple[float, np.ndarray]:
    """Return `−log N(e; 0, B + Σ c_i K_i)` up to a constant, and its slopes in `c`; a huge number if not definite."""
    total = known + sum(factor * part for factor, part in zip(factors, parts, strict=True))
    try:
        factor = cho_factor(total, lower=True)
    except LinAlgError:
        return 1e300, np.zeros(len(parts))
    weights = cho_solve(factor, errors)
    value = 0.5 * float(errors @ weights) + float(np.log(factor[0].diagonal()).sum())
    inverse = cho_solve(factor, np.eye(len(errors))) if parts else None
    slopes = [0.5 * float(np.vdot(inverse, part) - weights @ part @ weights) for part in parts]
    return value, np.array(slopes)
