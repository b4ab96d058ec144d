"""Fixtures of the engine's tests."""

import gc

import pytest

from pyflame_rt.backends.cpu.onednn import live_handles
from tests.unit.resting import at_rest


@pytest.fixture(scope="module")
def collected():
    at_rest()  # what other tests left behind
    gc.freeze()  # and need not be looked through after each test
    yield
    gc.unfreeze()


@pytest.fixture
def no_leaks(collected):
    """A test after which as many native objects live as before it."""
    before = live_handles()
    yield
    gc.collect()
    assert live_handles() == before


@pytest.fixture
def unchecked(monkeypatch):
    """For what checked mode does not have by design: stored plans, the fast path, branches, quick code."""
    monkeypatch.delenv("PYFLAME_CHECKED", raising=False)
