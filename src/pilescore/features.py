"""Scores by finite bases, `C = ηΦΦᵀ + S`: exact for the basis, `N r²` operations, the memory of `r²` numbers."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import blas

from .bases import Basis
from .covariances import KernelCovariance, Part
from .errors import InputError, MemoryLimitError, NotPositiveDefiniteError, require
from .feature_covariances import FeatureCovariance, FeatureTangent, squares
from .linalg import (
    ALWAYS_FITS,
    EPS,
    LARGEST_THREADED,
    PANEL,
    Factor,
    NotFactorableError,
    cholesky,
    require_memory,
    threads,
)
from .solvers import Bounds, Covariance, Estimate, Factored, Pull, Solver, Tangent

COMPARED = 256
"""Rows whose covariances are compared with those of the full kernel, at most."""

SCORED = 1000
"""Rows whose PILE is compared with that of the full kernel, at most."""

PROBES = 16
"""Random vectors that the rounding error is estimated with."""

WIDEST = 4096
"""Functionals of more points are left out of comparisons: each variance is a sum over all pairs of them."""


@dataclasses.dataclass(frozen=True)
class Features(Solver):
    """The kernel replaced by a finite basis: exact for that, at `N r²` operations and the memory of `r²` numbers.

    How far the basis is from the kernel is estimated from some of the rows, and is part of the account.

    Parameters
    ----------
    basis
        The basis, such as a `FourierBasis`.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 2000)
    >>> model = ps.Model(kernel=ps.RBF(bandwidth=0.1), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.1)
    >>> quick = ps.pile(model, solver=ps.Features(ps.FourierBasis(0.0, 1.0, count=30)))
    >>> abs(quick.value - ps.pile(model).value) < 1e-8
    True
    """

    basis: Basis

    def __post_init__(self) -> None:
        require(
            isinstance(self.basis, Basis), "Features basis", self.basis, "a basis such as ps.FourierBasis(0, 1, 50)"
        )

    @property
    def identity(self) -> str:
        """What results depend on."""
        return f"features: {self.basis.identity}"

    def covariance(self, covariance: Covariance) -> FeatureCovariance:
        """Return the covariance of the basis for the rows of another."""
        kind = "that of a model's kernel (a KernelCovariance)"
        if not isinstance(covariance, KernelCovariance):
            raise InputError(f"covariance: expected {kind}; got {covariance!r}")
        return FeatureCovariance(covariance, self.basis)

    def estimate(self, covariance: Covariance) -> Estimate:
        """Return what it needs."""
        mine = self.covariance(covariance)
        n, r = float(mine.size), float(mine.rank)
        kept = 8.0 * n * r if 8.0 * n * r <= ALWAYS_FITS else 0.0
        return Estimate("features", 8.0 * (r**2 + 5 * n) + kept + _strip(mine), n * r**2 + r**3 / 3)

    def factor(self, covariance: Covariance) -> FeatureFactored:
        """Sum up the features' products, and factor them."""
        mine = self.covariance(covariance)
        try:
            require_memory(mine.rank, _strip(mine))
        except MemoryLimitError as error:
            raise MemoryLimitError(
                f"{self.basis!r} has r = {mine.rank} features, and {8e-9 * mine.rank**2:.1f} GB for r² numbers and "
                f"{1e-9 * _strip(mine):.1f} GB for strips of rows are not available. Lower its count."
            ) from error
        return FeatureFactored(mine)


def _strip(covariance: FeatureCovariance) -> float:
    """Return the bytes of features of some strips."""
    return 8.0 * 6 * covariance.rank * max(tile.width for tile in covariance.full.rows.tiles)


class FeatureFactored(Factored):
    """`C = ηΦΦᵀ + S` by the Cholesky factor of `B = I + ηΦᵀS⁻¹Φ`."""

    method = "features"
    covariance: FeatureCovariance

    def __init__(self, covariance: FeatureCovariance) -> None:
        self.covariance = covariance
        values, noise = covariance.values, covariance.noise
        self.prior = np.empty(covariance.size)
        """Prior variances of the basis."""
        self.factor, right = self._summed()
        with threads(covariance.rank):
            self.mean = self.factor.solve(right)
        """The posterior mean `m = B⁻¹ΦᵀS⁻¹ỹ` of the features' coefficients."""
        self.alpha = np.empty(covariance.size)
        gap, lost = -self.mean, 0.0
        with threads(covariance.rank):
            for where, _, phi in covariance.featured():
                self.alpha[where] = (values[where] - phi @ self.mean) / noise[where]
                gap += phi.T @ self.alpha[where]
                lost += float(np.abs(self.alpha[where]) @ (np.abs(phi) @ np.abs(self.mean)))
        quadratic = float(self.alpha @ (noise * self.alpha) + self.mean @ self.mean)
        logs = np.log(noise)
        logdet = float(logs.sum()) + self.factor.logdet
        self.quadratic, self.logdet = Bounds(quadratic, quadratic), Bounds(logdet, logdet)
        self.error = self._rounding(gap) + EPS * (2.0 * lost + quadratic + float(np.abs(logs).sum()))

    def _summed(self) -> tuple[Factor, Float[np.ndarray, " r"]]:
        """Return the factor of `B`, and `ΦᵀS⁻¹ỹ`, in one pass."""
        covariance = self.covariance
        matrix = np.zeros((covariance.rank, covariance.rank), order="F")
        matrix.T.flat[:: covariance.rank + 1] = 1.0
        right = np.zeros(covariance.rank)
        root = np.sqrt(covariance.noise)
        with threads(covariance.rank):
            for where, part, phi in covariance.featured():
                self.prior[where] = squares(phi)
                if not np.isfinite(self.prior[where]).all():
                    row = int(np.argmin(np.isfinite(self.prior[where])))
                    point = np.asarray(part.rows.tiles[0].points)[:, row].tolist()
                    near = "" if part.rows.tiles[0].matrix is not None else f", first at the point {point}"
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
        """Return what rounding of `B` takes from the log determinant, and the error of `m` from the quadratic form.

        As for a dense matrix the former is about `eps tr(D B⁻¹ D)`, `D² = diag B`; here a few directions of nearly
        dependent features make up the trace, and several vectors are needed not to miss them.
        """
        scale = np.sqrt(self.factor.diagonal)
        vectors = np.random.default_rng(0).standard_normal((PROBES, len(scale)))
        with threads(len(scale)):
            halves = self.factor.half_solve((scale * vectors).T)
            rest = blas.dtrsv(self.factor.matrix, gap, lower=1)
        return EPS * float(np.sum(halves**2)) / PROBES + float(rest @ rest)

    def solve(self, right: Float[np.ndarray, "N k"]) -> tuple[Float[np.ndarray, "N k"], Float[np.ndarray, "N k"]]:
        """Return `C⁻¹B`, in two passes."""
        inner = self._inner(right)
        out = np.empty(right.shape)
        for where, _, phi in self.covariance.featured():
            out[where] = (right[where] - phi @ inner) / self.covariance.noise[where, None]
        return out, np.zeros_like(out)

    def reduced(self, right: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "k k"]:
        """Return `BᵀC⁻¹B`, in two passes."""
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
        """Return the coefficients that fit best, `B⁻¹ΦᵀS⁻¹R`."""
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

    def pull(self, scale: float) -> FeaturePull:
        """Return `G`; the factor is kept."""
        return FeaturePull(self, scale)

    @functools.cached_property
    def distance(self) -> Distance:
        """How far the basis is from the kernel, found when it is asked for."""
        return Distance(self.covariance, self.prior)

    @property
    def trace_error(self) -> float:
        """What part of the prior variance of all rows the basis lacks."""
        return self.distance.trace

    @property
    def kernel_error(self) -> float:
        """The largest difference of covariances from the kernel's, in prior deviations, of some rows."""
        return self.distance.kernel

    @property
    def pile_error(self) -> float:
        """PILE of the basis less that of the kernel, of some rows."""
        return self.distance.pile

    @property
    def account(self) -> str:  # type: ignore[override]
        """What was done, and how far the basis is from the kernel."""
        mine = self.covariance
        done = f"features: {mine.rank} functions of {mine.basis!r} for {mine.size} observations, exact for the basis"
        return f"{done}. {self.distance}"


class FeaturePull(Pull):
    """`G = C⁻¹ − ααᵀ/scale` by the factor of `B`."""

    def __init__(self, factored: FeatureFactored, scale: float) -> None:
        self.factored = factored
        self.scale = scale

    @functools.cached_property
    def diagonal(self) -> Float[np.ndarray, " N"]:  # type: ignore[override]
        """`(1 − h)/s − α²/scale`, with `h` the share that a row has in its own fit."""
        mine = self.factored
        noise, out = mine.covariance.noise, np.empty(mine.covariance.size)
        with threads(mine.covariance.rank):
            for where, _, phi in mine.covariance.featured():
                half = mine.factor.half_solve((phi / np.sqrt(noise[where, None])).T)
                out[where] = (1.0 - squares(half.T)) / noise[where]
        return out - mine.alpha**2 / self.scale

    def contract(self, tangent: Tangent) -> Float[np.ndarray, " p"]:
        """Return `Σ_ij W_ij ∂Φ_ij`, `W = 2GΦ = 2 (S⁻¹ΦB⁻¹ − αmᵀ/scale)`, in one pass."""
        if not isinstance(tangent, FeatureTangent):
            raise InputError("tangent: expected one made by the covariance of the features (factored.covariance)")
        mine, parts = self.factored, []
        for where, part, phi in mine.covariance.featured():
            with threads(mine.covariance.rank):
                fitted = mine.factor.solve((phi / mine.covariance.noise[where, None]).T).T
            weights = 2.0 * (fitted - np.outer(mine.alpha[where] / self.scale, mine.mean))
            parts.append(tangent.pulled(part, weights))
        return np.sum(parts, axis=0)


class Distance:
    """How far a basis is from the kernel that it stands for, on all rows and on some that are always the same."""

    def __init__(self, covariance: FeatureCovariance, prior: Float[np.ndarray, " N"]) -> None:
        self.covariance = covariance
        self.prior = prior
        tiles = [tile for tile in covariance.full.rows.tiles if tile.width <= WIDEST]
        self.rows = np.concatenate([np.zeros(0, dtype=int), *(np.r_[tile.rows] for tile in tiles)])

    @functools.cached_property
    def trace(self) -> float:
        """`Σ_i (Q_ii − |Φ_i|²) / Σ_i Q_ii`; NaN if all variances of the kernel are zero."""
        lacking = total = 0.0
        for where, part in self.covariance.strips():
            if part.rows.tiles[0].width <= WIDEST:
                variances = self.covariance.full.variances(part)
                lacking += float((variances - self.prior[where]).sum())
                total += float(variances.sum())
        return lacking / total if total else math.nan

    @functools.cached_property
    def kernel(self) -> float:
        """The largest `|Q − ΦΦᵀ|_ij / √(Q_ii Q_jj)` of at most 256 rows; NaN if there is no row to compare."""
        if not len(self.rows):
            return math.nan
        _, part = self._sample(COMPARED)
        full = self.covariance.full.block(part, part)
        apart, root = np.abs(full - self.covariance.block(part, part)), np.sqrt(full.diagonal())
        scale = np.outer(root, root)
        relative = np.where(apart > 0, np.inf, 0.0)  # of rows that have no variance
        return float(np.divide(apart, scale, out=relative, where=scale > 0).max())

    @functools.cached_property
    def pile(self) -> float:
        """PILE of the basis less that of the kernel, of at most 1000 rows; NaN if one of them cannot be factored."""
        if not len(self.rows):
            return math.nan
        which, part = self._sample(SCORED)
        values, scores = self.covariance.values[which], []
        for covariance in (self.covariance, self.covariance.full):
            matrix = np.asfortranarray(covariance.block(part, part))
            matrix.T.flat[:: len(which) + 1] += self.covariance.noise[which]
            try:
                factor = cholesky(matrix)
            except NotFactorableError:
                return math.nan
            scores.append((float(values @ factor.solve(values)) + factor.logdet) / len(which))
        return scores[0] - scores[1]

    def _sample(self, count: int) -> tuple[Int[np.ndarray, " n"], Part]:
        size = min(count, len(self.rows))
        which = np.sort(np.random.default_rng(0).choice(self.rows, size, replace=False))
        return which, self.covariance.part(which)

    def __str__(self) -> str:
        count = len(self.rows)
        left = self.covariance.size - count
        if not count:
            return "It was not compared with the kernel: all rows are functionals of many points."
        without = f" ({left} functionals of many points left out)" if left else ""
        unknown = "cannot be compared, a matrix not being positive definite,"
        score = unknown if math.isnan(self.pile) else f"differs by {self.pile:.1e}"
        return (
            f"Against the kernel itself, prior variances lack {self.trace:.1e} of their sum{without}, correlations "
            f"differ by up to {self.kernel:.1e} (of {min(count, COMPARED)} rows), PILE {score} "
            f"(of {min(count, SCORED)} rows)."
        )


def _add_products(matrix: Float[np.ndarray, "r r"], rows: Float[np.ndarray, "n r"]) -> None:
    """Add `AᵀA` to a Fortran ordered matrix, in its lower triangle."""
    size = len(matrix)
    if size <= LARGEST_THREADED:
        blas.dsyrk(1.0, rows.T, beta=1.0, c=matrix, lower=1, overwrite_c=1)
        return
    for start in range(0, size, PANEL):
        panel = slice(start, start + PANEL)
        matrix[start:, panel] += rows[:, start:].T @ rows[:, panel]
