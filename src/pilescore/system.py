"""A model's covariance, assembled, factored and solved: what scores and posteriors are read from."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
from jaxtyping import Float

from .errors import InputError, NotPositiveDefiniteError, PrecisionWarning, listed
from .gram import covariance
from .layouts import Assembly, Layout, assembly
from .linalg import EPS, Factor, NotFactorableError, cholesky, threads
from .model import Model

EIGENVALUES_UP_TO = 3000
"""The size up to which a failed factorisation is explained by the eigenvalues of the matrix."""


IMPRECISE = 1e-6
"""The rounding error of PILE from which on a warning is given."""


@dataclasses.dataclass(frozen=True, eq=False)
class System:
    """`C = ηQ + S` of a model, with its factor and `α = C⁻¹ỹ`; vectors are in the order of assembly."""

    model: Model
    assembly: Assembly
    eta: float
    noise: Float[np.ndarray, " N"]
    factor: Factor
    alpha: Float[np.ndarray, " N"]
    error: float
    """An estimate of the rounding error of `N·PILE`."""

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
        return float(self.values @ self.alpha)

    @property
    def rounding(self) -> float:
        """An estimate of the rounding error of PILE."""
        return self.error / len(self.alpha)

    def warn_if_imprecise(self, stacklevel: int = 4) -> None:
        """Warn, naming the blocks involved, if rounding has taken the digits of the score."""
        if self.rounding > IMPRECISE:
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
    for block, label in zip(model.blocks, model.labels, strict=True):
        if block.is_nonlinear:
            raise InputError(
                f"model: expected a linear one; block {label!r} is nonlinear ({block.operator}). Find its most likely "
                "solution first, solved = ps.solve_nonlinear(model), and go on with solved.model"
            )
    eta = float(model.eta) if eta is None else eta
    parts = assembly(model.blocks)
    noise = noise_factor * np.asarray(model.temperatures)[parts.block] * parts.spread
    matrix = _covariance(model, parts, eta, noise)
    try:
        factor = cholesky(matrix)
    except NotFactorableError as failure:
        raise _explained(model, parts, eta, noise, failure, explain) from None
    alpha, rounding = factor.solve_with_rounding(parts.values)
    return System(model, parts, eta, noise, factor, alpha, rounding)


def _covariance(model: Model, parts: Assembly, eta: float, noise: Float[np.ndarray, " N"]) -> Float[np.ndarray, "N N"]:
    matrix = covariance(model.kernel, parts.rows, eta)
    matrix.T.flat[:: len(noise) + 1] += noise
    return matrix


def _explained(
    model: Model, parts: Assembly, eta: float, noise: np.ndarray, failure: NotFactorableError, explain: bool
) -> Exception:
    """Say which block a failed factorisation stopped in, how ill-conditioned the matrix is, and what to do."""
    index = int(parts.block[failure.row])
    before = sum(block.size for block in model.blocks[:index])
    where = f"block {model.labels[index]!r} ({model.blocks[index].operator})"
    text = (
        f"the covariance of {len(noise)} observations is not positive definite to working precision: the "
        f"factorisation stopped at observation {int(parts.rows.order[failure.row]) - before} of {where}."
    )
    if explain and len(noise) <= EIGENVALUES_UP_TO:
        matrix = _covariance(model, parts, eta, noise)
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
