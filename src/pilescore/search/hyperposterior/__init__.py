"""The distribution of hyperparameters: priors by role, peaks, weighted points, chains, and the result."""

from .compute import hyperposterior as hyperposterior
from .result import Hyperposterior as Hyperposterior
