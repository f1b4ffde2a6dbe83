"""Checks of the physics: whether another equation, or another condition, would make the data far more probable."""

from __future__ import annotations

from ..change_search import DOUBTFUL, Tried
from ..context import DiagnosisContext
from ..findings import Finding

LARGEST_TESTED = 3000
"""The largest number of observations for which changes are tested: they take products of `N²` times the data."""

OTHER_NATS = 2.0
"""Another explanation that gains less than this, in nats, beyond the first one is not better."""


OTHER_FACTOR = 2.0
"""Another kernel is to blame if it gains more nats than a change of the physics by this factor."""


def wrong_equation(context: DiagnosisContext) -> Finding:
    """Check whether another coefficient, one more term or another source makes the data far more probable."""
    return _changed(
        context,
        "wrong_equation",
        "equation",
        "the gain by the best change of an equation, in nats, is",
        "The equation is wrong, or a term is missing.",
        "check coefficients, units and signs of the equation; infer a doubtful coefficient as a ps.parameter; compare "
        "equations (ps.choose).",
    )


def boundary_against_interior(context: DiagnosisContext) -> Finding:
    """Check whether other values of a condition make the data far more probable."""
    return _changed(
        context,
        "boundary_against_interior",
        "condition",
        "the gain by the best change of imposed values on a boundary, in nats, is",
        "A condition contradicts the equation and the data.",
        "check the values, sides and normals of the conditions; give them their own rho if they are known only "
        "roughly; or see whether the rule on the boundary is fine enough.",
    )


def _changed(context: DiagnosisContext, name: str, kind: str, measure: str, meaning: str, advice: str) -> Finding:
    if not (context.model.data and context.model.physics):
        return context.skip(name, "This needs both data and physics.")
    if context.model.size > LARGEST_TESTED:
        return context.skip(name, f"There are {context.model.size} observations, more than {LARGEST_TESTED}.")
    search = context.changes
    if not search.tests[kind]:
        return context.skip(name, f"The model has no {kind} that could be another one.")
    tried, promised = search.found[kind], search.promised(kind)
    if tried is None:
        most = max(promised.values())
        return context.finding(name, most, "failure", measure, "", advice, fires=False, p_value=1.0, promised=promised)
    elsewhere = "" if tried.p_value > DOUBTFUL else _better_explanation(context, kind, tried)
    return context.finding(
        name,
        tried.gain,
        "failure",
        measure,
        elsewhere or f"{meaning} Judging by the data, {tried.described}.",
        advice,
        fires=not elsewhere,
        p_value=tried.p_value,
        change=tried.change.kind,
        step=tried.step,
        error=tried.error,
        promised=promised,
    )


def _better_explanation(context: DiagnosisContext, kind: str, tried: Tried) -> str:
    """Return what explains the data better than a change of the physics: another change, or another kernel."""
    search = context.changes
    others = [each for other, each in search.found.items() if other != kind and each is not None]
    if any(each.gain > tried.gain + OTHER_NATS for each in others):
        other = "equation" if kind == "condition" else "condition"
        return f"But a change of the {other} explains the data better."
    text, gain = search.other_kernel
    # A rougher kernel evades a wrong equation between its nodes, so it has to be better by far.
    if gain > OTHER_FACTOR * tried.gain + OTHER_NATS:
        return f"But {text} explains the data better: the kernel is wrong, rather than the {kind}."
    return ""
