"""The study of physics-informed networks: its networks, its rank correlations, a tiny run of it, and its report."""

import copy
import itertools
import json
import math
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy.stats import spearmanr

import pilescore as ps
from pilescore import cli
from pilescore.diagnosis import digits
from pilescore.reports.plotly_figures import plotly_panel
from pilescore.studies import pinn, pinn_report, runner
from pilescore.studies import pinn_networks as networks

from ..models import numbers

pytestmark = [pytest.mark.study, pytest.mark.slow]

SMALL = networks.Architecture(4, depth=1)
STEEP = networks.Architecture(4, depth=1, first=3.0)  # compiled with the other
FOURIER = networks.Architecture(3, depth=1, activation="sin", features=1.0, first=2.0)
TINY = pinn.PinnSettings(
    seeds=1, betas=(2.0,), widths=(4,), weights=(1.0, 10.0), inside=40, side=6, steps=150, architecture_beta=2.0,
    architecture_seeds=4, resamples=200,
)  # fmt: skip


def by_hand(architecture, row, points):
    """The network in NumPy."""
    row, at = np.asarray(row, dtype=float), 0
    layer = np.stack([2 * points[:, 0] - 1, points[:, 1] / np.pi - 1], axis=1)
    if architecture.features:
        phase = layer @ architecture.frequencies
        layer = np.concatenate([np.sin(phase), np.cos(phase)], axis=1)
    act = {"tanh": np.tanh, "sin": np.sin}[architecture.activation]
    for number, (m, n) in enumerate(itertools.pairwise(architecture.sizes)):
        weights, bias = row[at : at + m * n].reshape(m, n), row[at + m * n : at + m * n + n]
        at += m * n + n
        layer = layer @ weights + bias
        layer = act(layer) if number < architecture.depth else layer
    assert at == row.size
    return layer[:, 0]


def loss_by_hand(architecture, row, points, weight, beta, step=1e-5):
    inside, start, left, right = (part.astype(float) for part in points)
    ahead, behind = (by_hand(architecture, row, inside + s * np.array([step, beta * step])) for s in (1, -1))
    u = [by_hand(architecture, row, part) for part in (start, left, right)]
    conditions = np.mean((u[0] - np.sin(start[:, 1])) ** 2) + np.mean((u[1] - u[2]) ** 2)
    return np.mean(((ahead - behind) / (2 * step)) ** 2) + weight * conditions


@pytest.mark.parametrize("beta", [2.0, 30.0])
def test_the_solution_satisfies_what_the_networks_are_trained_on(beta):
    exact, of = networks.solution(beta), networks.model(beta, 40, 6)
    points = np.random.default_rng(0).uniform([0, 0], [1, 2 * np.pi], (50, 2))
    h = 1e-5

    def u(t, x):
        return np.asarray(jax.vmap(exact)(jnp.asarray(np.stack([t, x], axis=1))))

    t, x = points.T
    u_t, u_x = (u(t + h, x) - u(t - h, x)) / (2 * h), (u(t, x + h) - u(t, x - h)) / (2 * h)
    assert np.abs(u_t + beta * u_x).max() < 1e-6 * beta
    assert np.abs(u_t).max() > 0.9 * beta
    assert u(0 * t, x) == pytest.approx(np.sin(x))
    assert u(t, 0 * x) == pytest.approx(u(t, 0 * x + 2 * np.pi))
    for block, scale in zip(of.physics, (beta, 1, 1), strict=True):
        seen = jax.vmap(block.operator(exact))(jnp.asarray(block.points))
        seen = seen if block.matrix is None else block.matrix @ seen
        assert np.abs(seen - block.values).max() < 1e-13 * scale
    assert [block.size for block in of.physics] == [40, 6, 6]
    grid, truth = networks.grid(beta)
    assert truth == pytest.approx(np.sin(grid[:, 1] - beta * grid[:, 0]))


@pytest.fixture(scope="module")
def trained():
    """Four small networks: of two weights and two seeds."""
    of = networks.model(2.0, 40, 6)
    weights, seeds = [1.0, 10.0, 1.0, 1.0], [0, 0, 1, 0]
    found = networks.train(SMALL, of, 2.0, weights, [0.0, 0.0, 0.0, 0.7], seeds, 150)
    return of, weights, seeds, *found


def test_training_reduces_the_loss(trained):
    of, weights, seeds, rows, history = trained
    points = networks.training_points(of)
    assert rows.dtype == np.float32
    assert len({row.tobytes() for row in rows}) == 4
    for row, weight, seed, last in zip(rows, weights, seeds, history[:, -1], strict=True):
        start = networks.flat(jax.tree.map(lambda leaf: np.asarray(leaf)[None], SMALL.initial(seed)))[0]
        before, after = (loss_by_hand(SMALL, each, points, weight, 2.0) for each in (start, row))
        assert after < 0.8 * before
        given = [jnp.asarray(part) for part in points]
        for each, value in ((start, before), (row, after)):
            params = networks.unflat(SMALL, each)
            found = networks.loss(networks.network(SMALL), params, given, jnp.float32(weight), jnp.float32(2.0))
            assert found.dtype == np.float32
            assert float(found) == pytest.approx(value, rel=1e-4)
        assert last == pytest.approx(after, rel=0.01)  # before the last, small step


@pytest.mark.parametrize("architecture", [SMALL, FOURIER])
def test_a_network_is_evaluated_in_float64(architecture):
    row = networks.flat(jax.tree.map(lambda leaf: np.asarray(leaf)[None], architecture.initial(3)))[0]
    points, truth = networks.grid(2.0)
    found = networks.evaluated(architecture, row, points)
    assert found.dtype == np.float64
    assert found == pytest.approx(by_hand(architecture, row, points), rel=1e-12, abs=1e-13)
    error = np.sqrt(np.sum((by_hand(architecture, row, points) - truth) ** 2) / np.sum(truth**2))
    assert networks.relative_error(architecture, row, 2.0) == pytest.approx(error, rel=1e-10)
    sizes = {SMALL: 2 * 4 + 4 + 4 + 1, FOURIER: 32 * 3 + 3 + 3 + 1}
    assert row.size == sizes[architecture]
    assert architecture.label == {SMALL: "tanh 1×4", FOURIER: "sin 1×3, Fourier 1, first layer ×2"}[architecture]


def test_scores_are_those_of_network_pile(trained):
    of, _, _, rows, _ = trained
    found = pinn.scores(SMALL, rows[0], of)
    assert set(found) == set(pinn.SCORES)
    params, apply = networks.unflat(SMALL, rows[0]), networks.network(SMALL)
    for form in ("laplace", "linearised", "tangent"):
        direct = ps.network_pile(apply, params, of, form=form)
        assert found[form] == pytest.approx(direct.value, rel=1e-9)
    with pytest.warns(ps.errors.TrainingPointsWarning):
        training = ps.network_pile(apply, params, of, points="training")
    assert found["training_points"] == pytest.approx(training.value)
    assert found["misfit"] == pytest.approx(direct.misfit)
    assert found["misfit"] != pytest.approx(training.misfit, rel=1e-3)  # other points
    loss = loss_by_hand(SMALL, rows[0], networks.training_points(of), 1.0, 2.0)
    assert found["training_loss"] == pytest.approx(loss, rel=1e-4)
    assert networks.network(SMALL) is apply  # compiled once


def test_rank_correlations_and_their_intervals():
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 6, 25).astype(float), rng.standard_normal(25)  # with ties
    assert pinn.spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert pinn.rank_correlation(b, 2 * b + 1, 50)["interval"] == pytest.approx([1, 1])
    assert pinn.rank_correlation(b, -b, 50)["interval"] == pytest.approx([-1, -1])
    score, error = np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([2.0, 1.0, 3.0, 5.0, 4.0])
    drawn = np.array(list(itertools.product(range(5), repeat=5)))  # all that can be drawn
    drawn = drawn[[len(set(each)) > 1 for each in drawn.tolist()]]
    every = pinn.spearman(score[drawn], error[drawn])
    assert every[:50] == pytest.approx([spearmanr(score[each], error[each]).statistic for each in drawn[:50]])
    found = pinn.rank_correlation(score, error, 40000)
    assert found["value"] == pytest.approx(0.8)
    assert found["interval"] == pytest.approx(np.quantile(every, [0.025, 0.975]), abs=0.02)
    # Rows are resampled as a whole: repeating a number three times in a row adds no information.
    thrice = pinn.rank_correlation(np.repeat(a[:, None], 3, axis=1), np.repeat(b[:, None], 3, axis=1), 300)
    assert thrice["interval"] == pytest.approx(pinn.rank_correlation(a, b, 300)["interval"])
    assert pinn.difference(b, a, b, 300)["value"] == pytest.approx(1 - spearmanr(a, b).statistic)
    low, high = pinn.difference(b, a, b, 300)["interval"]
    assert 0 < low < 1 - spearmanr(a, b).statistic < high
    assert np.isnan(pinn.rank_correlation(np.ones(9), b[:9], 20)["interval"]).all()
    assert pinn.difference(a, a, b, 300) == {"value": 0, "interval": [0, 0]}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A tiny run by the command line, interrupted before the architectures are trained, and resumed."""
    directory, calls = tmp_path_factory.mktemp("study") / "out", []

    def counted(architecture, *arguments):
        calls.append(architecture)
        return networks.train(architecture, *arguments)

    def stopped(*_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pinn, "ARCHITECTURES", (SMALL, STEEP))
        patch.setattr(pinn.PinnSettings, "quick", classmethod(lambda cls, seeds=2: TINY))
        patch.setattr(pinn, "plain", lambda width: SMALL)
        patch.setattr(pinn, "train", counted)
        patch.setattr(runner, "write_report", lambda report, directory: None)  # drawn below, without files
        command = ["study", "pinn", "--quick", "--out", str(directory)]
        with pytest.MonkeyPatch.context() as second:
            second.setattr(pinn, "_after", stopped)
            assert cli.main(command) == 130
        first = list(calls)
        assert cli.main([*command, "--resume"]) == 0
    summary = json.loads((directory / "summary.json").read_text())
    with xr.open_dataset(directory / "results.nc", engine="scipy") as opened:
        return summary, opened.load(), directory, (first, calls[len(first) :])


def test_a_resumed_study_trains_only_what_is_missing(done):
    first, second = done[3]
    assert first == [SMALL, SMALL]  # at the one speed, and as an architecture
    assert second == [STEEP]
    assert {path.name for path in done[2].iterdir()} == {"results.nc", "summary.json"}


def test_results_and_summary_agree(done):
    summary, results, _, _ = done
    assert results["error"].sizes == {"beta": 1, "network": 4}
    settings = [(4, weight, ramp, 0) for weight in (1, 10) for ramp in (0, 0.7)]
    columns = [results[name].sel(beta=2.0).values for name in ("width", "weight", "ramp", "seed")]
    assert list(zip(*columns, strict=True)) == settings
    error = results["error"].sel(beta=2.0).values
    of = summary["speeds"]["2"]
    for name in pinn.SCORES:
        score = results[name].sel(beta=2.0).values
        assert of["scores"][name]["value"] == pytest.approx(spearmanr(score, error).statistic)
        assert of["scores"][name]["chosen_error"] == error[score.argmin()]
        low, high = of["scores"][name]["interval"]
        assert -1 <= low <= of["scores"][name]["value"] <= high <= 1
    chosen = results["by_error"].sel(beta=2.0).values - results["solution"].sel(beta=2.0).values
    assert np.linalg.norm(chosen) / np.linalg.norm(results["solution"]) == pytest.approx(error.min(), rel=0.05)
    found = summary["architectures"]
    assert [row["label"] for row in found["rows"]] == [SMALL.label, STEEP.label]
    assert found["networks"] == 8
    for number, row in enumerate(found["rows"]):
        errors = results["after_error"].values[number]
        assert row["error"] == pytest.approx(math.exp(np.median(np.log(errors))))
        assert row["before_tangent"] == pytest.approx(results["before_tangent"].values[number].mean())
    every = spearmanr(results["before_laplace"].values.ravel(), results["after_error"].values.ravel()).statistic
    assert found["scores"]["before_laplace"]["all"]["value"] == pytest.approx(every)
    of = networks.model(2.0, 40, 6)
    start = ps.network_pile(networks.network(STEEP), STEEP.initial(1), of, form="tangent")
    assert float(results["before_tangent"][1, 1]) == pytest.approx(start.value)
    assert [each["what"] for each in summary["checks"]] == ["networks whose training did not end in finite numbers"]
    assert summary["checks"][0]["holds"]


def test_the_report(done):
    summary, results, _, _ = done
    report = pinn_report.report(results, summary)
    figures = [*(f"error_{name}" for name in ("laplace", "misfit", "training_loss", "tangent")), "chosen",
               "before_training"]  # fmt: skip
    assert [figure.name for figure in report.figures] == summary["figures"] == figures
    for figure in report.figures:
        for panel in figure.panels:
            [*traces] = plotly_panel(panel)["data"]
            drawn = [value for trace in traces for value in np.ravel(trace.get("z", trace["y"]))]
            assert traces
            assert all(value is not None and math.isfinite(value) for value in drawn)
    [tangent] = [figure for figure in report.figures if figure.name == "error_tangent"]
    dots = [(x, y) for curve in tangent.panels[0].curves for x, y in zip(curve.x, curve.y, strict=True)]
    given = zip(results["tangent"].values[0], results["error"].values[0], strict=True)
    assert sorted(dots) == sorted(given)
    known = {form(value) for value in numbers(summary) for form in (digits, str, pinn_report.correlation)}
    tables = [table for section in report.sections[:-1] for table in section.tables]
    cells = [cell for table in tables for row in table.rows for cell in row[1:]]
    stated = re.findall(r"−?\d+(?:\.\d+)?(?:·10[⁻⁰-⁹¹²³]+)?", " ".join(cells))
    assert len(stated) > 50
    assert [number for number in stated if number not in known] == []


def said(summary, results):
    report = pinn_report.report(results, summary)
    return " ".join([report.lead, *(text for section in report.sections for text in section.paragraphs)])


def test_conclusions_follow_the_numbers(done):
    summary, results, _, _ = done
    for name in ("misfit", "training_loss"):
        for interval, sentence in (
            ([0.1, 0.3], "PILE ranks better at β = 2"),
            ([-0.3, -0.1], "PILE ranks worse at β = 2"),
            ([-0.1, 0.1], "No difference from PILE is significant"),
        ):
            changed = copy.deepcopy(summary["speeds"])
            changed["2"]["scores"][name]["behind"]["interval"] = interval
            assert sentence in pinn_report.compared_with(changed, name, "this")
            others = {"PILE ranks better", "PILE ranks worse", "No difference"} - {sentence[: len(part)] for part in
                      ("PILE ranks better", "PILE ranks worse", "No difference")}  # fmt: skip
            assert not any(part in pinn_report.compared_with(changed, name, "this") for part in others)
    changed = copy.deepcopy(summary)
    laplace = changed["speeds"]["2"]["scores"]["laplace"]
    laplace |= {"value": 0.123, "interval": [-0.4, 0.6]}
    assert "0.12 at β = 2" in said(changed, results)
    assert "it does not rank networks reliably" in said(changed, results)
    laplace["interval"] = [0.05, 0.6]
    assert "it does not rank networks reliably" not in said(changed, results)
    for least, expected in ((0.6, True), (0.4, False)):
        changed["speeds"]["2"]["errors"]["least"] = least
        assert ("the scores rank failed networks only" in said(changed, results)) is expected
    found = changed["architectures"]["scores"]["before_tangent"]["architectures"]
    for interval, sentence in (
        ([0.2, 0.8], "it predicts which of them train better."),
        ([-0.8, -0.2], "the architectures that it prefers train worse"),
        ([-0.3, 0.5], "it does not predict reliably"),
        ([None, None], "too few architectures"),
        ([math.nan, math.nan], "too few architectures"),
    ):
        found |= {"value": 0.321, "interval": interval}
        text = pinn_report.before_training(changed["architectures"])
        assert sentence in text
        assert "0.32 with the error" in text
        assert text in said(changed, results)


def test_format_of_correlations():
    given = (0.845, -0.236, -8.7e-4, 1.0, None, math.nan)
    assert [*map(pinn_report.correlation, given)] == ["0.84", "−0.24", "0.00", "1.00", "—", "—"]


def test_checks_of_the_full_study(done):
    numbers = copy.deepcopy(done[0])
    numbers["speeds"] = {"10": numbers["speeds"]["2"], "20": copy.deepcopy(numbers["speeds"]["2"])}
    for beta, value in (("10", 0.85), ("20", 0.79)):
        numbers["speeds"][beta]["networks"] = 24
        numbers["speeds"][beta]["scores"]["laplace"]["value"] = value
    assert [each["holds"] for each in pinn._checks(numbers)] == [True, False, True]
    numbers["speeds"]["20"]["networks"], numbers["architectures"]["failed"] = 19, 1
    assert [each["holds"] for each in pinn._checks(numbers)] == [True, False]
    assert len(pinn.PinnSettings().networks) >= 22
    assert len(pinn.ARCHITECTURES) == len({each.label for each in pinn.ARCHITECTURES}) >= 12


def test_networks_that_failed_are_left_out():
    table = xr.Dataset({name: ("network", [3.0, 1.0, 2.0, np.nan]) for name in ("error", *pinn.SCORES)})
    judged = pinn._rankings(table, TINY)
    assert (judged["networks"], judged["failed"]) == (3, 1)
    assert judged["errors"] == {"least": 1, "median": 2, "largest": 3}
    assert judged["scores"]["misfit"]["value"] == pytest.approx(1)
    rows = np.full((2, 17), np.nan, dtype=np.float32)
    found = pinn._scored(TINY, 2.0, SMALL, xr.Dataset({"parameters": (("network", "parameter"), rows)}))
    assert all(np.isnan(found[name].values).all() for name in ("error", *pinn.SCORES))


def test_without_optax_it_says_what_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "optax", None)
    assert cli.main(["study", "pinn", "--out", str(tmp_path / "out")]) == 2
    assert "pip install 'pilescore[pinn]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
