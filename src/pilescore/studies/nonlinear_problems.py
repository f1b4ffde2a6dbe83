"""Four nonlinear equations with solutions that are known exactly, or to twelve digits, and models of them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.integrate import solve_ivp

import pilescore as ps

SQUARE = ps.Box(x=(0, 1), y=(0, 1))
STRIP = ps.Box(t=(0, 1), x=(-1, 1))
VISCOSITY = 0.02
EPSILON = 0.1
DIFFUSIVITY, RATE = 0.01, 5.0


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """An equation with conditions on the boundary, its solution, and how it is modelled."""

    name: str
    title: str
    equation: str
    conditions: str
    reference: str
    """How the solution is known."""
    region: ps.Box
    operator: ps.Nonlinear
    source: Any
    """The right-hand side: a number, or a function of the point."""
    truth: Callable[[Array], Array]
    boundary: Callable[[int], Float[np.ndarray, "n 2"]]
    """From how many points on each side to where the conditions are imposed."""
    condition: Callable[[Array], Array]
    """What is imposed there."""
    size: tuple[int, int]
    """Points of the equation, and points on each side of the conditions."""
    noise: tuple[float, float]
    """Standard deviations with which equation and conditions hold where the scale η is one."""
    aspect: float
    """How many times longer the kernel is along the first coordinate than along the second."""
    lengths: tuple[float, float]
    """The least and the largest length of the kernel, along the second coordinate, that is tried."""
    rule: ps.Rule
    """For integrals of squared errors."""
    limit: float | None = None
    """The error that is expected at most with all points, where others have solved the problem."""
    known: float | None = None
    """The error that others had."""

    @property
    def fine(self) -> ps.Nodes:
        """The nodes at which errors are measured."""
        return self.region.interior(self.rule)

    @property
    def stretch(self) -> float:
        """The length along the second coordinate over the kernel's bandwidth."""
        return 1.0 / math.sqrt(self.aspect)

    @property
    def kernel(self) -> ps.Kernel:
        """The kernel in the middle of those that are tried; its bandwidth is the geometric mean of its two lengths."""
        middle = math.sqrt(math.prod(self.lengths)) / self.stretch
        return ps.RBF(middle) if self.aspect == 1 else ps.AnisotropicRBF(0.0, self.stretch, middle)

    def bandwidths(self, count: int) -> Float[np.ndarray, " count"]:
        """Return the bandwidths to try."""
        return np.geomspace(*self.lengths, count) / self.stretch

    def counts(self, share: float | int = 1.0) -> tuple[int, int]:
        """Return how many points of the equation there are, and on each side of the conditions, with this share."""
        return round(share * self.size[0]), round(math.sqrt(share) * self.size[1])

    def model(self, seed: int, share: float | int = 1.0) -> ps.Model:
        """Return the model: the equation at random points, the conditions at evenly spaced ones, and no data."""
        inside, side = self.counts(share)
        points = np.random.default_rng(seed).uniform(self.region.lower, self.region.upper, (inside, 2))
        equation, condition = self.noise
        return ps.Model(
            kernel=self.kernel,
            physics=[
                ps.impose(self.operator, self.source, on=self.region.points(points), noise=equation, name="equation"),
                ps.dirichlet(
                    self.condition, on=self.region.points(self.boundary(side)), noise=condition, name="conditions"
                ),
            ],
        )


def around(count: int) -> Float[np.ndarray, "n 2"]:
    """Return evenly spaced points around the unit square, the corners once."""
    s, zero, one = np.arange(count) / count, np.zeros(count), np.ones(count)
    sides = ((s, zero), (one, s), (1 - s, one), (zero, 1 - s))
    return np.concatenate([np.stack(side, axis=1) for side in sides])


def from_the_start(count: int) -> Float[np.ndarray, "n 2"]:
    """Return evenly spaced points (t, x) at the first time and, later, at both ends."""
    x, t, one = np.linspace(-1, 1, count), np.linspace(0, 1, count + 1)[1:], np.ones(count)
    sides = ((0 * x, x), (t, -one), (t, one))
    return np.concatenate([np.stack(side, axis=1) for side in sides])


def waves(p: Array) -> Array:
    """Return `sin πx sin πy + 4 sin 4πx sin 4πy`."""
    return _wave(1, p) + 4 * _wave(4, p)


def _wave(k: int, p: Array) -> Array:
    return jnp.sin(k * jnp.pi * p[0]) * jnp.sin(k * jnp.pi * p[1])


def cubic_source(p: Array) -> Array:
    """Return `−Δu + u³` of the waves."""
    return 2 * jnp.pi**2 * (_wave(1, p) + 64 * _wave(4, p)) + waves(p) ** 3


def burgers(p: Array, nodes: int = 100) -> Array:
    """Return the solution of `u_t + u u_x = ν u_xx`, `u(0, x) = −sin πx`, by the transformation of Cole and Hopf.

    `u = −2ν φ_x/φ`, where φ solves the heat equation: two Gaussian integrals, by Gauss–Hermite quadrature.
    """
    z, weights = np.polynomial.hermite.hermgauss(nodes)
    y = p[1] - 2 * jnp.sqrt(VISCOSITY * p[0]) * z
    phi = weights * jnp.exp(-(1 + jnp.cos(jnp.pi * y)) / (2 * jnp.pi * VISCOSITY))
    return -jnp.sum(phi * jnp.sin(jnp.pi * y)) / jnp.sum(phi)


def eikonal(p: Array, nodes: int = 200) -> Array:
    """Return the solution of `|∇u|² = 1 + ε Δu` on the unit square with `u = 0` around it.

    `w = exp(−u/ε)` solves the linear equation `ε²Δw = w` with `w = 1` around the square. So
    `w = ∫ e^{−s} (1 − S(x, s) S(y, s)) ds`, where S solves `S_s = ε² S_xx` from one, with zero ends: a sum of error
    functions. With `s = e^z` the trapezoidal rule converges exponentially.
    """
    z = np.linspace(-37.0, 4.0, nodes)
    s = np.exp(z)
    widths = 2 * EPSILON * np.sqrt(s)
    left = 1 - _survival(p[0], widths) * _survival(p[1], widths)
    return -EPSILON * jnp.log((z[1] - z[0]) * jnp.sum(np.exp(z - s) * left))


def _survival(x: Array, widths: Float[np.ndarray, " n"], images: int = 8) -> Array:
    """Return the solution of the heat equation on (0, 1), from one, with zero ends, when the heat has spread so far."""
    k = np.arange(1, images + 1)[:, None]
    erfc = jax.scipy.special.erfc
    return 1 - jnp.sum((-1.0) ** (k + 1) * (erfc((k - x) / widths) + erfc((k - 1 + x) / widths)), axis=0)


def allen_cahn(p: Array, modes: int = 128, times: int = 48) -> Array:
    """Return the solution of `u_t = D u_xx + r (u − u³)`, `u(0, x) = −sin πx`, by series in x and in t."""
    table = jnp.asarray(allen_cahn_coefficients(modes, times))
    angle = jnp.arccos(jnp.clip(2 * p[0] - 1, -1, 1))
    return jnp.cos(jnp.arange(times) * angle) @ table @ jnp.sin(jnp.pi * (2 * jnp.arange(modes) + 1) * p[1])


@functools.cache
def allen_cahn_coefficients(modes: int, times: int) -> Float[np.ndarray, "times modes"]:
    """Return the coefficients of `T_j(2t − 1) sin (2n+1)πx`.

    A Galerkin method in x, in which the cube is taken without aliasing; Runge–Kutta of order 8 from one Chebyshev
    node in time to the next.
    """
    n, points = 2 * np.arange(modes) + 1, 2 * modes
    sines = np.sin(np.pi * np.outer((np.arange(points) + 0.5) / (2 * points), n))
    growth = RATE - DIFFUSIVITY * (np.pi * n) ** 2

    def change(t: float, a: Any) -> Any:
        return growth * a - RATE * (sines.T @ (sines @ a) ** 3) * (2 / points)

    at = 0.5 * (1 - np.cos(np.pi * np.arange(times) / (times - 1)))
    rows = [-np.eye(modes)[0]]
    for span in itertools.pairwise(at):
        rows.append(solve_ivp(change, span, rows[-1], method="DOP853", rtol=1e-13, atol=1e-15).y[:, -1])
    table: Float[np.ndarray, "times modes"] = np.linalg.solve(
        np.polynomial.chebyshev.chebvander(2 * at - 1, times - 1), np.array(rows)
    )
    return table


def _nothing(p: Array) -> Array:
    return jnp.zeros(())


def _sine_at_the_start(p: Array) -> Array:
    return jnp.where(p[0] == 0, -jnp.sin(jnp.pi * p[1]), 0.0)


def _problems() -> tuple[Problem, ...]:
    along, up = ps.partials(SQUARE)
    dt, dx = ps.partials(STRIP)
    laplacian = ps.laplacian(SQUARE)
    return (
        Problem(
            name="elliptic",
            title="Elliptic, with a cubic",
            equation="−Δu + u³ = g on the square (0, 1)²",
            conditions="u = 0 around it",
            reference="exact: u = sin πx sin πy + 4 sin 4πx sin 4πy gives g",
            region=SQUARE,
            operator=ps.Nonlinear(lambda p, u, lap: -lap + u**3, of=(ps.identity, laplacian), name="−Δu + u³"),
            source=cubic_source,
            truth=waves,
            boundary=around,
            condition=_nothing,
            size=(900, 31),
            noise=(2.2e-5, 1e-7),
            aspect=1.0,
            lengths=(0.1, 0.4),
            rule=ps.GaussLegendre(40),
            limit=2e-7,
            known=1.1e-7,
        ),
        Problem(
            name="burgers",
            title="Burgers",
            equation=f"u_t + u u_x = {VISCOSITY} u_xx for 0 < t < 1, −1 < x < 1",
            conditions="u(0, x) = −sin πx, u(t, ±1) = 0",
            reference="the transformation of Cole and Hopf, two integrals by Gauss–Hermite quadrature",
            region=STRIP,
            operator=ps.Nonlinear(
                lambda p, u, u_t, u_x, u_xx: u_t + u * u_x - VISCOSITY * u_xx,
                of=(ps.identity, dt, dx, dx**2),
                name=f"u_t + u u_x − {VISCOSITY} u_xx",
            ),
            source=0.0,
            truth=burgers,
            boundary=from_the_start,
            condition=_sine_at_the_start,
            size=(1000, 66),
            noise=(0.1, 1e-3),
            aspect=6.0,
            lengths=(0.025, 0.1),
            rule=ps.GaussLegendre((24, 50)),
            limit=7e-3,
            known=6.4e-3,
        ),
        Problem(
            name="eikonal",
            title="Eikonal, regularised",
            equation=f"|∇u|² = 1 + {EPSILON} Δu on the square (0, 1)²",
            conditions="u = 0 around it",
            reference="exp(−u/ε) solves a linear equation: one integral of error functions",
            region=SQUARE,
            operator=ps.Nonlinear(
                lambda p, u_x, u_y, lap: u_x**2 + u_y**2 - EPSILON * lap,
                of=(along, up, laplacian),
                name=f"|∇u|² − {EPSILON} Δu",
            ),
            source=1.0,
            truth=eikonal,
            boundary=around,
            condition=_nothing,
            size=(1000, 50),
            noise=(1e-2, 1e-4),
            aspect=1.0,
            lengths=(0.055, 0.5),
            rule=ps.GaussLegendre(40),
            limit=1.5e-3,
            known=3.5e-4,
        ),
        Problem(
            name="allen_cahn",
            title="Allen–Cahn",
            equation=f"u_t = {DIFFUSIVITY} u_xx + {RATE:g} (u − u³) for 0 < t < 1, −1 < x < 1",
            conditions="u(0, x) = −sin πx, u(t, ±1) = 0",
            reference="a spectral method with 128 sines and 48 Chebyshev polynomials in time",
            region=STRIP,
            operator=ps.Nonlinear(
                lambda p, u, u_t, u_xx: u_t - DIFFUSIVITY * u_xx - RATE * (u - u**3),
                of=(ps.identity, dt, dx**2),
                name=f"u_t − {DIFFUSIVITY} u_xx − {RATE:g} (u − u³)",
            ),
            source=0.0,
            truth=allen_cahn,
            boundary=from_the_start,
            condition=_sine_at_the_start,
            size=(1000, 66),
            noise=(3e-3, 3e-5),
            aspect=4.0,
            lengths=(0.036, 0.12),
            rule=ps.GaussLegendre((24, 50)),
        ),
    )


PROBLEMS = _problems()
