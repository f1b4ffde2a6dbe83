"""The hyperparameters of a model that move, with values that JAX may trace, and evidences as functions of them."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..errors import InputError, require, require_float64
from ..model import Model, Path, find, follow, is_positive, named_paths
from .evidence import LOG_TWO_PI

Leaves: TypeAlias = Sequence[Any]
"""The values of the hyperparameters that move, in the order of their names; they may be traced."""


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
