"""A model's covariance, assembled, factored and solved: what scores and posteriors are read from."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
from jaxtyping import Float

from .covariances import KernelCovariance
from .errors import InputError, NotPositiveDefiniteError, PrecisionWarning, listed, require
from .layouts import Assembly, Layout, assembly
from .linalg import EPS, DenseFactored, Factor, NotFactorableError, threads
from .methods import solver_of, with_solver
from .model import Model
from .solvers import Bounds, Estimate, Factored, Solver

EIGENVALUES_UP_TO = 3000
"""The size up to which a failed factorisation is explained by the eigenvalues of the matrix."""


IMPRECISE = 1e-6
"""The rounding error of PILE from which on a warning is given."""


@dataclasses.dataclass(frozen=True, eq=False)
class System:
    """`C = ηQ + S` of a model, factored by its solver; vectors are in the order of assembly."""

    model: Model
    assembly: Assembly
    eta: float
    noise: Float[np.ndarray, " N"]
    factored: Factored

    @property
    def factor(self) -> Factor:
        """The Cholesky factor, which a dense solver has."""
        if not isinstance(self.factored, DenseFactored):
            raise InputError(
                f"solver: this needs the Cholesky factor of the whole covariance, which the solver "
                f"{self.factored.method!r} does not form; use solver='dense' for it"
            )
        return self.factored.factor

    @property
    def alpha(self) -> Float[np.ndarray, " N"]:
        """`α = C⁻¹ỹ`."""
        return self.factored.alpha

    @property
    def error(self) -> float:
        """An estimate of the rounding error of `N·PILE`."""
        return self.factored.error

    @property
    def logdet(self) -> Bounds:
        """`log det C`."""
        return self.factored.logdet

    def with_values(self, model: Model) -> System:
        """Return the system of a model that differs in its values only; the solver has to be dense."""
        if model is self.model:
            return self
        parts = dataclasses.replace(self.assembly, values=model.values[self.rows.order])
        moved = KernelCovariance(self.model.kernel, parts.rows, self.eta, parts.values, self.noise)
        return dataclasses.replace(self, model=model, assembly=parts, factored=DenseFactored(moved, self.factor))

    @property
    def rows(self) -> Layout:
        """The layout of the observations."""
        return self.assembly.rows

    @property
    def values(self) -> Float[np.ndarray, " N"]:
        """`ỹ`."""
        return self.assembly.values

    @property
    def stacked_alpha(self) -> Float[np.ndarray, " N"]:
        """`α` in the stacked order of the blocks."""
        out = np.empty(len(self.alpha))
        out[self.rows.order] = self.alpha
        return out

    def solve_stacked(self, right: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        """Return `C⁻¹b` for a vector in the stacked order of the blocks."""
        out = np.empty(len(right))
        with threads(len(right)):
            out[self.rows.order] = self.factor.solve(right[self.rows.order])
        return out

    @property
    def quadratic(self) -> float:
        """`ỹᵀC⁻¹ỹ`."""
        return self.factored.quadratic.value

    @property
    def rounding(self) -> float:
        """An estimate of the rounding error of PILE."""
        return self.error / len(self.alpha)

    def warn_if_imprecise(self, stacklevel: int = 4) -> None:
        """Warn, naming the blocks involved, if rounding has taken the digits of the score."""
        if self.rounding > IMPRECISE and not isinstance(self.factored, DenseFactored):
            warnings.warn(
                f"rounding leaves PILE uncertain by about {self.rounding:.1e}. {_remedy(self.model)}",
                PrecisionWarning,
                stacklevel=stacklevel,
            )
        elif self.rounding > IMPRECISE:
            lost = self.assembly.by_block(self.factor.diagonal / self.factor.matrix.diagonal() ** 2)
            warnings.warn(
                f"rounding leaves PILE uncertain by about {self.rounding:.1e} (condition number about "
                f"{self.factor.condition():.1e}). {_culprits(lost)} {_remedy(self.model)}",
                PrecisionWarning,
                stacklevel=stacklevel,
            )


def solve(model: Model, eta: float | None = None, noise_factor: float = 1.0, *, explain: bool = True) -> System:
    """Assemble, factor and solve; `eta` replaces the model's, and its noise variances are multiplied, if asked for.

    A failure is explained by the eigenvalues of a matrix that is not too large, which cost more than the factorisation.
    """
    parts, covariance = _assembled(model, eta, noise_factor)
    try:
        return System(model, parts, covariance.eta, covariance.noise, solver_of(model).factor(covariance))
    except NotFactorableError as failure:
        raise _explained(model, parts, covariance, failure, explain) from None


def estimate(model: Model, *, solver: Solver | str | None = None) -> Estimate:
    """Return what a score of a model needs by a solver, before any work: memory, disk, operations.

    Parameters
    ----------
    model
        The model.
    solver
        As for `pile`.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 10_000)
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.5), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.1)
    >>> ps.estimate(model, solver="dense")
    Estimate(dense: 0.8 GB of memory, 3.3e+11 flops)
    """
    require(isinstance(model, Model), "model", model, "a ps.Model")
    model = with_solver(model, solver)
    return solver_of(model).estimate(_assembled(model, None, 1.0)[1])


def _assembled(model: Model, eta: float | None, noise_factor: float) -> tuple[Assembly, KernelCovariance]:
    for block, label in zip(model.blocks, model.labels, strict=True):
        if block.is_nonlinear:
            raise InputError(
                f"model: expected a linear one; block {label!r} is nonlinear ({block.operator}). Find its most likely "
                "solution first, solved = ps.solve_nonlinear(model), and go on with solved.model"
            )
    eta = float(model.eta) if eta is None else eta
    parts = assembly(model.blocks)
    noise = noise_factor * np.asarray(model.temperatures)[parts.block] * parts.spread
    return parts, KernelCovariance(model.kernel, parts.rows, eta, parts.values, noise)


def _explained(
    model: Model, parts: Assembly, covariance: KernelCovariance, failure: NotFactorableError, explain: bool
) -> Exception:
    """Say which block a failed factorisation stopped in, how ill-conditioned the matrix is, and what to do."""
    index = int(parts.block[failure.row])
    before = sum(block.size for block in model.blocks[:index])
    where = f"block {model.labels[index]!r} ({model.blocks[index].operator})"
    text = (
        f"the covariance of {covariance.size} observations is not positive definite to working precision: the "
        f"factorisation stopped at observation {int(parts.rows.order[failure.row]) - before} of {where}."
    )
    if explain and covariance.size <= EIGENVALUES_UP_TO:
        matrix = covariance.dense()
        matrix.T.flat[:: covariance.size + 1] += covariance.noise
        if not np.isfinite(np.tril(matrix)).all():
            return InputError(
                f"the covariance of {where} has NaN or infinite entries: check the kernel {model.kernel!r} and the "
                "operator's coefficients there"
            )
        eigenvalues, vectors = np.linalg.eigh(matrix)
        text += (
            f" Its eigenvalues reach from {eigenvalues[0]:.1e} to {eigenvalues[-1]:.1e}, a condition number of "
            f"{eigenvalues[-1] / max(abs(eigenvalues[0]), EPS * eigenvalues[-1]):.0e} or more. "
            f"{_culprits(parts.by_block(vectors[:, 0] ** 2))}"
        )
    return NotPositiveDefiniteError(f"{text} {_remedy(model)}")


def _culprits(parts: dict[str, float]) -> str:
    total = sum(parts.values())
    named = [
        f"{label!r} ({100 * part / total:.0f}%)"
        for label, part in sorted(parts.items(), key=lambda item: -item[1])
        if part > 0.05 * total
    ]
    return f"The nearly dependent rows are in block{'s' if len(named) > 1 else ''} {listed(named)}."


def _remedy(model: Model) -> str:
    noises = [
        f"{'gamma' if block.role == 'data' else 'rho'} of {label!r} (now {temperature:.1e})"
        for block, label, temperature in zip(model.blocks, model.labels, model.temperatures, strict=True)
    ]
    twins = [
        f"{len(block.points) - count} coincident points in {label!r}"
        for block, label in zip(model.blocks, model.labels, strict=True)
        if block.matrix is None and (count := len(np.unique(block.points, axis=0))) < len(block.points)
    ]
    thin = f"; thin the {listed(twins)}" if twins else ""
    return f"What helps: raise {' or '.join(noises)}; shorten the kernel's bandwidth or use a rougher kernel{thin}."
