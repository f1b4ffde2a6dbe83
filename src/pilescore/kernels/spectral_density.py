"""Spectral densities of stationary kernels, and random frequencies drawn from them."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from ..errors import InputError, require
from .algebra import LinearMap, On, Product, Scaled, Sum
from .base import Kernel
from .stationary import RBF, AnisotropicRBF, Cosine, FullCovarianceRBF, Matern, Radial, ShearedRBF

GAUSSIAN = (RBF, AnisotropicRBF, ShearedRBF, FullCovarianceRBF)

KNOWN = (
    "RBF, AnisotropicRBF, FullCovarianceRBF and Matern kernels, also times a Cosine; their sums and multiples; and "
    "products of such kernels over disjoint groups of coordinates (k.on(…)) that cover all coordinates"
)


def spectral_density(kernel: Kernel, omega: Any) -> Float[Array, " m"]:
    """Return `S(ω) = ∫ κ(δ) e^{−iω·δ} dδ` of a stationary kernel `k(x, y) = κ(x − y)`.

    Parameters
    ----------
    kernel
        The kernel; the result is differentiable in its hyperparameters.
    omega
        Angular frequencies `ω`, of shape (m, d).

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> from pilescore.kernels.spectral_density import spectral_density
    >>> bool(np.isclose(spectral_density(ps.RBF(0.5), [[0.0]])[0], 0.5 * np.sqrt(2 * np.pi)))
    True
    """
    return jnp.exp(log_spectral_density(kernel, jnp.asarray(omega, dtype=jnp.float64)))


def log_spectral_density(kernel: Kernel, omega: Float[Array, "m d"]) -> Float[Array, " m"]:
    """Return `log S(ω)`, which stays finite and differentiable where `S` underflows."""
    kernel.check_points(np.empty((0, omega.shape[1])))
    return _log_density(kernel, omega)


def _log_density(kernel: Kernel, omega: Float[Array, "m d"]) -> Float[Array, " m"]:
    d = omega.shape[1]
    if isinstance(kernel, (*GAUSSIAN, Matern)):
        root = _root(kernel, d)
        square = jnp.sum(solve_triangular(root, omega.T, lower=True) ** 2, axis=0)
        volume = jnp.sum(jnp.log(jnp.diagonal(root)))
        if not isinstance(kernel, Matern):
            return 0.5 * d * math.log(2 * math.pi) - volume - 0.5 * square
        nu = kernel.nu
        constant = 0.5 * d * math.log(4 * math.pi) + math.lgamma(nu + 0.5 * d) - math.lgamma(nu) + nu * math.log(2 * nu)
        return constant - volume - (nu + 0.5 * d) * jnp.log(2 * nu + square)
    if isinstance(kernel, Scaled):
        return jnp.log(kernel.variance) + _log_density(kernel.kernel, omega)
    if isinstance(kernel, Sum):
        return functools.reduce(jnp.logaddexp, [_log_density(part, omega) for part in kernel.parts])
    if isinstance(kernel, Product):
        waves = [part for part in kernel.parts if isinstance(part, Cosine)]
        rest: list[Any] = [part for part in kernel.parts if not isinstance(part, Cosine)]
        if waves and rest:  # a cosine shifts the density of the rest by ±2πf
            left = Product((*waves[1:], *rest)) if len(waves) + len(rest) > 2 else rest[0]
            shift = 2 * jnp.pi * waves[0].frequency
            return jnp.logaddexp(_log_density(left, omega - shift), _log_density(left, omega + shift)) - math.log(2.0)
        if _is_split(rest, d):
            return functools.reduce(jnp.add, [_log_density(part.kernel, omega[:, part.axes]) for part in rest])
    if isinstance(kernel, On) and _is_split([kernel], d):
        return _log_density(kernel.kernel, omega[:, kernel.axes])
    raise _unknown(kernel, KNOWN)


def is_separately_even(kernel: Kernel, dimension: int) -> bool:
    """Whether the kernel's structure makes its density even in each coordinate separately; `S(−ω) = S(ω)` always."""
    if dimension == 1:
        return True
    if isinstance(kernel, Scaled):
        return is_separately_even(kernel.kernel, dimension)
    if isinstance(kernel, Sum | Product):
        return all(is_separately_even(part, dimension) for part in kernel.parts)
    if isinstance(kernel, On):
        return is_separately_even(kernel.kernel, len(kernel.axes))
    return isinstance(kernel, Radial) and _is_diagonal(kernel, dimension)


def draw_frequencies(
    kernel: Kernel, dimension: int, count: int, rng: np.random.Generator
) -> tuple[Float[Array, "m d"], Float[Array, " m"]]:
    """Draw frequencies `ω_j` and variances `v_j` such that the mean of `Σ_j v_j cos(ω_j·δ)` is `κ(δ)`.

    The random numbers do not depend on the hyperparameters, and the frequencies are differentiable in them. Gaussian
    kernels use `ω = √M z` with `z` normal; Matérn kernels multiply this by `√(2ν/u)` with `u` from a χ² distribution.
    """
    equal = jnp.full(count, 1.0 / count)
    if isinstance(kernel, (*GAUSSIAN, Matern)):
        omega = jnp.asarray(rng.standard_normal((count, dimension))) @ _root(kernel, dimension).T
        if isinstance(kernel, Matern):
            omega = omega * np.sqrt(2 * kernel.nu / rng.chisquare(2 * kernel.nu, count))[:, None]
        return omega, equal
    if isinstance(kernel, Cosine):
        return rng.choice([-1.0, 1.0], (count, 1)) * (2 * jnp.pi * kernel.frequency), equal
    if isinstance(kernel, Scaled):
        omega, variance = draw_frequencies(kernel.kernel, dimension, count, rng)
        return omega, kernel.variance * variance
    if isinstance(kernel, Sum):
        sizes = [len(part) for part in np.array_split(np.arange(count), len(kernel.parts))]
        require(sizes[-1] > 0, "count", count, f"at least {len(sizes)}, one for each kernel of the sum")
        drawn = [draw_frequencies(part, dimension, n, rng) for part, n in zip(kernel.parts, sizes, strict=True)]
        return jnp.concatenate([omega for omega, _ in drawn]), jnp.concatenate([variance for _, variance in drawn])
    if isinstance(kernel, Product):  # a frequency of a product is a sum of independent frequencies of its parts
        omega, variance = draw_frequencies(kernel.parts[0], dimension, count, rng)
        for part in kernel.parts[1:]:
            other, factor = draw_frequencies(part, dimension, count, rng)
            paired = rng.permutation(count)
            omega, variance = omega + other[paired], variance * (count * factor[paired])
        return omega, variance
    if isinstance(kernel, On):
        omega, variance = draw_frequencies(kernel.kernel, len(kernel.axes), count, rng)
        return jnp.zeros((count, dimension)).at[:, jnp.array(kernel.axes)].set(omega), variance
    if isinstance(kernel, LinearMap):
        omega, variance = draw_frequencies(kernel.kernel, kernel.matrix.shape[0], count, rng)
        return omega @ kernel.matrix, variance
    raise _unknown(
        kernel, "RBF, AnisotropicRBF, ShearedRBF, FullCovarianceRBF, Matern and Cosine kernels and their combinations"
    )


def _root(kernel: Radial, dimension: int) -> Float[Array, "d d"]:
    """Return the lower triangular Cholesky factor of the metric."""
    rows: Any = kernel.metric(dimension)
    if _is_diagonal(kernel, dimension):
        return jnp.diag(jnp.sqrt(jnp.stack([rows[i][i] for i in range(dimension)])))
    return jnp.linalg.cholesky(jnp.stack([jnp.stack(row) for row in rows]))


def _is_diagonal(kernel: Radial, dimension: int) -> bool:
    rows = kernel.metric(dimension)
    return all(rows[i][k] is None for i in range(dimension) for k in range(dimension) if i != k)


def _is_split(parts: list[Any], dimension: int) -> bool:
    """Whether each coordinate belongs to exactly one of the kernels `k.on(…)`."""
    axes = [axis for part in parts if isinstance(part, On) for axis in part.axes]
    return all(isinstance(part, On) for part in parts) and sorted(axes) == list(range(dimension))


def _unknown(kernel: Kernel, known: str) -> InputError:
    return InputError(
        f"kernel: expected a kernel with a known spectral density: {known}; got {kernel!r}. Use "
        "ps.solvers.UserBasis, or a solver that works with any kernel"
    )
