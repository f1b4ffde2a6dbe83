"""Where to measure next, against models fitted again with each reading and against conditional normal distributions."""

import dataclasses
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import pilescore as ps
from pilescore.inference import ModelMixture, NextPoints, WeightedModel
from pilescore.inference.next_points import _not_negative
from tests.models import DX, LINE, LINE_X, LINE_Y, NODES, decay, line_model, refused, sine, unit_nodes

WHERE = np.array([-0.1, 0.07, 0.33, 0.52, 0.8, 1.06, 1.31])
TARGETS = np.linspace(-0.2, 1.4, 5)
MODULE = sys.modules["pilescore.inference.next_points"]  # the package has a function of this name


@dataclasses.dataclass
class Given(ModelMixture):
    parts: list

    @property
    def weighted_models(self):
        return self.parts


def mixed(model, rows, weights):
    pairs = zip(weights, rows, strict=True)
    return ps.posterior(Given([WeightedModel(weight, model.replace(row), row) for weight, row in pairs]))


def decays():
    rows = [{"rate": 0.7, "kernel.bandwidth": 0.5}, {"rate": 1.3, "kernel.bandwidth": 0.7}]
    return mixed(decay(), [*rows, {"rate": 1.9, "kernel.bandwidth": 1.1}], (0.2, 0.5, 0.3))


def with_reading(model, point, operator, noise):
    """Return the model with one more measurement. Its value does not matter to variances."""
    return model.replace(data=[*model.data, ps.observe(operator, [0.3], at=np.atleast_2d(point), noise=noise)])


def refitted(model, candidates, count, of, targets, weights, operator, noise):
    """Return the indices and variances of the best readings by fitting the model again with each of them."""
    chosen, variances = [], [weights @ ps.posterior(model).variance(targets, of)]
    everywhere = None
    for _ in range(count):
        fitted = [with_reading(model, point, operator, noise) for point in candidates]
        after = np.array([weights @ ps.posterior(each).variance(targets, of) for each in fitted])
        everywhere = after if everywhere is None else everywhere
        best = min((i for i in range(len(candidates)) if i not in chosen), key=lambda i: after[i])
        chosen.append(best)
        variances.append(after[best])
        model = fitted[best]
    return chosen, np.array(variances), variances[0] - everywhere


def square():
    box = ps.Box(x=(-1, 1), y=(0, 1))
    rng = np.random.default_rng(4)
    points = rng.uniform([-1, 0], [1, 1], (6, 2))
    edge = ps.dirichlet(0.0, on=box.face(x=1)(ps.GaussLegendre(4)))
    source = ps.impose(ps.laplacian(box), 1.0, on=box.interior(ps.GaussLegendre(4)), noise=0.5)
    model = ps.Model(ps.RBF([0.8, 0.5]), ps.observe(ps.identity, rng.standard_normal(6), points), [source, edge], 0.02)
    return model, box, rng.uniform([-1, 0], [1, 1], (8, 2))


EXACT = line_model(operator=DX**2 + ps.identity, rho=None)
SQUARE, SQUARE_BOX, SQUARE_WHERE = square()
NODES_2D = SQUARE_BOX.interior(ps.GaussLegendre(3))
SLOPES = ps.Model(ps.Matern(2.5, 0.4), ps.observe(ps.identity, LINE_Y, LINE_X), gamma=0.02)


# -- Against models fitted again.


@pytest.mark.parametrize(
    ("model", "candidates", "of", "at", "operator", "noise"),
    [
        (line_model(), WHERE, ps.identity, None, ps.identity, 0.1),
        (line_model(), WHERE, ps.identity, TARGETS, ps.identity, 0.4),
        (line_model(), WHERE, DX, TARGETS, ps.identity, 0.1),
        (SLOPES, WHERE, ps.identity, TARGETS, DX, 0.3),
        (SLOPES, WHERE, 2 * DX + ps.identity, [0.9], DX, 0.05),
        (EXACT, WHERE, ps.identity, TARGETS, ps.identity, 0.1),
        (EXACT, WHERE, DX, None, ps.identity, 0.3),
        (SQUARE, SQUARE_WHERE, ps.identity, NODES_2D, ps.identity, 0.1),
        (SQUARE, NODES_2D, ps.partials(SQUARE_BOX)[1], SQUARE_WHERE[:3], ps.identity, 0.2),
    ],
    ids=["f", "targets", "slope", "by slopes", "sum", "exact", "slope of exact", "square", "slope on square"],
)
def test_reductions_are_those_of_models_fitted_again(model, candidates, of, at, operator, noise):
    found = ps.next_points(ps.posterior(model), candidates, 3, of=of, at=at, operator=operator, noise=noise)
    points = getattr(candidates, "points", candidates)
    targets = points if at is None else getattr(at, "points", at)
    weights = getattr(at, "weights", np.ones(len(targets)))
    weights = weights / weights.sum()
    chosen, variances, reductions = refitted(model, points, 3, of, targets, weights, operator, noise)
    assert found.indices.tolist() == chosen
    np.testing.assert_allclose(found.variances, variances, rtol=1e-6)
    np.testing.assert_allclose(found.reductions, reductions, rtol=1e-6, atol=1e-8 * variances[0])
    np.testing.assert_array_equal(found.points, np.reshape(points, (len(points), -1))[chosen])
    np.testing.assert_allclose(found.stds**2, found.variances, rtol=1e-14)


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.integers(1, 5), st.floats(0.02, 2.0))
def test_variances_are_those_given_all_readings_at_once(seed, count, noise):
    rng = np.random.default_rng(seed)
    where, targets, post = rng.uniform(-0.2, 1.2, 9), rng.uniform(-0.2, 1.2, 4), ps.posterior(line_model())
    found = ps.next_points(post, where, count, of=DX, at=targets, noise=noise)
    joint, cross = post.covariance(where), post.covariance(where, other_points=targets, other_operator=DX)
    for k in range(count + 1):
        taken = found.indices[:k]
        explained = np.sum(
            cross[taken] * np.linalg.solve(joint[np.ix_(taken, taken)] + noise**2 * np.eye(k), cross[taken]), axis=0
        )
        expected = np.mean(post.variance(targets, DX) - explained)
        np.testing.assert_allclose(found.variances[k], expected, rtol=1e-8)
    assert len(set(found.indices.tolist())) == count
    assert np.all(np.diff(found.variances) <= 0)
    assert np.all(np.diff(np.diff(found.variances)) >= 0) or count > 2  # of two readings the first tells more
    np.testing.assert_allclose(found.reductions.max(), found.variances[0] - found.variances[1], rtol=1e-9)


def test_a_point_listed_twice_may_be_measured_twice():
    post = ps.posterior(line_model())
    twice = ps.next_points(post, [0.4, 0.4], 2, at=[0.4, 0.9], noise=0.3)
    once = ps.next_points(post, [0.4], at=[0.4, 0.9], noise=0.3 / np.sqrt(2))  # the mean of two readings
    assert twice.indices.tolist() == [0, 1]
    np.testing.assert_allclose(twice.variances[2], once.variances[1], rtol=1e-10)


def test_the_order_of_candidates_and_targets_does_not_matter():
    post = ps.posterior(line_model())
    found = ps.next_points(post, WHERE, 4, of=DX, at=TARGETS)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(WHERE))
        other = ps.next_points(post, WHERE[order], 4, of=DX, at=rng.permutation(TARGETS))
        np.testing.assert_array_equal(other.points, found.points)
        np.testing.assert_array_equal(order[other.indices], found.indices)
        np.testing.assert_allclose(other.variances, found.variances, rtol=1e-10)
        np.testing.assert_allclose(other.reductions, found.reductions[order], rtol=1e-9)


def test_the_first_of_equally_good_candidates_is_taken():
    post = ps.posterior(ps.Model(ps.RBF(0.3), ps.observe(ps.identity, [1.0], at=[0.0], noise=0.1)))
    for where in ([-0.4, 0.4, 0.2], [0.4, -0.4, 0.2]):
        assert ps.next_points(post, where, 1, at=[-0.6, 0.6]).indices.tolist() == [0]
    far = ps.next_points(post, [1e3, 2e3, 3e3], 2, at=[0.5])  # they tell nothing
    assert far.indices.tolist() == [0, 1]
    assert far.variances[0] == far.variances[2]


def test_nothing_depends_on_how_much_is_computed_at_a_time(monkeypatch):
    post = ps.posterior(SQUARE)
    whole = ps.next_points(post, SQUARE_WHERE, 4, at=NODES_2D)
    monkeypatch.setattr(MODULE, "STRIP_BYTES", 8.0 * 150)
    parts = ps.next_points(post, SQUARE_WHERE, 4, at=NODES_2D)
    np.testing.assert_array_equal(parts.indices, whole.indices)
    np.testing.assert_allclose(parts.variances, whole.variances, rtol=1e-10)


def test_weights_are_those_of_the_nodes():
    post = ps.posterior(line_model())
    weighted = ps.next_points(post, WHERE, 2, at=unit_nodes([0.2, 0.9], [1.0, 3.0]))
    repeated = ps.next_points(post, WHERE, 2, at=[0.2, 0.9, 0.9, 0.9])
    np.testing.assert_array_equal(weighted.indices, repeated.indices)
    np.testing.assert_allclose(weighted.variances, repeated.variances, rtol=1e-10)
    integral = ps.next_points(post, WHERE, at=LINE.interior(ps.GaussLegendre(30))).variances[0]
    fine = (np.arange(4000) + 0.5) / 4000
    np.testing.assert_allclose(integral, np.mean(post.variance(fine)), rtol=1e-6)
    nodes = LINE.interior(ps.GaussLegendre(6))
    np.testing.assert_array_equal(
        ps.next_points(post, nodes, 2).variances, ps.next_points(post, nodes.points, 2, at=nodes).variances
    )


@pytest.mark.parametrize("solver", ["low_rank", ps.solvers.LowRank(tolerance=1e-9)], ids=["default", "tight"])
def test_other_solvers_choose_the_same_points(solver):
    model = sine(gamma=0.1)
    dense, other = (ps.posterior(model.replace(solver=each)) for each in ("dense", solver))
    where = np.linspace(-0.3, 1.2, 11)
    first, second = (ps.next_points(post, where, 3, at=TARGETS) for post in (dense, other))
    np.testing.assert_array_equal(first.indices, second.indices)
    np.testing.assert_allclose(first.variances, second.variances, rtol=1e-4)


def test_each_candidate_may_have_its_own_noise():
    post = ps.posterior(line_model())
    noises = np.linspace(0.5, 0.05, len(WHERE))
    found = ps.next_points(post, WHERE, at=TARGETS, noise=noises)
    for i, noise in enumerate(noises):
        one = ps.next_points(post, WHERE, at=TARGETS, noise=noise)
        np.testing.assert_allclose(found.reductions[i], one.reductions[i], rtol=1e-13)


# -- Mixtures.


def test_one_model_gives_the_answer_of_its_posterior():
    model = line_model()
    plain = ps.next_points(ps.posterior(model), WHERE, 3, of=DX, at=TARGETS)
    averaged = ps.next_points(mixed(model, [{"gamma": 0.02}], [1.0]), WHERE, 3, of=DX, at=TARGETS)
    np.testing.assert_array_equal(plain.indices, averaged.indices)
    np.testing.assert_array_equal(plain.variances, averaged.variances)


def total_moments(post, points):
    """Return the covariance of `rate` and of the values at points, over all models, from their own moments."""
    models, weights = post.models, post.weights
    posts = [ps.posterior(model) for model in models]
    rates = np.array([model.parameters["rate"] for model in models])
    rows = [np.concatenate([[rate], p.mean(points)]) for rate, p in zip(rates, posts, strict=True)]
    total = np.cov(np.array(rows).T, aweights=weights, ddof=0)
    for weight, each in zip(weights, posts, strict=True):
        total[1:, 1:] += weight * each.covariance(points)
    return total


def best_linear(total, of, taken, noise):
    """Return the variance of one entry after readings of others, by the best linear estimate."""
    taken = np.asarray(taken, dtype=int) + 1
    inside = total[np.ix_(taken, taken)] + noise**2 * np.eye(len(taken))
    return total[of, of] - total[of, taken] @ np.linalg.solve(inside, total[taken, of])


@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_a_hyperparameter_is_updated_by_the_best_linear_estimate(noise):
    post = decays()
    found = ps.next_points(post, WHERE, 3, of="rate", noise=noise)
    total = total_moments(post, WHERE)
    chosen = []
    for k in range(3):
        rest = [i for i in range(len(WHERE)) if i not in chosen]
        after = [best_linear(total, 0, [*chosen, i], noise) for i in rest]
        if k == 0:
            np.testing.assert_allclose(found.reductions, total[0, 0] - np.array(after), rtol=1e-8, atol=1e-12)
        chosen.append(rest[int(np.argmin(after))])
        np.testing.assert_allclose(found.variances[k + 1], min(after), rtol=1e-9)
    assert found.indices.tolist() == chosen
    assert found.target == "rate"
    np.testing.assert_allclose(found.variances[0], post.parameter_variance("rate"), rtol=1e-12)


def test_the_best_time_to_read_a_decay_is_that_of_linear_design():
    """`u = a exp(−r t)` with both unknown: variances from the information matrix `Σ J Jᵀ / s²` of the two constants."""
    early, noise, rate = np.array([0.0, 0.5, 1.0]), 0.05, 0.5
    line = ps.Box(t=(0, 6))
    decayed = ps.observe(ps.identity, np.exp(-rate * early), at=early, noise=noise)
    law = ps.partials(line)[0] + ps.parameter("rate", rate)
    physics = ps.impose(law, 0.0, on=line.interior(ps.GaussLegendre(16)))
    model = ps.Model(ps.RBF(2.0), decayed, physics, eta=1e3)
    rates = np.linspace(0.1, 1.1, 21)
    evidence = np.array([np.exp(ps.pile(model.replace({"rate": each})).log_evidence) for each in rates])
    post = mixed(model, [{"rate": each} for each in rates], evidence / evidence.sum())
    times = np.linspace(0, 6, 61)
    found = ps.next_points(post, times, of="rate")

    def std(at):
        J = np.stack([np.exp(-rate * at), -at * np.exp(-rate * at)])
        return np.sqrt(np.linalg.inv(J @ J.T / noise**2)[1, 1])

    after = [std(np.append(early, each)) for each in times]
    np.testing.assert_allclose(found.stds, [std(early), min(after)], rtol=0.05)
    assert abs(found.points[0, 0] - times[np.argmin(after)]) < 0.35


def test_operators_of_a_mixture_take_its_parameters():
    post, flux = decays(), ps.parameter("rate", 5.0) * ps.identity
    found = ps.next_points(post, WHERE, 1, of=flux, at=[0.5], noise=0.1)
    crossed = post.covariance(WHERE, ps.identity, [0.5], flux)[:, 0] ** 2 / (post.variance(WHERE) + 0.01)
    np.testing.assert_allclose(found.reductions, crossed, rtol=1e-9)
    np.testing.assert_allclose(found.variances[0], post.variance([0.5], flux)[0], rtol=1e-12)


def test_bayes_rule_does_at_least_as_well_on_average():
    """The expected variance of the rate given a reading, by a sum over the values that may be read."""
    post, noise = decays(), 0.05
    found = ps.next_points(post, WHERE, of="rate", noise=noise)
    rates, weights = np.array([model.parameters["rate"] for model in post.models]), post.weights
    posts = [ps.posterior(model) for model in post.models]
    for i, point in enumerate(WHERE):
        means, stds = np.array([(p.mean([point])[0], np.hypot(p.std([point])[0], noise)) for p in posts]).T
        z = np.linspace(np.min(means - 9 * stds), np.max(means + 9 * stds), 20_001)
        density = weights[:, None] * norm.pdf(z, means[:, None], stds[:, None])
        shares = density / np.maximum(density.sum(axis=0), 1e-300)
        variance = shares.T @ rates**2 - (shares.T @ rates) ** 2
        expected = np.trapezoid(variance * density.sum(axis=0), z)
        assert expected <= found.variances[0] - found.reductions[i] + 1e-9


# -- The noise of a reading.


def test_the_noise_is_that_of_data_measured_alike():
    x = [0.1, 0.6]
    slopes = ps.observe(DX, [1.0, 1.0], at=x, noise=0.4)
    values = ps.observe(ps.identity, [0.0, 0.5], at=x, gamma=0.02)
    mass = ps.observe(ps.integral(LINE.interior(ps.GaussLegendre(4))), values=0.2, noise=3.0)
    post = ps.posterior(ps.Model(ps.RBF(0.5), [values, slopes, mass], ps.impose(DX, 1.0, on=NODES, noise=2.0)))
    for operator, noise in ((ps.identity, 0.1), (DX, 0.4)):
        left = ps.next_points(post, WHERE, 2, operator=operator)
        right = ps.next_points(post, WHERE, 2, operator=operator, noise=noise)
        np.testing.assert_allclose(left.variances, right.variances, rtol=1e-12)
    with refused("noise: no data block of the model measures ∂x²", "noise="):
        ps.next_points(post, WHERE, operator=DX**2)
    unequal = ps.observe(ps.identity, [0.0, 0.5], at=x, noise=[0.1, 0.3])
    with refused("noise: the data have noises from 0.1 to 0.3"):
        ps.next_points(ps.posterior(ps.Model(ps.RBF(0.5), unequal)), WHERE)
    with refused("noise: no data block of the model measures Id"):
        ps.next_points(ps.posterior(ps.Model(ps.RBF(0.5), physics=ps.impose(DX, 1.0, on=NODES, noise=2.0))), WHERE)


def test_the_noise_of_a_mixture_is_averaged():
    post = mixed(sine(), [{"gamma": 0.1}, {"gamma": 0.3}], [0.25, 0.75])
    found = ps.next_points(post, WHERE, 2, at=TARGETS)
    same = ps.next_points(post, WHERE, 2, at=TARGETS, noise=np.sqrt(0.25 * 0.05 + 0.75 * 0.15))
    np.testing.assert_allclose(found.variances, same.variances, rtol=1e-12)


# -- Bad input, before any work.


def test_bad_input_is_refused(as_a_user, monkeypatch):
    post, averaged = ps.posterior(line_model()), decays()
    one_rate = mixed(decay(), [{"rate": 1.0, "gamma": 0.1}, {"rate": 1.0, "gamma": 0.2}], [0.5, 0.5])
    monkeypatch.setattr(ps.Posterior, "variance", lambda *_: pytest.fail("worked on bad input"))
    monkeypatch.setattr(ps.inference.MixturePosterior, "_each", lambda *_: pytest.fail("worked on bad input"))
    for arguments, options, parts in (
        ((line_model(), WHERE), {}, ("posterior: expected a posterior",)),
        ((post, np.ones((3, 2))), {}, ("candidates: expected points with 1 coordinates", "(3, 2)")),
        ((post, []), {}, ("candidates: expected at least one point",)),
        ((post, [0.1, np.nan]), {}, ("candidates: expected finite numbers",)),
        ((post, WHERE, 0), {}, ("count: expected an integer of at least 1; got 0",)),
        ((post, WHERE, 2.0), {}, ("count: expected an integer",)),
        ((post, WHERE, 8), {}, ("count: expected at most 7, the number of candidates; got 8",)),
        ((post, WHERE), {"at": np.ones((3, 2))}, ("at: expected points with 1 coordinates",)),
        ((post, WHERE), {"operator": "f"}, ("operator: expected an operator such as ps.identity; got 'f'",)),
        ((post, WHERE), {"of": 3}, ("of: expected an operator such as ps.identity, or the name",)),
        ((post, WHERE), {"of": "rate"}, ("of: expected an operator", "got 'rate'", "averaged over hyperparameters")),
        ((averaged, WHERE), {"of": "rates"}, ("of: expected one of", "rate and kernel.bandwidth", "mean 'rate'?")),
        ((averaged, WHERE), {"of": "rate", "at": WHERE}, ("at: expected nothing: the hyperparameter 'rate'",)),
        ((one_rate, WHERE), {"of": "rate"}, ("of: expected a hyperparameter that varies",)),
        ((post, WHERE), {"noise": 0.0}, ("noise: expected a positive standard deviation; got 0.0",)),
        ((post, WHERE), {"noise": [0.1, 0.2]}, ("noise: expected a scalar or shape (7,)",)),
        ((post, WHERE), {"noise": [0.1] * 6 + [-1.0]}, ("noise: expected a positive standard deviation; got -1.0",)),
    ):
        with refused(*parts):
            ps.next_points(*arguments, **options)
    many = np.linspace(0, 1, 2_000_000)
    with refused("candidates, at: the covariances of 2000000", "fewer target points", error=ps.errors.MemoryLimitError):
        ps.next_points(post, many)


def test_a_noise_below_rounding_is_refused():
    with refused("noise: expected a standard deviation above", "lost to rounding; got 1e-09"):
        ps.next_points(ps.posterior(line_model()), WHERE, noise=1e-9)


def test_variances_below_rounding_are_named():
    with pytest.warns(ps.errors.PrecisionWarning, match=r"1 of the variances after readings .* \(down to -1.0e-17 of"):
        np.testing.assert_array_equal(_not_negative(np.array([2.0, 1.0, -2e-17])), [2.0, 1.0, 0.0])


def test_repr_states_what_each_reading_leaves():
    points, variances = np.array([[0.25, 1.0], [0.5, -3.0]]), np.array([0.25, 0.04, 0.01])
    found = NextPoints(points, np.array([3, 1]), variances, np.zeros(5), "Id at 9 points")
    assert repr(found) == (
        "NextPoints(standard deviation of Id at 9 points: 0.5 now\n"
        "  0.2 after a reading at (0.25, 1)\n  0.1 after another at (0.5, -3))"
    )
