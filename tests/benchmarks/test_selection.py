"""The selection benchmark: its rules against brute force, planted failures, and a whole run on a tiny case."""

import dataclasses
import functools
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from benchmarks.selection import benchmark, page, planted, rules
from benchmarks.selection.__main__ import main
from benchmarks.selection.cases import Case
from scipy.stats import spearmanr

import pilescore as ps

pytestmark = [pytest.mark.study, pytest.mark.slow]

LINE = ps.Box(x=(0, 1))
(DX,) = ps.partials(LINE)


def solution(p):
    return jnp.sin(4 * p[0])


def line_model(seed):
    rng = np.random.default_rng(seed)
    x, z = rng.uniform(0, 1, 9), rng.uniform(0, 1, 4)
    return ps.Model(
        kernel=ps.RBF(0.5),
        data=[
            ps.observe(ps.identity, np.sin(4 * x) + 0.1 * rng.standard_normal(9), at=x),
            ps.observe(DX, 4 * np.cos(4 * z) + 0.1 * rng.standard_normal(4), at=z),
        ],
        physics=ps.impose(DX**2 + 16 * ps.identity, 0.0, on=LINE.interior(ps.GaussLegendre(6))),
        gamma=0.02,
        rho=0.1,
    )


TINY = Case(
    name="heat",
    title="A line",
    truth=solution,
    on=LINE.interior(ps.GaussLegendre(20)),
    model=line_model,
    over={"kernel.bandwidth": (0.1, 2.0), "gamma": (1e-4, 1.0), "rho": (1e-3, 1e3)},
    grid={"kernel.bandwidth": np.array([0.2, 0.5]), "gamma": np.array([1e-3, 0.02]), "rho": np.array([0.1, 10.0])},
    noise=0.1,
    well_specified=True,
)


def found(model, values):
    """A minimum that was not searched for."""
    score = ps.Score("physics")
    return ps.Minimum(model, ps.pile(model), values, {}, {}, None, (), "converged", "", 3, score)


def without(block, left):
    keep = np.setdiff1d(np.arange(block.size), left)
    return ps.observe(block.operator, block.values[keep], at=block.points[keep])


def test_cross_validation_is_that_of_refitted_models():
    model = line_model(0)
    random = rules.folds(model, seed=3)
    assert sorted(np.concatenate(random)) == list(range(13))
    assert sorted(map(len, random)) == [2, 2, 3, 3, 3]
    parts = [np.array([3, 9, 1, 12]), np.array([0, 2, 10, 11])]
    scores = rules.cross_validation(model, TINY.grid, parts)
    assert scores.dims == tuple(TINY.grid)
    for place in ((0, 0, 0), (1, 0, 1)):
        there = model.replace({name: axis[i] for (name, axis), i in zip(TINY.grid.items(), place, strict=True)})
        squares = []
        for part in parts:
            left = part[part < 9], part[part >= 9] - 9
            kept = tuple(without(block, each) for block, each in zip(there.data, left, strict=True))
            post = ps.posterior(dataclasses.replace(there, data=kept))
            for block, each in zip(there.data, left, strict=True):
                squares.extend((block.values[each] - post.mean(block.points[each], block.operator)) ** 2)
        assert float(scores[place]) == pytest.approx(np.mean(squares), rel=1e-8)


def test_criteria_are_the_scores_of_the_models():
    model = line_model(1)
    found = rules.criteria(model, TINY.grid, 0)
    at = {"kernel.bandwidth": 0.5, "gamma": 0.02, "rho": 10.0}
    there, here = model.replace(at), found.sel(at)
    assert float(here["pile"]) == pytest.approx(ps.pile(there).value)
    assert float(here["given"]) == pytest.approx(ps.pile(there, score="given_physics").value)
    assert float(here["profiled"]) == pytest.approx(ps.pile(there, score="profiled").value)
    assert float(here["data_only"]) == pytest.approx(ps.pile(dataclasses.replace(there, physics=())).value)
    losses = ps.losses(there)
    assert float(here["leave_one_out"]) == pytest.approx(losses.leave_one_out)
    assert float(here["training_loss"]) == pytest.approx(losses.data + losses.physics)
    assert "rho" not in found["data_only"].dims


def test_what_rules_choose_and_how_good_that_is():
    model = line_model(2)
    found = rules.compare_rules(TINY, model, 2)
    assert tuple(found.choices) == rules.RULES
    assert found.choices[rules.GIVEN].values == dict(found.best.values)
    assert found.error == found.choices[rules.GIVEN].error
    measured = rules.compare_rules(dataclasses.replace(TINY, source_noise=0.1), model, 2)
    assert measured.choices[rules.PILE].values == dict(measured.best.values)
    assert measured.error == measured.choices[rules.PILE].error
    assert found.failed == 0
    errors = {}
    for _, point in rules.points(TINY.grid):
        errors[tuple(point.values())] = ps.accuracy(model.replace(point), solution, TINY.on).data.relative_l2
    least = min(errors.values())
    assert found.oracle == pytest.approx(min(least, *(choice.error for choice in found.choices.values())))
    scores = rules.criteria(model, TINY.grid, 2)
    for rule, column in rules.CRITERIA.items():
        choice, score = found.choices[rule], scores[column]
        if rule == rules.DATA_ONLY:
            assert choice.values["rho"] == pytest.approx(1.0)  # the geometric middle: it is blind to ρ
            assert float(score.sel({name: choice.values[name] for name in score.dims})) == float(score.min())
            continue
        assert float(score.sel(choice.values)) == float(score.min())
        assert choice.error == pytest.approx(errors[tuple(choice.values.values())])
        rank = spearmanr(score.values.ravel(), list(errors.values())).statistic
        assert found.correlations[rule] == pytest.approx(rank)


def test_points_that_cannot_be_factored_are_counted_and_never_chosen(monkeypatch):
    real = ps.posterior

    def posterior(model):
        if float(model.gamma) == 1e-3 and model.data:
            raise ps.errors.NotPositiveDefiniteError("not factored")
        return real(model)

    monkeypatch.setattr(ps, "posterior", posterior)
    grid = TINY.grid | {"gamma": np.array([1e-3, 1.0])}
    case = dataclasses.replace(TINY, grid=grid)
    score = xr.DataArray([np.nan, 3.0, 2.0], {"gamma": [1.0, 2.0, 3.0]}, ["gamma"])
    assert rules._least(score, {"gamma": np.array([1.0, 2.0, 3.0])}) == {"gamma": 3.0}
    errors = rules._errors(case, line_model(0), np.ones(20))
    assert int(errors.isnull().sum()) == 4


def test_what_is_planted():
    strip = ps.Box(t=(0, 1), x=(0, 1))
    dt, dx = ps.partials(strip)
    on, points = strip.interior(ps.GaussLegendre(2)), np.random.default_rng(0).uniform(0, 1, (5, 2))
    model = ps.Model(
        kernel=ps.AnisotropicRBF(theta=math.atan(2.0), s=0.5),
        data=ps.observe(ps.identity, np.arange(5.0), at=points),
        physics=[
            ps.dirichlet(0.0, on=strip.face(t=0)(ps.GaussLegendre(2))),
            ps.impose(dt + 2 * dx, 1.0, on=on, rho=0.3),
        ],
    )
    wrong = planted.wrong_coefficient(model, 1)
    assert wrong.physics[0] is model.physics[0]
    assert wrong.physics[1].operator.same(dt + 3 * dx)
    assert (wrong.physics[1].values == 1).all()
    assert math.tan(wrong.parameters["kernel.theta"]) == pytest.approx(3.0)
    assert wrong.parameters["physics.1.rho"] == pytest.approx(0.3)
    moved = planted.with_outlier(model, 7.0, 4)
    change = moved.data[0].values - model.data[0].values
    assert sorted(np.abs(change)) == [0, 0, 0, 0, 7]
    other = planted.with_outlier(model, 7.0, 6).data[0].values
    assert (other != moved.data[0].values).any()


def chosen(model, values, error):
    """What PILE chose, without a search."""
    return rules.RuleComparison(found(model, values), {rules.GIVEN: rules.RuleChoice(values, error)}, {}, 0.1, 0)


def test_a_failure_is_planted_where_the_truth_says_so(monkeypatch):
    plants = {plant.name: plant for plant in planted.FAILURES}
    assert {plant.expected for plant in planted.FAILURES[1:]} <= {*planted.FINDINGS}
    model, monkeyed = line_model(0), functools.partial(ps.diagnose, checks=["collapsed", "outliers"])
    monkeypatch.setattr(ps, "diagnose", monkeyed)
    values = {"kernel.bandwidth": 0.5, "gamma": 0.02, "rho": 0.1}
    overfit, over = plants["overfit"].make(TINY, chosen(model, values, 0.01), 0)
    assert overfit.parameters["gamma"] == pytest.approx(2e-6)
    assert overfit.parameters["kernel.bandwidth"] == pytest.approx(0.1)
    assert over == TINY.over
    assert plants["overfit"].make(TINY, chosen(model, values, 10.0), 0) is None
    best = chosen(model, values, 0.01)
    case = TINY
    collapsed, _ = plants["collapsed"].make(case, best, 0)
    squares = np.concatenate([block.values for block in model.data]) ** 2
    assert collapsed.parameters["gamma"] == pytest.approx(2 * squares.mean())
    assert collapsed.parameters["eta"] == 1e-4
    assert collapsed.parameters["rho"] == 1e7
    small = dataclasses.replace(case, truth=lambda p: 1e-3 * solution(p))
    assert plants["collapsed"].make(small, best, 0) is None
    assert planted.diagnosed(plants["collapsed"], small, best, 0) == {}
    assert planted.diagnosed(plants["isotropic kernel"], case, best, 0) == {}
    seen = planted.diagnosed(plants["collapsed"], case, best, 0)
    assert seen["collapsed"] | {"value": 0.0} == {"status": "fired", "severity": "failure", "value": 0.0}
    assert seen["collapsed"]["value"] < 0.1
    assert seen["outliers"]["status"] == "fine"

    def fails(*_, **__):
        raise ps.errors.NotPositiveDefiniteError("not factored")

    monkeypatch.setattr(ps, "diagnose", fails)
    seen = planted.diagnosed(plants["collapsed"], case, best, 0)
    assert {each["status"] for each in seen.values()} == {"failed"}


def invented(case, model, seed):
    """Choices and errors without any computation."""
    choices = {
        rule: rules.RuleChoice({"gamma": 0.1 * k}, 0.1 + 0.01 * k * (seed + 1)) for k, rule in enumerate(rules.RULES)
    }
    return rules.RuleComparison(found(line_model(0), {}), choices, dict.fromkeys(rules.CRITERIA, 0.5), 0.1, 0)


def stub(plant, case, best, seed):
    """A diagnosis that sees every failure but outliers, and makes a note everywhere."""
    if not plant.fits(case):
        return {}
    fired = {"at_bound": "note"} | ({plant.expected: "failure"} if plant.name not in ("none", "outlier") else {})
    return {
        name: {"status": "fired" if name in fired else "fine", "severity": fired.get(name, "warning"), "value": 0.5}
        for name in planted.FINDINGS
    }


def test_a_run_that_is_stopped_goes_on_to_the_same_results(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "case", lambda name: dataclasses.replace(TINY, name=name))
    monkeypatch.setattr(benchmark, "diagnosed", stub)
    done = []

    def stopped(case, model, seed):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append((case.name, seed))
        return invented(case, model, seed)

    monkeypatch.setattr(benchmark, "compare_rules", stopped)
    out = tmp_path / "out"
    command = ["--seeds", "2", "--case", "heat", "--case", "helmholtz", "--out", str(out)]
    assert main(command) == 130
    assert f"python -m benchmarks.selection {' '.join(command)} --resume" in capsys.readouterr().err
    monkeypatch.setattr(
        benchmark, "compare_rules", lambda *given: done.append((given[0].name, given[2])) or invented(*given)
    )
    assert main([*command, "--resume"]) == 0
    assert done == [("heat", 0), ("heat", 1), ("helmholtz", 0), ("helmholtz", 1)]
    said = capsys.readouterr()
    assert "[4/4] A line, seed 1" in said.err
    assert "[1/4]" not in said.err
    assert "Benchmark: how well PILE chooses" in said.out
    assert "NO   outlier: share of runs in which outliers fired: 0" in said.out

    with xr.open_dataset(out / "results.nc", engine="scipy") as opened:
        results = opened.load()
    assert dict(results["regret"].sizes) == {"case": 2, "seed": 2, "rule": 9}
    assert dict(results["status"].sizes) == {"case": 2, "seed": 2, "plant": 6, "finding": 23}
    assert float(results["regret"].sel(case="heat", seed=1, rule=rules.RULES[3])) == pytest.approx(1.6)
    assert json.loads(str(results["chosen"].sel(case="helmholtz", seed=1, rule=rules.PILE).values)) == {"gamma": 0.0}
    assert set(results["status"].sel(case="helmholtz", plant="wrong coefficient").values.ravel()) == {"absent"}
    summary = json.loads((out / "summary.json").read_text())
    plants = summary["plants"]
    assert {name: (of["runs"], of["detected"]) for name, of in plants.items()} == {
        "none": (4, 0.0), "collapsed": (4, 1.0), "overfit": (4, 1.0), "wrong coefficient": (2, 1.0),
        "isotropic kernel": (0, None), "outlier": (4, 0.0),
    }  # fmt: skip
    assert plants["none"]["fired"]["at_bound"] == 1
    assert summary["settings"]["cases"] == ["heat", "helmholtz"]
    assert summary["alarms"] == []

    file = tmp_path / "page.md"
    assert page.main(["--check"], out, file) == 1
    assert page.main([], out, file) == 0
    assert page.main(["--check"], out, file) == 0
    text = file.read_text()
    assert "| **PILE given physics (gradient)** |" in text
    assert "## Where other rules are better" in text


def test_the_page_is_what_the_results_say():
    assert page.main(["--check"]) == 0


def results_of(regrets, fired, severity="warning"):
    """A dataset of two cases and two seeds: regrets by case and rule, and one finding of each plant."""
    cases, plants = list(regrets), list(fired)
    status = np.full((2, 2, len(plants), 23), "fine", dtype="<U6")
    for i, plant in enumerate(plants):
        for j, each in enumerate(fired[plant]):
            status[j // 2, j % 2, i, :] = "absent" if each is None else "fine"
            if each:
                status[j // 2, j % 2, i, planted.FINDINGS.index(each)] = "fired"
    table = np.array([[[regrets[case][rule]] * 2 for rule in rules.RULES] for case in cases]).transpose(0, 2, 1)
    return xr.Dataset(
        {
            "regret": (("case", "seed", "rule"), table),
            "oracle": (("case", "seed"), np.ones((2, 2))),
            "diagnosed": (("case", "seed"), np.ones((2, 2))),
            "correlation": (("case", "seed", "criterion"), np.full((2, 2, len(rules.CRITERIA)), 0.5)),
            "status": (("case", "seed", "plant", "finding"), status),
            "severity": (("case", "seed", "plant", "finding"), np.full(status.shape, severity)),
        },
        {"case": cases, "seed": [0, 1], "rule": list(rules.RULES), "criterion": list(rules.CRITERIA), "plant": plants,
         "finding": list(planted.FINDINGS)},
    )  # fmt: skip


def test_numbers_and_words_follow_the_results():
    regrets = {name: dict.fromkeys(rules.RULES, 2.0) | {rules.PILE: 1.0} for name in ("a", "b")}
    regrets["b"] |= {rules.PILE: 1.3, "leave-one-out": 1.1}
    nothing = [None] * 4
    fired = {
        "none": [False, "outliers", False, None],
        "collapsed": ["collapsed", "collapsed", "overfit", "collapsed"],
        "overfit": ["overfit"] * 4,
        "wrong coefficient": nothing,
        "isotropic kernel": nothing,
        "outlier": nothing,
    }
    results = results_of(regrets, fired)
    found = benchmark.summarise(results, {"a": "First", "b": "Second"})
    assert found["rules"][rules.PILE] == {
        "median": pytest.approx(1.15), "geometric_mean": pytest.approx(1.3**0.5), "worst": 1.3,
    }  # fmt: skip
    (lost,) = found["lost"][rules.PILE]
    assert lost == {"case": "b", "rule": "leave-one-out", "regret": 1.1, "own": 1.3, "ratio": pytest.approx(1.3 / 1.1)}
    assert [each["case"] for each in found["lost"][rules.GIVEN]] == ["a", "b"]
    assert found["plants"]["none"]["runs"] == 3
    assert found["plants"]["none"]["detected"] == pytest.approx(1 / 3)
    assert found["plants"]["collapsed"]["detected"] == 0.75
    assert found["plants"]["outlier"]["runs"] == 0
    assert found["missed"] == [{"plant": "collapsed", "case": "b", "runs": 2, "missed": 1}]
    assert found["alarms"] == [{"case": "a", "finding": "outliers", "seeds": 1}]
    # PILE: 1.15 against 1.55, given physics: 2 against it; collapsed, overfit; one alarm in three runs.
    assert [each["holds"] for each in found["checks"]] == [True, True, False, False, False, True, False]
    assert found["sound"] == {"well": {"runs": 3, "alarms": 1}, "badly": {"runs": 0, "alarms": 0}}
    bad = results.assign(diagnosed=2.5 * results["diagnosed"])
    assert benchmark.summarise(bad, {"a": "First", "b": "Second"})["sound"]["badly"] == {"runs": 3, "alarms": 1}
    quiet = benchmark.summarise(results_of(regrets, fired, "note"), {"a": "First", "b": "Second"})
    assert quiet["plants"]["none"]["detected"] == 0
    assert quiet["alarms"] == []

    kept = {"settings": {}, "versions": {}, "seeds": [0, 1]}
    report = benchmark.report(results, found | kept)
    lost = next(section for section in report.sections if section.heading == "Where other rules are better")
    assert "1 of 2 cases" in lost.paragraphs[0]
    assert lost.tables[0].rows == (("Second", "leave-one-out", "1.1", "1.3", "1.18"),)
    regrets["b"] |= {rules.PILE: 1.0, rules.GIVEN: 1.0}
    regrets["a"][rules.GIVEN] = 1.0
    results = results_of(regrets, fired)
    report = benchmark.report(results, benchmark.summarise(results, {"a": "First", "b": "Second"}) | kept)
    lost = next(section for section in report.sections if section.heading == "Where other rules are better")
    assert lost.paragraphs[0].startswith("In no case")
    assert lost.tables == ()


def test_settings_and_names(capsys, tmp_path):
    assert benchmark.SelectionSettings().seeds == 5
    assert len(benchmark.SelectionSettings().cases) >= 15
    assert len(benchmark.SelectionSettings.quick().cases) == 3
    assert benchmark.case_names(["heat", "wave", "heat"]) == ("heat", "wave")
    assert main(["--case", "heet", "--out", str(tmp_path / "out")]) == 2
    assert "no case 'heet'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
