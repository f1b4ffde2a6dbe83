"""Scores without data: how well a kernel suits an equation.

The paper's score is the Fredholm determinant `log det(I + 𝒢)`. A determinant over quadrature nodes approximates the
determinant of an integral operator and is only as accurate as the rule. Every result therefore includes the values by a
coarser and a finer rule, and states whether it is resolved.

The determinant rewards any kernel under which `A f` is small, also one that contains no solution but zero. The
normalised score measures residuals against the terms of the equation, and compares kernels of different bandwidths and
families.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..covariance import KernelCovariance, Layout, covariance, layout, single_tile, split, variances
from ..covariance import block as block_covariance
from ..domains import Nodes, Region, RegionUnion, Slice
from ..errors import InputError, NotPositiveDefiniteError, as_array, as_positive, call, require
from ..kernels import Kernel, MultiIndex
from ..model import Model, Observation, check_nodes
from ..parallel import require_memory
from ..solvers import Bounds, CholeskyFactor, NotFactorableError, cholesky

ACCURACY = 0.01
"""The residual at the nodes that the normalised score tolerates, relative to the terms of the equation for a function
with the variance of the prior and half a period along each side of the domain."""

CHECK = 1.5
"""The normalised score measures residuals on this many times the nodes on each axis."""

SHAPE_ROLES = ("angle", "ratio", "shear")
"""The roles of hyperparameters that change the shape of a kernel and not its size: `value` compares these."""

LARGEST_NORMALISED = 2000
"""The largest number of nodes for which the normalised score, which is dense, is computed."""


@dataclasses.dataclass(frozen=True)
class FredholmDeterminant:
    """`log det(I + cK)` of an integral operator by a quadrature rule, with its resolution error.

    Examples
    --------
    `det(I + K) = cosh 1` for `k(x, y) = min(x, y)`; its kink slows convergence:

    >>> import math, jax.numpy as jnp, pilescore as ps
    >>> unit = ps.Box(x=(0, 1)).interior(ps.GaussLegendre(20))
    >>> found = ps.fredholm_logdet(lambda x, y: jnp.minimum(x[0], y[0]), unit)
    >>> found.status, found.reason
    ('unresolved', 'a finer rule changes the value by 6.8e-05: use more nodes, or read `limit`')
    >>> exact = math.log(math.cosh(1.0))
    >>> f"{abs(found.value - exact):.0e}, extrapolated {abs(found.limit - exact):.0e}"
    '1e-04, extrapolated 7e-06'
    """

    value: float
    """The value by the given rule."""
    size: int
    """The number of nodes of the given rule."""
    coarser: float
    """The value by a coarser rule."""
    finer: float
    """The value by a finer rule."""
    limit: float
    """The limit of the three values by Aitken's Δ² extrapolation, or `finer` if they do not converge."""
    error: float
    """`|finer − value|`, the resolution error of `value`; NaN if the rule cannot be refined."""
    status: Literal["resolved", "unresolved"]
    """Whether `error` is within the tolerance."""
    reason: str
    """Why the value is unresolved; empty if it is resolved."""
    lower: float = math.nan
    """A lower bound on the value by the given rule. With an exact solver both bounds equal `value`; otherwise `value`
    is their midpoint."""
    upper: float = math.nan
    """An upper bound on the value by the given rule."""

    def __post_init__(self) -> None:
        if math.isnan(self.lower):  # no bounds given: the value is exact
            object.__setattr__(self, "lower", self.value)
            object.__setattr__(self, "upper", self.value)

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return f"FredholmDeterminant({self.value:.10g} ± {self.error:.1e}, {self.size} nodes, {self.status})"


@dataclasses.dataclass(frozen=True)
class DataFreePile:
    """The data-free scores of a kernel and an equation; lower is better.

    `m·PILE = C_m + log det(I + 𝒢)`: the first term depends on the rule, the second on the kernel and the equation. The
    second, `value`, compares kernels of one family and one size, such as the rotations of one kernel, at equal
    temperatures. `normalised` compares kernels of any bandwidth and family.

    Examples
    --------
    `value` prefers a long kernel, which contains no solution of `f'' + 144 f = 0`; `normalised` does not:

    >>> import numpy as np, pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> helmholtz = ps.impose(dx**2 + 144 * ps.identity, 0.0, on=line.interior(ps.GaussLegendre(24)))
    >>> kernels = {"long": ps.RBF(1.0), "waves": ps.RBF(0.3) * ps.kernels.Cosine(12 / (2 * np.pi))}
    >>> scores = {name: ps.data_free_pile(ps.Model(kernel, physics=helmholtz)) for name, kernel in kernels.items()}
    >>> {name: (round(score.value, 1), round(score.normalised, 1)) for name, score in scores.items()}
    {'long': (24.2, -0.1), 'waves': (68.8, -6.6)}

    Samples of a wide kernel are nearly constant and suit `f' = 0` better:

    >>> import pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> flat = ps.impose(dx, 0.0, on=line.interior(ps.GaussLegendre(12)))
    >>> wide, narrow = (ps.data_free_pile(ps.Model(ps.RBF(h), physics=flat)) for h in (2.0, 0.5))
    >>> round(wide.value, 3), round(narrow.value, 3), wide.status
    (0.415, 3.631, 'resolved')
    >>> abs(wide.raw - wide.size * ps.pile(ps.Model(ps.RBF(2.0), physics=flat, rho=1.0)).value) < 1e-8
    True
    """

    determinant: FredholmDeterminant
    """`log det(I + 𝒢)` with its resolution error."""
    constant: float
    """`C_m = Σ_j log(πρ/w_j)`."""
    rho: float
    """The temperature of the physics."""
    eta: float
    """The scale of the kernel."""
    normalised: float = math.nan
    """`log(E‖A f‖² / Σ_α E‖c_α ∂^α f‖²)` of draws from the prior given the equation at the nodes, measured between the
    nodes: their residual relative to the terms of the equation. Near 0 the terms do not cancel: the kernel contains no
    solutions, or the draws change between the nodes. It does not depend on ρ and η. NaN if `unnormalised` says why."""
    unnormalised: str = ""
    """Why there is no normalised score; empty if there is one."""
    kernel: Kernel | None = None
    """The kernel."""
    sizes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The kernel's hyperparameters except angles, ratios and shears: `value` compares kernels that agree in them."""

    @property
    def value(self) -> float:
        """The paper's score without its constant, `log det(I + 𝒢)`."""
        return self.determinant.value

    @property
    def error(self) -> float:
        """The resolution error of `value`."""
        return self.determinant.error

    @property
    def status(self) -> str:
        """`resolved` or `unresolved`."""
        return self.determinant.status

    @property
    def size(self) -> int:
        """The number of nodes, m."""
        return self.determinant.size

    @property
    def raw(self) -> float:
        """`m·PILE`."""
        return self.constant + self.determinant.value

    def same_size(self, other: DataFreePile) -> bool:
        """Return whether the kernels are of one family and one size: they differ in angles, ratios and shears only."""
        if self.kernel is None or other.kernel is None or split(self.kernel)[1] != split(other.kernel)[1]:
            return False
        return all(np.array_equal(value, other.sizes[name]) for name, value in self.sizes.items())

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return (
            f"DataFreePile(value={self.value:.8g}, error={self.error:.1e}, status={self.status!r}, "
            f"raw={self.raw:.8g}, size={self.size}, normalised={self.normalised:.3g})"
        )


def calibrated_rho(on: Nodes | Observation | Iterable[Any]) -> float:
    """Return `ρ = exp(mean log w)/π`, which makes the constant `C_m` of the data-free score zero.

    Parameters
    ----------
    on
        Nodes, or blocks made by `impose`.

    Examples
    --------
    >>> import pilescore as ps
    >>> nodes = ps.Box(x=(0, 1)).interior(ps.GaussLegendre(10))
    >>> round(ps.inference.calibrated_rho(nodes), 4)
    0.0282
    """
    weighted = [on] if isinstance(on, Nodes | Observation) else list(on)
    require(len(weighted) > 0, "on", on, "nodes, or blocks made by ps.impose")
    for item in weighted:
        require(isinstance(item, Nodes | Observation), "on", item, "nodes, or a block made by ps.impose")
    return math.exp(float(np.log(np.concatenate([item.weights for item in weighted])).mean())) / math.pi


def data_free_pile(model: Model, *, refine: float | int = 1.5, tolerance: float | int = 1e-6) -> DataFreePile:
    """Return the scores of a kernel for an equation without data.

    `value` is the paper's score `log det(I + (2η/ρ) W^½ G W^½)`. `G` is the covariance of the imposed operators at
    their nodes, `W` holds the weights. As the rule is refined, the value tends to the Fredholm determinant of
    `𝒢 = (2η/ρ) ∫ (A ⊗ A) k dμ`. It is small if samples of the prior nearly satisfy the equation. Kernels of smooth or
    small functions therefore score well even if they contain no solutions: compare it between kernels of one family and
    one size only.

    `normalised` conditions the prior on the equation `A = Σ_α c_α ∂^α` at the nodes `z`. Between them, at the nodes `x`
    of a finer rule, it compares the residual with the terms that must cancel:
    `log(Σ_j w_j Var[A f(x_j) | z] / Σ_α Σ_j w_j c_α(x_j)² Var[∂^α f(x_j) | z])`. The noise at the nodes has the
    variance `0.01² v Σ_j w_j / w_i`, with `v = k̄ Σ_α c_α² Π_i (π/L_i)^{2α_i}` for a domain with the sides `L` and a
    prior with the variance `k̄`. So every kernel satisfies the equation to the same accuracy. A kernel without
    solutions keeps only small functions, whose terms do not cancel. A kernel that is shorter than the gaps between the
    nodes keeps functions that violate the equation between them. Both score about 0. If an operator has only one term,
    `(v/k̄) Var[f | z]` takes its place. Functionals and conditions on boundaries are left out: their values are not
    known, and zero values would exclude most solutions.

    Parameters
    ----------
    model
        A model without data. Only its operators, nodes and temperatures are used, not the imposed values (`r = 0`).
        Without a temperature, `ρ = 1`.
        If its solver computes bounds, they are `determinant.lower` and `determinant.upper`, for the given rule.
    refine
        The coarser and the finer rule have `1/refine` and `refine` times the nodes on each axis.
    tolerance
        The value is *resolved* if the finer rule changes it by no more than this, relative to the value or to 1.

    Examples
    --------
    >>> import pilescore as ps
    >>> strip = ps.Box(t=(0, 1), x=(0, 6))
    >>> dt, dx = ps.partials(strip)
    >>> advection = ps.impose(dt + 2 * dx, 0.0, on=strip.interior(ps.GaussLegendre(16)))
    >>> ps.data_free_pile(ps.Model(ps.RBF(bandwidth=1.0), physics=advection))
    DataFreePile(value=18.07168, error=5.9e-07, status='resolved', raw=1350.2525, size=256, normalised=-3.37)
    """
    factor, limit = _refinement(refine, tolerance)
    model = checked_without_data(model)
    logdet = _logdet(model)
    others = [refine_without_data(model, f) for f in (1 / factor, factor)]
    coarser, finer = (math.nan if other is None else _logdet(other).value for other in others)
    labelled = zip(model.labels, model.blocks, strict=True)
    reasons = (f"block {label!r} {block.unrefinable}" for label, block in labelled if block.unrefinable)
    problem = "" if others[1] is not None else next(reasons)
    determinant = _resolved(logdet.value, model.size, coarser, finer, limit, problem)
    determinant = dataclasses.replace(determinant, lower=logdet.lower, upper=logdet.upper)
    # log det C = log det S + log det(I + S^-½ ηQ S^-½): the noise alone makes the constant.
    constant = float(np.log(2 * math.pi * model.noise).sum())
    assert model.rho is not None
    normalised, why = normalised_score(model)
    roles = model.roles
    sizes = {
        name: value
        for name, value in model.parameters.items()
        if name.startswith("kernel.") and roles[name] not in SHAPE_ROLES
    }
    return DataFreePile(determinant, constant, float(model.rho), float(model.eta), normalised, why, model.kernel, sizes)


def normalised_score(model: Model) -> tuple[float, str]:
    """Return the normalised score of a model without data, or NaN and the reason why there is none."""
    equations = equation_blocks(model)
    if not equations:
        return math.nan, "no equation is imposed inside a domain"
    size = sum(block.size for block in equations)
    if size > LARGEST_NORMALISED:
        return math.nan, f"{size} nodes are more than {LARGEST_NORMALISED}"
    finer = [block.refined(CHECK, 0.0) for block in equations]
    for block, other in zip(equations, finer, strict=True):
        if other is None:
            return math.nan, f"{block} {block.unrefinable}"
    checks = [block for block in finer if block is not None]
    sides = np.ptp(np.concatenate([block.points for block in checks]), axis=0)
    if not sides.all():
        return math.nan, "the nodes do not extend along every axis"
    measure = sum(float(block.weights.sum()) for block in equations)
    variance = sum(
        _mean_squares(model.kernel, [_as_term(b, (0,) * b.dimension)], b.weights / measure) for b in equations
    )
    scales = [variance * _size_of_terms(block, sides) for block in equations]
    pairs = list(zip(equations, scales, strict=True))
    rows = layout([block.scaled(np.sqrt(block.weights / measure / scale) / ACCURACY) for block, scale in pairs])
    matrix = covariance(model.kernel, rows, 1.0)
    matrix.T.flat[:: rows.size + 1] += 1.0
    try:
        factor = cholesky(matrix)
    except NotFactorableError:
        return math.nan, "the covariance of the equation is not positive definite to working precision"
    residual = terms = 0.0
    for block, scale in zip(checks, scales, strict=True):
        weights = block.weights / float(sum(b.weights.sum() for b in checks))
        parts = _terms(block)
        residual += _mean_squares(model.kernel, [block], weights / scale, rows, factor)
        if len(parts) > 1:
            terms += _mean_squares(model.kernel, parts, weights / scale, rows, factor)
        else:  # one term has nothing to cancel
            terms += _mean_squares(
                model.kernel, [_as_term(block, (0,) * block.dimension)], weights / variance, rows, factor
            )
    if not terms > 0:
        return math.nan, f"no term of the equation varies under {model.kernel!r}"
    return math.log(max(residual / terms, float(np.finfo(float).eps))), ""


def fredholm_logdet(
    kernel_function: Callable[[Any, Any], Any],
    rule: Nodes,
    c: float | int = 1.0,
    *,
    refine: float | int = 1.5,
    tolerance: float | int = 1e-6,
) -> FredholmDeterminant:
    """Return `log det(I + cK)` of the integral operator `(Kf)(x) = ∫ k(x, y) f(y) dy`, by Nyström's method.

    Parameters
    ----------
    kernel_function
        `k(x, y)`: a kernel, or any function of two points, symmetric or not.
    rule
        Nodes on the domain of integration, such as `ps.Box(x=(0, 1)).interior(ps.GaussLegendre(40))`.
    c
        The factor, positive or negative.
    refine, tolerance
        As in `data_free_pile`.

    Examples
    --------
    The probability that an interval as long as the mean spacing contains no eigenvalue of a large random matrix:

    >>> import jax.numpy as jnp, pilescore as ps
    >>> unit = ps.Box(x=(0, 1)).interior(ps.GaussLegendre(20))
    >>> gap = ps.fredholm_logdet(lambda x, y: jnp.sinc(x[0] - y[0]), unit, c=-1)
    >>> round(float(jnp.exp(gap.value)), 10)
    0.1702174214
    """
    factor, limit = _refinement(refine, tolerance)
    require(callable(kernel_function), "kernel_function", kernel_function, "a function of two points")
    check_nodes(rule, "rule")
    scale = float(as_array(c, "c"))
    value = _nystrom(kernel_function, rule, scale)
    if rule.rule is None:
        problem = f"{rule!r} are explicit points, which cannot be refined"
        return _resolved(value, len(rule), math.nan, math.nan, limit, problem)
    coarser, finer = (_nystrom(kernel_function, rule.refined(f), scale) for f in (1 / factor, factor))
    return _resolved(value, len(rule), coarser, finer, limit, "")


def _refinement(refine: Any, tolerance: Any) -> tuple[float, float]:
    """Return the checked refinement factor and tolerance."""
    require((factor := as_positive(refine, "refine")) > 1, "refine", refine, "a factor above 1")
    return factor, as_positive(tolerance, "tolerance")


def _resolved(
    value: float, size: int, coarser: float, finer: float, tolerance: float, problem: str
) -> FredholmDeterminant:
    """Return the determinant with its resolution; `problem` says why its rule cannot be refined, if it cannot."""
    error = abs(finer - value)
    last, before = finer - value, value - coarser
    # Aitken's Δ² divides by the difference of two changes; it is reliable only while the changes shrink monotonically.
    converging = abs(last) < abs(before) and last * before > 0
    limit = finer - last**2 / (last - before) if converging else finer
    if not problem and not error <= tolerance * max(1.0, abs(value)):  # also if the error is NaN
        problem = f"a finer rule changes the value by {error:.1e}: use more nodes, or read `limit`"
    status: Literal["resolved", "unresolved"] = "unresolved" if problem else "resolved"
    return FredholmDeterminant(value, size, coarser, finer, limit, error, status, problem)


def checked_without_data(model: Model) -> Model:
    """Return a model without data, with `ρ = 1` if it has none; raise an `InputError` for other arguments."""
    require(isinstance(model, Model), "model", model, "a ps.Model")
    require(not model.data, "model", f"{len(model.data)} blocks of data", "no data: model.replace(data=())")
    # The determinant has no limit as ρ tends to zero: it compares how nearly samples of the prior satisfy the equation.
    return model if model.rho is not None else model.replace(rho=1.0)


def refine_without_data(model: Model, factor: float) -> Model | None:
    """Return a data-free model with `factor` times the nodes on each axis, or None if a block cannot be refined.

    Imposed values are zero: the data-free score does not depend on them.
    """
    blocks = [block.refined(factor, 0.0) for block in model.physics]
    return None if None in blocks else model.replace(physics=blocks)


def equation_blocks(model: Model) -> list[Observation]:
    """Return the physics that is imposed inside a domain: neither functionals nor conditions on boundaries."""
    return [block for block in model.physics if not block.is_functional and not _is_boundary(block.region)]


def _is_boundary(region: Region | None) -> bool:
    """Whether a region is a part of a boundary, or a slice."""
    if isinstance(region, RegionUnion):
        return any(_is_boundary(part) for part in region.regions)
    return region is not None and (region.normal is not None or (isinstance(region, Slice) and len(region.fixed) > 0))


def _terms(block: Observation) -> list[Observation]:
    """Return a block for each term `c_α ∂^α` of an operator that does not vanish."""
    table = np.asarray(block.coefficients)
    return [_as_term(block, alpha, row) for alpha, row in zip(block.indices, table, strict=True) if row.any()]


def _as_term(block: Observation, alpha: MultiIndex, coefficients: Any = 1.0) -> Observation:
    """Return the block of `c ∂^α` at the same points."""
    table = np.broadcast_to(np.asarray(coefficients, float), (1, len(block.points)))
    return dataclasses.replace(block, indices=(alpha,), table=table)


def _size_of_terms(block: Observation, sides: Float[np.ndarray, " d"]) -> float:
    """Return the mean of `Σ_α c_α² Π_i (π/L_i)^{2α_i}`: the terms of a unit function, half a period on each side."""
    squares = np.asarray(block.coefficients) ** 2 @ (block.weights / block.weights.sum())
    rates = [float(np.prod((math.pi / sides) ** (2 * np.asarray(alpha)))) for alpha in block.indices]
    return float(squares @ rates)


def _mean_squares(
    kernel: Kernel,
    blocks: Sequence[Observation],
    weights: Float[np.ndarray, " n"],
    given: Layout | None = None,
    factor: CholeskyFactor | None = None,
) -> float:
    """Return `Σ_b Σ_j w_j Var[L_b f(x_j)]`, conditional on rows with unit noise if their Cholesky factor is given."""
    total = 0.0
    for tile in layout([block.scaled(np.sqrt(weights)) for block in blocks]).tiles:
        prior = variances(kernel, tile, 1.0)
        if given is None or factor is None:
            total += float(prior.sum())
            continue
        across = block_covariance(kernel, given, single_tile(tile), 1.0)
        explained = (factor.half_solve(across) ** 2).sum(axis=0)
        total += float(np.maximum(prior - explained, 0.0).sum())
    return total


def whitened(model: Model) -> Layout:
    """Return the layout of the rows `S^-½ L`, with covariance `S^-½ Q S^-½`."""
    pairs = zip(model.blocks, model.temperatures, strict=True)
    return layout([block.scaled(np.sqrt(2.0 * block.weights / temperature)) for block, temperature in pairs])


def _logdet(model: Model) -> Bounds:
    """Return `log det(I + S^-½ ηQ S^-½)`: adding the identity keeps all eigenvalues at 1 or above."""
    rows = whitened(model)
    if not model.solver.forms_covariance:
        whole = KernelCovariance(model.kernel, rows, float(model.eta), np.zeros(rows.size), np.ones(rows.size))
        return model.solver.factor(whole).logdet
    matrix = covariance(model.kernel, rows, float(model.eta))
    largest = float(matrix.diagonal().max())
    matrix.T.flat[:: rows.size + 1] += 1.0
    try:
        logdet = cholesky(matrix).logdet
        return Bounds(logdet, logdet)
    except NotFactorableError:
        if not math.isfinite(largest):
            raise InputError(
                f"kernel: {model.kernel!r} gives NaN or infinite covariances for {model.physics}"
            ) from None
        raise NotPositiveDefiniteError(
            f"I + 𝒢 at {rows.size} nodes is not positive definite to working precision: prior variances are up to "
            f"{largest:.1e} times the noise, and their rounding error exceeds 1. Raise rho, lower eta, or use a kernel "
            "with a longer bandwidth."
        ) from None


def _nystrom(kernel_function: Callable[[Any, Any], Any], rule: Nodes, c: float) -> float:
    """Return `log det(I + c W^½ K W^½)` over the nodes of a rule."""
    points = rule.points
    require_memory(len(points), 8.0 * len(points) ** 2, "the integral operator")
    try:
        pairwise = jax.vmap(jax.vmap(kernel_function, (None, 0)), (0, None))
        table = np.asarray(jax.jit(pairwise)(jnp.asarray(points), jnp.asarray(points)))
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError, TypeError):
        # Not a JAX function: evaluate it pair by pair.
        signature = "a function of two points, k(x, y)"
        functions = [functools.partial(kernel_function, x) for x in points]
        table = np.array([[call(function, y, "kernel_function", signature) for y in points] for function in functions])
    matrix = as_array(table, "kernel_function")
    require(matrix.shape == (len(points),) * 2, "kernel_function", matrix, "one number for each pair of points")
    root = np.sqrt(rule.weights)
    sign, value = np.linalg.slogdet(np.eye(len(points)) + c * root[:, None] * matrix * root)
    require(bool(sign > 0), "c", c, f"a factor at which det(I + cK) is positive; it is {sign * math.exp(value):.3g}")
    return float(value)
