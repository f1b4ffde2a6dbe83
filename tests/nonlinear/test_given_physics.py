"""The data of a nonlinear model given its physics: both are linearised at one solution."""

from typing import Any

import numpy as np
import pytest

import pilescore as ps
from pilescore.inference import Systems, WarmStart, systems_of
from pilescore.solvers import with_tolerances

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


AXIS = ps.Box(t=(0.0, 5.0))
(DT,) = ps.partials(AXIS)
GIVEN = ps.Score("physics")


def _saturating(p: Any, u: Any, u_t: Any, r: Any, K: Any) -> Any:
    return u_t - r * u * (1 - u / K)


def exact_growth(spread: float, r: float, K: float, eta: float) -> ps.Model:
    """Nine readings of `u' = r u (1 − u/K)`, `r = 1.5`, `K = 2`, and the equation, exact to tolerances fixed here."""
    times = np.linspace(0.0, 5.0, 9)
    readings = 2 / (1 + 9 * np.exp(-1.5 * times)) + spread * np.random.default_rng(4).standard_normal(9)
    equation = ps.Nonlinear(_saturating, (ps.identity, DT), parameters={"r": r, "K": K})
    physics = ps.impose(equation, 0.0, on=AXIS.interior(ps.GaussLegendre(20)))
    data = ps.observe(ps.identity, readings, at=times)
    model = ps.Model(ps.RBF(1.0), data, physics, gamma=2 * spread**2, eta=eta)
    return with_tolerances(model, 1e-4 / physics.size**0.5)  # 1e-4 at each node


def missed_in_tolerances(systems: Systems, model: ps.Model) -> float:
    """What the solution misses the equation by: the squares of residuals in tolerances, from the solution itself."""
    assert systems.solution is not None
    nodes, noise = model.physics[0].points, model.noise[model.rows[1]]
    linear = ps.posterior(systems.solution.model)
    u, u_t = linear.mean(nodes), linear.mean(nodes, DT)
    r, K = (float(model.parameters[name]) for name in "rK")
    return float(np.sum(_saturating(None, u, u_t, r, K) ** 2 / noise))


@pytest.mark.slow
@pytest.mark.parametrize("bandwidth", [1.0, 2.5])
def test_gradient_given_an_exact_curved_equation(bandwidth: float) -> None:
    """At bandwidth 1 the equation holds. At 2.5 it is missed, and most of the score and its slopes are what by."""
    model = exact_growth(0.02, r=1.4, K=2.1, eta=4.0).replace({"kernel.bandwidth": bandwidth})
    start = WarmStart(None, ps.solve_nonlinear(model, tolerance=TIGHT).expansion.values)
    found, gradient = systems_of(model, GIVEN, start).pile_and_gradient(list(model.parameters), GIVEN)
    missed = found.value - ps.pile(systems_of(model, GIVEN, start).solution.model, GIVEN).value
    assert missed < 0.01 if bandwidth == 1.0 else missed > 50
    step = 1e-3
    for name, value in model.parameters.items():

        def score(times: int, name: str = name, at: float = float(value)) -> float:
            return systems_of(model.replace({name: at * (1 + times * step)}), GIVEN, start).pile(GIVEN).value

        expected = (8 * (score(1) - score(-1)) - (score(2) - score(-2))) / (12 * step)
        noise = 18 / 12 * found.rounding / step  # four scores, each with its rounding, make the quotient
        assert float(gradient[name]) * float(value) == pytest.approx(expected, rel=5e-5, abs=noise), name


def test_what_an_exact_curved_equation_is_missed_by_is_scored() -> None:
    """A prior too stiff for the equation fits noisy data better than the solution does, where it bends the equation."""
    model = exact_growth(0.3, r=1.5, K=2.0, eta=4.0).replace({"eta": 0.3})
    right, stiff = (systems_of(model.replace({"kernel.bandwidth": h}), GIVEN) for h in (1.0, 1.5))
    without = [systems_of(each.whole.model, GIVEN).pile(GIVEN) for each in (right, stiff)]
    assert without[1].free_energy < without[0].free_energy - 1  # of the linearised models: the stiff one wins
    assert stiff.pile(GIVEN).free_energy > right.pile(GIVEN).free_energy + 1
    for systems, linear, h in zip((right, stiff), without, (1.0, 1.5), strict=True):
        found = systems.pile(GIVEN)
        expected = missed_in_tolerances(systems, model.replace({"kernel.bandwidth": h}))
        assert 9 * (found.value - linear.value) == pytest.approx(expected, rel=1e-3)
        assert sum(found.shares.values()) == pytest.approx(found.fit)
    longer = systems_of(model.replace({"kernel.bandwidth": 5.0}), GIVEN).pile(GIVEN)
    assert longer.free_energy > right.pile(GIVEN).free_energy + 50
    soft = model.replace(physics=ps.impose(model.physics[0].operator, 0.0, on=model.physics[0].nodes, rho=1e-3))
    assert systems_of(soft, GIVEN).missed is None  # a soft equation may be missed
