"""The evidence of a minimum, integrated over what was searched, for comparisons with other candidates."""

from __future__ import annotations

import dataclasses
import math
import warnings

import numpy as np

from ..errors import ClusterError, PilescoreError, UncertaintyWarning
from ..inference import Pile
from ..model import find, named_paths
from .minimum import Minimum
from .uncertainty import HyperparameterDensity, Hyperposterior, default_density, hyperposterior, quadratic_peak

UNKNOWN_ERROR = "Laplace's estimate of the integrated log evidence, whose error is unknown"


@dataclasses.dataclass(frozen=True)
class IntegratedEvidence:
    """A log evidence without free hyperparameters, and its numerical error; both are NaN if they are unknown."""

    log_evidence: float
    error: float
    notes: tuple[str, ...] = ()
    """Warnings, one sentence each."""


def own_evidence(pile: Pile) -> IntegratedEvidence:
    """Return the log evidence of a candidate without searched hyperparameters.

    The density of the model's priors does not belong to it: its hyperparameters are taken as known.
    """
    known = -0.5 * pile.size * pile.prior
    return IntegratedEvidence(pile.log_evidence - known, rounding_error(pile))


def rounding_error(pile: Pile) -> float:
    """Return the error of the log evidence by rounding, and by the bounds of an approximate solver."""
    return 0.5 * pile.size * (pile.rounding + 0.5 * (pile.upper - pile.lower))


def integrated_evidence(minimum: Minimum, hurried: str = "") -> IntegratedEvidence:
    """Return the log evidence of a minimum, integrated over what was searched with the default priors.

    If it cannot be computed, Laplace's estimate from the curvature at the minimum replaces it, and a note says why.

    Parameters
    ----------
    minimum
        The minimum.
    hurried
        Why no scores may be computed; empty if they may.
    """
    if minimum.end is None:
        return _unknown("the result of the search was changed")
    density = default_density(minimum)
    if hurried or minimum.status == "interrupted":
        return _by_curvature(minimum, density, hurried or "the search was interrupted")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UncertaintyWarning)  # they are among the notes
            return hyperposterior_evidence(hyperposterior(minimum, progress=False))
    except (PilescoreError, np.linalg.LinAlgError) as failure:
        if isinstance(failure, ClusterError | OSError):  # not the candidate's fault
            raise
        return _by_curvature(minimum, density, str(failure))


def hyperposterior_evidence(hyper: Hyperposterior) -> IntegratedEvidence:
    """Return the log evidence of a distribution of hyperparameters."""
    minimum, notes = hyper.minimum, hyper.warnings
    known = _log_prior_of_others(hyper.density)
    if math.isnan(hyper.log_evidence_error):
        return IntegratedEvidence(hyper.log_evidence - known, math.nan, (UNKNOWN_ERROR, *notes))
    error = hyper.log_evidence_error + rounding_error(minimum.pile)
    return IntegratedEvidence(hyper.log_evidence - known, error, notes)


def _by_curvature(minimum: Minimum, density: HyperparameterDensity, reason: str) -> IntegratedEvidence:
    """Return Laplace's estimate from the curvature at the minimum, without computing any score."""
    # A profiled score has no curvature along η. At a bound the slope does not vanish, and only scores could tell it.
    if minimum.end is None or minimum.curvature is None or minimum.score.profiled or minimum.at_bounds:
        return _unknown(reason)
    peak = quadratic_peak(density, minimum.end.u, minimum.pile.log_evidence, minimum.curvature)
    if not math.isfinite(peak.log_integral):
        return _unknown(reason)
    value = peak.log_integral - _log_prior_of_others(density)
    return IntegratedEvidence(value, math.nan, (f"{UNKNOWN_ERROR}, because {reason}",))


def _unknown(reason: str) -> IntegratedEvidence:
    text = f"not ranked, because the evidence could not be integrated over the hyperparameters: {reason}"
    return IntegratedEvidence(math.nan, math.nan, (text,))


def _log_prior_of_others(density: HyperparameterDensity) -> float:
    """Return the log density of the model's priors on what was not searched, which is known."""
    model, total = density.space.model, 0.0
    paths, searched = named_paths(model), set(density.space.targets.values())
    for name, prior in model.priors.items():
        base, index = find(model, paths, name)
        value = np.asarray(model.parameters[base])
        indices = [index] if index else list(np.ndindex(value.shape))
        known = [i for i, each in enumerate(indices) if not {(base, each), (base, ())} & searched]
        if known:
            total += prior.log_marginal(value[index], known)
    return total
