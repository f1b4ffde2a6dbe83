"""The report of the benchmark, made from its dataset and its summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from pilescore.reports import Curve, Figure, Lines, Mark, Report, Section, TextTable, digits
from pilescore.studies.report_parts import checks_section, details, percent

from .planted import NONE
from .rules import GIVEN, OTHERS, PILE

WHY = (
    "Joint PILE, of data and physics, counts every node of the equation as a measurement. If the equation is exact, "
    "samples of a kernel with a long bandwidth nearly satisfy it, and a small ρ rewards this at every node. With more "
    "nodes than data, the best score can then explain the data as noise. PILE given physics takes the nodes as known "
    "and scores the data only. Joint PILE is the right score if the source itself was measured and its noise is "
    "unknown."
)
COLOURS = 8
"""The largest number of rules in a figure."""


def report(results: xr.Dataset, summary: Mapping[str, Any]) -> Report:
    """Return the report of the benchmark."""
    rules, plants = summary["rules"], summary["plants"]
    rival = min(OTHERS, key=lambda rule: rules[rule]["median"])
    planted = [of for name, of in plants.items() if name != NONE and of["runs"]]
    verdicts = [
        (f"{digits(rules[GIVEN]['median'])}×", f"median error of {GIVEN}, relative to the best possible"),
        (f"{digits(rules[PILE]['median'])}×", f"the same for {PILE}, the joint score of data and physics"),
        (f"{digits(rules[rival]['median'])}×", f"the same for {rival}, the best rule without PILE"),
    ]
    if planted:
        least = min(of["detected"] for of in planted)
        verdicts.append((percent(least), "or more of the planted failures of each kind were detected"))
    well = summary["sound"]["well"]
    if well["runs"]:
        verdicts.append(
            (percent(well["alarms"] / well["runs"]), "of the well-specified, well-chosen models raised a false alarm")
        )
    return Report(
        title="Benchmark: how well PILE chooses" + (", and whether failures are detected" if planted else ""),
        lead=(
            f"The benchmark has {len(summary['cases'])} problems with known solutions, each with "
            f"{_datasets(len(summary['seeds']))}. PILE and other rules choose the hyperparameters without knowing the "
            "truth. The regret of a choice is the true error of its posterior mean divided by the smallest error of "
            "all models that were tried. The best possible regret is 1."
        ),
        verdicts=tuple(verdicts),
        sections=(
            _regrets(results, summary),
            _by_case(summary),
            _lost(summary),
            _correlations(summary),
            *([_planted(summary)] if planted else []),
            checks_section(summary),
        ),
        details=details(summary),
    )


def _datasets(count: int) -> str:
    return "one random dataset" if count == 1 else f"{count} random datasets"


def _regrets(results: xr.Dataset, summary: Mapping[str, Any]) -> Section:
    regret, rules = results["regret"], list(summary["rules"])
    drawn = rules[:COLOURS]
    places = np.arange(1, regret.sizes["case"] + 1)
    middle = 0.5 * (len(drawn) - 1)
    dots, shares = [], []
    for colour, rule in enumerate(drawn):
        of_rule = regret.sel(rule=rule)
        medians, every = of_rule.median("seed").values, np.sort(of_rule.values.ravel())
        style: Any = "line and dots" if rule == GIVEN else "dots"
        dots.append(Curve(rule, places + 0.08 * (colour - middle), medians, colour=colour, style=style))
        shares.append(Curve(rule, every, np.arange(1, len(every) + 1) / len(every), colour=colour))
    best = Mark("the best possible", y=1.0)
    return Section(
        "Regrets",
        (
            f"{PILE} minimises joint PILE by gradient within bounds, over the kernel, γ, ρ and η, from the initial "
            f"values of the model and three other starts. {GIVEN} does the same for PILE of the data given the "
            "physics. The other rules minimise a criterion on a grid within the same bounds, with η = 1, the size of "
            "all solutions. The tried models include all choices, so a regret of 1 means that no tried model was "
            "better. The evidence of the data alone does not depend on ρ, which is then the geometric middle of its "
            "grid. Cross-validation leaves out a fifth of the data at a time and keeps the physics. The training loss "
            "is the sum of the mean squared residuals of data and physics. Errors are relative L² errors of the "
            "posterior mean.",
        ),
        (
            Figure(
                "regrets",
                "Regret by case and by rule",
                "Left: the median regret of each rule in each case; the table below has the case numbers. Right: the "
                "share of runs with at most this regret. The better a rule, the further left its curve. Only in the "
                f"table: {', '.join(rules[COLOURS:])}.",
                (
                    Lines("Median regret", "case", "regret", tuple(dots), (best,), y_log=True),
                    Lines("All runs", "regret", "share of runs", tuple(shares), x_log=True),
                ),
            ),
        ),
        (
            TextTable(
                "Regrets over all cases and seeds.",
                ("rule", "median", "geometric mean", "worst"),
                tuple((rule, of["median"], of["geometric_mean"], of["worst"]) for rule, of in summary["rules"].items()),
                strong=rules.index(GIVEN),
            ),
        ),
    )


def _by_case(summary: Mapping[str, Any]) -> Section:
    rules = list(summary["rules"])
    rows = [
        (f"{number}. {of['title']}", of["oracle"], *(of["regrets"][rule] for rule in rules))
        for number, of in enumerate(summary["cases"].values(), 1)
    ]
    return Section(
        "Case by case",
        ("The smallest error is the error of the best model that was tried, as the median over seeds.",),
        (),
        (TextTable("Median regrets over seeds.", ("case", "smallest error", *rules), tuple(rows)),),
    )


def _lost(summary: Mapping[str, Any]) -> Section:
    cases, texts, tables = summary["cases"], [], []
    for rule, lost in summary["lost"].items():
        if not lost:
            texts.append(f"In no case is the median regret of {rule} more than 10% above the best other rule.")
            continue
        many = f"{len(lost)} of {len(cases)} cases" if len(cases) > 1 else "the only case"
        texts.append(f"In {many} the median regret of {rule} is more than 10% above the best other rule.")
        rows = [(cases[row["case"]]["title"], row["rule"], row["regret"], row["own"], row["ratio"]) for row in lost]
        header = ("case", "best other rule", "its regret", "regret of PILE", "ratio")
        tables.append(TextTable(f"{rule}: median regrets, the worst first.", header, tuple(rows)))
    texts.append(WHY)
    return Section("Where other rules are better", tuple(texts), (), tuple(tables))


def _correlations(summary: Mapping[str, Any]) -> Section:
    rows = [(rule, of["median"], of["least"]) for rule, of in summary["correlations"].items()]
    return Section(
        "Rank correlations",
        (
            "The table shows Spearman's rank correlation of each criterion with the true error, over all grid points. "
            "It is 1 if a lower score always means a lower error. It covers the whole grid, including points that no "
            "rule would choose. The errors are errors of the posterior mean, which cross-validation also measures. "
            "Evidence also measures the noise model, so it ranks points with a good mean and a wrong γ or ρ lower.",
        ),
        (),
        (TextTable("Rank correlations over all cases and seeds.", ("criterion", "median", "lowest"), tuple(rows)),),
    )


def _planted(summary: Mapping[str, Any]) -> Section:
    plants = {name: of for name, of in summary["plants"].items() if of["runs"]}
    made = [
        (name, of["what"], of["expected"] or "any failure or warning", of["runs"], percent(of["detected"]))
        for name, of in plants.items()
    ]
    findings = list(dict.fromkeys(finding for of in plants.values() for finding in of["fired"]))
    confusion = [(finding, *(_share(of["fired"][finding]) for of in plants.values())) for finding in findings]
    tables = [
        TextTable("Planted failures, and the share of runs in which they were detected.",
                  ("planted", "description", "expected finding", "runs", "detected"), tuple(made)),
        TextTable("The share of runs in which each finding fired, including notes.", ("finding", *plants),
                  tuple(confusion)),
    ]  # fmt: skip
    missed = [(row["plant"], summary["cases"][row["case"]]["title"], f"{row['missed']} of {row['runs']}")
              for row in summary["missed"]]  # fmt: skip
    if missed:
        tables.append(TextTable("Planted failures that were missed.", ("planted", "case", "runs"), tuple(missed)))
    alarms = [(summary["cases"][row["case"]]["title"], row["finding"], row["seeds"]) for row in summary["alarms"]]
    if alarms:
        caption = f"Failures and warnings in well-specified problems, out of {len(summary['seeds'])} runs each."
        tables.append(TextTable(caption, ("case", "finding", "runs"), tuple(alarms)))
    return Section(
        "Planted failures",
        (
            "A diagnosis should report what is wrong, and nothing if all is well. Known failures are planted in the "
            "problems. The same checks are applied to well-specified problems with the choice of PILE (given physics "
            "if the source is exact, joint if it was measured). There a failure or a warning is a false alarm, unless "
            "the choice was bad.",
            *_sound(summary["sound"]),
        ),
        (),
        tuple(tables),
    )


def _sound(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence on alarms in runs with a bad choice, if there are such runs."""
    well, badly = found["well"], found["badly"]
    if not badly["runs"]:
        return ()
    return (
        f"In {badly['runs']} of {well['runs'] + badly['runs']} well-specified runs the choice was bad, with a regret "
        f"above 2; {badly['alarms']} of these raised an alarm. In the other {well['runs']} runs, {well['alarms']} "
        "false alarms were raised.",
    )


def _share(share: float) -> str:
    return "–" if share == 0 else percent(share)
