"""The order of the gallery, from a first model to published measurements."""

from __future__ import annotations

from pathlib import Path

import optax  # noqa: F401  (its logging must find the real output streams, which the gallery replaces while it runs)

ORDER = [
    "first_ode",
    "losses_disagree",
    "bandwidth",
    "weights",
    "kernel_before_data",
    "heat_coefficient",
    "how_certain",
    "two_experiments",
    "wrong_equation",
    "failing_model",
    "bad_sensor",
    "burgers",
    "score_a_pinn",
    "large",
    "cooling_water",
    "mercury",
]


def place(script: str) -> int:
    """Return the position of a script; raises `ValueError` if it is not listed."""
    return ORDER.index(Path(script).stem)


conf = {"within_subsection_order": lambda: place}
