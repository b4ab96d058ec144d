"""Gradients of every operation at the values of the differential are the slopes of NumPy's answers."""

import itertools

import pytest

from tests.unit.emberharmony.calls import FAMILIES
from tests.unit.emberharmony.slopes import disagreement, places, quotient, ties

pytest.importorskip("torch")
pytest.importorskip("mlx.core")

CALLS = {**FAMILIES, "ties": ties}
# One call of so many is made in the normal run.
SAMPLE = 29
# Bits have no slope, and these give what was in memory, leave the library, or have no gradient by contract.
EXEMPT = {"bitcast", "view", "empty", "empty_like", "to_numpy", "stop_gradient"}


def wrong(calls):
    """Every gradient of a call that is neither right nor refused by name, and how many there were."""
    found, count = [], 0
    for call in calls:
        if call.op in EXEMPT:
            continue
        for slope in places(call):
            want = quotient(slope)
            if want is None:
                continue
            count += 1
            for name in ("torch", "mlx"):
                what = disagreement(slope, name, want)
                found += [f"{name}: {slope!r}\n    {what}"] if what else []
    return found, count


def test_a_sample():
    found, count = wrong(itertools.islice(itertools.chain(*(make() for make in CALLS.values())), 0, None, SAMPLE))
    assert not found, "\n".join(found[:20])
    assert count > 500


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", CALLS)
def test_whole(family):
    found, _ = wrong(CALLS[family]())
    assert not found, "\n".join([f"{len(found)} gradients", *found[:60]])
