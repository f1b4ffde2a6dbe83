"""The report of the study of physics-informed networks, made from its dataset and its summary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from ..reports import Curve, Figure, Lines, Picture, Report, Section, TextTable, digits
from .report_parts import checks_section, details, percent
from .runner import seeds_text

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
        value, low, high = _ends(of["scores"]["laplace"])
        verdicts.append(
            (value, f"β = {beta}: rank correlation of PILE with the true error (95% interval: {low} to {high})")
        )
    for name in ("misfit", "training_loss"):
        values = ", ".join(_ends(of["scores"][name])[0] for of in speeds.values())
        verdicts.append((values, f"rank correlation of the {NAMES[name]}"))
    value, low, high = _ends(before["scores"]["before_tangent"]["architectures"])
    verdicts.append(
        (value, f"rank correlation of PILE before training, tangent form, over architectures ({low} to {high})")
    )
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
    sentences = []
    laplace = {beta: of["scores"]["laplace"] for beta, of in speeds.items()}
    sure = [beta for beta, of in laplace.items() if of["interval"][0] > 0]
    values = _at_each({beta: of["value"] for beta, of in laplace.items()})
    sentences.append(f"The rank correlation of PILE (laplace form, fresh points) with the true error is {values}.")
    if len(sure) < len(laplace):
        doubtful = ", ".join(beta for beta in laplace if beta not in sure)
        sentences.append(
            f"At β = {doubtful} its interval includes zero or lower values: it does not rank networks reliably."
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
    values = _at_each({beta: of["scores"][name]["value"] for beta, of in speeds.items()})
    start = f"For {words} it is {values}"
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
    low, high = before["scores"]["before_tangent"]["architectures"]["interval"]
    value = correlation(before["scores"]["before_tangent"]["architectures"]["value"])
    start = (
        f"Over {len(before['rows'])} architectures, PILE before training (tangent form) has a rank correlation of "
        f"{value} with the error after training"
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


def _ends(of: Mapping[str, Any]) -> tuple[str, str, str]:
    low, high = of["interval"]
    return correlation(of["value"]), correlation(low), correlation(high)


def _cell(of: Mapping[str, Any]) -> str:
    value, low, high = _ends(of)
    return f"{value} ({low} to {high})"


def _at_each(values: Mapping[str, float]) -> str:
    """Return a text with the number at each speed."""
    return ", ".join(f"{correlation(value)} at β = {beta}" for beta, value in values.items())


def _listed(values: Any) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _method(summary: Mapping[str, Any]) -> Section:
    settings, speeds = summary["settings"], summary["speeds"]
    inside, start, sides = summary["points"]
    ramps = [ramp for ramp in settings["ramps"] if ramp]
    growing = ""
    if ramps:
        growing = f"constant speed β or a speed that grows to β in the first {percent(ramps[0])} of the steps; "
    rows = tuple(
        (f"β = {beta}", of["networks"], *(of["errors"][name] for name in ("least", "median", "largest")), of["failed"])
        for beta, of in speeds.items()
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
            f"the conditions {_listed(settings['weights'])}; {growing}{seeds_text(settings['seeds'])}; "
            f"{settings['steps']} steps. These settings were chosen by the true errors of a few networks, before any "
            "score was computed. The true error is the relative L² error on a fine grid.",
            "PILE of a network is the log evidence of its linearisation at the trained parameters, with profiled "
            "scales of prior and noise. It uses residuals at fresh points, which were not used for training (except "
            "the periodicity). Each residual is scaled by the variance of its operator under a kernel of length one. "
            "The misfit is the mean square of these scaled residuals. The training loss is the sum of the mean "
            "squared residuals at the training points with equal weights, so it can be compared between networks.",
        ),
        (),
        (
            TextTable(
                "True relative errors of the trained networks.",
                ("speed", "networks", "least error", "median", "largest", "not finite"),
                rows,
            ),
        ),
    )


def _ranking(results: xr.Dataset, speeds: Mapping[str, Any], settings: Mapping[str, Any]) -> Section:
    rows = tuple((NAMES[name], *(_cell(of["scores"][name]) for of in speeds.values())) for name in NAMES)
    behind = tuple(
        (NAMES[name], *(_cell(of["scores"][name]["behind"]) for of in speeds.values()))
        for name in NAMES
        if name != "laplace"
    )
    header = tuple(f"β = {beta}" for beta in speeds)
    kinds = {
        "laplace": ("PILE, laplace", False),
        "misfit": ("misfit at fresh points", True),
        "training_loss": ("training loss", True),
        "tangent": ("PILE, tangent", False),
    }
    captions = {
        "laplace": "If a score ranks networks like their errors, the dots rise from left to right.",
        "misfit": "The misfit has the scaled residuals at fresh points, but no term for parameters or determinants.",
        "training_loss": "The training loss has the residuals at the training points.",
        "tangent": "The tangent form depends on the architecture and the trained parameters, not on the solution.",
    }
    figures = [
        Figure(
            f"error_{name}",
            f"{NAMES[name]}, and the true error",
            f"True error and score of every network, at each β. {captions[name]} Rank correlations: "
            f"{_at_each({beta: of['scores'][name]['value'] for beta, of in speeds.items()})}.",
            tuple(_scatter(results, name, beta, *kinds[name]) for beta in speeds),
            columns=3,
        )
        for name in kinds
    ]
    resamples = f"{settings['resamples']} resamples of the networks"
    return Section(
        "Which score ranks trained networks?",
        (
            f"{ranking(speeds)} {compared_with(speeds, 'tangent', 'the tangent form')} {failures_text(speeds)}".strip(),
            "The networks share points and settings. The intervals hold for other networks of this kind, not for other "
            "equations.",
        ),
        tuple(figures),
        (
            TextTable(
                f"Rank correlations with the true error, with 95% bootstrap intervals from {resamples}.",
                ("score", *header),
                rows,
                strong=0,
            ),
            TextTable(
                "Rank correlation of PILE (laplace, fresh points) minus the rank correlation of another score, with "
                "95% bootstrap intervals. A difference whose interval includes zero is not significant.",
                ("score", *header),
                behind,
            ),
        ),
    )


def _scatter(results: xr.Dataset, name: str, beta: str, label: str, log: bool) -> Lines:
    error, score, ramp = (results[column].sel(beta=float(beta)).values for column in ("error", name, "ramp"))
    curves = []
    for colour, (label_text, which) in enumerate((("constant speed", ramp == 0), ("growing speed", ramp > 0))):
        if which.any():
            curves.append(Curve(label_text, score[which], error[which], colour=colour, style="dots"))
    return Lines(
        title=f"β = {beta}",
        x_label=label,
        y_label="true relative error",
        curves=tuple(curves),
        x_log=log,
        y_log=True,
    )


def _choosing(results: xr.Dataset, speeds: Mapping[str, Any]) -> Section:
    rows = [(NAMES[name], *(of["scores"][name]["chosen_error"] for of in speeds.values())) for name in NAMES]
    rows.append(("least of all networks", *(of["errors"]["least"] for of in speeds.values())))
    panels = []
    for beta in speeds:
        at_beta = results.sel(beta=float(beta))
        fields = {
            "solution": "solution",
            "least PILE": "by_laplace",
            "least training loss": "by_training_loss",
            "least true error": "by_error",
        }
        panels += [
            Picture(
                f"β = {beta}: {title}", "t", "x", at_beta["t"].values, at_beta["x"].values, at_beta[name].values.T, "u",
                limits=(-1.2, 1.2),
            )
            for title, name in fields.items()
        ]  # fmt: skip
    return Section(
        "Which network would be chosen?",
        ("A user would keep the network with the lowest score. The table shows its true error, for each score.",),
        (
            Figure(
                "chosen",
                "The chosen networks",
                "The solution, and the networks with the least PILE (laplace, fresh points), the least training loss "
                "and the least true error.",
                tuple(panels),
                columns=4,
            ),
        ),
        (
            TextTable(
                "True relative error of the network with the lowest score.",
                ("chosen by", *(f"β = {beta}" for beta in speeds)),
                tuple(rows),
                strong=0,
            ),
        ),
    )


def _before(results: xr.Dataset, before: Mapping[str, Any]) -> Section:
    rows = tuple((BEFORE[name], *(_cell(before["scores"][name][which]) for which in ("architectures", "all")))
                 for name in BEFORE)  # fmt: skip
    ordered = sorted(before["rows"], key=lambda row: (row["error"] is None, row["error"]))
    names = ("before_tangent", "before_linearised", "before_laplace", "error")
    table = tuple((row["label"], row["size"], *(row[name] for name in names), _span(row["errors"])) for row in ordered)
    count, seeds = len(before["rows"]), before["networks"] // len(before["rows"])
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
        for name in ("before_tangent", "before_linearised", "before_laplace", "after_laplace")
    )  # fmt: skip
    return Section(
        "Before training: which architecture?",
        (
            f"{count} architectures differ in width, depth, activation, Fourier features and the scale of the first "
            f"layer; {seeds_text(seeds)} each. Each network is scored at its random initial parameters. Then all are "
            f"trained in the same way at β = {digits(before['beta'])}, with a growing speed. A useful score has a "
            "positive rank correlation: it is low where the error after training is low.",
            f"{before_training(before)} {_other_forms(before)}",
        ),
        (
            Figure(
                "before_training",
                "Evidence before training and error after training",
                "Three forms of PILE at the random initial parameters, against the true error after training; and the "
                "laplace form after training, for comparison.",
                panels,
            ),
        ),
        (
            TextTable(
                "Rank correlations with the error after training: over architectures (mean score and median error of "
                "the seeds) and over all networks, with 95% bootstrap intervals over architectures.",
                ("score", f"{count} architectures", f"{before['networks']} networks"),
                rows,
            ),
            TextTable(
                "The architectures (activation, hidden layers × width), sorted by error.",
                ("architecture", "parameters", "tangent", "linearised", "laplace", "median error", "least to largest"),
                table,
            ),
        ),
    )


def _other_forms(before: Mapping[str, Any]) -> str:
    """Return sentences on the other forms, and on the architecture that PILE would choose."""
    words = {"before_linearised": "the linearised form", "before_laplace": "the laplace form"}
    parts = [f"{_cell(before['scores'][name]['architectures'])} for {text}" for name, text in words.items()]
    size = _cell(before["scores"]["size"]["architectures"])
    trained = [row for row in before["rows"] if row["error"] is not None and math.isfinite(row["error"])]
    chosen, best = (min(trained, key=lambda row: row[name]) for name in ("before_tangent", "error"))
    after = _cell(before["scores"]["after_laplace"]["architectures"])
    return (
        f"Before training it is {' and '.join(parts)}, and {size} for the number of parameters. After training it is "
        f"{after} for the laplace form. The architecture with the lowest tangent form before training, "
        f"{chosen['label']}, ends with the error {digits(chosen['error'])}. The best architecture, {best['label']}, "
        f"ends with {digits(best['error'])}."
    )


def _span(errors: list[float]) -> str:
    finite = [value for value in errors if value is not None and np.isfinite(value)]
    return f"{digits(min(finite))} to {digits(max(finite))}" if finite else "—"
