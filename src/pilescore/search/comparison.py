"""Comparison of models and networks: tables ranked by score or by held-out predictions, with warnings."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from ..errors import InputError, PilescoreError, PrecisionWarning, listed, require
from ..inference import MixturePosterior, Posterior, Score, as_score
from ..model import Observation, check_names, labels
from ..networks import NetworkPile
from .candidates import Candidate, HeldOutPredictor, ModelCandidate, Predicting, Scored, as_candidate, common_score

HELD_OUT_COLUMNS = ("log_density", "difference", "standard_error", "nats", "rmse", "coverage")

INTERVAL_95 = 1.959963984540054
"""Half the width of a 95% interval of a normal distribution, in standard deviations."""


def compare(
    candidates: Mapping[str, Candidate],
    *,
    held_out: Observation | Sequence[Observation] | None = None,
    score: Score | str = "auto",
) -> pd.DataFrame:
    """Return a table of candidates, best first, with warnings beside each number.

    Parameters
    ----------
    candidates
        Candidates by name: models, which are scored here (nonlinear ones are solved first), or results of `pile`,
        `minimize`, `hyperposterior` or `solve_nonlinear`; or only results of `data_free_pile`; or only results of
        `network_pile`. With `held_out`: any mixture of models and results of `minimize`, `hyperposterior`,
        `solve_nonlinear`, `posterior` and `network_pile`.
    held_out
        Observations that no candidate was fitted to, made by `observe` or `impose`. Candidates are ranked by the log
        density that they predict for them. A block without its own noise (`noise`, `gamma` or `rho`) gets the noise
        that each candidate assumes for its own observations.
    score
        How models are scored, as in `pile`. With `held_out`, a profiled model predicts at its profiled scale.

    Returns
    -------
    pandas.DataFrame
        One row for each name. `rank`, missing if there is no score; `pile` and its `difference` from the best, per
        observation; `log_evidence`, by which candidates are ranked, and its numerical `error`; `nats`, by how much
        it is below that of the best (3 is clear, 5 is strong); `probability` of each candidate, if all were equally
        probable before; `fit`, `complexity`, `size`, the number of `fitted` hyperparameters; `warnings`. Networks have
        `pile`, `difference`, `nats`, `form`, the terms, `misfit`, `training_loss`, `parameters`, `size`.

        The log evidence of a `Minimum` is integrated over what was searched, with the priors of `hyperposterior`: a
        model with more hyperparameters fits better, but has to share its probability among more of their values. This
        takes about as long as 25 to 90 scores with gradient, unless the candidate is a `Hyperposterior`. The
        hyperparameters of other candidates are taken as known.

        Data-free scores have `value` instead of `pile`, `normalised`, `error` and `status`. They are ranked by `value`
        if kernels are of one family and differ in angles, ratios and shears only, at equal temperatures. Otherwise
        values are not comparable: `warnings` says so, and candidates are ranked by `normalised`.

        With `held_out`: `rank`; `log_density`, the mean over the `size` held-out values, each by itself; `difference`,
        how far it is below the best; `standard_error` of that difference over the values (a difference below two
        standard errors means little); `nats`, the difference of the sums over all values; `rmse` of the means;
        `coverage`, the fraction of values within their 95% intervals; `kind`, `"kernel"` or `"network"`; `warnings`.

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

    Kernels and networks can be compared by their predictions for held-out values:

    >>> new = ps.observe(ps.identity, np.sin(6 * (x + 0.02)), at=x + 0.02)
    >>> ps.compare({"rough": rough, "smooth": smooth}, held_out=new)[["rank", "log_density", "coverage"]].round(1)
            rank  log_density  coverage
    smooth     1          2.7       1.0
    rough      2          0.3       1.0
    """
    require(isinstance(candidates, Mapping) and len(candidates) > 0, "candidates", candidates, "a mapping by name")
    scoring = as_score(score)
    require(scoring.formula == "consistent", "score", scoring, "the consistent formula")
    if held_out is not None:
        require(scoring.given != "physics", "score", score, "'joint' or 'profiled' with held_out")
        return _held_out_table(candidates, as_held_out(held_out), scoring.profiled)
    scored: dict[str, Scored] = {}
    for name, value in candidates.items():
        candidate = as_candidate(value)
        expected = "a model, or a result of pile, minimize, hyperposterior, solve_nonlinear, data_free_pile or "
        expected += "network_pile"
        expected += " (a posterior needs held_out=…)" if candidate is not None else ""
        require(isinstance(candidate, Scored), f"candidates[{name!r}]", value, expected)
        assert isinstance(candidate, Scored)
        candidate.check(scoring)
        scored[name] = candidate
    families = {candidate.family for candidate in scored.values()}
    if "network" in families and len(families) > 1:
        networks = [name for name, candidate in scored.items() if candidate.family == "network"]
        others = [name for name in scored if name not in networks]
        raise InputError(
            f"candidates: scores of networks ({listed(networks)}) and others ({listed(others)}) cannot be compared: "
            "PILE of a network is of other rows, with its own relative noise, a prior on weights and a local "
            "linearisation. Compare what they predict: ps.compare(candidates, held_out=observations)"
        )
    require(len(families) == 1, "candidates", list(candidates), "data-free scores only, or none of them")
    given = [candidate.model for candidate in scored.values() if isinstance(candidate, ModelCandidate)]
    scoring = common_score(scoring, given) if given else scoring
    rows = {name: candidate.row(scoring) for name, candidate in scored.items()}
    return _network_table(scored, rows) if "network" in families else _ranked(scored, rows)


def ranked(candidates: Mapping[str, Candidate], rows: dict[str, dict[str, Any]]) -> pd.DataFrame:
    """Return the table of candidates from their rows, best first; rows of failed candidates come last."""
    scored = {name: as_candidate(value) for name, value in candidates.items()}
    return _ranked({name: candidate for name, candidate in scored.items() if isinstance(candidate, Scored)}, rows)


def _ranked(scored: Mapping[str, Scored], rows: dict[str, dict[str, Any]]) -> pd.DataFrame:
    reasons = _incomparable(scored, rows)
    table = _with_warnings(rows, reasons)
    if "value" in table:
        normalised = any(reasons.values()) and bool(table["normalised"].notna().all())
        return _in_order(table, "value", table["normalised" if normalised else "value"], 0.5 * table["value"])
    table = _in_order(table, "pile", -table["log_evidence"], -table["log_evidence"])
    known = table["nats"].where([not reasons.get(name) for name in table.index])
    odds = np.exp(-(known - known.min()))
    table.insert(table.columns.get_loc("nats") + 1, "probability", odds / odds.sum())
    return table


def _in_order(table: pd.DataFrame, key: str, order: pd.Series, energy: pd.Series) -> pd.DataFrame:
    """Return the table in an order, with ranks, differences of a column, and nats behind the first."""
    table = table.assign(order=order, nats=energy).sort_values("order", kind="stable", na_position="last")
    nats = table.pop("nats")
    table.insert(0, "rank", table.pop("order").rank(method="first").astype("Int64"))
    table.insert(2, "difference", table[key] - table[key].iloc[0])
    table.insert(table.columns.get_loc("error") + 1 if key == "pile" else 3, "nats", nats - nats.iloc[0])
    return table.astype({"size": "Int64", "fitted": "Int64"})


def _network_table(scored: Mapping[str, Scored], rows: dict[str, dict[str, Any]]) -> pd.DataFrame:
    """Return networks ranked by their scores."""
    table = _with_warnings(rows, _incomparable(scored, rows)).sort_values("pile", kind="stable", na_position="last")
    table.insert(0, "rank", table["pile"].rank(method="first").astype("Int64"))
    table.insert(2, "difference", table["pile"] - table["pile"].iloc[0])
    return table.assign(nats=table["nats"] - table["nats"].iloc[0])


def _incomparable(scored: Mapping[str, Scored], rows: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return why each candidate but the first cannot be compared with the first; an empty string if it can."""
    succeeded = {name: each for name, each in scored.items() if np.isfinite(rows[name].get("pile", 0.0))}
    if not succeeded:
        return {}
    (first_name, first), *others = succeeded.items()
    return {name: other.incomparable(first, first_name, rows[name], rows[first_name]) for name, other in others}


def _with_warnings(rows: dict[str, dict[str, Any]], reasons: Mapping[str, str]) -> pd.DataFrame:
    """Return rows as a table, with a warning for each candidate that cannot be compared with the first."""
    for name, reason in reasons.items():
        rows[name]["warnings"] = "; ".join(filter(None, [rows[name]["warnings"], reason]))
    return pd.DataFrame.from_dict(rows, orient="index")


def _held_out_table(candidates: Mapping[str, Any], held_out: Sequence[Observation], profiled: bool) -> pd.DataFrame:
    """Return candidates ranked by the log density that they predict for held-out blocks."""
    predicting = {name: _as_predicting(name, value, held_out) for name, value in candidates.items()}
    size = sum(block.size for block in held_out)
    rows: dict[str, dict[str, Any]] = {}
    densities: dict[str, np.ndarray] = {}
    for name, candidate in predicting.items():
        row = {**dict.fromkeys(HELD_OUT_COLUMNS, math.nan), "size": size, "kind": candidate.kind}
        try:
            forecast = predict(candidate.predictor(profiled), held_out)
        except PilescoreError as failure:
            rows[name] = row | {"warnings": f"failed: {failure}"}
            continue
        densities[name] = forecast.log_densities
        mean = float(forecast.log_densities.mean())
        numbers = {"log_density": mean, "rmse": forecast.rmse, "coverage": forecast.coverage}
        rows[name] = row | numbers | {"warnings": "; ".join(forecast.notes)}
    if densities:
        best = max(densities.values(), key=np.mean)
        for name, density in densities.items():
            lost = best - density
            error = float(np.std(lost, ddof=1)) / math.sqrt(size) if size > 1 else math.nan
            rows[name] |= {"difference": float(lost.mean()), "standard_error": error, "nats": float(lost.sum())}
    table = pd.DataFrame.from_dict(rows, orient="index")
    table = table.sort_values("log_density", ascending=False, kind="stable", na_position="last")
    table.insert(0, "rank", table["log_density"].rank(method="first", ascending=False).astype("Int64"))
    return table


def _as_predicting(name: str, value: Any, held_out: Sequence[Observation]) -> Predicting:
    """Return a candidate that can predict at points of this dimension; raise an `InputError` for others."""
    candidate = as_candidate(value)
    expected = "a model, or a result of minimize, hyperposterior, solve_nonlinear, posterior or network_pile, all of "
    expected += "which predict"
    require(isinstance(candidate, Predicting), f"candidates[{name!r}]", value, expected)
    assert isinstance(candidate, Predicting)
    model = candidate.model
    if model is not None:
        dimension, points = model.blocks[0].dimension, held_out[0].points
        require(points.shape[1] == dimension, "held_out", points, f"{dimension} coordinates, as {name!r} has")
        for block in held_out:
            check_names(block.operator, model.names, "held_out")
    return candidate


@dataclasses.dataclass(frozen=True, eq=False)
class Forecast:
    """Predictions of held-out values: a normal distribution for each value, noise included."""

    errors: Float[np.ndarray, " n"]
    """Held-out values minus predicted means."""
    variances: Float[np.ndarray, " n"]
    notes: tuple[str, ...] = ()

    @property
    def log_densities(self) -> Float[np.ndarray, " n"]:
        """The log density of each value by itself."""
        return -0.5 * (np.log(2 * math.pi * self.variances) + self.errors**2 / self.variances)

    @property
    def rmse(self) -> float:
        """The root mean square of the errors."""
        return math.sqrt(float(np.mean(self.errors**2)))

    @property
    def coverage(self) -> float:
        """The fraction of values within their 95% intervals."""
        return float(np.mean(np.abs(self.errors) <= INTERVAL_95 * np.sqrt(self.variances)))


def as_held_out(blocks: Any) -> tuple[Observation, ...]:
    """Return held-out blocks after checking that they are linear and have the same number of coordinates."""
    several = isinstance(blocks, Iterable) and not isinstance(blocks, Observation | str)
    checked = tuple(blocks) if several else (blocks,)
    expected = "a block made by ps.observe or ps.impose, or a list of them"
    require(len(checked) > 0, "held_out", blocks, expected)
    for block in checked:
        require(isinstance(block, Observation), "held_out", block, expected)
        if block.linear_operator is None:
            raise InputError(
                f"held_out: expected linear observations; {block} is nonlinear, and its prediction is not a normal "
                "distribution. Hold out values of the unknown, or of a linear operator of it"
            )
        same = block.dimension == checked[0].dimension
        require(same, "held_out", block.points, f"points with {checked[0].dimension} coordinates, as in {checked[0]}")
    return checked


def predict(predictor: HeldOutPredictor, blocks: Sequence[Observation]) -> Forecast:
    """Return the predictions of a candidate for held-out blocks, with warnings as notes."""
    notes = list(predictor.notes)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PrecisionWarning)
        moments = [_moments(predictor.source, block) for block in blocks]
    for warning in caught:
        if issubclass(warning.category, PrecisionWarning):
            notes.append(str(warning.message))
        else:
            warnings.warn(warning.message, warning.category, stacklevel=4)
    fitted = () if predictor.model is None else predictor.model.blocks
    count, size = _count_fitted(blocks, fitted), sum(block.size for block in blocks)
    if count:
        notes.append(f"{count} of {size} held-out values were fitted")
    noise = [
        predictor.noise(block, label) if block.temperature is None else 0.5 * float(block.temperature) / block.weights
        for block, label in zip(blocks, labels(blocks), strict=True)
    ]
    errors = np.concatenate([block.values - mean for block, (mean, _) in zip(blocks, moments, strict=True)])
    total = np.concatenate([variance + extra for (_, variance), extra in zip(moments, noise, strict=True)])
    return Forecast(errors, total, tuple(notes))


def _moments(source: Posterior | MixturePosterior | NetworkPile, block: Observation) -> tuple[np.ndarray, np.ndarray]:
    """Return the means and variances of a block's values without noise."""
    operator = block.linear_operator
    assert operator is not None  # checked by as_held_out
    mean = block.observed(source.mean(block.points, operator))
    if not block.is_functional:
        return mean, source.variance(block.points, operator)
    variances = block.observed_variances(source.covariance(block.points, operator))
    negative = variances < 0  # by cancellation in the difference of prior and explained variance
    if negative.any():
        text = f"{int(negative.sum())} of {len(variances)} variances of functionals are below rounding and set to zero"
        warnings.warn(text, PrecisionWarning, stacklevel=2)
    return mean, np.where(negative, 0.0, variances)


def _count_fitted(held_out: Sequence[Observation], fitted: Sequence[Observation]) -> int:
    """Return how many held-out values are among the fitted ones: same operator, same point, same value."""
    pool = Counter(key for block in fitted for key in _keys(block))
    return sum(pool[key] > 0 for block in held_out for key in _keys(block))


def _keys(block: Observation) -> Iterator[Hashable]:
    """Yield a key for each value of a linear block: the value, its point and the operator's coefficients there."""
    if block.linear_operator is None:
        return
    table = np.asarray(block.coefficients)
    # Ten digits: the same operator written in another way has coefficients that differ by rounding.
    at: list[Hashable] = [
        (tuple(point), frozenset((a, f"{c:.9e}") for a, c in zip(block.indices, column, strict=True) if c))
        for point, column in zip(block.points.tolist(), table.T.tolist(), strict=True)
    ]
    keys: list[Hashable] = at
    if block.is_functional:
        rows = np.asarray(block.matrix)
        keys = [frozenset((at[j], f"{row[j]:.9e}") for j in np.flatnonzero(row)) for row in rows]
    yield from zip(block.values.tolist(), keys, strict=True)
