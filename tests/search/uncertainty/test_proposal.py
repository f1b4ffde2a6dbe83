"""Distributions from which points are drawn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad, simpson

from pilescore.search.uncertainty import proposal
from pilescore.search.uncertainty.proposal import DEGREES, FARTHEST, Mixture, SplitT, around, fitted, moments

AXES = np.array([[1.0, 0.4], [-0.2, 0.7]])


def split(below=(0.5, 1.5), above=(2.0, 0.8)):
    return SplitT(np.array([1.0, -2.0]), AXES, np.array(below), np.array(above))


def line(below, above, centre=0.0):
    return SplitT(np.array([centre]), np.eye(1), np.array([below]), np.array([above]))


def density(part, t):
    return np.exp(part.log_density(np.asarray(t, dtype=float)))


def split_normal(below, above):
    """Return mean, variance and third central moment of a split normal distribution with its mode at zero, by quad."""

    def integral(function):
        kernels = (lambda x, s=s: function(x) * np.exp(-0.5 * (x / s) ** 2) for s in (below, above))
        left, right = kernels
        return quad(left, -40 * below, 0)[0] + quad(right, 0, 40 * above)[0]

    mass = integral(lambda x: 1.0)
    mean = integral(lambda x: x) / mass
    return mean, *(integral(lambda x, k=k: (x - mean) ** k) / mass for k in (2, 3))


KEPT = 1 - 2 * FARTHEST
"""The probability, along one axis, of the points of a t distribution that are drawn: the density is one over it."""


# -- Split t distributions.


@pytest.mark.parametrize(("below", "above"), [(1.0, 1.0), (0.3, 2.0), (5.0, 0.1)])
def test_a_density_along_one_axis_integrates_to_one(below, above):
    part = line(below, above, centre=0.7)
    ends = part.at(np.array([[0.0], [1.0]]))[:, 0]  # nothing further out is drawn
    low, high = (quad(lambda x: float(density(part, [[x]])[0]), *sorted((0.7, end)), epsabs=1e-12)[0] for end in ends)
    assert low + high == pytest.approx(1.0, abs=1e-9)
    assert low == pytest.approx((below / (below + above) - FARTHEST) / KEPT, abs=1e-9)


def test_a_density_along_oblique_axes_integrates_to_one():
    part = split()
    corners = part.at(np.array([[0.0, 0.0], [1.0, 1.0]]))
    ends = part.whitened(corners)
    grids = [np.linspace(first, last, 801) for first, last in ends.T]
    z = np.stack(np.meshgrid(*grids, indexing="ij"), axis=-1).reshape(-1, 2)
    values = density(part, part.centre + z @ AXES.T).reshape(801, 801)
    total = simpson(simpson(values, x=grids[1]), x=grids[0]) * abs(np.linalg.det(AXES))
    assert total == pytest.approx(1.0, abs=1e-4)


def test_a_symmetric_density_is_the_t_distribution_of_scipy():
    covariance = np.array([[2.0, 0.7, 0.1], [0.7, 1.0, -0.2], [0.1, -0.2, 0.5]])
    variances, vectors = np.linalg.eigh(covariance)
    points = np.random.default_rng(0).standard_normal((20, 3))
    expected = stats.t(DEGREES, scale=np.sqrt(variances)).logpdf((points - 1.0) @ vectors).sum(axis=1)
    expected -= 3 * np.log(KEPT)
    np.testing.assert_allclose(around(np.ones(3), covariance).log_density(points), expected, rtol=1e-12)


def test_draws_follow_the_distribution_function():
    part, levels = line(0.4, 2.5, centre=1.0), np.linspace(0.0, 1.0, 41)
    ends = part.at(levels[:, None])[:, 0]
    assert np.all(np.diff(ends) > 0)
    found = [
        sum(
            quad(lambda x: float(density(part, [[x]])[0]), low, high)[0]
            for low, high in [(ends[0], min(end, 1.0)), (1.0, max(end, 1.0))]
        )
        for end in ends
    ]
    np.testing.assert_allclose(found, levels, atol=1e-7)


def test_draws_along_oblique_axes_follow_the_distribution():
    part = split()
    unit = np.random.default_rng(1).random((20_000, 2))
    z = part.whitened(part.at(unit))
    for column, below, above in zip(z.T, part.below, part.above, strict=True):
        one = line(below, above)
        probabilities = np.where(
            column < 0,
            2 * below / (below + above) * stats.t.cdf(column / below, DEGREES),
            1 - 2 * above / (below + above) * stats.t.sf(column / above, DEGREES),
        )
        assert stats.kstest(probabilities, "uniform").statistic < 0.012  # 1.6/√n, and the cut tails
        assert one.log_density(np.zeros((1, 1)))[0] == pytest.approx(
            np.log(2 / (below + above) / KEPT) + stats.t.logpdf(0, DEGREES)
        )


@given(st.floats(0.2, 5.0), st.floats(0.2, 5.0), st.floats(-8, 8), st.floats(1e-3, 1 - 1e-3))
def test_points_and_their_coordinates_are_inverse(below, above, x, unit):
    part = line(below, above, centre=0.3)
    np.testing.assert_allclose(part.whitened(np.array([[x]])), [[x - 0.3]])
    point = part.at(np.array([[unit]]))
    level = FARTHEST + KEPT * unit
    assert (point[0, 0] < 0.3) == (level < below / (below + above))


# -- Fits.


@given(st.floats(0.1, 10.0), st.floats(0.3, 3.0))
def test_a_fit_has_the_moments_of_a_split_normal_distribution(below, ratio):
    above = below * ratio
    mean, variance, third = split_normal(below, above)
    x = np.linspace(-7.5 * below, 7.5 * above, 4001)
    weights = np.exp(-0.5 * (x / np.where(x < 0, below, above)) ** 2)
    found = fitted(x[:, None], weights / weights.sum())
    assert abs(third) / variance**1.5 < proposal.MOST_SKEWNESS
    scale = abs(found.axes[0, 0])
    assert found.centre[0] == pytest.approx(0.0, abs=2e-3 * (below + above))
    both = sorted((found.below[0] * scale, found.above[0] * scale))
    assert both == pytest.approx(sorted((below, above)), rel=5e-3)
    assert split_normal(found.below[0] * scale, found.above[0] * scale)[1] == pytest.approx(variance, rel=1e-3)
    assert mean == pytest.approx(weights @ x / weights.sum(), abs=1e-3 * (below + above))


def test_a_fit_keeps_the_mean_and_covariance_in_several_dimensions():
    rng = np.random.default_rng(3)
    t = np.column_stack([rng.gumbel(size=4000), rng.standard_normal(4000), rng.gamma(9.0, size=4000)]) @ np.array(
        [[1.0, 0.3, 0.0], [0.2, 2.0, -0.5], [0.0, 0.1, 0.4]]
    )
    weights = rng.random(4000)
    weights /= weights.sum()
    part = fitted(t, weights)
    # A split normal distribution along each axis, with its mean and variance in closed form.
    d = part.above - part.below
    along = np.sqrt(2 / np.pi) * d
    variances = (1 - 2 / np.pi) * d**2 + part.above * part.below
    mean, covariance = moments(t, weights)
    np.testing.assert_allclose(part.centre + part.axes @ along, mean, rtol=1e-10)
    np.testing.assert_allclose(part.axes * variances @ part.axes.T, covariance, rtol=1e-6)
    z = around(mean, covariance).whitened(t)
    thirds = np.sqrt(2 / np.pi) * d * ((4 / np.pi - 1) * d**2 + part.above * part.below)
    np.testing.assert_allclose(thirds, weights @ z**3, atol=1e-6)


def test_more_skewness_than_a_split_normal_distribution_has_is_cut():
    t = np.array([[0.0], [0.1], [0.2], [9.0]])
    part = fitted(t, np.array([0.33, 0.33, 0.33, 0.01]))
    assert np.isfinite([*part.below, *part.above, *part.centre]).all()
    assert 0 < part.below[0] < part.above[0] or 0 < part.above[0] < part.below[0]
    d, product = abs(part.above[0] - part.below[0]), part.above[0] * part.below[0]
    third = np.sqrt(2 / np.pi) * d * ((4 / np.pi - 1) * d**2 + product)
    assert third == pytest.approx(proposal.MOST_SKEWNESS, rel=1e-6)


def test_moments_are_those_of_numpy():
    rng = np.random.default_rng(4)
    t, weights = rng.standard_normal((30, 3)), rng.random(30)
    weights /= weights.sum()
    mean, covariance = moments(t, weights)
    np.testing.assert_allclose(mean, np.average(t, axis=0, weights=weights))
    np.testing.assert_allclose(covariance, np.cov(t.T, aweights=weights, bias=True))


def test_a_degenerate_covariance_leaves_the_axes_invertible():
    part = around(np.zeros(2), np.array([[1.0, 1.0], [1.0, 1.0]]))
    assert np.isfinite(part.log_density(np.array([[0.5, 0.5]]))).all()


# -- Mixtures.


def mixture():
    return Mixture(np.array([0.3, 0.7]), [line(1.0, 0.5, centre=-2.0), line(0.2, 1.5, centre=3.0)])


def test_a_mixture_is_the_weighted_sum_of_its_parts():
    both, t = mixture(), np.linspace(-6, 9, 31)[:, None]
    each = np.array([share * density(part, t) for share, part in zip(both.shares, both.parts, strict=True)])
    np.testing.assert_allclose(np.exp(both.log_density(t)), each.sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(both.owners(t), each / each.sum(axis=0), rtol=1e-10)


@pytest.mark.parametrize("count", [1, 7, 24, 64, 1000])
def test_draws_from_a_mixture_come_in_numbers_as_the_shares(count):
    t = mixture().draw(count, [0, 1])
    assert t.shape == (count, 1)
    # Tails of the parts cross hardly anywhere.
    assert abs(int((t < 0.5).sum()) - 0.3 * count) <= 1 + 0.02 * count


def test_draws_are_reproducible_and_differ_by_seed():
    one, again, other = (mixture().draw(50, seed) for seed in ([0, 1], [0, 1], [0, 2]))
    np.testing.assert_array_equal(one, again)
    assert not np.isin(one, other).any()


def test_draws_from_one_part_in_any_number_have_its_mean():
    part = line(1.0, 1.0, centre=5.0)
    for count in (24, 28, 100):
        t = Mixture(np.ones(1), [part]).draw(count, [0, count])
        assert t.mean() == pytest.approx(5.0, abs=3 / count)  # random draws: 1.2/√count


def test_a_joined_part_gets_its_share():
    both = mixture().joined(line(1.0, 1.0, centre=30.0), 0.25)
    assert both.shares == pytest.approx([0.225, 0.525, 0.25])
    assert np.mean(both.draw(400, [0]) > 15) == pytest.approx(0.25, abs=0.01)


def test_weights_of_draws_estimate_a_known_integral():
    # ∫ exp(−½(x − 4)²) dx, over the density that the points were drawn from.
    wide = Mixture(np.array([0.5, 0.5]), [line(1.2, 1.2, centre=4.0), line(0.8, 2.0, centre=3.0)])
    t = wide.draw(4096, [7])
    weights = np.exp(-0.5 * (t[:, 0] - 4.0) ** 2 - wide.log_density(t))
    assert weights.mean() == pytest.approx(np.sqrt(2 * np.pi), rel=2e-3)
