"""The interface of a network of any framework, its prior, its predictions and its last layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..equations import MultiIndex, Nonlinear
from ..errors import InputError
from ..model import Observation
from ..nonlinear import linearise_in_jets

EVALUATED_POINTS = 8192
"""The number of points at which a network is evaluated at a time."""

LAST_LAYER_DIRECTIONS = 3
"""The number of random directions in which each array of parameters is moved to see whether the output is affine."""

AFFINE_TOLERANCE = 1e-9
"""Second differences up to this fraction of the values are attributed to rounding."""


@dataclasses.dataclass(frozen=True, eq=False)
class NetworkPrior:
    """The prior `N(centre, eta · scales)` of a network's parameters, and the scale `sigma2` of the noise.

    Examples
    --------
    A prior around the parameters before training, and a known noise level:

    >>> import jax.numpy as jnp, pilescore as ps
    >>> model = ps.Model(ps.RBF(0.5), data=ps.observe(ps.identity, values=[1.0, 2.1], at=[1.0, 2.0]))
    >>> prior = ps.networks.NetworkPrior(sigma2=0.01, centre=jnp.array([0.5]))
    >>> found = ps.network_pile(lambda params, p: params @ p, jnp.array([1.04]), model, prior=prior)
    >>> found.sigma2, round(found.eta, 2)  # η was chosen
    (0.01, 0.29)
    """

    eta: Any = None
    """η, the scale of the prior variances; if None, the value with the lowest score."""
    sigma2: Any = None
    """σ², the scale of the noise variances of the rows; if None, the value with the lowest score."""
    centre: Any = None
    """θ_c, the prior mean, with the structure of the parameters, for example their values before training; if None,
    zero."""
    scales: Any = 1.0
    """Λ, the prior variances of the parameters relative to each other: one number, or the structure of the parameters
    with numbers or arrays."""


DEFAULT_PRIOR = NetworkPrior()


@runtime_checkable
class Network(Protocol):
    """A scalar function of a point with parameters, at their trained values `θ̂`."""

    @property
    def size(self) -> int:
        """The number of parameters, P."""

    @property
    def displacement(self) -> Float[np.ndarray, " P"]:
        """`θ̂ − θ_c`, the trained parameters minus the prior mean."""

    @property
    def spread(self) -> Float[np.ndarray, " P"]:
        """`Λ`, the prior variances of the parameters relative to each other."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on how the network was read."""

    @property
    def arrays(self) -> tuple[tuple[str, int], ...]:
        """The names and sizes of the parameter arrays, in order."""

    def making(self, order: int) -> int:
        """Return the peak memory while rows are computed, as a multiple of theirs, for derivatives up to an order."""

    def derivatives(
        self, points: Float[np.ndarray, "n d"], indices: tuple[MultiIndex, ...]
    ) -> Float[np.ndarray, "indices n"]:
        """Return `∂^α f` at points."""

    def jacobian(
        self, points: Float[np.ndarray, "n d"], indices: tuple[MultiIndex, ...], table: Float[np.ndarray, "indices n"]
    ) -> Float[np.ndarray, "n P"]:
        """Return the gradients in the parameters of `Σ_α c_α ∂^α f` at points, where `table` holds the `c_α`."""


@dataclasses.dataclass(frozen=True, eq=False)
class BlockPrediction:
    """A block of observations, and what a network predicts for it."""

    block: Observation
    predicted: Float[np.ndarray, " n"]
    """`F(θ̂)`."""
    table: Float[np.ndarray, "indices q"]
    """The coefficients of the block's operator; a nonlinear operator is linearised at the network."""

    @property
    def residuals(self) -> Float[np.ndarray, " n"]:
        """`t − F(θ̂)`."""
        return self.block.values - self.predicted


def predict(network: Network, block: Observation, label: str) -> BlockPrediction:
    """Return a network's prediction for a block of observations."""
    size = min(EVALUATED_POINTS, len(block.points))
    # All batches have one shape: JAX would compile the network again for another.
    points = np.pad(block.points, ((0, -len(block.points) % size), (0, 0)), mode="edge")
    batches = [network.derivatives(points[i : i + size], block.indices) for i in range(0, len(points), size)]
    jets = np.concatenate(batches, axis=1)[:, : len(block.points)]
    if isinstance(block.operator, Nonlinear):
        values, table = map(np.asarray, linearise_in_jets(block.operator, block.points, jnp.asarray(jets)))
    else:
        table = np.asarray(block.coefficients)
        values = np.einsum("an,an->n", table, jets)
    bad = np.flatnonzero(~np.isfinite(values) | ~np.isfinite(table).all(axis=0))
    if bad.size:
        raise InputError(
            f"network: expected finite values; {block.operator} of it is NaN or infinite at {bad.size} of "
            f"{len(values)} points of block {label!r}, the first at {block.points[bad[0]]}"
        )
    return BlockPrediction(block, block.observed(values), table)


def affine_arrays(
    evaluate: Callable[[list[np.ndarray]], Float[np.ndarray, " n"]], arrays: Sequence[np.ndarray], names: Sequence[str]
) -> list[int]:
    """Return the numbers of the parameter arrays in which the output of a network is affine: its last layer.

    The output is evaluated, not traced, so this works for every framework. Each array is moved by steps of its own
    size, large enough to cross the kinks of piecewise linear activations.

    Parameters
    ----------
    evaluate
        A function from parameter arrays to the output at a few points.
    arrays
        The trained parameters.
    names
        Their names in error messages.
    """
    rng = np.random.default_rng(0)
    here = evaluate(list(arrays))
    sizes = [float(np.sqrt(np.mean(array**2))) or 1.0 if array.size else 1.0 for array in arrays]

    def affine_in(which: list[int]) -> tuple[bool, bool]:
        """Return whether the output is affine in these arrays, and whether it depends on them at all."""
        depends = False
        for _ in range(LAST_LAYER_DIRECTIONS):
            steps = {i: sizes[i] * rng.standard_normal(arrays[i].shape) for i in which}
            ahead, behind = (
                evaluate([np.asarray(a + sign * steps[i]) if i in steps else a for i, a in enumerate(arrays)])
                for sign in (1.0, -1.0)
            )
            depends |= bool(np.any(ahead != behind))
            second_difference = np.abs(ahead - 2 * here + behind)
            if np.any(second_difference > AFFINE_TOLERANCE * (np.abs(ahead) + 2 * np.abs(here) + np.abs(behind))):
                return False, True
        return True, depends

    affine = [i for i in range(len(arrays)) if affine_in([i]) == (True, True)]
    if not affine:
        raise InputError(
            "parameters: the network has no last layer: its output is not affine in any of its parameter arrays "
            f"({', '.join(names)}). Select the arrays yourself"
        )
    # Affine in each array alone is not enough: a product of two is affine in either.
    if not affine_in(affine)[0]:
        raise InputError(
            "parameters: the last layer is not clear: the output is affine in each of "
            f"{', '.join(names[i] for i in affine)} alone, but not in all of them together. Select the arrays yourself"
        )
    return affine
