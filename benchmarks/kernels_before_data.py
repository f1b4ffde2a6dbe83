"""How well scores without data rank kernels by the error of the solutions that they give.

    python -m benchmarks.kernels_before_data            # the table
    python -m benchmarks.kernels_before_data --smoke    # one equation, every third kernel

For each equation and each kernel of a list, the equation is solved from exact conditions on the boundary, and the
relative L² error of the posterior mean is measured on a fine grid. The table shows Spearman's rank correlation of this
error with three scores that use neither the conditions nor the solution: the determinant of `ps.data_free_pile` at
ρ = η = 1, the same at the calibrated ρ, and the normalised score. It also shows the error of the kernel that each score
prefers. The normalised score was developed on the first four equations; the others were written down before it was
evaluated on any of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.stats import spearmanr

import pilescore as ps
from pilescore.covariance import layout, variances

NOISE = 1e-9
"""Noise variances of the equation and the conditions, relative to prior variances: exact up to rounding."""

RBF, AnisotropicRBF, Matern = ps.RBF, ps.AnisotropicRBF, ps.Matern
Cosine, Periodic = ps.kernels.Cosine, ps.kernels.Periodic
TAU = 2 * np.pi

Truth = Callable[[np.ndarray], np.ndarray]
Condition = tuple[ps.Operator, np.ndarray, Truth]
"""An operator, the points where its value is known, and the function that gives its values."""


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """An equation with a known solution, and kernels to solve it with."""

    name: str
    operator: ps.Operator
    nodes: ps.domains.Nodes
    conditions: Sequence[Condition]
    truth: Truth
    grid: np.ndarray
    """Points where the error is measured."""
    kernels: Sequence[ps.Kernel]
    source: Callable[[Any], Any] | float = 0.0
    developed: bool = False
    """Whether the normalised score was developed on this equation."""


def line(box: ps.Box, count: int = 201) -> np.ndarray:
    """Return points of an interval."""
    return np.linspace(box.lower[0], box.upper[0], count)[:, None]


def plane(box: ps.Box, count: int = 31) -> np.ndarray:
    """Return the points of a grid in a rectangle."""
    axes = [np.linspace(a, b, count) for a, b in zip(box.lower, box.upper, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)


def edges(box: ps.Box, count: int, sides: str) -> np.ndarray:
    """Return points on edges of a rectangle: `0` and `1` are the ends of the first axis, `2` and `3` of the second."""
    (a, c), (b, d) = box.lower, box.upper
    first, second = np.linspace(a, b, count), np.linspace(c, d, count)
    all_edges = {
        "0": np.stack([np.full(count, a), second], 1),
        "1": np.stack([np.full(count, b), second], 1),
        "2": np.stack([first, np.full(count, c)], 1),
        "3": np.stack([first, np.full(count, d)], 1),
    }
    return np.unique(np.concatenate([all_edges[side] for side in sides]), axis=0)


def rbf(*bandwidths: Any) -> list[ps.Kernel]:
    """Return Gaussian kernels; a bandwidth may be a list of one for each axis."""
    return [RBF(h) for h in bandwidths]


def matern(orders: Sequence[float], bandwidths: Sequence[Any]) -> list[ps.Kernel]:
    """Return Matérn kernels."""
    return [Matern(nu, h) for nu in orders for h in bandwidths]


def rotated(angles: Sequence[float], stretches: Sequence[float], bandwidths: Sequence[float]) -> list[ps.Kernel]:
    """Return rotated and stretched Gaussian kernels."""
    return [AnisotropicRBF(theta, s, h) for theta in angles for s in stretches for h in bandwidths]


def waves(bandwidths: Sequence[Any], frequencies: Sequence[Any]) -> list[ps.Kernel]:
    """Return products of a Gaussian kernel and a plane wave."""
    return [RBF(h) * Cosine(f) for h in bandwidths for f in frequencies]


def periodic(box: Sequence[float], axis: int, other: float) -> list[ps.Kernel]:
    """Return products of a periodic kernel on one axis, for each period, and a Gaussian kernel on the other."""
    return [Periodic(period, 1.0).on(axis) * RBF(other).on(1 - axis) for period in box]


def developed() -> list[Case]:
    """Return the equations that the normalised score was developed on."""
    cases = []
    unit = ps.Box(x=(0, 1))
    (dx,) = ps.partials(unit)
    k = 12.0

    def wave(p: np.ndarray) -> np.ndarray:
        return np.sin(k * p[:, 0]) + 0.5 * np.cos(k * p[:, 0])

    kernels = rbf(0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0) + matern((2.5, 3.5), (0.1, 0.3, 1.0))
    kernels += waves((0.3, 1.0, 3.0), [q * k / TAU for q in (0.5, 1.0, 1.5)])
    ends = [(ps.identity, np.array([[0.0], [1.0]]), wave)]
    operator = dx**2 + k**2 * ps.identity
    nodes = unit.interior(ps.GaussLegendre(24))
    cases.append(Case("Helmholtz 1-D, k = 12", operator, nodes, ends, wave, line(unit), kernels, developed=True))

    strip, beta = ps.Box(t=(0, 1), x=(0, TAU)), 10.0
    dt, dx = ps.partials(strip)
    angle = float(np.arctan(beta))

    def travelling(p: np.ndarray) -> np.ndarray:
        return np.sin(p[:, 1] - beta * p[:, 0])

    kernels = rbf(0.1, 0.3, 1.0, 3.0, [0.1, 1.0], [0.05, 0.5], [1.0, 0.1], [0.2, 2.0])
    kernels += rotated((angle, angle - 0.1, angle - 0.5, 0.0), (0.1, 0.4), (0.3, 1.0))
    kernels += [Matern(2.5, 1.0), Matern(2.5, [0.1, 1.0])]
    kernels += [RBF(h).on(0) * Periodic(TAU, 1.0).on(1) for h in (0.1, 1.0)]
    inflow = [(ps.identity, edges(strip, 20, "02"), travelling)]
    nodes = strip.interior(ps.GaussLegendre(14))
    cases.append(
        Case("convection, β = 10", dt + beta * dx, nodes, inflow, travelling, plane(strip), kernels, developed=True)
    )

    square = ps.Box(x=(0, 1), y=(0, 1))
    dx, dy = ps.partials(square)

    def harmonic(p: np.ndarray) -> np.ndarray:
        return np.sin(3 * p[:, 0]) * np.exp(3 * p[:, 1]) / 10 + p[:, 0] * p[:, 1]

    kernels = rbf(0.05, 0.1, 0.2, 0.4, 0.8, 1.6, [0.1, 1.0], [1.0, 0.1], [0.3, 0.9])
    kernels += matern((2.5, 3.5), (0.1, 0.3, 1.0)) + rotated((0.0, 0.8), (0.2, 0.5), (0.5,))
    kernels += waves((0.5,), ([0.5, 0.0], [2.0, 0.0])) + periodic((1.0, 2.0), 0, 0.5)
    around = [(ps.identity, edges(square, 11, "0123"), harmonic)]
    nodes = square.interior(ps.GaussLegendre(12))
    cases.append(Case("Laplace", dx**2 + dy**2, nodes, around, harmonic, plane(square), kernels, developed=True))

    strip, kappa = ps.Box(t=(0, 1), x=(0, 1)), 0.1
    dt, dx = ps.partials(strip)

    def cooling(p: np.ndarray) -> np.ndarray:
        t, x = p.T
        slow = np.exp(-kappa * np.pi**2 * t) * np.sin(np.pi * x)
        return slow + 0.5 * np.exp(-kappa * TAU**2 * t) * np.cos(TAU * x)

    kernels = rbf(0.05, 0.1, 0.2, 0.4, 0.8, 1.6, [0.1, 0.5], [1.0, 0.1], [1.0, 0.3], [0.3, 0.3], [3.0, 0.3])
    kernels += matern((2.5, 3.5), (0.1, 0.3, 1.0)) + rotated((0.0, 0.8), (0.2, 0.5), (0.5,))
    kernels += periodic((2.0, 1.0), 1, 0.5) + waves((0.5,), ([0.0, 1.0], [2.0, 0.0]))
    start = [(ps.identity, edges(strip, 12, "023"), cooling)]
    nodes = strip.interior(ps.GaussLegendre(12))
    cases.append(
        Case("heat, κ = 0.1", dt - kappa * dx**2, nodes, start, cooling, plane(strip), kernels, developed=True)
    )
    return cases


def held_out() -> list[Case]:
    """Return the equations that were written down before any score was evaluated on them."""
    return [
        helmholtz_in_a_square(),
        fast_convection(),
        poisson(),
        advection_diffusion(),
        string(),
        beam(),
        oscillator(),
        klein_gordon(),
        euler(),
        disk(),
        slow_heat(),
    ]


def helmholtz_in_a_square() -> Case:
    square, k = ps.Box(x=(0, 1), y=(0, 1)), 8.0
    dx, dy = ps.partials(square)

    def truth(p: np.ndarray) -> np.ndarray:
        x, y = p.T
        return np.sin(k * (0.6 * x + 0.8 * y)) + np.cos(k * (0.8 * x - 0.6 * y))

    f = k / TAU
    kernels = rbf(0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, [0.1, 0.6], [0.6, 0.1])
    kernels += matern((2.5, 3.5, 4.5), (0.12, 0.5, 2.0)) + rotated((0.4, 1.2), (0.3, 0.6), (0.4,))
    kernels += waves((0.5, 2.0), ([f, 0.0], [0.6 * f, 0.8 * f], [2 * f, 0.0]))
    kernels += periodic((1.0, 2.0), 0, 0.4)
    operator = dx**2 + dy**2 + k**2 * ps.identity
    around = [(ps.identity, edges(square, 13, "0123"), truth)]
    nodes = square.interior(ps.GaussLegendre(13))
    return Case("Helmholtz 2-D, k = 8", operator, nodes, around, truth, plane(square), kernels)


def fast_convection() -> Case:
    strip, beta = ps.Box(t=(0, 1), x=(0, TAU)), 30.0
    dt, dx = ps.partials(strip)
    angle = float(np.arctan(beta))

    def truth(p: np.ndarray) -> np.ndarray:
        return np.sin(p[:, 1] - beta * p[:, 0])

    kernels = rbf(0.05, 0.2, 0.6, 2.0, 6.0, [0.03, 1.0], [0.1, 3.0], [0.5, 0.5], [0.02, 0.2])
    kernels += rotated((angle - 1.0, angle - 0.2, angle - 0.03, angle, angle + 0.03), (0.05, 0.2, 0.6), (0.5, 2.0))
    kernels += [*matern((1.5, 2.5), (0.5, [0.03, 1.0])), RBF(0.03).on(0) * Periodic(TAU, 1.0).on(1)]
    inflow = [(ps.identity, edges(strip, 24, "02"), truth)]
    nodes = strip.interior(ps.GaussLegendre(16))
    return Case("convection, β = 30", dt + beta * dx, nodes, inflow, truth, plane(strip), kernels)


def poisson() -> Case:
    square = ps.Box(x=(-1, 1), y=(-1, 1))
    dx, dy = ps.partials(square)

    def truth(p: np.ndarray) -> np.ndarray:
        x, y = p.T
        return np.sin(np.pi * x) * np.sin(TAU * y) + 0.2 * (1 - x**2) * (1 - y**2)

    def source(p: Any) -> Any:
        x, y = p[0], p[1]
        wave = -5 * np.pi**2 * jnp.sin(np.pi * x) * jnp.sin(TAU * y)
        return wave - 0.4 * (1 - y**2) - 0.4 * (1 - x**2)

    kernels = rbf(0.07, 0.15, 0.3, 0.6, 1.2, 2.5, 5.0, [0.2, 1.0], [1.0, 0.2])
    kernels += matern((2.5, 3.5), (0.2, 0.8, 3.0)) + rotated((0.5,), (0.25, 0.5), (0.5, 1.0))
    kernels += waves((0.5, 2.0), ([0.5, 1.0], [3.0, 0.0])) + periodic((2.0, 4.0), 0, 0.6) + periodic((2.0,), 1, 0.6)
    around = [(ps.identity, edges(square, 11, "0123"), truth)]
    nodes = square.interior(ps.GaussLegendre(13))
    name = "Poisson with a source"
    return Case(name, dx**2 + dy**2, nodes, around, truth, plane(square), kernels, source=source)


def advection_diffusion() -> Case:
    strip, speed, kappa, k = ps.Box(t=(0, 1), x=(0, 2)), 2.0, 0.05, 3.0
    dt, dx = ps.partials(strip)
    angle = float(np.arctan(speed))

    def truth(p: np.ndarray) -> np.ndarray:
        t, x = p.T
        first = np.exp(-kappa * k**2 * t) * np.sin(k * (x - speed * t))
        return first + 0.5 * np.exp(-kappa * (2 * k) ** 2 * t) * np.cos(2 * k * (x - speed * t))

    kernels = rbf(0.04, 0.1, 0.25, 0.6, 1.5, 4.0, [0.15, 0.4], [1.0, 0.2], [0.1, 1.0])
    kernels += rotated((angle, angle - 0.3, 0.0, 2.2), (0.15, 0.5), (0.3, 1.0))
    kernels += matern((2.5, 3.5), (0.2, 0.8)) + waves((0.5,), ([1.0, -0.5], [3.0, 3.0])) + periodic((2.0,), 1, 0.3)
    start = [(ps.identity, edges(strip, 14, "023"), truth)]
    nodes = strip.interior(ps.GaussLegendre(13))
    operator = dt + speed * dx - kappa * dx**2
    return Case("advection and diffusion", operator, nodes, start, truth, plane(strip), kernels)


def string() -> Case:
    strip, c = ps.Box(t=(0, 1), x=(0, 3)), 2.0
    dt, dx = ps.partials(strip)

    def truth(p: np.ndarray) -> np.ndarray:
        t, x = p.T
        return np.sin(3 * (x - c * t)) + 0.5 * np.cos(2 * (x + c * t))

    def velocity(p: np.ndarray) -> np.ndarray:
        t, x = p.T
        return -3 * c * np.cos(3 * (x - c * t)) - c * np.sin(2 * (x + c * t))

    kernels = rbf(0.05, 0.15, 0.4, 1.0, 3.0, [0.3, 0.6], [0.1, 0.2], [1.0, 0.3], [0.2, 1.5])
    kernels += rotated((1.1, 0.0), (0.2, 0.5), (0.4, 1.2)) + matern((2.5, 3.5, 4.5), (0.3, 1.0))
    kernels += waves((1.0, 3.0), ([6 / TAU, 3 / TAU], [1.0, 3.0])) + periodic((3.0, 6.0), 1, 0.3)
    characteristics = [ps.kernels.LinearMap(RBF(h), [[-c, 1.0]]) for h in (0.3, 1.0)]
    backwards = [ps.kernels.LinearMap(RBF(h), [[c, 1.0]]) for h in (0.3, 1.0)]
    kernels += [one + two + 0.01 * RBF(0.5) for one, two in zip(characteristics, backwards, strict=True)]
    initial = edges(strip, 16, "0")
    conditions = [(ps.identity, edges(strip, 16, "023"), truth), (dt, initial, velocity)]
    nodes = strip.interior(ps.GaussLegendre(14))
    return Case("string, c = 2", dt**2 - c**2 * dx**2, nodes, conditions, truth, plane(strip), kernels)


def beam() -> Case:
    unit = ps.Box(x=(0, 1))
    (dx,) = ps.partials(unit)

    def truth(p: np.ndarray) -> np.ndarray:
        x = p[:, 0]
        return 1 + x - 6 * x**2 + 5 * x**3

    def slope(p: np.ndarray) -> np.ndarray:
        x = p[:, 0]
        return 1 - 12 * x + 15 * x**2

    kernels = rbf(0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0) + matern((4.5, 5.5), (0.1, 0.4, 1.5))
    kernels += waves((0.5, 2.0), (0.5, 1.0, 3.0)) + [Periodic(period, 1.0) for period in (1.0, 2.0, 6.0)]
    ends = np.array([[0.0], [1.0]])
    nodes = unit.interior(ps.GaussLegendre(16))
    return Case("beam", dx**4, nodes, [(ps.identity, ends, truth), (dx, ends, slope)], truth, line(unit), kernels)


def oscillator() -> Case:
    time, damping, rate = ps.Box(t=(0, 2)), 0.8, 225.0
    (dt,) = ps.partials(time)
    omega = float(np.sqrt(rate - damping**2 / 4))

    def truth(p: np.ndarray) -> np.ndarray:
        t = p[:, 0]
        return np.exp(-damping * t / 2) * np.cos(omega * t)

    def velocity(p: np.ndarray) -> np.ndarray:
        t = p[:, 0]
        return np.exp(-damping * t / 2) * (-damping / 2 * np.cos(omega * t) - omega * np.sin(omega * t))

    kernels = rbf(0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 2.0) + matern((2.5, 3.5, 4.5), (0.1, 0.4, 1.5))
    kernels += waves((0.2, 0.8, 3.0), [q * omega / TAU for q in (0.3, 0.9, 1.0, 2.0)])
    kernels += [Periodic(TAU / omega, 1.0) * RBF(h) for h in (0.3, 2.0)]
    zero = np.array([[0.0]])
    nodes = time.interior(ps.GaussLegendre(36))
    operator = dt**2 + damping * dt + rate * ps.identity
    conditions = [(ps.identity, zero, truth), (dt, zero, velocity)]
    return Case("damped oscillator", operator, nodes, conditions, truth, line(time), kernels)


def klein_gordon() -> Case:
    strip, mass, k = ps.Box(t=(0, 1), x=(0, 2)), 5.0, 3.0
    dt, dx = ps.partials(strip)
    omega = float(np.sqrt(k**2 + mass**2))

    def truth(p: np.ndarray) -> np.ndarray:
        t, x = p.T
        return np.sin(k * x - omega * t) + 0.5 * np.cos(mass * t)

    def velocity(p: np.ndarray) -> np.ndarray:
        t, x = p.T
        return -omega * np.cos(k * x - omega * t) - 0.5 * mass * np.sin(mass * t)

    kernels = rbf(0.05, 0.12, 0.3, 0.7, 1.6, 4.0, [0.2, 0.6], [0.6, 0.2], [0.1, 2.0])
    kernels += rotated((1.0, 2.1), (0.3, 0.6), (0.5,)) + matern((2.5, 3.5), (0.2, 0.8, 2.0))
    kernels += waves((0.7, 2.0), ([omega / TAU, -k / TAU], [mass / TAU, 0.0], [3.0, 1.0]))
    kernels += periodic((2.0, 1.0), 1, 0.3)
    conditions = [(ps.identity, edges(strip, 14, "023"), truth), (dt, edges(strip, 14, "0"), velocity)]
    nodes = strip.interior(ps.GaussLegendre(13))
    operator = dt**2 - dx**2 + mass**2 * ps.identity
    return Case("Klein and Gordon", operator, nodes, conditions, truth, plane(strip), kernels)


def euler() -> Case:
    interval = ps.Box(x=(1, 3))
    (dx,) = ps.partials(interval)
    x = ps.coefficient(lambda p: p[0], "x")

    def truth(p: np.ndarray) -> np.ndarray:
        return p[:, 0] ** 3 / 27 + p[:, 0] ** -3.0

    kernels = rbf(0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0) + matern((2.5, 3.5, 4.5), (0.2, 0.8, 3.0))
    kernels += waves((0.5, 2.0), (0.3, 1.0, 3.0)) + [Periodic(period, 1.0) for period in (1.0, 2.0, 8.0)]
    ends = [(ps.identity, np.array([[1.0], [3.0]]), truth)]
    nodes = interval.interior(ps.GaussLegendre(14))
    operator = x * x * dx**2 + x * dx - 9 * ps.identity
    return Case("Euler, x²u'' + xu' = 9u", operator, nodes, ends, truth, line(interval), kernels)


def disk() -> Case:
    region = ps.Disk(radius=1.0)
    dx, dy = ps.partials(region)

    def truth(p: np.ndarray) -> np.ndarray:
        x, y = p.T
        return np.exp(2 * x) * np.sin(2 * y) / 3 + x**3 - 3 * x * y**2

    angles = np.linspace(0, TAU, 36, endpoint=False)
    rim = np.stack([np.cos(angles), np.sin(angles)], 1)
    square = plane(ps.Box(x=(-1, 1), y=(-1, 1)), 41)
    kernels = rbf(0.08, 0.16, 0.3, 0.6, 1.2, 2.5, 5.0, [0.2, 1.5], [1.0, 0.4])
    kernels += matern((2.5, 3.5, 4.5), (0.2, 0.8, 3.0)) + rotated((0.0, 0.8), (0.3, 0.7), (0.7,))
    kernels += waves((0.7, 2.0), ([0.5, 0.5], [2.0, 0.0]))
    nodes = region(ps.GaussLegendre(12))
    inside = square[np.hypot(*square.T) <= 1]
    around = [(ps.identity, rim, truth)]
    return Case("Laplace in a disk", dx**2 + dy**2, nodes, around, truth, inside, kernels)


def slow_heat() -> Case:
    strip, kappa = ps.Box(t=(0, 2), x=(0, 3)), 0.02
    dt, dx = ps.partials(strip)

    def truth(p: np.ndarray) -> np.ndarray:
        t, x = p.T
        return np.exp(-kappa * 4 * t) * np.sin(2 * x) + np.exp(-kappa * 25 * t) * np.cos(5 * x)

    kernels = rbf(0.08, 0.15, 0.3, 0.7, 1.5, 4.0, [1.0, 0.3], [3.0, 0.5], [0.3, 1.0], [6.0, 0.2])
    kernels += matern((2.5, 4.5), (0.3, 1.0, 3.0)) + rotated((0.0, 0.3, 1.5), (0.3, 0.6), (0.8,))
    kernels += waves(([2.0, 0.7],), ([0.0, 5 / TAU], [0.0, 2 / TAU], [1.0, 0.0])) + periodic((3.0, TAU), 1, 2.0)
    start = [(ps.identity, edges(strip, 16, "023"), truth)]
    nodes = strip.interior(ps.GaussLegendre(14))
    return Case("heat, κ = 0.02", dt - kappa * dx**2, nodes, start, truth, plane(strip), kernels)


def deviation(kernel: ps.Kernel, block: ps.Observation) -> float:
    """Return the prior standard deviation of a block's values, averaged over the block."""
    prior = np.concatenate([variances(kernel, tile, 1.0) for tile in layout([block]).tiles])
    return float(np.sqrt(prior.mean()))


def error(case: Case, kernel: ps.Kernel, noise: float) -> float:
    """Return the relative L² error of the solution from exact conditions."""
    equation = ps.impose(case.operator, case.source, on=case.nodes)
    physics = ps.impose(case.operator, case.source, on=case.nodes, noise=np.sqrt(noise) * deviation(kernel, equation))
    data = []
    for operator, points, values in case.conditions:
        block = ps.observe(operator, values(points), at=points)
        scale = np.sqrt(noise) * deviation(kernel, block)
        data.append(ps.observe(operator, values(points), at=points, noise=scale))
    truth = case.truth(case.grid)
    with warnings.catch_warnings():
        # Smooth kernels have nearly dependent rows; their PILE is uncertain, but their mean is not.
        warnings.simplefilter("ignore", ps.errors.PrecisionWarning)
        mean = ps.posterior(ps.Model(kernel, data, physics)).mean(case.grid)
    return float(np.linalg.norm(mean - truth) / np.linalg.norm(truth))


def scores(case: Case, kernel: ps.Kernel) -> tuple[float, float, float]:
    """Return the determinant at ρ = 1 and at the calibrated ρ, and the normalised score."""
    equation = ps.impose(case.operator, 0.0, on=case.nodes)
    found = ps.data_free_pile(ps.Model(kernel, physics=equation))
    rho = ps.inference.calibrated_rho(equation)
    return found.value, ps.data_free_pile(ps.Model(kernel, physics=equation, rho=rho)).value, found.normalised


def table(cases: Sequence[Case], noise: float, every: int = 1, verbose: bool = False) -> np.ndarray:
    """Print one row for each equation, and return the rank correlations."""
    correlations = []
    for case in cases:
        kernels = case.kernels[::every]
        errors = np.array([error(case, kernel, noise) for kernel in kernels])
        columns = np.array([scores(case, kernel) for kernel in kernels]).T
        ranks = [float(spearmanr(column, errors).statistic) for column in columns]
        chosen = [errors[int(np.argmin(columns[i]))] for i in (0, 2)]
        numbers = " | ".join(f"{rank:.2f}" for rank in ranks)
        print(
            f"| {case.name} | {len(kernels)} | {numbers} | {chosen[0]:.1e} | {chosen[1]:.1e} | {errors.min():.1e} |",
            flush=True,
        )
        if verbose:
            for i in np.argsort(errors):
                values = ", ".join(f"{column[i]:.2f}" for column in columns)
                print(f"    {errors[i]:.1e}: {values}: {kernels[i]!r}")
        correlations.append(ranks)
    return np.array(correlations)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--noise", type=float, default=NOISE, help="relative noise variance of exact conditions")
    parser.add_argument("--developed", action="store_true", help="the four equations of the development only")
    parser.add_argument("--verbose", action="store_true", help="print every kernel")
    options = parser.parse_args()
    print("| equation | kernels | rank correlation: value | value, calibrated ρ | normalised ", end="")
    print("| error: lowest value | lowest normalised | best kernel |\n|---|---|---|---|---|---|---|---|")
    if options.smoke:
        table(developed()[:1], options.noise, every=3)
        return 0
    groups = {"developed on": developed()} | ({} if options.developed else {"held out": held_out()})
    means = {}
    for name, cases in groups.items():
        found = table(cases, options.noise, verbose=options.verbose)
        means[name] = found
    print()
    for name, found in means.items():
        mean, least = found.mean(axis=0), found.min(axis=0)
        print(
            f"{name}: {len(found)} equations, mean (least) rank correlation: value {mean[0]:.2f} ({least[0]:.2f}), "
            f"calibrated {mean[1]:.2f} ({least[1]:.2f}), normalised {mean[2]:.2f} ({least[2]:.2f})"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
