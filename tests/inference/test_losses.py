"""Losses: against refitting without each datum, residuals of the posterior mean, and in sweeps."""

import importlib

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import pilescore as ps
from pilescore.search import sweeps
from pilescore.solvers.system import solve

misfit = importlib.import_module("pilescore.inference.losses")  # the function of the same name shadows the module
STRIP = ps.Box(t=(0, 1), x=(0, 2))
DT, DX = ps.partials(STRIP)
HEAT = DT - 0.3 * DX**2
RNG = np.random.default_rng(1)
POINTS, SLOPES = RNG.uniform([0, 0], [1, 2], (7, 2)), RNG.uniform([0, 0], [1, 2], (4, 2))
Y, D = RNG.standard_normal(7), RNG.standard_normal(4)
NODES = STRIP.interior(ps.GaussLegendre((3, 4)))
WALL = STRIP.face(x=0)(ps.GaussLegendre(3))


def observed(values=Y, keep=slice(None), noise=None):
    return ps.observe(ps.identity, values[keep], POINTS[keep], noise=None if noise is None else noise[keep])


def sloped(keep=slice(None)):
    return ps.observe(DX, D[keep], SLOPES[keep], gamma=0.2)


def physics(**options):
    heat = ps.impose(HEAT, lambda p: jnp.sin(3 * p[0]) + p[1], on=NODES, **options)
    return [heat, ps.dirichlet(0.5, on=WALL)]


def model(data=None, equations=None, **options):
    given = {"gamma": 0.05, "rho": 0.02, "eta": 1.4} | options
    data = [observed(), sloped()] if data is None else data
    return ps.Model(ps.RBF([0.5, 0.8]), data, physics() if equations is None else equations, **given)


def refitted(noise=None, **options):
    """Return the residual of each datum, and its variance, where it is left out and the rest is fitted again."""
    whole = model([observed(noise=noise), sloped()], **options)
    found = []
    for i in range(len(Y) + len(D)):
        first, second = (
            np.delete(np.arange(n), j) for n, j in ((7, [i] if i < 7 else []), (4, [i - 7] if i > 6 else []))
        )
        post = ps.posterior(model([observed(keep=first, noise=noise), sloped(second)], **options))
        where, operator = (POINTS[[i]], ps.identity) if i < 7 else (SLOPES[[i - 7]], DX)
        spread = post.variance(where, operator)[0] + whole.noise[i]
        found.append((whole.values[i] - post.mean(where, operator)[0], spread))
    return np.array(found).T


@pytest.mark.parametrize("noise", [None, np.linspace(0.05, 2, 7)], ids=["gamma", "a noise for each"])
@pytest.mark.parametrize("equations", [None, []], ids=["physics", "data only"])
def test_leave_one_out_is_what_refitting_gives(noise, equations, monkeypatch):
    monkeypatch.setattr(misfit, "COLUMNS", 3)  # so that there are several batches
    residuals, variances = refitted(noise, equations=equations)
    at = model([observed(noise=noise), sloped()], equations)
    system = solve(at)
    found = misfit.left_out_variances(system)
    np.testing.assert_allclose(found, variances, rtol=1e-9)
    np.testing.assert_allclose(misfit.left_out_residuals(system, found), residuals, rtol=1e-8, atol=1e-10)
    assert ps.losses(at).leave_one_out == pytest.approx(np.mean(residuals**2), rel=1e-9)


def test_order_of_assembly_is_not_that_of_the_blocks():
    """A functional is assembled after all physics; its residual is still that of its own place among the data."""
    mass = ps.observe(ps.integral(STRIP.slice(t=0.5)(ps.GaussLegendre(5))), 0.7)
    at, without = model([mass, observed()]), model([observed()])
    system = solve(at)
    assert system.rows.order[-1] == 0
    nodes = STRIP.slice(t=0.5)(ps.GaussLegendre(5))
    post = ps.posterior(without)
    residual = 0.7 - nodes.weights @ post.mean(nodes.points)
    variance = nodes.weights @ post.covariance(nodes.points) @ nodes.weights + 0.025
    found = misfit.left_out_variances(system)
    assert found[0] == pytest.approx(variance, rel=1e-9)
    assert misfit.left_out_residuals(system, found)[0] == pytest.approx(residual, rel=1e-9)
    post = ps.posterior(at)
    misfits = [0.7 - nodes.weights @ post.mean(nodes.points), *(Y - post.mean(POINTS))]
    assert ps.losses(at).data == pytest.approx(np.mean(np.square(misfits)), rel=1e-9)


@pytest.mark.parametrize("options", [{}, {"noise": np.linspace(0.1, 3, 12)}], ids=["rho", "a noise for each"])
def test_training_losses_are_those_of_the_posterior_mean(options):
    at = model([observed(noise=np.linspace(0.05, 2, 7)), sloped()], physics(**options))
    post, found = ps.posterior(at), ps.losses(at)
    data = [*(Y - post.mean(POINTS)), *(D - post.mean(SLOPES, DX))]
    assert found.data == pytest.approx(np.mean(np.square(data)), rel=1e-9)
    heat = np.sin(3 * NODES.points[:, 0]) + NODES.points[:, 1] - post.mean(NODES.points, HEAT)
    wall = 0.5 - post.mean(WALL.points)
    total = NODES.weights @ heat**2 + WALL.weights @ wall**2
    assert found.physics == pytest.approx(total / (NODES.weights.sum() + WALL.weights.sum()), rel=1e-9)
    assert repr(found).startswith(f"Losses(data={found.data:.4g}, physics=")


def test_without_data_or_physics_there_is_no_loss_of_them():
    found = ps.losses(model([]))
    assert np.isnan([found.data, found.leave_one_out]).all()
    assert found.physics > 0
    found = ps.losses(model(equations=[]))
    assert np.isnan(found.physics)
    assert 0 < found.data < found.leave_one_out


def test_losses_do_not_change_with_the_scale_of_all_temperatures():
    at = model([observed()])
    scaled = at.replace({"gamma": 0.5, "rho": 0.2, "eta": 14.0})
    for name in ("data", "physics", "leave_one_out"):
        assert getattr(ps.losses(scaled), name) == pytest.approx(getattr(ps.losses(at), name), rel=1e-9)


def test_rounding_is_warned_of_where_losses_are_asked_for(as_a_user):
    twins = ps.observe(ps.identity, [0.0, 1.0], at=[0.5, 0.5 + 1e-9])
    with pytest.warns(ps.errors.PrecisionWarning, match="rounding"):
        ps.losses(ps.Model(ps.RBF(0.3), twins, gamma=1e-11))
    with pytest.raises(ps.errors.InputError, match=r"a ps\.Model"):
        ps.losses("a model")


GRID = {"kernel.bandwidth[0]": [0.3, 0.6], "gamma": np.geomspace(0.01, 1, 12)}


def seeded(seed):
    values = Y + 0.1 * np.random.default_rng(seed).standard_normal(7)
    return model([observed(values), sloped()])


@pytest.mark.parametrize("score", ["joint", "profiled", "given_physics"])
def test_sweeps_give_the_losses_of_the_model_there(score, monkeypatch):
    calls = []
    original = sweeps.left_out_variances
    monkeypatch.setattr(sweeps, "left_out_variances", lambda system: calls.append(0) or original(system))
    grid = GRID | {"gamma": [0.01, 0.1, 1.0]}
    found = ps.sweep(seeded, grid, seeds=range(3), losses=True, score=score)
    assert len(calls) == 6  # one for all seeds
    for i, bandwidth in enumerate(grid["kernel.bandwidth[0]"]):
        for j, gamma in enumerate(grid["gamma"]):
            for seed in range(3):
                at = seeded(seed).replace({"kernel.bandwidth[0]": bandwidth, "gamma": gamma})
                expected, here = ps.losses(at), found.isel({"kernel.bandwidth[0]": i, "gamma": j, "seed": seed})
                assert here.data_loss.item() == pytest.approx(expected.data, rel=1e-10)
                assert here.physics_loss.item() == pytest.approx(expected.physics, rel=1e-10)
                assert here.leave_one_out.item() == pytest.approx(expected.leave_one_out, rel=1e-10)
                assert here.pile.item() == pytest.approx(ps.pile(at, score).value, abs=1e-10)


def test_losses_are_found_where_temperatures_would_be_reduced():
    found, plain = (ps.sweep(model(), GRID, losses=losses) for losses in (True, False))
    assert not {"data_loss", "physics_loss", "leave_one_out"} & set(plain)
    np.testing.assert_allclose(found.pile, plain.pile, atol=1e-9)
    for gamma in GRID["gamma"][::5]:
        expected = ps.losses(model().replace({"kernel.bandwidth[0]": 0.3, "gamma": gamma}))
        assert found.leave_one_out.sel(gamma=gamma)[0].item() == pytest.approx(expected.leave_one_out, rel=1e-10)


def test_a_sweep_with_losses_goes_on_from_its_file(tmp_path, monkeypatch):
    whole = ps.sweep(seeded, GRID, seeds=range(2), losses=True)
    count, original = [], sweeps.system_losses

    def interrupted(*given):
        count.append(0)
        if len(count) == 12:
            raise KeyboardInterrupt
        return original(*given)

    with monkeypatch.context() as patched:
        patched.setattr(sweeps, "system_losses", interrupted)
        with pytest.warns(UserWarning, match="37 of 48"):
            ps.sweep(seeded, GRID, seeds=range(2), losses=True, run=ps.RunOptions(save=tmp_path / "a.nc"))
    xr.testing.assert_identical(
        ps.sweep(seeded, GRID, seeds=range(2), losses=True, run=ps.RunOptions(save=tmp_path / "a.nc")), whole
    )
    with pytest.raises(ps.errors.InputError, match="another model, grid, seeds, truth or option"):
        ps.sweep(seeded, GRID, seeds=range(2), run=ps.RunOptions(save=tmp_path / "a.nc"))


def test_quadrature_weights_are_part_of_the_sweep_where_they_change_a_loss(tmp_path):
    for save, losses in ((tmp_path / "a.nc", True), (tmp_path / "b.nc", False)):
        for weights in (NODES.weights, NODES.weights + 1):
            heat = ps.impose(HEAT, 0.0, on=ps.domains.nodes_at(NODES.points, weights), noise=0.1)
            at = model(equations=[heat])
            if losses and weights is not NODES.weights:
                with pytest.raises(ps.errors.InputError, match="another model"):
                    ps.sweep(at, {"gamma": [0.1]}, losses=losses, run=ps.RunOptions(save=save))
            else:
                ps.sweep(at, {"gamma": [0.1]}, losses=losses, run=ps.RunOptions(save=save))


def test_bad_input_is_refused(as_a_user):
    with pytest.raises(ps.errors.InputError, match="losses: expected True or False"):
        ps.sweep(model(), GRID, losses="all")
    named = ps.impose(ps.parameter("data_loss", 1.0) * DX, 0.0, on=NODES)
    with pytest.raises(ps.errors.InputError, match="a result is called 'data_loss' too"):
        ps.sweep(model(equations=[named]), {"data_loss": [1.0]}, losses=True)
