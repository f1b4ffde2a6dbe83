"""Tensor grids: found among rows, multiplied with through Kronecker factors, and solved exactly."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import pilescore as ps
from pilescore.covariance import grids
from pilescore.covariance.gram import Weights
from pilescore.covariance.grid_products import GridCovariance, use_grid_products
from pilescore.covariance.linear_operator import CovarianceTangent, KernelCovariance
from pilescore.covariance.tiles import assembly
from pilescore.errors import InputError, NotPositiveDefiniteError
from pilescore.solvers.kronecker import Kronecker
from pilescore.solvers.lapack import Dense

SQUARE = ps.Box(x=(-1, 1), y=(0, 1))
CUBE = ps.Box(x=(0, 1), y=(0, 2), z=(-1, 1))
DX, DY = ps.partials(SQUARE)


def plain(model: ps.Model, eta: float = 1.3) -> KernelCovariance:
    """The covariance of a model."""
    parts = assembly(model.blocks)
    noise = np.asarray(model.temperatures)[parts.block] * parts.spread
    return KernelCovariance(model.kernel, parts.rows, eta, parts.values, noise)


def on_grids(c: KernelCovariance) -> GridCovariance:
    """Return the same covariance with Kronecker products, even where tiles are faster."""
    return GridCovariance(c.kernel, c.rows, c.eta, c.values, c.noise)


def whole(c: KernelCovariance) -> np.ndarray:
    """Return the full matrix `ηQ`."""
    lower = np.tril(c.dense())
    return lower + np.tril(lower, -1).T


def meshed(*axes: Any, order: tuple[int, ...]) -> np.ndarray:
    """Return all combinations of nodes; the last axis of the order varies fastest."""
    rows = list(itertools.product(*(axes[axis] for axis in order)))
    points = np.empty((len(rows), len(axes)))
    points[:, list(order)] = rows
    return points


SEPARABLE = {
    "rbf": (ps.RBF(0.6), 2),
    "rbf of three": (ps.RBF([0.5, 0.7, 2.0]), 3),
    "scaled": (2.5 * ps.RBF([0.5, 0.7]), 2),
    "periodic": (ps.kernels.Periodic([1.0, 2.0], 0.8), 2),
    "mixed": (3.0 * (ps.Matern(3.5, 0.4).on(1) * ps.RBF([0.5, 0.3]).on(2, 0)), 3),
    "constant": (ps.kernels.Constant(2.0) * ps.RBF(0.5), 2),
    "nested": (ps.RBF(0.9) * (2.0 * ps.kernels.Periodic(1.5, 0.8).on(1)), 2),
    "line": (ps.Matern(2.5, 0.4) + ps.kernels.Cosine(0.7), 1),
}


@pytest.mark.parametrize("name", SEPARABLE)
def test_factors_multiply_to_the_kernel(name: str) -> None:
    kernel, dimension = SEPARABLE[name]
    rng = np.random.default_rng(1)
    for alpha, beta in [((0,) * dimension, (0,) * dimension), ((1, 2, 0)[:dimension], (2, 0, 1)[:dimension])]:
        x, y = rng.normal(size=(2, dimension))

        def product(given: ps.Kernel, a: Any = alpha, b: Any = beta, x: Any = x, y: Any = y) -> Any:
            factors = given.factors(dimension)
            assert factors is not None
            assert len(factors) == dimension
            total = jnp.ones(())
            for i, factor in enumerate(factors):
                total = total * factor.derivative((a[i],), (b[i],), (x[i],), (y[i],))
            return total

        expected = kernel.derivative(alpha, beta, x, y)
        np.testing.assert_allclose(product(kernel), expected, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(jax.jit(product)(kernel), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "kernel",
    [
        ps.Matern(2.5),
        ps.AnisotropicRBF(0.3, 0.5),
        ps.kernels.Cosine([1.0, 2.0]),
        ps.RBF(0.5) + ps.RBF(0.7),
        2.0 * ps.Matern(2.5),
        ps.RBF(0.5) * ps.Matern(2.5),
        ps.Matern(2.5).on(0, 1),
        ps.kernels.LinearMap(ps.RBF(1.0), np.eye(2)),
    ],
    ids=str,
)
def test_kernels_without_factors(kernel: ps.Kernel) -> None:
    assert kernel.factors(2) is None


def found(*blocks: ps.Observation) -> grids.GridStructure:
    return grids.find_grids(assembly(blocks).rows)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_grid_is_found_in_any_order_of_its_axes(order: tuple[int, ...]) -> None:
    axes = [np.array([0.1, 0.9, 0.4]), np.array([1.0, 2.0]), np.linspace(0, 1, 7)]
    points = meshed(*axes, order=order)
    rest = np.random.default_rng(0).uniform(size=(9, 3))
    data = ps.observe(ps.identity, 0.0, at=np.concatenate([rest, points, rest[:4]]))
    there = found(data)
    assert [(grid.rows, grid.order) for grid in there.grids] == [(slice(9, 51), order)]
    assert there.scattered.tolist() == [*range(9), *range(51, 55)]
    (grid,) = there.grids
    for axis, nodes in zip(grid.axes, axes, strict=True):
        np.testing.assert_array_equal(axis.nodes, nodes)
    vectors = np.arange(84.0).reshape(42, 2)
    np.testing.assert_array_equal(grid.flat(grid.tensor(vectors)), vectors)
    where = np.stack([grid.flat(each[None])[:, 0] for each in np.meshgrid(*axes, indexing="ij")], axis=1)
    np.testing.assert_array_equal(where, points)


def test_faces_and_leftovers() -> None:
    boundary = ps.impose(ps.identity, 0.0, on=CUBE.boundary(ps.GaussLegendre((4, 5, 6))))
    assert [grid.shape for grid in found(boundary).grids] == [(2, 5, 6), (4, 2, 6), (4, 5, 2)]
    square = ps.impose(ps.identity, 0.0, on=SQUARE.boundary(ps.GaussLegendre(13)))
    assert [grid.shape for grid in found(square).grids] == [(2, 13), (13, 2)]
    lattice = meshed(np.arange(5.0), np.arange(6.0), order=(0, 1))
    broken = found(ps.observe(ps.identity, 0.0, at=lattice[:-1]))  # its last row is left
    assert [grid.shape for grid in broken.grids] == [(4, 6)]
    assert broken.scattered.tolist() == [24, 25, 26, 27, 28]
    twins = found(ps.observe(ps.identity, 0.0, at=np.zeros((40, 2))))
    assert twins.grids == ()
    assert len(twins.scattered) == 40
    assert found(ps.observe(ps.identity, 0.0, at=np.zeros((1, 2)))).grids == ()


def test_a_repeated_grid_counts_twice() -> None:
    inside = SQUARE.interior(ps.GaussLegendre(6))
    there = found(ps.impose(ps.identity, 0.0, on=inside), ps.impose(DX + 3.0 * DY, 0.0, on=inside))
    assert [grid.shape for grid in there.grids] == [(6, 6), (6, 6)]
    assert [[term.parts for term in grid.terms] for grid in there.grids] == [
        [(((0, 0), 1.0),)],
        [(((0, 1), 3.0), ((1, 0), 1.0))],
    ]


def test_the_search_for_grids_gives_up_after_many_failures() -> None:
    rng = np.random.default_rng(0)
    pairs = np.repeat(rng.uniform(size=(3000, 2)), 2, axis=0)
    pairs[1::2, 1] += 1.0
    assert found(ps.observe(ps.identity, 0.0, at=pairs)).grids == ()


def models() -> dict[str, ps.Model]:
    rng = np.random.default_rng(2)
    few, three = rng.uniform(0, 1, (30, 2)), rng.uniform(0, 1, (20, 3))
    gauss = ps.GaussLegendre
    varying = (
        ps.coefficient(lambda p: 1.0 + p[0] * p[1], "a") * DX**2 + ps.coefficient(lambda p: jnp.sin(p[1]), "b") * DY
    )
    slow = ps.domains.nodes_at(meshed(np.linspace(-1, 1, 9), np.linspace(0, 1, 8) ** 2, order=(1, 0)), np.ones(72))
    x, y, z = ps.partials(CUBE)
    (d,) = ps.partials(ps.Box(x=(0, 1)))
    laplacian = DX**2 + DY**2
    return {
        "laplacian": ps.Model(
            2.0 * ps.RBF([0.5, 0.7]),
            data=ps.observe(ps.identity, 1.0, at=few),
            physics=[
                ps.impose(laplacian, 0.0, on=SQUARE.interior(gauss((20, 31)))),
                ps.impose(ps.identity, 0.0, on=SQUARE.boundary(gauss(13))),
                *(ps.neumann(0.0, on=face(gauss(9))) for face in SQUARE.faces),
            ],
            rho=1.0,
        ),
        "varying": ps.Model(
            3.0 * ps.RBF(0.8).on(0) * ps.RBF(0.6).on(1),
            data=[ps.observe(ps.identity, 1.0, at=few), ps.observe(ps.integral(SQUARE.face(x=1)(gauss(20))), 1.0)],
            physics=[ps.impose(varying, 0.0, on=slow), ps.impose(varying, 0.0, on=SQUARE.interior(gauss((24, 26))))],
            rho=1.0,
        ),
        "cube": ps.Model(
            ps.RBF([0.9, 0.8, 0.7]),
            data=ps.observe(ps.identity, 1.0, at=three),
            physics=[
                ps.impose(x**2 + y**2 + z**2, 0.0, on=CUBE.interior(gauss((6, 7, 8)))),
                ps.impose(ps.identity, 0.0, on=CUBE.boundary(gauss((4, 5, 6)))),
            ],
            rho=1.0,
        ),
        "line": ps.Model(
            ps.RBF(0.3),
            data=ps.observe(ps.identity, 1.0, at=[0.0, 0.5, 0.5, 1.0]),
            physics=ps.impose(
                d**2 + ps.coefficient(lambda p: p[0], "k") * d, 0.0, on=ps.Box(x=(0, 1)).interior(gauss(70))
            ),
            rho=1.0,
        ),
        "one grid": ps.Model(ps.RBF(0.3), data=ps.observe(ps.identity, 1.0, at=few), physics=[]),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["laplacian", "varying", "cube", "line", "one grid"])
def test_products_match_the_dense_matrix(name: str) -> None:
    covariance = plain(models()[name])
    fast = on_grids(covariance)
    vectors = np.random.default_rng(3).normal(size=(covariance.size, 3))
    matrix = whole(covariance)
    scale = np.sqrt(matrix.diagonal())[:, None] * np.linalg.norm(np.sqrt(matrix.diagonal())[:, None] * vectors, axis=0)
    for _ in range(2):  # the second time with what is remembered
        assert np.abs((fast.product(vectors) - matrix @ vectors) / scale).max() < 1e-13
    one = fast.product(vectors[:, :1])
    assert np.abs((one - matrix @ vectors[:, :1]) / scale[:, :1]).max() < 1e-13


def test_the_test_models_have_the_intended_grids() -> None:
    shapes = {name: [grid.shape for grid in grids.find_grids(plain(m).rows).grids] for name, m in models().items()}
    assert shapes["laplacian"][1:] == [(2, 13), (13, 2), (2, 9), (9, 2)]
    assert (20, 31) in shapes["laplacian"]
    assert (9, 8) in shapes["varying"]
    assert (24, 26) in shapes["varying"]
    assert (6, 7, 8) in shapes["cube"]
    assert (2, 5, 6) in shapes["cube"]
    assert shapes["one grid"] == []


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    covariance = plain(models()["cube"])
    vectors = np.random.default_rng(3).normal(size=(covariance.size, 2))
    expected = on_grids(covariance).product(vectors)
    monkeypatch.setattr("pilescore.covariance.grid_products.CHUNK_ENTRIES", 1000)
    np.testing.assert_allclose(on_grids(covariance).product(vectors), expected, rtol=1e-10, atol=1e-10)


def test_grid_products_are_used_where_they_are_faster() -> None:
    rng = np.random.default_rng(0)
    inside = ps.impose(ps.identity, 0.0, on=SQUARE.interior(ps.GaussLegendre(60)))
    scattered = ps.observe(ps.identity, 0.0, at=rng.uniform(size=(2000, 2)))
    good = plain(ps.Model(ps.RBF(0.3), physics=inside, rho=1.0))
    fast = use_grid_products(good)
    assert isinstance(fast, GridCovariance)
    assert use_grid_products(fast) is fast
    assert fast.eta == good.eta
    assert fast.noise is good.noise
    assert fast.rows is good.rows
    for model in (ps.Model(ps.Matern(2.5), physics=inside, rho=1.0), ps.Model(ps.RBF(0.3), data=scattered)):
        covariance = plain(model)
        assert use_grid_products(covariance) is covariance
    with pytest.raises(InputError, match="kernel: expected a product of kernels of one coordinate"):
        on_grids(plain(ps.Model(ps.Matern(2.5), physics=inside, rho=1.0))).product(np.ones((3600, 1)))


def test_a_grid_covariance_behaves_like_a_kernel_covariance() -> None:
    covariance = plain(models()["laplacian"])
    fast = on_grids(covariance)
    matrix, which = whole(covariance), np.array([5, 700, 3, 64])
    np.testing.assert_array_equal(np.tril(fast.dense()), np.tril(matrix))
    part = fast.select(which)
    np.testing.assert_allclose(fast.block(part, part), matrix[np.ix_(which, which)], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(fast.variances(part), matrix.diagonal()[which], rtol=1e-12)
    assert [rows.stop - rows.start for rows, _ in fast.strips()] == [tile.size for tile in fast.rows.tiles]


def gridded(operator: Any, on: Any = None, kernel: ps.Kernel | None = None, rho: float = 1e-2) -> ps.Model:
    """A model whose observations are one grid."""
    on = SQUARE.interior(ps.GaussLegendre((9, 12))) if on is None else on
    kernel = 1.7 * ps.RBF([0.6, 0.8]) if kernel is None else kernel
    return ps.Model(kernel, physics=ps.impose(operator, lambda p: jnp.sin(3 * p[0]) + p[-1], on=on), rho=rho, eta=1.2)


BETA = ps.parameter("beta", 0.8)
EXACT = {
    "values": gridded(ps.identity),
    "mixed derivative": gridded(-2.0 * DX * DY, rho=0.1),
    "slow first": gridded(
        DY, ps.domains.nodes_at(meshed(np.linspace(-1, 1, 7), np.linspace(0, 1, 8), order=(1, 0)), np.ones(56))
    ),
    "line": gridded(ps.identity, ps.Box(x=(0, 1)).interior(ps.GaussLegendre(20)), ps.Matern(1.5, 0.3)),
    "cube": gridded(
        ps.identity,
        CUBE.interior(ps.GaussLegendre((5, 4, 6))),
        ps.Matern(2.5, 0.9).on(0) * ps.RBF([0.6, 0.8]).on(1, 2),
    ),
    "face": gridded(ps.identity, CUBE.face(y=0)(ps.GaussLegendre((5, 4, 6))), ps.RBF([0.6, 0.8, 0.4])),
    "parameter": gridded(BETA**2 * DX),
    "fields of a parameter": gridded(BETA * ps.coefficient(lambda p: 2.0 + 0.0 * p[0], "a") * DX),
    "long": gridded(ps.identity, kernel=ps.RBF(3.0), rho=1e-4),
}


@pytest.mark.parametrize("name", EXACT)
def test_the_exact_solver_against_cholesky(name: str) -> None:
    model = EXACT[name]
    covariance = plain(model)
    solver = Kronecker()
    assert solver.applies(covariance) == ""
    exact, dense = solver.factor(covariance), Dense().factor(covariance)
    slack = exact.error + dense.error
    assert slack < 1e-6
    for mine, other in ((exact.logdet, dense.logdet), (exact.quadratic, dense.quadratic)):
        assert mine.width == 0.0
        assert abs(mine.value - other.value) <= slack
    close = {"rtol": 1e-7, "atol": 1e-8 * np.abs(dense.alpha).max()}
    np.testing.assert_allclose(exact.alpha, dense.alpha, **close)
    right = np.random.default_rng(0).normal(size=(covariance.size, 3))
    matrix = whole(covariance) + np.diag(covariance.noise)
    inverse = np.linalg.inv(matrix)
    solved, off = exact.solve(right)
    np.testing.assert_allclose(solved, inverse @ right, rtol=1e-6, atol=1e-8 * np.abs(inverse).max())
    assert not off.any()
    reduced = right.T @ inverse @ right
    np.testing.assert_allclose(exact.reduced(right.copy()), reduced, rtol=1e-7)
    np.testing.assert_allclose(exact.reduced_diagonal(right.copy()), reduced.diagonal(), rtol=1e-7)
    pull = exact.cotangent(1.4)
    np.testing.assert_allclose(pull.diagonal, inverse.diagonal() - dense.alpha**2 / 1.4, rtol=1e-6)


@pytest.mark.parametrize(("name", "profiled"), [*((name, False) for name in EXACT), ("parameter", True)])
def test_gradients_of_the_exact_solver_against_cholesky(name: str, profiled: bool) -> None:
    score, gradient = ps.pile_and_gradient(EXACT[name].replace(solver=Kronecker()), score=ps.Score(profiled=profiled))
    expected, other = ps.pile_and_gradient(EXACT[name], score=ps.Score(profiled=profiled))
    assert abs(score.value - expected.value) < 1e-9
    assert score.lower == score.upper == score.value
    assert "kronecker" in score.solver
    assert set(gradient) == set(other)
    for key in gradient:
        np.testing.assert_allclose(gradient[key], other[key], rtol=1e-7, atol=1e-8, err_msg=key)


class Everything(CovarianceTangent):
    """The derivative of any covariance that the solver does not know."""

    def __init__(self, inner: CovarianceTangent) -> None:
        self.inner = inner

    def block(self, first: Any, second: Any, weights: np.ndarray) -> np.ndarray:
        return self.inner.block(first, second, weights)

    def variances(self, part: Any, weights: np.ndarray) -> np.ndarray:
        return self.inner.variances(part, weights)

    def dense(self, weights: Weights) -> np.ndarray:
        return self.inner.dense(weights)


def test_any_tangent_is_contracted() -> None:
    covariance = plain(EXACT["values"])
    tangent = covariance.tangent([0, 1])
    pull = Kronecker().factor(covariance).cotangent(0.9)
    np.testing.assert_allclose(pull.contract(Everything(tangent)), pull.contract(tangent), rtol=1e-9)


def test_gradient_in_a_coefficient_that_is_zero() -> None:
    model = gridded(DX + ps.parameter("beta", 0.0) * DY)
    assert Kronecker().applies(plain(model)) == ""
    mine = ps.pile_and_gradient(model.replace(solver=Kronecker()), "beta")[1]["beta"]
    assert abs(mine - ps.pile_and_gradient(model, "beta")[1]["beta"]) < 1e-9


def refused() -> dict[str, tuple[ps.Model, str]]:
    inside = SQUARE.interior(ps.GaussLegendre(6))
    lattice = meshed(np.linspace(-1, 1, 6), np.linspace(0, 1, 6), order=(0, 1))
    uneven = 1.0 + np.arange(36.0)
    two = [ps.impose(ps.identity, 0.0, on=inside), ps.impose(DX, 0.0, on=inside)]
    scattered = ps.observe(ps.identity, 1.0, at=np.random.default_rng(0).uniform(size=(5, 2)))
    return {
        "kernel": (gridded(ps.identity, inside, ps.Matern(2.5)), "is not a product of kernels of one coordinate"),
        "two": (
            ps.Model(ps.RBF(0.5), physics=two, rho=1.0),
            "not form one tensor grid with one operator, but 2 grids and 0 scatt",
        ),
        "scattered": (ps.Model(ps.RBF(0.5), data=scattered), "but 0 grids and 5 scattered points"),
        "laplacian": (gridded(DX**2 + DY**2, inside), "the operator has 2 derivatives instead of one"),
        "varying": (
            gridded(ps.coefficient(lambda p: 1 + p[0] ** 2, "a") * DX, inside),
            "coefficient of the operator is not",
        ),
        "noise": (
            gridded(ps.identity, ps.domains.nodes_at(lattice, uneven)),
            "the noise is not a product over the axes",
        ),
    }


@pytest.mark.parametrize("name", ["kernel", "two", "scattered", "laplacian", "varying", "noise"])
def test_unsuitable_models_are_refused(name: str) -> None:
    model, why = refused()[name]
    solver = Kronecker()
    assert why in solver.applies(plain(model))
    for attempt in (solver.factor, solver.estimate):
        with pytest.raises(
            InputError, match=rf"ps\.solvers\.Kronecker\(\) does not fit: .*{why}.*Use ps\.solvers\.LowRank\(\)"
        ):
            attempt(plain(model))
    with pytest.raises(InputError, match=why):
        ps.pile(model.replace(solver=solver))


def test_negative_eigenvalues_are_not_hidden() -> None:
    line = ps.Box(x=(0, 1)).interior(ps.GaussLegendre(20))
    wrong = ps.kernels.FunctionKernel(lambda x, y: 1.0 - 5.0 * jnp.sum((x - y) ** 2))
    with pytest.raises(NotPositiveDefiniteError, match=r"on axis 0 is not positive semidefinite on the grid"):
        Kronecker().factor(plain(gridded(ps.identity, line, wrong)))
    with pytest.raises(NotPositiveDefiniteError, match="not positive definite to working precision"):
        ps.pile(gridded(ps.identity, kernel=ps.RBF(3.0), rho=1e-19).replace(solver=Kronecker()))
    nan = ps.kernels.FunctionKernel(lambda x, y: jnp.sum(jnp.sqrt(x - 0.5) * jnp.sqrt(y - 0.5)))
    with pytest.raises(InputError, match="NaN or infinite covariances"):
        Kronecker().factor(plain(gridded(ps.identity, line, nan)))


def test_the_rounding_estimate_covers_the_error() -> None:
    """An ill-conditioned model, against high-precision arithmetic."""
    model = gridded(ps.identity, SQUARE.interior(ps.GaussLegendre(5)), ps.RBF(2.0), rho=1e-9)
    covariance = plain(model)
    factored = Kronecker().factor(covariance)
    points = np.concatenate([np.asarray(tile.points)[:, : tile.size].T for tile in covariance.rows.tiles])
    with mpmath.workdps(60):
        exact = [[mpmath.mpf(float(c)) for c in point] for point in points]
        matrix = mpmath.matrix(len(exact))
        for i, j in itertools.product(range(len(exact)), repeat=2):
            square = sum((a - b) ** 2 for a, b in zip(exact[i], exact[j], strict=True))
            matrix[i, j] = mpmath.mpf(covariance.eta) * mpmath.exp(-square / 8)
            matrix[i, j] += mpmath.mpf(float(covariance.noise[i])) if i == j else 0
        y = mpmath.matrix([float(v) for v in covariance.values])
        true = float(mpmath.log(mpmath.det(matrix)) + (y.T * mpmath.lu_solve(matrix, y))[0])
    error = abs(factored.logdet.value + factored.quadratic.value - true)
    assert 1e-11 < factored.error < 1e-2
    assert error < factored.error


def test_the_estimate_counts_axes_not_their_product() -> None:
    estimate = Kronecker().estimate(plain(EXACT["values"]))
    assert estimate.method == "kronecker"
    assert estimate.memory < 8.0 * 108**2
    assert Kronecker().identity == "kronecker"
