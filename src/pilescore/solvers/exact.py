"""Exact equations and conditions: the tolerance to which they hold.

A Gaussian process is conditioned on an exact equation by a noise far below anything that matters, relative to the usual
size of the terms of the equation. The covariance of many nodes of a smooth kernel is singular to working precision;
with a tolerance of `ε` prior deviations its condition number is at most about `N/ε²`. The tolerance does not depend on
the hyperparameters, except where rounding demands a larger one, so that scores at others are comparable.

The rows are factored whole. A pivoted Cholesky factor of their rank is about twice as fast at 2000 nodes, and its
last pivots, which are near rounding, cost one or two more digits of the score and nearly all of its derivatives.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..covariance import mean_square, operator_size, term_variances, traced_variances
from ..equations import Nonlinear
from ..errors import listed
from ..kernels import RBF, Kernel
from ..model import Model, Observation
from .lapack import EPS
from .system import System

TOLERANCE, TIGHTEST = 1e-6, 1e-7
"""To what fraction of the usual size of its terms an exact equation holds: by default, and at the end of a search. At
each of `n` nodes it is `√n` times as much, so that finer nodes do not tighten an equation."""

USUAL_BANDWIDTH = 0.3
"""The bandwidth, as a fraction of the extent of all points, of the prior that gives terms their usual size."""

CONTRADICTED, FAR_TOLERANCES = 0.03, 300.0
"""Exact blocks contradict each other if one is missed by more than the first as a fraction of its values. Zeros are
missed too if they are off by more than the second in tolerances."""

SOURCE_FACTOR = 10.0
"""How much larger the tolerance of imposed values is that are not zero. Scores may include their density, of which a
tenfold tolerance keeps two more digits."""

NONLINEAR_TOLERANCE = 1e-5
"""The tolerance of nonlinear equations, which is not tightened: gradients through a nonlinear solution lose digits
twice."""


def with_tolerances(model: Model, tolerance: float = TOLERANCE, *, renew: bool = False) -> Model:
    """Return the model with a tolerance for each exact block.

    Parameters
    ----------
    model
        The model.
    tolerance
        The tolerance of all nodes together, as a fraction of the usual size of the terms of the operator.
    renew
        Whether to replace the tolerances of blocks that have one.
    """
    todo = [i for i, block in enumerate(model.blocks) if model.is_exact(i) and (renew or not block.exact)]
    if not todo:
        return model
    kernel, blocks = _usual_kernel(model), list(model.blocks)
    scale = _scale(model, kernel)
    for i in todo:
        block, usual = blocks[i], _deviations(kernel, blocks[i], scale)
        if block.is_curved:
            blocks[i] = block.within(max(tolerance, NONLINEAR_TOLERANCE) * math.sqrt(block.size) * usual)
            continue
        own = _deviations(model.kernel, block, float(model.eta))
        blocks[i] = block.within(np.asarray(_tolerance(block, model.size, tolerance, usual, own)))
    return model.replace(physics=blocks[len(model.data) :])


def present_tolerance(model: Model) -> float:
    """Return the tolerance of exact blocks as `with_tolerances` takes it; the tightest for blocks without one."""
    tight = with_tolerances(model, TIGHTEST, renew=True)
    exact = [rows for block, rows in zip(model.blocks, model.rows, strict=True) if block.exact and not block.is_curved]
    ratios = [float(np.min(model.noise[rows] / tight.noise[rows])) for rows in exact]
    return TIGHTEST * math.sqrt(max(1.0, min(ratios, default=1.0)))


def contradiction(system: System) -> str:
    """Return which exact blocks the solution misses, and by how much; an empty string if it misses none.

    The residual of an exact row is about its tolerance. It is far larger only if rows contradict each other, or if
    hardly any sample of the prior satisfies them. Zeros alone do not contradict each other, so a block that is not zero
    has to be missed.
    """
    model, missed, unsatisfied = system.model, [], False
    residuals = np.empty(len(system.noise))
    residuals[system.rows.order] = system.noise * system.alpha
    for i, (block, label, rows) in enumerate(zip(model.blocks, model.labels, model.rows, strict=True)):
        if not model.is_exact(i):
            continue
        sizes = np.abs(residuals[rows])
        worst = int(np.argmax(sizes))
        known = float(np.sqrt(mean_square(block)))
        if known <= block.weights.min() ** -0.5:  # values below the tolerance are as good as zero
            known = 0.0
        unsatisfied |= sizes[worst] > CONTRADICTED * known > 0
        if (
            sizes[worst] > CONTRADICTED * known
            if known
            else sizes[worst] ** 2 * block.weights[worst] > FAR_TOLERANCES**2
        ):
            at = ", ".join(f"{coordinate:.4g}" for coordinate in block.centres[worst])
            missed.append(f"{label!r} ({block.operator} = {block.values[worst]:.4g}) by {sizes[worst]:.2g} at ({at})")
    return listed(missed) if unsatisfied else ""


def _usual_kernel(model: Model) -> Kernel:
    """Return a kernel under which the unknown varies a few times across the points of a model.

    The terms of an equation have their usual size under it, whatever the hyperparameters: a tolerance relative to the
    model's own prior would let a search loosen an equation by a shorter kernel or a larger η.
    """
    points = np.concatenate([block.points for block in model.blocks])
    extent = np.ptp(points, axis=0)
    return RBF(USUAL_BANDWIDTH * np.where(extent > 0, extent, 1.0))


def _scale(model: Model, kernel: Kernel) -> float:
    """Return the squared size of the unknown: by its observed values, or else by sources, or else η."""
    direct = _direct_sizes(model)
    if any(direct):
        return max(direct)
    sizes = [operator_size(kernel, block) for block in model.blocks if block.values.any()]
    return max((size.scale() for size in sizes), default=0.0) or float(model.eta)


def traced_tolerances(model: Model) -> Callable[[Model], dict[int, Float[Array, " n"]]]:
    """Return the deviations that `with_tolerances` gives the exact blocks of a model, as a JAX function.

    The function takes the model with other hyperparameters, which may be traced, and returns the deviations by the
    number of the block. They depend on coefficients of the operators and, where rounding demands it, on the prior.
    """
    todo = [i for i, block in enumerate(model.blocks) if model.is_exact(i) and not block.exact]
    usual = _usual_kernel(model)
    of_usual = {i: _variances_of_terms(usual, model.blocks[i]) for i in todo}
    direct = max(_direct_sizes(model), default=0.0)

    def scale(changed: Model) -> Any:
        if direct > 0:
            return direct
        sizes = []
        for block in changed.blocks:
            if block.values.any():
                variances = traced_variances(usual, block.indices, block.points, block.coefficients)
                factor = 1.0 if block.matrix is None else float(np.mean(np.abs(block.matrix).sum(axis=1) ** 2))
                variance = factor * jnp.mean(variances)
                sizes.append(jnp.where(variance > 0, mean_square(block) / variance, 1.0))
        largest: Any = functools.reduce(jnp.maximum, sizes, jnp.asarray(0.0))
        return jnp.where(largest > 0, largest, changed.eta)

    def tolerances(changed: Model) -> dict[int, Float[Array, " n"]]:
        found, size = {}, scale(changed) if todo else 1.0
        for i in todo:
            block = changed.blocks[i]
            squares = jnp.asarray(block.coefficients) ** 2
            of_kernel = _variances_of_terms(changed.kernel, block)
            usual_size = _sizes(block, size * jnp.sum(squares * of_usual[i], axis=0))
            own_size = _sizes(block, changed.eta * jnp.sum(squares * of_kernel, axis=0))
            found[i] = _tolerance(block, model.size, TOLERANCE, usual_size, own_size)
        return found

    return tolerances


def _variances_of_terms(kernel: Kernel, block: Observation) -> Float[Array, "terms q"]:
    """Return the prior variance of each derivative in the operator of a block at its points."""
    ones = np.ones((1, len(block.points)))
    return jnp.stack([traced_variances(kernel, (alpha,), block.points, ones) for alpha in block.indices])


def _tolerance(block: Observation, size: int, tolerance: float, usual: Any, own: Any) -> Any:
    """Return the tolerance of each row of a linear block, from its usual size and its size under the model's prior."""
    fraction = tolerance if block.zero else SOURCE_FACTOR * tolerance
    # A tighter tolerance relative to the prior, which may be far wider than the unknown, would cost all digits.
    least = tolerance / TIGHTEST * math.sqrt(size * EPS)
    return jnp.maximum(fraction * math.sqrt(block.size) * usual, least * own)


def _direct_sizes(model: Model) -> list[float]:
    """Return the mean square of the observed values of the unknown itself, for each block that observes it."""
    return [mean_square(block) for block in model.blocks if not block.is_functional and str(block.operator) == "Id"]


def _deviations(kernel: Kernel, block: Observation, scale: float) -> Float[np.ndarray, " n"]:
    """Return the size of each value of a block: the standard deviation of its terms under a prior, or its values."""
    if isinstance(block.operator, Nonlinear):
        return np.asarray(_sizes(block, np.full(len(block.points), operator_size(kernel, block).size(scale))))
    # The variances of the terms, not of their sum: under a kernel that nearly obeys the equation the terms cancel, and
    # the rounding error of the sum is that of the terms.
    return np.asarray(_sizes(block, scale * term_variances(kernel, block)))


def _sizes(block: Observation, squares: Float[Any, " q"]) -> Float[Array, " n"]:
    """Return the size of each value of a block from the squared size of its operator at each point."""
    if block.matrix is not None:
        # The derivative of the square root at zero is infinite.
        roots = jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1.0)), 0.0)
        squares = (np.abs(block.matrix) @ roots) ** 2
    squares = jnp.maximum(squares, mean_square(block))
    # A row whose operator vanishes there: the other rows give its scale.
    largest = jnp.max(squares)
    return jnp.sqrt(jnp.where(squares > 0, squares, jnp.where(largest > 0, largest, 1.0)))
