"""Coefficients from two snapshots, from the paper on hidden physics models."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import pilescore as ps

from . import yardstick
from .solvers import burgers_snapshot, korteweg_snapshot
from .yardstick import Measured, Posed, Yardstick

SOURCE = "Raissi and Karniadakis, Hidden physics models, Journal of Computational Physics 357, 2018"
CRITERION = f"the larger relative error of the two coefficients, median over draws; {yardstick.SMALLER}"

BURGERS = """
title = "Burgers' equation from two snapshots"

[domain]
t = [8.1, 8.2]
x = [-8, 8]

[parameters]
lambda1 = { unknown = [0.1, 100] }
lambda2 = { unknown = [0.001, 1] }

[[equation]]
equation = "dt(u) + lambda1*u*dx(u) = lambda2*dxx(u)"

[[data]]
file = "snapshots.csv"
value = "u"
"""

KORTEWEG = """
title = "The Korteweg-de Vries equation from two snapshots"

[domain]
t = [16.2, 16.3]
x = [-30, 30]

[parameters]
lambda1 = { unknown = [0.1, 100] }
lambda2 = { unknown = [0.1, 100] }

[[equation]]
equation = "dt(u) + lambda1*u*dx(u) + lambda2*dxxx(u) = 0"

[[data]]
file = "snapshots.csv"
value = "u"
"""

Snapshot = Callable[[float], tuple[np.ndarray, np.ndarray]]


def _snapshots(snapshot: Snapshot, counts: dict[float, int], noise: float, seed: list[int]) -> dict[str, np.ndarray]:
    """Return readings at random points of the grid of each snapshot, with noise relative to their deviation."""
    random = np.random.default_rng(seed)
    t, x, u = [], [], []
    for time, count in counts.items():
        places, values = snapshot(time)
        chosen = random.choice(len(places), count, replace=False)
        spread = noise * values[chosen].std() * random.standard_normal(count)
        t.append(np.full(count, time))
        x.append(places[chosen])
        u.append(values[chosen] + spread)
    return {"t": np.concatenate(t), "x": np.concatenate(x), "u": np.concatenate(u)}


def _errors(truth: dict[str, float]) -> Callable[[ps.problems.Selection, int], Measured]:
    def measure(found: ps.problems.Selection, draw: int) -> Measured:
        error = max(abs(found.values[name] / value - 1) for name, value in truth.items())
        return yardstick.estimates(found, list(truth)) | {"largest relative error": error}

    return measure


def _identification(
    name: str,
    title: str,
    text: str,
    snapshot: Snapshot,
    counts: dict[float, int],
    noise: float,
    truth: dict[str, float],
    published: dict[str, float],
) -> Yardstick:
    error = max(abs(published[key] / value - 1) for key, value in truth.items())
    shown = ", ".join(f"{key} = {value:g} (true: {truth[key]:g})" for key, value in published.items())
    kind = f"{noise:.0%} noise, which is not given" if noise else "no noise, which is not said"

    def pose(draw: int) -> Posed:
        # The same points with and without noise.
        return Posed(text, {"snapshots.csv": _snapshots(snapshot, counts, noise, [5, draw])})

    return Yardstick(
        name=name,
        posed=f"{title} with two unknown coefficients, and {' + '.join(map(str, counts.values()))} readings with "
        f"{kind}, at two times 0.1 apart",
        published=f"{shown}, largest relative error {error:.3f}; one draw",
        source=SOURCE,
        criterion=CRITERION,
        pose=pose,
        measure=_errors(truth),
        judge=yardstick.smaller({"largest relative error": error}),
        truth=truth,
        draws=10,
        quick=2,
    )


def _burgers(name: str, noise: float, *published: float) -> Yardstick:
    return _identification(
        name,
        "Burgers' equation",
        BURGERS,
        burgers_snapshot,
        {8.1: 71, 8.2: 69},
        noise,
        {"lambda1": 1.0, "lambda2": 0.1},
        dict(zip(("lambda1", "lambda2"), published, strict=True)),
    )


def _korteweg(name: str, noise: float, *published: float) -> Yardstick:
    return _identification(
        name,
        "the Korteweg-de Vries equation",
        KORTEWEG,
        korteweg_snapshot,
        {16.2: 111, 16.3: 109},
        noise,
        {"lambda1": 6.0, "lambda2": 1.0},
        dict(zip(("lambda1", "lambda2"), published, strict=True)),
    )


YARDSTICKS = (
    _burgers("hidden-burgers", 0.0, 1.028, 0.101),
    _burgers("hidden-burgers-noise", 0.01, 1.017, 0.094),
    _korteweg("hidden-kdv", 0.0, 6.115, 1.047),
    _korteweg("hidden-kdv-noise", 0.01, 5.722, 0.958),
)
