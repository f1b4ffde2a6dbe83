"""How often the inferred parameters of examples/transport lie within two standard errors of the truth.

`python -m benchmarks.coverage` draws new noise with each of 20 seeds, and infers velocity and diffusivity from each
draw; `--smoke` uses one seed. The exit code is 1 if both lie within two standard errors in fewer than 17 of 20 draws.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import pilescore as ps

EXAMPLES = Path(__file__).parents[1] / "examples"
NAME = "transport"


def made() -> Any:
    """Return the module that generates the data of the examples."""
    found = importlib.util.spec_from_file_location("make", EXAMPLES / "make.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["make"] = module  # its dataclasses look up their own module
    found.loader.exec_module(module)
    return module


def inferred(seed: int) -> ps.problems.Selection:
    """Return the result of `pilescore select` for the data of a seed."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        made().write(place, seed)
        shutil.copy(EXAMPLES / NAME / "problem.toml", place / NAME)
        return ps.select(ps.load_problem(place / NAME / "problem.toml"), place / "found", progress=False)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true")
    seeds = range(1 if parser.parse_args().smoke else 20)
    truth = made().EXAMPLES[NAME].parameters
    scaled = []
    print(f"| seed | {' | '.join(truth)} | errors in standard errors |\n|{'---|' * (len(truth) + 2)}")
    for seed in seeds:
        best = inferred(seed)
        row = [(best.values[name] - value) / best.standard_errors[name] for name, value in truth.items()]
        shown = " | ".join(f"{best.values[name]:.4g} ± {best.standard_errors[name]:.2g}" for name in truth)
        print(f"| {seed} | {shown} | {row[0]:+.2f}, {row[1]:+.2f} |", flush=True)
        scaled.append(row)
    within = np.abs(scaled) < 2
    counts = dict(zip(truth, within.sum(axis=0).tolist(), strict=True))
    both = int(within.all(axis=1).sum())
    counted = ", ".join(f"{name} {count}" for name, count in counts.items())
    print(f"\nWithin two standard errors: {counted}, both {both} of {len(scaled)} (expected for normal errors: 91%).")
    spread = ", ".join(f"{value:.2f}" for value in np.sqrt(np.mean(np.square(scaled), axis=0)))
    print(f"Root mean square of the errors, in standard errors: {spread}.")
    return 0 if both >= 0.85 * len(scaled) or len(scaled) < 20 else 1


if __name__ == "__main__":
    sys.exit(main())
