"""The gradient of PILE in every hyperparameter there is, to seven digits of central differences in mpmath.

Each case is a small model and its evidence written for the oracle. Among its points, also among the nodes, are pairs
that coincide and pairs 2⁻³⁰ apart, where derivatives of a Matérn kernel have terms that are singular one by one.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pilescore as ps
from pilescore import kernels as pk

from .. import evidence_oracle as eo
from .. import kernel_oracle as ko

Values = Mapping[str, Any]
"""Hyperparameters by name, numbers of the oracle or lists of them; to a kernel they go without `kernel.`."""

Entry = tuple[str, tuple[int, ...]]
"""One number among them: the name, and the place in the array of that name."""


@dataclasses.dataclass
class Case:
    """A model, and the oracle's kernel and blocks at given hyperparameters."""

    model: Callable[[], ps.Model]
    kernel: Callable[[Values], ko.Oracle]
    blocks: Callable[[Values], Sequence[eo.Block]]


# ---------------------------------------------------------------- models

NEAR = 2.0**-30
ON = {1: np.array([[0.125], [0.5], [0.125 + NEAR]]), 2: np.array([[0.125, 0.25], [0.75, 0.125], [0.125, 0.25 - NEAR]])}
AT = {1: np.array([[0.5], [0.125], [0.6875]]), 2: np.array([[0.75, 0.125], [0.125 + NEAR, 0.25], [0.5, 0.625]])}
WEIGHTS = np.array([0.25, 0.5, 0.3125])
Y, R = np.array([0.5, -0.25, 0.875]), np.array([1.0, -0.5, 2.0])
GAMMA, RHO, ETA, BETA = 0.125, 0.375, 1.25, 1.7

OPERATORS: dict[str, list[eo.Term]] = {
    "value": [((0,), 2.0)],
    "decay": [((1,), 1.0), ((0,), "beta")],
    "spring": [((2,), 0.25), ((0,), 1.0)],
    "advection": [((1, 0), 1.0), ((0, 1), "beta")],
    "mixed": [((1, 1), 0.5)],
    "diffusion": [((2, 0), 0.25), ((0, 2), 0.375)],
}
"""Their terms; a coefficient that is a name is a parameter."""


def built(terms: Sequence[eo.Term]) -> ps.Operator:
    """An operator of the library from its terms."""
    partials = ps.partials(ps.Box(x=(0, 1)) if len(terms[0][0]) == 1 else ps.Box(x=(0, 1), y=(0, 1)))
    parts = []
    for alpha, c in terms:
        derivative = functools.reduce(operator.mul, (d**n for d, n in zip(partials, alpha, strict=True)))
        parts.append((ps.parameter(c, BETA) if isinstance(c, str) else c) * derivative)
    return functools.reduce(operator.add, parts)


def case(kernel: ps.Kernel, oracle: Callable[[Values], ko.Oracle], physics: str) -> Case:
    """Three data and an operator at three nodes."""
    terms = OPERATORS[physics]
    d = len(terms[0][0])

    def model() -> ps.Model:
        data = ps.observe(ps.identity, values=Y, at=AT[d])
        equation = ps.impose(built(terms), R, on=ps.domains.nodes_at(ON[d], WEIGHTS))
        return ps.Model(kernel, data, equation, gamma=GAMMA, rho=RHO, eta=ETA)

    def blocks(v: Values) -> list[eo.Block]:
        exact = [(alpha, v[c] if isinstance(c, str) else c) for alpha, c in terms]
        data = eo.Block([((0,) * d, 1.0)], AT[d], Y, v["gamma"])
        return [data, eo.Block(exact, ON[d], R, v["rho"], WEIGHTS)]

    return Case(model, oracle, blocks)


class Bump(eqx.Module):
    """A coefficient with a scalar and a vector of parameters."""

    level: jax.Array
    slope: jax.Array

    def __call__(self, p: Any) -> Any:
        return self.level + self.slope[0] * p[0] + self.slope[1] * p[0] ** 2


def several_blocks() -> Case:
    """A tied parameter, blocks with temperatures of their own, a functional, and a module that is differentiated."""
    at, few = AT[1], AT[1][:2]

    def model() -> ps.Model:
        (d,) = ps.partials(ps.Box(x=(0, 1)))
        k, beta = ps.coefficient(Bump(jnp.asarray(0.75), jnp.array([0.5, -0.25])), "k"), ps.parameter("beta", BETA)
        slope = ps.observe(beta**2 * d, values=0.5, at=few, gamma=0.25)
        physics = [
            ps.impose(d * k * d + beta, R, on=ps.domains.nodes_at(ON[1], WEIGHTS)),
            ps.impose(d, 0.125, on=ps.domains.nodes_at(few, WEIGHTS[:2]), rho=0.625),
            ps.impose(ps.integral(ps.domains.nodes_at(at, WEIGHTS), beta * k * d), 0.5, rho=0.75),
        ]
        data = [ps.observe(ps.identity, values=Y, at=at), slope]
        return ps.Model(ps.RBF(0.625), data, physics, gamma=GAMMA, rho=RHO, eta=ETA)

    def blocks(v: Values) -> list[eo.Block]:
        beta, level, (a, b) = v["beta"], v["k.level"], v["k.slope"]

        def k(p: Any) -> Any:
            return level + a * p[0] + b * p[0] ** 2

        flux = [((2,), k), ((1,), lambda p: a + 2 * b * p[0]), ((0,), beta)]
        return [
            eo.Block([((0,), 1.0)], at, Y, v["gamma"]),
            eo.Block([((1,), beta**2)], few, 0.5, v["data.1.gamma"]),
            eo.Block(flux, ON[1], R, v["rho"], WEIGHTS),
            eo.Block([((1,), 1.0)], few, 0.125, v["physics.1.rho"], WEIGHTS[:2]),
            eo.Block([((1,), lambda p: beta * k(p))], at, 0.5, v["physics.2.rho"], None, WEIGHTS[None]),
        ]

    return Case(model, of(ko.rbf, "bandwidth"), blocks)


def of(oracle: Callable[..., ko.Oracle], *names: str) -> Callable[[Values], ko.Oracle]:
    """An oracle whose arguments are the hyperparameters of these names."""
    return lambda v: oracle(*(v[name] for name in names))


def times(oracle: ko.Oracle) -> Callable[[Values], ko.Oracle]:
    return lambda v: v["variance"] * oracle


class Stretch(eqx.Module):
    """A warp with two parameters."""

    rate: jax.Array

    def __call__(self, p: Any) -> Any:
        return p + self.rate[0] * jnp.sin(p) + self.rate[1] * p**2


def stretched(h: Any, rate: Any) -> ko.Oracle:
    return ko.warped(ko.matern(3.5, h), lambda x: [p + ko.sin(p) * rate[0] + p * p * rate[1] for p in x])


def gibbs(x: Any, y: Any, scale: Any, lengths: Any) -> Any:
    return scale**2 * jnp.exp(-0.5 * jnp.sum(((x - y) / lengths) ** 2)) * (1 + 0.5 * x[0] * y[0])


def gibbs_oracle(scale: Any, lengths: Any) -> ko.Oracle:
    return scale**2 * (ko.rbf(lengths) * ko.function_kernel(lambda x, y: x[0] * y[0] * 0.5 + 1))


def mapped(v: Values) -> ko.Oracle:
    return ko.linear_map(ko.rbf(v["kernel.bandwidth"]), v["matrix"])


def whitened(matrix: Any) -> ko.Oracle:
    """The oracle takes the covariance, `(WᵀW)⁻¹`."""
    W = ko.ctx.matrix(matrix)
    return ko.full_covariance_rbf(ko.ctx.inverse(W.T * W).tolist())


def mixture(v: Values) -> ko.Oracle:
    fields = ("variance", "kernel.parts.1.frequency", "kernel.parts.0.bandwidth")
    return ko.spectral_mixture(*([v[f"parts.{i}.{field}"] for i in range(2)] for field in fields))


def evolved(v: Values) -> ko.Oracle:
    """A state, and a change in the time `(t + ½)/2` and in space that is squeezed to three quarters."""
    state, change = ko.rbf(v["state.bandwidth"]), ko.linear() * ko.rbf(1)
    return state.on(1) + ko.warped(change.on(0) * state.on(1), lambda x: [(x[0] + 0.5) / 2, x[1] / 0.75])


def nested(v: Values) -> ko.Oracle:
    first, second = (v[f"parts.0.parts.{i}.kernel.bandwidth"] for i in range(2))
    other = v["parts.1.variance"] * ko.matern(2.5, v["parts.1.kernel.bandwidth"])
    return ko.rbf(first).on(0) * ko.matern(2.5, second).on(1) + other + ko.constant(v["parts.2.value"])


@functools.cache
def cases() -> dict[str, Case]:
    rational, periodic = of(ko.rational_quadratic, "alpha", "bandwidth"), of(ko.periodic, "period", "bandwidth")
    spectral = ps.kernels.spectral_mixture([0.75, 0.5], [[0.5], [0.125]], [[0.875], [0.625]])
    warped = ps.kernels.Warped(ps.Matern(3.5, 0.875), Stretch(jnp.array([0.25, -0.125])))
    function = ps.kernels.FunctionKernel(gibbs, {"scale": 1.25, "lengths": [0.75, 1.0]})
    groups = ps.RBF(0.5).on(0) * ps.Matern(2.5, 0.75).on(1)
    table = {
        "rbf": case(ps.RBF(0.5), of(ko.rbf, "bandwidth"), "spring"),
        "rbf-axes": case(ps.RBF([0.5, 0.875]), of(ko.rbf, "bandwidth"), "diffusion"),
        "anisotropic": case(
            ps.AnisotropicRBF(0.375, 0.75, 0.625), of(ko.anisotropic_rbf, "theta", "s", "bandwidth"), "diffusion"
        ),
        "sheared": case(
            ps.kernels.ShearedRBF(1.625, [0.75, 1.5]), of(ko.sheared_rbf, "shear", "bandwidth"), "advection"
        ),
        "evolution": case(ps.kernels.Evolution(ps.RBF(0.625), interval=(-0.5, 1.5)), evolved, "advection"),
        "covariance": case(
            ps.kernels.FullCovarianceRBF([[0.5, 0.25], [0.25, 1.0]]), of(whitened, "whitening"), "diffusion"
        ),
        "rational": case(ps.kernels.RationalQuadratic(1.5, 0.625), rational, "spring"),
        "rational-axes": case(ps.kernels.RationalQuadratic(0.75, [0.75, 1.0]), rational, "mixed"),
        "periodic": case(ps.kernels.Periodic(1.5, 1.25), periodic, "spring"),
        "periodic-axes": case(ps.kernels.Periodic([1.5, 2.5], [0.875, 1.25]), periodic, "mixed"),
        "cosine": case(ps.kernels.Cosine(0.625), of(ko.cosine, "frequency"), "spring"),
        "cosine-axes": case(ps.kernels.Cosine([0.625, -0.25]), of(ko.cosine, "frequency"), "advection"),
        "spectral_mixture": case(spectral, mixture, "decay"),
        "polynomial": case(ps.kernels.Polynomial(3, 0.5), lambda v: ko.polynomial(3, v["offset"]), "diffusion"),
        "linear": case(1.5 * ps.kernels.Linear(), times(ko.linear()), "advection"),
        "constant": case(ps.kernels.Constant(0.75), of(ko.constant, "value"), "decay"),
        "wiener": case(1.5 * ps.kernels.Wiener(), times(ko.wiener()), "value"),
        "integrated-wiener": case(1.5 * ps.kernels.IntegratedWiener(), times(ko.integrated_wiener()), "decay"),
        "nested": case(groups + 1.5 * ps.Matern(2.5, [0.75, 1.5]) + ps.kernels.Constant(0.25), nested, "mixed"),
        "map": case(ps.kernels.LinearMap(ps.RBF(0.75), [[1.0, -0.5], [0.25, 0.75]]), mapped, "mixed"),
        "warped": case(warped, of(stretched, "kernel.bandwidth", "warp.rate"), "spring"),
        "function": case(function, of(gibbs_oracle, "parameters.scale", "parameters.lengths"), "mixed"),
        "blocks": several_blocks(),
    }
    for nu in (0.5, 1.5, 2.5, 3.5, 4.5):
        oracle = of(functools.partial(ko.matern, nu), "bandwidth")
        table[f"matern-{nu}"] = case(ps.Matern(nu, 0.625), oracle, {0.5: "value", 1.5: "decay"}.get(nu, "spring"))
        if nu > 2:
            table[f"matern-{nu}-axes"] = case(ps.Matern(nu, [0.625, 1.125]), oracle, "diffusion")
    return table


# ---------------------------------------------------------------- the comparison


def entries(model: ps.Model) -> list[Entry]:
    """Every number that may be chosen."""
    return [(name, index) for name, value in model.parameters.items() for index in np.ndindex(np.shape(value))]


def of_kernel(v: Values) -> dict[str, Any]:
    return {name.removeprefix("kernel."): value for name, value in v.items() if name.startswith("kernel.")}


def exact_slopes(which: Case, model: ps.Model) -> dict[Entry, float]:
    """The derivative of the oracle's PILE in each entry, from numbers equal to the model's doubles."""
    exact = np.frompyfunc(ko.number, 1, 1)
    arrays = {name: np.asarray(exact(value), dtype=object) for name, value in model.parameters.items()}
    still = {name: array.tolist() for name, array in arrays.items()}
    kernel = which.kernel(of_kernel(still))

    def score(name: str, index: tuple[int, ...], x: Any) -> Any:
        moved = arrays[name].copy()
        moved[index] = x
        v = {**still, name: moved.tolist()}
        k = which.kernel(of_kernel(v)) if name.startswith("kernel.") else kernel
        return eo.evidence(k, which.blocks(v), v["eta"]).value

    return {
        (name, index): float(eo.slope(functools.partial(score, name, index), arrays[name][index]))
        for name, index in entries(model)
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", cases())
def test_gradient_against_fifty_digits(name: str) -> None:
    model = cases()[name].model()
    _, gradient = ps.pile_and_gradient(model)
    found = {(key, index): part for key, slope in gradient.items() for index, part in np.ndenumerate(slope)}
    expected = exact_slopes(cases()[name], model)
    assert found.keys() == expected.keys() == set(entries(model))
    assert min(map(abs, expected.values())) > 1e-6 * max(map(abs, expected.values()))  # something was tested
    assert found == pytest.approx(expected, rel=1e-7, abs=0.0)


# ---------------------------------------------------------------- nothing is left out


def parts(kernel: ps.Kernel) -> Iterator[ps.Kernel]:
    """A kernel and all kernels inside it."""
    yield kernel
    for entry in dataclasses.fields(kernel):
        value = getattr(kernel, entry.name)
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, ps.Kernel):
                yield from parts(inner)


def test_nothing_is_left_out() -> None:
    """The entries are all numbers of each kernel, and the models have every kernel and every other kind of name."""
    models = {name: each.model() for name, each in cases().items()}
    for name, model in models.items():
        numbers = sum(leaf.size for leaf in jax.tree.leaves(model.kernel) if eqx.is_inexact_array(leaf))
        assert sum(key.startswith("kernel.") for key, _ in entries(model)) == numbers > 0, name
    names = {key for model in models.values() for key in model.parameters if not key.startswith("kernel.")}
    own = {"data.1.gamma", "physics.1.rho", "physics.2.rho"}
    assert names == {"gamma", "rho", "eta", *own, "beta", "k.level", "k.slope"}
    exported = [value for module in (ps, pk) for value in vars(module).values() if inspect.isclass(value)]
    classes = {k for k in exported if issubclass(k, ps.Kernel) and not inspect.isabstract(k)}
    found = [part for model in models.values() for part in parts(model.kernel)]
    assert {type(part) for part in found} == classes
    assert "spectral_mixture" in models
    for kind in (ps.RBF, ps.Matern, ps.kernels.RationalQuadratic, ps.kernels.Periodic):
        assert {part.bandwidth.ndim for part in found if type(part) is kind} == {0, 1}, kind
    assert {part.nu for part in found if isinstance(part, ps.Matern)} == {0.5, 1.5, 2.5, 3.5, 4.5}
