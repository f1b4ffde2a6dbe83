"""The linear system of a model, assembled, factored and solved, and gradients of the evidence from its factor."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from ..covariance import Assembly, KernelCovariance, Layout, assembly, layout
from ..errors import InputError, NotPositiveDefiniteError, PrecisionWarning, listed, require
from ..model import Model, Path, follow, is_of_kernel, is_temperature, kernel_paths, named_paths
from ..parallel import threads
from .interface import Bounds, Estimate, Factored
from .lapack import EPS, CholeskyFactor, ConditionalFactored, Dense, DenseFactored, NotFactorableError

EIGENVALUES_UP_TO = 3000
"""The largest number of observations for which eigenvalues explain a failed factorisation."""

IMPRECISE = 1e-6
"""The rounding error of PILE above which a warning is issued."""

IMPRECISE_NATS = 0.02
"""The rounding error of the free energy, in nats, above which a warning is issued for a model with exact equations."""


@dataclasses.dataclass(frozen=True, eq=False)
class System:
    """The covariance `C = ηQ + S` of a model, factored by its solver; vectors are in the assembled order."""

    model: Model
    assembly: Assembly
    eta: float
    noise: Float[np.ndarray, " N"]
    factored: Factored

    @property
    def factor(self) -> CholeskyFactor:
        """The Cholesky factor; only the dense solver computes it."""
        if not isinstance(self.factored, DenseFactored):
            raise InputError(
                f"solver: this needs the Cholesky factor of the whole covariance, which the solver "
                f"{self.factored.method!r} does not compute; use solver='dense'"
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
        """Return the system of a model that differs only in its values, with the same factor; needs a dense solver."""
        if model is self.model:
            return self
        parts = dataclasses.replace(self.assembly, values=model.values[self.rows.order])
        covariance = KernelCovariance(self.model.kernel, parts.rows, self.eta, parts.values, self.noise)
        if not isinstance(self.factored, DenseFactored | ConditionalFactored):
            raise InputError(f"solver: expected 'dense' to score other values; got {self.factored.method!r}")
        return dataclasses.replace(self, model=model, assembly=parts, factored=self.factored.with_values(covariance))

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
        return self.error / self.factored.scored

    @property
    def is_imprecise(self) -> bool:
        """Whether rounding matters; exact equations cost digits by design: there it is nats that count."""
        by_design = self.factored.scored < len(self.values) or any(block.exact for block in self.model.blocks)
        return self.error > 2.0 * IMPRECISE_NATS if by_design else self.rounding > IMPRECISE

    def warn_if_imprecise(self, stacklevel: int = 4) -> None:
        """Warn if rounding makes the score imprecise, and name the blocks that cause it."""
        if not self.is_imprecise:
            return
        text = f"rounding leaves PILE uncertain by about {self.rounding:.1e}"
        if isinstance(self.factored, DenseFactored | ConditionalFactored):
            factor = self.factored.factor
            # C_ii / L_ii² is the variance of a row over its variance given the rows before it: large for a row that
            # the others nearly determine.
            redundancy = factor.diagonal / factor.matrix.diagonal() ** 2
            if isinstance(self.factored, ConditionalFactored):
                redundancy[self.factored.order] = redundancy.copy()
            culprits = _culprits(self.assembly.by_block(redundancy))
            text += f" (condition number about {factor.condition():.1e}). {culprits}"
        else:
            text += "."
        warnings.warn(f"{text} {_remedy(self.model)}", PrecisionWarning, stacklevel=stacklevel)


def solve(
    model: Model,
    eta: float | None = None,
    noise_factor: float = 1.0,
    *,
    given: Sequence[int] = (),
    explain: bool = True,
) -> System:
    """Assemble, factor and solve the system of a linear model.

    Parameters
    ----------
    model
        The model.
    eta
        Replaces the model's scale η, if given.
    noise_factor
        Multiplies the model's noise variances.
    given
        The positions of blocks that are given; the others are scored. It needs the dense solver.
    explain
        Whether to explain a failure by the eigenvalues of the matrix, which cost more than the factorisation.
    """
    parts, covariance = _assembled(model, eta, noise_factor)
    try:
        if given:
            rows = np.isin(parts.block, np.asarray(given))
            factored: Factored = Dense().factor_given(covariance, rows)
        else:
            factored = model.solver.factor(covariance)
        return System(model, parts, covariance.eta, covariance.noise, factored)
    except NotFactorableError as failure:
        raise _explained(model, parts, covariance, failure, explain) from None


def estimate_cost(model: Model) -> Estimate:
    """Return the memory, disk space and operations that one score of a model needs, without computing it.

    Parameters
    ----------
    model
        The model, with its solver.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 10_000)
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.5), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.1)
    >>> ps.solvers.estimate_cost(model)
    Estimate(dense: 0.8 GB of memory, 3.3e+11 flops)
    """
    require(isinstance(model, Model), "model", model, "a ps.Model")
    return model.solver.estimate(_assembled(model, None, 1.0)[1])


def _assembled(model: Model, eta: float | None, noise_factor: float) -> tuple[Assembly, KernelCovariance]:
    for block, label in zip(model.blocks, model.labels, strict=True):
        if block.is_nonlinear:
            raise InputError(
                f"model: expected a linear model; block {label!r} is nonlinear ({block.operator}). Use the model "
                "linearised around its most likely solution, ps.solve_nonlinear(model).model"
            )
    eta = float(model.eta) if eta is None else eta
    parts = assembly(model.blocks)
    noise = noise_factor * np.asarray(model.temperatures)[parts.block] * parts.spread
    return parts, KernelCovariance(model.kernel, parts.rows, eta, parts.values, noise)


def _explained(
    model: Model, parts: Assembly, covariance: KernelCovariance, failure: NotFactorableError, explain: bool
) -> Exception:
    """Return an error that names the block where a factorisation failed, the conditioning, and remedies."""
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
            f" Its eigenvalues range from {eigenvalues[0]:.1e} to {eigenvalues[-1]:.1e}, a condition number of at "
            f"least {eigenvalues[-1] / max(abs(eigenvalues[0]), EPS * eigenvalues[-1]):.0e}. "
            f"{_culprits(parts.by_block(vectors[:, 0] ** 2))}"
        )
    return NotPositiveDefiniteError(f"{text} {_remedy(model)}")


def _culprits(by_block: dict[str, float]) -> str:
    """Name the blocks that contribute more than 5% of a total."""
    total = sum(by_block.values())
    named = [
        f"{label!r} ({100 * value / total:.0f}%)"
        for label, value in sorted(by_block.items(), key=lambda item: -item[1])
        if value > 0.05 * total
    ]
    return f"The nearly dependent rows are in block{'s' if len(named) > 1 else ''} {listed(named)}."


def _remedy(model: Model) -> str:
    """Say how to make a covariance better conditioned."""
    noises = [
        f"{'gamma' if block.role == 'data' else 'rho'} of {label!r} (now {temperature:.1e})"
        for block, label, temperature in zip(model.blocks, model.labels, model.temperatures, strict=True)
        if not block.exact
    ]
    raised = f"raise {' or '.join(noises)}; " if noises else ""
    twins = [
        f"{len(block.points) - count} coincident points in {label!r}"
        for block, label in zip(model.blocks, model.labels, strict=True)
        if not block.is_functional and (count := len(np.unique(block.points, axis=0))) < len(block.points)
    ]
    thin = f"; thin the {listed(twins)}" if twins else ""
    return f"What helps: {raised}shorten the kernel's bandwidth or use a rougher kernel{thin}."


class NamedGradient:
    """Contracts `G = C⁻¹ − ααᵀ/scale` with derivatives of `C`; `scale` is `η̂/η` if η is profiled, else 1.

    `temperature_names` are the names of the temperatures of the system's blocks, if they are some of the blocks of
    another model, where they have other numbers.
    """

    def __init__(self, system: System, scale: float, temperature_names: Sequence[str] | None = None) -> None:
        self.system = system
        self.scale = scale
        self.temperature_names = temperature_names or system.model.temperature_names
        self.pull = system.factored.cotangent(scale)
        self.diagonal = self.pull.diagonal

    def all(self, names: Sequence[str], known: Mapping[str, list[Path]]) -> dict[str, Any]:
        """Return the contractions for all names; zero for hyperparameters that this system does not contain."""
        slopes = self.temperatures(names)
        slopes |= self.kernel({name: known[name] for name in names if is_of_kernel(known[name][0])})
        own = named_paths(self.system.model)
        rest = {name: own[name] for name in names if name not in slopes and name in own}
        slopes |= self.operators({name: paths for name, paths in rest.items() if not is_temperature(paths[0])})
        return {name: slopes.get(name, 0.0) for name in names}

    def temperatures(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the gradient in η and in every γ and ρ; they need only the diagonal of `G`."""
        system = self.system
        slopes: dict[str, Any] = {}
        if "eta" in names:
            # η ∂C/∂η = ηQ = C − S, and tr(G C) = N − ỹᵀC⁻¹ỹ/scale: no contraction with Q is needed.
            noise = float(system.noise @ self.diagonal)
            slopes["eta"] = (system.factored.scored - system.quadratic / self.scale - noise) / system.eta
        by_block = np.bincount(system.assembly.block, weights=self.diagonal * system.assembly.spread)
        for name, slope in zip(self.temperature_names, by_block, strict=True):
            if name in names:
                slopes[name] = slopes.get(name, 0.0) + float(slope)
        return slopes

    def kernel(self, paths: Mapping[str, list[Path]]) -> dict[str, Any]:
        """Return the gradient in the kernel's hyperparameters, by forward-mode differentiation of the assembly."""
        if not paths:
            return {}
        model = self.system.model
        position = {path: i for i, path in enumerate(kernel_paths(model))}
        leaves = [position[places[0]] for places in paths.values()]
        slopes = iter(self.pull.contract(self.system.factored.covariance.tangent(leaves)))
        shapes = {name: np.shape(follow(model, places[0])) for name, places in paths.items()}
        return {name: np.reshape([next(slopes) for _ in range(math.prod(s))], s) for name, s in shapes.items()}

    def operators(self, paths: Mapping[str, list[Path]]) -> dict[str, Any]:
        """Return the gradient in parameters inside operators, through the coefficients at the nodes."""
        model = self.system.model
        slopes: dict[str, Any] = {}
        for name, places in paths.items():
            leaf = follow(model, places[0])
            layouts = [_moved(model, places, unit.reshape(leaf.shape)) for unit in np.eye(leaf.size)]
            tangent = self.system.factored.covariance.coefficient_tangent(layouts)
            slopes[name] = np.reshape(self.pull.contract(tangent), leaf.shape)
        return slopes


def plain(value: Any) -> Any:
    """Return a single number as a float, and an array unchanged."""
    return float(value) if np.ndim(value) == 0 else value


def _moved(model: Model, places: list[Path], unit: Any) -> Layout:
    """Return the layout whose coefficients are the derivatives in one parameter, in all its places."""

    def tables(leaf: Any) -> list[Any]:
        changed = eqx.tree_at(lambda m: [follow(m, path) for path in places], model, [leaf] * len(places))
        return [block.coefficients for block in changed.blocks]

    _, tangents = jax.jvp(tables, (follow(model, places[0]),), (unit,))
    return layout(model.blocks, tangents)
