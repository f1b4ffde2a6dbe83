"""The log evidence as a JAX function of hyperparameters, for samplers and optimisers written in JAX."""

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..covariance import Indices, entry_tangents, split, symmetric
from ..equations import Operator
from ..errors import InputError, NotPositiveDefiniteError, NotSolvedError, require, require_float64
from ..model import Model, Observation, Path, find, follow, is_positive, is_temperature, named_paths
from ..solvers import Auto, Dense, traced_tolerances
from .evidence import LOG_TWO_PI, check_exact, systems_of
from .score import Score, as_score

COMPILED_UP_TO = 512
"""The largest number of points of a model whose evidence is compiled as a whole; larger ones call the solvers back.

Above it LAPACK's inverse of the covariance, which XLA does not have, saves more time than a callback costs."""

Leaves: TypeAlias = Sequence[Any]
"""The values of the hyperparameters that move, in the order of their names; they may be traced."""


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
    is_dense = isinstance(model.solver, Dense | Auto)
    is_small = sum(len(block.points) for block in model.blocks) <= COMPILED_UP_TO
    is_linear = all(isinstance(block.operator, Operator) for block in model.blocks)
    kind = CompiledEvidence if is_dense and is_small and is_linear else CalledEvidence
    density = _differentiable(targets, kind(targets, chosen))

    def log_evidence(values: Mapping[str, Any]) -> Float[Array, ""]:
        return density(targets.checked(values))

    return log_evidence


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """One hyperparameter that moves, or one element of it."""

    name: str
    base: str
    index: tuple[int, ...]
    paths: list[Path]
    shape: tuple[int, ...]


class Targets:
    """The hyperparameters of a model that move: checks of their values, and the model with traced ones."""

    def __init__(self, model: Model, names: str | Iterable[str]) -> None:
        self.model = model
        known = named_paths(model)
        listed = [names] if isinstance(names, str) else names
        require(isinstance(listed, Iterable), "names", names, "the names of hyperparameters")
        self.all: list[Target] = []
        for name in listed:
            require(isinstance(name, str), "names", name, "the names of hyperparameters")
            base, index = find(model, known, name)
            for other in self.all:
                clash = base == other.base and (index == other.index or not (index and other.index))
                require(not clash, "names", f"{other.name!r} and {name!r}", "each hyperparameter once")
            shape = () if index else np.shape(follow(model, known[base][0]))
            self.all.append(Target(name, base, index, known[base], shape))
        require(len(self.all) > 0, "names", [], "at least one hyperparameter")
        found = [(prior, *find(model, known, name)) for name, prior in model.priors.items()]
        self.priors = [(prior, known[base][0], index) for prior, base, index in found]

    def checked(self, values: Mapping[str, Any]) -> tuple[Float[Array, "..."], ...]:
        """Return the values in order; raise an `InputError` for other names, shapes and types."""
        require_float64()
        names = [target.name for target in self.all]
        require(isinstance(values, Mapping), "values", values, f"a dictionary with the names {', '.join(names)}")
        for name in names:
            require(name in values, "values", sorted(map(str, values)), f"a value of {name!r}")
        for name in values:
            require(name in names, "values", name, f"only the names {', '.join(names)}")
        leaves = []
        for target in self.all:
            value, argument = values[target.name], f"values[{target.name!r}]"
            try:
                array = jnp.asarray(value)
            except (TypeError, ValueError):
                require(False, argument, value, "a real number or an array of them")
            real = jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)
            require(bool(real), argument, f"the type {array.dtype}", "a real number or an array of them")
            require(array.shape == target.shape, argument, f"the shape {array.shape}", f"the shape {target.shape}")
            leaves.append(array.astype(jnp.float64))
        return tuple(leaves)

    def changed(self, leaves: Leaves) -> Model:
        """Return the model with other values, unchecked; they may be traced."""
        whole: dict[str, Any] = {}
        for target, leaf in zip(self.all, leaves, strict=True):
            old = whole.get(target.base, follow(self.model, target.paths[0]))
            whole[target.base] = jnp.asarray(old).at[target.index].set(leaf) if target.index else leaf
        places = {target.base: target.paths for target in self.all}
        paths = [path for base in whole for path in places[base]]
        new = [whole[base] for base in whole for _ in places[base]]
        return eqx.tree_at(lambda model: [follow(model, path) for path in paths], self.model, new)

    def accepted(self, leaves: Leaves) -> Any:
        """Return whether the hyperparameters can take these values, as a traced truth value."""
        good, converted = jnp.asarray(True), {}
        for target, leaf in zip(self.all, leaves, strict=True):
            good &= jnp.isfinite(leaf).all()
            if is_positive(self.model, target.paths[0]):
                good &= (leaf > 0).all()
            elif self._has_converter(target):
                converted[target.name] = leaf
        if converted:
            # A converter checks values in Python. Those of positive numbers, by far the most, are done above.
            kind = jax.ShapeDtypeStruct((), bool)
            good &= jax.pure_callback(self._is_accepted, kind, converted, vmap_method="sequential")
        changed = self.changed(leaves)
        for prior, path, index in self.priors:
            if prior.logarithmic:
                good &= (follow(changed, path)[index] > 0).all()
        return good

    def log_prior(self, changed: Model) -> Any:
        """Return the log density of the model's priors."""
        total: Any = 0.0
        for prior, path, index in self.priors:
            value = jnp.ravel(follow(changed, path)[index])
            away = (jnp.log(value) if prior.logarithmic else value) - prior.centre(value.size)
            precision = prior.precision(value.size)
            constant = 0.5 * float(np.linalg.slogdet(precision)[1]) - 0.5 * value.size * LOG_TWO_PI
            total += constant - 0.5 * away @ precision @ away
        return total

    def _is_accepted(self, values: Mapping[str, Any]) -> np.ndarray:
        try:
            self.model.replace({name: np.asarray(value) for name, value in values.items()})
        except InputError:
            return np.asarray(False)
        return np.asarray(True)

    def _has_converter(self, target: Target) -> bool:
        owner = follow(self.model, target.paths[0][:-1])
        fields = dataclasses.fields(owner) if dataclasses.is_dataclass(owner) else ()
        last = getattr(target.paths[0][-1], "name", None)
        return any(field.name == last and field.metadata.get("converter") is not None for field in fields)


class TracedEvidence(abc.ABC):
    """The log evidence and its gradient as JAX functions of the hyperparameters that move."""

    @abc.abstractmethod
    def value(self, leaves: Leaves) -> Float[Array, ""]:
        """Return the log evidence."""

    @abc.abstractmethod
    def value_and_slopes(self, leaves: Leaves) -> tuple[Float[Array, ""], list[Float[Array, "..."]]]:
        """Return the log evidence and its derivatives in each hyperparameter."""


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


class CompiledEvidence(TracedEvidence):
    """The evidence of a small linear model, assembled and factored inside one compiled function.

    The given blocks come first, so that the trailing rows of the Cholesky factor are those of the scored observations
    given the others.
    """

    def __init__(self, targets: Targets, score: Score) -> None:
        self.targets = targets
        self.model = model = targets.model
        given = score.given_blocks(model)
        self.order = sorted(range(len(model.blocks)), key=lambda i: (i not in given, model.blocks[i].indices))
        self.first = sum(model.blocks[i].size for i in given)
        self.size = model.size
        self.values = np.concatenate([model.blocks[i].values for i in self.order])
        self.tiles = _tiles(model, self.order)
        self.tolerances = traced_tolerances(model)
        moving = [target.paths[0] for target in targets.all]
        self.inside = [i for i, path in enumerate(moving) if not is_temperature(path)]
        """The positions of the hyperparameters of the kernel and of operators."""

    def value(self, leaves: Leaves) -> Float[Array, ""]:
        """Return the log evidence."""
        model = self.targets.changed(leaves)
        factor = self._factor(model, self._prior(model), self._noise(leaves))
        return self._evidence(factor, self._half(factor)) + self.targets.log_prior(model)

    def value_and_slopes(self, leaves: Leaves) -> tuple[Float[Array, ""], list[Float[Array, "..."]]]:
        """Return the log evidence and its derivatives, `−½ tr[(WᵀW − ααᵀ + ββᵀ) ∂C]`.

        `W` are the scored rows of `L⁻¹`, `α = C⁻¹ỹ`, and `β` is `C⁻¹ỹ` of the given rows alone.
        """
        model = self.targets.changed(leaves)
        noise, pull = jax.vjp(self._noise, list(leaves))
        factor = self._factor(model, self._prior(model), noise)
        half = self._half(factor)
        first, scored = self.first, self.size - self.first
        ends = jnp.eye(self.size, scored, k=-first)
        rows = _solved(factor, ends, transpose=True)
        before = jnp.zeros(self.size)
        if first:
            before = before.at[:first].set(_solved(factor[:first, :first], half[:first], transpose=True))
        alpha = before + rows @ half[first:]
        weights = rows @ rows.T - alpha[:, None] * alpha + before[:, None] * before
        diagonal = jnp.diagonal(weights)
        (by_noise,) = pull(diagonal)
        slopes = [jnp.asarray(slope) for slope in by_noise]
        # η ∂C/∂η = ηQ = C − S, and the contraction with C is known.
        by_eta = (scored - half[first:] @ half[first:] - noise @ diagonal) / model.eta
        weights = self._mirrored(jnp.asarray(model.eta) * weights)
        tangents = entry_tangents(lambda new: self._prior(self.targets.changed(new)), list(leaves), self.inside)
        contracted = iter([jnp.vdot(weights, tangent) for tangent in tangents])
        for i, target in enumerate(self.targets.all):
            if i in self.inside:
                entries = [next(contracted) for _ in range(math.prod(target.shape))]
                slopes[i] += jnp.reshape(jnp.stack(entries), target.shape)
            elif target.base == "eta":
                slopes[i] += by_eta
        by_prior = jax.grad(lambda new: jnp.asarray(self.targets.log_prior(self.targets.changed(new))))(list(leaves))
        value = self._evidence(factor, half) + self.targets.log_prior(model)
        return value, [-0.5 * slope + other for slope, other in zip(slopes, by_prior, strict=True)]

    def _prior(self, model: Model) -> Float[Array, "N N"]:
        """Return the prior covariance `Q` of the observations; above its diagonal tiles it is zero."""
        numbers, form = split(model.kernel)
        parts = []
        for tile in self.tiles:
            tables = [jnp.asarray(model.blocks[i].coefficients) for i in tile.blocks]
            rows = [jnp.concatenate([table[group] for table in tables]) for group in tile.first]
            parts.append((jnp.asarray(tile.points), jnp.stack(rows), tile.matrix))
        shapes = tuple((tile.size, tile.groups) for tile in self.tiles)
        return symmetric((form, shapes), numbers, 1.0, parts)

    def _mirrored(self, weights: Float[Array, "N N"]) -> Float[Array, "N N"]:
        """Return weights whose sum with entries of `_prior` is that of symmetric weights with all of `Q`."""
        sizes = [tile.size for tile in self.tiles]
        number = np.repeat(np.arange(len(sizes)), sizes)
        above, below = number[:, None] < number, number[:, None] > number
        return jnp.where(above, 0.0, jnp.where(below, 2.0 * weights, weights))

    def _noise(self, leaves: Leaves) -> Float[Array, " N"]:
        """Return the noise variances."""
        model = self.targets.changed(leaves)
        deviations = self.tolerances(model)
        parts: list[Any] = []
        for i in self.order:
            block = model.blocks[i]
            if i in deviations:
                parts.append(deviations[i] ** 2)
                continue
            shared = model.gamma if block.role == "data" else model.rho
            temperature: Any = shared if block.temperature is None else block.temperature
            parts.append(temperature * (0.5 / block.weights))
        return jnp.concatenate(parts)

    def _factor(self, model: Model, prior: Array, noise: Array) -> Float[Array, "N N"]:
        """Return the Cholesky factor of `C = ηRQRᵀ + S`; NaN if it is not positive definite."""
        return _cholesky(jnp.asarray(model.eta) * prior + jnp.diag(noise))

    def _half(self, factor: Array) -> Float[Array, " N"]:
        """Return `L⁻¹ỹ`."""
        return _solved(factor, jnp.asarray(self.values))

    def _evidence(self, factor: Array, half: Array) -> Float[Array, ""]:
        scored = half[self.first :]
        logdet = 2.0 * jnp.log(jnp.diagonal(factor)[self.first :]).sum()
        return -0.5 * (scored @ scored + logdet + len(scored) * LOG_TWO_PI)


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


@jax.custom_jvp
def _cholesky(lower: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Return the Cholesky factor of a symmetric matrix, given by its lower triangle; NaN if it has none."""
    return jax.lax.linalg.cholesky(lower, symmetrize_input=False)


@_cholesky.defjvp
def _cholesky_tangent(primals: Any, tangents: Any) -> Any:
    # JAX's rule needs both triangles, which are filled only here because values and gradients do not need the rule.
    whole = [jnp.tril(each) + jnp.tril(each, -1).T for each in (*primals, *tangents)]
    return jax.jvp(functools.partial(jax.lax.linalg.cholesky, symmetrize_input=False), whole[:1], whole[1:])


def _solved(factor: Float[Array, "n n"], right: Float[Array, "n ..."], transpose: bool = False) -> Array:
    """Return `L⁻¹B` or `L⁻ᵀB`."""
    columns = right if right.ndim == 2 else right[:, None]
    solution = jax.lax.linalg.triangular_solve(factor, columns, left_side=True, lower=True, transpose_a=transpose)
    return solution.reshape(right.shape)


@dataclasses.dataclass(frozen=True, eq=False)
class BlockTile:
    """Blocks that observe the same derivatives: one part of the rows of a compiled covariance."""

    blocks: list[int]
    """The positions of the blocks in the model."""
    points: Float[np.ndarray, "d q"]
    matrix: Float[np.ndarray, "n q"] | None
    """The matrix that maps values at the points to observed values; None if it is the identity."""
    groups: Indices
    """The multi-indices, grouped: members of a group have the same coefficient at every point."""
    first: list[int]
    """The position of the first member of each group among the coefficients of a block."""

    @property
    def size(self) -> int:
        """The number of rows."""
        return self.points.shape[1] if self.matrix is None else len(self.matrix)


def _tiles(model: Model, order: Sequence[int]) -> list[BlockTile]:
    """Return the tiles of the blocks of a model in an order. The fewer tiles, the faster the compilation."""
    tiles = []
    # A functional has a tile of its own, as its matrix would otherwise mix the points of other blocks.
    keys = {i: (model.blocks[i].indices, i if model.blocks[i].is_functional else -1) for i in order}
    for (indices, _), members in itertools.groupby(order, keys.__getitem__):
        numbers = list(members)
        blocks = [model.blocks[i] for i in numbers]
        groups: dict[Any, list[int]] = {}
        for k in range(len(indices)):
            groups.setdefault(tuple(_coefficient(block, k) for block in blocks), []).append(k)
        points = np.concatenate([block.points for block in blocks]).T
        named = tuple(tuple(indices[k] for k in group) for group in groups.values())
        tiles.append(BlockTile(numbers, points, blocks[0].matrix, named, [group[0] for group in groups.values()]))
    return tiles


def _coefficient(block: Observation, number: int) -> Any:
    """Return an object that is equal for equal coefficients of a block."""
    if block.table is not None:
        return block.table[number].tobytes()
    assert isinstance(block.operator, Operator)
    return block.operator.terms[number][1]
