"""Models that can be diagnosed: checks need the inverse of the covariance, which only the dense solver computes."""

from __future__ import annotations

import dataclasses

import numpy as np

from ..domains import Nodes
from ..model import Model, Observation
from ..solvers import Auto, Dense

DENSE_UP_TO = 3000
"""With more observations, and another solver than the dense one, a part of them is diagnosed."""

THINNED = 1500
"""The number of observations of this part."""

NEED_ALL = {
    "unresolved_quadrature": "finer nodes",
    "ill_conditioned": "the rounding error of the score",
}
"""Checks that a part of the observations says nothing about, and what they are about."""

SEED = 77
"""The seed of the choice of the part."""


def dense_model(model: Model) -> tuple[Model, str]:
    """Return a model with the dense solver, and a sentence about it if the model had another one.

    A random part of the observations of a large model is a valid model by itself, with fewer data and nodes: what
    contradicts it contradicts the whole.
    """
    if isinstance(model.solver, Dense) or model.is_nonlinear:
        return model, ""
    if model.size <= DENSE_UP_TO:
        solved = "" if isinstance(model.solver, Auto) else f"instead of {model.solver!r}, "
        text = f"All checks use the dense solver, {solved}which has no inverse." if solved else ""
        return model.replace(solver="dense"), text
    data = sum(block.size for block in model.data)
    most = {"data": min(data, max(THINNED // 2, THINNED - (model.size - data)))}
    most["physics"] = THINNED - most["data"]
    of_role = {"data": data, "physics": model.size - data}
    rng = np.random.default_rng(SEED)
    blocks = [_part(block, most[block.role] / of_role[block.role], rng) for block in model.blocks]
    part = model.replace(data=blocks[: len(model.data)], physics=blocks[len(model.data) :], solver="dense")
    text = (
        f"Checks need the inverse of the covariance, so {part.size} of {model.size} observations, chosen at random, "
        "were diagnosed."
    )
    return part, text


def _part(block: Observation, fraction: float, rng: np.random.Generator) -> Observation:
    """Return a random part of a block."""
    count = max(1, round(fraction * block.size))
    if count >= block.size:
        return block
    keep = np.sort(rng.choice(block.size, count, replace=False))
    part = block.restricted(keep)
    nodes = block.nodes
    if nodes is not None and block.matrix is None:
        nodes = Nodes(nodes.points[keep], nodes.weights[keep], nodes.names, nodes.region)
    # The nodes are no longer those of a rule.
    return dataclasses.replace(part, nodes=nodes, source=None)
