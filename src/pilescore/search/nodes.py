"""The nodes of exact equations: how far apart they are, which lengths they resolve, and finer ones.

An exact equation holds everywhere, but a model can only impose it at nodes. A kernel whose length is short compared
with the distance between nodes evades the equation between them, and the evidence prefers that: the data are then
fitted without it. So lengths are bounded by the distance between nodes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from ..domains import Factor
from ..equations import Nonlinear
from ..kernels import Kernel
from ..model import Model, Observation, find, named_paths

SHORTEST_LENGTH, SHORTEST_PERIOD = 1.5, 4.0
"""The least length and period of a kernel, in distances between nodes. Below, the evidence gains by evading the
equation between nodes; whether what is left matters is checked with finer nodes."""

FARTHEST_NODE = 2 * SHORTEST_LENGTH
"""Halfway between nodes, the nearest node is at most one length of the kernel divided by this number away."""

VERY_LONG = 1e6
"""A length is arbitrarily long if it is this many times the present one."""

FINER = 1.5
"""Finer nodes are this many times as many on each axis."""

OVERSAMPLED = 0.5
"""Axes are not refined on which nodes are closer than this fraction of what the kernel needs."""

MOST_ROWS, MOST_VALUES = 2500, 5000
"""The largest numbers of observations, and of values that enter them, that nodes are refined to. The covariance of the
observations is factored; that of the values, several at each node of a nonlinear equation, is only stored and
multiplied by vectors."""

LESS_FINER = (1.4, 1.3, 1.2)
"""What is tried instead if `FINER` cannot be afforded."""

MOST_BETWEEN = 200
"""The largest number of points between nodes along an axis, of those in the widest gaps and of others."""


def node_gaps(model: Model) -> Float[np.ndarray, " d"]:
    """Return the largest distance between nodes of exact blocks along each axis; zero on axes without nodes."""
    gaps = np.zeros(model.blocks[0].dimension)
    for block in exact_blocks(model).values():
        gaps = np.maximum(gaps, _gaps(_nodes(block)[0]))
    return gaps


def _nodes(block: Observation) -> tuple[Float[np.ndarray, "n d"], ...]:
    """Return the nodes of a block; two sets, if it consists of differences between two sets of nodes."""
    if block.nodes is None or block.opposite is None:
        return (block.points,)
    return block.nodes.points, block.opposite.points


def exact_blocks(model: Model) -> dict[int, Observation]:
    """Return the exact blocks by their positions among all blocks."""
    return {i: block for i, block in enumerate(model.blocks) if model.is_exact(i)}


def _levels(points: Float[np.ndarray, "n d"]) -> list[Float[np.ndarray, " k"]]:
    """Return the levels of a grid on each axis; for scattered points, those of a grid of as many points."""
    low, extent = points.min(axis=0), np.ptp(points, axis=0)
    axes = max(int((extent > 0).sum()), 1)
    unit = (points - low) / np.where(extent > 0, extent, 1.0)
    distinct = [np.unique(np.round(column, 12)) for column in unit.T]
    if math.prod(map(len, distinct)) != len(points):  # a grid on some of the axes at the most
        most, even = 1.5 * len(points) ** (1 / axes) + 2, max(round(len(points) ** (1 / axes)), 2)
        distinct = [each if len(each) <= most else np.linspace(0.0, 1.0, even) for each in distinct]
    return [start + length * each for start, length, each in zip(low, extent, distinct, strict=True)]


def _gaps(points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " d"]:
    return np.array([np.diff(levels).max(initial=0.0) for levels in _levels(points)])


@dataclasses.dataclass(frozen=True, eq=False)
class _Between:
    """Points halfway between neighbouring nodes of a block, and the nodes themselves."""

    points: tuple[Float[np.ndarray, "m d"], ...]
    """The points halfway; two sets, if the block consists of differences between two sets of nodes."""
    nodes: tuple[Float[np.ndarray, "n d"], ...]

    def distances(self, kernel: Kernel) -> Float[np.ndarray, " m"]:
        """Return the distance of each point halfway to the nearest node, in lengths of the kernel.

        The nearest node need not be a neighbour: a kernel that is long along a direction sees the nodes along it.
        """
        each = (kernel.distances(*pair) for pair in zip(self.points, self.nodes, strict=True))
        return np.asarray(functools.reduce(np.maximum, each).min(axis=1, initial=np.inf))


def _between(block: Observation, along: int | None = None) -> _Between:
    """Return the points halfway between neighbouring nodes of a block along each axis, or along one axis."""
    nodes = _nodes(block)
    first = nodes[0]
    owners, shifts = [np.empty(0, int)], [np.empty((0, block.dimension))]
    for axis, levels in enumerate(_levels(first)):
        if len(levels) < 2 or along not in (None, axis):
            continue
        rounding = 1e-9 * (levels[-1] - levels[0])
        place = np.clip(np.searchsorted(levels, first[:, axis] + rounding, side="right") - 1, 0, len(levels) - 2)
        half = 0.5 * np.diff(levels)[place]
        inner = np.flatnonzero(first[:, axis] + half < levels[-1])
        # The widest gaps decide for most kernels; for others, such as sheared ones, any gap may.
        widest = inner[np.argsort(-half[inner], kind="stable")[:MOST_BETWEEN]]
        spread = inner[np.unique(np.linspace(0, len(inner) - 1, MOST_BETWEEN).astype(int))]
        chosen = np.union1d(widest, spread)
        shift = np.zeros((len(chosen), block.dimension))
        shift[:, axis] = half[chosen]
        owners.append(chosen)
        shifts.append(shift)
    owner, shift = np.concatenate(owners), np.concatenate(shifts)
    return _Between(tuple(each[owner] + shift for each in nodes), nodes)


def least_lengths(model: Model) -> dict[str, Float[np.ndarray, "..."]]:
    """Return the least value of each length and period of the kernel, for nodes of exact equations."""
    blocks = [_between(block) for block in exact_blocks(model).values()]
    floors = _least_periods(model)
    for name, role in model.roles.items():
        if role == "length":
            least = np.zeros(np.shape(model.parameters[name]))
            for index in np.ndindex(least.shape):
                least[index] = max([_least_length(model, name, index, between) for between in blocks], default=0.0)
            if least.any():
                floors[name] = least
    return floors


def _least_periods(model: Model) -> dict[str, Float[np.ndarray, "..."]]:
    gaps = node_gaps(model)
    floors = {}
    for name, role in model.roles.items():
        if role == "period" and gaps.any():
            shape = np.shape(model.parameters[name])
            floors[name] = SHORTEST_PERIOD * (gaps if shape == gaps.shape else np.full(shape, gaps.max()))
    return floors


def _least_length(model: Model, name: str, index: tuple[int, ...], between: _Between) -> float:
    """Return the least value of one length with which the kernel is long compared with the distance between nodes.

    Other hyperparameters have their present values. Points that are far from all nodes however long this length is
    do not count.
    """
    values = np.array(model.parameters[name], dtype=float)
    now = float(values[index])

    def distances(length: float) -> Float[np.ndarray, " m"]:
        values[index] = length
        return FARTHEST_NODE * between.distances(model.replace({name: values.copy()}).kernel)

    far, here = distances(VERY_LONG * now), distances(now)
    counted = (far <= 1.0) & (here > (1 + 1e-9) * far)  # those that this length brings near a node
    if not counted.any():
        return 0.0

    def largest(length: float) -> float:
        return float(distances(length)[counted].max())

    least = now * float(here[counted].max())  # distances are inversely proportional to most lengths
    if abs(largest(least) - 1.0) < 1e-6:
        return least
    low, high = math.log(now) - math.log(VERY_LONG), math.log(now) + math.log(VERY_LONG)
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if largest(math.exp(middle)) > 1.0 else (low, middle)
    return math.exp(high)


def floored(model: Model, over: Mapping[str, Any]) -> dict[str, Any]:
    """Return bounds that keep lengths and periods above those that evade exact equations between nodes."""
    floors, paths, bounds = least_lengths(model), named_paths(model), dict(over)
    for name, (low, high) in over.items():
        base, index = find(model, paths, name)
        if base in floors:
            least = floors[base][index] if index else floors[base]
            # The present value may lie below: the nodes are then as fine as can be afforded.
            value = np.asarray(model.parameters[base])[index]
            bounds[name] = (np.maximum(low, np.minimum(least, np.minimum(value, 0.99 * np.asarray(high)))), high)
    return bounds


def fine_enough(model: Model) -> Model:
    """Return the model with nodes of exact equations so fine that its own lengths and periods resolve them.

    Each block gets as many nodes as it needs, on each axis.
    """
    wanted = {i for i, block in exact_blocks(model).items() if _is_coarse(model, block)}
    while wanted:
        blocks = list(model.blocks)
        for i in sorted(wanted, key=lambda i: blocks[i].size):  # where nodes are cheapest first
            finer = _affordable(model, i)
            if finer is None:
                wanted.remove(i)
                continue
            blocks[i] = finer
            model = model.replace(physics=blocks[len(model.data) :])
        wanted = {i for i in wanted if _is_coarse(model, model.blocks[i])}
    return model


def _affordable(model: Model, i: int) -> Observation | None:
    """Return a block with finer nodes on the axes on which they are too coarse; None if they cannot be afforded."""
    block = model.blocks[i]
    for factor in (FINER, *LESS_FINER):
        finer = block.refined(_finer(model, block, 1.0, factor))
        if finer is not None and block.size < finer.size:
            blocks = [*model.blocks[:i], finer, *model.blocks[i + 1 :]]
            if _fits(model.replace(physics=blocks[len(model.data) :])):
                return finer
    return None


def with_shorter(model: Model, least: Mapping[str, float]) -> Model | None:
    """Return the model with some lengths shorter, on nodes that resolve them; None if these cannot be afforded.

    Only axes are refined on which the shorter lengths need it.

    Parameters
    ----------
    model
        The model.
    least
        The names of the lengths, or of entries of them, and the least values that they may have.
    """
    paths = named_paths(model)
    # Such as two ends of an interval, which are far apart however long the kernel is.
    coarse = {i for i, block in exact_blocks(model).items() if _is_coarse(model, block)}
    for factor in (FINER, *LESS_FINER):
        values: dict[str, Float[np.ndarray, "..."]] = {}
        for name, low in least.items():
            base, index = find(model, paths, name)
            now = values.setdefault(base, np.array(model.parameters[base], dtype=float))
            now[index] = max(now[index] / factor, low)
        shorter = fine_enough(model.replace(values))
        others = {i: block for i, block in exact_blocks(shorter).items() if i not in coarse}
        if model.size < shorter.size and not any(_is_coarse(shorter, block) for block in others.values()):
            return shorter
    return None


def _grid(block: Observation) -> tuple[int, ...]:
    """Return the number of nodes on each axis on which a block has a grid; their total if it has none."""
    first = _nodes(block)[0]
    counts = tuple(len(levels) for levels in _levels(first) if len(levels) > 1)
    return counts if counts and math.prod(counts) == len(first) else (len(first),)


def _finer(model: Model, block: Observation, coarse: float, factor: float) -> Factor:
    """Return a factor for the nodes on each axis of a block that is coarse; one factor if it has no grid.

    An axis is coarse if points halfway between nodes along it are farther from nodes than this fraction of the
    largest allowed distance. If none is, all axes are refined.
    """
    axes = [axis for axis, levels in enumerate(_levels(_nodes(block)[0])) if len(levels) > 1]
    if len(axes) < 2 or len(_grid(block)) < len(axes):
        return factor
    farthest = [_between(block, axis).distances(model.kernel).max(initial=0.0) for axis in axes]
    short = [FARTHEST_NODE * each > coarse * (1 + 1e-9) for each in farthest]
    return [factor if each else 1.0 for each in short] if any(short) else factor


def _is_coarse(model: Model, block: Observation) -> bool:
    """Whether nodes of a block are too far apart for the kernel."""
    only = model.replace(data=(), physics=[block])
    periods = _least_periods(only)
    short = any(np.any(np.asarray(model.parameters[name]) < least) for name, least in periods.items())
    farthest = _between(block).distances(model.kernel).max(initial=0.0)
    return short or bool(FARTHEST_NODE * farthest > 1 + 1e-9)


def refined(model: Model, times: float = 1.0) -> Model | None:
    """Return the model with finer nodes of exact blocks; None if none can be refined, or not in memory and time.

    There may be more nodes than in a search by a factor. Axes on which nodes are more than twice as fine as the kernel
    needs stay as they are.
    """
    for factor in (FINER, *LESS_FINER):
        blocks: list[Observation] = list(model.physics)
        for i, block in enumerate(blocks):
            if model.is_exact(len(model.data) + i):
                blocks[i] = block.refined(_finer(model, block, OVERSAMPLED, factor)) or block
        finer = model.replace(physics=blocks)
        if model.size < finer.size and _fits(finer, times):
            return finer
    return None


def _fits(model: Model, times: float = 1.0) -> bool:
    """Whether a model is small enough for a search, or not larger by more than a factor."""
    return model.size <= times * MOST_ROWS and sum(map(_values_of, model.blocks)) <= times * MOST_VALUES


def _values_of(block: Observation) -> int:
    """Return the number of values that the observations of a block are functions of."""
    if not isinstance(block.operator, Nonlinear):
        return block.size
    return block.size * (1 + len(block.operator.nonlinear_in(block.dimension)))


def node_grids(model: Model) -> dict[str, tuple[int, ...]]:
    """Return the number of nodes of each exact block on each axis, by label; their total if they are not a grid."""
    return {model.labels[i]: _grid(block) for i, block in exact_blocks(model).items()}


def with_nodes(model: Model, grids: Mapping[str, Sequence[int]]) -> Model:
    """Return the model with the nodes of exact equations that a search has refined them to, as in `node_grids`."""
    blocks = list(model.blocks)
    for i, block in exact_blocks(model).items():
        now, wanted = _grid(block), tuple(grids.get(model.labels[i], ()))
        axes = sum(len(levels) > 1 for levels in _levels(_nodes(block)[0]))
        if len(now) == len(wanted) == axes:  # not a single point
            factors = [w / n for w, n in zip(wanted, now, strict=True)]
            blocks[i] = block.refined(factors if axes > 1 else factors[0]) or block
            continue
        most = math.prod(wanted) if wanted else 0
        while blocks[i].size < most:  # not a grid: as the search has refined them
            tried = [blocks[i].refined(factor) for factor in (FINER, *LESS_FINER)]
            finer = next((each for each in tried if each is not None and blocks[i].size < each.size <= most), None)
            if finer is None:
                break
            blocks[i] = finer
    return model.replace(physics=blocks[len(model.data) :])
