"""What was understood of a problem, in mathematical notation, and what it will take."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..linalg import cholesky
from ..model import Model
from ..nonlinear import Nonlinear
from ..observations import Observation
from ..running import cores
from .loading import Problem, frame_bytes

EVALUATIONS = 40
"""Scores with gradients that a descent takes, about."""

OVERHEAD = 0.015
"""Seconds that a score with its gradient takes besides linear algebra, about."""

COMPILATION = 6.0
"""Seconds that compiling takes for each kernel, about."""

FACTORISATIONS = 5.0
"""What a score with its gradient costs, in factorisations, about."""

NONLINEAR = {"overhead": 0.04, "compilation": 12.0, "factorisations": 30.0}
"""The same where a nonlinear equation is solved for each score."""

PROBE = 250
"""The size of the matrix whose factorisation is timed, by one core."""


def describe_problem(problem: Problem) -> str:
    """Return what was understood, what is to be chosen, and what it will take, as lines of text."""
    return "\n".join(_lines(problem))


def block_text(block: Observation, unknown: str) -> str:
    """Return what a block observes: `(∂x² + ∂y²) u`, or `∂t u + u ∂x u`."""
    if isinstance(block.operator, Nonlinear):
        return block.operator.name
    text = re.sub(r"\bId\b", "1", re.sub(r"(?<=\S) Id\b", "", re.sub("(?<=[-+]) Id", " 1", str(block.operator))))
    terms = len(block.operator.terms) > 1
    shown = unknown if text == "1" else f"({text}) {unknown}" if terms else f"{text} {unknown}"
    return shown if block.matrix is None else f"{'∫ ' if (block.matrix >= 0).all() else 'difference of '}{shown}"


def parameter_text(name: str, problem: Problem) -> str:
    """Return a hyperparameter as one reads it: with the coordinate or the block that it belongs to."""
    axis = re.fullmatch(r"kernel\.bandwidth\[(\d+)\]", name)
    block = re.fullmatch(r"(data|physics)\.(\d+)\.(gamma|rho)", name)
    if axis:
        return f"{name} ({problem.box.names[int(axis[1])]})"
    if block:
        before = 0 if block[1] == "data" else len(problem.model.data)
        return f"{block[3]} of {problem.model.labels[before + int(block[2])]}"
    return name


def strength_text(block: Observation, model: Model, index: int) -> str:
    """Return how strongly a block holds: its noise where that is known, else the name of its temperature."""
    symbol = "gamma" if block.role == "data" else "rho"
    if block.temperature is None:
        return f"shared {symbol}"
    deviations = np.sqrt(0.5 * model.temperatures[index] / block.weights)
    low, high = float(deviations.min()), float(deviations.max())
    return f"noise {low:.3g}" if high < 1.001 * low else f"noise {low:.3g} to {high:.3g}"


def expected_seconds(problem: Problem) -> tuple[float, float]:
    """Return how long one score with its gradient and the whole of choosing will take, about, on this machine."""
    size = problem.model.size
    factorisation = _factorisation() * (size / PROBE) ** 3 / (cores() ** 0.7 if size > PROBE else 1.0)
    one, compilation = OVERHEAD + (1 + problem.given_physics) * FACTORISATIONS * factorisation, COMPILATION
    if problem.model.is_nonlinear:
        solving = NONLINEAR["overhead"] + NONLINEAR["factorisations"] * factorisation
        one, compilation = (1 + problem.given_physics) * solving, NONLINEAR["compilation"]
    total = 0.0
    for over in problem.over.values():
        count = sum(int(np.size(low)) for low, _ in over.values())
        total += compilation + one * (EVALUATIONS * problem.starts + 2 * count if over else 1)
    return one, total


def _factorisation() -> float:
    """Return the seconds that a factorisation of the probe takes: the least of a few, for others may be at work."""
    times = []
    for _ in range(5):
        matrix = np.asfortranarray(np.eye(PROBE) + 1e-3)
        start = time.perf_counter()
        cholesky(matrix)
        times.append(time.perf_counter() - start)
    return min(times)


def _lines(problem: Problem) -> Iterator[str]:
    box, model, unknown = problem.box, problem.model, problem.unknown
    sides = " × ".join(f"[{a:.6g}, {b:.6g}]" for a, b in zip(box.lower, box.upper, strict=True))
    yield problem.title
    yield ""
    yield f"  {unknown}({', '.join(box.names)}) on {sides}"
    for i, (block, label) in enumerate(zip(model.blocks, model.labels, strict=True)):
        name = f"physics.{i - len(model.data)}.rho" if block.role == "physics" else f"data.{i}.gamma"
        chosen = name in problem.over[next(iter(problem.over))]
        strength = "noise to be chosen" if chosen else strength_text(block, model, i)
        what = f"{block_text(block, unknown)} = {problem.texts[label]}"
        kind = "reading" if block.role == "data" else "node" if block.matrix is None else "functional"
        note = ", nonlinear" * block.is_nonlinear
        yield f"  {label}: {what}{note}, {block.size} {kind}{'s' * (block.size != 1)}, {strength}"
    yield ""
    for name, over in problem.over.items():
        yield f"  kernel {name}"
        for each, value in problem.models[name].parameters.items():
            if each.startswith("kernel.") and each not in over:
                yield f"    {each} = {_range(value)}"
        for each, (low, high) in over.items():
            yield f"    choose {parameter_text(each, problem)} in [{_range(low)}, {_range(high)}]"
        if not over:
            yield "    nothing to choose"
    score = "PILE of the data given the physics" if problem.given_physics else "PILE"
    why = ", as there are parameters to be inferred" if problem.given_physics and problem.inferred else ""
    yield f"  score: {score}{why}; {problem.starts} start{'s' * (problem.starts != 1)} for each kernel"
    yield f"  predict {', '.join(problem.operators)} at {len(problem.points)} points"
    for warning in problem.warnings:
        yield f"  note: {warning}"
    yield ""
    if problem.solver is not None:
        yield f"  solver: {problem.solver.identity}"
    if problem.solver is not None and problem.solver.identity != "dense":
        yield f"  N = {model.size} observations"
        return
    one, total = expected_seconds(problem)
    memory = 2 * 8.0 * model.size**2 + frame_bytes(model)
    yield (
        f"  N = {model.size} observations: about {_bytes(memory)} of memory, {_seconds(one)} for a score with its "
        f"gradient, {_seconds(total)} for choosing"
    )


def _range(bound: Any) -> str:
    values = np.ravel(bound)
    if len(set(values.tolist())) == 1:
        return f"{values[0]:.3g}"
    return f"({', '.join(f'{value:.3g}' for value in values)})"


def _bytes(count: float) -> str:
    power = max(0, min(3, int(math.log(max(count, 1.0), 1000))))
    return f"{count / 1000**power:.0f} {('B', 'kB', 'MB', 'GB')[power]}"


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return (
        f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )
