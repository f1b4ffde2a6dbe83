"""The tables of the benchmark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..uncertainty.runs import Done, good, table
from . import suite
from .measured import COST
from .planted import BADLY_CHOSEN, EXPECTED, FAILURES, SOUND, Failure, counts, harmful

ALARMS = ("failure", "warning")
"""Severities that say that something is wrong."""

FALSE_ALARMS = 0.06
"""The aim for the fraction of sound models with an alarm."""
COST_AIM = 60.0
"""The aim for the time of all checks, in scores with gradient."""


def alarms(done: Done) -> list[str]:
    """Return the names of failures and warnings that fired."""
    found = done.measured["findings"].items()
    return [name for name, each in found if each["status"] == "fired" and each["severity"] in ALARMS]


def report(all_done: Iterable[Done]) -> str:
    """Return all tables as Markdown."""
    done = good(all_done)
    parts = []
    for title, member in (("New problems", False), ("Problems of the suite", True)):
        of = [each for each in done if each.run.part != COST and each.run.problem.startswith(suite.PREFIX) == member]
        if of:
            parts += [f"### {title}\n", sound_table(of), "", failure_table(of), ""]
    costs = [each for each in done if each.run.part == COST]
    if costs:
        parts += ["### Cost\n", cost_table(costs)]
    return "\n".join(parts)


def sound_table(done: Sequence[Done]) -> str:
    """Return the false alarms on sound models, by problem."""
    of = [each for each in done if each.run.part == SOUND]
    rows = [
        sound_row(name, [each for each in of if each.run.problem == name])
        for name in dict.fromkeys(each.run.problem for each in of)
    ]
    header = ["sound model", "runs", "with an alarm", "alarms", "notes", "median error", "largest error", "median N"]
    aim = f"At most {FALSE_ALARMS:.0%} of sound models should raise an alarm."
    return "\n".join([table(header, [*rows, sound_row("**all**", of)]), "", aim])


def sound_row(name: str, of: Sequence[Done]) -> list[str]:
    """Return the row of some sound models."""
    flagged = sum(bool(alarms(each)) for each in of)
    named = Counter(alarm for each in of for alarm in alarms(each))
    notes = Counter(
        check
        for each in of
        for check, found in each.measured["findings"].items()
        if found["status"] == "fired" and found["severity"] == "note"
    )
    errors = [each.measured["error"] for each in of if each.measured.get("error") is not None]
    sizes = [each.measured["size"] for each in of if "size" in each.measured]
    largest, median = (f"{number(errors):.2g}" if errors else "—" for number in (max, np.median))
    middle = f"{np.median(sizes):.0f}" if sizes else "—"
    return [name, str(len(of)), share(flagged, len(of)), listed(named), listed(notes), median, largest, middle]


def failure_table(done: Sequence[Done]) -> str:
    """Return how often each kind of failure was found, of those that count."""
    rows, chosen = [], []
    for kind in FAILURES:
        of = [each for each in done if each.run.part == kind.name and each.measured["planted"]]
        counted = [each for each in of if counts(kind, each.measured)]
        if kind.name in BADLY_CHOSEN:
            chosen += [(kind.name, each) for each in counted]
        if of:
            rows.append(failure_row(kind, of, counted))
    if chosen:
        found = sum(bool(alarms(each)) for _, each in chosen)
        right = sum(bool(EXPECTED[name] & {*alarms(each)}) for name, each in chosen)
        total = len(chosen)
        cells = ["**badly chosen**", "", str(total), share(found, total), share(right, total), "80%", "", "", ""]
        rows.append(cells)
    header = ["failure", "planted", "counted", "any alarm", "right finding", "aim"]
    header += ["any alarm if the error doubles", "alarms", "any alarm if not counted"]
    return table(header, rows)


def failure_row(kind: Failure, of: Sequence[Done], counted: Sequence[Done]) -> list[str]:
    """Return the row of a kind of failure."""
    found = [alarms(each) for each in counted]
    right = sum(bool(EXPECTED[kind.name] & {*names}) for names in found)
    others = [each for each in of if not counts(kind, each.measured)]
    harm = [each for each in counted if harmful(each.measured)]
    return [
        kind.name,
        str(len(of)),
        str(len(counted)),
        share(sum(map(bool, found)), len(counted)),
        share(right, len(counted)),
        "" if np.isnan(kind.aim) else f"{kind.aim:.0%}",
        share(sum(bool(alarms(each)) for each in harm), len(harm)),
        listed(Counter(name for names in found for name in names)),
        share(sum(bool(alarms(each)) for each in others), len(others)) if others else "",
    ]


def cost_table(done: Sequence[Done]) -> str:
    """Return the time of all checks, in scores with gradient."""
    rows = []
    for each in done:
        of: dict[str, Any] = each.measured
        slowest = sorted(of["checks"].items(), key=lambda item: -item[1])[:6]
        first = f"{of['first ratio']:.0f}"
        checks = ", ".join(f"{name} {value:.1f}" for name, value in slowest)
        rows.append([each.run.problem, str(of["size"]), f"{of['ratio']:.1f}", first, f"{COST_AIM:.0f}", checks])
    return table(["model", "N", "all checks / score with gradient", "first call", "at most", "slowest checks"], rows)


def share(part: int, whole: int) -> str:
    """Return a fraction as text."""
    return f"{part}/{whole} ({part / whole:.0%})" if whole else "—"


def listed(names: Counter[str]) -> str:
    """Return names with their numbers."""
    return ", ".join(f"{name} {count}" for name, count in names.most_common())
