"""Run benchmarks and write the tables that they print to docs/benchmarks.md, between the markers of each benchmark.

`python -m benchmarks.tables evidence choosing` runs these two benchmarks and leaves the rest of the page unchanged.
`python -m benchmarks.tables "scale --part certified"` runs a part. Further options are passed to the scripts.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
LIBRARIES = ("jax", "numpy", "scipy")


def block(name: str) -> re.Pattern[str]:
    """Return a pattern that matches the text between the markers of a benchmark."""
    return re.compile(rf"(?<=<!-- {re.escape(name)}: begin -->\n).*?(?=<!-- {re.escape(name)}: end -->)", re.DOTALL)


def machine() -> str:
    """Return the number of cores, the name of the processor (Linux) and the versions of libraries."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES)
    return f"{os.cpu_count()} cores ({found[1] if found else platform.processor()}), {versions}"


def printed(name: str, options: list[str]) -> str:
    """Run a benchmark, echo its output, and return it with a line about the command, date and machine."""
    script, *given = name.split()
    command = [sys.executable, "-m", f"benchmarks.{script}", *given, *options]
    lines = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if running.returncode:
        sys.exit(f"{name} failed with exit code {running.returncode}; the page was not changed")
    made = f"`python -m benchmarks.{' '.join([script, *given])}`, {datetime.date.today()}: {machine()}"
    return f"\n{''.join(lines).strip()}\n\n*Printed by {made}.*\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", nargs="+", help="the name of a script without .py, with its options in quotes")
    names, options = parser.parse_known_args()
    page = PAGE.read_text(encoding="utf-8")
    if missing := [name for name in names.benchmark if not block(name).search(page)]:
        sys.exit(f"no markers in {PAGE.name} for {', '.join(map(repr, missing))}")
    for name in names.benchmark:
        text = printed(name, options)
        found = block(name).search(page := PAGE.read_text(encoding="utf-8"))
        assert found is not None
        PAGE.write_text(page[: found.start()] + text + page[found.end() :], encoding="utf-8")


if __name__ == "__main__":
    main()
