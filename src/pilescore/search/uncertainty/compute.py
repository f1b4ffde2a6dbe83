"""The distribution of hyperparameters, by weighted points, by Laplace's method, or by a sampler."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

from ...errors import InputError, PilescoreError, UncertaintyWarning, as_count, nearest, require
from ...inference import Score, as_score, at_profiled_scale, systems_of
from ...model import Model, eta_and_temperatures
from ...model.priors import Prior, require_prior_between
from ...parallel import progress_bar
from ..minimum import Minimum, minimize
from ..options import RunOptions, SearchOptions
from ..space import SearchSpace, Starts, search_space, sobol_points
from .compiled import compiled
from .default_priors import default_priors
from .density import HyperparameterDensity, own_prior
from .importance import ENOUGH, LARGE, LARGE_ENOUGH, LEAST_DIMENSION, importance_points
from .peak import Peak, find_peak
from .result import Hyperposterior, Method, find_warnings
from .sampling import CHAINS, DRAWS, nuts_draws, require_nutpie
from .weighted import MOST_MISFIT_NATS, SAMPLE, WeightedPoints, weighted_points

METHODS = ("weighted", "laplace", "nuts")

SCALE_REACH = 1e6
"""How far η may be from the best one that a profiled score has found, as a factor."""

STARTS = 4
"""The number of starts of a search for the minimum."""

RIVAL_NATS = 10.0
"""Ends of descents that are further behind the best are not looked at."""

RIVAL_SHARE = 0.005
"""Optima with a smaller probability are left out."""

MOST_RIVALS = 3

APART = 1.5
"""Two peaks, or two ends of descents, nearer than this are the same, in standard deviations of the first."""

BETWEEN_NATS = 0.5
"""Two peaks are one if the log density half-way between them is not lower by this than at the lower one."""

LEAST_SIZE = 20.0
"""The least effective size that is trusted."""

MOST_FAILED = 0.2
"""The largest fraction of points without a score."""

MOST_R_HAT, LEAST_DRAWS = 1.02, 200.0
"""The largest split R-hat, and the least effective number of draws, of chains that are trusted."""

MODELS = 64
"""How many models predictions average over, where the method gives more or none."""


def hyperposterior(
    found: Minimum | Model,
    over: Mapping[str, Any] | None = None,
    *,
    method: Method = "weighted",
    priors: Mapping[str, Any] | str | None = None,
    score: Score | str = "auto",
    starts: Starts = STARTS,
    seed: int = 0,
    progress: bool | None = None,
) -> Hyperposterior:
    """Return the distribution of the searched hyperparameters given the observations.

    Standard errors of `minimize` describe the neighbourhood of the best values, and predictions of the best model take
    them as known. With few data both are too optimistic. This function weighs other values too: their evidence times
    their prior.

    Priors are weakly informative by role, so that the data decide where they can. Lengths have log-normal priors around
    half of the extent of the observations, within a factor of 4 with probability 68%; η around the mean square of the
    readings (factor 10); the noise deviation around 5% of the spread of the readings (factor 10); ratios around one
    (factor 3). Coefficients of equations and everything else are uniform between their bounds, temperatures of
    equations in their logarithm. Priors of the model itself (`Model(..., priors=…)`) replace these. With a profiled
    score, which finds η in closed form, η is one of the hyperparameters, and temperatures that were not searched keep
    their ratio to it.

    Parameters
    ----------
    found
        A result of `minimize`, or a model, which is minimised first.
    over
        Bounds by name, as in `minimize`, if `found` is a model.
    method
        `"weighted"`: points around the optima, with weights: about eighty, which cost as much as 25 to 40 scores with
        gradient, or some hundreds if three or more hyperparameters of a small linear model are searched, whose scores
        are compiled. `"laplace"`: a normal distribution around the best optimum, from its curvature; the cheapest.
        `"nuts"`: draws by a Hamiltonian sampler, 4 chains of 500; needs thousands of scores, and the extra `bayes`.
    priors
        Priors that replace those by role: `{"rate": ps.priors.Normal(0.5, 0.1), "eta": "flat"}`, by the names of the
        search; `"flat"` is uniform between the bounds. Or `"flat"` for all.
    score, starts
        What is scored, and the starts of the search, if `found` is a model.
    seed
        The seed of points and chains.
    progress
        Show a progress bar; by default only on a terminal.

    Examples
    --------
    How fast does a cup of tea cool, if the noise is unknown?

    >>> import numpy as np, pilescore as ps
    >>> time = ps.Box(t=(0, 8))
    >>> (dt,) = ps.partials(time)
    >>> data = ps.observe(ps.identity, [70.5, 42.1, 25.9, 9.1, 3.6], at=[0.0, 1.0, 2.0, 4.0, 6.0])
    >>> physics = ps.impose(dt + ps.parameter("rate", 0.3), 0.0, on=time.interior(ps.GaussLegendre(20)))
    >>> model = ps.Model(ps.RBF(2.0), data, physics, gamma=1.0, eta=1000.0)
    >>> hyper = ps.hyperposterior(model, {"rate": (0.05, 5), "gamma": (0.01, 100), "eta": (10, 1e6)}, starts=1)
    >>> low, middle, high = hyper.quantiles([0.025, 0.5, 0.975]).loc["rate"]
    >>> bool(0.47 < low < 0.505 < middle < 0.51 < high < 0.55)
    True
    >>> post = ps.posterior(hyper)  # predictions that contain the uncertainty of all three
    >>> post.mean([8.0]).round(1)
    array([1.2])
    """
    seed = as_count(seed, "seed", least=0)
    best = _checked(found, over, method, priors, score, starts)
    if best is None:
        assert isinstance(found, Model)
        run = RunOptions(progress=progress)
        best = minimize(found, over or {}, score=score, starts=starts, search=SearchOptions(seed=seed), run=run)
    if best.end is None:
        raise InputError("found: expected a result of ps.minimize with its search; this one was changed since")
    if best.status == "interrupted":
        raise KeyboardInterrupt
    density = default_density(best)
    density = dataclasses.replace(density, priors=_priors(density.space, priors))
    result = _compute(best, density, method, seed, progress)
    if result.warnings:
        warnings.warn("; ".join(result.warnings), UncertaintyWarning, stacklevel=2)
    return result


def _searched(best: Minimum) -> SearchSpace:
    """Return the coordinates of what a search found.

    A profiled score finds η in closed form, and the ratios of temperatures to it. η is then one of the
    hyperparameters, temperatures are what they are at the best scale, and those that were not searched follow η.
    """
    assert best.end is not None
    space, model = best.end.space, best.model
    if not best.score.profiled:
        return space
    scale, before = float(model.eta), float(space.model.eta)
    rescaled = set(eta_and_temperatures(model))
    over: dict[str, Any] = {}
    for name, rows in space.groups.items():
        factor = scale / before if space.targets[space.names[rows[0]]][0] in rescaled else 1.0
        low, high = (factor * ends[list(rows)].reshape(space.shapes[name]) for ends in (space.low, space.high))
        over[name] = (low, high)
    own = {name for name in over if space.targets[space.names[space.groups[name][0]]][0] in rescaled}
    over["eta"] = (scale / SCALE_REACH, scale * SCALE_REACH)

    def following(name: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a tie of the profiled search, where temperatures were those at the model's own η."""

        def tied(values: Any) -> Any:
            back = before / values["eta"]
            found = function({each: back * value if each in own else value for each, value in values.items()})
            return found / back if space.targets[name][0] in rescaled else found

        return tied

    ties: dict[str, Callable[[Any], Any]] = {name: following(name, tie) for name, tie in space.ties.items()}
    for name in rescaled - {"eta"} - {base for base, _ in space.targets.values()}:
        ties[name] = functools.partial(_in_proportion, float(model.parameters[name]) / scale)
    return search_space(model, over, ties)


def _in_proportion(ratio: float, values: Any) -> Any:
    return ratio * values["eta"]


def default_density(best: Minimum) -> HyperparameterDensity:
    """Return the density of the hyperparameters that a search found, with the default priors."""
    assert best.end is not None
    space = _searched(best)
    score = dataclasses.replace(best.score, profiled=False)
    return HyperparameterDensity(space, score, default_priors(space), best.end.warm_start)


def _checked(found: Any, over: Any, method: Any, priors: Any, score: Any, starts: Any) -> Minimum | None:
    """Return the minimum, if it is known, after checking the arguments."""
    require(method in METHODS, "method", method, "'weighted', 'laplace' or 'nuts'")
    if method == "nuts":
        require_nutpie()
    flat = isinstance(priors, str) and priors == "flat"
    expected = "a mapping of names to ps.priors or 'flat', or 'flat'"
    require(priors is None or flat or isinstance(priors, Mapping), "priors", priors, expected)
    if isinstance(found, Minimum):
        require(over is None, "over", over, "no bounds with a result of minimize, which has its own")
        require(score == "auto", "score", score, "nothing with a result of minimize, which has its own")
        require(starts == STARTS, "starts", starts, "nothing with a result of minimize, which has been searched")
        if found.status == "interrupted":
            raise InputError("found: the search was interrupted. Let ps.minimize finish, or resume it from its file")
        return found
    require(isinstance(found, Model), "found", found, "a result of ps.minimize, or a ps.Model with over=")
    require(isinstance(over, Mapping) and len(over) > 0, "over", over, "bounds (low, high) by name, as in ps.minimize")
    if priors is not None:  # before the search, which may be long
        scale = {"eta": (1e-300, 1e300)} if as_score(score).profiled else {}
        _priors(search_space(found, {**over, **scale}), priors)
    return None


def _priors(space: SearchSpace, given: Mapping[str, Any] | str | None) -> dict[str, Prior | None]:
    """Return the prior of each searched name; None is uniform."""
    if isinstance(given, str):
        return dict.fromkeys(space.groups)
    found = default_priors(space)
    for name, prior in (given or {}).items():
        if name not in space.groups:
            near = nearest(str(name), space.groups, 0.5)
            hint = f" Did you mean {near!r}?" if near else ""
            raise InputError(f"priors: {name!r} was not searched.{hint} There are: {', '.join(space.groups)}")
        clash = any(own_prior(space, row) for row in space.groups[name])
        require(not clash, f"priors[{name!r}]", prior, "no second prior: the model has one")
        if isinstance(prior, str) and prior == "flat":
            found[name] = None
            continue
        require(
            isinstance(prior, Prior), f"priors[{name!r}]", prior, "a prior such as ps.priors.Normal(0, 1), or 'flat'"
        )
        prior.check(name, space.shapes[name])
        rows = list(space.groups[name])
        low = space.low[rows]
        positive = not prior.logarithmic or bool(np.all(low > 0.0))
        require(
            positive, f"priors[{name!r}]", prior, f"a normal prior, or positive bounds; the lower one is {low.min():g}"
        )
        require_prior_between(f"priors[{name!r}]", prior, low, space.high[rows])
        found[name] = prior
    return found


def _compute(
    best: Minimum, density: HyperparameterDensity, method: Method, seed: int, progress: bool | None
) -> Hyperposterior:
    """Return the distribution around a minimum."""
    peak = find_peak(density, _end_of(best, density), None if best.score.profiled else best.curvature)
    if not math.isfinite(peak.value):
        raise PilescoreError(
            "the minimum is at the edge of what can be scored: there is no score beside it, and no distribution around "
            "it. What helps: more noise, or a kernel that is less smooth"
        )
    peaks, evaluations = _rivals(best, density, peak)
    if method == "laplace":
        return _laplace(best, density, peaks, evaluations)
    if method == "nuts":
        return _nuts(best, density, peaks, evaluations, seed, progress is True)
    with progress_bar(0, "hyperposterior", progress) as bar:
        cheap = compiled(density) if len(peaks[0].t) >= LEAST_DIMENSION else None
        if cheap is None:
            weighted = weighted_points(_counted(density.value, bar), peaks, seed)
        else:
            enough = ENOUGH if density.space.model.size < LARGE else LARGE_ENOUGH
            weighted = importance_points(_counted(cheap.log_densities, bar), peaks, seed, enough)
    evaluations += weighted.count
    return _weighted(best, density, weighted, evaluations)


def _counted(density: Callable[[Float[np.ndarray, "*n p"]], Any], bar: Any) -> Callable[[Any], Any]:
    """Return a log density that moves a progress bar."""

    def counted(t: Float[np.ndarray, "*n p"]) -> Any:
        bar.update(len(t) if t.ndim == 2 else 1)
        return density(t)

    return counted


def _end_of(best: Minimum, density: HyperparameterDensity, end: Mapping[str, float] | None = None) -> Any:
    """Return the coordinates of the minimum, or of the end of a descent, in those of the density."""
    assert best.end is not None
    found, space = best.end.space, density.space
    values = found.decode(best.end.u) if end is None else np.array([end[name] for name in found.names])
    if not best.score.profiled:
        return space.encode(values)
    model = found.model_at(values)
    scored = best.pile if end is None else systems_of(model, best.score, best.end.warm_start).pile(best.score)
    return space.encode(space.values_of(at_profiled_scale(model, scored)))


def _rivals(best: Minimum, density: HyperparameterDensity, peak: Peak) -> tuple[list[Peak], int]:
    """Return the peaks that matter, the highest first, and the number of evaluations.

    Other peaks are looked for where other descents ended, if their evidence is not too far behind.
    """
    peaks, evaluations = [peak], peak.evaluations
    scored = [descent for descent in best.descents if math.isfinite(descent.pile)]
    lowest = min((descent.pile for descent in scored), default=math.nan)
    seen = [density.inside(_end_of(best, density))]
    for descent in sorted(scored, key=lambda each: each.pile):
        if 0.5 * best.pile.size * (descent.pile - lowest) > RIVAL_NATS or len(seen) > MOST_RIVALS:
            break
        try:
            u = _end_of(best, density, descent.end)
        except PilescoreError:  # it was scored with other nodes or tolerances, and cannot be any more
            continue
        t = density.inside(u)
        if any(_distance(t, other, peak.precision) < APART for other in seen):
            continue
        seen.append(t)
        other = find_peak(density, u)
        evaluations += other.evaluations
        same = [each for each in peaks if _distance(other.t, each.t, each.precision) < APART]
        if same or not math.isfinite(other.value):
            continue
        # A flat valley has no two optima: the density between them is as high as at the lower one.
        between = [(each, density.value(0.5 * (other.t + each.t))) for each in peaks]
        evaluations += len(between)
        if all(value < min(other.value, each.value) - BETWEEN_NATS for each, value in between):
            peaks.append(other)
    highest = max(each.log_integral for each in peaks)
    kept = [each for each in peaks if each.log_integral > highest + math.log(RIVAL_SHARE)]
    return sorted(kept, key=lambda each: -each.log_integral), evaluations


def _distance(a: Float[np.ndarray, " p"], b: Float[np.ndarray, " p"], precision: Float[np.ndarray, "p p"]) -> float:
    return math.sqrt(float((a - b) @ precision @ (a - b)))


def _weighted(best: Minimum, density: HyperparameterDensity, found: WeightedPoints, evaluations: int) -> Hyperposterior:
    texts = []
    count = found.count
    if found.effective_size < LEAST_SIZE and not found.misfit < MOST_MISFIT_NATS:
        texts.append(
            f"the effective size is {found.effective_size:.2g} of {count} weighted points: intervals are rough. Use "
            "method='nuts', narrower bounds, or priors"
        )
    if found.failed > MOST_FAILED * count:
        texts.append(
            f"{found.failed} of {count} points could not be scored, so part of the distribution may be missing. "
            "Narrow the bounds, or raise the noise"
        )
    points = density.values(found.t)
    draws = points if found.sample is found.t else density.values(found.sample)
    return Hyperposterior(
        best,
        "weighted",
        density,
        points,
        found.weights,
        draws,
        found.sample_weights,
        found.log_integral,
        found.log_integral_error,
        found.effective_size,
        evaluations,
        np.sort(found.shares)[::-1],
        (*texts, *find_warnings(density, draws, found.sample_weights)),
    )


def _laplace(best: Minimum, density: HyperparameterDensity, peaks: Sequence[Peak], evaluations: int) -> Hyperposterior:
    peak, texts = peaks[0], _other_optima(peaks)
    root = np.linalg.cholesky(peak.covariance)
    points = density.values(peak.t + _normal_points(MODELS, len(peak.t)) @ root.T)
    draws = density.values(peak.t + _normal_points(SAMPLE, len(peak.t)) @ root.T)
    weights = np.full(SAMPLE, 1.0 / SAMPLE)
    return Hyperposterior(
        best,
        "laplace",
        density,
        points,
        np.full(MODELS, 1.0 / MODELS),
        draws,
        weights,
        peak.log_integral,
        math.nan,
        math.nan,
        evaluations,
        np.ones(1),
        (*texts, *find_warnings(density, draws, weights)),
    )


def _other_optima(peaks: Sequence[Peak]) -> list[str]:
    """Return a warning if a method that knows one peak leaves out others."""
    if len(peaks) == 1:
        return []
    integrals = np.array([peak.log_integral for peak in peaks])
    share = 1.0 / float(np.sum(np.exp(integrals - integrals[0])))
    return [
        f"there are {len(peaks)} optima, and this method starts from one, with a probability of about "
        f"{100 * share:.2g}%. Use method='weighted', priors, or narrower bounds"
    ]


def _nuts(
    best: Minimum, density: HyperparameterDensity, peaks: Sequence[Peak], evaluations: int, seed: int, progress: bool
) -> Hyperposterior:
    chains = nuts_draws(compiled(density) or density, peaks[0], seed, progress)
    texts = _other_optima(peaks)
    if not chains.r_hat < MOST_R_HAT:
        texts.append(
            f"R-hat is {chains.r_hat:.3f}: the chains have not mixed, there may be several optima. Use more starts "
            "with method='weighted', narrower bounds, or priors"
        )
    size, count = chains.effective_size, CHAINS * DRAWS
    if size < LEAST_DRAWS:
        texts.append(f"the effective size is {size:.3g} of {count} draws: intervals are rough. Use priors")
    diverging = int(chains.diverging.sum())
    if diverging > 0.01 * count:
        texts.append(
            f"{diverging} of {count} draws diverged, so tails may be missing. Narrow the bounds, or use priors"
        )
    flat = chains.t.reshape(-1, chains.t.shape[2])
    draws, weights = density.values(flat), np.full(len(flat), 1.0 / len(flat))
    chosen = np.linspace(0, len(flat) - 1, MODELS).round().astype(int)
    return Hyperposterior(
        best,
        "nuts",
        density,
        draws[chosen],
        np.full(MODELS, 1.0 / MODELS),
        draws,
        weights,
        peaks[0].log_integral,
        math.nan,
        size,
        evaluations + chains.evaluations,
        np.ones(1),
        (*texts, *find_warnings(density, draws, weights)),
        chains,
    )


def _normal_points(count: int, dimension: int) -> Float[np.ndarray, "n p"]:
    """Return Sobol points of the standard normal distribution."""
    return np.asarray(ndtri(sobol_points(count, dimension, 0)))
