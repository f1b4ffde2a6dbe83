"""Weakly informative priors of hyperparameters, by their roles.

They say what anyone would who has seen the size and the place of the observations, but not their values: lengths are
between the distance of neighbouring points and a few times the extent of all, the prior variance is about the square of
the readings, the noise is between a millionth and all of them. Where the data know better, they hardly matter. Where
the data say nothing, they keep a hyperparameter from running off to infinity.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from ...covariance import operator_size, prior_variances
from ...equations import identity
from ...kernels import LinearMap, On
from ...model import Model, Path, follow, path_of
from ...model.priors import LogNormal, Prior
from ..space import SearchSpace
from .density import own_prior

LENGTH_FACTOR = 4.0
"""A length or period lies within this factor of its median with probability 68%."""

LENGTH_MEDIAN = 0.5
"""The median of lengths, as a fraction of the extent of the observations along the same axis."""

PERIODIC_MEDIAN = 1.0
"""The median of lengths that are measured in periods."""

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
    bases = {name: space.targets[space.names[rows[0]]] for name, rows in space.groups.items()}
    searched = {base for base, _ in bases.values()}
    variances = [base for base in searched if roles[base] == "variance"]
    priors: dict[str, Prior | None] = {}
    for name, rows in space.groups.items():
        if any(own_prior(space, row) for row in rows):
            priors[name] = None
            continue
        base, index = bases[name]
        role, shape = roles[base], space.shapes[name]
        if role in ("length", "period"):
            usual, whole = _usual_lengths(model, path_of(model, base), role), np.shape(model.parameters[base])
            priors[name] = LogNormal(_median_length(usual, shape, whole, index), LENGTH_FACTOR)
        elif role == "scale":
            priors[name] = LogNormal(_scale(model, variances), VARIANCE_FACTOR)
        elif role == "variance":
            priors[name] = LogNormal(_variance(model, base, variances, "eta" in searched), VARIANCE_FACTOR)
        elif role == "data_temperature":
            priors[name] = LogNormal(2.0 * (NOISE * _spread(model, base)) ** 2, NOISE_FACTOR)
        elif role == "ratio":
            priors[name] = LogNormal(1.0, RATIO_FACTOR)
        else:  # coefficients, angles, shears, temperatures of equations: only the user knows
            priors[name] = None
    return priors


def _usual_lengths(model: Model, path: Path, role: str) -> Float[np.ndarray, " d"]:
    """Return the usual length along each coordinate of the part of the kernel that a length belongs to."""
    points = np.concatenate([block.points for block in model.blocks])
    for i in range(1, len(path)):
        part = follow(model, path[:i])
        if isinstance(part, On):
            points = points[:, list(part.axes)]
        elif isinstance(part, LinearMap):
            points = points @ np.asarray(part.matrix).T
    fields = dataclasses.fields(follow(model, path[:-1]))
    if role == "length" and any(field.metadata.get("role") == "period" for field in fields):
        return np.full(points.shape[1], PERIODIC_MEDIAN)
    extent = np.ptp(points, axis=0)
    return LENGTH_MEDIAN * np.where(extent > 0, extent, 1.0)


def _scale(model: Model, variances: Sequence[str]) -> float:
    """Return the η at which the kernel is as large as the readings, if its searched variances have their medians."""
    return _fitting_scale(model.replace({name: _filled(model, name, 1.0 / len(variances)) for name in variances}))


def _variance(model: Model, name: str, variances: Sequence[str], scale_is_searched: bool) -> float:
    """Return the median of a variance inside the kernel.

    Only the product with η is known from the size of the readings. If η is searched too, it has this size.
    """
    if scale_is_searched:
        return 1.0 / len(variances)
    now = np.asarray(model.parameters[name])
    # The size of the kernel is linear in a variance: the difference of two is the part that it multiplies.
    sizes = [1.0 / _fitting_scale(model.replace({name: factor * now})) for factor in (1.0, 2.0)]
    part = (sizes[1] - sizes[0]) / float(now.mean())
    median = 1.0 / (float(model.eta) * part * len(variances)) if part > 0.0 else 1.0
    return median if math.isfinite(median) else 1.0


def _filled(model: Model, name: str, value: float) -> Float[np.ndarray, "..."]:
    return np.full(np.shape(model.parameters[name]), value)


def _fitting_scale(model: Model) -> float:
    """Return the η at which the prior is as large as the readings of the unknown, or else as the sources.

    Without any, the model's own.
    """
    readings = [block for block in model.blocks if not block.is_functional and str(block.operator) == str(identity)]
    square = float(np.mean(np.concatenate([b.values for b in readings]) ** 2)) if readings else 0.0
    if square > 0.0:
        usual = [prior_variances(model.kernel, block.points, identity) for block in readings]
        size = float(np.mean(np.concatenate(usual)))
        return square / size if size > 0.0 else square
    sizes = [operator_size(model.kernel, block) for block in model.blocks if block.values.any()]
    return max((size.scale() for size in sizes), default=0.0) or float(model.eta)


def _spread(model: Model, temperature: str) -> float:
    """Return the standard deviation of the readings with this temperature; their size, if they are all alike."""
    names = model.temperature_names[: len(model.data)]
    values = np.concatenate([b.values for b, name in zip(model.data, names, strict=True) if name == temperature])
    return float(np.std(values)) or float(np.sqrt(np.mean(values**2))) or 1.0


def _median_length(
    usual: Float[np.ndarray, " d"], shape: tuple[int, ...], whole: tuple[int, ...], index: tuple[int, ...]
) -> float | tuple[float, ...]:
    """Return the median of a length: one for each axis, if the hyperparameter has one for each axis."""
    if shape == usual.shape:
        return tuple(usual.tolist())
    if whole == usual.shape and len(index) == 1:
        return float(usual[index[0]])
    return math.exp(float(np.log(usual).mean()))
