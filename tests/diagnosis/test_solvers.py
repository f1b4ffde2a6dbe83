"""Diagnosis of models with any solver: checks use the dense one, or a part of the observations."""

import dataclasses

import numpy as np
import pytest

import pilescore as ps
from pilescore.diagnosis import dense
from pilescore.diagnosis.dense import dense_model

LINE = ps.Box(x=(0, 1))
(DX,) = ps.partials(LINE)
CHEAP = ["collapsed", "outliers", "miscalibrated", "physics_against_data", "unresolved_quadrature", "ill_conditioned"]


def line(count=60, outlier=True, **options):
    rng = np.random.default_rng(3)
    x = rng.uniform(0, 1, count)
    values = np.sin(9 * x) + 0.05 * rng.standard_normal(count)
    values[11] += 0.5 if outlier else 0.0
    equation = ps.impose(DX**2 / 81 + ps.identity, 0.0, on=LINE.interior(ps.GaussLegendre(24)))
    chosen = {"gamma": 0.005, "rho": 1e-3} | options
    return ps.Model(ps.RBF(0.25), ps.observe(ps.identity, values, at=x), equation, **chosen)


SOLVERS = {
    "low rank": ps.solvers.LowRank(tolerance=1e-4),
    "features": ps.solvers.Features(ps.solvers.HilbertBasis(-0.5, 1.5, count=60)),
    "auto": ps.solvers.Auto(),
}


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_small_model_is_diagnosed_by_the_dense_solver(solver):
    model = line()
    wanted = ps.diagnose(model, checks=CHEAP, score="joint", progress=False)
    found = ps.diagnose(model.replace(solver=SOLVERS[solver]), checks=CHEAP, score="joint", progress=False)
    for each in found.checked:
        assert each.value == pytest.approx(wanted[each.name].value, nan_ok=True), each
    assert "outliers" in found
    assert found["outliers"].details["outliers"][0]["index"] == 11
    assert found.about == ("" if solver == "auto" else found.about)
    assert ("dense solver" in repr(found)) == (solver != "auto")
    assert ("dense solver" in found._repr_html_()) == (solver != "auto")


def test_a_low_rank_minimum_is_diagnosed():
    model = line(solver=ps.solvers.LowRank(tolerance=1e-3))
    best = ps.minimize(model, {"gamma": (1e-4, 1.0)}, score="joint", starts=1)
    found = ps.diagnose(best, checks=CHEAP, progress=False)
    assert "outliers" in found
    assert not any(each.meaning.startswith("This check failed") for each in found.checked)


def test_tiles_are_diagnosed():
    found = ps.diagnose(line(solver=ps.solvers.Distributed()), checks=CHEAP, score="joint", progress=False)
    assert "outliers" in found


def test_a_part_of_a_large_model_is_diagnosed(monkeypatch):
    monkeypatch.setattr(dense, "DENSE_UP_TO", 100)
    monkeypatch.setattr(dense, "THINNED", 80)
    model = line(count=200, solver=ps.solvers.LowRank(tolerance=1e-3))
    part, text = dense_model(model)
    assert (part.size, sum(block.size for block in part.data)) == (80, 56)
    assert "80 of 224 observations" in text
    (all_data,), (some,) = model.data, part.data
    for point, value in zip(some.points, some.values, strict=True):
        assert all_data.values[np.flatnonzero(all_data.points[:, 0] == point[0])] == value
    nodes, whole = part.physics[0], model.physics[0]
    where = [int(np.flatnonzero(whole.points[:, 0] == point)[0]) for point in nodes.points[:, 0]]
    np.testing.assert_allclose(part.noise[56:], model.noise[200:][where])  # each node keeps its noise
    found = ps.diagnose(model, checks=CHEAP, score="joint", progress=False)
    assert found["unresolved_quadrature"].status == "skipped"
    assert found["collapsed"].status == "fine"
    full = ps.diagnose(dataclasses.replace(model, solver=ps.solvers.Dense()), checks=["collapsed"], score="joint")
    assert full.about == ""
    assert found["collapsed"].value == pytest.approx(full["collapsed"].value, abs=0.02)


def test_a_model_that_the_dense_solver_cannot_factor_is_skipped(monkeypatch):
    model = line(gamma=1e-17, rho=1e-17).replace({"kernel.bandwidth": 3.0})
    with pytest.raises(ps.errors.NotPositiveDefiniteError):
        ps.diagnose(model, checks=CHEAP, score="joint")
    found = ps.diagnose(model.replace(solver=ps.solvers.LowRank()), checks=CHEAP, score="joint", progress=False)
    assert {each.status for each in found.checked} == {"skipped"}
