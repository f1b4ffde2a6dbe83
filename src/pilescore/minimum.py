"""Choosing hyperparameters: the minimum of PILE by its exact gradient, from several starts."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize as scipy_minimize

from .errors import PilescoreError, PrecisionWarning, as_count, as_positive, require
from .linalg import ONE_BLAS_THREAD
from .model import Model
from .running import cores, progress_bar
from .score import Pile, at_profiled_scale, check_given, value_and_gradient
from .space import Space, Ties, space
from .system import IMPRECISE, solve

FIRST_STEP = 0.5
"""The length of the first step in the coordinate that moves most: half a nat of a logarithm, or half a range."""

SIDE_BY_SIDE = range(500, 4000)
"""Observations with which starts run side by side, one BLAS thread each. With fewer, Python's own work cannot be
shared among cores; with more, LAPACK fills them."""

Ending = Literal["converged", "stalled", "out of evaluations", "interrupted", "failed"]


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """What became of one start."""

    start: Mapping[str, float]
    end: Mapping[str, float]
    """The best point of this run; the start if nothing could be scored."""
    pile: float
    """PILE there; NaN if nothing could be scored."""
    path: Mapping[str, Float[np.ndarray, " k"]]
    """The accepted points, start first: one array for each hyperparameter, and `pile`."""
    evaluations: int
    rejected: int
    """Trial points at which the score could not be computed; the step was shortened."""
    ending: Ending
    reason: str

    def __repr__(self) -> str:
        return f"Run(pile={self.pile:.6g}, evaluations={self.evaluations}, ending={self.ending!r})"


@dataclasses.dataclass(frozen=True, eq=False)
class Curvature:
    """The Hessian of the free energy `F = N·PILE/2` at the optimum, in the coordinates of the search."""

    names: tuple[str, ...]
    """The hyperparameters that are not at a bound, one for each row."""
    hessian: Float[np.ndarray, "q q"]
    """`∂²F` in `log v` of positive hyperparameters and, for others, in `v` over the range of its bounds."""
    standard_errors: Mapping[str, float]
    """Square roots of the diagonal of the inverse Hessian, in the same coordinates; NaN at a saddle. Flat directions
    count as wide as the box. Where `η` is profiled, its uncertainty is part of that of temperatures."""
    flat: tuple[Mapping[str, float], ...]
    """Unit directions along which the evidence says next to nothing: one deviation leaves the box of the bounds."""


@dataclasses.dataclass(frozen=True, eq=False)
class Minimum:
    """The result of `minimize`: the best model of all starts, and how it was found."""

    model: Model
    pile: Pile
    values: Mapping[str, float]
    """The chosen hyperparameters."""
    standard_errors: Mapping[str, float]
    """Their standard errors by the curvature of the evidence; NaN at a bound, or where there is none."""
    at_bounds: Mapping[str, Literal["lower", "upper"]]
    """Hyperparameters that ended at a bound: the evidence wanted to go further."""
    curvature: Curvature | None
    """None if all are at a bound, if it was not asked for, or if the score cannot be computed all around."""
    runs: tuple[Run, ...]
    ending: Ending
    reason: str
    evaluations: int
    """Scores with gradients that were computed in all, those of the Hessian included."""
    profiled: bool
    """Whether η was found too, in closed form."""

    @property
    def converged(self) -> bool:
        """Whether the run that found the minimum converged."""
        return self.ending == "converged"

    def __float__(self) -> float:
        return self.pile.value

    def __repr__(self) -> str:
        lines = [f"Minimum(PILE {self.pile.value:.6g}, {self.ending} after {self.evaluations} evaluations"]
        for name, value in self.values.items():
            note = f"  at its {self.at_bounds[name]} bound" if name in self.at_bounds else ""
            error = self.standard_errors[name]
            lines.append(f"  {name} = {value:.6g}" + (f" ± {error:.2g}" if math.isfinite(error) else "") + note)
        if len(self.runs) > 1:
            ends = sorted((run.pile for run in self.runs), key=lambda end: (math.isnan(end), end))
            shown = [f"{end:.4g}" for end in ends[:8]] + ["…"] * (len(ends) > 8)
            lines.append(f"  {len(self.runs)} starts ended at " + ", ".join(shown))
        return "\n".join(lines) + ")"


def minimize(
    model: Model,
    over: Mapping[str, Any],
    *,
    starts: int | Sequence[Mapping[str, Any]] = 1,
    seed: int = 0,
    ties: Ties | None = None,
    profiled: bool = False,
    given_physics: bool = False,
    tolerance: float | int = 1e-8,
    max_evaluations: int = 200,
    hessian: bool = True,
    progress: bool | None = None,
) -> Minimum:
    """Return the minimum of PILE over hyperparameters, by L-BFGS-B on its exact gradient.

    Positive hyperparameters are searched by their logarithm, others in units of the range of their bounds. A trial
    step at which the score cannot be computed is shortened. Interrupted (Ctrl-C), it returns the best so far.

    Parameters
    ----------
    model
        The model; its own values are the first start.
    over
        Bounds `(low, high)` by name. Names are those of `Model.replace`; the bounds of a vector hold for each of
        its elements, or are vectors themselves.
    starts
        How many: the model's own values, then scrambled Sobol points within the bounds. Or the starts themselves, as
        `[{"kernel.bandwidth": 0.3}, …]`; what they leave out is the model's. They run side by side
        where that is faster.
    seed
        Of the Sobol points.
    ties
        Hyperparameters that follow others: `{"kernel.theta": lambda p: jnp.arctan(p["beta"])}`, a JAX function of
        the searched values by name.
    profiled
        Minimise the profiled score: `η`, with `γ/η` and `ρ/η` held, is found in closed form for each trial, and the
        model returned has it. Bounds on temperatures are then bounds at the model's `η`.
    given_physics
        Minimise the score of the data given the physics, as in `pile`: to infer coefficients of the equation. PILE
        proper also rewards an operator for being small, and so pulls its coefficients down.
    tolerance
        A run has converged when a step lowers PILE by less than this, or no slope exceeds its square root / 10.
    max_evaluations
        Of each start.
    hessian
        Whether to compute the curvature at the end (two evaluations for each hyperparameter, more for sharp ones).
    progress
        Show a progress bar: by default on a terminal only.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 30)
    >>> noisy = np.sin(6 * x) + 0.1 * np.random.default_rng(0).standard_normal(30)
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.5), data=ps.observe(ps.identity, noisy, at=x), gamma=0.1)
    >>> best = ps.minimize(model, over={"kernel.bandwidth": (0.05, 5), "gamma": (1e-4, 1), "eta": (0.01, 100)})
    >>> best.ending, 0.05 < (best.values["gamma"] / 2) ** 0.5 < 0.15  # the noise that was added: 0.1
    ('converged', True)
    """
    search, points = prepared(model, over, starts, seed, ties, profiled, given_physics, tolerance, max_evaluations)
    where = search.where
    with progress_bar(0, "minimize", progress) as bar:
        search.update = bar.update
        runs, interrupted = _side_by_side(search, points)
        scored = [run for run in runs if run.best is not None]
        if not scored:
            if interrupted:
                raise KeyboardInterrupt
            text = "; ".join(dict.fromkeys(run.reason for run in runs))
            raise type(runs[0].failure or PilescoreError())(f"PILE could not be computed at any start. {text}")
        best = min(scored, key=lambda run: run.best[1].value if run.best else math.inf)
        assert best.best is not None
        u, score = best.best
        edges = _edges(where, u)
        curvature = None
        if hessian and not interrupted:
            try:
                curvature = _curvature(search, u, [n for n in where.names if n not in edges], score.size)
            except KeyboardInterrupt:
                interrupted = True
    values = where.decode(u)
    chosen = where.at(values)
    if profiled:
        chosen = at_profiled_scale(chosen, score)
        values = where.read(chosen)
    if score.rounding > IMPRECISE:
        warnings.warn(
            f"rounding leaves PILE at the minimum uncertain by about {score.rounding:.1e}; ps.pile of the model found "
            "says in which blocks, and what helps",
            PrecisionWarning,
            stacklevel=2,
        )
    slope = dict(zip(where.names, where.slope(values), strict=True))
    found = {} if curvature is None else curvature.standard_errors
    return Minimum(
        chosen,
        score,
        where.named(values),
        {name: float(slope[name]) * found.get(name, math.nan) for name in where.names},
        edges,
        curvature,
        tuple(run.frozen() for run in runs),
        "interrupted" if interrupted else best.ending,
        "interrupted: this is the best so far" if interrupted else best.reason,
        search.evaluations,
        search.profiled,
    )


def prepared(
    model: Model,
    over: Mapping[str, Any],
    starts: int | Sequence[Mapping[str, Any]] = 1,
    seed: int = 0,
    ties: Ties | None = None,
    profiled: bool = False,
    given_physics: bool = False,
    tolerance: float | int = 1e-8,
    max_evaluations: int = 200,
) -> tuple[_Search, list[Float[np.ndarray, " p"]]]:
    """Return a search and its starts from arguments of `minimize`, which are checked."""
    require(isinstance(model, Model), "model", model, "a ps.Model")
    where = space(model, over, ties)
    require(not (profiled and "eta" in where.targets), "over", "eta", "no bounds on eta where it is profiled")
    check_given(model, given_physics)
    small, budget = as_positive(tolerance, "tolerance"), as_count(max_evaluations, "max_evaluations")
    return _Search(where, profiled, given_physics, small, budget), _starts(where, starts, seed)


class _StopError(Exception):
    """Ends a run from within its objective."""


class _Search:
    """What all runs of one search share."""

    def __init__(self, where: Space, profiled: bool, given_physics: bool, tolerance: float, budget: int) -> None:
        self.where = where
        self.profiled = profiled
        self.given_physics = given_physics
        self.tolerance = tolerance
        self.budget = budget
        self.halted = threading.Event()
        self.lock = threading.Lock()
        self.evaluations = 0
        self.update: Any = lambda count: None

    def evaluate(self, u: Float[np.ndarray, " p"]) -> tuple[Pile, Float[np.ndarray, " p"]]:
        """Return PILE and its gradient in the coordinates; raise a `PilescoreError` where there is none."""
        if self.halted.is_set():
            raise _StopError
        with self.lock:
            self.evaluations += 1
            self.update(1)
        values = self.where.decode(u)
        model, options = self.where.at(values), (self.profiled, self.given_physics)
        score, by_name = value_and_gradient(model, self.where.wanted, *options, warn=False)
        gradient = self.where.gradient(values, by_name)
        if not (math.isfinite(score.value) and np.isfinite(gradient).all()):
            raise PilescoreError("the score or its gradient is not finite")
        return score, gradient


class _Run:
    """One descent. `φ = scale · (PILE − PILE at the start)` is what L-BFGS-B sees: its first step has a set length."""

    def __init__(self, search: _Search, start: Float[np.ndarray, " p"]) -> None:
        self.search = search
        self.start = start
        self.best: tuple[Float[np.ndarray, " p"], Pile] | None = None
        self.path: list[tuple[Float[np.ndarray, " p"], float]] = []
        self.evaluations = 0
        self.rejected = 0
        self.ending: Ending = "interrupted"
        self.reason = "interrupted"
        self.failure: PilescoreError | None = None
        self.first = self.scale = 0.0
        self.trial = self.last = (start, 0.0, start)
        """The last point tried, and the last accepted: coordinates, `φ` and its gradient."""

    def descend(self) -> None:
        """Run until it ends, and say why."""
        search = self.search
        try:
            score, gradient = self._evaluate(self.start)
        except _StopError:
            return
        except PilescoreError as failure:
            values = search.where.decode(self.start)
            given = ", ".join(f"{n} = {v:g}" for n, v in search.where.named(values).items())
            self.failure = failure
            try:
                solve(search.where.at(values))  # trial points are not explained, starts are
            except PilescoreError as explained:
                self.failure = explained
            self.ending, self.reason = "failed", f"At the start {given}: {self.failure}"
            return
        self.path.append((self.start, score.value))
        bounds = search.where.bounds
        low, high = np.array(bounds).T
        held = np.where(gradient > 0, self.start <= low, self.start >= high)
        step = np.abs(np.where(held, 0.0, gradient)).max()
        self.first, self.scale = score.value, FIRST_STEP / max(step, FIRST_STEP)
        self.last = (self.start, 0.0, self.scale * gradient)
        known = {self.start.tobytes(): self.last[1:]}

        def objective(u: Float[np.ndarray, " p"]) -> tuple[float, Float[np.ndarray, " p"]]:
            return known.pop(u.tobytes()) if u.tobytes() in known else self._objective(u)

        flat = 0.1 * math.sqrt(search.tolerance)
        options: Any = {
            "ftol": search.tolerance * self.scale,
            "gtol": flat * self.scale,
            "maxfun": 10 * search.budget,
            "maxiter": 10 * search.budget,
        }
        try:
            end = scipy_minimize(
                objective,
                self.start,
                jac=True,
                method="L-BFGS-B",
                bounds=bounds,
                callback=self._accept,
                options=options,
            )
        except _StopError:
            if not search.halted.is_set():
                self.ending, self.reason = "out of evaluations", f"{search.budget} evaluations are used up"
            return
        if not end.success:
            rounding = self.best[1].rounding if self.best else math.nan
            self.ending = "stalled"
            self.reason = (
                f"no step lowers PILE further; rounding leaves it uncertain by about {rounding:.1e}, and "
                f"{self.rejected} trial points could not be scored"
            )
        elif "GRADIENT" in end.message:
            self.ending, self.reason = "converged", f"no slope exceeds {flat:.1e}"
        else:
            self.ending, self.reason = "converged", f"the last step lowered PILE by less than {search.tolerance:.1e}"

    def _evaluate(self, u: Float[np.ndarray, " p"]) -> tuple[Pile, Float[np.ndarray, " p"]]:
        if self.evaluations >= self.search.budget:
            raise _StopError
        self.evaluations += 1
        score, gradient = self.search.evaluate(u)
        if self.best is None or score.value < self.best[1].value:
            self.best = (u.copy(), score)
        return score, gradient

    def _objective(self, u: Float[np.ndarray, " p"]) -> tuple[float, Float[np.ndarray, " p"]]:
        try:
            score, gradient = self._evaluate(u)
        except PilescoreError:
            self.rejected += 1
            return self._wall(u)
        self.trial = (u.copy(), self.scale * (score.value - self.first), self.scale * gradient)
        return self.trial[1:]

    def _wall(self, u: Float[np.ndarray, " p"]) -> tuple[float, Float[np.ndarray, " p"]]:
        """Return a value and gradient that send the line search back to a quarter of the step.

        Along the step they are those of the parabola that leaves the last accepted point with its slope `a` and is
        lowest at a quarter of the way; at the trial point it is `a` above the last value, so never accepted.
        """
        origin, value, gradient = self.last
        step = u - origin
        slope = min(float(gradient @ step), -1e-300)
        return value - slope, gradient - 4.0 * slope * step / float(step @ step)

    def _accept(self, intermediate_result: Any) -> None:
        u = np.array(intermediate_result.x)
        if np.array_equal(u, self.trial[0]):
            self.last = self.trial
        self.path.append((u, self.first + float(intermediate_result.fun) / self.scale))

    def frozen(self) -> Run:
        """Return what a user sees."""
        where = self.search.where
        columns = np.array([where.decode(u) for u, _ in self.path]).reshape(-1, len(where.names)).T
        path = dict(zip(where.names, columns, strict=True)) | {"pile": np.array([value for _, value in self.path])}
        end, pile = (self.start, math.nan) if self.best is None else (self.best[0], self.best[1].value)
        first, last = (where.named(where.decode(u)) for u in (self.start, end))
        return Run(first, last, pile, path, self.evaluations, self.rejected, self.ending, self.reason)


def _side_by_side(search: _Search, points: Iterable[Float[np.ndarray, " p"]]) -> tuple[list[_Run], bool]:
    """Descend from every start, in threads; the caller's thread waits, so that Ctrl-C reaches it."""
    runs = [_Run(search, point) for point in points]
    workers = min(cores(), len(runs)) if search.where.model.size in SIDE_BY_SIDE else 1
    interrupted = False
    with ONE_BLAS_THREAD if workers > 1 else contextlib.nullcontext(), ThreadPoolExecutor(workers) as pool:
        try:
            for future in [pool.submit(run.descend) for run in runs]:
                future.result()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            search.halted.set()  # the pool waits for what is under way
    search.halted.clear()
    return runs, interrupted


def _starts(where: Space, starts: int | Sequence[Mapping[str, Any]], seed: int) -> list[Float[np.ndarray, " p"]]:
    if isinstance(starts, Mapping):
        starts = [starts]
    if isinstance(starts, list | tuple):
        require(len(starts) > 0, "starts", starts, "at least one start")
        for start in starts:
            require(isinstance(start, Mapping), "starts", start, "mappings of names to values")
        return [where.start(start) for start in starts]
    counted = isinstance(starts, int | np.integer)
    require(counted, "starts", starts, "how many, or a list of mappings of names to values")
    count = as_count(starts, "starts")
    return [where.start({}), *where.sobol(count - 1, as_count(seed, "seed", least=0))]


def _edges(where: Space, u: Float[np.ndarray, " p"]) -> dict[str, Literal["lower", "upper"]]:
    found: dict[str, Literal["lower", "upper"]] = {}
    for name, at, (low, high) in zip(where.names, u, where.bounds, strict=True):
        near = 1e-6 * (high - low)
        if at <= low + near:
            found[name] = "lower"
        elif at >= high - near:
            found[name] = "upper"
    return found


def _curvature(search: _Search, u: Float[np.ndarray, " p"], free: Sequence[str], size: int) -> Curvature | None:
    """Return the curvature in the hyperparameters that are not at a bound, by differences of the gradient."""
    where = search.where
    rows = [where.names.index(name) for name in free]
    if not rows:
        return None
    hessian, scale = np.empty((len(rows), len(rows))), np.empty(len(rows))
    for i, row in enumerate(rows):
        step = 1e-3
        for _ in range(4):  # until the step is short beside the deviation that it measures
            unit = np.zeros(len(u))
            unit[row] = step
            try:
                after, before = (search.evaluate(u + sign * unit) for sign in (1.0, -1.0))
            except PilescoreError:
                return None
            hessian[i] = 0.5 * size * (after[1] - before[1])[rows] / (2 * step)
            scale[i] = math.log(after[0].eta / before[0].eta) / (2 * step)  # read where η is profiled
            deviation = 1.0 / math.sqrt(abs(hessian[i, i])) if hessian[i, i] else math.inf
            if step <= 0.01 * deviation:
                break
            step = 0.005 * deviation
    hessian = 0.5 * (hessian + hessian.T)
    eigenvalues, vectors = np.linalg.eigh(hessian)
    low, high = np.array(where.bounds).T
    least = (np.abs(vectors) / (high - low)[rows, None]).max(axis=0) ** 2  # a deviation from one bound to the other
    covariance = vectors / np.maximum(eigenvalues, least) @ vectors.T
    variances = covariance.diagonal()
    if search.profiled:
        moved = covariance @ scale
        variances = variances + where.temperatures[rows] * (2.0 * moved + scale @ moved + 2.0 / size)
    if np.any(eigenvalues <= -least):
        variances = np.full(len(rows), math.nan)
    flat = [dict(zip(free, vector.tolist(), strict=True)) for vector in vectors.T[np.abs(eigenvalues) < least]]
    return Curvature(tuple(free), hessian, dict(zip(free, np.sqrt(variances).tolist(), strict=True)), tuple(flat))
