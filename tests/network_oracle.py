"""PILE of a network from an explicit Jacobian: NumPy with dense matrices, and mpmath to fifty digits.

Nothing of the library is used: derivatives of a tanh network in points and parameters are formulas, other networks are
differentiated by `jax.jacobian`, and the covariance is formed whole.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
from scipy import optimize

from . import evidence_oracle as eo
from . import kernel_oracle as ko

ctx = ko.ctx

FORMS = ("laplace", "linearised", "tangent")


@dataclasses.dataclass(frozen=True)
class Terms:
    """The value, and what it is the sum of (with `log 2π`)."""

    value: Any
    fit: Any
    prior: Any
    complexity: Any


@dataclasses.dataclass(frozen=True)
class Problem:
    """Rows `F(θ)` at `θ̂`: the Jacobian `J`, `e = t − F(θ̂)`, `δ = θ̂ − θ_c`, `t`, relative variances `d` and `Λ`."""

    J: np.ndarray
    e: np.ndarray
    delta: np.ndarray
    t: np.ndarray
    d: np.ndarray
    spread: np.ndarray

    def covariance(self, eta: float, sigma2: float) -> np.ndarray:
        """`C = η J Λ Jᵀ + σ² D`."""
        return eta * (self.J * self.spread) @ self.J.T + np.diag(sigma2 * self.d)

    def terms(self, form: str, eta: float, sigma2: float) -> Terms:
        """The three forms by `slogdet` and `solve`."""
        n, C = len(self.e), self.covariance(eta, sigma2)
        sign, logdet = np.linalg.slogdet(C)
        assert sign == 1
        prior = 0.0
        if form == "laplace":
            fit = float(np.sum(self.e**2 / (sigma2 * self.d)))
            prior = float(np.sum(self.delta**2 / (eta * self.spread)))
        else:
            y = self.t if form == "tangent" else self.e + self.J @ self.delta
            fit = float(y @ np.linalg.solve(C, y))
        value = (fit + prior + logdet) / n + np.log(2 * np.pi)
        return Terms(float(value), fit / n, prior / n, float(logdet) / n)

    def digits(self, form: str, eta: float, sigma2: float) -> Terms:
        """The three forms in mpmath."""
        J, e, delta, t = (_exact(a) for a in (self.J, self.e, self.delta, self.t))
        return digits(form, J, e, delta, t, _exact(self.d), _exact(self.spread), eta, sigma2)

    def profiled(self, form: str, eta: float | None = None, sigma2: float | None = None) -> tuple[Terms, float, float]:
        """The least value over what is not given: a grid, then a descent from its best."""
        grid = np.linspace(-16, 12, 57)

        def at(log: Sequence[float]) -> tuple[float, float]:
            free = iter(np.exp(log).tolist())
            return (next(free) if eta is None else eta), (next(free) if sigma2 is None else sigma2)

        def objective(log: Any) -> float:
            return self.terms(form, *at(log)).value

        count = (eta is None) + (sigma2 is None)
        best = min(itertools.product(*[grid] * count), key=objective)
        assert all(grid[0] < x < grid[-1] for x in best)
        options = {"xatol": 1e-9, "fatol": 1e-14, "maxiter": 2000, "maxfev": 2000}
        found = optimize.minimize(objective, best, method="Nelder-Mead", options=options)
        where = at(found.x.tolist())
        return self.terms(form, *where), *where

    def posterior(self, rows: np.ndarray, eta: float, sigma2: float) -> np.ndarray:
        """`J* (JᵀS⁻¹J + (ηΛ)⁻¹)⁻¹ J*ᵀ`."""
        precision = (self.J.T / (sigma2 * self.d)) @ self.J + np.diag(1 / (eta * self.spread))
        return rows @ np.linalg.solve(precision, rows.T)


def digits(
    form: str,
    J: Sequence[Sequence[Any]],
    e: Sequence[Any],
    delta: Sequence[Any],
    t: Sequence[Any],
    d: Sequence[Any],
    spread: Sequence[Any],
    eta: Any,
    sigma2: Any,
) -> Terms:
    """The three forms, of numbers of mpmath."""
    eta, sigma2, n = ko.number(eta), ko.number(sigma2), len(e)
    C = [[eta * ctx.fsum(s * a * b for s, a, b in zip(spread, p, q, strict=True)) for q in J] for p in J]
    for i in range(n):
        C[i][i] += sigma2 * d[i]
    y = list(t) if form == "tangent" else [r + ctx.fdot(row, delta) for r, row in zip(e, J, strict=True)]
    found = eo.gaussian(C, y)
    if form != "laplace":
        return Terms(found.value, found.fit, ctx.zero, found.complexity)
    fit = ctx.fsum(r * r / (sigma2 * s) for r, s in zip(e, d, strict=True)) / n
    prior = ctx.fsum(x * x / (eta * s) for x, s in zip(delta, spread, strict=True)) / n
    return Terms(fit + prior + found.complexity + ctx.log(2 * ctx.pi), fit, prior, found.complexity)


def _exact(array: np.ndarray) -> Any:
    return [_exact(each) for each in array] if array.ndim else ko.number(array)


def tanh_rows(params: Any, points: np.ndarray, direction: Any = (0.0, 0.0), order: int = 0) -> np.ndarray:
    """`(v·∂)^order f`, `f = out·tanh(hidden p + bias) + shift`, then its derivatives in bias, hidden, out and shift."""
    a, p, v = params["out"], np.asarray(points), np.asarray(direction)
    T = np.tanh(p @ params["hidden"].T + params["bias"])
    slopes = [T, 1 - T**2, -2 * T * (1 - T**2), (6 * T**2 - 2) * (1 - T**2)]
    along = params["hidden"] @ v
    power = along**order
    here, above = slopes[order], slopes[order + 1]
    bend = (order * along ** max(order - 1, 0) * a * here)[:, :, None] * v  # from (v·hidden)^order
    hidden = (a * above * power)[:, :, None] * p[:, None, :] + bend
    shift = np.full((len(p), 1), float(order == 0))
    value = (here * power) @ a[:, None] + params["shift"] * shift
    return np.hstack([value, a * above * power, hidden.reshape(len(p), -1), here * power, shift])


def tabled(table: np.ndarray, params: Any, targets: np.ndarray, noise: np.ndarray) -> Problem:
    """The problem of stacked `tanh_rows`, with a standard normal prior."""
    theta = np.concatenate([np.ravel(params[key]) for key in ("bias", "hidden", "out", "shift")])
    return Problem(table[:, 1:], targets - table[:, 0], theta, targets, noise, np.ones_like(theta))


def restricted(problem: Problem, columns: slice) -> Problem:
    """The problem with some of its parameters only."""
    J, delta, spread = problem.J[:, columns], problem.delta[columns], problem.spread[columns]
    return dataclasses.replace(problem, J=J, delta=delta, spread=spread)


def evaluated(
    net: Callable[[Any, Any], Any], params: Any, points: np.ndarray, targets: np.ndarray, noise: np.ndarray
) -> Problem:
    """The problem of a network's values at points, its columns in the order of the leaves."""

    def rows(params: Any) -> tuple[Any, Any]:
        out = jax.vmap(lambda p: jnp.reshape(net(params, p), ()))(jnp.asarray(points))
        return out, out

    tree, out = jax.jit(jax.jacobian(rows, has_aux=True))(params)
    J = np.concatenate([np.asarray(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(tree)], axis=1)
    theta = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
    return Problem(J, targets - np.asarray(out), theta, targets, noise, np.ones_like(theta))


def ntk(x: Any, y: Any) -> Any:
    """The limit of `J Jᵀ` of `m^-½ Σ a_i erf(w_i·x + b_i)`: Williams' arcsine kernel, and `(x·y + 1) E[erf′ erf′]`."""
    s, r, c = 1 + x @ x, 1 + y @ y, 1 + x @ y
    both = (1 + 2 * s) * (1 + 2 * r)
    return 2 / jnp.pi * jnp.arcsin(2 * c / jnp.sqrt(both)) + c * 4 / jnp.pi / jnp.sqrt(both - 4 * c**2)


@jax.jit
def ntk_blocks(points: Any, direction: Any) -> tuple[Any, Any, Any]:
    """The same for all pairs of points, between `f` and `f`, `f` and `u·∂f`, `u·∂f` and `u·∂f`."""

    def cross(x: Any, y: Any) -> Any:
        return jax.grad(ntk, 1)(x, y) @ direction

    def both(x: Any, y: Any) -> Any:
        return jax.grad(cross, 0)(x, y) @ direction

    first, second, third = (
        jax.vmap(jax.vmap(function, (None, 0)), (0, None))(points, points) for function in (ntk, cross, both)
    )
    return first, second, third


def variance(J: np.ndarray, row: np.ndarray, sigma2: float) -> float:
    """Return `j(I − Jᵀ(JJᵀ + σ²)⁻¹J)jᵀ` to fifty digits."""
    with mpmath.workdps(50):
        A, j = mpmath.matrix(J.tolist()), mpmath.matrix(row.tolist())
        across = A * j
        solved = mpmath.lu_solve(A * A.T + mpmath.eye(len(J)) * mpmath.mpf(sigma2), across)
        return float((j.T * j)[0] - (across.T * solved)[0])
