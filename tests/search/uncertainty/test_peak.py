"""The peak of a density of hyperparameters, and its curvature."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.linalg
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

import pilescore as ps
from pilescore.search.curvature import Curvature
from pilescore.search.space import search_space
from pilescore.search.uncertainty import peak as peaks
from pilescore.search.uncertainty.compute import _priors
from pilescore.search.uncertainty.density import HyperparameterDensity
from pilescore.search.uncertainty.peak import find_peak

from ...models import line_model

NAMES = ("kernel.bandwidth", "gamma", "eta")


@dataclasses.dataclass(frozen=True, eq=False)
class Known(HyperparameterDensity):
    """A density whose free energy is a function of the coordinates of the search, with uniform priors."""

    energy: Callable | None = None

    def value(self, t):
        return self.value_and_slope(t)[0]

    def value_and_slope(self, t):
        energy, slopes = self.energy(self.coordinates(t))
        if not math.isfinite(energy):
            return -math.inf, np.zeros_like(t)
        prior, by_t = self.log_prior(t)
        return prior - energy, by_t - slopes * self.stretch(t)


def known(energy, dimension=1):
    """Return a density over the coordinates `log v` of hyperparameters between e⁻² and e²."""
    names = NAMES[:dimension]
    space = search_space(line_model(kernel=ps.RBF(0.3)), dict.fromkeys(names, (math.exp(-2.0), math.exp(2.0))))
    return Known(space, ps.Score(), dict.fromkeys(names), energy=energy)


def normal(mean, precision):
    return lambda u: (0.5 * (u - mean) @ precision @ (u - mean), precision @ (u - mean))


def negative_hessian(density, t, h=1e-4):
    """Return minus the second derivatives by central differences of slopes."""
    rows = [
        (density.value_and_slope(t - e)[1] - density.value_and_slope(t + e)[1]) / (2 * h) for e in h * np.eye(len(t))
    ]
    return 0.5 * (np.array(rows) + np.array(rows).T)


# -- Known densities.


@pytest.mark.parametrize(("start", "ratio"), [([0.3, -0.2, 0.1], 1.05), ([1.5, 1.0, -1.0], 2.5)])
def test_the_peak_of_a_narrow_density(start, ratio):
    mean, root = np.array([0.3, -0.2, 0.1]), np.array([[9.0, 0, 0], [3.0, 20.0, 0], [-2.0, 5.0, 30.0]])
    density = known(normal(mean, root @ root.T), 3)
    peak = find_peak(density, np.array(start))
    value, slope = density.value_and_slope(peak.t)
    hessian = negative_hessian(density, peak.t)
    assert peak.value == value
    assert 0.5 * slope @ np.linalg.solve(hessian, slope) < 2 * peaks.NEAR_NATS
    np.testing.assert_allclose(density.coordinates(peak.t), mean, atol=0.03)
    # From afar the curvature is that of updates on the way.
    ratios = scipy.linalg.eigh(peak.precision, hessian, eigvals_only=True)
    assert 1 / ratio < ratios.min() <= ratios.max() < ratio


@pytest.mark.parametrize("away", [[0.0, 0.0, 0.0], [2.0, -2.0, 2.0]])
def test_the_peak_is_found_by_values_if_slopes_have_no_digits(away):
    """Precisions from 1e3 to 1e6 with strong correlations; slopes are random numbers, as under tight equations."""
    mean, root = np.array([0.3, -0.2, 0.1]), np.array([[300.0, 0, 0], [-250.0, 60.0, 0], [900.0, 50.0, 300.0]])
    exact = known(normal(mean, root @ root.T), 3)
    rng = np.random.default_rng(0)

    class Noisy(Known):
        def value_and_slope(self, t):
            return exact.value(t), 1e5 * rng.standard_normal(3)

        def value(self, t):
            return exact.value(t)

    noisy = Noisy(exact.space, exact.score, exact.priors)
    peak, right = find_peak(noisy, mean + np.linalg.solve(root.T, away)), find_peak(exact, mean)
    away = peak.t - right.t
    assert abs(peak.value - right.value) < 0.2
    assert away @ right.precision @ away < 0.4
    ratios = scipy.linalg.eigh(peak.precision, right.precision, eigvals_only=True)
    assert 0.4 < ratios.min() <= ratios.max() < 2.5
    assert peak.evaluations < 100


def test_a_peak_by_values_at_the_edge_of_what_can_be_scored():
    """However short the step, one neighbour has no score: the point is returned, with a precision that is finite."""
    density = known(lambda u: (math.inf if u[0] > 0.0 else 5.0 * u[0] ** 2, np.zeros(2)), 2)
    edge = density.inside(np.zeros(2))
    found = peaks._by_values(density, edge, density.value(edge), 0)
    np.testing.assert_array_equal(found.t, edge)
    assert found.value == density.value(edge)
    assert np.linalg.eigvalsh(found.precision).min() > 0


def test_the_integral_of_a_narrow_density_is_known():
    mean, precision = np.array([0.3, -0.2]), np.array([[400.0, 150.0], [150.0, 900.0]])
    peak = find_peak(known(normal(mean, precision), 2), mean)
    # The uniform priors have the density ¼ in each coordinate.
    expected = math.log(2 * math.pi) - 0.5 * math.log(np.linalg.det(precision)) - 2 * math.log(4.0)
    assert peak.log_integral == pytest.approx(expected, abs=0.02)
    np.testing.assert_allclose(peak.covariance, np.linalg.inv(peak.precision))


@pytest.mark.parametrize("slope", [3.0, 40.0, 1000.0, -3.0, -1000.0])
def test_a_minimum_at_a_bound(slope):
    """The free energy falls towards a bound, where the density of t has its peak at `slope·φ(t)·range + t = 0`."""
    density = known(lambda u: (slope * u[0], np.array([slope])))
    end = np.array([math.copysign(2.0, -slope)])
    peak = find_peak(density, end)
    expected = brentq(lambda t: 4.0 * slope * norm.pdf(t) + t, -6, 6)
    deviation = 1 / math.sqrt(1 + expected**2)  # −d²/dt² log density
    assert peak.t[0] == pytest.approx(expected, abs=0.3 * deviation)
    assert peak.precision[0, 0] == pytest.approx(1 + expected**2, rel=0.25)
    exact = math.log(quad(lambda s: math.exp(-slope * (4 * s - 2) - 2 * abs(slope)), 0, 1)[0]) + 2 * abs(slope)
    assert peak.log_integral == pytest.approx(exact, abs=0.25)


def test_a_uniform_density_has_its_peak_in_the_middle():
    peak = find_peak(known(lambda u: (0.0, np.zeros(2)), 2), np.array([-2.0, 0.7]))
    np.testing.assert_allclose(peak.t, 0.0, atol=0.2)
    np.testing.assert_allclose(peak.precision, np.eye(2), atol=0.05)
    assert peak.log_integral == pytest.approx(0.0, abs=0.03)


def test_a_precision_is_positive_where_the_density_is_not_concave():
    # A saddle of the energy between two minima: the start is at the top of one side.
    density = known(lambda u: (2.0 * np.cos(3 * u[0]), np.array([-6.0 * np.sin(3 * u[0])])))
    peak = find_peak(density, np.array([0.05]))
    assert peak.precision[0, 0] >= peaks.LEAST_CURVATURE - 1e-12
    assert abs(peak.t[0]) < 3


def test_steps_avoid_points_that_cannot_be_scored():
    def energy(u):
        if u[0] > 0.5:
            return math.inf, np.zeros(1)
        return 50.0 * (u[0] - 0.45) ** 2, np.array([100.0 * (u[0] - 0.45)])

    density = known(energy)
    peak = find_peak(density, np.array([-1.0]))
    assert density.coordinates(peak.t)[0] == pytest.approx(0.45, abs=0.1)
    assert density.value_and_slope(peak.t)[0] == peak.value


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_the_curvature_beside_points_that_cannot_be_scored(side):
    """The peak is a ten thousandth away from them, nearer than the step of difference quotients."""

    def energy(u):
        if side * u[0] > 0.5:
            return math.inf, np.zeros(1)
        return 50.0 * (u[0] - 0.5 * side) ** 2, np.array([100.0 * (u[0] - 0.5 * side)])

    density = known(energy)
    start = side * (norm.ppf(0.625) - 1e-4)
    peak = find_peak(density, density.coordinates(np.array([start])))
    expected = negative_hessian(density, np.array([start - 0.01 * side]))
    np.testing.assert_allclose(peak.precision, expected, rtol=0.1)


def test_the_curvature_between_points_that_cannot_be_scored_is_that_of_a_uniform_density():
    density = known(lambda u: (0.0 if abs(u[0]) < 1e-4 else math.inf, np.zeros(1)))
    np.testing.assert_allclose(find_peak(density, np.zeros(1)).precision, 1.0)


def test_a_start_that_cannot_be_scored():
    peak = find_peak(known(lambda u: (math.inf, np.zeros(1))), np.array([0.3]))
    assert peak.value == -math.inf
    assert np.isfinite(peak.precision).all()


# -- Curvatures of searches.

SEARCHES = {
    "positive": ({"kernel.bandwidth": (0.05, 5.0), "gamma": (1e-3, 1.0), "eta": (0.01, 100.0)}, None),
    "flat": ({"kernel.bandwidth": (0.05, 5.0), "gamma": (1e-3, 1.0)}, "flat"),
    "signed": (
        {"rate": (-2.0, 6.0), "gamma": (1e-3, 1.0), "eta": (0.01, 100.0)},
        {"rate": ps.priors.Normal(2, 1), "gamma": ps.priors.Normal(0.1, 0.1)},
    ),
}


@pytest.mark.parametrize("case", SEARCHES)
def test_the_curvature_of_a_search_is_transformed(case):
    over, given = SEARCHES[case]
    (dx,) = ps.partials(ps.Box(x=(0, 1)))
    model = line_model(kernel=ps.RBF(0.3), operator=dx + ps.parameter("rate", 1.0), rho=0.5)
    best = ps.minimize(model, over, score="joint")
    assert not best.at_bounds
    space = best.end.space
    density = HyperparameterDensity(space, best.score, _priors(space, given), best.end.warm_start)
    t = density.inside(best.end.u)
    _, slope = density.value_and_slope(t)
    transformed = peaks._transformed(density, t, slope, best.curvature)
    scale = np.sqrt(np.abs(np.diag(transformed)))
    expected = negative_hessian(density, t)
    np.testing.assert_allclose(transformed / np.outer(scale, scale), expected / np.outer(scale, scale), atol=2e-3)
    differences = peaks._by_differences(density, t, slope)
    np.testing.assert_allclose(differences / np.outer(scale, scale), expected / np.outer(scale, scale), atol=2e-2)
    with_it, without = find_peak(density, best.end.u, best.curvature), find_peak(density, best.end.u)
    assert with_it.log_integral == pytest.approx(without.log_integral, abs=0.1)
    assert with_it.evaluations < without.evaluations


def test_a_start_that_rounding_forbids_is_left():
    """At the start itself there is no score; beside it there is."""
    free = normal(np.array([0.2, -0.1]), np.array([[30.0, 5.0], [5.0, 20.0]]))
    density = known(lambda u: (math.inf, u) if np.allclose(u, [0.2, -0.1], atol=1e-6) else free(u), 2)
    found = find_peak(density, np.array([0.2, -0.1]))
    expected = find_peak(known(free, 2), np.array([0.2, -0.1]))
    assert found.value == pytest.approx(expected.value, abs=0.02)
    np.testing.assert_allclose(found.precision, expected.precision, rtol=0.05)


def test_negative_curvatures_by_rounding_are_measured_by_values():
    """The search has returned a matrix that rounding has made indefinite; the density is steep along all axes."""
    precision = np.array([[400.0, 150.0], [150.0, 900.0]])
    density = known(normal(np.array([0.2, -0.1]), precision), 2)
    wrong = Curvature(NAMES[:2], np.diag([-1e4, 3.0]), dict.fromkeys(NAMES[:2], math.nan), (), np.full((2, 2), np.nan))
    found = find_peak(density, np.array([0.2, -0.1]), wrong)
    expected = find_peak(density, np.array([0.2, -0.1]))
    np.testing.assert_allclose(found.precision, expected.precision, rtol=0.2)
    assert found.log_integral == pytest.approx(expected.log_integral, abs=0.1)


def test_a_start_without_any_score_has_no_peak():
    found = find_peak(known(lambda u: (math.inf, u), 2), np.zeros(2))
    assert found.value == -math.inf
    assert found.evaluations < 20


def test_eigenvalues_of_very_different_sizes():
    """The least one rounds to zero beside the largest."""
    steep = known(normal(np.zeros(2), np.array([[1e20, 9.99999999e19], [9.99999999e19, 1e20]])), 2)
    precision = np.array([[1e20, 1e20], [1e20, 1e20]])
    assert peaks._steep_along_flat_axes(steep, np.zeros(2), 0.0, precision)[1] == 2
