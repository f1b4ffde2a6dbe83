"""Failures planted on purpose, and the findings of `diagnose` for them."""

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
from .rules import RuleComparison, minimum, relative_error, true_values

FINDINGS = ps.diagnosis.CHECK_NAMES
ALARMS = ("failure", "warning")
"""Severities that count as a false alarm if nothing is wrong."""
NONE = "none"
WRONG_BY = 1.5
"""The factor between the wrong and the true coefficient."""
OUTLIER_DEVIATIONS = 10.0
"""The shift of an outlier, in deviations of the noise."""
TIME_ORDERS = {"convection-1": 1, "convection-10": 1, "heat": 1, "wave": 2, "oscillator": 2}
"""The order k of evolution equations `∂tᵏ f + B f = g`, with t the first coordinate, that get a wrong coefficient."""

OVERFIT_ERROR = 2.0
"""The smallest true error of an overfit, relative to the model chosen by PILE."""
COLLAPSED_ETA = 1e-4
"""A prior scale η at which solutions of order one become nearly zero."""
COLLAPSED_RHO = 1e4
"""The ratio of ρ to its upper bound at which the physics has no effect."""
COLLAPSED_SIZE = 0.1
"""The largest norm of a collapsed posterior mean, relative to the truth."""

Subject: TypeAlias = tuple[ps.Model | ps.Minimum, Mapping[str, tuple[float, float]]] | None
"""The diagnosed model and the bounds of its hyperparameters; None if the truth shows that it is not a failure."""


@dataclasses.dataclass(frozen=True)
class PlantedFailure:
    """A kind of failure: how it is made from a case and the choice of PILE, and the finding that should fire."""

    name: str
    expected: str
    """The finding that should fire; empty if none should."""
    fits: Callable[[Case], bool]
    """Whether the failure can be planted in a case."""
    make: Callable[[Case, RuleComparison, int], Subject]
    what: str
    """A short description."""


def diagnosed(failure: PlantedFailure, case: Case, chosen: RuleComparison, seed: int) -> dict[str, dict[str, Any]]:
    """Return status, severity and value of every finding for a planted failure.

    The result is empty if the failure cannot be planted. The status is `failed` if the model cannot be factored.
    """
    planted = failure.make(case, chosen, seed) if failure.fits(case) else None
    if planted is None:
        return {}
    subject, over = planted
    try:
        score = ps.Score("physics" if case.given_physics else "exact")
        checked = ps.diagnose(subject, over=over, progress=False, score=score).checked
    except ps.errors.NotPositiveDefiniteError:
        return {name: {"status": "failed", "severity": "", "value": math.nan} for name in FINDINGS}
    return {
        finding.name: {"status": finding.status, "severity": finding.severity, "value": float(finding.value)}
        for finding in checked
    }


def _none(case: Case, chosen: RuleComparison, seed: int) -> Subject:
    return chosen.best, case.over


def _collapsed(case: Case, chosen: RuleComparison, seed: int) -> Subject:
    values = np.concatenate([block.values for block in chosen.best.model.data])
    noise = {"gamma": 2 * float(np.mean(values**2)), "rho": COLLAPSED_RHO * case.over["rho"][1]}
    model = chosen.best.model.replace({"eta": COLLAPSED_ETA, **noise})
    with _quietly():
        size = np.sqrt(case.on.weights @ ps.posterior(model).mean(case.on.points) ** 2)
    truth = np.sqrt(case.on.weights @ true_values(case) ** 2)
    # Conditions with their own noise can still determine the solution. Then nothing has collapsed.
    return (model, case.over) if size < COLLAPSED_SIZE * truth else None


def _overfit(case: Case, chosen: RuleComparison, seed: int) -> Subject:
    best = chosen.best
    shorter = {name: best.values[name] / 5 for name in _bandwidths(case)}
    model = best.model.replace(shorter | {"gamma": 1e-4 * best.values["gamma"]})
    with _quietly():
        error = relative_error(model, case.on, true_values(case))
    # If the physics determines the solution, or if PILE itself chose badly, this is not an overfit.
    return (model, case.over) if error > OVERFIT_ERROR * chosen.error else None


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.errors.PrecisionWarning)
        yield


def _bandwidths(case: Case) -> list[str]:
    return [name for name in case.over if name.partition("[")[0].endswith("bandwidth")]


def _wrong(case: Case, chosen: RuleComparison, seed: int) -> Subject:
    if not case.well_specified:
        return chosen.best, case.over
    wrong = wrong_coefficient(case.model(seed), TIME_ORDERS[case.name])
    return minimum(wrong, case.over, seed, given_physics=True), case.over


def wrong_coefficient(model: ps.Model, order: int) -> ps.Model:
    """Replace `∂tᵏ + B` by `∂tᵏ + cB` in a model. A kernel along the characteristics is turned accordingly."""

    def changed(block: ps.Observation) -> ps.Observation:
        if block is not equation:
            return block
        assert block.nodes is not None
        assert block.region is not None
        dt = ps.partials(block.region)[0] ** order
        operator = dt + WRONG_BY * (block.operator - dt)
        return ps.impose(operator, block.values, on=block.nodes, rho=block.temperature, name=block.name)

    equation = max(model.physics, key=lambda block: (block.region is not None, block.operator.order))
    wrong = model.replace(physics=[changed(block) for block in model.physics])
    if not isinstance(model.kernel, ps.AnisotropicRBF):
        return wrong
    return wrong.replace({"kernel.theta": math.atan(WRONG_BY * math.tan(float(model.kernel.theta)))})


def _isotropic(case: Case, chosen: RuleComparison, seed: int) -> Subject:
    model = case.model(seed)
    over = {name: bounds for name, bounds in case.over.items() if name != "kernel.s"}
    kernel = ps.RBF(bandwidth=model.parameters["kernel.bandwidth"])
    return minimum(model.replace(kernel=kernel), over, seed, given_physics=True), over


def _outlier(case: Case, chosen: RuleComparison, seed: int) -> Subject:
    model = with_outlier(case.model(seed), OUTLIER_DEVIATIONS * case.noise, seed)
    return minimum(model, case.over, seed, given_physics=case.given_physics), case.over


def with_outlier(model: ps.Model, shift: float, seed: int) -> ps.Model:
    """Shift one random datum of a model up or down."""
    rng = np.random.default_rng(seed)
    first, *others = model.data
    values = first.values.copy()
    values[rng.integers(len(values))] += shift * rng.choice([-1.0, 1.0])
    values.flags.writeable = False
    return model.replace(data=[dataclasses.replace(first, values=values), *others])


def _noisy(case: Case) -> bool:
    return case.well_specified and case.noise > 0


FAILURES = (
    PlantedFailure(
        NONE,
        "",
        lambda case: case.well_specified,
        _none,
        "a well-specified problem, with the choice of PILE",
    ),
    PlantedFailure(
        "collapsed",
        "collapsed",
        _noisy,
        _collapsed,
        "γ is twice the mean square of the data, ρ is beyond its bounds, η is 10⁻⁴: the solution is nearly zero",
    ),
    PlantedFailure(
        "overfit",
        "overfit",
        _noisy,
        _overfit,
        "γ is 1/10,000 and bandwidths are 1/5 of the choice of PILE; the true error more than doubles",
    ),
    PlantedFailure(
        "wrong coefficient",
        "wrong_equation",
        lambda case: not case.well_specified or case.name in TIME_ORDERS,
        _wrong,
        "a velocity or diffusivity in the equation is wrong; PILE chose the other values",
    ),
    PlantedFailure(
        "isotropic kernel",
        "ill_suited_kernel",
        lambda case: case.name in ("convection-10", "convection-30"),
        _isotropic,
        "a convection problem has one bandwidth for all directions, chosen by PILE",
    ),
    PlantedFailure(
        "outlier",
        "outliers",
        _noisy,
        _outlier,
        "one datum is shifted by ten noise deviations; PILE chose again",
    ),
)
