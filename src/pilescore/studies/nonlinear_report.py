"""The report of the study of nonlinear equations, made from its dataset and its summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from ..reports import Curve, Figure, Lines, Mark, Report, Section, TextTable, digits
from .report_parts import checks_section, details, limits, percent, picture
from .runner import counted

CAPTIONS = {
    "elliptic": "The error is largest where the points leave gaps, above all at the corners, and the deviation shows "
    "where. Both are close to the rounding error.",
    "burgers": "The wave steepens into a layer at x = 0. The error is largest there and along the paths on which the "
    "wave travels to the layer.",
    "eikonal": "The solution is a roof whose ridges are rounded by the second derivatives. The error is largest at the "
    "corners, where the second derivatives of the solution jump. The deviation does not show this, because it depends "
    "on the kernel and the points only.",
    "allen_cahn": "The sine grows into two plateaus with a sharp layer between them. Deviation and error are largest "
    "in the layer and at the last times, because nothing is imposed after them.",
}
RULES = {"PILE": ("PILE chooses", 7), "least": ("least error", 5), "training residual": ("least residual", 3)}
"""The label and the colour of each choice."""


def report(results: xr.Dataset, summary: Mapping[str, Any]) -> Report:
    """Return the report of the study of nonlinear equations."""
    problems = summary["problems"]
    worst = max(of["largest_regret"] for of in problems.values())
    residual = max(of["residual_regret"] for of in problems.values())
    verdicts = [(f"{digits(worst)}×", "error with PILE's bandwidth, relative to the least error (worst case)")]
    verdicts += [(f"{digits(residual)}×", "the same for the bandwidth with the least training residual")]
    for of in list(problems.values())[:3]:  # these have published errors
        published = "" if of["known"] is None else f" (published: {digits(of['known'])})"
        verdicts.append((digits(of["median_error"]), f"{of['title']}: median error over sets of points{published}"))
    return Report(
        title="Nonlinear equations, solved with kernels chosen by PILE",
        lead=(
            "Four nonlinear differential equations with boundary and initial conditions are solved by a Gaussian "
            "process, without any measurement. Gauss–Newton finds the most likely function, and PILE of the model "
            "linearised there measures how good the kernel is. The solutions are known, so the choice can be checked."
        ),
        verdicts=tuple(verdicts),
        sections=(
            _overview(problems, summary["settings"]["seeds"]),
            *(_problem(results, name, of) for name, of in problems.items()),
            _solver(results, problems),
            checks_section(summary),
        ),
        details=details(summary),
    )


def _overview(problems: Mapping[str, Any], seeds: int) -> Section:
    rows = []
    for of in problems.values():
        cells = (of["median_error"], of["largest_error"], of["known"], of["largest_regret"], of["residual_regret"])
        low, high = (digits(value) for value in of["correlation"])
        rows.append((of["title"], *cells, low if low == high else f"{low} to {high}"))
    table = TextTable(
        "All problems. The published errors are from a solver with as many points and a kernel tuned by hand. Regrets "
        "are the largest over sets of points, and correlations the smallest and largest.",
        ("problem", "median error", "largest", "published", "regret of PILE", "of the residual", "correlation"),
        tuple(rows),
    )
    return Section(
        "Method",
        (
            "An equation A(u) = g is imposed at random points, and its conditions at evenly spaced points of the "
            "boundary, each with small noise. Gauss–Newton finds the most likely u: it linearises the equation, "
            "conditions the process on the linear equation, and repeats from the new u. The last linearised model is "
            "an ordinary model with a posterior and a PILE. This is done for every bandwidth on a grid and for "
            f"{counted(seeds, 'set')} of random points. Profiled PILE chooses one bandwidth for each set.",
            "The error is the root mean square of û − u over the region. On the unit square it is the L² norm. The "
            "regret is the error with the chosen bandwidth divided by the least error on the grid. For comparison, a "
            "second rule chooses the bandwidth with the least mean squared residual at the training points. The "
            "correlation is the rank correlation of PILE and the error over the grid.",
        ),
        tables=(table,),
    )


def _problem(results: xr.Dataset, name: str, of: Mapping[str, Any]) -> Section:
    inside, around = of["points"]
    across, up = of["coordinates"]
    kernel = "The kernel is exp(−|δ|²/2h²)."
    if of["aspect"] != 1:
        kernel = f"The kernel is a Gaussian, {digits(of['aspect'])} times longer in {across} than in {up}."
    first = of["sets"][0]
    chosen, residual = first["PILE"], first["training residual"]
    return Section(
        of["title"],
        (
            f"{of['equation']}; {of['conditions']}. There are {inside} points inside and {around} on the boundary. "
            f"{kernel} The noise has the deviation {digits(of['noise'][0])} for the equation and "
            f"{digits(of['noise'][1])} for the conditions, both times √η. Reference solution: {of['reference']}.",
            f"For the first set PILE chooses the length {digits(chosen['length'])}, with the error "
            f"{digits(chosen['error'])} (relative error {digits(chosen['relative'])}). The least error on the grid is "
            f"{digits(first['least']['error'])}. The training residual chooses {digits(residual['length'])}, with the "
            f"error {digits(residual['error'])}.{_failures(of)}",
        ),
        (_sweep(results, name, of), _solution(results, name, of)),
        (_choices(of),),
    )


def _failures(of: Mapping[str, Any]) -> str:
    count = of["failed"]
    if not count:
        return ""
    models = "One model" if count == 1 else f"{count} models"
    return f" {models} of the sweep could not be solved or factored. The reasons are in results.nc."


def _sweep(results: xr.Dataset, name: str, of: Mapping[str, Any]) -> Figure:
    error, pile = results[f"{name}_error"], results[f"{name}_pile"]
    length = results[f"{name}_length"].values
    marks = []
    for rule, (text, colour) in RULES.items():
        chosen = of["sets"][0][rule]["length"]
        marks.append(Mark(f"{text} {digits(chosen)}", x=chosen, colour=colour))
    ratios = (error / error.min(f"{name}_length")).transpose("seed", ...)
    excesses = (pile - pile.min(f"{name}_length")).transpose("seed", ...)
    label = "length h" if of["aspect"] == 1 else f"length in {of['coordinates'][1]}"
    panels = [
        Lines(
            title="The first set of points",
            x_label=label,
            y_label="error",
            curves=(
                Curve("error", length, error.sel(seed=0).values, colour=0, style="line and dots"),
                Curve("PILE", length, pile.sel(seed=0).values, colour=2, axis="right", style="line and dots"),
            ),
            marks=tuple(marks),
            x_log=True,
            y_log=True,
            right_label="PILE",
        ),
        Lines(
            title="All sets of points",
            x_label="error / least error of the set",
            y_label="PILE − least PILE of the set",
            curves=tuple(
                Curve(f"set {number + 1}", ratio.values, excess.values, colour=number % 7, style="dots")
                for number, (ratio, excess) in enumerate(zip(ratios, excesses, strict=True))
            ),
            marks=(Mark("twice the least error", x=2.0),),
            x_log=True,
        ),
    ]
    caption = (
        "Left: PILE (right axis) falls and rises with the true error, without knowing it. Right: the error and PILE of "
        "every model, both relative to the least of its set of points. The models that PILE chooses are at the bottom."
    )
    return Figure(f"{name}_sweep", f"{of['title']}: PILE and the error", caption, tuple(panels))


def _solution(results: xr.Dataset, name: str, of: Mapping[str, Any]) -> Figure:
    solve, truth = of["solve"], results[f"{name}_truth"]
    fields = (
        ("computed solution", results[f"{name}_mean"], "û", limits(truth)),
        ("reference solution", truth, "u", limits(truth)),
        ("posterior deviation", results[f"{name}_deviation"], "deviation", None),
        ("error", results[f"{name}_miss"], "|û − u|", None),
    )
    panels = tuple(
        picture(title, field, symbol, of["coordinates"], limits=scale) for title, field, symbol, scale in fields
    )
    caption = (
        f"{CAPTIONS[name]} The largest error here is {digits(solve['largest_miss'])}, and the largest deviation "
        f"{digits(solve['largest_deviation'])}. On {percent(solve['within'])} of the region the error is within two "
        "deviations."
    )
    return Figure(f"{name}_solution", f"{of['title']}: the solution (first set of points)", caption, panels)


def _choices(of: Mapping[str, Any]) -> TextTable:
    rows = []
    for number, row in enumerate(of["sets"], 1):
        chosen, best, residual = ((row[rule]["length"], row[rule]["error"]) for rule in RULES)
        regrets = (row["PILE"]["regret"], row["training residual"]["regret"])
        rows.append((number, *chosen, *best, regrets[0], *residual, regrets[1], row["correlation"]))
    header = ("set", "PILE: length", "error", "best: length", "error", "regret", "residual: length", "error", "regret")
    caption = "The choices of PILE and of the training residual, and the best of the grid, for each set of points."
    return TextTable(caption, (*header, "correlation"), tuple(rows))


def _solver(results: xr.Dataset, problems: Mapping[str, Any]) -> Section:
    curves, rows = [], []
    for number, (name, of) in enumerate(problems.items()):
        decrement = results[f"{name}_step_decrement"].values
        steps = np.arange(1, len(decrement) + 1)
        curves.append(Curve(of["title"], steps, decrement, colour=number, style="line and dots"))
        cells = ("status", "factorisations", "pile", "gap", "second_order", "eta")
        rows.append((of["title"], *(of["solve"][cell] for cell in cells)))
    title = "From the zero function to the solution, first set of points"
    panel = Lines(title, "linearisation", "squared decrement", tuple(curves), y_log=True)
    figure = Figure(
        "decrements",
        "Squared Newton decrements",
        "Each linearisation costs one factorisation. The decrement rises where the noise is reduced, because the "
        "solution for the larger noise is no longer the most likely one.",
        (panel,),
        columns=1,
    )
    table = TextTable(
        "Results of the solver with the chosen kernel, first set of points. PILE is profiled, and η is its scale.",
        ("problem", "status", "factorisations", "PILE", "gap", "second order", "η"),
        tuple(rows),
    )
    return Section(
        "The solver",
        (
            "The solver starts from the zero function, with the chosen kernel. The noise variance is first 10,000 "
            "times larger, then 100 times larger, then as specified. Half the squared Newton decrement is the "
            "predicted gain of a step: when it is close to zero, the function is the most likely one. If the noise is "
            "close to the rounding error, the decrement cannot fall below the rounding error, and the status is "
            '"stagnated".',
            "PILE can be computed by Laplace's approximation or from the linearised model. The two agree at the most "
            "likely function, so their gap shows how far from it the solver stopped. The second-order term is the "
            "change of PILE with the exact Hessian instead of the Gauss–Newton Hessian.",
        ),
        (figure,),
        (table,),
    )
