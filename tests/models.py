"""Small models and helpers that several test files share.

Test files import from here and never from each other. Reference implementations are in the `*_oracle.py` files.
"""

import contextlib
import re

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import pilescore as ps
from pilescore.search import sweeps

# -- An interval with nine noisy values of sin(4x) and the derivative as its equation.

LINE = ps.Box(x=(0, 1))
(DX,) = ps.partials(LINE)
LINE_X = np.linspace(0.05, 0.95, 9)
LINE_Y = np.sin(4 * LINE_X) + 0.1 * np.random.default_rng(0).standard_normal(9)
NODES = LINE.interior(ps.GaussLegendre(5))
FINE = LINE.interior(ps.GaussLegendre(12))
LONG_GRID = {"kernel.bandwidth[0]": np.linspace(0.1, 1, 12), "gamma": [1e-300, 0.1]}


def line_truth(p):
    return jnp.sin(4 * p[0])


def line_model(values=LINE_Y, kernel=None, operator=None, nodes=NODES, **temperatures):
    operator = DX if operator is None else operator
    physics = ps.impose(operator, lambda p: 4 * jnp.cos(4 * p[0]), on=nodes, name="Ω∂")
    options = {"gamma": 0.02, "rho": 0.03} | temperatures
    return ps.Model(kernel or ps.RBF([0.3]), ps.observe(ps.identity, values, LINE_X), physics, **options)


def seeded_line_model(seed):
    return line_model(LINE_Y + 0.1 * np.random.default_rng(seed).standard_normal(9))


# -- Searches: values far apart (a diagonal covariance), a noisy sine, a decay with its equation.

SEARCH_RNG = np.random.default_rng(5)
FAR_X, FAR_Y = 100.0 * np.arange(16), SEARCH_RNG.normal(0, 1.5, 16)
T = np.linspace(0, 1, 25)
NOISY = np.sin(6 * T) + 0.1 * SEARCH_RNG.standard_normal(25)
OVER = {"kernel.bandwidth": (0.05, 5.0), "gamma": (1e-3, 1.0), "eta": (0.01, 100.0)}


def sine(gamma=0.1):
    return ps.Model(ps.RBF(0.5), ps.observe(ps.identity, NOISY, at=T), gamma=gamma)


def decay():
    """Return noisy values of a decay, two with their own temperature, and its equation with an unknown rate."""
    line, values = ps.Box(t=(0, 1)), np.exp(-1.3 * T) + 0.05 * np.random.default_rng(0).standard_normal(25)
    operator = ps.partials(line)[0] + ps.parameter("rate", 2.0)
    data = [ps.observe(ps.identity, values, at=T), ps.observe(ps.identity, [1.1, 0.9], at=[0.0, 0.01], gamma=0.01)]
    return ps.Model(ps.RBF(0.6), data, ps.impose(operator, 0.0, on=line.interior(ps.GaussLegendre(6))), 0.02, 0.05)


# -- Nonlinear models in time and one space coordinate.

STRIP = ps.Box(t=(0, 1), x=(-1, 1))
STRIP_DT, STRIP_DX = ps.partials(STRIP)
STRIP_RNG = np.random.default_rng(7)
STRIP_X = STRIP_RNG.uniform([0, -1], [1, 1], (9, 2))
STRIP_Y = -np.sin(np.pi * STRIP_X[:, 1]) * np.exp(-STRIP_X[:, 0]) + 0.1 * STRIP_RNG.standard_normal(9)
STRIP_NODES = STRIP.interior(ps.GaussLegendre(4))

TIGHT = 1e-20
"""A tolerance that is met only when rounding stops the iteration."""


def unit_nodes(points, weights=None):
    """Return nodes at points, each with weight one unless weights are given."""
    array = np.asarray(points, dtype=float)
    array = array[:, None] if array.ndim == 1 else array
    return ps.domains.nodes_at(array, np.ones(len(array)) if weights is None else weights)


# -- Helpers.


@contextlib.contextmanager
def refused(*parts, error=ps.errors.InputError):
    """Expect an error whose message contains all the parts."""
    with pytest.raises(error) as caught:
        yield
    for part in parts:
        assert part in str(caught.value), (part, str(caught.value))


def count_sweep_solves(monkeypatch, stop=None):
    """Count the factorisations of single points of a sweep; interrupt it after `stop` of them."""
    calls = []

    def systems_of(*arguments):
        calls.append(arguments)
        if stop is not None and len(calls) > stop:
            raise KeyboardInterrupt
        return original(*arguments)

    original = sweeps.systems_of
    monkeypatch.setattr(sweeps, "systems_of", systems_of)
    return calls


def sweep_points(dataset):
    """Yield each point of a sweep as a mapping for `Model.replace`, and the results there."""
    axes = [name for name in dataset.dims if name != "block"]
    for where in np.ndindex(*(dataset.sizes[name] for name in axes)):
        here = dataset.isel(dict(zip(axes, where, strict=True)))
        yield {name: float(here[name]) for name in axes if name != "seed"}, here


def opened(path):
    """Return the dataset in a netCDF file or a zarr directory, in memory."""
    with xr.open_dataset(path, engine="zarr" if str(path).endswith("zarr") else "scipy") as dataset:
        return dataset.load()


def numbers(summary):
    """Yield all numbers in a summary, those in its keys too."""
    if isinstance(summary, dict):
        yield from (float(key) for key in summary if re.fullmatch(r"[\d.]+", key))
        summary = list(summary.values())
    if isinstance(summary, list):
        for entry in summary:
            yield from numbers(entry)
    elif isinstance(summary, int | float) and not isinstance(summary, bool):
        yield summary
