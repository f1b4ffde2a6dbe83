"""What a solver of covariances offers, and what it is given.

A `Solver` turns a `Covariance`, which need never be formed, into a `Factored` one, exact or within proved bounds.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int


@dataclasses.dataclass(frozen=True)
class Bounds:
    """A number that lies between two others; the same twice where it is exact.

    Examples
    --------
    >>> import pilescore as ps
    >>> found = ps.Bounds(1.0, 1.5) - ps.Bounds(0.25, 0.5)
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
    """What a solver is going to need, said before it starts.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 20_000)
    >>> model = ps.Model(ps.RBF(0.5), data=ps.observe(ps.identity, np.sin(6 * x), at=x))
    >>> needs = ps.estimate(model, solver="dense")
    >>> needs.memory / 1e9, f"{needs.flops:.1e}"
    (3.2, '2.7e+12')
    >>> basis = ps.FourierBasis(low=0.0, high=1.0, count=20)
    >>> ps.estimate(model, solver=ps.Features(basis)).flops < 1e-4 * needs.flops
    True
    """

    method: str
    """The solver, and what matters of it."""
    memory: float
    """Bytes, at the highest."""
    flops: float
    """Floating-point operations of a score without gradient."""
    disk: float = 0.0
    """Bytes that may be spilled."""

    def __repr__(self) -> str:
        disk = f", {self.disk / 1e9:.3g} GB of disk" if self.disk else ""
        return f"Estimate({self.method}: {self.memory / 1e9:.3g} GB of memory{disk}, {self.flops:.1e} flops)"


class Covariance(abc.ABC):
    """`C = Q + S` of N observations as an operator: prior covariances `Q`, which need never be formed, and noise `S`.

    Rows are in the order of assembly. A *part* is some of the rows; what it holds is the covariance's own business.
    """

    values: Float[np.ndarray, " N"]
    """`ỹ`."""
    noise: Float[np.ndarray, " N"]
    """The diagonal of `S`."""

    @property
    def size(self) -> int:
        """The number of observations, N."""
        return len(self.noise)

    @abc.abstractmethod
    def part(self, which: Int[np.ndarray, " n"]) -> Any:
        """Return the part of the rows with these numbers, in this order."""

    @abc.abstractmethod
    def strips(self) -> Iterator[tuple[slice, Any]]:
        """Iterate over all rows in runs of moderate length: where they stand, and the part."""

    @abc.abstractmethod
    def block(self, first: Any, second: Any) -> Float[np.ndarray, "n m"]:
        """Return `Q` of the rows of one part with those of another."""

    @abc.abstractmethod
    def variances(self, part: Any) -> Float[np.ndarray, " n"]:
        """Return the diagonal of `Q` of a part."""

    @abc.abstractmethod
    def product(self, vectors: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "N k"]:
        """Return `QV` without forming `Q`."""

    def applied(self, part: Any, vector: Float[np.ndarray, " N"]) -> Float[np.ndarray, " n"]:
        """Return `Qv` of the rows of a part, which may be others than the N."""
        return sum(self.block(part, strip) @ vector[where] for where, strip in self.strips())

    @abc.abstractmethod
    def dense(self) -> Float[np.ndarray, "N N"]:
        """Return `Q`, Fortran ordered, its lower triangle filled."""

    @abc.abstractmethod
    def tangent(self, leaves: Sequence[int]) -> Tangent:
        """Return the derivatives of `Q` in the numbers of its kernel, named by their positions."""

    @abc.abstractmethod
    def moved(self, layouts: Sequence[Any]) -> Tangent:
        """Return the derivatives of `Q` whose operators have these coefficients."""


class Tangent(abc.ABC):
    """Derivatives of `Q` in a number of hyperparameters, contracted with weights: `Σ_ij G_ij ∂Q_ij` for each."""

    @abc.abstractmethod
    def block(self, first: Any, second: Any, weights: Float[np.ndarray, "n m"]) -> Float[np.ndarray, " p"]:
        """Return the contractions over the rows of one part with those of another."""

    @abc.abstractmethod
    def variances(self, part: Any, weights: Float[np.ndarray, " n"]) -> Float[np.ndarray, " p"]:
        """Return the contractions over the diagonal of a part."""

    @abc.abstractmethod
    def dense(self, weights: Weights) -> Float[np.ndarray, " p"]:
        """Return the contractions over all rows with all."""


@dataclasses.dataclass(frozen=True, eq=False)
class Weights:
    """The symmetric matrix `G = H − uuᵀ/c` that derivatives of the covariance are contracted with."""

    matrix: Float[np.ndarray, "N N"]
    """`H` by its upper triangle."""
    vector: Float[np.ndarray, " N"]
    scale: float


class Pull(abc.ABC):
    """`G = C⁻¹ − ααᵀ/scale`, or what stands for it: the derivative of `log det C + ỹᵀC⁻¹ỹ/scale` in `C`."""

    diagonal: Float[np.ndarray, " N"]
    """The derivative in each noise variance."""

    @abc.abstractmethod
    def contract(self, tangent: Tangent) -> Float[np.ndarray, " p"]:
        """Return the derivative in hyperparameters of `Q`."""


class Factored(abc.ABC):
    """A covariance that a solver is done with."""

    covariance: Covariance
    method: str
    """Of which solver."""
    account: str
    """What it did, and why it was chosen where it was chosen."""
    logdet: Bounds
    """`log det C`."""
    quadratic: Bounds
    """`ỹᵀC⁻¹ỹ`."""
    alpha: Float[np.ndarray, " N"]
    """`C⁻¹ỹ`."""
    error: float
    """An estimate of the rounding error of `ỹᵀC⁻¹ỹ + log det C`."""

    @property
    def precise_alpha(self) -> Float[np.ndarray, " N"]:
        """`C⁻¹ỹ` as exactly as the solver can, for means; `alpha` is as exact as a score needs."""
        return self.alpha

    @abc.abstractmethod
    def solve(self, right: Float[np.ndarray, "N k"]) -> tuple[Float[np.ndarray, "N k"], Float[np.ndarray, "N k"]]:
        """Return `C⁻¹B`, and how far each entry may be from it (zero where the solver is exact)."""

    @abc.abstractmethod
    def reduced(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "k k"]:
        """Return `BᵀC⁻¹B`; `B` may be overwritten."""

    def reduced_diagonal(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, " k"]:
        """Return the diagonal of `BᵀC⁻¹B`; `B` may be overwritten."""
        return self.reduced(right).diagonal().copy()

    @abc.abstractmethod
    def pull(self, scale: float) -> Pull:
        """Return what gradients are contracted with; it may use up the factor."""


class Solver(abc.ABC):
    """A way to the log determinant, the quadratic form and solutions of a covariance.

    Examples
    --------
    One of one's own: exact for few observations, else within bounds.

    >>> import dataclasses, numpy as np, pilescore as ps
    >>> @dataclasses.dataclass(frozen=True)
    ... class Cautious(ps.Solver):
    ...     most: int
    ...     @property
    ...     def identity(self):
    ...         return repr(self)
    ...     def chosen(self, covariance):
    ...         return ps.Dense() if covariance.size <= self.most else ps.LowRank(tol=1e-6)
    ...     def estimate(self, covariance):
    ...         return self.chosen(covariance).estimate(covariance)
    ...     def factor(self, covariance):
    ...         return self.chosen(covariance).factor(covariance)
    >>> x = np.linspace(0, 1, 40)
    >>> model = ps.Model(ps.RBF(0.5), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.1)
    >>> ps.pile(model, solver=Cautious(100)).solver
    'dense: the Cholesky factor of 40 observations'
    >>> score = ps.pile(model, solver=Cautious(10))
    >>> score.solver, 0 < score.upper - score.lower < 1e-6
    ('low rank: rank 8 of 40 observations, 0 products with the whole covariance', True)
    """

    @property
    @abc.abstractmethod
    def identity(self) -> str:
        """What results depend on: equal for solvers that give the same."""

    @abc.abstractmethod
    def estimate(self, covariance: Covariance) -> Estimate:
        """Return what `factor` would need."""

    @abc.abstractmethod
    def factor(self, covariance: Covariance) -> Factored:
        """Factor a covariance; raise an error that says what was reached where it cannot be done."""
