"""Finite bases with prior variances, `k(x, y) ≈ Σ_j λ_j φ_j(x) φ_j(y)`, and operators applied to them."""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..covariance import Indices
from ..equations import partial_derivative
from ..errors import as_array, as_count, call, check_coordinates, require
from ..kernels import Kernel, draw_frequencies, is_separately_even, log_spectral_density

BasisState: TypeAlias = tuple[Array, ...]
"""Arrays of a basis that depend on the kernel's hyperparameters."""

BOX_SLACK = 1e-9
"""Distance by which rounding may place points outside a box, as a fraction of its side."""


class Basis(abc.ABC):
    """Functions `φ_j` with prior variances `λ_j`. Subclasses define `rank`, `state` and `rows`.

    Examples
    --------
    The monomials `1, x, …, x^degree` on a line, and their derivatives:

    >>> import dataclasses, math, jax.numpy as jnp, pilescore as ps
    >>> @dataclasses.dataclass(frozen=True)
    ... class Powers(ps.solvers.Basis):
    ...     degree: int
    ...     @property
    ...     def identity(self):
    ...         return repr(self)
    ...     def rank(self, kernel, dimension):
    ...         return self.degree + 1
    ...     def state(self, kernel, dimension):
    ...         return ()  # nothing depends on the kernel
    ...     def rows(self, state, indices, points, table):
    ...         def derivative(j, k):
    ...             return math.perm(j, k) * points[0] ** max(j - k, 0)
    ...         def column(j):
    ...             return sum(c * sum(derivative(j, k) for (k,) in group) for c, group in zip(table, indices))
    ...         return jnp.stack([column(j) for j in range(self.degree + 1)], axis=1)
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> model = ps.Model(
    ...     kernel=ps.RBF(1.0),
    ...     data=ps.observe(ps.identity, values=[1.0], at=[0.0]),
    ...     physics=ps.impose(dx - 2 * ps.identity, 0.0, on=line.interior(ps.GaussLegendre(8))),
    ...     gamma=1e-8,
    ...     rho=1e-8,
    ... )
    >>> ps.posterior(model.replace(solver=ps.solvers.Features(Powers(6)))).mean([1.0]).round(2)  # e² = 7.389
    array([7.39])
    """

    @property
    @abc.abstractmethod
    def identity(self) -> str:
        """A string that determines the features, apart from the kernel."""

    @abc.abstractmethod
    def rank(self, kernel: Kernel, dimension: int) -> int:
        """Return the number of functions; raise an `InputError` if the kernel or the points do not suit the basis."""

    @abc.abstractmethod
    def state(self, kernel: Kernel, dimension: int) -> BasisState:
        """Return the arrays that depend on the kernel's hyperparameters; the function must be differentiable in JAX."""

    @abc.abstractmethod
    def rows(
        self, state: BasisState, indices: Indices, points: Float[Array, "d q"], table: Float[Array, "groups q"]
    ) -> Float[Array, "q r"]:
        """Return `Σ_α c_α ∂^α (√λ_j φ_j)` at points. Multi-indices of a group share their coefficients."""

    def check_points(self, points: Float[np.ndarray, "d q"]) -> None:
        """Raise an `InputError` if the basis does not cover these points."""
        return


@dataclasses.dataclass(frozen=True)
class _Boxed(Basis):
    """A tensor-product basis on a box, with `count` functions along each axis."""

    low: Any
    high: Any
    count: Any
    padding: float = 2.0

    def __post_init__(self) -> None:
        name = type(self).__name__
        low, high = (np.atleast_1d(as_array(getattr(self, side), f"{name} {side}")) for side in ("low", "high"))
        require(low.ndim == 1 and low.size > 0, f"{name} low", low, "a number for each coordinate")
        require(high.shape == low.shape, f"{name} high", high, f"{low.size} numbers, as many as low has")
        require(bool(np.all(high > low)), f"{name} high", high.tolist(), f"more than low, {low.tolist()}")
        counts = self.count if isinstance(self.count, tuple | list | np.ndarray) else [self.count] * low.size
        require(len(counts) == low.size, f"{name} count", self.count, f"a number, or {low.size} numbers, one per axis")
        padding = as_array(self.padding, f"{name} padding")
        require(padding.ndim == 0 and float(padding) > 1.0, f"{name} padding", self.padding, "a number above 1")
        object.__setattr__(self, "low", tuple(low.tolist()))
        object.__setattr__(self, "high", tuple(high.tolist()))
        object.__setattr__(self, "count", tuple(as_count(count, f"{name} count") for count in counts))
        object.__setattr__(self, "padding", float(padding))

    @property
    def identity(self) -> str:
        """A string that determines the features."""
        return repr(self)

    @property
    def lengths(self) -> Float[np.ndarray, " d"]:
        """Side lengths of the extended box."""
        return self.padding * (np.array(self.high) - np.array(self.low))

    def check_points(self, points: Float[np.ndarray, "d q"]) -> None:
        """Require that all points lie in the box."""
        name = type(self).__name__
        low, high = np.array(self.low)[:, None], np.array(self.high)[:, None]
        slack = BOX_SLACK * (high - low)
        outside = ~np.all((points >= low - slack) & (points <= high + slack), axis=0)
        if outside.any():
            point = points[:, int(np.argmax(outside))].tolist()
            box = f"low = {list(self.low)} and high = {list(self.high)}"
            require(False, f"{name} low, high", box, f"a box that contains all points, including {point}")

    def _check(self, kernel: Kernel, dimension: int) -> None:
        have, expected = (f"a box in {count} dimensions" for count in (len(self.low), dimension))
        require(have == expected, f"{type(self).__name__} low, high", have, expected)
        log_spectral_density(kernel, jnp.zeros((1, dimension)))  # raises if the kernel has none


@dataclasses.dataclass(frozen=True)
class FourierBasis(_Boxed):
    """Sines and cosines, periodic on an extended box, with variances from the kernel's spectral density.

    The prior is exactly that of the periodically repeated kernel, without frequencies above `2π count/period`. The
    basis supports any stationary kernel with a spectral density, including rotated ones.

    Parameters
    ----------
    low, high
        Corners of a box that contains all points, including prediction points.
    count
        Number of positive frequencies along each axis, as one number or one per axis: `Π (2 count + 1)` functions.
    padding
        Period divided by the side of the box. Periodic images are `padding − 1` sides away, which should be several
        bandwidths.

    Examples
    --------
    >>> import pilescore as ps
    >>> ps.solvers.FourierBasis(low=[0.0, -1.0], high=[1.0, 1.0], count=[10, 20])
    FourierBasis(low=(0.0, -1.0), high=(1.0, 1.0), count=(10, 20), padding=2.0)
    """

    def rank(self, kernel: Kernel, dimension: int) -> int:
        """Return `Π (2 count + 1)`."""
        self._check(kernel, dimension)
        return math.prod(2 * each + 1 for each in self.count)

    def state(self, kernel: Kernel, dimension: int) -> BasisState:
        """Return the square roots of the variances of the frequencies in one half space, zero first."""
        omega = jnp.asarray(self.frequencies)
        twice = jnp.where(jnp.arange(len(omega)) == 0, 0.0, math.log(2.0))
        volume = float(np.log(self.lengths).sum())
        return (jnp.exp(0.5 * (log_spectral_density(kernel, omega) + twice - volume)),)

    @functools.cached_property
    def frequencies(self) -> Float[np.ndarray, "m d"]:
        """Angular frequencies of one half space: zero, then vectors whose first nonzero entry is positive."""
        # `ω` and `−ω` give the same cosine and, up to sign, the same sine: half of the symmetric grid suffices.
        grid = np.stack(np.meshgrid(*(np.arange(-c, c + 1) for c in self.count), indexing="ij"), axis=-1)
        half = grid.reshape(-1, len(self.count))
        return 2 * np.pi * half[len(half) // 2 :] / self.lengths

    def rows(
        self, state: BasisState, indices: Indices, points: Float[Array, "d q"], table: Float[Array, "groups q"]
    ) -> Float[Array, "q r"]:
        """Return the cosines, then the sines of nonzero frequencies."""
        middle = 0.5 * (np.array(self.low) + np.array(self.high))[:, None]
        # Phases relative to the centre stay small: cosines of high frequencies keep their digits far from the origin.
        return _waves(jnp.asarray(self.frequencies), state[0], indices, points - middle, table, 1)


@dataclasses.dataclass(frozen=True)
class HilbertBasis(_Boxed):
    """Sines that vanish on the boundary of an extended box, with variances from the kernel's spectral density.

    The functions are eigenfunctions of the Laplacian, and `λ_j = S(√μ_j)`, where `μ_j` are the eigenvalues along each
    axis. The spectral density must be even in each coordinate, which excludes rotated kernels.

    Parameters
    ----------
    low, high
        Corners of a box that contains all points, including prediction points.
    count
        Number of sines along each axis, as one number or one per axis: `Π count` functions.
    padding
        Side of the extended box divided by the side of the box, split evenly between both ends. The error consists of
        reflections of the kernel, `padding − 1` sides away, which should be several bandwidths.

    Examples
    --------
    >>> import pilescore as ps
    >>> ps.solvers.HilbertBasis(low=0.0, high=1.0, count=32, padding=1.5)
    HilbertBasis(low=(0.0,), high=(1.0,), count=(32,), padding=1.5)
    """

    def rank(self, kernel: Kernel, dimension: int) -> int:
        """Return `Π count`."""
        self._check(kernel, dimension)
        expected = "one whose spectral density is even in each coordinate (not rotated); use ps.solvers.FourierBasis"
        require(is_separately_even(kernel, dimension), "kernel of a HilbertBasis", kernel, expected)
        return math.prod(self.count)

    @property
    def _along(self) -> list[Float[np.ndarray, " m"]]:
        """Frequencies along each axis."""
        return [np.pi * np.arange(1, c + 1) / side for c, side in zip(self.count, self.lengths, strict=True)]

    def state(self, kernel: Kernel, dimension: int) -> BasisState:
        """Return the square roots of the variances."""
        grid = np.stack(np.meshgrid(*self._along, indexing="ij"), axis=-1).reshape(-1, dimension)
        return (jnp.exp(0.5 * log_spectral_density(kernel, jnp.asarray(grid))),)

    def rows(
        self, state: BasisState, indices: Indices, points: Float[Array, "d q"], table: Float[Array, "groups q"]
    ) -> Float[Array, "q r"]:
        """Return the products of sines along the axes."""
        middle = 0.5 * (np.array(self.low) + np.array(self.high))
        start = middle - 0.5 * self.lengths
        cache: dict[tuple[int, int], Array] = {}

        def along(axis: int, order: int) -> Array:
            if (axis, order) not in cache:
                frequency = self._along[axis]
                phase = (points[axis] - start[axis])[:, None] * jnp.asarray(frequency)
                scale = math.sqrt(2.0 / self.lengths[axis]) * frequency**order
                cache[axis, order] = _sine(phase, order) * scale
            return cache[axis, order]

        total = jnp.zeros((points.shape[1], 1))
        for group, coefficients in zip(indices, table, strict=True):
            for alpha in group:
                product = coefficients[:, None]
                for axis, order in enumerate(alpha):
                    product = (product[:, :, None] * along(axis, order)[:, None, :]).reshape(len(product), -1)
                total = total + product
        return total * state[0]


@dataclasses.dataclass(frozen=True)
class RandomFourierBasis(Basis):
    """Sines and cosines of random frequencies from the kernel's spectral density; their expectation is the kernel.

    The error decreases as `1/√count` in any dimension. The seed fixes the draws, which depend smoothly on the kernel's
    hyperparameters.

    Parameters
    ----------
    count
        Number of frequencies: `2 count` functions. The terms of a sum of kernels share them.
    seed
        Seed of the draws.

    Examples
    --------
    >>> import pilescore as ps
    >>> ps.solvers.RandomFourierBasis(count=500, seed=0)
    RandomFourierBasis(count=500, seed=0)
    """

    count: int
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", as_count(self.count, "RandomFourierBasis count"))
        object.__setattr__(self, "seed", as_count(self.seed, "RandomFourierBasis seed", least=0))

    @property
    def identity(self) -> str:
        """A string that determines the features."""
        return repr(self)

    def rank(self, kernel: Kernel, dimension: int) -> int:
        """Return `2 count`."""
        return 2 * self.count

    def state(self, kernel: Kernel, dimension: int) -> BasisState:
        """Return the frequencies and the square roots of the variances."""
        omega, variance = draw_frequencies(kernel, dimension, self.count, np.random.default_rng(self.seed))
        return omega, jnp.sqrt(variance)

    def rows(
        self, state: BasisState, indices: Indices, points: Float[Array, "d q"], table: Float[Array, "groups q"]
    ) -> Float[Array, "q r"]:
        """Return the cosines, then the sines."""
        return _waves(state[0], state[1], indices, points, table, 0)


@dataclasses.dataclass(frozen=True, eq=False)
class UserBasis(Basis):
    """User-defined functions, differentiated by forward-mode autodiff: Bayesian linear regression.

    The model's kernel is used for comparison only.

    Parameters
    ----------
    function
        A JAX function from a point of shape (d,) to the values of all functions, of shape (r,).
    variances
        Prior variances `λ` of the coefficients: positive, of shape (r,) or one number. The default is one.

    Examples
    --------
    >>> import jax.numpy as jnp, pilescore as ps
    >>> cubic = ps.solvers.UserBasis(lambda p: jnp.array([1.0, p[0], p[0] ** 2, p[0] ** 3]), variances=10.0)
    >>> cubic.rank(ps.RBF(1.0), dimension=1)
    4
    """

    function: Callable[[Any], Any]
    variances: Any = None

    def __post_init__(self) -> None:
        require(callable(self.function), "UserBasis function", self.function, "a function of one point")
        given = as_array(1.0 if self.variances is None else self.variances, "UserBasis variances")
        expected = "positive numbers, one or as many as there are functions"
        require(given.ndim <= 1 and bool(np.all(given > 0)), "UserBasis variances", self.variances, expected)
        object.__setattr__(self, "variances", given)

    @functools.cached_property
    def identity(self) -> str:
        """A string that determines the features: the variances, and the function's jaxpr in up to six dimensions."""
        digest = hashlib.sha256(self.variances.tobytes())
        for dimension in range(1, 7):
            try:
                jaxpr = jax.make_jaxpr(self.function)(jnp.zeros(dimension))
            except Exception:  # the function does not accept this dimension
                digest.update(b"none")
                continue
            digest.update(str(jaxpr).encode())
            for constant in jaxpr.consts:
                digest.update(np.asarray(constant).tobytes())
        return f"UserBasis({digest.hexdigest()})"

    def rank(self, kernel: Kernel, dimension: int) -> int:
        """Return the number of functions."""
        where = "UserBasis function"
        check_coordinates(self.function, np.zeros(dimension), where)
        values = jax.eval_shape(lambda point: call(self.function, point, where), jnp.zeros(dimension))
        shape = getattr(values, "shape", None)
        expected = "a function from a point of shape (d,) to an array of shape (r,)"
        require(shape is not None and len(shape) == 1 and shape[0] > 0, where, values, expected)
        count = int(values.shape[0])
        good = self.variances.ndim == 0 or len(self.variances) == count
        require(good, "UserBasis variances", self.variances, f"one number, or {count} numbers, one per function")
        return count

    def state(self, kernel: Kernel, dimension: int) -> BasisState:
        """Return an empty state: the basis does not depend on the kernel."""
        return ()

    def rows(
        self, state: BasisState, indices: Indices, points: Float[Array, "d q"], table: Float[Array, "groups q"]
    ) -> Float[Array, "q r"]:
        """Return the derivatives of the functions by autodiff."""

        def one(point: Array, coefficients: Array) -> Array:
            sums = [sum(partial_derivative(self.function, alpha)(point) for alpha in group) for group in indices]
            return coefficients @ jnp.stack(sums)

        return jax.vmap(one, (1, 1))(points, table) * np.sqrt(self.variances)


def _waves(
    omega: Float[Array, "m d"],
    amplitude: Float[Array, " m"],
    indices: Indices,
    points: Float[Array, "d q"],
    table: Float[Array, "groups q"],
    first_sine: int,
) -> Float[Array, "q r"]:
    """Return `Σ_α c_α ∂^α` of `a cos(ω·x)` and of `a sin(ω·x)`, the latter from frequency `first_sine` on.

    `∂^α cos(ω·x) = ω^α cos(ω·x + |α|π/2)`: even orders return cosines, odd orders sines, with alternating signs.
    """
    even, odd = [], []
    for group in indices:
        parts: list[Array | float] = [0.0, 0.0]
        for alpha in group:
            power = jnp.ones(len(omega))
            for axis, order in enumerate(alpha):
                power = power * omega[:, axis] ** order if order else power
            parts[sum(alpha) % 2] += -power if sum(alpha) % 4 >= 2 else power
        even.append(jnp.broadcast_to(parts[0], len(omega)))
        odd.append(jnp.broadcast_to(parts[1], len(omega)))
    phase = points.T @ omega.T
    cosine, sine = jnp.cos(phase), jnp.sin(phase)
    kept, turned = (table.T @ (amplitude * jnp.stack(each)) for each in (even, odd))
    return jnp.concatenate([kept * cosine - turned * sine, (kept * sine + turned * cosine)[:, first_sine:]], axis=1)


def _sine(phase: Array, order: int) -> Array:
    """Return the derivative of the sine of a given order."""
    value = jnp.cos(phase) if order % 2 else jnp.sin(phase)
    return -value if order % 4 >= 2 else value
