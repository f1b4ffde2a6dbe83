"""Write docs/selection.md from results.nc and summary.json, the results of `python -m benchmarks.selection`.

`python -m benchmarks.selection.page` writes the page. `--check` only checks whether it is up to date.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import xarray as xr

from pilescore.reports import Report, Section, TextTable

from .report import report

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "selection.md"
HEAD = """<!-- Written by benchmarks/selection/page.py from results.nc and summary.json beside it: do not edit. -->
"""


def markdown(page: Report, source: str) -> str:
    """Return a report as Markdown, without its figures."""
    verdicts = "\n".join(f"- **{number}** {meaning}" for number, meaning in page.verdicts)
    top = [HEAD, f"# {page.title}\n", _filled(page.lead), f"{verdicts}\n", _filled(source)]
    return "\n".join([*top, *map(_section, page.sections)])


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
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with code 1 if the page is out of date"
    )
    check = parser.parse_args(arguments).check
    with xr.open_dataset(here / "results.nc", engine="scipy") as opened:
        results = opened.load()
    summary = json.loads((here / "summary.json").read_text(encoding="utf-8"))
    source = (
        f"Computed by `python -m benchmarks.selection` with pilescore {summary['versions']['pilescore']} and "
        f"{len(summary['seeds'])} seeds. All numbers are in `benchmarks/selection`."
    )
    text = markdown(report(results, summary), source)
    if not check:
        page.write_text(text, encoding="utf-8")
    elif not page.is_file() or page.read_text(encoding="utf-8") != text:
        print(f"{page} is out of date: run python -m benchmarks.selection.page", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
