"""The posterior: mean, standard deviation, covariance and samples of the unknown and of operators applied to it."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

from ..covariance import TILE, Covariance, Layout, RowSet, Tile, query, single_tile
from ..equations import Operator, identity
from ..errors import PrecisionWarning, as_array, as_count, as_points, require
from ..model import Model, check_names, check_smoothness
from ..parallel import require_memory
from ..solvers import EPS, System

BATCH = 1e9
"""How many bytes of covariances between observations and query points are in memory at a time."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Posterior:
    """A model's Gaussian process conditioned on its observations, as returned by `posterior`.

    `E[A f(x)] = η (A⊗L)k(x,P) α` and
    `Cov[A f(x), B f(x')] = η (A⊗B)k(x,x') − η² (A⊗L)k(x,P) C⁻¹ (L⊗B)k(P,x')`.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> (dx,) = ps.partials(ps.Box(x=(0, 1)))
    >>> x = np.linspace(0, 1, 9)
    >>> model = ps.Model(ps.RBF(0.5), data=ps.observe(ps.identity, np.sin(3 * x), at=x), gamma=2e-4)
    >>> post = ps.posterior(model)
    >>> post.mean([0.5, 1.5]).round(2), post.std([0.5, 1.5]).round(2)  # among the data and far from them
    (array([ 1.  , -0.81]), array([0.01, 0.4 ]))
    >>> post.mean([0.5], operator=dx).round(2), post.std([0.5], operator=dx).round(2)  # 3 cos 1.5 = 0.21
    (array([0.21]), array([0.05]))
    >>> post.covariance([0.5, 1.5]).shape, post.samples([0.5, 1.5], count=100, seed=0).shape
    ((2, 2), (100, 2))
    """

    system: System
    """The model's covariance of observations, factored and solved."""

    @property
    def model(self) -> Model:
        """The model that was conditioned."""
        return self.system.model

    def mean(self, points: Any, operator: Operator = identity) -> Float[np.ndarray, " n"]:
        """Return the posterior mean of `A f` at points of shape (n, d).

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
            out[tile.rows] = self._covariance.applied(RowSet(single_tile(tile)), self.system.factored.precise_alpha)
        return out

    def std(self, points: Any, operator: Operator = identity) -> Float[np.ndarray, " n"]:
        """Return the posterior standard deviation of `A f`.

        Examples
        --------
        >>> import pilescore as ps
        >>> model = ps.Model(ps.RBF(1.0), data=ps.observe(ps.identity, values=[1.0], at=[0.0]), gamma=0.02)
        >>> ps.posterior(model).std([0.0, 1.0, 9.0]).round(2)  # at the datum, near it, and far away (prior)
        array([0.1, 0.8, 1. ])
        """
        return np.sqrt(self.variance(points, operator))

    def variance(self, points: Any, operator: Operator = identity) -> Float[np.ndarray, " n"]:
        """Return the posterior variance of `A f`.

        A variance that rounding has made negative is returned as zero, with a `PrecisionWarning`.
        """
        rows = self._query(points, operator)
        out, prior = np.empty(rows.size), np.empty(rows.size)
        for tile, block in self._cross(rows):
            prior[tile.rows] = self._covariance.variances(RowSet(single_tile(tile)))
            # Prior minus explained variance: near observations with little noise all digits cancel.
            out[tile.rows] = prior[tile.rows] - self.system.factored.reduced_diagonal(block.T)
        negative = out < 0
        if negative.any():
            worst = float(np.max(-out[negative] / prior[negative]))
            warnings.warn(
                f"{int(negative.sum())} of {len(out)} posterior variances are smaller than their rounding error and "
                f"came out negative (down to {-worst:.1e} of the prior variance). They are returned as zero. Raise "
                "gamma or rho to resolve them.",
                PrecisionWarning,
                stacklevel=3,
            )
            out[negative] = 0.0
        return out

    def quantiles(self, points: Any, probabilities: Any, operator: Operator = identity) -> Float[np.ndarray, "*k n"]:
        """Return quantiles of `A f`, one row for each probability.

        Examples
        --------
        >>> import pilescore as ps
        >>> model = ps.Model(ps.RBF(1.0), data=ps.observe(ps.identity, values=[1.0], at=[0.0]), gamma=0.02)
        >>> ps.posterior(model).quantiles([0.0, 9.0], [0.025, 0.975]).round(2)
        array([[ 0.8 , -1.96],
               [ 1.19,  1.96]])
        """
        wanted = as_probabilities(probabilities)
        return normal_quantiles(self.mean(points, operator), self.std(points, operator), wanted)

    def covariance(
        self,
        points: Any,
        operator: Operator = identity,
        other_points: Any = None,
        other_operator: Operator | None = None,
    ) -> Float[np.ndarray, "n m"]:
        """Return the posterior covariance of `A f` at points with `B f` at other points, by default the same.

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
        return self._covariance.block(RowSet(first), RowSet(second)) - left.T @ self.system.factored.solve(right)[0]

    def samples(
        self,
        points: Any,
        count: int,
        seed: int | np.random.Generator,
        operator: Operator | Sequence[Operator] = identity,
    ) -> Float[np.ndarray, "count ..."]:
        """Return joint samples of `A f` at n points, of shape (count, n).

        For several operators the samples are drawn jointly and have shape (count, operators, n). The posterior
        covariance may be singular: samples do not vary in directions whose variance is smaller than rounding.

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
        rng = as_generator(seed)
        several = not isinstance(operator, Operator)
        operators = list(operator) if not isinstance(operator, Operator) else [operator]
        layouts = [self._query(points, one) for one in operators]
        rows = _joined(layouts)
        mean = np.concatenate([self.mean(points, one) for one in operators])
        # Eigenvalues rather than a Cholesky factor: near observations the covariance is singular to rounding.
        values, vectors = np.linalg.eigh(self._joint(rows))
        prior = float(self._covariance.variances(RowSet(rows)).max())
        floor = 1e3 * EPS * rows.size * prior
        if values[0] < -floor:
            warnings.warn(
                f"the posterior covariance has the negative eigenvalue {values[0]:.1e}, beyond rounding "
                f"({-floor:.1e}): samples are imprecise. Raise gamma or rho.",
                PrecisionWarning,
                stacklevel=2,
            )
        root = vectors * np.sqrt(np.where(values > 0, values, 0.0))
        drawn = mean + rng.standard_normal((count, rows.size)) @ root.T
        return drawn.reshape(count, len(operators), -1) if several else drawn

    def __repr__(self) -> str:
        return f"Posterior({self.model.size} observations, {self.model.kernel!r})"

    def _query(self, points: Any, operator: Operator) -> Layout:
        where = as_points(points, "points")
        dimension = self.model.blocks[0].dimension
        require(where.shape[1] == dimension, "points", where, f"points with {dimension} coordinates")
        self.model.kernel.check_points(where)
        require(isinstance(operator, Operator), "operator", operator, "an operator such as ps.identity")
        check_names(operator, self.model.names, "operator")
        indices = operator.indices(dimension)
        check_smoothness(self.model.kernel, indices, f"the operator {operator}")
        return query(where, indices, operator.coefficients, int(max(16, min(TILE, BATCH / (8.0 * self.model.size)))))

    @property
    def _covariance(self) -> Covariance:
        """The covariance that was solved: the kernel's, or the solver's approximation of it."""
        return self.system.factored.covariance

    def _cross(self, rows: Layout) -> Iterator[tuple[Tile, np.ndarray]]:
        whole = RowSet(self.system.rows)
        for tile in rows.tiles:
            yield tile, self._covariance.block(RowSet(single_tile(tile)), whole)

    def _columns(self, rows: Layout) -> Float[np.ndarray, "N n"]:
        """Return the covariance of the observations with the query, `η (L⊗A)k(P, x)`."""
        out = np.empty((self.model.size, rows.size), order="F")
        for tile, block in self._cross(rows):
            out[:, tile.rows] = block.T
        return out

    def _joint(self, rows: Layout) -> Float[np.ndarray, "n n"]:
        arrays = 4 * rows.size**2 + rows.size * self.model.size  # triangle, prior, product and difference; columns
        require_memory(rows.size, 8.0 * arrays, "the posterior covariance")
        # One triangle, mirrored: the result is symmetric to the last bit.
        lower = np.tril(self._covariance.block(RowSet(rows), RowSet(rows)))
        prior = lower + np.tril(lower, -1).T
        return prior - self.system.factored.reduced(self._columns(rows))


def as_generator(seed: int | np.random.Generator) -> np.random.Generator:
    """Return a random generator from a seed; a generator is returned as it is."""
    return seed if isinstance(seed, np.random.Generator) else np.random.default_rng(as_count(seed, "seed", least=0))


def normal_quantiles(
    mean: Float[np.ndarray, " n"], std: Float[np.ndarray, " n"], probabilities: Float[np.ndarray, "*k"]
) -> Float[np.ndarray, "*k n"]:
    """Return quantiles of normal distributions, `m + s Φ⁻¹(p)`."""
    return mean + std * np.asarray(ndtri(probabilities))[..., None]


def as_probabilities(value: Any) -> Float[np.ndarray, "*k"]:
    """Return `value` as a number between zero and one, or a vector of them."""
    array = as_array(value, "probabilities")
    inside = array.ndim <= 1 and array.size > 0 and bool(np.all((array > 0) & (array < 1)))
    require(inside, "probabilities", value, "numbers between 0 and 1, such as [0.025, 0.975]")
    return array


def _joined(layouts: list[Layout]) -> Layout:
    """Return one layout of the rows of several."""
    tiles: list[Tile] = []
    start = 0
    for rows in layouts:
        for tile in rows.tiles:
            shifted = slice(start + tile.rows.start, start + tile.rows.stop)
            tiles.append(dataclasses.replace(tile, rows=shifted))
        start += rows.size
    return Layout(tuple(tiles), np.arange(start))
