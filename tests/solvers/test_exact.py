"""Exact equations: their tolerance, the limit that they stand for, and contradictions."""

import jax.numpy as jnp
import numpy as np
import pytest

import pilescore as ps
from pilescore.solvers import TIGHTEST, TOLERANCE, present_tolerance, solve, with_tolerances

LINE = ps.Box(x=(0, 2))
(DX,) = ps.partials(LINE)
X = np.linspace(0.1, 1.9, 9)
DATA = ps.observe(ps.identity, np.exp(-X), at=X, noise=0.01)


def exact_model(operator=DX + ps.identity, value=0.0, count: int = 30, **options) -> ps.Model:
    return ps.Model(ps.RBF(0.5), DATA, ps.impose(operator, value, on=LINE.interior(ps.GaussLegendre(count))), **options)


def test_physics_without_noise_is_exact_unless_the_model_has_a_temperature() -> None:
    assert exact_model().is_exact(1)
    assert not exact_model(rho=0.1).is_exact(1)
    assert "rho" not in exact_model().parameters
    assert "rho" in exact_model(rho=0.1).parameters
    assert "rho" not in repr(exact_model())


def test_tolerance_is_relative_to_the_usual_size_of_terms() -> None:
    model = exact_model(eta=4.0)
    settled = with_tolerances(model)
    deviation = np.sqrt(settled.noise[settled.rows[1]])
    # Var[f'] + Var[f] = σ² (1/h² + 1), with σ the size of the data and h = 0.3 of the domain.
    length = 0.3 * np.ptp(np.concatenate([block.points for block in model.blocks]))
    count = model.blocks[1].size
    expected = TOLERANCE * np.sqrt(count * np.mean(model.data[0].values ** 2) * (1 / length**2 + 1))
    np.testing.assert_allclose(deviation, expected, rtol=1e-10)
    assert settled.parameters.keys() == model.parameters.keys()
    assert with_tolerances(settled) is settled
    tighter = with_tolerances(settled, 0.1 * TOLERANCE, renew=True)
    np.testing.assert_allclose(tighter.noise[tighter.rows[1]], 0.01 * settled.noise[settled.rows[1]])


def test_finer_nodes_do_not_tighten_an_equation() -> None:
    model = exact_model()
    finer = model.replace(physics=model.physics[0].refined(3.0))
    totals = [np.sum(1.0 / with_tolerances(each).noise[each.rows[1]]) for each in (model, finer)]
    assert finer.size > model.size
    assert totals[1] == pytest.approx(totals[0], rel=0.01)  # finer nodes reach a little nearer to the ends


@pytest.mark.parametrize("eta", [1.0, 1e10])
@pytest.mark.parametrize("tolerance", [TIGHTEST, 3e-7, 1e-5])
def test_the_present_tolerance_is_the_one_that_was_set(tolerance: float, eta: float) -> None:
    model = exact_model(eta=eta)
    assert present_tolerance(with_tolerances(model, tolerance)) == pytest.approx(tolerance)
    assert present_tolerance(model) == TIGHTEST


def test_tolerance_depends_on_the_prior_only_where_rounding_does() -> None:
    """A shorter kernel or a wider prior must not loosen an equation."""
    model = exact_model()
    before = with_tolerances(model).noise[-1]
    assert with_tolerances(model.replace({"kernel.bandwidth": 0.4, "eta": 2.0})).noise[-1] == before
    assert with_tolerances(model.replace({"eta": 1e10})).noise[-1] > before
    assert np.isfinite(solve(with_tolerances(model.replace({"eta": 1e10}))).logdet.value)


def test_tolerance_follows_large_values_and_vanishing_operators() -> None:
    large = exact_model(ps.identity, 1e3)
    assert np.sqrt(with_tolerances(large).noise[-1]) == pytest.approx(
        10 * TOLERANCE * 1e3 * np.sqrt(large.blocks[1].size)
    )
    vanishing = exact_model(ps.coefficient(lambda p: jnp.where(p[0] < 1, 0.0, 1.0)) * ps.identity, 0.0)
    noise = with_tolerances(vanishing).noise[vanishing.rows[1]]
    assert np.all(noise == noise[0])


@pytest.mark.parametrize("rate", [0.5, 2.0])
def test_an_exact_equation_leaves_its_solutions_only(rate: float) -> None:
    """Given `f' + rate f = 0`, every sample is a multiple of `exp(−rate x)`."""
    line = ps.impose(DX + rate * ps.identity, 0.0, on=LINE.interior(ps.GaussLegendre(30)))
    loose = ps.observe(ps.identity, [0.0], at=[0.0], noise=1e3)  # a datum that says nothing
    posterior = ps.posterior(ps.Model(ps.RBF(0.5), loose, line))
    points = np.linspace(0, 2, 7)
    covariance = posterior.covariance(points)
    shape = np.exp(-rate * points)
    np.testing.assert_allclose(covariance, covariance[0, 0] * np.outer(shape, shape), rtol=1e-4)


def test_posterior_given_an_exact_equation_is_least_squares() -> None:
    """The amplitude of the only solution, with a prior that is far wider than the data."""
    shape, noise = np.exp(-X), 0.01
    values = 1.3 * shape + noise * np.random.default_rng(0).standard_normal(len(X))
    model = ps.Model(
        ps.RBF(0.5),
        ps.observe(ps.identity, values, at=X, noise=noise),
        ps.impose(DX + ps.identity, 0.0, on=LINE.interior(ps.GaussLegendre(30))),
        eta=100.0,
    )
    posterior = ps.posterior(model)
    amplitude = values @ shape / (shape @ shape)
    assert posterior.mean([0.0])[0] == pytest.approx(amplitude, abs=0.02 * noise)
    assert posterior.std([0.0])[0] == pytest.approx(noise / np.sqrt(shape @ shape), rel=0.01)


def test_functionals_and_nonlinear_equations_can_be_exact() -> None:
    mean = ps.impose(ps.integral(LINE.interior(ps.GaussLegendre(8))), 1.0)
    posterior = ps.posterior(ps.Model(ps.RBF(0.5), DATA, mean))
    nodes = LINE.interior(ps.GaussLegendre(20))
    assert nodes.weights @ posterior.mean(nodes.points) == pytest.approx(1.0, abs=1e-3)
    logistic = ps.Nonlinear(lambda p, u, du: du + u**2, of=(ps.identity, DX))  # u = 1/(1 + x)
    data = ps.observe(ps.identity, 1 / (1 + X), at=X, noise=1e-3)
    solved = ps.solve_nonlinear(ps.Model(ps.RBF(0.5), data, ps.impose(logistic, 0.0, on=nodes)))
    assert solved.converged
    np.testing.assert_allclose(ps.posterior(solved.model).mean([0.0, 2.0]), [1.0, 1 / 3], atol=2e-3)


BOUNDARY = ps.GaussLegendre(1)


@pytest.mark.parametrize(
    ("blocks", "named"),
    [
        (
            [
                ps.dirichlet(0.0, on=LINE.face(x=0)(BOUNDARY), name="left"),
                ps.dirichlet(1.0, on=LINE.face(x=0)(BOUNDARY), name="left again"),
            ],
            "'left again' .Id = 1. by 0.99 at .0.",
        ),
        ([ps.impose(DX**2, 1.0, on=LINE.interior(ps.GaussLegendre(10)), name="bent")], "'bent'.* by 0\\.(5|99)"),
        ([ps.dirichlet(lambda p: p[0] ** 2, on=LINE.interior(ps.GaussLegendre(5)), name="parabola")], "'parabola'"),
    ],
)
def test_contradictions_name_the_blocks_before_any_long_work(blocks: list, named: str) -> None:
    straight = ps.impose(DX**2, 0.0, on=LINE.interior(ps.GaussLegendre(10)), name="straight")
    model = ps.Model(ps.RBF(0.5), DATA, [straight, *blocks])
    for attempt in (ps.pile, ps.posterior, lambda m: ps.minimize(m, {"kernel.bandwidth": (0.1, 5)})):
        with pytest.raises(ps.errors.InputError, match=rf"contradict each other.*{named}"):
            attempt(model)


@pytest.mark.slow
def test_a_kernel_that_is_too_long_is_not_a_contradiction() -> None:
    wave = ps.impose(DX**2, lambda p: -jnp.sin(9 * p[0]), on=LINE.interior(ps.GaussLegendre(40)))
    model = ps.Model(ps.RBF(1.0), DATA, wave)
    best = ps.minimize(model, {"kernel.bandwidth": (0.1, 5), "eta": (1e-3, 1e3)})
    assert best.values["kernel.bandwidth"] < 1.0


def test_data_free_scores_take_a_temperature_of_one() -> None:
    physics = ps.impose(DX, 0.0, on=LINE.interior(ps.GaussLegendre(10)))
    implied, stated = (ps.data_free_pile(ps.Model(ps.RBF(0.5), physics=physics, rho=rho)) for rho in (None, 1.0))
    assert implied == stated
