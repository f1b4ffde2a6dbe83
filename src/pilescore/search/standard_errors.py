"""The covariance of searched values at a minimum.

Kernel parameters and temperatures have the curvature of the evidence. Coefficients of equations are fitted, as in
nonlinear least squares, and have its standard errors: by the first derivatives of the model. The second derivatives,
multiplied by residuals that average to zero, are left out; with few data they are mostly noise. Priors on coefficients
count as observations of them.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from jaxtyping import Float

from ..errors import PilescoreError
from ..inference import Score, WarmStart, systems_of
from ..model import Model, find, named_paths
from ..nonlinear import jets_of, observed_at
from ..solvers import solve
from .curvature import Curvature, least_curvature
from .space import SearchSpace

STEP = 1e-4
"""The step of difference quotients, in coordinates. Operators are smooth in their coefficients, and nothing is factored
on the way, so rounding hardly matters."""


@dataclasses.dataclass(frozen=True, eq=False)
class Information:
    """What the observations say about the coefficients of equations."""

    names: tuple[str, ...]
    """The coefficients."""
    rows: tuple[int, ...]
    """Their places among the coordinates of the search."""
    matrix: Float[np.ndarray, "c c"]
    """The information matrix in these coordinates; NaN if a model near the minimum cannot be evaluated."""
    space: SearchSpace
    fitted: bool = True
    """Whether coefficients are merely fitted. Otherwise the matrix is the curvature of the evidence."""

    @property
    def roots(self) -> Float[np.ndarray, "c c"]:
        """`R` with `RRᵀ` the inverse of the information; deviations reach at most from one bound to the other."""
        if not np.isfinite(self.matrix).all():
            return np.full_like(self.matrix, math.nan)
        return _roots(self.space, self.rows, self.matrix)


def coefficient_information(
    space: SearchSpace,
    values: Float[np.ndarray, " p"],
    model: Model,
    curvature: Curvature,
    score: Score,
    warm_start: WarmStart | None = None,
) -> Information | None:
    """Return the information about coefficients at a minimum; None if no coefficient was searched.

    If observations are scored given equations, it is `DᵀC⁻¹D`, with `D` the change of all observations of the posterior
    mean with the coefficients: the Gauss–Newton matrix of the unknown function and the coefficients together, reduced
    to the coefficients; priors on coefficients add their precision. What the given equations contribute is left out: by
    themselves they say nothing about coefficients, only that the prior would rather have other solutions. If equations
    are scored too, or kernel parameters are tied to coefficients, these are not merely fitted, and the curvature of the
    evidence is returned.

    Parameters
    ----------
    space
        The coordinates of the search.
    values
        The values at the minimum.
    model
        The model at the minimum.
    curvature
        The curvature there. Values at a bound are not in it; they count as given.
    score
        What was scored, and given what.
    warm_start
        Where nonlinear models are solved from.
    """
    roles = model.roles
    names = tuple(name for name in curvature.names if roles[space.targets[name][0]] == "coefficient")
    if not names:
        return None
    rows = tuple(space.names.index(name) for name in names)
    places = [curvature.names.index(name) for name in names]
    hessian = curvature.hessian[np.ix_(places, places)]
    unknown = np.full_like(hessian, math.nan)
    given = score.given_blocks(model)
    if not given or space.ties or not model.solver.forms_covariance:
        is_minimum = np.linalg.eigvalsh(hessian)[0] > 0.0
        return Information(names, rows, hessian if is_minimum else unknown, space, fitted=False)
    try:
        mean = systems_of(model, Score(), warm_start, explain=False).whole
        jets = [jets_of(model, block, mean.rows, mean.factored.precise_alpha) for block in model.blocks]
        system = solve(mean.model, given=given, explain=False)
        at_minimum, centre = space.at(model), space.encode(values)
        changes = np.empty((len(system.values), len(rows)))
        for column, row in enumerate(rows):
            step = np.zeros(len(centre))
            step[row] = STEP
            ends = [at_minimum.model_at(space.decode(centre + sign * step)) for sign in (1.0, -1.0)]
            after, before = (np.concatenate(list(map(observed_at, each.blocks, jets))) for each in ends)
            changes[:, column] = (after - before)[system.rows.order] / (2.0 * step[row])
        matrix = system.factored.reduced_given(changes) + prior_information(space, values, rows, model)
        return Information(names, rows, matrix, space)
    except PilescoreError:  # a model near the minimum cannot be evaluated
        return Information(names, rows, unknown, space)


def prior_information(
    space: SearchSpace, values: Float[np.ndarray, " p"], rows: tuple[int, ...], model: Model
) -> Float[np.ndarray, "c c"]:
    """Return `JᵀPJ`: what the priors of a model say about some coordinates of a search, the others being given.

    `P` is the precision of `t`, a value or its logarithm, and `J` the derivative of `t` by the coordinates.
    """
    paths = named_paths(model) if model.priors else {}
    targets = [space.targets[space.names[row]] for row in rows]
    matrix = np.zeros((len(rows), len(rows)))
    for name, prior in model.priors.items():
        base, index = find(model, paths, name)
        elements = [index] if index else list(np.ndindex(np.shape(model.parameters[base])))
        pairs = [(i, elements.index(at)) for i, (other, at) in enumerate(targets) if other == base and at in elements]
        if pairs:
            own, places = (list(each) for each in zip(*pairs, strict=True))
            at = np.array(rows)[own]
            slope = space.slope(values)[at] / (values[at] if prior.logarithmic else 1.0)
            precision = prior.precision(len(elements))[np.ix_(places, places)]
            matrix[np.ix_(own, own)] += precision * np.outer(slope, slope)
    return matrix


def searched_covariance(
    space: SearchSpace,
    values: Float[np.ndarray, " p"],
    curvature: Curvature,
    information: Information | None,
    inflation: dict[str, float],
) -> Float[np.ndarray, "p p"]:
    """Return the covariance of searched values at a minimum; NaN for those at a bound.

    With the Hessian `H` in coefficients `c` and other values `h`, `H⁻¹` has the block `H_cc⁻¹ + T V Tᵀ`, where
    `T = −H_cc⁻¹H_ch` is how the coefficients follow the others, and `V` is the covariance of the others. If
    coefficients are merely fitted, the information by first derivatives replaces `H_cc` in the first term.

    Parameters
    ----------
    space
        The coordinates of the search.
    values
        The values at the minimum.
    curvature
        The curvature there.
    information
        The information about coefficients, if any were searched.
    inflation
        The factors of the standard errors of coefficients for the degrees of freedom that they take.
    """
    inverse = curvature.covariance.copy()
    if information is not None and information.fitted:
        fitted = np.isin(curvature.names, information.names)
        hessian = curvature.hessian[np.ix_(fitted, fitted)]
        if np.linalg.eigvalsh(hessian)[0] <= 0.0 and np.isfinite(information.matrix).all():
            hessian = information.matrix  # under a very wide prior, second derivatives are rounding errors
        others = inverse[np.ix_(~fitted, ~fitted)]
        known = _within_reach(others)
        roots = _roots(space, information.rows, hessian)
        follow = -roots @ roots.T @ curvature.hessian[np.ix_(fitted, ~fitted)]
        inverse[np.ix_(fitted, fitted)] = information.roots @ information.roots.T + follow @ known @ follow.T
        inverse[np.ix_(fitted, ~fitted)] = follow @ known
        inverse[np.ix_(~fitted, fitted)] = (follow @ known).T
    rows = [space.names.index(name) for name in curvature.names]
    scale = space.slope(values)[rows] * [inflation.get(name, 1.0) for name in curvature.names]
    covariance = np.full((len(values), len(values)), math.nan)
    covariance[np.ix_(rows, rows)] = inverse * np.outer(scale, scale)
    return covariance


def _within_reach(covariance: Float[np.ndarray, "h h"]) -> Float[np.ndarray, "h h"]:
    """Return a covariance in coordinates with deviations of at most one unit: a factor of e, or a range.

    Where the data determine nothing else, the evidence is flat in the other hyperparameters, with slopes and curvatures
    of rounding errors. How coefficients follow them is known nearby only; at a saddle it is not known at all.
    """
    if not np.isfinite(covariance).all():
        return np.zeros_like(covariance)
    variances, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.clip(variances, 0.0, 1.0) @ vectors.T)


def _roots(space: SearchSpace, rows: tuple[int, ...], matrix: Float[np.ndarray, "c c"]) -> Float[np.ndarray, "c c"]:
    """Return `R` with `RRᵀ` the inverse of a curvature; deviations reach at most from one bound to the other."""
    eigenvalues, vectors = np.linalg.eigh(matrix)
    return np.asarray(vectors / np.sqrt(np.maximum(eigenvalues, least_curvature(space, rows, vectors))))
