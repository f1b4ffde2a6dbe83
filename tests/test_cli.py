"""The command line: output, exit codes, and resumed work."""

import contextlib
import gc
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import xarray as xr

from pilescore import cli
from pilescore.errors import InputError, SaveError
from pilescore.storage import directories as folders

TINY = "cls(seeds=seeds, side=7, values=7, picture=9)"
DRIVER = f"""
import sys
from pilescore.studies import poisson, runner
runner.write_report = lambda report, directory: (directory / "report.html").write_text(report.title)
poisson.PoissonSettings.quick = classmethod(lambda cls, seeds=2: {TINY})
from pilescore.cli import main
sys.exit(main())
"""


def started(directory, *options):
    """The command in a process of its own, on small sizes and without its figures."""
    command = [sys.executable, "-c", DRIVER, "study", "poisson", "--quick", "--out", str(directory), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def stopped(directory, number):
    """A study that was stopped by a signal when its first sweep was on disk."""
    process = started(directory)
    deadline = time.monotonic() + 600
    while not (directory / "pilescore-parts" / "bandwidth.nc").exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


def loaded(directory):
    with xr.open_dataset(directory / "results.nc", engine="scipy") as opened:
        return opened.load()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study that ran through, and what it printed."""
    directory = tmp_path_factory.mktemp("whole") / "out"
    process = started(directory, "--json")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return directory, out, err


@pytest.mark.study
@pytest.mark.slow
def test_json_output_is_the_summary_only(whole):
    directory, out, err = whole
    assert json.loads(out) == json.loads((directory / "summary.json").read_text())
    assert "[1/5] sweep over bandwidth: 7 values, 2 seeds" in err
    assert "Warning" not in err


@pytest.mark.study
@pytest.mark.slow
def test_a_stopped_study_resumes_to_the_same_results(whole, tmp_path):
    directory = tmp_path / "out"
    code, out, err = stopped(directory, signal.SIGINT)
    assert out == ""
    assert (directory / "pilescore-parts" / "settings.json").is_file()
    assert code == 130
    again = f"pilescore study poisson --quick --out {directory} --resume"
    assert err.splitlines()[-1] == f"pilescore: interrupted: Finished work is kept. Resume with: {again}"
    assert "Traceback" not in err
    process = started(directory, "--resume")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert "Are the results as expected?" in out
    assert f"Open {directory}/report.html." in out
    xr.testing.assert_identical(loaded(directory), loaded(whole[0]))
    assert not (directory / "pilescore-parts").exists()


BAD = {
    "No such command 'posson'": ["study", "posson"],
    "--seeds: expected a whole number from 1 to 1000; got 0": ["study", "poisson", "--seeds", "0"],
    "got -3": ["study", "convection", "--seeds", "-3"],
    "'1.5' is not a valid integer": ["study", "poisson", "--seeds", "1.5"],
    "--beta: expected a number from 0.1 to 1000, or its negative; got nan": ["study", "convection", "--beta", "nan"],
    "got inf": ["study", "convection", "--beta", "inf"],
    "got 0.0": ["study", "convection", "--beta", "0"],
    "'fast' is not a valid float": ["study", "convection", "--beta", "fast"],
    "No such option '--beta'": ["study", "poisson", "--beta", "3"],
    "give one of them": ["study", "poisson", "--resume", "--overwrite"],
    "a directory, not a file": ["study", "poisson", "--out", "file"],
    "is a file": ["study", "poisson", "--out", "file/deeper"],
    "/proc cannot be written to": ["study", "poisson", "--out", "/proc/out"],
    "full is not empty": ["study", "poisson", "--out", "full"],
    "holds no work that can be resumed": ["study", "poisson", "--out", "full", "--resume"],
    "Option '--out' requires an argument": ["study", "poisson", "--out"],
}


@pytest.mark.parametrize("said", BAD)
def test_bad_input_is_one_line_and_writes_nothing(said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("precious")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("precious")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert cli.main(BAD[said]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("pilescore: error: ")
    assert said in err
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.slow
def test_a_directory_of_other_work_is_not_resumed(whole, capsys):
    directory = whole[0]
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    for options, said in ((["--seeds", "3"], "seeds was 2, now 3"), ([], "side was 7, now 13")):
        assert cli.main(["study", "poisson", "--out", str(directory), "--resume", *options]) == 2
        assert said in capsys.readouterr().err
    assert cli.main(["study", "convection", "--out", str(directory), "--resume"]) == 2
    assert "study was 'poisson', now 'convection'" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def test_help(capsys):
    assert cli.main(["--help"]) == 0
    assert "pilescore study poisson --quick" in capsys.readouterr().out
    assert cli.main(["study", "convection", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(
        option in shown for option in ("--out", "--seeds", "--quick", "--json", "--resume", "--overwrite", "--beta")
    )
    assert cli.main(["study"]) == 2
    shown = capsys.readouterr().out
    assert "results.nc      every score" in shown
    assert "130 interrupted" in shown
    assert cli.main(["--version"]) == 0
    assert "0.1.0" in capsys.readouterr().out


def test_failures_have_their_own_exit_code(monkeypatch, tmp_path, capsys):
    def fail(*_):
        raise SaveError("could not write results.nc: No space left on device")

    monkeypatch.setattr("pilescore.studies.runner.run_study", fail)
    assert cli.main(["study", "poisson", "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert said.startswith(
        "pilescore: error: could not write results.nc: No space left on device. Finished work is kept."
    )
    assert said.endswith(f"{tmp_path}/out --resume\n")


@pytest.mark.parametrize(
    "summary", ['{"settings": {}, "figures": ["fits"]}', "a poem", '{"figures": 3}', '{"settings": 1}']
)
def test_overwriting_keeps_other_files(tmp_path, summary):
    known = summary.endswith('["fits"]}')
    for name in ("figures", "parts"):
        (tmp_path / name).mkdir()
    theirs = [tmp_path / "thesis.tex", tmp_path / "figures" / "photo.png", tmp_path / "parts" / "engine.nc"]
    ours = [tmp_path / "report.html", tmp_path / "results.nc", tmp_path / "figures" / "fits.png"]
    for path in theirs + ours:
        path.write_text("old")
    (tmp_path / "summary.json").write_text(summary)
    with folders.Folder(tmp_path, {"a": 1}, overwrite=True).entered() as folder:
        assert not folder.finished
        assert [path for path in ours if path.exists()] == ([] if known else ours)
    assert [path.read_text() for path in theirs] == ["old"] * 3


def test_work_killed_at_its_start_can_be_restarted(tmp_path):
    (tmp_path / ".pilescore-parts").mkdir()
    for options in ({}, {"resume": True}):
        with folders.Folder(tmp_path, {"a": 1}, **options).entered() as folder:
            assert not folder.finished
            assert not (tmp_path / ".pilescore-parts").exists()


def test_nan_and_infinity_become_null_in_json(tmp_path):
    with folders.Folder(tmp_path, {}).entered() as folder:
        folder.finish(xr.Dataset(), {"a": [float("nan"), 1.0], "b": {"c": float("inf")}})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"a": [None, 1.0], "b": {"c": None}}


def test_the_resume_hint_keeps_the_path(monkeypatch, tmp_path, capsys):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("pilescore.studies.runner.run_study", stop)
    directory = f"{tmp_path}/two  spaces ü"
    assert cli.main(["study", "poisson", "--out", directory, "--overwrite"]) == 130
    assert capsys.readouterr().err.endswith(f"pilescore study poisson --out '{directory}' --resume\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_lost_interrupt_stops_the_work_at_its_next_step(monkeypatch, tmp_path, capsys, number):
    """JAX loses a `KeyboardInterrupt` now and then, if it comes while it compiles."""

    def lose(study, settings, run):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(number)
        run.say("[2/5] the next step")
        raise AssertionError("the work went on")

    monkeypatch.setattr("pilescore.studies.runner.run_study", lose)
    assert cli.main(["study", "poisson", "--out", str(tmp_path / "out")]) == 130
    said = capsys.readouterr().err.strip()
    assert said.startswith("pilescore: interrupted: Finished work is kept.")


def test_an_interrupt_lost_during_garbage_collection_prints_no_traceback(monkeypatch, tmp_path, capsys):
    def interrupted(phase, info):
        signal.raise_signal(signal.SIGINT)

    def lose(study, settings, run):
        gc.callbacks.append(interrupted)
        try:
            gc.collect()
        finally:
            gc.callbacks.remove(interrupted)
        run.say("[2/5] the next step")
        raise AssertionError("the work went on")

    monkeypatch.setattr("pilescore.studies.runner.run_study", lose)
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    assert cli.main(["study", "poisson", "--out", str(tmp_path / "out")]) == 130
    assert sys.unraisablehook is sys.__unraisablehook__
    said = capsys.readouterr().err.strip()
    assert said.startswith("pilescore: interrupted: Finished work is kept.")


def test_a_part_is_computed_once(tmp_path):
    calls = []

    def compute():
        calls.append(1)
        return xr.Dataset({"a": ("x", [1.0, 2.0])}, {"x": [0, 1]})

    with folders.Folder(tmp_path, {"n": 1}).entered() as folder:
        first = folder.part("one", compute)
    with folders.Folder(tmp_path, {"n": 1}, resume=True).entered() as folder:
        xr.testing.assert_identical(folder.part("one", compute), first)
    assert calls == [1]
    assert first.attrs == {}


def test_only_one_process_works_in_a_directory(tmp_path):
    with folders.Folder(tmp_path, {}).entered():
        second = folders.Folder(tmp_path, {}, resume=True)
        with pytest.raises(InputError, match="another process is working"), second.entered():
            pass
    with folders.Folder(tmp_path, {}, resume=True).entered():
        pass


def test_a_damaged_summary_is_not_resumed(tmp_path):
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(InputError, match="no work that can be resumed"):
        folders.Folder(tmp_path, {}, resume=True)
    assert Path(tmp_path / "summary.json").read_text() == "{"
