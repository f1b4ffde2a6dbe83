"""Curvature and Newton steps, on free energies that are known in closed form."""

import numpy as np
import pytest

import pilescore as ps
from pilescore.search.curvature import find_curvature
from pilescore.search.descent import Descent
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

    def evaluate(self, u, warm_start=None):
        self.evaluations += 1
        away = u - self.centre
        slopes = self.hessian @ away + self.noise * self.random.standard_normal(3)
        value = away @ self.hessian @ away / self.pile.size
        return type(self.pile)(**{**vars(self.pile), "value": value, "lower": value, "upper": value}), (
            2.0 * slopes / self.pile.size
        )


def test_wide_axes_are_not_lost_in_the_rounding_of_narrow_ones():
    hessian = valley()
    found = find_curvature(Known(hessian), np.array([0.3, -0.2, 0.4]), NAMES, 2)
    assert found.covariance == pytest.approx(np.linalg.inv(hessian), rel=0.05)


def test_rounder_curvatures_need_no_second_look():
    objective = Known(np.diag([1.0, 4.0, 9.0]), noise=0.0)
    found = find_curvature(objective, objective.centre, NAMES, 2)
    assert found.hessian == pytest.approx(np.diag([1.0, 4.0, 9.0]))
    assert objective.evaluations == 6


def test_newton_steps_follow_a_narrow_valley():
    objective = Known(valley())
    start = objective.centre + 1e-5 + 2.0 * np.linalg.eigh(objective.hessian)[1][:, 0]
    descent = Descent(objective, start)
    descent.best = (start, objective.evaluate(start)[0])
    descent.status, descent.scale, descent.last = "stalled", 1.0, (start, 0.0, objective.evaluate(start)[1])
    before = descent.best[1].free_energy
    descent.polish()
    assert before > 2.0
    assert descent.best[1].free_energy < 0.02
    assert descent.status == "converged"
    assert "Newton" in descent.reason
    assert objective.evaluations < 40


def test_descents_that_converged_are_left_alone():
    objective = Known(valley())
    descent = Descent(objective, objective.centre)
    descent.best = (objective.centre, objective.evaluate(objective.centre)[0])
    descent.status, descent.scale = "converged", 1.0
    descent.polish()
    assert objective.evaluations == 1
