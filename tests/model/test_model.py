"""The one way to change a model: what `replace` changes, keeps and refuses; solvers by name."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import pilescore as ps
from pilescore.errors import InputError, OutsideDomainWarning, SmoothnessError
from pilescore.solvers import with_tolerances

LINE = ps.Box(x=(0, 1))
(DX,) = ps.partials(LINE)
ON = LINE.interior(ps.GaussLegendre(5))
X = np.linspace(0, 1, 7)
DATA = ps.observe(ps.identity, np.sin(3 * X), at=X, name="probe")
SLOPE = ps.observe(DX, [3.0, -1.0], at=[0.0, 0.9], gamma=0.2)
PHYSICS = ps.impose(DX**2 + 9 * ps.identity, 0.0, on=ON)
OTHER = ps.impose(ps.parameter("speed", 2.0) * DX, 1.0, on=ON, rho=0.3)
SLOWER = ps.impose(ps.parameter("speed", 1.0) * DX, 1.0, on=ON)
BENT = ps.impose(ps.Nonlinear(lambda p, u, slope: slope + u**2, of=(ps.identity, DX)), 0.5, on=ON)
SOLVER = ps.solvers.LowRank(tolerance=1e-4)


def model(**options):
    parts = {"kernel": ps.RBF(0.4), "data": [DATA, SLOPE], "physics": PHYSICS, "gamma": 0.1, "rho": 0.2, "eta": 1.5}
    return ps.Model(**parts | {"solver": SOLVER} | options)


PARTS = {
    "kernel": (ps.Matern(2.5, 0.3), "kernel"),
    "data": (DATA, "data"),
    "physics": ([OTHER, PHYSICS], "physics"),
    "gamma": (0.7, "gamma"),
    "rho": (0.8, "rho"),
    "eta": (0.9, "eta"),
    "solver": ("auto", "solver"),
}


def fields(one):
    return {name: getattr(one, name) for name in PARTS}


@pytest.mark.parametrize("name", PARTS)
def test_one_part_changes_and_all_others_are_kept(name):
    first = model()
    changed = first.replace(**{name: PARTS[name][0]})
    for other, value in fields(first).items():
        if other == name:
            continue
        kept = getattr(changed, other)
        if isinstance(value, tuple):
            assert len(kept) == len(value)
            assert all(a is b for a, b in zip(kept, value, strict=True))
        else:
            assert kept == value if isinstance(value, np.ndarray) else kept is value, other
    fresh = model(**{name: PARTS[name][0]})
    assert repr(changed) == repr(fresh)
    assert changed.solver == fresh.solver
    assert changed.parameters.keys() == fresh.parameters.keys()
    exact = [one.replace(solver="dense") for one in (changed, fresh)]
    assert ps.pile(exact[0]).value == ps.pile(exact[1]).value


def test_parts_and_values_change_together():
    new = {name: part for name, (part, _) in PARTS.items()}
    values = {"kernel.bandwidth": 0.5, "speed": 3.0, "physics.0.rho": 0.4, "eta": 2.0}
    changed = model().replace(values, **new)
    parameters = {"kernel.bandwidth": 0.5, "speed": 3.0, "physics.0.rho": 0.4, "gamma": 0.7, "rho": 0.8, "eta": 2.0}
    assert changed.parameters == parameters
    assert changed.solver == ps.solvers.Auto()
    assert changed.labels == ("probe", "physics.0", "physics.1")
    assert model().parameters["kernel.bandwidth"] == 0.4  # the first is as it was


def test_values_alone_keep_the_solver_and_the_blocks():
    first = model()
    changed = first.replace({"kernel.bandwidth": 0.5, "data.1.gamma": 0.6})
    assert changed.solver is first.solver
    assert changed.physics is first.physics
    assert changed.data[0] is first.data[0] or changed.data[0].values is first.data[0].values
    assert float(changed.data[1].temperature) == 0.6
    assert float(first.data[1].temperature) == pytest.approx(0.2)


def test_nothing_to_change_is_the_model_itself():
    first = model()
    assert first.replace() is first
    assert first.replace({}) is first


def test_new_parts_are_checked_as_in_the_constructor(as_a_user):
    first = model()
    (dy, _) = ps.partials(ps.Box(y=(0, 1), z=(0, 1)))
    for error, message, parts in (
        (InputError, "kernel: expected a kernel", {"kernel": "RBF"}),
        (InputError, "data: expected a block made by ps.observe", {"data": PHYSICS}),
        (InputError, "physics: expected a block made by ps.impose", {"physics": [DATA]}),
        (InputError, "at least one block", {"data": (), "physics": ()}),
        (InputError, "gamma: expected a positive number", {"gamma": -1.0}),
        (InputError, "eta: expected", {"eta": [1.0, 2.0]}),
        (InputError, "all blocks need the same number", {"data": ps.observe(dy, 1.0, at=[[0.0, 1.0]])}),
        (InputError, "a different name for each block", {"data": [DATA, DATA]}),
        (InputError, "'speed' has different values", {"physics": [OTHER, SLOWER]}),
        (SmoothnessError, "supports at most order 0", {"kernel": ps.Matern(0.5)}),
        (InputError, "solver: expected one of", {"solver": 3}),
    ):
        with pytest.raises(error, match=message):
            first.replace(**parts)


def test_parts_of_other_names_are_refused():
    for name, hint in (
        ("kernal", "did you mean 'kernel'"),
        ("blocks", "kernel, data, physics, gamma, rho, eta, solver"),
    ):
        with pytest.raises(InputError, match=hint) as caught:
            model().replace(**{name: ps.RBF()})
        assert f"{name!r}" in str(caught.value)
    with pytest.raises(InputError, match=r"no hyperparameter 'kernel\.width'"):
        model().replace({"kernel.width": 1.0}, kernel=ps.RBF())


def test_points_far_outside_are_told_once():
    far = ps.observe(ps.identity, 1.0, at=[9.0])
    with pytest.warns(OutsideDomainWarning, match=r"data\.0"):
        first = model(data=far)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first.replace({"gamma": 0.3}, kernel=ps.Matern(2.5), solver="dense")
    with pytest.warns(OutsideDomainWarning):
        model().replace(data=far)


def test_a_nonlinear_model_has_a_dense_solver():
    for solver in (SOLVER, "low_rank", "kronecker"):
        with pytest.raises(InputError, match="expected 'dense' or 'auto' for a nonlinear model"):
            model(physics=BENT, solver=solver)
        with pytest.raises(InputError, match="for a nonlinear model"):
            model(solver=solver).replace(physics=BENT)
        with pytest.raises(InputError, match="for a nonlinear model"):
            model(physics=BENT, solver="dense").replace(solver=solver)
    for solver in ("dense", "auto"):
        bent = model(physics=BENT, solver=solver)
        assert bent.is_nonlinear
        assert bent.solver == ps.solvers.Dense()
    assert not bent.replace(physics=PHYSICS).is_nonlinear


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("dense", ps.solvers.Dense),
        ("low_rank", ps.solvers.LowRank),
        ("auto", ps.solvers.Auto),
        ("kronecker", ps.solvers.Kronecker),
        ("distributed", ps.solvers.Distributed),
    ],
)
def test_solvers_have_names(name, kind):
    assert type(model(solver=name).solver) is kind
    assert type(model().replace(solver=name).solver) is kind


@pytest.mark.parametrize(("wrong", "right"), [("lowrank", "low_rank"), ("Dense", "dense"), ("krone", "kronecker")])
def test_misspelt_solvers_get_a_suggestion(wrong, right):
    for call in (lambda: model(solver=wrong), lambda: model().replace(solver=wrong)):
        with pytest.raises(InputError, match=f"got {wrong!r}. Did you mean {right!r}"):
            call()
    with pytest.raises(InputError, match=r"got 'zzzzzzz'$"):
        model(solver="zzzzzzz")


def test_the_default_is_dense():
    assert ps.Model(ps.RBF(), data=DATA).solver == ps.solvers.Dense()


def test_differences_between_faces_can_be_refined():
    strip = ps.Box(t=(0, 1), x=(0, 2))
    first, second = (strip.face(x=x)(ps.GaussLegendre(8)) for x in (0, 2))
    value, slope = ps.periodic(first, second, derivatives=1, name="periodic")
    assert value.unrefinable == ""
    for block in (value, slope):
        finer = block.refined(1.5)
        assert (finer.size, finer.name, str(finer.operator)) == (12, "periodic", str(block.operator))
        np.testing.assert_array_equal(finer.points[:12, 0], finer.points[12:, 0])
        np.testing.assert_array_equal(finer.points[:, 1], [0.0] * 12 + [2.0] * 12)
        np.testing.assert_array_equal(finer.matrix, np.concatenate([np.eye(12), -np.eye(12)], axis=1))
    soft = ps.impose(ps.difference(first, second), 0.0, rho=0.1).refined(2)
    assert (soft.size, float(soft.temperature)) == (16, 0.1)


def test_other_functionals_cannot_be_refined():
    strip = ps.Box(t=(0, 1), x=(0, 2))
    rules = ps.GaussLegendre(8), ps.quadrature.Fejer(8)
    first, second, other = strip.face(x=0)(rules[0]), strip.face(x=2)(rules[0]), strip.face(x=2)(rules[1])
    points = ps.domains.nodes_at(second.points, second.weights, names=("t", "x"))
    for functional, reason in (
        (ps.difference(first, other), "different rules"),
        (ps.difference(first, points), "explicit points"),
        (ps.integral(first), "functionals"),
        (ps.model.join_functionals(ps.difference(first, second), ps.difference(first, second)), "functionals"),
    ):
        block = ps.impose(functional, 0.0)
        assert reason in block.unrefinable
        assert block.refined(1.5) is None
    assert ps.impose(ps.difference(first, second), np.arange(8.0)).refined(1.5) is None  # values at these nodes only


def test_curved_blocks_are_never_zero():
    """Linearised, `u' + u² = 0` has targets that vary; `u' = k²` is linear in `u`, whatever `k` is."""
    source = ps.Nonlinear(lambda p, slope, k: slope - k**2, of=DX, parameters={"k": 2.0})
    curved = ps.Nonlinear(lambda p, u, slope: slope + u**2, of=(ps.identity, DX))
    jump = ps.Nonlinear(lambda p, slope: slope * jnp.where(slope > 0, 1.0, 2.0), of=DX)
    by_point = ps.Nonlinear(lambda p, u, slope: slope + p[0] ** 2 * u, of=(ps.identity, DX))
    for operator, is_curved in (
        (curved, True),
        (jump, True),
        (source, False),
        (by_point, False),
        (DX + ps.identity, False),
        (ps.parameter("k", 2.0) * DX, False),
        (ps.integral(ON), False),
    ):
        on = None if isinstance(operator, ps.model.Functional) else ON
        for value in (0.0, 1.0):
            block = ps.impose(operator, value, on=on)
            assert block.is_curved == is_curved, operator
            assert block.zero == (value == 0 and not is_curved)
            assert block.constant
    assert not ps.observe(ps.identity, [0.0], at=[0.5]).zero  # a measured zero is data
    settled = with_tolerances(ps.Model(ps.RBF(0.4), DATA, ps.impose(curved, 0.0, on=ON), gamma=0.1))
    linear = ps.solve_nonlinear(settled).model.physics[0]
    assert (linear.is_nonlinear, linear.zero, linear.exact) == (False, False, True)
    assert np.ptp(linear.values) > 0
