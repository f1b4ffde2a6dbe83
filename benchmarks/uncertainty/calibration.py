"""Simulation-based calibration of a linear problem (Talts et al. 2018).

Hyperparameters are drawn from their priors, and data from the model with these hyperparameters. If the distribution of
hyperparameters given the data is right, the rank of each true value among draws from it is uniform, on average over the
simulations, whatever the data say.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from scipy.stats import binom, chisquare

import pilescore as ps

from .coverage import LEVELS
from .runs import Done, Measured, Run, failures, good, table

NAME = "relaxation"
SIMULATIONS, QUICK, SMOKE = 200, 40, 2
READINGS, NODES = 25, 15

TOLERANCE = 0.3
"""The standard deviation of the equation's residual at each node, which is known."""

PRIORS: dict[str, ps.priors.Prior] = {
    "kernel.bandwidth": ps.priors.LogNormal(1.0, 2.0),
    "gamma": ps.priors.LogNormal(0.01, 3.0),
    "eta": ps.priors.LogNormal(1.0, 3.0),
    "rate": ps.priors.Normal(1.0, 0.6),
}

REACH = 4.0
"""How far bounds are from the centre of the prior, in its standard deviations."""

DRAWS = 999
"""The number of draws among which a true value has a rank, 0 to 999."""

BINS = 10

LEAST_P = 0.01
"""Uniform ranks give a smaller p-value than this in 1% of benchmarks."""

BAND = 0.99
"""The probability of the band in the figure."""

SIZE, DPI = (9.6, 2.7), 140
"""Of the figure, in inches and in pixels per inch."""


def centre_and_deviation(prior: ps.priors.Prior) -> tuple[float, float]:
    """Return the mean and standard deviation of a value, or of its logarithm, under a prior of one number."""
    return float(prior.centre(1)[0]), float(prior.precision(1)[0, 0]) ** -0.5


def value_of(prior: ps.priors.Prior, t: float) -> float:
    """Return the value with this coordinate, the value itself or its logarithm."""
    return math.exp(t) if prior.logarithmic else t


def bounds() -> dict[str, tuple[float, float]]:
    """Return the bounds of the search."""
    found = {}
    for name, prior in PRIORS.items():
        centre, deviation = centre_and_deviation(prior)
        found[name] = (value_of(prior, centre - REACH * deviation), value_of(prior, centre + REACH * deviation))
    return found


def drawn_truth(rng: np.random.Generator) -> dict[str, float]:
    """Return a draw from the priors between the bounds."""
    found = {}
    for name, prior in PRIORS.items():
        centre, deviation = centre_and_deviation(prior)
        t = rng.standard_normal()
        while abs(t) > REACH:
            t = rng.standard_normal()
        found[name] = value_of(prior, centre + deviation * t)
    return found


def equation() -> ps.Observation:
    """Return `f′ + rate·f = 0` at nodes, with noise."""
    line = ps.Box(t=(0, 4))
    (dt,) = ps.partials(line)
    return ps.impose(dt + ps.parameter("rate", 1.0), 0.0, on=line.interior(ps.GaussLegendre(NODES)), noise=TOLERANCE)


def simulated(seed: int) -> tuple[dict[str, float], ps.Model]:
    """Return true hyperparameters and a model with data drawn from it, given that the equation holds.

    The hyperparameters of the model are the centres of their priors.
    """
    rng = np.random.default_rng([*NAME.encode(), seed])
    truth, at = drawn_truth(rng), np.sort(rng.uniform(0, 4, (READINGS, 1)), axis=0)
    known = {name: value for name, value in truth.items() if name != "gamma"}
    solution = ps.posterior(ps.Model(ps.RBF(1.0), physics=equation()).replace(known)).samples(at, 1, rng)[0]
    values = solution + math.sqrt(truth["gamma"] / 2) * rng.standard_normal(READINGS)
    model = ps.Model(ps.RBF(1.0), ps.observe(ps.identity, values, at=at), equation())
    return truth, model.replace({name: value_of(prior, float(prior.centre(1)[0])) for name, prior in PRIORS.items()})


def runs(*, quick: bool, smoke: bool, draws: int | None, seeds: Sequence[int] | None) -> list[Run]:
    """Return the runs: 200 simulations, 40 with `quick`, 2 with `smoke`."""
    count = draws or (SMOKE if smoke else QUICK if quick else SIMULATIONS)
    return [Run("calibration", NAME, seed) for seed in (range(count) if seeds is None else seeds)]


def measured(name: str, seed: int) -> Measured:
    """Return the rank of each true hyperparameter, and by how much its distribution is narrower than its prior."""
    truth, model = simulated(seed)
    best = ps.minimize(model, bounds(), starts=4, score="given_physics", run=ps.RunOptions(progress=False))
    hyper = ps.hyperposterior(best, priors=PRIORS, seed=seed)
    ranks, narrowed = {}, {}
    for each, values in hyper.sample(DRAWS, seed).items():
        prior = PRIORS[each]
        ranks[each] = int(np.sum(values < truth[each]))
        t = np.log(values) if prior.logarithmic else values
        narrowed[each] = float(np.std(t)) / centre_and_deviation(prior)[1]
    return {
        "ranks": ranks,
        "narrowed": narrowed,
        "effective size": float(hyper.effective_size),
        "evaluations": int(hyper.evaluations),
        "warnings": list(hyper.warnings),
    }


def histogram(ranks: Int[np.ndarray, " k"]) -> Int[np.ndarray, " bins"]:
    """Return how many ranks are in each bin of equal width."""
    return np.bincount(ranks * BINS // (DRAWS + 1), minlength=BINS)


def summary(done: Sequence[Done]) -> dict[str, Any]:
    """Return, by name, the histogram of ranks, the p-value of uniform ranks, and the coverage of intervals."""
    found = {}
    rows = good(done)
    for name in rows[0].measured["ranks"] if rows else ():
        ranks = np.array([each.measured["ranks"][name] for each in rows])
        counts = histogram(ranks)
        position = np.abs((ranks + 0.5) / (DRAWS + 1) - 0.5)  # from the median, as a probability
        found[name] = {
            "simulations": len(ranks),
            "counts": counts.tolist(),
            "p": float(chisquare(counts).pvalue),
            "coverage": [float(np.mean(position <= 0.5 * level)) for level in LEVELS],
            "narrowed": float(np.median([each.measured["narrowed"][name] for each in rows])),
        }
    return found


def report(done: Sequence[Done]) -> str:
    """Return the table of all hyperparameters, as Markdown."""
    of = summary(done)
    if not of:
        return "\n".join(failures(done))
    levels = "/".join(f"{100 * level:.0f}" for level in LEVELS)
    header = ["hyperparameter", "simulations", "p-value of uniform ranks", f"covered {levels}%"]
    header += ["median deviation, relative to the prior", "ranks in tenths"]
    rows = [
        [
            name,
            str(each["simulations"]),
            f"{each['p']:.2g}",
            "/".join(f"{100 * value:.1f}" for value in each["coverage"]),
            f"{each['narrowed']:.2f}",
            " ".join(map(str, each["counts"])),
        ]
        for name, each in of.items()
    ]
    low = [f"{name} {each['p']:.2g}" for name, each in of.items() if each["p"] < LEAST_P]
    count = max(each["simulations"] for each in of.values())
    errors = "/".join(f"{100 * math.sqrt(level * (1 - level) / count):.1f}" for level in LEVELS)
    warned = sum(bool(each.measured["warnings"]) for each in good(done))
    parts = [
        table(header, rows),
        "",
        f"P-values below {LEAST_P:g} (aim: none): {', '.join(low) or 'none'}. With exact intervals, coverage of "
        f"{levels}% has standard errors of {errors} points. The hyperposterior warns in {warned} of {count} runs.\n",
    ]
    return "\n".join([*parts, *failures(done)])


def figure(done: Sequence[Done]) -> bytes:
    """Return the histograms of ranks as a PNG file. The band has what uniform ranks give in 99% of bins."""
    from matplotlib.figure import Figure

    of = summary(done)
    drawn = Figure(figsize=SIZE, layout="constrained")
    row = np.atleast_1d(drawn.subplots(1, len(of), sharey=True))
    for axes, (name, each) in zip(row, of.items(), strict=True):
        count = each["simulations"]
        low, high = binom.interval(BAND, count, 1 / BINS)
        axes.axhspan(low, high, color="#dddddd", linewidth=0)
        axes.axhline(count / BINS, color="#555555", linewidth=0.8)
        axes.bar((np.arange(BINS) + 0.5) / BINS, each["counts"], width=0.9 / BINS, color="#0072B2")
        axes.set_title(f"{name}: p = {each['p']:.2g}", fontsize=9)
        axes.set_xlabel("rank of the true value", fontsize=9)
        axes.tick_params(labelsize=8)
    row[0].set_ylabel("simulations", fontsize=9)
    file = io.BytesIO()
    drawn.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
    return file.getvalue()


def write_figure(done: Sequence[Done], file: Path) -> None:
    """Write the histograms of ranks as a PNG file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(figure(done))
