"""The degrees of freedom that remain for the noise, and what they add to the standard errors of coefficients.

The evidence integrates over the unknown function, so its noise variance already is the sum of squared residuals divided
by `n − q`, where `q = tr K(K + S)⁻¹` is the number of values of the unknown that the data determine: the free
constants of the solution, if the equation is exact. Coefficients are not integrated over but fitted. They take
further degrees of freedom, `k`, and the noise variance comes out too small by the factor `(n − q − k)/(n − q)`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from ..errors import PilescoreError
from ..inference import Score, WarmStart, left_out_variances, systems_of
from ..model import Model
from ..solvers import System
from .curvature import Curvature
from .space import SearchSpace
from .standard_errors import Information

STEP = 0.1
"""The step of difference quotients of fits, in standard deviations. Fits lose digits, so it is not small."""


@dataclasses.dataclass(frozen=True, eq=False)
class DegreesOfFreedom:
    """The degrees of freedom that remain for the noise of the data, and what they add to standard errors."""

    remaining: float
    """`n − p`: data values whose noise was searched, minus the parameters that were fitted to them. It is not an
    integer if the prior or the noise of an equation matters, and NaN if a neighbour of the minimum cannot be scored."""
    inflation: Mapping[str, float]
    """The factor of the standard error of each coefficient: `√((n − q)/(n − q − k))` if all data share one searched
    noise. NaN if no degrees of freedom remain, or if their number is unknown."""


def degrees_of_freedom(
    space: SearchSpace,
    values: Float[np.ndarray, " p"],
    model: Model,
    curvature: Curvature,
    information: Information | None,
    warm_start: WarmStart | None = None,
) -> DegreesOfFreedom | None:
    """Return the degrees of freedom at a minimum; None if no coefficient or no noise of the data was searched.

    The number of fitted parameters is the trace of `∂ŷ/∂y`, the change of the fitted values with the data: `q` at fixed
    coefficients, and `k = tr(J V Jᵀ)` because they are fitted again. Here `J = S^(−1/2) ∂r/∂θ` is the change of the
    residuals with the coefficients, in units of the noise, and `V` the covariance of the coefficients. If the equation
    is exact, `k` is their number. It is smaller if the noise of the equation, or data of known noise, makes them
    uncertain.

    Parameters
    ----------
    space
        The coordinates of the search.
    values
        The values at the minimum.
    model
        The model at the minimum.
    curvature
        The curvature there. Values at a bound are not in it; they count as given.
    information
        What is known about the coefficients: the inverse of `V`.
    warm_start
        Where nonlinear models are solved from.
    """
    roles = model.roles
    bases = {space.targets[name][0] for name in curvature.names}
    searched = {base for base in bases if roles[base] == "data_temperature"}
    names = model.temperature_names[: len(model.data)]
    if information is None or not searched:
        return None
    unknown = DegreesOfFreedom(math.nan, dict.fromkeys(information.names, math.nan))
    directions, rows = information.roots, list(information.rows)
    if not np.isfinite(directions).all():
        return unknown
    at_minimum = space.at(model)

    def solved(values: Float[np.ndarray, " p"]) -> System:
        return systems_of(at_minimum.model_at(values), Score(), warm_start, explain=False).whole

    count = sum(block.size for block in model.data)
    deviations = np.sqrt(model.noise[:count])
    changes = np.empty((count, len(rows)))
    u = space.encode(values)
    try:
        for column, direction in enumerate(directions.T):
            step = np.zeros(len(u))
            step[rows] = STEP * direction
            after, before = (_residuals(solved(space.decode(at)))[:count] for at in (u + step, u - step))
            changes[:, column] = (after - before) / (2 * STEP * deviations)
        # The diagonal of S(K + S)⁻¹, whose sum is n − q: what the unknown function leaves of each value.
        left = model.noise[:count] / left_out_variances(solved(values))
    except PilescoreError:
        return unknown
    remaining, logarithms = 0.0, np.zeros(len(rows))
    for name in sorted(searched):
        part = np.repeat([each == name for each in names], [block.size for block in model.data])
        explained = changes[part].T @ changes[part]
        integrated = float(np.sum(left[part]))
        fitted = integrated - float(np.trace(explained))
        remaining += fitted
        # The share of this noise in the variance of each coefficient; the rest of the variance is known.
        share = np.diag(directions @ explained @ directions.T) / np.sum(directions**2, axis=1)
        logarithms += share * (np.log(integrated / fitted) if fitted > 0 else np.nan)
    inflation = np.exp(0.5 * logarithms)
    return DegreesOfFreedom(remaining, dict(zip(information.names, inflation.tolist(), strict=True)))


def degrees_text(remaining: float) -> str:
    """Return a sentence about the degrees of freedom of standard errors."""
    if math.isnan(remaining):
        return "coefficients have no standard errors: a model near the minimum cannot be scored"
    shown = f"n − p = {remaining:.3g} degrees of freedom".replace("= -", "= −")
    return f"standard errors use {shown}" if remaining > 0 else f"coefficients have no standard errors: {shown}"


def _residuals(system: System) -> Float[np.ndarray, " N"]:
    """Return `ỹ − ηQα = Sα`, the residuals of the posterior mean, in the order of the model's blocks."""
    residuals = np.empty(len(system.values))
    residuals[system.rows.order] = system.noise * system.factored.precise_alpha
    return residuals
