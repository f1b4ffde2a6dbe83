"""A smooth function through computed log densities, from which the shape of a density is known between its points."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
from jaxtyping import Float
from scipy.linalg import cho_solve, solve_triangular

from ...parallel import threads

LENGTHS = (1.5, 3.0, 6.0)
"""Lengths of the departure from a cubic, in standard deviations."""

SIZES = (0.05, 0.3, 1.0, 3.0)
"""Sizes of this departure, in nats."""

TERMS = (0.01, 0.05, 0.3)
"""Prior variances of the quadratic terms of the departure from the normal density."""

CUBIC = 0.04
"""Those of cubic terms, relative to these."""

LEVEL = 3.0
"""Where linear, quadratic and cubic terms level off, in standard deviations."""

CONSTANT, LINEAR = 100.0, 1.0
"""Prior variances of the constant, in nats², and of the linear terms."""

NOISE = 0.003
"""The rounding of log densities near the peak, in nats."""

FAR_NATS, DEEP_NATS = 5.0, 40.0
"""Further below the peak than the first, log densities matter less and less; at the second they count as equal."""

LOOSENESS = 0.15
"""How quickly they matter less."""

UNSURE_NATS = 1.0
"""Where the function is less certain than this, it is lowered: no mass comes from where nothing was computed."""

CAUTION = 1.0
"""By how many times the excess."""

HOPE = 2.0
"""How many deviations higher it may be, for what is not seen."""


@dataclasses.dataclass(frozen=True, eq=False)
class Surrogate:
    """A Gaussian process through log densities at points `z`, which are in standard deviations.

    Its mean is the normal density with a peak as high as the highest point. The departure from it is a cubic with
    small random coefficients plus a smooth function. Lengths and sizes are those of the highest evidence.
    """

    z: Float[np.ndarray, "n p"]
    top: float
    hyperparameters: tuple[float, float, float]
    """Length, size, and variance of quadratic terms."""
    factor: Float[np.ndarray, "n n"]
    alpha: Float[np.ndarray, " n"]

    def __call__(self, z: Float[np.ndarray, "m p"]) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
        """Return log densities at points, lowered where they are uncertain, and how large they may be.

        Parameters
        ----------
        z
            Points in standard deviations from the mean.
        """
        cross = _Terms.between(z, self.z).covariance(self.hyperparameters)
        squares = np.sum(z**2, axis=1)
        explained = np.sum(solve_triangular(self.factor, cross.T, lower=True) ** 2, axis=0)
        variances = np.maximum(_variances(z, self.hyperparameters) - explained, 0.0)
        deviations, mean = np.sqrt(variances), self.top - 0.5 * squares + cross @ self.alpha
        return mean - CAUTION * np.maximum(deviations - UNSURE_NATS, 0.0), mean + HOPE * deviations

    @property
    def left_out_errors(self) -> Float[np.ndarray, " n"]:
        """Each computed log density minus its prediction from the others."""
        inverse = cho_solve((self.factor, True), np.eye(len(self.z)))
        return np.asarray(self.alpha / inverse.diagonal())


def surrogate(z: Float[np.ndarray, "n p"], values: Float[np.ndarray, " n"]) -> Surrogate:
    """Return the function through log densities; minus infinity counts as very low.

    Parameters
    ----------
    z
        Points in standard deviations from the mean.
    values
        The log densities there.
    """
    top = float(values.max())
    drop = np.minimum(top - values, DEEP_NATS)
    noise = (NOISE + LOOSENESS * np.maximum(drop - FAR_NATS, 0.0)) ** 2
    departure = 0.5 * np.sum(z**2, axis=1) - drop
    terms = _Terms.between(z, z)
    best: tuple[float, Surrogate] | None = None
    with threads(len(z)):
        for hyperparameters in itertools.product(LENGTHS, SIZES, TERMS):
            factor = np.linalg.cholesky(terms.covariance(hyperparameters) + np.diag(noise))
            alpha = cho_solve((factor, True), departure)
            evidence = -0.5 * float(departure @ alpha) - float(np.log(factor.diagonal()).sum())
            if best is None or evidence > best[0]:
                best = evidence, Surrogate(z, top, hyperparameters, factor, alpha)
    assert best is not None
    return best[1]


@dataclasses.dataclass(frozen=True, eq=False)
class _Terms:
    """The parts of a covariance between points that do not depend on its sizes."""

    inner: Float[np.ndarray, "n m"]
    """Inner products of bent coordinates."""
    distances: Float[np.ndarray, "n m"]
    """Squared distances. Those between random points grow with the square root of the dimension, by which they are
    divided."""

    @classmethod
    def between(cls, a: Float[np.ndarray, "n p"], b: Float[np.ndarray, "m p"]) -> _Terms:
        distances = np.sum(a**2, axis=1)[:, None] + np.sum(b**2, axis=1) - 2.0 * a @ b.T
        return cls(_bent(a) @ _bent(b).T, distances / np.sqrt(a.shape[1]))

    def covariance(self, hyperparameters: tuple[float, float, float]) -> Float[np.ndarray, "n m"]:
        length, size, terms = hyperparameters
        return _cubic(self.inner, terms) + size**2 * self.gaussian(length)

    def gaussian(self, length: float) -> Float[np.ndarray, "n m"]:
        if length not in self.gaussians:
            self.gaussians[length] = np.exp(self.distances * (-0.5 / length**2))
        return self.gaussians[length]

    @functools.cached_property
    def gaussians(self) -> dict[float, Float[np.ndarray, "n m"]]:
        """Gaussian covariances by length: the same ones belong to many sizes."""
        return {}


def _cubic(inner: Float[np.ndarray, "*n"], terms: float) -> Float[np.ndarray, "*n"]:
    """Return the covariance of cubics from inner products."""
    return np.asarray(CONSTANT + inner * (LINEAR + terms * inner * (1.0 / 2.0 + CUBIC / 6.0 * inner)))


def _bent(z: Float[np.ndarray, "n p"]) -> Float[np.ndarray, "n p"]:
    """Return coordinates that level off beyond a few deviations: a cubic would grow without limit there."""
    return np.asarray(z / np.sqrt(1.0 + (z / LEVEL) ** 2))


def _variances(z: Float[np.ndarray, "n p"], hyperparameters: tuple[float, float, float]) -> Float[np.ndarray, " n"]:
    """Return the diagonal of the covariance."""
    _, size, terms = hyperparameters
    squares = np.sum(_bent(z) ** 2, axis=1)
    return np.asarray(_cubic(squares, terms) + size**2)
