"""A smooth function through log densities."""

import numpy as np
import pytest
from scipy.stats import qmc

from pilescore.search.uncertainty import surrogate as module
from pilescore.search.uncertainty.surrogate import surrogate


def points(count, dimension, seed=0, reach=2.5):
    """Return points spread over a ball a few deviations wide."""
    unit = qmc.Sobol(dimension, rng=np.random.default_rng(seed)).random_base2(count.bit_length())[:count]
    return reach * (2 * unit - 1)


def errors(function, z, at):
    """Return the errors at new points, weighted by the density there."""
    found, expected = surrogate(z, function(z))(at)[0], function(at)
    weights = np.exp(expected - expected.max())
    return float(np.sqrt(weights @ (found - expected) ** 2 / weights.sum()))


def square(z):
    return -0.5 * np.sum(z**2, axis=1)


@pytest.mark.parametrize("dimension", [1, 2, 3, 5])
def test_a_normal_density_is_exact(dimension):
    z, at = points(48, dimension), points(200, dimension, seed=1, reach=2.0)
    found = surrogate(z, square(z) + 7.0)(at)[0]
    # The peak itself is not among the points: the constant has to be learnt too.
    near = np.sum(at**2, axis=1) < 4
    np.testing.assert_allclose(found[near], square(at[near]) + 7.0, atol=0.01)


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_other_quadratics_and_cubics_are_nearly_exact(dimension):
    rng = np.random.default_rng(dimension)
    bend = 0.1 * rng.standard_normal((dimension, dimension))
    slope, cubic = 0.2 * rng.standard_normal(dimension), 0.03 * rng.standard_normal(dimension)

    def quadratic(z):
        return square(z) + 3.0 + z @ slope + np.einsum("ni,ij,nj->n", z, 0.5 * (bend + bend.T), z)

    def skewed(z):
        return quadratic(z) + (z @ cubic) * np.sum(z**2, axis=1) / np.sqrt(dimension)

    z, at = points(64, dimension), points(400, dimension, seed=1, reach=2.0)
    assert errors(quadratic, z, at) < 0.02
    assert errors(skewed, z, at) < 0.04


def test_values_at_the_points_are_kept():
    z = points(40, 2)
    values = square(z) + 0.3 * np.sin(2 * z[:, 0]) * z[:, 1]
    near = values > values.max() - module.FAR_NATS
    np.testing.assert_allclose(surrogate(z, values)(z)[0][near], values[near], atol=0.02)


def refits(z, values):
    """Return each value minus its prediction from the others, with the hyperparameters of all."""
    whole = surrogate(z, values)
    drop = np.minimum(values.max() - values, module.DEEP_NATS)
    noise = (module.NOISE + module.LOOSENESS * np.maximum(drop - module.FAR_NATS, 0)) ** 2
    departure = 0.5 * np.sum(z**2, axis=1) - drop
    covariance = module._Terms.between(z, z).covariance(whole.hyperparameters)
    found = []
    for i in range(len(z)):
        rest = np.delete(np.arange(len(z)), i)
        inner = covariance[np.ix_(rest, rest)] + np.diag(noise[rest])
        found.append(departure[i] - covariance[i, rest] @ np.linalg.solve(inner, departure[rest]))
    return np.array(found)


@pytest.mark.parametrize("dimension", [1, 2, 4])
def test_errors_of_points_left_out_are_those_of_refits(dimension):
    z = points(32, dimension)
    values = square(z) + 0.4 * np.sin(1.5 * z[:, 0]) + 0.02 * z[:, -1] ** 3
    np.testing.assert_allclose(surrogate(z, values).left_out_errors, refits(z, values), rtol=1e-6, atol=1e-8)


def test_errors_of_points_left_out_are_errors_of_predictions():
    """The prediction of a left-out point is that of the function through the others."""
    z = points(30, 2)
    values = square(z) + 0.3 * np.sin(1.5 * z[:, 0] + z[:, 1])
    whole = surrogate(z, values)
    for i in (3, 11, 17):
        rest = np.delete(np.arange(30), i)
        others = surrogate(z[rest], values[rest])
        if others.hyperparameters != whole.hyperparameters or others.top != whole.top:
            continue
        variance = module._variances(z[[i]], others.hyperparameters)
        cross = module._Terms.between(z[[i]], z[rest]).covariance(others.hyperparameters)
        drawn = np.linalg.solve(others.factor, cross.T)
        if np.sqrt(variance - np.sum(drawn**2)) < module.UNSURE_NATS:
            predicted = others(z[[i]])[0][0]
            assert whole.left_out_errors[i] == pytest.approx(values[i] - predicted, rel=1e-6, abs=1e-8)
            return
    pytest.fail("no point was predicted with certainty")


def test_far_from_all_points_the_function_is_lowered():
    z = points(40, 2, reach=1.0)
    found = surrogate(z, square(z) + 0.3 * z[:, 0] ** 3)
    far = np.array([[4.0, -4.0], [-4.0, 4.0]])
    assert np.all(found(far)[0] < found(far)[1] - 3.0)
    drawn = np.linalg.solve(found.factor, module._Terms.between(far, z).covariance(found.hyperparameters).T)
    deviation = np.sqrt(module._variances(far, found.hyperparameters) - np.sum(drawn**2, axis=0))
    assert np.all(deviation > module.UNSURE_NATS)


def test_covariances_are_positive_definite_and_have_their_diagonal():
    z = np.random.default_rng(0).normal(0, 3, (60, 4))
    for hyperparameters in ((1.5, 0.05, 0.01), (6.0, 3.0, 0.3)):
        covariance = module._Terms.between(z, z).covariance(hyperparameters)
        np.testing.assert_allclose(np.diag(covariance), module._variances(z, hyperparameters), rtol=1e-9)
        assert np.linalg.eigvalsh(covariance).min() > -1e-9 * covariance.max()
