"""Physics-informed networks: which number knows, after training and before, which one is right.

Run it with `pilescore study pinn`; it needs the extra `pilescore[pinn]`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import importlib.util
import itertools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import xarray as xr
from jaxtyping import Float

import pilescore as ps

from .pinn_networks import Architecture, Training, evaluated, grid, model, network, relative_error, train, unflat
from .pinn_ranks import difference, rank_correlation
from .pinn_report import report
from .study import Study, Workbench, check, seeds

SCORES = ("laplace", "linearised", "tangent", "last_layer", "training_points", "misfit", "training_loss")
Form = Literal["laplace", "linearised", "tangent"]
BEFORE: tuple[Form, ...] = ("tangent", "linearised", "laplace")
"""Forms that are computed before training."""
SOUND, ENOUGH = 0.8, 20
"""The rank correlation that is expected of the laplace form, and of how many networks at least."""
EXPECTED = (10.0, 20.0)
"""The speeds at which it is expected."""
BUDGET = (1.0, 0.7)
"""The weight of the conditions and the part of the steps with a growing speed, with which architectures are trained."""

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
class Settings:
    """All that the results depend on."""

    seeds: int = 2
    """Networks with the same settings, at each speed."""
    betas: tuple[float, ...] = (10.0, 20.0, 30.0)
    widths: tuple[int, ...] = (20, 32)
    weights: tuple[float, ...] = (1.0, 10.0, 100.0)
    """Of the conditions in the loss, where the equation has one."""
    ramps: tuple[float, ...] = (0.0, 0.7)
    """The part of the steps in which the speed grows to β."""
    inside: int = 600
    """Points at which the equation is imposed."""
    side: int = 64
    """Points for each of the conditions."""
    steps: int = 8000
    architecture_beta: float = 20.0
    architecture_seeds: int = 3
    every: int = 1
    """Which of the architectures are trained: every one, every second one, …"""
    resamples: int = 5000
    """Of the bootstrap."""

    @classmethod
    def quick(cls, seeds: int = 2) -> Settings:
        """Return settings for a first look: one speed, one width, few architectures, fewer steps and points."""
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
        """The settings of each network that is trained at one speed."""
        names = ("width", "weight", "ramp", "seed")
        return [
            dict(zip(names, values, strict=True))
            for values in itertools.product(self.widths, self.weights, self.ramps, range(self.seeds))
        ]


def plain(width: int) -> Architecture:
    """Return the architecture of the networks that are trained at every speed."""
    return Architecture(width)


def check_installed() -> None:
    """Say how to install what trains the networks, where it is missing."""
    if importlib.util.find_spec("optax") is None:
        raise ps.InputError("the study pinn trains networks, for which optax is needed: pip install 'pilescore[pinn]'")


def compute(settings: Settings, bench: Workbench) -> tuple[xr.Dataset, dict[str, Any]]:
    """Train networks at every speed and score them; then score architectures before training, and train them."""
    check_installed()
    count, total = len(settings.networks), 2 * len(settings.betas) + 2
    tables = []
    for number, beta in enumerate(settings.betas):
        tables.append(_at_speed(settings, beta, count, (2 * number + 1, total), bench))
    results = xr.concat(tables, dim=xr.DataArray(list(settings.betas), dims="beta", name="beta"))
    pictures = [bench.folder.part(f"pictures-{beta:g}", functools.partial(_pictures, settings, beta, table, bench))
                for beta, table in zip(settings.betas, tables, strict=True)]  # fmt: skip
    drawn = xr.concat(pictures, dim=results["beta"])
    architectures = ARCHITECTURES[:: settings.every]
    before = _architectures(settings, architectures, total, bench)
    speeds = {f"{beta:g}": _judged(table, settings) for beta, table in zip(settings.betas, tables, strict=True)}
    numbers: dict[str, Any] = {
        "speeds": speeds,
        "networks": count,
        "points": [settings.inside, settings.side, settings.side],
        "architectures": _judged_architectures(before, settings),
        "optax": importlib.metadata.version("optax"),
    }
    return xr.merge([results, drawn, before]), numbers | {"checks": _checks(numbers)}


def _at_speed(settings: Settings, beta: float, count: int, place: tuple[int, int], bench: Workbench) -> xr.Dataset:
    """Return scores and errors of all networks at one speed."""
    bench.say(f"[{place[0]}/{place[1]}] β = {beta:g}: {count} networks are trained, {settings.steps} steps each")
    trained = [_trained(settings, beta, width, bench) for width in settings.widths]
    bench.say(f"[{place[0] + 1}/{place[1]}] β = {beta:g}: {count} networks are scored")
    tables = [
        bench.folder.part(f"scores-{beta:g}-{width}", functools.partial(_scored, settings, beta, plain(width), found))
        for width, found in zip(settings.widths, trained, strict=True)
    ]
    columns = {name: ("network", [each[name] for each in settings.networks]) for name in settings.networks[0]}
    return xr.concat(tables, dim="network").assign(columns)


def _trained(settings: Settings, beta: float, width: int, bench: Workbench) -> xr.Dataset:
    mine = [each for each in settings.networks if each["width"] == width]
    weights, ramps, starts = ([each[name] for each in mine] for name in ("weight", "ramp", "seed"))
    return _kept(bench, f"trained-{beta:g}-{width}", settings, plain(width), beta, weights, ramps, starts)


def _kept(
    bench: Workbench,
    name: str,
    settings: Settings,
    architecture: Architecture,
    beta: float,
    weights: Sequence[float],
    ramps: Sequence[float],
    starts: Sequence[int],
) -> xr.Dataset:
    """Return the parameters of trained networks, as they are on disk or else trained now."""

    def compute() -> xr.Dataset:
        of = model(beta, settings.inside, settings.side)
        rows, history = train(architecture, of, beta, weights, ramps, starts, Training(settings.steps))
        return xr.Dataset({"parameters": (("network", "parameter"), rows), "history": (("network", "chunk"), history)})

    return bench.folder.part(name, compute)


def _scored(settings: Settings, beta: float, architecture: Architecture, trained: xr.Dataset) -> xr.Dataset:
    of = model(beta, settings.inside, settings.side)
    rows = [
        {"error": relative_error(architecture, row, beta)} | scores(architecture, row, of)
        if np.isfinite(row).all()
        else dict.fromkeys(("error", *SCORES), float("nan"))
        for row in trained["parameters"].values
    ]
    return xr.Dataset({name: ("network", [row[name] for row in rows]) for name in ("error", *SCORES)})


def scores(architecture: Architecture, row: Float[np.ndarray, " P"], of: ps.Model) -> dict[str, float]:
    """Return every score of one network."""
    score = functools.partial(ps.network_pile, network(architecture), unflat(architecture, row), of, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.TrainingPointsWarning)  # what comes of training points is shown
        fresh, last, training = score(), score(parameters="last layer"), score(points="training")
    forms: dict[str, float] = {form: fresh.at(form=form).value for form in BEFORE}
    return {
        **forms,
        "last_layer": last.value,
        "training_points": training.value,
        "misfit": fresh.misfit,
        "training_loss": fresh.training_loss,
    }


def _judged(table: xr.Dataset, settings: Settings) -> dict[str, Any]:
    """Return how well each score ranks the networks at one speed, and the error of the one it would choose."""
    error = table["error"].values
    good = np.isfinite(error) & np.all([np.isfinite(table[name].values) for name in SCORES], axis=0)
    error = error[good]
    judged: dict[str, Any] = {}
    for name in SCORES:
        mine = table[name].values[good]
        judged[name] = rank_correlation(mine, error, settings.resamples)
        judged[name] |= {"chosen_error": float(error[np.argmin(mine)])}
        if name != "laplace":
            judged[name]["behind"] = difference(table["laplace"].values[good], mine, error, settings.resamples)
    spread = {"least": error.min(), "median": np.median(error), "largest": error.max()}
    return {
        "scores": judged,
        "networks": int(good.sum()),
        "failed": int((~good).sum()),
        "errors": {name: float(value) for name, value in spread.items()},
    }


def _pictures(settings: Settings, beta: float, table: xr.Dataset, bench: Workbench) -> xr.Dataset:
    """Return the solution, and the networks with the least PILE, the least training loss and the least error."""
    points, truth = grid(beta)
    shape = (len(np.unique(points[:, 0])), len(np.unique(points[:, 1])))
    shown = (slice(None, None, 2), slice(None, None, 2))
    fields = {"solution": truth}
    for name, column in (("by_laplace", "laplace"), ("by_training_loss", "training_loss"), ("by_error", "error")):
        place = int(np.nanargmin(table[column].values))
        width = int(table["width"][place])
        number = place - int(np.argmax(table["width"].values == width))
        row = _trained(settings, beta, width, bench)["parameters"].values[number]
        fields[name] = evaluated(plain(width), row, points)
    return xr.Dataset(
        {name: (("t", "x"), field.reshape(shape)[shown]) for name, field in fields.items()},
        {"t": np.unique(points[:, 0])[::2], "x": np.unique(points[:, 1])[::2]},
    )


def _architectures(
    settings: Settings, architectures: Sequence[Architecture], total: int, bench: Workbench
) -> xr.Dataset:
    """Return evidence before training and errors after it, by architecture and seed."""
    beta, count = settings.architecture_beta, settings.architecture_seeds
    bench.say(f"[{total - 1}/{total}] {len(architectures)} architectures, {seeds(count)}: scored before training")
    before = [
        bench.folder.part(f"before-{number}", functools.partial(_before, settings, architecture))
        for number, architecture in enumerate(architectures)
    ]
    what = f"{len(architectures)} architectures, {seeds(count)}: trained at β = {beta:g}, {settings.steps} steps each"
    bench.say(f"[{total}/{total}] {what}, and scored")
    after = []
    for number, architecture in enumerate(architectures):
        weights, ramps = [[value] * count for value in BUDGET]
        found = _kept(bench, f"architecture-{number}", settings, architecture, beta, weights, ramps, list(range(count)))
        after.append(bench.folder.part(f"after-{number}", functools.partial(_after, settings, architecture, found)))
    tables = [first.merge(second) for first, second in zip(before, after, strict=True)]
    labels = xr.DataArray([each.label for each in architectures], dims="architecture", name="architecture")
    return xr.concat(tables, dim=labels)


def _before(settings: Settings, architecture: Architecture) -> xr.Dataset:
    of = model(settings.architecture_beta, settings.inside, settings.side)
    columns: dict[str, list[float]] = {f"before_{form}": [] for form in BEFORE}
    for seed in range(settings.architecture_seeds):
        found = ps.network_pile(network(architecture), architecture.initial(seed), of, progress=False)
        for form in BEFORE:
            columns[f"before_{form}"].append(found.at(form=form).value)
    return xr.Dataset(
        {name: ("start", column) for name, column in columns.items()} | {"size": np.int32(found.parameters)}
    )


def _after(settings: Settings, architecture: Architecture, trained: xr.Dataset) -> xr.Dataset:
    beta = settings.architecture_beta
    of = model(beta, settings.inside, settings.side)
    columns: dict[str, list[float]] = {"after_error": [], "after_laplace": [], "after_misfit": []}
    for row in trained["parameters"].values:
        finite = bool(np.isfinite(row).all())
        columns["after_error"].append(relative_error(architecture, row, beta) if finite else float("nan"))
        found = None
        if finite:
            found = ps.network_pile(network(architecture), unflat(architecture, row), of, progress=False)
        columns["after_laplace"].append(float("nan") if found is None else found.value)
        columns["after_misfit"].append(float("nan") if found is None else found.misfit)
    return xr.Dataset({name: ("start", column) for name, column in columns.items()})


def _judged_architectures(found: xr.Dataset, settings: Settings) -> dict[str, Any]:
    """Return how well evidence before training, and scores after it, rank architectures by the error they reach.

    An architecture in which the training of a seed failed is left out.
    """
    kept = np.isfinite(found["after_error"].values).all(axis=1)
    logs = np.log(found["after_error"].values[kept])
    names = [*(f"before_{form}" for form in BEFORE), "after_laplace", "after_misfit"]
    columns = {name: found[name].values[kept] for name in names}
    columns["size"] = np.repeat(-found["size"].values[kept].astype(float)[:, None], logs.shape[1], axis=1)
    judged = {
        name: {
            "architectures": rank_correlation(column.mean(axis=1), np.median(logs, axis=1), settings.resamples),
            "all": rank_correlation(column, logs, settings.resamples),
        }
        for name, column in columns.items()
    }
    rows = [
        {
            "label": str(label),
            "size": int(found["size"].values[number]),
            **{name: float(found[name].values[number].mean()) for name in names},
            "errors": [float(value) for value in found["after_error"].values[number]],
            "error": float(np.exp(np.median(np.log(found["after_error"].values[number])))),
        }
        for number, label in enumerate(found["architecture"].values)
    ]
    return {
        "beta": settings.architecture_beta,
        "scores": judged,
        "rows": rows,
        "networks": int(found["after_error"].size),
        "failed": int((~np.isfinite(found["after_error"].values)).sum()),
    }


def _checks(numbers: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = []
    for beta in EXPECTED:
        of = numbers["speeds"].get(f"{beta:g}")
        if of is not None and of["networks"] >= ENOUGH:
            value = of["scores"]["laplace"]["value"]
            what = f"β = {beta:g}: rank correlation of PILE (laplace, fresh points) with the true error"
            found.append(check(f"{what}, {of['networks']} networks", f"at least {SOUND:g}", value, value >= SOUND))
    failed = sum(of["failed"] for of in numbers["speeds"].values()) + numbers["architectures"]["failed"]
    found.append(check("networks whose training did not end in finite numbers", "none", failed, failed == 0))
    return found


STUDY = Study("pinn", compute, report)
