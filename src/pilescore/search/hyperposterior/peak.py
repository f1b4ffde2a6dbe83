"""The peak of a density of hyperparameters, and its curvature there."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from jaxtyping import Float
from scipy.special import expit

from ..curvature import Curvature
from .density import HyperparameterDensity

MOST_STEPS = 12
"""The largest number of Newton steps to a peak."""

NEAR_NATS = 0.02
"""A peak is found when a Newton step promises less than this."""

LONGEST_STEP = 1.5
"""The longest Newton step, in coordinates without bounds."""

LEAST_CURVATURE = 0.05
"""The least curvature that is believed. A uniform density between bounds has 0.5 at its peak."""

DIFFERENCE = 1e-3
"""The step of difference quotients of slopes, if no curvature is known."""

SUFFICIENT = 0.1
"""A step is taken if it gains at least this fraction of what the slope along it promises."""

MOST_HALVINGS = 5


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
        return self.value + 0.5 * len(self.t) * math.log(2 * math.pi) - 0.5 * float(np.linalg.slogdet(self.precision)[1])


def find_peak(
    density: HyperparameterDensity, start: Float[np.ndarray, " p"], curvature: Curvature | None = None
) -> Peak:
    """Return a peak near a start, by Newton steps whose curvature is updated on the way.

    Parameters
    ----------
    density
        The density.
    start
        The coordinates without bounds of the start, usually those of a minimum.
    curvature
        The curvature of the free energy at the start, if it is known; else it is computed by differences of slopes.
    """
    t = start
    value, slope = density.value_and_slope(t)
    evaluations = 1
    if curvature is None:
        precision, evaluations = _by_differences(density, t, slope), 1 + len(t)
    else:
        precision = _transformed(density, t, slope, curvature)
    precision = _positive(precision)
    for _ in range(MOST_STEPS):
        step = np.linalg.solve(precision, slope)
        promised = 0.5 * float(slope @ step)
        if promised < NEAR_NATS:
            break
        step *= min(1.0, LONGEST_STEP / float(np.abs(step).max()))
        for _ in range(MOST_HALVINGS):
            new_value, new_slope = density.value_and_slope(t + step)
            evaluations += 1
            if new_value - value >= SUFFICIENT * float(slope @ step) * 0.5:
                break
            step = 0.5 * step
        else:
            break
        # The update of Broyden, Fletcher, Goldfarb and Shanno keeps the matrix positive definite.
        change = slope - new_slope
        moved = float(change @ step)
        if moved > 1e-3 * float(step @ precision @ step):
            along = precision @ step
            precision = precision - np.outer(along, along) / (step @ along) + np.outer(change, change) / moved
        t, value, slope = t + step, new_value, new_slope
    return Peak(t, value, _positive(precision), evaluations)


def _transformed(
    density: HyperparameterDensity, t: Float[np.ndarray, " p"], slope: Float[np.ndarray, " p"], curvature: Curvature
) -> Float[np.ndarray, "p p"]:
    """Return the curvature in coordinates without bounds from that of the free energy in those of the search.

    With `u = low + range·σ(t)`, the second derivative in `t` has the part `(∂u/∂t)² F″` and, because the map bends,
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
    bend = 1.0 - 2.0 * expit(t)  # ∂²u/∂t² over ∂u/∂t
    return np.asarray(0.5 * (matrix + matrix.T) - np.diag((slope - prior) * bend))


def _by_differences(
    density: HyperparameterDensity, t: Float[np.ndarray, " p"], slope: Float[np.ndarray, " p"]
) -> Float[np.ndarray, "p p"]:
    """Return minus the second derivatives by forward differences of slopes."""
    matrix = np.empty((len(t), len(t)))
    for i in range(len(t)):
        step = np.zeros(len(t))
        step[i] = DIFFERENCE
        matrix[i] = (slope - density.value_and_slope(t + step)[1]) / DIFFERENCE
    return 0.5 * (matrix + matrix.T)


def _positive(matrix: Float[np.ndarray, "p p"]) -> Float[np.ndarray, "p p"]:
    """Return the matrix with its eigenvalues raised to what a density between bounds has at least."""
    eigenvalues, vectors = np.linalg.eigh(matrix)
    return np.asarray(vectors * np.maximum(eigenvalues, LEAST_CURVATURE) @ vectors.T)
