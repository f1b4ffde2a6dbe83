"""The time of `import pilescore`, divided by that of `import jax, equinox, scipy.linalg`, its main dependencies.

New processes run the two imports alternately and report their times, without the start of Python. A second table lists
the other imported packages by their own import time:

    python -m benchmarks.imports            # 21 processes of each kind
    python -m benchmarks.imports --smoke    # 2, a smoke test
"""

from __future__ import annotations

import argparse
import collections
import statistics
import subprocess
import sys

BASE, OURS = "import jax, equinox, scipy.linalg", "import pilescore"
LIMIT = 1.3
SHOWN = 8
MARK = "beyond the base"


def seconds(statement: str) -> float:
    """Return the time of a statement in a new process."""
    code = f"import time; start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"
    return float(subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout)


def beyond() -> dict[str, float]:
    """Return the import times, in seconds, of packages that `import pilescore` adds to the base, the longest first."""
    code = f"import sys; {BASE}; print({MARK!r}, file=sys.stderr); {OURS}"
    command = [sys.executable, "-X", "importtime", "-c", code]
    said = subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True).stderr
    found: collections.Counter[str] = collections.Counter()
    for line in said.partition(MARK)[2].strip().splitlines():
        own, _, module = line.removeprefix("import time:").split("|")
        parts = module.strip().split(".")
        found[".".join(parts[: 2 if parts[0] == "scipy" else 1])] += int(own)
    return {package: own / 1e6 for package, own in found.most_common()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="few processes, a smoke test")
    repetitions = 2 if parser.parse_args().smoke else 21
    times: dict[str, list[float]] = {BASE: [], OURS: []}
    for repetition in range(repetitions + 1):
        for statement, series in times.items():
            taken = seconds(statement)
            if repetition:  # the first run compiles modules and reads files from disk
                series.append(taken)
    median = {statement: statistics.median(series) for statement, series in times.items()}
    print(f"| `{OURS}` over `{BASE}` | at most |\n|---|---|")
    print(f"| {median[OURS] / median[BASE]:.2f} | {LIMIT} |\n")
    print("| other imported packages | own time, relative to the base |\n|---|---|")
    for package, own in list(beyond().items())[:SHOWN]:
        print(f"| `{package}` | {own / median[BASE]:.1%} |")


if __name__ == "__main__":
    main()
