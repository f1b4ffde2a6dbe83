"""What the convection study shows and says, from its dataset and its summary alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from pilescore.charts import Curve, Figure, Lines, Mark, Picture, Report, Section, TextTable

from .words import checks_table, details, digits, error_curve, score_curve

PUBLISHED = {20: (0.750, 0.00984), 30: (0.897, 0.0202), 40: (0.961, 0.0533)}
"""Relative L² errors of a PINN by β: Krishnapriyan et al., NeurIPS 2021."""
KINDS = ("regular training", "curriculum training")
SYMBOLS = {"theta": "θ", "s": "s", "bandwidth": "h", "gamma": "γ", "rho": "ρ", "eta": "η", "lower": "↓", "upper": "↑"}


def report(results: xr.Dataset, summary: Mapping[str, Any]) -> Report:
    """Return the report of the convection study."""
    joint, loud = summary["joint"], summary["isotropic"]["1"]
    beta = digits(summary["settings"]["beta"])
    if gave_up(loud):
        subject = "no bandwidth works, and PILE says so"
        first = (
            "A kernel that treats all directions alike cannot follow it through the noise, whatever its bandwidth. "
            "PILE says so, finds"
        )
    else:
        subject, first = "which kernel suits the equation?", "PILE chooses the bandwidth of an isotropic kernel, finds"
    return Report(
        title=f"Convection, β = {beta}: {subject}",
        lead=(
            f"A wave travels, f = sin(x − βt). {first} the kernel that suits the equation before there are any data, "
            "and then looks for the direction of the wave in noisy values."
        ),
        verdicts=(
            (f"{loud['relative_l2']:.2f}", "relative L² error of the isotropic kernel that PILE chose, noise 1"),
            (
                digits5(joint["best"]["theta"]),
                f"direction found by minimising PILE; arctan {beta} is {digits5(summary['direction'])}",
            ),
            (digits(joint["best"]["noise_variance"]), "noise variance found with it (true: 0.01)"),
            (digits(joint["best"]["relative_l2"]), "relative L² error there"),
        ),
        sections=(
            _problem(results, summary),
            _isotropic(results, summary),
            _landscape(results, summary),
            _anisotropic(results, summary),
            _joint(results, summary),
            _published(summary),
            checks_table(summary),
        ),
        details=details(summary),
    )


def gave_up(of: Mapping[str, Any]) -> bool:
    """Whether the model that PILE chose from a sweep is the all-zero solution."""
    return bool(of["relative_l2"] > 0.9)


def digits5(value: float) -> str:
    """Return an angle with five digits after the point."""
    return f"{value:.5f}".replace("-", "−")


def _problem(results: xr.Dataset, summary: Mapping[str, Any]) -> Section:
    settings, kinds = summary["settings"], _kinds(results)
    panels = [_picture("the truth", results["truth"])]
    panels += [_picture(title, results["fit_mean"].sel(fit=fit)) for fit, title in kinds.items()]
    side = settings["side"]
    seen = ["Each model is the best of its family by PILE."]
    if gave_up(summary["isotropic"]["1"]):
        seen.append("The isotropic kernel gives up at noise 1, and at noise 0.1 follows the data as far as it can.")
    if "collapsed optimum" in kinds:
        seen.append("The last is a local optimum, which calls everything noise; PILE rejects it.")
    return Section(
        "The problem",
        (
            f"f_t + β f_x = 0 with β = {digits(settings['beta'])} for 0 < t < 1, 0 < x < 2π. The solution is sin(x "
            f"− βt): constant along the lines x − βt = const, the characteristics. {settings['data']} values of f "
            f"at random points are known with noise, and the equation is imposed at {side} × {side} nodes, with "
            "nothing on the boundary or at t = 0.",
        ),
        (
            Figure(
                "fits",
                "The truth, and models of it (seed 0)",
                " ".join(seen),
                tuple(panels),
                columns=3,
            ),
        ),
    )


def _kinds(results: xr.Dataset) -> dict[str, str]:
    titles = {
        "isotropic at noise 1": "isotropic, noise 1",
        "isotropic at noise 0.1": "isotropic, noise 0.1",
        "anisotropic at noise 0.1": "oriented, noise 0.1",
        "joint minimum": "joint minimum, noise 0.1",
        "collapsed optimum": "collapsed optimum, noise 0.1",
    }
    return {str(fit): titles[str(fit)] for fit in results["fit"].values}


def _sweep(results: xr.Dataset, summary: Mapping[str, Any], kind: str) -> tuple[Lines, ...]:
    panels = []
    for noise in results["noise"].values:
        chosen = summary[kind][f"{noise:g}"]["mean"]
        of = {name: results[f"{kind}_{name}"].sel(noise=noise) for name in ("R_data", "R_phys", "pile")}
        panels.append(
            Lines(
                title=f"noise {noise:g}",
                x_label="bandwidth h",
                y_label="relative error",
                curves=(
                    error_curve("R_data, error in f", of["R_data"], "bandwidth", 0),
                    error_curve("R_phys, error in the equation", of["R_phys"], "bandwidth", 1),
                    score_curve("PILE", of["pile"], "bandwidth", 2),
                ),
                marks=(Mark(f"PILE chooses {digits(chosen)}", x=chosen),),
                x_log=True,
                y_log=True,
                right_label="PILE",
                right_log=bool((of["pile"] > 0).all()) and float(of["pile"].max()) > 10 * float(of["pile"].min()),
            )
        )
    return tuple(panels)


def _sweep_table(summary: Mapping[str, Any], kind: str) -> TextTable:
    header = (
        "noise",
        "PILE chooses h",
        "PILE",
        "relative L² error",
        "R_phys",
        "smallest L² error",
        "at h",
        "R_phys there",
    )
    names = ("mean", "pile", "relative_l2", "R_phys", "best_relative_l2", "best_bandwidth", "R_phys_there")
    rows = tuple((noise, *(digits(of[name]) for name in names)) for noise, of in summary[kind].items())
    return TextTable("At PILE's choice, and where the error in f is smallest; means of all seeds.", header, rows)


def _isotropic(results: xr.Dataset, summary: Mapping[str, Any]) -> Section:
    loud, quiet = summary["isotropic"]["1"], summary["isotropic"]["0.1"]
    fails = gave_up(loud)
    paragraphs = [
        "The kernel exp(−|x − y|²/2h²) has one bandwidth for t and x. A fast wave wants a short one in t; the "
        "equation, to hold between its nodes, a long one. With noise 1 the smallest relative L² error in f is "
        f"{digits(loud['best_relative_l2'])}, at h = {digits(loud['best_bandwidth'])}, where R_phys, the expected "
        f"squared error in the equation over β²∫f_x², is {digits(loud['R_phys_there'])}. With noise 0.1 they are "
        f"{digits(quiet['best_relative_l2'])}, {digits(quiet['best_bandwidth'])} and "
        f"{digits(quiet['R_phys_there'])}.",
    ]
    if fails:
        paragraphs.append(
            f"No bandwidth works. What PILE did about it: with noise 1 it chooses h = {digits(loud['mean'])}, in the "
            "mean of the seeds, of a range that ends at 5. That is the all-zero solution (error "
            f"{digits(loud['relative_l2'])}): it satisfies the equation, and calls the data noise. A minimum at the "
            "end of the range, with nothing explained, is how PILE says that the family does not suit the problem."
        )
        seen = "The two errors are never small together, and with noise 1 PILE runs to the all-zero solution."
    else:
        paragraphs.append(
            f"At this β PILE finds a bandwidth: {digits(loud['mean'])} with noise 1 (error "
            f"{digits(loud['relative_l2'])}), {digits(quiet['mean'])} with noise 0.1 (error "
            f"{digits(quiet['relative_l2'])})."
        )
        seen = "PILE against the true errors, for large and for small noise."
    return Section(
        f"An isotropic kernel{': no bandwidth works' if fails else ''}",
        tuple(paragraphs),
        (
            Figure(
                "isotropic",
                "Isotropic kernel: errors and PILE against the bandwidth",
                seen,
                _sweep(results, summary, "isotropic"),
            ),
        ),
        (_sweep_table(summary, "isotropic"),),
    )


def _landscape(results: xr.Dataset, summary: Mapping[str, Any]) -> Section:
    of = summary["landscape"]["equation"]
    panels = [_landscape_panel(results, each, name) for name, each in summary["landscape"].items()]
    marks = _directions(of, 0)
    cuts = [
        Curve(
            f"β = {digits(each['beta'])}",
            results["theta"].values,
            results[f"landscape_{name}_value"].sel(s=each["s"]).values,
            colour=number,
        )
        for number, (name, each) in enumerate(summary["landscape"].items())
    ]
    low = digits(of["s"])
    cut = Lines(f"cut at s = {low}", "θ", "log det(I + G)", tuple(cuts), marks)
    rows = tuple(
        (
            digits(each["beta"]),
            digits5(each["arctan_beta"]),
            digits5(each["theta"]),
            digits(each["distance"]),
            digits(each["step"]),
            digits(each["s"]),
            digits5(each["refined"]["theta"]),
            f"{digits(each['resolution_error'])}, {each['resolution']}",
        )
        for each in summary["landscape"].values()
    )
    return Section(
        "Which kernel suits the equation? No data needed",
        (
            "Take kernels exp(−½ δᵀMδ) with M = Rot(θ) diag(s², s⁻²) Rot(θ)ᵀ: of length 1/s along the direction θ "
            "in the (t, x) plane, and s across it. With no data at all PILE is the logarithm of a Fredholm "
            "determinant, log det(I + G): how much of the prior the equation rules out. It is lowest for the "
            "kernel that already knows the equation.",
            f"For β = {digits(of['beta'])} it is lowest at θ = {digits5(of['theta'])}, s = {low}: the "
            f"characteristics have the direction arctan β = {digits5(of['arctan_beta'])}, and modulo π the two "
            f"differ by {digits(of['distance'])} (one step of the grid is {digits(of['step'])}). s is at the lower "
            "end of its range: the longer along the characteristics, the better. Two symmetries show: the "
            "landscape repeats after half a turn, and (θ, s) is the same kernel as (θ + π/2, 1/s), so that the "
            "valley at s < 1 comes back a quarter turn on at s > 1.",
            "A landscape published for β = 30 has its minimum near θ = 1.41. That is arctan 2π = "
            f"{digits5(summary['landscape']['two_pi']['arctan_beta'])}: the landscape of β = 2π, shown beside it.",
        ),
        (
            Figure(
                "landscape",
                "Data-free PILE over rotation and stretch",
                "Dark is good. The diamond marks the minimum; it lies on the dashed line, the direction of the "
                "characteristics, at the least stretch s. The third panel is a cut along the lower edge.",
                (*panels, cut),
                columns=3,
            ),
        ),
        (
            TextTable(
                "Minima on the grid; refined by gradient within one step; and the change of the minimum under a finer "
                "quadrature rule.",
                ("β", "arctan β", "θ*", "distance", "step", "s*", "θ* refined", "resolution error"),
                rows,
            ),
        ),
    )


def _directions(of: Mapping[str, Any], colour: int) -> tuple[Mark, ...]:
    """Return the direction of the characteristics and its opposite, both within (−π, π)."""
    name, angle = f"arctan {digits(of['beta'])}", of["arctan_beta"]
    turn = -math.pi if angle > 0 else math.pi
    return Mark(name, x=angle, colour=colour), Mark(
        f"{name} {'−' if turn < 0 else '+'} π", x=angle + turn, colour=colour
    )


def _landscape_panel(results: xr.Dataset, of: Mapping[str, Any], name: str) -> Picture:
    values = results[f"landscape_{name}_value"]
    other = of["theta"] + (math.pi if of["theta"] < 0 else -math.pi)
    return Picture(
        f"β = {digits(of['beta'])}",
        "θ",
        "s",
        values["theta"].values,
        values["s"].values,
        values.values.T,
        "log det(I + G)",
        marks=(
            Mark("minimum", of["theta"], of["s"], colour=1),
            Mark("the same, half a turn on", other, of["s"], colour=1),
            *_directions(of, 4),
        ),
    )


def _anisotropic(results: xr.Dataset, summary: Mapping[str, Any]) -> Section:
    quiet, loud = summary["anisotropic"]["0.1"], summary["anisotropic"]["1"]
    before, refined = summary["isotropic"]["0.1"], summary["landscape"]["equation"]["refined"]
    still = (
        f"With noise 1 the stretch of {digits(refined['s'])} is too little: PILE again prefers to call everything "
        f"noise (h = {digits(loud['mean'])}, error {digits(loud['relative_l2'])})."
        if gave_up(loud)
        else f"With noise 1 it chooses h = {digits(loud['mean'])}, with an error of {digits(loud['relative_l2'])}."
    )
    return Section(
        "The same sweep with that kernel",
        (
            f"The kernel chosen without data, refined within its grid cell (θ = {digits5(refined['theta'])}, s = "
            f"{digits(refined['s'])}), and the same data. With noise 0.1 PILE chooses h = {digits(quiet['mean'])}. "
            f"The relative L² error goes from {digits(before['relative_l2'])}, with the isotropic kernel, to "
            f"{digits(quiet['relative_l2'])}; R_phys from {digits(before['R_phys'])} to {digits(quiet['R_phys'])}. "
            f"{still}",
        ),
        (
            Figure(
                "anisotropic",
                "Oriented kernel: errors and PILE against the bandwidth",
                f"With noise 0.1, R_data at PILE's choice is {digits(quiet['R_data'])}; it was "
                f"{digits(before['R_data'])} with the isotropic kernel.",
                _sweep(results, summary, "anisotropic"),
            ),
        ),
        (_sweep_table(summary, "anisotropic"),),
    )


def _joint(results: xr.Dataset, summary: Mapping[str, Any]) -> Section:
    joint = summary["joint"]
    best, mean, worst, collapsed = joint["best"], joint["informed_mean"], joint["informed_worst"], joint["collapsed"]
    count, beta = len(joint["generic"]), digits(summary["settings"]["beta"])
    paragraphs = [
        f"All of θ, s, h, γ, ρ and η by the gradient of PILE, at noise 0.1, from {count} starts of a Sobol "
        f"sequence, none within 0.1 of arctan {beta} = {digits5(summary['direction'])}. The best has θ = "
        f"{digits5(best['theta'])}, a noise variance of {digits(best['noise_variance'])} (true: 0.01), a relative "
        f"L² error of {digits(best['relative_l2'])} and PILE {digits(best['pile'])}. {joint['reached']} of {count} "
        "starts find the characteristic direction, from noisy data and the equation alone.",
    ]
    if collapsed:
        paragraphs.append(
            f"{joint['collapsed_starts']} of {count} end in a second optimum, in which everything is noise: variance "
            f"{digits(collapsed['noise_variance'])}, error {digits(collapsed['relative_l2'])}. Nothing in the "
            f"descent warns of it. PILE does: it is {digits(collapsed['pile'])} there, "
            f"{digits(joint['collapsed_gap'])} higher than at the best. Several starts are needed, and "
            "PILE tells the two apart."
        )
    else:
        paragraphs.append(f"None of these {count} starts ended in the collapsed optimum, in which everything is noise.")
    paragraphs.append(
        "Started from the kernel that was chosen without data, with new data for every seed "
        f"({len(joint['informed'])} in all), the error is {digits(mean['relative_l2'])} in the mean and at most "
        f"{digits(worst['relative_l2'])}, and the direction is off by at most {digits(worst['off'])}. Some "
        "hyperparameters end at their bounds, which the table says: the solution is exactly constant along the "
        "characteristics and satisfies the equation exactly, so that the evidence asks for ever more stretch and "
        "ever less physics noise."
    )
    starts = {f"start {i + 1}": row for i, row in enumerate(joint["generic"])}
    starts |= {f"data-free choice, seed {i}": row for i, row in enumerate(joint["informed"])}
    header = ("start", "from θ, s, h", "θ", "s", "h", "noise variance", "PILE", "L² error", "at bounds", "evaluations")
    seen = "Each curve is one start; lower is better."
    if collapsed:
        seen += " Two floors: the collapsed optimum above, the characteristic direction below."
    floor = best["pile"]
    limits = None if not collapsed else (floor - 0.3 * joint["collapsed_gap"], floor + 4 * joint["collapsed_gap"])
    return Section(
        "Everything at once, from generic starts",
        tuple(paragraphs),
        (
            Figure(
                "descents",
                "Descents of PILE",
                seen,
                (
                    _descents("generic starts, seed 0", results["generic_path"], "start", limits),
                    _descents("from the data-free choice", results["informed_path"], "seed", limits),
                ),
            ),
        ),
        (
            TextTable(
                "Where each start began and ended; the best generic one is stressed. Bounds: ↓ the lower, ↑ the upper.",
                header,
                tuple((name, *_row(row)) for name, row in starts.items()),
                strong=joint["best_start"],
            ),
        ),
    )


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    start = ", ".join(digits(row[f"start_{name}"]) for name in ("theta", "s", "bandwidth"))
    numbers = [digits(row[name]) for name in ("s", "bandwidth", "noise_variance", "pile", "relative_l2")]
    return start, digits5(row["theta"]), *numbers, _arrows(row["at_bounds"]), str(row["evaluations"])


def _arrows(edges: str) -> str:
    """Return hyperparameters at their bounds as symbols: `h ↑, ρ ↓`."""
    return ", ".join(" ".join(SYMBOLS[word] for word in edge.split()) for edge in edges.split(", ") if edge) or "none"


def _descents(title: str, paths: xr.DataArray, what: str, limits: tuple[float, float] | None) -> Lines:
    curves = tuple(
        Curve(f"{what} {i + 1 if what == 'start' else i}", np.arange(len(path)), path.values, colour=i)
        for i, path in enumerate(paths)
    )
    return Lines(title, "accepted step", "PILE", curves, y_limits=limits)


def _published(summary: Mapping[str, Any]) -> Section:
    settings, best = summary["settings"], summary["joint"]["best"]
    mean = summary["joint"]["informed_mean"]
    beta = digits(settings["beta"])
    rows = [
        (f"PINN, {kind}, β = {each}", digits(errors[kind]), "published")
        for kind in KINDS
        for each, errors in summary["published"].items()
    ]
    here = [
        (f"isotropic kernel, β = {beta}, noise 0.1", digits(summary["isotropic"]["0.1"]["relative_l2"]), "here"),
        (f"oriented kernel, β = {beta}, noise 0.1", digits(summary["anisotropic"]["0.1"]["relative_l2"]), "here"),
        (f"joint minimum, best start, β = {beta}, noise 0.1", digits(best["relative_l2"]), "here"),
        (f"joint minimum, data-free start, β = {beta}, noise 0.1", digits(mean["relative_l2"]), "here, mean of seeds"),
    ]
    known = "" if f"{settings['beta']:g}" in summary["published"] else f" None is published there for β = {beta}."
    return Section(
        "Beside published errors of networks",
        (
            "Krishnapriyan et al. (NeurIPS 2021) made this equation known as one on which physics-informed neural "
            f"networks fail. Their errors are given as published; they were not computed here.{known} The setting "
            "is not the same: their networks know the exact initial and periodic boundary values and no values "
            f"inside; the models here know neither, but have {settings['data']} noisy values inside. The numbers "
            "say how hard the equation is, not which method is better.",
        ),
        (),
        (
            TextTable(
                "Relative L² errors.",
                ("model", "relative L² error", "where from"),
                tuple(rows + here),
                strong=len(rows) + 2,
            ),
        ),
    )


def _picture(title: str, field: xr.DataArray) -> Picture:
    t, x = field["t"].values, field["x"].values
    return Picture(title, "t", "x", t, x, field.values.T, "f", diverging=True, limits=(-1.2, 1.2))
