"""The time of landscapes, minimisation and sweeps, relative to the work that they cannot avoid.

Every number is a ratio of times from one process:

    python -m benchmarks.choosing            # the table
    python -m benchmarks.choosing --smoke    # small sizes, a smoke test
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import numpy as np
from benchmarks.evidence import THREADS, convection, poisson, seconds
from scipy.linalg import blas, lapack

import pilescore as ps
from pilescore.studies import poisson as study

SIX = {
    "kernel.theta": (0.0, np.pi),
    "kernel.s": (0.005, 5.0),
    "kernel.bandwidth": (0.01, 20.0),
    "gamma": (1e-4, 10.0),
    "rho": (1e-6, 10.0),
    "eta": (1e-3, 1e3),
}


def landscape(side: int, points: int) -> float:
    """Return the time of data-free scores on a grid of θ and s, divided by that of a loop of as many dpotrf calls."""
    strip = ps.Box(t=(0, 1), x=(0, 2 * np.pi))
    dt, dx = ps.partials(strip)
    physics = ps.impose(dt + 30 * dx, 0.0, on=strip.interior(ps.GaussLegendre(side)))
    kernel = ps.AnisotropicRBF(theta=1.0, s=0.5)
    grid = {"kernel.theta": np.linspace(0.1, 3.0, points), "kernel.s": np.geomspace(0.2, 5, points)}
    matrix = np.asfortranarray(np.eye(side**2) + 0.5)
    room = np.empty_like(matrix)

    def loop() -> float:
        total = 0.0
        for _ in range(points**2):
            room[...] = matrix
            total += seconds(lambda: lapack.dpotrf(room, lower=1, overwrite_a=1, clean=0))
        return total

    def loop_with_one_thread() -> float:
        with THREADS.limit(limits=1, user_api="blas"):
            return loop()

    ps.data_free_landscape(ps.Model(kernel, physics=physics), grid, progress=False)  # compiles
    taken, bare = [], []
    for _ in range(3):
        bare.append(min(loop(), loop_with_one_thread()))
        taken.append(seconds(lambda: ps.data_free_landscape(ps.Model(kernel, physics=physics), grid, progress=False)))
    return statistics.median(taken) / statistics.median(bare)


def minimisation(data: int, side: int, budget: int) -> tuple[float, int]:
    """Return the time of a search over six hyperparameters, divided by that of its evaluations; and their number."""
    base = convection(data, side)
    kernel = ps.AnisotropicRBF(theta=1.4, s=0.8, bandwidth=0.3)
    model = ps.Model(kernel, base.data, base.physics, gamma=0.02, rho=0.02)

    def one() -> float:
        return seconds(lambda: ps.pile_and_gradient(model, list(SIX)))

    one()
    before = [one() for _ in range(10)]
    found: list[ps.Minimum] = []
    taken = seconds(
        lambda: found.append(
            ps.minimize(
                model,
                SIX,
                score="joint",
                search=ps.SearchOptions(max_evaluations=budget),
                run=ps.RunOptions(progress=False),
            )
        )
    )
    after = [one() for _ in range(10)]
    return taken / (found[0].evaluations * statistics.median(before + after)), found[0].evaluations


def temperatures(side: int, points: int) -> float:
    """Return the time of a sweep over ρ at a fixed kernel, divided by that of a loop of scores."""
    model = poisson(side)
    values = np.geomspace(1e-3, 10, points)

    def loop() -> None:
        for rho in values:
            ps.pile(model.replace({"rho": rho}))

    def sweep() -> None:
        ps.sweep(model, {"rho": values}, score="joint", run=ps.RunOptions(progress=False))

    return ratio(sweep, loop)


def with_errors(side: int, seeds: int) -> float:
    """Return the time of a sweep with true errors and losses for several seeds, divided by that of its LAPACK calls.

    These are, for each bandwidth, one factorisation, and triangular solves for the posterior variances of f and Δf at
    900 nodes and for leave-one-out at the data.
    """
    bandwidths = [0.3, 0.4, 0.5]
    models = [study.model(0.4, seed, side) for seed in range(seeds)]
    size, right = 2 * side**2, 2 * 900 + side**2
    matrix = np.asfortranarray(np.eye(size) * size + 0.5)
    columns = np.asfortranarray(np.random.default_rng(0).standard_normal((size, right)))

    def bare() -> None:
        for _ in bandwidths:
            factor, _ = lapack.dpotrf(matrix, lower=1, clean=0)
            blas.dtrsm(1.0, factor, columns, lower=1)

    def sweep() -> None:
        ps.sweep(
            lambda seed: models[seed],
            {"kernel.bandwidth": bandwidths},
            seeds=range(seeds),
            score="joint",
            losses=True,
            run=ps.RunOptions(progress=False),
            known=ps.KnownSolution(study.solution, operator_truth=study.forcing),
        )

    return ratio(sweep, bare)


def side_by_side(side: int) -> float:
    """Return the time of four starts run in parallel, divided by that of the same four run one after the other."""
    model = poisson(side)
    over = {"kernel.bandwidth": (0.1, 2.0), "gamma": (1e-4, 10.0), "rho": (1e-6, 10.0)}
    starts = [{"kernel.bandwidth": h} for h in (0.2, 0.4, 0.7, 1.2)]

    def run(some: list[dict[str, float]]) -> ps.Minimum:
        return ps.minimize(
            model,
            over,
            score="joint",
            starts=some,
            search=ps.SearchOptions(max_evaluations=10, curvature=False),
            run=ps.RunOptions(progress=False),
        )

    return ratio(lambda: run(starts), lambda: [run([start]) for start in starts])


def ratio(work: Callable[[], object], against: Callable[[], object], repetitions: int = 5) -> float:
    times: tuple[list[float], list[float]] = ([], [])
    for repetition in range(repetitions + 1):
        for series, call in zip(times, (work, against), strict=True):
            taken = seconds(call)
            if repetition:  # the first call compiles
                series.append(taken)
    return statistics.median(times[0]) / statistics.median(times[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small sizes and few repetitions")
    smoke = parser.parse_args().smoke
    print("| work | compared with | ratio | at most |")
    print("|---|---|---|---|")
    side, points = (8, 10) if smoke else (20, 50)
    value = landscape(side, points)
    print(
        f"| {points**2} data-free scores, m = {side**2} | {points**2} dpotrf | {value:.2f} | {'' if smoke else 1.6} |",
        flush=True,
    )
    value, count = minimisation(*((100, 6, 10) if smoke else (1000, 20, 60)))
    print(
        f"| minimize over six hyperparameters | {count} values and gradients | {value:.2f} | {'' if smoke else 1.25} |",
        flush=True,
    )
    side, points = (7, 30) if smoke else (26, 50)
    value = temperatures(side, points)
    print(f"| sweep over {points} values of rho, N = {2 * side**2} | {points} scores | {value:.2f} | |", flush=True)
    side = 16 if smoke else 20
    value = side_by_side(side)
    print(f"| four starts side by side, N = {2 * side**2} | one after the other | {value:.2f} | |", flush=True)
    side, seeds = (7, 2) if smoke else (13, 10)
    value = with_errors(side, seeds)
    against = "LAPACK's factors and triangular solves"
    print(f"| sweep with errors and losses, {seeds} seeds, N = {2 * side**2} | {against} | {value:.2f} | |", flush=True)


if __name__ == "__main__":
    main()
