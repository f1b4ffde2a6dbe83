"""Weakly informative priors of hyperparameters, by their roles.

They say what anyone would who has seen the size and the place of the observations, but not their values: lengths are
between the distance of neighbouring points and a few times the extent of all, the prior variance is about the square of
the readings, the noise is between a millionth and all of them. Where the data know better, they hardly matter. Where
the data say nothing, they keep a hyperparameter from running off to infinity.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from ...covariance import operator_size
from ...model import Model
from ...model.priors import LogNormal, Prior
from ..space import SearchSpace
from .density import own_prior

LENGTH_FACTOR = 4.0
"""A length or period lies within this factor of its median with probability 68%."""

LENGTH_MEDIAN = 0.5
"""The median of lengths, as a fraction of the extent of the observations along the same axis."""

VARIANCE_FACTOR = 10.0
"""The same for prior variances."""

NOISE_FACTOR = 100.0
"""The same for the temperature of data: a factor of ten for the noise deviation."""

NOISE = 0.05
"""The median of the noise deviation, as a fraction of the size of the readings."""

RATIO_FACTOR = 3.0
"""The same for ratios, whose median is one."""


def default_priors(space: SearchSpace) -> dict[str, Prior | None]:
    """Return the default prior of each searched name; None, uniform between the bounds, for roles without one.

    A name that the model has a prior for, or for an element of which it has one, gets no other.

    Parameters
    ----------
    space
        The coordinates of the search, with the model.
    """
    model, roles = space.model, space.model.roles
    extent, square = _extent(model), _mean_square(model)
    priors: dict[str, Prior | None] = {}
    for name, rows in space.groups.items():
        if any(own_prior(space, row) for row in rows):
            priors[name] = None
            continue
        base, index = space.targets[space.names[rows[0]]]
        role, shape = roles[base], space.shapes[name]
        if role in ("length", "period"):
            whole = np.shape(model.parameters[base])
            priors[name] = LogNormal(_median_length(extent, shape, whole, index), LENGTH_FACTOR)
        elif role == "scale":
            priors[name] = LogNormal(square, VARIANCE_FACTOR)
        elif role == "variance":
            priors[name] = LogNormal(1.0, VARIANCE_FACTOR)
        elif role == "data_temperature":
            priors[name] = LogNormal(2.0 * (NOISE * _spread(model, base)) ** 2, NOISE_FACTOR)
        elif role == "ratio":
            priors[name] = LogNormal(1.0, RATIO_FACTOR)
        else:  # coefficients, angles, shears, temperatures of equations: only the user knows
            priors[name] = None
    return priors


def _extent(model: Model) -> Float[np.ndarray, " d"]:
    """Return the extent of all points along each axis, one where there is none."""
    extent = np.ptp(np.concatenate([block.points for block in model.blocks]), axis=0)
    return np.where(extent > 0, extent, 1.0)


def _mean_square(model: Model) -> float:
    """Return the square of the size of the unknown: by its readings, or else by sources, or else the model's η."""
    readings = [block.values for block in model.blocks if not block.is_functional and str(block.operator) == "Id"]
    direct = float(np.mean(np.concatenate(readings) ** 2)) if readings else 0.0
    if direct > 0.0:
        return direct
    sizes = [operator_size(model.kernel, block) for block in model.blocks if block.values.any()]
    return max((size.scale() for size in sizes), default=0.0) or float(model.eta)


def _spread(model: Model, temperature: str) -> float:
    """Return the standard deviation of the readings with this temperature; their size, if they are all alike."""
    names = model.temperature_names[: len(model.data)]
    values = np.concatenate([b.values for b, name in zip(model.data, names, strict=True) if name == temperature])
    return float(np.std(values)) or float(np.sqrt(np.mean(values**2))) or 1.0


def _median_length(
    extent: Float[np.ndarray, " d"], shape: tuple[int, ...], whole: tuple[int, ...], index: tuple[int, ...]
) -> float | tuple[float, ...]:
    """Return the median of a length: one for each axis, if the hyperparameter has one for each axis."""
    usual = LENGTH_MEDIAN * extent
    if shape == extent.shape:
        return tuple(usual.tolist())
    if whole == extent.shape and len(index) == 1:
        return float(usual[index[0]])
    return math.exp(float(np.log(usual).mean()))
