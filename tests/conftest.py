"""Shared settings: hypothesis runs the same examples every time and is not timed; workers do not fight for cores.

What JAX compiles is shared by the workers of a run, and by the processes that tests start.
"""

import os
import shutil
import tempfile
import uuid
from pathlib import Path

import jax
import jaxtyping
import pytest
import scipy.linalg  # noqa: F401  (its BLAS is to be there when threads are limited)
import threadpoolctl
from hypothesis import HealthCheck, settings

from .browser import running_browser

settings.register_profile("pilescore", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pilescore")

if os.environ.get("PYTEST_XDIST_WORKER"):
    # Threads of OpenBLAS in several workers wait for each other: a factorisation can take a hundred times as long.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of processes that tests start
    threadpoolctl.threadpool_limits(1)
    compiled = Path(tempfile.gettempdir()) / f"pilescore-compiled-{os.environ['PYTEST_XDIST_TESTRUNUID']}"
    for name, value in (
        ("compilation_cache_dir", str(compiled)),
        ("persistent_cache_min_compile_time_secs", 0.0),
        ("persistent_cache_min_entry_size_bytes", 0),
    ):
        os.environ[f"JAX_{name.upper()}"] = str(value)
        jax.config.update(f"jax_{name}", value)


def pytest_configure(config):
    """Have the name of this run known to all, so that what was compiled can be removed at its end."""
    if getattr(config.option, "numprocesses", None) and not config.option.testrunuid:
        config.option.testrunuid = uuid.uuid4().hex


def pytest_unconfigure(config):
    uid = getattr(config.option, "testrunuid", None)
    if uid and "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(Path(tempfile.gettempdir()) / f"pilescore-compiled-{uid}", ignore_errors=True)


@pytest.fixture
def as_a_user(monkeypatch):
    """Switch the tests' type checks off, so that bad input meets the library's own checks as a user's does."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="module")
def browser():
    """A browser for one file of tests: its event loop must not outlive it."""
    with running_browser() as browser:
        yield browser
