"""Candidates of every kind ranked by what they predict for held-out values, and tables of networks."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import pilescore as ps
from pilescore.inference import evidence as score
from pilescore.search import candidates, comparison

from ..models import refused

LINE = ps.Box(x=(0, 1))
(DX,) = ps.partials(LINE)
NODES = LINE.interior(ps.GaussLegendre(6))
X = np.linspace(0.05, 0.95, 12)
H = 0.25
FREQUENCIES = jnp.arange(1.0, 6.0)


def truth(x):
    return np.sin(6 * x)


DATA = ps.observe(ps.identity, truth(X) + 0.05 * np.cos(50 * X), at=X)
EQUATION = ps.impose(DX, lambda p: 6 * jnp.cos(6 * p[0]), on=NODES, name="equation")
MODEL = ps.Model(ps.RBF(H), data=DATA, physics=EQUATION, gamma=0.01, rho=0.02, eta=1.3)
ROUGH = ps.Model(ps.Matern(1.5, H), data=DATA, physics=EQUATION, gamma=0.01, rho=0.02)

NEW = np.array([0.11, 0.37, 0.52, 0.9])
FINE = LINE.interior(ps.GaussLegendre(9))
HELD = [
    ps.observe(ps.identity, truth(NEW) + 0.03, at=NEW),
    ps.observe(DX - 2 * ps.identity, [1.0, -2.0], at=[0.3, 0.6], noise=[0.5, 0.7]),
    ps.observe(ps.integral(FINE), (1 - math.cos(6)) / 6, gamma=0.004),
    ps.impose(DX, lambda p: 6 * jnp.cos(6 * p[0]), on=LINE.interior(ps.GaussLegendre(3))),
]
VALUES = np.concatenate([block.values for block in HELD])


def apply(params, p):
    """A network that is linear in its parameters, so that all about it is known."""
    return params @ jnp.sin(FREQUENCIES * p[0] + 0.3)


PARAMS = jnp.array([0.3, -0.2, 0.1, 0.2, 0.7])


@pytest.fixture(scope="module")
def network():
    return ps.network_pile(apply, PARAMS, MODEL, prior=ps.networks.NetworkPrior(2.0, 0.01), points="held out")


BOTH = list(zip(MODEL.blocks, [(1, 0), (0, 1)], strict=True))
ASKED = list(zip(HELD, [(1, 0), (-2, 1), (1, 0), (0, 1)], strict=True))
"""Blocks with `(a, b)` of their operators `a + b ∂x`."""


def features(pairs):
    """Return the features of the network under each operator, one row for each value."""
    parts = []
    for block, (a, b) in pairs:
        angles = block.points * np.asarray(FREQUENCIES) + 0.3
        each = a * np.sin(angles) + b * np.asarray(FREQUENCIES) * np.cos(angles)
        parts.append(each if block.matrix is None else block.matrix @ each)
    return np.concatenate(parts)


def covariances(first, second):
    """Return the prior covariances of what blocks observe, by the derivatives of the kernel on paper."""

    def entry(left, a, b, right, c, d):
        r = (left.points - right.points.T) / H
        found = np.exp(-0.5 * r**2) * (a * c + (a * d - b * c) * r / H + b * d * (1 - r**2) / H**2)
        found = found if left.matrix is None else left.matrix @ found
        return found if right.matrix is None else found @ right.matrix.T

    return np.block([[entry(p, *ab, q, *cd) for q, cd in second] for p, ab in first])


@pytest.mark.slow
def test_densities_of_kernels_and_networks_are_those_of_dense_formulas(network):
    noise = np.concatenate([np.full(4, 0.005), [0.25, 0.49], [0.002], 0.01 / HELD[3].weights])
    prior, cross = (1.3 * covariances(ASKED, other) for other in (ASKED, BOTH))
    joint = 1.3 * covariances(BOTH, BOTH)
    joint += np.diag(np.concatenate([np.full(12, 0.005), 0.01 / EQUATION.weights]))
    mean = cross @ np.linalg.solve(joint, MODEL.values)
    variance = np.diag(prior - cross @ np.linalg.solve(joint, cross.T)) + noise
    kernel = norm.logpdf(VALUES, mean, np.sqrt(variance))
    jacobian, queried = features(BOTH), features(ASKED)
    slope = 1 / H**2  # the prior variance of the derivative, relative to that of the function
    relative = np.concatenate([np.ones(12), slope / EQUATION.weights / np.mean(1 / EQUATION.weights)])
    precision = jacobian.T @ (jacobian / (0.01 * relative)[:, None]) + np.eye(5) / 2.0
    noise[:4], noise[7:] = 0.01, 0.01 * slope / HELD[3].weights / np.mean(1 / HELD[3].weights)
    spread = np.einsum("ij,ij->i", queried, np.linalg.solve(precision, queried.T).T) + noise
    guess = queried @ np.asarray(PARAMS)
    other = norm.logpdf(VALUES, guess, np.sqrt(spread))

    table = ps.compare({"network": network, "kernel": MODEL}, held_out=HELD)
    assert list(table.index) == ["kernel", "network"]
    assert table["log_density"].to_dict() == pytest.approx({"kernel": kernel.mean(), "network": other.mean()}, rel=1e-8)
    assert table["kind"].tolist() == ["kernel", "network"]
    assert table["rank"].tolist() == [1, 2]
    assert table["size"].tolist() == [10, 10]
    second = table.loc["network"]
    assert second["difference"] == pytest.approx((kernel - other).mean(), rel=1e-7)
    assert second["nats"] == pytest.approx((kernel - other).sum(), rel=1e-7)
    assert second["standard_error"] == pytest.approx(np.std(kernel - other, ddof=1) / math.sqrt(10), rel=1e-7)
    assert second["rmse"] == pytest.approx(np.sqrt(np.mean((VALUES - guess) ** 2)), rel=1e-9)
    inside = [norm.interval(0.95, m, np.sqrt(v)) for m, v in zip(guess, spread, strict=True)]
    assert second["coverage"] == np.mean([a <= v <= b for v, (a, b) in zip(VALUES, inside, strict=True)])
    assert 0 < second["coverage"] < 1  # or nothing was tested
    assert table.loc["kernel", ["difference", "standard_error", "nats"]].tolist() == [0.0, 0.0, 0.0]
    assert table["warnings"].tolist() == ["", ""]


def test_every_kind_of_candidate_is_what_its_model_is():
    best = ps.minimize(MODEL, {"gamma": (1e-4, 1.0), "rho": (0.015, 0.1)}, search=ps.SearchOptions(curvature=False))
    candidates = {"minimum": best, "model": best.model, "posterior": ps.posterior(best.model)}
    table = ps.compare(candidates, held_out=HELD)
    assert np.ptp(table["log_density"]) < 1e-12
    assert table["rank"].tolist() == [1, 2, 3]
    assert "rho is at its lower bound" in table["warnings"]["minimum"]
    plain = ps.compare({"plain": MODEL}, held_out=HELD)
    profiled = ps.compare({"profiled": MODEL}, held_out=HELD, score="profiled")
    by_hand = score.at_profiled_scale(MODEL, ps.pile(MODEL, score="profiled"))
    expected = ps.compare({"by hand": by_hand}, held_out=HELD)
    assert profiled["log_density"].item() == pytest.approx(expected["log_density"].item(), rel=1e-12)
    assert profiled["log_density"].item() != pytest.approx(plain["log_density"].item(), rel=1e-3)
    assert profiled["rmse"].item() == pytest.approx(plain["rmse"].item(), rel=1e-9)


def test_nonlinear_candidates_are_solved():
    equation = ps.Nonlinear(lambda p, u, u_x: u_x + u**2, of=(ps.identity, DX))
    model = ps.Model(
        ps.RBF(0.5),
        data=ps.observe(ps.identity, [1.0], at=[0.0], gamma=1e-4),
        physics=ps.impose(equation, 0.0, on=NODES),
        rho=1e-4,
    )
    new = ps.observe(ps.identity, 1 / (1 + NEW), at=NEW, noise=0.01)
    solved = ps.solve_nonlinear(model)
    best = ps.minimize(model, {"eta": (0.999, 1.001)}, search=ps.SearchOptions(curvature=False))
    candidates = {"model": model, "solved": solved, "posterior": ps.posterior(solved.model), "minimum": best}
    table = ps.compare(candidates, held_out=new)
    assert np.ptp(table["log_density"].drop("minimum")) < 1e-6
    assert table["log_density"]["minimum"] == pytest.approx(table["log_density"]["model"], abs=1e-4)
    assert table["rmse"].max() < 0.01
    assert ps.compare({"model": model}, held_out=new, score="profiled")["rmse"].item() < 0.01
    with refused("held_out", "linear", "is nonlinear"):
        ps.compare({"model": model}, held_out=ps.observe(equation, 0.0, at=[0.5]))


@pytest.mark.slow
def test_warnings_and_failures_stand_beside_the_numbers(network):
    bad = MODEL.replace({"kernel.bandwidth": 50.0, "gamma": 1e-18, "rho": 1e-18})
    known = [
        ps.observe(ps.identity, [DATA.values[3], DATA.values[4] + 1, 0.0], at=[X[3], X[4], 0.123]),
        ps.impose(1.0 * DX, EQUATION.values[:2], on=ps.domains.nodes_at(NODES.points[:2], NODES.weights[:2])),
        ps.observe(DX, EQUATION.values[2], at=NODES.points[2:3], noise=0.1),
        ps.observe(2 * DX, EQUATION.values[2], at=NODES.points[2:3], noise=0.1),
    ]
    given = ps.network_pile_from_jacobian(
        np.ones((4, 2)), np.ones(4), params=np.ones(2), prior=ps.networks.NetworkPrior(1.0, 1.0)
    )
    digits = ps.Model(ps.RBF(2.0), data=DATA, physics=EQUATION, gamma=1e-9, rho=1e-9)
    candidates = {"bad": bad, "good": MODEL, "network": network, "given": given, "digits": digits}
    table = ps.compare(candidates, held_out=known)
    assert "4 of 7 held-out values were fitted" in table["warnings"]["good"]
    assert "4 of 7 held-out values were fitted" in table["warnings"]["network"]
    assert "rounding leaves its PILE uncertain" in table["warnings"]["digits"]
    assert table["warnings"]["bad"].startswith("failed: the covariance of 18 observations is not positive definite")
    assert "has no network" in table["warnings"]["given"]
    assert table["rank"].isna().sum() == 2
    assert table["rank"].tolist()[:3] == [1, 2, 3]
    assert table["size"].tolist() == [7] * 5
    alone = ps.compare({"bad": bad}, held_out=known)
    assert alone["rank"].isna().all()
    curved = ps.compare({"good": MODEL, "rough": ROUGH}, held_out=ps.observe(DX**2, 0.0, at=[0.5], noise=1.0))
    assert "Matern" in curved["warnings"]["rough"]
    assert curved["warnings"]["rough"].startswith("failed: ")
    assert math.isnan(curved["standard_error"]["good"])  # of a single value


def test_intervals_hold_95_of_100():
    assert comparison.Forecast(np.array([1.95, -1.95, 1.97, -3.94]), np.array([1.0, 1.0, 1.0, 4.0])).coverage == 0.5


def test_functionals_are_recognised_too():
    mass = ps.observe(ps.integral(FINE), 0.1, noise=0.1)
    model = ps.Model(ps.RBF(H), data=[DATA, mass], gamma=0.01)
    table = ps.compare({"model": model}, held_out=[mass, ps.observe(ps.integral(FINE, DX), 0.1, noise=0.1)])
    assert table["warnings"].item() == "1 of 2 held-out values were fitted"


def test_variances_below_rounding_are_said():
    mass = ps.observe(ps.integral(FINE), 0.1, noise=1e-3)
    model = ps.Model(ps.RBF(H), data=DATA)

    class Below(ps.Posterior):
        def covariance(self, *given):
            return super().covariance(*given) - np.eye(9)

    predictor = candidates.posterior_predictor(Below(ps.posterior(model).system), [])
    made = comparison.predict(predictor, [mass])
    assert any("functionals are below rounding" in note for note in made.notes)
    assert made.variances == pytest.approx([1e-6])


def test_noise_that_nobody_knows():
    known = dataclasses.replace(DATA, temperature=jnp.asarray(0.01))
    model = ps.Model(ps.RBF(H), data=known)
    new = ps.observe(ps.identity, truth(NEW), at=NEW)
    table = ps.compare({"model": model}, held_out=new)
    assert "no noise is known for 'data.0'" in table["warnings"].item()
    assert "noise= or gamma= in ps.observe" in table["warnings"].item()
    given = ps.compare({"model": ps.Model(ps.RBF(H), data=known, gamma=0.01)}, held_out=new)
    own = ps.compare({"model": model}, held_out=ps.observe(ps.identity, truth(NEW), at=NEW, gamma=0.01))
    assert given["log_density"].item() == own["log_density"].item()


def test_what_is_refused(as_a_user, network):
    new = HELD[0]
    line = ps.Box(t=(0, 1))
    on_line = ps.Model(ps.RBF(H), physics=ps.impose(*ps.partials(line), 0.0, on=line.interior(ps.GaussLegendre(3))))
    cases = {
        "held_out: expected a block made by ps.observe": lambda: ps.compare({"a": MODEL}, held_out=[]),
        "or a list of them; got 3": lambda: ps.compare({"a": MODEL}, held_out=[new, 3]),
        "held_out: expected 1 coordinates, as 'a' has": lambda: ps.compare(
            {"a": MODEL}, held_out=ps.observe(ps.identity, 0.0, at=[[0.0, 1.0]])
        ),
        "acts on (x), but the coordinates are (t)": lambda: ps.compare(
            {"a": on_line}, held_out=ps.observe(ps.partials(ps.Box(x=(0, 1)))[0], 0.0, at=[0.5])
        ),
        "candidates['a']: expected a model, or a result of minimize": lambda: ps.compare(
            {"a": ps.pile(MODEL)}, held_out=new
        ),
        "score: expected 'joint' or 'profiled' with held_out": lambda: ps.compare(
            {"a": MODEL}, held_out=new, score="given_physics"
        ),
        "held_out=…": lambda: ps.compare({"a": ps.posterior(MODEL)}),
        "(net) and others (kernel) cannot be compared": lambda: ps.compare({"net": network, "kernel": MODEL}),
        "a prior on weights": lambda: ps.compare({"net": network, "kernel": ps.pile(MODEL)}),
    }
    for part, call in cases.items():
        with refused(part):
            call()


def test_networks_alone_are_ranked_by_their_scores(network):
    worse = ps.network_pile(apply, PARAMS + 0.5, MODEL, points="held out", prior=ps.networks.NetworkPrior(2.0, 0.01))
    table = ps.compare({"worse": worse, "better": network})
    assert list(table.index) == ["better", "worse"]
    assert table["rank"].tolist() == [1, 2]
    assert table["pile"].tolist() == [network.value, worse.value]
    assert table["nats"].tolist() == pytest.approx([0.0, worse.free_energy - network.free_energy])
    assert table["difference"].to_numpy() * 18 / 2 == pytest.approx(table["nats"].to_numpy())
    assert table["warnings"].tolist() == ["", ""]
    assert table.loc["worse", "misfit"] == worse.misfit
    less = ps.Model(ps.RBF(H), data=DATA)
    single = {
        "first": network,
        "float32": ps.network_pile(apply, PARAMS.astype("float32"), MODEL, points="held out"),
        "form": network.at(form="tangent"),
        "size": ps.network_pile(apply, PARAMS, less),
    }
    notes = ps.compare(single)["warnings"]
    assert notes["first"] == ""
    assert "float32" in notes["float32"]
    assert "another form than 'first': not comparable" in notes["form"]
    assert "another number of rows than 'first': not comparable" in notes["size"]


def test_networks_on_other_rows_are_said_not_to_be_comparable():
    rng = np.random.default_rng(0)
    jacobian, residuals, theta = rng.standard_normal((8, 3)), rng.standard_normal(8), rng.standard_normal(3)

    def scored(**options):
        return ps.network_pile_from_jacobian(jacobian, residuals, params=theta, **options)

    table = ps.compare(
        {"a": scored(), "same": scored(prior=ps.networks.NetworkPrior(eta=1.0)), "other": scored(noise=2.0)}
    )
    assert table.loc["same", "warnings"] == ""
    assert "other rows than 'a'" in table.loc["other", "warnings"]
