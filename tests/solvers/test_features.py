"""Finite bases: densities by quadrature, features by autodiff, scores by dense NumPy, gradients by differences."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp

import pilescore as ps
from pilescore.covariance.gram import Weights
from pilescore.covariance.linear_operator import KernelCovariance, KernelTangent
from pilescore.covariance.tiles import assembly, layout
from pilescore.kernels.spectral_density import draw_frequencies, spectral_density
from pilescore.solvers import features as module
from pilescore.solvers.bases import FourierBasis, HilbertBasis, RandomFourierBasis, UserBasis
from pilescore.solvers.features import Features
from pilescore.solvers.lapack import Dense

square = ps.Box(x=(-1, 1), y=(-1, 1))
dx, dy = ps.partials(square)
CORNERS = ([-1.0, -1.0], [1.0, 1.0])


def of(model, eta=1.0):
    parts = assembly(model.blocks)
    noise = np.asarray(model.temperatures)[parts.block] * parts.spread
    return KernelCovariance(model.kernel, parts.rows, eta, parts.values, noise)


def poisson(kernel, strength=0.7, gamma=1e-2):
    points = np.random.default_rng(0).uniform(-1, 1, (30, 2))
    ends = ps.domains.nodes_at([[-0.5, 0.0]]), ps.domains.nodes_at([[0.5, 0.5]])
    return ps.Model(
        kernel,
        data=[
            ps.observe(ps.identity, np.sin(3 * points[:, 0]), at=points),
            ps.observe(ps.difference(*ends), [0.3]),
        ],
        physics=[
            ps.impose(
                dx**2 + ps.parameter("c", strength) * dy**2 + dx,
                lambda p: p[0],
                on=square.interior(ps.GaussLegendre(5)),
            ),
            ps.impose(ps.identity, 0.0, on=square.boundary(ps.GaussLegendre(3))),
        ],
        gamma=gamma,
        rho=1e-1,
    )


def line(kernel):
    domain, x = ps.Box(x=(0, 1)), np.linspace(0, 1, 12)
    (d,) = ps.partials(domain)
    source = ps.impose(d**2 + d, lambda p: jnp.sin(5 * p[0]), on=domain.interior(ps.GaussLegendre(20)))
    return ps.Model(kernel, data=ps.observe(ps.identity, np.sin(6 * x), at=x), physics=source, gamma=1e-2, rho=1e-1)


def dense(covariance):
    """Return `Φ` and the dense `C`."""
    phi = np.concatenate([covariance.features(part) for _, part in covariance.strips()])
    return phi, phi @ phi.T + np.diag(covariance.noise)


def full(matrix):
    return np.tril(matrix) + np.tril(matrix, -1).T


KERNELS = {
    "rbf": ps.RBF([0.4, 0.7]),
    "rotated": ps.AnisotropicRBF(theta=0.4, s=0.7, bandwidth=0.5),
    "full": ps.kernels.FullCovarianceRBF([[0.3, 0.1], [0.1, 0.2]]),
    "matern": ps.Matern(3.5, bandwidth=[0.5, 0.6]),
    "sum": 2.0 * ps.RBF(0.5) + ps.Matern(4.5, bandwidth=0.4),
    "mixture": ps.kernels.spectral_mixture([1.0, 0.5], [[0.3, 0.2], [0.1, 0.5]], [[0.5, 0.4], [0.6, 0.5]]),
    "groups": ps.Matern(3.5, bandwidth=0.5).on(0) * ps.RBF(0.4).on(1),
}


@pytest.mark.parametrize("name", KERNELS)
def test_densities_are_fourier_integrals(name):
    kernel = KERNELS[name]
    reach, n = 16.0, 800  # the trapezoidal rule, exact to rounding for what has vanished at the ends
    axis = np.linspace(-reach, reach, n, endpoint=False)
    delta = np.stack(np.meshgrid(axis, axis, indexing="ij"))
    values = np.asarray(jax.jit(lambda x: kernel(tuple(x), (0.0, 0.0)))(jnp.asarray(delta)))
    omega = np.array([[0.0, 0.0], [1.0, -0.5], [2.0, 3.0], [-1.5, 0.0]])
    waves = [np.exp(-1j * omega[:, k, None] * axis) for k in (0, 1)]
    integral = np.einsum("ma,ab,mb->m", waves[0], values, waves[1]).real * (2 * reach / n) ** 2
    np.testing.assert_allclose(spectral_density(kernel, omega), integral, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_density_of_rough_kernels_on_a_line(nu):
    kernel = ps.Matern(nu, bandwidth=0.7)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    t = np.concatenate([0.5 + 0.5 * nodes + k for k in range(25)])
    values = np.asarray(kernel((t,), (0.0,)))
    for w in (0.0, 1.3, 4.0):
        exact = float(np.sum(np.tile(weights, 25) * values * np.cos(w * t)))
        assert float(spectral_density(kernel, [[w]])[0]) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(
    "kernel",
    [ps.kernels.Linear(), ps.RBF(1.0) + ps.kernels.Constant(1.0), ps.RBF(0.3).on(0), ps.kernels.RationalQuadratic()],
)
def test_kernels_without_a_density_are_refused(kernel):
    with pytest.raises(ps.errors.InputError, match="known spectral density"):
        spectral_density(kernel, np.zeros((1, 2)))


BASES = {
    "fourier": FourierBasis(*CORNERS, count=[2, 3]),
    "hilbert": HilbertBasis(*CORNERS, count=[3, 4]),
    "random": RandomFourierBasis(7, seed=1),
    "user": UserBasis(lambda p: jnp.stack([jnp.sin(p[0] * p[1]), p[0] ** 3, jnp.exp(p[1])]), variances=[1.0, 2.0, 3.0]),
}


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [(2, 1), (0, 3)])
@pytest.mark.parametrize("name", BASES)
def test_derivatives_of_features_match_autodiff(name, alpha):
    basis = BASES[name]
    state = basis.state(ps.RBF([0.4, 0.7]), 2)

    def value(x, y):
        return basis.rows(state, (((0, 0),),), jnp.stack([x, y])[:, None], jnp.ones((1, 1)))[0]

    for axis, order in enumerate(alpha):
        for _ in range(order):
            value = jax.jacfwd(value, argnums=axis)
    points = np.array([[0.3, -0.8], [0.1, 0.9]])
    found = basis.rows(state, ((alpha,),), jnp.asarray(points), jnp.ones((1, 2)))
    expected = jax.jit(jax.vmap(value))(*points)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max() + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "basis"),
    [(name, FourierBasis(*CORNERS, count=14)) for name in ("rbf", "rotated")]
    + [("rbf", HilbertBasis(*CORNERS, count=28))],
)
def test_covariances_converge_to_the_kernel(name, basis):
    kernel = KERNELS[name]
    small = type(basis)(*CORNERS, count=[c // 4 for c in basis.count])
    errors = []
    for each in (small, basis):
        covariance = Features(each).covariance(of(poisson(kernel), eta=1.7))
        exact = full(covariance.full.dense())
        scale = np.sqrt(exact.diagonal())
        errors.append(np.abs((full(covariance.dense()) - exact) / np.outer(scale, scale)).max())
    assert errors[1] < 0.02  # of images one length away
    assert errors[1] < errors[0]


@pytest.mark.slow
def test_more_padding_and_functions_converge_to_the_kernel():
    model = line(ps.RBF(0.3))
    for basis in (FourierBasis(0.0, 1.0, count=30, padding=4.0), HilbertBasis(0.0, 1.0, count=60, padding=4.0)):
        found = Features(basis).factor(of(model))
        assert found.comparison.kernel < 1e-11
        assert abs(found.comparison.trace) < 1e-11
        assert abs(found.comparison.pile) < 1e-8


@pytest.mark.parametrize("name", ["rbf", "rotated", "matern", "sum", "mixture", "groups"])
def test_random_frequencies_have_the_kernel_as_their_mean(name):
    kernel, count = KERNELS[name], 40_000
    omega, variance = draw_frequencies(kernel, 2, count, np.random.default_rng(0))
    delta = np.array([[0.0, 0.0], [0.3, -0.2], [0.7, 0.5]])
    found = np.cos(delta @ np.asarray(omega).T) @ np.asarray(variance)
    exact = [float(kernel(tuple(each), (0.0, 0.0))) for each in delta]
    np.testing.assert_allclose(found, exact, atol=5 * exact[0] / np.sqrt(count))


def test_random_frequencies_of_mapped_points():
    kernel = ps.kernels.LinearMap(ps.RBF(0.5) + 2.0 * ps.RBF(1.0), [[1.0, 2.0]]) * ps.kernels.Cosine([0.2, 0.1])
    omega, variance = draw_frequencies(kernel, 2, 40_001, np.random.default_rng(0))
    delta = np.array([0.3, -0.4])
    found = float(np.cos(np.asarray(omega) @ delta) @ np.asarray(variance))
    assert found == pytest.approx(float(kernel(tuple(delta), (0.0, 0.0))), abs=0.05)


@pytest.mark.parametrize("name", BASES)
def test_scores_and_solutions_match_dense_matrices(name):
    given_covariance = of(poisson(ps.RBF([0.4, 0.7])), eta=1.3)
    found = Features(BASES[name]).factor(given_covariance)
    covariance = found.covariance
    phi, C = dense(covariance)
    y, rng = covariance.values, np.random.default_rng(1)
    assert found.logdet.value == pytest.approx(np.linalg.slogdet(C)[1], rel=1e-11)
    assert found.quadratic.value == pytest.approx(float(y @ np.linalg.solve(C, y)), rel=1e-9)
    assert found.logdet.width == found.quadratic.width == 0.0
    np.testing.assert_allclose(found.alpha, np.linalg.solve(C, y), rtol=1e-7, atol=1e-9)
    right = rng.standard_normal((len(y), 3))
    solved, apart = found.solve(right)
    np.testing.assert_allclose(solved, np.linalg.solve(C, right), rtol=1e-7, atol=1e-8)
    assert not apart.any()
    exact = right.T @ np.linalg.solve(C, right)
    np.testing.assert_allclose(found.reduced(right.copy()), exact, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.reduced_diagonal(right.copy()), exact.diagonal(), rtol=1e-9)
    alpha = np.linalg.solve(C, y)
    np.testing.assert_allclose(
        found.cotangent(2.0).diagonal, np.linalg.inv(C).diagonal() - alpha**2 / 2, rtol=1e-7, atol=1e-7
    )
    # the covariance as an operator
    np.testing.assert_allclose(full(covariance.dense()), phi @ phi.T, rtol=1e-12, atol=1e-11)
    np.testing.assert_allclose(covariance.product(right), phi @ (phi.T @ right), rtol=1e-10, atol=1e-9)
    which = rng.permutation(len(y))[:20]
    part, other = covariance.select(which), covariance.select(which[::-1][:7])
    block = (phi @ phi.T)[np.ix_(which, which[::-1][:7])]
    np.testing.assert_allclose(covariance.block(part, other), block, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(covariance.variances(part), (phi**2).sum(1)[which], rtol=1e-11)


@given(seed=st.integers(0, 1000), eta=st.floats(1e-4, 1e4), noise=st.floats(1e-4, 1e4), bandwidth=st.floats(0.1, 2.0))
@settings(max_examples=15)
def test_scores_of_any_scales(seed, eta, noise, bandwidth):
    start = of(poisson(ps.RBF(0.5)))
    rng = np.random.default_rng(seed)
    values, spread = rng.standard_normal(start.size), noise * np.exp(rng.standard_normal(start.size))
    covariance = KernelCovariance(ps.RBF(bandwidth), start.rows, eta, values, spread)
    found = Features(BASES["fourier"]).factor(covariance)
    _, C = dense(found.covariance)
    slack = 10 * found.error + 1e-14 * np.linalg.cond(C)
    assert abs(found.logdet.value - np.linalg.slogdet(C)[1]) <= slack * found.covariance.size
    assert found.quadratic.value == pytest.approx(float(values @ np.linalg.solve(C, values)), rel=slack + 1e-12)
    np.testing.assert_allclose(C @ found.alpha, values, rtol=1e-6, atol=1e-6 + slack)


def test_streamed_features_give_the_same_numbers(monkeypatch):
    given_covariance = of(poisson(ps.RBF(0.5)))
    kept = Features(BASES["fourier"]).factor(given_covariance)
    monkeypatch.setattr("pilescore.solvers.feature_covariance.ALWAYS_FITS_BYTES", 0.0)
    monkeypatch.setattr(module, "LARGEST_THREADED", 4)
    monkeypatch.setattr(module, "PANEL", 10)
    streamed = Features(BASES["fourier"]).factor(given_covariance)
    assert streamed.covariance._cached is None
    assert streamed.logdet.value == pytest.approx(kept.logdet.value, rel=1e-13)
    np.testing.assert_allclose(streamed.alpha, kept.alpha, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(streamed.cotangent(1.0).diagonal, kept.cotangent(1.0).diagonal, rtol=1e-9, atol=1e-9)


def contracted(found, tangent, scale):
    """The contraction, and the same with the dense `G`."""
    _, C = dense(found.covariance)
    inverse = np.linalg.inv(C)
    return found.cotangent(scale).contract(tangent), tangent.dense(Weights(inverse, found.alpha, scale))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("fourier", "rotated"),
        ("fourier", "sum"),
        ("hilbert", "matern"),
        ("random", "rotated"),
        ("random", "matern"),
        ("user", "rbf"),
    ],
)
def test_kernel_gradients_match_finite_differences(name, kernel):
    model = poisson(KERNELS[kernel])
    numbers, structure = jax.tree.flatten(model.kernel)
    leaves = list(range(len(numbers)))
    solver, scale = Features(BASES[name]), 1.4
    start = of(model, eta=1.3)

    def score(moved):
        kernel = jax.tree.unflatten(structure, moved)
        found = solver.factor(KernelCovariance(kernel, start.rows, 1.3, start.values, start.noise))
        return found.logdet.value + found.quadratic.value / scale

    found = solver.factor(start)
    tangent = found.covariance.tangent(leaves)
    gradient, by_dense = contracted(found, tangent, scale)
    np.testing.assert_allclose(gradient, by_dense, rtol=1e-7, atol=1e-8)
    expected = []
    for leaf, number in enumerate(numbers):
        for unit in np.eye(number.size):
            step = 1e-5 * unit.reshape(number.shape)
            ends = [score([*numbers[:leaf], number + sign * step, *numbers[leaf + 1 :]]) for sign in (1, -1)]
            expected.append((ends[0] - ends[1]) / 2e-5)
    np.testing.assert_allclose(gradient, expected, rtol=2e-5, atol=1e-5)
    # parts
    part, other = found.covariance.select(np.arange(40, 20, -1)), found.covariance.select(np.arange(5))
    weights = np.random.default_rng(0).standard_normal((20, 20))
    one = tangent.variances(part, weights.diagonal())
    np.testing.assert_allclose(one, tangent.block(part, part, np.diag(weights.diagonal())), rtol=1e-9, atol=1e-9)
    assert tangent.block(part, other, weights[:, :5]).shape == one.shape


def test_gradients_of_many_functions_match_the_kernel():
    model = line(1.5 * ps.RBF(0.3))
    covariance = of(model)
    basis = FourierBasis(0.0, 1.0, count=30, padding=4.0)
    found = Features(basis).factor(covariance)
    exact = (
        Dense().factor(covariance).cotangent(1.0).contract(KernelTangent(model.kernel, covariance.rows, 1.0, [0, 1]))
    )
    np.testing.assert_allclose(found.cotangent(1.0).contract(found.covariance.tangent([0, 1])), exact, rtol=1e-6)


@pytest.mark.parametrize("name", BASES)
def test_coefficient_gradients_match_finite_differences(name):
    model = poisson(ps.RBF(0.5))
    solver = Features(BASES[name])

    def score(c):
        found = solver.factor(of(poisson(ps.RBF(0.5), strength=c)))
        return found.logdet.value + found.quadratic.value

    tables = [np.zeros_like(block.coefficients) for block in model.blocks]
    tables[2][model.blocks[2].indices.index((0, 2))] = 1.0
    found = solver.factor(of(model))
    tangent = found.covariance.coefficient_tangent([layout(model.blocks, tables)])
    gradient, by_dense = contracted(found, tangent, 1.0)
    np.testing.assert_allclose(gradient, by_dense, rtol=1e-8)
    assert gradient[0] == pytest.approx((score(0.7 + 1e-5) - score(0.7 - 1e-5)) / 2e-5, rel=1e-6)


def test_a_basis_of_coordinates_is_the_linear_kernel():
    x = np.random.default_rng(0).standard_normal((40, 2))
    model = ps.Model(ps.kernels.Linear(), data=ps.observe(ps.identity, x @ [1.0, 2.0] + 0.1, at=x), gamma=0.2)
    found = Features(UserBasis(lambda p: p)).factor(of(model))
    exact = Dense().factor(of(model))
    assert found.logdet.value == pytest.approx(exact.logdet.value, rel=1e-12)
    assert found.quadratic.value == pytest.approx(exact.quadratic.value, rel=1e-11)
    assert found.comparison.kernel < 1e-12
    assert abs(found.comparison.pile) < 1e-11
    noise = found.covariance.noise[0]  # the textbook's formula
    ridge = np.linalg.solve(x.T @ x + noise * np.eye(2), x.T @ model.blocks[0].values)
    np.testing.assert_allclose(found.mean, ridge, rtol=1e-12)


def test_rounding_estimate_against_fifty_digits():
    """Nearly dependent features and little noise, so that digits are lost."""
    x = np.linspace(0, 1, 25)
    model = ps.Model(ps.RBF(1.0), data=ps.observe(ps.identity, np.cos(3 * x), at=x), gamma=1e-9)
    found = Features(UserBasis(lambda p: p[0] ** jnp.arange(9))).factor(of(model))
    with mp.workdps(50):
        phi = mp.matrix([[mp.mpf(float(a)) ** k for k in range(9)] for a in x])
        C = phi * phi.T + mp.diag([mp.mpf(float(s)) for s in found.covariance.noise])
        y = mp.matrix([mp.mpf(float(v)) for v in found.covariance.values])
        exact = mp.log(mp.det(C)) + (y.T * mp.lu_solve(C, y))[0]
        apart = abs(float(exact - mp.mpf(found.logdet.value) - mp.mpf(found.quadratic.value)))
    assert apart < found.error < 1e-2


@pytest.mark.slow
def test_the_distance_to_the_kernel_is_measured(monkeypatch):
    monkeypatch.setattr(module, "COMPARED_ROWS", 20)
    monkeypatch.setattr(module, "SCORED_ROWS", 30)
    model = poisson(ps.RBF(0.4))
    found = Features(FourierBasis(*CORNERS, count=4)).factor(of(model))
    exact = full(found.covariance.full.dense())
    phi, _ = dense(found.covariance)
    lacking = (exact.diagonal() - (phi**2).sum(1)).sum() / exact.diagonal().sum()
    assert found.comparison.trace == pytest.approx(lacking, rel=1e-10)
    assert 0.01 < found.comparison.trace < 1
    relative = np.abs(exact - phi @ phi.T) / np.sqrt(np.outer(exact.diagonal(), exact.diagonal()))
    assert 0 < found.comparison.kernel <= relative.max() * (1 + 1e-12)
    which, _ = found.comparison._sample(30)
    scores = []
    for Q in (phi @ phi.T, exact):
        C, y = (Q + np.diag(found.covariance.noise))[np.ix_(which, which)], found.covariance.values[which]
        scores.append((y @ np.linalg.solve(C, y) + np.linalg.slogdet(C)[1]) / 30)
    assert found.comparison.pile == pytest.approx(scores[0] - scores[1], rel=1e-8)
    assert "81 functions of FourierBasis" in found.account
    assert "(over 20 rows)" in found.account
    monkeypatch.setattr(module, "WIDEST", 1)
    none = Features(FourierBasis(*CORNERS, count=4)).factor(of(model))
    assert "was not compared" in none.account
    assert np.isnan([none.comparison.kernel, none.comparison.pile, none.comparison.trace]).all()


def test_identities_distinguish_results():
    weights = np.arange(4.0)

    def user(scale, variances=None):
        return UserBasis(lambda p: jnp.tanh(scale * weights * p[0]), variances)

    bases = [
        *(FourierBasis(0, 1, 5, padding=p) for p in (2.0, 1.5)),
        *(FourierBasis(0, 1, 6), HilbertBasis(0, 1, 5), HilbertBasis(0, 1 + 1e-15, 5)),
        *(RandomFourierBasis(5), RandomFourierBasis(5, seed=1), RandomFourierBasis(6)),
        *(user(1.0), user(1.5), user(1.0, 2.0), user(weights)),
    ]
    for (i, a), (j, b) in itertools.product(enumerate(bases), repeat=2):
        assert (Features(a).identity == Features(b).identity) == (i == j)
    assert user(weights).identity == user(weights).identity
    assert Features(FourierBasis(0, 1, 5)) == Features(FourierBasis([0.0], [1.0], (5,)))


def test_memory_and_operations_are_estimated():
    covariance = of(poisson(ps.RBF(0.5)))
    estimate = Features(FourierBasis(*CORNERS, count=4)).estimate(covariance)
    assert estimate.flops == pytest.approx(covariance.size * 81**2 + 81**3 / 3)
    assert 8 * 81**2 < estimate.memory < 1e7


class TestBadInput:
    def refused(self, basis, match, kernel=None):
        with pytest.raises(ps.errors.InputError, match=match):
            Features(basis).factor(of(poisson(kernel or ps.RBF(0.5))))

    @pytest.mark.parametrize("kind", [FourierBasis, HilbertBasis])
    def test_of_boxes(self, as_a_user, kind):
        for bad, match in (
            ({"count": 0}, "count: expected an integer of at least 1"),
            ({"count": [3, -1]}, "count: expected an integer of at least 1"),
            ({"count": 2.5}, "count: expected an integer"),
            ({"count": [1, 2, 3]}, "count: expected a number, or 2"),
            ({"high": [1.0]}, "high: expected 2 numbers"),
            ({"high": [1.0, -1.0]}, "high: expected more than low"),
            ({"padding": 1.0}, "padding: expected a number above 1"),
            ({"low": [np.nan, 0.0]}, "low: expected finite"),
        ):
            with pytest.raises(ps.errors.InputError, match=match):
                kind(**({"low": CORNERS[0], "high": CORNERS[1], "count": 3} | bad))
        self.refused(kind(0.0, 1.0, 3), "expected a box in 2 dimensions; got 'a box in 1 dimensions")
        self.refused(kind([-1.0, -0.9], [1.0, 1.0], 3), r"a box that contains all points, including \[.*, -0.96")
        self.refused(kind(*CORNERS, 3), "known spectral density", ps.kernels.RationalQuadratic())

    def test_of_kernels_that_are_rotated(self):
        for name in ("rotated", "full", "mixture"):
            self.refused(HilbertBasis(*CORNERS, 3), "even in each coordinate", KERNELS[name])
        HilbertBasis(*CORNERS, 3).rank(KERNELS["groups"], 2)

    def test_of_random_frequencies(self, as_a_user):
        for bad in ({"count": 0}, {"count": 3, "seed": -1}, {"count": "3"}):
            with pytest.raises(ps.errors.InputError, match="RandomFourierBasis"):
                RandomFourierBasis(**bad)
        self.refused(RandomFourierBasis(1), "one for each kernel of the sum", KERNELS["sum"])
        self.refused(RandomFourierBasis(3), "spectral density", ps.kernels.Polynomial(2))

    def test_of_users_functions(self, as_a_user):
        self.refused(UserBasis(lambda p: p[0]), "to an array of shape \\(r,\\)")
        self.refused(UserBasis(lambda p: (p[0], p[1])), "to an array of shape \\(r,\\)")
        self.refused(UserBasis(lambda p: p[:, None]), "to an array of shape \\(r,\\)")
        self.refused(UserBasis(lambda p: p[2:3] * p[2]), "coordinates p\\[0\\] … p\\[1\\]")
        self.refused(UserBasis(lambda p: np.sin(np.asarray(p))), "jax.numpy")
        self.refused(UserBasis(lambda p: p, variances=[1.0, 2.0, 3.0]), "variances: expected one number, or 2")
        self.refused(UserBasis(lambda p: jnp.log(p)), "finite features; some are NaN or infinite, first at")
        with pytest.raises(ps.errors.InputError, match="variances: expected positive"):
            UserBasis(lambda p: p, variances=-1.0)
        with pytest.raises(ps.errors.InputError, match="function: expected a function"):
            UserBasis(3)

    def test_of_solvers(self, as_a_user):
        with pytest.raises(ps.errors.InputError, match="basis: expected a basis"):
            Features(3)
        found = Features(RandomFourierBasis(3)).factor(of(poisson(ps.RBF(0.5))))
        with pytest.raises(ps.errors.InputError, match="KernelCovariance"):
            Features(RandomFourierBasis(3)).factor(found.covariance)
        tangent = KernelTangent(ps.RBF(0.5), found.covariance.full.rows, 1.0, [0])
        with pytest.raises(ps.errors.InputError, match="tangent: expected"):
            found.cotangent(1.0).contract(tangent)

    def test_of_ranks_too_large(self):
        count = int((psutil.virtual_memory().total / 8) ** 0.25)
        with pytest.raises(ps.errors.MemoryLimitError, match=r"features; .* Lower its count"):
            Features(FourierBasis(*CORNERS, count=count)).factor(of(poisson(ps.RBF(0.5))))

    def test_of_noise_below_rounding(self):
        x = np.linspace(0.1, 1, 60)
        model = ps.Model(ps.RBF(1.0), data=ps.observe(ps.identity, np.cos(x), at=x), gamma=1e-25)
        basis = UserBasis(lambda p: jnp.sin(p[0]) * jnp.arange(1.0, 30.0) ** 0.3)
        with pytest.raises(ps.errors.NotPositiveDefiniteError, match="raise gamma or rho, or lower the count"):
            Features(basis).factor(of(model))
