"""The space that a search moves in: chosen hyperparameters as one vector, positive ones by their logarithm."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .errors import InputError, as_array, require
from .model import Model, find, follow, is_positive, is_temperature, named_paths

Ties = Mapping[str, Callable[[Mapping[str, Any]], Any]]


@dataclasses.dataclass(frozen=True, eq=False)
class Space:
    """Hyperparameters `v` within bounds, searched as `u = log v`, or in units of their range if not positive."""

    model: Model
    names: tuple[str, ...]
    """One for each coordinate: a hyperparameter, or an element of one."""
    low: Float[np.ndarray, " p"]
    high: Float[np.ndarray, " p"]
    logarithmic: np.ndarray
    groups: Mapping[str, tuple[int, ...]]
    """The coordinates of each name as it was given."""
    shapes: Mapping[str, tuple[int, ...]]
    ties: Ties

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """The bounds of the search."""
        return list(zip(self.encode(self.low).tolist(), self.encode(self.high).tolist(), strict=True))

    def encode(self, values: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
        """Return the coordinates of hyperparameters."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.logarithmic, np.log(values), (values - self.low) / (self.high - self.low))

    def decode(self, u: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
        """Return the hyperparameters at coordinates, exactly a bound where the coordinate is the bound's."""
        linear = self.low + u * (self.high - self.low)
        values = np.where(self.logarithmic, np.exp(np.where(self.logarithmic, u, 0.0)), linear)
        for bound in (self.low, self.high):
            values = np.where(u == self.encode(bound), bound, values)
        return values

    def slope(self, values: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
        """Return `dv/du`."""
        return np.where(self.logarithmic, values, self.high - self.low)

    def named(self, values: Float[np.ndarray, " p"]) -> dict[str, float]:
        """Return hyperparameters by name."""
        return dict(zip(self.names, values.tolist(), strict=True))

    def at(self, values: Float[np.ndarray, " p"]) -> Model:
        """Return the model with these hyperparameters, and with what is tied to them."""
        tied = {name: np.asarray(function(values)) for name, (function, _) in self._tied.items()}
        return self.model.replace({**self.named(values), **tied})

    @functools.cached_property
    def targets(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The hyperparameter and the element that each name stands for, tied ones too."""
        known = named_paths(self.model)
        return {name: find(self.model, known, name) for name in (*self.names, *self.ties)}

    @property
    def temperatures(self) -> np.ndarray:
        """Whether each coordinate is η, γ, ρ or a block's own temperature."""
        known = named_paths(self.model)
        return np.array([is_temperature(known[self.targets[name][0]][0]) for name in self.names])

    @property
    def wanted(self) -> tuple[str, ...]:
        """The whole hyperparameters whose gradients are needed."""
        return tuple(dict.fromkeys(base for base, _ in self.targets.values()))

    def gradient(self, values: Float[np.ndarray, " p"], by_name: Mapping[str, Any]) -> Float[np.ndarray, " p"]:
        """Return the gradient in the coordinates from gradients by name."""
        parts = {name: np.asarray(by_name[base])[index] for name, (base, index) in self.targets.items()}
        total = np.array([parts[name] for name in self.names])
        for name, (_, jacobian) in self._tied.items():
            total = total + np.tensordot(parts[name], np.asarray(jacobian(values)), axes=parts[name].ndim)
        return total * self.slope(values)

    def read(self, model: Model) -> Float[np.ndarray, " p"]:
        """Return the searched hyperparameters of a model."""
        parameters = model.parameters
        return np.array(
            [np.asarray(parameters[base])[index] for base, index in map(self.targets.__getitem__, self.names)]
        )

    def start(self, given: Mapping[str, Any]) -> Float[np.ndarray, " p"]:
        """Return the coordinates of a start: the model's own hyperparameters but for those given."""
        for name in given:
            expected = f"names among {', '.join(self.groups)}"
            require(name in self.groups or name in self.names, "starts", name, expected)
        values = self.read(self.model.replace(given))
        for i, name in enumerate(self.names):
            if not self.low[i] <= values[i] <= self.high[i]:
                raise InputError(
                    f"starts: {name} = {values[i]:g} is outside its bounds ({self.low[i]:g}, {self.high[i]:g}). Widen "
                    "them, start elsewhere with starts=[{...}], or give the model another value with model.replace"
                )
        return self.encode(values)

    def sobol(self, count: int, seed: int) -> Float[np.ndarray, "n p"]:
        """Return scrambled Sobol points in the coordinates."""
        if count == 0:
            return np.empty((0, len(self.names)))
        from scipy.stats import qmc  # a slow import

        sampler = qmc.Sobol(len(self.names), rng=np.random.default_rng(seed))
        unit = sampler.random_base2((count - 1).bit_length())[:count]
        low, high = np.array(self.bounds).T
        return low + unit * (high - low)

    def _as_given(self, values: Float[Array | np.ndarray, " p"]) -> dict[str, Any]:
        vector = jnp.asarray(values)
        return {name: vector[np.array(where)].reshape(self.shapes[name]) for name, where in self.groups.items()}

    @functools.cached_property
    def _tied(self) -> dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]:
        """Return each tied hyperparameter and its Jacobian as functions of the searched ones."""

        def compiled(function: Callable[[Mapping[str, Any]], Any]) -> tuple[Any, Any]:
            def tied(values: Any) -> Any:
                return jnp.asarray(function(self._as_given(values)), dtype=float)

            return jax.jit(tied), jax.jit(jax.jacfwd(tied))

        return {name: compiled(function) for name, function in self.ties.items()}


def space(model: Model, over: Mapping[str, Any], ties: Ties | None = None) -> Space:
    """Return the space of a search, with names and bounds checked."""
    require(isinstance(over, Mapping) and len(over) > 0, "over", over, "bounds (low, high) for at least one name")
    known = named_paths(model)
    names: list[str] = []
    targets: set[tuple[str, tuple[int, ...]]] = set()
    lows, highs, logs = [], [], []
    groups: dict[str, tuple[int, ...]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    require(ties is None or isinstance(ties, Mapping), "ties", ties, "a mapping of names to functions")
    for name, bounds in over.items():
        require(isinstance(name, str), "over", name, "the names of hyperparameters")
        base, index = find(model, known, name)
        shape = () if index else np.shape(follow(model, known[base][0]))
        low, high = _bounds(name, bounds, shape)
        positive = is_positive(model, known[base][0])
        for element in itertools.product(*map(range, shape)):
            full = f"{name}[{', '.join(map(str, element))}]" if element else name
            a, b = float(low[element]), float(high[element])
            inside = a < b and math.isfinite(b - a)
            require(inside, f"over[{name!r}]", (a, b), "bounds (low, high) with low below high")
            require(not positive or a > 0, f"over[{name!r}]", (a, b), "positive bounds: it takes positive values only")
            target = (base, index or element)
            require(target not in targets, "over", full, "each hyperparameter once")
            targets.add(target)
            groups[name] = (*groups.get(name, ()), len(names))
            names.append(full)
            lows.append(a)
            highs.append(b)
            logs.append(positive)
        shapes[name] = shape
    found = Space(
        model, tuple(names), np.array(lows), np.array(highs), np.array(logs), groups, shapes, dict(ties or {})
    )
    _check_ties(found)
    return found


def _bounds(name: str, given: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    expected = "bounds (low, high), two finite numbers"
    try:
        low, high = given
    except (TypeError, ValueError):
        require(False, f"over[{name!r}]", given, expected)
    arrays = [as_array(bound, f"over[{name!r}]") for bound in (low, high)]
    for array in arrays:
        require(array.shape in ((), shape), f"over[{name!r}]", array, f"{expected}, or arrays of shape {shape}")
    return np.broadcast_to(arrays[0], shape), np.broadcast_to(arrays[1], shape)


def _check_ties(found: Space) -> None:
    taken = [found.targets[name] for name in found.names]
    middle = found.decode(0.5 * found.encode(found.low) + 0.5 * found.encode(found.high))
    for name, function in found.ties.items():
        argument, (base, index) = f"ties[{name!r}]", found.targets[name]
        clash = any(base == other and (index == at or not (index and at)) for other, at in taken)
        require(not clash, argument, name, "a hyperparameter that is neither searched over nor tied already")
        taken.append((base, index))
        expected = f"a JAX function of the searched values by name ({', '.join(found.groups)})"
        require(callable(function), argument, function, expected)
        try:
            value, _ = (part(middle) for part in found._tied[name])
        except Exception as error:  # whatever is wrong with it
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
            raise InputError(f"{argument}: expected {expected}; calling it gave {problem}") from error
        shape = () if index else np.shape(found.model.parameters[base])
        require(value.shape == shape, argument, value, f"a function whose value has shape {shape}")
