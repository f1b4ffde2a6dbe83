"""The time of the log evidence as a JAX function, in two comparisons.

A small model, an ordinary differential equation with data, is compared with its evidence written by hand in JAX and
compiled; a larger one with `ps.pile_and_gradient`. Every number is the median of ratios of times measured one after the
other:

    python -m benchmarks.log_evidence            # both tables
    python -m benchmarks.log_evidence --smoke    # small sizes, a smoke test
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pilescore as ps

from .evidence import convection, seconds

SMALL_NAMES = ["kernel.bandwidth", "gamma", "rho", "eta", "rate"]
LARGE_NAMES = ["kernel.bandwidth", "gamma", "rho"]
MOST_BY_HAND, MOST_OF_GRADIENT = 1.5, 1.15


def decay(readings: int, nodes: int) -> ps.Model:
    """Return noisy readings of `u' + 2u = sin 5t`, and the equation with an unknown rate."""
    line = ps.Box(t=(0, 1))
    (dt,) = ps.partials(line)
    t = np.linspace(0, 1, readings)
    values = np.exp(-2 * t) + 0.05 * np.random.default_rng(0).standard_normal(readings)
    physics = ps.impose(
        dt + ps.parameter("rate", 2.0), lambda p: jnp.sin(5 * p[0]), on=line.interior(ps.GaussLegendre(nodes))
    )
    return ps.Model(ps.RBF(0.3), ps.observe(ps.identity, values, at=t), physics, gamma=0.005, rho=1e-3)


def by_hand(model: ps.Model) -> Callable[[Mapping[str, Any]], Any]:
    """Return the log evidence of `decay` as one writes it by hand."""
    (data,), (physics,) = model.data, model.physics
    x, z = jnp.asarray(data.points[:, 0]), jnp.asarray(physics.points[:, 0])
    values, weights = jnp.asarray(model.values), jnp.asarray(physics.weights)

    def log_evidence(p: Mapping[str, Any]) -> Any:
        h, rate = p["kernel.bandwidth"], p["rate"]

        def parts(a: Any, b: Any) -> tuple[Any, Any, Any]:
            r = (a[:, None] - b[None, :]) / h
            return jnp.exp(-0.5 * r**2), r / h, 1 / h**2 - (r / h) ** 2

        k, _, _ = parts(x, x)
        cross, slope, _ = parts(x, z)  # ∂k/∂b = k (a − b)/h²
        inside, _, second = parts(z, z)
        corner = cross * (slope + rate)
        prior = p["eta"] * jnp.block([[k, corner], [corner.T, inside * (second + rate**2)]])
        noise = jnp.concatenate([jnp.full(len(x), 0.5 * p["gamma"]), 0.5 * p["rho"] / weights])
        factor = jnp.linalg.cholesky(prior + jnp.diag(noise))
        half = jax.scipy.linalg.solve_triangular(factor, values, lower=True)
        return -0.5 * half @ half - jnp.log(jnp.diag(factor)).sum() - 0.5 * len(half) * jnp.log(2 * jnp.pi)

    return log_evidence


def finish(work: Callable[[], Any]) -> None:
    """Do a piece of work, which JAX may only have started when it returns."""
    jax.block_until_ready(work())


def alternated(works: Mapping[str, Callable[[], Any]], repetitions: int) -> dict[str, np.ndarray]:
    """Return the times of works that take turns, in seconds."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for repetition in range(repetitions + 1):
        for name, work in works.items():
            taken = seconds(functools.partial(finish, work))
            if repetition:  # the first call compiles
                times[name].append(taken)
    return {name: np.array(series) for name, series in times.items()}


def moving(model: ps.Model, names: list[str], seed: int) -> dict[str, Any]:
    """Return hyperparameters near those of the model."""
    rng = np.random.default_rng(seed)
    return {name: jnp.asarray(model.parameters[name] * np.exp(0.05 * rng.standard_normal())) for name in names}


def small(readings: int, nodes: int, repetitions: int) -> None:
    """Print the row of a small model."""
    model = decay(readings, nodes)
    ours, theirs = ps.log_evidence_function(model, SMALL_NAMES), by_hand(model)
    values = moving(model, SMALL_NAMES, 0)
    np.testing.assert_allclose(ours(values), theirs(values), rtol=1e-8)
    functions = {
        "value": jax.jit(ours),
        "value by hand": jax.jit(theirs),
        "gradient": jax.jit(jax.value_and_grad(ours)),
        "gradient by hand": jax.jit(jax.value_and_grad(theirs)),
    }
    times = alternated({name: functools.partial(f, values) for name, f in functions.items()}, repetitions)
    value, gradient = (np.median(times[name] / times[f"{name} by hand"]) for name in ("value", "gradient"))
    absolute = ", ".join(f"{1e3 * np.median(times[name]):.2f}" for name in ("gradient", "gradient by hand"))
    print(f"| N = {model.size} | {value:.2f} | {gradient:.2f} | {MOST_BY_HAND} | {absolute} |", flush=True)


def large(data: int, side: int, repetitions: int) -> None:
    """Print the row of a larger model."""
    model = convection(data, side)
    function = jax.jit(jax.value_and_grad(ps.log_evidence_function(model, LARGE_NAMES)))
    values = moving(model, LARGE_NAMES, 0)
    there = model.replace(values)
    works = {"ours": lambda: function(values), "theirs": lambda: ps.pile_and_gradient(there, LARGE_NAMES)}
    times = alternated(works, repetitions)
    ratio = np.median(times["ours"] / times["theirs"])
    print(f"| N = {model.size} | {ratio:.2f} | {MOST_OF_GRADIENT} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small sizes and few repetitions")
    options = parser.parse_args()
    print("| decay, relative to JAX by hand | value | value and gradient | at most | ms of value and gradient |")
    print("|---|---|---|---|---|")
    for readings, nodes in [(20, 10)] if options.smoke else [(20, 20), (60, 40), (120, 80)]:
        small(readings, nodes, 5 if options.smoke else 300)
    print("\n| convection, relative to pile_and_gradient | value and gradient | at most |\n|---|---|---|")
    for data, side in [(200, 18)] if options.smoke else [(500, 10), (1000, 20)]:
        large(data, side, 2 if options.smoke else 15)


if __name__ == "__main__":
    main()
