"""A yardstick: a published problem, how it is posed, what is measured, and the criterion that judges it."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

import pilescore as ps

Verdict = Literal["better", "equal", "worse"]
Measured = dict[str, float]

BETTER, EQUAL = 0.8, 1.2
"""Ratios of a measured error to the published one: below the first is better, up to the second is equal."""

ESTIMATE, ERROR = 0.2, 0.1
"""How far an estimate may be from the certified one, in certified standard errors, and how far a standard error may be
from the certified one, as a fraction of it."""

SPREAD = " ±"
"""The end of the name of a standard error; the name of the estimate comes before it."""

SMALLER = f"ratio of the measured to the published error: below {BETTER} better, up to {EQUAL} equal, else worse"
CERTIFIED = (
    f"equal if each estimate is within {ESTIMATE} certified standard errors of the certified estimate, and each "
    f"standard error within {ERROR:.0%} of the certified one; else worse"
)


@dataclasses.dataclass(frozen=True)
class Posed:
    """A problem file and its data, as a user would write them."""

    text: str
    tables: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """The columns of each CSV file, by the name of the file."""

    def write(self, directory: Path) -> Path:
        """Write the problem and its data to a directory, and return the path of the problem file."""
        for name, columns in self.tables.items():
            pd.DataFrame(dict(columns)).to_csv(directory / name, index=False)
        path = directory / "problem.toml"
        path.write_text(self.text.lstrip("\n"), encoding="utf-8")
        return path


@dataclasses.dataclass(frozen=True)
class Yardstick:
    """A published problem. Everything here is fixed before the library sees the problem."""

    name: str
    posed: str
    """How the problem is posed, in a sentence."""
    published: str
    """The published numbers, as text."""
    source: str
    criterion: str
    pose: Callable[[int], Posed]
    """The problem for the number of a draw."""
    measure: Callable[[ps.problems.Selection, int], Measured]
    """The numbers of interest in a result, for the number of a draw."""
    judge: Callable[[Measured], Verdict]
    """The verdict on the medians over all draws."""
    truth: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """True values of estimates, where they are known, to show whether standard errors are honest."""
    draws: int = 1
    quick: int = 1
    """The number of draws of a quick run."""


def smaller(published: Mapping[str, float]) -> Callable[[Measured], Verdict]:
    """Return a judge of errors: the largest ratio of a measured error to the published one decides."""

    def judge(measured: Measured) -> Verdict:
        ratio = max(_or_infinity(measured.get(name)) / value for name, value in published.items())
        return "better" if ratio < BETTER else "equal" if ratio <= EQUAL else "worse"

    return judge


def certified(values: Mapping[str, tuple[float, float]]) -> Callable[[Measured], Verdict]:
    """Return a judge of estimates and standard errors, by certified estimates and standard errors."""

    def judge(measured: Measured) -> Verdict:
        for name, (value, error) in values.items():
            found, spread = _or_infinity(measured.get(name)), _or_infinity(measured.get(name + SPREAD))
            if abs(found - value) > ESTIMATE * error or abs(spread / error - 1.0) > ERROR:
                return "worse"
        return "equal"

    return judge


def certified_text(values: Mapping[str, tuple[float, float]]) -> str:
    """Return certified estimates with their standard errors as text."""
    return ", ".join(f"{name} = {value:.8g} ± {error:.3g}" for name, (value, error) in values.items())


def estimates(found: ps.problems.Selection, names: Sequence[str]) -> Measured:
    """Return inferred parameters and their standard errors."""
    values = {name: found.values[name] for name in names}
    return values | {name + SPREAD: found.standard_errors[name] for name in names}


def draws_within(standard_errors: float, draws: Sequence[Measured], truth: Mapping[str, float]) -> int:
    """Return in how many draws all estimates lie within this many standard errors of the truth."""
    return sum(
        all(abs(draw[name] - value) <= standard_errors * draw[name + SPREAD] for name, value in truth.items())
        for draw in draws
    )


def derived(found: ps.problems.Selection, name: str, operator: str, at: Sequence[float]) -> Measured:
    """Return an operator of the solution at a point, with its standard deviation, as an estimate."""
    row = found.predict([list(at)], [operator]).iloc[0]
    return {name: float(row[operator]), name + SPREAD: float(row[f"{operator}_std"])}


def grid(*axes: tuple[float, float, int]) -> np.ndarray:
    """Return the points of a grid with both ends of every axis, of shape (n, d)."""
    lines = [np.linspace(low, high, count) for low, high, count in axes]
    return np.stack(np.meshgrid(*lines, indexing="ij"), axis=-1).reshape(-1, len(lines))


def deviation(found: ps.problems.Selection, points: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the errors of the predicted solution at points."""
    return np.asarray(found.posterior.mean(points)) - truth


def mean_square(errors: np.ndarray) -> float:
    return float(np.mean(errors**2))


def relative(errors: np.ndarray, truth: np.ndarray) -> float:
    """Return the L² norm of the errors relative to that of the truth."""
    return float(np.linalg.norm(errors) / np.linalg.norm(truth))


def medians(draws: Sequence[Measured]) -> Measured:
    """Return the median of each number over the draws that have it. A missing number counts as infinite."""
    names = dict.fromkeys(name for draw in draws for name in draw)
    return {name: statistics.median(_or_infinity(draw[name]) for draw in draws if name in draw) for name in names}


def _or_infinity(value: float | None) -> float:
    return math.inf if value is None or math.isnan(value) else value
