"""The peak of a density of hyperparameters, and its curvature there."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr, ndtri

from ..curvature import Curvature
from .density import HyperparameterDensity

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

AT_BOUND = 0.01
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
    moved = _off_bounds(density, t, slope)
    if not np.array_equal(moved, t):
        t = moved
        value, slope = density.value_and_slope(t)
        evaluations += 1
    if curvature is None:
        precision = _by_differences(density, t, slope)
        evaluations += len(t)
    else:
        precision = _transformed(density, t, slope, curvature)
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
    return Peak(t, value, _positive(precision), evaluations)


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
