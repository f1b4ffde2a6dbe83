"""Automatic choice of a solver from the number of observations, the available memory and the kernel."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import multiprocessing

import psutil

from ..covariance import Covariance, KernelCovariance
from ..errors import MemoryLimitError, ToleranceError, as_positive
from ..model import Solver
from .distributed import Distributed
from .interface import Estimate, Factored
from .kronecker import Kronecker
from .lapack import Dense
from .low_rank import LowRank

SMALL = 3000
"""Number of observations up to which no solver is faster than a dense Cholesky factorisation."""


@dataclasses.dataclass(frozen=True)
class Auto(Solver, name="auto"):
    """Choose a solver automatically; the result's `solver` states the choice and its reason.

    Small problems are solved densely, tensor grids by `Kronecker`, and smooth kernels by `LowRank`. If low rank fails,
    the solver is dense where that fits in memory, and `Distributed`, with tiles that spill to disk, otherwise.

    Parameters
    ----------
    tolerance
        Largest width of the interval on PILE if the chosen solver is not exact.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 30)
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.5), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.1)
    >>> ps.pile(model.replace(solver="auto")).solver
    'auto: N = 30 is at most 3000; dense: the Cholesky factor of 30 observations'
    """

    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        as_positive(self.tolerance, "tolerance")

    @property
    def identity(self) -> str:
        """A string that determines the results of this solver."""
        return f"auto, tolerance {self.tolerance!r}"

    def chosen(self, covariance: Covariance) -> tuple[Solver, str]:
        """Return the solver to try first, and the reason."""
        n = covariance.size
        if n <= SMALL:
            return Dense(), f"N = {n} is at most {SMALL}"
        grid = Kronecker()
        if not grid.applies(covariance) and grid.estimate(covariance).flops < n**3 / 3:
            return grid, "one tensor grid, and a kernel and noise that are products over its axes"
        kernel = covariance.kernel if isinstance(covariance, KernelCovariance) else None
        # The eigenvalues of a kernel with finitely many derivatives decay algebraically: it needs ranks of thousands.
        rough = kernel is not None and math.isfinite(kernel.smoothness)
        if rough and _fits(n):
            return Dense(), f"the kernel is rough, which rules out low rank, and {8e-9 * n**2:.3g} GB fit in memory"
        why = f"N = {n} is more than {SMALL}, and the kernel is {'rough' if rough else 'smooth'}"
        return LowRank(tolerance=self.tolerance), why

    def for_nonlinear(self) -> Dense:
        """Return the dense solver, the only one for nonlinear models."""
        return Dense()

    def estimate(self, covariance: Covariance) -> Estimate:
        """Estimate the memory and operations of the solver that is tried first."""
        return self.chosen(covariance)[0].estimate(covariance)

    def factor(self, covariance: Covariance) -> Factored:
        """Factor with the chosen solver; if low rank misses its tolerance, factor exactly."""
        solver, why = self.chosen(covariance)
        try:
            factored = solver.factor(covariance)
        except ToleranceError as failure:
            n = covariance.size
            missed = f"low rank missed a width of {self.tolerance:.0e}, and {8e-9 * n**2:.3g} GB"
            if _fits(n):
                solver, why = Dense(), f"{missed} fit in memory"
            elif importlib.util.find_spec("distributed") is not None and not multiprocessing.current_process().daemon:
                solver, why = Distributed(), f"{missed} do not fit in memory"
            else:
                raise MemoryLimitError(
                    f"{failure} The dense solver does not fit here ({8e-9 * n**2:.3g} GB of "
                    f"{psutil.virtual_memory().available / 1e9:.3g} GB), and tiles need pip install 'pilescore[scale]' "
                    "and a process that may start others."
                ) from failure
            factored = solver.factor(covariance)
        factored.account = f"auto: {why}; {factored.account}"
        return factored


def _fits(size: int) -> bool:
    return 8.0 * size**2 < 0.8 * psutil.virtual_memory().available
