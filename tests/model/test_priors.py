"""Priors on hyperparameters: their densities, and how models hold them."""

import pickle

import equinox as eqx
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import pilescore as ps
from pilescore.model.priors import as_priors

from ..models import DX, LINE_X, LINE_Y, NODES, line_model, refused

P = ps.priors
DIGITS = 50


class Series(eqx.Module):
    """A field over an index: the sum of `values[i]` times a power of x."""

    values: jnp.ndarray

    def __call__(self, p):
        return self.values @ p[0] ** jnp.arange(len(self.values))


def series_model(values=(1.0, 0.5, 0.2), **options):
    operator = ps.coefficient(Series(jnp.array(values)), "c") * ps.identity + DX
    physics = ps.impose(operator, 0.0, on=NODES, rho=0.01)
    return ps.Model(ps.RBF([0.3]), ps.observe(ps.identity, LINE_Y, LINE_X), physics, gamma=0.02, **options)


def matern(n, deviation, length):
    """Return the covariance of `Smooth` in many digits."""
    r = [[mpmath.sqrt(3) * abs(i - j) / mpmath.mpf(length) for j in range(n)] for i in range(n)]
    return mpmath.matrix([[mpmath.mpf(deviation) ** 2 * (1 + x) * mpmath.exp(-x) for x in row] for row in r])


# -- Densities and slopes.


def test_normal_density_is_that_of_scipy():
    assert P.Normal(0.5, 0.2).log_density(0.7) == pytest.approx(stats.norm(0.5, 0.2).logpdf(0.7), rel=1e-14)
    vector = P.Normal([0.5, -1.0], [0.2, 3.0]).log_density([0.7, 2.0])
    assert vector == pytest.approx(stats.norm([0.5, -1.0], [0.2, 3.0]).logpdf([0.7, 2.0]).sum(), rel=1e-14)


def test_log_normal_density_is_that_of_the_logarithm():
    value, log_normal = 1.7, stats.lognorm(np.log(1.5), scale=0.8)
    # A density of log t is that of t, multiplied by t.
    expected = log_normal.logpdf(value) + np.log(value)
    assert P.LogNormal(0.8, 1.5).log_density(value) == pytest.approx(expected, rel=1e-13)
    within = log_normal.cdf(0.8 * 1.5) - log_normal.cdf(0.8 / 1.5)
    assert within == pytest.approx(stats.norm.cdf(1) - stats.norm.cdf(-1), rel=1e-12)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan])
def test_a_log_normal_prior_excludes_values_that_are_not_positive(value):
    assert P.LogNormal(0.8, 1.5).log_density(value) == -np.inf


@pytest.mark.parametrize(("n", "length"), [(1, 2.0), (5, 0.3), (5, 40.0), (30, 8.0)])
@pytest.mark.parametrize("logarithmic", [False, True])
def test_smooth_density_to_fifty_digits(n, length, logarithmic):
    values = np.exp(np.random.default_rng(n).normal(0, 0.5, n))
    found = P.Smooth(mean=0.3, deviation=0.7, length=length, logarithmic=logarithmic).log_density(values)
    with mpmath.workdps(DIGITS):
        covariance = matern(n, 0.7, length)
        t = [mpmath.log(v) if logarithmic else mpmath.mpf(v) for v in values.tolist()]
        away = mpmath.matrix([each - mpmath.mpf(0.3) for each in t])
        square = (away.T * mpmath.lu_solve(covariance, away))[0]
        expected = -(square + mpmath.log(mpmath.det(covariance)) + n * mpmath.log(2 * mpmath.pi)) / 2
    assert found == pytest.approx(float(expected), rel=1e-9)


@given(
    st.sampled_from(["normal", "log-normal", "smooth", "smooth logarithm"]),
    st.lists(st.floats(0.1, 5.0), min_size=1, max_size=5),
    st.floats(0.1, 4.0),
    st.floats(1.1, 5.0),
)
@settings(max_examples=60, deadline=None)
def test_slopes_are_those_of_densities(kind, values, centre, spread):
    prior = {
        "normal": P.Normal(centre, spread),
        "log-normal": P.LogNormal(centre, spread),
        "smooth": P.Smooth(centre, spread, 1.5),
        "smooth logarithm": P.Smooth(centre, spread, 1.5, logarithmic=True),
    }[kind]
    point = np.array(values)
    slope = prior.slope(point)
    assert slope.shape == point.shape
    for i in range(len(point)):
        step = np.zeros(len(point))
        step[i] = 1e-5 * point[i]
        quotient = (prior.log_density(point + step) - prior.log_density(point - step)) / (2 * step[i])
        assert slope[i] == pytest.approx(quotient, rel=1e-5, abs=1e-6)


def test_a_smooth_prior_of_a_short_length_is_independent():
    values = [0.5, 1.5, 0.7]
    smooth, normal = P.Smooth(1.0, 0.5, 1e-3), P.Normal(1.0, 0.5)
    assert smooth.log_density(values) == pytest.approx(normal.log_density(values), rel=1e-14)


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: P.Normal(0.5, 0.0), ["deviation", "positive"]),
        (lambda: P.Normal(np.inf, 1.0), ["mean", "finite"]),
        (lambda: P.Normal("a", 1.0), ["mean"]),
        (lambda: P.LogNormal(-1.0, 2.0), ["median", "positive"]),
        (lambda: P.LogNormal(1.0, 1.0), ["factor", "above 1"]),
        (lambda: P.Smooth([1.0, 2.0], 1.0, 1.0), ["mean", "one number"]),
        (lambda: P.Smooth(1.0, 1.0, -1.0), ["length", "positive"]),
        (lambda: as_priors([P.Normal(1, 1)]), ["priors", "a mapping"]),
    ],
)
def test_bad_priors(make, parts):
    with refused(*parts):
        make()


# -- Models with priors.


def test_a_model_adds_the_densities_of_its_priors():
    smooth = P.Smooth(0.5, 1.0, 2.0)
    model = series_model(priors={"gamma": P.LogNormal(0.1, 2), "c.values": smooth, "eta": P.Normal(1, 2)})
    parts = [
        P.LogNormal(0.1, 2).log_density(0.02),
        smooth.log_density([1.0, 0.5, 0.2]),
        P.Normal(1, 2).log_density(1.0),
    ]
    assert model.log_prior == pytest.approx(sum(parts), rel=1e-14)
    slopes = model.log_prior_slopes
    assert slopes.keys() == {"gamma", "c.values", "eta"}
    np.testing.assert_allclose(slopes["c.values"], smooth.slope([1.0, 0.5, 0.2]), rtol=1e-14)


def test_a_prior_on_one_element():
    model = series_model(priors={"c.values[1]": P.Normal(0.0, 0.1)})
    assert model.log_prior == pytest.approx(stats.norm(0.0, 0.1).logpdf(0.5), rel=1e-14)
    np.testing.assert_allclose(model.log_prior_slopes["c.values"], [0.0, -50.0, 0.0], rtol=1e-14)


def test_without_priors_nothing_is_added():
    model = line_model()
    assert not model.priors
    assert model.log_prior == 0.0
    assert model.log_prior_slopes == {}
    assert "priors" not in repr(model)


def test_replace_keeps_priors():
    priors = {"gamma": P.LogNormal(0.1, 2), "kernel.bandwidth[0]": P.LogNormal(0.3, 3)}
    model = line_model(priors=priors)
    assert model.priors == priors
    assert "LogNormal(median=0.1, factor=2.0)" in repr(model)
    assert model.replace({"gamma": 0.5}).priors == priors
    assert model.replace(data=model.data).priors == priors
    assert model.replace(solver="auto").replace({"eta": 2.0}).priors == priors
    assert model.replace(kernel=ps.Matern(2.5, [0.4])).priors == priors
    assert model.replace(priors={}).priors == {}
    assert model.replace({"gamma": 0.5}, priors={"eta": P.LogNormal(1, 9)}).priors == {"eta": P.LogNormal(1, 9)}
    assert pickle.loads(pickle.dumps(model)).priors == priors


def test_priors_of_hyperparameters_that_are_gone_are_dropped():
    operator = DX + ps.parameter("rate", 2.0)
    physics = ps.impose(operator, 0.0, on=NODES, rho=0.1)
    data = ps.observe(ps.identity, LINE_Y, LINE_X)
    model = ps.Model(ps.RBF(0.3), data, physics, priors={"rate": P.Normal(2, 1), "gamma": P.LogNormal(0.1, 2)})
    assert list(model.replace(physics=()).priors) == ["gamma"]


def test_equal_priors_have_equal_hashes():
    first, second = P.Normal(1, 2), P.LogNormal(0.1, 2)
    one = line_model(priors={"eta": first, "gamma": second})
    other = line_model(priors={"gamma": second, "eta": first})
    assert one.priors == other.priors
    assert hash(one.priors) == hash(other.priors)


@pytest.mark.parametrize(
    ("priors", "parts"),
    [
        ({"gama": P.Normal(1, 1)}, ["gama", "Did you mean 'gamma'"]),
        ({"gamma": 3.0}, ["priors['gamma']", "ps.priors.Normal"]),
        ({"kernel.bandwidth": P.Smooth(1, 1, 1), "kernel.bandwidth[0]": P.Normal(1, 1)}, ["no other prior"]),
        ({"kernel.bandwidth[0]": P.Normal(1, 1), "kernel.bandwidth": P.Normal(1, 1)}, ["no other prior"]),
        ({"kernel.bandwidth[1]": P.Normal(1, 1)}, ["kernel.bandwidth[1]", "shape (1,)"]),
        ({"kernel.bandwidth": P.Normal([1, 2], 1)}, ["priors['kernel.bandwidth'].mean", "one number, or 1"]),
        ({"gamma": P.Smooth(1, 1, 1)}, ["priors['gamma']", "Normal or LogNormal"]),
    ],
)
def test_bad_priors_of_a_model(priors, parts):
    with refused(*parts):
        line_model(priors=priors)


def test_a_length_so_long_that_rounding_hides_the_differences():
    with refused("priors['c.values'].length", "a shorter one"):
        series_model(priors={"c.values": P.Smooth(1.0, 1.0, 1e5)})


def test_a_log_normal_prior_needs_a_positive_value():
    with refused("c.values[1]", "positive"):
        series_model((1.0, -0.5, 0.2), priors={"c.values[1]": P.LogNormal(1, 2)})
    model = series_model(priors={"c.values": P.LogNormal(1, 2)})
    with refused("c.values", "positive"):
        model.replace({"c.values[2]": -0.1})
    with refused("c.values", "positive"):
        ps.sweep(model, {"c.values[0]": [-1.0, 1.0]})
    with refused("over['c.values']", "positive bounds"):
        ps.minimize(model, {"c.values": (-1.0, 2.0)})


def test_the_density_of_some_elements_is_integrated_over_the_others():
    prior, value = ps.priors.Smooth(length=2.0, deviation=0.7, mean=1.0), np.array([0.3, 0.8, 1.4])
    nodes, weights = np.polynomial.legendre.leggauss(200)
    densities = [np.exp(prior.log_density([0.3, 1.0 + 6 * t, 1.4])) for t in nodes]
    assert prior.log_marginal(value, [0, 2]) == pytest.approx(np.log(6 * weights @ np.array(densities)), abs=1e-9)
    assert prior.log_marginal(value, [0, 1, 2]) == pytest.approx(prior.log_density(value), abs=1e-9)


def test_the_probability_between_bounds():
    low, high = np.array([0.2]), np.array([3.0])
    found = ps.priors.LogNormal(0.5, 2.0).log_probability(low, high)
    law = stats.lognorm(np.log(2.0), scale=0.5)
    assert found[0] == pytest.approx(np.log(law.cdf(3.0) - law.cdf(0.2)), rel=1e-12)
    with mpmath.workdps(50):
        exact = mpmath.log(mpmath.ncdf(-30) - mpmath.ncdf(-31))
    far = ps.priors.Normal(0.0, 1.0).log_probability(np.array([30.0]), np.array([31.0]))
    assert far[0] == pytest.approx(float(exact), rel=1e-12)
