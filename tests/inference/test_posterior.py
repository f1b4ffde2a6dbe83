"""The posterior against dense formulas, simulation and exact solutions."""

import contextlib
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pilescore as ps
from pilescore.covariance import tiles as layouts

STRIP = ps.Box(t=(0, 1), x=(0, 2))
DT, DX = ps.partials(STRIP)
H = np.array([0.5, 0.7])


def k(x, y):
    return jnp.exp(-0.5 * jnp.sum(((x - y) / H) ** 2))


def brute(first, second, left, right):
    """Return (A ⊗ B)k at all pairs by applying the operators to the formula above."""

    def entry(x, y):
        return left(lambda u: right(lambda v: k(u, v))(y))(x)

    return np.asarray(jax.vmap(lambda x: jax.vmap(lambda y: entry(x, y))(second))(first))


def simple_model(eta=1.3):
    rng = np.random.default_rng(0)
    nodes = STRIP.interior(ps.GaussLegendre((4, 5)))
    points = rng.uniform([0, 0], [1, 2], (9, 2))
    return ps.Model(
        kernel=ps.RBF(bandwidth=H),
        data=ps.observe(ps.identity, values=rng.standard_normal(9), at=points),
        physics=ps.impose(DT - 0.3 * DX**2, rng.standard_normal(20), on=nodes),
        gamma=0.04,
        rho=0.01,
        eta=eta,
    )


def dense(model, where, operator, other):
    """Return mean and covariance by the textbook formulas."""
    data, physics = model.blocks
    ops = [ps.identity, DT - 0.3 * DX**2]
    pts = [data.points, physics.points]
    eta = float(model.eta)
    C = eta * np.block(
        [[brute(p, q, a, b) for q, b in zip(pts, ops, strict=True)] for p, a in zip(pts, ops, strict=True)]
    )
    C += np.diag(np.concatenate([np.full(9, 0.02), 0.01 / (2 * physics.weights)]))
    left, right = (
        eta * np.hstack([brute(where, p, op, a) for p, a in zip(pts, ops, strict=True)]) for op in (operator, other)
    )
    mean = left @ np.linalg.solve(C, model.values)
    return mean, eta * brute(where, where, operator, other) - left @ np.linalg.solve(C, right.T)


WHERE = np.random.default_rng(5).uniform([0, 0], [1, 2], (7, 2))


@pytest.mark.slow
@pytest.mark.parametrize("operator", [ps.identity, DX, DT - 0.3 * DX**2, DT * DX + 2], ids=str)
@pytest.mark.parametrize("other", [None, DT], ids=str)
def test_mean_and_covariance_are_the_textbook_formulas(operator, other):
    model = simple_model()
    post = ps.posterior(model)
    mean, covariance = dense(model, WHERE, operator, operator if other is None else other)
    np.testing.assert_allclose(post.mean(WHERE, operator), mean, rtol=1e-9, atol=1e-11)
    got = post.covariance(WHERE, operator, other_operator=other)
    np.testing.assert_allclose(got, covariance, rtol=1e-8, atol=1e-10)
    if other is None:
        np.testing.assert_allclose(post.std(WHERE, operator) ** 2, np.diag(covariance), rtol=1e-8)


def test_covariance_between_different_points():
    post = ps.posterior(simple_model())
    whole = post.covariance(WHERE, DX)
    np.testing.assert_allclose(post.covariance(WHERE[:3], DX, other_points=WHERE[3:]), whole[:3, 3:], rtol=1e-9)


def test_predictions_do_not_depend_on_batches(monkeypatch):
    model = simple_model()
    whole = ps.posterior(model)
    expected = whole.mean(WHERE, DX), whole.std(WHERE, DX), whole.covariance(WHERE, DX)
    monkeypatch.setattr(layouts, "TILE", 3)
    batched = ps.posterior(model)
    for got, want in zip(
        (batched.mean(WHERE, DX), batched.std(WHERE, DX), batched.covariance(WHERE, DX)),
        expected,
        strict=True,
    ):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def test_samples_have_the_posterior_moments_jointly():
    post = ps.posterior(simple_model())
    count = 40_000
    drawn = post.samples(WHERE[:3], count, seed=1, operator=(ps.identity, DX)).reshape(count, 6)
    mean = np.concatenate([post.mean(WHERE[:3]), post.mean(WHERE[:3], DX)])
    cross = post.covariance(WHERE[:3], ps.identity, other_operator=DX)
    covariance = np.block([[post.covariance(WHERE[:3]), cross], [cross.T, post.covariance(WHERE[:3], DX)]])
    deviation = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(drawn.mean(0) - mean) < 5 * deviation / np.sqrt(count))
    error = np.abs(np.cov(drawn.T) - covariance) / np.outer(deviation, deviation)
    assert error.max() < 5 * np.sqrt(2 / count)


def test_samples_are_reproducible_and_differ_between_seeds():
    post = ps.posterior(simple_model())
    first, again, other = (post.samples(WHERE, 2, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    assert first.shape == (2, 7)


@pytest.mark.slow
def test_intervals_cover_what_the_model_draws():
    """Draw (f, Lf) and data from the model 500 times: 95% intervals cover 95% ± 2% of f and of Af."""
    line = ps.Box(x=(0, 1))
    (dx,) = ps.partials(line)
    operator = dx**2 + 3 * dx
    nodes = line.interior(ps.GaussLegendre(8))
    rng = np.random.default_rng(11)
    points, where = rng.uniform(0, 1, (6, 1)), np.linspace(0.03, 0.97, 12)[:, None]
    eta, gamma, rho = 1.5, 0.02, 0.5

    def model(y, r):
        return ps.Model(
            kernel=ps.Matern(4.5, bandwidth=0.4),
            data=ps.observe(ps.identity, values=y, at=points),
            physics=ps.impose(operator, r, on=nodes),
            gamma=gamma,
            rho=rho,
            eta=eta,
        )

    vague = ps.posterior(
        ps.Model(ps.Matern(4.5, bandwidth=0.4), ps.observe(ps.identity, 0.0, [[0.5]], gamma=1e12), eta=eta)
    )
    everything = np.vstack([points, nodes.points, where])
    joint = vague.samples(everything, 500, seed=0, operator=(ps.identity, operator))
    conditioned = ps.posterior(model(np.zeros(6), np.zeros(8)))
    inside = {ps.identity: [], operator: []}
    for draw in joint:
        y = draw[0, :6] + np.sqrt(gamma / 2) * rng.standard_normal(6)
        r = draw[1, 6:14] + np.sqrt(rho / (2 * nodes.weights)) * rng.standard_normal(8)
        post = ps.posterior(model(y, r))
        for i, op in enumerate(inside):
            truth, deviation = draw[i, 14:], conditioned.std(where, op)
            inside[op].append(np.abs(truth - post.mean(where, op)) <= 1.959964 * deviation)
    for op, hits in inside.items():
        assert abs(np.mean(hits) - 0.95) < 0.02, (str(op), np.mean(hits))


@pytest.mark.slow
def test_many_points_do_not_need_a_matrix_of_them():
    """Memory grows with the points, not with points times observations (29 here)."""
    post = ps.posterior(simple_model())
    count = 40_000
    points = np.random.default_rng(0).uniform([0, 0], [1, 2], (count, 2))
    post.mean(points[:1000]), post.std(points[:1000])
    tracemalloc.start()
    mean, std = post.mean(points), post.std(points)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert mean.shape == std.shape == (count,)
    assert peak < 8 * count * 14


def at_the_least_noise(data):
    """Return the posterior at the least noise with which a matrix can be factored: processors differ in it."""
    for gamma in 1e-16 * 1.5 ** np.arange(20):
        with contextlib.suppress(ps.errors.NotPositiveDefiniteError):
            return ps.posterior(ps.Model(ps.RBF(1.0), data, gamma=gamma))
    raise AssertionError("none of them can be factored")


def test_variances_below_rounding_are_reported():
    points = np.linspace(0, 1, 60)
    with pytest.warns(ps.errors.PrecisionWarning, match="uncertain"):
        post = at_the_least_noise(ps.observe(ps.identity, np.sin(points), points))
    with pytest.warns(ps.errors.PrecisionWarning, match="smaller than their rounding error"):
        std = post.std(np.linspace(0, 1, 400))
    assert np.all(std >= 0)
