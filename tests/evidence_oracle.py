"""The evidence of a model in mpmath, from operators written out by hand and kernels of `kernel_oracle`.

A block is a list of terms `(α, c)`, `c` a number or a function of the point, at explicit points, optionally
under a matrix `R` of functionals. Nothing of the library is used: no operators, kernels or algebra.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import kernel_oracle as ko

ctx = ko.ctx

Index = tuple[int, ...]
Term = tuple[Index, Any]


@dataclasses.dataclass
class Block:
    """Values `R (L f)(points)` with noise variances `temperature / 2w`."""

    terms: Sequence[Term]
    points: Any
    values: Any
    temperature: Any
    weights: Any = None
    matrix: Any = None

    @property
    def size(self) -> int:
        return len(self.points) if self.matrix is None else len(self.matrix)

    @property
    def targets(self) -> list[Any]:
        return [ko.number(v) for v in np.broadcast_to(np.asarray(self.values, dtype=float), (self.size,))]

    @property
    def noise(self) -> list[Any]:
        weights = np.ones(self.size) if self.weights is None else self.weights
        return [ko.number(self.temperature) / (2 * ko.number(w)) for w in weights]


def _coefficient(c: Any, point: Sequence[Any]) -> Any:
    return ko.number(c(point)) if isinstance(c, Callable) else ko.number(c)


def _entry(kernel: ko.Oracle, first: Block, second: Block, p: Sequence[Any], q: Sequence[Any]) -> Any:
    pairs = [(alpha, beta) for alpha, _ in first.terms for beta, _ in second.terms]
    values = iter(kernel.derivatives(pairs, p, q))
    left = [_coefficient(c, p) for _, c in first.terms]
    right = [_coefficient(c, q) for _, c in second.terms]
    return ctx.fsum(a * b * next(values) for a in left for b in right)


def _points(block: Block) -> list[list[Any]]:
    return [[ko.number(v) for v in point] for point in np.asarray(block.points, dtype=float)]


def gram(kernel: ko.Oracle, blocks: Sequence[Block]) -> list[list[Any]]:
    """`Q` of the stacked values, in the order of the blocks."""
    size = sum(block.size for block in blocks)
    out = [[ctx.zero] * size for _ in range(size)]
    row = 0
    for i, first in enumerate(blocks):
        column = row
        for second in blocks[i:]:
            symmetric = first is second
            left, right = _points(first), _points(second)
            raw = [[ctx.zero] * len(right) for _ in left]
            for a, p in enumerate(left):
                for b, q in enumerate(right):
                    raw[a][b] = raw[b][a] if symmetric and b < a else _entry(kernel, first, second, p, q)
            if first.matrix is not None:
                R = [[ko.number(v) for v in r] for r in first.matrix]
                raw = [[ctx.fdot(r, c) for c in zip(*raw, strict=True)] for r in R]
            if second.matrix is not None:
                R = [[ko.number(v) for v in r] for r in second.matrix]
                raw = [[ctx.fdot(r, values) for r in R] for values in raw]
            for a, values in enumerate(raw):
                for b, value in enumerate(values):
                    out[row + a][column + b] = out[column + b][row + a] = value
            column += second.size
        row += first.size
    return out


@dataclasses.dataclass
class Evidence:
    """The terms of PILE to many digits."""

    value: Any
    fit: Any
    complexity: Any


def gaussian(C: Sequence[Sequence[Any]], y: Sequence[Any]) -> Evidence:
    """`(yᵀC⁻¹y + log det C)/N + log 2π` by Gaussian elimination without square roots."""
    n = len(y)
    rows = [[*C[i], y[i]] for i in range(n)]
    quadratic, logdet = ctx.zero, ctx.zero
    for k in range(n):
        pivot = rows[k][k]
        assert pivot > 0
        logdet += ctx.log(pivot)
        quadratic += rows[k][n] ** 2 / pivot
        for i in range(k + 1, n):
            factor = rows[i][k] / pivot
            for j in range(k + 1, n + 1):
                rows[i][j] -= factor * rows[k][j]
    return Evidence((quadratic + logdet) / n + ctx.log(2 * ctx.pi), quadratic / n, logdet / n)


def evidence(kernel: ko.Oracle, blocks: Sequence[Block], eta: Any = 1.0) -> Evidence:
    """PILE of the model with these blocks."""
    C = [[ko.number(eta) * value for value in row] for row in gram(kernel, blocks)]
    noise = [s for block in blocks for s in block.noise]
    for i, s in enumerate(noise):
        C[i][i] += s
    return gaussian(C, [v for block in blocks for v in block.targets])


def slope(function: Callable[[Any], Any], at: float) -> Any:
    """The derivative by a central difference with a step that leaves forty digits."""
    step, x = ctx.mpf(10) ** -25, ko.number(at)
    return (function(x + step) - function(x - step)) / (2 * step)
