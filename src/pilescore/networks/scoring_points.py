"""The points at which a network is scored, and the relative noise of rows from different operators."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

from ..covariance import Layout, covariance, cross, layout, variances
from ..domains import MonteCarlo, Nodes, Region, RegionUnion, Slice, Sobol
from ..equations import Nonlinear, Operator, identity
from ..errors import InputError, as_count, as_positive, require
from ..kernels import Kernel
from ..model import Model, Observation, impose, labels, observe
from ..nonlinear import value_from_jets

PointKind = Literal["fresh", "held out", "training"]
RowScaling = Literal["prior", "model"]

FRESH_STREAM = 0x70696C65
"""Separates the random streams of fresh points from those of quadrature rules with the same seed."""

RELATIVE_ROUNDING = 1e-12
"""The variance of a functional counts as zero below this fraction of its upper bound."""

SAMPLED_POINTS = 16
"""The number of points at which the variance of a nonlinear operator is estimated."""

LOG2_SAMPLES = 12
"""The base-two logarithm of the number of samples at each of these points."""


@dataclasses.dataclass(frozen=True)
class ScoringPoints:
    """How the points at which a network is scored are chosen, and how the rows there are scaled.

    Examples
    --------
    Another set of random points, and the noise variances of the model:

    >>> import jax.numpy as jnp, pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> physics = ps.impose(ps.identity, 1.0, on=line.interior(ps.GaussLegendre(8)))
    >>> model = ps.Model(ps.RBF(0.5), physics=physics)
    >>> points = ps.networks.ScoringPoints("fresh", seed=1, scaling="model")
    >>> ps.network_pile(lambda params, p: params @ p, jnp.ones(1), model, points=points).size
    8
    """

    kind: PointKind = "fresh"
    """`"fresh"`: as many new random points in the regions of the physics. `"held out"`: the model's own points, which
    the network has not seen. `"training"`: the model's own points, with a warning."""
    seed: int = 0
    """The seed of the fresh points."""
    scaling: RowScaling = "prior"
    """The source of the relative noise variances `D`. `"prior"`: for each block the prior variance of its operator
    under the model's kernel, relative to that of the function; `∂t + 30∂x` gets 901 with `RBF(1.0)`. `"model"`: the
    noise variances `γ/2w` and `ρ/2w` of the model."""
    memory: Any = None
    """The bytes that the Jacobian and its Gram matrix may use; all available memory if None. A Jacobian that does not
    fit is recomputed in parts."""

    def __post_init__(self) -> None:
        check_choice(self.kind, "points", get_args(PointKind))
        check_choice(self.scaling, "scaling", get_args(RowScaling))
        as_count(self.seed, "seed", least=0)
        if self.memory is not None:
            as_positive(self.memory, "memory")


def check_choice(value: Any, name: str, choices: tuple[str, ...]) -> None:
    """Raise an `InputError` unless a value is one of some strings."""
    *some, last = map(repr, choices)
    require(isinstance(value, str) and value in choices, name, value, f"{', '.join(some)} or {last}")


def draw_fresh(model: Model, seed: int) -> tuple[tuple[Observation, ...], list[str]]:
    """Return a model's blocks with physics at new random points, and the labels of physics that could not be moved.

    Data stay where they were measured, and functionals keep their points.
    """
    blocks: list[Observation] = list(model.data)
    kept = []
    physics_labels = model.labels[len(model.data) :]
    for number, (block, label) in enumerate(zip(model.physics, physics_labels, strict=True)):
        fresh = block if block.is_functional else _at_fresh_points(block, label, (seed, number))
        if fresh is None:
            kept.append(label)
        blocks.append(block if fresh is None else fresh)
    return tuple(blocks), kept


def _at_fresh_points(block: Observation, label: str, stream: tuple[int, ...]) -> Observation | None:
    """Return a block at new points of its region, or None if its values or noises are known only at the old ones."""
    if block.region is None or block.nodes is None or block.source is None:
        return None
    on = _random_nodes(block.region, block.points, stream)
    temperature = None if block.temperature is None else float(block.temperature)
    if np.array_equal(block.weights, block.nodes.weights):
        return impose(block.operator, block.source, on=on, rho=temperature, name=label)
    if temperature is None or not np.all(block.weights == block.weights[0]):
        return None
    deviation = math.sqrt(0.5 * temperature / block.weights[0])
    return impose(block.operator, block.source, on=on, noise=deviation, name=label)


def _random_nodes(region: Region, points: Float[np.ndarray, "n d"], stream: tuple[int, ...]) -> Nodes:
    """Return as many random nodes of a region as there are points; a union gets as many in each of its regions."""
    if not isinstance(region, RegionUnion):
        seed = int(np.random.SeedSequence([FRESH_STREAM, *stream]).generate_state(1, np.uint64)[0])
        return region(MonteCarlo(len(points), seed))
    left = np.ones(len(points), dtype=bool)
    nodes: dict[int, Nodes] = {}

    def is_solid(pair: tuple[int, Region]) -> bool:
        return pair[1].normal is None and not isinstance(pair[1], Slice)

    # Faces and slices claim their points first: a solid region contains them too. The last takes all that are left.
    numbered = sorted(enumerate(region.regions), key=is_solid)
    for number, part in numbered:
        mine = left & (part.contains(points) | (number == numbered[-1][0]))
        left &= ~mine
        if mine.any():
            nodes[number] = _random_nodes(part, points[mine], (*stream, number))
    first, *others = (nodes[number] for number in sorted(nodes))
    return sum(others, start=first)


def relative_noise(model: Model, blocks: Sequence[Observation], scaling: RowScaling) -> Float[np.ndarray, " N"]:
    """Return the relative noise variances `D` of the rows of blocks."""
    if scaling == "model":
        shared = {"data": model.gamma, "physics": 1.0 if model.rho is None else model.rho}
        temperatures = [shared[block.role] if block.temperature is None else block.temperature for block in blocks]
        return np.concatenate([0.5 * float(t) / block.weights for t, block in zip(temperatures, blocks, strict=True)])
    scales = [_prior_variance(model, block) for block in blocks]
    for scale, label in zip(scales, labels(blocks), strict=True):
        if not scale > 0:
            raise InputError(
                f"scaling: block {label!r} has no variance under {model.kernel!r}, which cannot scale its rows: use "
                "ps.networks.ScoringPoints(scaling='model') or another kernel"
            )
    # Within a block noise variances are inverse to the weights, as in the model; their mean is the prior variance.
    spreads = [1.0 / block.weights for block in blocks]
    return np.concatenate([scale * spread / spread.mean() for scale, spread in zip(scales, spreads, strict=True)])


def _prior_variance(model: Model, block: Observation) -> float:
    """Return the mean prior variance of a block's observations, relative to that of the unknown at the same points.

    It is zero if it cannot be distinguished from rounding. It does not depend on any network: for a nonlinear operator
    it is the variance over functions of the prior `GP(0, ηk)`.
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
            computed = np.diagonal(cross(kernel, alone.tiles[0], alone, 1.0))
            # R Q Rᵀ of differences cancels: compare it with the bound (|R| √diag Q)² that no cancellation attains.
            points = dataclasses.replace(tile, rows=slice(0, tile.width), matrix=None)
            bound = (np.abs(tile.matrix) @ np.sqrt(np.maximum(variances(kernel, points, 1.0), 0.0))) ** 2
            total += float(np.where(computed > RELATIVE_ROUNDING * bound, computed, 0.0).sum())
    return total / rows.size


def _nonlinear_variance(kernel: Kernel, operator: Nonlinear, block: Observation, eta: float) -> float:
    """Return the mean variance of a nonlinear operator over the prior, from quasi-random samples of the jets."""
    points = np.random.default_rng(0).permutation(block.points)[:SAMPLED_POINTS]
    names = operator.names or tuple(f"x{i}" for i in range(points.shape[1]))
    jet_blocks = [
        observe(Operator(names, ((alpha, (((), 1.0),)),), ()), 0.0, at=points, name=f"jet{i}")
        for i, alpha in enumerate(block.indices)
    ]
    rows = layout(jet_blocks)
    lower = np.tril(covariance(kernel, rows, eta))
    joint = np.empty_like(lower)
    joint[np.ix_(rows.order, rows.order)] = lower + np.tril(lower, -1).T
    jets, count = len(jet_blocks), len(points)
    at_points = joint.reshape(jets, count, jets, count).diagonal(axis1=1, axis2=3)
    # The covariance of jets may be singular, as where ∂x²f is a multiple of f: eigenvalues instead of Cholesky.
    values, vectors = np.linalg.eigh(np.moveaxis(at_points, -1, 0))
    roots = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    unit = ndtri(Sobol(2**LOG2_SAMPLES).unit(jets)[0])
    samples = np.einsum("pab,nb->pna", roots, unit)
    at_samples = jax.vmap(functools.partial(value_from_jets, operator), (None, 0))
    observed = np.asarray(jax.vmap(at_samples)(jnp.asarray(points), jnp.asarray(samples)))
    return float(np.mean(np.var(observed, axis=1)))
