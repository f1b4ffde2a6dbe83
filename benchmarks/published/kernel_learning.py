"""Regression with a differential equation, from the papers on physics-informed kernel learning."""

from __future__ import annotations

import math

import numpy as np

import pilescore as ps

from . import yardstick
from .yardstick import Measured, Posed, Verdict, Yardstick

SOURCE = "Doumèche, Bach, Biau and Boyer, Physics-informed kernel learning, arXiv:2409.13786"
READINGS = 1000
NOISE = 0.5
SIZES = (10, 100, 1000)
"""The numbers of readings of the imperfect heat equation."""

WAVE_NOISE, WAVE_READINGS, WAVE_PUBLISHED = 0.1, 40_000, 0.01876
WAVE_TARGET = WAVE_PUBLISHED * math.sqrt(WAVE_READINGS / READINGS)

OSCILLATOR = """
title = "A damped oscillation"

[domain]
x = [-3.141592653589793, 3.141592653589793]

[[equation]]
equation = "dxx(u) + dx(u) + u = 0"

[[data]]
file = "readings.csv"
value = "u"
"""

HEAT = """
title = "The heat equation"

[domain]
t = [-3.141592653589793, 3.141592653589793]
x = [-3.141592653589793, 3.141592653589793]

[[equation]]
equation = "dt(u) = dxx(u)"

[[data]]
file = "readings.csv"
value = "u"
"""

IMPERFECT = """
title = "A heat equation that holds approximately"

[domain]
t = [-3.141592653589793, 3.141592653589793]
x = [-3.141592653589793, 3.141592653589793]

[[equation]]
equation = "dt(u) = dxx(u)"
rho = { unknown = [1e-4, 1e2] }

[[data]]
file = "readings.csv"
value = "u"
"""

WAVE = """
title = "The wave equation"

[domain]
t = [0, 1]
x = [0, 1]

[[equation]]
equation = "dtt(u) = 4*dxx(u)"

[[data]]
file = "readings.csv"
value = "u"
"""


def oscillation(points: np.ndarray) -> np.ndarray:
    x = points[:, 0]
    return np.asarray(np.exp(-x / 2) * np.cos(math.sqrt(3) / 2 * x))


def cooling(points: np.ndarray) -> np.ndarray:
    t, x = points.T
    return np.asarray(np.exp(-t) * np.cos(x))


def disturbed(points: np.ndarray) -> np.ndarray:
    return cooling(points) + 0.5 * np.sin(2 * points[:, 1])


def wave(points: np.ndarray) -> np.ndarray:
    t, x = points.T
    fast = 0.5 * np.sin(4 * np.pi * x) * np.cos(8 * np.pi * t)
    return np.asarray(np.sin(np.pi * x) * np.cos(2 * np.pi * t) + fast)


def _oscillator(draw: int) -> Posed:
    random = np.random.default_rng([1, draw])
    x = random.uniform(-np.pi, np.pi, (READINGS, 1))
    u = oscillation(x) + NOISE * random.standard_normal(READINGS)
    return Posed(OSCILLATOR, {"readings.csv": {"x": x[:, 0], "u": u}})


def _heat(draw: int) -> Posed:
    random = np.random.default_rng([2, draw])
    points = random.uniform(-np.pi, np.pi, (READINGS, 2))
    u = cooling(points) + NOISE * random.standard_normal(READINGS)
    return Posed(HEAT, {"readings.csv": {"t": points[:, 0], "x": points[:, 1], "u": u}})


def _imperfect(draw: int) -> Posed:
    random, count = np.random.default_rng([3, draw]), SIZES[draw % len(SIZES)]
    points = random.uniform(-np.pi, np.pi, (count, 2))
    u = disturbed(points) + NOISE * random.standard_normal(count)
    return Posed(IMPERFECT, {"readings.csv": {"t": points[:, 0], "x": points[:, 1], "u": u}})


def _wave(draw: int) -> Posed:
    random, part = np.random.default_rng([4, draw]), READINGS // 4
    zero, one, early = np.zeros(part), np.ones(part), np.full(part, 1 / READINGS)
    free = random.uniform(0, 1, (4, part))
    points = np.stack(
        [np.concatenate([zero, free[1], free[2], early]), np.concatenate([free[0], zero, one, free[3]])], axis=1
    )
    u = wave(points) + WAVE_NOISE * random.standard_normal(READINGS)
    return Posed(WAVE, {"readings.csv": {"t": points[:, 0], "x": points[:, 1], "u": u}})


def _line_error(found: ps.problems.Selection, draw: int) -> Measured:
    points = yardstick.grid((-np.pi, np.pi, 1001))
    return {"mean square error": yardstick.mean_square(yardstick.deviation(found, points, oscillation(points)))}


def _square_error(found: ps.problems.Selection, draw: int) -> Measured:
    points = yardstick.grid((-np.pi, np.pi, 61), (-np.pi, np.pi, 61))
    return {"mean square error": yardstick.mean_square(yardstick.deviation(found, points, cooling(points)))}


def _size_error(found: ps.problems.Selection, draw: int) -> Measured:
    points = yardstick.grid((-np.pi, np.pi, 61), (-np.pi, np.pi, 61))
    error = yardstick.mean_square(yardstick.deviation(found, points, disturbed(points)))
    return {f"mean square error, n = {SIZES[draw % len(SIZES)]}": error}


def _wave_error(found: ps.problems.Selection, draw: int) -> Measured:
    points = yardstick.grid((0, 1, 100), (0, 1, 100))
    truth = wave(points)
    return {"relative error": yardstick.relative(yardstick.deviation(found, points, truth), truth)}


def _slope(measured: Measured) -> Verdict:
    """Judge how fast the error falls: the slope of its logarithm in that of n, between the smallest and largest n."""
    first, last = (measured.get(f"mean square error, n = {count}", math.nan) for count in (SIZES[0], SIZES[-1]))
    slope = math.log(last / first) / math.log(SIZES[-1] / SIZES[0]) if 0 < last < math.inf and first > 0 else math.nan
    return "better" if slope < -1.2 else "equal" if slope <= -0.8 else "worse"


YARDSTICKS = (
    Yardstick(
        name="pikernel-oscillator",
        posed=f"u″ + u′ + u = 0 on [−π, π] and {READINGS} readings with noise {NOISE}, which is not given",
        published="mean square error 6.955e-4",
        source=SOURCE,
        criterion=yardstick.SMALLER,
        pose=_oscillator,
        measure=_line_error,
        judge=yardstick.smaller({"mean square error": 6.955e-4}),
        draws=10,
        quick=2,
    ),
    Yardstick(
        name="pikernel-heat",
        posed=f"u_t = u_xx on [−π, π]² and {READINGS} readings with noise {NOISE}, which is not given",
        published="mean square error 6.954e-3",
        source=SOURCE,
        criterion=yardstick.SMALLER,
        pose=_heat,
        measure=_square_error,
        judge=yardstick.smaller({"mean square error": 6.954e-3}),
        draws=10,
        quick=2,
    ),
    Yardstick(
        name="imperfect-heat",
        posed="u_t = u_xx on [−π, π]², declared approximate by an unknown rho, and 10, 100 or 1000 readings with "
        "noise 0.5, which is not given; the true solution has a term 0.5 sin 2x that breaks the equation",
        published="the mean square error falls about as 1/n, with weights set by hand",
        source=SOURCE,
        criterion="slope of the logarithm of the error in the logarithm of n, from n = 10 to n = 1000: below -1.2 "
        "better, up to -0.8 equal, else worse",
        pose=_imperfect,
        measure=_size_error,
        judge=_slope,
        draws=30,
        quick=6,
    ),
    Yardstick(
        name="wave",
        posed=f"u_tt = 4u_xx on [0, 1]² and {READINGS} readings with noise {WAVE_NOISE}, which is not given: a quarter "
        "each at t = 0, at t = 1/1000, at x = 0 and at x = 1",
        published=f"relative error {WAVE_PUBLISHED} with 40 times as many readings (Crank-Nicolson: 0.0201; PINN "
        f"without noise: 0.430); a random error is √40 times as large with {READINGS} readings: {WAVE_TARGET:.3f}",
        source=SOURCE,
        criterion=f"ratio to {WAVE_TARGET:.3f}: below {yardstick.BETTER} better, up to {yardstick.EQUAL} equal, "
        "else worse",
        pose=_wave,
        measure=_wave_error,
        judge=yardstick.smaller({"relative error": WAVE_TARGET}),
        draws=10,
        quick=2,
    ),
)
