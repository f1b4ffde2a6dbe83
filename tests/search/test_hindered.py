"""Searches with nonlinear exact equations whose first nodes are too coarse for the solution."""

import dataclasses
import pathlib

import numpy as np
import pytest
from scipy.integrate import solve_bvp

import pilescore as ps
from pilescore.problems.kernel_search import selection_warnings
from pilescore.problems.summary import DescentSummary, KernelResult, KernelScore
from pilescore.search import nodes, search_space
from pilescore.search.descent import Descent
from pilescore.search.nodes import node_gaps, node_grids, with_shorter
from pilescore.search.objective import Objective
from pilescore.search.resolution import check_resolution
from pilescore.search.steps import MISSED, Steps

LINE = ps.Box(x=(0, 1))
(DX,) = ps.partials(LINE)
LAYER = 3e-3
ROD = """
domain = { x = [0, 1] }
condition = { type = "dirichlet", face = "all", value = 0 }
equation = { equation = "dxx(u) = -1", nodes = 8, noise = 0.1 }
kernel = { type = "rbf", bandwidth = { unknown = [0.3, 3] } }
"""
OVER = {"kernel.bandwidth": (0.01, 10.0), "eta": (1e-3, 1e3)}


def layers(count: int, length: float = 0.5) -> ps.Model:
    """`ε u″ = u + u³` with `u = 1` at both ends: layers of width about `√ε`."""
    equation = ps.Nonlinear(lambda p, u, u_xx: LAYER * u_xx - u - u**3, of=(ps.identity, DX**2))
    return ps.Model(
        ps.RBF(length),
        physics=[
            ps.impose(equation, 0.0, on=LINE.interior(ps.GaussLegendre(count))),
            *(ps.dirichlet(1.0, on=LINE.face(x=end)(ps.GaussLegendre(1))) for end in (0, 1)),
        ],
    )


def truth(x: np.ndarray) -> np.ndarray:
    mesh = np.linspace(0, 1, 400)
    start = np.stack([np.exp(-mesh / 0.05), np.zeros(400)])
    solved = solve_bvp(
        lambda x, y: np.stack([y[1], (y[0] + y[0] ** 3) / LAYER]),
        lambda a, b: np.array([a[0] - 1, b[0] - 1]),
        mesh,
        start,
        tol=1e-8,
    )
    return np.asarray(solved.sol(x)[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pilescore.errors.PrecisionWarning")
def test_a_search_goes_on_where_nodes_do_not_hinder_it() -> None:
    steps = Steps(OVER, None, ps.Score("homogeneous"), ps.SearchOptions(), ps.RunOptions())
    model = layers(8)
    first = steps.descend(steps.prepared(model, 1e-5), 1, loose=True, stops=True)
    assert (first.best.status, first.best.hindered) == ("hindered", ("kernel.bandwidth",))
    assert first.best.evaluations < 10
    found = steps.unhindered(model, 1, 1e-5, loose=True)
    assert found.best.status != "hindered"
    assert found.pile.fit < MISSED < first.pile.fit
    assert found.model.physics[0].size > 8
    x = np.linspace(0, 1, 101)
    assert np.abs(ps.posterior(ps.solve_nonlinear(found.model).model).mean(x) - truth(x)).max() < 2e-2


def test_equations_that_the_nodes_cannot_satisfy_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "MOST_ROWS", 12)
    with pytest.warns(ps.errors.UnresolvedWarning, match="too few"):
        best = ps.minimize(layers(8), OVER, search=ps.SearchOptions(curvature=False))
    assert best.model.size <= 12
    assert best.resolution is not None
    assert not best.resolution.resolved


def test_only_axes_that_a_shorter_length_needs_are_refined() -> None:
    square = ps.Box(t=(0, 1), x=(0, 1))
    dt, dx = ps.partials(square)
    equation = ps.Nonlinear(lambda p, u, u_t, u_x: u_t + u * u_x, of=(ps.identity, dt, dx))
    model = ps.Model(ps.RBF([0.3, 0.3]), physics=ps.impose(equation, 0.0, on=square.interior(ps.GaussLegendre(8))))
    least = float(1.5 * node_gaps(model)[1])
    model = model.replace({"kernel.bandwidth": [least, least]})
    shorter = with_shorter(model, {"kernel.bandwidth[1]": 0.0})
    assert shorter is not None
    first, second = node_grids(shorter)["physics.0"]
    assert first == 8 < second
    np.testing.assert_allclose(shorter.parameters["kernel.bandwidth"], [least, least / 1.5])
    bounded = with_shorter(model, {"kernel.bandwidth[1]": 0.9 * least})
    assert bounded is not None
    np.testing.assert_allclose(bounded.parameters["kernel.bandwidth"], [least, 0.9 * least])


def test_values_at_nonlinear_nodes_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = layers(8, 0.28)
    least = {"kernel.bandwidth": 0.0}
    assert with_shorter(model, least) is not None
    monkeypatch.setattr(nodes, "MOST_VALUES", 18)  # one value enters nonlinearly, and Λ: 2·8 + 2
    assert with_shorter(model, least) is None


def test_a_result_is_checked_on_more_nodes_than_a_search_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    model = layers(20, 0.3)
    monkeypatch.setattr(nodes, "MOST_ROWS", 22)
    found = check_resolution(model)
    assert found.finer is None
    assert np.isfinite(found.moved)
    assert not found.resolved


def test_missed_equations_that_finer_nodes_may_mend_go_first() -> None:
    steps = Steps({}, None, ps.Score(), ps.SearchOptions(), ps.RunOptions())
    model, pile = layers(8), ps.pile(ps.Model(ps.RBF(0.5), data=ps.observe(ps.identity, [1.0], at=[0.0])))

    objective = Objective(search_space(model, OVER), ps.Score(), ps.SearchOptions())

    def rank(value: float, missed: float, status: str) -> tuple[int, float]:
        descent = Descent(objective, np.zeros(2))
        descent.best, descent.status = (np.zeros(2), dataclasses.replace(pile, value=value, missed=missed)), status
        return steps.rank(model, descent)

    holds, mended, hopeless = (
        rank(100.0, 1.0, "converged"),
        rank(60.0, 2 * MISSED, "hindered"),
        rank(50.0, 2 * MISSED, "converged"),
    )
    assert holds < mended < hopeless


def test_starts_that_nodes_have_ended_are_not_compared(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "rod.toml"
    path.write_text(ROD)
    problem = ps.load_problem(path)
    for status, count in (("converged", 1), ("hindered", 0)):
        ends = [{"start": {}, "end": {}, "pile": pile, "evaluations": 1, "status": status} for pile in (0.0, 50.0)]
        descents = [DescentSummary(**end, rejected=0, reason="") for end in ends]
        row = KernelScore(**ps.search.failed_row("")).model_copy(update={"size": 10})
        result = KernelResult(name="rbf", row=row, descents=descents, status="converged")
        assert len([text for text in selection_warnings(problem, result) if "only one of 2 starts" in text]) == count
