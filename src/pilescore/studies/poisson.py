"""The Poisson problem: noisy values of f and of Δf on a grid, scored, solved and compared with the exact solution.

Run it with `python -m pilescore.studies.poisson`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import pilescore as ps

SQUARE = ps.Box(x=(-1, 1), y=(-1, 1))
LAPLACIAN = ps.laplacian(SQUARE)
SIDE = 13
BANDWIDTHS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5)


def forcing(p: Array) -> Array:
    """Return `g = 10 + 10 sin 2πx sin 2πy`."""
    return 10 + 10 * jnp.sin(2 * jnp.pi * p[0]) * jnp.sin(2 * jnp.pi * p[1])


def solution(p: Array, terms: int = 40) -> Array:
    """Return the solution of `Δf = g`, `f = 0` on the boundary of the square.

    The constant part of the forcing gives the torsion function of the square as a series of cosines in y, in which
    `cosh ax / cosh a` is written with decaying exponentials; the rest is an eigenfunction of the Laplacian.
    """
    k = 2 * jnp.arange(terms) + 1
    a = 0.5 * jnp.pi * k
    sign = 1 - 2.0 * (jnp.arange(terms) % 2)
    ratio = (jnp.exp(a * (p[0] - 1)) + jnp.exp(-a * (p[0] + 1))) / (1 + jnp.exp(-2 * a))
    torsion = -0.5 * (1 - p[1] ** 2) + jnp.sum(2 * sign / a**3 * ratio * jnp.cos(a * p[1]))
    wave = -10 / (8 * jnp.pi**2) * jnp.sin(2 * jnp.pi * p[0]) * jnp.sin(2 * jnp.pi * p[1])
    return 10 * torsion + wave


def model(bandwidth: float | int, seed: int = 0, side: int = SIDE) -> ps.Model:
    """Return the model: f and Δf on a Chebyshev grid, both with noise N(0, 1), an RBF kernel, the true temperatures."""
    nodes = SQUARE.interior(ps.Chebyshev(side))
    rng = np.random.default_rng(seed)
    exact = [np.asarray(jax.vmap(f)(jnp.asarray(nodes.points))) for f in (solution, forcing)]
    values, sources = (part + rng.standard_normal(len(nodes)) for part in exact)
    return ps.Model(
        kernel=ps.RBF(bandwidth=bandwidth),
        data=ps.observe(ps.identity, values=values, at=nodes.points),
        physics=ps.impose(LAPLACIAN, sources, on=nodes),
        gamma=2.0,
        rho=2.0 * float(nodes.weights[0]),
    )


def table(bandwidths: Sequence[float] = BANDWIDTHS, seed: int = 0) -> list[dict[str, Any]]:
    """Return PILE and both errors for each bandwidth."""
    base = model(bandwidths[0], seed)
    fine = SQUARE.interior(ps.GaussLegendre(30))
    rows = []
    for h in bandwidths:
        candidate = base.replace({"kernel.bandwidth": h})
        errors = ps.accuracy(candidate, solution, on=fine, operator=LAPLACIAN, operator_truth=forcing)
        assert errors.physics is not None
        rows.append({"bandwidth": h, "pile": ps.pile(candidate), "data": errors.data, "physics": errors.physics})
    return rows


def main() -> None:
    """Print the table and what PILE chooses."""
    print("Poisson: Δf = 10 + 10 sin 2πx sin 2πy on (-1, 1)², f = 0 on the boundary.")
    print(f"{SIDE}×{SIDE} nodes, f and Δf measured with noise N(0, 1). Lower PILE is better.\n")
    print(f"{'bandwidth':>9}  {'PILE':>8}  {'error in f':>10}  {'error in Δf':>11}")
    rows = table()
    best = min(rows, key=lambda row: row["pile"].value)
    for row in rows:
        mark = "  <- PILE chooses" if row is best else ""
        print(
            f"{row['bandwidth']:9.2f}  {row['pile'].value:8.4f}  {row['data'].value:10.4g}  "
            f"{row['physics'].value:11.4g}{mark}"
        )
    print("\nErrors are relative expected squared errors of the posterior, R_data and R_phys.")
    print(best["pile"])


if __name__ == "__main__":
    main()
