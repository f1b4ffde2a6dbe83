"""PILE, the Physics-Informed Log Evidence: its value, its terms and its gradient."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from .errors import as_array, require
from .gram import Layout, Weights, coefficient_gradient, kernel_gradient, layout
from .model import TEMPERATURES, Model, Path, follow, kernel_paths, named_paths, require_name
from .system import System, solve


@dataclasses.dataclass(frozen=True)
class Pile:
    """The Physics-Informed Log Evidence of a model and its terms; lower is better.

    `value = fit + complexity + constant`, per observation. A well-specified model has `fit` near 1.
    """

    value: float
    """`2F/N`, with `F` the negative log evidence."""
    fit: float
    """`ỹᵀC⁻¹ỹ / N`."""
    complexity: float
    """`log det C / N`."""
    constant: float
    """`log 2π` (the printed formula: `log 2πη`)."""
    shares: Mapping[str, float]
    """What each block adds to `fit`; a share may be negative where blocks explain each other."""
    size: int
    """The number of observations, N."""
    eta: float
    """The scale η: the model's, or the profiled one."""
    rounding: float
    """An estimate of the rounding error of `value`."""

    @property
    def free_energy(self) -> float:
        """`F`, the negative log evidence."""
        return 0.5 * self.size * self.value

    @property
    def log_evidence(self) -> float:
        """`−F`, the log marginal likelihood."""
        return -self.free_energy

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        shares = ", ".join(f"{name}: {share:.4g}" for name, share in self.shares.items())
        return (
            f"Pile(value={self.value:.6g}, fit={self.fit:.4g}, complexity={self.complexity:.4g}, "
            f"constant={self.constant:.4g}, shares={{{shares}}}, size={self.size})"
        )


def pile(model: Model, *, profiled: bool = False, formula: Literal["consistent", "printed"] = "consistent") -> Pile:
    """Return the Physics-Informed Log Evidence of a model.

    `PILE = (ỹᵀC⁻¹ỹ + log det C)/N + log 2π`, `C = ηQ + S`.

    Parameters
    ----------
    model
        The model.
    profiled
        Minimise over the scale η in closed form, with `γ/η` and `ρ/η` held where the model has them:
        `η̂ = η ỹᵀC⁻¹ỹ/N`. The result's `eta` is `η̂` and its `fit` is 1.
    formula
        `"printed"` evaluates the formula as the paper prints it, which is not the evidence of its own model:
        `Σ = Q + η·diag(γ, ρ/w)` in place of `C`, and `log 2πη` added. It is there to reproduce its numbers.

    Examples
    --------
    >>> import pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> model = ps.Model(
    ...     kernel=ps.RBF(bandwidth=0.5),
    ...     data=ps.observe(ps.identity, values=[0.0, 1.0], at=[0.0, 1.0]),
    ...     physics=ps.impose(dx**2, 0.0, on=line.interior(ps.GaussLegendre(4))),
    ...     gamma=1e-2,
    ...     rho=1e-2,
    ... )
    >>> ps.pile(model)
    Pile(value=4.26163, fit=0.3231, complexity=2.101, constant=1.838, shares={data.0: 0.3231, physics.0: 0}, size=6)
    """
    _check_options(model, profiled, formula)
    if formula == "printed":
        eta = float(model.eta)
        system = solve(model, eta=1.0, noise_factor=2 * eta)
        system.warn_if_imprecise()
        return _result(system, math.log(2 * math.pi * eta), eta)
    system = solve(model)
    system.warn_if_imprecise()
    return _profiled(system) if profiled else _result(system, math.log(2 * math.pi), system.eta)


def pile_and_gradient(
    model: Model, names: str | Iterable[str] | None = None, *, profiled: bool = False
) -> tuple[Pile, dict[str, Any]]:
    """Return PILE and its gradient by name: `∂PILE = tr[(C⁻¹ − ααᵀ) ∂C] / N`.

    Parameters
    ----------
    model
        The model.
    names
        The hyperparameters to differentiate in; all of `model.parameters` unless given.
    profiled
        As for `pile`: the gradient of the profiled score.

    Examples
    --------
    >>> import pilescore as ps
    >>> data = ps.observe(ps.identity, values=[0.0, 1.0, 0.0], at=[0.0, 0.5, 1.0])
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.5), data=data, gamma=0.1)
    >>> score, gradient = ps.pile_and_gradient(model)
    >>> sorted(gradient)
    ['eta', 'gamma', 'kernel.bandwidth']
    """
    _check_options(model, profiled, "consistent")
    known = named_paths(model)
    wanted = list(known) if names is None else [names] if isinstance(names, str) else list(names)
    for name in wanted:
        require_name(name, known)
    system = solve(model)
    system.warn_if_imprecise()
    result = _profiled(system) if profiled else _result(system, math.log(2 * math.pi), system.eta)
    pull = _Pull(system, system.fit if profiled else 1.0)
    gradient = pull.temperatures(wanted)
    gradient |= pull.kernel({name: known[name] for name in wanted if name.startswith("kernel.")})
    rest = [name for name in wanted if name not in gradient]
    gradient |= pull.operators({name: known[name] for name in rest})
    return result, {name: gradient[name] for name in wanted}


def pile_many(model: Model, values: Mapping[str, Any], *, profiled: bool = False) -> Float[np.ndarray, " k"]:
    """Return PILE for a batch of hyperparameters: a sequence of values for each name, all of one length.

    Examples
    --------
    >>> import pilescore as ps
    >>> data = ps.observe(ps.identity, values=[0.0, 1.0, 0.0], at=[0.0, 0.5, 1.0])
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.5), data=data, gamma=0.1)
    >>> ps.pile_many(model, {"kernel.bandwidth": [0.1, 0.3, 1.0]}).round(2)
    array([2.2 , 2.2 , 4.04])
    """
    known = named_paths(model)
    columns = {}
    for name, column in values.items():
        require_name(name, known)
        columns[name] = as_array(column, name)
        require(columns[name].ndim > 0, name, column, "a sequence of values")
    lengths = {name: len(column) for name, column in columns.items()}
    require(len(set(lengths.values())) == 1, "values", lengths, "sequences of one length")
    count = next(iter(lengths.values()))
    models = [model.replace({name: column[i] for name, column in columns.items()}) for i in range(count)]
    return np.array([pile(each, profiled=profiled).value for each in models])


def _check_options(model: Model, profiled: bool, formula: str) -> None:
    require(isinstance(model, Model), "model", model, "a ps.Model")
    require(formula in ("consistent", "printed"), "formula", formula, "'consistent' or 'printed'")
    require(not (profiled and formula == "printed"), "profiled", profiled, "False with the printed formula")


def _result(system: System, constant: float, eta: float) -> Pile:
    n = len(system.values)
    fit, complexity = system.fit, system.factor.logdet / n
    shares = system.assembly.by_block(system.values * system.alpha / n)
    value = fit + complexity + constant
    return Pile(value, fit, complexity, constant, shares, n, eta, system.rounding)


def _profiled(system: System) -> Pile:
    plain = _result(system, math.log(2 * math.pi), system.eta)
    require(plain.fit > 0, "profiled", "values that are all zero", "a value that is not zero, to set the scale")
    complexity = plain.complexity + math.log(plain.fit)
    shares = {name: share / plain.fit for name, share in plain.shares.items()}
    return dataclasses.replace(
        plain,
        value=1.0 + complexity + plain.constant,
        fit=1.0,
        complexity=complexity,
        shares=shares,
        eta=system.eta * plain.fit,
    )


class _Pull:
    """Contracts `G = C⁻¹ − ααᵀ/scale` with derivatives of `C`; `scale` is the fit where η is profiled."""

    def __init__(self, system: System, scale: float) -> None:
        self.system = system
        self.scale = scale
        self.size = len(system.values)
        self.weights = Weights(system.factor.invert().T, system.alpha, scale)
        self.diagonal = self.weights.matrix.diagonal() - system.alpha**2 / scale

    def temperatures(self, wanted: Sequence[str]) -> dict[str, Any]:
        """Return the gradient in η and in every γ and ρ: only the diagonal of `G` is needed."""
        system, model = self.system, self.system.model
        found: dict[str, Any] = {}
        if "eta" in wanted:
            noise = float(system.noise @ self.diagonal)
            found["eta"] = (self.size - system.fit * self.size / self.scale - noise) / (self.size * system.eta)
        parts = np.bincount(system.assembly.block, weights=self.diagonal * system.assembly.spread) / self.size
        numbers = (*range(len(model.data)), *range(len(model.physics)))
        for block, i, part in zip(model.blocks, numbers, parts, strict=True):
            shared = TEMPERATURES[block.role]
            name = shared if block.temperature is None else f"{block.role}.{i}.{shared}"
            if name in wanted:
                found[name] = found.get(name, 0.0) + float(part)
        return found

    def kernel(self, paths: Mapping[str, list[Path]]) -> dict[str, Any]:
        """Return the gradient in the kernel's hyperparameters by forward mode through the assembly."""
        if not paths:
            return {}
        model, rows, eta = self.system.model, self.system.rows, self.system.eta
        position = {path: i for i, path in enumerate(kernel_paths(model))}
        leaves = [position[where[0]] for where in paths.values()]
        total = kernel_gradient(model.kernel, leaves, rows, eta, self.weights)
        return {name: _plain(part / self.size) for name, part in zip(paths, total, strict=True)}

    def operators(self, paths: Mapping[str, list[Path]]) -> dict[str, Any]:
        """Return the gradient in parameters inside operators, through the coefficients at the nodes."""
        model, rows, eta = self.system.model, self.system.rows, self.system.eta
        found: dict[str, Any] = {}
        for name, where in paths.items():
            leaf = follow(model, where[0])
            moved = [_moved(model, where, unit.reshape(leaf.shape)) for unit in np.eye(leaf.size)]
            total = [coefficient_gradient(model.kernel, each, rows, eta, self.weights) for each in moved]
            found[name] = _plain(np.reshape(total, leaf.shape) / self.size)
        return found


def _plain(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else value


def _moved(model: Model, where: list[Path], unit: Any) -> Layout:
    """Return the layout whose coefficients are the derivatives in one parameter, wherever it stands."""

    def tables(leaf: Any) -> list[Any]:
        moved = eqx.tree_at(lambda m: [follow(m, path) for path in where], model, [leaf] * len(where))
        return [block.coefficients for block in moved.blocks]

    _, tangents = jax.jvp(tables, (follow(model, where[0]),), (unit,))
    return layout(model.blocks, tangents)
