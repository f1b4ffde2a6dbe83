"""Covariances of operators and functionals against brute force, for any cut into tiles."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

import pilescore as ps
from pilescore.covariance import gram
from pilescore.covariance import tiles as layouts
from pilescore.errors import InputError

from .. import evidence_oracle as eo
from .. import kernel_oracle as ko

Formula = Callable[[Any, Any], Any]
H = np.array([0.6, 0.9])


def rbf(x: Any, y: Any) -> Any:
    return jnp.exp(-0.5 * jnp.sum(((x - y) / H) ** 2))


def matern72(x: Any, y: Any) -> Any:
    """(1 + s + 2s²/5 + s³/15) e^{−s}, s = √7 r."""
    s = jnp.sqrt(7.0 * jnp.sum(((x - y) / H) ** 2))
    return (1 + s + 2 * s**2 / 5 + s**3 / 15) * jnp.exp(-s)


@dataclasses.dataclass
class Rows:
    """One block, for the brute-force computation."""

    operator: ps.Operator
    points: np.ndarray
    matrix: np.ndarray | None = None


def nested(kernel: Formula, first: Rows, second: Rows) -> np.ndarray:
    """`R (L₁ ⊗ L₂) k Rᵀ`: each operator applied to a function of one point."""

    def one(p: Any, q: Any) -> Any:
        return first.operator(lambda x: second.operator(lambda y: kernel(x, y))(q))(p)

    table = np.asarray(jax.jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))(first.points, second.points))
    table = table if first.matrix is None else first.matrix @ table
    return table if second.matrix is None else table @ second.matrix.T


def brute_force(kernel: Formula, rows: list[Rows]) -> np.ndarray:
    """The upper blocks by nesting, the lower ones by transposing."""
    table = {(i, j): nested(kernel, a, b) for i, a in enumerate(rows) for j, b in enumerate(rows) if i <= j}
    n = range(len(rows))
    return np.block([[table[i, j] if i <= j else table[j, i].T for j in n] for i in n])


def assembled(model: ps.Model, eta: float = 1.0) -> np.ndarray:
    """The library's covariance: its lower triangle, put back into the stacked order."""
    layout = layouts.layout(model.blocks)
    lower = np.tril(gram.covariance(model.kernel, layout, eta))
    full = lower + np.tril(lower, -1).T
    assert sorted(layout.order.tolist()) == list(range(model.size))
    out = np.empty_like(full)
    out[np.ix_(layout.order, layout.order)] = full
    return out


BOX = ps.Box(x=(0, 1), y=(0, 2))
DX, DY = ps.partials(BOX)
A = ps.coefficient(lambda p: 1 + p[0] * p[1] ** 2, "a")


def scattered(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform([0, 0], [1, 2], (count, 2))


def operators() -> dict[str, ps.Operator]:
    return {
        "identity": ps.identity,
        "gradient": 3 * DX - 0.5 * DY,
        "laplacian": ps.laplacian(BOX),
        "flux": -ps.divergence(BOX, [A * g for g in ps.gradient(BOX)]),
        "mixed": (lambda p: jnp.sin(p[1])) * DX * DY + A * DX + 2,
        "parameter": DX + ps.parameter("beta", 4.0) * DY,
    }


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "formula"), [(ps.RBF(H), rbf), (ps.Matern(3.5, H), matern72)])
def test_operators_against_nested_application(kernel: ps.Kernel, formula: Formula) -> None:
    chosen = list(operators().values())
    if isinstance(kernel, ps.Matern):
        chosen = [chosen[i] for i in (0, 1, 3)]
    rows = [Rows(op, scattered(3, seed)) for seed, op in enumerate(chosen)]
    data = [ps.observe(r.operator, values=0.0, at=r.points) for r in rows]
    found, expected = assembled(ps.Model(kernel, data)), brute_force(formula, rows)
    scale = np.sqrt(np.outer(found.diagonal(), found.diagonal()))
    apart = np.ones_like(found, dtype=bool)
    if isinstance(kernel, ps.Matern):  # autodiff of the formula is not a number at distance zero
        apart = ~np.eye(len(found), dtype=bool)
    np.testing.assert_allclose((found / scale)[apart], (expected / scale)[apart], rtol=0, atol=2e-13)
    assert np.linalg.eigvalsh(found)[0] > 0


def test_matern_on_the_diagonal_against_mpmath() -> None:
    points = scattered(3, 1)
    model = ps.Model(ps.Matern(3.5, H), ps.observe(operators()["flux"], values=0.0, at=points))
    terms = [
        ((2, 0), lambda p: -(1 + p[0] * p[1] ** 2)),
        ((0, 2), lambda p: -(1 + p[0] * p[1] ** 2)),
        ((1, 0), lambda p: -(p[1] ** 2)),
        ((0, 1), lambda p: -2 * p[0] * p[1]),
    ]
    expected = eo.gram(ko.matern(3.5, H), [eo.Block(terms, points, 0.0, 1.0)])
    np.testing.assert_allclose(assembled(model), np.array(expected, dtype=float), rtol=1e-12)


def functional_blocks() -> tuple[list[Any], list[Rows]]:
    """Integrals, differences and a stack of them, with their matrices written out here."""
    left, right = (BOX.face(x=x)(ps.GaussLegendre(4)) for x in (0, 1))
    inside = BOX(ps.GaussLegendre((3, 4)))
    slices = [BOX.slice(y=y)(ps.GaussLegendre(3)) for y in (0.25, 1.0, 1.75)]
    flux = ps.normal_derivative(BOX.face(x=1))
    jump = np.hstack([np.eye(4), -np.eye(4)])
    staircase = np.zeros((3, 9))
    for i, part in enumerate(slices):
        staircase[i, 3 * i : 3 * i + 3] = part.weights
    blocks = [
        ps.integral(inside, A * DX + DY**2),
        ps.difference(right, left),
        ps.difference(right, left, flux),
        ps.model.join_functionals(*[ps.integral(part, DY) for part in slices]),
        ps.integral(right),
    ]
    both = np.vstack([right.points, left.points])
    rows = [
        Rows(A * DX + DY**2, inside.points, inside.weights[None]),
        Rows(ps.identity, both, jump),
        Rows(DX, both, jump),
        Rows(DY, np.vstack([part.points for part in slices]), staircase),
        Rows(ps.identity, right.points, right.weights[None]),
    ]
    return blocks, rows


@pytest.mark.slow
def test_functionals_against_nested_application() -> None:
    functionals, expected = functional_blocks()
    points = scattered(4, 9)
    blocks = [
        ps.observe(functionals[0], values=1.0),
        ps.observe(ps.laplacian(BOX), values=0.0, at=points),
        *[ps.observe(f, values=0.0) for f in functionals[1:]],
    ]
    rows = [expected[0], Rows(ps.laplacian(BOX), points), *expected[1:]]
    found = assembled(ps.Model(ps.RBF(H), blocks), eta=1.7)
    np.testing.assert_allclose(found, 1.7 * brute_force(rbf, rows), rtol=1e-11, atol=1e-12)


def test_stack_refuses_operators_that_only_look_alike() -> None:
    """Two functions under one name, or two values of one parameter, print the same and are not the same."""
    nodes = BOX.face(x=0)(ps.GaussLegendre(3))
    fields = [ps.coefficient(f) * DX for f in (lambda p: p[0], lambda p: 10 + p[0])]
    values = [ps.parameter("beta", v) * DX for v in (1.0, 2.0)]
    for first, second in (fields, values, (DX, DY)):
        with pytest.raises(InputError):
            ps.model.join_functionals(ps.integral(nodes, first), ps.integral(nodes, second))
    same = ps.model.join_functionals(ps.integral(nodes, fields[0]), ps.integral(nodes, fields[0]))
    assert same.matrix.shape == (2, 6)


def test_integral_of_the_kernel_against_erf() -> None:
    """∫∫ k over an interval has a closed form for the RBF: no operator, no brute force."""
    h, line = 0.4, ps.Box(x=(0, 1))
    mass = ps.observe(ps.integral(line(ps.GaussLegendre(20))), values=0.0)
    (dx,) = ps.partials(line)
    rise = ps.observe(ps.integral(line(ps.GaussLegendre(20)), dx), values=0.0)
    found = assembled(ps.Model(ps.RBF(h), [mass, rise]))
    u = 1 / h
    double = h**2 * (np.sqrt(2 * np.pi) * u * erf(u / np.sqrt(2)) + 2 * np.exp(-(u**2) / 2) - 2)
    np.testing.assert_allclose(found[0, 0], double, rtol=1e-13)
    np.testing.assert_allclose(found[1, 1], 2 - 2 * np.exp(-0.5 / h**2), rtol=1e-13)  # Var[f(1) − f(0)]
    np.testing.assert_allclose(found[0, 1], 0.0, atol=1e-14)  # by symmetry


def large_model(kernel: ps.Kernel) -> ps.Model:
    """Groups of several sizes, two of one structure, functionals, a parameter and a block of one row."""
    functionals, _ = functional_blocks()
    ops = operators()
    return ps.Model(
        kernel,
        data=[
            ps.observe(ps.identity, values=np.linspace(-1, 1, 13), at=scattered(13, 0)),
            ps.observe(functionals[3], values=[0.1, -0.2, 0.3]),
            ps.observe(DY, values=0.5, at=scattered(1, 1)),
            ps.observe(ps.identity, values=0.2, at=scattered(4, 2), gamma=0.3),
        ],
        physics=[
            ps.impose(A * DX, 1.0, on=ps.domains.nodes_at(scattered(7, 3))),
            ps.impose(functionals[1], 0.0),
            ps.impose(ops["parameter"], 0.1, on=ps.domains.nodes_at(scattered(11, 4))),
            ps.impose(DY**2, 0.0, on=ps.domains.nodes_at(scattered(2, 5))),
        ],
        gamma=0.2,
        rho=0.3,
        eta=1.4,
    )


KERNELS = {
    "rbf": ps.RBF(H),
    "scaled": 1.5 * ps.RBF(0.7),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_tiles_change_neither_covariance_nor_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = large_model(KERNELS[name])
    whole, score, gradient = assembled(model), *ps.pile_and_gradient(model)
    single = layouts.layout(model.blocks)
    monkeypatch.setattr(layouts, "TILE", 5)
    monkeypatch.setattr(layouts, "SMALL_GROUP", 3)
    layout = layouts.layout(model.blocks)
    plain_tiles = [t for t in layout.tiles if t.matrix is None]
    assert len(layout.tiles) > 2 * len(single.tiles)
    assert any(t.width > t.size for t in plain_tiles)  # padded
    assert max(t.width for t in plain_tiles) <= 5
    assert len({t.indices for t in plain_tiles}) >= 3  # several groups
    assert sum(t.matrix is not None for t in layout.tiles) >= 4  # functionals in pieces
    assert all((t.matrix != 0).any(axis=0).all() for t in layout.tiles if t.matrix is not None)
    assert not np.array_equal(layout.order, np.arange(model.size))
    assert [t.rows.start for t in layout.tiles[1:]] == [t.rows.stop for t in layout.tiles[:-1]]
    np.testing.assert_allclose(assembled(model), whole, rtol=1e-13, atol=1e-13)
    tiled, slopes = ps.pile_and_gradient(model)
    assert tiled.value == pytest.approx(score.value, rel=1e-13)
    assert dict(tiled.shares) == pytest.approx(dict(score.shares), rel=1e-11, abs=1e-12)
    assert list(slopes) == list(gradient)
    assert {"beta", "gamma", "rho", "eta", "data.3.gamma"} <= set(slopes)
    for key, value in gradient.items():
        np.testing.assert_allclose(slopes[key], value, rtol=1e-10, atol=1e-12, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize(("tile", "small"), [(1, 1), (7, 50), (16, 0), (1000, 1000)])
def test_covariance_for_other_tile_sizes(tile: int, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = large_model(KERNELS["rbf"])
    whole = assembled(model)
    monkeypatch.setattr(layouts, "TILE", tile)
    monkeypatch.setattr(layouts, "SMALL_GROUP", small)
    np.testing.assert_allclose(assembled(model), whole, rtol=1e-13, atol=1e-13)


@pytest.mark.slow
def test_stacked_order_is_data_then_physics() -> None:
    """The large model against brute force in the order of its blocks."""
    model = large_model(ps.RBF(H))
    rows = [Rows(b.operator, b.points, b.matrix) for b in model.blocks]
    assert [b.role for b in model.blocks] == ["data"] * 4 + ["physics"] * 4
    np.testing.assert_allclose(assembled(model), brute_force(rbf, rows), rtol=1e-11, atol=1e-12)


def test_cross_and_variances_agree_with_the_covariance() -> None:
    model = large_model(ps.RBF(H))
    layout = layouts.layout(model.blocks)
    lower = np.tril(gram.covariance(model.kernel, layout, 1.3))
    full = lower + np.tril(lower, -1).T
    for tile in layout.tiles:
        found = gram.cross(model.kernel, tile, layout, 1.3)
        np.testing.assert_allclose(found, full[tile.rows], rtol=1e-13, atol=1e-13)
        if tile.matrix is None:
            variances = gram.variances(model.kernel, tile, 1.3)
            np.testing.assert_allclose(variances, full.diagonal()[tile.rows], rtol=1e-13)
