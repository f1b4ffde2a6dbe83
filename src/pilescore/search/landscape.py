"""Data-free scores on a grid of kernels."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from ..covariance import split, split_tiles, symmetric
from ..errors import as_positive, require
from ..inference import (
    SHAPE_ROLES,
    checked_without_data,
    equation_blocks,
    normalised_score,
    refine_without_data,
    whitened,
)
from ..model import Model, as_grid, find, is_of_kernel, is_positive, kernel_paths, named_paths, path_of, role_of
from ..parallel import ONE_BLAS_THREAD, cores, progress_bar, require_memory

CHUNK = 50
"""The number of kernels that one compiled call scores."""


def data_free_landscape(
    model: Model,
    grid: Mapping[str, Any],
    *,
    tolerance: float | int = 1e-3,
    normalised: bool = False,
    progress: bool | None = None,
) -> xr.Dataset:
    """Return the data-free scores of a model on a grid of hyperparameters.

    Parameters
    ----------
    model
        A model without data, as for `data_free_pile`.
    grid
        Values by name, as `{"kernel.theta": np.linspace(0, np.pi, 50), "kernel.s": np.geomspace(0.1, 10, 50)}`, with
        names as in `Model.replace`.
    tolerance
        As for `data_free_pile`, but for the change from a rule with half the nodes on each axis, which is much larger
        than the error.
    normalised
        Add the normalised score, which compares kernels of different bandwidths; `value` compares angles and stretches.
        It takes about ten times as long.
    progress
        Show a progress bar; by default only on a terminal.

    Returns
    -------
    xarray.Dataset
        `value`, `raw` and `constant` at each point of the grid, `error` (the change from the coarser rule) and
        `status`: resolved, unresolved, or failed; `normalised`, if asked for.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> strip = ps.Box(t=(0, 1), x=(0, 6))
    >>> dt, dx = ps.partials(strip)
    >>> advection = ps.impose(dt + 2 * dx, 0.0, on=strip.interior(ps.GaussLegendre(12)))
    >>> model = ps.Model(ps.AnisotropicRBF(theta=0.0, s=0.3), physics=advection)
    >>> scores = ps.data_free_landscape(model, {"kernel.theta": np.linspace(0, np.pi, 32)})
    >>> best = scores["value"].idxmin()
    >>> bool(abs(best - np.arctan(2)) < 0.1)  # along the characteristics
    True
    """
    relative = as_positive(tolerance, "tolerance")
    model = checked_without_data(model)
    axes = as_grid(model, grid)
    shape = tuple(len(column) for column in axes.values())
    inner = [name for name in axes if is_of_kernel(path_of(model, name))]
    outer = [name for name in axes if name not in inner]
    coarse = refine_without_data(model, 0.5)
    fine, rough, constant = (np.full(shape, math.nan) for _ in range(3))
    sizes = [len(axes[name]) for name in outer]
    numbers = _kernel_numbers(model, {name: axes[name] for name in inner})
    with progress_bar(math.prod(shape), "data-free scores", progress) as bar:
        for index in np.ndindex(*sizes):
            changes = {name: axes[name][i] for name, i in zip(outer, index, strict=True)}
            position = dict(zip(outer, index, strict=True))
            slices: Any = tuple(position.get(name, slice(None)) for name in axes)
            changed = model.replace(changes)
            inner_shape = [shape[i] for i, name in enumerate(axes) if name in inner]
            fine[slices] = _logdets(changed, numbers, bar.update).reshape(inner_shape)
            if coarse is not None:
                rough[slices] = _logdets(coarse.replace(changes), numbers, None).reshape(inner_shape)
            constant[slices] = float(np.log(2 * math.pi * changed.noise).sum())
    error = np.abs(fine - rough)
    resolved = error <= relative * np.maximum(1.0, np.abs(fine))
    status = np.where(np.isnan(fine), "failed", np.where(resolved, "resolved", "unresolved"))
    columns = {"value": fine, "raw": fine + constant, "constant": constant, "error": error, "status": status}
    if normalised:
        columns["normalised"] = _normalised(model, axes)
    return xr.Dataset({name: (tuple(axes), array) for name, array in columns.items()}, coords=axes)


def data_free_choice(
    model: Model, over: Mapping[str, Any], *, points: int = 41, rounds: int = 4, progress: bool | None = False
) -> dict[str, float]:
    """Return the hyperparameters of a kernel that suit the equations best, without data.

    A grid covers the bounds; each further grid covers two steps of the last one about its lowest point. Conditions on
    boundaries and functionals are left out.

    Parameters
    ----------
    model
        A model without data, as for `data_free_pile`.
    over
        Bounds `(low, high)` of numbers of the kernel by name, as in `minimize`. If all are angles, ratios or shears,
        the paper's score is minimised, otherwise the normalised score.
    points
        The number of values of each hyperparameter on each grid.
    rounds
        The number of grids.
    progress
        As in `data_free_landscape`.

    Examples
    --------
    >>> import pilescore as ps
    >>> strip = ps.Box(t=(0, 1), x=(0, 6))
    >>> dt, dx = ps.partials(strip)
    >>> advection = ps.impose(dt + 50 * dx, 0.0, on=strip.interior(ps.GaussLegendre(8)))
    >>> model = ps.Model(ps.kernels.ShearedRBF(shear=0.0, bandwidth=[0.3, 1.8]), physics=advection)
    >>> round(ps.search.data_free_choice(model, {"kernel.shear": (-60, 60)})["kernel.shear"], -1)
    50.0
    """
    model = checked_without_data(model)
    equations = equation_blocks(model)
    require(len(equations) > 0, "model", model.physics, "an equation inside a domain")
    alone = model.replace(physics=equations)
    paths = {name: path_of(alone, name) for name in over}
    positive = {name: is_positive(alone, path) for name, path in paths.items()}
    key = "value" if all(role_of(alone, path) in SHAPE_ROLES for path in paths.values()) else "normalised"
    bounds = {name: tuple(map(float, pair)) for name, pair in over.items()}
    best: dict[str, float] = {}
    for _ in range(rounds):
        grid = {
            name: np.geomspace(low, high, points) if positive[name] else np.linspace(low, high, points)
            for name, (low, high) in bounds.items()
        }
        found = data_free_landscape(alone, grid, normalised=key == "normalised", progress=progress)[key]
        lowest = {str(name): int(index) for name, index in found.argmin(...).items()}
        best = {name: float(grid[name][i]) for name, i in lowest.items()}
        bounds = {name: (grid[name][max(i - 1, 0)], grid[name][min(i + 1, points - 1)]) for name, i in lowest.items()}
    return best


def _normalised(model: Model, axes: Mapping[str, Float[np.ndarray, " k"]]) -> Float[np.ndarray, "..."]:
    """Return the normalised score at every point of a grid."""
    scores = np.empty([len(column) for column in axes.values()])
    for index in np.ndindex(scores.shape):
        point = {name: column[i] for (name, column), i in zip(axes.items(), index, strict=True)}
        scores[index] = normalised_score(model.replace(point))[0]
    return scores


def _kernel_numbers(model: Model, axes: Mapping[str, Float[np.ndarray, " k"]]) -> list[Float[np.ndarray, "K ..."]]:
    """Return the kernel's numbers at every point of a grid, each stacked along a first axis."""
    paths = named_paths(model)
    position = {path: i for i, path in enumerate(kernel_paths(model))}
    sizes = [len(column) for column in axes.values()]
    count = math.prod(sizes)
    stacked = [np.repeat(np.asarray(leaf)[None], count, axis=0) for leaf in split(model.kernel)[0]]
    for name, column in zip(axes, np.meshgrid(*axes.values(), indexing="ij"), strict=True):
        base, index = find(model, paths, name)
        place: Any = (slice(None), *index)
        for path in paths[base]:
            stacked[position[path]][place] = column.ravel()
    return stacked


def _logdets(
    model: Model, numbers: list[Float[np.ndarray, "K ..."]], update: Callable[[int], Any] | None
) -> Float[np.ndarray, " K"]:
    """Return `log det(I + 𝒢)` for many kernels, by one compiled loop on each core with one BLAS thread."""
    rows = whitened(model)
    spec, parts = split_tiles(model.kernel, rows)
    count = len(numbers[0]) if numbers else 1
    workers = min(cores(), -(-count // CHUNK))
    require_memory(rows.size, 8.0 * (3 * workers - 1) * rows.size**2, "a landscape")

    def chunk(start: int) -> Float[np.ndarray, " k"]:
        some = [column[start : start + CHUNK] for column in numbers]
        short = CHUNK - len(some[0]) if some else 0
        if short and count > CHUNK:  # pad the last chunk: another shape would be compiled again
            some = [np.concatenate([column, np.repeat(column[-1:], short, axis=0)]) for column in some]
        values = np.asarray(_compiled(spec, some, float(model.eta), parts))[: count - start]
        if update is not None:
            update(len(values))
        return values

    with ONE_BLAS_THREAD, ThreadPoolExecutor(workers) as pool:
        return np.concatenate(list(pool.map(chunk, range(0, count, CHUNK))))


@functools.partial(jax.jit, static_argnums=0)
def _compiled(spec: Any, numbers: list[Array], eta: Any, parts: list[Any]) -> Float[Array, " k"]:
    def one(leaves: list[Array]) -> Array:
        matrix = symmetric(spec, leaves, eta, parts)
        factor = jax.lax.linalg.cholesky(matrix + jnp.eye(len(matrix)), symmetrize_input=False)
        return 2.0 * jnp.log(jnp.diagonal(factor)).sum()

    return jax.lax.map(one, numbers) if numbers else one(numbers)[None]
