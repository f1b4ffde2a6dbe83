"""Rao's score tests: whether the evidence would grow if something that is fixed in a model were free.

Only the model as it is has to be solved. The score is `log p(y | r)`, of scored observations `y` given others `r`. With
`C = LLᵀ`, given rows first, `V` the scored rows of `L⁻¹`, `β` the `α` of the given rows alone, and `z = Vỹ`, which is
standard normal under the model, a change `dC` of the covariance and `dỹ` of the imposed values changes the score by

    s = ½ (zᵀBz − tr B) + bᵀz,    B = V dC Vᵀ,    b = V dC β − V dỹ,

with the Fisher information `½ tr(B_i B_j) + b_iᵀb_j`. Nothing is factored again, and draws of `z` cost one product.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from ..covariance import assembly, layout, tangents
from ..covariance import block as covariances
from ..model import Model, Observation, find, follow, kernel_paths, named_paths
from .calibration import Calibration

SMALLEST_INFORMATION = 1e-6
"""A direction is that of other hyperparameters if they leave less than this fraction of its information."""

NUISANCE_DIGITS = 1e-10
"""Eigenvalues of the information of other hyperparameters below this fraction of the largest count as zero."""


@dataclasses.dataclass(frozen=True, eq=False)
class Direction:
    """The derivative of a model's score in one number."""

    matrix: Float[np.ndarray, "n n"]
    """`B`."""
    vector: Float[np.ndarray, " n"]
    """`b`."""

    def score(self, whitened: Float[np.ndarray, "n B"]) -> Float[np.ndarray, " B"]:
        """Return the derivative for each of several data sets."""
        squares = np.einsum("ib,ib->b", whitened, self.matrix @ whitened)
        return np.asarray(0.5 * (squares - np.trace(self.matrix)) + self.vector @ whitened)

    def information(self, other: Direction) -> float:
        """Return the covariance of both scores under the model."""
        return 0.5 * float(np.vdot(self.matrix, other.matrix)) + float(self.vector @ other.vector)

    def minus(self, others: Sequence[Direction], factors: Float[np.ndarray, " k"]) -> Direction:
        """Return this direction minus multiples of others."""
        matrix, vector = self.matrix.copy(), self.vector.copy()
        for other, factor in zip(others, factors, strict=True):
            matrix -= factor * other.matrix
            vector -= factor * other.vector
        return Direction(matrix, vector)


@dataclasses.dataclass(frozen=True, eq=False)
class ScoreTest:
    """The score test of one direction, with other hyperparameters free."""

    direction: Direction
    """The direction after what other hyperparameters explain of it: its score is uncorrelated with theirs."""
    information: float
    """The variance of its score under the model; zero if other hyperparameters have the same effect."""
    follow: Float[np.ndarray, " k"]
    """How much each of the others changes with a unit change of this one."""

    def nats(self, whitened: Float[np.ndarray, "n B"]) -> Float[np.ndarray, " B"]:
        """Return the gain of the score that its slope and information promise, `s²/2I`, for several data sets."""
        if not self.information > 0:
            return np.zeros(whitened.shape[1])
        return np.asarray(self.direction.score(whitened) ** 2 / (2.0 * self.information))

    def step(self, whitened: Float[np.ndarray, " n"]) -> tuple[float, float]:
        """Return the change that promises most, `s/I`, and its standard error."""
        return float(self.direction.score(whitened[:, None])[0]) / self.information, self.information**-0.5


class ScoreTests:
    """Score tests of a linear model.

    Parameters
    ----------
    model
        The model.
    calibration
        Its whitened observations.
    searched
        The names of hyperparameters that are free besides.
    """

    def __init__(self, model: Model, calibration: Calibration, searched: Sequence[str]) -> None:
        self.model, self.calibration = model, calibration
        self.rows, self.eta = assembly(model.blocks).rows, float(model.eta)
        self.names = tuple(searched)
        self.others = list(self._hyperparameters(self.names))
        table = np.array([[first.information(second) for second in self.others] for first in self.others])
        size = np.sqrt(np.maximum(table.diagonal(), 1e-300)) if len(table) else np.empty(0)
        self._size = size
        self._inverse = np.linalg.pinv(table / np.outer(size, size), rcond=NUISANCE_DIGITS, hermitian=True)

    def test(self, direction: Direction) -> ScoreTest:
        """Return the score test of a direction."""
        shared = np.array([direction.information(other) for other in self.others])
        factors = (self._inverse @ (shared / self._size)) / self._size if len(shared) else np.empty(0)
        whole = direction.information(direction)
        left = whole - float(shared @ factors)
        if not left > SMALLEST_INFORMATION * whole:
            return ScoreTest(direction, 0.0, -factors)
        return ScoreTest(direction.minus(self.others, factors), left, -factors)

    def joint(self, names: Iterable[Sequence[str]]) -> tuple[float, Float[np.ndarray, " k"]]:
        """Return the nats that several hyperparameters promise together, and the step that promises most.

        Parameters
        ----------
        names
            The names of the hyperparameters; several lists if others change with them by as much.
        """
        groups = zip(*[list(self._hyperparameters(each)) for each in names], strict=True)
        directions = [
            Direction(np.sum([one.matrix for one in group], axis=0), np.sum([one.vector for one in group], axis=0))
            for group in groups
        ]
        tests = [self.test(direction) for direction in directions]
        rest = [test.direction for test in tests]
        table = np.array([[first.information(second) for second in rest] for first in rest])
        slopes = np.array([each.score(self.calibration.whitened[:, None])[0] for each in rest])
        step = np.linalg.pinv(table, rcond=SMALLEST_INFORMATION, hermitian=True) @ slopes
        return 0.5 * float(slopes @ step), step

    def of_block(
        self, number: int, operator: Observation | None = None, values: Float[np.ndarray, " n"] | None = None
    ) -> Direction:
        """Return the direction in which the operator of a block changes, or its imposed values, or both.

        Parameters
        ----------
        number
            The position of the block.
        operator
            The block with the derivative of its operator instead of the operator.
        values
            The derivative of its values.
        """
        direction = self._of_operators({} if operator is None else {number: operator})
        if values is None:
            return direction
        whitened = self.calibration.whitening[:, self.model.rows[number]] @ values
        return dataclasses.replace(direction, vector=direction.vector - whitened)

    def of_eta(self) -> Direction:
        """Return the direction of the logarithm of η."""
        noise = self._of_noise(None)  # η dC/dη = C − S, and V C Vᵀ = 1, V C β = 0
        return Direction(np.eye(len(noise.vector)) - noise.matrix, -noise.vector)

    def _of_operators(self, changes: dict[int, Observation]) -> Direction:
        V, beta = self.calibration.whitening, self.calibration.given_alpha
        matrix, vector = np.zeros((len(V), len(V))), np.zeros(len(V))
        for number, change in changes.items():
            place, moved = self.model.rows[number], layout([change])
            mixed = np.empty((change.size, self.model.size))
            mixed[np.ix_(moved.order, self.rows.order)] = covariances(self.model.kernel, moved, self.rows, self.eta)
            own = V[:, place]
            half = own @ (mixed @ V.T)  # dC has these rows, and their transpose as columns
            matrix += half + half.T
            vector += own @ (mixed @ beta) + V @ (mixed.T @ beta[place])
        return Direction(matrix, vector)

    def _of_covariance(self, change: Float[np.ndarray, "N N"]) -> Direction:
        """Return the direction of a change of `C`, in the stacked order."""
        V = self.calibration.whitening
        half = V @ change
        return Direction(half @ V.T, half @ self.calibration.given_alpha)

    def _stacked(self, assembled: Float[np.ndarray, "N N"]) -> Float[np.ndarray, "N N"]:
        back = np.argsort(self.rows.order)
        return assembled[np.ix_(back, back)]

    def _of_noise(self, rows: slice | None) -> Direction:
        """Return the direction in which the noise variance of some rows, or of all, is multiplied."""
        rows = slice(None) if rows is None else rows
        V, noise = self.calibration.whitening[:, rows], self.model.noise[rows]
        return Direction((V * noise) @ V.T, V @ (noise * self.calibration.given_alpha[rows]))

    def _hyperparameters(self, names: Sequence[str]) -> Iterator[Direction]:
        """Iterate over the directions of hyperparameters, of positive ones in their logarithm."""
        model, paths = self.model, named_paths(self.model)
        bases = [find(model, paths, name) for name in names]
        kernel = {path: i for i, path in enumerate(kernel_paths(model))}
        known: dict[str, list[Direction]] = {}
        for name, (base, index) in zip(names, bases, strict=True):
            if name == "eta":
                yield self.of_eta()
            elif name in model.temperature_names:
                parts = [
                    self._of_noise(model.rows[i]) for i, each in enumerate(model.temperature_names) if each == name
                ]
                matrix = np.sum([part.matrix for part in parts], axis=0)
                yield Direction(matrix, np.sum([part.vector for part in parts], axis=0))
            elif paths[base][0] in kernel:
                if base not in known:
                    leaf = kernel[paths[base][0]]
                    changes = tangents(model.kernel, [leaf], self.rows, self.eta)
                    known[base] = [self._of_covariance(self._stacked(change)) for change in changes]
                shape = np.shape(model.parameters[base])
                yield known[base][int(np.ravel_multi_index(index, shape)) if index else 0]
            else:
                yield self.of_parameter(base, index)

    def of_parameter(self, name: str, index: tuple[int, ...] = ()) -> Direction:
        """Return the direction of a parameter of operators."""
        model = self.model
        places = named_paths(model)[name]
        leaf = follow(model, places[0])
        unit = np.zeros(leaf.shape)
        unit[index] = 1.0
        changes = {}
        for number, table in enumerate(_coefficient_tangents(model, places, leaf, unit)):
            if table.any():
                changes[number] = dataclasses.replace(model.blocks[number], table=table)
        return self._of_operators(changes)


def _coefficient_tangents(model: Model, places: Sequence[Any], leaf: Any, unit: np.ndarray) -> list[np.ndarray]:
    """Return the derivatives of the coefficients of all blocks in a parameter."""

    def tables(value: Any) -> list[Any]:
        changed = eqx.tree_at(lambda m: [follow(m, path) for path in places], model, [value] * len(places))
        return [block.coefficients for block in changed.blocks]

    return [np.asarray(each) for each in jax.jvp(tables, (leaf,), (unit,))[1]]
