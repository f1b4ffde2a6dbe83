"""The time of solving a nonlinear model, relative to LAPACK's Cholesky factorisations of the same size.

Every number is the time of a solve, divided by its number of factorisations times the time of `dpotrf` for the same
matrix. Both times are medians of interleaved repetitions in one process:

    python -m benchmarks.nonlinear            # the table
    python -m benchmarks.nonlinear --smoke    # small sizes, a smoke test
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from scipy.linalg import lapack

import pilescore as ps
from pilescore.covariance.gram import covariance
from pilescore.covariance.tiles import assembly

LIMIT = 2.0


def sides(lower: tuple[float, float], upper: tuple[float, float], count: int) -> np.ndarray:
    """Return equispaced points along the sides of a rectangle."""
    along = np.linspace(0, 1, count // 4 + 1)[:-1]
    zero, one = np.zeros(len(along)), np.ones(len(along))
    unit = np.concatenate([np.c_[along, zero], np.c_[one, along], np.c_[1 - along, one], np.c_[zero, 1 - along]])
    return np.asarray(lower) + unit * (np.asarray(upper) - np.asarray(lower))


def posed(
    equation: ps.Nonlinear, source: object, box: ps.Box, bandwidth: object, counts: tuple[int, int], noise: float
) -> ps.Model:
    """Return a model of an equation at random points in a rectangle, with zero boundary values."""
    inner, outer = counts
    lower, upper = (box.lower[0], box.lower[1]), (box.upper[0], box.upper[1])
    points = np.random.default_rng(0).uniform(lower, upper, (inner, 2))
    edge = sides(lower, upper, outer)
    return ps.Model(
        kernel=ps.RBF(bandwidth=bandwidth),
        physics=[
            ps.impose(equation, source, on=ps.domains.nodes_at(points, np.ones(inner)), noise=noise),
            ps.impose(ps.identity, 0.0, on=ps.domains.nodes_at(edge, np.ones(len(edge))), noise=1e-2 * noise),
        ],
    )


def elliptic(inner: int, outer: int) -> ps.Model:
    """Return a model of −Δu + u³ = g."""
    square = ps.Box(x=(0, 1), y=(0, 1))
    equation = ps.Nonlinear(lambda p, u, lap: -lap + u**3, of=(ps.identity, ps.laplacian(square)))
    source = equation(lambda p: jnp.sin(jnp.pi * p[0]) * jnp.sin(jnp.pi * p[1]))
    return posed(equation, source, square, 0.2, (inner, outer), 1e-3)


def burgers(inner: int, outer: int) -> ps.Model:
    """Return a model of u_t + u u_x = 0.02 u_xx + g."""
    strip = ps.Box(t=(0, 1), x=(-1, 1))
    dt, dx = ps.partials(strip)
    equation = ps.Nonlinear(
        lambda p, u, u_t, u_x, u_xx, nu: u_t + u * u_x - nu * u_xx,
        of=(ps.identity, dt, dx, dx**2),
        parameters={"nu": 0.02},
    )
    source = equation(lambda p: -jnp.sin(jnp.pi * p[1]) * jnp.sin(jnp.pi * p[0]))
    return posed(equation, source, strip, np.array([0.3, 0.1]), (inner, outer), 1e-2)


def eikonal(inner: int, outer: int) -> ps.Model:
    """Return a model of |∇u|² = 1 + 0.1 Δu."""
    square = ps.Box(x=(0, 1), y=(0, 1))
    dx, dy = ps.partials(square)
    equation = ps.Nonlinear(lambda p, u_x, u_y, lap: u_x**2 + u_y**2 - 0.1 * lap, of=(dx, dy, ps.laplacian(square)))
    return posed(equation, 1.0, square, 0.2, (inner, outer), 1e-2)


WORKLOADS: dict[str, Callable[[int, int], ps.Model]] = {
    "elliptic, −Δu + u³ = g": elliptic,
    "Burgers": burgers,
    "regularised Eikonal": eikonal,
}


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measured(model: ps.Model, repetitions: int) -> tuple[ps.nonlinear.Solution, float, float, float]:
    """Return the solution, and the times per factorisation, of a warm solve and of a gradient, in units of dpotrf."""
    names = ["kernel.bandwidth", "physics.0.rho", "eta"]
    solved = ps.solve_nonlinear(model)
    ps.pile_and_gradient(model, names)
    parts = assembly(solved.model.blocks)
    matrix = covariance(model.kernel, parts.rows, 1.0)
    matrix.T.flat[:: model.size + 1] += model.noise[parts.rows.order]

    def factored() -> float:
        copy = matrix.copy(order="F")
        return seconds(lambda: lapack.dpotrf(copy, lower=1, overwrite_a=1))

    times: list[tuple[float, float, float, float]] = []
    for _ in range(repetitions):
        times.append(
            (
                factored(),
                seconds(lambda: ps.solve_nonlinear(model)),
                seconds(lambda: ps.solve_nonlinear(model, starts=solved)),
                seconds(lambda: ps.pile_and_gradient(model, names)),
            )
        )
    potrf, solve, warm, gradient = (statistics.median(column) for column in zip(*times, strict=True))
    return solved, solve / (solved.factorisations * potrf), warm / potrf, gradient / potrf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small sizes, a smoke test")
    smoke = parser.parse_args().smoke
    warnings.simplefilter("ignore", ps.errors.PrecisionWarning)
    print("| workload | N | factorisations | solve / factorisations | at most | warm solve | with gradient |")
    print("|---|---|---|---|---|---|---|")
    for name, make in WORKLOADS.items():
        model = make(100, 40) if smoke else make(1000, 200)
        solved, each, warm, gradient = measured(model, 1 if smoke else 7)
        print(
            f"| {name}, {solved.status} | {model.size} | {solved.factorisations} | {each:.2f} | {LIMIT} | {warm:.1f} "
            f"| {gradient:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
