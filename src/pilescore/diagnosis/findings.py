"""Findings: the outcome of each check with its measure, its threshold and advice, ordered by severity."""

from __future__ import annotations

import dataclasses
import html
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from ..errors import as_positive

Severity = Literal["failure", "warning", "note"]
Status = Literal["fired", "fine", "skipped"]

SEVERITIES: tuple[Severity, ...] = ("failure", "warning", "note")
"""The model is not usable; a number is not reliable; something worth knowing."""

COLOURS = {"failure": "#b3261e", "warning": "#9a6700", "note": "#3b5b92"}


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """When each check of `diagnose` fires; all are positive numbers.

    Examples
    --------
    >>> import pilescore as ps
    >>> ps.diagnosis.Thresholds(outliers=6.0).outliers
    6.0
    """

    collapsed: float | int = 0.1
    """Fires below this fraction of the data's mean square in the posterior mean."""
    overfit: float | int = 0.3
    """Fires if training errors are below this fraction of left-out errors, and the evidence prefers more noise or
    left-out data are not predicted."""
    over_smoothed: float | int = 3.0
    """Nats gained by shorter lengths."""
    under_smoothed: float | int = 3.0
    """Nats gained by longer lengths."""
    ill_suited_kernel: float | int = 0.3
    """Nats per datum gained by a rotated and stretched kernel, given the physics; without data, nats per node."""
    physics_against_data: float | int = 6.0
    """Nats gained by a systematic difference between data and physics."""
    boundary_against_interior: float | int = 6.0
    """Nats gained by a systematic difference between conditions and all other observations."""
    outliers: float | int = 4.0
    """The size of a left-out error, in robust deviations."""
    miscalibrated: float | int = 0.15
    """The error of the coverage of 50, 80 or 95% intervals, beyond chance."""
    at_bound: float | int = 1e-3
    """The distance to a bound that counts as at the bound, as a fraction of the range."""
    flat_direction: float | int = 1.0
    """The change of the evidence by a factor of ten along the flattest direction, in nats."""
    ill_conditioned: float | int = 1e-6
    """The rounding error of PILE."""
    unresolved_quadrature: float | int = 3.0
    """The change of the evidence of the data given the physics (without data: of the physics) by a finer rule, in
    nats."""
    idle_temperature: float | int = 0.1
    """The change of the evidence by a tenth and ten times a temperature, in nats."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            as_positive(getattr(self, field.name), field.name)


CHECK_NAMES = tuple(field.name for field in dataclasses.fields(Thresholds))


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
        data.0[7] is far from the prediction by all other data and the physics.
        Try: look at these values; correct them, leave them out, or give them a larger noise.
    >>> finding.status, [reading["index"] for reading in finding.details["outliers"]]
    ('fired', [7])
    """

    name: str
    """The name of the check, as in `Thresholds`."""
    status: Status
    """`fired`, `fine` or `skipped`."""
    severity: Severity
    """How bad it is if it fires."""
    value: float
    """The measured number; NaN if the check was skipped."""
    threshold: float
    """The value beyond which it fires."""
    below: bool
    """Whether it fires below the threshold, instead of above it."""
    measure: str
    """What `value` is."""
    meaning: str
    """What it means, in one sentence; or why the check was skipped, or is fine despite its value."""
    advice: str
    """What to try."""
    details: Mapping[str, Any]
    """Further numbers, by name."""

    @property
    def excess(self) -> float:
        """The factor by which the value is beyond its threshold."""
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
    """The findings of `diagnose`. Iterating gives the checks that fired, most severe first.

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
    >>> found["ill_conditioned"].status  # checks that did not fire are included
    'fine'
    """

    checked: tuple[Finding, ...]
    """All checks: first the ones that fired, then the fine ones, then the skipped ones."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The checks that fired, most severe first."""
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
        """The number of findings, in a sentence."""
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
    """Return findings that fired by severity and excess, then the others in the order of the checks."""

    def key(finding: Finding) -> tuple[Any, ...]:
        if finding.status == "fired":
            return (0, SEVERITIES.index(finding.severity), -finding.excess, CHECK_NAMES.index(finding.name))
        return (1 + (finding.status == "skipped"), CHECK_NAMES.index(finding.name))

    return tuple(sorted(found, key=key))


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def digits(value: float | int | None) -> str:
    """Format a number with three significant digits, or a dash if it is missing or not finite.

    Examples
    --------
    >>> from pilescore.diagnosis import digits
    >>> digits(0.012345), digits(-4.5678), digits(1234.5), digits(4.7e-6), digits(None)
    ('0.0123', '−4.57', '1234', '4.70·10⁻⁶', '—')
    """
    if value is None or not math.isfinite(value):
        return "—"
    if 1e-3 <= abs(value) < 1e4 or value == 0:
        # `.3g` would write 1000 as 1e+03.
        text = f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"
    else:
        mantissa, exponent = f"{value:.2e}".split("e")
        text = f"{mantissa}·10{str(int(exponent)).translate(_SUPERSCRIPTS)}"
    return text.replace("-", "−")
