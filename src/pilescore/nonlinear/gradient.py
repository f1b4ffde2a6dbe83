"""The gradient of PILE of a nonlinear model, through its most likely solution by implicit differentiation.

At the solution misfit plus norm is stationary, so its total derivative is the partial derivative, the same as for the
linearised model. `log det C` is not stationary: the slopes `J(v)` move with the solution. Nor is the evidence of given
blocks, which is subtracted: they are linearised at the same solution, which is not their own. With `g` the derivative
of all this in `v` and the exact Hessian `Σ⁻¹ − M`, one adjoint system `(I − MΣ) h = g` gives the contribution for all
hyperparameters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from ..covariance import bilinear_gradient, layout
from ..errors import PilescoreError
from ..model import TEMPERATURES, Model, Path, follow, is_of_kernel, kernel_paths, named_paths
from ..solvers import CholeskyFactor, DenseCotangent, DenseFactored, NamedGradient, System
from .gauss_newton import DualExpansion, MapEstimate
from .hessian import Hessian
from .linearisation import Functionals, jets_of, linearised_block

ADJOINT_TOLERANCE = 1e-10
"""The relative residual at which the adjoint system counts as solved."""

ACCEPTED_RESIDUAL = 1e-3
"""The relative residual above which the gradient is refused, where rounding prevents the tolerance."""


def gradient(
    estimate: MapEstimate,
    wanted: Sequence[str],
    scale: float,
    given: System | None = None,
    missed: Bool[np.ndarray, " N"] | None = None,
) -> dict[str, Any]:
    """Return the derivatives of `N·PILE` at a solution by name, zero for names that its model does not have.

    This overwrites the factors of the systems.

    Parameters
    ----------
    estimate
        The solution.
    wanted
        The names.
    scale
        The fit if η is profiled, else one.
    given
        The system of those blocks of the model, linearised at the solution, whose evidence is subtracted.
    missed
        The rows whose squared residuals, in units of their noise, are added.
    """
    return _Adjoint(estimate, scale, given, missed).derivatives(wanted)


class _Evidence:
    """The evidence of all blocks of a linearised model, or of some, in the stacked order of all."""

    def __init__(self, sign: float, system: System, scale: float, linearised: Model) -> None:
        self.sign, self.system = sign, system
        self.numbers = [i for i, one in enumerate(linearised.blocks) if any(one is own for own in system.model.blocks)]
        """The numbers of the blocks."""
        block = np.repeat(np.arange(len(linearised.blocks)), [each.size for each in linearised.blocks])
        rows = np.flatnonzero(np.isin(block, self.numbers))
        self.alpha = np.zeros(len(block))
        """`α` on the rows of these blocks, zero elsewhere."""
        self.alpha[rows] = system.stacked_alpha
        self.position = np.full(len(block), -1)
        """Where each row is in the assembled order of the system; −1 for the rows of other blocks."""
        self.position[rows] = np.argsort(system.rows.order)
        names = [linearised.temperature_names[i] for i in self.numbers]
        self.linear_gradient = NamedGradient(system, scale, names)
        self.inverse = cast(DenseCotangent, self.linear_gradient.pull).weights.matrix.T


class _Adjoint:
    """The solution of the adjoint system, which the derivatives in all hyperparameters share."""

    def __init__(
        self, estimate: MapEstimate, scale: float, given: System | None, missed: Bool[np.ndarray, " N"] | None
    ) -> None:
        self.estimate, self.scale = estimate, scale
        # |t − F|²/S has the derivative −2 (t − F)/S in F, and α = (t − F)/S at the solution.
        self.by_observed = np.zeros(len(estimate.alpha)) if missed is None else -2.0 / scale * missed * estimate.alpha
        """The derivative of the added residuals in the observations `F`."""
        self.functionals: Functionals = estimate.functionals
        self.model: Model = estimate.functionals.model
        # NamedGradient turns the factor into the inverse in place; the Hessian still needs the factor: copy it first.
        factor = CholeskyFactor(estimate.system.factor.matrix.copy(order="F"), estimate.system.factor.diagonal)
        copied = DenseFactored(estimate.system.factored.covariance, factor)
        system = dataclasses.replace(estimate.system, factored=copied)
        self.hessian = Hessian(dataclasses.replace(estimate, system=system))
        self.evidences = [_Evidence(1.0, estimate.system, scale, estimate.system.model)]
        if given is not None:
            self.evidences.append(_Evidence(-1.0, given, scale, estimate.system.model))
        # With h = x + Jᵀw for the derivative w in F: ΣJᵀw = ΘJᵀC⁻¹Sw, which, unlike Σ itself, takes no difference. The
        # curvature M acts on it too, so that (I − MΣ) x = g + MΣJᵀw.
        weights = self.hessian.estimate.system.solve_stacked(self.model.noise * self.by_observed)
        coefficients = self.functionals.backward(estimate.slopes, weights)
        direct = DualExpansion(coefficients, self.functionals.product(coefficients))
        right = self._slope() + self.hessian.times_curvature(direct.values)
        adjoint = self.hessian.solve_adjoint(right, ADJOINT_TOLERANCE, ACCEPTED_RESIDUAL)
        if not np.isfinite(adjoint).all():
            raise PilescoreError(
                "the gradient could not be computed through the solution of the nonlinear equation: the exact Hessian "
                "there is singular to working precision"
            )
        self.moved = self.hessian.times_posterior(adjoint).towards(direct, 1.0)
        """`Σh` as values, and `h − JᵀC⁻¹JΘh` as coefficients."""
        self.weighted = self.functionals.forward(estimate.slopes, self.moved.values)
        ends = np.cumsum([block.size for block in self.model.blocks]).tolist()
        self.rows = [slice(end - block.size, end) for block, end in zip(self.model.blocks, ends, strict=True)]
        """The rows of each block in the stacked vectors."""

    def derivatives(self, wanted: Sequence[str]) -> dict[str, Any]:
        """Return the derivatives by name."""
        known = named_paths(self.model)
        kernel = {name: known[name] for name in wanted if is_of_kernel(known[name][0])}
        implicit: dict[str, Any] = self._temperatures(wanted) | self._kernel(kernel)
        total = implicit
        for each in self.evidences:
            linear = each.linear_gradient.all(list(implicit), known)
            total = {name: value + each.sign * linear[name] for name, value in total.items()}
        rest = {name: known[name] for name in wanted if name in known and name not in total}
        return dict.fromkeys(wanted, 0.0) | total | self._operators(rest)

    def _slope(self) -> Float[np.ndarray, " F"]:
        """Return `g`, the derivative of the score in the functional values, through the slopes `J(v)`."""
        functionals, estimate = self.functionals, self.estimate
        by_slope = np.zeros(functionals.size)
        position = np.argsort(functionals.layout.order)  # Θ is stored in the assembled order: invert the permutation
        for each in self.evidences:
            entries = [entry for entry in functionals.entries if each.position[functionals.row[entry.start]] >= 0]
            # ∂ log det C/∂J = 2 C⁻¹JΘ. Only the entries in the pattern of J are needed: summing these block by block
            # costs O(F²) operations, the whole product O(N²F).
            for nonlinear in functionals.nonlinear_blocks:
                for entry in filter(entries.__contains__, nonlinear.curved_entries):
                    total = np.zeros(nonlinear.block.size)
                    for other in entries:
                        prior = _symmetric_block(functionals.theta, position[entry], position[other])
                        first, second = (each.position[functionals.row[one]] for one in (entry, other))
                        inverse = _symmetric_block(each.inverse, first, second)
                        total += np.einsum("ij,ij,j->i", prior, inverse, estimate.slopes[other])
                    by_slope[entry] += 2.0 * each.sign * total
            if each.system is not estimate.system:
                # t̃ᵀC⁻¹t̃ with t̃ = t − F + Jv has the derivative 2α(v − ΘJᵀα) in J, which is zero for all blocks
                # together: there ΘJᵀα is the solution v itself.
                mean = functionals.product(functionals.backward(estimate.slopes, each.alpha))
                moved = each.alpha[functionals.row] * (estimate.expansion.values - mean)
                by_slope += 2.0 * each.sign / self.scale * moved
        curvature = functionals.second_derivatives(estimate.expansion.values)
        return functionals.pointwise_product(curvature, by_slope)

    def _temperatures(self, wanted: Sequence[str]) -> dict[str, float]:
        """Return the implicit derivatives in η and in the noise temperatures."""
        model, implicit = self.model, {}
        if "eta" in wanted:
            implicit["eta"] = float(self.moved.coefficients @ self.estimate.expansion.values) / float(model.eta)
        numbers = (*range(len(model.data)), *range(len(model.physics)))
        for block, rows, i, temperature in zip(model.blocks, self.rows, numbers, model.temperatures, strict=True):
            shared = TEMPERATURES[block.role]
            name = shared if block.temperature is None else f"{block.role}.{i}.{shared}"
            if name in wanted:
                own = -float(self.weighted[rows] @ self.estimate.alpha[rows]) / temperature
                implicit[name] = float(implicit.get(name, 0.0) + own)
        return implicit

    def _kernel(self, paths: dict[str, list[Path]]) -> dict[str, Any]:
        """Return the implicit derivatives in the parameters of the kernel."""
        if not paths:
            return {}
        position = {path: i for i, path in enumerate(kernel_paths(self.model))}
        leaves = [position[where[0]] for where in paths.values()]
        left = layout(self.functionals.scaled_blocks(self.moved.coefficients))
        system = self.estimate.system
        total = bilinear_gradient(self.model.kernel, leaves, left, system.rows, system.alpha, system.eta)
        return dict(zip(paths, total, strict=True))

    def _operators(self, paths: dict[str, list[Path]]) -> dict[str, Any]:
        """Return the full derivatives in parameters of operators, which change `P` and its linearisation."""
        if not paths:
            return {}
        system = self.estimate.system
        moved = layout(self.functionals.scaled_blocks(self.moved.coefficients))
        ones = np.ones(self.model.size)
        jets = [jets_of(self.model, block, system.rows, system.alpha) for block in self.model.blocks]
        moved_jets = [jets_of(self.model, block, moved, ones) for block in self.model.blocks]
        derivatives: dict[str, Any] = {}
        for name, where in paths.items():
            leaf = follow(self.model, where[0])
            total = [self._along(where, unit.reshape(leaf.shape), jets, moved_jets) for unit in np.eye(leaf.size)]
            derivatives[name] = np.reshape(total, leaf.shape)
        return derivatives

    def _along(self, where: list[Path], unit: Any, jets: list[np.ndarray], moved_jets: list[np.ndarray]) -> float:
        """Return the derivative along one entry of a parameter, at all the places where it occurs."""
        model, alpha = self.model, self.estimate.alpha

        def blocks(leaf: Any) -> list[tuple[Any, Any]]:
            changed = eqx.tree_at(lambda m: [follow(m, path) for path in where], model, [leaf] * len(where))
            return [linearised_block(block, jet) for block, jet in zip(changed.blocks, jets, strict=True)]

        _, tangents = jax.jvp(blocks, (follow(model, where[0]),), (jnp.asarray(unit),))
        tables = [np.asarray(table) for _, table in tangents]
        # The targets t̃ = t − F + Jv depend on the parameter through F and J.
        targets, total = np.empty(model.size), 0.0
        for block, rows, (change, _), table, jet, moved_jet in zip(
            model.blocks, self.rows, tangents, tables, jets, moved_jets, strict=True
        ):
            in_value = np.asarray(change)
            in_slopes, in_moved = ((table * each).sum(axis=0) for each in (jet, moved_jet))
            if block.matrix is not None:
                in_value, in_slopes, in_moved = (block.matrix @ each for each in (in_value, in_slopes, in_moved))
            targets[rows] = in_slopes - in_value
            total += float(self.by_observed[rows] @ in_value)
            # The implicit part, as Σh moves.
            total += float(alpha[rows] @ in_moved) - float((self.weighted[rows] / model.noise[rows]) @ in_value)
        for evidence in self.evidences:
            system = evidence.system
            tangent_rows = layout(system.model.blocks, [tables[i] for i in evidence.numbers])
            tangent = system.factored.covariance.coefficient_tangent([tangent_rows])
            own = float(evidence.linear_gradient.pull.contract(tangent)[0])
            total += evidence.sign * (own + 2.0 * float(evidence.alpha @ targets) / self.scale)
        return total


def _symmetric_block(lower: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the block between two runs of rows of a symmetric matrix, given by its lower triangle."""
    first, second = (slice(int(each[0]), int(each[-1]) + 1) for each in (rows, columns))
    if first.start == second.start:
        part = np.tril(lower[first, second])
        return part + np.tril(part, -1).T
    return lower[first, second] if first.start > second.start else lower[second, first].T
