"""The algebra of operators against exact rational arithmetic on polynomials, symbols and formulas derived by hand."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pilescore as ps
from pilescore.errors import InputError

Index = tuple[int, ...]
Poly = dict[Index, int]  # exponents to integer coefficients
Terms = list[tuple[Index, Poly]]  # Σ c_α(x) ∂^α with polynomial coefficients

NAMES = ("x", "y", "z")
POINTS = {1: (0.5,), 2: (0.5, -1.25), 3: (0.5, -1.25, 0.75)}


def space(d: int) -> ps.Box:
    return ps.Box(**dict.fromkeys(NAMES[:d], (-2.0, 2.0)))


LINE, PLANE, SPACE = (space(d) for d in (1, 2, 3))
STRIP = ps.Box(t=(0, 1), x=(0, 1))


# Exact arithmetic on polynomials, independent of the library.


def poly_add(p: Poly, q: Poly) -> Poly:
    return {e: p.get(e, 0) + q.get(e, 0) for e in {*p, *q}}


def poly_mul(p: Poly, q: Poly) -> Poly:
    out: Poly = {}
    for (e, a), (f, b) in itertools.product(p.items(), q.items()):
        key = tuple(i + j for i, j in zip(e, f, strict=True))
        out[key] = out.get(key, 0) + a * b
    return out


def poly_diff(p: Poly, alpha: Index) -> Poly:
    out: Poly = {}
    for e, a in p.items():
        if all(i >= k for i, k in zip(e, alpha, strict=True)):
            key = tuple(i - k for i, k in zip(e, alpha, strict=True))
            out[key] = out.get(key, 0) + a * math.prod(map(math.perm, e, alpha))
    return out


def poly_at(p: Poly, point: tuple[float, ...]) -> float:
    total = Fraction(0)
    for e, a in p.items():
        total += a * math.prod((Fraction(x) ** i for x, i in zip(point, e, strict=True)), start=Fraction(1))
    return float(total)


def apply_exactly(terms: Terms, f: Poly) -> Poly:
    out: Poly = {}
    for alpha, c in terms:
        out = poly_add(out, poly_mul(c, poly_diff(f, alpha)))
    return out


def function_of(p: Poly) -> Any:
    """Return the polynomial as a JAX function; powers are written as products."""

    def function(point: jax.Array) -> Any:
        total = 0.0 * point[0]
        for e, a in p.items():
            term: Any = float(a)
            for i, power in enumerate(e):
                for _ in range(power):
                    term = term * point[i]
            total = total + term
        return total

    return function


def derivative(d: int, alpha: Index) -> ps.Operator:
    result = ps.identity
    for partial, order in zip(ps.partials(space(d)), alpha, strict=True):
        result = result * partial**order
    return result


def operator_of(terms: Terms, d: int) -> ps.Operator:
    """Return the library's operator; constant coefficients are numbers, the others functions."""
    total = 0 * ps.partials(space(d))[0]
    for number, (alpha, c) in enumerate(terms):
        constant = not any(any(e) for e in c)
        factor = float(sum(c.values())) if constant else ps.coefficient(function_of(c), f"c{number}")
        total = total + factor * derivative(d, alpha)
    return total


def polys(d: int, degree: int, size: int) -> st.SearchStrategy[Poly]:
    exponents = st.tuples(*[st.integers(0, degree)] * d)
    return st.dictionaries(exponents, st.integers(-4, 4), min_size=1, max_size=size)


def operators(d: int) -> st.SearchStrategy[Terms]:
    alphas = st.tuples(*[st.integers(0, 2)] * d).filter(lambda a: sum(a) <= 2)
    constants = st.integers(-5, 5).map(lambda c: {(0,) * d: c})
    return st.lists(st.tuples(alphas, st.one_of(constants, polys(d, 2, 2))), min_size=1, max_size=2)


def close(value: Any, expected: float, rel: float = 1e-11) -> None:
    assert float(value) == pytest.approx(expected, rel=rel, abs=rel)


@pytest.mark.slow
@pytest.mark.parametrize("d", [1, 2, 3])
@given(data=st.data())
@settings(max_examples=8, deadline=None, derandomize=True)
def test_composition_is_application_in_turn(d: int, data: st.DataObject) -> None:
    first, second = data.draw(operators(d)), data.draw(operators(d))
    f = data.draw(polys(d, 4, 3))
    a, b, g = operator_of(first, d), operator_of(second, d), function_of(f)
    expected = poly_at(apply_exactly(first, apply_exactly(second, f)), POINTS[d])
    close((a * b)(g)(POINTS[d]), expected)
    close(a(b(g))(POINTS[d]), expected)
    close((a @ b)(g)(POINTS[d]), expected)
    total = poly_add(apply_exactly(first, f), {e: -3 * c for e, c in apply_exactly(second, f).items()})
    close((a - 3 * b)(g)(POINTS[d]), poly_at(total, POINTS[d]))


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=6, deadline=None, derandomize=True)
def test_ring_laws_hold_for_variable_coefficients(data: st.DataObject) -> None:
    d, point = 2, POINTS[2]
    terms = [data.draw(operators(d)) for _ in range(3)]
    a, b, c = (operator_of(t, d) for t in terms)
    f = {(4, 1): 1, (1, 4): -2, (3, 3): 1, (0, 2): 3}
    g = function_of(f)
    nested = apply_exactly(terms[0], apply_exactly(terms[1], apply_exactly(terms[2], f)))
    for product in ((a * b) * c, a * (b * c)):
        close(product(g)(point), poly_at(nested, point))
    both = poly_add(apply_exactly(terms[1], f), apply_exactly(terms[2], f))
    for left in (a * (b + c), a * b + a * c):
        close(left(g)(point), poly_at(apply_exactly(terms[0], both), point))
    inner = apply_exactly(terms[2], f)
    right = poly_add(apply_exactly(terms[0], inner), apply_exactly(terms[1], inner))
    for operator in ((a + b) * c, a * c + b * c):
        close(operator(g)(point), poly_at(right, point))


@pytest.mark.parametrize("power", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "terms",
    [
        [((1, 0), {(0, 1): 1}), ((0, 1), {(1, 0): -1})],  # rotation y ∂x − x ∂y
        [((1, 0), {(1, 0): 1}), ((0, 1), {(0, 1): 1})],  # Euler x ∂x + y ∂y
        [((1, 1), {(0, 0): 2}), ((0, 0), {(2, 0): 1})],  # 2 ∂x∂y + x²
    ],
)
def test_powers_of_variable_operators(terms: Terms, power: int) -> None:
    f: Poly = {(5, 2): 1, (2, 4): -3, (1, 1): 2}
    exact = f
    for _ in range(power):
        exact = apply_exactly(terms, exact)
    result = (operator_of(terms, 2) ** power)(function_of(f))(POINTS[2])
    close(result, poly_at(exact, POINTS[2]))


def test_euler_operator_multiplies_homogeneous_functions_by_their_degree() -> None:
    dx, dy = ps.partials(PLANE)
    euler = (lambda p: p[0]) * dx + (lambda p: p[1]) * dy

    def cubic(p: Any) -> Any:
        return p[0] ** 3 - 2 * p[0] * p[1] ** 2

    point = (0.7, -1.3)
    close((euler**2)(cubic)(point), 9 * float(cubic(point)))


@pytest.mark.parametrize("d", [1, 2, 3])
def test_constant_coefficients_have_symbols(d: int) -> None:
    """On exp(k·x) an operator multiplies by its symbol, and composition multiplies symbols."""
    k = np.array([0.7, -1.1, 0.4])[:d]
    along = ps.partials(space(d))
    a = sum((0.5 * (i + 1) * p for i, p in enumerate(along)), start=2 * ps.identity)
    b = sum((p**2 for p in along), start=-1.5 * ps.identity)
    symbol_a = 2 + sum(0.5 * (i + 1) * k[i] for i in range(d))
    symbol_b = -1.5 + sum(k**2)

    def wave(p: Any) -> Any:
        return jnp.exp(jnp.dot(jnp.asarray(k), p))

    at = float(np.exp(k @ np.array(POINTS[d])))
    close((a * b)(wave)(POINTS[d]), symbol_a * symbol_b * at)
    close((b**2 * a)(wave)(POINTS[d]), symbol_a * symbol_b**2 * at)
    assert repr(a * b - b * a) == "0"
    assert (b**2 * a).order == 5


def test_commutator_of_derivative_and_function_is_its_derivative() -> None:
    dx, dy = ps.partials(PLANE)
    a = ps.coefficient(lambda p: jnp.sin(p[0]) * p[1] ** 2, "a")
    commutator = dx * a - a * dx
    assert repr(commutator) == "(∂x a) Id"
    assert commutator.order == 0
    x, y = 0.3, 1.2
    points = np.array([[x, y], [1.0, 2.0]])
    expected = np.cos(points[:, 0]) * points[:, 1] ** 2
    np.testing.assert_allclose(commutator.coefficients(points)[0], expected, rtol=1e-14)
    assert repr(dx * dy - dy * dx) == "0"
    assert repr(dy * a - a * dy) == "(∂y a) Id"
    second = dx**2 * a - a * dx**2
    assert repr(second) == "2 (∂x a) ∂x + (∂x² a) Id"
    close(second(lambda p: p[0] ** 2)((x, y)), 4 * x * math.cos(x) * y**2 - math.sin(x) * y**2 * x**2)
    b = ps.parameter("b", 2.0)
    assert repr(dx * b - b * dx) == "0"


def test_product_of_functions_is_differentiated_by_leibniz() -> None:
    (dx,) = ps.partials(LINE)
    a, b = ps.coefficient(jnp.sin, "a"), ps.coefficient(jnp.exp, "b")
    sine = ps.coefficient(lambda p: jnp.sin(p[0]), "a")
    wave = ps.coefficient(lambda p: jnp.exp(p[0]), "b")
    commutator = dx * (sine * wave) - (sine * wave) * dx
    assert repr(commutator) == "b (∂x a) Id + a (∂x b) Id"
    x = 0.4
    expected = math.exp(x) * (math.sin(x) + math.cos(x))
    close(commutator.coefficients(np.array([[x]]))[0, 0], expected)
    assert repr(a * b) == "a b Id"


def test_powers_of_functions_are_differentiated_by_the_chain_rule() -> None:
    (dx,) = ps.partials(LINE)
    a = ps.coefficient(lambda p: jnp.sin(p[0]), "a")
    commutator = dx * a**3 - a**3 * dx
    assert repr(commutator) == "3 a² (∂x a) Id"
    x = 0.4
    s, c = math.sin(x), math.cos(x)
    close(commutator.coefficients(np.array([[x]]))[0, 0], 3 * s**2 * c)
    second = dx**2 * a**3  # on the constant 1: (sin³)'' = 6 sin cos² − 3 sin³
    close(second(lambda p: 1.0 + 0.0 * p[0])((x,)), 6 * s * c**2 - 3 * s**3)
    twice = (a * dx) ** 2
    assert repr(twice) == "a² ∂x² + a (∂x a) ∂x"
    close((twice * a)(jnp.sum)((x,)), s**2 * (2 * c - x * s) + s * c * (s + x * c))


F = ps.coefficient(lambda p: p[0] ** 2, "a")
K = ps.coefficient(lambda p: 1 + p[0] * p[1], "k")


def named(p: Any) -> Any:
    return p[0]


def reprs() -> list[tuple[ps.Operator, str]]:
    (d,) = ps.partials(LINE)
    dx, dy = ps.partials(PLANE)
    dt, ds = ps.partials(STRIP)
    px, py, pz = ps.partials(SPACE)
    b = ps.parameter("beta", 30.0)
    return [
        (ps.identity, "Id"),
        (0 * dx, "0"),
        (dx - dx, "0"),
        (dx, "∂x"),
        (-dx, "-∂x"),
        (+1 * dx, "∂x"),
        (-1.0 * dx, "-∂x"),
        (0 - (-1) * dx, "∂x"),
        (dt + 30 * ds, "∂t + 30 ∂x"),
        (dt - 0.1 * ds**2, "∂t - 0.1 ∂x²"),
        ((dt + 30 * ds) * (dt - 30 * ds), "∂t² - 900 ∂x²"),
        (dx**2 + dy**2, "∂x² + ∂y²"),
        ((dx**2 + dy**2) ** 2, "∂x⁴ + 2 ∂x²∂y² + ∂y⁴"),
        (dx * dy, "∂x∂y"),
        (dy * dx, "∂x∂y"),
        (px * pz * py**2, "∂x∂y²∂z"),
        (d**12, "∂x¹²"),
        (d**0, "Id"),
        (dx * (F * dx), "a ∂x² + (∂x a) ∂x"),
        (F * dx**2, "a ∂x²"),
        (dx * F, "a ∂x + (∂x a) Id"),
        (dx * dy * F - F * dx * dy, "(∂y a) ∂x + (∂x a) ∂y + (∂x∂y a) Id"),
        (F**2 * dx, "a² ∂x"),
        (-F, "-a Id"),
        (dt + b * ds, "∂t + beta ∂x"),
        ((dt + b * ds) ** 2, "∂t² + 2 beta ∂t∂x + beta² ∂x²"),
        (3 * b * ds - 0.5, "3 beta ∂x - 0.5 Id"),
        (b - 1, "beta Id - Id"),
        (dx / 4, "0.25 ∂x"),
        (ds**2 / b, "beta⁻¹ ∂x²"),
        (ds / (4 * b**2), "0.25 beta⁻² ∂x"),
        (b * ds / b, "∂x"),
        (b**3 * ds / b, "beta² ∂x"),
        (1 / b, "beta⁻¹ Id"),
        (2 / (F * b) * dx, "2 a⁻¹ beta⁻¹ ∂x"),
        (dx / F, "a⁻¹ ∂x"),
        (dx * (1 / F), "a⁻¹ ∂x - a⁻² (∂x a) Id"),
        (dx / (2 * ps.identity), "0.5 ∂x"),
        (2.5 * dx - 1.5, "2.5 ∂x - 1.5 Id"),
        (1 - dx, "Id - ∂x"),
        (2 + dx, "2 Id + ∂x"),
        (1e-7 * dx, "1e-07 ∂x"),
        (dx * 3, "3 ∂x"),
        (named * dx, "named ∂x"),
        ((lambda p: p[0]) * dx, "c ∂x"),
        (dx * named, "named ∂x + (∂x named) Id"),
        (sum([dx, dy], start=0), "∂x + ∂y"),
        (ps.laplacian(LINE), "∂x²"),
        (ps.laplacian(SPACE), "∂x² + ∂y² + ∂z²"),
        (ps.divergence(PLANE, [1.0, 2.0]), "∂x + 2 ∂y"),
        (
            -ps.divergence(PLANE, [K * g for g in ps.gradient(PLANE)]),
            "-k ∂x² - (∂x k) ∂x - k ∂y² - (∂y k) ∂y",
        ),
    ]


@pytest.mark.parametrize(("operator", "text"), reprs(), ids=[text for _, text in reprs()])
def test_repr(operator: ps.Operator, text: str) -> None:
    assert repr(operator) == text
    assert str(operator) == text


def test_order() -> None:
    dx, dy = ps.partials(PLANE)
    orders = {
        0: [ps.identity, 0 * dx, dx - dx, F, ps.parameter("b", 1.0), dx * F - F * dx],
        1: [dx, dx + dy, F * dx, 2 + dy],
        2: [dx * dy, dx**2 + dy, dx * (F * dx), ps.laplacian(PLANE)],
        3: [dx**2 * dy, dx**2 * dy - dx],
        4: [(dx**2 + dy**2) ** 2],
    }
    for order, members in orders.items():
        assert [member.order for member in members] == [order] * len(members)


def test_indices_and_coefficients_line_up() -> None:
    dx, dy = ps.partials(PLANE)
    operator = 2 * dx**2 + K * dy - 3
    points = np.array([[0.5, 2.0], [-1.0, 3.0], [0.25, 0.5]])
    table = dict(zip(operator.indices(2), np.asarray(operator.coefficients(points)), strict=True))
    assert set(table) == {(2, 0), (0, 1), (0, 0)}
    np.testing.assert_array_equal(table[2, 0], [2.0] * 3)
    np.testing.assert_allclose(table[0, 1], 1 + points[:, 0] * points[:, 1], rtol=1e-15)
    np.testing.assert_array_equal(table[0, 0], [-3.0] * 3)
    assert np.asarray((0 * dx).coefficients(points)).shape == (0, 3)
    assert float((0 * dx)(lambda p: p[0])((1.0, 1.0))) == 0.0


def test_gradient_laplacian_and_divergence() -> None:
    def f(p: Any) -> Any:
        return jnp.sin(p[0]) * jnp.exp(2 * p[1]) * p[2] ** 3

    x, y, z = point = (0.4, -0.3, 1.5)
    s, c, e = math.sin(x), math.cos(x), math.exp(2 * y)
    expected = [c * e * z**3, 2 * s * e * z**3, 3 * s * e * z**2]
    for component, value in zip(ps.gradient(SPACE), expected, strict=True):
        close(component(f)(point), value)
    close(ps.laplacian(SPACE)(f)(point), -s * e * z**3 + 4 * s * e * z**3 + 6 * s * e * z)
    # ∇·(k ∇f) with k = x y, by hand: k Δf + y f_x + x f_y
    k = ps.coefficient(lambda p: p[0] * p[1], "k")
    flux = ps.divergence(SPACE, [k * g for g in ps.gradient(SPACE)])
    laplacian = 3 * s * e * z**3 + 6 * s * e * z
    close(flux(f)(point), x * y * laplacian + y * expected[0] + x * expected[1])
    # ∇·(v f) with v = (x², y z, 1): v·∇f + (2x + z) f
    v = [lambda p: p[0] ** 2, lambda p: p[1] * p[2], 1.0]
    carried = x**2 * expected[0] + y * z * expected[1] + expected[2] + (2 * x + z) * s * e * z**3
    close(ps.divergence(SPACE, v)(f)(point), carried)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_normal_derivative_on_every_face_of_a_box(d: int) -> None:
    def f(p: Any) -> Any:
        return sum((i + 1) * p[i] ** 2 for i in range(d))

    box = space(d)
    assert len(box.faces) == 2 * d
    for number, face in enumerate(box.faces):
        axis, sign = divmod(number, 2)
        sign = 2 * sign - 1
        operator = ps.normal_derivative(face)
        assert repr(operator) == ("∂" if sign > 0 else "-∂") + NAMES[axis]
        point = np.array(POINTS[d])
        point[axis] = 2.0 * sign
        close(operator(f)(point), sign * 2 * (axis + 1) * point[axis])


@pytest.mark.parametrize(
    ("region", "center", "sign"),
    [
        (ps.Disk(center=(0.5, -1.0), radius=2.0).boundary, (0.5, -1.0), 1),
        (ps.Annulus((0.5, -1.0), 0.5, 2.0).outer_boundary, (0.5, -1.0), 1),
        (ps.Annulus((0.5, -1.0), 0.5, 2.0).inner_boundary, (0.5, -1.0), -1),
        (ps.domains.Ball((0.5, -1.0, 2.0), 1.5).boundary, (0.5, -1.0, 2.0), 1),
        (ps.domains.Sphere((0.0, 0.0, 1.0), 3.0), (0.0, 0.0, 1.0), 1),
    ],
)
def test_normal_derivative_on_circles_and_spheres(region: Any, center: Any, sign: int) -> None:
    """The normal derivative of f = x² y + e^x (+ z² in space) at the nodes is n·∇f, with n from the centre."""
    nodes = region(ps.GaussLegendre(3))
    operator = ps.normal_derivative(region)

    def f(p: Any) -> Any:
        return p[0] ** 2 * p[1] + jnp.exp(p[0]) + (p[2] ** 2 if len(center) == 3 else 0.0)

    for point in nodes.points:
        normal = sign * (point - center) / np.linalg.norm(point - center)
        gradient = [2 * point[0] * point[1] + np.exp(point[0]), point[0] ** 2, 2 * point[-1]]
        close(operator(f)(point), float(normal @ gradient[: len(center)]))
    assert operator.order == 1
    assert repr(operator) == " + ".join(f"n_{name} ∂{name}" for name in NAMES[: len(center)])


def test_normal_derivative_needs_one_normal() -> None:
    for region in (PLANE.boundary, PLANE, PLANE.slice(x=0.0), ps.Disk()):
        with pytest.raises(InputError, match="one outward normal"):
            ps.normal_derivative(region)


def test_parameters_are_leaves() -> None:
    dt, dx = ps.partials(STRIP)
    operator = (dt + ps.parameter("beta", 30.0) * dx) ** 2
    assert operator.has_parameters
    assert not (dt + 30 * dx).has_parameters
    assert [float(leaf) for leaf in jax.tree.leaves(operator)] == [30.0]
    points = np.zeros((2, 2))
    table = dict(zip(operator.indices(2), np.asarray(operator.coefficients(points)), strict=True))
    np.testing.assert_array_equal(table[0, 2], [900.0, 900.0])
    np.testing.assert_array_equal(table[1, 1], [60.0, 60.0])
    moved = eqx.tree_at(lambda o: o.atoms[0].value, operator, jnp.asarray(2.0))
    close(moved(lambda p: p[1] ** 2)((0.0, 1.0)), 2 * 2.0**2)

    def of(beta: Any) -> Any:
        changed = eqx.tree_at(lambda o: o.atoms[0].value, operator, beta)
        return changed(lambda p: p[1] ** 2)(jnp.zeros(2))

    close(jax.grad(of)(jnp.asarray(3.0)), 4 * 3.0)  # d/dβ 2β²


def test_one_name_has_one_value() -> None:
    dt, dx = ps.partials(STRIP)
    b = ps.parameter("b", 1.5)
    twice = b * dt + ps.parameter("b", 1.5) * dx
    assert len(twice.atoms) == 1
    assert repr(b * dt - ps.parameter("b", 1.5) * dt) == "0"
    for combine in (lambda p, q: p * dt + q * dx, lambda p, q: p * q * dx, lambda p, q: p * dx - q):
        with pytest.raises(InputError, match=r"'b' has two values: 1\.5 and 2\.0"):
            combine(b, ps.parameter("b", 2.0))


class Affine(eqx.Module):
    slope: jax.Array
    offset: jax.Array

    def __call__(self, p: Any) -> Any:
        return jnp.dot(self.slope, p) + self.offset


def test_field_of_an_equinox_module() -> None:
    dx, dy = ps.partials(PLANE)
    module = Affine(jnp.array([2.0, -1.0]), jnp.asarray(0.5))
    operator = dx * (ps.coefficient(module, "k") * dx) + dy
    assert repr(operator) == "k ∂x² + (∂x k) ∂x + ∂y"
    assert operator.has_parameters
    x, y = 0.3, 0.8
    table = dict(zip(operator.indices(2), np.asarray(operator.coefficients(np.array([[x, y]]))), strict=True))
    close(table[2, 0][0], 2 * x - y + 0.5)
    close(table[1, 0][0], 2.0)
    close(table[0, 1][0], 1.0)

    def of(changed: ps.Operator) -> Any:
        return changed(lambda p: p[0] ** 3)(jnp.array([x, y]))

    gradient = jax.tree.leaves(eqx.filter_grad(of)(operator))
    # k ∂x² f = (s·p + o) 6x and (∂x k) ∂x f = s₀ 3x², leaves in the order of atoms k, ∂x k
    np.testing.assert_allclose(gradient[0], [6 * x * x, 6 * x * y], rtol=1e-13)
    close(gradient[1], 6 * x)
    np.testing.assert_allclose(gradient[2], [3 * x**2, 0.0], rtol=1e-13, atol=1e-15)
    close(gradient[3], 0.0)


@pytest.mark.parametrize(
    "two", [2, 2.0, np.float64(2.0), np.float32(2.0), np.int64(2), np.array(2.0), jnp.asarray(2.0)]
)
def test_numbers_on_both_sides(two: Any) -> None:
    (dx,) = ps.partials(LINE)
    texts = {
        "2 ∂x": [two * dx, dx * two, dx @ two],
        "2 Id + ∂x": [two + dx],
        "∂x + 2 Id": [dx + two],
        "∂x - 2 Id": [dx - two],
        "2 Id - ∂x": [two - dx],
        "0.5 ∂x": [dx / two],
    }
    for text, members in texts.items():
        for member in members:
            assert isinstance(member, ps.Operator)
            assert repr(member) == text


def test_functions_on_both_sides() -> None:
    (dx,) = ps.partials(LINE)

    def square(p: Any) -> Any:
        return p[0] ** 2

    for operator, expected in [
        (square * dx, 0.49 * math.cos(0.7)),
        (dx * square, 0.49 * math.cos(0.7) + 1.4 * math.sin(0.7)),
        (dx + square, math.cos(0.7) + 0.49 * math.sin(0.7)),
        (square + dx, math.cos(0.7) + 0.49 * math.sin(0.7)),
        (dx - square, math.cos(0.7) - 0.49 * math.sin(0.7)),
        (square - dx, 0.49 * math.sin(0.7) - math.cos(0.7)),
    ]:
        close(operator(lambda p: jnp.sin(p[0]))((0.7,)), expected)


def test_identity_joins_any_coordinates() -> None:
    for d in (1, 2, 3):
        first = ps.partials(space(d))[0]
        assert (first + ps.identity).names == NAMES[:d]
        close((ps.identity * 2)(lambda p: p[0] * p[-1])(POINTS[d]), 2 * POINTS[d][0] * POINTS[d][-1])
        assert ps.identity.indices(d) == ((0,) * d,)


def test_coordinates_must_agree() -> None:
    (d,) = ps.partials(LINE)
    dx, dy = ps.partials(PLANE)
    dt, _ = ps.partials(STRIP)
    for first, second in [(dx, d), (dx, dt)]:
        with pytest.raises(InputError, match="different coordinates"):
            first + second
        with pytest.raises(InputError, match="different coordinates"):
            first * second
    with pytest.raises(InputError, match=r"2 coordinates \(x, y\)"):
        dy(lambda p: p[0])((1.0,))
    with pytest.raises(InputError, match=r"1 coordinates \(x\)"):
        d.indices(2)


@pytest.mark.parametrize("power", [-1, 0.5, 2.0, "2", None])
def test_powers_are_counts(power: Any) -> None:
    dx, _ = ps.partials(PLANE)
    with pytest.raises((InputError, TypeError)):
        dx**power


@pytest.mark.parametrize("divisor", [0, 0.0, np.float64(0.0), np.array(0.0), np.ones(2)])
def test_division_needs_a_non_zero_number(divisor: Any) -> None:
    dx, _ = ps.partials(PLANE)
    with pytest.raises(InputError, match="non-zero number"):
        dx / divisor


def test_division_by_anything_else_is_refused() -> None:
    dx, dy = ps.partials(PLANE)
    b = ps.parameter("b", 2.0)
    for divisor in (dx, dy + 1, b + 1, F + K, b * dx, dx - dx):
        for dividend in (dx, b, 1.0):
            with pytest.raises(InputError, match=r"divisor of an operator: expected a non-zero number, or one product"):
                dividend / divisor
    with pytest.raises(TypeError):
        "a" / b


def test_quotients_are_differentiated_by_the_chain_rule() -> None:
    """∂x (s⁻² w ∘ f / b), its second derivative and its derivative in b agree with autodiff of the quotient."""
    (dx,) = ps.partials(LINE)
    s, w = ps.coefficient(lambda p: 2 + jnp.sin(p[0]), "s"), ps.coefficient(lambda p: jnp.exp(p[0]), "w")
    b = ps.parameter("b", 1.6)

    def f(p: Any) -> Any:
        return jnp.cos(2 * p[0])

    def quotient(x: Any) -> Any:
        return jnp.exp(x) * jnp.cos(2 * x) / (1.6 * (2 + jnp.sin(x)) ** 2)

    x = 0.4
    first, second = jax.grad(quotient), jax.grad(jax.grad(quotient))
    close((w / (s**2 * b))(f)((x,)), float(quotient(x)))
    close((dx * (w / (s**2 * b)))(f)((x,)), float(first(x)))
    close((dx**2 * (w / s / s / b))(f)((x,)), float(second(x)))

    def of(value: Any) -> Any:
        moved = eqx.tree_at(lambda o: o.atoms[0].value, dx / b**2, value)
        return moved.coefficients(jnp.zeros((1, 1)))[0, 0]

    close(of(jnp.asarray(0.5)), 4.0)
    close(jax.grad(of)(jnp.asarray(1.6)), -2 * 1.6**-3)


@pytest.mark.parametrize("bad", ["2", None, 1j, [1.0], {}])
def test_what_is_not_a_number_is_refused(bad: Any) -> None:
    dx, _ = ps.partials(PLANE)
    for combine in (
        lambda: dx + bad,
        lambda: bad + dx,
        lambda: dx * bad,
        lambda: bad * dx,
        lambda: dx - bad,
        lambda: bad - dx,
    ):
        with pytest.raises((InputError, TypeError)):
            combine()


@pytest.mark.parametrize("bad", [math.nan, math.inf, True])
def test_coefficients_are_finite_numbers(bad: Any) -> None:
    dx, _ = ps.partials(PLANE)
    with pytest.raises(InputError, match="coefficient of an operator"):
        bad * dx


def test_bad_parameters_fields_and_fluxes() -> None:
    for name in ("", "a b", "1a", "a.b", 3):
        with pytest.raises((InputError, TypeError)):
            ps.parameter(name, 1.0)
    for value in ([1.0, 2.0], math.nan, "one"):
        with pytest.raises(InputError, match="'b'"):
            ps.parameter("b", value)
    with pytest.raises((InputError, TypeError)):
        ps.coefficient(3.0)
    with pytest.raises(InputError, match="flux"):
        ps.divergence(PLANE, [1.0])
