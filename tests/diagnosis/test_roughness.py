"""The check of the smoothness of the kernel."""

import numpy as np
import pytest

import pilescore as ps
from pilescore.diagnosis.checks.roughness import Rougher, rougher_kernel

LINE = ps.Box(x=(0, 1))
(DX,) = ps.partials(LINE)


def test_a_rougher_kernel_is_a_matern_kernel_with_the_same_metric():
    h = np.array([0.5, 0.8])
    found, wanted = rougher_kernel(ps.RBF(h), 2.5), ps.Matern(2.5, h)
    x, y = (0.3, 0.1), (-0.2, 0.5)
    for alpha, beta in (((0, 0), (0, 0)), ((2, 0), (0, 1)), ((1, 1), (2, 0))):
        assert float(found.derivative(alpha, beta, x, y)) == pytest.approx(float(wanted.derivative(alpha, beta, x, y)))
    both = rougher_kernel(2.0 * ps.RBF(0.5) + ps.Matern(1.5, 0.5), 2.5)
    assert float(both(x, y)) == pytest.approx(float((2.0 * ps.Matern(2.5, 0.5) + ps.Matern(1.5, 0.5))(x, y)))
    assert isinstance(rougher_kernel(ps.Matern(4.5), 2.5), Rougher)
    assert rougher_kernel(ps.Matern(2.5), 2.5) == ps.Matern(2.5)
    turned = ps.AnisotropicRBF(0.3, 0.5, 1.0)
    assert rougher_kernel(turned, 1.5).metric(2) == turned.metric(2)


def bent(kink, seed=0):
    """Readings of |x − 0.3| or of a smooth function, whose slope is known to be bounded."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1, 80)
    values = (5 * np.abs(x - 0.3) if kink else np.sin(6 * x)) + 0.01 * rng.standard_normal(80)
    return ps.Model(ps.RBF(0.3), ps.observe(ps.identity, values, at=x, domain=LINE), gamma=0.0002)


OVER = {"kernel.bandwidth": (0.02, 3.0), "gamma": (1e-6, 1.0), "eta": (1e-2, 1e3)}


def test_a_kink_is_a_matter_of_the_kernel():
    best = ps.minimize(bent(True), OVER)
    found = ps.diagnose(best, checks="too_smooth_kernel", progress=False)["too_smooth_kernel"]
    assert found.status == "fired", found
    assert "not the physics" in found.meaning
    rough = ps.minimize(bent(True).replace(kernel=ps.Matern(1.5, 0.3)), OVER)
    assert best.pile.free_energy - rough.pile.free_energy > 0.8 * found.value
    assert "too_smooth_kernel" not in ps.diagnose(rough, checks="too_smooth_kernel", progress=False)


def test_a_smooth_solution_suits_a_smooth_kernel():
    found = ps.diagnose(ps.minimize(bent(False), OVER), checks="too_smooth_kernel", progress=False)
    assert "too_smooth_kernel" not in found
    with_physics = ps.Model(
        ps.RBF(0.3),
        ps.observe(
            ps.identity,
            np.sin(9 * np.linspace(0, 1, 20)) + 0.05 * np.random.default_rng(2).standard_normal(20),
            at=np.linspace(0, 1, 20),
        ),
        ps.impose(DX**2 / 81 + ps.identity, 0.0, on=LINE.interior(ps.GaussLegendre(12))),
        gamma=0.005,
        rho=1e-3,
    )
    assert ps.diagnose(with_physics, checks="too_smooth_kernel")["too_smooth_kernel"].status == "fine"


def test_kernels_without_a_rougher_one():
    model = bent(False).replace(kernel=ps.Matern(0.5, 0.3))
    assert ps.diagnose(model, checks="too_smooth_kernel")["too_smooth_kernel"].status == "skipped"
