"""The data of a nonlinear model given its physics: both are linearised at one solution."""

from typing import Any

import numpy as np
import pytest

import pilescore as ps

from ..models import DX, TIGHT, unit_nodes

RNG = np.random.default_rng(3)
X = np.linspace(0.0, 1.0, 12)
DATA = 1 / (1 + np.exp(2 - 4 * X)) + 0.01 * RNG.standard_normal(12)


def _logistic(p: Any, u: Any, u_x: Any, rate: Any) -> Any:
    return u_x - rate * u * (1 - u)


def _scaled(p: Any, u: Any, u_x: Any, rate: Any) -> Any:
    return (1 + u**2) * _logistic(p, u, u_x, rate)


def growth(function: Any, noise: float = 1e-3) -> ps.Model:
    equation = ps.Nonlinear(function, (ps.identity, DX), parameters={"rate": 3.5})
    physics = ps.impose(equation, 0.0, on=unit_nodes(np.linspace(0.0, 1.0, 6)), noise=noise)
    return ps.Model(ps.RBF(0.4), ps.observe(ps.identity, DATA, at=X, noise=0.01), physics)


def test_the_score_does_not_depend_on_how_an_exact_equation_is_written() -> None:
    """`F = 0` and `(1 + u²) F = 0` have the same solutions. The physics linearised at its own solution, zero, loses
    the factor `1 + u²`: the scores would differ by 1.5 nats."""
    one, other = (ps.pile(growth(each), score="given_physics") for each in (_logistic, _scaled))
    assert other.free_energy == pytest.approx(one.free_energy, abs=0.05)
    assert ps.pile(growth(_scaled)).free_energy > ps.pile(growth(_logistic)).free_energy + 1


def test_the_score_is_that_of_the_linearised_model() -> None:
    model = growth(_logistic, noise=0.1)
    solved = ps.solve_nonlinear(model, tolerance=TIGHT)
    expected = ps.pile(solved.model, score="given_physics")
    found = ps.pile(model, score="given_physics")
    assert found.value == pytest.approx(expected.value, abs=1e-7)
    assert dict(found.shares) == pytest.approx(dict(expected.shares), abs=1e-6)


def _burgers(p: Any, u: Any, u_x: Any, u_t: Any, u_xx: Any, speed: Any, viscosity: Any) -> Any:
    return u_t + speed * u * u_x - viscosity * u_xx


def test_a_state_alone_says_little_about_the_coefficients() -> None:
    """Values at one time hold no information on an evolution equation. A kernel with a bandwidth in time reads some
    into them, by how large it expects `u_t`; the prior of the state in `Evolution` hardly depends on the equation."""
    x = np.linspace(-3.0, 3.0, 25)
    values = 1 / np.cosh(x) ** 2 + 0.01 * RNG.standard_normal(25)
    strip = ps.Box(t=(0.0, 0.1), x=(-3.0, 3.0))
    dt, dx = ps.partials(strip)
    equation = ps.Nonlinear(_burgers, (ps.identity, dx, dt, dx**2), parameters={"speed": 1.0, "viscosity": 0.1})
    model = ps.Model(
        ps.kernels.Evolution(ps.RBF(0.8), (0.0, 0.1)),
        ps.observe(ps.identity, values, at=np.stack([0 * x, x], axis=1), noise=0.01),
        ps.impose(equation, 0.0, on=strip.interior(ps.GaussLegendre((3, 24))), noise=1e-3),
        eta=0.5,
    )
    spread = []
    for kernel in (model.kernel, ps.RBF([1.0, 0.8])):
        trials = [model.replace(kernel=kernel).replace({"viscosity": value}) for value in (0.1, 0.3, 1.0)]
        spread.append(np.ptp([ps.pile(each, score="given_physics").free_energy for each in trials]))
    assert spread[0] < 1.5
    assert spread[1] > 50
