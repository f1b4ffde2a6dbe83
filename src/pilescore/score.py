"""PILE, the Physics-Informed Log Evidence: its value, its terms and its gradient."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from .errors import as_array, require
from .layouts import Layout, layout
from .methods import with_solver
from .model import TEMPERATURES, Model, Path, follow, is_temperature, kernel_paths, named_paths, require_name
from .solvers import Bounds, Solver
from .system import System, solve

LOG_TWO_PI = math.log(2 * math.pi)


class Evidence:
    """A score for each of a number of observations, and the evidence that it is made of."""

    value: float
    size: int

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


@dataclasses.dataclass(frozen=True)
class Pile(Evidence):
    """The Physics-Informed Log Evidence of a model and its terms; lower is better.

    `value = fit + complexity + constant`, per observation. A well-specified model has `fit` near 1.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> x = np.linspace(0, 1, 5)
    >>> model = ps.Model(
    ...     kernel=ps.RBF(bandwidth=0.5),
    ...     data=ps.observe(ps.identity, values=np.exp(-x), at=x),
    ...     physics=ps.impose(dx + ps.identity, 0.0, on=line.interior(ps.GaussLegendre(4))),
    ...     gamma=1e-2,
    ...     rho=1e-2,
    ... )
    >>> score = ps.pile(model)
    >>> score
    Pile(value=0.179804, fit=0.1719, complexity=-1.83, constant=1.838, shares={data.0: 0.1719, physics.0: 0}, size=9)
    >>> round(score.fit + score.complexity + score.constant, 6)
    0.179804
    >>> round(score.log_evidence, 3)  # −N/2 times the value
    -0.809
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
    lower: float = math.nan
    """A bound from below on PILE; with an exact solver `value` itself, which is else the midpoint."""
    upper: float = math.nan
    """A bound from above."""
    solver: str = "dense"
    """Which solver was used, and what it did."""

    def __post_init__(self) -> None:
        if math.isnan(self.lower):
            object.__setattr__(self, "lower", self.value)
            object.__setattr__(self, "upper", self.value)

    def __repr__(self) -> str:
        shares = ", ".join(f"{name}: {share:.4g}" for name, share in self.shares.items())
        within = "" if self.lower == self.upper else f" ± {0.5 * (self.upper - self.lower):.1e}"
        return (
            f"Pile(value={self.value:.6g}{within}, fit={self.fit:.4g}, complexity={self.complexity:.4g}, "
            f"constant={self.constant:.4g}, shares={{{shares}}}, size={self.size})"
        )


def pile(
    model: Model,
    *,
    profiled: bool = False,
    given_physics: bool = False,
    formula: Literal["consistent", "printed"] = "consistent",
    solver: Solver | str | None = None,
) -> Pile:
    """Return the Physics-Informed Log Evidence of a model.

    `PILE = (ỹᵀC⁻¹ỹ + log det C)/N + log 2π`, `C = ηQ + S`.

    Parameters
    ----------
    model
        The model.
    profiled
        Minimise over the scale η in closed form, with `γ/η` and `ρ/η` held where the model has them:
        `η̂ = η ỹᵀC⁻¹ỹ/N`. The result's `eta` is `η̂` and its `fit` is 1.
    given_physics
        Score the data given the physics, `−2 log p(y | r)/n`, instead of both together. PILE proper also rewards
        an operator for being small; to choose an equation or its coefficients, score the data given it.
    formula
        `"printed"` evaluates the formula as the paper prints it, which is not the evidence of its own model:
        `Σ = Q + η·diag(γ, ρ/w)` in place of `C`, and `log 2πη` added. It is there to reproduce its numbers.
    solver
        How `C` is solved: `"dense"` (the default: exact, N³), `"low_rank"` (within proved bounds), `"auto"`, which
        chooses and says why, or a solver with options of its own, as `ps.LowRank(tol=1e-4)`. The result's `lower`
        and `upper` bound PILE, and `solver` says what was done. None is the model's own: models that come from
        functions with a `solver` keep it.

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
    _check_options(model, profiled, given_physics, formula)
    model = with_solver(model, solver)
    if formula == "printed":
        eta = float(model.eta)
        system = solve(model, eta=1.0, noise_factor=2 * eta)
        system.warn_if_imprecise(stacklevel=3)
        return scored(system, None, False, math.log(2 * math.pi * eta), eta)
    return value(_solved(model, warn=True), profiled, given_physics, warn=True)


def pile_and_gradient(
    model: Model,
    names: str | Iterable[str] | None = None,
    *,
    profiled: bool = False,
    given_physics: bool = False,
    solver: Solver | str | None = None,
) -> tuple[Pile, dict[str, Any]]:
    """Return PILE and its gradient by name: `∂PILE = tr[(C⁻¹ − ααᵀ) ∂C] / N`.

    Parameters
    ----------
    model
        The model.
    names
        The hyperparameters to differentiate in; all of `model.parameters` unless given.
    profiled, given_physics
        As for `pile`: the gradient of that score.
    solver
        As for `pile`. With a solver that gives bounds it is the gradient of the midpoint.

    Examples
    --------
    >>> import pilescore as ps
    >>> data = ps.observe(ps.identity, values=[0.0, 1.0, 0.0], at=[0.0, 0.5, 1.0])
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.5), data=data, gamma=0.1)
    >>> score, gradient = ps.pile_and_gradient(model)
    >>> sorted(gradient)
    ['eta', 'gamma', 'kernel.bandwidth']
    """
    _check_options(model, profiled, given_physics, "consistent")
    model = with_solver(model, solver)
    known = named_paths(model)
    wanted = list(known) if names is None else [names] if isinstance(names, str) else list(names)
    for name in wanted:
        require_name(name, known)
    return value_and_gradient(model, wanted, profiled, given_physics, warn=True)


def value(system: System, profiled: bool, given_physics: bool, *, warn: bool) -> Pile:
    """Return PILE of a solved model, with or without warnings; options have been checked."""
    prior = _solved(physics_alone(system.model), warn) if given_physics else None
    return scored(system, prior, profiled)


def value_and_gradient(
    model: Model, wanted: Sequence[str], profiled: bool, given_physics: bool, *, warn: bool
) -> tuple[Pile, dict[str, Any]]:
    """Return PILE and its gradient, with or without warnings; options and names have been checked."""
    known = named_paths(model)
    system = _solved(model, warn)
    prior = _solved(physics_alone(model), warn) if given_physics else None
    result = scored(system, prior, profiled)
    scale = result.eta / system.eta if profiled else 1.0
    gradient = Pull(system, scale).all(wanted, known)
    if prior is not None:
        part = Pull(prior, scale).all(wanted, known)
        gradient = {name: total - part[name] for name, total in gradient.items()}
    return result, {name: plain(total / result.size) for name, total in gradient.items()}


def pile_many(
    model: Model,
    values: Mapping[str, Any],
    *,
    profiled: bool = False,
    given_physics: bool = False,
    solver: Solver | str | None = None,
) -> Float[np.ndarray, " k"]:
    """Return PILE for a batch of hyperparameters: a sequence of values for each name, all of one length.

    Parameters
    ----------
    model
        The model.
    values
        By name, as for `Model.replace`: the i-th score is of the i-th value of each.
    profiled, given_physics
        As for `pile`.
    solver
        As for `pile`.

    Examples
    --------
    >>> import pilescore as ps
    >>> data = ps.observe(ps.identity, values=[0.0, 1.0, 0.0], at=[0.0, 0.5, 1.0])
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.5), data=data, gamma=0.1)
    >>> ps.pile_many(model, {"kernel.bandwidth": [0.1, 0.3, 1.0]}).round(2)
    array([2.2 , 2.2 , 4.04])
    """
    model = with_solver(model, solver)
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
    return np.array([pile(each, profiled=profiled, given_physics=given_physics).value for each in models])


def at_profiled_scale(model: Model, score: Pile) -> Model:
    """Return the model with η and all temperatures multiplied so that its PILE is the profiled one."""
    factor = score.eta / float(model.eta)
    paths = named_paths(model)
    return model.replace(
        {name: value * factor for name, value in model.parameters.items() if is_temperature(paths[name][0])}
    )


def _check_options(model: Model, profiled: bool, given_physics: bool, formula: str) -> None:
    require(isinstance(model, Model), "model", model, "a ps.Model")
    require(formula in ("consistent", "printed"), "formula", formula, "'consistent' or 'printed'")
    for name, option in (("profiled", profiled), ("given_physics", given_physics)):
        require(not (option and formula == "printed"), name, option, "False with the printed formula")
    check_given(model, given_physics)


def check_given(model: Model, given_physics: bool) -> None:
    """Raise an `InputError` if a model has not both, data and physics, where one is to be scored given the other."""
    both = bool(model.data) and bool(model.physics)
    require(both or not given_physics, "given_physics", given_physics, "False unless there are both, data and physics")


def _solved(model: Model, warn: bool) -> System:
    system = solve(model, explain=warn)
    if warn:
        system.warn_if_imprecise(stacklevel=4)
    return system


def physics_alone(model: Model) -> Model:
    """Return the model without its data."""
    alone = copy.copy(model)
    object.__setattr__(alone, "data", ())
    return alone


def scored(
    system: System,
    prior: System | None,
    profiled: bool,
    constant: float = LOG_TWO_PI,
    eta: float | None = None,
) -> Pile:
    """Return PILE of a system, or of its data given the physics whose system is `prior`."""
    eta = system.eta if eta is None else eta
    quadratic, logdet, n, rounding = system.factored.quadratic, system.logdet, len(system.values), system.error
    shares = system.assembly.by_block(system.values * system.alpha)
    if prior is not None:
        quadratic, logdet = quadratic - prior.factored.quadratic, logdet - prior.logdet
        n -= len(prior.values)
        rounding += prior.error
        for name, share in prior.assembly.by_block(prior.values * prior.alpha).items():
            shares[name] -= share
    found = from_parts(quadratic.value, logdet.value, shares, n, eta, rounding, constant)
    found = at_best_scale(found) if profiled else found
    fits = Bounds(quadratic.lower / n, quadratic.upper / n)
    if profiled:
        fits = Bounds(*(1.0 + math.log(fit) if fit > 0 else -math.inf for fit in (fits.lower, fits.upper)))
    lower, upper = found.value, found.value
    if quadratic.width > 0 or logdet.width > 0:
        lower, upper = fits.lower + logdet.lower / n + constant, fits.upper + logdet.upper / n + constant
    return dataclasses.replace(found, lower=lower, upper=upper, solver=system.factored.account)


def from_parts(
    quadratic: float,
    logdet: float,
    shares: Mapping[str, float],
    n: int,
    eta: float,
    rounding: float,
    constant: float = LOG_TWO_PI,
) -> Pile:
    """Return the score whose `ỹᵀC⁻¹ỹ` (and each block's share of it) and `log det C` are given."""
    fit, complexity = quadratic / n, logdet / n
    parts = {name: share / n for name, share in shares.items()}
    return Pile(fit + complexity + constant, fit, complexity, constant, parts, n, eta, rounding / n)


def at_best_scale(plain: Pile) -> Pile:
    """Return the profiled score that belongs to a plain one."""
    require(plain.fit > 0, "profiled", "values that are all zero", "a value that is not zero, to set the scale")
    complexity = plain.complexity + math.log(plain.fit)
    shares = {name: share / plain.fit for name, share in plain.shares.items()}
    return dataclasses.replace(
        plain,
        value=1.0 + complexity + plain.constant,
        fit=1.0,
        complexity=complexity,
        shares=shares,
        eta=plain.eta * plain.fit,
        lower=math.nan,  # those of the plain score no longer hold
        upper=math.nan,
    )


class Pull:
    """Contracts `G = C⁻¹ − ααᵀ/scale` with derivatives of `C`; `scale` is the fit where η is profiled."""

    def __init__(self, system: System, scale: float) -> None:
        self.system = system
        self.scale = scale
        self.pull = system.factored.pull(scale)
        self.diagonal = self.pull.diagonal

    def all(self, wanted: Sequence[str], known: Mapping[str, list[Path]]) -> dict[str, Any]:
        """Return the contractions for all names, zero for those that this system does not have."""
        found = self.temperatures(wanted)
        found |= self.kernel({name: known[name] for name in wanted if name.startswith("kernel.")})
        mine = named_paths(self.system.model)
        rest = [name for name in wanted if name not in found]
        found |= self.operators({name: mine[name] for name in rest if name in mine})
        return {name: found.get(name, 0.0) for name in wanted}

    def temperatures(self, wanted: Sequence[str]) -> dict[str, Any]:
        """Return the gradient in η and in every γ and ρ: only the diagonal of `G` is needed."""
        system, model = self.system, self.system.model
        found: dict[str, Any] = {}
        if "eta" in wanted:
            noise = float(system.noise @ self.diagonal)
            found["eta"] = (len(system.values) - system.quadratic / self.scale - noise) / system.eta
        parts = np.bincount(system.assembly.block, weights=self.diagonal * system.assembly.spread)
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
        model = self.system.model
        position = {path: i for i, path in enumerate(kernel_paths(model))}
        leaves = [position[where[0]] for where in paths.values()]
        total = iter(self.pull.contract(self.system.factored.covariance.tangent(leaves)))
        shapes = {name: np.shape(follow(model, where[0])) for name, where in paths.items()}
        return {name: np.reshape([next(total) for _ in range(math.prod(s))], s) for name, s in shapes.items()}

    def operators(self, paths: Mapping[str, list[Path]]) -> dict[str, Any]:
        """Return the gradient in parameters inside operators, through the coefficients at the nodes."""
        model = self.system.model
        found: dict[str, Any] = {}
        for name, where in paths.items():
            leaf = follow(model, where[0])
            moved = [_moved(model, where, unit.reshape(leaf.shape)) for unit in np.eye(leaf.size)]
            total = self.pull.contract(self.system.factored.covariance.moved(moved))
            found[name] = np.reshape(total, leaf.shape)
        return found


def plain(value: Any) -> Any:
    """Return a single number as a float, an array as it is."""
    return float(value) if np.ndim(value) == 0 else value


def _moved(model: Model, where: list[Path], unit: Any) -> Layout:
    """Return the layout whose coefficients are the derivatives in one parameter, wherever it stands."""

    def tables(leaf: Any) -> list[Any]:
        moved = eqx.tree_at(lambda m: [follow(m, path) for path in where], model, [leaf] * len(where))
        return [block.coefficients for block in moved.blocks]

    _, tangents = jax.jvp(tables, (follow(model, where[0]),), (unit,))
    return layout(model.blocks, tangents)
