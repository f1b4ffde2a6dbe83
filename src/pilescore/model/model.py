"""The model: a kernel, observations of data and physics, three temperatures, and a solver."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..equations import CoefficientFunction, MultiIndex
from ..errors import InputError, OutsideDomainWarning, SmoothnessError, as_positive, did_you_mean, require
from ..kernels import Kernel
from .hyperparameters import Path, atom_at, check_value, find, follow, named_paths, role_of, whole_values
from .observations import TEMPERATURES, Observation, check_names, labels
from .priors import NamedPriors, as_priors
from .solver import Solver, as_solver


class Model(eqx.Module):
    """A Gaussian process `f ~ GP(0, ηk)` with noisy observations of operators applied to it.

    Its negative log posterior is, up to constants,
    `(1/γ) Σ (f(x_i) − y_i)² + (1/ρ) Σ w_j (A f(z_j) − r_j)² + (1/2η) ‖f‖²`: data loss, physics loss, regularisation.

    Parameters
    ----------
    kernel
        The covariance function `k`.
    data
        One block made by `observe`, or a list of blocks.
    physics
        One block made by `impose`, or a list of blocks. Nested lists are flattened.
    gamma, rho, eta
        The temperatures γ and ρ and the scale η. A block may have its own temperature. The noise variance is `γ/2` for
        a measurement and `ρ/2w` for a physics node of weight `w`. Without `rho`, physics without a temperature or
        noise of its own is exact.
    solver
        How the covariance is solved: `"dense"` (exact, `N³` operations), `"low_rank"` (with proved bounds), `"auto"`
        (chooses, and says why), `"kronecker"`, `"distributed"`, or a solver with options such as
        `ps.solvers.LowRank(tolerance=1e-4)`.
    priors
        What is known about hyperparameters: `{"rate": ps.priors.Normal(0.5, 0.1)}`, with names as in `replace`. Their
        densities multiply the evidence, so they enter `pile`, searches and standard errors. Scores without data
        (`data_free_pile`) and losses do not contain them.

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
    >>> model.roles
    {'kernel.bandwidth': 'length', 'gamma': 'data_temperature', 'rho': 'physics_temperature', 'eta': 'scale'}
    >>> model.replace({"kernel.bandwidth": 0.3}).parameters["kernel.bandwidth"]
    0.3
    """

    kernel: Kernel
    data: tuple[Observation, ...]
    physics: tuple[Observation, ...]
    gamma: Float[np.ndarray, ""] = eqx.field(metadata={"role": "data_temperature"})
    rho: Float[np.ndarray, ""] | None = eqx.field(metadata={"role": "physics_temperature"})
    eta: Float[np.ndarray, ""] = eqx.field(metadata={"role": "scale"})
    solver: Solver = eqx.field(static=True)
    """How the covariance is solved."""
    priors: NamedPriors = eqx.field(static=True)
    """The priors of hyperparameters by name."""

    def __init__(
        self,
        kernel: Kernel,
        data: Observation | Iterable[Any] = (),
        physics: Observation | Iterable[Any] = (),
        gamma: Any = 1.0,
        rho: Any = None,
        eta: Any = 1.0,
        solver: Solver | str = "dense",
        priors: Mapping[str, Any] = NamedPriors(),
    ) -> None:
        self._set(kernel, data, physics, gamma, rho, eta, solver)
        self._set_priors(priors)
        _check_inside(self)

    def _set(self, kernel: Any, data: Any, physics: Any, gamma: Any, rho: Any, eta: Any, solver: Any) -> None:
        """Check the parts and set the fields, except the priors."""
        require(isinstance(kernel, Kernel), "kernel", kernel, "a kernel such as ps.RBF(bandwidth=0.5)")
        parts = {"kernel": kernel, "data": _blocks(data, "data", "observe")}
        parts["physics"] = _blocks(physics, "physics", "impose")
        for name, value in (("gamma", gamma), ("rho", rho), ("eta", eta)):
            parts[name] = None if name == "rho" and value is None else np.array(as_positive(value, name))
        chosen = as_solver(solver)
        blocks = parts["data"] + parts["physics"]
        if not blocks:
            raise InputError("data, physics: expected at least one block made by ps.observe or ps.impose; got none")
        parts["solver"] = chosen.for_nonlinear() if any(block.is_nonlinear for block in blocks) else chosen
        for name, part in parts.items():
            object.__setattr__(self, name, part)  # the class is frozen outside __init__
        _check_blocks(self)
        _check_names(self)

    def _set_priors(self, priors: Any) -> None:
        object.__setattr__(self, "priors", as_priors(priors))
        if not self.priors:
            return
        parameters = self.parameters
        taken: list[tuple[str, tuple[int, ...]]] = []
        for name, (base, index) in self._prior_targets().items():
            clash = any(base == other and (index == at or not (index and at)) for other, at in taken)
            require(not clash, f"priors[{name!r}]", name, "a hyperparameter that has no other prior")
            taken.append((base, index))
            self.priors[name].check(name, () if index else np.shape(parameters[base]))
        _check_positive(self)

    def _prior_targets(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the hyperparameter, and the index of its element, that each prior is on."""
        known = named_paths(self) if self.priors else {}
        return {name: find(self, known, name) for name in self.priors}

    def _prior_values(self) -> dict[str, np.ndarray]:
        """Return the present value of what each prior is on."""
        parameters = self.parameters if self.priors else {}
        targets = self._prior_targets().items()
        return {name: np.asarray(np.asarray(parameters[base])[index]) for name, (base, index) in targets}

    @property
    def log_prior(self) -> float:
        """The log density of the priors at the present hyperparameters; zero without priors."""
        return math.fsum(self.priors[name].log_density(value) for name, value in self._prior_values().items())

    @property
    def log_prior_slopes(self) -> dict[str, np.ndarray]:
        """The derivatives of `log_prior` by each hyperparameter with a prior, or with one on an element."""
        slopes: dict[str, np.ndarray] = {}
        values = self._prior_values()
        for name, (base, index) in self._prior_targets().items():
            whole = slopes.setdefault(base, np.zeros(np.shape(self.parameters[base])))
            whole[index] += self.priors[name].slope(values[name])
        return slopes

    @property
    def blocks(self) -> tuple[Observation, ...]:
        """All blocks, data first: the order of the stacked values."""
        return self.data + self.physics

    @property
    def is_nonlinear(self) -> bool:
        """Whether a block observes a nonlinear function of `f`."""
        return any(block.is_nonlinear for block in self.blocks)

    @property
    def labels(self) -> tuple[str, ...]:
        """The label of each block: its name, or its role and number such as `physics.0`."""
        return labels(self.blocks)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the coordinates; empty if no operator names them."""
        return next((block.operator.names for block in self.blocks if block.operator.names), ())

    @property
    def size(self) -> int:
        """The number of observed values, N."""
        return sum(block.size for block in self.blocks)

    @property
    def rows(self) -> tuple[slice, ...]:
        """The rows of each block among the stacked values."""
        ends = itertools.accumulate(block.size for block in self.blocks)
        return tuple(slice(end - block.size, end) for end, block in zip(ends, self.blocks, strict=True))

    @property
    def values(self) -> Float[np.ndarray, " N"]:
        """The values `ỹ` of all blocks."""
        return np.concatenate([block.values for block in self.blocks])

    def is_exact(self, block: int) -> bool:
        """Whether the block at this position of `blocks` is physics that holds exactly."""
        each = self.blocks[block]
        return each.exact or (each.role == "physics" and each.temperature is None and self.rho is None)

    @property
    def temperatures(self) -> tuple[float, ...]:
        """The temperature of each block: its own, or the model's γ or ρ."""
        # An exact block that has no tolerance yet counts as zero.
        shared = {"data": float(self.gamma), "physics": 0.0 if self.rho is None else float(self.rho)}
        return tuple(
            shared[block.role] if block.temperature is None else float(block.temperature) for block in self.blocks
        )

    @property
    def temperature_names(self) -> tuple[str, ...]:
        """The name of each block's temperature: its own, such as `data.0.gamma`, or a shared one."""
        names = []
        for role, blocks in (("data", self.data), ("physics", self.physics)):
            shared = TEMPERATURES[role]
            names += [shared if b.temperature is None else f"{role}.{i}.{shared}" for i, b in enumerate(blocks)]
        return tuple(names)

    @property
    def noise(self) -> Float[np.ndarray, " N"]:
        """The noise variances `s² = τ/2w` of the values."""
        pairs = zip(self.temperatures, self.blocks, strict=True)
        return np.concatenate([0.5 * temperature / block.weights for temperature, block in pairs])

    @property
    def parameters(self) -> dict[str, float | np.ndarray]:
        """The values of all hyperparameters by name; `replace` changes them."""
        values = {name: np.asarray(follow(self, paths[0])) for name, paths in named_paths(self).items()}
        return {name: float(value) if value.ndim == 0 else value for name, value in values.items()}

    @property
    def roles(self) -> dict[str, str]:
        """What kind of quantity each hyperparameter is.

        Kernels declare `length`, `period`, `variance`, `ratio`, `angle` or `number` for their fields. γ is a
        `data_temperature`, ρ a `physics_temperature` and η the `scale`. Parameters inside operators are `coefficient`.
        """
        return {name: role_of(self, paths[0]) for name, paths in named_paths(self).items()}

    def replace(self, values: Mapping[str, Any] | None = None, **parts: Any) -> Model:
        """Return a model with other hyperparameters, blocks, kernel or solver; everything else is kept.

        New values and parts are checked as in the constructor. Priors of hyperparameters that the new model does not
        have are dropped.

        Parameters
        ----------
        values
            New values by name. Names are paths (`kernel.bandwidth`, `kernel.parts.0.bandwidth`, `gamma`, `rho`, `eta`;
            `data.0.gamma` and `physics.1.rho` for a block's own temperature) or the names of parameters inside
            operators. An index selects one element: `kernel.bandwidth[0]`.
        parts
            Arguments of `Model`: `kernel`, `data`, `physics`, `solver`, `priors`, …

        Examples
        --------
        >>> import pilescore as ps
        >>> data = ps.observe(ps.identity, values=[1.0], at=[[0.0, 0.0]])
        >>> model = ps.Model(ps.RBF(bandwidth=[0.5, 2.0]), data=data)
        >>> model.replace({"kernel.bandwidth[1]": 3.0, "gamma": 0.1}).parameters
        {'kernel.bandwidth': array([0.5, 3. ]), 'gamma': 0.1, 'eta': 1.0}
        >>> model.replace(kernel=ps.Matern(2.5), solver="auto").kernel
        Matern(nu=2.5, bandwidth=1.)
        >>> model.replace({"kernel.bandwith": 0.3})
        Traceback (most recent call last):
        ...
        pilescore.errors.InputError: no hyperparameter 'kernel.bandwith'. Did you mean 'kernel.bandwidth'? This model
        has: kernel.bandwidth, gamma, eta
        """
        model = self._with_parts(parts) if parts else self
        return model._with_values(values) if values else model

    def _with_parts(self, parts: Mapping[str, Any]) -> Model:
        names = [entry.name for entry in dataclasses.fields(self)]
        for name in parts:
            if name not in names:
                hint = did_you_mean(name, names, 0.5)
                raise InputError(f"replace: a model has no part {name!r}, only {', '.join(names)}{hint}")
        model = object.__new__(Model)
        model._set(**{name: parts.get(name, getattr(self, name)) for name in names if name != "priors"})
        model._set_priors(parts["priors"] if "priors" in parts else self._priors_for(model))
        # A search replaces parts many times; it must not repeat a warning about points that were there before.
        if {id(block.points) for block in model.blocks} - {id(block.points) for block in self.blocks}:
            _check_inside(model)
        return model

    def _priors_for(self, model: Model) -> NamedPriors:
        """Return the priors of hyperparameters that another model has too."""
        if not self.priors:
            return self.priors
        known, targets = named_paths(model), self._prior_targets()
        return NamedPriors(tuple(entry for entry in self.priors.entries if targets[entry[0]][0] in known))

    def _with_values(self, values: Mapping[str, Any]) -> Model:
        known = named_paths(self)
        changes: dict[str, list[tuple[Path, Any]]] = {}
        for name, new in whole_values(self, known, values).items():
            for path in known[name]:
                check_value(self, path, name, new)
                changes.setdefault(path[0].name, []).append((path[1:], new if len(path) == 1 else jnp.asarray(new)))
        model = object.__new__(Model)
        # Unchanged parts stay the same objects, because compiled functions and cached tables are keyed by identity.
        for entry in dataclasses.fields(self):
            part = getattr(self, entry.name)
            if entry.name in changes:
                paths, leaves = zip(*changes[entry.name], strict=True)
                part = eqx.tree_at(functools.partial(_leaves, paths), part, leaves)
            object.__setattr__(model, entry.name, part)
        if model.priors:
            _check_positive(model)
        return model

    def __repr__(self) -> str:
        lines = [f"kernel={self.kernel!r},"]
        lines += [f"{role}={list(getattr(self, role))!r}," for role in ("data", "physics")]
        rho = "" if self.rho is None else f"rho={float(self.rho):g}, "
        lines += [f"gamma={float(self.gamma):g}, {rho}eta={float(self.eta):g},"]
        lines += [f"priors={self.priors!r},"] if self.priors else []
        return "Model(\n    " + "\n    ".join(lines) + "\n)"


def _leaves(paths: Iterable[Path], root: Any) -> list[Any]:
    return [follow(root, path) for path in paths]


def _blocks(given: Any, role: str, maker: str) -> tuple[Observation, ...]:
    if isinstance(given, Observation):
        given = (given,)
    expected = f"a block made by ps.{maker}, or a list of such blocks"
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


def _check_blocks(model: Model) -> None:
    """Check that blocks agree on the coordinates, and that the kernel is defined and smooth enough at their points."""
    labelled = list(zip(model.labels, model.blocks, strict=True))
    first_label, first = labelled[0]
    for label, block in labelled:  # all of them before the kernel sees a point
        if block.dimension != first.dimension:
            raise InputError(
                f"block {label!r} has points with {block.dimension} coordinates, but block {first_label!r} has points "
                f"with {first.dimension}: all blocks need the same number"
            )
    for label, block in labelled:
        check_names(block.operator, model.names, f"block {label!r}")
        model.kernel.check_points(block.points)
    for label, block in labelled:
        check_smoothness(model.kernel, block.indices, f"block {label!r}: the operator {block.operator}")


def check_smoothness(kernel: Kernel, indices: Iterable[MultiIndex], what: str) -> None:
    """Raise a `SmoothnessError` that names the kernel and the operator if the kernel lacks a derivative."""
    worst = max((alpha for alpha in indices if not kernel.supports(alpha)), key=sum, default=None)
    if worst is not None:
        order = sum(worst)
        wanted = [f"Matern(nu={p + 0.5})" for p in range(order, min(order + 2, 7))]
        raise SmoothnessError(
            f"{what} takes derivatives of order {order}, but {kernel!r} supports at most order {kernel.smoothness} on "
            f"each side. Kernels that support it: {', '.join(['RBF', 'RationalQuadratic', *wanted])}."
        )


def _check_names(model: Model) -> None:
    for label in model.labels:
        require(model.labels.count(label) == 1, "name", label, "a different name for each block")
    for name, paths in named_paths(model).items():
        kinds = {role_of(model, path) == "coefficient" for path in paths}
        if len(kinds) > 1:
            raise InputError(f"a parameter inside an operator is named {name!r}, which the model uses itself")
        atoms = [atom for path in paths if isinstance(atom := atom_at(model, path)[0], CoefficientFunction)]
        if len({jax.tree.structure(atom.function) for atom in atoms}) > 1:
            first = name.split(".")[0]
            raise InputError(f"different functions inside operators are named {first!r}: give them different names")
        values = [np.asarray(follow(model, path)) for path in paths]
        if any(not np.array_equal(v, values[0]) for v in values):
            shown = " and ".join(sorted({str(v) for v in values}))
            raise InputError(f"parameter {name!r} has different values in different operators: {shown}")


def _check_positive(model: Model) -> None:
    for name, value in model._prior_values().items():
        if model.priors[name].logarithmic:
            require(bool(np.all(value > 0.0)), name, value, "a positive value, as its prior is on the logarithm")


def _check_inside(model: Model) -> None:
    regions = [block.region for block in model.physics if block.region is not None]
    if not regions:
        return
    low = np.min([block.points.min(axis=0) for block in model.physics], axis=0)
    high = np.max([block.points.max(axis=0) for block in model.physics], axis=0)
    for block, label in zip(model.data, model.labels, strict=False):
        # A boundary face has no extent across itself, so it says nothing about that coordinate.
        reach = np.where(high > low, 0.5 * (high - low), np.inf)
        out = np.any((block.points < low - reach) | (block.points > high + reach), axis=1)
        if out.any():
            first = block.points[np.flatnonzero(out)[0]]
            warnings.warn(
                f"block {label!r}: {int(out.sum())} of {len(out)} points lie far outside the region where physics "
                f"is imposed, the first at {first}. Are the columns in the order of the coordinates?",
                OutsideDomainWarning,
                stacklevel=3,
            )
