"""Tables of candidates, and searches over kernels and equations: ranks, differences, warnings, failures."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import pilescore as ps
from pilescore.search import candidates, objective
from pilescore.search import choice as choosing

from ..models import refused

SQUARE = ps.Box(x=(-1, 1), y=(-1, 1))
LAPLACIAN = ps.laplacian(SQUARE)
X = np.random.default_rng(1).uniform(-1, 1, (16, 2))
OVER = {"gamma": (1e-4, 1.0), "eta": (1e-2, 1e3)}


def bump(p, factor=1.0):
    return factor * jnp.sin(jnp.pi * p[..., 0]) * jnp.sin(jnp.pi * p[..., 1])


def equation(operator=LAPLACIAN, nodes=4):
    return ps.impose(operator, lambda p: bump(p, -2 * jnp.pi**2), on=SQUARE.interior(ps.GaussLegendre(nodes)))


def poisson(kernel, physics=None, shift=0.0):
    y = np.asarray(bump(X)) + 0.05 * np.random.default_rng(2).standard_normal(16) + shift
    return ps.Model(kernel, ps.observe(ps.identity, y, at=X), physics or equation(), gamma=0.005, rho=0.01)


GOOD = poisson(ps.RBF(0.6))
BAD = GOOD.replace({"kernel.bandwidth": 50.0, "gamma": 1e-18, "rho": 1e-18})


def test_compare_ranks_by_evidence():
    models = {f"{b}": poisson(ps.RBF(b)) for b in (0.2, 0.8, 0.4)}
    scores = {name: ps.pile(model) for name, model in models.items()} | {"pile": ps.pile(models["0.4"])}
    best = ps.minimize(GOOD, {"kernel.bandwidth": (0.1, 2.0)})
    table = ps.compare({**models, "pile": scores["pile"], "best": best})
    logs = {name: score.log_evidence for name, score in scores.items()} | {"best": ps.hyperposterior(best).log_evidence}
    nats = {name: logs["best"] - each for name, each in logs.items()}
    assert list(table.index) == sorted(nats, key=nats.get) == ["best", "0.4", "pile", "0.2", "0.8"]
    assert table["rank"].tolist() == [1, 2, 3, 4, 5]
    assert table["nats"].to_dict() == pytest.approx(nats, abs=1e-9)
    assert table["log_evidence"].to_dict() == pytest.approx(logs, abs=1e-9)
    total = sum(np.exp(-each) for each in nats.values())
    assert table["probability"].to_dict() == pytest.approx({name: np.exp(-each) / total for name, each in nats.items()})
    behind = {name: (score.free_energy - best.pile.free_energy) / 16 for name, score in scores.items()} | {"best": 0.0}
    assert table["difference"].to_dict() == pytest.approx(behind, abs=1e-9)
    for column, part in (("pile", "value"), ("fit", "fit"), ("complexity", "complexity"), ("size", "size")):
        assert table[column]["0.2"] == pytest.approx(getattr(scores["0.2"], part), rel=1e-12)
    profiled = ps.minimize(GOOD, {"gamma": (1e-4, 1.0)}, score="profiled", search=ps.SearchOptions(curvature=False))
    near = ps.compare({"best": best, "near": best.model, "profiled": profiled})["fitted"]
    assert near.to_dict() == {"near": 0, "best": 1, "profiled": 2}
    assert near.index.tolist().index("near") < near.index.tolist().index("best")  # as good, and nothing was fitted


def test_hyperposteriors_are_candidates():
    best = ps.minimize(GOOD, {"kernel.bandwidth": (0.1, 2.0)})
    hyper = ps.hyperposterior(best)
    table = ps.compare({"minimum": best, "hyperposterior": hyper})
    columns = [column for column in table if column not in ("rank", "warnings")]
    np.testing.assert_array_equal(table.loc["minimum", columns], table.loc["hyperposterior", columns])
    assert table["probability"].tolist() == [0.5, 0.5]
    held_out = ps.observe(ps.identity, bump(X[:5] + 0.03), at=X[:5] + 0.03)
    forecast = ps.compare({"minimum": best, "hyperposterior": hyper}, held_out=held_out)["log_density"]
    mixture = ps.posterior(hyper)
    error, variance = held_out.values - mixture.mean(held_out.points), mixture.variance(held_out.points) + 0.005 / 2
    expected = float(np.mean(-0.5 * (np.log(2 * np.pi * variance) + error**2 / variance)))
    assert forecast["hyperposterior"] == pytest.approx(expected, rel=1e-12)
    assert forecast["minimum"] != forecast["hyperposterior"]


def test_incomparable_candidates_have_no_probability():
    table = ps.compare({"good": GOOD, "shifted": poisson(GOOD.kernel, shift=0.1), "short": poisson(ps.RBF(0.3))})
    assert np.isnan(table["probability"]["shifted"])
    assert table["probability"].sum() == pytest.approx(1.0)


def test_compare_warns_beside_each_number():
    halves = [ps.observe(ps.identity, GOOD.data[0].values[part], at=X[part]) for part in (slice(9), slice(9, 16))]
    other = [poisson(GOOD.kernel, equation(nodes=5)), poisson(GOOD.kernel, equation(0.5 * LAPLACIAN))]
    expected = {
        "failed: the covariance of 32 observations is not positive definite": BAD,
        "rounding leaves it uncertain by": GOOD.replace({"kernel.bandwidth": 2.0, "gamma": 1e-9, "rho": 1e-9}),
        "other observations than 'good'": poisson(GOOD.kernel, shift=0.1),
        "another number of observations than 'good'": other[0],
        "other operators than 'good': compare with score='given_physics'": other[1],
        "out of evaluations: 1": ps.minimize(GOOD, OVER, search=ps.SearchOptions(max_evaluations=1, curvature=False)),
        "gamma is at its lower bound": ps.minimize(GOOD, {"gamma": (0.0045, 1.0)}),
        "flat direction(s)": ps.minimize(poisson(2.0 * ps.RBF(0.6)), {"kernel.variance": (0.1, 9), "eta": (0.1, 9)}),
        "residuals are larger than the noise of the model": GOOD.replace({"eta": 1e-3}),
        "": ps.Model(GOOD.kernel, halves, GOOD.physics, gamma=0.005, rho=0.01),
    }
    table = ps.compare({"good": GOOD, **expected}, score="joint")
    assert all(text in table["warnings"][text] for text in expected)
    assert table["warnings"][["good", ""]].tolist() == ["", ""]
    assert table.index[-1] == next(iter(expected))
    assert table["rank"].isna().tolist() == table["pile"].isna().tolist() == [False] * 10 + [True]
    assert [str(table[column].dtype) for column in ("rank", "size", "nats")] == ["Int64", "Int64", "float64"]
    given = ps.compare({"good": GOOD, "nodes": other[0], "operator": other[1]}, score="given_physics")
    assert given["size"].tolist() == [16] * 3
    assert not given["warnings"].str.contains("other").any()  # the data are the same
    assert ps.compare({"failed": BAD})["rank"].isna().all()
    first = ps.compare({"failed": BAD, "nodes": other[0]}, score="joint")
    assert "another number" not in first["warnings"]["nodes"]  # than that of a candidate without a score


def test_compare_data_free():
    strip = ps.Box(t=(0, 1), x=(0, 1))
    dt, dx = ps.partials(strip)
    block = ps.impose(dt + dx, 0.0, on=strip.interior(ps.GaussLegendre(10)))

    def score(kernel, **temperatures):
        return ps.data_free_pile(ps.Model(kernel, physics=block, **temperatures))

    angles = {"a": 0.0, "b": 0.7, "c": 2.0}
    scores = {name: score(ps.AnisotropicRBF(theta=theta, s=0.5)) for name, theta in angles.items()}
    table = ps.compare(scores)  # rotations of one kernel: ranked by value
    assert table.index[0] == "b"
    assert table["value"].is_monotonic_increasing
    assert list(table["nats"]) == pytest.approx([(value - scores["b"].value) / 2 for value in table["value"]])
    assert table["status"].tolist() == ["resolved"] * 3
    assert table["warnings"].tolist() == [""] * 3
    assert table["normalised"]["b"] == scores["b"].normalised


def test_compare_data_free_scores_of_other_families_and_sizes():
    line = ps.Box(x=(0, 1))
    (dx,) = ps.partials(line)
    block = ps.impose(dx**2 + 144 * ps.identity, 0.0, on=line.interior(ps.GaussLegendre(24)))

    def score(kernel, **temperatures):
        return ps.data_free_pile(ps.Model(kernel, physics=block, **temperatures))

    wave = ps.RBF(0.3) * ps.kernels.Cosine(12 / (2 * np.pi))
    scores = {"a": score(ps.RBF(0.2)), "long": score(ps.RBF(2.0)), "short": score(ps.RBF(0.02)), "wave": score(wave)}
    scores["d"] = score(ps.RBF(0.2), rho=2.0)
    table = ps.compare(scores)
    assert table["value"].idxmin() == "long"
    assert list(table.index[:3]) == ["wave", "a", "d"]
    assert table["rank"].tolist() == [1, 2, 3, 4, 5]
    assert table["warnings"]["a"] == ""
    size = "another family or size of kernel than 'a': values are not comparable"
    assert table["warnings"]["long"] == table["warnings"]["wave"] == size
    assert table["warnings"]["short"] == f"{scores['short'].determinant.reason}; {size}"
    assert table["warnings"]["d"] == "other temperatures than 'a': values are not comparable"
    explicit = ps.impose(dx, 0.0, on=ps.domains.nodes_at([0.2, 0.5, 0.8]))
    without = ps.data_free_pile(ps.Model(ps.RBF(1.0), physics=explicit))
    table = ps.compare({"a": scores["a"], "without": without})
    assert table.index[0] == "without"  # no normalised score: ranked by value
    assert "no normalised score: impose(" in table["warnings"]["without"]
    with refused("candidates", "data-free scores only"):
        ps.compare({"a": scores["a"], "b": GOOD})


@pytest.mark.slow
def test_search_kernels():
    kernels = [ps.RBF, ps.Matern(2.5), ps.Matern(3.5), ps.Matern(1.5), ps.kernels.RationalQuadratic, ps.AnisotropicRBF]
    kernels += [ps.kernels.FullCovarianceRBF, ps.kernels.Periodic().on(0) * ps.RBF().on(1), ps.RBF(0.3)]
    search = ps.SearchOptions(max_evaluations=80, curvature=False)
    found = ps.choose(GOOD, kernels=kernels, over=OVER, score="joint", search=search)
    value = {name: each.pile.value for name, each in found.minima.items()}
    names = {"RBF", "Matern(2.5)", "Matern(3.5)", "RationalQuadratic", "AnisotropicRBF", "FullCovarianceRBF"}
    assert value.keys() == {*names, "Periodic × RBF", "RBF (2)"}
    with warnings.catch_warnings():  # of rough intervals; the ranking has its own column of warnings
        warnings.simplefilter("ignore", ps.errors.UncertaintyWarning)
        integrated = {key: -ps.hyperposterior(each, progress=False).log_evidence for key, each in found.minima.items()}
    assert list(found.table.index) == [*sorted(integrated, key=integrated.get), "Matern(1.5)"]
    assert "derivatives of order 2" in found.table["warnings"]["Matern(1.5)"]
    assert float(found.best) == found.table["pile"].iloc[0] == value[found.best_name]
    assert value["RBF"] + 1e-6 > value["FullCovarianceRBF"] == pytest.approx(value["AnisotropicRBF"], abs=1e-4)
    assert value["RBF"] == pytest.approx(value["RBF (2)"], abs=1e-6)
    alone = ps.minimize(GOOD, {"kernel.bandwidth": (0.1, 9), **OVER}, score="joint")
    assert value["RBF"] == pytest.approx(float(alone), abs=1e-6)
    assert repr(found).startswith(f"Choice(best={found.best_name!r}\n")
    narrow = ps.choose(GOOD, kernels={"mine": ps.RBF}, over={"kernel.bandwidth": (0.1, 0.2)})
    assert narrow.minima["mine"].at_bounds == {"kernel.bandwidth": "upper"}
    one = ps.choose(GOOD, kernels=[ps.RBF([0.5, 0.5])], over={"kernel.bandwidth[1]": (0.1, 2.0)})
    assert list(one.best.values) == ["kernel.bandwidth[1]"]


@pytest.mark.slow
def test_kernels_are_chosen_by_one_score():
    """The default score of one kernel falls back to the data given the physics, so that of the other does too."""
    search, over = ps.SearchOptions(curvature=False), OVER | {"kernel.bandwidth": (0.04, 20.0)}
    models, energies = {"RBF": GOOD, "Matern": GOOD.replace(kernel=ps.Matern(2.5, 0.6))}, {}
    for name, model in models.items():
        joint, given = (ps.minimize(model, over, score=score, search=search) for score in ("joint", "given_physics"))
        lost = ps.pile(joint.model, "given_physics").free_energy - given.pile.free_energy
        assert (lost > 8.0) == (name == "RBF")
        own = ps.minimize(model, over, search=search)
        assert own.score == ps.Score("physics" if name == "RBF" else "constant")
        assert own.pile.free_energy == pytest.approx((given if lost > 8.0 else joint).pile.free_energy, abs=1e-3)
        assert (f"predict the data {lost:.3g} nats worse" in own.why) == (name == "RBF")
        energies[name] = given.pile.free_energy
    found = ps.choose(models, over, search=search)
    assert {minimum.score for minimum in found.minima.values()} == {ps.Score("physics")}
    assert {name: each.pile.free_energy for name, each in found.minima.items()} == pytest.approx(energies, abs=1e-3)
    assert found.table["size"].tolist() == [16, 16]


@pytest.mark.slow
def test_search_equations():
    (dx, dy), k, model = ps.partials(SQUARE), ps.parameter("k", 1.0), poisson(ps.Matern(2.5, 0.8))
    equations = {"wave": equation(dx**2 - k * dy**2), "Poisson": equation(dx**2 + k * dy**2, nodes=5)}
    rough = {"rough": equation(LAPLACIAN**2)}
    found = ps.choose(model, {"k": (0.1, 10.0)}, equations=equations | rough, search=ps.SearchOptions(curvature=False))
    assert list(found.table.index) == ["Poisson", "wave", "rough"]
    assert (found.table["rank"].tolist()[:2], found.table["size"].tolist()[:2]) == ([1, 2], [16, 16])
    assert "other" not in found.table["warnings"]["wave"]  # the data are the same
    assert float(found.best) == ps.pile(found.best.model, score="given_physics").value
    assert "derivatives of order 4" in found.failures["rough"]
    with refused("the kernel suits none", "rough", error=ps.errors.SmoothnessError):
        ps.choose(model, OVER, equations=rough)


def test_a_failed_candidate_and_ctrl_c_keep_the_others(monkeypatch):
    def interrupted(model, *args, real=choosing.minimize, **options):
        if model is BAD:
            raise KeyboardInterrupt
        return real(model, *args, **options)

    over = {"eta": (0.1, 10.0)}
    found = ps.choose({"bad": BAD, "good": GOOD}, over)
    assert list(found.table.index) == ["good", "bad"]
    assert "not positive definite" in found.failures["bad"]
    monkeypatch.setattr(choosing, "minimize", interrupted)
    found = ps.choose({"good": GOOD, "bad": BAD, "next": GOOD}, over)
    assert (found.best_name, found.failures) == ("good", {"bad": "interrupted", "next": "interrupted"})
    with pytest.raises(KeyboardInterrupt):
        ps.choose({"bad": BAD, "good": GOOD}, over)


@pytest.mark.usefixtures("as_a_user")
def test_bad_input_is_refused_before_anything_is_scored(monkeypatch):
    monkeypatch.setattr(objective, "systems_of", None)
    monkeypatch.setattr(candidates, "systems_of", None)
    pair, wide = {"a": GOOD, "b": ps.Model(ps.RBF(), GOOD.data)}, {"eta": (0.1, 9)}
    kernels = {"a list of kernels": ps.RBF, "at least one": [], "such as ps.RBF; got 'RBF'": ["RBF"]}
    kernels |= {
        "Polynomial has no default": [ps.kernels.Polynomial],
        "none fits the model. Matern(0.5)": [ps.Matern(0.5)],
    }
    cases = {text: lambda bad=bad: ps.choose(GOOD, kernels=bad) for text, bad in kernels.items()} | {
        "candidates['b']: ": lambda: ps.compare({"a": GOOD, "b": 3.0}),
        "score: expected 'joint' unless the model has both": lambda: ps.compare(pair, score="given_physics"),
        "of at least one hyperparameter of 'b'": lambda: ps.choose(pair, {"rho": (1e-3, 1.0)}),
        "candidate 'b': starts: gamma = 1 is outside": lambda: ps.choose(pair, {"gamma": (1e-3, 0.1)}),
        "Did you mean 'gamma'": lambda: ps.choose(pair, {"gama": (1, 2)}),
        "search: expected a ps.SearchOptions": lambda: ps.choose(pair, wide, search={"tolerance": 1e-3}),
        "run: expected a ps.RunOptions": lambda: ps.choose(pair, wide, run="run.nc"),
        "score: expected 'joint'": lambda: ps.choose(pair, wide, score="given_phyics"),
        "kernels, equations: expected one": lambda: ps.choose(
            GOOD, OVER, kernels=[ps.RBF], equations={"a": equation()}
        ),
        "candidate 'RBF': starts: gamma = 0.005": lambda: ps.choose(GOOD, {"gamma": (1, 2)}, kernels=[ps.RBF]),
        "made by ps.impose": lambda: ps.choose(GOOD, OVER, equations={"a": 3.0}),
    }
    for text, call in cases.items():
        with refused(text):
            call()
