"""Problems with known solutions, written before the distribution of hyperparameters was first computed on any of them.

Each seed draws a solution, its coefficients, the places of the readings and their noise. The problems are posed as a
newcomer would: one length or one for each axis, the equation at a usual number of nodes, and bounds that follow one
rule from the extent of the domain and the size of the readings. Unknown coefficients have bounds of a factor of a
hundred or more that are not centred on the truth.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import ellipj, ellipk

import pilescore as ps

Points: TypeAlias = Float[np.ndarray, "n d"]
Values: TypeAlias = Float[np.ndarray, " n"]
Over: TypeAlias = Mapping[str, tuple[Any, Any]]

LENGTHS = (0.02, 10.0)
"""Bounds of lengths, as fractions of the extent of the domain."""

NOISES = (1e-3, 1.0)
"""Bounds of noise deviations, as fractions of the standard deviation of the readings."""

SCALES = (1e-2, 1e4)
"""Bounds of η, as fractions of the mean square of the readings."""


@dataclasses.dataclass(frozen=True, eq=False)
class Instance:
    """One draw of a problem."""

    model: ps.Model
    """The model with its data, at the start of the search."""
    over: Over
    """The bounds of everything that is searched."""
    truth: Callable[[Points], Values]
    """The solution."""
    on: ps.domains.Nodes
    """Test points, with quadrature weights."""
    coefficients: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The true values of the unknown coefficients."""
    noise: float = 0.0
    """The standard deviation of the noise in the readings of the solution."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem with a known solution."""

    name: str
    title: str
    draw: Callable[[np.random.Generator], Instance]

    def instance(self, seed: int) -> Instance:
        """Return the draw of a seed."""
        return self.draw(np.random.default_rng([*self.name.encode(), seed]))


def _readings(
    rng: np.random.Generator, truth: Callable[[Points], Values], points: Points, fraction: float
) -> tuple[Values, float]:
    """Return noisy readings, and their noise deviation: a fraction of the standard deviation of the values."""
    exact = truth(points)
    noise = fraction * float(np.std(exact))
    return exact + noise * rng.standard_normal(len(points)), noise


def _posed(
    kernel: ps.Kernel,
    data: list[ps.Observation],
    physics: list[ps.Observation],
    extent: list[float],
    unknown: Mapping[str, tuple[float, float]],
) -> tuple[ps.Model, Over]:
    """Return a model at its start, and bounds by the same rule for all problems."""
    model, size = ps.Model(kernel, data, physics), np.asarray(extent)
    size = size if np.ndim(model.parameters["kernel.bandwidth"]) else size[0]
    start: dict[str, Any] = {"kernel.bandwidth": 0.3 * size}
    over: dict[str, tuple[Any, Any]] = {"kernel.bandwidth": (LENGTHS[0] * size, LENGTHS[1] * size)}
    for number, block in enumerate(data):
        temperature, variance = f"data.{number}.gamma" if number else "gamma", float(np.var(block.values))
        start[temperature] = 2 * 0.1**2 * variance
        over[temperature] = (2 * NOISES[0] ** 2 * variance, 2 * NOISES[1] ** 2 * variance)
    square = float(np.mean(data[0].values ** 2))
    start["eta"], over["eta"] = square, (SCALES[0] * square, SCALES[1] * square)
    return model.replace(start), {**over, **unknown}


def _random(rng: np.random.Generator, low: float, high: float) -> float:
    """Return a number between two positive ones, with a uniform logarithm."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _damped(rng: np.random.Generator) -> Instance:
    frequency, damping = _random(rng, 2.0, 5.0), _random(rng, 0.1, 1.0)
    amplitude, phase = _random(rng, 0.5, 3.0), rng.uniform(0, 2 * math.pi)
    turn = math.sqrt(frequency**2 - damping**2 / 4)

    def truth(p: Points) -> Values:
        return amplitude * np.exp(-damping / 2 * p[:, 0]) * np.cos(turn * p[:, 0] + phase)

    line = ps.Box(t=(0, 5))
    (dt,) = ps.partials(line)
    at = rng.uniform(0, 3, (7, 1))
    values, noise = _readings(rng, truth, at, 0.06)
    equation = ps.impose(dt**2 + damping * dt + frequency**2, 0.0, on=line.interior(ps.GaussLegendre(30)))
    model, over = _posed(ps.RBF([1.0]), [ps.observe(ps.identity, values, at=at)], [equation], [5.0], {})
    return Instance(model, over, truth, line.interior(ps.GaussLegendre(61)), noise=noise)


def _rough(rng: np.random.Generator) -> Instance:
    octaves = 2.0 ** np.arange(9)
    amplitudes = octaves**-0.9 * rng.standard_normal(9)
    phases = rng.uniform(0, 2 * math.pi, 9)

    def truth(p: Points) -> Values:
        return np.cos(math.pi * octaves * p + phases) @ amplitudes

    at = rng.uniform(0, 1, (40, 1))
    values, noise = _readings(rng, truth, at, 0.1)
    model, over = _posed(ps.Matern(bandwidth=[1.0]), [ps.observe(ps.identity, values, at=at)], [], [1.0], {})
    return Instance(model, over, truth, ps.Box(x=(0, 1)).interior(ps.GaussLegendre(100)), noise=noise)


def _disk_source(rng: np.random.Generator) -> Instance:
    strength, tilt = _random(rng, 2.0, 20.0), rng.uniform(-2, 2)

    def truth(p: Points) -> Values:  # −Δ of (1 − r²)/4 is 1, of x(1 − r²)/8 is x
        return strength * (1 / 4 + tilt * p[:, 0] / 8) * (1 - np.sum(p**2, axis=1))

    disk = ps.Disk()
    equation = ps.Nonlinear(
        lambda p, curvature, strength: -curvature - strength * (1 + tilt * p[0]),
        (ps.laplacian(disk),),
        parameters={"strength": 1.0},
    )
    radius, angle = np.sqrt(rng.uniform(0, 1, 20)), rng.uniform(0, 2 * math.pi, 20)
    at = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    values, noise = _readings(rng, truth, at, 0.15)
    physics = [
        ps.impose(equation, 0.0, on=disk.interior(ps.GaussLegendre((4, 9)))),
        ps.dirichlet(0.0, on=disk.boundary(ps.GaussLegendre(12))),
    ]
    data = [ps.observe(ps.identity, values, at=at)]
    model, over = _posed(ps.RBF(), data, physics, [2.0], {"strength": (0.01, 1000.0)})
    return Instance(model, over, truth, disk.interior(ps.GaussLegendre((9, 20))), {"strength": strength}, noise)


def _heat(rng: np.random.Generator) -> Instance:
    diffusivity = _random(rng, 0.03, 0.2)
    amplitudes = np.array([1.0, 0.5]) * rng.standard_normal(2)
    k = math.pi * np.arange(1, 3)

    def truth(p: Points) -> Values:
        return (np.exp(-diffusivity * k**2 * p[:, :1]) * np.sin(k * p[:, 1:])) @ amplitudes

    strip = ps.Box(t=(0, 1), x=(0, 1))
    dt, dx = ps.partials(strip)
    at = rng.uniform(0, 1, (40, 2))
    values, noise = _readings(rng, truth, at, 0.1)
    equation = dt - ps.parameter("diffusivity", 1.0) * dx**2
    physics = [
        ps.impose(equation, 0.0, on=strip.interior(ps.GaussLegendre(7))),
        *(ps.dirichlet(0.0, on=strip.face(x=x)(ps.GaussLegendre(6))) for x in (0, 1)),
    ]
    data = [ps.observe(ps.identity, values, at=at)]
    model, over = _posed(ps.RBF([1.0, 1.0]), data, physics, [1.0, 1.0], {"diffusivity": (1e-3, 10.0)})
    return Instance(model, over, truth, strip.interior(ps.GaussLegendre(16)), {"diffusivity": diffusivity}, noise)


def _logistic(rng: np.random.Generator) -> Instance:
    rate, capacity = _random(rng, 0.5, 1.5), _random(rng, 20.0, 80.0)
    first = capacity * _random(rng, 0.03, 0.2)

    def truth(p: Points) -> Values:
        return capacity / (1 + (capacity / first - 1) * np.exp(-rate * p[:, 0]))

    line = ps.Box(t=(0, 8))
    (dt,) = ps.partials(line)
    growth = ps.Nonlinear(
        lambda p, u, slope, rate, capacity: slope - rate * u * (1 - u / capacity),
        (ps.identity, dt),
        parameters={"rate": 0.3, "capacity": 100.0},
    )
    at = np.sort(rng.uniform(0, 8, (15, 1)), axis=0)
    values, noise = _readings(rng, truth, at, 0.1)
    physics = [ps.impose(growth, 0.0, on=line.interior(ps.GaussLegendre(20)))]
    unknown = {"rate": (0.03, 30.0), "capacity": (1.0, 1000.0)}
    model, over = _posed(ps.RBF([1.0]), [ps.observe(ps.identity, values, at=at)], physics, [8.0], unknown)
    coefficients = {"rate": rate, "capacity": capacity}
    return Instance(model, over, truth, line.interior(ps.GaussLegendre(41)), coefficients, noise)


def _pendulum(rng: np.random.Generator) -> Instance:
    frequency, modulus = _random(rng, 1.5, 3.0), math.sin(rng.uniform(1.0, 2.4) / 2)
    phase = rng.uniform(0, 4) * float(ellipk(modulus**2))

    def truth(p: Points) -> Values:  # the amplitude is 2 arcsin(modulus)
        return 2 * np.arcsin(modulus * ellipj(frequency * p[:, 0] + phase, modulus**2)[0])

    line = ps.Box(t=(0, 4))
    (dt,) = ps.partials(line)
    swing = ps.Nonlinear(
        lambda p, u, bend, stiffness: bend + stiffness * jnp.sin(u),
        (ps.identity, dt**2),
        parameters={"stiffness": 3.0},
    )
    at = np.sort(rng.uniform(0, 4, (25, 1)), axis=0)
    values, noise = _readings(rng, truth, at, 0.1)
    physics = [ps.impose(swing, 0.0, on=line.interior(ps.GaussLegendre(30)))]
    data = [ps.observe(ps.identity, values, at=at)]
    model, over = _posed(ps.RBF([1.0]), data, physics, [4.0], {"stiffness": (0.1, 100.0)})
    return Instance(model, over, truth, line.interior(ps.GaussLegendre(61)), {"stiffness": frequency**2}, noise)


def _waves(rng: np.random.Generator) -> Instance:
    wavenumber, angles = _random(rng, 4.0, 8.0), rng.uniform(0, 2 * math.pi, 5)
    amplitudes, phases = rng.standard_normal(5), rng.uniform(0, 2 * math.pi, 5)
    directions = np.stack([np.cos(angles), np.sin(angles)])

    def truth(p: Points) -> Values:
        return np.cos(wavenumber * p @ directions + phases) @ amplitudes

    square = ps.Box(x=(0, 1), y=(0, 1))
    at = rng.uniform(0, 1, (40, 2))
    values, noise = _readings(rng, truth, at, 0.08)
    operator = ps.laplacian(square) + wavenumber**2
    physics = [ps.impose(operator, 0.0, on=square.interior(ps.GaussLegendre(9)))]
    model, over = _posed(ps.RBF([1.0, 1.0]), [ps.observe(ps.identity, values, at=at)], physics, [1.0, 1.0], {})
    return Instance(model, over, truth, square.interior(ps.GaussLegendre(16)), noise=noise)


def _transport(rng: np.random.Generator) -> Instance:
    velocity, diffusivity = rng.uniform(-1.5, 1.5), _random(rng, 0.02, 0.1)
    amplitudes, phases = np.array([1.0, 0.7, 0.4]) * rng.standard_normal(3), rng.uniform(0, 2 * math.pi, 3)
    k = np.arange(1, 4)

    def truth(p: Points) -> Values:
        return (
            np.exp(-diffusivity * k**2 * p[:, :1]) * np.cos(k * (p[:, 1:] - velocity * p[:, :1]) + phases)
        ) @ amplitudes

    strip = ps.Box(t=(0, 1), x=(0, 5))
    dt, dx = ps.partials(strip)
    at = rng.uniform(0, 1, (60, 2)) * [1.0, 5.0]
    values, noise = _readings(rng, truth, at, 0.08)
    equation = dt + ps.parameter("velocity", 0.0) * dx - ps.parameter("diffusivity", 0.2) * dx**2
    physics = [ps.impose(equation, 0.0, on=strip.interior(ps.GaussLegendre((8, 14))))]
    unknown = {"velocity": (-10.0, 10.0), "diffusivity": (1e-3, 1.0)}
    data = [ps.observe(ps.identity, values, at=at)]
    model, over = _posed(ps.RBF([1.0, 1.0]), data, physics, [1.0, 5.0], unknown)
    coefficients = {"velocity": velocity, "diffusivity": diffusivity}
    return Instance(model, over, truth, strip.interior(ps.GaussLegendre((12, 24))), coefficients, noise)


LAYERS = 0.05
"""The ratio of the conductivities across and along the layers of `layered-ground`."""


def _layered(rng: np.random.Generator) -> Instance:
    a, b = _random(rng, 0.5, 2.0), rng.standard_normal()
    first, second = rng.uniform(0, 2 * math.pi, 2)

    def truth(p: Points) -> Values:
        return a * np.sin(3 * p[:, 0] + first) * np.cos(8 * p[:, 1] + second) + b * p[:, 0] * p[:, 1]

    def source(p: Any) -> Any:
        return (9 + 64 * LAYERS) * a * jnp.sin(3 * p[0] + first) * jnp.cos(8 * p[1] + second)

    square = ps.Box(x=(0, 1), y=(0, 1))
    dx, dy = ps.partials(square)
    at = rng.uniform(0, 1, (40, 2))
    values, noise = _readings(rng, truth, at, 0.08)
    physics = [ps.impose(-(dx**2) - LAYERS * dy**2, source, on=square.interior(ps.GaussLegendre(10)))]
    model, over = _posed(ps.RBF([1.0, 1.0]), [ps.observe(ps.identity, values, at=at)], physics, [1.0, 1.0], {})
    return Instance(model, over, truth, square.interior(ps.GaussLegendre(16)), noise=noise)


def _measured_load(rng: np.random.Generator) -> Instance:
    amplitudes, k = rng.standard_normal(4) / np.arange(1, 5), math.pi * np.arange(1, 5)
    ends = rng.standard_normal(2)

    def truth(p: Points) -> Values:
        return np.sin(k * p) @ amplitudes + ends[0] + (ends[1] - ends[0]) * p[:, 0]

    def load(p: Points) -> Values:
        return np.sin(k * p) @ (k**2 * amplitudes)

    line = ps.Box(x=(0, 1))
    (dx,) = ps.partials(line)
    at, there = rng.uniform(0, 1, (10, 1)), rng.uniform(0, 1, (25, 1))
    values, noise = _readings(rng, truth, at, 0.05)
    loads, _ = _readings(rng, load, there, 0.15)
    data = [
        ps.observe(ps.identity, values, at=at),
        ps.observe(-(dx**2), loads, at=there, gamma=1.0, name="load"),
    ]
    model, over = _posed(ps.RBF([1.0]), data, [], [1.0], {})
    return Instance(model, over, truth, line.interior(ps.GaussLegendre(51)), noise=noise)


PROBLEMS: tuple[Problem, ...] = (
    Problem("damped-oscillation", "A damped oscillation from seven readings, continued beyond them", _damped),
    Problem("rough-curve", "A rough curve: regression without an equation", _rough),
    Problem("disk-source", "Poisson's equation on a disk, unknown strength of the source", _disk_source),
    Problem("heat-diffusivity", "Heat in a rod, unknown diffusivity and initial values", _heat),
    Problem("logistic-growth", "Logistic growth, unknown rate and capacity (nonlinear)", _logistic),
    Problem("pendulum", "A pendulum with large amplitudes, unknown length (nonlinear)", _pendulum),
    Problem("plane-waves", "Waves of one frequency from all sides (Helmholtz), unknown boundary", _waves),
    Problem("transport", "Advection and diffusion, both unknown, unknown initial values and inflow", _transport),
    Problem("layered-ground", "Flow in layered ground: anisotropic, known source, unknown boundary", _layered),
    Problem("measured-load", "A string under a load that was measured with unknown noise", _measured_load),
)


def problem(name: str) -> Problem:
    """Return a problem by its name."""
    problems = {each.name: each for each in PROBLEMS}
    if name not in problems:
        raise ps.errors.InputError(f"no problem {name!r}. The problems are: {', '.join(problems)}")
    return problems[name]
