"""Independent runs in two processes, stored as they finish, so that an interrupted benchmark continues."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import importlib
import json
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pilescore as ps

Measured: TypeAlias = dict[str, Any]

PROCESSES = 2


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a part: a problem with a seed."""

    part: str
    """The module of the part; its function `measured(problem, seed)` makes the run."""
    problem: str
    seed: int

    @property
    def key(self) -> str:
        """What identifies the run in a file."""
        return f"{self.part} {self.problem} {self.seed}"


@dataclasses.dataclass(frozen=True)
class Done:
    """A run and what it gave."""

    run: Run
    measured: Measured
    """Empty if there is no result."""
    failure: str
    """The error message if there is no result, else empty."""
    seconds: float
    pilescore: str = ps.__version__


def make_run(run: Run) -> Done:
    """Make a run. An error is a result too: a user would have seen it instead of an uncertainty."""
    begun = time.perf_counter()
    module = importlib.import_module(f"{__package__}.{run.part}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            measured, failure = module.measured(run.problem, run.seed), ""
        except (ps.errors.PilescoreError, ArithmeticError, ValueError) as error:
            measured, failure = {}, f"{type(error).__name__}: {' '.join(str(error).split())}"
    return Done(run, measured, failure, time.perf_counter() - begun)


def make_runs(
    runs: Sequence[Run], file: Path | None, processes: int = PROCESSES, make: Callable[[Run], Done] = make_run
) -> list[Done]:
    """Make the runs that are not in a file yet, append each to it, and return all in the order given.

    Parameters
    ----------
    runs
        The runs.
    file
        A file with one finished run in each line, to which others are appended; None stores nothing.
    processes
        The number of processes; with one, runs are made in this process.
    make
        What makes a run.
    """
    stored = {} if file is None else {done.run.key: done for done in read(file)}
    missing = [run for run in runs if run.key not in stored]
    for number, done in enumerate(_finished(missing, processes, make), 1):
        stored[done.run.key] = done
        if file is not None:
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(dataclasses.asdict(done)) + "\n")
        note = f"  {done.failure[:100]}" if done.failure else ""
        print(f"[{number}/{len(missing)}] {done.run.key}: {done.seconds:.0f} s{note}", flush=True)
    return [stored[run.key] for run in runs]


def _finished(runs: Sequence[Run], processes: int, make: Callable[[Run], Done]) -> Iterator[Done]:
    """Yield runs as they finish."""
    if processes == 1 or len(runs) < 2:
        yield from map(make, runs)
        return
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # new processes inherit it; threads of two processes wait for each other
    context = multiprocessing.get_context("spawn")  # JAX has threads, which do not survive a fork
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
        for future in concurrent.futures.as_completed([pool.submit(make, run) for run in runs]):
            yield future.result()


def read(file: Path) -> list[Done]:
    """Return the finished runs in a file; a line that was cut off when the benchmark stopped is not one."""
    if not file.is_file():
        return []
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            stored = json.loads(line)
        except json.JSONDecodeError:
            continue
        found.append(from_json(stored))
    return found


def from_json(stored: Mapping[str, Any]) -> Done:
    """Return a run that was stored by `dataclasses.asdict`."""
    return Done(**{**stored, "run": Run(**stored["run"])})


def good(all_done: Iterable[Done]) -> list[Done]:
    """Return the runs with a result."""
    return [done for done in all_done if not done.failure]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (header, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(header)}", *lines[1:]])


def failures(all_done: Sequence[Done]) -> list[str]:
    """Return a line about runs without a result, if there are any."""
    failed = [done for done in all_done if done.failure]
    return (
        [f"Runs without a result: {len(failed)} of {len(all_done)}. The first: {failed[0].failure}"] if failed else []
    )
