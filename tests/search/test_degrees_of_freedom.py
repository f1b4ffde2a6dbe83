"""Standard errors with n − p degrees of freedom: NIST, least squares, refits of changed data; derived values."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import pilescore as ps
from pilescore.search import minimum
from pilescore.search.degrees_of_freedom import DegreesOfFreedom, degrees_text

from ..models import refused

SCORE, QUIET = "given_physics", ps.RunOptions(progress=False)
DECAY_T = np.linspace(0.1, 2, 6)
DECAY_OVER = {"rate": (-2.0, 4.0), "gamma": (1e-7, 1.0)}


def exponential(x, y, order, noise, **temperatures):
    """Return a model of `c(1 − exp(−bx))` for order 2, through zero, and of `c exp(−bx)` for order 1."""
    line = ps.Box(x=(0, float(x[-1])))
    (dx,) = ps.partials(line)
    rate = ps.parameter("rate", temperatures.pop("rate"))
    operator = dx + rate if order == 1 else dx**2 + rate * dx
    physics = ps.impose(operator, 0.0, on=line.interior(ps.GaussLegendre(12 if order == 1 else 20)), noise=noise)
    zero = [] if order == 1 else [ps.observe(ps.identity, [0.0], at=[0.0], noise=1e-4)]
    kernel = ps.RBF(temperatures.pop("bandwidth"))
    return ps.Model(kernel, [ps.observe(ps.identity, y, at=x), *zero], physics, **temperatures)


def decaying(seed, noise=1e-3, spread=0.03, **changes):
    values = np.exp(-DECAY_T) + spread * np.random.default_rng(seed).standard_normal(6)
    options = {"rate": 1.0, "bandwidth": 1.5, "gamma": 2e-3, "eta": 1e3} | changes
    return exponential(DECAY_T, values, 1, noise, **options)


def test_the_certified_error_of_misra1a():
    """NIST StRD, Misra1a: y = b1 (1 − exp(−b2 x)), 14 readings, 12 degrees of freedom."""
    x = [77.6, 114.9, 141.1, 190.8, 239.9, 289.0, 332.8, 378.4, 434.8, 477.3, 536.8, 593.1, 689.1, 760.0]
    y = [10.07, 14.73, 17.94, 23.93, 29.61, 35.18, 40.02, 44.82, 50.76, 55.05, 61.01, 66.40, 75.47, 81.78]
    model = exponential(np.array(x), np.array(y), 2, 1e-7, rate=5e-4, bandwidth=700.0, gamma=0.02, eta=1e4)
    best = ps.minimize(model, {"rate": (1e-4, 1e-3), "gamma": (1e-4, 1.0), "eta": (1e2, 1e9)}, score=SCORE, run=QUIET)
    certified, error = 5.5015643181e-4, 7.2668688436e-6
    assert best.values["rate"] == pytest.approx(certified, abs=0.01 * error)
    assert best.standard_errors["rate"] == pytest.approx(error, rel=0.005)
    assert best.degrees_of_freedom == pytest.approx(12.0, abs=0.02)
    assert "standard errors use n − p = 12 degrees of freedom" in repr(best)
    # The evidence integrates over the constant b1: only b2 is missing from its estimate of the noise.
    assert best.values["gamma"] / 2 == pytest.approx(1.2455138894e-1 / 13, rel=0.01)


@pytest.mark.parametrize("seed", [1, 2])
def test_standard_errors_are_those_of_least_squares(seed):
    model = decaying(seed, spread=0.01)
    best = ps.minimize(model, DECAY_OVER, score=SCORE, run=QUIET)
    y = model.data[0].values
    found, covariance = optimize.curve_fit(lambda x, c, rate: c * np.exp(-rate * x), DECAY_T, y, p0=(1.0, 1.0))
    error = math.sqrt(covariance[1, 1])
    assert best.values["rate"] == pytest.approx(found[1], abs=0.2 * error)
    assert best.standard_errors["rate"] == pytest.approx(error, rel=0.05)  # without n − p it is 11% too small
    assert best.degrees_of_freedom == pytest.approx(4.0, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "known"), [(1e-3, 0), (0.3, 0), (1e-3, 3)])
def test_fitted_parameters_are_the_change_of_fits_with_the_data(noise, known):
    """`p` is `Σ ∂ŷ/∂y` over data of searched noise, with the coefficient fitted again to each change of the data."""
    model = decaying(3, noise)
    if known:
        given = ps.observe(ps.identity, np.exp(-DECAY_T[:known]), at=DECAY_T[:known], noise=0.03)
        model = model.replace(data=[*model.data, given])
    best = ps.minimize(model, DECAY_OVER, score=SCORE, run=QUIET)
    search = ps.SearchOptions(tolerance=1e-14, curvature=False)

    def fitted(values):
        block = dataclasses.replace(best.model.data[0], values=values)
        changed = best.model.replace(data=[block, *best.model.data[1:]])
        over = {"rate": DECAY_OVER["rate"]}
        return ps.posterior(ps.minimize(changed, over, score=SCORE, search=search, run=QUIET).model).mean(DECAY_T)

    y, step = model.data[0].values, 0.003
    changes = [fitted(y + step * unit)[i] - fitted(y - step * unit)[i] for i, unit in enumerate(np.eye(6))]
    expected = 6 - sum(changes) / (2 * step)
    # Second derivatives, which the degrees of freedom leave out, change the refitted coefficient by a few percent.
    assert best.degrees_of_freedom == pytest.approx(expected, abs=0.08)
    assert (noise, known) != (0.3, 0) or not 3.97 < expected < 4.03  # not a whole number


@pytest.mark.slow
def test_two_coefficients_of_a_nonlinear_equation():
    """NIST StRD, BoxBOD: y′ = b2 (b1 − y), y(0) = 0, 6 readings, 4 degrees of freedom; no free constant."""
    x, y = np.array([1.0, 2, 3, 5, 7, 10]), np.array([109.0, 149, 149, 191, 213, 224])
    line = ps.Box(x=(0, 10))
    (dx,) = ps.partials(line)
    growth = ps.Nonlinear(
        lambda p, slope, u, b1, b2: slope - b2 * (b1 - u), [dx, ps.identity], parameters={"b1": 200.0, "b2": 0.5}
    )
    start = ps.dirichlet(0.0, on=line.face(x=0)(ps.GaussLegendre(1)), noise=0.01)
    physics = [ps.impose(growth, 0.0, on=line.interior(ps.GaussLegendre(20)), noise=0.3), start]
    model = ps.Model(ps.RBF(2.0), ps.observe(ps.identity, y, at=x), physics, gamma=400.0, eta=1e7)
    best = ps.minimize(model, {"b1": (100, 400), "b2": (0.1, 2), "gamma": (1, 1e5)}, score=SCORE, run=QUIET)
    certified = {"b1": (213.80940889, 12.354515176), "b2": (0.54723748542, 0.10455993237)}
    for name, (value, error) in certified.items():
        assert best.values[name] == pytest.approx(value, abs=0.1 * error)
        assert best.standard_errors[name] == pytest.approx(error, rel=0.04)
    assert best.degrees_of_freedom == pytest.approx(4.0, abs=0.1)
    # The correlation matters: Monte Carlo of b1·b2 with the whole covariance, and with its diagonal alone.
    rows = [list(best.values).index(name) for name in ("b1", "b2")]
    covariance = best.covariance[np.ix_(rows, rows)]
    product = best.derived(lambda p: p["b1"] * p["b2"])
    rng = np.random.default_rng(0)
    draws = rng.multivariate_normal([best.values["b1"], best.values["b2"]], covariance, 20_000)
    assert product.value == best.values["b1"] * best.values["b2"]
    assert product.standard_error == pytest.approx(np.std(draws.prod(axis=1)), rel=0.02)
    alone = math.hypot(*(best.standard_errors[a] * best.values[b] for a, b in (("b1", "b2"), ("b2", "b1"))))
    assert product.standard_error < 0.9 * alone


def test_given_noise_needs_no_correction():
    for over, side in (({}, {}), ({"gamma": (0.02, 1.0)}, {"gamma": "lower"})):
        best = ps.minimize(decaying(1, gamma=0.05), {"rate": (-2.0, 4.0), **over}, score=SCORE, run=QUIET)
        assert best.at_bounds == side
        assert best.degrees_of_freedom is None
        assert "degrees of freedom" not in repr(best)
        assert best.standard_errors["rate"] == pytest.approx(6 * best.curvature.standard_errors["rate"], rel=0.02)
    gamma = ps.minimize(decaying(1), {"gamma": (1e-7, 1.0)}, run=QUIET)
    assert gamma.degrees_of_freedom is None  # no coefficient was fitted


@pytest.mark.slow
def test_a_profiled_score_has_the_same_degrees_of_freedom():
    model = decaying(1)
    plain, scaled = (ps.Score("physics", profiled=profiled) for profiled in (False, True))
    free = ps.minimize(model, {**DECAY_OVER, "eta": (1.0, 1e6)}, score=plain, run=QUIET)
    profiled = ps.minimize(model, {"rate": (-2.0, 4.0), "gamma": (1e-7, 10.0)}, score=scaled, run=QUIET)
    # The noise of the equation follows η in the profiled search only, so the two minima differ slightly.
    assert profiled.degrees_of_freedom == pytest.approx(free.degrees_of_freedom, abs=0.1)
    assert profiled.standard_errors["rate"] == pytest.approx(free.standard_errors["rate"], rel=0.05)


def test_without_degrees_of_freedom_there_are_no_standard_errors(monkeypatch):
    assert degrees_text(-1.0) == "coefficients have no standard errors: n − p = −1 degrees of freedom"
    assert "cannot be scored" in degrees_text(math.nan)
    none = DegreesOfFreedom(-0.5, {"rate": math.nan})
    monkeypatch.setattr(minimum, "degrees_of_freedom", lambda *_: none)
    best = ps.minimize(decaying(1), DECAY_OVER, score=SCORE, run=QUIET)
    assert math.isnan(best.standard_errors["rate"])
    assert best.standard_errors["gamma"] > 0
    assert "n − p = −0.5" in repr(best)
    assert math.isnan(best.derived(lambda p: 2 * p["rate"]).standard_error)
    assert best.derived(lambda p: 2 * p["gamma"]).standard_error == pytest.approx(2 * best.standard_errors["gamma"])


def test_derived_values_of_vectors_ties_and_bounds():
    """`C = vI` for values far apart: every bound, tie and vector is known exactly."""
    data = ps.observe(ps.identity, [3.0, -4.0], at=[[0.0, 0.0], [100.0, 100.0]])
    model = ps.Model(ps.RBF([1.0, 2.0]), data=data, gamma=1e-9)
    over = {"eta": (1.0, 100.0), "kernel.bandwidth": (0.5, 3.0)}
    best = ps.minimize(model, over, ties={"gamma": lambda p: 1e-9 * p["eta"] ** 2}, run=QUIET)
    eta, error = best.values["eta"], best.standard_errors["eta"]
    assert best.derived(lambda p: p["gamma"]).value == pytest.approx(1e-9 * eta**2)
    assert best.derived(lambda p: p["gamma"]).standard_error == pytest.approx(2e-9 * eta * error)
    assert best.derived(lambda p: 3.0) == ps.search.Derived(3.0, 0.0)
    both = best.derived(lambda p: p["eta"] * jnp.sum(p["kernel.bandwidth"]))
    assert both.value == pytest.approx(eta * sum(best.values[f"kernel.bandwidth[{i}]"] for i in (0, 1)))
    assert best.derived(lambda p: p["kernel.bandwidth[1]"]).value == best.values["kernel.bandwidth[1]"]
    low = ps.minimize(model, {"eta": (20.0, 100.0)}, starts=[{"eta": 50.0}], run=QUIET)
    assert low.at_bounds == {"eta": "lower"}
    assert math.isnan(low.derived(lambda p: p["eta"]).standard_error)
    assert repr(low.derived(lambda p: p["eta"])) == "Derived(20)"
    assert float(low.derived(lambda p: p["eta"] + p["kernel.bandwidth"][1])) == 22.0


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda p: p["etta"], "got 'etta'"),
        (lambda p: p["eta"] * np.ones(2), "a function whose value is one number"),
        (lambda p: math.sqrt(p["eta"]), "calling it gave"),
    ],
)
def test_functions_that_give_no_number_are_refused(function, words):
    data = ps.observe(ps.identity, [3.0, -4.0], at=[0.0, 100.0])
    best = ps.minimize(ps.Model(ps.RBF(), data=data, gamma=1e-9), {"eta": (1.0, 100.0)}, run=QUIET)
    with refused(words):
        best.derived(function)
