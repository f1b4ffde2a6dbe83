"""Coefficients of equations, and equations themselves, recovered from noisy data within their standard errors."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import pilescore as ps
from pilescore.studies import equations

pytestmark = pytest.mark.slow

STRIP = ps.Box(t=(0, 1), x=(0, 2 * np.pi))
SQUARE = ps.Box(t=(0, 1), x=(0, 1))


def convection(start: float, count: int = 150, side: int = 10) -> ps.Model:
    """Noisy values of sin(x − 30 t) and the equation f_t + β f_x = 0 with an unknown β."""
    dt, dx = ps.partials(STRIP)
    rng = np.random.default_rng(0)
    points = rng.uniform([0, 0], [1, 2 * np.pi], (count, 2))
    values = np.sin(points[:, 1] - 30 * points[:, 0]) + 0.1 * rng.standard_normal(count)
    return ps.Model(
        kernel=ps.AnisotropicRBF(theta=np.arctan(start), s=0.2, bandwidth=0.5),
        data=ps.observe(ps.identity, values=values, at=points),
        physics=ps.impose(dt + ps.parameter("beta", start) * dx, 0.0, on=STRIP.interior(ps.GaussLegendre(side))),
        gamma=0.02,
        rho=0.02,
    )


BOUNDS = {
    "beta": (10, 60),
    "kernel.s": (0.02, 5),
    "kernel.bandwidth": (0.05, 20),
    "gamma": (1e-3, 10),
    "rho": (1e-4, 10),
    "eta": (1e-2, 1e2),
}


@pytest.mark.parametrize("start", [20.0, 40.0])
@pytest.mark.parametrize(
    ("tied", "given_physics"),
    [(True, False), (False, False), (False, True)],
    ids=["pile, tied", "pile, free", "given physics, free"],
)
def test_speed_of_convection(start: float, tied: bool, given_physics: bool) -> None:
    ties = {"kernel.theta": lambda p: jnp.arctan(p["beta"])} if tied else None
    over = BOUNDS | ({} if tied else {"kernel.theta": (1.0, np.pi / 2)})
    starts = 1 if given_physics else 4  # PILE has a second optimum in which all is noise
    best = ps.minimize(
        convection(start), over, ties=ties, starts=starts, score=ps.Score("physics" if given_physics else "exact")
    )
    error = best.standard_errors["beta"]
    assert 0.05 < error < 0.5
    assert abs(best.values["beta"] - 30) < 2 * error
    assert abs(best.values["gamma"] - 0.02) < 0.006
    if tied:
        assert best.model.parameters["kernel.theta"] == pytest.approx(np.arctan(best.values["beta"]), rel=1e-12)
    if not given_physics:  # PILE tells the optima apart
        assert best.pile.value < -2.2 < -1 < max(run.pile for run in best.descents)


def heat(start: float, count: int, side: int, rho: float, seed: int) -> ps.Model:
    """Noisy values of two decaying modes of f_t = κ f_xx, κ = 0.1, with an unknown κ."""
    dt, dx = ps.partials(SQUARE)
    rng = np.random.default_rng(seed)
    points = rng.uniform(0, 1, (count, 2))
    t, x = points.T
    modes = [a * np.exp(-0.1 * (k * np.pi) ** 2 * t) * np.sin(k * np.pi * x) for a, k in ((1.0, 1), (0.5, 2))]
    cold = [ps.dirichlet(0.0, on=SQUARE.face(x=end)(ps.GaussLegendre(6)), rho=1e-4) for end in (0, 1)]
    interior = SQUARE.interior(ps.GaussLegendre(side))
    return ps.Model(
        kernel=ps.RBF(bandwidth=[0.5, 0.5]),
        data=ps.observe(ps.identity, values=sum(modes) + 0.05 * rng.standard_normal(count), at=points),
        physics=[ps.impose(dt - ps.parameter("kappa", start) * dx**2, 0.0, on=interior), *cold],
        gamma=0.005,
        rho=rho,
    )


@pytest.mark.parametrize("start", [0.03, 0.3])
def test_diffusivity_by_pile(start: float) -> None:
    over: dict[str, Any] = {"kappa": (0.001, 1), "kernel.bandwidth": (0.05, 5), "gamma": (1e-4, 1), "eta": (1e-2, 1e3)}
    best = ps.minimize(heat(start, count=600, side=6, rho=1e-2, seed=0), over)
    error = best.standard_errors["kappa"]
    assert error < 0.02
    assert abs(best.values["kappa"] - 0.1) < 2 * error


@pytest.mark.parametrize("seed", [1, 2])
def test_diffusivity_from_data_given_physics(seed: int) -> None:
    over = {
        "kappa": (0.001, 1),
        "kernel.bandwidth": (0.05, 5),
        "gamma": (1e-4, 1),
        "rho": (1e-6, 1),
        "eta": (1e-2, 1e3),
    }
    best = ps.minimize(heat(0.03, count=120, side=8, rho=1e-2, seed=seed), over, score="given_physics")
    error = best.standard_errors["kappa"]
    assert error < 0.01
    assert abs(best.values["kappa"] - 0.1) < 2 * error


@pytest.mark.parametrize("truth", equations.TRUTHS)
def test_the_right_equation_is_found(truth: str) -> None:
    found = equations.find(truth, starts=1)
    assert found.best_name == truth
    speed, diffusivity = equations.TRUTHS[truth]
    for name, exact in (("speed", speed), ("diffusivity", diffusivity)):
        if name in found.best.values:
            assert abs(found.best.values[name] - exact) < 2.5 * found.best.standard_errors[name]
    wrong = "diffusion" if truth != "diffusion" else "advection"
    assert found.table["nats"][wrong] > 10
    assert found.table["nats"].iloc[1] > 1


def test_data_given_physics_is_the_difference_of_two_evidences() -> None:
    model = heat(0.2, count=30, side=4, rho=0.01, seed=0)
    alone = ps.Model(model.kernel, physics=model.physics, rho=0.01)
    joint, prior, given = ps.pile(model), ps.pile(alone), ps.pile(model, score="given_physics")
    assert given.size == 30
    assert given.log_evidence == pytest.approx(joint.log_evidence - prior.log_evidence, rel=1e-12)
    assert given.value == pytest.approx(given.fit + given.complexity + given.constant, rel=1e-13)
    assert sum(given.shares.values()) == pytest.approx(given.fit, rel=1e-12)
    # and the Gaussian of the data conditioned on the physics, by its posterior
    post = ps.posterior(alone)
    block = model.data[0]
    mean = post.mean(block.points)
    covariance = post.covariance(block.points) + 0.0025 * np.eye(30)
    residual = block.values - mean
    exact = residual @ np.linalg.solve(covariance, residual) + np.linalg.slogdet(2 * np.pi * covariance)[1]
    assert given.value == pytest.approx(exact / 30, rel=1e-10)


@pytest.mark.parametrize("profiled", [False, True])
def test_gradient_of_data_given_physics(profiled: bool) -> None:
    model = heat(0.2, count=25, side=4, rho=0.05, seed=1)
    _, gradient = ps.pile_and_gradient(model, score=ps.Score("physics", profiled=profiled))
    assert set(gradient) == set(model.parameters)
    for name, value in model.parameters.items():
        for i in range(np.size(value)):
            target = f"{name}[{i}]" if np.ndim(value) else name
            at = float(np.ravel(value)[i])

            def score(v: float, target: str = target) -> float:
                return ps.pile(model.replace({target: v}), score=ps.Score("physics", profiled=profiled)).value

            h = 1e-3 * at
            slope = (8 * (score(at + h) - score(at - h)) - (score(at + 2 * h) - score(at - 2 * h))) / (12 * h)
            assert np.ravel(gradient[name])[i] == pytest.approx(slope, rel=1e-6, abs=1e-7), target


def test_data_given_physics_needs_both() -> None:
    model = heat(0.2, count=5, side=3, rho=0.05, seed=1)
    for one in (ps.Model(model.kernel, data=model.data), ps.Model(model.kernel, physics=model.physics)):
        with pytest.raises(ps.errors.InputError, match="unless the model has both data and physics"):
            ps.pile(one, score="given_physics")
    with pytest.raises(ps.errors.InputError, match="score: expected no other option with the printed formula"):
        ps.pile(model, score=ps.Score("physics", formula="printed"))
