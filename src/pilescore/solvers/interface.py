"""The interface of solvers: what they return, and bounds, estimates and cotangents.

A `Solver` turns a `Covariance`, which need not be formed, into a `Factored` one, exactly or within proved bounds.
"""

from __future__ import annotations

import abc
import dataclasses

import numpy as np
from jaxtyping import Float

from ..covariance import Covariance, CovarianceTangent


@dataclasses.dataclass(frozen=True)
class Bounds:
    """A lower and an upper bound on a number; equal if the number is exact.

    Examples
    --------
    >>> import pilescore as ps
    >>> found = ps.solvers.Bounds(1.0, 1.5) - ps.solvers.Bounds(0.25, 0.5)
    >>> found, found.value, found.width
    (Bounds(lower=0.5, upper=1.25), 0.875, 0.75)
    """

    lower: float
    """The lower bound."""
    upper: float
    """The upper bound."""

    @property
    def value(self) -> float:
        """The midpoint."""
        return 0.5 * (self.lower + self.upper)

    @property
    def width(self) -> float:
        """`upper − lower`."""
        return self.upper - self.lower

    def __add__(self, other: Bounds) -> Bounds:
        return Bounds(self.lower + other.lower, self.upper + other.upper)

    def __sub__(self, other: Bounds) -> Bounds:
        return Bounds(self.lower - other.upper, self.upper - other.lower)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Memory, disk and operations that a solver needs, known before it starts.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 20_000)
    >>> model = ps.Model(ps.RBF(0.5), data=ps.observe(ps.identity, np.sin(6 * x), at=x))
    >>> needs = ps.solvers.estimate_cost(model.replace(solver="dense"))
    >>> needs.memory / 1e9, f"{needs.flops:.1e}"
    (3.2, '2.7e+12')
    >>> basis = ps.solvers.FourierBasis(low=0.0, high=1.0, count=20)
    >>> ps.solvers.estimate_cost(model.replace(solver=ps.solvers.Features(basis))).flops < 1e-4 * needs.flops
    True
    """

    method: str
    """Name of the solver, with its main option."""
    memory: float
    """Peak memory in bytes."""
    flops: float
    """Floating-point operations of one score without its gradient."""
    disk: float = 0.0
    """Bytes that may be spilled to disk."""

    def __repr__(self) -> str:
        disk = f", {self.disk / 1e9:.3g} GB of disk" if self.disk else ""
        return f"Estimate({self.method}: {self.memory / 1e9:.3g} GB of memory{disk}, {self.flops:.1e} flops)"


class Cotangent(abc.ABC):
    """The derivative of `log det C + ỹᵀC⁻¹ỹ/scale` in `C`: `G = C⁻¹ − ααᵀ/scale`, or an approximation of it."""

    diagonal: Float[np.ndarray, " N"]
    """Derivative with respect to each noise variance."""

    @abc.abstractmethod
    def contract(self, tangent: CovarianceTangent) -> Float[np.ndarray, " p"]:
        """Return the derivatives with respect to the hyperparameters of a tangent, `Σ_ij G_ij ∂Q_ij`."""


class Factored(abc.ABC):
    """A covariance after factorisation by a solver."""

    covariance: Covariance
    method: str
    """Name of the solver."""
    account: str
    """What the solver did, and why it was chosen, in one sentence for users."""
    logdet: Bounds
    """`log det C`."""
    quadratic: Bounds
    """`ỹᵀC⁻¹ỹ`."""
    alpha: Float[np.ndarray, " N"]
    """`C⁻¹ỹ`."""
    error: float
    """Estimated rounding error of `ỹᵀC⁻¹ỹ + log det C`."""

    @property
    def scored(self) -> int:
        """The number of observations that `logdet` and `quadratic` belong to: all, unless some are given."""
        return self.covariance.size

    @property
    def given_alpha(self) -> Float[np.ndarray, " N"]:
        """`C⁻¹ỹ` of the given rows alone; zero if no rows are given."""
        return np.zeros(self.covariance.size)

    @property
    def precise_alpha(self) -> Float[np.ndarray, " N"]:
        """`C⁻¹ỹ` to the solver's full accuracy, for posterior means; `alpha` is as accurate as a score requires."""
        return self.alpha

    @abc.abstractmethod
    def solve(self, right: Float[np.ndarray, "N k"]) -> tuple[Float[np.ndarray, "N k"], Float[np.ndarray, "N k"]]:
        """Return `C⁻¹B` and a bound on the error of each entry, zero for exact solvers."""

    @abc.abstractmethod
    def reduced(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "k k"]:
        """Return `BᵀC⁻¹B`; `B` may be overwritten."""

    def reduced_given(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "k k"]:
        """Return `BᵀC⁻¹B` of the scored observations given the others, which contribute nothing themselves."""
        return self.reduced(right)

    def reduced_diagonal(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, " k"]:
        """Return the diagonal of `BᵀC⁻¹B`; `B` may be overwritten."""
        return self.reduced(right).diagonal().copy()

    @abc.abstractmethod
    def cotangent(self, scale: float) -> Cotangent:
        """Return the cotangent for gradients. It may overwrite the factor."""
