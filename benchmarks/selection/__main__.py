"""The command line of the benchmark: `python -m benchmarks.selection --help`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from pilescore import cli

from .benchmark import STUDY, case_names


@click.command(epilog=cli.EPILOG, context_settings=cli.commands.context_settings)
@cli.study_options("selection", quick="2", full="5", cluster=False)
@click.option("--case", "cases", multiple=True, metavar="NAME", help="A case to run. Can be repeated.")
def selection(cases: tuple[str, ...], **options: Any) -> None:
    """Measure how well PILE chooses hyperparameters, and whether the diagnosis finds failures.

    For problems with known solutions, the errors of models chosen by PILE and by other rules are compared with the
    least possible error. Failures are planted on purpose, and the findings of the diagnosis are counted. The output
    has the form of a study.
    """
    cli.run_study(STUDY, {"cases": case_names(cases)} if cases else {}, **options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and return its exit code."""
    return cli.main(arguments, selection, "python -m benchmarks.selection")


if __name__ == "__main__":
    sys.exit(main())
