"""All operations with edge values answer alike on NumPy, torch and MLX, errors included."""

import itertools

import pytest

from emberharmony import ops
from tests.unit.emberharmony.calls import FAMILIES
from tests.unit.emberharmony.differential import answer, difference, listed

pytest.importorskip("torch")
pytest.importorskip("mlx.core")

# One call of so many is made in the normal run.
SAMPLE = 11
# What has no values to compare: state, names, memory, and gradients, which have a test of their own.
# fmt: off
EXEMPT = {
    "dtype", "from_numpy_dtype", "get_activation", "get_available_devices", "get_backend", "gradients", "memory_usage",
    "set_backend", "set_random_seed", "use_backend",
}
# fmt: on


def differences(calls):
    """Every difference from NumPy's answers that is not listed, and the lines of the list that were needed."""
    known, found, used = listed(), [], set()
    for call in calls:
        want = answer(call, "numpy")
        for name in ("torch", "mlx"):
            differs = difference(answer(call, name), want)
            if differs is None:
                continue
            lines = [line for line in known if line.covers(name, call.op, differs)]
            used.update(lines)
            if not lines:
                found.append(f"{name}: {repr(call)[:300]}\n    {differs}")
    return found, used


@pytest.mark.parametrize("family", FAMILIES)
def test_sample(family):
    found, _ = differences(itertools.islice(FAMILIES[family](), 0, None, SAMPLE))
    assert not found, "\n".join(found[:20])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_whole():
    found, used = differences(itertools.chain.from_iterable(family() for family in FAMILIES.values()))
    assert not found, "\n".join([f"{len(found)} differences", *found[:60]])
    assert used == set(listed()), "lines that nothing matches any more"


def test_every_function_is_called():
    called = {call.op for family in FAMILIES.values() for call in family()}
    functions = {name for name in ops.__all__ if callable(getattr(ops, name))}
    assert functions - called == EXEMPT
    assert called <= functions


def test_a_difference_is_seen():
    """The comparison itself: values, shapes, dtypes, errors, and errors of a library's own."""
    import numpy as np

    from tests.unit.emberharmony.differential import Answer

    one = Answer(np.array([1.0, np.nan]))
    assert difference(one, Answer(np.array([1.0, np.nan]))) is None
    for other in (
        Answer(np.array([1.0, 2.0])),
        Answer(np.array([[1.0, np.nan]])),
        Answer(np.array([1.0, np.nan], np.float32)),
        Answer(error=ValueError("no")),
    ):
        assert difference(other, one) is not None
        assert difference(one, other) is not None
    assert difference(Answer(error=ValueError("a")), Answer(error=ValueError("b"))) is None
    assert difference(Answer(error=RuntimeError("a")), Answer(error=RuntimeError("a"))) is not None
    assert difference(Answer(error=TypeError("a")), Answer(error=ValueError("a"))) is not None
