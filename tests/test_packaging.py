"""What is built for others to install: nothing is missing, and nothing is in it that should not be."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


def files(*folders):
    """The files of some folders of the project, without what Python compiled."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in found if path.suffix != ".pyc"}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A source archive, and a wheel that is built from it."""
    directory = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", directory, ROOT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stdout + done.stderr
    [archive], [wheel] = directory.glob("*.tar.gz"), directory.glob("*.whl")
    return archive, wheel


def test_the_wheel_is_the_package(built):
    with zipfile.ZipFile(built[1]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        [points] = [wheel.read(name) for name in wheel.namelist() if name.endswith("entry_points.txt")]
        assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())
    assert {f"src/{name}" for name in names} == files("src")
    assert "pilescore/py.typed" in names
    assert b"pilescore = pilescore.cli:main" in points


def test_the_source_archive_has_what_the_tests_read(built):
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    alone = {"LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "constraints.txt", "pyproject.toml"}
    assert files("src", "tests", "benchmarks") | alone <= names
    assert not [name for name in names if name.endswith(".pyc") or name.startswith((".ci", ".venv", "dist"))]


def test_a_registry_would_take_them(built):
    command = [sys.executable, "-m", "twine", "check", "--strict", *built]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stdout + done.stderr
