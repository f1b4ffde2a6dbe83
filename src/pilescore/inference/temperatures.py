"""Scores of one kernel at many temperatures, which share one reduction of the covariance.

Divided by η, the covariance is `Q + Σ_τ (τ/η) D_τ`; it depends on the level `τ/η` of each temperature only. Points that
differ in one level, or in all levels by a common factor, form a *family*: their matrices are `A + t·d` for one `A` and
`d`. After one reduction of the pencil `(A, d)`, each point costs far less than a factorisation.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from ..covariance import assembly, covariance
from ..model import Model
from ..solvers import NotFactorableError, ShiftedCovariance, ShiftedScores, reduce_shifted
from .evidence import Pile, at_best_scale, from_parts, with_priors

REDUCTION = 8.0
"""The cost of a reduction, in factorisations of the same matrix."""

SHIFT = 0.1
"""The cost of each point after the reduction, in factorisations."""

TOGETHER = 64
"""How many points are scored at once. Their vectors are in memory together, and an interrupted sweep loses them all."""

SAME = 1e-11
"""Levels whose logarithms differ by less than this are the same level."""

PRECISE = 1e-9
"""The largest rounding error of PILE that a reduced score may have; points above it are factored instead."""


def scores_by_temperature(
    model: Model, points: Sequence[Mapping[str, float]], profiled: bool, wanted: Sequence[bool]
) -> Iterator[tuple[int, Pile | None]]:
    """Yield the number and the score of each wanted point; the score is None if the point has to be factored.

    A point maps names to temperatures: `eta`, shared ones and those of single blocks. The model supplies the others.
    Points come family by family. The score of a point does not depend on which other points are wanted.
    """
    names = model.temperature_names
    defaults = model.parameters
    every = [*dict.fromkeys(names), "eta"]
    table = np.array([[float(point.get(name, defaults[name])) for name in every] for point in points])
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        levels, eta = table[:, :-1] / table[:, -1:], table[:, -1]
        varying, families = _best_families(levels)
    column, along = np.array([every.index(name) for name in names]), levels[:, varying[0]]
    for members in families:
        if not any(wanted[i] for i in members):
            continue
        # The reduction and the batches are those of the whole family, wanted or not: an interrupted sweep that is
        # resumed computes the same bits.
        reduced = _reduced(model, levels[members[0]][column], np.isin(column, varying)) if _pays(members) else None
        for start in range(0, len(members), TOGETHER):
            batch = members[start : start + TOGETHER]
            if any(wanted[i] for i in batch):
                answers = None if reduced is None else reduced.scores(along[batch] / along[members[0]])
                scores = _piles(model, answers, eta[batch], profiled)
                for i, score in zip(batch, scores, strict=True):
                    if wanted[i]:
                        at_point = model.replace(points[i]) if model.priors else model
                        yield i, None if score is None else with_priors(score, at_point)


def _reduced(
    model: Model, levels: Float[np.ndarray, " blocks"], moves: Bool[np.ndarray, " blocks"]
) -> ShiftedCovariance | None:
    """Return the reduced matrices `C/η = A + t·d` at the given level of each block; blocks that move are in `d`."""
    parts = assembly(model.blocks)
    noise, moving = levels[parts.block] * parts.spread, moves[parts.block]
    if not (np.isfinite(noise).all() and (noise > 0.0).all()):
        return None
    matrix = covariance(model.kernel, parts.rows, 1.0)
    matrix.T.flat[:: len(noise) + 1] += np.where(moving, 0.0, noise)
    try:
        return reduce_shifted(matrix, np.where(moving, noise, 0.0), parts.values)
    except NotFactorableError:
        return None


def _piles(
    model: Model, answers: ShiftedScores | None, eta: Float[np.ndarray, " k"], profiled: bool
) -> list[Pile | None]:
    """Return the scores of the points of a batch, None where rounding is too large."""
    piles: list[Pile | None] = [None] * len(eta)
    if answers is None:
        return piles
    parts = assembly(model.blocks)
    n = len(parts.values)
    for k, scale in enumerate(eta.tolist()):
        quadratic, rounding = float(answers.quadratic[k]) / scale, float(answers.rounding[k])
        if rounding <= PRECISE * n and (quadratic > 0.0 or not profiled):
            shares = parts.by_block(parts.values * answers.alpha[:, k] / scale)
            logdet = float(answers.logdet[k]) + n * math.log(scale)
            plain = from_parts(quadratic, logdet, shares, n, scale, rounding)
            piles[k] = at_best_scale(plain) if profiled else plain
    return piles


def _pays(members: Sequence[int]) -> bool:
    """Return whether reducing a family is cheaper than factoring each of its points."""
    return REDUCTION + SHIFT * len(members) < len(members)


def _best_families(levels: Float[np.ndarray, "K t"]) -> tuple[list[int], list[list[int]]]:
    """Return which levels vary together, and the points of each family, such that the total cost is least."""
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
        cost = sum(REDUCTION + SHIFT * len(f) if _pays(f) else len(f) for f in families.values())
        if cost < least:
            least, best = cost, (varying, list(families.values()))
    return best


def _numbered(column: Float[np.ndarray, " K"]) -> Int[np.ndarray, " K"]:
    """Return a number for each entry of a column; entries that are equal up to rounding have the same number."""
    # Not by rounding the logarithms: equal levels may lie on both sides of a boundary between rounded values.
    numbers, start, last = np.zeros(len(column), dtype=int), -math.inf, -1
    for i in np.argsort(column).tolist():
        if column[i] - start > SAME:
            start, last = column[i], last + 1
        numbers[i] = last
    return numbers
