"""Two tiny problems with known answers, for a smoke test."""

from __future__ import annotations

import numpy as np

from . import yardstick
from .yardstick import Posed, Yardstick

DECAY = """
title = "A decay"

[domain]
t = [0, 2]

[parameters]
rate = { unknown = [0.1, 10] }

[[equation]]
equation = "dt(u) = -rate*u"

[[data]]
file = "readings.csv"
value = "u"
"""

REFUSED = """
title = "A problem with a mistake"

[domain]
t = [0, 2]

[[equation]]
equation = "dz(u) = 0"
"""


def _decay(draw: int) -> Posed:
    t = np.linspace(0, 2, 9)
    u = 3 * np.exp(-1.3 * t) + 0.01 * np.random.default_rng([0, draw]).standard_normal(9)
    return Posed(DECAY, {"readings.csv": {"t": t, "u": u}})


YARDSTICKS = (
    Yardstick(
        name="smoke-decay",
        posed="u′ = −rate·u and 9 readings; the rate is unknown",
        published="rate = 1.3, error 0.02",
        source="none: a smoke test",
        criterion=yardstick.SMALLER,
        pose=_decay,
        measure=lambda found, draw: {"rate": found.values["rate"], "error": abs(found.values["rate"] - 1.3)},
        judge=yardstick.smaller({"error": 0.02}),
    ),
    Yardstick(
        name="smoke-refused",
        posed="an equation with a derivative along a coordinate that does not exist",
        published="none",
        source="none: a smoke test",
        criterion=yardstick.SMALLER,
        pose=lambda draw: Posed(REFUSED),
        measure=lambda found, draw: {"error": 0.0},
        judge=yardstick.smaller({"error": 1.0}),
    ),
)
