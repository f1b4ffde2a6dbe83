"""Fingerprints: digests of everything that a result depends on, equal in every process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..equations import Nonlinear
from ..kernels import Kernel
from ..model import Model, Observation
from ..nonlinear import linearise_in_jets


def fingerprint(parts: Iterable[Any]) -> str:
    """Return a digest of models, arrays, numbers and strings; the same input has the same digest in every process."""
    digest = hashlib.sha256()
    for part in parts:
        for content in _bytes(part):
            digest.update(content)
            digest.update(b"|")
    return digest.hexdigest()[:32]


def kernel_values(kernel: Kernel, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "2 n"]:
    """Return a kernel at every point and every pair of neighbours, to ten digits.

    Python functions have no digest that is the same in every process, so a kernel is known by its values.
    """
    first = jnp.asarray(points)
    return ten_digits([jax.vmap(kernel)(first, other) for other in (first, jnp.roll(first, 1, axis=0))])


def function_values(model: Model) -> Iterator[Any]:
    """Yield everything that depends on a model's hyperparameters, to ten digits."""
    yield kernel_values(model.kernel, np.concatenate([block.points for block in model.blocks]))
    yield ten_digits([model.eta, *model.temperatures])
    yield from (_signature(block) for block in model.blocks if not block.has_fixed_coefficients)


def ten_digits(numbers: Any) -> np.ndarray:
    """Return numbers rounded to ten digits, which are the same on every machine."""
    array = np.asarray(numbers, dtype=float)
    return np.array([f"{number:.9e}" for number in array.ravel().tolist()], dtype=float).reshape(array.shape)


def _bytes(part: Any) -> Iterable[bytes]:
    if isinstance(part, Model):
        yield from _model_bytes(part)
    elif isinstance(part, np.ndarray | jax.Array):
        array = np.asarray(part)
        yield f"{array.dtype}{array.shape}".encode()
        yield np.ascontiguousarray(array).tobytes()
    else:
        yield repr(part).encode()


def _model_bytes(model: Model) -> Iterable[bytes]:
    yield from _bytes(_outline(model.kernel))
    for part in [*filter(eqx.is_array, jax.tree.leaves(model.kernel)), model.gamma, model.rho, model.eta]:
        yield from _bytes(part)
    for block, label in zip(model.blocks, model.labels, strict=True):
        yield from _bytes((label, block.role, block.indices))
        operator = _signature(block) if block.is_nonlinear else block.coefficients
        for array in (block.points, operator, block.matrix, block.values, block.weights, block.temperature):
            yield from _bytes(array)
        if not (block.has_fixed_coefficients or block.is_nonlinear):  # β∂ and β²∂ have the same coefficients at β = 1
            yield from _bytes(str(block.operator))
    yield from _bytes(kernel_values(model.kernel, np.concatenate([block.points for block in model.blocks])))
    if model.priors:
        yield from _bytes(("priors", sorted(model.priors.items(), key=lambda item: item[0])))


def _signature(block: Observation) -> np.ndarray:
    """Return the coefficients of an operator, or the values and slopes of a nonlinear one at random derivatives."""
    if not block.is_nonlinear:
        return ten_digits(block.coefficients)
    assert isinstance(block.operator, Nonlinear)
    rng = np.random.default_rng(0)
    jets = [size * rng.standard_normal((len(block.indices), len(block.points))) for size in (0.3, 1.0, 3.0)]
    # With other parameters, too: two functions may agree at the present ones only.
    other = jax.tree.map(lambda leaf: 1.37 * leaf if eqx.is_inexact_array(leaf) else leaf, block.operator)
    pairs = [
        linearise_in_jets(operator, block.points, jnp.asarray(jet))
        for jet in jets
        for operator in (block.operator, other)
    ]
    return np.stack([np.vstack([ten_digits(value)[None], ten_digits(slopes)]) for value, slopes in pairs])


def _outline(node: Any) -> Any:
    """Return the classes and static numbers of a kernel."""
    if isinstance(node, eqx.Module):
        return (type(node).__name__, *(_outline(getattr(node, name)) for name in node.__dataclass_fields__))
    if isinstance(node, tuple | list):
        return tuple(_outline(child) for child in node)
    if isinstance(node, dict):
        return tuple((key, _outline(child)) for key, child in node.items())
    if eqx.is_array(node) or isinstance(node, np.ndarray):
        return "array"
    return node if isinstance(node, int | float | str | None) else type(node).__name__
