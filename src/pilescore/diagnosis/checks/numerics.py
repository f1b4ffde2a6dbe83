"""Checks of the numerics: digits lost to rounding, and nodes that are too few."""

from __future__ import annotations

import math
import warnings

import numpy as np
from jaxtyping import Float
from scipy.spatial import cKDTree

from ...covariance import prior_variances
from ...errors import PilescoreError, PrecisionWarning, listed
from ...inference import Posterior, Score, systems_of
from ...model import Model, Observation
from ...search import check_resolution
from ...solvers import EPS, IMPRECISE_NATS, solve
from ..context import DiagnosisContext
from ..findings import Finding

ROUNDING = 1e-6
"""The rounding error of PILE that matters."""

UNRESOLVED_NATS = 3.0
"""The change of the evidence by a finer rule that matters, in nats."""

MOVED_DEVIATIONS = 1.0
"""The change of predictions by finer nodes of exact equations that matters, in their standard deviations."""

FINER = 1.5
"""The finer rule has this many times the nodes on each axis."""

EVADED, EVADED_FACTOR = 0.2, 3.0
"""An equation is evaded between nodes if its deviation there is above the first as a fraction of the prior's, and above
the second times that at the nodes."""

MOST_BETWEEN = 200
"""The largest number of points between nodes that are looked at."""

LARGEST_REFINED = 5000
"""The largest number of observations with the finer rule."""


def ill_conditioned(context: DiagnosisContext) -> Finding:
    """Check how many digits of the score are lost to rounding."""
    residuals, model = context.residuals, context.model
    error = sum(residuals.rounding) / len(residuals.alpha)
    fires = None
    if any(model.is_exact(i) for i in range(len(model.blocks))):
        # Exact equations cost digits by design. The score is of the others given them, and what counts is nats.
        pile = systems_of(model, context.score, explain=False).pile(context.score)
        error, fires = pile.rounding, pile.size * pile.rounding > 2.0 * IMPRECISE_NATS
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
        threshold=ROUNDING,
        fires=fires,
        digits_lost={"logdet": lost[0], "fit": lost[1]},
        condition=residuals.condition,
    )


def unresolved_quadrature(context: DiagnosisContext) -> Finding:
    """Check whether the nodes of each block suffice: its equation holds between them, and finer ones change nothing."""
    model, name = context.model, "unresolved_quadrature"
    if not model.physics:
        return context.skip(name, "There is no physics.")
    finer: dict[int, Observation | None] = {}
    failure = ""
    for i in range(len(model.data), len(model.blocks)):
        try:
            finer[i] = model.blocks[i].refined(FINER)
        except Exception as error:  # a user's function may raise anything at other points
            finer[i], failure = None, f"Values at the nodes of a finer rule fail: {error}"
    fixed = [model.labels[i] for i, block in finer.items() if block is None]
    evaded = _evaded(model, finer)
    if evaded:
        return context.finding(
            name,
            math.inf,
            "failure",
            "the change of the evidence by a finer rule, in nats, is",
            f"There are too few nodes: between them {listed(evaded)} hardly holds.",
            "more nodes, or a longer kernel: between its nodes the unknown evades the equation.",
            threshold=UNRESOLVED_NATS,
            not_refined=fixed,
        )
    noisy = {i: block for i, block in finer.items() if block is not None and not model.is_exact(i)}
    exact = any(map(model.is_exact, finer))
    if exact and not noisy:
        return _exact_nodes(context)
    if not noisy:
        reason = "No rule can be refined: nodes are explicit, or have their own values or noise. Between them it holds."
        return context.skip(name, failure or reason)
    found = _noisy_nodes(context, noisy, fixed)
    other = _exact_nodes(context) if exact else found
    return max((found, other), key=lambda each: (each.status == "fired", each.status == "fine", each.value))


def _noisy_nodes(context: DiagnosisContext, finer: dict[int, Observation], fixed: list[str]) -> Finding:
    """Check whether finer nodes of physics with a noise change the evidence of the data."""
    model, name = context.model, "unresolved_quadrature"
    blocks = [finer.get(i, model.blocks[i]) for i in range(len(model.data), len(model.blocks))]
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
        "failure",
        "the change of the evidence by a finer rule, in nats, is",
        f"There are too few nodes: with {FINER:g} times as many on each axis the free energy of the {what} changes by "
        f"{after - before:+.3g} nats.",
        "more nodes: a larger number in the rule of ps.impose.",
        threshold=UNRESOLVED_NATS,
        energies=(before, after),
        not_refined=fixed,
    )


def _exact_nodes(context: DiagnosisContext) -> Finding:
    """Check whether finer nodes of exact equations change the evidence of the data, or the predictions."""
    name = "unresolved_quadrature"
    known = None if context.minimum is None else context.minimum.resolution
    found = known or check_resolution(context.source)
    text = f"{found.text[0].upper()}{found.text[1:]}."
    if math.isnan(found.moved):
        return context.skip(name, text)
    nats = abs(found.nats) if math.isfinite(found.nats) else 0.0
    return context.finding(
        name,
        max(nats, found.moved),
        "failure",
        "the change by a finer rule of the evidence in nats, or of predictions in deviations, is",
        text,
        "more nodes: a larger number in the rule of ps.impose; ps.minimize refines them by itself.",
        threshold=UNRESOLVED_NATS,
        fires=nats > UNRESOLVED_NATS or found.moved > MOVED_DEVIATIONS,
        moved=found.moved,
        nats=found.nats,
    )


def _evaded(model: Model, finer: dict[int, Observation | None]) -> list[str]:
    """Return the blocks whose equation does not hold between nodes, and by how much, as text.

    At the nodes of a finer rule, or halfway to the nearest other node if there is none, the variance of the equation's
    residual should be nearly as small as at the nodes. If it is close to the prior variance instead, the unknown is
    free to evade the equation there.
    """
    texts = []
    posterior = Posterior(solve(model, explain=False))
    for i, other in finer.items():
        block = model.blocks[i]
        operator = block.linear_operator
        if block.is_functional or operator is None or block.size < 2:
            continue
        between = other.points if other is not None else _halfway(block.points)
        some = np.unique(np.linspace(0, len(between) - 1, MOST_BETWEEN).astype(int))
        between = between[some]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrecisionWarning)
            left, at_nodes = (posterior.variance(where, operator) for where in (between, block.points[:MOST_BETWEEN]))
        prior = float(model.eta) * prior_variances(model.kernel, between, operator)
        share = math.sqrt(float(np.mean(left)) / float(np.mean(prior)))
        if share > EVADED and np.mean(left) > EVADED_FACTOR**2 * np.mean(at_nodes):
            texts.append(f"{model.labels[i]!r} (a standard deviation of {100 * share:.0f}% of the prior's)")
    return texts


def _halfway(points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """Return the points halfway between each point and its nearest neighbour."""
    nearest = np.asarray(cKDTree(points).query(points, k=2)[1])[:, 1]
    return 0.5 * (points + points[nearest])


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
