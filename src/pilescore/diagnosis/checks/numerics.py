"""Checks of the numerics: digits lost to rounding, and nodes that are too few."""

from __future__ import annotations

import math

import numpy as np

from ...errors import PilescoreError
from ...inference import Score, systems_of
from ...model import Model
from ...solvers import EPS, solve
from ..context import DiagnosisContext
from ..findings import Finding

FINER = 1.5
"""The finer rule has this many times the nodes on each axis."""

LARGEST_REFINED = 5000
"""The largest number of observations with the finer rule."""


def ill_conditioned(context: DiagnosisContext) -> Finding:
    """Check how many digits of the score are lost to rounding."""
    residuals = context.residuals
    error = sum(residuals.rounding) / len(residuals.alpha)
    lost = [
        math.log10(max(rounding / (EPS * max(abs(term), 1.0)), 1.0))
        for rounding, term in zip(residuals.rounding, residuals.terms, strict=True)
    ]
    return context.finding(
        "ill_conditioned",
        error,
        "warning",
        "the rounding error of PILE is about",
        f"Rounding takes {lost[0]:.0f} of 16 digits of log det C and {lost[1]:.0f} of the fit (condition number about "
        f"{residuals.condition:.0e}).",
        "a larger gamma or rho, shorter lengths, a rougher kernel such as Matern; ps.pile names the blocks.",
        digits_lost={"logdet": lost[0], "fit": lost[1]},
        condition=residuals.condition,
    )


def unresolved_quadrature(context: DiagnosisContext) -> Finding:
    """Check whether a finer quadrature rule changes the score."""
    model, name = context.model, "unresolved_quadrature"
    if not model.physics:
        return context.skip(name, "There is no physics.")
    try:
        finer = [block.refined(FINER) for block in model.physics]
    except Exception as failure:  # a user's function may raise anything at other points
        return context.skip(name, f"Values at the nodes of a finer rule fail: {failure}")
    if all(block is None for block in finer):
        return context.skip(name, "No rule can be refined: nodes are explicit, or have their own values or noise.")
    blocks = [new or old for new, old in zip(finer, model.physics, strict=True)]
    size = sum(block.size for block in (*model.data, *blocks))
    if size > LARGEST_REFINED:
        return context.skip(name, f"A finer rule has {size} observations, more than {LARGEST_REFINED}.")
    try:
        fine = model.replace(physics=blocks)
        before, after = (_comparable_energy(each) for each in (model, fine))
    except PilescoreError as failure:
        return context.skip(name, f"With a finer rule the score fails: {failure}")
    what = "data given the physics" if model.data else "physics"
    return context.finding(
        name,
        abs(after - before),
        "note",
        "the change of the evidence by a finer rule, in nats, is",
        f"There are too few nodes: with {FINER:g} times as many on each axis the free energy of the {what} changes by "
        f"{after - before:+.3g} nats.",
        "more nodes: a larger number in the rule of ps.impose.",
        energies=(before, after),
        not_refined=[label for label, new in zip(model.labels[len(model.data) :], finer, strict=True) if new is None],
    )


def _comparable_energy(model: Model) -> float:
    """Return a free energy that converges as rules are refined.

    With data, the data are scored given the physics. Without data, the free energy of pure noise is subtracted: it
    grows with the number of nodes.
    """
    if model.data:
        score = Score("physics")
        return systems_of(model, score, explain=False).pile(score).free_energy
    system = solve(model, explain=False)
    noise = 0.5 * float(np.log(system.noise).sum() + model.values @ (model.values / model.noise))
    return 0.5 * (system.logdet.value + system.quadratic) - noise
