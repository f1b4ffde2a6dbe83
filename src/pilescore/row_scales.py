"""How rows of different kinds are weighed for a network: by what their operators would vary under a kernel."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import ndtri

from .frames import of_jets
from .gram import covariance, cross, variances
from .kernels import Kernel
from .layouts import Layout, layout
from .model import Model
from .nonlinear import Nonlinear
from .observations import Observation, observe
from .operators import Operator, identity
from .quadrature import Sobol

ROUNDING = 1e-12
"""The part of the largest variance that a functional could have below which its own is rounding."""

SOME = 16
"""Points at which the variance of a nonlinear operator is estimated."""

DRAWS = 12
"""Two to the power of this many jets are drawn at each."""


def prior_variance(model: Model, block: Observation) -> float:
    """Return the mean prior variance of what a block observes over that of the unknown, at the same points.

    It is zero where it cannot be told from rounding. It does not depend on any network: of a nonlinear operator it is
    the variance over functions of the prior `GP(0, ηk)`.
    """
    kernel, operator = model.kernel, block.operator
    reference = _mean_variance(kernel, layout([observe(identity, 0.0, at=block.points)]))
    if not reference > 0:
        return 0.0
    if isinstance(operator, Nonlinear):
        eta = float(model.eta)
        return _nonlinear_variance(kernel, operator, block, eta) / (eta * reference)
    return _mean_variance(kernel, layout([block])) / reference


def _mean_variance(kernel: Kernel, rows: Layout) -> float:
    total = 0.0
    for tile in rows.tiles:
        if tile.matrix is None:
            total += float(variances(kernel, tile, 1.0).sum())
        else:
            alone = Layout((dataclasses.replace(tile, rows=slice(0, tile.size)),), np.arange(tile.size))
            found = np.diagonal(cross(kernel, alone.tiles[0], alone, 1.0))
            points = dataclasses.replace(tile, rows=slice(0, tile.width), matrix=None)
            most = (np.abs(tile.matrix) @ np.sqrt(np.maximum(variances(kernel, points, 1.0), 0.0))) ** 2
            total += float(np.where(found > ROUNDING * most, found, 0.0).sum())
    return total / rows.size


def _nonlinear_variance(kernel: Kernel, operator: Nonlinear, block: Observation, eta: float) -> float:
    """Return the mean variance of a nonlinear operator over functions of the prior, by draws of their jets."""
    points = np.random.default_rng(0).permutation(block.points)[:SOME]
    names = operator.names or tuple(f"x{i}" for i in range(points.shape[1]))
    parts = [
        observe(Operator(names, ((alpha, (((), 1.0),)),), ()), 0.0, at=points, name=f"jet{i}")
        for i, alpha in enumerate(block.indices)
    ]
    rows = layout(parts)
    lower = np.tril(covariance(kernel, rows, eta))
    joint = np.empty_like(lower)
    joint[np.ix_(rows.order, rows.order)] = lower + np.tril(lower, -1).T
    count = len(points)
    at_points = joint.reshape(len(parts), count, len(parts), count).diagonal(axis1=1, axis2=3)
    values, vectors = np.linalg.eigh(np.moveaxis(at_points, -1, 0))
    roots = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    unit = ndtri(Sobol(2**DRAWS).unit(len(parts))[0])
    jets = np.einsum("pab,nb->pna", roots, unit)
    found = np.asarray(_at_jets(operator, jnp.asarray(points), jnp.asarray(jets)))
    return float(np.mean(np.var(found, axis=1)))


def _at_jets(
    operator: Nonlinear, points: Float[Array, "p d"], jets: Float[Array, "p n indices"]
) -> Float[Array, "p n"]:
    one = jax.vmap(functools.partial(of_jets, operator), (None, 0))
    return jax.vmap(one)(points, jets)
