"""The distribution of hyperparameters as a whole, against quadrature on grids and closed forms; errors and warnings."""

import contextlib
import dataclasses
import math
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import gammaln

import pilescore as ps

from ...models import FAR_X, FAR_Y, refused

P = ps.priors
PROBABILITIES = np.array([0.025, 0.25, 0.5, 0.75, 0.975])
X = np.linspace(0, 1, 16)
Y = np.sin(6 * X) + 0.1 * np.random.default_rng(0).standard_normal(16)
FEW_X = np.linspace(0, 1, 9)
FEW_Y = np.sin(6 * FEW_X) + 0.15 * np.random.default_rng(3).standard_normal(9)
OVER = {"kernel.bandwidth": (0.03, 10.0), "gamma": (1e-5, 3.0)}


def regression(x=X, y=Y, **options):
    return ps.Model(ps.RBF(0.4), ps.observe(ps.identity, y, at=x), **({"gamma": 0.05} | options))


def grid_of(x, y, over=OVER, count=200):
    """Return the posterior of bandwidth and γ on a grid of their logarithms: axes, weights and log evidence.

    The priors are the documented ones: half the extent within a factor of 4, and 5% of the spread within one of 10.
    """
    axes = [np.linspace(*np.log(bounds), count) for bounds in over.values()]
    bandwidth, gamma = np.exp(np.meshgrid(*axes, indexing="ij"))
    covariance = np.exp(-0.5 * (x[:, None] - x) ** 2 / bandwidth[..., None, None] ** 2)
    factor = np.linalg.cholesky(covariance + 0.5 * gamma[..., None, None] * np.eye(len(x)))
    solved = np.linalg.solve(factor, np.broadcast_to(y[:, None], (*bandwidth.shape, len(x), 1)))[..., 0]
    logs = -0.5 * (solved**2).sum(-1) - np.log(np.diagonal(factor, axis1=-2, axis2=-1)).sum(-1)
    logs -= 0.5 * len(x) * math.log(2 * math.pi)
    medians = 0.5 * np.ptp(x), 2 * (0.05 * np.std(y)) ** 2
    for at, (axis, median, factor_) in enumerate(zip(axes, medians, (4.0, 100.0), strict=True)):
        law = stats.norm(math.log(median), math.log(factor_))
        prior = law.logpdf(axis) - math.log(law.cdf(axis[-1]) - law.cdf(axis[0]))
        logs = logs + (prior[:, None] if at == 0 else prior)
    weights = np.exp(logs - logs.max())
    cell = math.prod(axis[1] - axis[0] for axis in axes)
    return axes, weights / weights.sum(), logs.max() + math.log(weights.sum() * cell)


def masses_below(quantiles, axes, weights):
    """Return the masses, on the grid, below given quantiles of each hyperparameter."""
    marginals = weights.sum(axis=1), weights.sum(axis=0)
    return np.array(
        [
            np.interp(np.log(row), axis, np.cumsum(m) - m / 2)
            for row, axis, m in zip(quantiles, axes, marginals, strict=True)
        ]
    )


@pytest.fixture(scope="module")
def best():
    return ps.minimize(regression(), OVER)


@pytest.fixture(scope="module")
def hyper(best):
    return ps.hyperposterior(best)


@contextlib.contextmanager
def warned(*parts):
    """Expect one warning of one line whose text contains all the parts."""
    with pytest.warns(ps.errors.UncertaintyWarning) as caught:
        yield
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "\n" not in text
    for part in parts:
        assert part in text, (part, text)


# -- Against quadrature on a grid.


def assert_on_grid(found, masses, deviations, evidence):
    axes, weights, log_evidence = grid_of(X, Y)
    below = masses_below(found.quantiles(PROBABILITIES).values, axes, weights)
    np.testing.assert_allclose(below, np.broadcast_to(PROBABILITIES, below.shape), atol=masses)
    for name, axis, marginal in zip(OVER, axes, (weights.sum(axis=1), weights.sum(axis=0)), strict=True):
        mean = marginal @ np.exp(axis)
        deviation = math.sqrt(marginal @ (np.exp(axis) - mean) ** 2)
        row = found.table.loc[name]
        assert abs(row["mean"] - mean) < deviations * deviation
        assert row["deviation"] == pytest.approx(deviation, rel=2 * deviations)
    if evidence is not None:
        assert found.log_evidence == pytest.approx(log_evidence, abs=evidence)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_weighted_points_agree_with_a_grid(best, seed):
    found = ps.hyperposterior(best, seed=seed)
    assert_on_grid(found, 0.02, 0.1, found.log_evidence_error)
    assert found.log_evidence_error < 0.2
    assert 70 <= found.evaluations <= 110
    assert not found.warnings


@pytest.mark.slow
def test_few_readings_with_two_optima_that_overlap():
    """Most of the mass is in a ridge of short lengths and little noise, beside the optimum that one start finds."""
    axes, weights, log_evidence = grid_of(FEW_X, FEW_Y)
    one, several = (ps.hyperposterior(regression(FEW_X, FEW_Y), OVER, starts=starts) for starts in (1, 6))
    below = masses_below(several.quantiles(PROBABILITIES).values, axes, weights)
    np.testing.assert_allclose(below, np.broadcast_to(PROBABILITIES, below.shape), atol=0.08)
    for found in (one, several):
        assert found.log_evidence == pytest.approx(log_evidence, abs=found.log_evidence_error)
    assert several.log_evidence_error < 0.5


def test_models_of_weighted_points_agree_with_a_grid(hyper):
    axes, weights, _ = grid_of(X, Y)
    for i, (axis, marginal) in enumerate(zip(axes, (weights.sum(axis=1), weights.sum(axis=0)), strict=True)):
        mean, found = marginal @ axis, np.log(hyper.points[:, i])
        deviation = math.sqrt(marginal @ (axis - mean) ** 2)
        assert hyper.weights @ found == pytest.approx(mean, abs=0.1 * deviation)
        assert math.sqrt(hyper.weights @ (found - mean) ** 2) == pytest.approx(deviation, rel=0.1)


def test_laplace_agrees_roughly_with_a_grid(best):
    found = ps.hyperposterior(best, method="laplace")
    assert_on_grid(found, 0.15, 0.5, 0.5)
    assert found.evaluations < 15
    assert math.isnan(found.log_evidence_error)
    assert math.isnan(found.effective_size)


@pytest.mark.slow
def test_chains_agree_with_a_grid(best):
    found = ps.hyperposterior(best, method="nuts", seed=1)
    assert_on_grid(found, 0.05, 0.2, None)
    assert found.log_evidence == ps.hyperposterior(best, method="laplace").log_evidence
    assert math.isnan(found.log_evidence_error)
    assert found.chains.r_hat < 1.02
    assert 200 < found.effective_size < 2200
    assert found.draws.shape == (2000, 2)
    assert not found.warnings
    data = found.to_arviz()
    assert dict(data.posterior.sizes) == {"chain": 4, "draw": 500}
    np.testing.assert_allclose(np.ravel(data.posterior["gamma"].values), found.draws[:, 1])
    assert set(data.sample_stats) == {"diverging"}
    assert data.sample_stats["diverging"].shape == (4, 500)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz
    sizes = arviz.ess(data, method="mean")
    assert found.effective_size == pytest.approx(
        min(float(sizes[name]) for name in ("kernel.bandwidth", "gamma")), rel=0.4
    )
    assert found.chains.r_hat == pytest.approx(max(float(arviz.rhat(data, method="split")[n]) for n in OVER), abs=0.02)


# -- Closed forms.


@pytest.mark.parametrize("method", ["weighted", "laplace"])
def test_a_scale_is_inverse_gamma(method):
    """Values far apart are independent, `y ~ N(0, η)`: with a uniform prior of `log η` the posterior is known."""
    model = ps.Model(ps.RBF(0.5), ps.observe(ps.identity, FAR_Y, at=FAR_X), gamma=1e-12)
    # Laplace's method does not know that an inverse gamma density is skewed.
    found = ps.hyperposterior(model, {"eta": (1e-3, 1e4)}, method=method, priors="flat", starts=1)
    half, square = 0.5 * len(FAR_Y), 0.5 * float(FAR_Y @ FAR_Y)
    exact = stats.invgamma(half, scale=square)
    below = exact.cdf(found.quantiles(PROBABILITIES).loc["eta"])
    np.testing.assert_allclose(below, PROBABILITIES, atol=0.006 if method == "weighted" else 0.06)
    expected = gammaln(half) - half * math.log(2 * math.pi * square) - math.log(math.log(1e7))
    tolerance = found.log_evidence_error if method == "weighted" else 0.05
    assert found.log_evidence == pytest.approx(expected, abs=tolerance)
    assert tolerance < 0.06
    if method == "weighted":
        assert found.table.loc["eta", "mean"] == pytest.approx(exact.mean(), rel=0.01)


@pytest.mark.slow
def test_a_coefficient_is_normal():
    """Readings `y = k f(x) + noise` where f is known: least squares, with a uniform prior of k."""
    known, noisy = FAR_Y[:6], 2.5 * FAR_Y[:6] + 0.3 * np.random.default_rng(0).standard_normal(6)
    data = [
        ps.observe(ps.identity, known, at=FAR_X[:6], gamma=1e-14),
        ps.observe(ps.parameter("k", 1.0) * ps.identity, noisy, at=FAR_X[:6], gamma=2 * 0.3**2),
    ]
    found = ps.hyperposterior(ps.Model(ps.RBF(0.5), data), {"k": (-10.0, 10.0)})
    exact = stats.norm(known @ noisy / (known @ known), 0.3 / math.sqrt(known @ known))
    np.testing.assert_allclose(exact.cdf(found.quantiles(PROBABILITIES).loc["k"]), PROBABILITIES, atol=0.006)
    residual = noisy - exact.mean() * known
    expected = stats.norm(0, 0.3).logpdf(residual).sum() + math.log(exact.std() * math.sqrt(2 * math.pi) / 20)
    expected += stats.norm.logpdf(known).sum()
    assert found.log_evidence == pytest.approx(expected, abs=found.log_evidence_error)
    prior = P.Normal(2.0, 0.05)
    both = ps.hyperposterior(found.minimum, priors={"k": prior})
    precision = exact.std() ** -2 + 0.05**-2
    mean = (exact.mean() * exact.std() ** -2 + 2.0 * 0.05**-2) / precision
    law = stats.norm(mean, precision**-0.5)
    np.testing.assert_allclose(law.cdf(both.quantiles(PROBABILITIES).loc["k"]), PROBABILITIES, atol=0.02)


def test_a_profiled_scale_is_among_the_hyperparameters():
    """The distribution is that of a search over η too: it does not depend on how the minimum was found."""
    over = {"kernel.bandwidth": (0.05, 5.0), "gamma": (1e-3, 100.0)}  # at η = 100
    best = ps.minimize(regression(eta=100.0, gamma=0.1), over, score="profiled")
    found = ps.hyperposterior(best)
    assert found.names == (*over, "eta")
    bounds = {name: (found.density.space.low[i], found.density.space.high[i]) for i, name in enumerate(found.names)}
    other = ps.hyperposterior(ps.minimize(regression(gamma=best.values["gamma"]), bounds))
    assert found.log_evidence == pytest.approx(other.log_evidence, abs=0.1)
    one, two = (np.log(each.quantiles([0.05, 0.5, 0.95])) for each in (found, other))
    spread = np.log(other.quantiles([0.84]).to_numpy() / other.quantiles([0.16]).to_numpy()) / 2
    np.testing.assert_array_less(np.abs(one - two) / spread, 0.3)
    here = found.weighted_models[0]
    assert here.model.parameters["gamma"] == here.values["gamma"]
    assert here.values["eta"] == pytest.approx(float(best.model.eta), rel=3.0)


def test_temperatures_follow_a_profiled_scale():
    """A temperature that was not searched keeps its ratio to η; a tie is one between such ratios."""
    line = ps.Box(x=(0, 1))
    (dx,) = ps.partials(line)
    physics = ps.impose(dx**2 + 36.0, 0.0, on=line.interior(ps.GaussLegendre(12)))
    model = ps.Model(ps.RBF(0.4), ps.observe(ps.identity, Y, at=X), physics, gamma=0.05, rho=0.5, eta=10.0)
    over = {"kernel.bandwidth": (0.1, 2.0)}
    best = ps.minimize(model, over, score="profiled", ties={"gamma": lambda p: 0.05 * p["kernel.bandwidth"] / 0.4})
    found = ps.hyperposterior(best)
    for each in found.weighted_models[:5]:
        scale = each.values["eta"] / 10.0
        assert each.model.parameters["rho"] == pytest.approx(0.5 * scale)
        assert each.values["gamma"] == pytest.approx(0.125 * each.values["kernel.bandwidth"] * scale)


@pytest.mark.parametrize("unit", [1e-4, 1e3])
@pytest.mark.parametrize("kind", ["variance", "scale", "profiled"])
def test_the_unit_of_readings_does_not_matter(kind, unit):
    def of(unit):
        kernel = (unit**2 if kind != "profiled" else 1.0) * ps.RBF(0.4)
        model = ps.Model(kernel, ps.observe(ps.identity, unit * FEW_Y, at=FEW_X), gamma=0.02 * unit**2)
        variance = next(name for name, role in model.roles.items() if role == "variance")
        over = {next(name for name, role in model.roles.items() if role == "length"): (0.05, 5.0)}
        if kind == "variance":
            over[variance] = (1e-3 * unit**2, 1e3 * unit**2)
        elif kind == "scale":
            over["eta"] = (1e-3, 1e3)
        else:
            over["gamma"] = (1e-6, 1.0)
            model = model.replace(gamma=0.02)
        found = ps.hyperposterior(ps.minimize(model, over, score="profiled" if kind == "profiled" else "auto"))
        return found.log_evidence + len(FEW_X) * math.log(unit), ps.posterior(found).std([1.3])[0] / unit

    for value, expected in zip(of(unit), of(1.0), strict=True):
        assert value == pytest.approx(expected, abs=0.1)


def test_a_tied_parameter_moves_in_operators():
    """`2 rate f` is twice the rate times f in every model of the mixture."""
    line = ps.Box(t=(0, 3))
    (dt,) = ps.partials(line)
    t = np.linspace(0, 3, 8)
    readings = np.exp(-0.7 * t) + 0.05 * np.random.default_rng(0).standard_normal(8)
    twice = ps.parameter("twice", 2.0) * ps.identity
    data = [ps.observe(ps.identity, readings, at=t, noise=0.05), ps.observe(twice, [0.7], at=[1.0], noise=0.1)]
    physics = ps.impose(dt + ps.parameter("rate", 1.0), 0.0, on=line.interior(ps.GaussLegendre(9)), noise=0.01)
    model = ps.Model(ps.RBF(2.0), data, physics)
    best = ps.minimize(model, {"rate": (0.1, 10)}, ties={"twice": lambda p: 2 * p["rate"]})
    post = ps.posterior(ps.hyperposterior(best))
    each = post.each(lambda one, part: 2 * part.values["rate"] * one.mean([1.0]))
    np.testing.assert_allclose(post.mean([1.0], twice), post.weights @ np.array(each), rtol=1e-10)
    np.testing.assert_allclose(post.values["twice"], 2 * post.values["rate"], rtol=1e-12)


# -- Two optima, bounds, flat directions.


def two_optima(seed):
    """Return readings that a short and a long kernel explain about as well, the second by more noise."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, 6, 9))
    return x, 0.9 * np.sin(2.2 * x) + 0.35 * rng.standard_normal(9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [55, 149])
def test_two_optima_have_their_masses(seed):
    x, y = two_optima(seed)
    over = {"kernel.bandwidth": (0.1, 30.0), "gamma": (1e-4, 4.0)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.errors.UncertaintyWarning)  # of bounds, near which both optima reach
        found = ps.hyperposterior(regression(x, y), over, starts=8)
    axes, weights, log_evidence = grid_of(x, y, over)
    long = np.exp(axes[0]) > 1.2
    assert len(found.optima) == 2
    assert found.optima.sum() == pytest.approx(1.0)
    expected = weights[long].sum()
    assert 0.2 < expected < 0.8
    assert found.draw_weights[found.draws[:, 0] > 1.2].sum() == pytest.approx(expected, abs=0.1)
    assert found.weights[found.points[:, 0] > 1.2].sum() == pytest.approx(expected, abs=0.1)
    assert found.log_evidence == pytest.approx(log_evidence, abs=found.log_evidence_error)
    assert "2 optima with probabilities" in repr(found)


def test_a_second_optimum_that_does_not_matter_is_left_out():
    found = ps.hyperposterior(regression(), OVER, starts=6)
    np.testing.assert_allclose(found.optima, [1.0])
    assert "optima" not in repr(found)


def test_a_bound_that_cuts_a_distribution_off():
    bounds = {"kernel.bandwidth": (0.03, 10.0), "gamma": (1e-5, 0.004)}
    with warned("the upper bound of gamma, 0.004, cuts its distribution off. Widen it"):
        found = ps.hyperposterior(regression(gamma=0.001), bounds, priors={"gamma": "flat"}, starts=1)
    assert found.minimum.at_bounds == {"gamma": "upper"}
    assert found.draws[:, 1].max() <= 0.004


def test_a_distribution_beside_a_bound():
    bounds = {"kernel.bandwidth": (0.03, 10.0), "gamma": (1e-5, 0.02)}
    with warned("the upper bound of gamma, 0.02, cuts its distribution off. Widen it"):
        found = ps.hyperposterior(regression(gamma=0.001), bounds, priors={"gamma": "flat"}, starts=1)
    # Uniform in the logarithm: against a grid, without the prior of the noise.
    axes, weights, _ = grid_of(X, Y, bounds)
    noise = stats.norm(math.log(2 * (0.05 * np.std(Y)) ** 2), math.log(100.0)).pdf(axes[1])
    weights = weights / noise
    below = masses_below(found.quantiles(PROBABILITIES).values, axes, weights / weights.sum())
    np.testing.assert_allclose(below, np.broadcast_to(PROBABILITIES, below.shape), atol=0.04)


def test_a_hyperparameter_that_the_data_do_not_determine():
    model = ps.Model(ps.RBF(0.5), ps.observe(ps.identity, FAR_Y, at=FAR_X), gamma=0.1)
    with warned("the data do not determine kernel.bandwidth", "0.01 to 10", "Give it a prior, fix it, or add data"):
        found = ps.hyperposterior(model, {"kernel.bandwidth": (0.01, 10.0), "eta": (0.1, 100.0)}, priors="flat")
    levels = np.log(found.quantiles(PROBABILITIES).loc["kernel.bandwidth"] / 0.01) / math.log(1000)
    np.testing.assert_allclose(levels, PROBABILITIES, atol=0.02)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ps.hyperposterior(found.minimum)  # a prior by role: it is what it is


# -- Bad input.


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"method": "mcmc"}, ["method", "'weighted', 'laplace' or 'nuts'", "mcmc"]),
        ({"seed": -1}, ["seed"]),
        ({"seed": 0.5}, ["seed"]),
        ({"over": OVER}, ["over", "which has its own"]),
        ({"priors": "normal"}, ["priors", "'flat'", "normal"]),
        ({"priors": [P.Normal(0, 1)]}, ["priors", "mapping"]),
        ({"priors": {"gama": "flat"}}, ["'gama' was not searched", "Did you mean 'gamma'?"]),
    ],
)
def test_bad_options(best, as_a_user, options, parts):
    with refused(*parts):
        ps.hyperposterior(best, **options)


@pytest.mark.parametrize("over", [None, {}, ["gamma"]])
def test_a_model_needs_bounds(as_a_user, over):
    with refused("over", "bounds (low, high) by name"):
        ps.hyperposterior(regression(), over)


def test_neither_a_minimum_nor_a_model(as_a_user):
    with refused("found", "ps.minimize", "ps.Model"):
        ps.hyperposterior(3.0)


def test_a_minimum_that_was_changed(best):
    with refused("found", "this one was changed"):
        ps.hyperposterior(dataclasses.replace(best, end=None))


def test_a_minimum_that_was_interrupted(best):
    with refused("found", "interrupted"):
        ps.hyperposterior(dataclasses.replace(best, status="interrupted"))


def test_interrupted_while_the_minimum_is_searched(monkeypatch, best):
    interrupted = dataclasses.replace(best, status="interrupted")
    compute = sys.modules["pilescore.search.uncertainty.compute"]
    monkeypatch.setattr(compute, "minimize", lambda *_, **__: interrupted)
    with pytest.raises(KeyboardInterrupt):
        ps.hyperposterior(regression(), OVER)


def test_a_minimum_that_cannot_be_scored_again(best):
    end = best.end
    model = end.space.model.replace(data=ps.observe(ps.identity, [1.0, 2.0], at=[0.5, 0.5]))
    low = end.space.encode(np.array([0.4, 1e-5]))
    space = dataclasses.replace(end.space, model=model, low=np.array([0.03, 1e-40]))
    broken = dataclasses.replace(end, space=space, u=np.array([low[0], np.log(1e-38)]))
    with refused("edge of what can be scored", "more noise", error=ps.errors.PilescoreError):
        ps.hyperposterior(dataclasses.replace(best, end=broken, curvature=None))


def test_without_nutpie(monkeypatch, best):
    monkeypatch.setitem(sys.modules, "nutpie", None)
    with refused("'nuts' needs nutpie", "pip install 'pilescore[bayes]'"):
        ps.hyperposterior(best, method="nuts")


def test_without_arviz(monkeypatch, hyper):
    monkeypatch.setitem(sys.modules, "arviz", None)
    with refused("ArviZ", "pip install 'pilescore[bayes]'"):
        hyper.to_arviz()


# -- Properties.


def test_results_are_reproducible_and_differ_by_seed(best, hyper):
    again, other = ps.hyperposterior(best), ps.hyperposterior(best, seed=1)
    np.testing.assert_array_equal(again.points, hyper.points)
    np.testing.assert_array_equal(again.draws, hyper.draws)
    assert not np.isin(other.points, hyper.points).any()


@pytest.mark.slow
@settings(max_examples=3)
@given(st.floats(0.01, 100.0))
def test_the_scale_of_readings(c):
    """Readings times c: η and γ grow by c², lengths stay, and the density of readings falls."""
    names = ["kernel.bandwidth", "gamma", "eta"]
    found = []
    for factor in (1.0, c):
        model = regression(y=factor * Y, gamma=0.05 * factor**2, eta=factor**2)
        over = {
            "kernel.bandwidth": (0.03, 10.0),
            "gamma": (1e-5 * factor**2, 3 * factor**2),
            "eta": (0.01 * factor**2, 100 * factor**2),
        }
        found.append(ps.hyperposterior(model, over, starts=1))
    one, scaled = (each.quantiles(PROBABILITIES).loc[names].values for each in found)
    np.testing.assert_allclose(scaled / one, np.outer([1.0, c**2, c**2], np.ones(5)), rtol=2e-3)
    assert found[1].log_evidence - found[0].log_evidence == pytest.approx(-16 * math.log(c), abs=5e-3)


@pytest.mark.slow
def test_more_data_narrow_the_distribution(hyper):
    x = np.linspace(0, 1, 40)
    y = np.sin(6 * x) + 0.15 * np.random.default_rng(3).standard_normal(40)
    many = ps.hyperposterior(regression(x, y), OVER, starts=1)
    few = hyper.quantiles([0.025, 0.975]).loc["gamma"]
    more = many.quantiles([0.025, 0.975]).loc["gamma"]
    assert np.diff(np.log(more))[0] < 0.6 * np.diff(np.log(few))[0]
    assert more.iloc[0] < 2 * 0.15**2 < more.iloc[1]


def _growth(_, u, slope, rate, capacity):
    return slope - rate * u * (1 - u / capacity)


@pytest.mark.slow
def test_logistic_growth():
    """A nonlinear equation with two unknown coefficients and unknown noise."""
    line = ps.Box(t=(0, 6))
    (dt,) = ps.partials(line)
    t = np.linspace(0.2, 4.0, 10)

    def truth(at):
        return 2.0 / (1 + 9.0 * np.exp(-1.4 * at))

    u = truth(t) + 0.05 * np.random.default_rng(0).standard_normal(10)
    growth = ps.Nonlinear(_growth, (ps.identity, dt), parameters={"rate": 1.0, "capacity": 1.5})
    physics = ps.impose(growth, 0.0, on=line.interior(ps.GaussLegendre(16)), noise=0.01)
    model = ps.Model(ps.RBF(1.5), ps.observe(ps.identity, u, at=t), physics, gamma=0.01)
    best = ps.minimize(model, {"rate": (0.2, 5.0), "capacity": (0.5, 6.0), "gamma": (1e-4, 0.5)})
    found = ps.hyperposterior(best)
    interval = found.quantiles([0.025, 0.975])
    for name, exact in (("rate", 1.4), ("capacity", 2.0), ("gamma", 2 * 0.05**2)):
        low, high = interval.loc[name]
        assert low < exact < high, name
        assert high / low < 10
    averaged, plain = ps.posterior(found), ps.posterior(best.model)
    later = np.array([4.5, 5.0, 5.5, 6.0])
    assert np.all(averaged.std(later) > plain.std(later))
    assert np.all(np.abs(averaged.mean(later) - truth(later)) < 3 * averaged.std(later))


def test_priors_are_checked_before_the_search(monkeypatch):
    monkeypatch.setattr("pilescore.search.uncertainty.compute.minimize", lambda *a, **k: pytest.fail("searched"))
    with refused("priors: 'gama' was not searched", "Did you mean 'gamma'?"):
        ps.hyperposterior(regression(), OVER, priors={"gama": "flat"})
    with refused("priors['gamma']", "a prior such as", "3"):
        ps.hyperposterior(regression(), OVER, priors={"gamma": 3})
    with refused("priors['gamma']", "between the bounds, 1e-05 to 3", "it has"):
        ps.hyperposterior(regression(), OVER, priors={"gamma": ps.priors.LogNormal(1e3, 1.5)})


@pytest.mark.slow
@pytest.mark.parametrize("method", ["laplace", "nuts"])
def test_a_method_that_starts_from_one_optimum_says_so(method):
    x, y = two_optima(55)
    best = ps.minimize(regression(x, y), {"kernel.bandwidth": (0.1, 30.0), "gamma": (1e-4, 4.0)}, starts=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.errors.UncertaintyWarning)
        found = ps.hyperposterior(best, method=method)
    assert "there are 2 optima" in found.warnings[0]
    assert "method='weighted'" in found.warnings[0]


@pytest.mark.slow
def test_a_bound_that_nodes_make_is_said():
    line = ps.Box(t=(0, 3))
    (dt,) = ps.partials(line)
    t = np.linspace(0, 3, 8)
    readings = np.exp(-0.7 * t) + 0.05 * np.random.default_rng(1).standard_normal(8)
    over = {"rate": (0.1, 10), "gamma": (1e-5, 1), "kernel.bandwidth": (0.05, 10), "eta": (0.01, 100)}
    told = []
    for nodes in (7, 40):
        physics = ps.impose(dt + ps.parameter("rate", 1.0), 0.0, on=line.interior(ps.GaussLegendre(nodes)))
        model = ps.Model(ps.RBF(1.0), ps.observe(ps.identity, readings, at=t), physics, gamma=0.005)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ps.errors.UncertaintyWarning)
            told.append(ps.hyperposterior(ps.minimize(model, over)).warnings)
    assert "more nodes" in told[0][0]
    assert "kernel.bandwidth" in told[0][0]
    assert not told[1]


def test_a_bound_that_cuts_off_what_data_want_is_said_with_a_prior_too():
    """The scale that the readings need is beyond the bound; a length that they do not know is not worth a word."""
    over = {"kernel.bandwidth": (0.05, 5.0), "eta": (1e-3, 0.05)}
    with pytest.warns(ps.errors.UncertaintyWarning, match="the upper bound of eta, 0.05, cuts its distribution off"):
        found = ps.hyperposterior(ps.minimize(regression(gamma=0.02, eta=0.04), over))
    assert len(found.warnings) == 1
    one = ps.Model(ps.RBF(0.4), ps.observe(ps.identity, [1.0], at=[0.0], noise=0.1))
    assert ps.hyperposterior(ps.minimize(one, {"kernel.bandwidth": (0.3, 0.8)})).warnings == ()


def test_an_interrupted_sampler_returns_nothing(monkeypatch, best):
    """After Ctrl-C nutpie returns the draws that it has, filled up with NaN."""
    from nutpie import sample

    def interrupted(*arguments, **options):
        found = sample(*arguments, **options)
        found.posterior["z"].values[:, 300:] = np.nan
        return found

    monkeypatch.setattr("nutpie.sample", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ps.hyperposterior(best, method="nuts")
