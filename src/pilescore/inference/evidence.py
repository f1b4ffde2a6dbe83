"""PILE, the Physics-Informed Log Evidence, and its gradient, for linear and nonlinear models.

Everything that scores a model calls `systems_of`: `pile` here, and searches, sweeps, comparisons and diagnosis.
"""

from __future__ import annotations

import dataclasses
import math
import types
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from ..errors import InputError, NotPositiveDefiniteError, NotSolvedError, ToleranceError, require
from ..model import Model, eta_and_temperatures, named_paths, require_name
from ..nonlinear import MapEstimate, Solution, as_solution, gradient, solve_or_follow
from ..solvers import (
    IMPRECISE,
    IMPRECISE_NATS,
    LARGEST_THREADED,
    Bounds,
    NamedGradient,
    System,
    contradiction,
    plain,
    solve,
    with_tolerances,
)
from .score import Score, as_score

LOG_TWO_PI = math.log(2 * math.pi)

START_TOLERANCE = 1e-5
"""The tolerance of exact equations when they are checked for contradictions, and at the start of a search."""


class Evidence:
    """A score per observation, `2F/N`, and the evidence it stands for.

    If the model has priors on hyperparameters, the evidence is multiplied by their density.
    """

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

    `value = fit + complexity + constant + prior`, per observation. A well-specified model has `fit` near 1.

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
    """`log 2π`; `log 2πη` in the printed formula."""
    shares: Mapping[str, float]
    """The contribution of each block to `fit`. It can be negative if blocks explain each other."""
    size: int
    """The number of observations, N."""
    eta: float
    """The scale η: the model's, or the profiled one."""
    rounding: float
    """An estimate of the rounding error of `value`."""
    lower: float = math.nan
    """A lower bound on PILE. With an exact solver both bounds equal `value`; otherwise `value` is their midpoint."""
    upper: float = math.nan
    """An upper bound on PILE."""
    solver: str = "dense"
    """The solver that was used, and a summary of its work."""
    given: int = 0
    """The number of observations that the scored ones are given."""
    exact: bool = False
    """Whether an equation or condition is exact."""
    missed: float = 0.0
    """The mean square residual of the nonlinear exact equation that is missed most, in tolerances."""
    prior: float = 0.0
    """`−2 log p(θ) / N`, with `p` the density of the priors on hyperparameters `θ`; zero without priors."""
    solution: Solution | None = dataclasses.field(default=None, compare=False, repr=False)
    """The most likely solution of a nonlinear model, around which it was linearised."""

    def __post_init__(self) -> None:
        if math.isnan(self.lower):  # no bounds given: the score is exact
            object.__setattr__(self, "lower", self.value)
            object.__setattr__(self, "upper", self.value)

    @property
    def is_imprecise(self) -> bool:
        """Whether rounding matters. Exact equations cost digits by design; there it is nats that count."""
        by_design = self.exact or self.given > 0
        return self.size * self.rounding > 2.0 * IMPRECISE_NATS if by_design else self.rounding > IMPRECISE

    def __repr__(self) -> str:
        shares = ", ".join(f"{name}: {share:.4g}" for name, share in self.shares.items())
        within = "" if self.lower == self.upper else f" ± {0.5 * (self.upper - self.lower):.1e}"
        prior = f"prior={self.prior:.4g}, " if self.prior else ""
        return (
            f"Pile(value={self.value:.6g}{within}, fit={self.fit:.4g}, complexity={self.complexity:.4g}, "
            f"constant={self.constant:.4g}, {prior}shares={{{shares}}}, size={self.size})"
        )


def pile(model: Model, score: Score | str = "joint") -> Pile:
    """Return the Physics-Informed Log Evidence of a model.

    `PILE = (ỹᵀC⁻¹ỹ + log det C)/N + log 2π`, with `C = ηQ + S`. A nonlinear model is first solved, then linearised
    around its most likely solution, which the result holds as `solution`. If the model has priors with density `p(θ)`,
    `−2 log p(θ)/N` is added: the evidence is multiplied by `p(θ)`.

    Parameters
    ----------
    model
        The model. Its solver computes the score; the result's `lower` and `upper` bound PILE.
    score
        `"joint"` scores data and physics together (given exact equations, which are part of the prior),
        `"given_physics"` the data given the physics, `"given_homogeneous"` everything given the physics whose values
        are zero, `"profiled"` all together at the best scale η. A `ps.Score` combines these.

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
    require(isinstance(model, Model), "model", model, "a ps.Model")
    chosen = as_score(score)
    chosen.check(model)
    if chosen.formula == "printed":
        return _printed(model)
    systems = systems_of(model, chosen)
    systems.warn(stacklevel=3)
    return dataclasses.replace(systems.pile(chosen), solution=systems.solution)


def pile_and_gradient(
    model: Model, names: str | Iterable[str] | None = None, score: Score | str = "joint"
) -> tuple[Pile, dict[str, Any]]:
    """Return PILE and its gradient by name: `∂PILE = tr[(C⁻¹ − ααᵀ) ∂C] / N`.

    For a nonlinear model the gradient includes the change of its most likely solution. Priors add `−2 ∂log p(θ) / N`.

    Parameters
    ----------
    model
        The model. If its solver bounds PILE, the gradient is the gradient of the midpoint of the bounds.
    names
        The hyperparameters to differentiate by; by default all of `model.parameters`.
    score
        The score to differentiate, as in `pile`.

    Examples
    --------
    >>> import pilescore as ps
    >>> data = ps.observe(ps.identity, values=[0.0, 1.0, 0.0], at=[0.0, 0.5, 1.0])
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.5), data=data, gamma=0.1)
    >>> score, gradient = ps.pile_and_gradient(model)
    >>> sorted(gradient)
    ['eta', 'gamma', 'kernel.bandwidth']
    """
    require(isinstance(model, Model), "model", model, "a ps.Model")
    chosen = as_score(score)
    chosen.check(model)
    require(chosen.formula == "consistent", "score", chosen, "the consistent formula, which has a gradient")
    known = named_paths(model)
    wanted = list(known) if names is None else [names] if isinstance(names, str) else list(names)
    for name in wanted:
        require_name(name, known)
    systems = systems_of(model, chosen)
    systems.warn(stacklevel=3)
    result, slopes = systems.pile_and_gradient(wanted, chosen)
    return dataclasses.replace(result, solution=systems.solution), slopes


@dataclasses.dataclass
class WarmStart:
    """Start values for solving nonlinear models that resemble one model, the origin.

    They are the solution of the origin, computed when first needed and then fixed. A score therefore depends on its
    model alone, not on the models scored before it.
    """

    origin: Model | None = None
    solution: Float[np.ndarray, " F"] | None = None
    """The functional values of the origin's solution; None if it was not found."""
    solved: bool = False
    """Whether the origin's solution was attempted."""
    near: bool = False
    """Whether models are so near to the origin that their values, without gradients, are found faster."""

    def values(self) -> Float[np.ndarray, " F"] | None:
        """Return the origin's solution; None if it was not found."""
        if self.origin is not None and not self.solved:
            self.solved = True
            try:
                found = solve_or_follow(self.origin, None, explain=False)
                self.solution = found.expansion.values if found.converged else None
            except (NotPositiveDefiniteError, InputError):
                pass  # models near the origin may still be solvable from zero
        return self.solution


def contradictory(missed: str) -> str:
    """Return the message about exact blocks that cannot hold together."""
    return (
        f"exact equations and conditions contradict each other, or the kernel cannot satisfy them: the most likely "
        f"function misses {missed}. Check values, signs and units; give a block rho= or noise= if it holds only "
        "roughly; or use another kernel: a shorter one, or one along the direction in which a wave travels "
        "(ps.kernels.ShearedRBF, in problem files sheared-rbf)"
    )


def check_exact(model: Model, refine: Callable[[Model], Model]) -> None:
    """Raise an `InputError` if the exact linear blocks of a model contradict each other, whatever its lengths.

    Parameters
    ----------
    model
        The model.
    refine
        Returns a model on nodes that its lengths resolve. A short kernel evades a contradiction between coarse nodes.
    """
    exact = tuple(i for i, block in enumerate(model.blocks) if model.is_exact(i) and not block.is_nonlinear)
    if not exact:
        return
    missed = ""
    lengths = [name for name, role in model.roles.items() if role == "length"]
    for factor in (1.0, 0.5, 0.25):  # a kernel that is too long is not a contradiction
        trial = refine(model.replace({name: factor * np.asarray(model.parameters[name]) for name in lengths}))
        try:
            missed = contradiction(solve(with_tolerances(only(trial, exact), START_TOLERANCE), explain=False))
        except NotPositiveDefiniteError:
            return  # not known
        if not missed:
            return
    raise InputError(contradictory(missed))


def only(model: Model, given: tuple[int, ...]) -> Model:
    """Return a model with its given blocks alone, all of them physics."""
    return model.replace(data=(), physics=[model.blocks[i] for i in given], priors={})


@dataclasses.dataclass(frozen=True, eq=False)
class Systems:
    """The solved linear systems from which a score is computed."""

    model: Model
    """The model that is scored, before linearisation."""
    whole: System
    """The system of all observations; for a nonlinear model, linearised around its most likely solution."""
    prior: System | None = None
    """The system of the given blocks alone, unless the whole system already scores the others given them."""
    given: tuple[int, ...] = ()
    """The positions of the given blocks among all blocks."""
    found: MapEstimate | None = None
    """The most likely solution of a nonlinear model, at which all blocks are linearised."""

    @property
    def caution(self) -> str:
        """A warning about the solution of a nonlinear model, or an empty string."""
        found = self.found
        return f"{found.status}: {found.reason}" if found is not None and found.status == "unsatisfied" else ""

    @property
    def solution(self) -> Solution | None:
        """The most likely solution of a nonlinear model; None for a linear one."""
        return None if self.found is None else as_solution(self.found, len(self.found.steps))

    def warn(self, stacklevel: int) -> None:
        """Warn if the solution of a nonlinear model misses an equation, or if rounding makes the score imprecise.

        Raise an `InputError` if exact blocks contradict each other.
        """
        missed = contradiction(self.whole)
        if missed and self.found is None:  # a nonlinear model says so itself, as its status
            raise InputError(contradictory(missed))
        if self.caution:
            warnings.warn(f"the nonlinear model is {self.caution}", UserWarning, stacklevel=stacklevel)
        for system in filter(None, (self.whole, self.prior)):
            system.warn_if_imprecise(stacklevel + 1)

    @property
    def missed(self) -> Bool[np.ndarray, " N"] | None:
        """The rows, in the order of the blocks, whose residuals count although they are given; None if there are none.

        Given equations are divided out of the evidence: a prior too stiff to satisfy them would fit the data all the
        better. A linear equation then contradicts its conditions. A curved one is satisfied at some hyperparameters
        only, so what exact equations are missed by, in tolerances, is added to the score. It is next to nothing where
        they hold.
        """
        if self.found is None:
            return None
        model = self.found.functionals.model
        counts = [i in self.given and block.exact for i, block in enumerate(model.blocks)]
        return np.repeat(counts, [block.size for block in model.blocks]) if any(counts) else None

    def pile(self, score: Score, values: System | None = None) -> Pile:
        """Return PILE; `values`, if given, replaces the whole system by one with other observed values."""
        return with_priors(self._evidence(score, values), self.model)

    def _evidence(self, score: Score, values: System | None) -> Pile:
        """Return PILE without the priors of hyperparameters."""
        system, extra = self.whole if values is None else values, {}
        if self.found is None:
            return _from_systems(system, self.prior, self.given, score.profiled)
        model = self.found.functionals.model
        squares = self.found.alpha**2 * model.noise
        if self.missed is not None:
            extra = system.assembly.by_block(np.where(self.missed, squares, 0.0)[system.rows.order])
        scored = _from_systems(system, self.prior, self.given, score.profiled, extra=extra)
        curved = [rows for i, rows in enumerate(model.rows) if model.is_exact(i) and model.blocks[i].is_curved]
        return dataclasses.replace(scored, missed=max((float(np.mean(squares[rows])) for rows in curved), default=0.0))

    def pile_and_gradient(self, names: Sequence[str], score: Score) -> tuple[Pile, dict[str, Any]]:
        """Return PILE and its gradient by name."""
        result = self.pile(score)
        # Profiled PILE depends on ỹ through log ỹᵀC⁻¹ỹ, whose derivative divides ααᵀ by ỹᵀC⁻¹ỹ/N = η̂/η.
        scale = result.eta / self.whole.eta if score.profiled else 1.0
        total = self._gradient(names, scale)
        for name, slope in self.model.log_prior_slopes.items():
            if name in total:
                total[name] = total[name] - 2.0 * slope
        return result, {name: plain(value / result.size) for name, value in total.items()}

    def _gradient(self, names: Sequence[str], scale: float) -> dict[str, Any]:
        """Return the gradient of `N·PILE`."""
        if self.found is not None:
            linearised = self.found.system.model
            prior = solve(only(linearised, self.given), explain=False) if self.given else None
            return gradient(self.found, names, scale, prior, self.missed)
        known = named_paths(self.whole.model)
        total = NamedGradient(self.whole, scale).all(names, known)
        if self.prior is not None:  # log p(y | r) = log p(y, r) − log p(r)
            numbered = [self.whole.model.temperature_names[i] for i in self.given]
            part = NamedGradient(self.prior, scale, numbered).all(names, known)
            total = {name: value - part[name] for name, value in total.items()}
        return total


def systems_of(model: Model, score: Score, start: WarmStart | None = None, *, explain: bool = True) -> Systems:
    """Return the solved systems that a score of a model needs.

    Parameters
    ----------
    model
        The model, already checked by `score.check`.
    score
        The score to be computed.
    start
        Start values for a nonlinear model; by default the zero function.
    explain
        Whether to explain a failed factorisation by the eigenvalues of the matrix. They cost more than the
        factorisation, so searches leave them out.
    """
    try:
        return _solved_systems(with_tolerances(model), score, start, explain)
    except ToleranceError as error:
        if not model.priors:
            raise
        added = -2.0 * model.log_prior / model.size
        text = f"{error} Priors add {added:.6g} to both ends."
        raise ToleranceError(text, error.lower + added, error.upper + added) from None


def _solved_systems(model: Model, score: Score, start: WarmStart | None, explain: bool) -> Systems:
    given = score.given_blocks(model)
    if not model.is_nonlinear:
        if given and model.solver.forms_covariance and model.size <= LARGEST_THREADED:
            return Systems(model, solve(model, given=given, explain=explain))
        prior = solve(only(model, given), explain=explain) if given else None
        return Systems(model, solve(model, explain=explain), prior, given)
    start = start or WarmStart()
    found = _solution(model, start, explain)
    if not given:
        return Systems(model, found.system, found=found)
    # All blocks are linearised at the same solution: p(y | r) of one linear model. The most likely solution of the
    # given blocks alone is often zero, where a nonlinear equation is another one.
    return Systems(model, solve(found.system.model, given=given, explain=explain), None, given, found)


def linear_system(model: Model) -> System:
    """Return the solved system of a model; a nonlinear model is linearised around its most likely solution."""
    systems = systems_of(model, Score())
    systems.warn(stacklevel=4)
    return systems.whole


def _solution(model: Model, start: WarmStart, explain: bool) -> MapEstimate:
    found = solve_or_follow(model, start.values(), explain=explain, near=start.near)
    if not found.converged:
        raise NotSolvedError(f"the nonlinear model was not solved: {found.status}: {found.reason}")
    return found


def _printed(model: Model) -> Pile:
    """Return the score by the formula that the paper prints."""
    eta = float(model.eta)
    # The printed Σ = Q + η·diag(γ, ρ/w) has no factor 1/2 in the noise, unlike S = diag(γ, ρ/w)/2.
    system = solve(model, eta=1.0, noise_factor=2 * eta)
    system.warn_if_imprecise(stacklevel=4)
    return _from_systems(system, None, (), False, math.log(2 * math.pi * eta), eta)


def at_profiled_scale(model: Model, score: Pile) -> Model:
    """Return the model with η and all temperatures multiplied by η̂/η: its PILE is the profiled score."""
    factor, values = score.eta / float(model.eta), model.parameters
    scaled = [b.within(np.sqrt(factor / b.weights)) if b.exact else b for b in model.physics]
    changed = model.replace(physics=scaled) if any(block.exact for block in model.physics) else model
    return changed.replace({name: values[name] * factor for name in eta_and_temperatures(model)})


def _from_systems(
    system: System,
    prior: System | None,
    given: tuple[int, ...],
    profiled: bool,
    constant: float = LOG_TWO_PI,
    eta: float | None = None,
    extra: Mapping[str, float] = types.MappingProxyType({}),
) -> Pile:
    """Return PILE of a system or, if `prior` is the system of its given blocks, of the others given them.

    `extra` is added to the fit of each block.
    """
    eta = system.eta if eta is None else eta
    quadratic, logdet, n, rounding = system.factored.quadratic, system.logdet, system.factored.scored, system.error
    shares = system.assembly.by_block(system.values * (system.alpha - system.factored.given_alpha))
    if prior is not None:
        quadratic, logdet = quadratic - prior.factored.quadratic, logdet - prior.logdet
        n -= len(prior.values)
        rounding += prior.error  # errors add, while the values they belong to are subtracted
        for i, share in zip(given, prior.assembly.by_block(prior.values * prior.alpha).values(), strict=True):
            shares[system.assembly.labels[i]] -= share
    missed = math.fsum(extra.values())
    quadratic = quadratic + Bounds(missed, missed)
    shares = {label: share + extra.get(label, 0.0) for label, share in shares.items()}
    found = from_parts(quadratic.value, logdet.value, shares, n, eta, rounding, constant)
    found = at_best_scale(found) if profiled else found
    fits = Bounds(quadratic.lower / n, quadratic.upper / n)
    if profiled:  # the fit is 1, and log(ỹᵀC⁻¹ỹ/N) joins the complexity
        fits = Bounds(*(1.0 + math.log(fit) if fit > 0 else -math.inf for fit in (fits.lower, fits.upper)))
    lower, upper = found.value, found.value
    if quadratic.width > 0 or logdet.width > 0:
        lower, upper = fits.lower + logdet.lower / n + constant, fits.upper + logdet.upper / n + constant
    given_rows = len(system.values) - n
    exact = any(block.exact for block in system.model.blocks)
    return dataclasses.replace(
        found, lower=lower, upper=upper, solver=system.factored.account, given=given_rows, exact=exact
    )


def from_parts(
    quadratic: float,
    logdet: float,
    shares: Mapping[str, float],
    n: int,
    eta: float,
    rounding: float,
    constant: float = LOG_TWO_PI,
) -> Pile:
    """Return PILE from `ỹᵀC⁻¹ỹ`, the share of each block in it, and `log det C`."""
    fit, complexity = quadratic / n, logdet / n
    parts = {name: share / n for name, share in shares.items()}
    return Pile(fit + complexity + constant, fit, complexity, constant, parts, n, eta, rounding / n)


def with_priors(pile: Pile, model: Model) -> Pile:
    """Return a score of a model with the density of the model's priors."""
    if not model.priors:
        return pile
    prior = -2.0 * model.log_prior / pile.size
    lower, upper = pile.lower + prior, pile.upper + prior
    return dataclasses.replace(pile, value=pile.value + prior, lower=lower, upper=upper, prior=prior)


def at_best_scale(plain: Pile) -> Pile:
    """Return the score at the best scale η̂ from the score at the model's own scale."""
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
        lower=math.nan,  # the bounds of the plain score no longer hold
        upper=math.nan,
    )
