"""The report of the study of physics-informed networks, made from its dataset and its summary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from ..reports import Curve, Figure, Lines, Report, Section, TextTable, digits
from .report_parts import checks_section, details, percent, picture
from .runner import counted

NAMES = {
    "laplace": "PILE: laplace, fresh points",
    "linearised": "PILE: linearised",
    "tangent": "PILE: tangent",
    "last_layer": "PILE: laplace, last layer only",
    "training_points": "PILE: laplace, training points",
    "misfit": "misfit only, fresh points",
    "training_loss": "training loss",
}
BEFORE = {
    "before_tangent": "tangent, before training",
    "before_linearised": "linearised, before training",
    "before_laplace": "laplace, before training",
    "size": "number of parameters, more is better",
    "after_laplace": "laplace, after training",
    "after_misfit": "misfit only, after training",
}
FAILURE = 0.5
"""The relative error above which a network has failed. The zero function has the error one."""


def report(results: xr.Dataset, summary: Mapping[str, Any]) -> Report:
    """Return the report of the study of physics-informed networks."""
    speeds, before = summary["speeds"], summary["architectures"]
    verdicts = []
    for beta, of in speeds.items():
        value, interval = _value_and_interval(of["scores"]["laplace"])
        verdicts.append((value, f"β = {beta}: rank correlation of PILE with the true error (95% interval: {interval})"))
    for name in ("misfit", "training_loss"):
        values = ", ".join(correlation(of["scores"][name]["value"]) for of in speeds.values())
        verdicts.append((values, f"rank correlation of the {NAMES[name]}"))
    value, interval = _value_and_interval(before["scores"]["before_tangent"]["architectures"])
    what = f"rank correlation of PILE before training, tangent form, over architectures ({interval})"
    verdicts.append((value, what))
    return Report(
        title="Physics-informed networks: does PILE rank them by their true error?",
        lead=(
            "Small networks are trained on the convection equation with many settings. Many of them fail, and the "
            "training loss does not show it. The solution is known here. Which score that needs no solution ranks the "
            "networks like their true errors? And does the evidence before training predict which architecture will "
            f"train well? {ranking(speeds)} {before_training(before)}"
        ),
        verdicts=tuple(verdicts),
        sections=(
            _method(summary),
            _ranking(results, speeds, summary["settings"]),
            _choosing(results, speeds),
            _before(results, before),
            checks_section(summary),
        ),
        details=(*details(summary), ("optax version", summary["optax"])),
    )


def ranking(speeds: Mapping[str, Any]) -> str:
    """Return sentences on the rank correlations of trained networks. They state only what the intervals support."""
    values = _at_each(speeds, "laplace")
    sentences = [f"The rank correlation of PILE (laplace form, fresh points) with the true error is {values}."]
    doubtful = [beta for beta, of in speeds.items() if not of["scores"]["laplace"]["interval"][0] > 0]
    if doubtful:
        sentences.append(
            f"At β = {', '.join(doubtful)} its interval includes zero or lower values: it does not rank networks "
            "reliably."
        )
    sentences.append(compared_with(speeds, "misfit", "the misfit at fresh points"))
    sentences.append(compared_with(speeds, "training_loss", "the training loss"))
    return " ".join(sentences)


def failures_text(speeds: Mapping[str, Any]) -> str:
    """Return a sentence on speeds at which all networks failed."""
    failures = [beta for beta, of in speeds.items() if of["errors"]["least"] > FAILURE]
    if not failures:
        return ""
    return (
        f"At β = {', '.join(failures)} no network has an error below {digits(FAILURE)}: there the scores rank failed "
        "networks only."
    )


def compared_with(speeds: Mapping[str, Any], name: str, words: str) -> str:
    """Return a sentence that compares PILE (laplace) with another score, by the intervals of the difference."""
    intervals = {beta: of["scores"][name]["behind"]["interval"] for beta, of in speeds.items()}
    better = [beta for beta, (low, _) in intervals.items() if low > 0]
    worse = [beta for beta, (_, high) in intervals.items() if high < 0]
    start = f"For {words} it is {_at_each(speeds, name)}"
    if not better and not worse:
        return f"{start}. No difference from PILE is significant."
    parts = []
    if better:
        parts.append(f"PILE ranks better at β = {', '.join(better)}")
    if worse:
        parts.append(f"PILE ranks worse at β = {', '.join(worse)}")
    if len(better) + len(worse) < len(intervals):
        parts.append("the other differences are not significant")
    return f"{start}. {', and '.join(parts)} (95% interval of the difference)."


def before_training(before: Mapping[str, Any]) -> str:
    """Return a sentence on the evidence before training. It states only what the interval supports."""
    tangent = before["scores"]["before_tangent"]["architectures"]
    low, high = tangent["interval"]
    start = (
        f"Over {len(before['rows'])} architectures, PILE before training (tangent form) has a rank correlation of "
        f"{correlation(tangent['value'])} with the error after training"
    )
    if low is None or not math.isfinite(low):  # JSON has no NaN
        return f"{start}. There are too few architectures for an interval."
    if low > 0:
        return f"{start}: it predicts which of them train better."
    if high < 0:
        return f"{start}: the architectures that it prefers train worse."
    return (
        f"{start}. The interval from {correlation(low)} to {correlation(high)} includes zero, so it does not predict "
        "reliably which of them train better."
    )


def correlation(value: float | int | None) -> str:
    """Format a correlation with two decimal places, or a dash if it is missing."""
    if value is None or not math.isfinite(value):
        return "—"
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")


def _value_and_interval(of: Mapping[str, Any]) -> tuple[str, str]:
    return correlation(of["value"]), " to ".join(map(correlation, of["interval"]))


def _cell(of: Mapping[str, Any]) -> str:
    value, interval = _value_and_interval(of)
    return f"{value} ({interval})"


def _at_each(speeds: Mapping[str, Any], name: str) -> str:
    """Return a text with the rank correlation of a score at each speed."""
    return ", ".join(f"{correlation(of['scores'][name]['value'])} at β = {beta}" for beta, of in speeds.items())


def _listed(values: Any) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _method(summary: Mapping[str, Any]) -> Section:
    settings = summary["settings"]
    inside, start, sides = summary["points"]
    ramps = [ramp for ramp in settings["ramps"] if ramp]
    growing = ""
    if ramps:
        growing = f"constant speed β or a speed that grows to β in the first {percent(ramps[0])} of the steps; "
    table = TextTable(
        "True relative errors of the trained networks.",
        ("speed", "networks", "least error", "median", "largest", "not finite"),
        tuple(
            (f"β = {beta}", of["networks"], *of["errors"].values(), of["failed"])
            for beta, of in summary["speeds"].items()
        ),
    )
    return Section(
        "Method",
        (
            "u_t + β u_x = 0 for t in [0, 1] and x in [0, 2π], periodic in x, u = sin x at t = 0. The solution is "
            "sin(x − βt). Networks with three hidden layers and tanh are trained by Adam in float32. The loss is the "
            f"mean squared residual of the equation at {inside} random points, plus a weight times the mean squared "
            f"residuals of the initial values at {start} points and of the periodicity at {sides} points. Training is "
            "known to fail often for large β.",
            f"At each β there are {summary['networks']} networks: widths {_listed(settings['widths'])}; weights of "
            f"the conditions {_listed(settings['weights'])}; {growing}{counted(settings['seeds'], 'seed')}; "
            f"{settings['steps']} steps. These settings were chosen by the true errors of a few networks, before any "
            "score was computed. The true error is the relative L² error on a fine grid.",
            "PILE of a network is the log evidence of its linearisation at the trained parameters, with profiled "
            "scales of prior and noise. It uses residuals at fresh points, which were not used for training (except "
            "the periodicity). Each residual is scaled by the variance of its operator under a kernel of length one. "
            "The misfit is the mean square of these scaled residuals. The training loss is the sum of the mean "
            "squared residuals at the training points with equal weights, so it can be compared between networks.",
        ),
        tables=(table,),
    )


def _ranking(results: xr.Dataset, speeds: Mapping[str, Any], settings: Mapping[str, Any]) -> Section:
    rows = tuple((NAMES[name], *(_cell(of["scores"][name]) for of in speeds.values())) for name in NAMES)
    behind = tuple(
        (NAMES[name], *(_cell(of["scores"][name]["behind"]) for of in speeds.values()))
        for name in NAMES
        if name != "laplace"
    )
    header = tuple(f"β = {beta}" for beta in speeds)
    labels = {
        "laplace": "PILE, laplace",
        "misfit": "misfit at fresh points",
        "training_loss": "training loss",
        "tangent": "PILE, tangent",
    }
    captions = {
        "laplace": "If a score ranks networks like their errors, the dots rise from left to right.",
        "misfit": "The misfit has the scaled residuals at fresh points, but no term for parameters or determinants.",
        "training_loss": "The training loss has the residuals at the training points.",
        "tangent": "The tangent form depends on the architecture and the trained parameters, not on the solution.",
    }
    figures = tuple(
        Figure(
            f"error_{name}",
            f"{NAMES[name]}, and the true error",
            f"True error and score of every network, at each β. {captions[name]} Rank correlations: "
            f"{_at_each(speeds, name)}.",
            tuple(_scatter(results, name, beta, label) for beta in speeds),
            columns=3,
        )
        for name, label in labels.items()
    )
    tables = (
        TextTable(
            "Rank correlations with the true error, with 95% bootstrap intervals from "
            f"{settings['resamples']} resamples of the networks.",
            ("score", *header),
            rows,
            strong=0,
        ),
        TextTable(
            "Rank correlation of PILE (laplace, fresh points) minus the rank correlation of another score, with 95% "
            "bootstrap intervals. A difference whose interval includes zero is not significant.",
            ("score", *header),
            behind,
        ),
    )
    return Section(
        "Which score ranks trained networks?",
        (
            f"{ranking(speeds)} {compared_with(speeds, 'tangent', 'the tangent form')} {failures_text(speeds)}".strip(),
            "The networks share points and settings. The intervals hold for other networks of this kind, not for other "
            "equations.",
        ),
        figures,
        tables,
    )


def _scatter(results: xr.Dataset, name: str, beta: str, label: str) -> Lines:
    error, score, ramp = (results[column].sel(beta=float(beta)).values for column in ("error", name, "ramp"))
    curves = tuple(
        Curve(speed, score[which], error[which], colour=colour, style="dots")
        for colour, (speed, which) in enumerate((("constant speed", ramp == 0), ("growing speed", ramp > 0)))
        if which.any()
    )
    # PILE is a logarithm already, and may be negative.
    return Lines(f"β = {beta}", label, "true relative error", curves, x_log="PILE" not in label, y_log=True)


def _choosing(results: xr.Dataset, speeds: Mapping[str, Any]) -> Section:
    rows = [(NAMES[name], *(of["scores"][name]["chosen_error"] for of in speeds.values())) for name in NAMES]
    rows.append(("least of all networks", *(of["errors"]["least"] for of in speeds.values())))
    fields = {
        "solution": "solution",
        "by_laplace": "least PILE",
        "by_training_loss": "least training loss",
        "by_error": "least true error",
    }
    figure = Figure(
        "chosen",
        "The chosen networks",
        "The solution, and the networks with the least PILE (laplace, fresh points), the least training loss and the "
        "least true error.",
        tuple(
            picture(f"β = {beta}: {title}", results[name].sel(beta=float(beta)), "u", limits=(-1.2, 1.2))
            for beta in speeds
            for name, title in fields.items()
        ),
        columns=4,
    )
    header = ("chosen by", *(f"β = {beta}" for beta in speeds))
    return Section(
        "Which network would be chosen?",
        ("A user would keep the network with the lowest score. The table shows its true error, for each score.",),
        (figure,),
        (TextTable("True relative error of the network with the lowest score.", header, tuple(rows), strong=0),),
    )


def _before(results: xr.Dataset, before: Mapping[str, Any]) -> Section:
    forms = ("before_tangent", "before_linearised", "before_laplace")
    ordered = sorted(before["rows"], key=lambda row: (row["error"] is None, row["error"]))
    count, seeds = len(before["rows"]), before["networks"] // len(before["rows"])
    tables = (
        TextTable(
            "Rank correlations with the error after training: over architectures (mean score and median error of the "
            "seeds) and over all networks, with 95% bootstrap intervals over architectures.",
            ("score", f"{count} architectures", f"{before['networks']} networks"),
            tuple((text, *map(_cell, before["scores"][name].values())) for name, text in BEFORE.items()),
        ),
        TextTable(
            "The architectures (activation, hidden layers × width), sorted by error.",
            ("architecture", "parameters", "tangent", "linearised", "laplace", "median error", "least to largest"),
            tuple(
                (row["label"], row["size"], *(row[form] for form in forms), row["error"], _span(row["errors"]))
                for row in ordered
            ),
        ),
    )
    error = results["after_error"].values
    panels = tuple(
        Lines(
            title=BEFORE[name],
            x_label="PILE",
            y_label="true relative error after training",
            curves=(
                Curve("each network", results[name].values.ravel(), error.ravel(), colour=0, style="dots"),
                Curve("architecture: mean score, median error", [row[name] for row in before["rows"]],
                      [row["error"] for row in before["rows"]], colour=1, style="dots"),
            ),
            y_log=True,
        )
        for name in (*forms, "after_laplace")
    )  # fmt: skip
    figure = Figure(
        "before_training",
        "Evidence before training and error after training",
        "Three forms of PILE at the random initial parameters, against the true error after training; and the laplace "
        "form after training, for comparison.",
        panels,
    )
    return Section(
        "Before training: which architecture?",
        (
            f"{count} architectures differ in width, depth, activation, Fourier features and the scale of the first "
            f"layer; {counted(seeds, 'seed')} each. Each network is scored at its random initial parameters. Then all "
            f"are trained in the same way at β = {digits(before['beta'])}, with a growing speed. A useful score has a "
            "positive rank correlation: it is low where the error after training is low.",
            f"{before_training(before)} {_other_forms(before)}",
        ),
        (figure,),
        tables,
    )


def _other_forms(before: Mapping[str, Any]) -> str:
    """Return sentences on the other forms, and on the architecture that PILE would choose."""
    cells = {name: _cell(score["architectures"]) for name, score in before["scores"].items()}
    trained = [row for row in before["rows"] if row["error"] is not None and math.isfinite(row["error"])]
    chosen, best = (min(trained, key=lambda row: row[name]) for name in ("before_tangent", "error"))
    return (
        f"Before training it is {cells['before_linearised']} for the linearised form and {cells['before_laplace']} for "
        f"the laplace form, and {cells['size']} for the number of parameters. After training it is "
        f"{cells['after_laplace']} for the laplace form. The architecture with the lowest tangent form before "
        f"training, {chosen['label']}, ends with the error {digits(chosen['error'])}. The best architecture, "
        f"{best['label']}, ends with {digits(best['error'])}."
    )


def _span(errors: list[float]) -> str:
    finite = [value for value in errors if value is not None and np.isfinite(value)]
    return f"{digits(min(finite))} to {digits(max(finite))}" if finite else "—"
