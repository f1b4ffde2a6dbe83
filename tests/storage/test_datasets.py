"""Datasets on disk: sweeps resume after an interrupt, a kill or a full disk, and do not touch files of other sweeps."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import pilescore as ps
from pilescore.search import sweeps
from pilescore.search.sweeps import sweep
from pilescore.storage import datasets as records

from ..models import DX, FINE, LONG_GRID, NODES, opened
from ..models import LINE_Y as Y
from ..models import count_sweep_solves as counted
from ..models import line_model as model
from ..models import line_truth as truth
from ..models import seeded_line_model as seeded


@pytest.mark.parametrize("name", ["run.nc", "run.zarr"])
def test_an_interrupted_sweep_returns_its_results_and_resumes(name, tmp_path, monkeypatch):
    grid = {"kernel.bandwidth[0]": np.linspace(0.1, 0.5, 6), "gamma": [0.1, 0.2]}
    whole = sweep(seeded, grid, seeds=range(2))
    with monkeypatch.context() as patched:
        counted(patched, stop=7)
        with pytest.warns(UserWarning, match="interrupted: 10 of 24 points are pending"):
            part = sweep(seeded, grid, seeds=range(2), run=ps.RunOptions(save=tmp_path / name))
    assert (part.status == "pending").sum() == 10
    assert part.pile.isnull().sum() == 10
    xr.testing.assert_identical(opened(tmp_path / name), part)
    calls = counted(monkeypatch)
    resumed = sweep(seeded, grid, seeds=range(2), run=ps.RunOptions(save=tmp_path / name))
    assert len(calls) == 5
    xr.testing.assert_identical(resumed, whole)
    xr.testing.assert_identical(opened(tmp_path / name), whole)
    written = (tmp_path / name).stat().st_mtime_ns
    xr.testing.assert_identical(sweep(seeded, grid, seeds=range(2), run=ps.RunOptions(save=tmp_path / name)), whole)
    assert (len(calls), (tmp_path / name).stat().st_mtime_ns) == (5, written)
    assert os.listdir(tmp_path) == [name]


STOPPED = """
import os, sys
path, root, count, kind = sys.argv[1:]
sys.path.insert(0, root)
import pilescore as ps
from pilescore.search import sweeps
from pilescore.storage import datasets
from tests.models import LONG_GRID, line_model
datasets.WRITE_EVERY, datasets.WRITE_SHARE = 0.0, 1e9  # after every point
systems_of, begun = sweeps.systems_of, []
def stopping(*arguments):
    begun.append(0)
    if len(begun) == int(count):
        os.kill(os.getpid(), int(kind))
    return systems_of(*arguments)
sweeps.systems_of = stopping
found = ps.sweep(line_model(), LONG_GRID, run=ps.RunOptions(save=path))
print("pending", int((found.status == "pending").sum()))
"""


def stopped(path, count, kind):
    """Run a process that gets a signal at its `count`-th point; return what it prints and how many points are done."""
    arguments = [str(path), str(Path(__file__).parents[2]), str(count), str(int(kind))]
    command = [sys.executable, "-W", "ignore", "-c", STOPPED, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == (-kind if kind == signal.SIGKILL else 0), done.stderr
    return done.stdout, int((opened(path).status != "pending").sum())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run.nc", "run.zarr"])
def test_killed_and_interrupted_processes_continue(name, tmp_path, monkeypatch):
    path = tmp_path / name
    _, killed = stopped(path, 6, signal.SIGKILL)
    assert killed == 5
    printed, interrupted = stopped(path, 4, signal.SIGINT)
    assert interrupted == killed + 3
    assert f"pending {24 - interrupted}" in printed
    calls = counted(monkeypatch)
    resumed = sweep(model(), LONG_GRID, run=ps.RunOptions(save=path))
    assert len(calls) == 24 - interrupted
    whole = sweep(model(), LONG_GRID)
    xr.testing.assert_identical(resumed, whole)  # with the fingerprint, in three processes
    xr.testing.assert_identical(opened(path), whole)
    assert os.listdir(tmp_path) == [name]


def test_a_directory_is_restored_after_a_stop_between_its_renames(tmp_path):
    found = sweep(model(), {"gamma": [0.1]}, run=ps.RunOptions(save=tmp_path / "a.zarr"))
    shutil.copytree(tmp_path / "a.zarr", tmp_path / ".a.zarr.old")
    xr.testing.assert_identical(sweep(model(), {"gamma": [0.1]}, run=ps.RunOptions(save=tmp_path / "a.zarr")), found)
    assert os.listdir(tmp_path) == ["a.zarr"]
    os.replace(tmp_path / "a.zarr", tmp_path / ".a.zarr.old")
    xr.testing.assert_identical(sweep(model(), {"gamma": [0.1]}, run=ps.RunOptions(save=tmp_path / "a.zarr")), found)
    assert os.listdir(tmp_path) == ["a.zarr"]


FULL = """
import resource, sys
sys.path.insert(0, sys.argv[2])
import numpy as np, pilescore as ps
import xarray as xr
from pilescore.search import sweeps
from tests.models import line_model as model, opened
def limit(size): resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
grid, run = {"kernel.bandwidth[0]": np.linspace(0.1, 1, 400)}, ps.RunOptions(save=sys.argv[1])
def sweep(): return ps.sweep(model(), grid, run=run)
limit(100)
try: sweep()
except ps.errors.SaveError as error: print(error, (error.dataset.status == "pending").all().item())
limit(-1)
systems_of, calls = sweeps.systems_of, []
def full(*arguments):
    calls.append(0)
    if len(calls) == 100: raise KeyboardInterrupt
    if len(calls) == 150: limit(100)
    return systems_of(*arguments)
sweeps.systems_of = full
old = sweep()
try: sweep()
except ps.errors.SaveError as error: print(error, (error.dataset.status == "ok").all().item())
limit(-1)
xr.testing.assert_identical(opened(sys.argv[1]), old)
print((old.status == "pending").sum().item(), "intact")
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run.nc", "run.zarr"])
def test_a_full_disk_loses_nothing(name, tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", FULL, str(tmp_path / name), str(Path(__file__).parents[2])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    assert all("could not write" in line and "File too large" in line and "True" in line for line in lines[:2])
    assert lines[2] == "301 intact"
    assert done.stderr == ""
    assert os.listdir(tmp_path) == [name]


def test_a_failed_write_during_the_work_is_a_warning(tmp_path, monkeypatch):
    calls = []

    def write(self, dataset):
        calls.append(0)
        if len(calls) in (2, 3):
            raise ps.errors.SaveError("could not write: no space", dataset)
        original(self, dataset)

    original = records.DatasetFile.write
    monkeypatch.setattr(records.DatasetFile, "write", write)
    monkeypatch.setattr(records, "WRITE_EVERY", 0.0)
    monkeypatch.setattr(records, "WRITE_SHARE", 1e9)
    with pytest.warns(UserWarning, match="no space; the sweep continues") as caught:
        found = sweep(model(), {"gamma": [0.1, 0.2, 0.3, 0.4]}, run=ps.RunOptions(save=tmp_path / "a.nc"))
    assert len(caught) == 1
    xr.testing.assert_identical(opened(tmp_path / "a.nc"), found)


def test_other_errors_keep_the_results_so_far(tmp_path, monkeypatch):
    def broken(at, *arguments):
        if float(at.gamma) == 0.3:
            raise RuntimeError("a bug")
        return original(at, *arguments)

    original = sweeps.systems_of
    monkeypatch.setattr(sweeps, "systems_of", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        sweep(model(), {"gamma": [0.1, 0.2, 0.3]}, run=ps.RunOptions(save=tmp_path / "a.nc"))
    assert opened(tmp_path / "a.nc").status.values.tolist() == ["ok", "ok", "pending"]


class Steep(ps.RBF):
    pass


VARIANTS = {
    "a kernel value": ({}, {"kernel": ps.RBF([0.3 * (1 + 1e-15)])}),
    "a kernel class": ({}, {"kernel": Steep([0.3])}),
    "nu": ({"kernel": ps.Matern(1.5)}, {"kernel": ps.Matern(2.5)}),
    "a sum": ({"kernel": ps.RBF(0.3) + ps.RBF(0.5)}, {"kernel": ps.RBF(0.3) * ps.RBF(0.5)}),
    "functions": tuple(
        {"kernel": ps.kernels.FunctionKernel(lambda x, y, c=c: 1 + c * x[0] * y[0])} for c in (1.0, 2.0)
    ),
    "a warp": tuple({"kernel": ps.kernels.Warped(ps.RBF(1.0), lambda x, c=c: x**c)} for c in (1.0, 2.0)),
    "a warp at the last node": tuple(
        {"kernel": ps.kernels.Warped(ps.RBF(1.0), lambda x, c=c: jnp.where(x > 0.951, c, 1.0) * x)} for c in (1.0, 2.0)
    ),
    "a number in an operator": ({"operator": DX}, {"operator": (1 + 1e-15) * DX}),
    "a parameter": tuple({"operator": ps.parameter("beta", b) * DX} for b in (1.0, 2.0)),
    "a coefficient": tuple({"operator": ps.coefficient(lambda p, c=c: p[0] ** c) * DX} for c in (1.0, 2.0)),
    "a datum": ({}, {"values": Y + np.eye(9)[4] * 1e-15}),
    "nodes": ({}, {"nodes": ps.domains.nodes_at(NODES.points + 1e-15, NODES.weights)}),
    "weights": ({}, {"nodes": ps.domains.nodes_at(NODES.points, NODES.weights * (1 + 1e-15))}),
    "a temperature": ({}, {"gamma": 0.02 * (1 + 1e-15)}),
}


@pytest.mark.parametrize(("first", "second"), VARIANTS.values(), ids=VARIANTS)
def test_results_of_another_model_are_refused(first, second, tmp_path, as_a_user):
    sweep(model(**first), {"gamma": [0.1]}, run=ps.RunOptions(save=tmp_path / "a.nc"))
    content = (tmp_path / "a.nc").read_bytes()
    sweep(model(**first), {"gamma": [0.1]}, run=ps.RunOptions(save=tmp_path / "a.nc"))  # equal models are equal
    with pytest.raises(ps.errors.InputError, match=r"a\.nc holds a sweep for another model.*Nothing was changed"):
        sweep(model(**second), {"gamma": [0.1]}, run=ps.RunOptions(save=tmp_path / "a.nc"))
    assert (tmp_path / "a.nc").read_bytes() == content


@pytest.mark.slow
def test_other_options_have_other_fingerprints():
    def mark(base=seeded, grid=(0.1, 0.2), name="gamma", seeds=(1, 2), truth=truth, on=FINE, score="joint", **known):
        known = ps.KnownSolution(truth, on=on, **known)
        return sweep(base, {name: grid}, seeds=seeds, known=known, score=score).fingerprint

    vanishing = {"operator_truth": 0.0, "scale": 1.0}
    long = np.linspace(0.1, 1, 1001)
    marks = [
        mark(),
        mark(grid=(0.1, 0.2 * (1 + 1e-15))),
        mark(grid=(0.2, 0.1)),
        mark(name="rho"),
        mark(seeds=(1, 3)),
        mark(seeds=(2, 1)),
        mark(lambda seed: seeded(min(seed, 1))),
        mark(truth=lambda p: truth(p) + 1e-15),
        mark(on=NODES),
        mark(operator=2 * DX),
        mark(operator=DX, **vanishing),
        mark(operator=2 * DX, **vanishing),
        mark(operator=DX, operator_truth=0.0, scale=2.0),
        mark(score="profiled"),
        mark(score=ps.Score("physics")),
        *(sweep(model(), {"gamma": long + step * (np.arange(1001) == 500)}).fingerprint for step in (0.0, 1e-6)),
    ]
    assert mark() == marks[0]
    assert len(set(marks)) == len(marks)


def test_files_that_cannot_be_used_are_refused_and_left_alone(tmp_path, as_a_user, monkeypatch):
    calls = counted(monkeypatch)
    whole = sweep(model(), {"gamma": [0.1]}, run=ps.RunOptions(save=tmp_path / "cut.nc"))
    (tmp_path / "cut.nc").write_bytes((tmp_path / "cut.nc").read_bytes()[:-200])
    (tmp_path / "text.nc").write_text("not a dataset")
    xr.Dataset({"a": 1.0}).to_netcdf(tmp_path / "foreign.nc", engine="scipy")
    (tmp_path / "empty.zarr").mkdir()
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.nc")}
    calls.clear()
    for save, text in (
        (3, ".nc (a file) or .zarr"),
        (tmp_path / "a.csv", ".nc (a file) or .zarr"),
        (tmp_path / "no" / "a.nc", "a directory that exists"),
        (tmp_path / "text.nc", "not a dataset written by pilescore"),
        (tmp_path / "foreign.nc", "no fingerprint"),
        (tmp_path / "cut.nc", "not a dataset"),
        (tmp_path / "empty.zarr", "not a dataset"),
    ):
        with pytest.raises(ps.errors.InputError) as caught:
            sweep(model(), {"gamma": [0.1]}, run=ps.RunOptions(save=save))
        assert text in str(caught.value)
    greek = model(operator=ps.parameter("β", 1.0) * DX)
    with pytest.raises(ps.errors.InputError, match=r"names of ASCII letters.*'β'"):
        sweep(greek, {"β": [1.0]}, run=ps.RunOptions(save=tmp_path / "a.nc"))
    found = sweep(greek, {"β": [1.0]}, run=ps.RunOptions(save=tmp_path / "a.zarr"))
    xr.testing.assert_identical(opened(tmp_path / "a.zarr"), found)
    calls.clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ps.errors.InputError, match=r"needs the package zarr: pip install 'pilescore\[zarr\]'"):
        sweep(model(), {"gamma": [0.1]}, run=ps.RunOptions(save=tmp_path / "b.zarr"))
    assert calls == []
    assert before == {path.name: path.read_bytes() for path in tmp_path.glob("*.nc")}
    os.unlink(tmp_path / "cut.nc")
    (tmp_path / "there.nc").symlink_to(tmp_path / "cut.nc")
    xr.testing.assert_identical(sweep(model(), {"gamma": [0.1]}, run=ps.RunOptions(save=tmp_path / "there.nc")), whole)
    xr.testing.assert_identical(opened(tmp_path / "cut.nc"), whole)  # what a link points to is written
