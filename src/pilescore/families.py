"""Many temperatures at one kernel: scores that share one reduction of the covariance.

Divided by η, the covariance is `Q + Σ_τ (τ/η) D_τ`: what counts is the level `τ/η` of each temperature. Points that
differ in one level only, or in all by one factor, are `A + t·d` for one matrix `A`, and cost far less than a
factorisation each.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from .gram import assembly, covariance
from .linalg import NotFactorableError
from .model import TEMPERATURES, Model
from .pencil import pencil
from .score import Pile, at_best_scale, from_parts

REDUCTION = 8.0
"""What a reduction costs, in factorisations of the same matrix."""

PRECISE = 1e-9
"""The rounding error of PILE up to which a reduced score is taken; other points are factored."""


def scores_by_temperature(model: Model, points: Sequence[Mapping[str, float]], profiled: bool) -> list[Pile | None]:
    """Return the scores of a model at other temperatures, by name, or None where each has to be factored.

    `points` hold `eta`, shared temperatures and blocks' own; what they leave out is the model's.
    """
    names = _temperature_names(model)
    given = model.parameters
    every = [*dict.fromkeys(names), "eta"]
    table = np.array([[float(point.get(name, given[name])) for name in every] for point in points])
    levels, eta = table[:, :-1] / table[:, -1:], table[:, -1]
    found: list[Pile | None] = [None] * len(points)
    varying, families = _best_families(levels)
    if REDUCTION * len(families) + 0.1 * len(points) >= len(points):
        return found
    parts = assembly(model.blocks)
    column = np.array([every.index(name) for name in names])[parts.block]
    for members in families:
        base = levels[members[0]]
        matrix = covariance(model.kernel, parts.rows, 1.0)
        moves = np.isin(column, varying)
        noise = base[column] * parts.spread
        matrix.T.flat[:: len(noise) + 1] += np.where(moves, 0.0, noise)
        try:
            reduced = pencil(matrix, np.where(moves, noise, 0.0), parts.values)
        except NotFactorableError:
            continue
        answers = reduced.scores(levels[members][:, varying[0]] / base[varying[0]])
        n = len(noise)
        for k, i in enumerate(members):
            if not answers.rounding[k] <= PRECISE * n:
                continue
            scale = float(eta[i])
            shares = parts.by_block(parts.values * answers.alpha[:, k] / scale)
            logdet = float(answers.logdet[k]) + n * math.log(scale)
            rounding = float(answers.rounding[k])
            plain = from_parts(float(answers.quadratic[k]) / scale, logdet, shares, n, scale, rounding)
            found[i] = at_best_scale(plain) if profiled else plain
    return found


def _temperature_names(model: Model) -> list[str]:
    """Return the name of the temperature of each block."""
    names = []
    for role, blocks in (("data", model.data), ("physics", model.physics)):
        for i, block in enumerate(blocks):
            shared = TEMPERATURES[role]
            names.append(shared if block.temperature is None else f"{role}.{i}.{shared}")
    return names


def _best_families(levels: Float[np.ndarray, "K t"]) -> tuple[list[int], list[list[int]]]:
    """Return which levels vary together, and the points of each family, for as few families as can be."""
    count = levels.shape[1]
    logs = np.round(np.log(levels), 10)
    choices = [([j], np.delete(logs, j, axis=1)) for j in range(count)]
    choices.append((list(range(count)), np.round(logs - logs[:, :1], 9)))
    best: tuple[list[int], list[list[int]]] | None = None
    for varying, keys in choices:
        families: dict[Hashable, list[int]] = {}
        for i, key in enumerate(map(tuple, keys.tolist())):
            families.setdefault(key, []).append(i)
        if best is None or len(families) < len(best[1]):
            best = (varying, list(families.values()))
    assert best is not None
    return best
