"""Storage: atomic files, datasets that grow and resume, and working directories."""

from .datasets import DatasetFile, ResumableResults, SweepTable
from .directories import DIGEST, FIGURES, REPORT, RESULTS, SUMMARY, Folder
from .files import file_error, opened, replace

__all__ = [
    "DIGEST",
    "FIGURES",
    "REPORT",
    "RESULTS",
    "SUMMARY",
    "DatasetFile",
    "Folder",
    "ResumableResults",
    "SweepTable",
    "file_error",
    "opened",
    "replace",
]
