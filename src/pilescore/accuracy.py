"""Errors against a known solution: the expected squared error of the posterior, and those of its mean."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from .domains import Nodes
from .errors import InputError, as_array, as_positive, as_vector, require
from .model import Model
from .observations import check_nodes, evaluate
from .operators import Operator, identity
from .posterior import Posterior, posterior


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
    """The part of the posterior mean, `∫ (E[A f̂] − A f)² / scale`."""
    variance: float
    """The part of the posterior variance, `∫ Var[A f̂] / scale`."""
    relative_l2: float
    """`√bias`: the relative L² error of the mean."""
    relative_max: float
    """The largest error of the mean over the largest absolute value of `A f`, at the nodes; NaN if that is zero."""
    scale: float
    """What the squared errors are divided by: `∫ (A f)²` unless given."""


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """Errors of a model in the unknown (`data`) and in the operator of its equation (`physics`).

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np, pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> x = np.linspace(0, 1, 8)
    >>> model = ps.Model(ps.RBF(0.5), data=ps.observe(ps.identity, np.exp(x), at=x), gamma=0.02)
    >>> on = line.interior(ps.GaussLegendre(20))
    >>> errors = ps.accuracy(model, lambda p: jnp.exp(p[0]), on=on, operator=dx)
    >>> errors  # the derivative is harder to tell from data than the function
    Accuracy(R_data=0.001441 (bias 0.000134, variance 0.00131), relative L2 error 0.0116;
    R_phys=0.08459 (bias 0.0344, variance 0.0502), relative L2 error 0.185)
    >>> errors.data.value < errors.physics.value
    True
    """

    data: Risk
    """Of the unknown itself."""
    physics: Risk | None
    """Of the operator of it; None where no operator was given."""

    def __repr__(self) -> str:
        def line(name: str, risk: Risk) -> str:
            return (
                f"R_{name}={risk.value:.4g} (bias {risk.bias:.3g}, variance {risk.variance:.3g}), "
                f"relative L2 error {risk.relative_l2:.3g}"
            )

        parts = [line("data", self.data)] + ([line("phys", self.physics)] if self.physics else [])
        return f"Accuracy({'; '.join(parts)})"


def accuracy(
    model: Model | Posterior,
    truth: Callable[[Any], Any],
    on: Nodes,
    operator: Operator | None = None,
    *,
    operator_truth: Any = None,
    scale: Any = None,
) -> Accuracy:
    """Return the errors of a model against a known solution, by a fine quadrature rule.

    `R_data = ∫ E[(f̂ − f)²] / ∫ f²` and `R_phys = ∫ E[(D f̂ − D f)²] / ∫ (D f)²`, each split into the part of the
    posterior mean (bias) and that of the posterior variance.

    Parameters
    ----------
    model
        A model, or its posterior.
    truth
        The solution `f`: a function of one point (with `jax.numpy` if `D f` is to be taken from it).
    on
        The nodes and weights of the integrals.
    operator
        `D`; without it only the errors in `f` are given.
    operator_truth
        `D f`, as a function, number or array at the nodes; by autodiff of `truth` unless given.
    scale
        What to divide the physics error by. Needed where `D f = 0`.

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
    wanted = reference(truth, on, operator, operator_truth=operator_truth, scale=scale)
    return measured(model if isinstance(model, Posterior) else posterior(model), wanted)


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """A known solution at the nodes of a rule: what models are measured against."""

    on: Nodes
    operators: tuple[Operator, ...]
    """The identity and, if its errors are wanted, `D`."""
    targets: tuple[Float[np.ndarray, " m"], ...]
    """Their values of the solution."""
    scales: tuple[float, ...]
    """What the squared errors are divided by."""


def reference(
    truth: Callable[[Any], Any], on: Nodes, operator: Operator | None, *, operator_truth: Any, scale: Any
) -> Reference:
    """Return a known solution at nodes; the arguments are those of `accuracy`."""
    check_nodes(on, "on")
    require(callable(truth), "truth", truth, "a function of one point")
    operators = [identity]
    targets = [as_vector(evaluate(truth, on.points, "truth"), "truth", len(on), "node")]
    scales = [_scale(identity, targets[0], on, None)]
    if operator is None:
        require(operator_truth is None, "operator_truth", operator_truth, "nothing without an operator")
    else:
        require(isinstance(operator, Operator), "operator", operator, "an operator such as ps.laplacian(box)")
        exact = operator(truth) if operator_truth is None else operator_truth
        values = evaluate(exact, on.points, "operator_truth") if callable(exact) else as_array(exact, "operator_truth")
        operators.append(operator)
        targets.append(as_vector(values, "operator_truth", len(on), "node"))
        scales.append(_scale(operator, targets[1], on, None if scale is None else as_positive(scale, "scale")))
    return Reference(on, tuple(operators), tuple(targets), tuple(scales))


def measured(post: Posterior, wanted: Reference, stretch: float = 1.0) -> Accuracy:
    """Return the errors of a posterior whose variances are to be multiplied by `stretch`."""
    parts = zip(wanted.operators, wanted.targets, wanted.scales, strict=True)
    risks = [_risk(post, operator, target, wanted.on, scale, stretch) for operator, target, scale in parts]
    return Accuracy(risks[0], risks[1] if len(risks) > 1 else None)


def _scale(operator: Operator, target: Float[np.ndarray, " m"], on: Nodes, given: float | None) -> float:
    size = float(on.weights @ target**2)
    if given is None and not size > 1e-20 * float(on.weights.sum()):
        raise InputError(
            f"scale: {operator} of the true solution is zero, so that a relative error has no meaning: "
            "give the scale to divide by, such as β² ∫ (∂f/∂x)² for convection"
        )
    return size if given is None else given


def _risk(
    post: Posterior, operator: Operator, target: Float[np.ndarray, " m"], on: Nodes, scale: float, stretch: float
) -> Risk:
    error = post.mean(on.points, operator) - target
    bias = float(on.weights @ error**2) / scale
    variance = stretch * float(on.weights @ post.variance(on.points, operator)) / scale
    largest = float(np.abs(target).max())
    worst = float(np.abs(error).max()) / largest if largest > 0 else float("nan")
    return Risk(bias + variance, bias, variance, bias**0.5, worst, scale)
