"""The distributed solver: the numbers of LAPACK on one process, and clear errors when workers fail."""

import gc
import multiprocessing
import os
import signal
import sys
import time

import jax
import numpy as np
import psutil
import pytest

import pilescore as ps
from pilescore.covariance.linear_operator import CoefficientTangent, KernelCovariance, KernelTangent
from pilescore.covariance.tiles import assembly, layout
from pilescore.parallel import cluster
from pilescore.parallel.cluster import checked_client
from pilescore.solvers import distributed as tiled
from pilescore.solvers import tile_cholesky as tile_graphs
from pilescore.solvers.distributed import Distributed
from pilescore.solvers.lapack import Dense, NotFactorableError

distributed = pytest.importorskip("distributed")

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

TILE = 64


def covariance_of(model):
    parts = assembly(model.blocks)
    noise = np.asarray(model.temperatures)[parts.block] * parts.spread
    return KernelCovariance(model.kernel, parts.rows, 1.3, parts.values, noise)


def model_of(count, gamma=1e-2):
    """Data and physics of one structure, and a functional."""
    line = ps.Box(x=(0, 1))
    (dx,) = ps.partials(line)
    x = np.linspace(0, 1, count)
    inside = line.interior(ps.GaussLegendre(40))
    return ps.Model(
        ps.RBF(bandwidth=0.1),
        data=[
            ps.observe(ps.identity, np.sin(6 * x), at=x),
            ps.observe(ps.integral(inside), values=0.1),
        ],
        physics=[ps.impose(0.3 * dx**2 + ps.identity, lambda p: p[0], on=inside)],
        gamma=gamma,
        rho=1e-2,
    )


@pytest.fixture(scope="module")
def model():
    return model_of(230)


@pytest.fixture(scope="module")
def covariance(model):
    found = covariance_of(model)
    assert found.size % TILE
    assert any(tile.matrix is not None for tile in found.rows.tiles)
    return found


@pytest.fixture(scope="module")
def solver():
    with Distributed(workers=2, tile=TILE) as found:
        yield found


@pytest.fixture(scope="module")
def factored(solver, covariance):
    return solver.factor(covariance)


@pytest.fixture(scope="module")
def client(solver, factored):
    return solver._local.client


@pytest.fixture(scope="module")
def dense(covariance):
    return Dense().factor(covariance)


def test_scores_and_solutions_match_one_process(factored, dense, covariance, monkeypatch):
    assert factored.logdet.width == factored.quadratic.width == 0
    assert factored.logdet.value == pytest.approx(dense.logdet.value, rel=1e-12)
    assert factored.quadratic.value == pytest.approx(dense.quadratic.value, rel=1e-9)
    np.testing.assert_allclose(factored.alpha, dense.alpha, rtol=1e-8, atol=1e-9 * abs(dense.alpha).max())
    assert factored.error == pytest.approx(dense.error, rel=1e-6)
    monkeypatch.setattr(tile_graphs, "COLUMNS_PER_SOLVE", 2)  # more than one run of columns
    right = np.random.default_rng(0).normal(size=(covariance.size, 3))
    found, width = factored.solve(right)
    assert not width.any()
    np.testing.assert_allclose(found, dense.solve(right)[0], rtol=1e-8, atol=1e-8)
    expected = dense.reduced(right.copy())
    np.testing.assert_allclose(factored.reduced(right.copy()), expected, rtol=1e-9)
    np.testing.assert_allclose(factored.reduced_diagonal(right.copy()), expected.diagonal(), rtol=1e-9)


def test_gradients_match_one_process(solver, covariance, model):
    tangents = [jax.numpy.cos(block.coefficients * 3.0) for block in model.blocks]
    moved = (layout(model.blocks, tangents),)
    kernel, rows, eta = covariance.kernel, covariance.rows, covariance.eta
    given = [KernelTangent(kernel, rows, eta, [0]), CoefficientTangent(kernel, rows, eta, moved)]
    factored = solver.factor(covariance)
    pull, expected = factored.cotangent(1.7), Dense().factor(covariance).cotangent(1.7)
    scale = abs(expected.diagonal).max()
    np.testing.assert_allclose(pull.diagonal, expected.diagonal, rtol=1e-8, atol=1e-9 * scale)
    for tangent in given:
        np.testing.assert_allclose(pull.contract(tangent), expected.contract(tangent), rtol=1e-7)
    np.testing.assert_allclose(factored.cotangent(2.0).diagonal, pull.diagonal + factored.alpha**2 * (1 / 1.7 - 0.5))
    with pytest.raises(ps.errors.PilescoreError, match="overwritten the factor"):
        factored.solve(np.ones((covariance.size, 1)))


def test_a_killed_worker_is_replaced_and_the_run_continues(client, covariance, factored, monkeypatch):
    pid = next(iter(client.run(os.getpid).values()))
    wait, before, after = cluster.TaskRunner.wait, [], []  # tiles that were finished before and after the kill

    def killing(self, futures, at_most=0, finished=None):
        """Kill a worker when more than thirty tiles are done."""

        def count(number):
            (after if sum(before) > 30 else before).append(number)
            if sum(before) > 30 and not after:
                os.kill(pid, signal.SIGKILL)
            if finished is not None:
                finished(number)

        return wait(self, futures, at_most, count)

    monkeypatch.setattr(cluster.TaskRunner, "wait", killing)
    found = Distributed(client, tile=24).factor(covariance)
    assert sum(after) > 10  # it happened in the middle
    assert not psutil.pid_exists(pid)
    assert found.logdet.value == pytest.approx(factored.logdet.value, rel=1e-12)
    np.testing.assert_allclose(found.alpha, factored.alpha, atol=1e-8 * abs(factored.alpha).max())
    client.wait_for_workers(2, timeout=600)


def test_workers_that_die_repeatedly_raise(client, monkeypatch):
    def deadly(x, y):
        import jax.numpy as jnp

        if multiprocessing.parent_process() is not None:
            os._exit(1)
        return jnp.exp(-jnp.sum((x - y) ** 2))

    x = np.linspace(0, 1, 30)
    data = ps.observe(ps.identity, np.sin(x), at=x)
    bad = covariance_of(ps.Model(ps.kernels.FunctionKernel(deadly), data=data, gamma=0.1))
    monkeypatch.setattr(client.cluster.scheduler, "allowed_failures", 0)
    with pytest.raises(
        ps.errors.PilescoreError, match=r"died repeatedly.*0 of 2 columns.*memory limit of .* GB.*What helps"
    ):
        Distributed(client, tile=16).factor(bad)
    client.wait_for_workers(2, timeout=600)


def test_workers_that_stay_paused_raise(client, covariance, monkeypatch):
    def limit(fraction, dask_worker):
        dask_worker.memory_manager.memory_pause_fraction = fraction

    monkeypatch.setattr(cluster, "STALLED_SECONDS", 1.0)
    monkeypatch.setattr(tiled, "_require_room", lambda *_: None)
    client.run(limit, 1e-6)
    try:
        while any(worker["status"] != "paused" for worker in client.scheduler_info()["workers"].values()):
            time.sleep(0.05)
        with pytest.raises(ps.errors.PilescoreError, match=r"2 of 2 workers are paused.*What helps"):
            Distributed(client, tile=TILE).factor(covariance)
    finally:
        client.run(limit, 0.95)


def test_a_matrix_that_is_not_positive_definite_names_the_row(client):
    model = model_of(100)
    covariance = covariance_of(model)
    noise = covariance.noise.copy()
    noise[70] = -50.0
    bad = KernelCovariance(covariance.kernel, covariance.rows, 1.3, covariance.values, noise)
    with pytest.raises(NotFactorableError) as expected:
        Dense().factor(bad)
    with pytest.raises(NotFactorableError) as found:
        Distributed(client, tile=TILE).factor(bad)
    assert found.value.row == expected.value.row == 70


def test_an_interrupted_run_leaves_no_tasks(client, covariance, monkeypatch):
    calls = []

    def interrupted(self, *_, **__):
        calls.append(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster.TaskRunner, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Distributed(client, tile=TILE).factor(covariance)
    prefix = calls[0].prefix
    until = time.monotonic() + 600
    while any(str(key).startswith(prefix) for key in list(client.cluster.scheduler.tasks)):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_memory_and_disk_are_checked_before_any_work(client, covariance, monkeypatch):
    small = Distributed(workers=1, memory_limit="200MB")
    with pytest.raises(ps.errors.MemoryLimitError, match=r"limit of 0\.2 GB.*Use a limit of 0\.\d+ GB or more"):
        small.factor(covariance)
    assert small._local.client is None
    with pytest.raises(ps.errors.MemoryLimitError, match=r"tile=\d+ or less"):
        Distributed(workers=1, memory_limit=1e9, tile=5000).factor(covariance)
    with pytest.raises(ps.errors.MemoryLimitError, match=r"tile=\d+ or less"):
        Distributed(client, tile=100_000).factor(covariance)
    monkeypatch.setattr(tiled, "triangle_bytes", lambda *_: 1e15)
    with pytest.raises(ps.errors.MemoryLimitError, match="local_directory: the factor needs"):
        Distributed(client, tile=TILE).factor(covariance)


def test_memory_and_operations_are_estimated(client, covariance):
    found = Distributed(workers=4, memory_limit="1GB").estimate(covariance)
    assert "4 workers" in found.method
    assert found.memory < 1e9
    assert found.disk == 0
    assert found.flops == pytest.approx(covariance.size**3 / 3)
    assert "2 workers" in Distributed(client).estimate(covariance).method
    assert tiled.chosen_tile(30_000, 2, 1e12) == 2048
    assert tiled.chosen_tile(30_000, 2, 0.9e9 - tiled.WORKER_BYTES) in (1024, 1536)
    assert tiled.chosen_tile(300, 2, 1e12) == 256


def test_clients_are_checked(client, covariance, as_a_user):
    with pytest.raises(ps.errors.InputError, match=r"client: expected a dask\.distributed\.Client; got 3"):
        Distributed(3).factor(covariance)
    with distributed.LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as empty:
        other = distributed.Client(empty, set_as_default=False)
        with pytest.raises(ps.errors.InputError, match="at least one worker"):
            Distributed(other).factor(covariance)
        other.close()
        with pytest.raises(ps.errors.InputError, match="this one is closed"):
            Distributed(other).factor(covariance)
    assert checked_client(client) is client
    for name, value in (("workers", 2), ("memory_limit", "1GB"), ("local_directory", "/tmp")):
        with pytest.raises(ps.errors.InputError, match=f"{name}: expected None with a client"):
            Distributed(client, **{name: value})
    for name, value in (("workers", 0), ("memory_limit", "much"), ("memory_limit", -1.0), ("tile", 0)):
        with pytest.raises(ps.errors.InputError, match=name):
            Distributed(**{name: value})
    with pytest.raises(ps.errors.InputError, match="local_directory: expected an existing directory"):
        Distributed(workers=1, local_directory="/nowhere").factor(covariance)


def test_the_error_without_dask_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ps.errors.InputError, match=r"pip install 'pilescore\[scale\]'"):
        Distributed()


def test_processes_are_kept_between_evaluations_and_ended_with_the_solver(tmp_path):
    x = np.linspace(0, 1, 20)
    data = ps.observe(ps.identity, np.sin(x), at=x)
    covariance = covariance_of(ps.Model(ps.RBF(bandwidth=0.3), data=data, gamma=0.1))
    solver = Distributed(workers=1, tile=16, local_directory=str(tmp_path))
    first = solver.factor(covariance)
    (pid,) = first.tasks.client.run(os.getpid).values()
    assert solver.factor(covariance).tasks.client is first.tasks.client
    assert list(tmp_path.iterdir())
    del solver
    gc.collect()
    assert psutil.pid_exists(pid)  # the factor is still there
    del first
    gc.collect()
    assert not psutil.pid_exists(pid)
    assert not list(tmp_path.iterdir())


def test_a_tile_in_float32_is_refused(covariance):
    class Single(KernelCovariance):
        def block(self, first, second):
            return super().block(first, second).astype(np.float32)

    fields = covariance.kernel, covariance.rows, covariance.eta, covariance.values, covariance.noise
    with pytest.raises(ps.errors.PilescoreError, match="float32 on a worker"):
        tile_graphs.assemble_tile(Single(*fields), (0, 10), (0, 10))


def test_tasks_do_not_modify_their_tiles():
    rng = np.random.default_rng(0)
    a, b, pivot = rng.normal(size=(3, 300, 300))
    pivot = np.tril(pivot) + 30 * np.eye(300)
    given = [each.copy() for each in (a, b, pivot)]
    found = tile_graphs.factor_tile(None, a, (300, 600), (0, 300), pivot, b, b)
    np.testing.assert_allclose(found @ pivot.T, a - b @ b.T, atol=1e-10)
    np.testing.assert_allclose(tile_graphs.solve_tile(pivot, a, True, b), np.linalg.solve(pivot.T, a - b), atol=1e-11)
    np.testing.assert_allclose(tile_graphs.invert_tile(pivot) @ pivot, np.eye(300), atol=1e-12)
    tile_graphs.inverse_tile(a, False, b, a)
    tile_graphs.inverse_factor_tile(a, pivot, b, a)
    for before, after in zip(given, (a, b, pivot), strict=True):
        np.testing.assert_array_equal(before, after)
