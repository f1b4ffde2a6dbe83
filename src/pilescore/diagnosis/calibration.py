"""Calibration by simulation: the distribution of any statistic of the observations under the fitted model.

A parametric bootstrap. Data sets are drawn from the model at its chosen hyperparameters. Given observations, such as
exact equations, keep their values; the others are drawn given them. With `C = LLᵀ`, given rows first, a data set is
`y = Lz`, where `z` is `L⁻¹ỹ` in the given rows and standard normal in the others, and its `α` is `L⁻ᵀz`. So all data
sets together cost one factorisation and one triangular solution.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float
from scipy.linalg import blas

from ..errors import InputError
from ..model import Model
from ..solvers import ConditionalFactored, DenseFactored, System, solve

DRAWS = 399
"""The number of data sets. They share one factor, so that many are cheap."""

TAIL = 0.1
"""The fraction of the draws that determines the tail of a distribution."""

SEED = 2024
"""The seed of all draws: a diagnosis gives the same answer twice."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """The residuals of one or more data sets under one model: a column each, rows in the stacked order."""

    alpha: Float[np.ndarray, "N B"]
    """`α = C⁻¹y`."""
    values: Float[np.ndarray, "N B"]
    """The values `y`."""
    noise: Float[np.ndarray, "N 1"]
    left_out_variances: Float[np.ndarray, "N 1"]
    """`1/(C⁻¹)_ii`."""
    data: slice
    """The rows of the data."""

    @functools.cached_property
    def fitted(self) -> Float[np.ndarray, "N B"]:
        """Residuals of the posterior mean, `Sα`."""
        return self.noise * self.alpha

    @functools.cached_property
    def left_out(self) -> Float[np.ndarray, "N B"]:
        """Residuals of each value predicted from all others, `α_i/(C⁻¹)_ii`."""
        return self.left_out_variances * self.alpha

    @functools.cached_property
    def scaled(self) -> Float[np.ndarray, "N B"]:
        """Left-out residuals divided by their predicted deviations."""
        return np.sqrt(self.left_out_variances) * self.alpha


Statistic: TypeAlias = Callable[[Sample], Any]
"""A function of a sample that returns one number for each of its data sets."""


@dataclasses.dataclass(frozen=True)
class Calibrated:
    """A statistic of the observations, and how unusual it is under the model."""

    value: float
    p_value: float
    """The probability, under the model, of a value as large as this."""
    expected: float
    """The median under the model."""


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration:
    """The observations of a model, and data sets drawn from it.

    Examples
    --------
    Is the largest error of a left-out datum unusual?

    >>> import numpy as np, pilescore as ps
    >>> from pilescore.diagnosis.calibration import calibrate
    >>> x = np.linspace(0, 1, 30)
    >>> values = np.sin(6 * x) + 0.05 * np.random.default_rng(0).standard_normal(30)
    >>> values[7] += 0.4
    >>> model = ps.Model(ps.RBF(0.3), data=ps.observe(ps.identity, values, at=x), gamma=0.005)
    >>> test = calibrate(model).test(lambda sample: abs(sample.scaled).max(axis=0))
    >>> test.value > 2 * test.expected, test.p_value < 1e-4
    (True, True)
    """

    observed: Sample
    """The observations, as a sample of one data set."""
    draws: Sample
    whitening: Float[np.ndarray, "n N"]
    """The scored rows of `L⁻¹`, columns in the stacked order: values become independent standard normal ones."""
    given_alpha: Float[np.ndarray, " N"]
    """`α` of the given rows alone, in the stacked order; zero for the others."""

    @property
    def whitened(self) -> Float[np.ndarray, " n"]:
        """The observations as numbers that are independent and standard normal under the model."""
        return self._whitened[:, 0]

    @property
    def whitened_draws(self) -> Float[np.ndarray, "n B"]:
        """The same of the data sets."""
        return self._whitened[:, 1:]

    _whitened: Float[np.ndarray, "n B1"]

    def test(self, statistic: Statistic) -> Calibrated:
        """Return the value of a statistic, and the probability of one as large under the model.

        Parameters
        ----------
        statistic
            A function of a `Sample` that returns one number for each of its columns. Its tail should be like that of an
            exponential distribution or lighter: nats, squares or deviations, not ratios of them.
        """
        value, null = float(np.ravel(statistic(self.observed))[0]), np.ravel(statistic(self.draws))
        return Calibrated(value, tail_probability(value, null), float(np.median(null)))

    def test_largest(self, statistics: Sequence[Statistic]) -> Calibrated:
        """Return the largest of several statistics, each in deviations from its mean under the model."""
        every = np.stack([np.ravel(each(self.draws)) for each in statistics])
        mean, deviation = every.mean(axis=1), np.maximum(every.std(axis=1), 1e-300)
        observed = np.array([float(np.ravel(each(self.observed))[0]) for each in statistics])
        value, null = float(np.max((observed - mean) / deviation)), np.max((every.T - mean) / deviation, axis=1)
        return Calibrated(value, tail_probability(value, null), float(np.median(null)))


def calibrate(model: Model, given: tuple[int, ...] = (), *, draws: int = DRAWS, seed: int = SEED) -> Calibration:
    """Return data sets drawn from a linear model.

    Parameters
    ----------
    model
        The model, with tolerances of exact equations.
    given
        The positions of blocks that keep their values; the others are drawn given them.
    draws
        The number of data sets.
    seed
        The seed of the draws.
    """
    return calibration_of(solve(model, given=given, explain=False), draws=draws, seed=seed)


def calibration_of(system: System, *, draws: int = DRAWS, seed: int = SEED) -> Calibration:
    """Return data sets drawn from a solved system; rows that it conditions on keep their values."""
    factored = system.factored
    if isinstance(factored, ConditionalFactored):
        factor, places, first = factored.factor, factored.order, len(system.values) - factored.scored
    elif isinstance(factored, DenseFactored):
        factor, places, first = factored.factor, np.arange(len(system.values)), 0
    else:
        raise InputError(f"solver: draws of data sets need the solver 'dense'; got {factored.method!r}")
    lower, size = factor.matrix, len(system.values)
    noise = np.empty((size, draws + 1), order="F")
    noise[:, 0] = blas.dtrsv(lower, system.values[places], lower=1)
    noise[:first, 1:] = noise[:first, :1]
    noise[first:, 1:] = np.random.default_rng(seed).standard_normal((size - first, draws))
    stacked = system.rows.order[places]
    values, alpha = np.empty((size, draws + 1)), np.empty((size, draws + 1))
    values[stacked] = blas.dtrmm(1.0, lower, noise, lower=1)
    alpha[stacked] = blas.dtrsm(1.0, lower, noise, lower=1, trans_a=1)
    inverse = blas.dtrsm(1.0, lower, np.eye(size, order="F"), lower=1, overwrite_b=1)
    whitening, given_alpha = np.empty((size - first, size)), np.zeros(size)
    whitening[:, stacked] = inverse[first:]
    given_alpha[stacked[:first]] = inverse[:first, :first].T @ noise[:first, 0]
    precision, spread = np.empty((size, 1)), np.empty((size, 1))
    precision[stacked, 0] = np.einsum("ij,ij->j", inverse, inverse)
    spread[system.rows.order, 0] = system.noise
    data = slice(0, sum(block.size for block in system.model.data))
    observed, drawn = (
        Sample(alpha[:, columns], values[:, columns], spread, 1.0 / precision, data)
        for columns in (slice(0, 1), slice(1, None))
    )
    return Calibration(observed, drawn, whitening, given_alpha, noise[first:])


def tail_probability(value: float, null: Float[np.ndarray, " B"]) -> float:
    """Return the probability of a value as large as this, from draws of its distribution.

    Within the draws it is their fraction. In the tail it is `q (1 + t/s)^−k`, with `t` the excess over the smallest of
    the `k` largest draws, a fraction `q` of all, and `s` the sum of their own excesses. For an exponential tail this is
    exact for every number of draws, because `s` is itself uncertain; for a lighter one it is too large.

    Examples
    --------
    >>> import numpy as np
    >>> from pilescore.diagnosis.calibration import tail_probability
    >>> null = np.random.default_rng(0).exponential(size=399)
    >>> 0.4 < tail_probability(np.log(2), null) < 0.6, 3e-6 < tail_probability(np.log(1e5), null) < 1e-4
    (True, True)
    """
    if not np.isfinite(null).all() or math.isnan(value):
        return math.nan
    count, beyond = len(null), int(np.sum(null >= value))
    largest = max(2, round(TAIL * count))
    if beyond >= largest:
        return (1 + beyond) / (1 + count)
    ends = np.sort(null)[-largest:]
    # The smallest of the largest draws is the threshold; the other k − 1 exceed it.
    total, share = float(np.sum(ends[1:] - ends[0])), largest / (1 + count)
    if not total > 0:
        return share if value <= ends[0] else 1.0 / (1 + count)
    return share * float(np.exp(-(largest - 1) * np.log1p(max(value - ends[0], 0.0) / total)))
