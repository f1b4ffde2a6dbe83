"""The report of the Poisson study, made from its dataset and its summary."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import Any

import xarray as xr

from ..reports import Figure, Mark, Report, Section, TextTable, digits
from .report_parts import checks_section, details, limits, percent, picture, sweep_panel

SYMBOLS = {"bandwidth": "bandwidth h", "rho": "physics temperature ρ", "gamma": "data temperature γ"}
"""Each hyperparameter in words, its symbol last."""
_picture = functools.partial(picture, labels=("x", "y"))


def report(results: xr.Dataset, summary: Mapping[str, Any]) -> Report:
    """Return the report of the Poisson study."""
    sweeps, joint = summary["sweeps"], summary["joint"]["mean"]
    chosen = sweeps["bandwidth"]["PILE"]
    return Report(
        title="Poisson: one number chooses the model",
        lead="A field f and its Laplacian Δf were measured on a grid, both with noise of variance 1. Which bandwidth "
        "should the kernel have, and how much should the data weigh against the equation? PILE answers with one "
        "number, computed without the truth. Here the truth is known, so the answer can be checked.",
        verdicts=(
            (digits(chosen["mean"]), "bandwidth chosen by PILE, mean over seeds"),
            (f"{digits(chosen['R_data_regret'])}×", "error in f at this bandwidth, relative to the best in the sweep"),
            (f"{digits(chosen['R_phys_regret'])}×", "error in Δf at this bandwidth, relative to the best in the sweep"),
            (
                f"{digits(joint['noise_variance_f'])} and {digits(joint['noise_variance_laplacian'])}",
                "noise variances of f and Δf, found by minimising PILE (true: 1)",
            ),
        ),
        sections=(
            _problem(results, summary["settings"]["side"]),
            _sweeps(results, summary),
            _rules(summary),
            _fits(results, summary),
            checks_section(summary),
        ),
        details=details(summary),
    )


def _problem(results: xr.Dataset, count: int) -> Section:
    panels = tuple(
        _picture(f"{symbol}, {word}", results[f"{name}{suffix}"], symbol, limits=limits(results[f"measured{suffix}"]))
        for suffix, symbol in (("", "f"), ("_laplacian", "Δf"))
        for name, word in (("truth", "true"), ("measured", "measured"))
    )
    caption = "The truth and the measurements (seed 0). The noise is large compared with f and small compared with Δf."
    return Section(
        "The problem",
        (
            "Δf = 10 + 10 sin 2πx sin 2πy on the square (−1, 1)², with f = 0 on the boundary. f and Δf are measured on "
            f"{count} × {count} Chebyshev nodes, each with noise of variance 1. The model is a Gaussian process with "
            "the kernel exp(−|x − y|²/2h²), conditioned on both. The boundary condition is not part of the model.",
        ),
        (Figure("problem", "Truth and measurements", caption, panels),),
    )


def _sweeps(results: xr.Dataset, summary: Mapping[str, Any]) -> Section:
    panels, rows = [], []
    for short, symbol in SYMBOLS.items():
        of, best = summary["sweeps"][short]["PILE"], summary["sweeps"][short]["best in the sweep"]
        chosen, true = of["mean"], summary["true"].get(short)
        scores = {name: results[f"{short}_{name}"] for name in ("R_data", "R_phys", "pile")}
        marks = [Mark(f"PILE chooses {digits(chosen)}", x=chosen)]
        if true is not None:
            marks.append(Mark(f"true value {digits(true)}", x=true, colour=5))
        panels.append(sweep_panel(f"{symbol[0].upper()}{symbol[1:]}", symbol, scores, "Δf", tuple(marks)))
        cells = ((of[error], best[error], of[f"{error}_regret"]) for error in ("R_data", "R_phys"))
        rows.append((symbol, chosen, of["pile"], *itertools.chain(*cells)))
    figure = Figure(
        "sweeps",
        "PILE and the true errors",
        "PILE (right axis) has its minimum at or near the point where both errors are small. For small ρ and γ it "
        "rises steeply, because the model fits the noise. For large h it rises, because the model cannot follow the "
        f"data. {_band_text(summary['settings']['seeds'])}",
        tuple(panels),
        columns=3,
    )
    table = TextTable(
        "The choice of PILE, its errors, and the best errors of the sweep, as means over seeds. The regret is the "
        "error of the choice divided by the best error. The best R_data and the best R_phys can be at different "
        "values.",
        ("sweep", "PILE chooses", "PILE", "R_data", "best", "regret", "R_phys", "best", "regret"),
        tuple(rows),
    )
    return Section(
        "One hyperparameter at a time",
        (
            "The bandwidth is swept first, at the true temperatures. The physics temperature ρ is swept at the "
            "bandwidth that PILE chose for each seed, and the data temperature γ at the chosen bandwidth and ρ. "
            "R_data and R_phys are the expected squared errors of the posterior (PPL2-G) in f and Δf, divided by ∫f² "
            "and ∫(Δf)². They need the truth; PILE does not.",
        ),
        (figure,),
        (table,),
    )


def _band_text(count: int) -> str:
    """Return the sentence that explains the curves and bands."""
    if count == 1:
        return "There is one seed, and therefore no band."
    return (
        f"Curves are means over {count} seeds and bands are ± two standard deviations. For errors both are computed "
        "from logarithms."
    )


def _rules(summary: Mapping[str, Any]) -> Section:
    sweeps, joint = summary["sweeps"], summary["joint"]["mean"]
    rows = [
        (f"{text[-1]} by {rule}", f"{text[-1]} = {digits(of['mean'])}", of["R_data"], of["R_phys"])
        for short, text in SYMBOLS.items()
        for rule, of in sweeps[short].items()
        if rule != "best in the sweep"
    ]
    values = f"h = {digits(joint['bandwidth'])}, γ = {digits(joint['gamma'])}, ρ = {digits(joint['rho'])}, "
    rows.append(("all together by PILE", f"{values}η = {digits(joint['eta'])}", joint["R_data"], joint["R_phys"]))
    sequence = sweeps["gamma"]["PILE"]
    better = [symbol for symbol, error in (("f", "R_data"), ("Δf", "R_phys")) if joint[error] < sequence[error]]
    compared = ("both are higher", f"only the error in {''.join(better)} is lower", "both are lower")[len(better)]
    table = TextTable(
        "The choice of each rule and its true errors, as means over seeds. ρ and γ are swept at the values that PILE "
        "chose in the sweeps before.",
        ("rule", "choice", "R_data", "R_phys"),
        tuple(rows),
        strong=len(rows) - 1,
    )
    return Section(
        "All hyperparameters together, and other rules",
        (
            "PILE has an exact gradient, so h, γ, ρ and the scale η can be found together, from h = 1, γ = 1, ρ = "
            f"0.1, η = 1, with {digits(joint['evaluations'])} evaluations on average. The errors are "
            f"{digits(joint['R_data'])} in f and {digits(joint['R_phys'])} in Δf. After the three sweeps they were "
            f"{digits(sequence['R_data'])} and {digits(sequence['R_phys'])}: {compared}. The minimisation also finds "
            f"the noise variances: {digits(joint['noise_variance_f'])} for f and "
            f"{digits(joint['noise_variance_laplacian'])} for Δf.",
            "Other rules choose from the same sweeps. Each training loss rewards a model for fitting the noise in its "
            f"own block, and the two losses disagree. Leave-one-out on the data judges f only. {_lost(sweeps)}",
        ),
        tables=(table,),
    )


def _lost(sweeps: Mapping[str, Any]) -> str:
    """Return a sentence on the sweeps in which another rule chose better than PILE."""
    cases = []
    for short, text in SYMBOLS.items():
        best = sweeps[short]["PILE"]
        for rule, of in sweeps[short].items():
            if "chosen" in of and of["R_data"] < 0.95 * best["R_data"] and of["R_phys"] < 1.05 * best["R_phys"]:
                numbers = f"R_data {digits(of['R_data'])} against {digits(best['R_data'])}"
                cases.append(f"for {text[-1]}, {rule} chose better ({numbers}, with R_phys at most 5% larger)")
    return f"PILE is not always best: {'; '.join(cases)}." if cases else "No rule chose better than PILE."


def _fits(results: xr.Dataset, summary: Mapping[str, Any]) -> Section:
    figures = []
    for suffix, symbol, caption in (
        (
            "",
            "f",
            "The under-smoothed fit follows the noise from node to node. The over-smoothed fit is wrong at the corners "
            "and edges, and its deviation does not show this.",
        ),
        (
            "_laplacian",
            "Δf",
            "Δf shows the failures clearly. Under-smoothed, it is noise (note the scale of its deviation). "
            "Over-smoothed, the waves are lost, but the deviation is still small.",
        ),
    ):
        truth, measured = results[f"truth{suffix}"], results[f"measured{suffix}"]
        means, deviations = results[f"fit_mean{suffix}"], results[f"fit_deviation{suffix}"]
        # The deviation of the under-smoothed fit is so large that it has a colour scale of its own.
        common = (0.0, float(deviations.sel(fit=["chosen", "over-smoothed"]).max()))
        panels = [
            _picture("truth", truth, symbol, limits=limits(measured)),
            _picture("measurements", measured, symbol, limits=limits(measured)),
            _picture("error of the chosen fit", abs(means.sel(fit="chosen") - truth), f"|error in {symbol}|"),
        ]
        for fit, of in summary["fits"].items():
            title = f"{fit}, h = {digits(of['bandwidth'])}"
            panels.append(_picture(title, means.sel(fit=fit), symbol, limits=limits(measured)))
        for fit in summary["fits"]:
            scale = None if fit == "under-smoothed" else common
            label = f"deviation of {symbol}"
            panels.append(_picture(f"deviation, {fit}", deviations.sel(fit=fit), label, limits=scale))
        name = f"fits_{'laplacian' if suffix else 'f'}"
        figures.append(Figure(name, f"Fits of {symbol} (seed 0)", caption, tuple(panels), columns=3))
    inside = ("within_two_deviations", "within_two_deviations_laplacian")
    table = TextTable(
        "Errors, and the share of the square where the truth lies within two posterior deviations of the fit (95% if "
        "the deviations are right).",
        ("fit", "h", "R_data", "R_phys", "f within two deviations", "Δf within two deviations"),
        tuple(
            (fit, of["bandwidth"], of["R_data"], of["R_phys"], *(percent(of[name]) for name in inside))
            for fit, of in summary["fits"].items()
        ),
        strong=1,
    )
    return Section(
        "Fits with other bandwidths",
        (
            "The same data are fitted with a bandwidth that is too small, with the one that PILE chose, and with one "
            "that is too large. A wrong model can look certain: the over-smoothed fit has small deviations.",
        ),
        tuple(figures),
        (table,),
    )
