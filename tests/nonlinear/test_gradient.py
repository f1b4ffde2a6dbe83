"""Gradients through the most likely solution of a nonlinear model, and searches that use them.

Scores to differentiate are computed here from the model linearised at its solution, to rounding, and from the physics
of that linear model: the fit and `log det C` of the two give all four scores.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import pilescore as ps
from pilescore.inference import Pile, WarmStart, systems_of
from pilescore.search import objective

from ..models import DX as D
from ..models import STRIP, TIGHT
from ..models import STRIP_DT as DT
from ..models import STRIP_DX as DX
from ..models import STRIP_NODES as INNER
from ..models import STRIP_X as AT
from ..models import STRIP_Y as Y
from ..models import unit_nodes as on

OPTIONS = [(profiled, given_physics) for profiled in (False, True) for given_physics in (False, True)]
IDS = ["plain", "given physics", "profiled", "profiled, given physics"]

STEP = 5e-4

SITES, NODES = np.linspace(0.05, 0.95, 15), np.linspace(0.03, 0.97, 12)
"""Of all models on a line: of one size and of order one, so that what is compiled for one serves all."""


def score(terms: Sequence[float], profiled: bool) -> float:
    """PILE by its quadratic form, `log det C` and the number of values."""
    quadratic, logdet, n = terms
    fit = math.log(quadratic / n) + 1.0 if profiled else quadratic / n
    return fit + logdet / n + math.log(2 * math.pi)


def score_and_gradient(
    model: ps.Model, names: Sequence[str], profiled: bool, given_physics: bool, start: WarmStart | None = None
) -> tuple[Pile, dict[str, Any]]:
    """PILE and its gradient, with a nonlinear model solved from a known start."""
    kind = ps.Score("physics" if given_physics else "exact", profiled=profiled)
    return systems_of(model, kind, start).pile_and_gradient(names, kind)


class Differences:
    """All four scores of a model at other hyperparameters, followed from its own solution."""

    def __init__(self, model: ps.Model) -> None:
        self.model = model
        self.solved = ps.solve_nonlinear(model, tolerance=TIGHT)

    @functools.cached_property
    def base(self) -> np.ndarray:
        return self.scores({})

    @property
    def start(self) -> WarmStart:
        """The start that leads to the same solution."""
        return WarmStart(None, self.solved.expansion.values)

    def scores(self, changes: Mapping[str, Any]) -> np.ndarray:
        """In the order of `OPTIONS`."""
        linear = ps.solve_nonlinear(self.model.replace(changes), starts=self.solved, tolerance=TIGHT).model
        whole, prior = (ps.pile(each) for each in (linear, linear.replace(data=())))
        terms = [(p.fit * p.size, p.complexity * p.size, p.size) for p in (whole, prior)]
        given = [a - b for a, b in zip(*terms, strict=True)]
        return np.array([score(given if g else terms[0], p) for p, g in OPTIONS])

    def slope(self, changes: Callable[[float], Mapping[str, Any]]) -> np.ndarray:
        """The derivative by central differences, off by about `STEP²` and, for scores to 1e-10, `1e-10/STEP`."""
        return (self.scores(changes(STEP)) - self.scores(changes(-STEP))) / (2 * STEP)


# ---------------------------------------------------------------- every name


def _advected(p: Any, u: Any, u_x: Any, rest: Any, c: Any) -> Any:
    return c * u * u_x + rest


@functools.cache
def every_kind() -> ps.Model:
    """A parameter in `P`, one in an operator of it, and one in linear blocks and an integral; two bandwidths."""
    k, nu = ps.parameter("k", 1.5), ps.parameter("nu", 0.4)
    equation = ps.Nonlinear(_advected, (ps.identity, DX, DT + nu * DX), parameters={"c": 0.35})
    mass = ps.integral(STRIP.slice(t=0.5)(ps.GaussLegendre(6)), k * ps.identity)
    initial = STRIP.slice(t=0)(ps.GaussLegendre(4))
    return ps.Model(
        ps.RBF([0.6, 0.5]),
        data=[ps.observe(ps.identity, Y, at=AT), ps.observe(mass, 0.2, gamma=0.02)],
        physics=[ps.impose(equation, 0.2, on=INNER), ps.impose(k * DX, -1.0, on=initial, rho=0.1)],
        gamma=0.04,
        rho=0.05,
        eta=1.5,
    )


@functools.cache
def differences() -> Differences:
    return Differences(every_kind())


def _moved(name: str, at: float, h: float) -> dict[str, float]:
    return {name: at * (1 + h)}


@functools.cache
def slopes() -> dict[tuple[str, int], np.ndarray]:
    found = {}
    for name, value in every_kind().parameters.items():
        for i, at in enumerate(np.ravel(value)):
            one = f"{name}[{i}]" if np.ndim(value) else name
            found[name, i] = differences().slope(functools.partial(_moved, one, at))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS, ids=IDS)
def test_gradient_in_every_name(option: tuple[bool, bool]) -> None:
    """At the solution to rounding, and as a search finds it: a squared decrement of 1e-15 moves PILE by 1e-8."""
    model = every_kind()
    names = ["kernel.bandwidth", "gamma", "rho", "eta", "data.1.gamma", "physics.1.rho", "k", "nu", "c"]
    assert {*names} == {*model.parameters}
    place = OPTIONS.index(option)
    for start in (differences().start, None):
        found, gradient = score_and_gradient(model, names, *option, start)
        assert found.value == pytest.approx(differences().base[place], abs=1e-8)
        for name in names:
            expected = [each[place] for (of, _), each in slopes().items() if of == name]
            assert max(map(abs, expected)) > 1e-3  # something was tested
            slope = np.ravel(model.parameters[name]) * np.ravel(gradient[name])
            np.testing.assert_allclose(slope, expected, rtol=1e-5, atol=1e-6, err_msg=name)


# ---------------------------------------------------------------- fifty digits


def _mixed(p: Any, u: Any, u_x: Any, b: Any) -> Any:
    return jnp.exp(b * u) * (1 + u_x) + 0.5 * u_x**2


class Exact:
    """`u(x) = y` and `e^{bu}(1 + u_x) + u_x²/2 = r` at one point, where an RBF kernel has `u` and `u_x` independent."""

    y, r = 0.6, 2.5
    at: Mapping[str, float] = {"kernel.bandwidth": 0.8, "gamma": 0.3, "rho": 0.2, "eta": 1.4, "b": 0.7}

    def model(self) -> ps.Model:
        equation = ps.Nonlinear(_mixed, (ps.identity, D), parameters={"b": self.at["b"]})
        temperatures = {name: self.at[name] for name in ("gamma", "rho", "eta")}
        data, physics = ps.observe(ps.identity, self.y, at=[0.4]), ps.impose(equation, self.r, on=on([0.4]))
        return ps.Model(ps.RBF(self.at["kernel.bandwidth"]), data, physics, **temperatures)

    def terms(self, values: Mapping[str, Any], data: bool) -> tuple[Any, Any]:
        """`t̃ᵀC⁻¹t̃` and `log det C` of both observations, or of the equation, at the most likely `(u, u_x)`."""
        h, gamma, rho, eta, b = (values[name] for name in self.at)

        def slopes(u: Any, v: Any) -> tuple[Any, Any]:
            return b * mpmath.exp(b * u) * (1 + v), mpmath.exp(b * u) + v

        def missed(u: Any, v: Any) -> Any:
            return self.r - mpmath.exp(b * u) * (1 + v) - v**2 / 2

        def stationary(u: Any, v: Any) -> list[Any]:
            (in_u, in_v), left = slopes(u, v), missed(u, v) * 2 / rho
            return [u / eta - in_u * left - (self.y - u) * 2 / gamma, v * h**2 / eta - in_v * left]

        u, v = mpmath.findroot(stationary, (mpmath.mpf("0.6"), mpmath.mpf("0.5")))
        rows = [[mpmath.mpf(1), mpmath.mpf(0)]] * data + [[*slopes(u, v)]]
        J, prior = mpmath.matrix(rows), mpmath.diag([eta, eta / h**2])
        C = J * prior * J.T + mpmath.diag([gamma / 2] * data + [rho / 2])
        targets = J * mpmath.matrix([u, v]) + mpmath.matrix([self.y - u] * data + [missed(u, v)])
        return (targets.T * mpmath.inverse(C) * targets)[0], mpmath.log(mpmath.det(C))

    def score(self, values: Mapping[str, Any], profiled: bool, given_physics: bool) -> Any:
        quadratic, logdet = self.terms(values, True)
        n = 2
        if given_physics:
            prior = self.terms(values, False)
            quadratic, logdet, n = quadratic - prior[0], logdet - prior[1], 1
        fit = mpmath.log(quadratic / n) + 1 if profiled else quadratic / n
        return fit + logdet / n + mpmath.log(2 * mpmath.pi)


@pytest.mark.parametrize("option", [(False, False), (False, True), (True, False)], ids=["plain", "given", "profiled"])
def test_gradient_against_fifty_digits(option: tuple[bool, bool]) -> None:
    """Central differences with a step that leaves thirty digits; the gradient is where a last step was 1e-8."""
    exact = Exact()
    model = exact.model()
    found, gradient = score_and_gradient(model, list(exact.at), *option, Differences(model).start)
    with mpmath.workdps(60):
        values = {name: mpmath.mpf(each) for name, each in exact.at.items()}
        assert found.value == pytest.approx(float(exact.score(values, *option)), rel=1e-8)
        step = mpmath.mpf(10) ** -25
        for name, value in values.items():
            ends = [exact.score(values | {name: value + sign * step}, *option) for sign in (1, -1)]
            expected = float((ends[0] - ends[1]) / (2 * step))
            assert abs(expected) > 1e-3
            assert gradient[name] == pytest.approx(expected, rel=1e-7), name


# ---------------------------------------------------------------- any equation


def _family(p: Any, u: Any, u_x: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    return u_x + a * u**3 + b * u * u_x + c * jnp.sin(3.0 * u) + d * u_x**2


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**31 - 1),
    coefficients=st.tuples(*[st.floats(-1, 1)] * 4),
    option=st.sampled_from(OPTIONS),
)
@settings(max_examples=3, phases=[Phase.generate])
def test_gradient_of_any_equation(
    seed: int, coefficients: tuple[float, float, float, float], option: tuple[bool, bool]
) -> None:
    """Along a random direction in all hyperparameters at once, of data and values near a random sine."""
    rng = np.random.default_rng(seed)
    x, z = SITES, NODES
    size, w, start = rng.uniform([0.5, 2, 0], [1.0, 4, 6])
    u, u_x = size * np.sin(w * z + start), size * w * np.cos(w * z + start)
    a, b, c, d = coefficients
    values = u_x + a * u**3 + b * u * u_x + c * np.sin(3 * u) + d * u_x**2
    equation = ps.Nonlinear(_family, (ps.identity, D), parameters=dict(zip("abcd", coefficients, strict=True)))
    model = ps.Model(
        ps.RBF(rng.uniform(0.3, 0.6)),
        data=ps.observe(ps.identity, size * np.sin(w * x + start) + 0.1 * rng.standard_normal(15), at=x),
        physics=ps.impose(equation, values + 0.3 * rng.standard_normal(12), on=on(z)),
        gamma=0.02,
        rho=0.2,
        eta=rng.uniform(0.5, 2.0),
    )
    names = list(model.parameters)
    along = dict(zip(names, rng.standard_normal(len(names)), strict=True))
    units = {name: 1.0 if name in "abcd" else float(model.parameters[name]) for name in names}

    def moved(times: int, h: float) -> dict[str, float]:
        return {name: float(model.parameters[name]) + times * h * along[name] * units[name] for name in names}

    by = Differences(model)
    _, gradient = score_and_gradient(model, names, *option, by.start)
    slope = sum(gradient[name] * along[name] * units[name] for name in names)
    near, far = (by.slope(functools.partial(moved, k)) / k for k in (2, 4))
    expected = (4 * near - far)[OPTIONS.index(option)] / 3  # long steps, of fourth order: scores may be off by 1e-8
    assert slope == pytest.approx(expected, rel=1e-5, abs=3e-5)


def _decay(p: Any, u: Any, u_x: Any, rate: Any) -> Any:
    return u_x + rate * u + 2.0


def _hidden(p: Any, v: Any) -> Any:
    return jnp.sinh(jnp.arcsinh(v)) + 2.0


@pytest.mark.parametrize("form", ["values", "hidden"])
def test_gradient_of_a_linear_function_is_that_of_the_operator(form: str) -> None:
    """Of `u' + rate u`, whose parameter is that of `P` or of its operator; `hidden` is linear, but not as written."""
    rate = ps.parameter("rate", 1.5)

    def model(equation: Any, value: float) -> ps.Model:
        data = ps.observe(rate * ps.identity, np.cos(SITES), at=SITES)
        return ps.Model(ps.RBF(0.5), data, ps.impose(equation, value, on=on(NODES)), gamma=0.1, rho=0.3)

    equation = {
        "values": ps.Nonlinear(_decay, (ps.identity, D), parameters={"rate": 1.5}),
        "hidden": ps.Nonlinear(_hidden, D + rate),
    }[form]
    ordinary, nonlinear = model(D + rate, 0.3), model(equation, 2.3)
    for profiled, given_physics in (OPTIONS[0], OPTIONS[3]):
        expected = ps.pile_and_gradient(
            ordinary, score=ps.Score("physics" if given_physics else "exact", profiled=profiled)
        )
        found = score_and_gradient(nonlinear, list(nonlinear.parameters), profiled, given_physics)
        assert found[0].value == pytest.approx(expected[0].value, rel=1e-10)
        assert found[1] == pytest.approx(expected[1], rel=1e-7, abs=1e-9)


# ---------------------------------------------------------------- searches

AXIS = ps.Box(t=(0, 4))
(DERIVATIVE,) = ps.partials(AXIS)
RATE = 1.7
TIMES = np.linspace(0.1, 3.9, 15)


def growth(p: Any) -> Any:
    """`u' = r u (1 − u)` from `u(0) = 0.2`."""
    return 1.0 / (1.0 + 4.0 * jnp.exp(-RATE * p[0]))


def _logistic(p: Any, u: Any, u_t: Any, r: Any) -> Any:
    return u_t - r * u * (1 - u)


LOGISTIC = ps.Nonlinear(_logistic, (ps.identity, DERIVATIVE), parameters={"r": 1.0})


def grown(operator: Any = LOGISTIC) -> ps.Model:
    """15 noisy values and an equation at 12 nodes."""
    noise = 0.03 * np.random.default_rng(1).standard_normal(15)
    return ps.Model(
        ps.RBF(1.0),
        data=ps.observe(ps.identity, np.asarray(jax.vmap(growth)(TIMES[:, None])) + noise, at=TIMES),
        physics=ps.impose(operator, 0.0, on=AXIS.interior(ps.GaussLegendre(12))),
        gamma=2 * 0.03**2,
        rho=1e-3,
    )


OVER = {"r": (0.2, 6.0)}


@functools.cache
def fitted() -> ps.Minimum:
    return ps.minimize(grown(), OVER, score="given_physics")


@pytest.mark.slow
def test_a_coefficient_of_a_nonlinear_equation() -> None:
    """Within three of its standard errors; the curvature is that of the scores themselves."""
    best = fitted()
    assert best.converged
    r, error = best.values["r"], best.standard_errors["r"]
    assert abs(r - RATE) < 3 * error
    assert error < 0.3
    by = Differences(best.model)
    place, h = OPTIONS.index((False, True)), 0.02
    low, middle, high = (0.5 * 15 * by.scores({"r": r + k * h})[place] for k in (-1, 0, 1))
    assert middle < min(low, high)
    expected = ((low - 2 * middle + high) / h**2) ** -0.5
    width = OVER["r"][1] - OVER["r"][0]  # the coordinate of the search is a fraction of the range
    assert best.curvature.standard_errors["r"] * width == pytest.approx(expected, rel=0.01)  # h² of a few tenths
    # Standard errors leave out the second derivatives of the model, which matter little with data as good as these.
    assert error == pytest.approx(expected, rel=0.02)
    assert best.pile.value == pytest.approx(2 * middle / 15, abs=1e-6)
    solved = ps.solve_nonlinear(best.model)
    errors = ps.accuracy(solved.model, growth, on=AXIS.interior(ps.GaussLegendre(20)))
    assert errors.data.relative_l2 < 0.03  # the noise of one datum, of 15


def counted(monkeypatch: pytest.MonkeyPatch, stop: int | None = None) -> list[int]:
    """Count the scores that a search computes; after `stop` of them interrupt it."""
    calls: list[int] = []
    original = vars(objective)["systems_of"]

    def solve(*arguments: Any, **options: Any) -> Any:
        if len(calls) == stop:
            raise KeyboardInterrupt
        calls.append(1)
        return original(*arguments, **options)

    monkeypatch.setattr(objective, "systems_of", solve)
    return calls


@pytest.mark.slow
def test_a_search_goes_on_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted, it goes on to what it would have been, bit by bit; then nothing is left to compute."""
    options: dict[str, Any] = {"over": OVER, "search": ps.SearchOptions(tolerance=1e-3)}
    whole = ps.minimize(grown(), **options)
    options["run"] = ps.RunOptions(save=tmp_path / "run.nc")
    with monkeypatch.context() as patched:
        counted(patched, stop=3)
        part = ps.minimize(grown(), **options)
    assert part.status == "interrupted"
    calls = counted(monkeypatch)
    for left in (whole.evaluations - 3, 0):
        calls.clear()
        found = ps.minimize(grown(), **options)
        assert len(calls) == left
        assert (found.values, found.pile, found.standard_errors) == (whole.values, whole.pile, whole.standard_errors)
        assert (found.evaluations, found.status) == (whole.evaluations, "converged")


def power(n: int) -> Callable[..., Any]:
    return lambda p, u, u_t: u_t + u**n


@pytest.mark.slow
def test_a_file_of_another_equation_is_refused(tmp_path: Path) -> None:
    """`u²` and `u³` at the same nodes, under the same name; the same function written anew is accepted."""

    def decaying(n: int) -> ps.Model:
        return grown(ps.Nonlinear(power(n), (ps.identity, DERIVATIVE), name="decay")).replace({"rho": 10.0})

    searches: dict[str, Callable[..., Any]] = {
        "run.nc": functools.partial(
            ps.minimize, over={"eta": (0.5, 2.0)}, search=ps.SearchOptions(max_evaluations=2, curvature=False)
        ),
        "sweep.nc": functools.partial(ps.sweep, grid={"eta": [0.5, 2.0]}),
    }
    quadratic, cubic = decaying(2), decaying(3)
    for name, search in searches.items():
        run = ps.RunOptions(save=tmp_path / name)
        search(quadratic, run=run)
        written = (tmp_path / name).read_bytes()
        with pytest.raises(ps.errors.InputError, match="another"):
            search(cubic, run=run)
        search(decaying(2), run=run)
        assert (tmp_path / name).read_bytes() == written


def test_a_sweep_of_a_nonlinear_model() -> None:
    """Each point is what solving its model gives, with losses and errors of that; whichever way it was reached."""
    model = grown().replace({"r": RATE})
    grid = {"kernel.bandwidth": [2.0, 0.5, 1.0]}
    table = ps.sweep(model, grid, score="joint", losses=True, known=ps.KnownSolution(growth))
    assert table.status.values.tolist() == ["ok"] * 3
    assert "R_phys" not in table
    fine = AXIS(ps.GaussLegendre(30))
    for h in grid["kernel.bandwidth"]:
        point, one = table.sel({"kernel.bandwidth": h}), model.replace({"kernel.bandwidth": h})
        solved = ps.solve_nonlinear(one, tolerance=TIGHT)
        assert float(point.pile) == pytest.approx(solved.linearised, abs=1e-8)  # a squared decrement of 1e-15
        losses = ps.losses(solved.model)
        for name, exact in (("data_loss", losses.data), ("physics_loss", losses.physics)):
            assert float(point[name]) == pytest.approx(exact, rel=1e-6)
        errors = ps.accuracy(solved.model, growth, on=fine).data
        assert float(point.R_data) == pytest.approx(errors.value, rel=1e-6)
        assert float(point.R_data_bias) == pytest.approx(errors.bias, rel=1e-6)
    given = ps.sweep(model, {"r": [0.5, RATE, 4.0]}, score="given_physics")
    assert float(given.pile.idxmin()) == RATE
    default = ps.sweep(model, {"r": [0.5, RATE, 4.0]})  # the equation is zero, so the data are scored given it
    np.testing.assert_array_equal(default.pile, given.pile)


@pytest.mark.slow
def test_an_unsatisfied_equation_is_reported() -> None:
    """Decay by its square, imposed on data that grow."""
    model = grown(ps.Nonlinear(power(2), (ps.identity, DERIVATIVE)))
    assert ps.sweep(model, {"eta": [1.0]})["status"].values.tolist() == ["unsatisfied"]
    with pytest.warns(UserWarning, match="the nonlinear model is unsatisfied: 'physics.0' is missed by"):
        ps.minimize(model, {"eta": (0.5, 2.0)}, search=ps.SearchOptions(max_evaluations=1, curvature=False))


def test_a_point_that_cannot_be_solved_is_recorded() -> None:
    """`√(a + u)` is defined at the start where `a` is positive."""
    equation = ps.Nonlinear(lambda p, u, a: jnp.sqrt(a + u), ps.identity, parameters={"a": 1.0})
    model = ps.Model(ps.RBF(0.5), physics=ps.impose(equation, 1.2, on=on([0.3, 0.7]), noise=0.1, name="root"))
    table = ps.sweep(model, {"a": [1.0, -1.0, 2.0]})
    assert table.status.values.tolist() == ["ok", "failed", "ok"]
    assert "P(Id; a): its value is NaN or infinite" in table.reason.values[1]
    assert np.isnan(table.pile.values[1])
    assert np.isfinite(table.pile.values[[0, 2]]).all()
    with pytest.raises(ps.errors.InputError, match="At the start a = -1"):
        ps.minimize(model.replace({"a": -1.0}), {"a": (-2.0, -0.5)})


def test_equations_are_compared_on_the_same_data() -> None:
    """Growth that saturates against growth that does not, both of the best rate."""
    rate = ps.minimize(grown(DERIVATIVE - ps.parameter("rate", 0.5)), {"rate": (0.01, 3.0)}, score="given_physics")
    table = ps.compare({"exponential": rate, "logistic": fitted()})
    assert list(table.index) == ["logistic", "exponential"]
    assert table["nats"]["exponential"] > 10
    models = {"exponential": rate.model, "logistic": fitted().model}
    again = ps.compare(models, score="given_physics")
    assert again["pile"]["logistic"] == pytest.approx(fitted().pile.value, abs=1e-6)
    assert list(again.index) == list(table.index)
    solved = ps.compare({"solved": ps.solve_nonlinear(fitted().model), "model": fitted().model})
    assert solved["pile"]["solved"] == pytest.approx(solved["pile"]["model"], abs=1e-5)


def test_a_minimum_of_a_nonlinear_model_is_diagnosed() -> None:
    """A good fit has no findings; a model with far too much noise has."""
    checks = ["collapsed", "overfit", "miscalibrated", "physics_against_data", "outliers", "idle_temperature"]
    good = ps.diagnose(fitted(), over=OVER, checks=checks)
    assert [each.name for each in good.findings if each.severity != "note"] == []
    noisy = fitted().model.replace({"gamma": 1e4, "rho": 1e4})
    assert "collapsed" in ps.diagnose(noisy, checks=checks)
