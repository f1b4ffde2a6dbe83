"""The Poisson study: PILE chooses the bandwidth and the noise levels from noisy values of f and Δf on a grid.

Run it with `pilescore study poisson`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array

import pilescore as ps

from .poisson_report import report
from .runner import Study, StudyRun, at, check, columns, counted, plane, prefixed

SQUARE = ps.Box(x=(-1, 1), y=(-1, 1))
LAPLACIAN = ps.laplacian(SQUARE)
FINE = SQUARE.interior(ps.GaussLegendre(30))
"""The nodes at which true errors are computed."""
NAMES = {"bandwidth": "kernel.bandwidth", "rho": "rho", "gamma": "gamma"}
RULES = {
    "PILE": "pile",
    "leave-one-out": "leave_one_out",
    "training data loss": "data_loss",
    "training physics loss": "physics_loss",
}
ERRORS = ("R_data", "R_phys")
START = {"kernel.bandwidth": 1.0, "gamma": 1.0, "rho": 0.1, "eta": 1.0}
BOUNDS = {"kernel.bandwidth": (0.05, 5.0), "gamma": (1e-3, 1e3), "rho": (1e-5, 1e3), "eta": (1e-3, 1e5)}


@dataclasses.dataclass(frozen=True)
class PoissonSettings:
    """Everything that determines the results."""

    seeds: int = 10
    side: int = 13
    """Nodes along each side of the grid."""
    values: int = 25
    """Values of each hyperparameter in its sweep."""
    picture: int = 41
    """Points along each side of the pictures."""

    @classmethod
    def quick(cls, seeds: int = 3) -> PoissonSettings:
        """Return settings for a quick run, with fewer seeds and values."""
        return cls(seeds=seeds, values=13)


def forcing(p: Array) -> Array:
    """Evaluate `g = 10 + 10 sin 2πx sin 2πy`."""
    return 10 + 10 * jnp.sin(2 * jnp.pi * p[0]) * jnp.sin(2 * jnp.pi * p[1])


def solution(p: Array, terms: int = 40) -> Array:
    """Evaluate the solution of `Δf = g`, `f = 0` on the boundary of the square.

    The constant part of the forcing gives the torsion function of the square, a series of cosines in y. The rest is an
    eigenfunction of the Laplacian.
    """
    k = 2 * jnp.arange(terms) + 1
    a = 0.5 * jnp.pi * k
    sign = 1 - 2.0 * (jnp.arange(terms) % 2)
    # cosh ax / cosh a, with decaying exponentials only: cosh overflows for large a.
    ratio = (jnp.exp(a * (p[0] - 1)) + jnp.exp(-a * (p[0] + 1))) / (1 + jnp.exp(-2 * a))
    torsion = -0.5 * (1 - p[1] ** 2) + jnp.sum(2 * sign / a**3 * ratio * jnp.cos(a * p[1]))
    wave = -10 / (8 * jnp.pi**2) * jnp.sin(2 * jnp.pi * p[0]) * jnp.sin(2 * jnp.pi * p[1])
    return 10 * torsion + wave


def model(bandwidth: float | int, seed: int = 0, side: int = 13) -> ps.Model:
    """Return a model with f and Δf on a Chebyshev grid, both with noise N(0, 1), and the true temperatures."""
    nodes = SQUARE.interior(ps.quadrature.Chebyshev(side))
    rng = np.random.default_rng(seed)
    values, sources = (at(f, nodes.points) + rng.standard_normal(len(nodes)) for f in (solution, forcing))
    # The noise variances are γ/2 and ρ/2w, where w is the quadrature weight: both are one.
    return ps.Model(
        kernel=ps.RBF(bandwidth=bandwidth),
        data=ps.observe(ps.identity, values=values, at=nodes.points),
        physics=ps.impose(LAPLACIAN, sources, on=nodes),
        gamma=2.0,
        rho=2.0 * float(nodes.weights[0]),
    )


def true_errors(model: ps.Model | ps.Posterior) -> dict[str, float]:
    """Return `R_data` and `R_phys` of a model."""
    errors = ps.accuracy(model, solution, FINE, LAPLACIAN, operator_truth=forcing)
    assert errors.physics is not None
    return dict(zip(ERRORS, (errors.data.value, errors.physics.value), strict=True))


def compute(settings: PoissonSettings, run: StudyRun) -> tuple[xr.Dataset, dict[str, Any]]:
    """Sweep the hyperparameters one by one, minimise over all of them, and compute the true errors."""
    weight = float(SQUARE.interior(ps.quadrature.Chebyshev(settings.side)).weights[0])
    grids = {
        "bandwidth": np.geomspace(0.1, 1.5, settings.values),
        "rho": 2 * weight * np.geomspace(1e-3, 1e2, settings.values),
        "gamma": 2 * np.geomspace(1e-3, 1e2, settings.values),
    }
    models = [model(0.4, seed, settings.side) for seed in range(settings.seeds)]
    results, sweeps = xr.Dataset(), {}
    for number, (short, grid) in enumerate(grids.items(), 1):
        run.say(f"[{number}/5] sweep over {short}: {len(grid)} values, {counted(settings.seeds, 'seed')}")
        scores = _sweep(run, short, grid, models)
        chosen = {rule: scores[column].idxmin(short).values.tolist() for rule, column in RULES.items()}
        sweeps[short] = _judged(scores, short, chosen)
        models = [m.replace({NAMES[short]: value}) for m, value in zip(models, chosen["PILE"], strict=True)]
        results = results.merge(prefixed(scores, short))
    run.say(f"[4/5] joint minimisation over bandwidth, gamma, rho and eta, {counted(settings.seeds, 'seed')}")
    joint = _joint(settings, run, weight)
    run.say("[5/5] fits")
    fits = run.folder.part("fits", lambda: _fits(settings, sweeps["bandwidth"]["PILE"]["chosen"][0]))
    results = results.merge(joint).merge(fits)
    numbers = {"sweeps": sweeps, "joint": _joint_numbers(joint), "fits": _fit_numbers(fits)}
    return results, numbers | {"true": {"gamma": 2.0, "rho": 2 * weight}, "checks": _checks(numbers)}


def _sweep(run: StudyRun, short: str, grid: np.ndarray, models: list[ps.Model]) -> xr.Dataset:
    return run.sweep(
        short,
        lambda seed: models[seed],
        {NAMES[short]: grid},
        seeds=range(len(models)),
        known=ps.KnownSolution(solution, on=FINE, operator=LAPLACIAN, operator_truth=forcing),
        losses=True,
    )


def _judged(scores: xr.Dataset, short: str, chosen: dict[str, list[float]]) -> dict[str, Any]:
    """Return the choice of each rule, its true errors, and their ratio to the best errors of the sweep (regret)."""
    best = {error: float(scores[error].min(short).mean()) for error in ERRORS}
    judged: dict[str, Any] = {"best in the sweep": best}
    for rule, values in chosen.items():
        there = scores.sel({short: xr.DataArray(values, dims="seed")})  # each seed at its own choice
        judged[rule] = {
            "chosen": values,
            "mean": float(np.mean(values)),
            "pile": float(there["pile"].mean()),
            **{error: float(there[error].mean()) for error in ERRORS},
            **{f"{error}_deviation": float(there[error].std(ddof=min(1, len(values) - 1))) for error in ERRORS},
            **{f"{error}_regret": float(there[error].mean()) / best[error] for error in ERRORS},
        }
    return judged


def _joint(settings: PoissonSettings, run: StudyRun, weight: float) -> xr.Dataset:
    rows = []
    for seed in range(settings.seeds):
        start = model(1.0, seed, settings.side)
        minimum = run.minimize(f"joint-{seed}", start, BOUNDS, START)
        values = minimum["end"].to_series().to_dict()
        rows.append(
            {name.removeprefix("kernel."): value for name, value in values.items()}
            | {"noise_variance_f": values["gamma"] / 2, "noise_variance_laplacian": values["rho"] / (2 * weight)}
            | {"pile": float(minimum["pile"]), **true_errors(start.replace(values))}
            | {"evaluations": int(minimum["evaluations"])}
        )
    return xr.Dataset(columns(rows, "seed", "joint_"), {"seed": np.arange(settings.seeds, dtype=np.int32)})


def _joint_numbers(joint: xr.Dataset) -> dict[str, Any]:
    by_seed = {str(name).removeprefix("joint_"): column.values.tolist() for name, column in joint.items()}
    return {"mean": {name: float(np.mean(values)) for name, values in by_seed.items()}, "by_seed": by_seed}


def _fits(settings: PoissonSettings, chosen: float) -> xr.Dataset:
    """Return the posteriors of seed 0 for a bandwidth that is too small, chosen or too large, and the truth."""
    side = np.linspace(-1, 1, settings.picture)
    points, shape = plane(side, side), (settings.picture, settings.picture)
    fits = {"under-smoothed": 0.1, "chosen": chosen, "over-smoothed": 1.5}
    first = model(chosen, 0, settings.side)
    pictures: dict[str, Any] = {"fit_bandwidth": ("fit", list(fits.values()))}
    posteriors = [ps.posterior(first.replace({"kernel.bandwidth": bandwidth})) for bandwidth in fits.values()]
    nodes = first.data[0].points
    ordered = np.lexsort((nodes[:, 1], nodes[:, 0])).reshape(settings.side, settings.side)
    for suffix, operator, exact, block in (
        ("", ps.identity, solution, first.data[0]),
        ("_laplacian", LAPLACIAN, forcing, first.physics[0]),
    ):
        means = np.array([post.mean(points, operator) for post in posteriors])
        deviations = np.array([post.std(points, operator) for post in posteriors])
        truth = at(exact, points)
        within = np.mean(np.abs(means - truth) <= 2 * deviations, axis=1)
        pictures |= {
            f"truth{suffix}": (("x", "y"), truth.reshape(shape)),
            f"fit_mean{suffix}": (("fit", "x", "y"), means.reshape(-1, *shape)),
            f"fit_deviation{suffix}": (("fit", "x", "y"), deviations.reshape(-1, *shape)),
            f"fit_within_two_deviations{suffix}": ("fit", within),
            f"measured{suffix}": (("node_x", "node_y"), block.values[ordered]),
        }
    pictures |= columns([true_errors(post) for post in posteriors], "fit", "fit_")
    along = np.unique(nodes[:, 0])
    return xr.Dataset(pictures, {"x": side, "y": side, "node_x": along, "node_y": along, "fit": list(fits)})


def _fit_numbers(fits: xr.Dataset) -> dict[str, Any]:
    names = ("bandwidth", *ERRORS, "within_two_deviations", "within_two_deviations_laplacian")
    return {str(fit): {name: float(fits[f"fit_{name}"].sel(fit=fit)) for name in names} for fit in fits["fit"].values}


def _checks(numbers: dict[str, Any]) -> list[dict[str, Any]]:
    chosen = numbers["sweeps"]["bandwidth"]["PILE"]
    regrets = {error: chosen[f"{error}_regret"] for error in ERRORS}
    joint = numbers["joint"]["mean"]
    span = [min(chosen["chosen"]), max(chosen["chosen"])]
    return [
        check("bandwidth chosen by PILE, smallest and largest over seeds", "within [0.3, 0.5]", span,
              span[0] >= 0.3 and span[1] <= 0.5),
        *(
            check(f"mean {error} at PILE's bandwidth, relative to the best in the sweep", "at most 1.5", regret,
                  regret <= 1.5)
            for error, regret in regrets.items()
        ),
        *(
            check(f"noise variance of {what} from the joint minimisation", "between 0.5 and 2 (true: 1)", joint[name],
                  0.5 <= joint[name] <= 2)
            for what, name in (("f", "noise_variance_f"), ("Δf", "noise_variance_laplacian"))
        ),
    ]  # fmt: skip


STUDY = Study("poisson", PoissonSettings, compute, report)
