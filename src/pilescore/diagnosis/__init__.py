"""Diagnosis: checks of a model and their findings."""

from .checks import CHECKS
from .diagnosis import diagnose
from .findings import Diagnosis, Finding, digits

CHECK_NAMES = tuple(CHECKS)
"""The names of all checks, in their order."""

__all__ = ["CHECK_NAMES", "Diagnosis", "Finding", "diagnose", "digits"]
