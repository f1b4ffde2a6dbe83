"""Scores of some observations given others: one factor with the given rows first."""

import mpmath
import numpy as np
import pytest
from scipy.stats import multivariate_normal

import pilescore as ps
from pilescore.inference import Score

LINE = ps.Box(x=(0, 1))
(DX,) = ps.partials(LINE)
RULE = ps.GaussLegendre(6)


def mixed(noise: float = 0.03, **options) -> ps.Model:
    """A model with data, a homogeneous equation, a source and two conditions, one of them homogeneous."""
    x = np.linspace(0.05, 0.95, 7)
    data = ps.observe(ps.identity, np.sin(3 * x), at=x, gamma=0.02)
    speed = ps.parameter("speed", 1.3)
    physics = [
        ps.impose(DX**2 + speed * ps.identity, 0.0, on=LINE.interior(RULE), noise=noise, name="zero"),
        ps.impose(DX, lambda p: 3 * p[0], on=LINE.interior(ps.GaussLegendre(4)), rho=0.1, name="source"),
        ps.dirichlet(0.0, on=LINE.face(x=0)(ps.GaussLegendre(1)), noise=noise),
        ps.dirichlet(0.2, on=LINE.face(x=1)(ps.GaussLegendre(1)), rho=0.05),
    ]
    return ps.Model(ps.RBF(0.4), data, physics, eta=1.7, **options)


def stacked_covariance(model: ps.Model) -> np.ndarray:
    """The covariance of all values, from posterior covariances of a model that observes next to nothing."""
    loose = ps.Model(model.kernel, ps.observe(ps.identity, [0.0], at=[50.0]), eta=float(model.eta))
    prior = ps.posterior(loose)
    blocks = [
        [prior.covariance(a.points, a.operator, b.points, b.operator) for b in model.blocks] for a in model.blocks
    ]
    return np.block(blocks) + np.diag(model.noise)


@pytest.mark.parametrize(
    ("score", "given"),
    [
        ("joint", []),
        ("given_physics", [1, 2, 3, 4]),
        ("given_homogeneous", [1, 3]),
        ("auto", [1, 3, 4]),
        ("given_constant", [1, 3, 4]),
    ],
)
def test_score_is_a_conditional_density(score: str, given: list[int]) -> None:
    model = mixed()
    covariance, values = stacked_covariance(model), model.values
    rows = np.array([row for i in given for row in range(model.size)[model.rows[i]]], dtype=int)
    expected = multivariate_normal(cov=covariance).logpdf(values)
    if len(rows):
        expected -= multivariate_normal(cov=covariance[np.ix_(rows, rows)]).logpdf(values[rows])
    found = ps.pile(model, score)
    assert found.size == model.size - len(rows)
    assert found.log_evidence == pytest.approx(expected, rel=1e-9)
    assert sum(found.shares.values()) == pytest.approx(found.fit, rel=1e-9)
    by_low_rank = ps.pile(model.replace(solver=ps.solvers.LowRank(tolerance=1e-9)), score)
    assert by_low_rank.value == pytest.approx(found.value, abs=1e-6)
    assert by_low_rank.shares == pytest.approx(dict(found.shares), abs=1e-4)


@pytest.mark.parametrize("profiled", [False, True])
@pytest.mark.parametrize("given", ["exact", "homogeneous", "physics"])
@pytest.mark.parametrize("exact", [False, True])
def test_gradient_is_that_of_finite_differences(given: str, profiled: bool, exact: bool) -> None:
    model = mixed()
    if exact:
        blocks = list(model.physics)
        blocks[0] = blocks[0].within(np.full(blocks[0].size, 0.01))
        model = model.replace(physics=blocks)
    score = Score(given, profiled=profiled)
    value, gradient = ps.pile_and_gradient(model, score=score)
    assert value.value == pytest.approx(ps.pile(model, score).value)
    for name, slope in gradient.items():
        if profiled and name == "eta":
            continue
        at, step = float(model.parameters[name]), 1e-5 * float(model.parameters[name])
        after, before = (ps.pile(model.replace({name: at + s}), score).value for s in (step, -step))
        assert slope == pytest.approx((after - before) / (2 * step), rel=2e-5, abs=1e-7), name


def test_gradient_of_the_difference_of_two_systems_names_its_blocks() -> None:
    """Solvers without the Cholesky factor subtract two scores, and blocks have other numbers in the second."""
    model = mixed()
    expected = ps.pile_and_gradient(model, score="given_homogeneous")[1]
    low_rank = model.replace(solver=ps.solvers.LowRank(tolerance=1e-8))
    found = ps.pile_and_gradient(low_rank, score="given_homogeneous")[1]
    assert found.keys() == expected.keys()
    for name, slope in expected.items():
        assert found[name] == pytest.approx(slope, rel=0.1, abs=1e-3), name


def test_nearly_exact_physics_keeps_its_digits() -> None:
    """Against 60 digits. The difference of two scores is off by 5e-6 here."""
    x = np.linspace(0.1, 0.9, 5)
    data = ps.observe(ps.identity, np.exp(-x), at=x, noise=1e-3)
    model = ps.Model(
        ps.RBF(0.3), data, ps.impose(DX + ps.identity, 0.0, on=LINE.interior(ps.GaussLegendre(20)), noise=1e-5)
    )
    found = ps.pile(model, "given_physics")
    with mpmath.workdps(60):
        expected = _by_mpmath(model)
    assert abs(found.value - expected) < 1e-6
    assert abs(found.value - expected) <= 20 * found.rounding


def _by_mpmath(model: ps.Model) -> float:
    """`−2 log p(y | r)/n` of the RBF kernel and the operator `∂ + 1`, in high precision."""
    h = mpmath.mpf(float(model.kernel.bandwidth))
    points = [mpmath.mpf(float(p)) for block in model.blocks for p in block.points[:, 0]]
    first = [0] * model.data[0].size + [1] * model.physics[0].size
    noise = [mpmath.mpf(float(v)) for v in model.noise]

    def entry(i: int, j: int) -> mpmath.mpf:
        d = points[i] - points[j]
        k = mpmath.e ** (-(d**2) / (2 * h**2))
        left, right, both = -d / h**2 * k, d / h**2 * k, (1 / h**2 - d**2 / h**4) * k  # ∂₁k, ∂₂k, ∂₁∂₂k
        return k + first[i] * left + first[j] * right + first[i] * first[j] * both

    n, size = model.data[0].size, len(points)
    matrix = mpmath.matrix(size, size)
    for i in range(size):
        for j in range(size):
            matrix[i, j] = entry(i, j) + (noise[i] if i == j else 0)
    values = mpmath.matrix([mpmath.mpf(float(v)) for v in model.values])

    def energy(rows: list[int]) -> mpmath.mpf:
        part = mpmath.matrix([[matrix[i, j] for j in rows] for i in rows])
        y = mpmath.matrix([values[i] for i in rows])
        factor = mpmath.cholesky(part)
        half = mpmath.lu_solve(factor, y)
        return sum(v**2 for v in half) + 2 * sum(mpmath.log(factor[i, i]) for i in range(len(rows)))

    physics = list(range(n, size))
    return float((energy(list(range(size))) - energy(physics)) / n + mpmath.log(2 * mpmath.pi))


def test_nothing_to_score_is_refused() -> None:
    exact = ps.Model(ps.RBF(0.4), physics=ps.impose(DX, 1.0, on=LINE.interior(RULE)))
    with pytest.raises(ps.errors.InputError, match=r"nothing to score.*equations are exact.*data_free_pile"):
        ps.pile(exact)
    zeros = ps.Model(ps.RBF(0.4), physics=ps.impose(DX, 0.0, on=LINE.interior(RULE), noise=0.1))
    with pytest.raises(ps.errors.InputError, match=r"nothing to score.*its values are constant or zero"):
        ps.pile(zeros, "auto")
    with pytest.raises(
        ps.errors.InputError, match=r"expected no exact blocks, but physics.0: give them rho=; got 'printed'"
    ):
        ps.pile(ps.Model(ps.RBF(0.4), mixed().data, exact.physics), ps.Score(formula="printed"))


@pytest.mark.parametrize(
    ("score", "words"),
    [
        ("joint", "data and physics together"),
        ("given_physics", "the data given the physics"),
        ("auto", "the data and the imposed values that vary, given those that are constant"),
        ("given_homogeneous", "the data and the imposed values that are not zero, given those that are zero"),
    ],
)
def test_scores_are_described_in_words(score: str, words: str) -> None:
    assert ps.inference.score.as_score(score).described(mixed()) == words
