"""Posteriors averaged over hyperparameters: the mixture of the posteriors of weighted models."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, overload

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import ndtr

from ..equations import Operator, identity
from ..errors import (
    InputError,
    NotPositiveDefiniteError,
    NotSolvedError,
    PrecisionWarning,
    ToleranceError,
    UncertaintyWarning,
    as_array,
    as_count,
    as_positive,
    nearest,
    require,
)
from ..model import Model, Path, follow, operator_paths
from ..solvers import estimate_cost
from .evidence import WarmStart, linear_system, systems_of
from .posterior import Posterior, as_generator, as_probabilities, normal_quantiles
from .score import Score

NEGLIGIBLE_WEIGHT = 0.01
"""The total weight of models that a mixture leaves out without a warning because they cannot be solved."""

MOST_LEFT_OUT = 0.2
"""The total weight that it may leave out with a warning."""

IMPRECISE_WEIGHT = 0.05
"""The total weight of models from which on a warning about their rounding is given: their share of the variance."""

KEPT_BYTES = 1e9
"""How many bytes of factors a mixture keeps. Models beyond it are factored again for each question."""

QUANTILE_BATCH = 1e6
"""How many distribution functions are evaluated at a time when quantiles are computed."""

QUANTILE_ERROR = 1e-12
"""The error of a quantile, as a fraction of the smallest deviation of the components."""

OWN_NAMES = ("gamma", "rho", "eta")
"""Hyperparameters of every model, which parameters inside operators must not be confused with."""

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False)
class WeightedModel:
    """One point of a distribution of hyperparameters: a model and its weight.

    Examples
    --------
    >>> import pilescore as ps
    >>> model = ps.Model(ps.RBF(1.0), data=ps.observe(ps.identity, values=[1.0], at=[0.0]), gamma=0.02)
    >>> ps.inference.WeightedModel(0.25, model, {"kernel.bandwidth": 1.0}).weight
    0.25
    """

    weight: float
    """The weight, a positive number. The weights of a mixture sum to one."""
    model: Model
    values: Mapping[str, Any]
    """The hyperparameters that vary, by name; single elements of arrays as `kernel.bandwidth[0]`."""
    warm_start: WarmStart | None = None
    """The start from which a nonlinear model is solved."""


class ModelMixture(abc.ABC):
    """A distribution of hyperparameters as weighted models; `ps.posterior` averages over them.

    Examples
    --------
    >>> import dataclasses, pilescore as ps
    >>> @dataclasses.dataclass
    ... class Bandwidths(ps.inference.ModelMixture):
    ...     model: ps.Model
    ...     weights: dict[float, float]
    ...
    ...     @property
    ...     def weighted_models(self):
    ...         name = "kernel.bandwidth"
    ...         models = {value: self.model.replace({name: value}) for value in self.weights}
    ...         return [ps.inference.WeightedModel(w, models[v], {name: v}) for v, w in self.weights.items()]
    >>> model = ps.Model(ps.RBF(1.0), data=ps.observe(ps.identity, values=[1.0], at=[0.0]), gamma=0.02)
    >>> ps.posterior(Bandwidths(model, {0.5: 0.25, 2.0: 0.75})).mean([0.0, 1.0]).round(2)
    array([0.99, 0.69])
    """

    @property
    @abc.abstractmethod
    def weighted_models(self) -> Sequence[WeightedModel]:
        """The models, with positive weights that sum to one."""


class _Components:
    """The posteriors of weighted models, each conditioned when it is first needed.

    Posteriors are kept as far as their factors fit into `KEPT_BYTES`. Of the others the linearised model is kept, and
    factored again.
    """

    def __init__(self, parts: Sequence[WeightedModel]) -> None:
        self.parts = tuple(parts)
        self.linear: dict[int, Model] = {}
        self.kept: dict[int, Posterior] = {}
        self.bytes = 0.0
        self.left_out: set[int] = set()

    def posterior(self, i: int) -> Posterior | None:
        """Return the posterior of a model; None if it cannot be solved and its weight is negligible."""
        if i in self.left_out:
            return None
        if i in self.kept:
            return self.kept[i]
        try:
            if i in self.linear:
                system = systems_of(self.linear[i], Score(), explain=False).whole
            else:
                systems = systems_of(self.parts[i].model, Score(), self.parts[i].warm_start, explain=False)
                systems.warn(stacklevel=2)
                system = systems.whole
        except (NotPositiveDefiniteError, NotSolvedError, ToleranceError, InputError) as error:
            self._leave_out(i, error)
            return None
        self.linear[i] = system.model
        found = Posterior(system)
        needed = estimate_cost(system.model).memory
        if self.bytes + needed <= KEPT_BYTES:
            self.kept[i] = found
            self.bytes += needed
        return found

    def _leave_out(self, i: int, error: Exception) -> None:
        part, missing = self.parts[i], {*self.left_out, i}
        total = sum(self.parts[j].weight for j in missing)
        which = ", ".join(f"{name} = {float(value):.6g}" for name, value in part.values.items())
        if total >= MOST_LEFT_OUT:
            others = f"; with those before it {total:.2g}, and" if len(missing) > 1 else ", and"
            raise type(error)(
                f"weighted model {i} of {len(self.parts)} ({which}) cannot be solved. Its weight is "
                f"{part.weight:.2g}{others} less than {MOST_LEFT_OUT:g} may be left out: {error}"
            ) from error
        if total >= NEGLIGIBLE_WEIGHT:
            warnings.warn(
                f"it cannot be solved and is left out ({which}), so a weight of {total:.2g} in all is missing from the "
                "average. What helps: more noise, or narrower bounds",
                UncertaintyWarning,
                stacklevel=2,
            )
        self.left_out.add(i)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MixturePosterior:
    """The posterior averaged over hyperparameters, as returned by `posterior` for weighted models.

    It is a mixture of Gaussian processes, `Σ_i w_i p(f | y, θ_i)`. A parameter inside an operator takes the value of
    each model if it is one of the hyperparameters that vary, so that a flux `k ∂x` contains the uncertainty of `k`.

    Models are conditioned when they are first needed. Models that cannot be solved are left out, with a warning if they
    have more than a thousandth of the weight, and with an error if they have more than a fifth.

    Examples
    --------
    >>> import dataclasses, pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> flux = ps.parameter("k", 1.0) * dx
    >>> physics = ps.impose(flux, 1.0, on=line.interior(ps.GaussLegendre(8)))
    >>> model = ps.Model(ps.RBF(0.5), ps.observe(ps.identity, [0.0], at=[0.0]), physics, gamma=1e-6, rho=1e-6)
    >>> class Two(ps.inference.ModelMixture):
    ...     @property
    ...     def weighted_models(self):
    ...         return [ps.inference.WeightedModel(0.5, model.replace({"k": k}), {"k": k}) for k in (1.0, 2.0)]
    >>> post = ps.posterior(Two())
    >>> post
    MixturePosterior(2 weighted models of 9 observations, effective number 2
      k = 1.5 ± 0.5)
    >>> post.mean([1.0]).round(2), post.std([1.0]).round(2)  # f = x/k
    (array([0.75]), array([0.25]))
    >>> post.mean([0.5], flux).round(2), post.std([0.5], flux).round(2)  # k f' = 1, whatever k is
    (array([1.]), array([0.]))
    """

    mixture: ModelMixture
    """The weighted models."""
    _components: _Components = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_components", _Components(_checked(self.mixture)))

    @property
    def models(self) -> tuple[Model, ...]:
        """The models."""
        return tuple(part.model for part in self._components.parts)

    @property
    def weights(self) -> Float[np.ndarray, " k"]:
        """The weights of the models; zero for models that are left out because they cannot be solved."""
        return self._all_weights()

    @property
    def values(self) -> dict[str, Float[np.ndarray, " k"]]:
        """The hyperparameters that vary, by name: the value of each model."""
        parts = self._components.parts
        return {name: np.array([float(part.values[name]) for part in parts]) for name in parts[0].values}

    def mean(self, points: Any, operator: Operator = identity) -> Float[np.ndarray, " n"]:
        """Return the posterior mean of `A f` at points of shape (n, d)."""
        means = self._each(lambda post, part: post.mean(points, in_model(operator, part)))
        return self._solved_shares() @ np.array(means)

    def std(self, points: Any, operator: Operator = identity) -> Float[np.ndarray, " n"]:
        """Return the posterior standard deviation of `A f`."""
        return np.sqrt(self._total_variance(*self._moments(points, operator)))

    def variance(self, points: Any, operator: Operator = identity) -> Float[np.ndarray, " n"]:
        """Return the posterior variance of `A f`: the mean of the variances plus the variance of the means."""
        return self._total_variance(*self._moments(points, operator))

    def quantiles(self, points: Any, probabilities: Any, operator: Operator = identity) -> Float[np.ndarray, "*k n"]:
        """Return quantiles of `A f`, one row for each probability: `Σ w Φ((q − m)/s) = p`.

        Examples
        --------
        >>> import pilescore as ps
        >>> class Two(ps.inference.ModelMixture):
        ...     @property
        ...     def weighted_models(self):
        ...         data = ps.observe(ps.identity, values=[1.0], at=[0.0], noise=0.1)
        ...         model = ps.Model(ps.RBF(1.0), data=data)
        ...         both = (0.9, 1.0), (0.1, 9.0)
        ...         return [ps.inference.WeightedModel(w, model.replace({"eta": e}), {"eta": e}) for w, e in both]
        >>> post = ps.posterior(Two())
        >>> post.quantiles([9.0], [0.025, 0.975]).round(2)  # far from the datum: deviations 1 and 3
        array([[-2.53],
               [ 2.53]])
        >>> 2 * post.std([9.0]).round(2)
        array([2.68])
        """
        wanted = as_probabilities(probabilities)
        means, variances = self._moments(points, operator)
        return mixture_quantiles(means, np.sqrt(variances), self._solved_shares(), wanted)

    def covariance(
        self,
        points: Any,
        operator: Operator = identity,
        other_points: Any = None,
        other_operator: Operator | None = None,
    ) -> Float[np.ndarray, "n m"]:
        """Return the posterior covariance of `A f` at points with `B f` at other points, by default the same."""
        same = other_points is None and other_operator is None
        second_points = points if other_points is None else other_points
        second = operator if other_operator is None else other_operator
        total: Any = 0.0

        def ask(post: Posterior, part: WeightedModel) -> tuple[np.ndarray, np.ndarray]:
            nonlocal total
            left, right = in_model(operator, part), in_model(second, part)
            # Covariances are summed, not kept: they are far larger than means.
            total = total + part.weight * (
                post.covariance(points, left) if same else post.covariance(points, left, second_points, right)
            )
            first = post.mean(points, left)
            return first, first if same else post.mean(second_points, right)

        pairs = self._each(ask)
        shares = self._solved_shares()
        inside = total / sum(self._components.parts[i].weight for i in self._solved())
        away, other = (_deviations(np.array(means), shares) for means in zip(*pairs, strict=True))
        return inside + (away.T @ away if same else away.T @ other)

    def parameter_covariance(self, name: str, points: Any, operator: Operator = identity) -> Float[np.ndarray, " n"]:
        """Return the covariance of a hyperparameter with `A f` at points of shape (n, d).

        Parameters
        ----------
        name
            One of the hyperparameters that vary, such as `"kernel.bandwidth[0]"`.
        points, operator
            As in `mean`.
        """
        own = self._parameter(name)
        means = np.array(self._each(lambda post, part: post.mean(points, in_model(operator, part))))
        shares = self._solved_shares()
        away = _deviations(own[self._solved()][:, None], shares)
        return (away.T @ _deviations(means, shares))[0]

    def parameter_variance(self, name: str) -> float:
        """Return the variance of a hyperparameter over the models."""
        own = self._parameter(name)
        return float(self.weights @ (own - self.weights @ own) ** 2)

    def samples(
        self,
        points: Any,
        count: int,
        seed: int | np.random.Generator,
        operator: Operator | Sequence[Operator] = identity,
    ) -> Float[np.ndarray, "count ..."]:
        """Return joint samples of `A f` at n points, of shape (count, n), or (count, operators, n) for several.

        Each sample is drawn from one of the models, which is chosen by weight.
        """
        as_count(count, "count")
        rng = as_generator(seed)
        counts = rng.multinomial(count, self._all_weights())
        chosen = np.flatnonzero(counts)
        numbers = iter(counts[chosen].tolist())

        def ask(post: Posterior, part: WeightedModel) -> np.ndarray:
            several = operator if isinstance(operator, Operator) else tuple(operator)
            adapted = (
                in_model(several, part) if isinstance(several, Operator) else [in_model(each, part) for each in several]
            )
            return post.samples(points, next(numbers), rng, adapted)

        drawn = np.concatenate(self._each(ask, chosen.tolist()))
        return rng.permutation(drawn) if len(chosen) > 1 else drawn

    def each(self, question: Callable[[Posterior, WeightedModel], T]) -> list[T]:
        """Return the answer of each model, `question(posterior, weighted_model)`, except for models left out.

        The weights of the weighted models then sum to one only approximately. A warning that many models give is given
        once.
        """
        return self._each(question, stacklevel=4)

    def __repr__(self) -> str:
        parts = self._components.parts
        weights = np.array([part.weight for part in parts])
        lines = [
            f"MixturePosterior({len(parts)} weighted models of {parts[0].model.size} observations, effective number "
            f"{1.0 / float(weights @ weights):.3g}"
        ]
        for name, values in self.values.items():
            mean = float(weights @ values)
            lines.append(f"  {name} = {mean:.6g} ± {float(weights @ (values - mean) ** 2) ** 0.5:.2g}")
        return "\n".join(lines) + ")"

    def _parameter(self, name: str) -> Float[np.ndarray, " k"]:
        values = self.values
        if name not in values:
            near = nearest(name, values, 0.5)
            hint = f" Did you mean {near!r}?" if near else ""
            raise InputError(
                f"no hyperparameter {name!r} among those that vary.{hint} There are: {', '.join(values) or 'none'}"
            )
        return values[name]

    def _moments(self, points: Any, operator: Operator) -> tuple[Float[np.ndarray, "k n"], Float[np.ndarray, "k n"]]:
        """Return the mean and variance of each solved model."""

        def ask(post: Posterior, part: WeightedModel) -> tuple[np.ndarray, np.ndarray]:
            adapted = in_model(operator, part)
            return post.mean(points, adapted), post.variance(points, adapted)

        means, variances = zip(*self._each(ask, stacklevel=4), strict=True)
        return np.array(means), np.array(variances)

    def _total_variance(
        self, means: Float[np.ndarray, "k n"], variances: Float[np.ndarray, "k n"]
    ) -> Float[np.ndarray, " n"]:
        shares = self._solved_shares()
        return shares @ variances + np.sum(_deviations(means, shares) ** 2, axis=0)

    def _solved(self) -> list[int]:
        """Return the positions of the models that are not left out, after all have been asked."""
        return [i for i in range(len(self._components.parts)) if i not in self._components.left_out]

    def _all_weights(self) -> Float[np.ndarray, " k"]:
        """Return the weights after every model has been conditioned."""
        components = self._components
        new = [i for i in range(len(components.parts)) if i not in components.linear]
        self._each(lambda post, part: None, new, stacklevel=4)
        return self._shares()

    def _shares(self) -> Float[np.ndarray, " k"]:
        shares = np.array([part.weight for part in self._components.parts])
        shares[list(self._components.left_out)] = 0.0
        return shares / shares.sum()

    def _solved_shares(self) -> Float[np.ndarray, " k"]:
        return self._shares()[self._solved()]

    def _each(
        self, ask: Callable[[Posterior, WeightedModel], T], which: Iterable[int] | None = None, stacklevel: int = 3
    ) -> list[T]:
        """Return the answer of each solved model, one model at a time.

        A warning that many models give is given once.
        """
        components, answers = self._components, []
        told: dict[type[Warning], list[tuple[float, str]]] = {}
        chosen = list(range(len(components.parts)) if which is None else which)
        for i in chosen:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                post = components.posterior(i)
                if post is not None:
                    answers.append(ask(post, components.parts[i]))
            for category, text in {warning.category: str(warning.message) for warning in caught}.items():
                told.setdefault(category, []).append((components.parts[i].weight, text))
        for category, texts in told.items():
            total = sum(weight for weight, _ in texts)
            if issubclass(category, PrecisionWarning) and total < IMPRECISE_WEIGHT:
                continue
            where = f"{len(texts)} of {len(chosen)} weighted models, with weight {total:.2g}, warn"
            warnings.warn(f"{where}; the heaviest: {max(texts)[1]}", category, stacklevel=stacklevel)
        return answers


@overload
def posterior(model: Model) -> Posterior: ...


@overload
def posterior(model: ModelMixture) -> MixturePosterior: ...


def posterior(model: Model | ModelMixture) -> Posterior | MixturePosterior:
    """Return the posterior of a model: its Gaussian process conditioned on its observations.

    Parameters
    ----------
    model
        The model. A nonlinear one is linearised around its most likely solution. An approximate solver computes means
        and variances to its tolerance; a feature solver returns the posterior of its feature kernel. A distribution
        of hyperparameters, such as the result of `hyperposterior`, gives the posterior averaged over it.

    Examples
    --------
    >>> import pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> model = ps.Model(
    ...     kernel=ps.RBF(bandwidth=0.5),
    ...     data=ps.observe(ps.identity, values=[0.0], at=[0.0]),
    ...     physics=ps.impose(dx, 1.0, on=line.interior(ps.GaussLegendre(10))),
    ...     gamma=1e-8,
    ...     rho=1e-8,
    ... )
    >>> post = ps.posterior(model)
    >>> post.mean([0.5, 1.0]).round(3)  # f' = 1, f(0) = 0
    array([0.5, 1. ])
    >>> post.mean([0.5], operator=dx).round(3)
    array([1.])
    """
    if isinstance(model, ModelMixture):
        return MixturePosterior(model)
    require(isinstance(model, Model), "model", model, "a ps.Model, or a distribution such as ps.hyperposterior returns")
    return Posterior(linear_system(model))


def in_model(operator: Operator, part: WeightedModel) -> Operator:
    """Return an operator whose parameters have the values of a weighted model, if they are among those that vary."""
    require(isinstance(operator, Operator), "operator", operator, "an operator such as ps.identity")
    if not operator.has_parameters:
        return operator
    varying = _varying(part)
    for name, paths in operator_paths(operator).items():
        if name not in varying:
            continue
        good = name not in OWN_NAMES
        require(good, "operator", operator, f"another name for its parameter {name!r}, which the model uses itself")
        shape = np.shape(follow(operator, paths[0]))
        new = np.asarray(varying[name], dtype=float)
        require(
            new.shape == shape, f"operator {operator}: {name}", shape, f"the shape it has in the model, {new.shape}"
        )
        # Values are leaves: the compiled code is the same for all models.
        leaves = functools.partial(_leaves, paths)
        operator = eqx.tree_at(leaves, operator, [jnp.asarray(new)] * len(paths))
    return operator


def _leaves(paths: Sequence[Path], root: Operator) -> list[Any]:
    return [follow(root, path) for path in paths]


def _varying(part: WeightedModel) -> dict[str, Any]:
    """Return the whole hyperparameters of which at least one element varies."""
    found: dict[str, Any] = {}
    for name, value in part.values.items():
        base = name.partition("[")[0]
        found[base] = value if base == name else part.model.parameters[base]
    return found


def mixture_quantiles(
    means: Float[np.ndarray, "m n"],
    stds: Float[np.ndarray, "m n"],
    weights: Float[np.ndarray, " m"],
    probabilities: Float[np.ndarray, "*k"],
) -> Float[np.ndarray, "*k n"]:
    """Return quantiles of mixtures of normal distributions, one row for each probability."""
    rows = np.atleast_1d(probabilities)
    out = np.empty((len(rows), means.shape[1]))
    width = max(1, int(QUANTILE_BATCH / (len(rows) * len(means))))
    for start in range(0, means.shape[1], width):
        part = slice(start, start + width)
        out[:, part] = _quantiles(means[:, part], stds[:, part], weights, rows)
    return out.reshape(*np.shape(probabilities), means.shape[1])


def _quantiles(
    means: Float[np.ndarray, "m n"],
    stds: Float[np.ndarray, "m n"],
    weights: Float[np.ndarray, " m"],
    probabilities: Float[np.ndarray, " k"],
) -> Float[np.ndarray, "k n"]:
    # A quantile of a mixture lies between the quantiles of its components. Bisection keeps F(low) < p ≤ F(high), which
    # holds for components far apart, where F is flat, and for deviations of zero, where it jumps.
    ends = np.array([normal_quantiles(m, s, probabilities) for m, s in zip(means, stds, strict=True)])
    low, high = ends.min(axis=0), ends.max(axis=0)
    smallest = np.min(np.where(stds > 0, stds, np.inf), axis=0, initial=np.inf)
    fine = QUANTILE_ERROR * np.where(np.isfinite(smallest), smallest, 0.0)
    # Beyond the median the upper tail has more digits than F. With the signs turned round it is a lower one.
    sign = np.where(probabilities > 0.5, -1.0, 1.0)[:, None]
    tail = np.minimum(probabilities, 1.0 - probabilities)[:, None]
    while True:
        middle = 0.5 * (low + high)
        inside = (middle > low) & (middle < high) & (high - low > fine)
        if not inside.any():
            return high
        mass = np.zeros_like(middle)
        for weight, mean, std in zip(weights, means, stds, strict=True):
            away = middle - mean
            steps = np.where(away >= 0, np.inf, -np.inf)
            mass += weight * ndtr(sign * np.divide(away, std, out=steps, where=np.broadcast_to(std > 0, away.shape)))
        below = np.where(sign > 0, mass < tail, mass > tail)
        low, high = np.where(inside & below, middle, low), np.where(inside & ~below, middle, high)


def _deviations(values: Float[np.ndarray, "k n"], shares: Float[np.ndarray, " k"]) -> Float[np.ndarray, "k n"]:
    """Return `√w (v − Σ w v)`: products of two such arrays are covariances over the models."""
    return np.sqrt(shares)[:, None] * (values - shares @ values)


def _checked(mixture: ModelMixture) -> tuple[WeightedModel, ...]:
    parts = tuple(mixture.weighted_models)
    require(len(parts) > 0, "weighted_models", parts, "at least one weighted model")
    for part in parts:
        require(isinstance(part, WeightedModel), "weighted_models", part, "ps.inference.WeightedModel")
        as_positive(part.weight, "weight")
        require(isinstance(part.model, Model), "model", part.model, "a ps.Model")
        same = list(part.values) == list(parts[0].values)
        require(same, "values", list(part.values), f"the same names in all weighted models, {list(parts[0].values)}")
        for name, value in part.values.items():
            require(as_array(value, name).ndim == 0, name, value, "a single number")
    total = math.fsum(part.weight for part in parts)
    require(abs(total - 1.0) < 1e-9, "weight", total, "weights that sum to one")
    return parts
