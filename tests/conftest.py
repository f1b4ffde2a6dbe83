"""Settings of all tests.

Hypothesis runs the same examples every time and is not timed. Each worker of pytest-xdist uses one BLAS thread,
and keeps what JAX compiles in a directory of its own, shared with the processes that its tests start.
"""

import gc
import os
import shutil
import signal
import tempfile
import threading
import uuid
from pathlib import Path

import jax
import jaxtyping
import pytest
import scipy.linalg  # noqa: F401  (loads its BLAS before threads are limited)
import threadpoolctl
from hypothesis import HealthCheck, settings

from .browser import running_browser

settings.register_profile("pilescore", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pilescore")

SLOW_EXAMPLES = {"Distributed", "Resolution", "Selection", "choose", "load_selection", "network_pile", "select"}
"""Functions and classes whose docstrings take seconds to run."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    # Shells let jobs in the background ignore Ctrl-C, and processes that tests start and interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if os.environ.get("PYTEST_XDIST_WORKER"):
    # Threads of OpenBLAS in several workers wait for each other: a factorisation can take a hundred times as long.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # for processes that tests start
    threadpoolctl.threadpool_limits(1)
    # One cache per worker: JAX does not replace its files atomically, and another worker may read half of one.
    run, worker = (os.environ[f"PYTEST_XDIST_{name}"] for name in ("TESTRUNUID", "WORKER"))
    compiled = Path(tempfile.gettempdir()) / f"pilescore-compiled-{run}" / worker
    for name, value in (
        ("compilation_cache_dir", str(compiled)),
        ("persistent_cache_min_compile_time_secs", 0.0),
        ("persistent_cache_min_entry_size_bytes", 0),
    ):
        os.environ[f"JAX_{name.upper()}"] = str(value)
        jax.config.update(f"jax_{name}", value)


def pytest_configure(config):
    """Name this run, so that all workers know its cache and it can be removed at the end."""
    if getattr(config.option, "numprocesses", None) and not config.option.testrunuid:
        config.option.testrunuid = uuid.uuid4().hex


def pytest_unconfigure(config):
    """Remove the caches of all workers."""
    uid = getattr(config.option, "testrunuid", None)
    if uid and "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(Path(tempfile.gettempdir()) / f"pilescore-compiled-{uid}", ignore_errors=True)


def pytest_collection_finish(session):
    """Collect garbage rarely: what JAX has compiled makes millions of objects, and each collection looks at them."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items):
    """Mark what no decorator can: tests that use the fixture `browser`, and long examples in docstrings."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.slow)
        if isinstance(item, pytest.DoctestItem) and item.name.rpartition(".")[2] in SLOW_EXAMPLES:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Run slow tests, and the fixtures that they set up, without type checks.

    The checks double their time. Quick tests run nearly all functions with them.
    """
    with pytest.MonkeyPatch.context() as patched:
        if item.get_closest_marker("slow"):
            patched.setattr(jaxtyping.config, "jaxtyping_disable", True)
        return (yield)


@pytest.fixture
def as_a_user(monkeypatch):
    """Switch the type checks of the tests off: bad input meets the library's own checks, as a user's does."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="module")
def browser():
    """Run a browser for one file of tests; its event loop must not outlive the file."""
    with running_browser() as browser:
        yield browser
