"""Diagnosis: checks of a model and their findings."""

from .checks import CHECKS
from .diagnosis import diagnose
from .findings import Diagnosis, Finding, digits
from .pictures import Chart
from .pictures import Series as Series

CHECK_NAMES = tuple(CHECKS)
"""The names of all checks, in their order."""

__all__ = ["CHECK_NAMES", "Chart", "Diagnosis", "Finding", "diagnose", "digits"]
