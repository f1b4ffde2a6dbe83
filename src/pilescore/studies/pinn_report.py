"""What the study of physics-informed networks shows and says, from its dataset and its summary alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from pilescore.charts import Curve, Figure, Lines, Picture, Report, Section, TextTable, digits

from .words import checks_table, details, percent

NAMES = {
    "laplace": "PILE: laplace, fresh points",
    "linearised": "PILE: linearised",
    "tangent": "PILE: tangent",
    "last_layer": "PILE: laplace, last layer alone",
    "training_points": "PILE: laplace, training points",
    "misfit": "misfit alone, fresh points",
    "training_loss": "training loss",
}
BEFORE = {
    "before_tangent": "tangent, before training",
    "before_linearised": "linearised, before training",
    "before_laplace": "laplace, before training",
    "size": "more parameters",
    "after_laplace": "laplace, after training",
    "after_misfit": "misfit alone, after training",
}


FAILURE = 0.5
"""The relative error from which on a network is far from the solution: that of zero is one."""


def report(results: xr.Dataset, summary: Mapping[str, Any]) -> Report:
    """Return the report of the study of physics-informed networks."""
    speeds, found = summary["speeds"], summary["architectures"]
    verdicts = []
    for beta, of in speeds.items():
        value, low, high = _ends(of["scores"]["laplace"])
        verdicts.append((value, f"β = {beta}: rank correlation of PILE with the true error (95%: {low} to {high})"))
    for name in ("misfit", "training_loss"):
        values = ", ".join(_ends(of["scores"][name])[0] for of in speeds.values())
        verdicts.append((values, f"the same for the {NAMES[name]}"))
    value, low, high = _ends(found["scores"]["before_tangent"]["architectures"])
    verdicts.append((value, f"of the tangent form before training, over architectures (95%: {low} to {high})"))
    return Report(
        title="Physics-informed networks: does PILE know which one is right?",
        lead=(
            "Small networks are trained to satisfy the convection equation, with many settings, and many of them "
            "fail without saying so. The solution is known. Which number, of those that need no solution, ranks the "
            "networks as their true errors do? And does evidence before training tell which architecture will train "
            f"well? {ranking(speeds)} {before_training(found)}"
        ),
        verdicts=tuple(verdicts),
        sections=(
            _setting(summary),
            _ranking(results, speeds, summary["settings"]),
            _choosing(results, speeds),
            _before(results, found),
            checks_table(summary),
        ),
        details=(*details(summary), ("optax version", summary["optax"])),
    )


def ranking(speeds: Mapping[str, Any]) -> str:
    """Return what the rank correlations say of trained networks, no more than was measured."""
    sentences = []
    laplace = {beta: of["scores"]["laplace"] for beta, of in speeds.items()}
    sure = [beta for beta, of in laplace.items() if of["interval"][0] > 0]
    values = _at_each({beta: of["value"] for beta, of in laplace.items()})
    sentences.append(f"The rank correlation of PILE (laplace form, fresh points) with the true error is {values}.")
    if len(sure) < len(laplace):
        doubtful = ", ".join(beta for beta in laplace if beta not in sure)
        sentences.append(f"At β = {doubtful} its interval reaches zero or below: it is not shown to rank networks.")
    sentences.append(against(speeds, "misfit", "the misfit at fresh points alone"))
    sentences.append(against(speeds, "training_loss", "the training loss"))
    return " ".join(sentences)


def spread(speeds: Mapping[str, Any]) -> str:
    """Return at which speeds no network comes near the solution, so that only failures are ranked there."""
    failures = [beta for beta, of in speeds.items() if of["errors"]["least"] > FAILURE]
    if not failures:
        return ""
    return (
        f"At β = {', '.join(failures)} no network has an error below {digits(FAILURE)}: what is ranked there are "
        "failures, some worse than others."
    )


def against(speeds: Mapping[str, Any], name: str, words: str) -> str:
    """Return whether the laplace form ranks better than another score, by the intervals of the difference."""
    each = {beta: of["scores"][name]["behind"]["interval"] for beta, of in speeds.items()}
    better = [beta for beta, (low, _) in each.items() if low > 0]
    worse = [beta for beta, (_, high) in each.items() if high < 0]
    values = _at_each({beta: of["scores"][name]["value"] for beta, of in speeds.items()})
    start = f"For {words} it is {values}"
    if not better and not worse:
        return f"{start}: no difference from PILE is shown, so that as far as these networks tell it does as well."
    parts = []
    if better:
        parts.append(f"PILE ranks better at β = {', '.join(better)}")
    if worse:
        parts.append(f"PILE ranks worse at β = {', '.join(worse)}")
    if len(better) + len(worse) < len(each):
        parts.append("no difference is shown elsewhere" if len(each) > 1 else "no difference is shown")
    return f"{start}: {', and '.join(parts)}, by the 95% interval of the difference."


def before_training(found: Mapping[str, Any]) -> str:
    """Return what evidence before training says of architectures, no more than was measured."""
    low, high = found["scores"]["before_tangent"]["architectures"]["interval"]
    value = correlation(found["scores"]["before_tangent"]["architectures"]["value"])
    start = f"Over {len(found['rows'])} architectures the tangent form before training has a rank correlation of"
    if low is None or not math.isfinite(low):  # JSON has no NaN
        return f"{start} {value} with the error that training reaches, of which these few cannot say anything."
    if low > 0:
        return f"{start} {value} with the error that training reaches: it tells which of them train better."
    if high < 0:
        return f"{start} {value} with the error that training reaches: those that it prefers train worse."
    return (
        f"{start} {value} with the error that training reaches, and its interval, {correlation(low)} to "
        f"{correlation(high)}, holds zero: that it tells which of them train better is not shown."
    )


def correlation(value: float | int | None) -> str:
    """Return a correlation with two digits after the point; a dash where there is none."""
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
    """Return numbers in words, each with its speed."""
    return ", ".join(f"{correlation(value)} at β = {beta}" for beta, value in values.items())


def _listed(values: Any) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _setting(summary: Mapping[str, Any]) -> Section:
    settings, speeds = summary["settings"], summary["speeds"]
    inside, start, sides = summary["points"]
    seeds = "1 seed" if settings["seeds"] == 1 else f"{settings['seeds']} seeds"
    ramps = [ramp for ramp in settings["ramps"] if ramp]
    growing = ""
    if ramps:
        growing = f"with β at once or with a speed that grows to it in the first {percent(ramps[0])} of the steps; "
    rows = tuple(
        (f"β = {beta}", str(of["networks"]), *(digits(of["errors"][name]) for name in ("least", "median", "largest")),
         str(of["failed"]))
        for beta, of in speeds.items()
    )  # fmt: skip
    return Section(
        "What was done",
        (
            "u_t + β u_x = 0 for t in [0, 1] and x in [0, 2π], periodic in x, u = sin x at t = 0; the solution is "
            "sin(x − βt). Networks of three hidden layers with tanh are trained by Adam, in float32, on the mean "
            f"squared residual of the equation at {inside} random points, plus a weight times those of the initial "
            f"values at {start} points and of the periodicity at {sides}. For large β this is known to fail often.",
            f"At each β there are {summary['networks']} networks: widths {_listed(settings['widths'])}; weights of "
            f"the conditions {_listed(settings['weights'])}; trained {growing}{seeds} each; {settings['steps']} "
            "steps for all of them. The settings were settled by the true errors of a few networks, before any "
            "score was computed. The true error is the relative L² error on a fine grid.",
            "PILE of a network is the log evidence of its tangent at the trained parameters, with the scales of "
            "prior and noise profiled. Its rows are residuals at points that were not trained on (periodicity stays "
            "where it was imposed), each scaled by the variance that its operator has under a kernel of length one. "
            "The misfit is the mean square of these scaled residuals and nothing else. The training loss is the sum "
            "of mean squared residuals at the training points, with equal weights, so that it can be compared "
            "between networks.",
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
        "laplace": "Where a score ranks networks as their errors do, the dots rise from left to right.",
        "misfit": "The scaled residuals at fresh points, without parameters or determinants.",
        "training_loss": "The residuals at the points that were trained on.",
        "tangent": "The tangent form sees the architecture at its trained parameters, not the trained solution.",
    }
    figures = [
        Figure(
            f"error_{name}",
            f"{NAMES[name]}, and the true error",
            f"Every network by its true error and its score, at each β. {captions[name]} Rank correlations: "
            f"{_at_each({beta: of['scores'][name]['value'] for beta, of in speeds.items()})}.",
            tuple(_scatter(results, name, beta, *kinds[name]) for beta in speeds),
            columns=3,
        )
        for name in kinds
    ]
    resamples = f"{settings['resamples']} resamples of the networks"
    return Section(
        "Which number ranks trained networks?",
        (
            f"{ranking(speeds)} {against(speeds, 'tangent', 'the tangent form')} {spread(speeds)}".strip(),
            "Intervals are from networks that share points and settings: they say what other networks of this kind "
            "would give, not what another equation would.",
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
                "By how much the rank correlation of PILE (laplace, fresh points) is above that of another score, with "
                "95% bootstrap intervals. One that holds zero shows no difference.",
                ("score", *header),
                behind,
            ),
        ),
    )


def _scatter(results: xr.Dataset, name: str, beta: str, label: str, log: bool) -> Lines:
    mine = results.sel(beta=float(beta))
    error, score, ramp = (mine[column].values for column in ("error", name, "ramp"))
    curves = []
    for number, (words, which) in enumerate((("speed β at once", ramp == 0), ("growing speed", ramp > 0))):
        if which.any():
            curves.append(Curve(words, score[which], error[which], colour=number, style="dots"))
    return Lines(
        title=f"β = {beta}",
        x_label=label,
        y_label="true relative error",
        curves=tuple(curves),
        x_log=log,
        y_log=True,
    )


def _choosing(results: xr.Dataset, speeds: Mapping[str, Any]) -> Section:
    rows = [(NAMES[name], *(digits(of["scores"][name]["chosen_error"]) for of in speeds.values())) for name in NAMES]
    rows.append(("the least of all", *(digits(of["errors"]["least"]) for of in speeds.values())))
    panels = []
    for beta in speeds:
        mine = results.sel(beta=float(beta))
        fields = {
            "the solution": "solution",
            "least PILE": "by_laplace",
            "least training loss": "by_training_loss",
            "least true error": "by_error",
        }
        panels += [
            Picture(
                f"β = {beta}: {title}", "t", "x", mine["t"].values, mine["x"].values, mine[name].values.T, "u",
                limits=(-1.2, 1.2),
            )
            for title, name in fields.items()
        ]  # fmt: skip
    return Section(
        "What would be chosen",
        ("The network with the lowest score is the one that a user would keep. Its true error, for each score:",),
        (
            Figure(
                "chosen",
                "The networks that are chosen",
                "The solution, the network with the least PILE (laplace, fresh points), that with the least training "
                "loss, and the best that there is among them.",
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


def _before(results: xr.Dataset, found: Mapping[str, Any]) -> Section:
    rows = tuple((BEFORE[name], *(_cell(found["scores"][name][which]) for which in ("architectures", "all")))
                 for name in BEFORE)  # fmt: skip
    ordered = sorted(found["rows"], key=lambda row: (row["error"] is None, row["error"]))
    names = ("before_tangent", "before_linearised", "before_laplace", "error")
    table = tuple(
        (row["label"], str(row["size"]), *(digits(row[name]) for name in names), _span(row["errors"]))
        for row in ordered
    )
    count, each = len(found["rows"]), found["networks"] // len(found["rows"])
    error = results["after_error"].values
    panels = tuple(
        Lines(
            title=BEFORE[name],
            x_label="PILE",
            y_label="true relative error after training",
            curves=(
                Curve("each network", results[name].values.ravel(), error.ravel(), colour=0, style="dots"),
                Curve("architecture: mean score, median error", [row[name] for row in found["rows"]],
                      [row["error"] for row in found["rows"]], colour=1, style="dots"),
            ),
            y_log=True,
        )
        for name in ("before_tangent", "before_linearised", "before_laplace", "after_laplace")
    )  # fmt: skip
    return Section(
        "Before training: which architecture?",
        (
            f"{count} architectures with {each} seeds each: widths, depths, activations, Fourier features of several "
            "scales, a larger first layer. Each network is scored at its random first parameters; then all are trained "
            f"with the same budget at β = {digits(found['beta'])}, with a growing speed. A score that knows better has "
            "a positive rank correlation: low where the error after training is low.",
            f"{before_training(found)} {_forms(found)}",
        ),
        (
            Figure(
                "before_training",
                "Evidence before training, and the error after it",
                "Three forms of PILE at the random first parameters, against the true error that training reaches; and "
                "the laplace form after training, for comparison.",
                panels,
            ),
        ),
        (
            TextTable(
                "Rank correlations with the error after training: over architectures (mean score of the seeds, median "
                "error), and over all networks; 95% bootstrap intervals over architectures.",
                ("score", f"{count} architectures", f"{found['networks']} networks"),
                rows,
            ),
            TextTable(
                "The architectures, from the least error to the largest: activation, hidden layers × width.",
                ("architecture", "parameters", "tangent", "linearised", "laplace", "error, median", "least to largest"),
                table,
            ),
        ),
    )


def _forms(found: Mapping[str, Any]) -> str:
    """Return what the other forms gave."""
    words = {"before_linearised": "the linearised form", "before_laplace": "the laplace form"}
    parts = [f"{_cell(found['scores'][name]['architectures'])} for {text}" for name, text in words.items()]
    size = _cell(found["scores"]["size"]["architectures"])
    known = [row for row in found["rows"] if row["error"] is not None and math.isfinite(row["error"])]
    chosen, best = (min(known, key=lambda row: row[name]) for name in ("before_tangent", "error"))
    after = _cell(found["scores"]["after_laplace"]["architectures"])
    return (
        f"Before training it is {' and '.join(parts)}, and {size} for choosing whichever has more parameters. After "
        f"training the laplace form has {after}. The architecture with the lowest tangent form before training, "
        f"{chosen['label']}, ends with the error {digits(chosen['error'])}; the best of all, {best['label']}, with "
        f"{digits(best['error'])}."
    )


def _span(errors: list[float]) -> str:
    known = [value for value in errors if value is not None and np.isfinite(value)]
    return f"{digits(min(known))} to {digits(max(known))}" if known else "—"
