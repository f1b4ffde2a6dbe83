"""Compare scores at equal search: each chooses from the same grid, on the cases of the selection benchmark.

`python -m benchmarks.same_grid` scores the grid of every case and seed of `benchmarks.selection` by the default score,
with its guard, and compares the regrets of its choices with those of the other rules there, which are stored. All
equations are soft, as in that benchmark, and nothing is searched by gradient. `--smoke` uses one case and one seed.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import xarray as xr

import pilescore as ps
from pilescore.search.steps import GUARD_NATS

from .default_score import RESULTS
from .selection.case import Case
from .selection.cases import CASES
from .selection.rules import relative_error, sweep, true_values

UNGUARDED, GUARDED = "default, without its guard", "default"
"""The rules that are computed here."""

OTHERS = ("PILE (grid)", "PILE given physics (grid)", "leave-one-out", "5-fold cross-validation")
"""The rules whose errors are stored."""


def choices(model: ps.Model, case: Case) -> dict[str, dict[str, float]]:
    """Return the grid points with the least default score, without and with the guard."""
    default, given = (sweep(model, case.grid, score=score)["pile"] for score in ("auto", "given_physics"))
    least, instead = (column.argmin(list(case.grid)) for column in (default, given))
    lost = 0.5 * sum(block.size for block in model.data) * float(given.isel(least) - given.min())
    chosen = {UNGUARDED: least, GUARDED: instead if not lost <= GUARD_NATS else least}
    return {
        rule: {name: float(case.grid[name][int(place[name])]) for name in case.grid} for rule, place in chosen.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="one case and one seed")
    smoke = parser.parse_args().smoke
    stored = xr.load_dataset(RESULTS)
    regrets: dict[str, list[float]] = {rule: [] for rule in (GUARDED, UNGUARDED, *OTHERS)}
    for case in CASES[:1] if smoke else CASES:
        truth = true_values(case)
        for seed in stored["seed"].values.tolist()[: 1 if smoke else None]:
            of_run = stored.sel(case=case.name, seed=seed)
            model = case.model(seed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ps.errors.PrecisionWarning)  # grids include models nobody would use
                errors = {
                    rule: relative_error(model.replace(values), case.on, truth)
                    for rule, values in choices(model, case).items()
                }
            errors |= {rule: float(of_run["error"].sel(rule=rule)) for rule in OTHERS}
            for rule, error in errors.items():
                regrets[rule].append(error / float(of_run["oracle"]))
    print("| rule, on the same grid | median | geometric mean | 90th percentile | worst |\n|---|---|---|---|---|")
    for rule, found in regrets.items():
        numbers = (np.median(found), np.exp(np.mean(np.log(found))), np.quantile(found, 0.9), np.max(found))
        print(f"| {rule} | {' | '.join(f'{number:.3g}' for number in numbers)} |")


if __name__ == "__main__":
    main()
