"""What the checks of a diagnosis share: the model, its residuals, and its score at other hyperparameters."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from ..errors import PilescoreError
from ..inference import Pile, Score, WarmStart, systems_of
from ..model import Model, eta_and_temperatures
from ..search import Minimum, SearchSpace, Side, bounds_reached
from .calibration import Calibrated, Calibration, Statistic, calibrate
from .change_search import ChangeSearch, bounds_about
from .findings import LEVEL, Finding, Severity
from .residuals import Residuals, are_neighbours, residuals_of, without_rows
from .score_tests import ScoreTests

FEWEST_DATA = 8
"""With fewer data, their spread is not meaningful."""

AT_BOUND = 1e-3
"""The distance to a bound that counts as at the bound, as a fraction of the range."""

UNLIKELY_DEVIATIONS = 1.5
"""The worst outlier is also this many predicted deviations off: in a smooth problem even it may be tiny. A fifth of all
data that are equally far off are 2.2 deviations off, because they inflate the noise."""

LARGEST_ROUNDING_NATS = 0.1
"""Scores with a larger rounding error are not used."""

SHORTER, LONGER = (0.25, 0.5, math.sqrt(0.5)), (math.sqrt(2.0), 2.0, 4.0)
"""Factors of all lengths in the profile about the present ones."""


@dataclasses.dataclass(frozen=True, eq=False)
class DiagnosisContext:
    """The model that is diagnosed, and what is known about the search that found it."""

    model: Model
    """The model; a nonlinear one is linearised at its most likely solution."""
    source: Model
    """The model as it was given."""
    warm_start: WarmStart
    """The solution of a nonlinear model, from which others are solved."""
    minimum: Minimum | None
    space: SearchSpace | None
    """The bounds within which hyperparameters were chosen, if they are known."""
    score: Score

    def finding(
        self,
        name: str,
        number: float,
        severity: Severity,
        measure: str,
        meaning: str,
        advice: str,
        *,
        threshold: float = math.nan,
        below: bool = False,
        fires: bool | None = None,
        p_value: float | None = None,
        **details: Any,
    ) -> Finding:
        """Return the outcome of a check: it fires beyond its threshold, unless `fires` says otherwise.

        With a p-value it fires only if this is small enough in view of all checks, which `diagnose` decides. Then the
        threshold is the smallest effect that matters; without one, any effect does.
        """
        beyond = math.isnan(threshold) or (number < threshold if below else number > threshold)
        status: Literal["fired", "fine"] = "fired" if (beyond if fires is None else fires) else "fine"
        return Finding(
            name, status, severity, float(number), threshold, below, measure, meaning, advice, details, p_value
        )

    def skip(self, name: str, reason: str) -> Finding:
        """Return the outcome of a check that could not be made."""
        return Finding(name, "skipped", "note", math.nan, math.nan, False, "", reason, "", {})

    @functools.cached_property
    def given(self) -> tuple[int, ...]:
        """The positions of the blocks that the score conditions on."""
        return self.score.given_blocks(self.source)

    @functools.cached_property
    def calibration(self) -> Calibration:
        """The observations, and data sets drawn from the fitted model."""
        return calibrate(self.model, self.given)

    @functools.cached_property
    def cleaned_calibration(self) -> Calibration:
        """The same for the model without outliers."""
        return calibrate(self.cleaned.model, self.given) if len(self.outlying) else self.calibration

    def test(self, statistic: Statistic) -> Calibrated:
        """Return the value of a statistic of the observations, and its p-value under the fitted model."""
        return self.calibration.test(statistic)

    @functools.cached_property
    def residuals(self) -> Residuals:
        """The residuals of the model."""
        return residuals_of(self.model)

    @functools.cached_property
    def outlying(self) -> Int[np.ndarray, " k"]:
        """The rows of outliers among the data, in the order in which they are deleted; none if they are systematic."""
        residuals = self.residuals
        if residuals.data.stop < FEWEST_DATA or not residuals.alpha[residuals.data].any():
            return np.zeros(0, dtype=int)
        search = residuals.outlier_search
        found = search.outliers(LEVEL)
        if not len(found) or np.abs(residuals.scaled[found]).max() < UNLIKELY_DEVIATIONS:
            return found[:0]
        points = np.concatenate([block.centres for block in residuals.model.data])
        return found[:0] if are_neighbours(found, search.predicted_errors(found)[0], points) else found

    @functools.cached_property
    def cleaned(self) -> Residuals:
        """The residuals of the model without outliers, which would look like contradictions."""
        return residuals_of(without_rows(self.model, self.outlying)) if len(self.outlying) else self.residuals

    @functools.cached_property
    def changes(self) -> ChangeSearch:
        """The search for changes of the physics that make the data more probable; outliers are left out."""
        source = without_rows(self.source, self.outlying) if len(self.outlying) else self.source
        over = bounds_about(source, self.minimum, self.space)
        return ChangeSearch(source, self.cleaned, over, self.minimum, self.at_bounds)

    @functools.cached_property
    def predicted_share(self) -> float:
        """The fraction of the variance of the data that their left-out predictions explain."""
        errors = self.residuals.left_out[self.residuals.data]
        values = self.model.values[self.residuals.data]
        return 1.0 - float(np.mean(errors**2)) / (float(np.var(values)) or 1.0)

    @property
    def promised_by_eta(self) -> float:
        """The gain in nats that the slope of the score in η promises."""
        direction = ScoreTests(self.model, self.calibration, ()).of_eta()
        return float(direction.score(self.calibration.whitened[:, None])[0]) ** 2 / (
            2.0 * direction.information(direction)
        )

    @functools.cached_property
    def energy(self) -> float:
        """The free energy of the model as it is."""
        return systems_of(self.source, self.score, self.warm_start).pile(self.score).free_energy

    def energy_with(self, changes: Mapping[str, Any]) -> float:
        """Return the free energy with other hyperparameters; infinite if it cannot be computed precisely."""
        return free_energy(self.source.replace(changes), self.score, self.warm_start)

    @functools.cached_property
    def positions(self) -> dict[str, float]:
        """The position of each searched hyperparameter between its bounds, from 0 to 1, in search coordinates."""
        # The bounds of a profiled search hold at another η.
        if self.space is None or (self.minimum is not None and self.minimum.score.profiled):
            return {}
        return self.space.positions(self.space.encode(self.space.values_of(self.source)))

    @functools.cached_property
    def at_bounds(self) -> dict[str, Side]:
        """Hyperparameters that are at a bound."""
        found = {} if self.minimum is None else self.minimum.at_bounds
        return {**found, **bounds_reached(self.positions, AT_BOUND)}

    def was_searched(self, name: str) -> bool:
        """Whether a hyperparameter, or an element of it, was searched over; True for all if no search is known."""
        names = () if self.space is None else self.space.names
        searched = [*names, *(self.minimum.values if self.minimum is not None else ())]
        return not searched or name in {part for full in searched for part in (full, full.split("[")[0])}

    @property
    def temperatures(self) -> dict[str, float]:
        """γ, ρ, η and the temperatures of single blocks, by name."""
        values = self.model.parameters
        return {name: float(values[name]) for name in eta_and_temperatures(self.model)}

    @functools.cached_property
    def length_profile(self) -> dict[float, float]:
        """The nats gained by other lengths, by their factor; lengths at a bound on that side stay."""
        return {factor: self.energy - self.energy_with(self._scaled_lengths(factor)) for factor in (*SHORTER, *LONGER)}

    @functools.cached_property
    def length_slope(self) -> float:
        """The slope of the free energy in the logarithm of all lengths."""
        names, score = length_names(self.model), self.score
        pile, slopes = systems_of(self.model, score, explain=False).pile_and_gradient(names, score)
        parameters = self.model.parameters
        return 0.5 * pile.size * float(sum(np.sum(slopes[name] * np.asarray(parameters[name])) for name in names))

    def _scaled_lengths(self, factor: float) -> dict[str, Any]:
        """Return all lengths times a factor, except those at a bound on that side."""
        side = "lower" if factor < 1 else "upper"
        blocked = {name for name, at in self.at_bounds.items() if at == side}
        scaled: dict[str, Any] = {}
        for name in length_names(self.model):
            value = np.asarray(self.model.parameters[name])
            free = [f"{name}[{i}]" not in blocked for i in range(value.size)] if value.ndim else name not in blocked
            scaled[name] = np.where(free, factor, 1.0) * value
        return scaled

    @functools.cached_property
    def gains_by_noise(self) -> dict[str, float]:
        """The nats gained by more noise of the data, with the present lengths and with longer ones."""
        gains = {}
        roles, temperatures = self.model.roles, self.temperatures
        for name in [name for name in temperatures if roles[name] == "data_temperature"]:
            for factor in (10.0, 100.0, 1e4):
                noise = {name: factor * temperatures[name]}
                gains[f"{name} × {factor:g}"] = self.energy - self.energy_with(noise)
                for by in (2.0, 5.0) if length_names(self.model) else ():
                    nats = self.energy - self.energy_with({**self._scaled_lengths(by), **noise})
                    gains[f"{name} × {factor:g} with lengths × {by:g}"] = nats
        return gains


def free_energy(model: Model, score: Score, warm_start: WarmStart | None = None) -> float:
    """Return the free energy of a model; infinite if it cannot be computed precisely."""
    try:
        pile = systems_of(model, score, warm_start, explain=False).pile(score)
    except PilescoreError:
        return math.inf
    return pile.free_energy if is_precise(pile) else math.inf


def is_precise(pile: Pile) -> bool:
    """Whether the rounding error of a score, in nats, is small."""
    return 0.5 * pile.size * pile.rounding <= LARGEST_ROUNDING_NATS


def length_names(model: Model) -> list[str]:
    """Return the names of the kernel's lengths."""
    return [name for name, role in model.roles.items() if role == "length"]
