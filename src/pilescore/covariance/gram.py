"""Gram blocks `η (L_i ⊗ L_j) k(p_i, p_j)`: the only module where operators meet kernels.

Observations are cut into tiles of up to a few hundred rows whose operators share their multi-indices.
The covariance of two tiles is one fused loop over pairs of points, `Σ_αβ c_α(i) c_β(j) ∂₁^α ∂₂^β k`. It is compiled
once per pair of operator structures and reused for every size, hyperparameter and coefficient.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..errors import require_float64
from ..kernels import Kernel, MultiIndex, Scalar
from ..parallel import require_memory
from .tiles import Indices, Layout, Tile, single_tile

Spec: TypeAlias = tuple[Any, Indices, Indices]
"""Static part of a compiled block: the kernel's structure and the multi-indices of both tiles."""

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False)
class Weights:
    """The symmetric matrix `G = H − uuᵀ/c` that is contracted with derivatives of the covariance."""

    matrix: Float[np.ndarray, "N N"]
    """`H`, stored in the upper triangle."""
    vector: Float[np.ndarray, " N"]
    scale: float


def covariance(kernel: Kernel, rows: Layout, eta: float) -> Float[np.ndarray, "N N"]:
    """Return `ηQ` in assembled order, Fortran ordered, with its lower triangle filled."""
    widest = max(tile.width for tile in rows.tiles)  # a functional of many points forms one wide tile
    require_memory(rows.size, 16.0 * widest**2)
    # The upper triangle in C order is the lower one in Fortran order, which LAPACK takes without a copy.
    upper = np.empty((rows.size, rows.size))
    for first, second, block in _blocks(kernel, rows.pairs(), eta):
        upper[first.rows, second.rows] = block
    return upper.T


def cross(kernel: Kernel, first: Tile, rows: Layout, eta: float) -> Float[np.ndarray, "n N"]:
    """Return the covariances `η (A ⊗ L) k` between one tile and all rows of a layout."""
    return block(kernel, single_tile(first), rows, eta)


def block(kernel: Kernel, first: Layout, second: Layout, eta: float) -> Float[np.ndarray, "n m"]:
    """Return the covariances `η (A ⊗ L) k` between all rows of two layouts."""
    out = np.empty((first.size, second.size))
    for left, right, values in _blocks(kernel, itertools.product(first.tiles, second.tiles), eta):
        out[left.rows, right.rows] = values
    return out


def product(kernel: Kernel, rows: Layout, eta: float, vectors: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "N k"]:
    """Return `ηQV`. Each tile is computed once, used for both triangles and discarded."""
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
        return block(kernel, single_tile(tile), single_tile(tile), eta).diagonal()
    arrays, form = split(kernel)
    out = _diagonal((form, tile.indices, tile.indices), arrays, tile.points, tile.table)
    return eta * np.asarray(out)[: tile.size]


@dataclasses.dataclass(frozen=True, eq=False)
class Expansion:
    """The function `f = η Σ_i u_i L_i k(·, p_i)` and its derivatives, as a JAX function."""

    kernel: Kernel
    parts: list[tuple[Indices, Array, Array]]
    """Multi-indices, points and coefficients of each tile."""

    def __call__(self, point: Array, alpha: MultiIndex) -> Array:
        """Return `∂^α f(p)`."""
        total = jnp.zeros(())
        for indices, points, table in self.parts:
            one = functools.partial(_pair, (None, ((alpha,),), indices), self.kernel, tuple(point), (1.0,))
            total = total + jnp.sum(jax.vmap(one)(tuple(points), tuple(table)))
        return total


def expansion(kernel: Kernel, rows: Layout, vector: Float[np.ndarray, " N"], eta: float) -> Expansion:
    """Return the function `η Σ_i u_i L_i k(·, p_i)` for the rows of a layout."""
    parts = []
    for tile in rows.tiles:
        coefficients = tile.to_points(vector[tile.rows])
        parts.append((tile.indices, tile.points, jnp.asarray(eta * coefficients) * tile.table))
    return Expansion(kernel, parts)


def kernel_gradient(
    kernel: Kernel, leaves: Sequence[int], rows: Layout, eta: float, weights: Weights
) -> Float[np.ndarray, " p"]:
    """Return `Σ_ij G_ij ∂C_ij` for every entry of the kernel arrays with these positions."""
    parts = []
    for first, second in rows.pairs():
        if first.matrix is None and second.matrix is None:
            factors, diagonal = _weight_factors(weights, first, second), first.rows == second.rows
            parts.append(_contracted(kernel, leaves, eta, first, second, *factors, diagonal))
        else:
            # `Rᵀ G R` mixes both triangles, so the symmetry is applied to the weights before, not on the points.
            parts.append(_contracted(kernel, leaves, eta, first, second, _dense_weights(weights, first, second)))
    return functools.reduce(np.add, parts)


def bilinear_gradient(
    kernel: Kernel, leaves: Sequence[int], left: Layout, right: Layout, vector: Float[np.ndarray, " N"], eta: float
) -> list[Float[np.ndarray, "..."]]:
    """Return `Σ_ij ∂[η (L_i ⊗ R_j) k] u_j`, one array per kernel array with these positions.

    `L` are the rows of `left`; `R` are the rows of `right`, and `u` is their vector.
    """
    arrays, _ = split(kernel)
    weights = np.broadcast_to(vector, (left.size, right.size))  # a view: no n × N array is allocated
    total = block_gradient(kernel, leaves, left, right, eta, weights)
    cuts = np.cumsum([arrays[leaf].size for leaf in leaves])[:-1]
    return [part.reshape(arrays[leaf].shape) for part, leaf in zip(np.split(total, cuts), leaves, strict=True)]


def block_gradient(
    kernel: Kernel, leaves: Sequence[int], left: Layout, right: Layout, eta: float, weights: Float[np.ndarray, "n m"]
) -> Float[np.ndarray, " p"]:
    """Return `Σ_ij G_ij ∂[η (L_i ⊗ R_j) k]` for every entry of the kernel arrays with these positions."""
    pairs = itertools.product(left.tiles, right.tiles)
    parts = (_contracted(kernel, leaves, eta, a, b, weights[a.rows, b.rows]) for a, b in pairs)
    return functools.reduce(np.add, parts)


def variance_gradient(
    kernel: Kernel, leaves: Sequence[int], rows: Layout, eta: float, weights: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " p"]:
    """Return `Σ_i g_i ∂[η (L_i ⊗ L_i) k]` for every entry of the kernel arrays with these positions."""
    arrays, form = split(kernel)
    parts = []
    for tile in rows.tiles:
        if tile.matrix is not None:
            parts.append(_contracted(kernel, leaves, eta, tile, tile, np.diag(weights[tile.rows])))
            continue
        spec, padded = (form, tile.indices, tile.indices), tile.to_points(weights[tile.rows])
        sums = _diagonal_tangents(spec, tuple(leaves), arrays, padded, tile.points, tile.table)
        parts.append(eta * np.asarray(sums))
    return functools.reduce(np.add, parts)


def tangents(kernel: Kernel, leaves: Sequence[int], rows: Layout, eta: float) -> Iterator[Float[np.ndarray, "N N"]]:
    """Iterate over the derivatives of `ηQ`, in assembled order, in every entry of the arrays with these positions."""
    arrays, form = split(kernel)
    entries = range(sum(arrays[leaf].size for leaf in leaves))
    out = [np.empty((rows.size, rows.size)) for _ in entries]
    for first, second in rows.pairs():
        points = first.points, first.table, second.points, second.table
        ones, left, right = np.ones((first.width, second.width)), np.zeros(first.width), np.zeros(second.width)
        spec = (form, first.indices, second.indices)
        products = _weighted_tangents(spec, tuple(leaves), None, arrays, ones, left, right, *points)
        for whole, product in zip(out, products, strict=True):
            values = eta * second.to_values(first.to_values(np.asarray(product)).T).T
            whole[first.rows, second.rows] = values
            whole[second.rows, first.rows] = values.T
    yield from out


def coefficient_gradient(kernel: Kernel, tangents: Layout, rows: Layout, eta: float, weights: Weights) -> float:
    """Return `Σ_ij G_ij ∂C_ij` for a change of operator coefficients; `tangents` is a layout of their derivatives."""
    total = 0.0
    for (first, second), (first_dot, second_dot) in zip(rows.pairs(), tangents.pairs(), strict=True):
        weight = _dense_weights(weights, first, second)
        for a, b in ((first_dot, second), (first, second_dot)):  # the covariance is bilinear in the coefficients
            for _, _, block in _blocks(kernel, [(a, b)], eta):
                total += float(np.vdot(weight, block))
    return total


def _weight_factors(weights: Weights, first: Tile, second: Tile) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `H`, `u/c` and `u` of one pair of tiles."""
    left, right = weights.vector[first.rows] / weights.scale, weights.vector[second.rows]
    return weights.matrix[first.rows, second.rows], left, right


def _dense_weights(weights: Weights, first: Tile, second: Tile) -> Float[np.ndarray, "n m"]:
    """Return `G` of one pair of tiles, counting the mirrored entries below the diagonal as well."""
    matrix, left, right = _weight_factors(weights, first, second)
    whole = matrix - np.outer(left, right)
    if first.rows != second.rows:
        return 2.0 * whole
    return np.triu(whole) + np.triu(whole, 1)


def _contracted(
    kernel: Kernel,
    leaves: Sequence[int],
    eta: float,
    first: Tile,
    second: Tile,
    matrix: Float[np.ndarray, "n m"],
    left: Float[np.ndarray, " n"] | None = None,
    right: Float[np.ndarray, " m"] | None = None,
    diagonal: bool | None = None,
) -> Float[np.ndarray, " p"]:
    """Return `η Σ G_ij ∂Q_ij` over one pair of tiles, for `G = H − u vᵀ`; `diagonal` as in `_weighted_tangents`."""
    arrays, form = split(kernel)
    # Without `u` and `v`, zeros: they cost one subtraction, and one compiled function serves all callers.
    left = np.zeros(first.width) if left is None else first.to_points(left)
    right = np.zeros(second.width) if right is None else second.to_points(right)
    matrix = second.to_points(first.to_points(matrix).T).T
    spec = (form, first.indices, second.indices)
    points = first.points, first.table, second.points, second.table
    products = _weighted_tangents(spec, tuple(leaves), diagonal, arrays, matrix, left, right, *points)
    return eta * np.array([float(np.asarray(product).sum()) for product in products])


def started_ahead(items: Iterable[T]) -> Iterator[T]:
    """Iterate one item behind its source. JAX computes the next item while the caller uses this one."""
    # JAX returns before a result is ready, so taking the next item only starts it.
    none: list[Any] = [None]
    for item, _ in itertools.pairwise(itertools.chain(items, none)):
        yield item


def _blocks(
    kernel: Kernel, pairs: Iterable[tuple[Tile, Tile]], eta: float
) -> Iterator[tuple[Tile, Tile, Float[np.ndarray, "n m"]]]:
    """Iterate over the covariances of pairs of tiles."""
    require_float64()
    arrays, form = split(kernel)
    started = (
        (a, b, _block((form, a.indices, b.indices), arrays, eta, a.points, a.table, b.points, b.table))
        for a, b in pairs
    )
    for first, second, values in started_ahead(started):
        out = first.to_values(np.asarray(values))
        yield first, second, out[:, : second.size] if second.matrix is None else out @ second.matrix.T


def split(kernel: Kernel) -> tuple[list[Array], Any]:
    """Split a kernel into its floating-point arrays and its hashable structure."""
    leaves, structure = jax.tree.flatten(kernel)
    numbers = [leaf for leaf in leaves if eqx.is_inexact_array(leaf)]
    others = tuple(None if eqx.is_inexact_array(leaf) else leaf for leaf in leaves)
    return numbers, (structure, others)


def join(form: Any, numbers: Sequence[Array]) -> Kernel:
    """Return the kernel that `split` took apart, with other arrays."""
    structure, others = form
    left = iter(numbers)
    return jax.tree.unflatten(structure, [next(left) if leaf is None else leaf for leaf in others])


def entry_tangents(function: Callable[[list[Array]], T], numbers: list[Array], leaves: Iterable[int]) -> Iterator[T]:
    """Iterate over the derivatives of a function of arrays in every entry of the arrays with these positions."""
    # Forward mode: there are few entries and many values. Reverse mode would store every intermediate value of a block.
    for leaf in leaves:

        def changed(value: Array, leaf: int = leaf) -> T:
            return function([*numbers[:leaf], value, *numbers[leaf + 1 :]])

        for unit in np.eye(numbers[leaf].size):
            yield jax.jvp(changed, (numbers[leaf],), (unit.reshape(numbers[leaf].shape),))[1]


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
    """Return `_pair` for all pairs of points."""
    # Coordinates and coefficients enter as tuples of vectors, not as matrices: indexing a matrix inside the pair
    # function would become a gather per derivative, while separate vectors let XLA fuse everything into one loop.
    one = functools.partial(_pair, spec, kernel)
    rows = jax.vmap(jax.vmap(one, (None, None, 0, 0)), (0, 0, None, None))
    return rows(tuple(x), tuple(cx), tuple(y), tuple(cy))


@functools.partial(jax.jit, static_argnums=0)
def _block(spec: Spec, numbers: list[Array], eta: Scalar, x: Array, cx: Array, y: Array, cy: Array) -> Array:
    return _pairs(spec, join(spec[0], numbers), x, eta * cx, y, cy)


def split_tiles(kernel: Kernel, rows: Layout) -> tuple[Any, list[Any]]:
    """Return the static part and the arrays that `symmetric` takes for a layout."""
    form = split(kernel)[1]
    spec = (form, tuple((tile.size, tile.indices) for tile in rows.tiles))
    return spec, [(tile.points, tile.table, tile.matrix) for tile in rows.tiles]


def symmetric(spec: Any, numbers: list[Array], eta: Scalar, parts: list[Any]) -> Float[Array, "N N"]:
    """Return `ηQ` with its lower triangle filled, inside a compiled function that evaluates many kernels at once."""
    form, tiles = spec
    kernel = join(form, numbers)
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


def traced_variances(
    kernel: Kernel, indices: tuple[MultiIndex, ...], points: Float[Any, "n d"], table: Float[Any, "terms n"]
) -> Float[Array, " n"]:
    """Return the prior variances of an operator at points; the kernel and the coefficients may be traced."""
    arrays, form = split(kernel)
    each = tuple((alpha,) for alpha in indices)
    return _diagonal((form, each, each), arrays, jnp.asarray(points).T, jnp.asarray(table))


@functools.partial(jax.jit, static_argnums=0)
def _diagonal(spec: Spec, numbers: list[Array], x: Array, cx: Array) -> Array:
    one = functools.partial(_pair, spec, join(spec[0], numbers))
    return jax.vmap(lambda p, c: one(p, c, p, c))(tuple(x), tuple(cx))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _diagonal_tangents(
    spec: Spec, leaves: tuple[int, ...], numbers: list[Array], weights: Array, x: Array, cx: Array
) -> Array:
    tangents = entry_tangents(lambda changed: _diagonal(spec, changed, x, cx), numbers, leaves)
    return jnp.stack([weights @ tangent for tangent in tangents])


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
    """Return `G ∘ ∂Q` for each entry of the selected kernel arrays. The caller sums the products.

    `diagonal` is True for a tile on the diagonal, where the strict upper triangle counts twice, and False for a tile
    off it, where every entry counts twice. With None, `matrix` is used unchanged.
    """
    # The sums are taken outside: when XLA fuses a reduction it recomputes the kernel for each derivative. The rank-one
    # term is subtracted here, per tile, because `G` as a whole would be a second N × N array.
    weights = matrix - left[:, None] * right[None, :]
    if diagonal:
        row, column = (jax.lax.broadcasted_iota(int, weights.shape, axis) for axis in (0, 1))
        weights = jnp.where(row < column, 2.0 * weights, jnp.where(row == column, weights, 0.0))
    elif diagonal is not None:
        weights = 2.0 * weights

    def block(changed: list[Array]) -> Array:
        return _pairs(spec, join(spec[0], changed), x, cx, y, cy)

    return [weights * tangent for tangent in entry_tangents(block, numbers, leaves)]
