"""The log evidence as a JAX function: equal to `ps.pile`, with its gradient, under every transformation."""

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import pilescore as ps

from ..models import DX, LINE, LINE_X, LINE_Y, NODES, decay, line_model, refused

P = ps.priors

FINE_NODES = LINE.interior(ps.GaussLegendre(9))
READINGS = ps.observe(ps.identity, LINE_Y, LINE_X)
RATE = ps.parameter("rate", 1.3)
SQUARE = ps.Box(x=(0, 1), y=(0, 1))
SQUARE_X = np.random.default_rng(1).uniform(0, 1, (12, 2))
SMOOTH = {"kernel.bandwidth": P.Smooth(-1.0, 0.5, 3.0, logarithmic=True), "k": P.Normal(2.5, 1.0)}
SQUARE_Y = np.sin(3 * SQUARE_X[:, 0]) * SQUARE_X[:, 1]


def exact(value=0.0):
    return ps.Model(ps.RBF(0.4), READINGS, ps.impose(DX + RATE, value, on=NODES), gamma=0.02)


def poisson(kernel):
    operator = ps.laplacian(SQUARE) + ps.parameter("k", 2.0) * ps.identity
    physics = ps.impose(operator, lambda p: p[0] + p[1], on=SQUARE.interior(ps.GaussLegendre(3)))
    return ps.Model(kernel, ps.observe(ps.identity, SQUARE_Y, SQUARE_X), physics, gamma=0.01, rho=0.1, eta=1.5)


def functionals(rho=0.01):
    """Return readings, an average, and a jump and a flux as physics."""
    average = ps.integral(FINE_NODES, DX + RATE)
    jump = ps.difference(LINE.face(x=1)(ps.GaussLegendre(1)), LINE.face(x=0)(ps.GaussLegendre(1)), DX * DX + RATE)
    data = [READINGS, ps.observe(average, 0.4, gamma=0.03)]
    end = ps.dirichlet(0.0, LINE.face(x=0)(ps.GaussLegendre(1)))
    return ps.Model(ps.Matern(3.5, 0.4), data, [ps.impose(jump, -0.5), end], 0.02, rho)


def field():
    """Return a model whose operator has a coefficient with parameters of its own, and a boundary condition."""
    slope = RATE * RATE * ps.coefficient(lambda p: 1 + p[0], "a") * DX
    kernel = ps.RBF(0.4) + 0.3 * ps.kernels.Linear()
    return ps.Model(kernel, READINGS, ps.impose(slope, 1.0, on=NODES), 0.02, 0.1)


def reaction():
    law = ps.Nonlinear(lambda p, u, ux: ux + u**3, of=(ps.identity, DX))
    physics = ps.impose(law, 1.0, on=NODES, rho=0.05)
    return ps.Model(ps.RBF(0.5), READINGS, physics, gamma=0.02)


def large(count=600):
    x = np.linspace(0, 1, count)
    return ps.Model(ps.RBF(0.2), ps.observe(ps.identity, np.sin(7 * x), at=x), gamma=0.1)


def mapped():
    """Return a model whose kernel has a matrix, which has no sign, and a period."""
    kernel = ps.kernels.LinearMap(ps.RBF(0.5), [[1.0, 0.4], [-0.2, 0.9]]) + ps.kernels.Periodic(
        period=1.3, bandwidth=0.9
    )
    return ps.Model(kernel, ps.observe(ps.identity, SQUARE_Y, SQUARE_X), gamma=0.01)


def evolving():
    """Return a model of the heat equation whose kernel nearly satisfies it, with an exact end."""
    strip = ps.Box(t=(0, 1), x=(0, 1))
    dt, dx = ps.partials(strip)
    heat = dt - ps.parameter("kappa", 0.2) * dx**2
    physics = [ps.impose(heat, 0.0, on=strip.interior(ps.GaussLegendre(3)), rho=0.01)]
    physics += [ps.dirichlet(0.0, strip.face(x=0)(ps.GaussLegendre(3)))]
    return ps.Model(ps.Matern(3.5, [0.6, 0.5]), ps.observe(ps.identity, SQUARE_Y, SQUARE_X), physics, gamma=0.01)


def with_priors():
    """Return a model with priors of all kinds, on numbers, an array, an element and a temperature."""
    model = field()
    priors = {
        "gamma": P.LogNormal(0.05, 2.0),
        "eta": P.Normal(1.0, 0.3),
        "rate": P.Normal(1.0, 0.2),
        "kernel.parts.0.bandwidth": P.LogNormal(0.5, 1.5),
    }
    return model.replace(priors=priors)


MODELS = {
    "soft physics, a vector of bandwidths": (line_model, "joint"),
    "given physics": (line_model, "given_physics"),
    "parameter, own temperatures": (decay, "joint"),
    "parameter, given zeros": (decay, "given_homogeneous"),
    "auto": (decay, "auto"),
    "exact zeros": (exact, "joint"),
    "exact number": (lambda: exact(0.7), "joint"),
    "exact values that vary, scored": (lambda: exact(lambda p: jnp.cos(3 * p[0])), "given_constant"),
    "Poisson": (lambda: poisson(ps.RBF([0.5, 0.7])), "joint"),
    "Poisson, sum of kernels": (lambda: poisson(0.4 * ps.RBF(0.5) + ps.Matern(4.5, [0.6, 0.8])), "given_physics"),
    "Poisson, a kernel with an angle": (lambda: poisson(ps.kernels.ShearedRBF(0.3, [0.5, 0.4])), "joint"),
    "functionals": (functionals, "joint"),
    "functionals, given": (functionals, "given_physics"),
    "functionals, exact": (lambda: functionals(None), "joint"),
    "coefficient of a term, sum of kernels": (field, "given_constant"),
    "a matrix and a period": (mapped, "joint"),
    "heat, exact end": (evolving, "joint"),
    "heat, given": (evolving, "given_physics"),
    "priors": (with_priors, "joint"),
    "priors of a vector": (lambda: poisson(ps.RBF([0.5, 0.7])).replace(priors=SMOOTH), "given_physics"),
    "priors, nonlinear": (lambda: reaction().replace(priors={"gamma": P.LogNormal(0.05, 2.0)}), "joint"),
    "nonlinear": (reaction, "joint"),
    "nonlinear, given": (reaction, "given_physics"),
    "low rank": (lambda: line_model(solver=ps.solvers.LowRank(1e-9)), "joint"),
    "automatic solver": (lambda: line_model(solver="auto"), "given_physics"),
    "large": (large, "joint"),
}


COMPILED = [
    "soft physics, a vector of bandwidths",
    "given physics",
    "parameter, given zeros",
    "exact values that vary, scored",
    "functionals, given",
    "heat, exact end",
    "priors",
]


def moved(model, seed=0):
    """Return other values of all hyperparameters."""
    rng = np.random.default_rng(seed)
    return {n: np.asarray(v) * np.exp(0.2 * rng.standard_normal(np.shape(v))) for n, v in model.parameters.items()}


def of_decay(*names):
    model = decay()
    return model, ps.log_evidence_function(model, names), {name: model.parameters[name] for name in names}


def of_large():
    model = large()
    return ps.log_evidence_function(model, ["kernel.bandwidth", "gamma"]), {"kernel.bandwidth": 0.2, "gamma": 0.1}


# -- Values and derivatives.


@pytest.mark.parametrize("name", MODELS)
def test_equals_pile_and_its_gradient(name):
    make, score = MODELS[name]
    model = make()
    function = ps.log_evidence_function(model, model.parameters, score)
    values = moved(model)
    expected, slopes = ps.pile_and_gradient(model.replace(values), None, score)
    value, found = jax.jit(jax.value_and_grad(function))(values)
    rounding = max(1e-11, 10 * expected.size * expected.rounding)
    assert float(value) == pytest.approx(expected.log_evidence, rel=1e-10, abs=rounding)
    assert found.keys() == slopes.keys() == values.keys()
    for each, slope in slopes.items():
        # The derivatives of exact equations have about eight digits.
        np.testing.assert_allclose(found[each], -0.5 * expected.size * slope, rtol=1e-6, atol=1e-8, err_msg=each)


def test_equals_the_density_of_a_normal_distribution():
    """Independent of pilescore: the RBF and its derivatives by hand, and the density and its quotients by SciPy."""
    x, z, y = np.array([0.1, 0.4, 0.9]), np.array([0.2, 0.7]), np.array([0.3, -0.2, 0.5, 0.1, 0.4])
    physics = ps.impose(DX + RATE, [0.1, 0.4], on=ps.domains.nodes_at(z[:, None], np.array([0.5, 2.0])))
    model = ps.Model(ps.RBF(0.4), ps.observe(ps.identity, y[:3], at=x), physics, gamma=0.02, rho=0.05)

    def by_scipy(values):
        h, rate, gamma, rho, eta = (float(values[name]) for name in names)
        points = np.concatenate([x, z])
        r = (points[:, None] - points) / h
        k, slope = np.exp(-0.5 * r**2), r / h  # ∂k/∂y = k·slope, ∂k/∂x = −k·slope
        is_physics = np.repeat([False, True], [3, 2])
        left = np.where(is_physics[:, None], rate - slope, 1.0)
        right = np.where(is_physics, rate + slope, 1.0)
        both = is_physics[:, None] & is_physics
        covariance = eta * k * np.where(both, 1 / h**2 - slope**2 + rate**2, left * right)
        noise = np.concatenate([np.full(3, gamma / 2), rho / 2 / np.array([0.5, 2.0])])
        return stats.multivariate_normal(cov=covariance + np.diag(noise)).logpdf(y)

    names = ["kernel.bandwidth", "rate", "gamma", "rho", "eta"]
    values = {"kernel.bandwidth": 0.5, "rate": 1.1, "gamma": 0.03, "rho": 0.04, "eta": 1.2}
    value, slopes = jax.value_and_grad(ps.log_evidence_function(model, names))(values)
    assert float(value) == pytest.approx(by_scipy(values), rel=1e-12)
    for name in names:
        step = 1e-5 * values[name]
        up, down = (by_scipy(values | {name: values[name] + sign * step}) for sign in (1, -1))
        assert float(slopes[name]) == pytest.approx((up - down) / (2 * step), rel=1e-6)


@pytest.mark.parametrize("name", COMPILED)
def test_second_derivatives_of_small_linear_models(name):
    make, score = MODELS[name]
    model = make()
    function, values = ps.log_evidence_function(model, model.parameters, score), moved(model)
    direction = {n: 0.3 * np.ones(np.shape(v)) * v for n, v in values.items()}
    slopes = jax.jit(jax.grad(function))
    along = jax.jit(lambda at: jax.jvp(jax.grad(function), (at,), (direction,))[1])(values)
    step = 1e-4
    up, down = (slopes({n: v + sign * step * direction[n] for n, v in values.items()}) for sign in (1, -1))
    for each in values:
        quotient = (up[each] - down[each]) / (2 * step)
        np.testing.assert_allclose(along[each], quotient, rtol=1e-4, atol=1e-4 * np.abs(quotient).max(), err_msg=each)


def test_hessians_are_symmetric():
    _, function, values = of_decay("kernel.bandwidth", "rate", "gamma", "eta")
    hessian = jax.hessian(function)(values)
    matrix = np.array([[hessian[a][b] for b in values] for a in values])
    np.testing.assert_allclose(matrix, matrix.T, rtol=1e-9, atol=1e-9 * np.abs(matrix).max())


@pytest.mark.parametrize("make", [large, reaction])
def test_other_models_say_that_they_have_no_second_derivatives(make):
    model = make()
    function = ps.log_evidence_function(model, "gamma")
    with pytest.raises(NotImplementedError, match=r"no second derivatives in JAX.*512 points"):
        jax.hessian(function)({"gamma": 0.1})


@pytest.mark.parametrize("names", [["kernel.bandwidth[1]"], ["kernel.bandwidth[1]", "k", "kernel.bandwidth[0]"]])
@pytest.mark.parametrize("solver", ["dense", ps.solvers.LowRank(1e-9)])
def test_elements(names, solver):
    model = poisson(ps.RBF([0.5, 0.7])).replace(solver=solver)
    values = {"kernel.bandwidth[1]": 0.6, "k": 1.5, "kernel.bandwidth[0]": 0.4}
    values = {name: values[name] for name in names}
    value, slopes = jax.value_and_grad(ps.log_evidence_function(model, names))(values)
    expected, gradient = ps.pile_and_gradient(model.replace(values))
    assert float(value) == pytest.approx(expected.log_evidence, rel=1e-10)
    factor = -0.5 * expected.size
    for i in (0, 1):
        if f"kernel.bandwidth[{i}]" in names:
            found = float(slopes[f"kernel.bandwidth[{i}]"])
            assert found == pytest.approx(factor * gradient["kernel.bandwidth"][i], rel=1e-9)


# -- Transformations.


@pytest.mark.parametrize("called", [False, True])
def test_vmap_over_some_of_the_values(called):
    function, values = of_large() if called else of_decay("kernel.bandwidth", "gamma")[1:]
    gammas = jnp.array([0.05, -1.0, 0.2])
    axes = ({"kernel.bandwidth": None, "gamma": 0},)
    found, slopes = jax.jit(jax.vmap(jax.value_and_grad(function), in_axes=axes))(values | {"gamma": gammas})
    assert slopes["kernel.bandwidth"].shape == slopes["gamma"].shape == (3,)
    for i in (0, 2):
        value, slope = jax.value_and_grad(function)(values | {"gamma": gammas[i]})
        assert float(found[i]) == pytest.approx(float(value), rel=1e-12)
        for name in values:
            assert float(slopes[name][i]) == pytest.approx(float(slope[name]), rel=1e-9)
    assert np.isnan([found[1], slopes["gamma"][1], slopes["kernel.bandwidth"][1]]).all()


@pytest.mark.parametrize("called", [False, True])
def test_forward_and_reverse_mode_agree(called):
    function, values = of_large() if called else of_decay("kernel.bandwidth", "rate", "gamma")[1:]
    forward, reverse = jax.jacfwd(function)(values), jax.jacrev(function)(values)
    for name in values:
        assert float(forward[name]) == pytest.approx(float(reverse[name]), rel=1e-12)
    value, linear = jax.linearize(function, values)
    assert float(value) == pytest.approx(float(function(values)), rel=1e-12)
    total = sum(float(reverse[name]) for name in values)
    assert float(linear(dict.fromkeys(values, 1.0))) == pytest.approx(total, rel=1e-10)


def test_vmap_inside_vmap_and_a_loop():
    _, function, values = of_decay("rate", "gamma")

    def both(rate, gamma):
        return function({"rate": rate, "gamma": gamma})

    rates, gammas = jnp.array([1.0, 2.0]), jnp.array([0.01, 0.02, 0.04])
    table = jax.vmap(jax.vmap(both, (None, 0)), (0, None))(rates, gammas)
    np.testing.assert_allclose(table, [[both(rate, gamma) for gamma in gammas] for rate in rates], rtol=1e-12)

    def ascend(rate, _):
        value, slope = jax.value_and_grad(both)(rate, values["gamma"])
        return rate + 1e-3 * slope, value

    _, path = jax.jit(lambda rate: jax.lax.scan(ascend, rate, None, length=5))(0.5)
    assert np.all(np.diff(path) > 0)


CALLBACKS = """
    import threading, jax, jax.numpy as jnp, numpy as np, pilescore as ps

    x = np.linspace(0, 1, 600)
    model = ps.Model(ps.RBF(0.2), ps.observe(ps.identity, np.sin(7 * x), at=x), gamma=0.1)
    function = ps.log_evidence_function(model, ["kernel.bandwidth", "gamma"])
    both = jax.jit(jax.vmap(jax.value_and_grad(function)))
    at = {"kernel.bandwidth": jnp.linspace(0.2, 0.3, 3), "gamma": jnp.full(3, 0.1)}
    expected = ps.pile(model.replace({"kernel.bandwidth": 0.2, "gamma": 0.1})).log_evidence
    found = []
    threads = [threading.Thread(target=lambda: found.append(both(at)[0])) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    started = [both({"kernel.bandwidth": at["kernel.bandwidth"] + 0.01 * i, "gamma": at["gamma"]}) for i in range(3)]
    found += [value for value, _ in started][:1]
    assert np.allclose([values[0] for values in found], expected), (found, expected)
"""


@pytest.mark.slow
@pytest.mark.parametrize("processors", [1, 2])
def test_callbacks_on_few_processors_do_not_wait_for_each_other(processors):
    """JAX inside a callback of JAX, from two threads and with calls that were started before others have ended."""
    code = textwrap.dedent(CALLBACKS)
    if hasattr(os, "sched_setaffinity"):
        code = f"import os; os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{processors}])\n{code}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)  # the timeout is that of a deadlock


# -- Values that hyperparameters cannot take.


BAD = [{"gamma": -1.0}, {"gamma": 0.0}, {"kernel.bandwidth": np.nan}, {"gamma": np.inf}]


@pytest.mark.parametrize("values", BAD)
@pytest.mark.parametrize("called", [False, True])
def test_impossible_values_give_nan(values, called):
    function, usual = of_large() if called else of_decay("kernel.bandwidth", "gamma")[1:]
    value, slopes = jax.jit(jax.value_and_grad(function))(usual | values)
    assert np.isnan([value, *slopes.values()]).all()
    assert np.isnan(function(usual | values))


@pytest.mark.parametrize("count", [40, 600])
def test_a_covariance_that_is_not_positive_definite_gives_nan(count):
    model = large(count)
    with pytest.raises(ps.errors.NotPositiveDefiniteError):
        ps.pile(model.replace({"gamma": 1e-300}))
    value, slopes = jax.value_and_grad(ps.log_evidence_function(model, "gamma"))({"gamma": 1e-300})
    assert np.isnan([value, slopes["gamma"]]).all()


def test_a_nonlinear_model_that_is_not_solved_gives_nan(monkeypatch):
    model = reaction()
    function = ps.log_evidence_function(model, "gamma")

    def fail(*_, **__):
        raise ps.errors.NotSolvedError("the nonlinear model was not solved")

    monkeypatch.setattr("pilescore.inference.log_evidence.systems_of", fail)
    value, slopes = jax.value_and_grad(function)({"gamma": 0.1})
    assert np.isnan([value, slopes["gamma"]]).all()


def test_checks_of_a_kernel_apply():
    """A field may have any check; elements are checked together."""
    kernel = ps.kernels.FullCovarianceRBF(np.array([[0.3, 0.05], [0.05, 0.4]]))
    model = ps.Model(kernel, ps.observe(ps.identity, SQUARE_Y, SQUARE_X), gamma=0.01)
    [name] = [name for name in model.parameters if name.startswith("kernel.")]
    function = ps.log_evidence_function(model, name)
    for factor in (1.0, -1.0, np.nan):
        values = {name: factor * np.asarray(model.parameters[name])}
        value, slopes = jax.jit(jax.value_and_grad(function))(values)
        try:
            expected = ps.pile(model.replace(values)).log_evidence
        except ps.errors.InputError:
            assert np.isnan(value)
            assert np.isnan(slopes[name]).all()
        else:
            assert float(value) == pytest.approx(expected, rel=1e-10)


def test_a_prior_of_a_logarithm_excludes_negative_values():
    model = decay().replace(priors={"rate": P.LogNormal(1.0, 2.0)})
    function = ps.log_evidence_function(model, "rate")
    assert np.isfinite(function({"rate": 0.5}))
    value, slopes = jax.value_and_grad(function)({"rate": -0.5})
    assert np.isnan([value, slopes["rate"]]).all()


def test_priors_count_for_hyperparameters_that_stay_too():
    model = decay()
    prior = P.LogNormal(0.3, 2.0)
    values = {"rate": 1.2}
    plain = ps.log_evidence_function(model, "rate")(values)
    with_prior = ps.log_evidence_function(model.replace(priors={"gamma": prior}), "rate")(values)
    assert float(with_prior - plain) == pytest.approx(prior.log_density(0.02), rel=1e-9)


# -- Arguments.


def test_numbers_of_other_types_are_taken():
    _, function, values = of_decay("rate", "gamma")
    expected = float(function({"rate": 2.0, "gamma": 0.5}))
    assert float(function({"rate": 2, "gamma": np.float32(0.5)})) == expected
    assert function(values).dtype == jnp.float64


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"rate": 1.0}, ["values", "a value of 'gamma'"]),
        ({"rate": 1.0, "gamma": 0.1, "eta": 1.0}, ["values", "only the names rate, gamma", "'eta'"]),
        ([1.0, 0.1], ["values", "a dictionary with the names rate, gamma"]),
        ({"rate": [1.0], "gamma": 0.1}, ["values['rate']", "the shape ()", "(1,)"]),
        ({"rate": "fast", "gamma": 0.1}, ["values['rate']", "a real number", "'fast'"]),
        ({"rate": 1j, "gamma": 0.1}, ["values['rate']", "a real number", "complex128"]),
        ({"rate": True, "gamma": 0.1}, ["values['rate']", "a real number", "bool"]),
        ({"rate": None, "gamma": 0.1}, ["values['rate']", "a real number", "None"]),
    ],
)
def test_bad_values(as_a_user, values, parts):
    _, function, _ = of_decay("rate", "gamma")
    with refused(*parts):
        function(values)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ((decay(), []), ["names", "at least one hyperparameter"]),
        ((decay(), None), ["names", "the names of hyperparameters"]),
        ((decay(), ["gamma", 3]), ["names", "the names of hyperparameters", "3"]),
        ((decay(), ["gamma", "gamma"]), ["names", "each hyperparameter once"]),
        ((decay(), ["gama"]), ["no hyperparameter 'gama'", "Did you mean 'gamma'"]),
        ((line_model(), ["kernel.bandwidth", "kernel.bandwidth[0]"]), ["names", "each hyperparameter once"]),
        ((decay(), "gamma", "profiled"), ["score", "name 'eta'"]),
        ((decay(), "gamma", "best"), ["score", "'joint'"]),
        (("model", "gamma"), ["model", "a ps.Model"]),
    ],
)
def test_bad_arguments(as_a_user, arguments, parts):
    with refused(*parts):
        ps.log_evidence_function(*arguments)


def test_contradicting_exact_equations_are_refused():
    ends = [ps.dirichlet(value, on=LINE.face(x=0)(ps.GaussLegendre(1))) for value in (0.0, 1.0)]
    model = ps.Model(ps.RBF(0.4), READINGS, ends, gamma=0.02)
    with refused("contradict each other"):
        ps.log_evidence_function(model, "gamma")


def test_float64_turned_off_is_an_error():
    _, function, values = of_decay("rate", "gamma")
    jax.config.update("jax_enable_x64", False)
    try:
        with refused("float32 mode"):
            function(values)
    finally:
        jax.config.update("jax_enable_x64", True)
