"""The evidence integrated over hyperparameters, against brute force; the same minimum between wider bounds."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.stats import lognorm, norm

import pilescore as ps
from pilescore.search.integrated import hyperposterior_evidence, integrated_evidence

RNG = np.random.default_rng(5)
X = np.sort(RNG.uniform(0, 1, 14))
DATA = ps.observe(ps.identity, np.sin(5 * X) + 0.1 * RNG.standard_normal(14), at=X)
MODEL = ps.Model(ps.RBF(0.3), DATA, gamma=0.02)


def minimum(over, model=MODEL):
    return ps.minimize(model, over, search=ps.SearchOptions(tolerance=1e-10))


def gauss(low, high, count=60):
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return 0.5 * (low + high) + 0.5 * (high - low) * nodes, 0.5 * (high - low) * weights


def log_evidence(**values):
    return ps.pile(MODEL.replace({name.replace("__", "."): value for name, value in values.items()})).log_evidence


def test_over_a_length_and_a_variance():
    over = {"kernel.bandwidth": (0.03, 3.0), "eta": (0.01, 100.0)}
    found = ps.compare({"searched": minimum(over)}).loc["searched"]
    # The default priors by hand, cut off at the bounds: half of the extent within a factor of 4; the mean square of
    # the readings within a factor of 10.
    length = lognorm(math.log(4), scale=0.5 * np.ptp(X))
    variance = lognorm(math.log(10), scale=np.mean(DATA.values**2))
    (u, du), (v, dv) = gauss(math.log(0.03), math.log(3.0)), gauss(math.log(0.01), math.log(100.0))
    by_length = length.pdf(np.exp(u)) * np.exp(u) * du / (length.cdf(3.0) - length.cdf(0.03))
    by_variance = variance.pdf(np.exp(v)) * np.exp(v) * dv / (variance.cdf(100.0) - variance.cdf(0.01))
    logs = np.array([[log_evidence(kernel__bandwidth=b, eta=e) for e in np.exp(v)] for b in np.exp(u)])
    exact = math.log(by_length @ np.exp(logs) @ by_variance)
    assert found["log_evidence"] == pytest.approx(exact, abs=min(0.05, found["error"]))
    assert found["error"] < 0.3


def test_priors_of_what_was_not_searched_do_not_count():
    known = MODEL.replace(priors={"eta": ps.priors.LogNormal(2.0, 3.0)})
    logs = [
        ps.compare({"searched": minimum({"gamma": (1e-3, 1.0)}, model), "fixed": model})["log_evidence"].to_dict()
        for model in (MODEL, known)
    ]
    assert logs[0] == pytest.approx(logs[1])


def test_without_more_scores_it_is_estimated_from_the_curvature():
    best = minimum({"kernel.bandwidth": (0.03, 3.0), "gamma": (1e-3, 1.0)})
    exact, estimate = integrated_evidence(best), integrated_evidence(best, "there was no time")
    assert estimate.log_evidence == pytest.approx(exact.log_evidence, abs=0.3)
    assert math.isnan(estimate.error)
    assert "there was no time" in estimate.notes[0]
    laplace = hyperposterior_evidence(ps.hyperposterior(best, method="laplace"))
    assert laplace.log_evidence == pytest.approx(estimate.log_evidence, abs=0.05)
    assert math.isnan(laplace.error)
    interrupted = integrated_evidence(dataclasses.replace(best, status="interrupted"))
    assert interrupted.log_evidence == estimate.log_evidence
    changed = ps.compare({"changed": dataclasses.replace(best, end=None), "model": MODEL})
    assert changed.index[-1] == "changed"
    assert changed["rank"].isna().tolist() == [False, True]
    assert "not ranked, because" in changed["warnings"]["changed"]


def test_a_failure_is_a_note(monkeypatch):
    def fail(*args, **options):
        raise ps.errors.PilescoreError("the cat ate it")

    monkeypatch.setattr("pilescore.search.integrated.hyperposterior", fail)
    best = minimum({"gamma": (1e-3, 1.0)})
    row = ps.compare({"best": best}).loc["best"]
    assert "the cat ate it" in row["warnings"]
    assert np.isfinite(row["log_evidence"])


def test_the_price_of_a_needless_hyperparameter_is_its_range():
    """A coefficient that the data do not know costs nothing; one that they know costs the log of what they exclude."""
    line = ps.Box(x=(0, 1))
    (dx,) = ps.partials(line)
    equation = ps.impose(dx**2 + ps.parameter("square", 25.0), 0.0, on=line.interior(ps.GaussLegendre(8)), noise=0.5)
    model = ps.Model(ps.RBF(0.3), DATA, equation, gamma=0.02)
    vague = model.replace(
        physics=ps.impose(dx**2 + ps.parameter("square", 25.0), 0.0, on=line.interior(ps.GaussLegendre(8)), noise=1e5)
    )
    unknown = ps.compare({"free": minimum({"square": (24.0, 26.0)}, vague), "fixed": vague})
    assert unknown["nats"].abs().max() < 0.01
    free = minimum({"square": (-500.0, 500.0)}, model)
    known = ps.compare({"free": free, "fixed": model.replace(free.values)})["log_evidence"]
    occam = math.log(1000.0 / (math.sqrt(2 * math.pi) * free.standard_errors["square"]))
    assert known["fixed"] - known["free"] == pytest.approx(occam, abs=0.15)


def test_within_wider_bounds():
    line = ps.Box(x=(0, 1))
    (dx,) = ps.partials(line)
    equation = ps.impose(dx**2 + ps.parameter("square", 20.0), 0.0, on=line.interior(ps.GaussLegendre(8)), noise=0.5)
    model = ps.Model(ps.RBF(0.3), DATA, equation, gamma=0.02)
    narrow = minimum({"square": (5.0, 45.0), "gamma": (1e-3, 1.0)}, model)
    wide = minimum({"square": (-100.0, 300.0), "gamma": (1e-4, 10.0)}, model)
    moved = narrow.within({"square": (-100.0, 300.0), "gamma": (1e-4, 10.0)})
    np.testing.assert_allclose(moved.curvature.hessian, wide.curvature.hessian, rtol=1e-3)
    np.testing.assert_allclose(moved.curvature.covariance, wide.curvature.covariance, rtol=1e-3)
    assert moved.curvature.standard_errors == pytest.approx(wide.curvature.standard_errors, rel=1e-3)
    assert moved.values == narrow.values
    one, other = (ps.hyperposterior(each).quantiles([0.1, 0.5, 0.9]) for each in (moved, wide))
    np.testing.assert_allclose(one, other, rtol=1e-3)
    with pytest.raises(ps.errors.InputError, match="bounds that contain the minimum"):
        narrow.within({"square": (100.0, 300.0), "gamma": (1e-4, 10.0)})
    with pytest.raises(ps.errors.InputError, match="bounds of square, gamma"):
        narrow.within({"square": (-100.0, 300.0)})


def test_a_stretched_curvature_has_unit_flat_directions():
    model = ps.Model(2.0 * ps.RBF(0.3), DATA, gamma=0.02)
    curvature = ps.minimize(model, {"kernel.variance": (0.1, 9.0), "eta": (0.1, 9.0)}).curvature
    stretched = curvature.stretched({"kernel.variance": 2.0, "eta": 4.0})
    (direction,) = stretched.flat
    assert math.hypot(*direction.values()) == pytest.approx(1.0)
    assert direction["kernel.variance"] / direction["eta"] == pytest.approx(
        2.0 * curvature.flat[0]["kernel.variance"] / curvature.flat[0]["eta"]
    )


def test_log_evidence_of_a_mean_in_closed_form():
    """One reading of a value with a normal prior: the evidence with a known mean, averaged over its flat prior."""
    data = ps.observe(ps.identity, [0.3], at=[0.0], noise=0.5)
    model = ps.Model(ps.RBF(1.0), data, eta=1.0)
    eta, weights = gauss(math.log(0.1), math.log(10.0))
    best = ps.minimize(model, {"eta": (0.1, 10.0)})
    with pytest.warns(ps.errors.UncertaintyWarning, match="do not determine eta"):
        hyper = ps.hyperposterior(best, priors="flat")
    exact = math.log(np.sum(weights * norm.pdf(0.3, scale=np.sqrt(np.exp(eta) + 0.25))) / math.log(100.0))
    assert hyper.log_evidence == pytest.approx(exact, abs=0.01)


def test_a_pile_with_priors_is_ranked_like_its_model():
    known = MODEL.replace(priors={"kernel.bandwidth": ps.priors.LogNormal(5.0, 1.2)})
    table = ps.compare({"model": known, "pile": ps.pile(known)})
    assert table["log_evidence"]["pile"] == pytest.approx(table["log_evidence"]["model"], abs=1e-9)
    assert table["log_evidence"]["model"] == pytest.approx(ps.pile(MODEL).log_evidence, abs=1e-9)


def test_known_elements_of_an_array_with_a_prior_do_not_count():
    rng = np.random.default_rng(1)
    data = ps.observe(ps.identity, np.sin(4 * X), at=np.stack([X, rng.uniform(size=14)], axis=1), noise=0.1)
    both = ps.priors.LogNormal((0.5, 0.5), (4.0, 1.001))
    whole, over = (
        ps.Model(ps.RBF([0.5, 0.5]), data, priors={"kernel.bandwidth": both}),
        {"kernel.bandwidth[0]": (0.05, 5)},
    )
    one = whole.replace(priors={"kernel.bandwidth[0]": ps.priors.LogNormal(0.5, 4.0)})
    values = [hyperposterior_evidence(ps.hyperposterior(minimum(over, each))).log_evidence for each in (whole, one)]
    assert values[0] == pytest.approx(values[1], abs=1e-6)


def test_at_a_bound_the_curvature_does_not_tell():
    found = minimum({"kernel.bandwidth": (0.02, 10), "gamma": (1e-6, 1e-3)}, MODEL.replace(gamma=1e-4))
    assert found.at_bounds
    estimate = integrated_evidence(found, "the search was interrupted")
    assert math.isnan(estimate.log_evidence)
    assert "not ranked" in estimate.notes[0]
    assert math.isfinite(integrated_evidence(found).log_evidence)


def test_averaged_predictions_are_compared_by_held_out_readings():
    hyper = ps.hyperposterior(minimum({"kernel.bandwidth": (0.03, 3.0)}))
    held_out = ps.observe(ps.identity, [0.5, -0.2], at=[0.1, 0.7], noise=0.1)
    table = ps.compare({"distribution": hyper, "posterior": ps.posterior(hyper)}, held_out=held_out)
    assert table["log_density"]["posterior"] == pytest.approx(table["log_density"]["distribution"], rel=1e-12)


def test_wider_bounds_do_not_let_lengths_evade_an_exact_equation():
    line = ps.Box(t=(0, 6))
    (dt,) = ps.partials(line)
    data = ps.observe(ps.identity, [70.5, 42.1, 25.9, 9.1, 3.6], at=[0.0, 1.0, 2.0, 4.0, 6.0], noise=0.5)
    physics = ps.impose(dt + ps.parameter("rate", 0.5), 0.0, on=line.interior(ps.GaussLegendre(12)))
    over = {"rate": (0.05, 5), "kernel.bandwidth": (0.05, 20), "eta": (1.0, 1e6)}
    found = ps.minimize(ps.Model(ps.RBF(2.0), data, physics, eta=1000.0), over)
    again = found.within(over)
    np.testing.assert_allclose(again.end.space.low, found.end.space.low, rtol=0.01)
    assert again.end.space.low[1] > 0.2
