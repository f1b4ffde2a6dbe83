"""Run published problems with the defaults of the library, and compare the results with the published numbers.

    python -m benchmarks.published                        # all problems, with all draws: hours
    python -m benchmarks.published --quick                # two draws of each problem
    python -m benchmarks.published --only rat42 boxbod    # some problems
    python -m benchmarks.published --show rat42           # print a problem file
    python -m benchmarks.published --save results.json    # store each draw; the next run continues
    python -m benchmarks.published --page                 # write docs/published.md from the stored results
    python -m benchmarks.published --smoke                # two tiny problems, a smoke test

Problems, ranges and criteria were written before the first run, and are not changed in view of results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from . import certified, failure_modes, hidden_physics, kernel_learning, nonlinear, smoke
from .page import PAGE, page
from .rows import HEADER, Store, line, problem_text, run, totals
from .yardstick import Yardstick

RESULTS = Path(__file__).with_name("results.json")
YARDSTICKS: tuple[Yardstick, ...] = (
    *certified.YARDSTICKS,
    *kernel_learning.YARDSTICKS,
    *hidden_physics.YARDSTICKS,
    *failure_modes.YARDSTICKS,
    *nonlinear.YARDSTICKS,
)


def main(arguments: Sequence[str] | None = None, target: Path = PAGE) -> int:
    """Run the benchmark and return its exit code."""
    names = [yardstick.name for yardstick in YARDSTICKS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"some of {', '.join(names)}")
    parser.add_argument("--show", choices=names, metavar="NAME", help="print a problem file, and run nothing")
    parser.add_argument("--quick", action="store_true", help="two draws of each problem")
    parser.add_argument("--smoke", action="store_true", help="two tiny problems, a smoke test")
    parser.add_argument("--save", type=Path, metavar="FILE", help="store each draw here; skip those already stored")
    parser.add_argument("--page", action="store_true", help=f"write {target.name} from the file of --save; run nothing")
    given = parser.parse_args(arguments)
    if given.show:
        print(problem_text(next(each for each in YARDSTICKS if each.name == given.show).pose(0)))
        return 0
    if given.page:
        target.write_text(page(YARDSTICKS, Store(given.save or RESULTS).rows), encoding="utf-8")
        return 0
    chosen = smoke.YARDSTICKS if given.smoke else [each for each in YARDSTICKS if each.name in (given.only or names)]
    store = Store(given.save)
    print(HEADER, flush=True)
    rows = {}
    for yardstick in chosen:
        rows[yardstick.name] = run(yardstick, store, quick=given.quick)
        print(line(yardstick, rows[yardstick.name]), flush=True)
    print(f"\n{totals(chosen, rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
