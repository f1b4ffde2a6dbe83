"""The diagnosis of a model: all checks, one after the other."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import (
    NotPositiveDefiniteError,
    OutsideDomainWarning,
    PilescoreError,
    PrecisionWarning,
    as_positive,
    nearest,
    require,
)
from ..inference import Score, WarmStart, as_score
from ..model import Model
from ..nonlinear import solve_nonlinear
from ..parallel import progress_bar
from ..search import Minimum, search_space
from ..solvers import with_tolerances
from .checks import CHECKS
from .context import DiagnosisContext
from .dense import NEED_ALL, dense_model
from .findings import LEVEL, Diagnosis, Finding, adjusted, ordered


def diagnose(
    model: Model | Minimum,
    *,
    over: Mapping[str, Any] | None = None,
    score: Score | str | None = None,
    level: float = LEVEL,
    checks: Iterable[str] | None = None,
    progress: bool | None = None,
) -> Diagnosis:
    """Return what is wrong with a model, worst first, with numbers, p-values and advice.

    Many checks compare a statistic with its distribution under the fitted model, from simulated data sets. Their
    p-values are adjusted for the number of checks. A check that cannot be made is skipped, with the reason. A model
    that cannot be factored raises `NotPositiveDefiniteError`, as `pile` does.

    Parameters
    ----------
    model
        A model, or the result of `minimize`, which also provides bounds and curvature. A nonlinear model is solved, and
        the checks look at its linearisation; scores at other hyperparameters are those of the nonlinear model. Checks
        use the dense solver; of more than 3000 observations with another solver, a random part is diagnosed.
    over
        The bounds within which hyperparameters were chosen, as for `minimize`, to see which are at a bound.
    score
        How the model is scored, as in `pile`; by default as the minimum was found, or as `minimize` does by default.
    level
        The probability of an alarm, a failure or a warning, if nothing is wrong: over all checks together.
    checks
        The names of the checks to make; by default all. `ill_suited_kernel`, `flat_direction` and
        `unresolved_quadrature` take most of the time.
    progress
        Show a progress bar; by default only on a terminal.

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
    minimum = model if isinstance(model, Minimum) else None
    source = model.model if isinstance(model, Minimum) else model
    require(isinstance(source, Model), "model", model, "a ps.Model, or the result of ps.minimize")
    requested = as_score("auto" if score is None else score)
    given = minimum.score.given if score is None and minimum is not None else requested.given
    scoring = Score(given).resolved(source)
    source = with_tolerances(source)
    if score is None and len(scoring.given_blocks(source)) == len(source.blocks):
        scoring = Score()  # there is nothing but zeros to score
    scoring.check(source)
    require(0 < as_positive(level, "level") < 1, "level", level, "a probability between 0 and 1")
    names = _checked_names(checks)
    whole = source
    source, about = dense_model(source)
    space = None if over is None else search_space(source, over)
    linear, warm_start = source, WarmStart()
    if source.is_nonlinear:
        solved = (None if minimum is None else minimum.solution) or solve_nonlinear(source)
        linear, warm_start = solved.model, WarmStart(source, solved.expansion.values, True)
    context = DiagnosisContext(linear, source, warm_start, minimum, space, scoring)
    findings: list[Finding] = []
    with warnings.catch_warnings(), progress_bar(len(names), "diagnose", progress) as bar:
        warnings.simplefilter("ignore", PrecisionWarning)  # it is a finding
        warnings.simplefilter("ignore", OutsideDomainWarning)  # given when the model was made
        if not about:
            _require_factor(context)
        for name, check in CHECKS.items():
            if name in names:
                bar.set_description(f"diagnose: {name.replace('_', ' ')}")
                if name in NEED_ALL and source.size < whole.size:
                    findings.append(context.skip(name, f"A part of the observations does not tell {NEED_ALL[name]}."))
                else:
                    findings.append(_timed(check, name, context))
                bar.update(1)
    return Diagnosis(ordered(adjusted(findings, level)), about)


def _require_factor(context: DiagnosisContext) -> None:
    """Raise `NotPositiveDefiniteError`, with an explanation, if the model cannot be factored."""
    try:
        assert context.residuals is not None
    except NotPositiveDefiniteError:
        raise
    except PilescoreError:
        pass  # its solver has no residuals: checks that need them say so


def _timed(check: Callable[[DiagnosisContext], Finding], name: str, context: DiagnosisContext) -> Finding:
    """Return the outcome of a check and its time; a check that fails is skipped, and the others go on."""
    start = time.perf_counter()
    try:
        finding = check(context)
    except PilescoreError as failure:
        finding = context.skip(name, f"This check failed: {failure}")
    return dataclasses.replace(finding, seconds=time.perf_counter() - start)


def _checked_names(checks: Iterable[str] | None) -> set[str]:
    """Return the names of the checks to make; raise an `InputError` for other names."""
    if checks is None:
        return {*CHECKS}
    names = [checks] if isinstance(checks, str) else list(checks)
    require(len(names) > 0, "checks", names, "at least one name")
    for name in names:
        near = nearest(str(name), CHECKS, 0.5)
        hint = f" (did you mean {near!r}?)" if near else ""
        require(name in CHECKS, "checks", name, f"names among {', '.join(CHECKS)}{hint}")
    return {*names}
