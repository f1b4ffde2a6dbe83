"""Check of the kernel: whether a rotated and stretched kernel of the same family suits the equation better."""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...errors import PilescoreError, PrecisionWarning
from ...inference import Score
from ...kernels import Kernel, Product, Radial, Scalar, Scaled, Sum, real
from ...model import Model, eta_and_temperatures
from ...search import Found, RunOptions, SearchOptions, Steps, Ties
from ...solvers import with_tolerances
from ..calibration import calibrate
from ..change_search import p_value_of_gain, residual_freedom
from ..context import DiagnosisContext, free_energy, is_precise, length_names
from ..findings import Finding
from ..score_tests import ScoreTests

SHAPE_BOUND = 3.0
"""The bound on the entries of `L`, both ways."""

SHAPE_START = 1.0
"""Entries of `L` at the starts of the search without data, besides zero: with too few nodes it has several minima."""

NATS_PER_NODE = 0.3
"""Nats for each node gained without data by a rotated and stretched kernel that matter."""

PROMISING_NATS = 2.0
"""A stretch is searched if its score promises more nats."""

LARGEST_STEP = 1.0
"""The largest entry of `L` at the start of this search."""

WELL_PREDICTED = 0.9
"""If left-out data are predicted better than this, as a fraction of their variance, a far stretch is not searched."""

NATS_PER_DATUM = 0.3
"""A stretch that gains less for each datum is worth knowing; the model is no failure."""

CLEAR_NATS = 3.0
"""The data are used only if a stretched kernel gains more nats than this without them."""

SEARCH = SearchOptions(tolerance=1e-5, max_evaluations=60)
"""How the stretch is searched: its gain needs few digits."""

GIVEN_PHYSICS = Score("physics")

LOOSE = 0.01
"""The tolerance of exact equations without data, relative to their terms: it shows which directions they prefer."""

WIDEST_FACTOR = 1e4
"""Bounds of temperatures and lengths while a stretched kernel is tried, as a factor both ways."""

STRETCH_FRACTIONS = (1.0, 0.7, 0.4, 0.2, 0.05)
"""Fractions of the stretch that the equation prefers, from which the search with data may start."""

LENGTH_FACTORS, NOISE_FACTORS = (10.0, 3.0, 1.0, 0.3, 0.1), (1.0, 0.1)
"""Factors of lengths and of γ at these starts: a collapsed model has arbitrary lengths and too much noise."""

HALVINGS = 12
"""Halvings and squarings in the series for the exponential of a matrix."""


class Stretched(Radial):
    """A radial kernel of differences multiplied by `A = exp L`: its metric `M` becomes `A M A`.

    `L` is symmetric with trace zero, so `A` keeps volumes: the stretch is not another way to change all lengths.
    """

    base: Radial
    shape: Float[Array, " p"] = eqx.field(converter=real("Stretched shape", ndim=1), metadata={"role": "shape"})
    """The upper triangle of `L` by rows, without its last entry."""

    @property
    def smoothness(self) -> float | int:
        """The smoothness of the base kernel."""
        return self.base.smoothness

    @property
    def exponential(self) -> bool:
        """As for the base kernel."""
        return self.base.exponential

    def profile(self, q: Scalar, order: int) -> Scalar:
        """Return the profile of the base kernel."""
        return self.base.profile(q, order)

    def metric(self, dimension: int) -> Any:
        """Return `A M A`."""
        A = _exponential(self.shape, dimension)
        entries = [[0.0 if entry is None else entry for entry in row] for row in self.base.metric(dimension)]
        M = A @ jnp.array([[jnp.asarray(entry, dtype=float) for entry in row] for row in entries]) @ A
        return tuple(tuple(M[i, k] for k in range(dimension)) for i in range(dimension))

    def check_points(self, points: Float[np.ndarray, "n d"]) -> None:
        """Check the points as the base kernel does."""
        self.base.check_points(points)


def _symmetric(shape: Float[Array, " p"], dimension: int) -> Float[Array, "d d"]:
    """Return `L`: the last entry of its diagonal follows from trace zero."""
    rows, columns = np.triu_indices(dimension)
    upper = jnp.zeros((dimension, dimension)).at[rows[:-1], columns[:-1]].set(shape)
    upper = upper.at[-1, -1].set(-jnp.trace(upper))
    return upper + upper.T - jnp.diag(jnp.diagonal(upper))


def _exponential(shape: Float[Array, " p"], dimension: int) -> Float[Array, "d d"]:
    """Return `exp L`, differentiable also at equal eigenvalues, where the derivative of `eigh` is NaN."""
    symmetric = _symmetric(shape, dimension)
    if dimension == 2:  # L² = r² I, so exp L = cosh r · I + (sinh r)/r · L
        square = symmetric[0, 0] ** 2 + symmetric[0, 1] ** 2
        apart = square > 1e-8
        r = jnp.sqrt(jnp.where(apart, square, 1.0))  # the derivative of √ at 0 is infinite
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


def ill_suited_kernel(context: DiagnosisContext) -> Finding:
    """Check whether a rotated and stretched kernel makes the data far more probable, or suits the equation better."""
    model, name = context.model, "ill_suited_kernel"
    dimension = model.blocks[0].dimension
    if not model.physics or dimension not in (2, 3):
        return context.skip(name, "This check is for equations in two and three dimensions.")
    if not _is_radial(model.kernel):
        return context.skip(name, f"{model.kernel!r} is not made of stationary kernels that can be stretched.")
    count, tried, data_free_gain = dimension * (dimension + 1) // 2 - 1, 1, math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)
        gain, shape = _gain_nearby(context, dimension) if model.data else (0.0, np.zeros(count))
        if not model.data or (gain < CLEAR_NATS and context.predicted_share < WELL_PREDICTED):
            # Far from the best stretch a model takes its data for noise, and slopes say nothing.
            data_free_gain, far = _gain_without_data(model, dimension)
            if not model.data:
                gain, shape = data_free_gain, far
            elif data_free_gain > CLEAR_NATS:
                larger = _with_enough_prior(context)
                longer = {each: LENGTH_FACTORS[0] * model.parameters[each] for each in length_names(model)}
                shapes = [far, _gain_without_data(larger.replace(longer), dimension)[1]]
                far_gain, far = _gain_with_data([context.model, larger], shapes)
                tried = len(shapes) * len(STRETCH_FRACTIONS) * len(LENGTH_FACTORS) * len(NOISE_FACTORS)
                if far_gain > gain:
                    gain, shape = far_gain, far
    values, vectors = np.linalg.eigh(np.asarray(_symmetric(jnp.asarray(shape), dimension)))
    # exp L shrinks differences most along the smallest eigenvalue: the kernel is longest there.
    direction = vectors[:, 0] * np.sign(vectors[np.argmax(np.abs(vectors[:, 0])), 0])
    factor = math.exp(values[-1] - values[0])
    along = ", ".join(f"{part:.3g}" for part in direction + 0.0)
    axes = f" of ({', '.join(model.names)})" if model.names else ""
    p_value = None
    if model.data:
        p_value = min(1.0, tried * p_value_of_gain(gain, residual_freedom(context.residuals), count))
    nodes, data = (sum(block.size for block in blocks) for blocks in (model.physics, model.data))
    # No solution is equally smooth in all directions: with many data a small gain is certain, and harmless.
    matters = not data or gain > NATS_PER_DATUM * data
    verdict = "The kernel does not suit the equation" if matters else "Another kernel would suit the solution better"
    return context.finding(
        name,
        gain if model.data else gain / nodes,
        "failure" if matters else "note",
        f"the gain from a rotated and stretched kernel, in nats{'' if model.data else ' per node'}, is",
        f"{verdict}: stretched {factor:.3g} times as far in the direction ({along}){axes} as across it, it would "
        f"gain {gain:.3g} nats{'' if model.data else ', before there are any data'}.",
        "a bandwidth for each axis (ps.RBF(bandwidth=[…])), ps.AnisotropicRBF, ps.kernels.FullCovarianceRBF or "
        "ps.kernels.LinearMap with this direction; ps.data_free_landscape shows which suits.",
        threshold=CLEAR_NATS if model.data else NATS_PER_NODE,
        p_value=p_value,
        gain=gain,
        data_free_gain=data_free_gain,
        direction=direction.tolist(),
        stretch=factor,
    )


def _gain_nearby(context: DiagnosisContext, dimension: int) -> tuple[float, np.ndarray]:
    """Return the nats gained for the data given the physics by a stretch that its score promises, and its shape."""
    start = np.zeros(dimension * (dimension + 1) // 2 - 1)
    source = context.source.replace(kernel=stretched_kernel(context.source.kernel, start), priors={})
    linear = context.model.replace(kernel=stretched_kernel(context.model.kernel, start), priors={})
    calibration = calibrate(linear, GIVEN_PHYSICS.given_blocks(context.source), draws=0)
    shapes = _shape_names(linear)
    others = [name for name in _wide_bounds(linear) if name not in context.at_bounds and context.was_searched(name)]
    tests = ScoreTests(linear, calibration, others)
    promise, step = tests.joint([f"{each}[{i}]" for i in range(len(start))] for each in shapes)
    if promise < PROMISING_NATS:
        return 0.0, start
    largest = float(np.abs(step).max())
    first = step * min(1.0, LARGEST_STEP / largest)
    try:
        plain = _steps(_wide_bounds(context.source), GIVEN_PHYSICS).descend(context.source.replace(priors={}), 1)
        best = _search_shape(source.replace(dict.fromkeys(shapes, first)), GIVEN_PHYSICS)
    except PilescoreError:
        return 0.0, start
    if not is_precise(best.pile):
        return 0.0, start
    return max(plain.pile.free_energy - best.pile.free_energy, 0.0), _shape(best.model)


def _is_radial(kernel: Kernel) -> bool:
    """Whether all parts of a kernel can be stretched."""
    if isinstance(kernel, Sum | Product):
        return all(map(_is_radial, kernel.parts))
    return _is_radial(kernel.kernel) if isinstance(kernel, Scaled) else isinstance(kernel, Radial)


def stretched_kernel(kernel: Kernel, shape: Float[np.ndarray, " p"]) -> Kernel:
    """Return a kernel with all its radial parts stretched by the same `L`."""

    def stretch(part: Any) -> Any:
        return Stretched(part, jnp.asarray(shape)) if isinstance(part, Radial) else part

    return jax.tree.map(stretch, kernel, is_leaf=lambda part: isinstance(part, Radial))


def _gain_without_data(model: Model, dimension: int) -> tuple[float, np.ndarray]:
    """Return the nats gained by the best stretch for the homogeneous equation alone, and its shape."""
    # The values of exact equations are not scored, so those here hold to a tolerance and count as measured.
    homogeneous = [
        dataclasses.replace(block, values=np.zeros(block.size), exact=False)
        for block in with_tolerances(model, LOOSE, renew=True).physics
    ]
    start = np.zeros(dimension * (dimension + 1) // 2 - 1)
    alone = model.replace(kernel=stretched_kernel(model.kernel, start), data=(), physics=homogeneous)
    best = _search_shape(alone, Score())
    return free_energy(alone, Score()) - best.pile.free_energy, _shape(best.model)


def _gain_with_data(models: list[Model], shapes: list[np.ndarray]) -> tuple[float, np.ndarray]:
    """Return the nats gained by a stretch for the data given the physics, and its shape.

    Lengths and temperatures are free with and without the stretch. The joint score would also reward a small operator
    on draws of the prior, however good the solution is.

    Parameters
    ----------
    models
        Models without a stretch to start from.
    shapes
        The shapes that the equation prefers at the present lengths, and at longer ones, which nodes resolve better.
    """
    # Priors on numbers of the kernel do not hold for the stretched one.
    models = [model.replace(priors={}) for model in models]
    plain = [_steps(_wide_bounds(model), GIVEN_PHYSICS).descend(model, 1) for model in models]
    precise = [found for found in plain if is_precise(found.pile)]
    if not precise:
        return 0.0, shapes[0]
    best = min(precise, key=lambda found: found.pile.value)
    before, start = best.pile.free_energy, best.model
    choices = itertools.product(shapes, STRETCH_FRACTIONS, LENGTH_FACTORS, NOISE_FACTORS)
    trial = min((_trial(start, *choice) for choice in choices), key=_energy)
    if not _energy(trial) < before:
        return 0.0, shapes[0]
    best = _search_shape(trial, GIVEN_PHYSICS)
    if not is_precise(best.pile):  # rounding took all digits there
        return before - _energy(trial), _shape(trial)
    return before - best.pile.free_energy, _shape(best.model)


def _with_enough_prior(context: DiagnosisContext) -> Model:
    """Return the model with a prior variance at least as large as the data; a collapsed model may have almost none."""
    model, residuals = context.model, context.residuals
    if not model.data:
        return model
    factor = float(np.mean(model.values[residuals.data] ** 2) / np.mean(residuals.prior[residuals.data]))
    return model.replace({"eta": max(1.0, factor) * float(model.eta)})


def _trial(model: Model, shape: np.ndarray, fraction: float, length: float, noise: float) -> Model:
    """Return a model to start from: stretched by a fraction of `L`, with other lengths and less noise in the data."""
    trial = model.replace(kernel=stretched_kernel(model.kernel, fraction * shape))
    parameters, roles = trial.parameters, trial.roles
    factors = {"length": length, "data_temperature": noise}
    return trial.replace({name: factors[roles[name]] * parameters[name] for name in roles if roles[name] in factors})


def _energy(model: Model) -> float:
    return free_energy(model, GIVEN_PHYSICS)


def _wide_bounds(model: Model) -> dict[str, tuple[Any, Any]]:
    """Return wide bounds for lengths and all temperatures."""
    parameters = model.parameters
    exact = {name for i, name in enumerate(model.temperature_names) if model.is_exact(i)}
    return {
        name: (parameters[name] / WIDEST_FACTOR, parameters[name] * WIDEST_FACTOR)
        for name in [*eta_and_temperatures(model), *length_names(model)]
        if name not in exact
    }


def _search_shape(model: Model, score: Score) -> Found:
    """Return the minimum over the stretch, common to all parts of the kernel; with data also over lengths and noise."""
    first, *others = _shape_names(model)
    over = {first: (-SHAPE_BOUND, SHAPE_BOUND), **(_wide_bounds(model) if score.given == "physics" else {})}
    ties = {other: lambda p: p[first] for other in others}
    shapes = [_shape(model)]
    if score.given != "physics":
        shapes += [sign * SHAPE_START * unit for unit in np.eye(len(shapes[0])) for sign in (1, -1)]
    starts = [{first: shape} for shape in shapes]
    return _steps(over, score, ties).descend(model, starts)


def _steps(over: dict[str, Any], score: Score, ties: Ties | None = None) -> Steps:
    """Return the steps of a search. Descents leave tolerances and nodes as they are: the gain needs few digits."""
    return Steps(over, ties, score, SEARCH, RunOptions(progress=False))


def _shape(model: Model) -> np.ndarray:
    return np.asarray(model.parameters[_shape_names(model)[0]])


def _shape_names(model: Model) -> list[str]:
    """Return the names of the shapes of stretched kernels."""
    return [name for name, role in model.roles.items() if role == "shape"]
