"""Regions of space, their boundaries with outward normals, and weighted nodes on them.

Calling a region with a quadrature rule returns `Nodes`, whose weights are positive and sum to the region's measure.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
from jaxtyping import Bool, Float

from ..errors import InputError, as_array, as_points, did_you_mean, listed, require
from .quadrature import CubeRule, Factor, Rule

Normal: TypeAlias = tuple[float, ...] | Callable[[Any], Sequence[Any]] | None
Points: TypeAlias = Float[np.ndarray, "n d"]
Mask: TypeAlias = Bool[np.ndarray, " n"]

RELATIVE_TOLERANCE = 1e-9
"""Points nearer to a region than this fraction of its size count as inside."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class Nodes:
    """Points (m, d) with positive weights (m,): ∫ f ≈ Σ_i w_i f(x_i); `+` joins two sets of nodes.

    Create nodes by calling a region with a rule, or with `nodes_at`.

    Examples
    --------
    >>> import pilescore as ps
    >>> square = ps.Box(x=(-1, 1), y=(-1, 1))
    >>> square(ps.GaussLegendre(5)) + square.face(x=1)(ps.GaussLegendre(5))
    Nodes(30 points in x and y, weights summing to 6)
    """

    points: Float[np.ndarray, "m d"]
    """The points `x`."""
    weights: Float[np.ndarray, " m"]
    """The weights `w`."""
    names: tuple[str, ...]
    """The names of the coordinates."""
    region: Region | None = None
    """The region that contains the points, if known."""
    rule: Rule | None = None
    """The rule that made the points, if known."""

    def __post_init__(self) -> None:
        points, weights = as_points(self.points, "points"), as_array(self.weights, "weights")
        require(weights.shape == (len(points),), "weights", weights, f"one for each of {len(points)} points")
        least = int(np.argmin(weights))
        require(float(weights[least]) > 0, f"weights[{least}]", float(weights[least]), "a positive weight")
        freeze(self, points=points, weights=weights, names=as_names(self.names, points.shape[1]))

    def __len__(self) -> int:
        return len(self.weights)

    def __repr__(self) -> str:
        return f"Nodes({len(self)} points in {listed(self.names)}, weights summing to {self.weights.sum():.6g})"

    def __add__(self, other: Nodes) -> Nodes:
        require(isinstance(other, Nodes) and other.names == self.names, "+", other, f"nodes in {self.names}")
        points, weights = np.vstack([self.points, other.points]), np.hstack([self.weights, other.weights])
        if self.region is None or other.region is None:
            return Nodes(points, weights, self.names)
        rule = self.rule if self.rule == other.rule else None
        return Nodes(points, weights, self.names, self.region | other.region, rule)

    def refined(self, factor: Factor = 2) -> Nodes:
        """Return nodes in the same region with about `factor` times as many on each axis, or with a factor for each.

        Examples
        --------
        >>> import pilescore as ps
        >>> coarse = ps.Box(x=(0, 1), y=(0, 1)).interior(ps.GaussLegendre(5))
        >>> len(coarse), len(coarse.refined(2))
        (25, 100)
        """
        if self.region is None or self.rule is None:
            raise InputError(
                f"refined: {self!r} has no region and rule to refine: its points are explicit, or it is a sum of "
                "nodes by different rules. Create nodes by a region and a rule; refine them before adding them"
            )
        return self.region(self.rule.resized(factor))


def nodes_at(points: Any, weights: Any = None, names: Sequence[str] | None = None) -> Nodes:
    """Return nodes at explicit points, with weights such that ∫ f ≈ Σ_i w_i f(x_i).

    Parameters
    ----------
    points
        The points `x`, of shape (m, d), or (m,) on a line.
    weights
        The weights `w`: positive, of shape (m,). Default: all 1/m.
    names
        The names of the coordinates. Default: x, y, z; x1 ... xd in more than three dimensions.

    Examples
    --------
    >>> import pilescore as ps
    >>> ps.domains.nodes_at([[0.0, 0.0], [0.5, 1.0]], weights=[1.0, 3.0], names=("x", "t"))
    Nodes(2 points in x and t, weights summing to 4)
    """
    points = as_points(points, "points")
    weights = np.full(len(points), 1 / len(points)) if weights is None else as_array(weights, "weights")
    return Nodes(points, weights, as_names(names, points.shape[1]))


class Region(abc.ABC):
    """A set with a measure in a space with named coordinates; calling it with a rule returns `Nodes`.

    `measure` is the length, area or volume of the region, or 1 for a point. `normal` is the outward unit normal of
    a piece of a boundary: numbers if the piece is flat, else a function from a point to d numbers. Other regions
    have the normal None.

    Examples
    --------
    >>> import pilescore as ps
    >>> region = ps.Disk(radius=2.0) | ps.Box(x=(3, 4), y=(0, 1))
    >>> region.contains([[1.0, 1.0], [2.5, 0.0], [3.5, 0.5]]).tolist()
    [True, False, True]
    """

    names: tuple[str, ...]
    measure: float
    normal: Normal = None

    @abc.abstractmethod
    def _contains(self, points: Points) -> Mask:
        """Return whether each point lies in the region; the shape of the points has been checked."""

    @abc.abstractmethod
    def _place(self, rule: Rule) -> CubeRule:
        """Return the points and the weights of a rule on the region."""

    @property
    def dimension(self) -> int:
        """The number of coordinates of the space around the region."""
        return len(self.names)

    def contains(self, points: Any) -> Mask:
        """Return whether each of the points, of shape (n, d), lies in the region, to 1e-9 of its size."""
        points = as_points(points, "points")
        require(points.shape[1] == self.dimension, "points", points, f"shape (n, {self.dimension})")
        return self._contains(points)

    def __call__(self, rule: Rule) -> Nodes:
        """Return the nodes of a quadrature rule on the region."""
        require(isinstance(rule, Rule), "rule", rule, "a quadrature rule such as GaussLegendre(8)")
        points, weights = self._place(rule)
        return Nodes(points, weights, self.names, self, rule)

    def __or__(self, other: Region) -> RegionUnion:
        return RegionUnion(self, other)


@final
@dataclass(frozen=True, init=False, repr=False)
class RegionUnion(Region):
    """The union of regions with the same coordinates, written `a | b`; overlaps count twice.

    A rule is applied to each region in turn. A sampled rule uses an independent random stream for each region.

    Parameters
    ----------
    regions
        Regions with the same names of coordinates.

    Examples
    --------
    >>> import pilescore as ps
    >>> rods = ps.Box(x=(0, 1)) | ps.Box(x=(2, 4))
    >>> rods.measure, len(rods(ps.GaussLegendre(8)))
    (3.0, 16)
    """

    regions: tuple[Region, ...]

    def __init__(self, *regions: Region) -> None:
        require(len(regions) > 0, "RegionUnion", regions, "at least one region")
        for region in regions:
            good = isinstance(region, Region) and region.names == regions[0].names
            require(good, "RegionUnion", region, f"regions with the coordinates of {regions[0]!r}")
        nested = [region.regions if isinstance(region, RegionUnion) else (region,) for region in regions]
        flat = tuple(region for group in nested for region in group)
        freeze(self, regions=flat, names=flat[0].names, measure=sum(region.measure for region in flat))

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.regions))

    def _contains(self, points: Points) -> Mask:
        inside: Mask = np.any([region.contains(points) for region in self.regions], axis=0)
        return inside

    def _place(self, rule: Rule) -> CubeRule:
        parts = [region._place(rule.independent(i)) for i, region in enumerate(self.regions)]
        return np.vstack([points for points, _ in parts]), np.hstack([weights for _, weights in parts])


@final
@dataclass(frozen=True, init=False, repr=False)
class Box(Region):
    """A product of intervals with named coordinates.

    Parameters
    ----------
    bounds
        The name of each coordinate, in order, with its bounds `(lower, upper)`.

    Examples
    --------
    >>> import pilescore as ps
    >>> box = ps.Box(x=(-1, 1), t=(0, 0.5))
    >>> box(ps.GaussLegendre((8, 4)))
    Nodes(32 points in x and t, weights summing to 1)
    >>> box.face(x=-1).normal, box.slice(t=0).measure, len(box.boundary.regions)
    ((-1.0, 0.0), 2.0, 4)
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    names: tuple[str, ...]

    def __init__(self, /, **bounds: Any) -> None:
        require(len(bounds) > 0, "Box", bounds, "at least one coordinate, such as Box(x=(-1, 1))")
        pairs = {name: as_array(pair, f"Box {name}") for name, pair in bounds.items()}
        for name, pair in pairs.items():
            good = pair.shape == (2,) and pair[0] < pair[1]
            require(bool(good), f"Box {name}", bounds[name], "a lower and a greater upper bound, such as (-1, 1)")
        lower, upper = np.array(list(pairs.values())).T
        measure = float(np.prod(upper - lower))
        freeze(self, lower=tuple(lower.tolist()), upper=tuple(upper.tolist()), names=(*bounds,), measure=measure)

    def __repr__(self) -> str:
        bounds = zip(self.names, self.lower, self.upper, strict=True)
        return f"Box({', '.join(f'{name}=({a:.12g}, {b:.12g})' for name, a, b in bounds)})"

    @property
    def interior(self) -> Box:
        """The box itself."""
        return self

    @property
    def boundary(self) -> RegionUnion:
        """The union of all faces."""
        return RegionUnion(*self.faces)

    @property
    def faces(self) -> tuple[Slice, ...]:
        """The faces: the lower and the upper face of the first coordinate, then of the second, and so on."""
        bounds = zip(self.names, self.lower, self.upper, strict=True)
        return tuple(self.face(**{name: value}) for name, a, b in bounds for value in (a, b))

    def axis(self, name: str) -> int:
        """Return the position of a coordinate."""
        if name not in self.names:
            raise InputError(f"coordinate: {self!r} has no coordinate {name!r}{did_you_mean(name, self.names, 0.3)}")
        return self.names.index(name)

    def face(self, /, **bound: Any) -> Slice:
        """Return the face on which one coordinate is at a bound, with its outward normal.

        Examples
        --------
        >>> import pilescore as ps
        >>> right = ps.Box(x=(0, 1), y=(0, 2)).face(x=1)
        >>> right.normal, right.measure
        ((1.0, 0.0), 2.0)
        """
        require(len(bound) == 1, "face", bound, "one coordinate at a bound, such as face(x=1)")
        [(name, value)] = bound.items()
        axis, value = self.axis(name), _as_number(value, f"face {name}")
        a, b = self.lower[axis], self.upper[axis]
        end = a if abs(value - a) < abs(value - b) else b
        expected = f"{a:.12g} or {b:.12g}, the bounds (slice({name}=...) cuts through the inside)"
        require(abs(value - end) <= RELATIVE_TOLERANCE * (b - a), f"face {name}", value, expected)
        sign = 1.0 if end == b else -1.0
        return Slice(self, ((axis, end),), tuple(sign if i == axis else 0.0 for i in range(self.dimension)))

    def slice(self, /, **values: Any) -> Slice:
        """Return the part of the box on which one or more coordinates are fixed, without a normal.

        Examples
        --------
        >>> import pilescore as ps
        >>> ps.Box(t=(0, 1), x=(0, 2)).slice(t=0.5)(ps.GaussLegendre(1)).points
        array([[0.5, 1. ]])
        """
        require(len(values) > 0, "slice", values, "at least one coordinate, such as slice(t=0.5)")
        fixed = {self.axis(name): _as_number(value, f"slice {name}") for name, value in values.items()}
        for i, value in fixed.items():
            a, b = self.lower[i], self.upper[i]
            good = abs(value - (a + b) / 2) <= (0.5 + RELATIVE_TOLERANCE) * (b - a)
            require(good, f"slice {self.names[i]}", value, f"a value in [{a:.12g}, {b:.12g}]")
        return Slice(self, tuple(sorted(fixed.items())))

    def points(self, points: Any, weights: Any = None) -> Nodes:
        """Return nodes at explicit points in the box; by default the weights are equal and sum to its measure.

        Examples
        --------
        >>> import pilescore as ps
        >>> ps.Box(x=(0, 2)).points([0.5, 1.0, 1.5, 2.0]).weights
        array([0.5, 0.5, 0.5, 0.5])
        """
        points = as_points(points, "points")
        outside = np.flatnonzero(~self.contains(points))
        if outside.size:
            raise InputError(
                f"points: expected points in {self!r}; {outside.size} of {len(points)} lie outside, "
                f"the first is points[{outside[0]}] = {tuple(points[outside[0]].tolist())}"
            )
        equal = np.full(len(points), self.measure / len(points))
        return Nodes(points, equal if weights is None else as_array(weights, "weights"), self.names, self)

    def _contains(self, points: Points) -> Mask:
        lower, upper = np.array(self.lower), np.array(self.upper)
        near = np.abs(points - (lower + upper) / 2) <= (0.5 + RELATIVE_TOLERANCE) * (upper - lower)
        inside: Mask = np.all(near, axis=1)
        return inside

    def _place(self, rule: Rule) -> CubeRule:
        return Slice(self, ())._place(rule)


@final
@dataclass(frozen=True, repr=False)
class Slice(Region):
    """The part of a box on which some coordinates are fixed; made by `Box.face` and `Box.slice`.

    A rule with a size for each axis of the box uses the sizes of the free axes. A single point has weight 1.

    Parameters
    ----------
    box
        The box.
    fixed
        Pairs of the index of an axis and the value on it.
    normal
        The outward unit normal of a face; None for a slice.

    Examples
    --------
    >>> import pilescore as ps
    >>> ps.Box(x=(-1, 1), t=(0, 1)).slice(t=0)(ps.GaussLegendre(2)).points.round(3).tolist()
    [[-0.577, 0.0], [0.577, 0.0]]
    """

    box: Box
    fixed: tuple[tuple[int, float], ...]
    normal: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        measure = math.prod((s for i, s in enumerate(self._sides) if i not in dict(self.fixed)), start=1.0)
        freeze(self, names=self.box.names, measure=measure)

    def __repr__(self) -> str:
        fixed = ", ".join(f"{self.names[i]}={value:.12g}" for i, value in self.fixed)
        return f"{self.box!r}.{'slice' if self.normal is None else 'face'}({fixed})"

    @property
    def _sides(self) -> list[float]:
        return [b - a for a, b in zip(self.box.lower, self.box.upper, strict=True)]

    def _contains(self, points: Points) -> Mask:
        near = [abs(points[:, i] - v) <= RELATIVE_TOLERANCE * self._sides[i] for i, v in self.fixed]
        inside: Mask = np.all([self.box.contains(points), *near], axis=0)
        return inside

    def _place(self, rule: Rule) -> CubeRule:
        values = dict(self.fixed)
        free = [i for i in range(self.dimension) if i not in values]
        unit, weights = rule.restricted([*values], self.dimension).unit(len(free))
        lower, upper = np.array(self.box.lower)[free], np.array(self.box.upper)[free]
        points = np.empty((len(weights), self.dimension))
        # Not lower + (upper − lower) u: this form returns the bounds exactly at u = 0 and u = 1.
        points[:, free] = lower * (1 - unit) + upper * unit
        points[:, [*values]] = [*values.values()]
        return points, weights * self.measure


def freeze(instance: Any, **fields: Any) -> None:
    """Set fields of a frozen dataclass during its construction, and make its arrays read-only."""
    for name, value in fields.items():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
        object.__setattr__(instance, name, value)


def as_names(names: Any, dimension: int) -> tuple[str, ...]:
    """Return the names of the coordinates; by default x, y, z, or x1 ... xd in more than three dimensions."""
    if names is None:
        return ("x", "y", "z")[:dimension] if dimension <= 3 else tuple(f"x{i + 1}" for i in range(dimension))
    good = isinstance(names, Sequence) and not isinstance(names, str)
    good = good and all(isinstance(name, str) and name for name in names)
    good = good and len(names) == dimension == len(set(names))
    require(good, "names", names, f"{dimension} different names, one for each coordinate")
    return tuple(names)


def _as_number(value: Any, argument: str) -> float:
    """Return `value` as a finite float."""
    array = as_array(value, argument)
    require(array.ndim == 0, argument, array, "a single number")
    return float(array)
