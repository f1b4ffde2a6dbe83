"""Losses that compete with the evidence: training residuals and leave-one-out residuals."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from ..errors import require
from ..model import Model
from ..parallel import threads
from ..solvers import System
from .evidence import linear_system

COLUMNS = 256
"""How many columns of the inverse factor are in memory at a time."""


@dataclasses.dataclass(frozen=True)
class Losses:
    """Mean squared residuals of the posterior mean, as returned by `losses`.

    Examples
    --------
    A kernel with a very short bandwidth fits the data but cannot predict a left-out one:

    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 12)
    >>> data = ps.observe(ps.identity, values=np.sin(6 * x), at=x)
    >>> for bandwidth in (0.02, 0.4):
    ...     found = ps.losses(ps.Model(ps.RBF(bandwidth), data=data, gamma=1e-4))
    ...     print(f"{bandwidth}: data {found.data:.0e}, leave one out {found.leave_one_out:.0e}")
    0.02: data 1e-09, leave one out 5e-01
    0.4: data 7e-07, leave one out 1e-05
    >>> found.physics  # the model has no physics
    nan
    """

    data: float
    """`Σ (y_i − L_i f̂)² / n` over the data; NaN without data."""
    physics: float
    """`Σ w_j (r_j − A f̂(z_j))² / Σ w_j` over the physics; NaN without physics."""
    leave_one_out: float
    """`Σ (y_i − L_i f̂₋ᵢ)² / n`, with `f̂₋ᵢ` fitted to all but the i-th datum; NaN without data."""

    def __repr__(self) -> str:
        return f"Losses(data={self.data:.4g}, physics={self.physics:.4g}, leave_one_out={self.leave_one_out:.4g})"


def losses(model: Model) -> Losses:
    """Return the training losses and the leave-one-out loss of a model, from one factorisation.

    With `C = ηQ + S` and `α = C⁻¹ỹ`, the residuals of the posterior mean are `ỹ − ηQα = Sα`, and the residual of a
    left-out value is `α_i / (C⁻¹)_ii`. Each datum is left out alone; all physics is kept. Multiplying η and all
    temperatures by one factor changes none of the losses.

    Every datum has weight one, whatever its noise, because a loss is in the units of the measurements. A physics
    residual has the weight of its quadrature node, even if `impose` was given a `noise`. A functional has no node; its
    weight is the `w` in its noise variance `ρ/2w`, which is `1/noise²` if a noise was given.

    Parameters
    ----------
    model
        The model. A nonlinear one is linearised around its most likely solution.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> x = np.linspace(0, 1, 6)
    >>> model = ps.Model(
    ...     kernel=ps.RBF(bandwidth=0.3),
    ...     data=ps.observe(ps.identity, values=np.sin(3 * x), at=x),
    ...     physics=ps.impose(dx**2 + 9 * ps.identity, 0.0, on=line.interior(ps.GaussLegendre(4))),
    ...     gamma=1e-4,
    ...     rho=1e-2,
    ... )
    >>> found = ps.losses(model)
    >>> found.data < found.leave_one_out < 1e-3
    True
    """
    require(isinstance(model, Model), "model", model, "a ps.Model")
    system = linear_system(model)
    return system_losses(system, left_out_variances(system))


def left_out_variances(system: System) -> Float[np.ndarray, " n"]:
    """Return `1/(C⁻¹)_ii` of the data in the order of `model.data`: the variance of each datum given all the rest.

    It includes the noise of the datum itself and does not depend on the values `ỹ`.
    """
    rows = _data_rows(system)
    inverse = np.empty(len(rows))
    with threads(len(system.values)):
        for start in range(0, len(rows), COLUMNS):
            batch = rows[start : start + COLUMNS]
            # The reduced diagonal of unit vectors is eᵢᵀC⁻¹eᵢ = |L⁻¹eᵢ|²: a sum of squares, which cannot cancel.
            columns = np.zeros((len(system.values), len(batch)), order="F")
            columns[batch, np.arange(len(batch))] = 1.0
            inverse[start : start + COLUMNS] = system.factored.reduced_diagonal(columns)
    return 1.0 / inverse


def left_out_residuals(system: System, variances: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return `y_i − L_i f̂₋ᵢ` of the data in the order of `model.data`, given their left-out variances."""
    return system.factored.precise_alpha[_data_rows(system)] * variances


def system_losses(system: System, variances: Float[np.ndarray, " n"]) -> Losses:
    """Return the losses of a solved model, given the left-out variances of its data."""
    residuals = np.empty(len(system.alpha))
    # Sα equals ỹ − ηQα without the cancellation of two nearly equal vectors.
    residuals[system.rows.order] = system.noise * system.factored.precise_alpha
    data, physics = np.split(residuals, [len(variances)])
    weights = quadrature_weights(system.model)
    return Losses(
        _mean_square(data, np.ones(len(data))),
        _mean_square(physics, weights),
        _mean_square(left_out_residuals(system, variances), np.ones(len(data))),
    )


def quadrature_weights(model: Model) -> Float[np.ndarray, " m"]:
    """Return the weights of all physics residuals in the order of `model.physics`."""
    weights = [block.weights if block.nodes is None else block.nodes.weights for block in model.physics]
    return np.concatenate([np.empty(0), *weights])


def _data_rows(system: System) -> Int[np.ndarray, " n"]:
    """Return the positions of the data in the assembled order; in the stacked order they come first."""
    return np.argsort(system.rows.order)[: sum(block.size for block in system.model.data)]


def _mean_square(residuals: Float[np.ndarray, " k"], weights: Float[np.ndarray, " k"]) -> float:
    return float(weights @ residuals**2 / weights.sum()) if len(residuals) else float("nan")
