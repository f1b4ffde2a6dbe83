"""Whether a rotated and stretched member of a kernel's family suits the equation better."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .errors import PilescoreError, PrecisionWarning
from .examination import Examination, bandwidths, energy, finding, skipped, trusted
from .findings import Finding
from .kernels import Kernel, Product, Radial, Scalar, Scaled, Sum
from .kernels.base import real
from .minimum import Minimum, minimize
from .model import Model, is_temperature, named_paths

REACH = 3.0
"""How far the entries of `L` may go."""

START = 1.0
"""Entries of `L` from which the search without data starts, beside zero: with nodes too few it has several minima."""

CLEAR = 3.0
"""Nats that a stretched kernel must gain without data for the data to be asked."""

SEARCH: dict[str, Any] = {"tolerance": 1e-5, "max_evaluations": 60, "hessian": False, "progress": False}
"""How the stretch is looked for: its gain need not have many digits."""

DECADES = 1e4
"""How far temperatures may go either way while a stretched kernel is tried."""

PARTS = (1.0, 0.7, 0.4, 0.2, 0.05)
"""Parts of the stretch that the equation wants from which the search with data may start."""

LENGTHS, NOISES = (10.0, 3.0, 1.0, 0.3, 0.1), (1.0, 0.1)
"""Factors of bandwidths and of γ there: a collapsed model has bandwidths of any length, and too much noise."""

HALVINGS = 12
"""Halvings and doublings in the series for the exponential of a matrix."""


class Stretched(Radial):
    """A radial kernel whose differences are first multiplied by `A = exp L`: `M → A M A`.

    `L` is symmetric of trace zero, so that volumes are kept.
    """

    base: Radial
    shape: Float[Array, " p"] = eqx.field(converter=real("Stretched shape", ndim=1))
    """The upper triangle of `L` by rows, without its last entry."""

    @property
    def smoothness(self) -> float | int:
        """That of the kernel stretched."""
        return self.base.smoothness

    @property
    def exponential(self) -> bool:
        """As the kernel stretched."""
        return self.base.exponential

    def profile(self, q: Scalar, order: int) -> Scalar:
        """Return that of the kernel stretched."""
        return self.base.profile(q, order)

    def metric(self, dimension: int) -> Any:
        """Return `A M A`."""
        A = _exponential(self.shape, dimension)
        entries = [[0.0 if entry is None else entry for entry in row] for row in self.base.metric(dimension)]
        M = A @ jnp.array([[jnp.asarray(entry, dtype=float) for entry in row] for row in entries]) @ A
        return tuple(tuple(M[i, k] for k in range(dimension)) for i in range(dimension))

    def check_points(self, points: Float[np.ndarray, "n d"]) -> None:
        """Check as the kernel stretched does."""
        self.base.check_points(points)


def _symmetric(shape: Float[Array, " p"], dimension: int) -> Float[Array, "d d"]:
    """Return `L` of trace zero: the last entry of its diagonal follows from the others."""
    rows, columns = np.triu_indices(dimension)
    upper = jnp.zeros((dimension, dimension)).at[rows[:-1], columns[:-1]].set(shape)
    upper = upper.at[-1, -1].set(-jnp.trace(upper))
    return upper + upper.T - jnp.diag(jnp.diagonal(upper))


def _exponential(shape: Float[Array, " p"], dimension: int) -> Float[Array, "d d"]:
    """Return `exp L`, differentiable also where eigenvalues coincide."""
    symmetric = _symmetric(shape, dimension)
    if dimension == 2:  # L² = r² I, and so cosh r · I + sinh r / r · L
        square = symmetric[0, 0] ** 2 + symmetric[0, 1] ** 2
        apart = square > 1e-8
        r = jnp.sqrt(jnp.where(apart, square, 1.0))
        cosh = jnp.where(apart, jnp.cosh(r), 1.0 + square / 2 + square**2 / 24)
        sinc = jnp.where(apart, jnp.sinh(r) / r, 1.0 + square / 6 + square**2 / 120)
        return cosh * jnp.eye(2) + sinc * symmetric
    small = symmetric / 2.0**HALVINGS
    term = total = jnp.eye(dimension)
    for k in range(1, 6):
        term = term @ small / k
        total = total + term
    for _ in range(HALVINGS):
        total = total @ total
    return total


def ill_suited_kernel(examination: Examination) -> Finding:
    """Say whether a rotated and stretched kernel suits the equation far better, and evidence agrees."""
    model, name = examination.model, "ill_suited_kernel"
    dimension = model.blocks[0].dimension
    if not model.physics or dimension not in (2, 3):
        return skipped(examination, name, "It is for equations in two and three dimensions.")
    if not _all_radial(model.kernel):
        return skipped(examination, name, f"{model.kernel!r} is not made of stationary kernels that can be stretched.")
    model = _loud(examination)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrecisionWarning)
            free, shape = _without_data(model, dimension)
            gain, count, unit = free, sum(block.size for block in model.physics), "node"
            if model.data and free > CLEAR:  # only then ask the data
                count, unit = sum(block.size for block in model.data), "datum"
                other = model.replace({each: LENGTHS[0] * model.parameters[each] for each in bandwidths(model)})
                gain, shape = _with_data([examination.model, model], [shape, _without_data(other, dimension)[1]])
    except PilescoreError as failure:
        return skipped(examination, name, f"No stretched kernel could be scored: {failure}")
    values, vectors = np.linalg.eigh(np.asarray(_symmetric(jnp.asarray(shape), dimension)))
    direction = vectors[:, 0] * np.sign(vectors[np.argmax(np.abs(vectors[:, 0])), 0])
    factor = math.exp(values[-1] - values[0])
    along = ", ".join(f"{part:.3g}" for part in direction)
    axes = f" of ({', '.join(model.names)})" if model.names else ""
    return finding(
        examination,
        name,
        gain / count,
        "failure",
        f"nats for each {unit} that a rotated and stretched kernel gains are",
        f"The kernel does not suit the equation: stretched {factor:.3g} times as far in the direction ({along}){axes} "
        f"as across it, it would gain {gain:.3g} nats{'' if model.data else ', before there are any data'}.",
        "a bandwidth for each axis (ps.RBF(bandwidth=[…])), ps.AnisotropicRBF, ps.FullCovarianceRBF or "
        "ps.LinearMap with this direction; ps.data_free_landscape shows which suits.",
        fires=gain > CLEAR
        and gain > examination.thresholds.ill_suited_kernel * count
        and (unit == "datum" or not model.data),
        gain=gain,
        data_free_gain=free,
        direction=direction.tolist(),
        stretch=factor,
    )


def _all_radial(kernel: Kernel) -> bool:
    if isinstance(kernel, Sum | Product):
        return all(map(_all_radial, kernel.parts))
    return _all_radial(kernel.kernel) if isinstance(kernel, Scaled) else isinstance(kernel, Radial)


def stretched_kernel(kernel: Kernel, shape: Float[np.ndarray, " p"]) -> Kernel:
    """Return a kernel with all its radial parts stretched alike."""

    def replaced(part: Any) -> Any:
        return Stretched(part, jnp.asarray(shape)) if isinstance(part, Radial) else part

    return jax.tree.map(replaced, kernel, is_leaf=lambda part: isinstance(part, Radial))


def _without_data(model: Model, dimension: int) -> tuple[float, np.ndarray]:
    """Return the best stretch where nothing is known but a homogeneous equation, after what it gains."""
    zero = [eqx.tree_at(lambda b: b.values, block, np.zeros(block.size)) for block in model.physics]
    start = np.zeros(dimension * (dimension + 1) // 2 - 1)
    alone = Model(stretched_kernel(model.kernel, start), (), zero, model.gamma, model.rho, model.eta)
    best = _searched(alone, given_physics=False)
    gain = 0.5 * alone.size * (float(best.runs[0].path["pile"][0]) - best.pile.value)
    return gain, _shape(best.model)


def _with_data(models: list[Model], shapes: list[np.ndarray]) -> tuple[float, np.ndarray]:
    """Return what the stretch gains for the data given the physics; the rest is free with and without it.

    PILE proper would count how small the operator is on draws of the prior as well, however good the solution is. The
    shapes to start from are what the equation wants at these bandwidths and at longer ones, which nodes resolve better.
    """
    plain = [minimize(each, _open(each), given_physics=True, **SEARCH) for each in models]
    fair = [found for found in plain if trusted(found.pile)]
    if not fair:
        return 0.0, shapes[0]
    best = min(fair, key=lambda found: found.pile.value)
    before, start = best.pile.free_energy, best.model
    trials = [_trial(start, *each) for each in itertools.product(shapes, PARTS, LENGTHS, NOISES)]
    trial = min(trials, key=_energy)
    if not _energy(trial) < before:
        return 0.0, shapes[0]
    best = _searched(trial, given_physics=True)
    if not trusted(best.pile):  # the search went where no digits are left
        return before - _energy(trial), _shape(trial)
    return before - best.pile.free_energy, _shape(best.model)


def _loud(examination: Examination) -> Model:
    """Return the model with a prior that is at least as large as the data: a collapsed one may have next to none."""
    model, found = examination.model, examination.inspection
    if not model.data:
        return model
    factor = float(np.mean(model.values[found.data] ** 2) / np.mean(found.prior[found.data]))
    return model.replace({"eta": max(1.0, factor) * float(model.eta)})


def _trial(model: Model, shape: np.ndarray, part: float, length: float, noise: float) -> Model:
    """Return a model to start from: stretched in part, with other bandwidths and less noise in the data."""
    stretched = stretched_kernel(model.kernel, part * shape)
    trial = Model(stretched, model.data, model.physics, model.gamma, model.rho, model.eta)
    given = trial.parameters
    noises = [name for name in given if name.split(".")[-1] == "gamma"]
    changes = {name: length * given[name] for name in bandwidths(trial)}
    return trial.replace(changes | {name: noise * given[name] for name in noises})


def _energy(model: Model) -> float:
    return energy(model, given_physics=True)


def _open(model: Model) -> dict[str, tuple[Any, Any]]:
    """Return wide bounds on bandwidths and on all temperatures."""
    names = [name for name, path in named_paths(model).items() if is_temperature(path[0])]
    given = model.parameters
    return {name: (given[name] / DECADES, given[name] * DECADES) for name in [*names, *bandwidths(model)]}


def _searched(model: Model, *, given_physics: bool) -> Minimum:
    """Return the minimum over the stretch, which all parts of the kernel have in common, and with data what is open."""
    first, *others = [name for name in model.parameters if name.startswith("kernel.") and name.endswith("shape")]
    over = {first: (-REACH, REACH), **(_open(model) if given_physics else {})}
    ties = {other: lambda p: p[first] for other in others}
    now = _shape(model)
    starts = [now] if given_physics else [now, *(sign * START * unit for unit in np.eye(len(now)) for sign in (1, -1))]
    given = [{first: each} for each in starts]
    return minimize(model, over, starts=given, ties=ties, given_physics=given_physics, **SEARCH)


def _shape(model: Model) -> np.ndarray:
    return np.asarray(next(value for name, value in model.parameters.items() if name.endswith("shape")))
