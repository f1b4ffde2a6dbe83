"""How a model's covariance is solved: the base class of all solvers."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

from ..errors import InputError, nearest


class Solver(abc.ABC):
    """Computes the log determinant, the quadratic form and solutions of a covariance.

    A new solver is a subclass. Its class statement may set `name=`, by which models choose it.

    Examples
    --------
    A solver that is exact for few observations and computes bounds for many:

    >>> import dataclasses, numpy as np, pilescore as ps
    >>> @dataclasses.dataclass(frozen=True)
    ... class Cautious(ps.solvers.Solver, name="cautious"):
    ...     most: int = 100
    ...     @property
    ...     def identity(self):
    ...         return repr(self)
    ...     def chosen(self, covariance):
    ...         return ps.solvers.Dense() if covariance.size <= self.most else ps.solvers.LowRank(tolerance=1e-6)
    ...     def estimate(self, covariance):
    ...         return self.chosen(covariance).estimate(covariance)
    ...     def factor(self, covariance):
    ...         return self.chosen(covariance).factor(covariance)
    >>> x = np.linspace(0, 1, 40)
    >>> model = ps.Model(ps.RBF(0.5), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.1)
    >>> ps.pile(model.replace(solver="cautious")).solver
    'dense: the Cholesky factor of 40 observations'
    >>> score = ps.pile(model.replace(solver=Cautious(10)))
    >>> score.solver, 0 < score.upper - score.lower < 1e-6
    ('low rank: rank 8 of 40 observations, 0 products with the full covariance', True)
    """

    by_name: ClassVar[dict[str, type[Solver]]] = {}
    """Solver classes by name."""

    forms_covariance: ClassVar[bool] = False
    """Whether it forms and factors the whole covariance matrix, so that its factor can be shared and is exact."""
    uses_cluster: ClassVar[bool] = False
    """Whether it has its own cluster at work on each score."""

    def __init_subclass__(cls, *, name: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if name is not None:
            Solver.by_name[name] = cls

    @property
    @abc.abstractmethod
    def identity(self) -> str:
        """A text that is equal for solvers with the same results."""

    @abc.abstractmethod
    def estimate(self, covariance: Any) -> Any:
        """Return the `Estimate` of memory, disk and operations that `factor` needs."""

    @abc.abstractmethod
    def factor(self, covariance: Any) -> Any:
        """Return a `Covariance` as `Factored`, or raise an error that says how far the factorisation got."""

    def for_nonlinear(self) -> Solver:
        """Return the solver to use for a nonlinear model, which needs the Cholesky factor of each linearisation."""
        raise InputError(f"solver: expected 'dense' or 'auto' for a nonlinear model; got {self.identity!r}")


def as_solver(solver: Any) -> Solver:
    """Return a solver from an instance or a name."""
    if isinstance(solver, Solver):
        return solver
    names = Solver.by_name
    if isinstance(solver, str) and solver in names:
        return names[solver]()
    near = nearest(solver, list(names), 0.5) if isinstance(solver, str) else ""
    hint = f". Did you mean {near!r}?" if near else ""
    raise InputError(
        f"solver: expected one of {', '.join(map(repr, names))}, or a solver such as "
        f"ps.solvers.LowRank(tolerance=1e-4); got {solver!r}{hint}"
    )
