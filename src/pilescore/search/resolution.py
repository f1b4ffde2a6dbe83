"""Whether the nodes of exact equations suffice.

An exact equation holds everywhere, but a model can only impose it at nodes. A kernel whose length is short compared
with the distance between nodes evades the equation between them, and the evidence prefers that: the data are then
fitted without it. So lengths are bounded by the distance between nodes, and nodes are refined until nothing moves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from ..errors import PilescoreError, listed
from ..inference import Posterior, Score, systems_of
from ..model import Model, Observation, find, named_paths
from ..solvers import TIGHTEST, with_tolerances

SHORTEST_LENGTH, SHORTEST_PERIOD = 1.5, 4.0
"""The least length and period of a kernel, in distances between nodes. Below, the evidence gains by evading the
equation between nodes; whether what is left matters is checked with finer nodes."""

FINER = 1.5
"""Finer nodes are this many times as many on each axis."""

MOST_ROWS = 2500
"""The largest number of observations that nodes are refined to."""

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
    """The model on finer nodes; None if they cannot be refined."""


def node_gaps(model: Model) -> Float[np.ndarray, " d"]:
    """Return the largest distance between nodes of exact blocks along each axis; zero on axes without nodes."""
    gaps = np.zeros(model.blocks[0].dimension)
    for i, block in enumerate(model.blocks):
        if model.is_exact(i):
            gaps = np.maximum(gaps, _gaps(block.points))
    return gaps


def _gaps(points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " d"]:
    extent = np.ptp(points, axis=0)
    axes = np.flatnonzero(extent > 0)
    gaps = np.zeros(len(extent))
    for axis in axes:
        levels = np.unique(np.round(points[:, axis] / extent[axis], 12))
        if len(levels) <= 1.5 * len(points) ** (1 / len(axes)) + 2:  # a grid
            gaps[axis] = extent[axis] * np.diff(levels).max()
        else:  # scattered points: as if they were a grid
            gaps[axis] = extent[axis] / (len(points) ** (1 / len(axes)) - 1)
    return gaps


def _floors(model: Model) -> dict[str, Float[np.ndarray, "..."]]:
    """Return the least value of each length and period of the kernel, for nodes of exact equations."""
    gaps = node_gaps(model)
    if not gaps.any():
        return {}
    values, roles = model.parameters, model.roles
    # The length of a periodic kernel is relative to its period.
    relative = {name.rsplit(".", 1)[0] for name, role in roles.items() if role == "period"}
    floors = {}
    for name, role in roles.items():
        factor = {"length": SHORTEST_LENGTH, "period": SHORTEST_PERIOD}.get(role)
        if factor is None or (role == "length" and name.rsplit(".", 1)[0] in relative):
            continue
        shape = np.shape(values[name])
        floors[name] = np.asarray(factor * (gaps if shape == gaps.shape else np.full(shape, gaps.max())))
    return floors


def floored(model: Model, over: Mapping[str, Any]) -> dict[str, Any]:
    """Return bounds that keep lengths and periods above those that evade exact equations between nodes."""
    floors, paths, bounds = _floors(model), named_paths(model), dict(over)
    for name, (low, high) in over.items():
        base, index = find(model, paths, name)
        if base in floors:
            least = floors[base][index] if index else floors[base]
            # The present value may lie below: the nodes are then as fine as can be afforded.
            value = np.asarray(model.parameters[base])[index]
            bounds[name] = (np.maximum(low, np.minimum(least, np.minimum(value, 0.99 * np.asarray(high)))), high)
    return bounds


def fine_enough(model: Model) -> Model:
    """Return the model with nodes of exact equations so fine that its own lengths and periods resolve them."""
    while True:
        values = model.parameters
        short = [name for name, least in _floors(model).items() if np.any(np.asarray(values[name]) < least)]
        finer = _refined(model) if short else None
        if finer is None:
            return model
        model = finer


def _refined(model: Model) -> Model | None:
    """Return the model with finer nodes of exact blocks; None if none can be refined, or not in memory and time."""
    blocks: list[Observation] = list(model.physics)
    for i, block in enumerate(blocks):
        if model.is_exact(len(model.data) + i):
            blocks[i] = block.refined(FINER) or block
    finer = model.replace(physics=blocks)
    return finer if model.size < finer.size <= MOST_ROWS else None


def with_nodes(model: Model, nodes: Mapping[str, int]) -> Model:
    """Return the model with the nodes of exact equations refined to these numbers, as a search has refined them."""
    while any(block.size < nodes.get(label, 0) for label, block in zip(model.labels, model.blocks, strict=True)):
        finer = _refined(model)
        if finer is None:
            break
        model = finer
    return model


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
    finer = _refined(model)
    if finer is None:
        settled = not at_floor
        text = "the nodes of exact equations cannot be refined, so it is not known whether they suffice"
        if at_floor:
            text += f": {listed(list(at_floor))} would be shorter if they were finer"
        return Resolution(exact, np.nan, np.nan, settled, text)
    try:
        before, after = (_outcome(each, model) for each in (model, with_tolerances(finer, TIGHTEST)))
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


def _outcome(model: Model, probed: Model) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the free energy of the data given the physics, and predictions with their deviations at some points."""
    score = Score("physics") if model.data else Score()
    systems = systems_of(model, score, explain=False)
    energy = systems.pile(score).free_energy if model.data else np.nan
    points = np.unique(np.concatenate([block.points for block in probed.blocks]), axis=0)
    points = points[np.unique(np.linspace(0, len(points) - 1, MOST_PROBES).astype(int))]
    posterior = Posterior(systems.whole)
    return energy, posterior.mean(points), posterior.std(points)
