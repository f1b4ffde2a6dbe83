"""PILE, its terms and its gradient: a fixed workload, fifty digits, SciPy, differences and closed forms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

import pilescore as ps
from pilescore.errors import InputError

from .. import evidence_oracle as eo
from .. import kernel_oracle as ko

ctx = ko.ctx

# ---------------------------------------------------------------- the fixed workload


def workload() -> ps.Model:
    """13 × 13 Chebyshev nodes on (−1, 1)², noisy f = sin πx sin πy and exact Δf at each."""
    axis = np.cos((2 * np.arange(13) + 1) * np.pi / 26)
    points = np.array(list(itertools.product(axis, axis)))
    f = np.sin(np.pi * points[:, 0]) * np.sin(np.pi * points[:, 1])
    y = f + 0.05 * np.random.default_rng(0).standard_normal(169)
    box, weight = ps.Box(x=(-1, 1), y=(-1, 1)), 4 / 169
    return ps.Model(
        ps.RBF(bandwidth=0.5),
        data=ps.observe(ps.identity, values=y, at=points),
        physics=ps.impose(ps.laplacian(box), -2 * np.pi**2 * f, on=ps.domains.nodes_at(points, np.full(169, weight))),
        gamma=2 * 2.5e-3,
        rho=2 * 1e-2 * weight,
        eta=1.0,
    )


def test_fixed_workload() -> None:
    model = workload()
    score, gradient = ps.pile_and_gradient(model, ["kernel.bandwidth", "gamma", "rho"])
    assert score.log_evidence == pytest.approx(171.192499148688, rel=1e-11)
    assert ps.pile(model).log_evidence == pytest.approx(171.192499148688, rel=1e-11)
    assert score.log_evidence == -169 * score.value
    # variances s² = γ/2 and s² = ρ/2w
    chain = {"kernel.bandwidth": 1.0, "gamma": 2.0, "rho": 2 * 4 / 169}
    slopes = [-169 * gradient[name] * factor for name, factor in chain.items()]
    assert slopes == pytest.approx([1050.50599213, -1448.25280069, -4158.41558420], rel=1e-9)


# ---------------------------------------------------------------- fifty digits

Build = Callable[[], ps.Kernel]


def kernels() -> dict[str, tuple[Build, Callable[[], ko.Oracle], float]]:
    """Kernels in two dimensions, the oracle's, and how many derivatives they bear."""
    table: dict[str, tuple[Build, Callable[[], ko.Oracle], float]] = {
        "rbf": (lambda: ps.RBF(0.75), lambda: ko.rbf(0.75), math.inf),
        "axes": (lambda: ps.RBF([0.5, 0.875]), lambda: ko.rbf((0.5, 0.875)), math.inf),
        "anisotropic": (
            lambda: ps.AnisotropicRBF(0.375, 0.75, 0.625),
            lambda: ko.anisotropic_rbf(0.375, 0.75, 0.625),
            math.inf,
        ),
        "rational": (
            lambda: ps.kernels.RationalQuadratic(1.5, [0.75, 1.0]),
            lambda: ko.rational_quadratic(1.5, (0.75, 1.0)),
            math.inf,
        ),
        "periodic": (
            lambda: ps.kernels.Periodic([1.5, 2.5], [0.875, 1.25]),
            lambda: ko.periodic((1.5, 2.5), (0.875, 1.25)),
            math.inf,
        ),
        "product": (
            lambda: ps.Matern(3.5, 0.75).on(0) * ps.RBF(0.875).on(1),
            lambda: ko.matern(3.5, 0.75).on(0) * ko.rbf(0.875).on(1),
            math.inf,
        ),
        "sum": (
            lambda: ps.RBF(0.5) + ps.Matern(4.5, 1.25),
            lambda: ko.rbf(0.5) + ko.matern(4.5, 1.25),
            4,
        ),
        "scaled": (lambda: 2.5 * ps.RBF(0.625), lambda: 2.5 * ko.rbf(0.625), math.inf),
    }
    for nu in (2.5, 3.5, 4.5, 5.5, 6.5):
        table[f"matern-{nu}"] = (
            lambda nu=nu: ps.Matern(nu, 0.875),
            lambda nu=nu: ko.matern(nu, 0.875),
            nu - 0.5,
        )
    return table


def line_kernels() -> dict[str, tuple[Build, Callable[[], ko.Oracle], float]]:
    return {
        "rbf": (lambda: ps.RBF(0.5), lambda: ko.rbf(0.5), math.inf),
        "matern-4.5": (lambda: ps.Matern(4.5, 0.875), lambda: ko.matern(4.5, 0.875), 4),
        "matern-6.5": (lambda: ps.Matern(6.5, 0.75), lambda: ko.matern(6.5, 0.75), 6),
        "rational": (
            lambda: ps.kernels.RationalQuadratic(2.0, 0.75),
            lambda: ko.rational_quadratic(2.0, 0.75),
            math.inf,
        ),
        "periodic": (lambda: ps.kernels.Periodic(2.5, 1.5), lambda: ko.periodic(2.5, 1.5), math.inf),
    }


def k_of(p: Any) -> Any:
    return 1 + p[0] ** 2 + 0.5 * p[0] * p[1]


def operators(box: ps.Box) -> dict[str, tuple[ps.Operator, list[eo.Term]]]:
    """Operators of the library with their terms written out; (t, x) = (first, second) coordinate."""
    if len(box.names) == 1:
        (d,) = ps.partials(box)
        return {"biharmonic": (d**4, [((4,), 1.0)])}
    dt, dx = ps.partials(box)
    k = ps.coefficient(k_of, "k")
    flux = [
        ((2, 0), lambda p: -k_of(p)),
        ((1, 0), lambda p: -(2 * p[0] + 0.5 * p[1])),
        ((0, 2), lambda p: -k_of(p)),
        ((0, 1), lambda p: -0.5 * p[0]),
    ]
    return {
        "identity": (ps.identity, [((0, 0), 1.0)]),
        "derivative": (dx, [((0, 1), 1.0)]),
        "laplacian": (ps.laplacian(box), [((2, 0), 1.0), ((0, 2), 1.0)]),
        "convection": (dt + 30 * dx, [((1, 0), 1.0), ((0, 1), 30.0)]),
        "heat": (dt - 0.1 * dx**2, [((1, 0), 1.0), ((0, 2), -0.1)]),
        "diffusion": (-ps.divergence(box, [k * g for g in ps.gradient(box)]), flux),
        "helmholtz": (ps.laplacian(box) + 6.25, [((2, 0), 1.0), ((0, 2), 1.0), ((0, 0), 6.25)]),
    }


ORDERS = {"identity": 0, "derivative": 1, "convection": 1, "biharmonic": 4}
CONDITIONS = ["none", "dirichlet", "neumann", "robin", "cauchy", "periodic", "initial", "integral"]
GAMMA, RHO, ETA = 0.0625, 0.375, 1.25


def conditions(
    name: str, box: ps.Box, operator: tuple[ps.Operator, list[eo.Term]]
) -> tuple[list[Any], list[Any], list[eo.Block], list[eo.Block]]:
    """Data and physics blocks of the library, then those of the oracle."""
    d = len(box.names)
    zero = (0,) * d
    along = (*zero[1:], 1)
    last, first = box.names[-1], box.names[0]
    rule = ps.GaussLegendre(2)
    low, high = box.face(**{last: box.lower[-1]})(rule), box.face(**{last: box.upper[-1]})(rule)

    def rows(terms: list[eo.Term], on: ps.domains.Nodes, values: Any) -> eo.Block:
        return eo.Block(terms, on.points, values, RHO, on.weights)

    if name == "none":
        return [], [], [], []
    if name == "dirichlet":
        return [], [ps.dirichlet(0.25, on=low)], [], [rows([(zero, 1.0)], low, 0.25)]
    if name == "neumann":
        return [], [ps.neumann(-0.5, on=high)], [], [rows([(along, 1.0)], high, -0.5)]
    if name == "robin":
        block = ps.robin(2.0, lambda p: 1 + p[0], 0.75, on=low)
        return [], [block], [], [rows([(zero, 2.0), (along, lambda p: -(1 + p[0]))], low, 0.75)]
    if name == "cauchy":
        both = [rows([(zero, 1.0)], low, 0.5), rows([(along, -1.0)], low, 0.125)]
        return [], ps.cauchy(0.5, 0.125, on=low), [], both
    if name == "periodic":
        points = np.vstack([low.points, high.points])
        jump = np.hstack([np.eye(len(low)), -np.eye(len(low))])
        both = [eo.Block(terms, points, 0.0, RHO, low.weights, jump) for terms in ([(zero, 1.0)], [(along, -1.0)])]
        return [], [ps.periodic(low, high, derivatives=1)], [], both
    if name == "initial":
        start = box.face(**{first: box.lower[0]})(rule)
        block = ps.dirichlet(lambda p: 0.5 + p[-1] ** 2, on=start)
        return [], [block], [], [rows([(zero, 1.0)], start, 0.5 + start.points[:, -1] ** 2)]
    assert name == "integral"
    cut, whole = box.slice(**{first: 0.5})(ps.GaussLegendre(3)), box(rule)
    data = ps.observe(ps.integral(cut), values=0.75)
    balance = ps.impose(ps.integral(whole, operator[0]), 0.125)
    return (
        [data],
        [balance],
        [eo.Block([(zero, 1.0)], cut.points, 0.75, GAMMA, None, cut.weights[None])],
        [eo.Block(operator[1], whole.points, 0.125, RHO, [1.0], whole.weights[None])],
    )


def chosen() -> list[tuple[str, str, str]]:
    """A third of all operators × kernels, each condition in turn."""
    cases = []
    names = list(operators(ps.Box(x=(0, 1), y=(0, 1))))
    for (o, operator), (k, (kernel, (_, _, bears))) in itertools.product(
        enumerate(names), enumerate(kernels().items())
    ):
        if (o + k) % 3 == 0 and ORDERS.get(operator, 2) <= bears:
            cases.append((operator, kernel, CONDITIONS[(3 * o + k) % 8]))
    for k, kernel in enumerate(line_kernels()):
        cases.append(("biharmonic", kernel, CONDITIONS[(2 * k + 1) % 8]))
    return cases


def test_the_cases_cover_everything() -> None:
    for position, members in enumerate(([*operators(ps.Box(x=(0, 1), y=(0, 1))), "biharmonic"], kernels(), CONDITIONS)):
        for member in members:
            assert sum(case[position] == member for case in chosen()) >= 2, member


@pytest.mark.parametrize(("operator", "kernel", "condition"), chosen(), ids=["-".join(case) for case in chosen()])
def test_pile_against_fifty_digits(operator: str, kernel: str, condition: str) -> None:
    line = operator == "biharmonic"
    evolution = operator in ("convection", "heat")
    box = ps.Box(x=(0, 1)) if line else ps.Box(t=(0, 1), x=(0, 2)) if evolution else ps.Box(x=(0, 1), y=(0, 2))
    d = len(box.names)
    build, oracle, _ = (line_kernels() if line else kernels())[kernel]
    chosen_operator = operators(box)[operator]
    at = np.array([[0.125, 0.25], [0.5, 1.375], [0.8125, 0.6875]])[:, :d]
    y, r = np.array([0.5, -0.25, 0.875]), np.array([1.0, -0.5, 0.25, 2.0])
    inside = box(ps.GaussLegendre(4 if line else 2))
    data, physics, data_blocks, physics_blocks = conditions(condition, box, chosen_operator)
    model = ps.Model(
        build(),
        data=[ps.observe(ps.identity, values=y, at=at), *data],
        physics=[ps.impose(chosen_operator[0], r, on=inside), physics],
        gamma=GAMMA,
        rho=RHO,
        eta=ETA,
    )
    assert model.size <= 12
    blocks = [
        eo.Block([((0,) * d, 1.0)], at, y, GAMMA),
        *data_blocks,
        eo.Block(chosen_operator[1], inside.points, r, RHO, inside.weights),
        *physics_blocks,
    ]
    exact, found = eo.evidence(oracle(), blocks, ETA), ps.pile(model)
    assert found.size == sum(block.size for block in blocks)
    assert found.value == pytest.approx(float(exact.value), rel=1e-10)
    assert found.fit == pytest.approx(float(exact.fit), rel=1e-10)
    assert found.complexity == pytest.approx(float(exact.complexity), rel=1e-10)


# ---------------------------------------------------------------- SciPy and NumPy

SQUARE = ps.Box(x=(-1, 1), y=(-1, 1))
H = 0.625


def poisson(gamma: Any = 0.02, rho: Any = 0.05, eta: Any = 1.0, **options: Any) -> ps.Model:
    """Twelve data and sixteen nodes of the Laplacian with unequal weights."""
    at = np.random.default_rng(3).uniform(-1, 1, (12, 2))
    on = SQUARE(ps.GaussLegendre(4))
    return ps.Model(
        ps.RBF(H),
        data=ps.observe(ps.identity, values=np.sin(3 * at[:, 0]) + at[:, 1], at=at),
        physics=ps.impose(ps.laplacian(SQUARE), lambda p: p[0] - 2 * p[1], on=on, **options),
        gamma=gamma,
        rho=rho,
        eta=eta,
    )


def poisson_gram(model: ps.Model) -> tuple[np.ndarray, np.ndarray]:
    """`Q` of identity and Laplacian for the RBF by its closed forms, and the weights of the rows."""
    x, z = (block.points for block in model.blocks)

    def parts(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        square = ((a[:, None] - b[None]) ** 2).sum(axis=2) / H**2
        return square, np.exp(-0.5 * square)

    _, K = parts(x, x)
    q, k = parts(x, z)
    cross = (q - 2) / H**2 * k
    q, k = parts(z, z)
    G = (q**2 - 8 * q + 8) / H**4 * k
    weights = np.concatenate([np.ones(len(x)), model.blocks[1].weights])
    return np.block([[K, cross], [cross.T, G]]), weights


def test_against_scipy() -> None:
    model = poisson(eta=1.75)
    Q, w = poisson_gram(model)
    temperature = np.repeat([0.02, 0.05], [12, 16])
    at, on = model.blocks[0].points, model.blocks[1].points
    y = np.concatenate([np.sin(3 * at[:, 0]) + at[:, 1], on[:, 0] - 2 * on[:, 1]])
    C = 1.75 * Q + np.diag(temperature / (2 * w))
    score = ps.pile(model)
    assert score.log_evidence == pytest.approx(stats.multivariate_normal(np.zeros(28), C).logpdf(y), rel=1e-11)
    alpha = np.linalg.solve(C, y)
    assert score.fit == pytest.approx(y @ alpha / 28, rel=1e-11)
    assert score.complexity == pytest.approx(np.linalg.slogdet(C)[1] / 28, rel=1e-11)
    shares = {"data.0": y[:12] @ alpha[:12] / 28, "physics.0": y[12:] @ alpha[12:] / 28}
    assert dict(score.shares) == pytest.approx(shares, rel=1e-9)


def test_terms() -> None:
    model = poisson(name="equation")
    score = ps.pile(model)
    assert score.value == pytest.approx(score.fit + score.complexity + score.constant, rel=1e-15)
    assert score.constant == pytest.approx(math.log(2 * math.pi), rel=1e-15)
    assert float(score) == score.value
    assert set(score.shares) == {"data.0", "equation"}
    assert sum(score.shares.values()) == pytest.approx(score.fit, rel=1e-12)
    assert score.size == 28
    assert score.eta == 1.0
    assert score.free_energy == pytest.approx(14 * score.value, rel=1e-15)
    assert score.log_evidence == -score.free_energy
    assert 0 < score.rounding < 1e-9
    assert repr(score).startswith(f"Pile(value={score.value:.6g}, fit=")


def test_one_observation_by_hand() -> None:
    """y ~ N(0, η + γ/2); f'(z) ~ N(0, η/h² + ρ/2w); noise is a standard deviation."""
    (d,) = ps.partials(ps.Box(x=(0, 1)))

    def by_hand(y: float, variance: float) -> float:
        return y**2 / variance + math.log(2 * math.pi * variance)

    kernel = ps.RBF(0.5)
    cases = [
        (ps.Model(kernel, ps.observe(ps.identity, 0.7, at=[0.3]), gamma=0.4, eta=2.0), 0.7, 2.0 + 0.2),
        (ps.Model(kernel, ps.observe(ps.identity, 0.7, at=[0.3], gamma=3.0), gamma=0.4), 0.7, 1.0 + 1.5),
        (ps.Model(kernel, ps.observe(ps.identity, 0.7, at=[0.3], noise=0.3)), 0.7, 1.0 + 0.09),
        (
            ps.Model(kernel, physics=ps.impose(d, 1.5, on=ps.domains.nodes_at([0.3], [0.25])), rho=0.6, eta=2.0),
            1.5,
            8.0 + 0.6 / 0.5,
        ),
        (ps.Model(kernel, physics=ps.impose(d, 1.5, on=ps.domains.nodes_at([0.3], [0.25]), rho=2.0)), 1.5, 4.0 + 4.0),
        (ps.Model(kernel, physics=ps.impose(d, 1.5, on=ps.domains.nodes_at([0.3], [9.0]), noise=0.5)), 1.5, 4.25),
    ]
    for model, y, variance in cases:
        assert ps.pile(model).value == pytest.approx(by_hand(y, variance), rel=1e-13)


@pytest.mark.parametrize("eta", [1.0, 0.4, 3.0])
def test_printed_formula(eta: float) -> None:
    model = poisson(gamma=0.02, rho=0.05, eta=eta)
    Q, w = poisson_gram(model)
    Sigma = Q + eta * np.diag(np.repeat([0.02, 0.05], [12, 16]) / w)
    y = model.values
    expected = (y @ np.linalg.solve(Sigma, y) + np.linalg.slogdet(Sigma)[1]) / 28 + math.log(2 * math.pi * eta)
    score = ps.pile(model, score=ps.Score(formula="printed"))
    assert score.value == pytest.approx(expected, rel=1e-11)
    assert score.constant == pytest.approx(math.log(2 * math.pi * eta), rel=1e-15)
    assert score.value == pytest.approx(score.fit + score.complexity + score.constant, rel=1e-15)


def test_printed_formula_is_the_evidence_at_unit_scale_with_halved_temperatures() -> None:
    halved = ps.pile(poisson(gamma=0.01, rho=0.025), score=ps.Score(formula="printed")).value
    assert halved == pytest.approx(ps.pile(poisson(gamma=0.02, rho=0.05)).value, rel=1e-13)
    elsewhere = ps.pile(poisson(gamma=0.01, rho=0.025, eta=2.0), score=ps.Score(formula="printed")).value
    assert abs(elsewhere - ps.pile(poisson(gamma=0.02, rho=0.05, eta=2.0)).value) > 1e-3


# ---------------------------------------------------------------- the gradient by name


class Bump(eqx.Module):
    """A positive coefficient with a vector and a scalar of parameters."""

    slope: jax.Array
    level: jax.Array

    def __call__(self, p: Any) -> Any:
        return jnp.exp(self.level + jnp.dot(self.slope, p))


class Stretch(eqx.Module):
    rate: jax.Array

    def __call__(self, p: Any) -> Any:
        return p + self.rate * jnp.sin(p)


def gibbs(x: Any, y: Any, scale: Any, lengths: Any) -> Any:
    return scale**2 * jnp.exp(-0.5 * jnp.sum(((x - y) / lengths) ** 2)) * (1 + 0.5 * x[0] * y[0])


LINE = ps.Box(x=(0, 1))


def plane_model(kernel: ps.Kernel, physics: list[Any], data: list[Any] | None = None) -> ps.Model:
    at = np.array([[-0.5, 0.25], [0.375, -0.75], [0.75, 0.5], [-0.125, -0.25]])
    first = ps.observe(ps.identity, values=[0.5, -1.0, 0.25, 0.75], at=at)
    return ps.Model(kernel, [first, *(data or [])], physics, gamma=0.3, rho=0.4, eta=1.3)


def on_square(operator: Any, value: float = 0.5, **options: Any) -> ps.Observation:
    return ps.impose(operator, value, on=SQUARE(ps.GaussLegendre(2)), **options)


def gradient_models() -> dict[str, tuple[Callable[[], ps.Model], set[str]]]:
    """Models with the names of their hyperparameters, apart from gamma, rho and eta."""
    dx, dy = ps.partials(SQUARE)
    mass = ps.integral(SQUARE.slice(x=0.5)(ps.GaussLegendre(2)))
    spots = np.array([[0.25, 0.5], [-0.75, -0.5]])

    def beta() -> ps.Operator:
        return ps.parameter("beta", 3.0)

    def tied() -> ps.Model:
        slope = ps.observe(beta() ** 2 * dx, values=[1.0, -1.0], at=spots)
        flow = dx + beta() * dy
        return plane_model(
            ps.RBF([0.75, 1.25]),
            [on_square(flow), ps.impose(ps.integral(SQUARE(ps.GaussLegendre(2)), flow * flow), 0.25)],
            [slope],
        )

    def module() -> ps.Model:
        k = ps.coefficient(Bump(jnp.array([0.4, -0.3]), jnp.asarray(0.2)), "k")
        right, left = (SQUARE.face(x=x)(ps.GaussLegendre(1)) for x in (1, -1))
        flux = -ps.divergence(SQUARE, [k * g for g in ps.gradient(SQUARE)])
        return plane_model(
            ps.RBF(0.875),
            [on_square(flux), ps.neumann(0.0, on=right), ps.impose(k * dx, 0.5, on=left)],
            [ps.observe(ps.integral(right, k * dx), values=0.25)],
        )

    def one_dimension() -> ps.Model:
        (d,) = ps.partials(LINE)
        kernel = (
            ps.kernels.Periodic(1.5, 1.25)
            + ps.kernels.RationalQuadratic(1.5, 0.625)
            + ps.kernels.spectral_mixture([0.75], [[0.5]], [[0.875]])
            + ps.kernels.Polynomial(2, 0.5)
            + ps.kernels.Constant(0.25)
        )
        data = ps.observe(ps.identity, values=[0.1, 0.9, -0.4], at=[0.125, 0.5, 0.75], gamma=0.125)
        return ps.Model(kernel, data, ps.impose(d, 1.0, on=LINE(ps.GaussLegendre(3))), rho=0.5)

    def blocks() -> ps.Model:
        own = on_square(dx, rho=0.75)
        more = [ps.observe(mass, values=0.5, gamma=0.25), ps.observe(dy, values=0.125, at=spots)]
        return plane_model(ps.RBF(0.75), [on_square(ps.laplacian(SQUARE)), own], more)

    return {
        "blocks": (blocks, {"kernel.bandwidth", "data.1.gamma", "physics.1.rho"}),
        "tied": (tied, {"kernel.bandwidth", "beta"}),
        "anisotropic": (
            lambda: plane_model(ps.AnisotropicRBF(0.5, 0.75, 0.875), [on_square(dx + 3 * dy)]),
            {"kernel.theta", "kernel.s", "kernel.bandwidth"},
        ),
        "whitening": (
            lambda: plane_model(ps.kernels.FullCovarianceRBF([[0.5, 0.25], [0.25, 1.0]]), [on_square(dx - dy)]),
            {"kernel.whitening"},
        ),
        "nested": (
            lambda: plane_model(
                ps.RBF(0.5).on(0) * ps.Matern(2.5, 0.75).on(1) + 1.5 * ps.Matern(2.5, [0.75, 1.5]),
                [on_square(dx + dy)],
            ),
            {
                "kernel.parts.0.parts.0.kernel.bandwidth",
                "kernel.parts.0.parts.1.kernel.bandwidth",
                "kernel.parts.1.variance",
                "kernel.parts.1.kernel.bandwidth",
            },
        ),
        "parts": (
            lambda: plane_model(ps.RBF(0.5) + ps.kernels.LinearMap(ps.RBF(0.75), [[1.0, -0.5]]), [on_square(dx)]),
            {"kernel.parts.0.bandwidth", "kernel.parts.1.kernel.bandwidth", "kernel.parts.1.matrix"},
        ),
        "function": (
            lambda: plane_model(
                ps.kernels.FunctionKernel(gibbs, {"scale": 1.25, "lengths": [0.75, 1.0]}),
                [on_square(dx + dy), ps.impose(mass, 0.25)],
            ),
            {"kernel.parameters.scale", "kernel.parameters.lengths"},
        ),
        "warped": (
            lambda: plane_model(ps.kernels.Warped(ps.RBF(0.875), Stretch(jnp.array([0.25, -0.125]))), [on_square(dx)]),
            {"kernel.kernel.bandwidth", "kernel.warp.rate"},
        ),
        "module": (module, {"kernel.bandwidth", "k.slope", "k.level"}),
        "line": (
            one_dimension,
            {
                "kernel.parts.0.period",
                "kernel.parts.0.bandwidth",
                "kernel.parts.1.alpha",
                "kernel.parts.1.bandwidth",
                "kernel.parts.2.variance",
                "kernel.parts.2.kernel.parts.0.bandwidth",
                "kernel.parts.2.kernel.parts.1.frequency",
                "kernel.parts.3.offset",
                "kernel.parts.4.value",
                "data.0.gamma",
            },
        ),
    }


def differences(model: ps.Model, name: str, profiled: bool = False) -> np.ndarray:
    """Central differences of `ps.pile` in every entry, extrapolated once."""
    value = np.asarray(model.parameters[name])
    slopes = np.empty(value.size)
    for i in range(value.size):
        step = 2e-3 * max(abs(value.flat[i]), 0.1)

        def quotient(h: float, i: int = i) -> float:
            scores = []
            for sign in (1, -1):
                moved = np.array(value, dtype=float)
                moved.flat[i] += sign * h
                scores.append(ps.pile(model.replace({name: moved}), score=ps.Score(profiled=profiled)).value)
            return (scores[0] - scores[1]) / (2 * h)

        slopes[i] = (4 * quotient(step / 2) - quotient(step)) / 3
    return slopes.reshape(value.shape)


@pytest.mark.slow
@pytest.mark.parametrize("which", gradient_models())
def test_gradient_against_differences(which: str) -> None:
    build, names = gradient_models()[which]
    model = build()
    shared = {"rho", "eta"} if which == "line" else {"gamma", "rho", "eta"}
    assert set(model.parameters) == names | shared
    score, gradient = ps.pile_and_gradient(model)
    assert score.value == pytest.approx(ps.pile(model).value, rel=1e-14)
    assert list(gradient) == list(model.parameters)
    for name, slope in gradient.items():
        assert np.shape(slope) == np.shape(model.parameters[name])
        expected = differences(model, name)
        np.testing.assert_allclose(slope, expected, rtol=1e-6, atol=2e-9, err_msg=name)
        assert np.max(np.abs(expected)) > 1e-7, name  # something was tested


@pytest.mark.parametrize("which", ["blocks", "tied"])
def test_profiled_gradient_against_differences(which: str) -> None:
    model = gradient_models()[which][0]()
    score, gradient = ps.pile_and_gradient(model, score="profiled")
    assert score.value == pytest.approx(ps.pile(model, score="profiled").value, rel=1e-14)
    for name, slope in gradient.items():
        expected = differences(model, name, profiled=True)
        np.testing.assert_allclose(slope, expected, rtol=1e-6, atol=2e-9, err_msg=name)


def test_gradient_of_chosen_names_only() -> None:
    model = gradient_models()["tied"][0]()
    _, full = ps.pile_and_gradient(model)
    for names in (["beta"], ["rho", "kernel.bandwidth"], ["eta", "beta", "gamma"], []):
        _, part = ps.pile_and_gradient(model, names)
        assert list(part) == names
        for name in names:
            np.testing.assert_allclose(part[name], full[name], rtol=1e-12)


def test_gradient_against_fifty_digits() -> None:
    """Everything scalar of a convection problem with a tied speed, by differences in mpmath."""
    box = ps.Box(t=(0, 1), x=(0, 2))
    dt, dx = ps.partials(box)
    beta = ps.parameter("beta", 3.0)
    at = np.array([[0.125, 0.25], [0.5, 1.375], [0.8125, 0.6875]])
    y, inside = [0.5, -0.25, 0.875], box(ps.GaussLegendre(2))
    values = {
        "kernel.theta": 0.375,
        "kernel.s": 0.75,
        "kernel.bandwidth": 0.875,
        "beta": 3.0,
        "gamma": 0.125,
        "rho": 0.25,
        "eta": 1.5,
    }
    model = ps.Model(
        ps.AnisotropicRBF(0.375, 0.75, 0.875),
        data=[ps.observe(ps.identity, values=y, at=at), ps.observe(beta * dx, values=0.5, at=at[:1])],
        physics=[
            ps.impose(dt + beta * dx, 0.0, on=inside),
            ps.impose(ps.integral(inside, beta**2 * dx), 0.5, rho=0.5),
        ],
        gamma=0.125,
        rho=0.25,
        eta=1.5,
    )

    def exact(changed: dict[str, Any]) -> Any:
        v = {**values, **changed}
        kernel = ko.anisotropic_rbf(v["kernel.theta"], v["kernel.s"], v["kernel.bandwidth"])
        speed = ko.number(v["beta"])
        blocks = [
            eo.Block([((0, 0), 1.0)], at, y, v["gamma"]),
            eo.Block([((0, 1), speed)], at[:1], 0.5, v["gamma"]),
            eo.Block([((1, 0), 1.0), ((0, 1), speed)], inside.points, 0.0, v["rho"], inside.weights),
            eo.Block([((0, 1), speed**2)], inside.points, 0.5, 0.5, [1.0], inside.weights[None]),
        ]
        return eo.evidence(kernel, blocks, v["eta"]).value

    score, gradient = ps.pile_and_gradient(model, list(values))
    assert score.value == pytest.approx(float(exact({})), rel=1e-11)
    for name, at_value in values.items():
        expected = float(eo.slope(lambda x, name=name: exact({name: x}), at_value))
        assert gradient[name] == pytest.approx(expected, rel=1e-8), name


def test_matern_gradient_against_fifty_digits() -> None:
    """With nodes shared by both blocks, so that pairs at distance zero count."""
    (d,) = ps.partials(LINE)
    nodes = LINE(ps.GaussLegendre(4))
    y = [0.5, -0.25, 0.875, 0.125]
    model = ps.Model(
        ps.Matern(2.5, 0.375),
        ps.observe(ps.identity, values=y, at=nodes.points),
        ps.impose(d**2 + 4, 1.0, on=nodes),
        gamma=0.125,
        rho=2.0,
    )

    def exact(h: Any) -> Any:
        blocks = [
            eo.Block([((0,), 1.0)], nodes.points, y, 0.125),
            eo.Block([((2,), 1.0), ((0,), 4.0)], nodes.points, 1.0, 2.0, nodes.weights),
        ]
        return eo.evidence(ko.matern(2.5, h), blocks).value

    score, gradient = ps.pile_and_gradient(model, ["kernel.bandwidth"])
    assert score.value == pytest.approx(float(exact(0.375)), rel=1e-11)
    assert gradient["kernel.bandwidth"] == pytest.approx(float(eo.slope(exact, 0.375)), rel=1e-8)


# ---------------------------------------------------------------- the profiled scale


def at_scale(model: ps.Model, factor: float) -> ps.Model:
    """The model with every temperature and η multiplied by a factor."""
    names = [n for n in model.parameters if n.split(".")[-1] in ("gamma", "rho", "eta")]
    return model.replace({name: factor * model.parameters[name] for name in names})


@pytest.mark.parametrize("which", ["blocks", "tied"])
def test_profiled_is_the_minimum_over_the_scale(which: str) -> None:
    model = gradient_models()[which][0]()
    score = ps.pile(model, score="profiled")
    found = optimize.minimize_scalar(
        lambda s: ps.pile(at_scale(model, math.exp(s))).value, bracket=(-2.0, 2.0), options={"xtol": 1e-10}
    )
    assert score.value == pytest.approx(found.fun, rel=1e-12)
    assert score.eta == pytest.approx(1.3 * math.exp(found.x), rel=1e-6)
    best = at_scale(model, score.eta / 1.3)
    assert ps.pile(best).value == pytest.approx(score.value, rel=1e-12)
    assert ps.pile(best).fit == pytest.approx(1.0, rel=1e-12)
    assert score.fit == 1.0
    assert score.value == pytest.approx(score.fit + score.complexity + score.constant, rel=1e-14)
    assert sum(score.shares.values()) == pytest.approx(1.0, rel=1e-12)
    assert ps.pile(at_scale(model, 7.0), score="profiled").value == pytest.approx(score.value, rel=1e-12)
    _, gradient = ps.pile_and_gradient(best)
    total = sum(gradient[n] * best.parameters[n] for n in gradient if n.split(".")[-1] in ("gamma", "rho", "eta"))
    assert total == pytest.approx(0.0, abs=1e-12)


def test_profiled_formula() -> None:
    """`η̂ = ỹᵀC̃⁻¹ỹ/N` and `log 2πη̂ + 1 + log det C̃/N` with `C̃ = Q + S/η`, in NumPy."""
    model = poisson(eta=2.0)
    Q, w = poisson_gram(model)
    C = Q + np.diag(np.repeat([0.02, 0.05], [12, 16]) / (2 * w) / 2.0)
    y = model.values
    eta = y @ np.linalg.solve(C, y) / 28
    score = ps.pile(model, score="profiled")
    assert score.eta == pytest.approx(eta, rel=1e-11)
    expected = math.log(2 * math.pi * eta) + 1 + np.linalg.slogdet(C)[1] / 28
    assert score.value == pytest.approx(expected, rel=1e-11)


def test_profiled_needs_a_value_that_is_not_zero() -> None:
    (d,) = ps.partials(LINE)
    model = ps.Model(ps.RBF(0.5), physics=ps.impose(d, 0.0, on=LINE(ps.GaussLegendre(3))), rho=1.0)
    with pytest.raises(InputError, match="not zero"):
        ps.pile(model, score="profiled")
    with pytest.raises(InputError, match="profiled"):
        ps.pile(poisson(), score=ps.Score(profiled=True, formula="printed"))
    with pytest.raises((InputError, TypeError)):
        ps.pile(poisson(), score=ps.Score(formula="wrong"))


# ---------------------------------------------------------------- batches and names


@pytest.mark.parametrize("score", ["joint", "profiled"])
def test_a_model_with_other_values_scores_as_one_made_anew(score: str) -> None:
    model = gradient_models()["tied"][0]()
    columns = {
        "kernel.bandwidth": np.array([[0.5, 0.75], [1.0, 0.625], [0.875, 0.875]]),
        "rho": [0.1, 0.2, 0.3],
        "beta": np.array([1.0, -2.0, 4.0]),
    }
    found = [ps.pile(model.replace({k: v[i] for k, v in columns.items()}), score).value for i in range(3)]
    assert len(set(np.round(found, 6))) == 3
    for i in range(3):
        dx, dy = ps.partials(SQUARE)
        flow = dx + ps.parameter("beta", columns["beta"][i]) * dy
        slope = ps.parameter("beta", columns["beta"][i]) ** 2 * dx
        spots = np.array([[0.25, 0.5], [-0.75, -0.5]])
        fresh = plane_model(
            ps.RBF(columns["kernel.bandwidth"][i]),
            [
                on_square(flow),
                ps.impose(ps.integral(SQUARE(ps.GaussLegendre(2)), flow * flow), 0.25),
            ],
            [ps.observe(slope, values=[1.0, -1.0], at=spots)],
        ).replace({"rho": columns["rho"][i]})
        assert found[i] == pytest.approx(ps.pile(fresh, score).value, rel=1e-12)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("kernel.bandwith", "kernel.bandwidth"), ("gama", "gamma"), ("Rho", "rho"), ("physics.1.roh", "rho")],
)
def test_misspelt_names_get_a_suggestion(wrong: str, right: str) -> None:
    model = gradient_models()["blocks"][0]()
    hint = rf"no hyperparameter '{wrong}'\. Did you mean '[a-z0-9.]*{right}'\? This model has: kernel"
    for call in (
        lambda: ps.pile_and_gradient(model, [wrong]),
        lambda: ps.sweep(model, {wrong: [1.0]}),
        lambda: model.replace({wrong: 1.0}),
    ):
        with pytest.raises(InputError, match=hint):
            call()
    with pytest.raises(InputError, match=r"no hyperparameter 'zzzzzz'\. This model has"):
        ps.pile_and_gradient(model, ["zzzzzz"])


def test_one_name_has_one_value_in_all_blocks() -> None:
    dx, dy = ps.partials(SQUARE)
    first, second = (on_square(dx + ps.parameter("beta", v) * dy) for v in (1.0, 2.0))
    with pytest.raises(InputError, match="'beta' has different values"):
        plane_model(ps.RBF(0.5), [first, second])
    with pytest.raises(InputError, match="'eta', which the model uses"):
        plane_model(ps.RBF(0.5), [on_square(dx + ps.parameter("eta", 1.0) * dy)])


class Density(eqx.Module):
    rho: jax.Array

    def __call__(self, p: Any) -> Any:
        return self.rho + 2 * p[0]


def test_parameters_of_a_module_may_have_any_sign_and_name() -> None:
    """`k.rho` is a number of the user's module, not a temperature."""
    dx, _ = ps.partials(SQUARE)
    k = ps.coefficient(Density(jnp.asarray(0.5)), "k")
    model = plane_model(ps.RBF(0.5), [on_square(k * dx)])
    moved = model.replace({"k.rho": -1.5})
    fresh = plane_model(ps.RBF(0.5), [on_square(ps.coefficient(lambda p: 2 * p[0] - 1.5) * dx)])
    assert ps.pile(moved).value == pytest.approx(ps.pile(fresh).value, rel=1e-13)


@pytest.mark.parametrize("name", ["kernel", "data", "physics"])
def test_a_field_may_not_be_taken_for_a_part_of_the_model(name: str) -> None:
    with pytest.raises(InputError, match="name"):
        ps.coefficient(Density(jnp.asarray(0.5)), name)


def test_a_function_whose_own_name_is_taken_is_still_a_coefficient() -> None:
    def kernel(p: Any) -> Any:
        return 2 * p[0]

    dx, _ = ps.partials(SQUARE)
    operator = kernel * dx
    assert float(operator(lambda p: p[0] ** 2)((0.5, 0.0))) == pytest.approx(1.0, rel=1e-14)
