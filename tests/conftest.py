"""Shared settings: hypothesis runs the same examples every time and is not timed; workers do not fight for cores."""

import os

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


@pytest.fixture
def as_a_user(monkeypatch):
    """Switch the tests' type checks off, so that bad input meets the library's own checks as a user's does."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="module")
def browser():
    """A browser for one file of tests: its event loop must not outlive it."""
    with running_browser() as browser:
        yield browser
