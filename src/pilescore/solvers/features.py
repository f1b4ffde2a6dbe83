"""Scores from finite bases, `C = ηΦΦᵀ + S`: exact for the basis, `N r²` operations, memory for `r²` numbers."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import blas

from ..covariance import Covariance, CovarianceTangent, KernelCovariance, RowSet
from ..errors import InputError, MemoryLimitError, NotPositiveDefiniteError, require
from ..model import Solver
from ..parallel import ALWAYS_FITS_BYTES, require_memory, threads
from .bases import Basis
from .feature_covariance import FeatureCovariance, FeatureTangent, squares
from .interface import Bounds, Cotangent, Estimate, Factored
from .lapack import EPS, LARGEST_THREADED, PANEL, CholeskyFactor, NotFactorableError, cholesky

COMPARED_ROWS = 256
"""Largest number of rows whose covariances are compared with the kernel's."""

SCORED_ROWS = 1000
"""Largest number of rows whose PILE is compared with the kernel's."""

PROBES = 16
"""Number of random vectors for rounding estimates."""

SAFETY = 4.0
"""The stated rounding error of the log determinant, over its estimate: errors of up to 1.5 times the estimate occur."""

WIDEST = 4096
"""Functionals of more points are omitted from comparisons: each of their variances sums over all pairs of points."""


@dataclasses.dataclass(frozen=True)
class Features(Solver):
    """Replace the kernel by a finite basis: exact for the basis, `N r²` operations, memory for `r²` numbers.

    The result's `solver` reports an estimate of the difference between basis and kernel, from a sample of rows.

    Parameters
    ----------
    basis
        The basis, such as a `FourierBasis`.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 2000)
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.1), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.1)
    >>> quick = ps.pile(model.replace(solver=ps.solvers.Features(ps.solvers.FourierBasis(0.0, 1.0, count=30))))
    >>> abs(quick.value - ps.pile(model).value) < 1e-8
    True
    """

    basis: Basis

    def __post_init__(self) -> None:
        expected = "a basis such as ps.solvers.FourierBasis(0, 1, 50)"
        require(isinstance(self.basis, Basis), "Features basis", self.basis, expected)

    @property
    def identity(self) -> str:
        """A string that determines the results of this solver."""
        return f"features: {self.basis.identity}"

    def covariance(self, covariance: Covariance) -> FeatureCovariance:
        """Return the covariance of the basis for the rows of a kernel covariance."""
        if not isinstance(covariance, KernelCovariance):
            raise InputError(f"covariance: expected that of a model's kernel (a KernelCovariance); got {covariance!r}")
        return FeatureCovariance(covariance, self.basis)

    def estimate(self, covariance: Covariance) -> Estimate:
        """Estimate memory and operations."""
        features = self.covariance(covariance)
        n, r = float(features.size), float(features.rank)
        kept = 8.0 * n * r if 8.0 * n * r <= ALWAYS_FITS_BYTES else 0.0
        return Estimate("features", 8.0 * (r**2 + 5 * n) + kept + _strip(features), n * r**2 + r**3 / 3)

    def factor(self, covariance: Covariance) -> FeatureFactored:
        """Accumulate and factor `I + ηΦᵀS⁻¹Φ`."""
        features = self.covariance(covariance)
        try:
            require_memory(features.rank, _strip(features))
        except MemoryLimitError as error:
            raise MemoryLimitError(
                f"{self.basis!r} has r = {features.rank} features; {8e-9 * features.rank**2:.1f} GB for r² numbers and "
                f"{1e-9 * _strip(features):.1f} GB for strips of rows are not available. Lower its count."
            ) from error
        return FeatureFactored(features)


def _strip(covariance: FeatureCovariance) -> float:
    """Return the bytes of the feature strips that are in memory at once."""
    return 8.0 * 6 * covariance.rank * max(tile.width for tile in covariance.full.rows.tiles)


class FeatureFactored(Factored):
    """`C = ηΦΦᵀ + S`, factored through the Cholesky factor of the r × r matrix `B = I + ηΦᵀS⁻¹Φ`."""

    method = "features"
    covariance: FeatureCovariance

    def __init__(self, covariance: FeatureCovariance) -> None:
        self.covariance = covariance
        values, noise = covariance.values, covariance.noise
        self.prior = np.empty(covariance.size)
        """Prior variances of the rows under the basis."""
        self.factor, right = self._summed()
        with threads(covariance.rank):
            self.mean = self.factor.solve(right)
        """Posterior mean `m = B⁻¹ΦᵀS⁻¹ỹ` of the feature coefficients."""
        self.alpha = np.empty(covariance.size)
        # `m = ΦᵀS⁻¹(ỹ − Φm)` holds exactly; the gap between both sides measures the error of the computed `m`.
        gap, lost = -self.mean, 0.0
        with threads(covariance.rank):
            for where, _, phi in covariance.featured():
                self.alpha[where] = (values[where] - phi @ self.mean) / noise[where]
                gap += phi.T @ self.alpha[where]
                lost += float(np.abs(self.alpha[where]) @ (np.abs(phi) @ np.abs(self.mean)))
        # `ỹᵀC⁻¹ỹ = αᵀSα + mᵀm` is a sum of squares; `ỹᵀS⁻¹ỹ − bᵀB⁻¹b` would cancel when the fit is good.
        quadratic = float(self.alpha @ (noise * self.alpha) + self.mean @ self.mean)
        logs = np.log(noise)
        logdet = float(logs.sum()) + self.factor.logdet
        self.quadratic, self.logdet = Bounds(quadratic, quadratic), Bounds(logdet, logdet)
        self.error = self._rounding(gap) + EPS * (2.0 * lost + quadratic + float(np.abs(logs).sum()))

    def _summed(self) -> tuple[CholeskyFactor, Float[np.ndarray, " r"]]:
        """Return the factor of `B` and the vector `ΦᵀS⁻¹ỹ` from one pass over the rows."""
        covariance = self.covariance
        matrix = np.zeros((covariance.rank, covariance.rank), order="F")
        matrix.T.flat[:: covariance.rank + 1] = 1.0
        right = np.zeros(covariance.rank)
        root = np.sqrt(covariance.noise)
        with threads(covariance.rank):
            for where, subset, phi in covariance.featured():
                self.prior[where] = squares(phi)
                if not np.isfinite(self.prior[where]).all():
                    row = int(np.argmin(np.isfinite(self.prior[where])))
                    point = np.asarray(subset.rows.tiles[0].points)[:, row].tolist()
                    near = "" if subset.rows.tiles[0].matrix is not None else f", first at the point {point}"
                    raise InputError(f"{covariance.basis!r}: expected finite features; some are NaN or infinite{near}")
                scaled = phi / root[where, None]
                _add_products(matrix, scaled)
                right += scaled.T @ (covariance.values[where] / root[where])
        try:
            return cholesky(matrix), right
        except NotFactorableError:
            largest = float(matrix.diagonal().max())
            raise NotPositiveDefiniteError(
                f"I + ηΦᵀS⁻¹Φ of {covariance.rank} features is not positive definite to working precision: its "
                f"entries reach {largest:.1e}. What helps: raise gamma or rho, or lower the count of "
                f"{covariance.basis!r}."
            ) from None

    def _rounding(self, gap: Float[np.ndarray, " r"]) -> float:
        """Return the effect of rounding in `B` on the log determinant, and of the error of `m` on the quadratic form.

        As for a dense matrix, the former is about `eps tr(D B⁻¹ D)` with `D² = diag B`. Here a few directions of nearly
        dependent features dominate the trace, and a single random vector could miss them.
        """
        scale = np.sqrt(self.factor.diagonal)
        vectors = np.random.default_rng(0).standard_normal((PROBES, len(scale)))
        with threads(len(scale)):
            halves = self.factor.half_solve((scale * vectors).T)
            rest = blas.dtrsv(self.factor.matrix, gap, lower=1)
        return SAFETY * EPS * float(np.sum(halves**2)) / PROBES + float(rest @ rest)

    def solve(self, right: Float[np.ndarray, "N k"]) -> tuple[Float[np.ndarray, "N k"], Float[np.ndarray, "N k"]]:
        """Return `C⁻¹B` in two passes over the rows."""
        inner = self._inner(right)
        out = np.empty(right.shape)
        for where, _, phi in self.covariance.featured():
            out[where] = (right[where] - phi @ inner) / self.covariance.noise[where, None]
        return out, np.zeros_like(out)

    def reduced(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "k k"]:
        """Return `BᵀC⁻¹B` in two passes over the rows."""
        inner = self._inner(right)
        total = inner.T @ inner
        for rest in self._rest(right, inner):
            total += rest.T @ rest
        return total

    def reduced_diagonal(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, " k"]:
        """Return the diagonal of `BᵀC⁻¹B`."""
        inner = self._inner(right)
        total = squares(inner.T)
        for rest in self._rest(right, inner):
            total += squares(rest.T)
        return total

    def _inner(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "r k"]:
        """Return the best-fitting coefficients, `B⁻¹ΦᵀS⁻¹R`."""
        out = np.zeros((self.covariance.rank, right.shape[1]))
        for where, _, phi in self.covariance.featured():
            out += phi.T @ (right[where] / self.covariance.noise[where, None])
        with threads(self.covariance.rank):
            return self.factor.solve(out)

    def _rest(
        self, right: Float[np.ndarray, "N k"], inner: Float[np.ndarray, "r k"]
    ) -> Iterator[Float[np.ndarray, "n k"]]:
        """Iterate over `S^{−½}(R − ΦM)`."""
        for where, _, phi in self.covariance.featured():
            yield (right[where] - phi @ inner) / np.sqrt(self.covariance.noise[where, None])

    def cotangent(self, scale: float) -> FeatureCotangent:
        """Return `G`. The factor is kept."""
        return FeatureCotangent(self, scale)

    @functools.cached_property
    def comparison(self) -> BasisComparison:
        """Comparison of the basis with the kernel, computed on first use."""
        return BasisComparison(self.covariance, self.prior)

    @property
    def account(self) -> str:  # type: ignore[override]
        """What was done, and how far the basis is from the kernel."""
        functions = f"{self.covariance.rank} functions of {self.covariance.basis!r}"
        return f"features: {functions} for {self.covariance.size} observations, exact for the basis. {self.comparison}"


class FeatureCotangent(Cotangent):
    """`G = C⁻¹ − ααᵀ/scale` by the factor of `B`."""

    def __init__(self, factored: FeatureFactored, scale: float) -> None:
        self.factored = factored
        self.scale = scale

    @functools.cached_property
    def diagonal(self) -> Float[np.ndarray, " N"]:  # type: ignore[override]
        """`(1 − h)/s − α²/scale`, where `h` is the leverage of a row."""
        factored = self.factored
        noise, out = factored.covariance.noise, np.empty(factored.covariance.size)
        with threads(factored.covariance.rank):
            for where, _, phi in factored.covariance.featured():
                half = factored.factor.half_solve((phi / np.sqrt(noise[where, None])).T)
                out[where] = (1.0 - squares(half.T)) / noise[where]
        return out - factored.alpha**2 / self.scale

    def contract(self, tangent: CovarianceTangent) -> Float[np.ndarray, " p"]:
        """Return `Σ_ij W_ij ∂Φ_ij` with `W = 2GΦ = 2 (S⁻¹ΦB⁻¹ − αmᵀ/scale)`, in one pass over the rows."""
        if not isinstance(tangent, FeatureTangent):
            raise InputError("tangent: expected a tangent of the feature covariance (factored.covariance)")
        factored, parts = self.factored, []
        for where, subset, phi in factored.covariance.featured():
            with threads(factored.covariance.rank):
                fitted = factored.factor.solve((phi / factored.covariance.noise[where, None]).T).T
            weights = 2.0 * (fitted - np.outer(factored.alpha[where] / self.scale, factored.mean))
            parts.append(tangent.contract_features(subset, weights))
        return np.sum(parts, axis=0)


class BasisComparison:
    """Differences between a basis and the kernel it approximates, over all rows or a fixed sample of them."""

    def __init__(self, covariance: FeatureCovariance, prior: Float[np.ndarray, " N"]) -> None:
        self.covariance = covariance
        self.prior = prior
        tiles = [tile for tile in covariance.full.rows.tiles if tile.width <= WIDEST]
        self.rows = np.concatenate([np.zeros(0, dtype=int), *(np.r_[tile.rows] for tile in tiles)])

    @functools.cached_property
    def trace(self) -> float:
        """`Σ_i (Q_ii − |Φ_i|²) / Σ_i Q_ii`; NaN if all prior variances of the kernel are zero."""
        lacking = total = 0.0
        for where, subset in self.covariance.strips():
            if subset.rows.tiles[0].width <= WIDEST:
                variances = self.covariance.full.variances(subset)
                lacking += float((variances - self.prior[where]).sum())
                total += float(variances.sum())
        return lacking / total if total else math.nan

    @functools.cached_property
    def kernel(self) -> float:
        """Largest `|Q − ΦΦᵀ|_ij / √(Q_ii Q_jj)` over at most 256 rows; NaN if no row can be compared."""
        if not len(self.rows):
            return math.nan
        _, subset = self._sample(COMPARED_ROWS)
        full = self.covariance.full.block(subset, subset)
        apart, root = np.abs(full - self.covariance.block(subset, subset)), np.sqrt(full.diagonal())
        scale = np.outer(root, root)
        relative = np.where(apart > 0, np.inf, 0.0)  # for rows without variance
        return float(np.divide(apart, scale, out=relative, where=scale > 0).max())

    @functools.cached_property
    def pile(self) -> float:
        """PILE of the basis minus PILE of the kernel, for at most 1000 rows; NaN if either cannot be factored."""
        if not len(self.rows):
            return math.nan
        which, subset = self._sample(SCORED_ROWS)
        values, scores = self.covariance.values[which], []
        for covariance in (self.covariance, self.covariance.full):
            matrix = np.asfortranarray(covariance.block(subset, subset))
            matrix.T.flat[:: len(which) + 1] += self.covariance.noise[which]
            try:
                factor = cholesky(matrix)
            except NotFactorableError:
                return math.nan
            scores.append((float(values @ factor.solve(values)) + factor.logdet) / len(which))
        return scores[0] - scores[1]

    def _sample(self, count: int) -> tuple[Int[np.ndarray, " n"], RowSet]:
        size = min(count, len(self.rows))
        which = np.sort(np.random.default_rng(0).choice(self.rows, size, replace=False))
        return which, self.covariance.select(which)

    def __str__(self) -> str:
        count = len(self.rows)
        left = self.covariance.size - count
        if not count:
            return "It was not compared with the kernel: all rows are functionals of many points."
        without = f" ({left} functionals of many points omitted)" if left else ""
        unknown = "cannot be compared, because a matrix is not positive definite,"
        score = unknown if math.isnan(self.pile) else f"differs by {self.pile:.1e}"
        return (
            f"Compared with the kernel, prior variances lack {self.trace:.1e} of their sum{without}, correlations "
            f"differ by up to {self.kernel:.1e} (over {min(count, COMPARED_ROWS)} rows), PILE {score} "
            f"(over {min(count, SCORED_ROWS)} rows)."
        )


def _add_products(matrix: Float[np.ndarray, "r r"], rows: Float[np.ndarray, "n r"]) -> None:
    """Add `AᵀA` to the lower triangle of a Fortran ordered matrix."""
    size = len(matrix)
    if size <= LARGEST_THREADED:
        blas.dsyrk(1.0, rows.T, beta=1.0, c=matrix, lower=1, overwrite_c=1)
        return
    for start in range(0, size, PANEL):
        panel = slice(start, start + PANEL)
        matrix[start:, panel] += rows[:, start:].T @ rows[:, panel]
