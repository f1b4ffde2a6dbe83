"""Write docs/selection.md from the results of `pilescore suite`, which lie beside this file.

`python benchmarks/selection/page.py` writes the page; `--check` only says whether it is up to date.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import xarray as xr

from pilescore.charts import Report, Section, TextTable
from pilescore.suite.suite_report import report

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "selection.md"
HEAD = """<!-- Written by benchmarks/selection/page.py from results.nc and summary.json beside it: do not edit. -->
"""


def written(found: Report, made: str) -> str:
    """Return a report as Markdown, without its figures."""
    verdicts = "\n".join(f"- **{number}**: {meaning}" for number, meaning in found.verdicts)
    top = [HEAD, f"# {found.title}\n", _filled(found.lead), f"{verdicts}\n", _filled(made)]
    return "\n".join([*top, *map(_section, found.sections)])


def _section(section: Section) -> str:
    parts = [f"## {section.heading}\n", *map(_filled, section.paragraphs), *map(_table, section.tables)]
    return "\n".join(parts)


def _table(table: TextTable) -> str:
    lines = [table.header, ("---",) * len(table.header)]
    for number, row in enumerate(table.rows):
        lines.append(tuple(f"**{cell}**" if number == table.strong else cell for cell in row))
    return f"{_filled(table.caption)}\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _filled(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def main(arguments: Sequence[str] | None = None, here: Path = HERE, page: Path = PAGE) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page differs")
    check = parser.parse_args(arguments).check
    with xr.open_dataset(here / "results.nc", engine="scipy") as opened:
        results = opened.load()
    summary = json.loads((here / "summary.json").read_text(encoding="utf-8"))
    made = (
        f"Computed by `pilescore suite` {summary['versions']['pilescore']} with {len(summary['seeds'])} seeds; all "
        "numbers are in `benchmarks/selection`."
    )
    text = written(report(results, summary), made)
    if not check:
        page.write_text(text, encoding="utf-8")
    elif not page.is_file() or page.read_text(encoding="utf-8") != text:
        print(f"{page} is not what the results say: run python {Path(__file__).name}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
