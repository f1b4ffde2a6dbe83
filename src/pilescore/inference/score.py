"""What is scored: the evidence of data and physics together, of the data given the physics, or at the best scale."""

from __future__ import annotations

import dataclasses
from typing import Literal

from ..errors import InputError, nearest, require
from ..model import Model


@dataclasses.dataclass(frozen=True)
class Score:
    """Which score of a model is computed.

    Functions that score a model accept a `Score` or one of the names `"joint"`, `"given_physics"` and `"profiled"`.

    Examples
    --------
    >>> import pilescore as ps
    >>> data = ps.observe(ps.identity, values=[0.0, 1.0, 0.0], at=[0.0, 0.5, 1.0])
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.5), data=data, gamma=0.1)
    >>> ps.pile(model, score="profiled").value == ps.pile(model, ps.Score(profiled=True)).value
    True
    >>> ps.pile(model, score="given_phyics")
    Traceback (most recent call last):
    ...
    pilescore.errors.InputError: score: expected 'joint', 'given_physics', 'profiled' or a ps.Score; got 'given_phyics'.
    Did you mean 'given_physics'?
    """

    given_physics: bool = False
    """Score the data given the physics, `−2 log p(y | r)/n`, instead of both together. Use it to choose an equation or
    its coefficients: the joint score also rewards an operator for being small."""
    profiled: bool = False
    """Minimise over the scale η in closed form, with `γ/η` and `ρ/η` fixed: `η̂ = η ỹᵀC⁻¹ỹ/N`. The result's `eta` is
    `η̂`, and its `fit` is 1."""
    formula: Literal["consistent", "printed"] = "consistent"
    """`"printed"` evaluates the formula as the paper prints it, with `Σ = Q + η·diag(γ, ρ/w)` for `C` and `log 2πη` for
    the constant. It reproduces the paper's numbers but is not the evidence of the paper's own model."""

    def __post_init__(self) -> None:
        for name in ("given_physics", "profiled"):
            require(isinstance(getattr(self, name), bool), name, getattr(self, name), "True or False")
        require(self.formula in ("consistent", "printed"), "formula", self.formula, "'consistent' or 'printed'")
        joint = not (self.given_physics or self.profiled)
        require(joint or self.formula == "consistent", "score", self, "no other option with the printed formula")

    def check(self, model: Model) -> None:
        """Raise an `InputError` if a model cannot be scored this way."""
        if self.given_physics:
            both = bool(model.data) and bool(model.physics)
            require(both, "score", "given_physics", "'joint' unless the model has both data and physics")
        if model.is_nonlinear:
            require(self.formula == "consistent", "score", self, "the consistent formula for a nonlinear model")


NAMED_SCORES = {"joint": Score(), "given_physics": Score(given_physics=True), "profiled": Score(profiled=True)}


def as_score(score: Score | str) -> Score:
    """Return a `Score` from an object or a name."""
    if isinstance(score, Score):
        return score
    if isinstance(score, str) and score in NAMED_SCORES:
        return NAMED_SCORES[score]
    near = nearest(score, list(NAMED_SCORES), 0.5) if isinstance(score, str) else ""
    names = ", ".join(map(repr, NAMED_SCORES))
    hint = f". Did you mean {near!r}?" if near else ""
    raise InputError(f"score: expected {names} or a ps.Score; got {score!r}{hint}")
