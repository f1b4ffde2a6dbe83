"""Sequential deletion: exact updates against refactorisation, masked outliers, and rates under the null."""

import numpy as np
import pytest
import scipy.stats

from pilescore.diagnosis.deletion import (
    SINGLE,
    delete_worst,
    most_deleted,
    noise_factor,
    noise_gains,
    search_outliers,
    trimmed_variance,
)
from pilescore.diagnosis.residuals import are_neighbours
from pilescore.errors import InputError


def smooth(count, seed=0, noise=0.05):
    """Errors of data that contain a smooth unknown, its covariance, and the noise variances."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, 1, count))
    known = np.exp(-0.5 * ((x[:, None] - x) / 0.3) ** 2)
    errors = np.linalg.cholesky(known + 1e-10 * np.eye(count)) @ rng.standard_normal(count)
    return errors + np.sqrt(noise) * rng.standard_normal(count), known, np.full(count, noise)


def test_deletions_are_those_of_refactorisations():
    count, most = 25, 6
    _, known, noise = smooth(count)
    B = known + np.diag(noise)
    e = np.random.default_rng(1).standard_normal((3, count)) * np.sqrt(B.diagonal())
    found = delete_worst(np.linalg.inv(B), np.linalg.solve(B, e.T).T, noise, most)
    for j in range(3):
        left = list(range(count))
        everything = e[j] @ np.linalg.solve(B, e[j])
        for step in range(most):
            inverse = np.linalg.inv(B[np.ix_(left, left)])
            scores = (inverse @ e[j][left]) / np.sqrt(inverse.diagonal())
            worst = int(np.argmax(np.abs(scores)))
            row = left[worst]
            assert found.rows[j, step] == row
            left.remove(row)
            rest = np.linalg.inv(B[np.ix_(left, left)])
            fitted = noise[left] * (rest @ e[j][left])  # residuals of the posterior mean
            freedom = noise[left] @ rest.diagonal()
            variance = np.sum(fitted**2 / noise[left]) / freedom
            size = abs(scores[worst]) / np.sqrt(variance)
            assert found.sizes[j, step] == pytest.approx(size, rel=1e-8)
            level = 2 * (len(left) + 1) * scipy.stats.t.sf(size, freedom)
            assert found.levels[j, step] == pytest.approx(min(level, 1.0), rel=1e-6)
            k, dropped = step + 1, everything - e[j][left] @ rest @ e[j][left]
            tail = scipy.stats.f.sf(dropped / k / variance, k, freedom)
            joint = tail * scipy.special.comb(count, k) / SINGLE
            assert found.joint_levels[j, step] == pytest.approx(min(joint, 1.0), rel=1e-6)


def test_the_scale_of_the_prior_does_not_hide_an_outlier():
    errors, known, noise = smooth(30, seed=8)
    errors[13] += 8 * np.sqrt(noise[13])
    narrow = 0.1 * known  # the unknown is three times as large as the prior expects
    assert search_outliers(errors, narrow + np.diag(noise), noise).outliers(0.05).tolist() == [13]


@pytest.mark.parametrize("count", [12, 40])
def test_false_alarms_are_as_rare_as_the_level(count):
    _, known, noise = smooth(count)
    B = known + np.diag(noise)
    draws = np.random.default_rng(2).standard_normal((20_000, count)) @ np.linalg.cholesky(B).T
    p = delete_worst(np.linalg.inv(B), np.linalg.solve(B, draws.T).T, noise, most_deleted(count)).p_values
    for level in (0.05, 0.01):
        assert 0.4 * level < np.mean(p <= level) < 1.15 * level


def test_outliers_that_hide_each_other():
    errors, known, noise = smooth(60, seed=4)
    hidden = np.array([3, 17, 29, 44, 45, 58])
    errors[hidden] += 7 * np.sqrt(noise[hidden]) * np.array([1, 1, -1, 1, 1, -1])
    factor, gain = noise_factor(errors, known, noise)
    assert factor > 3  # the noise that a search would find
    assert gain > 10
    found = search_outliers(errors, known + factor * np.diag(noise), factor * noise)
    assert set(found.outliers(0.05)) == {*hidden}
    assert found.p_value < 1e-6
    assert found.noise_factor * factor == pytest.approx(1.0, rel=0.4)  # the noise without them
    single = delete_worst(np.linalg.inv(known + factor * np.diag(noise)), np.zeros((1, 60)) + 0.1, noise, 3)
    assert single.p_values[0] == 1.0


def rates(count, shift, repeats, fraction=0.0):
    """How often outliers are found at 5% and 1% if the noise was fitted to all data."""
    p = []
    for seed in range(repeats):
        errors, known, noise = smooth(count, seed=seed)
        rng = np.random.default_rng(seed)
        which = rng.choice(count, max(1, int(fraction * count)), replace=False)
        errors[which] += shift * np.sqrt(noise[which]) * rng.choice([-1, 1], len(which))
        fitted = noise_factor(errors, known, noise)[0] * noise
        p.append(search_outliers(errors, known + np.diag(fitted), fitted).p_value)
    return np.mean(np.array(p)[:, None] <= [0.05, 0.01], axis=0)


@pytest.mark.slow
def test_rates_with_a_noise_that_was_fitted():
    assert np.all(rates(40, 0.0, 400) < [0.09, 0.03])
    assert np.all(rates(40, 6.0, 100) > [0.9, 0.8])
    assert np.all(rates(40, 6.0, 100, fraction=0.1) > [0.9, 0.8])


def test_the_noise_factor_maximises_the_evidence():
    errors, known, noise = smooth(50, seed=6)
    factor, gain = noise_factor(errors, known, 9 * noise)

    def energy(t):
        return -scipy.stats.multivariate_normal(np.zeros(50), known + t * 9 * np.diag(noise)).logpdf(errors)

    grid = np.geomspace(1e-3, 10, 400)
    energies = [energy(t) for t in grid]
    assert factor == pytest.approx(grid[np.argmin(energies)], rel=0.03)
    assert gain == pytest.approx(energy(1.0) - min(energies), abs=1e-3)
    assert factor == pytest.approx(1 / 9, rel=0.6)


def test_gains_of_many_data_sets_are_those_of_each():
    errors, known, noise = smooth(40, seed=6)
    several = np.stack([errors, 0.8 * errors, errors[::-1]])
    gains = noise_gains(several, known, 2 * noise)
    for each, gain in zip(several, gains, strict=True):
        assert gain == pytest.approx(noise_factor(each, known, 2 * noise)[1], abs=0.01)


def test_the_variance_without_the_largest():
    draws = np.random.default_rng(0).standard_normal(200_000)
    kept = np.sort(np.abs(draws))[: int(0.9 * len(draws))]
    assert trimmed_variance(0.1) == pytest.approx(np.mean(kept**2), rel=0.01)


def test_too_many_deletions():
    with pytest.raises(InputError, match="most"):
        delete_worst(np.eye(4), np.ones((1, 4)), np.ones(4), 3)


def test_neighbours_that_are_off_to_the_same_side_are_no_outliers():
    points = np.sort(np.random.default_rng(0).uniform(0, 1, (50, 1)), axis=0)
    assert are_neighbours(np.arange(5), np.ones(5), points)
    assert not are_neighbours(np.arange(5), np.array([1.0, -1.0, 1.0, -1.0, 1.0]), points)
    assert not are_neighbours(np.array([3, 14, 25, 36, 47]), np.ones(5), points)
    assert not are_neighbours(np.arange(2), np.ones(2), points)
    rng = np.random.default_rng(1)
    chance = [are_neighbours(rng.choice(50, 6, replace=False), rng.choice([-1.0, 1.0], 6), points) for _ in range(1000)]
    assert np.mean(chance) < 0.025
    assert not are_neighbours(np.array([10, 11, 25, 40]), np.ones(4), points)  # one pair
