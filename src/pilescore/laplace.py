"""The decomposed tangent of a trained network: its evidence in every form, and the covariance of its predictions."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import numpy as np
from jaxtyping import Float

from .errors import InputError
from .linalg import EPS, self_product
from .model import Model
from .spectrum import Gram, Spectrum, Squares, gram
from .tangents import Network, NetworkRows, Rows, Whitened, gram_matrix, plan, whiten

LARGE = 1e-6
"""The part of the largest eigenvalue from which on an eigenvalue is large."""

LARGEST = 1e150
"""Numbers from which on squares cannot be summed."""

Form = Literal["laplace", "linearised", "tangent"]
Scaling = Literal["prior", "model"]


@dataclasses.dataclass(frozen=True, eq=False)
class Tangent:
    """What predictions need: the decomposed Gram matrix of the whitened Jacobian, and the network."""

    gram: Gram
    whitened: Whitened
    residuals: Float[np.ndarray, " N"]
    """`D^{-½}e`."""
    targets: Float[np.ndarray, " N"] | None
    """`D^{-½}t`, where they are known."""
    displacement: Float[np.ndarray, " P"] | None
    """`Λ^{-½}(θ̂ − θ_c)`, where it is known."""
    network: Network | None
    model: Model | None
    rows: Scaling

    def spectrum(self, form: Form) -> Spectrum:
        """Return the evidence of a form at every η and σ²."""
        values, inverse = self.gram.eigenvalues, self.whitened.inverse_root
        offset = -2.0 * float(np.log(inverse).sum())
        return Spectrum(values, len(inverse), self._squares(form), offset)

    def same_rows(self, other: Tangent) -> bool:
        """Whether another network was scored on the same rows, weighed alike, as far as can be told."""
        pairs = [(self.whitened.inverse_root, other.whitened.inverse_root), (self.targets, other.targets)]
        mine, its = self.whitened.rows, other.whitened.rows
        if isinstance(mine, NetworkRows) and isinstance(its, NetworkRows) and len(mine.blocks) == len(its.blocks):
            both = zip(mine.blocks, its.blocks, strict=True)
            pairs += [(a.block.points, b.block.points) for a, b in both]
        return all(a is not None and b is not None and np.array_equal(a, b) for a, b in pairs if a is not b)

    def _squares(self, form: Form) -> Squares:
        """Return what a form squares, in the coordinates of the eigenvectors."""
        e, t, delta = self.residuals, self.targets, self.displacement
        if form == "tangent":
            if t is None:
                raise InputError("targets: expected the observed values t, for the tangent form; got None")
            return self._of_vector(t, 0.0)
        if delta is None:
            raise InputError(f"displacement: expected θ̂ − θ_c, for the {form} form; got None")
        if form == "laplace":
            return Squares(np.zeros(len(self.gram.eigenvalues)), float(e @ e), float(delta @ delta))
        moved = self.whitened.times(delta[:, None])[:, 0]
        return self._of_vector(e + moved, EPS * math.sqrt(len(e)) * float(np.linalg.norm(moved)))

    def _of_vector(self, vector: Float[np.ndarray, " N"], blurred: float) -> Squares:
        """Return the squares of a vector along the eigenvectors of `AAᵀ` and across them, given its rounding error.

        From the eigenvectors of `AᵀA`: what is along large eigenvalues is taken off row by row, which keeps the digits
        of what is left; along small ones it is subtracted as a square, so that an error there is made up for across.
        """
        values, vectors = self.gram.eigenvalues, self.gram.vectors
        if self.gram.of_rows:
            return Squares((vectors.T @ vector) ** 2, 0.0, 0.0, blurred)
        large, known = (values > part * self.gram.largest for part in (LARGE, 100 * EPS))
        roots = np.sqrt(np.where(known, values, 1.0))
        parts = np.where(large, vectors.T @ self.whitened.backward(vector), 0.0) / roots
        left = vector - self.whitened.times((vectors @ (parts / roots))[:, None])[:, 0]
        small = known & ~large
        if small.any():
            parts = parts + np.where(small, vectors.T @ self.whitened.backward(left), 0.0) / roots
        square = float(left @ left)
        blurred += EPS * math.sqrt(len(parts) / LARGE) * float(np.linalg.norm(vector))
        errors = np.where(small, 4 * EPS * np.sqrt(len(parts) * square * self.gram.largest) / roots, 0.0)
        across = max(square - float(np.sum(parts[small] ** 2)), 0.0)
        return Squares(parts**2, across, 0.0, blurred, errors * (2 * np.abs(parts) + errors))

    def covariance(self, queried: Float[np.ndarray, "n P"], ratio: float) -> Float[np.ndarray, "n n"]:
        """Return the posterior covariance over η of linear functions of the parameters."""
        right, half = self._halves(queried, ratio)
        return self_product(right) - self_product(half) if self.gram.of_rows else ratio * self_product(half)

    def variances(
        self, queried: Float[np.ndarray, "n P"], ratio: float
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Return the diagonal of the covariance, and estimates of its rounding errors.

        Rounding moves the Gram matrix `G` by about `eps √k` of its norm, and so `bᵀ(G + r)⁻¹b` by that times
        `|(G + r)⁻¹b|²`.
        """
        right, half = self._halves(queried, ratio)
        prior, explained = (np.einsum("ij,ij->i", part, part) for part in (right, half))
        half /= np.sqrt(self.gram.eigenvalues + ratio)
        moved = math.sqrt(len(self.gram.eigenvalues)) * self.gram.largest * np.einsum("ij,ij->i", half, half)
        if self.gram.of_rows:
            return prior - explained, EPS * (math.sqrt(right.shape[1]) * prior + moved)
        return ratio * explained, EPS * ratio * moved

    def _halves(self, queried: Float[np.ndarray, "n P"], ratio: float) -> tuple[np.ndarray, np.ndarray]:
        """Return `B = JΛ^{½}`, and `(G + r)^{-½}` times `Bᵀ` or `ABᵀ`, with `G` the Gram matrix, transposed."""
        right = self.whitened.scaled(queried)
        seen = self.whitened.times(right.T).T if self.gram.of_rows else right
        return right, seen @ self.gram.vectors / np.sqrt(self.gram.eigenvalues + ratio)


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """A trained network at the rows that it is scored on."""

    rows: Rows
    residuals: Float[np.ndarray, " N"]
    targets: Float[np.ndarray, " N"] | None
    displacement: Float[np.ndarray, " P"] | None
    noise: Float[np.ndarray, " N"]
    spread: Float[np.ndarray, " P"]
    network: Network | None = None
    model: Model | None = None
    scaling: Scaling = "prior"

    def decomposed(self, memory: float | None, progress: bool | None) -> Tangent:
        """Return the decomposed tangent: the long part."""
        inverse, t, delta = 1.0 / np.sqrt(self.noise), self.targets, self.displacement
        squared = {
            "residuals": self.residuals * inverse,
            "targets": None if t is None else t * inverse,
            "displacement": None if delta is None else delta / np.sqrt(self.spread),
        }
        for name, vector in squared.items():
            if vector is not None and not float(np.abs(vector).max()) < LARGEST:
                raise InputError(
                    f"{name}: expected numbers that can be squared; scaled, they are up to {np.abs(vector).max():.1e}"
                )
        way = plan(self.rows, memory)
        whitened = whiten(self.rows, self.noise, self.spread, way, progress)
        matrix = gram_matrix(whitened, progress)
        if not np.isfinite(matrix.diagonal()).all():
            raise InputError("jacobian: expected finite numbers; gradients of the network are NaN or infinite")
        return Tangent(
            gram(matrix, way.of_rows), whitened, **squared, network=self.network, model=self.model, rows=self.scaling
        )
