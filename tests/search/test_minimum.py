"""The minimum of PILE: closed forms, grids, SciPy's simplex, differences; failures, budgets, threads, Ctrl-C."""

import itertools
import math
import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import pilescore as ps
from pilescore.parallel.resources import ONE_BLAS_THREAD
from pilescore.search import descent, objective, steps
from pilescore.search.minimum import prepare

from ..models import FAR_X as FAR
from ..models import FAR_Y as Y
from ..models import OVER, T, decay, refused, sine
from ..models import SEARCH_RNG as RNG


@pytest.mark.parametrize("count", [1, 16])
@pytest.mark.parametrize("name", ["eta", "gamma", "kernel.variance"])
def test_values_far_apart_have_a_closed_form(name, count):
    """`C = vI`: `v = mean y²`, `F'' = N/2` in `log v`."""
    data, square = ps.observe(ps.identity, Y[:count], at=FAR[:count]), np.mean(Y[:count] ** 2)
    tiny = {"eta": 1e-13, "gamma": 1.0} if name == "gamma" else {"eta": 1.0, "gamma": 1e-13}
    best = ps.minimize(
        ps.Model(1.0 * ps.RBF(), data, **tiny), over={name: (1e-3, 1e3)}, search=ps.SearchOptions(tolerance=1e-14)
    )
    assert best.values == pytest.approx({name: square * (2.0 if name == "gamma" else 1.0)}, rel=1e-6)
    assert float(best) == best.pile.value == pytest.approx(1 + math.log(2 * math.pi * square), rel=1e-12)
    assert best.curvature.hessian == pytest.approx(np.array([[count / 2]]), rel=1e-5)
    assert best.standard_errors[name] == pytest.approx(best.values[name] * math.sqrt(2 / count), rel=1e-5)
    assert (best.converged, best.at_bounds, best.curvature.flat) == (True, {}, ())


def test_eight_temperatures_of_blocks_have_a_closed_form():
    """Noise alone: `γ = 2 mean y²` of each block, `ρ = 2 mean w r²`."""
    weights, (dx,) = np.linspace(0.5, 2.0, 16), ps.partials(ps.Box(x=(0, 1)))
    blocks = [ps.observe(ps.identity, Y[i : i + 2], at=FAR[i : i + 2], gamma=0.3) for i in range(0, 12, 2)]
    rest, physics = (
        ps.observe(ps.identity, Y[12:], at=FAR[12:]),
        ps.impose(dx, Y, on=ps.domains.nodes_at(FAR + 50.0, weights)),
    )
    over = dict.fromkeys([*(f"data.{i}.gamma" for i in range(6)), "gamma", "rho"], (1e-6, 1e6))
    model = ps.Model(ps.RBF(), [*blocks, rest], physics, rho=1.0, eta=1e-13)
    best = ps.minimize(model, over, score="joint", search=ps.SearchOptions(tolerance=1e-15))
    expected = [*np.mean(Y[:12].reshape(6, 2) ** 2, axis=1), np.mean(Y[12:] ** 2), np.mean(weights * Y**2)]
    assert list(best.values.values()) == pytest.approx(2 * np.array(expected), rel=1e-5)
    assert best.curvature.hessian == pytest.approx(np.diag([1.0] * 6 + [2.0, 8.0]), abs=1e-4)


@pytest.mark.slow
def test_grid_and_simplex_agree():
    def score(values):
        return ps.pile(sine().replace(dict(zip(OVER, values, strict=True)))).value

    best = ps.minimize(sine(), OVER, search=ps.SearchOptions(tolerance=1e-12))
    grid = [score(v) for v in itertools.product(*(np.geomspace(*bounds, 7) for bounds in OVER.values()))]
    assert best.pile.value < min(grid) < best.pile.value + 0.2
    options = {"method": "Nelder-Mead", "options": {"xatol": 1e-7, "fatol": 1e-13}}
    simplex = optimize.minimize(lambda u: score(np.exp(u)), np.log([0.3, 0.05, 1.0]), **options)
    assert [best.pile.value, *best.values.values()] == pytest.approx([simplex.fun, *np.exp(simplex.x)], rel=1e-4)
    assert ps.pile(best.model).value == pytest.approx(best.pile.value, rel=1e-13)
    assert {name: best.model.parameters[name] for name in OVER} == best.values
    gradient = ps.pile_and_gradient(best.model)[1]
    assert [gradient[name] * value for name, value in best.values.items()] == pytest.approx([0, 0, 0], abs=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("given_physics", [False, True])
def test_profiled_is_a_search_over_eta_too(given_physics):
    model = decay() if given_physics else sine()
    plain, best_scale = (
        ps.Score("physics" if given_physics else "exact", profiled=profiled) for profiled in (False, True)
    )
    search = ps.SearchOptions(tolerance=1e-13)
    wide = {"kernel.bandwidth": (0.1, 10.0), "gamma": (1e-4, 10.0), "data.1.gamma": (1e-4, 10.0), "rho": (1e-4, 1e2)}
    over = {name: bounds for name, bounds in wide.items() if name in model.parameters}
    free = ps.minimize(model, {**over, "eta": (1e-3, 1e3)}, score=plain, search=search)
    profiled = ps.minimize(model, over, score=best_scale, search=search)
    assert free.at_bounds == {}
    assert profiled.pile.value == pytest.approx(free.pile.value, abs=1e-9)
    assert float(profiled.model.eta) == profiled.pile.eta == pytest.approx(free.values["eta"], rel=1e-3)
    for name in over:
        assert profiled.values[name] == pytest.approx(free.values[name], rel=1e-3)
        assert profiled.standard_errors[name] == pytest.approx(free.standard_errors[name], rel=1e-2)
    assert ps.pile(profiled.model, score=plain).value == pytest.approx(profiled.pile.value, rel=1e-12)


def test_hessian_is_that_of_differences():
    over = {"rate": (-2.0, 8.0), "kernel.bandwidth": (0.1, 10.0), "data.1.gamma": (1e-6, 1.0), "gamma": (1e-6, 1.0)}
    best = ps.minimize(decay(), over, score="joint", search=ps.SearchOptions(tolerance=1e-13))
    slope = np.array([10.0, *list(best.values.values())[1:]])
    centre = np.array([(best.values["rate"] + 2) / 10, *np.log(slope[1:])])

    def energy(u):
        return ps.pile(best.model.replace(dict(zip(over, [10 * u[0] - 2, *np.exp(u[1:])], strict=True)))).free_energy

    deviation, expected = np.diag(best.curvature.hessian) ** -0.5, np.empty((4, 4))
    for i, j in itertools.combinations_with_replacement(range(4), 2):
        a, b = 0.03 * np.diag(deviation)[[i, j]]
        corners = [s * t * energy(centre + s * a + t * b) for s in (1, -1) for t in (1, -1)]
        expected[i, j] = expected[j, i] = sum(corners) / (4 * 0.03**2)
    assert best.curvature.hessian * np.outer(deviation, deviation) == pytest.approx(expected, abs=5e-3)
    errors = np.sqrt(np.diag(np.linalg.inv(best.curvature.hessian)))
    assert best.curvature.standard_errors == pytest.approx(dict(zip(over, errors, strict=True)), rel=1e-9)
    # The noise is searched too: the rate has fewer degrees of freedom than the curvature knows.
    assert list(best.standard_errors.values())[1:] == pytest.approx((errors * slope)[1:], rel=1e-9)
    assert best.standard_errors["rate"] > errors[0] * slope[0]
    assert np.sqrt(np.diag(best.covariance)) == pytest.approx(list(best.standard_errors.values()), rel=1e-12)
    correlations = [
        matrix / np.sqrt(np.outer(np.diag(matrix), np.diag(matrix)))
        for matrix in (best.covariance, np.linalg.inv(best.curvature.hessian))
    ]
    assert correlations[0] == pytest.approx(correlations[1], abs=1e-9)


def test_only_a_product_is_determined():
    model = ps.Model(2.0 * ps.RBF(0.3), sine().data, gamma=0.05)
    best = ps.minimize(model, {"kernel.variance": (1e-2, 1e2), "eta": (1e-2, 1e2), "gamma": (1e-4, 1)})
    one = ps.minimize(model, {"eta": (1e-4, 1e4), "gamma": (1e-4, 1)})
    (flat,) = best.curvature.flat
    assert np.array(list(flat.values())) / flat["eta"] == pytest.approx([-1.0, 1.0, 0.0], abs=1e-3)
    assert one.curvature.flat == ()
    assert best.standard_errors["gamma"] == pytest.approx(one.standard_errors["gamma"], rel=1e-3)
    assert best.curvature.standard_errors["eta"] > math.log(1e2)  # as wide as the box


def test_bounds_and_elements():
    over = OVER | {"gamma": (np.float32(0.25), np.int64(1))}
    best = ps.minimize(sine(), over, starts=[{"gamma": 1.0}, {"gamma": 0.25}, {"gamma": 0.5}])
    assert (best.at_bounds, best.curvature.names) == ({"gamma": "lower"}, ("kernel.bandwidth", "eta"))
    assert best.values["gamma"] == float(best.model.gamma) == 0.25
    assert [run.path["gamma"][0] for run in best.descents] == pytest.approx([1.0, 0.25, 0.5], rel=1e-15)
    assert [run.pile for run in best.descents] == pytest.approx([best.pile.value] * 3, abs=1e-7)
    upper = ps.minimize(sine(), {"gamma": (0.001, 0.002)}, starts=[{"gamma": 0.001}])
    assert (upper.at_bounds, upper.curvature, upper.values) == ({"gamma": "upper"}, None, {"gamma": 0.002})
    assert repr(upper).endswith("\n  gamma = 0.002  at its upper bound)")
    huge = ps.minimize(
        sine(1e-6), dict.fromkeys(("gamma", "eta"), (1e-12, 1e12)), search=ps.SearchOptions(tolerance=1e-12)
    )
    usual = ps.minimize(
        sine(), {name: OVER[name] for name in ("gamma", "eta")}, search=ps.SearchOptions(tolerance=1e-12)
    )
    assert huge.values == pytest.approx(usual.values, rel=1e-4)
    assert huge.descents[0].path["gamma"][1] == pytest.approx(1e-6 * math.exp(0.5), rel=1e-6)  # the first step
    points = RNG.uniform(-1, 1, (20, 2))
    model = ps.Model(ps.RBF([0.5, 0.5]), ps.observe(ps.identity, np.sin(3 * points[:, 0]), at=points), gamma=0.01)
    parts = {"kernel.bandwidth[1]": (0.2, 50.0), "gamma": (1e-3, 1.0), "kernel.bandwidth[0]": (0.1, 50.0)}
    overs = ({"kernel.bandwidth": ([0.1, 0.2], 50.0), "gamma": (1e-3, 1.0)}, parts)
    whole, elements = (ps.minimize(model, over, search=ps.SearchOptions(tolerance=1e-12)) for over in overs)
    assert list(whole.values) == ["kernel.bandwidth[0]", "kernel.bandwidth[1]", "gamma"]
    assert whole.at_bounds == elements.at_bounds == {"kernel.bandwidth[1]": "upper", "gamma": "lower"}
    assert elements.values == pytest.approx(whole.values, rel=1e-4)
    alone = ps.minimize(model, {"kernel.bandwidth[1]": (0.2, 50.0)}, starts=[{"kernel.bandwidth[1]": 2.0}])
    assert alone.model.parameters["kernel.bandwidth"].tolist() == [0.5, alone.values["kernel.bandwidth[1]"]]


def test_ties_are_a_substitution():
    def substituted(u):
        rate, gamma = 0.1 + 2.9 * u[0], math.exp(u[1])
        values = {"rate": rate, "gamma": gamma, "kernel.bandwidth": 2 / (1 + rate**2), "rho": 3 * gamma}
        return ps.pile(decay().replace(values)).value

    over = {"rate": (0.1, 3.0), "gamma": (1e-5, 1.0)}
    ties = {"kernel.bandwidth": lambda p: 2 / (1 + p["rate"] ** 2), "rho": lambda p: 3 * p["gamma"]}
    best = ps.minimize(decay(), over, score="joint", ties=ties, search=ps.SearchOptions(tolerance=1e-13))
    at = [(best.values["rate"] - 0.1) / 2.9, math.log(best.values["gamma"])]
    assert best.pile.value == pytest.approx(substituted(at), rel=1e-12)
    for u in (np.array(at), np.array([0.4, -3.0])):
        differences = [(substituted(u + d) - substituted(u - d)) / 2e-5 for d in 1e-5 * np.eye(2)]
        slope = prepare(decay(), over, "joint", 1, ties, ps.SearchOptions())[0].evaluate(u)[1]
        assert slope == pytest.approx(differences, rel=1e-6, abs=1e-8)
        assert (np.abs(slope).max() < 1e-6) == (u[0] == at[0])


def test_what_cannot_be_scored_is_rejected_and_reported():
    model = ps.Model(ps.RBF(0.4), ps.observe(ps.identity, np.sin(6 * T), at=T), gamma=1e-4)
    with pytest.warns(ps.errors.PrecisionWarning, match="at the minimum"):
        best = ps.minimize(model, {"gamma": (1e-18, 1.0), "kernel.bandwidth": (0.1, 5.0)})
    assert best.descents[0].rejected > 0  # smooth values want less noise than can be factored
    assert np.isfinite([*best.descents[0].path["pile"], best.pile.value]).all()
    assert best.pile.value < ps.pile(model).value - 5
    edge = ps.Model(ps.RBF(), ps.observe(ps.identity, 0.2 * Y, at=FAR), eta=20.0)
    best = ps.minimize(edge, {"eta": (1e-3, 1e3)}, ties={"gamma": lambda p: p["eta"] - 0.5})  # while it wants η < 1/2
    assert best.status == "stalled"
    assert 0.5 < best.values["eta"] < 0.51
    assert f"{best.descents[0].rejected} trial points" in best.reason
    model = ps.Model(ps.RBF(2.0), sine().data, gamma=0.1)
    best = ps.minimize(model, {"gamma": (1e-18, 1.0)}, starts=[{"gamma": 1e-18}, {"gamma": 0.1}])
    failed, good = best.descents
    assert (failed.status, failed.evaluations, good.status) == ("failed", 1, "converged")
    assert "gamma = 1e-18: the covariance of 25 observations is not positive definite" in failed.reason
    assert (failed.start, failed.end, good.pile) == ({"gamma": 1e-18}, {"gamma": 1e-18}, best.pile.value)
    assert f"2 starts ended at {good.pile:.4g}, nan" in repr(best)
    with refused("any start", "gamma = 1e-18", "not positive definite", error=ps.errors.NotPositiveDefiniteError):
        ps.minimize(model, {"gamma": (1e-18, 1e-17)}, starts=[{"gamma": 1e-18}, {"gamma": 1e-17}])


def test_budgets_tolerances_paths_and_progress(capfd):
    for budget in (1, 7):
        best = ps.minimize(sine(), OVER, starts=2, search=ps.SearchOptions(max_evaluations=budget, curvature=False))
        assert [run.evaluations for run in best.descents] == [budget, budget]
        assert (best.evaluations, best.status, best.curvature) == (2 * budget, "out of evaluations", None)
    best, again, other = (ps.minimize(sine(), OVER, starts=3, search=ps.SearchOptions(seed=seed)) for seed in (3, 3, 4))
    for run in best.descents:
        assert (np.diff(run.path["pile"]) <= 0).all()
        assert {name: run.path[name][0] for name in OVER} == run.start
        assert {name: run.path[name][-1] for name in OVER} == pytest.approx(run.end, rel=1e-6)
        assert all(low <= run.start[name] <= high for name, (low, high) in OVER.items())
    assert best.descents[0].start == pytest.approx({name: sine().parameters[name] for name in OVER}, rel=1e-15)
    assert best.pile.value == min(run.pile for run in best.descents)
    assert [run.end for run in again.descents] == [run.end for run in best.descents]
    assert [a.start == b.start for a, b in zip(best.descents, other.descents, strict=True)] == [True, False, False]
    below = ps.minimize(
        sine(), OVER, search=ps.SearchOptions(tolerance=1e-300, max_evaluations=500)
    )  # below all rounding
    coarse = ps.minimize(sine(), OVER, search=ps.SearchOptions(tolerance=1e3), run=ps.RunOptions(progress=True))
    assert [below.pile.value, coarse.descents[0].evaluations] == pytest.approx([best.pile.value, 2], abs=1e-9)
    assert f"minimize: {coarse.evaluations}it" in capfd.readouterr().err
    assert f"gamma = {best.values['gamma']:.6g} ± {best.standard_errors['gamma']:.2g}\n" in repr(best)
    for frozen, name in ((best, "model"), (best.descents[0], "pile"), (best.curvature, "hessian")):
        with pytest.raises(AttributeError, match="cannot assign"):
            setattr(frozen, name, None)


def test_side_by_side_is_the_same(monkeypatch):
    t = np.linspace(0, 30, 520)
    model = ps.Model(ps.RBF(0.5), ps.observe(ps.identity, np.sin(t) + 0.1 * RNG.standard_normal(520), at=t), gamma=0.1)
    search = ps.SearchOptions(max_evaluations=9, curvature=False)
    options = {"over": OVER | {"gamma": (0.01, 10.0)}, "starts": 4, "search": search}
    monkeypatch.setattr(descent, "cores", lambda: 3)
    together = ps.minimize(model, **options)
    monkeypatch.setattr(descent, "PARALLEL_SIZES", range(0))
    with ONE_BLAS_THREAD:
        alone = ps.minimize(model, **options)
    for a, b in zip(together.descents, alone.descents, strict=True):
        assert (a.status, a.evaluations, a.start, a.end, a.pile) == (b.status, b.evaluations, b.start, b.end, b.pile)


TWICE = """
import numpy as np, pilescore as ps
t = np.linspace(0, 1, 30)
model = ps.Model(ps.RBF(0.5), ps.observe(ps.identity, np.sin(6 * t), at=t), gamma=0.1)
over = {"kernel.bandwidth": (0.05, 5.0), "gamma": (1e-3, 1.0), "eta": (0.01, 100.0)}
print(len({str([run.path for run in ps.minimize(model, over, starts=3).descents]) for _ in range(3)}))
"""


@pytest.mark.slow
def test_it_repeats_itself_bit_by_bit():
    """Whichever Python thread was the first to limit those of BLAS."""
    options = {"env": os.environ | {"OPENBLAS_NUM_THREADS": "2"}, "capture_output": True, "text": True, "timeout": 600}
    code = f"import numpy\nnumpy.set_printoptions(precision=17, threshold=100000)\n{TWICE}"
    done = subprocess.run([sys.executable, "-c", code], **options)
    assert done.stdout == "1\n", done.stderr


INTERRUPTED = """
import os, signal, threading, numpy as np, pilescore as ps
from pilescore.search import descent, objective
calls, systems_of, seen = [], objective.systems_of, threading.Event()
def handler(*_):
    seen.set()
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, handler)
def stopping(*args, **options):
    calls.append(0)
    if len(calls) == 8:
        os.kill(os.getpid(), signal.SIGINT)
    if len(calls) >= 8:
        seen.wait()  # evaluations run in other threads: the main one has to wake up first
    return systems_of(*args, **options)
objective.systems_of, descent.PARALLEL_SIZES, t = stopping, range(100), np.linspace(0, 1, 30)
model = ps.Model(ps.RBF(0.5), ps.observe(ps.identity, np.sin(6 * t), at=t), gamma=0.1)
best = ps.minimize(model, {"kernel.bandwidth": (0.05, 5.0), "gamma": (1e-3, 1.0)}, starts=6)
same = ps.pile(best.model).value == best.pile.value
print(best.status, best.converged, best.curvature, {run.status for run in best.descents}, same, len(calls) < 15)
"""


@pytest.mark.slow
def test_ctrl_c_returns_the_best_so_far(monkeypatch):
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=600)
    assert done.stdout == "interrupted False None {'interrupted'} True True\n", done.stderr

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(steps, "find_curvature", interrupt)
    best = ps.minimize(sine(), OVER)
    assert (best.status, best.curvature, best.descents[0].status) == ("interrupted", None, "converged")
    monkeypatch.setattr(objective, "systems_of", interrupt)  # before anything is known
    with pytest.raises(KeyboardInterrupt):
        ps.minimize(sine(), OVER)


@pytest.mark.usefixtures("as_a_user")
def test_bad_input_is_refused_before_anything_is_scored(monkeypatch):
    monkeypatch.setattr(objective, "systems_of", None)
    model, gamma = ps.Model(ps.RBF([0.5, 0.5]), ps.observe(ps.identity, Y, at=RNG.uniform(size=(16, 2)))), (1e-4, 1.0)
    bounds = {"low below high; got (": [(1.0, 0.1), (0.1, 0.1)], "finite": [0.1, (1, 2, 3), (math.nan, 1.0)]}
    bounds |= {"positive bounds": [(0.0, 1.0)], "shape ()": [([0.1, 0.2], 1.0)], "a float": [("a", "b")]}
    options = {"starts": [1.5, 0, [], [{"gamma": 2.0}], [{"eta": 2.0}], ["gamma"]], "ties": [[1]]}
    options |= {"score": ["given_physics", "profild", 3], "search": [{"seed": 1}, None], "run": ["run.nc"]}
    ties = {"KeyError: 'rho'": lambda p: p["rho"], "(gamma); calling it": lambda p: np.sin(p["gamma"]), "a JAX": 1.0}
    ties |= {"shape ()": lambda p: jnp.ones(2), "Zero": lambda p: 1 / 0}
    cases = [(f"over['gamma']: expected | {text}", {"gamma": b}, {}) for text, bad in bounds.items() for b in bad]
    cases += [(f"{name}: ", {"gamma": gamma}, {name: b}) for name, bad in options.items() for b in bad]
    cases += [(f"ties['eta']: | {text}", {"gamma": gamma}, {"ties": {"eta": tie}}) for text, tie in ties.items()]
    cases += [("over: | at least one", {}, {}), ("over: | profiled", {"eta": (0.1, 10.0)}, {"score": "profiled"})]
    cases += [("Did you mean 'gamma'? | has: kernel.bandwidth, gamma, eta", {"gama": (1, 2)}, {})]
    cases += [("Did you mean 'eta'?", {"gamma": gamma}, {"ties": {"etta": lambda p: 1.0}})]
    cases += [("gamma = 0.1 is outside its bounds (0.2, 1) | starts=[{...}]", {"gamma": (0.2, 1.0)}, {})]
    for text, over, given in cases:
        with refused(*text.split(" | ")):
            ps.minimize(sine(), over, **given)
    for option, bad in {"tolerance": 0.0, "seed": -1, "max_evaluations": 0, "curvature": "yes"}.items():
        with refused(f"{option}: "):
            ps.SearchOptions(**{option: bad})
    with refused("progress: "):
        ps.RunOptions(progress="yes")
    for text, other in (
        ("once", {"kernel.bandwidth": gamma}),
        ("once", {"kernel.bandwidth[ 0]": gamma}),
        ("neither", {}),
    ):
        with refused("kernel.bandwidth", text):
            tie = {} if other else {"kernel.bandwidth": lambda p: jnp.ones(2)}
            ps.minimize(model, {"kernel.bandwidth[0]": gamma, **other}, ties=tie)
