"""Draws from a density by the No-U-Turn Sampler of nutpie."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from jaxtyping import Float

from ...errors import InputError
from .density import HyperparameterDensity
from .peak import Peak

CHAINS = 4

TUNE = 300
"""The number of steps of each chain that adapt the sampler and are not used."""

DRAWS = 500
"""The number of draws of each chain."""


@dataclasses.dataclass(frozen=True, eq=False)
class Chains:
    """Draws of several chains."""

    t: Float[np.ndarray, "chains draws p"]
    diverging: Float[np.ndarray, "chains draws"]
    """One for each draw whose trajectory diverged, else zero."""
    evaluations: int

    @property
    def r_hat(self) -> float:
        """The largest split R-hat of the coordinates: well above one, chains have not mixed."""
        half = self.t.shape[1] // 2
        halves = np.concatenate([self.t[:, :half], self.t[:, half : 2 * half]])
        between = half * halves.mean(axis=1).var(axis=0, ddof=1)
        within = halves.var(axis=1, ddof=1).mean(axis=0)
        return float(np.sqrt((between / within + half - 1.0) / half).max())

    @property
    def effective_size(self) -> float:
        """The smallest effective number of draws for the mean of a coordinate, by Geyer's initial positive sequence."""
        chains, draws, dimension = self.t.shape
        away = self.t - self.t.mean(axis=1, keepdims=True)
        transformed = np.fft.rfft(away, 2 * draws, axis=1)
        covariances = np.fft.irfft(np.abs(transformed) ** 2, axis=1)[:, :draws].mean(axis=0) / draws
        within = covariances[0] * draws / (draws - 1)
        total = covariances[0] + self.t.mean(axis=1).var(axis=0, ddof=1)
        sizes = []
        for k in range(dimension):
            correlations = 1.0 - (within[k] - covariances[:, k]) / total[k]
            pairs = correlations[: draws // 2 * 2].reshape(-1, 2).sum(axis=1)
            pairs = np.minimum.accumulate(pairs[: np.argmax(pairs < 0.0)] if (pairs < 0.0).any() else pairs)
            sizes.append(chains * draws / max(2.0 * pairs.sum() - 1.0, 1.0 / math.log10(chains * draws)))
        return float(min(sizes))


class _UnscorableError(Exception):
    """A point that cannot be scored: the sampler counts a divergence there, and goes on."""

    is_recoverable = True


def nuts_draws(density: HyperparameterDensity, peak: Peak, seed: int, progress: bool) -> Chains:
    """Return draws from a density; the chains start around a peak, and move in units of its deviations.

    Parameters
    ----------
    density
        The density.
    peak
        Its highest peak.
    seed
        The seed of the sampler.
    progress
        Whether to show a progress bar.
    """
    nutpie = require_nutpie()
    dimension = len(peak.t)
    root = np.linalg.cholesky(peak.covariance)
    evaluations = 0

    def make_density() -> Any:
        def log_density(z: Any) -> tuple[float, Float[np.ndarray, " p"]]:
            nonlocal evaluations
            evaluations += 1
            value, slope = density.value_and_slope(peak.t + root @ np.asarray(z))
            if not math.isfinite(value):
                raise _UnscorableError
            return value, root.T @ slope

        return log_density

    def make_expand(*_: Any) -> Any:
        return lambda z: {"z": np.asarray(z, dtype=np.float64)}

    model = nutpie.compiled_pyfunc.from_pyfunc(
        dimension,
        make_density,
        make_expand,
        [np.dtype(np.float64)],
        [(dimension,)],
        ["z"],
        make_initial_point_fn=lambda chain_seed: np.random.default_rng(chain_seed).standard_normal(dimension),
    )
    found = nutpie.sample(
        model,
        draws=DRAWS,
        tune=TUNE,
        chains=CHAINS,
        cores=1,  # scores hold Python's lock, and LAPACK uses the other cores
        seed=seed,
        save_warmup=False,
        progress_bar=progress,
    )
    z = found.posterior["z"].values
    if z.shape[:2] != (CHAINS, DRAWS) or not np.isfinite(z).all():  # nutpie returns what it has after Ctrl-C
        raise KeyboardInterrupt
    return Chains(peak.t + z @ root.T, found.sample_stats["diverging"].values.astype(float), evaluations)


def require_nutpie() -> Any:
    """Return the package nutpie with its interface to Python functions; raise an `InputError` without it."""
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ArviZ announces its next version whenever it is imported
            import nutpie
            import nutpie.compiled_pyfunc
    except ModuleNotFoundError as error:
        raise InputError(
            "method: 'nuts' needs nutpie, which is not installed: pip install 'pilescore[bayes]'"
        ) from error
    return nutpie
