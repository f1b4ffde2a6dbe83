"""Numbers as text."""

import math

import pytest

from pilescore.diagnosis import digits


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1.0, "1"), (0.012345, "0.0123"), (-4.5678, "−4.57"), (1234.5, "1234"),
     (999.7, "1000"), (math.nan, "—"), (None, "—"),
     (4.7e-6, "4.70·10⁻⁶"), (-2e10, "−2.00·10¹⁰")],
)  # fmt: skip
def test_digits(value, text):
    assert digits(value) == text
