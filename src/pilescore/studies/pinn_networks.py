"""Physics-informed networks for the convection equation: architectures, training and errors."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

import pilescore as ps

from .convection import DT, DX, STRIP, solution
from .runner import at, plane

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"tanh": jnp.tanh, "sin": jnp.sin, "gelu": jax.nn.gelu}
FEATURES = 16
"""The number of frequencies of Fourier features. Each gives a sine and a cosine."""
LEARNING_RATE = 1e-2
"""The first learning rate of Adam. It decays to zero along half a cosine."""
STEPS_PER_CALL = 250
"""Training steps per compiled call. Ctrl-C takes effect between calls."""
GRID = (101, 128)
"""Numbers of times and positions of the grid on which errors are computed."""
TRAINING_SEED = 1
"""The seed of the training points. The fresh points for scores have another seed."""

Params = list[tuple[Array, Array]]


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A multilayer perceptron with two inputs, time and position."""

    width: int
    depth: int = 3
    """The number of hidden layers."""
    activation: str = "tanh"
    features: float = 0.0
    """The standard deviation of Fourier frequencies, for inputs scaled to [−1, 1]. Zero means no Fourier features."""
    first: float = 1.0
    """The factor by which the initial weights of the first layer are larger than usual."""

    @property
    def label(self) -> str:
        """A short text, such as "tanh 3×20"."""
        extra = f", Fourier {self.features:g}" if self.features else ""
        extra += f", first layer ×{self.first:g}" if self.first != 1 else ""
        return f"{self.activation} {self.depth}×{self.width}{extra}"

    @property
    def frequencies(self) -> Float[np.ndarray, "2 m"]:
        """The frequencies of the Fourier features. They are fixed, not trained."""
        return self.features * np.random.default_rng(0).standard_normal((2, FEATURES))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of all layers, from input to output."""
        return (2 * FEATURES if self.features else 2, *[self.width] * self.depth, 1)

    @functools.partial(jax.jit, static_argnums=0)
    def initial(self, seed: Any) -> Params:
        """Return random initial weights in float32, with variance 1/fan-in, and zero biases."""
        keys = jax.random.split(jax.random.key(seed), len(self.sizes) - 1)
        params = []
        for number, (key, m, n) in enumerate(zip(keys, self.sizes[:-1], self.sizes[1:], strict=True)):
            size = (1.0 if number else self.first) / math.sqrt(m)
            params.append((size * jax.random.normal(key, (m, n), jnp.float32), jnp.zeros(n, jnp.float32)))
        return params


def network(architecture: Architecture) -> Callable[[Params, Array], Array]:
    """Return the function `apply(params, point)` of an architecture.

    It computes in the precision of its arguments. Equal architectures share one function, so it is compiled once.
    """
    return _function(architecture.activation, architecture.features)


@functools.cache
def _function(activation: str, features: float) -> Callable[[Params, Array], Array]:
    act, frequencies = ACTIVATIONS[activation], Architecture(1, features=features).frequencies

    def apply(params: Params, point: Array) -> Array:
        layer = point / jnp.asarray([0.5, math.pi], point.dtype) - 1
        if features:
            phase = layer @ jnp.asarray(frequencies, point.dtype)
            layer = jnp.concatenate([jnp.sin(phase), jnp.cos(phase)])
        for weights, bias in params[:-1]:
            layer = act(layer @ weights + bias)
        weights, bias = params[-1]
        return (layer @ weights + bias)[0]

    return apply


def flat(params: Any) -> Float[np.ndarray, "k P"]:
    """Return the stacked parameters of several networks as a matrix with one row per network."""
    return np.asarray(jax.vmap(lambda each: ravel_pytree(each)[0])(params))


def unflat(architecture: Architecture, row: Float[np.ndarray, " P"]) -> Params:
    """Return the parameters of one network from its row of numbers."""
    return ravel_pytree(architecture.initial(0))[1](jnp.asarray(row, jnp.float32))


def model(beta: float, inside: int, side: int) -> ps.Model:
    """Return a model of the equation, the initial values and the periodicity, at the training points of a network."""
    left, right = (STRIP.face(x=x)(ps.quadrature.MonteCarlo(side, TRAINING_SEED + 2)) for x in (0, 2 * math.pi))
    start = STRIP.face(t=0)(ps.quadrature.MonteCarlo(side, TRAINING_SEED + 1))
    return ps.Model(
        kernel=ps.RBF(bandwidth=1.0),
        data=(),
        physics=[
            ps.impose(
                DT + beta * DX, 0.0, on=STRIP.interior(ps.quadrature.MonteCarlo(inside, TRAINING_SEED)), name="equation"
            ),
            ps.dirichlet(lambda p: jnp.sin(p[1]), on=start, name="initial"),
            *ps.periodic(left, right, name="periodic"),
        ],
    )


def training_points(model: ps.Model) -> tuple[Float[np.ndarray, "n 2"], ...]:
    """Return the training points: inside, at t = 0, and on the left and right side."""
    inside, start, sides = (np.asarray(block.points, dtype=np.float32) for block in model.physics)
    left, right = np.split(sides, 2)
    return inside, start, left, right


def loss(
    apply: Callable[[Params, Array], Array],
    params: Params,
    points: Sequence[Array],
    weight: Array,
    beta: Array,
) -> Array:
    """Return the mean squared residual of the equation plus `weight` times those of both conditions."""
    inside, start, left, right = points
    # u_t + β u_x is the derivative along (1, β): one forward-mode pass.
    along = jnp.stack([jnp.ones_like(beta), beta])
    at = functools.partial(apply, params)
    residual = jax.vmap(lambda p: jax.jvp(at, (p,), (along,))[1])(inside)
    initial = jax.vmap(at)(start) - jnp.sin(start[:, 1])
    jump = jax.vmap(at)(left) - jax.vmap(at)(right)
    return jnp.mean(residual**2) + weight * (jnp.mean(initial**2) + jnp.mean(jump**2))


def train(
    architecture: Architecture,
    of: ps.Model,
    beta: float,
    weights: Sequence[float],
    ramps: Sequence[float],
    seeds: Sequence[int],
    count: int,
) -> tuple[Float[np.ndarray, "k P"], Float[np.ndarray, "k s"]]:
    """Train networks of one architecture side by side, in float32.

    Parameters
    ----------
    architecture, of, beta
        The architecture, the model whose points are used for training, and the speed.
    weights, ramps, seeds
        For each network: the weight of the conditions in the loss; the fraction of the steps during which the speed
        grows from zero to β (zero: the speed is β from the first step); and the seed of the initial parameters.
    count
        The number of steps.

    Returns
    -------
    tuple
        The parameters, one row per network, and the losses after every `STEPS_PER_CALL` steps.
    """
    apply = network(architecture)
    params = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *map(architecture.initial, seeds))
    state = jax.jit(jax.vmap(_adam(count).init))(params)
    points = tuple(jnp.asarray(group, jnp.float32) for group in training_points(of))
    columns = tuple(jnp.asarray(column, jnp.float32) for column in (weights, np.multiply(ramps, count)))
    history = []
    for first in range(0, count, STEPS_PER_CALL):
        steps = jnp.arange(first, min(first + STEPS_PER_CALL, count), dtype=jnp.float32)
        params, state, losses = _steps(apply, count, params, state, points, jnp.float32(beta), *columns, steps)
        history.append(np.asarray(losses))  # waits for the result, so Ctrl-C takes effect here
    return flat(params), np.stack(history, axis=1)


def _adam(count: int) -> Any:
    import optax  # an optional dependency of this study

    return optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, count))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _steps(
    apply: Callable[[Params, Array], Array],
    count: int,
    params: Any,
    state: Any,
    points: tuple[Array, ...],
    beta: Array,
    weights: Array,
    ramps: Array,
    steps: Array,
) -> tuple[Any, Any, Array]:
    optimizer = _adam(count)
    value_and_gradient = jax.vmap(jax.value_and_grad(functools.partial(loss, apply), argnums=0), (0, None, 0, 0))

    def step(carried: tuple[Any, Any], number: Array) -> tuple[tuple[Any, Any], Array]:
        params, state = carried
        speed = beta * jnp.minimum(1.0, (number + 1) / jnp.maximum(ramps, 1.0))
        losses, gradients = value_and_gradient(params, points, weights, speed)
        updates, state = jax.vmap(optimizer.update)(gradients, state, params)
        return (jax.tree.map(jnp.add, params, updates), state), losses

    (params, state), losses = jax.lax.scan(step, (params, state), steps)
    return params, state, losses[-1]


def grid(beta: float) -> tuple[Float[np.ndarray, "n 2"], Float[np.ndarray, " n"]]:
    """Return a fine grid and the solution at its points."""
    points = plane(np.linspace(0, 1, GRID[0]), np.linspace(0, 2 * math.pi, GRID[1], endpoint=False))
    return points, at(solution(beta), points)


def relative_error(architecture: Architecture, row: Float[np.ndarray, " P"], beta: float) -> float:
    """Return the relative L² error of a network on a fine grid."""
    points, truth = grid(beta)
    return float(np.linalg.norm(evaluated(architecture, row, points) - truth) / np.linalg.norm(truth))


def evaluated(
    architecture: Architecture, row: Float[np.ndarray, " P"], points: Float[np.ndarray, "n 2"]
) -> Float[np.ndarray, " n"]:
    """Evaluate a network at points, in float64."""
    params = jax.tree.map(lambda leaf: leaf.astype(float), unflat(architecture, row))
    return np.asarray(_evaluated(network(architecture), params, jnp.asarray(points)))


@functools.partial(jax.jit, static_argnums=0)
def _evaluated(apply: Callable[[Params, Array], Array], params: Any, points: Array) -> Array:
    return jax.vmap(functools.partial(apply, params))(points)
