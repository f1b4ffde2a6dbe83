"""The log evidence as a JAX function: equal to `ps.pile`, with its gradient, under every transformation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pilescore as ps
from pilescore.inference import log_evidence as module
from tests.models import LINE, LINE_X, LINE_Y, NODES, STRIP, STRIP_DT, STRIP_DX, STRIP_NODES, STRIP_X, STRIP_Y
from tests.models import DX, decay, line_model, refused

FINE_NODES = LINE.interior(ps.GaussLegendre(9))
READINGS = ps.observe(ps.identity, LINE_Y, LINE_X)
RATE = ps.parameter("rate", 1.3)
SQUARE = ps.Box(x=(0, 1), y=(0, 1))
SQUARE_X = np.random.default_rng(1).uniform(0, 1, (12, 2))
SQUARE_Y = np.sin(3 * SQUARE_X[:, 0]) * SQUARE_X[:, 1]


def exact(value=0.0, **options):
    return ps.Model(ps.RBF(0.4), READINGS, ps.impose(DX + RATE, value, on=NODES, **options), gamma=0.02)


def poisson(kernel):
    operator = ps.laplacian(SQUARE) + ps.parameter("k", 2.0) * ps.identity
    physics = ps.impose(operator, lambda p: p[0] + p[1], on=SQUARE.interior(ps.GaussLegendre(3)))
    return ps.Model(kernel, ps.observe(ps.identity, SQUARE_Y, SQUARE_X), physics, gamma=0.01, rho=0.1, eta=1.5)


def functionals(rho=0.01):
    """Return readings, an average, and a jump and a flux as physics."""
    average = ps.integral(FINE_NODES, DX + RATE)
    jump = ps.difference(LINE.face(x=1)(ps.GaussLegendre(1)), LINE.face(x=0)(ps.GaussLegendre(1)), DX * DX + RATE)
    data = [READINGS, ps.observe(average, 0.4, gamma=0.03)]
    return ps.Model(ps.Matern(3.5, 0.4), data, [ps.impose(jump, -0.5), ps.dirichlet(0.0, LINE.face(x=0)(ps.GaussLegendre(1)))], 0.02, rho)


def field():
    """Return a model whose operator has a coefficient with parameters of its own, and a boundary condition."""
    slope = RATE * RATE * ps.coefficient(lambda p: 1 + p[0], "a") * DX
    return ps.Model(ps.RBF(0.4) + 0.3 * ps.kernels.Linear(), READINGS, ps.impose(slope, 1.0, on=NODES), 0.02, 0.1)


def reaction():
    law = ps.Nonlinear(lambda p, u, ux: ux + u**3, of=(ps.identity, DX))
    physics = ps.impose(law, 1.0, on=NODES, rho=0.05)
    return ps.Model(ps.RBF(0.5), READINGS, physics, gamma=0.02)


def large(count=600):
    x = np.linspace(0, 1, count)
    return ps.Model(ps.RBF(0.2), ps.observe(ps.identity, np.sin(7 * x), at=x), gamma=0.1)


MODELS = {
    "soft physics, a vector of bandwidths": (lambda: line_model(), "joint"),
    "given physics": (lambda: line_model(), "given_physics"),
    "parameter, own temperatures": (lambda: decay(), "joint"),
    "parameter, given zeros": (lambda: decay(), "given_homogeneous"),
    "auto": (lambda: decay(), "auto"),
    "exact zeros": (lambda: exact(), "joint"),
    "exact number": (lambda: exact(0.7), "joint"),
    "exact values that vary, scored": (lambda: exact(lambda p: jnp.cos(3 * p[0])), "given_constant"),
    "Poisson": (lambda: poisson(ps.RBF([0.5, 0.7])), "joint"),
    "Poisson, sum of kernels": (lambda: poisson(0.4 * ps.RBF(0.5) + ps.Matern(4.5, [0.6, 0.8])), "given_physics"),
    "Poisson, a kernel with an angle": (lambda: poisson(ps.kernels.ShearedRBF(0.3, [0.5, 0.4])), "joint"),
    "functionals": (lambda: functionals(), "joint"),
    "functionals, given": (lambda: functionals(), "given_physics"),
    "functionals, exact": (lambda: functionals(None), "joint"),
    "coefficient of a term, sum of kernels": (lambda: field(), "given_constant"),
    "nonlinear": (lambda: reaction(), "joint"),
    "nonlinear, given": (lambda: reaction(), "given_physics"),
    "low rank": (lambda: line_model(solver=ps.solvers.LowRank(1e-9)), "joint"),
    "automatic solver": (lambda: line_model(solver="auto"), "given_physics"),
    "large": (lambda: large(), "joint"),
}


def moved(model, seed, spread=0.2):
    rng = np.random.default_rng(seed)
    return {n: np.asarray(v) * np.exp(spread * rng.standard_normal(np.shape(v))) for n, v in model.parameters.items()}


@pytest.mark.parametrize("name", MODELS)
def test_equals_pile_and_its_gradient(name):
    model, score = MODELS[name][0](), MODELS[name][1]
    function = ps.log_evidence_function(model, model.parameters, score)
    for seed in range(2):
        values = moved(model, seed)
        expected, slopes = ps.pile_and_gradient(model.replace(values), None, score)
        value, found = jax.jit(jax.value_and_grad(function))(values)
        print(name, expected.log_evidence, float(value)-expected.log_evidence, expected.size*expected.rounding)
        for each in slopes:
            print("    ", each, found[each], np.asarray(-0.5 * expected.size * slopes[each])-found[each])
