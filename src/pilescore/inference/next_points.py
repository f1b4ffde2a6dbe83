"""Where to measure next: the points at which readings reduce the uncertainty of a posterior most."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ..domains import Nodes
from ..equations import Operator, identity
from ..errors import (
    InputError,
    MemoryLimitError,
    PrecisionWarning,
    as_count,
    as_points,
    as_vector,
    did_you_mean,
    listed,
    require,
)
from ..model import Model
from ..parallel import require_memory
from ..solvers import EPS
from .mixture import MixturePosterior
from .posterior import Posterior

STRIP_BYTES = 4e8
"""How many bytes of temporary arrays are in memory at a time, besides the covariances of candidates and targets."""

TIE = 1e-9
"""Candidates whose reductions differ by less than this fraction are equally good."""

SMALLEST_NOISE = 1e3 * EPS
"""The smallest noise variance of a reading, as a fraction of the largest variance of what is measured."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class NextPoints:
    """The points to measure next, the best first, as returned by `next_points`.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> data = ps.observe(ps.identity, values=[0.0, 0.1, 0.7], at=[0.0, 0.1, 0.5], noise=0.05)
    >>> post = ps.posterior(ps.Model(ps.RBF(0.3), data))
    >>> found = ps.next_points(post, [0.6, 0.7, 0.8, 0.9, 1.0], count=2)
    >>> found
    NextPoints(standard deviation of Id at 5 points: 0.718 now
      0.205 after a reading at (0.9)
      0.0889 after another at (0.7))
    >>> found.indices, found.variances.round(3), found.reductions.round(3)
    (array([3, 1]), array([0.516, 0.042, 0.008]), array([0.294, 0.383, 0.448, 0.474, 0.438]))
    """

    points: Float[np.ndarray, "k d"]
    """The points, in the order in which they were chosen."""
    indices: Int[np.ndarray, " k"]
    """Their positions among the candidates."""
    variances: Float[np.ndarray, " k+1"]
    """The mean variance of the targets: now, after a reading at the first point, after readings at the first two, …"""
    reductions: Float[np.ndarray, " n"]
    """By how much a single reading at each candidate would reduce the mean variance now."""
    target: str
    """What the readings shall determine."""

    @property
    def stds(self) -> Float[np.ndarray, " m"]:
        """The square roots of `variances`."""
        return np.sqrt(self.variances)

    def __repr__(self) -> str:
        lines = [f"NextPoints(standard deviation of {self.target}: {self.stds[0]:.3g} now"]
        for i, (point, std) in enumerate(zip(self.points, self.stds[1:], strict=True)):
            where = ", ".join(f"{coordinate:.4g}" for coordinate in point)
            lines.append(f"  {std:.3g} after {'another' if i else 'a reading'} at ({where})")
        return "\n".join(lines) + ")"


def next_points(
    posterior: Posterior | MixturePosterior,
    candidates: Any,
    count: int = 1,
    *,
    of: Operator | str = identity,
    at: Any = None,
    operator: Operator = identity,
    noise: Any = None,
) -> NextPoints:
    """Return the candidates at which readings reduce an uncertainty most, chosen one after another.

    A reading `z = B f(c) + ε` with the noise `s` reduces the mean variance of the targets `t_j` by
    `Σ_j w_j Cov[t_j, z]² / (Var[B f(c)] + s²)`. The best candidate is taken, the covariances are conditioned on a
    reading there, and the next one is chosen from the others. Covariances do not depend on the values that will be
    read, so nothing needs to be measured between the choices. The covariance is not factored again.

    For a `Posterior` of a linear model the reduction is that of the model with the reading among its data. A mixture of
    models is updated linearly, by its total covariances: the estimate of the targets that is linear in the reading
    reaches these variances, and Bayes' rule reaches at least as small ones on average over the values that may be read.

    Parameters
    ----------
    posterior
        What is known now, as returned by `posterior`. A nonlinear model counts as the one linearised around its most
        likely solution.
    candidates
        The points `c` where a reading can be taken, of shape (n, d), or nodes. Each is taken at most once: list a point
        twice if it may be measured twice. The first one is chosen among equally good ones.
    count
        How many points to choose.
    of
        What shall be known better: an operator `A`, for the targets `t_j = A f(x_j)`, or the name of a hyperparameter.
        The latter needs a posterior averaged over hyperparameters.
    at
        The points `x` of the targets, of shape (m, d), or nodes; by default the candidates. Nodes have weights `w`, so
        that the mean variance is an integral divided by the measure of the region; points have equal weights. An array
        of n × m numbers is held in memory.
    operator
        `B`, what is measured.
    noise
        `s`, the standard deviation of a new reading: one for all candidates, or one for each. By default that of the
        data measured by the same operator, which must all have the same; averaged over a mixture.

    Examples
    --------
    The standard deviation is largest at the end of the interval, but a reading there tells less about the rest:

    >>> import numpy as np, pilescore as ps
    >>> (dx,) = ps.partials(ps.Box(x=(0, 1)))
    >>> data = ps.observe(ps.identity, values=[0.0, 0.1, 0.7], at=[0.0, 0.1, 0.5], noise=0.05)
    >>> post = ps.posterior(ps.Model(ps.RBF(0.3), data))
    >>> where = np.linspace(0, 1, 21)
    >>> float(where[post.std(where).argmax()])
    1.0
    >>> ps.next_points(post, where, count=3)
    NextPoints(standard deviation of Id at 21 points: 0.481 now
      0.154 after a reading at (0.9)
      0.0788 after another at (0.7)
      0.0607 after another at (0.3))
    >>> ps.next_points(post, where, of=dx, at=[0.1])  # the slope at one point
    NextPoints(standard deviation of ∂x at 1 point: 0.822 now
      0.378 after a reading at (0.25))
    """
    kinds = "a posterior, as ps.posterior(model) returns"
    require(isinstance(posterior, Posterior | MixturePosterior), "posterior", posterior, kinds)
    models = [posterior.model] if isinstance(posterior, Posterior) else list(posterior.models)
    require(isinstance(operator, Operator), "operator", operator, "an operator such as ps.identity")
    where, _ = _points(candidates, "candidates", models[0])
    number = as_count(count, "count")
    require(number <= len(where), "count", number, f"at most {len(where)}, the number of candidates")
    targets, weights = _targets(posterior, of, candidates if at is None else at, models[0])
    if isinstance(of, str):
        require(at is None, "at", at, f"nothing: the hyperparameter {of!r} has no points")
    _require_memory(len(where), len(weights), number)
    noises = _noises(posterior, models, operator, len(where), noise)

    measured = posterior.variance(where, operator)
    _check_noise(noises, measured)
    if isinstance(of, Operator):
        assert targets is not None
        before = float(weights @ posterior.variance(targets, of))
        name = f"{of} at {len(targets)} point{'s' if len(targets) > 1 else ''}"
        cross = _covariances(posterior, where, operator, targets, of)
    else:
        assert isinstance(posterior, MixturePosterior)  # _targets has checked it
        before, name = posterior.parameter_variance(of), of
        cross = posterior.parameter_covariance(of, where, operator)[:, None]
    cross *= np.sqrt(weights)  # from here on a sum of squares is a weighted one
    return _greedy(posterior, where, operator, cross, measured + noises, before, number, name)


def _greedy(
    posterior: Posterior | MixturePosterior,
    where: Float[np.ndarray, "n d"],
    operator: Operator,
    cross: Float[np.ndarray, "n m"],
    readings: Float[np.ndarray, " n"],
    before: float,
    count: int,
    name: str,
) -> NextPoints:
    """Choose points by their reductions; `cross` and `readings`, the variances of readings, are overwritten."""
    chosen = np.empty(count, dtype=int)
    columns = np.empty((len(where), count))
    gains, first = np.empty(0), np.empty(0)
    variances = [before]
    for k in range(count):
        gains = np.einsum("ij,ij->i", cross, cross) / readings
        if k == 0:
            first = gains.copy()
        gains[chosen[:k]] = -np.inf
        # Rounding decides between candidates that are equally good by symmetry. The first of them is taken everywhere.
        chosen[k] = i = int(np.flatnonzero(gains >= (1.0 - TIE) * gains.max())[0])
        variances.append(variances[-1] - float(gains[i]))
        if k + 1 == count:
            break
        # The next column of a pivoted Cholesky factor of the covariance of the readings at the candidates.
        column = _covariances(posterior, where, operator, where[[i]], operator)[:, 0]
        column -= columns[:, :k] @ columns[i, :k]
        root = math.sqrt(readings[i])
        columns[:, k] = column / root
        target = cross[i] / root
        for rows in _strips(len(where), 8.0 * cross.shape[1]):
            cross[rows] -= np.outer(columns[rows, k], target)
        readings -= columns[:, k] ** 2
    return NextPoints(where[chosen], chosen, _not_negative(np.array(variances)), first, name)


def _not_negative(variances: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
    negative = variances < 0
    if negative.any():
        warnings.warn(
            f"{int(negative.sum())} of the variances after readings are smaller than their rounding error and came out "
            f"negative (down to {variances.min() / variances[0]:.1e} of the present variance). They are returned as "
            "zero. A larger noise of the readings resolves them.",
            PrecisionWarning,
            stacklevel=4,
        )
        variances[negative] = 0.0
    return variances


def _points(value: Any, argument: str, model: Model) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"]]:
    """Return points and weights that sum to one."""
    points = value.points if isinstance(value, Nodes) else as_points(value, argument)
    dimension = model.blocks[0].dimension
    require(points.shape[1] == dimension, argument, points, f"points with {dimension} coordinates")
    weights = value.weights if isinstance(value, Nodes) else np.ones(len(points))
    return points, weights / weights.sum()


def _targets(
    posterior: Posterior | MixturePosterior, of: Any, at: Any, model: Model
) -> tuple[Float[np.ndarray, "m d"] | None, Float[np.ndarray, " m"]]:
    """Return the points and weights of the targets; a hyperparameter is one target without a point."""
    if isinstance(of, Operator):
        return _points(at, "at", model)
    require(isinstance(of, str), "of", of, "an operator such as ps.identity, or the name of a hyperparameter")
    if not isinstance(posterior, MixturePosterior):
        raise InputError(
            f"of: expected an operator such as ps.identity; got {of!r}. The name of a hyperparameter needs a posterior "
            "averaged over hyperparameters, ps.posterior of their distribution instead of a single model"
        )
    known = list(posterior.values)
    expected = f"one of the hyperparameters that vary ({listed(known) or 'there are none'}), or an operator"
    require(of in known, "of", of, expected + did_you_mean(of, known, 0.5))
    distinct = len(set(posterior.values[of].tolist())) > 1
    require(distinct, "of", of, "a hyperparameter that varies; it has the same value in all models")
    return None, np.ones(1)


def _noises(
    posterior: Posterior | MixturePosterior, models: list[Model], operator: Operator, count: int, noise: Any
) -> Float[np.ndarray, " n"]:
    """Return the noise variance of a reading at each candidate."""
    if noise is not None:
        deviations = as_vector(noise, "noise", count, "candidate")
        require(bool(np.all(deviations > 0)), "noise", float(deviations.min()), "a positive standard deviation")
        return deviations**2
    # Operators print the same if they differ only in the values of parameters, as they do in a mixture.
    of_models = [
        np.concatenate(
            [np.zeros(0)]
            + [
                0.5 * temperature / block.weights
                for temperature, block in zip(model.temperatures, model.blocks, strict=True)
                if block.role == "data" and not block.is_functional and str(block.operator) == str(operator)
            ]
        )
        for model in models
    ]
    give = "Give the standard deviation of a new reading, noise="
    if any(variances.size == 0 for variances in of_models):
        raise InputError(f"noise: no data block of the model measures {operator}, so there is no default. {give}")
    for variances in of_models:
        low, high = math.sqrt(variances.min()), math.sqrt(variances.max())
        if high - low > 1e-9 * high:
            raise InputError(f"noise: the data have noises from {low:.3g} to {high:.3g}: there is no default. {give}")
    shares = np.ones(1) if isinstance(posterior, Posterior) else posterior.weights
    return np.full(count, float(shares @ np.array([variances[0] for variances in of_models])))


def _check_noise(noises: Float[np.ndarray, " n"], measured: Float[np.ndarray, " n"]) -> None:
    least = math.sqrt(SMALLEST_NOISE * float(measured.max()))
    found = math.sqrt(float(noises.min()))
    expected = f"a standard deviation above {least:.1e}: the effect of a more precise reading is lost to rounding"
    require(found > least, "noise", found, expected)


def _require_memory(candidates: int, targets: int, count: int) -> None:
    needed = 8.0 * candidates * (targets + count)
    try:
        require_memory(0, needed)
    except MemoryLimitError:
        raise MemoryLimitError(
            f"candidates, at: the covariances of {candidates} candidates with {targets} targets need "
            f"{needed / 1e9:.1f} GB, more than is available. Give fewer candidates, or fewer target points at="
        ) from None


def _covariances(
    posterior: Posterior | MixturePosterior,
    points: Float[np.ndarray, "n d"],
    operator: Operator,
    others: Float[np.ndarray, "m d"],
    other_operator: Operator,
) -> Float[np.ndarray, "n m"]:
    """Return the posterior covariance, computed for some of the points at a time."""
    model = posterior.model if isinstance(posterior, Posterior) else posterior.models[0]
    out = np.empty((len(points), len(others)))
    for rows in _strips(len(points), 8.0 * (model.size + 3 * len(others))):
        out[rows] = posterior.covariance(points[rows], operator, others, other_operator)
    return out


def _strips(count: int, bytes_each: float) -> Iterator[slice]:
    width = max(1, int(STRIP_BYTES / bytes_each))
    for start in range(0, count, width):
        yield slice(start, min(start + width, count))
