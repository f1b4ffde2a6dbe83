"""The shipped examples: each is solved as its problem file says, and compared with the truth."""

import importlib.util
import math
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import pilescore as ps
from pilescore.problems.description import describe_problem

EXAMPLES = Path(__file__).parents[1] / "examples"


def load_make():
    found = importlib.util.spec_from_file_location("examples_make", EXAMPLES / "make.py")
    module = importlib.util.module_from_spec(found)
    sys.modules["examples_make"] = module
    found.loader.exec_module(module)
    return module


make = load_make()
ERRORS = {
    "poisson": 0.03,
    "heat": 0.01,
    "transport": 0.03,
    "helmholtz": 0.03,
    "beam": 0.03,
    "laplace": 0.03,
    "burgers": 0.02,
}
"""Relative errors of the mean over the grid that each must reach; the noise is 1 to 5 % of the solution."""


@pytest.fixture(scope="module", params=ERRORS)
def solved(request, tmp_path_factory):
    problem = ps.load_problem(EXAMPLES / request.param / "problem.toml")
    out = tmp_path_factory.mktemp("examples") / request.param
    return request.param, ps.select(problem, out, progress=False)


def test_all_are_there():
    assert set(ERRORS) == set(make.EXAMPLES) == {path.parent.name for path in EXAMPLES.glob("*/problem.toml")}


def test_data_files_are_those_that_make_writes(tmp_path):
    for path in make.write(tmp_path):
        assert path.read_bytes() == (EXAMPLES / path.relative_to(tmp_path)).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ERRORS)
def test_solutions_satisfy_their_equations_and_conditions(name, monkeypatch):
    problem = ps.load_problem(EXAMPLES / name / "problem.toml")
    example = make.EXAMPLES[name]
    model = problem.model.replace(example.parameters) if example.parameters else problem.model
    with monkeypatch.context() as patched:
        patched.setattr(make, "np", jnp)  # the same formulas, differentiable

        def truth(point):
            return example.solution(point[None])[0]

        for block in model.physics:
            if block.nodes is not None and block.nodes.rule is None:
                continue  # values from a file are noisy
            operator = block.operator
            scale = max(1.0, float(np.abs(block.values).max()))
            for i in {0, block.size // 3}:
                assert float(operator(truth)(block.points[i])) == pytest.approx(block.values[i], abs=1e-9 * scale)


@pytest.mark.study
@pytest.mark.slow
def test_the_mean_is_near_the_truth_and_the_deviation_says_how_near(solved):
    name, found = solved
    table = found.predict(operators=[found.problem.unknown])
    points = table[list(found.problem.box.names)].to_numpy()
    truth = make.EXAMPLES[name].solution(points)
    error = table["u"].to_numpy() - truth
    assert math.sqrt(np.mean(error**2) / np.mean(truth**2)) < ERRORS[name]
    scaled = error / table["u_std"].to_numpy()
    assert 0.2 < math.sqrt(np.mean(scaled**2)) < 2.0
    assert found.summary.warnings == []
    assert found.diagnosis.healthy, found.diagnosis
    assert all(kernel.status == "converged" for kernel in found.summary.kernels)


@pytest.mark.study
@pytest.mark.slow
def test_inferred_parameters_lie_within_two_standard_errors(solved):
    name, found = solved
    assert tuple(make.EXAMPLES[name].parameters) == found.problem.inferred
    for parameter, value in make.EXAMPLES[name].parameters.items():
        assert abs(found.values[parameter] - value) < 2 * found.standard_errors[parameter]
        assert found.standard_errors[parameter] < 0.06 * value  # the data say something


@pytest.mark.parametrize("name", ERRORS)
def test_what_is_understood_is_printed(name):
    text = describe_problem(ps.load_problem(EXAMPLES / name / "problem.toml"))
    equations = {
        "poisson": "(∂x² + ∂y²) u",
        "heat": "(∂t - 0.2 ∂x²) u",
        "transport": "(∂t + velocity ∂x - diffusivity ∂x²) u",
        "helmholtz": "(∂x² + ∂y² + 36) u",
        "beam": "∂x⁴ u",
        "laplace": "(∂x² + ∂y²) u",
        "burgers": "∂t u - nu ∂x² u + u ∂x u = 0, nonlinear, 144 nodes",
    }
    assert equations[name] in text
