"""The commands about problem files: parse, call, print."""

from __future__ import annotations

import importlib.resources
import json
import shlex
import warnings
from pathlib import Path
from typing import Any

import click

from .errors import InputError, PrecisionWarning, require
from .folders import FIGURES, REPORT, RESULTS, SUMMARY

FILE = click.Path(path_type=Path)
OPERATOR = 'What to predict, as "dx(u)"; may be given several times. By default as in the problem file.'
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print numbers as JSON to standard output.")
CLUSTER = click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Have the workers of a Dask cluster compute the scores: the address of its scheduler, as tcp://host:8786, or "
    "local for one of this machine's cores. The results are the same.",
)


@click.command()
@click.argument("name", type=FILE)
def new(name: Path) -> None:
    """Write a problem to start from: a directory NAME with a commented problem.toml and its data.

    It is complete, and can be checked and solved as it is.
    """
    template = importlib.resources.files("pilescore") / "templates" / "new"
    contents = {each.name: each.read_bytes() for each in template.iterdir() if each.is_file()}
    try:
        require(not name.exists(), "NAME", str(name), "a directory that is not there yet")
        name.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"NAME: {name} cannot be made: {error.strerror}") from error
    for file, content in contents.items():
        (name / file).write_bytes(content)
    problem = name / "problem.toml"
    click.echo(f"Wrote {problem} and its data. Next:")
    file, out = shlex.quote(str(problem)), shlex.quote(str(name / "found"))
    click.echo(f"  pilescore check {file}\n  pilescore select {file} --out {out}")


@click.command()
@click.argument("file", type=FILE)
def check(file: Path) -> None:
    """Validate a problem file, and print what was understood.

    Nothing is computed. Every mistake is reported at once, with its line, what was found and what is expected.
    """
    from .problems import describe_problem, load_problem

    click.echo(describe_problem(load_problem(file)))


@click.command()
@click.argument("file", type=FILE)
@AS_JSON
def score(file: Path, as_json: bool) -> None:
    """Score a problem as its file has it: fixed numbers as they are, others at their start."""
    from .comparison import compare
    from .problems import load_problem

    problem = load_problem(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)  # it stands in the table
        table = compare(problem.models, given_physics=problem.given_physics)
    if as_json:
        click.echo(table.to_json(orient="index", indent=1, force_ascii=False))
        return
    click.echo(f"{problem.title}: {'data given physics' if problem.given_physics else 'PILE'} at the start\n")
    for name, row in table.iterrows():
        note = f"  {row['warnings']}" if row["warnings"] else ""
        click.echo(f"  {row['pile']:12.6g}  {name}  (fit {row['fit']:.3g}, complexity {row['complexity']:.3g}){note}")
    if any(problem.over.values()):
        click.echo(f"\nTo choose what is open: pilescore select {shlex.quote(str(file))} --out DIR")


@click.command()
@click.argument("file", type=FILE)
@click.option("--out", type=FILE, required=True, metavar="DIR", help="Where to write.")
@click.option("--resume", is_flag=True, help="Go on with what is in DIR.")
@click.option("--overwrite", is_flag=True, help="Replace the work in DIR; other files there are left alone.")
@CLUSTER
@AS_JSON
def select(file: Path, out: Path, resume: bool, overwrite: bool, cluster: str | None, as_json: bool) -> None:
    """Minimise PILE over everything that is open, for each kernel; predict, diagnose, and write a report.

    \b
    DIR then has
      report.html       all of it on one page, with figures to explore; needs no network
      predictions.csv   means and deviations where the file asks for them
      summary.json      every number that was chosen, with standard errors
      results.nc        arrays behind the figures
      pilescore-problem/   a copy of the problem and its data: DIR needs nothing else
    Interrupted by Ctrl-C or killed, it goes on with --resume.
    """
    from .farm import connected
    from .problems import load_problem
    from .selections import PREDICTIONS
    from .selections import select as run

    def say(text: str) -> None:
        click.echo(text, err=True)

    problem = load_problem(file)
    with connected(cluster) as client:
        found = run(problem, out, resume=resume, overwrite=overwrite, say=say, client=client)
    say("drawing the figures and the report")
    _draw(found)
    if as_json:
        click.echo(json.dumps(found.summary, indent=1, ensure_ascii=False))
        return
    _print(found)
    click.echo(f"\nOpen {out / REPORT}. Predictions: {out / PREDICTIONS}; figures: {out / FIGURES}; numbers: "
               f"{out / RESULTS}, {out / SUMMARY}.")  # fmt: skip


@click.command()
@click.argument("directory", type=FILE, metavar="DIR")
@click.option("--at", type=FILE, metavar="POINTS", help="A CSV or Parquet file with a column for each coordinate.")
@click.option("--out", type=FILE, required=True, metavar="PRED.csv", help="Where to write.")
@click.option("--operator", "operators", multiple=True, metavar="TEXT", help=OPERATOR)
@click.option("--overwrite", is_flag=True, help="Replace PRED.csv if it is there.")
def predict(directory: Path, at: Path | None, out: Path, operators: tuple[str, ...], overwrite: bool) -> None:
    """Predict by a selection: mean and deviation of operators of the unknown, at the points of a file.

    DIR is what `pilescore select` wrote. Without --at it predicts where the problem file says.
    """
    from .files import replace
    from .problems import read_points
    from .selections import load_selection

    require(out.suffix == ".csv", "--out", str(out), "a file that ends in .csv")
    require(overwrite or not out.exists(), "--out", str(out), "a file that is not there yet, or --overwrite")
    require(out.absolute().parent.is_dir(), "--out", str(out), "a path in a directory that is there")
    found = load_selection(directory)
    points = None if at is None else read_points(at, found.problem.box)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = found.predict(points, list(operators) or None)
    replace(out, table.to_csv(index=False).encode())
    for text in dict.fromkeys(" ".join(str(each.message).split()) for each in caught):
        click.echo(f"pilescore: note: {text}", err=True)
    click.echo(f"Wrote {', '.join(table.columns)} at {len(table)} points to {out}.")


@click.command()
@click.argument("directory", type=FILE, metavar="DIR")
def report(directory: Path) -> None:
    """Draw the report of a selection anew, from what is in DIR."""
    from .selections import load_selection

    _draw(load_selection(directory))
    click.echo(f"Open {directory / REPORT}.")


def _draw(found: Any) -> None:
    from .report import write_report
    from .selection_report import selection_report

    write_report(selection_report(found), found.directory)


def _print(found: Any) -> None:
    """Print what was chosen."""
    from .problems import parameter_text
    from .selection_report import chosen_text, ordered

    what = "PILE" if found.summary["score"] == "PILE" else "PILE of the data given the physics"
    click.echo(f"\n{found.problem.title}\n")
    for each in found.summary["kernels"]:
        value = each["row"]["pile"]
        shown = "failed" if value is None else f"{value:.6g}"
        click.echo(f"  {shown:>12}  {what} with {each['name']}{'  ← chosen' if each['name'] == found.kernel else ''}")
    click.echo("")
    chosen = found.summary["kernels"][0]
    for name in ordered(found):
        side = chosen["at_bounds"].get(name)
        note = f"  at its {side} bound" if side else ""
        click.echo(f"  {parameter_text(name, found.problem)} = {chosen_text(name, found)}{note}")
    solved = found.summary.get("solved")
    if solved:
        click.echo(f"  nonlinear equations: {solved['status']} after {solved['iterations']} linearisations")
    for finding in found.diagnosis:
        click.echo(f"  {finding.severity.upper()} {finding.name}: {finding.meaning}")
    for text in found.summary["warnings"]:
        click.echo(f"  note: {text}")


COMMANDS = (new, check, score, select, predict, report)
