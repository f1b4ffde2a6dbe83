"""What all checks of a diagnosis share: the model taken apart, and its score at other hyperparameters."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from .errors import PilescoreError
from .findings import Finding, Severity, Thresholds
from .inspection import Inspection, inspect, robust, without
from .minimum import Minimum
from .model import Model, is_temperature, named_paths
from .score import value
from .system import solve

FEWEST = 8
"""Data with fewer values have no meaningful spread."""

OFTEN = 0.05
"""The share of the data beyond which large errors are no outliers, but tails that the model does not have."""

STRETCHES = (0.25, 0.5, math.sqrt(0.5), math.sqrt(2.0), 2.0, 4.0)
"""Factors of all bandwidths in the profile about the present ones."""


@dataclasses.dataclass(frozen=True, eq=False)
class Examination:
    """A model under examination, with all that is known of the search that it came from."""

    model: Model
    minimum: Minimum | None
    bounds: Mapping[str, tuple[float, float]]
    """Bounds by the names of single hyperparameters, where known."""
    given_physics: bool
    thresholds: Thresholds

    @functools.cached_property
    def inspection(self) -> Inspection:
        """The model taken apart."""
        return inspect(self.model)

    @functools.cached_property
    def outlying(self) -> Int[np.ndarray, " k"]:
        """Data whose left-out errors are far beyond those of the rest, the worst first; none where they are many."""
        sizes = robust(self.inspection)
        rows = np.flatnonzero(sizes > self.thresholds.outliers)
        few = len(sizes) >= FEWEST and len(rows) <= max(2, OFTEN * len(sizes))
        return rows[np.argsort(-sizes[rows])] if few else rows[:0]

    @functools.cached_property
    def cleaned(self) -> Inspection:
        """The model without outlying data, taken apart: these would pass for contradictions."""
        return inspect(without(self.model, self.outlying)) if len(self.outlying) else self.inspection

    @functools.cached_property
    def base(self) -> float:
        """The free energy of the model as it is."""
        return self.energy({})

    def energy(self, changes: Mapping[str, Any]) -> float:
        """Return the free energy with other hyperparameters; infinite where it cannot be computed."""
        try:
            changed = self.model.replace(changes)
            return value(solve(changed, explain=False), False, self.given_physics, warn=False).free_energy
        except PilescoreError:
            return math.inf

    @functools.cached_property
    def at_bounds(self) -> dict[str, Literal["lower", "upper"]]:
        """Hyperparameters that are at a bound."""
        found: dict[str, Literal["lower", "upper"]] = {}
        if self.minimum is not None:
            found |= self.minimum.at_bounds
        found |= {name: "lower" if self.place(name) < 0.5 else "upper" for name in self.bounds if self._edge(name)}
        return found

    def place(self, name: str) -> float:
        """Return where a hyperparameter stands between its bounds, from 0 to 1; positive ones by their logarithm."""
        (low, high), now = self.bounds[name], single_values(self.model)[name]
        return math.log(now / low) / math.log(high / low) if low > 0 else (now - low) / (high - low)

    def _edge(self, name: str) -> bool:
        place = self.place(name)
        return min(place, 1.0 - place) <= self.thresholds.at_bound

    @property
    def temperatures(self) -> dict[str, float]:
        """γ, ρ, η and blocks' own temperatures, by name."""
        paths = named_paths(self.model)
        return {name: float(v) for name, v in self.model.parameters.items() if is_temperature(paths[name][0])}

    @functools.cached_property
    def stretched(self) -> dict[float, float]:
        """Nats gained by other bandwidths, by the factor of all of them that may go that way."""
        given = {name: np.asarray(self.model.parameters[name]) for name in bandwidths(self.model)}
        gains = {}
        for factor in STRETCHES:
            side = "lower" if factor < 1 else "upper"
            held = {name.split("[")[0] for name, at in self.at_bounds.items() if at == side}
            moved = {name: factor * value for name, value in given.items() if name not in held}
            gains[factor] = self.base - self.energy(moved) if moved else 0.0
        return gains

    @functools.cached_property
    def calmer(self) -> dict[str, float]:
        """Nats gained by more noise, by longer bandwidths, and by both."""
        noises = {name: now for name, now in self.temperatures.items() if name != "eta"}
        lengths = {name: np.asarray(self.model.parameters[name]) for name in bandwidths(self.model)}
        gains = {f"bandwidths × {by:.2g}": nats for by, nats in self.stretched.items() if by > 1}
        for name, now in noises.items():
            for factor in (10.0, 100.0, 1e4):
                gains[f"{name} × {factor:g}"] = self.base - self.energy({name: factor * now})
                for by in (2.0, 5.0) if lengths else ():
                    longer = {each: by * value for each, value in lengths.items()}
                    nats = self.base - self.energy({name: factor * now, **longer})
                    gains[f"{name} × {factor:g} with bandwidths × {by:g}"] = nats
        return gains


def single_values(model: Model) -> dict[str, float]:
    """Return every hyperparameter, elements of vectors one by one, by name."""
    found: dict[str, float] = {}
    for name, given in model.parameters.items():
        array = np.asarray(given)
        if array.ndim == 0:
            found[name] = float(array)
        else:
            for index in np.ndindex(*array.shape):
                found[f"{name}[{', '.join(map(str, index))}]"] = float(array[index])
    return found


def bandwidths(model: Model) -> list[str]:
    """Return the names of the lengths of a kernel."""
    return [name for name in model.parameters if name.startswith("kernel.") and name.split(".")[-1] == "bandwidth"]


def finding(
    examination: Examination,
    name: str,
    number: float,
    severity: Severity,
    measure: str,
    meaning: str,
    advice: str,
    *,
    below: bool = False,
    fires: bool | None = None,
    **details: Any,
) -> Finding:
    """Return the outcome of a check: it fires beyond its threshold, unless `fires` says otherwise."""
    threshold = float(getattr(examination.thresholds, name))
    beyond = number < threshold if below else number > threshold
    status: Literal["fired", "fine"] = "fired" if (beyond if fires is None else fires) else "fine"
    return Finding(name, status, severity, float(number), threshold, below, measure, meaning, advice, details)


def skipped(examination: Examination, name: str, why: str) -> Finding:
    """Return a check that could not be made."""
    threshold = float(getattr(examination.thresholds, name))
    return Finding(name, "skipped", "note", math.nan, threshold, False, "", why, "", {})
