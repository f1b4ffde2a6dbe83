"""The curvature of the evidence: its second derivatives in the coordinates of a search."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from ..errors import PilescoreError
from ..inference import WarmStart
from .objective import Evaluated, Objective
from .space import SearchSpace

FIRST_DIFFERENCE = 1e-3
"""The first step of the difference quotients of the gradient, in coordinates."""

COARSER_DIFFERENCES = 10.0
"""How much larger these steps are for models with exact equations, whose scores have fewer digits."""

NARROW = 1e3
"""Second derivatives are computed again, along principal axes, if the largest is this many times the least, in units of
the last steps. Rounding in those along narrow axes would hide the wide ones."""

MOST_PASSES = 3
"""How often they are computed along principal axes, and how often a step along one is shortened."""

AXIS_DIFFERENCE = 0.1
"""The first step of difference quotients along principal axes, in standard deviations."""

BENT = 0.02
"""The largest error of a second derivative along an axis, as a fraction of it, because the valley bends aside."""

LONGER = 1.5
"""Another pass is made if an axis is longer than the last one by at least this factor."""

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

    def stretched(self, factors: Mapping[str, float]) -> Curvature:
        """Return the curvature in coordinates with other units, which are larger by these factors."""
        by_row = np.array([factors[name] for name in self.names])
        both = np.outer(by_row, by_row)
        errors = {name: error / factors[name] for name, error in self.standard_errors.items()}
        flat = [{name: part / factors[name] for name, part in direction.items()} for direction in self.flat]
        lengths = [math.hypot(*direction.values()) for direction in flat]
        units = [{name: part / n for name, part in each.items()} for each, n in zip(flat, lengths, strict=True)]
        return Curvature(self.names, self.hessian * both, errors, tuple(units), self.covariance / both)


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
    except PilescoreError:
        return None
    finally:
        objective.cancel()
    differences = _Differences(objective, u, rows, size, warm_start)
    axes = _principal_axes(hessian, np.diag(1.0 / np.sqrt(np.maximum(hessian.diagonal(), 1.0))))
    for _ in range(MOST_PASSES):
        try:
            found = None if axes is None else differences.along(axes)
        except PilescoreError:  # a neighbour cannot be scored
            break
        if axes is None or found is None:
            break
        hessian, scale = found
        axes = _principal_axes(hessian, axes)
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


@dataclasses.dataclass(frozen=True, eq=False)
class _Differences:
    """Difference quotients of the slopes of the free energy, and of `log η̂`, about one point."""

    objective: Objective
    u: Float[np.ndarray, " p"]
    rows: Sequence[int]
    size: int
    warm_start: WarmStart | None

    def along(self, axes: Float[np.ndarray, "q q"]) -> tuple[Float[np.ndarray, "q q"], Float[np.ndarray, " q"]] | None:
        """Return the second derivatives, and those of `log η̂`, by steps along axes; None if the valley bends too much.

        Valleys bend, so straight steps `δ` along a wide axis end on the slope of a narrow one: there the slopes have
        risen by `b` on both sides, which adds `2b²/δ²` to the second derivative. Such steps are shortened.
        """
        centre = axes.T @ self._slopes(self.objective.evaluate(self.u, self.warm_start))
        found, rescaled = np.empty_like(axes), np.empty(len(axes))
        for i, axis in enumerate(axes.T):
            step = AXIS_DIFFERENCE
            for _ in range(MOST_PASSES):
                away = np.zeros(len(self.u))
                away[self.rows] = step * axis
                ends = [self.objective.evaluate(point, self.warm_start) for point in (self.u + away, self.u - away)]
                after, before = (axes.T @ self._slopes(end) for end in ends)
                found[i] = (after - before) / (2 * step)
                rescaled[i] = math.log(ends[0][0].eta / ends[1][0].eta) / (2 * step)
                aside = np.delete(0.5 * (after + before) - centre, i)
                added = 2.0 * float(aside @ aside) / step**2
                bent = added / max(found[i, i] - added, 1.0 / NARROW)
                if bent <= BENT:
                    break
                step *= math.sqrt(0.5 * BENT / bent)
            else:
                return None
        inverse = np.linalg.inv(axes)
        return inverse.T @ (0.5 * (found + found.T)) @ inverse, inverse.T @ rescaled

    def _slopes(self, evaluated: Evaluated) -> Float[np.ndarray, " q"]:
        return np.asarray(0.5 * self.size * evaluated[1][list(self.rows)])


def _principal_axes(
    hessian: Float[np.ndarray, "q q"], axes: Float[np.ndarray, "q q"]
) -> Float[np.ndarray, "q q"] | None:
    """Return longer axes, one in each column, along which the evidence changes as fast as along the narrowest.

    None if it changes along all given axes, and their combinations, nearly as fast, or if no axis may be longer.
    """
    eigenvalues, vectors = np.linalg.eigh(axes.T @ hessian @ axes)
    sizes = np.abs(eigenvalues)
    if sizes.max() <= NARROW * sizes.min():
        return None
    turned = axes @ vectors
    longer = turned / np.sqrt(np.maximum(sizes, sizes.max() / NARROW))
    # No deviation counts as more than a unit, a factor of e: flat directions would take steps across their bounds.
    longer = longer / np.maximum(np.abs(longer).max(axis=0), 1.0)
    grown = np.linalg.norm(longer, axis=0) / np.linalg.norm(turned, axis=0)
    return np.asarray(longer) if grown.max() >= LONGER else None


def _neighbours(u: Float[np.ndarray, " p"], row: int, step: float) -> list[Float[np.ndarray, " p"]]:
    """Return the two points one step after and before a point along one coordinate."""
    unit = np.zeros(len(u))
    unit[row] = step
    return [u + unit, u - unit]
