"""All kernels and their mixed derivatives against fifty-digit reference values (`kernel_oracle`)."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilescore import kernels as pk
from pilescore.errors import InputError

from .. import kernel_oracle as ko

Index = tuple[int, ...]
Pair = tuple[Index, Index]

TOLERANCE = 1e-9  # relative to the Cauchy–Schwarz bound of each derivative
HALVES = [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5]


def within(*limits: tuple[tuple[int, ...], float]) -> Callable[[Index], bool]:
    """Whether a multi-index takes at most `limit` derivatives on the coordinates of each group."""
    return lambda alpha: all(sum(alpha[i] for i in axes if i < len(alpha)) <= limit for axes, limit in limits)


def smooth(_alpha: Index) -> bool:
    return True


@dataclasses.dataclass(frozen=True)
class Case:
    """One kernel of the library, the oracle's expression for it, and which derivatives it supports."""

    name: str
    dimension: int
    build: Callable[[], Any]
    oracle: ko.Oracle
    supports: Callable[[Index], bool] = smooth
    order: int = 4
    positive: bool = False
    automatic: bool = False  # differentiated by autodiff, which needs arrays and compiles slowly
    limit: int | None = None  # the number of sampled pairs of multi-indices if all would take too long

    @property
    def id(self) -> str:
        return f"{self.name}-{self.dimension}d"


BANDWIDTHS = {1: (0.75,), 2: (0.75, 1.5), 3: (0.75, 1.5, 0.5)}
PERIODS = {1: (1.25,), 2: (1.25, 2.0), 3: (1.25, 2.0, 0.75)}
FREQUENCIES = {1: (0.625,), 2: (0.625, -0.25), 3: (0.625, -0.25, 0.5)}
COVARIANCES = {
    1: [[0.5]],
    2: [[0.5, 0.25], [0.25, 1.0]],
    3: [[0.5, 0.25, -0.125], [0.25, 1.0, 0.25], [-0.125, 0.25, 0.75]],
}
WEIGHTS = (0.75, 1.5)
MIXTURE_FREQUENCIES = {d: (f, tuple(0.5 * v + 0.125 for v in f)) for d, f in FREQUENCIES.items()}
MIXTURE_BANDWIDTHS = {d: (h, tuple(2 * v for v in reversed(h))) for d, h in BANDWIDTHS.items()}
WIDE = ((0.5, -0.25, 1.0), (0.75, 1.25, -0.5))  # maps space to the plane
TALL = ((0.5, -0.25), (0.75, 1.25), (-0.5, 1.0))  # maps the plane to space
SINGULAR = ((0.5, 1.0), (1.0, 2.0))


def _array(value: Any) -> np.ndarray:
    return np.asarray(value, dtype=np.float64)


def stationary_cases() -> list[Case]:
    cases = []
    for d in (1, 2, 3):
        h, p, f = BANDWIDTHS[d], PERIODS[d], FREQUENCIES[d]
        axes = tuple(range(d))
        cases += [
            Case("rbf", d, lambda h=h: pk.RBF(_array(h)), ko.rbf(h)),
            Case(
                "full",
                d,
                lambda d=d: pk.FullCovarianceRBF(_array(COVARIANCES[d])),
                ko.full_covariance_rbf(COVARIANCES[d]),
                limit=40 if d == 3 else None,
            ),
            Case(
                "rational",
                d,
                lambda h=h: pk.RationalQuadratic(alpha=0.75, bandwidth=_array(h)),
                ko.rational_quadratic(0.75, h),
            ),
            Case(
                "periodic",
                d,
                lambda p=p, h=h: pk.Periodic(period=_array(p), bandwidth=_array(h)),
                ko.periodic(p, h),
            ),
            Case("cosine", d, lambda f=f: pk.Cosine(_array(f)), ko.cosine(f)),
            Case(
                "mixture",
                d,
                lambda d=d: pk.spectral_mixture(
                    _array(WEIGHTS), _array(MIXTURE_FREQUENCIES[d]), _array(MIXTURE_BANDWIDTHS[d])
                ),
                ko.spectral_mixture(WEIGHTS, MIXTURE_FREQUENCIES[d], MIXTURE_BANDWIDTHS[d]),
                limit=24 if d == 1 else 8,
                order=4 if d < 3 else 3,
            ),
            Case("constant", d, lambda: pk.Constant(1.5), ko.constant(1.5)),
        ]
        for nu in HALVES:
            limit = within((axes, math.ceil(nu) - 1))
            cases.append(
                Case(
                    f"matern-{nu}",
                    d,
                    lambda nu=nu, h=h: pk.Matern(nu, _array(h)),
                    ko.matern(nu, h),
                    limit,
                )
            )
    return [
        *cases,
        Case("rbf-default", 2, lambda: pk.RBF(), ko.rbf()),
        Case("rbf-scalar", 3, lambda: pk.RBF(bandwidth=0.3), ko.rbf(0.3)),
        Case("matern-default", 2, lambda: pk.Matern(), ko.matern(2.5, 1.0), within(((0, 1), 2))),
        Case("matern-scalar", 3, lambda: pk.Matern(4.5, 0.3), ko.matern(4.5, 0.3)),
        Case("rational-default", 2, lambda: pk.RationalQuadratic(), ko.rational_quadratic()),
        Case("periodic-default", 1, lambda: pk.Periodic(), ko.periodic()),
        Case("periodic-scalar", 2, lambda: pk.Periodic(1.5, 0.75), ko.periodic(1.5, 0.75)),
        Case("cosine-scalar", 1, lambda: pk.Cosine(0.625), ko.cosine(0.625)),
        Case(
            "anisotropic",
            2,
            lambda: pk.AnisotropicRBF(0.625, 1.5, 0.75),
            ko.anisotropic_rbf(0.625, 1.5, 0.75),
        ),
        Case("sheared", 2, lambda: pk.ShearedRBF(1.625, (0.75, 1.5)), ko.sheared_rbf(1.625, (0.75, 1.5))),
        Case("sheared-default", 2, lambda: pk.ShearedRBF(-0.4), ko.sheared_rbf(-0.4)),
        Case("anisotropic-default", 2, lambda: pk.AnisotropicRBF(-2.0, 0.4), ko.anisotropic_rbf(-2.0, 0.4)),
    ]


def other_cases() -> list[Case]:
    cases = [Case("linear", d, lambda: pk.Linear(), ko.linear()) for d in (1, 2, 3)]
    for degree, d in ((1, 2), (3, 1), (3, 3), (9, 1), (9, 2)):
        cases.append(
            Case(
                f"polynomial-{degree}",
                d,
                lambda degree=degree: pk.Polynomial(degree, offset=0.5),
                ko.polynomial(degree, 0.5),
                automatic=True,
                limit=6,
            )
        )
    cases += [
        Case("wiener", 1, lambda: pk.Wiener(), ko.wiener(), within(((0,), 0)), positive=True),
        Case(
            "integrated",
            1,
            lambda: pk.IntegratedWiener(),
            ko.integrated_wiener(),
            within(((0,), 1)),
            positive=True,
        ),
    ]
    return cases


def composite_cases() -> list[Case]:
    return [
        Case(
            "sum",
            2,
            lambda: pk.RBF(0.7) + pk.Matern(4.5, _array((0.75, 1.5))),
            ko.rbf(0.7) + ko.matern(4.5, (0.75, 1.5)),
        ),
        Case(
            "sum-rough",
            2,
            lambda: pk.RBF(0.7) + pk.Matern(2.5) + pk.Linear(),
            ko.rbf(0.7) + ko.matern(2.5) + ko.linear(),
            within(((0, 1), 2)),
        ),
        Case("scaled", 2, lambda: 2.5 * pk.RBF(0.7), ko.number(2.5) * ko.rbf(0.7)),
        Case(
            "product",
            2,
            lambda: pk.Matern(5.5, 0.8) * pk.Periodic(1.5, 0.75),
            ko.matern(5.5, 0.8) * ko.periodic(1.5, 0.75),
            limit=12,
        ),
        Case(
            "product-rough",
            1,
            lambda: pk.Matern(2.5, 0.8) * pk.Polynomial(2),
            ko.matern(2.5, 0.8) * ko.polynomial(2),
            within(((0,), 2)),
            automatic=True,
            limit=6,
        ),
        Case(
            "locally-periodic",
            1,
            lambda: 0.5 * (pk.RBF(2.0) * pk.Periodic(1.25, 0.75) + pk.RationalQuadratic(0.75)),
            ko.number(0.5) * (ko.rbf(2.0) * ko.periodic(1.25, 0.75) + ko.rational_quadratic(0.75)),
        ),
        Case(
            "time-by-space",
            3,
            lambda: pk.Matern(1.5, 0.8).on(0) * pk.RBF(_array((0.75, 1.5))).on(1, 2),
            ko.matern(1.5, 0.8).on(0) * ko.rbf((0.75, 1.5)).on(1, 2),
            within(((0,), 1)),
        ),
        Case(
            "rough-by-rough",
            2,
            lambda: pk.Matern(2.5, 0.8).on(0) * pk.Matern(4.5, 0.5).on(1),
            ko.matern(2.5, 0.8).on(0) * ko.matern(4.5, 0.5).on(1),
            within(((0,), 2), ((1,), 4)),
        ),
        Case(
            "interleaved",
            3,
            lambda: pk.FullCovarianceRBF(_array(COVARIANCES[2])).on(2, 0) * pk.Periodic(1.5, 0.75).on(1),
            ko.full_covariance_rbf(COVARIANCES[2]).on(2, 0) * ko.periodic(1.5, 0.75).on(1),
            limit=14,
        ),
        Case(
            "sum-over-axes",
            2,
            lambda: pk.RBF(0.7).on(0) + pk.Matern(3.5).on(1),
            ko.rbf(0.7).on(0) + ko.matern(3.5).on(1),
            within(((1,), 3)),
        ),
        Case(
            "nested",
            2,
            lambda: (pk.RBF(0.7).on(0) + pk.Linear().on(1)) * pk.Matern(4.5),
            (ko.rbf(0.7).on(0) + ko.linear().on(1)) * ko.matern(4.5),
            limit=12,
        ),
        Case(
            "wiener-by-space",
            2,
            lambda: pk.Wiener().on(0) * pk.RBF(0.7).on(1),
            ko.wiener().on(0) * ko.rbf(0.7).on(1),
            within(((0,), 0)),
            positive=True,
        ),
        Case(
            "integrated-by-space",
            2,
            lambda: pk.IntegratedWiener().on(0) * pk.Matern(3.5, 0.8).on(1),
            ko.integrated_wiener().on(0) * ko.matern(3.5, 0.8).on(1),
            within(((0,), 1), ((1,), 3)),
            positive=True,
        ),
        Case(
            "evolution",
            2,
            lambda: pk.Evolution(pk.RBF(0.8), (0.0, 2.0)),
            ko.rbf(0.8).on(1) + (0.25 * (ko.linear() * ko.rbf(2.0))).on(0) * ko.rbf(0.6).on(1),
            limit=12,
        ),
        Case(
            "map-wide",
            3,
            lambda: pk.LinearMap(pk.RBF(), _array(WIDE)),
            ko.linear_map(ko.rbf(), WIDE),
            limit=14,
        ),
        Case(
            "map-tall",
            2,
            lambda: pk.LinearMap(pk.RationalQuadratic(0.75), _array(TALL)),
            ko.linear_map(ko.rational_quadratic(0.75), TALL),
            order=3,
            limit=8,
        ),
        Case(
            "map-matern",
            3,
            lambda: pk.LinearMap(pk.Matern(4.5, _array((0.75, 1.5))), _array(WIDE)),
            ko.linear_map(ko.matern(4.5, (0.75, 1.5)), WIDE),
            limit=12,
        ),
        Case(
            "map-rough",
            2,
            lambda: pk.LinearMap(pk.Matern(2.5), _array(SINGULAR)),
            ko.linear_map(ko.matern(2.5), SINGULAR),
            within(((0, 1), 2)),
        ),
        Case(
            "map-polynomial",
            2,
            lambda: pk.LinearMap(pk.Polynomial(5), _array(TALL)),
            ko.linear_map(ko.polynomial(5), TALL),
            order=2,
            automatic=True,
            limit=3,
        ),
    ]


def curve(x: Any) -> Any:
    return jnp.stack([jnp.cos(x[0]), 0.5 * x[0] + 0.25 * jnp.sin(x[0])])


def curve_oracle(x: list[ko.Series]) -> list[ko.Series]:
    return [ko.cos(x[0]), 0.5 * x[0] + 0.25 * ko.sin(x[0])]


def shear(x: Any) -> Any:
    return jnp.stack([x[0] + 0.25 * jnp.sin(x[1]), x[1] + 0.5 * x[0] * x[0]])


def shear_oracle(x: list[ko.Series]) -> list[ko.Series]:
    return [x[0] + 0.25 * ko.sin(x[1]), x[1] + 0.5 * x[0] * x[0]]


def identity(x: Any) -> Any:
    return x


def gibbs(x: Any, y: Any, gain: Any = 1.0) -> Any:
    """A positive definite function that is neither stationary nor a polynomial."""
    return gain * jnp.exp(jnp.sum(jnp.sin(x) * jnp.sin(y)) - 0.5 * jnp.sum((x - y) ** 2))


def gibbs_oracle(gain: float) -> ko.Oracle:
    def function(x: list[ko.Series], y: list[ko.Series]) -> ko.Series:
        exponent = x[0].ring.constant(0)
        for a, b in zip(x, y, strict=True):
            exponent = exponent + ko.sin(a) * ko.sin(b) - 0.5 * (a - b) ** 2
        return gain * ko.exp(exponent)

    return ko.function_kernel(function)


def automatic_cases() -> list[Case]:
    return [
        Case(
            "warped-rbf",
            1,
            lambda: pk.Warped(pk.RBF(), curve),
            ko.warped(ko.rbf(), curve_oracle),
            order=4,
            automatic=True,
            limit=6,
        ),
        Case(
            "warped-matern",
            1,
            lambda: pk.Warped(pk.Matern(2.5), curve),
            ko.warped(ko.matern(2.5), curve_oracle),
            within(((0,), 2)),
            order=4,
            automatic=True,
            limit=6,
        ),
        Case(
            "warped-rbf",
            2,
            lambda: pk.Warped(pk.RBF(), shear),
            ko.warped(ko.rbf(), shear_oracle),
            order=2,
            automatic=True,
            limit=4,
        ),
        Case(
            "warped-matern",
            2,
            lambda: pk.Warped(pk.Matern(2.5, 0.75), shear),
            ko.warped(ko.matern(2.5, 0.75), shear_oracle),
            within(((0, 1), 2)),
            order=2,
            automatic=True,
            limit=4,
        ),
        Case(
            "warped-periodic",
            2,
            lambda: pk.Warped(pk.Matern(1.5).on(0) * pk.Periodic(1.5).on(1), shear),
            ko.warped(ko.matern(1.5).on(0) * ko.periodic(1.5).on(1), shear_oracle),
            within(((0, 1), 1)),
            order=2,
            automatic=True,
            limit=4,
        ),
        Case(
            "function",
            1,
            lambda: pk.FunctionKernel(gibbs, {"gain": 1.5}),
            gibbs_oracle(1.5),
            automatic=True,
            limit=6,
        ),
        Case(
            "function",
            2,
            lambda: pk.FunctionKernel(gibbs, {"gain": 1.5}),
            gibbs_oracle(1.5),
            order=2,
            automatic=True,
            limit=4,
        ),
        Case(
            "function-rough",
            2,
            lambda: pk.FunctionKernel(gibbs, smoothness=1),
            gibbs_oracle(1.0),
            within(((0, 1), 1)),
            order=2,
            automatic=True,
            limit=4,
        ),
    ]


CASES = [*stationary_cases(), *other_cases(), *composite_cases(), *automatic_cases()]
BY_ID = {case.id: case for case in CASES}
assert len(BY_ID) == len(CASES)


def index_pairs(case: Case) -> list[Pair]:
    """Return all pairs of order at most two on each side, and a fixed selection of higher ones."""
    d, supports = case.dimension, case.supports
    low = [a for a in ko.multi_indices(d, min(2, case.order)) if supports(a)]
    every = [a for a in ko.multi_indices(d, case.order) if supports(a)]
    pairs = list(itertools.product(low, low))
    high = [pair for pair in itertools.product(every, every) if max(map(sum, pair)) > 2]
    first, last = (4, *(0,) * (d - 1)), (*(0,) * (d - 1), 4)
    mixed = (2, 2, *(0,) * (d - 2)) if d > 1 else first
    corners = {
        (first, first),
        (first, last),
        (last, mixed),
        (mixed, mixed),
        (last, (0,) * d),
        ((0,) * d, mixed),
    }
    if case.limit is not None:
        top = max(map(sum, every))
        axis = next(a for a in reversed(every) if sum(a) == top)
        chosen = [((0,) * d, (0,) * d), (axis, axis), (every[-1], every[0])]
        return [
            *chosen,
            *_sample([pair for pair in pairs + high if pair not in chosen], case.limit - len(chosen)),
        ]
    if d == 1:
        return pairs + high
    chosen = [pair for pair in high if pair in corners]
    return [*pairs, *chosen, *_sample([pair for pair in high if pair not in corners], 18)]


def _sample(pairs: list[Pair], size: int) -> list[Pair]:
    if len(pairs) <= size:
        return pairs
    picks = np.random.default_rng(20240229).choice(len(pairs), size=size, replace=False)
    return [pairs[i] for i in sorted(picks)]


def point_pairs(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return coincident, near and far pairs, in a general direction and along an axis, in both orders."""
    d = case.dimension
    base = np.array([0.625, 0.8, 1.3] if case.positive else [0.625, -0.8, 1.3])[:d]
    general = np.array([0.7, 0.55, -0.45])[:d]
    general = general / np.linalg.norm(general)
    axis = np.eye(3)[0, :d]
    x, y = [base, 0 * base], [base, 0 * base]
    for separation in (1e-9, 1e-6, 1e-3, 0.35, 1.0, 3.0):
        x += [base, base + separation * axis]
        y += [base + separation * general, base]
    # Near the origin, where the differences are representable; `disagreements` explains the last.
    for separation in (1e-15, 2e-20, 1e-20, 1e-160 if case.oracle.stationary else 1e-12):
        x += [0 * base]
        y += [separation * np.abs(general)]
    x += [base, base, base]
    y += [base + 40.0 * np.abs(general), base + 1e3 * axis, 0 * base]
    return np.array(x), np.array(y)


@eqx.filter_jit
def compiled(kernel: Any, pairs: tuple[Pair, ...], x: Any, y: Any) -> Any:
    """Return the library's derivatives: a row for each pair of points, a column for each pair of indices."""

    def row(a: Any, b: Any) -> Any:
        return jnp.stack([jnp.asarray(kernel.derivative(*pair, a, b), dtype=float) for pair in pairs])

    return jax.vmap(row)(x, y)


def evaluate(case: Case, kernel: Any, pairs: Sequence[Pair], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the same as `compiled`, without compilation if the kernel's formula is elementwise.

    The coordinates of all the points are then passed at once, as if each were one scalar.
    """
    if case.automatic:
        return np.asarray(compiled(kernel, tuple(pairs), x, y))
    left, right = (tuple(jnp.asarray(column) for column in points.T) for points in (x, y))
    columns = [np.asarray(kernel.derivative(*pair, left, right)) for pair in pairs]
    return np.stack([np.broadcast_to(column, len(x)) for column in columns], axis=1)


def disagreements(
    case: Case, pairs: Sequence[Pair], x: np.ndarray, y: np.ndarray, got: np.ndarray, tolerance: float
) -> list[str]:
    lines = []
    for row, (a, b) in enumerate(zip(x, y, strict=True)):
        # Closer than the oracle resolves, a derivative of a stationary kernel equals its value at coincidence.
        expected = case.oracle.derivatives(pairs, a, a if 0 < np.max(np.abs(a - b)) < 1e-100 else b)
        scales = case.oracle.scales(pairs, a, b)
        for column, (alpha, beta) in enumerate(pairs):
            error = abs(ko.number(got[row, column]) - expected[column]) if np.isfinite(got[row, column]) else None
            if error is None or error > tolerance * scales[column]:
                lines.append(
                    f"{case.id} α={alpha} β={beta} x={a.tolist()} y={b.tolist()}: got {got[row, column]!r}, "
                    f"expected {float(expected[column])!r}, scale {float(scales[column]):.3g}"
                )
    return lines


def report(lines: list[str]) -> None:
    assert not lines, f"{len(lines)} disagree, the first being\n" + "\n".join(lines[:12])


# The oracle against itself


def bessel_matern(nu: float) -> Callable[[list[Any], list[Any]], Any]:
    def function(x: list[Any], y: list[Any]) -> Any:
        r = ko.ctx.sqrt(sum((a - b) ** 2 for a, b in zip(x, y, strict=True)))
        if not r:
            return ko.ctx.mpf(1)
        order = ko.number(nu)
        s = ko.ctx.sqrt(2 * order) * r
        return 2 ** (1 - order) / ko.ctx.gamma(order) * s**order * ko.ctx.besselk(order, s)

    return function


def close(a: Any, b: Any, digits: int = 50) -> bool:
    return bool(abs(a - b) <= ko.ctx.mpf(10) ** -digits * max(abs(a), abs(b), ko.ctx.mpf(10) ** -20))


@pytest.mark.parametrize("nu", HALVES)
def test_oracle_matern_is_the_bessel_function(nu: float) -> None:
    definition = bessel_matern(nu)
    for r in (1e-3, 0.7, 5.0):
        assert close(ko.matern(nu).value((r,), (0.0,)), definition([ko.number(r)], [ko.number(0)]))


@pytest.mark.parametrize("nu", [1.5, 2.5, 4.5])
@pytest.mark.parametrize("separation", [0.0, 1e-9, 0.7])
def test_oracle_matern_derivatives_are_difference_quotients(nu: float, separation: float) -> None:
    definition = bessel_matern(nu)
    x, y = (0.3, -0.2), (0.3 + 0.8 * separation, -0.2 - 0.6 * separation)
    half = math.ceil(nu) - 1
    for alpha, beta in [((1, 0), (0, 1)), ((half, 0), (half, 0)), ((0, half), (half - 1, 1))]:
        total = sum(alpha) + sum(beta)
        step = ko.ctx.mpf(10) ** -min(24, 120 // total)
        quotient = ko.difference_quotient(definition, alpha, beta, x, y, step)
        exact = ko.matern(nu).derivative(alpha, beta, x, y)
        # A central difference of a kinked function errs like the step over the separation; at worst the step.
        assert abs(quotient - exact) <= 1e6 * step * max(1, abs(exact))


def test_oracle_bilaplacian_of_matern_at_zero() -> None:
    z = (0.0, 0.0)
    second = [(2, 0), (0, 2)]
    total = sum(ko.matern(2.5).derivative(a, b, z, z) for a in second for b in second)
    assert close(total, ko.ctx.mpf(200) / 3)


def test_oracle_rbf_is_hermite() -> None:
    x, y = (0.3, -1.1, 0.4), (-0.2, 0.5, 0.4)
    h = (0.75, 1.5, 0.5)

    def hermite(n: int, t: Any) -> Any:  # the probabilists' polynomials
        before, now = ko.ctx.mpf(0), ko.ctx.mpf(1)
        for k in range(n):
            before, now = now, t * now - k * before
        return now

    for alpha, beta in [
        ((0, 0, 0), (0, 0, 0)),
        ((4, 0, 0), (4, 0, 0)),
        ((1, 2, 1), (3, 0, 1)),
        ((2, 2, 0), (0, 1, 3)),
    ]:
        expected = ko.ctx.mpf((-1) ** sum(alpha))
        for a, b, u, v, w in zip(alpha, beta, x, y, h, strict=True):
            t = (ko.number(u) - ko.number(v)) / ko.number(w)
            expected *= hermite(a + b, t) / ko.number(w) ** (a + b) * ko.ctx.exp(-t * t / 2)
        assert close(ko.rbf(h).derivative(alpha, beta, x, y), expected)


@pytest.mark.parametrize("name", ["rbf-2d", "matern-3.5-2d", "periodic-2d", "mixture-2d", "map-tall-2d"])
@pytest.mark.parametrize("separation", [0.0, 1e-9, 0.7])
def test_oracle_one_sided_and_two_sided_agree(name: str, separation: float) -> None:
    oracle = BY_ID[name].oracle
    assert oracle.stationary
    x, y = (0.3, -0.2), (0.3 + 0.8 * separation, -0.2 - 0.6 * separation)
    pairs = [((1, 0), (0, 1)), ((2, 1), (0, 3)), ((3, 0), (2, 1)), ((0, 0), (3, 0))]
    both = zip(oracle.derivatives(pairs, x, y), oracle.two_sided().derivatives(pairs, x, y), strict=True)
    assert all(close(a, b) for a, b in both)


@pytest.mark.parametrize(
    "name",
    [
        "rational-2d",
        "full-2d",
        "anisotropic-2d",
        "polynomial-9-2d",
        "nested-2d",
        "warped-rbf-2d",
        "function-2d",
    ],
)
def test_oracle_derivatives_are_difference_quotients(name: str) -> None:
    oracle = BY_ID[name].oracle
    x, y = (0.3, -0.2), (0.9, 0.4)
    step = ko.ctx.mpf(10) ** -28
    for alpha, beta in [((1, 0), (0, 1)), ((2, 0), (1, 1)), ((1, 1), (0, 2))]:
        quotient = ko.difference_quotient(oracle.value, alpha, beta, x, y, step)
        assert close(quotient, oracle.derivative(alpha, beta, x, y), 45)


@pytest.mark.parametrize("build", [ko.wiener, ko.integrated_wiener])
def test_oracle_wiener_does_not_depend_on_the_branch_at_a_tie(build: Callable[..., ko.Oracle]) -> None:
    order = 0 if build is ko.wiener else 1
    for alpha, beta in itertools.product(ko.multi_indices(1, order), repeat=2):
        left, right = (build(tie).derivative(alpha, beta, (0.7,), (0.7,)) for tie in (True, False))
        assert close(left, right)


# The library against the oracle


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_derivatives(case: Case) -> None:
    kernel = case.build()
    x, y = point_pairs(case)
    pairs = index_pairs(case)
    got = evaluate(case, kernel, pairs, x, y)
    report(disagreements(case, pairs, x, y, got, TOLERANCE))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_values(case: Case) -> None:
    kernel = case.build()
    zero = (0,) * case.dimension
    x, y = point_pairs(case)
    got = np.asarray(jax.vmap(kernel)(x, y))[:, None]
    report(disagreements(case, [(zero, zero)], x, y, got, 1e-12))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_supports(case: Case) -> None:
    kernel = case.build()
    for alpha in ko.multi_indices(case.dimension, 7):
        if sum(alpha) <= 4 or case.supports is not smooth:
            assert kernel.supports(alpha) is case.supports(alpha), (case.id, alpha)


@pytest.mark.parametrize("case", [c for c in CASES if not c.automatic and c.dimension == 2], ids=lambda c: c.id)
def test_compiled_and_batched_derivatives_agree(case: Case) -> None:
    kernel = case.build()
    x, y = point_pairs(case)
    pairs = _sample([pair for pair in index_pairs(case) if sum(map(sum, pair)) <= 3], 2)
    got = np.asarray(compiled(kernel, tuple(pairs), x, y))
    report(disagreements(case, pairs, x, y, got, TOLERANCE))


FORMS = ["rbf-2d", "mixture-2d", "linear-2d", "polynomial-1-2d", "rough-by-rough-2d", "map-rough-2d", "function-2d"]


@pytest.mark.parametrize("case", [BY_ID[name] for name in FORMS], ids=lambda case: case.id)
def test_a_point_may_be_a_tuple_or_an_array(case: Case) -> None:
    kernel = case.build()
    x, y = (tuple(float(v) for v in point_pairs(case)[side][8]) for side in (0, 1))
    zero = (0,) * case.dimension
    alpha = max((a for a in ko.multi_indices(case.dimension, 1) if case.supports(a)), key=sum)
    for a in {zero, alpha}:
        values = [float(kernel.derivative(a, zero, make(x), make(y))) for make in (tuple, jnp.asarray)]
        np.testing.assert_allclose(values, values[0], rtol=1e-13, atol=1e-13)


def test_a_point_may_be_a_numpy_array() -> None:
    x, y = np.array([0.5, 1.0]), np.array([0.25, -1.0])
    assert float(pk.RBF()(x, y)) == float(pk.RBF()(tuple(x), tuple(y)))


# The fourth derivative of Matérn-5/2 at zero, which autodiff through the distance gets wrong


TRAPPED = {
    "direct": lambda: pk.Matern(2.5),
    "warped": lambda: pk.Warped(pk.Matern(2.5), identity),
    "mapped": lambda: pk.LinearMap(pk.Matern(2.5), np.eye(2)),
    "scaled": lambda: 1.0 * pk.Matern(2.5),
    "on": lambda: pk.Matern(2.5).on(1, 0),
    "times-constant": lambda: pk.Matern(2.5) * pk.Constant(1.0),
}


@pytest.mark.parametrize("name", TRAPPED)
def test_bilaplacian_of_matern_at_coincident_points(name: str) -> None:
    kernel = TRAPPED[name]()
    point = jnp.asarray([0.3, -0.7])
    second = [(2, 0), (0, 2)]
    total = sum(float(kernel.derivative(a, b, point, point)) for a in second for b in second)
    np.testing.assert_allclose(total, 200 / 3, rtol=1e-13)


# Symmetry and positivity


SYMMETRIC = [case for case in CASES if case.dimension == 2]


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_symmetry(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(SYMMETRIC))
    kernel = case.build()
    order = 2 if case.limit is None else 1
    indices = st.sampled_from([a for a in ko.multi_indices(2, order) if case.supports(a)])
    alpha, beta = data.draw(indices), data.draw(indices)
    coordinates = st.floats(0 if case.positive else -3, 3, allow_subnormal=False)
    x = data.draw(st.tuples(coordinates, coordinates))
    y = data.draw(st.one_of(st.just(x), st.tuples(coordinates, coordinates)))
    there = float(kernel.derivative(alpha, beta, x, y))
    back = float(kernel.derivative(beta, alpha, y, x))
    bound = math.sqrt(abs(float(kernel.derivative(alpha, alpha, x, x)) * float(kernel.derivative(beta, beta, y, y))))
    assert abs(there - back) <= 1e-12 * bound
    assert abs(there) <= (1 + 1e-9) * bound  # Cauchy–Schwarz


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("nu", [*HALVES, math.inf])
@pytest.mark.parametrize("d", [1, 2])
def test_gram_with_derivative_rows_is_positive_semidefinite(nu: float, d: int, seed: int) -> None:
    kernel = pk.RBF(0.5) if math.isinf(nu) else pk.Matern(nu, 0.5)
    rng = np.random.default_rng(seed)
    points = rng.uniform(-1, 1, (8, d))
    points[7] = points[0] + 1e-9
    points[6] = points[1] + 1e-3
    rows = ko.multi_indices(d, int(min(2, kernel.smoothness)))
    left = tuple(jnp.asarray(np.repeat(column, 8)) for column in points.T)
    right = tuple(jnp.asarray(np.tile(column, 8)) for column in points.T)
    blocks = [[np.asarray(kernel.derivative(a, b, left, right)).reshape(8, 8) for b in rows] for a in rows]
    gram = np.block(blocks)
    np.testing.assert_allclose(gram, gram.T, atol=1e-13 * np.abs(gram).max())
    scale = 1 / np.sqrt(np.diag(gram))
    eigenvalues = np.linalg.eigvalsh(gram * scale[:, None] * scale)
    assert eigenvalues[0] >= -1e-13 * len(gram) * eigenvalues[-1]


# Gradients with respect to hyperparameters


GRADIENTS: dict[str, tuple[Callable[..., Any], Callable[..., ko.Oracle], dict[str, Any], int]] = {
    "rbf": (pk.RBF, ko.rbf, {"bandwidth": 0.75}, 2),
    "rbf-ard": (pk.RBF, ko.rbf, {"bandwidth": (0.75, 1.5)}, 2),
    "rational": (pk.RationalQuadratic, ko.rational_quadratic, {"alpha": 0.75, "bandwidth": (0.75, 1.5)}, 2),
    "anisotropic": (pk.AnisotropicRBF, ko.anisotropic_rbf, {"theta": 0.625, "s": 1.5, "bandwidth": 0.75}, 2),
    "sheared": (pk.ShearedRBF, ko.sheared_rbf, {"shear": 1.625, "bandwidth": (0.75, 1.5)}, 2),
    "periodic": (pk.Periodic, ko.periodic, {"period": (1.25, 2.0), "bandwidth": (0.75, 1.5)}, 2),
    **{
        f"matern-{nu}": (
            lambda bandwidth, nu=nu: pk.Matern(nu, bandwidth),
            lambda bandwidth, nu=nu: ko.matern(nu, bandwidth),
            {"bandwidth": (0.75, 1.5)},
            min(2, int(nu - 0.5)),
        )
        for nu in HALVES
    },
}


def nudged(oracle: Callable[..., ko.Oracle], hyper: dict[str, Any], name: str, entry: int, by: Any) -> ko.Oracle:
    """Return the oracle with one entry of one hyperparameter changed."""
    exact = {key: [ko.number(v) for v in np.atleast_1d(value)] for key, value in hyper.items()}
    exact[name][entry] += by
    return oracle(**{key: value if np.ndim(hyper[key]) else value[0] for key, value in exact.items()})


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_hyperparameters(name: str) -> None:
    build, oracle, hyper, order = GRADIENTS[name]
    kernel = build(**{key: np.asarray(value) for key, value in hyper.items()})
    base = np.array([0.625, -0.8])
    offsets = [(0.0, 0.0), (1e-9, -5e-10), (1e-3, 0.0), (0.4, 0.3), (0.0, -1.1), (3.0, 2.0)]
    x = np.array([base] * len(offsets))
    y = x + np.array(offsets)
    low = ko.multi_indices(2, order)
    pairs = [(low[0], low[0]), (low[-1], low[-1]), (low[-1], low[0]), (low[len(low) // 2], low[-1])]

    @jax.jit
    @jax.jacrev
    def gradients(k: Any) -> Any:
        return compiled(k, tuple(pairs), x, y)

    got = gradients(kernel)
    step = ko.ctx.mpf(10) ** -40
    still = nudged(oracle, hyper, next(iter(hyper)), 0, 0)
    lines = []
    for key, value in hyper.items():
        for entry in range(np.size(value)):
            up, down = (nudged(oracle, hyper, key, entry, by) for by in (step, -step))
            leaf = np.asarray(getattr(got, key)).reshape(len(x), len(pairs), -1)[..., entry]
            for row, (a, b) in enumerate(zip(x, y, strict=True)):
                highs, lows = up.derivatives(pairs, a, b), down.derivatives(pairs, a, b)
                scales = still.scales(pairs, a, b)
                for column, pair in enumerate(pairs):
                    expected = float((highs[column] - lows[column]) / (2 * step))
                    found = leaf[row, column]
                    if not abs(found - expected) <= TOLERANCE * max(float(scales[column]), abs(expected)):
                        where = f"{name} d/d{key}[{entry}] {pair} x={a.tolist()} y={b.tolist()}"
                        lines.append(f"{where}: got {found!r}, expected {expected!r}")
    report(lines)


@pytest.mark.parametrize("nu", [1.5, 2.5, 6.5])
@pytest.mark.parametrize("wrap", ["direct", "warped", "mapped", "product"])
def test_filter_grad_at_coincident_points(nu: float, wrap: str) -> None:
    inner = pk.Matern(nu, 0.75)
    kernel = {
        "direct": inner,
        "warped": pk.Warped(inner, identity),
        "mapped": pk.LinearMap(inner, np.eye(1)),
        "product": inner * pk.Constant(1.0),
    }[wrap]
    point = jnp.asarray([0.3])

    @eqx.filter_grad
    def gradient(k: Any) -> Any:
        return k.derivative((1,), (1,), point, point)

    leaf = gradient(kernel)
    found = {
        "direct": lambda: leaf.bandwidth,
        "warped": lambda: leaf.kernel.bandwidth,
        "mapped": lambda: leaf.kernel.bandwidth,
        "product": lambda: leaf.parts[0].bandwidth,
    }[wrap]()
    curvature = nu / (nu - 1)  # ∂₁∂₂k(x, x) = ν/(ν−1)/h²
    np.testing.assert_allclose(found, -2 * curvature / 0.75**3, rtol=1e-13)


# Which derivatives a kernel supports


@pytest.mark.parametrize(
    ("build", "smoothness"),
    [
        *((lambda nu=nu: pk.Matern(nu), math.ceil(nu) - 1) for nu in HALVES),
        (lambda: pk.RBF(), math.inf),
        (lambda: pk.AnisotropicRBF(0.1, 2.0), math.inf),
        (lambda: pk.ShearedRBF(0.1, 2.0), math.inf),
        (lambda: pk.FullCovarianceRBF(np.eye(2)), math.inf),
        (lambda: pk.RationalQuadratic(), math.inf),
        (lambda: pk.Periodic(), math.inf),
        (lambda: pk.Cosine([1.0]), math.inf),
        (lambda: pk.spectral_mixture([1.0], [[1.0]], [[1.0]]), math.inf),
        (lambda: pk.Polynomial(2), math.inf),
        (lambda: pk.Linear(), math.inf),
        (lambda: pk.Constant(), math.inf),
        (lambda: pk.Wiener(), 0),
        (lambda: pk.IntegratedWiener(), 1),
        (lambda: pk.FunctionKernel(gibbs), math.inf),
        (lambda: pk.FunctionKernel(gibbs, smoothness=3), 3),
        (lambda: pk.RBF() + pk.Matern(1.5), 1),
        (lambda: pk.Matern(3.5) * pk.Matern(2.5), 2),
        (lambda: 2.0 * pk.Matern(3.5), 3),
        (lambda: pk.Matern(3.5).on(1), 3),
        (lambda: pk.LinearMap(pk.Matern(3.5), np.eye(2)), 3),
        (lambda: pk.Warped(pk.Matern(3.5), identity), 3),
        (lambda: pk.Evolution(pk.Matern(3.5), (0.0, 1.0)), 3),
    ],
)
def test_smoothness(build: Callable[[], Any], smoothness: float) -> None:
    assert build().smoothness == smoothness


def test_supports_by_groups_of_coordinates() -> None:
    time_by_space = pk.Matern(1.5).on(0) * pk.RBF().on(1)
    truth = {(0, 0): True, (1, 0): True, (1, 9): True, (0, 9): True, (2, 0): False, (2, 1): False}
    assert {alpha: time_by_space.supports(alpha) for alpha in truth} == truth
    swapped = 2.0 * (pk.RBF().on(0) * pk.Matern(2.5).on(1)) + pk.Linear()
    truth = {(9, 2): True, (0, 2): True, (0, 3): False, (9, 3): False}
    assert {alpha: swapped.supports(alpha) for alpha in truth} == truth
    pair = pk.Matern(2.5).on(0, 2) * pk.Wiener().on(1)
    truth = {(1, 0, 1): True, (2, 0, 0): True, (2, 0, 1): False, (0, 1, 0): False}
    assert {alpha: pair.supports(alpha) for alpha in truth} == truth


@pytest.mark.parametrize("factor", [2.0, 2, np.float64(2.0), jnp.asarray(2.0)], ids=lambda f: type(f).__name__)
def test_scaling_from_either_side(factor: Any) -> None:
    for kernel in (factor * pk.RBF(), pk.RBF() * factor):
        assert isinstance(kernel, pk.Kernel)
        np.testing.assert_allclose(kernel((0.0,), (1.0,)), 2 * math.exp(-0.5), rtol=1e-14)


# Bad input


NAN, INF = math.nan, math.inf
BAD: dict[str, Callable[[], Any]] = {
    "rbf-negative": lambda: pk.RBF(-1.0),
    "rbf-zero": lambda: pk.RBF(0.0),
    "rbf-nan": lambda: pk.RBF(NAN),
    "rbf-infinite": lambda: pk.RBF(INF),
    "rbf-one-negative": lambda: pk.RBF([1.0, -1.0]),
    "rbf-one-nan": lambda: pk.RBF([1.0, NAN]),
    "rbf-matrix": lambda: pk.RBF(np.eye(2)),
    "rbf-empty": lambda: pk.RBF([]),
    "rbf-text": lambda: pk.RBF("wide"),
    "rbf-complex": lambda: pk.RBF(1.0 + 1.0j),
    "matern-nu-2": lambda: pk.Matern(2.0),
    "matern-nu-7.5": lambda: pk.Matern(7.5),
    "matern-nu-negative": lambda: pk.Matern(-0.5),
    "matern-nu-nan": lambda: pk.Matern(NAN),
    "matern-negative": lambda: pk.Matern(2.5, -1.0),
    "matern-nan": lambda: pk.Matern(2.5, NAN),
    "anisotropic-theta-nan": lambda: pk.AnisotropicRBF(NAN, 1.0),
    "anisotropic-s-zero": lambda: pk.AnisotropicRBF(0.0, 0.0),
    "anisotropic-s-negative": lambda: pk.AnisotropicRBF(0.0, -1.0),
    "anisotropic-bandwidth": lambda: pk.AnisotropicRBF(0.0, 1.0, -1.0),
    "sheared-nan": lambda: pk.ShearedRBF(NAN),
    "sheared-bandwidth": lambda: pk.ShearedRBF(0.0, -1.0),
    "sheared-vector": lambda: pk.ShearedRBF([0.0, 1.0]),
    "anisotropic-vector": lambda: pk.AnisotropicRBF(0.0, 1.0, [1.0, 2.0]),
    "anisotropic-theta-vector": lambda: pk.AnisotropicRBF([0.0, 1.0], 1.0),
    "full-not-square": lambda: pk.FullCovarianceRBF(np.ones((2, 3))),
    "full-vector": lambda: pk.FullCovarianceRBF(np.ones(3)),
    "full-indefinite": lambda: pk.FullCovarianceRBF([[1.0, 2.0], [2.0, 1.0]]),
    "full-singular": lambda: pk.FullCovarianceRBF([[0.0, 0.0], [0.0, 1.0]]),
    "full-asymmetric": lambda: pk.FullCovarianceRBF([[1.0, 0.5], [0.0, 1.0]]),
    "full-nan": lambda: pk.FullCovarianceRBF([[1.0, NAN], [NAN, 1.0]]),
    "rational-alpha-zero": lambda: pk.RationalQuadratic(0.0),
    "rational-alpha-nan": lambda: pk.RationalQuadratic(NAN),
    "rational-bandwidth": lambda: pk.RationalQuadratic(1.0, -1.0),
    "periodic-period": lambda: pk.Periodic(-1.0),
    "periodic-zero-period": lambda: pk.Periodic(0.0),
    "periodic-bandwidth": lambda: pk.Periodic(1.0, [1.0, 0.0]),
    "cosine-nan": lambda: pk.Cosine([NAN]),
    "cosine-matrix": lambda: pk.Cosine(np.eye(2)),
    "mixture-weight": lambda: pk.spectral_mixture([-1.0], [[1.0]], [[1.0]]),
    "mixture-bandwidth": lambda: pk.spectral_mixture([1.0], [[1.0]], [[-1.0]]),
    "mixture-count": lambda: pk.spectral_mixture([1.0, 2.0], [[1.0]], [[1.0]]),
    "mixture-shapes": lambda: pk.spectral_mixture([1.0], [[1.0]], [[1.0, 1.0]]),
    "polynomial-degree": lambda: pk.Polynomial(-1),
    "polynomial-offset": lambda: pk.Polynomial(2, -1.0),
    "polynomial-nan": lambda: pk.Polynomial(2, NAN),
    "constant-negative": lambda: pk.Constant(-1.0),
    "constant-nan": lambda: pk.Constant(NAN),
    "scaled-negative": lambda: -2.0 * pk.RBF(),
    "scaled-zero": lambda: 0.0 * pk.RBF(),
    "scaled-nan": lambda: NAN * pk.RBF(),
    "on-nothing": lambda: pk.RBF().on(),
    "on-twice": lambda: pk.RBF().on(0, 0),
    "on-negative": lambda: pk.RBF().on(-1),
    "on-wrong-size": lambda: pk.RBF([1.0, 2.0]).on(0),
    "map-nan": lambda: pk.LinearMap(pk.RBF(), [[NAN]]),
    "map-vector": lambda: pk.LinearMap(pk.RBF(), [1.0, 2.0]),
    "map-wrong-size": lambda: pk.LinearMap(pk.RBF([1.0, 2.0, 3.0]), np.eye(2)),
    "function-smoothness": lambda: pk.FunctionKernel(gibbs, smoothness=-1.0),
    "function-parameter": lambda: pk.FunctionKernel(gibbs, {"gain": NAN}),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    with pytest.raises(InputError):
        BAD[name]()


DISTANCES = {
    "rbf": (pk.RBF([0.5, 2.0]), lambda d: np.sqrt(4 * d[0] ** 2 + d[1] ** 2 / 4)),
    "matern": (pk.Matern(2.5, 0.5), lambda d: 2 * np.hypot(*d)),
    "rational quadratic": (pk.RationalQuadratic(1.0, 0.5), lambda d: 2 * np.hypot(*d)),
    "sheared": (pk.ShearedRBF(3.0, [2.0, 0.5]), lambda d: np.sqrt(d[0] ** 2 / 4 + 4 * (d[1] - 3 * d[0]) ** 2)),
    "anisotropic": (pk.AnisotropicRBF(0.0, 0.5, 2.0), lambda d: np.sqrt(d[0] ** 2 / 16 + d[1] ** 2)),
    "full": (pk.FullCovarianceRBF(np.diag([4.0, 1.0])), lambda d: np.sqrt(d[0] ** 2 / 4 + d[1] ** 2)),
    "on": (pk.RBF(0.5).on(1), lambda d: 2 * abs(d[1])),
    "product": (pk.RBF(0.5).on(0) * pk.RBF(2.0).on(1), lambda d: max(2 * abs(d[0]), abs(d[1]) / 2)),
    "sum": (2.0 * pk.RBF(0.5) + pk.RBF(2.0), lambda d: 2 * np.hypot(*d)),
    "mapped": (pk.LinearMap(pk.RBF(0.5), [[1.0, -2.0]]), lambda d: 2 * abs(d[0] - 2 * d[1])),
    "warped": (pk.Warped(pk.RBF(0.5), lambda x: 3.0 * x), lambda d: 6 * np.hypot(*d)),
    "periodic": (pk.Periodic(4.0, 0.5), lambda d: 4 * np.hypot(np.sin(np.pi * d[0] / 4), np.sin(np.pi * d[1] / 4))),
    "evolution": (pk.Evolution(pk.RBF(0.5), (0.0, 2.0)), lambda d: max(abs(d[0]) / 2, abs(d[1]) / 0.375)),
    "polynomial": (pk.Polynomial(2), lambda d: 0.0),  # no lengths
}


@pytest.mark.parametrize("name", DISTANCES)
def test_distances_in_lengths_of_the_kernel(name: str) -> None:
    kernel, formula = DISTANCES[name]
    x, y = (np.random.default_rng(seed).uniform(-1, 1, (count, 2)) for seed, count in ((0, 4), (1, 5)))
    expected = [[formula(a - b) for b in y] for a in x]
    np.testing.assert_allclose(kernel.distances(x, y), expected, rtol=1e-10)


def test_distances_of_a_kernel_of_a_user() -> None:
    class Exponential(pk.Kernel):
        lengthscale: Any = pk.hyperparameter("length", default=1.0)
        smoothness = 0

        def derivative(self, alpha: Any, beta: Any, x: Any, y: Any) -> Any:
            return jnp.exp(-abs(x[0] - y[0]) / self.lengthscale)

    np.testing.assert_allclose(Exponential(0.5).distances(np.zeros((1, 1)), np.array([[1.0], [2.0]])), [[2.0, 4.0]])
