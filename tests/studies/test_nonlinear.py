"""The study of nonlinear equations: its reference solutions, and a small run of it."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg
import xarray as xr

import pilescore as ps
from pilescore import cli
from pilescore.diagnosis import digits
from pilescore.studies import nonlinear, nonlinear_report
from pilescore.studies import nonlinear_problems as problems

from ..browser import check_page, open_page
from ..models import numbers

pytestmark = [pytest.mark.study, pytest.mark.slow]

BY_NAME = {problem.name: problem for problem in problems.PROBLEMS}
FINER = {
    "burgers": functools.partial(problems.burgers, nodes=200),
    "eikonal": functools.partial(problems.eikonal, nodes=400),
    "allen_cahn": functools.partial(problems.allen_cahn, modes=160, times=64),
}


def at(function, points):
    return np.asarray(jax.jit(jax.vmap(function))(jnp.asarray(points)))


@pytest.mark.parametrize("name", BY_NAME)
def test_references_solve_their_problems(name):
    problem = BY_NAME[name]
    lower, upper = np.array(problem.region.lower), np.array(problem.region.upper)
    inside = lower + (upper - lower) * np.random.default_rng(0).uniform(0.02, 0.98, (6, 2))

    def residual(p):
        source = problem.source(p) if callable(problem.source) else problem.source
        return problem.operator(problem.truth)(p) - source

    assert np.abs(at(residual, inside)).max() < 1e-9
    edge = problem.boundary(7)
    assert np.abs(at(problem.truth, edge) - at(problem.condition, edge)).max() < 1e-14


@pytest.mark.parametrize("name", FINER)
def test_references_have_converged(name):
    problem = BY_NAME[name]
    points = np.random.default_rng(1).uniform(problem.region.lower, problem.region.upper, (200, 2))
    assert np.abs(at(problem.truth, points) - at(FINER[name], points)).max() < 1e-12


def test_the_eikonal_solution_is_that_of_two_other_methods():
    points = np.random.default_rng(2).uniform(0.02, 0.98, (50, 2))
    found = at(problems.eikonal, points)
    eps, x, y, n = problems.EPSILON, points[:, :1], points[:, 1:], np.arange(1, 1200, 2)
    kappa = np.sqrt(1 / eps**2 + (n * np.pi) ** 2)
    across = (np.exp((x - 1) / eps) + np.exp(-x / eps)) / (1 + np.exp(-1 / eps))
    up = (np.exp(kappa * (y - 1)) + np.exp(-kappa * y)) / (1 + np.exp(-kappa))
    series = across[:, 0] + np.sum(4 / (n * np.pi * (eps * kappa) ** 2) * np.sin(n * np.pi * x) * up, axis=1)
    np.testing.assert_allclose(found, -eps * np.log(series), atol=1e-11)
    coarse, fine = (_by_differences(cells) for cells in (64, 128))
    extrapolated = fine + (fine - coarse) / 3
    inner = np.stack(np.meshgrid(*[np.arange(1, 4) / 4] * 2, indexing="ij"), axis=-1).reshape(-1, 2)
    found = at(problems.eikonal, inner)
    np.testing.assert_allclose(found, extrapolated, atol=1e-5)
    assert np.abs(found - fine).max() > 10 * np.abs(found - extrapolated).max()


def _by_differences(cells):
    """Return u at nine points by five-point differences of `ε²Δw = w`."""
    n, h = cells - 1, 1 / cells
    line = sp.diags_array([1.0, -2.0, 1.0], offsets=[-1, 0, 1], shape=(n, n)) / h**2
    eye = sp.eye_array(n)
    matrix = sp.eye_array(n * n) - problems.EPSILON**2 * (sp.kron(line, eye) + sp.kron(eye, line))
    edge = np.zeros((n, n))
    for side in (edge[0], edge[-1], edge[:, 0], edge[:, -1]):
        side += problems.EPSILON**2 / h**2
    w = scipy.sparse.linalg.spsolve(matrix.tocsc(), edge.ravel()).reshape(n, n)
    places = cells // 4 * np.arange(1, 4) - 1
    return -problems.EPSILON * np.log(w[np.ix_(places, places)]).ravel()


def test_points_are_as_many_as_in_publications_and_differ_by_set():
    sizes = {name: (problem.size[0], len(problem.boundary(problem.size[1]))) for name, problem in BY_NAME.items()}
    assert sizes == {"elliptic": (900, 124), "burgers": (1000, 198), "eikonal": (1000, 200), "allen_cahn": (1000, 198)}
    assert len(np.unique(problems.around(31), axis=0)) == 124
    assert len(np.unique(problems.from_the_start(66), axis=0)) == 198
    first, again, other = (BY_NAME["burgers"].model(seed, 0.1) for seed in (0, 0, 1))
    assert first.physics[0].points.tolist() == again.physics[0].points.tolist() != other.physics[0].points.tolist()
    assert [block.size for block in first.blocks] == [100, 63]
    kernel = BY_NAME["burgers"].kernel
    lengths = [1 / np.sqrt(float(-kernel.derivative(a, (0, 0), (0.0, 0.0), (0.0, 0.0)))) for a in ((2, 0), (0, 2))]
    assert lengths == pytest.approx([6 * 0.05, 0.05])


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A small run of one of the problems by the command line: its summary, its results and its directory."""
    small = nonlinear.NonlinearSettings(seeds=2, share=0.12, values=4, picture=9)
    directory = tmp_path_factory.mktemp("study") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nonlinear, "PROBLEMS", (BY_NAME["burgers"],))
        patch.setattr(nonlinear.NonlinearSettings, "quick", classmethod(lambda cls, seeds=2: small))
        assert cli.main(["study", "nonlinear", "--quick", "--out", str(directory)]) == 0
    summary = json.loads((directory / "summary.json").read_text())
    with xr.open_dataset(directory / "results.nc", engine="scipy") as opened:
        return summary, opened.load(), directory


def test_choices_and_errors_are_those_of_the_models(done):
    summary, results, _ = done
    assert list(summary["problems"]) == ["burgers"]
    for name, of in summary["problems"].items():
        problem = BY_NAME[name]
        assert dict(results[f"{name}_error"].sizes) == {f"{name}_length": 4, "seed": 2}
        for seed, row in enumerate(of["sets"]):
            scores = {rule: results[f"{name}_{rule}"].sel(seed=seed) for rule in ("pile", "physics_loss", "error")}
            for rule, column in (("PILE", "pile"), ("training residual", "physics_loss"), ("least", "error")):
                place = int(np.nanargmin(scores[column].values))
                assert row[rule]["length"] == float(results[f"{name}_length"][place])
                assert row[rule]["error"] == float(scores["error"][place])
            assert row["PILE"]["regret"] == row["PILE"]["error"] / row["least"]["error"] >= 1
        chosen = of["sets"][0]["PILE"]
        model = problem.model(0, 0.12).replace({"kernel.bandwidth": chosen["length"] / problem.stretch})
        solved = ps.solve_nonlinear(model, progress=False)
        risk = ps.accuracy(solved.model, problem.truth, problem.fine)
        assert risk.data.relative_l2 == pytest.approx(chosen["relative"], rel=1e-3)
        size = np.sqrt(risk.data.scale / problem.region.measure)
        assert chosen["error"] == pytest.approx(size * chosen["relative"], rel=1e-10)
        assert of["solve"]["status"] == solved.status
        assert of["limit"] is of["known"] is None  # with all points only
    assert [each["expected"] for each in summary["checks"]] == ["at most 2", "all 1"]


def test_the_page(done, browser):
    summary, results, directory = done
    assert nonlinear_report.CAPTIONS.keys() == BY_NAME.keys()
    report = nonlinear_report.report(results, summary)
    figures = ["burgers_sweep", "burgers_solution", "decrements"]
    assert [figure.name for figure in report.figures] == summary["figures"] == figures
    known = {form(value) for value in numbers(summary) for form in (digits, lambda v: f"{100 * v:.0f}", str)}
    cells = [number for number, _ in report.verdicts]
    for section in report.sections[:-1]:  # the last repeats the checks
        cells += [cell for table in section.tables for row in table.rows for cell in row[1:]]
    stated = re.findall(r"−?\d+(?:\.\d+)?(?:·10[⁻⁰-⁹¹²³]+)?", " ".join(cells))
    assert len(stated) > 25
    assert [number for number in stated if number not in known] == []
    opened = check_page(open_page(browser, directory / "report.html", 1200))
    assert opened["problems"] == []
    assert opened["figures"] == figures


def test_limits_are_expected_with_all_points_only(done):
    summary, results, _ = done
    whole = json.loads(json.dumps(summary))
    of = whole["problems"]["burgers"]
    of |= {"limit": 0.007, "known": 0.0064, "largest_error": 0.0071, "largest_regret": 2.5, "failed": 1}
    found = nonlinear._checks(whole["problems"])
    assert [each["holds"] for each in found if "Burgers" in each["what"]] == [False, False]
    report = nonlinear_report.report(results, whole)
    text = " ".join(paragraph for section in report.sections for paragraph in section.paragraphs)
    assert "One model of the sweep could not be solved" in text
    assert any("published: 0.0064" in meaning for _, meaning in report.verdicts)
