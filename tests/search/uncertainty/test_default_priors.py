"""Default priors by role: their medians and spreads, and priors given by the user."""

import jax.numpy as jnp
import numpy as np
import pytest

import pilescore as ps
from pilescore.search.space import search_space
from pilescore.search.uncertainty.compute import _priors
from pilescore.search.uncertainty.default_priors import default_priors

from ...models import DX, LINE_X, LINE_Y, NODES, STRIP_X, STRIP_Y, line_model, refused

P = ps.priors
LENGTH, NOISE = 4.0, 100.0
"""The factors of lengths, and of temperatures of data: ten for the deviation of the noise."""


def given_priors(model, given=None, **over):
    """Return the priors of a search over these names, with bounds that do not matter here."""
    bounds = {name.replace("__", "."): pair for name, pair in over.items()}
    return _priors(search_space(model, bounds), given)


def priors_of(model, *names):
    return default_priors(search_space(model, dict.fromkeys(names, (1e-3, 1e3))))


def assert_log_normal(prior, median, factor):
    assert isinstance(prior, P.LogNormal)
    assert (prior.median, prior.factor) == (pytest.approx(median), factor)


# -- By role.


def test_a_length_is_around_half_of_the_extent():
    found = priors_of(line_model(kernel=ps.RBF(0.3)), "kernel.bandwidth")
    # Nodes of the physics are within the data, which reach from 0.05 to 0.95.
    extent = np.ptp(np.concatenate([LINE_X, NODES.points[:, 0]]))
    assert_log_normal(found["kernel.bandwidth"], 0.5 * extent, LENGTH)


def test_lengths_along_axes_have_medians_of_their_own():
    data = ps.observe(ps.identity, STRIP_Y, at=STRIP_X * [1.0, 10.0])
    extent = np.ptp(STRIP_X * [1.0, 10.0], axis=0)
    vector, scalar = (ps.Model(ps.RBF(b), data, gamma=0.1) for b in ([0.3, 1.0], 0.3))
    assert priors_of(vector, "kernel.bandwidth")["kernel.bandwidth"].median == pytest.approx(tuple(0.5 * extent))
    single = priors_of(vector, "kernel.bandwidth[1]", "kernel.bandwidth[0]")
    assert single["kernel.bandwidth[0]"].median == pytest.approx(0.5 * extent[0])
    assert single["kernel.bandwidth[1]"].median == pytest.approx(0.5 * extent[1])
    # One length for both axes: the geometric mean.
    assert priors_of(scalar, "kernel.bandwidth")["kernel.bandwidth"].median == pytest.approx(
        0.5 * np.sqrt(extent.prod())
    )


def test_a_length_with_all_points_at_one_place():
    model = ps.Model(ps.RBF(0.3), ps.observe(ps.identity, [1.0, 2.0], at=[0.5, 0.5]), gamma=0.1)
    assert priors_of(model, "kernel.bandwidth")["kernel.bandwidth"].median == 0.5


def test_the_scale_is_around_the_mean_square_of_the_readings():
    found = priors_of(line_model(), "eta")
    assert_log_normal(found["eta"], np.mean(LINE_Y**2), 10.0)


def test_the_scale_without_direct_readings_follows_from_the_equation():
    # Under the prior, the derivative of an RBF has the variance η/h².
    slopes = ps.observe(DX, [3.0, -4.0, 5.0], at=[0.1, 0.5, 0.9])
    model = ps.Model(ps.RBF(0.5), slopes, gamma=0.1)
    assert priors_of(model, "eta")["eta"].median == pytest.approx(np.mean([9.0, 16.0, 25.0]) * 0.5**2)


@pytest.mark.parametrize("values", [[0.0, 0.0, 0.0], None])
def test_the_scale_without_any_size_is_that_of_the_model(values):
    data = [] if values is None else ps.observe(ps.identity, values, at=[0.0, 0.5, 1.0])
    physics = ps.impose(DX, 0.0, on=NODES, rho=0.1)
    model = ps.Model(ps.RBF(0.5), data, physics, gamma=0.1, eta=7.0)
    assert priors_of(model, "eta")["eta"].median == 7.0


def test_noise_is_around_a_twentieth_of_the_spread_of_its_own_readings():
    data = [
        ps.observe(ps.identity, [1.0, 2.0, 3.0], at=[0.0, 0.1, 0.2]),
        ps.observe(DX, [100.0, 300.0], at=[0.3, 0.4]),
        ps.observe(ps.identity, [5.0, 9.0], at=[0.6, 0.7], gamma=0.3),
    ]
    found = priors_of(ps.Model(ps.RBF(0.5), data, gamma=0.1), "gamma", "data.2.gamma")
    # The variance of the noise is γ/2.
    together = np.std([1.0, 2.0, 3.0, 100.0, 300.0])
    assert_log_normal(found["gamma"], 2 * (0.05 * together) ** 2, NOISE)
    assert_log_normal(found["data.2.gamma"], 2 * (0.05 * 2.0) ** 2, NOISE)


@pytest.mark.parametrize(("values", "size"), [([4.0, 4.0, 4.0], 4.0), ([0.0, 0.0], 1.0), ([-3.0], 3.0)])
def test_noise_of_readings_that_are_all_equal(values, size):
    model = ps.Model(ps.RBF(0.5), ps.observe(ps.identity, values, at=np.arange(float(len(values)))), gamma=0.1)
    assert priors_of(model, "gamma")["gamma"].median == pytest.approx(2 * (0.05 * size) ** 2)


def test_ratios_variances_and_periods():
    kernel = ps.kernels.Periodic(period=0.4, bandwidth=1.0) * ps.kernels.RationalQuadratic(alpha=1.0, bandwidth=0.3)
    model = line_model(kernel=kernel + ps.kernels.Constant(2.0))
    roles = {role: name for name, role in model.roles.items()}
    found = priors_of(model, roles["ratio"], roles["variance"], roles["period"])
    assert found[roles["ratio"]] == P.LogNormal(1.0, 3.0)
    # With the periodic part and its own, the kernel is as large as the readings at half of their mean square.
    assert_log_normal(found[roles["variance"]], np.mean(LINE_Y**2), 10.0)
    extent = np.ptp(np.concatenate([LINE_X, NODES.points[:, 0]]))
    assert_log_normal(found[roles["period"]], 0.5 * extent, LENGTH)
    periodic, usual = (name for name, role in model.roles.items() if role == "length")
    found = priors_of(model, periodic, usual)
    assert_log_normal(found[periodic], 1.0, LENGTH)  # in periods
    assert_log_normal(found[usual], 0.5 * extent, LENGTH)


def test_the_size_of_the_kernel_counts():
    """Only η times the variance of the kernel has the size of the readings."""
    square = np.mean(LINE_Y**2)
    model = line_model(kernel=100.0 * ps.RBF(0.3))
    assert_log_normal(priors_of(model, "eta")["eta"], square / 100.0, 10.0)
    name = next(name for name, role in model.roles.items() if role == "variance")
    assert_log_normal(priors_of(model.replace(eta=4.0), name)[name], square / 4.0, 10.0)
    both = priors_of(model, name, "eta")
    assert_log_normal(both[name], 1.0, 10.0)
    assert_log_normal(both["eta"], square, 10.0)
    wiener = ps.Model(ps.kernels.Wiener(), ps.observe(ps.identity, LINE_Y, at=LINE_X), gamma=0.1)
    assert_log_normal(priors_of(wiener, "eta")["eta"], square / np.mean(LINE_X), 10.0)


def test_variances_of_a_sum_share_the_size():
    model = line_model(kernel=9.0 * ps.RBF(0.3) + 0.1 * ps.Matern(2.5, 1.0))
    names = [name for name, role in model.roles.items() if role == "variance"]
    for prior in priors_of(model, *names).values():
        assert_log_normal(prior, 0.5 * np.mean(LINE_Y**2), 10.0)
    # One that is known leaves the other as it is: how much of the readings it explains is not known.
    assert_log_normal(priors_of(model, names[0])[names[0]], np.mean(LINE_Y**2), 10.0)


def test_lengths_belong_to_the_axes_of_their_part():
    data = ps.observe(ps.identity, STRIP_Y, at=STRIP_X * [1e-3, 10.0])
    extent = np.ptp(STRIP_X * [1e-3, 10.0], axis=0)
    model = ps.Model(ps.RBF(0.3).on(0) * ps.Matern(2.5, 1.0).on(1), data, gamma=0.1)
    names = [name for name, role in model.roles.items() if role == "length"]
    found = priors_of(model, *names)
    for name, each in zip(names, extent, strict=True):
        assert_log_normal(found[name], 0.5 * each, LENGTH)
    turned = ps.Model(ps.kernels.LinearMap(ps.RBF(0.3), [[0.0, 2.0]]), data, gamma=0.1)
    (name,) = (name for name, role in turned.roles.items() if role == "length")
    assert_log_normal(priors_of(turned, name)[name], 0.5 * 2.0 * extent[1], LENGTH)


def test_coefficients_angles_and_temperatures_of_equations_are_uniform():
    assert priors_of(line_model(operator=DX + ps.parameter("k", 2.0)), "k", "rho") == {"k": None, "rho": None}
    data = ps.observe(ps.identity, STRIP_Y, at=STRIP_X)
    kernel = ps.AnisotropicRBF(theta=0.3, s=2.0, bandwidth=0.5)
    found = priors_of(ps.Model(kernel, data, gamma=0.1), "kernel.theta", "kernel.s")
    assert found == {"kernel.theta": None, "kernel.s": P.LogNormal(1.0, 3.0)}


# -- Given by the user.


def test_a_given_prior_replaces_the_default():
    model = line_model(operator=DX + ps.parameter("k", 2.0))
    prior = P.Normal(2.0, 0.3)
    found = given_priors(model, {"k": prior, "eta": "flat"}, k=(-1, 5), eta=(0.1, 10), gamma=(1e-3, 1))
    assert found["k"] is prior
    assert found["eta"] is None
    assert found["gamma"] == default_priors(search_space(model, {"gamma": (1e-3, 1)}))["gamma"]


def test_flat_for_all():
    assert given_priors(line_model(), "flat", eta=(0.1, 10), gamma=(1e-3, 1)) == {"eta": None, "gamma": None}


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"gama": P.Normal(1, 1)}, ["'gama' was not searched", "Did you mean 'gamma'?", "There are: k, gamma"]),
        ({"zzz": "flat"}, ["'zzz' was not searched. There are"]),
        ({"gamma": 3.0}, ["priors['gamma']", "'flat'", "3.0"]),
        ({"gamma": "wide"}, ["priors['gamma']", "'flat'", "wide"]),
        ({"k": P.LogNormal(1.0, 2.0)}, ["priors['k']", "positive bounds", "-1"]),
        ({"gamma": P.Normal([1.0, 2.0], 1.0)}, ["priors['gamma']", "one number"]),
        ({"gamma": P.Smooth(1.0, 1.0, 1.0)}, ["priors['gamma']", "Normal or LogNormal"]),
    ],
)
def test_bad_priors(given, parts):
    with refused(*parts):
        given_priors(line_model(operator=DX + ps.parameter("k", 2.0)), given, k=(-1, 5), gamma=(1e-3, 1))


def test_a_name_of_the_model_that_was_not_searched():
    with refused("'eta' was not searched", "There are: gamma"):
        given_priors(line_model(), {"eta": P.LogNormal(1, 2)}, gamma=(1e-3, 1))


@pytest.mark.parametrize("own", ["kernel.bandwidth", "kernel.bandwidth[0]"])
@pytest.mark.parametrize("searched", ["kernel.bandwidth", "kernel.bandwidth[0]"])
@pytest.mark.parametrize("given", [P.LogNormal(1, 2), "flat"])
def test_a_second_prior_of_the_same_hyperparameter(own, searched, given):
    model = line_model().replace(priors={own: P.LogNormal(0.3, 2)})
    with refused(f"priors['{searched}']", "the model has one"):
        given_priors(model, {searched: given}, **{searched.replace(".", "__"): (0.1, 1)})


def test_a_prior_of_the_model_on_one_element_replaces_the_default_of_the_array():
    data = ps.observe(ps.identity, STRIP_Y, at=STRIP_X)
    model = ps.Model(ps.RBF([0.3, 1.0]), data, gamma=0.1, priors={"kernel.bandwidth[0]": P.LogNormal(0.3, 2)})
    assert given_priors(model, kernel__bandwidth=(0.1, 1)) == {"kernel.bandwidth": None}
    alone = given_priors(model, **{"kernel__bandwidth[1]": (0.1, 1)})["kernel.bandwidth[1]"]
    assert_log_normal(alone, 0.5 * np.ptp(STRIP_X[:, 1]), LENGTH)


def test_priors_of_other_elements_do_not_clash():
    data = ps.observe(ps.identity, STRIP_Y, at=STRIP_X)
    model = ps.Model(ps.RBF([0.3, 1.0]), data, gamma=0.1, priors={"kernel.bandwidth[0]": P.LogNormal(0.3, 2)})
    found = given_priors(model, {"kernel.bandwidth[1]": "flat"}, **{"kernel__bandwidth[1]": (0.1, 1)})
    assert found == {"kernel.bandwidth[1]": None}


def test_a_prior_of_an_array_has_one_element_each():
    data = ps.observe(ps.identity, STRIP_Y, at=STRIP_X)
    model = ps.Model(ps.RBF(jnp.array([0.3, 1.0])), data, gamma=0.1)
    found = given_priors(model, {"kernel.bandwidth": P.LogNormal((0.2, 2.0), 3.0)}, kernel__bandwidth=(0.1, 10))
    assert found["kernel.bandwidth"].median == (0.2, 2.0)
    with refused("priors['kernel.bandwidth'].median", "2"):
        given_priors(model, {"kernel.bandwidth": P.LogNormal((1.0, 1.0, 1.0), 3.0)}, kernel__bandwidth=(0.1, 10))
