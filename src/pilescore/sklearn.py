"""A scikit-learn estimator: `pilescore.sklearn.PileRegressor`.

scikit-learn is an extra: `pip install 'pilescore[sklearn]'`.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from .equations import identity
from .errors import InputError, UncertaintyWarning, as_positive, require
from .inference import MixturePosterior, as_score, posterior
from .kernels import RBF, Kernel
from .model import (
    Model,
    Observation,
    find,
    follow,
    is_of_kernel,
    is_positive,
    named_paths,
    observe,
    require_name,
    role_of,
)
from .search import (
    Hyperposterior,
    RunOptions,
    SearchOptions,
    default_bounds,
    hyperposterior,
    minimize,
    search_space,
)

try:
    import sklearn  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "sklearn":
        raise
    raise ModuleNotFoundError(
        "pilescore.sklearn needs scikit-learn: pip install 'pilescore[sklearn]'", name="sklearn"
    ) from error

from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

__all__ = ["PileRegressor"]

LENGTH = 0.3
"""The lengths of the default kernel at the start, as fractions of the extent of the points, in one dimension."""

ETA_RANGE = (1e-3, 1e6)
"""Default bounds of the prior variance, in units of the mean square of the targets. Under a kernel that is long
compared with the solution, even a plain solution is many standard deviations away from zero."""

NOISE_RANGE, START_NOISE = (1e-3, 1.0), 0.03
"""Default bounds of the noise and its start: the lower bound and the start in units of the standard deviation of the
targets, the upper bound in units of their root mean square. With less noise than that, rounding matters under smooth
kernels, and the search may not converge."""


class PileRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A scikit-learn regressor: a Gaussian process that also observes an equation, fitted by minimising PILE.

    `fit` builds a `ps.Model` of the readings `y = f(X) + noise` and the physics, and minimises PILE over everything
    unknown. Without physics this is Gaussian process regression by maximum marginal likelihood, as in scikit-learn's
    `GaussianProcessRegressor`.

    Parameters
    ----------
    kernel
        The kernel; its values are where the search starts. By default `ps.RBF` with one length for each feature.
    physics
        One block made by `ps.impose`, or a list of blocks. Its coordinates are the columns of `X`, in the same order
        and units: do not scale `X` or `y` before. If `X` has column names and the physics has coordinate names, they
        must be equal.
    noise
        The standard deviation of the noise of `y`; found if None, between a thousandth of the standard deviation of `y`
        and its root mean square.
    bounds
        Bounds `(low, high)` by name, as in `ps.minimize`, or `"fixed"`. Hyperparameters of the kernel, `gamma` (twice
        the noise variance) and `eta` (the prior variance) have default bounds. Parameters inside operators need bounds
        here. A fixed `eta` is 1: for kernels that have variances of their own. Other temperatures are fixed unless
        named.
    criterion
        What is scored: the `score` of `ps.minimize`.
    starts
        The number of starts, or a list of starts, as in `ps.minimize`.
    random_state
        The seed of random starts: an integer, a `RandomState`, or None.

    Attributes
    ----------
    minimum_
        The `ps.Minimum`: hyperparameters with standard errors, and how they were found.
    model_
        The model with the chosen hyperparameters.
    posterior_
        The posterior of this model, for derivatives and other operators. Add `offset_` to its values.
    hyperposterior_
        The `ps.Hyperposterior`: the distribution of the hyperparameters, computed when it is first needed. The same
        predictions for other operators are in `ps.posterior(estimator.hyperposterior_)`.
    offset_
        The number that was subtracted from `y`: its mean, or zero with physics, where a shift would change the
        equation.
    noise_
        The standard deviation of the noise of `y`, given or found.
    log_marginal_likelihood_value_
        The log evidence of what was scored.
    n_features_in_, feature_names_in_
        The number of columns of `X`, and their names if it has any.

    Examples
    --------
    A cup of tea cools at an unknown rate, `u′ = −rate·u`:

    >>> import pilescore as ps
    >>> from pilescore.sklearn import PileRegressor
    >>> time = ps.Box(t=(0, 8))
    >>> (dt,) = ps.partials(time)
    >>> cooling = ps.impose(dt + ps.parameter("rate", 0.3), 0.0, on=time.interior(ps.GaussLegendre(20)))
    >>> tea = PileRegressor(ps.Matern(3.5, 2.0), physics=cooling, noise=0.5, bounds={"rate": (0.05, 5)})
    >>> tea.fit([[0.0], [1.0], [2.0], [4.0], [6.0]], [70.5, 42.1, 25.9, 9.1, 3.6])
    PileRegressor(bounds={'rate': (0.05, 5)},
                  kernel=Matern(nu=3.5, bandwidth=2.), noise=0.5,
                  physics=impose(∂t + rate Id at 20 points))
    >>> round(tea.minimum_.values["rate"], 2)
    0.51
    >>> mean, std = tea.predict([[3.0], [8.0]], return_std=True)
    >>> mean.round(1), bool((std < 1.0).all())
    (array([15.4,  1.2]), True)
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        physics: Any = None,
        noise: Any = None,
        bounds: Mapping[str, Any] | None = None,
        criterion: Any = "auto",
        starts: Any = 1,
        random_state: Any = 0,
    ) -> None:
        self.kernel = kernel
        self.physics = physics
        self.noise = noise
        self.bounds = bounds
        self.criterion = criterion
        self.starts = starts
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> PileRegressor:
        """Minimise PILE over everything unknown, and return the estimator.

        A search that has not converged raises a `ConvergenceWarning` of scikit-learn.

        Parameters
        ----------
        X
            Points of shape (n, d).
        y
            Readings of shape (n,).
        """
        points, readings = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        readings = readings.astype(float)
        physics = () if self.physics is None else self.physics
        self.offset_ = float(readings.mean()) if isinstance(physics, list | tuple) and not physics else 0.0
        model, over = self._search(points, readings - self.offset_, physics)
        self._seed = int(check_random_state(self.random_state).randint(2**31))
        for cached in ("hyperposterior_", "_mixture"):  # of an earlier fit
            self.__dict__.pop(cached, None)
        self.minimum_ = minimize(
            model,
            over,
            score=self.criterion,
            starts=self.starts,
            search=SearchOptions(seed=self._seed),
            run=RunOptions(progress=False),
        )
        self.model_ = self.minimum_.model
        self.posterior_ = posterior(self.model_)
        self.noise_ = math.sqrt(0.5 * float(self.model_.gamma))
        self.log_marginal_likelihood_value_ = self.minimum_.pile.log_evidence
        if self.minimum_.status == "interrupted":
            raise KeyboardInterrupt
        if not self.minimum_.converged:
            warnings.warn(
                f"the search has not converged: {self.minimum_.reason}. minimum_ has the details",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """Return the mean of the unknown at points, alone or with its standard deviation or covariance.

        The mean is that of `posterior_`, with the best hyperparameters. Deviations, covariances and samples contain the
        uncertainty of the hyperparameters too: they are averaged over `hyperposterior_`, which is computed when the
        first of them is needed. They are those of the unknown `f`, without the noise of a new reading, whose variance
        is `noise_**2`.

        Parameters
        ----------
        X
            Points of shape (n, d).
        return_std
            Whether to return the standard deviation too, of shape (n,).
        return_cov
            Whether to return the covariance too, of shape (n, n).
        """
        require(not (return_std and return_cov), "return_std, return_cov", "both", "at most one of them")
        points = self._points(X)
        mean = self.posterior_.mean(points) + self.offset_
        if return_std:
            return mean, self._mixture.std(points)
        if return_cov:
            return mean, self._mixture.covariance(points)
        return mean

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Float[np.ndarray, "n samples"]:
        """Return joint samples of the unknown at points, one in each column.

        Each sample has hyperparameters of its own, drawn from `hyperposterior_`.

        Parameters
        ----------
        X
            Points of shape (n, d).
        n_samples
            The number of samples.
        random_state
            The seed: an integer, a `RandomState`, or None.
        """
        points = self._points(X)
        seed = int(check_random_state(random_state).randint(2**31))
        return self._mixture.samples(points, n_samples, seed).T + self.offset_

    @functools.cached_property
    def hyperposterior_(self) -> Hyperposterior:
        """The distribution of the hyperparameters, computed when it is first needed."""
        check_is_fitted(self)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UncertaintyWarning)
            found = hyperposterior(self.minimum_, seed=self._seed, progress=False)
        # Nobody can widen bounds that the estimator has chosen.
        given = set(self.bounds or {})
        own = [f"bound of {name}," for name in found.names if not {name, name.partition("[")[0]} & given]
        texts = [text for text in found.warnings if not any(each in text for each in own)]
        if texts:
            warnings.warn("; ".join(texts), UncertaintyWarning, stacklevel=2)
        return found

    @functools.cached_property
    def _mixture(self) -> MixturePosterior:
        """The posterior averaged over the hyperparameters."""
        return posterior(self.hyperposterior_)

    def __getstate__(self) -> dict[str, Any]:
        """Drop what can be computed again quickly: the factors of all weighted models are large."""
        return {name: value for name, value in super().__getstate__().items() if name != "_mixture"}

    def _points(self, X: Any) -> Float[np.ndarray, "n d"]:
        check_is_fitted(self)
        return np.asarray(validate_data(self, X, reset=False, dtype=np.float64))

    def _search(
        self, points: Float[np.ndarray, "n d"], values: Float[np.ndarray, " n"], physics: Any
    ) -> tuple[Model, dict[str, Any]]:
        """Return the model at the start of the search, and the bounds of everything that is searched."""
        given = {} if self.bounds is None else self.bounds
        expected = "a mapping of names to bounds (low, high) or 'fixed'"
        require(isinstance(given, Mapping) and all(isinstance(name, str) for name in given), "bounds", given, expected)
        fixed = {name for name, bounds in given.items() if isinstance(bounds, str) and bounds == "fixed"}
        self._check_names(physics)
        # Constant readings, and zero, have no size of their own.
        size = math.sqrt(float(np.mean(values**2))) or 1.0
        spread = float(np.std(values)) or size
        if self.noise is None:
            require("gamma" not in fixed, "bounds['gamma']", "fixed", "bounds; noise= is for a known noise")
            noise = START_NOISE * spread
        else:
            noise = as_positive(self.noise, "noise")
            require("gamma" not in given, "bounds['gamma']", given.get("gamma"), "no bounds of a noise that is given")
        model = Model(
            RBF(np.ones(points.shape[1])) if self.kernel is None else self.kernel,
            observe(identity, values, at=points),
            physics,
            gamma=2.0 * noise**2,
            eta=1.0 if "eta" in fixed else size**2,
        )
        extent = np.ptp(np.concatenate([block.points for block in model.blocks]), axis=0)
        extent = np.where(extent > 0, extent, 1.0)
        if self.kernel is None:
            # The distance of two points, in units of the extent, grows like the root of the dimension.
            model = model.replace(kernel=RBF(LENGTH * math.sqrt(len(extent)) * extent))
        paths = named_paths(model)
        profiled = as_score(self.criterion).profiled
        expected = "no noise with a profiled criterion, which finds the scale of all noises"
        require(not (profiled and self.noise is not None), "noise", self.noise, expected)
        over = {name: bounds for name, bounds in given.items() if name not in fixed}
        for name in fixed:
            require_name(name, paths)
        whole = {find(model, paths, name)[0] for name in given}
        for name, (path, *_) in paths.items():
            if name in whole:
                continue
            if role_of(model, path) == "coefficient":
                raise InputError(f"bounds: expected bounds (low, high) of {name!r}, a parameter of the physics")
            if name == "eta" and not profiled:
                over[name] = (ETA_RANGE[0] * size**2, ETA_RANGE[1] * size**2)
            elif name == "gamma" and self.noise is None:
                over[name] = (2.0 * (NOISE_RANGE[0] * spread) ** 2, 2.0 * (NOISE_RANGE[1] * size) ** 2)
            elif is_of_kernel(path):
                value = np.asarray(follow(model, path))
                over[name] = default_bounds(role_of(model, path), value, is_positive(model, path), extent)
        require(len(over) > 0, "bounds", given, "at least one hyperparameter that is not fixed")
        # Starts that the user has not chosen move into bounds that the user has.
        ours = [name for name, (path, *_) in paths.items() if self.kernel is None and is_of_kernel(path)]
        moved = {n: b for n, b in over.items() if find(model, paths, n)[0] in ("eta", "gamma", *ours)}
        if not moved:
            return model, over
        space = search_space(model, moved)
        return space.model_at(np.clip(space.values_of(model), space.low, space.high)), over

    def _check_names(self, physics: Any) -> None:
        """Raise an `InputError` if the columns of `X` and the coordinates of the physics have different names."""
        if isinstance(physics, list | tuple):
            for block in physics:
                self._check_names(block)
            return
        columns = tuple(getattr(self, "feature_names_in_", ()))
        names = physics.operator.names if isinstance(physics, Observation) else ()
        if columns and names and columns != names:
            raise InputError(
                f"X: its columns are ({', '.join(columns)}), but the physics acts on ({', '.join(names)}): "
                "order or rename the columns, or give an array"
            )
