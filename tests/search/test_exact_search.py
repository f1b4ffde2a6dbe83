"""Searches with exact equations: certified answers, enough nodes, the default score and its guard."""

import dataclasses
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import pilescore as ps
from pilescore.search.resolution import SHORTEST_LENGTH, check_resolution, floored, node_gaps, with_nodes

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
# product of first derivatives; the evidence uses second derivatives. For BoxBOD, with residuals of a tenth of the
# values, that makes 0.1179, the curvature of the sum of squares, of the certified 0.1046.
BOXBOD = ([1, 2, 3, 5, 7, 10], [109, 149, 149, 191, 213, 224], 10.0, 0.54723748542, 0.11785459610)
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
    assert best.standard_errors["b"] == pytest.approx(error, rel=0.1)
    assert best.degrees_of_freedom == pytest.approx(len(x) - 2, abs=0.6)


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
    again = with_nodes(model, best.resolution.nodes)
    assert again.physics[0].size == best.model.physics[0].size


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
