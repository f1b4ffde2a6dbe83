"""Where operators meet kernels: covariance blocks `η (L_i ⊗ L_j) k(p_i, p_j)`, by tiles, one triangle.

Observations are cut into tiles: rows whose operators share their multi-indices, up to a few hundred of them.
The covariance of two tiles is one fused loop over pairs of points, `Σ_αβ c_α(i) c_β(j) ∂₁^α ∂₂^β k`, compiled once
for each pair of structures and used for every size, hyperparameter and coefficient.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .errors import require_float64
from .kernels import Kernel, MultiIndex, Scalar
from .layouts import Indices, Layout, Tile, alone
from .linalg import require_memory
from .solvers import Weights

Spec: TypeAlias = tuple[Any, Indices, Indices]
"""What a compiled block depends on: the kernel's structure and the multi-indices of both tiles."""


def covariance(kernel: Kernel, rows: Layout, eta: float) -> Float[np.ndarray, "N N"]:
    """Return `ηQ` in assembled order: Fortran ordered, its lower triangle filled."""
    widest = max(tile.width for tile in rows.tiles)  # a functional of many points is one tile
    require_memory(rows.size, 16.0 * widest**2)
    upper = np.empty((rows.size, rows.size))
    for first, second, block in _blocks(kernel, rows.pairs(), eta):
        upper[first.rows, second.rows] = block
    return upper.T


def cross(kernel: Kernel, first: Tile, rows: Layout, eta: float) -> Float[np.ndarray, "n N"]:
    """Return the covariances `η (A ⊗ L) k` of one tile with all rows of a layout."""
    out = np.empty((first.size, rows.size))
    for _, second, block in _blocks(kernel, ((first, second) for second in rows.tiles), eta):
        out[:, second.rows] = block
    return out


def block(kernel: Kernel, first: Layout, second: Layout, eta: float) -> Float[np.ndarray, "n m"]:
    """Return the covariances `η (A ⊗ L) k` of all rows of one layout with all of another."""
    out = np.empty((first.size, second.size))
    pairs = ((left, right) for left in first.tiles for right in second.tiles)
    for left, right, values in _blocks(kernel, pairs, eta):
        out[left.rows, right.rows] = values
    return out


def product(kernel: Kernel, rows: Layout, eta: float, vectors: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "N k"]:
    """Return `ηQV` by tiles that are made, used for both triangles and forgotten."""
    out = np.zeros_like(vectors)
    for first, second, values in _blocks(kernel, rows.pairs(), eta):
        out[first.rows] += values @ vectors[second.rows]
        if first.rows != second.rows:
            out[second.rows] += values.T @ vectors[first.rows]
    return out


def variances(kernel: Kernel, tile: Tile, eta: float) -> Float[np.ndarray, " n"]:
    """Return the prior variances of the rows of a tile."""
    require_float64()
    if tile.matrix is not None:
        return block(kernel, alone(tile), alone(tile), eta).diagonal()
    arrays, form = split(kernel)
    out = _diagonal((form, tile.indices, tile.indices), arrays, tile.points, tile.table)
    return eta * np.asarray(out)[: tile.size]


@dataclasses.dataclass(frozen=True, eq=False)
class Expansion:
    """A function `f = η Σ_i u_i L_i k(·, p_i)` with its derivatives, in JAX."""

    kernel: Kernel
    parts: list[tuple[Indices, Array, Array]]
    """Multi-indices, points and coefficients of tiles."""

    def __call__(self, point: Array, alpha: MultiIndex) -> Array:
        """Return `∂^α f(p)`."""
        total = jnp.zeros(())
        for indices, points, table in self.parts:
            one = functools.partial(_pair, (None, ((alpha,),), indices), self.kernel, tuple(point), (1.0,))
            total = total + jnp.sum(jax.vmap(one)(tuple(points), tuple(table)))
        return total


def expansion(kernel: Kernel, rows: Layout, vector: Float[np.ndarray, " N"], eta: float) -> Expansion:
    """Return the function `η Σ_i u_i L_i k(·, p_i)` of the rows of a layout."""
    parts = []
    for tile in rows.tiles:
        held = vector[tile.rows]
        held = np.pad(held, (0, tile.width - tile.size)) if tile.matrix is None else tile.matrix.T @ held
        parts.append((tile.indices, tile.points, jnp.asarray(eta * held) * tile.table))
    return Expansion(kernel, parts)


def weight_parts(weights: Weights, first: Tile, second: Tile) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `H`, `u/c` and `u` of one pair of tiles."""
    left, right = weights.vector[first.rows] / weights.scale, weights.vector[second.rows]
    return weights.matrix[first.rows, second.rows], left, right


def dense_weights(weights: Weights, first: Tile, second: Tile) -> Float[np.ndarray, "n m"]:
    """Return `G` of one pair of tiles: doubled for the other triangle, and itself triangular on the diagonal."""
    block, left, right = weight_parts(weights, first, second)
    whole = block - np.outer(left, right)
    if first.rows != second.rows:
        return 2.0 * whole
    return np.triu(whole) + np.triu(whole, 1)


def kernel_gradient(
    kernel: Kernel, leaves: Sequence[int], rows: Layout, eta: float, weights: Weights
) -> list[Float[np.ndarray, "..."]]:
    """Return `Σ_ij G_ij ∂C_ij` for each of the kernel's numbers that are named by their positions."""
    arrays, form = split(kernel)
    total = [np.zeros(arrays[leaf].size) for leaf in leaves]
    for first, second in rows.pairs():
        spec = (form, first.indices, second.indices)
        if first.matrix is None and second.matrix is None:
            block, left, right = weight_parts(weights, first, second)
            if block.shape != (first.width, second.width):
                block = np.pad(block, ((0, first.width - first.size), (0, second.width - second.size)))
                left, right = (np.pad(v, (0, t.width - t.size)) for v, t in ((left, first), (right, second)))
            diagonal = first.rows == second.rows
        else:
            block = _on_points(first, second, dense_weights(weights, first, second))
            left, right = np.zeros(first.width), np.zeros(second.width)
            diagonal = None
        given = block, left, right, first.points, first.table, second.points, second.table
        products = iter(_weighted_tangents(spec, tuple(leaves), diagonal, arrays, *given))
        for sums in total:
            for i in range(len(sums)):
                sums[i] += eta * float(np.asarray(next(products)).sum())
    return [sums.reshape(arrays[leaf].shape) for sums, leaf in zip(total, leaves, strict=True)]


def bilinear_gradient(
    kernel: Kernel, leaves: Sequence[int], left: Layout, right: Layout, vector: Float[np.ndarray, " N"], eta: float
) -> list[Float[np.ndarray, "..."]]:
    """Return `Σ_ij ∂[η (L_i ⊗ R_j) k] u_j` for each of the kernel's numbers that are named by their positions.

    `L` are the rows of one layout, `R` those of another with the vector `u`.
    """
    arrays, form = split(kernel)
    total = [np.zeros(arrays[leaf].size) for leaf in leaves]
    for first in left.tiles:
        for second in right.tiles:
            ones = np.ones(first.size) if first.matrix is None else first.matrix.sum(axis=0)
            held = vector[second.rows] if second.matrix is None else second.matrix.T @ vector[second.rows]
            ones, held = (np.pad(v, (0, t.width - len(v))) for v, t in ((ones, first), (held, second)))
            given = np.zeros((first.width, second.width)), -ones, held
            spec = (form, first.indices, second.indices)
            where = first.points, first.table, second.points, second.table
            products = iter(_weighted_tangents(spec, tuple(leaves), None, arrays, *given, *where))
            for sums in total:
                for i in range(len(sums)):
                    sums[i] += eta * float(np.asarray(next(products)).sum())
    return [sums.reshape(arrays[leaf].shape) for sums, leaf in zip(total, leaves, strict=True)]


def block_gradient(
    kernel: Kernel, leaves: Sequence[int], left: Layout, right: Layout, eta: float, weights: Float[np.ndarray, "n m"]
) -> Float[np.ndarray, " p"]:
    """Return `Σ_ij G_ij ∂[η (L_i ⊗ R_j) k]` for every entry of the kernel's numbers named by their positions."""
    arrays, form = split(kernel)
    total = np.zeros(sum(arrays[leaf].size for leaf in leaves))
    for first in left.tiles:
        for second in right.tiles:
            held = _on_points(first, second, weights[first.rows, second.rows])
            given = held, np.zeros(first.width), np.zeros(second.width)
            where = first.points, first.table, second.points, second.table
            spec = (form, first.indices, second.indices)
            products = _weighted_tangents(spec, tuple(leaves), None, arrays, *given, *where)
            total += eta * np.array([float(np.asarray(each).sum()) for each in products])
    return total


def variance_gradient(
    kernel: Kernel, leaves: Sequence[int], rows: Layout, eta: float, weights: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " p"]:
    """Return `Σ_i g_i ∂[η (L_i ⊗ L_i) k]` for every entry of the kernel's numbers named by their positions."""
    arrays, form = split(kernel)
    total = np.zeros(sum(arrays[leaf].size for leaf in leaves))
    for tile in rows.tiles:
        held = weights[tile.rows]
        if tile.matrix is not None:
            total += block_gradient(kernel, leaves, alone(tile), alone(tile), eta, np.diag(held))
            continue
        spec = (form, tile.indices, tile.indices)
        held = np.pad(held, (0, tile.width - tile.size))
        total += eta * np.asarray(_diagonal_tangents(spec, tuple(leaves), arrays, held, tile.points, tile.table))
    return total


def coefficient_gradient(kernel: Kernel, moved: Layout, rows: Layout, eta: float, weights: Weights) -> float:
    """Return `Σ_ij G_ij ∂C_ij` for a change of the operators' coefficients: a layout that holds their tangents."""
    total = 0.0
    for (first, second), (first_dot, second_dot) in zip(rows.pairs(), moved.pairs(), strict=True):
        weight = dense_weights(weights, first, second)
        for a, b in ((first_dot, second), (first, second_dot)):
            for _, _, block in _blocks(kernel, [(a, b)], eta):
                total += float(np.vdot(weight, block))
    return total


def _blocks(
    kernel: Kernel, pairs: Iterable[tuple[Tile, Tile]], eta: float
) -> Iterator[tuple[Tile, Tile, Float[np.ndarray, "n m"]]]:
    """Iterate over the covariances of pairs of tiles; each is computed while the one before is in use."""
    require_float64()
    arrays, form = split(kernel)
    pending: tuple[Tile, Tile, Array] | None = None
    for first, second in pairs:
        spec = (form, first.indices, second.indices)
        block = _block(spec, arrays, eta, first.points, first.table, second.points, second.table)
        if pending is not None:
            yield pending[0], pending[1], _reduced(*pending)
        pending = (first, second, block)
    if pending is not None:
        yield pending[0], pending[1], _reduced(*pending)


def _reduced(first: Tile, second: Tile, block: Array) -> Float[np.ndarray, "n m"]:
    """Apply the functionals' matrices, or drop the padding."""
    out = np.asarray(block)
    out = out[: first.size] if first.matrix is None else first.matrix @ out
    return out[:, : second.size] if second.matrix is None else out @ second.matrix.T


def _on_points(first: Tile, second: Tile, weights: np.ndarray) -> np.ndarray:
    """Return weights of pairs of values as weights of pairs of points (zero where padded)."""
    if first.matrix is not None:
        weights = first.matrix.T @ weights
    if second.matrix is not None:
        weights = weights @ second.matrix
    short = (first.width - weights.shape[0], second.width - weights.shape[1])
    return np.pad(weights, ((0, short[0]), (0, short[1]))) if any(short) else weights


def split(kernel: Kernel) -> tuple[list[Array], Any]:
    """Return a kernel's numbers, and its hashable structure."""
    leaves, structure = jax.tree.flatten(kernel)
    numbers = [leaf for leaf in leaves if eqx.is_inexact_array(leaf)]
    others = tuple(None if eqx.is_inexact_array(leaf) else leaf for leaf in leaves)
    return numbers, (structure, others)


def _joined(form: Any, numbers: Sequence[Array]) -> Kernel:
    structure, others = form
    left = iter(numbers)
    return jax.tree.unflatten(structure, [next(left) if leaf is None else leaf for leaf in others])


def _pair(spec: Spec, kernel: Kernel, x: Any, cx: Any, y: Any, cy: Any) -> Scalar:
    """Return `Σ_αβ c_α c_β ∂₁^α ∂₂^β k(x, y)` for one pair of points."""
    _, left, right = spec
    total: Scalar = 0.0
    for i, alphas in enumerate(left):
        row: Scalar = 0.0
        for j, betas in enumerate(right):
            pairs = itertools.product(alphas, betas)
            row = row + cy[j] * sum(kernel.derivative(alpha, beta, x, y) for alpha, beta in pairs)
        total = total + cx[i] * row
    return total


def _pairs(spec: Spec, kernel: Kernel, x: Array, cx: Array, y: Array, cy: Array) -> Array:
    """Return all pairs: coordinates and coefficients go in as separate vectors so that XLA fuses one loop."""
    one = functools.partial(_pair, spec, kernel)
    rows = jax.vmap(jax.vmap(one, (None, None, 0, 0)), (0, 0, None, None))
    return rows(tuple(x), tuple(cx), tuple(y), tuple(cy))


@functools.partial(jax.jit, static_argnums=0)
def _block(spec: Spec, numbers: list[Array], eta: Scalar, x: Array, cx: Array, y: Array, cy: Array) -> Array:
    return _pairs(spec, _joined(spec[0], numbers), x, eta * cx, y, cy)


def split_tiles(kernel: Kernel, rows: Layout) -> tuple[Any, list[Any]]:
    """Return what a compiled covariance of a whole layout depends on, hashable, and its arrays; see `symmetric`."""
    form = split(kernel)[1]
    spec = (form, tuple((tile.size, tile.indices) for tile in rows.tiles))
    return spec, [(tile.points, tile.table, tile.matrix) for tile in rows.tiles]


def symmetric(spec: Any, numbers: list[Array], eta: Scalar, parts: list[Any]) -> Float[Array, "N N"]:
    """Return `ηQ`, its lower triangle filled, within a compiled function: for many kernels of one structure."""
    form, tiles = spec
    kernel = _joined(form, numbers)
    lines = []
    for i, ((n, alphas), (x, cx, left)) in enumerate(zip(tiles, parts, strict=True)):
        line = []
        for (m, betas), (y, cy, right) in zip(tiles[: i + 1], parts[: i + 1], strict=True):
            block = _pairs((form, alphas, betas), kernel, x, eta * cx, y, cy)
            block = block[:n] if left is None else left @ block
            line.append(block[:, :m] if right is None else block @ right.T)
        rest = sum(m for m, _ in tiles[i + 1 :])
        lines.append(jnp.pad(jnp.concatenate(line, axis=1), ((0, 0), (0, rest))))
    return jnp.concatenate(lines)


@functools.partial(jax.jit, static_argnums=0)
def _diagonal(spec: Spec, numbers: list[Array], x: Array, cx: Array) -> Array:
    one = functools.partial(_pair, spec, _joined(spec[0], numbers))
    return jax.vmap(lambda p, c: one(p, c, p, c))(tuple(x), tuple(cx))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _diagonal_tangents(
    spec: Spec, leaves: tuple[int, ...], numbers: list[Array], weights: Array, x: Array, cx: Array
) -> Array:
    sums = []
    for leaf in leaves:

        def diagonal(value: Array, leaf: int = leaf) -> Array:
            return _diagonal(spec, [*numbers[:leaf], value, *numbers[leaf + 1 :]], x, cx)

        for unit in np.eye(numbers[leaf].size):
            direction = unit.reshape(numbers[leaf].shape)
            sums.append(weights @ jax.jvp(diagonal, (numbers[leaf],), (direction,))[1])
    return jnp.stack(sums)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _weighted_tangents(
    spec: Spec,
    leaves: tuple[int, ...],
    diagonal: bool | None,
    numbers: list[Array],
    matrix: Array,
    left: Array,
    right: Array,
    x: Array,
    cx: Array,
    y: Array,
    cy: Array,
) -> list[Array]:
    """Return `G ∘ ∂Q` for each entry of the chosen numbers, to be summed outside: XLA repeats work to fuse a sum.

    `diagonal` says whether the tile lies on the diagonal, of which the upper triangle counts twice; off it the
    whole tile counts twice; None takes `matrix` as it is.
    """
    weights = matrix - left[:, None] * right[None, :]
    if diagonal:
        row, column = (jax.lax.broadcasted_iota(int, weights.shape, axis) for axis in (0, 1))
        weights = jnp.where(row < column, 2.0 * weights, jnp.where(row == column, weights, 0.0))
    elif diagonal is not None:
        weights = 2.0 * weights
    products = []
    for leaf in leaves:

        def block(value: Array, leaf: int = leaf) -> Array:
            moved = [*numbers[:leaf], value, *numbers[leaf + 1 :]]
            return _pairs(spec, _joined(spec[0], moved), x, cx, y, cy)

        for unit in np.eye(numbers[leaf].size):
            direction = unit.reshape(numbers[leaf].shape)
            products.append(weights * jax.jvp(block, (numbers[leaf],), (direction,))[1])
    return products
