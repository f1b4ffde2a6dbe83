"""Sweeps: the values of single scores at every point, errors, seeds, failures and bad input."""

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import pilescore as ps
from pilescore.search import sweep_plan
from pilescore.search.sweeps import sweep

from ..models import DX, FINE, LINE, NODES, opened
from ..models import LINE_X as X
from ..models import LINE_Y as Y
from ..models import count_sweep_solves as counted
from ..models import line_model as model
from ..models import line_truth as truth
from ..models import seeded_line_model as seeded
from ..models import sweep_points as points

BETA = ps.parameter("beta", 1.0)


ON_FINE = ps.KnownSolution(truth, on=FINE)


def other():
    return ps.Model(ps.RBF(0.3), ps.observe(ps.identity, Y, X))


GRIDS = {
    "a kernel and temperatures": {"kernel.bandwidth[0]": [0.2, 1], "gamma": [0.01, 0.1], "eta": [1, 2]},
    "many temperatures": {"gamma": np.geomspace(1e-3, 1, 13), "rho": [0.1]},
    "an operator": {"beta": [0.5, 2.0], "rho": [0.1, 0.2]},
}


@pytest.mark.parametrize("score", ["joint", "profiled", "given_physics"])
@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_every_point_is_the_score_of_the_model_there(grid, score):
    base = model(operator=BETA * DX)
    found = sweep(base, grid, score=score)
    assert list(found.sizes.items()) == [*((name, len(column)) for name, column in grid.items()), ("block", 2)]
    for point, here in points(found):
        expected = ps.pile(base.replace(point), score=score)
        for name in ("fit", "complexity", "constant"):
            assert float(here[name]) == pytest.approx(getattr(expected, name), abs=1e-10)
        assert float(here.pile) == pytest.approx(expected.value, abs=1e-10)
        np.testing.assert_allclose(here.shares, [*expected.shares.values()], atol=1e-10)
        assert ("eta_hat" in here) == (score == "profiled")
        assert "eta_hat" not in here or float(here.eta_hat) == pytest.approx(expected.eta, rel=1e-10)
        assert (str(here.status.item()), here.reason.item()) == ("ok", "")
        assert 0 < float(here.rounding) < 1e-10
    assert found.block.values.tolist() == ["data.0", "Ω∂"]


@pytest.mark.parametrize("profiled", [False, True])
def test_errors_are_those_of_accuracy(profiled):
    grid = {"kernel.bandwidth[0]": [0.2, 0.5], "gamma": [0.01, 0.1]}
    found = sweep(model(), grid, known=ON_FINE, score=ps.Score(profiled=profiled))
    for point, here in points(found):
        at = model().replace(point)
        factor = ps.pile(at, score="profiled").eta if profiled else 1.0
        at = at.replace({"eta": factor, "gamma": factor * float(at.gamma), "rho": factor * float(at.rho)})
        errors = ps.accuracy(at, truth, on=FINE, operator=DX)
        for kind, risk in (("data", errors.data), ("phys", errors.physics)):
            for part, name in sweep_plan.RISK_COLUMNS.items():
                assert float(here[f"R_{kind}{part}"]) == pytest.approx(getattr(risk, name), rel=1e-9)
        assert float(here.R_data) == pytest.approx(float(here.R_data_bias + here.R_data_variance), rel=1e-12)


def test_the_equation_is_found_among_conditions():
    """Without nodes and operator the errors are of the equation, not of a boundary condition before it."""
    wall = ps.dirichlet(0.0, on=LINE.face(x=0)(ps.GaussLegendre(1)))
    both = ps.Model(ps.RBF(0.3), model().data, [wall, *model().physics], gamma=0.02, rho=0.03)
    found = sweep(both, {"gamma": [0.1]}, known=ps.KnownSolution(truth))
    errors = ps.accuracy(both.replace({"gamma": 0.1}), truth, LINE.interior(ps.GaussLegendre(30)), DX)
    assert found.R_data.item() == pytest.approx(errors.data.value, rel=1e-9)
    assert found.R_phys.item() == pytest.approx(errors.physics.value, rel=1e-9)


def test_seeds_of_a_function_share_factorisations(monkeypatch):
    grid = {"kernel.bandwidth[0]": [0.2, 0.5], "gamma": [0.01, 0.1]}
    calls = counted(monkeypatch)
    found = sweep(seeded, grid, seeds=range(3), known=ON_FINE)
    assert len(calls) == 4
    assert found.pile.dims == (*grid, "seed")
    for point, here in points(found):
        at = seeded(int(here.seed)).replace(point)
        errors = ps.accuracy(at, truth, on=FINE, operator=DX)
        assert float(here.pile) == pytest.approx(ps.pile(at).value, abs=1e-12)
        assert float(here.R_data_bias) == pytest.approx(errors.data.bias, rel=1e-9)
        assert float(here.R_phys) == pytest.approx(errors.physics.value, rel=1e-9)
    kernels = [ps.kernels.FunctionKernel(lambda x, y, s=s: jnp.exp(-s * jnp.sum((x - y) ** 2))) for s in (3.0, 5.0)]
    found = sweep(lambda seed: model(kernel=kernels[seed]), {"gamma": [0.1]}, seeds=[0, 1])
    for seed in (0, 1):  # nothing is shared between different kernels
        expected = ps.pile(model(kernel=kernels[seed]).replace({"gamma": 0.1})).value
        assert found.pile.sel(seed=seed).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
def test_redrawn_data_have_the_noise_of_the_model():
    mass = ps.observe(ps.integral(FINE), 0.0, gamma=0.5)
    weighted = ps.observe(2 * DX, np.zeros(9), X, noise=np.linspace(0.1, 2, 9))
    base = ps.Model(ps.RBF(0.3), [model().data[0], weighted, mass], model().physics, gamma=0.02, rho=1.0)
    drawn = np.array([each.values for each in sweep_plan.seeded_models(base, tuple(range(4000)), truth)])
    exact = [np.sin(4 * X), 8 * np.cos(4 * X), [(1 - np.cos(4)) / 4], 4 * np.cos(4 * NODES.points[:, 0])]
    deviation = np.concatenate([np.full(9, 0.1), np.linspace(0.1, 2, 9), [0.5], np.zeros(5)])
    z = drawn - np.concatenate(exact)
    np.testing.assert_allclose(z[:, -5:], 0, atol=1e-12)  # physics is not drawn
    z = z[:, :-5] / deviation[:-5]
    assert np.abs(z.mean(axis=0)).max() < 4.5 / np.sqrt(4000)
    assert np.abs(z.var(axis=0) - 1).max() < 4.5 * np.sqrt(2 / 4000)
    assert np.abs(np.corrcoef(z.T) - np.eye(19)).max() < 5 / np.sqrt(4000)
    first, again = (sweep(base, {"gamma": [0.1]}, known=ON_FINE, seeds=[3, 5]) for _ in range(2))
    xr.testing.assert_identical(first, again)
    by_hand = ps.pile(sweep_plan.seeded_models(base, (5,), truth)[0].replace({"gamma": 0.1})).value
    assert first.pile.sel(seed=5).item() == pytest.approx(by_hand, abs=1e-12)


@pytest.mark.parametrize("save", [None, "f.nc", "f.zarr"])
def test_failures_are_recorded_and_the_rest_goes_on(save, tmp_path):
    twins = ps.Model(ps.RBF(1.0), ps.observe(ps.identity, 1.0, [0.5, 0.1, 0.5, 0.1, 0.3]))
    grid = {"gamma": [1e-300, 1e-12, 1e-2], "kernel.bandwidth": [0.3, 0.5]}
    save = save and tmp_path / save
    run = ps.RunOptions(save=save)
    found = sweep(twins, grid, run=run)
    assert found.status.values.tolist() == [["failed"] * 2, ["imprecise"] * 2, ["ok"] * 2]
    assert found.pile.isnull().values.tolist() == [[True, True], [False, False], [False, False]]
    for point, here in points(found):
        if here.status.item() == "failed":
            with pytest.raises(ps.errors.NotPositiveDefiniteError) as caught:
                ps.pile(twins.replace(point))
            assert here.reason.item() == str(caught.value)
            assert len(here.reason.item()) > 300
    assert "uncertain by" in found.reason.values[1, 0]
    alone = sweep(twins, {"gamma": [1e-300]})
    assert alone.status.values.tolist() == ["failed"]
    if save:
        xr.testing.assert_identical(opened(save), found)
        xr.testing.assert_identical(sweep(twins, grid, run=run), found)


def test_zero_values_cannot_be_profiled_and_say_so():
    zero = ps.Model(ps.RBF(0.3), ps.observe(ps.identity, np.zeros(9), X))
    found = sweep(zero, {"gamma": np.geomspace(0.1, 1, 20)}, score="profiled")
    assert set(found.status.values) == {"failed"}
    assert "all zero" in found.reason.values[0]


def test_bad_input_is_refused_before_any_work(as_a_user, monkeypatch):
    calls = counted(monkeypatch)
    good, flat = {"gamma": [0.1]}, ps.domains.nodes_at(np.zeros((3, 2)))
    for arguments, options, text in (
        ((model(), {"kernel.bandwith": [1.0]}), {}, "Did you mean 'kernel.bandwidth'"),
        ((model(), {"kernel.bandwidth[1]": [1.0]}), {}, "an index into"),
        ((model(), {"gamma": [0.1, np.nan]}), {}, "NaN"),
        ((model(), {"gamma": [0.1, -1.0]}), {}, "positive"),
        ((model(), {"gamma": []}), {}, "at least one value"),
        ((model(), {}), {}, "grid"),
        ((model(), {"gamma": [1.0, 1.0]}), {}, "different values"),
        ((model(operator=ps.parameter("fit", 1.0) * DX), {"fit": [1.0]}), {}, "a result is called 'fit' too"),
        ((model(operator=ps.parameter("seed", 1.0) * DX), {"seed": [1.0]}), {}, "a result is called 'seed' too"),
        ((model(), {"kernel.bandwidth[0]": [1.0], "kernel.bandwidth[00]": [2.0]}), {}, "once"),
        ((model(), good), {"seeds": [1]}, "a truth to draw data from"),
        (
            (model(), good),
            {"seeds": [1], "known": ps.KnownSolution(lambda p: jnp.log(p[0] - 0.1))},
            "truth: expected finite",
        ),
        ((seeded, good), {}, "seeds"),
        ((seeded, good), {"seeds": []}, "at least one"),
        ((seeded, good), {"seeds": [1, 1]}, "each once"),
        ((seeded, good), {"seeds": [2**31]}, "below 2³¹"),
        ((seeded, good), {"seeds": [0.5]}, "an integer"),
        ((lambda seed: seed, good), {"seeds": [1]}, "returns a ps.Model"),
        ((lambda seed: [seeded(1), other()][seed], good), {"seeds": [0, 1]}, "the same blocks"),
        (("a model", good), {}, "a ps.Model"),
        ((other(), good), {"score": "given_physics"}, "both data and physics"),
        ((other(), good), {"known": ps.KnownSolution(truth)}, "physics has no region"),
        ((model(), good), {"known": truth}, "known: expected a ps.KnownSolution"),
        ((model(), good), {"known": ps.KnownSolution(truth, on=flat)}, "1 coordinates"),
        ((model(), good), {"known": ps.KnownSolution(truth, operator="dx")}, "an operator such as"),
        ((model(kernel=ps.Matern(1.5)), good), {"known": ps.KnownSolution(truth, operator=DX**2)}, "of order 2"),
        ((model(), good), {"run": "run.nc"}, "run: expected a ps.RunOptions"),
        ((model(), good), {"score": "printed"}, "score: expected 'joint'"),
        ((model(), good), {"score": ps.Score(formula="printed")}, "the consistent formula"),
    ):
        with pytest.raises(ps.errors.InputError) as caught:
            sweep(*arguments, **options)
        assert text in str(caught.value)
    assert calls == []
