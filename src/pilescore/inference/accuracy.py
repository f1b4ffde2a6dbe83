"""Errors against a known solution: the expected squared error of the posterior and the errors of its mean."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from ..domains import Nodes
from ..equations import Operator, identity
from ..errors import InputError, as_positive, as_vector, require
from ..model import Model, check_nodes, evaluate
from .mixture import posterior
from .posterior import Posterior


@dataclasses.dataclass(frozen=True)
class Risk:
    """The expected squared error `∫ E[(A f̂ − A f)²] / scale` of a posterior (PPL2-G), and errors of its mean.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 8)
    >>> model = ps.Model(ps.RBF(0.5), data=ps.observe(ps.identity, np.exp(x), at=x), gamma=0.02)
    >>> nodes = ps.Box(x=(0, 1)).interior(ps.GaussLegendre(20))
    >>> risk = ps.accuracy(model, lambda p: jnp.exp(p[0]), on=nodes).data
    >>> round(risk.bias, 6), round(risk.variance, 6), round(risk.value, 6)
    (0.000134, 0.001308, 0.001441)
    >>> round(risk.relative_l2, 4), round(risk.relative_max, 4), round(risk.scale, 4)  # ∫ e²ˣ = (e² − 1)/2
    (0.0116, 0.0237, 3.1945)
    """

    value: float
    """`bias + variance`."""
    bias: float
    """The error of the posterior mean, `∫ (E[A f̂] − A f)² / scale`."""
    variance: float
    """The integral of the posterior variance, `∫ Var[A f̂] / scale`."""
    relative_l2: float
    """`√bias`: the relative L² error of the mean."""
    relative_max: float
    """The largest error of the mean divided by the largest `|A f|`, both at the nodes; NaN if `A f = 0`."""
    scale: float
    """The divisor of the squared errors: `∫ (A f)²` unless given."""


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """Errors of a model in the unknown `f` (`data`) and in the operator of its equation, `D f` (`physics`).

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np, pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> x = np.linspace(0, 1, 8)
    >>> model = ps.Model(ps.RBF(0.5), data=ps.observe(ps.identity, np.exp(x), at=x), gamma=0.02)
    >>> on = line.interior(ps.GaussLegendre(20))
    >>> errors = ps.accuracy(model, lambda p: jnp.exp(p[0]), on=on, operator=dx)
    >>> errors  # data determine the function better than its derivative
    Accuracy(R_data=0.001441 (bias 0.000134, variance 0.00131), relative L2 error 0.0116;
    R_phys=0.08459 (bias 0.0344, variance 0.0502), relative L2 error 0.185)
    >>> errors.data.value < errors.physics.value
    True
    """

    data: Risk
    """The errors in `f`."""
    physics: Risk | None
    """The errors in `D f`; None if no operator was given."""

    def __repr__(self) -> str:
        def line(name: str, risk: Risk) -> str:
            return (
                f"R_{name}={risk.value:.4g} (bias {risk.bias:.3g}, variance {risk.variance:.3g}), "
                f"relative L2 error {risk.relative_l2:.3g}"
            )

        lines = [line("data", self.data)] + ([line("phys", self.physics)] if self.physics else [])
        return f"Accuracy({'; '.join(lines)})"


@dataclasses.dataclass(frozen=True, eq=False)
class KnownSolution:
    """A known solution for `sweep` to compare models with; the fields are arguments of `accuracy`.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np, pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> x = np.linspace(0, 1, 8)
    >>> model = ps.Model(ps.RBF(0.5), data=ps.observe(ps.identity, np.exp(x), at=x), gamma=0.02)
    >>> known = ps.KnownSolution(lambda p: jnp.exp(p[0]), on=line.interior(ps.GaussLegendre(20)))
    >>> scores = ps.sweep(model, {"kernel.bandwidth": [0.1, 0.5]}, known=known)
    >>> scores["R_data"].values.round(4)
    array([0.0179, 0.0014])
    """

    truth: Callable[[Any], Any]
    """The solution `f`: a function of one point, written with `jax.numpy` if `D f` is computed from it."""
    on: Nodes | None = None
    """The nodes and weights of the integrals. By default 30 Gauss–Legendre nodes on each axis of the equation's region:
    the region of the first physics block with derivatives of the highest order."""
    operator: Operator | None = None
    """`D`; by default the operator of the equation if it is linear."""
    operator_truth: Any = None
    """`D f`, a function of one point or a number, if it cannot be computed from `f`."""
    scale: Any = None
    """The divisor of squared errors of `D f`; needed if `D f = 0`."""


def accuracy(
    model: Model | Posterior,
    truth: Callable[[Any], Any],
    on: Nodes,
    operator: Operator | None = None,
    *,
    operator_truth: Any = None,
    scale: Any = None,
) -> Accuracy:
    """Return the errors of a model against a known solution, integrated by a quadrature rule.

    `R_data = ∫ E[(f̂ − f)²] / ∫ f²` and `R_phys = ∫ E[(D f̂ − D f)²] / ∫ (D f)²`. Each is the sum of the squared error of
    the posterior mean (bias) and the posterior variance.

    Parameters
    ----------
    model
        A model, or its posterior.
    truth
        The solution `f`: a function of one point, written with `jax.numpy` if `D f` is computed from it.
    on
        The nodes and weights of the integrals.
    operator
        `D`; without it only the errors in `f` are computed.
    operator_truth
        `D f` as a function, a number or an array at the nodes. By default `truth` is differentiated.
    scale
        The divisor of the physics error; needed if `D f = 0`.

    Examples
    --------
    >>> import jax.numpy as jnp, pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> truth = lambda p: jnp.sin(3 * p[0])
    >>> model = ps.Model(
    ...     kernel=ps.RBF(bandwidth=0.4),
    ...     physics=[
    ...         ps.dirichlet(0.0, on=line.face(x=0)(ps.GaussLegendre(1))),
    ...         ps.impose(dx, dx(truth), on=line.interior(ps.GaussLegendre(12))),
    ...     ],
    ...     rho=1e-8,
    ... )
    >>> errors = ps.accuracy(model, truth, on=line.interior(ps.GaussLegendre(30)), operator=dx)
    >>> errors.data.relative_l2 < 1e-3, errors.physics.relative_l2 < 1e-3
    (True, True)
    """
    known = reference(KnownSolution(truth, on, operator, operator_truth, scale))
    return measured(model if isinstance(model, Posterior) else posterior(model), known)


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """A known solution evaluated at the nodes of a rule, to measure models against."""

    on: Nodes
    operators: tuple[Operator, ...]
    """The identity and, if given, `D`."""
    targets: tuple[Float[np.ndarray, " m"], ...]
    """For each operator its values of the solution at the nodes."""
    scales: tuple[float, ...]
    """For each operator the divisor of the squared errors."""


def reference(known: KnownSolution) -> Reference:
    """Evaluate a known solution at its nodes, which must be given."""
    on, truth, operator, exact = known.on, known.truth, known.operator, known.operator_truth
    check_nodes(on, "on")
    assert on is not None
    require(callable(truth), "truth", truth, "a function of one point")
    operators = [identity]
    targets = [as_vector(evaluate(truth, on.points, "truth"), "truth", len(on), "node")]
    scales = [_scale(identity, targets[0], on)]
    if operator is None:
        require(exact is None, "operator_truth", exact, "nothing without an operator")
    else:
        require(isinstance(operator, Operator), "operator", operator, "an operator such as ps.laplacian(box)")
        exact = operator(truth) if exact is None else exact
        values = evaluate(exact, on.points, "operator_truth") if callable(exact) else exact
        operators.append(operator)
        targets.append(as_vector(values, "operator_truth", len(on), "node"))
        scales.append(_scale(operator, targets[1], on) if known.scale is None else as_positive(known.scale, "scale"))
    return Reference(on, tuple(operators), tuple(targets), tuple(scales))


def measured(post: Posterior, known: Reference, variance_factor: float = 1.0) -> Accuracy:
    """Return the errors of a posterior, with its variances multiplied by a factor such as a profiled `η̂/η`."""
    points, weights = known.on.points, known.on.weights
    risks = []
    for operator, target, scale in zip(known.operators, known.targets, known.scales, strict=True):
        error = post.mean(points, operator) - target
        bias = float(weights @ error**2) / scale
        variance = variance_factor * float(weights @ post.variance(points, operator)) / scale
        largest = float(np.abs(target).max())
        worst = float(np.abs(error).max()) / largest if largest > 0 else float("nan")
        risks.append(Risk(bias + variance, bias, variance, bias**0.5, worst, scale))
    return Accuracy(risks[0], risks[1] if len(risks) > 1 else None)


def _scale(operator: Operator, target: Float[np.ndarray, " m"], on: Nodes) -> float:
    size = float(on.weights @ target**2)
    # If D f = 0, its computed values are rounding errors, and an error relative to them would mean nothing.
    if not size > 1e-20 * float(on.weights.sum()):
        raise InputError(
            f"scale: {operator} of the true solution is zero, which leaves its relative error undefined. "
            "Give a scale to divide by, such as β² ∫ (∂f/∂x)² for convection."
        )
    return size
