"""Quadrature rules on the unit cube: points in [0, 1]^d and positive weights that sum to 1.

A rule is independent of the region; regions map its points. The deterministic rules are tensor products of rules on
an interval. The sampled rules (`Sobol`, `MonteCarlo`) draw points in all dimensions at once.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias, TypeVar, final

import numpy as np
from jaxtyping import Float

from ..errors import InputError, as_count, as_positive, require

__all__ = ["Chebyshev", "ClenshawCurtis", "Fejer", "GaussLegendre", "MonteCarlo", "Rule", "Sobol", "TensorRule"]

T = TypeVar("T")
AxisRule: TypeAlias = tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]
CubeRule: TypeAlias = tuple[Float[np.ndarray, "m d"], Float[np.ndarray, " m"]]


Factor: TypeAlias = float | int | Sequence[float | int]
"""How many times as many nodes, on each axis or axis by axis."""


class Rule(abc.ABC):
    """A quadrature rule on the unit cube: ∫_{[0,1]^d} f ≈ Σ_i w_i f(u_i), with w_i > 0 and Σ_i w_i = 1.

    Attributes
    ----------
    sampled
        Whether the points are drawn at random, so that the error is a random variable.
    axes
        The number of axes for which the rule has sizes, or None if it serves any number of axes.

    Examples
    --------
    >>> import pilescore as ps
    >>> points, weights = ps.quadrature.TensorRule(ps.quadrature.ClenshawCurtis(2), ps.GaussLegendre(1)).unit(2)
    >>> points.tolist(), weights.tolist()
    ([[0.0, 0.5], [1.0, 0.5]], [0.5, 0.5])
    """

    sampled: ClassVar[bool]

    @property
    @abc.abstractmethod
    def axes(self) -> int | None:
        """The number of axes for which the rule has sizes, or None if it serves any number of axes."""

    @abc.abstractmethod
    def unit(self, dimension: int, periodic: Sequence[bool] | None = None) -> CubeRule:
        """Return points of shape (m, d) in [0, 1]^d and weights of shape (m,) that sum to 1.

        Dimension 0 gives one point without coordinates and with weight 1. On a `periodic` axis (an angle) the
        deterministic rules use equispaced midpoints with equal weights, the Gauss rule for periodic functions. The
        sampled rules ignore `periodic`.
        """

    @abc.abstractmethod
    def resized(self, factor: Factor) -> Rule:
        """Return a rule with about `factor` times the nodes on each axis; a sampled rule has `factor`² times in all.

        Parameters
        ----------
        factor
            One number, or one for each axis; a sampled rule has their product times the points.
        """

    def without(self, axis: int) -> Rule:
        """Return the rule for the remaining axes: sizes for a box become sizes for its faces."""
        return self

    def independent(self, index: int) -> Rule:
        """Return the rule with an independent random stream for each `index`; a deterministic rule returns itself."""
        return self

    def restricted(self, fixed: Sequence[int], dimension: int) -> Rule:
        """Return the rule for the axes that are not fixed; a rule with sizes for only these is unchanged."""
        rule: Rule = self
        if self.axes == dimension:
            for axis in sorted(fixed, reverse=True):  # from the last: the indices of earlier axes stay valid
                rule = rule.without(axis)
        return rule


@dataclass(frozen=True, repr=False)
class _PerAxis(Rule):
    """A tensor product of rules of one family on an interval, with one size for all axes or one for each."""

    size: int | tuple[int, ...]

    sampled: ClassVar[bool] = False
    least: ClassVar[int] = 1

    def __post_init__(self) -> None:
        name, size = type(self).__name__, self.size
        if isinstance(size, tuple | list):
            checked: Any = tuple(as_count(n, f"{name} size on axis {i}", self.least) for i, n in enumerate(size))
        else:
            checked = as_count(size, f"{name} size", self.least)
        object.__setattr__(self, "size", checked)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size})"

    @abc.abstractmethod
    def _interval(self, n: int) -> AxisRule:
        """Return `n` nodes in [0, 1], ascending, and their weights."""

    @property
    def axes(self) -> int | None:
        return len(self.size) if isinstance(self.size, tuple) else None

    def unit(self, dimension: int, periodic: Sequence[bool] | None = None) -> CubeRule:
        angles = _angles(dimension, periodic)
        sizes = self.size if isinstance(self.size, tuple) else (self.size,) * dimension
        if len(sizes) != dimension:
            raise InputError(
                f"{self!r}: {len(sizes)} sizes {sizes} for {dimension} axes; give one size for each of the "
                f"{dimension} axes, or one integer for all"
            )
        return _product([_midpoints(n) if a else self._interval(n) for n, a in zip(sizes, angles, strict=True)])

    def resized(self, factor: Factor) -> Rule:
        if isinstance(factor, float | int):
            factor = as_positive(factor, "factor")
            if isinstance(self.size, int):
                return type(self)(max(self.least, round(self.size * factor)))
            factor = (factor,) * len(self.size)
        sizes = (self.size,) * len(factor) if isinstance(self.size, int) else self.size
        pairs = zip(sizes, factor, strict=True)
        return type(self)(tuple(max(self.least, round(n * as_positive(each, "factor"))) for n, each in pairs))

    def without(self, axis: int) -> Rule:
        if not isinstance(self.size, tuple):
            return self
        return type(self)(_dropped(self.size, axis))


@final
class GaussLegendre(_PerAxis):
    """Gauss–Legendre quadrature: `n` nodes on an axis integrate polynomials of degree 2n − 1 exactly.

    Parameters
    ----------
    size
        The number of nodes on each axis: one integer for all, or a tuple with one for each axis.

    Examples
    --------
    >>> import pilescore as ps
    >>> points, weights = ps.GaussLegendre(2).unit(1)
    >>> float(round(weights @ points[:, 0] ** 3, 15))  # ∫ u³ over [0, 1]
    0.25
    >>> ps.GaussLegendre((13, 5)).resized(2)
    GaussLegendre((26, 10))
    """

    def _interval(self, n: int) -> AxisRule:
        nodes, weights = np.polynomial.legendre.leggauss(n)
        return (1 + nodes) / 2, weights / 2


@final
class Chebyshev(_PerAxis):
    """Chebyshev nodes cos((2k + 1)π / 2n) with equal weights, as in the paper.

    The sums converge to the integral against the arcsine measure dx / (π √(1 − x²)), which is denser near the
    ends, not to the Lebesgue integral. `Fejer` has the same nodes, with weights for the Lebesgue integral.

    Parameters
    ----------
    size
        The number of nodes on each axis: one integer for all, or a tuple with one for each axis.

    Examples
    --------
    >>> import pilescore as ps
    >>> points, weights = ps.quadrature.Chebyshev(8).unit(1)
    >>> float(round(weights @ (2 * points[:, 0] - 1) ** 2, 12))  # the arcsine mean of x²; Lebesgue's is 1/3
    0.5
    """

    def _interval(self, n: int) -> AxisRule:
        return _chebyshev_nodes(n), np.full(n, 1 / n)


@final
class Fejer(_PerAxis):
    """Fejér's first rule: Chebyshev nodes, exact for polynomials of degree n − 1 on an axis.

    With θ_k = (2k + 1)π / 2n, the weights on [0, 1] are
    w_k = (1 − 2 Σ_{j=1}^{⌊n/2⌋} cos(2jθ_k) / (4j² − 1)) / n.

    Parameters
    ----------
    size
        The number of nodes on each axis: one integer for all, or a tuple with one for each axis.

    Examples
    --------
    >>> import pilescore as ps
    >>> points, weights = ps.quadrature.Fejer(3).unit(1)
    >>> float(round(weights @ points[:, 0] ** 2, 12))
    0.333333333333
    """

    def _interval(self, n: int) -> AxisRule:
        theta = (2 * np.arange(n) + 1) * np.pi / (2 * n)
        j = np.arange(1, n // 2 + 1)
        series = np.cos(2 * np.outer(theta, j)) @ (1 / (4.0 * j**2 - 1))
        return _chebyshev_nodes(n), (1 - 2 * series) / n


@final
class ClenshawCurtis(_PerAxis):
    """Clenshaw–Curtis quadrature: nodes cos(kπ / (n − 1)), ends included, exact for degree n − 1 on an axis.

    With N = n − 1 and θ_k = kπ / N, the weights on [0, 1] are w_k = c_k (1 − Σ_{j=1}^{⌊N/2⌋} b_j cos(2jθ_k) /
    (4j² − 1)) / N, where c_k is 1/2 at the ends and 1 elsewhere, and b_j is 1 for j = N/2 and 2 elsewhere.

    Parameters
    ----------
    size
        The number of nodes on each axis, at least 2: one integer for all, or a tuple with one for each axis.

    Examples
    --------
    >>> import pilescore as ps
    >>> points, weights = ps.quadrature.ClenshawCurtis(3).unit(1)  # Simpson's rule
    >>> (6 * weights).round(12).tolist()
    [1.0, 4.0, 1.0]
    """

    least: ClassVar[int] = 2

    def _interval(self, n: int) -> AxisRule:
        last = n - 1
        theta = np.arange(n) * np.pi / last
        j = np.arange(1, last // 2 + 1)
        b = np.where(2 * j == last, 1.0, 2.0)
        weights = (1 - np.cos(2 * np.outer(theta, j)) @ (b / (4.0 * j**2 - 1))) / last
        weights[[0, -1]] /= 2
        return np.sin(theta / 2) ** 2, weights  # (1 − cos θ)/2 would cancel near 0


@final
@dataclass(frozen=True, repr=False, init=False)
class TensorRule(Rule):
    """The tensor product of a deterministic rule for each axis.

    Parameters
    ----------
    *rules
        One rule for each axis, each a deterministic rule on an interval.

    Examples
    --------
    >>> import pilescore as ps
    >>> rule = ps.quadrature.TensorRule(ps.GaussLegendre(12), ps.quadrature.ClenshawCurtis(5))
    >>> rule.unit(2)[0].shape
    (60, 2)
    >>> rule.without(0)
    TensorRule(ClenshawCurtis(5))
    """

    rules: tuple[Rule, ...]

    sampled: ClassVar[bool] = False

    def __init__(self, *rules: Rule) -> None:
        for i, rule in enumerate(rules):
            good = isinstance(rule, Rule) and not rule.sampled and rule.axes in (None, 1)
            require(good, f"TensorRule rule {i}", rule, "a deterministic rule for one axis such as GaussLegendre(8)")
        object.__setattr__(self, "rules", rules)

    def __repr__(self) -> str:
        return f"TensorRule({', '.join(map(repr, self.rules))})"

    @property
    def axes(self) -> int | None:
        """The number of rules, one for each axis."""
        return len(self.rules)

    def unit(self, dimension: int, periodic: Sequence[bool] | None = None) -> CubeRule:
        """Return the points and weights of the product."""
        angles = _angles(dimension, periodic)
        if len(self.rules) != dimension:
            raise InputError(
                f"{self!r}: {len(self.rules)} rules for {dimension} axes; give TensorRule one rule for each axis"
            )
        axes = [rule.unit(1, (angle,)) for rule, angle in zip(self.rules, angles, strict=True)]
        return _product([(nodes[:, 0], weights) for nodes, weights in axes])

    def resized(self, factor: Factor) -> TensorRule:
        """Return the product of the resized rules."""
        factors = (factor,) * len(self.rules) if isinstance(factor, float | int) else factor
        return TensorRule(*(rule.resized(each) for rule, each in zip(self.rules, factors, strict=True)))

    def without(self, axis: int) -> TensorRule:
        """Return the product of the other rules."""
        return TensorRule(*_dropped(self.rules, axis))


@dataclass(frozen=True, repr=False)
class _Sampled(Rule):
    """A rule that draws points in all dimensions at once and gives them equal weights."""

    size: int
    seed: int = 0

    sampled: ClassVar[bool] = True

    def __post_init__(self) -> None:
        name = type(self).__name__
        object.__setattr__(self, "size", as_count(self.size, f"{name} size"))
        object.__setattr__(self, "seed", as_count(self.seed, f"{name} seed", 0))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size}, seed={self.seed})"

    @abc.abstractmethod
    def _draw(self, dimension: int) -> Float[np.ndarray, "m d"]:
        """Return the points in [0, 1)^d, where d > 0."""

    @property
    def axes(self) -> int | None:
        return None

    def unit(self, dimension: int, periodic: Sequence[bool] | None = None) -> CubeRule:
        _angles(dimension, periodic)
        if dimension == 0:
            return _product([])
        return self._draw(dimension), np.full(self.size, 1 / self.size)

    def independent(self, index: int) -> Rule:
        # Stream 0 has the seed itself, so that a union of one region has the nodes of the region.
        mixed = int(np.random.SeedSequence([self.seed, index]).generate_state(1)[0])
        return replace(self, seed=mixed) if index else self


@final
class Sobol(_Sampled):
    """Scrambled Sobol' points with equal weights; the error for smooth functions is nearly O(1/n).

    Parameters
    ----------
    size
        The number of points, a power of two (only then is the sequence balanced).
    seed
        The seed of the scrambling.

    Examples
    --------
    >>> import pilescore as ps
    >>> points, weights = ps.quadrature.Sobol(256, seed=1).unit(2)
    >>> bool(abs(weights @ (points[:, 0] * points[:, 1]) - 1 / 4) < 1e-3)
    True
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        following = 1 << (self.size - 1).bit_length()
        require(self.size == following, "Sobol size", self.size, f"a power of two; the next one is {following}")

    def _draw(self, dimension: int) -> Float[np.ndarray, "m d"]:
        from scipy.stats import qmc  # imported here because it takes longer than everything else together

        engine = qmc.Sobol(dimension, scramble=True, rng=np.random.default_rng(self.seed))
        return np.asarray(engine.random_base2(self.size.bit_length() - 1), dtype=np.float64)

    def resized(self, factor: Factor) -> Sobol:
        """Return a rule with about `factor`² times the points, rounded to a power of two."""
        exponent = round(np.log2(self.size * _in_all(factor)))
        return Sobol(2 ** max(0, exponent), self.seed)


@final
class MonteCarlo(_Sampled):
    """Independent uniform points with equal weights; the standard error is σ(f) / √n.

    Parameters
    ----------
    size
        The number of points.
    seed
        The seed of the generator.

    Examples
    --------
    >>> import pilescore as ps
    >>> points, weights = ps.quadrature.MonteCarlo(1000, seed=3).unit(4)
    >>> points.shape, float(weights[0])
    ((1000, 4), 0.001)
    """

    def _draw(self, dimension: int) -> Float[np.ndarray, "m d"]:
        return np.random.default_rng(self.seed).random((self.size, dimension))

    def resized(self, factor: Factor) -> MonteCarlo:
        """Return a rule with `factor`² times the points, rounded to an integer."""
        return MonteCarlo(max(1, round(self.size * _in_all(factor))), self.seed)


def _in_all(factor: Factor) -> float:
    """Return the factor of the number of points of a sampled rule."""
    if isinstance(factor, float | int):
        return as_positive(factor, "factor") ** 2
    return math.prod(as_positive(each, "factor") for each in factor)


def _chebyshev_nodes(n: int) -> Float[np.ndarray, " n"]:
    """Return the Chebyshev nodes of the first kind on [0, 1], ascending."""
    # sin² instead of (1 − cos)/2, which cancels near 0.
    return np.sin((2 * np.arange(n) + 1) * np.pi / (4 * n)) ** 2


def _midpoints(n: int) -> AxisRule:
    """Return `n` equispaced midpoints of [0, 1] with equal weights."""
    return (np.arange(n) + 0.5) / n, np.full(n, 1 / n)


def _product(axes: Sequence[tuple[np.ndarray, np.ndarray]]) -> CubeRule:
    """Return the tensor product of rules on an interval; the last axis varies fastest."""
    points, weights = np.zeros((1, 0)), np.ones(1)
    for nodes, factors in axes:
        points = np.hstack([np.repeat(points, len(nodes), axis=0), np.tile(nodes, len(points))[:, None]])
        weights = np.outer(weights, factors).ravel()
    return points, weights


def _angles(dimension: int, periodic: Sequence[bool] | None) -> tuple[bool, ...]:
    """Return whether each axis is periodic; check the dimension."""
    dimension = as_count(dimension, "dimension", 0)
    angles = (False,) * dimension if periodic is None else tuple(periodic)
    require(len(angles) == dimension, "periodic", angles, f"one flag for each of the {dimension} axes")
    return angles


def _dropped(items: tuple[T, ...], axis: int) -> tuple[T, ...]:
    """Return the items of all axes except one."""
    good = as_count(axis, "axis", 0) < len(items)
    require(good, "axis", axis, f"an axis below {len(items)}, the number of axes of the rule")
    return items[:axis] + items[axis + 1 :]
