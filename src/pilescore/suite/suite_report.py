"""What the suite shows and says, from its dataset and its summary alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from pilescore.charts import Curve, Figure, Lines, Mark, Report, Section, TextTable, digits
from pilescore.studies.words import checks_table, details, percent

from .planted import NONE
from .rules import GIVEN, OTHERS, PILE

WHY = (
    "PILE of data and physics together counts every node of an equation as a reading. Where the equation is exact, "
    "draws of a long kernel satisfy it nearly, and the smaller ρ is, the more each node pays for that: with more "
    "nodes than data the score may give the data up for noise. Given the physics, the nodes are taken as known and "
    "only the data are scored. Both together are right where the source itself was measured, and its noise is to be "
    "found."
)


COLOURS = 8
"""Rules that a figure can tell apart."""


def report(results: xr.Dataset, summary: Mapping[str, Any]) -> Report:
    """Return the report of the suite."""
    rules, plants = summary["rules"], summary["plants"]
    rival = min(OTHERS, key=lambda rule: rules[rule]["median"])
    planted = [of for name, of in plants.items() if name != NONE and of["runs"]]
    verdicts = [
        (f"{digits(rules[GIVEN]['median'])}×", f"median error of {GIVEN}, over the best possible"),
        (f"{digits(rules[PILE]['median'])}×", f"the same of {PILE}, of data and physics together"),
        (f"{digits(rules[rival]['median'])}×", f"the same of the best rule that is not PILE, {rival}"),
    ]
    if planted:
        least = min(of["detected"] for of in planted)
        verdicts.append((percent(least), "of the planted failures of each kind were found, at least"))
    well = summary["sound"]["well"]
    if well["runs"]:
        verdicts.append(
            (percent(well["alarms"] / well["runs"]), "of the well-specified, well chosen models raised an alarm")
        )
    return Report(
        title="The suite: how well PILE chooses, and whether failures are found",
        lead=(
            f"{len(summary['cases'])} problems with known solutions, each with {_draws(len(summary['seeds']))} of the "
            "data. Hyperparameters are chosen by PILE and by other rules, none of which knows the truth. The regret of "
            "a choice is the true error of its posterior mean over the least error of all models that were tried: 1 is "
            "the best possible."
        ),
        verdicts=tuple(verdicts),
        sections=(
            _regrets(results, summary),
            _by_case(summary),
            _lost(summary),
            _correlations(summary),
            _planted(summary),
            checks_table(summary),
        ),
        details=details(summary),
    )


def _draws(count: int) -> str:
    return "one draw" if count == 1 else f"{count} draws"


def _regrets(results: xr.Dataset, summary: Mapping[str, Any]) -> Section:
    regret, rules = results["regret"], list(summary["rules"])
    drawn = rules[:COLOURS]
    places = np.arange(1, regret.sizes["case"] + 1)
    middle = 0.5 * (len(drawn) - 1)
    dots, shares = [], []
    for colour, rule in enumerate(drawn):
        of = regret.sel(rule=rule)
        medians, every = of.median("seed").values, np.sort(of.values.ravel())
        style: Any = "line and dots" if rule == GIVEN else "dots"
        dots.append(Curve(rule, places + 0.08 * (colour - middle), medians, colour=colour, style=style))
        shares.append(Curve(rule, every, np.arange(1, len(every) + 1) / len(every), colour=colour))
    best = Mark("the best possible", y=1.0)
    return Section(
        "Regrets",
        (
            f"{PILE} minimises PILE of data and physics together within bounds by its gradient, over kernel, γ, ρ "
            f"and η, from the model's own values and three other starts; {GIVEN} does so with the evidence of the "
            "data given the physics. The other rules take the least of their criterion on a grid within the same "
            "bounds, at η = 1, the size of all solutions. What rules choose is among the models tried: a regret of "
            "1 says that no other one was better. The evidence of the data alone is blind to ρ, which is taken at "
            "the geometric middle of its grid. Cross-validation leaves out a fifth of the data at a time and keeps "
            "the physics. The training loss is the sum of the mean squared residuals of data and physics. Errors "
            "are relative L² errors of the posterior mean.",
        ),
        (
            Figure(
                "regrets",
                "Regret by case and by rule",
                "Left: the median regret of each rule in each case, by the number of the case in the table below. "
                "Right: the part of all runs in which the regret is at most so large; a rule is better the further "
                f"its curve lies to the left. Only in the table: {', '.join(rules[COLOURS:])}.",
                (
                    Lines("Median regret", "case", "regret", tuple(dots), (best,), y_log=True),
                    Lines("All runs", "regret", "part of the runs", tuple(shares), x_log=True),
                ),
            ),
        ),
        (
            TextTable(
                "Regrets of all cases and seeds.",
                ("rule", "median", "geometric mean", "worst"),
                tuple(
                    (rule, *(digits(of[each]) for each in ("median", "geometric_mean", "worst")))
                    for rule, of in summary["rules"].items()
                ),
                strong=rules.index(GIVEN),
            ),
        ),
    )


def _by_case(summary: Mapping[str, Any]) -> Section:
    rules = list(summary["rules"])
    rows = [
        (f"{number}. {of['title']}", digits(of["oracle"]), *(digits(of["regrets"][rule]) for rule in rules))
        for number, of in enumerate(summary["cases"].values(), 1)
    ]
    return Section(
        "Case by case",
        ("The least error is that of the best of all models that were tried, the median of the seeds.",),
        (),
        (TextTable("Median regrets of the seeds.", ("case", "least error", *rules), tuple(rows)),),
    )


def _lost(summary: Mapping[str, Any]) -> Section:
    cases, texts, tables = summary["cases"], [], []
    for rule, lost in summary["lost"].items():
        if not lost:
            texts.append(f"In no case is the median regret of {rule} more than 10% above that of another rule.")
            continue
        many = f"{len(lost)} of {len(cases)} cases" if len(cases) > 1 else "the only case"
        texts.append(f"In {many} the median regret of {rule} is more than 10% above that of the best other rule.")
        rows = [
            (cases[row["case"]]["title"], row["rule"], *(digits(row[key]) for key in ("regret", "own", "ratio")))
            for row in lost
        ]
        header = ("case", "best other rule", "its regret", "regret of PILE", "ratio")
        tables.append(TextTable(f"{rule}: median regrets, the worst first.", header, tuple(rows)))
    texts.append(WHY)
    return Section("Where PILE lost", tuple(texts), (), tuple(tables))


def _correlations(summary: Mapping[str, Any]) -> Section:
    rows = [(rule, digits(of["median"]), digits(of["least"])) for rule, of in summary["correlations"].items()]
    return Section(
        "Does the order agree?",
        (
            "Spearman's rank correlation of each criterion with the true error, over all points of the grid: 1 if "
            "a lower score always means a lower error. It judges the whole grid, also where no rule would choose. "
            "The errors are those of means, which is what cross-validation measures too; evidence also judges how "
            "well the noise is known, and puts points with a good mean and a wrong γ or ρ behind.",
        ),
        (),
        (TextTable("Rank correlations of all cases and seeds.", ("criterion", "median", "least"), tuple(rows)),),
    )


def _planted(summary: Mapping[str, Any]) -> Section:
    plants = {name: of for name, of in summary["plants"].items() if of["runs"]}
    made = [
        (name, of["what"], of["expected"] or "any failure or warning", str(of["runs"]), percent(of["detected"]))
        for name, of in plants.items()
    ]
    findings = list(dict.fromkeys(finding for of in plants.values() for finding in of["fired"]))
    confusion = [(finding, *(_share(of["fired"][finding]) for of in plants.values())) for finding in findings]
    tables = [
        TextTable("Failures that were planted, and in which part of the runs they were found.",
                  ("planted", "what was done", "finding to fire", "runs", "fired"), tuple(made)),
        TextTable("In which part of the runs each finding fired; notes too.", ("finding", *plants), tuple(confusion)),
    ]  # fmt: skip
    missed = [(row["plant"], summary["cases"][row["case"]]["title"], f"{row['missed']} of {row['runs']}")
              for row in summary["missed"]]  # fmt: skip
    if missed:
        tables.append(TextTable("Planted failures that were not found.", ("planted", "case", "runs"), tuple(missed)))
    alarms = [(summary["cases"][row["case"]]["title"], row["finding"], str(row["seeds"])) for row in summary["alarms"]]
    if alarms:
        caption = f"Failures and warnings in well-specified problems, out of {_draws(len(summary['seeds']))}."
        tables.append(TextTable(caption, ("case", "finding", "runs"), tuple(alarms)))
    return Section(
        "Planted failures",
        (
            "A diagnosis should say what is wrong, and be quiet where nothing is. Failures of known kinds are "
            "planted in the problems, and the same checks are made of the well-specified problems as PILE chose, "
            "given the physics where it is exact and of both together where the source was measured: there a "
            "failure or a warning is a false alarm, unless the choice was bad.",
            *_sound(summary["sound"]),
        ),
        (),
        tuple(tables),
    )


def _sound(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Say how alarms go with regrets, where there are any."""
    well, badly = found["well"], found["badly"]
    if not badly["runs"]:
        return ()
    return (
        f"In {badly['runs']} of {well['runs'] + badly['runs']} well-specified runs the choice itself was bad, with "
        f"a regret above 2: {badly['alarms']} of these raised an alarm. Of the other {well['runs']}, "
        f"{well['alarms']} did: these are the false alarms.",
    )


def _share(part: float) -> str:
    return "–" if part == 0 else percent(part)
