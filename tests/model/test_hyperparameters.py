"""Roles of hyperparameters: what a field declares, and that searches and diagnosis read nothing else."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pilescore as ps
from pilescore.errors import InputError
from pilescore.model import as_grid

LINE = ps.Box(x=(0, 2))
(DX,) = ps.partials(LINE)
X = np.linspace(0, 2, 30)
Y = np.sin(5 * X) + 0.1 * np.random.default_rng(1).standard_normal(30)
QUIET = {"run": ps.RunOptions(progress=False)}


class SquaredExponential(ps.Kernel):
    """A user's kernel: the values of RBF, with a name of its own for the bandwidth."""

    lengthscale: jax.Array = ps.kernels.hyperparameter("length", "lengthscale", default=1.0)
    smoothness = 0

    def derivative(self, alpha, beta, x, y):
        return jnp.exp(-0.5 * (x[0] - y[0]) ** 2 / self.lengthscale**2)


class Misnamed(ps.Kernel):
    """A kernel whose field is called a bandwidth and declared a number."""

    bandwidth: jax.Array = ps.kernels.hyperparameter("number")
    smoothness = 0

    def derivative(self, alpha, beta, x, y):
        return jnp.exp(-0.5 * (self.bandwidth * (x[0] - y[0])) ** 2)


def model(kernel, **options):
    return ps.Model(kernel, ps.observe(ps.identity, Y, at=X), **{"gamma": 0.02} | options)


def test_roles_of_kernels_that_come_with_the_library():
    plane = ps.observe(ps.identity, 1.0, at=[[0.0, 1.0]])
    for kernel, expected in (
        (ps.RBF(), {"bandwidth": "length"}),
        (ps.Matern(2.5), {"bandwidth": "length"}),
        (ps.kernels.RationalQuadratic(), {"alpha": "ratio", "bandwidth": "length"}),
        (ps.kernels.Periodic(), {"period": "period", "bandwidth": "length"}),
        (ps.AnisotropicRBF(0.1, 0.5, 1.0), {"theta": "angle", "s": "ratio", "bandwidth": "length"}),
        (ps.kernels.ShearedRBF(0.1), {"shear": "shear", "bandwidth": "length"}),
        (ps.kernels.Constant(), {"value": "variance"}),
        (ps.kernels.LinearMap(ps.RBF(), np.eye(2)), {"matrix": "number", "kernel.bandwidth": "length"}),
    ):
        roles = ps.Model(kernel, data=plane).roles
        assert {name: role for name, role in roles.items() if name.startswith("kernel.")} == {
            f"kernel.{name}": role for name, role in expected.items()
        }


def test_roles_in_sums_are_those_of_the_parts():
    roles = model(2.0 * ps.RBF(0.3) + ps.kernels.Constant() * SquaredExponential()).roles
    assert {role for name, role in roles.items() if name.endswith(("bandwidth", "lengthscale"))} == {"length"}
    assert roles["kernel.parts.1.parts.0.value"] == "variance"
    assert len([name for name in roles if name.startswith("kernel.")]) == 4


def test_roles_of_temperatures_and_coefficients():
    class Conductivity(eqx.Module):
        gamma: jax.Array

        def __call__(self, p):
            return self.gamma + p[0]

    speed = ps.parameter("bandwidth", 2.0)  # named like a kernel's field, and still a coefficient
    k = ps.coefficient(Conductivity(jnp.asarray(0.5)), "k")
    on = LINE.interior(ps.GaussLegendre(3))
    blocks = [ps.impose(speed * DX, 0.0, on=on, rho=0.1), ps.impose(k * DX, 0.0, on=on)]
    data = [ps.observe(ps.identity, Y, at=X), ps.observe(DX, 1.0, at=[0.5], gamma=0.3)]
    roles = ps.Model(ps.RBF(), data, blocks, rho=1.0).roles
    assert roles == {
        "kernel.bandwidth": "length",
        "data.1.gamma": "data_temperature",
        "bandwidth": "coefficient",
        "physics.0.rho": "physics_temperature",
        "k.gamma": "coefficient",
        "gamma": "data_temperature",
        "rho": "physics_temperature",
        "eta": "scale",
    }
    exact = ps.Model(ps.RBF(), data, blocks)  # its second equation has no temperature, so it is exact
    assert exact.roles == {name: role for name, role in roles.items() if name != "rho"}
    assert [exact.is_exact(i) for i in range(4)] == [False, False, False, True]


def test_roles_belong_to_the_parameters_and_stay_with_them():
    first = model(SquaredExponential(0.4))
    assert list(first.roles) == list(first.parameters)
    assert first.replace({"kernel.lengthscale": 0.7, "gamma": 1.0}).roles == first.roles


@pytest.mark.parametrize(
    ("role", "good", "bad"),
    [
        ("length", [1.0, [1.0, 2.0]], [0.0, -1.0, [1.0, -1.0], [[1.0]]]),
        ("period", [1.0, [1.0, 2.0]], [0.0]),
        ("variance", [2.0], [0.0, [1.0, 2.0]]),
        ("ratio", [2.0], [-1.0, [1.0, 2.0]]),
        ("angle", [-7.0, 0.0], [[1.0], np.nan]),
        ("number", [-7.0, 0.0], [[1.0], np.inf]),
    ],
)
def test_a_role_says_which_values_a_field_accepts(role, good, bad):
    class One(ps.Kernel):
        field: jax.Array = ps.kernels.hyperparameter(role, "One field")
        smoothness = 0

        def derivative(self, alpha, beta, x, y):
            return jnp.ones(())

    for value in good:
        np.testing.assert_array_equal(One(value).field, value)
    for value in bad:
        with pytest.raises(InputError, match="One field: expected"):
            One(value)
    with pytest.raises(InputError, match=r"kernel.field|One field"):
        ps.Model(One(1.0), ps.observe(ps.identity, 1.0, at=[0.0])).replace({"kernel.field": bad[0]})


def test_an_unknown_role_is_refused(as_a_user):
    with pytest.raises(InputError, match="role: expected one of length, period"):
        ps.kernels.hyperparameter("lenght")


@pytest.mark.parametrize("as_class", [True, False])
def test_a_length_has_the_bounds_and_starts_of_a_bandwidth(as_class):
    kernels = (ps.RBF, SquaredExponential) if as_class else (ps.RBF(0.7), SquaredExponential(0.7))
    found = ps.choose(model(ps.RBF(5.0)), kernels=dict(zip("ab", kernels, strict=True)), starts=5, **QUIET)
    starts = {}
    for letter, name in (("a", "kernel.bandwidth"), ("b", "kernel.lengthscale")):
        starts[letter] = [descent.start[name] for descent in found.minima[letter].descents]
        assert found.minima[letter].values[name] == pytest.approx(0.33, abs=0.1)
    np.testing.assert_allclose(starts["b"], starts["a"], rtol=1e-12)
    assert starts["b"][0] == pytest.approx(0.6 if as_class else 0.7)  # 0.3 of the extent, or the user's own
    assert min(starts["b"]) < 0.2  # short and long ones, within 0.02 and 10 extents
    assert max(starts["b"]) > 4.0
    assert min(starts["b"]) >= 0.04
    assert max(starts["b"]) <= 20.0
    values = [found.minima[letter].pile.value for letter in "ab"]
    assert values[1] == pytest.approx(values[0], abs=1e-9)


def test_a_number_called_bandwidth_has_no_bounds_of_a_length():
    found = ps.choose(model(ps.RBF()), kernels=[Misnamed(1.0)], starts=6, **QUIET)
    starts = [descent.start["kernel.bandwidth"] for descent in found.minima["Misnamed"].descents]
    assert min(starts) < 0.0  # a number may have any sign


@pytest.mark.parametrize(("length", "check"), [(2.0, "over_smoothed"), (0.03, "under_smoothed")])
def test_smoothing_is_checked_for_every_length(length, check):
    both = ["over_smoothed", "under_smoothed"]
    mine, plain = (
        ps.diagnose(model(kernel(length)), checks=both, progress=False) for kernel in (SquaredExponential, ps.RBF)
    )
    assert [finding.name for finding in mine] == [finding.name for finding in plain] == [check]
    for name in both:
        assert mine[name].value == pytest.approx(plain[name].value, rel=1e-9, abs=1e-9)
    assert "kernel.lengthscale" in mine[check].advice
    assert "kernel.bandwidth" in plain[check].advice


def test_smoothing_is_skipped_without_a_length():
    found = ps.diagnose(model(Misnamed(1.0)), checks=["over_smoothed"], progress=False)
    assert list(found) == []
    assert np.isnan(found["over_smoothed"].value)


def test_elements_of_a_vector_are_named_by_index():
    plane = ps.Model(ps.RBF([0.5, 2.0]), ps.observe(ps.identity, 1.0, at=[[0.0, 1.0]]))
    moved = plane.replace({"kernel.bandwidth[1]": 3.0})
    np.testing.assert_array_equal(moved.parameters["kernel.bandwidth"], [0.5, 3.0])
    np.testing.assert_array_equal(plane.parameters["kernel.bandwidth"], [0.5, 2.0])
    for name in ("kernel.bandwidth[2]", "kernel.bandwidth[0, 0]", "gamma[0]"):
        with pytest.raises(InputError, match="an index into"):
            plane.replace({name: 1.0})
    with pytest.raises(InputError, match="positive"):
        plane.replace({"kernel.bandwidth[0]": -1.0})


def test_grids_are_checked_before_any_work():
    first = model(SquaredExponential(0.4))
    axes = as_grid(first, {"kernel.lengthscale": [0.1, 0.2], "gamma": (1, 2)})
    assert {name: axis.tolist() for name, axis in axes.items()} == {
        "kernel.lengthscale": [0.1, 0.2],
        "gamma": [1.0, 2.0],
    }
    for grid, message in (
        ({}, "a mapping of names"),
        ({"kernel.lengthscale": []}, "at least one value"),
        ({"kernel.lengthscale": 1.0}, "a sequence"),
        ({"kernel.lengthscale": [1.0, 1.0]}, "different values"),
        ({"kernel.lengthscale": [1.0, -1.0]}, "positive"),
        ({"kernel.lengthscal": [1.0]}, "Did you mean 'kernel.lengthscale'"),
    ):
        with pytest.raises(InputError, match=message):
            as_grid(first, grid)
