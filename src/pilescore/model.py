"""The model: a kernel, observations of two roles, three temperatures, and the names of what may be chosen."""

from __future__ import annotations

import dataclasses
import functools
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey, GetAttrKey, SequenceKey
from jaxtyping import Float

from .atoms import Field, MultiIndex, Parameter
from .errors import InputError, OutsideDomainWarning, SmoothnessError, as_array, as_positive, nearest, require
from .kernels import Kernel, Positive
from .observations import Observation, check_names, labels
from .solvers import Solver

Path: TypeAlias = tuple[Any, ...]
TEMPERATURES = {"data": "gamma", "physics": "rho"}


class Model(eqx.Module):
    """A Gaussian process `f ~ GP(0, ηk)` with noisy observations of operators of it.

    Its negative log posterior is, up to constants,
    `(1/γ) Σ (f(x_i) − y_i)² + (1/ρ) Σ w_j (A f(z_j) − r_j)² + (1/2η) ‖f‖²`: data loss, physics loss, regularisation.

    Parameters
    ----------
    kernel
        `k`.
    data
        Blocks made by `observe`: one, or a list.
    physics
        Blocks made by `impose`: one, or a list (lists inside it are flattened).
    gamma, rho, eta
        The temperatures. A block may have one of its own. The noise variance of a datum is `γ/2`, that of a
        physics node of weight `w` is `ρ/2w`.
    solver
        How its covariance is solved; dense unless given. Functions with a `solver` set it, and what they return has it.

    Examples
    --------
    >>> import pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> model = ps.Model(
    ...     kernel=ps.RBF(bandwidth=0.5),
    ...     data=ps.observe(ps.identity, values=[0.0, 1.0], at=[0.0, 1.0]),
    ...     physics=ps.impose(dx**2, 0.0, on=line.interior(ps.GaussLegendre(8))),
    ...     gamma=1e-2,
    ...     rho=1e-2,
    ... )
    >>> model.parameters
    {'kernel.bandwidth': 0.5, 'gamma': 0.01, 'rho': 0.01, 'eta': 1.0}
    >>> model.replace({"kernel.bandwidth": 0.3}).parameters["kernel.bandwidth"]
    0.3
    """

    kernel: Kernel
    data: tuple[Observation, ...]
    physics: tuple[Observation, ...]
    gamma: Float[np.ndarray, ""]
    rho: Float[np.ndarray, ""]
    eta: Float[np.ndarray, ""]
    solver: Solver | None = eqx.field(static=True, default=None)
    """How its covariance is solved; None is dense."""

    def __init__(
        self,
        kernel: Kernel,
        data: Observation | Iterable[Any] = (),
        physics: Observation | Iterable[Any] = (),
        gamma: Any = 1.0,
        rho: Any = 1.0,
        eta: Any = 1.0,
        solver: Solver | None = None,
    ) -> None:
        require(isinstance(kernel, Kernel), "kernel", kernel, "a kernel such as ps.RBF(bandwidth=0.5)")
        self.kernel = kernel
        require(
            solver is None or isinstance(solver, Solver), "solver", solver, "a solver such as ps.LowRank(), or None"
        )
        self.solver = solver
        self.data = _blocks(data, "data", "observe")
        self.physics = _blocks(physics, "physics", "impose")
        self.gamma, self.rho, self.eta = (
            np.array(as_positive(value, name)) for name, value in (("gamma", gamma), ("rho", rho), ("eta", eta))
        )
        require(len(self.blocks) > 0, "data, physics", "no block at all", "at least one observation")
        _check_dimensions(self)
        _check_smoothness(self)
        _check_names(self)
        _check_inside(self)

    @property
    def blocks(self) -> tuple[Observation, ...]:
        """All blocks, data first: the order of the stacked vector of values."""
        return self.data + self.physics

    @property
    def is_nonlinear(self) -> bool:
        """Whether a block observes a nonlinear function of the unknown, so that `solve_nonlinear` comes first."""
        return any(block.is_nonlinear for block in self.blocks)

    @property
    def labels(self) -> tuple[str, ...]:
        """A label for each block: its name, or its role and number."""
        return labels(self.blocks)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the coordinates, where an operator knows them."""
        return next((block.operator.names for block in self.blocks if block.operator.names), ())

    @property
    def size(self) -> int:
        """The number of values, N."""
        return sum(block.size for block in self.blocks)

    @property
    def values(self) -> Float[np.ndarray, " N"]:
        """The stacked values `ỹ`."""
        return np.concatenate([block.values for block in self.blocks])

    @property
    def temperatures(self) -> tuple[float, ...]:
        """The temperature that holds for each block: its own, or the model's for its role."""
        shared = {"data": float(self.gamma), "physics": float(self.rho)}
        return tuple(
            shared[block.role] if block.temperature is None else float(block.temperature) for block in self.blocks
        )

    @property
    def noise(self) -> Float[np.ndarray, " N"]:
        """The noise variances `s² = τ/2w` of the stacked values."""
        pairs = zip(self.temperatures, self.blocks, strict=True)
        return np.concatenate([0.5 * temperature / block.weights for temperature, block in pairs])

    @property
    def parameters(self) -> dict[str, float | np.ndarray]:
        """The hyperparameters by name; see `replace`."""
        found = {}
        for name, paths in named_paths(self).items():
            value = np.asarray(follow(self, paths[0]))
            found[name] = float(value) if value.ndim == 0 else value
        return found

    def replace(self, values: Mapping[str, Any]) -> Model:
        """Return the model with hyperparameters set by name, each checked as when it was made.

        Names are paths: `kernel.bandwidth`, `kernel.parts.0.bandwidth`, `gamma`, `rho`, `eta`, `data.0.gamma`,
        `physics.1.rho` (a block's own temperature), and the name of a parameter inside operators. One element of
        a vector or matrix is named with its index: `kernel.bandwidth[0]`.

        Examples
        --------
        >>> import pilescore as ps
        >>> data = ps.observe(ps.identity, values=[1.0], at=[[0.0, 0.0]])
        >>> model = ps.Model(ps.RBF(bandwidth=[0.5, 2.0]), data=data)
        >>> model.replace({"kernel.bandwidth[1]": 3.0, "gamma": 0.1}).parameters
        {'kernel.bandwidth': array([0.5, 3. ]), 'gamma': 0.1, 'eta': 1.0}
        >>> model.replace({"kernel.bandwith": 0.3})
        Traceback (most recent call last):
        ...
        pilescore.errors.InputError: no hyperparameter 'kernel.bandwith'. Did you mean 'kernel.bandwidth'? This model
        has: kernel.bandwidth, gamma, eta
        """
        known = named_paths(self)
        changes: dict[str, list[tuple[Path, Any]]] = {}
        for name, new in whole_values(self, known, values).items():
            for path in known[name]:
                _recheck(self, path, name, new)
                changes.setdefault(path[0].name, []).append((path[1:], new if len(path) == 1 else jnp.asarray(new)))
        model = object.__new__(Model)
        for entry in dataclasses.fields(self):  # parts that do not change stay the same objects
            part = getattr(self, entry.name)
            if entry.name in changes:
                paths, leaves = zip(*changes[entry.name], strict=True)
                part = eqx.tree_at(functools.partial(_follow_all, paths), part, leaves)
            object.__setattr__(model, entry.name, part)
        return model

    def __repr__(self) -> str:
        lines = [f"kernel={self.kernel!r},"]
        lines += [f"{role}={list(getattr(self, role))!r}," for role in ("data", "physics")]
        lines += [f"gamma={float(self.gamma):g}, rho={float(self.rho):g}, eta={float(self.eta):g},"]
        return "Model(\n    " + "\n    ".join(lines) + "\n)"


def named_paths(model: Model) -> dict[str, list[Path]]:
    """Return every hyperparameter's name with the paths of its leaves (several where a name is shared)."""
    found: dict[str, list[Path]] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(model)[0]:
        if eqx.is_inexact_array(leaf):
            name = _name(model, path)
            if name is not None:
                found.setdefault(name, []).append(path)
    return found


def kernel_paths(model: Model) -> list[Path]:
    """Return the paths of the kernel's numbers, in the order of its leaves."""
    found = jax.tree_util.tree_flatten_with_path(model.kernel)[0]
    return [(GetAttrKey("kernel"), *path) for path, leaf in found if eqx.is_inexact_array(leaf)]


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


def _follow_all(paths: Iterable[Path], root: Any) -> list[Any]:
    return [follow(root, path) for path in paths]


def require_name(name: str, known: Iterable[str]) -> None:
    """Raise an `InputError` with the nearest name and the whole list if a name is not there."""
    names = list(known)
    if name not in names:
        near = nearest(name, names, 0.5)
        hint = f" Did you mean {near!r}?" if near else ""
        raise InputError(f"no hyperparameter {name!r}.{hint} This model has: {', '.join(names)}")


def find(model: Model, known: Mapping[str, list[Path]], name: str) -> tuple[str, tuple[int, ...]]:
    """Return the hyperparameter that a name stands for and the index of the element, `()` for the whole of it."""
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


def whole_values(model: Model, known: Mapping[str, list[Path]], values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return values by the names of whole hyperparameters, those of single elements put in their places."""
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


def as_grid(model: Model, grid: Mapping[str, Any]) -> dict[str, Float[np.ndarray, " k"]]:
    """Return a grid of hyperparameters with every value checked as `Model.replace` does, before any work."""
    require(isinstance(grid, Mapping) and len(grid) > 0, "grid", grid, "a mapping of names to sequences of values")
    axes = {}
    known = named_paths(model)
    for name, given in grid.items():
        require(isinstance(name, str), "grid", name, "the names of hyperparameters")
        base, index = find(model, known, name)
        shape = np.shape(follow(model, known[base][0]))
        require(bool(index) or shape == (), f"grid[{name!r}]", name, f"the name of one number; it has shape {shape}")
        column = as_array(given, f"grid[{name!r}]")
        require(column.ndim == 1 and column.size > 0, f"grid[{name!r}]", column, "a sequence of at least one value")
        unique = len(np.unique(column)) == len(column)
        require(unique, f"grid[{name!r}]", "a value that is there twice", "different values")
        for value in (column.min(), column.max()):  # what a hyperparameter may be is an interval
            model.replace({name: value})
        axes[name] = column
    return axes


def is_positive(model: Model, path: Path) -> bool:
    """Whether a hyperparameter takes positive values only: a temperature, or a kernel's field that says so."""
    return is_temperature(path) or any(isinstance(convert, Positive) for convert in _converters(model, path))


def _name(model: Model, path: Path) -> str | None:
    first = path[0].name
    if first == "kernel":
        return ".".join(_text(key) for key in path)
    if first in ("gamma", "rho"):
        blocks = model.data if first == "gamma" else model.physics
        return first if any(block.temperature is None for block in blocks) else None
    if first == "eta":
        return first
    inside = path[2:]
    if inside[0].name == "temperature":
        return f"{first}.{path[1].idx}.{TEMPERATURES[first]}"
    atom, rest = _atom(model, path)
    if isinstance(atom, Parameter):
        return atom.name
    return None if atom is None else ".".join([atom.name, *(_text(key) for key in rest)])


def _atom(model: Model, path: Path) -> tuple[Parameter | Field | None, Path]:
    """Return the parameter or function inside an operator that a path leads to, and the path within the function."""
    node: Any = model
    for i, key in enumerate(path):
        node = follow(node, (key,))
        if isinstance(node, Parameter | Field):
            return node, path[i + 2 :]
    return None, ()


def _text(key: Any) -> str:
    if isinstance(key, GetAttrKey):
        return key.name
    return str(key.idx if isinstance(key, SequenceKey) else key.key if isinstance(key, DictKey) else key)


def _recheck(model: Model, path: Path, name: str, value: np.ndarray) -> None:
    """Check a new value as the constructor of its owner does."""
    if is_temperature(path):
        as_positive(value, name)
    for convert in _converters(model, path):
        convert(value)


def is_temperature(path: Path) -> bool:
    """Whether a path ends in η, γ, ρ or a block's own temperature."""
    return len(path) == 1 or path[2:] == (GetAttrKey("temperature"),)


def _converters(model: Model, path: Path) -> list[Any]:
    """Return the converters of the field that a path ends in: one at most."""
    owner = follow(model, path[:-1])
    if not (dataclasses.is_dataclass(owner) and isinstance(path[-1], GetAttrKey)):
        return []
    fields = [entry for entry in dataclasses.fields(owner) if entry.name == path[-1].name]
    return [entry.metadata["converter"] for entry in fields if "converter" in entry.metadata]


def _blocks(given: Any, role: str, maker: str) -> tuple[Observation, ...]:
    if isinstance(given, Observation):
        given = (given,)
    expected = f"a block made by ps.{maker}, or a list of them"
    require(isinstance(given, Iterable), role, given, expected)
    flat: list[Observation] = []
    for item in given:
        if isinstance(item, list | tuple):
            flat.extend(_blocks(item, role, maker))
        else:
            require(isinstance(item, Observation), role, item, expected)
            require(item.role == role, role, item, expected)
            flat.append(item)
    return tuple(flat)


def _check_dimensions(model: Model) -> None:
    first, label = model.blocks[0], model.labels[0]
    for block, other in zip(model.blocks, model.labels, strict=True):
        if block.dimension != first.dimension:
            raise InputError(
                f"block {other!r} has points with {block.dimension} coordinates, block {label!r} with "
                f"{first.dimension}: expected the same number everywhere"
            )
    for block, other in zip(model.blocks, model.labels, strict=True):
        check_names(block.operator, model.names, f"block {other!r}")
        model.kernel.check_points(block.points)


def check_bears(kernel: Kernel, indices: Iterable[MultiIndex], what: str) -> None:
    """Raise a `SmoothnessError` that names kernel and operator if a derivative is not there."""
    worst = max((alpha for alpha in indices if not kernel.bears(alpha)), key=sum, default=None)
    if worst is not None:
        order = sum(worst)
        wanted = [f"Matern(nu={p + 0.5})" for p in range(order, min(order + 2, 7))]
        raise SmoothnessError(
            f"{what} takes derivatives of order {order}, but {kernel!r} bears at most {kernel.smoothness} on each "
            f"side. Kernels that would do: {', '.join(['RBF', 'RationalQuadratic', *wanted])}."
        )


def _check_smoothness(model: Model) -> None:
    for block, label in zip(model.blocks, model.labels, strict=True):
        check_bears(model.kernel, block.indices, f"block {label!r}: the operator {block.operator}")


def _check_names(model: Model) -> None:
    for label in model.labels:
        require(model.labels.count(label) == 1, "name", label, "a different name for each block")
    for name, paths in named_paths(model).items():
        kinds = {path[0].name in ("data", "physics") and "operator" in map(_text, path) for path in paths}
        if len(kinds) > 1:
            raise InputError(f"a parameter inside an operator is called {name!r}, which the model uses itself")
        atoms = [atom for path in paths if isinstance(atom := _atom(model, path)[0], Field)]
        if len({jax.tree.structure(atom.function) for atom in atoms}) > 1:
            first = name.split(".")[0]
            raise InputError(f"different functions inside operators are called {first!r}: name them apart")
        values = [np.asarray(follow(model, path)) for path in paths]
        if any(not np.array_equal(v, values[0]) for v in values):
            shown = " and ".join(sorted({str(v) for v in values}))
            raise InputError(f"parameter {name!r} has different values in different operators: {shown}")


def _check_inside(model: Model) -> None:
    regions = [block.region for block in model.physics if block.region is not None]
    if not regions:
        return
    low = np.min([block.points.min(axis=0) for block in model.physics], axis=0)
    high = np.max([block.points.max(axis=0) for block in model.physics], axis=0)
    for block, label in zip(model.data, model.labels, strict=False):
        reach = np.where(high > low, 0.5 * (high - low), np.inf)  # a face says nothing across itself
        out = np.any((block.points < low - reach) | (block.points > high + reach), axis=1)
        if out.any():
            first = block.points[np.flatnonzero(out)[0]]
            warnings.warn(
                f"block {label!r}: {int(out.sum())} of {len(out)} points lie far outside the region where physics "
                f"is imposed, the first at {first}. Are the columns in the order of the coordinates?",
                OutsideDomainWarning,
                stacklevel=3,
            )
