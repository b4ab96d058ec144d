"""Every operator of the table equals the reference: a sample of grids, types and machines here, all under ``slow``."""

import itertools
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyflame_rt.backends.wse.plan.op_support import KNOWN
from tests.unit.backends.wse.running import LOOSE, check
from tests.unit.backends.wse.table import CASES

GRIDS = [(1, 1), (1, 3), (3, 1), (2, 2), (2, 3), (4, 5)]
ARCHS = ["wse2", "wse3"]
TYPED = [(i, case, dtype) for i, case in enumerate(CASES) for dtype in case.types]
EVERY = list(itertools.product(TYPED, GRIDS, ARCHS))


def identify(value):
    """A test's name."""
    if isinstance(value, tuple) and len(value) == 3:
        return f"{value[1].name}-{value[0]}-{value[2]}"
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def run(typed, grid, arch, seed=3, **options):
    """The generated program gives what the reference gives."""
    _, case, dtype = typed
    graph = case.graph(dtype)
    bound = LOOSE.get(np.dtype(case.result or dtype), 0.0) * case.scale
    check(graph, grid, case.feeds(graph, seed), arch=arch, loose=bound, **options)


def test_every_rule_is_in_the_table():
    assert {case.name for case in CASES} >= KNOWN


def test_the_documentation_lists_the_table():
    text = (Path(__file__).parents[4] / "docs" / "wse.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z ]+) \| (`.*`) \|$", text.split("## Operators")[1].split("## ")[0], re.MULTILINE)
    listed = {(group, name) for group, names in rows for name in re.findall(r"`([^`]+)`", names)}
    assert listed == {(case.group, case.name) for case in CASES}


def _sampled(case):
    """The cases in turn: type, grid and machine by the operator's name and the case's number."""
    i, one, dtype = case
    if one.types[zlib.crc32(one.name.encode()) % len(one.types)] != dtype:
        return None
    number = zlib.crc32(f"{one.name}{i}".encode())
    return case, GRIDS[number % len(GRIDS)], ARCHS[number // 8 % 2]


@pytest.mark.parametrize(("typed", "grid", "arch"), [s for c in TYPED if (s := _sampled(c))], ids=identify)
def test_each_operator_somewhere(typed, grid, arch):
    run(typed, grid, arch)


@pytest.mark.parametrize("typed", [t for t in TYPED if t[1].name in ("Abs", "Neg", "Sign")], ids=identify)
def test_signs_one_element_at_a_time(typed):
    run(typed, (1, 1), "wse2", optimize=False)


@settings(max_examples=40, deadline=None)
@given(
    typed=st.sampled_from(TYPED),
    grid=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    arch=st.sampled_from(ARCHS),
    optimize=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_operator_anywhere(typed, grid, arch, optimize, seed):
    run(typed, grid, arch, seed, optimize=optimize)


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "grid", "arch"), EVERY, ids=identify)
def test_every_operator_everywhere(typed, grid, arch):
    run(typed, grid, arch)
