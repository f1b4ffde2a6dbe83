"""Choosing between models: ranked tables, and searches over kernels and over equations."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from .errors import InputError, PilescoreError, require
from .fredholm import DataFreePile
from .kernels import AnisotropicRBF, FullCovarianceRBF, Kernel, Periodic
from .minimum import Minimum, minimize
from .model import Model, is_positive, named_paths, require_name
from .running import progress_bar
from .score import Pile, check_given, value
from .system import IMPRECISE, solve

Candidate: TypeAlias = Model | Minimum | Pile | DataFreePile

FIT = (0.5, 2.0)
"""A fit outside is worth a warning: residuals much smaller, or larger, than the noise says."""


def compare(
    candidates: Mapping[str, Candidate], *, profiled: bool = False, given_physics: bool = False
) -> pd.DataFrame:
    """Return candidates ranked by their scores, best first, with warnings beside each number.

    Parameters
    ----------
    candidates
        By name: models, which are scored here, or results of `pile` or `minimize`; or results of `data_free_pile`
        only.
    profiled, given_physics
        As for `pile`, for the models among them.

    Returns
    -------
    pandas.DataFrame
        Indexed by name: `rank`; `pile` and its `difference` from the best, per observation; `nats`, the log evidence
        that the best has more (3 is clear, 5 is strong); `fit`, `complexity`, `size`; `warnings`. Of data-free
        scores: `value` in place of `pile`, `error` and `status`.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 20)
    >>> data = ps.observe(ps.identity, np.sin(6 * x), at=x)
    >>> smooth, rough = (ps.Model(kernel=k, data=data, gamma=1e-3) for k in (ps.RBF(0.3), ps.Matern(0.5, 0.3)))
    >>> ps.compare({"rough": rough, "smooth": smooth})[["rank", "nats"]].round(1)
            rank  nats
    smooth     1   0.0
    rough      2  40.4
    """
    require(isinstance(candidates, Mapping) and len(candidates) > 0, "candidates", candidates, "a mapping by name")
    free = [isinstance(each, DataFreePile) for each in candidates.values()]
    require(all(free) or not any(free), "candidates", list(candidates), "data-free scores only, or none of them")
    rows = {}
    for name, each in candidates.items():
        good = isinstance(each, Model | Minimum | Pile | DataFreePile)
        require(good, f"candidates[{name!r}]", each, "a model, or a result of pile, minimize or data_free_pile")
        rows[name] = _data_free(each) if isinstance(each, DataFreePile) else _row(each, profiled, given_physics)
    for name, text in _incomparable(candidates, given_physics).items():
        rows[name]["warnings"] = "; ".join(filter(None, [rows[name]["warnings"], text]))
    key = "value" if free[0] else "pile"
    table = pd.DataFrame.from_dict(rows, orient="index").sort_values("energy", kind="stable", na_position="last")
    table.insert(0, "rank", range(1, len(table) + 1))
    best = table.iloc[0]
    table.insert(2, "difference", table[key] - best[key])
    table.insert(3, "nats", table["energy"] - best["energy"])
    return table.drop(columns="energy")


@dataclasses.dataclass(frozen=True, eq=False)
class Search:
    """What minimising over each of several candidates gave, best first."""

    table: pd.DataFrame
    """As of `compare`; candidates that failed come last, with the reason."""
    minima: Mapping[str, Minimum]
    failures: Mapping[str, str]

    @property
    def best(self) -> Minimum:
        """The minimum of the best candidate."""
        return self.minima[self.best_name]

    @property
    def best_name(self) -> str:
        """The name of the best candidate."""
        return str(self.table.index[0])

    def __repr__(self) -> str:
        shown = self.table[["rank", "pile", "nats", "warnings"]]
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
    names: dict[str, set[str]] = {}
    for name, model in models.items():
        require(isinstance(model, Model), f"models[{name!r}]", model, "a ps.Model")
        names[name] = set(named_paths(model))
    for name in over:
        require_name(name.split("[")[0], set().union(*names.values()))
    chosen = {name: {n: b for n, b in over.items() if n.split("[")[0] in names[name]} for name in models}
    return _search(models, chosen, options)


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
    points = np.concatenate([block.points for block in model.blocks])
    extent = np.ptp(points, axis=0)
    extent = np.where(extent > 0, extent, 1.0)
    pairs = kernels.items() if isinstance(kernels, Mapping) else [("", each) for each in kernels]
    models: dict[str, Model] = {}
    bounds: dict[str, dict[str, Any]] = {}
    failures: dict[str, str] = {}
    rest = dict(over or {})
    used: set[str] = set()
    for given, each in pairs:
        kernel = _instance(each, extent)
        name = _free(given or _title(kernel), {*models, *failures})
        try:
            models[name] = Model(kernel, model.data, model.physics, model.gamma, model.rho, model.eta)
        except InputError as failure:  # not smooth enough, or of another dimension
            failures[name] = str(failure)
            continue
        mine = {n: b for n, b in rest.items() if n.split("[")[0] in named_paths(models[name])}
        used |= set(mine)
        bounds[name] = _default_bounds(models[name], extent) | mine
    require(len(models) + len(failures) > 0, "kernels", kernels, "at least one kernel")
    if not models:
        raise InputError("kernels: none fits the model. " + "; ".join(f"{n}: {t}" for n, t in failures.items()))
    for name in rest.keys() - used:
        require_name(name.split("[")[0], sorted(set().union(*(named_paths(each) for each in models.values()))))
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
    models = {
        name: Model(model.kernel, model.data, physics, model.gamma, model.rho, model.eta)
        for name, physics in equations.items()
    }
    return search(models, over, given_physics=given_physics, **options)


def _search(
    models: Mapping[str, Model],
    over: Mapping[str, Mapping[str, Any]],
    options: Mapping[str, Any],
    failures: Mapping[str, str] | None = None,
) -> Search:
    known = set(inspect.signature(minimize).parameters) - {"model", "over"}
    for option in options:
        require(option in known, option, options[option], f"options of minimize: {', '.join(sorted(known))}")
    minima: dict[str, Minimum] = {}
    failed = dict(failures or {})
    shown = options.get("progress")
    with progress_bar(len(models), "search", shown) as bar:
        for name, model in models.items():
            require(len(over[name]) > 0, "over", over[name], f"bounds of at least one hyperparameter of {name!r}")
            try:
                minima[name] = minimize(model, over[name], **{**options, "progress": False})
            except InputError:
                raise
            except PilescoreError as failure:
                failed[name] = str(failure)
            bar.update(1)
            if name in minima and minima[name].ending == "interrupted":
                failed |= {rest: "interrupted" for rest in models if rest not in minima and rest not in failed}
                break
    if not minima:
        raise PilescoreError("no candidate could be scored. " + "; ".join(f"{n}: {t}" for n, t in failed.items()))
    table = compare(minima, given_physics=bool(options.get("given_physics")))
    for name, text in failed.items():
        table.loc[name] = dict.fromkeys(table.columns, math.nan) | {"warnings": f"failed: {text}"}
    table["rank"] = range(1, len(table) + 1)
    return Search(table, minima, failed)


def _row(each: Model | Minimum | Pile, profiled: bool, given_physics: bool) -> dict[str, Any]:
    notes: list[str] = []
    if isinstance(each, Model):
        check_given(each, given_physics)
        try:
            score = value(solve(each), profiled, given_physics, warn=False)
        except PilescoreError as failure:
            empty = dict.fromkeys(("pile", "fit", "complexity", "size", "energy"), math.nan)
            return empty | {"warnings": f"failed: {failure}"}
    elif isinstance(each, Minimum):
        score = each.pile
        if not each.converged:
            notes.append(f"{each.ending}: {each.reason}")
        notes += [f"{name} is at its {side} bound" for name, side in each.at_bounds.items()]
        if each.curvature is not None and each.curvature.flat:
            notes.append(f"{len(each.curvature.flat)} flat direction(s)")
    else:
        score = each
    if score.rounding > IMPRECISE:
        notes.append(f"rounding leaves it uncertain by {score.rounding:.1e}")
    if not FIT[0] <= score.fit <= FIT[1]:
        notes.append(f"fit {score.fit:.2g}: residuals {'smaller' if score.fit < 1 else 'larger'} than the noise says")
    return {
        "pile": score.value,
        "fit": score.fit,
        "complexity": score.complexity,
        "size": score.size,
        "warnings": "; ".join(notes),
        "energy": score.free_energy,
    }


def _data_free(each: DataFreePile) -> dict[str, Any]:
    found = each.determinant
    return {
        "value": each.value,
        "error": each.error,
        "status": each.status,
        "size": each.size,
        "warnings": found.reason,
        "energy": 0.5 * each.value,
    }


def _incomparable(candidates: Mapping[str, Candidate], given_physics: bool) -> dict[str, str]:
    """Return what keeps candidates from being compared with the first."""
    found: dict[str, str] = {}
    (first_name, first), *others = candidates.items()
    for name, each in others:
        if isinstance(each, DataFreePile) and isinstance(first, DataFreePile):
            if (each.rho, each.eta) != (first.rho, first.eta):
                found[name] = f"other temperatures than {first_name!r}"
            continue
        a, b = (c.model if isinstance(c, Minimum) else c for c in (first, each))
        if isinstance(a, Model) and isinstance(b, Model):
            if not np.array_equal(a.values, b.values):
                found[name] = f"other observations than {first_name!r}: not comparable"
            elif not given_physics and [str(x.operator) for x in a.blocks] != [str(x.operator) for x in b.blocks]:
                found[name] = f"other operators than {first_name!r}: compare with given_physics=True"
        elif isinstance(a, Pile) and isinstance(b, Pile) and a.size != b.size:
            found[name] = f"other observations than {first_name!r}: not comparable"
    return found


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


def _free(name: str, taken: set[str]) -> str:
    number = 2
    free = name
    while free in taken:
        free, number = f"{name} ({number})", number + 1
    return free


def _default_bounds(model: Model, extent: np.ndarray) -> dict[str, Any]:
    """Return bounds for every hyperparameter of the kernel that contain its present value."""
    bounds: dict[str, Any] = {}
    known = named_paths(model)
    for name, given in model.parameters.items():
        if not name.startswith("kernel."):
            continue
        field, now = name.rsplit(".", 1)[-1], np.asarray(given)
        if is_positive(model, known[name][0]):
            if field in ("bandwidth", "period"):
                low, high = np.full(now.shape, 0.02 * extent.min()), np.full(now.shape, 10.0 * extent.max())
            else:
                low, high = now / 100.0, now * 100.0
        elif field == "theta":
            low, high = now - math.pi / 2, now + math.pi / 2
        else:
            size = 10.0 * max(float(np.abs(now).max()), 1.0 / float(extent.max()))
            low, high = np.full(now.shape, -size), np.full(now.shape, size)
        bounds[name] = (np.minimum(low, now), np.maximum(high, now))
    return bounds
