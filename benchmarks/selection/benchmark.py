"""The benchmark: compute the choices of all rules and the diagnoses of planted failures, for all cases and seeds.

Run it with `python -m benchmarks.selection`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from threadpoolctl import threadpool_limits

from pilescore.studies.runner import Study, StudyRun, check

from .cases import CASES, Case, case
from .planted import ALARMS, FAILURES, FINDINGS, NONE, PlantedFailure, diagnosed
from .report import report
from .rules import CRITERIA, GIVEN, OTHERS, PILE, RULES, compare_rules

QUICK = ("poisson", "oscillator", "convection-30")
ABSENT = "absent"
"""The status of findings if the failure was not planted."""
GOOD_REGRET = 2.0
"""The largest regret of a good choice."""
LOST_RATIO = 1.1
"""A rule loses to another rule if its regret is larger by more than this factor."""


@dataclasses.dataclass(frozen=True)
class SelectionSettings:
    """Everything that determines the results."""

    seeds: int = 5
    cases: tuple[str, ...] = tuple(each.name for each in CASES)

    @classmethod
    def quick(cls, seeds: int = 2, cases: tuple[str, ...] = QUICK) -> SelectionSettings:
        """Return settings for a quick run, with two seeds and three cases."""
        return cls(seeds, cases)


def case_names(names: Sequence[str]) -> tuple[str, ...]:
    """Check the names of cases and drop duplicates. An unknown name raises an `InputError`."""
    return tuple(dict.fromkeys(case(name).name for name in names))


def compute(settings: SelectionSettings, run: StudyRun) -> tuple[xr.Dataset, dict[str, Any]]:
    """Choose by all rules and diagnose planted failures, for each case and seed."""
    cases = [case(name) for name in settings.cases]
    runs = list(itertools.product(cases, range(settings.seeds)))
    parts = []
    with threadpool_limits(1, "blas"):  # with matrices of this size BLAS threads only wait for each other
        for number, (each, seed) in enumerate(runs, 1):
            message = f"[{number}/{len(runs)}] {each.title}, seed {seed}"
            compute_part = functools.partial(_part, each, seed, message, run)
            parts.append(run.folder.part(f"{each.name}-{seed}", compute_part))
    results = _joined(parts, settings)
    return results, summarise(results, {each.name: each.title for each in cases})


def _part(case: Case, seed: int, message: str, run: StudyRun) -> xr.Dataset:
    """Return the results for one case and seed."""
    run.say(message)
    found = compare_rules(case, case.model(seed), seed)
    diagnoses = [diagnosed(failure, case, found, seed) for failure in FAILURES]

    def column(key: str, missing: Any) -> tuple[tuple[str, str], list[list[Any]]]:
        return ("plant", "finding"), [[row.get(name, {}).get(key, missing) for name in FINDINGS] for row in diagnoses]

    return xr.Dataset(
        {
            "error": ("rule", [found.choices[rule].error for rule in RULES]),
            "chosen": ("rule", [json.dumps(dict(found.choices[rule].values)) for rule in RULES]),
            "oracle": found.oracle,
            "diagnosed": found.error,
            "correlation": ("criterion", [found.correlations[rule] for rule in CRITERIA]),
            "not_factored": np.int32(found.failed),
            "pile": found.best.pile.value,
            "evaluations": np.int32(found.best.evaluations),
            "status": column("status", ABSENT),
            "severity": column("severity", ABSENT),
            "value": column("value", np.nan),
        },
        {"rule": list(RULES), "criterion": list(CRITERIA), "plant": [failure.name for failure in FAILURES],
         "finding": list(FINDINGS)},
    )  # fmt: skip


def _joined(parts: Sequence[xr.Dataset], settings: SelectionSettings) -> xr.Dataset:
    """Join the parts along case and seed, and add the regrets."""
    count = settings.seeds
    rows = [xr.concat(parts[i : i + count], "seed") for i in range(0, len(parts), count)]
    joined = xr.concat(rows, "case").assign_coords(case=list(settings.cases), seed=np.arange(count, dtype=np.int32))
    joined = joined.drop_encoding()  # the string lengths of one part would cut the strings of others
    return joined.assign(regret=joined["error"] / joined["oracle"])


def summarise(results: xr.Dataset, titles: dict[str, str]) -> dict[str, Any]:
    """Return the numbers in the report."""
    regret = results["regret"]
    medians = regret.median("seed")
    summary: dict[str, Any] = {
        "rules": {rule: _spread(regret.sel(rule=rule)) for rule in RULES},
        "cases": {
            name: {
                "title": titles[name],
                "oracle": float(results["oracle"].sel(case=name).median()),
                "regrets": {rule: float(medians.sel(case=name, rule=rule)) for rule in RULES},
            }
            for name in titles
        },
        "correlations": {
            rule: {"median": float(correlation.median()), "least": float(correlation.min())}
            for rule, correlation in ((rule, results["correlation"].sel(criterion=rule)) for rule in CRITERIA)
        },
        "lost": {rule: _lost(medians, rule) for rule in (PILE, GIVEN)},
        "plants": {failure.name: _detected(results.sel(plant=failure.name), failure) for failure in FAILURES},
        "missed": [row for failure in FAILURES[1:] for row in _missed(results.sel(plant=failure.name), failure)],
        "alarms": _alarms(results.sel(plant=NONE)),
        "sound": _sound(results.sel(plant=NONE)),
    }
    return summary | {"checks": _checks(summary)}


def _spread(regret: xr.DataArray) -> dict[str, float]:
    return {
        "median": float(regret.median()),
        "geometric_mean": float(np.exp(np.log(regret).mean())),
        "worst": float(regret.max()),
    }


def _lost(medians: xr.DataArray, rule: str) -> list[dict[str, Any]]:
    """Return the cases in which the median regret of a rule is 10% above the best other rule, the worst first."""
    rows = []
    for name in map(str, medians["case"].values):
        others = {other: float(medians.sel(case=name, rule=other)) for other in RULES if other != rule}
        best, own = min(others, key=lambda other: others[other]), float(medians.sel(case=name, rule=rule))
        if own > LOST_RATIO * others[best]:
            ratio = own / others[best]
            rows.append({"case": name, "rule": best, "regret": others[best], "own": own, "ratio": ratio})
    return sorted(rows, key=lambda row: -row["ratio"])


def _detected(results: xr.Dataset, failure: PlantedFailure) -> dict[str, Any]:
    """Return the share of runs in which each finding fired, and in which the expected one (or any alarm) fired."""
    described = {"expected": failure.expected, "what": failure.what}
    planted = (results["status"] != ABSENT).any("finding")
    runs, fired = int(planted.sum()), results["status"] == "fired"
    if not runs:
        return {"runs": 0, "detected": None, "fired": {}, **described}
    alarms = (fired & results["severity"].isin(ALARMS)).any("finding")
    detected = fired.sel(finding=failure.expected) if failure.expected else alarms
    shares = {name: float(fired.sel(finding=name).sum()) / runs for name in FINDINGS}
    return {"runs": runs, "detected": float(detected.sum()) / runs, "fired": shares, **described}


def _missed(results: xr.Dataset, failure: PlantedFailure) -> list[dict[str, Any]]:
    """Return the cases in which a planted failure was not always detected."""
    planted = (results["status"] != ABSENT).any("finding").sum("seed")
    detected = (results["status"].sel(finding=failure.expected) == "fired").sum("seed")
    rows = [(str(name), int(planted.sel(case=name)), int(detected.sel(case=name))) for name in results["case"].values]
    return [
        {"plant": failure.name, "case": name, "runs": runs, "missed": runs - count}
        for name, runs, count in rows
        if count < runs
    ]


def _sound(results: xr.Dataset) -> dict[str, dict[str, int]]:
    """Return the numbers of well-specified runs with a good and a bad choice, and of those with an alarm."""
    runs = (results["status"] != ABSENT).any("finding")
    alarm = ((results["status"] == "fired") & results["severity"].isin(ALARMS)).any("finding")
    good = results["diagnosed"] / results["oracle"] <= GOOD_REGRET
    groups = {"well": runs & good, "badly": runs & ~good}
    return {name: {"runs": int(group.sum()), "alarms": int((group & alarm).sum())} for name, group in groups.items()}


def _alarms(results: xr.Dataset) -> list[dict[str, Any]]:
    """Return the failures and warnings that fired in well-specified cases."""
    alarms = (results["status"] == "fired") & results["severity"].isin(ALARMS)
    counts = alarms.sum("seed")
    return [
        {"case": str(name), "finding": finding, "seeds": int(counts.sel(case=name, finding=finding))}
        for name, finding in itertools.product(results["case"].values, FINDINGS)
        if int(counts.sel(case=name, finding=finding))
    ]


def _checks(summary: dict[str, Any]) -> list[dict[str, Any]]:
    medians = {rule: of["median"] for rule, of in summary["rules"].items()}
    rival = min(OTHERS, key=lambda rule: medians[rule])
    checks = []
    for rule in (PILE, GIVEN):
        own = medians[rule]
        checks += [
            check(f"median regret of {rule} over all cases and seeds", "at most 1.2", own, own <= 1.2),
            check(f"median regret of the best rule without PILE ({rival})", f"above {own:.3g}, the median of {rule}",
                  medians[rival], own < medians[rival]),
        ]  # fmt: skip
    for failure in FAILURES:
        of = summary["plants"][failure.name]
        if of["runs"] and failure.name != NONE:
            what = f"{failure.name}: share of runs in which {failure.expected} fired"
            checks.append(check(what, "at least 0.9", of["detected"], of["detected"] >= 0.9))
    good = summary["sound"]["well"]
    if good["runs"]:
        share = good["alarms"] / good["runs"]
        what = f"share of well-specified runs with a regret up to {GOOD_REGRET:g} that raised an alarm"
        checks.append(check(what, "at most 0.1", share, share <= 0.1))
    return checks


STUDY = Study("selection", SelectionSettings, compute, report)
