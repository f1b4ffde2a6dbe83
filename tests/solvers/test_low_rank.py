"""The low-rank solver: bounds against dense factors and 50 digits; blocks of covariances and their derivatives."""

import math
import re

import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pilescore as ps
from pilescore.covariance.gram import Weights
from pilescore.covariance.linear_operator import KernelCovariance
from pilescore.covariance.tiles import assembly
from pilescore.model import as_solver
from pilescore.solvers import low_rank, pivoted_cholesky
from pilescore.solvers.lapack import DenseFactored
from pilescore.solvers.pivoted_cholesky import NystromApproximation, Pivots, pivoted
from pilescore.solvers.system import solve

SQUARE = ps.Box(x=(-1, 1), y=(-1, 1))
DX, DY = ps.partials(SQUARE)


def poisson(kernel=None, nodes=14, data=60, gamma=1e-2, rho=1e-2, seed=0, extra=()):
    rng = np.random.default_rng(seed)
    at = rng.uniform(-1, 1, (data, 2))
    values = np.sin(3 * at[:, 0]) + 0.1 * rng.standard_normal(data)
    physics = [
        ps.impose(DX**2 + DY**2, lambda p: -9 * jnp.sin(3 * p[0]), on=SQUARE.interior(ps.GaussLegendre(nodes))),
        ps.impose(ps.identity, lambda p: jnp.sin(3 * p[0]), on=SQUARE.boundary(ps.GaussLegendre(5))),
        *extra,
    ]
    kernel = ps.RBF(bandwidth=0.6) if kernel is None else kernel
    return ps.Model(kernel, data=ps.observe(ps.identity, values, at=at), physics=physics, gamma=gamma, rho=rho)


def with_functionals(seed=0):
    mean = ps.integral(SQUARE.interior(ps.GaussLegendre(4)))
    rng = np.random.default_rng(seed)
    at = rng.uniform(-1, 1, (40, 2))
    speed = ps.parameter("speed", 1.3)
    return ps.Model(
        ps.RBF(bandwidth=[0.5, 0.8]),
        data=[ps.observe(ps.identity, np.cos(at[:, 1]), at=at), ps.observe(mean, 0.2)],
        physics=ps.impose(DX + speed * DY, 0.3, on=SQUARE.interior(ps.GaussLegendre(8))),
        gamma=1e-2,
        rho=3e-2,
    )


def covariance_of(model):
    parts = assembly(model.blocks)
    noise = np.asarray(model.temperatures)[parts.block] * parts.spread
    return KernelCovariance(model.kernel, parts.rows, float(model.eta), parts.values, noise)


def full(covariance):
    lower = np.tril(covariance.dense())
    return lower + np.tril(lower, -1).T


# Blocks of covariances, and their derivatives.


@pytest.mark.parametrize("model", [poisson(), with_functionals()], ids=["points", "functionals"])
def test_blocks_strips_products_and_variances_match_the_dense_matrix(model):
    covariance, rng = covariance_of(model), np.random.default_rng(1)
    whole = full(covariance)
    which = rng.permutation(covariance.size)[: covariance.size // 2]
    part = covariance.select(which)
    np.testing.assert_allclose(covariance.block(part, part), whole[np.ix_(which, which)], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(covariance.variances(part), whole.diagonal()[which], rtol=1e-12)
    seen = []
    for where, strip in covariance.strips():
        seen += range(where.start, where.stop)
        np.testing.assert_allclose(covariance.block(strip, part), whole[where][:, which], rtol=1e-12, atol=1e-12)
    assert seen == list(range(covariance.size))
    vectors = rng.standard_normal((covariance.size, 3))
    np.testing.assert_allclose(covariance.product(vectors), whole @ vectors, rtol=1e-11, atol=1e-10)
    np.testing.assert_allclose(covariance.applied(part, vectors[:, 0]), whole[which] @ vectors[:, 0], atol=1e-10)


def _tangents(model, covariance):
    """Yield each tangent with its matrices of derivatives, from differences of dense matrices."""

    def differences(name, index=()):
        value = np.asarray(model.parameters[name], dtype=float)
        moved = []
        for sign in (1, -1):
            there = value.copy()
            there[index] += sign * 1e-5
            moved.append(full(covariance_of(model.replace({name: there if there.ndim else float(there)}))))
        return (moved[0] - moved[1]) / 2e-5

    yield covariance.tangent([0]), [differences("kernel.bandwidth", (i,)) for i in range(2)]
    if "speed" in model.parameters:
        from pilescore.model.model import named_paths
        from pilescore.solvers.system import _moved

        where = named_paths(model)["speed"]
        yield covariance.coefficient_tangent([_moved(model, where, np.ones(()))]), [differences("speed")]


@pytest.mark.slow
def test_tangents_contract_blocks_diagonals_and_whole_matrices():
    model, rng = with_functionals(), np.random.default_rng(2)
    covariance = covariance_of(model)
    which, others = (rng.permutation(covariance.size)[:40] for _ in range(2))
    for tangent, matrices in _tangents(model, covariance):
        weights = rng.standard_normal((40, 40))
        found = tangent.block(covariance.select(which), covariance.select(others), weights)
        wanted = [np.vdot(weights, each[np.ix_(which, others)]) for each in matrices]
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
        one = rng.standard_normal(40)
        found = tangent.variances(covariance.select(which), one)
        np.testing.assert_allclose(found, [one @ each.diagonal()[which] for each in matrices], rtol=1e-6, atol=1e-6)
        square, vector = rng.standard_normal((covariance.size,) * 2), rng.standard_normal(covariance.size)
        square = square + square.T
        found = tangent.dense(Weights(square, vector, 2.0))
        wanted = [np.vdot(square - np.outer(vector, vector) / 2, each) for each in matrices]
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-5)


# The partial factor.


def test_pivots_of_a_small_matrix_reproduce_it():
    a = np.random.default_rng(0).standard_normal((9, 5))
    matrix = a @ a.T  # of rank five
    rows, triangle = pivoted(matrix, 0.0, np.full(9, 1e-12))
    assert len(rows) == 5
    np.testing.assert_allclose(triangle @ triangle.T, matrix[np.ix_(rows, rows)], rtol=1e-12)
    np.testing.assert_allclose(matrix[:, rows] @ np.linalg.solve(matrix[np.ix_(rows, rows)], matrix[rows]), matrix)


@pytest.mark.parametrize("pool", [20_000, 100])
def test_the_approximation_is_below_the_covariance_and_matches_dense_formulas(pool, monkeypatch):
    monkeypatch.setattr("pilescore.solvers.pivoted_cholesky.MOST_CANDIDATE_ROWS", pool)
    monkeypatch.setattr(pivoted_cholesky, "CACHED_BYTES", 0.0 if pool == 100 else 1e9)
    covariance = covariance_of(poisson())
    C = full(covariance) + np.diag(covariance.noise)
    pivots = Pivots(covariance)
    pivots.extend(goal=0.0, limit=60)
    assert 60 <= pivots.rank <= 90
    found = NystromApproximation(covariance, np.array(pivots.chosen))
    columns = full(covariance)[:, found.chosen]
    M = np.diag(covariance.noise) + columns @ np.linalg.solve(columns[found.chosen], columns.T)
    E = C - M
    assert np.linalg.eigvalsh(E)[0] > -1e-9 * np.linalg.eigvalsh(C)[-1]
    np.testing.assert_allclose(found.alpha, np.linalg.solve(M, covariance.values), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.quadratic, covariance.values @ np.linalg.solve(M, covariance.values), rtol=1e-8)
    np.testing.assert_allclose(found.logdet.lower, np.linalg.slogdet(M)[1], rtol=1e-9)
    assert found.logdet.lower <= np.linalg.slogdet(C)[1] <= found.logdet.upper
    np.testing.assert_allclose(found.inverse / covariance.noise, np.linalg.inv(M).diagonal(), rtol=1e-6, atol=1e-7)
    vectors = np.random.default_rng(3).standard_normal((covariance.size, 4))
    np.testing.assert_allclose(found.solve(vectors), np.linalg.solve(M, vectors), rtol=1e-5, atol=1e-6)
    assert np.all(np.einsum("ij,ik,kj->j", vectors, E, vectors) <= found.distance(vectors))
    if pool == 20_000:
        np.testing.assert_allclose(pivots.residual.sum(), found.slack.sum(), rtol=1e-3)


def test_rows_that_the_sample_missed_become_pivots():
    """A few rows far away from all others are found by the pass over all rows."""
    at = np.r_[np.linspace(0, 1, 3000), 50 + np.arange(5.0)]
    model = ps.Model(ps.RBF(bandwidth=0.3), data=ps.observe(ps.identity, np.sin(at), at=at), gamma=1e-4)
    covariance = covariance_of(model)
    pivots = Pivots(covariance)
    pivots.pool = np.arange(200)
    pivots.subset = covariance.select(pivots.pool)
    pivots.root, pivots.residual, pivots.initial = pivots.root[:200], pivots.residual[:200], pivots.initial[:200]
    pivots.factor = np.empty((200, 0))
    pivots.extend(goal=1e-3, limit=100)
    before = pivots.rank
    pivots.add_rows(np.arange(2990, 3005))
    assert pivots.trace > 1e3
    pivots.extend(goal=1e-3, limit=100)
    assert set(range(3000, 3005)) <= set(pivots.chosen[before:])


def test_a_residual_made_negative_by_rounding_ends_the_search():
    """Otherwise, a search that lowers its goal would never end."""
    pivots = Pivots(covariance_of(poisson(nodes=4, data=10)))
    pivots.extend(goal=0.0, limit=5)
    assert not pivots.exhausted
    pivots.residual[:] = -1e-10
    pivots.extend(goal=1e-300, limit=20)
    assert pivots.exhausted


# Bounds on the score.


def contains(score, exact, slack=0.0):
    return score.lower - slack <= exact <= score.upper + slack


CASES = st.fixed_dictionaries(
    {
        "bandwidth": st.floats(0.25, 2.0),
        "gamma": st.floats(-6, 1),
        "rho": st.floats(-6, 1),
        "matern": st.booleans(),
        "seed": st.integers(0, 100),
        "profiled": st.booleans(),
        "given": st.booleans(),
        "tolerance": st.sampled_from([1e-2, 1e-3, 1e-5]),
    }
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pilescore.errors.PrecisionWarning")
@given(CASES)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_the_interval_contains_the_dense_score_or_says_how_wide_it_is(case):
    """The noise is at least 1e-6 of the prior variance of each block. Errors must carry a valid interval, too."""
    h = case["bandwidth"]
    kernel = ps.Matern(4.5, bandwidth=h) if case["matern"] else ps.RBF(bandwidth=h)
    origin = (0.0, 0.0)
    pairs = [(a, b) for a in ((2, 0), (0, 2)) for b in ((2, 0), (0, 2))]
    prior = sum(float(kernel.derivative(a, b, origin, origin)) for a, b in pairs)
    model = poisson(kernel, nodes=9, data=30, seed=case["seed"], gamma=10 ** case["gamma"])
    model = model.replace({"rho": prior * 10 ** case["rho"] * float(model.physics[0].weights.mean())})
    exact = ps.pile(model, score=ps.Score("physics" if case["given"] else "exact", profiled=case["profiled"]))
    solver = ps.solvers.LowRank(tolerance=case["tolerance"], rank=model.size)
    slack = 2.0 * exact.rounding
    try:
        score = ps.pile(
            model.replace(solver=solver),
            score=ps.Score("physics" if case["given"] else "exact", profiled=case["profiled"]),
        )
    except ps.errors.ToleranceError as failure:
        score, reached = None, (failure.lower, failure.upper)
    if score is None:  # of the joint evidence, or of that of the physics alone
        assert case["given"] or reached[0] - slack <= ps.pile(model).value <= reached[1] + slack
        return
    if not case["given"] and not case["profiled"]:
        assert score.upper - score.lower <= case["tolerance"]
    assert score.lower <= score.value <= score.upper
    assert contains(score, exact.value, slack)


def test_the_interval_contains_fifty_digits():
    at = np.linspace(0, 1, 40)
    model = ps.Model(ps.RBF(bandwidth=0.3), data=ps.observe(ps.identity, np.sin(5 * at), at=at), gamma=2e-6)
    with mpmath.workdps(50):
        x = [mpmath.mpf(float(each)) for each in at]
        h = mpmath.mpf(float(model.kernel.bandwidth))
        C = mpmath.matrix(40, 40)
        for i in range(40):
            for j in range(40):
                C[i, j] = mpmath.exp(-((x[i] - x[j]) ** 2) / (2 * h**2)) + (mpmath.mpf(2e-6) / 2 if i == j else 0)
        y = mpmath.matrix([mpmath.mpf(float(v)) for v in model.values])
        L = mpmath.cholesky(C)
        logdet = 2 * sum(mpmath.log(L[i, i]) for i in range(40))
        quadratic = (y.T * mpmath.cholesky_solve(C, y))[0]
        exact = float((quadratic + logdet) / 40 + mpmath.log(2 * mpmath.pi))
    score = ps.pile(model.replace(solver=ps.solvers.LowRank(tolerance=1e-6, rank=40)))
    assert score.upper - score.lower < 1e-6
    assert contains(score, exact)


def test_without_products_the_trace_bounds_the_quadratic_form(monkeypatch):
    monkeypatch.setattr(low_rank, "MOST_FOR_PRODUCTS", 0)
    at = np.random.default_rng(0).uniform(-1, 1, (300, 2))
    model = ps.Model(ps.RBF(bandwidth=0.8), data=ps.observe(ps.identity, np.sin(3 * at[:, 0]), at=at), gamma=1e-2)
    score = ps.pile(model.replace(solver="low_rank"))
    assert " 0 products" in score.solver
    assert contains(score, ps.pile(model).value)
    assert score.upper - score.lower <= 1e-3


def test_the_error_of_a_missed_tolerance_has_the_interval():
    model = poisson(ps.Matern(2.5, bandwidth=0.1), nodes=20)
    with pytest.raises(ps.errors.ToleranceError, match=r"rank of 30 is too small.*Raise rank \(now 30\)") as caught:
        ps.pile(model.replace(solver=ps.solvers.LowRank(rank=30)))
    assert caught.value.lower <= ps.pile(model).value <= caught.value.upper


def test_the_error_names_rounding_if_the_noise_is_too_small():
    at = np.linspace(0, 1, 60)
    model = ps.Model(ps.RBF(bandwidth=0.5), data=ps.observe(ps.identity, np.sin(5 * at), at=at), gamma=1e-14)
    with pytest.raises(ps.errors.ToleranceError, match="rounding hides the residual"):
        ps.pile(model.replace(solver=ps.solvers.LowRank(tolerance=1e-3, rank=60)))


def test_unknown_solvers_are_refused():
    with pytest.raises(ps.errors.InputError, match="Did you mean 'low_rank'"):
        ps.pile(poisson(nodes=3, data=3).replace(solver="lowrank"))
    with pytest.raises(ps.errors.InputError, match=r"expected one of 'dense', .*'auto'"):
        as_solver(3)


@pytest.mark.parametrize(("argument", "value"), [("tolerance", 0.0), ("tolerance", -1.0), ("rank", 0)])
def test_options_are_checked(argument, value):
    with pytest.raises(ps.errors.InputError, match=argument):
        ps.solvers.LowRank(**{argument: value})


# Solutions, gradients, posteriors, searches.


def test_solutions_are_within_their_bounds():
    model = poisson(ps.RBF(bandwidth=0.4))
    system = solve(model)
    found = ps.solvers.LowRank().factor(covariance_of(model))
    right = np.random.default_rng(0).standard_normal((model.size, 3))
    assert isinstance(system.factored, DenseFactored)
    exact, _ = system.factored.solve(right)
    value, error = found.solve(right.copy())
    assert np.all(np.abs(value - exact) <= error + 1e-9 * np.abs(exact).max())
    assert error.max() < 1e-2 * np.abs(exact).max()
    np.testing.assert_allclose(found.reduced(right.copy()), right.T @ exact, rtol=1e-7, atol=1e-6)
    np.testing.assert_allclose(found.reduced_diagonal(right.copy()), (right.T @ exact).diagonal(), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("score", [ps.Score(), ps.Score(profiled=True), ps.Score("physics")], ids=str)
def test_gradients_converge_to_the_dense_ones(score):
    for model in (poisson(), with_functionals()):
        _, exact = ps.pile_and_gradient(model, score=score)
        low_rank_model = model.replace(solver=ps.solvers.LowRank(tolerance=1e-7, rank=model.size))
        _, found = ps.pile_and_gradient(low_rank_model, score=score)
        assert found.keys() == exact.keys()
        for name in exact:
            np.testing.assert_allclose(found[name], exact[name], rtol=2e-4, atol=2e-5, err_msg=name)


def test_the_gradient_is_the_derivative_of_the_midpoint(monkeypatch):
    """Finite differences with fixed pivots, for a residual whose trace is not small."""
    model = poisson(ps.RBF(bandwidth=0.5))
    monkeypatch.setattr(low_rank, "MOST_FOR_PRODUCTS", 0)
    pivots = Pivots(covariance_of(model))
    pivots.extend(goal=0.0, limit=70)

    def midpoint(there):
        found = NystromApproximation(covariance_of(there), np.array(pivots.chosen))
        return (found.logdet.value + found.quadratic) / there.size, found

    _, found = midpoint(model)
    assert found.logdet.width > 0.1
    pull = pivoted_cholesky.LowRankCotangent(found, found.alpha, 1.0)
    slope = pull.contract(covariance_of(model).tangent([0]))[0] / model.size
    step = 1e-5
    up, down = (midpoint(model.replace({"kernel.bandwidth": 0.5 + sign * step}))[0] for sign in (1, -1))
    np.testing.assert_allclose(slope, (up - down) / (2 * step), rtol=1e-5)
    up, down = (midpoint(model.replace({"gamma": 1e-2 * (1 + sign * step)}))[0] for sign in (1, -1))
    rows = assembly(model.blocks)
    slope = float((pull.diagonal * rows.spread)[rows.block == 0].sum()) / model.size
    np.testing.assert_allclose(slope, (up - down) / (2e-2 * step), rtol=1e-5)


def test_posteriors_match_the_dense_solver():
    model = poisson()
    exact, found = ps.posterior(model), ps.posterior(model.replace(solver="low_rank"))
    points = np.random.default_rng(5).uniform(-1, 1, (20, 2))
    laplacian = DX**2 + DY**2
    np.testing.assert_allclose(found.mean(points), exact.mean(points), atol=1e-5)
    np.testing.assert_allclose(found.std(points), exact.std(points), rtol=1e-4)
    np.testing.assert_allclose(
        found.mean(points, operator=laplacian), exact.mean(points, operator=laplacian), atol=1e-3
    )
    np.testing.assert_allclose(found.covariance(points), exact.covariance(points), atol=1e-7)
    other = found.covariance(points, other_operator=DX)
    np.testing.assert_allclose(other, exact.covariance(points, other_operator=DX), atol=1e-6)
    assert np.isfinite(found.samples(points, 2, seed=0)).all()


@pytest.mark.slow
def test_minimize_finds_the_dense_minimum_and_keeps_the_solver():
    model = poisson(nodes=10)
    over = {"kernel.bandwidth": (0.1, 3.0), "rho": (1e-5, 1e2)}
    exact = ps.minimize(model, over)
    found = ps.minimize(model.replace(solver=ps.solvers.LowRank(tolerance=1e-4, rank=model.size)), over)
    assert found.pile.value == pytest.approx(exact.pile.value, abs=2e-4)
    assert found.values["kernel.bandwidth"] == pytest.approx(exact.values["kernel.bandwidth"], rel=2e-2)
    assert isinstance(found.model.solver, ps.solvers.LowRank)
    assert found.model.replace({"rho": 1.0}).solver == found.model.solver


@pytest.mark.slow
def test_data_free_scores_have_bounds():
    strip = ps.Box(t=(0, 1), x=(0, 3))
    dt, dx = ps.partials(strip)
    advection = ps.impose(dt + 2 * dx, 0.0, on=strip.interior(ps.GaussLegendre(16)))
    exact = ps.data_free_pile(ps.Model(ps.RBF(bandwidth=1.0), physics=advection))
    found = ps.data_free_pile(
        ps.Model(ps.RBF(bandwidth=1.0), physics=advection, solver=ps.solvers.LowRank(tolerance=1e-5))
    )
    assert found.determinant.lower <= exact.value <= found.determinant.upper
    assert found.determinant.upper - found.determinant.lower <= 1e-5 * advection.size
    assert exact.determinant.lower == exact.determinant.upper == exact.value


# The automatic choice.


def test_auto_states_its_choice_and_the_reason(monkeypatch):
    monkeypatch.setattr("pilescore.solvers.auto.SMALL", 100)
    monkeypatch.setattr(low_rank, "ALWAYS_TRIED_RANK", 10)
    at = np.random.default_rng(0).uniform(-1, 1, (200, 2))
    scattered = ps.observe(ps.identity, np.sin(3 * at[:, 0]), at=at)
    grid = ps.impose(ps.identity, 1.0, on=SQUARE.interior(ps.GaussLegendre(12)))
    cases = {
        "is at most 100; dense": poisson(nodes=3, data=5),
        "kernel is smooth; low rank": ps.Model(ps.RBF(bandwidth=1.0), data=scattered, gamma=0.1),
        "kernel is rough, .*; dense": ps.Model(ps.Matern(1.5, bandwidth=1.0), data=scattered, gamma=0.1),
        "one tensor grid.*kronecker": ps.Model(ps.RBF(bandwidth=0.5), physics=grid, rho=0.1),
        "low rank missed .*; dense": ps.Model(ps.RBF(bandwidth=0.02), data=scattered, gamma=0.1),
    }
    for words, model in cases.items():
        score = ps.pile(model.replace(solver="auto"))
        assert re.search(words, score.solver, re.IGNORECASE), (words, score.solver)
        assert contains(score, ps.pile(model).value, 1e-9)


def test_memory_and_operations_are_estimated():
    model = poisson()
    n = model.size
    dense = ps.solvers.estimate_cost(model)
    assert dense.memory == 8 * n**2
    assert dense.flops == pytest.approx(n**3 / 3)
    assert ps.solvers.estimate_cost(model.replace(solver="low_rank")).memory > 0
    assert "low rank" in repr(ps.solvers.estimate_cost(model.replace(solver="low_rank")))


def test_exact_solvers_have_equal_bounds():
    score = ps.pile(poisson(nodes=4, data=4))
    assert score.lower == score.value == score.upper
    assert math.isfinite(score.lower)


def test_nonlinear_models_are_solved_densely():
    line = ps.Box(x=(0, 1))
    (dx,) = ps.partials(line)
    bent = ps.Nonlinear(lambda p, u, u_x: u_x + u**2, of=(ps.identity, dx))
    physics = ps.impose(bent, 0.0, on=line.interior(ps.GaussLegendre(4)))
    model = ps.Model(ps.RBF(bandwidth=0.5), physics=physics, rho=1.0)
    with pytest.raises(ps.errors.InputError, match="expected 'dense' or 'auto' for a nonlinear model"):
        ps.minimize(model.replace(solver="low_rank"), {"rho": (0.1, 10)})
