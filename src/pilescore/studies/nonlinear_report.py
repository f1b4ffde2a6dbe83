"""What the study of nonlinear equations shows and says, from its dataset and its summary alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from pilescore.charts import Curve, Figure, Lines, Mark, Picture, Report, Section, TextTable, digits

from .words import checks_table, details, percent

SEEN = {
    "elliptic": "The error is largest where the points leave a gap, at the corners above all, and the deviation says "
    "where. Both are near the end of what the arithmetic can tell.",
    "burgers": "The wave steepens into a layer at x = 0. The error is largest there, and before that along the paths "
    "on which the wave travels to it.",
    "eikonal": "A roof whose ridges are rounded by the second derivatives. The error is largest at the corners, where "
    "the second derivatives of the solution jump, which the deviation cannot know: it is made of the kernel and the "
    "points.",
    "allen_cahn": "The sine grows into two plateaus with a sharp layer between them. Deviation and error are largest "
    "in the layer, and at the last times, after which nothing is imposed.",
}


def report(results: xr.Dataset, summary: Mapping[str, Any]) -> Report:
    """Return the report of the study of nonlinear equations."""
    problems = summary["problems"]
    worst = max(of["largest_regret"] for of in problems.values())
    fooled = max(of["residual_regret"] for of in problems.values())
    verdicts = [(f"{digits(worst)}×", "error with PILE's bandwidth over the least possible, the worst of all")]
    verdicts += [(f"{digits(fooled)}×", "the same for the bandwidth with the least training residual")]
    for of in list(problems.values())[:3]:  # those that others have solved
        others = "" if of["known"] is None else f" (others: {digits(of['known'])})"
        verdicts.append((digits(of["median_error"]), f"{of['title']}: error, the median of all sets{others}"))
    return Report(
        title="Nonlinear equations: solved, and the kernel chosen by PILE",
        lead=(
            "Four nonlinear differential equations with their boundary and initial conditions, and not one "
            "measurement. Each is solved by a Gaussian process: Gauss–Newton finds the most likely function, and "
            "PILE of the model that is linearised there says how good the kernel is. The solutions are known, so that "
            "the choice can be checked."
        ),
        verdicts=tuple(verdicts),
        sections=(
            _overview(problems, summary["settings"]),
            *(_problem(results, name, of, summary["settings"]) for name, of in problems.items()),
            _solver(results, problems),
            checks_table(summary),
        ),
        details=details(summary),
    )


def _overview(problems: Mapping[str, Any], settings: Mapping[str, Any]) -> Section:
    rows = []
    for of in problems.values():
        cells = (of["median_error"], of["largest_error"], of["known"], of["largest_regret"], of["residual_regret"])
        low, high = (digits(value) for value in of["correlation"])
        rows.append((of["title"], *map(digits, cells), low if low == high else f"{low} to {high}"))
    header = ("problem", "error, median set", "worst set", "others", "regret, worst set", "by residual", "correlation")
    return Section(
        "What was done",
        (
            "An equation A(u) = g is imposed at random points, and its conditions at evenly spaced points of the "
            "boundary, each with a small noise. The most likely u is found by Gauss–Newton: linearise the equation, "
            "condition the process on what is now linear, go on from there. At the end the linearised model is an "
            "ordinary one, with a posterior and a PILE. That is done for every bandwidth on a grid and for "
            f"{_sets(settings)} of random points; PILE with its scale profiled chooses one bandwidth for each set.",
            "An error is the root of the mean of (û − u)² over the region, which on the unit square is the L² norm. "
            "The regret is the error with the chosen bandwidth over the least error on the grid. For contrast, the "
            "bandwidth with the least mean squared residual at the points themselves: nothing but its own training "
            "tells it how good it is. The correlation is that of the ranks of PILE and of the error along the grid.",
        ),
        (),
        (
            TextTable(
                "All problems. Others: a published solver with as many points and a kernel that was tuned by hand. "
                "Regrets are the worst of all sets of points, correlations the least and the largest.",
                header,
                tuple(rows),
            ),
        ),
    )


def _sets(settings: Mapping[str, Any]) -> str:
    count = settings["seeds"]
    return "one set" if count == 1 else f"{count} sets"


def _problem(results: xr.Dataset, name: str, of: Mapping[str, Any], settings: Mapping[str, Any]) -> Section:
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
            f"{of['equation']}; {of['conditions']}. {inside} points inside, {around} on the boundary. {kernel} "
            f"The equation holds with a deviation of {digits(of['noise'][0])} and the conditions with one of "
            f"{digits(of['noise'][1])}, both times √η. The solution is known: {of['reference']}.",
            f"For the first set PILE chooses the length {digits(chosen['length'])}, with the error "
            f"{digits(chosen['error'])} (relative {digits(chosen['relative'])}); the least on the grid is "
            f"{digits(first['least']['error'])}. The training residual chooses {digits(residual['length'])}, with the "
            f"error {digits(residual['error'])}.{_failures(of)}",
        ),
        (_sweep(results, name, of, settings), _solution(results, name, of)),
        (_choices(of),),
    )


def _failures(of: Mapping[str, Any]) -> str:
    count = of["failed"]
    if not count:
        return ""
    where = "One model" if count == 1 else f"{count} models"
    return f" {where} of the sweep could not be solved or factored; why is in results.nc."


def _sweep(results: xr.Dataset, name: str, of: Mapping[str, Any], settings: Mapping[str, Any]) -> Figure:
    error, pile = results[f"{name}_error"], results[f"{name}_pile"]
    length = results[f"{name}_length"].values
    first = of["sets"][0]
    marks = (
        Mark(f"PILE chooses {digits(first['PILE']['length'])}", x=first["PILE"]["length"]),
        Mark(f"least error {digits(first['least']['length'])}", x=first["least"]["length"], colour=5),
        Mark(
            f"least residual {digits(first['training residual']['length'])}",
            x=first["training residual"]["length"],
            colour=3,
        ),
    )
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
            marks=marks,
            x_log=True,
            y_log=True,
            right_label="PILE",
        ),
        Lines(
            title="All sets of points",
            x_label="error over the least of its set",
            y_label="PILE over the least of its set",
            curves=tuple(
                Curve(
                    f"set {seed + 1}",
                    (error.sel(seed=seed) / error.sel(seed=seed).min()).values,
                    (pile.sel(seed=seed) - pile.sel(seed=seed).min()).values,
                    colour=number % 7,
                    style="dots",
                )
                for number, seed in enumerate(results["seed"].values)
            ),
            marks=(Mark("twice the least error", x=2.0),),
            x_log=True,
        ),
    ]
    caption = (
        "Left: PILE (right axis) falls and rises with the true error, which it does not know. Right: every model of "
        "every set of points, by its error and by its PILE, both compared with the least of its set; those that PILE "
        "chooses lie on the bottom."
    )
    return Figure(f"{name}_sweep", f"{of['title']}: PILE and the error", caption, tuple(panels))


def _solution(results: xr.Dataset, name: str, of: Mapping[str, Any]) -> Figure:
    solve = of["solve"]
    labels = of["coordinates"]
    truth = results[f"{name}_truth"]
    limits = (float(truth.min()), float(truth.max()))
    panels = (
        _picture("the solution that was found", results[f"{name}_mean"], labels, "û", limits),
        _picture("the known solution", truth, labels, "u", limits),
        _picture("posterior deviation", results[f"{name}_deviation"], labels, "deviation"),
        _picture("error", results[f"{name}_miss"], labels, "|û − u|"),
    )
    caption = (
        f"{SEEN[name]} The largest error here is {digits(solve['largest_miss'])}, the largest deviation "
        f"{digits(solve['largest_deviation'])}; on {percent(solve['within'])} of the region the error is within two "
        "deviations."
    )
    return Figure(f"{name}_solution", f"{of['title']}: the solution (first set of points)", caption, panels)


def _picture(
    title: str, field: xr.DataArray, labels: list[str], symbol: str, limits: tuple[float, float] | None = None
) -> Picture:
    across, up = (field[name].values for name in field.dims)
    return Picture(title, labels[0], labels[1], across, up, np.asarray(field.values).T, symbol, limits=limits)


def _choices(of: Mapping[str, Any]) -> TextTable:
    rows = []
    for number, row in enumerate(of["sets"], 1):
        chosen, least, residual = row["PILE"], row["least"], row["training residual"]
        cells = (chosen["length"], chosen["error"], least["length"], least["error"], chosen["regret"])
        rest = (residual["length"], residual["error"], residual["regret"], row["correlation"])
        rows.append((str(number), *map(digits, (*cells, *rest))))
    header = ("set", "PILE: length", "error", "best: length", "error", "regret", "residual: length", "error", "regret")
    caption = "What PILE and the training residual choose for each set of points, and the best of the grid."
    return TextTable(caption, (*header, "correlation"), tuple(rows))


def _solver(results: xr.Dataset, problems: Mapping[str, Any]) -> Section:
    curves, rows = [], []
    for number, (name, of) in enumerate(problems.items()):
        decrement, solve = results[f"{name}_step_decrement"].values, of["solve"]
        curves.append(
            Curve(of["title"], np.arange(1, len(decrement) + 1), decrement, colour=number, style="line and dots")
        )
        cells = (solve["pile"], solve["gap"], solve["second_order"], solve["eta"])
        rows.append((of["title"], solve["status"], str(solve["factorisations"]), *map(digits, cells)))
    return Section(
        "How they were solved",
        (
            "With the chosen kernel, from the function that is zero. The noise is first ten thousand times larger in "
            "its variance, then a hundred times, then as it is. What a step promises to gain is half the squared "
            "Newton decrement: when that is next to nothing, the function is the most likely one. Where the noise is "
            "near the limits of the arithmetic, it cannot fall further than rounding lets it, and the solve ends as "
            "stagnated.",
            "PILE has two forms, by Laplace's approximation and by the linearised model. At the most likely function "
            "they are one: their gap shows how far from it the solve ended. The second-order term is what PILE would "
            "gain by the exact Hessian in place of that of Gauss–Newton.",
        ),
        (
            Figure(
                "decrements",
                "Squared Newton decrements",
                "By linearisation, each of which costs one factorisation. A rise is where the noise gets smaller, and "
                "the solution of the level before is no longer the most likely one.",
                (
                    Lines(
                        title="From zero to the solution, first set of points",
                        x_label="linearisation",
                        y_label="squared decrement",
                        curves=tuple(curves),
                        y_log=True,
                    ),
                ),
                columns=1,
            ),
        ),
        (
            TextTable(
                "The solve with the chosen kernel, first set of points; PILE is profiled, η the scale it finds.",
                ("problem", "status", "factorisations", "PILE", "gap", "second order", "η"),
                tuple(rows),
            ),
        ),
    )
