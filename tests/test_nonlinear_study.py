"""The nonlinear study: its reference solutions against independent ones, and a small run of it."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pilescore.folders import Folder
from pilescore.studies import nonlinear, nonlinear_problems, study
from pilescore.studies.nonlinear_problems import EPSILON, PROBLEMS, allen_cahn, burgers, eikonal

BY_NAME = {problem.name: problem for problem in PROBLEMS}


def points(problem, count=40):
    lower, upper = np.array(problem.region.lower), np.array(problem.region.upper)
    return jnp.asarray(lower + (upper - lower) * np.random.default_rng(1).uniform(0.02, 0.98, (count, 2)))


@pytest.mark.parametrize("name", BY_NAME)
def test_references_solve_their_equations(name):
    """By automatic differentiation of the reference, relative to the largest of its second derivatives."""
    problem = BY_NAME[name]
    at = points(problem)
    found = jax.vmap(problem.operator(problem.truth))(at)
    target = jax.vmap(problem.source)(at) if callable(problem.source) else problem.source
    size = jnp.abs(jax.vmap(jax.hessian(problem.truth))(at)).max()
    assert float(jnp.abs(found - target).max()) < 1e-7 * float(size)
    edge = jnp.asarray(problem.boundary(20))
    np.testing.assert_allclose(jax.vmap(problem.truth)(edge), jax.vmap(problem.condition)(edge), atol=1e-9)


@pytest.mark.parametrize(
    ("name", "coarse", "fine"),
    [
        ("burgers", burgers, lambda p: burgers(p, 200)),
        ("eikonal", eikonal, lambda p: eikonal(p, 400)),
        ("allen_cahn", allen_cahn, lambda p: allen_cahn(p, 160, 60)),
    ],
)
def test_references_are_converged(name, coarse, fine):
    at = points(BY_NAME[name])
    np.testing.assert_allclose(jax.vmap(coarse)(at), jax.vmap(fine)(at), atol=1e-10)


def test_eikonal_against_a_sine_series():
    """`w = exp(−u/ε)` solves `ε²Δw = w`, `w = 1` around: by a series in x that is exact in y."""
    at = np.asarray(points(BY_NAME["eikonal"]))
    x, y = at[:, :1], at[:, 1:]
    n = np.arange(1, 20001, 2)
    rate = np.sqrt(EPSILON**-2 + (n * np.pi) ** 2)
    sides = (np.exp((x - 1) / EPSILON) + np.exp(-x / EPSILON)) / (1 + np.exp(-1 / EPSILON))
    ends = (np.exp(rate * (y - 1)) + np.exp(-rate * y)) / (1 + np.exp(-rate))
    rest = (4 / (n * np.pi * EPSILON**2 * rate**2) * np.sin(n * np.pi * x) * ends).sum(axis=1)
    np.testing.assert_allclose(
        jax.vmap(eikonal)(jnp.asarray(at)), -EPSILON * np.log(sides[:, 0] + rest), rtol=0, atol=1e-8
    )


def test_a_small_run(tmp_path, monkeypatch):
    monkeypatch.setattr(nonlinear, "PROBLEMS", (BY_NAME["eikonal"],))
    sizes = nonlinear.Settings(seeds=1, share=0.08, values=4, picture=9)
    said = []
    with Folder(tmp_path / "out", study.kept_settings(nonlinear.STUDY, sizes)).entered() as folder:
        summary, report = study.run(nonlinear.STUDY, sizes, folder, said.append)
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == summary
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
    found = summary["problems"]["eikonal"]
    assert found["points"] == [80, 4 * round(0.08**0.5 * 50)]
    assert found["solve"]["status"] in ("converged", "stagnated")
    first = found["sets"][0]
    assert first["PILE"]["error"] == pytest.approx(first["PILE"]["regret"] * first["least"]["error"])
    assert first["least"]["error"] < 0.02 < first["training residual"]["length"]
    assert report.figures
    assert "80 + 56 points" in said[0]


def test_points_differ_between_sets_and_stay_inside():
    problem = BY_NAME["burgers"]
    first, second = (problem.model(seed, 0.05).physics[0].points for seed in (0, 1))
    assert not np.array_equal(first, second)
    assert problem.region.contains(first).all()
    assert nonlinear_problems.STRIP is problem.region
