"""Atomic files with several writers."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import xarray as xr

from pilescore.storage.datasets import DatasetFile
from pilescore.storage.files import replace, temporary_path

WRITERS, ROUNDS, SIZE = 4, 60, 20_000

PROCESS = """
import sys
from pathlib import Path
from pilescore.storage.files import replace
for _ in range(int(sys.argv[3])):
    replace(Path(sys.argv[1]), sys.argv[2].encode() * int(sys.argv[4]))
"""


def all_together(work, read):
    """Run writers in threads while another thread reads; raise what any of them raises."""
    done = threading.Event()

    def reading():
        while not done.is_set():
            read()

    with ThreadPoolExecutor(WRITERS + 1) as pool:
        reader = pool.submit(reading)
        try:
            for future in [pool.submit(work, i) for i in range(WRITERS)]:
                future.result()
        finally:
            done.set()
        reader.result()


def test_threads_that_write_one_file_leave_it_whole(tmp_path):
    path = tmp_path / "a.txt"
    replace(path, b"0" * SIZE)

    def work(i):
        for _ in range(ROUNDS):
            replace(path, str(i).encode() * SIZE)

    def read():
        content = path.read_bytes()
        assert len(content) == SIZE
        assert len(set(content)) == 1

    all_together(work, read)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_processes_that_write_one_file_leave_it_whole(tmp_path):
    path = tmp_path / "a.txt"
    command = [sys.executable, "-c", PROCESS, str(path)]
    processes = [subprocess.Popen([*command, str(i), "100", str(SIZE)], stderr=subprocess.PIPE) for i in range(2)]
    for process in processes:
        errors = process.communicate(timeout=120)[1]
        assert process.returncode == 0, errors.decode()
    content = path.read_bytes()
    assert len(content) == SIZE
    assert len(set(content)) == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["a.nc", "a.zarr"])
def test_threads_that_write_one_dataset_leave_it_whole(name, tmp_path):
    def dataset(i):
        return xr.Dataset({"a": ("x", [float(i)] * 500)}, attrs={"fingerprint": str(i)})

    DatasetFile(tmp_path / name).write(dataset(0))

    def work(i):
        for _ in range(10):
            DatasetFile(tmp_path / name).write(dataset(i))

    def read():
        found = DatasetFile(tmp_path / name).read()
        assert found is not None
        assert found["a"].values.tolist() == [float(found.attrs["fingerprint"])] * 500

    all_together(work, read)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_leftovers_of_dead_writers_are_removed_and_others_kept(tmp_path):
    path = tmp_path / "a.txt"
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    mine = temporary_path(path)
    mine.write_text("still being written")
    dead = mine.with_name(mine.name.replace(f"-{mine.name.split('-')[-2]}-", f"-{process.pid}-"))
    dead.write_text("half")
    foreign = tmp_path / ".a.txt.new"
    foreign.write_text("not ours")
    replace(path, b"content")
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([path.name, mine.name, foreign.name])
