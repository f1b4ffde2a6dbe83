"""The command line: parse, call, print."""

from __future__ import annotations

import contextlib
import importlib.resources
import json
import math
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

# Commands import the rest when they run: JAX takes a second to load, and --help does not need it.
from .errors import FileError, InputError, PilescoreError, PrecisionWarning, SaveError, require
from .parallel import connect
from .storage import FIGURES, REPORT, RESULTS, SUMMARY, Folder, replace

if TYPE_CHECKING:
    from .problems import Selection
    from .studies.runner import Study

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
FILE = click.Path(path_type=Path)
RESUME = click.option("--resume", is_flag=True, help="Resume the work in DIR. The other options must be the same.")
OVERWRITE = click.option("--overwrite", is_flag=True, help="Replace earlier results in DIR. Other files are kept.")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON to standard output.")
CLUSTER = click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Compute the scores on a Dask cluster: the address of its scheduler, such as tcp://host:8786, or local for "
    "the cores of this machine. The results are the same.",
)
SOLVER = click.option(
    "--solver",
    type=click.Choice(["auto", "dense", "low_rank"]),
    help="The solver for covariance matrices; the default is dense. Scores of low_rank are midpoints of guaranteed "
    "intervals.",
)
EPILOG = """\b
Exit codes: 0 success (the output shows whether results are as expected), 1 failure, 2 invalid input
and nothing was written, 130 interrupted (finished work is kept, and the message shows how to resume)."""


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="pilescore")
def commands() -> None:  # \b keeps click from reflowing a paragraph
    """PILE, the Physics-Informed Log Evidence: one number that says how good a physics-informed model is.

    \b
    For your own problem:
      pilescore new rod
      pilescore check rod/problem.toml
      pilescore select rod/problem.toml --out found
    then open found/report.html. To see what PILE does:
      pilescore study poisson --quick
    then open pilescore-poisson/report.html.
    """


@commands.command()
@click.argument("name", type=FILE)
def new(name: Path) -> None:
    """Create an example problem: a directory NAME with a commented problem.toml and its data.

    The problem is complete. You can check and solve it as it is, or edit it.
    """
    template = importlib.resources.files("pilescore.problems") / "templates" / "new"
    try:
        require(not name.exists(), "NAME", str(name), "a directory that does not exist yet")
        name.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"NAME: cannot create {name}: {error.strerror}") from error
    for file in template.iterdir():
        if file.is_file():
            (name / file.name).write_bytes(file.read_bytes())
    problem, out = shlex.quote(str(name / "problem.toml")), shlex.quote(str(name / "found"))
    click.echo(f"Created {name / 'problem.toml'} and its data. Next:")
    click.echo(f"  pilescore check {problem}\n  pilescore select {problem} --out {out}")


@commands.command()
@click.argument("file", type=FILE)
def check(file: Path) -> None:
    """Check a problem file and print a description of the problem.

    Nothing is computed. All mistakes are reported together, each with its line, its text and what is expected.
    """
    from .problems import describe_problem, load_problem

    click.echo(describe_problem(load_problem(file)))


@commands.command()
@click.argument("file", type=FILE)
@AS_JSON
def score(file: Path, as_json: bool) -> None:
    """Score a problem as written in its file: fixed values as they are, others at their start."""
    from .problems import load_problem, score_text
    from .search import compare

    problem = load_problem(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)  # the table has a column of warnings
        table = compare(problem.models, score=problem.score)
    if as_json:
        click.echo(table.to_json(orient="index", indent=1, force_ascii=False))
        return
    click.echo(f"{problem.title}: {score_text(problem)} at the start\n")
    click.echo(table[["pile", "fit", "complexity", "warnings"]].to_string(float_format="{:.6g}".format))
    if any(problem.over.values()):
        click.echo(f"\nTo choose the open values: pilescore select {shlex.quote(str(file))} --out DIR")


@commands.command()
@click.argument("file", type=FILE)
@click.option("--out", type=FILE, required=True, metavar="DIR", help="The directory for the results.")
@RESUME
@OVERWRITE
@CLUSTER
@AS_JSON
def select(file: Path, out: Path, resume: bool, overwrite: bool, cluster: str | None, as_json: bool) -> None:
    """Minimise PILE over all open values, for each kernel; then predict, diagnose and write a report.

    \b
    DIR then contains
      report.html       one page with everything, with interactive figures; works offline
      predictions.csv   means and standard deviations at the points of the problem file
      summary.json      all chosen values, with standard errors and 95% intervals
      results.nc        the arrays behind the figures
      pilescore-problem/   a copy of the problem and its data, so DIR is complete
    After Ctrl-C or a crash, resume with --resume.
    """
    from .problems import PREDICTIONS, load_problem
    from .problems import select as run

    problem = load_problem(file)
    with connect(cluster) as client:
        selection = run(problem, out, resume=resume, overwrite=overwrite, say=_progress, client=client)
    _progress("drawing the figures and the report")
    _write_report(selection)
    if as_json:
        click.echo(selection.summary.model_dump_json(indent=1))
        return
    _print_selection(selection)
    click.echo(f"\nOpen {out / REPORT}. Predictions: {out / PREDICTIONS}. {_files(out)}")


@commands.command()
@click.argument("directory", type=FILE, metavar="DIR")
@click.option("--at", type=FILE, metavar="POINTS", help="A CSV or Parquet file with a column for each coordinate.")
@click.option("--out", type=FILE, required=True, metavar="PRED.csv", help="The file for the predictions.")
@click.option("--operator", "operators", multiple=True, metavar="TEXT", help='An operator to predict, such as "dx(u)". '
              "Can be repeated. By default as in the problem file.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace PRED.csv if it exists.")
def predict(directory: Path, at: Path | None, out: Path, operators: tuple[str, ...], overwrite: bool) -> None:
    """Predict with a selected model: mean and standard deviation of operators of the unknown, at points.

    DIR is the output of `pilescore select`. Without --at, the points of the problem file are used.
    """
    from .problems import load_selection, read_points

    require(out.suffix == ".csv", "--out", str(out), "a file name that ends in .csv")
    require(overwrite or not out.exists(), "--out", str(out), "a file that does not exist yet, or --overwrite")
    require(out.absolute().parent.is_dir(), "--out", str(out), "a path in an existing directory")
    selection = load_selection(directory)
    points = None if at is None else read_points(at, selection.problem.box)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = selection.predict(points, list(operators) or None)
    replace(out, table.to_csv(index=False).encode())
    for text in dict.fromkeys(" ".join(str(warning.message).split()) for warning in caught):
        click.echo(f"pilescore: note: {text}", err=True)
    click.echo(f"Wrote {', '.join(table.columns)} at {len(table)} points to {out}.")


@commands.command()
@click.argument("directory", type=FILE, metavar="DIR")
def report(directory: Path) -> None:
    """Draw the report of a selection again, from the files in DIR."""
    from .problems import load_selection

    _write_report(load_selection(directory))
    click.echo(f"Open {directory / REPORT}.")


def _write_report(selection: Selection) -> None:
    from .reports import selection_report, write_report

    write_report(selection_report(selection), selection.directory)


def _print_selection(selection: Selection) -> None:
    from .problems import parameter_text, score_text
    from .reports import chosen_text, interval_text, ordered, with_error
    from .search import degrees_text

    summary, what = selection.summary, score_text(selection.problem)
    click.echo(f"\n{selection.problem.title}\n")
    for kernel in summary.kernels:
        shown = f"{kernel.row.pile:.6g}" if math.isfinite(kernel.row.pile) else "failed"
        click.echo(f"  {shown:>12}  {what} with {kernel.name}{'  ← chosen' if kernel.name == selection.kernel else ''}")
    if len(summary.kernels) > 1 and summary.why_kernels:
        click.echo(f"  {summary.why_kernels}")
    click.echo("")

    def interval(name: str) -> str:
        text = interval_text(name, selection)
        return f" (95%: {text})" if text else ""

    for name in ordered(selection):
        side = summary.chosen.at_bounds.get(name)
        note = f"  at its {side} bound" if side else ""
        shown = f"{chosen_text(name, selection)}{interval(name)}"
        click.echo(f"  {parameter_text(name, selection.problem)} = {shown}{note}")
    for name, quantity in summary.chosen.derived.items():
        shown = f"{with_error(quantity.value, quantity.standard_error)}{interval(name)}"
        click.echo(f"  {name} = {quantity.text} = {shown}")
    if summary.chosen.degrees_of_freedom is not None:
        click.echo(f"  {degrees_text(summary.chosen.degrees_of_freedom)}")
    solution = summary.solution
    if solution is not None:
        click.echo(f"  nonlinear equations: {solution.status} after {solution.iterations} linearisations")
    for finding in selection.diagnosis:
        click.echo(f"  {finding.severity.upper()} {finding.name}: {finding.meaning}")
    for text in summary.warnings:
        click.echo(f"  note: {text}")


@commands.group(epilog=EPILOG)
def study() -> None:
    """Run a case study, from noisy data to a report with figures.

    \b
    A study writes these files to its directory:
      report.html     one page with everything, with interactive figures; works offline
      figures/        every figure as PNG and PDF
      results.nc      every score and error, as an xarray dataset with named dimensions
      summary.json    every number in the report, with settings and versions
    After Ctrl-C or a crash, resume with --resume. In a finished directory, --resume draws the report
    again from results.nc and summary.json.
    """


def study_options(
    name: str, quick: str, full: str, seeds: str = "noise seeds", cluster: bool = True, solver: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the options of a study to its command."""
    counts = full if full == quick else f"{full}, or {quick} with --quick"
    options = [
        click.option("--out", type=FILE, default=Path(f"pilescore-{name}"), show_default=True, metavar="DIR",
                     help="The directory for the results."),
        click.option("--seeds", type=int, metavar="K", help=f"Number of {seeds}: {counts}."),
        click.option("--quick", is_flag=True, help="Use smaller sizes, for a first look in a minute or two."),
        click.option("--json", "as_json", is_flag=True, help="Print summary.json to standard output instead of text."),
        RESUME,
        OVERWRITE,
    ]  # fmt: skip
    options += [CLUSTER] if cluster else []
    options += [SOLVER] if solver else []

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@study.command()
@study_options("poisson", quick="3", full="10", solver=True)
def poisson(**options: Any) -> None:
    """Choose the bandwidth and the weights of data and physics.

    The data are noisy values of f and Δf on a grid. PILE chooses the bandwidth, then ρ, then γ, then all together. The
    report compares the true errors with those of other rules.
    """
    from .studies.poisson import STUDY

    run_study(STUDY, {}, **options)


@study.command()
@study_options("convection", quick="1", full="5", solver=True)
@click.option("--beta", type=float, default=30.0, show_default=True, help="The speed of the wave.")
def convection(beta: float, **options: Any) -> None:
    """See isotropic kernels fail, and find a kernel that works.

    Isotropic kernels and plain physics-informed networks fail on the convection equation. PILE detects this, finds a
    kernel that suits the equation without data, and finds the direction of the wave from noisy values.
    """
    from .studies.convection import STUDY

    require(0.1 <= abs(beta) <= 1000, "--beta", beta, "a number from 0.1 to 1000, or its negative")
    run_study(STUDY, {"beta": beta}, **options)


@study.command()
@study_options("nonlinear", quick="2", full="5", seeds="sets of random points")
def nonlinear(**options: Any) -> None:
    """Solve nonlinear equations with kernels chosen by PILE.

    An elliptic equation with a cubic term, Burgers, Eikonal and Allen–Cahn are solved without any measurement. PILE of
    the linearised model chooses the bandwidth. The report compares the true errors with those of the training residual.
    """
    from .studies.nonlinear import STUDY

    run_study(STUDY, {}, **options)


@study.command()
@study_options("pinn", quick="2", full="2", seeds="networks with equal settings", cluster=False)
def pinn(**options: Any) -> None:
    """Train physics-informed networks, and compare scores with their true errors.

    Many networks fail on the convection equation. The report has the rank correlations of PILE, the misfit and the
    training loss with the true error, and of PILE before training with the error after training. The study needs optax:
    pip install 'pilescore[pinn]'.
    """
    from .studies.pinn import STUDY, check_installed

    check_installed()
    run_study(STUDY, {}, **options)


def run_study(
    study: Study,
    changes: dict[str, Any],
    *,
    seeds: int | None,
    quick: bool,
    out: Path,
    as_json: bool,
    resume: bool,
    overwrite: bool,
    cluster: str | None = None,
    solver: str | None = None,
) -> None:
    """Run a study with changed settings in a directory, and print its results."""
    from .studies import runner
    from .studies.report_parts import value_text

    require(seeds is None or 1 <= seeds <= 1000, "--seeds", seeds, "a whole number from 1 to 1000")
    changes = changes if seeds is None else changes | {"seeds": seeds}
    settings = study.settings.quick(**changes) if quick else study.settings(**changes)
    folder = Folder(out, runner.stored_settings(study, settings, solver), resume=resume, overwrite=overwrite)
    with connect(cluster) as client, folder.entered() as entered:
        run = runner.StudyRun(entered, _progress, client, solver)
        summary, report = runner.run_study(study, settings, run)
    if as_json:
        click.echo(json.dumps(summary, indent=1, ensure_ascii=False))
        return
    click.echo(f"\n{report.title}\n")
    for number, meaning in report.verdicts:
        click.echo(f"  {number:>16}  {meaning}")
    click.echo("\nAre the results as expected?")
    for check in summary["checks"]:
        click.echo(f"  {'yes' if check['holds'] else 'NO':<4} {check['what']}: {value_text(check['found'])}")
        click.echo(f"       expected: {check['expected']}")
    click.echo(f"\nOpen {out / REPORT}. {_files(out)}")


def _files(out: Path) -> str:
    return f"Figures: {out / FIGURES}. Numbers: {out / RESULTS} and {out / SUMMARY}."


def _progress(text: str) -> None:
    """Show a message about a step of the work; after a lost Ctrl-C, stop here."""
    if _interrupted.is_set():
        raise KeyboardInterrupt
    click.echo(text, err=True)


_interrupted = threading.Event()
"""Whether Ctrl-C or `kill` came. Python and JAX lose a `KeyboardInterrupt` that comes during garbage collection or at
the wrong moment of a compilation."""


def _interrupt(number: int, frame: Any) -> NoReturn:
    _interrupted.set()
    raise KeyboardInterrupt


@contextlib.contextmanager
def _quiet_interrupts() -> Iterator[None]:
    """Print no traceback for a lost Ctrl-C, which `_progress` acts on; other lost exceptions are printed as before."""
    print_lost = sys.unraisablehook

    def hook(lost: sys.UnraisableHookArgs) -> None:
        if not (_interrupted.is_set() and issubclass(lost.exc_type, KeyboardInterrupt)):
            print_lost(lost)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = print_lost


def main(arguments: Sequence[str] | None = None, command: click.Command = commands, program: str = "pilescore") -> int:
    """Run a command of the command line and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _interrupted.clear()
    signal.signal(signal.SIGTERM, _interrupt)  # `kill` ends a study like Ctrl-C
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # shells let jobs in the background ignore it
        signal.signal(signal.SIGINT, _interrupt)
    try:
        with _quiet_interrupts():
            return command.main(words, prog_name=program, standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return BAD_INPUT
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else program
        return _fail(f"{error.format_message()} See {path} --help.", BAD_INPUT)
    except click.ClickException as error:
        return _fail(error.format_message(), BAD_INPUT)
    except FileError as error:
        count = len(error.mistakes)
        _progress(f"pilescore: error: {'a mistake' if count == 1 else f'{count} mistakes'}; nothing was done")
        for mistake in error.mistakes:
            _progress(f"  {mistake}")
        return BAD_INPUT
    except InputError as error:
        return _fail(str(error), BAD_INPUT)
    except (SaveError, OSError) as error:
        return _fail(f"{error}. {_resume_hint(command, program, words)}", FAILED)
    except PilescoreError as error:
        return _fail(str(error), FAILED)
    except (click.Abort, KeyboardInterrupt):
        return _fail(_resume_hint(command, program, words), INTERRUPTED)


def _resume_hint(command: click.Command | None, program: str, words: list[str]) -> str:
    names = iter(words)
    while isinstance(command, click.Group):
        command = command.commands.get(next(names, ""))
    if command is None or "resume" not in {option.name for option in command.params}:
        return "Nothing is lost. Run the command again."
    again = [word for word in words if word not in ("--overwrite", "--resume")]
    return f"Finished work is kept. Resume with: {program} {shlex.join([*again, '--resume'])}"


def _fail(text: str, code: int) -> int:
    what = "interrupted" if code == INTERRUPTED else "error"
    click.echo(f"pilescore: {what}: {' '.join(text.splitlines())}", err=True)
    return code
