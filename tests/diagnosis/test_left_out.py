"""Statistics of left-out errors: slopes against finite differences, information and rates against simulation."""

import warnings

import numpy as np
import pytest
import scipy.stats

import pilescore as ps
from pilescore.diagnosis.left_out import (
    correlation_scores,
    draw,
    excess_kurtosis,
    neighbour_correlations,
    neighbourhoods,
    normality,
    standardised,
    variance_scores,
)

COUNT = 30
RNG = np.random.default_rng(7)
PLACES = np.sort(RNG.uniform(0, 1, COUNT))
NOISE = RNG.uniform(0.05, 0.2, COUNT)
KNOWN = np.exp(-0.5 * ((PLACES[:, None] - PLACES) / 0.3) ** 2)
B = KNOWN + np.diag(NOISE)
P = np.linalg.inv(B)


def log_density(errors, covariance):
    return scipy.stats.multivariate_normal(np.zeros(COUNT), covariance).logpdf(errors)


def scaled_errors(seed):
    """Errors whose sum of squares is the number of data, as the scores scale them."""
    errors = np.linalg.cholesky(B) @ np.random.default_rng(seed).standard_normal(COUNT)
    return errors * np.sqrt(COUNT / (errors @ P @ errors))


def test_scores_are_slopes_of_the_density_in_standard_deviations():
    errors, step = scaled_errors(1), 1e-5
    direction = PLACES - PLACES.mean()
    information = 0.5 * (NOISE * NOISE[:, None] * P**2)
    level = information.sum(axis=0)
    orthogonal = direction - level @ direction / level.sum()
    slope = (
        log_density(errors, KNOWN + np.diag(NOISE * np.exp(step * orthogonal)))
        - log_density(errors, KNOWN + np.diag(NOISE * np.exp(-step * orthogonal)))
    ) / (2 * step)
    wanted = slope / np.sqrt(orthogonal @ information @ orthogonal)
    found = variance_scores(P, (P @ errors)[None], NOISE, direction[:, None])
    assert found[0, 0] == pytest.approx(wanted, rel=1e-5)
    again = variance_scores(P, (P @ (7 * errors))[None], NOISE, direction[:, None])
    assert again[0, 0] == pytest.approx(wanted, rel=1e-5)  # the level is free


def test_a_correlation_score_is_the_slope_that_is_orthogonal_to_the_level():
    errors, step = scaled_errors(2), 1e-5
    matrices, lengths = neighbour_correlations(PLACES[:, None], np.zeros(COUNT, dtype=int), (1.0, 3.0))
    R = np.sqrt(NOISE) * np.sqrt(NOISE)[:, None] * matrices[1]
    S = np.diag(NOISE)
    shared, own = 0.5 * np.trace(P @ R @ P @ S), 0.5 * np.trace(P @ S @ P @ S)
    change = R - shared / own * S
    slope = (log_density(errors, B + step * change) - log_density(errors, B - step * change)) / (2 * step)
    information = 0.5 * np.trace(P @ change @ P @ change)
    scores, known = correlation_scores(P, (P @ errors)[None], NOISE, matrices)
    assert scores[0, 1] == pytest.approx(slope / np.sqrt(information), rel=1e-5)
    assert known[1] == pytest.approx(information, rel=1e-8)
    assert lengths[1] == pytest.approx(3 * lengths[0])


def test_scores_have_standard_deviation_one_under_the_model():
    alpha = draw(P, 4000, seed=3)
    np.testing.assert_allclose(np.cov(alpha.T), P, atol=0.12 * P.max())
    directions = np.stack([PLACES, PLACES**2], axis=1)
    matrices, _ = neighbour_correlations(PLACES[:, None], np.zeros(COUNT, dtype=int), (1.0,))
    for scores in (variance_scores(P, alpha, NOISE, directions), correlation_scores(P, alpha, NOISE, matrices)[0]):
        assert np.all(np.abs(scores.mean(axis=0)) < 0.1)
        assert np.all(np.abs(scores.std(axis=0) - 1) < 0.15)


def test_the_distance_from_normality_is_that_of_anderson_and_darling():
    sizes = standardised(P, draw(P, 3, seed=4))
    np.testing.assert_allclose(np.mean(sizes**2, axis=1), 1.0)
    for each, found in zip(sizes, normality(sizes), strict=True):
        u, i = np.sort(scipy.stats.norm.cdf(each)), np.arange(1, COUNT + 1)
        wanted = -COUNT - np.sum((2 * i - 1) * (np.log(u) + np.log(1 - u[::-1]))) / COUNT
        assert found == pytest.approx(wanted, rel=1e-8)
    wide = np.random.default_rng(5).standard_t(3, (1, 200_000))
    assert excess_kurtosis(wide)[0] > 3
    np.testing.assert_allclose(excess_kurtosis(sizes), scipy.stats.kurtosis(sizes - 0.0, axis=1), atol=0.6)


def test_neighbourhoods_are_the_nearest_points():
    points = np.column_stack([PLACES, 100 * RNG.uniform(0, 1, COUNT)])
    inside = neighbourhoods(points, 5)
    assert set(inside.sum(axis=0)) == {5.0}
    scaled = points / np.ptp(points, axis=0)
    nearest = np.argsort(((scaled - scaled[0]) ** 2).sum(axis=1))[:5]
    assert any(set(np.flatnonzero(column)) == set(nearest) for column in inside.T)
    twins = neighbour_correlations(np.zeros((4, 1)), np.zeros(4, dtype=int), (1.0,))
    assert len(twins[1]) == 0


def line(change, gamma=0.005, count=80, seed=0):
    """A wave on a line that satisfies an equation, with errors of another kind."""
    rng = np.random.default_rng(seed)
    box = ps.Box(x=(0, 1))
    (dx,) = ps.partials(box)
    x = rng.uniform(0, 1, count)
    values = np.sin(9 * x) + 0.05 * change(rng, x, rng.standard_normal(count))
    equation = ps.impose(dx**2 / 81 + ps.identity, 0.0, on=box.interior(ps.GaussLegendre(20)))
    return ps.Model(ps.RBF(0.25), ps.observe(ps.identity, values, at=x), equation, gamma=gamma, rho=1e-3)


def correlated(rng, x, errors):
    K = np.exp(-0.5 * ((x[:, None] - x) / 0.04) ** 2)
    return np.linalg.cholesky(K + 1e-9 * np.eye(len(x))) @ errors


NOISES = {
    "noise_level": lambda rng, x, errors: 10 * errors,
    "uneven_noise": lambda rng, x, errors: 5 ** (2 * x - 1) * errors,
    "correlated_noise": correlated,
    "non_gaussian_noise": lambda rng, x, errors: rng.exponential(size=len(x)) - 1,
}


@pytest.mark.parametrize("name", NOISES)
def test_planted_noise_is_found(name):
    found = ps.diagnose(line(NOISES[name]), checks=[*NOISES], progress=False)
    assert name in found, found[name]
    assert found[name].meaning.endswith(".")
    sound = ps.diagnose(line(lambda rng, x, errors: errors), checks=[*NOISES], progress=False)
    assert sound.healthy, sound


def test_a_stated_noise_is_compared_with_the_one_that_data_show():
    found = ps.diagnose(line(lambda rng, x, errors: errors, gamma=0.5), checks="noise_level")["noise_level"]
    assert found.status == "fired"
    assert found.value == pytest.approx(0.1, rel=0.3)
    assert "10 times smaller than gamma" in found.meaning or "smaller than gamma" in found.meaning
    over = {"gamma": (1e-5, 1.0)}
    chosen = ps.diagnose(line(lambda rng, x, errors: errors), over=over, checks="noise_level")["noise_level"]
    assert chosen.status == "skipped"


def test_where_the_noise_is_larger():
    found = ps.diagnose(line(NOISES["uneven_noise"]), checks="uneven_noise")["uneven_noise"]
    assert found.details["along"] == "x"
    assert found.value > 2
    local = ps.diagnose(
        line(lambda rng, x, errors: np.where(np.abs(x - 0.4) < 0.06, 6.0, 1.0) * errors), checks="uneven_noise"
    )["uneven_noise"]
    assert "the place (0." in local.details["along"]


def test_data_far_larger_than_the_prior_do_not_ask_for_other_lengths():
    x = np.linspace(0, 1, 40)
    values = 1e5 * (np.sin(6 * x) + 0.05 * np.random.default_rng(0).standard_normal(40))
    model = ps.Model(ps.RBF(0.3), ps.observe(ps.identity, values, at=x), gamma=0.005)
    found = ps.diagnose(model, checks="over_smoothed", progress=False)["over_smoothed"]
    assert "eta" in found.meaning + found.advice
    assert "shorter" not in found.meaning + found.advice
    scaled = model.replace({"eta": 1e10, "gamma": 5e7})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.errors.PrecisionWarning)
        gain = ps.pile(model).free_energy - ps.pile(scaled).free_energy  # what η and γ gain together
    assert gain > found.value
    long = ps.diagnose(scaled.replace({"kernel.bandwidth": 2.0}), checks="over_smoothed", progress=False)
    assert "shorter lengths" in long["over_smoothed"].advice
