"""Many temperatures at one kernel: scores that share one reduction of the covariance.

Divided by η, the covariance is `Q + Σ_τ (τ/η) D_τ`: what counts is the level `τ/η` of each temperature. Points that
differ in one level only, or in all by one factor, are `A + t·d` for one matrix `A`, and cost far less than a
factorisation each.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from .gram import covariance
from .layouts import assembly
from .linalg import NotFactorableError
from .model import TEMPERATURES, Model
from .pencil import Pencil, PencilScores, pencil
from .score import Pile, at_best_scale, from_parts

REDUCTION = 8.0
"""What a reduction costs, in factorisations of the same matrix."""

SHIFT = 0.1
"""What each point costs after it."""

TOGETHER = 64
"""How many points are scored at once: as many vectors are in memory, and as many scores are lost to a kill."""

SAME = 1e-11
"""Logarithms of levels that differ by less are of one level."""

PRECISE = 1e-9
"""The rounding error of PILE up to which a reduced score is taken; other points are factored."""


def scores_by_temperature(
    model: Model, points: Sequence[Mapping[str, float]], profiled: bool, wanted: Sequence[bool]
) -> Iterator[tuple[int, Pile | None]]:
    """Score a model at other temperatures, by name; None stands for a point that has to be factored.

    `points` hold `eta`, shared temperatures and blocks' own; what they leave out is the model's. Only those `wanted`
    are given, with their numbers, in the order in which they are found. What is given for one of them does not
    depend on which others are wanted.
    """
    names = _temperature_names(model)
    given = model.parameters
    every = [*dict.fromkeys(names), "eta"]
    table = np.array([[float(point.get(name, given[name])) for name in every] for point in points])
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        levels, eta = table[:, :-1] / table[:, -1:], table[:, -1]
        varying, families = _best_families(levels)
    column, along = np.array([every.index(name) for name in names]), levels[:, varying[0]]
    for members in families:
        if not any(wanted[i] for i in members):
            continue
        reduced = _reduced(model, levels[members[0]][column], np.isin(column, varying)) if _pays(members) else None
        for start in range(0, len(members), TOGETHER):
            batch = members[start : start + TOGETHER]
            if any(wanted[i] for i in batch):
                found = None if reduced is None else reduced.scores(along[batch] / along[members[0]])
                scores = _piles(model, found, eta[batch], profiled)
                yield from ((i, score) for i, score in zip(batch, scores, strict=True) if wanted[i])


def _reduced(model: Model, levels: Float[np.ndarray, " blocks"], moves: Bool[np.ndarray, " blocks"]) -> Pencil | None:
    """Return `C/η = A + t·d` at these levels of the blocks, of which those that move are in `d`."""
    parts = assembly(model.blocks)
    noise, moving = levels[parts.block] * parts.spread, moves[parts.block]
    if not (np.isfinite(noise).all() and (noise > 0.0).all()):
        return None
    matrix = covariance(model.kernel, parts.rows, 1.0)
    matrix.T.flat[:: len(noise) + 1] += np.where(moving, 0.0, noise)
    try:
        return pencil(matrix, np.where(moving, noise, 0.0), parts.values)
    except NotFactorableError:
        return None


def _piles(
    model: Model, answers: PencilScores | None, eta: Float[np.ndarray, " k"], profiled: bool
) -> list[Pile | None]:
    found: list[Pile | None] = [None] * len(eta)
    if answers is None:
        return found
    parts = assembly(model.blocks)
    n = len(parts.values)
    for k, scale in enumerate(eta.tolist()):
        quadratic, rounding = float(answers.quadratic[k]) / scale, float(answers.rounding[k])
        if rounding <= PRECISE * n and (quadratic > 0.0 or not profiled):
            shares = parts.by_block(parts.values * answers.alpha[:, k] / scale)
            logdet = float(answers.logdet[k]) + n * math.log(scale)
            plain = from_parts(quadratic, logdet, shares, n, scale, rounding)
            found[k] = at_best_scale(plain) if profiled else plain
    return found


def _pays(members: Sequence[int]) -> bool:
    """Whether it is cheaper to reduce a family than to factor each of its points."""
    return REDUCTION + SHIFT * len(members) < len(members)


def _temperature_names(model: Model) -> list[str]:
    """Return the name of the temperature of each block."""
    names = []
    for role, blocks in (("data", model.data), ("physics", model.physics)):
        for i, block in enumerate(blocks):
            shared = TEMPERATURES[role]
            names.append(shared if block.temperature is None else f"{role}.{i}.{shared}")
    return names


def _best_families(levels: Float[np.ndarray, "K t"]) -> tuple[list[int], list[list[int]]]:
    """Return which levels vary together, and the points of each family, for the least work."""
    count, logs = levels.shape[1], np.nan_to_num(np.log(levels))
    choices = [([j], np.delete(logs, j, axis=1)) for j in range(count)]
    choices.append((list(range(count)), logs - logs[:, :1]))
    best: tuple[list[int], list[list[int]]] = ([], [])
    least = math.inf
    for varying, keys in choices:
        families: dict[Hashable, list[int]] = {}
        numbers = np.apply_along_axis(_numbered, 0, keys) if keys.size else keys
        for i, key in enumerate(map(tuple, numbers.tolist())):
            families.setdefault(key, []).append(i)
        work = sum(REDUCTION + SHIFT * len(each) if _pays(each) else len(each) for each in families.values())
        if work < least:
            least, best = work, (varying, list(families.values()))
    return best


def _numbered(column: Float[np.ndarray, " K"]) -> Int[np.ndarray, " K"]:
    """Return a number for each entry of a column: the same for those that are equal up to rounding."""
    numbers, start, last = np.zeros(len(column), dtype=int), -math.inf, -1
    for i in np.argsort(column).tolist():
        if column[i] - start > SAME:
            start, last = column[i], last + 1
        numbers[i] = last
    return numbers
