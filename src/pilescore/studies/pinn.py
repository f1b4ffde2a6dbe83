"""The study of physics-informed networks: find the score that ranks networks by their error.

Run it with `pilescore study pinn`. It needs the extra `pilescore[pinn]`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import importlib.util
import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy.stats import rankdata

import pilescore as ps

from .pinn_networks import GRID, Architecture, evaluated, grid, model, network, relative_error, train, unflat
from .pinn_report import report
from .runner import Study, StudyRun, check, columns, counted

SCORES = ("laplace", "linearised", "tangent", "last_layer", "training_points", "misfit", "training_loss")
Form = Literal["laplace", "linearised", "tangent"]
BEFORE: tuple[Form, ...] = ("tangent", "linearised", "laplace")
"""Forms of PILE that are computed before training."""
EXPECTED_CORRELATION = 0.8
"""The expected rank correlation of the laplace form with the true error."""
EXPECTED_AT = (10.0, 20.0)
"""The speeds at which it is expected."""
MIN_NETWORKS = 20
"""The smallest number of networks for which it is checked."""
ARCHITECTURE_WEIGHT, ARCHITECTURE_RAMP = 1.0, 0.7
"""The weight of the conditions and the ramp (see `PinnSettings`) with which architectures are trained."""
LEVEL = 0.95
"""The level of the bootstrap intervals."""

ARCHITECTURES = (
    Architecture(20),
    Architecture(10),
    Architecture(40),
    Architecture(64, depth=1),
    Architecture(20, activation="sin"),
    Architecture(20, depth=2),
    Architecture(20, depth=5),
    Architecture(32, activation="sin"),
    Architecture(20, activation="gelu"),
    Architecture(20, first=4.0),
    Architecture(20, activation="sin", first=4.0),
    Architecture(20, depth=2, features=1.0),
    Architecture(20, depth=2, features=3.0),
    Architecture(20, depth=2, features=6.0),
)


@dataclasses.dataclass(frozen=True)
class PinnSettings:
    """Everything that determines the results."""

    seeds: int = 2
    """The number of networks with equal settings, at each speed."""
    betas: tuple[float, ...] = (10.0, 20.0, 30.0)
    widths: tuple[int, ...] = (20, 32)
    weights: tuple[float, ...] = (1.0, 10.0, 100.0)
    """Weights of the conditions in the loss. The weight of the equation is one."""
    ramps: tuple[float, ...] = (0.0, 0.7)
    """Fractions of the steps during which the speed grows from zero to β."""
    inside: int = 600
    """The number of points of the equation."""
    side: int = 64
    """The number of points of each condition."""
    steps: int = 8000
    architecture_beta: float = 20.0
    architecture_seeds: int = 3
    every: int = 1
    """Only every n-th architecture is trained."""
    resamples: int = 5000
    """The number of bootstrap resamples."""

    @classmethod
    def quick(cls, seeds: int = 2) -> PinnSettings:
        """Return settings for a quick run, with one speed and width, and fewer architectures, steps and points."""
        return cls(
            seeds=seeds,
            betas=(10.0,),
            widths=(20,),
            inside=400,
            side=48,
            steps=2500,
            architecture_beta=10.0,
            architecture_seeds=2,
            every=4,
        )

    @property
    def networks(self) -> list[dict[str, Any]]:
        """The settings of all networks at one speed."""
        names = ("width", "weight", "ramp", "seed")
        return [
            dict(zip(names, values, strict=True))
            for values in itertools.product(self.widths, self.weights, self.ramps, range(self.seeds))
        ]


def plain(width: int) -> Architecture:
    """Return the architecture of the networks that are trained at every speed, for a width."""
    return Architecture(width)


def check_installed() -> None:
    """Raise an `InputError` if optax is not installed."""
    if importlib.util.find_spec("optax") is None:
        raise ps.errors.InputError("the study pinn needs optax to train networks: pip install 'pilescore[pinn]'")


def compute(settings: PinnSettings, run: StudyRun) -> tuple[xr.Dataset, dict[str, Any]]:
    """Train and score networks at every speed. Then score architectures before training, and train them."""
    check_installed()
    count, total = len(settings.networks), 2 * len(settings.betas) + 2
    tables = [
        _at_speed(settings, beta, count, (2 * number + 1, total), run) for number, beta in enumerate(settings.betas)
    ]
    results = xr.concat(tables, dim=xr.DataArray(list(settings.betas), dims="beta", name="beta"))
    pictures = [run.folder.part(f"pictures-{beta:g}", functools.partial(_pictures, settings, beta, table, run))
                for beta, table in zip(settings.betas, tables, strict=True)]  # fmt: skip
    drawn = xr.concat(pictures, dim=results["beta"])
    architectures = ARCHITECTURES[:: settings.every]
    before = _architectures(settings, architectures, total, run)
    speeds = {f"{beta:g}": _rankings(table, settings) for beta, table in zip(settings.betas, tables, strict=True)}
    numbers: dict[str, Any] = {
        "speeds": speeds,
        "networks": count,
        "points": [settings.inside, settings.side, settings.side],
        "architectures": _architecture_rankings(before, settings),
        "optax": importlib.metadata.version("optax"),
    }
    return xr.merge([results, drawn, before]), numbers | {"checks": _checks(numbers)}


def _at_speed(settings: PinnSettings, beta: float, count: int, step: tuple[int, int], run: StudyRun) -> xr.Dataset:
    """Return the scores and errors of all networks at one speed."""
    run.say(f"[{step[0]}/{step[1]}] β = {beta:g}: training {count} networks, {settings.steps} steps each")
    trained = [_trained(settings, beta, width, run) for width in settings.widths]
    run.say(f"[{step[0] + 1}/{step[1]}] β = {beta:g}: scoring {count} networks")
    tables = [
        run.folder.part(f"scores-{beta:g}-{width}", functools.partial(_scored, settings, beta, plain(width), part))
        for width, part in zip(settings.widths, trained, strict=True)
    ]
    return xr.concat(tables, dim="network").assign(columns(settings.networks, "network"))


def _trained(settings: PinnSettings, beta: float, width: int, run: StudyRun) -> xr.Dataset:
    networks = [each for each in settings.networks if each["width"] == width]
    return _parameters(run, f"trained-{beta:g}-{width}", settings, plain(width), beta, networks)


def _parameters(
    run: StudyRun,
    name: str,
    settings: PinnSettings,
    architecture: Architecture,
    beta: float,
    networks: Sequence[Mapping[str, Any]],
) -> xr.Dataset:
    """Return the parameters of trained networks: read from disk, or trained now."""

    def compute() -> xr.Dataset:
        of = model(beta, settings.inside, settings.side)
        weights, ramps, seeds = ([each[name] for each in networks] for name in ("weight", "ramp", "seed"))
        rows, history = train(architecture, of, beta, weights, ramps, seeds, settings.steps)
        return xr.Dataset({"parameters": (("network", "parameter"), rows), "history": (("network", "chunk"), history)})

    return run.folder.part(name, compute)


def _scored(settings: PinnSettings, beta: float, architecture: Architecture, trained: xr.Dataset) -> xr.Dataset:
    of = model(beta, settings.inside, settings.side)
    rows = [
        {"error": relative_error(architecture, row, beta)} | scores(architecture, row, of)
        if np.isfinite(row).all()
        else dict.fromkeys(("error", *SCORES), math.nan)
        for row in trained["parameters"].values
    ]
    return xr.Dataset(columns(rows, "network"))


def scores(architecture: Architecture, row: Float[np.ndarray, " P"], of: ps.Model) -> dict[str, float]:
    """Return every score of one network."""
    score = functools.partial(ps.network_pile, network(architecture), unflat(architecture, row), of, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.errors.TrainingPointsWarning)  # the report compares both kinds of points
        fresh, last, training = score(), score(parameters="last layer"), score(points="training")
    return {
        **{form: fresh.at(form=form).value for form in BEFORE},
        "last_layer": last.value,
        "training_points": training.value,
        "misfit": fresh.misfit,
        "training_loss": fresh.training_loss,
    }


def _rankings(table: xr.Dataset, settings: PinnSettings) -> dict[str, Any]:
    """Return for each score its rank correlation with the error at one speed, and the error of its best network."""
    error = table["error"].values
    good = np.isfinite(error) & np.all([np.isfinite(table[name].values) for name in SCORES], axis=0)
    error = error[good]
    rankings: dict[str, Any] = {}
    for name in SCORES:
        score = table[name].values[good]
        rankings[name] = rank_correlation(score, error, settings.resamples)
        rankings[name] |= {"chosen_error": float(error[np.argmin(score)])}
        if name != "laplace":
            rankings[name]["behind"] = difference(table["laplace"].values[good], score, error, settings.resamples)
    spread = {"least": error.min(), "median": np.median(error), "largest": error.max()}
    return {
        "scores": rankings,
        "networks": int(good.sum()),
        "failed": int((~good).sum()),
        "errors": {name: float(value) for name, value in spread.items()},
    }


def _pictures(settings: PinnSettings, beta: float, table: xr.Dataset, run: StudyRun) -> xr.Dataset:
    """Return the solution and the networks with the least PILE, the least training loss and the least error."""
    points, truth = grid(beta)
    fields = {"solution": truth}
    for name, column in (("by_laplace", "laplace"), ("by_training_loss", "training_loss"), ("by_error", "error")):
        best = int(np.nanargmin(table[column].values))
        width = int(table["width"][best])
        number = best - int(np.argmax(table["width"].values == width))  # networks are stored by width
        row = _trained(settings, beta, width, run)["parameters"].values[number]
        fields[name] = evaluated(plain(width), row, points)
    t, x = (np.unique(along) for along in points.T)
    pictures = xr.Dataset({name: (("t", "x"), field.reshape(GRID)) for name, field in fields.items()}, {"t": t, "x": x})
    return pictures.isel(t=slice(None, None, 2), x=slice(None, None, 2))


def _architectures(
    settings: PinnSettings, architectures: Sequence[Architecture], total: int, run: StudyRun
) -> xr.Dataset:
    """Return the scores before training and the errors after it, for each architecture and seed."""
    beta, count = settings.architecture_beta, settings.architecture_seeds
    what = f"{len(architectures)} architectures, {counted(count, 'seed')}"
    run.say(f"[{total - 1}/{total}] {what}: scoring before training")
    before = [
        run.folder.part(f"before-{number}", functools.partial(_before, settings, architecture))
        for number, architecture in enumerate(architectures)
    ]
    run.say(f"[{total}/{total}] {what}: training at β = {beta:g}, {settings.steps} steps, and scoring")
    networks = [{"weight": ARCHITECTURE_WEIGHT, "ramp": ARCHITECTURE_RAMP, "seed": seed} for seed in range(count)]
    after = []
    for number, architecture in enumerate(architectures):
        trained = _parameters(run, f"architecture-{number}", settings, architecture, beta, networks)
        after.append(run.folder.part(f"after-{number}", functools.partial(_after, settings, architecture, trained)))
    tables = [first.merge(second) for first, second in zip(before, after, strict=True)]
    labels = [architecture.label for architecture in architectures]
    return xr.concat(tables, dim=xr.DataArray(labels, dims="architecture", name="architecture"))


def _before(settings: PinnSettings, architecture: Architecture) -> xr.Dataset:
    of = model(settings.architecture_beta, settings.inside, settings.side)
    rows = []
    for seed in range(settings.architecture_seeds):
        score = ps.network_pile(network(architecture), architecture.initial(seed), of, progress=False)
        rows.append({f"before_{form}": score.at(form=form).value for form in BEFORE})
    return xr.Dataset(columns(rows, "start") | {"size": np.int32(score.parameters)})


def _after(settings: PinnSettings, architecture: Architecture, trained: xr.Dataset) -> xr.Dataset:
    beta = settings.architecture_beta
    of = model(beta, settings.inside, settings.side)
    rows = []
    for row in trained["parameters"].values:
        rows.append(dict.fromkeys(("error", "laplace", "misfit"), math.nan))
        if np.isfinite(row).all():
            score = ps.network_pile(network(architecture), unflat(architecture, row), of, progress=False)
            error = relative_error(architecture, row, beta)
            rows[-1] = {"error": error, "laplace": score.value, "misfit": score.misfit}
    return xr.Dataset(columns(rows, "start", "after_"))


def _architecture_rankings(scores: xr.Dataset, settings: PinnSettings) -> dict[str, Any]:
    """Return how well scores before and after training rank architectures by their error after training.

    Architectures with a seed whose training failed are left out.
    """
    kept = np.isfinite(scores["after_error"].values).all(axis=1)
    logs = np.log(scores["after_error"].values[kept])
    names = [*(f"before_{form}" for form in BEFORE), "after_laplace", "after_misfit"]
    columns = {name: scores[name].values[kept] for name in names}
    # Minus the number of parameters: as with every score, lower is better.
    columns["size"] = np.repeat(-scores["size"].values[kept].astype(float)[:, None], logs.shape[1], axis=1)
    rankings = {
        name: {
            "architectures": rank_correlation(column.mean(axis=1), np.median(logs, axis=1), settings.resamples),
            "all": rank_correlation(column, logs, settings.resamples),
        }
        for name, column in columns.items()
    }
    rows = [
        {
            "label": str(label),
            "size": int(scores["size"].values[number]),
            **{name: float(scores[name].values[number].mean()) for name in names},
            "errors": [float(value) for value in scores["after_error"].values[number]],
            "error": float(np.exp(np.median(np.log(scores["after_error"].values[number])))),
        }
        for number, label in enumerate(scores["architecture"].values)
    ]
    return {
        "beta": settings.architecture_beta,
        "scores": rankings,
        "rows": rows,
        "networks": int(scores["after_error"].size),
        "failed": int((~np.isfinite(scores["after_error"].values)).sum()),
    }


def _checks(numbers: Mapping[str, Any]) -> list[dict[str, Any]]:
    checks = []
    for beta in EXPECTED_AT:
        of = numbers["speeds"].get(f"{beta:g}")
        if of is not None and of["networks"] >= MIN_NETWORKS:
            value, least = of["scores"]["laplace"]["value"], EXPECTED_CORRELATION
            what = f"β = {beta:g}: rank correlation of PILE (laplace, fresh points) with the true error"
            checks.append(check(f"{what}, {of['networks']} networks", f"at least {least:g}", value, value >= least))
    failed = sum(of["failed"] for of in numbers["speeds"].values()) + numbers["architectures"]["failed"]
    return [*checks, check("networks whose training did not end in finite numbers", "none", failed, failed == 0)]


def spearman(first: Any, second: Any) -> Float[np.ndarray, "..."]:
    """Return the rank correlations along the last axis, with mean ranks for ties; NaN if all values are equal.

    SciPy's `spearmanr` has no batch axis, which the bootstrap needs.

    Examples
    --------
    >>> from pilescore.studies.pinn import spearman
    >>> float(spearman([1.0, 2.0, 3.0], [10.0, 30.0, 20.0]))
    0.5
    """
    a, b = (rankdata(values, axis=-1) for values in (first, second))
    a, b = (ranks - ranks.mean(axis=-1, keepdims=True) for ranks in (a, b))
    spread = np.sqrt((a**2).sum(axis=-1) * (b**2).sum(axis=-1))
    with np.errstate(invalid="ignore"):
        return np.asarray((a * b).sum(axis=-1) / spread)


def rank_correlation(score: np.ndarray, error: np.ndarray, resamples: int) -> dict[str, Any]:
    """Return the rank correlation of a score with the error, and its bootstrap interval.

    Two-dimensional arrays are resampled by rows, because the entries of a row are not independent.
    """
    drawn = _resampled(len(score), resamples)
    flat = (len(drawn), -1)
    correlations = spearman(score[drawn].reshape(flat), error[drawn].reshape(flat))
    return {"value": float(spearman(score.ravel(), error.ravel())), "interval": _interval(correlations)}


def difference(first: np.ndarray, second: np.ndarray, error: np.ndarray, resamples: int) -> dict[str, Any]:
    """Return the difference of the rank correlations of two scores with the error, and its bootstrap interval."""
    drawn = _resampled(len(error), resamples)
    differences = spearman(first[drawn], error[drawn]) - spearman(second[drawn], error[drawn])
    return {"value": float(spearman(first, error) - spearman(second, error)), "interval": _interval(differences)}


def _resampled(count: int, resamples: int) -> np.ndarray:
    """Return indices of bootstrap resamples. The fixed seed makes reports reproducible, and differences paired."""
    return np.random.default_rng(0).integers(0, count, (resamples, count))


def _interval(values: np.ndarray) -> list[float]:
    """Return the central interval of finite values. Resamples of equal values are NaN and are left out."""
    tail, finite = (1 - LEVEL) / 2, values[np.isfinite(values)]
    return [float(end) for end in np.quantile(finite, [tail, 1 - tail])] if finite.size else [float("nan")] * 2


STUDY = Study("pinn", PinnSettings, compute, report)
