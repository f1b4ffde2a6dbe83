"""Whether the nodes of exact equations suffice: they are refined until nothing moves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import PilescoreError, listed
from ..inference import Posterior, Score, systems_of
from ..model import Model
from ..solvers import present_tolerance, with_tolerances
from .nodes import exact_blocks, node_grids, refined, with_nodes

MOST_CHECKED = 1.5
"""How many times as many the nodes may be on which a result is only checked."""

SETTLED_NATS, SETTLED_DEVIATIONS = 0.1, 0.1
"""Nodes suffice if finer ones change the evidence of the data by less than these nats, and predictions by less than
these standard deviations."""

NEGLIGIBLE = 1e-3
"""Changes of predictions below this fraction of their size do not count, however small their standard deviations."""

MOST_PROBES = 200
"""The largest number of points at which predictions are compared."""


@dataclasses.dataclass(frozen=True, eq=False)
class Resolution:
    """Whether the nodes of exact equations suffice, by comparison with finer ones.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> time = ps.Box(t=(0, 3))
    >>> (dt,) = ps.partials(time)
    >>> t = np.linspace(0, 3, 10)
    >>> decay = ps.impose(dt + ps.parameter("rate", 1.0), 0.0, on=time.interior(ps.GaussLegendre(10)))
    >>> model = ps.Model(ps.RBF(1.0), ps.observe(ps.identity, np.exp(-0.7 * t), at=t, noise=0.01), decay)
    >>> best = ps.minimize(model, {"rate": (0.1, 10), "kernel.bandwidth": (0.5, 5)})
    >>> best.resolution.resolved, round(best.values["rate"], 3)
    (True, 0.7)
    """

    nodes: Mapping[str, int]
    """The number of nodes of each exact block, by label."""
    nats: float
    """The change of the free energy of the data given the physics on finer nodes; NaN without data."""
    moved: float
    """The root mean square change of predictions on finer nodes, in standard deviations."""
    resolved: bool
    """Whether neither matters."""
    text: str
    """The outcome in a sentence."""
    finer: Model | None = dataclasses.field(default=None, repr=False)
    """The model on finer nodes; None if they cannot be refined, or only for a check."""


def on_common_nodes(models: Mapping[str, Model], score: Score) -> dict[str, Model]:
    """Return models of the same observations on the finest nodes that one of them has, so that scores are comparable.

    Exact values that are scored get the same tolerances: the density of a value depends on them.

    Parameters
    ----------
    models
        Models that differ in their kernels, and in the nodes to which exact blocks were refined.
    score
        What is scored.
    """
    every = list(models.values())
    grids = [node_grids(model) for model in every]
    most = {label: max((grid[label] for grid in grids), key=math.prod) for label in grids[0]}
    tolerance = max(map(present_tolerance, every))
    fine = {name: with_tolerances(with_nodes(model, most), tolerance, renew=True) for name, model in models.items()}
    first = next(iter(fine.values()))
    for i in exact_blocks(first).keys() - {*score.given_blocks(first)}:
        loosest = 1.0 / np.sqrt(np.min([model.blocks[i].weights for model in fine.values()], axis=0))
        for name, model in fine.items():
            blocks = list(model.blocks)
            blocks[i] = blocks[i].within(loosest)
            fine[name] = model.replace(physics=blocks[len(model.data) :])
    return fine


def check_resolution(model: Model, at_floor: Sequence[str] = ()) -> Resolution:
    """Return whether finer nodes of exact equations change the evidence of the data, or predictions.

    Parameters
    ----------
    model
        The model, at the end of a search.
    at_floor
        Lengths and periods that would be shorter if the nodes were finer.
    """
    exact = {
        label: block.size
        for i, (label, block) in enumerate(zip(model.labels, model.blocks, strict=True))
        if model.is_exact(i)
    }
    finer = refined(model)
    checked = finer or refined(model, MOST_CHECKED)
    if checked is None:
        settled = not at_floor
        text = "the nodes of exact equations cannot be refined, so it is not known whether they suffice"
        if at_floor:
            text += f": {listed(list(at_floor))} would be shorter if they were finer"
        return Resolution(exact, np.nan, np.nan, settled, text)
    try:
        before, after = (_outcome(each, model) for each in (model, with_tolerances(checked, present_tolerance(model))))
    except PilescoreError as failure:
        return Resolution(exact, np.nan, np.nan, False, f"finer nodes of exact equations fail: {failure}")
    nats = after[0] - before[0]
    size = NEGLIGIBLE * float(np.sqrt(np.mean(before[1] ** 2)))
    moved = float(np.sqrt(np.mean(((after[1] - before[1]) / np.maximum(before[2], size or 1.0)) ** 2)))
    settled = not at_floor and moved <= SETTLED_DEVIATIONS and not abs(nats) > SETTLED_NATS
    counts = listed([f"{size} of {label!r}" for label, size in exact.items()])
    moves = f"finer nodes move predictions by {moved:.2g} standard deviations"
    moves += "" if np.isnan(nats) else f" and the evidence of the data by {nats:+.2g} nats"
    if settled:
        return Resolution(exact, nats, moved, True, f"the nodes suffice ({counts}): {moves}", finer)
    short = f", and {listed(list(at_floor))} would be shorter on them" if at_floor else ""
    return Resolution(
        exact, nats, moved, False, f"the nodes of exact equations are too few ({counts}): {moves}{short}", finer
    )


def missed(model: Model) -> Resolution:
    """Return that nodes do not suffice because exact equations do not even hold at them."""
    exact = {model.labels[i]: block.size for i, block in exact_blocks(model).items()}
    counts = listed([f"{size} of {label!r}" for label, size in exact.items()])
    text = (
        f"the nodes of exact equations are too few ({counts}): no kernel that they resolve satisfies the equations "
        "even at the nodes"
    )
    return Resolution(exact, np.nan, np.nan, False, text)


def _outcome(model: Model, probed: Model) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the free energy of the data given the physics, and predictions with their deviations at some points."""
    score = Score("physics") if model.data else Score()
    systems = systems_of(model, score, explain=False)
    energy = systems.pile(score).free_energy if model.data else np.nan
    points = np.unique(np.concatenate([block.points for block in probed.blocks]), axis=0)
    points = points[np.unique(np.linspace(0, len(points) - 1, MOST_PROBES).astype(int))]
    posterior = Posterior(systems.whole)
    return energy, posterior.mean(points), posterior.std(points)
