"""Evaluations on a cluster: the same numbers, files and errors as on one machine."""

import contextlib
import functools
import itertools
import os
import signal
import threading
import time
from pathlib import Path

import distributed
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner

import pilescore as ps
from pilescore import problems
from pilescore.cli import commands, main
from pilescore.parallel import cluster as clusters
from pilescore.parallel import evaluation_pool as pools
from pilescore.parallel.evaluation_pool import EvaluationPool, WorkersLostError, batched, connect, evaluations_per_task
from pilescore.problems import kernel_search
from pilescore.problems.description import describe_problem
from pilescore.search import choice as choosing
from pilescore.search import objective, sweep_plan, sweeps
from pilescore.search.minimum import minimize
from pilescore.search.sweeps import sweep
from pilescore.solvers.distributed import Distributed
from pilescore.solvers.low_rank import LowRank
from pilescore.storage.directories import Folder
from pilescore.studies import runner

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

LINE = ps.Box(x=(0, 1))
(DX,) = ps.partials(LINE)
X = np.linspace(0.05, 0.95, 9)
Y = np.sin(4 * X) + 0.1 * np.random.default_rng(0).standard_normal(9)
OVER = {"kernel.bandwidth": (0.05, 2.0), "gamma": (1e-3, 1.0)}


@contextlib.contextmanager
def local_client(n_workers):
    options = {"n_workers": n_workers, "threads_per_worker": 1, "dashboard_address": ":0"}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.fixture(scope="module")
def client():
    with local_client(2) as client:
        yield client


@pytest.fixture
def unforgiving():
    """A cluster of its own, so that no other test meets its dead worker; one death fails the task."""
    with local_client(1) as client:
        client.run_on_scheduler(lambda dask_scheduler: setattr(dask_scheduler, "allowed_failures", 0))
        yield client


def closure(frequency=4.0):
    """Return a model with functions that can only be pickled by value."""
    physics = ps.impose(
        ps.parameter("beta", 1.0) * DX,
        lambda p: frequency * jnp.cos(frequency * p[0]),
        on=LINE.interior(ps.GaussLegendre(5)),
    )
    return ps.Model(ps.RBF(0.3), ps.observe(ps.identity, Y, X), physics, gamma=0.02, rho=0.03)


def nonlinear():
    cubic = ps.Nonlinear(lambda p, u, u_x: u_x + u**3, (ps.identity, DX))
    physics = ps.impose(cubic, 0.5, on=LINE.interior(ps.GaussLegendre(5)))
    return ps.Model(ps.RBF(0.5), ps.observe(ps.identity, Y, X), physics, gamma=0.02, rho=0.03)


def same(found, expected):
    xr.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)
    assert found.attrs == expected.attrs


GRIDS = {
    "a kernel and temperatures": {"kernel.bandwidth": [0.2, 0.4, 1], "gamma": [0.01, 0.1], "eta": [1, 2]},
    "many temperatures": {"gamma": np.geomspace(1e-3, 1, 13), "rho": [0.1, 0.2, 0.3]},
    "an operator": {"beta": [0.5, 2.0], "rho": [0.1, 0.2]},
}


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_a_sweep_matches_one_process(client, grid):
    same(sweep(closure(), grid, run=ps.RunOptions(client=client)), sweep(closure(), grid))


def test_a_sweep_with_seeds_errors_and_losses_matches_one_process(client):
    options = {"seeds": range(3), "known": ps.KnownSolution(lambda p: jnp.sin(4 * p[0])), "losses": True}
    grid = {"kernel.bandwidth": [0.1, 0.3, 1.0], "gamma": [0.01, 0.1]}
    same(sweep(closure(), grid, run=ps.RunOptions(client=client), **options), sweep(closure(), grid, **options))


def test_a_sweep_of_a_nonlinear_model_matches_one_process(client):
    grid = {"kernel.bandwidth": [0.3, 0.6], "gamma": [0.02, 0.1]}
    same(sweep(nonlinear(), grid, run=ps.RunOptions(client=client)), sweep(nonlinear(), grid))


def test_a_sweep_resumes_with_a_client(client, tmp_path, monkeypatch):
    grid = {"kernel.bandwidth": [0.2, 0.4, 1.0], "gamma": [0.01, 0.1]}
    original, count, file = sweeps.systems_of, itertools.count(), tmp_path / "half.nc"

    def stopped(*arguments):
        if next(count) == 3:
            raise KeyboardInterrupt
        return original(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(sweeps, "systems_of", stopped)
        with pytest.warns(UserWarning, match="interrupted: 3 of 6"):
            sweep(closure(), grid, run=ps.RunOptions(save=file))
    whole = sweep(closure(), grid)
    for _ in range(2):  # then nothing is left
        same(sweep(closure(), grid, run=ps.RunOptions(save=file, client=client)), whole)
    with pytest.raises(ps.errors.InputError, match="another model"):
        sweep(closure(5.0), grid, run=ps.RunOptions(save=file, client=client))


def test_ctrl_c_cancels_what_is_pending(client, monkeypatch, tmp_path):
    """The outcomes before Ctrl-C are returned and saved, and the same call resumes."""
    monkeypatch.setattr(pools, "MOST_PER_TASK", 1)
    original, count = EvaluationPool.result, []

    def interrupted(self, future):
        count.append(0)
        if len(count) > 2:
            raise KeyboardInterrupt
        return original(self, future)

    grid = {"kernel.bandwidth": np.geomspace(0.1, 1, 12)}
    with monkeypatch.context() as patched:
        patched.setattr(EvaluationPool, "result", interrupted)
        with pytest.warns(UserWarning, match="interrupted: 10 of 12"):
            found = sweep(closure(), grid, run=ps.RunOptions(client=client, save=tmp_path / "run.nc"))
    assert (found.status == "ok").sum() == 2
    same(
        sweep(closure(), grid, run=ps.RunOptions(save=tmp_path / "run.nc")), sweep(closure(), grid)
    )  # without a client, too


def test_a_point_that_fails_is_recorded(client):
    twice = ps.Model(ps.RBF(0.3), ps.observe(ps.identity, np.r_[Y, Y], np.r_[X, X]), gamma=1.0)
    grid = {"kernel.bandwidth": [0.3, 0.5], "gamma": [1e-30, 0.1]}
    found, expected = sweep(twice, grid, run=ps.RunOptions(client=client)), sweep(twice, grid)
    assert found.status.values.tolist() == [["failed", "ok"]] * 2
    xr.testing.assert_allclose(found.drop_vars("reason"), expected.drop_vars("reason"), rtol=1e-11)
    assert "not positive definite" in str(found.reason.values[0, 0])


def test_results_before_an_error_are_saved(monkeypatch):
    outputs = sweep_plan.SweepOutputs(ps.Score())
    plan = sweep_plan.make_plan([closure()], {"beta": np.array([1.0, 2.0])}, outputs, seeded=False)
    tasks = [sweep_plan.SweepTask(0, {"beta": i}, np.array([[True]])) for i in range(2)]
    original, count = sweeps.systems_of, []

    def full(*arguments):
        count.append(0)
        if len(count) > 1:
            raise ps.errors.MemoryLimitError("full")
        return original(*arguments)

    monkeypatch.setattr(sweeps, "systems_of", full)
    found, failure = sweeps._batch_results(plan, tasks)
    assert [where for where, _ in found] == [(0,)]
    assert isinstance(failure, ps.errors.MemoryLimitError)


@pytest.mark.parametrize("score", [ps.Score(), ps.Score(profiled=True), ps.Score("physics")], ids=str)
def test_a_minimum_matches_one_process(client, score):
    found, expected = (
        minimize(closure(), OVER, starts=3, score=score, run=ps.RunOptions(client=each)) for each in (client, None)
    )
    assert found.values == pytest.approx(dict(expected.values), rel=1e-9)
    assert found.pile.value == pytest.approx(expected.pile.value, rel=1e-12)
    assert found.standard_errors == pytest.approx(dict(expected.standard_errors), rel=1e-6)
    assert [descent.evaluations for descent in found.descents] == [descent.evaluations for descent in expected.descents]
    assert (found.evaluations, found.status) == (expected.evaluations, expected.status)


def test_ties_and_nonlinear_models_are_sent(client):
    scale = 0.5
    options = {"ties": {"rho": lambda p: scale * p["gamma"]}, "starts": 2}
    found, expected = (
        minimize(nonlinear(), OVER, run=ps.RunOptions(client=each), **options) for each in (client, None)
    )
    assert found.values == pytest.approx(dict(expected.values), rel=1e-8)
    assert found.pile.value == pytest.approx(expected.pile.value, rel=1e-11)
    assert found.evaluations == expected.evaluations


def test_a_minimum_resumes_with_and_without_a_client(client, tmp_path):
    """Stopped by its budget of evaluations, and stopped in the middle of its file."""
    expected = minimize(closure(), OVER, starts=2, run=ps.RunOptions(save=tmp_path / "whole.nc"))
    with xr.open_dataset(tmp_path / "whole.nc", engine="scipy") as opened:
        rows = opened.load()
    for each in (client, None):
        file = tmp_path / f"half-{each is None}.nc"
        part = rows.isel(evaluation=slice(0, 7)).drop_encoding()  # its longest text may be shorter
        part.assign_attrs(complete="no").to_netcdf(file, engine="scipy")
        found = minimize(closure(), OVER, starts=2, run=ps.RunOptions(save=file, client=each))
        assert found.pile.value == pytest.approx(expected.pile.value, rel=1e-12)
        assert found.evaluations == expected.evaluations
        with xr.open_dataset(file, engine="scipy") as opened:
            again = opened.load()
        assert again.attrs == rows.attrs
        order = np.lexsort(again.u.values.T), np.lexsort(rows.u.values.T)
        np.testing.assert_allclose(again.u.values[order[0]], rows.u.values[order[1]], rtol=1e-8)


def test_trial_points_without_a_score_are_rejected_by_workers_too(client):
    twice = ps.Model(ps.RBF(0.3), ps.observe(ps.identity, np.r_[Y, Y], np.r_[X, X]), gamma=1e-2)
    over = {"gamma": (1e-30, 1.0)}
    with pytest.raises(ps.errors.NotPositiveDefiniteError, match="at any start"):
        minimize(twice, over, starts=[{"gamma": 1e-30}], run=ps.RunOptions(client=client))
    assert minimize(twice, over, starts=[{"gamma": 1e-30}, {}], run=ps.RunOptions(client=client)).converged


def test_ctrl_c_returns_the_best_so_far(client, tmp_path):
    """The signal reaches the waiting thread, the computation stops, and the same call resumes."""
    original, count, file = EvaluationPool.submit, itertools.count(), tmp_path / "run.nc"

    def stopping(self, function, *arguments):
        if next(count) == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, function, *arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(EvaluationPool, "submit", stopping)
        found = minimize(closure(), OVER, starts=4, run=ps.RunOptions(client=client, save=file))
    assert found.status == "interrupted"
    again, expected = (
        minimize(closure(), OVER, starts=4, run=ps.RunOptions(client=client, save=each))
        for each in (file, tmp_path / "whole.nc")
    )
    assert again.values == pytest.approx(dict(expected.values), rel=1e-9)


def test_a_search_of_kernels_takes_a_client(client):
    data = ps.Model(ps.RBF(0.3), ps.observe(ps.identity, Y, X), gamma=0.02)
    found, expected = (
        ps.choose(data, {"gamma": (1e-3, 1)}, kernels=[ps.RBF, ps.Matern(2.5)], run=ps.RunOptions(client=each))
        for each in (client, None)
    )
    np.testing.assert_allclose(found.table["pile"], expected.table["pile"], rtol=1e-11)


def test_clients_that_cannot_work_are_refused(as_a_user):
    for call in (
        lambda c: sweep(closure(), {"gamma": [0.1]}, run=ps.RunOptions(client=c)),
        lambda c: minimize(closure(), OVER, run=ps.RunOptions(client=c)),
    ):
        with pytest.raises(ps.errors.InputError, match=r"client: expected a dask\.distributed\.Client"):
            call("tcp://127.0.0.1:1")
    options = {"n_workers": 0, "processes": False, "dashboard_address": ":0"}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as empty:
        with pytest.raises(ps.errors.InputError, match=r"client: .*worker"):
            sweep(closure(), {"gamma": [0.1]}, run=ps.RunOptions(client=empty))
        with pytest.raises(ps.errors.InputError, match=r"client: .*worker"):
            minimize(closure(), OVER, run=ps.RunOptions(client=empty))


def test_workers_are_counted_by_the_scheduler(client, monkeypatch):
    """The client's own copy of the scheduler's state is refreshed without workers every two seconds."""
    monkeypatch.setattr(type(client), "scheduler_info", lambda self, **options: {"workers": {}})
    assert clusters.checked_client(client) is client


def test_the_error_names_what_cannot_be_pickled(client):
    lock = threading.Lock()

    def held(p):
        with lock:
            return jnp.sin(p[0])

    stuck = ps.Model(ps.RBF(0.3), ps.observe(ps.identity, Y, X), ps.impose(
        ps.identity + ps.parameter("b", 1.0) * (lambda p: held(p)) * DX, 0.0, on=LINE.interior(ps.GaussLegendre(3))
    ))  # fmt: skip
    with pytest.raises(ps.errors.InputError, match=r"^model: expected an object that can be sent.*lock"):
        sweep(stuck, {"gamma": [0.1]}, run=ps.RunOptions(client=client))
    with pytest.raises(ps.errors.InputError, match=r"^ties: expected an object that can be sent.*lock"):
        minimize(
            closure(), OVER, ties={"rho": lambda p: 0 * held([0.0]) + p["gamma"]}, run=ps.RunOptions(client=client)
        )


def there(content, number):
    return content[0] + number


def wrong(content):
    raise ZeroDivisionError("of the task's own")


def refused(content):
    raise ps.errors.NotSolvedError("says the function")


def test_outcomes_of_tasks(client):
    with EvaluationPool(client, 10, (1.5,), {}) as pool:
        assert pool.threads == 2
        assert sorted(pool.each(there, [(i,) for i in range(5)])) == [1.5, 2.5, 3.5, 4.5, 5.5]
        with pytest.raises(ps.errors.NotSolvedError, match="says the function"):
            pool.result(pool.submit(refused))
        with pytest.raises(ZeroDivisionError):
            pool.result(pool.submit(wrong))
        future = pool.submit(there, 1)
        client.cancel([future], force=True)
        with pytest.raises(WorkersLostError, match="cancelled"):
            pool.result(future)
    assert not pool._open


def test_a_cluster_without_workers_raises(monkeypatch):
    monkeypatch.setattr(pools, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(pools, "PATIENCE_SECONDS", 0.1)
    options = {"n_workers": 1, "processes": False, "dashboard_address": ":0"}
    with (
        distributed.LocalCluster(**options) as cluster,
        distributed.Client(cluster) as client,
        EvaluationPool(client, 10, (1.5,), {}) as pool,
    ):
        cluster.scale(0)
        while client.nthreads():
            time.sleep(0.02)
        with pytest.raises(WorkersLostError, match="no workers"):
            list(pool.each(there, [(1,)]))
        with pytest.raises(WorkersLostError, match="no workers"):
            pool.result(pool.submit(there, 1))


def test_workers_that_cannot_unpickle_raise(client, monkeypatch):
    with EvaluationPool(client, 10, (1.5,), {}) as pool:
        monkeypatch.setattr(pools.importlib.metadata, "version", lambda package: "0.0")
        with pytest.raises(WorkersLostError, match="install the same"):
            pool.result(pool.submit(there, 1))


def test_evaluations_per_task():
    assert evaluations_per_task(100, 1e6, 10) == pools.MOST_PER_TASK
    assert evaluations_per_task(20_000, 1e6, 10) == 1
    assert 1 <= evaluations_per_task(2000, 1e6, 10) < 10
    assert evaluations_per_task(100, 120, 2) == 10
    assert evaluations_per_task(100, 1e6, 10, cost=1e4) < evaluations_per_task(100, 1e6, 10)
    assert [sum(each) for each in batched([1, 2, 3, 1, 1], float, 3)] == [3, 3, 2]


@pytest.mark.parametrize("grid", [*GRIDS.values(), {"gamma": np.geomspace(1e-3, 1, 40)}], ids=str)
@pytest.mark.parametrize("most", [1.0, 5.0, 64.0])
def test_batches_contain_each_point_once(grid, most):
    axes = {name: np.asarray(column, dtype=float) for name, column in grid.items()}
    plan = sweep_plan.make_plan([closure()], axes, sweep_plan.SweepOutputs(ps.Score()), seeded=False)
    count = len(plan.points(dict.fromkeys(plan.others, 0)))
    left = np.random.default_rng(0).random((count, 1)) < 0.8
    task = sweep_plan.SweepTask(0, dict.fromkeys(plan.others, 0), left)
    masks = [part.pending for part in sweep_plan.split_task(plan, task, most)]
    np.testing.assert_array_equal(sum(mask.astype(int) for mask in masks), left.astype(int))
    assert all(mask.any() for mask in masks)


def test_addresses(monkeypatch):
    with connect(None) as client:
        assert client is None
    monkeypatch.setattr(pools, "CONNECT_SECONDS", 0.2)
    for address in ("nothing://x:1", "tcp://127.0.0.1:9"):
        with pytest.raises(ps.errors.InputError, match=r"--cluster: expected .*nothing answers"), connect(address):
            pass


PROBLEM = """
[domain]
t = [0, 3]
[[equation]]
equation = "dt(u) + 0.7*u = 0"
nodes = 8
[[data]]
file = "decay.csv"
value = "u"
noise = 0.02
[[kernel]]
type = "rbf"
bandwidth = {{ unknown = [0.2, 5] }}
[select]
starts = 2
{more}
"""


def problem(directory, more=""):
    t = np.linspace(0, 3, 12)
    table = np.column_stack([t, np.exp(-0.7 * t) + 0.02 * np.random.default_rng(0).standard_normal(12)])
    np.savetxt(directory / "decay.csv", table, delimiter=",", header="t,u", comments="")
    file = directory / "problem.toml"
    file.write_text(PROBLEM.format(more=more))
    return file


def test_a_selection_matches_one_process(client, tmp_path):
    read = ps.load_problem(problem(tmp_path))
    (name,) = read.models
    found, expected = (
        kernel_search.search_kernel(read, name, tmp_path / f"{each is None}.nc", False, each) for each in (client, None)
    )
    assert found.values == pytest.approx(expected.values, rel=1e-8)
    assert found.row.pile == pytest.approx(expected.row.pile, rel=1e-11)
    assert found.evaluations == expected.evaluations


def test_a_loss_of_workers_is_not_a_failure_of_a_kernel(client, tmp_path, monkeypatch):
    @functools.wraps(minimize)
    def lost(*arguments, **options):
        raise ps.errors.ClusterError("lost")

    read = ps.load_problem(problem(tmp_path))
    monkeypatch.setattr(kernel_search, "minimize", lost)
    with pytest.raises(ps.errors.ClusterError):
        ps.select(read, tmp_path / "found", client=client)
    monkeypatch.setattr(choosing, "minimize", lost)
    with pytest.raises(ps.errors.ClusterError):
        ps.choose({"a": closure()}, OVER, run=ps.RunOptions(client=client))


def test_commands_pass_on_the_client(client, tmp_path, monkeypatch, capsys):
    given = []

    def select(*arguments, **options):
        given.append(options["client"].scheduler.address)
        raise ps.errors.InputError("seen")

    def run_study(study, settings, run):
        given.append(run.client.scheduler.address)
        assert run.solver == "auto"
        raise ps.errors.InputError("seen")

    monkeypatch.setattr(problems, "select", select)
    monkeypatch.setattr(runner, "run_study", run_study)
    address = client.scheduler.address
    for words in (["select", str(problem(tmp_path))], ["study", "poisson", "--solver", "auto"]):
        assert main([*words, "--out", str(tmp_path / "out"), "--cluster", address]) == 2
    assert given == [address, address]
    assert capsys.readouterr().err.count("seen") == 2


def test_studies_pass_on_the_client(client, monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(ps, "sweep", lambda *arguments, **options: given.append(options["run"].client) or xr.Dataset())
    monkeypatch.setattr(
        ps, "minimize", lambda *arguments, **options: given.append(options["run"].client) or minimize(closure(), OVER)
    )
    with Folder(tmp_path / "study", {}).entered() as folder:
        run = runner.StudyRun(folder, print, client)
        run.sweep("a", None, {})
        run.minimize("b", closure(), {}, {})
    assert given == [client, client]
    assert "--cluster ADDRESS" in CliRunner().invoke(commands, ["study", "poisson", "--help"]).output
    assert "--cluster" not in CliRunner().invoke(commands, ["study", "pinn", "--help"]).output


def test_a_sweep_with_another_solver_has_bounds(client, tmp_path):
    grid = {"kernel.bandwidth": [0.3, 0.6], "gamma": np.geomspace(0.01, 0.1, 10)}
    exact, solver = sweep(closure(), grid, score=ps.Score(profiled=True)), LowRank(tolerance=1e-4, rank=14)
    found = sweep(
        closure().replace(solver=solver),
        grid,
        score=ps.Score(profiled=True),
        run=ps.RunOptions(client=client, save=tmp_path / "run.nc"),
    )
    assert (found.lower <= exact.pile + 1e-12).all()
    assert (exact.pile <= found.upper + 1e-12).all()
    assert float((found.upper - found.lower).max()) < 1e-4
    assert "lower" not in exact
    same(sweep(closure().replace(solver=solver), grid, score=ps.Score(profiled=True)), found)
    with pytest.raises(ps.errors.InputError, match="another model"):
        sweep(closure(), grid, score=ps.Score(profiled=True), run=ps.RunOptions(save=tmp_path / "run.nc"))


def test_seeds_and_errors_with_another_solver():
    options = {"seeds": range(2), "known": ps.KnownSolution(lambda p: jnp.sin(4 * p[0]))}
    grid = {"kernel.bandwidth": [0.3, 0.6]}
    exact, found = (
        sweep(closure().replace(solver=each), grid, **options) for each in ("dense", LowRank(tolerance=1e-6, rank=14))
    )
    np.testing.assert_allclose(found.pile, exact.pile, atol=1e-6)
    np.testing.assert_allclose(found.R_data, exact.R_data, rtol=1e-3)


def test_a_tolerance_that_is_not_reached_is_recorded():
    found = sweep(closure().replace(solver=LowRank(tolerance=1e-9, rank=2)), {"gamma": [0.01]})
    exact = sweep(closure(), {"gamma": [0.01]})
    assert found.status.item() == "failed"
    assert found.lower.item() <= exact.pile.item() <= found.upper.item()


def test_losses_are_computed_with_every_solver():
    exact, found = (
        sweep(closure().replace(solver=s), {"gamma": [0.01, 0.1]}, losses=True)
        for s in ("dense", LowRank(tolerance=1e-6))
    )
    for name in ("data_loss", "physics_loss", "leave_one_out"):
        np.testing.assert_allclose(found[name], exact[name], rtol=1e-5)


def test_unsuitable_solvers_are_refused(client, as_a_user):
    grid = {"gamma": [0.01]}
    with pytest.raises(ps.errors.InputError, match="solver: expected"):
        sweep(closure().replace(solver="dence"), grid)
    with pytest.raises(ps.errors.InputError, match="same solver"):
        sweep(lambda seed: closure().replace(solver=LowRank(tolerance=0.1 + seed)), grid, seeds=range(2))
    model, run = closure().replace(solver=Distributed(client=client)), ps.RunOptions(client=client)
    for call in (lambda: sweep(model, grid, run=run), lambda: minimize(model, OVER, run=run)):
        with pytest.raises(ps.errors.InputError, match="client: expected None with the solver 'distributed'"):
            call()


def test_a_minimum_with_another_solver(client, tmp_path):
    solver, exact = LowRank(tolerance=1e-7, rank=14), minimize(closure(), OVER)
    for each in (client, None):
        found = minimize(
            closure().replace(solver=solver), OVER, run=ps.RunOptions(client=each, save=tmp_path / "run.nc")
        )
        assert found.pile.value == pytest.approx(exact.pile.value, abs=1e-6)
        assert found.pile.upper - found.pile.lower < 1e-6
        assert found.model.solver is solver
    with pytest.raises(ps.errors.InputError, match="another model"):
        minimize(closure(), OVER, run=ps.RunOptions(save=tmp_path / "run.nc"))


def test_candidates_keep_the_solver():
    solver = LowRank(tolerance=1e-5, rank=14)
    found = ps.choose(closure().replace(solver=solver), {"gamma": (1e-3, 1)}, kernels=[ps.RBF, ps.Matern(2.5)])
    assert all(each.model.solver is solver for each in found.minima.values())


def test_the_solver_of_a_problem_file(tmp_path):
    read = ps.load_problem(problem(tmp_path, '[solver]\nmethod = "low_rank"\ntolerance = 1e-4\nrank = 20'))
    assert read.solver == LowRank(tolerance=1e-4, rank=20)
    assert all(model.solver is read.solver for model in read.models.values())
    text = describe_problem(read)
    assert "solver: low rank, tolerance 0.0001, rank 20" in text
    assert "of memory" not in text  # which that of the dense one would be
    assert ps.load_problem(problem(tmp_path)).solver is None
    dense = ps.load_problem(problem(tmp_path, '[solver]\nmethod = "dense"'))
    assert "solver: dense" in describe_problem(dense)
    assert "of memory" in describe_problem(dense)


@pytest.mark.parametrize(
    ("table", "line", "text"),
    [
        ('method = "lowrank"', 1, "found 'lowrank'; expected how covariances are solved"),
        (
            'method = "low_rank"\ntolerance = -1',
            2,
            "found -1; expected the largest width of the interval on PILE, a positive number",
        ),
        ('method = "low_rank"\nrank = 0', 2, "found 0; expected the largest rank"),
        ('method = "dense"\ntolerance = 0.1', 2, "but the method 'dense' has no tolerance"),
        ('method = "auto"\nrank = 3', 2, "but the method 'auto' has no rank"),
        ("steps = 3", 1, "there is no key 'steps' here"),
    ],
)
def test_mistakes_about_the_solver(tmp_path, table, line, text):
    with pytest.raises(ps.errors.FileError) as caught:
        ps.load_problem(problem(tmp_path, f"[solver]\n{table}"))
    (mistake,) = caught.value.mistakes
    assert text in str(mistake)
    assert mistake.line == PROBLEM.count("\n") + line
    assert mistake.key.startswith("[solver]")


def killed(content, file):
    """End the worker; the first one only, if a file says so."""
    if file is None or not Path(file).exists():
        Path(file or "/dev/null").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return content[0]


def test_a_task_is_repeated_if_its_worker_is_killed(client, tmp_path):
    with EvaluationPool(client, 10, (1.5,), {}) as pool:
        assert pool.result(pool.submit(killed, str(tmp_path / "once"))) == 1.5
        assert list(pool.each(there, [(1,)])) == [2.5]


def test_scores_before_the_workers_died_are_saved_and_counted(unforgiving, tmp_path, monkeypatch):
    monkeypatch.setattr(sweeps, "_batch_results", lambda plan, tasks: killed(plan, None))
    with pytest.raises(
        ps.errors.ClusterError, match=r"1 of them died .* 0 of 2 points are scored; they are saved in .*run.nc"
    ):
        sweep(closure(), {"gamma": [0.1, 0.2]}, run=ps.RunOptions(client=unforgiving, save=tmp_path / "run.nc"))


def test_a_search_whose_workers_die_says_how_far_it_was(unforgiving, monkeypatch):
    monkeypatch.setattr(objective.CoordinateScore, "from_solution", lambda *arguments: killed(*arguments[:1], None))
    with pytest.raises(ps.errors.ClusterError, match=r"1 of them died .*1 evaluations were started"):
        minimize(closure(), OVER, run=ps.RunOptions(client=unforgiving))
