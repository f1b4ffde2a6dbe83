"""Minima that are kept on disk: stopped in any way they go on to the same result, bit by bit."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pilescore as ps
from pilescore.search import descent, objective
from pilescore.search.fingerprint import fingerprint
from pilescore.search.minimum import prepare
from pilescore.storage import datasets as records

from ..models import NOISY, OVER, T, decay, opened, refused, sine

SMOOTH = ps.Model(ps.RBF(0.4), ps.observe(ps.identity, np.sin(6 * T), at=T), gamma=1e-4)
REJECTING = {
    "over": {"gamma": (1e-18, 1.0), "kernel.bandwidth": (0.1, 5.0)},
    "search": ps.SearchOptions(max_evaluations=30, curvature=False),
}


def same(found, expected):
    """Whether two minima agree in all that they say, bit by bit."""
    for part in ("values", "at_bounds", "status", "reason", "evaluations", "score", "pile"):
        assert getattr(found, part) == getattr(expected, part)
    assert list(found.pile.shares) == list(expected.pile.shares)
    np.testing.assert_array_equal(list(found.standard_errors.values()), list(expected.standard_errors.values()))
    assert fingerprint([found.model]) == fingerprint([expected.model])
    assert (found.curvature is None) == (expected.curvature is None)
    if found.curvature is not None:
        np.testing.assert_array_equal(found.curvature.hessian, expected.curvature.hessian)
    for run, other in zip(found.descents, expected.descents, strict=True):
        assert [list(run.path), run.start, run.end] == [list(other.path), other.start, other.end]
        np.testing.assert_array_equal(list(run.path.values()), list(other.path.values()))
        np.testing.assert_array_equal(run.pile, other.pile)
        for part in ("evaluations", "rejected", "status", "reason"):
            assert getattr(run, part) == getattr(other, part)


def counted(monkeypatch, stop=None, error=KeyboardInterrupt):
    """Count the scores that are computed; after `stop` of them raise an error."""
    calls, original = [], objective.systems_of

    def systems_of(*arguments, **options):
        if stop is not None and len(calls) == stop:
            raise error
        calls.append(arguments)
        return original(*arguments, **options)

    monkeypatch.setattr(objective, "systems_of", systems_of)
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run.nc", "run.zarr"])
def test_interrupted_it_goes_on_to_the_same_result(name, tmp_path, monkeypatch):
    options = {"over": OVER | {"gamma": (1e-3, 10.0)}, "starts": 3, "run": ps.RunOptions(save=tmp_path / name)}
    whole = ps.minimize(sine(), options["over"], starts=3)
    for stop in (4, 13, whole.evaluations - sum(run.evaluations for run in whole.descents) + 9):
        with monkeypatch.context() as patched:
            counted(patched, stop)
            part = ps.minimize(sine(), **options)
        assert (part.status, part.converged, part.curvature) == ("interrupted", False, None)
    on_disk = opened(tmp_path / name)
    assert (on_disk.sizes["evaluation"], on_disk.complete) == (4 + 13 + stop, "no")
    calls = counted(monkeypatch)
    same(ps.minimize(sine(), **options), whole)
    assert len(calls) == whole.evaluations - on_disk.sizes["evaluation"]
    found = opened(tmp_path / name)
    assert (found.sizes["evaluation"], found.complete) == (whole.evaluations, "yes")
    assert (found.value.min().item(), set(found.error.values.tolist())) == (whole.pile.value, {""})
    written = (tmp_path / name).stat().st_mtime_ns
    calls.clear()
    same(ps.minimize(sine(), **options), whole)
    assert (calls, (tmp_path / name).stat().st_mtime_ns) == ([], written)
    assert os.listdir(tmp_path) == [name]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"score": "profiled"},
        {"score": "given_physics", "ties": {"rho": lambda p: 3 * p["gamma"]}},
        {
            "starts": [{"rate": 1.0}, {"gamma": 0.5}],
            "search": ps.SearchOptions(tolerance=1e-3, max_evaluations=7, curvature=False),
        },
    ],
    ids=["profiled", "given physics, tied", "out of evaluations"],
)
def test_every_kind_of_search_is_replayed(options, tmp_path, monkeypatch):
    over = {"rate": (0.1, 3.0), "gamma": (1e-5, 1.0)}
    whole = ps.minimize(decay(), over, **options)
    with monkeypatch.context() as patched:
        counted(patched, 5, RuntimeError("a bug"))
        with pytest.raises(RuntimeError, match="a bug"):
            ps.minimize(decay(), over, **options, run=ps.RunOptions(save=tmp_path / "a.nc"))
    for left in (whole.evaluations - 5, 0):
        with monkeypatch.context() as patched:
            calls = counted(patched)
            same(ps.minimize(decay(), over, **options, run=ps.RunOptions(save=tmp_path / "a.nc")), whole)
            assert len(calls) == left


STOPPED = """
import os, signal, sys, threading
path, root, count, kind = sys.argv[1:]
sys.path.insert(0, root)
import pilescore as ps
from pilescore.search import objective
from pilescore.storage import datasets
from tests.models import OVER, sine
datasets.WRITE_EVERY, datasets.WRITE_SHARE = 0.0, 1e9  # after every evaluation
systems_of, begun, seen = objective.systems_of, [], threading.Event()
def handler(*_):
    seen.set()
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, handler)
def stopping(*arguments, **options):
    begun.append(0)
    if len(begun) == int(count):
        os.kill(os.getpid(), int(kind))
        seen.wait()
    return systems_of(*arguments, **options)
objective.systems_of = stopping
print(ps.minimize(sine(), OVER, starts=2, run=ps.RunOptions(save=path)).status)
"""


@pytest.mark.slow
def test_killed_and_interrupted_processes_continue(tmp_path, monkeypatch):
    path, whole = tmp_path / "run.nc", ps.minimize(sine(), OVER, starts=2)
    counts = []
    for count, kind in ((12, signal.SIGKILL), (10, signal.SIGINT)):
        arguments = [str(path), str(Path(__file__).parents[2]), str(count), str(int(kind))]
        command = [sys.executable, "-W", "ignore", "-c", STOPPED, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == (-kind if kind == signal.SIGKILL else 0), done.stderr
        counts.append(opened(path).sizes["evaluation"])
    assert counts[0] == 11
    assert counts[1] - counts[0] in (10, 11)  # the evaluation under way is kept; the next may have begun
    assert done.stdout.split()[-1] == "interrupted"
    calls = counted(monkeypatch)
    same(ps.minimize(sine(), OVER, starts=2, run=ps.RunOptions(save=path)), whole)
    assert len(calls) == whole.evaluations - counts[1]
    assert os.listdir(tmp_path) == ["run.nc"]


@pytest.mark.slow
def test_what_could_not_be_scored_is_not_tried_again(tmp_path, monkeypatch):
    with pytest.warns(ps.errors.PrecisionWarning):
        whole = ps.minimize(SMOOTH, **REJECTING)
    assert whole.descents[0].rejected > 0
    with pytest.warns(ps.errors.PrecisionWarning):
        same(ps.minimize(SMOOTH, **REJECTING, run=ps.RunOptions(save=tmp_path / "a.nc")), whole)
    failed = opened(tmp_path / "a.nc").error == "NotPositiveDefiniteError"
    assert failed.sum() == whole.descents[0].rejected
    reasons = opened(tmp_path / "a.nc").reason.values[failed]
    assert all("25 observations is not positive definite" in reason for reason in reasons)
    starts = {"over": {"gamma": (1e-18, 1e-17)}, "starts": [{"gamma": 1e-18}, {"gamma": 1e-17}]}
    texts = []
    calls = counted(monkeypatch)
    for _ in range(2):
        with pytest.raises(
            ps.errors.NotPositiveDefiniteError, match=r"any start.*gamma = 1e-18.*Its eigenvalues"
        ) as caught:
            ps.minimize(ps.Model(ps.RBF(2.0), sine().data), **starts, run=ps.RunOptions(save=tmp_path / "b.nc"))
        texts.append(str(caught.value))
    assert (len(calls), texts[0]) == (2, texts[1])
    with pytest.warns(ps.errors.PrecisionWarning):
        same(ps.minimize(SMOOTH, **REJECTING, run=ps.RunOptions(save=tmp_path / "a.nc")), whole)
    assert len(calls) == 2
    edge = ps.Model(ps.RBF(), sine().data, eta=20.0)
    options = {"over": {"eta": (1e-3, 1e3)}, "ties": {"gamma": lambda p: p["eta"] - 5}}
    options["run"] = ps.RunOptions(save=tmp_path / "c.nc")
    found = ps.minimize(edge, **options)
    assert "InputError" in opened(tmp_path / "c.nc").error
    same(ps.minimize(edge, **options), found)


def test_a_lack_of_memory_is_not_remembered(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        counted(patched, 0, ps.errors.MemoryLimitError("too large"))
        with pytest.raises(ps.errors.MemoryLimitError, match="too large"):
            ps.minimize(sine(), OVER, run=ps.RunOptions(save=tmp_path / "a.nc"))
    same(ps.minimize(sine(), OVER, run=ps.RunOptions(save=tmp_path / "a.nc")), ps.minimize(sine(), OVER))


@pytest.mark.slow
def test_side_by_side_is_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(descent, "PARALLEL_SIZES", range(1000))
    monkeypatch.setattr(descent, "cores", lambda: 4)
    monkeypatch.setattr(records, "WRITE_EVERY", 0.0)
    monkeypatch.setattr(records, "WRITE_SHARE", 1e9)
    options = {"over": OVER, "starts": 6, "search": ps.SearchOptions(max_evaluations=12, curvature=False)}
    whole = ps.minimize(sine(), **options)
    for stop in (9, 25):
        with monkeypatch.context() as patched:
            counted(patched, stop)
            assert ps.minimize(sine(), **options, run=ps.RunOptions(save=tmp_path / "a.nc")).status == "interrupted"
    there = opened(tmp_path / "a.nc").sizes["evaluation"]
    calls = counted(monkeypatch)
    same(ps.minimize(sine(), **options, run=ps.RunOptions(save=tmp_path / "a.nc")), whole)
    assert len(calls) == whole.evaluations - there
    twins = options | {"starts": [{"gamma": 0.1}] * 4}
    same(ps.minimize(sine(), **twins, run=ps.RunOptions(save=tmp_path / "b.nc")), ps.minimize(sine(), **twins))
    assert opened(tmp_path / "b.nc").sizes["evaluation"] == 12


BETA, (DX,) = ps.parameter("beta", 1.0), ps.partials(ps.Box(x=(0, 1)))


def line(operator):
    physics = ps.impose(operator, 0.0, on=ps.Box(x=(0, 1)).interior(ps.GaussLegendre(4)))
    return ps.Model(ps.RBF(0.5), ps.observe(ps.identity, NOISY, at=T), physics, gamma=0.1, rho=1.0)


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_user")
def test_a_file_of_another_search_is_refused_and_left_alone(tmp_path, monkeypatch):
    def search(
        model=None, over=None, save=tmp_path / "a.nc", progress=None, score="joint", starts=1, ties=None, **given
    ):
        over = over or {"beta": (0.1, 10.0), "gamma": (1e-3, 1.0)}
        how = ps.SearchOptions(**{"max_evaluations": 3, "curvature": False} | given)
        run = ps.RunOptions(save=save, progress=progress)
        return ps.minimize(model or line(BETA * DX), over, score=score, starts=starts, ties=ties, search=how, run=run)

    search()
    content = (tmp_path / "a.nc").read_bytes()
    calls = counted(monkeypatch)
    for change in (
        {"model": line(BETA * DX).replace({"eta": 1 + 1e-15})},
        {"model": line(BETA * BETA * DX)},  # the same where β = 1
        {"model": line(ps.coefficient(lambda p: 1 + 1e-6 * p[0]) * BETA * DX)},
        {"over": {"beta": (0.1, 10.0), "gamma": (1e-3, 1 + 1e-15)}},
        {"over": {"gamma": (1e-3, 1.0), "beta": (0.1, 10.0)}},
        {"over": {"beta": (0.1, 10.0), "rho": (1e-3, 1.0)}},
        {"starts": 2},
        {"starts": [{"gamma": 0.2}]},
        {"score": "profiled"},
        {"score": "given_physics"},
        {"score": "given_homogeneous"},
        {"score": "given_constant"},
        {"score": "auto"},
        {"tolerance": 1e-9},
        {"max_evaluations": 4},
        {"curvature": True},
        {"ties": {"rho": lambda p: 0.01 * p["gamma"] / 0.1}},  # the same at the start
    ):
        with refused("a.nc holds a minimisation for another model, bounds", "Nothing was changed"):
            search(**change)
    with refused("a.nc holds a sweep for another"):
        ps.sweep(line(BETA * DX), {"gamma": [0.1]}, run=ps.RunOptions(save=tmp_path / "a.nc"))
    search(progress=False, seed=3)  # of no consequence
    assert (calls, (tmp_path / "a.nc").read_bytes()) == ([], content)
    options = {"starts": 3, "save": tmp_path / "b.nc"}
    search(**options)
    with refused("b.nc holds a minimisation for another"):
        search(**options, seed=1)
    for save, text in ((3, ".nc (a file) or .zarr"), (tmp_path / "no" / "a.nc", "a directory that exists")):
        with refused("save: ", text):
            search(save=save)
    with refused("progress"):
        search(save=tmp_path / "c.nc", progress="yes")
    assert sorted(os.listdir(tmp_path)) == ["a.nc", "b.nc"]


def test_sweeps_of_operators_that_agree_at_one_value_are_told_apart(tmp_path):
    ps.sweep(line(BETA * DX), {"beta": [1.0, 2.0]}, run=ps.RunOptions(save=tmp_path / "a.nc"))
    with refused("holds a sweep for another model"):
        ps.sweep(line(BETA * BETA * DX), {"beta": [1.0, 2.0]}, run=ps.RunOptions(save=tmp_path / "a.nc"))


@pytest.mark.usefixtures("as_a_user")
def test_searches_of_several_candidates_have_no_file(tmp_path):
    for search in (
        lambda run: ps.choose({"a": sine()}, OVER, run=run),
        lambda run: ps.choose(sine(), OVER, kernels=[ps.RBF], run=run),
    ):
        with refused("save: expected nothing: a file belongs to one minimum", "one by one"):
            search(ps.RunOptions(save=tmp_path / "a.nc"))


def failing(monkeypatch, fails):
    """Let those writings fail whose numbers are given."""
    calls, original = [], records.DatasetFile.write

    def write(self, dataset):
        calls.append(0)
        if fails(len(calls)):
            raise ps.errors.SaveError("could not write: no space", dataset)
        original(self, dataset)

    monkeypatch.setattr(records.DatasetFile, "write", write)
    monkeypatch.setattr(records, "WRITE_EVERY", 0.0)
    monkeypatch.setattr(records, "WRITE_SHARE", 1e9)


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    whole = ps.minimize(sine(), OVER)
    with monkeypatch.context() as patched:
        failing(patched, lambda count: count in (3, 4))
        with pytest.warns(UserWarning, match="no space; the minimisation continues and will try again") as caught:
            same(ps.minimize(sine(), OVER, run=ps.RunOptions(save=tmp_path / "a.nc")), whole)
        assert len(caught) == 1
        calls = counted(patched, 0)
        same(ps.minimize(sine(), OVER, run=ps.RunOptions(save=tmp_path / "a.nc")), whole)
    with monkeypatch.context() as patched:
        failing(patched, lambda count: count > 5)
        with (
            pytest.warns(UserWarning, match="no space"),
            pytest.raises(ps.errors.SaveError, match="no space") as caught,
        ):
            ps.minimize(sine(), OVER, run=ps.RunOptions(save=tmp_path / "b.nc"))
    assert opened(tmp_path / "b.nc").sizes["evaluation"] == 4
    caught.value.dataset.to_netcdf(tmp_path / "c.nc", engine="scipy")  # what was computed is not lost
    calls = counted(monkeypatch)
    same(ps.minimize(sine(), OVER, run=ps.RunOptions(save=tmp_path / "c.nc")), whole)
    assert calls == []
    same(ps.minimize(sine(), OVER, run=ps.RunOptions(save=tmp_path / "b.nc")), whole)
    assert len(calls) == whole.evaluations - 4
    calls.clear()
    failing(monkeypatch, lambda count: True)
    with pytest.raises(ps.errors.SaveError, match="no space"):  # before any work
        ps.minimize(sine(), OVER, run=ps.RunOptions(save=tmp_path / "d.nc"))
    same(ps.minimize(sine(), OVER, run=ps.RunOptions(save=tmp_path / "b.nc")), whole)  # nothing is left to write
    assert calls == []


def test_without_a_file_nothing_is_remembered(monkeypatch):
    search, (start,) = prepare(sine(), OVER, "joint", 1, None, ps.SearchOptions())
    calls = counted(monkeypatch)
    assert search.evaluate(start)[0] == search.evaluate(start)[0]
    assert (len(calls), search.evaluations, search.log) == (2, 2, None)
