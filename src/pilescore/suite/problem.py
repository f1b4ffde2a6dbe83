"""What a problem of the suite is, how its data are drawn by a seed, and where its hyperparameters are looked for."""

from __future__ import annotations

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

import pilescore as ps

Bounds: TypeAlias = Mapping[str, tuple[float, float]]
Physics: TypeAlias = Callable[[np.random.Generator], list[Any]]

GAMMA = (1e-6, 4.0)
RHO = (1e-6, 1.0)
"""Bounds, for an operator of size one."""
ETA = (1e-2, 1e4)
"""Bounds of the scale of the prior; on grids it is 1, the size of all solutions."""


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A problem with a known solution."""

    name: str
    title: str
    truth: Callable[[Any], Any]
    """The solution: a JAX function of one point."""
    on: ps.Nodes
    """The rule for the error, finer than that of the equation."""
    model: Callable[[int], ps.Model]
    """From a seed to a model with data of its own, at generic hyperparameters."""
    over: Bounds
    """Bounds of what is chosen, by name."""
    grid: Mapping[str, np.ndarray]
    """Values within the bounds, by the same names; η is left out."""
    noise: float
    """The standard deviation of the noise of the data."""
    well_specified: bool = True
    """Whether the equation imposed is that of the truth."""
    source_noise: float = 0.0
    """The standard deviation of the noise of the source, where that was measured too."""

    @property
    def given_physics(self) -> bool:
        """Whether to score the data given the physics: where it is exact, not measured."""
        return self.source_noise == 0.0


def problem(
    name: str,
    title: str,
    truth: Callable[[Any], Any],
    physics: Physics,
    *,
    kernel: ps.Kernel,
    lengths: Bounds,
    on: ps.Nodes,
    data: tuple[ps.Region, int],
    noise: float,
    size: float = 1.0,
    least: float = 2e-5,
    well_specified: bool = True,
    source_noise: float = 0.0,
) -> Case:
    """Return a case: `data` are their region and number, `size` is that of the operator, `least` the grid's least γ."""
    over = {**lengths, "gamma": GAMMA, "rho": (RHO[0] * size**2, RHO[1] * size**2), "eta": ETA}
    start = {each: math.sqrt(low * high) for each, (low, high) in over.items()} | {"eta": 1.0}

    def model(seed: int) -> ps.Model:
        rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
        region, count = data
        points = region(ps.MonteCarlo(count, seed=int(rng.integers(2**31)))).points
        values = at(truth, points) + noise * rng.standard_normal(count)
        readings = ps.observe(ps.identity, values, at=points)
        return ps.Model(kernel=kernel, data=readings, physics=physics(rng)).replace(start)

    counts = (8,) if len(lengths) == 1 else (5, 4)
    grid = {each: _inner(bounds, n) for (each, bounds), n in zip(lengths.items(), counts, strict=True)}
    grid["gamma"] = least * np.geomspace(1, 1e4, 5 if len(lengths) == 1 else 4)
    grid["rho"] = size**2 * np.geomspace(1e-5, 1e-1, 4 if len(lengths) == 1 else 3)
    return Case(name, title, truth, on, model, over, grid, noise, well_specified, source_noise)


def at(function: Callable[[Any], Any], points: np.ndarray) -> np.ndarray:
    """Return a function of one point at points."""
    return np.asarray(_many(function)(jnp.asarray(points)))


@functools.cache
def _many(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function of many points, compiled: point by point it takes a second, most of it to compile its steps."""
    return jax.jit(jax.vmap(function))


def _inner(bounds: tuple[float, float], count: int) -> np.ndarray:
    """Return values evenly by logarithm over the middle seven tenths of bounds."""
    low, high = np.log(bounds)
    return np.exp(np.linspace(low + 0.15 * (high - low), high - 0.15 * (high - low), count))


def two(first: tuple[float, float], second: tuple[float, float]) -> dict[str, tuple[float, float]]:
    """Return the bounds of one bandwidth for each axis."""
    return {"kernel.bandwidth[0]": first, "kernel.bandwidth[1]": second}


def driven(operator: ps.Operator, source: Callable[[Any], Any], on: ps.Nodes, noise: float = 0.0) -> Physics:
    """Return the equation `operator u = source`, where the source may have been measured with noise."""

    def imposed(rng: np.random.Generator) -> list[Any]:
        measured = at(source, on.points) + noise * rng.standard_normal(len(on)) if noise else source
        return [ps.impose(operator, measured, on=on)]

    return imposed
