"""The time of `pilescore.select` on each shipped example, divided by that of another git revision.

    python -m benchmarks.examples --against 3892c0c            # before equations without a noise were exact
    python -m benchmarks.examples --against HEAD --smoke       # the cheapest example, once

New processes solve each example with the two revisions alternately, each with its own problem file. Importing the
package is not timed; compiling is, as it is for a user.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT = 3.0
CODE = """
import sys, tempfile, time, warnings
import pilescore as ps
warnings.simplefilter("ignore")
problem = ps.load_problem(sys.argv[1])
with tempfile.TemporaryDirectory() as out:
    start = time.perf_counter()
    ps.select(problem, out, progress=False)
print(time.perf_counter() - start)
"""


def unpack(revision: str, directory: Path) -> None:
    """Write the package and the examples of a git revision to a directory."""
    command = ["git", "archive", "--format=tar", revision, "src", "examples"]
    packed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(directory, filter="data")


def seconds(root: Path, example: str) -> float:
    """Return the time to solve an example in a new process, on one thread."""
    command = [sys.executable, "-c", CODE, str(root / "examples" / example / "problem.toml")]
    environment = os.environ | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=root, env=environment)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", required=True, help="the git revision to compare with")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="one example, once")
    options = parser.parse_args()
    examples = sorted(path.parent.name for path in ROOT.glob("examples/*/problem.toml"))
    if options.smoke:
        examples, options.repetitions = ["beam"], 1
    with tempfile.TemporaryDirectory() as other:
        unpack(options.against, Path(other))
        print(f"| example | time over that of {options.against} | at most |\n|---|---|---|")
        for example in examples:
            pairs = [(seconds(ROOT, example), seconds(Path(other), example)) for _ in range(options.repetitions)]
            print(f"| {example} | {statistics.median(now / then for now, then in pairs):.2f} | {LIMIT:g} |", flush=True)


if __name__ == "__main__":
    main()
