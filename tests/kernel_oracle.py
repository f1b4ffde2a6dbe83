"""Kernels and their mixed derivatives to fifty digits, by truncated Taylor arithmetic in mpmath.

A kernel is written as an ordinary expression in its two points. Evaluated on `Series` (power series in the
coordinates' increments, truncated), the expression returns every derivative at once: ∂₁^α ∂₂^β k is α! β!
times one coefficient. Nothing is shared with the library, which differentiates by a recursion in the
quadratic form and never forms a series. The working precision is 200 digits, because at a separation r the
Taylor coefficients of a Matérn in r² lose some 7·log₁₀(1/r) of them: fifty are left down to r = 1e-20.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np

ctx = mpmath.mp.clone()
ctx.dps = 200

Index = tuple[int, ...]

_BASE = 64  # of the packed exponents: sums of two truncated exponents stay below it


def number(value: Any) -> Any:
    """Return `value`, a float (taken exactly) or already a number of the oracle's context, as the latter."""
    return value if isinstance(value, ctx.mpf) else ctx.mpf(float(value))


def numbers(values: Any, size: int) -> list[Any]:
    """Return a scalar repeated, or a vector, as numbers of the oracle's context."""
    if isinstance(values, ctx.mpf) or np.ndim(values) == 0:
        return [number(values)] * size
    assert len(values) == size
    return [number(v) for v in values]


class Ring:
    """Which monomials are kept: of degree at most `orders[g]` in the `sizes[g]` variables of group g."""

    def __init__(self, sizes: Sequence[int], orders: Sequence[int]):
        self.sizes, self.orders = tuple(sizes), tuple(orders)
        assert max(orders) < _BASE // 2
        self.total = sum(orders)
        groups = len(sizes)
        self.units = []  # a variable's code: one in its own digit, and one in its group's degree digit
        for group, size in enumerate(sizes):
            for _ in range(size):
                self.units.append(_BASE**group + _BASE ** (groups + len(self.units)))

    def code(self, exponents: Sequence[int]) -> int:
        return sum(e * u for e, u in zip(exponents, self.units, strict=True))

    def keeps(self, code: int) -> bool:
        for order in self.orders:
            code, degree = divmod(code, _BASE)
            if degree > order:
                return False
        return True

    def constant(self, value: Any) -> Series:
        return Series(self, {0: number(value)})

    def variable(self, which: int, base: Any) -> Series:
        unit = self.units[which]
        terms = {0: number(base)}
        if self.keeps(unit):
            terms[unit] = ctx.mpf(1)
        return Series(self, terms)


class Series:
    """A truncated power series: packed exponents to coefficients."""

    def __init__(self, ring: Ring, terms: dict[int, Any]):
        self.ring, self.terms = ring, terms

    @property
    def base(self) -> Any:
        """The value at the point of expansion."""
        return self.terms.get(0, ctx.zero)

    def coefficient(self, exponents: Sequence[int]) -> Any:
        code = self.ring.code(exponents)
        assert self.ring.keeps(code)
        return self.terms.get(code, ctx.zero)

    def __add__(self, other: Any) -> Series:
        terms = dict(self.terms)
        for code, value in other.terms.items() if isinstance(other, Series) else [(0, number(other))]:
            terms[code] = terms.get(code, ctx.zero) + value
        return Series(self.ring, terms)

    __radd__ = __add__

    def __mul__(self, other: Any) -> Series:
        if not isinstance(other, Series):
            factor = number(other)
            return Series(self.ring, {code: factor * value for code, value in self.terms.items()})
        terms: dict[int, Any] = {}
        keeps = self.ring.keeps
        kept: dict[int, bool] = {}
        for left, a in self.terms.items():
            if not a:
                continue
            for right, b in other.terms.items():
                code = left + right
                keep = kept.get(code)
                if keep is None:
                    keep = kept[code] = keeps(code)
                if keep and b:
                    product = a * b
                    terms[code] = terms[code] + product if code in terms else product
        return Series(self.ring, terms)

    __rmul__ = __mul__

    def __neg__(self) -> Series:
        return self * -1

    def __sub__(self, other: Any) -> Series:
        return self + (-other)

    def __rsub__(self, other: Any) -> Series:
        return -self + other

    def __truediv__(self, other: Any) -> Series:
        return self * (1 / number(other))

    def __pow__(self, exponent: int) -> Series:
        result = self.ring.constant(1)
        for _ in range(exponent):
            result = result * self
        return result

    def compose(self, taylor: Callable[[Any, int], list[Any]]) -> Series:
        """f(self), where `taylor(c, n)` returns the Taylor coefficients of f at c up to order n."""
        coefficients = taylor(self.base, self.ring.total)
        step = Series(self.ring, {code: value for code, value in self.terms.items() if code})
        result = self.ring.constant(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = step * result + coefficient
        return result


def exp(s: Series) -> Series:
    return s.compose(lambda c, n: [ctx.exp(c) / math.factorial(j) for j in range(n + 1)])


def cos(s: Series) -> Series:
    return s.compose(lambda c, n: [ctx.cos(c + j * ctx.pi / 2) / math.factorial(j) for j in range(n + 1)])


def sin(s: Series) -> Series:
    return cos(s - ctx.pi / 2)


def power(s: Series, exponent: Any) -> Series:
    e = number(exponent)
    return s.compose(lambda c, n: [ctx.binomial(e, j) * c ** (e - j) for j in range(n + 1)])


def matern_polynomial(p: int) -> list[Any]:
    """Coefficients, lowest first, of P with Matérn-(p+½) = exp(−s) P(s), s = √(2ν) r."""
    front = ctx.mpf(math.factorial(p)) / math.factorial(2 * p)
    falling = [
        front * math.factorial(p + i) / (math.factorial(i) * math.factorial(p - i)) * ctx.mpf(2) ** (p - i)
        for i in range(p + 1)
    ]
    return falling[::-1]


def matern_of_square(s: Series, nu: float) -> Series:
    """Matérn-ν of r, given r² as a series."""
    p = round(nu - 0.5)
    polynomial = matern_polynomial(p)
    rate = ctx.sqrt(2 * number(nu))

    def taylor(c: Any, n: int) -> list[Any]:
        line = Ring([1], [n])
        if c:
            s = power(line.variable(0, c), ctx.mpf(1) / 2) * rate
            value = line.constant(0)
            for k, a in enumerate(polynomial):
                value = value + a * s**k
            value = value * exp(-s)
            return [value.coefficient([j]) for j in range(n + 1)]
        # At r = 0: expand in r itself. Odd powers below 2ν vanish; from r^{2ν} on there are no derivatives
        # of the orders that the kernel supports to be affected, so those terms are left out.
        line = Ring([1], [2 * n + 1])
        s = line.variable(0, 0) * rate
        value = line.constant(0)
        for k, a in enumerate(polynomial):
            value = value + a * s**k
        value = value * exp(-s)
        for odd in range(1, min(2 * p + 1, 2 * n + 1), 2):
            assert abs(value.coefficient([odd])) < ctx.mpf(10) ** -180
        return [value.coefficient([2 * j]) if j <= p else ctx.zero for j in range(n + 1)]

    return s.compose(taylor)


class Oracle:
    """A kernel as an expression in lists of coordinates; `stationary` ones are expanded in x − y alone."""

    def __init__(self, function: Callable[[list[Series], list[Series]], Series], stationary: bool):
        self.function, self.stationary = function, stationary
        self._cache: dict[Any, Series] = {}

    def __add__(self, other: Oracle) -> Oracle:
        both = self.stationary and other.stationary
        return Oracle(lambda x, y: self.function(x, y) + other.function(x, y), both)

    def __mul__(self, other: Oracle) -> Oracle:
        both = self.stationary and other.stationary
        return Oracle(lambda x, y: self.function(x, y) * other.function(x, y), both)

    def __rmul__(self, scale: Any) -> Oracle:
        return Oracle(lambda x, y: self.function(x, y) * scale, self.stationary)

    def on(self, *axes: int) -> Oracle:
        return Oracle(lambda x, y: self.function([x[i] for i in axes], [y[i] for i in axes]), self.stationary)

    def two_sided(self) -> Oracle:
        """The same kernel, expanded in both points even if it is stationary."""
        return Oracle(self.function, False)

    def _series(self, x: Sequence[float], y: Sequence[float], left: int, right: int) -> Series:
        x, y = [number(v) for v in x], [number(v) for v in y]
        d = len(x)
        if self.stationary:
            difference = tuple(a - b for a, b in zip(x, y, strict=True))
            key = (difference, left + right)
            if key not in self._cache:
                ring = Ring([d], [left + right])
                delta = [ring.variable(i, difference[i]) for i in range(d)]
                self._cache[key] = self.function(delta, [ring.constant(0)] * d)
            return self._cache[key]
        key = (tuple(x), tuple(y), left, right)
        if key not in self._cache:
            ring = Ring([d, d], [left, right])
            xs = [ring.variable(i, x[i]) for i in range(d)]
            ys = [ring.variable(d + i, y[i]) for i in range(d)]
            self._cache[key] = self.function(xs, ys)
        return self._cache[key]

    def derivatives(self, pairs: Sequence[tuple[Index, Index]], x: Any, y: Any) -> list[Any]:
        """∂₁^α ∂₂^β k(x, y) for each (α, β)."""
        left = max(sum(alpha) for alpha, _ in pairs)
        right = max(sum(beta) for _, beta in pairs)
        series = self._series(x, y, left, right)
        values = []
        for alpha, beta in pairs:
            if self.stationary:
                index = tuple(a + b for a, b in zip(alpha, beta, strict=True))
                factor = (-1) ** sum(beta) * math.prod(math.factorial(i) for i in index)
            else:
                index = (*alpha, *beta)
                factor = math.prod(math.factorial(i) for i in index)
            values.append(factor * series.coefficient(index))
        return values

    def derivative(self, alpha: Index, beta: Index, x: Any, y: Any) -> Any:
        return self.derivatives([(alpha, beta)], x, y)[0]

    def value(self, x: Any, y: Any) -> Any:
        zero = (0,) * len(x)
        return self.derivative(zero, zero, x, y)

    def scales(self, pairs: Sequence[tuple[Index, Index]], x: Any, y: Any) -> list[Any]:
        """The Cauchy–Schwarz bound √(∂₁^α∂₂^α k(x, x) · ∂₁^β∂₂^β k(y, y)) for each (α, β)."""
        lefts = sorted({alpha for alpha, _ in pairs})
        rights = sorted({beta for _, beta in pairs})
        at_x = dict(zip(lefts, self.derivatives([(a, a) for a in lefts], x, x), strict=True))
        at_y = dict(zip(rights, self.derivatives([(b, b) for b in rights], y, y), strict=True))
        return [ctx.sqrt(at_x[alpha] * at_y[beta]) for alpha, beta in pairs]


def _differences(x: list[Series], y: list[Series]) -> list[Series]:
    return [a - b for a, b in zip(x, y, strict=True)]


def _scaled_square(x: list[Series], y: list[Series], bandwidth: Any) -> Series:
    total = x[0].ring.constant(0)
    for delta, h in zip(_differences(x, y), numbers(bandwidth, len(x)), strict=True):
        total = total + delta * delta / h**2
    return total


def _form(x: list[Series], y: list[Series], matrix: Any) -> Series:
    delta = _differences(x, y)
    total = x[0].ring.constant(0)
    for i, a in enumerate(delta):
        for j, b in enumerate(delta):
            total = total + a * b * matrix[i, j]
    return total


def _dot(x: list[Series], y: list[Series]) -> Series:
    total = x[0].ring.constant(0)
    for a, b in zip(x, y, strict=True):
        total = total + a * b
    return total


def rbf(bandwidth: Any = 1.0) -> Oracle:
    return Oracle(lambda x, y: exp(_scaled_square(x, y, bandwidth) * -0.5), True)


def anisotropic_rbf(theta: Any, s: Any, bandwidth: Any = 1.0) -> Oracle:
    theta, s, h = number(theta), number(s), number(bandwidth)
    rotation = ctx.matrix([[ctx.cos(theta), -ctx.sin(theta)], [ctx.sin(theta), ctx.cos(theta)]])
    matrix = rotation * ctx.diag([s**2, s**-2]) * rotation.T / h**2
    return Oracle(lambda x, y: exp(_form(x, y, matrix) * -0.5), True)


def sheared_rbf(shear: Any, bandwidth: Any = 1.0) -> Oracle:
    c, h = number(shear), [number(v) for v in np.broadcast_to(np.asarray(bandwidth, dtype=object), (2,))]
    shearing = ctx.matrix([[1, 0], [-c, 1]])
    matrix = shearing.T * ctx.diag([v**-2 for v in h]) * shearing
    return Oracle(lambda x, y: exp(_form(x, y, matrix) * -0.5), True)


def full_covariance_rbf(covariance: Any) -> Oracle:
    rows = [[number(v) for v in row] for row in covariance]
    matrix = ctx.inverse(ctx.matrix(rows))
    return Oracle(lambda x, y: exp(_form(x, y, matrix) * -0.5), True)


def matern(nu: float = 2.5, bandwidth: Any = 1.0) -> Oracle:
    return Oracle(lambda x, y: matern_of_square(_scaled_square(x, y, bandwidth), nu), True)


def rational_quadratic(alpha: Any = 1.0, bandwidth: Any = 1.0) -> Oracle:
    a = number(alpha)
    return Oracle(lambda x, y: power(_scaled_square(x, y, bandwidth) / (2 * a) + 1, -a), True)


def periodic(period: Any = 1.0, bandwidth: Any = 1.0) -> Oracle:
    def function(x: list[Series], y: list[Series]) -> Series:
        result = x[0].ring.constant(1)
        lengths, widths = numbers(period, len(x)), numbers(bandwidth, len(x))
        for delta, p, h in zip(_differences(x, y), lengths, widths, strict=True):
            wave = sin(delta * (ctx.pi / p))
            result = result * exp(wave * wave * (-2 / h**2))
        return result

    return Oracle(function, True)


def cosine(frequency: Any) -> Oracle:
    def function(x: list[Series], y: list[Series]) -> Series:
        phase = x[0].ring.constant(0)
        for delta, f in zip(_differences(x, y), numbers(frequency, len(x)), strict=True):
            phase = phase + delta * (2 * ctx.pi * f)
        return cos(phase)

    return Oracle(function, True)


def spectral_mixture(weights: Any, frequencies: Any, bandwidths: Any) -> Oracle:
    total = None
    for w, f, h in zip(weights, frequencies, bandwidths, strict=True):
        part = number(w) * (rbf(h) * cosine(f))
        total = part if total is None else total + part
    assert total is not None
    return total


def polynomial(degree: int, offset: Any = 1.0) -> Oracle:
    return Oracle(lambda x, y: (_dot(x, y) + number(offset)) ** degree, False)


def linear() -> Oracle:
    return Oracle(_dot, False)


def constant(value: Any = 1.0) -> Oracle:
    return Oracle(lambda x, y: x[0].ring.constant(value), True)


def wiener(tie_goes_left: bool = True) -> Oracle:
    def function(x: list[Series], y: list[Series]) -> Series:
        first = x[0].base <= y[0].base if tie_goes_left else x[0].base < y[0].base
        return x[0] if first else y[0]

    return Oracle(function, False)


def integrated_wiener(tie_goes_left: bool = True) -> Oracle:
    def function(x: list[Series], y: list[Series]) -> Series:
        first = x[0].base <= y[0].base if tie_goes_left else x[0].base < y[0].base
        low, high = (x[0], y[0]) if first else (y[0], x[0])
        return low * low * (high * 3 - low) / 6

    return Oracle(function, False)


def linear_map(kernel: Oracle, matrix: Any) -> Oracle:
    def image(point: list[Series]) -> list[Series]:
        return [_dot(point, [point[0].ring.constant(v) for v in row]) for row in matrix]

    return Oracle(lambda x, y: kernel.function(image(x), image(y)), kernel.stationary)


def warped(kernel: Oracle, warp: Callable[[list[Series]], list[Series]]) -> Oracle:
    return Oracle(lambda x, y: kernel.function(warp(x), warp(y)), False)


def function_kernel(function: Callable[[list[Series], list[Series]], Series]) -> Oracle:
    return Oracle(function, False)


def multi_indices(d: int, order: int) -> list[Index]:
    """All multi-indices in d variables of total order at most `order`, lowest first."""
    every = itertools.product(range(order + 1), repeat=d)
    return sorted((a for a in every if sum(a) <= order), key=lambda a: (sum(a), a))


def difference_quotient(
    kernel: Callable[[list[Any], list[Any]], Any], alpha: Index, beta: Index, x: Any, y: Any, step: Any
) -> Any:
    """∂₁^α ∂₂^β k by central differences of the values, for checking the oracle against itself."""
    base = [number(v) for v in (*x, *y)]
    orders = (*alpha, *beta)
    total = ctx.zero
    for shifts in itertools.product(*(range(n + 1) for n in orders)):
        weight = math.prod((-1) ** k * math.comb(n, k) for n, k in zip(orders, shifts, strict=True))
        moved = [b + (ctx.mpf(n) / 2 - k) * step for b, n, k in zip(base, orders, shifts, strict=True)]
        total += weight * kernel(moved[: len(x)], moved[len(x) :])
    return total / step ** sum(orders)
