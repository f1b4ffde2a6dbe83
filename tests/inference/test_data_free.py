"""Data-free scores against closed forms, classical determinants of random matrix theory, and PILE itself."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy.integrate import solve_ivp
from scipy.special import airy, jv

import pilescore as ps

LINE = ps.Box(x=(0, 1))
(DX,) = ps.partials(LINE)
STRIP = ps.Box(t=(0, 1), x=(0, 2 * np.pi))
DT, DXX = ps.partials(STRIP)


def bridge(x: Any, y: Any) -> Any:
    return jnp.minimum(x[0], y[0]) - x[0] * y[0]


def closed_forms(c: float) -> dict[str, tuple[ps.Kernel, ps.Operator, float]]:
    root = np.sqrt(c)
    return {
        "integrated Wiener": (ps.kernels.IntegratedWiener(), DX, float(np.log(np.cosh(root)))),
        "bridge": (ps.kernels.FunctionKernel(bridge, smoothness=0), ps.identity, float(np.log(np.sinh(root) / root))),
    }


@pytest.mark.slow
@pytest.mark.parametrize(("c", "nodes"), [(0.5, 600), (14.0, 800), (200.0, 1500)])
@pytest.mark.parametrize("which", ["integrated Wiener", "bridge"])
def test_closed_forms(which: str, c: float, nodes: int) -> None:
    kernel, operator, exact = closed_forms(c)[which]
    physics = ps.impose(operator, 0.0, on=LINE.interior(ps.GaussLegendre(nodes)))
    score = ps.data_free_pile(ps.Model(kernel, physics=physics, rho=2 / c), tolerance=1e-4)
    assert score.status == "resolved"
    assert score.determinant.limit == pytest.approx(exact, rel=1e-8)
    # the kink of the kernel makes the rule itself converge as m⁻²; its stated error is about 5/9 of the true one
    assert 0.5 * abs(score.value - exact) < score.error < abs(score.value - exact)
    # the same kernel as a bare function
    bare = {"integrated Wiener": lambda x, y: jnp.minimum(x[0], y[0]), "bridge": bridge}[which]
    found = ps.fredholm_logdet(bare, LINE.interior(ps.GaussLegendre(nodes // 4)), c=c)
    assert found.limit == pytest.approx(exact, rel=3e-5)


def test_airy_kernel_is_the_distribution_of_tracy_and_widom() -> None:
    def kernel(p: Any, q: Any) -> float:
        x, y = float(p[0]), float(q[0])
        (a, da, *_), (b, db, *_) = airy(x), airy(y)
        return da * da - x * a * a if x == y else (a * db - da * b) / (x - y)

    for s, exact in ((-2.0, 0.41322414250512257), (-1.0, 0.8072142419992853), (0.0, 0.9693728283552626)):
        half_line = ps.Box(x=(s, s + 16)).interior(ps.GaussLegendre(40))
        found = ps.fredholm_logdet(kernel, half_line, c=-1, tolerance=1e-10)
        assert np.exp(found.value) == pytest.approx(exact, rel=1e-10)
        assert found.status == "resolved"


def gap_probability(s: float) -> float:
    """Return `det(I − K)` of the sine kernel on an interval of length s, by Painlevé's equation in Jimbo's form."""

    def slope(t: float, state: Any) -> list[float]:
        sigma, first, _ = state
        inner = (sigma - t * first) * (t * first - sigma + first**2)
        return [first, -2.0 / t * np.sqrt(inner), sigma / t]

    t = 1e-4
    u = t / np.pi
    start = [-u - u**2 - u**3, -(1 + 2 * u + 3 * u**2) / np.pi, -u - u**2 / 2 - u**3 / 3]
    end = solve_ivp(slope, (t, np.pi * s), start, method="DOP853", rtol=1e-13, atol=1e-16)
    return float(np.exp(end.y[2, -1]))


@pytest.mark.parametrize("s", [0.5, 1.0, 2.0])
def test_sine_kernel_is_a_gap_probability(s: float) -> None:
    interval = ps.Box(x=(0, s)).interior(ps.GaussLegendre(20))
    found = ps.fredholm_logdet(lambda x, y: jnp.sinc(x[0] - y[0]), interval, c=-1)
    assert np.exp(found.value) == pytest.approx(gap_probability(s), rel=1e-10)
    assert found.error < 1e-12


@pytest.mark.parametrize("s", [1.0, 4.0, 20.0])
def test_bessel_kernel_is_an_exponential(s: float) -> None:
    def kernel(p: Any, q: Any) -> float:
        x, y = float(p[0]), float(q[0])
        rx, ry = np.sqrt(x), np.sqrt(y)
        if x == y:
            return 0.25 * (jv(0, rx) ** 2 + jv(1, rx) ** 2)
        return (rx * jv(1, rx) * jv(0, ry) - ry * jv(0, rx) * jv(1, ry)) / (2 * (x - y))

    found = ps.fredholm_logdet(kernel, ps.Box(x=(0, s)).interior(ps.GaussLegendre(24)), c=-1)
    assert found.value == pytest.approx(-s / 4, rel=1e-10)


def test_kernels_that_are_not_symmetric_or_not_real() -> None:
    on = LINE.interior(ps.GaussLegendre(12))
    found = ps.fredholm_logdet(lambda x, y: x[0] * y[0] ** 2, on, c=3.0)  # of rank one: 1 + c ∫ x³
    assert found.value == pytest.approx(np.log(1 + 3 / 4), rel=1e-13)
    with pytest.raises(ps.errors.InputError, match=r"c: expected .* it is -0\.25; got -5"):
        ps.fredholm_logdet(lambda x, y: x[0] * y[0] ** 2, on, c=-5)


def residual(side: int = 12, beta: Any = 2.0, **options: Any) -> ps.Observation:
    return ps.impose(DT + beta * DXX, 0.0, on=STRIP.interior(ps.GaussLegendre(side)), **options)


def blocks() -> list[ps.Observation]:
    rule = ps.GaussLegendre(7)
    jump = ps.difference(STRIP.face(x=2 * np.pi)(rule), STRIP.face(x=0)(rule))
    start = ps.dirichlet(0.5, on=STRIP.face(t=0)(rule), rho=0.02, name="start")
    return [residual(5, ps.parameter("beta", 2.0)), start, ps.impose(jump, 0.0)]


def test_it_is_pile_of_physics_alone_and_its_constant() -> None:
    kernel = ps.RBF([0.6, 1.1])
    score = ps.data_free_pile(ps.Model(kernel, physics=blocks(), rho=0.3, eta=1.7))
    zero = [*blocks()[:1], ps.dirichlet(0.0, on=STRIP.face(t=0)(ps.GaussLegendre(7)), rho=0.02), blocks()[2]]
    model = ps.Model(kernel, physics=zero, rho=0.3, eta=1.7)
    assert score.size == model.size == 39
    assert score.raw == pytest.approx(39 * ps.pile(model).value, rel=1e-12)
    assert score.constant == pytest.approx(np.log(2 * np.pi * model.noise).sum(), rel=1e-14)
    assert score.value == pytest.approx(score.raw - score.constant, rel=1e-12)
    assert score.status == "unresolved"
    assert "a finer rule changes the value" in score.determinant.reason
    mass = ps.impose(ps.integral(STRIP.face(t=0)(ps.GaussLegendre(7))), 0.0, name="mass")
    fixed = ps.data_free_pile(ps.Model(kernel, physics=[residual(5), mass], rho=0.3))
    assert "block 'mass' consists of functionals" in fixed.determinant.reason


def test_derivative_of_a_smooth_kernel_by_hand() -> None:
    h, c, on = 0.4, 30.0, LINE.interior(ps.GaussLegendre(24))
    delta = on.points - on.points.T
    gram = (1 / h**2 - delta**2 / h**4) * np.exp(-(delta**2) / (2 * h**2))
    root = np.sqrt(c * on.weights)
    exact = np.linalg.slogdet(np.eye(24) + root[:, None] * gram * root)[1]
    score = ps.data_free_pile(ps.Model(ps.RBF(h), physics=ps.impose(DX, 7.0, on=on), rho=0.5, eta=7.5))
    assert score.value == pytest.approx(exact, rel=1e-12)
    assert score.error < 1e-12
    assert score.determinant.limit == pytest.approx(exact, rel=1e-12)


def test_calibrated_rho_makes_the_constant_vanish() -> None:
    physics = [residual(6), ps.dirichlet(0.0, on=STRIP.face(t=0)(ps.GaussLegendre(5)))]
    rho = ps.inference.calibrated_rho(physics)
    assert rho == pytest.approx(np.exp(np.log(np.concatenate([b.weights for b in physics])).mean()) / np.pi)
    score = ps.data_free_pile(ps.Model(ps.RBF(1.0), physics=physics, rho=rho))
    assert abs(score.constant) < 1e-12
    assert ps.inference.calibrated_rho(physics[0]) == ps.inference.calibrated_rho(physics[0].nodes)


def test_unresolved_and_why() -> None:
    coarse = ps.data_free_pile(ps.Model(ps.RBF(0.05), physics=residual(6)))
    assert coarse.status == "unresolved"
    assert coarse.error > 1
    assert "finer rule changes the value" in coarse.determinant.reason
    explicit = ps.impose(DX, 0.0, on=ps.domains.nodes_at([0.2, 0.5, 0.8]))
    for physics, why in ((explicit, "explicit points"), (residual(5, noise=0.1), "a noise for each node")):
        score = ps.data_free_pile(ps.Model(ps.RBF(0.5), physics=physics))
        assert score.status == "unresolved"
        assert np.isnan(score.error)
        assert why in score.determinant.reason
    bare = ps.fredholm_logdet(lambda x, y: x[0] * y[0], ps.domains.nodes_at([0.2, 0.5, 0.8]))
    assert (bare.status, np.isnan(bare.finer)) == ("unresolved", True)


def test_landscapes_equal_single_scores() -> None:
    kernel = ps.RBF([0.6, 1.1])
    grid = {"rho": [0.3, 2.0], "kernel.bandwidth[1]": [0.5, 1.0, 2.0], "beta": [1.0, 3.0], "eta": [0.7]}
    model = ps.Model(kernel, physics=blocks(), rho=1.0)
    found = ps.data_free_landscape(model, grid)
    assert found["value"].dims == tuple(grid)
    for rho, width, beta in ((0.3, 2.0, 1.0), (2.0, 0.5, 3.0), (0.3, 1.0, 3.0)):
        one = model.replace({"rho": rho, "kernel.bandwidth[1]": width, "beta": beta, "eta": 0.7})
        score = ps.data_free_pile(ps.Model(one.kernel, physics=one.physics, rho=rho, eta=0.7))
        point = found.sel({"rho": rho, "kernel.bandwidth[1]": width, "beta": beta, "eta": 0.7})
        assert float(point["value"]) == pytest.approx(score.value, rel=1e-11)
        assert float(point["raw"]) == pytest.approx(score.raw, rel=1e-11)
        assert float(point["constant"]) == pytest.approx(score.constant, rel=1e-12)
        assert str(point["status"].values) == "unresolved"


def test_landscapes_of_many_kernels_and_several_tiles() -> None:
    bands = np.geomspace(0.5, 3, 120)  # more than one compiled chunk, the last one not full
    found = ps.data_free_landscape(
        ps.Model(ps.RBF(1.0), physics=residual(8)), {"kernel.bandwidth": bands}, tolerance=0.1
    )
    single = [ps.data_free_pile(ps.Model(ps.RBF(h), physics=residual(8))).value for h in bands[::17]]
    np.testing.assert_allclose(found["value"].values[::17], single, rtol=1e-11)
    coarse = np.array([ps.data_free_pile(ps.Model(ps.RBF(h), physics=residual(4))).value for h in bands[[0, -1]]])
    np.testing.assert_allclose(
        found["error"].values[[0, -1]], np.abs(found["value"].values[[0, -1]] - coarse), rtol=1e-9
    )
    assert found["status"].values[[0, -1]].tolist() == ["unresolved", "resolved"]
    large = ps.data_free_landscape(
        ps.Model(ps.kernels.Wiener(), physics=ps.impose(ps.identity, 0.0, on=LINE(ps.GaussLegendre(700)))), {"rho": [1]}
    )
    assert float(large["value"][0]) == pytest.approx(np.log(np.cosh(np.sqrt(2))), rel=1e-5)


def test_symmetries_of_the_anisotropic_landscape() -> None:
    kernel = ps.AnisotropicRBF(theta=0.3, s=0.5, bandwidth=1.0)
    thetas = np.array([0.3, 1.1])
    grid = {"kernel.theta": np.concatenate([thetas, thetas + np.pi, thetas + np.pi / 2]), "kernel.s": [0.5, 2.0]}
    found = ps.data_free_landscape(ps.Model(kernel, physics=residual(8, 2 * np.pi)), grid)["value"].values
    np.testing.assert_allclose(found[:2], found[2:4], rtol=1e-10)
    np.testing.assert_allclose(found[:2, 0], found[4:, 1], rtol=1e-10)
    assert np.ptp(found) > 1


def test_the_landscape_is_lowest_along_the_characteristics() -> None:
    thetas = np.linspace(1.2, 1.6, 41)
    kernel = ps.AnisotropicRBF(theta=1.4, s=0.5, bandwidth=1.0)
    found = ps.data_free_landscape(ps.Model(kernel, physics=residual(20, 2 * np.pi), rho=1.0), {"kernel.theta": thetas})
    assert float(found["value"].idxmin()) == pytest.approx(np.arctan(2 * np.pi), abs=0.03)
    assert isinstance(found, xr.Dataset)


def test_bad_input(as_a_user: None) -> None:
    physics = residual(4)
    for arguments, match in (
        ({"refine": 1.0}, "refine: expected a factor above 1"),
        ({"tolerance": -1}, "tolerance: expected a positive number"),
        ({"tolerance": np.nan}, "tolerance: expected finite numbers"),
    ):
        with pytest.raises(ps.errors.InputError, match=match):
            ps.data_free_pile(ps.Model(ps.RBF(1.0), physics=physics), **arguments)
    with pytest.raises(ps.errors.InputError, match="rho: expected a positive number"):
        ps.data_free_pile(ps.Model(ps.RBF(1.0), physics=physics, rho=0.0))
    observed = ps.Model(ps.RBF(1.0), ps.observe(ps.identity, 0.0, at=[[0.5, 0.5]]), physics)
    for call in (ps.data_free_pile, lambda model: ps.data_free_landscape(model, {"rho": [1.0]})):
        with pytest.raises(ps.errors.InputError, match=r"model: expected no data: model\.replace\(data=\(\)\)"):
            call(observed)
        with pytest.raises(ps.errors.InputError, match=r"model: expected a ps\.Model"):
            call(ps.RBF(1.0))
    with pytest.raises(ps.errors.SmoothnessError):
        ps.data_free_pile(ps.Model(ps.Matern(0.5), physics=physics))
    for grid, match in (
        ({}, "grid: expected a mapping of names"),
        ({"kernel.bandwith": [1.0]}, "Did you mean 'kernel.bandwidth'"),
        ({"kernel.bandwidth": [1.0, np.nan]}, "1 of 2 are NaN or infinite, the first at index"),
        ({"kernel.bandwidth": []}, "a sequence of at least one value"),
        ({"kernel.bandwidth": 1.0}, "a sequence of at least one value"),
        ({"kernel.bandwidth": [1.0, 1.0]}, "different values"),
        ({"kernel.bandwidth": [1.0, -1.0]}, "RBF bandwidth: expected a positive number"),
        ({"kernel.bandwidth[,]": [1.0]}, r"no hyperparameter 'kernel.bandwidth\[,\]'"),
        ({"kernel.bandwidth[0]": [1.0]}, "an index into 'kernel.bandwidth', which has shape"),
    ):
        with pytest.raises(ps.errors.InputError, match=match):
            ps.data_free_landscape(ps.Model(ps.RBF(1.0), physics=physics), grid)
    on = LINE.interior(ps.GaussLegendre(4))
    with pytest.raises(ps.errors.InputError, match="kernel_function: expected a function of two points"):
        ps.fredholm_logdet(lambda x: x[0], on)
    with pytest.raises(ps.errors.InputError, match="rule: expected nodes"):
        ps.fredholm_logdet(lambda x, y: x[0], ps.GaussLegendre(4))
    with pytest.raises(ps.errors.InputError, match=r"kernel_function.*NaN or infinite"):
        ps.fredholm_logdet(lambda x, y: 1 / (x[0] - y[0]), on)
    with pytest.raises(ps.errors.InputError, match="on: expected nodes"):
        ps.inference.calibrated_rho([])


def test_rounding_beyond_the_identity_is_an_error() -> None:
    with pytest.raises(ps.errors.NotPositiveDefiniteError, match=r"prior variances are up to .* Raise rho"):
        ps.data_free_pile(ps.Model(ps.RBF(3.0), physics=residual(12), rho=1e-22))
    found = ps.data_free_landscape(ps.Model(ps.RBF(3.0), physics=residual(12)), {"rho": [1e-22, 1.0]}, tolerance=0.01)
    assert found["status"].values.tolist() == ["failed", "resolved"]


def test_normalised_score_of_one_wave_in_closed_form() -> None:
    # Draws from the cosine kernel are waves of frequency ω, so `f'' + k² f = (k² − ω²) f` whatever is conditioned on.
    k, on = 7.0, LINE.interior(ps.GaussLegendre(9))
    for omega in (2.0, 6.5, 9.0):
        kernel = 3.0 * ps.kernels.Cosine(omega / (2 * np.pi))
        model = ps.Model(kernel, physics=ps.impose(DX**2 + k**2 * ps.identity, 0.0, on=on), rho=0.01, eta=5.0)
        exact = np.log((k**2 - omega**2) ** 2 / (k**4 + omega**4))
        assert ps.data_free_pile(model).normalised == pytest.approx(exact, rel=1e-6)
    matched = ps.Model(ps.kernels.Cosine(k / (2 * np.pi)), physics=model.physics)
    assert ps.data_free_pile(matched).normalised < -20


def test_normalised_score_of_ridges_along_characteristics() -> None:
    # `f(x − ct)` with `f_t + β f_x = (β − c) f'`: the ratio is `(β − c)² / (c² + β²)`.
    beta, c = 3.0, 2.5
    ridge = ps.kernels.LinearMap(ps.RBF(0.7), [[-c, 1.0]])
    found = ps.data_free_pile(ps.Model(ridge, physics=residual(12, beta))).normalised
    assert found == pytest.approx(np.log((beta - c) ** 2 / (c**2 + beta**2)), rel=1e-9)
    exact = ps.kernels.LinearMap(ps.RBF(0.7), [[-beta, 1.0]])
    assert ps.data_free_pile(ps.Model(exact, physics=residual(12, beta))).normalised < -30


def gaussian_derivatives(h: float, x: np.ndarray, y: np.ndarray) -> dict[tuple[int, int], np.ndarray]:
    """Return the derivatives `∂₁^a ∂₂^b` of a Gaussian kernel for a, b ∈ {0, 2}."""
    d = (x[:, None] - y) / h
    g = np.exp(-(d**2) / 2)
    second = (d**2 - 1) * g / h**2
    fourth = (d**4 - 6 * d**2 + 3) * g / h**4
    return {(0, 0): g, (0, 2): second, (2, 0): second, (2, 2): fourth}


@pytest.mark.parametrize("single", [False, True])
def test_normalised_score_by_hand(single: bool) -> None:
    h, k2 = 0.3, 0.0 if single else 40.0
    on = LINE.interior(ps.GaussLegendre(8))
    finer = on.refined(1.5)
    z, x = on.points[:, 0], finer.points[:, 0]
    assert len(x) == 12

    def blocks_of(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the covariances of `A f` at the second points with `A f`, `f''` and `f` at the first."""
        g = gaussian_derivatives(h, first, second)
        return (
            g[2, 2] + k2 * (g[2, 0] + g[0, 2]) + k2**2 * g[0, 0],
            g[2, 2] + k2 * g[2, 0],
            g[0, 2] + k2 * g[0, 0],
        )

    size = (np.pi / np.ptp(x)) ** 4 + k2**2
    noise = 0.01**2 * size / on.weights
    inverse = np.linalg.inv(blocks_of(z, z)[0] + np.diag(noise))
    prior = gaussian_derivatives(h, x, x)
    priors = [blocks_of(x, x)[0].diagonal(), prior[2, 2].diagonal(), prior[0, 0].diagonal()]
    left = [p - np.einsum("ij,jk,ik->i", c, inverse, c) for p, c in zip(priors, blocks_of(x, z), strict=True)]
    residuals, second, itself = (finer.weights @ variance for variance in left)
    exact = np.log(residuals / (size * itself if single else second + k2**2 * itself))
    operator = DX**2 if single else DX**2 + k2 * ps.identity
    for rho, eta, scale in ((1.0, 1.0, 1.0), (0.01, 30.0, 2.5)):  # it depends on neither temperatures nor variances
        model = ps.Model(scale * ps.RBF(h), physics=ps.impose(operator, 5.0, on=on), rho=rho, eta=eta)
        assert ps.data_free_pile(model).normalised == pytest.approx(exact, rel=1e-9)


def test_normalised_score_of_kernels_without_solutions() -> None:
    k = 12.0
    physics = ps.impose(DX**2 + k**2 * ps.identity, 0.0, on=LINE.interior(ps.GaussLegendre(24)))
    kernels = {"short": ps.RBF(0.02), "good": ps.RBF(0.2), "long": ps.RBF(2.0)}
    scores = {name: ps.data_free_pile(ps.Model(kernel, physics=physics)) for name, kernel in kernels.items()}
    assert scores["good"].normalised < -4
    assert max(abs(scores["short"].normalised), abs(scores["long"].normalised)) < 0.5
    assert min(scores, key=lambda name: scores[name].value) == "long"  # which is why there is a normalised score


def test_normalised_score_is_invariant_to_units() -> None:
    wide = ps.Box(t=(0, 10), x=(0, 2 * np.pi))
    dt, dx = ps.partials(wide)
    slow = ps.impose(5 * (dt + 0.2 * dx), 0.0, on=wide.interior(ps.GaussLegendre(12)))
    found = ps.data_free_pile(ps.Model(ps.RBF([3.0, 1.1]), physics=slow)).normalised
    assert found == pytest.approx(ps.data_free_pile(ps.Model(ps.RBF([0.3, 1.1]), physics=residual(12))).normalised)


def test_conditions_are_left_out_of_the_normalised_score() -> None:
    alone = ps.data_free_pile(ps.Model(ps.RBF([0.6, 1.1]), physics=blocks()[:1]))
    assert ps.data_free_pile(ps.Model(ps.RBF([0.6, 1.1]), physics=blocks())).normalised == alone.normalised
    rule = ps.GaussLegendre(5)
    both = STRIP.face(t=0)(rule) + STRIP.face(x=0)(rule)
    around = ps.dirichlet(0.0, on=both)
    assert ps.data_free_pile(ps.Model(ps.RBF(1.0), physics=[blocks()[0], around])).normalised == pytest.approx(
        ps.data_free_pile(ps.Model(ps.RBF(1.0), physics=blocks()[0])).normalised
    )


def test_why_there_is_no_normalised_score(monkeypatch: pytest.MonkeyPatch) -> None:
    condition = ps.dirichlet(0.0, on=STRIP.face(t=0)(ps.GaussLegendre(5)))
    explicit = ps.impose(DX, 0.0, on=ps.domains.nodes_at([0.2, 0.5, 0.8]))
    level = ps.impose(DX, 0.0, on=LINE.interior(ps.GaussLegendre(4)))
    for kernel, physics, why in (
        (ps.RBF(1.0), condition, "no equation is imposed inside a domain"),
        (ps.RBF(1.0), explicit, "explicit points"),
        (ps.kernels.Constant(1.0) * ps.RBF(1e9), ps.impose(DX + DX**2, 0.0, on=level.nodes), ""),
    ):
        score = ps.data_free_pile(ps.Model(kernel, physics=physics))
        assert np.isnan(score.normalised) == bool(why)
        assert why in score.unnormalised
    flat = ps.data_free_pile(ps.Model(ps.kernels.Constant(1.0), physics=ps.impose(DX + DX**2, 0.0, on=level.nodes)))
    assert "no term of the equation varies" in flat.unnormalised
    monkeypatch.setattr("pilescore.inference.data_free.LARGEST_NORMALISED", 3)
    assert "4 nodes are more than 3" in ps.data_free_pile(ps.Model(ps.RBF(1.0), physics=level)).unnormalised


def test_normalised_landscapes() -> None:
    kernel = ps.AnisotropicRBF(theta=0.0, s=0.3, bandwidth=1.0)
    model = ps.Model(kernel, physics=residual(10, 2.0))
    grid = {"kernel.theta": np.linspace(0, np.pi, 13), "kernel.bandwidth": [0.5, 1.0]}
    found = ps.data_free_landscape(model, grid, normalised=True)
    one = model.replace({"kernel.theta": grid["kernel.theta"][4], "kernel.bandwidth": 0.5})
    assert float(found["normalised"][4, 0]) == pytest.approx(ps.data_free_pile(one).normalised)
    best = found["normalised"].isel({"kernel.bandwidth": 1}).idxmin()
    assert abs(float(best) - np.arctan(2)) < 0.15
    assert "normalised" not in ps.data_free_landscape(model, {"rho": [1.0]})


def test_choices_without_data() -> None:
    condition = ps.dirichlet(0.0, on=STRIP.face(t=0)(ps.GaussLegendre(5)))
    sheared = ps.Model(ps.kernels.ShearedRBF(0.0, [0.3, 1.8]), physics=[residual(8, 20.0), condition])
    found = ps.search.data_free_choice(sheared, {"kernel.shear": (-60.0, 60.0)})
    assert found["kernel.shear"] == pytest.approx(20.0, rel=0.05)
    # a bandwidth is chosen by the normalised score; the paper's score would take the longest
    helmholtz = ps.impose(DX**2 + 144 * ps.identity, 0.0, on=LINE.interior(ps.GaussLegendre(24)))
    model = ps.Model(ps.RBF(1.0), physics=helmholtz)
    chosen = ps.search.data_free_choice(model, {"kernel.bandwidth": (0.02, 5.0)}, points=13, rounds=2)
    assert 0.07 < chosen["kernel.bandwidth"] < 0.3
    with pytest.raises(ps.errors.InputError, match="an equation inside a domain"):
        ps.search.data_free_choice(ps.Model(ps.RBF(1.0), physics=condition), {"kernel.bandwidth": (0.1, 1.0)})
