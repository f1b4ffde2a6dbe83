"""The report of the convection study, made from its dataset and its summary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from ..reports import Curve, Figure, Lines, Mark, Picture, Report, Section, TextTable, digits
from .report_parts import checks_section, details, picture, sweep_panel

PUBLISHED = {20: (0.750, 0.00984), 30: (0.897, 0.0202), 40: (0.961, 0.0533)}
"""Relative L² errors of PINNs by β, for each kind of `TRAINING`: Krishnapriyan et al., NeurIPS 2021."""
TRAINING = ("regular training", "curriculum training")
SYMBOLS = {"theta": "θ", "s": "s", "bandwidth": "h", "gamma": "γ", "rho": "ρ", "eta": "η", "lower": "↓", "upper": "↑"}


def report(results: xr.Dataset, summary: Mapping[str, Any]) -> Report:
    """Return the report of the convection study."""
    best, loud = summary["joint"]["best"], summary["isotropic"]["1"]
    beta = digits(summary["settings"]["beta"])
    if isotropic_fails(summary):
        subject = "no bandwidth works, and PILE says so"
        first = "An isotropic kernel cannot follow it, whatever its bandwidth. PILE shows this,"
    else:
        subject, first = "which kernel suits the equation?", "PILE chooses the bandwidth of an isotropic kernel,"
    return Report(
        title=f"Convection, β = {beta}: {subject}",
        lead=(
            f"A wave f = sin(x − βt) travels at the speed β. {first} finds a kernel that suits the equation without "
            "any data, and then finds the direction of the wave from noisy values."
        ),
        verdicts=(
            (f"{loud['relative_l2']:.2f}", "relative L² error of the isotropic kernel chosen by PILE, noise 1"),
            (
                angle(best["theta"]),
                f"direction found by minimising PILE (arctan {beta} = {angle(summary['direction'])})",
            ),
            (digits(best["noise_variance"]), "noise variance found by the same minimisation (true: 0.01)"),
            (digits(best["relative_l2"]), "relative L² error at this minimum"),
        ),
        sections=(
            _problem(results, summary),
            _isotropic(results, summary),
            _landscape(results, summary),
            _anisotropic(results, summary),
            _joint(results, summary),
            _published(summary),
            checks_section(summary),
        ),
        details=details(summary),
    )


def angle(value: float) -> str:
    """Format an angle with five decimal places."""
    return f"{value:.5f}".replace("-", "−")


def is_zero_solution(choice: Mapping[str, Any]) -> bool:
    """Whether the model that PILE chose from a sweep is close to the all-zero solution."""
    return bool(choice["relative_l2"] > 0.9)


def isotropic_fails(summary: Mapping[str, Any]) -> bool:
    """Whether no isotropic kernel makes both errors small, and PILE chooses the zero solution at noise 1."""
    sweeps = summary["isotropic"]
    return is_zero_solution(sweeps["1"]) and not any(choice["works"] for choice in sweeps.values())


def _problem(results: xr.Dataset, summary: Mapping[str, Any]) -> Section:
    settings = summary["settings"]
    titles = {
        "isotropic at noise 1": "isotropic, noise 1",
        "isotropic at noise 0.1": "isotropic, noise 0.1",
        "anisotropic at noise 0.1": "oriented, noise 0.1",
        "joint minimum": "joint minimum, noise 0.1",
        "collapsed optimum": "collapsed optimum, noise 0.1",
    }
    fits = [str(fit) for fit in results["fit"].values]
    fields = {"truth": results["truth"]} | {titles[fit]: results["fit_mean"].sel(fit=fit) for fit in fits}
    panels = tuple(picture(title, field, "f", diverging=True, limits=(-1.2, 1.2)) for title, field in fields.items())
    caption = ["Each model is the best of its family by PILE."]
    if is_zero_solution(summary["isotropic"]["1"]):
        caption.append("For the isotropic kernel at noise 1 this is the all-zero solution.")
    if "collapsed optimum" in fits:
        caption.append("The last panel is a local minimum that explains everything as noise. Its PILE is higher.")
    side = settings["side"]
    return Section(
        "The problem",
        (
            f"f_t + β f_x = 0 with β = {digits(settings['beta'])} for 0 < t < 1, 0 < x < 2π. The solution sin(x − βt) "
            f"is constant along the characteristics x − βt = const. The data are {settings['data']} noisy values of f "
            f"at random points. The equation is imposed at {side} × {side} nodes. There is no boundary or initial "
            "condition.",
        ),
        (Figure("fits", "The truth and the models (seed 0)", " ".join(caption), panels, columns=3),),
    )


def _sweep(results: xr.Dataset, summary: Mapping[str, Any], kind: str) -> tuple[Lines, ...]:
    panels = []
    for noise in results["noise"].values:
        chosen = summary[kind][f"{noise:g}"]["mean"]
        scores = {name: results[f"{kind}_{name}"].sel(noise=noise) for name in ("R_data", "R_phys", "pile")}
        marks = (Mark(f"PILE chooses {digits(chosen)}", x=chosen),)
        panels.append(sweep_panel(f"noise {noise:g}", "bandwidth h", scores, "the equation", marks))
    return tuple(panels)


def _sweep_table(summary: Mapping[str, Any], kind: str) -> TextTable:
    columns = {
        "PILE chooses h": "mean",
        "PILE": "pile",
        "relative L² error": "relative_l2",
        "R_phys": "R_phys",
        "smallest L² error": "best_relative_l2",
        "at h": "best_bandwidth",
        "R_phys at this h": "R_phys_there",
    }
    rows = tuple((noise, *(choice[name] for name in columns.values())) for noise, choice in summary[kind].items())
    caption = "Results at the choice of PILE and at the smallest error in f, as means over seeds."
    return TextTable(caption, ("noise", *columns), rows)


def _isotropic(results: xr.Dataset, summary: Mapping[str, Any]) -> Section:
    loud, quiet = summary["isotropic"]["1"], summary["isotropic"]["0.1"]
    fails = isotropic_fails(summary)
    errors = (
        "The kernel exp(−|x − y|²/2h²) has one bandwidth for t and x. A fast wave needs a short bandwidth in t, but "
        "the equation holds between its nodes only with a long one. With noise 1 the smallest relative L² error in f "
        f"is {digits(loud['best_relative_l2'])}, at h = {digits(loud['best_bandwidth'])}. R_phys, the expected "
        f"squared error in the equation divided by β²∫f_x², is {digits(loud['R_phys_there'])} there. With noise 0.1 "
        f"the values are {digits(quiet['best_relative_l2'])}, {digits(quiet['best_bandwidth'])} and "
        f"{digits(quiet['R_phys_there'])}."
    )
    choice = f"With noise 1 PILE chooses h = {digits(loud['mean'])}, with an error of {digits(loud['relative_l2'])}."
    if is_zero_solution(loud):
        choice = (
            f"With noise 1 PILE chooses h = {digits(loud['mean'])}; the range ends at 5. This is the all-zero solution "
            f"(error {digits(loud['relative_l2'])}): it satisfies the equation and explains the data as noise. A "
            "minimum at the end of the range that explains nothing is how PILE shows that a family of kernels cannot "
            "use the data."
        )
    choice += (
        f" With noise 0.1 it chooses h = {digits(quiet['mean'])}: the error in f is {digits(quiet['relative_l2'])} and "
        f"R_phys is {digits(quiet['R_phys'])}{', so the equation is not satisfied' * fails}."
    )
    caption = "PILE and the true errors, for large and small noise."
    if fails:
        caption = (
            "The two errors are never small at the same bandwidth. With noise 1 PILE chooses the all-zero solution."
        )
    title = "Isotropic kernel: errors and PILE against the bandwidth"
    return Section(
        f"An isotropic kernel{': no bandwidth works' * fails}",
        (errors, choice),
        (Figure("isotropic", title, caption, _sweep(results, summary, "isotropic")),),
        (_sweep_table(summary, "isotropic"),),
    )


def _landscape(results: xr.Dataset, summary: Mapping[str, Any]) -> Section:
    landscapes = summary["landscape"]
    equation = landscapes["equation"]
    cuts = tuple(
        Curve(
            f"β = {digits(of['beta'])}",
            results["theta"].values,
            results[f"landscape_{name}_value"].sel(s=of["s"]).values,
            colour=colour,
        )
        for colour, (name, of) in enumerate(landscapes.items())
    )
    panels = [_landscape_panel(results, of, name) for name, of in landscapes.items()]
    stretch = digits(equation["s"])
    cut = Lines(f"cut at s = {stretch}", "θ", "log det(I + G)", cuts, _characteristics(equation, 0))
    figure = Figure(
        "landscape",
        "Data-free PILE over rotation and stretch",
        "Dark is low, and low is good. Diamonds mark the minimum on the grid, and lines the direction of the "
        "characteristics. The third panel is a cut along the lower edge.",
        (*panels, cut),
        columns=3,
    )
    rows = []
    for of in landscapes.values():
        minimum = (angle(of["theta"]), of["distance"], of["step"], of["s"], angle(of["refined"]["theta"]))
        error = f"{digits(of['resolution_error'])}, {of['resolution']}"
        rows.append((of["beta"], angle(of["arctan_beta"]), *minimum, error))
    table = TextTable(
        "Minima on the grid, their refinement by gradient within one step, and the change of the minimum under a finer "
        "quadrature rule.",
        ("β", "arctan β", "θ*", "distance", "step", "s*", "θ* refined", "resolution error"),
        tuple(rows),
    )
    at_end = "s is at the lower end of its range: a longer kernel along θ is better. " * (equation["s"] == 0.5)
    return Section(
        "Which kernel suits the equation? No data needed",
        (
            "The kernels are exp(−½ δᵀMδ) with M = Rot(θ) diag(s², s⁻²) Rot(θ)ᵀ. They have the length 1/s along the "
            "direction θ in the (t, x) plane, and s across it. Without data PILE is the logarithm of a Fredholm "
            "determinant, log det(I + G). It measures how much of the prior the equation rules out, and is lowest for "
            "a kernel whose functions nearly satisfy the equation already.",
            f"For β = {digits(equation['beta'])} the minimum is at θ = {angle(equation['theta'])}, s = {stretch}. The "
            f"characteristics have the direction arctan β = {angle(equation['arctan_beta'])}. Modulo π the two differ "
            f"by {digits(equation['distance'])}; one grid step is {digits(equation['step'])}. {at_end}The landscape "
            "has two symmetries. It repeats after half a turn. And (θ, s) and (θ + π/2, 1/s) are the same kernel, so "
            "the valley at s < 1 appears again at s > 1, a quarter turn away.",
            "The landscape in the paper that introduced PILE has its minimum near θ = 1.41. That is arctan 2π = "
            f"{angle(landscapes['two_pi']['arctan_beta'])}, the direction for β = 2π. This landscape is also shown.",
        ),
        (figure,),
        (table,),
    )


def _characteristics(of: Mapping[str, Any], colour: int) -> tuple[Mark, ...]:
    """Return marks at the direction of the characteristics and at its opposite, both within (−π, π)."""
    name, direction = f"arctan {digits(of['beta'])}", of["arctan_beta"]
    turn, sign = (-math.pi, "−") if direction > 0 else (math.pi, "+")
    return Mark(name, x=direction, colour=colour), Mark(f"{name} {sign} π", x=direction + turn, colour=colour)


def _landscape_panel(results: xr.Dataset, of: Mapping[str, Any], name: str) -> Picture:
    opposite = of["theta"] + (math.pi if of["theta"] < 0 else -math.pi)
    marks = (
        Mark("minimum", of["theta"], of["s"], colour=1),
        Mark("the same kernel, half a turn away", opposite, of["s"], colour=1),
        *_characteristics(of, 4),
    )
    values = results[f"landscape_{name}_value"]
    return picture(f"β = {digits(of['beta'])}", values, "log det(I + G)", ("θ", "s"), marks=marks)


def _anisotropic(results: xr.Dataset, summary: Mapping[str, Any]) -> Section:
    quiet, loud = summary["anisotropic"]["0.1"], summary["anisotropic"]["1"]
    before, refined = summary["isotropic"]["0.1"], summary["landscape"]["equation"]["refined"]
    at_noise_1 = f"With noise 1 it chooses h = {digits(loud['mean'])}, with an error of {digits(loud['relative_l2'])}."
    if is_zero_solution(loud):
        at_noise_1 = (
            f"With noise 1 the stretch of {digits(refined['s'])} is not enough: PILE again explains everything as "
            f"noise (h = {digits(loud['mean'])}, error {digits(loud['relative_l2'])})."
        )
    title = "Oriented kernel: errors and PILE against the bandwidth"
    caption = (
        f"With noise 0.1, R_data at the choice of PILE is {digits(quiet['R_data'])}. With the isotropic kernel it was "
        f"{digits(before['R_data'])}."
    )
    return Section(
        "The same sweep with the oriented kernel",
        (
            "This sweep uses the kernel chosen without data, refined within one grid step (θ = "
            f"{angle(refined['theta'])}, s = {digits(refined['s'])}), and the same data. With noise 0.1 PILE chooses "
            f"h = {digits(quiet['mean'])}. The relative L² error falls from {digits(before['relative_l2'])} with the "
            f"isotropic kernel to {digits(quiet['relative_l2'])}, and R_phys from {digits(before['R_phys'])} to "
            f"{digits(quiet['R_phys'])}. {at_noise_1}",
        ),
        (Figure("anisotropic", title, caption, _sweep(results, summary, "anisotropic")),),
        (_sweep_table(summary, "anisotropic"),),
    )


def _joint(results: xr.Dataset, summary: Mapping[str, Any]) -> Section:
    """Return the section on minimisations from generic starts and from the data-free choice."""
    joint = summary["joint"]
    best, mean, worst, collapsed = joint["best"], joint["informed_mean"], joint["informed_worst"], joint["collapsed"]
    count, beta = len(joint["generic"]), digits(summary["settings"]["beta"])
    generic = (
        f"PILE is minimised by gradient over θ, s, h, γ, ρ and η, at noise 0.1, from {count} starts of a Sobol "
        f"sequence. None is within 0.1 of arctan {beta} = {angle(summary['direction'])}. The best minimum has θ = "
        f"{angle(best['theta'])}, a noise variance of {digits(best['noise_variance'])} (true: 0.01), a relative L² "
        f"error of {digits(best['relative_l2'])} and PILE {digits(best['pile'])}. {joint['reached']} of {count} "
        "starts find the wave (its direction, and an error below 0.1) from noisy data and the equation alone."
    )
    if collapsed:
        second = (
            f"{joint['collapsed_starts']} of {count} starts end in a second minimum, which explains everything as "
            f"noise: variance {digits(collapsed['noise_variance'])}, error {digits(collapsed['relative_l2'])}. The "
            "descents converge normally there, and θ may even be right. But PILE is "
            f"{digits(collapsed['pile'])}, higher than at the best minimum by {digits(joint['collapsed_gap'])}. So "
            "several starts are needed, and PILE tells the two minima apart."
        )
    elif joint["collapsed_starts"]:
        second = (
            f"{joint['collapsed_starts']} of {count} starts end in a collapsed minimum, which explains everything as "
            "noise, and the lowest PILE of all starts is one of them: PILE finds no model here that explains these "
            "data better than noise."
        )
    else:
        second = f"None of these {count} starts ended in a collapsed minimum, which explains everything as noise."
    informed = (
        "The minimisation also starts from the kernel chosen without data, with the bandwidth and temperatures of the "
        f"sweep above (γ is the true one) and new data for every seed. The error is {digits(mean['relative_l2'])} on "
        f"average and at most {digits(worst['relative_l2'])}, and the direction is off by at most "
        f"{digits(worst['off'])}. The table lists hyperparameters at their bounds. ρ and s at the lower bound and h "
        "at the upper bound are correct here: the equation holds exactly and the solution is constant along the "
        "characteristics, so no physics noise is too small and no kernel is too long."
    )
    starts = {f"start {i + 1}": row for i, row in enumerate(joint["generic"])}
    starts |= {f"data-free choice, seed {i}": row for i, row in enumerate(joint["informed"])}
    table = TextTable(
        "The first and last point of each descent. The best generic start is highlighted. ↓ is the lower bound, ↑ the "
        "upper bound.",
        ("start", "initial θ, s, h", "θ", "s", "h", "noise variance", "PILE", "L² error", "at bounds"),
        tuple((name, *_descent_row(row)) for name, row in starts.items()),
        strong=joint["best_start"],
    )
    caption, limits = "Each curve is one start. Lower is better.", None
    if collapsed:
        caption += " Curves end at two levels: the collapsed minimum above and the wave below."
        limits = best["pile"] - 0.3 * joint["collapsed_gap"], best["pile"] + 4 * joint["collapsed_gap"]
    panels = (
        _descents("generic starts, seed 0", results["generic_path"], "start", limits),
        _descents("from the data-free choice", results["informed_path"], "seed", limits),
    )
    return Section(
        "All hyperparameters together",
        (generic, second, informed),
        (Figure("descents", "Descents of PILE", caption, panels),),
        (table,),
    )


def _descent_row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    start = ", ".join(digits(row[f"start_{name}"]) for name in ("theta", "s", "bandwidth"))
    numbers = (row[name] for name in ("s", "bandwidth", "noise_variance", "pile", "relative_l2"))
    return start, angle(row["theta"]), *numbers, _bound_symbols(row["at_bounds"])


def _bound_symbols(at_bounds: str) -> str:
    """Return hyperparameters at their bounds as symbols: "bandwidth upper, rho lower" becomes "h ↑, ρ ↓"."""
    bounds = [bound for bound in at_bounds.split(", ") if bound]
    return ", ".join(" ".join(SYMBOLS[word] for word in bound.split()) for bound in bounds) or "none"


def _descents(title: str, paths: xr.DataArray, what: str, limits: tuple[float, float] | None) -> Lines:
    curves = tuple(
        Curve(f"{what} {i + 1 if what == 'start' else i}", np.arange(len(path)), path.values, colour=i)
        for i, path in enumerate(paths)
    )
    return Lines(title, "accepted step", "PILE", curves, y_limits=limits)


def _published(summary: Mapping[str, Any]) -> Section:
    settings, joint = summary["settings"], summary["joint"]
    beta = digits(settings["beta"])
    published = [
        (errors[training], f"PINN, {training}, β = {speed}", "published")
        for training in TRAINING
        for speed, errors in summary["published"].items()
    ]
    own = (
        (summary["isotropic"]["0.1"], "isotropic kernel", "here"),
        (summary["anisotropic"]["0.1"], "oriented kernel", "here"),
        (joint["best"], "joint minimum, best start", "here"),
        (joint["informed_mean"], "joint minimum, data-free start", "here, mean over seeds"),
    )
    here = [(of["relative_l2"], f"{name}, β = {beta}, noise 0.1", source) for of, name, source in own]
    header, strong = ("relative L² error", "model", "source"), len(published) + 2
    missing = "" if f"{settings['beta']:g}" in summary["published"] else f" None was published for β = {beta}."
    return Section(
        "Published errors of networks",
        (
            "Krishnapriyan et al. (NeurIPS 2021) showed that physics-informed neural networks fail on this equation. "
            f"Their errors are quoted; they were not computed here.{missing} The settings differ. The networks know "
            "the exact initial and periodic boundary values and no values inside. The models here know neither "
            f"condition, but have {settings['data']} noisy values inside. The numbers show how hard the equation is, "
            "not which method is better.",
        ),
        tables=(TextTable("Relative L² errors.", header, (*published, *here), strong),),
    )
