"""Diagnosis: checks of a model and their findings."""

from .diagnosis import diagnose
from .findings import Diagnosis, Finding, Thresholds, digits

__all__ = ["Diagnosis", "Finding", "Thresholds", "diagnose", "digits"]
