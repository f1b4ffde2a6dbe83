"""The suite's problems: equations with known solutions, noisy data drawn by a seed, and what is to be chosen.

Data lie at random points. The geometric middle of the bounds is where every model starts. Conditions are imposed where
they would be known; in most problems some side, or the start, is left to the data. There are more nodes than data, as
is usual.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pilescore as ps

from . import solutions as exact
from .problem import Case, at, driven, problem, two

__all__ = ["CASES", "Case", "case"]

HELD = 0.01
"""The deviation to which boundary values hold where the source, and with it ρ, is noisy."""

BIG = ps.Box(x=(-1, 1), y=(-1, 1))
UNIT = ps.Box(x=(0, 1), y=(0, 1))
STRIP = ps.Box(t=(0, 1), x=(0, 1))
ROUND = ps.Box(t=(0, 1), x=(0, 2 * math.pi))
STRING = ps.Box(t=(0, 2), x=(0, 1))
SWING = ps.Box(t=(0, 8))
CUBE = ps.Box(x=(0, 1), y=(0, 1), z=(0, 1))
DISK = ps.Disk()
RING = ps.Annulus(center=(0, 0), inner=0.5, outer=1)
SIDE = ps.GaussLegendre(8)


def _poisson() -> Case:
    noise = 0.5
    equation = driven(-ps.laplacian(BIG), exact.torsion_source, BIG.interior(ps.Chebyshev(10)), noise)
    return problem(
        "poisson",
        "Poisson's equation on a square, with a measured source",
        exact.torsion,
        lambda rng: [*equation(rng), ps.dirichlet(0.0, on=BIG.boundary(SIDE), noise=HELD)],
        kernel=ps.RBF(1.0),
        lengths={"kernel.bandwidth": (0.1, 4.0)},
        on=BIG.interior(ps.GaussLegendre(20)),
        data=(BIG, 40),
        noise=0.04,
        size=3.0,
        source_noise=noise,
    )


def _helmholtz() -> Case:
    operator = ps.identity + ps.laplacian(UNIT) / exact.WAVENUMBER**2
    walls = UNIT.face(y=0), UNIT.face(y=1)
    return problem(
        "helmholtz",
        "Sound in a duct with hard walls and open ends, by Helmholtz's equation",
        exact.duct,
        lambda rng: [
            ps.impose(operator, 0.0, on=UNIT.interior(ps.GaussLegendre(11))),
            *(ps.neumann(0.0, on=wall(SIDE)) for wall in walls),
        ],
        kernel=ps.RBF(1.0),
        lengths={"kernel.bandwidth": (0.05, 2.0)},
        on=UNIT.interior(ps.GaussLegendre(20)),
        data=(UNIT, 50),
        noise=0.04,
    )


def _convection(
    velocity: float, count: int, noise: float, rule: ps.Rule, conditions: Callable[[], list[Any]] = list
) -> Case:
    """Return convection with a kernel whose axis is the characteristic direction."""
    dt, dx = ps.partials(ROUND)
    equation = ps.impose(dt + velocity * dx, 0.0, on=ROUND.interior(rule))
    return problem(
        f"convection-{velocity:g}",
        f"Convection at speed {velocity:g}, with a kernel along the characteristics",
        exact.carried(velocity),
        lambda rng: [equation, *conditions()],
        kernel=ps.AnisotropicRBF(theta=math.atan(velocity), s=1.0),
        lengths={"kernel.s": (0.025, 1.0) if velocity < 5 else (0.01, 0.4), "kernel.bandwidth": (0.1, 4.0)},
        on=ROUND.interior(ps.GaussLegendre((28, 20))),
        data=(ROUND, count),
        noise=noise,
        size=math.hypot(1.0, velocity),
        least=2e-4,
    )


def _around() -> list[Any]:
    """Return that the solution has the period 2π, and how it starts."""
    left, right = (ROUND.face(x=x)(ps.GaussLegendre(12)) for x in (0, 2 * math.pi))
    start = ROUND.face(t=0)(SIDE)
    return [*ps.periodic(left, right), ps.dirichlet(at(exact.carried(10.0), start.points), on=start)]


def _heat() -> Case:
    dt, dx = ps.partials(STRIP)
    return problem(
        "heat",
        "Heat in a rod, cold at one end and insulated at the other, from an unknown start",
        exact.rod,
        lambda rng: [
            ps.impose(dt - exact.CONDUCTION * dx**2, 0.0, on=STRIP.interior(ps.GaussLegendre(10))),
            ps.dirichlet(0.0, on=STRIP.face(x=0)(SIDE)),
            ps.neumann(0.0, on=STRIP.face(x=1)(SIDE)),
        ],
        kernel=ps.RBF([1.0, 1.0]),
        lengths=two((0.05, 2.0), (0.05, 2.0)),
        on=STRIP.interior(ps.GaussLegendre(20)),
        data=(STRIP, 50),
        noise=0.03,
        least=2e-4,
    )


def _wave() -> Case:
    dt, dx = ps.partials(STRING)
    return problem(
        "wave",
        "A string held at both ends, its start unknown, by the wave equation",
        exact.string,
        lambda rng: [
            ps.impose(dt**2 - dx**2, 0.0, on=STRING.interior(ps.GaussLegendre((14, 9)))),
            *(ps.dirichlet(0.0, on=STRING.face(x=x)(SIDE)) for x in (0, 1)),
        ],
        kernel=ps.RBF([1.0, 1.0]),
        lengths=two((0.05, 2.0), (0.05, 2.0)),
        on=STRING.interior(ps.GaussLegendre((26, 18))),
        data=(STRING, 60),
        noise=0.04,
        size=3.0,
        least=2e-4,
    )


def _layer() -> Case:
    dx, _ = ps.partials(UNIT)
    return problem(
        "layer",
        "Advection and diffusion on a square, with a layer at the outflow and an unknown inflow",
        exact.layer,
        lambda rng: [
            ps.impose(dx - exact.THIN * ps.laplacian(UNIT), 0.0, on=UNIT.interior(ps.GaussLegendre((16, 9)))),
            *(ps.dirichlet(0.0, on=face(SIDE)) for face in (UNIT.face(x=1), UNIT.face(y=0), UNIT.face(y=1))),
        ],
        kernel=ps.RBF([1.0, 1.0]),
        lengths=two((0.025, 1.0), (0.05, 2.0)),
        on=UNIT.interior(ps.GaussLegendre((28, 16))),
        data=(UNIT, 60),
        noise=0.04,
        least=2e-4,
    )


def _biharmonic() -> Case:
    operator = exact.RIGIDITY * ps.laplacian(UNIT) ** 2
    equation = driven(operator, exact.plate_load, UNIT.interior(ps.GaussLegendre(10)))
    return problem(
        "biharmonic",
        "A loaded plate held at its edge, by moments unknown: the biharmonic equation",
        exact.plate,
        lambda rng: [*equation(rng), ps.dirichlet(0.0, on=UNIT.boundary(SIDE))],
        kernel=ps.RBF(1.0),
        lengths={"kernel.bandwidth": (0.05, 2.0)},
        on=UNIT.interior(ps.GaussLegendre(16)),
        data=(UNIT, 40),
        noise=0.03,
    )


def _variable() -> Case:
    noise = 0.6
    k = ps.field(exact.conductivity, "k")
    operator = -ps.divergence(BIG, [k * d for d in ps.gradient(BIG)])
    equation = driven(operator, exact.uneven_source, BIG.interior(ps.Chebyshev(11)), noise)
    sides = [BIG.face(x=x)(SIDE) for x in (-1, 1)]
    return problem(
        "variable",
        "Flow through uneven ground with measured sources, its head known on two sides",
        exact.uneven,
        lambda rng: [
            *equation(rng),
            *(ps.dirichlet(at(exact.uneven, side.points), on=side, noise=HELD) for side in sides),
        ],
        kernel=ps.RBF(1.0),
        lengths={"kernel.bandwidth": (0.1, 4.0)},
        on=BIG.interior(ps.GaussLegendre(20)),
        data=(BIG, 50),
        noise=0.05,
        size=3.0,
        source_noise=noise,
    )


def _laplace() -> Case:
    return problem(
        "laplace",
        "A block cooled on one side, insulated on two, heated on the fourth: Laplace's equation",
        exact.block,
        lambda rng: [
            ps.impose(ps.laplacian(UNIT), 0.0, on=UNIT.interior(ps.GaussLegendre(10))),
            ps.neumann(0.0, on=UNIT.face(x=0)(SIDE)),
            ps.robin(exact.COOLING, 1.0, 0.0, on=UNIT.face(x=1)(SIDE)),
            ps.neumann(0.0, on=UNIT.face(y=0)(SIDE)),
        ],
        kernel=ps.RBF(1.0),
        lengths={"kernel.bandwidth": (0.05, 2.0)},
        on=UNIT.interior(ps.GaussLegendre(20)),
        data=(UNIT, 40),
        noise=0.03,
    )


def _oscillator() -> Case:
    (dt,) = ps.partials(SWING)
    operator = dt**2 + exact.DAMPING * dt + exact.STIFFNESS
    return problem(
        "oscillator",
        "A driven oscillator, seen in the first five of eight seconds",
        exact.oscillator,
        driven(operator, exact.oscillator_drive, SWING.interior(ps.GaussLegendre(110))),
        kernel=ps.RBF(1.0),
        lengths={"kernel.bandwidth": (0.1, 4.0)},
        on=SWING.interior(ps.GaussLegendre(200)),
        data=(ps.Box(t=(0, 5)), 40),
        noise=0.04,
        size=3.0,
    )


def _poisson_3d() -> Case:
    equation = driven(ps.laplacian(CUBE), exact.shaft_source, CUBE.interior(ps.GaussLegendre(6)))
    faces = [CUBE.face(**{axis: end}) for axis in "xy" for end in (0, 1)]
    return problem(
        "poisson-3d",
        "Poisson's equation in a cube, its two ends unknown",
        exact.shaft,
        lambda rng: [
            *equation(rng),
            *(ps.dirichlet(0.0, on=face(ps.GaussLegendre(3))) for face in faces),
        ],
        kernel=ps.RBF(1.0),
        lengths={"kernel.bandwidth": (0.1, 4.0)},
        on=CUBE.interior(ps.GaussLegendre(8)),
        data=(CUBE, 60),
        noise=0.05,
        size=3.0,
    )


def _wrong_velocity() -> Case:
    dt, dx = ps.partials(ROUND)
    return problem(
        "wrong-velocity",
        "Convection at speed 3, taken for 2",
        exact.carried(3.0),
        lambda rng: [ps.impose(dt + 2.0 * dx, 0.0, on=ROUND.interior(ps.GaussLegendre((9, 13))))],
        kernel=ps.RBF([1.0, 1.0]),
        lengths=two((0.05, 2.0), (0.2, 8.0)),
        on=ROUND.interior(ps.GaussLegendre(20)),
        data=(ROUND, 80),
        noise=0.05,
        size=2.0,
        least=2e-4,
        well_specified=False,
    )


def _noise_free() -> Case:
    dt, dx = ps.partials(STRIP)
    operator = dt + exact.DRIFT * dx - exact.SPREAD * dx**2
    return problem(
        "noise-free",
        "A pulse that drifts and spreads, from exact values alone",
        exact.pulse,
        lambda rng: [ps.impose(operator, 0.0, on=STRIP.interior(ps.GaussLegendre(11)))],
        kernel=ps.RBF([1.0, 1.0]),
        lengths=two((0.05, 2.0), (0.025, 1.0)),
        on=STRIP.interior(ps.GaussLegendre(20)),
        data=(STRIP, 40),
        noise=0.0,
        least=1e-6,
    )


def _disk() -> Case:
    return problem(
        "disk",
        "A disk heated at a spot, its boundary unknown",
        exact.spot,
        driven(-ps.laplacian(DISK), exact.spot_source, DISK.interior(ps.GaussLegendre((8, 15)))),
        kernel=ps.RBF(1.0),
        lengths={"kernel.bandwidth": (0.1, 4.0)},
        on=DISK.interior(ps.GaussLegendre((11, 28))),
        data=(DISK, 50),
        noise=0.03,
    )


def _ring() -> Case:
    return problem(
        "ring",
        "A heated ring, insulated outside and unknown inside",
        exact.ring,
        lambda rng: [
            ps.impose(-ps.laplacian(RING), exact.RING_SOURCE, on=RING.interior(ps.GaussLegendre((6, 18)))),
            ps.neumann(0.0, on=RING.outer_boundary(ps.GaussLegendre(18))),
        ],
        kernel=ps.RBF(1.0),
        lengths={"kernel.bandwidth": (0.05, 2.0)},
        on=RING.interior(ps.GaussLegendre((12, 30))),
        data=(RING, 50),
        noise=0.03,
    )


CASES: tuple[Case, ...] = (
    _poisson(),
    _helmholtz(),
    _convection(1.0, 40, 0.05, ps.GaussLegendre(11)),
    _convection(10.0, 60, 0.05, ps.GaussLegendre((14, 11)), _around),
    _convection(30.0, 120, 0.05, ps.GaussLegendre((18, 12))),
    _heat(),
    _wave(),
    _layer(),
    _biharmonic(),
    _variable(),
    _laplace(),
    _oscillator(),
    _poisson_3d(),
    _wrong_velocity(),
    _noise_free(),
    _disk(),
    _ring(),
)


def case(name: str) -> Case:
    """Return a case by its name."""
    found = {each.name: each for each in CASES}
    if name not in found:
        raise ps.InputError(f"no case {name!r}. There are: {', '.join(found)}")
    return found[name]
