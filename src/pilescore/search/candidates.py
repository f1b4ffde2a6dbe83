"""What `compare` can rank: one class for each kind of candidate, with its score and its predictions."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from jaxtyping import Float

from ..errors import InputError, PilescoreError
from ..inference import DataFreePile, MixturePosterior, Pile, Posterior, Score, at_profiled_scale, posterior, systems_of
from ..model import TEMPERATURES, Model, Observation
from ..networks import NetworkPile
from ..nonlinear import Solution
from ..solvers import IMPRECISE, solve
from .integrated import IntegratedEvidence, hyperposterior_evidence, integrated_evidence, own_evidence
from .minimum import Minimum
from .uncertainty import Hyperposterior

Candidate: TypeAlias = Model | Minimum | Hyperposterior | Solution | Pile | DataFreePile | NetworkPile | Posterior

USUAL_FIT = (0.5, 2.0)
"""A fit outside gets a warning: residuals are much smaller or larger than the noise of the model."""

EVIDENCE_COLUMNS = ("pile", "log_evidence", "error", "fit", "complexity", "size", "fitted", "warnings")

NETWORK_COLUMNS = ("fit", "prior", "complexity", "misfit", "training_loss", "parameters", "size", "eta", "sigma2")


@dataclasses.dataclass(frozen=True, eq=False)
class HeldOutPredictor:
    """A candidate as a predictor of held-out values."""

    source: Posterior | MixturePosterior | NetworkPile
    """Predicts means and covariances of `A f`."""
    model: Model | None
    """The model that was fitted, if it is known."""
    noise: Callable[[Observation, str], Float[np.ndarray, " n"]]
    """The noise variances that the candidate assumes for a block without a temperature of its own."""
    notes: tuple[str, ...]
    """Warnings about the candidate."""


class Scored(abc.ABC):
    """A kind of candidate that has a score."""

    model: Any
    """The model as the user gave it; None if it is not known."""

    family: ClassVar[Literal["evidence", "data-free", "network"]]
    """Scores are comparable within a family only."""

    def check(self, score: Score) -> None:  # noqa: B027  (most results were checked when they were made)
        """Raise an `InputError` if the candidate cannot be scored this way."""

    @abc.abstractmethod
    def row(self, score: Score) -> dict[str, Any]:
        """Return the row of the candidate in the table: its score and its warnings."""

    @abc.abstractmethod
    def incomparable(self, other: Any, name: str, row: Mapping[str, Any], other_row: Mapping[str, Any]) -> str:
        """Return why the scores of this and another candidate of this name are not comparable, or an empty string."""


class Predicting(abc.ABC):
    """A kind of candidate that can predict held-out values."""

    model: Any
    """The model as the user gave it; None if it is not known."""

    kind: ClassVar[Literal["kernel", "network"]] = "kernel"

    @abc.abstractmethod
    def predictor(self, profiled: bool) -> HeldOutPredictor:
        """Return the predictor; a model that is not solved yet is solved, at its profiled scale if asked."""


class ScoredByEvidence(Scored):
    """A kind of candidate whose score is the evidence of observations."""

    family = "evidence"

    def incomparable(self, other: Any, name: str, row: Mapping[str, Any], other_row: Mapping[str, Any]) -> str:
        """Return which observations differ between this and another candidate."""
        if row["size"] != other_row["size"]:
            return f"another number of observations than {name!r}: not comparable"
        mine, theirs = self.model, other.model
        if mine is None or theirs is None:
            return ""
        given_physics = row["size"] < mine.size
        pairs = [(_observed(mine.data), _observed(theirs.data))]
        if not given_physics:
            pairs.append((_observed(mine.physics), _observed(theirs.physics)))
            if pairs[1][0][0] != pairs[1][1][0]:
                return f"other operators than {name!r}: compare with score='given_physics'"
        same = all(first == second for first, second in pairs)
        return "" if same else f"other observations than {name!r}: not comparable"


@dataclasses.dataclass(frozen=True, eq=False)
class ModelCandidate(ScoredByEvidence, Predicting):
    """A model, which is scored here."""

    model: Model

    def check(self, score: Score) -> None:
        """Raise an `InputError` if the model cannot be scored this way."""
        score.check(self.model)

    def row(self, score: Score) -> dict[str, Any]:
        """Return the score of the model, or the row of a failure."""
        try:
            systems = systems_of(self.model, score)
            found = systems.pile(score)
            return _evidence_row(found, own_evidence(found), [systems.caution])
        except PilescoreError as failure:
            given = score.given_blocks(self.model)
            scored = (block.size for i, block in enumerate(self.model.blocks) if i not in given)
            return failed_row(str(failure), sum(scored))

    def predictor(self, profiled: bool) -> HeldOutPredictor:
        """Return the posterior of the model."""
        systems = systems_of(self.model, Score())
        system = systems.whole
        if profiled:
            system = solve(at_profiled_scale(system.model, systems.pile(Score(profiled=True))))
        return posterior_predictor(Posterior(system), [systems.caution])


@dataclasses.dataclass(frozen=True, eq=False)
class MinimumCandidate(ScoredByEvidence, Predicting):
    """A result of `minimize`."""

    minimum: Minimum
    hurried: str = ""
    """Why no more scores may be computed for it; empty if they may."""

    @property
    def model(self) -> Model:
        """The model at the minimum."""
        return self.minimum.model

    def row(self, score: Score) -> dict[str, Any]:
        """Return the evidence of the minimum, integrated over the hyperparameters that were fitted."""
        return self.row_with(integrated_evidence(self.minimum, self.hurried))

    def row_with(self, evidence: IntegratedEvidence) -> dict[str, Any]:
        """Return the row with this evidence."""
        fitted = len(self.minimum.values) + self.minimum.score.profiled
        return _evidence_row(self.minimum.pile, evidence, [*self.warnings, *evidence.notes], fitted)

    def predictor(self, profiled: bool) -> HeldOutPredictor:
        """Return the posterior at the minimum."""
        solution = self.minimum.solution
        model = self.minimum.model if solution is None else solution.model
        return posterior_predictor(Posterior(solve(model)), self.warnings)

    @property
    def warnings(self) -> list[str]:
        """Warnings about the search."""
        found = self.minimum
        notes = [] if found.converged else [f"{found.status}: {found.reason}"]
        notes += [f"{name} is at its {side} bound" for name, side in found.at_bounds.items()]
        if found.curvature is not None and found.curvature.flat:
            notes.append(f"{len(found.curvature.flat)} flat direction(s)")
        if found.solution is not None and not found.solution.converged:
            notes.append(f"{found.solution.status}: {found.solution.reason}")
        return notes


@dataclasses.dataclass(frozen=True, eq=False)
class HyperposteriorCandidate(ScoredByEvidence, Predicting):
    """A result of `hyperposterior`."""

    hyperposterior: Hyperposterior

    @property
    def model(self) -> Model:
        """The model at the minimum."""
        return self.hyperposterior.minimum.model

    def row(self, score: Score) -> dict[str, Any]:
        """Return the evidence, integrated over the hyperparameters."""
        evidence = hyperposterior_evidence(self.hyperposterior)
        return MinimumCandidate(self.hyperposterior.minimum).row_with(evidence)

    def predictor(self, profiled: bool) -> HeldOutPredictor:
        """Return the posterior averaged over the hyperparameters, with the noise of the minimum."""
        at_minimum = MinimumCandidate(self.hyperposterior.minimum).predictor(profiled)
        notes = (*at_minimum.notes, *self.hyperposterior.warnings)
        return dataclasses.replace(at_minimum, source=posterior(self.hyperposterior), notes=notes)


@dataclasses.dataclass(frozen=True, eq=False)
class SolutionCandidate(ScoredByEvidence, Predicting):
    """A result of `solve_nonlinear`."""

    solution: Solution

    @property
    def model(self) -> Model:
        """The nonlinear model."""
        return self.solution.nonlinear

    def row(self, score: Score) -> dict[str, Any]:
        """Return the score of the linearised model at its own scale."""
        found = systems_of(self.solution.model, score).pile(Score())
        return _evidence_row(found, own_evidence(found), self._warnings)

    def predictor(self, profiled: bool) -> HeldOutPredictor:
        """Return the posterior of the linearised model."""
        return posterior_predictor(Posterior(solve(self.solution.model)), self._warnings)

    @property
    def _warnings(self) -> list[str]:
        return [] if self.solution.status == "converged" else [f"{self.solution.status}: {self.solution.reason}"]


@dataclasses.dataclass(frozen=True, eq=False)
class PileCandidate(ScoredByEvidence):
    """A result of `pile`."""

    pile: Pile
    model = None

    def row(self, score: Score) -> dict[str, Any]:
        """Return the score."""
        return _evidence_row(self.pile, own_evidence(self.pile), [])


@dataclasses.dataclass(frozen=True, eq=False)
class DataFreeCandidate(Scored):
    """A result of `data_free_pile`."""

    family = "data-free"
    model = None
    pile: DataFreePile

    def row(self, score: Score) -> dict[str, Any]:
        """Return the data-free scores with their resolution."""
        pile = self.pile
        missing = f"no normalised score: {pile.unnormalised}" if pile.unnormalised else ""
        return {
            "value": pile.value,
            "normalised": pile.normalised,
            "error": pile.error,
            "status": pile.status,
            "size": pile.size,
            "fitted": 0,
            "warnings": "; ".join(filter(None, [pile.determinant.reason, missing])),
        }

    def incomparable(self, other: Any, name: str, row: Mapping[str, Any], other_row: Mapping[str, Any]) -> str:
        """Return whether the temperatures differ, or the family or size of the kernels."""
        reasons = []
        if (self.pile.rho, self.pile.eta) != (other.pile.rho, other.pile.eta):
            reasons.append(f"other temperatures than {name!r}: values are not comparable")
        if not self.pile.same_size(other.pile):
            reasons.append(f"another family or size of kernel than {name!r}: values are not comparable")
        return "; ".join(reasons)


@dataclasses.dataclass(frozen=True, eq=False)
class NetworkCandidate(Scored, Predicting):
    """A result of `network_pile`."""

    family = "network"
    kind = "network"
    network: NetworkPile

    @property
    def model(self) -> Model | None:
        """The model whose observations the network was scored on."""
        return self.network.tangent.model

    def row(self, score: Score) -> dict[str, Any]:
        """Return the score of the network and its terms."""
        notes = list(self.network.notes)
        if self.network.rounding > IMPRECISE:
            notes.append(f"rounding leaves it uncertain by {self.network.rounding:.1e}")
        return {
            "pile": self.network.value,
            "nats": self.network.free_energy,
            "form": self.network.form,
            **{column: getattr(self.network, column) for column in NETWORK_COLUMNS},
            "warnings": "; ".join(notes),
        }

    def incomparable(self, other: Any, name: str, row: Mapping[str, Any], other_row: Mapping[str, Any]) -> str:
        """Return whether the form or the rows differ."""
        mine, theirs = self.network, other.network
        reasons = [] if mine.form == theirs.form else [f"another form than {name!r}: not comparable"]
        if mine.size != theirs.size:
            reasons.append(f"another number of rows than {name!r}: not comparable")
        elif not mine.tangent.same_rows(theirs.tangent):
            reasons.append(f"other rows than {name!r}, or other weights of them: not comparable")
        return "; ".join(reasons)

    def predictor(self, profiled: bool) -> HeldOutPredictor:
        """Return the network with the covariance of its tangent."""
        network = self.network
        return HeldOutPredictor(
            network, network.tangent.model, lambda block, _: network.noise_variance(block), network.notes
        )


@dataclasses.dataclass(frozen=True, eq=False)
class PosteriorCandidate(Predicting):
    """A result of `posterior`, which predicts but has no score."""

    posterior: Posterior

    @property
    def model(self) -> Model:
        """The model of the posterior."""
        return self.posterior.model

    def predictor(self, profiled: bool) -> HeldOutPredictor:
        """Return the posterior."""
        return posterior_predictor(self.posterior, [])


KINDS: dict[type, Callable[[Any], Scored | Predicting]] = {
    Model: ModelCandidate,
    Minimum: MinimumCandidate,
    Hyperposterior: HyperposteriorCandidate,
    Solution: SolutionCandidate,
    Pile: PileCandidate,
    DataFreePile: DataFreeCandidate,
    NetworkPile: NetworkCandidate,
    Posterior: PosteriorCandidate,
}


def as_candidate(value: Any) -> Scored | Predicting | None:
    """Return the class that scores a candidate and predicts with it; None for anything else."""
    if isinstance(value, MixturePosterior):  # of a distribution that is a candidate itself, or else without a noise
        value = value.mixture
    return next((adapter(value) for kind, adapter in KINDS.items() if isinstance(value, kind)), None)


def row(value: Model | Minimum | Hyperposterior, score: Score, hurried: str = "") -> dict[str, Any]:
    """Return the row of a candidate in the table of `compare`.

    Parameters
    ----------
    value
        The candidate.
    score
        How models are scored.
    hurried
        Why the evidence of minima is not integrated but estimated from their curvature; empty if it is.
    """
    candidate = MinimumCandidate(value, hurried) if isinstance(value, Minimum) else as_candidate(value)
    assert isinstance(candidate, Scored)
    return candidate.row(score)


def common_score(score: Score, models: Iterable[Model]) -> Score:
    """Return the score for all of several models; the default scores the data alone if the scored physics differs."""
    if score.given != "auto":
        return score
    scored, every = set(), list(models)
    for model in every:
        given = score.given_blocks(model)
        rest = [block for i, block in enumerate(model.blocks) if i not in given and block.role == "physics"]
        scored.add(tuple((str(block.operator), block.values.tobytes(), block.points.tobytes()) for block in rest))
    alike = len(scored) == 1 or not all(model.data and model.physics for model in every)
    return score if alike else dataclasses.replace(score, given="physics")


def failed_row(text: str, size: float | int = math.nan) -> dict[str, Any]:
    """Return the row of a candidate that could not be scored."""
    empty = dict.fromkeys(EVIDENCE_COLUMNS, math.nan)
    return empty | {"size": size, "warnings": f"failed: {text}"}


def posterior_predictor(posterior: Posterior, notes: Sequence[str]) -> HeldOutPredictor:
    """Return a posterior as a predictor; empty notes are left out."""
    rounding = posterior.system.rounding
    imprecise = f"rounding leaves its PILE uncertain by {rounding:.1e}" if posterior.system.is_imprecise else ""
    model = posterior.model

    def noise(block: Observation, label: str) -> Float[np.ndarray, " n"]:
        name = TEMPERATURES[block.role]
        shared = getattr(model, name)
        temperature = 1.0 if shared is None else float(shared)
        if name not in model.temperature_names and temperature == 1.0:  # the default of a model that was not given one
            raise InputError(
                f"held_out: no noise is known for {label!r}: it has none of its own, and no block of the model uses "
                f"{name}. Give it one: noise= or {name}= in ps.{'observe' if block.role == 'data' else 'impose'}"
            )
        return 0.5 * temperature / block.weights

    return HeldOutPredictor(posterior, model, noise, tuple(filter(None, [*notes, imprecise])))


def _evidence_row(pile: Pile, evidence: IntegratedEvidence, notes: Sequence[str], fitted: int = 0) -> dict[str, Any]:
    warnings = [note for note in notes if note]
    if pile.is_imprecise:
        warnings.append(f"rounding leaves it uncertain by {pile.rounding:.1e}")
    if not USUAL_FIT[0] <= pile.fit <= USUAL_FIT[1]:
        size = "smaller" if pile.fit < 1 else "larger"
        warnings.append(f"fit {pile.fit:.2g}: residuals are {size} than the noise of the model")
    return {
        "pile": pile.value,
        "log_evidence": evidence.log_evidence,
        "error": evidence.error,
        "fit": pile.fit,
        "complexity": pile.complexity,
        "size": pile.size,
        "fitted": fitted,
        "warnings": "; ".join(warnings),
    }


def _observed(blocks: Sequence[Observation]) -> tuple[list[str], list[Any], list[Any]]:
    """Return operators, points and values of blocks; the same observations in other blocks give the same result."""
    names = dict.fromkeys(str(block.operator) for block in blocks)
    return list(names), [p for b in blocks for p in b.points.tolist()], [v for b in blocks for v in b.values.tolist()]
