"""The benchmark of published problems: references solve their equations, criteria judge, results are stored."""

import dataclasses
import json
import math
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.published import certified, failure_modes, kernel_learning, nonlinear, rows, smoke, solvers, yardstick
from benchmarks.published.__main__ import YARDSTICKS, main
from benchmarks.published.page import PAGE
from scipy.optimize import curve_fit

import pilescore as ps

pytestmark = pytest.mark.study

NAMES = [each.name for each in YARDSTICKS]
GIVEN = {"noise", "gamma", "nodes", "rule"}


def differences(function, points, step=1e-4):
    """Central differences: the value, first derivatives and second derivatives along each axis."""
    value, shifts = function(points), step * np.eye(points.shape[1])
    up, down = ([function(points + sign * shift) for shift in shifts] for sign in (1, -1))
    first = [(a - b) / (2 * step) for a, b in zip(up, down, strict=True)]
    return value, first, [(a - 2 * value + b) / step**2 for a, b in zip(up, down, strict=True)]


@pytest.mark.parametrize("name", NAMES)
def test_problems_state_nothing_but_the_problem(name):
    each = YARDSTICKS[NAMES.index(name)]
    assert 1 <= each.quick <= each.draws
    stated = tomllib.loads(each.pose(0).text)
    assert not {*stated} & {"kernel", "temperatures", "select", "solver", "predict"}
    for table in [*stated["equation"], *stated.get("condition", []), *stated.get("data", [])]:
        assert not {*table} & GIVEN
        assert "rho" not in table or name == "imperfect-heat"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_problems_load(name, tmp_path):
    assert ps.load_problem(YARDSTICKS[NAMES.index(name)].pose(0).write(tmp_path)).models


def test_ranges_are_wide_and_not_centred_on_the_answer():
    truths = {"b1": 238.9, "b2": 5.5e-4} | {name: value for name, (value, _) in certified.RAT42.items()}
    truths |= {name: value for name, (value, _) in certified.LANCZOS3.items()}
    texts = [certified.MISRA1A_FIRST_ORDER, certified.RAT42_TEXT, certified.LANCZOS3_TEXT]
    for name, table in ((name, table) for text in texts for name, table in tomllib.loads(text)["parameters"].items()):
        low, high = table["unknown"]
        assert low < truths[name] < high
        assert high / low >= 100
        assert abs(math.log(truths[name] / math.sqrt(low * high))) > math.log(1.25)


def test_draws_differ_and_can_be_repeated():
    for each in YARDSTICKS:
        first, again = each.pose(0).tables, each.pose(0).tables
        assert all(np.array_equal(first[f][c], again[f][c]) for f in first for c in first[f])
        if each.draws > 1:
            other = next(iter(each.pose(3).tables.values()))["u"]
            assert not np.array_equal(next(iter(first.values()))["u"], other)


def test_exact_solutions_satisfy_their_equations():
    points = np.random.default_rng(0).uniform(0.2, 0.8, (5, 2))
    u, (u_t, u_x), (_, u_xx) = differences(lambda p: solvers.burgers(p, 0.02), points)
    np.testing.assert_allclose(u_t + u * u_x, 0.02 * u_xx, atol=1e-3)
    start = np.array([[0.0, 0.3]])
    np.testing.assert_allclose(solvers.burgers(start, 0.02), -np.sin(0.3 * np.pi))
    _, (u_x, u_y), (u_xx, u_yy) = differences(lambda p: solvers.eikonal(p, 0.1), points)
    np.testing.assert_allclose(u_x**2 + u_y**2, 1 + 0.1 * (u_xx + u_yy), atol=1e-4)
    np.testing.assert_allclose(solvers.eikonal(np.array([[0.5, 0.02], [0.0, 0.4]]), 0.01), [0.02, 0.0], atol=1e-9)
    _, (u_t, u_x), _ = differences(failure_modes.convection, points, 1e-6)
    np.testing.assert_allclose(u_t, -50 * u_x, atol=1e-5)
    u, (u_t, _), _ = differences(failure_modes.reaction, points)
    np.testing.assert_allclose(u_t, 5 * u * (1 - u), atol=1e-6)
    _, _, (u_tt, u_xx) = differences(kernel_learning.wave, points)
    np.testing.assert_allclose(u_tt, 4 * u_xx, atol=1e-3)
    _, (u_t, _), (_, u_xx) = differences(kernel_learning.cooling, points)
    np.testing.assert_allclose(u_t, u_xx, atol=1e-6)
    u, (u_x,), (u_xx,) = differences(kernel_learning.oscillation, points[:, :1])
    np.testing.assert_allclose(u_xx + u_x + u, 0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "wrong"), [("elliptic", False), ("right-source", False), ("wrong-source", True)])
def test_sources_suit_the_exact_solutions(name, wrong, tmp_path):
    def bump(p):
        return jnp.sin(jnp.pi * p[0]) * jnp.sin(jnp.pi * p[1])

    def both(p):
        return bump(p) + 2 * bump(4 * p)

    equation = ps.load_problem(YARDSTICKS[NAMES.index(name)].pose(0).write(tmp_path)).model.physics[0]
    applied = jax.vmap(equation.operator(both if name == "elliptic" else bump))(equation.points)
    error = np.abs(applied - equation.values).max() / np.abs(equation.values).max()
    assert error > 0.1 if wrong else error < 1e-10


def test_spectral_solutions():
    x = -30 + 60 / 256 * np.arange(256)
    moved = solvers.spectral(solvers.soliton(x, 1.0, -10.0), 60.0, lambda k: 1j * k**3, 6.0, 2.0, 4e-3)
    np.testing.assert_allclose(moved, solvers.soliton(x, 1.0, -8.0), atol=1e-6)
    x = 2 / 128 * np.arange(128) - 1
    found = solvers.spectral(-np.sin(np.pi * x), 2.0, lambda k: -0.1 * k**2 + 0j, 1.0, 0.5, 1e-3)
    np.testing.assert_allclose(found, solvers.burgers(np.stack([0 * x + 0.5, x], axis=1), 0.1), atol=1e-9)


def test_least_squares_gives_the_certified_estimates():
    def saturating(x, b1, b2):
        return b1 * (1 - np.exp(-b2 * x))

    def check(function, x, y, start, values):
        found, covariance = curve_fit(function, np.array(x), np.array(y), start)
        np.testing.assert_allclose(found[: len(values)], [value for value, _ in values], rtol=1e-4)
        np.testing.assert_allclose(np.sqrt(np.diag(covariance))[: len(values)], [s for _, s in values], rtol=1e-2)

    check(saturating, certified.MISRA1A_X, certified.MISRA1A_Y, [250, 5e-4], [*certified.MISRA1A.values()])
    check(saturating, certified.BOXBOD_X, certified.BOXBOD_Y, [200, 0.5], [*certified.BOXBOD.values()])
    logistic = [*certified.RAT42.values()]
    check(
        lambda x, K, r, b: K / (1 + np.exp(b - r * x)), certified.RAT42_X, certified.RAT42_Y, [75, 0.07, 2.5], logistic
    )

    def decays(x, slow, middle, fast, a, b, c):
        return a * np.exp(-slow * x) + b * np.exp(-middle * x) + c * np.exp(-fast * x)

    start, rates = [1, 3, 5, 0.1, 0.9, 1.5], [*certified.LANCZOS3.values()]
    check(decays, certified.LANCZOS3_X, certified.LANCZOS3_Y, start, rates)


def test_criteria():
    errors = yardstick.smaller({"a": 1.0, "b": 2.0})
    assert errors({"a": 0.7, "b": 1.5}) == "better"
    assert errors({"a": 0.7, "b": 2.4}) == "equal"
    assert errors({"a": 1.3, "b": 0.0}) == "worse"
    assert errors({"a": 0.1, "b": math.nan}) == errors({"a": 0.1}) == "worse"
    judge = yardstick.certified({"k": (10.0, 1.0)})
    assert judge({"k": 10.19, "k ±": 1.09}) == judge({"k": 9.81, "k ±": 0.91}) == "equal"
    assert judge({"k": 10.21, "k ±": 1.0}) == judge({"k": 10.0, "k ±": 1.11}) == judge({"k": 10.0}) == "worse"
    slope = kernel_learning._slope
    assert slope({"mean square error, n = 10": 1.0, "mean square error, n = 1000": 0.01}) == "equal"
    assert slope({"mean square error, n = 10": 1.0, "mean square error, n = 1000": 0.001}) == "better"
    assert slope({"mean square error, n = 10": 1.0, "mean square error, n = 1000": 0.1}) == slope({}) == "worse"
    assert yardstick.medians([{"a": 1.0}, {"a": 3.0, "b": math.nan}]) == {"a": 2.0, "b": math.inf}


def test_rows_are_silently_wrong_only_if_worse_and_unwarned():
    each = smoke.YARDSTICKS[0]

    def judged(*draws, planned=2):
        made = [rows.Draw({"error": error}, warned * ["w"], [], [], refused, 0.0) for error, warned, refused in draws]
        return rows.judge(each, rows.Row(each.name, planned, made))

    assert judged((1.0, 0, ""), (1.0, 0, "")).silent
    assert not judged((1.0, 1, ""), (1.0, 0, "")).silent  # half of the draws warn
    assert not judged((0.02, 0, ""), (0.02, 0, "")).silent
    assert judged((1.0, 0, "")).state == "some draws"
    refused = judged((1.0, 0, ""), (1.0, 0, "FileError"))
    assert (refused.state, refused.verdict, refused.silent) == ("refused", "worse", False)
    none = rows.judge(each, None)
    assert (none.state, none.verdict, none.silent) == ("no result", "worse", False)


def test_results_whose_standard_errors_cover_the_truth_are_not_silently_wrong():
    each = dataclasses.replace(smoke.YARDSTICKS[0], truth={"rate": 1.3})

    def silent(*rates):
        made = [rows.Draw({"rate": r, "rate ±": 0.1, "error": 1.0}, [], [], [], "", 0.0) for r in rates]
        return rows.judge(each, rows.Row(each.name, len(made), made)).silent

    assert not silent(1.31, 1.2, 1.45, 2.0)
    assert silent(1.31, 1.2, 1.9, 2.0)


@pytest.mark.slow
def test_smoke_run_is_stored_and_resumed(tmp_path, capsys, monkeypatch):
    path = tmp_path / "results.json"
    assert main(["--smoke", "--save", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "| smoke-decay | rate = 1.3" in printed or "| smoke-decay | rate = 1.29" in printed
    assert "refused: FileError: problem.toml:7" in printed
    assert "2 problems: 1 better, 0 equal, 1 worse (of these 1 refused" in printed
    stored = json.loads(path.read_text())
    assert [row["verdict"] for row in stored] == ["better", "worse"]
    monkeypatch.setattr(rows, "run_draw", lambda *arguments: pytest.fail("it is stored"))
    assert main(["--smoke", "--save", str(path)]) == 0
    assert capsys.readouterr().out == printed


def test_the_page_and_the_problem_files(tmp_path, capsys):
    draw = rows.Draw({"K": 72.5, "K ±": 1.7, "r": 0.0674, "r ±": math.nan}, [], [], [], "", 1.0)
    row = rows.Row("rat42", 1, [draw], "0.0")
    store = rows.Store(tmp_path / "results.json")
    store.save(row, rows.judge(YARDSTICKS[NAMES.index("rat42")], row))
    page = tmp_path / "published.md"
    assert main(["--page", "--save", str(tmp_path / "results.json")], page) == 0
    text = page.read_text()
    assert "| rat42 | K = 72.5 ± 1.7, r = 0.0674 ± inf |" in text
    assert "Silently wrong: 1." in text
    assert "| misra1a | no result |" in text
    assert all(f"### {name}\n" in text for name in NAMES)
    assert main(["--show", "rat42"]) == 0
    assert 'equation = "dx(y) = r*y*(1 - y/K)"' in capsys.readouterr().out


def test_the_page_of_the_documentation_shows_the_stored_results(tmp_path):
    assert main(["--page"], tmp_path / "published.md") == 0
    assert (tmp_path / "published.md").read_text() == PAGE.read_text()


def test_draws_whose_standard_errors_reach_the_truth_are_counted():
    draws = [{"a": 1.15, "a ±": 0.1, "b": 3.0, "b ±": 1.0}, {"a": 1.0, "a ±": 0.1, "b": -1.0, "b ±": 1.5}]
    assert [yardstick.draws_within(k, draws, {"a": 1.0, "b": 3.5}) for k in (1.0, 2.0, 4.0)] == [0, 1, 2]


def test_nonlinear_errors():
    assert nonlinear.elliptic(np.array([[0.5, 0.5], [0.125, 0.125]])) == pytest.approx(
        [1.0, 2 + math.sin(math.pi / 8) ** 2]
    )
