"""A kernel for evolution equations: a prior of the state at one time, and almost none of its changes."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from ..equations import MultiIndex
from ..errors import as_array, as_positive, require
from .base import Kernel, Point, Scalar, require_coordinates, total, vanishes
from .nonstationary import Linear
from .stationary import RBF

CHANGE = Linear() * RBF(1.0)
"""The kernel of the change in the scaled time: smooth functions that are zero at the start."""

SQUEEZE = 0.75
"""The bandwidths of the change, as a fraction of those of the state: derivatives of a state are rougher than it is."""


def _as_interval(value: Any) -> tuple[float, float]:
    array = as_array(value, "interval")
    good = array.shape == (2,) and bool(array[0] < array[1])
    require(good, "interval", value, "the first and the last time, (t0, t1) with t0 < t1")
    return float(array[0]), float(array[1])


class Evolution(Kernel):
    """The kernel of a state at a first time plus a change that grows from zero: `k(x, x') + c(τ, τ') k(x/s, x'/s)`.

    Use it to infer the coefficients of an equation `u_t = …` from observations over a short time. Under a kernel with a
    bandwidth in time, the equation together with that bandwidth says how large the derivatives of the state in space
    are, so the prior of the state depends on the coefficients, and they are biased towards values that make the state
    look typical. Here the equation determines the change, and the prior of the state hardly depends on them.

    At the end of the interval the change has `v` times the variance of the state: `c(τ, τ') = v ττ' exp(−(τ − τ')²/2)`
    with `τ = (t − t0)/(t1 − t0)`. It varies in space over three quarters of the state's bandwidth. The nodes of the
    equation must be closer than that.

    Parameters
    ----------
    state
        The kernel of the state, a function of the coordinates after the first, which is the time.
    interval
        The first time `t0` and the last time `t1`.
    change
        The variance `v`. It should be much larger than the change is; a very large one costs digits.

    Examples
    --------
    >>> import pilescore as ps
    >>> kernel = ps.kernels.Evolution(ps.RBF(0.5), interval=(0.0, 2.0))
    >>> float(kernel((0.0, 0.3), (0.0, 0.3))), float(kernel((2.0, 0.3), (2.0, 0.3)))
    (1.0, 2.0)
    """

    state: Kernel
    interval: tuple[float, float] = eqx.field(static=True, converter=_as_interval)
    change: float = eqx.field(static=True, default=1.0, converter=lambda value: as_positive(value, "change"))

    @property
    def smoothness(self) -> float | int:
        """The smoothness of the state."""
        return self.state.smoothness

    def supports(self, alpha: MultiIndex) -> bool:
        """Whether the state has the derivative in space."""
        return self.state.supports(alpha[1:])

    def derivative(self, alpha: MultiIndex, beta: MultiIndex, x: Point, y: Point) -> Scalar:
        """Return the derivative of the state if there is none in time, plus that of the change."""
        (start, end), rest = self.interval, []
        if not (alpha[0] or beta[0]):
            rest.append(self.state.derivative(alpha[1:], beta[1:], tuple(x[1:]), tuple(y[1:])))
        times = [((point[0] - start) / (end - start),) for point in (x, y)]
        in_time = CHANGE.derivative(alpha[:1], beta[:1], *times)
        squeezed = [tuple(coordinate / SQUEEZE for coordinate in point[1:]) for point in (x, y)]
        in_space = self.state.derivative(alpha[1:], beta[1:], *squeezed)
        if not (vanishes(in_time) or vanishes(in_space)):
            units = (end - start) ** (alpha[0] + beta[0]) * SQUEEZE ** (sum(alpha[1:]) + sum(beta[1:]))
            rest.append(self.change * in_time * in_space / units)
        return total(rest)

    def distances(self, x: Float[np.ndarray, "n d"], y: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "n m"]:
        """Return the distances of the change, which are the larger ones: the state's, squeezed, or those in time."""
        in_time = (x[:, :1] - y[:, 0]) / (self.interval[1] - self.interval[0])
        return np.maximum(np.abs(in_time), self.state.distances(x[:, 1:] / SQUEEZE, y[:, 1:] / SQUEEZE))

    def check_points(self, points: Float[np.ndarray, "n d"]) -> None:
        """Require a coordinate besides the time."""
        require_coordinates("Evolution", points, points.shape[1] > 1, "the time and at least one other coordinate")
        self.state.check_points(points[:, 1:])
