"""The choice of a solver from the number of observations, the memory and the kernel."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import multiprocessing

import psutil

from .covariances import KernelCovariance
from .errors import MemoryLimitError, ToleranceError, as_positive
from .kronecker import Kronecker
from .linalg import Dense
from .low_rank import LowRank
from .solvers import Covariance, Estimate, Factored, Solver
from .tiled import Distributed

SMALL = 3000
"""Observations up to which nothing is faster than a dense factor."""


@dataclasses.dataclass(frozen=True)
class Auto(Solver):
    """The solver that fits, with the reason in the result's `solver`.

    Dense for few observations, structure where there is any, low rank for smooth kernels; and where that is not
    enough, dense if it fits in memory, else tiles that spill to disk.

    Parameters
    ----------
    tol
        How wide the interval on PILE may be where the solver is not exact.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 30)
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.5), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.1)
    >>> ps.pile(model, solver="auto").solver
    'auto: N = 30 is at most 3000; dense: the Cholesky factor of 30 observations'
    """

    tol: float = 1e-3

    def __post_init__(self) -> None:
        as_positive(self.tol, "tol")

    @property
    def identity(self) -> str:
        """What results depend on."""
        return f"auto, tol {self.tol!r}"

    def chosen(self, covariance: Covariance) -> tuple[Solver, str]:
        """Return the solver that is tried first, and why."""
        n = covariance.size
        if n <= SMALL:
            return Dense(), f"N = {n} is at most {SMALL}"
        grid = Kronecker()
        if not grid.applies(covariance) and grid.estimate(covariance).flops < n**3 / 3:
            return grid, "one tensor grid, a kernel that is a product, and noise that is one"
        kernel = covariance.kernel if isinstance(covariance, KernelCovariance) else None
        rough = kernel is not None and math.isfinite(kernel.smoothness)
        if rough and _fits(n):
            return Dense(), f"the kernel is rough, which low rank does not suit, and {8e-9 * n**2:.3g} GB are there"
        return LowRank(tol=self.tol), f"N = {n} is more than {SMALL}, and the kernel {'rough' if rough else 'smooth'}"

    def estimate(self, covariance: Covariance) -> Estimate:
        """Return what the solver needs that is tried first."""
        return self.chosen(covariance)[0].estimate(covariance)

    def factor(self, covariance: Covariance) -> Factored:
        """Factor by what is chosen; where low rank does not reach its tolerance, exactly."""
        solver, why = self.chosen(covariance)
        try:
            found = solver.factor(covariance)
        except ToleranceError as failure:
            n = covariance.size
            if _fits(n):
                solver, why = Dense(), f"low rank did not reach a width of {self.tol:.0e}, and {8e-9 * n**2:.3g} GB fit"
            elif importlib.util.find_spec("distributed") is not None and not multiprocessing.current_process().daemon:
                solver = Distributed()
                why = f"low rank did not reach a width of {self.tol:.0e}, and {8e-9 * n**2:.3g} GB do not fit at once"
            else:
                raise MemoryLimitError(
                    f"{failure} Of these, dense does not fit here ({8e-9 * n**2:.3g} GB of "
                    f"{psutil.virtual_memory().available / 1e9:.3g} GB), and tiles need pip install 'pilescore[scale]' "
                    "and a process that may start others."
                ) from failure
            found = solver.factor(covariance)
        found.account = f"auto: {why}; {found.account}"
        return found


def _fits(size: int) -> bool:
    return 8.0 * size**2 < 0.8 * psutil.virtual_memory().available
