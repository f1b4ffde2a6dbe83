"""The distribution of hyperparameters: priors by role, peaks, weighted points, chains, and the result."""

from .compute import default_density as default_density
from .compute import hyperposterior as hyperposterior
from .density import HyperparameterDensity as HyperparameterDensity
from .peak import quadratic_peak as quadratic_peak
from .result import Hyperposterior as Hyperposterior
