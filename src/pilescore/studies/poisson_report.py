"""What the Poisson study shows and says, from its dataset and its summary alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from pilescore.charts import Figure, Mark, Picture, Report, Section, TextTable, digits

from .words import checks_table, details, percent, sweep_panel

SYMBOLS = {"bandwidth": "bandwidth h", "rho": "physics temperature ρ", "gamma": "data temperature γ"}


def report(results: xr.Dataset, summary: Mapping[str, Any]) -> Report:
    """Return the report of the Poisson study."""
    sweeps, joint = summary["sweeps"], summary["joint"]["mean"]
    chosen = sweeps["bandwidth"]["PILE"]
    settings = summary["settings"]
    lead = (
        "Someone measured a field f and its Laplacian Δf on a grid, both with noise of variance 1. Which bandwidth "
        "should the kernel have, and how much should the data weigh against the equation? PILE answers with one "
        "number, computed without the truth. Here the truth is known, so that the answer can be checked."
    )
    return Report(
        title="Poisson: one number chooses the model",
        lead=lead,
        verdicts=(
            (digits(chosen["mean"]), "bandwidth chosen by PILE, mean of all seeds"),
            (f"{digits(chosen['R_data_regret'])}×", "its error in f, over the best in the sweep"),
            (f"{digits(chosen['R_phys_regret'])}×", "its error in Δf, over the best in the sweep"),
            (
                f"{digits(joint['noise_variance_f'])} and {digits(joint['noise_variance_laplacian'])}",
                "noise variances of f and Δf found by minimising PILE (true: 1)",
            ),
        ),
        sections=(
            _problem(results, settings),
            _sweeps(results, summary),
            _rules(results, summary),
            _fits(results, summary),
            checks_table(summary),
        ),
        details=details(summary),
    )


def _problem(results: xr.Dataset, settings: Mapping[str, Any]) -> Section:
    count = settings["side"]
    panels = []
    for ending, symbol in (("", "f"), ("_laplacian", "Δf")):
        measured = results[f"measured{ending}"]
        panels.append(_picture(f"{symbol}: the truth", results[f"truth{ending}"], symbol, _limits(measured)))
        panels.append(_picture(f"{symbol}: as measured", measured, symbol, _limits(measured)))
    return Section(
        "The problem",
        (
            "Δf = 10 + 10 sin 2πx sin 2πy on the square (−1, 1)², with f = 0 on its boundary. On "
            f"{count} × {count} Chebyshev nodes f and Δf are measured, each with noise of variance 1. The model is a "
            "Gaussian process with the kernel exp(−|x − y|²/2h²), conditioned on both. It is not told the boundary "
            "condition.",
        ),
        (
            Figure(
                "problem",
                "What is to be found, and what is known",
                "The truth, and what was measured (seed 0). The noise is large beside f, and small beside Δf.",
                tuple(panels),
            ),
        ),
    )


def _sweeps(results: xr.Dataset, summary: Mapping[str, Any]) -> Section:
    panels = []
    for short, symbol in SYMBOLS.items():
        chosen = summary["sweeps"][short]["PILE"]["mean"]
        true = summary["true"].get(short)
        scores = {name: results[f"{short}_{name}"] for name in ("R_data", "R_phys", "pile")}
        marks = [Mark(f"PILE chooses {digits(chosen)}", x=chosen)]
        if true is not None:
            marks.append(Mark(f"true {digits(true)}", x=true, colour=5))
        panels.append(sweep_panel(f"{symbol[0].upper()}{symbol[1:]}", symbol, scores, "Δf", tuple(marks)))
    rows = []
    for short, name in SYMBOLS.items():
        of, best = summary["sweeps"][short]["PILE"], summary["sweeps"][short]["best in the sweep"]
        cells = [(of[error], best[error], of[f"{error}_regret"]) for error in ("R_data", "R_phys")]
        rows.append((name, *map(digits, (of["mean"], of["pile"], *cells[0], *cells[1]))))
    header = ("sweep", "PILE chooses", "PILE", "R_data", "best", "regret", "R_phys", "best", "regret")
    return Section(
        "One hyperparameter after the other",
        (
            "First the bandwidth, at the true temperatures. Then, at the bandwidth that PILE chose for each seed, the "
            "physics temperature ρ; then, at both, the data temperature γ. R_data and R_phys are expected squared "
            "errors of the posterior (PPL2-G) in f and in Δf, divided by ∫f² and ∫(Δf)². PILE does not know them.",
        ),
        (
            Figure(
                "sweeps",
                "PILE and the true errors",
                "PILE (right axis) is lowest where both errors are low together, or close to it. For small ρ and γ "
                "it rises steeply: the model fits the noise. For large h it rises because the model cannot follow "
                f"the data. {_drawn(summary['settings']['seeds'])}",
                tuple(panels),
                columns=3,
            ),
        ),
        (
            TextTable(
                "What PILE chose, the errors there, and the best errors of the sweep, means of all seeds. Regret "
                "is the first over the second; the two best errors need not be at the same place.",
                header,
                tuple(rows),
            ),
        ),
    )


def _drawn(count: int) -> str:
    """Say what curves and bands are."""
    if count == 1:
        return "One seed, so that there are no bands."
    return (
        f"Curves are means over {count} seeds, bands two standard deviations; for errors, which are drawn by their "
        "logarithm, those of the logarithm."
    )


def _rules(results: xr.Dataset, summary: Mapping[str, Any]) -> Section:
    sweeps, joint = summary["sweeps"], summary["joint"]["mean"]
    rows = []
    for short, symbol in (("bandwidth", "h"), ("rho", "ρ"), ("gamma", "γ")):
        for rule, of in sweeps[short].items():
            if rule != "best in the sweep":
                rows.append((f"{symbol} by {rule}", f"{symbol} = {digits(of['mean'])}", *_errors(of)))
    found = f"h = {digits(joint['bandwidth'])}, γ = {digits(joint['gamma'])}, ρ = {digits(joint['rho'])}, "
    rows.append(("all at once by PILE", f"{found}η = {digits(joint['eta'])}", *_errors(joint)))
    sequence = sweeps["gamma"]["PILE"]
    better = [symbol for symbol, error in (("f", "R_data"), ("Δf", "R_phys")) if joint[error] < sequence[error]]
    compared = {2: "both are lower", 1: f"that in {''.join(better)} is lower", 0: "both are higher"}[len(better)]
    return Section(
        "All at once, and by other rules",
        (
            "PILE has an exact gradient, so that h, γ, ρ and the scale η can be found together: "
            f"{digits(joint['evaluations'])} evaluations on average, from h = 1, γ = 1, ρ = 0.1, η = 1. The "
            f"errors are {digits(joint['R_data'])} in f and {digits(joint['R_phys'])} in Δf, against "
            f"{digits(sequence['R_data'])} and {digits(sequence['R_phys'])} at the end of the sequence: {compared}. "
            f"It finds the noise too: variances {digits(joint['noise_variance_f'])} of f and "
            f"{digits(joint['noise_variance_laplacian'])} of Δf.",
            "Other rules choose from the same sweeps. The training losses reward a model for fitting its own "
            f"noise, each in its own way, and disagree. Leave-one-out on the data judges f alone. {_lost(sweeps)}",
        ),
        (),
        (
            TextTable(
                "What each rule chooses, and the true errors there, means of all seeds. Temperatures are swept at "
                "PILE's choices of what came before.",
                ("rule", "choice", "R_data", "R_phys"),
                tuple(rows),
                strong=len(rows) - 1,
            ),
        ),
    )


def _lost(sweeps: Mapping[str, Any]) -> str:
    """Say where another rule chose better than PILE."""
    cases = []
    for short, symbol in (("bandwidth", "h"), ("rho", "ρ"), ("gamma", "γ")):
        best = sweeps[short]["PILE"]
        for rule, of in sweeps[short].items():
            if "chosen" in of and of["R_data"] < 0.95 * best["R_data"] and of["R_phys"] < 1.05 * best["R_phys"]:
                numbers = f"R_data {digits(of['R_data'])} against {digits(best['R_data'])}"
                cases.append(f"for {symbol} {rule} chose better ({numbers}, with the same R_phys within 5% or less)")
    return f"PILE does not always win: {'; '.join(cases)}." if cases else "None chose better than PILE."


def _errors(of: Mapping[str, Any]) -> tuple[str, str]:
    return digits(of["R_data"]), digits(of["R_phys"])


def _fits(results: xr.Dataset, summary: Mapping[str, Any]) -> Section:
    figures = []
    for ending, symbol, seen in (
        (
            "",
            "f",
            "Under-smoothed, the fit follows the noise from node to node; over-smoothed, it is too round, wrong at the "
            "corners and edges, and its deviation does not show it.",
        ),
        (
            "_laplacian",
            "Δf",
            "The failures are plain in Δf: under-smoothed, it is noise (mind the scale of its deviation); "
            "over-smoothed, none of the waves is left, with a small deviation all the same.",
        ),
    ):
        truth, means = results[f"truth{ending}"], results[f"fit_mean{ending}"]
        limits, deviations = _limits(results[f"measured{ending}"]), results[f"fit_deviation{ending}"]
        wide = (0.0, float(deviations.sel(fit=["chosen", "over-smoothed"]).max()))
        panels = [
            _picture("the truth", truth, symbol, limits),
            _picture("as measured", results[f"measured{ending}"], symbol, limits),
            _picture("error of the chosen fit", abs(means.sel(fit="chosen") - truth), f"|error in {symbol}|"),
        ]
        for fit, of in summary["fits"].items():
            panels.append(_picture(f"{fit}, h = {digits(of['bandwidth'])}", means.sel(fit=fit), symbol, limits))
        for fit in summary["fits"]:
            scale = None if fit == "under-smoothed" else wide
            panels.append(_picture(f"deviation, {fit}", deviations.sel(fit=fit), f"deviation of {symbol}", scale))
        name = f"fits_{'laplacian' if ending else 'f'}"
        figures.append(Figure(name, f"Fits of {symbol} (seed 0)", seen, tuple(panels), columns=3))
    header = ("fit", "h", "R_data", "R_phys", "f within two deviations", "Δf within two deviations")
    inside = ("within_two_deviations", "within_two_deviations_laplacian")
    rows = tuple(
        (fit, digits(of["bandwidth"]), *_errors(of), *(percent(of[name]) for name in inside))
        for fit, of in summary["fits"].items()
    )
    return Section(
        "What happens when it is not followed",
        (
            "The same data with a bandwidth that is too small, the one that PILE chose, and one that is too large. "
            "A model that is wrong need not look uncertain: the over-smoothed one is sure of itself.",
        ),
        tuple(figures),
        (
            TextTable(
                "Errors, and the part of the square on which the truth lies within two posterior deviations of the fit "
                "(95% is what one hopes for).",
                header,
                rows,
                strong=1,
            ),
        ),
    )


def _limits(field: xr.DataArray) -> tuple[float, float]:
    return float(field.min()), float(field.max())


def _picture(title: str, field: xr.DataArray, symbol: str, limits: tuple[float, float] | None = None) -> Picture:
    across, up = (field[name].values for name in field.dims)
    return Picture(title, "x", "y", across, up, np.asarray(field.values).T, symbol, limits=limits)
