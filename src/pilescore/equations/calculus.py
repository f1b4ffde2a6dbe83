"""Vector calculus: the gradient, the divergence, the Laplacian, and the normal derivative on a boundary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
from jaxtyping import Array

from ..errors import InputError, listed, require
from .operators import HasCoordinates, Operator, coefficient, partials


@runtime_checkable
class HasNormal(HasCoordinates, Protocol):
    """A region with an outward normal: a face of a box, a circle, a sphere."""

    @property
    def normal(self) -> Any:
        """The unit normal: numbers if it is constant, else a function of the point."""
        ...


def gradient(domain: HasCoordinates, over: Sequence[str] | None = None) -> tuple[Operator, ...]:
    """Return the components of the gradient, one partial derivative for each coordinate.

    Parameters
    ----------
    domain
        A region, or any object with the `names` of its coordinates.
    over
        Names of the coordinates to differentiate along. Default: all.

    Examples
    --------
    >>> import pilescore as ps
    >>> ps.gradient(ps.Box(t=(0, 1), x=(0, 1), y=(0, 1)), over=("x", "y"))
    (∂x, ∂y)
    """
    along = dict(zip(domain.names, partials(domain), strict=True))
    for name in along if over is None else over:
        require(name in along, "over", name, f"coordinates among {listed(list(along))}")
    return tuple(along[name] for name in (along if over is None else over))


def laplacian(domain: HasCoordinates, over: Sequence[str] | None = None) -> Operator:
    """Return the Laplacian `Σ_i ∂²/∂x_i²`.

    Parameters
    ----------
    domain
        A region, or any object with the `names` of its coordinates.
    over
        Names of the coordinates in the sum. Default: all.

    Examples
    --------
    >>> import pilescore as ps
    >>> ps.laplacian(ps.Box(x=(0, 1), y=(0, 1), z=(0, 1)))
    ∂x² + ∂y² + ∂z²
    >>> strip = ps.Box(t=(0, 1), x=(0, 1), y=(0, 1))
    >>> ps.partials(strip)[0] - 0.1 * ps.laplacian(strip, over=("x", "y"))
    ∂t - 0.1 ∂x² - 0.1 ∂y²
    """
    return divergence(domain, gradient(domain, over), over)


def divergence(domain: HasCoordinates, flux: Sequence[Any], over: Sequence[str] | None = None) -> Operator:
    """Return the divergence `Σ_i ∂_i ∘ F_i` of a flux.

    Parameters
    ----------
    domain
        A region, or any object with the `names` of its coordinates.
    flux
        `F`: operators, numbers or functions of the point, one for each coordinate.
    over
        Names of the coordinates in the sum. Default: all.

    Examples
    --------
    >>> import pilescore as ps
    >>> square = ps.Box(x=(0, 1), y=(0, 1))
    >>> k = ps.coefficient(lambda p: 1 + p[0] ** 2, "k")
    >>> -ps.divergence(square, [k * d for d in ps.gradient(square)])  # −∇·(k∇)
    -k ∂x² - (∂x k) ∂x - k ∂y² - (∂y k) ∂y
    """
    along = gradient(domain, over)
    good = len(flux) == len(along)
    require(good, "flux", f"{len(flux)} components", f"{len(along)}, one for each coordinate")
    return _total([d * component for d, component in zip(along, flux, strict=True)])


def normal_derivative(face: HasNormal) -> Operator:
    """Return the outward normal derivative `n·∇` on a face of a box, a circle or a sphere.

    On a circle or sphere the normal is the function `(x − c)/R`, and powers of the operator differentiate it too.

    Parameters
    ----------
    face
        A region with a normal: `box.face(x=0)`, `disk.boundary`.

    Examples
    --------
    >>> import pilescore as ps
    >>> square = ps.Box(x=(-1, 1), y=(-1, 1))
    >>> ps.normal_derivative(square.face(x=-1))
    -∂x
    """
    along, normal = partials(face), face.normal
    if normal is None:
        raise InputError(
            "normal_derivative: expected a region with one outward normal (a face of a box, a circle, a sphere); "
            f"got {face!r}. Impose the condition on each face: "
            "[ps.impose(ps.normal_derivative(f), g, on=f(rule)) for f in box.faces]"
        )
    if callable(normal):
        terms: list[Operator] = [
            coefficient(_Component(normal, axis), f"n_{name}") * d
            for axis, (name, d) in enumerate(zip(face.names, along, strict=True))
        ]
    else:
        terms = [float(n) * d for n, d in zip(normal, along, strict=True) if n != 0]
    return _total(terms)


def _total(terms: Sequence[Operator]) -> Operator:
    """Return the sum of one or more operators."""
    return sum(terms[1:], start=terms[0])


class _Component(eqx.Module):
    """One component of a vector function of the point."""

    function: Callable[[Array], Any]
    axis: int = eqx.field(static=True)

    def __call__(self, point: Array) -> Any:
        return self.function(point)[self.axis]
