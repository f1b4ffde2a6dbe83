"""The log evidence as a JAX function of hyperparameters, for samplers and optimisers written in JAX."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..errors import InputError, NotPositiveDefiniteError, NotSolvedError, require, require_float64
from ..model import Model
from .compiled_evidence import COMPILED_UP_TO, CompiledEvidence, can_be_compiled
from .evidence import check_exact, systems_of
from .score import Score, as_score
from .traced import Leaves, Targets, TracedEvidence


def log_evidence_function(
    model: Model, names: str | Iterable[str], score: Score | str = "joint"
) -> Callable[[Mapping[str, Any]], Float[Array, ""]]:
    """Return the log evidence as a JAX function of some hyperparameters.

    The function takes a dictionary of values by name and returns `ps.pile(model.replace(values), score).log_evidence`,
    priors of the model included. It works under `jax.jit`, `grad`, `value_and_grad` and `vmap`, so NumPyro, BlackJAX,
    optax and others can use it. Where the covariance is not positive definite to working precision, a nonlinear model
    is not solved, or a hyperparameter has a value that it cannot take, the function and its gradient are NaN, which
    samplers reject. A solver that misses its tolerance raises an error. There are no warnings: check the result with
    `ps.pile`.

    Linear models of up to 512 points are compiled as a whole, and have second derivatives. For the others the function
    calls `ps.pile` back: `vmap` evaluates one point after the other, and only first derivatives exist.

    Parameters
    ----------
    model
        The model. Hyperparameters that are not named keep its values.
    names
        The hyperparameters, as in `model.replace`: `"kernel.bandwidth"`, or `"kernel.bandwidth[0]"` for one element.
    score
        The score, as in `pile`, but not a profiled one.

    Examples
    --------
    >>> import jax, pilescore as ps
    >>> data = ps.observe(ps.identity, values=[0.0, 1.0, 0.0], at=[0.0, 0.5, 1.0])
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.5), data=data, gamma=0.1)
    >>> log_evidence = ps.log_evidence_function(model, ["kernel.bandwidth", "gamma"])
    >>> value, slopes = jax.value_and_grad(log_evidence)({"kernel.bandwidth": 0.3, "gamma": 0.2})
    >>> round(float(value), 6), round(ps.pile(model.replace({"kernel.bandwidth": 0.3, "gamma": 0.2})).log_evidence, 6)
    (-3.35216, -3.35216)
    >>> {name: round(float(slope), 3) for name, slope in slopes.items()}
    {'gamma': -0.451, 'kernel.bandwidth': -0.013}

    A prior and a transformation make it the density of a sampler:

    >>> def density(z):  # log bandwidth ~ N(0, 1), log γ ~ N(−2, 1)
    ...     values = {"kernel.bandwidth": jax.numpy.exp(z[0]), "gamma": jax.numpy.exp(z[1])}
    ...     return log_evidence(values) - 0.5 * z[0] ** 2 - 0.5 * (z[1] + 2) ** 2
    >>> jax.jit(jax.vmap(jax.grad(density)))(jax.numpy.zeros((5, 2))).shape
    (5, 2)
    """
    require_float64()
    require(isinstance(model, Model), "model", model, "a ps.Model")
    chosen = as_score(score)
    chosen.check(model)
    expected = "the consistent formula at the scale of the model; name 'eta' to move the scale"
    require(chosen.formula == "consistent" and not chosen.profiled, "score", score, expected)
    targets = Targets(model, names)
    if not model.is_nonlinear:
        check_exact(model, lambda trial: trial)
    kind = CompiledEvidence if can_be_compiled(model) else CalledEvidence
    density = _differentiable(targets, kind(targets, chosen))

    def log_evidence(values: Mapping[str, Any]) -> Float[Array, ""]:
        return density(targets.checked(values))

    return log_evidence


def _differentiable(targets: Targets, evidence: TracedEvidence) -> Callable[[Leaves], Float[Array, ""]]:
    """Return a compiled function with its own derivative: NaN for values that hyperparameters cannot take."""

    @jax.custom_jvp
    def density(leaves: Leaves) -> Float[Array, ""]:
        value = evidence.value(leaves)
        return jnp.where(targets.accepted(leaves) & jnp.isfinite(value), value, jnp.nan)

    # A rule for tangents, not for cotangents: it serves both modes, and the derivative has a derivative again.
    @density.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (leaves,), (dots,) = primals, tangents
        value, slopes = evidence.value_and_slopes(leaves)
        good = targets.accepted(leaves) & jnp.isfinite(value)
        slope = sum(jnp.vdot(jnp.where(good, s, jnp.nan), dot) for s, dot in zip(slopes, dots, strict=True))
        return jnp.where(good, value, jnp.nan), slope

    return jax.jit(density)


class CalledEvidence(TracedEvidence):
    """The evidence of any model, by a callback to its solver."""

    def __init__(self, targets: Targets, score: Score) -> None:
        self.targets = targets
        self.score = score
        sizes = [math.prod(target.shape) for target in targets.all]
        self.cuts = np.cumsum([0, *sizes])
        self._callback = jax.custom_jvp(self._called)
        self._callback.defjvp(_no_second_derivatives)

    def value(self, leaves: Leaves) -> Float[Array, ""]:
        """Return the log evidence."""
        kind = jax.ShapeDtypeStruct((), jnp.float64)
        return jax.pure_callback(self._value, kind, tuple(leaves), vmap_method="sequential")

    def value_and_slopes(self, leaves: Leaves) -> tuple[Float[Array, ""], list[Float[Array, "..."]]]:
        """Return the log evidence and its derivatives."""
        found = self._callback(tuple(leaves))
        parts = [found[1 + start : 1 + stop] for start, stop in zip(self.cuts, self.cuts[1:], strict=False)]
        return found[0], [part.reshape(t.shape) for part, t in zip(parts, self.targets.all, strict=True)]

    def _called(self, leaves: Leaves) -> Float[Array, " p"]:
        kind = jax.ShapeDtypeStruct((1 + int(self.cuts[-1]),), jnp.float64)
        return jax.pure_callback(self._value_and_slopes, kind, leaves, vmap_method="sequential")

    def _value(self, leaves: Any) -> Float[np.ndarray, ""]:
        try:
            systems = systems_of(self._model(leaves), self.score, explain=False)
            return np.asarray(systems.pile(self.score).log_evidence)
        except (ImpossibleError, NotPositiveDefiniteError, NotSolvedError):
            return np.asarray(np.nan)

    def _value_and_slopes(self, leaves: Any) -> Float[np.ndarray, " p"]:
        bases = list(dict.fromkeys(target.base for target in self.targets.all))
        try:
            systems = systems_of(self._model(leaves), self.score, explain=False)
            pile, by_name = systems.pile_and_gradient(bases, self.score)
        except (ImpossibleError, NotPositiveDefiniteError, NotSolvedError):
            return np.full(1 + int(self.cuts[-1]), np.nan)
        slopes = [np.ravel(np.asarray(by_name[target.base])[target.index]) for target in self.targets.all]
        return np.concatenate([[pile.log_evidence], -0.5 * pile.size * np.concatenate(slopes)])

    def _model(self, leaves: Any) -> Model:
        values = {target.name: np.asarray(leaf) for target, leaf in zip(self.targets.all, leaves, strict=True)}
        try:
            return self.targets.model.replace(values)
        except InputError as error:
            raise ImpossibleError from error


class ImpossibleError(Exception):
    """A hyperparameter cannot take a value."""


def _no_second_derivatives(primals: Any, tangents: Any) -> Any:
    raise NotImplementedError(
        "the log evidence of this model has no second derivatives in JAX: it is nonlinear, has more than "
        f"{COMPILED_UP_TO} points, or a solver that does not form the covariance. Differences of gradients approximate "
        "them, and ps.minimize computes the curvature at a minimum."
    )
