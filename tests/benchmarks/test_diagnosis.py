"""The benchmark of the diagnosis: truths satisfy their equations, and draws can be repeated."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.diagnosis.problems import IN_VIEW, PROBLEMS, REPORTED, TRUE, Equation, problem
from numpy.polynomial.chebyshev import Chebyshev

import pilescore as ps

pytestmark = pytest.mark.study

NAMES = [each.name for each in PROBLEMS]
SEED = 0
"""Neither in view nor reported."""


@functools.cache
def instance(name):
    return problem(name).instance(SEED)


def derivative(function, point, index, width=0.12):
    """A partial derivative along one axis, of a polynomial through values near the point."""
    if not any(index):
        return float(function(point[None])[0])
    (axis,) = np.flatnonzero(index)
    unit = np.eye(len(point))[axis]
    near = Chebyshev.interpolate(lambda s: function(point + np.outer(s, unit)), 13, domain=[-width, width])
    return float(near.deriv(index[axis])(0.0))


def applied(operator, function, points):
    coefficients = np.asarray(operator.coefficients(points))
    indices = operator.indices(points.shape[1])
    parts = [[derivative(function, point, index) for point in points] for index in indices]
    return np.sum(coefficients * np.array(parts), axis=0)


def residuals(block, function):
    """The left side of an equation minus its right side, at some of its nodes, and the size of its terms."""
    some = np.random.default_rng(0).choice(block.size, min(block.size, 6), replace=False)
    points, values = block.points[some], block.values[some]
    if isinstance(block.operator, ps.Operator):
        return applied(block.operator, function, points) - values
    parts = [jnp.asarray(applied(each, function, points)) for each in block.operator.of]
    return np.asarray(jax.vmap(block.operator.function)(jnp.asarray(points), *parts)) - values


@pytest.mark.parametrize("name", NAMES)
def test_the_truth_satisfies_the_equation_and_only_the_right_one(name):
    drawn = instance(name)
    size = np.std(drawn.truth(drawn.on.points))
    _, physics = drawn.parts(TRUE)
    for block in physics:
        np.testing.assert_allclose(residuals(block, drawn.truth), 0.0, atol=2e-6 * size * max(1, np.ptp(block.values)))
    for wrong in (Equation(factor=1.2), Equation(complete=False)):
        _, physics = drawn.parts(wrong)
        assert np.abs(residuals(physics[0], drawn.truth)).max() > 1e-3 * size
    if problem(name).condition:
        _, physics = drawn.parts(Equation(shift=0.5))
        assert max(np.abs(residuals(block, drawn.truth)).max() for block in physics[1:]) > 0.2 * size


@pytest.mark.parametrize("name", NAMES)
def test_draws_can_be_repeated_and_have_the_stated_size(name):
    drawn, again = instance(name), problem(name).instance(SEED)
    np.testing.assert_array_equal(drawn.values, again.values)
    assert not np.array_equal(drawn.values, problem(name).instance(SEED + 1).values)
    model, over = drawn.posed()
    assert 15 <= len(drawn.at) <= 150
    assert model.size <= 500
    assert 0.02 <= round(drawn.noise / np.std(drawn.exact), 6) <= 0.15
    assert over["gamma"][0] < 2 * drawn.noise**2 < over["gamma"][1]
    assert drawn.on.weights.min() > 0


def test_ten_problems_of_which_three_are_anisotropic():
    assert len(set(NAMES)) == 10
    assert sum(each.anisotropic for each in PROBLEMS) == 3
    assert not set(IN_VIEW) & set(REPORTED)
    with pytest.raises(ps.errors.InputError, match=r"no problem 'beem'.*windy-disk"):
        problem("beem")
