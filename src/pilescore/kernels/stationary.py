"""Stationary kernels: functions of the difference `δ = x − y`, with all derivatives that exist."""

from __future__ import annotations

import abc
import math
from typing import Any, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..equations import MultiIndex, raised
from ..errors import InputError, as_array, require
from .base import (
    Hyperparameter,
    Kernel,
    Point,
    Positive,
    Scalar,
    hyperparameter,
    real,
    require_coordinates,
    require_supported,
    total,
)

Metric: TypeAlias = tuple[tuple[Scalar | None, ...], ...]
"""The rows of the symmetric matrix `M` in `q = ½ δᵀMδ`; None stands for an entry that is always zero."""


class Stationary(Kernel):
    """A kernel `k(x, y) = κ(δ)`, `δ = x − y`, given by the derivatives of `κ`."""

    @abc.abstractmethod
    def difference_derivative(self, gamma: MultiIndex, delta: tuple[Scalar, ...]) -> Scalar:
        """Return `∂^γ κ(δ)`."""

    def derivative(self, alpha: MultiIndex, beta: MultiIndex, x: Point, y: Point) -> Scalar:
        """Return `∂₁^α ∂₂^β k(x, y) = (−1)^|β| ∂^{α+β} κ(x − y)`."""
        require_supported(self, alpha, beta)
        delta = tuple(a - b for a, b in zip(x, y, strict=True))
        value = self.difference_derivative(tuple(a + b for a, b in zip(alpha, beta, strict=True)), delta)
        return -value if sum(beta) % 2 else value


class Radial(Stationary):
    """A kernel `κ(δ) = φ(q)`, `q = ½ δᵀMδ`, given by its profile `φ` and its metric `M`.

    One recursion gives every derivative, exact at `δ = 0`: with `T(0, j) = φ⁽ʲ⁾(q)`,
    `T(α + e_i, j) = (Mδ)_i T(α, j+1) + Σ_k α_k M_ik T(α − e_k, j+1)`, and `∂^α κ = T(α, 0)`.
    """

    @property
    def exponential(self) -> bool:
        """Whether `φ' = −φ`; then every `T(α, j)` is `±T(α, 0)`."""
        return False

    @abc.abstractmethod
    def profile(self, q: Scalar, order: int) -> Scalar:
        """Return `φ⁽ʲ⁾(q)`; a singularity at `q = 0` is replaced by zero, as its factor vanishes faster."""

    @abc.abstractmethod
    def metric(self, dimension: int) -> Metric:
        """Return `M`."""

    def distances(self, x: Float[np.ndarray, "n d"], y: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "n m"]:
        """Return `√(δᵀMδ)`."""
        rows = self.metric(x.shape[1])
        metric = np.array([[0.0 if entry is None else float(entry) for entry in row] for row in rows])
        # By a square root of M: expanding δᵀMδ would cancel where a shear is large.
        values, vectors = np.linalg.eigh(metric)
        root = vectors * np.sqrt(np.maximum(values, 0.0))  # rounding can make an eigenvalue negative
        return np.linalg.norm((x[:, None, :] - y[None, :, :]) @ root, axis=-1)

    def difference_derivative(self, gamma: MultiIndex, delta: tuple[Scalar, ...]) -> Scalar:
        """Return `∂^γ κ(δ)` by the recursion."""
        d = len(delta)
        M = self.metric(d)
        gradient = [total([0.0 if M[i][k] is None else M[i][k] * delta[k] for k in range(d)]) for i in range(d)]
        q = 0.5 * total([gradient[i] * delta[i] for i in range(d)])
        cache: dict[tuple[MultiIndex, int], Scalar] = {}

        def T(alpha: MultiIndex, j: int) -> Scalar:
            if self.exponential and j:
                return -T(alpha, j - 1)
            if (alpha, j) not in cache:
                if not any(alpha):
                    cache[alpha, j] = self.profile(q, j)
                else:
                    i = max(axis for axis in range(d) if alpha[axis])
                    rest = raised(alpha, i, -1)
                    terms = [gradient[i] * T(rest, j + 1)]
                    for k in range(d):
                        entry = M[i][k]
                        if rest[k] and entry is not None:
                            terms.append(rest[k] * entry * T(raised(rest, k, -1), j + 1))
                    cache[alpha, j] = total(terms)
            return cache[alpha, j]

        return T(gamma, 0)


def _diagonal_metric(bandwidth: Float[Array, "..."], dimension: int) -> Metric:
    precision = 1.0 / bandwidth**2
    entries = [precision] * dimension if precision.ndim == 0 else [precision[i] for i in range(dimension)]
    return tuple(tuple(entries[i] if i == k else None for k in range(dimension)) for i in range(dimension))


def _check_vector(owner: Kernel, field: str, vector: Float[Array, "..."], points: np.ndarray) -> None:
    dimension = points.shape[1]
    if vector.ndim and vector.shape != (dimension,):
        raise InputError(
            f"{type(owner).__name__}: {field} has {vector.shape[0]} entries, one for each coordinate, "
            f"but the points have {dimension} coordinates"
        )


class RBF(Radial):
    """The Gaussian kernel `exp(−½ Σ_i δ_i² / h_i²)`.

    Parameters
    ----------
    bandwidth
        The lengths `h`: one positive number, or one for each coordinate.

    Examples
    --------
    >>> import pilescore as ps
    >>> kernel = ps.RBF(bandwidth=0.5)
    >>> float(kernel.derivative((2, 0), (0, 0), (0.0, 0.0), (0.0, 0.0)))
    -4.0
    """

    bandwidth: Hyperparameter = hyperparameter("length", "RBF bandwidth", default=1.0)

    @property
    def exponential(self) -> bool:
        """True."""
        return True

    @property
    def smoothness(self) -> float | int:
        """Infinite."""
        return math.inf

    def profile(self, q: Scalar, order: int) -> Scalar:
        """Return `(−1)ʲ e^{−q}`."""
        value = jnp.exp(-q)
        return -value if order % 2 else value

    def metric(self, dimension: int) -> Metric:
        """Return `diag(h⁻²)`."""
        return _diagonal_metric(self.bandwidth, dimension)

    def factors(self, dimension: int) -> tuple[Kernel, ...] | None:
        """Return one Gaussian kernel for each bandwidth."""
        return tuple(
            eqx.tree_at(lambda k: k.bandwidth, self, _entry(self.bandwidth, axis)) for axis in range(dimension)
        )

    def check_points(self, points: Float[np.ndarray, "n d"]) -> None:
        """Check the length of a vector of bandwidths."""
        _check_vector(self, "bandwidth", self.bandwidth, points)


class AnisotropicRBF(Radial):
    """The rotated and stretched Gaussian kernel in two dimensions, `exp(−δᵀMδ / 2h²)`.

    `M = Rot(θ) diag(s², s⁻²) Rot(θ)ᵀ`: lengths are `h/s` along the direction `θ` and `h·s` across it.
    The kernel is π-periodic in θ and invariant under `(θ, s) → (θ + π/2, 1/s)`.

    Parameters
    ----------
    theta
        The angle `θ` of the first axis, in radians from the first coordinate.
    s
        The stretch `s`, positive.
    bandwidth
        The length `h`, positive.

    Examples
    --------
    >>> import pilescore as ps
    >>> kernel = ps.AnisotropicRBF(theta=0.0, s=0.5)
    >>> round(float(kernel((2.0, 0.0), (0.0, 0.0))), 4)  # exp(−½ · 4 · ¼)
    0.6065
    """

    theta: Hyperparameter = hyperparameter("angle", "AnisotropicRBF theta")
    s: Hyperparameter = hyperparameter("ratio", "AnisotropicRBF s")
    bandwidth: Hyperparameter = hyperparameter(
        "length", converter=Positive("AnisotropicRBF bandwidth", vector=False), default=1.0
    )

    smoothness = RBF.smoothness
    exponential = RBF.exponential
    profile = RBF.profile

    def metric(self, dimension: int) -> Metric:
        """Return `Rot(θ) diag(s², s⁻²) Rot(θ)ᵀ / h²`."""
        c, n = jnp.cos(self.theta), jnp.sin(self.theta)
        along, across = (self.s / self.bandwidth) ** 2, 1.0 / (self.s * self.bandwidth) ** 2
        mixed = c * n * (along - across)
        return (c * c * along + n * n * across, mixed), (mixed, n * n * along + c * c * across)

    def check_points(self, points: Float[np.ndarray, "n d"]) -> None:
        """Require two dimensions."""
        require_coordinates("AnisotropicRBF", points, points.shape[1] == 2, "2 coordinates")


class ShearedRBF(Radial):
    """The Gaussian kernel of sheared coordinates in two dimensions, `exp(−½ (δ_0²/h_0² + (δ_1 − c δ_0)²/h_1²))`.

    It suits transport with the velocity `c`, where the first coordinate is the time: `h_1` is the length of a moving
    pattern, and `h_0` the time in which the pattern changes. The area of the kernel does not depend on the shear.

    Parameters
    ----------
    shear
        The velocity `c`.
    bandwidth
        The lengths `h`: one positive number, or one for each coordinate.

    Examples
    --------
    >>> import pilescore as ps
    >>> kernel = ps.kernels.ShearedRBF(shear=50.0, bandwidth=[10.0, 0.5])
    >>> round(float(kernel((0.0, 0.0), (0.1, 5.0))), 4)  # along a characteristic
    1.0
    """

    shear: Hyperparameter = hyperparameter("shear", "ShearedRBF shear")
    bandwidth: Hyperparameter = hyperparameter("length", "ShearedRBF bandwidth", default=1.0)

    smoothness = RBF.smoothness
    exponential = RBF.exponential
    profile = RBF.profile

    def metric(self, dimension: int) -> Metric:
        """Return `SᵀDS`, with the shear `S` and `D = diag(h⁻²)`."""
        along, across = (1.0 / _entry(self.bandwidth, axis) ** 2 for axis in (0, 1))
        mixed = -self.shear * across
        return (along + self.shear**2 * across, mixed), (mixed, across)

    def check_points(self, points: Float[np.ndarray, "n d"]) -> None:
        """Require two dimensions."""
        require_coordinates("ShearedRBF", points, points.shape[1] == 2, "2 coordinates")
        _check_vector(self, "bandwidth", self.bandwidth, points)


class FullCovarianceRBF(Radial):
    """The Gaussian kernel `exp(−½ δᵀ Σ⁻¹ δ)` with a full matrix `Σ` of squared lengths.

    The kernel stores a whitening matrix `W` with `Σ⁻¹ = WᵀW`; its entries are unconstrained hyperparameters.

    Parameters
    ----------
    covariance
        The matrix `Σ`: symmetric positive definite, of shape (d, d).

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> kernel = ps.kernels.FullCovarianceRBF(np.diag([4.0, 1.0]))
    >>> bool(np.isclose(kernel((2.0, 0.0), (0.0, 0.0)), np.exp(-0.5)))
    True
    """

    whitening: Float[Array, "d d"]

    def __init__(self, covariance: Any) -> None:
        matrix = as_array(covariance, "FullCovarianceRBF covariance")
        square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] and matrix.shape[0] > 0
        require(square, "FullCovarianceRBF covariance", matrix, "a square matrix")
        eigenvalues = np.linalg.eigvalsh(matrix) if np.allclose(matrix, matrix.T, rtol=1e-12) else [-1.0]
        require(
            bool(eigenvalues[0] > 0),
            "FullCovarianceRBF covariance",
            matrix.tolist(),
            "a symmetric positive definite matrix",
        )
        self.whitening = jnp.asarray(np.linalg.inv(np.linalg.cholesky(matrix)))

    smoothness = RBF.smoothness
    exponential = RBF.exponential
    profile = RBF.profile

    def metric(self, dimension: int) -> Metric:
        """Return `WᵀW`."""
        W = self.whitening
        rows = range(dimension)
        return tuple(tuple(total([W[r, i] * W[r, k] for r in rows]) for k in rows) for i in rows)

    def check_points(self, points: Float[np.ndarray, "n d"]) -> None:
        """Require one coordinate for each row of the covariance."""
        _check_vector(self, "covariance", self.whitening[0], points)


class Matern(Radial):
    """The Matérn kernel of half-integer order `ν`.

    `φ(q) ∝ z^ν K_ν(z)`, `z = √(4ν q)`, which is `e^{−z}` times a polynomial. Each derivative in `q` is `−2ν`
    times a Matérn function of order one lower. It is regular at 0, or its factor vanishes faster than it grows.

    Parameters
    ----------
    nu
        The order `ν`, one of 0.5, 1.5, …, 6.5. The kernel supports derivatives of order less than `ν` on each side.
    bandwidth
        The lengths `h`: one positive number, or one for each coordinate.

    Examples
    --------
    >>> import pilescore as ps
    >>> kernel = ps.Matern(nu=2.5)
    >>> kernel.smoothness
    2
    >>> origin = (0.0, 0.0)
    >>> pairs = [(a, b) for a in ((2, 0), (0, 2)) for b in ((2, 0), (0, 2))]
    >>> round(sum(float(kernel.derivative(a, b, origin, origin)) for a, b in pairs), 2)  # ΔΔ'k at 0
    66.67
    """

    nu: float = eqx.field(static=True, default=2.5)
    bandwidth: Hyperparameter = hyperparameter("length", "Matern bandwidth", default=1.0)

    def __check_init__(self) -> None:
        allowed = [p + 0.5 for p in range(7)]
        require(self.nu in allowed, "Matern nu", self.nu, f"one of {', '.join(map(str, allowed))}")

    @property
    def smoothness(self) -> float | int:
        """The largest integer below `ν`."""
        return int(self.nu - 0.5)

    def profile(self, q: Scalar, order: int) -> Scalar:
        """Return `φ⁽ʲ⁾(q) = (−2ν)ʲ z^{ν−j} K_{ν−j}(z)`, normalised so that `φ(0) = 1`."""
        p = int(self.nu - 0.5)
        # Nearer than this, a singular term is below the rounding of the regular ones. The inner `where` keeps the
        # square root away from 0, where its derivative is infinite and would give NaN in gradients.
        apart = q > 1e-40
        z = jnp.where(apart, jnp.sqrt(4 * self.nu * jnp.where(apart, q, 1.0)), 0.0)
        at_zero = math.factorial(2 * p) / (math.factorial(p) * 2**p)
        scale = (-2 * self.nu) ** order / at_zero
        n = p - order
        m = n if n >= 0 else -n - 1  # K_{−μ} = K_μ
        # Coefficients of e^z z^{m+½} K_{m+½}(z) by falling powers z^m … 1, highest first for Horner.
        series = [math.factorial(m + k) / (math.factorial(k) * math.factorial(m - k) * 2**k) for k in range(m + 1)]
        polynomial: Scalar = series[0]
        for coefficient in series[1:]:
            polynomial = polynomial * z + coefficient
        if n >= 0:
            return scale * jnp.exp(-z) * polynomial
        singular = scale * jnp.exp(-z) * polynomial * jnp.where(apart, z, 1.0) ** (-(2 * m + 1))
        return jnp.where(apart, singular, 0.0)

    metric = RBF.metric
    check_points = RBF.check_points


class RationalQuadratic(Radial):
    """The rational quadratic kernel `(1 + q/a)^{−a}`, `q = ½ Σ δ_i²/h_i²`: a mixture of Gaussian kernels.

    Parameters
    ----------
    alpha
        The exponent `a`, positive: small for many length scales at once; the kernel tends to `RBF` as it grows.
    bandwidth
        The lengths `h`: one positive number, or one for each coordinate.

    Examples
    --------
    >>> import pilescore as ps
    >>> float(ps.kernels.RationalQuadratic(alpha=1.0)((1.0,), (0.0,)))  # 1 / (1 + ½)
    0.6666666666666666
    """

    alpha: Hyperparameter = hyperparameter("ratio", "RationalQuadratic alpha", default=1.0)
    bandwidth: Hyperparameter = hyperparameter("length", "RationalQuadratic bandwidth", default=1.0)

    smoothness = RBF.smoothness

    def profile(self, q: Scalar, order: int) -> Scalar:
        """Return `(−1)ʲ a(a+1)…(a+j−1)/aʲ (1 + q/a)^{−a−j}`."""
        base = 1.0 + q / self.alpha
        factor: Scalar = (-1.0) ** order
        for i in range(order):
            factor = factor * (1.0 + i / self.alpha)
        return factor * jnp.exp(-self.alpha * jnp.log(base)) / base**order

    metric = RBF.metric
    check_points = RBF.check_points


class Periodic(Stationary):
    """The periodic kernel `exp(−2 Σ_i sin²(π δ_i / p_i) / h_i²)`.

    Parameters
    ----------
    period
        The periods `p`: one positive number, or one for each coordinate.
    bandwidth
        The dimensionless lengths `h`: one positive number, or one for each coordinate.

    Examples
    --------
    >>> import pilescore as ps
    >>> kernel = ps.kernels.Periodic(period=2.0, bandwidth=0.7)
    >>> round(float(kernel((0.3,), (2.3,))), 12)
    1.0
    """

    period: Hyperparameter = hyperparameter("period", "Periodic period", default=1.0)
    bandwidth: Hyperparameter = hyperparameter("length", "Periodic bandwidth", default=1.0)

    smoothness = RBF.smoothness

    def difference_derivative(self, gamma: MultiIndex, delta: tuple[Scalar, ...]) -> Scalar:
        """Return the product over coordinates of the derivatives of `g = exp((cos ωδ − 1)/h²)`.

        With `g' = s g` and `s = −(ω/h²) sin ωδ`, the Leibniz rule gives `g⁽ⁿ⁺¹⁾ = Σ_k C(n,k) s⁽ⁿ⁻ᵏ⁾ g⁽ᵏ⁾`.
        """
        product: Scalar = 1.0
        for axis, (order, d) in enumerate(zip(gamma, delta, strict=True)):
            omega = 2 * jnp.pi / _entry(self.period, axis)
            a = 1.0 / _entry(self.bandwidth, axis) ** 2
            phase = omega * d
            g = [jnp.exp(-2 * a * jnp.sin(0.5 * phase) ** 2)]  # cos ωδ − 1 would cancel at small δ
            s = [-a * omega ** (k + 1) * _sine(phase, k) for k in range(order)]
            for n in range(order):
                g.append(total([math.comb(n, k) * s[n - k] * g[k] for k in range(n + 1)]))
            product = product * g[order]
        return product

    def distances(self, x: Float[np.ndarray, "n d"], y: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "n m"]:
        """Return `2 √Σ_i sin²(π δ_i / p_i) / h_i²`."""
        phase = np.pi * (x[:, None, :] - y[None, :, :]) / np.asarray(self.period)
        return 2 * np.linalg.norm(np.sin(phase) / np.asarray(self.bandwidth), axis=-1)

    def factors(self, dimension: int) -> tuple[Kernel, ...] | None:
        """Return one periodic kernel for each pair of period and bandwidth."""
        numbers = [(_entry(self.period, axis), _entry(self.bandwidth, axis)) for axis in range(dimension)]
        return tuple(eqx.tree_at(lambda k: (k.period, k.bandwidth), self, pair) for pair in numbers)

    def check_points(self, points: Float[np.ndarray, "n d"]) -> None:
        """Check the lengths of vectors of periods and bandwidths."""
        _check_vector(self, "period", self.period, points)
        _check_vector(self, "bandwidth", self.bandwidth, points)


class Cosine(Stationary):
    """The cosine kernel `cos(2π f·δ)`: one plane wave of frequency `f`.

    Parameters
    ----------
    frequency
        The frequency `f` in cycles per unit length: a number in one dimension, else one entry for each coordinate.

    Examples
    --------
    >>> import pilescore as ps
    >>> round(float(ps.kernels.Cosine([0.5, 0.0])((1.0, 3.0), (0.0, 0.0))), 12)
    -1.0
    """

    frequency: Hyperparameter = hyperparameter(
        "number", converter=lambda value: real("Cosine frequency", ndim=1)(np.atleast_1d(np.asarray(value)))
    )

    smoothness = RBF.smoothness

    def difference_derivative(self, gamma: MultiIndex, delta: tuple[Scalar, ...]) -> Scalar:
        """Return `Π_i (2πf_i)^γ_i · cos(2π f·δ + |γ|π/2)`."""
        omega = [2 * jnp.pi * self.frequency[i] for i in range(len(delta))]
        phase = total([w * d for w, d in zip(omega, delta, strict=True)])
        value = _sine(phase, sum(gamma) + 1)
        for w, order in zip(omega, gamma, strict=True):
            value = value * w**order if order else value
        return value

    def check_points(self, points: Float[np.ndarray, "n d"]) -> None:
        """Require one frequency for each coordinate."""
        _check_vector(self, "frequency", self.frequency, points)


def _entry(vector: Float[Array, "..."], axis: int) -> Scalar:
    return vector if vector.ndim == 0 else vector[axis]


def _sine(phase: Scalar, shift: int) -> Scalar:
    """Return `sin(phase + shift·π/2)`; nothing is added to the phase, which would round."""
    value = jnp.cos(phase) if shift % 2 else jnp.sin(phase)
    return -value if shift % 4 >= 2 else value
