"""The time of PILE and its gradient, relative to LAPACK's Cholesky factorisation of the same matrix.

Every number is a ratio of medians of interleaved repetitions in one process:

    python -m benchmarks.evidence            # the table, peak memory and first calls
    python -m benchmarks.evidence --smoke    # small sizes, a smoke test
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.linalg import lapack
from threadpoolctl import ThreadpoolController

import pilescore as ps
from pilescore.covariance.gram import covariance
from pilescore.covariance.tiles import layout

NAMES = ["kernel.bandwidth", "gamma", "rho"]
THREADS = ThreadpoolController()
LIMITS = {338: (3.0, 9.0), 1400: (1.5, 4.2), 5000: (1.35, 3.6)}


def poisson(side: int) -> ps.Model:
    """Return noisy f and Δf on a Chebyshev grid of side² nodes; `side` = 13 is workload W1."""
    square = ps.Box(x=(-1, 1), y=(-1, 1))
    nodes = square.interior(ps.quadrature.Chebyshev(side))
    truth = np.sin(np.pi * nodes.points[:, 0]) * np.sin(np.pi * nodes.points[:, 1])
    noisy = truth + 0.05 * np.random.default_rng(0).standard_normal(side**2)
    return ps.Model(
        kernel=ps.RBF(bandwidth=0.5),
        data=ps.observe(ps.identity, values=noisy, at=nodes.points),
        physics=ps.impose(ps.laplacian(square), -2 * np.pi**2 * truth, on=nodes),
        gamma=2 * 2.5e-3,
        rho=2 * 1e-2 * 4 / side**2,
    )


def convection(data: int, side: int) -> ps.Model:
    """Return random noisy data and f_t + 30 f_x = 0 on side² Gauss–Legendre nodes; (1000, 20) is workload W2."""
    strip = ps.Box(t=(0, 1), x=(0, 2 * np.pi))
    dt, dx = ps.partials(strip)
    rng = np.random.default_rng(0)
    points = rng.uniform([0, 0], [1, 2 * np.pi], (data, 2))
    values = np.sin(points[:, 1] - 30 * points[:, 0]) + 0.1 * rng.standard_normal(data)
    return ps.Model(
        kernel=ps.RBF(bandwidth=0.2),
        data=ps.observe(ps.identity, values=values, at=points),
        physics=ps.impose(dt + 30 * dx, 0.0, on=strip.interior(ps.GaussLegendre(side))),
        gamma=0.02,
        rho=0.02,
    )


WORKLOADS: dict[str, Callable[[], ps.Model]] = {
    "W1 Poisson, N = 338": lambda: poisson(13),
    "W2 convection, N = 1400": lambda: convection(1000, 20),
    "W1 Poisson, N = 5000": lambda: poisson(50),
}
SMOKE: dict[str, Callable[[], ps.Model]] = {
    "W1 Poisson, N = 338": lambda: poisson(13),
    "W2 convection, N = 300": lambda: convection(200, 10),
}


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ratios(model: ps.Model, repetitions: int) -> tuple[float, float, float]:
    """Return the times of the value, of value and gradient, and of assembly, each divided by that of dpotrf."""
    rows = layout(model.blocks)
    matrix = covariance(model.kernel, rows, float(model.eta))
    matrix.flat[:: model.size + 1] += model.noise[rows.order]
    room = np.empty_like(matrix)

    def factor() -> float:
        room[...] = matrix
        return seconds(lambda: lapack.dpotrf(room, lower=1, overwrite_a=1, clean=0))

    def factor_with_one_thread() -> float:
        with THREADS.limit(limits=1, user_api="blas"):
            return factor()

    works = {
        "factor": factor,
        "value": lambda: seconds(lambda: ps.pile(model)),
        "gradient": lambda: seconds(lambda: ps.pile_and_gradient(model, NAMES)),
        "assembly": lambda: seconds(lambda: covariance(model.kernel, rows, 1.0)),
    }
    if model.size < 500:  # one thread may be faster here
        works["one thread"] = factor_with_one_thread
    times: dict[str, list[float]] = {name: [] for name in works}
    for repetition in range(repetitions + 1):
        for name, work in works.items():
            taken = work()
            if repetition:  # the first call compiles
                times[name].append(taken)
    median = {name: statistics.median(series) for name, series in times.items()}
    factor_time = min(median["factor"], median.get("one thread", np.inf))
    return median["value"] / factor_time, median["gradient"] / factor_time, median["assembly"] / factor_time


def peak_memory() -> float:
    """Return the peak resident memory of this process so far, in bytes (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return 1024.0 * float(line.split()[1])
    raise RuntimeError("no VmHWM in /proc/self/status")


def first_calls(name: str) -> None:
    """Print the times of the first calls in this new process, and the peak memory above that of the idle process."""
    model = WORKLOADS[name]()
    idle = peak_memory()
    value = seconds(lambda: ps.pile(model))
    gradient = seconds(lambda: ps.pile_and_gradient(model, NAMES))
    extra = (peak_memory() - idle) / (8 * model.size**2)
    print(f"{value:.2f} {gradient:.2f} {extra:.2f}")


def in_fresh_process(name: str) -> tuple[float, float, float]:
    command = [sys.executable, __file__, "--first", name]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    value, gradient, extra = (float(part) for part in output.split())
    return value, gradient, extra


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small sizes and few repetitions")
    parser.add_argument("--first", metavar="WORKLOAD", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.first:
        first_calls(options.first)
        return
    print("| workload | value | at most | value and gradient | at most | assembly alone |")
    print("|---|---|---|---|---|---|")
    for name, make in (SMOKE if options.smoke else WORKLOADS).items():
        model = make()
        repetitions = 3 if options.smoke else max(5, min(200, 200_000 // model.size))
        value, gradient, assembly = ratios(model, repetitions)
        most = LIMITS.get(model.size, ("", ""))
        print(f"| {name} | {value:.2f} | {most[0]} | {gradient:.2f} | {most[1]} | {assembly:.2f} |", flush=True)
    if not options.smoke:
        print("\n| workload | first value, s | then first gradient, s | peak memory above idle, N² doubles |")
        print("|---|---|---|---|")
        for name in WORKLOADS:
            value, gradient, extra = in_fresh_process(name)
            print(f"| {name} | {value:.2f} | {gradient:.2f} | {extra:.2f} |", flush=True)


if __name__ == "__main__":
    main()
