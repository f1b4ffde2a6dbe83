"""The command line: parse, call, print; no mathematics."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from .errors import FileError, InputError, PilescoreError, SaveError, require
from .farm import connected
from .folders import FIGURES, REPORT, RESULTS, SUMMARY, Folder
from .problem_commands import CLUSTER, COMMANDS

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
SOLVER = click.option(
    "--solver",
    type=click.Choice(["auto", "dense", "low_rank"]),
    help="How covariances are solved; dense unless given. Scores of low_rank are midpoints of proved intervals.",
)
RESUMABLE = ("study", "select", "suite")

EPILOG = """\b
Exit codes: 0 done (whether each expected figure came out is printed), 1 it failed, 2 something in
the command is wrong and nothing was written, 130 interrupted (what is done is kept, and how to go on
is printed)."""


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="pilescore")
def commands() -> None:  # \b keeps click from filling a paragraph
    """PILE, the Physics-Informed Log Evidence: one number that says how good a physics-informed model is.

    \b
    For a problem of your own
      pilescore new rod
      pilescore check rod/problem.toml
      pilescore select rod/problem.toml --out found
    and open found/report.html. To see what PILE is about
      pilescore study poisson --quick
    and open pilescore-poisson/report.html.
    """


for command in COMMANDS:
    commands.add_command(command)


@commands.group(epilog=EPILOG)
def study() -> None:
    """Run a case study, from noisy data to a report with figures.

    \b
    A study writes to its directory
      report.html     all of it on one page, with figures to explore; needs no network
      figures/        every figure as PNG and PDF
      results.nc      every score and error, as an xarray dataset with named dimensions
      summary.json    every number that the report states, with settings and versions
    Interrupted by Ctrl-C or killed, it goes on with --resume. On a finished directory --resume draws the
    report anew from results.nc and summary.json.
    """


def common(
    name: str, quick: str, full: str, of: str = "Noise seeds", cluster: bool = True, solver: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator with the options of every study; some take a cluster for their scores, and a solver."""
    options = [
        click.option("--out", type=click.Path(path_type=Path), default=Path(f"pilescore-{name}"), show_default=True,
                     metavar="DIR", help="Where to write."),
        click.option("--seeds", type=int, metavar="K", help=f"{of}: {full}; with --quick {quick}."),
        click.option("--quick", is_flag=True, help="A first look in a minute or two: smaller sizes."),
        click.option("--json", "as_json", is_flag=True, help="Print summary.json to standard output instead of words."),
        click.option("--resume", is_flag=True, help="Go on with what is in DIR; the other options must be the same."),
        click.option("--overwrite", is_flag=True, help="Replace the study in DIR; other files there are left alone."),
    ]  # fmt: skip
    options += [CLUSTER] if cluster else []
    options += [SOLVER] if solver else []

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@study.command()
@common("poisson", quick="3", full="10", solver=True)
def poisson(seeds: int | None, quick: bool, **options: Any) -> None:
    """Choose the bandwidth, and the weights of data and of physics.

    Noisy values of f and of Δf on a grid. PILE chooses the bandwidth, then ρ, then γ, then all at once; the true errors
    show how well, and what other rules would have chosen.
    """
    from .studies import poisson as module

    given = _seeds(seeds)
    _run(module.STUDY, module.Settings.quick(**given) if quick else module.Settings(**given), **options)


@study.command()
@common("convection", quick="1", full="5", solver=True)
@click.option("--beta", type=float, default=30.0, show_default=True, help="The speed of the wave.")
def convection(seeds: int | None, quick: bool, beta: float, **options: Any) -> None:
    """See that no bandwidth works, and find the kernel that does.

    The convection equation, on which isotropic kernels and plain physics-informed networks fail. PILE says so, finds
    the kernel that suits the equation before there are data, and the direction of the wave from noisy values.
    """
    from .studies import convection as module

    require(0.1 <= abs(beta) <= 1000, "--beta", beta, "a number from 0.1 to 1000, or its negative")
    given = _seeds(seeds) | {"beta": beta}
    _run(module.STUDY, module.Settings.quick(**given) if quick else module.Settings(**given), **options)


@study.command()
@common("nonlinear", quick="2", full="5", of="Sets of random points")
def nonlinear(seeds: int | None, quick: bool, **options: Any) -> None:
    """Solve nonlinear equations, with the kernel that PILE chooses.

    An elliptic equation with a cubic, Burgers, Eikonal and Allen–Cahn, without any measurements. PILE of the linearised
    model chooses the bandwidth; the true errors show how well, and what the training residual would have chosen.
    """
    from .studies import nonlinear as module

    given = _seeds(seeds)
    _run(module.STUDY, module.Settings.quick(**given) if quick else module.Settings(**given), **options)


@study.command()
@common("pinn", quick="2", full="2", of="Networks with the same settings", cluster=False)
def pinn(seeds: int | None, quick: bool, **options: Any) -> None:
    """Train physics-informed networks, and see which number knows the good ones.

    The convection equation, on which many of them fail. Rank correlations of PILE, of the misfit and of the training
    loss with the true error; and of evidence before training with the error that an architecture reaches. It needs
    optax: pip install 'pilescore[pinn]'.
    """
    from .studies import pinn as module

    module.check_installed()
    given = _seeds(seeds)
    _run(module.STUDY, module.Settings.quick(**given) if quick else module.Settings(**given), **options)


@commands.command(epilog=EPILOG)
@common("suite", quick="2", full="5", cluster=False)
@click.option("--case", "cases", multiple=True, metavar="NAME", help="A case to run; may be given several times.")
def suite(seeds: int | None, quick: bool, cases: tuple[str, ...], **options: Any) -> None:
    """Measure how well PILE chooses, and whether failures are found.

    Many problems with known solutions: the errors of what PILE chooses, and of what other rules choose, over the least
    possible; and failures planted on purpose, with what a diagnosis finds in them. What is written is as for a study.
    """
    from .suite import suite as module

    given = _seeds(seeds) | ({"cases": module.known(cases)} if cases else {})
    _run(module.STUDY, module.Settings.quick(**given) if quick else module.Settings(**given), **options)


def _seeds(seeds: int | None) -> dict[str, Any]:
    require(seeds is None or 1 <= seeds <= 1000, "--seeds", seeds, "a whole number from 1 to 1000")
    return {} if seeds is None else {"seeds": seeds}


def _run(
    study: Any,
    settings: Any,
    out: Path,
    as_json: bool,
    resume: bool,
    overwrite: bool,
    cluster: str | None = None,
    solver: str | None = None,
) -> None:
    from .studies.study import kept_settings, run
    from .studies.words import shown

    kept = Folder(out, kept_settings(study, settings, solver), resume=resume, overwrite=overwrite)
    with connected(cluster) as client, kept.entered() as folder:
        summary, report = run(study, settings, folder, lambda text: click.echo(text, err=True), client, solver)
    if as_json:
        click.echo(json.dumps(summary, indent=1, ensure_ascii=False))
        return
    click.echo(f"\n{report.title}\n")
    for number, meaning in report.verdicts:
        click.echo(f"  {number:>16}  {meaning}")
    click.echo("\nExpected of this study:")
    for each in summary["checks"]:
        click.echo(f"  {'yes' if each['holds'] else 'NO':<4} {each['what']}: {shown(each['found'])}")
        click.echo(f"       expected: {each['expected']}")
    click.echo(f"\nOpen {out / REPORT}. Figures: {out / FIGURES}; numbers: {out / RESULTS}, {out / SUMMARY}.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return commands.main(given, prog_name="pilescore", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return BAD_INPUT
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "pilescore"
        return _say(f"{error.format_message()} See {command} --help.", BAD_INPUT)
    except click.ClickException as error:
        return _say(error.format_message(), BAD_INPUT)
    except FileError as error:
        return _say_all(error)
    except InputError as error:
        return _say(str(error), BAD_INPUT)
    except (SaveError, OSError) as error:
        return _say(f"{error}. {_how_to_go_on(given)}", FAILED)
    except PilescoreError as error:
        return _say(str(error), FAILED)
    except (click.Abort, KeyboardInterrupt):
        return _say(_how_to_go_on(given), INTERRUPTED)


def _how_to_go_on(given: list[str]) -> str:
    if not given or given[0] not in RESUMABLE:
        return "Nothing is lost: run it again."
    again = [each for each in given if each not in ("--overwrite", "--resume")]
    return f"What is done is kept. Go on with: {shlex.join(['pilescore', *again, '--resume'])}"


def _say_all(error: FileError) -> int:
    """Print every mistake in a file on a line of its own."""
    count = len(error.mistakes)
    click.echo(f"pilescore: error: {'a mistake' if count == 1 else f'{count} mistakes'}; nothing was done", err=True)
    for mistake in error.mistakes:
        click.echo(f"  {mistake}", err=True)
    return BAD_INPUT


def _say(text: str, code: int) -> int:
    what = "interrupted" if code == INTERRUPTED else "error"
    click.echo(f"pilescore: {what}: {' '.join(text.splitlines())}", err=True)
    return code
