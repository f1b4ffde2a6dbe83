"""A problem described in mathematical notation, with the expected cost of its selection."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..equations import Nonlinear
from ..kernels import On
from ..model import (
    TEMPERATURES,
    LogNormal,
    Model,
    Normal,
    Observation,
    Prior,
    find,
    follow,
    is_of_kernel,
    is_temperature,
    named_paths,
)
from ..parallel import cores
from ..solvers import cholesky
from .loading import jet_bytes
from .noise import own_temperature
from .problem import Problem

DESCENT_EVALUATIONS = 40
"""The approximate number of scores with gradient in one descent."""

PROBE_SIZE = 250
"""The size of the matrix whose factorisation is timed, small enough for one core."""

LINEAR_COST = {"overhead_seconds": 0.015, "compilation_seconds": 6.0, "factorisations": 5.0}
"""The approximate cost of a score with gradient: fixed time, compilation per kernel, and factorisations."""

NONLINEAR_COST = {"overhead_seconds": 0.04, "compilation_seconds": 12.0, "factorisations": 30.0}
"""The same for a nonlinear equation, which is solved for each score."""


def describe_problem(problem: Problem) -> str:
    """Return a readable description: the observations, what will be chosen, and the expected cost."""
    return "\n".join(_lines(problem))


def block_text(block: Observation, unknown: str) -> str:
    """Return the left side of an observation: `(∂x² + ∂y²) u`, or `∂t u + u ∂x u`."""
    if isinstance(block.operator, Nonlinear):
        return block.operator.name
    # "∂x² + Id" reads "∂x² + 1", "3 Id" reads "3", and "Id" alone is the unknown itself.
    text = re.sub(r"\bId\b", "1", re.sub(r"(?<=\S) Id\b", "", re.sub("(?<=[-+]) Id", " 1", str(block.operator))))
    terms = len(block.operator.terms) > 1
    shown = unknown if text == "1" else f"({text}) {unknown}" if terms else f"{text} {unknown}"
    return shown if block.matrix is None else f"{'∫ ' if (block.matrix >= 0).all() else 'difference of '}{shown}"


def parameter_text(name: str, problem: Problem) -> str:
    """Return a readable name of a hyperparameter, with the coordinate or the block it belongs to."""
    for model in problem.models.values():  # kernels differ, and so do the names of their hyperparameters
        known = named_paths(model)
        base = name if name in known else re.sub(r"\[[\d, ]+\]$", "", name)
        if base in known:
            break
    else:
        return name
    path, (_, index) = known[base][0], find(model, known, name)
    if is_temperature(path):
        if len(path) == 1:
            return name
        before = 0 if path[0].name == "data" else len(model.data)
        return f"{TEMPERATURES[path[0].name]} of {model.labels[before + path[1].idx]}"
    if len(index) == 1 and model.roles[base] == "length":
        coordinates = list(problem.box.names)
        for depth in range(1, len(path)):
            part = follow(model, path[:depth])
            if isinstance(part, On):  # this part of the kernel sees some of the coordinates only
                coordinates = [coordinates[axis] for axis in part.axes]
        if np.shape(follow(model, path)) == (len(coordinates),):
            return f"{name} ({coordinates[index[0]]})"
    return name


def noise_text(block: Observation, model: Model, index: int) -> str:
    """Return the noise of a block if it is known, else the name of its shared temperature."""
    if model.is_exact(index):
        return "exact"
    if block.temperature is None:
        return f"shared {TEMPERATURES[block.role]}"
    deviations = np.sqrt(0.5 * model.temperatures[index] / block.weights)
    low, high = float(deviations.min()), float(deviations.max())
    return f"noise {low:.3g}" if high < 1.001 * low else f"noise {low:.3g} to {high:.3g}"


def score_text(problem: Problem) -> str:
    """Return the name of the minimised score in words."""
    return f"PILE of {problem.score.described(problem.model)}"


def expected_seconds(problem: Problem) -> tuple[float, float]:
    """Return the approximate time of one score with gradient, and of the whole selection, on this machine."""
    size = problem.model.size
    # A factorisation takes cubic time; cores share it imperfectly, and small matrices do not use them at all.
    factorisation = _factorisation_seconds() * (size / PROBE_SIZE) ** 3 / (cores() ** 0.7 if size > PROBE_SIZE else 1.0)
    nonlinear = problem.model.is_nonlinear
    systems = 1 + (nonlinear and bool(problem.score.given_blocks(problem.model)))
    cost = NONLINEAR_COST if nonlinear else LINEAR_COST
    one = systems * cost["factorisations"] * factorisation + (systems if nonlinear else 1) * cost["overhead_seconds"]
    total = 0.0
    for over in problem.over.values():
        count = sum(int(np.size(low)) for low, _ in over.values())
        # The curvature takes two gradients for each hyperparameter.
        evaluations = DESCENT_EVALUATIONS * problem.starts + 2 * count if over else 1
        total += cost["compilation_seconds"] + one * evaluations
    return one, total


def _factorisation_seconds() -> float:
    """Return the time of one factorisation of the probe: the shortest of five, since other processes may interfere."""
    times = []
    for _ in range(5):
        matrix = np.asfortranarray(np.eye(PROBE_SIZE) + 1e-3)
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
        own = own_temperature(block.role, i if block.role == "data" else i - len(model.data))
        noise = "noise to be chosen" if own in next(iter(problem.over.values())) else noise_text(block, model, i)
        observed = f"{block_text(block, unknown)} = {problem.texts[label]}"
        kind = "reading" if block.role == "data" else "functional" if block.is_functional else "node"
        nonlinear = ", nonlinear" * block.is_nonlinear
        yield f"  {label}: {observed}{nonlinear}, {block.size} {kind}{'s' * (block.size != 1)}, {noise}"
    yield ""
    for name, over in problem.over.items():
        yield f"  kernel {name}"
        paths = named_paths(problem.models[name])
        for parameter, value in problem.models[name].parameters.items():
            if is_of_kernel(paths[parameter][0]) and parameter not in over:
                yield f"    {parameter} = {_number_text(value)}"
        for parameter, (low, high) in over.items():
            prior = _prior_text(problem.models[name].priors.get(parameter))
            choice = f"{parameter_text(parameter, problem)} in [{_number_text(low)}, {_number_text(high)}]"
            yield f"    choose {choice}{prior}"
        if not over:
            yield "    nothing to choose"
    if problem.why_kernels:
        yield f"  {problem.why_kernels}"
    for name, quantity in problem.derived.items():
        yield f"  derive {name} = {quantity}"
    yield f"  score: {score_text(problem)}; {problem.starts} start{'s' * (problem.starts != 1)} for each kernel"
    yield f"  predict {', '.join(problem.operators)} at {len(problem.points)} points"
    for warning in problem.warnings:
        yield f"  note: {warning}"
    yield ""
    if problem.solver is not None:
        yield f"  solver: {problem.solver.identity}"
    if problem.solver is not None and not problem.solver.forms_covariance:
        yield f"  N = {model.size} observations"
        return
    one, total = expected_seconds(problem)
    memory = 2 * 8.0 * model.size**2 + jet_bytes(model)
    yield (
        f"  N = {model.size} observations: about {_bytes_text(memory)} of memory, {_seconds_text(one)} for a score "
        f"with its gradient, {_seconds_text(total)} for the selection"
    )


def _prior_text(prior: Prior | None) -> str:
    """Return what is known about a number, in words."""
    if isinstance(prior, Normal):
        return f", known as {_number_text(prior.mean)} ± {_number_text(prior.deviation)}"
    if isinstance(prior, LogNormal):
        return f", known as {_number_text(prior.median)} within a factor of {_number_text(prior.factor)}"
    return ""


def _number_text(number: Any) -> str:
    """Return a number, or the numbers of a vector."""
    values = np.ravel(number)
    if len(set(values.tolist())) == 1:
        return f"{values[0]:.3g}"
    return f"({', '.join(f'{value:.3g}' for value in values)})"


def _bytes_text(count: float) -> str:
    power = max(0, min(3, int(math.log(max(count, 1.0), 1000))))
    return f"{count / 1000**power:.0f} {('B', 'kB', 'MB', 'GB')[power]}"


def _seconds_text(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
