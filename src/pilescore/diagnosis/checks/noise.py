"""Checks of the noise of the data: its level, whether it is even, independent and normal."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ...errors import PilescoreError
from ...search import RunOptions, Steps
from ..calibration import DRAWS, SEED, tail_probability
from ..change_search import THOROUGH, bounds_about, p_value_of_gain, residual_freedom
from ..context import FEWEST_DATA, DiagnosisContext, free_energy
from ..deletion import noise_factor, noise_gains
from ..findings import Finding
from ..left_out import (
    correlation_scores,
    draw,
    excess_kurtosis,
    neighbour_correlations,
    neighbourhoods,
    normality,
    standardised,
    variance_scores,
)
from ..residuals import axis_names, without_rows

OTHER_NOISE = (0.01, 100.0)
"""Factors of a stated γ from which a better one is searched."""

CORRELATION_LENGTHS = (1.0, 3.0, 10.0)
"""Lengths of correlated noise in median distances to the nearest neighbour."""

LEAST_FACTOR = 2.0
"""A noise that is off by less, in standard deviations, is as good as right."""

PLACE_FRACTION, SMALLEST_PLACE = 0.1, 5
"""The number of data that are a place, as a fraction of all and at least."""

MOST_TESTED = 800
"""Larger data sets are thinned to so many, which are a model of their own."""

MOST_SHOWN = 400
"""The largest number of errors that a finding keeps for its picture."""


@dataclasses.dataclass(frozen=True, eq=False)
class DataErrors:
    """Errors of data given everything else, without outliers, with the noise level that they show."""

    rows: Int[np.ndarray, " n"]
    precision: Float[np.ndarray, "n n"]
    alpha: Float[np.ndarray, " n"]
    noise: Float[np.ndarray, " n"]
    """The noise variances of the model."""
    factor: float
    """The noise level that the errors show, as a factor of these variances."""
    points: Float[np.ndarray, "n d"]
    block: Int[np.ndarray, " n"]
    fitted: Float[np.ndarray, " n"]
    """The posterior mean of each datum."""

    def both(self) -> Float[np.ndarray, "m n"]:
        """Return `α` of the errors, and of data sets drawn from the model."""
        return np.concatenate([self.alpha[None], draw(self.precision, DRAWS, SEED)])

    def restricted(self, kept: Int[np.ndarray, " k"]) -> DataErrors:
        """Return the errors of some data, not conditioned on the others."""
        rest = np.setdiff1d(np.arange(len(self.rows)), kept)
        covariance = np.linalg.inv(self.precision)
        errors = covariance @ self.alpha
        precision = np.linalg.inv(covariance[np.ix_(kept, kept)]) if len(rest) else self.precision
        parts = {name: getattr(self, name)[kept] for name in ("rows", "noise", "points", "block", "fitted")}
        return dataclasses.replace(self, precision=precision, alpha=precision @ errors[kept], **parts)


def data_errors(context: DiagnosisContext) -> DataErrors | str:
    """Return the errors of the data without outliers, or why there are none."""
    residuals = context.residuals
    data = residuals.data
    if data.stop - len(context.outlying) < FEWEST_DATA:
        return f"There are fewer than {FEWEST_DATA} data."
    if not residuals.alpha[data].any():
        return "All data are predicted without any error."
    found = residuals.outlier_search
    precision, alpha = found.without(context.outlying)
    rows = np.setdiff1d(np.arange(data.stop), context.outlying)
    points = np.concatenate([block.centres for block in residuals.model.data])[rows]
    fitted = (residuals.model.values - residuals.fitted)[rows]
    errors = DataErrors(
        rows, precision, alpha, residuals.noise[rows], found.noise_factor, points, residuals.block[rows], fitted
    )
    if len(rows) > MOST_TESTED:
        errors = errors.restricted(np.linspace(0, len(rows) - 1, MOST_TESTED).round().astype(int))
    return errors


def noise_level(context: DiagnosisContext) -> Finding:
    """Check whether the noise of the data is much larger or smaller than stated."""
    name, errors = "noise_level", data_errors(context)
    if isinstance(errors, str):
        return context.skip(name, errors)
    known = context.space is not None or context.minimum is not None
    labels = np.array(context.model.temperature_names[: len(context.model.data)])
    stated = [
        each
        for each in dict.fromkeys(labels.tolist())
        if not (known and context.was_searched(each)) or each in context.at_bounds
    ]
    if not stated:
        return context.skip(name, "The noise of the data was not stated: the evidence has chosen it.")
    results = [_level(context, errors, each, labels) for each in stated]
    p_value, which, factor, nats, anew = min(results)
    gamma = context.temperatures[which]
    side = "larger" if factor > 1 else "smaller"
    size = math.sqrt(max(factor, 1 / factor))
    longer = ", with all that was chosen chosen again," if math.isnan(anew) else ""
    return context.finding(
        name,
        math.sqrt(factor),
        "warning",
        "the noise that the data show, in stated standard deviations, is",
        f"The noise of the data is about {size:.2g} times {side} than {which} says: {which} = {factor * gamma:.3g} "
        f"instead of {gamma:.3g}{longer} gains {nats:.3g} nats.",
        f"let ps.minimize choose {which}, with bounds that contain {factor * gamma:.1g}; if the noise is known, "
        "something else is missing in the model.",
        p_value=min(1.0, len(results) * p_value),
        fires=size > LEAST_FACTOR,
        nats=nats,
        factor=factor,
        stated=which,
    )


def _level(
    context: DiagnosisContext, errors: DataErrors, name: str, labels: np.ndarray
) -> tuple[float, str, float, float, float]:
    """Return the p-value of one stated noise, its name, the better factor, the nats gained, and NaN if all is new."""
    kept = np.flatnonzero(labels[errors.block] == name)
    best = (1.0, name, 1.0, 0.0, 1.0)
    if len(kept) >= FEWEST_DATA:
        some = errors.restricted(kept)
        covariance = np.linalg.inv(some.precision)
        known = covariance - some.factor * np.diag(some.noise)
        known = 0.5 * (known + known.T)
        factor, nats = noise_factor(covariance @ some.alpha, known, some.noise)
        stated = np.linalg.cholesky(known + np.diag(some.noise))
        drawn = np.random.default_rng(SEED).standard_normal((DRAWS, len(kept))) @ stated.T
        best = min(best, (tail_probability(nats, noise_gains(drawn, known, some.noise)), name, factor, nats, 1.0))
    found = _chosen_anew(context, name)
    return min(best, found) if found is not None else best


def _chosen_anew(context: DiagnosisContext, name: str) -> tuple[float, str, float, float, float] | None:
    """Return the same for a search over this noise and all that was chosen: it was chosen with the stated noise."""
    if context.space is None and context.minimum is None:
        return None
    model, score, gamma = context.source, context.score, context.temperatures[name]
    if len(context.outlying) and len(context.cleaned.model.data) == len(model.data):  # names of blocks are the same
        model = without_rows(model, context.outlying)
    over = bounds_about(model, context.minimum, context.space) | {name: (1e-6 * gamma, 1e6 * gamma)}
    ties = None if context.minimum is None else context.minimum.ties
    steps, best = Steps(over, ties, score, THOROUGH, RunOptions(progress=False)), None
    present = free_energy(model, score, context.warm_start)
    for factor in OTHER_NOISE:
        with contextlib.suppress(PilescoreError):
            ended = steps.descend(model, [{name: factor * gamma}])
            if best is None or ended.pile.free_energy < best.pile.free_energy:
                best = ended
    if best is None or not math.isfinite(present):
        return None
    gain = present - float(best.pile.free_energy)
    found = float(best.model.parameters[name]) / gamma
    return (p_value_of_gain(gain, residual_freedom(context.cleaned)), name, found, max(gain, 0.0), math.nan)


def uneven_noise(context: DiagnosisContext) -> Finding:
    """Check whether the size of left-out errors depends on the place, on the predicted value or on the block."""
    name, errors = "uneven_noise", data_errors(context)
    if isinstance(errors, str):
        return context.skip(name, errors)
    model = context.model
    directions: dict[str, Any] = {}
    for axis, coordinate in zip(axis_names(model), errors.points.T, strict=True):
        if np.ptp(coordinate) > 0:
            directions[axis] = _centred(coordinate)
    if np.ptp(errors.fitted) > 0:
        directions["the size of the predicted value"] = _centred(np.abs(errors.fitted))
        directions["the predicted value"] = _centred(errors.fitted)
    for number in np.unique(errors.block)[1:]:
        directions[f"the block {model.labels[number]!r}"] = _centred((errors.block == number).astype(float))
    size = max(SMALLEST_PLACE, round(PLACE_FRACTION * len(errors.rows)))
    places = neighbourhoods(errors.points, size)
    both, noise = errors.both(), errors.factor * errors.noise
    trends = variance_scores(errors.precision, both, noise, np.stack([*directions.values()], axis=1))
    local = variance_scores(errors.precision, both, noise, places)
    of_trend, of_place = np.abs(trends).max(axis=1), local.max(axis=1)
    p_trend, p_place = (tail_probability(float(each[0]), each[1:]) for each in (of_trend, of_place))
    squares = standardised(errors.precision, errors.alpha[None])[0] ** 2
    if p_trend <= p_place:
        along = [*directions][int(np.argmax(np.abs(trends[0])))]
        value = np.sign(trends[0][[*directions].index(along)]) * directions[along]
        low, high = (squares[value < np.median(value)], squares[value >= np.median(value)])
        ratio = math.sqrt(float(np.mean(high)) / max(float(np.mean(low)), 1e-300))
        meaning = f"The errors of left-out data depend on {along}: in one half they are {ratio:.2g} times as large."
    else:
        inside = places[:, int(np.argmax(local[0]))] > 0
        along = f"the place {_place(errors.points[inside].mean(axis=0))}"
        ratio = math.sqrt(float(np.mean(squares[inside])) / max(float(np.mean(squares[~inside])), 1e-300))
        meaning = (
            f"The errors of the {size} data around {_place(errors.points[inside].mean(axis=0))} are {ratio:.2g} times "
            "as large as elsewhere: more noise, or a corner, jump or front that the kernel cannot represent."
        )
    return context.finding(
        name,
        ratio,
        "warning",
        "the ratio of left-out errors in one part of the data to those elsewhere is",
        meaning,
        "give data their own noise (ps.observe(..., noise=deviations), or one block and gamma for each part); standard "
        "deviations are too small where errors are large. If too_smooth_kernel fires, the kernel is the cause.",
        p_value=min(1.0, 2.0 * min(p_trend, p_place)),
        along=along,
        picture=errors_in_space(errors, context),
    )


def correlated_noise(context: DiagnosisContext) -> Finding:
    """Check whether errors of neighbouring data are alike, after all that the model explains."""
    name, errors = "correlated_noise", data_errors(context)
    if isinstance(errors, str):
        return context.skip(name, errors)
    correlations, lengths = neighbour_correlations(errors.points, errors.block, CORRELATION_LENGTHS)
    if not len(lengths):
        return context.skip(name, "Data have no neighbours at other points.")
    noise = errors.factor * errors.noise
    scores, information = correlation_scores(errors.precision, errors.both(), noise, correlations)
    largest = scores.max(axis=1)
    best = int(np.argmax(scores[0]))
    share = float(np.clip(scores[0, best] / math.sqrt(information[best]), 0.0, 1.0))
    meaning = (
        f"Errors of neighbouring data are alike: about {100 * share:.0f}% of the noise is shared over "
        f"{100 * lengths[best]:.2g}% of the extent. "
    )
    meaning += (
        "One data set cannot tell such noise from an unknown that varies over this length (a shorter kernel)."
        if not context.model.physics
        else "One data set cannot tell such noise from an equation that misses something over this length."
    )
    return context.finding(
        name,
        share,
        "warning",
        "the fraction of the noise that neighbouring data share is",
        meaning,
        "repeat readings at the same place to tell noise from the unknown; thin the data, or add a short kernel for "
        "the correlated part. Standard deviations are too small as they are.",
        p_value=tail_probability(float(largest[0]), largest[1:]),
        length=float(lengths[best]),
        picture=errors_in_space(errors, context),
    )


def non_gaussian_noise(context: DiagnosisContext) -> Finding:
    """Check whether left-out errors follow a normal distribution, outliers aside."""
    name, errors = "non_gaussian_noise", data_errors(context)
    if isinstance(errors, str):
        return context.skip(name, errors)
    sizes = standardised(errors.precision, errors.both())
    distances, kurtosis = normality(sizes), float(excess_kurtosis(sizes[:1])[0])
    skewness = float(np.mean(sizes[0] ** 3))
    shape = "skewed" if abs(skewness) > abs(kurtosis) else "heavy in the tails" if kurtosis > 0 else "bounded"
    return context.finding(
        name,
        float(distances[0]),
        "warning",
        "the Anderson–Darling distance of left-out errors from a normal distribution is",
        f"The errors of left-out data are not normal: their distribution is {shape} (skewness {skewness:+.2g}, excess "
        f"kurtosis {kurtosis:+.2g}).",
        "intervals have another coverage than stated: compare them with left-out data; transform the data (logarithms "
        "of positive ones), or look for the cause of the largest errors.",
        p_value=tail_probability(float(distances[0]), distances[1:]),
        kurtosis=kurtosis,
        skewness=skewness,
        picture={"kind": "quantiles", "sizes": np.sort(sizes[0])},
    )


def _centred(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    return (values - values.mean()) / values.std()


def _place(point: Float[np.ndarray, " d"]) -> str:
    return f"({', '.join(f'{each:.3g}' for each in point)})"


def errors_in_space(errors: DataErrors, context: DiagnosisContext) -> dict[str, Any]:
    """Return the places of data and their left-out errors in predicted deviations, for a picture."""
    sizes = errors.alpha / np.sqrt(errors.precision.diagonal())
    shown = slice(0, MOST_SHOWN)
    return {
        "kind": "space",
        "axes": axis_names(context.model),
        "points": errors.points[shown],
        "sizes": sizes[shown],
        "marked": np.zeros((0, errors.points.shape[1])),
    }
