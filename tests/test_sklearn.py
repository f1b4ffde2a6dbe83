"""The scikit-learn estimator: scikit-learn's own checks, its Gaussian processes, and what only physics can do."""

import dataclasses
import importlib
import pickle
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import pilescore as ps
import pilescore.sklearn as door
from pilescore.sklearn import PileRegressor

TIMES, TEA = np.array([[0.0], [1.0], [2.0], [4.0], [6.0]]), np.array([70.5, 42.1, 25.9, 9.1, 3.6])


def surface(count=25, seed=0):
    """Return points in the plane and noisy readings whose mean is not zero."""
    rng = np.random.default_rng(seed)
    X = rng.uniform((0, 0), (1, 5), (count, 2))
    return X, 3.0 + np.sin(4 * X[:, 0]) + np.cos(X[:, 1]) + 0.1 * rng.standard_normal(count)


def cooling():
    """Return `u′ = −rate·u` with an unknown rate; zero is given as a function."""
    time = ps.Box(t=(0, 8))
    (dt,) = ps.partials(time)
    return ps.impose(dt + ps.parameter("rate", 0.3), lambda p: 0.0 * p[0], on=time.interior(ps.GaussLegendre(20)))


@pytest.fixture(scope="module")
def fitted():
    """A fit without physics."""
    return PileRegressor().fit(*surface())


@pytest.fixture(scope="module")
def tea():
    """A fit with physics. Under a smoother kernel rounding would matter for some of the hyperparameters."""
    return PileRegressor(ps.Matern(3.5, 2.0), physics=cooling(), noise=0.5, bounds={"rate": (0.05, 5)}).fit(TIMES, TEA)


@pytest.mark.slow
@parametrize_with_checks([PileRegressor()])
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def peer(found, **options):
    """Return scikit-learn's Gaussian process with the hyperparameters of a fit."""
    values = found.model_.parameters
    kernel = ConstantKernel(values["eta"], (1e-4, 1e6)) * RBF(values["kernel.bandwidth"], (1e-3, 1e3))
    return GaussianProcessRegressor(kernel + WhiteKernel(found.noise_**2, (1e-8, 1e2)), alpha=0.0, **options)


def test_predictions_are_those_of_scikit_learn(fitted):
    X, y = surface()
    at = np.random.default_rng(1).uniform((0, 0), (1.5, 6), (20, 2))
    theirs = peer(fitted, optimizer=None).fit(X, y - y.mean())
    mean, covariance = theirs.predict(at, return_cov=True)
    assert fitted.offset_ == pytest.approx(y.mean(), rel=1e-14)
    np.testing.assert_allclose(fitted.predict(at), mean + y.mean(), atol=1e-6)
    # Their white noise is part of the prediction, ours is not.
    noise = fitted.noise_**2
    np.testing.assert_allclose(fitted.posterior_.std(at) ** 2 + noise, covariance.diagonal(), rtol=1e-6)
    np.testing.assert_allclose(fitted.posterior_.covariance(at) + noise * np.eye(20), covariance, atol=1e-6)
    value = theirs.log_marginal_likelihood_value_
    assert fitted.log_marginal_likelihood_value_ == pytest.approx(value, abs=1e-8)


def test_the_search_ends_where_that_of_scikit_learn_does(fitted):
    X, y = surface()
    start = clone(peer(fitted)).set_params(kernel=ConstantKernel(1.0) * RBF([0.5, 2.0]) + WhiteKernel(0.01))
    theirs = start.fit(X, y - y.mean())
    assert fitted.log_marginal_likelihood_value_ == pytest.approx(theirs.log_marginal_likelihood_value_, abs=1e-4)
    np.testing.assert_allclose(fitted.predict(X), theirs.predict(X) + y.mean(), atol=1e-2)


@pytest.mark.slow
def test_units_do_not_matter(fitted):
    """Scaled columns and shifted, scaled readings give the same predictions: starts and bounds have units."""
    X, y = surface()
    scaled = make_pipeline(StandardScaler(), PileRegressor()).fit(X, 1e3 * (y + 50.0))
    np.testing.assert_allclose(scaled.predict(X), 1e3 * (fitted.predict(X) + 50.0), rtol=1e-5)
    assert scaled[-1].noise_ == pytest.approx(1e3 * fitted.noise_, rel=1e-3)
    assert scaled.score(X, 1e3 * (y + 50.0)) == pytest.approx(fitted.score(X, y), abs=1e-4)


@pytest.mark.slow
def test_physics_predicts_where_there_are_no_data(tea):
    exact = 70.0 * np.exp(-0.5 * 8.0)  # the law that the readings follow
    plain = PileRegressor(noise=0.5).fit(TIMES, TEA)
    mean, std = tea.predict([[8.0]], return_std=True)
    assert abs(mean[0] - exact) < 3 * std[0] < 0.02 * TEA[0]
    assert abs(plain.predict([[8.0]])[0] - exact) > 5 * abs(mean[0] - exact)
    assert tea.offset_ == 0.0
    assert abs(tea.minimum_.values["rate"] - 0.5) < 3 * tea.minimum_.standard_errors["rate"]


def test_copies_are_whole(tea):
    """A clone keeps the function that was imposed: nodes cannot be refined without it."""
    copy = clone(tea)
    assert copy is not tea
    assert copy.get_params() == tea.get_params()
    assert copy.physics.source is tea.physics.source
    with pytest.raises(NotFittedError):
        copy.predict(TIMES)
    assert not hasattr(copy, "hyperposterior_")


@pytest.mark.parametrize("name", ["fitted", "tea"])
def test_pickles_keep_predictions(name, request):
    """Whether or not the hyperposterior has been computed before; the factors of its models are left out."""
    found = request.getfixturevalue(name)
    at = found.model_.data[0].points[:4]
    early = pickle.loads(
        pickle.dumps(clone(found).fit(found.model_.data[0].points, TEA if name == "tea" else surface()[1]))
    )
    assert "hyperposterior_" not in vars(early)
    mean, std = found.predict(at, return_std=True)
    late = pickle.loads(pickle.dumps(found))
    assert "hyperposterior_" in vars(late)
    assert "_mixture" not in vars(late)
    for again in (early, late):
        np.testing.assert_array_equal(again.predict(at), mean)
        np.testing.assert_array_equal(again.predict(at, return_std=True)[1], std)
        np.testing.assert_array_equal(again.predict(at, return_cov=True)[1], found.predict(at, return_cov=True)[1])
        np.testing.assert_array_equal(again.sample_y(at, 3), found.sample_y(at, 3))


def test_deviations_contain_the_uncertainty_of_hyperparameters(fitted):
    """By hand: the mean of the variances plus the variance of the means, over the weighted models."""
    at = np.array([[0.5, 2.5], [1.5, 6.0]])  # among the points, and far from them
    mean, std = fitted.predict(at, return_std=True)
    parts = fitted.hyperposterior_.weighted_models
    weights = np.array([part.weight for part in parts])
    each = [ps.posterior(part.model) for part in parts]
    means, variances = (np.array([getattr(post, which)(at) for post in each]) for which in ("mean", "variance"))
    total = weights @ variances + weights @ (means - weights @ means) ** 2
    np.testing.assert_allclose(std, np.sqrt(total), rtol=1e-10)
    assert (std > 1.05 * fitted.posterior_.std(at)).all()
    np.testing.assert_array_equal(mean, fitted.posterior_.mean(at) + fitted.offset_)
    np.testing.assert_allclose(fitted.predict(at, return_cov=True)[1].diagonal(), std**2, rtol=1e-10)


def test_means_are_cheap_and_a_fit_forgets_the_last_one():
    X, y = surface(12)
    found = PileRegressor().fit(X, y)
    found.score(X, y)
    assert "hyperposterior_" not in vars(found)  # cross-validation need not pay for it
    _, std = found.predict(X, return_std=True)
    _, scaled = found.fit(X, 10.0 * y).predict(X, return_std=True)
    np.testing.assert_allclose(scaled, 10.0 * std, rtol=1e-2)


@pytest.mark.slow
def test_cross_validation_chooses_a_kernel():
    """A triangle wave is rough: a smooth kernel predicts it worse."""
    x = np.random.default_rng(0).uniform(0, 6, (36, 1))
    y = np.abs(x[:, 0] % 2.0 - 1.0)
    grid = GridSearchCV(PileRegressor(noise=0.01), {"kernel": [ps.RBF(0.5), ps.Matern(1.5, 0.5)]}, cv=3).fit(x, y)
    assert isinstance(grid.best_params_["kernel"], ps.Matern)
    assert grid.best_estimator_.score(x, y) > 0.99
    scores = cross_val_score(PileRegressor(ps.Matern(1.5, 0.5), noise=0.01), x, y, cv=3)
    np.testing.assert_allclose(scores.mean(), grid.best_score_)


def test_columns_keep_their_names(tea):
    X, y = surface()
    frame = pd.DataFrame(X, columns=["x", "t"])
    found = PileRegressor(ps.RBF([0.5, 2.0])).fit(frame, pd.Series(y))
    assert list(found.feature_names_in_) == ["x", "t"]
    with pytest.raises(ValueError, match="feature names"):
        found.predict(frame[["t", "x"]])
    strip = ps.Box(t=(0, 5), x=(0, 1))
    dt, dx = ps.partials(strip)
    physics = ps.impose(dt + dx, 0.0, on=strip.interior(ps.GaussLegendre(3)))
    message = r"X: its columns are \(x, t\), but the physics acts on \(t, x\): order or rename the columns"
    with pytest.raises(ps.errors.InputError, match=message):
        PileRegressor(physics=physics).fit(frame, y)


def test_scaled_columns_are_outside_the_domain_of_the_physics():
    """The units of the columns are those of the equation: scaled times lie far outside the domain."""
    time = ps.Box(t=(100, 108))
    (dt,) = ps.partials(time)
    physics = ps.impose(dt + 0.5 * ps.identity, 0.0, on=time.interior(ps.GaussLegendre(20)))
    estimator = PileRegressor(physics=physics, noise=0.5)
    with pytest.raises(ps.errors.OutsideDomainWarning, match="outside"):  # warnings are errors in tests
        make_pipeline(StandardScaler(), estimator).fit(100.0 + TIMES, TEA)
    assert estimator.fit(100.0 + TIMES, TEA).score(100.0 + TIMES, TEA) > 0.99


def test_samples_are_those_of_the_posterior(fitted):
    X, _ = surface(4)
    samples = fitted.sample_y(X, n_samples=4000, random_state=1)
    assert samples.shape == (4, 4000)
    _, covariance = fitted.predict(X, return_cov=True)
    mean = ps.posterior(fitted.hyperposterior_).mean(X) + fitted.offset_
    error = np.sqrt(covariance.diagonal() / 4000)
    assert (abs(samples.mean(axis=1) - mean) < 4 * error).all()
    np.testing.assert_allclose(np.cov(samples), covariance, atol=0.15 * covariance.max())
    np.testing.assert_array_equal(samples, fitted.sample_y(X, n_samples=4000, random_state=1))


def searched(estimator, X, y):
    """Return the start of a search and its bounds."""
    return estimator._search(X, y, () if estimator.physics is None else estimator.physics)


def test_what_is_searched():
    X, y = surface()
    model, over = searched(PileRegressor(), X, y)
    assert set(over) == {"kernel.bandwidth", "eta", "gamma"}
    assert model.parameters["eta"] == pytest.approx(np.mean(y**2))
    kernel = 2.0 * ps.RBF([0.5, 2.0])
    bounds = {"eta": "fixed", "kernel.kernel.bandwidth": "fixed", "kernel.variance": (0.1, 9.0)}
    model, over = searched(PileRegressor(kernel, noise=0.1, bounds=bounds), X, y)
    assert over == {"kernel.variance": (0.1, 9.0)}
    assert model.parameters["eta"] == 1.0
    assert model.parameters["gamma"] == pytest.approx(2 * 0.1**2)
    # A start that nobody chose moves into the bounds; one that somebody chose does not.
    model, _ = searched(PileRegressor(bounds={"kernel.bandwidth": (50.0, 60.0), "gamma": (1e-9, 1e-8)}), X, y)
    np.testing.assert_allclose(model.parameters["kernel.bandwidth"], 50.0)
    assert model.parameters["gamma"] == pytest.approx(1e-8)
    with pytest.raises(ps.errors.InputError, match=r"kernel.bandwidth = 1 is outside its bounds \(50, 60\)"):
        PileRegressor(ps.RBF(1.0), bounds={"kernel.bandwidth": (50.0, 60.0)}).fit(X, y)
    _, over = searched(PileRegressor(criterion="profiled"), X, y)
    assert "eta" not in over


SIZES = [
    np.zeros(6),
    np.full(6, 1e4),
    np.full(6, 0.1),  # its mean is not exactly 0.1
    np.arange(6),
    1e-9 * np.arange(6),
    1e9 * np.arange(6),
    300.0 + 0.01 * np.arange(6),
]


@pytest.mark.parametrize("y", SIZES)
def test_any_size_of_readings(y):
    X = np.arange(6.0)[:, None]
    found = PileRegressor(ps.RBF(1.0)).fit(X, y)
    size = np.ptp(y) or abs(y[0]) or 1.0
    mean, std = found.predict(X, return_std=True)
    np.testing.assert_allclose(mean, y, atol=1e-3 * size)
    assert (std < 0.05 * size).all()


def test_noise_is_found_far_from_zero():
    """With physics nothing is subtracted from the readings. Noise much smaller than they are is found nevertheless."""
    time = ps.Box(t=(0, 8))
    (dt,) = ps.partials(time)
    physics = ps.impose(dt, 0.01, on=time.interior(ps.GaussLegendre(20)))
    t = np.linspace(0, 8, 30)
    noise = 0.02 * np.random.default_rng(0).standard_normal(30)
    found = PileRegressor(physics=physics).fit(t[:, None], 300.0 + 0.01 * t + noise)
    assert 0.7 < found.noise_ / 0.02 < 1.4


BAD = [
    ({"kernel": "rbf"}, "kernel: expected a kernel such as"),
    ({"kernel": ps.RBF([1.0, 1.0, 1.0])}, "bandwidth has 3 entries"),
    ({"physics": 1.0}, "physics: expected a block made by ps.impose"),
    ({"noise": -1.0}, "noise: expected a positive number; got -1.0"),
    ({"noise": 0.1, "bounds": {"gamma": (0.1, 1)}}, r"bounds\['gamma'\]: expected no bounds of a noise that is given"),
    ({"bounds": {"gamma": "fixed"}}, r"bounds\['gamma'\]: expected bounds; noise= is for a known noise"),
    ({"bounds": [(0, 1)]}, "bounds: expected a mapping of names to bounds"),
    ({"bounds": {"etta": (0.1, 1)}}, "no hyperparameter 'etta'. Did you mean 'eta'?"),
    ({"bounds": {"kernel.bandwith": "fixed"}}, "Did you mean 'kernel.bandwidth'?"),
    ({"bounds": {"eta": (2, 1)}}, r"over\['eta'\]: expected bounds \(low, high\) with low below high"),
    (
        {"noise": 0.1, "bounds": {"eta": "fixed", "kernel.bandwidth": "fixed"}},
        "at least one hyperparameter that is not",
    ),
    ({"criterion": "best"}, "score: expected 'joint'"),
    ({"starts": 0}, "starts: expected an integer of at least 1; got 0"),
    ({"random_state": "x"}, "cannot be used to seed"),
]


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        PileRegressor(**arguments).fit(*surface(6))


def test_parameters_of_the_physics_need_bounds():
    with pytest.raises(ps.errors.InputError, match=r"bounds: expected bounds \(low, high\) of 'rate'"):
        PileRegressor(physics=cooling()).fit(TIMES, TEA)
    with pytest.raises(ps.errors.InputError, match=r"points with 1 coordinates, but block 'data\.0' has points with 2"):
        PileRegressor(physics=cooling()).fit(*surface(6))


def test_one_uncertainty_at_a_time(fitted):
    with pytest.raises(ps.errors.InputError, match="return_std, return_cov: expected at most one of them; got 'both'"):
        fitted.predict([[0.0, 0.0]], return_std=True, return_cov=True)
    with pytest.raises(ValueError, match="X has 1 features, but PileRegressor is expecting 2"):
        fitted.predict([[0.0]])


@pytest.mark.parametrize("status", ["stalled", "interrupted"])
def test_the_end_of_the_search_is_told(monkeypatch, fitted, status):
    ended = dataclasses.replace(fitted.minimum_, status=status, reason="because")
    monkeypatch.setattr(door, "minimize", lambda *_, **__: ended)
    if status == "interrupted":
        with pytest.raises(KeyboardInterrupt):
            PileRegressor().fit(*surface())
    else:
        with pytest.warns(ConvergenceWarning, match="the search has not converged: because"):
            PileRegressor().fit(*surface())


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "pilescore.sklearn")
    with pytest.raises(ModuleNotFoundError, match=r"needs scikit-learn: pip install 'pilescore\[sklearn\]'$"):
        importlib.import_module("pilescore.sklearn")


def test_a_known_noise_has_no_scale_to_be_found():
    with pytest.raises(ps.errors.InputError, match=r"noise: expected no noise with a profiled criterion.*0\.5"):
        PileRegressor(noise=0.5, criterion="profiled").fit(TIMES, TEA)
