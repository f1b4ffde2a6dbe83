"""Four nonlinear equations with known solutions, exact or to twelve digits, and their models."""

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
class NonlinearProblem:
    """A nonlinear equation with boundary conditions, its solution and its model."""

    name: str
    title: str
    equation: str
    conditions: str
    reference: str
    """How the solution was computed."""
    region: ps.Box
    operator: ps.Nonlinear
    source: Any
    """The right-hand side: a number, or a function of the point."""
    truth: Callable[[Array], Array]
    boundary: Callable[[int], Float[np.ndarray, "n 2"]]
    """Returns the points of the conditions, for a number of points on each side."""
    condition: Callable[[Array], Array]
    """The value of the solution at these points."""
    size: tuple[int, int]
    """The number of points of the equation, and of points on each side for the conditions."""
    noise: tuple[float, float]
    """Standard deviations of the equation and of the conditions, for the scale η = 1."""
    aspect: float
    """The ratio of the kernel lengths along the first and the second coordinate."""
    lengths: tuple[float, float]
    """The smallest and largest kernel length of the sweep, along the second coordinate."""
    rule: ps.quadrature.Rule
    """The quadrature rule for squared errors."""
    limit: float | None = None
    """The largest expected error with all points, if others have published one."""
    known: float | None = None
    """The published error of another solver."""

    @property
    def fine(self) -> ps.domains.Nodes:
        """The quadrature nodes for errors."""
        return self.region.interior(self.rule)

    @property
    def stretch(self) -> float:
        """The ratio of the length along the second coordinate to the kernel's bandwidth."""
        return 1.0 / math.sqrt(self.aspect)

    @property
    def kernel(self) -> ps.Kernel:
        """The kernel in the middle of the sweep. Its bandwidth is the geometric mean of its two lengths."""
        middle = math.sqrt(math.prod(self.lengths)) / self.stretch
        return ps.RBF(middle) if self.aspect == 1 else ps.AnisotropicRBF(0.0, self.stretch, middle)

    def bandwidths(self, count: int) -> Float[np.ndarray, " count"]:
        """Return the bandwidths of the sweep."""
        return np.geomspace(*self.lengths, count) / self.stretch

    def counts(self, share: float | int = 1.0) -> tuple[int, int]:
        """Return the numbers of points inside and on each side, for a share of the full size."""
        return round(share * self.size[0]), round(math.sqrt(share) * self.size[1])

    def model(self, seed: int, share: float | int = 1.0) -> ps.Model:
        """Return a model of the equation at random points and the conditions at evenly spaced points, without data."""
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
    """Return evenly spaced points around the unit square, each corner once."""
    s, zero, one = np.arange(count) / count, np.zeros(count), np.ones(count)
    sides = ((s, zero), (one, s), (1 - s, one), (zero, 1 - s))
    return np.concatenate([np.stack(side, axis=1) for side in sides])


def from_the_start(count: int) -> Float[np.ndarray, "n 2"]:
    """Return evenly spaced points (t, x) at t = 0 and, for t > 0, at both ends x = ±1."""
    x, t, one = np.linspace(-1, 1, count), np.linspace(0, 1, count + 1)[1:], np.ones(count)
    sides = ((0 * x, x), (t, -one), (t, one))
    return np.concatenate([np.stack(side, axis=1) for side in sides])


def waves(p: Array) -> Array:
    """Evaluate `sin πx sin πy + 4 sin 4πx sin 4πy`."""
    return _wave(1, p) + 4 * _wave(4, p)


def _wave(k: int, p: Array) -> Array:
    return jnp.sin(k * jnp.pi * p[0]) * jnp.sin(k * jnp.pi * p[1])


def cubic_source(p: Array) -> Array:
    """Evaluate `−Δu + u³` for `u = waves`."""
    return 2 * jnp.pi**2 * (_wave(1, p) + 64 * _wave(4, p)) + waves(p) ** 3


def burgers(p: Array, nodes: int = 100) -> Array:
    """Evaluate the solution of `u_t + u u_x = ν u_xx`, `u(0, x) = −sin πx`, by the Cole–Hopf transformation.

    `u = −2ν φ_x/φ`, where φ solves the heat equation. Both are Gaussian integrals, computed by Gauss–Hermite
    quadrature.
    """
    z, weights = np.polynomial.hermite.hermgauss(nodes)
    y = p[1] - 2 * jnp.sqrt(VISCOSITY * p[0]) * z
    phi = weights * jnp.exp(-(1 + jnp.cos(jnp.pi * y)) / (2 * jnp.pi * VISCOSITY))
    return -jnp.sum(phi * jnp.sin(jnp.pi * y)) / jnp.sum(phi)


def eikonal(p: Array, nodes: int = 200) -> Array:
    """Evaluate the solution of `|∇u|² = 1 + ε Δu` on the unit square with `u = 0` on the boundary.

    `w = exp(−u/ε)` solves the linear equation `ε²Δw = w` with `w = 1` on the boundary. Therefore
    `w = ∫ e^{−s} (1 − S(x, s) S(y, s)) ds`, where S, a sum of error functions, solves `S_s = ε² S_xx` with S = 1 at
    s = 0 and S = 0 at both ends. With `s = e^z` the trapezoidal rule converges exponentially.
    """
    z = np.linspace(-37.0, 4.0, nodes)
    s = np.exp(z)
    widths = 2 * EPSILON * np.sqrt(s)
    left = 1 - _survival(p[0], widths) * _survival(p[1], widths)
    return -EPSILON * jnp.log((z[1] - z[0]) * jnp.sum(np.exp(z - s) * left))


def _survival(x: Array, widths: Float[np.ndarray, " n"], images: int = 8) -> Array:
    """Evaluate the heat equation on (0, 1) with initial value one and zero ends, by the method of images.

    `widths` are the diffusion lengths 2√(Dt).
    """
    k = np.arange(1, images + 1)[:, None]
    erfc = jax.scipy.special.erfc
    return 1 - jnp.sum((-1.0) ** (k + 1) * (erfc((k - x) / widths) + erfc((k - 1 + x) / widths)), axis=0)


def allen_cahn(p: Array, modes: int = 128, times: int = 48) -> Array:
    """Evaluate the solution of `u_t = D u_xx + r (u − u³)`, `u(0, x) = −sin πx`, by series in x and t."""
    table = jnp.asarray(allen_cahn_coefficients(modes, times))
    angle = jnp.arccos(jnp.clip(2 * p[0] - 1, -1, 1))
    return jnp.cos(jnp.arange(times) * angle) @ table @ jnp.sin(jnp.pi * (2 * jnp.arange(modes) + 1) * p[1])


@functools.cache
def allen_cahn_coefficients(modes: int, times: int) -> Float[np.ndarray, "times modes"]:
    """Return the coefficients of `T_j(2t − 1) sin (2n+1)πx`.

    A Galerkin method in x, with enough points to compute the cube without aliasing. Runge–Kutta of order 8 integrates
    from each Chebyshev node in time to the next.
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


def _problems() -> tuple[NonlinearProblem, ...]:
    along, up = ps.partials(SQUARE)
    dt, dx = ps.partials(STRIP)
    laplacian = ps.laplacian(SQUARE)
    on_square = functools.partial(
        NonlinearProblem,
        conditions="u = 0 on the boundary",
        region=SQUARE,
        boundary=around,
        condition=lambda p: jnp.zeros(()),
        aspect=1.0,
        rule=ps.GaussLegendre(40),
    )
    on_strip = functools.partial(
        NonlinearProblem,
        conditions="u(0, x) = −sin πx, u(t, ±1) = 0",
        region=STRIP,
        boundary=from_the_start,
        condition=lambda p: jnp.where(p[0] == 0, -jnp.sin(jnp.pi * p[1]), 0.0),
        size=(1000, 66),
        rule=ps.GaussLegendre((24, 50)),
    )
    return (
        on_square(
            name="elliptic",
            title="Elliptic with a cubic term",
            equation="−Δu + u³ = g on the square (0, 1)²",
            reference="exact, with g computed from u = sin πx sin πy + 4 sin 4πx sin 4πy",
            operator=ps.Nonlinear(lambda p, u, lap: -lap + u**3, of=(ps.identity, laplacian), name="−Δu + u³"),
            source=cubic_source,
            truth=waves,
            size=(900, 31),
            noise=(2.2e-5, 1e-7),
            lengths=(0.1, 0.4),
            limit=2e-7,
            known=1.1e-7,
        ),
        on_strip(
            name="burgers",
            title="Burgers",
            equation=f"u_t + u u_x = {VISCOSITY} u_xx for 0 < t < 1, −1 < x < 1",
            reference="the Cole–Hopf transformation, two integrals by Gauss–Hermite quadrature",
            operator=ps.Nonlinear(
                lambda p, u, u_t, u_x, u_xx: u_t + u * u_x - VISCOSITY * u_xx,
                of=(ps.identity, dt, dx, dx**2),
                name=f"u_t + u u_x − {VISCOSITY} u_xx",
            ),
            source=0.0,
            truth=burgers,
            noise=(0.1, 1e-3),
            aspect=6.0,
            lengths=(0.025, 0.1),
            limit=7e-3,
            known=6.4e-3,
        ),
        on_square(
            name="eikonal",
            title="Eikonal, regularised",
            equation=f"|∇u|² = 1 + {EPSILON} Δu on the square (0, 1)²",
            reference="exp(−u/ε) solves a linear equation and is an integral of error functions",
            operator=ps.Nonlinear(
                lambda p, u_x, u_y, lap: u_x**2 + u_y**2 - EPSILON * lap,
                of=(along, up, laplacian),
                name=f"|∇u|² − {EPSILON} Δu",
            ),
            source=1.0,
            truth=eikonal,
            size=(1000, 50),
            noise=(1e-2, 1e-4),
            lengths=(0.055, 0.5),
            limit=1.5e-3,
            known=3.5e-4,
        ),
        on_strip(
            name="allen_cahn",
            title="Allen–Cahn",
            equation=f"u_t = {DIFFUSIVITY} u_xx + {RATE:g} (u − u³) for 0 < t < 1, −1 < x < 1",
            reference="a spectral method with 128 sines and 48 Chebyshev polynomials in time",
            operator=ps.Nonlinear(
                lambda p, u, u_t, u_xx: u_t - DIFFUSIVITY * u_xx - RATE * (u - u**3),
                of=(ps.identity, dt, dx**2),
                name=f"u_t − {DIFFUSIVITY} u_xx − {RATE:g} (u − u³)",
            ),
            source=0.0,
            truth=allen_cahn,
            noise=(3e-3, 3e-5),
            aspect=4.0,
            lengths=(0.036, 0.12),
        ),
    )


PROBLEMS = _problems()
