"""The dense solver: panels against LAPACK, rounding estimates against high precision, clear failures."""

import mpmath
import numpy as np
import psutil
import pytest

import pilescore as ps
from pilescore.covariance.gram import covariance
from pilescore.covariance.tiles import layout
from pilescore.parallel import resources
from pilescore.solvers import lapack as linalg
from pilescore.solvers.system import solve


def matrix(n, seed=0):
    a = np.random.default_rng(seed).standard_normal((n, n))
    return np.asfortranarray(np.tril(a @ a.T + n * np.eye(n)))


def full(lower):
    return lower + np.tril(lower, -1).T


@pytest.mark.parametrize(("n", "width"), [(1, 4), (7, 3), (12, 4), (13, 4), (30, 7)])
def test_panels_agree_with_numpy(n, width):
    lower = matrix(n)
    work = lower.copy(order="F")
    linalg._panel_cholesky(work, width)
    np.testing.assert_allclose(np.tril(work), np.linalg.cholesky(full(lower)), rtol=1e-12, atol=1e-13)
    inverse = linalg._panel_inverse(work, width)
    np.testing.assert_allclose(np.tril(inverse), np.tril(np.linalg.inv(full(lower))), rtol=1e-10, atol=1e-13)


def test_large_matrices_go_through_panels(monkeypatch):
    monkeypatch.setattr(linalg, "LARGEST_THREADED", 20)
    lower = matrix(50)
    factor = linalg.cholesky(lower.copy(order="F"))
    np.testing.assert_allclose(factor.logdet, np.linalg.slogdet(full(lower))[1], rtol=1e-12)
    np.testing.assert_allclose(np.tril(factor.invert()), np.tril(np.linalg.inv(full(lower))), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("n", [20, 21, 50])
def test_products_of_many_rows_with_themselves_go_through_panels(monkeypatch, n, order):
    monkeypatch.setattr(linalg, "LARGEST_THREADED", 20)
    monkeypatch.setattr(linalg, "PANEL", 7)
    a = np.asarray(np.random.default_rng(0).standard_normal((n, 5)), order=order)
    np.testing.assert_allclose(linalg.self_product(a), np.einsum("ik,jk->ij", a, a), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("width", [2, 3, 100])
def test_the_failing_row_is_found_in_any_panel(width):
    lower = np.asfortranarray(np.eye(7))
    lower[5, 5] = -1.0
    with pytest.raises(linalg.NotFactorableError) as caught:
        linalg._panel_cholesky(lower, width) if width < 7 else linalg.cholesky(lower)
    assert caught.value.row == 5


def test_solves_and_condition():
    lower = matrix(40)
    factor = linalg.cholesky(lower.copy(order="F"))
    b = np.random.default_rng(1).standard_normal((40, 3))
    np.testing.assert_allclose(factor.solve(b), np.linalg.solve(full(lower), b), rtol=1e-10)
    half = factor.half_solve(np.asfortranarray(b))
    np.testing.assert_allclose(half.T @ half, b.T @ np.linalg.solve(full(lower), b), rtol=1e-9)
    spread = np.asfortranarray(np.diag(np.geomspace(1, 1e6, 40)))
    assert 0.5e6 < linalg.cholesky(spread).condition() <= 1.001e6


def ill_conditioned(noise):
    x = np.linspace(0, 1, 40)
    return ps.Model(ps.RBF(0.3), ps.observe(ps.identity, np.sin(5 * x) + 0.1 * x, x), gamma=2 * noise)


@pytest.mark.parametrize("noise", [1e-2, 1e-4, 1e-6, 1e-8, 1e-10, 1e-12])
def test_the_estimate_of_rounding_bounds_the_true_error(noise):
    """Against 60-digit arithmetic on the same matrix of doubles: an upper bound, and not absurdly loose."""
    model = ill_conditioned(noise)
    system = solve(model)
    rows = layout(model.blocks)
    C = np.tril(covariance(model.kernel, rows, 1.0))
    C[np.diag_indices(40)] += model.noise[rows.order]
    with mpmath.workdps(60):
        exact = mpmath.matrix(full(C).tolist())
        factor = mpmath.cholesky(exact)
        logdet = 2 * sum(mpmath.log(factor[i, i]) for i in range(40))
        y = mpmath.matrix(system.values.tolist())
        quadratic = (y.T * mpmath.cholesky_solve(exact, y))[0]
        value = float((logdet + quadratic) / 40 + mpmath.log(2 * mpmath.pi))
    got = system.quadratic / 40 + system.factor.logdet / 40 + np.log(2 * np.pi)
    error = abs(got - value)
    assert error <= max(system.rounding, 4e-16 * abs(value))
    assert system.rounding <= 1e-13 + 2e5 * max(error, 1e-16 * abs(value))


def test_blas_threads_are_restored_in_any_order_of_exit():
    libraries = resources._blas_libraries()
    before = [library.get_num_threads() for library in libraries]
    first, second = resources.threads(10), resources.threads(10)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert [library.get_num_threads() for library in libraries] == [1] * len(libraries)
    second.__exit__(None, None, None)
    assert [library.get_num_threads() for library in libraries] == before


def test_loss_of_digits_warns_and_names_the_block():
    with pytest.warns(ps.errors.PrecisionWarning) as caught:
        ps.pile(ill_conditioned(1e-13))
    text = str(caught[0].message)
    for part in ("condition number about", "'data.0'", "raise gamma of 'data.0' (now 2.0e-13)", "bandwidth"):
        assert part in text


def test_failure_names_block_condition_and_remedy():
    square = ps.Box(x=(-1, 1), y=(-1, 1))
    nodes = square.interior(ps.GaussLegendre(12))
    twice = ps.domains.nodes_at(np.vstack([nodes.points, nodes.points]), np.tile(nodes.weights, 2), names=("x", "y"))
    model = ps.Model(
        kernel=ps.RBF(2.0),
        data=ps.observe(ps.identity, 0.0, at=[[0.0, 0.0]], name="probe"),
        physics=ps.impose(ps.laplacian(square), 1.0, on=twice),
        rho=1e-18,
    )
    with pytest.raises(ps.errors.NotPositiveDefiniteError) as caught:
        ps.pile(model)
    text = str(caught.value)
    for part in (
        "289 observations",
        "block 'physics.0' (∂x² + ∂y²)",
        "condition number of",
        "nearly dependent rows are in block 'physics.0' (100%)",
        "raise gamma of 'probe' (now 1.0e+00) or rho of 'physics.0' (now 1.0e-18)",
        "shorten the kernel's bandwidth",
        "thin the 144 coincident points in 'physics.0'",
    ):
        assert part in text, (part, text)


def test_nothing_is_added_to_the_diagonal():
    """Two coincident noisy observations: the exact determinant, to the last digits."""
    model = ps.Model(ps.RBF(1.0), ps.observe(ps.identity, [1.0, 1.0], [[0.0], [0.0]]), gamma=2e-6)
    s = 1e-6
    expected = (np.log(s * (2 + s)) + 2 / (2 + s)) / 2 + np.log(2 * np.pi)
    assert ps.pile(model).value == pytest.approx(expected, rel=1e-10)


def test_nan_in_the_covariance_raises():
    kernel = ps.kernels.FunctionKernel(lambda x, y: (x[0] - 0.5) ** 2 * 0 / ((x[0] - 0.5) * 1.0))
    model = ps.Model(kernel, ps.observe(ps.identity, [1.0, 2.0], [[0.1], [0.5]]))
    with pytest.raises(ps.errors.InputError, match="NaN or infinite entries"):
        ps.pile(model)


def test_matrices_beyond_memory_are_refused_before_allocation(monkeypatch):
    class Little:
        available = 1e8

    monkeypatch.setattr(psutil, "virtual_memory", lambda: Little)
    x = np.linspace(0, 1, 20_000)
    model = ps.Model(ps.RBF(0.1), ps.observe(ps.identity, x, x))
    with pytest.raises(ps.errors.MemoryLimitError, match=r"N = 20000 observations needs 3\.2 GB, but only 0\.1 GB"):
        ps.pile(model)


def test_rounding_estimate_detects_coincident_points() -> None:
    """A probe with equal signs on two equal rows would miss their difference, which has no digits left."""
    twins = [0.5, 0.5, 0.1]
    model = ps.Model(ps.RBF(0.3), data=ps.observe(ps.identity, values=[1.0, 1.0, 1.0], at=twins), gamma=1e-13)
    with pytest.warns(ps.errors.PrecisionWarning):
        score = ps.pile(model)
    assert score.rounding > 1e-5


def test_an_empty_matrix_can_be_factored(capfd: pytest.CaptureFixture[str]) -> None:
    assert linalg.cholesky(np.empty((0, 0), order="F")).logdet == 0.0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("lock_free", [True, False])
def test_factors_and_inverses_overwrite_the_matrix(lock_free, monkeypatch):
    """LAPACK with 64-bit integers is called through SciPy's wrapper, also in place and with the same result."""
    if not lock_free:
        monkeypatch.setattr(linalg, "_has_int32_arguments", lambda signature: False)
        monkeypatch.setattr(linalg, "_unlocked_routine", linalg._unlocked_routine.__wrapped__)
    assert (linalg._unlocked_routine("dpotrf") is not None) == lock_free
    half = np.random.default_rng(0).standard_normal((30, 30))
    whole = half @ half.T + np.eye(30)
    work = np.asfortranarray(whole)
    address = work.ctypes.data
    factor = linalg.cholesky(work)
    assert factor.matrix.ctypes.data == address
    np.testing.assert_allclose(np.tril(work), np.linalg.cholesky(whole), rtol=1e-12)
    inverse = factor.invert()
    assert inverse.ctypes.data == address
    np.testing.assert_allclose(np.tril(work), np.tril(np.linalg.inv(whole)), rtol=1e-9, atol=1e-12)
    with pytest.raises(linalg.NotFactorableError):
        linalg.cholesky(np.diag([1.0, -1.0]).copy(order="F"))


def test_signatures_with_64_bit_integers_are_recognised():
    assert linalg._has_int32_arguments(
        b"void (char *, int *, __pyx_t_5scipy_6linalg_13cython_lapack_d *, int *, int *)"
    )
    for other in (
        b"void (char *, int64_t *, double *, int64_t *, int64_t *)",
        b"void (char *, long *, double *, long *)",
    ):
        assert not linalg._has_int32_arguments(other)


@pytest.mark.parametrize("given", [[0, 1, 2], [4, 5, 6], [1, 4, 6], [], list(range(7))])
def test_rows_that_come_first(given):
    """The lower triangle is that of the whole matrix in the other order; the upper one is never read."""
    rng = np.random.default_rng(0)
    whole = rng.standard_normal((7, 7))
    whole = whole + whole.T
    matrix = np.asfortranarray(np.where(np.tri(7) > 0, whole, np.nan))
    scored = np.setdiff1d(np.arange(7), given)
    order = np.array([*given, *scored], dtype=int)
    found = linalg._given_first(matrix, np.array(given, dtype=int), scored)
    np.testing.assert_array_equal(np.tril(found), np.tril(whole[np.ix_(order, order)]))
