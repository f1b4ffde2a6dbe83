"""Choose between advection, diffusion and both, from noisy values of a solution.

Run it with `python -m pilescore.studies.equations`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import pilescore as ps

STRIP = ps.Box(t=(0, 1), x=(0, 1))
DT, DX = ps.partials(STRIP)
SPEED, DIFFUSIVITY = 0.5, 0.02
NOISE = 0.05
TRUTHS = {
    "advection": (SPEED, 0.0),
    "diffusion": (0.0, DIFFUSIVITY),
    "advection-diffusion": (SPEED, DIFFUSIVITY),
}
BOUNDS = {
    "speed": (-2.0, 2.0),
    "diffusivity": (0.0, 0.2),
    "kernel.bandwidth": (0.05, 10.0),
    "rho": (1e-6, 1.0),
    "eta": (1e-2, 1e2),
}


def solution(speed: float, diffusivity: float, points: Any) -> Any:
    """Evaluate two damped travelling waves at points (t, x). They solve `f_t + c f_x = κ f_xx`."""
    t, x = np.asarray(points).T
    waves = [(1.0, 2 * math.pi, 0.3), (0.5, 4 * math.pi, 1.1)]
    return sum(a * np.exp(-diffusivity * k**2 * t) * np.sin(k * (x - speed * t) + phase) for a, k, phase in waves)


def equations(side: int) -> dict[str, ps.Observation]:
    """Return the candidate equations, imposed on side² nodes, with unknown coefficients."""
    speed, diffusivity = ps.parameter("speed", 0.1), ps.parameter("diffusivity", 0.01)
    candidates = {
        "advection": DT + speed * DX,
        "diffusion": DT - diffusivity * DX**2,
        "advection-diffusion": DT + speed * DX - diffusivity * DX**2,
    }
    nodes = STRIP.interior(ps.GaussLegendre(side))
    return {name: ps.impose(operator, 0.0, on=nodes) for name, operator in candidates.items()}


def find(truth: str, count: int = 150, side: int = 9, seed: int = 0, starts: int = 2) -> ps.search.Choice:
    """Draw data from a true equation, and choose among the candidates."""
    rng = np.random.default_rng(seed)
    points = rng.uniform(0, 1, (count, 2))
    values = solution(*TRUTHS[truth], points) + NOISE * rng.standard_normal(count)
    candidates = equations(side)
    model = ps.Model(
        kernel=ps.RBF(bandwidth=[0.3, 0.3]),
        data=ps.observe(ps.identity, values=values, at=points, noise=NOISE),
        physics=candidates["advection"],
        rho=1e-2,
    )
    return ps.choose(model, equations=candidates, over=BOUNDS, starts=starts, run=ps.RunOptions(progress=False))


def main() -> None:
    """Choose an equation for data from each true equation, and print the results."""
    print(f"The data are 150 values of a solution with noise {NOISE}. Each candidate is fitted and scored by PILE.")
    print(f"The true speed is {SPEED} and the true diffusivity is {DIFFUSIVITY}, if the equation has them.\n")
    for truth in TRUTHS:
        choice = find(truth)
        best = choice.best
        coefficients = [
            f"{name} = {best.values[name]:.3g} ± {best.standard_errors[name]:.1g}"
            for name in ("speed", "diffusivity")
            if name in best.values
        ]
        print(f"true equation: {truth}\nchosen: {choice.best_name}, {', '.join(coefficients)}")
        print(choice.table[["rank", "pile", "nats", "probability"]].round(3).to_string(), "\n")


if __name__ == "__main__":
    main()
