"""Scores by name and as objects, and nonlinear models through the same functions as linear ones."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import pilescore as ps
from pilescore.errors import InputError, NotSolvedError
from pilescore.inference import as_score

LINE = ps.Box(x=(0, 1))
(DX,) = ps.partials(LINE)
ON = LINE.interior(ps.GaussLegendre(8))
X = np.linspace(0.05, 0.95, 6)
GROWTH = ps.Nonlinear(lambda p, u, slope: slope - u * (1 - u), of=(ps.identity, DX))


def logistic(x):
    return 1 / (1 + 4 * np.exp(-x))


def linear(**options):
    data = ps.observe(ps.identity, np.sin(3 * X), at=X)
    physics = ps.impose(DX**2 + 9 * ps.identity, 0.5, on=ON)
    return ps.Model(ps.RBF(0.4), data, physics, **{"gamma": 0.05, "rho": 0.02, "eta": 1.3} | options)


def nonlinear(rate=None, **options):
    """Logistic growth; with `rate` a parameter stands before its slope."""
    growth = GROWTH
    if rate is not None:
        growth = ps.Nonlinear(
            lambda p, u, slope: slope - u * (1 - u), of=(ps.identity, ps.parameter("rate", rate) * DX)
        )
    data = ps.observe(ps.identity, logistic(X), at=X)
    start = ps.dirichlet(0.2, on=LINE.face(x=0)(ps.GaussLegendre(1)), rho=1e-2)
    physics = [ps.impose(growth, 0.1, on=ON), start]
    return ps.Model(ps.RBF(0.6), data, physics, **{"gamma": 1e-2, "rho": 1e-2} | options)


NAMES = {"joint": ps.Score(), "given_physics": ps.Score(given_physics=True), "profiled": ps.Score(profiled=True)}
SCORES = [*NAMES.values(), ps.Score(given_physics=True, profiled=True)]


@pytest.mark.parametrize("name", NAMES)
def test_names_stand_for_objects(name):
    assert as_score(name) == NAMES[name]
    assert as_score(NAMES[name]) is NAMES[name]
    for model in (linear(), nonlinear()):
        assert ps.pile(model, name) == ps.pile(model, score=NAMES[name])
        first, second = (ps.pile_and_gradient(model, ["gamma", "eta"], score)[1] for score in (name, NAMES[name]))
        assert first == second
    assert ps.pile(linear()) == ps.pile(linear(), "joint")


def test_all_scores_of_a_model_differ():
    for model in (linear(), nonlinear()):
        assert len({round(ps.pile(model, score).value, 6) for score in SCORES}) == 4


def test_scores_are_frozen_values():
    score = ps.Score(profiled=True)
    assert score == ps.Score(profiled=True) != ps.Score()
    assert {score: 1}[ps.Score(profiled=True)] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        score.profiled = False


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("given_phyics", "got 'given_phyics'. Did you mean 'given_physics'"),
        ("Joint", "Did you mean 'joint'"),
        ("zzzzzz", "expected 'joint', 'given_physics', 'profiled' or a ps.Score; got 'zzzzzz'$"),
        (True, "got True"),
        (None, "got None"),
    ],
)
def test_other_scores_are_refused(wrong, message, as_a_user):
    for call in (ps.pile, lambda m, score: ps.pile_and_gradient(m, None, score)):
        with pytest.raises(InputError, match=message):
            call(linear(), wrong)


def test_options_of_scores_are_checked(as_a_user):
    for options, message in (
        ({"profiled": 1}, "profiled: expected True or False"),
        ({"given_physics": "yes"}, "given_physics: expected True or False"),
        ({"formula": "published"}, "formula: expected 'consistent' or 'printed'"),
        ({"formula": "printed", "profiled": True}, "no other option with the printed formula"),
        ({"formula": "printed", "given_physics": True}, "no other option with the printed formula"),
    ):
        with pytest.raises(InputError, match=message):
            ps.Score(**options)


def test_scores_that_do_not_suit_a_model_are_refused():
    printed = ps.Score(formula="printed")
    for part in ("data", "physics"):
        with pytest.raises(InputError, match="unless the model has both data and physics"):
            ps.pile(linear().replace(**{part: ()}), "given_physics")
    with pytest.raises(InputError, match="the consistent formula for a nonlinear model"):
        ps.pile(nonlinear(), printed)
    with pytest.raises(InputError, match="the consistent formula, which has a gradient"):
        ps.pile_and_gradient(linear(), score=printed)
    assert ps.pile(linear(), printed).value != ps.pile(linear()).value


def test_given_physics_is_the_difference_of_two_evidences():
    """Both of one linear model: a nonlinear one is linearised at the solution given data and physics."""
    for model in (linear(), nonlinear()):
        one = ps.solve_nonlinear(model, tolerance=1e-16).model
        joint, alone = ps.pile(one), ps.pile(one.replace(data=()))
        given = ps.pile(model, "given_physics")
        assert given.free_energy == pytest.approx(joint.free_energy - alone.free_energy, abs=1e-8)
        assert given.size == joint.size - alone.size == 6


def test_a_linear_model_has_no_solution():
    assert ps.pile(linear()).solution is None
    assert ps.pile_and_gradient(linear())[0].solution is None


@pytest.mark.parametrize("score", ["joint", "profiled"])
def test_a_nonlinear_model_scores_as_its_linearisation(score):
    model = nonlinear()
    found, solved = ps.pile(model, score), ps.solve_nonlinear(model, tolerance=1e-14)
    assert not solved.model.is_nonlinear
    expected = ps.pile(solved.model, score)
    assert found.value == pytest.approx(expected.value, abs=1e-8)
    assert found.fit == pytest.approx(expected.fit, abs=1e-8)
    assert found.complexity == pytest.approx(expected.complexity, abs=1e-8)
    assert found.shares == pytest.approx(expected.shares, abs=1e-7)
    if score == "joint":
        assert found.value == pytest.approx(solved.linearised, abs=1e-8)


def test_the_solution_comes_with_the_score():
    model = nonlinear()
    for found in (ps.pile(model), ps.pile(model, "given_physics"), ps.pile_and_gradient(model, ["gamma"])[0]):
        solution = found.solution
        assert solution.converged
        assert solution.nonlinear is model
        mean = ps.posterior(solution.model).mean(X)
        np.testing.assert_allclose(mean, ps.posterior(ps.solve_nonlinear(model).model).mean(X), atol=1e-5)
    joint = ps.pile(model)
    assert ps.pile(joint.solution.model).value == pytest.approx(joint.value, abs=1e-10)
    assert joint == ps.pile(model)  # the solution is no part of the comparison


def test_a_linear_operator_written_as_nonlinear_scores_the_same():
    twin = ps.Nonlinear(lambda p, u, bend: bend + 9 * u, of=(ps.identity, DX**2))
    written = linear().replace(physics=ps.impose(twin, 0.5, on=ON))
    assert written.is_nonlinear
    for score in SCORES:
        found, expected = ps.pile(written, score), ps.pile(linear(), score)
        assert found.value == pytest.approx(expected.value, abs=1e-9)
        assert found.eta == pytest.approx(expected.eta, rel=1e-8)
    slopes, exact = (ps.pile_and_gradient(m, ["kernel.bandwidth", "rho"])[1] for m in (written, linear()))
    assert slopes == pytest.approx(exact, abs=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("score", SCORES, ids=["joint", "given physics", "profiled", "both"])
def test_the_gradient_follows_the_solution(score):
    model = nonlinear(rate=1.2)
    found, slopes = ps.pile_and_gradient(model, score=score)
    assert found.value == pytest.approx(ps.pile(model, score).value, rel=1e-12)
    assert list(slopes) == list(model.parameters)
    for name, slope in slopes.items():
        at, step = model.parameters[name], 1e-3 * model.parameters[name]

        def quotient(h, name=name, at=at):
            above, below = (ps.pile(model.replace({name: at + s * h}), score).value for s in (1, -1))
            return (above - below) / (2 * h)

        expected = (4 * quotient(step / 2) - quotient(step)) / 3
        assert slope == pytest.approx(expected, rel=2e-5, abs=2e-6), name


def test_the_posterior_of_a_nonlinear_model_is_that_of_its_linearisation():
    model = nonlinear()
    found, expected = ps.posterior(model), ps.posterior(ps.solve_nonlinear(model, tolerance=1e-14).model)
    assert not found.model.is_nonlinear
    where = np.linspace(0, 1, 11)
    for operator in (ps.identity, DX):
        np.testing.assert_allclose(found.mean(where, operator), expected.mean(where, operator), atol=1e-6)
        np.testing.assert_allclose(found.std(where, operator), expected.std(where, operator), atol=1e-6)
    np.testing.assert_allclose(found.mean(X), logistic(X), atol=0.1)


def test_losses_and_errors_of_a_nonlinear_model_are_those_of_its_linearisation():
    model = nonlinear()
    solved = ps.solve_nonlinear(model, tolerance=1e-14).model
    found, expected = ps.losses(model), ps.losses(solved)
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(expected), rel=1e-4)
    errors = [ps.accuracy(m, lambda p: 1 / (1 + 4 * jnp.exp(-p[0])), on=ON) for m in (model, solved)]
    assert errors[0].data.value == pytest.approx(errors[1].data.value, rel=1e-4)


@pytest.mark.slow
def test_an_equation_that_does_not_hold_is_told():
    """`u² = −1` has no solution: the most likely function is zero, and its score means little."""
    impossible = ps.Nonlinear(lambda p, u: u**2, of=(ps.identity,))
    model = ps.Model(ps.RBF(0.5), physics=ps.impose(impossible, -1.0, on=ON, noise=0.1))
    for call in (ps.pile, ps.pile_and_gradient, ps.posterior, ps.losses):
        with pytest.warns(UserWarning, match=r"the nonlinear model is unsatisfied: 'physics\.0' is missed") as caught:
            call(model)
        assert len(caught) == 1


def test_a_model_that_cannot_be_solved_is_an_error(monkeypatch):
    monkeypatch.setattr("pilescore.nonlinear.solve.MAX_EVALUATIONS", 1)
    steep = ps.Nonlinear(lambda p, u, slope: slope - jnp.exp(5 * u), of=(ps.identity, DX))
    model = nonlinear().replace(physics=ps.impose(steep, 0.0, on=ON, noise=1e-4))
    for call in (ps.pile, ps.pile_and_gradient, ps.posterior, ps.losses):
        with pytest.raises(NotSolvedError, match="the nonlinear model was not solved: out of evaluations"):
            call(model)
