"""Kernels made of kernels: sums, products, multiples, kernels of some coordinates, and maps of the input."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..equations import MultiIndex, leibniz_terms, partial_derivative, raised
from ..errors import as_array, require
from .base import (
    Hyperparameter,
    Kernel,
    Point,
    Positive,
    Scalar,
    hyperparameter,
    real,
    require_coordinates,
    total,
    vanishes,
)
from .nonstationary import Constant
from .stationary import RBF, Cosine

Jet: TypeAlias = Callable[[int, MultiIndex], Scalar]
"""The derivatives `∂^γ w_k` of a map at one point."""

Factors: TypeAlias = tuple[tuple[int, MultiIndex], ...]
"""A product of derivatives `∂^γ w_k`, each given by `(k, γ)`."""


class Sum(Kernel):
    """The sum of kernels, written `k1 + k2`."""

    parts: tuple[Kernel, ...] = eqx.field(converter=lambda parts: _flatten(Sum, parts))

    @property
    def smoothness(self) -> float | int:
        """The smoothness of the roughest part."""
        return min(part.smoothness for part in self.parts)

    def supports(self, alpha: MultiIndex) -> bool:
        """Whether every part has the derivative."""
        return all(part.supports(alpha) for part in self.parts)

    def derivative(self, alpha: MultiIndex, beta: MultiIndex, x: Point, y: Point) -> Scalar:
        """Return the sum of the derivatives."""
        return total([part.derivative(alpha, beta, x, y) for part in self.parts])

    def check_points(self, points: Float[np.ndarray, "n d"]) -> None:
        """Check every part."""
        for part in self.parts:
            part.check_points(points)


class Product(Kernel):
    """The product of kernels, written `k1 * k2`, differentiated by the Leibniz rule."""

    parts: tuple[Kernel, ...] = eqx.field(converter=lambda parts: _flatten(Product, parts))

    smoothness = Sum.smoothness
    supports = Sum.supports
    check_points = Sum.check_points

    def derivative(self, alpha: MultiIndex, beta: MultiIndex, x: Point, y: Point) -> Scalar:
        """Return `Σ C(α,α') C(β,β') ∂^{α'}∂^{β'} k1 · ∂^{α−α'}∂^{β−β'} (k2 k3 …)`."""

        @functools.cache
        def single(part: int, a: MultiIndex, b: MultiIndex) -> Scalar:
            return self.parts[part].derivative(a, b, x, y)

        def from_part(part: int, a: MultiIndex, b: MultiIndex) -> Scalar:
            if part == len(self.parts) - 1:
                return single(part, a, b)
            terms = []
            for (a1, a2, m), (b1, b2, n) in itertools.product(leibniz_terms(a), leibniz_terms(b)):
                first = single(part, a1, b1)
                if vanishes(first):  # most terms of products such as k.on(0) * k.on(1): do not expand the rest
                    continue
                rest = from_part(part + 1, a2, b2)
                if not vanishes(rest):
                    terms.append(m * n * first * rest)
            return total(terms)

        return from_part(0, alpha, beta)

    def factors(self, dimension: int) -> tuple[Kernel, ...] | None:
        """Return the products of the factors of the parts."""
        factors = [part.factors(dimension) for part in self.parts]
        known = [kernels for kernels in factors if kernels is not None]
        return tuple(map(Product, zip(*known, strict=True))) if len(known) == len(factors) else None


class Scaled(Kernel):
    """A kernel times a positive variance, written `2.0 * k`."""

    variance: Hyperparameter = eqx.field(
        converter=Positive("the factor of a kernel", vector=False), metadata={"role": "variance"}
    )
    kernel: Kernel

    @property
    def smoothness(self) -> float | int:
        """The smoothness of the kernel."""
        return self.kernel.smoothness

    def supports(self, alpha: MultiIndex) -> bool:
        """Whether the kernel has the derivative."""
        return self.kernel.supports(alpha)

    def derivative(self, alpha: MultiIndex, beta: MultiIndex, x: Point, y: Point) -> Scalar:
        """Return the kernel's derivative times the variance."""
        value = self.kernel.derivative(alpha, beta, x, y)
        return value if vanishes(value) else self.variance * value

    def factors(self, dimension: int) -> tuple[Kernel, ...] | None:
        """Return the kernel's factors; the first one is scaled."""
        factors = self.kernel.factors(dimension)
        return None if factors is None else (eqx.tree_at(lambda k: k.kernel, self, factors[0]), *factors[1:])

    def check_points(self, points: Float[np.ndarray, "n d"]) -> None:
        """Check the kernel."""
        self.kernel.check_points(points)


class On(Kernel):
    """A kernel of some of the coordinates, written `k.on(0)`; it is constant in the others."""

    kernel: Kernel
    axes: tuple[int, ...] = eqx.field(static=True)

    def __check_init__(self) -> None:
        good = len(self.axes) > 0 and all(isinstance(a, int) and a >= 0 for a in self.axes)
        require(good and len(set(self.axes)) == len(self.axes), "axes", self.axes, "distinct axes 0, 1, …")
        self.kernel.check_points(np.empty((0, len(self.axes))))

    smoothness = Scaled.smoothness

    def supports(self, alpha: MultiIndex) -> bool:
        """Whether the kernel has the derivative along its own coordinates; along the others it is zero."""
        return self.kernel.supports(tuple(alpha[a] for a in self.axes))

    def derivative(self, alpha: MultiIndex, beta: MultiIndex, x: Point, y: Point) -> Scalar:
        """Return the kernel's derivative along its own coordinates; along any other it is zero."""
        if any((alpha[i] or beta[i]) for i in range(len(alpha)) if i not in self.axes):
            return 0.0
        a, b = (tuple(index[axis] for axis in self.axes) for index in (alpha, beta))
        u, v = (tuple(point[axis] for axis in self.axes) for point in (x, y))
        return self.kernel.derivative(a, b, u, v)

    def distances(self, x: Float[np.ndarray, "n d"], y: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "n m"]:
        """Return the kernel's distances along its own coordinates."""
        return self.kernel.distances(x[:, self.axes], y[:, self.axes])

    def factors(self, dimension: int) -> tuple[Kernel, ...] | None:
        """Return the kernel's factors for its own coordinates, and the constant 1 for the others."""
        factors = self.kernel.factors(len(self.axes))
        if factors is None:
            return None
        own = dict(zip(self.axes, factors, strict=True))
        return tuple(own.get(axis, Constant(1.0)) for axis in range(dimension))

    def check_points(self, points: Float[np.ndarray, "n d"]) -> None:
        """Require that the points have these coordinates."""
        last = max(self.axes)
        expected = f"points with at least {last + 1} coordinates"
        require_coordinates(f"kernel on axes {self.axes}", points, last < points.shape[1], expected)
        self.kernel.check_points(points[:, self.axes])


class LinearMap(Kernel):
    """The kernel `k(Ax, Ay)` of linearly mapped points.

    Parameters
    ----------
    kernel
        A kernel in `e` dimensions.
    matrix
        The matrix `A`, of shape (e, d).

    Examples
    --------
    >>> import pilescore as ps
    >>> ridge = ps.kernels.LinearMap(ps.RBF(0.3), [[1.0, -2.0]])  # varies across the line x = 2y only
    >>> float(ridge((2.0, 1.0), (0.0, 0.0)))
    1.0
    """

    kernel: Kernel
    matrix: Hyperparameter = hyperparameter("number", converter=real("LinearMap matrix", ndim=2))

    def __check_init__(self) -> None:
        self.kernel.check_points(np.empty((0, self.matrix.shape[0])))

    smoothness = Scaled.smoothness

    def derivative(self, alpha: MultiIndex, beta: MultiIndex, x: Point, y: Point) -> Scalar:
        """Return the derivative by the chain rule `∂_{x_i} = Σ_k A_ki ∂_{u_k}`."""
        rows, columns = self.matrix.shape
        u, v = (
            tuple(total([self.matrix[k, i] * point[i] for i in range(columns)]) for k in range(rows))
            for point in (x, y)
        )

        def jet(k: int, gamma: MultiIndex) -> Scalar:
            return self.matrix[k, gamma.index(1)] if sum(gamma) == 1 else 0.0

        return _pulled_back(self.kernel, alpha, beta, u, v, jet, jet)

    def distances(self, x: Float[np.ndarray, "n d"], y: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "n m"]:
        """Return the kernel's distances between the mapped points."""
        matrix = np.asarray(self.matrix)
        return self.kernel.distances(x @ matrix.T, y @ matrix.T)

    def check_points(self, points: Float[np.ndarray, "n d"]) -> None:
        """Require one coordinate for each column of the matrix."""
        columns = self.matrix.shape[1]
        expected = f"{columns}, one for each column of the matrix"
        require_coordinates("LinearMap matrix", points, points.shape[1] == columns, expected)
        self.kernel.check_points(points @ np.asarray(self.matrix).T)


class Warped(Kernel):
    """The kernel `k(w(x), w(y))` of points mapped by a smooth function.

    Parameters
    ----------
    kernel
        The kernel of the warped points.
    warp
        The map `w`: a JAX function from a point of shape (d,) to one of shape (e,). Arrays inside an Equinox module
        become hyperparameters.

    Examples
    --------
    >>> import jax.numpy as jnp, pilescore as ps
    >>> kernel = ps.kernels.Warped(ps.RBF(1.0), jnp.log)  # a length scale that grows with x
    >>> bool(jnp.isclose(kernel((1.0,), (2.0,)), kernel((10.0,), (20.0,))))
    True
    """

    kernel: Kernel
    warp: Callable[[Array], Array]

    @property
    def smoothness(self) -> float | int:
        """The smoothness of the kernel; the warp is assumed to be smooth."""
        return self.kernel.smoothness

    def derivative(self, alpha: MultiIndex, beta: MultiIndex, x: Point, y: Point) -> Scalar:
        """Return the derivative by the chain rule; the warp is differentiated automatically."""
        points = [jnp.stack(tuple(point)) for point in (x, y)]
        u, v = (self.warp(point) for point in points)
        jets = [functools.cache(functools.partial(_jet, self.warp, point)) for point in points]
        return _pulled_back(self.kernel, alpha, beta, tuple(u), tuple(v), *jets)

    def distances(self, x: Float[np.ndarray, "n d"], y: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "n m"]:
        """Return the kernel's distances between the warped points."""
        return self.kernel.distances(self._warped(x), self._warped(y))

    def _warped(self, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n e"]:
        return np.asarray(jax.vmap(self.warp)(jnp.asarray(points)))

    def check_points(self, points: Float[np.ndarray, "n d"]) -> None:
        """Check the warped points, and the kernel at them."""
        if len(points):
            warped = self._warped(points)
            require(warped.ndim == 2, "Warped warp", warped[0], "a function from points of shape (d,) to shape (e,)")
            self.kernel.check_points(as_array(warped, "Warped warp"))


def spectral_mixture(weights: Any, frequencies: Any, bandwidths: Any) -> Kernel:
    """Return the spectral mixture kernel `Σ_q w_q exp(−½ Σ_i δ_i²/h_qi²) cos(2π f_q·δ)`.

    Parameters
    ----------
    weights
        The weights `w`: positive, of shape (Q,).
    frequencies
        The frequencies `f`, of shape (Q, d).
    bandwidths
        The bandwidths `h`: positive, of shape (Q, d).

    Examples
    --------
    >>> import pilescore as ps
    >>> kernel = ps.kernels.spectral_mixture([1.0, 0.5], [[1.0], [3.0]], [[0.5], [0.2]])
    >>> float(kernel((0.0,), (0.0,)))
    1.5
    """
    w = as_array(weights, "weights")
    f = as_array(frequencies, "frequencies")
    h = as_array(bandwidths, "bandwidths")
    require(w.ndim == 1 and w.size > 0, "weights", w, "shape (Q,), one for each component")
    require(f.ndim == 2 and len(f) == len(w), "frequencies", f, f"shape ({len(w)}, d)")
    require(h.shape == f.shape, "bandwidths", h, f"shape {f.shape}, like the frequencies")
    parts = tuple(float(w[i]) * (RBF(h[i]) * Cosine(f[i])) for i in range(len(w)))
    return parts[0] if len(parts) == 1 else Sum(parts)


def _pulled_back(
    kernel: Kernel, alpha: MultiIndex, beta: MultiIndex, u: Point, v: Point, left: Jet, right: Jet
) -> Scalar:
    """Return `∂_x^α ∂_y^β k(w(x), w(y))` at `u = w(x)`, `v = w(y)`, given the derivatives `∂^γ w_k` at both."""
    sides = []
    for index, jet in ((alpha, left), (beta, right)):
        side: dict[MultiIndex, Scalar] = {}
        for mu, monomials in _chain_rule(index, len(u)).items():
            terms = []
            for factors, count in monomials:
                values = [jet(k, gamma) for k, gamma in factors]
                if not any(vanishes(value) for value in values):
                    terms.append(math.prod(values, start=float(count)))
            side[mu] = total(terms)
        sides.append({mu: value for mu, value in side.items() if not vanishes(value)})
    terms = []
    for (mu, a), (nu, b) in itertools.product(*(side.items() for side in sides)):
        value = kernel.derivative(mu, nu, u, v)
        if not vanishes(value):
            terms.append(a * b * value)
    return total(terms)


@functools.cache
def _chain_rule(alpha: MultiIndex, width: int) -> dict[MultiIndex, list[tuple[Factors, int]]]:
    """Return Faà di Bruno's formula for `∂^α f(w(x))`: for each `∂^μ f` its coefficient `Σ count · Π ∂^γ w_k`."""
    table: dict[MultiIndex, dict[Factors, int]] = {(0,) * width: {(): 1}}
    for axis in (axis for axis, order in enumerate(alpha) for _ in range(order)):
        grown: dict[MultiIndex, dict[Factors, int]] = {}
        for mu, monomials in table.items():
            for factors, count in monomials.items():
                for i, (k, gamma) in enumerate(factors):
                    _count(grown, mu, (*factors[:i], (k, raised(gamma, axis)), *factors[i + 1 :]), count)
                for k in range(width):
                    first = raised((0,) * len(alpha), axis)
                    _count(grown, raised(mu, k), (*factors, (k, first)), count)
        table = grown
    return {mu: list(monomials.items()) for mu, monomials in table.items()}


def _count(table: dict[MultiIndex, dict[Factors, int]], mu: MultiIndex, factors: Factors, count: int) -> None:
    row = table.setdefault(mu, {})
    key = tuple(sorted(factors))
    row[key] = row.get(key, 0) + count


def _jet(function: Callable[[Array], Array], point: Array, k: int, gamma: MultiIndex) -> Scalar:
    """Return the derivative `∂^γ w_k` of a function `w` at a point."""
    return partial_derivative(function, gamma)(point)[k]


def _flatten(kind: type[Any], parts: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Return the parts, with sums inside a sum (or products inside a product) taken apart."""
    flat: list[Kernel] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, kind) else (part,))
    return tuple(flat)
