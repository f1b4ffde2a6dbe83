"""Comparing models and networks: ranked tables with warnings beside each number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from .errors import InputError, PilescoreError, listed, require
from .evaluation import evaluated
from .fredholm import DataFreePile
from .held_out import as_held_out, forecast
from .minimum import Minimum
from .model import Model
from .networks import NetworkPile
from .observations import Observation, check_names
from .posterior import Posterior
from .score import Pile, at_profiled_scale, check_given, scored
from .solving import Solved
from .system import IMPRECISE, solve

Candidate: TypeAlias = Model | Minimum | Solved | Pile | DataFreePile
Predicting: TypeAlias = Model | Minimum | Solved | Posterior | NetworkPile

HELD_OUT_COLUMNS = ("log_density", "difference", "standard_error", "nats", "rmse", "coverage")
NETWORK_COLUMNS = ("fit", "prior", "complexity", "misfit", "training_loss", "parameters", "size", "eta", "sigma2")

FIT = (0.5, 2.0)
"""A fit outside is worth a warning: residuals much smaller, or larger, than the noise says."""


def compare(
    candidates: Mapping[str, Candidate | Predicting],
    *,
    held_out: Observation | Sequence[Observation] | None = None,
    profiled: bool = False,
    given_physics: bool = False,
) -> pd.DataFrame:
    """Return candidates ranked by their scores, best first, with warnings beside each number.

    Parameters
    ----------
    candidates
        By name: models, which are scored here (nonlinear ones are solved first), or results of `pile`, `minimize` or
        `solve_nonlinear`; or results of `data_free_pile` only; or of `network_pile` only. With `held_out`: models,
        results of `minimize`, `solve_nonlinear`, `posterior` and `network_pile`, together.
    held_out
        Observations that no candidate was fitted to, made by `observe` or `impose`: candidates are ranked by the log
        density that they predict for them. Their noise is their own (`noise`, `gamma` or `rho`), else what each
        candidate assumes for its own observations.
    profiled, given_physics
        As for `pile`, for the models among them. With `held_out`, a profiled model predicts at its profiled scale.

    Returns
    -------
    pandas.DataFrame
        Indexed by name: `rank`, missing where there is no score; `pile` and its `difference` from the best, per
        observation; `nats`, the log evidence that the best has more (3 is clear, 5 is strong); `penalised`, the same
        after `½ log n` nats for each hyperparameter that a `Minimum` has `fitted`, by which candidates are ranked (so
        that `nats` may be negative, where a candidate with more of them is a little better);
        `fit`, `complexity`, `size`; `warnings`. Of data-free scores: `value` in place of `pile`, `error`, `status`. Of
        networks: `pile`, `difference`, `nats`, `form`, the terms, `misfit`, `training_loss`, `parameters`, `size`.

        With `held_out`: `rank`; `log_density`, the mean over the `size` held-out values, each by itself; `difference`,
        by how much it is below the best; `standard_error` of that difference, by the differences of the values
        (less than two of them are no difference); `nats`, the difference of the sums over all values; `rmse` of the
        means; `coverage`, the share of values within their 95% intervals; `kind`, `"kernel"` or `"network"`;
        `warnings`.

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

    By what they predict for values that they have not seen, which is what a kernel and a network have in common:

    >>> new = ps.observe(ps.identity, np.sin(6 * (x + 0.02)), at=x + 0.02)
    >>> ps.compare({"rough": rough, "smooth": smooth}, held_out=new)[["rank", "log_density", "coverage"]].round(1)
            rank  log_density  coverage
    smooth     1          2.7       1.0
    rough      2          0.3       1.0
    """
    require(isinstance(candidates, Mapping) and len(candidates) > 0, "candidates", candidates, "a mapping by name")
    if held_out is not None:
        require(not given_physics, "given_physics", given_physics, "False with held_out")
        return _held_out_table(candidates, as_held_out(held_out), profiled)
    for name, each in candidates.items():
        good = isinstance(each, Model | Minimum | Solved | Pile | DataFreePile | NetworkPile)
        expected = "a model, or a result of pile, minimize, solve_nonlinear, data_free_pile or network_pile"
        expected += " (one of posterior with held_out=…)" if isinstance(each, Posterior) else ""
        require(good, f"candidates[{name!r}]", each, expected)
        if isinstance(each, Model):
            check_given(each, given_physics)
    networks = {name: each for name, each in candidates.items() if isinstance(each, NetworkPile)}
    others = {name: each for name, each in candidates.items() if not isinstance(each, NetworkPile | Posterior)}
    if networks:
        _check_alone(networks, others)
        return _network_table(networks)
    free = [isinstance(each, DataFreePile) for each in others.values()]
    require(all(free) or not any(free), "candidates", list(candidates), "data-free scores only, or none of them")
    rows = {
        name: _data_free(each) if isinstance(each, DataFreePile) else row(each, profiled, given_physics)
        for name, each in others.items()
    }
    return ranked(others, rows)


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
    elif isinstance(each, Minimum | Solved):
        score = each.pile
        notes += _cautions(each)
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


def _cautions(each: Minimum | Solved) -> list[str]:
    """Return what is to be said of how a search or an iteration ended."""
    if isinstance(each, Solved):
        return [] if each.status == "converged" else [f"{each.status}: {each.reason}"]
    notes = [] if each.converged else [f"{each.ending}: {each.reason}"]
    notes += [f"{name} is at its {side} bound" for name, side in each.at_bounds.items()]
    if each.curvature is not None and each.curvature.flat:
        notes.append(f"{len(each.curvature.flat)} flat direction(s)")
    if each.solved is not None and not each.solved.converged:
        notes.append(f"{each.solved.status}: {each.solved.reason}")
    return notes


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


def _check_alone(networks: Mapping[str, NetworkPile], others: Mapping[str, Candidate]) -> None:
    if others:
        raise InputError(
            f"candidates: scores of networks ({listed(list(networks))}) and others ({listed(list(others))}) cannot be "
            "compared: PILE of a network is of other rows, with a relative noise of its own, a prior on weights and a "
            "local linearisation. Compare what they predict: ps.compare(candidates, held_out=observations)"
        )


def _network_table(networks: Mapping[str, NetworkPile]) -> pd.DataFrame:
    """Return networks ranked by their scores."""
    (first_name, first), *_ = networks.items()
    rows = {}
    for name, each in networks.items():
        notes = list(each.notes)
        if each.rounding > IMPRECISE:
            notes.append(f"rounding leaves it uncertain by {each.rounding:.1e}")
        if each.form != first.form:
            notes.append(f"another form than {first_name!r}: not comparable")
        if each.size != first.size:
            notes.append(f"another number of rows than {first_name!r}: not comparable")
        elif not each.tangent.same_rows(first.tangent):
            notes.append(f"other rows than {first_name!r}, or other weights of them: not comparable")
        rows[name] = {
            "pile": each.value,
            "nats": each.free_energy,
            "form": each.form,
            **{key: getattr(each, key) for key in NETWORK_COLUMNS},
            "warnings": "; ".join(notes),
        }
    table = pd.DataFrame.from_dict(rows, orient="index").sort_values("pile", kind="stable", na_position="last")
    table.insert(0, "rank", table["pile"].rank(method="first").astype("Int64"))
    table.insert(2, "difference", table["pile"] - table["pile"].iloc[0])
    return table.assign(nats=table["nats"] - table["nats"].iloc[0])


def _held_out_table(candidates: Mapping[str, Any], held: Sequence[Observation], profiled: bool) -> pd.DataFrame:
    """Return candidates ranked by the log density that they predict for held-out blocks."""
    for name, each in candidates.items():
        _check_predicts(name, each, held)
    size = sum(block.size for block in held)
    rows: dict[str, dict[str, Any]] = {}
    densities: dict[str, np.ndarray] = {}
    for name, each in candidates.items():
        kind = "network" if isinstance(each, NetworkPile) else "kernel"
        row = {**dict.fromkeys(HELD_OUT_COLUMNS, math.nan), "size": size, "kind": kind}
        try:
            predictor, notes = _predictor(each, profiled)
            found = forecast(predictor, held)
        except PilescoreError as failure:
            rows[name] = row | {"warnings": f"failed: {failure}"}
            continue
        densities[name] = found.log_densities
        numbers = {"log_density": float(found.log_densities.mean()), "rmse": found.rmse, "coverage": found.coverage}
        rows[name] = row | numbers | {"warnings": "; ".join([*notes, *found.notes])}
    if densities:
        best = max(densities.values(), key=np.mean)
        for name, each in densities.items():
            lost = best - each
            error = float(np.std(lost, ddof=1)) / math.sqrt(size) if size > 1 else math.nan
            rows[name] |= {"difference": float(lost.mean()), "standard_error": error, "nats": float(lost.sum())}
    table = pd.DataFrame.from_dict(rows, orient="index")
    table = table.sort_values("log_density", ascending=False, kind="stable", na_position="last")
    table.insert(0, "rank", table["log_density"].rank(method="first", ascending=False).astype("Int64"))
    return table


def _check_predicts(name: str, each: Any, held: Sequence[Observation]) -> None:
    """Raise an `InputError` unless a candidate is one that can predict, for points of this dimension."""
    good = isinstance(each, Model | Minimum | Solved | Posterior | NetworkPile)
    expected = "a model, or a result of minimize, solve_nonlinear, posterior or network_pile, all of which predict"
    require(good, f"candidates[{name!r}]", each, expected)
    model = each if isinstance(each, Model) else each.tangent.model if isinstance(each, NetworkPile) else each.model
    if model is not None:
        dimension = model.blocks[0].dimension
        require(held[0].dimension == dimension, "held_out", held[0].points, f"{dimension} coordinates, as {name!r} has")
        for block in held:
            check_names(block.operator, model.names, "held_out")


def _predictor(each: Predicting, profiled: bool) -> tuple[Posterior | NetworkPile, list[str]]:
    """Return what a candidate predicts with, and what is to be said of it."""
    if isinstance(each, NetworkPile):
        return each, list(each.notes)
    if isinstance(each, Posterior):
        return each, []
    if isinstance(each, Minimum | Solved):
        model = each.model if isinstance(each, Solved) or each.solved is None else each.solved.model
        return Posterior(solve(model)), _cautions(each)
    found = evaluated(each, False, explain=True)
    system = found.system
    if profiled:
        system = solve(at_profiled_scale(system.model, scored(system, None, True)))
    return Posterior(system), [found.caution] if found.caution else []
