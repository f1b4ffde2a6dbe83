"""The cost of an exact factorisation on many nodes: the tasks of `solvers/tile_cholesky.py` on simulated workers.

The code that sends the tasks, `TiledFactored`, runs unchanged but sends them to a simulated cluster. The simulation
includes Dask's choice of a worker (among the workers that hold an input, the one where a task can start first), work
stealing, the copies of tiles that are fetched and dropped again, one link into and one out of each worker, and one
scheduler that handles one task after another:

    python -m benchmarks.plan                     # the tables of docs/plan.md; ten minutes or more
    python -m benchmarks.plan --tile 8192 --slots 1 --nodes 64 --gradient    # one simulation
    python -m benchmarks.plan --measure           # compared with one and two workers on this machine
    python -m benchmarks.plan --smoke             # small sizes, a smoke test
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

import pilescore as ps
from pilescore.parallel.resources import ONE_BLAS_THREAD
from pilescore.solvers import tile_cholesky as tile_graphs
from pilescore.solvers.tile_cholesky import PAIRS_PER_TASK, TiledFactored

STEAL, REDUCE, LATENCY = 1.0, 2.0, 0.1
"""Constants of Dask, in seconds: the periods of work stealing and of dropping copies, and the latency of a transfer."""

NEVER = math.inf


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A cluster of identical workers. Each runs up to `slots` tasks at a time, each at `flops` flop/s."""

    workers: int
    slots: int
    flops: float
    bandwidth: float
    """Bytes per second into a worker, and as many out of it."""
    overhead: float
    """Seconds that the scheduler needs for each task."""
    assembly: float
    """Seconds that a slot needs for each element of the covariance."""


@dataclasses.dataclass(frozen=True)
class Found:
    """The result of a simulation."""

    seconds: float
    tasks: int
    flops: float
    moved: float
    peak: float
    """The largest number of bytes of tiles on one worker at any time."""
    peak_total: float
    """The largest number of bytes of tiles on all workers together."""
    efficiency: float
    """The total time of the tasks, divided by the time of all slots."""


@dataclasses.dataclass(eq=False)
class Task:
    """A function call: its inputs, its duration, and whether its result is kept."""

    key: int
    inputs: list[int]
    flops: float
    seconds: float
    wanted: bool
    priority: tuple[int, int]
    missing: int = 0
    worker: int = -1
    expected: float = 0.0


class Ref:
    """A placeholder for a result."""

    def __init__(self, key: int) -> None:
        self.key = key


class Future(Ref):
    """A result that is kept as long as this object exists."""

    def __init__(self, key: int, cluster: Simulation) -> None:
        super().__init__(key)
        self.cluster = cluster

    @property
    def status(self) -> str:
        """The status, as in Dask."""
        return "pending" if self.key in self.cluster.unfinished else "finished"

    def __del__(self) -> None:
        self.cluster.kept.discard(self.key)
        self.cluster.forget(self.key)


class Graph:
    """Replaces `pilescore.parallel.TaskGraph`."""

    def __init__(self, owner: Simulation) -> None:
        self.owner = owner
        self.tasks: list[Task] = []
        self.wanted: dict[Any, int] = {}

    def call(self, name: Any, function: Callable[..., Any], *given: Any, wanted: bool = True) -> Ref:
        """Add a call."""
        owner = self.owner
        key = owner.new_key()
        inputs = list(dict.fromkeys(each.key for each in given if isinstance(each, Ref)))
        shape, flops, entries = cost(function, given, owner.shapes)
        owner.shapes[key] = shape
        seconds = flops / owner.cluster.flops + entries * owner.cluster.assembly
        self.tasks.append(Task(key, inputs, flops, seconds, wanted, (0, key)))
        if wanted:
            self.wanted[name] = key
        return Ref(key)


def cost(
    function: Callable[..., Any], given: tuple[Any, ...], shapes: dict[int, tuple[int, int]]
) -> tuple[tuple[int, int], float, int]:
    """Return the shape of a result, the flops of products and solves, and the number of assembled elements."""
    if function is tile_graphs.factor_tile:
        source, _, rows, columns, pivot, *both = given
        r, c = rows[1] - rows[0], columns[1] - columns[0]
        used = both if rows == columns else both[: len(both) // 2]
        flops = sum(2.0 * r * c * shapes[each.key][1] for each in used)
        flops += 0.0 if pivot is None else c**3 / 3 if pivot is True else float(r * c**2)
        return (r, c), flops, r * c if source is not None else 0
    if function is tile_graphs.invert_tile:
        shape = shapes[given[0].key]
        return shape, shape[0] ** 3 / 3, 0
    if function is tile_graphs.inverse_factor_tile:
        _, pivot, *both = given
        left, right = both[: len(both) // 2], both[len(both) // 2 :]
        r, c = shapes[left[0].key][0], shapes[right[0].key][1]
        return (r, c), sum(2.0 * r * c * shapes[e.key][1] for e in left) + (2.0 * r * r * c if pivot else 0.0), 0
    if function is tile_graphs.inverse_tile:
        _, twice, *both = given
        left, right = (both, both) if twice else (both[: len(both) // 2], both[len(both) // 2 :])
        r, c = shapes[left[0].key][1], shapes[right[0].key][1]
        return (r, c), sum(2.0 * r * c * shapes[e.key][0] for e in left), 0
    raise NotImplementedError(function.__name__)


class Simulation:
    """An event simulation of a cluster; replaces `pilescore.parallel.TaskRunner`."""

    def __init__(self, cluster: Cluster, source: float) -> None:
        self.cluster = cluster
        self.now = self.busy_until = self.busy = self.flops = self.moved = 0.0
        self.peak = self.total = self.peak_total = 0.0
        self.count, self.sequence, self.keys = 0, itertools.count(), itertools.count(1)
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        many = range(cluster.workers)
        self.occupancy, self.stored = np.zeros(cluster.workers), np.zeros(cluster.workers)
        self.free = [cluster.slots for _ in many]
        self.queues: list[list[tuple[tuple[int, int], int, Task]]] = [[] for _ in many]  # tasks with all inputs present
        self.assigned: list[dict[int, Task]] = [{} for _ in many]  # tasks that have not started
        self.uses: list[dict[int, int]] = [{} for _ in many]  # uses of tiles by unfinished tasks
        self.arrivals: list[dict[int, list[Task]]] = [{} for _ in many]  # tasks that wait for a tile
        self.fetches: list[list[tuple[tuple[int, int], int]]] = [[] for _ in many]
        self.receiving, self.out_until = [False for _ in many], [0.0 for _ in many]
        self.shapes: dict[int, tuple[int, int]] = {}
        self.bytes: dict[int, float] = {0: source}
        self.holders: dict[int, np.ndarray] = {0: np.arange(cluster.workers) == 0}
        self.copies: dict[int, int] = {}  # number of copies of tiles with more than one
        self.users: dict[int, int] = {}  # workers with unfinished tasks that read a tile
        self.reads: dict[int, int] = {}  # reads of a tile by these tasks
        self.waiters: dict[int, list[Task]] = {}  # tasks that wait for a missing result
        self.needed: dict[int, int] = {}  # unfinished tasks that need a result
        self.unfinished: set[int] = set()
        self.kept: set[int] = {0}
        self.outstanding = 0
        self.reached: Callable[[], str] | None = None
        self.at(STEAL, self.steal)
        self.at(REDUCE, self.reduce)

    def new_key(self) -> int:
        """Return a new key for a result."""
        return next(self.keys)

    def graph(self) -> Graph:
        """Return an empty graph."""
        return Graph(self)

    def send(self, graph: Graph, priority: int = 0) -> dict[Any, Future]:
        """Submit the tasks of a graph."""
        for task in graph.tasks:
            task.priority = (-priority, task.key)
            self.unfinished.add(task.key)
            self.outstanding += task.wanted
            for key in task.inputs:
                self.needed[key] = self.needed.get(key, 0) + 1
                if key in self.unfinished:
                    task.missing += 1
                    self.waiters.setdefault(key, []).append(task)
            if not task.missing:
                self.schedule(task)
        self.kept.update(graph.wanted.values())
        return {name: Future(key, self) for name, key in graph.wanted.items()}

    def wait(self, futures: Iterable[Future], at_most: int, finished: Callable[[int], object]) -> list[Future]:
        """Advance time until at most `at_most` results are outstanding."""
        while self.outstanding > at_most:
            assert len(self.events) > 2, "only periodic events are left"
            self.now, _, call, given = heapq.heappop(self.events)
            call(*given)
        every = list(futures)
        left = [future for future in every if future.status == "pending"]
        finished(len(every) - len(left))
        return left

    def at(self, when: float, call: Callable[..., None], *given: Any) -> None:
        """Add an event."""
        heapq.heappush(self.events, (when, next(self.sequence), call, given))

    def schedule(self, task: Task) -> None:
        """Pass a task whose inputs exist to the scheduler."""
        self.busy_until = max(self.now, self.busy_until) + self.cluster.overhead
        self.at(self.busy_until, self.choose, task)

    def choose(self, task: Task) -> None:
        """Assign a task to a worker, as `decide_worker` and `worker_objective` in Dask's scheduler."""
        held = np.array([self.holders[key] for key in task.inputs])
        start = self.occupancy / self.cluster.slots + self.transfer(task, held)
        start[~held.any(axis=0)] = NEVER
        first = np.flatnonzero(start == start.min())
        self.assign(task, int(first[np.argmin(self.stored[first])]))

    def transfer(self, task: Task, held: np.ndarray) -> np.ndarray:
        """Return the seconds that each worker needs to fetch the missing inputs."""
        sizes = np.array([self.bytes[key] for key in task.inputs])
        return np.asarray(sizes @ ~held) / self.cluster.bandwidth

    def assign(self, task: Task, worker: int) -> None:
        """Give a task to a worker, which fetches the missing inputs."""
        task.worker, task.missing = worker, 0
        lacking = 0.0
        for key in task.inputs:
            uses = self.uses[worker].get(key, 0)
            self.uses[worker][key] = uses + 1
            self.users[key] = self.users.get(key, 0) + (not uses)
            self.reads[key] = self.reads.get(key, 0) + 1
            if self.holders[key][worker]:
                continue
            task.missing += 1
            lacking += self.bytes[key]
            waiting = self.arrivals[worker].setdefault(key, [])
            if not waiting:
                heapq.heappush(self.fetches[worker], (task.priority, key))
            waiting.append(task)
        task.expected = task.seconds + lacking / self.cluster.bandwidth
        self.occupancy[worker] += task.expected
        self.assigned[worker][task.key] = task
        if task.missing:
            self.fetch(worker)
        else:
            heapq.heappush(self.queues[worker], (task.priority, next(self.sequence), task))
            self.begin(worker)

    def fetch(self, worker: int) -> None:
        """Fetch the tile that is needed first from the least busy holder; one tile at a time."""
        while self.fetches[worker] and not self.receiving[worker]:
            key = heapq.heappop(self.fetches[worker])[1]
            if not self.arrivals[worker].get(key):
                self.arrivals[worker].pop(key, None)  # the task was stolen
                continue
            sender = min(np.flatnonzero(self.holders[key]), key=lambda w: self.out_until[w])
            until = max(self.now, self.out_until[sender]) + self.bytes[key] / self.cluster.bandwidth
            self.out_until[sender], self.receiving[worker] = until, True
            self.moved += self.bytes[key]
            self.at(until, self.arrived, worker, key)

    def arrived(self, worker: int, key: int) -> None:
        """Store a fetched tile."""
        self.receiving[worker] = False
        waiting = self.arrivals[worker].pop(key, [])
        if key in self.holders and not self.holders[key][worker]:
            self.store(worker, key)
        for task in waiting:
            task.missing -= 1
            if not task.missing:
                heapq.heappush(self.queues[worker], (task.priority, next(self.sequence), task))
        self.fetch(worker)
        self.begin(worker)

    def store(self, worker: int, key: int) -> None:
        """Add a tile to the memory of a worker."""
        self.holders[key][worker] = True
        self.stored[worker] += self.bytes[key]
        self.total += self.bytes[key]
        self.peak, self.peak_total = max(self.peak, float(self.stored[worker])), max(self.peak_total, self.total)
        copies = self.copies.get(key) or np.count_nonzero(self.holders[key]) - 1
        if key and copies:
            self.copies[key] = int(copies) + 1

    def begin(self, worker: int) -> None:
        """Start tasks whose inputs are present, in the order of columns."""
        while self.free[worker] and self.queues[worker]:
            task = heapq.heappop(self.queues[worker])[2]
            if task.key not in self.assigned[worker] or task.missing:
                continue  # the task was stolen
            del self.assigned[worker][task.key]
            self.free[worker] -= 1
            self.at(self.now + task.seconds, self.done, task)

    def done(self, task: Task) -> None:
        """Store a result, and schedule the tasks that were waiting for it."""
        worker = task.worker
        self.free[worker] += 1
        self.occupancy[worker] -= task.expected
        self.busy, self.flops, self.count = self.busy + task.seconds, self.flops + task.flops, self.count + 1
        self.unfinished.discard(task.key)
        self.outstanding -= task.wanted
        self.holders[task.key] = np.zeros(self.cluster.workers, dtype=bool)
        self.bytes[task.key] = 8.0 * math.prod(self.shapes[task.key])
        self.store(worker, task.key)
        for key in task.inputs:
            self.unused(worker, key)
            self.needed[key] -= 1
            self.forget(key)
        for waiter in self.waiters.pop(task.key, ()):
            waiter.missing -= 1
            if not waiter.missing:
                self.schedule(waiter)
        self.forget(task.key)
        self.begin(worker)

    def unused(self, worker: int, key: int) -> None:
        """Remove one task of a worker from the users of a tile."""
        self.uses[worker][key] -= 1
        self.reads[key] -= 1
        if not self.uses[worker][key]:
            del self.uses[worker][key]
            self.users[key] -= 1

    def forget(self, key: int) -> None:
        """Drop a result that is no longer needed."""
        if key in self.kept or self.needed.get(key) or key in self.unfinished or key not in self.holders:
            return
        holders, size = self.holders.pop(key), self.bytes.pop(key)
        self.stored[holders] -= size
        self.total -= size * np.count_nonzero(holders)
        for each in (self.needed, self.copies, self.users, self.reads):
            each.pop(key, None)

    def reduce(self) -> None:
        """Drop unneeded copies from the fullest workers, as `ReduceReplicas` in Dask."""
        for key, copies in list(self.copies.items()):
            waiters = self.needed[key]
            if waiters < 20:  # count each worker once
                waiters += self.users[key] - self.reads[key]
            if copies > max(1, waiters):
                holders = np.flatnonzero(self.holders[key])
                idle = sorted((w for w in holders if key not in self.uses[w]), key=lambda w: -self.stored[w])
                for worker in idle[: copies - max(1, waiters)]:
                    self.holders[key][worker] = False
                    self.stored[worker] -= self.bytes[key]
                    self.total -= self.bytes[key]
                    self.copies[key] -= 1
                if self.copies[key] == 1:
                    del self.copies[key]
        self.at(self.now + REDUCE, self.reduce)

    def steal(self) -> None:
        """Move tasks that have not started to idle workers, as `WorkStealing.balance` in Dask."""
        self.at(self.now + STEAL, self.steal)
        load = [self.cluster.slots - self.free[w] + len(self.assigned[w]) for w in range(self.cluster.workers)]
        thieves = [w for w, count in enumerate(load) if count < self.cluster.slots]
        victims = [w for w, count in enumerate(load) if count > self.cluster.slots]
        for victim in sorted(victims, key=lambda w: -self.occupancy[w]) if thieves else ():
            for task in list(self.assigned[victim].values()):
                if not thieves or load[victim] <= self.cluster.slots:
                    break
                cost = self.transfer(task, np.array([self.holders[key] for key in task.inputs])) + LATENCY
                until = self.occupancy / self.cluster.slots
                thief = min(thieves, key=lambda w: until[w] + cost[w])
                gain = until[victim] - (cost[victim] + task.seconds) / 2 - until[thief] - cost[thief] - task.seconds
                if gain < 0:
                    continue
                del self.assigned[victim][task.key]
                self.occupancy[victim] -= task.expected
                for key in task.inputs:
                    self.unused(victim, key)
                    if task in self.arrivals[victim].get(key, ()):
                        self.arrivals[victim][key].remove(task)
                self.assign(task, thief)
                load[victim], load[thief] = load[victim] - 1, load[thief] + 1
                thieves = [w for w in thieves if load[w] < self.cluster.slots]


def simulated(size: int, tile: int, cluster: Cluster, gradient: bool = False) -> Found:
    """Simulate the tasks of a factorisation, and of the inverse if `gradient`, on a cluster."""
    simulation = Simulation(cluster, 32.0 * size)
    factored = object.__new__(TiledFactored)
    factored.ranges = [(start, min(start + tile, size)) for start in range(0, size, tile)]
    factored.width = cluster.workers * cluster.slots
    factored.lower, factored.inverse = {}, {}
    factored.source = Ref(0)
    factored.tasks = simulation  # type: ignore[assignment]
    factored._factor()
    if gradient:
        factored._invert()
    at_once = factored.width
    found = simulation
    return Found(
        found.now,
        found.count,
        found.flops,
        found.moved,
        found.peak,
        found.peak_total,
        found.busy / found.now / at_once,
    )


def counted(count: int, gradient: bool = False) -> int:
    """Return the number of tasks from a closed formula: a sum over chunks of the pairs of tiles with such a chunk."""

    def pairs(n: int) -> int:
        return sum(math.comb(n - each, 2) for each in range(0, n, PAIRS_PER_TASK))

    return count + pairs(count) + (count + pairs(count) + pairs(count + 1) if gradient else 0)


def worked(count: int, tile: int, gradient: bool = False) -> float:
    """Return the flops from a closed formula, for complete tiles."""
    n = count
    factor = n**3 / 3 + n**2 / 2 - n / 2
    inverse = (n**3 - n) / 3 + n**2 - n + n / 3 + n * (n + 1) * (n + 2) / 3
    return (factor + inverse * gradient) * float(tile) ** 3


def chain(count: int, tile: int, last: int = PAIRS_PER_TASK) -> float:
    """Return the flops of the longest chain of tasks: for each column the last task of `L_kk` and of a tile below it.

    `last` is the largest number of pairs that the last task of a tile multiplies.
    """
    pairs = [0] + [(k - 1) % last + 1 for k in range(1, count)]
    below = [1.0] * (count - 1) + [0.0]
    each = [2.0 * many + 1 / 3 + there * (2.0 * many + 1) for many, there in zip(pairs, below, strict=True)]
    return sum(each) * float(tile) ** 3


def verify() -> None:
    """Check simulated counts against formulas, and simulated times against lower bounds for any schedule."""
    cluster = Cluster(workers=3, slots=2, flops=1e9, bandwidth=1e9, overhead=1e-4, assembly=1e-9)
    for count in (1, 2, 5, 9, 16):
        for gradient in (False, True):
            found = simulated(32 * count, 32, cluster, gradient)
            assert found.tasks == counted(count, gradient), (count, gradient, found.tasks)
            assert math.isclose(found.flops, worked(count, 32, gradient)), (count, gradient, found.flops)
            least = found.tasks * cluster.overhead, found.flops / 6e9, chain(count, 32) / 1e9
            assert found.seconds >= max(least), (count, gradient, found.seconds, least)
    alone = simulated(32 * 9, 32, Cluster(1, 1, 1e9, 1e9, 0.0, 0.0))
    assert math.isclose(alone.seconds, alone.flops / 1e9)
    assert alone.moved == 0.0
    assert math.isclose(alone.peak, 8.0 * 32**2 * 46), alone.peak / 8192  # 45 tiles and one unfinished tile


NODE = {"flops": 2e12, "cores": 64.0, "bandwidth": 12.5e9, "memory": 512e9}
"""The assumed node: dgemm flop/s of all cores, cores, bytes per second in each direction, bytes of memory."""

OVERHEAD = 1e-3
ASSEMBLY = 2e-8
"""Assumed seconds of the scheduler per task, and of a core per element of the covariance."""

HEADER = (
    "| nodes | tasks at once on a node × BLAS threads | tile | tasks | hours | busy | moved, TB "
    "| most tiles on a node, GB | on all, TB |"
)


def nodes(count: int, slots: int, overhead: float = OVERHEAD, cores: float | None = None) -> Cluster:
    """Return a cluster of assumed nodes, with one worker each, whose cores are shared by `slots` tasks."""
    each = (cores or NODE["cores"]) / slots
    flops = NODE["flops"] / NODE["cores"] * each
    return Cluster(count, slots, flops, NODE["bandwidth"], overhead, ASSEMBLY / each)


def row(size: int, tile: int, cluster: Cluster, gradient: bool = False) -> Found:
    found = simulated(size, tile, cluster, gradient)
    threads = round(NODE["cores"] / cluster.slots)
    print(
        f"| {cluster.workers} | {cluster.slots} × {threads} | {tile} | {found.tasks:,} | {found.seconds / 3600:.2f} "
        f"| {found.efficiency:.0%} | {found.moved / 1e12:.0f} | {found.peak / 1e9:.0f} "
        f"| {found.peak_total / 1e12:.1f} |",
        flush=True,
    )
    return found


def arithmetic(size: int, sizes: Iterable[int]) -> None:
    """Print the table that needs no simulation."""
    print(
        "| tile | GB of a tile | columns | tasks | scheduler, h | GB of a row of tiles "
        "| longest chain, h: 1 × 64 | 4 × 16 | 64 × 1 |"
    )
    print("|---" * 9 + "|")
    for tile in sizes:
        count = -(-size // tile)
        hours = [chain(count, tile) / nodes(1, slots).flops / 3600 for slots in (1, 4, 64)]
        print(
            f"| {tile} | {8e-9 * tile**2:.3f} | {count} | {counted(count):,} | {counted(count) * OVERHEAD / 3600:.2f} "
            f"| {8e-9 * size * tile:.0f} | " + " | ".join(f"{each:.2f}" for each in hours) + " |"
        )


def one_pair_last(numbers: range) -> Iterator[tuple[range, bool]]:
    """Yield chunks, the last of which is one pair; replaces `tile_cholesky.chunks` with `--one-pair-last`."""
    for start in range(0, len(numbers) - 1, PAIRS_PER_TASK):
        yield numbers[start : min(start + PAIRS_PER_TASK, len(numbers) - 1)], False
    yield numbers[-1:], True


def tables(size: int, layouts: Iterable[tuple[int, int]], counts: Iterable[int], tile: int, slots: int) -> None:
    arithmetic(size, [2048, 3072, 4096, 6144, 8192, 12288, 16384])
    print(f"\nN = {size:,} on 64 nodes: the factor\n\n{HEADER}\n{'|---' * 9}|")
    for each, at_once in layouts:
        row(size, each, nodes(64, at_once))
    print(f"\nWith the inverse, for a gradient\n\n{HEADER}\n{'|---' * 9}|")
    row(size, tile, nodes(64, slots), gradient=True)
    print(f"\nThe factor on different numbers of nodes\n\n{HEADER}\n{'|---' * 9}|")
    for count in counts:
        row(size, tile, nodes(count, slots))


def dgemm(tile: int) -> float:
    """Return the flop/s of products of tiles on one thread."""
    left, right = np.random.default_rng(0).standard_normal((2, tile, tile))
    with ONE_BLAS_THREAD:
        return 2.0 * tile**3 / min(clocked(lambda: left @ right.T) for _ in range(5))


def clocked(job: Callable[[], object]) -> float:
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def _sent(dask_worker: Any) -> float:
    return float(dask_worker.transfer_outgoing_bytes_total)


def posed(size: int) -> Any:
    """Return the covariance of `size` observations in a square."""
    from pilescore.covariance.linear_operator import KernelCovariance
    from pilescore.covariance.tiles import assembly

    points = np.random.default_rng(0).uniform(-1, 1, (size, 2))
    model = ps.Model(
        ps.RBF(bandwidth=0.3), data=ps.observe(ps.identity, np.sin(3 * points[:, 0]), at=points), gamma=0.1
    )
    parts = assembly(model.blocks)
    noise = np.asarray(model.temperatures)[parts.block] * parts.spread
    return KernelCovariance(model.kernel, parts.rows, 1.0, parts.values, noise)


@dataclasses.dataclass
class Watch:
    """Times of the parts of an evaluation, and the bytes that workers sent during each."""

    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    cpu: dict[str, float] = dataclasses.field(default_factory=dict)
    sent: dict[str, float] = dataclasses.field(default_factory=dict)
    tasks: dict[str, int] = dataclasses.field(default_factory=dict)

    def around(self, name: str) -> Callable[[TiledFactored], None]:
        """Return a method of `TiledFactored` that records its time and traffic."""
        inner = getattr(TiledFactored, name)

        def timed(factored: TiledFactored) -> None:
            client, before = factored.tasks.client, factored.tasks.count
            sent, cpu = sum(client.run(_sent).values()), time.process_time()
            self.seconds[name] = clocked(lambda: inner(factored))
            self.cpu[name] = time.process_time() - cpu
            self.sent[name] = sum(client.run(_sent).values()) - sent
            self.tasks[name] = factored.tasks.count - before

        return timed


def watched(solver: ps.solvers.Distributed, covariance: Any, repeat: int) -> Watch:
    """Return the fastest of several evaluations, after a first one that compiles."""
    names = ("_factor", "_invert")
    before = {name: getattr(TiledFactored, name) for name in names}
    runs = []
    try:
        for _ in range(repeat + 1):
            watch = Watch()
            for name in names:
                setattr(TiledFactored, name, watch.around(name))
            solver.factor(covariance).cotangent(1.0)
            runs.append(watch)
            for name in names:
                setattr(TiledFactored, name, before[name])
    finally:
        for name in names:
            setattr(TiledFactored, name, before[name])
    return min(runs[1:], key=lambda run: sum(run.seconds.values()))


def measure(size: int, tile: int, repeat: int) -> None:
    """Print measured times with one and two workers next to simulated ones."""
    covariance = posed(size)
    block = covariance.select(np.arange(tile))
    covariance.block(block, block)
    entry = min(clocked(lambda: np.asarray(covariance.block(block, block))) for _ in range(3)) / tile**2
    rate, load = dgemm(tile), os.getloadavg()[0]
    measured: dict[int, Watch] = {}
    overhead, bandwidth = 0.0, 1e9
    for count in (1, 2):
        with ps.solvers.Distributed(workers=count, memory_limit="3GB", tile=tile) as solver:
            measured[count] = watched(solver, covariance, repeat)
            bandwidth = float(solver._local.client.cluster.scheduler.bandwidth)
        with ps.solvers.Distributed(workers=count, memory_limit="3GB", tile=8) as solver:
            tiny = watched(solver, posed(8 * 24), 1)
            overhead = sum(tiny.cpu.values()) / sum(tiny.tasks.values())
            wall = sum(tiny.seconds.values()) / sum(tiny.tasks.values())
        print(f"{count} workers, tiles of 8 rows: {1e3 * wall:.2f} ms per task, scheduler {1e3 * overhead:.2f} ms")
    print(
        f"N = {size}, tile {tile}; load {load:.1f} before and {os.getloadavg()[0]:.1f} after; dgemm {rate / 1e9:.1f} "
        f"GFlop/s, assembly {1e9 * entry:.1f} ns per element, links {bandwidth / 1e9:.2f} GB/s as measured by Dask"
    )
    print("| part | workers | measured, s | simulated, s | sent, GB | simulated, GB |\n|---|---|---|---|---|---|")
    times: dict[tuple[str, int], tuple[float, float]] = {}
    for count, watch in measured.items():
        cluster = Cluster(count, 1, rate, bandwidth, overhead, entry)
        factor, whole = simulated(size, tile, cluster), simulated(size, tile, cluster, gradient=True)
        for name, seconds, moved in (
            ("_factor", factor.seconds, factor.moved),
            ("_invert", whole.seconds - factor.seconds, whole.moved - factor.moved),
        ):
            times[name, count] = watch.seconds[name], seconds
            print(
                f"| {name[1:]} | {count} | {watch.seconds[name]:.2f} | {seconds:.2f} | {watch.sent[name] / 1e9:.2f} "
                f"| {moved / 1e9:.2f} |"
            )
    for name in ("_factor", "_invert"):
        real, predicted = (times[name, 1][k] / times[name, 2][k] for k in (0, 1))
        print(f"{name[1:]}: two workers are {real:.2f} times as fast as one; simulated {predicted:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="small sizes, a smoke test")
    parser.add_argument("--measure", action="store_true", help="compare with one and two workers on this machine")
    parser.add_argument("--size", type=int, default=1_000_000, help="number of observations")
    parser.add_argument("--tile", type=int, help="rows of a tile; runs one simulation only")
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--slots", type=int, default=1, help="simultaneous tasks per node, which share its cores")
    parser.add_argument("--tflops", type=float, default=NODE["flops"] / 1e12, help="TFlop/s of a node")
    parser.add_argument("--bandwidth", type=float, default=NODE["bandwidth"] / 1e9, help="GB/s of a node, each way")
    parser.add_argument("--overhead", type=float, default=1e3 * OVERHEAD, help="ms of the scheduler per task")
    parser.add_argument("--gradient", action="store_true", help="include the inverse")
    parser.add_argument("--one-pair-last", action="store_true", help="use shorter last tasks; for one simulation only")
    given = parser.parse_args()
    NODE.update(flops=1e12 * given.tflops, bandwidth=1e9 * given.bandwidth)
    verify()
    if given.measure:
        measure(given.size if given.tile else 10_240, given.tile or 1024, 3)
    elif given.smoke:
        tables(100_000, [(8192, 1), (4096, 1)], [1, 4], 4096, 1)
    elif given.tile:
        if given.one_pair_last:
            tile_graphs.chunks = one_pair_last
        print(f"{HEADER}\n{'|---' * 9}|")
        row(given.size, given.tile, nodes(given.nodes, given.slots, 1e-3 * given.overhead), given.gradient)
    else:
        layouts = [(16384, 1), (12288, 1), (8192, 1), (6144, 1), (8192, 4), (4096, 4), (8192, 16), (4096, 64)]
        tables(given.size, layouts, [1, 2, 4, 8, 16, 32, 64, 128], 8192, 1)


if __name__ == "__main__":
    main()
