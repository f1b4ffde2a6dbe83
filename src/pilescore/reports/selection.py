"""The report of a selection: chosen values, the solution, the diagnosis, and predictions of the measurements."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..diagnosis import digits
from ..problems import HyperposteriorSummary, Selection, parameter_text, score_text
from ..search import degrees_text
from .contents import Curve, Figure, Lines, Mark, Panel, Picture, Report, Section, TextTable
from .findings import diagnosis_section, sentence

SIGNED_ROLES = ("coefficient", "angle", "shear", "number")
"""The roles of hyperparameters that can be negative."""

MOST_PAIRED, FILLED_UP = 4, 3
"""The largest number of names in the pictures of pairs, and up to how many hyperparameters are added to a parameter."""

LOG_RATIO = 5.0
"""Positive draws whose ends have a larger ratio are shown on a logarithmic axis."""

COUNTED_STD = 0.01
"""Standard deviations below this fraction of the largest one are left out of ratios: they are as good as zero."""

HARDLY_LARGER = 1.05
"""Below this largest ratio the text is about percents."""


def selection_report(selection: Selection) -> Report:
    """Return the content of the page about a selection."""
    summary, problem = selection.summary, selection.problem
    readings = sum(block.size for block in summary.blocks if block.role == "data")
    imposed = sum(block.size for block in summary.blocks if block.role == "physics")
    count = len(summary.kernels)
    chosen = f"Everything the problem leaves open was chosen by {score_text(problem)}"
    chosen += f"; the best of {count} kernels is {selection.kernel}." if count > 1 else "."
    lead = (
        f"{problem.unknown}({', '.join(problem.box.names)}) from {_many(readings, 'reading')} and from equations and "
        f"conditions at {_many(imposed, 'node')}. {chosen}"
    )
    diagnosis = diagnosis_section(selection)
    failed = any(finding.severity == "failure" for finding in selection.diagnosis)
    sections = [
        *([diagnosis] if failed else []),
        *([Section("Caution", tuple(sentence(text) for text in summary.warnings))] if summary.warnings else []),
        _solution(selection),
        *([_nonlinear(selection, readings + imposed)] if summary.solution is not None else []),
        *([] if failed else [diagnosis]),
        *([_readings(selection)] if readings else []),
        _chosen(selection),
        *([_kernels(selection)] if count > 1 else []),
        _observations(selection),
    ]
    details = [("problem file", summary.settings["file"]), ("score", summary.score)]
    details += [(f"{name} version", version) for name, version in summary.versions.items()]
    return Report(summary.title, lead, _verdicts(selection, readings), tuple(sections), tuple(details))


def chosen_text(name: str, selection: Selection) -> str:
    """Return a chosen value with its standard error; a positive value with a larger error is poorly determined."""
    value, error = selection.values[name], selection.standard_errors[name]
    return with_error(value, error, selection.roles[name] not in SIGNED_ROLES)


def interval_text(name: str, selection: Selection) -> str:
    """Return the 95% interval of a chosen number or a derived quantity; an empty text if it has none."""
    intervals = selection.intervals
    return between(*intervals.loc[name, ["2.5%", "97.5%"]]) if name in intervals.index else ""


def between(low: float, high: float) -> str:
    """Return an interval with enough digits to tell its ends apart."""
    width, size = high - low, max(abs(low), abs(high))
    if not 0 < width < 0.02 * size:  # NaN too
        return f"{digits(low)} to {digits(high)}"
    power = 10.0 ** math.floor(math.log10(size)) if size >= 1e5 or size < 1e-3 else 1.0
    places = max(0, 1 - math.floor(math.log10(width / power)))
    shown = f"{low / power:.{places}f} to {high / power:.{places}f}".replace("-", "−")
    return shown if power == 1.0 else f"({shown})·{digits(power).partition('·')[2]}"


def with_error(value: float, error: float | None, positive: bool = False) -> str:
    """Return a number with its standard error, rounded to two digits of the error."""
    if error is None or not np.isfinite(error) or error <= 0:
        return digits(value)
    if positive and error > value:
        return f"{digits(value)}, poorly determined"
    places = max(0, min(12, 1 - int(np.floor(np.log10(error)))))
    if abs(value) >= 1e5 or abs(value) < 1e-3 or error < 1e-9:
        return f"{digits(value)} ± {digits(error)}"
    return f"{value:.{places}f} ± {error:.{places}f}".replace("-", "−")


def ordered(selection: Selection) -> list[str]:
    """Return the names of the chosen numbers, inferred parameters first."""
    inferred = [name for name in selection.problem.inferred if name in selection.values]
    return inferred + [name for name in selection.values if name not in inferred]


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _verdicts(selection: Selection, readings: int) -> tuple[tuple[str, str], ...]:
    """Return the numbers at the top of the page, each with its meaning."""
    errors, verdicts = selection.standard_errors, []
    for name in selection.problem.inferred[:3]:
        known = np.isfinite(errors[name])
        note = "inferred, ± its standard error" if known else "inferred; it has no standard error"
        interval = interval_text(name, selection)
        note += f"; 95%: {interval}" if interval else ""
        verdicts.append((with_error(selection.values[name], errors[name]), f"{name}, {note}"))
    for name, quantity in [*selection.summary.chosen.derived.items()][:3]:
        known = np.isfinite(quantity.standard_error)
        note = "± its standard error" if known else "it has no standard error"
        interval = interval_text(name, selection)
        note += f"; 95%: {interval}" if interval else ""
        verdicts.append((with_error(quantity.value, quantity.standard_error), f"{name} = {quantity.text}; {note}"))
    score = f"{score_text(selection.problem)} per observation (lower is better)"
    verdicts.append((digits(selection.summary.pile), score))
    if readings:
        results = selection.results
        scaled = (results["reading"] - results["left_out"]) / results["left_out_std"]
        error = digits(float(np.sqrt((scaled**2).mean())))
        meaning = "error of readings predicted from all others, in predicted standard deviations (1 is ideal)"
        verdicts.append((error, meaning))
    return tuple(verdicts)


def _solution(selection: Selection) -> Section:
    problem, results = selection.problem, selection.results
    panels: list[Panel] = []
    uncertain = selection.summary.chosen.hyperposterior is not None
    for i, text in enumerate(results["operator"].values.tolist()):
        if results["mean"].ndim == 2:
            panels.append(_along(selection, text, i, uncertain))
        else:
            panels += _over(selection, text, results["mean"][i].values.T, results["std"][i].values.T)
    caption = "Means and standard deviations."
    if results["mean"].ndim == 2:
        caption = f"Means with bands of two standard deviations, and the readings of {problem.unknown}."
        caption += " The inner band takes the chosen numbers as known." if uncertain else ""
    texts = [f"predictions.csv holds {', '.join(problem.operators)} at {len(problem.points)} points."]
    if uncertain:
        texts.append(_uncertainty(selection))
    return Section("The solution", tuple(texts), (Figure("solution", "The solution", caption, tuple(panels)),))


def _uncertainty(selection: Selection) -> str:
    """Return what the standard deviations contain, and how much larger this makes them."""
    results, unknown = selection.results, selection.problem.unknown
    std, known = (results[name].sel(operator=unknown).values.ravel() for name in ("std", "std_known"))
    what = "Standard deviations contain the uncertainty of everything that was chosen"
    counted = (known > 0) & (std > COUNTED_STD * std.max())
    if not counted.any():
        return f"{what}."
    ratio = std[counted] / known[counted]
    median, largest = float(np.median(ratio)), float(ratio.max())
    if largest < HARDLY_LARGER:
        return f"{what}, which makes those of {unknown} at most {100 * max(largest - 1, 0):.0f}% larger."
    return (
        f"{what}. Those of {unknown} in the figure are {digits(median)} times as large as with the chosen numbers "
        f"taken as known (median; the largest ratio is {digits(largest)})."
    )


def _nonlinear(selection: Selection, size: int) -> Section:
    """Return how nonlinear equations were solved, and how good the Gaussian approximation is."""
    solution = selection.summary.solution
    assert solution is not None
    first = (
        f"The equations are nonlinear. Gauss–Newton found their most likely solution: {solution.status} after "
        f"{_many(solution.iterations, 'linearisation')} ({solution.reason}). Scores are those of the model "
        "linearised there, and standard deviations those of linearised models too."
    )
    if np.isfinite(solution.second_order):
        second = (
            f"The exact curvature there would change the log evidence of all {size} observations by "
            f"{digits(-0.5 * size * solution.second_order)} nats: the smaller, the better the approximation."
        )
    else:
        second = "The exact curvature there is not positive: the solution is poorly determined, or there are several."
    return Section("The nonlinear equations", (first, second))


def _along(selection: Selection, text: str, row: int, uncertain: bool) -> Lines:
    """Return an operator along one coordinate; the unknown itself is shown with its readings."""
    results, name = selection.results, selection.problem.box.names[0]
    x, mean, std = results["first"].values, results["mean"][row].values, results["std"][row].values
    curves = [Curve(f"{text}, ± two standard deviations", x, mean, mean - 2 * std, mean + 2 * std, 0)]
    if uncertain:
        mean, std = results["mean_known"][row].values, results["std_known"][row].values
        label = "the same with the chosen numbers taken as known"
        curves.append(Curve(label, x, mean, mean - 2 * std, mean + 2 * std, 0, "dashed"))
    direct = [i for i, block in enumerate(selection.model.data) if str(block.operator) == "Id"]
    shown = np.isin(results["reading_block"].values, direct)
    if text == selection.problem.unknown and shown.any():
        at, measured = results["reading_point"].values[shown, 0], results["reading"].values[shown]
        curves.append(Curve("readings", at, measured, colour=1, style="dots"))
    return Lines(text, name, text, tuple(curves))


def _over(selection: Selection, text: str, mean: np.ndarray, std: np.ndarray) -> list[Panel]:
    """Return pictures of the mean and the standard deviation over two coordinates."""
    results, names = selection.results, selection.problem.box.names
    common: dict[str, Any] = {"x_label": names[0], "y_label": names[1]}
    common |= {"x": results["first"].values, "y": results["second"].values}
    cut = ", ".join(f"{name} = {value:.4g}" for name, value in selection.summary.slice.items())
    where = f" at {cut}" if cut else ""
    signed = bool(min(-mean.min(), mean.max()) > 0.05 * np.abs(mean).max())
    return [
        Picture(f"mean of {text}{where}", z=mean, z_label=text, diverging=signed, **common),
        Picture(f"its standard deviation{where}", z=std, z_label="standard deviation", **common),
    ]


def _readings(selection: Selection) -> Section:
    results = selection.results
    measured, predicted, spread = (results[name].values for name in ("reading", "left_out", "left_out_std"))
    scaled = (measured - predicted) / spread
    beyond = float(np.mean(np.abs(scaled) > 2))
    ends = np.array([min(measured.min(), predicted.min()), max(measured.max(), predicted.max())])
    first = Lines(
        "readings against their predictions",
        "predicted from all other readings",
        "measured",
        (
            Curve("measured", predicted, measured, colour=0, style="dots"),
            Curve("equal", ends, ends, colour=7, style="dashed"),
        ),
    )
    rows = np.arange(1, len(measured) + 1)
    second = Lines(
        "errors in standard deviations",
        "number of the reading",
        "error / predicted standard deviation",
        (Curve("error", rows, scaled, colour=0, style="dots"),),
        (Mark("two standard deviations above", y=2.0), Mark("two standard deviations below", y=-2.0)),
    )
    text = (
        f"Each reading is predicted from all other readings and the physics. {100 * beyond:.0f}% of the errors are "
        "larger than two predicted standard deviations; for a correct model about 5% are."
    )
    caption = "Left: prediction and reading agree on the dashed line. Right: the errors in standard deviations."
    return Section(
        "How well readings are predicted", (text,), (Figure("readings", "Readings", caption, (first, second)),)
    )


def _chosen(selection: Selection) -> Section:
    result = selection.summary.chosen
    quantities = [
        (name, q.text, with_error(q.value, q.standard_error), interval_text(name, selection))
        for name, q in result.derived.items()
    ]
    header = ("quantity", "formula", "value", "95% interval")
    derived = (TextTable("Derived quantities.", header, tuple(quantities)),) if quantities else ()
    rows = []
    for name in ordered(selection):
        bounds = _bounds(selection.problem.over[selection.kernel], name)
        side = result.at_bounds.get(name, "")
        rows.append(
            (
                parameter_text(name, selection.problem),
                chosen_text(name, selection),
                interval_text(name, selection),
                "in closed form" if bounds is None else f"{digits(bounds[0])} to {digits(bounds[1])}",
                f"at its {side} bound" if side else "",
            )
        )
    if not rows:
        fixed = "The problem file fixes all numbers: there was nothing to choose."
        return Section("What was chosen", (fixed,), (), derived)
    text = (
        f"Found by {_many(len(result.descents), 'descent')} on the exact gradient, with {result.evaluations} "
        "evaluations. Standard errors come from the curvature of the score; a number at a bound has none."
    )
    intervals = () if result.hyperposterior is None else (_intervals(result.hyperposterior),)
    left = result.degrees_of_freedom
    freedom = () if left is None else (_freedom(left),)
    chosen = TextTable("Chosen values.", ("number", "chosen", "95% interval", "bounds", ""), tuple(rows))
    figures = _pairs(selection)
    return Section("What was chosen", (text, *freedom, *intervals), figures, (chosen, *derived))


def _intervals(hyper: HyperposteriorSummary) -> str:
    """Return a paragraph about the distribution that intervals come from."""
    return (
        f"Intervals and predictions average over all chosen numbers together: {len(hyper.weights)} weighted models "
        f"with an effective size of {digits(hyper.effective_size)}, from {hyper.evaluations} more scores. They "
        "contain weak priors of hyperparameters, so a number that the observations do not determine can be chosen "
        "outside its interval."
    )


def _pairs(selection: Selection) -> tuple[Figure, ...]:
    """Return pictures of pairs of inferred parameters; the most uncertain hyperparameters are added to a single one."""
    hyper = selection.summary.chosen.hyperposterior
    if hyper is None or len(hyper.draws) < 2:
        return ()
    names = [name for name in selection.problem.inferred if name in hyper.draws][:MOST_PAIRED]
    if len(names) < 2:
        others = sorted((name for name in hyper.draws if name not in names), key=lambda each: -_spread(each, selection))
        added = others[: FILLED_UP - len(names)]
        names += [name for name in hyper.draws if name in added]
    panels = tuple(_pair(first, second, selection) for first, second in itertools.combinations(names, 2))
    caption = (
        "Draws from the distribution of the numbers given all observations: each point is a set of numbers that "
        "explains them. Elongated clouds are pairs of which the observations determine a combination better than each "
        "number."
    )
    return (
        Figure("pairs", "How well the numbers are determined together", caption, panels, 3 if len(panels) > 2 else 2),
    )


def _pair(first: str, second: str, selection: Selection) -> Lines:
    """Return a picture of the draws of two numbers."""
    hyper = selection.summary.chosen.hyperposterior
    assert hyper is not None
    x, y = np.array(hyper.draws[first]), np.array(hyper.draws[second])
    labels = [parameter_text(name, selection.problem) for name in (first, second)]
    x_log, y_log = (bool(0 < LOG_RATIO * each.min() < each.max()) for each in (x, y))
    cloud = Curve("draws", x, y, colour=5, style="dots")
    mark = Mark("chosen", selection.values[first], selection.values[second])
    title = " and ".join(label.removeprefix("kernel.") for label in labels)
    return Lines(title, labels[0], labels[1], (cloud,), (mark,), x_log, y_log)


def _spread(name: str, selection: Selection) -> float:
    """Return the width of the 95% interval, relative to the number."""
    low, _, high = selection.intervals.loc[name]
    return math.log(high / low) if low > 0 else 2.0 * (high - low) / (abs(low) + abs(high))


def _freedom(left: float) -> str:
    """Return a paragraph about the degrees of freedom of the standard errors of inferred parameters."""
    text = "The noise of the data was estimated together with the parameters: "
    text += degrees_text(left)
    if left > 0:
        text += ", the readings minus the parameters and the free constants of the solution, as in least squares"
    return f"{text}."


def _bounds(over: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    """Return the bounds of a hyperparameter or of an element of one; None if it was not searched."""
    element = re.fullmatch(r"(.+)\[(\d+)\]", name)
    base, index = (element[1], int(element[2])) if element and name not in over else (name, 0)
    if base not in over:
        return None
    low, high = map(np.ravel, over[base])
    return float(low[index % low.size]), float(high[index % high.size])  # one bound may serve all elements


def _kernels(selection: Selection) -> Section:
    rows = [
        (
            kernel.name,
            *(digits(number) for number in (kernel.row.pile, kernel.row.nats, kernel.row.probability, kernel.row.fit)),
            _readable_warnings(kernel.row.warnings, kernel.at_bounds, selection),
        )
        for kernel in selection.summary.kernels
    ]
    header = ("kernel", "score", "nats behind", "probability", "fit", "")
    text = (
        "Nats are the log evidence by which the best kernel leads: 3 is clear, 5 is strong. It is integrated over all "
        "chosen numbers, so a kernel with more of them has no advantage. Probabilities are those of the kernels if all "
        "were equally probable before."
    )
    why = selection.summary.why_kernels
    texts = (*([sentence(f"These kernels were tried because {why}")] if why else []), text)
    return Section("Kernels", texts, (), (TextTable("Kernels, best first.", header, tuple(rows), 0),))


def _readable_warnings(text: str, at_bounds: Mapping[str, str], selection: Selection) -> str:
    for name in at_bounds:
        text = text.replace(f"{name} is at", f"{parameter_text(name, selection.problem)} is at")
    return text


def _observations(selection: Selection) -> Section:
    rows = [
        (
            block.name,
            block.observed,
            str(block.size),
            "exact" if block.exact else digits(block.noise),
            "" if block.exact else digits(block.residual),
        )
        for block in selection.summary.blocks
    ]
    text = (
        "Each observation is an operator of the unknown at points, with noise. A residual of about one or less, in "
        "units of the noise, means that the solution agrees with it; a much larger one, that something contradicts it."
    )
    header = ("block", "observed", "values", "noise", "residual / noise")
    return Section("Observations", (text,), (), (TextTable("Observations.", header, tuple(rows)),))
