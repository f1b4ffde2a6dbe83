"""What a diagnosis says: findings, ordered by severity, each with its measure, its threshold and advice."""

from __future__ import annotations

import dataclasses
import html
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from .charts import digits
from .errors import as_positive

Severity = Literal["failure", "warning", "note"]
Status = Literal["fired", "fine", "skipped"]

SEVERITIES: tuple[Severity, ...] = ("failure", "warning", "note")
"""A failed model; a number that is not to be trusted; something worth knowing."""

COLOURS = {"failure": "#b3261e", "warning": "#9a6700", "note": "#3b5b92"}


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """When each check of `diagnose` fires; all are positive numbers.

    Examples
    --------
    >>> import pilescore as ps
    >>> ps.Thresholds(outliers=6.0).outliers
    6.0
    """

    collapsed: float | int = 0.1
    """Fires below this share of the data's mean square in the posterior mean."""
    overfit: float | int = 0.3
    """Fires where training errors are below this part of left-out errors, and evidence or left-out errors object."""
    over_smoothed: float | int = 3.0
    """Nats that shorter bandwidths gain."""
    under_smoothed: float | int = 3.0
    """Nats that longer bandwidths gain."""
    ill_suited_kernel: float | int = 0.3
    """Nats for each datum that a rotated and stretched kernel gains, given the physics; for each node without data."""
    physics_against_data: float | int = 6.0
    """Nats that a systematic difference between data and physics gains."""
    boundary_against_interior: float | int = 6.0
    """Nats that a systematic difference between conditions and all the rest gains."""
    outliers: float | int = 4.0
    """Robust deviations of a left-out error."""
    miscalibrated: float | int = 0.15
    """The difference of the coverage of 50, 80 or 95% intervals from what it should be, beyond chance."""
    at_bound: float | int = 1e-3
    """How near to a bound counts as at it, as a part of the range."""
    flat_direction: float | int = 1.0
    """Nats by which a factor of ten along the flattest direction changes the evidence."""
    ill_conditioned: float | int = 1e-6
    """The rounding error of PILE."""
    unresolved_quadrature: float | int = 3.0
    """Nats by which a finer rule changes the evidence of the data given the physics, or that of the physics."""
    idle_temperature: float | int = 0.1
    """Nats by which a tenth and ten times a temperature change the evidence."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            as_positive(getattr(self, field.name), field.name)


CHECKS = tuple(field.name for field in dataclasses.fields(Thresholds))


@dataclasses.dataclass(frozen=True, eq=False)
class Finding:
    """The outcome of one check.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 30)
    >>> values = np.sin(6 * x) + 0.05 * np.random.default_rng(0).standard_normal(30)
    >>> values[7] += 1.0  # one reading is wrong
    >>> model = ps.Model(ps.RBF(0.3), data=ps.observe(ps.identity, values, at=x), gamma=0.02)
    >>> finding = ps.diagnose(model, checks="outliers")["outliers"]
    >>> finding
    WARNING outliers: the largest error of a left-out datum, in robust deviations, is 14.4 (fires above 4)
        data.0[7] is far from what all other data and the physics predict.
        Try: look at these values; correct them, leave them out, or give them a larger noise of their own.
    >>> finding.status, [reading["index"] for reading in finding.details["outliers"]]
    ('fired', [7])
    """

    name: str
    """Of the check, as in `Thresholds`."""
    status: Status
    """`fired`, `fine` or `skipped`."""
    severity: Severity
    """How bad it is where it fires."""
    value: float
    """What was measured; NaN where the check was skipped."""
    threshold: float
    """Where it fires."""
    below: bool
    """Whether it fires below the threshold, instead of above it."""
    measure: str
    """What `value` is."""
    meaning: str
    """What it means, in one sentence; why, if the check was skipped, or is fine in spite of its value."""
    advice: str
    """What to try."""
    details: Mapping[str, Any]
    """Further numbers, by name."""

    @property
    def excess(self) -> float:
        """By what factor the value is beyond its threshold."""
        if not self.value > 0 or not math.isfinite(self.value):
            return math.inf
        return self.threshold / self.value if self.below else self.value / self.threshold

    def __repr__(self) -> str:
        if self.status == "skipped":
            return f"{self.name}: skipped. {self.meaning}"
        side = "below" if self.below else "above"
        text = f"{self.name}: {self.measure} {digits(self.value)} (fires {side} {digits(self.threshold)})"
        if self.status == "fine":
            beyond = self.value < self.threshold if self.below else self.value > self.threshold
            return f"{text}. {self.meaning}" if beyond else text
        return f"{self.severity.upper()} {text}\n    {self.meaning}\n    Try: {self.advice}"


@dataclasses.dataclass(frozen=True, eq=False)
class Diagnosis:
    """The findings of `diagnose`; iterates over those that fired, the most severe first.

    Examples
    --------
    A kernel that is much too short:

    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 25)
    >>> model = ps.Model(ps.RBF(0.02), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=1e-3)
    >>> found = ps.diagnose(model, checks=["under_smoothed", "outliers", "ill_conditioned"])
    >>> found.healthy, found.summary
    (False, '1 warning; 2 checks are fine')
    >>> "under_smoothed" in found, [finding.name for finding in found]
    (True, ['under_smoothed'])
    >>> found["ill_conditioned"].status  # those that did not fire are there, too
    'fine'
    """

    checked: tuple[Finding, ...]
    """All checks: those that fired, then those that are fine, then those that were skipped."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The checks that fired, the most severe first."""
        return tuple(each for each in self.checked if each.status == "fired")

    @property
    def healthy(self) -> bool:
        """Whether nothing worse than a note was found."""
        return all(each.severity == "note" for each in self.findings)

    def __getitem__(self, name: str) -> Finding:
        """Return the outcome of a check by its name, whether it fired or not."""
        found = {each.name: each for each in self.checked}
        if name not in found:
            raise KeyError(f"no check {name!r} was made; there are {', '.join(found)}")
        return found[name]

    def __contains__(self, name: object) -> bool:
        return any(each.name == name for each in self.findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __bool__(self) -> bool:
        return True

    @property
    def summary(self) -> str:
        """How many findings there are, in a sentence."""
        counts = Counter(each.severity for each in self.findings)
        parts = [f"{counts[kind]} {kind}{'s' * (counts[kind] > 1)}" for kind in SEVERITIES if counts[kind]]
        status = Counter(each.status for each in self.checked)
        text = ", ".join(parts) if parts else "nothing found"
        fine = f"{status['fine']} {'check is' if status['fine'] == 1 else 'checks are'} fine"
        return f"{text}; {fine}" + (f", {status['skipped']} skipped" if status["skipped"] else "")

    def __repr__(self) -> str:
        return "\n".join([f"Diagnosis: {self.summary}", *(repr(each) for each in self.findings)])

    def _repr_html_(self) -> str:
        rows = "".join(map(_row, self.findings))
        quiet = "".join(f"<li>{html.escape(repr(each))}</li>" for each in self.checked if each.status != "fired")
        head = "<tr><th></th><th>finding</th><th>measured</th><th>what it means</th><th>what to try</th></tr>"
        table = f'<table style="text-align:left"><thead>{head}</thead><tbody>{rows}</tbody></table>' if rows else ""
        rest = f"<details><summary>checks that did not fire</summary><ul>{quiet}</ul></details>" if quiet else ""
        return f"<div><p><b>Diagnosis</b>: {html.escape(self.summary)}.</p>{table}{rest}</div>"


def _row(finding: Finding) -> str:
    side = "below" if finding.below else "above"
    measured = f"{finding.measure}: {digits(finding.value)}, fires {side} {digits(finding.threshold)}"
    cells = [finding.name.replace("_", " "), measured, finding.meaning, finding.advice]
    style = f'style="color:{COLOURS[finding.severity]};font-weight:600;vertical-align:top"'
    texts = "".join(f'<td style="text-align:left;vertical-align:top">{html.escape(each)}</td>' for each in cells)
    return f"<tr><td {style}>{finding.severity}</td>{texts}</tr>"


def ordered(found: list[Finding]) -> tuple[Finding, ...]:
    """Return findings that fired by severity and excess, then the rest in the order of the checks."""

    def key(finding: Finding) -> tuple[Any, ...]:
        if finding.status == "fired":
            return (0, SEVERITIES.index(finding.severity), -finding.excess, CHECKS.index(finding.name))
        return (1 + (finding.status == "skipped"), CHECKS.index(finding.name))

    return tuple(sorted(found, key=key))
