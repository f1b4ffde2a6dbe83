"""Changes of the physics that are tried: what they gain, how rare that is, and what is said about them."""

import dataclasses

import numpy as np
import pytest

import pilescore as ps
from pilescore.diagnosis.calibration import calibrate
from pilescore.diagnosis.change_search import p_value_of_gain
from pilescore.diagnosis.equation_changes import FREED, equation_changes
from pilescore.diagnosis.residuals import residuals_of

TIME = ps.Box(t=(0, 3))
(DT,) = ps.partials(TIME)
RULE = ps.GaussLegendre(14)
OVER = {"kernel.bandwidth": (0.3, 10.0), "gamma": (1e-6, 1.0), "eta": (1e-2, 1e3)}
PHYSICS = ["wrong_equation", "boundary_against_interior", "physics_against_data"]


def decay(operator, values=None, start=None, seed=0, count=30, source=0.0):
    """Readings of e^−t, and an equation; u' + u = 0 is right."""
    rng = np.random.default_rng(seed)
    t = rng.uniform(0, 3, count)
    values = np.exp(-t) + 0.02 * rng.standard_normal(count) if values is None else values
    physics = [ps.impose(operator, source, on=TIME.interior(RULE), name="decay")]
    if start is not None:
        physics.append(ps.dirichlet(start, on=TIME.face(t=0)(ps.GaussLegendre(1)), name="start"))
    return ps.Model(ps.RBF(1.0), ps.observe(ps.identity, values, at=t), physics, gamma=1e-3)


def best_of(model, over=None):
    return ps.minimize(model, over or OVER, search=ps.SearchOptions(curvature=False))


def test_a_wrong_coefficient_is_found_with_the_value_that_the_data_would_like():
    found = ps.diagnose(best_of(decay(DT + 1.4 * ps.identity)), checks=PHYSICS)
    finding = found["wrong_equation"]
    assert finding.status == "fired"
    assert finding.severity == "failure"
    assert "coefficient of Id would be" in finding.meaning
    assert 1.4 * (1 + finding.details["step"]) == pytest.approx(1.0, abs=4 * 1.4 * finding.details["error"])
    assert finding.details["error"] < 0.05
    freed = decay(DT + ps.parameter("rate", 1.4))
    by_hand = best_of(freed, OVER | {"rate": (0.1, 3.0)})
    before = best_of(decay(DT + 1.4 * ps.identity))
    gain = before.pile.free_energy - by_hand.pile.free_energy
    assert finding.value == pytest.approx(gain, abs=0.3)


def test_a_missing_source_is_found():
    rng = np.random.default_rng(0)
    t = rng.uniform(0, 3, 30)  # as in the model
    values = 0.5 + 0.5 * np.exp(-t) + 0.02 * rng.standard_normal(30)  # u' + u = 0.5
    finding = ps.diagnose(best_of(decay(DT + ps.identity, values)), checks=["wrong_equation"])["wrong_equation"]
    assert finding.status == "fired"
    assert any(name.endswith("source") and nats > 2 for name, nats in finding.details["promised"].items())


def test_a_wrong_start_is_blamed_and_not_the_equation():
    model = decay(DT + ps.identity, start=1.0, count=20)
    assert ps.diagnose(best_of(model), checks=PHYSICS).healthy
    found = ps.diagnose(best_of(decay(DT + ps.identity, start=1.3, count=20)), checks=PHYSICS)
    finding = found["boundary_against_interior"]
    assert finding.status == "fired"
    assert "values imposed by 'start' would be larger by −0.3" in finding.meaning or "−0.2" in finding.meaning


def test_what_is_the_same_equation_is_no_change():
    homogeneous = decay(DT + 1.4 * ps.identity)
    kinds = [(each.kind, each.symbol) for each in equation_changes(*_solved(homogeneous))]
    assert kinds == [("coefficient", "Id"), ("term", "∂t²"), ("source", "")]
    single = [each.kind for each in equation_changes(*_solved(decay(DT)))]
    assert single == ["term", "term", "source"]
    driven = [each.symbol for each in equation_changes(*_solved(decay(DT + 1.4 * ps.identity, source=0.5)))]
    assert driven == ["Id", "∂t", "∂t²", ""] or driven == ["∂t", "Id", "∂t²", ""]
    rough = homogeneous.replace(kernel=ps.Matern(1.5, 1.0))
    assert [each.symbol for each in equation_changes(*_solved(rough)) if each.kind == "term"] == []


def _solved(model):
    model = ps.solvers.exact.with_tolerances(model)
    return model, residuals_of(model)


def test_parts_of_a_nonlinear_equation_are_freed():
    rng = np.random.default_rng(2)
    t = np.sort(rng.uniform(0, 3, 30))
    u = 2 / (1 + 3 * np.exp(-2 * t))  # u' = 2u − u²
    logistic = ps.Nonlinear(
        lambda p, u, slope, rate: slope - rate * u + 1.4 * u**2, of=(ps.identity, DT), parameters={"rate": 2.0}
    )
    model = ps.Model(
        ps.RBF(1.0), ps.observe(ps.identity, u + 0.02 * rng.standard_normal(30), at=t),
        ps.impose(logistic, 0.0, on=TIME.interior(RULE), name="logistic"), gamma=1e-3,
    )  # fmt: skip
    finding = ps.diagnose(best_of(model), checks=["wrong_equation"])["wrong_equation"]
    assert finding.status == "fired"
    promised = finding.details["promised"]
    assert {"logistic: coefficient rate", "logistic: coefficient that is not linear", "logistic: term ∂t²"} <= {
        *promised
    }


def test_a_freed_model_is_the_same_model():
    for model in (decay(DT + 1.4 * ps.identity), decay(DT**2 + DT, source=0.3)):
        source, residuals = _solved(model)
        for change in equation_changes(source, residuals):
            if change.freed is not None:
                freed = change.freed(source)
                assert freed.parameters[FREED] == 0.0
                assert ps.pile(freed, "given_physics").value == pytest.approx(
                    ps.pile(source, "given_physics").value, abs=1e-6
                )


def test_the_p_value_of_a_gain_is_that_of_a_regression():
    """One more regressor with an unknown noise level: half of n log(RSS₀/RSS₁) nats."""
    rng = np.random.default_rng(0)
    n, runs = 12, 20_000
    y, x = rng.standard_normal((2, runs, n + 1))
    fitted = np.sum(x * y, axis=1) ** 2 / np.sum(x**2, axis=1)
    gains = 0.5 * n * np.log(np.sum(y**2, axis=1) / (np.sum(y**2, axis=1) - fitted))
    p_values = np.array([p_value_of_gain(gain, float(n)) for gain in gains])
    for level in (0.5, 0.05, 0.005):
        assert np.mean(p_values < level) == pytest.approx(level, abs=4 * (level / runs) ** 0.5)
    assert p_value_of_gain(3.0, 1e6, 2) == pytest.approx(np.exp(-3.0), rel=1e-3)  # χ² with two degrees of freedom
    assert p_value_of_gain(0.0, 10.0) == 1.0


@pytest.mark.slow
def test_equations_that_hold_are_rarely_blamed():
    """Data sets drawn from the fitted model, refitted: p-values below one half, and below 0.05, are as rare as that."""
    fitted = best_of(decay(DT + ps.identity)).model
    drawn = calibrate(fitted, (1,), draws=30).draws.values[fitted.rows[0]]
    p_values = []
    for values in drawn.T:
        (block,) = fitted.data
        model = fitted.replace(data=[dataclasses.replace(block, values=np.array(values))])
        p_values.append(ps.diagnose(best_of(model), checks=["wrong_equation"])["wrong_equation"].p_value)
    p_values = np.array(p_values)
    assert np.mean(p_values < 0.05) <= 0.1
    assert np.mean(p_values < 0.5) < 0.75
