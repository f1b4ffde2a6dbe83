"""Exact and spectral solutions of the published problems."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np


def spectral(
    initial: np.ndarray,
    length: float,
    linear: Callable[[np.ndarray], np.ndarray],
    speed: float,
    time: float,
    step: float,
) -> np.ndarray:
    """Return the solution of u_t + speed·u u_x = L u at a time, with period `length`.

    Fourier modes in space, with the usual two thirds of them; in time the classical Runge-Kutta method of fourth order,
    with L as an integrating factor.

    Parameters
    ----------
    initial
        The values at time 0 on an equispaced grid.
    length
        The period.
    linear
        The symbol of L: a function of the wave numbers k.
    speed
        The factor of u u_x.
    time, step
        The time of the solution, and the largest time step.
    """
    count = len(initial)
    k = 2 * np.pi / length * np.arange(count // 2 + 1)
    steps = int(np.ceil(time / step - 1e-9))
    h = time / steps
    half = np.exp(linear(k) * h / 2)
    factor = -0.5j * speed * k * (np.arange(len(k)) < count / 3)

    def slope(v: np.ndarray) -> np.ndarray:
        return factor * np.fft.rfft(np.fft.irfft(v, count) ** 2)

    v = np.fft.rfft(initial)
    for _ in range(steps):
        a = slope(v)
        b = slope(half * (v + h / 2 * a))
        c = slope(half * v + h / 2 * b)
        d = slope(half**2 * v + h * half * c)
        v = half**2 * v + h / 6 * (half**2 * a + 2 * half * (b + c) + d)
    return np.fft.irfft(v, count)


@functools.cache
def burgers_snapshot(time: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the grid and the solution of u_t + u u_x = 0.1 u_xx on [−8, 8), from exp(−(x + 2)²)."""
    x = -8 + 16 / 256 * np.arange(256)
    return x, spectral(np.exp(-((x + 2) ** 2)), 16.0, lambda k: -0.1 * k**2 + 0j, 1.0, time, 2e-3)


def soliton(x: np.ndarray, speed: float, place: float) -> np.ndarray:
    """Return a soliton of u_t + 6u u_x + u_xxx = 0."""
    return speed / 2 / np.cosh(np.sqrt(speed) / 2 * (x - place)) ** 2


@functools.cache
def korteweg_snapshot(time: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the grid and the solution of u_t + 6u u_x + u_xxx = 0 on [−30, 30), from two solitons."""
    x = -30 + 60 / 512 * np.arange(512)
    initial = soliton(x, 1.0, -20.0) + soliton(x, 0.5, 5.0)
    return x, spectral(initial, 60.0, lambda k: 1j * k**3, 6.0, time, 2e-3)


def burgers(points: np.ndarray, viscosity: float) -> np.ndarray:
    """Return the solution of u_t + u u_x = ν u_xx at points (t, x), with u = −sin πx at t = 0, and u = 0 at x = ±1.

    By the Cole-Hopf transformation, integrated by Gauss-Hermite quadrature.
    """
    t, x = points.T
    nodes, weights = np.polynomial.hermite.hermgauss(120)
    y = x[:, None] - np.sqrt(4 * viscosity * t)[:, None] * nodes
    mass = weights * np.exp(-np.cos(np.pi * y) / (2 * np.pi * viscosity))
    return np.asarray(-(mass * np.sin(np.pi * y)).sum(axis=1) / mass.sum(axis=1))


def eikonal(points: np.ndarray, epsilon: float) -> np.ndarray:
    """Return the solution of |∇u|² = 1 + ε Δu on the unit square, with u = 0 on its sides.

    With u = −ε log v, the equation is v = ε² Δv, with v = 1 on the sides. The solution is a sum of two series, each of
    which is 1 on two opposite sides and 0 on the others. They converge inside the square; on the
    sides u is set to 0.
    """
    odd = np.arange(1, 6001, 2)
    rate = np.sqrt((np.pi * odd) ** 2 + epsilon**-2)

    def series(along: float, across: float) -> float:
        near, far = min(across, 1 - across), max(across, 1 - across)
        decay = (np.exp(-rate * near) + np.exp(-rate * far)) / (1 + np.exp(-rate))
        return float(np.sum(4 / (np.pi * odd) * np.sin(np.pi * odd * along) * decay))

    inside = np.all((points > 1e-12) & (points < 1 - 1e-12), axis=1)
    values = [
        -epsilon * np.log(series(x, y) + series(y, x)) if i else 0.0 for (x, y), i in zip(points, inside, strict=True)
    ]
    return np.array(values)
