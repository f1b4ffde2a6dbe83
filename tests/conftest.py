"""Shared settings: hypothesis runs the same examples every time and is not timed."""

import jaxtyping
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("pilescore", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pilescore")


@pytest.fixture
def as_a_user(monkeypatch):
    """Switch the tests' type checks off, so that bad input meets the library's own checks as a user's does."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
