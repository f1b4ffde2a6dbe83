"""Exact solutions of the equations of the benchmark, and their sources: functions of one point, of order one.

All are closed forms except `torsion`, which is a series. Sources are written by hand; a test compares them with the
derivatives of the solutions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax.numpy as jnp
from scipy.optimize import brentq

Function: TypeAlias = Callable[[Any], Any]
PI = math.pi

PULL, RIPPLE = 3.0, 15.0


def torsion(p: Any, terms: int = 100) -> Any:
    """Evaluate `u` with `−Δu = 3 + 15 sin πx sin 2πy` on [−1, 1]² and zero on the boundary (to 1e−5).

    The constant load gives the torsion function of the square, a series of cosines in y with harmonic terms.
    """
    k = jnp.arange(terms)
    a = 0.5 * PI * (2 * k + 1)
    # cosh ax / cosh a, with decaying exponentials only: cosh overflows for large a.
    ratio = (jnp.exp(a * (p[0] - 1)) + jnp.exp(-a * (p[0] + 1))) / (1 + jnp.exp(-2 * a))
    even = 0.5 * (1 - p[1] ** 2) - jnp.sum((1 - 2.0 * (k % 2)) * 2 / a**3 * ratio * jnp.cos(a * p[1]))
    return PULL * even + RIPPLE / (5 * PI**2) * jnp.sin(PI * p[0]) * jnp.sin(2 * PI * p[1])


def torsion_source(p: Any) -> Any:
    """Evaluate `3 + 15 sin πx sin 2πy`."""
    return PULL + RIPPLE * jnp.sin(PI * p[0]) * jnp.sin(2 * PI * p[1])


WAVENUMBER = 8.0


def duct(p: Any) -> Any:
    """Evaluate sound in a duct with hard walls at y = 0 and 1, `Δu + 64u = 0`: three waves and an evanescent one."""
    x, y = p[0], p[1]
    along = [math.sqrt(abs(WAVENUMBER**2 - (n * PI) ** 2)) for n in range(4)]
    waves = 0.5 * jnp.cos(along[0] * x + 0.4) + 0.7 * jnp.cos(PI * y) * jnp.sin(along[1] * x)
    waves += 0.4 * jnp.cos(2 * PI * y) * jnp.cos(along[2] * x)
    return waves + 0.3 * jnp.cos(3 * PI * y) * jnp.exp(-along[3] * x)


def carried(velocity: float) -> Function:
    """Return a profile of period 2π that moves at a velocity: `u_t + velocity · u_x = 0`."""

    def solution(p: Any) -> Any:
        phase = p[1] - velocity * p[0]
        return jnp.sin(phase) + 0.4 * jnp.cos(2 * phase)

    return solution


CONDUCTION = 0.1


def rod(p: Any) -> Any:
    """Evaluate `u` with `u_t = 0.1 u_xx`, `u = 0` at x = 0 and `u_x = 0` at x = 1: the three slowest modes."""
    rates = [(n + 0.5) * PI for n in range(3)]
    parts = zip((1.0, -0.7, 0.5), rates, strict=True)
    return sum(a * jnp.exp(-CONDUCTION * k**2 * p[0]) * jnp.sin(k * p[1]) for a, k in parts)


def string(p: Any) -> Any:
    """Evaluate `u` with `u_tt = u_xx`, zero at x = 0 and x = 1: three standing waves."""
    parts = ((0.9, 1, 0.3), (0.5, 2, 1.0), (0.25, 3, 2.0))
    return sum(a * jnp.sin(n * PI * p[1]) * jnp.cos(n * PI * p[0] + phase) for a, n, phase in parts)


THIN = 0.05


def layer(p: Any) -> Any:
    """Evaluate `u` with `u_x = 0.05 Δu` on the unit square, zero at x = 1, y = 0 and y = 1: a layer at x = 1."""
    total = jnp.zeros(())
    for amplitude, n in ((1.0, 1), (0.4, 2)):
        root = math.sqrt(1 + (2 * THIN * n * PI) ** 2)
        slow, fast = (1 - root) / (2 * THIN), (1 + root) / (2 * THIN)
        profile = jnp.exp(slow * p[0]) - jnp.exp(slow + fast * (p[0] - 1))
        total += amplitude * jnp.sin(n * PI * p[1]) * profile
    return total


RIGIDITY = 1 / 400
MOMENT = 0.4


def plate(p: Any) -> Any:
    """Evaluate the deflection of a loaded plate on the unit square, `Δ²u / 400 = q`, zero at its edge.

    Moments turn the edges y = 0 and y = 1. Their part of the solution has `Δ²u = 0`.
    """
    x, y = p[0], p[1]
    loaded = 2.0 * jnp.sin(PI * x) * jnp.sin(PI * y) + 0.6 * jnp.sin(2 * PI * x) * jnp.sin(PI * y)
    z, end = PI * (y - 0.5), PI / 2
    turned = (z * jnp.sinh(z) * math.cosh(end) - end * math.sinh(end) * jnp.cosh(z)) / math.cosh(end)
    return loaded + MOMENT * jnp.sin(PI * x) * turned


def plate_load(p: Any) -> Any:
    """Evaluate the load `q` of `plate`."""
    x, y = p[0], p[1]
    first, second = (jnp.sin(n * PI * x) * jnp.sin(PI * y) for n in (1, 2))
    return RIGIDITY * PI**4 * (2.0 * 4 * first + 0.6 * 25 * second)


def conductivity(p: Any) -> Any:
    """Evaluate `k = 1 + x² + y/2`."""
    return 1 + p[0] ** 2 + 0.5 * p[1]


def uneven(p: Any) -> Any:
    """Evaluate `u = sin(2x) cos(3y) + y/2`, the solution in inhomogeneous ground."""
    return jnp.sin(2 * p[0]) * jnp.cos(3 * p[1]) + 0.5 * p[1]


def uneven_source(p: Any) -> Any:
    """Evaluate `−∇·(k∇u)` of `uneven` with `conductivity`."""
    x, y = p[0], p[1]
    wave, slope = jnp.sin(2 * x) * jnp.cos(3 * y), -3 * jnp.sin(2 * x) * jnp.sin(3 * y) + 0.5
    return 13 * conductivity(p) * wave - 4 * x * jnp.cos(2 * x) * jnp.cos(3 * y) - 0.5 * slope


COOLING = 2.0
FINS = tuple(brentq(lambda m: m * math.sin(m) - COOLING * math.cos(m), n * PI, (n + 0.5) * PI) for n in range(3))
"""The first roots of `μ tan μ = 2`."""


def block(p: Any) -> Any:
    """Evaluate `u` with `Δu = 0` on (0, 1)², `u_x = 0` at x = 0, `u_x + 2u = 0` at x = 1, `u_y = 0` at y = 0."""
    parts = zip((1.2, -0.8, 0.6), FINS, strict=True)
    return sum(a * jnp.cos(m * p[0]) * jnp.cosh(m * p[1]) / math.cosh(m) for a, m in parts)


DAMPING, STIFFNESS, DRIVE = 0.4, 9.0, 2.0


def oscillator(p: Any) -> Any:
    """Evaluate `u` with `u″ + 0.4u′ + 9u = 3 cos 2t`: the forced oscillation, and a damped free one."""
    t = p[0]
    stiff, damped = STIFFNESS - DRIVE**2, DAMPING * DRIVE
    forced = 3 * (stiff * jnp.cos(DRIVE * t) + damped * jnp.sin(DRIVE * t)) / (stiff**2 + damped**2)
    free = jnp.exp(-DAMPING / 2 * t) * jnp.cos(math.sqrt(STIFFNESS - DAMPING**2 / 4) * t + 1.0)
    return forced + 0.9 * free


def oscillator_drive(p: Any) -> Any:
    """Evaluate `3 cos 2t`."""
    return 3 * jnp.cos(DRIVE * p[0])


def shaft(p: Any) -> Any:
    """Evaluate `u` with `Δu = −6π² sin πx sin πy cos πz` in the unit cube, zero at its sides x and y = 0, 1."""
    side, growth = jnp.sin(PI * p[0]) * jnp.sin(PI * p[1]), math.sqrt(2) * PI
    return 2 * side * (jnp.cos(PI * p[2]) + jnp.sinh(growth * p[2]) / math.sinh(growth))


def shaft_source(p: Any) -> Any:
    """Evaluate `−6π² sin πx sin πy cos πz`."""
    return -6 * PI**2 * jnp.sin(PI * p[0]) * jnp.sin(PI * p[1]) * jnp.cos(PI * p[2])


DRIFT, SPREAD, WIDTH = 0.5, 0.02, 0.15


def pulse(p: Any) -> Any:
    """Evaluate `u` with `u_t + 0.5u_x = 0.02u_xx`: a Gaussian that drifts and spreads."""
    variance = WIDTH**2 + 2 * SPREAD * p[0]
    return WIDTH / jnp.sqrt(variance) * jnp.exp(-((p[1] - 0.25 - DRIFT * p[0]) ** 2) / (2 * variance))


CENTRE, RADIUS = (0.3, -0.2), 0.4


def spot(p: Any) -> Any:
    """Evaluate `exp(−|p − c|²/2s²) + (x² − y²)/2`, c = (0.3, −0.2), s = 0.4: a hot spot and a harmonic part."""
    near = ((p[0] - CENTRE[0]) ** 2 + (p[1] - CENTRE[1]) ** 2) / RADIUS**2
    return jnp.exp(-near / 2) + 0.5 * (p[0] ** 2 - p[1] ** 2)


def spot_source(p: Any) -> Any:
    """Evaluate `−Δu` of `spot`."""
    near = ((p[0] - CENTRE[0]) ** 2 + (p[1] - CENTRE[1]) ** 2) / RADIUS**2
    return (2 - near) / RADIUS**2 * jnp.exp(-near / 2)


RING_SOURCE = 4.0


def ring(p: Any) -> Any:
    """Evaluate `u` with `−Δu = 4` and no flux through the unit circle, with waves around the ring."""
    r2 = p[0] ** 2 + p[1] ** 2
    waves = (p[0] ** 2 - p[1] ** 2) * (1 + 1 / r2**2)  # (r² + r⁻²) cos 2θ
    return 1 - r2 + jnp.log(r2) + 0.3 * waves
