"""Nonlinear models: linearisation, Gauss–Newton, the most likely solution and the gradient through it."""

from .gauss_newton import MapEstimate, Status
from .gradient import gradient
from .linearisation import linearise_in_jets, value_from_jets
from .solve import Solution, as_solution, solve_nonlinear, solve_or_follow

__all__ = [
    "MapEstimate",
    "Solution",
    "Status",
    "as_solution",
    "gradient",
    "linearise_in_jets",
    "solve_nonlinear",
    "solve_or_follow",
    "value_from_jets",
]
