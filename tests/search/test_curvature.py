"""Curvature and Newton steps, on free energies that are known in closed form."""

import math

import numpy as np
import pytest

import pilescore as ps
from pilescore.search.curvature import find_curvature
from pilescore.search.descent import Descent, updated_hessian
from pilescore.search.objective import Objective
from pilescore.search.space import search_space

NAMES = ("kernel.bandwidth", "eta", "gamma")
NOISE = 1e-7
"""Rounding in gradients, in nats per deviation of a coordinate alone."""


def valley() -> np.ndarray:
    """Return a Hessian with deviations of 1e-4 to 1 in oblique directions."""
    directions = np.linalg.qr(np.random.default_rng(5).standard_normal((3, 3)))[0]
    return directions * [1.0, 1e3, 1e8] @ directions.T


class Known(Objective):
    """An objective whose free energy is ½ (u − m)ᵀH(u − m), with rounding in its gradients."""

    def __init__(self, hessian: np.ndarray, noise: float = NOISE) -> None:
        model = ps.Model(ps.RBF(0.5), data=ps.observe(ps.identity, [1.0, 0.5], at=[0.0, 1.0]), gamma=0.1)
        super().__init__(search_space(model, dict.fromkeys(NAMES, (1e-4, 1e4))), ps.Score(), ps.SearchOptions())
        self.hessian, self.pile = hessian, ps.pile(model)
        self.centre = np.array([0.3, -0.2, 0.4])
        self.noise = noise * np.sqrt(np.diag(hessian))
        self.random = np.random.default_rng(8)

    def free_energy(self, away):
        return 0.5 * away @ self.hessian @ away, self.hessian @ away

    def evaluate(self, u, warm_start=None):
        self.evaluations += 1
        energy, slopes = self.free_energy(u - self.centre)
        value = 2.0 * float(energy) / self.pile.size
        gradient = 2.0 * (slopes + self.noise * self.random.standard_normal(3)) / self.pile.size
        eta = 0.7 * math.exp(u @ [0.3, -0.2, 0.1])  # as if it were profiled
        fields = {**vars(self.pile), "value": value, "lower": value, "upper": value, "eta": eta}
        return type(self.pile)(**fields), gradient


class Bent(Known):
    """The sum of two exponentials is known precisely, their ratio hardly: a narrow valley that bends."""

    def __init__(self, precise: float, wide: float) -> None:
        half = np.array([0.5, 0.5, 0.0])
        across = np.array([1.0, -1.0, 0.0])
        hessian = np.outer(half, half) / precise**2 + np.outer(across, across) / wide**2 + np.diag([0.0, 0.0, 1.0])
        super().__init__(hessian, noise=0.0)
        self.precise, self.wide = precise, wide

    def free_energy(self, away):
        a, b, c = away
        mean, share = np.logaddexp(a, b) - math.log(2.0), 1.0 / (1.0 + math.exp(b - a))
        energy = 0.5 * (mean / self.precise) ** 2 + 0.5 * ((a - b) / self.wide) ** 2 + 0.5 * c**2
        slopes = mean / self.precise**2 * np.array([share, 1.0 - share, 0.0])
        return energy, slopes + (a - b) / self.wide**2 * np.array([1.0, -1.0, 0.0]) + [0.0, 0.0, c]


def stalled(objective: Known, start: np.ndarray) -> Descent:
    """Return a descent that L-BFGS-B has stopped at a point."""
    descent = Descent(objective, start)
    pile, gradient = objective.evaluate(start)
    descent.best, descent.status, descent.scale, descent.last = (start, pile), "stalled", 1.0, (start, 0.0, gradient)
    return descent


def test_wide_axes_are_not_lost_in_the_rounding_of_narrow_ones():
    hessian = valley()
    found = find_curvature(Known(hessian), np.array([0.3, -0.2, 0.4]), NAMES, 2)
    assert found.covariance == pytest.approx(np.linalg.inv(hessian), rel=0.1)


def test_rounder_curvatures_need_no_second_look():
    objective = Known(np.diag([1.0, 4.0, 9.0]), noise=0.0)
    found = find_curvature(objective, objective.centre, NAMES, 2)
    assert found.hessian == pytest.approx(np.diag([1.0, 4.0, 9.0]))
    assert objective.evaluations == 6


@pytest.mark.parametrize("precise", [1e-3, 1e-4])
@pytest.mark.parametrize("wide", [0.1, 0.3, 1.0])
def test_valleys_that_bend_do_not_look_narrower(precise, wide):
    objective = Bent(precise, wide)
    found = find_curvature(objective, objective.centre, NAMES, 2)
    assert found.covariance == pytest.approx(np.linalg.inv(objective.hessian), rel=0.05, abs=1e-3 * wide**2)


def test_a_profiled_scale_is_followed_along_axes():
    objective = Known(valley(), noise=1e-9)
    objective.score = ps.Score(profiled=True)
    found = find_curvature(objective, objective.centre, NAMES, 2)
    covariance, scale = np.linalg.inv(objective.hessian), np.array([0.3, -0.2, 0.1])
    rescaled = np.array([0.0, 1.0, 1.0])  # eta and gamma
    both = np.outer(rescaled, covariance @ scale)
    extra = np.outer(rescaled, rescaled) * (scale @ covariance @ scale + 2.0 / 2)
    assert found.covariance == pytest.approx(covariance + both + both.T + extra, rel=0.02)


def test_flat_directions_take_no_second_look():
    for diagonal in ([100.0, 50.0, 0.0], [0.0, 0.0, 0.0]):
        objective = Known(np.diag(diagonal), noise=0.0)
        found = find_curvature(objective, objective.centre, NAMES, 2)
        assert found.hessian == pytest.approx(np.diag(diagonal))
        assert objective.evaluations <= 12
        assert len(found.flat) == diagonal.count(0.0)


def test_newton_steps_follow_a_narrow_valley():
    objective = Known(valley())
    descent = stalled(objective, objective.centre + 1e-5 + 2.0 * np.linalg.eigh(objective.hessian)[1][:, 0])
    before = descent.best[1].free_energy
    descent.polish()
    assert before > 2.0
    assert descent.best[1].free_energy < 0.02
    assert descent.status == "converged"
    assert "Newton" in descent.reason
    assert descent.evaluations == objective.evaluations - 1 < 70


@pytest.mark.parametrize(("precise", "wide"), [(1e-3, 0.3), (1e-3, 1.0), (1e-4, 0.3)])
def test_newton_steps_follow_a_valley_that_bends(precise, wide):
    objective = Bent(precise, wide)
    a = min(wide, 0.6)
    start = objective.centre + np.array([a, math.log(2.0 - math.exp(a)), 0.5])  # on the floor of the valley
    descent = stalled(objective, start)
    before = descent.best[1].free_energy
    descent.polish()
    after = descent.best[1].free_energy
    assert after < before - 0.5
    assert (after < 0.02) == (descent.status == "converged")  # steps are short where it bends: some do not arrive


def test_newton_steps_end_at_bounds_and_with_their_budget():
    objective = Known(valley())
    low, high = np.array(objective.space.bounds).T
    objective.centre = np.array([low[0] - 1.0, 0.0, 0.0])
    descent = stalled(objective, np.array([low[0] + 0.5, 0.4, 0.1]))
    descent.polish()
    assert descent.best[0][0] == low[0]
    assert (descent.best[0] <= high).all()
    assert descent.status == "converged"
    objective = Known(valley())
    objective.budget = 3
    descent = stalled(objective, objective.centre + 2.0 * np.linalg.eigh(objective.hessian)[1][:, 0])
    descent.polish()
    assert descent.status == "stalled"
    assert "out of evaluations" in descent.reason


def test_updated_second_derivatives_explain_the_last_step():
    hessian, moved, change = np.diag([1.0, 2.0]), np.array([0.5, -1.0]), np.array([0.9, -1.5])
    found = updated_hessian(hessian, moved, change)
    assert found @ moved == pytest.approx(change)
    assert found == pytest.approx(found.T)
    assert updated_hessian(hessian, moved, -change) is None


def test_descents_that_converged_are_left_alone():
    objective = Known(valley())
    descent = Descent(objective, objective.centre)
    descent.best = (objective.centre, objective.evaluate(objective.centre)[0])
    descent.status, descent.scale = "converged", 1.0
    descent.polish()
    assert objective.evaluations == 1
