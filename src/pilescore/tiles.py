"""What workers do with tiles of a covariance: assemble, factor, solve, invert, contract. Pure functions.

A task uses one BLAS thread for each thread of its worker, and does not change the tiles it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.linalg import blas, lapack

from .cluster import imported
from .errors import PilescoreError, require_float64
from .linalg import ONE_BLAS_THREAD, NotFactorableError, checked, cholesky
from .solvers import Covariance, Tangent

STRIP = 256
"""Columns that are solved for at once: SciPy's triangular solves stop a worker's other threads."""

Tile = Float[np.ndarray, "n m"]
Range = tuple[int, int]


class IndefiniteTileError(Exception):
    """A pivot was not positive; the row is the argument. It travels between processes."""


def held(pickled: bytes) -> Any:
    """Return what was sent: a covariance or a tangent, made once on each worker that needs it."""
    require_float64()
    return imported().protocol.pickle.loads(pickled)


def assembled(covariance: Covariance, rows: Range, columns: Range) -> Tile:
    """Return a tile of `C`."""
    left = covariance.part(np.arange(*rows))
    right = left if rows == columns else covariance.part(np.arange(*columns))
    tile = np.array(covariance.block(left, right), order="C")
    if tile.dtype != np.float64:
        raise PilescoreError(f"a tile of the covariance has the type {tile.dtype} on a worker; float64 was expected")
    if rows == columns:
        tile.flat[:: len(tile) + 1] += covariance.noise[slice(*rows)]
    return tile


def factored(
    covariance: Covariance | None, before: Tile | None, rows: Range, columns: Range, pivot: Any, *tiles: Tile
) -> Tile:
    """Subtract `Σ L_ij L_kjᵀ` from a tile, assembled if it is new, and finish it: with `pivot` what it is divided by.

    `pivot` is `L_kk`, `True` on the diagonal, and None where more is to be subtracted.
    """
    with ONE_BLAS_THREAD:
        total = assembled(covariance, rows, columns) if covariance is not None else np.array(before)
        half = len(tiles) if rows == columns else len(tiles) // 2
        for left, right in zip(tiles[:half], tiles[-half:] if half else (), strict=True):
            total -= left @ right.T
        if pivot is None:
            return total
        if pivot is not True:
            return _divided(total, pivot)
        lower = np.asfortranarray(total)
        try:
            cholesky(lower)
        except NotFactorableError as error:
            raise IndefiniteTileError(rows[0] + error.row) from None
        return np.ascontiguousarray(np.tril(lower))


def _divided(tile: Tile, pivot: Tile) -> Tile:
    """Return `A L⁻ᵀ` in the place of `A`, by strips."""
    for start in range(0, len(pivot), STRIP):
        now = slice(start, start + STRIP)
        if start:
            tile[:, now] -= tile[:, :start] @ pivot[now, :start].T
        tile[:, now] = blas.dtrsm(1.0, pivot[now, now].T, tile[:, now].T, lower=0, trans_a=1).T
    return tile


def diagonal(tile: Tile) -> Float[np.ndarray, " n"]:
    """Return the diagonal of a tile."""
    return tile.diagonal().copy()


def applied(tile: Tile, vectors: Tile, transposed: bool) -> Tile:
    """Return a tile, or its transpose, times vectors."""
    with ONE_BLAS_THREAD:
        return (tile.T if transposed else tile) @ vectors


def solved(pivot: Tile, right: Tile, transposed: bool, *sums: Tile) -> Tile:
    """Return `L⁻¹` or `L⁻ᵀ` times what is left of the right-hand side."""
    with ONE_BLAS_THREAD:
        rest = np.array(right)
        for each in sums:
            rest -= each
        return np.ascontiguousarray(blas.dtrsm(1.0, pivot.T, rest, lower=0, trans_a=0 if transposed else 1))


def inverted(pivot: Tile) -> Tile:
    """Return `L⁻¹` of a tile on the diagonal."""
    with ONE_BLAS_THREAD:
        return np.ascontiguousarray(np.tril(checked(lapack.dtrtri(pivot.T, lower=0)).T))


def eliminated(before: Tile | None, pivot: Tile | None, *tiles: Tile) -> Tile:
    """Add `Σ L_ik Z_kj`, and finish the tile `Z_ij` of `L⁻¹` with `pivot = Z_ii`."""
    with ONE_BLAS_THREAD:
        half = len(tiles) // 2
        total = _summed(before, [(left, right) for left, right in zip(tiles[:half], tiles[half:], strict=True)])
        return total if pivot is None else -(pivot @ total)


def joined(before: Tile | None, twice: bool, *tiles: Tile) -> Tile:
    """Add `Σ Z_kiᵀ Z_kj` to a tile of `C⁻¹`; `twice` where both factors are the same."""
    with ONE_BLAS_THREAD:
        half = len(tiles) if twice else len(tiles) // 2
        pairs = zip(tiles[:half], tiles[:half] if twice else tiles[half:], strict=True)
        return _summed(before, [(left.T, right) for left, right in pairs])


def _summed(before: Tile | None, pairs: Sequence[tuple[Tile, Tile]]) -> Tile:
    if before is None:
        (left, right), *pairs = pairs
        total = left @ right
    else:
        total = np.array(before)
    for left, right in pairs:
        total += left @ right
    return total


def contracted(
    covariance: Covariance, tangent: Tangent, inverse: Tile, rows: Range, columns: Range, left: Any, right: Any
) -> Float[np.ndarray, " p"]:
    """Return `Σ G_ij ∂Q_ij` over a tile, `G = C⁻¹ − uvᵀ`; off the diagonal both triangles."""
    require_float64()
    with ONE_BLAS_THREAD:
        first = covariance.part(np.arange(*rows))
        if rows == columns:
            return tangent.block(first, first, inverse - np.outer(left, right))
        return 2.0 * tangent.block(first, covariance.part(np.arange(*columns)), inverse - np.outer(left, right))
