"""The posterior: mean, deviation, covariance and samples of the unknown and of any operator of it."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from .covariances import Part
from .errors import PrecisionWarning, as_count, as_points, require
from .layouts import TILE, Layout, Tile, alone, query
from .linalg import EPS, require_memory
from .methods import with_solver
from .model import Model, check_bears
from .observations import check_names
from .operators import Operator, identity
from .solvers import Covariance, Solver
from .system import System, solve

BATCH = 1e9
"""Bytes of covariances between observations and query points that are held at a time."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Posterior:
    """The Gaussian process of a model, conditioned on its observations; made by `posterior`.

    `E[A f(x)] = η (A⊗L)k(x,P) α` and
    `Cov[A f(x), B f(x')] = η (A⊗B)k(x,x') − η² (A⊗L)k(x,P) C⁻¹ (L⊗B)k(P,x')`.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> (dx,) = ps.partials(ps.Box(x=(0, 1)))
    >>> x = np.linspace(0, 1, 9)
    >>> model = ps.Model(ps.RBF(0.5), data=ps.observe(ps.identity, np.sin(3 * x), at=x), gamma=2e-4)
    >>> post = ps.posterior(model)
    >>> post.mean([0.5, 1.5]).round(2), post.std([0.5, 1.5]).round(2)  # inside, and far outside
    (array([ 1.  , -0.81]), array([0.01, 0.4 ]))
    >>> post.mean([0.5], operator=dx).round(2), post.std([0.5], operator=dx).round(2)  # 3 cos 1.5 = 0.21
    (array([0.21]), array([0.05]))
    >>> post.covariance([0.5, 1.5]).shape, post.samples([0.5, 1.5], count=100, seed=0).shape
    ((2, 2), (100, 2))
    """

    system: System
    """The covariance of the observations, factored and solved."""

    @property
    def model(self) -> Model:
        """The model that was conditioned."""
        return self.system.model

    def mean(self, points: Any, operator: Operator = identity) -> Float[np.ndarray, " n"]:
        """Return the posterior mean of `A f` at points of shape (n, d), in batches.

        Examples
        --------
        >>> import pilescore as ps
        >>> (dx,) = ps.partials(ps.Box(x=(0, 1)))
        >>> model = ps.Model(ps.RBF(2.0), data=ps.observe(dx, values=[1.0], at=[0.0]), gamma=1e-8)
        >>> ps.posterior(model).mean([-1.0, 1.0]).round(3), ps.posterior(model).mean([0.0], operator=dx).round(3)
        (array([-0.882,  0.882]), array([1.]))
        """
        rows = self._query(points, operator)
        out = np.empty(rows.size)
        for tile in rows.tiles:
            out[tile.rows] = self._covariance.applied(Part(alone(tile)), self.system.factored.precise_alpha)
        return out

    def std(self, points: Any, operator: Operator = identity) -> Float[np.ndarray, " n"]:
        """Return the posterior standard deviation of `A f`, in batches.

        Examples
        --------
        >>> import pilescore as ps
        >>> model = ps.Model(ps.RBF(1.0), data=ps.observe(ps.identity, values=[1.0], at=[0.0]), gamma=0.02)
        >>> ps.posterior(model).std([0.0, 1.0, 9.0]).round(2)  # near the datum, and as by the prior
        array([0.1, 0.8, 1. ])
        """
        return np.sqrt(self.variance(points, operator))

    def variance(self, points: Any, operator: Operator = identity) -> Float[np.ndarray, " n"]:
        """Return the posterior variance of `A f`, in batches.

        Where rounding makes it negative it is given as zero, and a `PrecisionWarning` says how negative it was.
        """
        rows = self._query(points, operator)
        out, prior = np.empty(rows.size), np.empty(rows.size)
        for tile, block in self._cross(rows):
            prior[tile.rows] = self._covariance.variances(Part(alone(tile)))
            out[tile.rows] = prior[tile.rows] - self.system.factored.reduced_diagonal(block.T)
        negative = out < 0
        if negative.any():
            worst = float(np.max(-out[negative] / prior[negative]))
            warnings.warn(
                f"{int(negative.sum())} of {len(out)} posterior variances are below rounding (down to "
                f"{-worst:.1e} of the prior variance) and are given as zero. Raise gamma or rho to see them.",
                PrecisionWarning,
                stacklevel=3,
            )
            out[negative] = 0.0
        return out

    def covariance(
        self,
        points: Any,
        operator: Operator = identity,
        other_points: Any = None,
        other_operator: Operator | None = None,
    ) -> Float[np.ndarray, "n m"]:
        """Return the posterior covariance of `A f` at points with `B f` at other points (the same unless given).

        Examples
        --------
        >>> import pilescore as ps
        >>> (dx,) = ps.partials(ps.Box(x=(0, 1)))
        >>> model = ps.Model(ps.RBF(1.0), data=ps.observe(ps.identity, values=[1.0], at=[0.0]), gamma=0.02)
        >>> post = ps.posterior(model)
        >>> post.covariance([0.5, 1.0]).round(2)
        array([[0.23, 0.35],
               [0.35, 0.64]])
        >>> post.covariance([0.5, 1.0], other_points=[2.0], other_operator=dx).round(2)
        array([[-0.25],
               [-0.44]])
        """
        first = self._query(points, operator)
        same = other_points is None and other_operator is None
        if same:
            return self._joint(first)
        second = self._query(
            points if other_points is None else other_points,
            operator if other_operator is None else other_operator,
        )
        require_memory(0, 8.0 * (first.size * second.size + self.model.size * (first.size + second.size)))
        left, right = (self._columns(rows) for rows in (first, second))
        return self._covariance.block(Part(first), Part(second)) - left.T @ self.system.factored.solve(right)[0]

    def samples(
        self, points: Any, count: int, seed: int, operator: Operator | Sequence[Operator] = identity
    ) -> Float[np.ndarray, "count ..."]:
        """Return joint samples of `A f` at n points, of shape (count, n).

        Given several operators, samples of all of them are drawn jointly, of shape (count, operators, n). The
        posterior covariance may be singular; directions whose variance is below rounding do not vary.

        Examples
        --------
        >>> import pilescore as ps
        >>> (dx,) = ps.partials(ps.Box(x=(0, 1)))
        >>> model = ps.Model(ps.RBF(1.0), data=ps.observe(ps.identity, values=[1.0], at=[0.0]), gamma=0.02)
        >>> drawn = ps.posterior(model).samples([0.0, 2.0], count=1000, seed=0)
        >>> drawn.shape, drawn.mean(axis=0).round(1), drawn.std(axis=0).round(1)
        ((1000, 2), array([1. , 0.1]), array([0.1, 1. ]))
        >>> ps.posterior(model).samples([0.0, 2.0], count=5, seed=0, operator=[ps.identity, dx]).shape
        (5, 2, 2)
        """
        as_count(count, "count")
        as_count(seed, "seed", least=0)
        several = not isinstance(operator, Operator)
        operators = list(operator) if not isinstance(operator, Operator) else [operator]
        layouts = [self._query(points, each) for each in operators]
        rows = _joined(layouts)
        mean = np.concatenate([self.mean(points, each) for each in operators])
        values, vectors = np.linalg.eigh(self._joint(rows))
        prior = float(self._covariance.variances(Part(rows)).max())
        floor = 1e3 * EPS * rows.size * prior
        if values[0] < -floor:
            warnings.warn(
                f"the posterior covariance has the eigenvalue {values[0]:.1e}, below rounding ({-floor:.1e}): "
                "samples are imprecise. Raise gamma or rho.",
                PrecisionWarning,
                stacklevel=2,
            )
        root = vectors * np.sqrt(np.where(values > 0, values, 0.0))
        drawn = mean + np.random.default_rng(seed).standard_normal((count, rows.size)) @ root.T
        return drawn.reshape(count, len(operators), -1) if several else drawn

    def __repr__(self) -> str:
        return f"Posterior(of {self.model.size} observations, {self.model.kernel!r})"

    def _query(self, points: Any, operator: Operator) -> Layout:
        where = as_points(points, "points")
        dimension = self.model.blocks[0].dimension
        require(where.shape[1] == dimension, "points", where, f"points with {dimension} coordinates")
        self.model.kernel.check_points(where)
        require(isinstance(operator, Operator), "operator", operator, "an operator such as ps.identity")
        check_names(operator, self.model.names, "operator")
        indices = operator.indices(dimension)
        check_bears(self.model.kernel, indices, f"the operator {operator}")
        return query(where, indices, operator.coefficients, int(max(16, min(TILE, BATCH / (8.0 * self.model.size)))))

    @property
    def _covariance(self) -> Covariance:
        """The covariance that was solved: of the kernel, or of what a solver put in its place."""
        return self.system.factored.covariance

    def _cross(self, rows: Layout) -> Iterator[tuple[Tile, np.ndarray]]:
        whole = Part(self.system.rows)
        for tile in rows.tiles:
            yield tile, self._covariance.block(Part(alone(tile)), whole)

    def _columns(self, rows: Layout) -> Float[np.ndarray, "N n"]:
        """Return `η (L⊗A)k(P, x)`."""
        out = np.empty((self.model.size, rows.size), order="F")
        for tile, block in self._cross(rows):
            out[:, tile.rows] = block.T
        return out

    def _joint(self, rows: Layout) -> Float[np.ndarray, "n n"]:
        arrays = 4 * rows.size**2 + rows.size * self.model.size  # its triangle, prior, product and difference
        require_memory(rows.size, 8.0 * arrays, "the posterior covariance")
        lower = np.tril(self._covariance.block(Part(rows), Part(rows)))
        prior = lower + np.tril(lower, -1).T
        return prior - self.system.factored.reduced(self._columns(rows))


def posterior(model: Model, *, solver: Solver | str | None = None) -> Posterior:
    """Condition a model on its observations.

    Parameters
    ----------
    model
        The model.
    solver
        As for `pile`. Means and variances by a solver with bounds are solved to its tolerance; those of a feature basis
        are of the feature kernel.

    Examples
    --------
    >>> import pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> model = ps.Model(
    ...     kernel=ps.RBF(bandwidth=0.5),
    ...     data=ps.observe(ps.identity, values=[0.0], at=[0.0]),
    ...     physics=ps.impose(dx, 1.0, on=line.interior(ps.GaussLegendre(10))),
    ...     gamma=1e-8,
    ...     rho=1e-8,
    ... )
    >>> post = ps.posterior(model)
    >>> post.mean([0.5, 1.0]).round(3)  # f' = 1, f(0) = 0
    array([0.5, 1. ])
    >>> post.mean([0.5], operator=dx).round(3)
    array([1.])
    """
    require(isinstance(model, Model), "model", model, "a ps.Model")
    system = solve(with_solver(model, solver))
    system.warn_if_imprecise()
    return Posterior(system)


def _joined(layouts: list[Layout]) -> Layout:
    """Return several layouts one after the other."""
    tiles: list[Tile] = []
    start = 0
    for rows in layouts:
        for tile in rows.tiles:
            moved = slice(start + tile.rows.start, start + tile.rows.stop)
            tiles.append(dataclasses.replace(tile, rows=moved))
        start += rows.size
    return Layout(tuple(tiles), np.arange(start))
