"""Findings: the outcome of each check with its measure, its threshold and advice, ordered by severity."""

from __future__ import annotations

import dataclasses
import html
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from .pictures import Chart, chart_of, draw, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Severity = Literal["failure", "warning", "note"]
Status = Literal["fired", "fine", "skipped"]

SEVERITIES: tuple[Severity, ...] = ("failure", "warning", "note")
"""The model is not usable; a number is not reliable; something worth knowing."""

COLOURS = {"failure": "#b3261e", "warning": "#9a6700", "note": "#3b5b92"}


LEVEL = 0.05
"""The probability of any alarm on a sound model, over all checks together."""


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
    WARNING outliers: the largest left-out error, in deviations without outliers, is 27.3 (p = ...
        data.0[7] is far from the prediction by all other data and the physics.
        Try: look at these values; correct them, leave them out, or give them a larger noise.
    >>> finding.status, [reading["index"] for reading in finding.details["outliers"]]
    ('fired', [7])
    """

    name: str
    """The name of the check."""
    status: Status
    """`fired`, `fine` or `skipped`."""
    severity: Severity
    """How bad it is if it fires."""
    value: float
    """The measured number; NaN if the check was skipped."""
    threshold: float
    """The value beyond which it may fire: a smaller effect does not matter. NaN if `p_value` alone decides."""
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
    p_value: float | None = None
    """The probability of such a value if the model is right; None if the check has no such probability."""
    adjusted: float | None = None
    """The same, adjusted for the number of checks that were made: it fires below the level of the diagnosis."""
    seconds: float = 0.0
    """How long the check took, with what it was the first to need."""

    @property
    def is_beyond(self) -> bool:
        """Whether the value is beyond its threshold."""
        return self.value < self.threshold if self.below else self.value > self.threshold

    @property
    def excess(self) -> float:
        """The factor by which the value is beyond its threshold or, with a p-value, minus its logarithm."""
        if self.p_value is not None:
            return -math.log10(max(self.p_value, 1e-300))
        if not self.value > 0 or not math.isfinite(self.value * self.threshold):
            return math.inf
        return self.threshold / self.value if self.below else self.value / self.threshold

    @property
    def measured(self) -> str:
        """What was measured, its value, and how the check decides, in words."""
        rules = []
        if self.p_value is not None:
            rules.append(f"p = {digits(self.p_value)}")
        if self.adjusted is not None:
            rules.append(f"{digits(self.adjusted)} adjusted")
        if math.isfinite(self.threshold):
            rules.append(f"fires {'below' if self.below else 'above'} {digits(self.threshold)}")
        return f"{self.measure} {digits(self.value)}" + (f" ({', '.join(rules)})" if rules else "")

    @property
    def chart(self) -> Chart:
        """The picture of the finding as plain data."""
        return chart_of(self.name, self.value, self.threshold, self.measure, self.details)

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw the finding, such as residuals over space or a profile, and return the matplotlib axes.

        Parameters
        ----------
        axes
            The axes to draw on; by default those of a new figure of pyplot.

        Examples
        --------
        >>> import numpy as np, matplotlib.figure, pilescore as ps
        >>> x = np.linspace(0, 1, 25)
        >>> model = ps.Model(ps.RBF(0.02), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=1e-3)
        >>> finding = ps.diagnose(model, checks="under_smoothed")["under_smoothed"]
        >>> finding.plot(matplotlib.figure.Figure().add_subplot()).get_xlabel()
        'factor of all lengths'
        """
        if axes is None:
            from matplotlib import pyplot

            axes = pyplot.subplots(layout="constrained")[1]
        draw(self.chart, axes)
        return axes

    def __repr__(self) -> str:
        if self.status == "skipped":
            return f"{self.name}: skipped. {self.meaning}"
        text = f"{self.name}: {self.measured}"
        if self.status == "fine":
            return f"{text}. {self.meaning}" if self.is_beyond else text
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
    about: str = ""
    """What was diagnosed, if it is not the model as it is."""

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
        about = [self.about] if self.about else []
        return "\n".join([f"Diagnosis: {self.summary}", *about, *(repr(each) for each in self.findings)])

    def _repr_html_(self) -> str:
        rows = "".join(map(_row, self.findings))
        quiet = "".join(f"<li>{html.escape(repr(each))}</li>" for each in self.checked if each.status != "fired")
        head = "<tr><th></th><th>finding</th><th>measured</th><th>what it means</th><th>what to try</th></tr>"
        table = f'<table style="text-align:left"><thead>{head}</thead><tbody>{rows}</tbody></table>' if rows else ""
        rest = f"<details><summary>checks that did not fire</summary><ul>{quiet}</ul></details>" if quiet else ""
        about = f" {html.escape(self.about)}" if self.about else ""
        return f"<div><p><b>Diagnosis</b>: {html.escape(self.summary)}.{about}</p>{table}{rest}</div>"


def _row(finding: Finding) -> str:
    cells = [finding.name.replace("_", " "), finding.measured, finding.meaning, finding.advice]
    style = f'style="color:{COLOURS[finding.severity]};font-weight:600;vertical-align:top"'
    texts = "".join(f'<td style="text-align:left;vertical-align:top">{html.escape(each)}</td>' for each in cells)
    picture = f'<tr><td></td><td colspan="4" style="text-align:left">{svg(finding.chart)}</td></tr>'
    return f"<tr><td {style}>{finding.severity}</td>{texts}</tr>{picture}"


def ordered(found: list[Finding]) -> tuple[Finding, ...]:
    """Return findings that fired by severity and excess, then the others in the order of the checks."""

    def key(finding: Finding) -> tuple[Any, ...]:
        if finding.status == "fired":
            return (0, SEVERITIES.index(finding.severity), -finding.excess)
        return (1 + (finding.status == "skipped"),)

    return tuple(sorted(found, key=key))


def adjusted(found: Iterable[Finding], level: float = LEVEL) -> list[Finding]:
    """Return findings with p-values adjusted for their number; those above the level do not fire.

    Holm's method: the smallest of `m` p-values is multiplied by `m`, the next by `m − 1`, and so on. The probability of
    any false alarm is then at most the level, however the checks depend on each other. Notes are no alarms.

    Parameters
    ----------
    found
        The outcomes of all checks that were made.
    level
        The probability of any false alarm.
    """
    found = list(found)
    tested = [each for each in found if each.p_value is not None and each.severity != "note"]
    largest, by_name = 0.0, {}
    for rank, each in enumerate(sorted(tested, key=lambda each: each.p_value or 0.0)):
        largest = max(largest, min(1.0, (len(tested) - rank) * (each.p_value or 0.0)))
        by_name[each.name] = largest
    return [_decided(each, by_name[each.name], level) if each.name in by_name else each for each in found]


def _decided(finding: Finding, p_value: float, level: float) -> Finding:
    """Return a finding with its adjusted p-value; it does not fire above the level."""
    if finding.status != "fired" or p_value < level:
        return dataclasses.replace(finding, adjusted=p_value)
    meaning = "But among so many checks this can happen by chance."
    return dataclasses.replace(finding, adjusted=p_value, status="fine", meaning=meaning)


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
