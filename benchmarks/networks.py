"""The time of scoring a trained network, relative to its Jacobian and an eigendecomposition.

Every number is the time of `network_pile`, divided by the time of a hand-written Jacobian of the same rows and
`scipy.linalg.eigh` of the smaller Gram matrix. The times are medians of interleaved repetitions in one process, after
a first call that compiles:

    python -m benchmarks.networks            # the table
    python -m benchmarks.networks --smoke    # small sizes, a smoke test
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.linalg import eigh

import pilescore as ps

LIMIT = 3.0
BETA = 20.0
STRIP = ps.Box(t=(0, 1), x=(0, 2 * np.pi))


def initialised(sizes: list[int]) -> list[tuple[jax.Array, jax.Array]]:
    keys = jax.random.split(jax.random.key(0), len(sizes))
    pairs = zip(keys, sizes[:-1], sizes[1:], strict=False)
    return [(jax.random.normal(key, (a, b)) / np.sqrt(a), jnp.zeros(b)) for key, a, b in pairs]


def apply(params: Any, point: jax.Array) -> jax.Array:
    for weights, bias in params[:-1]:
        point = jnp.tanh(point @ weights + bias)
    return (point @ params[-1][0] + params[-1][1])[0]


def model(inside: int, sides: int) -> ps.Model:
    """Return a model of convection: the equation and the initial condition."""
    dt, dx = ps.partials(STRIP)
    return ps.Model(
        kernel=ps.RBF(bandwidth=1.0),
        physics=[
            ps.impose(dt + BETA * dx, 0.0, on=STRIP.interior(ps.quadrature.MonteCarlo(inside, seed=1))),
            ps.dirichlet(lambda p: jnp.sin(p[1]), on=STRIP.face(t=0)(ps.quadrature.MonteCarlo(sides, seed=2))),
        ],
    )


def residual(params: Any, point: jax.Array) -> jax.Array:
    slope = jax.grad(apply, argnums=1)(params, point)
    return slope[0] + BETA * slope[1]


def rows_of(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Return the gradients of a function in the parameters at all points, as one compiled function."""
    return jax.jit(jax.vmap(lambda p, x: ravel_pytree(jax.grad(function)(p, x))[0], (None, 0)))


def times(jobs: dict[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Return the median time of each job; the jobs run alternately."""
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeat):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in taken.items()}


def measure(sizes: list[int], inside: int, sides: int, repeat: int) -> None:
    params, posed = initialised(sizes), model(inside, sides)
    equation, initial = rows_of(residual), rows_of(apply)
    points = [jnp.asarray(block.points) for block in posed.blocks]

    def jacobian() -> np.ndarray:
        return np.concatenate([np.asarray(equation(params, points[0])), np.asarray(initial(params, points[1]))])

    first = jacobian()
    n, p = first.shape
    gram = first @ first.T if n <= p else first.T @ first
    half = 8.0 * n * p / 2 + 8.0 * 3 * min(n, p) ** 2
    found = times(
        {
            "jacobian": jacobian,
            "eigh": lambda: eigh(gram, driver="evd"),
            "held": lambda: ps.network_pile(apply, params, posed, progress=False),
            "streamed": lambda: ps.network_pile(
                apply, params, posed, points=ps.networks.ScoringPoints(memory=half), progress=False
            ),
            "last layer": lambda: ps.network_pile(apply, params, posed, parameters="last layer", progress=False),
        },
        repeat + 1,
    )
    bare = found["jacobian"] + found["eigh"]
    names = ("held", "streamed", "last layer")
    ratios = " | ".join(f"{found[name] / bare:.2f}" for name in names)
    print(f"| {n} | {p} | {found['jacobian'] / bare:.0%} | {ratios} | {LIMIT:g} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="small sizes, a smoke test")
    smoke = parser.parse_args().smoke
    print("| rows | parameters | share of the Jacobian | stored | streamed | last layer | at most (stored) |")
    print("|---|---|---|---|---|---|---|")
    if smoke:
        measure([2, 16, 16, 1], 60, 20, 2)
        return
    measure([2, 98, 98, 98, 1], 850, 150, 7)
    measure([2, 40, 40, 1], 4500, 500, 5)
    measure([2, 150, 150, 150, 150, 1], 1700, 300, 3)


if __name__ == "__main__":
    main()
