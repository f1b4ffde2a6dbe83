"""Quadrature rules against closed-form integrals of monomials, exponentials and trigonometric sums."""

import subprocess
import sys

import jaxtyping
import numpy as np
import pytest

from pilescore.domains.quadrature import (
    Chebyshev,
    ClenshawCurtis,
    Fejer,
    GaussLegendre,
    MonteCarlo,
    Rule,
    Sobol,
    TensorRule,
)
from pilescore.errors import InputError

FAMILIES = [GaussLegendre, Chebyshev, Fejer, ClenshawCurtis]


@pytest.fixture
def unchecked(monkeypatch):
    """Turn off the type checks of the test suite: users run without them and must see the package's own errors."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def moment(rule: Rule, degree: int) -> float:
    """Return the rule's value of ∫ x^degree over [-1, 1] (x = 2u − 1; odd degrees vanish)."""
    points, weights = rule.unit(1)
    return float(2 * weights @ (2 * points[:, 0] - 1) ** degree)


def exact(degree: int) -> float:
    return 0.0 if degree % 2 else 2 / (degree + 1)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 13])
def test_gauss_legendre_is_exact_to_degree_2n_minus_1_and_no_further(n):
    rule = GaussLegendre(n)
    for degree in range(2 * n):
        assert moment(rule, degree) == pytest.approx(exact(degree), abs=2e-15 * n)
    # The error at degree 2n is ∫ of the monic Legendre polynomial squared, 2^(2n+1) n!⁴ / ((2n+1) (2n)!²).
    error = exact(2 * n) - moment(rule, 2 * n)
    norm = 2 ** (2 * n + 1) / (2 * n + 1) / np.prod([(n + k) / k for k in range(1, n + 1)]) ** 2
    assert error == pytest.approx(norm, rel=1e-6, abs=1e-15)
    if n <= 5:
        assert error > 1e-4


@pytest.mark.parametrize("family", [Fejer, ClenshawCurtis])
@pytest.mark.parametrize("n", [2, 3, 4, 7, 12])
def test_fejer_and_clenshaw_curtis_are_exact_to_degree_n_minus_1(family, n):
    for degree in range(n):
        assert moment(family(n), degree) == pytest.approx(exact(degree), abs=1e-14)
    first_even = n if n % 2 == 0 else n + 1  # an odd degree is exact by symmetry
    assert abs(moment(family(n), first_even) - exact(first_even)) > 1e-6


def test_known_nodes_and_weights():
    points, weights = ClenshawCurtis(5).unit(1)
    np.testing.assert_allclose(2 * weights, [1 / 15, 8 / 15, 12 / 15, 8 / 15, 1 / 15], rtol=1e-14)
    assert points[0, 0] == 0.0
    assert points[-1, 0] == 1.0
    points, weights = Fejer(3).unit(1)
    np.testing.assert_allclose(2 * points[:, 0] - 1, [-np.sqrt(3) / 2, 0, np.sqrt(3) / 2], atol=1e-15)
    np.testing.assert_allclose(2 * weights, [4 / 9, 10 / 9, 4 / 9], rtol=1e-14)
    np.testing.assert_array_equal(Chebyshev(3).unit(1)[0], points)


def test_chebyshev_converges_to_the_arcsine_mean_and_not_to_lebesgue():
    # The Chebyshev–Gauss rule is exact to degree 2n − 1 for the arcsine measure: E x⁴ = 3/8.
    assert moment(Chebyshev(3), 4) / 2 == pytest.approx(3 / 8, rel=1e-14)
    assert moment(Chebyshev(400), 2) / 2 == pytest.approx(1 / 2, rel=1e-13)
    assert moment(Fejer(400), 2) / 2 == pytest.approx(1 / 3, rel=1e-13)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", [2, 3, 8, 65, 150])
def test_interval_rules_ascend_in_the_unit_interval_with_positive_symmetric_weights(family, n):
    points, weights = family(n).unit(1)
    assert points.shape == (n, 1)
    assert points.dtype == weights.dtype == np.float64
    assert np.all(np.diff(points[:, 0]) > 0)
    assert points.min() >= 0
    assert points.max() <= 1
    assert weights.min() > 0
    assert weights.sum() == pytest.approx(1, rel=1e-13)
    np.testing.assert_allclose(weights, weights[::-1], rtol=1e-9)
    np.testing.assert_allclose(points, 1 - points[::-1], atol=1e-14)


RULES = [family(4) for family in FAMILIES] + [
    TensorRule(GaussLegendre(3), Fejer(4), ClenshawCurtis(2)),
    Sobol(32),
    MonteCarlo(37),
    GaussLegendre((2, 3, 4)),
]


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("periodic", [None, (False, True, True)])
def test_cube_rules_have_positive_weights_that_sum_to_one(rule, periodic):
    points, weights = rule.unit(3, periodic)
    assert points.shape == (len(weights), 3)
    assert weights.min() > 0
    assert weights.sum() == pytest.approx(1, rel=1e-13)
    assert points.min() >= 0
    assert points.max() <= 1
    assert len(np.unique(points, axis=0)) == len(points)


def test_sizes_for_each_axis_in_order_the_last_varying_fastest():
    points, weights = GaussLegendre((2, 3)).unit(2)
    assert [len(np.unique(column)) for column in points.T] == [2, 3]
    assert points[0, 0] == points[1, 0]
    assert points[0, 1] < points[1, 1]
    # x³ y⁵ is within the exactness of two and three nodes, x⁴ is not.
    assert weights @ (points[:, 0] ** 3 * points[:, 1] ** 5) == pytest.approx(1 / 24, rel=1e-14)
    assert abs(weights @ points[:, 0] ** 4 - 1 / 5) > 1e-3
    same = TensorRule(GaussLegendre(2), GaussLegendre(3)).unit(2)
    np.testing.assert_array_equal(points, same[0])
    np.testing.assert_array_equal(weights, same[1])


def test_tensor_mixes_families():
    points, weights = TensorRule(ClenshawCurtis(2), GaussLegendre(2)).unit(2)
    np.testing.assert_allclose(points[:, 0], [0, 0, 1, 1])
    assert weights @ (points[:, 0] * points[:, 1] ** 3) == pytest.approx(1 / 8, rel=1e-14)


@pytest.mark.parametrize("rule", [f(7) for f in FAMILIES] + [TensorRule(ClenshawCurtis(7))], ids=repr)
def test_a_periodic_axis_integrates_trigonometric_sums_of_degree_below_n(rule):
    points, weights = rule.unit(1, (True,))
    for k in range(1, 7):
        wave = np.exp(2j * np.pi * k * points[:, 0])
        assert abs(weights @ wave) < 1e-14
    assert abs(weights @ np.exp(2j * np.pi * 7 * points[:, 0])) == pytest.approx(1)
    assert rule.unit(2 if rule.axes is None else 1, (False,) * (2 if rule.axes is None else 1))[0][0, 0] != points[0, 0]


@pytest.mark.parametrize("rule", [GaussLegendre(4), GaussLegendre(()), TensorRule(), Sobol(8), MonteCarlo(9)], ids=repr)
def test_dimension_zero_is_one_empty_point_of_weight_one(rule):
    points, weights = rule.unit(0)
    assert points.shape == (1, 0)
    np.testing.assert_array_equal(weights, [1.0])


def test_monte_carlo_error_is_its_standard_error():
    # f = Π (1 + (u_i − ½)) in 3-D: mean 1, variance (13/12)³ − 1.
    n, deviation = 2000, np.sqrt((13 / 12) ** 3 - 1)
    scores = []
    for seed in range(60):
        points, weights = MonteCarlo(n, seed).unit(3)
        scores.append((weights @ np.prod(points + 0.5, axis=1) - 1) / (deviation / np.sqrt(n)))
    # 60 standard normals: mean square 1 ± 0.18, mean 0 ± 0.13; bounds at four standard deviations.
    assert 0.3 < np.mean(np.square(scores)) < 1.75
    assert abs(np.mean(scores)) < 0.52


def test_sobol_converges_faster_than_monte_carlo():
    def errors(size):
        found = []
        for seed in range(8):
            points, weights = Sobol(size, seed).unit(3)
            found.append(weights @ np.exp(points.sum(axis=1)) - (np.e - 1) ** 3)
        return np.sqrt(np.mean(np.square(found)))

    coarse, fine = errors(64), errors(4096)
    assert coarse < 0.1
    assert fine < coarse / 20  # 64 times the points: Monte Carlo would gain a factor of 8
    assert fine < 0.1 * 2.5 / np.sqrt(4096)  # σ(f) is about 2.5


@pytest.mark.parametrize("family", [Sobol, MonteCarlo])
def test_seeds_and_streams_are_reproducible_and_different(family):
    first = family(16, seed=3).unit(2)[0]
    np.testing.assert_array_equal(first, family(16, 3).unit(2)[0])
    assert not np.any(first == family(16, 4).unit(2)[0])
    rule = family(16, 3)
    assert rule.independent(0) == rule
    assert len({rule.independent(i) for i in range(20)}) == 20
    assert rule.independent(5) == family(16, 3).independent(5)
    assert rule.independent(5) != family(16, 4).independent(5)


def test_sobol_points_are_balanced():
    points, _ = Sobol(64, seed=9).unit(2)
    for column in points.T:
        np.testing.assert_array_equal(np.bincount((64 * column).astype(int), minlength=64), 1)


def test_sampling_leaves_the_global_generator_alone():
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    MonteCarlo(8).unit(2)
    Sobol(8).unit(2)
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_importing_the_rules_does_not_import_scipy_stats():
    code = "import sys, pilescore.domains; sys.exit('scipy.stats' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_resized():
    assert GaussLegendre(13).resized(2) == GaussLegendre(26)
    assert Fejer((3, 8)).resized(0.5) == Fejer((2, 4))
    assert GaussLegendre(13).resized((2, 1)) == GaussLegendre((26, 13))
    assert Fejer((3, 8)).resized([1.5, 0.5]) == Fejer((4, 4))
    assert GaussLegendre(1).resized(0.1) == GaussLegendre(1)
    assert ClenshawCurtis(3).resized(0.1) == ClenshawCurtis(2)
    assert TensorRule(GaussLegendre(3), Chebyshev(4)).resized(1.5) == TensorRule(GaussLegendre(4), Chebyshev(6))
    assert MonteCarlo(10, seed=2).resized(3) == MonteCarlo(90, seed=2)
    assert MonteCarlo(10).resized(0.01) == MonteCarlo(1)
    assert Sobol(64, seed=5).resized(2) == Sobol(256, seed=5)
    assert Sobol(64).resized(1.5) == Sobol(128)
    assert Sobol(2).resized(0.1) == Sobol(1)


def test_without_an_axis():
    assert GaussLegendre((3, 4, 5)).without(1) == GaussLegendre((3, 5))
    assert GaussLegendre(3).without(1) == GaussLegendre(3)
    assert TensorRule(Fejer(3), Chebyshev(4)).without(1) == TensorRule(Fejer(3))
    assert Sobol(8, 1).without(0) == Sobol(8, 1)
    assert GaussLegendre((3,)).without(0).unit(0)[0].shape == (1, 0)


def test_axes_and_sampled():
    assert [rule.axes for rule in (Fejer(3), Fejer((3, 4)), TensorRule(Fejer(3)), Sobol(4))] == [None, 2, 1, None]
    assert [rule.sampled for rule in (Fejer(3), TensorRule(), Sobol(4), MonteCarlo(4))] == [
        False,
        False,
        True,
        True,
    ]


def test_rules_are_values():
    assert Fejer(3) != Chebyshev(3)
    assert len({GaussLegendre(3), GaussLegendre(3), GaussLegendre(4), Sobol(4), Sobol(4, 1)}) == 4
    assert repr(GaussLegendre(13)) == "GaussLegendre(13)"
    assert repr(Fejer((3, 4))) == "Fejer((3, 4))"
    assert repr(Sobol(8, seed=2)) == "Sobol(8, seed=2)"
    assert repr(MonteCarlo(9)) == "MonteCarlo(9, seed=0)"
    assert repr(TensorRule(Fejer(3), Chebyshev(2))) == "TensorRule(Fejer(3), Chebyshev(2))"
    with pytest.raises(AttributeError):
        GaussLegendre(3).size = 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussLegendre(0), "GaussLegendre size: expected an integer of at least 1; got 0"),
        (lambda: GaussLegendre(2.0), "GaussLegendre size: expected an integer of at least 1; got 2.0"),
        (lambda: GaussLegendre(True), "GaussLegendre size"),
        (lambda: Fejer((3, 0)), "Fejer size on axis 1: .* got 0"),
        (lambda: ClenshawCurtis(1), "ClenshawCurtis size: expected an integer of at least 2; got 1"),
        (lambda: ClenshawCurtis((2, 1)), "ClenshawCurtis size on axis 1"),
        (lambda: Sobol(100), "Sobol size: expected a power of two; the next one is 128; got 100"),
        (lambda: Sobol(0), "Sobol size: expected an integer of at least 1"),
        (lambda: Sobol(8, seed=-1), "Sobol seed"),
        (lambda: MonteCarlo(0), "MonteCarlo size"),
        (lambda: MonteCarlo(4, seed=1.5), "MonteCarlo seed"),
        (lambda: TensorRule(3, 4), "TensorRule rule 0: expected a deterministic rule .* got 3"),
        (lambda: TensorRule(GaussLegendre(3), Sobol(4)), "TensorRule rule 1: expected a deterministic rule"),
        (lambda: TensorRule(GaussLegendre((3, 4))), "TensorRule rule 0: expected a deterministic rule for one axis"),
        (lambda: GaussLegendre((3, 4)).unit(3), r"GaussLegendre\(\(3, 4\)\): 2 sizes \(3, 4\) for 3 axes"),
        (lambda: TensorRule(Fejer(3)).unit(2), r"TensorRule\(Fejer\(3\)\): 1 rules for 2 axes"),
        (lambda: GaussLegendre(3).unit(-1), "dimension: expected an integer of at least 0"),
        (lambda: Sobol(4).unit(-1), "dimension"),
        (lambda: GaussLegendre(3).unit(2, (True,)), "periodic: expected one flag for each of the 2 axes"),
        (lambda: MonteCarlo(3).unit(2, (True,)), "periodic"),
        (lambda: GaussLegendre(3).resized(0), "factor: expected a positive number"),
        (lambda: Sobol(4).resized(-2.0), "factor"),
        (lambda: MonteCarlo(4).resized(np.nan), "factor"),
        (lambda: GaussLegendre((3, 4)).without(2), "axis: expected an axis below 2"),
        (lambda: TensorRule(Fejer(3)).without(-1), "axis"),
    ],
)
def test_bad_input(make, message, unchecked):
    with pytest.raises(InputError, match=message):
        make()


def test_lists_and_numpy_integers_are_sizes(unchecked):
    assert GaussLegendre([3, np.int64(4)]) == GaussLegendre((3, 4))
    assert GaussLegendre(np.int64(3)) == GaussLegendre(3)
    assert Sobol(np.int64(8), np.int64(1)) == Sobol(8, 1)


def test_rule_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Rule()
