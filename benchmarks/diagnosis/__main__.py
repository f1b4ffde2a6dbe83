"""Measure how often the diagnosis is right, on sound models and on planted failures.

    python -m benchmarks.diagnosis                            # all draws in view: hours
    python -m benchmarks.diagnosis --quick                    # two draws of each problem
    python -m benchmarks.diagnosis --draws 5 --suite          # five draws, with the cases of the selection benchmark
    python -m benchmarks.diagnosis --seeds 100 101 --problems beam duffing --failures sound "one outlier"
    python -m benchmarks.diagnosis --reported --draws 10      # the draws of reported figures
    python -m benchmarks.diagnosis --save                     # store the runs of the page, and write it
    python -m benchmarks.diagnosis --page                     # write docs/diagnosis-rates.md; run nothing
    python -m benchmarks.diagnosis --smoke                    # a few small runs, a smoke test

Finished runs are stored, one in each line of a file, and an interrupted benchmark continues. After a change of the
library, remove the file or give another one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ..uncertainty.runs import Run, make_runs, read
from . import page, suite
from .measured import COST, COST_MODELS, make_run
from .planted import FAILURES, SOUND
from .problems import IN_VIEW, PROBLEMS, REPORTED, Problem
from .report import report

ALL: tuple[Problem | suite.SuiteProblem, ...] = (*PROBLEMS, *suite.PROBLEMS)
OUT = Path("build") / "diagnosis" / "runs.jsonl"
KINDS = (SOUND, *(each.name for each in FAILURES), COST)
SMOKE = ("η ×10⁻⁴",)
"""The failures of a smoke test."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [each.name for each in ALL]
    parser.add_argument("--quick", action="store_true", help="two draws of each problem")
    parser.add_argument("--smoke", action="store_true", help="a few small runs in this process; stores nothing")
    parser.add_argument("--draws", type=int, metavar="N", help="the number of draws of each problem")
    parser.add_argument("--seeds", type=int, nargs="+", metavar="SEED", help="these draws of each problem")
    parser.add_argument("--reported", action="store_true", help="the draws that are not in view of developers")
    parser.add_argument("--suite", action="store_true", help="the cases of the selection benchmark too")
    parser.add_argument("--problems", nargs="+", choices=names, metavar="PROBLEM", help="only these")
    parser.add_argument("--failures", nargs="+", choices=KINDS, metavar="KIND", help=f"some of {', '.join(KINDS)}")
    parser.add_argument("--processes", type=int, default=1, help="the number of processes; timings need one")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE", help=f"where runs are stored, {OUT}")
    parser.add_argument("--report", action="store_true", help="print the tables of all stored runs; run nothing")
    parser.add_argument("--save", action="store_true", help="store all runs of --out for the page, and write it")
    parser.add_argument("--page", action="store_true", help="write the page from its stored runs; run nothing")
    given = parser.parse_args(arguments)
    if given.save:
        page.save(read(given.out))
    if given.save or given.page:
        page.write_page(page.load())
        return 0
    if given.report:
        print(report(read(given.out)))
        return 0
    if not given.smoke:
        given.out.parent.mkdir(parents=True, exist_ok=True)
    print(report(make_runs(runs(given), None if given.smoke else given.out, given.processes, make_run)))
    return 0


def runs(given: argparse.Namespace) -> list[Run]:
    """Return the requested runs; all failures of a draw follow each other and share its sound fit."""
    if given.smoke:
        return [*(Run(kind, "beam", 0) for kind in (SOUND, *SMOKE)), Run(COST, "beam", 0)]
    seeds = given.seeds or (REPORTED if given.reported else IN_VIEW)[: given.draws or (2 if given.quick else None)]
    kinds = given.failures or KINDS
    chosen = [
        Run(kind, each.name, seed)
        for seed in seeds
        for each in (ALL if given.suite else PROBLEMS)
        for kind in (
            SOUND,
            *(failure.name for failure in FAILURES if not failure.needs or getattr(each, failure.needs)),
        )
        if kind in kinds and (not given.problems or each.name in given.problems)
    ]
    return chosen + [Run(COST, name, 0) for name in COST_MODELS if COST in kinds]


if __name__ == "__main__":
    sys.exit(main())
