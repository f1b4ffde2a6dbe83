"""Choice among models, kernels or equations, each at its own best hyperparameters."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..errors import ClusterError, InputError, PilescoreError, SmoothnessError, require
from ..inference import Score, as_score
from ..kernels import AnisotropicRBF, FullCovarianceRBF, Kernel
from ..model import Model, is_of_kernel, is_positive, named_paths, require_name, role_of
from ..parallel import progress_bar
from .candidates import common_score, failed_row, row
from .comparison import ranked
from .minimum import Minimum, minimize, prepare
from .options import RunOptions, SearchOptions, check_options
from .space import search_space


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
    """The result of `choose`: the minimum for each candidate, best first.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> x = np.linspace(0, 1, 12)
    >>> model = ps.Model(
    ...     kernel=ps.RBF(),
    ...     data=ps.observe(ps.identity, np.sin(6 * x), at=x, noise=0.01),
    ...     physics=ps.impose(dx**2 + 36 * ps.identity, 0.0, on=line.interior(ps.GaussLegendre(6)), noise=0.1),
    ... )
    >>> choice = ps.choose(model, kernels=[ps.RBF, ps.Matern(2.5), ps.Matern(0.5)])
    >>> list(choice.table.index), choice.best_name
    (['RBF', 'Matern(2.5)', 'Matern(0.5)'], 'RBF')
    >>> choice.best.converged, 0.1 < choice.best.values["kernel.bandwidth"] < 1.0
    (True, True)
    >>> print(choice.failures["Matern(0.5)"])
    block 'physics.0': the operator ∂x² + 36 Id takes derivatives of order 2, but Matern(nu=0.5, bandwidth=1.) supports
    at most order 0 on each side. Kernels that support it: RBF, RationalQuadratic, Matern(nu=2.5), Matern(nu=3.5).
    """

    table: pd.DataFrame
    """The table of `compare`. Candidates that failed come last, with the reason."""
    minima: Mapping[str, Minimum]
    """The minimum of each candidate that could be scored, by name."""
    failures: Mapping[str, str]
    """The reason for each candidate that could not be scored, by name."""

    @property
    def best(self) -> Minimum:
        """The minimum of the best candidate."""
        return self.minima[self.best_name]

    @property
    def best_name(self) -> str:
        """The name of the best candidate."""
        return str(self.table.index[0])

    def __repr__(self) -> str:
        shown = self.table[["rank", "pile", "log_evidence", "nats", "probability", "warnings"]]
        return f"Choice(best={self.best_name!r}\n{shown.to_string(float_format=lambda x: f'{x:.4g}', max_colwidth=60)})"


def choose(
    models: Model | Mapping[str, Model],
    over: Mapping[str, Any] | None = None,
    *,
    kernels: Iterable[Any] | Mapping[str, Any] | None = None,
    equations: Mapping[str, Any] | None = None,
    score: Score | str = "auto",
    starts: int | Sequence[Mapping[str, Any]] = 1,
    search: SearchOptions = SearchOptions(),  # noqa: B008  (frozen)
    run: RunOptions = RunOptions(),  # noqa: B008
) -> Choice:
    """Minimise PILE for each of several candidates, and rank them by their evidence.

    Candidates are models by name; or one model with other kernels; or one model with other equations. The evidence is
    integrated over what was searched, as in `compare`.

    Parameters
    ----------
    models
        Models by name, or the one model whose kernel or physics is replaced.
    over
        Bounds by name, as for `minimize`. Each candidate is searched over the names that it has. Hyperparameters of
        `kernels` that are not named get default bounds: from 1/50 to 10 times the extent of the observations for
        lengths and periods, from 1/100 to 100 times the present value for other positive numbers, ±π/2 for angles, and
        ten times their size for other numbers.
    kernels
        Kernels or kernel classes, such as `[ps.RBF, ps.Matern(3.5)]`, or these by name. A class starts at lengths that
        suit the extent of the observations.
    equations
        Blocks made by `impose`, or lists of them, by name.
    score
        What is scored, as in `minimize`. If the default falls back to the data given the physics for one candidate,
        it does so for all, since only equal scores are comparable.
    starts
        The starts of each search, as for `minimize`.
    search
        How each search proceeds.
    run
        Where it runs. `save` is refused: a file belongs to one minimum.

    Examples
    --------
    Which kernel?

    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 20)
    >>> model = ps.Model(ps.RBF(), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=1e-3)
    >>> kernels = ps.choose(model, {"eta": (0.01, 100.0)}, kernels=[ps.RBF, ps.Matern(0.5), ps.Matern(2.5)])
    >>> list(kernels.table.index)
    ['RBF', 'Matern(2.5)', 'Matern(0.5)']

    Decay or oscillation?

    >>> line = ps.Box(t=(0, 3))
    >>> (dt,) = ps.partials(line)
    >>> t = np.linspace(0, 3, 25)
    >>> noisy = np.exp(-0.7 * t) + 0.02 * np.random.default_rng(0).standard_normal(25)
    >>> on = line.interior(ps.GaussLegendre(10))
    >>> rate = ps.parameter("rate", 1.0)
    >>> model = ps.Model(ps.RBF(1.0), data=ps.observe(ps.identity, noisy, at=t, noise=0.02), rho=1e-4)
    >>> laws = ps.choose(
    ...     model,
    ...     over={"rate": (0.1, 10.0), "kernel.bandwidth": (0.2, 20.0), "eta": (0.01, 100.0)},
    ...     equations={"decay": ps.impose(dt + rate, 0.0, on=on), "oscillation": ps.impose(dt**2 + rate, 0.0, on=on)},
    ... )
    >>> laws.best_name, round(laws.best.values["rate"], 1)
    ('decay', 0.7)
    """
    check_options(run, search)
    require(
        run.save is None, "save", run.save, "nothing: a file belongs to one minimum, so minimize candidates one by one"
    )
    require(over is None or isinstance(over, Mapping), "over", over, "a mapping of names to bounds (low, high)")
    require(kernels is None or equations is None, "kernels, equations", "both", "one of them")
    scoring = as_score(score)
    if kernels is not None:
        candidates, bounds, failed = _with_kernels(_one_model(models), kernels, over or {})
    else:
        candidates, failed = _as_models(models) if equations is None else _with_equations(_one_model(models), equations)
        bounds = _own_bounds(candidates, over or {})
    scoring = common_score(scoring, candidates.values())
    for name, model in candidates.items():  # check everything before any long work
        require(isinstance(name, str), "candidates", name, "names that are strings")
        require(len(bounds[name]) > 0, "over", bounds[name], f"bounds of at least one hyperparameter of {name!r}")
        try:
            prepare(model, bounds[name], scoring, starts, None, search)
        except InputError as error:
            raise InputError(f"candidate {name!r}: {error}") from error
    quiet = dataclasses.replace(run, progress=False)
    minima, failures = _minima(candidates, bounds, scoring, starts, search, quiet, run.progress)
    given = {minimum.score.given for minimum in minima.values()}
    if len(given) > 1 and not any(minimum.status == "interrupted" for minimum in minima.values()):
        again = {name: model for name, model in candidates.items() if name in minima}
        again = {name: model for name, model in again.items() if minima[name].score.given != "physics"}
        scoring = dataclasses.replace(scoring, given="physics")
        more, more_failures = _minima(again, bounds, scoring, starts, search, quiet, run.progress)
        minima = {name: more.get(name, minimum) for name, minimum in minima.items() if name not in more_failures}
        failures |= more_failures
    failed |= failures
    failed |= {name: "interrupted" for name in candidates if name not in minima and name not in failed}
    if not minima:
        raise PilescoreError("no candidate could be scored. " + _listed(failed))
    interrupted = any(minimum.status == "interrupted" for minimum in minima.values())
    hurried = "the search was interrupted" if interrupted or len(minima) + len(failed) < len(candidates) else ""
    rows = {}
    with progress_bar(len(minima), "integrating the evidence", run.progress) as bar:
        for name, minimum in minima.items():
            rows[name] = row(minimum, scoring, hurried)
            bar.update(1)
    rows |= {name: failed_row(text) for name, text in failed.items()}
    return Choice(ranked(minima, rows), minima, failed)


def _minima(
    candidates: Mapping[str, Model],
    bounds: Mapping[str, Mapping[str, Any]],
    score: Score,
    starts: int | Sequence[Mapping[str, Any]],
    search: SearchOptions,
    run: RunOptions,
    progress: bool | None,
) -> tuple[dict[str, Minimum], dict[str, str]]:
    """Return the minimum of each candidate by name, and the reason for each that could not be scored."""
    minima: dict[str, Minimum] = {}
    failures: dict[str, str] = {}
    with progress_bar(len(candidates), "choose", progress) as bar:
        for name, model in candidates.items():
            try:
                minima[name] = minimize(model, bounds[name], score=score, starts=starts, search=search, run=run)
            except ClusterError:  # not the candidate's fault
                raise
            except PilescoreError as failure:
                failures[name] = str(failure)
            except KeyboardInterrupt:
                if not minima:
                    raise
                break
            bar.update(1)
            if name in minima and minima[name].status == "interrupted":
                break
    return minima, failures


def _as_models(models: Any) -> tuple[dict[str, Model], dict[str, str]]:
    """Return models by name after checking them, and no failures."""
    good = isinstance(models, Mapping) and len(models) > 0
    require(good, "models", models, "models by name, or one with kernels=")
    for name, model in models.items():
        require(isinstance(model, Model), f"models[{name!r}]", model, "a ps.Model")
    return dict(models), {}


def _one_model(models: Any) -> Model:
    require(isinstance(models, Model), "models", models, "one ps.Model with kernels= or equations=")
    assert isinstance(models, Model)
    return models


def _with_equations(model: Model, equations: Any) -> tuple[dict[str, Model], dict[str, str]]:
    """Return the model with each equation, and the reason for each equation that its kernel does not suit."""
    valid = isinstance(equations, Mapping) and len(equations) > 0
    require(valid, "equations", equations, "a mapping of names to physics")
    models: dict[str, Model] = {}
    failures: dict[str, str] = {}
    for name, physics in equations.items():
        try:
            models[name] = model.replace(physics=physics)
        except SmoothnessError as failure:
            failures[name] = str(failure)
    if not models:
        raise SmoothnessError("equations: the kernel suits none. " + _listed(failures))
    return models, failures


def _with_kernels(
    model: Model, kernels: Any, over: Mapping[str, Any]
) -> tuple[dict[str, Model], dict[str, dict[str, Any]], dict[str, str]]:
    """Return the model with each kernel, the bounds of each, and the reason for each kernel that does not suit it."""
    single = isinstance(kernels, Kernel | str) or not isinstance(kernels, Iterable)
    require(not single, "kernels", kernels, "a list of kernels or kernel classes, or a mapping of names to them")
    extent = np.ptp(np.concatenate([block.points for block in model.blocks]), axis=0)
    extent = np.where(extent > 0, extent, 1.0)
    pairs = kernels.items() if isinstance(kernels, Mapping) else [("", kernel) for kernel in kernels]
    models: dict[str, Model] = {}
    failures: dict[str, str] = {}
    from_classes: set[str] = set()
    for label, entry in pairs:
        kernel = _instance(entry, extent)
        name = free_name(label or _title(kernel), {*models, *failures})
        if kernel is not entry:
            from_classes.add(name)
        try:
            models[name] = model.replace(kernel=kernel)
        except InputError as failure:  # not smooth enough, or of another dimension
            failures[name] = str(failure)
    require(len(models) + len(failures) > 0, "kernels", kernels, "at least one kernel")
    if not models:
        raise InputError("kernels: none fits the model. " + _listed(failures))
    user_bounds, bounds = _own_bounds(models, over), {}
    for name, candidate in models.items():
        # Bounds of one element, such as kernel.bandwidth[1], replace the default bounds of the whole hyperparameter.
        named = {_whole(each) for each in user_bounds[name]}
        defaults = {n: b for n, b in _kernel_bounds(candidate, extent).items() if n not in named}
        bounds[name] = defaults | user_bounds[name]
        paths = named_paths(candidate)
        own = {n: b for n, b in bounds[name].items() if is_of_kernel(paths[_whole(n)][0])}
        if name in from_classes and own:  # our start may lie outside the user's bounds
            space = search_space(candidate, own)
            models[name] = space.model_at(np.clip(space.values_of(candidate), space.low, space.high))
    return models, bounds, failures


def _whole(name: Any) -> str:
    """Return the hyperparameter of a name in `over`, without an index."""
    require(isinstance(name, str), "over", name, "the names of hyperparameters")
    return str(name).split("[")[0]


def _own_bounds(models: Mapping[str, Model], over: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return for each model the bounds of the hyperparameters that it has."""
    names = {name: named_paths(model) for name, model in models.items()}
    in_any = dict.fromkeys(name for paths in names.values() for name in paths)
    for name in over:
        require_name(_whole(name), in_any)
    return {model: {n: b for n, b in over.items() if _whole(n) in names[model]} for model in models}


def _listed(failures: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {text}" for name, text in failures.items())


def _instance(kernel: Any, extent: np.ndarray) -> Kernel:
    """Return a kernel, or an instance of a kernel class with lengths that suit the extent of the observations."""
    if isinstance(kernel, Kernel):
        return kernel
    expected = "kernels, or kernel classes such as ps.RBF"
    require(isinstance(kernel, type) and issubclass(kernel, Kernel), "kernels", kernel, expected)
    length = 0.3 * float(np.exp(np.log(extent).mean()))
    if kernel is AnisotropicRBF:  # at s = 1 the kernel does not depend on θ, and its gradient there is zero
        return AnisotropicRBF(theta=math.pi / 4, s=0.7, bandwidth=length)
    if kernel is FullCovarianceRBF:
        return FullCovarianceRBF(np.diag((0.3 * extent) ** 2))
    roles = {field.name: field.metadata.get("role") for field in dataclasses.fields(kernel)}
    settable = inspect.signature(kernel).parameters
    # The length of a periodic kernel is relative to its period.
    values = {"period": float(extent.max()), "length": 1.0 if "period" in roles.values() else length}
    arguments = {name: values[str(role)] for name, role in roles.items() if role in values and name in settable}
    try:
        made = kernel(**arguments)
    except TypeError as error:
        raise InputError(f"kernels: {kernel.__name__} has no default: give an instance of it ({error})") from error
    assert isinstance(made, Kernel)
    return made


def _title(kernel: Kernel) -> str:
    """Return a short name for a kernel, such as `Periodic × RBF`."""
    parts = getattr(kernel, "parts", None)
    name = type(kernel).__name__
    if parts is not None:
        return {"Sum": " + ", "Product": " × "}.get(name, ", ").join(_title(part) for part in parts)
    inner = getattr(kernel, "kernel", None)
    if isinstance(inner, Kernel):
        return _title(inner) if name in ("On", "Scaled") else f"{name}({_title(inner)})"
    return f"{name}({kernel.nu:g})" if hasattr(kernel, "nu") else name


def free_name(name: str, taken: set[str]) -> str:
    """Return the name, with a number added if it is taken."""
    number = 2
    free = name
    while free in taken:
        free, number = f"{name} ({number})", number + 1
    return free


def _kernel_bounds(model: Model, extent: np.ndarray) -> dict[str, Any]:
    """Return default bounds for every hyperparameter of the kernel."""
    paths, values = named_paths(model), model.parameters
    return {
        name: default_bounds(role_of(model, path[0]), np.asarray(values[name]), is_positive(model, path[0]), extent)
        for name, path in paths.items()
        if is_of_kernel(path[0])
    }


def default_bounds(role: str, value: np.ndarray, positive: bool, extent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return bounds of a hyperparameter that suit observations of this extent and contain the present value."""
    if role in ("length", "period"):
        for_each_axis = value.shape == extent.shape
        low = 0.02 * (extent if for_each_axis else np.full(value.shape, extent.min()))
        high = 10.0 * (extent if for_each_axis else np.full(value.shape, extent.max()))
    elif positive:
        low, high = value / 100.0, value * 100.0
    elif role == "angle":
        low, high = value - math.pi / 2, value + math.pi / 2
    elif role == "shear":  # a velocity: up to ten crossings of the domain
        speed = 10.0 * float(extent[-1] / extent[0])
        low, high = np.full(value.shape, -speed), np.full(value.shape, speed)
    else:
        size = 10.0 * max(float(np.abs(value).max()), 1.0 / float(extent.max()))
        low, high = np.full(value.shape, -size), np.full(value.shape, size)
    return np.asarray(np.minimum(low, value)), np.asarray(np.maximum(high, value))
