"""The gradient of the evidence in every hyperparameter: `tr[(C⁻¹ − ααᵀ) ∂C]`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ..covariance import Layout, layout
from ..model import TEMPERATURES, Model, Path, follow, is_of_kernel, kernel_paths, named_paths
from .system import System


class NamedGradient:
    """Contracts `G = C⁻¹ − ααᵀ/scale` with derivatives of `C`; `scale` is `η̂/η` if η is profiled, else 1."""

    def __init__(self, system: System, scale: float) -> None:
        self.system = system
        self.scale = scale
        self.pull = system.factored.cotangent(scale)
        self.diagonal = self.pull.diagonal

    def all(self, names: Sequence[str], known: Mapping[str, list[Path]]) -> dict[str, Any]:
        """Return the contractions for all names; zero for hyperparameters that this system does not contain."""
        slopes = self.temperatures(names)
        slopes |= self.kernel({name: known[name] for name in names if is_of_kernel(known[name][0])})
        own = named_paths(self.system.model)
        slopes |= self.operators({name: own[name] for name in names if name not in slopes and name in own})
        return {name: slopes.get(name, 0.0) for name in names}

    def temperatures(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the gradient in η and in every γ and ρ; they need only the diagonal of `G`."""
        system, model = self.system, self.system.model
        slopes: dict[str, Any] = {}
        if "eta" in names:
            # η ∂C/∂η = ηQ = C − S, and tr(G C) = N − ỹᵀC⁻¹ỹ/scale: no contraction with Q is needed.
            noise = float(system.noise @ self.diagonal)
            slopes["eta"] = (len(system.values) - system.quadratic / self.scale - noise) / system.eta
        by_block = np.bincount(system.assembly.block, weights=self.diagonal * system.assembly.spread)
        numbers = (*range(len(model.data)), *range(len(model.physics)))
        for block, i, slope in zip(model.blocks, numbers, by_block, strict=True):
            shared = TEMPERATURES[block.role]
            name = shared if block.temperature is None else f"{block.role}.{i}.{shared}"
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
