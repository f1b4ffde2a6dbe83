"""The published method for coefficients from two snapshots, on the draws on which `benchmarks.published` is measured.

Published estimates from noisy snapshots are single draws. To compare the methods, and not the draws, this script
repeats the method of the paper (Raissi and Karniadakis, Hidden physics models, 2018) on the same draws: a Gaussian
process for the later snapshot, backward Euler for the earlier one, with the readings themselves in the nonlinear term,
and the marginal likelihood of both. `python -m benchmarks.two_snapshots` compares it with the stored results of
`benchmarks.published`; `--smoke` uses one draw of one equation.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

import pilescore as ps

from .published import hidden_physics
from .published.__main__ import RESULTS
from .published.rows import Store
from .published.yardstick import SPREAD, Measured, Yardstick, draws_within

BOUNDS = {"kernel.bandwidth": (0.1, 30), "eta": (1e-4, 1e4), "gamma": (1e-9, 1), "lambda1": (0.1, 100)}
LAST = {2: (0.001, 1.0), 3: (0.1, 100.0)}
"""The bounds of the coefficient of the last term, by its order. Bounds and starts of coefficients are those of
`benchmarks.published`: the starts are in the middle."""

DIFFUSION, DISPERSION = 2, 3
"""The orders of the last derivative of the two equations."""


def backward_euler(readings: Mapping[str, np.ndarray], order: int) -> ps.Minimum:
    """Return the minimum of the joint score of two snapshots, with one step of backward Euler between them."""
    t, x, u = readings["t"], readings["x"], readings["u"]
    early, late = t == t.min(), t == t.max()
    step = t.max() - t.min()
    sorted_x, sorted_u = (jnp.asarray(column[early][np.argsort(x[early])]) for column in (x, u))
    (dx,) = ps.partials(ps.Box(x=(x.min(), x.max())))
    over = BOUNDS | {"lambda2": LAST[order]}
    first, last = (ps.parameter(name, float(np.sqrt(np.prod(over[name])))) for name in ("lambda1", "lambda2"))
    earlier = ps.coefficient(lambda point: jnp.interp(point[0], sorted_x, sorted_u), "earlier")
    linear = last * dx**3 if order == DISPERSION else -last * dx**2
    data = [
        ps.observe(ps.identity, u[late], at=x[late], name="late"),
        ps.observe(ps.identity + step * (first * earlier * dx + linear), u[early], at=x[early], name="early"),
    ]
    model = ps.Model(ps.RBF(1.0), data, gamma=1e-3, eta=u.var())
    return ps.minimize(model, over, score="joint", starts=3, run=ps.RunOptions(progress=False))


def measured(yardstick: Yardstick, draw: int) -> Measured:
    """Return the estimates of the published method for one draw of a problem, and the larger relative error."""
    order = DISPERSION if "kdv" in yardstick.name else DIFFUSION
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        best = backward_euler(yardstick.pose(draw).tables["snapshots.csv"], order)
    error = max(abs(best.values[name] / value - 1) for name, value in yardstick.truth.items())
    spreads = {name + SPREAD: best.standard_errors[name] for name in yardstick.truth}
    return {name: best.values[name] for name in yardstick.truth} | spreads | {"largest relative error": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="one draw of one equation")
    smoke = parser.parse_args().smoke
    rows = Store(RESULTS).rows
    print("| problem | draws | published, one draw | published method | pilescore | within two standard errors |")
    print("|---|---|---|---|---|---|")
    for yardstick in hidden_physics.YARDSTICKS[:1] if smoke else hidden_physics.YARDSTICKS:
        ours = [draw.measured for draw in rows[yardstick.name].draws][: 1 if smoke else None]
        theirs = [measured(yardstick, draw) for draw in range(len(ours))]
        errors = [statistics.median(each["largest relative error"] for each in draws) for draws in (theirs, ours)]
        within = [f"{draws_within(2.0, draws, yardstick.truth)}" for draws in (theirs, ours)]
        published = yardstick.published.split("largest relative error ")[1].split(";")[0]
        cells = (yardstick.name, len(ours), published, *(f"{error:.3g}" for error in errors), " and ".join(within))
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
