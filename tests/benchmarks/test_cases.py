"""The cases of the selection benchmark: truths satisfy the imposed equations, and data have the stated noise."""

import functools

import jax
import numpy as np
import pytest
from benchmarks.selection import solutions as exact
from benchmarks.selection.cases import CASES, case

import pilescore as ps

pytestmark = pytest.mark.study

NAMES = [each.name for each in CASES]
SOURCES = {
    "poisson": exact.torsion_source,
    "biharmonic": exact.plate_load,
    "variable": exact.uneven_source,
    "oscillator": exact.oscillator_drive,
    "poisson-3d": exact.shaft_source,
    "disk": exact.spot_source,
    "ring": lambda p: 0 * p[0] + exact.RING_SOURCE,
}


@functools.cache
def model(name, seed):
    return case(name).model(seed)


def at(function, *places):
    """A function at several sets of points, compiled once."""
    values = np.asarray(jax.jit(jax.vmap(function))(np.concatenate(places)))
    return np.split(values, np.cumsum([len(points) for points in places])[:-1])


def test_there_are_fifteen_cases_and_more_with_names_of_their_own():
    wanted = "poisson helmholtz convection-1 convection-10 convection-30 heat wave layer biharmonic variable laplace"
    assert {*wanted.split(), "oscillator", "poisson-3d", "wrong-velocity", "noise-free"} <= set(NAMES)
    assert len(set(NAMES)) == len(CASES)
    assert [each.name for each in CASES if not each.well_specified] == ["wrong-velocity"]
    assert case("heat").name == "heat"
    with pytest.raises(ps.errors.InputError, match=r"no case 'heet'.*heat"):
        case("heet")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "wrong-velocity"])
def test_the_truth_satisfies_the_equation_and_the_conditions(name):
    each = case(name)
    equation, *conditions = model(name, 0).physics
    scattered = equation.region(ps.quadrature.MonteCarlo(50, seed=1)).points
    anywhere, there = at(equation.operator(each.truth), scattered, equation.points)
    wanted = at(SOURCES[name], scattered)[0] if name in SOURCES else 0.0
    np.testing.assert_allclose(anywhere, wanted, atol=1e-8)
    error = equation.values - there
    if each.source_noise:
        assert np.std(error) == pytest.approx(each.source_noise, rel=0.3)
        assert abs(np.mean(error)) < 3 * each.source_noise / len(error) ** 0.5
    else:
        np.testing.assert_allclose(error, 0.0, atol=1e-8)
    for block in conditions:  # the series of the torsion function ends after a hundred terms
        (found,) = at(block.operator(each.truth), block.points)
        found = found if block.matrix is None else block.matrix @ found
        np.testing.assert_allclose(block.values, found, atol=1e-5 if name == "poisson" else 1e-12)


def test_the_wrong_velocity_is_wrong():
    each = case("wrong-velocity")
    (equation,) = model(each.name, 0).physics
    dt, dx = ps.partials(equation.region)
    np.testing.assert_allclose(at((dt + 3.0 * dx)(each.truth), equation.points), 0.0, atol=1e-12)
    assert np.abs(at(equation.operator(each.truth), equation.points)[0] - equation.values).max() > 1


@pytest.mark.parametrize("name", NAMES)
def test_data_have_places_and_noise_of_their_seed(name):
    each = case(name)
    first, again, second = (drawn.data[0] for drawn in (model(name, 0), each.model(0), model(name, 1)))
    np.testing.assert_array_equal(first.points, again.points)
    np.testing.assert_array_equal(first.values, again.values)
    assert not np.any(np.all(first.points == second.points, axis=1))
    *truths, fine = at(each.truth, first.points, second.points, each.on.points)
    errors = np.array([block.values - truth for block, truth in zip((first, second), truths, strict=True)])
    if each.noise == 0:
        np.testing.assert_allclose(errors, 0.0, atol=1e-14)
    else:
        assert abs(np.corrcoef(errors)[0, 1]) < 0.5
        assert np.std(errors) == pytest.approx(each.noise, rel=0.3)
        rms = (each.on.weights @ fine**2 / each.on.weights.sum()) ** 0.5
        assert 0.02 < each.noise / rms < 0.1
        assert 0.3 < rms < 1.5


@pytest.mark.parametrize("name", NAMES)
def test_sizes_bounds_and_grids(name):
    each = case(name)
    start = model(name, 0)
    assert 150 <= start.size <= 450
    assert 30 <= start.data[0].size <= 120
    assert [*each.grid, "eta"] == list(each.over)
    assert 100 <= np.prod([len(values) for values in each.grid.values()]) <= 250
    for parameter, values in each.grid.items():
        low, high = each.over[parameter]
        assert low <= values.min() < values.max() <= high
        assert np.all(np.diff(values) > 0)
        start.replace({parameter: low})
        base, _, index = parameter.partition("[")
        middle = np.atleast_1d(start.parameters[base])[int(index.rstrip("]") or 0)]
        assert middle == pytest.approx((low * high) ** 0.5)
    assert start.parameters["eta"] == 1.0
    region = start.physics[0].region
    assert each.on.weights.sum() == pytest.approx(region.measure)
    assert len(each.on) > 1.5 * start.physics[0].size
    assert not np.any(np.all(np.isin(each.on.points, start.physics[0].points), axis=1))
