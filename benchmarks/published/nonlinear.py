"""Nonlinear equations solved by Gaussian processes with kernels set by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import pilescore as ps

from . import yardstick
from .solvers import burgers, eikonal
from .yardstick import Measured, Posed, Yardstick

SOURCE = (
    "Chen, Hosseini, Owhadi and Stuart, Solving and learning nonlinear PDEs with Gaussian processes, arXiv:2103.12959, "
    "and the notebooks of its published code"
)
CRITERION = f"the larger of the two ratios; {yardstick.SMALLER}"
RMS, LARGEST = "root mean square error", "largest error"

BURGERS = """
title = "Burgers' equation"

[domain]
t = [0, 1]
x = [-1, 1]

[parameters]
nu = 0.02

[[equation]]
equation = "dt(u) + u*dx(u) = nu*dxx(u)"

[[condition]]
type = "dirichlet"
face = "t = 0"
value = "-sin(pi*x)"

[[condition]]
type = "dirichlet"
face = ["x = -1", "x = 1"]
value = 0
"""

EIKONAL = """
title = "A regularised Eikonal equation"

[domain]
x = [0, 1]
y = [0, 1]

[parameters]
epsilon = 0.01

[[equation]]
equation = "dx(u)**2 + dy(u)**2 = 1 + epsilon*laplacian(u)"

[[condition]]
type = "dirichlet"
face = "all"
value = 0
"""

ELLIPTIC = """
title = "A nonlinear elliptic equation"

[domain]
x = [0, 1]
y = [0, 1]

[functions]
v = "sin(pi*x)*sin(pi*y)"
w = "2*sin(4*pi*x)*sin(4*pi*y)"
f = "2*pi**2*v + 32*pi**2*w + (v + w)**3"

[[equation]]
equation = "-laplacian(u) + u**3 = f"

[[condition]]
type = "dirichlet"
face = "all"
value = 0
"""


def elliptic(points: np.ndarray) -> np.ndarray:
    x, y = np.pi * points.T
    return np.asarray(np.sin(x) * np.sin(y) + 2 * np.sin(4 * x) * np.sin(4 * y))


def _errors(
    truth: Callable[[np.ndarray], np.ndarray], *axes: tuple[float, float, int]
) -> Callable[[ps.problems.Selection, int], Measured]:
    def measure(found: ps.problems.Selection, draw: int) -> Measured:
        points = yardstick.grid(*axes)
        errors = yardstick.deviation(found, points, truth(points))
        return {RMS: float(np.sqrt(yardstick.mean_square(errors))), LARGEST: float(np.abs(errors).max())}

    return measure


YARDSTICKS = (
    Yardstick(
        name="burgers",
        posed="u_t + u u_x = 0.02u_xx with u = −sin πx at t = 0 and u = 0 at x = ±1; no readings",
        published=f"{RMS} 4.01e-3, {LARGEST} 2.41e-2, with 1201 points",
        source=SOURCE,
        criterion=CRITERION,
        pose=lambda draw: Posed(BURGERS),
        measure=_errors(lambda points: burgers(points, 0.02), (0, 1, 60), (-1, 1, 60)),
        judge=yardstick.smaller({RMS: 4.01e-3, LARGEST: 2.41e-2}),
    ),
    Yardstick(
        name="eikonal",
        posed="|∇u|² = 1 + 0.01Δu on the unit square with u = 0 on its sides; no readings",
        published=f"{RMS} 2.51e-2, {LARGEST} 6.38e-2, with 484 points",
        source=SOURCE,
        criterion=CRITERION,
        pose=lambda draw: Posed(EIKONAL),
        measure=_errors(lambda points: eikonal(points, 0.01), (0, 1, 60), (0, 1, 60)),
        judge=yardstick.smaller({RMS: 2.51e-2, LARGEST: 6.38e-2}),
    ),
    Yardstick(
        name="elliptic",
        posed="−Δu + u³ = f on the unit square with u = 0 on its sides; no readings",
        published=f"{RMS} 3.40e-3, {LARGEST} 2.22e-2, with 1024 points and nugget 1e-4 (1.65e-4 with nugget 1e-10 and "
        "a fitted length)",
        source=SOURCE,
        criterion=f"{CRITERION}; the published errors are those with nugget 1e-4",
        pose=lambda draw: Posed(ELLIPTIC),
        measure=_errors(elliptic, (0, 1, 60), (0, 1, 60)),
        judge=yardstick.smaller({RMS: 3.40e-3, LARGEST: 2.22e-2}),
    ),
)
