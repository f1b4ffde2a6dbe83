"""Choosing hyperparameters: the minimum of PILE by its exact gradient, from several starts."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from .cluster import checked_client
from .descent import Curvature, Ending, Objective, Run, find_curvature, side_by_side
from .errors import PilescoreError, PrecisionWarning, as_count, as_positive, require
from .evaluation import solved
from .farm import Farm, refuse_nested, reported
from .journals import Journal
from .methods import solver_of, with_solver
from .model import Model
from .records import Record, fingerprint, function_values, ten_digits
from .running import progress_bar
from .score import Pile, at_profiled_scale, check_given
from .solvers import Solver
from .solving import Solved
from .space import Space, Ties, space
from .system import IMPRECISE


@dataclasses.dataclass(frozen=True, eq=False)
class Minimum:
    """The result of `minimize`: the best model of all starts, and how it was found.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 20)
    >>> noisy = np.sin(6 * x) + 0.1 * np.random.default_rng(0).standard_normal(20)
    >>> model = ps.Model(ps.RBF(0.5), data=ps.observe(ps.identity, noisy, at=x), gamma=0.02)
    >>> best = ps.minimize(model, over={"kernel.bandwidth": (0.05, 5.0), "gamma": (0.015, 1.0)})
    >>> best
    Minimum(PILE -0.837077, converged after ... evaluations
      kernel.bandwidth = 0.29337 ± 0.047
      gamma = 0.015  at its lower bound)
    >>> best.converged, dict(best.at_bounds)
    (True, {'gamma': 'lower'})
    >>> abs(best.pile.value - ps.pile(best.model).value) < 1e-12  # best.model is what to go on with
    True
    """

    model: Model
    """The model with the chosen hyperparameters."""
    pile: Pile
    """Its score."""
    values: Mapping[str, float]
    """The chosen hyperparameters."""
    standard_errors: Mapping[str, float]
    """Their standard errors by the curvature of the evidence; NaN at a bound, or where there is none."""
    at_bounds: Mapping[str, Literal["lower", "upper"]]
    """Hyperparameters that ended at a bound: the evidence wanted to go further."""
    curvature: Curvature | None
    """None if all are at a bound, if it was not asked for, or if the score cannot be computed all around."""
    runs: tuple[Run, ...]
    """What became of each start."""
    ending: Ending
    """Of the best run; see `Run`."""
    reason: str
    """The ending in a sentence."""
    evaluations: int
    """Scores with gradients that were computed in all, those of the Hessian and those found on disk included."""
    profiled: bool
    """Whether η was found too, in closed form."""
    given_physics: bool = False
    """Whether the data were scored given the physics."""
    solved: Solved | None = None
    """The solution of a nonlinear model, with the model linearised there."""

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
    solver: Solver | str | None = None,
    client: Any = None,
    save: Any = None,
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
    solver
        As for `pile`. Where it gives bounds on PILE, the midpoint is minimised, and `pile` of the result has them.
    client
        A `dask.distributed.Client` (with the extra `scale`): its workers compute scores and gradients, for as many
        starts at once as they have threads. The rest is as without: the file, what Ctrl-C does, and the result, up to
        rounding. It pays where a score takes longer than the way to a worker, some ten milliseconds.
    save
        A file `run.nc` or a directory `run.zarr` (with the extra `zarr`) to write every evaluation to as it goes.
        Stopped in any way, the same call goes on from there to the result that it would have had. A file of another
        search is refused. If it cannot be written in the end, the `SaveError` has it as `dataset`.
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
    options = (profiled, given_physics, tolerance, max_evaluations, solver)
    search, points = prepared(model, over, starts, seed, ties, *options)
    where = search.where
    with (
        reported(lambda: _reached(search)),
        progress_bar(0, "minimize", progress) as bar,
        _farm(search, client) as search.farm,
        _journal(search, points, hessian, save) as journal,
    ):
        search.update, search.journal = bar.update, journal
        runs, interrupted = side_by_side(search, points)
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
                free = [name for name in where.names if name not in edges]
                curvature = find_curvature(search, u, free, score.size, best.trail)
            except KeyboardInterrupt:
                interrupted = True
        if journal is not None and not interrupted:
            journal.close()
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
    solution = solved(chosen, best.trail) if chosen.is_nonlinear else None
    if solution is not None and not solution.converged:
        warnings.warn(
            f"at the minimum of PILE the nonlinear model is {solution.status}: {solution.reason}", stacklevel=2
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
        search.given_physics,
        solution,
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
    solver: Solver | str | None = None,
) -> tuple[Objective, list[Float[np.ndarray, " p"]]]:
    """Return a search and its starts from arguments of `minimize`, which are checked."""
    require(isinstance(model, Model), "model", model, "a ps.Model")
    model = with_solver(model, solver)
    where = space(model, over, ties)
    require(not (profiled and "eta" in where.targets), "over", "eta", "no bounds on eta where it is profiled")
    check_given(model, given_physics)
    small, budget = as_positive(tolerance, "tolerance"), as_count(max_evaluations, "max_evaluations")
    return Objective(where, profiled, given_physics, small, budget), _starts(where, starts, seed)


def _farm(search: Objective, client: Any) -> Any:
    """Return workers for a search as a context; one of None without a client."""
    if client is None:
        return contextlib.nullcontext()
    model, ties = search.where.model, search.where.ties
    refuse_nested(checked_client(client), solver_of(model))
    return Farm(client, model.size, search.score, {"model": model, "ties": dict(ties)})


def _reached(search: Objective) -> str:
    kept = "none of them is kept, as there is no save="
    if search.journal is not None:
        kept = f"they are kept in {search.journal.record.path}"
    return f"{search.evaluations} evaluations were begun, and what they gave: {kept}"


def _journal(search: Objective, points: list[Float[np.ndarray, " p"]], hessian: bool, save: Any) -> Any:
    """Return the journal of a search, with what is on disk, as a context; one of None if nothing is to be saved."""
    if save is None:
        return contextlib.nullcontext()
    record, where = Record(save), search.where
    mark = fingerprint(_parts(search, points, hessian))
    return Journal(where.names, where.model.labels, mark, record)


def _parts(search: Objective, points: list[Float[np.ndarray, " p"]], hessian: bool) -> Iterator[Any]:
    """Give all that a minimum depends on; functions, as ties are, by what they give at a few points."""
    where = search.where
    yield from ("minimize", where.model, where.names, where.low, where.high, ten_digits(points))
    yield from (bool(search.profiled), bool(search.given_physics), search.tolerance, search.budget, bool(hessian))
    method = solver_of(where.model).identity
    if method != "dense":
        yield from ("solver", method)
    for u in (points[0], *where.sobol(4, 0)):
        try:
            yield from function_values(where.at(where.decode(u)))
        except PilescoreError:  # a tie goes where the model cannot
            yield "refused"


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
