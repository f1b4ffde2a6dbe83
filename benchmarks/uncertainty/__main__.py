"""Measure whether stated uncertainties hold, on problems with known solutions.

    python -m benchmarks.uncertainty                          # all parts: hours
    python -m benchmarks.uncertainty coverage calibration     # some parts
    python -m benchmarks.uncertainty --quick                  # few draws
    python -m benchmarks.uncertainty parameters --draws 10    # that many draws of each problem
    python -m benchmarks.uncertainty coverage --seeds 3 4 5   # these draws of each problem
    python -m benchmarks.uncertainty --save                   # store the results that the page shows
    python -m benchmarks.uncertainty --page                   # write docs/uncertainty.md from them; run nothing
    python -m benchmarks.uncertainty --smoke                  # few and small runs, a smoke test

Finished runs are stored, in one file for each part, and an interrupted benchmark continues. Remove the files after a
change of the library.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from . import page
from .page import PAGE, PARTS, RESULTS
from .runs import PROCESSES, Done, make_runs

OUT = Path("build") / "uncertainty"


def main(arguments: Sequence[str] | None = None, target: Path = PAGE, results: Path = RESULTS) -> int:
    """Run the benchmark and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; by default all")
    parser.add_argument("--quick", action="store_true", help="few draws of each problem")
    parser.add_argument("--smoke", action="store_true", help="few and small runs in this process; stores nothing")
    parser.add_argument("--draws", type=int, metavar="N", help="the number of draws of each problem")
    parser.add_argument("--seeds", type=int, nargs="+", metavar="SEED", help="the draws of each problem")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="the number of processes; timings use one")
    parser.add_argument(
        "--out", type=Path, default=OUT, metavar="DIR", help=f"where finished runs are, {OUT} by default"
    )
    parser.add_argument("--save", action="store_true", help=f"store the results for the page in {results.name}")
    parser.add_argument("--page", action="store_true", help=f"write {target.name} from {results.name}; run nothing")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.parts if name not in PARTS]
    if unknown:
        parser.error(f"no part {unknown[0]!r}; the parts are {', '.join(PARTS)}")
    if given.smoke and given.save:
        parser.error("--smoke does not make results for the page")
    if given.page:
        page.write_page(page.load(results), target)
        return 0
    if not given.smoke:
        given.out.mkdir(parents=True, exist_ok=True)
    reports, all_done = [], []
    for name in given.parts or PARTS:
        begun = time.perf_counter()
        done = _made(name, given)
        all_done += done
        reports.append(f"## {name}\n\n{PARTS[name].report(done)}")
        print(f"{name}: {time.perf_counter() - begun:.0f} s", flush=True)
    print("\n" + "\n\n".join(reports))
    if given.save:
        page.save(all_done, results)
    return 0


def _made(name: str, given: argparse.Namespace) -> list[Done]:
    module = PARTS[name]
    runs = module.runs(quick=given.quick, smoke=given.smoke, draws=given.draws, seeds=given.seeds)
    # New processes compile everything again, which takes longer than a smoke run.
    processes = 1 if given.smoke else min(given.processes, getattr(module, "PROCESSES", given.processes))
    return make_runs(runs, None if given.smoke else given.out / f"{name}.jsonl", processes)


if __name__ == "__main__":
    sys.exit(main())
