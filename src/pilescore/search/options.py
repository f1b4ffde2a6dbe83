"""Options of searches: how they proceed, where they run and where results are saved."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..errors import as_count, as_positive, require
from ..storage import DatasetFile


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """How a search proceeds. `minimize`, `choose` and `select` take it as `search`.

    Examples
    --------
    >>> import pilescore as ps
    >>> ps.SearchOptions(max_evaluations=50)
    SearchOptions(tolerance=1e-08, max_evaluations=50, seed=0, curvature=True, refine=True)
    >>> ps.SearchOptions(tolerance=-1.0)
    Traceback (most recent call last):
    ...
    pilescore.errors.InputError: tolerance: expected a positive number; got -1.0
    """

    tolerance: float | int = 1e-8
    """A descent has converged when a step lowers PILE by less than this, or no slope exceeds a tenth of its square
    root."""
    max_evaluations: int = 200
    """The largest number of scores with gradient for each start, and again for Newton steps after the best of them."""
    seed: int = 0
    """The seed of the random starts."""
    curvature: bool = True
    """Whether to compute the curvature of the evidence at the minimum, and from it standard errors: two evaluations for
    each hyperparameter, more for well-determined ones and in narrow valleys."""
    refine: bool = True
    """Whether to refine the nodes of exact equations until nothing moves. Without, the result says whether they suffice
    (`Minimum.resolution`), at a fraction of the cost."""

    def __post_init__(self) -> None:
        as_positive(self.tolerance, "tolerance")
        as_count(self.max_evaluations, "max_evaluations")
        as_count(self.seed, "seed", least=0)
        require(isinstance(self.curvature, bool), "curvature", self.curvature, "True or False")
        require(isinstance(self.refine, bool), "refine", self.refine, "True or False")


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Where long computations run and are saved. `minimize`, `sweep`, `choose` and others take it as `run`.

    Examples
    --------
    >>> import pilescore as ps
    >>> ps.RunOptions(save="scores.nc", progress=False)
    RunOptions(client=None, save='scores.nc', progress=False)
    """

    client: Any = None
    """A `dask.distributed.Client` (with the extra `scale`). Its workers compute the scores; results are the same up to
    rounding. This is faster if one score takes longer than a message to a worker, about ten milliseconds."""
    save: Any = None
    """A file `run.nc` or a directory `run.zarr` (with the extra `zarr`) to which every evaluation is written. If the
    process stops, the same call continues from there. A file of another computation is refused. If the last write
    fails, the `SaveError` carries the results as `dataset`."""
    progress: bool | None = None
    """Show a progress bar; by default only on a terminal."""

    def __post_init__(self) -> None:
        require(
            self.progress is None or isinstance(self.progress, bool), "progress", self.progress, "True, False or None"
        )


def describe_saving(file: DatasetFile | None) -> str:
    """Return where the results so far are saved, as the end of a sentence about them."""
    if file is None:
        return "none of them is saved: run=ps.RunOptions(save=…) saves them"
    return f"they are saved in {file.path}"


def check_options(run: Any, search: Any = SearchOptions()) -> None:  # noqa: B008  (frozen)
    """Raise an `InputError` unless both are option objects."""
    require(isinstance(search, SearchOptions), "search", search, "a ps.SearchOptions")
    require(isinstance(run, RunOptions), "run", run, "a ps.RunOptions")
