"""The result: tables, quantiles, draws, ArviZ, pictures for notebooks."""

import dataclasses
import math
import pickle
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import pilescore as ps
from pilescore.search.uncertainty.display import Marginal, marginals_html, smoothed_density
from pilescore.search.uncertainty.result import NEGLIGIBLE, _weighted_quantiles
from pilescore.search.uncertainty.sampling import Chains

from ...models import refused

NAMES = ("kernel.bandwidth[0]", "kernel.bandwidth[1]", "gamma")
PROBABILITIES = np.linspace(0.01, 0.99, 25)


@pytest.fixture(scope="module")
def hyper():
    """Return a distribution over a vector of two lengths and the noise."""
    rng = np.random.default_rng(0)
    at = rng.random((14, 2))
    values = np.sin(5 * at[:, 0]) + at[:, 1] + 0.1 * rng.standard_normal(14)
    model = ps.Model(ps.RBF([0.4, 1.0]), ps.observe(ps.identity, values, at=at), gamma=0.02)
    return ps.hyperposterior(model, {"kernel.bandwidth": (0.05, 20.0), "gamma": (1e-4, 1.0)}, starts=1)


# -- Tables, quantiles, draws.


def test_a_table_has_moments_and_quantiles(hyper):
    table = hyper.table
    assert tuple(table.index) == NAMES == hyper.names
    assert list(table.columns) == ["mean", "deviation", "2.5%", "50%", "97.5%"]
    assert np.all(table["2.5%"] < table["50%"])
    assert np.all(table["50%"] < table["97.5%"])
    np.testing.assert_allclose(table["mean"], np.average(hyper.draws, axis=0, weights=hyper.draw_weights))
    covariance = np.cov(hyper.draws.T, aweights=hyper.draw_weights, bias=True)
    np.testing.assert_allclose(hyper.covariance, covariance, rtol=1e-10)
    np.testing.assert_allclose(table["deviation"], np.sqrt(covariance.diagonal()), rtol=1e-10)


def test_quantiles_are_monotone_and_named(hyper):
    rows = hyper.quantiles(PROBABILITIES)
    assert np.all(np.diff(rows.values, axis=1) > 0)
    assert list(hyper.quantiles([0.025, 0.5]).columns) == ["2.5%", "50%"]
    assert hyper.quantiles(0.5).shape == (3, 1)
    with refused("probabilities"):
        hyper.quantiles([0.5, 1.5])


@given(st.integers(1, 30), st.integers(0, 10_000))
def test_quantiles_of_equal_weights_are_those_of_numpy(count, seed):
    values = np.random.default_rng(seed).standard_normal(count)
    found = _weighted_quantiles(values, np.full(count, 1 / count), PROBABILITIES)
    np.testing.assert_allclose(found, np.quantile(values, PROBABILITIES, method="hazen"), rtol=1e-9, atol=1e-12)


def test_quantiles_of_weights_are_those_of_copies():
    values, copies = np.array([3.0, 1.0, 2.0]), np.array([1, 5, 2])
    many = np.repeat(values, copies)
    fine = _weighted_quantiles(values, copies / 8, np.array([0.3, 0.5, 0.9]))
    assert fine[0] == pytest.approx(np.quantile(many, 0.3), abs=0.2)
    assert 1.0 <= fine[0] < fine[1] < fine[2] <= 3.0


def test_draws_are_equally_weighted_and_reproducible(hyper):
    one, again, other = (hyper.sample(50_000, seed=seed) for seed in (1, 1, 2))
    assert tuple(one) == NAMES
    mean, deviation = hyper.table["mean"], hyper.table["deviation"]
    for name, column in one.items():
        assert column.shape == (50_000,)
        np.testing.assert_array_equal(column, again[name])
        assert not np.array_equal(column, other[name])
        assert abs(column.mean() - mean[name]) < 0.05 * deviation[name]
        assert column.std() == pytest.approx(deviation[name], rel=0.05)
        # In random order: no trend.
        assert abs(np.corrcoef(column, np.arange(50_000))[0, 1]) < 0.06
    rows = np.column_stack(list(one.values()))
    assert all(any(np.array_equal(row, draw) for draw in hyper.draws) for row in rows[:5])
    found = np.corrcoef(rows.T)
    spread = np.sqrt(hyper.covariance.diagonal())
    np.testing.assert_allclose(found, hyper.covariance / np.outer(spread, spread), atol=0.05)


@pytest.mark.parametrize(("count", "seed", "part"), [(0, 0, "count"), (3, -1, "seed"), (2.5, 0, "count")])
def test_bad_counts_and_seeds(hyper, as_a_user, count, seed, part):
    with refused(part):
        hyper.sample(count, seed)


def test_changed_draws_leave_the_distribution_alone(hyper):
    before = hyper.draws.copy()
    hyper.sample(10)["gamma"][:] = -1.0
    np.testing.assert_array_equal(hyper.draws, before)


# -- Weighted models.


def test_weighted_models_are_those_of_the_points(hyper):
    parts = hyper.weighted_models
    weights = np.array([part.weight for part in parts])
    assert weights.sum() == pytest.approx(1.0)
    assert np.all(np.diff(weights) <= 0)
    kept = np.sort(hyper.weights)[::-1][: len(parts)]
    assert 1 - kept.sum() <= NEGLIGIBLE
    np.testing.assert_allclose(weights, kept / kept.sum())
    first = parts[0]
    assert first.values == dict(zip(NAMES, hyper.points[np.argmax(hyper.weights)], strict=True))
    parameters = first.model.parameters
    assert parameters["gamma"] == first.values["gamma"]
    np.testing.assert_array_equal(parameters["kernel.bandwidth"], [first.values[name] for name in NAMES[:2]])


def test_values_of_models_with_a_profiled_scale_are_their_own():
    x = np.linspace(0, 1, 8)
    noise = np.random.default_rng(0).standard_normal(8)
    model = ps.Model(ps.RBF(0.4), ps.observe(ps.identity, 30 * np.sin(6 * x) + 2 * noise, at=x), gamma=0.02)
    over = {"kernel.bandwidth": (0.05, 5.0), "gamma": (1e-6, 1.0)}
    found = ps.hyperposterior(model, over, score="profiled", starts=1)
    for part in found.weighted_models[:3]:
        assert part.model.parameters["gamma"] == pytest.approx(part.values["gamma"])
        assert part.model.parameters["kernel.bandwidth"] == part.values["kernel.bandwidth"]
    post = ps.posterior(found)
    assert np.all(post.std([0.45, 1.5]) > 0)
    assert post.mean([x[3]])[0] == pytest.approx(30 * math.sin(6 * x[3]), abs=6)


def test_predictions_average_over_the_models(hyper):
    post, where = ps.posterior(hyper), np.array([[0.5, 0.5], [2.0, 2.0]])
    parts = hyper.weighted_models
    means = np.array([ps.posterior(part.model).mean(where) for part in parts])
    stds = np.array([ps.posterior(part.model).std(where) for part in parts])
    weights = np.array([part.weight for part in parts])
    mean = weights @ means
    np.testing.assert_allclose(post.mean(where), mean)
    np.testing.assert_allclose(post.std(where), np.sqrt(weights @ (stds**2 + (means - mean) ** 2)))


# -- ArviZ.


def test_arviz_gets_one_chain_of_draws(hyper):
    data = hyper.to_arviz()
    posterior = data.posterior
    assert dict(posterior.sizes) == {"chain": 1, "draw": 2000, "kernel.bandwidth_dim_0": 2}
    assert posterior["kernel.bandwidth"].dims == ("chain", "draw", "kernel.bandwidth_dim_0")
    assert posterior["gamma"].dims == ("chain", "draw")
    assert posterior.attrs["method"] == "weighted"
    rows = np.column_stack([posterior["kernel.bandwidth"].values[0], posterior["gamma"].values[0]])
    assert rows.shape == (2000, 3)
    np.testing.assert_allclose(rows.mean(axis=0), hyper.table["mean"], rtol=0.1)
    assert all(any(np.array_equal(row, draw) for draw in hyper.draws) for row in rows[:3])
    assert "sample_stats" not in list(data.groups())


def chains_of(t, evaluations=10):
    return Chains(t, np.zeros(t.shape[:2]), evaluations)


def test_arviz_gets_chains_and_their_statistics(hyper):
    t = np.random.default_rng(0).standard_normal((4, 50, 3))
    diverging = np.zeros((4, 50))
    diverging[2, 7] = 1.0
    chained = dataclasses.replace(hyper, method="nuts", chains=Chains(t, diverging, 10))
    data = chained.to_arviz()
    assert dict(data.posterior.sizes) == {"chain": 4, "draw": 50, "kernel.bandwidth_dim_0": 2}
    expected = hyper.density.values(t)
    np.testing.assert_array_equal(data.posterior["gamma"].values, expected[:, :, 2])
    np.testing.assert_array_equal(data.posterior["kernel.bandwidth"].values, expected[:, :, :2])
    np.testing.assert_array_equal(data.sample_stats["diverging"].values, diverging)


# -- Chains.


def autoregressive(correlation, count=2000, seed=0):
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((4, count, 2))
    t = np.empty_like(noise)
    t[:, 0] = noise[:, 0]
    for i in range(1, count):
        t[:, i] = correlation * t[:, i - 1] + math.sqrt(1 - correlation**2) * noise[:, i]
    return t


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_effective_sizes_of_autoregressive_chains(correlation):
    """The variance of the mean grows by (1 + ρ)/(1 − ρ)."""
    chains = chains_of(autoregressive(correlation))
    expected = 8000 * (1 - correlation) / (1 + correlation)
    assert chains.effective_size == pytest.approx(expected, rel=0.25)
    assert chains.r_hat < 1.02


def test_anticorrelated_chains_have_more_than_their_number():
    assert chains_of(autoregressive(-0.5)).effective_size > 8000


def test_chains_at_different_places_have_not_mixed():
    t = autoregressive(0.0, 500)
    t[0] += 3.0
    apart = chains_of(t)
    assert apart.r_hat > 1.3
    assert apart.effective_size < 50
    drifting = autoregressive(0.0, 500) + np.linspace(0, 3, 500)[:, None]
    assert chains_of(drifting).r_hat > 1.1


# -- Text and pictures.


def test_text_names_method_intervals_and_warnings(hyper):
    text = repr(hyper)
    assert re.match(r"Hyperposterior\(\d+ weighted models, effective size \d", text)
    assert f"log evidence {hyper.log_evidence:.5g} ± {hyper.log_evidence_error:.2g}" in text
    for name in NAMES:
        low, middle, high = hyper.quantiles([0.025, 0.5, 0.975]).loc[name]
        assert f"  {name} = {middle:.6g}  ({low:.4g} to {high:.4g})" in text
    assert "optima" not in text
    both = repr(dataclasses.replace(hyper, warnings=("one thing. Do that",)))
    assert "  one thing. Do that)" in both


def test_pages_escape_names_and_texts():
    curve = np.linspace(0, 1, 5)
    marginal = Marginal("<b>&", (0.1, 0.2, 0.3), curve, curve, "normal, <i>")
    page = marginals_html("a < b", [marginal], ["x & <script>"])
    for bad in ("<b>", "<i>", "<script>", "a < b"):
        assert bad not in page
    root = ElementTree.fromstring(page)
    cells = ["".join(cell.itertext()) for cell in root.iter("td")]
    assert cells == ["<b>&", "0.2", "0.1 to 0.3", "", "normal, <i>"]
    assert [each.text for each in root.findall("p")][-1] == "x & <script>"
    assert next(root.iter("svg")).get("aria-label") == "density of <b>&"


def test_a_page_has_one_row_and_picture_for_each_hyperparameter(hyper):
    root = ElementTree.fromstring(hyper._repr_html_())
    rows = list(root.iter("tr"))
    assert len(rows) == 4
    assert [row.find("td").text for row in rows[1:]] == list(NAMES)
    for row in rows[1:]:
        density, prior = row.iter("path")
        for path in (density, prior):
            numbers = np.array(re.findall(r"(-?[\d.]+),(-?[\d.]+)", path.get("d")), dtype=float)
            assert np.isfinite(numbers).all()
            assert numbers.min() >= 0
            assert numbers[:, 0].max() <= 150
            assert numbers[:, 1].max() <= 28
        assert "nan" not in density.get("d")


def test_smoothed_densities_are_those_of_the_sample():
    rng = np.random.default_rng(0)
    u, at = rng.normal(1.0, 0.3, 4000), np.linspace(-1, 3, 400)
    found = smoothed_density(u, np.full(4000, 1 / 4000), at)
    assert np.sum(found) * (at[1] - at[0]) == pytest.approx(1.0, abs=1e-3)
    np.testing.assert_allclose(found, stats.norm(1.0, 0.3).pdf(at), atol=0.12)
    assert np.isfinite(smoothed_density(np.ones(5), np.full(5, 0.2), at)).all()


# -- Pickling.


def test_a_result_can_be_pickled(hyper):
    again = pickle.loads(pickle.dumps(hyper))
    assert repr(again) == repr(hyper)
    np.testing.assert_array_equal(again.draws, hyper.draws)
    assert again.weighted_models[0].values == hyper.weighted_models[0].values
    assert again.density.value(np.zeros(3)) == hyper.density.value(np.zeros(3))


def test_priors_by_name(hyper):
    assert set(hyper.priors) == {"kernel.bandwidth", "gamma"}
    assert isinstance(hyper.priors["gamma"], ps.priors.LogNormal)
    own = ps.priors.LogNormal(0.3, 2.0)
    model = hyper.density.space.model.replace(priors={"gamma": own})
    changed = dataclasses.replace(
        hyper, density=dataclasses.replace(hyper.density, space=hyper.density.space.at(model))
    )
    assert changed.priors["gamma"] is own
