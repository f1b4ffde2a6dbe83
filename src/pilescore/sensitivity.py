"""The gradient of PILE of a nonlinear model: through its most likely solution by implicit differentiation.

At the solution the misfit and the norm together are stationary, so that their gradient is that of the linearised
model. `log det C` is not: its coefficients `J(v)` follow the solution. With `g = ∂ log det C/∂v` and the Hessian of
`hessians`, one linear system `(I − MΣ) h = g` gives what that adds to the gradient in every hyperparameter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .errors import PilescoreError
from .frames import Frame, pure_linearised
from .gauss_newton import Map
from .gram import bilinear_gradient
from .hessians import Hessian
from .layouts import layout
from .linalg import DenseFactored, DensePull, Factor
from .model import TEMPERATURES, Model, Path, follow, kernel_paths, named_paths
from .nonlinear import Nonlinear
from .observations import Observation
from .score import Pull

PRECISE = 1e-10
"""The residual at which the linear system of the sensitivity is solved, as far as rounding lets it."""

ACCEPTED = 1e-3
"""The residual beyond which a gradient is refused."""


def gradient(found: Map, wanted: Sequence[str], scale: float) -> dict[str, Any]:
    """Return the derivatives of `N·PILE` at a solution by name, zero for names that its model does not have.

    The factor of its system is gone after it. `scale` is the fit where η is profiled, else one.
    """
    return _Sensitivity(found, scale).all(wanted)


class _Sensitivity:
    """What all names share."""

    def __init__(self, found: Map, scale: float) -> None:
        self.found, self.scale = found, scale
        self.frame: Frame = found.frame
        self.model: Model = found.frame.model
        factor = Factor(found.system.factor.matrix.copy(order="F"), found.system.factor.diagonal)
        copied = DenseFactored(found.system.factored.covariance, factor)
        self.hessian = Hessian(dataclasses.replace(found, system=dataclasses.replace(found.system, factored=copied)))
        self.pull = Pull(found.system, scale)
        self.inverse = cast(DensePull, self.pull.pull).weights.matrix.T
        adjoint = self._adjoint(self._slope())
        self.moved = self.hessian.conditioned(adjoint)
        """`Σh` as values, and `b = h − JᵀC⁻¹JΘh` as coefficients."""
        self.weighted = self.frame.forward(found.slopes, self.moved.values)

    def all(self, wanted: Sequence[str]) -> dict[str, Any]:
        """Return the derivatives."""
        known = named_paths(self.model)
        kernel = {name: known[name] for name in wanted if name.startswith("kernel.")}
        found = {name: float(total) for name, total in self._temperatures(wanted).items()}
        found |= self._kernel(kernel)
        linear = self.pull.all([name for name in wanted if name in found], known)
        for name in found:
            found[name] = found[name] + linear[name]
        rest = {name: known[name] for name in wanted if name in known and name not in found}
        return dict.fromkeys(wanted, 0.0) | found | self._operators(rest)

    def _slope(self) -> Float[np.ndarray, " F"]:
        """Return `g`: the derivative of `log det C` in the values, through the coefficients."""
        frame, slopes = self.frame, self.found.slopes
        by_slope = np.zeros(frame.size)
        position = np.empty(frame.size, dtype=int)
        position[frame.layout.order] = np.arange(frame.size)
        rows = np.empty(self.model.size, dtype=int)
        rows[self.found.system.rows.order] = np.arange(self.model.size)
        pieces = [each for part in frame.parts for each in part.entries]
        pieces += list(frame.linear_entries)
        for part in frame.parts:
            for where in part.entries[: len(part.bent)]:
                total = np.zeros(part.block.size)
                for other in pieces:
                    prior = _between(frame.theta, position[where], position[other])
                    inverse = _between(self.inverse, rows[frame.row[where]], rows[frame.row[other]])
                    total += np.einsum("ij,ij,j->i", prior, inverse, slopes[other])
                by_slope[where] = 2.0 * total
        out = np.zeros(frame.size)
        for part, bend in zip(frame.parts, frame.bends(self.found.state.values), strict=True):
            entries = part.entries[: len(part.bent)]
            for i, where in enumerate(entries):
                out[where] = sum(bend[i, j] * by_slope[other] for j, other in enumerate(entries))
        return out

    def _adjoint(self, right: Float[np.ndarray, " F"]) -> Float[np.ndarray, " F"]:
        """Return `h` with `(I − MΣ) h = g`."""
        found = self.hessian.times_inverse(right, PRECISE, ACCEPTED)
        if not np.isfinite(found).all():
            raise PilescoreError(
                "the gradient could not be carried through the solution of the nonlinear equation: the exact Hessian "
                "there is nearly singular, or rounding has taken its digits"
            )
        return found

    def _temperatures(self, wanted: Sequence[str]) -> dict[str, float]:
        model, found = self.model, {}
        if "eta" in wanted:
            found["eta"] = float(self.moved.coefficients @ self.found.state.values) / float(model.eta)
        start = 0
        numbers = (*range(len(model.data)), *range(len(model.physics)))
        for block, i, temperature in zip(model.blocks, numbers, model.temperatures, strict=True):
            rows = slice(start, start + block.size)
            shared = TEMPERATURES[block.role]
            name = shared if block.temperature is None else f"{block.role}.{i}.{shared}"
            if name in wanted:
                part = -float(self.weighted[rows] @ self.found.alpha[rows]) / temperature
                found[name] = found.get(name, 0.0) + part
            start += block.size
        return found

    def _kernel(self, paths: dict[str, list[Path]]) -> dict[str, Any]:
        if not paths:
            return {}
        position = {path: i for i, path in enumerate(kernel_paths(self.model))}
        leaves = [position[where[0]] for where in paths.values()]
        left = layout(self.frame.scaled_blocks(self.moved.coefficients))
        system = self.found.system
        total = bilinear_gradient(self.model.kernel, leaves, left, system.rows, system.alpha, system.eta)
        return dict(zip(paths, total, strict=True))

    def _operators(self, paths: dict[str, list[Path]]) -> dict[str, Any]:
        """Return the derivatives in parameters of operators: `P` and its linearisation change with them."""
        if not paths:
            return {}
        system = self.found.system
        moved = layout(self.frame.scaled_blocks(self.moved.coefficients))
        ones = np.ones(self.model.size)
        jets = [self.frame.jets(block, system.rows, system.alpha) for block in self.model.blocks]
        others = [self.frame.jets(block, moved, ones) for block in self.model.blocks]
        found: dict[str, Any] = {}
        for name, where in paths.items():
            leaf = follow(self.model, where[0])
            total = [self._along(where, unit.reshape(leaf.shape), jets, others) for unit in np.eye(leaf.size)]
            found[name] = np.reshape(total, leaf.shape)
        return found

    def _along(self, where: list[Path], unit: Any, jets: list[np.ndarray], others: list[np.ndarray]) -> float:
        """Return the derivative along one entry of a parameter, wherever it stands."""
        model, system, alpha = self.model, self.found.system, self.found.alpha

        def blocks(leaf: Any) -> list[tuple[Any, Any]]:
            moved = eqx.tree_at(lambda m: [follow(m, path) for path in where], model, [leaf] * len(where))
            return [_observed(block, jet) for block, jet in zip(moved.blocks, jets, strict=True)]

        _, tangents = jax.jvp(blocks, (follow(model, where[0]),), (jnp.asarray(unit),))
        held = [np.asarray(table) for _, table in tangents]
        whole = layout(system.model.blocks, held)
        total = float(self.pull.pull.contract(system.factored.covariance.moved([whole]))[0])
        start = 0
        for block, (seen, _), table, jet, other in zip(model.blocks, tangents, held, jets, others, strict=True):
            rows = slice(start, start + block.size)
            start += block.size
            of_values = np.asarray(seen)
            of_jets, of_others = ((table * each).sum(axis=0) for each in (jet, other))
            if block.matrix is not None:
                of_values, of_jets, of_others = (block.matrix @ each for each in (of_values, of_jets, of_others))
            total += 2.0 * float(alpha[rows] @ (of_jets - of_values)) / self.scale
            total += float(alpha[rows] @ of_others) - float((self.weighted[rows] / model.noise[rows]) @ of_values)
        return total


def _observed(block: Observation, jets: np.ndarray) -> tuple[Any, Any]:
    """Return what a block would observe of given derivatives of the unknown, and its coefficients."""
    if isinstance(block.operator, Nonlinear):
        return pure_linearised(block.operator, block.points, jnp.asarray(jets))
    table = block.coefficients
    return (table * jets).sum(axis=0), table


def _between(lower: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return a block of a symmetric matrix, given by its lower triangle, between two runs of rows."""
    first, second = (slice(int(each[0]), int(each[-1]) + 1) for each in (rows, columns))
    if first.start == second.start:
        part = np.tril(lower[first, second])
        return part + np.tril(part, -1).T
    return lower[first, second] if first.start > second.start else lower[second, first].T
