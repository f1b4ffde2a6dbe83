"""What is scored: which observations, given which others, and at which scale."""

from __future__ import annotations

import dataclasses
from typing import Literal

from ..errors import InputError, nearest, require
from ..model import Model, eta_and_temperatures

Given = Literal["exact", "homogeneous", "constant", "physics", "auto"]


@dataclasses.dataclass(frozen=True)
class Score:
    """Which score of a model is computed.

    Functions that score a model accept a `Score` or one of the names `"joint"`, `"given_homogeneous"`,
    `"given_constant"`, `"given_physics"`, `"profiled"` and `"auto"`.

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
    pilescore.errors.InputError: score: expected 'joint', 'given_homogeneous', 'given_constant', 'given_physics',
    'profiled', 'auto' or a ps.Score; got 'given_phyics'. Did you mean 'given_physics'?
    """

    given: Given = "exact"
    """Which observations are conditioned on; the others are scored, `−2 log p(scored | given)` per scored observation.

    `"exact"`: exact equations and conditions only, which are part of the prior. This is the joint score of the paper,
    whose physics is never exact. `"homogeneous"`: physics whose imposed values are all zero. The density of zero is
    largest for a small operator and a small prior, so it says nothing about the model. `"constant"`: physics whose
    imposed values are all the same. Many copies of one number say as little; values that vary are readings of the
    operator and say as much as data. `"physics"`: all physics; only data are scored. `"auto"`: `"constant"`, or
    `"homogeneous"` if there are no data; a search compares the result with `"physics"`, see `minimize`.
    """
    profiled: bool = False
    """Minimise over the scale η in closed form, with `γ/η` and `ρ/η` fixed: `η̂ = η ỹᵀC⁻¹ỹ/N`. The result's `eta` is
    `η̂`, and its `fit` is 1."""
    formula: Literal["consistent", "printed"] = "consistent"
    """`"printed"` evaluates the formula as the paper prints it, with `Σ = Q + η·diag(γ, ρ/w)` for `C` and `log 2πη` for
    the constant. It reproduces the paper's numbers but is not the evidence of the paper's own model."""

    def __post_init__(self) -> None:
        names = ("exact", "homogeneous", "constant", "physics", "auto")
        require(self.given in names, "given", self.given, f"one of {', '.join(map(repr, names))}")
        require(isinstance(self.profiled, bool), "profiled", self.profiled, "True or False")
        require(self.formula in ("consistent", "printed"), "formula", self.formula, "'consistent' or 'printed'")
        joint = self.given == "exact" and not self.profiled
        require(joint or self.formula == "consistent", "score", self, "no other option with the printed formula")

    def resolved(self, model: Model) -> Score:
        """Return the score that `"auto"` stands for, before a search compares it with another."""
        if self.given != "auto":
            return self
        return dataclasses.replace(self, given="constant" if model.data else "homogeneous")

    def given_blocks(self, model: Model) -> tuple[int, ...]:
        """Return the positions, in `model.blocks`, of the blocks that are conditioned on."""
        given, physics = self.resolved(model).given, range(len(model.data), len(model.blocks))
        if given == "physics":
            return tuple(physics)
        if given == "exact":
            return tuple(i for i in physics if model.is_exact(i))
        return tuple(
            i for i in physics if (model.blocks[i].zero if given == "homogeneous" else model.blocks[i].constant)
        )

    def check(self, model: Model) -> None:
        """Raise an `InputError` if a model cannot be scored this way."""
        if self.given == "physics":
            both = bool(model.data) and bool(model.physics)
            require(both, "score", "given_physics", "'joint' unless the model has both data and physics")
        elif len(self.given_blocks(model)) == len(model.blocks):
            kind = "equations are exact" if self.given == "exact" else "values are constant or zero"
            zero = " Zero satisfies all of it, whatever the kernel." if all(b.zero for b in model.physics) else ""
            raise InputError(
                "score: there is nothing to score. The model has no data, and all of its physics is given: its "
                f"{kind}.{zero} Add data, or compare kernels without data with ps.data_free_pile"
            )
        if model.is_nonlinear:
            require(self.formula == "consistent", "score", self, "the consistent formula for a nonlinear model")
        if self.profiled:
            names = [name for name in model.priors if name in eta_and_temperatures(model)]
            expected = "no priors on eta and temperatures, which it finds in closed form"
            require(not names, "score", f"profiled, with priors on {', '.join(names)}", expected)
        if self.formula == "printed":
            require(not model.priors, "score", "printed", "a model without priors")
            exact = [label for i, label in enumerate(model.labels) if model.is_exact(i)]
            require(not exact, "score", "printed", f"no exact blocks, but {', '.join(exact)}: give them rho=")

    def described(self, model: Model) -> str:
        """Return what is scored, and given what, in words."""
        given = self.given_blocks(model)
        scale = ", at the best scale" if self.profiled else ""
        physics = len(model.physics)
        if not given:
            return ("data and physics together" if model.data and physics else "all observations") + scale
        if len(given) == physics:
            return "the data given the physics" + scale
        others, rest = {
            "exact": ("the physics that is not exact", "what is exact"),
            "homogeneous": ("the imposed values that are not zero", "those that are zero"),
            "constant": ("the imposed values that vary", "those that are constant"),
        }[self.resolved(model).given]
        scored = f"the data and {others}" if model.data else others
        return f"{scored}, given {rest}{scale}"


NAMED_SCORES = {
    "joint": Score(),
    "given_homogeneous": Score("homogeneous"),
    "given_constant": Score("constant"),
    "given_physics": Score("physics"),
    "profiled": Score(profiled=True),
    "auto": Score("auto"),
}


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
