"""The benchmark of the diagnosis: truths satisfy their equations, failures are as stated, tables count right."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.diagnosis import report, suite
from benchmarks.diagnosis.__main__ import main
from benchmarks.diagnosis.planted import EXPECTED, FAILURES, OUTLIER, SOUND, counts, failure, generator
from benchmarks.diagnosis.problems import IN_VIEW, PROBLEMS, REPORTED, TRUE, Equation, problem
from benchmarks.uncertainty.runs import Done, Run
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


def planted(kind, name, seed=SEED):
    """The readings of a planted failure, in deviations from the solution."""
    drawn = instance(name)
    model, _, fitted = failure(kind).make(drawn, None, None, generator(kind, name, seed))
    assert fitted
    return (model.data[0].values - drawn.exact) / drawn.noise


def test_noise_is_as_stated():
    sound = instance("fast-flow").errors
    one = planted("one outlier", "fast-flow") - sound
    assert sorted(np.round(np.abs(one[np.abs(one) > 1e-9]), 9)) == [OUTLIER]
    tenth = planted("a tenth outliers", "fast-flow") - sound
    moved = np.abs(tenth[np.abs(tenth) > 1e-9])
    assert len(moved) == 15
    assert moved.min() >= 6
    assert moved.max() <= 10
    uneven = np.abs(planted("heteroscedastic noise", "fast-flow") / sound)
    assert uneven.max() / uneven.min() == pytest.approx(5, rel=0.05)
    many = [planted("correlated noise", "fast-flow", seed) for seed in range(10)]
    smooth = np.mean([each[:, None] * each for each in many], axis=0)
    places = instance("fast-flow").at
    apart = np.linalg.norm((places[:, None] - places) / np.ptp(places, axis=0), axis=-1) + 9 * np.eye(len(places))
    near, far = (np.mean(smooth[at]) for at in (apart < 0.06, (apart > 0.8) & (apart < 2)))
    assert near > far + 0.3
    assert failure("a tenth outliers").make(instance("beam"), None, None, np.random.default_rng(0)) is None  # too few


def test_noise_that_is_known_is_not_searched():
    drawn = instance("beam")
    model, over, _ = failure("noise ÷10").make(drawn, None, None, None)
    assert "gamma" not in over
    assert model.parameters["gamma"] == pytest.approx(2 * (0.1 * drawn.noise) ** 2)


def test_one_length_for_all_directions():
    model, over = instance("slow-growth").isotropic()
    assert np.ndim(model.parameters["kernel.bandwidth"]) == 0
    assert over["kernel.bandwidth"] == (0.02, 200.0)


def outcome(part, error, *fired, planted=True, severity="warning"):
    found = {name: {"status": "fired", "severity": severity, "value": 1.0} for name in fired}
    found["collapsed"] = found.get("collapsed", {"status": "fine", "severity": "failure", "value": 1.0})
    measured = {"planted": planted, "findings": found, "error": error, "sound error": 0.01, "noise": 0.05, "size": 9}
    return Done(Run(part, "beam", 100), measured, "", 1.0)


def test_failures_count_if_they_do_harm():
    wrong, badly = failure("coefficient ×1.2"), failure("γ ×100")
    assert counts(wrong, outcome(wrong.name, 0.011).measured)
    assert counts(badly, outcome(badly.name, 0.03).measured)
    assert not counts(badly, outcome(badly.name, 0.015).measured)  # less than twice the error
    assert not counts(badly, {**outcome(badly.name, 0.03).measured, "noise": 0.5})  # below a tenth of the noise
    assert not counts(failure("collapsed"), outcome("collapsed", 0.5).measured)
    assert not counts(wrong, outcome(wrong.name, 0.5, planted=False).measured)
    assert counts(badly, outcome(badly.name, None, "refused", severity="failure").measured)


def test_tables_count_alarms():
    done = [
        outcome(SOUND, 0.01),
        outcome(SOUND, 0.01, "outliers"),
        outcome(SOUND, 0.01, "at_bound", severity="note"),
        outcome("one outlier", 0.02, "outliers"),
        outcome("one outlier", 0.02, "miscalibrated"),
        outcome("γ ×100", 0.05),
    ]
    text = report.report(done)
    assert "| **all** | 3 | 1/3 (33%) | outliers 1 | at_bound 1 |" in text
    assert "| one outlier | 2 | 2 | 2/2 (100%) | 1/2 (50%) | 85% |" in text
    assert "| **badly chosen** |  | 1 | 0/1 (0%) |" in text


def test_each_kind_has_findings_that_are_right():
    assert {each.name for each in FAILURES} == set(EXPECTED)


def test_cases_of_the_suite_are_problems():
    drawn = suite.problem("suite-heat").instance(SEED)
    model, over = drawn.posed(Equation(factor=1.5), drawn.values)
    assert model.parameters.get("rho") is None
    assert {name.partition("[")[0] for name in over} == {"kernel.bandwidth", "gamma", "eta"}
    assert np.std(drawn.values - drawn.exact) == pytest.approx(drawn.noise, rel=0.3)
    assert "-0.15" in repr(model.physics[0]) or "0.15" in repr(model.physics[0])  # a conduction of 0.1, times 1.5


@pytest.mark.slow
def test_the_smoke_run_prints_all_tables(capsys):
    assert main(["--smoke"]) == 0
    printed = capsys.readouterr().out
    for title in ("| sound model |", "| failure |", "| model | N |"):
        assert title in printed
