"""Weighted points for densities with known answers: few points with a smooth function, and many without."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaln, ndtr

from pilescore.errors import PilescoreError
from pilescore.search.uncertainty.importance import ENOUGH, importance_points
from pilescore.search.uncertainty.peak import LEAST_CURVATURE, Peak
from pilescore.search.uncertainty.proposal import moments
from pilescore.search.uncertainty.weighted import balanced, weighted_points


def many_points(log_density, peaks, seed):
    """Return many points for a density of one point."""
    return importance_points(lambda t: np.array([log_density(each) for each in t]), peaks, seed)


both = pytest.mark.parametrize("method", [weighted_points, many_points])

RATE = 0.97
"""In at least this fraction of random cases the stated error of the log integral is not below the true one."""


@dataclasses.dataclass(frozen=True)
class Known:
    """A density in t with its modes, its log integral, and independent draws from it."""

    log_density: Callable
    modes: list
    log_integral: float
    draw: Callable

    @property
    def peaks(self):
        """The modes with their curvature by differences, the heaviest first."""
        found = []
        for mode in self.modes:
            t, h = np.asarray(mode, dtype=float), 1e-3
            steps = h * np.eye(len(t))
            second = [
                [
                    self.log_density(t + a - b)
                    + self.log_density(t - a + b)
                    - self.log_density(t + a + b)
                    - self.log_density(t - a - b)
                    for a in steps
                ]
                for b in steps
            ]
            eigenvalues, vectors = np.linalg.eigh(np.array(second) / (4 * h**2))
            precision = vectors * np.maximum(eigenvalues, LEAST_CURVATURE) @ vectors.T
            found.append(Peak(t, float(self.log_density(t)), precision, 0))
        return sorted(found, key=lambda peak: -peak.log_integral)


def normal(dimension, seed=0, level=0.0):
    rng = np.random.default_rng(seed)
    root = 0.6 * rng.standard_normal((dimension, dimension)) + 0.5 * np.eye(dimension)
    law = stats.multivariate_normal(rng.normal(0, 0.5, dimension), root @ root.T + 0.02 * np.eye(dimension))
    return Known(
        lambda t: float(law.logpdf(t)) + level,
        [law.mean],
        level,
        lambda n, rng: law.rvs(n, random_state=rng).reshape(n, -1),
    )


def valley(correlation):
    covariance = np.array([[1.0, correlation], [correlation, 1.0]])
    law = stats.multivariate_normal([0.2, -0.1], covariance)
    return Known(lambda t: float(law.logpdf(t)), [law.mean], 0.0, lambda n, rng: law.rvs(n, random_state=rng))


def log_gamma(shapes, seed=0):
    """Return the density of oblique sums of logarithms of gamma numbers, which are skewed to the left."""
    shapes = np.asarray(shapes, dtype=float)
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((len(shapes), len(shapes))) + 1.5 * np.eye(len(shapes))
    inverse, logdet = np.linalg.inv(matrix), np.linalg.slogdet(matrix)[1]

    def log_density(t):
        z = inverse @ t
        return float(np.sum(shapes * z - np.exp(np.minimum(z, 700.0)) - gammaln(shapes)) - logdet)

    return Known(
        log_density,
        [matrix @ np.log(shapes)],
        0.0,
        lambda n, rng: np.log(rng.gamma(shapes, size=(n, len(shapes)))) @ matrix.T,
    )


def cut_off(slopes):
    """Return the density whose likelihood is exponential between bounds; slope zero is uniform there."""
    slopes = np.where(np.asarray(slopes, dtype=float) == 0, 1e-9, slopes)
    low = slopes > 0
    modes = stats.norm.ppf(np.where(low, 1 / (2 + slopes), 1 - 1 / (2 - slopes)))

    def draw(n, rng):
        u = rng.random((n, len(slopes)))
        return stats.norm.ppf(np.log1p(u * np.expm1(-slopes)) / -slopes)

    return Known(
        lambda t: float(np.sum(stats.norm.logpdf(t) - slopes * ndtr(t))),
        [modes],
        float(np.sum(np.log(-np.expm1(-slopes) / slopes))),
        draw,
    )


def two(share, distance, first, second, dimension=2):
    """Return two normal densities with these deviations, the first with this mass."""
    away = np.zeros(dimension)
    away[0] = distance
    laws = [stats.multivariate_normal(m, s**2 * np.eye(dimension)) for m, s in ((0 * away, first), (away, second))]

    def draw(n, rng):
        mine = rng.random(n)[:, None] < share
        noise = rng.standard_normal((n, dimension))
        return np.where(mine, first * noise, away + second * noise)

    return Known(
        lambda t: float(np.logaddexp(math.log(share) + laws[0].logpdf(t), math.log(1 - share) + laws[1].logpdf(t))),
        [0 * away, away],
        0.0,
        draw,
    )


def banana(bend, width):
    """Return the density of `(x, bend (x² − 1) + width y)`, with x and y standard normal."""

    def draw(n, rng):
        x, y = rng.standard_normal((2, n))
        return np.column_stack([x, bend * (x**2 - 1) + width * y])

    def log_density(t):
        return float(stats.norm.logpdf(t[0]) + stats.norm.logpdf(t[1], bend * (t[0] ** 2 - 1), width))

    return Known(log_density, [[0.0, -bend]], 0.0, draw)


def half(cut, dimension):
    """Return the standard normal density of which points beyond a cut cannot be scored."""

    def log_density(t):
        return float(stats.norm.logpdf(t).sum()) if t[0] < cut else -math.inf

    def draw(n, rng):
        first = stats.truncnorm(-np.inf, cut).rvs(n, random_state=rng)
        return np.column_stack([first, rng.standard_normal((n, dimension - 1))])

    mode = np.zeros(dimension)
    mode[0] = min(cut - 0.01, 0.0)
    return Known(log_density, [mode], float(stats.norm.logcdf(cut)), draw)


CASES = {
    **{f"normal in {p}": normal(p, seed=p, level=-3.0) for p in range(1, 7)},
    "narrow valley": valley(0.9999),
    "skewed": log_gamma([0.7]),
    "skewed in 3": log_gamma([3.0, 5.0, 8.0]),
    "uniform": cut_off([0.0]),
    "at bounds": cut_off([20.0, -200.0, 0.0]),
    "two": two(0.3, 7.0, 1.0, 0.5),
    "two far apart": two(0.85, 40.0, 1.0, 2.0, dimension=1),
    "gentle banana": banana(0.3, 0.7),
}
COUNT = 40_000


def assert_moments(t, weights, drawn, mean, deviation):
    """Compare means, in deviations, and deviations, as a ratio."""
    found, spread = moments(t, weights)
    expected = drawn.std(axis=0)
    np.testing.assert_allclose((found - drawn.mean(axis=0)) / expected, 0.0, atol=mean)
    np.testing.assert_allclose(np.sqrt(spread.diagonal()) / expected, 1.0, atol=deviation)


def masses_below(sample, weights, drawn, probabilities):
    """Return the true mass below each quantile of a weighted sample."""
    found = []
    for column, true in zip(sample.T, drawn.T, strict=True):
        order = np.argsort(column)
        quantiles = np.interp(probabilities, np.cumsum(weights[order]), column[order])
        found.append([np.mean(true < q) for q in quantiles])
    return np.array(found)


@both
@pytest.mark.parametrize("case", CASES)
def test_known_densities(case, method):
    known = CASES[case]
    found = method(known.log_density, known.peaks, seed=0)
    drawn = known.draw(COUNT, np.random.default_rng(0))
    probabilities = np.array([0.025, 0.25, 0.5, 0.75, 0.975])
    assert abs(found.log_integral - known.log_integral) <= found.log_integral_error < 0.3
    for weights in (found.weights, found.sample_weights):
        assert weights.min() >= 0
        assert weights.sum() == pytest.approx(1.0)
    within = 0.07 if method is weighted_points else 0.15  # of 200 effective points: two deviations
    assert_moments(found.sample, found.sample_weights, drawn, within, within)
    assert_moments(found.t, found.weights, drawn, within + 0.02, within + 0.02)
    masses = masses_below(found.sample, found.sample_weights, drawn, probabilities)
    atol = 0.025 if method is weighted_points else 0.08
    np.testing.assert_allclose(masses, np.broadcast_to(probabilities, masses.shape), atol=atol)


def test_a_strongly_skewed_density_in_three_dimensions():
    """Eighty points do not suffice for a smooth function here; the stated error says so."""
    known = log_gamma([1.0, 2.0, 4.0])
    for seed in range(3):
        found = weighted_points(known.log_density, known.peaks, seed)
        assert abs(found.log_integral) <= found.log_integral_error
        assert 0.1 < found.log_integral_error < 0.8
        drawn = known.draw(COUNT, np.random.default_rng(0))
        assert_moments(found.sample, found.sample_weights, drawn, 0.3, 0.25)


@both
@pytest.mark.parametrize("share", [0.05, 0.4, 0.9])
def test_two_optima_have_their_masses(share, method):
    known = two(share, 8.0, 0.7, 1.1)
    peaks = known.peaks
    found = method(known.log_density, peaks, seed=1)
    near_first = [np.linalg.norm(peak.t) < 1 for peak in peaks]
    expected = [share if first else 1 - share for first in near_first]
    atol = 0.01 if method is weighted_points else 0.06
    np.testing.assert_allclose(found.shares, expected, atol=atol)
    assert found.sample_weights[found.sample[:, 0] < 4].sum() == pytest.approx(share, abs=atol)
    assert found.weights[found.t[:, 0] < 4].sum() == pytest.approx(share, abs=atol + 0.01)


def random_case(seed):
    rng = np.random.default_rng(1000 + seed)
    kind = seed % 6
    if kind == 0:
        return normal(int(rng.integers(1, 7)), seed)
    if kind == 1:
        return log_gamma(rng.uniform(0.6, 4.0, int(rng.integers(1, 4))), seed)
    if kind == 2:
        return cut_off(rng.uniform(-30, 30, int(rng.integers(1, 4))))
    if kind == 3:
        return two(*rng.uniform([0.1, 5, 0.3, 0.3], [0.9, 9, 1.2, 1.2]), dimension=int(rng.integers(1, 4)))
    if kind == 4:
        return valley(1 - 10 ** rng.uniform(-5, -1))
    return banana(*rng.uniform([0.1, 0.5], [0.5, 1.0]))


@pytest.mark.slow
@both
def test_stated_errors_are_not_below_true_ones(method):
    errors, stated = [], []
    for seed in range(60):
        known = random_case(seed)
        found = method(known.log_density, known.peaks, seed)
        errors.append(abs(found.log_integral - known.log_integral))
        stated.append(found.log_integral_error)
    assert np.mean(np.array(errors) <= stated) >= RATE
    assert np.median(stated) < (0.06 if method is weighted_points else 0.35)  # and they say something


@pytest.mark.slow
@pytest.mark.parametrize("bend", [0.6, 0.8])
def test_a_strong_banana_is_roughly_known(bend):
    """Eighty points do not see all of its arms; what is not seen is less than a fifth."""
    known = banana(bend, 0.6)
    for seed in range(3):
        found = weighted_points(known.log_density, known.peaks, seed)
        assert -0.2 < found.log_integral < 0.05
        assert abs(found.log_integral) < 3 * found.log_integral_error


@pytest.mark.parametrize("dimension", [1, 2])
@pytest.mark.parametrize("cut", [1.0, 0.0])
@both
def test_points_that_cannot_be_scored(dimension, cut, method):
    known = half(cut, dimension)
    found = method(known.log_density, known.peaks, seed=0)
    assert 0 < found.failed < 0.5 * found.count
    assert abs(found.log_integral - known.log_integral) <= found.log_integral_error < 0.6
    assert_moments(found.sample, found.sample_weights, known.draw(COUNT, np.random.default_rng(0)), 0.15, 0.15)
    assert found.weights[found.t[:, 0] >= cut].sum() == 0.0
    assert found.sample_weights[found.sample[:, 0] >= cut + 0.2].sum() < 0.02


@both
def test_points_are_reproducible_and_differ_by_seed(method):
    known = normal(2)
    one, again, other = (method(known.log_density, known.peaks, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.t, again.t)
    np.testing.assert_array_equal(one.weights, again.weights)
    assert not np.isin(one.t, other.t).any()


@both
def test_a_level_of_the_density_only_shifts_the_integral(method):
    low, high = (normal(2, level=level) for level in (0.0, 1234.5))
    one, other = (method(known.log_density, known.peaks, seed=0) for known in (low, high))
    np.testing.assert_allclose(one.t, other.t, atol=1e-6)
    assert other.log_integral - one.log_integral == pytest.approx(1234.5, abs=1e-6)


@both
def test_a_peak_of_the_wrong_width_is_mended(method):
    known = normal(2, seed=2)
    (peak,) = known.peaks
    for factor in (0.2, 5.0):
        wrong = dataclasses.replace(peak, precision=factor * peak.precision)
        found = method(known.log_density, [wrong], seed=0)
        assert abs(found.log_integral) <= found.log_integral_error
        assert_moments(found.sample, found.sample_weights, known.draw(COUNT, np.random.default_rng(0)), 0.12, 0.12)


@both
def test_a_missed_peak_beside_the_known_one(method):
    """A second peak two deviations away, which the curvature of the first does not show."""
    known = two(0.6, 3.0, 1.0, 0.6)
    found = method(known.log_density, known.peaks[:1], seed=0)
    assert abs(found.log_integral) <= found.log_integral_error
    assert_moments(found.sample, found.sample_weights, known.draw(COUNT, np.random.default_rng(0)), 0.15, 0.15)


def test_a_ragged_density_is_left_to_importance_weights():
    """Bumps of a nat, much shorter than the distance between points, are no smooth function."""

    def log_density(t):
        return float(stats.norm.logpdf(t).sum() + 1.5 * np.sin(40 * t[0]) * np.cos(35 * t[1]))

    found = weighted_points(log_density, [Peak(np.zeros(2), -1.8, np.eye(2), 0)], seed=0)
    assert found.sample is found.t
    grid = np.linspace(-6, 6, 3001)
    x, y = np.meshgrid(grid, grid, indexing="ij")
    exact = np.log(
        np.sum(np.exp(-0.5 * (x**2 + y**2) + 1.5 * np.sin(40 * x) * np.cos(35 * y))) * (grid[1] - grid[0]) ** 2
    )
    assert abs(found.log_integral - (exact - np.log(2 * np.pi))) <= found.log_integral_error


def test_balanced_weights_have_the_moments_of_the_sample():
    rng = np.random.default_rng(5)
    t, sample = rng.standard_normal((60, 2)), rng.standard_normal((3000, 2)) * [0.8, 1.1] + [0.2, -0.1]
    weights = balanced(t, np.full(60, 1 / 60), sample, np.full(3000, 1 / 3000))
    assert weights.min() > 0
    assert weights.sum() == pytest.approx(1.0)
    (mean, covariance), (expected, spread) = moments(t, weights), moments(sample, np.full(3000, 1 / 3000))
    np.testing.assert_allclose(mean, expected, atol=0.01)
    np.testing.assert_allclose(covariance, spread, atol=0.02)


def test_weights_that_arebalanced_already_are_kept():
    rng = np.random.default_rng(6)
    t, weights = rng.standard_normal((50, 3)), rng.random(50)
    weights /= weights.sum()
    np.testing.assert_allclose(balanced(t, weights, t, weights), weights, rtol=1e-4)


def test_without_any_score_there_is_no_distribution():
    peak = Peak(np.zeros(2), 0.0, np.eye(2), 0)
    with pytest.raises(PilescoreError, match="no point around the minimum can be scored"):
        weighted_points(lambda t: -math.inf, [peak], 0)


def test_a_peak_without_any_score_takes_nothing_from_the_other():
    peaks = [Peak(np.array([centre, 0.0]), 0.0, np.eye(2), 0) for centre in (0.0, 30.0)]
    found = weighted_points(lambda t: -0.5 * float(t @ t) if t[0] < 15 else -math.inf, peaks, 0)
    assert found.log_integral == pytest.approx(math.log(2 * math.pi), abs=found.log_integral_error + 0.02)
    np.testing.assert_allclose(found.weights @ found.t, 0.0, atol=0.05)


@pytest.mark.parametrize("shapes", [[1.0, 2.0, 4.0], [0.6, 0.6, 1.0, 5.0]])
def test_many_points_of_strongly_skewed_densities(shapes):
    """Where eighty points do not suffice, many do."""
    known = log_gamma(shapes)
    for seed in range(3):
        found = many_points(known.log_density, known.peaks, seed)
        assert found.effective_size >= 0.7 * ENOUGH
        assert abs(found.log_integral) <= found.log_integral_error
        drawn = known.draw(COUNT, np.random.default_rng(0))
        assert_moments(found.sample, found.sample_weights, drawn, 0.2, 0.2)


@pytest.mark.parametrize("bend", [0.6, 0.8])
def test_many_points_of_a_strong_banana(bend):
    known = banana(bend, 0.6)
    for seed in range(3):
        found = many_points(known.log_density, known.peaks, seed)
        assert abs(found.log_integral) < found.log_integral_error
        assert_moments(found.sample, found.sample_weights, known.draw(COUNT, np.random.default_rng(0)), 0.2, 0.2)


def test_the_points_that_stand_for_many_have_their_moments():
    known = log_gamma([3.0, 5.0, 8.0])
    found = many_points(known.log_density, known.peaks, 0)
    assert len(found.t) <= 80 < found.count == len(found.sample)
    for one, all_points in zip(
        moments(found.t, found.weights), moments(found.sample, found.sample_weights), strict=True
    ):
        np.testing.assert_allclose(one, all_points, atol=0.03)
