"""The curvature of the evidence: its second derivatives in the coordinates of a search."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from ..errors import PilescoreError
from ..inference import WarmStart
from .objective import Objective
from .space import SearchSpace

FIRST_DIFFERENCE = 1e-3
"""The first step of the difference quotients of the gradient, in coordinates."""

COARSER_DIFFERENCES = 10.0
"""How much larger these steps are for models with exact equations, whose scores have fewer digits."""

NARROW = 1e3
"""Second derivatives are computed again, along principal axes, if the largest is this many times the least, in units of
the last steps. Rounding in those along narrow axes would hide the wide ones."""

MOST_PASSES = 3
"""How often they are computed along principal axes."""

AXIS_DIFFERENCE = 0.1
"""The step of difference quotients along principal axes, in standard deviations."""

SADDLE_NATS = 1.0
"""A second derivative below minus this is a saddle. Above it, a factor of e, or a whole range, changes the evidence by
half a nat at most: the direction is flat."""


@dataclasses.dataclass(frozen=True, eq=False)
class Curvature:
    """The Hessian of the free energy `F = N·PILE/2` at the minimum, in the coordinates of the search.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 20)
    >>> noisy = np.sin(6 * x) + 0.1 * np.random.default_rng(0).standard_normal(20)
    >>> model = ps.Model(ps.RBF(0.3), data=ps.observe(ps.identity, noisy, at=x), gamma=0.02)
    >>> best = ps.minimize(model, over={"kernel.bandwidth": (0.05, 5.0), "gamma": (1e-4, 1.0)})
    >>> curvature = best.curvature
    >>> curvature.names, curvature.hessian.shape, len(curvature.flat)
    (('kernel.bandwidth', 'gamma'), (2, 2), 0)
    >>> relative = curvature.standard_errors["gamma"]  # of log γ, and so relative
    >>> abs(best.standard_errors["gamma"] - relative * best.values["gamma"]) < 1e-12
    True
    """

    names: tuple[str, ...]
    """The hyperparameters that are not at a bound, one for each row."""
    hessian: Float[np.ndarray, "q q"]
    """`∂²F` in `log v` of positive hyperparameters and, for others, in `v` divided by the range of its bounds."""
    standard_errors: Mapping[str, float]
    """Square roots of the diagonal of the inverse Hessian, in the same coordinates; NaN at a saddle. A flat direction
    counts as wide as the bounds. If η is profiled, temperatures include its uncertainty."""
    flat: tuple[Mapping[str, float], ...]
    """Unit vectors along which the evidence is nearly constant: one standard deviation leaves the bounds, or the
    evidence rises slightly on both sides."""
    covariance: Float[np.ndarray, "q q"]
    """The inverse Hessian with the same provisions: its diagonal holds the squares of `standard_errors`."""


def find_curvature(
    objective: Objective,
    u: Float[np.ndarray, " p"],
    free: Sequence[str],
    size: int,
    warm_start: WarmStart | None = None,
) -> Curvature | None:
    """Return the Hessian at `u` by central differences of the gradient; None if a neighbour cannot be scored.

    Parameters
    ----------
    objective
        The objective of the search.
    u
        The coordinates of the minimum.
    free
        The names of the hyperparameters that are not at a bound.
    size
        The number of observations that PILE was divided by.
    warm_start
        Where nonlinear models are solved from.
    """
    space = objective.space
    rows = [space.names.index(name) for name in free]
    if not rows:
        return None
    hessian, scale = np.empty((len(rows), len(rows))), np.empty(len(rows))
    exact = any(space.model.is_exact(i) for i in range(len(space.model.blocks)))
    coarser = COARSER_DIFFERENCES if exact else 1.0
    first = coarser * FIRST_DIFFERENCE
    try:
        objective.prefetch((point for row in rows for point in _neighbours(u, row, first)), warm_start)
        for i, row in enumerate(rows):
            step = first
            for _ in range(4):  # until the step is short compared with the standard deviation that it measures
                points = _neighbours(u, row, step)
                objective.prefetch(points, warm_start)
                after, before = (objective.evaluate(point, warm_start) for point in points)
                hessian[i] = 0.5 * size * (after[1] - before[1])[rows] / (2 * step)
                scale[i] = math.log(after[0].eta / before[0].eta) / (2 * step)  # ∂ log η̂, zero unless η is profiled
                deviation = 1.0 / math.sqrt(abs(hessian[i, i])) if hessian[i, i] else math.inf
                if step <= coarser * 0.01 * deviation:
                    break
                step = coarser * 0.005 * deviation
        hessian = 0.5 * (hessian + hessian.T)
        axes = _principal_axes(hessian, np.diag(1.0 / np.sqrt(np.maximum(hessian.diagonal(), 1.0))))
        for _ in range(MOST_PASSES):
            if axes is None:
                break
            steps = np.zeros((len(rows), len(u)))
            steps[:, rows] = AXIS_DIFFERENCE * axes.T
            pairs = [(u + step, u - step) for step in steps]
            objective.prefetch((point for pair in pairs for point in pair), warm_start)
            ends = [[objective.evaluate(point, warm_start) for point in pair] for pair in pairs]
            changes = np.array([0.25 * size * (after[1] - before[1])[rows] for after, before in ends])
            along, inverse = changes @ axes / AXIS_DIFFERENCE, np.linalg.inv(axes)
            hessian = inverse.T @ (0.5 * (along + along.T)) @ inverse
            rescaled = np.array([0.5 * math.log(after[0].eta / before[0].eta) for after, before in ends])
            scale = inverse.T @ rescaled / AXIS_DIFFERENCE
            axes = _principal_axes(hessian, axes)
    except PilescoreError:
        return None
    finally:
        objective.cancel()
    eigenvalues, vectors = np.linalg.eigh(hessian)
    least = least_curvature(space, rows, vectors)
    covariance = vectors / np.maximum(eigenvalues, least) @ vectors.T
    if objective.score.profiled:
        # A profiled temperature is τ·η̂: log η̂ adds its own variance 2/N and its covariance with the coordinates.
        moved, rescaled = covariance @ scale, space.temperatures[rows].astype(float)
        both = np.outer(rescaled, moved)
        covariance = covariance + both + both.T + np.outer(rescaled, rescaled) * (scale @ moved + 2.0 / size)
    if np.any(eigenvalues <= -np.maximum(least, SADDLE_NATS)):
        covariance = np.full_like(covariance, math.nan)
    errors = dict(zip(free, np.sqrt(covariance.diagonal()).tolist(), strict=True))
    flat = [dict(zip(free, vector.tolist(), strict=True)) for vector in vectors.T[eigenvalues < least]]
    return Curvature(tuple(free), hessian, errors, tuple(flat), covariance)


def least_curvature(
    space: SearchSpace, rows: Sequence[int], vectors: Float[np.ndarray, "q q"]
) -> Float[np.ndarray, " q"]:
    """Return the curvature at which one standard deviation along each column reaches from one bound to the other."""
    low, high = np.array(space.bounds).T
    least: Float[np.ndarray, " q"] = (np.abs(vectors) / (high - low)[rows, None]).max(axis=0) ** 2
    return least


def _principal_axes(
    hessian: Float[np.ndarray, "q q"], axes: Float[np.ndarray, "q q"]
) -> Float[np.ndarray, "q q"] | None:
    """Return longer axes, one in each column, along which the evidence changes as fast as along the narrowest.

    None if it changes along all given axes, and their combinations, nearly as fast.
    """
    eigenvalues, vectors = np.linalg.eigh(axes.T @ hessian @ axes)
    sizes = np.abs(eigenvalues)
    if sizes.max() < NARROW * sizes.min():
        return None
    longer = axes @ vectors / np.sqrt(np.maximum(sizes, sizes.max() / NARROW))
    # No farther than a unit, a factor of e, beyond which the evidence is not quadratic.
    return np.asarray(longer / np.maximum(np.abs(longer).max(axis=0), 1.0))


def _neighbours(u: Float[np.ndarray, " p"], row: int, step: float) -> list[Float[np.ndarray, " p"]]:
    """Return the two points one step after and before a point along one coordinate."""
    unit = np.zeros(len(u))
    unit[row] = step
    return [u + unit, u - unit]
