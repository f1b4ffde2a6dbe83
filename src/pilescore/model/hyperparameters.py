"""Hyperparameters of a model: their names, their roles, and where they are in the model.

A hyperparameter is a floating-point leaf of the model's pytree. Its name is its path (`kernel.bandwidth`,
`data.0.gamma`) or, inside an operator, the name the user gave it. Its *role* says what kind of quantity it is; bounds,
starts, diagnosis and reports depend on the role, never on the spelling of the name.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import equinox as eqx
import jax
import numpy as np
from jax.tree_util import GetAttrKey, SequenceKey, keystr
from jaxtyping import Float

from ..equations import CoefficientFunction, Nonlinear, Operator, Parameter
from ..errors import InputError, as_array, as_positive, nearest, require
from ..kernels import Positive
from .observations import TEMPERATURES

Path: TypeAlias = tuple[Any, ...]


def named_paths(model: Any) -> dict[str, list[Path]]:
    """Return the paths of all hyperparameters by name; a name shared by several operators has several paths."""
    paths: dict[str, list[Path]] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(model)[0]:
        if eqx.is_inexact_array(leaf):
            name = _name(model, path)
            if name is not None:
                paths.setdefault(name, []).append(path)
    return paths


def kernel_paths(model: Any) -> list[Path]:
    """Return the paths of the kernel's numbers in the order of its leaves."""
    leaves = jax.tree_util.tree_flatten_with_path(model.kernel)[0]
    return [(GetAttrKey("kernel"), *path) for path, leaf in leaves if eqx.is_inexact_array(leaf)]


def follow(root: Any, path: Path) -> Any:
    """Return the leaf at the end of a path."""
    for key in path:
        if isinstance(key, GetAttrKey):
            root = getattr(root, key.name)
        elif isinstance(key, SequenceKey):
            root = root[key.idx]
        else:
            root = root[key.key]
    return root


def require_name(name: str, known: Iterable[str]) -> None:
    """Raise an `InputError`, with a suggestion, unless there is a hyperparameter of this name."""
    names = list(known)
    if name not in names:
        near = nearest(name, names, 0.5)
        hint = f" Did you mean {near!r}?" if near else ""
        raise InputError(f"no hyperparameter {name!r}.{hint} This model has: {', '.join(names)}")


def find(model: Any, known: Mapping[str, list[Path]], name: str) -> tuple[str, tuple[int, ...]]:
    """Split a name such as `kernel.bandwidth[0]` into the hyperparameter and an index, `()` without one."""
    matched = re.fullmatch(r"(.+)\[( *\d+ *(?:, *\d+ *)*)\]", name)
    if matched is None or name in known:
        require_name(name, known)
        return name, ()
    base, index = matched[1], tuple(int(part) for part in matched[2].split(","))
    require_name(base, known)
    shape = np.shape(follow(model, known[base][0]))
    inside = len(index) == len(shape) and all(i < n for i, n in zip(index, shape, strict=True))
    require(inside, name, f"the index {list(index)}", f"an index into {base!r}, which has shape {shape}")
    return base, index


def operator_paths(operator: Operator | Nonlinear) -> dict[str, list[Path]]:
    """Return the paths of the hyperparameters inside an operator by name, as `named_paths` does for a model."""
    paths: dict[str, list[Path]] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(operator)[0]:
        atom, rest = atom_at(operator, path)
        if atom is not None and eqx.is_inexact_array(leaf):
            paths.setdefault(_name_in(atom, rest), []).append(path)
    return paths


def path_of(model: Any, name: str) -> Path:
    """Return the first path of a hyperparameter, given by its name or the name of one of its elements."""
    paths = named_paths(model)
    return paths[find(model, paths, name)[0]][0]


def eta_and_temperatures(model: Any) -> list[str]:
    """Return the names of η and of all temperatures."""
    return [name for name, paths in named_paths(model).items() if is_temperature(paths[0])]


def whole_values(model: Any, known: Mapping[str, list[Path]], values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return new values of whole hyperparameters, with values of single elements inserted into the old array."""
    whole: dict[str, np.ndarray] = {}
    for name, value in values.items():
        base, index = find(model, known, name)
        old = np.asarray(follow(model, known[base][0]))
        new = as_array(value, name)
        require(new.shape == (old.shape if not index else ()), name, new, f"shape {old.shape if not index else ()}")
        if index:
            whole.setdefault(base, old.copy())[index] = new
        else:
            whole[base] = new
    return whole


def as_grid(model: Any, grid: Mapping[str, Any]) -> dict[str, Float[np.ndarray, " k"]]:
    """Return the axes of a grid of hyperparameters, after checking that the model accepts all values."""
    require(isinstance(grid, Mapping) and len(grid) > 0, "grid", grid, "a mapping of names to sequences of values")
    axes = {}
    known = named_paths(model)
    for name, values in grid.items():
        require(isinstance(name, str), "grid", name, "the names of hyperparameters")
        base, index = find(model, known, name)
        shape = np.shape(follow(model, known[base][0]))
        require(bool(index) or shape == (), f"grid[{name!r}]", name, f"the name of one number; it has shape {shape}")
        column = as_array(values, f"grid[{name!r}]")
        require(column.ndim == 1 and column.size > 0, f"grid[{name!r}]", column, "a sequence of at least one value")
        unique = len(np.unique(column)) == len(column)
        require(unique, f"grid[{name!r}]", "the same value twice", "different values")
        # The values a hyperparameter may take form an interval, so checking both ends checks all of them.
        for value in (column.min(), column.max()):
            model.replace({name: value})
        axes[name] = column
    return axes


def role_of(model: Any, path: Path) -> str:
    """Return the role of a hyperparameter; see `Model.roles`."""
    if len(path) > 1 and is_temperature(path):
        return f"{follow(model, path[:2]).role}_temperature"
    if len(path) > 1 and not is_of_kernel(path):
        return "coefficient"
    return str(_metadata(model, path).get("role", "number"))


def is_of_kernel(path: Path) -> bool:
    """Return whether a hyperparameter belongs to the kernel."""
    return bool(path[0].name == "kernel")


def is_temperature(path: Path) -> bool:
    """Return whether a hyperparameter is η, γ, ρ or a block's own temperature."""
    return len(path) == 1 or path[2:] == (GetAttrKey("temperature"),)


def is_positive(model: Any, path: Path) -> bool:
    """Return whether a hyperparameter is positive: a temperature, or a field whose converter requires it."""
    return is_temperature(path) or isinstance(_metadata(model, path).get("converter"), Positive)


def check_value(model: Any, path: Path, name: str, value: np.ndarray) -> None:
    """Check a new value as the constructor of the object that holds it does."""
    if is_temperature(path):
        as_positive(value, name)
    convert = _metadata(model, path).get("converter")
    if convert is not None:
        convert(value)


def atom_at(model: Any, path: Path) -> tuple[Parameter | CoefficientFunction | None, Path]:
    """Return the parameter or function inside an operator that a path leads into, and the rest of the path."""
    node: Any = model
    for i, key in enumerate(path):
        node = follow(node, (key,))
        if isinstance(node, Parameter | CoefficientFunction):
            return node, path[i + 2 :]  # skips the field that holds the function
    return None, ()


def _name(model: Any, path: Path) -> str | None:
    """Return the name of a leaf; None if it is not a hyperparameter: a shared temperature that no block uses."""
    first = path[0].name
    if first == "kernel":
        return keystr(path, simple=True, separator=".")
    if first in ("gamma", "rho"):
        blocks = model.data if first == "gamma" else model.physics
        return first if any(block.temperature is None for block in blocks) else None
    if first == "eta":
        return first
    if path[2].name == "temperature":
        exact = getattr(model, first)[path[1].idx].exact  # a tolerance is not a hyperparameter
        return None if exact else f"{first}.{path[1].idx}.{TEMPERATURES[first]}"
    atom, rest = atom_at(model, path)
    return None if atom is None else _name_in(atom, rest)


def _name_in(atom: Parameter | CoefficientFunction, rest: Path) -> str:
    """Return the name of a leaf inside an operator, as `atom_at` finds it."""
    if isinstance(atom, Parameter):
        return atom.name
    return keystr((GetAttrKey(atom.name), *rest), simple=True, separator=".")


def _metadata(model: Any, path: Path) -> Mapping[str, Any]:
    """Return the metadata of the dataclass field that a path ends in."""
    owner = follow(model, path[:-1])
    if not (dataclasses.is_dataclass(owner) and isinstance(path[-1], GetAttrKey)):
        return {}
    return next((entry.metadata for entry in dataclasses.fields(owner) if entry.name == path[-1].name), {})
