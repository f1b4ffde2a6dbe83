"""Certified nonlinear regressions of the NIST Statistical Reference Datasets, as differential equations."""

from __future__ import annotations

import numpy as np

import pilescore as ps

from . import yardstick
from .yardstick import Measured, Posed, Yardstick

SOURCE = "NIST Statistical Reference Datasets, nonlinear regression, https://www.itl.nist.gov/div898/strd"

MISRA1A_X = [77.6, 114.9, 141.1, 190.8, 239.9, 289.0, 332.8, 378.4, 434.8, 477.3, 536.8, 593.1, 689.1, 760.0]
MISRA1A_Y = [10.07, 14.73, 17.94, 23.93, 29.61, 35.18, 40.02, 44.82, 50.76, 55.05, 61.01, 66.40, 75.47, 81.78]
MISRA1A = {"b1": (238.94212918, 2.7070075241), "b2": (5.5015643181e-4, 7.2668688436e-6)}

RAT42_X = [9.0, 14.0, 21.0, 28.0, 42.0, 57.0, 63.0, 70.0, 79.0]
RAT42_Y = [8.93, 10.80, 18.59, 22.33, 39.35, 56.11, 61.73, 64.62, 67.08]
RAT42 = {"K": (72.462237576, 1.7340283401), "r": (0.067359200066, 3.4465663377e-3)}

LANCZOS3_X = np.linspace(0.0, 1.15, 24).round(2).tolist()
LANCZOS3_Y = [2.5134, 2.0443, 1.6684, 1.3664, 1.1232, 0.9269, 0.7679, 0.6389, 0.5338, 0.4479, 0.3776, 0.3197]
LANCZOS3_Y += [0.2720, 0.2325, 0.1997, 0.1723, 0.1493, 0.1301, 0.1138, 0.1000, 0.0883, 0.0783, 0.0698, 0.0624]
LANCZOS3 = {
    "slow": (0.95498101505, 0.097041624475),
    "middle": (2.9515951832, 0.10766312506),
    "fast": (4.9863565084, 0.034436403035),
}

BOXBOD_X = [1.0, 2.0, 3.0, 5.0, 7.0, 10.0]
BOXBOD_Y = [109.0, 149.0, 149.0, 191.0, 213.0, 224.0]
BOXBOD = {"b1": (213.80940889, 12.354515176), "b2": (0.54723748542, 0.10455993237)}

MISRA1A_FIRST_ORDER = """
title = "Misra1a: monomolecular adsorption"
unknown = "y"

[domain]
x = [0, 760]

[parameters]
b1 = { unknown = [50, 5000] }       # the curve still rises at 82
b2 = { unknown = [1e-4, 1e-1] }     # it bends over hundreds

[[equation]]
equation = "dx(y) = b2*(b1 - y)"

[[condition]]
type = "dirichlet"
face = "x = 0"
value = 0

[[data]]
file = "readings.csv"
value = "y"
"""

MISRA1A_SECOND_ORDER = """
title = "Misra1a: monomolecular adsorption"
unknown = "y"

[domain]
x = [0, 760]

[parameters]
b2 = { unknown = [1e-4, 1e-1] }     # it bends over hundreds

[[equation]]
equation = "dxx(y) + b2*dx(y) = 0"

[[condition]]
type = "dirichlet"
face = "x = 0"
value = 0

[[data]]
file = "readings.csv"
value = "y"
"""

RAT42_TEXT = """
title = "Rat42: pasture regrowth"
unknown = "y"

[domain]
x = [0, 80]

[parameters]
r = { unknown = [0.005, 5] }        # the growth takes tens of days
K = { unknown = [20, 2000] }        # the largest reading is 67

[[equation]]
equation = "dx(y) = r*y*(1 - y/K)"

[[data]]
file = "readings.csv"
value = "y"
"""

LANCZOS3_TEXT = """
title = "Lanczos3: three decays"
unknown = "y"

[domain]
x = [0, 1.15]

[parameters]                        # all readings together decay at rates of 4 to 2
slow = { unknown = [0.05, 5] }
middle = { unknown = [0.2, 20] }
fast = { unknown = [1, 100] }

[[equation]]
equation = '''dxxx(y) + (slow + middle + fast)*dxx(y) + (slow*middle + slow*fast + middle*fast)*dx(y)
    + slow*middle*fast*y = 0'''

[[data]]
file = "readings.csv"
value = "y"
"""

BOXBOD_TEXT = """
title = "BoxBOD: biochemical oxygen demand"
unknown = "y"

[domain]
x = [0, 10]

[parameters]
b2 = { unknown = [0.05, 50] }       # it bends within a few days

[[equation]]
equation = "dxx(y) + b2*dx(y) = 0"

[[condition]]
type = "dirichlet"
face = "x = 0"
value = 0

[[data]]
file = "readings.csv"
value = "y"
"""


def _posed(text: str, x: list[float], y: list[float]) -> Posed:
    return Posed(text, {"readings.csv": {"x": x, "y": y}})


def _saturation(found: ps.problems.Selection, end: float) -> Measured:
    """Return b2, and b1 = y + y′/b2, which is the same at every x."""
    return yardstick.estimates(found, ["b2"]) | yardstick.derived(found, "b1", "y + dx(y)/b2", [end])


def _rates(found: ps.problems.Selection) -> Measured:
    """Return the three rates in increasing order: the equation is the same for each permutation of them."""
    order = sorted(LANCZOS3, key=lambda name: found.values[name])
    inferred = yardstick.estimates(found, order)
    return {
        new + end: inferred[old + end]
        for new, old in zip(LANCZOS3, order, strict=True)
        for end in ("", yardstick.SPREAD)
    }


def _certified(
    name: str, posed: str, problem: Posed, values: dict[str, tuple[float, float]], measure: object
) -> Yardstick:
    assert callable(measure)
    return Yardstick(
        name=name,
        posed=posed,
        published=yardstick.certified_text(values),
        source=SOURCE,
        criterion=yardstick.CERTIFIED,
        pose=lambda draw: problem,
        measure=lambda found, draw: measure(found),
        judge=yardstick.certified(values),
    )


YARDSTICKS = (
    _certified(
        "misra1a",
        "y′ = b2·(b1 − y) with y(0) = 0 and 14 readings; b1 and b2 are unknown",
        _posed(MISRA1A_FIRST_ORDER, MISRA1A_X, MISRA1A_Y),
        MISRA1A,
        lambda found: yardstick.estimates(found, ["b1", "b2"]),
    ),
    _certified(
        "misra1a-second-order",
        "y″ + b2·y′ = 0 with y(0) = 0 and 14 readings; b2 is unknown, and b1 = y + y′/b2 is predicted",
        _posed(MISRA1A_SECOND_ORDER, MISRA1A_X, MISRA1A_Y),
        MISRA1A,
        lambda found: _saturation(found, 760.0),
    ),
    _certified(
        "rat42",
        "y′ = r·y·(1 − y/K) and 9 readings; r and K are unknown",
        _posed(RAT42_TEXT, RAT42_X, RAT42_Y),
        RAT42,
        lambda found: yardstick.estimates(found, ["K", "r"]),
    ),
    _certified(
        "lanczos3",
        "the linear equation of third order with three unknown decay rates, and 24 readings",
        _posed(LANCZOS3_TEXT, LANCZOS3_X, LANCZOS3_Y),
        LANCZOS3,
        _rates,
    ),
    _certified(
        "boxbod",
        "y″ + b2·y′ = 0 with y(0) = 0 and 6 readings; b2 is unknown, and b1 = y + y′/b2 is predicted",
        _posed(BOXBOD_TEXT, BOXBOD_X, BOXBOD_Y),
        BOXBOD,
        lambda found: _saturation(found, 10.0),
    ),
)
