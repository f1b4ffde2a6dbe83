"""Diagnoses: what is measured against brute force, and failures that are planted and found."""

import dataclasses
import functools
import pickle

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import pilescore as ps
from pilescore.diagnosis.checks import CHECKS
from pilescore.diagnosis.checks.kernel import Stretched, _exponential, _symmetric, stretched_kernel
from pilescore.diagnosis.findings import Finding, adjusted, ordered
from pilescore.diagnosis.residuals import block_kind, disagreement, residuals_of, without_rows

LINE = ps.Box(x=(0, 1))
(DX,) = ps.partials(LINE)
SQUARE = ps.Box(t=(0, 1), x=(0, 1))
WAVE = 9.0
CHEAP = [name for name in CHECKS if name not in ("ill_suited_kernel", "flat_direction")]


def line(noise=0.05, wave=WAVE, count=40, **options):
    """An oscillation on a line; the equation imposed is that of `wave`."""
    rng = np.random.default_rng(3)
    x = rng.uniform(0, 1, count)
    values = np.sin(WAVE * x) + noise * rng.standard_normal(count)
    chosen = {"gamma": 2 * noise**2, "rho": 1e-3, "kernel": ps.RBF(0.25)} | options
    equation = ps.impose(DX**2 / wave**2 + ps.identity, 0.0, on=LINE.interior(ps.GaussLegendre(24)), name="equation")
    start = ps.dirichlet(0.0, on=LINE.face(x=0)(ps.GaussLegendre(1)), name="start")
    return ps.Model(data=ps.observe(ps.identity, values, at=x), physics=[equation, start], **chosen)


@functools.cache
def plane(theta=0.9, count=60):
    """A wave that is carried across a square."""
    rng = np.random.default_rng(5)
    dt, dx = ps.partials(SQUARE)
    points = rng.uniform(0, 1, (count, 2))
    values = np.sin(30 * (np.sin(theta) * points[:, 0] - np.cos(theta) * points[:, 1])) + 0.05 * rng.standard_normal(
        count
    )
    carried = ps.impose(np.cos(theta) * dt + np.sin(theta) * dx, 0.0, on=SQUARE.interior(ps.GaussLegendre(8)))
    return ps.Model(ps.RBF(0.3), ps.observe(ps.identity, values, at=points), carried, gamma=0.005, rho=1e-3)


def dense(model):
    """The covariance in stacked order."""
    system = ps.posterior(model).system
    lower = np.tril(system.factor.matrix)
    full = lower @ lower.T
    back = np.argsort(system.rows.order)
    return full[np.ix_(back, back)]


@pytest.mark.parametrize("group", ["data", "equation", "conditions"])
def test_a_group_given_all_others_is_a_conditional_of_the_joint_gaussian(group):
    model = line()
    C, y = dense(model), model.values
    found = residuals_of(model)
    a = found.groups[group]
    b = np.setdiff1d(np.arange(len(y)), a)
    gain = np.linalg.solve(C[np.ix_(b, b)], C[np.ix_(b, a)]).T
    errors, covariance = found.predicted(group)
    np.testing.assert_allclose(errors, y[a] - gain @ y[b], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(covariance, C[np.ix_(a, a)] - gain @ C[np.ix_(b, a)], rtol=1e-6, atol=1e-10)


def test_left_out_errors_are_those_of_refits():
    model = line(count=12)
    found = residuals_of(model)
    (block,) = model.data
    for i in (0, 7):
        keep = np.arange(12) != i
        rest = ps.Model(
            model.kernel, ps.observe(ps.identity, block.values[keep], at=block.points[keep]), model.physics,
            model.gamma, model.rho,
        )  # fmt: skip
        post = ps.posterior(rest)
        error = block.values[i] - post.mean(block.points[i : i + 1])[0]
        variance = post.variance(block.points[i : i + 1])[0] + float(model.gamma) / 2
        assert found.left_out[i] == pytest.approx(error, rel=1e-6)
        assert found.scaled[i] == pytest.approx(error / variance**0.5, rel=1e-6)


def test_what_an_equation_is_missed_by_is_relative_to_its_terms():
    model = line(rho=10.0)
    equation = model.physics[0]
    post, at, w = ps.posterior(model), equation.points, equation.weights
    terms = [post.mean(at, DX**2) / WAVE**2, post.mean(at)]
    squares = w @ post.mean(at, equation.operator) ** 2 / sum(w @ term**2 for term in terms)
    assert residuals_of(model).equation_mismatch() == pytest.approx(squares**0.5, rel=1e-8)


def test_a_smooth_difference_gains_what_the_densities_say():
    model = line(wave=7.0)
    found = residuals_of(model)
    rows = found.groups["data"]
    errors, covariance = found.predicted("data")
    noise, x = model.gamma / 2, model.data[0].points[:, 0]
    known = covariance - noise * np.eye(len(rows))
    extent = np.ptp(x)

    def energy(log_noise, log_size=None, length=1.0):
        total = known + np.exp(log_noise) * np.eye(len(rows))
        if log_size is not None:
            total = total + np.exp(log_size) * np.exp(-0.5 * ((x[:, None] - x) / (length * extent)) ** 2)
        return -scipy.stats.multivariate_normal(np.zeros(len(x)), total).logpdf(errors)

    grid = np.linspace(-9, 2, 45)
    plain = min(energy(a) for a in grid)
    smooth = min(energy(a, b, length) for a in grid[::2] for b in grid[::2] for length in (0.1, 0.3, 1.0, 3.0))
    answer = disagreement(found, "data")
    assert answer.gain > 20
    assert answer.gain == pytest.approx(plain - smooth, abs=0.5)  # the grid is coarse
    assert answer.share > 0.5


def test_kinds_of_blocks():
    square = ps.Box(x=(0, 1), y=(0, 1))
    rule = ps.GaussLegendre(3)
    left, right = square.face(x=0)(rule), square.face(x=1)(rule)
    flat = ps.domains.nodes_at(np.random.default_rng(0).uniform(0, 1, (4, 2)))
    model = ps.Model(
        ps.RBF(),
        ps.observe(ps.identity, 0.0, at=[[0.1, 0.2]]),
        [
            ps.impose(ps.laplacian(square), 0.0, on=square.interior(rule)),
            ps.dirichlet(0.0, on=square.boundary(rule)),
            ps.impose(ps.laplacian(square), 0.0, on=flat),
            ps.impose(ps.identity, 0.0, on=flat),
            *ps.periodic(left, right),
        ],
    )
    kinds = [block_kind(block, model) for block in model.blocks]
    assert kinds[:5] == ["data", "equation", "conditions", "equation", "conditions"]
    assert set(kinds[5:]) == {"conditions"}


def test_a_stretched_kernel_is_one_with_another_metric():
    shape = np.array([0.7, -0.4])
    A = scipy.linalg.expm(np.array([[0.7, -0.4], [-0.4, -0.7]]))
    np.testing.assert_allclose(_exponential(jnp.asarray(shape), 2), A, rtol=1e-12)
    assert np.linalg.det(A) == pytest.approx(1.0)
    five = np.array([0.3, 0.1, -0.2, 0.5, 0.4])
    symmetric = np.asarray(_symmetric(jnp.asarray(five), 3))
    assert np.trace(symmetric) == pytest.approx(0.0)
    np.testing.assert_allclose(_exponential(jnp.asarray(five), 3), scipy.linalg.expm(symmetric), rtol=1e-12)
    h = np.array([0.5, 0.8])
    full = ps.kernels.FullCovarianceRBF(np.linalg.inv(A @ np.diag(h**-2) @ A))
    stretched = Stretched(ps.RBF(h), shape)
    x, y = (0.3, 0.1), (-0.2, 0.5)
    for alpha, beta in (((0, 0), (0, 0)), ((2, 0), (0, 1)), ((1, 1), (2, 0))):
        assert float(stretched.derivative(alpha, beta, x, y)) == pytest.approx(
            float(full.derivative(alpha, beta, x, y))
        )
    both = stretched_kernel(2.0 * ps.RBF(0.5) + ps.Matern(2.5, 0.5), np.zeros(2))
    assert float(both(x, y)) == pytest.approx(float((2.0 * ps.RBF(0.5) + ps.Matern(2.5, 0.5))(x, y)))


def test_a_healthy_model_is_healthy():
    found = ps.diagnose(line(), score="joint", progress=False)
    assert found.healthy, found
    assert {each.name for each in found.checked} == set(CHECKS)
    assert tuple(CHECKS) == ps.diagnosis.CHECK_NAMES
    assert all(each.seconds >= 0 for each in found.checked)
    assert found["ill_suited_kernel"].status == "skipped"
    assert "at_bound" not in found


def test_a_model_is_diagnosed_by_the_default_score_of_searches():
    """All physics is zero, so the data are scored given it. By that score, shorter lengths are better."""
    found = ps.diagnose(line(), progress=False)
    assert not found.healthy
    assert {each.name for each in found.findings} == {"over_smoothed", "prior_scale"}
    gain = found["over_smoothed"].value
    tried = (ps.pile(line(kernel=ps.RBF(0.25 * factor)), "given_physics").free_energy for factor in (0.5, 0.25))
    assert gain >= ps.pile(line(), "given_physics").free_energy - min(tried) > 3.0
    assert found["over_smoothed"].value == ps.diagnose(line(), score="given_physics")["over_smoothed"].value
    best = ps.minimize(line(), {"kernel.bandwidth": (0.05, 5.0)})
    assert ps.diagnose(best, progress=False).healthy
    assert repr(found).startswith("Diagnosis: ")


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("collapsed", lambda: line(gamma=1e4, rho=1e3)),
        ("overfit", lambda: line(gamma=1e-7, kernel=ps.RBF(0.03), rho=1e3)),
        ("over_smoothed", lambda: line(kernel=ps.RBF(3.0))),
        ("under_smoothed", lambda: line(kernel=ps.RBF(0.02))),
        ("physics_against_data", lambda: line(wave=7.0)),
        ("wrong_equation", lambda: line(wave=7.0)),
        ("miscalibrated", lambda: line(gamma=2e-6)),
        ("ill_conditioned", lambda: line(gamma=1e-11, rho=1e-11, noise=1e-9, kernel=ps.RBF(1.0))),
    ],
)
def test_planted_failures_are_found(name, model):
    found = ps.diagnose(model(), checks=[name], progress=False)
    assert name in found, found[name]
    assert found[name].meaning.endswith(".")
    assert found[name].advice


def test_an_outlier_is_named():
    model = line()
    (block,) = model.data
    moved = ps.observe(ps.identity, block.values + 0.7 * (np.arange(40) == 11), at=block.points, name="sensor")
    found = ps.diagnose(dataclasses.replace(model, data=(moved,)), checks=["outliers"], progress=False)
    (bad,) = found["outliers"].details["outliers"]
    assert (bad["block"], bad["index"]) == ("sensor", 11)
    assert bad["predicted"] == pytest.approx(block.values[11], abs=0.2)
    assert "sensor[11] is far" in found["outliers"].meaning
    assert "outliers" not in ps.diagnose(model, checks=["outliers"], progress=False)


def test_an_outlier_does_not_pass_for_a_contradiction():
    model = line()
    (block,) = model.data
    averages = ps.model.Functional(ps.identity, [[0.2], [0.4], [0.6]], np.tril(np.ones((3, 3))) / 3, np.ones(3))
    rough = ps.observe(averages, [0.3, 0.1, 0.2], gamma=5.0)
    bad = ps.observe(ps.identity, block.values + 0.7 * (np.arange(40) == 11), at=block.points)
    both = dataclasses.replace(model, data=(bad, rough))
    fewer = without_rows(both, np.array([11, 41]))
    keep = np.arange(40) != 11
    matrix = averages.matrix[[0, 2]]
    wanted = ps.Model(
        model.kernel,
        [
            ps.observe(ps.identity, block.values[keep], at=block.points[keep]),
            ps.observe(ps.model.Functional(ps.identity, averages.points, matrix, np.ones(2)), [0.3, 0.2], gamma=5.0),
        ],
        model.physics,
        model.gamma,
        model.rho,
    )
    assert ps.pile(fewer).value == pytest.approx(ps.pile(wanted).value, rel=1e-10)
    names = ["physics_against_data", "boundary_against_interior"]
    with_it, without_it = (
        ps.diagnose(dataclasses.replace(model, data=(each,)), checks=names) for each in (bad, wanted.data[0])
    )
    for name in names:
        assert with_it[name].value == pytest.approx(without_it[name].value, abs=1e-6)


def test_a_wrong_condition_is_found():
    model = line()
    equation, start = model.physics
    wrong = ps.dirichlet(0.8, on=start.nodes)
    found = ps.diagnose(dataclasses.replace(model, physics=(equation, wrong)), checks=["boundary_against_interior"])
    assert "boundary_against_interior" in found
    assert "boundary_against_interior" not in ps.diagnose(model, checks=["boundary_against_interior"])


@pytest.mark.slow
def test_a_kernel_that_does_not_suit_is_found_with_its_direction():
    model = plane()
    found = ps.diagnose(model, checks=["ill_suited_kernel"], progress=False)["ill_suited_kernel"]
    assert found.status == "fired"
    along = np.array(found.details["direction"])
    assert abs(along @ [np.cos(0.9), np.sin(0.9)]) > 0.98  # along the characteristics
    open_ = {"gamma": (1e-4, 1.0), "rho": (1e-6, 1.0), "eta": (0.01, 100.0)}
    lengths = {"kernel.bandwidth": (0.05, 5.0)}
    turned = dataclasses.replace(model, kernel=ps.AnisotropicRBF(0.9, 0.5, 0.3))
    before = ps.minimize(model, open_ | lengths, score="given_physics", search=ps.SearchOptions(curvature=False))
    after = ps.minimize(
        turned,
        open_ | lengths | {"kernel.s": (0.05, 1.0)},
        score="given_physics",
        search=ps.SearchOptions(curvature=False),
    )
    gain = before.pile.free_energy - after.pile.free_energy
    assert gain > 5
    assert found.details["gain"] > 0.5 * gain  # by a short search
    suited = ps.diagnose(after.model, checks=["ill_suited_kernel"], progress=False)["ill_suited_kernel"]
    assert suited.status == "fine"


@pytest.mark.slow
def test_a_kernel_is_checked_for_an_exact_equation_too():
    model = dataclasses.replace(plane(), rho=None)
    found = ps.diagnose(model, checks=["ill_suited_kernel"], progress=False)["ill_suited_kernel"]
    assert found.status == "fine"  # given the exact equation, its draws follow the characteristics as they are
    assert found.details["data_free_gain"] > 30


def test_a_finer_rule_is_that_of_the_nodes():
    x = np.linspace(0, 1, 15)
    data = ps.observe(ps.identity, np.exp(-30 * (x - 0.5) ** 2), at=x, gamma=1e-3)
    blocks = [
        ps.impose(DX**2, lambda p: 3600 * (p[0] - 0.5) ** 2 - 60, on=LINE.interior(ps.GaussLegendre(n))) for n in (4, 6)
    ]
    coarse, fine = (ps.Model(ps.RBF(0.12), data, block, rho=1e-3) for block in blocks)
    found = ps.diagnose(coarse, checks=["unresolved_quadrature"])["unresolved_quadrature"]
    wanted = [ps.pile(each, score="given_physics").free_energy for each in (coarse, fine)]
    np.testing.assert_allclose(found.details["energies"], wanted, rtol=1e-9)
    assert found.status == ("fired" if abs(wanted[1] - wanted[0]) > 3 else "fine")
    alone = ps.diagnose(dataclasses.replace(fine, data=()), checks=["unresolved_quadrature"])
    assert alone["unresolved_quadrature"].value > 0


def test_directions_that_the_evidence_cannot_tell():
    model = line(kernel=2.0 * ps.RBF(0.25))
    found = ps.diagnose(model, checks=["flat_direction"])["flat_direction"]
    assert found.status == "fired"
    assert found.value < 1e-3
    parts = found.details["direction"]
    assert parts["kernel.variance"] == pytest.approx(-parts["eta"], rel=1e-3)  # only their product counts
    fixed = ps.diagnose(line(), checks=["flat_direction"])["flat_direction"]
    assert fixed.status == "fine"


def test_an_undetermined_prior_variance_alone_is_harmless():
    few = ps.Model(ps.RBF(0.3), ps.observe(ps.identity, [1.4], at=[0.0], noise=1.0))
    found = ps.diagnose(few, checks=["flat_direction"], over={"eta": (1e-3, 1e3)})["flat_direction"]
    assert found.value < 1.0
    assert found.status == "fine"
    both = ps.diagnose(few, checks=["flat_direction"], over={"kernel.bandwidth": (0.1, 1)})["flat_direction"]
    assert both.status == "fired"


def test_a_temperature_without_effect():
    far = ps.impose(ps.identity, 0.0, on=ps.domains.nodes_at([[30.0]]), rho=1e-9)
    model = line()
    found = ps.diagnose(
        ps.Model(model.kernel, model.data, [*model.physics, far], model.gamma, model.rho), checks=["idle_temperature"]
    )["idle_temperature"]
    assert found.status == "fired"
    assert "physics.2.rho has no effect" in found.meaning
    assert "idle_temperature" not in ps.diagnose(model, checks=["idle_temperature"])


def test_bounds_are_those_given_or_those_of_the_search():
    over = {"kernel.bandwidth": (0.25, 5.0), "gamma": (1e-6, 1.0)}
    found = ps.diagnose(line(), over=over, checks=["at_bound", "over_smoothed"])
    assert found["at_bound"].details["at_bounds"] == {"kernel.bandwidth": "lower"}
    assert found["at_bound"].severity == "warning"
    assert "no smooth function fits" in found["at_bound"].meaning
    assert found["over_smoothed"].value == 0.0  # shorter ones are not allowed
    best = ps.minimize(line(gamma=0.5), over={"gamma": (0.4, 1.0)})
    quiet = ps.diagnose(best, checks=["at_bound", "flat_direction"])
    assert quiet["at_bound"].details["at_bounds"] == {"gamma": "lower"}
    assert quiet["at_bound"].severity == "warning"
    assert "more precise than the bounds allow" in quiet["at_bound"].meaning
    assert quiet["flat_direction"].status == "skipped"
    noisy = ps.diagnose(line(noise=3.0, gamma=1.0), over={"gamma": (1e-3, 1.0)}, checks=["at_bound"])["at_bound"]
    assert noisy.severity == "warning"
    assert "takes the data for noise" in noisy.meaning
    assert ps.diagnose(line(), checks=["at_bound"])["at_bound"].status == "skipped"


def units(scale):
    """Readings of the solution and of its slope, and two conditions, one block of each in other units."""
    model = line(wave=8.2, count=20)
    (block,), (equation, start) = model.data, model.physics
    x = np.linspace(0.05, 0.95, 9)
    slopes = ps.observe(scale * DX, scale * WAVE * np.cos(WAVE * x), at=x, gamma=scale**2 * 0.3)
    end = ps.impose(scale * DX, scale * WAVE * np.cos(WAVE), on=LINE.face(x=1)(ps.GaussLegendre(1)), rho=scale**2)
    again = ps.impose(scale * (DX**4 / 9**4 - ps.identity), 0.0, on=equation.nodes, rho=0.1 * scale**2)
    return ps.Model(model.kernel, [block, slopes], [equation, start, end, again], model.gamma, model.rho)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_units_of_one_block_do_not_matter(scale):
    names = ["collapsed", "overfit", "physics_against_data", "boundary_against_interior", "outliers", "miscalibrated"]
    first, second = (ps.diagnose(units(each), checks=names) for each in (1.0, scale))
    for name in names:
        assert second[name].value == pytest.approx(first[name].value, rel=1e-3, abs=1e-3), name


def test_a_block_of_small_values_has_not_collapsed():
    model = line()
    near_zero = ps.observe(ps.identity, [1e-6], at=[[np.pi / 9]], gamma=float(model.gamma))
    found = ps.diagnose(dataclasses.replace(model, data=(*model.data, near_zero)), checks=["collapsed"])
    assert found["collapsed"].value > 0.9


def test_smooth_data_without_noise_have_no_outliers():
    x = np.linspace(0, 1, 30)
    model = ps.Model(ps.RBF(0.3), ps.observe(ps.identity, np.exp(x), at=x), gamma=1e-3)
    assert "outliers" not in ps.diagnose(model, checks=["outliers"])


def test_few_data_are_not_overfitted():
    model = ps.Model(ps.RBF(0.3), ps.observe(ps.identity, [1.0], at=[[0.5]]), gamma=0.01)
    assert ps.diagnose(model, checks=["overfit"])["overfit"].status == "skipped"


def test_a_minimum_is_judged_by_the_score_it_was_found_by():
    over = {"kernel.bandwidth": (0.05, 2.0), "gamma": (1e-3, 1.0)}
    best = ps.minimize(line(), over, score="given_physics")
    assert best.score == ps.Score("physics")
    found = ps.diagnose(best, checks=["under_smoothed", "over_smoothed"])
    assert len(found) == 0
    profiled = ps.minimize(line(gamma=0.5), over={"gamma": (0.01, 1.0)}, score="profiled")
    bounds = ps.diagnose(profiled, over={"gamma": (0.01, 1.0)}, checks=["at_bound"])["at_bound"]
    assert bounds.details["at_bounds"] == dict(profiled.at_bounds)


def test_a_model_that_cannot_be_factored_says_why():
    with pytest.raises(ps.errors.NotPositiveDefiniteError, match="eigenvalues range from"):
        ps.diagnose(line(gamma=1e-17, rho=1e-17, kernel=ps.RBF(3.0)), checks=["idle_temperature"])


def test_bounds_of_what_need_not_be_positive_and_of_elements():
    beta = ps.parameter("beta", -1.0)
    x = np.linspace(0, 1, 12)
    model = ps.Model(
        ps.RBF(0.3),
        ps.observe(ps.identity, np.exp(-x), at=x),
        ps.impose(DX + beta * ps.identity, 0.0, on=LINE.interior(ps.GaussLegendre(6))),
        gamma=1e-4,
        rho=1.0,
    )
    found = ps.diagnose(model, over={"beta": (0.1, 2.0)}, checks=["at_bound", "idle_temperature"])
    assert found["at_bound"].details["at_bounds"] == {"beta": "lower"}  # beyond it
    assert found["idle_temperature"].status == "skipped"
    vector = dataclasses.replace(plane(), kernel=ps.RBF([0.1, 2.0]))
    held = {"kernel.bandwidth": ([0.1, 0.01], [2.0, 5.0])}
    gain = ps.diagnose(vector, over=held, checks=["over_smoothed"])["over_smoothed"]
    shorter = vector.replace({"kernel.bandwidth[1]": 0.5})  # the first may not be shorter
    assert gain.value >= ps.pile(vector).free_energy - ps.pile(shorter).free_energy > 0


def test_functions_that_fail_at_other_nodes_and_models_that_are_pickled():
    segment = ps.Box(x=(-1, 1))
    (d,) = ps.partials(segment)
    block = ps.impose(d**2, lambda p: 1 / p[0], on=segment.interior(ps.GaussLegendre(6)))
    model = ps.Model(ps.RBF(0.5), physics=block, rho=1.0)
    found = ps.diagnose(model, checks=["unresolved_quadrature"])["unresolved_quadrature"]
    assert found.status == "skipped"
    assert "finer rule" in found.meaning
    again = pickle.loads(pickle.dumps(model))
    assert ps.pile(again).value == ps.pile(model).value
    assert again.physics[0].source is None


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(scale=st.floats(0.01, 100.0), seed=st.integers(0, 100))
def test_units_and_order_do_not_matter(scale, seed):
    model = line(wave=8.0)
    (block,) = model.data
    order = np.random.default_rng(seed).permutation(block.size)
    data = ps.observe(ps.identity, scale * block.values[order], at=block.points[order])
    square = scale**2
    other = ps.Model(model.kernel, data, model.physics, square * model.gamma, square * model.rho, square)
    names = ["collapsed", "overfit", "physics_against_data", "outliers", "miscalibrated", "under_smoothed"]
    first, second = (ps.diagnose(each, checks=names) for each in (model, other))
    for name in names:
        # The draws that it is compared with belong to rows in their order.
        digits = 0.3 if name == "physics_against_data" else 1e-4
        assert second[name].value == pytest.approx(first[name].value, rel=1e-4, abs=digits), name
        assert first[name].status == second[name].status


def made(name, severity="warning", value=2.0, status="fired", p_value=None):
    return Finding(name, status, severity, value, 1.0, False, "it is", "<b>bad</b>.", "less.", {}, p_value)


def test_p_values_are_adjusted_as_holm_does():
    p_values = {"outliers": 0.004, "miscalibrated": 0.02, "overfit": 0.019, "collapsed": 0.3}
    found = [made(name, p_value=p) for name, p in p_values.items()]
    found += [made("flat_direction", "note", p_value=1e-9), made("ill_conditioned")]
    after = {each.name: each for each in adjusted(found, 0.05)}
    wanted = {"outliers": 4 * 0.004, "overfit": 3 * 0.019, "miscalibrated": 3 * 0.019, "collapsed": 0.3}
    assert {name: after[name].adjusted for name in p_values} == pytest.approx(wanted)
    assert {name for name, each in after.items() if each.status == "fired"} == {
        "outliers", "flat_direction", "ill_conditioned",
    }  # fmt: skip
    assert "by chance" in after["overfit"].meaning
    assert after["flat_direction"].adjusted is None
    assert {each.status for each in adjusted(found, 0.5)} == {"fired"}


def test_the_level_is_a_probability():
    with pytest.raises(ps.errors.InputError, match=r"level: .*probability"):
        ps.diagnose(line(), level=1.5)


def test_data_alone_and_physics_alone():
    model = line()
    data = ps.diagnose(dataclasses.replace(model, physics=()), checks=CHEAP)
    assert {"physics_against_data", "boundary_against_interior", "unresolved_quadrature"} <= {
        each.name for each in data.checked if each.status == "skipped"
    }
    physics = ps.diagnose(dataclasses.replace(model, data=()), checks=CHEAP)
    assert {"overfit", "outliers", "miscalibrated", "collapsed"} <= {
        each.name for each in physics.checked if each.status == "skipped"
    }


def test_findings_are_ordered_and_shown_safely():
    found = ps.diagnosis.Diagnosis(
        ordered(
            [
                made("at_bound", "note", 9.0),
                made("outliers", "warning", 2.0),
                made("miscalibrated", "warning", 5.0),
                made("overfit", "failure", 1.5),
                made("collapsed", "failure", 0.0, "fine"),
            ]
        )
    )
    assert [each.name for each in found] == ["overfit", "miscalibrated", "outliers", "at_bound"]
    assert (len(found), bool(found), found.healthy) == (4, True, False)
    assert "1 failure, 2 warnings, 1 note; 1 check is fine" in found.summary
    page = found._repr_html_()
    assert "&lt;b&gt;bad" in page
    assert "<b>bad" not in page
    assert "FAILURE overfit: it is 1.5 (fires above 1)" in repr(found)
    with pytest.raises(KeyError, match="no check 'nothing'"):
        found["nothing"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"checks": ["outlier"]}, "checks: .*outlier.*did you mean 'outliers'"),
        ({"checks": []}, "checks: .*at least one"),
        ({"over": {"kernel.bandwith": (1, 2)}}, "kernel.bandwith"),
    ],
)
def test_bad_input_is_named(arguments, words):
    with pytest.raises(ps.errors.InputError, match=words):
        ps.diagnose(**({"model": line()} | arguments))
