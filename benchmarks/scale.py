"""Solvers for large problems: their intervals, time, memory and growth with N.

Every time is divided by another time from the same run: that of the dense score, of a product with the covariance, or
of LAPACK's `dpotrf` at a fixed size. Each cell runs in a separate process, whose peak resident memory is reported
(Linux):

    python -m benchmarks.scale                            # all parts, about an hour
    python -m benchmarks.scale --part certified growth    # some of them
    python -m benchmarks.scale --smoke                    # tiny sizes, without the peers
    python -m benchmarks.scale --part peers --peers-python PATH

The peers are gpytorch, imate and detkit, installed here or in another environment with pilescore. Missing peers are
skipped.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import psutil
from scipy.linalg import lapack

import pilescore as ps
from pilescore.covariance.grid_products import use_grid_products
from pilescore.covariance.linear_operator import KernelCovariance
from pilescore.covariance.tiles import assembly

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "scale.png"
SQUARE = ps.Box(x=(-1, 1), y=(-1, 1))
STRIP = ps.Box(t=(0, 1), x=(0, 2 * np.pi))
LEVELS = (None, 1e-2, 1e-4, 1e-6)
"""Noise variances relative to the prior variance of the block; None stands for γ and ρ as in the paper."""
PATIENCE = 15.0
"""A call that takes longer than this, in seconds, is not repeated."""
REFERENCE = 2000
"""The matrix size of the `dpotrf` call by whose time other times are divided."""


# -- Models


def poisson(size: int, bandwidth: float = 0.3, level: float | None = None, *, grid: bool = False) -> ps.Model:
    """Return a model of noisy values, Δu and zero boundary values, with scattered nodes or a Gauss–Legendre grid."""
    data, side = min(1000, size // 5), min(100, size // 40)
    inner = size - data - 4 * side
    rule = ps.GaussLegendre(round(inner**0.5)) if grid else ps.quadrature.MonteCarlo(inner, seed=0)
    inside, edge = SQUARE.interior(rule), SQUARE.boundary(ps.GaussLegendre(side))
    rng = np.random.default_rng(0)
    gamma = 1.0 if level is None else 2 * level
    points = rng.uniform(-1, 1, (data, 2))
    noisy = np.sin(2 * np.pi * points).prod(axis=1) + (gamma / 2) ** 0.5 * rng.standard_normal(data)
    rho = [0.1, 0.1]
    if level is not None:
        variances = (8 / bandwidth**4, 1.0)
        rho = [2 * nodes.weights.mean() * level * v for nodes, v in zip((inside, edge), variances, strict=True)]

    def source(p: Any) -> Any:
        return -8 * jnp.pi**2 * jnp.sin(2 * jnp.pi * p[0]) * jnp.sin(2 * jnp.pi * p[1])

    return ps.Model(
        kernel=ps.RBF(bandwidth=bandwidth),
        data=ps.observe(ps.identity, noisy, at=points),
        physics=[
            ps.impose(ps.laplacian(SQUARE), source, on=inside, rho=rho[0]),
            ps.impose(ps.identity, 0.0, on=edge, rho=rho[1]),
        ],
        gamma=gamma,
    )


def convection(size: int, bandwidth: float = 0.3, level: float | None = None) -> ps.Model:
    """Return a model of noisy values and u_t + 30 u_x = 0, all at scattered points."""
    dt, dx = ps.partials(STRIP)
    data = min(1000, size // 5)
    inside = STRIP.interior(ps.quadrature.MonteCarlo(size - data, seed=0))
    rng = np.random.default_rng(0)
    points = rng.uniform([0, 0], [1, 2 * np.pi], (data, 2))
    gamma = 0.02 if level is None else 2 * level
    rho = 0.02 if level is None else 2 * inside.weights.mean() * level * 901 / bandwidth**2
    noisy = np.sin(points[:, 1] - 30 * points[:, 0]) + (gamma / 2) ** 0.5 * rng.standard_normal(data)
    return ps.Model(
        kernel=ps.RBF(bandwidth=bandwidth),
        data=ps.observe(ps.identity, noisy, at=points),
        physics=ps.impose(dt + 30 * dx, 0.0, on=inside),
        gamma=gamma,
        rho=rho,
    )


def values(size: int, level: float, *, grid: bool = False) -> ps.Model:
    """Return a model of noisy values only, in two dimensions, at scattered points or on a uniform grid."""
    rng = np.random.default_rng(0)
    axis = np.linspace(-1, 1, round(size**0.5))
    nodes = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    points = nodes if grid else rng.uniform(-1, 1, (size, 2))
    noisy = np.sin(2 * np.pi * points).prod(axis=1) + level**0.5 * rng.standard_normal(len(points))
    data = ps.observe(ps.identity, noisy, at=points)
    return ps.Model(kernel=ps.RBF(bandwidth=0.3), data=data, gamma=2 * level)


MODELS: dict[str, Callable[..., ps.Model]] = {
    "Poisson, scattered": poisson,
    "Poisson, grid": lambda *given: poisson(*given, grid=True),
    "convection, scattered": convection,
}


def operator(model: ps.Model) -> KernelCovariance:
    """Return the covariance of a model as a linear operator."""
    parts = assembly(model.blocks)
    noise = np.asarray(model.temperatures)[parts.block] * parts.spread
    return KernelCovariance(model.kernel, parts.rows, float(model.eta), parts.values, noise)


# -- Measuring


def timed(work: Callable[[], Any], most: int = 3) -> tuple[float, Any]:
    """Return the shortest time of several calls, the first of which may compile, and the result of the last.

    A long call is repeated only once.
    """
    least, out = np.inf, None
    for count in range(most):
        start = time.perf_counter()
        out = work()
        least = min(least, time.perf_counter() - start)
        if count and least > PATIENCE / most:
            break
    return least, out


def potrf(size: int) -> float:
    """Return the shortest time of LAPACK's factorisation of a matrix of a given size."""
    matrix = np.asfortranarray(np.eye(size) + 1.0)
    return timed(lambda: lapack.dpotrf(matrix, lower=1, overwrite_a=0, clean=0), 7)[0]


def peak(pid: int | str = "self") -> float:
    """Return the peak resident memory of a process so far, in GB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return 1.024e-6 * float(line.split()[1])
    raise RuntimeError(f"no VmHWM in /proc/{pid}/status")


def scored(model: ps.Model, solver: Any) -> dict[str, Any]:
    """Return a score as plain numbers, or the interval that was reached if the tolerance was not."""
    try:
        found = ps.pile(model.replace(solver=solver))
    except ps.errors.ToleranceError as error:
        return {"lower": error.lower, "upper": error.upper, "reached": False, "account": str(error)}
    out = {key: getattr(found, key) for key in ("value", "lower", "upper", "rounding", "complexity")}
    return {**out, "reached": True, "account": found.solver}


def number(account: str, pattern: str) -> str:
    """Return a number from the text that describes a solver, as a string."""
    found = re.search(pattern, account)
    return found[1] if found else "–"


def width_of(score: dict[str, Any]) -> str:
    return f"{score['upper'] - score['lower']:.1e}{'' if score['reached'] else ' (not reached)'}"


def rank(score: dict[str, Any]) -> str:
    return number(score["account"], r"rank (?:of )?(\d+)")


def products(score: dict[str, Any]) -> str:
    return number(score["account"], r"(\d+) products? with the full")


CELLS: dict[str, Callable[..., Any]] = {}


def cell(work: Callable[..., Any]) -> Callable[..., Any]:
    CELLS[work.__name__] = work
    return work


def fresh(work: Callable[..., Any], *given: Any, python: str = sys.executable) -> Any:
    """Run a cell in a new process and return its result. Its error stream is passed through."""
    command = [python, __file__, "--cell", json.dumps([work.__name__, *given])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return {"error": f"ended with {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def table(*columns: str) -> None:
    print("\n| " + " | ".join(columns) + " |\n|" + "---|" * len(columns), flush=True)


def row(*entries: Any) -> None:
    shown = [f"{entry:.3g}" if isinstance(entry, float) else str(entry) for entry in entries]
    print("| " + " | ".join(shown) + " |", flush=True)


# -- Intervals against exact scores


@cell
def against_dense(name: str, size: int, bandwidths: Iterable[float], levels: Iterable[float | None]) -> list[Any]:
    out: list[Any] = []
    for bandwidth in bandwidths:
        for level in levels:
            model = MODELS[name](size, bandwidth, level)
            dense, quick = np.inf, np.inf
            for _ in range(2):  # alternately, so that a busy moment does not favour one of them
                taken, exact = timed(functools.partial(scored, model, ps.solvers.Dense()), 1)
                dense = min(dense, taken)
                taken, found = timed(functools.partial(scored, model, ps.solvers.LowRank()), 1)
                quick = min(quick, taken)
            out.append([bandwidth, level, exact, found, quick / dense])
    return out


def certified(smoke: bool) -> None:
    print("\n### Certified intervals against exact scores (tolerance 1e-3)")
    table("model", "N", "h", "noise / prior", "PILE", "interval", "width", "contains", "rank", "time / dense")
    wrong, reasons = 0, []
    for size in (600,) if smoke else (5_000, 10_000):
        for name in list(MODELS)[: 1 if smoke else 3]:
            given = name, size, [0.3] if smoke else [0.3, 0.5], LEVELS[::3] if smoke else LEVELS
            for bandwidth, level, exact, found, ratio in (
                against_dense(*given) if smoke else fresh(against_dense, *given)
            ):
                spare = exact["rounding"]
                inside = found["lower"] - spare <= exact["value"] <= found["upper"] + spare
                wrong += not inside
                within = f"[{found['lower']:.6f}, {found['upper']:.6f}]"
                noise = "paper" if level is None else f"{level:.0e}"
                if not found["reached"]:
                    reasons.append(f"{name}, N = {size}, h = {bandwidth}, {noise}: {found['account']}")
                row(
                    name,
                    size,
                    bandwidth,
                    noise,
                    f"{exact['value']:.6f}",
                    within,
                    width_of(found),
                    inside,
                    rank(found),
                    ratio,
                )
    print(f"\nIntervals that do not contain the exact score: {wrong}")
    for reason in reasons:
        print(f"\nNot reached: {reason}")


# -- A hundred thousand observations


@cell
def against_product(name: str, size: int) -> dict[str, Any]:
    model = MODELS[name](size)
    start = time.perf_counter()
    scored(model, ps.solvers.LowRank())
    first, memory = time.perf_counter() - start, peak()
    least, found = timed(lambda: scored(model, ps.solvers.LowRank()), 1)
    covariance, ones = operator(model), np.ones((model.size, 1))
    product, _ = timed(lambda: covariance.product(ones), 2)
    return {"first": first / product, "ratio": least / product, "memory": memory, "score": found}


def hundred_thousand(smoke: bool) -> None:
    size = 600 if smoke else 100_000
    print(f"\n### {size} scattered observations, RBF(0.3) (targets: width ≤ 1e-3, memory ≤ 2 GB, ≤ 3 products)")
    table("model", "width", "rank", "products", "peak memory, GB", "time / product", "first call / product")
    for name in ["convection, scattered", "Poisson, scattered"][: 1 if smoke else 2]:
        found = fresh(against_product, name, size)
        if "error" in found:
            row(name, found["error"], *[""] * 5)
            continue
        score = found["score"]
        width = width_of(score)
        row(name, width, rank(score), products(score), found["memory"], found["ratio"], found["first"])


# -- A million observations


@cell
def at_size(what: str, size: int) -> dict[str, Any]:
    """Score a model of a given size; the first call compiles."""
    reference = potrf(REFERENCE)
    model = {
        "low rank, grid": lambda: poisson(size, grid=True),
        "low rank, scattered": lambda: poisson(size),
        "low rank, grid of values": lambda: values(size, 1e-2, grid=True),
        "kronecker, grid of values": lambda: values(size, 1e-2, grid=True),
        "features, scattered": lambda: poisson(size),
    }[what]()
    solver = solvers()[what.split(",")[0]]
    taken, found = timed(lambda: scored(model, solver), 2)
    memory = peak()
    grid = use_grid_products(operator(model)) if "grid" in what else None
    product = timed(lambda: grid.product(np.ones((model.size, 1))), 3)[0] if grid is not None else 0.0
    over, reference = taken / product if product else 0.0, min(reference, potrf(REFERENCE))
    return {"size": model.size, "score": found, "memory": memory, "time": taken / reference, "product": over}


def solvers() -> dict[str, Any]:
    return {
        "dense": ps.solvers.Dense(),
        "low rank": ps.solvers.LowRank(),
        "kronecker": ps.solvers.Kronecker(),
        "features": ps.solvers.Features(ps.solvers.FourierBasis(low=[-1.0, -1.0], high=[1.0, 1.0], count=14)),
    }


def million(smoke: bool) -> None:
    size = 900 if smoke else 1_000_000
    print(f"\n### {size} observations, RBF(0.3), each in a separate process")
    unit = f"time / dpotrf of {REFERENCE}"
    table("model and solver", "N", "PILE", "width", "rank", "products", "peak memory, GB", "time / grid product", unit)
    accounts, each = {}, ["low rank, grid", "low rank, grid of values", "kronecker, grid of values"]
    for what in [*each, "features, scattered", "low rank, scattered"][2 if smoke else 0 : 4 if smoke else 5]:
        found = at_size(what, size) if smoke else fresh(at_size, what, size)
        if "error" in found:
            row(what, found["error"], *[""] * 7)
            continue
        score = found["score"]
        width = width_of(score)
        accounts[what] = score["account"]
        middle = f"{0.5 * (score['lower'] + score['upper']):.7f}"
        over = found["product"] or "–"
        row(what, found["size"], middle, width, rank(score), products(score), found["memory"], over, found["time"])
    for what, account in accounts.items():
        print(f"\n{what}: {account}")


# -- Many workers


@contextmanager
def watched(folder: str, every: float = 0.2) -> Iterator[dict[str, Any]]:
    """Record the peak memory of child processes and the peak size of the files in a folder."""
    seen: dict[str, Any] = {"memory": {}, "disk": 0.0}
    over = threading.Event()

    def look() -> None:
        while not over.wait(every):
            for process in psutil.Process().children(recursive=True):
                try:
                    used = process.memory_info().rss / 1e9
                except psutil.Error:
                    continue
                seen["memory"][process.pid] = max(used, seen["memory"].get(process.pid, 0.0))
            total = 0
            for path in Path(folder).rglob("*"):
                try:
                    total += path.stat().st_size
                except OSError:  # the file was removed
                    continue
            seen["disk"] = max(seen["disk"], total / 1e9)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def told(dask_worker: Any) -> dict[str, float]:
    """Return the bytes that a worker has written and received so far; runs on the worker."""
    written = [v for k, v in dask_worker.digests_total.items() if "disk-write" in k and "bytes" in k]
    received = [each["total"] for each in dask_worker.transfer_incoming_log]
    return {"pid": os.getpid(), "written": sum(written) / 1e9, "received": sum(received) / 1e9}


@cell
def by_workers(size: int, workers: int, limit: str, calls: int) -> dict[str, Any]:
    """Score a model on workers; the first call includes their start and compilation."""
    model, times = poisson(size), []
    with tempfile.TemporaryDirectory() as folder:
        solver = ps.solvers.Distributed(workers=workers, memory_limit=limit, local_directory=folder)
        with solver, watched(folder) as seen:
            for _ in range(calls):
                start = time.perf_counter()
                found = scored(model, solver)
                times.append(time.perf_counter() - start)
            staff = list(solver._local.client.run(told).values())
        memory = [max(seen["memory"].get(each["pid"], 0.0), 0.0) for each in staff]
    sums = {key: sum(each[key] for each in staff) / calls for key in ("written", "received")}
    return {"times": times, "memory": max(memory), "disk": seen["disk"], "score": found, **sums}


@cell
def by_lapack(size: int) -> dict[str, Any]:
    model = poisson(size)
    scored(poisson(min(size, 3000)), ps.solvers.Dense())
    taken, found = timed(lambda: scored(model, ps.solvers.Dense()), 1)
    return {"times": [taken], "memory": peak(), "score": found}


def distributed(smoke: bool) -> None:
    print("\n### Tiles on workers with one thread each, and LAPACK in one process (target: ≤ 1.6 at N = 20,000)")
    columns = "PILE − PILE by LAPACK", "largest worker, GB", "most on disk, GB", "written, GB", "received, GB"
    table("N", "workers", "memory limit of each", "time", "relative to", *columns)
    small, middle, large = (400, 600, 900) if smoke else (10_000, 20_000, 30_000)
    runs = {
        (small, 0, ""): (small, 0, 1.0),
        (small, 1, "2GB"): (small, 0, 1.0),
        (small, 2, "2GB"): (small, 1, 1.0),
        (middle, 0, ""): (middle, 0, 1.0),
        (middle, 2, "2GB"): (middle, 0, 1.0),
        (large, 2, "1GB"): (middle, 2, (large / middle) ** 3),
    }
    done: dict[tuple[int, int], Any] = {}
    for (size, workers, limit), (other, by, scale) in list(runs.items())[3 if smoke else 0 : 5 if smoke else None]:
        if smoke and workers:
            found = by_workers(size, workers, limit, 1)
        elif workers:
            found = fresh(by_workers, size, workers, limit, 2 if size == small else 1)
        else:
            found = by_lapack(size) if smoke else fresh(by_lapack, size)
        if "error" in found:
            row(size, workers, limit, found["error"], *[""] * 6)
            continue
        done[size, workers] = found
        kind = f"{by} worker{'s' * (by > 1)}" if by else "LAPACK"
        base = f"{kind}, N = {other}" + (f", × {scale:.3g}" if scale != 1 else "")
        ratio = min(found["times"]) / (scale * min(done[other, by]["times"])) if (other, by) in done else "–"
        exact = done.get((size, 0))
        apart = f"{found['score']['value'] - exact['score']['value']:.1e}" if exact else "–"
        rest = [found[key] for key in ("disk", "written", "received")] if workers else ["–"] * 3
        row(size, workers or "LAPACK", limit or "–", ratio, base, apart, found["memory"], *rest)


# -- Growth


@cell
def growing(what: str, sizes: Iterable[int]) -> list[Any]:
    """Return the times of scores, divided by that of `dpotrf` at a fixed size."""
    kind, _, nodes = what.partition(", ")
    out: list[Any] = []
    reference = potrf(REFERENCE)  # measured again at the end: a busy moment would make all scores look cheap
    make = {"grid": lambda n: poisson(n, grid=True), "grid of values": lambda n: values(n, 1e-2, grid=True)}
    solver = ps.solvers.Distributed(workers=2, memory_limit="2GB") if kind == "distributed" else solvers()[kind]
    for size in sizes:
        model = make.get(nodes, poisson)(size)
        taken, _ = timed(functools.partial(scored, model, solver), 2)
        out.append([model.size, taken])
    if kind == "distributed":
        solver.close()
    reference = min(reference, potrf(REFERENCE))
    return [[size, taken / reference] for size, taken in out]


def growth(smoke: bool, figure: Path) -> None:
    print(f"\n### Time against N, relative to dpotrf of {REFERENCE}")
    few, more, most = [1_000, 3_000, 10_000], [30_000, 100_000], [300_000, 1_000_000]
    plan = {
        "dense": [*few, 20_000],
        "distributed": [3_000, 10_000, 20_000],
        "low rank, scattered": [*few, *more, *most],
        "low rank, grid": [*few, *more, *most],
        "features, scattered": [*few, *more, *most],
        "kronecker, grid of values": [*few, *more, *most],
    }
    table("solver", "N", f"time / dpotrf of {REFERENCE}")
    curves = {}
    for what, sizes in plan.items():
        if smoke and what not in ("dense", "kronecker, grid of values"):
            continue
        found = growing(what, [300, 600]) if smoke else fresh(growing, what, sizes)
        if isinstance(found, dict):
            row(what, found["error"], "")
            continue
        curves[what] = found
        for size, ratio in found:
            row(what, size, ratio)
    drawn(curves, figure)


def drawn(curves: dict[str, Any], figure: Path) -> None:
    """Draw the curves and save them as a PNG file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for (what, found), marker in zip(curves.items(), "osv^Dx", strict=False):
        axes.loglog(*np.transpose(found), marker=marker, markersize=4, linewidth=1.3, label=what)
    axes.set_xlabel("observations N")
    axes.set_ylabel(f"time of a score / dpotrf of {REFERENCE}")
    axes.grid(True, which="major", linewidth=0.4, alpha=0.6)
    axes.legend(fontsize=8, frameon=False)
    figure.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(figure, dpi=110)
    plt.close(fig)
    print(f"\nFigure: {figure}")


# -- Peers


@cell
def matrices(kind: str, size: int, level: float | None, folder: str) -> dict[str, Any]:
    """Save the covariance of a model for the peers, and return our scores and times, including assembly."""
    model = values(size, level or 1e-2) if kind == "values" else poisson(size, 0.3, level)
    covariance = operator(model)
    matrix = covariance.dense()
    matrix = np.ascontiguousarray(np.tril(matrix) + np.tril(matrix, -1).T)
    for name, array in (("matrix", matrix), ("noise", covariance.noise), ("values", covariance.values)):
        np.save(f"{folder}/{name}.npy", array)
    dense, exact = timed(lambda: scored(model, ps.solvers.Dense()))
    quick, found = timed(lambda: scored(model, ps.solvers.LowRank()))
    return {"dense": dense, "exact": exact, "low rank": quick, "found": found}


def gpytorch(matrix: np.ndarray, noise: np.ndarray, values: np.ndarray, _: str) -> tuple[float, float]:
    """Return log det and the quadratic form by Lanczos and conjugate gradients, with the default settings."""
    torch, parts = importlib.import_module("torch"), importlib.import_module("linear_operator.operators")
    diagonal = parts.DiagLinearOperator(torch.from_numpy(noise))
    whole = parts.AddedDiagLinearOperator(parts.DenseLinearOperator(torch.from_numpy(matrix)), diagonal)
    laws = importlib.import_module("gpytorch.distributions")
    law = laws.MultivariateNormal(torch.zeros(len(noise), dtype=torch.float64), whole)
    right = torch.from_numpy(values)[:, None]
    quadratic, logdet = law.lazy_covariance_matrix.inv_quad_logdet(right, logdet=True)
    return float(logdet), float(quadratic)


def imate(matrix: np.ndarray, noise: np.ndarray, values: np.ndarray, _: str) -> tuple[float, float]:
    """Return log det by stochastic Lanczos quadrature, with the default settings."""
    return float(importlib.import_module("imate").logdet(matrix + np.diag(noise), method="slq")), np.nan


def detkit(matrix: np.ndarray, noise: np.ndarray, values: np.ndarray, folder: str) -> tuple[float, float]:
    """Return the exact log det, computed out of core with memory for a quarter of the matrix."""
    memdet = importlib.import_module("detkit").memdet
    found = memdet(matrix, d=noise, max_mem=matrix.nbytes // 4, assume="spd", scratch_dir=folder)
    return float(found[0]), np.nan


PEERS: dict[str, Callable[..., tuple[float, float]]] = {"gpytorch": gpytorch, "imate": imate, "detkit": detkit}


@cell
def peer(name: str, folder: str) -> dict[str, Any]:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return {"error": f"{name} is not installed"}
    arrays = [np.load(f"{folder}/{each}.npy") for each in ("matrix", "noise", "values")]
    times, found = [], []
    for _ in range(4):
        start = time.perf_counter()
        found.append(PEERS[name](*arrays, folder))
        times.append(time.perf_counter() - start)
    return {"time": min(times), "found": found, "version": version}


def peers(python: str) -> None:
    print("\n### log det of the same matrices by other packages (given the matrix; pilescore also assembles it)")
    print("\nErrors are the largest, and times the shortest, of four calls.")
    table("model", "N", "noise", "method", "error of log det / N", "of PILE", "time / LowRank", "time / Dense")
    versions, missing = {}, set()
    cases = [("values", 2000, 1e-2), ("values", 2000, 1e-4), ("values", 5000, 1e-2), ("values", 5000, 1e-4)]
    for kind, size, level in [*cases, ("Poisson", 5000, None), ("Poisson", 5000, 1e-4)]:
        with tempfile.TemporaryDirectory() as folder:
            ours = fresh(matrices, kind, size, level, folder)
            first = kind, size, "paper" if level is None else f"{level:.0e}"
            exact, found = ours["exact"], ours["found"]
            width = f"PILE within {found['upper'] - found['lower']:.1e}, proved"
            gap = found.get("complexity", np.nan) - exact["complexity"]
            middle = f"{abs(0.5 * (found['lower'] + found['upper']) - exact['value']):.1e}"
            row(*first, f"LowRank, {width}", f"{abs(gap):.1e}", middle, 1.0, ours["low rank"] / ours["dense"])
            row(*first, "Dense", "–", "–", ours["dense"] / ours["low rank"], 1.0)
            for name in PEERS:
                theirs = fresh(peer, name, folder, python=python)
                if "error" in theirs:
                    missing.add(f"{name}: {theirs['error']}")
                    continue
                versions[name] = theirs["version"]
                worst = max(abs(logdet / size - exact["complexity"]) for logdet, _ in theirs["found"])
                taken = theirs["time"]
                totals = np.sum(theirs["found"], axis=1) / size + np.log(2 * np.pi)
                apart = "–" if np.isnan(totals).any() else f"{np.abs(totals - exact['value']).max():.1e}"
                row(*first, name, f"{worst:.1e}", apart, taken / ours["low rank"], taken / ours["dense"])
    print("\nVersions: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    for each in sorted(missing):
        print(f"Skipped: {each}")


def main() -> None:
    names = ("certified", "hundred_thousand", "million", "distributed", "growth", "peers")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small sizes without the peers, a smoke test")
    parser.add_argument("--part", nargs="+", choices=names, default=names, help="the parts to run; all by default")
    parser.add_argument("--figure", type=Path, default=FIGURE, help="the file for the figure of part growth")
    parser.add_argument("--peers-python", default=sys.executable, help="a Python interpreter with the peers installed")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore", ps.errors.PrecisionWarning)
    if options.cell:
        name, *given = json.loads(options.cell)
        print(json.dumps(CELLS[name](*given)))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that cells end with this process
    for part in options.part:
        if part == "growth":
            figure = Path(tempfile.mkdtemp()) / "scale.png" if options.smoke else options.figure
            growth(options.smoke, figure)
        elif part != "peers":
            globals()[part](options.smoke)
        elif not options.smoke:
            peers(options.peers_python)


if __name__ == "__main__":
    main()
