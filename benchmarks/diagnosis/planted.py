"""Failures planted on purpose: how each is made from a problem, which findings are right, and when it counts."""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
from jaxtyping import Float

import pilescore as ps

from ..uncertainty.problems import Over, Points, Values
from .problems import TRUE, WRONG_VALUE, Equation

SOUND = "sound"
"""The kind of runs without a failure."""

OUTLIER = 6.0
"""The shift of a single outlier, in deviations of the noise."""
OUTLIERS = (6.0, 10.0)
"""The range of the shifts of a tenth of the data."""
FEWEST = 20
"""With fewer readings, a tenth of them is a single one, and other noise cannot be told."""
CORRELATION_LENGTH, CORRELATED = 0.15, 0.8
"""The length of correlated noise as a fraction of the extent of the domain, and its share of the variance."""
SPREAD = 5.0
"""The ratio of the largest and the smallest deviation of heteroscedastic noise."""
TAILS = 2.5
"""The degrees of freedom of heavy-tailed noise."""

HARMFUL = 2.0
"""A model that is chosen badly counts if its error is at least this multiple of the error of the sound fit."""
ISOTROPIC_HARMFUL = 1.5
"""The same for a kernel with one length."""
VISIBLE = 0.1
"""Errors below this multiple of the deviation of the noise do no harm, whatever their ratio."""
COLLAPSED_ERROR = 0.9
"""A collapsed model has at least this relative error: its mean is nearly zero."""


class Drawn(Protocol):
    """A draw of a problem, as far as failures need it."""

    at: Points
    noise: float

    @property
    def values(self) -> Values:
        """The sound readings."""

    @property
    def exact(self) -> Values:
        """The readings without noise."""

    def posed(self, equation: Equation = TRUE, values: Values | None = None) -> tuple[ps.Model, Over]:
        """Return a model and its bounds."""

    def isotropic(self) -> tuple[ps.Model, Over]:
        """Return the model with one length."""


Posed: TypeAlias = tuple[ps.Model, Over, bool]
"""A model, its bounds, and whether it is to be fitted."""

Make: TypeAlias = Callable[[Drawn, ps.Minimum, Over, np.random.Generator], Posed | None]
"""Makes a failure from a draw, its sound fit and the bounds of that; None if it cannot be planted."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """A kind of planted failure."""

    name: str
    what: str
    """A short description."""
    make: Make
    needs: str = ""
    """The attribute of a problem that must be there: `coefficient`, `term`, `condition` or `anisotropic`."""
    least_regret: float = 0.0
    """Counts if the true error is this multiple of that of the sound fit; zero if it always counts."""
    least_error: float = 0.0
    """Counts if the relative error is at least this."""
    aim: float = math.nan
    """The fraction of counted failures that should raise an alarm."""


def _wrong(equation: Equation) -> Make:
    def make(drawn: Drawn, best: ps.Minimum, over: Over, rng: np.random.Generator) -> Posed:
        return (*drawn.posed(equation), True)

    return make


def _wrong_value(drawn: Drawn, best: ps.Minimum, over: Over, rng: np.random.Generator) -> Posed:
    return (*drawn.posed(Equation(shift=WRONG_VALUE * rng.choice([-1.0, 1.0]))), True)


def _isotropic(drawn: Drawn, best: ps.Minimum, over: Over, rng: np.random.Generator) -> Posed:
    return (*drawn.isotropic(), True)


def _with_noise(errors: Callable[[Drawn, np.random.Generator], Values], fewest: int = 1) -> Make:
    """Return what replaces the noise of the readings by other errors, in deviations."""

    def make(drawn: Drawn, best: ps.Minimum, over: Over, rng: np.random.Generator) -> Posed | None:
        if len(drawn.at) < fewest:
            return None
        return (*drawn.posed(values=drawn.exact + drawn.noise * errors(drawn, rng)), True)

    return make


def _sound_errors(drawn: Drawn) -> Values:
    return (drawn.values - drawn.exact) / drawn.noise


def _one_outlier(drawn: Drawn, rng: np.random.Generator) -> Values:
    errors = _sound_errors(drawn)
    errors[rng.integers(len(errors))] += OUTLIER * rng.choice([-1.0, 1.0])
    return errors


def _tenth_outliers(drawn: Drawn, rng: np.random.Generator) -> Values:
    errors = _sound_errors(drawn)
    count = max(2, round(len(errors) / 10))
    some = rng.choice(len(errors), count, replace=False)
    errors[some] += rng.uniform(*OUTLIERS, count) * rng.choice([-1.0, 1.0], count)
    return errors


def _along(drawn: Drawn) -> Float[np.ndarray, "n d"]:
    """Return the places of the readings in units of their extent, from 0 to 1."""
    low, extent = drawn.at.min(axis=0), np.ptp(drawn.at, axis=0)
    return (drawn.at - low) / extent


def _correlated(drawn: Drawn, rng: np.random.Generator) -> Values:
    apart = _along(drawn)[:, None] - _along(drawn)
    covariance = np.exp(-0.5 * (apart**2).sum(axis=-1) / CORRELATION_LENGTH**2)
    smooth = np.linalg.cholesky(covariance + 1e-8 * np.eye(len(covariance))) @ rng.standard_normal(len(covariance))
    return math.sqrt(CORRELATED) * smooth + math.sqrt(1 - CORRELATED) * rng.standard_normal(len(covariance))


def _heteroscedastic(drawn: Drawn, rng: np.random.Generator) -> Values:
    places = _along(drawn)
    axis, side = rng.integers(places.shape[1]), rng.choice([-1.0, 1.0])
    return np.asarray(SPREAD ** (side * (places[:, axis] - 0.5)) * _sound_errors(drawn))


def _heavy_tailed(drawn: Drawn, rng: np.random.Generator) -> Values:
    return rng.standard_t(TAILS, len(drawn.at))


def _known_noise(factor: float) -> Make:
    def make(drawn: Drawn, best: ps.Minimum, over: Over, rng: np.random.Generator) -> Posed:
        model, bounds = drawn.posed()
        known = model.replace({"gamma": 2 * (factor * drawn.noise) ** 2})
        return known, {name: each for name, each in bounds.items() if name != "gamma"}, True

    return make


def _chosen_badly(lengths: float = 1.0, gamma: float = 1.0, eta: float = 1.0) -> Make:
    """Return what multiplies the hyperparameters of the sound fit."""

    def make(drawn: Drawn, best: ps.Minimum, over: Over, rng: np.random.Generator) -> Posed:
        factors = {"length": lengths, "data_temperature": gamma, "scale": eta}
        values, roles = best.model.parameters, best.model.roles
        shifted = {name: factors[role] * np.asarray(values[name]) for name, role in roles.items() if role in factors}
        return best.model.replace(shifted), over, False

    return make


def _collapsed(drawn: Drawn, best: ps.Minimum, over: Over, rng: np.random.Generator) -> Posed:
    square = float(np.mean(drawn.values**2))
    return best.model.replace({"gamma": 2 * square, "eta": 1e-4 * square}), over, False


FAILURES: tuple[Failure, ...] = (
    Failure(
        "coefficient ×1.2",
        "a coefficient of the equation is multiplied by 1.2",
        _wrong(Equation(factor=1.2)),
        "coefficient",
        aim=0.7,
    ),
    Failure(
        "coefficient ×1.5",
        "a coefficient of the equation is multiplied by 1.5",
        _wrong(Equation(factor=1.5)),
        "coefficient",
        aim=0.85,
    ),
    Failure("missing term", "a term of the equation is left out", _wrong(Equation(complete=False)), "term", aim=0.8),
    Failure(
        "wrong boundary value",
        f"a boundary value is off by {WRONG_VALUE:g} deviations of the solution, and the error doubles",
        _wrong_value,
        "condition",
        HARMFUL,
        aim=0.9,
    ),
    Failure(
        "isotropic kernel",
        f"one length for all directions; the error grows {ISOTROPIC_HARMFUL:g}-fold",
        _isotropic,
        "anisotropic",
        ISOTROPIC_HARMFUL,
        aim=0.9,
    ),
    Failure("one outlier", "one reading is shifted by six deviations", _with_noise(_one_outlier), aim=0.85),
    Failure(
        "a tenth outliers",
        "a tenth of the readings is shifted by six to ten deviations",
        _with_noise(_tenth_outliers, FEWEST),
        aim=0.75,
    ),
    Failure("noise ×10", "the noise is stated as known, with ten times its deviation", _known_noise(10.0), aim=0.95),
    Failure("noise ÷10", "the noise is stated as known, with a tenth of its deviation", _known_noise(0.1), aim=0.95),
    Failure("correlated noise", "most of the noise is a smooth function", _with_noise(_correlated, FEWEST)),
    Failure(
        "heteroscedastic noise",
        "the deviation of the noise changes fivefold across the domain",
        _with_noise(_heteroscedastic, FEWEST),
    ),
    Failure(
        "heavy-tailed noise",
        f"noise with Student's distribution with {TAILS:g} degrees of freedom",
        _with_noise(_heavy_tailed, FEWEST),
    ),
    Failure("lengths ÷4", "badly chosen: lengths are a quarter", _chosen_badly(lengths=0.25), "", HARMFUL, aim=0.8),
    Failure("lengths ×4", "badly chosen: lengths are fourfold", _chosen_badly(lengths=4.0), "", HARMFUL, aim=0.8),
    Failure("η ×10⁻⁴", "badly chosen: η is far too small", _chosen_badly(eta=1e-4), "", HARMFUL, aim=0.8),
    Failure("γ ×100", "badly chosen: far too much noise", _chosen_badly(gamma=100.0), "", HARMFUL, aim=0.8),
    Failure(
        "overfit",
        "badly chosen: γ is 1/10,000 and lengths are a fifth",
        _chosen_badly(lengths=0.2, gamma=1e-4),
        "",
        HARMFUL,
        aim=0.8,
    ),
    Failure(
        "collapsed",
        "γ is twice the mean square of the readings and η is 10⁻⁴ of it: the mean is nearly zero",
        _collapsed,
        "",
        HARMFUL,
        COLLAPSED_ERROR,
        aim=0.8,
    ),
)
"""All kinds, in the order of tables."""

BADLY_CHOSEN = ("lengths ÷4", "lengths ×4", "η ×10⁻⁴", "γ ×100", "overfit", "collapsed")
"""Kinds whose hyperparameters were not found by a search."""

REFUSED = "refused"
"""The name of an error of the library, which a user cannot miss."""

_EQUATION = {"wrong_equation", "physics_against_data", "boundary_against_interior", "physics_fit", REFUSED}
_LENGTHS = {"over_smoothed", "under_smoothed", "ill_suited_kernel"}
_NOISE = {"noise_level", "miscalibrated", "overfit", "over_smoothed", "under_smoothed"}

EXPECTED: Mapping[str, set[str]] = {
    "coefficient ×1.2": _EQUATION,
    "coefficient ×1.5": _EQUATION,
    "missing term": _EQUATION,
    "wrong boundary value": _EQUATION,
    "isotropic kernel": {"ill_suited_kernel"},
    "one outlier": {"outliers"},
    "a tenth outliers": {"outliers", "non_gaussian_noise", "miscalibrated"},
    "noise ×10": _NOISE,
    "noise ÷10": _NOISE,
    "correlated noise": {"correlated_noise", "miscalibrated", "physics_against_data"},
    "heteroscedastic noise": {"uneven_noise", "miscalibrated"},
    "heavy-tailed noise": {"non_gaussian_noise", "outliers", "miscalibrated"},
    "lengths ÷4": _LENGTHS | {"overfit", "unresolved_quadrature"},
    "lengths ×4": _LENGTHS | {"ill_conditioned", REFUSED},
    "η ×10⁻⁴": {"prior_scale", "collapsed", "over_smoothed", "under_smoothed"},
    "γ ×100": {"noise_level", "collapsed", "over_smoothed", "under_smoothed", "miscalibrated"},
    "overfit": _LENGTHS | {"overfit", "miscalibrated"},
    "collapsed": {"collapsed", "prior_scale"},
}
"""The findings that are right for each kind. Runs store all findings: a change here needs no new runs."""


def failure(name: str) -> Failure:
    """Return a kind of failure by its name."""
    return {each.name: each for each in FAILURES}[name]


def generator(name: str, problem: str, seed: int) -> np.random.Generator:
    """Return the random numbers of a failure in a draw."""
    return np.random.default_rng([zlib.crc32(name.encode()), *problem.encode(), seed])


def counts(kind: Failure, measured: Mapping[str, Any]) -> bool:
    """Whether a planted failure counts, by the true errors that were measured."""
    if not measured.get("planted"):
        return False
    if kind.least_regret == 0.0 or REFUSED in measured["findings"]:
        return True
    return harmful(measured, kind.least_regret) and measured["error"] >= kind.least_error


def harmful(measured: Mapping[str, Any], regret: float = HARMFUL) -> bool:
    """Whether the error of a model is this multiple of that of the sound fit, and can be seen beside the noise."""
    if REFUSED in measured["findings"]:
        return True
    error: float = measured["error"]
    return error > VISIBLE * measured["noise"] and error >= regret * measured["sound error"]
