"""The peak of a density of hyperparameters, and its curvature there."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr, ndtri

from ..curvature import Curvature
from ..space import sobol_points
from .density import INSIDE, HyperparameterDensity

MOST_STEPS = 12
"""The largest number of Newton steps to a peak."""

NEAR_NATS = 0.02
"""A peak is found when a Newton step promises less than this."""

LONGEST_STEP = 1.5
"""The longest Newton step, in coordinates without bounds."""

LEAST_CURVATURE = 0.3
"""The least curvature that is believed. A uniform density between bounds has 1."""

DIFFERENCE = 1e-3
"""The step of difference quotients of slopes, if no curvature is known."""

SUFFICIENT = 0.1
"""A step is taken if it gains at least this fraction of what the slope along it promises."""

MOST_HALVINGS = 5

MOST_BESIDE, BESIDE = 8, 1e-3
"""How many points beside a start are tried if it cannot be scored, and how far from it, in coordinates without bounds.
"""

CHECKED_NATS, CHECKED_LENGTH = 0.1, 0.01
"""A slope is checked by the values at both ends of a step that should change them by this, or has this length."""

MOST_WRONG, MOST_WRONG_NATS = 0.3, 0.01
"""How far the difference of these values may be from what the slope says, as a fraction and in nats."""

CHECKED_STEP, STEEP_NATS = 0.3, 1.0
"""How far from a peak, in deviations, flat directions are checked, and by how much the density may not fall there."""

DROP_NATS = (0.15, 2.5)
"""Steps for second differences of values lower the log density by an amount in this range."""

FIRST_STEP, LARGEST_STEP = 0.3, 1.5
"""The first and the largest of these steps; the deviation of a uniform density between bounds is one."""

MOST_TRIALS = 8
"""How often one of these steps is changed."""

MOST_ATTEMPTS = 3
"""How often differences of values are taken again from where they ended."""

MOST_FRAMES = 5
"""How often second differences are taken, each time along the principal axes of the ones before."""

AT_BOUND = 2.0 * INSIDE
"""A minimum this near to a bound, as a fraction of the range, may lie on it."""


@dataclasses.dataclass(frozen=True, eq=False)
class Peak:
    """A peak of a density, in coordinates without bounds."""

    t: Float[np.ndarray, " p"]
    value: float
    """The log density there."""
    precision: Float[np.ndarray, "p p"]
    """Minus the second derivatives of the log density, approximately, and positive definite."""
    evaluations: int
    """The number of log densities with slopes."""

    @property
    def covariance(self) -> Float[np.ndarray, "p p"]:
        """The covariance of the normal approximation."""
        return np.asarray(np.linalg.inv(self.precision))

    @property
    def log_integral(self) -> float:
        """The log integral of the normal approximation: Laplace's estimate of the log evidence."""
        return (
            self.value + 0.5 * len(self.t) * math.log(2 * math.pi) - 0.5 * float(np.linalg.slogdet(self.precision)[1])
        )


def find_peak(
    density: HyperparameterDensity, start: Float[np.ndarray, " p"], curvature: Curvature | None = None
) -> Peak:
    """Return a peak near a start, by Newton steps whose curvature is updated on the way.

    Tight exact equations can leave no digits of slopes while values have many. If the slope at the start does not agree
    with values beside it, the peak is found by differences of values.

    Parameters
    ----------
    density
        The density.
    start
        The coordinates of the search at the start, usually those of a minimum. They may be at a bound.
    curvature
        The curvature of the free energy at the start, if it is known; else it is computed by differences of slopes.
    """
    t = density.inside(start)
    value, slope = density.value_and_slope(t)
    evaluations = 1
    # A minimum can lie where rounding decides whether there is a score, and has decided otherwise in a last digit.
    for beside in sobol_points(MOST_BESIDE, len(t), 0):
        if math.isfinite(value):
            break
        evaluations += 1
        near = t + BESIDE * (2.0 * beside - 1.0)
        value, slope = density.value_and_slope(near)
        t = near if math.isfinite(value) else t
    if not math.isfinite(value):
        return Peak(t, value, np.eye(len(t)), evaluations)
    moved = _off_bounds(density, t, slope)
    if not np.array_equal(moved, t):
        new_value, new_slope = density.value_and_slope(moved)
        evaluations += 1
        if new_value > value:
            t, value, slope = moved, new_value, new_slope
    evaluations += 2
    if not _agrees(density, t, slope):
        return _by_values(density, t, value, evaluations)
    if curvature is None:
        precision = _by_differences(density, t, slope)
        evaluations += len(t)
    else:
        precision = _transformed(density, t, slope, curvature)
    if not np.isfinite(precision).all():
        return _by_values(density, t, value, evaluations)
    precision = _positive(precision)
    for _ in range(MOST_STEPS):
        step = np.linalg.solve(precision, slope)
        if 0.5 * float(slope @ step) < NEAR_NATS:
            break
        step *= min(1.0, LONGEST_STEP / float(np.abs(step).max()))
        for _ in range(MOST_HALVINGS):
            new_value, new_slope = density.value_and_slope(t + step)
            evaluations += 1
            if new_value - value >= SUFFICIENT * 0.5 * float(slope @ step):
                break
            step = 0.5 * step
        else:
            break
        # The update of Broyden, Fletcher, Goldfarb and Shanno keeps the matrix positive definite.
        change = slope - new_slope
        bent = float(change @ step)
        if bent > 1e-3 * float(step @ precision @ step):
            along = precision @ step
            precision = precision - np.outer(along, along) / (step @ along) + np.outer(change, change) / bent
        t, value, slope = t + step, new_value, new_slope
    precision = _positive(precision)
    steep, checks = _steep_along_flat_axes(density, t, value, precision)
    evaluations += checks
    if not steep:
        return Peak(t, value, precision, evaluations)
    return _by_values(density, t, value, evaluations)


def _steep_along_flat_axes(
    density: HyperparameterDensity, t: Float[np.ndarray, " p"], value: float, precision: Float[np.ndarray, "p p"]
) -> tuple[bool, int]:
    """Return whether the density falls where the curvature says that it is flat, and the number of evaluations.

    Rounding in slopes makes negative curvatures, which were raised to the least one that is believed.
    """
    eigenvalues, vectors = np.linalg.eigh(precision)
    evaluations = 0
    for eigenvalue, axis in zip(eigenvalues, vectors.T, strict=True):
        if eigenvalue > 1.001 * LEAST_CURVATURE:
            break
        # The least eigenvalue of a matrix with far larger ones may round to zero.
        step = CHECKED_STEP / math.sqrt(max(eigenvalue, LEAST_CURVATURE)) * axis
        drops = [value - density.value(t + side * step) for side in (1.0, -1.0)]
        evaluations += 2
        if min(drops) > STEEP_NATS:
            return True, evaluations
    return False, evaluations


def quadratic_peak(
    density: HyperparameterDensity, end: Float[np.ndarray, " p"], log_evidence: float, curvature: Curvature
) -> Peak:
    """Return the peak of the quadratic approximation of a log density around a minimum, without computing a score.

    Parameters
    ----------
    density
        The density.
    end
        The coordinates of the minimum in the search.
    log_evidence, curvature
        The log evidence there, and the curvature of the free energy.
    """
    t = density.inside(end)
    prior, slope = density.log_prior(t)  # the slope of the evidence is zero at the minimum
    precision = _positive(_transformed(density, t, slope, curvature))
    step = np.linalg.solve(precision, slope)
    step *= min(1.0, LONGEST_STEP / float(np.abs(step).max(initial=1e-300)))
    return Peak(t + step, log_evidence + prior + float(slope @ step - 0.5 * step @ precision @ step), precision, 0)


def _off_bounds(
    density: HyperparameterDensity, t: Float[np.ndarray, " p"], slope: Float[np.ndarray, " p"]
) -> Float[np.ndarray, " p"]:
    """Return a start about where the peak is for coordinates at a bound.

    With the distance `s` to the bound, as a fraction of the range, and the slope `g` of the free energy in `s`, the
    density is `exp(−g s)` times the uniform one, whose mean is at `1/g`, or in the middle if the slope is small.
    """
    moved = t.copy()
    low, high = density.bounds
    by_range = (slope - density.log_prior(t)[1]) * (high - low) / density.stretch(t)  # −dF/ds
    position = ndtr(t)
    for i, (s, g) in enumerate(zip(position, by_range, strict=True)):
        if s < AT_BOUND and g < 0.0:
            moved[i] = max(t[i], ndtri(1.0 / (2.0 - g)))
        elif 1.0 - s < AT_BOUND and g > 0.0:
            moved[i] = min(t[i], -ndtri(1.0 / (2.0 + g)))
    return moved


def _agrees(density: HyperparameterDensity, t: Float[np.ndarray, " p"], slope: Float[np.ndarray, " p"]) -> bool:
    """Return whether a slope agrees with the values on both sides of a point."""
    length = float(np.linalg.norm(slope))
    if length == 0.0:
        return True
    step = slope / length * min(CHECKED_NATS / length, CHECKED_LENGTH)
    ahead, behind = density.value(t + step), density.value(t - step)
    if not (math.isfinite(ahead) and math.isfinite(behind)):  # nothing to compare with
        return True
    promised = 2.0 * float(slope @ step)
    return bool(abs(ahead - behind - promised) <= max(MOST_WRONG * promised, MOST_WRONG_NATS))


def _by_values(density: HyperparameterDensity, t: Float[np.ndarray, " p"], value: float, evaluations: int) -> Peak:
    """Return a peak by first and second differences of values, after this number of evaluations.

    Differences that started far from the peak may end with axes that do not fit it, and are taken again from there.
    """
    for _ in range(MOST_ATTEMPTS):
        found = _by_differences_of_values(density, t, value)
        t, value = found.t, found.value
        steep, checks = _steep_along_flat_axes(density, t, value, found.precision)
        evaluations += found.evaluations + checks
        if not steep:
            break
    return dataclasses.replace(found, evaluations=evaluations)


def _by_differences_of_values(density: HyperparameterDensity, t: Float[np.ndarray, " p"], value: float) -> Peak:
    """Return a peak by first and second differences of values, over steps of about a standard deviation."""
    count, evaluations = len(t), 0
    axes = FIRST_STEP * np.eye(count)  # one step in each column
    precision = np.eye(count) / FIRST_STEP**2

    def at(point: Float[np.ndarray, " p"]) -> float:
        nonlocal evaluations
        evaluations += 1
        return density.value(point)

    for _ in range(MOST_FRAMES):
        slopes, matrix, ahead = np.zeros(count), np.zeros((count, count)), np.empty(count)
        for i in range(count):
            axes[:, i], above, below = _step_along(at, t, value, axes[:, i])
            if not math.isfinite(above + below):  # at the edge of what can be scored: the frame before has to do
                return Peak(t, value, precision, evaluations)
            ahead[i] = above
            slopes[i] = 0.5 * (above - below)
            matrix[i, i] = 2.0 * value - above - below
        for i in range(count):
            for j in range(i):
                both = at(t + axes[:, i] + axes[:, j])
                matrix[i, j] = matrix[j, i] = ahead[i] + ahead[j] - value - both
        scales = np.sqrt(np.maximum(matrix.diagonal(), 1e-3))
        matrix = np.where(np.isfinite(matrix), matrix, 0.0)
        # In units of the steps; correlations beyond these are those of points without a score, or of bent valleys.
        eigenvalues, vectors = np.linalg.eigh(matrix / np.outer(scales, scales))
        inner = vectors * np.maximum(eigenvalues, 1e-3) @ vectors.T * np.outer(scales, scales)
        inverse = np.linalg.inv(axes)
        precision = _positive(inverse.T @ inner @ inverse)
        move = np.linalg.solve(precision, inverse.T @ slopes)
        move *= min(1.0, LONGEST_STEP / float(np.abs(move).max(initial=1e-300)))
        promised = float((inverse.T @ slopes) @ move)
        for _ in range(MOST_HALVINGS):
            there = at(t + move)
            if there > value:
                t, value = t + move, there
                break
            move = 0.5 * move
        variances, vectors = np.linalg.eigh(np.linalg.inv(precision))
        axes = vectors * np.sqrt(variances)
        if promised < DROP_NATS[0]:
            break
    return Peak(t, value, precision, evaluations)


def _step_along(
    at: Callable[[Float[np.ndarray, " p"]], float],
    t: Float[np.ndarray, " p"],
    value: float,
    step: Float[np.ndarray, " p"],
) -> tuple[Float[np.ndarray, " p"], float, float]:
    """Return a step along a line that lowers a log density noticeably, but not much, and the values at both ends."""
    for _ in range(MOST_TRIALS):
        above, below = at(t + step), at(t - step)
        bend = value - 0.5 * (above + below)  # the mean drop, without the slope
        largest = float(np.abs(step).max()) >= LARGEST_STEP
        if not math.isfinite(bend):
            factor = 0.3
        elif bend > DROP_NATS[1]:
            factor = max(math.sqrt(0.7 / bend), 0.03)
        elif bend < DROP_NATS[0] and not largest:
            factor = min(math.sqrt(0.7 / max(bend, 1e-3)), 5.0, LARGEST_STEP / float(np.abs(step).max()))
        else:
            break
        step = factor * step
    return step, above, below


def _transformed(
    density: HyperparameterDensity, t: Float[np.ndarray, " p"], slope: Float[np.ndarray, " p"], curvature: Curvature
) -> Float[np.ndarray, "p p"]:
    """Return the curvature in coordinates without bounds from that of the free energy in those of the search.

    With `u = low + range·Φ(t)`, the second derivative in `t` has the part `(∂u/∂t)² F″` and, because the map bends,
    `F′ ∂²u/∂t²`; the priors and the map itself add theirs.
    """
    space, stretch = density.space, density.stretch(t)
    rows = [space.names.index(name) for name in curvature.names]
    matrix = np.zeros((len(t), len(t)))
    matrix[np.ix_(rows, rows)] = curvature.hessian * np.outer(stretch[rows], stretch[rows])
    prior = density.log_prior(t)[1]
    # Second derivatives of the priors by differences: they cost next to nothing.
    for i in range(len(t)):
        step = np.zeros(len(t))
        step[i] = DIFFERENCE
        matrix[i] -= (density.log_prior(t + step)[1] - density.log_prior(t - step)[1]) / (2 * DIFFERENCE)
    bend = -t  # ∂²u/∂t² over ∂u/∂t
    return np.asarray(0.5 * (matrix + matrix.T) - np.diag((slope - prior) * bend))


def _by_differences(
    density: HyperparameterDensity, t: Float[np.ndarray, " p"], slope: Float[np.ndarray, " p"]
) -> Float[np.ndarray, "p p"]:
    """Return minus the second derivatives by differences of slopes on the side that can be scored.

    Where neither can, the curvature is that of a uniform density between bounds.
    """
    matrix = np.eye(len(t))
    for i in range(len(t)):
        for side in (1.0, -1.0):
            step = np.zeros(len(t))
            step[i] = side * DIFFERENCE
            value, there = density.value_and_slope(t + step)
            if math.isfinite(value):
                matrix[i] = (slope - there) / step[i]
                break
    return 0.5 * (matrix + matrix.T)


def _positive(matrix: Float[np.ndarray, "p p"]) -> Float[np.ndarray, "p p"]:
    """Return the matrix with its eigenvalues raised to what a density between bounds has at least."""
    eigenvalues, vectors = np.linalg.eigh(matrix)
    return np.asarray(vectors * np.maximum(eigenvalues, LEAST_CURVATURE) @ vectors.T)
