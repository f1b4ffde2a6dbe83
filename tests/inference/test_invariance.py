"""What must not change PILE or a posterior: order, units, splitting, moving, and what carries no information."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pilescore as ps

SQUARE = ps.Box(x=(-1, 1), y=(-1, 1))
DX, DY = ps.partials(SQUARE)
seeds = st.integers(0, 2**31 - 1)


def parts(seed, data=14, nodes=11):
    """Random data of f, of a derivative, and random physics nodes with random weights."""
    rng = np.random.default_rng(seed)
    points = [rng.uniform(-1, 1, (count, 2)) for count in (data, 5, nodes)]
    values = [rng.standard_normal(len(p)) for p in points]
    weights = rng.uniform(0.05, 0.3, nodes)
    return points, values, weights


def build(points, values, weights, kernel=None, laplacian=DX**2 + DY**2, slope=DX, **temperatures):
    options = {"gamma": 0.3, "rho": 0.05, "eta": 1.7} | temperatures
    return ps.Model(
        kernel=kernel or ps.RBF(bandwidth=0.6),
        data=[
            ps.observe(ps.identity, values=values[0], at=points[0]),
            ps.observe(slope, values=values[1], at=points[1], gamma=0.2),
        ],
        physics=ps.impose(laplacian, values[2], on=ps.domains.nodes_at(points[2], weights, names=("x", "y"))),
        **options,
    )


def posterior_at(model, where):
    post = ps.posterior(model)
    return np.concatenate([post.mean(where), post.std(where)])


WHERE = np.random.default_rng(7).uniform(-1, 1, (6, 2))


@given(seeds)
@settings(max_examples=15)
def test_the_order_of_observations_does_not_matter(seed):
    points, values, weights = parts(seed)
    shuffles = [np.random.default_rng(seed + 1).permutation(len(p)) for p in points]
    moved = build(
        [p[s] for p, s in zip(points, shuffles, strict=True)],
        [v[s] for v, s in zip(values, shuffles, strict=True)],
        weights[shuffles[2]],
    )
    model = build(points, values, weights)
    np.testing.assert_allclose(ps.pile(moved).value, ps.pile(model).value, rtol=1e-11)
    np.testing.assert_allclose(posterior_at(moved, WHERE), posterior_at(model, WHERE), rtol=1e-7, atol=1e-9)


@given(seeds)
@settings(max_examples=15)
def test_the_order_of_blocks_does_not_matter(seed):
    model = build(*parts(seed))
    swapped = ps.Model(model.kernel, model.data[::-1], model.physics, gamma=0.3, rho=0.05, eta=1.7)
    np.testing.assert_allclose(ps.pile(swapped).value, ps.pile(model).value, rtol=1e-11)


@pytest.mark.slow
@given(seeds, st.floats(0.01, 100.0), st.floats(0.01, 100.0))
@settings(max_examples=25)
def test_units_do_not_matter(seed, a, b):
    """Coordinates measured in other units, with the bandwidth and the operators converted."""
    points, values, weights = parts(seed)
    model = build(points, values, weights, kernel=ps.RBF(bandwidth=[0.6, 0.5]))
    scaled = build(
        [p * [a, b] for p in points],
        values,
        weights,
        kernel=ps.RBF(bandwidth=[0.6 * a, 0.5 * b]),
        laplacian=a**2 * DX**2 + b**2 * DY**2,
        slope=a * DX,
    )
    np.testing.assert_allclose(ps.pile(scaled).value, ps.pile(model).value, rtol=1e-9)
    np.testing.assert_allclose(posterior_at(scaled, WHERE * [a, b]), posterior_at(model, WHERE), rtol=1e-6, atol=1e-8)


@given(seeds, st.floats(0.1, 10.0))
@settings(max_examples=15)
def test_units_of_the_unknown_shift_pile_by_twice_their_logarithm(seed, c):
    """Values times c with every variance times c²: the density of N values changes by c⁻ᴺ."""
    points, values, weights = parts(seed)
    model = build(points, values, weights)
    scaled = build(points, [c * v for v in values], weights, gamma=0.3 * c**2, rho=0.05 * c**2, eta=1.7 * c**2).replace(
        {"data.1.gamma": 0.2 * c**2}
    )
    np.testing.assert_allclose(ps.pile(scaled).value, ps.pile(model).value + 2 * np.log(c), rtol=1e-9)


@given(seeds)
@settings(max_examples=15)
def test_an_uninformative_block_changes_nothing_but_its_own_density(seed):
    points, values, weights = parts(seed)
    model = build(points, values, weights)
    vague = ps.observe(DY, values=np.zeros(4), at=WHERE[:4], gamma=2e14)
    more = ps.Model(model.kernel, [*model.data, vague], model.physics, gamma=0.3, rho=0.05, eta=1.7)
    alone = 0.5 * 4 * np.log(2 * np.pi * 1e14)
    np.testing.assert_allclose(ps.pile(more).free_energy, ps.pile(model).free_energy + alone, rtol=1e-9)
    np.testing.assert_allclose(posterior_at(more, WHERE), posterior_at(model, WHERE), rtol=1e-6, atol=1e-8)


@given(seeds, st.integers(1, 10))
@settings(max_examples=15)
def test_splitting_a_block_does_not_matter(seed, cut):
    points, values, weights = parts(seed)
    model = build(points, values, weights)
    halves = [
        ps.impose(DX**2 + DY**2, values[2][s], on=ps.domains.nodes_at(points[2][s], weights[s], names=("x", "y")))
        for s in (slice(0, cut), slice(cut, None))
    ]
    split = ps.Model(model.kernel, model.data, halves, gamma=0.3, rho=0.05, eta=1.7)
    whole, pieces = ps.pile(model), ps.pile(split)
    np.testing.assert_allclose(pieces.value, whole.value, rtol=1e-11)
    joined = pieces.shares["physics.0"] + pieces.shares["physics.1"]
    np.testing.assert_allclose(joined, whole.shares["physics.0"], rtol=1e-8, atol=1e-11)


KERNELS = [
    ps.RBF(bandwidth=0.6),
    ps.Matern(3.5, bandwidth=0.8),
    ps.kernels.RationalQuadratic(alpha=0.7, bandwidth=0.5),
    ps.AnisotropicRBF(theta=0.4, s=0.7, bandwidth=0.6),
    ps.kernels.Periodic(period=3.0, bandwidth=1.0),
    ps.kernels.spectral_mixture([1.0, 0.5], [[0.3, 0.1], [0.0, 0.5]], [[0.7, 0.6], [0.5, 0.9]]),
]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: type(k).__name__)
@given(seed=seeds, shift=st.tuples(st.floats(-5, 5), st.floats(-5, 5)))
@settings(max_examples=6)
def test_translation_does_not_matter_to_stationary_kernels(kernel, seed, shift):
    points, values, weights = parts(seed)
    model = build(points, values, weights, kernel=kernel)
    moved = build([p + np.asarray(shift) for p in points], values, weights, kernel=kernel)
    np.testing.assert_allclose(ps.pile(moved).value, ps.pile(model).value, rtol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS[:3], ids=lambda k: type(k).__name__)
@given(seed=seeds, angle=st.floats(-4, 4))
@settings(max_examples=6)
def test_rotation_does_not_matter_to_isotropic_kernels(kernel, seed, angle):
    points, values, weights = parts(seed)
    c, s = np.cos(angle), np.sin(angle)
    turn = np.array([[c, -s], [s, c]])
    model = build(points, values, weights, kernel=kernel)
    turned = build([p @ turn.T for p in points], values, weights, kernel=kernel, slope=c * DX + s * DY)
    np.testing.assert_allclose(ps.pile(turned).value, ps.pile(model).value, rtol=1e-9)


@given(seeds)
@settings(max_examples=10)
def test_infinite_gamma_removes_the_data(seed):
    points, values, weights = parts(seed)
    model = build(points, values, weights)
    physics_only = ps.Model(model.kernel, (), model.physics, rho=0.05, eta=1.7)
    vague = model.replace({"gamma": 1e15, "data.1.gamma": 1e15})
    np.testing.assert_allclose(posterior_at(vague, WHERE), posterior_at(physics_only, WHERE), rtol=1e-6, atol=1e-8)
    density = 0.5 * 19 * np.log(2 * np.pi * 0.5e15)
    np.testing.assert_allclose(ps.pile(vague).free_energy, ps.pile(physics_only).free_energy + density, rtol=1e-9)


def test_the_posterior_interpolates_as_noise_vanishes():
    rng = np.random.default_rng(3)
    points = rng.uniform(-1, 1, (8, 2))
    values = rng.standard_normal(8)
    errors = []
    for gamma in (1e-2, 1e-4, 1e-6, 1e-8):
        model = ps.Model(ps.Matern(2.5, bandwidth=0.7), ps.observe(ps.identity, values, points), gamma=gamma)
        post = ps.posterior(model)
        errors.append(float(np.abs(post.mean(points) - values).max()))
        assert np.all(post.std(points) <= np.sqrt(gamma / 2) * (1 + 1e-6))
    assert errors[-1] < 1e-6
    assert all(later < 0.2 * earlier for earlier, later in itertools.pairwise(errors))


def test_imposed_physics_hold_as_rho_vanishes():
    """f'' = −f with f(0) = 0, f'(0) = 1 has the solution sin x, and nothing else is given."""
    line = ps.Box(x=(0, 3))
    (dx,) = ps.partials(line)
    start = line.face(x=0)(ps.GaussLegendre(1))
    model = ps.Model(
        kernel=ps.RBF(bandwidth=1.0),
        physics=[
            ps.impose(dx**2 + 1, 0.0, on=line.interior(ps.GaussLegendre(20))),
            ps.cauchy(0.0, -1.0, on=start),
        ],
        rho=1e-9,
    )
    x = np.linspace(0, 3, 17)
    post = ps.posterior(model)
    np.testing.assert_allclose(post.mean(x), np.sin(x), atol=2e-4)
    np.testing.assert_allclose(post.mean(x, operator=dx), np.cos(x), atol=2e-4)
    np.testing.assert_allclose(post.mean(x, operator=dx**2 + 1), 0, atol=2e-3)


@given(seed=seeds, theta=st.floats(-3, 3), s=st.floats(0.4, 2.0))
@settings(max_examples=10)
def test_symmetries_of_the_anisotropic_family(seed, theta, s):
    points, values, weights = parts(seed)
    score = [
        ps.pile(build(points, values, weights, kernel=ps.AnisotropicRBF(t, stretch, 0.7))).value
        for t, stretch in ((theta, s), (theta + np.pi, s), (theta + np.pi / 2, 1 / s))
    ]
    np.testing.assert_allclose(score, score[0], rtol=1e-9)


def test_a_function_is_the_same_given_as_values_or_as_a_function():
    nodes = SQUARE.interior(ps.quadrature.Fejer(4))
    as_function = ps.impose(DX, lambda p: jnp.sin(p[0]) * p[1], on=nodes)
    as_values = ps.impose(DX, np.sin(nodes.points[:, 0]) * nodes.points[:, 1], on=nodes)
    as_numpy = ps.impose(DX, lambda p: float(np.sin(p[0]) * p[1]), on=nodes)
    np.testing.assert_allclose(as_function.values, as_values.values, rtol=1e-14)
    np.testing.assert_allclose(as_numpy.values, as_values.values, rtol=1e-14)
