"""Minima that are kept on disk: stopped in any way they go on to the same result, bit by bit."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pilescore as ps
from pilescore import descent, records
from pilescore.minimum import prepared

from .test_errors import refused
from .test_minimum import NOISY, OVER, T, decay, sine
from .test_sweeps import opened

SMOOTH = ps.Model(ps.RBF(0.4), ps.observe(ps.identity, np.sin(6 * T), at=T), gamma=1e-4)
REJECTING = {"over": {"gamma": (1e-18, 1.0), "kernel.bandwidth": (0.1, 5.0)}, "max_evaluations": 30, "hessian": False}


def same(found, expected):
    """Whether two minima agree in all that they say, bit by bit."""
    for part in ("values", "at_bounds", "ending", "reason", "evaluations", "profiled", "pile"):
        assert getattr(found, part) == getattr(expected, part)
    assert list(found.pile.shares) == list(expected.pile.shares)
    np.testing.assert_array_equal(list(found.standard_errors.values()), list(expected.standard_errors.values()))
    assert records.fingerprint([found.model]) == records.fingerprint([expected.model])
    assert (found.curvature is None) == (expected.curvature is None)
    if found.curvature is not None:
        np.testing.assert_array_equal(found.curvature.hessian, expected.curvature.hessian)
    for run, other in zip(found.runs, expected.runs, strict=True):
        assert [list(run.path), run.start, run.end] == [list(other.path), other.start, other.end]
        np.testing.assert_array_equal(list(run.path.values()), list(other.path.values()))
        np.testing.assert_array_equal(run.pile, other.pile)
        for part in ("evaluations", "rejected", "ending", "reason"):
            assert getattr(run, part) == getattr(other, part)


def counted(monkeypatch, stop=None, error=KeyboardInterrupt):
    """Count the scores that are computed; after `stop` of them raise an error."""
    calls, original = [], descent.score_and_gradient

    def score(*arguments, **options):
        if stop is not None and len(calls) == stop:
            raise error
        calls.append(arguments)
        return original(*arguments, **options)

    monkeypatch.setattr(descent, "score_and_gradient", score)
    return calls


@pytest.mark.parametrize("name", ["run.nc", "run.zarr"])
def test_interrupted_it_goes_on_to_the_same_result(name, tmp_path, monkeypatch):
    options = {"over": OVER | {"gamma": (1e-3, 10.0)}, "starts": 3, "save": tmp_path / name}
    whole = ps.minimize(sine(), options["over"], starts=3)
    for stop in (4, 13, whole.evaluations - sum(run.evaluations for run in whole.runs) + 9):
        with monkeypatch.context() as patched:
            counted(patched, stop)
            part = ps.minimize(sine(), **options)
        assert (part.ending, part.converged, part.curvature) == ("interrupted", False, None)
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


@pytest.mark.parametrize(
    "options",
    [
        {"profiled": True},
        {"given_physics": True, "ties": {"rho": lambda p: 3 * p["gamma"]}},
        {"starts": [{"rate": 1.0}, {"gamma": 0.5}], "tolerance": 1e-3, "max_evaluations": 7, "hessian": False},
    ],
    ids=["profiled", "given physics, tied", "out of evaluations"],
)
def test_every_kind_of_search_is_replayed(options, tmp_path, monkeypatch):
    over = {"rate": (0.1, 3.0), "gamma": (1e-5, 1.0)}
    whole = ps.minimize(decay(), over, **options)
    with monkeypatch.context() as patched:
        counted(patched, 5, RuntimeError("a bug"))
        with pytest.raises(RuntimeError, match="a bug"):
            ps.minimize(decay(), over, **options, save=tmp_path / "a.nc")
    for left in (whole.evaluations - 5, 0):
        with monkeypatch.context() as patched:
            calls = counted(patched)
            same(ps.minimize(decay(), over, **options, save=tmp_path / "a.nc"), whole)
            assert len(calls) == left


SLOW = """
import sys, time
sys.path.insert(0, sys.argv[2])
import pilescore as ps
from pilescore import descent, records
from tests.test_minimum import OVER, sine
records.WRITE_EVERY, records.WRITE_SHARE = 0.0, 1.0
score = descent.score_and_gradient
def slow(*arguments, **options):
    print("evaluation", flush=True)
    time.sleep(0.1)
    return score(*arguments, **options)
descent.score_and_gradient = slow
print(ps.minimize(sine(), OVER, starts=2, save=sys.argv[1]).ending)
"""


def test_killed_and_interrupted_processes_continue(tmp_path, monkeypatch):
    path, whole = tmp_path / "run.nc", ps.minimize(sine(), OVER, starts=2)
    command = [sys.executable, "-W", "ignore", "-c", SLOW, str(path), str(Path(__file__).parents[1])]
    counts = []
    for count, kind in ((12, signal.SIGKILL), (10, signal.SIGINT)):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            for _ in range(count):
                assert process.stdout.readline() == "evaluation\n", process.stderr.read()
            process.send_signal(kind)
            printed = process.communicate(timeout=60)[0]
        finally:
            process.kill()
        counts.append(opened(path).sizes["evaluation"])
    assert counts[0] in (10, 11)  # the last may have been on its way to disk
    assert counts[1] - counts[0] in (10, 11)  # what was under way is there, too
    assert printed.split()[-1] == "interrupted"
    calls = counted(monkeypatch)
    same(ps.minimize(sine(), OVER, starts=2, save=path), whole)
    assert len(calls) == whole.evaluations - counts[1]
    assert os.listdir(tmp_path) == ["run.nc"]


def test_what_could_not_be_scored_is_not_tried_again(tmp_path, monkeypatch):
    with pytest.warns(ps.PrecisionWarning):
        whole = ps.minimize(SMOOTH, **REJECTING)
    assert whole.runs[0].rejected > 0
    with pytest.warns(ps.PrecisionWarning):
        same(ps.minimize(SMOOTH, **REJECTING, save=tmp_path / "a.nc"), whole)
    failed = opened(tmp_path / "a.nc").error == "NotPositiveDefiniteError"
    assert failed.sum() == whole.runs[0].rejected
    reasons = opened(tmp_path / "a.nc").reason.values[failed]
    assert all("25 observations is not positive definite" in reason for reason in reasons)
    starts = {"over": {"gamma": (1e-18, 1e-17)}, "starts": [{"gamma": 1e-18}, {"gamma": 1e-17}]}
    texts = []
    calls = counted(monkeypatch)
    for _ in range(2):
        with pytest.raises(ps.NotPositiveDefiniteError, match=r"any start.*gamma = 1e-18.*Its eigenvalues") as caught:
            ps.minimize(ps.Model(ps.RBF(2.0), sine().data), **starts, save=tmp_path / "b.nc")
        texts.append(str(caught.value))
    assert (len(calls), texts[0]) == (2, texts[1])
    with pytest.warns(ps.PrecisionWarning):
        same(ps.minimize(SMOOTH, **REJECTING, save=tmp_path / "a.nc"), whole)
    assert len(calls) == 2
    edge = ps.Model(ps.RBF(), sine().data, eta=20.0)
    options = {"over": {"eta": (1e-3, 1e3)}, "ties": {"gamma": lambda p: p["eta"] - 5}, "save": tmp_path / "c.nc"}
    found = ps.minimize(edge, **options)
    assert "InputError" in opened(tmp_path / "c.nc").error
    same(ps.minimize(edge, **options), found)


def test_a_lack_of_memory_is_not_remembered(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        counted(patched, 0, ps.MemoryLimitError("too large"))
        with pytest.raises(ps.MemoryLimitError, match="too large"):
            ps.minimize(sine(), OVER, save=tmp_path / "a.nc")
    same(ps.minimize(sine(), OVER, save=tmp_path / "a.nc"), ps.minimize(sine(), OVER))


def test_side_by_side_is_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(descent, "SIDE_BY_SIDE", range(1000))
    monkeypatch.setattr(descent, "cores", lambda: 4)
    monkeypatch.setattr(records, "WRITE_EVERY", 0.0)
    monkeypatch.setattr(records, "WRITE_SHARE", 1e9)
    options = {"over": OVER, "starts": 6, "max_evaluations": 12, "hessian": False}
    whole = ps.minimize(sine(), **options)
    for stop in (9, 25):
        with monkeypatch.context() as patched:
            counted(patched, stop)
            assert ps.minimize(sine(), **options, save=tmp_path / "a.nc").ending == "interrupted"
    there = opened(tmp_path / "a.nc").sizes["evaluation"]
    calls = counted(monkeypatch)
    same(ps.minimize(sine(), **options, save=tmp_path / "a.nc"), whole)
    assert len(calls) == whole.evaluations - there
    twins = options | {"starts": [{"gamma": 0.1}] * 4}
    same(ps.minimize(sine(), **twins, save=tmp_path / "b.nc"), ps.minimize(sine(), **twins))
    assert opened(tmp_path / "b.nc").sizes["evaluation"] == 12


BETA, (DX,) = ps.parameter("beta", 1.0), ps.partials(ps.Box(x=(0, 1)))


def line(operator):
    physics = ps.impose(operator, 0.0, on=ps.Box(x=(0, 1)).interior(ps.GaussLegendre(4)))
    return ps.Model(ps.RBF(0.5), ps.observe(ps.identity, NOISY, at=T), physics, gamma=0.1)


@pytest.mark.usefixtures("as_a_user")
def test_a_file_of_another_search_is_refused_and_left_alone(tmp_path, monkeypatch):
    def search(model=None, over=None, **options):
        over = over or {"beta": (0.1, 10.0), "gamma": (1e-3, 1.0)}
        options = {"max_evaluations": 3, "hessian": False, "save": tmp_path / "a.nc"} | options
        return ps.minimize(model or line(BETA * DX), over, **options)

    search()
    content = (tmp_path / "a.nc").read_bytes()
    calls = counted(monkeypatch)
    for change in (
        {"model": line(BETA * DX).replace({"eta": 1 + 1e-15})},
        {"model": line(BETA * BETA * DX)},  # the same where β = 1
        {"model": line(ps.field(lambda p: 1 + 1e-6 * p[0]) * BETA * DX)},
        {"over": {"beta": (0.1, 10.0), "gamma": (1e-3, 1 + 1e-15)}},
        {"over": {"gamma": (1e-3, 1.0), "beta": (0.1, 10.0)}},
        {"over": {"beta": (0.1, 10.0), "rho": (1e-3, 1.0)}},
        {"starts": 2},
        {"starts": [{"gamma": 0.2}]},
        {"profiled": True},
        {"given_physics": True},
        {"tolerance": 1e-9},
        {"max_evaluations": 4},
        {"hessian": True},
        {"ties": {"rho": lambda p: 0.01 * p["gamma"] / 0.1}},  # the same at the start
    ):
        with refused("a.nc holds a minimisation of another model, bounds", "Nothing was changed"):
            search(**change)
    with refused("a.nc holds a sweep of another"):
        ps.sweep(line(BETA * DX), {"gamma": [0.1]}, save=tmp_path / "a.nc")
    search(progress=False, seed=3)  # of no consequence
    assert (calls, (tmp_path / "a.nc").read_bytes()) == ([], content)
    options = {"starts": 3, "save": tmp_path / "b.nc"}
    search(**options)
    with refused("b.nc holds a minimisation of another"):
        search(**options, seed=1)
    for save, text in ((3, ".nc (a file) or .zarr"), (tmp_path / "no" / "a.nc", "a directory that is there")):
        with refused("save: ", text):
            search(save=save)
    with refused("progress"):
        search(save=tmp_path / "c.nc", progress="yes")
    assert sorted(os.listdir(tmp_path)) == ["a.nc", "b.nc"]


def test_sweeps_of_operators_that_agree_at_one_value_are_told_apart(tmp_path):
    ps.sweep(line(BETA * DX), {"beta": [1.0, 2.0]}, save=tmp_path / "a.nc")
    with refused("holds a sweep of another model"):
        ps.sweep(line(BETA * BETA * DX), {"beta": [1.0, 2.0]}, save=tmp_path / "a.nc")


@pytest.mark.usefixtures("as_a_user")
def test_searches_of_several_candidates_have_no_file(tmp_path):
    for search in (
        lambda **save: ps.search({"a": sine()}, OVER, **save),
        lambda **save: ps.search_kernels(sine(), [ps.RBF], OVER, **save),
    ):
        with refused("save: expected nothing in a search", "one by one"):
            search(save=tmp_path / "a.nc")


def failing(monkeypatch, fails):
    """Let those writings fail whose numbers are given."""
    calls, original = [], records.Record.write

    def write(self, dataset):
        calls.append(0)
        if fails(len(calls)):
            raise ps.SaveError("could not write: no space", dataset)
        original(self, dataset)

    monkeypatch.setattr(records.Record, "write", write)
    monkeypatch.setattr(records, "WRITE_EVERY", 0.0)
    monkeypatch.setattr(records, "WRITE_SHARE", 1e9)


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    whole = ps.minimize(sine(), OVER)
    with monkeypatch.context() as patched:
        failing(patched, lambda count: count in (3, 4))
        with pytest.warns(UserWarning, match="no space; the minimisation goes on and will try again") as caught:
            same(ps.minimize(sine(), OVER, save=tmp_path / "a.nc"), whole)
        assert len(caught) == 1
        calls = counted(patched, 0)
        same(ps.minimize(sine(), OVER, save=tmp_path / "a.nc"), whole)
    with monkeypatch.context() as patched:
        failing(patched, lambda count: count > 5)
        with pytest.warns(UserWarning, match="no space"), pytest.raises(ps.SaveError, match="no space") as caught:
            ps.minimize(sine(), OVER, save=tmp_path / "b.nc")
    assert opened(tmp_path / "b.nc").sizes["evaluation"] == 4
    caught.value.dataset.to_netcdf(tmp_path / "c.nc", engine="scipy")  # what was computed is not lost
    calls = counted(monkeypatch)
    same(ps.minimize(sine(), OVER, save=tmp_path / "c.nc"), whole)
    assert calls == []
    same(ps.minimize(sine(), OVER, save=tmp_path / "b.nc"), whole)
    assert len(calls) == whole.evaluations - 4
    calls.clear()
    failing(monkeypatch, lambda count: True)
    with pytest.raises(ps.SaveError, match="no space"):  # before any work
        ps.minimize(sine(), OVER, save=tmp_path / "d.nc")
    same(ps.minimize(sine(), OVER, save=tmp_path / "b.nc"), whole)  # nothing is left to write
    assert calls == []


def test_without_a_file_nothing_is_remembered(monkeypatch):
    search, (start,) = prepared(sine(), OVER)
    calls = counted(monkeypatch)
    assert search.evaluate(start)[0] == search.evaluate(start)[0]
    assert (len(calls), search.evaluations, search.journal) == (2, 2, None)
