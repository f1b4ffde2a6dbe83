"""Failures that are planted on purpose, and what `diagnose` finds in them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

import pilescore as ps

from .cases import Case
from .rules import Judged, minimum, relative_error, true_values

FINDINGS = tuple(field.name for field in dataclasses.fields(ps.Thresholds))
ALARMS = ("failure", "warning")
"""Severities that count as an alarm where nothing is wrong."""
NONE = "none"
WRONG_BY = 1.5
"""The factor by which a coefficient is wrong."""
MOVED_BY = 10.0
"""Noise deviations by which a datum is moved."""
TIME_ORDERS = {"convection-1": 1, "convection-10": 1, "heat": 1, "wave": 2, "oscillator": 2}
"""Evolution equations `∂tᵏ f + B f = g`, t the first coordinate, of which a coefficient is made wrong: their `k`."""

WORSE = 2.0
"""An overfit has at least so many times the true error of what PILE chose."""
FLAT = 1e-4
"""A scale of the prior, η, that leaves next to nothing of solutions of order one."""
IGNORED = 1e4
"""How far above its upper bound the temperature of physics is that counts for nothing."""
NEXT_TO_ZERO = 0.1
"""A collapsed posterior mean is at most so large, in parts of the truth."""

Planted: TypeAlias = tuple[ps.Model | ps.Minimum, Mapping[str, tuple[float, float]]] | None
"""What is diagnosed, and the bounds of its hyperparameters; None where the truth says that it is no failure."""


@dataclasses.dataclass(frozen=True)
class Plant:
    """A failure: how it is made of a case and of what PILE chose, and the finding that has to show it."""

    name: str
    expected: str
    """A finding; empty where none should be there."""
    fits: Callable[[Case], bool]
    """Whether it can be planted in a case."""
    make: Callable[[Case, Judged, int], Planted]
    what: str
    """What was done, in a sentence."""


def diagnosed(plant: Plant, case: Case, chosen: Judged, seed: int) -> dict[str, dict[str, Any]]:
    """Return status, severity and value of every finding in a planted failure.

    Nothing where it cannot be planted; the status `failed` where the model cannot be factored.
    """
    planted = plant.make(case, chosen, seed) if plant.fits(case) else None
    if planted is None:
        return {}
    subject, over = planted
    try:
        found = ps.diagnose(subject, over=over, given_physics=case.given_physics, progress=False).checked
    except ps.NotPositiveDefiniteError:
        return {name: {"status": "failed", "severity": "", "value": math.nan} for name in FINDINGS}
    return {each.name: {"status": each.status, "severity": each.severity, "value": float(each.value)} for each in found}


def _none(case: Case, chosen: Judged, seed: int) -> Planted:
    return chosen.best, case.over


def _collapsed(case: Case, chosen: Judged, seed: int) -> Planted:
    values = np.concatenate([block.values for block in chosen.best.model.data])
    noise = {"gamma": 2 * float(np.mean(values**2)), "rho": IGNORED * case.over["rho"][1]}
    model = chosen.best.model.replace({"eta": FLAT, **noise})
    with _quietly():
        size = np.sqrt(case.on.weights @ ps.posterior(model).mean(case.on.points) ** 2)
    truth = np.sqrt(case.on.weights @ true_values(case) ** 2)
    # Conditions with a noise of their own may hold a solution up: then nothing has collapsed.
    return (model, case.over) if size < NEXT_TO_ZERO * truth else None


def _overfit(case: Case, chosen: Judged, seed: int) -> Planted:
    best = chosen.best
    shorter = {name: best.values[name] / 5 for name in _bandwidths(case)}
    model = best.model.replace(shorter | {"gamma": 1e-4 * best.values["gamma"]})
    with _quietly():
        error = relative_error(model, case.on, true_values(case))
    # Where physics holds the solution, or what was chosen is a failure itself, this need not be one.
    return (model, case.over) if error > WORSE * chosen.error else None


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.PrecisionWarning)
        yield


def _bandwidths(case: Case) -> list[str]:
    return [name for name in case.over if name.partition("[")[0].endswith("bandwidth")]


def _wrong(case: Case, chosen: Judged, seed: int) -> Planted:
    if not case.well_specified:
        return chosen.best, case.over
    return minimum(
        wrong_coefficient(case.model(seed), TIME_ORDERS[case.name]), case.over, seed, given_physics=True
    ), case.over


def wrong_coefficient(model: ps.Model, order: int) -> ps.Model:
    """Return a model with `∂tᵏ + cB` in place of `∂tᵏ + B`; a kernel along its characteristics turns with it."""

    def changed(block: ps.Observation) -> ps.Observation:
        if block is not equation:
            return block
        assert block.nodes is not None
        assert block.region is not None
        dt = ps.partials(block.region)[0] ** order
        operator = dt + WRONG_BY * (block.operator - dt)
        return ps.impose(operator, block.values, on=block.nodes, rho=block.temperature, name=block.name)

    equation = max(model.physics, key=lambda block: (block.region is not None, block.operator.order))
    wrong = dataclasses.replace(model, physics=tuple(changed(block) for block in model.physics))
    if not isinstance(model.kernel, ps.AnisotropicRBF):
        return wrong
    return wrong.replace({"kernel.theta": math.atan(WRONG_BY * math.tan(float(model.kernel.theta)))})


def _isotropic(case: Case, chosen: Judged, seed: int) -> Planted:
    model = case.model(seed)
    over = {name: bounds for name, bounds in case.over.items() if name != "kernel.s"}
    kernel = ps.RBF(bandwidth=model.parameters["kernel.bandwidth"])
    return minimum(dataclasses.replace(model, kernel=kernel), over, seed, given_physics=True), over


def _outlier(case: Case, chosen: Judged, seed: int) -> Planted:
    moved = with_outlier(case.model(seed), MOVED_BY * case.noise, seed)
    return minimum(moved, case.over, seed, given_physics=case.given_physics), case.over


def with_outlier(model: ps.Model, by: float, seed: int) -> ps.Model:
    """Return a model in which one datum, by the seed, is moved up or down."""
    rng = np.random.default_rng(seed)
    first, *others = model.data
    values = first.values.copy()
    values[rng.integers(len(values))] += by * rng.choice([-1.0, 1.0])
    values.flags.writeable = False
    return dataclasses.replace(model, data=(dataclasses.replace(first, values=values), *others))


def _noisy(case: Case) -> bool:
    return case.well_specified and case.noise > 0


PLANTS = (
    Plant(NONE, "", lambda case: case.well_specified, _none, "a well-specified problem, as PILE chose"),
    Plant("collapsed", "collapsed", _noisy, _collapsed,
          "γ twice the mean square of the data, ρ beyond its bounds, η 10⁻⁴: the solution is next to zero"),
    Plant("overfit", "overfit", _noisy, _overfit,
          "γ a ten-thousandth, bandwidths a fifth of what PILE chose; the true error more than doubles"),
    Plant("wrong coefficient", "physics_against_data",
          lambda case: not case.well_specified or case.name in TIME_ORDERS, _wrong,
          "a velocity or diffusivity of the equation is wrong; PILE chose the rest"),
    Plant("isotropic kernel", "ill_suited_kernel", lambda case: case.name in ("convection-10", "convection-30"),
          _isotropic, "one bandwidth for all directions in a convection problem; PILE chose it"),
    Plant("outlier", "outliers", _noisy, _outlier, "one datum moved by ten noise deviations; PILE chose again"),
)  # fmt: skip
