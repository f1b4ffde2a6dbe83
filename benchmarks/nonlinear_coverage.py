"""How often the coefficients of nonlinear equations, inferred from two noisy snapshots, lie within two standard errors.

Korteweg–de Vries and Burgers as in the literature on hidden physics models: 111 + 109 and 71 + 69 random points at two
times 0.1 apart, with noise of 1% of the standard deviation. `python -m benchmarks.nonlinear_coverage` draws points and
noise with each of 20 seeds; `--smoke` uses one seed. Kernel, prior variance, noise and both coefficients are found
together, from one start away from the truth. The exit code is 1 if both coefficients lie within two standard errors in
fewer than 17 of 20 draws of an equation.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import pilescore as ps

LATER = 0.1
"""The time between the snapshots."""

NOISE = 0.01
"""The standard deviation of the noise, as a fraction of that of the solution."""

TOLERANCE = 1e-4
"""The noise of the imposed equation."""

NEEDED = 0.85
"""The fraction of draws in which both coefficients must lie within two standard errors."""


def _kdv(p: Any, u: Any, u_x: Any, u_t: Any, u_xxx: Any, first: Any, second: Any) -> Any:
    return u_t + first * u * u_x + second * u_xxx


def _burgers(p: Any, u: Any, u_x: Any, u_t: Any, u_xx: Any, first: Any, second: Any) -> Any:
    return u_t + first * u * u_x - second * u_xx


def _solitons(x: np.ndarray) -> np.ndarray:
    pairs = ((1.2, -18.0), (0.6, -3.0))
    return np.sum([0.5 * c / np.cosh(0.5 * np.sqrt(c) * (x - at)) ** 2 for c, at in pairs], axis=0)


@dataclasses.dataclass(frozen=True)
class Case:
    """An equation `u_t + λ₁ u u_x + … = 0` with periodic boundaries, and its observations."""

    function: Callable[..., Any]
    order: int
    """The order of the last derivative."""
    initial: Callable[[np.ndarray], np.ndarray]
    half_width: float
    first_time: float
    truth: tuple[float, float]
    start: tuple[float, float]
    counts: tuple[int, int]
    nodes: tuple[int, int]

    def snapshots(self, size: int = 512, step: float = 1e-3) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return a grid and the solution at the two times, by Fourier modes with an integrating factor."""
        x = -self.half_width + 2 * self.half_width / size * np.arange(size)
        k = np.pi / self.half_width * np.arange(size // 2 + 1)
        half = np.exp(0.5 * step * self.truth[1] * (1j * k**3 if self.order == 3 else -(k**2)))
        advection = -0.5j * step * self.truth[0] * k * (np.arange(len(k)) < size / 3)

        def change(v: np.ndarray) -> np.ndarray:
            return advection * np.fft.rfft(np.fft.irfft(v, size) ** 2)

        v, found = np.fft.rfft(self.initial(x)), []
        for duration in (self.first_time, LATER):
            for _ in range(round(duration / step)):
                a = change(v)
                b = change(half * (v + a / 2))
                c = change(half * v + b / 2)
                d = change(half * (half * v + c))
                v = half * (half * (v + a / 6) + (b + c) / 3) + d / 6
            found.append(np.fft.irfft(v, size))
        return x, found

    def model(self, x: np.ndarray, snapshots: list[np.ndarray], seed: int) -> ps.Model:
        """Return the model of one draw, with the start values of the search."""
        rng, deviation = np.random.default_rng(seed), float(np.std(snapshots))
        points, values = [], []
        for t, u, count in zip((0.0, LATER), snapshots, self.counts, strict=True):
            chosen = rng.choice(len(x), count, replace=False)
            points.append(np.stack([np.full(count, t), x[chosen]], axis=1))
            values.append(u[chosen] + NOISE * deviation * rng.standard_normal(count))
        strip = ps.Box(t=(0.0, LATER), x=(-self.half_width, self.half_width))
        dt, dx = ps.partials(strip)
        parameters = dict(zip(("first", "second"), self.start, strict=True))
        equation = ps.Nonlinear(self.function, (ps.identity, dx, dt, dx**self.order), parameters=parameters)
        readings = np.concatenate(values)
        return ps.Model(
            ps.kernels.Evolution(ps.RBF(self.half_width / 15), (0.0, LATER)),
            data=ps.observe(ps.identity, readings, at=np.concatenate(points)),
            physics=ps.impose(equation, 0.0, on=strip.interior(ps.GaussLegendre(self.nodes)), noise=TOLERANCE),
            gamma=2 * (0.02 * float(np.std(readings))) ** 2,
            eta=float(np.var(readings)),
        )

    def inferred(self, model: ps.Model) -> ps.search.Minimum:
        """Return the minimum of the score of the data given the equation."""
        parameters = model.parameters
        over: dict[str, tuple[float, float]] = {
            "kernel.state.bandwidth": (self.half_width / 60, self.half_width / 3),
            **{name: (1e-3 * float(parameters[name]), 1e3 * float(parameters[name])) for name in ("gamma", "eta")},
            **{name: (0.1 * value, 10 * value) for name, value in zip(("first", "second"), self.start, strict=True)},
        }
        return ps.minimize(model, over, score="given_physics", run=ps.RunOptions(progress=False))


CASES = {
    "Korteweg–de Vries": Case(_kdv, 3, _solitons, 30.0, 16.2, (6.0, 1.0), (4.0, 0.6), (111, 109), (3, 120)),
    "Burgers": Case(
        _burgers, 2, lambda x: -np.sin(np.pi * x / 8), 8.0, 8.1, (1.0, 0.1), (0.7, 0.06), (71, 69), (3, 120)
    ),
}


def covered(case: Case, seeds: range) -> int:
    """Print a row for each draw and a summary; return in how many draws both coefficients are covered."""
    x, snapshots = case.snapshots()
    scaled = []
    print("| seed | λ₁ | λ₂ | errors in standard errors | search | seconds |\n|---|---|---|---|---|---|")
    for seed in seeds:
        began = time.perf_counter()
        best = case.inferred(case.model(x, snapshots, seed))
        found = [(best.values[name], best.standard_errors[name]) for name in ("first", "second")]
        row = [(value - truth) / error for (value, error), truth in zip(found, case.truth, strict=True)]
        shown = " | ".join(f"{value:.4g} ± {error:.2g}" for value, error in found)
        seconds = time.perf_counter() - began
        print(f"| {seed} | {shown} | {row[0]:+.2f}, {row[1]:+.2f} | {best.status} | {seconds:.0f} |", flush=True)
        scaled.append(row)
    both = int((np.abs(scaled) < 2).all(axis=1).sum())
    mean, spread = np.mean(scaled, axis=0), np.sqrt(np.mean(np.square(scaled), axis=0))
    print(f"\nBoth within two standard errors: {both} of {len(scaled)}. Errors in standard errors: mean ", end="")
    print(f"{mean[0]:+.2f}, {mean[1]:+.2f}; root mean square {spread[0]:.2f}, {spread[1]:.2f}.\n", flush=True)
    return both


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--only", choices=list(CASES))
    options = parser.parse_args()
    seeds = range(1 if options.smoke else 20)
    good = True
    for name, case in CASES.items():
        if options.only in (None, name):
            print(f"{name}: truth {case.truth[0]:g}, {case.truth[1]:g}\n")
            good &= covered(case, seeds) >= NEEDED * len(seeds) or options.smoke
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
