"""The order of the gallery, from a first model to measurements."""

from __future__ import annotations

from pathlib import Path

import optax  # noqa: F401  (its log is to find the real streams, which the gallery replaces while it runs)

ORDER = [
    "first_ode",
    "losses_disagree",
    "bandwidth",
    "weights",
    "kernel_before_data",
    "heat_coefficient",
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
    """Return where a script stands; one that is not in the list is a mistake."""
    return ORDER.index(Path(script).stem)


conf = {"within_subsection_order": lambda: place}
