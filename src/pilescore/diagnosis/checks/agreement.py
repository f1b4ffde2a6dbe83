"""Checks of whether data, equations and conditions agree."""

from __future__ import annotations

import math

from scipy.special import chdtrc

from ...errors import PilescoreError
from ..context import FEWEST_DATA, DiagnosisContext
from ..findings import Finding
from ..residuals import block_kind, disagreement, residuals_of

DISAGREEMENT_NATS = 6.0
"""Nats gained by a systematic difference that matter."""

LARGEST_MISMATCH = 0.1
"""The fraction of the size of its terms by which the posterior mean may miss an equation."""

SYSTEMATIC_FRACTION = 0.3
"""The fraction of the squared errors of conditions that a smooth difference must explain."""


def physics_against_data(context: DiagnosisContext) -> Finding:
    """Check whether data and physics differ from each other's predictions by a smooth function."""
    residuals, name = context.cleaned, "physics_against_data"
    if not {"data", "equation"} <= {*residuals.groups}:
        return context.skip(name, "This needs both data and an equation within a region.")
    data, mismatch = disagreement(residuals, "data"), residuals.equation_mismatch()
    conditions = [block for block in residuals.model.physics if block_kind(block, residuals.model) != "equation"]
    try:
        without_equation = residuals_of(residuals.model.replace(physics=conditions))
        alone = disagreement(without_equation, "data", smooth=False).energy
    except PilescoreError:
        alone = math.inf
    gains = {"data": data.gain, "without the equation": data.energy - alone}
    if mismatch > LARGEST_MISMATCH:  # a smooth remainder much smaller than the terms is not a contradiction
        gains["equation"] = disagreement(residuals, "equation").gain
    worst = max(gains, key=lambda key: gains[key])
    meanings = {
        "data": "The data differ from the prediction by physics and other data by a smooth function, "
        f"{100 * data.share:.0f}% of the squared errors: the equation, a coefficient, a condition or the kernel is "
        "wrong.",
        "equation": f"The equation does not hold: {100 * mismatch:.0f}% of the size of its terms remains, as a smooth "
        "function rather than noise.",
        "without the equation": "The data are more probable without the equation than with it.",
    }
    return context.finding(
        name,
        gains[worst],
        "failure",
        "the gain from letting data and physics differ, in nats, is",
        meanings[worst],
        "check coefficients, units and signs of the equation; infer a doubtful coefficient as a ps.parameter; compare "
        "equations (ps.choose); see whether the kernel suits the equation (ill_suited_kernel).",
        threshold=DISAGREEMENT_NATS,
        gains=gains,
        missed=mismatch,
        noise_factor=data.noise_factor,
        surprise={group: _surprise(context, group) for group in residuals.groups},
    )


def boundary_against_interior(context: DiagnosisContext) -> Finding:
    """Check whether conditions differ from what equation and data predict for them."""
    residuals, name = context.cleaned, "boundary_against_interior"
    if not {"conditions", "equation"} <= {*residuals.groups}:
        return context.skip(name, "This needs both conditions on a boundary and an equation within it.")
    few = len(residuals.groups["conditions"]) < FEWEST_DATA
    difference = disagreement(residuals, "conditions")
    size = _surprise(context, "conditions") if few else difference.gain
    measure = (
        "the surprise at the conditions given all other observations, in nats, is"
        if few
        else "the gain from letting conditions and the other observations differ, in nats, is"
    )
    return context.finding(
        name,
        size,
        "failure",
        measure,
        "The conditions on the boundary differ systematically from the prediction by the equation and the data.",
        "check the values, sides and normals of the conditions; give them their own rho if they are known only "
        "roughly; or see whether the rule on the boundary is fine enough.",
        threshold=DISAGREEMENT_NATS,
        fires=size > DISAGREEMENT_NATS and (few or difference.share > SYSTEMATIC_FRACTION),
        share=difference.share,
        surprise={group: _surprise(context, group) for group in residuals.groups},
    )


def _surprise(context: DiagnosisContext, group: str) -> float:
    """Return `−log p` of squared errors of a group, predicted from all others, that are at least as large as these."""
    residuals = context.cleaned
    return -_log_tail(residuals.squares(group), len(residuals.groups[group]))


def _log_tail(square: float, count: int) -> float:
    """Return `log P(χ² ≥ square)`."""
    tail = float(chdtrc(count, square))
    if tail > 1e-280:
        return math.log(tail)
    # The tail underflows: its leading term far out.
    return -0.5 * square + (0.5 * count - 1.0) * math.log(0.5 * square) - math.lgamma(0.5 * count)
