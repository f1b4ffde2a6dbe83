"""The coordinates of a search: the searched hyperparameters as one vector, positive ones by their logarithm."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..errors import InputError, as_array, as_count, require
from ..model import Model, find, follow, is_positive, is_temperature, named_paths, path_of

Ties = Mapping[str, Callable[[Mapping[str, Any]], Any]]
Side = Literal["lower", "upper"]

Starts: TypeAlias = int | Sequence[Mapping[str, Any]]
"""A number of starts, or the hyperparameters of each."""


@dataclasses.dataclass(frozen=True, eq=False)
class SearchSpace:
    """Hyperparameters `v` within bounds and their coordinates: `u = log v` if positive, else `v` in units of its range.

    Made by `search_space`.
    """

    model: Model
    names: tuple[str, ...]
    """One name for each coordinate: a hyperparameter, or an element of one."""
    low: Float[np.ndarray, " p"]
    high: Float[np.ndarray, " p"]
    logarithmic: np.ndarray
    groups: Mapping[str, tuple[int, ...]]
    """The coordinates of each name that the user gave."""
    shapes: Mapping[str, tuple[int, ...]]
    ties: Ties

    @functools.cached_property
    def bounds(self) -> list[tuple[float, float]]:
        """The bounds of the coordinates."""
        return list(zip(self.encode(self.low).tolist(), self.encode(self.high).tolist(), strict=True))

    @functools.cached_property
    def compiled(self) -> dict[Any, Any]:
        """Compiled functions of the searched hyperparameters, kept for the next call that needs them."""
        return {}

    def encode(self, values: Float[np.ndarray, "*k p"]) -> Float[np.ndarray, "*k p"]:
        """Return the coordinates of hyperparameters."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.logarithmic, np.log(values), (values - self.low) / (self.high - self.low))

    def decode(self, u: Float[np.ndarray, "*k p"]) -> Float[np.ndarray, "*k p"]:
        """Return the hyperparameters at coordinates."""
        linear = self.low + u * (self.high - self.low)
        values = np.where(self.logarithmic, np.exp(np.where(self.logarithmic, u, 0.0)), linear)
        for end, bound in zip(np.transpose(self.bounds), (self.low, self.high), strict=True):
            # exp(log v) may differ from v in the last digit: a search that ends at a bound returns the bound itself.
            values = np.where(u == end, bound, values)
        return values

    def positions(self, u: Float[np.ndarray, " p"]) -> dict[str, float]:
        """Return the position of each coordinate between its bounds, from 0 to 1, by name."""
        low, high = np.array(self.bounds).T
        return self.by_name((u - low) / (high - low))

    def slope(self, values: Float[np.ndarray, "*k p"]) -> Float[np.ndarray, "*k p"]:
        """Return `dv/du`."""
        return np.where(self.logarithmic, values, self.high - self.low)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone: compiled functions in the cache cannot be pickled."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def by_name(self, values: Float[np.ndarray, " p"]) -> dict[str, float]:
        """Return hyperparameters by name."""
        return dict(zip(self.names, values.tolist(), strict=True))

    def at(self, model: Model) -> SearchSpace:
        """Return the same coordinates for another model, which differs in what is not searched."""
        return dataclasses.replace(self, model=model)

    def model_at(self, values: Float[np.ndarray, " p"]) -> Model:
        """Return the model with these hyperparameters, and the tied ones that follow from them."""
        tied = {name: np.asarray(function(values)) for name, (function, _) in self._tied.items()}
        return self.model.replace({**self.by_name(values), **tied})

    def values_of(self, model: Model) -> Float[np.ndarray, " p"]:
        """Return the searched hyperparameters of a model."""
        parameters = model.parameters
        return np.array(
            [np.asarray(parameters[base])[index] for base, index in map(self.targets.__getitem__, self.names)]
        )

    @functools.cached_property
    def targets(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The hyperparameter and the index of its element for each name, searched or tied."""
        paths = named_paths(self.model)
        return {name: find(self.model, paths, name) for name in (*self.names, *self.ties)}

    @property
    def temperatures(self) -> np.ndarray:
        """Whether each coordinate is η, γ, ρ or the temperature of one block."""
        return np.array([is_temperature(path_of(self.model, name)) for name in self.names])

    @property
    def gradient_names(self) -> tuple[str, ...]:
        """The hyperparameters whose gradients the search needs."""
        return tuple(dict.fromkeys(base for base, _ in self.targets.values()))

    def gradient(self, values: Float[np.ndarray, " p"], by_name: Mapping[str, Any]) -> Float[np.ndarray, " p"]:
        """Return the gradient in the coordinates from gradients by name; ties add their part by the chain rule."""
        parts = {name: np.asarray(by_name[base])[index] for name, (base, index) in self.targets.items()}
        total = np.array([parts[name] for name in self.names])
        for name, (_, jacobian) in self._tied.items():
            total = total + np.tensordot(parts[name], np.asarray(jacobian(values)), axes=parts[name].ndim)
        return total * self.slope(values)

    def start(self, changes: Mapping[str, Any]) -> Float[np.ndarray, " p"]:
        """Return the coordinates of a start: the model's own hyperparameters with these changes."""
        for name in changes:
            expected = f"names among {', '.join(self.groups)}"
            require(name in self.groups or name in self.names, "starts", name, expected)
        values = self.values_of(self.model.replace(changes))
        for i, name in enumerate(self.names):
            if not self.low[i] <= values[i] <= self.high[i]:
                raise InputError(
                    f"starts: {name} = {values[i]:g} is outside its bounds ({self.low[i]:g}, {self.high[i]:g}). Widen "
                    "them, start elsewhere with starts=[{...}], or give the model another value with model.replace"
                )
        return self.encode(values)

    def sobol(self, count: int, seed: int) -> Float[np.ndarray, "n p"]:
        """Return scrambled Sobol points within the bounds, in coordinates."""
        low, high = np.array(self.bounds).T
        return low + sobol_points(count, len(self.names), seed) * (high - low)

    def grouped(self, values: Float[Array | np.ndarray, " p"]) -> dict[str, Any]:
        """Return the values under the names that the user gave, vectors as vectors."""
        vector = jnp.asarray(values)
        return {name: vector[np.array(rows)].reshape(self.shapes[name]) for name, rows in self.groups.items()}

    @functools.cached_property
    def _tied(self) -> dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]:
        """Each tied hyperparameter and its Jacobian as functions of the searched values."""

        def compiled(function: Callable[[Mapping[str, Any]], Any]) -> tuple[Any, Any]:
            def tied(values: Any) -> Any:
                return jnp.asarray(function(self.grouped(values)), dtype=float)

            return jax.jit(tied), jax.jit(jax.jacfwd(tied))

        return {name: compiled(function) for name, function in self.ties.items()}

    def check_ties(self) -> None:
        """Raise an `InputError` unless every tie is a function of the searched values with the right shape."""
        taken = [self.targets[name] for name in self.names]
        middle = self.decode(0.5 * self.encode(self.low) + 0.5 * self.encode(self.high))
        for name, function in self.ties.items():
            argument, (base, index) = f"ties[{name!r}]", self.targets[name]
            clash = any(base == other and (index == at or not (index and at)) for other, at in taken)
            require(not clash, argument, name, "a hyperparameter that is neither searched over nor tied already")
            taken.append((base, index))
            expected = f"a JAX function of the searched values by name ({', '.join(self.groups)})"
            require(callable(function), argument, function, expected)
            try:
                value, _ = (compiled(middle) for compiled in self._tied[name])
            except Exception as error:  # a user's function may raise anything
                problem = f"{type(error).__name__}: {error}".splitlines()[0]
                raise InputError(f"{argument}: expected {expected}; calling it gave {problem}") from error
            shape = () if index else np.shape(self.model.parameters[base])
            require(value.shape == shape, argument, value, f"a function whose value has shape {shape}")


def sobol_points(count: int, dimension: int, seed: int | Sequence[int]) -> Float[np.ndarray, "n p"]:
    """Return scrambled Sobol points of the unit cube."""
    if count == 0:
        return np.empty((0, dimension))
    from scipy.stats import qmc  # a slow import

    sampler = qmc.Sobol(dimension, rng=np.random.default_rng(seed))
    # Sobol points are balanced in powers of two only.
    return np.asarray(sampler.random_base2((count - 1).bit_length())[:count])


def bounds_reached(positions: Mapping[str, float], near: float) -> dict[str, Side]:
    """Return the side of the bound that each coordinate is at, from positions between the bounds."""
    at = {name: position for name, position in positions.items() if min(position, 1.0 - position) <= near}
    return {name: "lower" if position < 0.5 else "upper" for name, position in at.items()}


def search_space(model: Model, over: Mapping[str, Any], ties: Ties | None = None) -> SearchSpace:
    """Return the coordinates of a search after checking names, bounds and ties.

    Parameters
    ----------
    model
        The model.
    over
        Bounds `(low, high)` by name, as in `minimize`.
    ties
        Hyperparameters that follow others, as in `minimize`.
    """
    require(isinstance(over, Mapping) and len(over) > 0, "over", over, "bounds (low, high) for at least one name")
    require(ties is None or isinstance(ties, Mapping), "ties", ties, "a mapping of names to functions")
    paths = named_paths(model)
    # A log-normal prior says that a hyperparameter is positive, whether or not its kind is.
    by_logarithm = {find(model, paths, name) for name, prior in model.priors.items() if prior.logarithmic}
    names: list[str] = []
    targets: set[tuple[str, tuple[int, ...]]] = set()
    lows, highs, logarithmic = [], [], []
    groups: dict[str, tuple[int, ...]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, bounds in over.items():
        require(isinstance(name, str), "over", name, "the names of hyperparameters")
        base, index = find(model, paths, name)
        shape = () if index else np.shape(follow(model, paths[base][0]))
        low, high = _bounds(name, bounds, shape)
        positive = is_positive(model, paths[base][0])
        for element in itertools.product(*map(range, shape)):
            full = f"{name}[{', '.join(map(str, element))}]" if element else name
            a, b = float(low[element]), float(high[element])
            inside = a < b and math.isfinite(b - a)
            require(inside, f"over[{name!r}]", (a, b), "bounds (low, high) with low below high")
            target = (base, index or element)
            positive_here = positive or target in by_logarithm or (base, ()) in by_logarithm
            expected = "positive bounds: it takes positive values only"
            require(not positive_here or a > 0, f"over[{name!r}]", (a, b), expected)
            require(target not in targets, "over", full, "each hyperparameter once")
            targets.add(target)
            groups[name] = (*groups.get(name, ()), len(names))
            names.append(full)
            lows.append(a)
            highs.append(b)
            logarithmic.append(positive_here)
        shapes[name] = shape
    space = SearchSpace(
        model, tuple(names), np.array(lows), np.array(highs), np.array(logarithmic), groups, shapes, dict(ties or {})
    )
    space.check_ties()
    return space


def _bounds(name: str, bounds: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return bounds as two arrays of the hyperparameter's shape."""
    expected = "bounds (low, high), two finite numbers"
    try:
        low, high = bounds
    except (TypeError, ValueError):
        require(False, f"over[{name!r}]", bounds, expected)
    arrays = [as_array(bound, f"over[{name!r}]") for bound in (low, high)]
    for array in arrays:
        require(array.shape in ((), shape), f"over[{name!r}]", array, f"{expected}, or arrays of shape {shape}")
    return np.broadcast_to(arrays[0], shape), np.broadcast_to(arrays[1], shape)


def start_points(space: SearchSpace, starts: Starts, seed: int) -> list[Float[np.ndarray, " p"]]:
    """Return the starts in coordinates."""
    if isinstance(starts, Mapping):
        starts = [starts]
    if isinstance(starts, list | tuple):
        require(len(starts) > 0, "starts", starts, "at least one start")
        for start in starts:
            require(isinstance(start, Mapping), "starts", start, "mappings of names to values")
        return [space.start(start) for start in starts]
    counted = isinstance(starts, int | np.integer)
    require(counted, "starts", starts, "a number of starts, or a list of mappings of names to values")
    count = as_count(starts, "starts")
    return [space.start({}), *space.sobol(count - 1, seed)]
