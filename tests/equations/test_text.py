"""Equations as text against formulas derived by hand, `math`, autodiff, and independent Taylor arithmetic."""

from __future__ import annotations

import datetime
import itertools
import math
import pickle
import re
from collections.abc import Callable
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from hypothesis import example, given, settings
from hypothesis import strategies as st

import pilescore as ps
from pilescore.equations.text import IntegralEquation, Language, ParsedEquation
from pilescore.equations.text.expressions import FUNCTIONS as MATH_AND_JAX
from pilescore.equations.text.parser import MAX_LENGTH, ExpressionError, NonlinearError
from pilescore.errors import InputError

POINT = np.array([0.3, 0.7, -0.4])  # of (t, x, y)


def language(**options: Any) -> Language:
    given = {"numbers": {"k": 2.0, "nu": 0.1}, "inferred": {"beta": 30.0, "Re": 100.0}} | options
    made = Language(("t", "x", "y"), **given)
    made.define("f", "10 + 10*sin(2*pi*x)*sin(2*pi*y)")
    made.define("c", "1 + x**2*y")
    return made


TEXT = language()


def wave(p: Any) -> Any:
    return jnp.exp(0.5 * p[0]) * jnp.sin(1.5 * p[1]) * jnp.cos(0.8 * p[2])


def wave_derivative(order: tuple[int, int, int]) -> float:
    t, x, y = POINT
    a, b, c = order
    along_x = 1.5**b * math.sin(1.5 * x + b * math.pi / 2)
    return 0.5**a * math.exp(0.5 * t) * along_x * 0.8**c * math.cos(0.8 * y + c * math.pi / 2)


D = {"".join("txy"[i] * n for i, n in enumerate(o)): wave_derivative(o) for o in itertools.product(range(5), repeat=3)}
U = D[""]
T, X, Y = POINT
C, CX, CY = 1 + X**2 * Y, 2 * X * Y, X**2

# The text, the printed operator, and its value on the wave, derived by hand.
OPERATORS = [
    ("u", "Id", U),
    ("dx(u)", "∂x", D["x"]),
    ("-k*dx(u)", "-2 ∂x", -2 * D["x"]),
    ("dxx(u)", "∂x²", D["xx"]),
    ("dxy(u)", "∂x∂y", D["xy"]),
    ("dyx(u)", "∂x∂y", D["xy"]),
    ("dx(dy(u))", "∂x∂y", D["xy"]),
    ("dxxxx(u)", "∂x⁴", D["xxxx"]),
    ("+u", "Id", U),
    ("--u", "Id", U),
    ("u/4", "0.25 Id", U / 4),
    ("2*u*3", "6 Id", 6 * U),
    ("u**1", "Id", U),
    ("laplacian(u)", "∂x² + ∂y²", D["xx"] + D["yy"]),
    ("div(grad(u))", "∂x² + ∂y²", D["xx"] + D["yy"]),
    ("laplacian(laplacian(u))", "∂x⁴ + 2 ∂x²∂y² + ∂y⁴", D["xxxx"] + 2 * D["xxyy"] + D["yyyy"]),
    ("dt(u) + beta*dx(u)", "∂t + beta ∂x", D["t"] + 30 * D["x"]),
    ("dt(u) - nu*laplacian(u)", "∂t - 0.1 ∂x² - 0.1 ∂y²", D["t"] - 0.1 * (D["xx"] + D["yy"])),
    ("dxx(u)/Re", "Re⁻¹ ∂x²", D["xx"] / 100),
    ("dx(u)/(2*Re**2*x)", "0.5 Re⁻² x⁻¹ ∂x", D["x"] / (2e4 * X)),
    ("beta/Re*u", "Re⁻¹ beta Id", 0.3 * U),
    ("beta*u/beta", "Id", U),
    ("beta**-2*u", "beta⁻² Id", U / 900),
    ("(beta + 1)**2*u", "beta² Id + 2 beta Id + Id", 31**2 * U),
    ("(beta - x)*(beta + x)*u", "beta² Id - x² Id", (900 - X**2) * U),
    ("x**2*dx(u)", "x² ∂x", X**2 * D["x"]),
    ("x*(x*dx(u))", "x² ∂x", X**2 * D["x"]),
    ("sin(x)*u", "sin(x) Id", math.sin(X) * U),
    ("(1 + x**2)*u", "(1 + x²) Id", (1 + X**2) * U),
    ("-(1 + x**2)*u", "-(1 + x²) Id", -(1 + X**2) * U),
    ("x*dx(u) + sin(x)*dx(u)", "(x + sin(x)) ∂x", (X + math.sin(X)) * D["x"]),
    ("pi*u", f"{math.pi} Id", math.pi * U),
    ("pi*x*u", f"{math.pi} x Id", math.pi * X * U),
    ("x**0.5*u", "(x^0.5) Id", math.sqrt(X) * U),
    ("2**x*u", "(2^x) Id", 2**X * U),
    ("dx(x*u)", "x ∂x + Id", X * D["x"] + U),
    ("dx(x**3*u)", "x³ ∂x + 3 x² Id", X**3 * D["x"] + 3 * X**2 * U),
    ("dy(x**3*u)", "x³ ∂y", X**3 * D["y"]),
    ("dx(u/x)", "x⁻¹ ∂x - x⁻² Id", D["x"] / X - U / X**2),
    ("dx(sin(x)*u)", "sin(x) ∂x + (∂x sin(x)) Id", math.sin(X) * D["x"] + math.cos(X) * U),
    (
        "dx(x*sin(x)*u)",
        "x sin(x) ∂x + (∂x (x sin(x))) Id",
        X * math.sin(X) * D["x"] + (math.sin(X) + X * math.cos(X)) * U,
    ),
    (
        "dx((1 + x**2)**3*u)",
        "(1 + x²)³ ∂x + 6 (1 + x²)² x Id",
        (1 + X**2) ** 3 * D["x"] + 6 * X * (1 + X**2) ** 2 * U,
    ),
    ("c*u", "c Id", C * U),
    ("dx(c)*dx(u)", "(∂x c) ∂x", CX * D["x"]),
    ("dxy(c)*u", "(∂x∂y c) Id", 2 * X * U),
    (
        "-div(c*grad(u))",
        "-c ∂x² - (∂x c) ∂x - c ∂y² - (∂y c) ∂y",
        -C * (D["xx"] + D["yy"]) - CX * D["x"] - CY * D["y"],
    ),
    ("dt(u) + dot([k, beta], grad(u))", "∂t + 2 ∂x + beta ∂y", D["t"] + 2 * D["x"] + 30 * D["y"]),
    ("dot([x, -y] + [1, 2], grad(u))", "(x + 1) ∂x - (y - 2) ∂y", (X + 1) * D["x"] + (2 - Y) * D["y"]),
    ("div([x, y]*u/2)", "0.5 x ∂x + Id + 0.5 y ∂y", 0.5 * (X * D["x"] + Y * D["y"]) + U),
    ("dot(-grad(u), grad(c))", "-(∂x c) ∂x - (∂y c) ∂y", -CX * D["x"] - CY * D["y"]),
    ("(x + y + 1)**40*u", "(x + y + 1)⁴⁰ Id", (X + Y + 1) ** 40 * U),
    ("x*u - x*u + dt(u)", "∂t", D["t"]),
    ("0*dx(u) + u", "Id", U),
    ("\n  dx(u)\n + u\t", "∂x + Id", D["x"] + U),
]


@pytest.mark.parametrize(("text", "printed", "value"), OPERATORS, ids=[text for text, _, _ in OPERATORS])
def test_operators(text: str, printed: str, value: float) -> None:
    operator = TEXT.operator(text)
    assert str(operator) == printed
    assert operator.names == ("t", "x", "y")
    if operator.order <= 2:
        found = float(operator(wave)(POINT))
    else:
        keys = ["".join("txy"[i] * n for i, n in enumerate(o)) for o in operator.indices(3)]
        found = float(operator.coefficients(POINT[None])[:, 0] @ np.array([D[key] for key in keys]))
    assert found == pytest.approx(value, rel=1e-12, abs=1e-13)


# The text, the printed nonlinear operator, its linear operators, and its value on the wave, derived by hand.
NONLINEAR = [
    (
        "dt(u) + u*dx(u) - nu*dxx(u)",
        "∂t u - nu ∂x² u + u ∂x u",
        "∂t - 0.1 ∂x², Id, ∂x",
        D["t"] + U * D["x"] - 0.1 * D["xx"],
    ),
    ("-laplacian(u) + u**3", "-∂x² u - ∂y² u + u³", "-∂x² - ∂y², Id", -D["xx"] - D["yy"] + U**3),
    (
        "dot(grad(u), grad(u)) - 0.1*laplacian(u)",
        "-0.1 ∂x² u - 0.1 ∂y² u + (∂x u)² + (∂y u)²",
        "-0.1 ∂x² - 0.1 ∂y², ∂x, ∂y",
        D["x"] ** 2 + D["y"] ** 2 - 0.1 * (D["xx"] + D["yy"]),
    ),
    ("dt(u) - beta*u*(1 - u)", "∂t u - beta u (1 - u)", "∂t, Id", D["t"] - 30 * U * (1 - U)),
    ("dxx(u) - exp(u)", "∂x² u - exp(u)", "∂x², Id", D["xx"] - math.exp(U)),
    ("dx(u**2)/2", "u ∂x u", "Id, ∂x", U * D["x"]),
    ("k*(dx(u) + u**2)", "k ∂x u + k u²", "2 ∂x, Id", 2 * (D["x"] + U**2)),
    ("u + 2*u**2 - u*dx(u) + dx(u)", "u + ∂x u + 2 u² - u ∂x u", "Id, ∂x", U + 2 * U**2 - U * D["x"] + D["x"]),
    ("dx(u)/(1 + u)", "(∂x u)/(1 + u)", "Id, ∂x", D["x"] / (1 + U)),
    ("dx(u**1.5)", "1.5 (u^0.5) ∂x u", "Id, ∂x", 1.5 * U**0.5 * D["x"]),
    ("dx(u)*dy(u)", "(∂x u) (∂y u)", "∂x, ∂y", D["x"] * D["y"]),
    (
        "dx(c*(1 + u**2)*dx(u))",
        "(1 + u²) (∂x c) ∂x u + 2 c u (∂x u)² + c (1 + u²) ∂x² u",
        "Id, ∂x, ∂x²",
        CX * (1 + U**2) * D["x"] + 2 * C * U * D["x"] ** 2 + C * (1 + U**2) * D["xx"],
    ),
    ("exp(-Re*u/1000)*u", "exp(-0.001 Re u) u", "Id", math.exp(-0.1 * U) * U),
    ("exp(-Re*x/1000)*u", "exp(-0.001 x Re) u", "Id", math.exp(-0.1 * X) * U),  # not a linear operator's parameter
    ("dt(u) + Re**0.5*dx(u)", "∂t u + (Re^0.5) ∂x u", "∂t, ∂x", D["t"] + 10 * D["x"]),
    ("dx(u)/(Re + beta) + u", "u + (∂x u)/(Re + beta)", "Id, ∂x", D["x"] / 130 + U),
]


def on_wave(found: ps.Operator | ps.Nonlinear) -> float:
    """Return the value of a nonlinear operator on the wave, from the derivatives of the wave."""
    assert isinstance(found, ps.Nonlinear)
    values = []
    for each in found.of:
        derivatives = np.array([wave_derivative(order) for order in each.indices(3)])
        values.append(float(each.coefficients(POINT[None])[:, 0] @ derivatives))
    return float(found.at(jnp.asarray(POINT), values))


@pytest.mark.parametrize(("text", "printed", "of", "value"), NONLINEAR, ids=[row[0] for row in NONLINEAR])
def test_nonlinear_operators(text: str, printed: str, of: str, value: float) -> None:
    found = TEXT.operator(text)
    assert isinstance(found, ps.Nonlinear)
    assert str(found) == printed
    assert ", ".join(map(str, found.of)) == of
    assert on_wave(found) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("name", [name for name in MATH_AND_JAX if name not in ("sign", "heaviside")])
def test_functions_of_the_unknown_are_differentiated_by_rule(name: str) -> None:
    first, second = jax.grad(MATH_AND_JAX[name][1]), jax.grad(jax.grad(MATH_AND_JAX[name][1]))
    value = on_wave(TEXT.operator(f"dxx({name}(u)) + u**2"))
    by_hand = float(second(U)) * D["x"] ** 2 + float(first(U)) * D["xx"] + U**2
    assert value == pytest.approx(by_hand, rel=1e-12)


def test_powers_of_the_unknown_are_differentiated_by_rule() -> None:
    value = on_wave(TEXT.operator("dx(u**x + k**u + u**u + sign(u)*heaviside(u))"))
    by_hand = U**X * (math.log(U) + X * D["x"] / U) + math.log(2) * 2**U * D["x"] + U**U * (math.log(U) + 1) * D["x"]
    assert value == pytest.approx(by_hand, rel=1e-12)


def test_nonlinear_operators_hold_their_parameters_once() -> None:
    found = TEXT.equation("dt(u) + beta*u**2 = beta*dxx(u) + Re*x + f")
    assert str(found) == "∂t u - beta ∂x² u - x Re + beta u² = f"  # an inferred source stays on the left
    assert isinstance(found.operator, ps.Nonlinear)
    assert {atom.name: float(atom.value) for atom in found.operator.atoms} == {"beta": 30.0, "Re": 100.0}
    assert on_wave(found.operator) == pytest.approx(D["t"] + 30 * U**2 - 30 * D["xx"] - 100 * X, rel=1e-12)
    block = ps.impose(
        found.operator, found.source, on=ps.Box(t=(0, 1), x=(0, 1), y=(0, 1)).interior(ps.GaussLegendre(2))
    )
    model = ps.Model(ps.RBF(0.5), physics=block).replace({"beta": 2.0})
    assert float(model.physics[0].operator(wave)(POINT)) == pytest.approx(
        D["t"] + 2 * U**2 - 2 * D["xx"] - 100 * X, rel=1e-12
    )
    fixed = TEXT.with_values({"beta": 2.0, "Re": 1.0}).operator("beta*u**2 + Re*u")
    assert isinstance(fixed, ps.Nonlinear)
    assert fixed.atoms == ()
    linear = ["u*u/u", "2*u*3 - u**1", "(x + k)*(u + dx(u))/x", "u*(beta**11)", "u**2*u**-1*x", "u + u**2 - u*u"]
    assert all(isinstance(TEXT.operator(text), ps.Operator) for text in linear)


def test_divergence_of_a_flux_is_that_of_autodiff() -> None:
    made = Language(("x", "y"))
    operator = made.operator("-div((2 + sin(x)*y)*exp(x/3)*grad(u)) + div([x*y, cos(y)]*u)")

    def u(p: Any) -> Any:
        return jnp.sin(p[0] + 2 * p[1]) * p[0]

    def flux(p: Any) -> Any:
        spread = (2 + jnp.sin(p[0]) * p[1]) * jnp.exp(p[0] / 3)
        return -spread * jax.grad(u)(p) + jnp.array([p[0] * p[1], jnp.cos(p[1])]) * u(p)

    p = jnp.array([0.2, 0.5])
    expected = jnp.trace(jax.jit(jax.jacfwd(flux))(p))
    assert float(jax.jit(operator(u))(p)) == pytest.approx(float(expected), rel=1e-12)


FUNCTIONS: list[tuple[str, str, Callable[[float, float], float]]] = [
    ("1", "1", lambda x, y: 1),
    ("-2.5e-3", "-0.0025", lambda x, y: -0.0025),
    ("2*pi*x", "2 π x", lambda x, y: 2 * math.pi * x),
    ("e**x", "(e^x)", lambda x, y: math.exp(x)),
    ("k*x - y/k", "k x - y/k", lambda x, y: 2 * x - y / 2),
    ("-x**2", "-x²", lambda x, y: -(x**2)),
    ("(-x)**2", "x²", lambda x, y: x**2),
    ("2**-1", "0.5", lambda x, y: 0.5),
    ("x**y**2", "(x^(y²))", lambda x, y: x ** (y**2)),
    ("x**(1/3)", "(x^0.3333333333333333)", lambda x, y: x ** (1 / 3)),
    ("1 - 2 - 3*x/2/y", "-1 - 1.5 x/y", lambda x, y: -1 - 1.5 * x / y),
    ("1/(x*y)", "1/(x y)", lambda x, y: 1 / (x * y)),
    ("(x + y)/(x - y)", "(x + y)/(x - y)", lambda x, y: (x + y) / (x - y)),
    ("(x - y)*(y - x)", "(x - y) (y - x)", lambda x, y: -((x - y) ** 2)),
    ("2*(x + y)", "2 x + 2 y", lambda x, y: 2 * (x + y)),
    ("1.0000001**1000000", repr(1.0000001**1000000), lambda x, y: 1.0000001**1e6),
    ("f", "f", lambda x, y: 10 + 10 * math.sin(2 * math.pi * x) * math.sin(2 * math.pi * y)),
    ("dx(x**3*y) + dyy(y**3)", "3 x² y + 6 y", lambda x, y: 3 * x**2 * y + 6 * y),
    ("dx(sin(x*y))", "(∂x sin(x y))", lambda x, y: y * math.cos(x * y)),
    ("dxx(exp(2*x))*dt(x)", "0", lambda x, y: 0.0),
    ("dxx(exp(2*x))", "(∂x² exp(2 x))", lambda x, y: 4 * math.exp(2 * x)),
    ("dx(x*exp(x))", "(∂x (x exp(x)))", lambda x, y: (1 + x) * math.exp(x)),
    ("laplacian(x**2*y**3)", "2 y³ + 6 x² y", lambda x, y: 2 * y**3 + 6 * x**2 * y),
    ("dot([x, y], [y, 2])", "x y + 2 y", lambda x, y: x * y + 2 * y),
    ("div([x*y, y**2])", "3 y", lambda x, y: 3 * y),
    ("sqrt(x) + exp(-x) + log(x)", "sqrt(x) + exp(-x) + log(x)", lambda x, y: x**0.5 + math.exp(-x) + math.log(x)),
    ("sin(x) + cos(x)*tan(x)", "sin(x) + cos(x) tan(x)", lambda x, y: 2 * math.sin(x)),
    ("arcsin(x) - arccos(y)", "arcsin(x) - arccos(y)", lambda x, y: math.asin(x) - math.acos(y)),
    ("arctan(sinh(y))", "arctan(sinh(y))", lambda x, y: math.atan(math.sinh(y))),
    ("cosh(x)*tanh(y)", "cosh(x) tanh(y)", lambda x, y: math.cosh(x) * math.tanh(y)),
    ("abs(y) + erf(x)", "abs(y) + erf(x)", lambda x, y: abs(y) + float(scipy.special.erf(x))),
    ("sign(y) + heaviside(x)", "sign(y) + heaviside(x)", lambda x, y: 0.0),
]


@pytest.mark.parametrize(("text", "printed", "by_hand"), FUNCTIONS, ids=[text for text, _, _ in FUNCTIONS])
def test_functions(text: str, printed: str, by_hand: Callable[[float, float], float]) -> None:
    function = TEXT.function(text)
    assert function.text == str(function) == printed
    assert float(function(POINT)) == pytest.approx(by_hand(X, Y), rel=1e-13, abs=1e-15)
    assert (function.constant is None) == bool(function.depends)


CONSTANTS = [
    ("sin(pi/6)", math.sin(math.pi / 6)),
    ("heaviside(0) + heaviside(-2) + heaviside(3)", 1.5),
    ("sign(-2)*sign(0) + sign(4)", 1.0),
    ("2**0.5", math.sqrt(2)),
    ("2**pi", 2**math.pi),
    ("pi**0.5", math.sqrt(math.pi)),
    ("k**2/nu", 40.0),
    ("x - x", 0.0),
    ("0*x", 0.0),
    ("sin(0)*x", 0.0),
    ("x**0", 1.0),
    ("x/x", 1.0),
    ("dx(t)", 0.0),
    ("dx(k*x)", 2.0),
    ("0.1 + 0.2 - 0.3", 0.1 + 0.2 - 0.3),
    ("0**0 + 0**0.5", 1.0),
    ("(1 + pi)**2", (1 + math.pi) ** 2),
    ("erf(1) - abs(-2)", math.erf(1) - 2),
]


@pytest.mark.parametrize(("text", "value"), CONSTANTS)
def test_constants(text: str, value: float) -> None:
    function = TEXT.function(text)
    assert function.constant == pytest.approx(value, rel=1e-15, abs=1e-16)
    assert function.depends == frozenset()
    assert float(function(POINT)) == pytest.approx(value, rel=1e-15, abs=1e-16)


def test_functions_are_differentiable_and_map_over_points() -> None:
    function = TEXT.function("sin(x)*exp(y) + c**2.5/3")
    points = np.array([[0.0, 0.5, 0.1], [1.0, 0.2, 0.9]])

    def by_hand(p: Any) -> Any:
        return jnp.sin(p[1]) * jnp.exp(p[2]) + (1 + p[1] ** 2 * p[2]) ** 2.5 / 3

    np.testing.assert_allclose(jax.vmap(function)(points), jax.vmap(by_hand)(points), rtol=1e-14)
    hessians = [jax.jit(jax.hessian(g))(points[0]) for g in (function, by_hand)]
    np.testing.assert_allclose(*hessians, rtol=1e-12)
    np.testing.assert_allclose(jax.vmap(TEXT.function("k"))(points), [2.0, 2.0])
    with pytest.raises(InputError, match="t, x and y"):
        function(np.zeros(2))


def test_equations() -> None:
    table = {
        "dt(u) + beta*dx(u) = 0": ("∂t + beta ∂x", "0"),
        "dt(u) = dxx(u) + f": ("∂t - ∂x²", "f"),
        "dt(u) - f = dxx(u)": ("∂t - ∂x²", "f"),
        "dxx(u) + dyy(u) = f": ("∂x² + ∂y²", "f"),
        "-div(c*grad(u)) = k*f - 1": ("-c ∂x² - (∂x c) ∂x - c ∂y² - (∂y c) ∂y", "k f - 1"),
        "0 = u - x": ("-Id", "-x"),
        "u + x = 2*u - x": ("-Id", "-2 x"),
    }
    for text, (operator, source) in table.items():
        found = TEXT.equation(text)
        assert isinstance(found, ParsedEquation)
        assert (str(found.operator), str(found.source)) == (operator, source)
    assert str(TEXT.equation("dx(u) = sin(x)")) == "(∂x) u = sin(x)"


def test_integrals() -> None:
    found = TEXT.integral("integral(u + dx(u), x, y) = exp(-t)")
    assert isinstance(found, IntegralEquation)
    assert (str(found.operator), found.over, str(found.value)) == ("Id + ∂x", ("x", "y"), "exp(-t)")
    assert str(TEXT.integral("integral(u, x) = 1")) == "∫ (Id) u dx = 1"
    assert float(found.value(POINT)) == pytest.approx(math.exp(-T))


def test_coefficients_may_hold_parameters() -> None:
    assert str(TEXT.coefficient("beta*x + 1")) == "beta x Id + Id"
    assert str(TEXT.coefficient("0")) == "0"
    with pytest.raises(ExpressionError, match="without u"):
        TEXT.coefficient("2*u")


def test_inferred_parameters_are_hyperparameters() -> None:
    operator = TEXT.operator("dt(u) + (beta**2/Re)*x*dx(u)")
    assert operator.has_parameters
    assert sorted(float(leaf) for leaf in jax.tree.leaves(operator) if isinstance(leaf, jax.Array)) == [30.0, 100.0]
    joined = operator + ps.parameter("beta", 30.0) * ps.identity
    assert [str(atom) for atom in joined.atoms].count("beta") == 1
    fixed = language().with_values({"beta": 3.0})
    assert str(fixed.operator("beta*dx(u)/Re + c*u")) == "3 Re⁻¹ ∂x + c Id"
    assert str(fixed.function("exp(beta*x)")) == "exp(beta x)"
    assert str(fixed.with_values({"Re": 4}).operator("dx(u)/Re")) == "0.25 ∂x"
    assert str(TEXT.operator("beta*u")) == "beta Id"  # the first language is unchanged
    with pytest.raises(InputError, match=r"beta and Re; got 'gamma'"):
        TEXT.with_values({"gamma": 1.0})


def test_the_same_coefficient_is_the_same_atom() -> None:
    first, second = TEXT.operator("sin(x)*u"), TEXT.operator("sin(x)*dx(u)")
    assert len((first + second).atoms) == 1
    assert str(TEXT.operator("exp(x)*dx(u)") - TEXT.operator("exp(x)*dx(u)")) == "0"
    dx = ps.partials(ps.Box(t=(0, 1), x=(0, 1), y=(0, 1)))[1]
    composed = dx * first
    assert str(composed) == "sin(x) ∂x + (∂x sin(x)) Id"
    assert composed.same(TEXT.operator("dx(sin(x)*u)"))


def test_a_model_is_made_of_texts() -> None:
    """Coefficients and values equal those of the same block written in Python; the parameter keeps its name."""
    square = ps.Box(x=(-1, 1), y=(-1, 1))
    made = Language(square.names, inferred={"a": 1.5})
    equation = made.equation("div((1 + x**2)*grad(u)) + a*sin(y)*u = exp(x)")
    dx, dy = ps.partials(square)
    k = ps.coefficient(lambda p: 1 + p[0] ** 2, "k")
    operator = dx * k * dx + dy * k * dy + ps.parameter("a", 1.5) * ps.coefficient(lambda p: jnp.sin(p[1]), "s")
    nodes = square.interior(ps.GaussLegendre(3))
    mine = ps.impose(equation.operator, equation.source, on=nodes)
    other = ps.impose(operator, lambda p: jnp.exp(p[0]), on=nodes)
    np.testing.assert_allclose(mine.values, other.values, rtol=1e-15)
    tables = [
        dict(zip(block.indices, np.asarray(block.operator.coefficients(block.points)), strict=True))
        for block in (mine, other)
    ]
    for index in {**tables[0], **tables[1]}:  # text drops derivatives of coefficients that do not vary along an axis
        np.testing.assert_allclose(tables[0].get(index, 0.0), tables[1].get(index, 0.0), rtol=1e-14)
    data = ps.observe(ps.identity, values=np.array([0.1]), at=np.array([[0.1, 0.2]]))
    model = ps.Model(kernel=ps.RBF(0.7), data=data, physics=mine, gamma=0.1, rho=0.1, eta=1.0)
    assert model.replace({"a": 2.0}).physics[0].operator.atoms[0].value == 2.0


# The method, the text, words of the error message, and its column.
BAD = [
    ("integral", "integral(dx(u) + u**2, x) = 1", "'u**2' at column 18: is not linear in u", 18),
    ("integral", "integral(exp(beta)*u, x) = 1", "is not linear in u, or has an inferred parameter", 10),
    ("operator", "u*dx(u) + f", "'f' at column 11: does not contain u", 11),
    ("operator", "exp(u) + exp(beta)", "'exp(beta)' at column 10: does not contain u", 10),
    ("operator", "u*u - u**2", "is zero", 1),
    ("operator", "u**2/(x - x)", "divides by zero", 1),
    ("operator", "(-2)**u*dx((-2)**u)", "is not a finite number", 9),
    ("operator", "dxxxxx(dyyyy(u**2))", "order at most 8", 1),
    ("operator", "dxxxxxxxx(u**8*exp(sin(u)))", "more than 2000 operations with its derivatives", 1),
    ("operator", "(u + dx(u))**2000", "between -1000 and 1000", 1),
    ("coefficient", "2*exp(-beta)", "'beta' at column 8: is inferred: here it may multiply or divide", 8),
    ("coefficient", "u**2", "'u' at column 1: expected an expression without u", 1),
    ("operator", "dx(u) + f", "'f' at column 9: does not contain u; expected an expression with u in every term", 9),
    ("operator", "u + beta", "'beta' at column 5: does not contain u", 5),
    ("operator", "dx(u) - dx(u)", "is zero", 1),
    ("operator", "dt(x)*u", "is zero", 1),
    ("operator", "u = 0", "expected an expression without an equals sign", 3),
    ("function", "x + dx(u)", "'u' at column 8: expected an expression without u", 8),
    ("function", "1 + beta*x", "'beta' at column 5: is inferred, and cannot be part of a value", 5),
    ("function", "exp(-beta*x)", "'beta' at column 6: is inferred, and cannot be part of a value", 6),
    ("function", "1/(beta + Re)", "'beta' at column 4: is inferred", 4),
    ("equation", "exp(beta) = 1", "expected an equation for u", 1),
    ("equation", "dx(u)", 'expected an equation with one "="', 1),
    ("equation", "dx(u) == 0", "'==' at column 7", 7),
    ("equation", "dx(u) <= 0", "'<=' at column 7", 7),
    ("equation", "u := 1", "':=' at column 3", 3),
    ("equation", "dx(u) = 0 = 1", "it has 2", 11),
    ("equation", "dx(u) =", "the end at column 8: expected an expression", 8),
    ("equation", "= 0", "the end at column 1: expected an expression", 1),
    ("equation", "x = 1", "expected an equation for u", 1),
    ("equation", "u = u", "it does not appear, or it cancels", 1),
    ("equation", "dxx(u) = sinn(x)", "'sinn(x)' at column 10: there is no function 'sinn'. Did you mean 'sin'?", 10),
    ("equation", "dxx(u) =  ff", "'ff' at column 11: is not a known name. Did you mean 'f'?", 11),
    ("equation", "θ*u = 0", "'θ' at column 1: is not a known name", 1),
    ("equation", "f*u = x + θ", "'θ' at column 11", 11),
    ("equation", "integral(u, x) = 1", "must stand alone on the left of a constraint", 1),
    ("function", "", "expected an expression", 1),
    ("function", "  ", "expected an expression", 1),
    ("function", "2x", "'2x' at column 1: an operation is missing between '2' and 'x': write 2*x", 1),
    ("operator", "x + 2 u", "write 2*u", 5),
    ("function", "2(x + 1)", "an operation is missing before '('", 1),
    ("function", "(x)(y)", "write * for a product", 3),
    ("function", "(x) y", "write * for a product", 3),
    ("function", "sin x", "write sin*x for a product, sin(x) for a function", 1),
    ("function", "1.2.3", "missing between '1.2' and '.3'", 1),
    ("function", "x^2", "'^' at column 2: write ** for a power", 2),
    ("operator", "u_xx", "write dxx(u)", 1),
    ("operator", "uxx", "write dxx(u)", 1),
    (
        "operator",
        "u.x",
        "'.' at column 2: dots are not allowed; write sin(x), not np.sin(x), and derivatives as dx(u)",
        2,
    ),
    ("operator", "u(x)", "u takes no argument: write u", 1),
    ("operator", "c(x)*u", "c takes no argument: write c", 1),
    ("operator", "dx*u", "is a derivative: write dx(u)", 1),
    ("operator", "du/dx", "write derivatives as dy(u)", 1),
    ("operator", "diff(u, x)", "write derivatives as dy(u)", 1),
    ("operator", "grad*u", "is a function: write grad(u)", 1),
    ("function", "sin*x", "is a function: write sin(…)", 1),
    ("function", "ln(x)", "Did you mean 'log'?", 1),
    ("function", "π*x", "Did you mean 'pi'?", 1),
    ("function", "x²", "'²' at column 2: write **2", 2),
    ("function", "2−x", "write - (the minus", 2),
    ("function", "2·x", "write * for a product", 2),
    ("operator", "∂x(u)", "write derivatives as dx(u)", 1),
    ("function", "x # y", "comments", 3),
    ("function", "x // y", "write / for a quotient", 3),
    ("function", "x % y", "this character is not allowed", 3),
    ("function", "x < y", "comparisons are not allowed", 3),
    ("function", "x +", "'+' at column 3: an expression is missing after '+'", 3),
    ("function", "* x", "an expression is missing before '*'", 1),
    ("function", "sin(x,)", "missing before ')'", 7),
    ("function", "sin()", "missing before ')'", 5),
    ("function", "()", "missing before ')'", 2),
    ("function", "[]", "missing before ']'", 2),
    ("function", "(x", "'(' at column 1: this bracket is not closed", 1),
    ("function", "x)", "has no matching opening bracket", 2),
    ("function", "(x]", "has no matching opening bracket", 3),
    ("function", "sin(x, y)", "expected 1 argument; got 2", 1),
    ("function", "dot([x])", "expected 2 arguments; got 1", 1),
    ("function", "x, y", "Write a vector as [a, b]", 1),
    ("function", "1 + (x, y)", "'(x, y)' at column 5", 5),
    ("function", "[x, y]", "is a vector; expected a single expression", 1),
    ("operator", "grad(u)", "is a vector; expected a single expression", 1),
    ("function", "[x, [y, 1]]", "is a vector", 5),
    ("operator", "div(u)", "'u' at column 5: is not a vector", 5),
    ("operator", "div([u])", "expected 2 components, for x and y; got 1", 1),
    ("operator", "dot([1, 2, 3], grad(u))", "got 3 and 2 components", 1),
    ("operator", "[1, 2]*grad(u)", "dot(v, w)", 1),
    ("operator", "u/[1, 2]", "nothing can be divided by a vector", 1),
    ("operator", "u + grad(u)", "adds a vector", 1),
    ("operator", "grad(u)**2", "is a vector", 1),
    ("function", "x[0]", "indexing is not allowed", 1),
    ("function", "007", "cannot be parsed", 1),
    ("function", "1/0", "divides by zero", 1),
    ("function", "x/(y - y)", "divides by zero", 1),
    ("function", "2 + log(-1)", "'log(-1)' at column 5: is not a finite number", 5),
    ("function", "0**-1", "is not a finite number", 1),
    ("function", "(-8)**(1/3)", "is not a finite number", 1),
    ("function", "exp(1000)", "is not a finite number", 1),
    ("function", "1e999", "is not a finite number", 1),
    ("function", "1e200*1e200*x", "is not a finite number", 1),
    ("function", "1e308*x + 1e308*x", "is not a finite number", 1),
    ("operator", "1e308*pi*x*u", "is not a finite number", 1),
    ("function", "9**9**9**9", "is not a finite number", 4),
    ("function", "x**1001", "between -1000 and 1000", 1),
    ("function", "((x**100)**100)", "between -1000 and 1000", 2),
    ("operator", "dxxxxxxxxx(u)", "order at most 8", 1),
    ("operator", "dxxxx(dyyyyy(u))", "order at most 8", 1),
    ("function", "dxxxxx(dxxxx(sin(x)))", "order at most 8", 1),
    ("operator", "((((beta + Re)**8)**8)**8)*u", "200 terms", 2),
    ("integral", "integral(u) = 1", "expected an integral such as integral(u, y)", 1),
    ("integral", "u = 1", "on the left of the equals sign", 1),
    ("integral", "1 = integral(u, x)", "on the left of the equals sign", 1),
    ("integral", "integral(u, z) = 1", "'z' at column 13: expected different coordinates", 13),
    ("integral", "integral(u, x, x) = 1", "expected different coordinates", 16),
    ("integral", "integral(u, x) = t + x", "'x' at column 22: the value depends on x", 22),
    ("integral", "integral(u, x) = c", "the value depends on x", 18),
    ("integral", "integral(u, x) = u", "without u", 18),
    ("integral", "integral(1, x) = 1", "does not contain u", 10),
]


@pytest.mark.parametrize(("method", "text", "words", "column"), BAD, ids=[f"{m} {t}" for m, t, _, _ in BAD])
def test_refused(method: str, text: str, words: str, column: int) -> None:
    with pytest.raises(ExpressionError, match=re.escape(words)) as caught:
        getattr(TEXT, method)(text)
    assert caught.value.column == column
    assert f"at column {column}: " in str(caught.value)
    nonlinear = "is not linear in u" in str(caught.value)
    assert isinstance(caught.value, NonlinearError) == nonlinear
    assert isinstance(caught.value, InputError)
    assert pickle.loads(pickle.dumps(caught.value)).column == column


HOSTILE = [
    "__import__('os')",
    "().__class__",
    "x if x else y",
    "[x for x in y]",
    "{x}",
    'f"{x}"',
    "(x := 1)",
    "u := 1",
    "lambda: x",
    "lambda x: x",
    "sin(x=1)",
    "sin(*x)",
    "sin(**x)",
    "x.y",
    "x[0]",
    "not x",
    "x and y",
    "True",
    "None",
    "1j",
    "0x10",
    "1_000",
    "...",
    "await x",
    "x; y",
    "x\\\ny",
    "`x`",
    "\0",
    "x\0",
    "\ud800",
    "x\udfff",
    "٣",
    "1" * 3999,
    "1" * 5000,
    "1+" * 900,
    "1+" * 900 + "1",
    "(" * 10_000 + "x" + ")" * 10_000,
    "(" * 1900 + "x" + ")" * 1900,
    "[" * 3999,
    "-" * 10_000 + "x",
    "-" * 3998 + "x",
    "-" * 120 + "x",
    "2**" * 1300 + "2",
    "2**-" * 900 + "2",
    "sin(" * 150 + "x" + ")" * 150,
    "d" + "x" * 3000 + "(x)",
    "x" * 3999 + "()",
    "9" * 300 + "**" + "9" * 300,
    "1e" + "9" * 3000,
    ".e1",
    "\u2028",
    "\u0e33",
    "x\u00b2y",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_are_refused(text: str) -> None:
    for method in (TEXT.function, TEXT.operator, TEXT.equation, TEXT.integral, TEXT.coefficient):
        with pytest.raises(ExpressionError):
            method(text)
    with pytest.raises(ExpressionError):
        TEXT.equation(f"u = {text}")
    with pytest.raises(ExpressionError):
        language().define("g", text)


def define_in_turn(step: str, count: int) -> None:
    made = Language(("x",))
    made.define("f0", "x")
    for i in range(count):
        made.define(f"f{i + 1}", step.format(i))


def test_limits_are_wide_enough() -> None:
    long_sum = " + ".join(f"sin({i}*x)" for i in range(1, 160))
    assert len(long_sum) < MAX_LENGTH
    expected = sum(math.sin(i * X) for i in range(1, 160))
    assert float(TEXT.function(long_sum)(POINT)) == pytest.approx(expected, rel=1e-11)
    nested = X
    for _ in range(45):
        nested = math.sin(nested)
    function = TEXT.function("sin(" * 45 + "x" + ")" * 45)
    assert float(function(POINT)) == pytest.approx(nested, rel=1e-12)
    assert np.isfinite(jax.jacfwd(function)(POINT)).all()
    brackets = TEXT.function("(" * 45 + "x" + "+1)*y" * 45)
    assert float(brackets(POINT)) == pytest.approx(X * Y**45 + sum(Y**i for i in range(1, 46)), rel=1e-12)
    assert str(TEXT.operator("x*" * 400 + "u")) == "x⁴⁰⁰ Id"
    for step, count, words in [
        ("sin(f{0})*cos(f{0})", 40, "needs more than 10000 operations"),
        ("f{0} + 1", 140, "nests functions more than 50 levels deep"),
    ]:
        with pytest.raises(ExpressionError, match=words):
            define_in_turn(step, count)
    with pytest.raises(ExpressionError, match="at most 4000 characters; got 4001"):
        TEXT.function("1" * 4001)
    with pytest.raises(ExpressionError, match="at most 1000 numbers"):
        TEXT.function("1" + "+1" * 600)


NAMES = [
    ({"names": ()}, "at least one coordinate"),
    ({"names": ("x", "x")}, "coordinate 'x' is not a valid name: the name is already in use"),
    ({"names": ("x y",)}, "coordinate 'x y'"),
    ({"names": ("",)}, "coordinate ''"),
    ({"names": ("dx", "")}, "coordinate ''"),
    ({"names": ("lambda",)}, "Python keyword"),
    ({"names": ("sin",)}, "coordinate 'sin' is not a valid name: it has a fixed meaning"),
    ({"names": ("e",)}, "coordinate 'e'"),
    ({"names": ("x", "xx")}, "'dxx' could be read as a derivative in two ways"),
    ({"names": ("a", "ab", "b")}, "'dab' could be read as a derivative in two ways"),
    ({"names": ("ab", "c", "a", "bc")}, "'dabc' could be read"),
    ({"names": ("a", "aba", "bab")}, "'dabababa' could be read"),
    ({"names": ("i", "v")}, "'div' could be read as a derivative"),
    ({"names": ("x", "dx")}, "coordinate 'dx' is not a valid name: it would be read as a derivative"),
    ({"names": ("x", "µ")}, "Python reads it as 'μ'"),
    ({"names": ("A\u00b7",)}, "expected a letter followed by letters, digits or _"),
    ({"names": ("x",), "unknown": "x"}, "unknown 'x'"),
    ({"names": ("x",), "unknown": "pi"}, "unknown 'pi'"),
    ({"names": ("x",), "unknown": "2u"}, "unknown '2u'"),
    ({"names": ("x", "t"), "numbers": {"dxt": 1.0}}, "parameter 'dxt' is not a valid name: it would be read"),
    ({"names": ("x",), "numbers": {"u": 1.0}}, "parameter 'u'"),
    ({"names": ("x",), "numbers": {"a": 1.0}, "inferred": {"a": 1.0}}, "parameter 'a'"),
    ({"names": ("x",), "numbers": {"a": math.nan}}, "parameter 'a': expected finite"),
    ({"names": ("x",), "inferred": {"a": "1"}}, "parameter 'a'"),
    ({"names": ("x",), "inferred": {"a": [1.0, 2.0]}}, "parameter 'a': expected a single number"),
    ({"names": ("x",), "inferred": {"integral": 1.0}}, "parameter 'integral'"),
    ({"names": ("x",), "numbers": {"π": 1.0}}, "parameter 'π'"),
]


@pytest.mark.parametrize(("options", "words"), NAMES, ids=[words for _, words in NAMES])
def test_names_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ExpressionError, match=re.escape(words)):
        Language(**options)


@pytest.mark.usefixtures("as_a_user")
def test_names_that_are_no_texts_are_refused() -> None:
    for names in ((3,), ("x", None)):
        with pytest.raises(ExpressionError, match="is not a valid name"):
            Language(names)


def test_names_of_functions_are_checked() -> None:
    for name in ("f", "x", "u", "k", "beta", "sin", "dx", "a b", "pi"):
        with pytest.raises(ExpressionError, match=r"function .* is not a valid name"):
            language().define(name, "1")


def test_long_coordinates_and_other_unknowns() -> None:
    made = Language(("theta", "r", "time"), unknown="T")
    assert str(made.operator("dtheta(dr(T)) + drthetar(T)")) == "∂theta∂r + ∂theta∂r²"
    assert str(made.operator("laplacian(T)")) == "∂theta² + ∂r²"
    assert str(made.operator("dtime(T)")) == "∂time"
    assert str(made.operator("T*dr(T)")) == "T ∂r T"
    with pytest.raises(NonlinearError, match="not linear in T"):
        made.integral("integral(T*T, r) = 1")
    with pytest.raises(ExpressionError, match=re.escape("write drr(T)")):
        made.operator("T_rr")
    with pytest.raises(ExpressionError, match="besides t"):
        Language(("t",)).operator("laplacian(u)")


# Jets: Taylor coefficients in (x, y) at a point up to a degree, independent of the library.

DEGREE = 7
AT = (0.4, -0.3)
Jet = dict[tuple[int, int], float]
INDICES = [(i, j) for i in range(DEGREE + 1) for j in range(DEGREE + 1 - i)]


def jet_mul(a: Jet, b: Jet) -> Jet:
    out = dict.fromkeys(INDICES, 0.0)
    for ((i, j), p), ((k, m), q) in itertools.product(a.items(), b.items()):
        if p and q and i + j + k + m <= DEGREE:
            out[i + k, j + m] += p * q
    return out


def jet_number(value: float) -> Jet:
    return dict.fromkeys(INDICES, 0.0) | {(0, 0): value}


def jet_add(a: Jet, b: Jet, sign: float = 1.0) -> Jet:
    return {index: a[index] + sign * b[index] for index in INDICES}


def jet_derivative(a: Jet, axis: int) -> Jet:
    """Return the derivative; it lacks the highest degree, which no test uses."""
    return {(i, j): (i + 1, j + 1)[axis] * a.get((i + (axis == 0), j + (axis == 1)), 0.0) for i, j in INDICES}


def jet_function(series: Callable[[float, int], float], a: Jet) -> Jet:
    """Return f(a), given the n-th Taylor coefficient of f at a(0)."""
    step = a | {(0, 0): 0.0}
    out, power = jet_number(0.0), jet_number(1.0)
    for n in range(DEGREE + 1):
        factor = series(a[0, 0], n)
        out = {index: out[index] + factor * power[index] for index in INDICES}
        power = jet_mul(power, step)
    return out


SERIES: dict[str, Callable[[float, int], float]] = {
    "sin": lambda c, n: math.sin(c + n * math.pi / 2) / math.factorial(n),
    "cos": lambda c, n: math.cos(c + n * math.pi / 2) / math.factorial(n),
    "exp": lambda c, n: math.exp(c) / math.factorial(n),
}
X_JET = jet_number(AT[0]) | {(1, 0): 1.0}
Y_JET = jet_number(AT[1]) | {(0, 1): 1.0}
U_JET: Jet = {(i, j): math.sin(1.0 + 3 * i + 5 * j) / (1 + i + j) for i, j in INDICES}  # any function will do
A = 1.7
SMALL = Language(("x", "y"), numbers={"k": 0.6}, inferred={"a": A})
SMALL.define("f", "x*y - 1/3")

Piece = tuple[str, Jet]


def known(random: Random, depth: int) -> Piece:
    """Return a random expression without u, and its jet."""
    number = random.choice([0.5, -1.25, 3.0])
    f = jet_add(jet_mul(X_JET, Y_JET), jet_number(1 / 3), -1.0)
    leaves = [("x", X_JET), ("y", Y_JET), ("f", f), ("k", jet_number(0.6)), (f"{number}", jet_number(number))]
    if depth == 0 or random.random() < 0.1:
        return random.choice(leaves)
    text, jet = known(random, depth - 1)
    match random.choice(["call", "call", "exp", "power", "slope", "quotient", "pair", "pair", "pair"]):
        case "call":
            name = random.choice(["sin", "cos"])
            return f"{name}({text})", jet_function(SERIES[name], jet)
        case "exp":
            return f"exp(sin({text}))", jet_function(SERIES["exp"], jet_function(SERIES["sin"], jet))
        case "power":
            n = random.choice([2, 3])
            return f"({text})**{n}", jet_mul(jet, jet if n == 2 else jet_mul(jet, jet))
        case "slope":
            axis = random.randrange(2)
            return f"d{'xy'[axis]}({text})", jet_derivative(jet, axis)
        case "quotient":
            return f"1/(3 + sin({text}))**2", jet_function(_reciprocal_square, jet_function(SERIES["sin"], jet))
        case _:
            return pair(random, (text, jet), known(random, depth - 1), random.choice("+-*"))


def pair(random: Random, first: Piece, second: Piece, sign: str) -> Piece:
    (a, one), (b, two) = first, second
    text = f"({a}){sign}({b})" if sign == "*" or random.random() < 0.5 else f"{a} {sign} ({b})"
    return text, jet_mul(one, two) if sign == "*" else jet_add(one, two, 1.0 if sign == "+" else -1.0)


def form(random: Random, depth: int) -> Piece:
    """Return a random expression that is linear in u, and its jet."""
    if depth == 0:
        return "u", U_JET
    text, jet = form(random, depth - 1)
    match random.choice(["slope", "slope", "product", "product", "sum", "sum", "quotient", "parameter"]):
        case "slope":
            axis = random.randrange(2)
            return f"d{'xy'[axis]}({text})", jet_derivative(jet, axis)
        case "product":
            return pair(random, known(random, 2), (text, jet), "*")
        case "sum":
            return pair(random, (text, jet), form(random, depth - 1), random.choice("+-"))
        case "quotient":
            below, divisor = known(random, 1)
            return f"({text})/(3 + sin({below}))**2", jet_mul(
                jet, jet_function(_reciprocal_square, jet_function(SERIES["sin"], divisor))
            )
        case _:
            by = random.choice([("*a", A), ("/a", 1 / A), ("*(1 + a)**2", (1 + A) ** 2), ("*(a - 2/a)", A - 2 / A)])
            return f"({text}){by[0]}", jet_mul(jet, jet_number(by[1]))


def bent(random: Random, depth: int) -> Piece:
    """Return a random expression that is not linear in u, and its jet."""
    if depth == 0:
        return form(random, 1)
    text, jet = bent(random, depth - 1)
    match random.choice(["slope", "slope", "product", "product", "sum", "call", "power", "quotient", "parameter"]):
        case "slope":
            axis = random.randrange(2)
            return f"d{'xy'[axis]}({text})", jet_derivative(jet, axis)
        case "product":
            return pair(random, bent(random, depth - 1), (text, jet), "*")
        case "sum":
            return pair(random, (text, jet), random.choice([bent, form])(random, depth - 1), random.choice("+-"))
        case "call":
            name, inner = random.choice(["sin", "cos", "exp"]), jet_function(SERIES["sin"], jet)
            return f"{name}(sin({text}))", jet_function(SERIES[name], inner)
        case "power":
            return f"({text})**3", jet_mul(jet, jet_mul(jet, jet))
        case "quotient":
            return f"u/(3 + sin({text}))**2", jet_mul(
                U_JET, jet_function(_reciprocal_square, jet_function(SERIES["sin"], jet))
            )
        case _:
            return f"sin(a*({text}))", jet_function(SERIES["sin"], jet_mul(jet, jet_number(A)))


def _reciprocal_square(c: float, n: int) -> float:
    """Return the n-th Taylor coefficient of (3 + v)⁻² at c."""
    return (-1) ** n * (n + 1) / (3 + c) ** (n + 2)


SEEDS = st.integers(0, 2**32).map(Random)


def applied(operator: ps.Operator) -> float:
    """Return the operator applied to the function of `U_JET`; its derivatives are coefficients times factorials."""
    derivatives = [math.factorial(i) * math.factorial(j) * U_JET[i, j] for i, j in operator.indices(2)]
    return float(np.asarray(operator.coefficients(np.array([AT])))[:, 0] @ np.array(derivatives))


def outcome(make: Callable[..., Any], *given: Any) -> Any:
    """Return the result, or the error."""
    try:
        return make(*given)
    except ExpressionError as error:
        return error


def operator_or_none(text: str) -> ps.Operator | None:
    found = outcome(SMALL.operator, text)
    assert isinstance(found, ps.Operator) or "is zero" in str(found)
    return found if isinstance(found, ps.Operator) else None


@pytest.mark.slow
@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_operators_agree_with_jets(random: Random) -> None:
    text, jet = form(random, 4)
    operator = operator_or_none(text)
    if operator is None:
        assert abs(jet[0, 0]) < 1e-9
        return
    size = max(1.0, *(abs(jet[index]) for index in INDICES))
    assert applied(operator) == pytest.approx(jet[0, 0], rel=1e-10, abs=1e-11 * size)


@given(SEEDS)
@settings(max_examples=30, deadline=None)
def test_nonlinear_operators_agree_with_jets(random: Random) -> None:
    text, jet = bent(random, 3)
    found = outcome(SMALL.equation, f"{text} = x")
    if isinstance(found, ExpressionError):
        assert "cancels" in str(found) or "operations" in str(found)
        return
    operator, at = found.operator, np.array(AT)
    if isinstance(operator, ps.Operator):
        value = applied(operator)
    else:
        value = float(operator.at(jnp.array(AT), [applied(each) for each in operator.of]))
    size = max(1.0, *(abs(jet[index]) for index in INDICES))
    assert value - float(found.source(at)) == pytest.approx(jet[0, 0] - AT[0], rel=1e-9, abs=1e-10 * size)


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_functions_agree_with_jets(random: Random) -> None:
    text, jet = known(random, 4)
    function = SMALL.function(text)
    size = max(1.0, *(abs(jet[index]) for index in INDICES))
    assert float(function(np.array(AT))) == pytest.approx(jet[0, 0], rel=1e-10, abs=1e-11 * size)
    again = SMALL.function(text)
    assert (again.text, again.constant, again.depends) == (function.text, function.constant, function.depends)


@given(SEEDS)
@settings(max_examples=15, deadline=None)
def test_texts_are_linear(random: Random) -> None:
    (a, one), (b, two), (c, by) = form(random, 3), form(random, 2), known(random, 2)
    both, *parts = (operator_or_none(text) for text in (f"({c})*({a}) - 3*({b})", a, b))
    values = [0.0 if part is None else applied(part) for part in parts]
    size = max(1.0, *(abs(jet[0, 0]) for jet in (one, two, by)))
    expected = by[0, 0] * values[0] - 3 * values[1]
    assert (0.0 if both is None else applied(both)) == pytest.approx(expected, rel=1e-9, abs=1e-9 * size)


WORDS = ["u", "x", "y", "a", "k", "f", "dx", "dyy", "dxy", "sin", "exp", "log", "sqrt", "grad", "div", "dot", "pi"]
SIGNS = ["+", "-", "*", "/", "**", "(", ")", "(", ")", "[", "]", ",", "=", " ", "^", ".", "integral(", "laplacian("]
TOKENS = st.sampled_from([*WORDS, *SIGNS, "0", "1", "2.5", "1e300", "-1", "0.5", "(u)", "(x)", "*u", "²", "θ"])


@given(
    st.one_of(st.lists(TOKENS, max_size=25).map("".join), st.text(max_size=40), st.text("ux()+-*/=d2 ", max_size=40))
)
@example("((((a+a*a)**8)**8)**8)*u")
@example("dx(" * 8 + "sin(x)*" * 8 + "u" + ")" * 8)
@settings(max_examples=250, deadline=datetime.timedelta(seconds=10))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Any text gives a result or an `ExpressionError`, quickly."""
    for method in (SMALL.function, SMALL.operator, SMALL.equation, SMALL.integral, SMALL.coefficient):
        found = outcome(method, text)
        assert str(found).encode("utf-8")
        assert getattr(found, "column", None) is None or 1 <= found.column <= len(text) + 1


@given(st.text(max_size=12))
@settings(max_examples=100, deadline=None)
def test_any_name_is_taken_or_refused(name: str) -> None:
    made = outcome(Language, (name,))
    assert str(made).encode("utf-8")
    assert isinstance(made, ExpressionError) or made.operator(f"{name}*d{name}(u)").order == 1
