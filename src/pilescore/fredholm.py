"""Scores without data: `log det(I + 𝒢)`, how well a kernel suits an equation, as a Fredholm determinant.

A determinant over quadrature nodes approximates that of an integral operator, so that it is only as good as the rule:
every result carries its value by a coarser and a finer rule, and says whether it is resolved.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from .covariances import KernelCovariance
from .domains import Nodes
from .errors import InputError, NotPositiveDefiniteError, as_array, as_positive, call, require
from .gram import covariance, split, split_tiles, symmetric
from .kernels import Kernel
from .layouts import Layout, layout
from .linalg import ONE_BLAS_THREAD, Dense, NotFactorableError, cholesky, require_memory
from .methods import solver_of, with_solver
from .model import Model, as_grid, find, kernel_paths, named_paths
from .observations import Observation, check_nodes, impose
from .running import cores, progress_bar
from .solvers import Bounds, Solver

CHUNK = 50
"""Kernels of a landscape that are scored in one compiled call."""


@dataclasses.dataclass(frozen=True)
class FredholmDeterminant:
    """`log det(I + cK)` of an integral operator by a quadrature rule, and how well the rule resolves it.

    Examples
    --------
    `det(I + K) = cosh 1` for `k(x, y) = min(x, y)`, whose kink takes many nodes:

    >>> import math, jax.numpy as jnp, pilescore as ps
    >>> unit = ps.Box(x=(0, 1)).interior(ps.GaussLegendre(20))
    >>> found = ps.fredholm_logdet(lambda x, y: jnp.minimum(x[0], y[0]), unit)
    >>> found.status, found.reason
    ('unresolved', 'a finer rule moves the value by 6.8e-05: use more nodes, or read `limit`')
    >>> exact = math.log(math.cosh(1.0))
    >>> f"{abs(found.value - exact):.0e}, extrapolated {abs(found.limit - exact):.0e}"
    '1e-04, extrapolated 7e-06'
    """

    value: float
    """The value by the rule that was given."""
    size: int
    """The number of nodes of that rule."""
    coarser: float
    """The value by a coarser rule."""
    finer: float
    """The value by a finer rule."""
    limit: float
    """The three values extrapolated to infinitely many nodes (Aitken's Δ²), or `finer` where they do not converge."""
    error: float
    """`|finer − value|`, the resolution error of `value`; NaN where the rule cannot be refined."""
    status: Literal["resolved", "unresolved"]
    """Whether `error` is within the tolerance."""
    reason: str
    """Why it is unresolved, else empty."""
    lower: float = math.nan
    """A bound from below on the value by this rule; with an exact solver `value`, which is else the midpoint."""
    upper: float = math.nan
    """A bound from above."""

    def __post_init__(self) -> None:
        if math.isnan(self.lower):
            object.__setattr__(self, "lower", self.value)
            object.__setattr__(self, "upper", self.value)

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return f"FredholmDeterminant({self.value:.10g} ± {self.error:.1e}, {self.size} nodes, {self.status})"


@dataclasses.dataclass(frozen=True)
class DataFreePile:
    """The data-free PILE of a kernel and an equation; lower is better at the same temperatures.

    `m·PILE = C_m + log det(I + 𝒢)`: the first term belongs to the rule, the second to the kernel and the equation.

    Examples
    --------
    Draws of a wide kernel are nearly constant, and so suit `f' = 0` better:

    >>> import pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> flat = ps.impose(dx, 0.0, on=line.interior(ps.GaussLegendre(12)))
    >>> wide, narrow = (ps.data_free_pile(ps.RBF(h), flat) for h in (2.0, 0.5))
    >>> round(wide.value, 3), round(narrow.value, 3), wide.status
    (0.415, 3.631, 'resolved')
    >>> abs(wide.raw - wide.size * ps.pile(ps.Model(ps.RBF(2.0), physics=flat)).value) < 1e-8
    True
    """

    determinant: FredholmDeterminant
    """`log det(I + 𝒢)` with its resolution."""
    constant: float
    """`C_m = Σ_j log(πρ/w_j)`."""
    rho: float
    """The temperature of the physics."""
    eta: float
    """The scale of the kernel."""

    @property
    def value(self) -> float:
        """The normalised score `log det(I + 𝒢)`."""
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

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return (
            f"DataFreePile(value={self.value:.8g}, error={self.error:.1e}, status={self.status!r}, "
            f"raw={self.raw:.8g}, constant={self.constant:.8g}, size={self.size})"
        )


def calibrated_rho(on: Nodes | Observation | Iterable[Any]) -> float:
    """Return `ρ = exp(mean log w)/π`, at which the constant `C_m` of the data-free score is zero.

    Parameters
    ----------
    on
        Nodes, or blocks made by `impose`.

    Examples
    --------
    >>> import pilescore as ps
    >>> nodes = ps.Box(x=(0, 1)).interior(ps.GaussLegendre(10))
    >>> round(ps.calibrated_rho(nodes), 4)
    0.0282
    """
    parts = [on] if isinstance(on, Nodes | Observation) else list(on)
    require(len(parts) > 0, "on", on, "nodes, or blocks made by ps.impose")
    for part in parts:
        require(isinstance(part, Nodes | Observation), "on", part, "nodes, or a block made by ps.impose")
    return math.exp(float(np.log(np.concatenate([part.weights for part in parts])).mean())) / math.pi


def data_free_pile(
    kernel: Kernel,
    physics: Observation | Iterable[Any],
    rho: Any = 1.0,
    eta: Any = 1.0,
    *,
    refine: float | int = 1.5,
    tolerance: float | int = 1e-6,
    solver: Solver | str | None = None,
) -> DataFreePile:
    """Return the score of a kernel for an equation without any data: `log det(I + (2η/ρ) W^½ G W^½)`.

    `G` is the covariance of the imposed operators at their nodes and `W` the weights; as the rule is refined the value
    tends to the Fredholm determinant of `𝒢 = (2η/ρ) ∫ (A ⊗ A) k dμ`. It is small where the equation nearly holds for
    draws of the prior.

    Parameters
    ----------
    kernel
        `k`.
    physics
        One or several blocks made by `impose`, interior and boundary together. Their values are not used (`r = 0`).
    rho, eta
        The temperatures; a block's own `rho` holds for it.
    refine
        The coarser and the finer rule have `1/refine` and `refine` times the nodes on each axis.
    tolerance
        The value is *resolved* if the finer rule moves it by no more than this, relative to the value or to 1.
    solver
        As for `pile`: for rules of many nodes. `determinant.lower` and `.upper` bound the value by the rule given; a
        tolerance `tol` of a solver holds for the value over the number of nodes.

    Examples
    --------
    >>> import pilescore as ps
    >>> strip = ps.Box(t=(0, 1), x=(0, 6))
    >>> dt, dx = ps.partials(strip)
    >>> advection = ps.impose(dt + 2 * dx, 0.0, on=strip.interior(ps.GaussLegendre(16)))
    >>> ps.data_free_pile(ps.RBF(bandwidth=1.0), advection)
    DataFreePile(value=18.07168, error=5.9e-07, status='resolved', raw=1350.2525, constant=1332.1808, size=256)
    """
    factor, wanted = as_positive(refine, "refine"), as_positive(tolerance, "tolerance")
    require(factor > 1, "refine", refine, "a factor above 1")
    model = with_solver(Model(kernel, physics=physics, rho=rho, eta=eta), solver)
    value = _logdet(model)
    problem = next((p for label, b in zip(model.labels, model.blocks, strict=True) if (p := _fixed(b, label))), "")
    near, far = (math.nan, math.nan) if problem else (_logdet(_resized(model, f)).value for f in (1 / factor, factor))
    constant = float(np.log(2 * math.pi * model.noise).sum())
    return DataFreePile(
        dataclasses.replace(
            _resolved(value.value, model.size, near, far, wanted, problem), lower=value.lower, upper=value.upper
        ),
        constant,
        float(model.rho),
        float(model.eta),
    )


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
        `k(x, y)` of two points; any function, symmetric or not, or a kernel.
    rule
        Nodes on the domain of integration, as `ps.Box(x=(0, 1)).interior(ps.GaussLegendre(40))`.
    c
        The factor, of either sign.
    refine
        As for `data_free_pile`.
    tolerance
        As for `data_free_pile`.

    Examples
    --------
    The probability that an interval of one mean spacing holds no eigenvalue of a large random matrix:

    >>> import jax.numpy as jnp, pilescore as ps
    >>> unit = ps.Box(x=(0, 1)).interior(ps.GaussLegendre(20))
    >>> gap = ps.fredholm_logdet(lambda x, y: jnp.sinc(x[0] - y[0]), unit, c=-1)
    >>> round(float(jnp.exp(gap.value)), 10)
    0.1702174214
    """
    factor, wanted = as_positive(refine, "refine"), as_positive(tolerance, "tolerance")
    require(factor > 1, "refine", refine, "a factor above 1")
    require(callable(kernel_function), "kernel_function", kernel_function, "a function of two points")
    check_nodes(rule, "rule")
    scale = float(as_array(c, "c"))
    value = _nystrom(kernel_function, rule, scale)
    problem = "" if rule.rule is not None else f"{rule!r} are explicit points, which cannot be refined"
    rules = () if problem else (rule.refined(1 / factor), rule.refined(factor))
    near, far = (_nystrom(kernel_function, each, scale) for each in rules) if rules else (math.nan, math.nan)
    return _resolved(value, len(rule), near, far, wanted, problem)


def data_free_landscape(
    kernel: Kernel,
    physics: Observation | Iterable[Any],
    grid: Mapping[str, Any],
    rho: Any = 1.0,
    eta: Any = 1.0,
    *,
    tolerance: float | int = 1e-3,
    progress: bool | None = None,
) -> xr.Dataset:
    """Return the data-free scores of many kernels of one structure, on a grid of hyperparameters.

    Parameters
    ----------
    kernel
        As for `data_free_pile`.
    physics
        As for `data_free_pile`.
    rho, eta
        As for `data_free_pile`.
    grid
        Values by name, as `{"kernel.theta": np.linspace(0, np.pi, 50), "kernel.s": np.geomspace(0.1, 10, 50)}`; names
        are those of `Model.replace`.
    tolerance
        As for `data_free_pile`, for the change from a rule with half the nodes on each axis: much more than the error.
    progress
        Show a progress bar: by default on a terminal only.

    Returns
    -------
    xarray.Dataset
        `value`, `raw` and `constant` at each point of the grid, `error` (the change from the coarser rule) and
        `status`: resolved, unresolved, or failed.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> strip = ps.Box(t=(0, 1), x=(0, 6))
    >>> dt, dx = ps.partials(strip)
    >>> advection = ps.impose(dt + 2 * dx, 0.0, on=strip.interior(ps.GaussLegendre(12)))
    >>> kernel = ps.AnisotropicRBF(theta=0.0, s=0.3)
    >>> scores = ps.data_free_landscape(kernel, advection, {"kernel.theta": np.linspace(0, np.pi, 32)})
    >>> best = scores["value"].idxmin()
    >>> bool(abs(best - np.arctan(2)) < 0.1)  # along the characteristics
    True
    """
    wanted = as_positive(tolerance, "tolerance")
    model = Model(kernel, physics=physics, rho=rho, eta=eta)
    axes = as_grid(model, grid)
    shape = tuple(len(column) for column in axes.values())
    inner = [name for name in axes if name.startswith("kernel.")]
    outer = [name for name in axes if name not in inner]
    problem = next((p for label, b in zip(model.labels, model.blocks, strict=True) if (p := _fixed(b, label))), "")
    coarse = None if problem else _resized(model, 0.5)
    fine, rough, constant = (np.full(shape, math.nan) for _ in range(3))
    sizes = [len(axes[name]) for name in outer]
    numbers = _kernel_numbers(model, {name: axes[name] for name in inner})
    with progress_bar(math.prod(shape), "data-free scores", progress) as bar:
        for index in np.ndindex(*sizes):
            chosen = {name: axes[name][i] for name, i in zip(outer, index, strict=True)}
            position = dict(zip(outer, index, strict=True))
            where: Any = tuple(position.get(name, slice(None)) for name in axes)
            local = model.replace(chosen)
            inside = [shape[i] for i, name in enumerate(axes) if name in inner]
            fine[where] = _logdets(local, numbers, bar.update).reshape(inside)
            if coarse is not None:
                rough[where] = _logdets(coarse.replace(chosen), numbers, None).reshape(inside)
            constant[where] = float(np.log(2 * math.pi * local.noise).sum())
    error = np.abs(fine - rough)
    resolved = error <= wanted * np.maximum(1.0, np.abs(fine))
    status = np.where(np.isnan(fine), "failed", np.where(resolved, "resolved", "unresolved"))
    named = {"value": fine, "raw": fine + constant, "constant": constant, "error": error, "status": status}
    return xr.Dataset({name: (tuple(axes), array) for name, array in named.items()}, coords=axes)


def _resolved(value: float, size: int, near: float, far: float, tolerance: float, problem: str) -> FredholmDeterminant:
    error = abs(far - value)
    last, before = far - value, value - near
    converging = abs(last) < abs(before) and last * before > 0
    limit = far - last**2 / (last - before) if converging else far
    if not problem and not error <= tolerance * max(1.0, abs(value)):
        problem = f"a finer rule moves the value by {error:.1e}: use more nodes, or read `limit`"
    status: Literal["resolved", "unresolved"] = "unresolved" if problem else "resolved"
    return FredholmDeterminant(value, size, near, far, limit, error, status, problem)


def _fixed(block: Observation, label: str) -> str:
    """Say why the nodes of a block cannot be refined, if they cannot."""
    if block.nodes is None:
        return f"block {label!r} holds functionals, which have no rule to refine"
    if block.nodes.rule is None:
        return f"the nodes of block {label!r} are explicit points, or a sum by different rules, and cannot be refined"
    if not np.array_equal(block.weights, block.nodes.weights):
        return f"block {label!r} has a noise for each node instead of weights, so that finer rules have no limit"
    return ""


def _resized(model: Model, factor: float) -> Model:
    """Return a data-free model whose rules have `factor` times the nodes on each axis."""
    finer = [
        impose(b.operator, 0.0, on=b.nodes.refined(factor), rho=b.temperature, name=b.name)
        for b in model.physics
        if b.nodes is not None
    ]
    return with_solver(Model(model.kernel, physics=finer, rho=model.rho, eta=model.eta), model.solver)


def _whitened(model: Model) -> Layout:
    """Return the layout whose covariance is `S^-½ Q S^-½`."""
    blocks, tables = [], []
    for block, temperature in zip(model.blocks, model.temperatures, strict=True):
        scale = np.sqrt(2.0 * block.weights / temperature)
        table = np.asarray(block.coefficients)
        if block.matrix is None:
            table = table * scale
        else:
            block = eqx.tree_at(lambda b: b.matrix, block, block.matrix * scale[:, None])
        blocks.append(block)
        tables.append(table)
    return layout(blocks, tables)


def _logdet(model: Model) -> Bounds:
    rows = _whitened(model)
    solver = solver_of(model)
    if not isinstance(solver, Dense):
        whole = KernelCovariance(model.kernel, rows, float(model.eta), np.zeros(rows.size), np.ones(rows.size))
        return solver.factor(whole).logdet
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
            f"I + 𝒢 at {rows.size} nodes is not positive definite to working precision: prior variances reach "
            f"{largest:.1e} of the noise, so that rounding exceeds the identity. Raise rho, lower eta, or lengthen "
            "the kernel's bandwidth."
        ) from None


def _kernel_numbers(model: Model, axes: Mapping[str, Float[np.ndarray, " k"]]) -> list[Float[np.ndarray, "K ..."]]:
    """Return the kernel's numbers at every point of a grid, each stacked along a first axis."""
    known = named_paths(model)
    position = {path: i for i, path in enumerate(kernel_paths(model))}
    sizes = [len(column) for column in axes.values()]
    count = math.prod(sizes)
    stacked = [np.repeat(np.asarray(leaf)[None], count, axis=0) for leaf in split(model.kernel)[0]]
    for name, column in zip(axes, np.meshgrid(*axes.values(), indexing="ij"), strict=True):
        base, index = find(model, known, name)
        place: Any = (slice(None), *index)
        for path in known[base]:
            stacked[position[path]][place] = column.ravel()
    return stacked


def _logdets(
    model: Model, numbers: list[Float[np.ndarray, "K ..."]], update: Callable[[int], Any] | None
) -> Float[np.ndarray, " K"]:
    """Return `log det(I + 𝒢)` for many kernels: compiled loops, one on each core, of one BLAS thread each."""
    rows = _whitened(model)
    spec, parts = split_tiles(model.kernel, rows)
    count = len(numbers[0]) if numbers else 1
    workers = min(cores(), -(-count // CHUNK))
    require_memory(rows.size, 8.0 * (3 * workers - 1) * rows.size**2, "a landscape")

    def chunk(start: int) -> Float[np.ndarray, " k"]:
        some = [column[start : start + CHUNK] for column in numbers]
        short = CHUNK - len(some[0]) if some else 0
        if short and count > CHUNK:  # one compilation serves all
            some = [np.concatenate([column, np.repeat(column[-1:], short, axis=0)]) for column in some]
        values = np.asarray(_compiled(spec, some, float(model.eta), parts))[: count - start]
        if update is not None:
            update(len(values))
        return values

    with ONE_BLAS_THREAD, ThreadPoolExecutor(workers) as pool:
        return np.concatenate(list(pool.map(chunk, range(0, count, CHUNK))))


@functools.partial(jax.jit, static_argnums=0)
def _compiled(spec: Any, numbers: list[Array], eta: Any, parts: list[Any]) -> Float[Array, " k"]:
    def one(leaves: list[Array]) -> Array:
        matrix = symmetric(spec, leaves, eta, parts)
        factor = jax.lax.linalg.cholesky(matrix + jnp.eye(len(matrix)), symmetrize_input=False)
        return 2.0 * jnp.log(jnp.diagonal(factor)).sum()

    return jax.lax.map(one, numbers) if numbers else one(numbers)[None]


def _nystrom(kernel_function: Callable[[Any, Any], Any], rule: Nodes, c: float) -> float:
    points = rule.points
    require_memory(len(points), 8.0 * len(points) ** 2, "the integral operator")
    try:
        one = jax.vmap(jax.vmap(kernel_function, (None, 0)), (0, None))
        table = np.asarray(jax.jit(one)(jnp.asarray(points), jnp.asarray(points)))
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError, TypeError):
        wanted = "a function of two points, k(x, y)"
        rows = [
            [call(functools.partial(kernel_function, x), y, "kernel_function", wanted) for y in points] for x in points
        ]
        table = np.array(rows)
    matrix = as_array(table, "kernel_function")
    require(matrix.shape == (len(points),) * 2, "kernel_function", matrix, "one number for each pair of points")
    half = np.sqrt(rule.weights)
    sign, value = np.linalg.slogdet(np.eye(len(points)) + c * half[:, None] * matrix * half)
    require(bool(sign > 0), "c", c, f"a factor at which det(I + cK) is positive; it is {sign * math.exp(value):.3g}")
    return float(value)
