"""PILE of trained networks: dense algebra, fifty digits, linear models, wide networks, fresh points, bad input."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pilescore as ps
from pilescore.networks import jacobians
from pilescore.networks.scoring_points import draw_fresh

from .. import kernel_oracle as ko
from .. import network_oracle as no

STRIP = ps.Box(t=(0, 1), x=(0, 2))
DT, DX = ps.partials(STRIP)
SPEED = 3.0
GAMMA, RHO = 0.125, 0.375
ETA, SIGMA2 = 0.75, 0.03125
NARROW, WIDE = 3, 8
"""Widths of networks with fewer and with more parameters than the model has values."""

X = np.random.default_rng(3).uniform(0, 1, (5, 2)) * [1, 2]
Y = np.sin(3 * X[:, 1]) - X[:, 0]
INTERIOR = STRIP.interior(ps.GaussLegendre(3))
START = STRIP.face(t=0)(ps.GaussLegendre(3))
LEFT, RIGHT = (STRIP.face(x=x)(ps.GaussLegendre(2)) for x in (0, 2))
CUT = STRIP.slice(t=0.5)(ps.GaussLegendre(3))
QUERY = np.array([[0.3, 0.2], [0.9, 1.5], [0.1, 1.9]])


def network_pile(apply: Any, params: Any, model: Any, **options: Any) -> ps.networks.NetworkPile:
    """`ps.network_pile` with the fields of `NetworkPrior` and `ScoringPoints` as options."""
    return ps.network_pile(apply, params, model, **grouped(options))


def from_jacobian(jacobian: Any, residuals: Any, **options: Any) -> ps.networks.NetworkPile:
    """`ps.network_pile_from_jacobian` with the fields of `NetworkPrior` as options."""
    return ps.network_pile_from_jacobian(jacobian, residuals, **grouped(options))


def grouped(options: dict[str, Any]) -> dict[str, Any]:
    prior = {key: options.pop(key) for key in ("eta", "sigma2", "centre", "scales") if key in options}
    scoring = {key: options.pop(key) for key in ("seed", "scaling", "memory") if key in options}
    if scoring:
        options["points"] = ps.networks.ScoringPoints(options.pop("points", "fresh"), **scoring)
    return options | ({"prior": ps.networks.NetworkPrior(**prior)} if prior else {})


def right_hand_side(p: Any) -> Any:
    return 0.5 * p[0] * p[1]


def first_state(p: Any) -> Any:
    return jnp.cos(p[1])


@functools.cache
def model() -> ps.Model:
    """Twenty values: data, an integral, a transport equation, an initial condition, a periodic one."""
    return ps.Model(
        ps.RBF(1.0),
        [ps.observe(ps.identity, Y, at=X), ps.observe(ps.integral(CUT), 0.75, name="mass")],
        [
            ps.impose(DT + SPEED * DX, right_hand_side, on=INTERIOR, name="transport"),
            ps.dirichlet(first_state, on=START, name="start"),
            ps.periodic(LEFT, RIGHT, name="periodic"),
        ],
        GAMMA,
        RHO,
    )


LABELS = ("data.0", "mass", "transport", "start", "periodic")
SIZES = (5, 1, 9, 3, 2)
TARGETS = np.concatenate(
    [Y, [0.75], 0.5 * INTERIOR.points[:, 0] * INTERIOR.points[:, 1], np.cos(START.points[:, 1]), np.zeros(2)]
)
MODEL_NOISE = np.concatenate(
    [np.full(6, GAMMA / 2), RHO / 2 / INTERIOR.weights, RHO / 2 / START.weights, RHO / 2 / LEFT.weights]
)


def stacked(theta: Any) -> np.ndarray:
    """The rows of `model()` for the network `mlp`, written out."""
    rows = functools.partial(no.tanh_rows, theta)
    jump = rows(LEFT.points) - rows(RIGHT.points)
    transport = rows(INTERIOR.points, (1, SPEED), 1)
    return np.vstack([rows(X), CUT.weights @ rows(CUT.points), transport, rows(START.points), jump])


@jax.jit
def mlp(params: Any, p: Any) -> Any:
    """One hidden layer of tanh."""
    return jnp.tanh(params["hidden"] @ p + params["bias"]) @ params["out"] + params["shift"]


@functools.cache
def weights(width: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(width)
    return {
        "hidden": rng.standard_normal((width, 2)),
        "bias": rng.standard_normal(width),
        "out": rng.standard_normal(width) / math.sqrt(width),
        "shift": np.array(0.25),
    }


@functools.cache
def oracle(width: int) -> no.Problem:
    return no.tabled(stacked(weights(width)), weights(width), TARGETS, MODEL_NOISE)


@functools.cache
def scored(width: int, form: str = "laplace", **options: Any) -> ps.networks.NetworkPile:
    """The score with the noise of the model, at the model's own points."""
    held: dict[str, Any] = {"points": "held out", "scaling": "model", "eta": ETA, "sigma2": SIGMA2, "form": form}
    return network_pile(mlp, weights(width), model(), **held | options)


def agrees(found: ps.networks.NetworkPile, expected: no.Terms, rel: float = 1e-10) -> None:
    for name in ("value", "fit", "prior", "complexity"):
        assert getattr(found, name) == pytest.approx(float(getattr(expected, name)), rel=rel, abs=rel), name
    assert found.value == pytest.approx(found.fit + found.prior + found.complexity + found.constant, rel=1e-14)
    assert found.constant == math.log(2 * math.pi)


def from_oracle(problem: no.Problem, form: str = "laplace", **options: Any) -> ps.networks.NetworkPile:
    given = {
        "params": problem.delta,
        "targets": problem.t,
        "noise": problem.d,
        "scales": problem.spread,
        "form": form,
    }
    return from_jacobian(problem.J, problem.e, **given | options)


def random_problem(seed: int, n: int, p: int) -> no.Problem:
    """A Jacobian and what goes with it; the targets are a draw from the model with `η = 1` and `σ² = ¼`."""
    draw = np.random.default_rng(seed).standard_normal
    J, e, delta, _, d, spread = draw((n, p)), draw(n), draw(p), draw(n), np.exp(draw(n)), np.exp(draw(p))
    t = J @ (np.sqrt(spread) * draw(p)) + 0.5 * np.sqrt(d) * draw(n)
    return no.Problem(J, e, delta, t, d, spread)


# ---------------------------------------------------------------- the three forms


@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize("form", no.FORMS)
def test_forms_against_dense_algebra(form: str, width: int) -> None:
    found, expected = scored(width, form), oracle(width)
    assert (found.size, found.parameters, found.form) == (20, 4 * width + 1, form)
    assert (found.eta, found.sigma2) == (ETA, SIGMA2)
    agrees(found, expected.terms(form, ETA, SIGMA2))
    assert found.free_energy == pytest.approx(10 * found.value)
    assert found.log_evidence == -found.free_energy
    assert float(found) == found.value
    assert 0 < found.rounding < 1e-7
    agrees(found.at(eta=1e-3, sigma2=10.0), expected.terms(form, 1e-3, 10.0))
    other, exact = found.at(eta=1e4, sigma2=1e-10), expected.digits(form, 1e4, 1e-10)
    assert (other.eta, other.sigma2) == (1e4, 1e-10)
    agrees(other, exact, rel=1e-7)
    assert abs(other.value - float(exact.value)) <= 10 * other.rounding + 1e-14 * abs(other.value)


def test_forms_to_fifty_digits() -> None:
    """Two tanh units on a line with `∂x²`; all derivatives, those in the parameters too, are written out."""
    line = ps.Box(x=(0, 1))
    (d,) = ps.partials(line)
    at, nodes, weight = [0.125, 0.75], [0.25, 0.875], [0.5, 0.25]
    data = ps.observe(ps.identity, [0.5, -0.25], at=at)
    physics = ps.impose(d**2, [1.0, -2.0], on=ps.domains.nodes_at(nodes, weight))
    params = {"a": np.array([0.75, -1.5]), "b": np.array([0.25, -0.5]), "w": np.array([1.5, 0.625])}
    centre = {"a": np.array([0.5, 0.0]), "b": np.zeros(2), "w": np.array([1.0, 1.0])}
    scales = {"a": np.array([0.5, 2.0]), "b": 1.0, "w": 0.25}

    J: list[list[Any]] = []
    F: list[Any] = []
    for x, second in [*((x, False) for x in at), *((x, True) for x in nodes)]:
        row: dict[str, list[Any]] = {"a": [], "b": [], "w": []}
        value = no.ctx.zero
        for a, b, w in zip(*(map(ko.number, params[key]) for key in "abw"), strict=True):
            T = no.ctx.tanh(w * x + b)
            T1 = 1 - T**2
            T2, T3 = -2 * T * T1, -2 * T1**2 + 4 * T**2 * T1
            value += a * w**2 * T2 if second else a * T
            row["a"].append(w**2 * T2 if second else T)
            row["b"].append(a * w**2 * T3 if second else a * T1)
            row["w"].append(a * (2 * w * T2 + w**2 * x * T3) if second else a * T1 * x)
        J.append(row["a"] + row["b"] + row["w"])
        F.append(value)
    t = [ko.number(v) for v in (0.5, -0.25, 1.0, -2.0)]
    e = [a - b for a, b in zip(t, F, strict=True)]
    delta = [ko.number(v) for key in "abw" for v in params[key] - centre[key]]
    noise = [ko.number(v) for v in (GAMMA / 2, GAMMA / 2, RHO / 2 / 0.5, RHO / 2 / 0.25)]
    spread = [ko.number(v) for v in (0.5, 2.0, 1.0, 1.0, 0.25, 0.25)]

    def net(theta: Any, p: Any) -> Any:
        return theta["a"] @ jnp.tanh(theta["w"] * p[0] + theta["b"])

    for form in no.FORMS:
        found = network_pile(
            net,
            params,
            ps.Model(ps.RBF(1.0), data, physics, GAMMA, RHO),
            form=form,
            centre=centre,
            scales=scales,
            eta=ETA,
            sigma2=SIGMA2,
            points="held out",
            scaling="model",
        )
        expected = no.digits(form, J, e, delta, t, noise, spread, ETA, SIGMA2)
        agrees(found, expected, rel=1e-13)


@pytest.mark.parametrize(("n", "p"), [(5, 3), (3, 5)])
@pytest.mark.parametrize("form", no.FORMS)
def test_jacobian_to_fifty_digits(form: str, n: int, p: int) -> None:
    problem = random_problem(n, n, p)
    agrees(from_oracle(problem, form, eta=ETA, sigma2=SIGMA2), problem.digits(form, ETA, SIGMA2), rel=1e-13)
    agrees(from_oracle(problem, form, eta=3e4, sigma2=2e-4), problem.digits(form, 3e4, 2e-4), rel=1e-9)


# ---------------------------------------------------------------- profiling


@pytest.mark.parametrize(("n", "p"), [(9, 4), (4, 9)])
@pytest.mark.parametrize("form", no.FORMS)
def test_profiled(form: str, n: int, p: int) -> None:
    problem = random_problem(0, n, p)
    whole = from_oracle(problem, form)
    for known in ({}, {"eta": 0.5}, {"sigma2": 0.25}):
        expected, eta, sigma2 = problem.profiled(form, **known)
        found = from_oracle(problem, form, **known)
        assert found.value == pytest.approx(expected.value, rel=1e-10)
        assert (found.eta, found.sigma2) == pytest.approx((eta, sigma2), rel=1e-4)
        agrees(found, problem.terms(form, found.eta, found.sigma2))
        agrees(whole.at(eta=eta, sigma2=sigma2), expected)


def test_small_residuals() -> None:
    """Where `σ²` is small against all eigenvalues, `‖e‖²/σ² + ‖δ‖²/η + (N−P) log σ² + P log η` is to be least."""
    problem = random_problem(0, 9, 4)
    small = dataclasses.replace(problem, e=1e-7 * problem.e)
    found = from_oracle(small)
    misfit, prior = np.sum(small.e**2 / small.d), np.sum(small.delta**2 / small.spread)
    assert (found.sigma2, found.eta) == pytest.approx((misfit / 5, prior / 4), rel=1e-4)
    assert found.notes == ()
    assert found.value == pytest.approx(float(small.digits("laplace", prior / 4, misfit / 5).value), rel=1e-9)


@pytest.mark.parametrize("form", no.FORMS)
def test_targets_in_the_range(form: str) -> None:
    """Where parameters explain all but the last digits, the value is still right at the η and σ² that are given."""
    problem = random_problem(0, 9, 4)
    e = 1e-9 * problem.e
    near = dataclasses.replace(problem, e=e, t=problem.J @ problem.delta + e)
    found = from_oracle(near, form)
    exact = near.digits(form, found.eta, found.sigma2)
    assert found.value == pytest.approx(float(exact.value), abs=0.1)


def test_profiled_network() -> None:
    problem = oracle(NARROW)
    found = scored(NARROW, eta=None, sigma2=None)
    expected, eta, sigma2 = problem.profiled("laplace")
    assert (found.value, found.eta, found.sigma2) == pytest.approx((expected.value, eta, sigma2), rel=1e-4)
    assert found.value <= expected.value * (1 + 1e-12)
    # At a joint optimum in η and σ² the two quadratic terms make up one for each observation.
    assert found.fit + found.prior == pytest.approx(1.0, rel=1e-8)
    assert found.at(eta=ETA, sigma2=SIGMA2).value == pytest.approx(scored(NARROW).value, rel=1e-12)


# ---------------------------------------------------------------- networks linear in their parameters


def features(p: Any) -> Any:
    t, x = p
    return jnp.stack([jnp.ones(()), t, x * t, jnp.sin(2 * x), jnp.cos(2 * x + t), jnp.exp(-t * x)])


def linear(theta: Any, p: Any) -> Any:
    return features(p) @ theta


SPREAD = np.array([1.0, 0.5, 2.0, 0.25, 1.5, 0.75])


@functools.cache
def linear_model() -> ps.Model:
    """The same rows, with the kernel `φᵀΛφ`."""
    kernel = ps.kernels.FunctionKernel(lambda x, y: features(x) @ (SPREAD * features(y)))
    return ps.Model(kernel, model().data, model().physics, GAMMA, RHO, ETA)


LINEAR: dict[str, Any] = {"points": "held out", "scaling": "model", "sigma2": 1.0, "eta": ETA, "scales": SPREAD}


@pytest.mark.slow
@settings(max_examples=6)
@given(st.lists(st.floats(-3, 3), min_size=6, max_size=6))
def test_linear_network_is_a_kernel(theta: list[float]) -> None:
    """Whatever the parameters are, the linearised form is the evidence of the linear model."""
    expected = linear_pile()
    found = network_pile(linear, np.array(theta), linear_model(), form="linearised", **LINEAR)
    assert found.value == pytest.approx(expected.value, rel=1e-8)
    assert found.fit == pytest.approx(expected.fit, rel=1e-8)
    assert found.complexity == pytest.approx(expected.complexity, rel=1e-8)


@functools.cache
def linear_pile() -> ps.Pile:
    return ps.pile(linear_model())


@jax.jit
def feature_rows() -> Any:
    at, along = jax.vmap(features), jax.vmap(lambda p: jax.jacobian(features)(p) @ jnp.array([1.0, SPEED]))
    jump = at(LEFT.points) - at(RIGHT.points)
    return jnp.vstack([at(X), CUT.weights @ at(CUT.points), along(INTERIOR.points), at(START.points), jump])


def test_laplace_at_the_most_likely_parameters() -> None:
    centre = np.array([0.5, -1.0, 0.0, 2.0, 0.25, -0.75])
    J = np.asarray(feature_rows())
    S = np.diag(1 / MODEL_NOISE)
    left = J.T @ S @ J + np.diag(1 / (ETA * SPREAD))
    best = centre + np.linalg.solve(left, J.T @ S @ (TARGETS - J @ centre))
    laplace, linearised = (
        network_pile(linear, best, linear_model(), form=form, centre=centre, **LINEAR)
        for form in ("laplace", "linearised")
    )
    assert laplace.value == pytest.approx(linearised.value, rel=1e-10)
    away = network_pile(linear, best + 0.01, linear_model(), centre=centre, **LINEAR)
    assert away.value > laplace.value
    zero = network_pile(linear, best, linear_model(), form="linearised", **LINEAR)
    assert zero.value == pytest.approx(linear_pile().value, rel=1e-8)
    tangent = network_pile(linear, best, linear_model(), form="tangent", **LINEAR)
    assert tangent.value == pytest.approx(linear_pile().value, rel=1e-8)


# ---------------------------------------------------------------- wide networks


def wide_erf(params: Any, p: Any) -> Any:
    hidden = jax.scipy.special.erf(params["w"] @ p + params["b"])
    return params["a"] @ hidden / math.sqrt(len(params["a"]))


@pytest.mark.slow
def test_wide_network_has_the_analytic_kernel() -> None:
    """With noise beyond all measure the predictive covariance is the prior `J Jᵀ`; it converges at the rate ½."""
    points = np.array([[0.25, 0.5], [0.5, -0.75], [0.125, 1.0]])
    shifted = points + np.array([10.0, 0.0])

    def first(p: Any) -> Any:
        return jnp.where(p[0] < 5, 1.0, 0.0)

    @jax.jit
    def moved(params: Any, p: Any) -> Any:
        return wide_erf(params, jnp.where(p[0] < 5, p, p - jnp.array([10.0, 0.0])))

    choice = ps.coefficient(first, "first")
    # f at the first three points and A f at the others, as one operator of one function
    mixed = choice + (1 - choice) * (DT + SPEED * DX)
    at = np.concatenate([points, shifted])
    limits = [np.asarray(block) for block in no.ntk_blocks(points, np.array([1.0, SPEED]))]
    seen = ps.Model(ps.RBF(1.0), ps.observe(mixed, 0.0, at=at))
    widths, seeds = (256, 2048, 16384), 12
    errors = np.empty((len(widths), seeds, 3))
    for column, width in enumerate(widths):
        for seed in range(seeds):
            rng = np.random.default_rng([width, seed])
            params = {"a": rng.standard_normal(width), "b": rng.standard_normal(width)}
            params["w"] = rng.standard_normal((width, 2))
            found = network_pile(moved, params, seen, scaling="model", points="held out", eta=1.0, sigma2=1e12)
            K = found.covariance(at, mixed)
            blocks = (K[:3, :3], K[:3, 3:], K[3:, 3:])
            pairs = zip(blocks, limits, strict=True)
            errors[column, seed] = [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs]
    typical = np.exp(np.mean(np.log(errors), axis=1))
    slopes = np.polyfit(np.log(widths), np.log(typical), 1)[0]
    assert slopes == pytest.approx(np.full(3, -0.5), abs=0.1)
    assert typical[-1].max() < 0.03


# ---------------------------------------------------------------- many rows, many parameters, little memory


@pytest.mark.parametrize("form", no.FORMS)
def test_padding_changes_nothing(form: str) -> None:
    """Columns of zeros turn N > P into P > N; rows that are there twice turn P > N into N > P."""
    tall = random_problem(5, 7, 4)
    wide = dataclasses.replace(
        tall,
        J=np.hstack([tall.J, np.zeros((7, 6))]),
        delta=np.concatenate([tall.delta, np.zeros(6)]),
        spread=np.concatenate([tall.spread, np.full(6, 3.0)]),
    )
    for known in ({"eta": ETA, "sigma2": SIGMA2}, {}):
        first, second = from_oracle(tall, form, **known), from_oracle(wide, form, **known)
        assert (first.parameters, second.parameters) == (4, 10)
        assert second.value == pytest.approx(first.value, rel=1e-10)
        assert (second.eta, second.sigma2) == pytest.approx((first.eta, first.sigma2), rel=1e-5)
        agrees(first, tall.terms(form, first.eta, first.sigma2))
        agrees(second, wide.terms(form, second.eta, second.sigma2))
    thin = random_problem(6, 4, 6)
    twice = no.Problem(
        np.vstack([thin.J, thin.J]), np.tile(thin.e, 2), thin.delta, np.tile(thin.t, 2), np.tile(thin.d, 2), thin.spread
    )
    agrees(from_oracle(twice, form, eta=ETA, sigma2=SIGMA2), twice.terms(form, ETA, SIGMA2))


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_little_memory(width: int) -> None:
    held = scored(width)
    assert "held" in held.method
    with pytest.raises(ps.errors.MemoryLimitError, match=rf"{4 * width + 1} parameters at 20 rows") as caught:
        scored(width, memory=1000)
    least = re.search(r"at least ([\d.e-]+) MB", str(caught.value))
    assert least is not None
    for form in ("laplace", "linearised"):
        streamed = scored(width, form, memory=1.1e6 * float(least[1]))
        assert "streamed" in streamed.method
        agrees(streamed, oracle(width).terms(form, ETA, SIGMA2))
    assert streamed.covariance(QUERY) == pytest.approx(held.covariance(QUERY), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("n", "p"), [(12, 5), (5, 12)])
def test_given_jacobians_are_read_in_parts(monkeypatch: pytest.MonkeyPatch, n: int, p: int) -> None:
    """A Jacobian that is there is held once more where that fits, and else read where it is, a few rows at a time."""
    problem = random_problem(3, n, p)
    whole = from_oracle(problem, "linearised")
    monkeypatch.setattr(jacobians, "CHUNK_BYTES", 2 * 8 * 2 * p)
    parts = from_oracle(problem, "linearised")
    assert "held" in parts.method
    beside = jacobians._gram_bytes(n, p) + 2 * 8 * 2 * p
    room = types.SimpleNamespace(available=beside + (0 if n > p else 8 * 3 * p))
    monkeypatch.setattr(jacobians.psutil, "virtual_memory", lambda: room)
    streamed = from_oracle(problem, "linearised")
    assert "streamed" in streamed.method
    for found in (parts, streamed):
        assert found.value == pytest.approx(whole.value, rel=1e-12)
        assert found.variance_from_jacobian(problem.J) == pytest.approx(whole.variance_from_jacobian(problem.J))
    room.available = beside - 8
    with pytest.raises(ps.errors.MemoryLimitError, match="while they are read"):
        from_oracle(problem)


# ---------------------------------------------------------------- prediction


@pytest.mark.parametrize("sigma2", [1e-4, 1e-9, 1e-13, 1e-17])
@pytest.mark.parametrize(("n", "p"), [(12, 30), (30, 12)])
def test_rounding_of_variances_is_bounded(n: int, p: int, sigma2: float) -> None:
    """Against fifty digits: the estimate bounds the error, and a warning reports variances without a correct digit."""
    rng = np.random.default_rng(n)
    for J in (rng.standard_normal((n, p)), rng.standard_normal((n, p)) * np.geomspace(1, 1e-4, p)):
        given = {"params": np.ones(p), "eta": 1.0, "sigma2": sigma2}
        found = from_jacobian(J, np.ones(n), **given)
        rows = np.vstack([rng.standard_normal((2, n)) @ J, rng.standard_normal((2, p))])
        exact = np.array([no.variance(J, row, sigma2) for row in rows])
        values, errors = found.tangent.variances(rows, sigma2)
        assert np.all(np.abs(values - exact) <= errors)
        lost = int(np.sum(values < errors))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ps.errors.PrecisionWarning)
            std = np.sqrt(found.variance_from_jacobian(rows))
        assert [str(each.message).split(",")[0] for each in caught] == (
            [f"{lost} of 4 variances are below rounding"] if lost else []
        )
        assert np.all(std >= 0)
        assert lost == 0 or sigma2 < 1e-9


def query_rows(theta: Any) -> np.ndarray:
    return np.vstack([no.tanh_rows(theta, QUERY), no.tanh_rows(theta, QUERY, (1, SPEED), 1)])


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_prediction(width: int) -> None:
    found, problem = scored(width), oracle(width)
    table = query_rows(weights(width))
    means, rows = table[:, 0], table[:, 1:]
    for place, operator in ((slice(0, 3), ps.identity), (slice(3, 6), DT + SPEED * DX)):
        expected = problem.posterior(rows[place], ETA, SIGMA2)
        assert found.mean(QUERY, operator) == pytest.approx(means[place], rel=1e-12)
        assert found.covariance(QUERY, operator) == pytest.approx(expected, rel=1e-8, abs=1e-10)
        assert found.variance(QUERY, operator) == pytest.approx(np.diag(expected), rel=1e-8)
        assert found.std(QUERY, operator) == pytest.approx(np.sqrt(np.diag(expected)), rel=1e-8)
    other = problem.posterior(rows[:3], 4.0, 0.5)
    assert found.at(eta=4.0, sigma2=0.5).covariance(QUERY) == pytest.approx(other, rel=1e-8, abs=1e-10)
    assert found.mean(QUERY) == pytest.approx(means[:3], rel=1e-12)


# ---------------------------------------------------------------- which parameters


def test_notes_name_parameters_without_effect() -> None:
    idle = {**weights(NARROW), "viscosity": np.array(5.0)}
    found = network_pile(mlp, idle, DATA_ONLY, **PLAIN)
    assert any("no row depends on \"params['viscosity']\"" in note for note in found.notes)
    assert found.prior > network_pile(mlp, weights(NARROW), DATA_ONLY, **PLAIN).prior
    left_out = network_pile(
        mlp, idle, DATA_ONLY, parameters=lambda w: {name: w[name] for name in weights(NARROW)}, **PLAIN
    )
    assert not any("no row" in note for note in left_out.notes)


def test_last_layer() -> None:
    """Three units at all rows and, more parameters than rows, eight units at the data alone."""
    for width, known, rows, targets, noise in (
        (NARROW, model(), stacked, TARGETS, MODEL_NOISE),
        (WIDE, DATA_ONLY, functools.partial(no.tanh_rows, points=X), Y, np.full(5, GAMMA / 2)),
    ):
        theta, last = weights(width), slice(-width - 1, None)
        problem = no.restricted(no.tabled(rows(theta), theta, targets, noise), last)
        for form in no.FORMS:
            found = network_pile(mlp, theta, known, form=form, parameters="last layer", **PLAIN)
            assert found.parameters == width + 1
            agrees(found, problem.terms(form, ETA, SIGMA2))
        query = query_rows(theta)[:, last]
        for place, operator in ((slice(0, 3), ps.identity), (slice(3, 6), DT + SPEED * DX)):
            expected = problem.posterior(query[place], ETA, SIGMA2)
            assert found.covariance(QUERY, operator) == pytest.approx(expected, rel=1e-7, abs=1e-9)
    by_hand = network_pile(mlp, theta, known, form="tangent", parameters=lambda w: [w["shift"], w["out"]], **PLAIN)
    assert by_hand.value == pytest.approx(found.value, rel=1e-12)
    one = network_pile(mlp, theta, known, parameters=lambda w: w["out"], **PLAIN)
    assert one.parameters == WIDE


def test_no_last_layer() -> None:
    def bent(params: Any, p: Any) -> Any:
        return jnp.tanh(mlp(params, p))

    def twice(params: Any, p: Any) -> Any:
        return params["b"] @ (params["a"] @ p)

    with pytest.raises(ps.errors.InputError, match=r"parameters: .*no last layer"):
        network_pile(bent, weights(NARROW), DATA_ONLY, parameters="last layer")
    with pytest.raises(ps.errors.InputError, match=r"parameters: .*not clear"):
        network_pile(twice, {"a": np.ones((3, 2)), "b": np.ones(3)}, DATA_ONLY, parameters="last layer")


DATA_ONLY = ps.Model(ps.RBF(1.0), ps.observe(ps.identity, Y, at=X), gamma=GAMMA)
PLAIN: dict[str, Any] = {"scaling": "model", "points": "held out", "eta": ETA, "sigma2": SIGMA2}


@pytest.mark.slow
def test_equinox_module() -> None:
    """ReLU and tanh, a hard constraint, `out_size` 1 and "scalar"; all parameters and those of the last layer."""
    for activation, out, bound in ((jax.nn.relu, "scalar", False), (jnp.tanh, 1, True)):
        module = eqx.nn.MLP(2, out, 4, 1, activation, dtype=jnp.float64, key=jax.random.key(1))

        @eqx.filter_jit
        def apply(module: Any, p: Any, bound: bool = bound) -> Any:
            return module(p) * (p[1] * (2 - p[1]) if bound else 1.0)

        arrays, rest = eqx.partition(module, eqx.is_inexact_array)

        def net(arrays: Any, p: Any, rest: Any = rest, apply: Any = apply) -> Any:
            return apply(eqx.combine(arrays, rest), p)

        whole = no.evaluated(net, arrays, X, Y, np.full(5, GAMMA / 2))
        last = no.restricted(whole, slice(-5, None))
        found = network_pile(apply, module, DATA_ONLY, parameters="last layer", **PLAIN)
        assert found.parameters == 5
        agrees(found, last.terms("laplace", ETA, SIGMA2))
    found = network_pile(apply, module, DATA_ONLY, **PLAIN)
    assert found.parameters == 12 + 5
    agrees(found, whole.terms("laplace", ETA, SIGMA2))
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if eqx.is_inexact_array(leaf) else leaf, module)
    first = network_pile(apply, single, DATA_ONLY, parameters=lambda m: (m.layers[0].weight, m.layers[1].bias), **PLAIN)
    assert first.parameters == 8 + 1


def test_flax_module() -> None:
    linen = pytest.importorskip("flax.linen")
    module = linen.Sequential([linen.Dense(4), jnp.tanh, linen.Dense(1)])
    draw = np.random.default_rng(2).standard_normal
    layers = {f"layers_{i}": {"bias": draw(n), "kernel": draw((m, n))} for i, m, n in ((0, 2, 4), (2, 4, 1))}
    params = {"params": layers}
    problem = no.evaluated(module.apply, params, X, Y, np.full(5, GAMMA / 2))
    agrees(network_pile(module.apply, params, DATA_ONLY, **PLAIN), problem.terms("laplace", ETA, SIGMA2))
    found = network_pile(module.apply, params, DATA_ONLY, parameters="last layer", **PLAIN)
    last = slice(12, 17)  # the leaves are the bias and the kernel of the first layer, then those of the second
    agrees(found, no.restricted(problem, last).terms("laplace", ETA, SIGMA2))


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_fewer_digits(kind: str) -> None:
    """Weights of lower precision are promoted to float64, with a note; so is their centre."""
    short = {key: jnp.asarray(value).astype(kind) for key, value in weights(NARROW).items()}
    long = {key: value.astype(float) for key, value in short.items()}
    first, second = (
        network_pile(mlp, params, model(), centre={key: 0.5 * value for key, value in params.items()}, **PLAIN)
        for params in (short, long)
    )
    assert first.value == pytest.approx(second.value, rel=1e-13)
    assert any(kind in note for note in first.notes)
    assert not any(kind in note for note in second.notes)


# ---------------------------------------------------------------- points


class Watched:
    """A right-hand side that writes down where it is asked."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def __call__(self, p: Any) -> float:
        self.seen.append(np.asarray(p, dtype=float))  # refused by JAX's tracers, so that points come one by one
        return float(p[0])

    def last(self, count: int) -> np.ndarray:
        return np.array(self.seen[-count:])


def test_fresh_points() -> None:
    inside, start, other = Watched(), Watched(), Watched()
    face = STRIP.face(t=0)
    watched = ps.Model(
        ps.RBF(1.0),
        ps.observe(ps.identity, Y, at=X),
        [
            ps.impose(DT + SPEED * DX, inside, on=INTERIOR, name="a"),
            ps.impose(ps.identity, other, on=INTERIOR, name="b"),
            ps.dirichlet(start, on=face(ps.GaussLegendre(3)), name="c"),
            ps.periodic(LEFT, RIGHT, name="d"),
        ],
    )

    def drawn(seed: int) -> tuple[ps.networks.NetworkPile, np.ndarray, np.ndarray, np.ndarray]:
        found = network_pile(mlp, weights(NARROW), watched, eta=ETA, sigma2=SIGMA2, seed=seed)
        return found, inside.last(9), other.last(9), start.last(3)

    found, first, second, third = drawn(0)
    assert found.size == 5 + 9 + 9 + 3 + 2
    assert STRIP.contains(first).all()
    assert face.contains(third).all()
    given = {tuple(p) for p in INTERIOR.points}
    assert not given & {tuple(p) for p in [*first, *second]}
    assert not {tuple(p) for p in first} & {tuple(p) for p in second}
    again, same, _, _ = drawn(0)
    assert np.array_equal(first, same)
    assert again.value == found.value
    elsewhere, others, _, _ = drawn(1)
    assert not {tuple(p) for p in first} & {tuple(p) for p in others}
    assert elsewhere.value != found.value

    rows = functools.partial(no.tanh_rows, weights(NARROW))
    jumps = rows(LEFT.points) - rows(RIGHT.points)
    table = np.vstack([rows(X), rows(first, (1, SPEED), 1), rows(second), rows(third), jumps])
    targets = np.concatenate([Y, first[:, 0], second[:, 0], third[:, 0], np.zeros(2)])
    jump = 2 - 2 * math.exp(-2.0)  # the prior variance of a difference of f over a distance of 2
    sizes = [np.ones(5), np.full(9, 1 + SPEED**2), np.ones(9), np.ones(3), np.full(2, jump)]
    problem = no.tabled(table, weights(NARROW), targets, np.concatenate(sizes))
    agrees(found, problem.terms("laplace", ETA, SIGMA2))


def test_fresh_points_of_several_regions() -> None:
    """As many as there were, on each face."""
    edge = Watched()
    nodes = STRIP.boundary(ps.GaussLegendre(2)) + STRIP.face(t=0)(ps.GaussLegendre(3))
    known = ps.Model(ps.RBF(1.0), physics=ps.dirichlet(edge, on=nodes, name="edge"))
    found = network_pile(mlp, weights(NARROW), known, eta=ETA, sigma2=SIGMA2)
    assert found.size == 11
    points = edge.last(11)
    assert [int(face.contains(points).sum()) for face in STRIP.faces] == [5, 2, 2, 2]
    assert not {tuple(p) for p in points} & {tuple(p) for p in nodes.points}
    residuals = points[:, 0] - no.tanh_rows(weights(NARROW), points)[:, 0]
    assert found.residuals["edge"] == pytest.approx(math.sqrt(np.mean(residuals**2)), rel=1e-12)


@pytest.mark.parametrize("seed", [0, 3])
def test_fresh_points_are_not_those_of_a_rule_with_the_same_seed(seed: int) -> None:
    nodes = STRIP.interior(ps.quadrature.MonteCarlo(30, seed)) + STRIP.slice(t=0.5)(ps.quadrature.MonteCarlo(6, seed))
    blocks = [
        ps.impose(ps.identity, 0.0, on=each, name=n)
        for n, each in (("a", nodes), ("b", STRIP(ps.quadrature.MonteCarlo(9))))
    ]
    drawn, kept = draw_fresh(ps.Model(ps.RBF(1.0), physics=blocks), seed)
    assert kept == []
    assert [block.size for block in drawn] == [36, 9]
    assert int((drawn[0].points[:, 0] == 0.5).sum()) == 6
    assert drawn[0].weights.sum() == pytest.approx(nodes.weights.sum())
    for new, old in zip(drawn, blocks, strict=True):
        assert not {tuple(p) for p in new.points} & {tuple(p) for p in old.points}
    assert not {tuple(p) for p in drawn[0].points} & {tuple(p) for p in drawn[1].points}


def test_training_points_raise_a_warning() -> None:
    fixed = ps.Model(
        ps.RBF(1.0),
        model().data,
        [
            ps.impose(DT, 0.0, on=ps.domains.nodes_at(INTERIOR.points), name="listed"),
            ps.impose(DX, np.zeros(9), on=INTERIOR, name="tabled"),
            ps.impose(DX, 0.0, on=INTERIOR, name="drawn"),
            ps.periodic(LEFT, RIGHT, name="jump"),
        ],
    )
    with pytest.warns(ps.errors.TrainingPointsWarning) as caught:
        found = network_pile(mlp, weights(NARROW), fixed, eta=ETA, sigma2=SIGMA2)
    text = " ".join(str(each.message) for each in caught)
    assert "listed" in text
    assert "tabled" in text
    assert not any(name in text for name in ("drawn", "jump", "data.0", "mass"))
    for name, direction in (("listed", (1, 0)), ("tabled", (0, 1))):
        slopes = no.tanh_rows(weights(NARROW), INTERIOR.points, direction, 1)[:, 0]
        assert found.residuals[name] == pytest.approx(math.sqrt(np.mean(slopes**2)), rel=1e-12)
    assert found.residuals["drawn"] != pytest.approx(found.residuals["tabled"], rel=1e-3)

    with pytest.warns(ps.errors.TrainingPointsWarning):
        trained = network_pile(mlp, weights(NARROW), model(), **PLAIN | {"points": "training"})
    assert trained.value == scored(NARROW).value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network_pile(mlp, weights(NARROW), model())


# ---------------------------------------------------------------- relative noise


def test_rows_by_the_prior() -> None:
    found = network_pile(mlp, weights(NARROW), model(), points="held out", eta=ETA, sigma2=SIGMA2)
    gaps = CUT.points[:, 1, None] - CUT.points[:, 1]
    mass = CUT.weights @ np.exp(-(gaps**2) / 2) @ CUT.weights
    sizes = (1.0, mass, 1 + SPEED**2, 1.0, 2 - 2 * math.exp(-2.0))
    inverse = [np.ones(5), np.ones(1), 1 / INTERIOR.weights, 1 / START.weights, 1 / LEFT.weights]
    d = [size * each / each.mean() for size, each in zip(sizes, inverse, strict=True)]
    for block, expected in zip(model().blocks, d, strict=True):
        assert found.noise_variance(block) == pytest.approx(SIGMA2 * expected, rel=1e-10)
    problem = dataclasses.replace(oracle(NARROW), d=np.concatenate(d))
    agrees(found, problem.terms("laplace", ETA, SIGMA2))
    by_model = scored(NARROW)
    for block, expected in zip(model().blocks, np.split(MODEL_NOISE, np.cumsum(SIZES)[:-1]), strict=True):
        assert by_model.noise_variance(block) == pytest.approx(SIGMA2 * expected, rel=1e-12)


NU = 0.05


@functools.cache
def burgers_model() -> ps.Model:
    burgers = ps.Nonlinear(
        lambda p, u, u_t, u_x, u_xx, nu: u_t + u * u_x - nu * u_xx,
        of=(ps.identity, DT, DX, DX**2),
        parameters={"nu": NU},
    )
    block = ps.impose(burgers, 0.5, on=INTERIOR, name="burgers")
    return ps.Model(ps.RBF(1.0), ps.observe(ps.identity, Y, at=X), block, GAMMA, RHO)


def test_nonlinear_equation() -> None:
    """The rows are those of the equation linearised at the network; the size of their noise knows of the prior alone.

    Over functions with the covariance `exp(−r²/2)`, `f` and its first derivatives are independent and of variance 1,
    and `∂x² f` has variance 3: that of `∂t f + f ∂x f − ν ∂x² f` is `2 + 3ν²`, which the library finds by draws.
    """
    rows = functools.partial(no.tanh_rows, weights(NARROW), INTERIOR.points)
    f, f_t, f_x, f_xx = rows(), rows((1, 0), 1), rows((0, 1), 1), rows((0, 1), 2)
    u, u_x = f[:, :1], f_x[:, :1]
    table = f_t + u * f_x + u_x * f - NU * f_xx
    table[:, 0] -= u[:, 0] * u_x[:, 0]
    inverse = 1 / INTERIOR.weights
    targets = np.concatenate([Y, np.full(9, 0.5)])
    table = np.vstack([no.tanh_rows(weights(NARROW), X), table])
    rigid = no.tabled(table, weights(NARROW), targets, np.ones(14))
    block = burgers_model().physics[0]
    for choice in ("prior", "model"):
        for form in no.FORMS:
            found = network_pile(mlp, weights(NARROW), burgers_model(), form=form, **PLAIN | {"scaling": choice})
            noise = found.noise_variance(block) / SIGMA2
            data = np.ones(5) if choice == "prior" else np.full(5, GAMMA / 2)
            agrees(found, dataclasses.replace(rigid, d=np.concatenate([data, noise])).terms(form, ETA, SIGMA2))
        if choice == "prior":
            assert noise == pytest.approx((2 + 3 * NU**2) * inverse / inverse.mean(), rel=0.02)
            other = {key: 3 * value for key, value in weights(NARROW).items()}
            elsewhere = network_pile(mlp, other, burgers_model(), **PLAIN | {"scaling": "prior"})
            assert np.array_equal(elsewhere.noise_variance(block), SIGMA2 * noise)
        else:
            assert noise == pytest.approx(RHO / 2 * inverse, rel=1e-12)


# ---------------------------------------------------------------- losses


def test_misfit_residuals_and_training_loss() -> None:
    problem = oracle(NARROW)
    found = scored(NARROW)
    assert found.misfit == pytest.approx(np.mean(problem.e**2 / MODEL_NOISE), rel=1e-12)
    parts = np.split(problem.e, np.cumsum(SIZES)[:-1])
    assert list(found.residuals) == list(LABELS)
    for label, part in zip(LABELS, parts, strict=True):
        assert found.residuals[label] == pytest.approx(math.sqrt(np.mean(part**2)), rel=1e-12)
    loss = sum(np.mean(part**2) for part in parts)
    assert found.training_loss == pytest.approx(loss, rel=1e-12)
    fresh = network_pile(mlp, weights(NARROW), model(), scaling="model", eta=ETA, sigma2=SIGMA2)
    assert fresh.training_loss == pytest.approx(loss, rel=1e-12)
    assert fresh.residuals["transport"] != found.residuals["transport"]
    assert fresh.residuals["periodic"] == found.residuals["periodic"]


@pytest.mark.parametrize("form", no.FORMS)
def test_from_jacobian_is_the_same(form: str) -> None:
    for width in (NARROW, WIDE):
        first, second = scored(width, form), from_oracle(oracle(width), form, eta=ETA, sigma2=SIGMA2)
        for name in ("value", "fit", "prior", "complexity", "misfit"):
            assert getattr(second, name) == pytest.approx(getattr(first, name), rel=1e-10), name
        assert math.isnan(second.training_loss)
    known = from_oracle(oracle(NARROW), form, eta=ETA, sigma2=SIGMA2, training_loss=0.5)
    assert known.training_loss == 0.5


# ---------------------------------------------------------------- invariance

SEEDS = st.integers(0, 2**31)
SHAPES = st.sampled_from([(6, 3), (3, 6), (4, 4), (1, 3), (3, 1)])


@settings(max_examples=20)
@given(SEEDS, SHAPES, st.sampled_from(no.FORMS))
def test_order_of_rows(seed: int, shape: tuple[int, int], form: str) -> None:
    problem = random_problem(seed, *shape)
    order = np.random.default_rng(seed + 1).permutation(shape[0])
    moved = dataclasses.replace(problem, J=problem.J[order], e=problem.e[order], t=problem.t[order], d=problem.d[order])
    first, second = (from_oracle(each, form, eta=ETA, sigma2=SIGMA2) for each in (problem, moved))
    assert second.value == pytest.approx(first.value, rel=1e-10)


@settings(max_examples=20)
@given(SEEDS, SHAPES, st.sampled_from(no.FORMS), st.floats(1e-3, 1e3))
def test_only_the_product_of_noise_and_scale_counts(seed: int, shape: tuple[int, int], form: str, c: float) -> None:
    problem = random_problem(seed, *shape)
    scaled = dataclasses.replace(problem, d=c * problem.d)
    first = from_oracle(problem, form, eta=ETA, sigma2=SIGMA2)
    assert from_oracle(scaled, form, eta=ETA, sigma2=SIGMA2 / c).value == pytest.approx(first.value, rel=1e-9)
    wider = dataclasses.replace(problem, spread=c * problem.spread)
    assert from_oracle(wider, form, eta=ETA / c, sigma2=SIGMA2).value == pytest.approx(first.value, rel=1e-9)


@settings(max_examples=20)
@given(SEEDS, SHAPES, st.sampled_from(no.FORMS))
def test_rotated_parameters(seed: int, shape: tuple[int, int], form: str) -> None:
    problem = dataclasses.replace(random_problem(seed, *shape), spread=np.ones(shape[1]))
    Q = np.linalg.qr(np.random.default_rng(seed + 1).standard_normal((shape[1], shape[1])))[0]
    turned = dataclasses.replace(problem, J=problem.J @ Q, delta=problem.delta @ Q)
    first, second = (from_oracle(each, form, eta=ETA, sigma2=SIGMA2) for each in (problem, turned))
    assert second.value == pytest.approx(first.value, rel=1e-10)


@settings(max_examples=20)
@given(SEEDS, st.sampled_from([(6, 3), (3, 6), (4, 4)]), st.floats(1e-3, 1e3))
def test_units(seed: int, shape: tuple[int, int], c: float) -> None:
    """In other units of the values and the parameters the density changes by the Jacobian of the change alone."""
    problem = random_problem(seed, *shape)
    scaled = dataclasses.replace(problem, e=c * problem.e, delta=c * problem.delta)
    first, second = from_oracle(problem), from_oracle(scaled)
    assert second.value == pytest.approx(first.value + 2 * math.log(c), rel=1e-8, abs=1e-8)
    assert (second.eta, second.sigma2) == pytest.approx((c**2 * first.eta, c**2 * first.sigma2), rel=1e-3)


# ---------------------------------------------------------------- bad input


class Changed:
    """A network that is a method of something that may change."""

    factor = 1.0

    def apply(self, params: Any, p: Any) -> Any:
        return self.factor * p[1] * mlp(params, p)


def test_changed_networks_are_compiled_again() -> None:
    """Also where the change does not show in the values of the first block, here at x = 0."""
    network = Changed()
    held = [ps.observe(ps.identity, 0.0, at=X * [1, 0]), ps.observe(ps.identity, Y, at=X)]
    known = ps.Model(ps.RBF(1.0), held, gamma=GAMMA)
    first = network_pile(network.apply, weights(NARROW), known, **PLAIN)
    network.factor = 2.0
    second = network_pile(network.apply, weights(NARROW), known, **PLAIN)
    assert second.mean(X) == pytest.approx(2 * first.mean(X))
    assert second.misfit != first.misfit
    assert second.complexity > first.complexity


def of_network(apply: Any = mlp, params: Any = None, known: Any = None, **options: Any) -> ps.networks.NetworkPile:
    theta = weights(NARROW) if params is None else params
    return network_pile(apply, theta, DATA_ONLY if known is None else known, **PLAIN | options)


def of_jacobian(
    jacobian: Any = ((1.0, 2.0), (3.0, 4.0), (5.0, 7.0)), residuals: Any = (1, 2, 3), **options: Any
) -> Any:
    given_to = {"params": np.ones(2), "targets": np.ones(3), "eta": 1.0, "sigma2": 1.0}
    return from_jacobian(jacobian, residuals, **given_to | options)


def broken(**leaves: Any) -> dict[str, Any]:
    return {**weights(NARROW), **leaves}


@jax.custom_vjp
def backward_only(x: Any) -> Any:
    return x


backward_only.defvjp(lambda x: (x, None), lambda _, slope: (slope,))


def counted(w: Any, p: Any) -> Any:
    """A loop that JAX cannot differentiate in reverse."""
    return jax.lax.while_loop(lambda s: s < 3.0, lambda s: s + 1.0, w["shift"] * p[0])


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "two outputs": (lambda: of_network(lambda w, p: jnp.stack([mlp(w, p)] * 2)), r"apply: .*shape \(2,\)"),
    "complex output": (lambda: of_network(lambda w, p: 1j * mlp(w, p)), "apply: .*complex128"),
    "integer output": (lambda: of_network(lambda w, p: jnp.round(mlp(w, p)).astype(int)), "apply: .*int64"),
    "no output": (lambda: of_network(lambda w, p: None), "apply: expected one real number"),
    "no function": (lambda: of_network("net"), "apply: expected a function of two arguments"),
    "one argument": (lambda: of_network(lambda p: p[0]), "apply: expected a function of two arguments"),
    "numpy": (lambda: of_network(lambda w, p: np.tanh(np.asarray(p)).sum() * w["shift"]), "apply: .*jax.numpy"),
    "branch": (lambda: of_network(lambda w, p: w["shift"] * (1 if p[0] > 0 else 2)), "apply: .*jax.numpy"),
    "float": (lambda: of_network(lambda w, p: float(w["shift"]) * p[0]), "apply: .*jax.numpy"),
    "third coordinate": (lambda: of_network(lambda w, p: w["shift"] * p[2]), r"apply: .*p\[1\]"),
    "NaN output": (
        lambda: of_network(lambda w, p: w["shift"] * jnp.sqrt(-1 - p[0])),
        "at 5 of 5 points",
    ),
    "three inputs": (lambda: of_network(lambda w, p: w["bias"] @ p), r"apply: .*one point of shape \(2,\)"),
    "while": (lambda: of_network(counted), "apply: expected .*differentiate.*while_loop"),
    "no forward mode": (
        lambda: of_network(lambda w, p: backward_only(w["shift"] * p[0]), known=model()),
        "apply: expected .*differentiate.*custom_vjp",
    ),
    "random": (
        lambda: of_network(lambda w, p: w["shift"] * p[0] * np.random.default_rng().random()),
        "apply: two calls .*different",
    ),
    "NaN in one array": (lambda: of_network(lambda w, p: w @ p, np.array([1, np.nan])), "^params: .*finite"),
    "centre of one array": (
        lambda: of_network(lambda w, p: w @ p, np.array([1.0, 2.0]), centre=np.zeros(3)),
        r"^centre: .*shape \(2,\)",
    ),
    "NaN weight": (lambda: of_network(params=broken(bias=np.array([0, np.nan, 1]))), r"params\['bias'\]: .*finite"),
    "complex weight": (lambda: of_network(params=broken(shift=np.array(1j))), r"params\['shift'\]: .*real"),
    "no parameters": (lambda: of_network(lambda w, p: p[0], {}), "params: .*at least one array"),
    "integers only": (lambda: of_network(lambda w, p: w * p[0], np.array(2)), "params: .*at least one array"),
    "centre of another tree": (lambda: of_network(centre={"a": 1.0}), "centre: .*structure of params"),
    "centre of another shape": (lambda: of_network(centre=broken(bias=np.zeros(4))), r"centre\['bias'\]: .*\(3,\)"),
    "negative scale": (lambda: of_network(scales=-1.0), "scales: expected positive"),
    "negative scale of a leaf": (
        lambda: of_network(scales={"hidden": 1.0, "bias": -1.0, "out": 1.0, "shift": 1.0}),
        r"scales\['bias'\]: expected positive",
    ),
    "scales of another tree": (lambda: of_network(scales={"a": 1.0}), "scales: .*structure of params"),
    "scales of another shape": (
        lambda: of_network(scales={"hidden": 1.0, "bias": np.ones(4), "out": 1.0, "shift": 1.0}),
        r"scales\['bias'\]: expected",
    ),
    "form": (lambda: of_network(form="laplacian"), "form: expected .*'laplace', 'linearised'"),
    "points": (lambda: of_network(points="old"), "points: expected .*'fresh', 'held out'"),
    "an array of points": (lambda: of_network(points=X), "points: expected .*'fresh', 'held out'"),
    "scaling": (lambda: of_network(scaling="data"), "scaling: expected .*'prior'"),
    "seed": (lambda: of_network(seed=-1), "seed: expected an integer"),
    "parameters": (lambda: of_network(parameters="first layer"), "parameters: expected 'all', 'last layer'"),
    "parameters that are not there": (lambda: of_network(parameters=lambda w: 2 * w["out"]), "parameters: "),
    "eta": (lambda: of_network(eta=0.0), "eta: expected a positive number"),
    "sigma2": (lambda: of_network(sigma2=-1.0), "sigma2: expected a positive number"),
    "memory": (lambda: of_network(memory=0), "memory: expected a positive number"),
    "model": (lambda: of_network(known=DATA_ONLY.data[0]), "model: expected a ps.Model"),
    "at": (lambda: of_network().at(eta=-1.0), "eta: expected a positive number"),
    "points of another dimension": (lambda: of_network().mean([[0.0, 1.0, 2.0]]), "points: .*2 coordinates"),
    "operator": (lambda: of_network().mean(QUERY, "dx"), "operator: expected"),
    "functional": (lambda: of_network().variance(QUERY, ps.integral(CUT)), "operator: expected"),
    "noise of no block": (lambda: of_network().noise_variance("data"), "block: expected"),
    "jacobian shape": (lambda: of_jacobian(np.ones(3)), r"jacobian: expected shape \(N, P\)"),
    "jacobian NaN": (lambda: of_jacobian([[1, 2], [np.nan, 1], [1, 1]]), r"jacobian: .*index \(1, 0\)"),
    "jacobian zero": (lambda: of_jacobian(np.zeros((3, 2))), "jacobian: .*not zero"),
    "residuals": (lambda: of_jacobian(residuals=np.ones(4)), r"residuals: .*\(3,\)"),
    "residuals NaN": (lambda: of_jacobian(residuals=[1, np.nan, 2]), r"residuals: .*index \(1,\)"),
    "residuals that overflow": (lambda: of_jacobian(residuals=[1e160, 1, 1]), "residuals: .*can be squared"),
    "no params": (lambda: of_jacobian(params=None), "params: expected .* laplace form"),
    "no params either": (
        lambda: of_jacobian(params=None, form="linearised"),
        "params: expected .* linearised form",
    ),
    "params": (lambda: of_jacobian(params=np.ones(3)), r"params: .*\(2,\)"),
    "centre of a jacobian": (lambda: of_jacobian(centre=np.ones(3)), r"centre: .*\(2,\)"),
    "prior": (
        lambda: ps.network_pile(mlp, weights(NARROW), DATA_ONLY, prior=2.0),
        "prior: expected a ps.networks.NetworkPrior",
    ),
    "prior of a jacobian": (
        lambda: ps.network_pile_from_jacobian(np.eye(2), np.ones(2), params=np.ones(2), prior={"eta": 1.0}),
        "prior: expected a ps.networks.NetworkPrior",
    ),
    "no targets": (lambda: of_jacobian(targets=None, form="tangent"), "targets: expected .* tangent form"),
    "targets": (lambda: of_jacobian(targets=np.ones(2), form="tangent"), r"targets: .*\(3,\)"),
    "noise": (lambda: of_jacobian(noise=[1.0, 0.0, 1.0]), "noise: expected positive"),
    "scales": (lambda: of_jacobian(scales=[1.0, 2.0, 3.0]), r"scales: .*\(2,\)"),
    "form of a jacobian": (lambda: of_jacobian(form="x"), "form: expected .*'laplace', 'linearised'"),
    "no network": (lambda: of_jacobian().mean(QUERY), "no network"),
}


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    attempt, message = BAD[case]
    with pytest.raises(ps.errors.InputError, match=message):
        attempt()


def test_optional_arguments() -> None:
    J, e = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]]), np.array([1.0, 2.0, 3.0])
    assert from_jacobian(J, e, params=np.ones(2)).form == "laplace"
    assert from_jacobian(J, e, targets=e, form="tangent", eta=1.0, sigma2=1.0).prior == 0


def test_single_value() -> None:
    """One value determines the scale only: `2F = 1 + log 2π y²`. A note says that the ratio is not determined."""
    one = ps.Model(ps.RBF(1.0), ps.observe(ps.identity, 0.5, at=X[:1]))
    found = network_pile(mlp, weights(NARROW), one, form="tangent")
    assert found.value == pytest.approx(1 + math.log(2 * math.pi * 0.25), rel=1e-10)
    assert any("sigma2" in note for note in found.notes)
    exact = ps.Model(ps.RBF(1.0), ps.observe(ps.identity, mlp(weights(NARROW), X[0]), at=X[:1]))
    with pytest.raises(ps.errors.InputError, match="eta, sigma2"):
        network_pile(mlp, weights(NARROW), exact, centre=weights(NARROW))
