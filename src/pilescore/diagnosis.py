"""What is wrong with a model: all checks, made one after the other."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .adaptation import ill_suited_kernel
from .errors import OutsideDomainWarning, PrecisionWarning, nearest, require
from .evaluation import Trail
from .examination import Examination
from .findings import CHECKS, Diagnosis, Finding, Thresholds, ordered
from .minimum import Minimum
from .model import Model
from .profiles import at_bound, flat_direction, idle_temperature, smoothing, unresolved_quadrature
from .running import progress_bar
from .score import check_given
from .solving import solve_nonlinear
from .space import space
from .symptoms import (
    boundary_against_interior,
    collapsed,
    ill_conditioned,
    miscalibrated,
    outliers,
    overfit,
    physics_against_data,
)

SINGLE: tuple[Callable[[Examination], Finding], ...] = (
    collapsed,
    overfit,
    ill_suited_kernel,
    physics_against_data,
    boundary_against_interior,
    outliers,
    miscalibrated,
    at_bound,
    flat_direction,
    ill_conditioned,
    unresolved_quadrature,
    idle_temperature,
)


def diagnose(
    model: Model | Minimum,
    *,
    over: Mapping[str, Any] | None = None,
    given_physics: bool | None = None,
    thresholds: Thresholds | None = None,
    checks: Iterable[str] | None = None,
    progress: bool | None = None,
) -> Diagnosis:
    """Return what is wrong with a model, the worst first: each finding with its measure, its threshold and advice.

    A check that cannot be made is skipped, with the reason. A model that cannot be factored raises
    `NotPositiveDefiniteError`, as `pile` does.

    Parameters
    ----------
    model
        A model, or the result of `minimize`, whose bounds and curvature are then known. A nonlinear one is solved, and
        taken apart as it is linearised there; scores at other hyperparameters are of the nonlinear model.
    over
        The bounds within which hyperparameters were chosen, as for `minimize`: to see which are at one.
    given_physics
        Judge by the score of the data given the physics, as in `pile`; by default as the minimum was found.
    thresholds
        When each check fires.
    checks
        The names of the checks to make; all unless given. `ill_suited_kernel`, `flat_direction` and
        `unresolved_quadrature` take most of the time.
    progress
        Show a progress bar: by default on a terminal only.

    Examples
    --------
    A model with far too much noise:

    >>> import numpy as np, pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> x = np.linspace(0, 1, 30)
    >>> model = ps.Model(
    ...     kernel=ps.RBF(bandwidth=0.3),
    ...     data=ps.observe(ps.identity, np.sin(9 * x), at=x),
    ...     physics=ps.impose(dx**2 + 81 * ps.identity, 0.0, on=line.interior(ps.GaussLegendre(12))),
    ...     gamma=1e3,
    ...     rho=1e-2,
    ... )
    >>> found = ps.diagnose(model, checks=["collapsed", "outliers"])
    >>> [finding.name for finding in found]
    ['collapsed']
    >>> round(found["collapsed"].value, 1), found["collapsed"].threshold
    (0.0, 0.1)
    """
    best = model if isinstance(model, Minimum) else None
    inner = model.model if isinstance(model, Minimum) else model
    require(isinstance(inner, Model), "model", model, "a ps.Model, or the result of ps.minimize")
    given = bool(best is not None and best.given_physics) if given_physics is None else given_physics
    check_given(inner, given)
    limits = Thresholds() if thresholds is None else thresholds
    require(isinstance(limits, Thresholds), "thresholds", thresholds, "a ps.Thresholds")
    wanted = _wanted(checks)
    where = None if over is None else space(inner, over)
    linear, trail = inner, Trail()
    if inner.is_nonlinear:
        solved = (None if best is None else best.solved) or solve_nonlinear(inner)
        linear, trail = solved.model, Trail(inner, solved.state.values)
    examination = Examination(linear, inner, trail, best, where, given, limits)
    smooth = {"over_smoothed", "under_smoothed"} & wanted
    single = [check for check in SINGLE if check.__name__ in wanted]
    found: list[Finding] = []
    with warnings.catch_warnings(), progress_bar(len(single) + len(smooth), "diagnose", progress) as bar:
        warnings.simplefilter("ignore", PrecisionWarning)  # it is a finding
        warnings.simplefilter("ignore", OutsideDomainWarning)  # said when the model was made
        assert examination.inspection is not None  # a model that cannot be factored ends here, with an explanation
        if smooth:
            found += [each for each in smoothing(examination) if each.name in smooth]
            bar.update(len(smooth))
        for check in single:
            found.append(check(examination))
            bar.update(1)
    return Diagnosis(ordered(found))


def _wanted(checks: Iterable[str] | None) -> set[str]:
    if checks is None:
        return {*CHECKS}
    names = [checks] if isinstance(checks, str) else list(checks)
    require(len(names) > 0, "checks", names, "at least one name")
    for name in names:
        near = nearest(str(name), CHECKS, 0.5)
        hint = f" (did you mean {near!r}?)" if near else ""
        require(name in CHECKS, "checks", name, f"names among {', '.join(CHECKS)}{hint}")
    return {*names}
