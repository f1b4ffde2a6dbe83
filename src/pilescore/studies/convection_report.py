"""What the convection study shows and says, from its dataset and its summary alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import xarray as xr

from pilescore.charts import Curve, Figure, Lines, Mark, Picture, Report, Section, TextTable, digits

from .convection_minima_report import joint_section, published_section
from .words import angle, checks_table, details, sweep_panel


def report(results: xr.Dataset, summary: Mapping[str, Any]) -> Report:
    """Return the report of the convection study."""
    joint, loud = summary["joint"], summary["isotropic"]["1"]
    beta = digits(summary["settings"]["beta"])
    if fails(summary):
        subject = "no bandwidth works, and PILE says so"
        first = (
            "A kernel that treats all directions alike cannot follow it, whatever its bandwidth. PILE says so, finds"
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
                angle(joint["best"]["theta"]),
                f"direction found by minimising PILE; arctan {beta} is {angle(summary['direction'])}",
            ),
            (digits(joint["best"]["noise_variance"]), "noise variance found with it (true: 0.01)"),
            (digits(joint["best"]["relative_l2"]), "relative L² error there"),
        ),
        sections=(
            _problem(results, summary),
            _isotropic(results, summary),
            _landscape(results, summary),
            _anisotropic(results, summary),
            joint_section(results, summary),
            published_section(summary),
            checks_table(summary),
        ),
        details=details(summary),
    )


def gave_up(of: Mapping[str, Any]) -> bool:
    """Whether the model that PILE chose from a sweep is the all-zero solution."""
    return bool(of["relative_l2"] > 0.9)


def fails(summary: Mapping[str, Any]) -> bool:
    """Whether no bandwidth of the isotropic kernel makes both errors small, and PILE gave up where noise is large."""
    sweeps = summary["isotropic"]
    return gave_up(sweeps["1"]) and not any(of["works"] for of in sweeps.values())


def _problem(results: xr.Dataset, summary: Mapping[str, Any]) -> Section:
    settings, kinds = summary["settings"], _kinds(results)
    panels = [_picture("the truth", results["truth"])]
    panels += [_picture(title, results["fit_mean"].sel(fit=fit)) for fit, title in kinds.items()]
    side = settings["side"]
    seen = ["Each model is the best of its family by PILE."]
    if gave_up(summary["isotropic"]["1"]):
        seen.append("At noise 1 that is the all-zero solution for the isotropic kernel.")
    if "collapsed optimum" in kinds:
        seen.append("The last is a local optimum, which calls everything noise; its PILE is higher.")
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
        marks = (Mark(f"PILE chooses {digits(chosen)}", x=chosen),)
        panels.append(sweep_panel(f"noise {noise:g}", "bandwidth h", of, "the equation", marks))
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
    paragraphs = [
        "The kernel exp(−|x − y|²/2h²) has one bandwidth for t and x. A fast wave wants a short one in t; the "
        "equation, to hold between its nodes, a long one. With noise 1 the smallest relative L² error in f is "
        f"{digits(loud['best_relative_l2'])}, at h = {digits(loud['best_bandwidth'])}, where R_phys, the expected "
        f"squared error in the equation over β²∫f_x², is {digits(loud['R_phys_there'])}. With noise 0.1 they are "
        f"{digits(quiet['best_relative_l2'])}, {digits(quiet['best_bandwidth'])} and "
        f"{digits(quiet['R_phys_there'])}.",
    ]
    chose = f"With noise 1 PILE chooses h = {digits(loud['mean'])}, with an error of {digits(loud['relative_l2'])}."
    if gave_up(loud):
        chose = (
            f"With noise 1 PILE chooses h = {digits(loud['mean'])}, of a range that ends at 5: the all-zero solution "
            f"(error {digits(loud['relative_l2'])}), which satisfies the equation and calls the data noise. A "
            "minimum at the end of the range, with nothing explained, is how PILE says that a family cannot use "
            "these data."
        )
    chose += (
        f" With noise 0.1 it chooses h = {digits(quiet['mean'])}: the error in f is {digits(quiet['relative_l2'])}, "
        "and R_phys "
        f"{digits(quiet['R_phys'])}{', so that the equation is not satisfied' * fails(summary)}."
    )
    paragraphs.append(f"{'No bandwidth works, and this is what PILE did about it. ' * fails(summary)}{chose}")
    seen = "PILE and the true errors, for large and for small noise."
    if fails(summary):
        seen = "The two errors are never small together, and with noise 1 PILE runs to the all-zero solution."
    return Section(
        f"An isotropic kernel{': no bandwidth works' * fails(summary)}",
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
            angle(each["arctan_beta"]),
            angle(each["theta"]),
            digits(each["distance"]),
            digits(each["step"]),
            digits(each["s"]),
            angle(each["refined"]["theta"]),
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
            f"For β = {digits(of['beta'])} it is lowest at θ = {angle(of['theta'])}, s = {low}: the "
            f"characteristics have the direction arctan β = {angle(of['arctan_beta'])}, and modulo π the two "
            f"differ by {digits(of['distance'])} (one step of the grid is {digits(of['step'])}). "
            f"{'s is at the lower end of its range: the longer along θ, the better. ' * (of['s'] == 0.5)}Two "
            "symmetries show: the landscape repeats after half a turn, and (θ, s) is the same kernel as (θ + π/2, "
            "1/s), so that the valley at s < 1 comes back a quarter turn on at s > 1.",
            "The landscape printed in the paper that introduced PILE has its minimum near θ = 1.41. That is arctan "
            f"2π = {angle(summary['landscape']['two_pi']['arctan_beta'])}: the landscape of β = 2π, shown beside "
            "it.",
        ),
        (
            Figure(
                "landscape",
                "Data-free PILE over rotation and stretch",
                "Dark is good. The diamond marks the minimum on the grid, the lines the direction of the "
                "characteristics. The third panel is a cut along the lower edge.",
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
            f"The kernel chosen without data, refined within a step of the grid (θ = {angle(refined['theta'])}, s = "
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


def _picture(title: str, field: xr.DataArray) -> Picture:
    t, x = field["t"].values, field["x"].values
    return Picture(title, "t", "x", t, x, field.values.T, "f", diverging=True, limits=(-1.2, 1.2))
