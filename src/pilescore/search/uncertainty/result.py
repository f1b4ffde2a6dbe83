"""The distribution of searched hyperparameters: weighted models, quantiles, draws, and the integrated evidence."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ...errors import InputError, as_count
from ...inference import ModelMixture, WeightedModel, as_probabilities
from ...model import Model
from ..minimum import Minimum
from ..nodes import least_lengths
from ..space import SearchSpace
from .density import HyperparameterDensity
from .display import COUNT, Marginal, marginals_html, smoothed_density
from .sampling import Chains

Method = Literal["weighted", "laplace", "nuts"]

INTERVAL = (0.025, 0.5, 0.975)
"""The probabilities of the quantiles in tables."""

NEGLIGIBLE = 5e-4
"""The total weight of the points that predictions leave out."""

DRAWS = 2000
"""The number of draws that ArviZ gets where there are no chains."""

FLAT_SPREAD = 0.9
"""A hyperparameter whose deviation is above this, relative to its uniform prior between bounds, is not determined."""

EDGE, EDGE_MASS = 0.25, 0.06
"""A distribution with more than this mass within this many deviations of a bound is cut off by it."""


PILED_MASS, MORE_THAN_PRIOR = 0.1, 2.0
"""With a prior, the mass has to be larger than this, and this many times the mass of the prior there: not every
distribution with a wide prior ends before its bounds. Half of a normal one, cut off at its mode, has 12%."""

PRIOR_CELLS = 2000
"""Into how many cells between its bounds a prior is divided to find that mass."""

SAME_BOUND = 0.02
"""The least length depends a little on the other hyperparameters; a bound this near to it, relatively, is due to it."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Hyperposterior(ModelMixture):
    """The distribution of hyperparameters given the observations, as returned by `hyperposterior`.

    `ps.posterior(hyperposterior)` averages predictions over it, so that their deviations contain the uncertainty of
    hyperparameters.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 12)
    >>> noisy = np.sin(6 * x) + 0.1 * np.random.default_rng(0).standard_normal(12)
    >>> model = ps.Model(ps.RBF(0.3), data=ps.observe(ps.identity, noisy, at=x), gamma=0.02)
    >>> best = ps.minimize(model, {"kernel.bandwidth": (0.02, 10), "gamma": (1e-6, 1), "eta": (0.01, 100)})
    >>> hyper = ps.hyperposterior(best)
    >>> low, middle, high = hyper.quantiles([0.025, 0.5, 0.975]).loc["kernel.bandwidth"]
    >>> bool(0.13 < low < 0.19 < middle < 0.21 < high < 0.26)
    True
    >>> inside, known = ps.posterior(hyper), ps.posterior(best.model)
    >>> bool(np.all(inside.std([0.5, 1.2]) > known.std([0.5, 1.2])))
    True
    """

    minimum: Minimum
    """The minimum that it is around."""
    method: Method
    """How it was computed."""
    density: HyperparameterDensity
    points: Float[np.ndarray, "k p"]
    """The hyperparameters of the models that predictions average over, one row for each."""
    weights: Float[np.ndarray, " k"]
    """Their weights, with the sum one."""
    draws: Float[np.ndarray, "n p"]
    """A large weighted sample of hyperparameters, which quantiles come from."""
    draw_weights: Float[np.ndarray, " n"]
    log_evidence: float
    """The log evidence, averaged over the priors of the hyperparameters; Laplace's estimate with `laplace`, `nuts`."""
    log_evidence_error: float
    """The numerical error of the log evidence; NaN if it is unknown, with `laplace` and `nuts`."""
    effective_size: float
    """How many independent draws would be as good: of the computed points with `weighted`, of all draws with `nuts`;
    NaN with `laplace`."""
    evaluations: int
    """How many scores were computed, with and without gradient."""
    optima: Float[np.ndarray, " m"]
    """The probability of each optimum that was found and matters, largest first."""
    warnings: tuple[str, ...]
    """Why the result may not be trusted, and what helps; one sentence each. Empty if nothing is wrong."""
    chains: Chains | None = None
    """The chains of the sampler, with `nuts`."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the hyperparameters, elements of arrays one by one."""
        return self.density.space.names

    @property
    def priors(self) -> Mapping[str, Any]:
        """The prior of each hyperparameter by the name given to the search; None if it is uniform between its bounds.

        Positive hyperparameters are uniform in their logarithm.
        """
        space, own = self.density.space, self.density.space.model.priors
        bases = {name: space.targets[space.names[rows[0]]][0] for name, rows in space.groups.items()}
        return {name: own.get(name, own.get(bases[name], self.density.priors[name])) for name in space.groups}

    @functools.cached_property
    def weighted_models(self) -> Sequence[WeightedModel]:
        """The models that predictions average over, heaviest first. Models of negligible weight are left out."""
        order = np.argsort(-self.weights, kind="stable")
        heavier = np.cumsum(self.weights[order]) - self.weights[order]  # the weight before each
        kept = order[(heavier < 1.0 - NEGLIGIBLE) & (self.weights[order] > 0.0)]
        total = float(self.weights[kept].sum())
        space, near = self.density.space, self.density.warm_start
        found = []
        for i in kept:
            model = space.model_at(self.points[i])
            values = {**space.by_name(space.values_of(model)), **_tied(space, model)}
            found.append(WeightedModel(float(self.weights[i]) / total, model, values, near))
        return found

    @property
    def table(self) -> pd.DataFrame:
        """The mean, standard deviation and quantiles of each hyperparameter."""
        mean = self.draw_weights @ self.draws
        deviation = np.sqrt(self.draw_weights @ (self.draws - mean) ** 2)
        moments = pd.DataFrame({"mean": mean, "deviation": deviation}, index=list(self.names))
        return pd.concat([moments, self.quantiles(INTERVAL)], axis=1)

    def quantiles(self, probabilities: Any) -> pd.DataFrame:
        """Return quantiles of each hyperparameter, one column for each probability."""
        wanted = np.atleast_1d(as_probabilities(probabilities))
        rows = [_weighted_quantiles(column, self.draw_weights, wanted) for column in self.draws.T]
        return pd.DataFrame(rows, index=list(self.names), columns=[f"{100 * p:.4g}%" for p in wanted])

    @property
    def covariance(self) -> Float[np.ndarray, "p p"]:
        """The covariance of the hyperparameters, in the order of `names`."""
        away = self.draws - self.draw_weights @ self.draws
        return np.asarray((away * self.draw_weights[:, None]).T @ away)

    def sample(self, count: int, seed: int = 0) -> dict[str, Float[np.ndarray, " n"]]:
        """Return equally weighted draws of the hyperparameters by name."""
        rows = self._resampled(as_count(count, "count"), as_count(seed, "seed", least=0))
        return {name: column.copy() for name, column in zip(self.names, self.draws[rows].T, strict=True)}

    def to_arviz(self) -> Any:
        """Return the draws as ArviZ knows them: one variable for each hyperparameter, arrays as arrays.

        Needs the extra `bayes`. With `nuts` there are its chains and `sample_stats`; otherwise one chain of equally
        weighted, independent draws.
        """
        arviz = _require_arviz()
        import xarray as xr

        space, stats = self.density.space, None
        if self.chains is None:
            values = self.draws[None, self._resampled(DRAWS, 0)]
        else:
            values = self.density.values(self.chains.t)
            stats = xr.Dataset({"diverging": (("chain", "draw"), self.chains.diverging)})
        variables = {}
        for name, rows in space.groups.items():
            shape = space.shapes[name]
            axes = tuple(f"{name}_dim_{i}" for i in range(len(shape)))
            block = values[:, :, list(rows)].reshape(*values.shape[:2], *shape)
            variables[name] = (("chain", "draw", *axes), block)
        coordinates = {"chain": np.arange(values.shape[0]), "draw": np.arange(values.shape[1])}
        posterior = xr.Dataset(variables, coordinates, {"inference_library": "pilescore", "method": self.method})
        groups = {"posterior": posterior} | (
            {} if stats is None else {"sample_stats": stats.assign_coords(coordinates)}
        )
        if hasattr(arviz, "InferenceData"):
            return arviz.InferenceData(**groups)
        return xr.DataTree.from_dict(groups)  # from ArviZ 1.0 on

    def _resampled(self, count: int, seed: int) -> Int[np.ndarray, " n"]:
        """Return the rows of equally weighted draws, by systematic resampling, in random order."""
        rng = np.random.default_rng(seed)
        ends = np.cumsum(self.draw_weights)
        rows = np.searchsorted(ends / ends[-1], (np.arange(count) + rng.uniform()) / count)
        return rng.permutation(np.minimum(rows, len(ends) - 1))

    def __repr__(self) -> str:
        lines = [f"Hyperposterior({self.summary}"]
        for name, row in self.quantiles(INTERVAL).iterrows():
            low, middle, high = row
            lines.append(f"  {name} = {middle:.6g}  ({low:.4g} to {high:.4g})")
        return "\n".join([*lines, *(f"  {text}" for text in self._notes)]) + ")"

    @property
    def _notes(self) -> list[str]:
        """What there is to say about the result: several optima, and warnings."""
        if len(self.optima) == 1:
            return list(self.warnings)
        shares = ", ".join(f"{100 * share:.2g}%" for share in self.optima)
        several = (
            f"{len(self.optima)} optima with probabilities {shares}: predictions average over all. More data, priors, "
            "or narrower bounds tell them apart"
        )
        return [several, *self.warnings]

    @property
    def summary(self) -> str:
        """The method, its size and the integrated log evidence, in a line."""
        if self.method == "laplace":
            how = "laplace"
        elif self.chains is not None:
            how = f"nuts, {len(self.draws)} draws with effective size {self.effective_size:.3g}"
        else:
            how = f"{len(self.weights)} weighted models, effective size {self.effective_size:.3g}"
        if not math.isfinite(self.log_evidence):
            return how
        error = f" ± {self.log_evidence_error:.2g}" if math.isfinite(self.log_evidence_error) else ""
        return f"{how}, log evidence {self.log_evidence:.5g}{error}"

    def _repr_html_(self) -> str:
        return marginals_html(self.summary, [self._marginal(i) for i in range(len(self.names))], self._notes)

    def _marginal(self, row: int) -> Marginal:
        """Return the density of one hyperparameter and its prior, over a few deviations in its search coordinate."""
        space = self.density.space
        u = space.encode(self.draws)[:, row]
        low, high = np.array(space.bounds).T
        ends = _weighted_quantiles(u, self.draw_weights, np.array([0.001, 0.999]))
        margin = 0.5 * (ends[1] - ends[0])
        at = np.linspace(max(low[row], ends[0] - margin), min(high[row], ends[1] + margin), COUNT)
        low_quantile, middle, high_quantile = _weighted_quantiles(
            self.draws[:, row], self.draw_weights, np.array(INTERVAL)
        )
        return Marginal(
            self.names[row],
            (low_quantile, middle, high_quantile),
            smoothed_density(u, self.draw_weights, at),
            self.density.prior_along(row, at),
            self.density.prior_text(row),
        )


def _tied(space: SearchSpace, model: Model) -> dict[str, float]:
    """Return the hyperparameters that follow searched ones, elements of arrays one by one."""
    found = {}
    for name in space.ties:
        base, index = space.targets[name]
        value = np.asarray(model.parameters[base])[index]
        for element in np.ndindex(value.shape):
            full = f"{name}[{', '.join(map(str, element))}]" if element else name
            found[full] = float(value[element])
    return found


def find_warnings(
    density: HyperparameterDensity, draws: Float[np.ndarray, "n p"], weights: Float[np.ndarray, " n"]
) -> list[str]:
    """Return a sentence about each hyperparameter that the data do not determine, or that a bound cuts off.

    A prior keeps a hyperparameter from running off, and the data need not know it.

    Parameters
    ----------
    density
        The density.
    draws
        Draws of the hyperparameters.
    weights
        Their weights.
    """
    space, roles = density.space, density.space.model.roles
    is_noise = [roles[space.targets[name][0]] == "data_temperature" for name in space.names]
    low, high = np.array(space.bounds).T
    position = (space.encode(draws) - low) / (high - low)
    deviations = np.sqrt(weights @ (position - weights @ position) ** 2) * math.sqrt(12.0)  # one if uniform
    texts = []
    for i, name in enumerate(space.names):
        if density.is_uniform(i) and deviations[i] > FLAT_SPREAD:
            texts.append(
                f"the data do not determine {name}: its distribution is about as wide as its bounds, "
                f"{space.low[i]:.4g} to {space.high[i]:.4g}. Give it a prior, fix it, or add data"
            )
            continue
        edge = EDGE * deviations[i] / math.sqrt(12.0)
        below, above = (float(weights @ side) for side in (position[:, i] < edge, position[:, i] > 1.0 - edge))
        enough = [
            EDGE_MASS if density.is_uniform(i) else max(PILED_MASS, MORE_THAN_PRIOR * known)
            for known in _prior_at_edges(density, i, edge)
        ]
        if below > enough[0] and _is_bound_by_nodes(space, i):
            texts.append(
                f"the distance between the nodes of exact equations excludes values of {name} below "
                f"{space.low[i]:.3g}, and cuts its distribution off. Impose the equations at more nodes"
            )
        elif below > enough[0] and (density.is_uniform(i) or not is_noise[i]):  # data without noise are no fault
            texts.append(f"the lower bound of {name}, {space.low[i]:.4g}, cuts its distribution off. Widen it")
        if above > enough[1]:
            texts.append(f"the upper bound of {name}, {space.high[i]:.4g}, cuts its distribution off. Widen it")
    return texts


def _prior_at_edges(density: HyperparameterDensity, row: int, edge: float) -> tuple[float, float]:
    """Return the probabilities of a prior next to the bounds of a coordinate; zero if it is uniform.

    A prior that the data do not change is cut off by the bounds that the user gave, and nobody need be told.
    """
    if density.is_uniform(row):
        return 0.0, 0.0
    low, high = (ends[row] for ends in density.bounds)
    middles = (np.arange(PRIOR_CELLS) + 0.5) / PRIOR_CELLS
    masses = density.prior_along(row, low + (high - low) * middles)
    masses = masses / max(float(masses.sum()), 1e-300)
    return float(masses @ (middles < edge)), float(masses @ (middles > 1.0 - edge))


def _is_bound_by_nodes(space: SearchSpace, row: int) -> bool:
    """Return whether the lower bound of a length or period is what the distance between nodes allows."""
    base, index = space.targets[space.names[row]]
    least = np.asarray(least_lengths(space.model).get(base, 0.0))
    return bool(0.0 < space.low[row] <= (1 + SAME_BOUND) * float(least[index] if least.ndim else least))


def _weighted_quantiles(
    values: Float[np.ndarray, " n"], weights: Float[np.ndarray, " n"], probabilities: Float[np.ndarray, " k"]
) -> Float[np.ndarray, " k"]:
    """Return quantiles of weighted values, by interpolation between the middles of their steps."""
    order = np.argsort(values)
    sorted_weights = weights[order]
    middles = np.cumsum(sorted_weights) - 0.5 * sorted_weights
    return np.asarray(np.interp(probabilities, middles / sorted_weights.sum(), values[order]))


def _require_arviz() -> Any:
    """Return the package ArviZ; raise an `InputError` without it."""
    import warnings as python_warnings

    try:
        with python_warnings.catch_warnings():
            python_warnings.simplefilter("ignore")  # ArviZ announces its next version whenever it is imported
            import arviz
    except ModuleNotFoundError as error:
        raise InputError("to_arviz: needs ArviZ, which is not installed: pip install 'pilescore[bayes]'") from error
    return arviz
