"""A case of the benchmark: a problem with a known solution, its random data, and the bounds of its hyperparameters."""

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
"""Bounds of ρ, for an operator of size one."""
ETA = (1e-2, 1e4)
"""Bounds of the prior scale η. On grids η is 1, the size of all solutions."""


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A problem with a known solution."""

    name: str
    title: str
    truth: Callable[[Any], Any]
    """The solution: a JAX function of one point."""
    on: ps.domains.Nodes
    """The quadrature nodes for errors, finer than those of the equation."""
    model: Callable[[int], ps.Model]
    """Returns a model with random data for a seed, in the middle of the bounds."""
    over: Bounds
    """Bounds of the hyperparameters, by name."""
    grid: Mapping[str, np.ndarray]
    """Grid values within the bounds, by name; without η."""
    noise: float
    """The standard deviation of the noise in the data."""
    well_specified: bool = True
    """Whether the truth satisfies the imposed equation."""
    source_noise: float = 0.0
    """The standard deviation of the noise in a measured source; zero for an exact source."""

    @property
    def given_physics(self) -> bool:
        """Whether to score the data given the physics: if the source is exact, not measured."""
        return self.source_noise == 0.0


def make_case(
    name: str,
    title: str,
    truth: Callable[[Any], Any],
    physics: Physics,
    *,
    kernel: ps.Kernel,
    lengths: Bounds,
    on: ps.domains.Nodes,
    data: tuple[ps.domains.Region, int],
    noise: float,
    size: float = 1.0,
    least: float = 2e-5,
    well_specified: bool = True,
    source_noise: float = 0.0,
) -> Case:
    """Return a case with bounds and grid.

    `data` is the region and number of the data, `size` the size of the operator, `least` the smallest γ on the grid.
    """
    over = {**lengths, "gamma": GAMMA, "rho": (RHO[0] * size**2, RHO[1] * size**2), "eta": ETA}
    start = {each: math.sqrt(low * high) for each, (low, high) in over.items()} | {"eta": 1.0}

    def model(seed: int) -> ps.Model:
        rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
        region, count = data
        points = region(ps.quadrature.MonteCarlo(count, seed=int(rng.integers(2**31)))).points
        values = at(truth, points) + noise * rng.standard_normal(count)
        readings = ps.observe(ps.identity, values, at=points)
        return ps.Model(kernel=kernel, data=readings, physics=physics(rng), rho=1.0).replace(start)

    counts = (8,) if len(lengths) == 1 else (5, 4)
    grid = {each: _inner(bounds, n) for (each, bounds), n in zip(lengths.items(), counts, strict=True)}
    grid["gamma"] = least * np.geomspace(1, 1e4, 5 if len(lengths) == 1 else 4)
    grid["rho"] = size**2 * np.geomspace(1e-5, 1e-1, 4 if len(lengths) == 1 else 3)
    return Case(name, title, truth, on, model, over, grid, noise, well_specified, source_noise)


def at(function: Callable[[Any], Any], points: np.ndarray) -> np.ndarray:
    """Evaluate a function of one point at many points."""
    return np.asarray(_many(function)(jnp.asarray(points)))


@functools.cache
def _many(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a compiled function of many points. Without compilation each call takes about a second."""
    return jax.jit(jax.vmap(function))


def _inner(bounds: tuple[float, float], count: int) -> np.ndarray:
    """Return logarithmically spaced values over the middle 70% of the bounds."""
    low, high = np.log(bounds)
    return np.exp(np.linspace(low + 0.15 * (high - low), high - 0.15 * (high - low), count))


def bandwidth_per_axis(first: tuple[float, float], second: tuple[float, float]) -> dict[str, tuple[float, float]]:
    """Return the bounds of two bandwidths, one for each axis."""
    return {"kernel.bandwidth[0]": first, "kernel.bandwidth[1]": second}


def with_source(
    operator: ps.Operator, source: Callable[[Any], Any], on: ps.domains.Nodes, noise: float = 0.0
) -> Physics:
    """Return the equation `operator u = source`, with noise in the source if it was measured."""

    def imposed(rng: np.random.Generator) -> list[Any]:
        measured = at(source, on.points) + noise * rng.standard_normal(len(on)) if noise else source
        return [ps.impose(operator, measured, on=on)]

    return imposed
