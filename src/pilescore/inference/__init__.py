"""Inference: the evidence of a model, its posterior, data-free scores, losses and errors against a known solution."""

from .accuracy import Accuracy, KnownSolution, Reference, Risk, accuracy, measured, reference
from .data_free import (
    DataFreePile,
    FredholmDeterminant,
    calibrated_rho,
    check_without_data,
    data_free_pile,
    fredholm_logdet,
    refine_without_data,
    whitened,
)
from .evidence import (
    Evidence,
    Pile,
    Systems,
    WarmStart,
    at_profiled_scale,
    linear_system,
    pile,
    pile_and_gradient,
    systems_of,
)
from .losses import Losses, left_out_residuals, left_out_variances, losses, quadrature_weights, system_losses
from .posterior import Posterior, posterior
from .score import Score, as_score
from .temperatures import REDUCTION, SHIFT, scores_by_temperature

__all__ = [
    "REDUCTION",
    "SHIFT",
    "Accuracy",
    "DataFreePile",
    "Evidence",
    "FredholmDeterminant",
    "KnownSolution",
    "Losses",
    "Pile",
    "Posterior",
    "Reference",
    "Risk",
    "Score",
    "Systems",
    "WarmStart",
    "accuracy",
    "as_score",
    "at_profiled_scale",
    "calibrated_rho",
    "check_without_data",
    "data_free_pile",
    "fredholm_logdet",
    "left_out_residuals",
    "left_out_variances",
    "linear_system",
    "losses",
    "measured",
    "pile",
    "pile_and_gradient",
    "posterior",
    "quadrature_weights",
    "reference",
    "refine_without_data",
    "scores_by_temperature",
    "system_losses",
    "systems_of",
    "whitened",
]
