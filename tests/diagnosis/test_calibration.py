"""Calibration: data sets drawn from a model, and the tails of distributions."""

import numpy as np
import pytest
import scipy.stats

import pilescore as ps
from pilescore.diagnosis.calibration import calibrate, tail_probability
from pilescore.diagnosis.residuals import residuals_of

LINE = ps.Box(x=(0, 1))
(DX,) = ps.partials(LINE)


def model(count=12):
    rng = np.random.default_rng(1)
    x = rng.uniform(0, 1, count)
    equation = ps.impose(DX**2 / 81 + ps.identity, 0.1, on=LINE.interior(ps.GaussLegendre(8)), rho=1e-2)
    start = ps.impose(DX, 0.3, on=LINE.face(x=0)(ps.GaussLegendre(1)), rho=1e-2)
    return ps.Model(ps.RBF(0.3), ps.observe(ps.identity, rng.standard_normal(count), at=x), [equation, start], 0.05)


def covariance(of):
    system = ps.posterior(of).system
    lower = np.tril(system.factor.matrix)
    back = np.argsort(system.rows.order)
    return (lower @ lower.T)[np.ix_(back, back)]


@pytest.mark.parametrize("given", [(), (1, 2), (2,)])
def test_draws_have_the_mean_and_covariance_of_the_model(given):
    of = model()
    found = calibrate(of, given, draws=40_000)
    C, draws = covariance(of), found.draws
    fixed = np.concatenate([np.arange(of.size)[of.rows[i]] for i in given] or [np.arange(0)]).astype(int)
    drawn = np.setdiff1d(np.arange(of.size), fixed)
    gain = C[np.ix_(drawn, fixed)] @ np.linalg.inv(C[np.ix_(fixed, fixed)])
    np.testing.assert_allclose(draws.values[fixed], np.broadcast_to(of.values[fixed, None], (len(fixed), 40_000)))
    wanted = C[np.ix_(drawn, drawn)] - gain @ C[np.ix_(fixed, drawn)]
    deviation = np.sqrt(wanted.diagonal())
    mean = (draws.values[drawn].mean(axis=1) - gain @ of.values[fixed]) / deviation
    assert np.abs(mean).max() < 5 / 200
    np.testing.assert_allclose(np.cov(draws.values[drawn]) / deviation / deviation[:, None],
                               wanted / deviation / deviation[:, None], atol=0.03)  # fmt: skip
    np.testing.assert_allclose(C @ draws.alpha, draws.values, atol=1e-6)


@pytest.mark.parametrize("given", [(), (1, 2)])
def test_the_observations_have_the_residuals_of_the_model(given):
    of = model()
    observed, residuals = calibrate(of, given, draws=2).observed, residuals_of(of)
    for name in ("alpha", "fitted", "left_out", "scaled"):
        np.testing.assert_allclose(getattr(observed, name)[:, 0], getattr(residuals, name), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(observed.values[:, 0], of.values, atol=1e-9)


LAWS = {
    "exponential": scipy.stats.expon(),
    "half a chi-squared": scipy.stats.chi2(1),
    "normal": scipy.stats.norm(),
    "largest of fifty": scipy.stats.powernorm(50),
    "chi-squared with ten degrees of freedom": scipy.stats.chi2(10),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("draws", [99, 399])
def test_tails_are_honest(law, draws):
    """Values and draws come from one distribution: p-values below 0.05, 0.01 and 0.001 are as rare as that."""
    rng = np.random.default_rng(0)
    null, values = (LAWS[law].rvs(size=(4000, n), random_state=rng) for n in (draws, 1))
    p_values = np.array([tail_probability(v[0], each) for v, each in zip(values, null, strict=True)])
    for level in (0.05, 0.01, 0.001):
        chance = 3 * (level / 4000) ** 0.5
        assert np.mean(p_values < level) < 1.35 * level + chance, level
    assert np.mean(p_values < 0.05) > 0.03
    far = LAWS[law].isf(1e-6)
    assert np.median([tail_probability(far, each) for each in null[:200]]) < 1e-3


def test_a_tail_that_cannot_be_told():
    assert tail_probability(1.0, np.ones(99)) == 1.0
    assert tail_probability(2.0, np.ones(99)) == 0.01
    assert np.isnan(tail_probability(1.0, np.full(99, np.nan)))
