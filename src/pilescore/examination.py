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
from .evaluation import Trail, score_of
from .findings import Finding, Severity, Thresholds
from .inspection import Inspection, inspect, robust, without
from .minimum import Minimum
from .model import Model, is_temperature, named_paths
from .score import Pile
from .space import Space

FEWEST = 8
"""Data with fewer values have no meaningful spread."""

UNLIKELY = 3.0
"""Predicted deviations that an outlier is off by, too: in a smooth problem the largest of tiny errors is none."""

OFTEN = 0.05
"""The share of the data beyond which large errors are no outliers, but tails that the model does not have."""

UNCERTAIN = 0.1
"""Nats of rounding error from which on a score is not used."""

STRETCHES = (0.25, 0.5, math.sqrt(0.5), math.sqrt(2.0), 2.0, 4.0)
"""Factors of all bandwidths in the profile about the present ones."""


@dataclasses.dataclass(frozen=True, eq=False)
class Examination:
    """A model under examination, with all that is known of the search that it came from."""

    model: Model
    """It, or what it is linearised at its most likely solution."""
    source: Model
    """It as it was given: nonlinear, or the same."""
    trail: Trail
    """The solution of a nonlinear one, from which others start."""
    minimum: Minimum | None
    where: Space | None
    """The bounds within which hyperparameters were chosen, where known."""
    given_physics: bool
    thresholds: Thresholds

    @functools.cached_property
    def inspection(self) -> Inspection:
        """The model taken apart."""
        return inspect(self.model)

    @functools.cached_property
    def outlying(self) -> Int[np.ndarray, " k"]:
        """Data whose left-out errors are far beyond those of the rest, the worst first; none where they are many."""
        sizes, scaled = robust(self.inspection), np.abs(self.inspection.scaled[self.inspection.data])
        rows = np.flatnonzero((sizes > self.thresholds.outliers) & (scaled > UNLIKELY))
        few = len(sizes) >= FEWEST and len(rows) <= max(2, OFTEN * len(sizes))
        return rows[np.argsort(-sizes[rows])] if few else rows[:0]

    @functools.cached_property
    def cleaned(self) -> Inspection:
        """The model without outlying data, taken apart: these would pass for contradictions."""
        return inspect(without(self.model, self.outlying)) if len(self.outlying) else self.inspection

    @functools.cached_property
    def base(self) -> float:
        """The free energy of the model as it is."""
        return score_of(self.source, False, self.given_physics, self.trail, explain=True).free_energy

    def energy(self, changes: Mapping[str, Any]) -> float:
        """Return the free energy with other hyperparameters; infinite where it cannot be computed to a few digits."""
        return energy(self.source.replace(changes), self.given_physics, self.trail)

    @functools.cached_property
    def places(self) -> dict[str, float]:
        """Where hyperparameters stand between their bounds, from 0 to 1, as the search sees them."""
        if self.where is None or (self.minimum is not None and self.minimum.profiled):  # bounds at another η
            return {}
        low, high = np.array(self.where.bounds).T
        now = self.where.encode(self.where.read(self.source))
        return dict(zip(self.where.names, ((now - low) / (high - low)).tolist(), strict=True))

    @functools.cached_property
    def at_bounds(self) -> dict[str, Literal["lower", "upper"]]:
        """Hyperparameters that are at a bound."""
        found: dict[str, Literal["lower", "upper"]] = {}
        if self.minimum is not None:
            found |= self.minimum.at_bounds
        near = self.thresholds.at_bound
        found |= {name: "lower" for name, place in self.places.items() if place <= near}
        found |= {name: "upper" for name, place in self.places.items() if place >= 1.0 - near}
        return found

    def is_open(self, name: str) -> bool:
        """Whether a hyperparameter, or an element of it, was chosen; all were where nothing is known of that."""
        names = () if self.where is None else self.where.names
        chosen = [*names, *(self.minimum.values if self.minimum is not None else ())]
        return not chosen or name in {each for full in chosen for each in (full, full.split("[")[0])}

    @property
    def temperatures(self) -> dict[str, float]:
        """γ, ρ, η and blocks' own temperatures, by name."""
        paths = named_paths(self.model)
        return {name: float(v) for name, v in self.model.parameters.items() if is_temperature(paths[name][0])}

    @functools.cached_property
    def stretched(self) -> dict[float, float]:
        """Nats gained by other bandwidths, by the factor of all of them that may go that way."""
        return {factor: self.base - self.energy(self._moved(factor)) for factor in STRETCHES}

    def _moved(self, factor: float) -> dict[str, Any]:
        """Return all bandwidths times a factor, but for those at a bound on that side."""
        side = "lower" if factor < 1 else "upper"
        held = {name for name, at in self.at_bounds.items() if at == side}
        moved: dict[str, Any] = {}
        for name in bandwidths(self.model):
            now = np.asarray(self.model.parameters[name])
            free = [f"{name}[{i}]" not in held for i in range(now.size)] if now.ndim else name not in held
            moved[name] = np.where(free, factor, 1.0) * now
        return moved

    @functools.cached_property
    def calmer(self) -> dict[str, float]:
        """Nats gained by more noise of the data, also with longer bandwidths."""
        gains = {}
        for name in [name for name in self.temperatures if name.split(".")[-1] == "gamma"]:
            for factor in (10.0, 100.0, 1e4):
                noise = {name: factor * self.temperatures[name]}
                gains[f"{name} × {factor:g}"] = self.base - self.energy(noise)
                for by in (2.0, 5.0) if bandwidths(self.model) else ():
                    nats = self.base - self.energy({**self._moved(by), **noise})
                    gains[f"{name} × {factor:g} with bandwidths × {by:g}"] = nats
        return gains


def energy(model: Model, given_physics: bool, trail: Trail | None = None) -> float:
    """Return the free energy of a model; infinite where it cannot be computed to a few digits."""
    try:
        score = score_of(model, False, given_physics, trail, explain=False)
    except PilescoreError:
        return math.inf
    return score.free_energy if trusted(score) else math.inf


def trusted(score: Pile) -> bool:
    """Whether rounding leaves a score, in nats, to a few digits."""
    return 0.5 * score.size * score.rounding <= UNCERTAIN


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
