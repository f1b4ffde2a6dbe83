"""Quantities derived from hyperparameters, with their standard errors by the delta method."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..errors import InputError, require
from ..model import Model, find, named_paths
from .space import Ties


@dataclasses.dataclass(frozen=True)
class Derived:
    """A quantity derived from hyperparameters, as returned by `Minimum.derived`.

    Examples
    --------
    >>> import pilescore as ps
    >>> data = ps.observe(ps.identity, values=[3.0, -4.0], at=[0.0, 100.0])
    >>> best = ps.minimize(ps.Model(ps.RBF(), data=data, gamma=1e-9), {"eta": (1, 100)})
    >>> round(best.values["eta"], 4), round(best.standard_errors["eta"], 4)  # the mean square, and √(2/n) of it
    (12.5, 12.5)
    >>> best.derived(lambda p: p["eta"] ** 0.5)
    Derived(3.53553 ± 1.8)
    """

    value: float
    """Its value at the minimum."""
    standard_error: float
    """Its standard error; NaN if it depends on a hyperparameter that has none."""

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        error = f" ± {self.standard_error:.2g}" if math.isfinite(self.standard_error) else ""
        return f"Derived({self.value:.6g}{error})"


def derived_value(
    function: Callable[[Mapping[str, Any]], Any],
    model: Model,
    values: Mapping[str, float],
    covariance: Float[np.ndarray, "p p"] | None,
    ties: Ties = types.MappingProxyType({}),
) -> Derived:
    """Return a function of hyperparameters with its standard error.

    Parameters
    ----------
    function
        A JAX function of hyperparameters by name.
    model
        The model at the minimum.
    values
        The searched values by name, or by the name of one element.
    covariance
        Their covariance, NaN where unknown; None if all of it is unknown.
    ties
        Hyperparameters that follow the searched ones.
    """
    expected = 'a JAX function of the hyperparameters by name, such as lambda p: 4 * p["k"] * p["c"]'
    paths = named_paths(model)
    targets = {name: find(model, paths, name) for name in (*values, *ties)}
    known = {name: jnp.asarray(value) for name, value in model.parameters.items()}

    def at(searched: Float[Array, " p"]) -> Array:
        given = dict(known)
        for name, value in zip(values, searched, strict=True):
            base, index = targets[name]
            given[base] = given[base].at[index].set(value)
            given[name] = given[base][index]
        before = dict(given)
        for name, tie in ties.items():
            base, index = targets[name]
            given[base] = given[base].at[index].set(jnp.asarray(tie(before), dtype=float))
            given[name] = given[base][index]
        return jnp.asarray(function(given), dtype=float)

    centre = jnp.asarray(list(values.values()))
    try:
        value, gradient = at(centre), jax.jacrev(at)(centre)
    except KeyError as error:
        require(False, "function", error.args[0], f"names among {', '.join(dict.fromkeys([*known, *values]))}")
    except Exception as error:  # a user's function may raise anything
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"function: expected {expected}; calling it gave {problem}") from error
    require(value.shape == (), "function", np.asarray(value), "a function whose value is one number")
    used = np.flatnonzero(np.asarray(gradient))
    slope = np.asarray(gradient)[used]
    if not used.size:
        return Derived(float(value), 0.0)
    if covariance is None:
        return Derived(float(value), math.nan)
    variance = float(slope @ covariance[np.ix_(used, used)] @ slope)
    return Derived(float(value), math.sqrt(variance) if variance >= 0 else math.nan)
