"""Check of the smoothness of the kernel: corners, jumps and fronts that it cannot represent."""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ...kernels import Kernel, Matern, Radial, Scalar
from ...model import Model
from ..context import DiagnosisContext, free_energy, length_names
from ..findings import Finding
from ..left_out import neighbourhoods, standardised, variance_scores
from ..residuals import axis_names
from .noise import PLACE_FRACTION, SMALLEST_PLACE, data_errors, errors_in_space

LENGTHS, NOISES = (1.0, 2.0, 4.0), (1.0, 0.1)
"""Factors of lengths and of γ with rougher kernels, whose lengths are longer and which fit more of the data."""

MORE_NOISE = (10.0, 100.0)
"""Factors of γ with the present kernel: a rough solution may be noise."""

ROUGH_NATS = 3.0
"""The nats gained by a rougher kernel that matter."""


class Rougher(Radial):
    """A radial kernel with the profile of a Matérn kernel and its own metric."""

    base: Radial
    nu: float = eqx.field(static=True)

    @property
    def smoothness(self) -> float | int:
        """The smoothness of the Matérn kernel."""
        return int(self.nu - 0.5)

    def profile(self, q: Scalar, order: int) -> Scalar:
        """Return the profile of the Matérn kernel."""
        return Matern(self.nu).profile(q, order)

    def metric(self, dimension: int) -> Any:
        """Return the metric of the base kernel."""
        return self.base.metric(dimension)

    def check_points(self, points: np.ndarray) -> None:
        """Check the points as the base kernel does."""
        self.base.check_points(points)


def rougher_kernel(kernel: Kernel, nu: float) -> Kernel:
    """Return a kernel whose radial parts that are smoother than a Matérn kernel of order ν have its profile."""

    def rougher(part: Any) -> Any:
        smoother = isinstance(part, Radial) and part.smoothness > nu
        return Rougher(part, nu) if smoother else part

    return jax.tree.map(rougher, kernel, is_leaf=lambda part: isinstance(part, Radial))


def too_smooth_kernel(context: DiagnosisContext) -> Finding:
    """Check whether a rougher kernel makes the observations far more probable, and where errors are largest."""
    name, model, score = "too_smooth_kernel", context.source, context.score
    orders = [nu for nu in _orders(model) if rougher_kernel(model.kernel, nu) is not model.kernel]
    if not orders or not _has_radial(model.kernel):
        return context.skip(name, f"{model.kernel!r} has no rougher kernel that the operators allow.")
    noise = [each for each, role in model.roles.items() if role == "data_temperature"]
    scales = LENGTHS if length_names(model) else (1.0,)
    factors = NOISES if noise else NOISES[:1]

    def energy(changed: Model, scale: float, factor: float) -> float:
        values: dict[str, Any] = {each: scale * np.asarray(changed.parameters[each]) for each in length_names(changed)}
        values |= {each: factor * float(changed.parameters[each]) for each in noise}
        return free_energy(changed.replace(values), score, context.warm_start)

    # The present kernel may gain as much by other lengths or another noise.
    more = MORE_NOISE if noise else ()
    others = [energy(model, scale, factor) for scale in (0.5, *scales) for factor in (*factors, *more)]
    present = min(context.energy, *others)
    gains: dict[tuple[float, float, float], float] = {}
    for nu in orders:
        rough = model.replace(kernel=rougher_kernel(model.kernel, nu))
        gains |= {(nu, scale, factor): present - energy(rough, scale, factor) for scale in scales for factor in factors}
    (nu, scale, _), gain = max(gains.items(), key=lambda item: item[1])
    place, picture = _worst_place(context)
    where = f" Left-out errors are largest around {place}: a corner, jump or front there?" if place else ""
    longer = f" and lengths × {scale:g}" if scale != 1 else ""
    return context.finding(
        name,
        max(gain, 0.0),
        "warning",
        "the gain from a rougher kernel, in nats, is",
        f"The solution is rougher than the kernel allows: with the Matérn profile of order {nu:g}{longer} the evidence "
        f"gains {gain:.3g} nats.{where} It is the kernel, not the physics.",
        f"ps.Matern({nu:g}) in place of the present kernel; more nodes, and a kernel or model of its own, near the "
        "place.",
        threshold=ROUGH_NATS,
        # A likelihood ratio above e^g has at most the probability e^−g, whatever the alternative.
        p_value=min(1.0, len(gains) * math.exp(-max(gain, 0.0))),
        order=nu,
        lengths=scale,
        gains={f"Matern({nu:g}), lengths × {by:g}, gamma × {g:g}": nats for (nu, by, g), nats in gains.items()},
        **picture,
    )


def _orders(model: Model) -> list[float]:
    """Return the orders of the two roughest Matérn kernels that the operators allow."""
    highest = max(max(map(sum, block.indices)) for block in model.blocks)
    return [nu for nu in (max(highest, 1) + 0.5, max(highest, 1) + 1.5) if nu <= 6.5]


def _has_radial(kernel: Kernel) -> bool:
    leaves = jax.tree.leaves(kernel, is_leaf=lambda part: isinstance(part, Radial))
    return any(isinstance(part, Radial) for part in leaves)


def _worst_place(context: DiagnosisContext) -> tuple[str, dict[str, Any]]:
    """Return where left-out errors are larger than elsewhere, as text, and what a picture of them needs."""
    errors = data_errors(context)
    if isinstance(errors, str):
        return "", {}
    size = max(SMALLEST_PLACE, round(PLACE_FRACTION * len(errors.rows)))
    places = neighbourhoods(errors.points, size)
    scores = variance_scores(errors.precision, errors.alpha[None], errors.factor * errors.noise, places)[0]
    inside = places[:, int(np.argmax(scores))] > 0
    squares = standardised(errors.precision, errors.alpha[None])[0] ** 2
    if scores.max() < 2.0 or np.mean(squares[inside]) < 2.0 * np.mean(squares[~inside]):
        return "", {"picture": errors_in_space(errors, context)}
    point = errors.points[inside].mean(axis=0)
    named = zip(axis_names(context.model), point, strict=True)
    return ", ".join(f"{axis} = {each:.3g}" for axis, each in named), {"picture": errors_in_space(errors, context)}
