"""Invalid input: a clear error that names the argument, its value and what was expected, before any long work."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pilescore as ps

from .models import refused

pytestmark = pytest.mark.usefixtures("as_a_user")

SQUARE = ps.Box(x=(-1, 1), y=(-1, 1))
LAPLACIAN = ps.laplacian(SQUARE)
NODES = SQUARE.interior(ps.GaussLegendre(3))
X = np.random.default_rng(0).uniform(-1, 1, (5, 2))
Y = np.arange(5.0)


def data(**options):
    return ps.observe(ps.identity, values=Y, at=X, **options)


def test_shapes():
    with refused("values", "shape (5,)", "(4,)"):
        ps.observe(ps.identity, values=Y[:4], at=X)
    with refused("values", "(5, 1)"):
        ps.observe(ps.identity, values=Y[:, None], at=X)
    with refused("at", "(n, d)", "(5, 2, 1)"):
        ps.observe(ps.identity, values=Y, at=X[..., None])
    with refused("value", "shape (9,)", "(8,)"):
        ps.impose(LAPLACIAN, np.zeros(8), on=NODES)
    with refused("operator ∂x² + ∂y²", "2 coordinates (x, y)", "points with 3 coordinates"):
        ps.observe(LAPLACIAN, values=Y, at=np.zeros((5, 3)))
    with refused("block 'physics.0'", "2 coordinates", "'data.0' has points with 1"):
        ps.Model(ps.RBF(), ps.observe(ps.identity, Y, Y), ps.impose(LAPLACIAN, 0.0, on=NODES))
    with refused("RBF: bandwidth has 3 entries", "2 coordinates"):
        ps.Model(ps.RBF(bandwidth=[1.0, 2.0, 3.0]), data())
    with refused("Wiener", "2 coordinates", "1 coordinate"):
        ps.Model(ps.kernels.Wiener(), data())
    with refused("at", "real numbers"):
        ps.observe(ps.identity, values=[1.0, 2.0], at=[[0.0, 1.0], [2.0]])
    with refused("IntegratedWiener", "a point at -0.5", "after 0"):
        ps.Model(ps.RBF().on(0) * ps.kernels.IntegratedWiener().on(1), ps.observe(ps.identity, 1.0, at=[[0.0, -0.5]]))
    with refused("over", "'z'", "x and y"):
        ps.laplacian(SQUARE, over=("x", "z"))


def test_dtypes():
    with refused("values", "real numbers", "complex128"):
        ps.observe(ps.identity, values=Y + 1j, at=X)
    with refused("values", "real numbers"):
        ps.observe(ps.identity, values=["a"] * 5, at=X)
    with refused("at", "real numbers", "bool"):
        ps.observe(ps.identity, values=Y, at=X > 0)
    with refused("gamma", "real numbers", "'1'"):
        data(gamma="1")


def test_single_precision_and_integers_are_promoted_exactly():
    block = ps.observe(ps.identity, values=np.arange(5), at=X.astype(np.float32))
    assert block.values.dtype == block.points.dtype == np.float64
    np.testing.assert_array_equal(block.points, X.astype(np.float32).astype(np.float64))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite(bad):
    values, points = Y.copy(), X.copy()
    values[3] = points[2, 1] = bad
    with refused("values", "1 of 5 are NaN or infinite", "index (3,)"):
        ps.observe(ps.identity, values=values, at=X)
    with refused("at", "1 of 10", "index (2, 1)"):
        ps.observe(ps.identity, values=Y, at=points)
    with refused("gamma", "NaN or infinite"):
        ps.Model(ps.RBF(), data(), gamma=bad)
    with refused("value", "9 of 9 are NaN"):
        ps.impose(LAPLACIAN, lambda p: p[0] * jnp.nan, on=NODES)
    with refused("RBF bandwidth", "NaN or infinite"):
        ps.RBF(bandwidth=bad)


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_temperatures_are_positive(bad):
    for name in ("gamma", "rho", "eta"):
        with refused(name, "a positive number", str(bad)):
            ps.Model(ps.RBF(), data(), **{name: bad})
    with refused("gamma", "a positive number"):
        data(gamma=bad)
    with refused("rho", "a positive number"):
        ps.impose(LAPLACIAN, 0.0, on=NODES, rho=bad)
    with refused("noise", "positive standard deviations"):
        data(noise=[1.0, 1.0, bad, 1.0, 1.0])
    model = ps.Model(ps.RBF(), data())
    with refused("gamma", "a positive number"):
        model.replace({"gamma": bad})
    with refused("RBF bandwidth", "a positive number"):
        model.replace({"kernel.bandwidth": bad})


def test_empty_blocks():
    with refused("at", "the block is empty"):
        ps.observe(ps.identity, values=[], at=np.zeros((0, 2)))
    with refused("data, physics", "at least one block"):
        ps.Model(ps.RBF())
    with refused("operator", "not zero"):
        ps.observe(LAPLACIAN - LAPLACIAN, values=Y, at=X)


def test_points_outside_the_domain():
    points = X.copy()
    points[3] = [0.5, 7.0]
    with refused("at: 1 of 5 points lie outside Box(x=(-1, 1), y=(-1, 1))", "number 3", "y = 7", "columns"):
        ps.observe(ps.identity, values=Y, at=points, domain=SQUARE)
    with refused("outside", "Box"):
        SQUARE.points(points)
    strip = ps.Box(t=(0, 1), x=(0, 30))
    dt, dx = ps.partials(strip)
    physics = ps.impose(dt + dx, 0.0, on=strip.interior(ps.GaussLegendre(4)))
    swapped = ps.observe(ps.identity, values=[1.0, 2.0], at=[[25.0, 0.5], [0.5, 25.0]])
    with pytest.warns(ps.errors.OutsideDomainWarning, match=r"'data\.0': 1 of 2 points lie far outside.*columns"):
        ps.Model(ps.RBF(), swapped, physics)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ps.Model(ps.RBF(), data(), ps.impose(LAPLACIAN, 0.0, on=NODES))


def test_an_operator_of_higher_order_than_the_kernel_supports():
    physics = ps.impose(LAPLACIAN, 0.0, on=NODES, name="heat")
    with refused(
        "block 'heat': the operator ∂x² + ∂y² takes derivatives of order 2",
        "Matern(nu=1.5, bandwidth=1.) supports at most order 1",
        "RBF",
        "Matern(nu=2.5)",
        error=ps.errors.SmoothnessError,
    ):
        ps.Model(ps.Matern(1.5), physics=physics)
    ps.Model(ps.Matern(2.5), physics=physics)
    post = ps.posterior(ps.Model(ps.Matern(1.5), data()))
    with refused("the operator ∂x² + ∂y²", "order 2", error=ps.errors.SmoothnessError):
        post.mean(X, operator=LAPLACIAN)


def test_roles_and_kinds():
    physics = ps.impose(LAPLACIAN, 0.0, on=NODES)
    with refused("data", "ps.observe", "impose("):
        ps.Model(ps.RBF(), data=physics)
    with refused("physics", "ps.impose"):
        ps.Model(ps.RBF(), physics=[data()])
    with refused("kernel", "ps.RBF"):
        ps.Model("rbf", data())
    with refused("operator", "ps.identity"):
        ps.observe("f", values=Y, at=X)
    with refused("on", "ps.domains.nodes_at(points, weights)"):
        ps.impose(LAPLACIAN, 0.0, on=X)
    with refused("at", "points of measurement"):
        ps.observe(ps.identity, values=Y)
    with refused("acts on (x, y)", "coordinates are (t, x)"):
        ps.impose(LAPLACIAN, 0.0, on=ps.Box(t=(0, 1), x=(0, 1)).interior(ps.GaussLegendre(3)))
    with refused("model", "ps.Model"):
        ps.pile(3)
    with refused("model", "ps.Model"):
        ps.posterior(None)
    with refused("noise", "either gamma or noise"):
        data(gamma=1.0, noise=1.0)
    with refused("formula", "'printed'"):
        ps.pile(ps.Model(ps.RBF(), data()), score=ps.Score(formula="published"))
    with refused("equally many nodes"):
        ps.difference(NODES, SQUARE.interior(ps.GaussLegendre(2)))
    with refused("normal"):
        ps.neumann(0.0, on=SQUARE.boundary(ps.GaussLegendre(3)))
    with refused("count", "integer"):
        ps.posterior(ps.Model(ps.RBF(), data())).samples(X, 0, seed=0)
    with refused("points", "2 coordinates"):
        ps.posterior(ps.Model(ps.RBF(), data())).mean([[0.0, 1.0, 2.0]])


def test_names():
    model = ps.Model(ps.RBF(), data())
    with refused("'kernel.bandwith'", "Did you mean 'kernel.bandwidth'?", "kernel.bandwidth, gamma, eta"):
        model.replace({"kernel.bandwith": 1.0})
    with refused("name", "'a'", "a different name"):
        ps.Model(ps.RBF(), [data(name="a"), data(name="a")])
    with refused("'rho'"):
        ps.pile_and_gradient(model, ["rho"])
    dx, dy = ps.partials(SQUARE)
    with refused("'eta'", "which the model uses itself"):
        ps.Model(ps.RBF(), ps.observe(ps.parameter("eta", 2.0) * dx, Y, X))
    two = [ps.observe(ps.parameter("c", value) * d, Y, X) for value, d in ((1.0, dx), (2.0, dy))]
    with refused("'c'", "different values"):
        ps.Model(ps.RBF(), two)


def test_profiling_needs_a_value_that_is_not_zero():
    with refused("profiled", "not zero"):
        ps.pile(ps.Model(ps.RBF(), ps.observe(ps.identity, 0.0, X)), score="profiled")


def test_float32_mode_is_refused():
    model = ps.Model(ps.RBF(), data())
    jax.config.update("jax_enable_x64", False)
    try:
        with refused("float32 mode", "jax_enable_x64"):
            ps.pile(model)
    finally:
        jax.config.update("jax_enable_x64", True)


def test_coefficients_that_are_not_finite():
    dx, _ = ps.partials(SQUARE)
    with refused("operator a ∂x: a coefficient is NaN or infinite at the point [ 0. "):
        ps.impose(ps.coefficient(lambda p: 1 / p[0], "a") * dx, 0.0, on=NODES)


def test_functions_that_cannot_be_evaluated():
    dx, _ = ps.partials(SQUARE)
    with refused("the function a", "p[0] … p[1]"):
        ps.impose(ps.coefficient(lambda p: p[2], "a") * dx, 0.0, on=NODES)
    with refused("the function a", "jax.numpy"):
        ps.impose(ps.coefficient(lambda p: np.sin(p[0]), "a") * dx, 0.0, on=NODES)
    with refused("the function a", "jax.numpy"):
        ps.impose(ps.coefficient(lambda p: 1.0 if p[0] > 0 else 2.0, "a") * dx, 0.0, on=NODES)
    with refused("value", "one argument, the point"):
        ps.impose(dx, lambda x, y: x + y, on=NODES)
    with refused("value", "p[0] … p[1]"):
        ps.impose(dx, lambda p: p[2], on=NODES)
    with refused("truth", "p[0] … p[1]"):
        ps.accuracy(ps.Model(ps.RBF(), data()), lambda p: p[5], on=NODES)


def test_blocks_do_not_change():
    points, values = X.copy(), Y.copy()
    block = ps.observe(ps.identity, values, points)
    before = ps.pile(ps.Model(ps.RBF(), block)).value
    points[:], values[:] = 0.0, 9.0
    assert ps.pile(ps.Model(ps.RBF(), block)).value == before
    with pytest.raises(ValueError, match="read-only"):
        block.values[0] = 5.0


def test_operators_on_other_coordinates():
    other = ps.Box(y=(-1, 1), x=(-1, 1))
    dy = ps.partials(other)[0]
    model = ps.Model(ps.RBF(), ps.observe(ps.partials(SQUARE)[0], Y, X))
    with refused("operator ∂y acts on (y, x)", "(x, y)"):
        ps.posterior(model).mean(X, operator=dy)
    with refused("block 'data.1'", "acts on (y, x)"):
        ps.Model(ps.RBF(), [*model.data, ps.observe(dy, Y, X)])
    with refused("over", "acts on (y, x)"):
        ps.integral(NODES, dy)


def test_functionals():
    with refused("matrix", "shape (n, 2)"):
        ps.model.Functional(ps.identity, [[0.1], [0.2]], [[1.0, 1.0, 1.0]], [1.0])
    with refused("operator", "ps.identity"):
        ps.integral(NODES, "f")
    lists = ps.observe(ps.model.Functional(ps.identity, [[0.0], [1.0]], [[1, 1]], [1]), values=2.0, gamma=2.0)
    total = 2 + 2 * np.exp(-0.5)  # the variance of f(0) + f(1)
    expected = (4 / (total + 1) + np.log(total + 1)) + np.log(2 * np.pi)
    assert ps.pile(ps.Model(ps.RBF(1.0), lists)).value == pytest.approx(expected, rel=1e-12)


def test_function_kernels():
    with refused("FunctionKernel function", "jax.numpy"):
        ps.pile(ps.Model(ps.kernels.FunctionKernel(lambda x, y: np.exp(-((x[0] - y[0]) ** 2))), data()))
    with refused("FunctionKernel function", "two points and its named parameters"):
        ps.pile(ps.Model(ps.kernels.FunctionKernel(lambda x, y, s: x[0] * y[0] * s), data()))


def test_a_replaced_model_can_be_taken_apart():
    class Growth(eqx.Module):
        a: jax.Array

        def __call__(self, p):
            return 1 + self.a * p[0]

    dx, _ = ps.partials(SQUARE)
    k = ps.coefficient(Growth(jnp.asarray(1.0)), "k")
    model = ps.Model(ps.RBF(), physics=ps.impose(dx * (k * dx), 1.0, on=NODES), rho=1.0).replace({"k.a": 2.0})
    again = ps.Model(model.kernel, physics=model.physics, rho=1.0)
    assert again.parameters["k.a"] == 2.0
    assert ps.pile(again).value == pytest.approx(ps.pile(model).value, rel=1e-12)


def test_masked_values():
    with refused("values", "1 are masked"):
        ps.observe(ps.identity, np.ma.array(Y, mask=[0, 1, 0, 0, 0]), X)


def test_warped_points_are_checked():
    with refused("RBF: bandwidth has 2 entries", "3 coordinates"):
        ps.Model(ps.kernels.Warped(ps.RBF([0.4, 3.0]), lambda p: jnp.stack([p[0], p[1], p[0] * p[1]])), data())
    with refused("Warped warp", "(e,)"):
        ps.Model(ps.kernels.Warped(ps.RBF(), lambda p: p[0]), data())
    with refused("Wiener", "after 0"):
        ps.Model(ps.kernels.Warped(ps.kernels.Wiener(), lambda p: p[:1] - 3), data())


def test_derivatives_that_do_not_exist():
    for kernel, alpha in ((ps.kernels.IntegratedWiener(), (2,)), (ps.kernels.Wiener(), (1,)), (ps.Matern(0.5), (1,))):
        with refused("was asked for a derivative", error=ps.errors.SmoothnessError):
            kernel.derivative(alpha, alpha, (0.3,), (0.3,))


def test_a_condition_on_one_face_does_not_warn_of_data_inside():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ps.Model(ps.RBF(), data(), ps.dirichlet(0.0, on=SQUARE.face(x=-1)(ps.GaussLegendre(5))))


def test_one_name_may_be_given_alone():
    assert list(ps.pile_and_gradient(ps.Model(ps.RBF(), data()), "gamma")[1]) == ["gamma"]
