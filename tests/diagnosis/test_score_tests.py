"""Score tests: slopes and information against differences of the evidence and against simulation."""

import dataclasses
import functools

import numpy as np
import pytest

import pilescore as ps
from pilescore.diagnosis.calibration import calibrate
from pilescore.diagnosis.score_tests import ScoreTests

SQUARE = ps.Box(t=(0, 1), x=(0, 1))
DT, DX = ps.partials(SQUARE)


def model(value=0.0, c=0.3, missing=0.0, source=0.0, **changes):
    rng = np.random.default_rng(4)
    points = rng.uniform(0, 1, (25, 2))
    y = np.sin(3 * (points[:, 1] - points[:, 0])) + 0.1 * rng.standard_normal(25)
    nodes = SQUARE.interior(ps.GaussLegendre(4))
    varied = value * np.cos(nodes.points[:, 0]) + source
    equation = ps.impose(DT + c * ps.parameter("beta", 2.0) * DX + missing * DX**2, varied, on=nodes, rho=0.05)
    side = ps.impose(DX, 0.2, on=SQUARE.face(x=0)(ps.GaussLegendre(3)), rho=0.02)
    flow = ps.observe(DT, [0.1, -2.0], at=[[0.2, 0.3], [0.8, 0.4]], gamma=0.3)
    built = ps.Model(ps.RBF([0.6, 0.4]), [ps.observe(ps.identity, y, at=points), flow], [equation, side], 0.05, eta=1.4)
    return built.replace(changes) if changes else built


SEARCHED = ("kernel.bandwidth[0]", "kernel.bandwidth[1]", "gamma", "physics.0.rho", "eta", "beta")
GIVEN = {"joint": (), "given_physics": (2, 3), "auto": (2, 3), "given_homogeneous": ()}


def energy(of, score):
    return ps.pile(of, score=score).free_energy


def score_tests(of, score, searched=SEARCHED):
    return ScoreTests(of, calibrate(of, ps.inference.as_score(score).given_blocks(of)), searched)


def directions(tests, value=0.0):
    """Each direction, and how the model changes along it."""
    equation, parameters = tests.model.blocks[2], tests.model.parameters
    term = dataclasses.replace(equation, indices=((0, 2),), table=np.ones((1, equation.size)))
    cosine = np.ones(equation.size)
    yield tests.of_block(2, term), lambda h: model(value=value, missing=h)
    yield tests.of_block(2, values=cosine), lambda h: model(value=value, source=h)
    for name, other in zip(tests.names, tests.others, strict=True):
        base, _, index = name.partition("[")
        present = parameters[base] if not index else parameters[base][int(index[0])]
        yield other, functools.partial(moved, value, name, present)


def moved(value, name, present, step):
    factor = name in ("eta", "gamma", "physics.0.rho")
    return model(value=value, **{name: present * np.exp(step) if factor else present + step})


@pytest.mark.parametrize("score", ["joint", "given_physics", "auto"])
@pytest.mark.parametrize("value", [0.0, 0.7])
def test_slopes_are_those_of_the_score(score, value):
    tests = score_tests(model(value=value), score)
    step = 1e-4
    for direction, changed in directions(tests, value):
        slope = direction.score(tests.calibration.whitened[:, None])[0]
        if score == "auto" and changed(step).blocks[2].constant != changed(0.0).blocks[2].constant:
            continue
        wanted = -(energy(changed(step), score) - energy(changed(-step), score)) / (2 * step)
        assert slope == pytest.approx(wanted, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("given", [(), (2, 3)])
def test_information_is_the_covariance_of_scores(given):
    of = model(value=0.7)
    tests = ScoreTests(of, calibrate(of, given, draws=60_000), SEARCHED)
    every = [direction for direction, _ in directions(tests, 0.7)]
    draws = np.array([each.score(tests.calibration.whitened_draws) for each in every])
    wanted = np.array([[a.information(b) for b in every] for a in every])
    size = np.sqrt(wanted.diagonal())
    np.testing.assert_allclose(np.cov(draws) / np.outer(size, size), wanted / np.outer(size, size), atol=0.05)
    assert np.abs(draws.mean(axis=1) / size).max() < 0.03
    test = tests.test(every[0])
    others = np.array([each.score(tests.calibration.whitened_draws) for each in tests.others])
    rest = test.direction.score(tests.calibration.whitened_draws)
    assert rest.var() == pytest.approx(test.information, rel=0.05)
    assert max(abs(np.corrcoef(rest, other)[0, 1]) for other in others) < 0.02


def test_a_direction_of_other_hyperparameters_has_no_information():
    tests = score_tests(model(), "given_physics")
    equation = tests.model.blocks[2]
    term = dataclasses.replace(equation, indices=((0, 1),), table=np.full((1, equation.size), 0.1))
    test = tests.test(tests.of_block(2, term))  # beta has the same effect
    assert test.information == 0.0
    assert not test.nats(tests.calibration.whitened_draws).any()


def test_one_step_is_that_of_newton():
    """Near the optimum, the step of a coefficient leads to its estimate by least squares."""
    x = np.linspace(0, 1, 30)
    line = ps.Box(x=(0, 1))
    (dx,) = ps.partials(line)
    y = np.exp(-1.3 * x) + 1e-2 * np.random.default_rng(0).standard_normal(30)
    of = ps.Model(
        ps.RBF(1.0), ps.observe(ps.identity, y, at=x, noise=1e-2),
        ps.impose(dx + 1.25 * ps.identity, 0.0, on=line.interior(ps.GaussLegendre(8)), noise=1e-5),
        eta=20.0,
    )  # fmt: skip
    of = ps.minimize(of, {"eta": (1.0, 1e4)}, score="given_physics").model  # the amplitude is a usual one
    tests = score_tests(of, "given_physics", ("eta",))
    equation = of.blocks[1]
    change = dataclasses.replace(equation, indices=((0,),), table=np.ones((1, equation.size)))
    step, error = tests.test(tests.of_block(1, change)).step(tests.calibration.whitened)
    assert step == pytest.approx(0.05, abs=3 * error + 0.01)
    assert error < 0.05
