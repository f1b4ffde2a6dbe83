"""Problems on which physics-informed networks are known to fail, and a wrong source in a published benchmark."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import pilescore as ps

from . import yardstick
from .yardstick import Measured, Posed, Verdict, Yardstick

FORMER = "Zhao, Ding and Prakash, PINNsFormer, arXiv:2307.11833; problem of Krishnapriyan et al., arXiv:2109.01050"
PLANTED = "Hao et al., PINNacle, arXiv:2306.08827: the inverse Poisson problem and the source in its published code"
DISAGREE = "physics_against_data"
"""The check of the diagnosis that says that equation and data disagree."""

CONVECTION = """
title = "Convection"

[domain]
t = [0, 1]
x = [0, 6.283185307179586]

[parameters]
beta = 50

[[equation]]
equation = "dt(u) + beta*dx(u) = 0"

[[condition]]
type = "dirichlet"
face = "t = 0"
value = "sin(x)"

[[condition]]
type = "periodic"
face = ["x = 0", "x = 6.283185307179586"]
"""

REACTION = """
title = "Reaction"

[domain]
t = [0, 1]
x = [0, 6.283185307179586]

[[equation]]
equation = "dt(u) = 5*u*(1 - u)"

[[condition]]
type = "dirichlet"
face = "t = 0"
value = "exp(-(x - pi)**2/(2*(pi/4)**2))"

[[condition]]
type = "periodic"
face = ["x = 0", "x = 6.283185307179586"]
"""

POISSON = """
title = "Poisson's equation with a coefficient that varies"

[domain]
x = [0, 1]
y = [0, 1]

[functions]
a = "1/(1 + x**2 + y**2 + (x - 1)**2 + (y - 1)**2)"
f = '''2*pi**2*a*sin(pi*x)*sin(pi*y)
    + 2*pi*a**2*((2*x SIGN 1)*cos(pi*x)*sin(pi*y) + (2*y SIGN 1)*sin(pi*x)*cos(pi*y))'''

[[equation]]
equation = "-div(a*grad(u)) = f"

[[data]]
file = "readings.csv"
value = "u"
"""


def convection(points: np.ndarray) -> np.ndarray:
    t, x = points.T
    return np.asarray(np.sin(x - 50 * t))


def reaction(points: np.ndarray) -> np.ndarray:
    t, x = points.T
    start = np.exp(-((x - np.pi) ** 2) / (2 * (np.pi / 4) ** 2))
    return np.asarray(start * np.exp(5 * t) / (start * np.exp(5 * t) + 1 - start))


def _relative(truth: Callable[[np.ndarray], np.ndarray]) -> Callable[[ps.problems.Selection, int], Measured]:
    def measure(found: ps.problems.Selection, draw: int) -> Measured:
        points = yardstick.grid((0, 1, 101), (0, 2 * np.pi, 101))
        values = truth(points)
        return {"relative error": yardstick.relative(yardstick.deviation(found, points, values), values)}

    return measure


def _poisson(sign: str) -> Callable[[int], Posed]:
    def pose(draw: int) -> Posed:
        random = np.random.default_rng([6, draw])
        x, y = yardstick.grid((0, 1, 20), (0, 1, 20)).T
        u = np.sin(np.pi * x) * np.sin(np.pi * y) + 0.1 * random.standard_normal(len(x))
        return Posed(POISSON.replace("SIGN", sign), {"readings.csv": {"x": x, "y": y, "u": u}})

    return pose


def _disagreement(found: ps.problems.Selection, draw: int) -> Measured:
    failures = [finding.name for finding in found.diagnosis if finding.severity == "failure"]
    return {"says that they disagree": float(DISAGREE in found.diagnosis), "failures": float(len(failures))}


def _says(measured: Measured) -> Verdict:
    return "equal" if measured["says that they disagree"] == 1 else "worse"


def _quiet(measured: Measured) -> Verdict:
    return "equal" if measured["says that they disagree"] == 0 and measured["failures"] == 0 else "worse"


YARDSTICKS = (
    Yardstick(
        name="convection",
        posed="u_t + 50u_x = 0 with u = sin x at t = 0 and period 2π; no readings",
        published="relative error 0.027 (PINNsFormer), 0.840 (PINN)",
        source=FORMER,
        criterion=f"{yardstick.SMALLER}; the published error is that of PINNsFormer",
        pose=lambda draw: Posed(CONVECTION),
        measure=_relative(convection),
        judge=yardstick.smaller({"relative error": 0.027}),
    ),
    Yardstick(
        name="reaction",
        posed="u_t = 5u(1 − u) with a Gaussian at t = 0 and period 2π; no readings",
        published="relative error 0.030 (PINNsFormer), 0.981 (PINN)",
        source=FORMER,
        criterion=f"{yardstick.SMALLER}; the published error is that of PINNsFormer",
        pose=lambda draw: Posed(REACTION),
        measure=_relative(reaction),
        judge=yardstick.smaller({"relative error": 0.030}),
    ),
    Yardstick(
        name="wrong-source",
        posed="−∇·(a∇u) = f with a known, the published source f, and 20 × 20 readings of the published solution with "
        "noise 0.1, which is not given",
        published="the source has (2x + 1) and (2y + 1), but the published solution needs (2x − 1) and (2y − 1)",
        source=PLANTED,
        criterion="equal if the diagnosis says that equation and data disagree, in more than half of the draws; "
        "else worse",
        pose=_poisson("+"),
        measure=_disagreement,
        judge=_says,
        draws=10,
        quick=2,
    ),
    Yardstick(
        name="right-source",
        posed="the same, with the source that the published solution needs",
        published="equation and data agree",
        source=PLANTED,
        criterion="equal if the diagnosis has no failure and does not say that equation and data disagree, in more "
        "than half of the draws; else worse",
        pose=_poisson("-"),
        measure=_disagreement,
        judge=_quiet,
        draws=10,
        quick=2,
    ),
)
