"""Regions against closed-form integrals, the divergence theorem, and each other."""

import math

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import iv

from pilescore.domains.quadrature import Chebyshev, ClenshawCurtis, Fejer, GaussLegendre, MonteCarlo, Sobol, TensorRule
from pilescore.domains.regions import Box, Nodes, Region, RegionUnion, Slice, nodes_at
from pilescore.domains.shapes import Annulus, Ball, Disk, Sphere, Triangulation
from pilescore.errors import InputError

SQUARE = Box(x=(-1, 2), y=(0, 0.5))
CUBE = Box(x=(-1, 1), y=(0, 3), t=(2, 2.5))
DISK = Disk(center=(0.5, -1), radius=1.5)
BALL = Ball(center=(0.5, -1, 2), radius=1.5)
RING = Annulus(center=(-1, 0.25), inner=0.5, outer=1.25)
MESH = Triangulation([[0, 0], [2, 0], [2, 1], [0, 1], [3, 3]], [[0, 1, 2], [0, 2, 3], [2, 1, 4]])
SURFACE = Triangulation([[0, 0, 1], [1, 0, 0], [0, 1, 0], [1, 1, 2]], [[0, 1, 2], [1, 3, 2]])

MEASURES = [
    (Box(x=(-1, 2)), 3.0),
    (SQUARE, 1.5),
    (CUBE, 3.0),
    (SQUARE.face(x=2), 0.5),
    (SQUARE.boundary, 7.0),
    (CUBE.slice(t=2.25), 6.0),
    (CUBE.slice(x=0, t=2.25), 3.0),
    (CUBE.slice(x=0, y=1, t=2), 1.0),
    (Box(x=(-1, 2)).boundary, 2.0),
    (DISK, 2.25 * math.pi),
    (DISK.boundary, 3 * math.pi),
    (BALL, 4.5 * math.pi),
    (BALL.boundary, 9 * math.pi),
    (RING, (1.25**2 - 0.5**2) * math.pi),
    (RING.boundary, 3.5 * math.pi),
    (MESH, 2 + 0.5),
    (SURFACE, math.sqrt(3) / 2 + 3 / 2),
    (DISK | Box(x=(3, 4), y=(0, 1)), 2.25 * math.pi + 1),
]
RULES = [
    GaussLegendre(5),
    Chebyshev(4),
    Fejer(3),
    ClenshawCurtis(4),
    ClenshawCurtis(2),
    Sobol(64),
    MonteCarlo(50),
]


@pytest.fixture
def unchecked(monkeypatch):
    """Turn off the type checks of the test suite: users run without them and must see the package's own errors."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def integral(made: Nodes, function) -> float:
    return float(made.weights @ function(*made.points.T))


@pytest.mark.parametrize(("region", "measure"), MEASURES, ids=lambda value: repr(value)[:40])
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_weights_are_positive_and_sum_to_the_measure_on_points_of_the_region(region, measure, rule):
    made = region(rule)
    assert region.measure == pytest.approx(measure, rel=1e-14)
    assert made.weights.min() > 0
    assert made.weights.sum() == pytest.approx(measure, rel=1e-13)
    assert made.points.shape == (len(made), region.dimension)
    assert made.names == region.names
    assert made.region is region
    assert made.rule is rule
    assert region.contains(made.points).all()


def test_sizes_for_each_axis_of_a_box_serve_its_faces():
    rule = GaussLegendre((2, 3, 4))
    assert [len(face(rule)) for face in CUBE.faces] == [12, 12, 8, 8, 6, 6]
    assert len(CUBE.boundary(rule)) == 52
    assert len(CUBE.slice(x=0, t=2)(rule)) == 3
    assert len(CUBE.slice(x=0, y=0, t=2)(rule)) == 1
    assert len(Box(x=(0, 1)).face(x=0)(GaussLegendre((4,)))) == 1
    mixed = TensorRule(ClenshawCurtis(2), GaussLegendre(3), Fejer(4))
    made = CUBE.face(y=3)(mixed)
    assert set(made.points[:, 0]) == {-1.0, 1.0}
    assert set(made.points[:, 1]) == {3.0}
    assert len(made) == 8
    # Sizes for the face alone are used unchanged.
    np.testing.assert_array_equal(CUBE.face(y=3)(GaussLegendre((2, 4))).points, CUBE.face(y=3)(rule).points)
    with pytest.raises(InputError, match=r"1 sizes \(7,\) for 2 axes"):
        CUBE.face(y=3)(GaussLegendre((7,)))


def test_sizes_for_each_axis_of_a_ball_serve_its_boundary():
    rule = GaussLegendre((3, 4, 7))
    assert len(BALL(rule)) == 84
    np.testing.assert_array_equal(BALL.boundary(rule).points, BALL.boundary(GaussLegendre((4, 7))).points)
    assert len(DISK.boundary(GaussLegendre((3, 9)))) == 9
    assert len(RING.boundary(GaussLegendre((3, 9)))) == 18
    # The radius is the first axis, the height the second.
    made = BALL(GaussLegendre((1, 2, 8)))
    np.testing.assert_allclose(np.linalg.norm(made.points - BALL.center, axis=1), 0.75)
    assert len(np.unique(made.points[:, 2].round(12))) == 2


def test_box_integrates_in_the_order_of_its_coordinates():
    made = CUBE(GaussLegendre((2, 3, 1)))
    # ∫x² over [-1,1] · ∫y⁵ over [0,3] · ∫t over [2,2.5]
    assert integral(made, lambda x, y, t: x**2 * y**5 * t) == pytest.approx(2 / 3 * 3**6 / 6 * 1.125, rel=1e-14)
    assert made.points.min(axis=0) @ [0, 0, 1] == 2.25


def test_slice_integrates_over_the_free_coordinates_at_the_fixed_values():
    made = CUBE.slice(y=1.5)(GaussLegendre(3))
    assert integral(made, lambda x, y, t: x**2 * y * t) == pytest.approx(2 / 3 * 1.5 * 1.125, rel=1e-14)
    point = CUBE.slice(t=2.2, x=0.1, y=1.5)(GaussLegendre(3))
    np.testing.assert_array_equal(point.points, [[0.1, 1.5, 2.2]])
    np.testing.assert_array_equal(point.weights, [1.0])


def centred(region, function):
    return lambda *x: function(*(xi - ci for xi, ci in zip(x, region.center, strict=True)))


def test_disk():
    R = DISK.radius
    for rule in (GaussLegendre((2, 5)), Fejer((3, 5)), ClenshawCurtis((3, 5))):
        value = integral(DISK(rule), centred(DISK, lambda x, y: x**2 * y**2))
        assert value == pytest.approx(math.pi * R**6 / 24, rel=1e-13)
    # One node fewer on any axis is not enough.
    for rule in (GaussLegendre((1, 5)), GaussLegendre((2, 4))):
        value = integral(DISK(rule), centred(DISK, lambda x, y: x**2 * y**2))
        assert value != pytest.approx(math.pi * R**6 / 24, rel=1e-2)
    value = integral(DISK(GaussLegendre((8, 20))), centred(DISK, lambda x, y: np.exp(x + y)))
    assert value == pytest.approx(2 * math.pi * R * iv(1, math.sqrt(2) * R) / math.sqrt(2), rel=1e-13)


def test_circle():
    circle, R = DISK.boundary, DISK.radius
    value = integral(circle(GaussLegendre(24)), centred(DISK, lambda x, y: np.exp(x)))
    assert value == pytest.approx(2 * math.pi * R * iv(0, R), rel=1e-14)


def test_annulus():
    made = RING(GaussLegendre((20, 5)))
    a, b = RING.inner, RING.outer
    value = integral(made, centred(RING, lambda x, y: x**2))
    assert value == pytest.approx(math.pi / 4 * (b**4 - a**4), rel=1e-14)
    value = integral(made, centred(RING, lambda x, y: np.log(x**2 + y**2)))
    expected = math.pi * sum(s * (r**2 * math.log(r**2) - r**2) for s, r in ((1, b), (-1, a)))
    assert value == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_ball_and_sphere(axis):
    R = BALL.radius
    exp = centred(BALL, lambda *x: np.exp(x[axis]))
    rule = GaussLegendre((10, 12, 20))
    # By shells: ∫ exp(x_i) over the sphere of radius r is 4πr sinh r, and over the ball ∫ 4πr sinh r dr.
    assert integral(BALL.boundary(rule), exp) == pytest.approx(4 * math.pi * R * math.sinh(R), rel=1e-12)
    expected = 4 * math.pi * (R * math.cosh(R) - math.sinh(R))
    assert integral(BALL(rule), exp) == pytest.approx(expected, rel=1e-12)
    square = centred(BALL, lambda *x: x[axis] ** 2 * x[axis - 1] ** 2)
    expected = 4 * math.pi / 15 * R**6
    assert integral(BALL.boundary(GaussLegendre((3, 5))), square) == pytest.approx(expected, rel=1e-13)
    assert integral(BALL(GaussLegendre((4, 3, 5))), square) == pytest.approx(expected * R / 7, rel=1e-13)


def barycentric_moment(a, b, c, area):
    return 2 * area * math.prod(map(math.factorial, (a, b, c))) / math.factorial(a + b + c + 2)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_triangle_is_exact_to_degree_2n_minus_2_and_no_further(n):
    corners = np.array([[0.2, -1.0], [1.5, 0.3], [-0.4, 0.9]])
    triangle = Triangulation(corners, [[0, 1, 2]])
    made = triangle(GaussLegendre(n))
    shares = np.linalg.solve(np.vstack([corners.T, np.ones(3)]), np.vstack([made.points.T, np.ones(len(made))]))
    worst = {}
    for degree in range(2 * n + 1):
        errors = []
        for a in range(degree + 1):
            for b in range(degree + 1 - a):
                c = degree - a - b
                found = made.weights @ (shares[0] ** a * shares[1] ** b * shares[2] ** c)
                errors.append(abs(found - barycentric_moment(a, b, c, triangle.measure)))
        worst[degree] = max(errors)
    assert max(worst[degree] for degree in range(2 * n - 1)) < 1e-14
    assert worst[2 * n - 1] > 1e-8


def test_a_mesh_of_a_square_agrees_with_the_box_and_with_itself_in_space():
    flat = Triangulation(
        [[-1, 0], [2, 0], [2, 0.5], [-1, 0.5], [0.3, 0.2]], [[0, 1, 4], [1, 2, 4], [4, 2, 3], [3, 0, 4]]
    )
    expected = integral(SQUARE(GaussLegendre(12)), lambda x, y: np.exp(x * y))
    assert integral(flat(GaussLegendre(12)), lambda x, y: np.exp(x * y)) == pytest.approx(expected, rel=1e-13)
    # The same mesh, moved by an isometry into a plane in space.
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0][:, :2]
    space = Triangulation(flat.vertices @ turn.T, flat.triangles)
    assert space.measure == pytest.approx(1.5, rel=1e-14)
    made = space(GaussLegendre(12))
    x, y = (made.points @ turn).T
    assert made.weights @ np.exp(x * y) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("rule", [Sobol(4096, seed=1), MonteCarlo(40_000, seed=1)], ids=repr)
@pytest.mark.parametrize(
    "region", [SQUARE, DISK, DISK.boundary, BALL, BALL.boundary, RING, MESH, SURFACE, CUBE.boundary], ids=repr
)
def test_sampled_rules_converge_to_the_integral(region, rule):
    """Every map of a sampled rule preserves measure: second moments agree with Gauss."""
    fine = region(GaussLegendre(12))
    made = region(rule)
    for part in parts(region):
        np.testing.assert_allclose(part(rule).weights, part.measure / rule.size, rtol=1e-12)
    for i in range(region.dimension):
        exact = fine.weights @ fine.points[:, i] ** 2
        spread = np.sqrt(fine.weights @ (fine.points[:, i] ** 2 - exact / region.measure) ** 2 * region.measure)
        bound = 4 * spread / math.sqrt(rule.size) / (1 if isinstance(rule, MonteCarlo) else 8)
        assert abs(made.weights @ made.points[:, i] ** 2 - exact) < bound + 1e-12


def test_sampled_points_are_spread_over_triangles_by_area():
    mesh = Triangulation([[0, 0], [3, 0], [0, 1], [-1, 0]], [[0, 1, 2], [0, 2, 3]])
    made = mesh(Sobol(256))
    assert len(made) == 256
    assert np.sum(made.points[:, 0] > 0) == 192
    np.testing.assert_allclose(made.weights, 2 / 256)


def test_sampled_points_differ_between_the_parts_of_a_union():
    made = SQUARE.boundary(MonteCarlo(10, seed=4))
    left, right = made.points[:10, 1], made.points[10:20, 1]
    assert not np.any(left == right)
    np.testing.assert_array_equal(made.points, SQUARE.boundary(MonteCarlo(10, seed=4)).points)


def field(x):
    """A polynomial vector field in the plane or in space."""
    if len(x) == 2:
        return x[0] ** 3 + x[0] * x[1] ** 2 - x[1], x[0] ** 2 * x[1] - 2 * x[1] ** 2 + x[0]
    return x[0] ** 3 + x[1], x[1] ** 2 * x[2] - x[0], x[2] ** 3 * x[0] + 2 * x[2]


def divergence(x):
    if len(x) == 2:
        return 4 * x[0] ** 2 + x[1] ** 2 - 4 * x[1]
    return 3 * x[0] ** 2 + 2 * x[1] * x[2] + 3 * x[2] ** 2 * x[0] + 2


def parts(boundary: Region) -> tuple[Region, ...]:
    return boundary.regions if isinstance(boundary, RegionUnion) else (boundary,)


@pytest.mark.parametrize("rule", [GaussLegendre(7), ClenshawCurtis(9), Fejer(8)], ids=repr)
@pytest.mark.parametrize("region", [SQUARE, CUBE, DISK, RING, BALL], ids=repr)
def test_divergence_theorem(region, rule):
    """∫_∂Ω n·F = ∫_Ω div F, with the normal of each part of the boundary."""
    inside = region.interior(rule)
    expected = inside.weights @ divergence(inside.points.T)
    flux = 0.0
    for part in parts(region.boundary):
        made = part(rule)
        x = made.points.T
        normal = part.normal(x) if callable(part.normal) else part.normal
        flux += made.weights @ sum(n * f for n, f in zip(normal, field(x), strict=True))
    assert abs(expected) > 0.5
    assert flux == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("region", [Box(x=(-1, 3)), SQUARE, CUBE, DISK, RING, BALL], ids=repr)
def test_normals_are_unit_vectors_that_leave_the_region(region):
    for part in parts(region.boundary):
        for point in part(GaussLegendre(4)).points:
            normal = np.array(part.normal(point) if callable(part.normal) else part.normal)
            assert normal @ normal == pytest.approx(1, rel=1e-12)
            inside, outside = region.contains([point - 1e-6 * normal, point + 1e-6 * normal])
            assert inside
            assert not outside


def test_normals_elsewhere():
    assert SQUARE.face(x=-1).normal == (-1.0, 0.0)
    assert SQUARE.face(y=0.5).normal == (0.0, 1.0)
    for region in (SQUARE, SQUARE.boundary, SQUARE.slice(x=2), DISK, RING, BALL, MESH, SURFACE):
        assert region.normal is None
    # Equal spheres have equal normals, which can be keys of a cache.
    assert DISK.boundary.normal == DISK.boundary.normal
    assert hash(DISK.boundary.normal) == hash(DISK.boundary.normal)
    assert DISK.boundary.normal != Sphere(DISK.center, DISK.radius, outward=False).normal
    gradient = jax.jacfwd(lambda x: jnp.array(BALL.boundary.normal(x)))(jnp.ones(3))
    np.testing.assert_allclose(gradient, np.eye(3) / 1.5, rtol=1e-15)


def test_contains():
    assert SQUARE.contains([[0, 0], [-1, 0.5], [2 + 1e-10, 0], [2 + 1e-7, 0], [0, -1e-7]]).tolist() == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert SQUARE.face(x=2).contains([[2, 0.1], [2, 0.6], [1.999, 0.1]]).tolist() == [True, False, False]
    assert SQUARE.boundary.contains([[2, 0.1], [0, 0], [0, 0.1]]).tolist() == [True, True, False]
    assert DISK.contains([[0.5, 0.5], [2, -1], [0.5, 0.51]]).tolist() == [True, True, False]
    assert DISK.boundary.contains([[0.5, 0.5], [0.5, -1]]).tolist() == [True, False]
    assert BALL.contains([[0.5, -1, 3.5], [0.5, -1, 3.51]]).tolist() == [True, False]
    assert RING.contains([[-1, 0.25], [-0.5, 0.25], [0, 0.25], [0.3, 0.25]]).tolist() == [
        False,
        True,
        True,
        False,
    ]
    inside = [[1, 0.5], [2.3, 1], [2, 0], [0, 0], [2.5, 2.5], [-0.001, 0.5], [1.9, 1.1]]
    assert MESH.contains(inside).tolist() == [True, True, True, True, False, False, False]
    assert SURFACE.contains([[1 / 3, 1 / 3, 1 / 3], [1 / 3, 1 / 3, 0.34], [1, 1, 2]]).tolist() == [
        True,
        False,
        True,
    ]
    assert Box(x=(0, 1)).contains([0.5, 1.5]).tolist() == [True, False]


def test_coincident_nodes_are_merged_and_weightless_ones_left_out():
    for region, count in ((DISK, 1 + 3 * 4), (BALL.boundary, 2 + 2 * 4), (BALL, 3 * (2 + 2 * 4))):
        made = region(ClenshawCurtis(4))
        assert len(made) == count
        assert len(np.unique(made.points.round(12), axis=0)) == count
    assert len(MESH(ClenshawCurtis(4))) == 3 * 3 * 4


def test_box_attributes():
    assert CUBE.names == ("x", "y", "t")
    assert CUBE.dimension == 3
    assert CUBE.lower == (-1.0, 0.0, 2.0)
    assert CUBE.upper == (1.0, 3.0, 2.5)
    assert CUBE.axis("t") == 2
    assert CUBE.interior is CUBE
    assert CUBE.faces[5] == CUBE.face(t=2.5 + 1e-12)
    assert [face.normal for face in SQUARE.faces] == [(-1, 0), (1, 0), (0, -1), (0, 1)]
    assert SQUARE.boundary.regions == SQUARE.faces
    assert repr(SQUARE) == "Box(x=(-1, 2), y=(0, 0.5))"
    assert repr(SQUARE.face(x=2)) == "Box(x=(-1, 2), y=(0, 0.5)).face(x=2)"
    assert repr(CUBE.slice(t=2.25, x=0)) == "Box(x=(-1, 1), y=(0, 3), t=(2, 2.5)).slice(x=0, t=2.25)"
    assert repr(Box(x=(0, 1)) | Box(x=(2, 3))) == "Box(x=(0, 1)) | Box(x=(2, 3))"
    assert repr(MESH) == "Triangulation(3 triangles in x and y)"
    assert Box(x=(0, 1)) == Box(x=np.array([0, 1]))
    assert Box(x=(0, 1)) != Box(y=(0, 1))
    assert isinstance(SQUARE.slice(x=0), Slice)
    assert BALL.names == ("x", "y", "z")
    assert Disk(names=("r", "s")).boundary.names == ("r", "s")
    assert Annulus((0, 0), 1, 2, names=("r", "s")).boundary.names == ("r", "s")
    assert Disk() == Ball((0, 0), 1)
    assert BALL.interior is BALL
    assert RING.interior is RING
    assert RING.boundary.regions == (RING.outer_boundary, RING.inner_boundary)
    with pytest.raises(AttributeError):
        SQUARE.lower = (0.0, 0.0)


def test_union_is_flat_and_keeps_the_order():
    a, b, c = (Box(x=(i, i + 1)) for i in range(3))
    assert (a | b | c).regions == (a | (b | c)).regions == (a, b, c)
    made = (c | a)(GaussLegendre(2))
    np.testing.assert_allclose(made.points[:, 0] > 1.5, [True, True, False, False])
    overlapping = a | a
    assert overlapping.measure == 2.0
    assert len(overlapping(GaussLegendre(2))) == 4


def test_nodes_add_and_refine():
    rule = GaussLegendre((3, 4))
    inside, edge = SQUARE(rule), SQUARE.face(x=2)(rule)
    both = inside + edge
    assert len(both) == 16
    assert both.region.regions == (SQUARE, SQUARE.face(x=2))
    assert both.rule == rule
    np.testing.assert_array_equal(both.points[12:], edge.points)
    np.testing.assert_array_equal(both.weights, [*inside.weights, *edge.weights])
    fine = both.refined(2)
    assert len(fine) == 6 * 8 + 8
    assert fine.rule == GaussLegendre((6, 8))
    np.testing.assert_array_equal(fine.points, (SQUARE | SQUARE.face(x=2))(GaussLegendre((6, 8))).points)
    assert len(inside.refined()) == 48
    assert len(DISK(Sobol(16, seed=3)).refined(2)) == 64
    mixed = inside + SQUARE(GaussLegendre(2))
    assert mixed.region.measure == 3.0
    assert mixed.rule is None
    loose = inside + nodes_at([[0.0, 0.0]])
    assert loose.region is None
    for made in (mixed, loose, nodes_at([[0.0, 0.0]]), SQUARE.points([[0, 0]])):
        with pytest.raises(InputError, match="no region and rule to refine"):
            made.refined(2)


def test_explicit_nodes():
    made = nodes_at([[0, 0], [1, 2], [3, 4]])
    np.testing.assert_allclose(made.weights, 1 / 3)
    assert made.names == ("x", "y")
    assert made.region is None
    assert made.rule is None
    assert nodes_at([0.1, 0.2]).points.shape == (2, 1)
    assert nodes_at(np.zeros((1, 5))).names == ("x1", "x2", "x3", "x4", "x5")
    assert nodes_at([[0, 0]], [2], ["x", "t"]).names == ("x", "t")
    assert repr(made) == "Nodes(3 points in x and y, weights summing to 1)"
    source = np.zeros((2, 2))
    made = nodes_at(source)
    source[0] = 7
    assert made.points.max() == 0
    with pytest.raises(ValueError, match="read-only"):
        made.points[0] = 1


def test_points_of_a_box():
    made = SQUARE.points([[0, 0.25], [2, 0.5]])
    np.testing.assert_allclose(made.weights, 0.75)
    assert made.region is SQUARE
    np.testing.assert_array_equal(SQUARE.points([[0, 0]], [3.0]).weights, [3.0])
    with pytest.raises(InputError, match=r"points in Box\(x=\(-1, 2\), .* 2 of 3 lie outside, .*\[1\] = \(5.0, 0.0\)"):
        SQUARE.points([[0, 0], [5, 0], [0, 1]])


finite = st.floats(-50, 50)
lengths = st.floats(0.01, 100)


@settings(deadline=None, max_examples=60)
@given(a=finite, h=lengths, b=finite, k=lengths, n=st.integers(1, 6))
@pytest.mark.parametrize("family", [GaussLegendre, Chebyshev, Fejer])
def test_box_rules_are_affine_images_of_each_other(family, a, h, b, k, n):
    unit = Box(x=(0, 1), y=(0, 1))(family(n))
    made = Box(x=(a, a + h), y=(b, b + k))(family(n))
    sides = np.array([a + h - a, b + k - b])  # as rounded
    np.testing.assert_allclose(made.points, [a, b] + unit.points * sides, atol=1e-13 * (50 + h + k))
    np.testing.assert_allclose(made.weights, unit.weights * np.prod(sides), rtol=1e-12)


@settings(deadline=None, max_examples=60)
@given(
    corners=st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=3, max_size=3),
    order=st.permutations([0, 1, 2]),
)
def test_triangle_moments_depend_neither_on_the_order_nor_the_orientation(corners, order):
    a, b, c = np.array(corners)
    area = abs((b - a)[0] * (c - a)[1] - (b - a)[1] * (c - a)[0]) / 2
    if area < 1e-3:
        return
    triangle = Triangulation(corners, [order])
    assert triangle.measure == pytest.approx(area, rel=1e-9)
    middle = (a + b + c) / 3
    # ∫ x xᵀ = A/12 (9 m mᵀ + aaᵀ + bbᵀ + ccᵀ)
    second = area / 12 * (9 * np.outer(middle, middle) + sum(np.outer(p, p) for p in (a, b, c)))
    made = triangle(GaussLegendre(2))
    np.testing.assert_allclose((made.points.T * made.weights) @ made.points, second, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Box(), "Box: expected at least one coordinate"),
        (
            lambda: Box(x=(1, -1)),
            r"Box x: expected a lower and a greater upper bound, such as \(-1, 1\); got \(1, -1\)",
        ),
        (lambda: Box(x=(0, 1), t=(1, 1)), "Box t: expected a lower and a greater upper bound"),
        (lambda: Box(x=(0, np.inf)), "Box x: expected finite numbers"),
        (lambda: Box(x=(np.nan, 0)), "Box x: expected finite numbers"),
        (lambda: Box(x=3), "Box x"),
        (lambda: Box(x=(0, 1, 2)), "Box x"),
        (lambda: Box(x="ab"), "Box x"),
        (lambda: Box(velocity=(0, 1), time=(0, 1)).axis("tine"), "no coordinate 'tine'; did you mean 'time'"),
        (lambda: SQUARE.axis("q"), r"has no coordinate 'q'$"),
        (lambda: SQUARE.face(x=1.5), r"face x: expected -1 or 2, the bounds \(slice\(x=...\) .*; got 1.5"),
        (lambda: SQUARE.face(x=2 + 1e-7), "face x: expected -1 or 2"),
        (lambda: SQUARE.face(z=1), "no coordinate 'z'"),
        (lambda: SQUARE.face(), "face: expected one coordinate at a bound"),
        (lambda: SQUARE.face(x=2, y=0), "face: expected one coordinate at a bound"),
        (lambda: SQUARE.face(x=(2, 2)), "face x: expected a single number"),
        (lambda: SQUARE.slice(), "slice: expected at least one coordinate"),
        (lambda: SQUARE.slice(x=2.1), r"slice x: expected a value in \[-1, 2\]; got 2.1"),
        (lambda: SQUARE.slice(t=0), "no coordinate 't'"),
        (lambda: SQUARE.slice(x=np.nan), "slice x: expected finite numbers"),
        (lambda: SQUARE.contains([0.0, 0.0]), r"points: expected shape \(n, 2\)"),
        (lambda: SQUARE.points([[0, 0, 0]]), r"points: expected shape \(n, 2\)"),
        (lambda: SQUARE.points([[0, 0]], [-1.0]), r"weights\[0\]: expected a positive weight; got -1.0"),
        (lambda: SQUARE(8), r"rule: expected a quadrature rule such as GaussLegendre\(8\); got 8"),
        (lambda: SQUARE(GaussLegendre((1, 2, 3))), "3 sizes .* for 2 axes"),
        (lambda: DISK(GaussLegendre((1, 2, 3))), "3 sizes .* for 2 axes"),
        (lambda: SQUARE | Box(x=(0, 1), t=(0, 1)), r"RegionUnion: expected regions with the coordinates of Box"),
        (lambda: SQUARE | 3, "RegionUnion: expected regions"),
        (lambda: RegionUnion(), "RegionUnion: expected at least one region"),
        (lambda: Ball((0, 0), 0), "radius: expected a positive number"),
        (lambda: Ball((0, 0), -1), "radius"),
        (lambda: Ball((0,), 1), "center: expected 2 or 3 coordinates"),
        (lambda: Ball(0, 1), "center: expected 2 or 3 coordinates"),
        (lambda: Ball((0, 0), 1, names=("x",)), "names: expected 2 different names"),
        (lambda: Disk((0, 0, 0)), "center: expected 2 coordinates"),
        (lambda: Sphere((0, np.inf), 1), "center: expected finite"),
        (lambda: Annulus((0, 0), 2, 1), "outer: expected more than the inner radius, 2.0; got 1.0"),
        (lambda: Annulus((0, 0), 0, 1), "inner: expected a positive number"),
        (lambda: Annulus((0, 0, 0), 1, 2), "center: expected 2 coordinates"),
        (lambda: Triangulation([[0], [1], [2]], [[0, 1, 2]]), "vertices: expected shape"),
        (
            lambda: Triangulation([[0, 0], [1, 0], [0, 1]], [[0, 1, 3]]),
            r"triangles\[0\]: expected indices of the 3 vertices, from 0 to 2",
        ),
        (
            lambda: Triangulation([[0, 0], [1, 0], [0, 1]], [[0, 1, -1]]),
            "expected indices of the 3 vertices, from 0 to 2",
        ),
        (lambda: Triangulation([[0, 0], [1, 0], [0, 1]], [[0, 1, 2.0]]), "triangles: expected integers"),
        (lambda: Triangulation([[0, 0], [1, 0], [0, 1]], [0, 1, 2]), "triangles: expected integers"),
        (lambda: Triangulation([[0, 0], [1, 0]], np.zeros((0, 3), int)), "triangles: expected integers"),
        (
            lambda: Triangulation([[0, 0], [1, 0], [0, 1], [2, 0]], [[0, 1, 2], [0, 1, 3]]),
            r"triangles\[1\]: expected vertices that are not on a line; got vertices \[0, 1, 3\]",
        ),
        (lambda: Triangulation([[0, 0], [1, 0], [0, 1]], [[0, 1, 1]]), "vertices that are not on a line"),
        (lambda: nodes_at([]), "points: expected at least one point"),
        (lambda: nodes_at([[0, np.nan]]), "points: expected finite"),
        (lambda: nodes_at([[0, 0]], [1, 2]), "weights: expected one for each of 1 points"),
        (lambda: nodes_at([[0, 0], [1, 1]], [1, 0]), r"weights\[1\]: expected a positive weight; got 0.0"),
        (lambda: nodes_at([[0, 0]], names=("x", "x")), "names: expected 2 different names"),
        (lambda: nodes_at([[0, 0]], names="xy"), "names"),
        (lambda: nodes_at([[0, 0]], names=5), "names"),
        (lambda: nodes_at([[0, 0]], names=("x", "")), "names"),
        (lambda: nodes_at([[0, 0]]) + nodes_at([[0, 0]], names=("x", "t")), r"\+: expected nodes in"),
        (lambda: nodes_at([[0, 0]]) + 3, r"\+: expected nodes in"),
        (lambda: SQUARE(GaussLegendre(2)).refined(0), "factor"),
    ],
)
def test_bad_input(make, message, unchecked):
    with pytest.raises(InputError, match=message):
        make()


def test_region_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Region()
