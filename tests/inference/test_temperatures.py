"""Families of temperatures: reduced scores against factorisations, when they are used, and when they are not."""

import numpy as np
import pytest
import xarray as xr

import pilescore as ps
from pilescore.inference import temperatures as families
from pilescore.inference.temperatures import _best_families, scores_by_temperature
from pilescore.search import sweeps
from pilescore.search.sweeps import sweep

from ..models import DX, FINE, LINE, NODES
from ..models import count_sweep_solves as counted
from ..models import sweep_points as points

X = np.linspace(0, 1, 17)
Y = np.sin(5 * X)


def model():
    data = [
        ps.observe(ps.identity, Y, X),
        ps.observe(DX, [1.0, 2.0, -1.0], [0.1, 0.5, 0.9], noise=[0.1, 0.2, 0.3], name="slopes"),
        ps.observe(ps.integral(FINE), 0.3, name="mass"),
    ]
    wall = ps.impose(ps.identity, 0.1, on=LINE.face(x=0)(ps.GaussLegendre(1)), rho=0.02, name="wall")
    return ps.Model(ps.Matern(2.5, 0.4), data, [wall, ps.impose(DX, 2.0, on=NODES)], gamma=0.02, rho=0.03, eta=1.5)


def smooth():
    return ps.Model(ps.RBF(0.5), ps.observe(ps.identity, Y, X), ps.impose(DX, 0.5, on=NODES), gamma=0.1, rho=0.1)


STEPS = np.geomspace(1e-3, 1e1, 12)
GRIDS = {
    "gamma": ({"gamma": STEPS}, 0),
    "rho": ({"rho": STEPS}, 0),
    "eta": ({"eta": STEPS}, 0),  # with everything else varied by one factor
    "a block's own": ({"physics.0.rho": STEPS}, 0),
    "known noise": ({"data.1.gamma": STEPS}, 0),
    "two": ({"gamma": STEPS, "rho": [0.01, 1.0]}, 0),
    "all": ({"gamma": STEPS, "rho": [0.1, 1.0], "eta": [0.5, 1.0], "physics.0.rho": [0.3]}, 0),
    "two kernels": ({"gamma": STEPS, "kernel.bandwidth": [0.2, 0.5]}, 0),
    "too few": ({"gamma": STEPS[:8]}, 8),
    "few of each": ({"gamma": STEPS[:4], "rho": STEPS[:4]}, 16),
}


@pytest.mark.parametrize("score", ["joint", "profiled"])
@pytest.mark.parametrize(("grid", "factored"), GRIDS.values(), ids=GRIDS)
def test_reduced_scores_are_those_of_factorisations(grid, factored, score, monkeypatch):
    calls = counted(monkeypatch)
    found = sweep(model(), grid, score=score)
    assert len(calls) == factored
    for point, here in points(found):
        expected = ps.pile(model().replace(point), score)
        assert float(here.pile) == pytest.approx(expected.value, abs=1e-9)
        assert float(here.fit) == pytest.approx(expected.fit, abs=1e-9, rel=1e-9)
        assert float(here.complexity) == pytest.approx(expected.complexity, abs=1e-9)
        np.testing.assert_allclose(here.shares, [*expected.shares.values()], rtol=1e-9, atol=1e-9)
        assert abs(float(here.pile) - expected.value) <= 10 * (float(here.rounding) + expected.rounding)


@pytest.mark.filterwarnings("ignore::pilescore.errors.PrecisionWarning")
def test_where_rounding_is_large_points_are_factored(monkeypatch):
    calls = counted(monkeypatch)
    gammas = np.geomspace(1e-13, 1.0, 27)
    found = sweep(smooth(), {"gamma": gammas}, score="joint")
    assert 2 < len(calls) < 20
    expected = [ps.pile(smooth().replace({"gamma": gamma})).value for gamma in gammas]
    direct = [float(at.gamma) for at, *_ in calls]
    assert max(direct) < min(set(gammas) - set(direct))  # those of little noise
    for gamma, value, other in zip(gammas, found.pile.values, expected, strict=True):
        assert value == pytest.approx(other, abs=0 if gamma in direct else 1e-9)


def test_a_kernel_that_cannot_be_reduced_is_factored_and_fails_alone():
    data = ps.observe(ps.identity, 1.0, [0.2, 0.2], gamma=1e-300)
    twins = ps.Model(ps.RBF(0.5), data, ps.impose(DX, 1.0, on=NODES), rho=1.0)
    found = sweep(twins, {"rho": STEPS}, score="joint")
    assert set(found.status.values) == {"failed"}
    assert "'data.0'" in found.reason.values[0]
    found = sweep(model(), {"gamma": [*STEPS, 1e-320, 1e300], "eta": [1e-200, 1.0, 1e200]}, score="joint")
    assert found.status.sel(eta=1.0).values.tolist()[:12] == ["ok"] * 12
    assert "pending" not in found.status


def test_a_score_does_not_depend_on_which_others_are_wanted(monkeypatch):
    monkeypatch.setattr(families, "TOGETHER", 5)
    values = [{"gamma": g, "eta": e} for g in STEPS for e in (0.5, 1.0)]
    every = dict(scores_by_temperature(model(), values, False, [True] * 24))
    assert sorted(every) == list(range(24))
    assert None not in every.values()
    reductions, batches = [], []
    original, piles = families.reduce_shifted, families._piles
    monkeypatch.setattr(families, "reduce_shifted", lambda *given: reductions.append(0) or original(*given))
    monkeypatch.setattr(families, "_piles", lambda *given: batches.append(0) or piles(*given))
    some = dict(scores_by_temperature(model(), values, False, [i in (3, 20) for i in range(24)]))
    assert len(reductions) == len(batches) == 2  # both are of other families: η scales the wall's level
    assert some == {3: every[3], 20: every[20]}
    assert dict(scores_by_temperature(model(), values, False, [False] * 24)) == {}
    assert len(reductions) == 2


def test_an_interrupted_family_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(families, "TOGETHER", 4)
    grid = {"gamma": np.geomspace(1e-3, 1, 30)}
    whole = sweep(model(), grid, score="joint")
    with monkeypatch.context() as patched:
        original, count = sweeps._pile_columns, []

        def interrupted(score):
            count.append(0)
            if len(count) == 11:
                raise KeyboardInterrupt
            return original(score)

        patched.setattr(sweeps, "_pile_columns", interrupted)
        with pytest.warns(UserWarning, match="20 of 30"):
            sweep(model(), grid, score="joint", run=ps.RunOptions(save=tmp_path / "a.nc"))
    xr.testing.assert_identical(sweep(model(), grid, score="joint", run=ps.RunOptions(save=tmp_path / "a.nc")), whole)


def test_families_are_the_cheapest():
    def count(levels):
        varying, found = _best_families(np.array(levels))
        assert sorted(i for members in found for i in members) == list(range(len(levels)))
        return varying, len(found)

    pairs = [(a, b) for a in STEPS for b in (1.0, 2.0)]
    assert count(pairs) == ([0], 2)
    assert count([(b, a) for a, b in pairs]) == ([1], 2)
    assert count([(t * a, t * b) for t in STEPS for a, b in ((1.0, 2.0), (3.0, 1.0))]) == ([0, 1], 2)
    assert count([(t,) for t in STEPS]) == ([0], 1)
    assert count([(a, 1 + 1e-9 * k) for a in STEPS for k in range(2)]) == ([0], 2)  # nearly one level is not one
