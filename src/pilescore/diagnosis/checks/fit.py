"""Checks of how well the model fits and predicts the data: collapse, overfitting, smoothing, outliers, calibration."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import chdtrc

from ...errors import listed
from ..calibration import Sample
from ..context import FEWEST_DATA, LONGER, SHORTER, DiagnosisContext, length_names
from ..findings import LEVEL, Finding
from .noise import data_errors, errors_in_space

COLLAPSED_SHARE = 0.1
"""The smallest fraction of the data's mean square that a solution explains."""

OVERFIT_RATIO = 0.3
"""Training errors below this fraction of left-out errors are small."""

SMOOTHING_NATS = 3.0
"""The nats gained by other lengths that matter."""

COVERAGE_ERROR = 0.15
"""The error of the coverage of intervals that matters, beyond chance."""

OVERFIT_NATS = 3.0
"""Small training errors are overfitting if more noise or longer lengths gain more nats than this."""

PREDICTED_FRACTION = 0.5
"""Small training errors are overfitting if left-out predictions explain less of the data's mean square than this."""

INTERVALS = {50: 0.6744897501960817, 80: 1.2815515655446004, 95: 1.959963984540054}
"""Half the widths of intervals, in standard deviations, by their coverage in percent."""

MANY_OUTLIERS = 0.1
"""A larger fraction of the data may be noise with heavy tails."""

MOST_NAMED = 10
"""The largest number of outliers that a finding names."""


def collapsed(context: DiagnosisContext) -> Finding:
    """Check whether the posterior mean explains almost none of the data."""
    model, fitted = context.model, context.residuals.fitted
    role = "data" if model.data else "physics"
    shares: dict[str, float] = {}
    left, total = 0.0, 0.0
    for block, label, rows in zip(model.blocks, model.labels, model.rows, strict=True):
        if block.role == role:
            # In units of the noise: blocks in different units count alike.
            noise = context.residuals.noise[rows]
            errors, values = float(fitted[rows] ** 2 @ (1 / noise)), float(block.values**2 @ (1 / noise))
            left, total = left + errors, total + values
            shares[label] = 1.0 - errors / values if values > 0 else math.nan
    if not total > 0:
        return context.skip("collapsed", "All values are zero, so there is nothing to explain.")
    share = 1.0 - left / total
    return context.finding(
        "collapsed",
        share,
        "failure",
        f"the fraction of the {role} that the posterior mean explains is",
        f"The solution explains {100 * max(share, 0):.2g}% of the mean square of the {role}: the model takes almost "
        "everything for noise.",
        "smaller upper bounds of gamma and rho, other starts with short lengths, a kernel that suits the equation "
        "(ps.data_free_pile, ps.choose), or scoring the data given the physics (score='given_physics').",
        threshold=COLLAPSED_SHARE,
        below=True,
        shares=shares,
    )


def overfit(context: DiagnosisContext) -> Finding:
    """Check whether training errors are far below left-out errors, and the evidence prefers more noise."""
    residuals, model = context.residuals, context.model
    if residuals.data.stop < FEWEST_DATA:
        return context.skip("overfit", f"There are fewer than {FEWEST_DATA} data.")
    deviation = np.sqrt(residuals.noise[residuals.data])
    training, left_out = (errors[residuals.data] / deviation for errors in (residuals.fitted, residuals.left_out))
    values = model.values[residuals.data] / deviation
    if not values.any():
        return context.skip("overfit", "All data are zero.")
    ratio = float(np.sqrt(training @ training / (left_out @ left_out)))
    predicted = 1.0 - float(left_out @ left_out / (values @ values))
    small = ratio < OVERFIT_RATIO
    gains = context.gains_by_noise if small else {}
    best = max(gains, key=lambda change: gains[change], default="")
    prefers_noise = bool(best) and gains[best] > OVERFIT_NATS
    more = f", and {best} would gain {gains[best]:.3g} nats" if prefers_noise else ""
    fires = small and (prefers_noise or predicted < PREDICTED_FRACTION)
    meaning = "But left-out data are predicted, and the evidence does not prefer more noise: the data are precise."
    if fires:
        meaning = (
            f"The model interpolates the data but does not predict them: of the mean square of left-out data, "
            f"{100 * max(predicted, 0):.4g}% is predicted{more}."
        )
    return context.finding(
        "overfit",
        ratio,
        "failure",
        "the ratio of training errors to errors of left-out data is",
        meaning,
        "a larger gamma, longer lengths; or let ps.minimize choose both.",
        threshold=OVERFIT_RATIO,
        below=True,
        fires=fires,
        left_out_share=predicted,
        gains=gains,
        standardised=float(np.sqrt(np.mean(training**2))),
    )


def over_smoothed(context: DiagnosisContext) -> Finding:
    """Check whether shorter lengths have more evidence."""
    return _smoothing(context, "over_smoothed", SHORTER, "shorter", "long")


def under_smoothed(context: DiagnosisContext) -> Finding:
    """Check whether longer lengths have more evidence."""
    return _smoothing(context, "under_smoothed", LONGER, "longer", "short")


def _smoothing(context: DiagnosisContext, name: str, factors: tuple[float, ...], better: str, present: str) -> Finding:
    names = length_names(context.model)
    if not names:
        return context.skip(name, f"{context.model.kernel!r} has no length.")
    profile, slope = context.length_profile, context.length_slope
    best = max(factors, key=lambda factor: profile[factor])
    gain = max(profile[best], 0.0)
    meaning = (
        f"The kernel is too {present}: lengths × {best:.2g} would gain {gain:.3g} nats (the slope of the free energy "
        f"in the logarithm of the lengths is {slope:+.3g})."
    )
    advice = f"{better} lengths: ps.minimize(model, over={{'{names[0]}': (low, high), …}})."
    fit = _fit(context)
    if gain > SMOOTHING_NATS and _gain_by_scale(fit, context) > gain:
        meaning = (
            f"The observations are about {math.sqrt(fit):.2g} times as large as the model expects (their fit is "
            f"{fit:.3g}; it should be about 1): eta, or all of eta, gamma and rho, are wrong. Lengths cannot be judged."
        )
        advice = f"an eta that is {fit:.1g} times as large, or let ps.minimize choose eta and gamma."
    return context.finding(
        name,
        gain,
        "warning",
        f"the gain from {better} lengths, in nats, is",
        meaning,
        advice,
        threshold=SMOOTHING_NATS,
        # Twice the gain by one more free number follows a χ² distribution with one degree of freedom.
        p_value=float(chdtrc(1.0, 2.0 * gain)),
        slope=slope,
        profile=profile,
    )


def _fit(context: DiagnosisContext) -> float:
    """Return `ỹᵀC⁻¹ỹ` of the scored observations for each of them; it is about one."""
    whitened = context.calibration.whitened
    return float(np.mean(whitened**2)) if len(whitened) else 1.0


def _gain_by_scale(fit: float, context: DiagnosisContext) -> float:
    """Return the nats gained if η and all noises are multiplied by the fit, which makes it one."""
    return 0.5 * len(context.calibration.whitened) * (fit - 1.0 - math.log(max(fit, 1e-300)))


def outliers(context: DiagnosisContext) -> Finding:
    """Check whether single data are far from their prediction by all others; several may hide each other."""
    name, residuals, model = "outliers", context.residuals, context.model
    if residuals.data.stop < FEWEST_DATA:
        return context.skip(name, f"There are fewer than {FEWEST_DATA} data.")
    if not residuals.alpha[residuals.data].any():
        return context.skip(name, "All data are predicted without any error.")
    rows, found = context.outlying, residuals.outlier_search
    suspects = rows if len(rows) else found.rows[:1]
    errors, sizes = found.predicted_errors(suspects)
    shown = np.argsort(-np.abs(sizes))
    named = [
        {
            "block": model.labels[residuals.block[row]],
            "index": int(row - model.rows[residuals.block[row]].start),
            "value": float(model.values[row]),
            "predicted": float(model.values[row] - error),
            "deviations": float(abs(size)),
        }
        for row, error, size in zip(suspects[shown], errors[shown], sizes[shown], strict=True)
    ]
    count = len(rows)
    which = listed([f"{outlier['block']}[{outlier['index']}]" for outlier in named[:3]])
    more = f" and {count - 3} more" if count > 3 else ""
    meaning = (
        f"{which}{more} {'is' if count == 1 else 'are'} far from the prediction by all other data and the physics."
    )
    advice = "look at these values; correct them, leave them out, or give them a larger noise."
    if count > MANY_OUTLIERS * residuals.data.stop:
        advice += " So many may also mean noise with heavy tails: all data then need a larger gamma."
    return context.finding(
        name,
        named[0]["deviations"],
        "warning",
        "the largest left-out error, in deviations without outliers, is",
        meaning
        if count
        else "But these errors are small in predicted deviations, or alike among neighbours: no outliers.",
        advice,
        fires=count > 0,
        p_value=found.p_value if count or found.p_value > LEVEL else 1.0,
        outliers=named[:MOST_NAMED] if count else [],
        count=count,
        noise_factor=found.noise_factor,
        picture=_with_outliers(context, suspects[shown], sizes[shown]) if count else None,
    )


def _with_outliers(context: DiagnosisContext, rows: np.ndarray, sizes: np.ndarray) -> dict[str, Any] | None:
    """Return a picture of left-out errors over space, with outliers."""
    errors = data_errors(context)
    if isinstance(errors, str):
        return None
    points = np.concatenate([block.centres for block in context.model.data])
    return errors_in_space(errors, context) | {"marked": points[rows], "marked_sizes": sizes}


def miscalibrated(context: DiagnosisContext) -> Finding:
    """Check whether intervals of left-out predictions contain too few or too many of the data."""
    scaled = np.abs(context.residuals.scaled[context.residuals.data])
    if len(scaled) < FEWEST_DATA:
        return context.skip("miscalibrated", f"There are fewer than {FEWEST_DATA} data.")
    coverage = {level: float(np.mean(scaled <= width)) for level, width in INTERVALS.items()}
    excess = {level: share - level / 100 for level, share in coverage.items()}
    worst = max(excess, key=lambda level: abs(excess[level]) / _chance(level, len(scaled)))
    size = float(np.sqrt(np.mean(scaled**2)))
    if not size > 0:
        return context.skip("miscalibrated", "All data are predicted without any error.")
    side = "too narrow" if excess[worst] < 0 else "too wide"
    return context.finding(
        "miscalibrated",
        abs(excess[worst]),
        "warning",
        "the error of the coverage of intervals of left-out data is",
        f"Predicted deviations are {side}: {worst}% intervals contain {100 * coverage[worst]:.0f}% of left-out data, "
        f"whose errors are {size:.2g} predicted deviations.",
        f"let ps.minimize choose gamma{' (it is too small)' if excess[worst] < 0 else ''} and eta, or multiply "
        f"deviations by {size:.2g}.",
        threshold=COVERAGE_ERROR,
        p_value=context.test(coverage_error).p_value,
        coverage=coverage,
        rms=size,
    )


def coverage_error(sample: Sample) -> Float[np.ndarray, " B"]:
    """Return the largest error of the coverage of intervals for each data set, in deviations of independent data."""
    scaled = np.abs(sample.scaled[sample.data])
    errors = [np.mean(scaled <= width, axis=0) - level / 100 for level, width in INTERVALS.items()]
    chances = [_chance(level, len(scaled)) for level in INTERVALS]
    return np.asarray(np.max([np.abs(each) / chance for each, chance in zip(errors, chances, strict=True)], axis=0))


def _chance(level: int, count: int) -> float:
    """Return the standard deviation of the coverage of an interval by independent data."""
    return math.sqrt(level / 100 * (1 - level / 100) / count)
