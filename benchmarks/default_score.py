"""How well the default search does on the cases of the selection benchmark, left alone.

`python -m benchmarks.default_score` minimises by the defaults, exact equations where the source is exact, on every case
and seed of `benchmarks.selection`, and prints the regret: the true error divided by the least error of all models that
were tried there, which its stored results hold, or of the default itself. `--smoke` uses one case and one seed.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
import xarray as xr

import pilescore as ps

from .selection.case import Case
from .selection.cases import CASES
from .selection.cases import case as case_of
from .selection.rules import SEARCH, relative_error, true_values

RESULTS = Path(__file__).parent / "selection" / "results.nc"
LARGE_ERROR = 0.5
"""An error above this has to be said: by a warning of the search or a failure of the diagnosis."""


def left_alone(case: Case, seed: int) -> ps.Minimum:
    """Return the minimum by the defaults. A source that was measured, or does not hold, has a temperature."""
    model, over = case.model(seed), dict(case.over)
    if case.source_noise == 0.0 and case.well_specified:
        model = model.replace(rho=None)
        over = {name: bounds for name, bounds in over.items() if name in model.parameters or "[" in name}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ps.minimize(model, over, starts=4, search=SEARCH, run=ps.RunOptions(progress=False))


def is_said(best: ps.Minimum) -> bool:
    """Return whether the result itself, or its diagnosis, says that something is wrong."""
    unresolved = best.resolution is not None and not best.resolution.resolved
    return unresolved or not best.converged or not ps.diagnose(best, progress=False).healthy


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    stored = xr.open_dataset(RESULTS)
    names = ["oscillator"] if options.smoke else options.only or [each.name for each in CASES]
    regrets, silent, rows = [], [], []
    print("| case | seed | error | regret | scored | said |\n|---|---|---|---|---|---|")
    for name in names:
        case = case_of(name)
        truth = true_values(case)
        for seed in range(1 if options.smoke else options.seeds):
            best = left_alone(case, seed)
            error = relative_error(best.model, case.on, truth)
            regret = error / min(error, float(stored["oracle"].sel(case=name, seed=seed)))
            said = is_said(best) if error > LARGE_ERROR else None
            if said is False:
                silent.append(f"{name} {seed}")
            regrets.append(regret)
            rows.append({"case": name, "seed": seed, "error": error, "regret": regret, "why": best.why})
            shown = "" if said is None else "yes" if said else "no"
            print(f"| {name} | {seed} | {error:.3g} | {regret:.3g} | {best.why} | {shown} |", flush=True)
            if options.save:
                options.save.write_text(json.dumps(rows, indent=1))
    median, most, worst = np.quantile(regrets, [0.5, 0.9, 1.0])
    print(f"\nregret: median {median:.3g} (aim 1.1), 90th percentile {most:.3g} (1.6), worst {worst:.3g} (4)")
    print(f"errors above {LARGE_ERROR} of which nothing is said: {', '.join(silent) or 'none'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
