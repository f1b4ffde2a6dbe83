"""Checks that read one factorisation: collapse, overfitting, outliers, calibration, disagreement, digits lost."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import chdtrc

from .errors import PilescoreError, listed
from .examination import FEWEST, Examination, finding, skipped
from .findings import Finding
from .inspection import disagreement, inspect, kind, robust
from .linalg import EPS
from .model import Model

OBJECTION = 3.0
"""Nats that more noise or longer bandwidths must gain for small training errors to be called overfitting."""

UNPREDICTED = 0.5
"""The share of the data's mean square in left-out predictions below which nothing was learnt from them."""

MISSED = 0.1
"""The part of the size of its terms by which an equation may be missed."""

SYSTEMATIC = 0.3
"""The share of the squared errors of conditions that a smooth difference has to explain."""

LEVELS = {50: 0.6744897501960817, 80: 1.2815515655446004, 95: 1.959963984540054}
"""Half widths of intervals, in deviations, by their coverage in percent."""

LISTED = 10
"""Outliers that are named."""


def collapsed(examination: Examination) -> Finding:
    """Say whether the posterior mean carries almost none of the data."""
    model, fitted = examination.model, examination.inspection.fitted
    role = "data" if model.data else "physics"
    shares: dict[str, float] = {}
    left, total, start = 0.0, 0.0, 0
    for block, label in zip(model.blocks, model.labels, strict=True):
        rows = slice(start, start + block.size)
        start += block.size
        if block.role == role:
            noise = examination.inspection.noise[rows]
            errors, values = float(fitted[rows] ** 2 @ (1 / noise)), float(block.values**2 @ (1 / noise))
            left, total = left + errors, total + values
            shares[label] = 1.0 - errors / values if values > 0 else math.nan
    if not total > 0:
        return skipped(examination, "collapsed", "All values are zero: there is nothing that a solution could carry.")
    share = 1.0 - left / total
    return finding(
        examination,
        "collapsed",
        share,
        "failure",
        f"the share of the {role} in the posterior mean is",
        f"The solution carries {100 * max(share, 0):.2g}% of the mean square of the {role}: next to nothing, and "
        "noise has absorbed the rest.",
        "smaller upper bounds of gamma and rho, other starts with short bandwidths, a kernel that suits the equation "
        "(ps.data_free_pile, ps.search_kernels), or scoring the data given the physics (given_physics=True).",
        below=True,
        shares=shares,
    )


def overfit(examination: Examination) -> Finding:
    """Say whether training errors are far below left-out errors, and evidence asks for a calmer model."""
    found, model = examination.inspection, examination.model
    if found.data.stop < FEWEST:
        return skipped(examination, "overfit", f"There are fewer than {FEWEST} data.")
    deviation = np.sqrt(found.noise[found.data])
    trained, apart = (part[found.data] / deviation for part in (found.fitted, found.left_out))
    values = model.values[found.data] / deviation
    if not values.any():
        return skipped(examination, "overfit", "All data are zero.")
    ratio = float(np.sqrt(trained @ trained / (apart @ apart)))
    learnt = 1.0 - float(apart @ apart / (values @ values))
    small = ratio < examination.thresholds.overfit
    gains = examination.calmer if small else {}
    best = max(gains, key=lambda change: gains[change], default="")
    objects = bool(best) and gains[best] > OBJECTION
    more = f", and {best} would gain {gains[best]:.3g} nats" if objects else ""
    meaning = (
        f"The model runs through the data and does not predict them as well: left out, {100 * max(learnt, 0):.4g}% of "
        f"their mean square is predicted{more}."
    )
    fires = small and (objects or learnt < UNPREDICTED)
    if not fires:
        meaning = "But left-out data are predicted, and evidence wants no more noise: the data are that precise."
    return finding(
        examination,
        "overfit",
        ratio,
        "failure",
        "errors at the data over errors of left-out data are",
        meaning,
        "a larger gamma, a longer bandwidth; or let ps.minimize choose both.",
        below=True,
        fires=fires,
        left_out_share=learnt,
        gains=gains,
        standardised=float(np.sqrt(np.mean(trained**2))),
    )


def outliers(examination: Examination) -> Finding:
    """Say whether left-out errors of single data are far beyond those of the rest."""
    found, model, rows = examination.inspection, examination.model, examination.outlying
    if found.data.stop < FEWEST:
        return skipped(examination, "outliers", f"There are fewer than {FEWEST} data.")
    sizes = robust(found)
    number = np.repeat(np.arange(len(model.data)), [block.size for block in model.data])
    first = np.cumsum([0, *(block.size for block in model.data)])
    named = [
        {
            "block": model.labels[number[row]],
            "index": int(row - first[number[row]]),
            "value": float(model.values[row]),
            "predicted": float(model.values[row] - found.left_out[row]),
            "deviations": float(sizes[row]),
        }
        for row in rows[:LISTED]
    ]
    which = listed([f"{each['block']}[{each['index']}]" for each in named[:3]]) if named else ""
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    return finding(
        examination,
        "outliers",
        float(sizes.max()),
        "warning",
        "the largest error of a left-out datum, in robust deviations, is",
        f"{which}{more} {'is' if len(rows) == 1 else 'are'} far from what all other data and the physics predict."
        if len(rows)
        else "But such errors are too many to be outliers.",
        "look at these values; correct them, leave them out, or give them a larger noise of their own.",
        fires=len(rows) > 0,
        outliers=named,
        count=len(rows),
    )


def miscalibrated(examination: Examination) -> Finding:
    """Say whether intervals of left-out predictions hold too few or too many of the data."""
    found = examination.inspection
    scaled = np.abs(found.scaled[found.data])
    if len(scaled) < FEWEST:
        return skipped(examination, "miscalibrated", f"There are fewer than {FEWEST} data.")
    coverage = {level: float(np.mean(scaled <= width)) for level, width in LEVELS.items()}
    apart = {level: share - level / 100 for level, share in coverage.items()}
    chance = {level: 3.0 * math.sqrt(level / 100 * (1 - level / 100) / len(scaled)) for level in LEVELS}
    worst = max(apart, key=lambda level: abs(apart[level]) if abs(apart[level]) > chance[level] else -1.0)
    fires = abs(apart[worst]) > max(examination.thresholds.miscalibrated, chance[worst])
    size = float(np.sqrt(np.mean(scaled**2)))
    if not size > 0:
        return skipped(examination, "miscalibrated", "All data are predicted without any error.")
    side = "too narrow" if apart[worst] < 0 else "too wide"
    return finding(
        examination,
        "miscalibrated",
        abs(apart[worst]),
        "warning",
        "the coverage of intervals of left-out data is off by",
        f"Predicted deviations are {side}: {worst}% intervals hold {100 * coverage[worst]:.0f}% of left-out data, "
        f"whose errors are {size:.2g} predicted deviations."
        if fires
        else "But so few data may be off by that by chance.",
        f"let ps.minimize choose gamma{' (it is too small)' if apart[worst] < 0 else ''} and eta, or multiply "
        f"deviations by {size:.2g}.",
        fires=fires,
        coverage=coverage,
        rms=size,
    )


def physics_against_data(examination: Examination) -> Finding:
    """Say whether data and physics differ from what each says of the other, by a smooth function."""
    found, name = examination.cleaned, "physics_against_data"
    if not {"data", "equation"} <= {*found.groups}:
        return skipped(examination, name, "There are not both, data and an equation within a region.")
    data, missed = disagreement(found, "data"), found.missed()
    alone = _without_equation(found.model)
    try:
        without = disagreement(inspect(alone), "data", smooth=False).energy
    except PilescoreError:
        without = math.inf
    gains = {"data": data.gain, "without the equation": data.energy - without}
    if missed > MISSED:  # a smooth remainder that is small beside the terms of the equation is no contradiction
        gains["equation"] = disagreement(found, "equation").gain
    worst = max(gains, key=lambda key: gains[key])
    said = {
        "data": "The data differ from what physics and other data say by a smooth function, "
        f"{100 * data.share:.0f}% of the squared errors: the equation, a coefficient, a condition or the kernel is "
        "wrong.",
        "equation": f"The equation is not met: {100 * missed:.0f}% of the size of its terms is left, a smooth function "
        "and not noise.",
        "without the equation": "The data are more probable without the equation than with it.",
    }
    return finding(
        examination,
        name,
        gains[worst],
        "failure",
        "nats gained by letting data and physics differ are",
        said[worst],
        "check coefficients, units and signs of the equation; infer a doubtful coefficient as a ps.parameter; compare "
        "equations (ps.search_equations); see whether the kernel suits the equation (ill_suited_kernel).",
        gains=gains,
        missed=missed,
        noise_factor=data.noise_factor,
        surprise={group: _surprise(examination, group) for group in found.groups},
    )


def boundary_against_interior(examination: Examination) -> Finding:
    """Say whether conditions differ from what equation and data say of them."""
    found, name = examination.cleaned, "boundary_against_interior"
    if not {"conditions", "equation"} <= {*found.groups}:
        return skipped(examination, name, "There are not both, conditions on a boundary and an equation within it.")
    rows = found.groups["conditions"]
    few = len(rows) < FEWEST
    apart = disagreement(found, "conditions")
    size = _surprise(examination, "conditions") if few else apart.gain
    measure = (
        "the surprise at the conditions given all the rest, in nats, is"
        if few
        else ("nats gained by letting conditions and the rest differ are")
    )
    return finding(
        examination,
        name,
        size,
        "failure",
        measure,
        "The conditions on the boundary differ systematically from what the equation and the data say there.",
        "check the values, sides and normals of the conditions; give them a rho of their own if they are known only "
        "roughly; or see whether the rule on the boundary is fine enough.",
        fires=size > examination.thresholds.boundary_against_interior and (few or apart.share > SYSTEMATIC),
        share=apart.share,
        surprise={group: _surprise(examination, group) for group in found.groups},
    )


def ill_conditioned(examination: Examination) -> Finding:
    """Say how many digits of the score rounding has taken."""
    found = examination.inspection
    error = sum(found.rounding) / len(found.alpha)
    lost = [
        math.log10(max(part / (EPS * max(abs(term), 1.0)), 1.0))
        for part, term in zip(found.rounding, found.terms, strict=True)
    ]
    return finding(
        examination,
        "ill_conditioned",
        error,
        "warning",
        "the rounding error of PILE is about",
        f"Rounding has taken {lost[0]:.0f} of 16 digits of log det C and {lost[1]:.0f} of the fit (condition number "
        f"about {found.condition:.0e}).",
        "larger gamma or rho, a shorter bandwidth, a rougher kernel such as Matern; ps.pile names the blocks.",
        digits_lost={"logdet": lost[0], "fit": lost[1]},
        condition=found.condition,
    )


def _surprise(examination: Examination, group: str) -> float:
    """Return `−log p` of the squared errors of a group given all others being as large as they are, or larger."""
    found = examination.cleaned
    return -_log_tail(found.squares(group), len(found.groups[group]))


def _log_tail(square: float, count: int) -> float:
    """Return `log P(χ² ≥ square)`; far out by its leading term."""
    tail = float(chdtrc(count, square))
    if tail > 1e-280:
        return math.log(tail)
    return -0.5 * square + (0.5 * count - 1.0) * math.log(0.5 * square) - math.lgamma(0.5 * count)


def _without_equation(model: Model) -> Model:
    kept = [block for block in model.physics if kind(block, model) != "equation"]
    return Model(model.kernel, model.data, kept, model.gamma, model.rho, model.eta)
