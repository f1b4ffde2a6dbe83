"""Curved and meshed regions: circles, spheres, disks, balls, annuli and triangulations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float, Int

from ..errors import InputError, as_array, as_points, as_positive, listed, require
from .quadrature import CubeRule, Rule
from .regions import RELATIVE_TOLERANCE, Mask, Points, Region, RegionUnion, as_names, freeze


@final
@dataclass(frozen=True, init=False)
class Sphere(Region):
    """A circle or sphere |x − c| = R; its `normal` points away from the centre, or towards it if not `outward`.

    The axes of a rule are, in 3-D, the height, and the azimuth, which is periodic. A uniform height preserves area
    (Archimedes).

    Parameters
    ----------
    center
        The centre `c`: two coordinates for a circle, three for a sphere.
    radius
        The radius `R`.
    names
        The names of the coordinates. Default: x, y, z.
    outward
        Whether the normal points away from the centre.

    Examples
    --------
    >>> import pilescore as ps
    >>> circle = ps.domains.Sphere(center=(0, 0), radius=2)
    >>> circle(ps.GaussLegendre(16)), circle.normal((2.0, 0.0))
    (Nodes(16 points in x and y, weights summing to 12.5664), (1.0, 0.0))
    """

    center: tuple[float, ...]
    radius: float
    names: tuple[str, ...]
    outward: bool

    def __init__(self, center: Any, radius: Any, names: Any = None, outward: bool = True) -> None:
        center, radius, names = _as_center(center), as_positive(radius, "radius"), as_names(names, len(center))
        normal = _SphereNormal(center, (1 if outward else -1) / radius)
        measure = 2 * math.pi * radius if len(center) == 2 else 4 * math.pi * radius**2
        freeze(self, center=center, radius=radius, names=names, outward=outward, measure=measure, normal=normal)

    def _contains(self, points: Points) -> Mask:
        return np.abs(_norm(points - self.center) - self.radius) <= RELATIVE_TOLERANCE * self.radius

    def _place(self, rule: Rule) -> CubeRule:
        d = self.dimension
        unit, weights = rule.restricted([0], d).unit(d - 1, (False, True)[3 - d :])
        return _distinct(self.center + self.radius * _directions(unit), weights * self.measure)


@final
@dataclass(frozen=True, init=False)
class Ball(Region):
    """A disk or ball |x − c| ≤ R; the axes of a rule are the radius, in 3-D the height, and the azimuth.

    In 2-D, and in 3-D for sampled rules, r = R u^(1/d) preserves measure. This suits deterministic rules in a disk,
    because the angular mean of a smooth function is smooth in r². Deterministic rules in 3-D use r = R u with
    density 3u², and their weights are rescaled to sum to the volume. Coincident nodes (at the centre or a pole) are
    merged.

    Parameters
    ----------
    center
        The centre `c`: two coordinates for a disk, three for a ball.
    radius
        The radius `R`.
    names
        The names of the coordinates. Default: x, y, z.

    Examples
    --------
    >>> import pilescore as ps
    >>> ball = ps.domains.Ball(center=(0, 0, 1), radius=2)
    >>> ball(ps.GaussLegendre(6)), ball.boundary(ps.GaussLegendre(6))
    (Nodes(216 points in x, y and z, weights summing to 33.5103),
     Nodes(36 points in x, y and z, weights summing to 50.2655))
    """

    center: tuple[float, ...]
    radius: float
    names: tuple[str, ...]

    def __init__(self, center: Any, radius: Any, names: Any = None) -> None:
        center, radius, names = _as_center(center), as_positive(radius, "radius"), as_names(names, len(center))
        measure = math.pi * radius**2 if len(center) == 2 else 4 / 3 * math.pi * radius**3
        freeze(self, center=center, radius=radius, names=names, measure=measure)

    @property
    def interior(self) -> Ball:
        """The ball itself."""
        return self

    @property
    def boundary(self) -> Sphere:
        """The circle or sphere around the ball."""
        return Sphere(self.center, self.radius, self.names)

    def _contains(self, points: Points) -> Mask:
        return _norm(points - self.center) <= (1 + RELATIVE_TOLERANCE) * self.radius

    def _place(self, rule: Rule) -> CubeRule:
        d = self.dimension
        unit, weights = rule.unit(d, (False, False, True)[3 - d :])
        radius = unit[:, :1]
        if d == 2 or rule.sampled:
            radius = radius ** (1 / d)
        else:
            weights = weights * radius[:, 0] ** 2
        points = self.center + self.radius * radius * _directions(unit[:, 1:])
        return _distinct(points, weights * (self.measure / weights.sum()))


def Disk(center: Any = (0.0, 0.0), radius: Any = 1.0, names: Any = None) -> Ball:
    """Return the disk |x − c| ≤ R in the plane: a `Ball` in two dimensions.

    Parameters
    ----------
    center
        The centre `c`.
    radius
        The radius `R`.
    names
        The names of the coordinates. Default: x, y.

    Examples
    --------
    >>> import pilescore as ps
    >>> ps.Disk(radius=2)
    Ball(center=(0.0, 0.0), radius=2.0, names=('x', 'y'))
    """
    return Ball(_as_center(center, (2,)), radius, names)


@final
@dataclass(frozen=True, init=False)
class Annulus(Region):
    """A ring R₁ ≤ |x − c| ≤ R₂ in the plane; the axes of a rule are r², which is uniform, and the periodic azimuth.

    Parameters
    ----------
    center
        The centre `c`.
    inner, outer
        The radii R₁ and R₂.
    names
        The names of the coordinates. Default: x, y.

    Examples
    --------
    >>> import pilescore as ps
    >>> ring = ps.Annulus(center=(0, 0), inner=1, outer=2)
    >>> ring(ps.GaussLegendre(6)), ring.inner_boundary.normal((0.0, 1.0))
    (Nodes(36 points in x and y, weights summing to 9.42478), (-0.0, -1.0))
    """

    center: tuple[float, ...]
    inner: float
    outer: float
    names: tuple[str, ...]

    def __init__(self, center: Any, inner: Any, outer: Any, names: Any = None) -> None:
        center, inner, outer = _as_center(center, (2,)), as_positive(inner, "inner"), as_positive(outer, "outer")
        require(inner < outer, "outer", outer, f"more than the inner radius, {inner}")
        measure = math.pi * (outer**2 - inner**2)
        freeze(self, center=center, inner=inner, outer=outer, names=as_names(names, 2), measure=measure)

    @property
    def interior(self) -> Annulus:
        """The annulus itself."""
        return self

    @property
    def boundary(self) -> RegionUnion:
        """The union of the outer and the inner circle."""
        return self.outer_boundary | self.inner_boundary

    @property
    def outer_boundary(self) -> Sphere:
        """The outer circle; its normal points away from the centre."""
        return Sphere(self.center, self.outer, self.names)

    @property
    def inner_boundary(self) -> Sphere:
        """The inner circle; its normal points towards the centre, out of the annulus."""
        return Sphere(self.center, self.inner, self.names, outward=False)

    def _contains(self, points: Points) -> Mask:
        middle, width = (self.inner + self.outer) / 2, self.outer - self.inner
        return np.abs(_norm(points - self.center) - middle) <= (0.5 + RELATIVE_TOLERANCE) * width

    def _place(self, rule: Rule) -> CubeRule:
        unit, weights = rule.unit(2, (False, True))
        radius = np.sqrt(self.inner**2 * (1 - unit[:, :1]) + self.outer**2 * unit[:, :1])
        return self.center + radius * _directions(unit[:, 1:]), weights * self.measure


@final
@dataclass(frozen=True, init=False, eq=False, repr=False)
class Triangulation(Region):
    """A triangulated part of the plane, or a triangulated surface in space.

    A deterministic rule is applied to each triangle by the collapsed map x = a + u (b − a) + u v (c − b). Its
    Jacobian is 2 |T| u, and GaussLegendre(n) is exact for degree 2n − 2. Nodes of weight 0, at u = 0, are left out;
    ClenshawCurtis repeats nodes on shared edges. A sampled rule spreads its points over the whole mesh: the first
    random number chooses a triangle in proportion to its area, and small triangles may get no point.

    Parameters
    ----------
    vertices
        The vertices, of shape (v, 2) or (v, 3).
    triangles
        The indices of each triangle's vertices: integers of shape (t, 3).
    names
        The names of the coordinates. Default: x, y, z.

    Examples
    --------
    >>> import pilescore as ps
    >>> mesh = ps.domains.Triangulation([[0, 0], [2, 0], [2, 1], [0, 1]], [[0, 1, 2], [0, 2, 3]])
    >>> mesh(ps.GaussLegendre(3))
    Nodes(18 points in x and y, weights summing to 2)
    """

    vertices: Float[np.ndarray, "v d"]
    triangles: Int[np.ndarray, "t 3"]
    names: tuple[str, ...]

    def __init__(self, vertices: Any, triangles: Any, names: Any = None) -> None:
        vertices = as_points(vertices, "vertices")
        require(vertices.shape[1] in (2, 3), "vertices", vertices, "shape (v, 2) or (v, 3)")
        indices = as_array(triangles, "triangles").astype(int)
        good = np.asarray(triangles).dtype.kind in "iu" and indices.ndim == 2 and indices.shape[1] == 3
        require(good and len(indices) > 0, "triangles", np.asarray(triangles), "integers of shape (t, 3)")
        stray = np.any((indices < 0) | (indices >= len(vertices)), axis=1)
        _require_all(~stray, indices, f"indices of the {len(vertices)} vertices, from 0 to {len(vertices) - 1}")
        edges, normals = _edges(vertices, indices)
        areas = _norm(normals) / 2
        flat = areas <= 1e-12 * np.sum(edges**2, axis=(0, 2))
        _require_all(~flat, indices, "vertices that are not on a line")
        names, measure = as_names(names, vertices.shape[1]), float(areas.sum())
        freeze(self, vertices=vertices, triangles=indices, names=names, measure=measure)

    def __repr__(self) -> str:
        return f"Triangulation({len(self.triangles)} triangles in {listed(self.names)})"

    def _contains(self, points: Points) -> Mask:
        edges, normals = _edges(self.vertices, self.triangles)
        size = RELATIVE_TOLERANCE * float(np.ptp(self.vertices, axis=0).max())
        inside = np.zeros(len(points), dtype=bool)
        for i, n in enumerate(normals):
            arm = _padded(points - self.vertices[self.triangles[i, 0]])
            u = np.cross(arm, edges[1, i]) @ n / (n @ n)
            v = np.cross(edges[0, i], arm) @ n / (n @ n)
            flat = np.abs(arm @ n) <= size * math.sqrt(n @ n)
            inside |= flat & (np.min([u, v, 1 - u - v], axis=0) >= -RELATIVE_TOLERANCE)
        return inside

    def _place(self, rule: Rule) -> CubeRule:
        unit, weights = rule.unit(2)
        corners = self.vertices[self.triangles]
        areas = _norm(_edges(self.vertices, self.triangles)[1]) / 2
        if rule.sampled:
            # The first number chooses a triangle; its position within the triangle's share is then uniform in [0, 1],
            # and its square root makes the collapsed map preserve area.
            ends = np.cumsum(areas) / areas.sum()
            chosen = np.minimum(np.searchsorted(ends, unit[:, 0], side="right"), len(areas) - 1)
            share = areas[chosen] / areas.sum()
            u = np.sqrt(np.clip((unit[:, 0] - ends[chosen]) / share + 1, 0, 1))
            points = _collapsed(corners[chosen], u, unit[:, 1])
            return points, weights * self.measure
        kept = unit[:, 0] > 0
        (u, v), weights = unit[kept].T, weights[kept]
        points = _collapsed(corners[:, None], u, v).reshape(-1, self.dimension)
        return points, np.outer(areas, weights * 2 * u).ravel()


@dataclass(frozen=True)
class _SphereNormal:
    """The normal ±(x − c) / R of a sphere, as a function that JAX can differentiate."""

    center: tuple[float, ...]
    scale: float

    def __call__(self, point: Any) -> tuple[Any, ...]:
        return tuple((point[i] - c) * self.scale for i, c in enumerate(self.center))


def _as_center(center: Any, dimensions: tuple[int, ...] = (2, 3)) -> tuple[float, ...]:
    """Return the coordinates of a centre as a tuple."""
    array = as_array(center, "center")
    expected = f"{' or '.join(map(str, dimensions))} coordinates"
    require(array.ndim == 1 and array.size in dimensions, "center", center, expected)
    return tuple(array.tolist())


def _require_all(good: Mask, triangles: Int[np.ndarray, "n 3"], expected: str) -> None:
    """Raise an `InputError` that names the first bad triangle, if there is one."""
    for i in np.flatnonzero(~good)[:1]:
        raise InputError(f"triangles[{i}]: expected {expected}; got vertices {triangles[i].tolist()}")


def _directions(unit: Float[np.ndarray, "m k"]) -> Float[np.ndarray, "m k+1"]:
    """Map the unit interval to the unit circle, or the unit square to the unit sphere, preserving measure."""
    angle = 2 * np.pi * unit[:, -1]
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if unit.shape[1] == 1:
        return circle
    height = unit[:, :1]
    # With z = 2h − 1, √(1 − z²) = 2 √(h (1 − h)), which does not cancel near the poles.
    return np.hstack([2 * np.sqrt(height * (1 - height)) * circle, 2 * height - 1])


def _distinct(points: Float[np.ndarray, "n d"], weights: Float[np.ndarray, " n"]) -> CubeRule:
    """Remove nodes of weight 0 and merge coincident nodes; the order stays."""
    points, weights = points[weights > 0], weights[weights > 0]
    _, first, which = np.unique(points, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return points[first[order]], np.bincount(which.ravel(), weights)[order]


def _collapsed(corners: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return a + u (b − a) + u v (c − b) for corners a, b, c of shape (..., 3, d)."""
    a, b, c = np.moveaxis(corners, -2, 0)
    points: np.ndarray = a + u[:, None] * (b - a) + (u * v)[:, None] * (c - b)
    return points


def _edges(vertices: np.ndarray, triangles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the edges b − a and c − a of triangles in space, of shape (2, t, 3), and their cross products (t, 3)."""
    a, b, c = (_padded(vertices[triangles[:, i]]) for i in range(3))
    return np.stack([b - a, c - a]), np.cross(b - a, c - a)


def _padded(points: np.ndarray) -> np.ndarray:
    """Return points of the plane as points in space, with the third coordinate 0."""
    return np.pad(points, ((0, 0), (0, 3 - points.shape[1])))


def _norm(vectors: np.ndarray) -> np.ndarray:
    """Return the Euclidean norms of vectors of shape (n, d)."""
    return np.asarray(np.linalg.norm(vectors, axis=1))
