"""The time of weighted points, relative to one score with gradient.

Every number is a ratio of medians of interleaved repetitions in one process. The minimum is found before, and is not
counted.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pilescore as ps

from ..evidence import convection, poisson, seconds
from .problems import Over, problem
from .runs import Done, Measured, Run, failures, good, table

PROCESSES = 1
"""Two runs at a time would slow each other down."""

MOST = 40.0
"""The aim for the ratio."""

REPETITIONS, GRADIENTS = 3, 5
"""How often weighted points are computed, and how often the gradient before each."""

OVER = {"kernel.bandwidth": (0.02, 5.0), "gamma": (1e-4, 1.0), "eta": (0.01, 100.0)}

NONLINEAR = "pendulum"

MODELS: Mapping[str, tuple[str, Callable[[int], tuple[ps.Model, Over]]]] = {
    "small": ("Poisson, small", lambda seed: (poisson(7), {**OVER, "rho": (1e-6, 1.0)})),
    "medium": ("W1 Poisson", lambda seed: (poisson(13), {**OVER, "rho": (1e-6, 1.0)})),
    "large": ("W2 convection", lambda seed: (convection(1000, 20), OVER)),
    NONLINEAR: ("pendulum (nonlinear)", lambda seed: _problem(NONLINEAR, seed)),
}
"""The title of each model, and what returns it with the bounds of what is searched."""


def _problem(name: str, seed: int) -> tuple[ps.Model, Over]:
    drawn = problem(name).instance(seed)
    return drawn.model, drawn.over


def runs(*, quick: bool, smoke: bool, draws: int | None, seeds: Sequence[int] | None) -> list[Run]:
    """Return the runs: all models; without the largest with `quick`, the smallest with `smoke`."""
    names = ("small",) if smoke else tuple(name for name in MODELS if not (quick and name == "large"))
    return [Run("cost", name, 0) for name in names]


def measured(name: str, seed: int) -> Measured:
    """Return the times of one model."""
    model, over = MODELS[name][1](seed)
    best = ps.minimize(model, over, run=ps.RunOptions(progress=False))
    names = list(over)
    evaluations: list[int] = []

    def weighted() -> None:
        evaluations.append(int(ps.hyperposterior(best).evaluations))

    def gradient() -> None:
        ps.pile_and_gradient(best.model, names, score=best.score)

    gradients, distributions = interleaved(gradient, weighted)
    one, all_points = statistics.median(gradients), statistics.median(distributions)
    return {
        "size": best.model.size,
        "hyperparameters": len(best.values),
        "gradient": one,
        "weighted": all_points,
        "ratio": all_points / one,
        "evaluations": evaluations[-1],
        "status": best.status,
    }


def interleaved(gradient: Callable[[], None], weighted: Callable[[], None]) -> tuple[list[float], list[float]]:
    """Return the times of both works in seconds, after a first call of each, which compiles."""
    gradient()
    weighted()
    gradients, distributions = [], []
    for _ in range(REPETITIONS):
        gradients += [seconds(gradient) for _ in range(GRADIENTS)]
        distributions.append(seconds(weighted))
    return gradients, distributions


def summary(done: Sequence[Done]) -> dict[str, Any]:
    """Return the times of each model."""
    return {each.run.problem: dict(each.measured) for each in good(done)}


def report(done: Sequence[Done]) -> str:
    """Return the table of all models, as Markdown."""
    of = summary(done)
    header = ["model", "N", "unknowns", "time of `weighted` / one score with gradient", "at most", "scores"]
    rows = [
        [
            MODELS[name][0],
            str(each["size"]),
            str(each["hyperparameters"]),
            f"{each['ratio']:.1f}",
            f"{MOST:.0f}",
            str(each["evaluations"]),
        ]
        for name, each in of.items()
    ]
    return "\n".join([table(header, rows), "", *failures(done)])
