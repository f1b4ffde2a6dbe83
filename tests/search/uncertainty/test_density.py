"""The density of hyperparameters: its slopes, its integral, its priors."""

import dataclasses
import math
from unittest.mock import Mock

import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import dblquad, quad
from scipy.special import ndtri

import pilescore as ps
from pilescore.inference import WarmStart
from pilescore.nonlinear import gauss_newton
from pilescore.search.space import search_space
from pilescore.search.uncertainty.compiled import BATCH, compiled
from pilescore.search.uncertainty.compute import _priors
from pilescore.search.uncertainty.density import HyperparameterDensity
from pilescore.solvers import solve, with_tolerances

from ...models import DX, line_model

P = ps.priors


def density(model, over, given=None, score="joint", ties=None):
    space = search_space(model, over, ties)
    scoring = ps.Score(profiled=True) if score == "profiled" else ps.Score()
    return HyperparameterDensity(space, scoring, _priors(space, given))


def rate_model(rate=2.0, **options):
    return line_model(operator=DX + ps.parameter("rate", rate), kernel=ps.RBF(0.3), **options)


def vector_model(**options):
    """Return a model with a vector of three positive lengths."""
    rng = np.random.default_rng(2)
    data = ps.observe(ps.identity, rng.standard_normal(6), at=rng.random((6, 3)))
    return ps.Model(ps.RBF([0.4, 0.6, 0.9]), data, gamma=0.1, **options)


# -- Slopes.

BOUNDS = {"kernel.bandwidth": (0.1, 2.0), "gamma": (1e-3, 1.0), "eta": (0.1, 10.0), "rate": (-1.0, 6.0)}
VECTOR = {"kernel.bandwidth": (0.1, 5.0)}
CASES = {
    "default priors": (rate_model(), BOUNDS, None),
    "flat": (rate_model(), BOUNDS, "flat"),
    "normal": (rate_model(), BOUNDS, dict.fromkeys(["rate", "eta", "gamma"], P.Normal(1.0, 0.7))),
    "log-normal of a signed one": (
        rate_model(),
        {"rate": (0.5, 6.0), "rho": (1e-3, 1.0)},
        {"rate": P.LogNormal(2, 1.5)},
    ),
    "smooth": (vector_model(), VECTOR | {"gamma": (0.01, 1.0)}, {"kernel.bandwidth": P.Smooth(0.5, 0.4, 2.0)}),
    "smooth logarithm": (vector_model(), VECTOR, {"kernel.bandwidth": P.Smooth(-0.5, 0.4, 2.0, logarithmic=True)}),
    "one element": (vector_model(), {"kernel.bandwidth[1]": (0.1, 5.0), "eta": (0.1, 10.0)}, None),
    "of the model": (
        rate_model(priors={"rate": P.Normal(1.5, 0.5), "eta": P.Normal(1.0, 0.5), "gamma": P.LogNormal(0.05, 3)}),
        BOUNDS,
        None,
    ),
    "logarithmic, of the model": (rate_model(priors={"rate": P.LogNormal(1.5, 2)}), {"rate": (0.5, 6.0)}, None),
    "smooth, of the model": (vector_model(priors={"kernel.bandwidth": P.Smooth(0.5, 0.4, 2.0)}), VECTOR, None),
    "of the model, of one element": (vector_model(priors={"kernel.bandwidth[1]": P.LogNormal(0.5, 2)}), VECTOR, None),
}


def assert_slopes(found, t, rel=2e-6):
    value, slope = found.value_and_slope(t)
    assert value == pytest.approx(found.value(t), rel=1e-12)
    h = 1e-4
    for i, unit in enumerate(np.eye(len(t))):
        at = (found.value(t + k * h * unit) for k in (-2, -1, 1, 2))
        first, second, third, fourth = at
        quotient = (first - 8 * second + 8 * third - fourth) / (12 * h)
        assert slope[i] == pytest.approx(quotient, rel=rel, abs=2e-6), found.space.names[i]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_slopes_are_those_of_the_density(case, seed):
    found = density(*CASES[case])
    assert_slopes(found, np.random.default_rng(seed).normal(0, 0.8, len(found.space.names)))


def test_slopes_with_ties_and_profiled_scores():
    tied = density(rate_model(), BOUNDS | {}, ties={"rho": lambda p: 0.1 * p["gamma"] * jnp.exp(p["rate"])})
    assert_slopes(tied, np.array([0.3, -0.4, 0.2, -0.8]))
    bounds = {name: pair for name, pair in BOUNDS.items() if name != "eta"}
    assert_slopes(density(rate_model(), bounds, score="profiled"), np.array([0.3, -0.4, 0.2]))


def test_slopes_of_priors_far_out():
    found = density(*CASES["normal"])
    for t in (np.array([-4.0, 4.0, -3.5, 3.9]), np.array([5.0, -5.0, 4.0, -4.5])):
        value, slope = found.log_prior(t)
        assert math.isfinite(value)
        for i, unit in enumerate(1e-5 * np.eye(4)):
            quotient = (found.log_prior(t + unit)[0] - found.log_prior(t - unit)[0]) / 2e-5
            assert slope[i] == pytest.approx(quotient, rel=1e-6, abs=1e-6)


def test_a_point_that_cannot_be_scored_has_no_density():
    twice = ps.Model(ps.RBF(0.3), ps.observe(ps.identity, [1.0, 2.0], at=[0.5, 0.5]), gamma=0.1)
    found = density(twice, {"eta": (0.1, 10.0), "gamma": (1e-40, 1.0)})
    low = np.array([0.0, -2.0])
    assert found.value(low) == -math.inf
    value, slope = found.value_and_slope(low)
    assert value == -math.inf
    assert not slope.any()
    assert math.isfinite(found.value(np.array([0.0, 2.0])))


# -- Integrals, against the evidence by scipy times priors by scipy, in the hyperparameters themselves.

X, Y = np.array([0.0, 0.3, 1.1]), np.array([0.5, -0.2, 1.4])


def regression(**options):
    return ps.Model(ps.RBF(0.6), ps.observe(ps.identity, Y, at=X), gamma=0.1, **options)


def evidence(eta=1.0, gamma=0.1, bandwidth=0.6):
    covariance = eta * np.exp(-0.5 * ((X[:, None] - X) / bandwidth) ** 2) + 0.5 * gamma * np.eye(3)
    return stats.multivariate_normal(np.zeros(3), covariance).pdf(Y)


def integral(found):
    """Return the integral of a density over coordinates without bounds."""
    if len(found.space.names) == 1:
        return quad(lambda t: math.exp(found.value(np.array([t]))), -9, 9, epsrel=1e-9)[0]
    grid = np.linspace(-6.5, 6.5, 79)  # the trapezoidal rule, which converges quickly for such densities
    values = np.exp([[found.value(np.array([a, b])) for b in grid] for a in grid])
    return float(values.sum()) * (grid[1] - grid[0]) ** 2


def log_normal(median, factor, low, high):
    whole = stats.lognorm(math.log(factor), scale=median)
    mass = whole.cdf(high) - whole.cdf(low)
    return lambda v: whole.pdf(v) / mass


def test_integral_with_a_uniform_prior():
    found = density(regression(), {"eta": (0.2, 20.0)}, "flat")
    expected = quad(lambda v: evidence(eta=v) / v / math.log(100.0), 0.2, 20.0, epsrel=1e-10)[0]
    assert integral(found) == pytest.approx(expected, rel=1e-7)


def test_integral_with_a_log_normal_prior_that_bounds_cut_off():
    found = density(regression(), {"eta": (0.2, 20.0)}, {"eta": P.LogNormal(5.0, 4.0)})
    prior = log_normal(5.0, 4.0, 0.2, 20.0)
    expected = quad(lambda v: evidence(eta=v) * prior(v), 0.2, 20.0, epsrel=1e-10)[0]
    assert integral(found) == pytest.approx(expected, rel=1e-7)


def test_integral_with_a_normal_prior_of_a_positive_hyperparameter():
    found = density(regression(), {"eta": (0.2, 20.0)}, {"eta": P.Normal(3.0, 2.0)})
    prior = stats.truncnorm((0.2 - 3) / 2, (20 - 3) / 2, 3.0, 2.0)
    expected = quad(lambda v: evidence(eta=v) * prior.pdf(v), 0.2, 20.0, epsrel=1e-10)[0]
    assert integral(found) == pytest.approx(expected, rel=1e-7)


def test_integral_with_a_prior_of_the_model():
    found = density(regression(priors={"eta": P.Normal(3.0, 2.0)}), {"eta": (0.2, 20.0)})
    prior = stats.norm(3.0, 2.0)  # it belongs to the model, whatever the bounds
    expected = quad(lambda v: evidence(eta=v) * prior.pdf(v), 0.2, 20.0, epsrel=1e-10)[0]
    assert integral(found) == pytest.approx(expected, rel=1e-7)


@pytest.mark.slow
def test_integral_over_two_hyperparameters():
    over = {"kernel.bandwidth": (0.05, 5.0), "gamma": (1e-3, 2.0)}
    found = density(regression(), over)
    # Half of the extent, and 2·(5% of the spread)².
    length = log_normal(0.55, 4.0, 0.05, 5.0)
    noise = log_normal(2 * (0.05 * np.std(Y)) ** 2, 100.0, 1e-3, 2.0)

    def integrand(log_gamma, log_bandwidth):
        g, b = math.exp(log_gamma), math.exp(log_bandwidth)
        return evidence(gamma=g, bandwidth=b) * length(b) * noise(g) * g * b

    expected = dblquad(integrand, *np.log([0.05, 5.0]), *np.log([1e-3, 2.0]), epsrel=1e-5)[0]
    assert integral(found) == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_integral_over_a_signed_parameter():
    slopes = ps.observe(DX + ps.parameter("rate", 1.0), [0.7], at=[0.5], gamma=0.2)
    model = ps.Model(ps.RBF(0.6), slopes)
    found = density(model, {"rate": (-4.0, 7.0)}, {"rate": P.Normal(-1.0, 2.0)})
    prior = stats.truncnorm((-4 + 1) / 2, (7 + 1) / 2, -1.0, 2.0)

    def integrand(rate):  # f' + r f has the variance 1/h² + r²
        return stats.norm(0, math.sqrt(1 / 0.6**2 + rate**2 + 0.1)).pdf(0.7) * prior.pdf(rate)

    assert integral(found) == pytest.approx(quad(integrand, -4, 7, epsrel=1e-10)[0], rel=1e-7)
    flat = density(model, {"rate": (-4.0, 7.0)})
    alone = quad(lambda r: integrand(r) / prior.pdf(r) / 11.0, -4, 7, epsrel=1e-10)[0]
    assert integral(flat) == pytest.approx(alone, rel=1e-7)


def test_a_uniform_prior_alone_is_standard_normal():
    found = density(regression(), {"eta": (0.2, 20.0), "gamma": (1e-3, 1.0)}, "flat")
    t = np.array([0.7, -1.2])
    value, slope = found.log_prior(t)
    assert value == pytest.approx(stats.norm.logpdf(t).sum(), rel=1e-12)
    np.testing.assert_allclose(slope, -t, rtol=1e-12)


# -- Coordinates.


def test_values_and_coordinates():
    found = density(rate_model(), {"rate": (-1.0, 3.0), "gamma": (1e-2, 1.0)}, "flat")
    np.testing.assert_allclose(found.values(np.zeros(2)), [1.0, 0.1])
    t = np.array([[0.3, -2.0], [1.5, 0.4]])
    levels = stats.norm.cdf(t)
    expected = np.column_stack([-1 + 4 * levels[:, 0], 10 ** (-2 + 2 * levels[:, 1])])
    np.testing.assert_allclose(found.values(t), expected)
    np.testing.assert_allclose(found.inside(found.coordinates(t[0])), t[0], atol=1e-12)
    moved = found.inside(np.array([0.0, np.log(1.0)]))  # both at a bound
    np.testing.assert_allclose(moved, [ndtri(1e-4), -ndtri(1e-4)])
    assert found.model(np.zeros(2)).parameters["rate"] == pytest.approx(1.0)


@pytest.mark.parametrize("case", [case for case in CASES if "element" not in case])
def test_the_prior_of_one_coordinate_is_its_marginal(case):
    found = density(*CASES[case])
    space = found.space
    for row, name in enumerate(space.names):
        low, high = (float(bound[row]) for bound in found.bounds)
        at = np.linspace(low, high, 7)[1:-1]
        prior = found.prior_of(row)
        if prior is None:
            np.testing.assert_allclose(found.prior_along(row, at), 1 / (high - low))
            assert found.is_uniform(row)
            continue
        assert not found.is_uniform(row)

        def mass(u, row=row, prior=prior, low=low, high=high, name=name):
            """Return the distribution function of the value at a coordinate."""
            value = math.exp(u) if space.logarithmic[row] else space.low[row] + u * (space.high[row] - space.low[row])
            t = math.log(value) if prior.logarithmic else value
            if isinstance(prior, P.Smooth):
                return stats.norm(prior.mean, prior.deviation).cdf(t)
            centre, spread = (
                (np.log(prior.median), np.log(prior.factor))
                if isinstance(prior, P.LogNormal)
                else (prior.mean, prior.deviation)
            )
            return stats.norm(np.ravel(centre)[-1] if np.ndim(centre) == 0 else centre[row], spread).cdf(t)

        quotients = [(mass(u + 1e-5) - mass(u - 1e-5)) / 2e-5 for u in at]
        np.testing.assert_allclose(found.prior_along(row, at), quotients, rtol=1e-5, atol=1e-9)


def test_priors_in_words():
    found = density(rate_model(priors={"eta": P.LogNormal(2.0, 3.0)}), BOUNDS, {"gamma": P.Normal(0.2, 0.1)})
    texts = dict(zip(found.space.names, map(found.prior_text, range(4)), strict=True))
    assert texts["eta"] == "log-normal, 2 within a factor 3"
    assert texts["gamma"] == "normal, 0.2 ± 0.1"
    assert texts["rate"] == "uniform, -1 to 6"
    assert texts["kernel.bandwidth"].startswith("log-normal, 0.4")
    flat = density(rate_model(), {"gamma": (1e-3, 1.0)}, "flat")
    assert flat.prior_text(0) == "log-uniform, 0.001 to 1"


# -- Probabilities between two limits.


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (-1.0, 2.0),
        (-np.inf, 0.3),
        (0.3, np.inf),
        (-np.inf, np.inf),
        (8.0, 9.0),
        (-9.0, -8.0),
        (37.0, 40.0),
        (200.0, 201.0),
        (-3000.0, -2999.0),
        (5.0, np.inf),
        (-50.0, 60.0),
        (1.0, 1.0 + 1e-6),
        (-1e-7, 1e-7),
        (30.0, 30.0 + 1e-6),
    ],
)
def test_log_probability_to_fifty_digits(low, high):
    with mpmath.workdps(50):
        a, b = mpmath.mpf(low), mpmath.mpf(high)
        if a > 0:
            a, b = -b, -a
        with mpmath.workdps(2200 if abs(low) > 1000 else 120):

            def ndtr(x):
                return mpmath.mpf(0) if x == -mpmath.inf else mpmath.erfc(-x / mpmath.sqrt(2)) / 2

            expected = float(mpmath.log(ndtr(b) - ndtr(a)))
    found = P.Normal(0.0, 1.0).log_probability(np.array([low]), np.array([high]))[0]
    assert found == pytest.approx(expected, rel=1e-8, abs=1e-14)


# -- Compiled.

EXACT = ps.Model(
    ps.RBF(0.6),
    ps.observe(ps.identity, np.exp(-2 * np.linspace(0, 1, 6)) + 0.01, at=np.linspace(0, 1, 6)),
    ps.impose(DX + ps.parameter("rate", 2.0), 0.0, on=ps.Box(x=(0, 1)).interior(ps.GaussLegendre(10))),
    gamma=1e-3,
)


@pytest.mark.parametrize("case", [*CASES, "tied", "exact"])
def test_compiled_densities_are_the_same(case):
    if case == "tied":
        found = density(
            rate_model(), {"gamma": (1e-3, 1.0), "rate": (0.5, 6.0)}, ties={"rho": lambda p: 3 * p["gamma"]}
        )
    elif case == "exact":
        # As after a search: gradients do not contain the change of tolerances that are not set yet.
        model = with_tolerances(EXACT)
        found = density(model, {"kernel.bandwidth": (0.3, 2.0), "gamma": (1e-4, 1.0), "rate": (-1.0, 6.0)})
    else:
        model, over, given = CASES[case]
        found = density(model, over, given)
    fast = compiled(found)
    t = 0.7 * np.random.default_rng(3).standard_normal((BATCH + 5, len(found.space.names)))  # a full batch and a part
    expected = np.array([found.value(each) for each in t])
    assert np.isfinite(expected).any()
    # An exact equation costs digits.
    rtol, atol = (1e-4, 1e-2) if case == "exact" else (1e-9, 1e-8)
    np.testing.assert_allclose(fast.log_densities(t), expected, rtol=rtol, atol=atol)
    for each in t[:3]:
        (value, slope), (other, by_t) = found.value_and_slope(each), fast.value_and_slope(each)
        assert other == pytest.approx(value, rel=rtol, abs=atol)
        np.testing.assert_allclose(
            by_t, slope, rtol=1e-3 if case == "exact" else 1e-7, atol=1e-2 if case == "exact" else 1e-6
        )


def test_compiled_densities_know_what_cannot_be_scored():
    x = np.linspace(0, 1, 40)
    model = ps.Model(ps.RBF(1.0), ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.1)
    found = density(model, {"kernel.bandwidth": (0.1, 10.0), "gamma": (1e-30, 1.0)})
    t = np.array([[1.0, -2.5], [0.0, 1.5]])
    assert found.value(t[0]) == -math.inf
    values = compiled(found).log_densities(t)
    assert values[0] == -math.inf
    assert values[1] == pytest.approx(found.value(t[1]), rel=1e-9)
    assert compiled(found).value_and_slope(t[0])[0] == -math.inf


def test_compiled_densities_reject_what_rounding_decides():
    """Under a long kernel an exact equation leaves too few digits; both say so at the same points, nearly always."""
    found = density(EXACT, {"kernel.bandwidth": (0.3, 300.0), "gamma": (1e-14, 1.0), "eta": (1e-3, 1e12)})
    t = np.random.default_rng(0).uniform(-2, 2, (3 * BATCH, 3))
    lost = np.isinf([found.value(each) for each in t])
    assert 0.1 < lost.mean() < 0.9
    assert np.mean(np.isinf(compiled(found).log_densities(t)) == lost) > 0.9


def test_compiled_functions_are_kept():
    found = density(*CASES["default priors"])
    assert compiled(found)._functions is compiled(dataclasses.replace(found, priors=dict(found.priors)))._functions


def test_what_is_not_compiled():
    over = {"gamma": (1e-3, 1.0)}
    x = np.linspace(0, 1, 600)
    large = ps.Model(ps.RBF(1.0), ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.1)
    curved = ps.Nonlinear(lambda p, u: jnp.exp(u), of=(ps.identity,))
    nonlinear = ps.Model(ps.RBF(0.5), ps.observe(curved, [2.0, 3.0], at=[0.0, 1.0], noise=0.01))
    assert compiled(density(large, over)) is None
    assert compiled(density(rate_model().replace(solver="low_rank"), over)) is None
    assert compiled(density(nonlinear, {"eta": (0.1, 10.0)})) is None


# -- Nonlinear models.


def test_values_near_a_solution_are_those_of_searches():
    """They take fewer factorisations."""
    line = ps.Box(t=(0, 3))
    (dt,) = ps.partials(line)
    swing = ps.Nonlinear(lambda p, u, u_tt, k: u_tt + k * jnp.sin(u), of=(ps.identity, dt**2), parameters={"k": 2.0})
    t = np.linspace(0, 2.5, 9)
    model = ps.Model(
        ps.RBF([0.8]),
        ps.observe(ps.identity, 1.2 * np.cos(1.35 * t), at=t),
        ps.impose(swing, 0.0, on=line.interior(ps.GaussLegendre(16))),
        gamma=1e-3,
    )
    found = density(model, {"gamma": (1e-4, 0.01), "k": (1.0, 3.0)})
    near = dataclasses.replace(found, warm_start=WarmStart(with_tolerances(model)))
    assert near._near.near  # now the origin is solved
    assert not near.warm_start.near
    count = {}
    for name, each in {"from zero": found, "near": near}.items():
        with pytest.MonkeyPatch.context() as patch:
            counted = Mock(side_effect=solve)
            patch.setattr(gauss_newton, "solve", counted)
            count[name] = [each.value(np.array(p)) for p in ((0.0, 0.1), (0.2, -0.1), (-0.3, 0.2))], counted.call_count
    np.testing.assert_allclose(count["near"][0], count["from zero"][0], atol=1e-3)
    assert count["near"][1] < 0.6 * count["from zero"][1]
