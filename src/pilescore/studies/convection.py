"""The convection study: isotropic kernels fail, and PILE finds a kernel that suits the equation.

Run it with `pilescore study convection`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from scipy.stats import qmc

import pilescore as ps

from .convection_report import PUBLISHED, TRAINING, report
from .runner import Study, StudyRun, check, columns, counted, plane, prefixed

STRIP = ps.Box(t=(0, 1), x=(0, 2 * math.pi))
DT, DX = ps.partials(STRIP)
NOISES = (1.0, 0.1)
RHO = 0.02
STARTS = {
    "kernel.theta": (0.0, math.pi),
    "kernel.s": (0.5, 1.5),
    "kernel.bandwidth": (0.1, 1.0),
    "gamma": (0.01, 1.0),
    "rho": (0.01, 1.0),
}
"""Ranges of generic starts: uniform in the angle, logarithmic in the rest. η starts at 1."""
BOUNDS = {
    "kernel.theta": (-math.pi, 2 * math.pi),
    "kernel.s": (1 / 200, 200.0),
    "kernel.bandwidth": (0.02, 20.0),
    "gamma": (1e-4, 10.0),
    "rho": (1e-6, 1e3),
    "eta": (1e-3, 1e3),
}
SEED_OF_STARTS = 0
MIN_DISTANCE = 0.1
"""The smallest distance of a generic start from the characteristic direction, in radians."""


@dataclasses.dataclass(frozen=True)
class ConvectionSettings:
    """Everything that determines the results."""

    seeds: int = 5
    beta: float = 30.0
    data: int = 1000
    side: int = 20
    """Nodes of the equation along each side."""
    bandwidths: int = 17
    angles: int = 121
    stretches: int = 41
    starts: int = 8
    picture: int = 61
    """Points along each side of the pictures."""

    @classmethod
    def quick(cls, seeds: int = 1, beta: float = 30.0) -> ConvectionSettings:
        """Return settings for a quick run, with fewer data, nodes and values."""
        return cls(seeds=seeds, beta=beta, data=500, side=14, bandwidths=11, angles=61, starts=5)


def solution(beta: float) -> Callable[[Array], Array]:
    """Return the function `f = sin(x − βt)`."""
    return lambda p: jnp.sin(p[1] - beta * p[0])


def residual(beta: float, side: int) -> ps.Observation:
    """Return the equation `f_t + β f_x = 0`, imposed on side² nodes."""
    return ps.impose(DT + beta * DX, 0.0, on=STRIP.interior(ps.GaussLegendre(side)))


def model(kernel: ps.Kernel, noise: float, seed: int, settings: ConvectionSettings) -> ps.Model:
    """Return a model with random points and noise, and the true data temperature."""
    rng = np.random.default_rng(seed)
    points = rng.uniform([0, 0], [1, 2 * math.pi], (settings.data, 2))
    values = np.sin(points[:, 1] - settings.beta * points[:, 0]) + noise * rng.standard_normal(settings.data)
    return ps.Model(
        kernel=kernel,
        data=ps.observe(ps.identity, values=values, at=points),
        physics=residual(settings.beta, settings.side),
        gamma=2 * noise**2,
        rho=RHO,
    )


def canonical(theta: float, s: float) -> tuple[float, float]:
    """Return `θ` and `s` of the same kernel with `s ≤ 1` and `0 ≤ θ < π`: long along θ, short across it."""
    if s > 1:
        theta, s = theta + math.pi / 2, 1 / s
    return theta % math.pi, s


def apart(theta: float, other: float) -> float:
    """Return the distance between two directions, that is angles modulo π."""
    return abs((theta - other + math.pi / 2) % math.pi - math.pi / 2)


def generic_starts(count: int, beta: float, seed: int = SEED_OF_STARTS) -> list[dict[str, float]]:
    """Return starts from a Sobol sequence, without starts close to the characteristic direction."""
    low, high = np.array(list(STARTS.values())).T
    by_log = np.array([name != "kernel.theta" for name in STARTS])
    low[by_log], high[by_log] = np.log(low[by_log]), np.log(high[by_log])
    # A Sobol sequence is balanced only for powers of two. Eight times as many points leave enough after filtering.
    points = qmc.scale(qmc.Sobol(len(STARTS), rng=seed).random(8 * 2 ** math.ceil(math.log2(count))), low, high)
    points[:, by_log] = np.exp(points[:, by_log])
    starts = [dict(zip(STARTS, map(float, point), strict=True)) | {"eta": 1.0} for point in points]
    return [start for start in starts if _far(start, math.atan(beta))][:count]


def _far(start: Mapping[str, float], direction: float) -> bool:
    angles = (start["kernel.theta"], canonical(start["kernel.theta"], start["kernel.s"])[0])
    return all(apart(angle, direction) > MIN_DISTANCE for angle in angles)


def compute(settings: ConvectionSettings, run: StudyRun) -> tuple[xr.Dataset, dict[str, Any]]:
    """Sweep an isotropic kernel, find and sweep an oriented one, and minimise over all hyperparameters."""
    seeds = counted(settings.seeds, "seed")
    what = f"{settings.bandwidths} bandwidths, noise 1 and 0.1, {seeds}"
    run.say(f"[1/6] isotropic kernel: {what}")
    isotropic = _sweeps("isotropic", ps.RBF(1.0), settings, run)
    run.say(
        f"[2/6] data-free landscapes: {settings.angles} × {settings.stretches} kernels, β = {settings.beta:g} and 2π"
    )
    landscapes, landscape = _landscapes(settings, run)
    direction = landscape["equation"]["refined"]
    oriented = ps.AnisotropicRBF(theta=direction["theta"], s=direction["s"])
    run.say(f"[3/6] oriented kernel: {what}")
    anisotropic = _sweeps("anisotropic", oriented, settings, run)
    numbers: dict[str, Any] = {
        "direction": math.atan(settings.beta),
        "isotropic": _judged(isotropic),
        "landscape": landscape,
        "published": {str(beta): dict(zip(TRAINING, errors, strict=True)) for beta, errors in PUBLISHED.items()},
        "anisotropic": _judged(anisotropic),
    }
    run.say(f"[4/6] joint minimisation from {settings.starts} generic starts")
    generic = [
        _minimised(f"generic-{i}", start, 0, settings, run)
        for i, start in enumerate(generic_starts(settings.starts, settings.beta))
    ]
    run.say(f"[5/6] joint minimisation from the data-free choice, {seeds}")
    informed = []
    for seed, bandwidth in enumerate(numbers["anisotropic"]["0.1"]["chosen"]):
        start = {"kernel.theta": direction["theta"], "kernel.s": direction["s"], "kernel.bandwidth": bandwidth}
        start |= {"gamma": 2 * 0.1**2, "rho": RHO, "eta": 1.0}
        informed.append(_minimised(f"informed-{seed}", start, seed, settings, run))
    numbers["joint"] = _joint_numbers(generic, informed) | {"seed_of_starts": SEED_OF_STARTS}
    run.say("[6/6] fits")
    fits = run.folder.part("fits", lambda: _fits(settings, numbers, oriented))
    results = xr.merge(
        [
            prefixed(isotropic, "isotropic"),
            prefixed(anisotropic, "anisotropic"),
            landscapes,
            fits,
            _stacked("generic", "start", generic),
            _stacked("informed", "seed", informed),
        ]
    )
    return results, numbers | {"checks": _checks(settings, numbers)}


def _sweeps(name: str, kernel: ps.Kernel, settings: ConvectionSettings, run: StudyRun) -> xr.Dataset:
    """Return sweeps over the bandwidth, for each noise."""
    sweeps = [
        run.sweep(
            f"{name}-{noise:g}",
            lambda seed, noise=noise: model(kernel, noise, seed, settings),
            {"kernel.bandwidth": np.geomspace(0.05, 5.0, settings.bandwidths)},
            seeds=range(settings.seeds),
            known=ps.KnownSolution(solution(settings.beta), scale=_scale(settings)),
        )
        for noise in NOISES
    ]
    return xr.concat(sweeps, xr.DataArray(list(NOISES), dims="noise", name="noise"), combine_attrs="drop")


def _scale(settings: ConvectionSettings) -> float:
    """Return `β²∫f_x²`. The truth satisfies the equation, so its residual cannot scale errors in the equation."""
    return settings.beta**2 * math.pi


def _judged(sweeps: xr.Dataset) -> dict[str, Any]:
    """Return the choice of PILE for each noise, its errors, and the best errors of the sweep."""
    judged = {}
    for noise in NOISES:
        scores = sweeps.sel(noise=noise)
        chosen = scores["pile"].idxmin("bandwidth")
        there = scores.sel(bandwidth=chosen)
        error = scores["R_data_relative_l2"].mean("seed")
        wide = scores["pile"].sel(bandwidth=scores["bandwidth"] >= 0.1)
        judged[f"{noise:g}"] = {
            "chosen": chosen.values.tolist(),
            "mean": float(chosen.mean()),
            "pile": float(there["pile"].mean()),
            "R_data": float(there["R_data"].mean()),
            "R_phys": float(there["R_phys"].mean()),
            "relative_l2": float(there["R_data_relative_l2"].mean()),
            "best_bandwidth": float(error.idxmin()),
            "best_relative_l2": float(error.min()),
            "R_phys_there": float(scores["R_phys"].sel(bandwidth=error.idxmin()).mean()),
            "works": bool(((error < 0.25) & (scores["R_phys"].mean("seed") < 0.25)).any()),
            "pile_decreases_from_0.1": bool((wide.diff("bandwidth") < 0).all()),
        }
    return judged


def _landscapes(settings: ConvectionSettings, run: StudyRun) -> tuple[xr.Dataset, dict[str, Any]]:
    """Return the data-free scores and their minima, for this equation and for β = 2π."""
    angles = np.linspace(-math.pi, math.pi, settings.angles)
    stretches = np.linspace(0.5, 1.5, settings.stretches)
    grid = {"kernel.theta": angles, "kernel.s": stretches}
    landscapes, numbers = [], {}
    for name, beta in (("equation", settings.beta), ("two_pi", 2 * math.pi)):
        equation = residual(beta, settings.side)
        model = ps.Model(ps.AnisotropicRBF(theta=0.0, s=0.5), physics=equation, rho=1.0)
        score = functools.partial(ps.data_free_landscape, model, grid)
        scores = run.folder.part(f"landscape-{name}", score).rename({"kernel.theta": "theta", "kernel.s": "s"})
        numbers[name] = _lowest(scores["value"], beta, equation, run)
        landscapes.append(prefixed(scores, f"landscape_{name}"))
    return xr.merge(landscapes), numbers


def _lowest(values: xr.DataArray, beta: float, equation: ps.Observation, run: StudyRun) -> dict[str, Any]:
    """Return the minimum of a landscape, its refinement by gradient, and how well the symmetries hold."""
    lowest = values[values.argmin(...)]
    theta, s = float(lowest["theta"]), float(lowest["s"])
    step = float(values["theta"][1] - values["theta"][0])
    half = len(values["theta"]) // 2  # the angles span a whole turn, both ends included
    shifted = np.abs(values.values[half:] - values.values[: len(values["theta"]) - half]).max() / float(values.max())
    family = run.with_solver(ps.Model(ps.AnisotropicRBF(theta=theta, s=s), physics=equation, rho=1.0))
    there = ps.data_free_pile(family)
    # (θ + π/2, 1/s) is the same kernel.
    image = ps.data_free_pile(family.replace({"kernel.theta": theta + math.pi / 2, "kernel.s": 1 / s}))
    bounds = {"kernel.theta": (theta - step, theta + step), "kernel.s": (0.5, 1.5)}
    refined = ps.minimize(family, bounds, score="joint", run=ps.RunOptions(client=run.client, progress=False))
    return {
        "beta": beta,
        "arctan_beta": math.atan(beta),
        "theta": theta,
        "s": s,
        "step": step,
        "value": float(values.min()),
        "largest": float(values.max()),
        "distance": apart(theta, math.atan(beta)),
        "resolution_error": there.error,
        "resolution": there.status,
        "change_by_half_turn": float(shifted),
        "change_by_quarter_turn_and_inverse": abs(image.value - there.value) / abs(there.value),
        "refined": {"theta": refined.values["kernel.theta"] % math.pi, "s": refined.values["kernel.s"]},
    }


def _minimised(
    name: str, start: Mapping[str, float], seed: int, settings: ConvectionSettings, run: StudyRun
) -> dict[str, Any]:
    """Return the end of a joint minimisation of PILE and its true errors."""
    first = model(ps.AnisotropicRBF(theta=1.0, s=1.0), 0.1, seed, settings)
    minimum = run.minimize(name, first, BOUNDS, start)
    values = minimum["end"].to_series().to_dict()
    theta, s = canonical(values["kernel.theta"], values["kernel.s"])
    on, operator = STRIP.interior(ps.GaussLegendre(30)), DT + settings.beta * DX
    errors = ps.accuracy(first.replace(values), solution(settings.beta), on, operator, scale=_scale(settings))
    assert errors.physics is not None
    return {
        **{f"start_{name.removeprefix('kernel.')}": start[name] for name in STARTS},
        **{name.removeprefix("kernel."): values[name] for name in BOUNDS},
        "theta": theta,
        "s": s,
        "pile": float(minimum["pile"]),
        "rounding": float(minimum["rounding"]),
        "noise_variance": values["gamma"] / 2,
        "off": apart(theta, math.atan(settings.beta)),
        "relative_l2": errors.data.relative_l2,
        "R_data": errors.data.value,
        "R_phys": errors.physics.value,
        "evaluations": int(minimum["evaluations"]),
        "status": str(minimum["status"].values),
        "at_bounds": _at_bounds(minimum, inverted=values["kernel.s"] > 1),
        "path": minimum["path"].values,
        "values": values,
    }


def _at_bounds(minimum: xr.Dataset, inverted: bool) -> str:
    """Return the hyperparameters at their bounds. If `canonical` inverted s, its bounds change places."""
    bounds = minimum["at_bound"].to_series().to_dict()
    if inverted:
        bounds["kernel.s"] = {"lower": "upper", "upper": "lower", "": ""}[bounds["kernel.s"]]
    return ", ".join(f"{name.removeprefix('kernel.')} {bound}" for name, bound in bounds.items() if bound)


def _stacked(prefix: str, dimension: str, rows: list[dict[str, Any]]) -> xr.Dataset:
    """Return the rows as a dataset; shorter paths are padded with NaN."""
    paths = np.array(list(itertools.zip_longest(*(row["path"] for row in rows), fillvalue=np.nan)))
    numbers = [{name: value for name, value in row.items() if name not in ("path", "values")} for row in rows]
    return xr.Dataset(
        columns(numbers, dimension, f"{prefix}_") | {f"{prefix}_path": ((dimension, f"{prefix}_step"), paths.T)},
        {dimension: np.arange(len(rows), dtype=np.int32)},
    )


def _joint_numbers(generic: list[dict[str, Any]], informed: list[dict[str, Any]]) -> dict[str, Any]:
    generic, informed = (
        [{name: value for name, value in row.items() if name != "path"} for row in rows] for rows in (generic, informed)
    )
    best = min(generic, key=lambda row: row["pile"])
    # The wave has the variance ½: a model that explains it as noise finds about this noise, and an error near one.
    collapsed = [row for row in generic if row["noise_variance"] > 0.25 and row["relative_l2"] > 0.9]
    rejected = min(collapsed, key=lambda row: row["pile"]) if collapsed and best not in collapsed else None
    averaged = ("relative_l2", "noise_variance", "off", "pile", "R_data", "R_phys")
    return {
        "generic": generic,
        "informed": informed,
        "best": best,
        "best_start": generic.index(best),
        "reached": sum(row["off"] < 0.005 and row["relative_l2"] < 0.1 for row in generic),
        "collapsed": rejected,
        "collapsed_starts": len(collapsed),
        "collapsed_gap": rejected["pile"] - best["pile"] if rejected else None,
        "informed_mean": {name: float(np.mean([row[name] for row in informed])) for name in averaged},
        "informed_worst": {name: max(row[name] for row in informed) for name in ("relative_l2", "off")},
    }


def _fits(settings: ConvectionSettings, numbers: Mapping[str, Any], oriented: ps.Kernel) -> xr.Dataset:
    """Return posterior means of seed 0: the sweeps' choices, the joint minimum and the collapsed minimum."""
    times, places = np.linspace(0, 1, settings.picture), np.linspace(0, 2 * math.pi, settings.picture)
    points, shape = plane(times, places), (settings.picture, settings.picture)
    family = ps.AnisotropicRBF(theta=1.0, s=1.0)
    joint = model(family, 0.1, 0, settings)
    chosen = {
        f"{kind} at noise {noise:g}": model(kernel, noise, 0, settings).replace(
            {"kernel.bandwidth": numbers[kind][f"{noise:g}"]["chosen"][0]}
        )
        for kind, kernel, noise in (("isotropic", ps.RBF(1.0), 1.0), ("isotropic", ps.RBF(1.0), 0.1),
                                    ("anisotropic", oriented, 0.1))
    }  # fmt: skip
    chosen["joint minimum"] = joint.replace(numbers["joint"]["best"]["values"])
    if numbers["joint"]["collapsed"]:
        chosen["collapsed optimum"] = joint.replace(numbers["joint"]["collapsed"]["values"])
    means = [ps.posterior(model).mean(points).reshape(shape) for model in chosen.values()]
    truth = np.sin(points[:, 1] - settings.beta * points[:, 0]).reshape(shape)
    return xr.Dataset(
        {"fit_mean": (("fit", "t", "x"), np.array(means)), "truth": (("t", "x"), truth)},
        {"fit": list(chosen), "t": times, "x": places},
    )


def _checks(settings: ConvectionSettings, numbers: Mapping[str, Any]) -> list[dict[str, Any]]:
    loud, joint, beta = numbers["isotropic"]["1"], numbers["joint"], f"arctan {settings.beta:g}"
    checks = []
    if abs(settings.beta) == 30:  # an isotropic kernel can follow a slower wave
        checks += [
            check("isotropic, noise 1: PILE decreases with the bandwidth from 0.1 to 5, for every seed", "true",
                  loud["pile_decreases_from_0.1"], loud["pile_decreases_from_0.1"]),
            check("isotropic, noise 1: relative L² error at the choice of PILE", "above 0.9 (the all-zero solution)",
                  loud["relative_l2"], loud["relative_l2"] > 0.9),
        ]  # fmt: skip
    for of in numbers["landscape"].values():
        name = f"landscape of β = {of['beta']:.4g}"
        checks += [
            check(f"{name}: |θ* − arctan β| modulo π", f"at most one step, {of['step']:.3g}", of["distance"],
                  of["distance"] <= of["step"]),
            check(f"{name}: s*", "0.5, the lower end", of["s"], of["s"] == 0.5),
        ]  # fmt: skip
    limit = 0.025 * math.sqrt(1000 / settings.data)  # 0.025 at the full size; errors fall as 1/√n
    for name, row in (
        ("best generic start", joint["best"]),
        ("start from the data-free choice", joint["informed"][0]),
    ):
        checks += [
            check(f"{name}: |θ − {beta}| modulo π", "below 0.005", row["off"], row["off"] < 0.005),
            check(f"{name}: noise variance", "0.008 to 0.012 (true: 0.01)", row["noise_variance"],
                  abs(row["noise_variance"] - 0.01) < 0.002),
            check(f"{name}: relative L² error", f"below {limit:.3g}", row["relative_l2"], row["relative_l2"] < limit),
        ]  # fmt: skip
    if joint["collapsed"]:
        gap = joint["collapsed_gap"]
        checks.append(check("PILE of the collapsed minimum minus PILE of the best", "more than 2", gap, gap > 2))
    return checks


STUDY = Study("convection", ConvectionSettings, compute, report)
