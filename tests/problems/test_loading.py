"""Problem files: the models they describe, and the messages about mistakes."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pilescore as ps
from pilescore.problems.description import describe_problem, parameter_text
from pilescore.problems.noise import last_digit
from pilescore.search.fingerprint import fingerprint
from pilescore.solvers.exact import NONLINEAR_TOLERANCE, with_tolerances

READINGS = "t,x,u,sigma\n0.1,0.2,0.5,0.02\n0.4,0.7,0.3,0.02\n0.9,0.5,0.1,0.05\n"
GOOD = """\
title = "a rod"
[domain]
t = [0, 1]
x = [0, 1]
[parameters]
k = 0.3
[[equation]]
equation = "dt(u) - k*dxx(u) = 0"
nodes = 4
[[condition]]
type = "dirichlet"
face = ["x = 0", "x = 1"]
value = 0
nodes = 3
[[data]]
file = "readings.csv"
value = "u"
noise = "sigma"
[[kernel]]
type = "rbf"
"""


def write(directory: Path, text: str = GOOD, **files: str) -> Path:
    (directory / "readings.csv").write_text(READINGS)
    for name, content in files.items():
        (directory / f"{name}.csv").write_text(content)
    path = directory / "problem.toml"
    path.write_text(text)
    return path


def mistakes(path: Path) -> list[str]:
    with pytest.raises(ps.errors.FileError) as caught:
        ps.load_problem(path)
    return [str(each) for each in caught.value.mistakes]


def test_a_problem_file_gives_the_same_model_as_python(tmp_path: Path) -> None:
    text = GOOD.replace("[[kernel]]", "[temperatures]\nrho = 1e-3\neta = 2.0\n[[kernel]]\nbandwidth = [0.3, 0.4]")
    model = ps.load_problem(write(tmp_path, text)).model
    box = ps.Box(t=(0, 1), x=(0, 1))
    dt, dx = ps.partials(box)
    table = pd.read_csv(tmp_path / "readings.csv")
    on = [box.face(x=x)(ps.GaussLegendre(3)) for x in (0, 1)]
    expected = ps.Model(
        ps.RBF([0.3, 0.4]),
        ps.observe(ps.identity, table["u"], at=table[["t", "x"]], noise=table["sigma"], name="readings"),
        [
            ps.impose(dt - 0.3 * dx**2, 0.0, box(ps.GaussLegendre(4)), name="equation"),
            *(ps.dirichlet(0.0, on=each, name=f"dirichlet x = {x}") for x, each in enumerate(on)),
        ],
        gamma=1.0,
        rho=1e-3,
        eta=2.0,
    )
    assert fingerprint([model]) == fingerprint([expected])
    assert float(ps.pile(model)) == float(ps.pile(expected))


CONDITIONS = {
    'type = "dirichlet"\nface = "x = 1"\nvalue = "sin(t)"': lambda face: [
        ps.dirichlet(lambda p: jnp.sin(p[0]), on=face)
    ],
    'type = "neumann"\nface = "x = 1"\nvalue = "t**2"': lambda face: [ps.neumann(lambda p: p[0] ** 2, on=face)],
    'type = "robin"\nface = "x = 1"\na = 2\nb = "1 + t"\nvalue = 3': lambda face: [
        ps.robin(2.0, lambda p: 1 + p[0], 3.0, on=face)
    ],
    'type = "cauchy"\nface = "x = 1"\nvalue = 1\nflux = "t"': lambda face: ps.cauchy(1.0, lambda p: p[0], on=face),
    'type = "operator"\nface = "x = 1"\noperator = "dt(u) + dxx(u)"\nvalue = 0': lambda face: [
        ps.impose(ps.partials(face.region)[0] + ps.partials(face.region)[1] ** 2, 0.0, face)
    ],
    'type = "periodic"\nface = ["x = 1", "x = 0"]\nderivatives = 1': lambda face: ps.periodic(
        face, face.region.box.face(x=0)(ps.GaussLegendre(5)), 1
    ),
}


def smooth(p: Any) -> Any:
    return jnp.sin(2 * p[0] + p[1]) * p[1]


@pytest.mark.parametrize("table", CONDITIONS)
def test_conditions_match_those_of_the_library(tmp_path: Path, table: str) -> None:
    text = f"[domain]\nt = [0, 2]\nx = [0, 1]\n[temperatures]\nrho = 0.1\n[[condition]]\nnodes = 5\n{table}\n"
    text += '[[data]]\nfile = "readings.csv"\nvalue = "u"\nnoise = "sigma"\n'
    blocks = ps.load_problem(write(tmp_path, text)).model.physics
    box = ps.Box(t=(0, 2), x=(0, 1))
    expected = CONDITIONS[table](box.face(x=1)(ps.GaussLegendre(5)))
    assert len(blocks) == len(expected)
    for block, other in zip(blocks, expected, strict=True):
        np.testing.assert_allclose(block.points, other.points)
        np.testing.assert_allclose(block.values, other.values)
        np.testing.assert_allclose(block.weights, other.weights)
        at = np.array([0.7, 0.4])
        np.testing.assert_allclose(block.operator(smooth)(at), other.operator(smooth)(at))


def test_integrals_and_values_from_files(tmp_path: Path) -> None:
    text = """\
[domain]
t = [0, 1]
x = [0, 2]
[temperatures]
rho = 0.1
[[constraint]]
equation = "integral(x*u, x) = exp(-t)"
at = { t = [0.0, 0.5] }
nodes = 6
[[condition]]
type = "dirichlet"
face = "t = 0"
value = { file = "initial.csv", value = "temperature", columns = { x = "X" } }
"""
    model = ps.load_problem(write(tmp_path, text, initial="X;temperature\n0.5;1.5\n1.0;2\n")).model
    face, integral = model.physics
    np.testing.assert_array_equal(face.points, [[0, 0.5], [0, 1.0]])
    np.testing.assert_array_equal(face.values, [1.5, 2.0])
    np.testing.assert_allclose(face.weights, 1.0)  # the length of the face, shared by two points
    np.testing.assert_allclose(integral.values, np.exp([0.0, -0.5]))
    at = integral.points
    np.testing.assert_allclose(integral.matrix @ (at[:, 1] * at[:, 1] ** 2), 4.0)  # ∫ x·x² over [0, 2]


def test_default_bounds_scale_with_the_units(tmp_path: Path) -> None:
    problem = ps.load_problem(write(tmp_path))
    (over,) = problem.over.values()
    assert list(over) == ["kernel.bandwidth", "eta"]
    scaled = GOOD.replace("x = [0, 1]", "x = [0, 1000]").replace('"x = 1"', '"x = 1000"').replace("k = 0.3", "k = 3e5")
    other = tmp_path / "other"
    other.mkdir()
    rows = pd.read_csv(tmp_path / "readings.csv")
    path = write(other, scaled)
    rows.assign(x=1000 * rows["x"], u=10 * rows["u"], sigma=10 * rows["sigma"]).to_csv(
        other / "readings.csv", index=False
    )
    larger = ps.load_problem(path)
    (wider,) = larger.over.values()
    np.testing.assert_allclose(
        np.ravel(wider["kernel.bandwidth"]), np.ravel(over["kernel.bandwidth"]) * [1, 1000, 1, 1000]
    )
    np.testing.assert_allclose(wider["eta"], np.multiply(over["eta"], 100))
    before, after = (ps.pile(each.model) for each in (problem, larger))
    assert after.fit == pytest.approx(before.fit, rel=1e-6)  # the same problem in other units


def test_equations_and_conditions_without_a_noise_are_exact(tmp_path: Path) -> None:
    problem = ps.load_problem(write(tmp_path))
    model, text = problem.model, describe_problem(problem)
    assert [model.is_exact(i) for i in range(4)] == [False, True, True, True]
    assert not any("rho" in name for name in (*model.parameters, *problem.over["rbf"]))
    for line in (
        "equation: (∂t - 0.3 ∂x²) u = 0, 16 nodes, exact\n",
        "dirichlet x = 0: u = 0, 3 nodes, exact\n",
        "dirichlet x = 1: u = 0, 3 nodes, exact\n",
    ):
        assert line in text
    t = np.linspace(0, 1, 5)
    # The nodes are at other times; 3 of them on each face leave a little in between.
    ends = ps.posterior(model).mean(np.concatenate([np.stack([t, np.full(5, x)], 1) for x in (0.0, 1.0)]))
    nodes = ps.posterior(model).mean(np.concatenate([block.points for block in model.physics[1:]]))
    assert np.abs(nodes).max() < 1e-6 < np.abs(ends).max()
    shared = ps.load_problem(write(tmp_path, GOOD.replace("[[kernel]]", "[temperatures]\nrho = 1e-3\n[[kernel]]")))
    assert not any(shared.model.is_exact(i) for i in range(4))
    assert describe_problem(shared).count("shared rho") == 3
    own = ps.load_problem(write(tmp_path, GOOD.replace("nodes = 4", "nodes = 4\nnoise = 0.25")))
    assert [own.model.is_exact(i) for i in range(4)] == [False, False, True, True]
    np.testing.assert_allclose(own.model.noise[3:19], 0.25**2)


def test_conditions_with_values_from_a_file_have_a_noise_to_choose(tmp_path: Path) -> None:
    condition = '[[condition]]\ntype = "dirichlet"\nface = "t = 0"\nvalue = { file = "initial.csv", value = "u" }\n'
    rows = [(0.1, 1.25), (0.4, 3.5), (0.8, 0.75)]
    initial = "x,u\n" + "".join(f"{x},{u}\n" for x, u in rows)
    problem = ps.load_problem(write(tmp_path, GOOD.replace("[[data]]", f"{condition}[[data]]"), initial=initial))
    (name,) = (name for name in problem.over["rbf"] if "rho" in name)
    assert parameter_text(name, problem) == "rho of dirichlet t = 0"
    assert "dirichlet t = 0: u = 'u' in initial.csv, 3 nodes, noise to be chosen\n" in describe_problem(problem)
    low, high = problem.over["rbf"][name]
    values = np.array([u for _, u in rows])
    # Rounding to hundredths adds a deviation of 0.01/√12; a tenth of that is the least. The noise variance is ρ/2.
    assert low == pytest.approx(2 * (0.1 * 0.01 / np.sqrt(12)) ** 2)
    assert high == pytest.approx(2 * np.var(values))
    block = problem.model.physics[problem.model.labels.index("dirichlet t = 0") - 1]
    assert low < float(block.temperature) < high
    np.testing.assert_array_equal(block.weights, 1.0)
    known = condition.replace("[[condition]]", "[[condition]]\nnoise = 0.1")
    problem = ps.load_problem(write(tmp_path, GOOD.replace("[[data]]", f"{known}[[data]]"), initial=initial))
    assert not any("rho" in name for name in problem.over["rbf"])
    assert "dirichlet t = 0: u = 'u' in initial.csv, 3 nodes, noise 0.1\n" in describe_problem(problem)


@pytest.mark.parametrize(
    ("values", "unit"),
    [([1.25, 3.5], 0.01), ([300.0, 20.0], 10.0), ([7.0, 3.0], 1.0), ([1 / 3, 2.0], 0.0), ([1e-6, 0.12], 1e-6)],
)
def test_the_last_digit_of_data_bounds_their_noise(tmp_path: Path, values: list[float], unit: float) -> None:
    assert last_digit(np.array(values)) == pytest.approx(unit, rel=1e-12)
    rows = "".join(f"0.{i},0.5,{u!r}\n" for i, u in enumerate(values, 1))
    text = GOOD.replace("readings.csv", "rounded.csv").replace('noise = "sigma"\n', "")
    low, _ = ps.load_problem(write(tmp_path, text, rounded="t,x,u\n" + rows)).over["rbf"]["gamma"]
    size = np.sqrt(max(np.var(values), np.mean(np.square(values))))
    assert low == pytest.approx(2 * max(0.1 * unit / np.sqrt(12), 1e-7 * size) ** 2)


def test_a_file_with_nothing_to_score_is_refused(tmp_path: Path) -> None:
    text = '[domain]\nx = [0, 1]\n[[equation]]\nequation = "dxx(u) = 0"\n'
    (found,) = mistakes(write(tmp_path, text))
    assert "select: score: there is nothing to score" in found
    assert "no data, and all of its physics is given: its values are constant or zero" in found
    (found,) = mistakes(write(tmp_path, text.replace("= 0", "= 1") + '[select]\nscore = "joint"\n'))
    assert "no data, and all of its physics is given: its equations are exact" in found
    assert ps.load_problem(write(tmp_path, text.replace("= 0", "= 1"))).score == ps.Score("auto")
    fixed = "[temperatures]\neta = 1\n[[kernel]]\ntype = 'rbf'\nbandwidth = 0.3\n"
    assert ps.load_problem(write(tmp_path, text + fixed)).over == {"rbf": {}}  # nothing to choose, only to predict


def test_default_numbers_of_nodes(tmp_path: Path) -> None:
    for names, count in (("x", 40), ("tx", 16), ("txy", 7)):
        box = "".join(f"{name} = [0, 1]\n" for name in names)
        text = f'[domain]\n{box}[[equation]]\nequation = "dxx(u) = 1"\n'
        (block,) = ps.load_problem(write(tmp_path, text)).model.physics
        assert block.size == count ** len(names)


def test_the_default_score_is_auto(tmp_path: Path) -> None:
    named = ps.load_problem(write(tmp_path, f'{GOOD}[select]\nscore = "auto"\n'))
    zeros = ps.load_problem(write(tmp_path))  # all that is imposed is zero
    ones = ps.load_problem(write(tmp_path, GOOD.replace("value = 0", "value = 1")))
    varied = ps.load_problem(write(tmp_path, GOOD.replace("value = 0", 'value = "1 + t"')))
    problem = ps.load_problem(write(tmp_path, GOOD.replace("k = 0.3", "k = { unknown = [0.1, 1.0] }")))
    for each in (named, zeros, ones, varied, problem):
        assert each.score == ps.Score("auto")
        assert each.score_name == "auto"
    for each in (named, zeros, ones, problem):
        assert "score: PILE of the data given the physics; " in describe_problem(each)
        assert ps.pile(each.model, each.score).value == ps.pile(each.model, "given_physics").value
    mixed = "score: PILE of the data and the imposed values that vary, given those that are constant; "
    assert mixed in describe_problem(varied)
    assert ps.pile(varied.model, varied.score).size == 3 + 2 * 3  # the data and both faces
    assert problem.over["rbf"]["k"] == (0.1, 1.0)
    assert problem.model.parameters["k"] == pytest.approx(np.sqrt(0.1))
    assert str(problem.operator("-k*dx(u)", {"k": 2.0})) == "-2 ∂x"


def test_scores_have_the_same_names_as_in_python(tmp_path: Path) -> None:
    for name in ("joint", "given_homogeneous", "given_constant", "given_physics", "profiled", "auto"):
        problem = ps.load_problem(write(tmp_path, f'{GOOD}[select]\nscore = "{name}"\n'))
        assert problem.score_name == name
        assert problem.score == ps.inference.as_score(name)
        assert ("eta" in problem.over["rbf"]) == (name != "profiled")


def test_the_tolerance_of_a_solver(tmp_path: Path) -> None:
    problem = ps.load_problem(write(tmp_path, f'{GOOD}[solver]\nmethod = "low_rank"\ntolerance = 0.01\n'))
    assert problem.model.solver.tolerance == 0.01
    assert "solver: low rank" in describe_problem(problem)


def test_names_of_hyperparameters_with_their_coordinate_or_block(tmp_path: Path) -> None:
    parts = '[{ type = "rbf", on = ["x"], bandwidth = 1.0 }, { type = "rbf", on = ["x", "t"] }]'
    table = f'type = "product"\nparts = {parts}\n[[kernel]]\ntype = "rbf"'
    text = GOOD.replace('type = "rbf"', table).replace("nodes = 4", "nodes = 4\nrho = { unknown = [1e-6, 1.0] }")
    problem = ps.load_problem(write(tmp_path, text))
    name = next(iter(next(iter(problem.over.values()))))
    assert [parameter_text(f"{name}[{i}]", problem) for i in (0, 1)] == [f"{name}[0] (x)", f"{name}[1] (t)"]
    assert parameter_text("kernel.bandwidth[1]", problem) == "kernel.bandwidth[1] (x)"
    assert parameter_text("physics.0.rho", problem) == "rho of equation"
    assert [parameter_text(each, problem) for each in ("eta", "kernel.nothing[0]")] == ["eta", "kernel.nothing[0]"]


@pytest.mark.slow
def test_nonlinear_equations_conditions_and_readings(tmp_path: Path) -> None:
    text = GOOD.replace("k = 0.3", "k = { unknown = [0.1, 1.0] }").replace("dt(u)", "dt(u) + u*dx(u)")
    text = text.replace('value = "u"\n', 'value = "u"\nmeasures = "k*u**2"\n')
    text = text.replace("[[data]]", '[[condition]]\ntype = "operator"\noperator = "dx(u) + u**4"\nface = "x = 1"\n'
                        'value = "exp(t)"\n[[data]]')  # fmt: skip
    problem = ps.load_problem(write(tmp_path, text))
    model = problem.model
    assert [block.is_nonlinear for block in model.blocks] == [True, True, False, False, True]
    assert problem.score == ps.Score("auto")
    assert model.parameters["k"] == pytest.approx(np.sqrt(0.1))
    at = np.array([0.7, 0.4])
    u, (u_t, u_x) = smooth(at), jax.jacfwd(smooth)(at)
    u_xx = jax.hessian(smooth)(at)[1, 1]
    expected = [0.5 * u**2, u_t + u * u_x - 0.5 * u_xx, u, u, u_x + u**4]
    blocks = model.replace({"k": 0.5}).blocks
    np.testing.assert_allclose([float(block.operator(smooth)(at)) for block in blocks], expected, rtol=1e-12)
    text = describe_problem(problem)
    assert "readings: k u² = 'u' in readings.csv, nonlinear, 3 readings, noise 0.02 to 0.05" in text
    assert "equation: ∂t u - k ∂x² u + u ∂x u = 0, nonlinear, 16 nodes, exact" in text
    assert "operator x = 1: ∂x u + u⁴ = exp(t), nonlinear, 16 nodes, exact" in text


def test_sizes_of_nonlinear_equations(tmp_path: Path) -> None:
    """Sizes estimated from draws are exact for linear equations, scale with the units, and give the size of u."""

    def variance(equation: str, scale: float = 1.0) -> float:
        table = pd.read_csv(write(tmp_path).parent / "readings.csv")
        path = write(tmp_path, GOOD.replace("dt(u) - k*dxx(u) = 0", equation))
        table.assign(u=scale * table["u"], sigma=scale * table["sigma"]).to_csv(tmp_path / "readings.csv", index=False)
        model = with_tolerances(ps.load_problem(path).model)
        rows = model.rows[len(model.data)]
        return float(model.noise[rows][0]) / (NONLINEAR_TOLERANCE**2 * len(model.noise[rows]))

    # The prior variance of ∂t u − k ∂x² u at bandwidths 0.3 is 1/0.09 + 3k²/0.3⁴, times the squared size of u.
    problem = ps.load_problem(write(tmp_path))
    unknown, k = problem.model.parameters["eta"], 0.3
    expected = unknown * (1 / 0.09 + 3 * k**2 / 0.3**4)
    np.testing.assert_allclose(variance("dt(u) - k*dxx(u) + 1e-9*u**2 = 0"), expected, rtol=0.2)
    np.testing.assert_allclose(variance("u*dx(u) = 0", 10.0), 1e4 * variance("u*dx(u) = 0"))
    text = '[domain]\nx = [0, 1]\n[[equation]]\nequation = "EQUATION"\nnodes = 9\n'
    text += '[[condition]]\ntype = "dirichlet"\nface = "all"\nvalue = 0\n'
    text += '[[data]]\nfile = "zero.csv"\nvalue = "u"\nnoise = 1\n'  # a zero says nothing about sizes
    sizes = []
    for equation in ("1e-9*dxx(u) + u**3 = 8e6", "exp(u) + 1e-9*dxx(u) = 1000", "dx(u)**2 = -1", "sqrt(u - 1) = dx(u)"):
        problem = ps.load_problem(write(tmp_path, text.replace("EQUATION", equation), zero="x,u\n0.5,0\n"))
        sizes.append(float(np.sqrt(problem.model.parameters["eta"])))
    assert 100 < sizes[0] < 400  # u = 200, by a source alone
    assert 2 < sizes[1] < 50  # u = log(1000)
    assert np.isfinite(sizes).all()


KERNELS = {
    'type = "matern"\nnu = 4.5\nbandwidth = 0.2': ps.Matern(4.5, [0.2, 0.2]),
    'type = "rbf"\nper_axis = false\nbandwidth = 0.2': ps.RBF(0.2),
    'type = "rational-quadratic"\nalpha = 2.0\nbandwidth = [0.1, 0.2]': ps.kernels.RationalQuadratic(2.0, [0.1, 0.2]),
    'type = "anisotropic-rbf"\ntheta = 0.3\ns = 0.5\nbandwidth = 0.4': ps.AnisotropicRBF(0.3, 0.5, 0.4),
    'type = "sheared-rbf"\nshear = 0.3\nbandwidth = [0.5, 0.2]': ps.kernels.ShearedRBF(0.3, [0.5, 0.2]),
    'type = "sheared-rbf"\non = ["x", "t"]\nshear = 0.3\nbandwidth = 0.2': ps.kernels.ShearedRBF(0.3, 0.2).on(1, 0),
    'type = "evolution"\nbandwidth = 0.2': ps.kernels.Evolution(ps.RBF(0.2), (0.0, 1.0)),
    'type = "product"\nparts = [{ type = "periodic", on = ["x"], period = 1.0, bandwidth = 0.7 }, '
    '{ type = "rbf", on = ["t"], bandwidth = 0.5 }]': ps.kernels.Periodic(1.0, 0.7).on(1) * ps.RBF(0.5).on(0),
    'type = "sum"\nparts = [{ type = "rbf", bandwidth = 0.1 }, { type = "matern", nu = 5.5, bandwidth = 0.9 }]': ps.RBF(
        [0.1, 0.1]
    )
    + ps.Matern(5.5, [0.9, 0.9]),
}


@pytest.mark.parametrize("table", KERNELS)
def test_kernels_match_those_of_the_library(tmp_path: Path, table: str) -> None:
    problem = ps.load_problem(write(tmp_path, GOOD.replace('type = "rbf"', table)))
    a, b = (0.3, 0.8), (0.5, 0.1)
    assert float(problem.model.kernel(a, b)) == pytest.approx(float(KERNELS[table](a, b)), rel=1e-14)
    assert not any(name.startswith("kernel") for name in next(iter(problem.over.values())))


SNAPSHOTS = """
[domain]
t = [0, 0.1]
x = [-3, 3]
[parameters]
nu = { unknown = [0.01, 1] }
[[equation]]
equation = "dt(u) + u*dx(u) = nu*dxx(u)"
[[data]]
file = "snapshots.csv"
value = "u"
"""


def test_coefficients_from_two_snapshots_have_a_kernel_of_evolutions(tmp_path: Path) -> None:
    def problem(times: tuple[float, ...], old: str = "", new: str = "") -> ps.problems.Problem:
        rows = [f"{t},{x},{np.sin(x)}" for t in times for x in np.linspace(-3, 3, 40)]
        text = SNAPSHOTS.replace(old, new) if old else SNAPSHOTS
        return ps.load_problem(write(tmp_path, text, snapshots="\n".join(["t,x,u", *rows])))

    found = problem((0.0, 0.1))
    assert list(found.models) == ["evolution"]
    assert "two times" in found.why_kernels
    assert found.model.physics[0].size == 4 * 40  # four times, and as many points as readings in a snapshot
    assert problem((0.0, 0.1), 'nu*dxx(u)"', 'nu*dxx(u)"\nnodes = 5').model.physics[0].size == 25
    # Otherwise the usual kernel: three times, a known coefficient, an equation of second order in time.
    assert list(problem((0.0, 0.05, 0.1)).models) == ["rbf"]
    assert list(problem((0.0, 0.1), "{ unknown = [0.01, 1] }", "0.1").models) == ["rbf"]
    assert list(problem((0.0, 0.1), "dt(u) +", "dtt(u) +").models) == ["rbf"]


TRANSPORT = """
[domain]
x = [0, 6]
t = [0, 1]
[[equation]]
equation = "dt(u) + 20*dx(u) = 0"
nodes = 8
[[condition]]
type = "dirichlet"
face = "t = 0"
value = "sin(x)"
[[kernel]]
type = "sheared-rbf"
"""


def test_a_shear_starts_where_it_suits_the_equation(tmp_path: Path) -> None:
    def problem(*changes: str) -> ps.problems.Problem:
        text = TRANSPORT
        for old, new in zip(changes[::2], changes[1::2], strict=True):
            text = text.replace(old, new)
        return ps.load_problem(write(tmp_path, text))

    name = "kernel.kernel.shear"  # the time is the first coordinate of the kernel, and the second of the problem
    free = problem()
    low, high = free.over["sheared-rbf(t, x)"][name]
    assert (float(low), float(high)) == (-60.0, 60.0)
    assert free.model.parameters[name] == pytest.approx(20.0, rel=0.05)
    bounded = problem('"sheared-rbf"', '"sheared-rbf"\nshear = { unknown = [0, 10] }')
    assert bounded.model.parameters[name] == pytest.approx(10.0)
    started = problem('"sheared-rbf"', '"sheared-rbf"\nshear = { unknown = [0, 10], start = 3 }')
    assert started.model.parameters[name] == 3.0
    nonlinear = problem("20*dx(u)", "u*dx(u)")  # its velocity is not known
    assert nonlinear.model.parameters[name] == 0.0


def test_kernels_of_a_file_without_any(tmp_path: Path) -> None:
    """Without data, and with a known linear equation of two coordinates, a sheared kernel is tried too."""
    file = TRANSPORT.removesuffix('[[kernel]]\ntype = "sheared-rbf"\n')
    problem = ps.load_problem(write(tmp_path, file))
    assert list(problem.models) == ["rbf", "sheared-rbf(t, x)"]
    assert problem.models["sheared-rbf(t, x)"].parameters["kernel.kernel.shear"] == pytest.approx(20.0, rel=0.05)
    assert "the file names no kernel" in describe_problem(problem)
    assert "sheared-rbf is tried too, since there are no data" in problem.why_kernels
    many = ps.load_problem(write(tmp_path, file.replace("nodes = 8", "nodes = 40")))  # chosen on fewer nodes
    assert many.models["sheared-rbf(t, x)"].parameters["kernel.kernel.shear"] == pytest.approx(20.0, rel=0.05)
    named = ps.load_problem(write(tmp_path, file + '[[kernel]]\ntype = "rbf"\n'))
    assert (list(named.models), named.why_kernels) == (["rbf"], "")
    data = file + '[[data]]\nfile = "readings.csv"\nvalue = "u"\n'
    others = {
        "data": data,
        "nonlinear": file.replace("20*dx(u)", "u*dx(u)"),
        "no equation": file.replace("[[equation]]\nequation", "#").replace("nodes = 8", ""),
        "three coordinates": file.replace("t = [0, 1]", "t = [0, 1]\ny = [0, 1]").replace("nodes = 8", "nodes = 3"),
        "unknown velocity": data.replace("20*", "c*") + "[parameters]\nc = { unknown = [1, 30] }\n",
    }
    for text in others.values():
        alone = ps.load_problem(write(tmp_path, text, readings="t,x,u\n0.5,1,0.1\n0.2,2,0.2\n"))
        assert list(alone.models) == ["rbf"]
        assert alone.why_kernels == "the file names no kernel: rbf is the default"


BAD = {
    "malformed": (("nodes = 4", "nodes = = 4"), ["problem.toml:9", "Invalid value"]),
    "unknown key": (("nodes = 4", "noodes = 4"), ["problem.toml:9: [[equation]] 1: noodes", "did you mean 'nodes'?"]),
    "unknown section": (("[parameters]", "[parameter]"), ["problem.toml:5", "did you mean 'parameters'?"]),
    "no domain": (("[domain]\nt = [0, 1]\nx = [0, 1]\n", ""), ["domain is missing", "x = [-1, 1]"]),
    "interval": (("t = [0, 1]", "t = [1, 0]"), ["problem.toml:3: [domain]: t", "found [1, 0]"]),
    "coordinate that is a function": (("x = [0, 1]", "sin = [0, 1]"), ["[domain]", "sin"]),
    "unknown function": (("dxx(u)", "dzz(u)"), ["problem.toml:8: [[equation]] 1: equation", "dzz"]),
    "misspelt function": (('= 0"', '= coss(x)"'), ["coss", "Did you mean 'cos'?"]),
    "unknown symbol": (("k*dxx", "kappa*dxx"), ["problem.toml:8", "kappa"]),
    "no equals sign": ((' = 0"\nnodes', '"\nnodes'), ["problem.toml:8", "="]),
    "two equals signs": ((' = 0"\nnodes', ' = 0 = 1"\nnodes'), ["problem.toml:8", "="]),
    "unbalanced": (("dt(u)", "dt(u"), ["problem.toml:8"]),
    "no unknown in it": (("dt(u) - k*dxx(u) = 0", "x = 0"), ["problem.toml:8", "u"]),
    "nonlinear integral": (
        ("[[kernel]]", '[[constraint]]\nequation = "integral(u**2, x) = 1"\nat = { t = 1 }\n[[kernel]]'),
        ["problem.toml:20", "'u**2' at column 10: is not linear in u", "expected a linear expression"],
    ),
    "factor with the unknown": (
        ('"dirichlet"', '"robin"\na = "u**3"\nb = 1'),
        ["problem.toml:12: [[condition]] 1: a", "expected an expression without u"],
    ),
    "kernel too rough for a product": (
        ("k*dxx(u) = 0", "u*dxx(u)*dx(u) = 0", '"rbf"', '"matern"\nnu = 1.5'),
        ["problem.toml:19: [[kernel]] 1", "order 2"],
    ),
    "nonlinear condition twice": (
        (
            "[[data]]",
            "[[condition]]\ntype = 'operator'\noperator = 'dx(u) + u**4'\nface = 'x = 1'\nvalue = 1\n"
            "[[condition]]\ntype = 'operator'\noperator = 'dx(u) + u**4'\nface = 'x = 1'\nvalue = 2\n[[data]]",
        ),
        ["problem.toml:24: [[condition]] 3: value", "∂x u + u⁴ on the face x = 1", "one gives 1 and the other 2"],
    ),
    "import": (("dt(u)", "__import__('os').system('ls')"), ["problem.toml:8"]),
    "attribute": (("dt(u)", "u.__class__"), ["problem.toml:8"]),
    "10,000 deep": (("dt(u)", "(" * 10_000 + "u" + ")" * 10_000), ["problem.toml:8", "4000 characters"]),
    "negative nodes": (("nodes = 4", "nodes = -4"), ["problem.toml:9", "found -4", "whole number"]),
    "too many nodes": (("nodes = 4", "nodes = 100000"), ["problem.toml:9", "10000000000 nodes"]),
    "face": (('"x = 1"]', '"x = 2"]'), ["problem.toml:12: [[condition]] 1: face", "0 or 1"]),
    "face of no coordinate": (('"x = 1"]', '"y = 1"]'), ["problem.toml:12", "no coordinate 'y'"]),
    "type": (('"dirichlet"', '"dirichlett"'), ["problem.toml:11", "did you mean 'dirichlet'?"]),
    "value missing": (("value = 0\n", ""), ["problem.toml:10: [[condition]] 1", "value is missing"]),
    "value of the unknown": (("value = 0\n", 'value = "u"\n'), ["problem.toml:13", "u"]),
    "value not finite": (("value = 0\n", 'value = "1/t"\nrule = "clenshaw-curtis"\n'), ["problem.toml:13", "infinite"]),
    "no such file": (("readings.csv", "reading.csv"), ["reading.csv", "did you mean 'readings.csv'?"]),
    "file elsewhere": (("readings.csv", "../readings.csv"), ["problem.toml:16", "within the directory"]),
    "absolute file": (("readings.csv", "/etc/passwd"), ["problem.toml:16", "within the directory"]),
    "column": (('value = "u"', 'value = "U"'), ["readings.csv", "'U'", "did you mean 'u'?"]),
    "noise of zero": (('noise = "sigma"', "noise = 0"), ["problem.toml:18", "found 0.0", "use a negligible one"]),
    "noise and gamma": (('noise = "sigma"', 'noise = "sigma"\ngamma = 1.0'), ["problem.toml:19", "both"]),
    "kernel too rough": (('"rbf"', '"matern"\nnu = 1.5'), ["problem.toml:19: [[kernel]] 1", "order 2", "RBF"]),
    "kernel's nu": (('"rbf"', '"matern"\nnu = 2'), ["problem.toml:19: [[kernel]] 1", "2"]),
    "kernel on nothing": (('"rbf"', '"rbf"\non = ["z"]'), ["problem.toml:19", "z"]),
    "bounds": (("k = 0.3", "k = { unknown = [1, 0.1] }"), ["problem.toml:6: [parameters]: k", "unknown = [low, high]"]),
    "never used": (
        ("k = 0.3", "k = 0.3\nq = { unknown = [0, 1] }"),
        ["problem.toml:7: [parameters]: q", "no equation"],
    ),
    "unknown in a value": (
        ("k = 0.3", "k = { unknown = [0, 1] }", "value = 0", 'value = "k*t"'),
        ["problem.toml:13: [[condition]] 1: value", "'k' at column 1: is inferred, and cannot be part of a value"],
    ),
    "given twice": (
        ("[[data]]", '[[condition]]\ntype = "cauchy"\nface = "x = 1"\nvalue = "t"\nflux = 0\n[[data]]'),
        ["problem.toml:18: [[condition]] 2: value", "already given by [[condition]] 1", "contradict", "t = 1"],
    ),
    "periodic against values": (
        (
            'face = ["x = 0", "x = 1"]\nvalue = 0',
            'face = "x = 0"\nvalue = 0\n[[condition]]\ntype = "dirichlet"\nface = "x = 1"\nvalue = 1\n'
            '[[condition]]\ntype = "periodic"\nface = ["x = 0", "x = 1"]',
        ),
        ["[[condition]] 3", "contradict"],
    ),
    "grid": (("[[kernel]]", "[predict]\ngrid = { x = 5 }\n[[kernel]]"), ["problem.toml:20", "t, x"]),
    "predicted": (("[[kernel]]", '[predict]\noperators = ["dy(u)"]\n[[kernel]]'), ["problem.toml:20", "dy"]),
    "constraint": (
        ("[[kernel]]", '[[constraint]]\nequation = "integral(u, x) = 1"\n[[kernel]]'),
        ["problem.toml:19", "values of t"],
    ),
    "score of an earlier version": (
        ("[[kernel]]", '[select]\nscore = "data-given-physics"\n[[kernel]]'),
        ["problem.toml:20: [select]: score", "found 'data-given-physics', which is now called 'given_physics'"],
    ),
    "joint score of an earlier version": (
        ("[[kernel]]", '[select]\nscore = "pile"\n[[kernel]]'),
        ["problem.toml:20", "found 'pile', which is now called 'joint'"],
    ),
    "bounds of a scale in closed form": (
        ("[[kernel]]", '[select]\nscore = "profiled"\n[temperatures]\neta = { unknown = [1, 2] }\n[[kernel]]'),
        ["problem.toml:22: [temperatures]: eta", "in closed form"],
    ),
    "key of an earlier version": (
        ("[[kernel]]", "[solver]\ntol = 1e-3\n[[kernel]]"),
        ["problem.toml:20: [solver]: tol", "the key 'tol' is now called 'tolerance'"],
    ),
    "rank of a method without one": (
        ("[[kernel]]", '[solver]\nmethod = "dense"\nrank = 5\n[[kernel]]'),
        ["problem.toml:21: [solver]: rank", "the method 'dense' has no rank; expected it with low_rank"],
    ),
    "derived from an unknown name": (
        ("[[kernel]]", '[derived]\nS = "4*kk"\n[[kernel]]'),
        ["problem.toml:20: [derived]: S", "'kk' at column 3: is not a known name", "Did you mean 'k'?"],
    ),
    "derived from a coordinate": (
        ("[[kernel]]", '[derived]\nS = "4*k*x"\n[[kernel]]'),
        ["problem.toml:20: [derived]: S", "'x' at column 5: depends on x", "parameters and numbers"],
    ),
    "derived from the unknown": (
        ("[[kernel]]", '[derived]\nS = "k*dx(u)"\n[[kernel]]'),
        ["problem.toml:20: [derived]: S", "expected an expression without u"],
    ),
    "derived under the name of a parameter": (
        ("[[kernel]]", '[derived]\nk = "4*k"\n[[kernel]]'),
        ["problem.toml:20: [derived]: k", "the name is already in use"],
    ),
    "derived under the name of a temperature": (
        ("[[kernel]]", '[derived]\neta = "4*k"\n[[kernel]]'),
        ["problem.toml:20: [derived]: eta", "every model has its own eta"],
    ),
    "derived from a list": (
        ("[[kernel]]", "[derived]\nS = [1, 2]\n[[kernel]]"),
        ["problem.toml:20: [derived]: S", "an expression in quotes"],
    ),
    "misspelt score": (
        ("[[kernel]]", '[select]\nscore = "given_physic"\n[[kernel]]'),
        ["problem.toml:20: [select]: score", "found 'given_physic'", '"joint"', '"profiled"'],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_reported_with_its_line(tmp_path: Path, name: str) -> None:
    changes, words = BAD[name]
    text = GOOD
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    found = "\n".join(mistakes(write(tmp_path, text)))
    for word in words:
        assert word in found
    assert len(found) < 1500


MORE = {
    "coordinate called self": ("[domain]\nself = [0, 1]\n[[equation]]\nequation = 'dself(u) = 1'\n", []),
    "coordinates called as arguments are": (
        "[domain]\nplace = [0, 1]\nfunction = [0, 1]\n"
        "[[constraint]]\nequation = 'integral(u, function) = 1'\nat = { place = 1 }\n",
        [],
    ),
    "an operator that is zero there": (
        "[domain]\nx = [0, 1]\n[[condition]]\ntype = 'operator'\noperator = 'x*u'\nface = 'x = 0'\nvalue = 0\n",
        ["problem.toml:3: [[condition]] 1", "zero at all its points"],
    ),
    "an operator that is not defined": (
        "[domain]\nx = [0, 1]\n[[equation]]\nequation = 'sqrt(-1 - u**2) = dx(u)'\n",
        ["problem.toml:3: [[equation]] 1", "is not a number at all its points"],
    ),
    "a parameter called point": (
        "[domain]\nt = [0, 1]\nx = [0, 1]\n[parameters]\npoint = { unknown = [1, 2] }\nself = { unknown = [1, 2] }\n"
        "[[equation]]\nequation = 'dt(u) = point*u**2 + exp(self*x)'\n[[data]]\nfile = 'readings.csv'\nvalue = 'u'\n",
        [],
    ),
    "no data to infer from": (
        "[domain]\nx = [0, 1]\n[parameters]\nk = { unknown = [1, 2] }\n[[equation]]\nequation = 'k*dx(u) = 1'\n",
        ["problem.toml:4: [parameters]: k", "no [[data]]"],
    ),
    "a score that needs data": (
        "[domain]\nx = [0, 1]\n[[equation]]\nequation = 'dx(u) = 1'\n[select]\nscore = 'given_physics'\n",
        ["problem.toml:6", "no [[data]]"],
    ),
    "a parameter that is a keyword": (
        "[domain]\nx = [0, 1]\n[parameters]\nlambda = 2.0\n[[equation]]\nequation = 'dx(u) = 1'\n",
        ["problem.toml:4: [parameters]: lambda"],
    ),
    "a parameter that the model has": (
        "[domain]\nx = [0, 1]\n[parameters]\nrho = { unknown = [1, 2] }\n[[equation]]\nequation = 'rho*dx(u) = 1'\n",
        ["problem.toml:4: [parameters]: rho", "its own rho"],
    ),
    "sobol without nodes": (
        "[domain]\nx = [0, 1]\ny = [0, 1]\n[[equation]]\nequation = 'dx(u) = 1'\nrule = 'sobol'\n",
        [],
    ),
    "values that are too large": (
        "[domain]\nx = [0, 1]\n[[equation]]\nequation = 'dx(u) = 1e200'\n",
        ["problem.toml:3", "1.0e+200"],
    ),
    "too many integrals": (
        "[domain]\nt = [0, 1]\nx = [0, 1]\n[[constraint]]\nequation = 'integral(u, x) = 1'\nnodes = 700\n"
        f"at = {{ t = {[i / 2000 for i in range(1500)]} }}\n",
        ["problem.toml:7", "1500 integrals with 700 nodes"],
    ),
    "sin(pi*x) at a corner": (
        "[domain]\nt = [0, 1]\nx = [0, 1]\n[[condition]]\ntype = 'dirichlet'\nface = 't = 0'\nvalue = 'sin(pi*x)'\n"
        "[[condition]]\ntype = 'dirichlet'\nface = ['x = 0', 'x = 1']\nvalue = 'sin(pi*x)'\n"
        "[[condition]]\ntype = 'periodic'\nface = ['x = 0', 'x = 1']\n",
        [],
    ),
    "the same flux by two names": (
        "[domain]\nx = [0, 1]\n[[condition]]\ntype = 'neumann'\nface = 'x = 0'\nvalue = 0\n"
        "[[condition]]\ntype = 'operator'\noperator = 'dx(u)'\nface = 'x = 0'\nvalue = 5\n",
        ["problem.toml:11", "one gives 0 and the other 5"],
    ),
    "a Robin condition that is none": (
        "[domain]\nx = [0, 1]\n[[condition]]\ntype = 'dirichlet'\nface = 'x = 0'\nvalue = 0\n"
        "[[condition]]\ntype = 'robin'\na = 2\nb = 0\nface = 'x = 0'\nvalue = 5\n",
        ["one gives 0 and the other 2.5"],
    ),
    "title of two lines": (
        'title = "a\\nb"\n[domain]\nx = [0, 1]\n[[equation]]\nequation = "dx(u) = 1"\n',
        ["problem.toml:1"],
    ),
    "an initial condition": (
        "[domain]\nt = [0, 1]\n[[condition]]\ntype = 'initial'\nface = 't = 0'\nvalue = 0\n",
        ["problem.toml:4", 'dirichlet and face "t = 0"'],
    ),
    "backslash": (
        "[domain]\nx = [0, 1]\n[[data]]\nfile = 'deep\\r.csv'\nvalue = 'u'\n",
        ["problem.toml:4", "with / between names"],
    ),
    "one column for two coordinates": (
        "[domain]\nx = [0, 1]\ny = [0, 1]\n[[data]]\nfile = 'readings.csv'\nvalue = 'u'\ncolumns = { y = 'x' }\n",
        ["problem.toml:7", "a different column for each coordinate"],
    ),
    "a Greek letter": ("[domain]\nθ = [0, 1]\n", ["problem.toml:2", "needs quotes"]),
    "too deep": (
        f"[domain]\nx = [0, 1]\n[[equation]]\nequation = '{'sin(' * 150}x{')' * 150}*u = 1'\n",
        ["problem.toml:4", "deep"],
    ),
}


@pytest.mark.parametrize("name", MORE)
def test_more_files(tmp_path: Path, name: str) -> None:
    text, words = MORE[name]
    path = write(tmp_path, text)
    if not words:
        assert ps.load_problem(path).warnings == ()
        return
    found = "\n".join(mistakes(path))
    for word in words:
        assert word in found


def test_contradictory_measurements_among_many(tmp_path: Path) -> None:
    rows = "".join(f"0.5,0.5,{u},{s}\n" for u, s in ((1.0, 0.01), (2.0, 0.01), (0.0, 1000.0), (3.0, 1000.0)))
    path = write(tmp_path, GOOD.replace("readings.csv", "other.csv"), other="t,x,u,sigma\n" + rows)
    assert "1 in other.csv line 2, 2 in other.csv line 3" in mistakes(path)[0]


def test_sizes_come_from_measured_values_of_the_unknown(tmp_path: Path) -> None:
    text = '[domain]\nx = [0, 1]\n[[equation]]\nequation = "dxx(u) = -(40*pi)**2*sin(40*pi*x)"\nnodes = 100\n'
    text += '[[condition]]\ntype = "dirichlet"\nface = "x = 0"\nvalue = VALUE\n'
    known, zero = (ps.load_problem(write(tmp_path, text.replace("VALUE", value))) for value in ("1", "0"))
    (low, high), (least, most) = (problem.over["rbf"]["eta"] for problem in (known, zero))
    assert (low, known.model.parameters["eta"], high) == pytest.approx((1e-3, 1.0, 1e6))
    assert 1e-3 < least < 1e-3 * 50**2  # the source alone says how large the unknown is, within a factor
    assert least < 1.0 < most


def test_shared_noise_of_measurements_far_from_zero(tmp_path: Path) -> None:
    rows = "".join(f"0.{i},0.5,{300 + 0.01 * (-1) ** i}\n" for i in range(1, 9))
    path = write(
        tmp_path, GOOD.replace("readings.csv", "kelvin.csv").replace('noise = "sigma"\n', ""), kelvin="t,x,u\n" + rows
    )
    low, high = ps.load_problem(path).over["rbf"]["gamma"]
    assert low < 2 * 0.001**2
    assert high >= 2 * 0.0099**2


def test_each_part_of_a_kernel_has_its_own_bounds(tmp_path: Path) -> None:
    table = (
        'type = "product"\nparts = [{ type = "periodic", on = ["x"], period = { unknown = [1, 2] }, bandwidth = 0.7 }, '
        '{ type = "sum", parts = [{ type = "rbf", bandwidth = { unknown = [3, 4] } }, '
        '{ type = "matern", nu = 5.5, on = ["t"] }] }]'
    )
    problem = ps.load_problem(
        write(tmp_path, GOOD.replace("t = [0, 1]", "t = [0, 100]").replace('type = "rbf"', table))
    )
    (over,) = problem.over.values()
    chosen = {name: np.ravel(bounds).tolist() for name, bounds in over.items() if name.startswith("kernel")}
    assert list(chosen.values()) == [[1, 2], [3, 4], [2, 1000]]
    assert [name.rsplit(".", 1)[-1] for name in chosen] == ["period", "bandwidth", "bandwidth"]
    for name, (low, high) in chosen.items():
        assert np.all((low <= problem.model.parameters[name]) & (problem.model.parameters[name] <= high))


CELLS = {
    "missing": (",0.3,", ",,", ["readings.csv:3: column 'u'", "an empty cell"]),
    "text": (",0.3,", ",n/a,", ["readings.csv:3: column 'u'", "'n/a'"]),
    "nan": (",0.3,", ",nan,", ["readings.csv:3: column 'u'", "nan"]),
    "outside": ("0.4,0.7,", "0.4,7.0,", ["readings.csv:3: column 'x'", "found 7", "0 to 1"]),
    "negative noise": (",0.05", ",-0.05", ["readings.csv:4: column 'sigma'", "positive standard deviation"]),
    "contradiction": ("0.4,0.7,0.3", "0.1,0.2,0.9", ["line 2", "line 3", "contradict", "t = 0.1, x = 0.2"]),
    "empty": (READINGS.partition("\n")[2], "", ["readings.csv", "no rows"]),
}


@pytest.mark.parametrize("name", CELLS)
def test_a_bad_cell_is_reported_with_its_row_and_column(tmp_path: Path, name: str) -> None:
    old, new, words = CELLS[name]
    path = write(tmp_path, readings=READINGS.replace(old, new))
    found = "\n".join(mistakes(path))
    for word in words:
        assert word in found


def test_contradictory_values_and_zero_noise_are_both_reported(tmp_path: Path) -> None:
    text = GOOD.replace('noise = "sigma"', "noise = 0")
    found = mistakes(write(tmp_path, text, readings=READINGS.replace("0.4,0.7,0.3", "0.1,0.2,0.5001")))
    assert any("use a negligible one" in each for each in found)
    assert any("contradict" in each for each in found)


def test_all_mistakes_are_reported_in_file_order(tmp_path: Path) -> None:
    text = (
        GOOD.replace("nodes = 4", "noodes = 4")
        .replace('"x = 1"]', '"x = 2"]')
        .replace('value = "u"', 'value = "v"')
        .replace('"rbf"', '"rbg"')
    )
    found = mistakes(write(tmp_path, text))
    assert [re.match(r"[\w.]+:?\d*", each)[0].rstrip(":") for each in found[:3]] == [
        "problem.toml:9",
        "problem.toml:12",
        "problem.toml:20",
    ]
    assert "readings.csv" in found[3]
    assert len(found) == 4


def test_values_that_jump_at_a_corner_give_a_warning(tmp_path: Path) -> None:
    text = GOOD.replace("[[data]]", '[[condition]]\ntype = "dirichlet"\nface = "t = 0"\nvalue = "1 + x"\n[[data]]')
    problem = ps.load_problem(write(tmp_path, text))
    assert len(problem.warnings) == 2
    assert "at t = 0, x = 1 one gives 0 and the other 2" in problem.warnings[1]


def test_ten_megabytes_of_garbage(tmp_path: Path) -> None:
    path = tmp_path / "problem.toml"
    path.write_bytes(os.urandom(10_000_000))
    assert "10 MB" in mistakes(path)[0]
    path = write(tmp_path)
    (tmp_path / "readings.csv").write_bytes(os.urandom(10_000_000))
    assert "readings.csv" in mistakes(path)[0]


def test_files_that_would_block_are_not_opened(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "readings.csv").unlink()
    os.mkfifo(tmp_path / "readings.csv")
    found: list[str] = []
    worker = threading.Thread(target=lambda: found.extend(mistakes(path)), daemon=True)
    worker.start()
    worker.join(20)
    assert "a pipe" in found[0]


def test_parquet(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("readings.csv", "readings.parquet"))
    pd.read_csv(tmp_path / "readings.csv").to_parquet(tmp_path / "readings.parquet")
    np.testing.assert_array_equal(ps.load_problem(path).model.data[0].values, [0.5, 0.3, 0.1])


LINES = GOOD.splitlines()
PIECES = st.sampled_from(
    [*LINES, "nodes = 99", "value = 'u'", "[[data]]", "[predict]", "x = 1", "face = 'all'", '"""', "[", "="]
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    where=st.integers(0, len(LINES)),
    drop=st.integers(0, 3),
    insert=st.lists(st.one_of(PIECES, st.text(max_size=20)), max_size=3),
)
def test_any_change_of_a_file_gives_a_problem_or_mistakes(
    tmp_path: Path, where: int, drop: int, insert: list[str]
) -> None:
    text = "\n".join([*LINES[:where], *insert, *LINES[where + drop :]])
    path = write(tmp_path)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(ps.errors.FileError):
        assert ps.load_problem(path).models


def test_a_prior_that_the_bounds_exclude_is_a_mistake(tmp_path: Path) -> None:
    prior = "{ unknown = [0.05, 5], prior = { mean = 9, deviation = 0.05 } }"
    (told,) = mistakes(write(tmp_path, re.sub(r"(?m)^k = .*$", f"k = {prior}", GOOD)))
    assert "Normal(mean=9" in told
    assert "between the bounds, 0.05 to 5" in told
