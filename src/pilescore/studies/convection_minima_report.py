"""What the convection study says of its joint minimisations, and of errors that others published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from pilescore.charts import Curve, Figure, Lines, Section, TextTable, digits

from .words import angle

PUBLISHED = {20: (0.750, 0.00984), 30: (0.897, 0.0202), 40: (0.961, 0.0533)}
"""Relative L² errors of a PINN by β: Krishnapriyan et al., NeurIPS 2021."""
KINDS = ("regular training", "curriculum training")
SYMBOLS = {"theta": "θ", "s": "s", "bandwidth": "h", "gamma": "γ", "rho": "ρ", "eta": "η", "lower": "↓", "upper": "↑"}


def joint_section(results: xr.Dataset, summary: Mapping[str, Any]) -> Section:
    """Return what the minimisations from generic starts and from the data-free choice found."""
    joint = summary["joint"]
    best, mean, worst, collapsed = joint["best"], joint["informed_mean"], joint["informed_worst"], joint["collapsed"]
    count, beta = len(joint["generic"]), digits(summary["settings"]["beta"])
    paragraphs = [
        f"All of θ, s, h, γ, ρ and η by the gradient of PILE, at noise 0.1, from {count} starts of a Sobol "
        f"sequence, none within 0.1 of arctan {beta} = {angle(summary['direction'])}. The best has θ = "
        f"{angle(best['theta'])}, a noise variance of {digits(best['noise_variance'])} (true: 0.01), a relative "
        f"L² error of {digits(best['relative_l2'])} and PILE {digits(best['pile'])}. {joint['reached']} of {count} "
        "starts find the wave (its direction, and an error below 0.1), from noisy data and the equation alone.",
    ]
    if collapsed:
        paragraphs.append(
            f"{joint['collapsed_starts']} of {count} end in a second optimum, in which everything is noise: variance "
            f"{digits(collapsed['noise_variance'])}, error {digits(collapsed['relative_l2'])}. The descents converge "
            f"there as well as anywhere, and θ may be right. PILE is {digits(collapsed['pile'])} there, "
            f"{digits(joint['collapsed_gap'])} higher than at the best: several starts are needed, and PILE tells "
            "the two apart."
        )
    elif joint["collapsed_starts"]:
        paragraphs.append(
            f"{joint['collapsed_starts']} of {count} end in a collapsed optimum, in which everything is noise, and "
            "the best of all by PILE is one of them: PILE finds no model here that explains these data better than "
            "noise."
        )
    else:
        paragraphs.append(f"None of these {count} starts ended in a collapsed optimum, in which everything is noise.")
    paragraphs.append(
        "Then from the kernel that was chosen without data, h as chosen in the sweep above, and its temperatures (γ "
        f"is the true one), with new data for every seed: the error is {digits(mean['relative_l2'])} in the mean and "
        f"at most {digits(worst['relative_l2'])}, and the direction is off by at most {digits(worst['off'])}. The "
        "table says which hyperparameters ended at their bounds. ρ and s at the lower, or h at the upper, are as it "
        "should be: the equation holds exactly and the solution is constant along the characteristics, so that no "
        "physics noise is too small and no kernel too long."
    )
    starts = {f"start {i + 1}": row for i, row in enumerate(joint["generic"])}
    starts |= {f"data-free choice, seed {i}": row for i, row in enumerate(joint["informed"])}
    header = ("start", "from θ, s, h", "θ", "s", "h", "noise variance", "PILE", "L² error", "at bounds")
    seen = "Each curve is one start; lower is better."
    if collapsed:
        seen += " Two floors: the collapsed optimum above, the wave below."
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
    return start, angle(row["theta"]), *numbers, _arrows(row["at_bounds"])


def _arrows(edges: str) -> str:
    """Return hyperparameters at their bounds as symbols: `h ↑, ρ ↓`."""
    return ", ".join(" ".join(SYMBOLS[word] for word in edge.split()) for edge in edges.split(", ") if edge) or "none"


def _descents(title: str, paths: xr.DataArray, what: str, limits: tuple[float, float] | None) -> Lines:
    curves = tuple(
        Curve(f"{what} {i + 1 if what == 'start' else i}", np.arange(len(path)), path.values, colour=i)
        for i, path in enumerate(paths)
    )
    return Lines(title, "accepted step", "PILE", curves, y_limits=limits)


def published_section(summary: Mapping[str, Any]) -> Section:
    """Return the errors beside those of networks, as published."""
    settings, best = summary["settings"], summary["joint"]["best"]
    mean = summary["joint"]["informed_mean"]
    beta = digits(settings["beta"])
    rows = [
        (digits(errors[kind]), f"PINN, {kind}, β = {each}", "published")
        for kind in KINDS
        for each, errors in summary["published"].items()
    ]
    here = [
        (digits(summary["isotropic"]["0.1"]["relative_l2"]), f"isotropic kernel, β = {beta}, noise 0.1", "here"),
        (digits(summary["anisotropic"]["0.1"]["relative_l2"]), f"oriented kernel, β = {beta}, noise 0.1", "here"),
        (digits(best["relative_l2"]), f"joint minimum, best start, β = {beta}, noise 0.1", "here"),
        (digits(mean["relative_l2"]), f"joint minimum, data-free start, β = {beta}, noise 0.1", "here, mean of seeds"),
    ]
    known = "" if f"{settings['beta']:g}" in summary["published"] else f" There is none here for β = {beta}."
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
                ("relative L² error", "model", "where from"),
                tuple(rows + here),
                strong=len(rows) + 2,
            ),
        ),
    )
