"""Run yardsticks, store what each draw gave, and judge it."""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pilescore as ps

from .yardstick import SPREAD, Measured, Posed, Verdict, Yardstick, draws_within, medians

COVERED = 0.75
"""In what fraction of draws all true values have to lie within two standard errors. Two independent normal estimates
do in 0.91 on average, and in at least eight of ten draws with probability 0.95."""


@dataclasses.dataclass(frozen=True)
class Draw:
    """What the library said about one draw of a problem."""

    measured: Measured
    warnings: list[str]
    """The warnings of the selection."""
    failures: list[str]
    """The failures of its diagnosis, by name."""
    findings: list[str]
    """Its other findings, with their severity, for information: they do not count as a warning."""
    refused: str
    """The error message if there is no result, else empty."""
    seconds: float

    @property
    def warned(self) -> bool:
        """Whether the user was told that something may be wrong."""
        return bool(self.warnings or self.failures or self.refused)


@dataclasses.dataclass(frozen=True)
class Row:
    """All draws of one yardstick so far."""

    name: str
    planned: int
    draws: list[Draw]
    pilescore: str = ""
    """The version of the library."""

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to run: all draws are done, or the problem was refused."""
        return len(self.draws) >= self.planned or any(draw.refused for draw in self.draws)


@dataclasses.dataclass(frozen=True)
class Judged:
    """The verdict on a row."""

    measured: Measured
    verdict: Verdict
    state: Literal["finished", "some draws", "no result", "refused"]
    warned: int
    """The number of draws with a warning or a failure."""

    told: bool = False
    """Whether at least half of the draws warned."""
    covered: bool = False
    """Whether the true values are known and stated standard errors cover them in at least `COVERED` of the draws."""

    @property
    def silent(self) -> bool:
        """Whether the result is worse, and most draws gave the user no hint of it. No result is not silent.

        A standard error that covers the truth is a hint: a larger error than that of one published draw is then chance.
        """
        hint = self.told or self.covered
        return self.verdict == "worse" and self.state in ("finished", "some draws") and not hint


def run_draw(yardstick: Yardstick, draw: int) -> Draw:
    """Pose one draw of a problem in a temporary directory, and run the selection with its defaults."""
    start = time.perf_counter()
    posed = yardstick.pose(draw)
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the selection stores what a user is told
        try:
            found = ps.select(ps.load_problem(posed.write(Path(directory))), Path(directory, "found"), progress=False)
            measured = yardstick.measure(found, draw)
        except (ps.errors.PilescoreError, ArithmeticError, ValueError, MemoryError) as error:
            message = f"{type(error).__name__}: {' '.join(str(error).split())}".replace(f"{directory}/", "")
            return Draw({}, [], [], [], message, time.perf_counter() - start)
        findings = list(found.diagnosis)
        return Draw(
            measured=measured,
            warnings=list(found.summary.warnings),
            failures=[finding.name for finding in findings if finding.severity == "failure"],
            findings=[f"{finding.severity}: {finding.name}" for finding in findings if finding.severity != "failure"],
            refused="",
            seconds=time.perf_counter() - start,
        )


def judge(yardstick: Yardstick, row: Row | None) -> Judged:
    """Return the verdict on what there is of a row. No result and a refusal are worse."""
    draws = [] if row is None else row.draws
    warned = sum(draw.warned for draw in draws)
    done = [draw for draw in draws if not draw.refused]
    if row is None or not draws:
        return Judged({}, "worse", "no result", 0)
    if len(done) < len(draws):
        return Judged(medians([draw.measured for draw in done]), "worse", "refused", warned, True)
    measured = medians([draw.measured for draw in draws])
    state: Literal["finished", "some draws"] = "finished" if row.finished else "some draws"
    within = draws_within(2.0, [draw.measured for draw in draws], yardstick.truth)
    covered = bool(yardstick.truth) and within >= COVERED * len(draws)
    return Judged(measured, yardstick.judge(measured), state, warned, 2 * warned >= len(draws), covered)


def shown(measured: Mapping[str, float]) -> str:
    """Return measured numbers as text, estimates together with their standard errors."""
    parts = []
    for name, value in measured.items():
        if not name.endswith(SPREAD):
            error = measured.get(name + SPREAD)
            parts.append(f"{name} = {value:.4g}" + ("" if error is None else f" ± {error:.2g}"))
    return ", ".join(parts)


class Store:
    """Rows in a JSON file, written after each draw."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows: dict[str, Row] = {}
        if path is not None and path.is_file():
            for stored in json.loads(path.read_text(encoding="utf-8")):
                draws = [Draw(**{**draw, "measured": _from_json(draw["measured"])}) for draw in stored["draws"]]
                self.rows[stored["name"]] = Row(stored["name"], stored["planned"], draws, stored["pilescore"])

    def save(self, row: Row, judged: Judged) -> None:
        """Store a row, and write the file."""
        self.rows[row.name] = row
        if self.path is None:
            return
        kept = {"verdict": judged.verdict, "silently wrong": judged.silent, "median": _to_json(judged.measured)}
        before = [] if not self.path.is_file() else json.loads(self.path.read_text(encoding="utf-8"))
        this = dataclasses.asdict(row)
        this["draws"] = [{**draw, "measured": _to_json(draw["measured"])} for draw in this["draws"]]
        rows = {old["name"]: old for old in before} | {row.name: this | kept}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(".part")
        draft.write_text(json.dumps(list(rows.values()), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        draft.replace(self.path)


def run(yardstick: Yardstick, store: Store, *, quick: bool) -> Row:
    """Run the draws of a yardstick that are missing in the store."""
    version = ps.__version__
    planned = yardstick.quick if quick else yardstick.draws
    earlier = store.rows.get(yardstick.name)
    row = Row(yardstick.name, planned, [] if earlier is None else earlier.draws[:planned], version)
    while not row.finished:
        row = dataclasses.replace(row, draws=[*row.draws, run_draw(yardstick, len(row.draws))])
        store.save(row, judge(yardstick, row))
    return row


def line(yardstick: Yardstick, row: Row | None) -> str:
    """Return a row of the table of results."""
    judged = judge(yardstick, row)
    draws = [] if row is None else row.draws
    refusals = [f"refused: {draw.refused}" for draw in draws if draw.refused]
    found = refusals[0][:200] if refusals else shown(judged.measured) or "no result"
    if yardstick.truth and draws and not refusals:
        within = draws_within(2.0, [draw.measured for draw in draws], yardstick.truth)
        found += f"; both within two standard errors of the truth in {within} of {len(draws)}"
    if row is not None and judged.state == "some draws":
        found += f" ({len(draws)} of {row.planned} draws)"
    told = f"{judged.warned} of {len(draws)}" if draws else "–"
    silent = "**yes**" if judged.silent else "no"
    cells = (yardstick.name, found, yardstick.published, judged.verdict, told, silent)
    return f"| {' | '.join(cell.replace('|', '∣') for cell in cells)} |"


HEADER = (
    "| problem | measured | published | verdict | draws with a warning | silently wrong |\n|---|---|---|---|---|---|"
)


def totals(yardsticks: Sequence[Yardstick], rows: Mapping[str, Row]) -> str:
    """Return the counts of verdicts as a sentence."""
    all_judged = [judge(yardstick, rows.get(yardstick.name)) for yardstick in yardsticks]
    count: dict[str, int] = {
        verdict: sum(judged.verdict == verdict for judged in all_judged) for verdict in ("better", "equal", "worse")
    }
    good = count["better"] + count["equal"]
    missing = sum(judged.state == "no result" for judged in all_judged)
    refused = sum(judged.state == "refused" for judged in all_judged)
    problems = f"{len(all_judged)} problem{'s' if len(all_judged) > 1 else ''}"
    return (
        f"{problems}: {count['better']} better, {count['equal']} equal, {count['worse']} worse (of these {refused} "
        f"refused and {missing} without a result). Equal or better: {good / len(all_judged):.0%}. "
        f"Silently wrong: {sum(judged.silent for judged in all_judged)}."
    )


def _to_json(measured: Measured) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in measured.items()}


def _from_json(measured: Mapping[str, Any]) -> Measured:
    return {name: math.nan if value is None else float(value) for name, value in measured.items()}


def problem_text(posed: Posed) -> str:
    """Return a problem file with the first lines of its data."""
    data = [f"# {name}: columns {', '.join(columns)}" for name, columns in posed.tables.items()]
    return "\n".join([posed.text.strip(), *data])
