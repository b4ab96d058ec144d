"""No result of a compiled function is stale, whatever state changes between its calls."""

import math
import os
import sys

import pytest

from tests.unit.pyflame.compiling.state_kinds import WORLD
from tests.unit.pyflame.compiling.state_programs import KINDS, run_kind, run_program

CASES = [(kind, statement) for kind in KINDS for statement in ("", *kind.writes)]


@pytest.mark.filterwarnings("ignore:Setting the shape on a NumPy array")
@pytest.mark.parametrize(("kind", "statement"), CASES, ids=[f"{kind.name}-{text}" for kind, text in CASES])
def test_every_kind_of_state(kind, statement):
    assert run_kind(kind, statement) == ""


@pytest.fixture
def world(monkeypatch, tmp_path):
    """What the process has, put back afterwards."""
    monkeypatch.setattr(math, "floor", math.floor)
    monkeypatch.setattr(math, "tau", math.tau)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setenv("PFT", "1.0")
    monkeypatch.chdir(tmp_path)
    limit = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(limit)
    os.environ.setdefault("PFT", "1.0")


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("kind", WORLD, ids=[kind.name for kind in WORLD])
def test_state_of_the_process(kind):
    assert run_kind(kind) == ""


@pytest.mark.filterwarnings("ignore:Setting the shape on a NumPy array")
@pytest.mark.parametrize("chunk", range(4))
def test_random_programs_give_what_they_give_uncompiled(chunk):
    for seed in range(chunk * 15, chunk * 15 + 15):
        assert run_program(seed) == "", f"seed {seed}"


@pytest.mark.filterwarnings("ignore:Setting the shape on a NumPy array")
@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(100))
def test_many_random_programs(chunk):
    """5,000 of them."""
    for seed in range(1000 + chunk * 50, 1000 + chunk * 50 + 50):
        assert run_program(seed) == "", f"seed {seed}"
