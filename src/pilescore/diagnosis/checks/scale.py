"""Checks of the prior's size: its scale η, and what the fit of each block says about it."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from ..calibration import Sample
from ..change_search import p_value_of_gain, residual_freedom
from ..context import DiagnosisContext
from ..findings import Finding

PROMISING_NATS = 2.0
"""Another η is tried if its slope promises more nats than this, or if the fit is far from one."""

FARTHEST = 10.0
"""How far from one the fit may be before another η is tried."""

LOG_FACTORS = np.linspace(-32.0, 32.0, 17)
"""The logarithms of factors of η that are tried first."""

FINER_STEPS = (2.0, 1.0, 0.5)
"""The steps of further trials about the best one."""

SCALE_NATS = 3.0
"""The gain by another η that matters, in nats."""

LARGEST_SHARE = 5.0
"""The largest fit per value of a block, which is about one."""


def prior_scale(context: DiagnosisContext) -> Finding:
    """Check whether the data are far larger or smaller than the prior expects, so that η is wrong."""
    name, calibration = "prior_scale", context.calibration
    whitened = calibration.whitened
    if not len(whitened):
        return context.skip(name, "Nothing is scored.")
    fit = float(np.mean(whitened**2))
    eta = float(context.source.eta)
    gains = {0.0: 0.0}
    far = not 1.0 / FARTHEST < fit < FARTHEST
    if far or context.promised_by_eta > PROMISING_NATS:
        # With hardly any noise the best η is η times the fit.
        tried = [*LOG_FACTORS, math.log(max(fit, 1e-30))] if far else LOG_FACTORS
        gains |= {float(u): context.energy - context.energy_with({"eta": eta * math.exp(u)}) for u in tried}
        for step in FINER_STEPS:
            middle = max(gains, key=lambda u: gains[u])
            near = (middle - step, middle + step)
            gains |= {u: context.energy - context.energy_with({"eta": eta * math.exp(u)}) for u in near}
    best = max(gains, key=lambda u: gains[u])
    noise = (
        max((gain for change, gain in context.gains_by_noise.items() if "lengths" not in change), default=0.0)
        if far
        else 0.0
    )
    gain, what = gains[best], "eta"
    # All variances times the fit: the fit becomes one, and log det grows by its logarithm.
    together = 0.5 * len(whitened) * (fit - 1.0 - math.log(max(fit, 1e-300)))
    if far and fit > 1.0 and together > gain:
        best, gain, what = math.log(fit), together, "eta, and gamma with it,"
    size = math.exp(0.5 * best)
    return context.finding(
        name,
        gain,
        "warning",
        "the gain by another prior scale eta, in nats, is",
        f"The observations are about {size:.2g} times as large as the prior expects (their fit is {fit:.3g}; it should "
        f"be about 1): {what} is too {'small' if best > 0 else 'large'}. Deviations of predictions are wrong by as "
        "much.",
        f"eta = {eta * math.exp(best):.2g}, or let ps.minimize choose eta.",
        threshold=SCALE_NATS,
        fires=gain > max(SCALE_NATS, noise),
        p_value=p_value_of_gain(gain, max(residual_freedom(context.residuals), 8.0)),
        fit=fit,
        eta=eta * math.exp(best),
    )


def physics_fit(context: DiagnosisContext) -> Finding:
    """Check whether the fit of each block is about one, as it is for observations that the prior expects."""
    name, model = "physics_fit", context.model
    scored = [i for i, block in enumerate(model.blocks) if i not in context.given and block.values.any()]
    if len(scored) < 2 or not any(model.blocks[i].role == "physics" for i in scored):
        return context.skip(name, "No values of physics are scored beside the data.")
    rows = [model.rows[i] for i in scored]
    test = context.calibration.test(lambda sample: largest_fit(sample, rows))
    fits = {model.labels[i]: float(_fit(context.calibration.observed, model.rows[i])[0]) for i in scored}
    worst = max(fits, key=lambda label: fits[label])
    return context.finding(
        name,
        test.value,
        "warning",
        "the largest fit of a block, per value, is",
        f"The values of {worst!r} are far larger than the prior expects together with the other observations: their "
        f"fit is {fits[worst]:.3g} instead of about 1, those of the others are smaller. One prior scale does not suit "
        "all observations.",
        "check the units of these values and of the equation; give the block a temperature of its own; a kernel that "
        "suits the equation.",
        threshold=LARGEST_SHARE,
        p_value=test.p_value,
        fits=fits,
    )


def _fit(sample: Sample, rows: slice) -> Float[np.ndarray, " B"]:
    return np.asarray(np.mean(sample.values[rows] * sample.alpha[rows], axis=0))


def largest_fit(sample: Sample, rows: list[slice]) -> Float[np.ndarray, " B"]:
    """Return the largest `yᵀα/n` of several blocks, for each data set; it is one on average."""
    return np.asarray(np.max([_fit(sample, each) for each in rows], axis=0))
