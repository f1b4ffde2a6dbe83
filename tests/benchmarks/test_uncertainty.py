"""The benchmark of stated uncertainty: truths satisfy their equations, draws can be repeated, summaries count right."""

import functools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from benchmarks.uncertainty.problems import NOISES, PROBLEMS, problem

import pilescore as ps

pytestmark = pytest.mark.study

NAMES = [each.name for each in PROBLEMS]
STEP = 1e-3
WEIGHTS = {
    1: np.array([-1, 9, -45, 0, 45, -9, 1]) / (60 * STEP),
    2: np.array([2, -27, 270, -490, 270, -27, 2]) / (180 * STEP**2),
}
"""Central differences of sixth order."""


def derivative(function, p, index):
    """A partial derivative of first or second order along one axis."""
    if not any(index):
        return function(p)
    (axis,) = np.flatnonzero(index)
    shift = STEP * np.eye(p.shape[1])[axis]
    return np.tensordot(WEIGHTS[index[axis]], [function(p + j * shift) for j in range(-3, 4)], 1)


def applied(operator, function, p):
    """A linear operator applied to a function of many points, by differences."""
    parts = [derivative(function, p, index) for index in operator.indices(p.shape[1])]
    return np.sum(np.asarray(operator.coefficients(p)) * parts, axis=0)


def residual(block, function, p, sources):
    """The left side of an equation minus its right side, by differences."""
    if isinstance(block.operator, ps.Operator):
        return applied(block.operator, function, p) - sources
    parts = [jnp.asarray(applied(each, function, p)) for each in block.operator.of]
    numbers = {each.name: each.value for each in block.operator.atoms}
    left = jax.vmap(lambda q, *values: block.operator.function(q, *values, **numbers))(jnp.asarray(p), *parts)
    return np.asarray(left) - sources


@functools.cache
def instance(name, seed):
    return problem(name).instance(seed)


@pytest.mark.parametrize("name", NAMES)
def test_the_truth_satisfies_the_equation_and_the_conditions(name):
    drawn = instance(name, 0)
    model = drawn.model.replace(dict(drawn.coefficients))
    size = np.std(drawn.truth(drawn.on.points))
    for block in model.physics:
        order = max(part.order for part in block.operator.linear_parts)
        error = residual(block, drawn.truth, block.points, block.values)
        np.testing.assert_allclose(error, 0.0, atol=1e-6 * size if order else 1e-12 * size)
    for coefficient, value in drawn.coefficients.items():  # another value does not satisfy it
        other = model.replace({coefficient: 1.1 * value})
        error = residual(other.physics[0], drawn.truth, other.physics[0].points, other.physics[0].values)
        assert np.abs(error).max() > 1e-3 * size


def test_the_measured_load_is_that_of_the_truth():
    drawn = instance("measured-load", 0)
    _, block = drawn.model.data
    exact = applied(block.operator, drawn.truth, block.points)
    assert 0.05 < np.std(block.values - exact) / np.std(exact) < 0.3


def test_the_pendulum_is_that_of_taylor_series():
    drawn = instance("pendulum", 0)
    stiffness, t = drawn.coefficients["stiffness"], np.array([[0.0], [0.4], [1.1]])
    start, slope = float(drawn.truth(t[:1])[0]), float(derivative(drawn.truth, t[:1], (1,))[0])
    with mpmath.workdps(18):
        swing = mpmath.odefun(lambda _, y: [y[1], -stiffness * mpmath.sin(y[0])], 0, [start, slope])
        found = [float(swing(float(each))[0]) for each in t[:, 0]]
    np.testing.assert_allclose(drawn.truth(t), found, atol=1e-7)  # the slope at the start is by differences


@pytest.mark.parametrize("name", NAMES)
def test_draws_can_be_repeated_and_differ(name):
    first, again, other = (instance(name, 0), problem(name).instance(0), instance(name, 1))
    for one, same, another in zip(first.model.blocks, again.model.blocks, other.model.blocks, strict=True):
        np.testing.assert_array_equal(one.points, same.points)
        np.testing.assert_array_equal(one.values, same.values)
        assert one.size == another.size
    assert not np.array_equal(first.model.data[0].values, other.model.data[0].values)
    assert first.coefficients == again.coefficients


@pytest.mark.parametrize("name", NAMES)
def test_data_have_the_stated_noise_and_bounds_contain_the_truth(name):
    errors = []
    for seed in range(2):
        drawn = instance(name, seed)
        readings = drawn.model.data[0]
        exact = drawn.truth(readings.points)
        errors.append((readings.values - exact) / drawn.noise)
        assert 0.05 <= drawn.noise / np.std(exact) <= 0.2
        assert drawn.model.size <= 250
        low, high = drawn.over["gamma"]
        assert low < 2 * drawn.noise**2 < high
        assert high / low == pytest.approx((NOISES[1] / NOISES[0]) ** 2)
        assert drawn.on.weights.min() > 0
        for coefficient, value in drawn.coefficients.items():
            low, high = drawn.over[coefficient]
            assert low < value < high
            assert low < 0 or high / low >= 100
    assert np.sqrt(np.mean(np.concatenate(errors) ** 2)) == pytest.approx(1.0, abs=0.5)


def test_at_least_six_problems_with_names_of_their_own():
    assert len(set(NAMES)) == len(NAMES) >= 6
    with pytest.raises(ps.errors.InputError, match=r"no problem 'heet'.*transport"):
        problem("heet")
