"""Exact solutions of the examples, and their data files: `python examples/make.py` writes the files again."""

from __future__ import annotations

import csv
import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Table = dict[str, Array]

HERE = Path(__file__).parent
SEED = 0


@dataclasses.dataclass(frozen=True)
class Example:
    """The truth behind an example, which its problem file does not contain."""

    solution: Callable[[Array], Array]
    """The unknown at points of shape (n, d)."""
    tables: Callable[[int], dict[str, Table]]
    """The data files by name, with noise from a seed; the points do not depend on it."""
    parameters: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The true values of the inferred parameters."""


def poisson(points: Array) -> Array:
    """Return `u` with `Δu = −(5/4)π² cos(πx/2) sin(πy)` on [−1, 1]², zero at x = ±1; a closed form.

    Its second part is harmonic and zero at x = ±1: neither the equation nor the conditions determine it.
    """
    x, y = points.T
    return np.cos(np.pi * x / 2) * (np.sin(np.pi * y) + np.cosh(np.pi * y / 2) / np.cosh(np.pi / 2))


def poisson_tables(seed: int) -> dict[str, Table]:
    """Return 40 readings at scattered points, with standard deviation 0.05."""
    points = scattered(40, [-1, -1], [1, 1])
    return {"readings.csv": table(points, "xy", u=noisy(poisson(points), 0.05, seed))}


def heat(points: Array) -> Array:
    """Return `u` with `u_t = 0.2 u_xx` on [0, 1]², `u_x = 0` at x = 0 and `2u + u_x = 0` at x = 1; a closed form.

    It is the sum of the two slowest modes `exp(−0.2 μ² t) cos(μx)`, `μ tan μ = 2`.
    """
    t, x = points.T
    slow, fast = (np.exp(-0.2 * mu**2 * t) * np.cos(mu * x) for mu in heat_modes(2.0, 2))
    return slow + 0.5 * fast


@functools.cache
def heat_modes(transfer: float, count: int) -> list[float]:
    """Return the first positive roots of `μ sin μ = transfer · cos μ`, by bisection."""
    found = []
    for i in range(count):
        low, high = i * np.pi, (i + 0.5) * np.pi
        for _ in range(60):
            middle = (low + high) / 2
            above = (middle * np.sin(middle) - transfer * np.cos(middle)) * (-1) ** i > 0
            low, high = (low, middle) if above else (middle, high)
        found.append(low)
    return found


def heat_tables(seed: int) -> dict[str, Table]:
    """Return an initial profile of 15 values, and 2 probes read 6 times, all with standard deviation 0.02."""
    start = grid([0.0], np.linspace(0, 1, 15))
    probes = grid(np.linspace(0.15, 0.9, 6), [0.3, 0.8])
    return {
        "start.csv": {"x": start[:, 1], "u": noisy(heat(start), 0.02, seed)},
        "probes.csv": table(probes, "tx", u=noisy(heat(probes), 0.02, seed + 1000)),
    }


VELOCITY, DIFFUSIVITY = 0.5, 0.02


def transport(points: Array) -> Array:
    """Return `u` with `u_t + 0.5 u_x − 0.02 u_xx = 0`: a Gaussian that drifts and spreads, a closed form."""
    t, x = points.T
    variance = 0.15**2 + 2 * DIFFUSIVITY * t
    return 0.15 / np.sqrt(variance) * np.exp(-((x - 0.25 - VELOCITY * t) ** 2) / (2 * variance))


def transport_tables(seed: int) -> dict[str, Table]:
    """Return 11 stations read 11 times each, with standard deviations that alternate between 0.02 and 0.04."""
    times, stations = np.linspace(0, 1, 11), np.linspace(0, 1, 11)
    points = grid(times, stations)
    deviation = np.where(np.arange(len(points)) % 11 % 2 == 0, 0.02, 0.04)
    return {"stations.csv": table(points, "tx", u=noisy(transport(points), deviation, seed), deviation=deviation)}


def helmholtz(points: Array) -> Array:
    """Return `u` with `Δu + 36u = 0` on [0, 1]², zero at y = 0 and y = 1; a closed form.

    It is the sum of two modes of the channel: one travels along x, the other grows with x.
    """
    x, y = points.T
    first, second = np.sqrt(36 - np.pi**2) * x, np.sqrt(4 * np.pi**2 - 36)
    travelling = np.cos(first) + 0.4 * np.sin(first)
    return np.sin(np.pi * y) * travelling + 0.5 * np.sin(2 * np.pi * y) * np.cosh(second * x) / np.cosh(second)


def helmholtz_tables(seed: int) -> dict[str, Table]:
    """Return value and outward flux `−u_x` at 20 points of the side x = 0, with standard deviation 0.02."""
    points = grid([0.0], (np.arange(20) + 0.5) / 20)
    flux = -0.4 * np.sqrt(36 - np.pi**2) * np.sin(np.pi * points[:, 1])
    columns = {"u": noisy(helmholtz(points), 0.02, seed), "flux": noisy(flux, 0.02, seed + 1000)}
    return {"side.csv": {"y": points[:, 1], **columns}}


def beam(points: Array) -> Array:
    """Return `u` with `2u″″ = 12(1 + sin(2πx))` on [0, 1], `u(0) = 0`, `u″(1) = u‴(1) = 0`; a closed form.

    Its slope at x = 0 is 0.2; a perfect clamp would make it zero.
    """
    x = points[:, 0]
    even = x**2 / 4 - x**3 / 6 + x**4 / 24
    uneven = (np.sin(2 * np.pi * x) / (2 * np.pi) - x) / (2 * np.pi) ** 3 + (x**3 - 3 * x**2) / (12 * np.pi)
    return 0.2 * x + 6 * even + 6 * uneven


def beam_tables(seed: int) -> dict[str, Table]:
    """Return 8 deflections with standard deviation 0.01."""
    points = np.linspace(0.125, 1, 8)[:, None]
    return {"deflections.csv": table(points, "x", u=noisy(beam(points), 0.01, seed))}


def laplace(points: Array) -> Array:
    """Return `u` with `Δu = 0` on [−1, 1]², a closed form."""
    x, y = points.T
    return np.sin(3 * x) * np.cosh(3 * y) / np.cosh(3) + np.cos(2 * y) * np.sinh(2 * x) / np.sinh(2)


def laplace_tables(seed: int) -> dict[str, Table]:
    """Return 12 readings on each side, with standard deviation 0.02."""
    along = (np.arange(12) + 0.5) / 6 - 1
    points = np.concatenate([grid([-1], along), grid([1], along), grid(along, [-1]), grid(along, [1])])
    return {"boundary.csv": table(points, "xy", u=noisy(laplace(points), 0.02, seed))}


VISCOSITY = 0.03


def burgers(points: Array) -> Array:
    """Return `u` with `u_t + u u_x = 0.03 u_xx` on [0, 1]²: two fronts that merge; a closed form.

    By Cole and Hopf, `u = −0.06 φ_x/φ` where `φ` is the sum of three exponentials that solve the heat equation.
    """
    t, x = points.T
    speeds, places = (0.1, 0.5, 1.0), (0.5, 0.5, 0.375)
    parts = [
        np.exp((speed**2 * t / 2 - speed * (x - place)) / (2 * VISCOSITY))
        for speed, place in zip(speeds, places, strict=True)
    ]
    above = sum(speed * part for speed, part in zip(speeds, parts, strict=True))
    return np.asarray(above / sum(parts))


def burgers_tables(seed: int) -> dict[str, Table]:
    """Return 12 stations read 8 times each, with standard deviation 0.015."""
    points = grid(np.linspace(0, 1, 8), np.linspace(0, 1, 12))
    return {"stations.csv": table(points, "tx", u=noisy(burgers(points), 0.015, seed))}


def scattered(count: int, low: list[float], high: list[float]) -> Array:
    """Return uniformly distributed points in a box, with a fixed seed."""
    return np.random.default_rng(2024).uniform(low, high, (count, len(low))).round(4)


def grid(*axes: Any) -> Array:
    """Return all combinations of coordinates; the last varies fastest."""
    return np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1).round(4)


def noisy(values: Array, deviation: Any, seed: int) -> Array:
    """Return values with Gaussian noise."""
    return values + deviation * np.random.default_rng(seed).standard_normal(len(values))


def table(points: Array, names: str, **columns: Array) -> Table:
    """Return the columns of a data file."""
    return dict(zip(names, points.T, strict=True)) | columns


EXAMPLES = {
    "poisson": Example(poisson, poisson_tables),
    "heat": Example(heat, heat_tables),
    "transport": Example(transport, transport_tables, {"velocity": VELOCITY, "diffusivity": DIFFUSIVITY}),
    "helmholtz": Example(helmholtz, helmholtz_tables),
    "beam": Example(beam, beam_tables),
    "laplace": Example(laplace, laplace_tables),
    "burgers": Example(burgers, burgers_tables, {"nu": VISCOSITY}),
}


def write(directory: Path = HERE, seed: int = SEED) -> list[Path]:
    """Write the data files of all examples into their directories, and return their paths."""
    written = []
    for name, example in EXAMPLES.items():
        for file, columns in example.tables(seed).items():
            path = directory / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", newline="", encoding="utf-8") as stream:
                writer = csv.writer(stream, lineterminator="\n")
                writer.writerow(columns)
                writer.writerows([f"{value:.5g}" for value in row] for row in zip(*columns.values(), strict=True))
            written.append(path)
    return written


if __name__ == "__main__":
    for path in write():
        print(path.relative_to(HERE.parent))
