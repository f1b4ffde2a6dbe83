"""Posteriors averaged over hyperparameters, against sums over the posteriors of single models and simulation."""

import dataclasses
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

import pilescore as ps
from pilescore.covariance import gram
from pilescore.inference import ModelMixture, WeightedModel, mixture
from pilescore.inference.mixture import mixture_quantiles
from tests.models import DX, STRIP, STRIP_DT, STRIP_DX, decay, line_model, refused, sine

WHERE = np.linspace(-0.2, 1.4, 7)
WEIGHTS = (0.2, 0.5, 0.3)


@dataclasses.dataclass
class Listed(ModelMixture):
    parts: list

    @property
    def weighted_models(self):
        return self.parts


def mixed(model, rows, weights=WEIGHTS):
    """Return the mixture of a model at several values of its hyperparameters."""
    pairs = zip(weights, rows, strict=True)
    return Listed([WeightedModel(weight, model.replace(values), values) for weight, values in pairs])


def decays():
    rows = [{"rate": 0.7, "kernel.bandwidth": 0.5}, {"rate": 1.3, "kernel.bandwidth": 0.7}]
    return mixed(decay(), [*rows, {"rate": 1.9, "kernel.bandwidth": 1.1}])


def brute(parts, points, operators, others=None):
    """Return mean and covariance of a mixture, for an operator of each model."""
    others = others or operators
    posts = [ps.posterior(part.model) for part in parts]
    weights = [part.weight for part in parts]
    first = [post.mean(points, op) for post, op in zip(posts, operators, strict=True)]
    second = [post.mean(points, op) for post, op in zip(posts, others, strict=True)]
    products = 0.0
    for weight, post, left, right, a, b in zip(weights, posts, operators, others, first, second, strict=True):
        products = products + weight * (post.covariance(points, left, other_operator=right) + np.outer(a, b))
    mean, other = (sum(w * m for w, m in zip(weights, means, strict=True)) for means in (first, second))
    return mean, products - np.outer(mean, other)


def everything(post):
    """Return one array of all predictions."""
    flux = ps.parameter("rate", 5.0) * ps.identity
    drawn = post.samples(WHERE, 5, seed=3, operator=[ps.identity, flux])
    parts = post.mean(WHERE), post.std(WHERE, flux), post.covariance(WHERE), post.quantiles(WHERE, [0.1, 0.9]), drawn
    return np.concatenate([part.ravel() for part in parts])


# -- Moments.


@pytest.mark.parametrize("operator", [ps.identity, ps.partials(ps.Box(t=(0, 1)))[0]], ids=str)
def test_moments_are_those_of_the_law_of_total_covariance(operator):
    averaged, parts = ps.posterior(decays()), decays().parts
    mean, covariance = brute(parts, WHERE, [operator] * 3)
    np.testing.assert_allclose(averaged.mean(WHERE, operator), mean, rtol=1e-12)
    np.testing.assert_allclose(averaged.covariance(WHERE, operator), covariance, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(averaged.variance(WHERE, operator), np.diag(covariance), rtol=1e-8)
    np.testing.assert_allclose(averaged.std(WHERE, operator) ** 2, np.diag(covariance), rtol=1e-8)
    _, cross = brute(parts, WHERE, [operator] * 3, [ps.identity] * 3)
    got = averaged.covariance(WHERE, operator, other_operator=ps.identity)
    np.testing.assert_allclose(got, cross, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(averaged.covariance(WHERE, operator, WHERE[:2], ps.identity), cross[:, :2], atol=1e-11)


def test_a_covariance_is_symmetric_and_has_the_variances_on_its_diagonal():
    post = ps.posterior(decays())
    covariance = post.covariance(WHERE)
    np.testing.assert_array_equal(covariance, covariance.T)
    assert np.linalg.eigvalsh(covariance).min() > -1e-12
    np.testing.assert_allclose(post.variance(WHERE), np.diag(covariance), rtol=1e-9)


def test_one_model_gives_its_posterior_exactly():
    model = line_model()
    plain, averaged = ps.posterior(model), ps.posterior(mixed(model, [{"gamma": 0.02}], [1.0]))
    for ask in (
        lambda post: post.mean(WHERE, DX),
        lambda post: post.std(WHERE, DX),
        lambda post: post.covariance(WHERE, DX),
        lambda post: post.covariance(WHERE, other_operator=DX),
        lambda post: post.samples(WHERE, 6, seed=4, operator=[ps.identity, DX]),
        lambda post: post.quantiles(WHERE, [0.025, 0.5, 0.975]),
        lambda post: post.quantiles(WHERE, 0.9),
    ):
        np.testing.assert_array_equal(ask(averaged), ask(plain))


@settings(max_examples=10, deadline=None)
@given(st.permutations(range(3)))
def test_the_order_of_the_models_does_not_matter(order):
    first, second = decays(), decays()
    second.parts = [second.parts[i] for i in order]
    one, other = ps.posterior(first), ps.posterior(second)
    flux = ps.parameter("rate", 5.0) * ps.identity
    np.testing.assert_allclose(other.mean(WHERE, flux), one.mean(WHERE, flux), rtol=1e-12)
    np.testing.assert_allclose(other.std(WHERE, flux), one.std(WHERE, flux), rtol=1e-9)
    np.testing.assert_allclose(other.quantiles(WHERE, [0.02, 0.7]), one.quantiles(WHERE, [0.02, 0.7]), rtol=1e-9)


# -- Quantiles.


def test_quantiles_solve_the_equation_of_the_mixture():
    post, parts = ps.posterior(decays()), decays().parts
    probabilities = np.array([1e-9, 0.025, 0.5, 0.8, 1 - 1e-9])
    got = post.quantiles(WHERE, probabilities)
    posts = [ps.posterior(part.model) for part in parts]
    means, stds = np.array([p.mean(WHERE) for p in posts]), np.array([p.std(WHERE) for p in posts])
    for row, probability in zip(got, probabilities, strict=True):
        for i, found in enumerate(row):
            low = probability <= 0.5  # the smaller tail, which has all its digits

            def excess(q, i=i, low=low, probability=probability):
                tails = norm.cdf(q, means[:, i], stds[:, i]) if low else norm.sf(q, means[:, i], stds[:, i])
                return float(np.dot(WEIGHTS, tails)) / (probability if low else 1 - probability) - 1

            expected = brentq(excess, means[:, i].min() - 9, means[:, i].max() + 9, xtol=1e-14, rtol=1e-15)
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)


def test_quantiles_of_components_far_apart_and_of_known_values():
    weights = np.array([0.3, 0.7])
    means, stds = np.array([[-1e6, 2.0, 5.0], [1e6, 3.0, 5.0]]), np.array([[1e-3, 0.0, 0.0], [1e-3, 0.0, 2.0]])
    got = mixture_quantiles(means, stds, weights, np.array([0.15, 0.29, 0.31, 0.9]))
    far = [-1e6 + 1e-3 * norm.ppf(0.5), -1e6 + 1e-3 * norm.ppf(0.29 / 0.3)]
    far += [1e6 + 1e-3 * norm.ppf(0.01 / 0.7), 1e6 + 1e-3 * norm.ppf(0.6 / 0.7)]
    np.testing.assert_allclose(got[:, 0], far, rtol=0, atol=1e-9)
    np.testing.assert_allclose(got[:, 1], [2, 2, 3, 3], rtol=1e-15)  # two values without any spread
    # A jump of 0.3 at 5, in the middle of a normal distribution: F(5−) = 0.35 and F(5) = 0.65.
    expected = [5 + 2 * norm.ppf(0.15 / 0.7), 5 + 2 * norm.ppf(0.29 / 0.7), 5 + 2 * norm.ppf(0.31 / 0.7)]
    np.testing.assert_allclose(got[:, 2], [*expected, 5 + 2 * norm.ppf(0.6 / 0.7)], rtol=1e-11)
    np.testing.assert_allclose(mixture_quantiles(means, stds, weights, np.array(0.5))[2], 5.0, rtol=1e-15)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(-3, 3), st.floats(0.1, 10))
def test_quantiles_move_and_stretch_with_the_mixture(seed, shift, factor):
    rng = np.random.default_rng(seed)
    means, stds, weights = rng.standard_normal((4, 5)), rng.gamma(1.0, size=(4, 5)), rng.dirichlet(np.ones(4))
    p = np.sort(rng.uniform(0.001, 0.999, 6))
    got = mixture_quantiles(means, stds, weights, p)
    assert np.all(np.diff(got, axis=0) > 0)
    moved = mixture_quantiles(shift + factor * means, factor * stds, weights, p)
    np.testing.assert_allclose(moved, shift + factor * got, rtol=1e-9, atol=1e-9)
    turned = mixture_quantiles(-means, stds, weights, 1 - p)
    np.testing.assert_allclose(turned, -got, rtol=1e-9, atol=1e-9)


def test_quantiles_do_not_depend_on_batches(monkeypatch):
    post = ps.posterior(decays())
    whole = post.quantiles(WHERE, [0.1, 0.6])
    monkeypatch.setattr(mixture, "QUANTILE_BATCH", 12)
    np.testing.assert_array_equal(post.quantiles(WHERE, [0.1, 0.6]), whole)


# -- Samples.


def test_samples_have_the_moments_and_quantiles_of_the_mixture():
    post, count = ps.posterior(decays()), 40_000
    points, flux = WHERE[[1, 6]], ps.parameter("rate", 5.0) * ps.identity
    drawn = post.samples(points, count, seed=0, operator=(ps.identity, flux))
    assert drawn.shape == (count, 2, 2)
    flat = drawn.reshape(count, 4)
    mean = np.concatenate([post.mean(points), post.mean(points, flux)])
    cross = post.covariance(points, other_operator=flux)
    covariance = np.block([[post.covariance(points), cross], [cross.T, post.covariance(points, flux)]])
    deviation = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(flat.mean(axis=0) - mean) < 5 * deviation / np.sqrt(count))
    assert np.max(np.abs(np.cov(flat.T) - covariance) / np.outer(deviation, deviation)) < 0.06
    shares = np.mean(drawn[:, 0, :] < post.quantiles(points, [0.05, 0.5, 0.9])[:, None, :], axis=1)
    np.testing.assert_allclose(shares, np.repeat([[0.05], [0.5], [0.9]], 2, axis=1), atol=5 * 0.5 / np.sqrt(count))


def test_samples_are_reproducible_and_in_no_order():
    post = ps.posterior(mixed(sine(), [{"eta": 1e-6}, {"eta": 1e6}], [0.5, 0.5]))
    first, again, other = (post.samples([50.0], 400, seed=seed)[:, 0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    wide = np.abs(first) > 1  # far from the data the deviations are 1e-3 and 1e3
    assert 150 < wide.sum() < 250
    assert 60 < wide[:200].sum() < 140


# -- Parameters inside operators.


def test_operators_take_the_parameters_of_each_model():
    parts = decays().parts
    dt = ps.partials(ps.Box(t=(0, 1)))[0]
    averaged = ps.posterior(decays())

    def operator(rate):
        return rate**2 * dt + 3 * ps.identity / rate

    flux = operator(ps.parameter("rate", 5.0))
    mean, covariance = brute(parts, WHERE, [operator(ps.parameter("own", part.values["rate"])) for part in parts])
    np.testing.assert_allclose(averaged.mean(WHERE, flux), mean, rtol=1e-12)
    np.testing.assert_allclose(averaged.covariance(WHERE, flux), covariance, rtol=1e-9)
    np.testing.assert_allclose(averaged.std(WHERE, flux), np.sqrt(np.diag(covariance)), rtol=1e-8)
    fixed = operator(ps.parameter("other", 5.0))  # this name does not vary
    np.testing.assert_allclose(averaged.mean(WHERE, fixed), brute(parts, WHERE, [fixed] * 3)[0], rtol=1e-12)


class Wave(eqx.Module):
    size: jax.Array

    def __call__(self, p):
        return self.size[0] + self.size[1] * p[0]


def test_operators_take_single_elements_of_functions():
    wave = Wave(jnp.array([1.0, 0.5]))
    model = line_model(operator=ps.coefficient(wave, "c") * DX)
    averaged = mixed(model, [{"c.size[1]": 0.2}, {"c.size[1]": 0.9}], [0.4, 0.6])
    flux = DX * ps.coefficient(wave, "c")  # contains the derivative of c too

    def own(value):
        return DX * ps.coefficient(Wave(jnp.array([1.0, value])), "c")

    mean, covariance = brute(averaged.parts, WHERE, [own(0.2), own(0.9)])
    post = ps.posterior(averaged)
    np.testing.assert_allclose(post.mean(WHERE, flux), mean, rtol=1e-12)
    np.testing.assert_allclose(post.covariance(WHERE, flux), covariance, rtol=1e-9, atol=1e-12)


def test_models_share_compiled_code():
    rows = [{"rate": rate, "kernel.bandwidth": 0.4 + 0.1 * rate} for rate in np.linspace(0.5, 2.0, 6)]
    flux = ps.parameter("rate", 5.0) * ps.partials(ps.Box(t=(0, 1)))[0] + ps.identity
    alone = ps.posterior(mixed(decay(), rows[:1], [1.0]))
    alone.mean(WHERE, flux), alone.std(WHERE, flux)
    compiled = gram._block._cache_size(), gram._diagonal._cache_size()
    several = ps.posterior(mixed(decay(), rows, np.full(6, 1 / 6)))
    several.mean(WHERE, flux), several.std(WHERE, flux)
    assert (gram._block._cache_size(), gram._diagonal._cache_size()) == compiled


def test_covariances_with_a_hyperparameter():
    averaged, parts = ps.posterior(decays()), decays().parts
    rates = np.array([part.values["rate"] for part in parts])
    means = np.array([ps.posterior(part.model).mean(WHERE) for part in parts])
    expected = np.cov(rates, means.T, aweights=WEIGHTS, ddof=0)
    np.testing.assert_allclose(averaged.parameter_covariance("rate", WHERE), expected[0, 1:], rtol=1e-9)
    np.testing.assert_allclose(averaged.parameter_variance("rate"), expected[0, 0], rtol=1e-12)


# -- Nonlinear models, memory, failures and warnings.


def nonlinear():
    """Return Burgers' equation with an unknown coefficient, at three values of it."""
    rng = np.random.default_rng(7)
    points = rng.uniform([0, -1], [1, 1], (12, 2))
    values = -np.sin(np.pi * points[:, 1]) * np.exp(-points[:, 0])
    law = ps.Nonlinear(
        lambda p, u, ut, ux, uxx: ut + u * ux - uxx,
        of=(ps.identity, STRIP_DT, STRIP_DX, ps.parameter("nu", 0.1) * STRIP_DX**2),
    )
    physics = ps.impose(law, 0.0, on=STRIP.interior(ps.GaussLegendre(4)), noise=0.1)
    model = ps.Model(ps.RBF([0.7, 0.6]), ps.observe(ps.identity, values, points, noise=0.05), physics)
    return mixed(model, [{"nu": 0.05}, {"nu": 0.1}, {"nu": 0.2}])


@pytest.mark.slow
def test_nonlinear_models_are_linearised_and_kept_within_the_budget(monkeypatch):
    found, points = nonlinear(), STRIP.interior(ps.GaussLegendre(2)).points
    flux = ps.parameter("nu", 9.0) * STRIP_DX
    mean, covariance = brute(found.parts, points, [part.values["nu"] * STRIP_DX for part in found.parts])
    post = ps.posterior(found)
    np.testing.assert_allclose(post.mean(points, flux), mean, rtol=1e-9)
    np.testing.assert_allclose(post.covariance(points, flux), covariance, rtol=1e-6, atol=1e-12)
    start = ps.inference.WarmStart(found.parts[1].model)
    warm = ps.posterior(Listed([dataclasses.replace(part, warm_start=start) for part in found.parts]))
    np.testing.assert_allclose(warm.mean(points, flux), mean, rtol=1e-6)
    assert start.solved
    monkeypatch.setattr(mixture, "KEPT_BYTES", 0.0)
    again = ps.posterior(found)
    for _ in range(2):  # solved, then factored again
        np.testing.assert_allclose(again.mean(points, flux), mean, rtol=1e-9)
    assert again._components.kept == {}


@pytest.mark.parametrize("models", [0, 1, 2])
def test_predictions_do_not_depend_on_how_many_models_are_kept(monkeypatch, models):
    expected = everything(ps.posterior(decays()))
    monkeypatch.setattr(mixture, "KEPT_BYTES", models * 8.0 * decay().size ** 2)
    post = ps.posterior(decays())
    np.testing.assert_array_equal(everything(post), expected)
    assert len(post._components.kept) == models


def test_models_are_conditioned_once_and_when_they_are_needed(monkeypatch):
    calls = []
    original = mixture.systems_of
    monkeypatch.setattr(mixture, "systems_of", lambda *args, **kw: (calls.append(args), original(*args, **kw))[1])
    post = ps.posterior(decays())
    assert "3 weighted models of 33 observations" in repr(post)
    assert not calls
    everything(post)
    assert len(calls) == 3


def impossible(weights):
    """Return three models, of which the last cannot be factored."""
    twice = ps.observe(ps.identity, values=[1.0, 1.0], at=[0.5, 0.5])
    model = ps.Model(ps.RBF(0.5), twice, gamma=0.1)
    return mixed(model, [{"gamma": 0.1}, {"gamma": 0.2}, {"gamma": 1e-20}], weights)


def test_a_model_that_cannot_be_solved_is_named_with_its_weight():
    post = ps.posterior(impossible([0.5, 0.25, 0.25]))
    for _ in range(2):
        with refused(
            "weighted model 2 of 3 (gamma = 1e-20)", "weight is 0.25", error=ps.errors.NotPositiveDefiniteError
        ):
            post.mean([0.5])


def test_a_model_that_is_left_out_is_said():
    post = ps.posterior(impossible([0.5, 0.4, 0.1]))
    with pytest.warns(ps.errors.UncertaintyWarning, match="left out.*weight of 0.1 in all is missing"):
        mean = post.mean([0.5])
    parts = impossible([5 / 9, 4 / 9, 0.5]).parts[:2]
    np.testing.assert_allclose(mean, brute(parts, [0.5], [ps.identity] * 2)[0], rtol=1e-12)


def test_a_negligible_model_is_left_out():
    post = ps.posterior(impossible([0.5, 0.4995, 0.0005]))
    parts = impossible([0.5 / 0.9995, 0.4995 / 0.9995, 0.5]).parts[:2]
    np.testing.assert_allclose(post.weights, [0.5 / 0.9995, 0.4995 / 0.9995, 0.0], rtol=1e-14)
    mean, covariance = brute(parts, [0.5, 0.9], [ps.identity] * 2)
    np.testing.assert_allclose(post.mean([0.5, 0.9]), mean, rtol=1e-12)
    np.testing.assert_allclose(post.covariance([0.5, 0.9]), covariance, rtol=1e-10)
    np.testing.assert_allclose(post.parameter_variance("gamma"), np.cov([0.1, 0.2], aweights=[1, 0.999], ddof=0))
    assert post.samples([0.5], 2000, seed=0).shape == (2000, 1)


def test_a_warning_is_given_once():
    x = np.linspace(0, 1, 30)
    model = ps.Model(ps.RBF(0.5), ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=1e-13)
    post = ps.posterior(mixed(model, [{"gamma": 1e-13}, {"gamma": 2e-13}, {"gamma": 0.1}]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        post.mean([0.5])
        post.mean([0.5])
    assert [each.category for each in caught] == [ps.errors.PrecisionWarning]
    assert "2 of 3 weighted models, with weight 0.7, warn; the heaviest: rounding leaves PILE" in str(caught[0].message)


@pytest.mark.parametrize(("weight", "count"), [(0.04, 0), (0.06, 1)])
def test_a_warning_about_models_of_little_weight_is_not_given(weight, count):
    x = np.linspace(0, 1, 30)
    model = ps.Model(ps.RBF(0.5), ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.1)
    post = ps.posterior(mixed(model, [{"gamma": 1e-13}, {"gamma": 0.1}], [weight, 1.0 - weight]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        post.mean([0.5])
    assert [each.category for each in caught] == count * [ps.errors.PrecisionWarning]


def test_repr_states_the_hyperparameters():
    assert repr(ps.posterior(mixed(sine(), [{"gamma": 0.1}, {"gamma": 0.3}], [0.5, 0.5]))) == (
        "MixturePosterior(2 weighted models of 25 observations, effective number 2\n  gamma = 0.2 ± 0.1)"
    )


# -- Bad input.


def test_bad_mixtures_are_refused():
    model = sine()
    for parts, text in (
        ([], "at least one weighted model"),
        ([WeightedModel(-0.1, model, {}), WeightedModel(1.1, model, {})], "weight: expected a positive number"),
        ([WeightedModel(0.6, model, {})], "weights that sum to one; got 0.6"),
        ([WeightedModel(0.5, model, {"a": 1.0}), WeightedModel(0.5, model, {"b": 1.0})], "the same names"),
        ([WeightedModel(1.0, model, {"a": [1.0, 2.0]})], "a: expected a single number"),
    ):
        with refused(text):
            ps.posterior(Listed(parts))


def test_bad_questions_are_refused():
    post = ps.posterior(decays())
    for bad in (0.0, 1.0, [0.5, 1.2], [], [[0.5]], "half", np.nan):
        for each in (post, ps.posterior(sine())):
            with refused("probabilities: expected"):
                each.quantiles(WHERE, bad)
    for ask in (post.mean, post.variance, post.covariance):
        with refused("points: expected points with 1 coordinates"):
            ask(np.ones((3, 2)))
    with refused("count: expected"):
        post.samples(WHERE, 0, seed=1)
    with refused("seed: expected"):
        post.samples(WHERE, 1, seed=-1)
    with refused("no hyperparameter 'rates' among those that vary. Did you mean 'rate'?"):
        post.parameter_covariance("rates", WHERE)
    temperature = ps.posterior(mixed(sine(), [{"gamma": 0.1}], [1.0]))
    with refused("another name for its parameter 'gamma'"):
        temperature.mean(WHERE, ps.parameter("gamma", 1.0) * ps.identity)
