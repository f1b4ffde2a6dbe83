"""Scores on a grid of hyperparameters, as a labelled dataset that is written as it grows."""

from __future__ import annotations

import copy
import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import equinox as eqx
import numpy as np
import xarray as xr

from .accuracy import Reference, Risk, measured, reference
from .domains import Nodes
from .errors import InputError, NotPositiveDefiniteError, PrecisionWarning, SaveError, as_count, require
from .families import scores_by_temperature
from .model import Model, as_grid, find, is_temperature, named_paths
from .observations import evaluate
from .operators import Operator
from .posterior import Posterior
from .quadrature import GaussLegendre
from .records import Record, fingerprint
from .running import progress_bar
from .score import Pile, check_given, value
from .system import IMPRECISE, solve

WRITE_EVERY = 2.0
"""Seconds between writings, at least; a point that takes longer is written as soon as it is there."""

TERMS = ("pile", "fit", "complexity", "constant", "eta", "rounding")
RISKS = {"": "value", "_bias": "bias", "_variance": "variance", "_relative_l2": "relative_l2"}


def sweep(
    model: Model | Callable[[int], Model],
    grid: Mapping[str, Any],
    *,
    seeds: Iterable[int] | None = None,
    truth: Callable[[Any], Any] | None = None,
    on: Nodes | None = None,
    operator: Operator | None = None,
    operator_truth: Any = None,
    scale: Any = None,
    profiled: bool = False,
    given_physics: bool = False,
    save: Any = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Return PILE, its terms and, if the solution is known, the true errors on a grid of hyperparameters.

    A point whose covariance cannot be factored is recorded with its reason and the rest goes on. Interrupted
    (Ctrl-C), what is there so far is returned, the rest marked `pending`.

    Parameters
    ----------
    model
        The model, or a function from a seed to a model.
    grid
        Values by name, as `{"kernel.bandwidth": np.geomspace(0.05, 2, 40)}`; names are those of `Model.replace`.
    seeds
        Whole numbers, one for each repetition: given to the function, or, for a model with a known `truth`, used to
        draw its data anew, as `L truth` plus noise of the model's own temperatures.
    truth, on, operator, operator_truth, scale
        As for `accuracy`. Without `on`, Gauss–Legendre nodes, 30 a side, of the region of the first physics block;
        without `operator`, that block's operator.
    profiled, given_physics
        As for `pile`.
    save
        A file `run.nc` or a directory `run.zarr` (with the extra `zarr`) to write to as it goes. If it is there and is
        of the same sweep, the sweep continues from it; if of another, it is refused.
    progress
        Show a progress bar: by default on a terminal only.

    Returns
    -------
    xarray.Dataset
        `pile`, `fit`, `complexity`, `constant`, `eta`, `rounding`, `shares` (by block), `status` (ok, imprecise,
        failed or pending) and `reason`; with `truth` also `R_data` and `R_phys`, their parts `_bias` and `_variance`,
        and `_relative_l2`. One dimension for each name, and `seed`.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 20)
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.5), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.02)
    >>> scores = ps.sweep(model, {"kernel.bandwidth": [0.1, 0.3, 1.0], "gamma": [0.01, 0.1]})
    >>> dict(scores["pile"].sizes)
    {'kernel.bandwidth': 3, 'gamma': 2}
    >>> float(scores["pile"].sel(gamma=0.01).idxmin())
    0.3
    """
    numbers = None if seeds is None else _seeds(seeds)
    models = _models(model, numbers, truth)
    check_given(models[0], given_physics)
    axes = as_grid(models[0], grid)
    wanted = _reference(models[0], truth, on, operator, operator_truth, scale)
    record = None if save is None else Record(save)
    measures = [] if wanted is None else [*wanted.targets, *wanted.scales, wanted.on.points, wanted.on.weights]
    mark = fingerprint([*models, *axes.items(), numbers, *measures, profiled, given_physics])
    table = _Table(axes, numbers, models[0].labels, wanted, {"fingerprint": mark})
    if record is not None:
        table.resume(record)
    try:
        with progress_bar(table.size, "sweep", progress, initial=table.done) as bar:
            for where, outcome in _outcomes(models, axes, table, wanted, profiled, given_physics):
                table.put(where, outcome)
                bar.update(1)
                table.checkpoint(record)
    except KeyboardInterrupt:
        left = table.size - table.done
        warnings.warn(f"interrupted: {left} of {table.size} points are pending", UserWarning, stacklevel=2)
    table.finish(record)
    return table.dataset()


class _Table:
    """The arrays of a sweep, by name, and how they are kept on disk."""

    def __init__(
        self,
        axes: Mapping[str, np.ndarray],
        seeds: tuple[int, ...] | None,
        blocks: tuple[str, ...],
        wanted: Reference | None,
        attributes: Mapping[str, Any],
    ) -> None:
        self.coordinates: dict[str, Any] = dict(axes) | ({} if seeds is None else {"seed": np.array(seeds)})
        self.shape = tuple(len(column) for column in self.coordinates.values())
        self.blocks = np.array(blocks)
        self.attributes = dict(attributes)
        names = list(TERMS)
        if wanted is not None:
            names += [f"R_{kind}{part}" for kind in ("data", "phys")[: len(wanted.operators)] for part in RISKS]
        self.arrays = {name: np.full(self.shape, math.nan) for name in names}
        self.shares = np.full((*self.shape, len(blocks)), math.nan)
        self.status = np.full(self.shape, "pending", dtype=object)
        self.reason = np.full(self.shape, "", dtype=object)
        self.written = 0.0
        self.unsaved = False

    @property
    def size(self) -> int:
        """The number of points."""
        return self.status.size

    @property
    def done(self) -> int:
        """The number of points that are not pending."""
        return int((self.status != "pending").sum())

    def put(self, where: tuple[int, ...], outcome: Mapping[str, Any]) -> None:
        """Set one point."""
        for name, entry in outcome.items():
            if name in self.arrays:
                self.arrays[name][where] = entry
        self.shares[where] = outcome.get("shares", math.nan)
        self.reason[where] = outcome.get("reason", "")
        self.status[where] = outcome["status"]

    def dataset(self) -> xr.Dataset:
        """Return what is there."""
        dims = tuple(self.coordinates)
        variables: dict[str, Any] = {name: (dims, array.copy()) for name, array in self.arrays.items()}
        variables["shares"] = ((*dims, "block"), self.shares.copy())
        variables["status"] = (dims, self.status.astype(str))
        variables["reason"] = (dims, self.reason.astype(str))
        return xr.Dataset(variables, self.coordinates | {"block": self.blocks}, self.attributes)

    def resume(self, record: Record) -> None:
        """Take over what is on disk; where there is nothing, write the empty table, to see that it can be written."""
        old = record.read()
        if old is None:
            record.write(self.dataset())
            return
        if old.attrs.get("fingerprint") != self.attributes["fingerprint"]:
            raise InputError(
                f"save: {record.path} holds a sweep of another model, grid, seeds, truth or option (fingerprint "
                f"{old.attrs.get('fingerprint')}, here {self.attributes['fingerprint']}). Nothing was changed; choose "
                "another name, or move it away."
            )
        for name in self.arrays:
            self.arrays[name] = old[name].values.astype(float)
        self.shares = old["shares"].values.astype(float)
        self.status, self.reason = (old[name].values.astype(str).astype(object) for name in ("status", "reason"))

    def checkpoint(self, record: Record | None) -> None:
        """Write if it is time; a failure is a warning as long as the sweep goes on."""
        if record is None or time.monotonic() - self.written < WRITE_EVERY:
            return
        try:
            record.write(self.dataset())
            self.unsaved = False
        except SaveError as error:
            if not self.unsaved:
                warnings.warn(f"{error}; the sweep goes on and will try again", UserWarning, stacklevel=3)
            self.unsaved = True
        self.written = time.monotonic()

    def finish(self, record: Record | None) -> None:
        """Write everything; a failure here is an error that carries the dataset."""
        if record is not None:
            record.write(self.dataset())


def _outcomes(
    models: list[Model],
    axes: Mapping[str, np.ndarray],
    table: _Table,
    wanted: Reference | None,
    profiled: bool,
    given_physics: bool,
) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    """Score the points that are pending, those of one kernel together."""
    known = named_paths(models[0])
    temperatures = [name for name in axes if is_temperature(known[find(models[0], known, name)[0]][0])]
    others = [name for name in axes if name not in temperatures]
    reducible = bool(temperatures) and wanted is None and not given_physics
    several = "seed" in table.coordinates
    for s, base in enumerate(models):
        for outer in itertools.product(*(range(len(axes[name])) for name in others)):
            chosen = dict(zip(others, outer, strict=True))
            local = base.replace({name: axes[name][i] for name, i in chosen.items()})
            points = []
            for inner in itertools.product(*(range(len(axes[name])) for name in temperatures)):
                position = chosen | dict(zip(temperatures, inner, strict=True))
                where = (*(position[name] for name in axes), *((s,) if several else ()))
                points.append((where, {name: float(axes[name][position[name]]) for name in temperatures}))
            if all(table.status[where] != "pending" for where, _ in points):
                continue
            values = [point for _, point in points]
            ready = scores_by_temperature(local, values, profiled) if reducible else [None] * len(points)
            for (where, point), score in zip(points, ready, strict=True):
                if table.status[where] == "pending":
                    yield where, _outcome(local.replace(point), score, wanted, profiled, given_physics)


def _outcome(
    model: Model, score: Pile | None, wanted: Reference | None, profiled: bool, given_physics: bool
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        if score is None:
            system = solve(model)
            score = value(system, profiled, given_physics, warn=False)
            if wanted is not None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", PrecisionWarning)  # said by the status
                    errors = measured(Posterior(system), wanted, score.eta / system.eta)
                found |= _risks("data", errors.data) | _risks("phys", errors.physics)
    except (NotPositiveDefiniteError, InputError) as failure:
        return {"status": "failed", "reason": str(failure)}
    found |= {name: getattr(score, "value" if name == "pile" else name) for name in TERMS}
    found["shares"] = list(score.shares.values())
    found["status"], found["reason"] = "ok", ""
    if score.rounding > IMPRECISE:
        found["status"], found["reason"] = "imprecise", f"rounding leaves PILE uncertain by {score.rounding:.1e}"
    return found


def _risks(kind: str, risk: Risk | None) -> dict[str, float]:
    return {} if risk is None else {f"R_{kind}{part}": getattr(risk, name) for part, name in RISKS.items()}


def _seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    require(isinstance(seeds, Iterable), "seeds", seeds, "whole numbers, as range(10)")
    numbers = tuple(as_count(seed, "seeds", least=0) for seed in seeds)
    require(len(numbers) > 0 and len(set(numbers)) == len(numbers), "seeds", numbers, "at least one, each once")
    return numbers


def _models(model: Any, seeds: tuple[int, ...] | None, truth: Callable[[Any], Any] | None) -> list[Model]:
    if isinstance(model, Model):
        if seeds is None:
            return [model]
        expected = "a truth to draw data from, or a function from a seed to a model"
        require(truth is not None and len(model.data) > 0, "seeds", "a model whose data are given", expected)
        return [_redrawn(model, truth, seed) for seed in seeds]
    require(callable(model), "model", model, "a ps.Model, or a function from a seed to one")
    require(seeds is not None, "seeds", seeds, "seeds to give to the function")
    models = [model(seed) for seed in seeds or ()]
    for each in models:
        require(isinstance(each, Model), "model", each, "a function that returns a ps.Model")
        same = each.labels == models[0].labels and each.parameters.keys() == models[0].parameters.keys()
        require(same, "model", each, "models with the same blocks and hyperparameters for all seeds")
    return models


def _redrawn(model: Model, truth: Any, seed: int) -> Model:
    """Return the model with data drawn anew: the operator of the truth plus noise."""
    rng = np.random.default_rng(seed)
    blocks = []
    for block, temperature in zip(model.data, model.temperatures, strict=False):
        exact = np.asarray(evaluate(block.operator(truth), block.points, "truth"))
        exact = exact if block.matrix is None else block.matrix @ exact
        values = exact + np.sqrt(0.5 * temperature / block.weights) * rng.standard_normal(len(exact))
        values.flags.writeable = False
        blocks.append(eqx.tree_at(lambda b: b.values, block, values))
    drawn = copy.copy(model)
    object.__setattr__(drawn, "data", tuple(blocks))
    return drawn


def _reference(
    model: Model, truth: Any, on: Nodes | None, operator: Operator | None, operator_truth: Any, scale: Any
) -> Reference | None:
    if truth is None:
        for name, given in (("on", on), ("operator", operator), ("scale", scale), ("operator_truth", operator_truth)):
            require(given is None, name, given, "nothing without a truth")
        return None
    first = model.physics[0] if model.physics else None
    if on is None:
        region = None if first is None else first.region
        require(
            region is not None, "on", on, "nodes to integrate the errors on: physics has no region to take them from"
        )
        assert region is not None
        on = region(GaussLegendre(30))
    if operator is None and first is not None:
        operator = first.operator
    return reference(truth, on, operator, operator_truth=operator_truth, scale=scale)
