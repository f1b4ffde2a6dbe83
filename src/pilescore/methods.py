"""Which solver a model has: by name, or one that is given."""

from __future__ import annotations

import copy
from typing import Any

from .automatic import Auto
from .errors import InputError, nearest
from .kronecker import Kronecker
from .linalg import Dense
from .low_rank import LowRank
from .model import Model
from .solvers import Solver
from .tiled import Distributed

NAMES: dict[str, type[Solver]] = {
    "auto": Auto,
    "dense": Dense,
    "low_rank": LowRank,
    "kronecker": Kronecker,
    "distributed": Distributed,
}


def solver_of(model: Model) -> Solver:
    """Return the solver of a model: dense unless it was given another."""
    return Dense() if model.solver is None else model.solver


def with_solver(model: Model, solver: Solver | str | None) -> Model:
    """Return a model that is to be solved by a solver, or by one that is named; None leaves the one that it has."""
    if solver is None:
        return model
    chosen = as_solver(solver)
    if model.is_nonlinear and not isinstance(chosen, Dense | Auto):
        raise InputError(f"solver: a nonlinear model is solved by 'dense' only, step by step; got {solver!r}")
    changed = copy.copy(model)
    object.__setattr__(changed, "solver", Dense() if model.is_nonlinear else chosen)
    return changed


def as_solver(solver: Any) -> Solver:
    """Return a solver that is given, or named."""
    if isinstance(solver, Solver):
        return solver
    if isinstance(solver, str) and solver in NAMES:
        return NAMES[solver]()
    near = nearest(solver, list(NAMES), 0.5) if isinstance(solver, str) else ""
    hint = f". Did you mean {near!r}?" if near else ""
    raise InputError(
        f"solver: expected one of {', '.join(map(repr, NAMES))}, or a solver such as ps.LowRank(tol=1e-4); got "
        f"{solver!r}{hint}"
    )
