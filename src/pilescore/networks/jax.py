"""PILE of a network that is a JAX function, including Equinox and Flax modules."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ..equations import MultiIndex, partial_derivative
from ..errors import InputError, PilescoreError, as_array, call, check_coordinates, require, require_float64
from ..model import Model
from .evidence import NetworkPile, score_network
from .interface import DEFAULT_PRIOR, NetworkPrior, affine_arrays
from .laplace import Form
from .scoring_points import PointKind, ScoringPoints

SIGNATURE = "a function of two arguments, the parameters and one point"
PROBES_PER_BLOCK = 8
"""The number of points of each block at which the last layer, and changes of the function, are detected."""


def network_pile(
    apply: Callable[[Any, Array], Any],
    params: Any,
    model: Model,
    *,
    form: Form = "laplace",
    parameters: Any = "all",
    prior: NetworkPrior = DEFAULT_PRIOR,
    points: PointKind | ScoringPoints = "fresh",
    progress: bool | None = None,
) -> NetworkPile:
    """Return the log evidence of a trained network: how well it explains data and physics, given its parameters.

    With `J` the Jacobian of the observed quantities in the parameters θ, a prior `θ ~ N(θ_c, ηΛ)`, noise variances
    `S = σ²D`, `C = ηJΛJᵀ + S`, observed values `t` and residuals `e = t − F(θ̂)`, N times the value is

    - laplace: `‖e‖²_{S⁻¹} + ‖θ̂ − θ_c‖²_{(ηΛ)⁻¹} + log det 2πC`;
    - linearised: `t̃ᵀC⁻¹t̃ + log det 2πC` with `t̃ = e + J(θ̂ − θ_c)`;
    - tangent: `tᵀC⁻¹t + log det 2πC`, which scores the architecture at θ̂ and not the trained solution.

    Parameters
    ----------
    apply
        A JAX function `apply(params, point)` that returns one number. Use the same function for several networks: it is
        compiled once.
    params
        The trained parameters, as any pytree, for example an Equinox module. Its arrays of floats are the parameters;
        Python numbers are not.
    model
        The data and physics to score the network on. Its kernel is only used to scale the rows.
    form
        `"laplace"`, `"linearised"` or `"tangent"`, as above.
    parameters
        The parameters that are uncertain; the others are fixed. `"all"`, `"last layer"` (those in which the output is
        affine), or a function from `params` to some of its leaves or branches.
    prior
        The prior of the parameters and the scale of the noise. By default the centre is zero, all prior variances are
        equal, and η and σ² take the values with the lowest score.
    points
        `"fresh"`: physics is scored at as many new random points of its regions. `"held out"`: at the model's own
        points, which the network has not seen. `"training"`: at the model's own points, with a warning. Or a
        `ScoringPoints`, which also sets the seed, the scaling of the rows and the memory limit.
    progress
        Whether to show a progress bar; by default only on a terminal.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> model = ps.Model(
    ...     kernel=ps.RBF(bandwidth=1.0),
    ...     physics=[
    ...         ps.impose(dx + ps.identity, 0.0, on=line.interior(ps.GaussLegendre(20))),
    ...         ps.dirichlet(1.0, on=line.face(x=0)(ps.GaussLegendre(1))),
    ...     ],
    ... )
    >>> def apply(params, p):
    ...     return params["a"] @ jnp.tanh(params["w"] * p[0] + params["b"])
    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> params = {name: jax.random.normal(key, (8,)) for name, key in zip("abw", keys)}
    >>> found = ps.network_pile(apply, params, model)
    >>> found.size, found.parameters, found.misfit > 0.01  # it has not been trained
    (21, 24, True)
    >>> found.std([0.5], operator=dx).shape
    (1,)
    """

    def read() -> JaxNetwork:
        return JaxNetwork(apply, params, parameters, prior, [block.points for block in model.blocks])

    return score_network(read, model, form, prior, points, progress)


class JaxNetwork:
    """A JAX function with parameters, some of which are uncertain; see `Network`."""

    def __init__(
        self,
        apply: Callable[[Any, Array], Any],
        params: Any,
        parameters: Any,
        prior: NetworkPrior,
        points: Sequence[np.ndarray],
    ) -> None:
        require_float64()
        require(callable(apply), "apply", apply, SIGNATURE)
        arrays, self.rest = eqx.partition(params, eqx.is_inexact_array)
        self.tree: Any
        self.whole: Any = jax.tree.structure(params)
        self.places = [i for i, leaf in enumerate(jax.tree.leaves(params)) if eqx.is_inexact_array(leaf)]
        paths, self.tree = jax.tree_util.tree_flatten_with_path(arrays)
        expected = "a pytree with at least one array of floats (Python numbers are not parameters)"
        require(len(paths) > 0, "params", params, expected)
        self.names = [jax.tree_util.keystr(path) for path, _ in paths]
        self.leaves = [jnp.asarray(_checked(leaf, name)) for name, (_, leaf) in zip(self.names, paths, strict=True)]
        # filter_jit treats a function as static, which needs a hash; a partial is hashed by its identity.
        self.apply = apply if isinstance(apply, Hashable) else functools.partial(apply)
        for leaf in jax.tree.leaves(self.rest):
            static = isinstance(leaf, Hashable) or eqx.is_array(leaf)
            require(static, "params", leaf, "a pytree of arrays and hashable objects")
        self.notes = _promoted([leaf for _, leaf in paths]) + self._check_output(points[0][0])
        # Probe every block: a network may change only away from the points of the first.
        rng = np.random.default_rng(0)
        probes = jnp.asarray(np.concatenate([rng.permutation(block)[:PROBES_PER_BLOCK] for block in points]))
        self._recompile_if_changed(probes)
        self.chosen = tuple(self._chosen(parameters, probes))
        self.size = sum(self.leaves[i].size for i in self.chosen)
        centres = self._centres(prior.centre)
        self.displacement = _flat([self.leaves[i] - centres[i] for i in self.chosen])
        self.spread = _flat(self._scales(prior.scales))

    @property
    def arrays(self) -> tuple[tuple[str, int], ...]:
        """The names and sizes of the uncertain parameter arrays."""
        return tuple((self._labels[i], self.leaves[i].size) for i in self.chosen)

    @property
    def _labels(self) -> list[str]:
        return [f"params{name}" for name in self.names]

    def making(self, order: int) -> int:
        """Return the peak memory while rows are computed, as a multiple of theirs: the same for every order."""
        return 3

    def derivatives(
        self, points: Float[np.ndarray, "n d"], indices: tuple[MultiIndex, ...]
    ) -> Float[np.ndarray, "indices n"]:
        """Return `∂^α f` at points."""
        with _jax_errors():
            return np.asarray(_derivatives(self.apply, self.tree, self.rest, indices, self.leaves, jnp.asarray(points)))

    def jacobian(
        self, points: Float[np.ndarray, "n d"], indices: tuple[MultiIndex, ...], table: Float[np.ndarray, "indices n"]
    ) -> Float[np.ndarray, "n P"]:
        """Return the gradients in the parameters of `Σ_α c_α ∂^α f` at points, where `table` holds the `c_α`."""
        network = self.apply, self.tree, self.rest, indices, self.chosen, self.leaves
        with _jax_errors():
            return np.asarray(_jacobian(*network, jnp.asarray(points), jnp.asarray(table)))

    def _check_output(self, point: Float[np.ndarray, " d"]) -> tuple[str, ...]:
        """Raise an `InputError` unless the network returns one real number; return a note on low precision."""
        whole = eqx.combine(jax.tree.unflatten(self.tree, self.leaves), self.rest)
        signature = f"{SIGNATURE} of shape ({len(point)},)"
        check_coordinates(lambda p: self.apply(whole, p), point, "apply")

        def evaluate(arguments: tuple[Any, Array]) -> Any:
            return eqx.filter_eval_shape(lambda w, p: self.apply(w, p), *arguments)

        try:
            out = call(evaluate, (whole, jnp.asarray(point)), "apply", signature)
        except InputError:
            raise
        except Exception as error:
            kind = type(error).__name__
            raise InputError(f"apply: expected {signature}; calling it gave {kind}: {error}") from error
        expected = "one real number at each point"
        leaves = jax.tree.leaves(out)
        require(len(leaves) == 1 and hasattr(out, "shape"), "apply", out, expected)
        require(math.prod(out.shape) == 1, "apply", f"an output of shape {out.shape}", expected)
        require(jnp.issubdtype(out.dtype, jnp.floating), "apply", f"an output of dtype {out.dtype}", expected)
        if out.dtype != np.float64:
            return (f"the network computes in {out.dtype}, with fewer digits than its float64 parameters",)
        return ()

    def _values(self, leaves: list[Array], points: Array) -> Float[np.ndarray, " n"]:
        """Return the compiled network at points."""
        zero = ((0,) * points.shape[1],)
        with _jax_errors():
            return np.asarray(_derivatives(self.apply, self.tree, self.rest, zero, leaves, points))[0]

    def _recompile_if_changed(self, at: Float[Array, "n d"]) -> None:
        """Compile `apply` again if its values have changed since the last call.

        JAX caches compiled functions by identity, but a bound method or closure may read an object that has changed.
        """

        def same(one: np.ndarray, other: np.ndarray) -> bool:
            size = np.abs(one[np.isfinite(one)]).max(initial=0.0)
            return np.allclose(one, other, rtol=0.0, atol=1e-9 * size, equal_nan=True)

        def now() -> np.ndarray:
            with _jax_errors():
                return np.asarray(jax.vmap(_function(self.apply, self.tree, self.rest, self.leaves))(at))

        first = now()
        if same(first, self._values(self.leaves, at)):
            return
        if not same(first, now()):
            raise InputError("apply: two calls at the same points give different numbers: expected a pure function")
        self.apply = functools.partial(self.apply)  # a new identity, hence a new entry in JAX's cache

    def _chosen(self, parameters: Any, at: Float[Array, "n d"]) -> Sequence[int]:
        if isinstance(parameters, str) and parameters == "all":
            return range(len(self.leaves))
        if isinstance(parameters, str) and parameters == "last layer":

            def evaluate(arrays: list[np.ndarray]) -> np.ndarray:
                return self._values([jnp.asarray(array) for array in arrays], at)

            return affine_arrays(evaluate, [np.asarray(leaf) for leaf in self.leaves], self._labels)
        expected = "'all', 'last layer', or a function from params to some of its leaves"
        require(callable(parameters), "parameters", parameters, expected)
        numbered = eqx.combine(jax.tree.unflatten(self.tree, map(_Placeholder, range(len(self.leaves)))), self.rest)
        try:
            branches = parameters(numbered)
        except Exception as error:
            what = f"calling it gave {type(error).__name__}: {error}"
            raise InputError(f"parameters: expected {expected}; {what}") from error
        chosen = sorted({leaf.number for leaf in jax.tree.leaves(branches) if isinstance(leaf, _Placeholder)})
        none_of = f"{expected}; it selected none of {', '.join(self._labels)}"
        require(len(chosen) > 0, "parameters", parameters, none_of)
        return chosen

    def _centres(self, centre: Any) -> list[Array]:
        if centre is None:
            return [jnp.zeros_like(leaf) for leaf in self.leaves]
        arrays = eqx.filter(centre, eqx.is_inexact_array)
        same = jax.tree.structure(arrays) == self.tree
        require(same, "centre", centre, "a pytree with the structure of params")
        named = zip(self.names, jax.tree.leaves(arrays), strict=True)
        centres = [jnp.asarray(as_array(leaf, f"centre{name}")) for name, leaf in named]
        for name, leaf, value in zip(self.names, self.leaves, centres, strict=True):
            require(leaf.shape == value.shape, f"centre{name}", value, f"shape {leaf.shape}, as in params")
        return centres

    def _scales(self, scales: Any) -> list[Array]:
        """Return the prior variances of the uncertain parameters."""
        if isinstance(scales, int | float | np.number) or getattr(scales, "shape", None) == ():
            by_leaf = [scales] * len(self.leaves)
        else:
            try:
                every = self.whole.flatten_up_to(scales)
            except (ValueError, TypeError) as error:
                what = str(error).splitlines()[0]
                expected = "a positive number, or a pytree with the structure of params"
                raise InputError(f"scales: expected {expected}; comparing them gave: {what}") from error
            by_leaf = [every[i] for i in self.places]
        variances = []
        for i in self.chosen:
            name, shape = f"scales{self.names[i]}" if by_leaf[i] is not scales else "scales", self.leaves[i].shape
            value = as_array(by_leaf[i], name)
            require(bool(np.all(value > 0)), name, float(value.min()) if value.size else value, "positive variances")
            fits = value.ndim <= len(shape) and all(
                a in (1, b) for a, b in zip(value.shape[::-1], shape[::-1], strict=False)
            )
            require(fits, name, value, f"a number or shape {shape}, as in params")
            variances.append(jnp.broadcast_to(value, shape))
        return variances


@contextlib.contextmanager
def _jax_errors() -> Iterator[None]:
    """Turn errors of JAX into an `InputError` that says what a network must support."""
    try:
        yield
    except PilescoreError:
        raise
    except Exception as error:
        expected = "a function that JAX can evaluate at many points at once, and differentiate in them and in params"
        what = f"{type(error).__name__}: {(str(error) or '?').splitlines()[0]}"
        raise InputError(f"apply: expected {expected}; that gave {what}") from error


@dataclasses.dataclass(frozen=True)
class _Placeholder:
    """Stands for a parameter array when the user's function selects some."""

    number: int


def _checked(leaf: Any, name: str) -> np.ndarray:
    """Return an array of parameters in float64."""
    real = jnp.issubdtype(leaf.dtype, jnp.floating)
    require(real, f"params{name}", f"dtype {leaf.dtype}", "real parameters")
    return as_array(np.asarray(leaf, dtype=np.float64), f"params{name}")


def _promoted(leaves: Sequence[Any]) -> tuple[str, ...]:
    kinds = sorted({str(leaf.dtype) for leaf in leaves if leaf.dtype != np.float64})
    return (f"parameters of {' and '.join(kinds)} were promoted to float64",) if kinds else ()


def _flat(arrays: Sequence[Array]) -> Float[np.ndarray, " P"]:
    return np.concatenate([np.asarray(array, dtype=float).ravel() for array in arrays])


def _function(
    apply: Callable[[Any, Array], Any], tree: Any, rest: Any, leaves: Sequence[Array]
) -> Callable[[Array], Array]:
    """Return the network as a function of the point."""
    params = eqx.combine(jax.tree.unflatten(tree, leaves), rest)
    return lambda point: jnp.reshape(jnp.asarray(apply(params, point)), ()).astype(float)


@eqx.filter_jit
def _derivatives(
    apply: Any, tree: Any, rest: Any, indices: tuple[MultiIndex, ...], leaves: list[Array], points: Array
) -> Array:
    function = _function(apply, tree, rest, leaves)
    return jax.vmap(lambda p: jnp.stack([partial_derivative(function, alpha)(p) for alpha in indices]), out_axes=1)(
        points
    )


@eqx.filter_jit
def _jacobian(
    apply: Any,
    tree: Any,
    rest: Any,
    indices: tuple[MultiIndex, ...],
    chosen: tuple[int, ...],
    leaves: list[Array],
    points: Array,
    table: Array,
) -> Array:
    def value(uncertain: list[Array], point: Array, coefficients: Array) -> Array:
        every = list(leaves)
        for i, leaf in zip(chosen, uncertain, strict=True):
            every[i] = leaf
        function = _function(apply, tree, rest, every)
        terms = [c * partial_derivative(function, alpha)(point) for c, alpha in zip(coefficients, indices, strict=True)]
        return sum(terms, start=jnp.zeros(()))

    # Forward mode in the few coordinates, inside one reverse pass in the many parameters for each row.
    def row(point: Array, coefficients: Array) -> Array:
        return ravel_pytree(jax.grad(value)([leaves[i] for i in chosen], point, coefficients))[0]

    return jax.vmap(row, (0, 1))(points, table)
