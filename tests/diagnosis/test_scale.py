"""The prior's scale, the fit of blocks, several optima, and nodes that do not bind."""

import dataclasses

import numpy as np
import pytest

import pilescore as ps

LINE = ps.Box(x=(0, 1))
(DX,) = ps.partials(LINE)


def readings(factor=1.0, count=25, **options):
    rng = np.random.default_rng(1)
    x = rng.uniform(0, 1, count)
    values = factor * (np.sin(6 * x) + 0.05 * rng.standard_normal(count))
    return ps.Model(ps.RBF(0.3), ps.observe(ps.identity, values, at=x), gamma=0.005 * factor**2, **options)


@pytest.mark.parametrize("factor", [1e5, 1e-4])
def test_a_wrong_prior_scale_is_found_and_said(factor):
    model = readings(factor)
    finding = ps.diagnose(model, checks=["prior_scale"])["prior_scale"]
    assert finding.status == "fired"
    assert f"eta is too {'small' if factor > 1 else 'large'}" in finding.meaning
    start = model.replace({"eta": factor**2})
    best = ps.minimize(start, {"eta": (1e-3 * factor**2, 1e3 * factor**2)}).values["eta"]
    assert np.log(finding.details["eta"] / best) == pytest.approx(0.0, abs=0.5)
    assert "prior_scale" not in ps.diagnose(model.replace({"eta": best}), checks=["prior_scale"])


def test_too_little_noise_is_not_a_wrong_prior_scale():
    noisy = readings().replace({"gamma": 5e-6})
    assert "prior_scale" not in ps.diagnose(noisy, checks=["prior_scale"])
    assert "prior_scale" not in ps.diagnose(readings(), checks=["prior_scale"])


def test_a_source_in_other_units_is_far_larger_than_the_prior_expects():
    def poisson(units):
        at = LINE.interior(ps.GaussLegendre(10))
        source = units * (-36 * np.sin(6 * at.points[:, 0]))
        return readings(physics=ps.impose(DX**2, source, on=at, rho=1e-2, name="source"))

    finding = ps.diagnose(poisson(100.0), score="joint", checks=["physics_fit"])["physics_fit"]
    assert finding.status == "fired"
    assert "'source'" in finding.meaning
    assert finding.details["fits"]["source"] > 100
    assert ps.diagnose(poisson(1.0), score="joint", checks=["physics_fit"])["physics_fit"].status == "fine"
    assert ps.diagnose(readings(), checks=["physics_fit"])["physics_fit"].status == "skipped"


def test_another_optimum_with_as_much_evidence_is_named():
    best = ps.minimize(readings(), {"kernel.bandwidth": (0.05, 5.0)}, starts=2)
    assert "several_optima" not in ps.diagnose(best, checks=["several_optima"])
    first = best.descents[0]
    other = dataclasses.replace(first, end={"kernel.bandwidth": 2.0}, pile=first.pile + 2 * 0.5 / 25)
    both = dataclasses.replace(best, descents=(first, other))
    finding = ps.diagnose(both, checks=["several_optima"])["several_optima"]
    assert finding.status == "fired"
    assert finding.value == pytest.approx(0.5)
    assert "kernel.bandwidth = 2 instead of" in finding.meaning
    worse = dataclasses.replace(best, descents=(first, dataclasses.replace(other, pile=first.pile + 1.0)))
    assert "several_optima" not in ps.diagnose(worse, checks=["several_optima"])
    assert ps.diagnose(readings(), checks=["several_optima"])["several_optima"].status == "skipped"


def test_a_coefficient_at_a_bound_is_a_failure_and_a_harmless_scale_is_silent():
    t = np.linspace(0, 1, 20)
    y = np.exp(-2 * t) + 0.01 * np.random.default_rng(0).standard_normal(20)
    equation = ps.impose(DX + ps.parameter("rate", 1.0), 0.0, on=LINE.interior(ps.GaussLegendre(8)))
    model = ps.Model(ps.RBF(1.0), ps.observe(ps.identity, y, at=t), equation, gamma=2e-4)
    over = {"rate": (0.1, 1.0), "eta": (0.9, 1.1)}
    best = ps.minimize(model, over, search=ps.SearchOptions(curvature=False))
    finding = ps.diagnose(best, checks=["at_bound"])["at_bound"]
    assert (finding.status, finding.severity) == ("fired", "failure")
    assert "rate is at its upper bound: its value and standard error mean nothing" in finding.meaning
    assert "eta" not in finding.meaning


def test_nodes_that_do_not_bind_are_a_failure():
    def wave(nodes, **noise):
        x = np.linspace(0, 1, 30)
        oscillation = ps.impose(DX**2 / 900 + ps.identity, 0.0, on=LINE.interior(ps.GaussLegendre(nodes)), **noise)
        return ps.Model(ps.RBF(0.08), ps.observe(ps.identity, np.sin(30 * x), at=x, noise=0.1), oscillation)

    for noise in ({}, {"rho": 1e-4}):
        finding = ps.diagnose(wave(4, **noise), checks=["unresolved_quadrature"])["unresolved_quadrature"]
        assert finding.status == "fired"
        assert finding.severity == "failure"
        assert (
            ps.diagnose(wave(40, **noise), checks=["unresolved_quadrature"])["unresolved_quadrature"].status == "fine"
        )
