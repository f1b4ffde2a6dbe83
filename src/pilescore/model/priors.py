"""Priors on hyperparameters: what is known about a coefficient, a length or a noise before the data.

Every prior is a normal distribution of the value or of its logarithm, so its density, slope and curvature are closed
forms. `Model(..., priors={"rate": ps.priors.Normal(0.5, 0.1)})` adds them to the score.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import log_ndtr

from ..errors import as_array, as_positive, require

__all__ = ["LogNormal", "Normal", "Prior", "Smooth"]

LEAST_BETWEEN = 1e-3
"""The least probability of a prior between the bounds of a search: with less one of them is a mistake."""

MOST_CONDITION = 1e10
"""The largest condition number of a covariance of neighbouring elements: its inverse then has at least six digits."""


class Prior(abc.ABC):
    """A prior on one hyperparameter, a number or an array: `t ~ N(m, P⁻¹)`, with `t` the value or its logarithm.

    Densities are those of `t`. The best value is therefore the same whether a search moves in a value or in its
    logarithm. A subclass is a frozen dataclass, which can be hashed.

    Examples
    --------
    >>> import pilescore as ps
    >>> isinstance(ps.priors.LogNormal(0.5, 2.0), ps.priors.Prior)
    True
    """

    logarithmic: bool
    """Whether the logarithm of the value is normal, so that the value is positive."""

    @abc.abstractmethod
    def centre(self, size: int) -> Float[np.ndarray, " n"]:
        """Return the mean `m` of `t`, for a hyperparameter with this number of elements."""

    @abc.abstractmethod
    def precision(self, size: int) -> Float[np.ndarray, "n n"]:
        """Return the matrix `P`, the inverse of the covariance of `t`."""

    def log_density(self, value: Any) -> float:
        """Return the log density of `t` at a value; minus infinity where the value cannot be."""
        t = self._transformed(value)
        if not np.isfinite(t).all():
            return -math.inf
        precision, away = self.precision(t.size), t - self.centre(t.size)
        logdet = float(np.linalg.slogdet(precision)[1])
        return -0.5 * float(away @ precision @ away) + 0.5 * logdet - 0.5 * t.size * math.log(2 * math.pi)

    def log_marginal(self, value: Any, elements: Sequence[int]) -> float:
        """Return the log density of some elements of `t`, whatever the others are."""
        t = self._transformed(value).ravel()
        rows = list(elements)
        covariance = np.linalg.inv(self.precision(t.size))[np.ix_(rows, rows)]
        away = (t - self.centre(t.size))[rows]
        logdet = float(np.linalg.slogdet(covariance)[1])
        fit = float(away @ np.linalg.solve(covariance, away))
        return -0.5 * fit - 0.5 * logdet - 0.5 * len(rows) * math.log(2 * math.pi)

    def log_probability(self, low: Float[np.ndarray, " n"], high: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return the log probability of each element, whatever the others are, to lie between two values."""
        ends = np.asarray(low, dtype=float), np.asarray(high, dtype=float)
        if self.logarithmic:
            with np.errstate(divide="ignore", invalid="ignore"):
                ends = (np.where(ends[0] > 0.0, np.log(ends[0]), -np.inf), np.log(ends[1]))
        deviations = np.sqrt(np.linalg.inv(self.precision(len(low))).diagonal())
        a, b = ((end - self.centre(len(low))) / deviations for end in ends)
        # In the tail on the side of the smaller magnitude, so that both terms do not round to one.
        swap = a > 0.0
        a, b = np.where(swap, -b, a), np.where(swap, -a, b)
        upper, lower = log_ndtr(b), log_ndtr(a)
        return np.asarray(upper + np.log1p(-np.exp(lower - upper)))

    def slope(self, value: Any) -> Float[np.ndarray, "..."]:
        """Return the derivative of `log_density` in the value, in the shape of the value."""
        t = self._transformed(value)
        by_t = -self.precision(t.size) @ (t - self.centre(t.size))
        flat = by_t / np.ravel(value) if self.logarithmic else by_t
        return np.asarray(np.reshape(flat, np.shape(value)))

    def check(self, name: str, shape: tuple[int, ...]) -> None:  # noqa: B027  (nothing to check by default)
        """Raise an `InputError` unless the prior suits a hyperparameter of this shape."""

    def _transformed(self, value: Any) -> Float[np.ndarray, " n"]:
        flat = np.ravel(np.asarray(value, dtype=float))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(flat) if self.logarithmic else flat


def require_prior_between(
    argument: str, prior: Prior, low: Float[np.ndarray, " n"], high: Float[np.ndarray, " n"]
) -> None:
    """Raise an `InputError` if the bounds of a search exclude nearly all that a prior says."""
    masses = np.exp(prior.log_probability(low, high))
    worst = int(np.argmin(masses))
    expected = (
        f"a prior with more than {LEAST_BETWEEN:.1%} of its probability between the bounds, {low[worst]:g} to "
        f"{high[worst]:g}; it has {masses[worst]:.1g}"
    )
    require(bool(masses[worst] > LEAST_BETWEEN), argument, prior, expected)


@dataclasses.dataclass(frozen=True)
class Normal(Prior):
    """A normal prior: the value is `mean ± deviation`.

    If the hyperparameter is positive, the density is not renormalised; use `LogNormal` if zero is less than about two
    deviations away from the mean.

    Parameters
    ----------
    mean, deviation
        One number each, or one for each element of a hyperparameter that is an array.

    Examples
    --------
    >>> import pilescore as ps
    >>> ps.priors.Normal(0.5, 0.1)
    Normal(mean=0.5, deviation=0.1)
    >>> round(ps.priors.Normal(0.5, 0.1).log_density(0.6), 3)  # −½ − log(0.1 √2π)
    0.884
    """

    mean: Any
    deviation: Any

    logarithmic = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", _as_numbers(self.mean, "mean"))
        object.__setattr__(self, "deviation", _as_positive_numbers(self.deviation, "deviation"))

    def centre(self, size: int) -> Float[np.ndarray, " n"]:
        """Return the mean of each element."""
        return np.broadcast_to(self.mean, (size,))

    def precision(self, size: int) -> Float[np.ndarray, "n n"]:
        """Return the inverse covariance, a diagonal matrix."""
        return np.diag(np.broadcast_to(np.power(self.deviation, -2.0), (size,)))

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise an `InputError` if the numbers of elements differ."""
        _check_lengths(self, name, shape, mean=self.mean, deviation=self.deviation)


@dataclasses.dataclass(frozen=True)
class LogNormal(Prior):
    """A log-normal prior of a positive value: it lies within a `factor` of the `median` with probability 68%.

    Parameters
    ----------
    median, factor
        One number each, or one for each element of a hyperparameter that is an array. The factor is above one.

    Examples
    --------
    >>> import pilescore as ps
    >>> prior = ps.priors.LogNormal(0.5, 2.0)
    >>> round(prior.log_density(0.5) - prior.log_density(1.0), 9)  # one deviation of log 2
    0.5
    >>> ps.priors.LogNormal(0.5, 0.9)
    Traceback (most recent call last):
    ...
    pilescore.errors.InputError: factor: expected a number above 1; got 0.9
    """

    median: Any
    factor: Any

    logarithmic = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "median", _as_positive_numbers(self.median, "median"))
        object.__setattr__(self, "factor", _as_positive_numbers(self.factor, "factor"))
        require(bool(np.all(np.asarray(self.factor) > 1.0)), "factor", self.factor, "a number above 1")

    def centre(self, size: int) -> Float[np.ndarray, " n"]:
        """Return the logarithm of the median of each element."""
        return np.broadcast_to(np.log(self.median), (size,))

    def precision(self, size: int) -> Float[np.ndarray, "n n"]:
        """Return the inverse covariance of the logarithms, a diagonal matrix."""
        return np.diag(np.broadcast_to(np.log(self.factor) ** -2.0, (size,)))

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise an `InputError` if the numbers of elements differ."""
        _check_lengths(self, name, shape, median=self.median, factor=self.factor)


@dataclasses.dataclass(frozen=True)
class Smooth(Prior):
    """A prior of an array whose neighbouring elements are alike, such as the coefficients of a field over an index.

    The elements, or their logarithms, are a Gaussian process over the index with a Matérn-3/2 covariance:
    `deviation² (1 + √3 r) exp(−√3 r)`, with `r` the distance between indices divided by `length`.

    Parameters
    ----------
    mean, deviation
        The mean and standard deviation of each element; of its logarithm, if `logarithmic`.
    length
        The correlation length, in steps of the index.
    logarithmic
        Whether the logarithms are normal, so that all elements are positive.

    Examples
    --------
    >>> import pilescore as ps
    >>> field = ps.priors.Smooth(mean=1.0, deviation=0.5, length=3.0)
    >>> field.log_density([1.0, 1.2, 1.4]) > field.log_density([1.0, 1.4, 1.2])
    True
    """

    mean: Any
    deviation: Any
    length: Any
    logarithmic: bool = False

    def __post_init__(self) -> None:
        require(np.ndim(as_array(self.mean, "mean")) == 0, "mean", self.mean, "one number")
        object.__setattr__(self, "mean", float(self.mean))
        object.__setattr__(self, "deviation", float(as_positive(self.deviation, "deviation")))
        object.__setattr__(self, "length", float(as_positive(self.length, "length")))
        require(isinstance(self.logarithmic, bool), "logarithmic", self.logarithmic, "True or False")

    def centre(self, size: int) -> Float[np.ndarray, " n"]:
        """Return the mean of each element or logarithm."""
        return np.full(size, self.mean)

    def precision(self, size: int) -> Float[np.ndarray, "n n"]:
        """Return the inverse covariance."""
        return np.asarray(np.linalg.inv(self._correlation(size)) / self.deviation**2)

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise an `InputError` unless the hyperparameter is an array with one index, and the length not too long."""
        require(len(shape) == 1, f"priors[{name!r}]", self, f"Normal or LogNormal: {name!r} has shape {shape}")
        precise = bool(np.linalg.cond(self._correlation(*shape)) < MOST_CONDITION)
        expected = f"a shorter one: rounding makes {shape[0]} elements the same"
        require(precise, f"priors[{name!r}].length", self.length, expected)

    def _correlation(self, size: int) -> Float[np.ndarray, "n n"]:
        index = np.arange(size)
        r = math.sqrt(3.0) * np.abs(index[:, None] - index) / self.length
        return np.asarray((1.0 + r) * np.exp(-r))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class NamedPriors(Mapping[str, Prior]):
    """The priors of a model by the names of hyperparameters. Unlike a dictionary it can be hashed."""

    entries: tuple[tuple[str, Prior], ...] = ()

    def __getitem__(self, name: str) -> Prior:
        return dict(self.entries)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __hash__(self) -> int:
        return hash(frozenset(self.entries))  # equal mappings may have another order

    def __repr__(self) -> str:
        return repr(dict(self.entries))


def as_priors(priors: Any) -> NamedPriors:
    """Return priors by name from a mapping."""
    if isinstance(priors, NamedPriors):
        return priors
    require(isinstance(priors, Mapping), "priors", priors, "a mapping of the names of hyperparameters to ps.priors")
    for name, prior in priors.items():
        require(isinstance(name, str), "priors", name, "the names of hyperparameters")
        expected = "a prior such as ps.priors.Normal(0.5, 0.1)"
        require(isinstance(prior, Prior), f"priors[{name!r}]", prior, expected)
    return NamedPriors(tuple(priors.items()))


def _as_numbers(value: Any, argument: str) -> float | tuple[float, ...]:
    """Return one number, or a tuple of numbers, which can be hashed."""
    array = as_array(value, argument)
    require(
        array.ndim <= 1 and bool(np.isfinite(array).all()), argument, value, "a finite number, or a sequence of them"
    )
    return float(array) if array.ndim == 0 else tuple(array.tolist())


def _as_positive_numbers(value: Any, argument: str) -> float | tuple[float, ...]:
    numbers = _as_numbers(value, argument)
    require(bool(np.all(np.asarray(numbers) > 0.0)), argument, value, "a positive number, or a sequence of them")
    return numbers


def _check_lengths(prior: Prior, name: str, shape: tuple[int, ...], **parts: Any) -> None:
    size = math.prod(shape)
    for part, numbers in parts.items():
        expected = f"one number, or {size}: {name!r} has shape {shape}"
        require(np.ndim(numbers) == 0 or len(numbers) == size, f"priors[{name!r}].{part}", numbers, expected)
