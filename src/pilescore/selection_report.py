"""The report of a selection: what was chosen, the solution, what is wrong with it, how well readings are predicted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from .charts import Curve, Figure, Lines, Mark, Panel, Picture, Report, Section, TextTable, digits
from .findings import Finding
from .problems import parameter_text
from .selections import Selection


def selection_report(selection: Selection) -> Report:
    """Return what the page of a selection says."""
    summary, problem = selection.summary, selection.problem
    readings = sum(block["size"] for block in summary["blocks"] if block["role"] == "data")
    imposed = sum(block["size"] for block in summary["blocks"] if block["role"] == "physics")
    count = len(summary["kernels"])
    chosen = f"What was open was chosen by {_score(summary)}"
    chosen += f"; of {count} kernels {selection.kernel} is best." if count > 1 else "."
    lead = (
        f"{problem.unknown}({', '.join(problem.box.names)}) from {_many(readings, 'reading')} and from equations and "
        f"conditions at {_many(imposed, 'node')}. {chosen}"
    )
    diagnosis = _diagnosis(selection)
    failed = any(each.severity == "failure" for each in selection.diagnosis)
    sections = [
        *([diagnosis] if failed else []),
        *([Section("Caution", tuple(_sentence(text) for text in summary["warnings"]))] if summary["warnings"] else []),
        _solution(selection),
        *([_solved(summary["solved"], readings + imposed)] if summary.get("solved") else []),
        *([] if failed else [diagnosis]),
        *([_readings(selection)] if readings else []),
        _chosen(selection),
        *([_kernels(selection)] if count > 1 else []),
        _understood(summary),
    ]
    details = [("problem file", summary["settings"]["file"]), ("score", summary["score"])]
    details += [(f"{name} version", version) for name, version in summary["versions"].items()]
    return Report(summary["title"], lead, _verdicts(selection, readings), tuple(sections), tuple(details))


def chosen_text(name: str, selection: Selection) -> str:
    """Return a chosen value with its standard error; a positive one may be hardly determined."""
    value, error = selection.values[name], selection.standard_errors[name]
    return with_error(value, error, name not in selection.problem.inferred and "theta" not in name)


def with_error(value: float, error: float | None, positive: bool = False) -> str:
    """Return a number with its standard error, to the digits that the error leaves."""
    if error is None or not np.isfinite(error) or error <= 0:
        return digits(value)
    if positive and error > value:
        return f"{digits(value)}, hardly determined"
    places = max(0, min(12, 1 - int(np.floor(np.log10(error)))))
    if abs(value) >= 1e5 or abs(value) < 1e-3 or error < 1e-9:
        return f"{digits(value)} ± {digits(error)}"
    return f"{value:.{places}f} ± {error:.{places}f}".replace("-", "−")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def ordered(selection: Selection) -> list[str]:
    """Return the names of what was chosen, inferred parameters first."""
    inferred = [name for name in selection.problem.inferred if name in selection.values]
    return inferred + [name for name in selection.values if name not in inferred]


def _score(summary: Mapping[str, Any]) -> str:
    return "PILE" if summary["score"] == "PILE" else "PILE of the data given the physics"


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _verdicts(selection: Selection, readings: int) -> tuple[tuple[str, str], ...]:
    errors, found = selection.standard_errors, []
    for name in selection.problem.inferred[:3]:
        known = np.isfinite(errors[name])
        note = "inferred, ± its standard error" if known else "inferred; it has no standard error"
        found.append((with_error(selection.values[name], errors[name]), f"{name}, {note}"))
    found.append((digits(selection.summary["pile"]), f"{_score(selection.summary)} per observation (lower is better)"))
    if readings:
        results = selection.results
        scaled = (results["reading"] - results["left_out"]) / results["left_out_std"]
        found.append(
            (
                digits(float(np.sqrt((scaled**2).mean()))),
                "error of readings predicted from all others, in predicted deviations (1 is right)",
            )
        )
    return tuple(found)


def _solution(selection: Selection) -> Section:
    problem, results = selection.problem, selection.results
    panels: list[Panel] = []
    for text, mean, std in zip(results["operator"].values.tolist(), results["mean"], results["std"], strict=True):
        if mean.ndim == 1:
            panels.append(_along(selection, text, mean.values, std.values))
        else:
            panels += _over(selection, text, mean.values.T, std.values.T)
    caption = "Means, and standard deviations."
    if results["mean"].ndim == 2:
        caption = f"Means with bands of two deviations, and the readings of {problem.unknown} itself."
    predicted = f"predictions.csv has {', '.join(problem.operators)} with deviations at {len(problem.points)} points."
    return Section("The solution", (predicted,), (Figure("solution", "The solution", caption, tuple(panels)),))


def _solved(solved: Mapping[str, Any], size: int) -> Section:
    """Return how nonlinear equations were solved, and how good the Gaussian approximation there is."""
    first = (
        f"The equations are nonlinear. Their most likely solution was sought by Gauss–Newton: {solved['status']} after "
        f"{_many(solved['iterations'], 'linearisation')} ({solved['reason']}). Scores and deviations are those of the "
        "model linearised there."
    )
    if solved["second_order"] is None:
        second = "The exact curvature there is not positive: the solution is hardly determined, or there are several."
    else:
        second = (
            f"The exact curvature there would change the log evidence of all {size} observations by "
            f"{digits(-0.5 * size * solved['second_order'])} nats: the less, the better the approximation."
        )
    return Section("The nonlinear equations", (first, second))


def _along(selection: Selection, text: str, mean: np.ndarray, std: np.ndarray) -> Lines:
    """Return an operator along one coordinate, with the readings of the unknown where it is that."""
    results, name = selection.results, selection.problem.box.names[0]
    x = results["first"].values
    curves = [Curve(f"{text}, ± two deviations", x, mean, mean - 2 * std, mean + 2 * std, 0)]
    direct = [i for i, block in enumerate(selection.model.data) if str(block.operator) == "Id"]
    shown = np.isin(results["reading_block"].values, direct)
    if text == selection.problem.unknown and shown.any():
        at, measured = results["reading_point"].values[shown, 0], results["reading"].values[shown]
        curves.append(Curve("readings", at, measured, colour=1, style="dots"))
    return Lines(text, name, text, tuple(curves))


def _over(selection: Selection, text: str, mean: np.ndarray, std: np.ndarray) -> list[Panel]:
    """Return pictures of mean and deviation over two coordinates."""
    results, names = selection.results, selection.problem.box.names
    common: dict[str, Any] = {"x_label": names[0], "y_label": names[1]}
    common |= {"x": results["first"].values, "y": results["second"].values}
    cut = ", ".join(f"{name} = {value:.4g}" for name, value in selection.summary["slice"].items())
    where = f" at {cut}" if cut else ""
    signed = bool(min(-mean.min(), mean.max()) > 0.05 * np.abs(mean).max())
    return [
        Picture(f"mean of {text}{where}", z=mean, z_label=text, diverging=signed, **common),
        Picture(f"its standard deviation{where}", z=std, z_label="deviation", **common),
    ]


def _diagnosis(selection: Selection) -> Section:
    """Return what was found in the chosen model, the worst first, and what was not."""
    found = selection.diagnosis
    parts = []
    for status, verbs in (("fine", ("is fine", "are fine")), ("skipped", ("does not apply", "do not apply"))):
        names = [_name(each) for each in found.checked if each.status == status]
        if names:
            parts.append(f"{len(names)} {verbs[len(names) > 1]} ({', '.join(names)})")
    text = f"of {len(found.checked)} checks, {', and '.join(parts)}"
    if not found.findings:
        return Section("Diagnosis", (f"Nothing was found: {text}.",))
    rows = [(each.severity, _name(each), _measured(each), each.meaning, _sentence(each.advice)) for each in found]
    header = ("", "finding", "measured", "what it means", "what to try")
    tables = [TextTable("Findings, the most severe first.", header, tuple(rows))]
    if "outliers" in found:
        tables.append(_outliers(selection, found["outliers"]))
    return Section("Diagnosis", (_sentence(text),), (), tuple(tables))


def _name(finding: Finding) -> str:
    return finding.name.replace("_", " ")


def _measured(finding: Finding) -> str:
    side = "below" if finding.below else "above"
    return f"{_sentence(finding.measure)[:-1]} {digits(finding.value)}; it fires {side} {digits(finding.threshold)}."


def _outliers(selection: Selection, finding: Finding) -> TextTable:
    """Return the readings that stand out, with where they were taken."""
    results, names = selection.results, selection.problem.box.names
    labels = list(selection.model.labels)
    rows = []
    for each in finding.details["outliers"]:
        first = int(np.flatnonzero(results["reading_block"].values == labels.index(each["block"]))[0])
        point = results["reading_point"].values[first + each["index"]]
        where = ", ".join(f"{name} = {value:.4g}" for name, value in zip(names, point, strict=True))
        numbers = (each["value"], each["predicted"], each["deviations"])
        rows.append((each["block"], where, *map(digits, numbers)))
    header = ("readings", "where", "measured", "predicted", "robust deviations")
    return TextTable("Outliers, beside what all other readings and the physics predict.", header, tuple(rows))


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
        "errors in deviations",
        "number of the reading",
        "error / predicted deviation",
        (Curve("error", rows, scaled, colour=0, style="dots"),),
        (Mark("two deviations above", y=2.0), Mark("two deviations below", y=-2.0)),
    )
    text = (
        f"Each reading is predicted from all the others and the physics, without itself. {100 * beyond:.0f}% of the "
        "errors are larger than two predicted deviations; of a model that is right, about 5% are."
    )
    caption = "Left: on the dashed line prediction and reading agree. Right: the same errors in predicted deviations."
    return Section(
        "How well readings are predicted", (text,), (Figure("readings", "Readings", caption, (first, second)),)
    )


def _chosen(selection: Selection) -> Section:
    summary = next(each for each in selection.summary["kernels"] if each["name"] == selection.kernel)
    over = selection.problem.over[selection.kernel]
    rows = []
    for name in ordered(selection):
        low, high = _bounds(over, name)
        side = summary["at_bounds"].get(name, "")
        rows.append(
            (
                parameter_text(name, selection.problem),
                chosen_text(name, selection),
                f"{digits(low)} to {digits(high)}",
                f"at its {side} bound" if side else "",
            )
        )
    text = (
        f"Found by {_many(len(summary['runs']), 'descent')} on the exact gradient, with {summary['evaluations']} "
        "evaluations. Standard errors are by the curvature of the score; there is none at a bound."
    )
    if not rows:
        return Section("What was chosen", ("All numbers were fixed by the problem file: there was nothing to choose.",))
    header = ("number", "chosen", "bounds", "")
    return Section("What was chosen", (text,), (), (TextTable("Chosen values.", header, tuple(rows)),))


def _bounds(over: Mapping[str, Any], name: str) -> tuple[float, float]:
    """Return the bounds of a hyperparameter, or of an element of one."""
    element = re.fullmatch(r"(.+)\[(\d+)\]", name)
    if name in over or element is None:
        low, high = over[name]
        return float(low), float(high)
    low, high = over[element[1]]
    index = int(element[2])
    return float(np.ravel(low)[index % np.size(low)]), float(np.ravel(high)[index % np.size(high)])


def _kernels(selection: Selection) -> Section:
    rows = [
        (
            each["name"],
            digits(each["row"]["pile"]),
            digits(each["row"]["nats"]),
            digits(each["row"]["penalised"]),
            digits(each["row"]["fit"]),
            _warnings(each, selection),
        )
        for each in selection.summary["kernels"]
    ]
    header = ("kernel", "score", "nats behind", "after penalty", "fit", "")
    text = (
        "Nats are log evidence that the best has more: 3 is clear, 5 is strong. The penalty charges each chosen number "
        "half the logarithm of the number of observations; the ranking is by that."
    )
    return Section("Kernels", (text,), (), (TextTable("Kernels, best first.", header, tuple(rows), 0),))


def _warnings(kernel: Mapping[str, Any], selection: Selection) -> str:
    text = str(kernel["row"]["warnings"] or "")
    for name in kernel["at_bounds"]:
        text = text.replace(f"{name} is at", f"{parameter_text(name, selection.problem)} is at")
    return text


def _understood(summary: Mapping[str, Any]) -> Section:
    rows = [
        (block["name"], block["observed"], str(block["size"]), digits(block["noise"]), digits(block["residual"]))
        for block in summary["blocks"]
    ]
    text = (
        "Everything known of the unknown is an operator of it at points, with noise. A residual of about one or "
        "less, in deviations of that noise, says that the solution agrees with it; a much larger one, that "
        "something contradicts it."
    )
    header = ("what", "observed", "values", "noise", "residual / noise")
    return Section("What went in", (text,), (), (TextTable("Observations.", header, tuple(rows)),))
