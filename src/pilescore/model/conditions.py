"""Boundary and initial conditions: the conditions of the textbooks, imposed on faces."""

from __future__ import annotations

from typing import Any

from ..domains import Nodes, Region
from ..equations import identity, normal_derivative
from ..errors import require
from .observations import Observation, check_nodes, difference, impose


def dirichlet(value: Any, on: Nodes, **options: Any) -> Observation:
    """Impose `f = value` on a face; on the face of the first time this is an initial condition.

    Parameters
    ----------
    value
        A number, a function of the point, or an array with one value for each node.
    on
        Nodes and weights on the face, such as `box.face(x=0)(ps.GaussLegendre(10))`.
    options
        Options of `impose`: `rho`, `noise`, `name`.

    Examples
    --------
    >>> import jax.numpy as jnp, pilescore as ps
    >>> strip = ps.Box(t=(0, 1), x=(0, 1))
    >>> ps.dirichlet(lambda p: jnp.sin(p[1]), on=strip.face(t=0)(ps.GaussLegendre(20)))
    impose(Id at 20 points)
    """
    return impose(identity, value, on, **options)


def neumann(value: Any, on: Nodes, **options: Any) -> Observation:
    """Impose `∂f/∂n = value` on a face, where `n` is the outward normal.

    Parameters
    ----------
    value
        A number, a function of the point, or an array with one value for each node.
    on
        Nodes and weights on the face, such as `box.face(x=0)(ps.GaussLegendre(10))`.
    options
        Options of `impose`: `rho`, `noise`, `name`.

    Examples
    --------
    >>> import pilescore as ps
    >>> square = ps.Box(x=(-1, 1), y=(-1, 1))
    >>> ps.neumann(0.0, on=square.face(y=-1)(ps.GaussLegendre(5)))
    impose(-∂y at 5 points)
    """
    return impose(normal_derivative(_face(on)), value, on, **options)


def robin(a: Any, b: Any, value: Any, on: Nodes, **options: Any) -> Observation:
    """Impose `a f + b ∂f/∂n = value` on a face, where `n` is the outward normal.

    Parameters
    ----------
    a, b
        Numbers, parameters or functions of the point.
    value
        A number, a function of the point, or an array with one value for each node.
    on
        Nodes and weights on the face, such as `box.face(x=0)(ps.GaussLegendre(10))`.
    options
        Options of `impose`: `rho`, `noise`, `name`.

    Examples
    --------
    >>> import pilescore as ps
    >>> square = ps.Box(x=(-1, 1), y=(-1, 1))
    >>> ps.robin(2.0, 1.0, 0.0, on=square.face(x=1)(ps.GaussLegendre(5)))
    impose(2 Id + ∂x at 5 points)
    """
    return impose(a * identity + b * normal_derivative(_face(on)), value, on, **options)


def cauchy(value: Any, flux: Any, on: Nodes, **options: Any) -> list[Observation]:
    """Impose both `f = value` and `∂f/∂n = flux` on a face.

    Parameters
    ----------
    value, flux
        Numbers, functions of the point, or arrays with one value for each node.
    on
        Nodes and weights on the face, such as `box.face(x=0)(ps.GaussLegendre(10))`.
    options
        Options of `impose`: `rho`, `noise`, `name`.

    Examples
    --------
    >>> import pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> ps.cauchy(1.0, 0.0, on=line.face(x=0)(ps.GaussLegendre(1)))
    [impose(Id at 1 point), impose(-∂x at 1 point)]
    """
    return [dirichlet(value, on, **options), neumann(flux, on, **options)]


def periodic(first: Nodes, second: Nodes, derivatives: int = 0, **options: Any) -> list[Observation]:
    """Impose that `f`, and on request its normal derivatives, agree on two opposite faces.

    Parameters
    ----------
    first, second
        Nodes of the two faces, made with the same rule.
    derivatives
        How many derivatives agree, besides the values.
    options
        Options of `impose`: `rho`, `noise`, `name`.

    Examples
    --------
    >>> import pilescore as ps
    >>> strip = ps.Box(t=(0, 1), x=(0, 2))
    >>> left, right = (strip.face(x=x)(ps.GaussLegendre(8)) for x in (0, 2))
    >>> ps.periodic(left, right, derivatives=1)
    [impose(8 functionals of Id at 16 points), impose(8 functionals of -∂x at 16 points)]
    """
    normal = normal_derivative(_face(first))  # the same operator on both faces: their own normals are opposite
    return [impose(difference(first, second, normal**order), 0.0, **options) for order in range(derivatives + 1)]


def _face(on: Nodes) -> Region:
    check_nodes(on, "on")
    require(on.region is not None, "on", on, "nodes made from a face, which has a normal")
    assert on.region is not None  # for the type checker
    return on.region
