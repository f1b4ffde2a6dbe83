"""Nonlinear models: linearisation, Gauss–Newton, the most likely solution and the gradient through it."""

from .gauss_newton import MapEstimate, Status
from .gradient import gradient
from .linearisation import jets_of, linearise_in_jets, observed_at, value_from_jets
from .solve import Solution, as_solution, solve_nonlinear, solve_or_follow

__all__ = [
    "MapEstimate",
    "Solution",
    "Status",
    "as_solution",
    "gradient",
    "jets_of",
    "linearise_in_jets",
    "observed_at",
    "solve_nonlinear",
    "solve_or_follow",
    "value_from_jets",
]
