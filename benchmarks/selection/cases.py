"""The cases of the benchmark: equations with known solutions, random noisy data, and hyperparameters to choose.

Data are at random points. Every model starts at the geometric middle of the bounds. In most cases the conditions on one
side, or at the start, are missing. There are more nodes than data, as usual.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pilescore as ps

from . import solutions as exact
from .case import Case, at, bandwidth_per_axis, make_case, with_source

__all__ = ["CASES", "Case", "case"]

BOUNDARY_NOISE = 0.01
"""The noise deviation of boundary values in cases with a measured source, where ρ is the noise of the source."""

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
    equation = with_source(-ps.laplacian(BIG), exact.torsion_source, BIG.interior(ps.quadrature.Chebyshev(10)), noise)
    return make_case(
        "poisson",
        "Poisson's equation on a square, with a measured source",
        exact.torsion,
        lambda rng: [*equation(rng), ps.dirichlet(0.0, on=BIG.boundary(SIDE), noise=BOUNDARY_NOISE)],
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
    return make_case(
        "helmholtz",
        "Sound in a duct with hard walls and open ends (Helmholtz)",
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
    velocity: float, count: int, noise: float, rule: ps.quadrature.Rule, conditions: Callable[[], list[Any]] = list
) -> Case:
    """Return convection with a kernel oriented along the characteristics."""
    dt, dx = ps.partials(ROUND)
    equation = ps.impose(dt + velocity * dx, 0.0, on=ROUND.interior(rule))
    return make_case(
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
    """Return the conditions: the period 2π in x, and the initial values."""
    left, right = (ROUND.face(x=x)(ps.GaussLegendre(12)) for x in (0, 2 * math.pi))
    start = ROUND.face(t=0)(SIDE)
    return [*ps.periodic(left, right), ps.dirichlet(at(exact.carried(10.0), start.points), on=start)]


def _heat() -> Case:
    dt, dx = ps.partials(STRIP)
    return make_case(
        "heat",
        "Heat in a rod, cold at one end and insulated at the other, unknown initial values",
        exact.rod,
        lambda rng: [
            ps.impose(dt - exact.CONDUCTION * dx**2, 0.0, on=STRIP.interior(ps.GaussLegendre(10))),
            ps.dirichlet(0.0, on=STRIP.face(x=0)(SIDE)),
            ps.neumann(0.0, on=STRIP.face(x=1)(SIDE)),
        ],
        kernel=ps.RBF([1.0, 1.0]),
        lengths=bandwidth_per_axis((0.05, 2.0), (0.05, 2.0)),
        on=STRIP.interior(ps.GaussLegendre(20)),
        data=(STRIP, 50),
        noise=0.03,
        least=2e-4,
    )


def _wave() -> Case:
    dt, dx = ps.partials(STRING)
    return make_case(
        "wave",
        "A string fixed at both ends, unknown initial values (wave equation)",
        exact.string,
        lambda rng: [
            ps.impose(dt**2 - dx**2, 0.0, on=STRING.interior(ps.GaussLegendre((14, 9)))),
            *(ps.dirichlet(0.0, on=STRING.face(x=x)(SIDE)) for x in (0, 1)),
        ],
        kernel=ps.RBF([1.0, 1.0]),
        lengths=bandwidth_per_axis((0.05, 2.0), (0.05, 2.0)),
        on=STRING.interior(ps.GaussLegendre((26, 18))),
        data=(STRING, 60),
        noise=0.04,
        size=3.0,
        least=2e-4,
    )


def _layer() -> Case:
    dx, _ = ps.partials(UNIT)
    return make_case(
        "layer",
        "Advection and diffusion on a square, layer at the outflow, unknown inflow",
        exact.layer,
        lambda rng: [
            ps.impose(dx - exact.THIN * ps.laplacian(UNIT), 0.0, on=UNIT.interior(ps.GaussLegendre((16, 9)))),
            *(ps.dirichlet(0.0, on=face(SIDE)) for face in (UNIT.face(x=1), UNIT.face(y=0), UNIT.face(y=1))),
        ],
        kernel=ps.RBF([1.0, 1.0]),
        lengths=bandwidth_per_axis((0.025, 1.0), (0.05, 2.0)),
        on=UNIT.interior(ps.GaussLegendre((28, 16))),
        data=(UNIT, 60),
        noise=0.04,
        least=2e-4,
    )


def _biharmonic() -> Case:
    operator = exact.RIGIDITY * ps.laplacian(UNIT) ** 2
    equation = with_source(operator, exact.plate_load, UNIT.interior(ps.GaussLegendre(10)))
    return make_case(
        "biharmonic",
        "A loaded plate, supported at its edge, unknown moments (biharmonic equation)",
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
    k = ps.coefficient(exact.conductivity, "k")
    operator = -ps.divergence(BIG, [k * d for d in ps.gradient(BIG)])
    equation = with_source(operator, exact.uneven_source, BIG.interior(ps.quadrature.Chebyshev(11)), noise)
    sides = [BIG.face(x=x)(SIDE) for x in (-1, 1)]
    return make_case(
        "variable",
        "Flow through inhomogeneous ground, measured sources, head known on two sides",
        exact.uneven,
        lambda rng: [
            *equation(rng),
            *(ps.dirichlet(at(exact.uneven, side.points), on=side, noise=BOUNDARY_NOISE) for side in sides),
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
    return make_case(
        "laplace",
        "A block cooled on one side and insulated on two, fourth side unknown (Laplace)",
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
    return make_case(
        "oscillator",
        "A driven oscillator, observed in the first five of eight seconds",
        exact.oscillator,
        with_source(operator, exact.oscillator_drive, SWING.interior(ps.GaussLegendre(110))),
        kernel=ps.RBF(1.0),
        lengths={"kernel.bandwidth": (0.1, 4.0)},
        on=SWING.interior(ps.GaussLegendre(200)),
        data=(ps.Box(t=(0, 5)), 40),
        noise=0.04,
        size=3.0,
    )


def _poisson_3d() -> Case:
    equation = with_source(ps.laplacian(CUBE), exact.shaft_source, CUBE.interior(ps.GaussLegendre(6)))
    faces = [CUBE.face(**{axis: end}) for axis in "xy" for end in (0, 1)]
    return make_case(
        "poisson-3d",
        "Poisson's equation in a cube, two faces unknown",
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
    return make_case(
        "wrong-velocity",
        "Convection at speed 3, modelled with speed 2",
        exact.carried(3.0),
        lambda rng: [ps.impose(dt + 2.0 * dx, 0.0, on=ROUND.interior(ps.GaussLegendre((9, 13))))],
        kernel=ps.RBF([1.0, 1.0]),
        lengths=bandwidth_per_axis((0.05, 2.0), (0.2, 8.0)),
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
    return make_case(
        "noise-free",
        "A pulse that drifts and spreads, exact values, no conditions",
        exact.pulse,
        lambda rng: [ps.impose(operator, 0.0, on=STRIP.interior(ps.GaussLegendre(11)))],
        kernel=ps.RBF([1.0, 1.0]),
        lengths=bandwidth_per_axis((0.05, 2.0), (0.025, 1.0)),
        on=STRIP.interior(ps.GaussLegendre(20)),
        data=(STRIP, 40),
        noise=0.0,
        least=1e-6,
    )


def _disk() -> Case:
    return make_case(
        "disk",
        "A disk heated at a spot, unknown boundary",
        exact.spot,
        with_source(-ps.laplacian(DISK), exact.spot_source, DISK.interior(ps.GaussLegendre((8, 15)))),
        kernel=ps.RBF(1.0),
        lengths={"kernel.bandwidth": (0.1, 4.0)},
        on=DISK.interior(ps.GaussLegendre((11, 28))),
        data=(DISK, 50),
        noise=0.03,
    )


def _ring() -> Case:
    return make_case(
        "ring",
        "A heated ring, insulated outside, unknown inside",
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
    cases = {each.name: each for each in CASES}
    if name not in cases:
        raise ps.errors.InputError(f"no case {name!r}. The cases are: {', '.join(cases)}")
    return cases[name]
