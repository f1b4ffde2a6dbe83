"""Comparing models: ranked tables with warnings beside each number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from .errors import PilescoreError, require
from .evaluation import evaluated
from .fredholm import DataFreePile
from .minimum import Minimum
from .model import Model
from .observations import Observation
from .score import Pile, check_given, scored
from .solving import Solved
from .system import IMPRECISE

Candidate: TypeAlias = Model | Minimum | Solved | Pile | DataFreePile

FIT = (0.5, 2.0)
"""A fit outside is worth a warning: residuals much smaller, or larger, than the noise says."""


def compare(
    candidates: Mapping[str, Candidate], *, profiled: bool = False, given_physics: bool = False
) -> pd.DataFrame:
    """Return candidates ranked by their scores, best first, with warnings beside each number.

    Parameters
    ----------
    candidates
        By name: models, which are scored here (nonlinear ones are solved first), or results of `pile`, `minimize` or
        `solve_nonlinear`; or results of `data_free_pile` only.
    profiled, given_physics
        As for `pile`, for the models among them.

    Returns
    -------
    pandas.DataFrame
        Indexed by name: `rank`, missing where there is no score; `pile` and its `difference` from the best, per
        observation; `nats`, the log evidence that the best has more (3 is clear, 5 is strong); `penalised`, the same
        after `½ log n` nats for each hyperparameter that a `Minimum` has `fitted`, by which candidates are ranked (so
        that `nats` may be negative, where a candidate with more of them is a little better);
        `fit`, `complexity`, `size`; `warnings`. Of data-free scores: `value` in place of `pile`, `error`, `status`.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 20)
    >>> data = ps.observe(ps.identity, np.sin(6 * x), at=x)
    >>> smooth, rough = (ps.Model(kernel=k, data=data, gamma=1e-3) for k in (ps.RBF(0.3), ps.Matern(0.5, 0.3)))
    >>> ps.compare({"rough": rough, "smooth": smooth})[["rank", "nats"]].round(1)
            rank  nats
    smooth     1   0.0
    rough      2  40.4
    """
    require(isinstance(candidates, Mapping) and len(candidates) > 0, "candidates", candidates, "a mapping by name")
    for name, each in candidates.items():
        good = isinstance(each, Model | Minimum | Solved | Pile | DataFreePile)
        expected = "a model, or a result of pile, minimize, solve_nonlinear or data_free_pile"
        require(good, f"candidates[{name!r}]", each, expected)
        if isinstance(each, Model):
            check_given(each, given_physics)
    free = [isinstance(each, DataFreePile) for each in candidates.values()]
    require(all(free) or not any(free), "candidates", list(candidates), "data-free scores only, or none of them")
    rows = {
        name: _data_free(each) if isinstance(each, DataFreePile) else row(each, profiled, given_physics)
        for name, each in candidates.items()
    }
    return ranked(candidates, rows)


def ranked(candidates: Mapping[str, Candidate], rows: dict[str, dict[str, Any]]) -> pd.DataFrame:
    """Return the table of candidates from their rows, best first."""
    for name, text in _incomparable(candidates, rows).items():
        rows[name]["warnings"] = "; ".join(filter(None, [rows[name]["warnings"], text]))
    table = pd.DataFrame.from_dict(rows, orient="index")
    charged = table["energy"] + 0.5 * table["fitted"] * np.log(table["size"].astype(float))
    table = table.assign(charged=charged).sort_values("charged", kind="stable", na_position="last")
    key = "value" if "value" in table else "pile"
    table.insert(0, "rank", table["charged"].rank(method="first").astype("Int64"))
    table.insert(2, "difference", table[key] - table[key].iloc[0])
    table.insert(3, "nats", table["energy"] - table["energy"].iloc[0])
    table.insert(4, "penalised", table["charged"] - table["charged"].iloc[0])
    return table.drop(columns=["energy", "charged"]).astype({"size": "Int64", "fitted": "Int64"})


def failed_row(text: str, size: float | int = math.nan) -> dict[str, Any]:
    """Return the row of a candidate that could not be scored."""
    empty = dict.fromkeys(("pile", "fit", "complexity", "size", "fitted", "warnings", "energy"), math.nan)
    return empty | {"size": size, "warnings": f"failed: {text}"}


def row(each: Model | Minimum | Solved | Pile, profiled: bool, given_physics: bool) -> dict[str, Any]:
    """Return the row of a candidate: its score and what is to be said of it."""
    notes: list[str] = []
    if isinstance(each, Model):
        try:
            found = evaluated(each, given_physics, explain=True)
            score = scored(found.system, found.prior, profiled)
            notes += [found.caution] if found.caution else []
        except PilescoreError as failure:
            return failed_row(str(failure), sum(block.size for block in (each.data if given_physics else each.blocks)))
    elif isinstance(each, Minimum):
        score = each.pile
        if not each.converged:
            notes.append(f"{each.ending}: {each.reason}")
        notes += [f"{name} is at its {side} bound" for name, side in each.at_bounds.items()]
        if each.curvature is not None and each.curvature.flat:
            notes.append(f"{len(each.curvature.flat)} flat direction(s)")
        if each.solved is not None and not each.solved.converged:
            notes.append(f"{each.solved.status}: {each.solved.reason}")
    elif isinstance(each, Solved):
        score = each.pile
        if each.status != "converged":
            notes.append(f"{each.status}: {each.reason}")
    else:
        score = each
    if score.rounding > IMPRECISE:
        notes.append(f"rounding leaves it uncertain by {score.rounding:.1e}")
    if not FIT[0] <= score.fit <= FIT[1]:
        notes.append(f"fit {score.fit:.2g}: residuals {'smaller' if score.fit < 1 else 'larger'} than the noise says")
    return {
        "pile": score.value,
        "fit": score.fit,
        "complexity": score.complexity,
        "size": score.size,
        "fitted": len(each.values) + each.profiled if isinstance(each, Minimum) else 0,
        "warnings": "; ".join(notes),
        "energy": score.free_energy,
    }


def _model(each: Candidate) -> Model | Pile | DataFreePile:
    """Return the model of a candidate as it was given, if it has one."""
    if isinstance(each, Solved):
        return each.nonlinear
    return each.model if isinstance(each, Minimum) else each


def _data_free(each: DataFreePile) -> dict[str, Any]:
    found = each.determinant
    return {
        "value": each.value,
        "error": each.error,
        "status": each.status,
        "size": each.size,
        "fitted": 0,
        "warnings": found.reason,
        "energy": 0.5 * each.value,
    }


def _incomparable(candidates: Mapping[str, Candidate], rows: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return what keeps candidates from being compared with the first."""
    found: dict[str, str] = {}
    (first_name, first), *others = candidates.items()
    for name, each in others:
        a, b = (_model(c) for c in (first, each))
        if isinstance(a, DataFreePile) and isinstance(b, DataFreePile):
            if (a.rho, a.eta) != (b.rho, b.eta):
                found[name] = f"other temperatures than {first_name!r}"
        elif rows[name]["size"] != rows[first_name]["size"]:
            found[name] = f"another number of observations than {first_name!r}: not comparable"
        elif isinstance(a, Model) and isinstance(b, Model):
            given = rows[name]["size"] < b.size
            pairs = [(_observed(a.data), _observed(b.data))]
            pairs += [] if given else [(_observed(a.physics), _observed(b.physics))]
            if not given and pairs[1][0][0] != pairs[1][1][0]:
                found[name] = f"other operators than {first_name!r}: compare with given_physics=True"
            elif any(one != other for one, other in pairs):
                found[name] = f"other observations than {first_name!r}: not comparable"
    return found


def _observed(blocks: Sequence[Observation]) -> tuple[list[str], list[Any], list[Any]]:
    """Return the operators, points and values of blocks, however they are cut into blocks."""
    names = dict.fromkeys(str(block.operator) for block in blocks)
    return list(names), [p for b in blocks for p in b.points.tolist()], [v for b in blocks for v in b.values.tolist()]
