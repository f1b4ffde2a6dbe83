"""Searches with exact equations: certified answers, enough nodes, the default score and its guard."""

import dataclasses
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import pilescore as ps
from pilescore.search import on_common_nodes, search_space
from pilescore.search import steps as steps_module
from pilescore.search.curvature import Curvature
from pilescore.search.descent import Descent
from pilescore.search.nodes import SHORTEST_LENGTH, fine_enough, floored, node_gaps, node_grids, with_nodes
from pilescore.search.objective import Objective
from pilescore.search.resolution import check_resolution
from pilescore.search.steps import Steps
from pilescore.solvers import present_tolerance

LINE = ps.Box(x=(0, 1))
(DX,) = ps.partials(LINE)


def saturation(x: list[float], y: list[float], end: float, rate: float, count: int) -> ps.Model:
    """`y = a (1 − exp(−b x))` as the solution of `y″ + b y′ = 0`, `y(0) = 0`."""
    line = ps.Box(x=(0, end))
    (dx,) = ps.partials(line)
    size = float(np.mean(np.square(y)))
    return ps.Model(
        ps.RBF(0.3 * end),
        ps.observe(ps.identity, y, at=x),
        [
            ps.impose(dx**2 + ps.parameter("b", rate) * dx, 0.0, on=line.interior(ps.GaussLegendre(count))),
            ps.dirichlet(0.0, on=line.face(x=0)(ps.GaussLegendre(1))),
        ],
        gamma=1e-3 * size,
        eta=size,
    )


def bounds(model: ps.Model, rates: tuple[float, float]) -> dict[str, tuple[float, float]]:
    size, length = float(model.eta), float(model.parameters["kernel.bandwidth"])
    return {
        "b": rates,
        "kernel.bandwidth": (0.05 * length, 30 * length),
        "gamma": (1e-12 * size, 2 * size),
        "eta": (1e-3 * size, 1e6 * size),
    }


# NIST Statistical Reference Datasets, nonlinear regression. The certified errors use n − p degrees of freedom and the
# product of first derivatives, as `searched_covariance` does. For BoxBOD, with residuals of a tenth of the values,
# second derivatives make 0.1179 of 0.1046: the curvature of the sum of squares.
BOXBOD = ([1, 2, 3, 5, 7, 10], [109, 149, 149, 191, 213, 224], 10.0, 0.54723748542, 0.10455993237)
MISRA1A = (
    [77.6, 114.9, 141.1, 190.8, 239.9, 289.0, 332.8, 378.4, 434.8, 477.3, 536.8, 593.1, 689.1, 760.0],
    [10.07, 14.73, 17.94, 23.93, 29.61, 35.18, 40.02, 44.82, 50.76, 55.05, 61.01, 66.40, 75.47, 81.78],
    800.0,
    5.5015643181e-4,
    7.2668688436e-6,
)


@pytest.mark.slow
@pytest.mark.parametrize(("data", "start", "rates"), [(BOXBOD, 0.1, (0.01, 10)), (MISRA1A, 3e-3, (1e-5, 0.1))])
@pytest.mark.parametrize("count", [8, 20])
def test_certified_rates(data: tuple, start: float, rates: tuple[float, float], count: int) -> None:
    """From poor starts and few nodes, without a noise of the equation, a score or a tolerance."""
    x, y, end, certified, error = data
    model = saturation(x, y, end, start, count)
    best = ps.minimize(model, bounds(model, rates))
    assert best.converged
    assert best.score.given == "constant"
    assert best.why == "the data given the physics"
    assert best.resolution is not None
    assert best.resolution.resolved
    assert abs(best.values["b"] - certified) < 0.1 * error
    # Long kernels with an η at its bound are as good as shorter ones, and leave the amplitude of BoxBOD less free.
    assert best.standard_errors["b"] == pytest.approx(error, rel=0.15)
    assert best.degrees_of_freedom == pytest.approx(len(x) - 2, abs=0.6)


@pytest.mark.slow
@pytest.mark.parametrize("eta", [1e6, 1e8])
def test_standard_errors_of_coefficients_are_by_first_derivatives(eta: float) -> None:
    """Those of least squares where the coefficient ends; by the curvature of the evidence they are 15% larger."""
    x, y, end, certified, error = BOXBOD
    model = saturation(x, y, end, 0.3, 20).replace({"kernel.bandwidth": 1.0, "eta": eta})
    best = ps.minimize(model, {"b": (0.05, 5), "gamma": (1.0, 1e5)})
    b, values, variance = best.values["b"], np.array(y), best.values["gamma"] / 2 * 5 / 4  # n − q = 5, n − p = 4
    assert abs(b - certified) < 0.5 * error  # the prior of the amplitude has a slope in b
    at = np.array(x, dtype=float)
    shape = 1 - np.exp(-b * at)
    amplitude = values @ shape / (shape @ shape)
    slopes = np.stack([shape, amplitude * at * np.exp(-b * at)], axis=1)
    expected = np.sqrt(variance * np.linalg.inv(slopes.T @ slopes)[1, 1])
    assert best.standard_errors["b"] == pytest.approx(expected, rel=0.01)
    assert variance == pytest.approx(np.sum((values - amplitude * shape) ** 2) / 4, rel=0.01)
    assert best.degrees_of_freedom == pytest.approx(4, abs=0.02)


def test_lengths_stay_above_the_distance_between_nodes() -> None:
    x = np.linspace(0, 1, 9)
    rough = ps.observe(ps.identity, (-1.0) ** np.arange(9), at=x, noise=0.1)  # asks for the shortest length
    decay = ps.impose(DX + ps.identity, 0.0, on=LINE.interior(ps.GaussLegendre(8)))
    model = ps.Model(ps.RBF(0.5), rough, decay)
    (gap,) = node_gaps(model)
    assert gap == pytest.approx(np.diff(decay.points[:, 0]).max())
    low, high = floored(model, {"kernel.bandwidth": (0.01, 5.0)})["kernel.bandwidth"]
    assert (low, high) == (pytest.approx(SHORTEST_LENGTH * gap), 5.0)
    assert floored(model, {"kernel.bandwidth": (0.45, 5.0)})["kernel.bandwidth"][0] == 0.45
    soft = model.replace(rho=1.0)
    assert floored(soft, {"kernel.bandwidth": (0.01, 5.0)})["kernel.bandwidth"][0] == 0.01
    axes = ps.Model(
        ps.RBF([0.5, 0.5]),
        ps.observe(ps.identity, [0.0], at=[[0.5, 0.5]]),
        ps.impose(
            ps.laplacian(ps.Box(x=(0, 1), y=(0, 3))), 0.0, on=ps.Box(x=(0, 1), y=(0, 3)).interior(ps.GaussLegendre(8))
        ),
    )
    np.testing.assert_allclose(node_gaps(axes), [gap, 3 * gap])
    low, _ = floored(axes, {"kernel.bandwidth": (0.01, 5.0)})["kernel.bandwidth"]
    np.testing.assert_allclose(low, np.minimum(SHORTEST_LENGTH * np.array([gap, 3 * gap]), 0.5))


STRIP = ps.Box(t=(0, 1), x=(0, 6))


def transport(kernel: ps.Kernel, speed: float, count: int = 16) -> ps.Model:
    """`u_t + c u_x = 0` on a periodic interval, from its initial values."""
    dt, dx = ps.partials(STRIP)
    rule = ps.GaussLegendre(count)
    equation = ps.impose(dt + speed * dx, 0.0, on=STRIP.interior(rule), name="equation")
    start = ps.dirichlet(lambda p: jnp.sin(jnp.pi * p[1] / 3), on=STRIP.face(t=0)(rule), name="start")
    (ends,) = ps.periodic(*(STRIP.face(x=x)(rule) for x in (0, 6)), name="periodic")
    return ps.Model(kernel, physics=[equation, start, ends])


def test_each_block_gets_the_nodes_that_the_metric_of_the_kernel_asks_for() -> None:
    # Along the characteristics the kernel is long: nodes at other times lie between those at one time. Along t at
    # x = 0 it is short, 1.5 / 20.
    sheared = transport(ps.kernels.ShearedRBF(20.0, [10.0, 1.5]), 20.0)
    fine = fine_enough(sheared)
    sizes = dict(zip(fine.labels, (block.size for block in fine.blocks), strict=True))
    assert sizes == {"equation": 256, "start": 16, "periodic": 36}
    gap = np.diff(np.unique(fine.physics[2].points[:, 0])).max()
    assert SHORTEST_LENGTH * gap < 1.5 / 20 < SHORTEST_LENGTH * 1.5 * gap
    again = with_nodes(sheared, node_grids(fine))
    np.testing.assert_array_equal(again.physics[2].points, fine.physics[2].points)
    # The same along a rotated axis.
    angle, length = np.arctan(20.0), 1.5 / np.hypot(1.0, 20.0)
    rotated = transport(ps.AnisotropicRBF(angle, 0.01, 100 * length), 20.0)  # lengths h/s along and h·s across
    assert fine_enough(rotated).physics[2].size == 36
    # Axes of an ordinary kernel.
    assert [block.size for block in fine_enough(transport(ps.RBF([0.3, 1.8]), 20.0)).blocks] == [256, 16, 16]
    assert [block.size for block in fine_enough(transport(ps.RBF([0.1, 1.8]), 20.0)).blocks] == [384, 16, 24]


def test_the_least_lengths_of_a_sheared_kernel() -> None:
    model = fine_enough(transport(ps.kernels.ShearedRBF(20.0, [10.0, 1.5]), 20.0))
    low, _ = floored(model, {"kernel.bandwidth": (0.001, 100.0)})["kernel.bandwidth"]
    gap = np.diff(np.unique(model.physics[2].points[:, 0])).max()
    assert low[1] == pytest.approx(SHORTEST_LENGTH * 20 * gap, rel=0.01)  # at x = 0, up to the share of the time
    shorter = model.replace({"kernel.bandwidth": [10.0, 0.99 * low[1]]})
    assert fine_enough(shorter).physics[2].size > model.physics[2].size
    # A product of kernels of one axis each: each with its own nodes.
    product = transport(ps.RBF(0.5).on(0) * ps.RBF(3.0).on(1), 20.0)
    t, x = node_gaps(product)
    assert x == pytest.approx(6 * t)  # the distance between the faces is not one between nodes
    bounds = floored(product, {f"kernel.parts.{i}.kernel.bandwidth": (0.001, 100.0) for i in (0, 1)})
    assert [low for low, _ in bounds.values()] == pytest.approx([SHORTEST_LENGTH * t, SHORTEST_LENGTH * x])


def test_a_block_that_cannot_be_refined_does_not_refine_others() -> None:
    few = ps.impose(ps.identity, [0.0, 0.0, 0.0], on=ps.domains.nodes_at([[0.0], [0.5], [1.0]]), name="points")
    law = ps.impose(DX, 1.0, on=LINE.interior(ps.GaussLegendre(20)), name="law")
    model = ps.Model(ps.RBF(0.3), physics=[few, law])
    assert fine_enough(model).size == model.size


def test_models_on_common_nodes() -> None:
    coarse = transport(ps.RBF([0.3, 1.8]), 2.0)
    sheared = transport(ps.kernels.ShearedRBF(20.0, [10.0, 1.5]), 2.0).replace({"eta": 50.0})
    fine = with_nodes(sheared, {"start": [24], "periodic": [54]})
    score = ps.Score("homogeneous")
    one, two = on_common_nodes({"coarse": coarse, "fine": fine}, score).values()
    for first, second, size in zip(one.blocks, two.blocks, (256, 24, 54), strict=True):
        assert first.size == second.size == size
        np.testing.assert_array_equal(first.points, second.points)
    np.testing.assert_array_equal(one.blocks[1].weights, two.blocks[1].weights)  # scored
    assert (one.blocks[0].weights > two.blocks[0].weights).all()  # given: to a fraction of the terms under each prior


@pytest.mark.slow
def test_a_kernel_that_starts_too_long_is_not_a_contradiction() -> None:
    """A pulse that enters at x = 0, a sixth as wide in time as the domain."""
    square = ps.Box(t=(0, 1), x=(0, 1))
    dt, dx = ps.partials(square)
    rule = ps.GaussLegendre(16)

    def pulse(p: np.ndarray) -> np.ndarray:
        return jnp.exp(-20 * (p[1] - 2 * p[0] + 1.2) ** 2)

    physics = [
        ps.impose(dt + 2 * dx, 0.0, on=square.interior(rule)),
        ps.dirichlet(pulse, on=square.face(t=0)(rule), name="start"),
        ps.dirichlet(pulse, on=square.face(x=0)(rule), name="entry"),
    ]
    model = ps.Model(ps.RBF([0.5, 0.5]), physics=physics)
    best = ps.minimize(model, {"kernel.bandwidth": (0.02, 10), "eta": (0.01, 1e4)})
    points = square.interior(ps.GaussLegendre(5)).points
    truth = [float(pulse(point)) for point in points]
    np.testing.assert_allclose(ps.posterior(best.model).mean(points), truth, atol=1e-3)
    wrong = model.replace(physics=[*physics, ps.dirichlet(0.5, on=square.face(x=1)(rule), name="exit")])
    with pytest.raises(ps.errors.InputError, match=r"contradict each other.*'exit'.*ShearedRBF"):
        ps.minimize(wrong, {"kernel.bandwidth": (0.02, 10), "eta": (0.01, 1e4)})


@pytest.mark.slow
def test_nodes_are_refined_until_nothing_moves() -> None:
    """An oscillation that six nodes cannot resolve."""
    x = np.linspace(0, 1, 15)
    noisy = np.sin(12 * x) + 0.02 * np.random.default_rng(0).standard_normal(15)
    oscillator = ps.impose(
        DX**2 + ps.parameter("k", 100.0) * ps.identity, 0.0, on=LINE.interior(ps.GaussLegendre(6)), name="law"
    )
    model = ps.Model(ps.RBF(0.5), ps.observe(ps.identity, noisy, at=x, noise=0.02), oscillator)
    best = ps.minimize(model, {"k": (50, 300), "kernel.bandwidth": (0.01, 5), "eta": (0.01, 1e4)})
    assert best.resolution is not None
    assert best.resolution.resolved
    assert best.resolution.nodes["law"] > 6
    assert best.model.physics[0].size == best.resolution.nodes["law"]
    assert abs(best.values["k"] - 144) < 3 * best.standard_errors["k"]
    assert best.standard_errors["k"] < 2
    again = with_nodes(model, node_grids(best.model))
    assert again.physics[0].size == best.model.physics[0].size
    with pytest.warns(ps.errors.UnresolvedWarning, match="too few"):
        coarse = ps.minimize(
            model, {"k": (50, 300), "eta": (0.01, 1e4)}, search=ps.SearchOptions(refine=False, curvature=False)
        )
    assert coarse.model.physics[0].size == 6
    assert not coarse.resolution.resolved


def test_nodes_that_cannot_be_refined_are_said() -> None:
    x = np.linspace(0, 1, 9)
    data = ps.observe(ps.identity, np.sin(20 * x), at=x, noise=0.01)
    few = ps.domains.nodes_at([[0.2], [0.5], [0.8]], [1 / 3] * 3)
    model = ps.Model(ps.RBF(0.7), data, ps.impose(DX + ps.identity, 0.0, on=few, name="law"))
    with pytest.warns(ps.errors.UnresolvedWarning, match=r"cannot be refined.*kernel\.bandwidth would be shorter"):
        best = ps.minimize(model, {"kernel.bandwidth": (0.01, 5), "eta": (0.01, 1e4)})
    assert not best.resolution.resolved
    assert "would be shorter" in repr(best)


def test_a_coarse_rule_is_unresolved_and_a_fine_one_is_not() -> None:
    x = np.linspace(0, 1, 9)
    data = ps.observe(ps.identity, np.sin(9 * x), at=x, noise=0.01)
    made = [
        ps.Model(ps.RBF(0.2), data, ps.impose(DX**2 + 81 * ps.identity, 0.0, on=LINE.interior(ps.GaussLegendre(n))))
        for n in (4, 30)
    ]
    coarse, fine = (check_resolution(ps.minimize(m, {"eta": (0.1, 10)}).model if n else m) for n, m in enumerate(made))
    assert not coarse.resolved
    assert fine.resolved
    assert abs(fine.nats) < 0.1


def source_model(count: int = 12) -> ps.Model:
    """A known source with known ends: the source identifies bandwidth and scale."""
    x = np.linspace(0.1, 0.9, count)
    noisy = np.sin(6 * x) + 0.05 * np.random.default_rng(1).standard_normal(count)
    return ps.Model(
        ps.RBF(0.3),
        ps.observe(ps.identity, noisy, at=x, noise=0.05),
        [
            ps.impose(DX**2, lambda p: -36 * jnp.sin(6 * p[0]), on=LINE.interior(ps.GaussLegendre(12))),
            ps.dirichlet(0.0, on=LINE.face(x=0)(ps.GaussLegendre(1))),
            ps.dirichlet(np.sin(6.0), on=LINE.face(x=1)(ps.GaussLegendre(1))),
        ],
    )


@pytest.mark.slow
def test_the_default_scores_a_source_and_predicts_with_it() -> None:
    model = source_model()
    over = {"kernel.bandwidth": (0.05, 5), "eta": (1e-3, 1e6)}
    best = ps.minimize(model, over)
    assert best.score.given == "constant"
    assert best.why == "the data and the imposed values that vary, given those that are constant"
    assert best.pile.size == 12 + 12
    points = np.linspace(0, 1, 41)
    found = ps.posterior(best.model)
    assert np.abs(found.mean(points) - np.sin(6 * points)).max() < 1e-3


@pytest.mark.slow
def test_the_guard_falls_back_to_the_data_given_the_physics() -> None:
    """A soft, nearly constant source that is wrong: scoring it gives the data up."""
    x = np.linspace(0, 1, 40)
    noisy = -0.5 * x**2 + np.sin(14 * x) + 0.02 * np.random.default_rng(0).standard_normal(40)
    source = ps.impose(DX**2, lambda p: -1.0 + 0.1 * p[0], on=LINE.interior(ps.GaussLegendre(20)), rho=1.0)
    model = ps.Model(ps.RBF(0.5), ps.observe(ps.identity, noisy, at=x), source, gamma=0.01)
    over = {"kernel.bandwidth": (0.05, 20), "eta": (1e-3, 1e3), "gamma": (1e-6, 1.0), "physics.0.rho": (1e-6, 1e4)}
    default, unguarded, given = (
        ps.minimize(model, over, starts=3, score=score) for score in ("auto", "given_constant", "given_physics")
    )
    energies = [ps.pile(each.model, "given_physics").free_energy for each in (default, unguarded, given)]
    assert energies[1] - energies[2] > 8  # what the guard is for
    assert energies[0] == pytest.approx(energies[2], abs=0.1)
    assert default.score.given == "physics"
    assert default.why.startswith("the data given the physics: data and physics together would predict the data")


@pytest.mark.slow
@pytest.mark.parametrize("holds", [True, False])
def test_a_source_at_many_nodes_does_not_give_precise_data_up(monkeypatch, holds: bool) -> None:
    """Thirty readings of the source outweigh fifteen data, and one start ends where those are noise."""
    diffusivity, truth, noise = 0.1, 1.5, 0.005

    def rising(x: np.ndarray) -> np.ndarray:
        return x * x / (2 * truth) + (1 / truth + diffusivity / truth**2) * x

    random = np.random.default_rng(33)
    x = random.uniform(0.05, 0.95, 15)
    layer = np.exp(-truth / diffusivity)
    exact = rising(x) - rising(1.0) * (np.exp(truth * (x - 1) / diffusivity) - layer) / (1 - layer)
    readings = ps.observe(ps.identity, exact + noise * random.standard_normal(15), at=x)
    operator = ps.parameter("c", 0.5) * DX - diffusivity * DX**2
    physics = [ps.impose(operator, lambda p: 1 + p[0], on=LINE.interior(ps.GaussLegendre(30)))]
    physics += [ps.dirichlet(0.0, on=LINE.face(x=end)(ps.GaussLegendre(1))) for end in (0, 1)]
    model = ps.Model(ps.RBF(0.3), readings, physics, gamma=0.01)
    over = {"c": (-10, 10), "kernel.bandwidth": (0.02, 5), "gamma": (1e-6, 1), "eta": (1e-2, 1e4)}
    if not holds:  # as if no fallback satisfied the equation
        monkeypatch.setattr(steps_module, "_bends", lambda model: True)
        with pytest.warns(
            UserWarning, match=r"predicted 87.* nats worse than by other hyperparameters.*taken for noise"
        ):
            ps.minimize(model, over)
        return
    best = ps.minimize(model, over)
    assert best.why.startswith("the data given the physics")
    assert abs(best.values["c"] - truth) < 3 * best.standard_errors["c"] < 0.05
    assert 0.5 * noise < (best.values["gamma"] / 2) ** 0.5 < 2 * noise


def shaft(frequency: float) -> tuple[ps.Model, np.ndarray, np.ndarray]:
    """Return Poisson's equation with two unknown sides, points, and the solution there.

    A smooth known source identifies a long bandwidth, and the unknown sides have a boundary layer. Nodes are explicit,
    so that they are not refined.
    """
    square = ps.Box(x=(0, 1), z=(0, 1))

    def solution(points):
        x, z = np.pi * points.T
        layer = np.sin(frequency * x) * np.sinh(frequency * z) / np.sinh(frequency * np.pi)
        return np.sin(x) * np.cos(z) + layer

    random = np.random.default_rng(0)
    at, points = random.uniform(0, 1, (40, 2)), random.uniform(0, 1, (400, 2))
    rule = square.interior(ps.GaussLegendre(12))
    source = -2 * np.pi**2 * np.sin(np.pi * rule.points[:, 0]) * np.cos(np.pi * rule.points[:, 1])
    fixed = [ps.impose(ps.laplacian(square), source, on=ps.domains.nodes_at(rule.points, rule.weights, ("x", "z")))]
    for x in (0, 1):
        side = square.face(x=x)(ps.GaussLegendre(6))
        fixed.append(ps.dirichlet(0.0, on=ps.domains.nodes_at(side.points, side.weights, ("x", "z"))))
    noisy = solution(at) + 0.03 * random.standard_normal(40)
    return ps.Model(ps.RBF(0.5), ps.observe(ps.identity, noisy, at=at), fixed, gamma=1e-3), points, solution(points)


@pytest.mark.slow
@pytest.mark.parametrize("score", ["given_physics", "auto"])
def test_data_are_not_given_up_for_exact_equations(score: str) -> None:
    """From all three starts, descents on the exact equation alone explain the data by noise, with an error of 0.29."""
    model, points, truth = shaft(3.0)
    over = {"kernel.bandwidth": (0.05, 5), "eta": (1e-2, 1e4), "gamma": (1e-6, 4.0)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.errors.UnresolvedWarning)
        best = ps.minimize(model, over, starts=3, score=score)
    error = ps.posterior(best.model).mean(points) - truth
    assert np.sqrt(np.mean(error**2) / np.mean(truth**2)) < 0.08
    assert (best.values["gamma"] / 2) ** 0.5 == pytest.approx(0.03, rel=0.3)
    assert best.score.given == "physics"
    assert len(best.descents) == 3


def test_nodes_are_refined_as_far_as_can_be_afforded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = ps.observe(ps.identity, [1.0, 0.5], at=[0.0, 0.7], noise=0.1)
    model = ps.Model(ps.RBF(0.5), data, ps.impose(DX + ps.identity, 0.0, on=LINE.interior(ps.GaussLegendre(10))))
    for most, count in ((100, 15), (16, 14), (14, 12)):
        monkeypatch.setattr(ps.search.nodes, "MOST_ROWS", most)
        finer = check_resolution(model).finer
        assert finer is not None
        assert finer.physics[0].size == count
        assert with_nodes(model, {"physics.0": [count]}).physics[0].size == count
    monkeypatch.setattr(ps.search.nodes, "MOST_ROWS", 13)
    assert check_resolution(model).finer is None


def test_the_default_score_is_the_joint_one_where_nothing_is_constant() -> None:
    x = np.linspace(0, 1, 8)
    data = ps.observe(ps.identity, np.sin(3 * x), at=x, noise=0.1)
    nodes = LINE.interior(ps.GaussLegendre(5))
    measured = ps.impose(DX, 3 * np.cos(3 * nodes.points[:, 0]), on=nodes, noise=0.1)
    model = ps.Model(ps.RBF(0.5), data, measured)
    assert ps.pile(model, "auto").value == ps.pile(model).value
    best = ps.minimize(model, {"kernel.bandwidth": (0.1, 5)})
    assert best.score.given == "constant"
    assert best.why == "data and physics together"
    assert best.pile.value == pytest.approx(ps.pile(best.model).value)
    assert best.resolution is None


@pytest.mark.slow
def test_an_interrupted_search_with_exact_equations_continues(tmp_path) -> None:
    """Stages of one search share a file; scores of the same point in different stages are not confused."""
    x, y, end, *_ = BOXBOD
    model = saturation(x, y, end, 0.3, 10).replace({"gamma": 467.0, "eta": 3e5})
    over = {"b": (0.05, 5), "kernel.bandwidth": (1.0, 10.0)}
    run = ps.RunOptions(save=tmp_path / "run.nc", progress=False)
    search = ps.SearchOptions(max_evaluations=30, curvature=False)
    first = ps.minimize(model, over, search=search, run=run)
    calls = []
    original = ps.search.objective.CoordinateScore.__call__

    def counted(self, u, warm_start):
        calls.append(u)
        return original(self, u, warm_start)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ps.search.objective.CoordinateScore, "__call__", counted)
        second = ps.minimize(model, over, search=search, run=run)
    assert not calls
    assert second.values == first.values
    assert second.pile == dataclasses.replace(first.pile, solver=second.pile.solver)


@pytest.mark.slow
def test_precise_data_are_not_cut_off_by_a_floor() -> None:
    """Readings to six digits: the noise comes out as large as it is."""
    x = np.linspace(0, 1, 20)
    noise = 1e-5
    y = np.exp(-2 * x) + noise * np.random.default_rng(0).standard_normal(20)
    decay = ps.impose(DX + ps.parameter("rate", 1.0), 0.0, on=LINE.interior(ps.GaussLegendre(20)))
    model = ps.Model(ps.RBF(0.3), ps.observe(ps.identity, y, at=x), decay, gamma=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.errors.PrecisionWarning)
        best = ps.minimize(
            model, {"rate": (0.1, 10), "kernel.bandwidth": (0.1, 10), "gamma": (1e-14, 1), "eta": (1e-2, 1e4)}
        )
    assert abs(best.values["rate"] - 2) < 4 * best.standard_errors["rate"]
    assert (best.values["gamma"] / 2) ** 0.5 == pytest.approx(noise, rel=0.5)


def test_nodes_are_refined_on_the_axes_that_need_it() -> None:
    square = ps.Box(x=(0, 1), y=(0, 1))
    equation = ps.impose(ps.laplacian(square), 0.0, on=square.interior(ps.GaussLegendre(10)))
    data = ps.observe(ps.identity, [1.0, 0.5], at=[[0.0, 0.0], [0.7, 0.2]], noise=0.1)
    model = ps.Model(ps.RBF([0.2, 1.0]), data, equation)
    finer = check_resolution(model).finer
    assert finer is not None
    assert node_grids(finer) == {"physics.0": (15, 10)}
    again = with_nodes(model, node_grids(finer))
    np.testing.assert_array_equal(again.physics[0].points, finer.physics[0].points)
    assert node_grids(fine_enough(model.replace({"kernel.bandwidth": [1.0, 0.05]})))["physics.0"][0] == 10
    both = check_resolution(model.replace({"kernel.bandwidth": [0.2, 0.2]})).finer
    assert both is not None
    assert node_grids(both) == {"physics.0": (15, 15)}


@pytest.mark.slow
def test_a_nonlinear_equation_is_followed_from_a_loose_one() -> None:
    """Growth to a limit, from a poor start: the equation also holds for zero, which explains the data by noise."""
    time, r, count, noise = ps.Box(t=(0, 6)), 2.5, 12, 0.05
    (dt,) = ps.partials(time)
    t = np.linspace(0, 6, count)
    readings = 1 / (1 + 19 * np.exp(-r * t)) + noise * np.random.default_rng(count).standard_normal(count)
    growth = ps.Nonlinear(
        lambda p, u, u_t, r, K: u_t - r * u * (1 - u / K), of=(ps.identity, dt), parameters={"r": 5.0, "K": 2.6}
    )
    model = ps.Model(
        ps.RBF(1.8),
        ps.observe(ps.identity, readings, at=t),
        ps.impose(growth, 0.0, on=time.interior(ps.GaussLegendre(30))),
        gamma=1e-3,
    )
    over = {"r": (0.1, 10), "K": (0.2, 5), "kernel.bandwidth": (0.1, 50), "eta": (1e-3, 1e6), "gamma": (1e-6, 1)}
    best = ps.minimize(model, over, search=ps.SearchOptions(tolerance=1e-7))
    for name, truth in (("r", r), ("K", 1.0)):
        assert abs(best.values[name] - truth) < 3 * best.standard_errors[name] < 0.5 * truth
    assert 0.5 * noise < (best.values["gamma"] / 2) ** 0.5 < 1.5 * noise


def test_descents_that_rounding_stopped_have_to_be_clearly_lower() -> None:
    steps = Steps({}, None, ps.Score(), ps.SearchOptions(), ps.RunOptions())
    model = ps.Model(ps.RBF(0.5), data=ps.observe(ps.identity, [1.0], at=[0.0]))
    pile, objective = ps.pile(model), Objective(search_space(model, {"eta": (0.1, 10)}), ps.Score(), steps.options)

    def rank(nats: float, status: str) -> tuple[int, float]:
        descent = Descent(objective, np.zeros(1))
        descent.best, descent.status = (np.zeros(1), dataclasses.replace(pile, value=2 * nats / pile.size)), status
        return steps.rank(model, descent)

    assert rank(0.0, "converged") < rank(-0.05, "stalled") < rank(0.06, "converged")
    assert rank(-0.2, "stalled") < rank(0.0, "converged")


def test_descents_whose_slopes_promise_more_than_rounding_allows_are_misled() -> None:
    model = ps.Model(ps.RBF(0.5), data=ps.observe(ps.identity, [1.0], at=[0.0]))
    descent = Descent(Objective(search_space(model, {"eta": (0.1, 10)}), ps.Score(), ps.SearchOptions()), np.zeros(1))
    descent.best, descent.scale = (np.zeros(1), ps.pile(model)), 1.0
    for slope, status, expected in ((1.0, "stalled", True), (0.1, "stalled", False), (1.0, "converged", False)):
        descent.last, descent.status = (np.zeros(1), 0.0, np.array([slope])), status
        assert descent.is_misled == expected
    outside = descent.objective.space.bounds[0][0]  # the slope points out of the bounds
    descent.last, descent.status = (np.array([outside]), 0.0, np.array([1.0])), "stalled"
    assert not descent.is_misled


def test_standard_errors_by_first_derivatives_survive_second_ones_that_are_rounding(monkeypatch) -> None:
    x = np.linspace(0.1, 1.9, 9)
    data = ps.observe(ps.identity, np.exp(-x), at=x, noise=0.01)
    (dx,) = ps.partials(ps.Box(x=(0, 2)))
    decay = ps.impose(dx + ps.parameter("rate", 0.8), 0.0, on=ps.Box(x=(0, 2)).interior(ps.GaussLegendre(12)))
    model, over = ps.Model(ps.RBF(0.5), data, decay), {"rate": (0.1, 10), "eta": (0.1, 1e3)}
    real = steps_module.find_curvature

    def spoiled(*arguments) -> Curvature:
        curvature = real(*arguments)
        return dataclasses.replace(
            curvature, hessian=-curvature.hessian, covariance=np.full_like(curvature.covariance, np.nan)
        )

    good = ps.minimize(model, over)
    monkeypatch.setattr(steps_module, "find_curvature", spoiled)
    bad = ps.minimize(model, over)
    # Least squares for a·exp(−b·x): the other error is that of the prior variance, which has no first derivative.
    jacobian = np.column_stack([np.exp(-x), -x * np.exp(-x)])
    expected = 0.01 * np.linalg.inv(jacobian.T @ jacobian)[1, 1] ** 0.5
    for best in (good, bad):
        assert best.standard_errors["rate"] == pytest.approx(expected, rel=0.02)
    assert np.isnan(bad.standard_errors["eta"])
    assert np.isfinite(good.standard_errors["eta"])


@pytest.mark.slow
@pytest.mark.parametrize("most", [steps_module.LOOSER_NATS, 0.0])
def test_a_saddle_made_by_rounding_is_looked_at_with_a_looser_tolerance(monkeypatch, most: float) -> None:
    """Unless the score depends on the tolerance: then there are no standard errors."""
    seen, real = [], steps_module.find_curvature

    def shaky(objective: Objective, *arguments) -> Curvature:
        seen.append(present_tolerance(objective.space.model))
        curvature = real(objective, *arguments)
        bad = np.full_like(curvature.covariance, np.nan)
        return curvature if len(seen) > 1 else dataclasses.replace(curvature, covariance=bad)

    monkeypatch.setattr(steps_module, "find_curvature", shaky)
    monkeypatch.setattr(steps_module, "LOOSER_NATS", most)
    x = np.linspace(0.1, 1.9, 9)
    data = ps.observe(ps.identity, np.exp(-x), at=x, noise=0.01)
    (dx,) = ps.partials(ps.Box(x=(0, 2)))
    decay = ps.impose(dx + ps.parameter("rate", 0.8), 0.0, on=ps.Box(x=(0, 2)).interior(ps.GaussLegendre(12)))
    over = {"rate": (0.1, 10), "kernel.bandwidth": (0.3, 3), "eta": (0.1, 1e3)}
    best = ps.minimize(ps.Model(ps.RBF(0.5), data, decay), over, starts=1)
    if most:
        assert seen[1] == pytest.approx(10 * seen[0])
        assert best.standard_errors["rate"] > 0
    else:
        assert len(seen) == 1
        assert np.isnan(best.curvature.covariance).all()
    assert abs(best.values["rate"] - 1.0) < 0.02
