"""Inference: the evidence of a model, its posterior, data-free scores, losses and errors against a known solution.

`__all__` lists the public names; names imported `as` themselves are for the other packages.
"""

from .accuracy import Accuracy, KnownSolution, Risk, accuracy
from .accuracy import Reference as Reference
from .accuracy import measured as measured
from .accuracy import reference as reference
from .compiled_evidence import CompiledEvidence as CompiledEvidence
from .compiled_evidence import can_be_compiled as can_be_compiled
from .data_free import SHAPE_ROLES as SHAPE_ROLES
from .data_free import DataFreePile, FredholmDeterminant, calibrated_rho, data_free_pile, fredholm_logdet
from .data_free import checked_without_data as checked_without_data
from .data_free import equation_blocks as equation_blocks
from .data_free import normalised_score as normalised_score
from .data_free import refine_without_data as refine_without_data
from .data_free import whitened as whitened
from .evidence import START_TOLERANCE as START_TOLERANCE
from .evidence import Evidence as Evidence
from .evidence import Pile, pile, pile_and_gradient
from .evidence import Systems as Systems
from .evidence import WarmStart as WarmStart
from .evidence import at_profiled_scale as at_profiled_scale
from .evidence import check_exact as check_exact
from .evidence import contradictory as contradictory
from .evidence import linear_system as linear_system
from .evidence import systems_of as systems_of
from .log_evidence import log_evidence_function
from .losses import Losses, losses
from .losses import left_out_residuals as left_out_residuals
from .losses import left_out_variances as left_out_variances
from .losses import quadrature_weights as quadrature_weights
from .losses import system_losses as system_losses
from .mixture import MixturePosterior, ModelMixture, WeightedModel, posterior
from .next_points import NextPoints, next_points
from .posterior import Posterior
from .posterior import as_probabilities as as_probabilities
from .score import NAMED_SCORES as NAMED_SCORES
from .score import Score
from .score import as_score as as_score
from .temperatures import REDUCTION as REDUCTION
from .temperatures import SHIFT as SHIFT
from .temperatures import scores_by_temperature as scores_by_temperature
from .traced import Targets as Targets

__all__ = [
    "Accuracy",
    "DataFreePile",
    "FredholmDeterminant",
    "KnownSolution",
    "Losses",
    "MixturePosterior",
    "ModelMixture",
    "NextPoints",
    "Pile",
    "Posterior",
    "Risk",
    "Score",
    "WeightedModel",
    "accuracy",
    "calibrated_rho",
    "data_free_pile",
    "fredholm_logdet",
    "log_evidence_function",
    "losses",
    "next_points",
    "pile",
    "pile_and_gradient",
    "posterior",
]
