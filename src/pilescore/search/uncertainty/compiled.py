"""Densities of hyperparameters as compiled functions, for the many values that points and chains need."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ...inference import CompiledEvidence, Targets, can_be_compiled
from ...parallel import ONE_BLAS_THREAD, cores
from ..objective import has_lost_digits
from .density import HyperparameterDensity

BATCH = 24
"""How many log densities are computed by one call."""


@dataclasses.dataclass(frozen=True, eq=False)
class CompiledDensity(HyperparameterDensity):
    """The same density, computed by one compiled function. Its compilation takes as long as some hundred scores."""

    def log_densities(self, t: Float[np.ndarray, "n p"]) -> Float[np.ndarray, " n"]:
        """Return the log densities of many points; minus infinity where the model cannot be scored."""
        parts = [t[start : start + BATCH] for start in range(0, len(t), BATCH)]
        with ONE_BLAS_THREAD, concurrent.futures.ThreadPoolExecutor(cores()) as pool:
            found = np.concatenate(list(pool.map(self._batch, parts)))
        return found + self.log_priors(t)[0]

    def _batch(self, t: Float[np.ndarray, "n p"]) -> Float[np.ndarray, " n"]:
        values = self.values(t)
        padded = np.concatenate([values, np.repeat(values[:1], BATCH - len(t), axis=0)])  # one size: one compilation
        evidence, rounding, quadratic = (np.asarray(each)[: len(t)] for each in self._functions[0](padded))
        lost = has_lost_digits(rounding, quadratic) if self._is_exact else np.zeros(len(t), dtype=bool)
        return np.where(np.isfinite(evidence) & ~lost, evidence, -np.inf)

    def value_and_slope(self, t: Float[np.ndarray, " p"]) -> tuple[float, Float[np.ndarray, " p"]]:
        """Return the log density and its gradient; minus infinity and zeros where the model cannot be scored."""
        values = self.values(t)
        with ONE_BLAS_THREAD:
            (evidence, rounding, quadratic), by_value = self._functions[1](values)
            evidence, by_value = float(evidence), np.asarray(by_value)
        lost = self._is_exact and has_lost_digits(np.asarray(rounding), np.asarray(quadratic))
        if lost or not (math.isfinite(evidence) and np.isfinite(by_value).all()):
            return -math.inf, np.zeros_like(t)
        prior, by_t = self.log_prior(t)
        return evidence + prior, by_t + by_value * self.space.slope(values) * self.stretch(t)

    @property
    def _is_exact(self) -> bool:
        model = self.space.model
        return any(map(model.is_exact, range(len(model.blocks))))

    @property
    def _functions(self) -> tuple[Any, Any]:
        """The log evidence with its rounding of a batch of points, and the same with its gradient of one point."""
        if self.score not in self.space.compiled:
            self.space.compiled[self.score] = self._compiled()
        return self.space.compiled[self.score]

    def _compiled(self) -> tuple[Any, Any]:
        space = self.space
        targets = Targets(space.model, [*space.names, *space.ties])
        evidence = CompiledEvidence(targets, self.score)

        def leaves(values: Any) -> list[Any]:
            named = space.grouped(values)
            tied = [jnp.asarray(function(named), dtype=float) for function in space.ties.values()]
            return [*values, *tied]

        def value(values: Any) -> tuple[Any, Any, Any]:
            moved = leaves(values)
            found, rounding, quadratic = evidence.value_and_rounding(moved)
            # Values between their bounds are accepted; those of ties may not be.
            return jnp.where(targets.accepted(moved), found, jnp.nan) if space.ties else found, rounding, quadratic

        def value_and_slope(values: Any) -> tuple[Any, Any]:
            moved, pull = jax.vjp(leaves, values)
            return value(values), pull(evidence.value_and_slopes(moved)[1])[0]

        return jax.jit(lambda batch: jax.lax.map(value, batch)), jax.jit(value_and_slope)


def compiled(density: HyperparameterDensity) -> CompiledDensity | None:
    """Return the density as a compiled function if its model is small and linear."""
    if not can_be_compiled(density.space.model):
        return None
    return CompiledDensity(density.space, density.score, density.priors, density.warm_start)
