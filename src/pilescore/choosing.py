"""Choosing between models: searches over kernels and over equations."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from .comparison import failed_row, ranked, row
from .errors import ClusterError, InputError, PilescoreError, SmoothnessError, require
from .kernels import AnisotropicRBF, FullCovarianceRBF, Kernel, Periodic
from .methods import with_solver
from .minimum import Minimum, minimize, prepared
from .model import Model, is_positive, named_paths, require_name
from .running import progress_bar
from .space import space


@dataclasses.dataclass(frozen=True, eq=False)
class Search:
    """What minimising over each of several candidates gave, best first.

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
    >>> found = ps.search_kernels(model, [ps.RBF, ps.Matern(2.5), ps.Matern(0.5)])
    >>> list(found.table.index), found.best_name
    (['RBF', 'Matern(2.5)', 'Matern(0.5)'], 'RBF')
    >>> found.best.converged, 0.1 < found.best.values["kernel.bandwidth"] < 1.0
    (True, True)
    >>> print(found.failures["Matern(0.5)"])
    block 'physics.0': the operator ∂x² + 36 Id takes derivatives of order 2, but Matern(nu=0.5, bandwidth=1.) bears at
    most 0 on each side. Kernels that would do: RBF, RationalQuadratic, Matern(nu=2.5), Matern(nu=3.5).
    """

    table: pd.DataFrame
    """As of `compare`; candidates that failed come last, with the reason."""
    minima: Mapping[str, Minimum]
    """By name, of the candidates that could be scored."""
    failures: Mapping[str, str]
    """The reasons by name, of those that could not."""

    @property
    def best(self) -> Minimum:
        """The minimum of the best candidate."""
        return self.minima[self.best_name]

    @property
    def best_name(self) -> str:
        """The name of the best candidate."""
        return str(self.table.index[0])

    def __repr__(self) -> str:
        shown = self.table[["rank", "pile", "nats", "penalised", "warnings"]]
        return f"Search(best={self.best_name!r}\n{shown.to_string(float_format=lambda x: f'{x:.4g}', max_colwidth=60)})"


def search(models: Mapping[str, Model], over: Mapping[str, Any], **options: Any) -> Search:
    """Minimise PILE within each of several models, and rank them.

    Parameters
    ----------
    models
        By name.
    over
        Bounds by name, as for `minimize`; a model is searched over those of the names that it has.
    options
        Those of `minimize`: `starts`, `profiled`, `given_physics`, …

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 20)
    >>> data = ps.observe(ps.identity, np.sin(6 * x), at=x)
    >>> kernels = {"smooth": ps.RBF(0.5), "rough": ps.Matern(0.5, 0.5)}
    >>> models = {name: ps.Model(kernel, data, gamma=1e-3) for name, kernel in kernels.items()}
    >>> ps.search(models, over={"kernel.bandwidth": (0.05, 5.0)}).best_name
    'smooth'
    """
    require(isinstance(models, Mapping) and len(models) > 0, "models", models, "a mapping of names to models")
    for name, model in models.items():
        require(isinstance(model, Model), f"models[{name!r}]", model, "a ps.Model")
    return _search(models, _own_bounds(models, over), options)


def search_kernels(
    model: Model,
    kernels: Iterable[Any] | Mapping[str, Any],
    over: Mapping[str, Any] | None = None,
    **options: Any,
) -> Search:
    """Minimise PILE within each of several kernel families, and rank them.

    Parameters
    ----------
    model
        The model whose kernel is to be replaced.
    kernels
        Kernels or classes of kernels, as `[ps.RBF, ps.Matern(3.5), ps.Periodic().on(0) * ps.RBF().on(1)]`, or these by
        name. A class starts at lengths that suit the extent of the observations.
    over
        Bounds of what is not the kernel's, as `{"gamma": (1e-4, 1), "eta": (1e-2, 1e2)}`, and of hyperparameters of
        kernels where the default bounds do not suit: lengths between 1/50 and 10 times the extent of the observations,
        other positive numbers a hundredfold both ways, angles by π/2, other numbers ten times their size.
    options
        Those of `minimize`.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 20)
    >>> model = ps.Model(ps.RBF(), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=1e-3)
    >>> found = ps.search_kernels(model, [ps.RBF, ps.Matern(0.5), ps.Matern(2.5)], over={"eta": (0.01, 100.0)})
    >>> list(found.table.index)
    ['RBF', 'Matern(2.5)', 'Matern(0.5)']
    """
    require(isinstance(model, Model), "model", model, "a ps.Model")
    single = isinstance(kernels, Kernel | str) or not isinstance(kernels, Iterable)
    require(not single, "kernels", kernels, "a list of kernels or of classes of kernels, or a mapping of names to them")
    require(over is None or isinstance(over, Mapping), "over", over, "a mapping of names to bounds (low, high)")
    points = np.concatenate([block.points for block in model.blocks])
    extent = np.ptp(points, axis=0)
    extent = np.where(extent > 0, extent, 1.0)
    pairs = kernels.items() if isinstance(kernels, Mapping) else [("", each) for each in kernels]
    models: dict[str, Model] = {}
    bounds: dict[str, dict[str, Any]] = {}
    failures: dict[str, str] = {}
    from_classes: set[str] = set()
    for given, each in pairs:
        kernel = _instance(each, extent)
        name = free_name(given or _title(kernel), {*models, *failures})
        if kernel is not each:
            from_classes.add(name)
        try:
            made = Model(kernel, model.data, model.physics, model.gamma, model.rho, model.eta)
            models[name] = with_solver(made, model.solver)
        except InputError as failure:  # not smooth enough, or of another dimension
            failures[name] = str(failure)
    require(len(models) + len(failures) > 0, "kernels", kernels, "at least one kernel")
    if not models:
        raise InputError("kernels: none fits the model. " + _listed(failures))
    given_bounds = _own_bounds(models, over or {})
    for name, each in models.items():
        given = given_bounds[name]
        parts = {_whole(n) for n in given}  # bounds of an element stand for all of its hyperparameter
        bounds[name] = {n: b for n, b in _default_bounds(each, extent).items() if n not in parts} | given
        own = {n: b for n, b in bounds[name].items() if n.startswith("kernel.")}
        if name in from_classes and own:  # the start is ours, the bounds may be the user's
            where = space(each, own)
            models[name] = where.at(np.clip(where.read(each), where.low, where.high))
    return _search(models, bounds, options, failures)


def search_equations(
    model: Model, equations: Mapping[str, Any], over: Mapping[str, Any], *, given_physics: bool = True, **options: Any
) -> Search:
    """Minimise within each of several candidate equations, and rank them by how well each explains the data.

    The data are scored given the physics (see `pile`): scores of different operators are then comparable.

    Parameters
    ----------
    model
        The model whose physics is to be replaced.
    equations
        Blocks made by `impose`, or lists of them, by name.
    over
        Bounds by name, as for `minimize`; an equation is searched over those of the names that it has.
    given_physics
        Whether to score the data given the physics.
    options
        Those of `minimize`.

    Examples
    --------
    Decay or oscillation?

    >>> import numpy as np, pilescore as ps
    >>> line = ps.Box(t=(0, 3))
    >>> (dt,) = ps.partials(line)
    >>> t = np.linspace(0, 3, 25)
    >>> noisy = np.exp(-0.7 * t) + 0.02 * np.random.default_rng(0).standard_normal(25)
    >>> on = line.interior(ps.GaussLegendre(10))
    >>> rate = ps.parameter("rate", 1.0)
    >>> model = ps.Model(ps.RBF(1.0), data=ps.observe(ps.identity, noisy, at=t, noise=0.02), rho=1e-4)
    >>> found = ps.search_equations(
    ...     model,
    ...     {"decay": ps.impose(dt + rate, 0.0, on=on), "oscillation": ps.impose(dt**2 + rate, 0.0, on=on)},
    ...     over={"rate": (0.1, 10.0), "kernel.bandwidth": (0.2, 20.0), "eta": (0.01, 100.0)},
    ... )
    >>> found.best_name, round(found.best.values["rate"], 1)
    ('decay', 0.7)
    """
    require(isinstance(model, Model), "model", model, "a ps.Model")
    require(
        isinstance(equations, Mapping) and len(equations) > 0, "equations", equations, "a mapping of names to physics"
    )
    models: dict[str, Model] = {}
    failures: dict[str, str] = {}
    for name, physics in equations.items():
        try:
            made = Model(model.kernel, model.data, physics, model.gamma, model.rho, model.eta)
            models[name] = with_solver(made, model.solver)
        except SmoothnessError as failure:
            failures[name] = str(failure)
    if not models:
        raise SmoothnessError("equations: the kernel suits none. " + _listed(failures))
    return _search(models, _own_bounds(models, over), {**options, "given_physics": given_physics}, failures)


def _whole(name: Any) -> str:
    """Return the name of the hyperparameter that a name of `over` belongs to."""
    require(isinstance(name, str), "over", name, "the names of hyperparameters")
    return str(name).split("[")[0]


def _own_bounds(models: Mapping[str, Model], over: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the bounds that concern each model."""
    require(isinstance(over, Mapping), "over", over, "a mapping of names to bounds (low, high)")
    names = {name: named_paths(model) for name, model in models.items()}
    known = dict.fromkeys(name for each in names.values() for name in each)
    for name in over:
        require_name(_whole(name), known)
    return {model: {n: b for n, b in over.items() if _whole(n) in names[model]} for model in models}


def _search(
    models: Mapping[str, Model],
    over: Mapping[str, Mapping[str, Any]],
    options: Mapping[str, Any],
    failures: Mapping[str, str] | None = None,
) -> Search:
    alone = "nothing in a search: a file is of one minimum, so minimize the candidates one by one"
    require("save" not in options, "save", options.get("save"), alone)
    known = set(inspect.signature(minimize).parameters) - {"model", "over", "save"}
    for option in options:
        require(option in known, option, options[option], f"options of minimize: {', '.join(sorted(known))}")
    checked = {option: each for option, each in options.items() if option not in ("hessian", "progress", "client")}
    for name, model in models.items():  # before any long work
        require(isinstance(name, str), "candidates", name, "names that are strings")
        require(len(over[name]) > 0, "over", over[name], f"bounds of at least one hyperparameter of {name!r}")
        try:
            prepared(model, over[name], **checked)
        except InputError as error:
            raise InputError(f"candidate {name!r}: {error}") from error
    minima: dict[str, Minimum] = {}
    failed = dict(failures or {})
    with progress_bar(len(models), "search", options.get("progress")) as bar:
        for name, model in models.items():
            try:
                minima[name] = minimize(model, over[name], **{**options, "progress": False})
            except ClusterError:  # says nothing about the candidate
                raise
            except PilescoreError as failure:
                failed[name] = str(failure)
            except KeyboardInterrupt:
                if not minima:
                    raise
                break
            bar.update(1)
            if name in minima and minima[name].ending == "interrupted":
                break
    failed |= {name: "interrupted" for name in models if name not in minima and name not in failed}
    if not minima:
        raise PilescoreError("no candidate could be scored. " + _listed(failed))
    rows = {name: row(each, False, False) for name, each in minima.items()}
    rows |= {name: failed_row(text) for name, text in failed.items()}
    return Search(ranked(minima, rows), minima, failed)


def _listed(failures: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {text}" for name, text in failures.items())


def _instance(each: Any, extent: np.ndarray) -> Kernel:
    if isinstance(each, Kernel):
        return each
    expected = "kernels, or classes of kernels such as ps.RBF"
    require(isinstance(each, type) and issubclass(each, Kernel), "kernels", each, expected)
    length = 0.3 * float(np.exp(np.log(extent).mean()))
    if each is AnisotropicRBF:
        return AnisotropicRBF(theta=math.pi / 4, s=0.7, bandwidth=length)
    if each is FullCovarianceRBF:
        return FullCovarianceRBF(np.diag((0.3 * extent) ** 2))
    if each is Periodic:
        return Periodic(period=float(extent.max()))
    try:
        made = each(bandwidth=length) if "bandwidth" in inspect.signature(each).parameters else each()
    except TypeError as error:
        raise InputError(f"kernels: {each.__name__} has no default: give an instance of it ({error})") from error
    assert isinstance(made, Kernel)
    return made


def _title(kernel: Kernel) -> str:
    parts = getattr(kernel, "parts", None)
    name = type(kernel).__name__
    if parts is not None:
        return {"Sum": " + ", "Product": " × "}.get(name, ", ").join(_title(part) for part in parts)
    inner = getattr(kernel, "kernel", None)
    if isinstance(inner, Kernel):
        return _title(inner) if name in ("On", "Scaled") else f"{name}({_title(inner)})"
    return f"{name}({kernel.nu:g})" if hasattr(kernel, "nu") else name


def free_name(name: str, taken: set[str]) -> str:
    """Return a name that is not taken: itself, or with a number."""
    number = 2
    free = name
    while free in taken:
        free, number = f"{name} ({number})", number + 1
    return free


def _default_bounds(model: Model, extent: np.ndarray) -> dict[str, Any]:
    """Return bounds for every hyperparameter of the kernel that contain its present value."""
    known = named_paths(model)
    return {
        name: default_bounds(name.rsplit(".", 1)[-1], np.asarray(now), is_positive(model, known[name][0]), extent)
        for name, now in model.parameters.items()
        if name.startswith("kernel.")
    }


def default_bounds(field: str, now: np.ndarray, positive: bool, extent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return bounds of a kernel's field that suit observations of this extent and contain the present value."""
    if positive:
        if field in ("bandwidth", "period"):
            each = now.shape == extent.shape
            low = 0.02 * (extent if each else np.full(now.shape, extent.min()))
            high = 10.0 * (extent if each else np.full(now.shape, extent.max()))
        else:
            low, high = now / 100.0, now * 100.0
    elif field == "theta":
        low, high = now - math.pi / 2, now + math.pi / 2
    else:
        size = 10.0 * max(float(np.abs(now).max()), 1.0 / float(extent.max()))
        low, high = np.full(now.shape, -size), np.full(now.shape, size)
    return np.asarray(np.minimum(low, now)), np.asarray(np.maximum(high, now))
