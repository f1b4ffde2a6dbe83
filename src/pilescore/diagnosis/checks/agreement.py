"""Check of whether data and physics agree."""

from __future__ import annotations

import functools
import math

import numpy as np
from jaxtyping import Float

from ...errors import PilescoreError
from ..calibration import Sample, Statistic
from ..change_search import DOUBTFUL
from ..context import DiagnosisContext
from ..findings import Finding
from ..residuals import DIFFERENCE_LENGTHS, Residuals, block_kind, disagreement, residuals_of

LARGEST_MISMATCH = 0.1
"""The fraction of the size of its terms by which the posterior mean may miss an equation."""

EXPLAINED = 0.1
"""The fraction of the squared errors that a smooth difference must explain; less does not matter."""


def physics_against_data(context: DiagnosisContext) -> Finding:
    """Check whether data and physics differ from each other's predictions by a smooth function."""
    residuals, name = context.cleaned, "physics_against_data"
    if not {"data", "equation"} <= {*residuals.groups}:
        return context.skip(name, "This needs both data and an equation within a region.")
    groups = ["data"]
    mismatch = residuals.equation_mismatch()
    if mismatch > LARGEST_MISMATCH:  # a smooth remainder much smaller than the terms is not a contradiction
        groups.append("equation")
    calibration = context.cleaned_calibration
    tests = [calibration.test_largest(smooth_parts(residuals, group)) for group in groups]
    test = min(tests, key=lambda each: each.p_value)
    gain = _gain_without_equation(residuals)
    # A likelihood ratio above e^g has at most the probability e^−g if the denominator is right.
    p_value = min(1.0, (1 + len(groups)) * min(test.p_value, math.exp(-max(gain, 0.0))))
    share = max(disagreement(residuals, group).share for group in groups) if p_value < DOUBTFUL else 0.0
    meanings = [
        "Data and physics differ by a smooth function, "
        f"{100 * share:.0f}% of the squared errors: the equation, a coefficient, a condition or the kernel is wrong."
    ]
    if mismatch > LARGEST_MISMATCH:
        meanings.append(f"The equation is missed by {100 * mismatch:.0f}% of the size of its terms.")
    if math.exp(-max(gain, 0.0)) < DOUBTFUL:
        meanings.append("The data are more probable without the equation than with it.")
    other = context.changes.other_kernel if p_value < DOUBTFUL and _is_testable(context) else ("", 0.0)
    if other[1] > -math.log(DOUBTFUL):
        meanings.append(f"{other[0][0].upper()}{other[0][1:]} gains {other[1]:.3g} nats: the kernel may be the cause.")
    return context.finding(
        name,
        test.value,
        "failure",
        "the smooth part of prediction errors, in deviations of chance, is",
        " ".join(meanings),
        "check coefficients, units and signs of the equation (wrong_equation tries some); infer a doubtful coefficient "
        "as a ps.parameter; compare equations (ps.choose) and kernels.",
        fires=share > EXPLAINED or gain > -math.log(DOUBTFUL),
        p_value=p_value,
        missed=mismatch,
        share=share,
        gain_without_equation=gain,
    )


def _is_testable(context: DiagnosisContext) -> bool:
    try:
        return context.changes is not None
    except PilescoreError:
        return False


def smooth_parts(residuals: Residuals, group: str) -> list[Statistic]:
    """Return statistics of how smooth the errors of a group are, one for each of several lengths.

    They are `αᵀKα/αᵀSα`, with `K` a smooth kernel within each block. The numerator is the score test of a difference
    with the covariance `K`. Divided by the denominator it does not depend on the size of the noise, which the data
    determine. `K` is scaled by the noise, so that the units of a block do not matter.
    """
    rows = residuals.groups[group]
    centres = np.concatenate([block.centres for block in residuals.model.blocks])[rows]
    block, deviation = residuals.block[rows], np.sqrt(residuals.noise[rows])
    extent = np.where(np.ptp(centres, axis=0) > 0, np.ptp(centres, axis=0), 1.0)
    statistics: list[Statistic] = []
    for length in DIFFERENCE_LENGTHS:
        apart = (centres[:, None] - centres) / (length * extent)
        kernel = np.exp(-0.5 * (apart**2).sum(axis=-1)) * (block[:, None] == block)
        np.fill_diagonal(kernel, 0.0)  # the diagonal is the size of the errors, not how they go together
        statistics.append(functools.partial(_smooth_part, rows, kernel * deviation * deviation[:, None]))
    return statistics


def _smooth_part(rows: np.ndarray, kernel: np.ndarray, sample: Sample) -> Float[np.ndarray, " B"]:
    alpha = sample.alpha[rows]
    squares = np.einsum("ib,ib->b", alpha, sample.noise[rows] * alpha)
    return np.asarray(np.einsum("ib,ib->b", alpha, kernel @ alpha) / np.maximum(squares, 1e-300))


def _gain_without_equation(residuals: Residuals) -> float:
    """Return how much more probable the data are without the equation, in nats, each with the best noise."""
    model = residuals.model
    conditions = [block for block in model.physics if block_kind(block, model) != "equation"]
    try:
        alone = disagreement(residuals_of(model.replace(physics=conditions)), "data", smooth=False).energy
    except PilescoreError:
        return 0.0
    return disagreement(residuals, "data", smooth=False).energy - alone
