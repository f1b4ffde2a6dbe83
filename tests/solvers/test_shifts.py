"""Scores of `A + t diag(d)` against plain factorisations and high precision, and clear failures."""

import dataclasses

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilescore.errors import InputError
from pilescore.solvers import shifts as module
from pilescore.solvers.lapack import NotFactorableError, cholesky
from pilescore.solvers.shifts import reduce_shifted

SHIFTS = 10.0 ** np.arange(-5, 6)


def lower(full):
    """Return only the lower triangle; the upper one must not be read."""
    return np.asfortranarray(np.where(np.tri(len(full), dtype=bool), full, 1e308))


def case(n, fixed, decades=2.0, seed=0):
    """A well-conditioned `A`, `d` over some decades with zeros in `fixed` random rows, and `y`."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((n, n))
    d = 10.0 ** rng.uniform(-decades, 0.0, n)
    d[rng.permutation(n)[:fixed]] = 0.0
    return a @ a.T / n + np.eye(n), d, rng.standard_normal(n)


def smooth(n, fixed, decades):
    """Nearly singular `A`: smooth kernel, and noise on the fixed rows alone."""
    _, d, y = case(n, fixed, decades)
    x = np.linspace(0.0, 1.0, n)
    A = np.exp(-0.5 * ((x[:, None] - x) / 0.3) ** 2)
    return A + np.diag(np.where(d == 0.0, 1e-3, 0.0)), d, np.sin(5.0 * x) + 1e-3 * y


def exact(A, d, y, t):
    """Return the quadratic form, the log determinant and `α` from the same doubles, as mpmath's numbers."""
    C = mpmath.matrix(A.tolist()) + mpmath.mpf(float(t)) * mpmath.diag(d.tolist())
    factor = mpmath.cholesky(C)
    alpha = mpmath.cholesky_solve(C, mpmath.matrix(y.tolist()))
    quadratic = sum(a * mpmath.mpf(v) for a, v in zip(alpha, y.tolist(), strict=True))
    return quadratic, 2 * sum(mpmath.log(factor[i, i]) for i in range(len(d))), alpha


@pytest.mark.parametrize(("n", "fixed"), [(1, 0), (2, 0), (2, 1), (9, 8), (30, 0), (30, 11), (300, 40)])
def test_scores_agree_with_plain_factorisations(n, fixed):
    A, d, y = case(n, fixed)
    found = reduce_shifted(lower(A), d, y).scores(SHIFTS)
    for k, t in enumerate(SHIFTS):
        factor = cholesky(np.asfortranarray(A + t * np.diag(d)))
        alpha, rounding = factor.solve_with_rounding(y)
        assert found.quadratic[k] == pytest.approx(y @ alpha, rel=1e-11)
        assert found.logdet[k] == pytest.approx(factor.logdet, rel=1e-11, abs=1e-11)
        np.testing.assert_allclose(found.alpha[:, k], alpha, rtol=1e-9, atol=1e-11 * np.abs(alpha).max())
        assert 0.01 * rounding <= found.rounding[k] <= 1e-9


def test_few_and_many_shifts_agree():
    """Reflections are applied one by one to few vectors, and in blocks to many."""
    A, d, y = case(60, 7)
    reduced = reduce_shifted(lower(A), d, y)
    shifts = np.geomspace(1e-3, 1e3, 2 * module.SMALLEST_BLOCKED)
    many = reduced.scores(shifts).alpha
    few = np.concatenate([reduced.scores(part).alpha for part in np.array_split(shifts, 4)], axis=1)
    np.testing.assert_allclose(many, few, rtol=1e-10, atol=1e-13)
    assert reduced.scores(shifts[:0]).alpha.shape == (60, 0)


def test_a_small_case_to_fifty_digits():
    A, d, y = case(6, 2)
    found = reduce_shifted(lower(A), d, y).scores(SHIFTS)
    with mpmath.workdps(50):
        for k, t in enumerate(SHIFTS):
            quadratic, logdet, alpha = exact(A, d, y, t)
            assert found.quadratic[k] == pytest.approx(float(quadratic), rel=2e-14)
            assert found.logdet[k] == pytest.approx(float(logdet), rel=2e-14, abs=2e-14)
            np.testing.assert_allclose(found.alpha[:, k], np.array(alpha.tolist(), dtype=float)[:, 0], rtol=1e-12)


@pytest.mark.parametrize(("fixed", "decades"), [(0, 0.0), (0, 4.0), (6, 0.0), (6, 4.0)])
def test_the_estimate_of_rounding_bounds_the_true_error(fixed, decades):
    A, d, y = smooth(20, fixed, decades)
    shifts = 10.0 ** np.arange(-9, 2, 2)
    found = reduce_shifted(lower(A), d, y).scores(shifts)
    assert found.rounding[0] > 1e6 * found.rounding[-1]
    with mpmath.workdps(50):
        true = [sum(exact(A, d, y, t)[:2]) for t in shifts]
        got = zip(found.quadratic.tolist(), found.logdet.tolist(), strict=True)
        error = np.array([float(abs(mpmath.mpf(q) + ld - v)) for (q, ld), v in zip(got, true, strict=True)])
    assert (error <= 2.0 * found.rounding).all()
    assert (error >= 1e-3 * found.rounding).any()


def test_shifts_below_rounding_have_an_infinite_error():
    reduced = reduce_shifted(lower(smooth(20, 0, 0.0)[0]), np.ones(20), np.ones(20))
    assert (reduced.scores(10.0 ** np.arange(-18.0, -14.0, 0.1)).rounding > 0.1).all()
    negative = dataclasses.replace(reduced, eigenvalues=np.append(reduced.eigenvalues[1:], -2.0))
    assert np.isinf(negative.scores(np.array([1.0, 3.0])).rounding).tolist() == [True, False]


def test_a_failing_fixed_row_is_named_in_the_given_order():
    A, d, y = np.eye(9), np.ones(9), np.ones(9)
    d[[1, 4, 7]] = 0.0
    A[7, 4] = A[4, 7] = 2.0
    with pytest.raises(NotFactorableError) as caught:
        reduce_shifted(lower(A), d, y)
    assert caught.value.row == 7


@pytest.mark.parametrize("fixed", [0, 3])
def test_shifts_without_a_positive_definite_covariance_are_nan(fixed):
    A, d, y = case(12, fixed, decades=0.0)
    row = np.flatnonzero(d)[0]
    A[row, row] -= 10.0
    found = reduce_shifted(lower(A), d, y).scores(np.array([1.0, 100.0]))
    single = reduce_shifted(lower(A), d, y).scores(np.array([100.0]))
    for name in ("quadratic", "logdet", "alpha"):
        np.testing.assert_array_equal(np.isnan(np.atleast_2d(getattr(found, name))).all(axis=0), [True, False])
        np.testing.assert_allclose(getattr(found, name)[..., 1:], getattr(single, name), rtol=1e-12)
    assert found.rounding[0] == np.inf
    assert found.rounding[1] < 1e-10


def test_nan_and_infinity_are_not_masked():
    A, d, y = case(8, 2)
    A[np.flatnonzero(d)[3], np.flatnonzero(d)[1]] = np.nan
    found = reduce_shifted(lower(A), d, y).scores(SHIFTS)
    assert np.isnan([found.logdet, found.quadratic]).all()
    assert (found.rounding == np.inf).all()
    with pytest.raises(InputError, match="spread"):
        reduce_shifted(np.eye(2, order="F"), np.array([1.0, np.nan]), np.ones(2))


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.data())
@settings(max_examples=25)
def test_the_order_of_rows_changes_nothing(seed, n, data):
    A, d, y = case(n, data.draw(st.integers(0, n - 1)), seed=seed)
    order = np.array(data.draw(st.permutations(range(n))))
    first = reduce_shifted(lower(A), d, y).scores(SHIFTS)
    second = reduce_shifted(lower(A[np.ix_(order, order)]), d[order], y[order]).scores(SHIFTS)
    np.testing.assert_allclose(second.quadratic, first.quadratic, rtol=1e-11)
    np.testing.assert_allclose(second.logdet, first.logdet, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(second.alpha, first.alpha[order], rtol=1e-8, atol=1e-11)
