"""How well PILE chooses, and whether failures are found: many problems with known solutions, rules, planted failures.

Run it with `pilescore suite`.
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

from pilescore.studies.study import Study, Workbench, check

from .cases import CASES, Case, case
from .planted import ALARMS, FINDINGS, NONE, PLANTS, Plant, diagnosed
from .rules import CRITERIA, GIVEN, OTHERS, PILE, RULES, judged
from .suite_report import report

QUICK = ("poisson", "oscillator", "convection-30")
ABSENT = "absent"
"""The status of findings in a failure that was not planted."""
SOUND = 2.0
"""The regret up to which what was chosen is sound."""
MORE = 1.1
"""A rule has lost to another where its regret is larger by this factor."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """All that the results depend on."""

    seeds: int = 5
    cases: tuple[str, ...] = tuple(each.name for each in CASES)

    @classmethod
    def quick(cls, seeds: int = 2, cases: tuple[str, ...] = QUICK) -> Settings:
        """Return settings for a first look: two seeds, three cases."""
        return cls(seeds, cases)


def known(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of cases, each once, or raise an `InputError`."""
    return tuple(dict.fromkeys(case(name).name for name in names))


def compute(settings: Settings, bench: Workbench) -> tuple[xr.Dataset, dict[str, Any]]:
    """Choose by all rules and diagnose planted failures, for each case and seed, and say how well that went."""
    cases = [case(name) for name in settings.cases]
    runs = list(itertools.product(cases, range(settings.seeds)))
    parts = []
    with threadpool_limits(1, "blas"):  # for matrices of this size threads only wait for each other
        for number, (each, seed) in enumerate(runs, 1):
            name = f"[{number}/{len(runs)}] {each.title}, seed {seed}"
            parts.append(bench.folder.part(f"{each.name}-{seed}", functools.partial(_part, each, seed, name, bench)))
    results = _joined(parts, settings)
    return results, numbers(results, {each.name: each.title for each in cases})


def _part(each: Case, seed: int, name: str, bench: Workbench) -> xr.Dataset:
    """Return what is found for one case and seed."""
    bench.say(name)
    found = judged(each, each.model(seed), seed)
    diagnoses = {plant.name: diagnosed(plant, each, found, seed) for plant in PLANTS}

    def column(key: str, missing: Any) -> tuple[tuple[str, str], list[list[Any]]]:
        rows = [diagnoses[plant.name] for plant in PLANTS]
        return ("plant", "finding"), [[row.get(name, {}).get(key, missing) for name in FINDINGS] for row in rows]

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
        {"rule": list(RULES), "criterion": list(CRITERIA), "plant": [each.name for each in PLANTS],
         "finding": list(FINDINGS)},
    )  # fmt: skip


def _joined(parts: Sequence[xr.Dataset], settings: Settings) -> xr.Dataset:
    """Return the parts along their case and seed, with regrets."""
    count = settings.seeds
    rows = [xr.concat(parts[i : i + count], "seed") for i in range(0, len(parts), count)]
    found = xr.concat(rows, "case").assign_coords(case=list(settings.cases), seed=np.arange(count, dtype=np.int32))
    found = found.drop_encoding()  # lengths of strings of one part
    return found.assign(regret=found["error"] / found["oracle"])


def numbers(results: xr.Dataset, titles: dict[str, str]) -> dict[str, Any]:
    """Return the numbers that the report states."""
    regret = results["regret"]
    medians = regret.median("seed")
    found: dict[str, Any] = {
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
            rule: {"median": float(each.median()), "least": float(each.min())}
            for rule, each in ((rule, results["correlation"].sel(criterion=rule)) for rule in CRITERIA)
        },
        "lost": {rule: _lost(medians, rule) for rule in (PILE, GIVEN)},
        "plants": {plant.name: _detected(results.sel(plant=plant.name), plant.expected) for plant in PLANTS},
        "missed": [row for plant in PLANTS[1:] for row in _missed(results.sel(plant=plant.name), plant)],
        "alarms": _alarms(results.sel(plant=NONE)),
        "sound": _sound(results.sel(plant=NONE)),
    }
    for plant in PLANTS:
        found["plants"][plant.name] |= {"expected": plant.expected, "what": plant.what}
    return found | {"checks": _checks(found)}


def _spread(regret: xr.DataArray) -> dict[str, float]:
    return {
        "median": float(regret.median()),
        "geometric_mean": float(np.exp(np.log(regret).mean())),
        "worst": float(regret.max()),
    }


def _lost(medians: xr.DataArray, rule: str) -> list[dict[str, Any]]:
    """Return where the median regret of a rule is more than a tenth above that of the best other, the worst first."""
    rows = []
    for name in map(str, medians["case"].values):
        others = {other: float(medians.sel(case=name, rule=other)) for other in RULES if other != rule}
        best, own = min(others, key=lambda other: others[other]), float(medians.sel(case=name, rule=rule))
        if own > MORE * others[best]:
            ratio = own / others[best]
            rows.append({"case": name, "rule": best, "regret": others[best], "own": own, "ratio": ratio})
    return sorted(rows, key=lambda row: -row["ratio"])


def _detected(results: xr.Dataset, expected: str) -> dict[str, Any]:
    """Return in which part of the runs each finding fired in a planted failure, and the expected one, or any alarm."""
    planted = (results["status"] != ABSENT).any("finding")
    runs, fired = int(planted.sum()), results["status"] == "fired"
    if not runs:
        return {"runs": 0, "detected": None, "fired": {}}
    seen = fired.sel(finding=expected) if expected else (fired & results["severity"].isin(ALARMS)).any("finding")
    parts = {name: float(fired.sel(finding=name).sum()) / runs for name in FINDINGS}
    return {"runs": runs, "detected": float(seen.sum()) / runs, "fired": parts}


def _missed(results: xr.Dataset, plant: Plant) -> list[dict[str, Any]]:
    """Return the cases in which a planted failure was not always found."""
    planted = (results["status"] != ABSENT).any("finding").sum("seed")
    seen = (results["status"].sel(finding=plant.expected) == "fired").sum("seed")
    rows = [(str(name), int(planted.sel(case=name)), int(seen.sel(case=name))) for name in results["case"].values]
    return [{"plant": plant.name, "case": name, "runs": runs, "missed": runs - found}
            for name, runs, found in rows if found < runs]  # fmt: skip


def _sound(results: xr.Dataset) -> dict[str, dict[str, int]]:
    """Return in how many well-specified runs the choice is good or bad, and how many of them raised an alarm."""
    runs = (results["status"] != ABSENT).any("finding")
    alarm = ((results["status"] == "fired") & results["severity"].isin(ALARMS)).any("finding")
    well = results["diagnosed"] / results["oracle"] <= SOUND
    parts = {"well": runs & well, "badly": runs & ~well}
    return {how: {"runs": int(part.sum()), "alarms": int((part & alarm).sum())} for how, part in parts.items()}


def _alarms(results: xr.Dataset) -> list[dict[str, Any]]:
    """Return the failures and warnings that fired where nothing is wrong, by case."""
    alarms = (results["status"] == "fired") & results["severity"].isin(ALARMS)
    counts = alarms.sum("seed")
    return [
        {"case": str(name), "finding": finding, "seeds": int(counts.sel(case=name, finding=finding))}
        for name, finding in itertools.product(results["case"].values, FINDINGS)
        if int(counts.sel(case=name, finding=finding))
    ]


def _checks(found: dict[str, Any]) -> list[dict[str, Any]]:
    medians = {rule: of["median"] for rule, of in found["rules"].items()}
    rival = min(OTHERS, key=lambda rule: medians[rule])
    checks = []
    for rule in (PILE, GIVEN):
        own = medians[rule]
        checks += [
            check(f"median regret of {rule} over all cases and seeds", "at most 1.2", own, own <= 1.2),
            check(f"least median regret of rules that are not PILE ({rival})", f"above {own:.3g}, that of {rule}",
                  medians[rival], own < medians[rival]),
        ]  # fmt: skip
    for plant in PLANTS:
        of = found["plants"][plant.name]
        if of["runs"] and plant.name != NONE:
            what = f"{plant.name}: part of the runs in which {plant.expected} fired"
            checks.append(check(what, "at least 0.9", of["detected"], of["detected"] >= 0.9))
    well = found["sound"]["well"]
    if well["runs"]:
        part = well["alarms"] / well["runs"]
        what = f"part of the well-specified runs with a regret up to {SOUND:g} that raised an alarm"
        checks.append(check(what, "at most 0.1", part, part <= 0.1))
    return checks


STUDY = Study("suite", compute, report)
