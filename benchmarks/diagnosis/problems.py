"""Problems with known solutions, written before any diagnosis was run on them.

Each seed draws a solution, its coefficients, the places of the readings and their noise. The problems are posed as a
newcomer would, with the defaults of the library: equations are exact, kernels have one length or one for each axis, and
bounds follow the rule of the benchmark of uncertainty. Each problem can also be posed wrongly: with another
coefficient, without one of its terms, or with a shifted boundary value.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp
from scipy.special import jv, yv

import pilescore as ps

from ..uncertainty.problems import LENGTHS, Over, Points, Values, _posed, _random

Rng: TypeAlias = np.random.Generator

IN_VIEW = range(100, 120)
"""The draws that may be looked at while the diagnosis is developed."""

REPORTED = range(200, 220)
"""The draws of reported figures. They are run once, after the last change of the diagnosis."""

WRONG_VALUE = 0.5
"""How much a wrong boundary value is shifted, in standard deviations of the solution."""


@dataclasses.dataclass(frozen=True)
class Equation:
    """How a problem is posed; the default is right."""

    factor: float = 1.0
    """What the coefficient of the problem is multiplied by."""
    complete: bool = True
    """Whether the equation has all its terms."""
    shift: float = 0.0
    """What is added to a boundary value, in standard deviations of the solution."""


TRUE = Equation()

Parts: TypeAlias = tuple[ps.Kernel, list[ps.Observation]]


@dataclasses.dataclass(frozen=True, eq=False)
class Instance:
    """One draw of a problem."""

    truth: Callable[[Points], Values]
    """The solution."""
    on: ps.domains.Nodes
    """Test points, with quadrature weights."""
    at: Points
    """The places of the readings."""
    noise: float
    """The standard deviation of the noise."""
    errors: Values
    """The errors of the readings in standard deviations: independent, with the normal distribution."""
    extent: list[float]
    """The size of the domain along each axis."""
    parts: Callable[[Equation], Parts]
    """Returns the kernel and the physics for an equation, given what is added to a boundary value."""
    unknown: Over = dataclasses.field(default_factory=dict)
    """The bounds of what is searched besides lengths, γ and η."""

    @property
    def exact(self) -> Values:
        """The values of the solution at the places of the readings."""
        return self.truth(self.at)

    @property
    def values(self) -> Values:
        """The readings, with sound noise."""
        return self.exact + self.noise * self.errors

    def posed(self, equation: Equation = TRUE, values: Values | None = None) -> tuple[ps.Model, Over]:
        """Return the model at the start of the search, and the bounds of everything that is searched."""
        kernel, physics = self.parts(equation)
        readings = ps.observe(ps.identity, self.values if values is None else values, at=self.at)
        return _posed(kernel, [readings], physics, self.extent, self.unknown)

    def isotropic(self) -> tuple[ps.Model, Over]:
        """Return the model with one length for all directions. Its bounds suit every axis."""
        _, physics = self.parts(TRUE)
        size = np.asarray(self.extent)
        model, over = _posed(ps.RBF(), [ps.observe(ps.identity, self.values, at=self.at)], physics, self.extent, {})
        bounds = (LENGTHS[0] * float(size.min()), LENGTHS[1] * float(size.max()))
        start = 0.3 * float(np.exp(np.mean(np.log(size))))
        return model.replace({"kernel.bandwidth": start}), {**over, "kernel.bandwidth": bounds}


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem with a known solution."""

    name: str
    title: str
    draw: Callable[[Rng], Instance]
    coefficient: str
    """The coefficient that can be made wrong."""
    term: str
    """The term that can be left out."""
    condition: str = ""
    """The boundary value that can be shifted; empty if none is imposed."""
    anisotropic: bool = False
    """Whether the scales of the solution differ at least eightfold between directions."""

    def instance(self, seed: int) -> Instance:
        """Return the draw of a seed."""
        return self.draw(np.random.default_rng([*self.name.encode(), seed]))


def _instance(
    rng: Rng,
    truth: Callable[[Points], Any],
    on: ps.domains.Nodes,
    at: Points,
    fraction: float,
    extent: list[float],
    parts: Callable[[Equation, float], Parts],
    unknown: Over | None = None,
) -> Instance:
    """Return a draw whose noise is a fraction of the standard deviation of the solution at the readings."""

    def values(p: Points) -> Values:
        return np.asarray(truth(p))

    deviation = float(np.std(values(at)))
    return Instance(
        values,
        on,
        at,
        fraction * deviation,
        rng.standard_normal(len(at)),
        extent,
        lambda equation: parts(equation, equation.shift * deviation),
        unknown or {},
    )


def _sign(rng: Rng) -> float:
    return float(rng.choice([-1.0, 1.0]))


def _cylinder_waves(rng: Rng) -> Instance:
    order, wavenumber = rng.uniform(0, 2), _random(rng, 0.8, 1.6)
    amplitude, angle = _random(rng, 0.5, 5.0), rng.uniform(0, 2 * math.pi)

    def truth(p: Points) -> Any:
        r = wavenumber * p[:, 0]
        return amplitude * (math.cos(angle) * jv(order, r) + math.sin(angle) * yv(order, r))

    line = ps.Box(r=(2, 12))
    (dr,) = ps.partials(line)
    inverse = ps.coefficient(lambda p: 1 / p[0], "curvature")
    centrifugal = ps.coefficient(lambda p: order**2 / p[0] ** 2, "centrifugal")

    def parts(equation: Equation, shift: float) -> Parts:
        operator = dr**2 + equation.factor * wavenumber**2 - centrifugal
        if equation.complete:
            operator = operator + inverse * dr
        return ps.RBF([1.0]), [ps.impose(operator, 0.0, on=line.interior(ps.GaussLegendre(30)))]

    at = rng.uniform(2, 12, (20, 1))
    return _instance(rng, truth, line.interior(ps.GaussLegendre(61)), at, 0.08, [10.0], parts)


def _beam(rng: Rng) -> Instance:
    decay = rng.uniform(3, 5)
    load, wave, phase = _random(rng, 0.5, 2.0), decay * rng.uniform(1.0, 2.0), rng.uniform(0, 2 * math.pi)
    free = load * rng.standard_normal(2)
    response = 1 / (1 + wave**4 / (4 * decay**4))
    # e^{−λx}(a cos λx + b sin λx) makes deflection and slope zero at x = 0.
    end = math.exp(-decay) * complex(math.cos(decay), math.sin(decay))
    value = response * load * math.sin(phase) + float(free @ [end.real, end.imag])
    slope = response * load * wave * math.cos(phase)
    slope += decay * float(free @ [end.real + end.imag, end.imag - end.real])
    near = np.array([-value, -value - slope / decay])

    def truth(p: Points) -> Any:
        x, y = decay * p[:, 0], decay * (1 - p[:, 0])
        forced = response * load * np.sin(wave * p[:, 0] + phase)
        left = np.exp(-x) * (near[0] * np.cos(x) + near[1] * np.sin(x))
        return forced + left + np.exp(-y) * (free[0] * np.cos(y) + free[1] * np.sin(y))

    line = ps.Box(x=(0, 1))
    (dx,) = ps.partials(line)
    clamp = line.face(x=0)(ps.GaussLegendre(1))

    def parts(equation: Equation, shift: float) -> Parts:
        operator = ps.parameter("stiffness", equation.factor / (4 * decay**4)) * dx**4
        if equation.complete:
            operator = operator + ps.identity
        pressed = ps.impose(
            operator, lambda p: load * jnp.sin(wave * p[0] + phase), on=line.interior(ps.GaussLegendre(20))
        )
        return ps.RBF([1.0]), [pressed, ps.dirichlet(shift, on=clamp), ps.neumann(0.0, on=clamp)]

    at = rng.uniform(0, 1, (15, 1))
    return _instance(rng, truth, line.interior(ps.GaussLegendre(51)), at, 0.05, [1.0], parts)


def _duffing(rng: Rng) -> Instance:
    damping, linear, cubic = _random(rng, 0.1, 0.4), _random(rng, 0.5, 2.0), _random(rng, 0.8, 2.0)
    first, speed = _sign(rng) * rng.uniform(1.0, 1.6), rng.uniform(-1, 1)
    swing: Any = solve_ivp(
        lambda t, u: [u[1], -damping * u[1] - linear * u[0] - cubic * u[0] ** 3],
        (0.0, 6.0),
        [first, speed],
        method="DOP853",
        rtol=1e-12,
        atol=1e-12,
        max_step=0.02,
        dense_output=True,
    ).sol

    def truth(p: Points) -> Any:
        return swing(p[:, 0])[0]

    line = ps.Box(t=(0, 6))
    (dt,) = ps.partials(line)

    def parts(equation: Equation, shift: float) -> Parts:
        stiff = equation.factor * cubic
        operator: Any = dt**2 + damping * dt + linear
        if equation.complete:
            operator = ps.Nonlinear(
                lambda p, u, slope, bend: bend + damping * slope + linear * u + stiff * u**3,
                (ps.identity, dt, dt**2),
            )
        start = line.face(t=0)(ps.GaussLegendre(1))
        moving = ps.impose(operator, 0.0, on=line.interior(ps.GaussLegendre(30)))
        return ps.RBF([1.0]), [moving, ps.dirichlet(first + shift, on=start)]

    at = rng.uniform(0, 6, (40, 1))
    return _instance(rng, truth, line.interior(ps.GaussLegendre(61)), at, 0.1, [6.0], parts)


def _screened(rng: Rng) -> Instance:
    screening, strength = rng.uniform(4, 8), _random(rng, 30.0, 100.0)
    wave, (first, second) = rng.uniform(2, 5, 2), rng.uniform(0, 2 * math.pi, 2)
    angles, amplitudes = rng.uniform(0, 2 * math.pi, 3), 0.5 * rng.standard_normal(3)
    directions = np.stack([np.cos(angles), np.sin(angles)])

    def source(p: Any) -> Any:
        return strength * jnp.sin(wave[0] * p[..., 0] + first) * jnp.sin(wave[1] * p[..., 1] + second)

    def truth(p: Any) -> Any:
        decaying = jnp.exp(screening * ((p - 0.5) @ directions - 0.5)) @ amplitudes
        return source(p) / (wave @ wave + screening**2) + decaying

    square = ps.Box(x=(0, 1), y=(0, 1))
    west, *walls = [square.face(**face)(ps.GaussLegendre(8)) for face in ({"x": 0}, {"x": 1}, {"y": 0})]

    def parts(equation: Equation, shift: float) -> Parts:
        operator = -ps.laplacian(square)
        if equation.complete:
            operator = operator + equation.factor * screening**2
        inside = ps.impose(operator, source, on=square.interior(ps.GaussLegendre(9)))
        conditions = [ps.dirichlet(lambda p: truth(p) + shift, on=west), *(ps.dirichlet(truth, on=w) for w in walls)]
        return ps.RBF([1.0, 1.0]), [inside, *conditions]

    at = rng.uniform(0, 1, (30, 2))
    return _instance(rng, truth, square.interior(ps.GaussLegendre(16)), at, 0.05, [1.0, 1.0], parts)


def _laminate(rng: Rng) -> Instance:
    thin = rng.uniform(0.08, 0.12)
    k, amplitudes = rng.uniform(8, 13, 3), rng.standard_normal((2, 3))
    phases = rng.uniform(0, 2 * math.pi, (2, 3))

    def truth(p: Points) -> Any:
        x, y = p[:, :1], thin * k * p[:, 1:]
        falling = np.sin(k * x + phases[0]) * np.exp(-y) @ amplitudes[0]
        return falling + np.sin(k * x + phases[1]) * np.exp(y - thin * k) @ amplitudes[1]

    square = ps.Box(x=(0, 1), y=(0, 1))
    dx, dy = ps.partials(square)

    def parts(equation: Equation, shift: float) -> Parts:
        operator = dy**2
        if equation.complete:
            operator = operator + equation.factor * thin**2 * dx**2
        return ps.RBF([1.0, 1.0]), [ps.impose(operator, 0.0, on=square.interior(ps.GaussLegendre((14, 7))))]

    at = rng.uniform(0, 1, (80, 2))
    return _instance(rng, truth, square.interior(ps.GaussLegendre((32, 16))), at, 0.06, [1.0, 1.0], parts)


def _graded_wall(rng: Rng) -> Instance:
    grading, source = _sign(rng) * rng.uniform(1.0, 2.0), rng.uniform(8, 20)
    k, amplitudes = rng.uniform(2, 4, 3), 0.4 * rng.standard_normal(3)
    phases, level = rng.uniform(0, 2 * math.pi, 3), rng.standard_normal()
    across = np.sqrt(k**2 + grading**2 / 4)
    turned = rng.uniform(-0.5, 0.5, 3)

    def heated(x: Any) -> Any:
        """Evaluate u with (e^{ax} u′)′ = −q, without constants."""
        return source * (x / grading + 1 / grading**2) * jnp.exp(-grading * x)

    # The constants make the heated part zero at both walls: u + C e^{−ax} + E.
    ends = np.linalg.solve([[1.0, 1.0], [math.exp(-grading), 1.0]], [-float(heated(0.0)), -float(heated(1.0))])

    def truth(p: Any) -> Any:
        x, y = p[..., 0], p[..., 1]
        own = heated(x) + ends[0] * jnp.exp(-grading * x) + ends[1] + level
        waves: Any = 0.0
        for j in range(3):
            profile = jnp.sinh(across[j] * (x - 0.5 + turned[j])) / math.sinh(across[j])
            waves = waves + amplitudes[j] * profile * jnp.sin(k[j] * y + phases[j])
        return own + jnp.exp(-grading / 2 * x) * waves

    square = ps.Box(x=(0, 1), y=(0, 1))
    cold, warm = (square.face(x=x)(ps.GaussLegendre(10)) for x in (0, 1))

    def parts(equation: Equation, shift: float) -> Parts:
        slope = grading if equation.complete else 0.0
        size = equation.factor * (1.0 if equation.complete else math.exp(grading / 2))  # ungraded: that of the middle
        conductivity = ps.coefficient(lambda p: size * jnp.exp(slope * p[0]), "conductivity")
        operator = -ps.divergence(square, [conductivity * d for d in ps.gradient(square)])
        return ps.RBF(), [
            ps.impose(operator, source, on=square.interior(ps.GaussLegendre(10))),
            ps.dirichlet(lambda p: truth(p) + shift, on=cold),
            ps.dirichlet(truth, on=warm),
        ]

    at = rng.uniform(0, 1, (60, 2))
    return _instance(rng, truth, square.interior(ps.GaussLegendre(16)), at, 0.03, [1.0, 1.0], parts)


def _slow_growth(rng: Rng) -> Instance:
    diffusivity, growth = _random(rng, 0.002, 0.004), _sign(rng) * rng.uniform(0.05, 0.1)
    modes = math.pi * np.arange(3)
    amplitudes = np.array([0.6, 1.0, 0.8]) * rng.standard_normal(3)

    def truth(p: Points) -> Any:
        return (np.exp((growth - diffusivity * modes**2) * p[:, :1]) * np.cos(modes * p[:, 1:])) @ amplitudes

    strip = ps.Box(t=(0, 20), x=(0, 1))
    dt, dx = ps.partials(strip)
    left, right = (strip.face(x=x)(ps.GaussLegendre(8)) for x in (0, 1))

    def parts(equation: Equation, shift: float) -> Parts:
        operator = dt - equation.factor * diffusivity * dx**2
        if equation.complete:
            operator = operator - growth
        inside = ps.impose(operator, 0.0, on=strip.interior(ps.GaussLegendre((8, 10))))
        # The length of the rod is one, so that flux and solution have the same size.
        return ps.RBF([1.0, 1.0]), [inside, ps.neumann(4 * shift, on=left), ps.neumann(0.0, on=right)]

    at = rng.uniform(0, 1, (50, 2)) * [20.0, 1.0]
    return _instance(rng, truth, strip.interior(ps.GaussLegendre((20, 16))), at, 0.08, [20.0, 1.0], parts)


def _dispersive(rng: Rng) -> Instance:
    mass, k = rng.uniform(4, 6.5), rng.uniform(-4, 4, 5)
    frequencies = rng.choice([-1.0, 1.0], 5) * np.sqrt(k**2 + mass**2)
    amplitudes, phases = rng.standard_normal(5), rng.uniform(0, 2 * math.pi, 5)

    def truth(p: Points) -> Any:
        return np.cos(k * p[:, 1:] - frequencies * p[:, :1] + phases) @ amplitudes

    strip = ps.Box(t=(0, 1.5), x=(0, 1))
    dt, dx = ps.partials(strip)

    def parts(equation: Equation, shift: float) -> Parts:
        operator = dt**2 - dx**2
        if equation.complete:
            operator = operator + equation.factor * mass**2
        return ps.RBF([1.0, 1.0]), [ps.impose(operator, 0.0, on=strip.interior(ps.GaussLegendre((12, 8))))]

    at = rng.uniform(0, 1, (80, 2)) * [1.5, 1.0]
    return _instance(rng, truth, strip.interior(ps.GaussLegendre((24, 16))), at, 0.12, [1.5, 1.0], parts)


def _fast_flow(rng: Rng) -> Instance:
    velocity, decay = _sign(rng) * rng.uniform(6, 9), rng.uniform(0.8, 1.8)
    waves, amplitudes, phases = np.arange(1, 3), np.array([1.0, 0.5]), rng.uniform(0, 2 * math.pi, 2)

    def truth(p: Points) -> Any:
        carried = np.sin(waves * (p[:, 1:] - velocity * p[:, :1]) + phases) @ amplitudes
        return np.exp(-decay * p[:, 0]) * carried

    strip = ps.Box(t=(0, 1), x=(0, 4))
    dt, dx = ps.partials(strip)

    def parts(equation: Equation, shift: float) -> Parts:
        speed = equation.factor * velocity
        operator = dt + speed * dx
        if equation.complete:
            operator = operator + decay
        kernel = ps.AnisotropicRBF(theta=math.atan(speed), s=0.3)  # along the characteristics
        return kernel, [ps.impose(operator, 0.0, on=strip.interior(ps.GaussLegendre((12, 9))))]

    at = rng.uniform(0, 1, (150, 2)) * [1.0, 4.0]
    # Few characteristics with readings pass the corners of the strip.
    on = ps.Box(t=(0, 1), x=(1, 3)).interior(ps.GaussLegendre((36, 12)))
    return _instance(rng, truth, on, at, 0.15, [1.0, 4.0], parts, {"kernel.s": (0.02, 1.0)})


def _windy_disk(rng: Rng) -> Instance:
    wind, angle, source = rng.uniform(2, 4), rng.uniform(0, 2 * math.pi), _random(rng, 2.0, 6.0)
    along = np.array([math.cos(angle), math.sin(angle)])
    k, amplitudes, phases = rng.uniform(1, 2.5, 4), 2 * rng.standard_normal(4), rng.uniform(0, 2 * math.pi, 4)
    # exp(αξ) cos(kη) with α² − k² = bα: waves that the wind carries, and layers against it.
    growth = (wind + np.array([-1, -1, -1, 1]) * np.sqrt(wind**2 + 4 * k**2)) / 2

    def truth(p: Any) -> Any:
        with_wind = p[..., 0] * along[0] + p[..., 1] * along[1]
        across = p[..., 1] * along[0] - p[..., 0] * along[1]
        total = source / wind * with_wind
        for j in range(4):
            layer = jnp.exp(growth[j] * with_wind - abs(growth[j]))
            total = total + amplitudes[j] * layer * jnp.cos(k[j] * across + phases[j])
        return total

    disk = ps.Disk()
    dx, dy = ps.partials(disk)

    def parts(equation: Equation, shift: float) -> Parts:
        operator = -ps.laplacian(disk)
        if equation.complete:
            operator = operator + ps.parameter("wind", equation.factor * wind) * (along[0] * dx + along[1] * dy)
        return ps.RBF(), [ps.impose(operator, source, on=disk.interior(ps.GaussLegendre((6, 13))))]

    radius, turn = np.sqrt(rng.uniform(0, 1, 45)), rng.uniform(0, 2 * math.pi, 45)
    at = np.stack([radius * np.cos(turn), radius * np.sin(turn)], axis=1)
    return _instance(rng, truth, disk.interior(ps.GaussLegendre((9, 24))), at, 0.02, [2.0, 2.0], parts)


PROBLEMS: tuple[Problem, ...] = (
    Problem(
        "cylinder-waves",
        "Bessel's equation from twenty readings: variable coefficients, unknown boundary",
        _cylinder_waves,
        "the square of the wavenumber",
        "the first derivative: waves that spread",
    ),
    Problem(
        "beam",
        "A loaded beam on elastic ground, clamped at one end, the other unknown",
        _beam,
        "the stiffness",
        "the reaction of the ground",
        "the deflection at the clamp",
    ),
    Problem(
        "duffing",
        "An oscillator with a cubic spring, known position at the start (nonlinear)",
        _duffing,
        "the cubic stiffness",
        "the cubic spring",
        "the position at the start",
    ),
    Problem(
        "screened",
        "A screened potential with known charges, three known walls and an unknown one",
        _screened,
        "the square of the screening",
        "the screening",
        "the potential of one wall",
    ),
    Problem(
        "laminate",
        "A laminate that conducts along its layers, unknown boundary",
        _laminate,
        "the conductivity across the layers",
        "the conduction across the layers",
        anisotropic=True,
    ),
    Problem(
        "graded-wall",
        "A heated wall of graded material, two faces with known temperatures",
        _graded_wall,
        "the conductivity",
        "the grading of the material",
        "the temperature of one face",
    ),
    Problem(
        "slow-growth",
        "A population that spreads and grows slowly in a closed channel, unknown at the start",
        _slow_growth,
        "the diffusivity",
        "the growth",
        "the flux through one end",
        anisotropic=True,
    ),
    Problem(
        "dispersive-waves",
        "Waves with a mass (Klein and Gordon), unknown start and boundary",
        _dispersive,
        "the square of the mass",
        "the mass",
    ),
    Problem(
        "fast-flow",
        "A decaying pattern in a fast flow, unknown start and inflow",
        _fast_flow,
        "the velocity",
        "the decay",
        anisotropic=True,
    ),
    Problem(
        "windy-disk",
        "Heat carried by the wind over a disk, known source, unknown rim",
        _windy_disk,
        "the speed of the wind",
        "the wind",
    ),
)


def problem(name: str) -> Problem:
    """Return a problem by its name."""
    problems: Mapping[str, Problem] = {each.name: each for each in PROBLEMS}
    if name not in problems:
        raise ps.errors.InputError(f"no problem {name!r}. The problems are: {', '.join(problems)}")
    return problems[name]
