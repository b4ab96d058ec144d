"""What compiled functions give is the caller's: nothing a later call does changes it."""

import copy
import gc
import inspect
import pickle
import threading
import weakref
from typing import NamedTuple

import numpy as np
import pytest

import pyflame as pf
import pyflame_rt
from pyflame.compiling.compiled import CompiledFunction
from pyflame_rt.graph.errors import InputError

SETTLED = 8


def settled(function, *arguments):
    for _ in range(SETTLED):
        function(*arguments)
    return function


def doubling():
    return pf.compile(lambda x: x * 2)


def ramp(first):
    return pf.from_numpy(np.arange(first, first + 6, dtype=np.float32).reshape(2, 3))


HOLDERS = {
    "tensor": lambda t: t,
    "detached": lambda t: t.detach(),
    "array": lambda t: t.numpy(copy=False),
    "view": lambda t: t.numpy(copy=False)[1:],
    "dlpack": np.from_dlpack,
    "buffer": lambda t: memoryview(t.numpy(copy=False)),
    "lazy": lambda t: t + 0,
    "reshaped": lambda t: t.reshape([3, 2]),
}


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("hold", HOLDERS)
def test_results_that_are_held_do_not_change(hold, size):
    rows = 2 if size == "small" else 1 << 15
    xs = [pf.from_numpy(np.full((rows, 3), i, np.float32)) for i in range(30)]
    f = settled(doubling(), xs[0])
    held = []
    for i, x in enumerate(xs):
        kept = HOLDERS[hold](f(x)) if (hold != "reshaped" or rows == 2) else f(x).reshape([3, rows])
        if i % 3:  # some are dropped at once, some later, some never
            held.append((i, kept))
        if i % 5 == 4:
            held.pop(0)
    for i, kept in held:
        seen = np.asarray(kept.numpy() if isinstance(kept, pf.Tensor) else kept)
        np.testing.assert_array_equal(seen, np.full(seen.shape, 2 * i, np.float32))


@pytest.mark.filterwarnings("ignore:Setting the shape on a NumPy array")
def test_a_result_that_was_changed_is_not_handed_out():
    f = settled(doubling(), ramp(0))
    changed = f(ramp(1))
    changed.requires_grad_()
    with pf.no_grad():
        changed += 1
    del changed
    bent = f(ramp(1)).numpy(copy=False)
    bent.shape = (3, 2)
    del bent
    frozen = f(ramp(1)).numpy(copy=False)
    frozen.flags.writeable = False
    del frozen
    for i in range(40):
        got = f(ramp(i))
        assert got.shape == (2, 3)
        assert not got.requires_grad
        np.testing.assert_array_equal(got.numpy(), ramp(i).numpy() * 2)


def test_weak_references_see_their_own_result_only():
    f = settled(doubling(), ramp(0))
    result = f(ramp(1))
    seen = weakref.ref(result)
    del result
    for i in range(5):
        assert seen() is not f(ramp(i))


@pytest.mark.parametrize("size", [6, 1 << 16])
def test_results_in_use_in_turn(size):
    f = pf.compile(lambda x: x + 1)
    x = pf.zeros(size)
    for _ in range(SETTLED):
        x = f(x)
    for _ in range(10):
        x = f(x)
    np.testing.assert_array_equal(x.numpy(), np.full(size, SETTLED + 10, np.float32))


class Pair(NamedTuple):
    one: object
    two: object
    number: int


MADE = {
    tuple: lambda a, b: (a, b, 7),
    list: lambda a, b: [a, b, 7],
    dict: lambda a, b: {"one": a, "two": b, "number": 7},
    Pair: lambda a, b: Pair(a, b, 7),
}


@pytest.mark.parametrize("kind", MADE)
def test_several_results(kind):
    f = settled(pf.compile(lambda x: MADE[kind](x * 2, x + 1)), ramp(0))
    kept = [f(ramp(i)) for i in range(40)]
    if kind is list:
        f(ramp(0)).append(1)
        f(ramp(0))[0] = None
        assert all(len(f(ramp(0))) == 3 and f(ramp(0))[0] is not None for _ in range(20))
    for i, result in enumerate(kept):
        assert type(result) is kind
        one, two, number = result.values() if kind is dict else result
        assert number == 7
        np.testing.assert_array_equal(one.numpy(), ramp(i).numpy() * 2)
        np.testing.assert_array_equal(two.numpy(), ramp(i).numpy() + 1)


CHANGES = {
    "set": lambda d: d.update(one=None),
    "number set": lambda d: d.update(number=8),
    "added": lambda d: d.update(more=1),
    "dropped": lambda d: d.pop("one"),
    "moved": lambda d: d.update(one=d.pop("one")),
    "emptied": lambda d: d.clear(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_dictionary_that_was_changed_is_not_handed_out(change):
    f = settled(pf.compile(lambda x: MADE[dict](x * 2, x + 1)), ramp(0))
    for i in range(40):
        result = f(ramp(i))
        assert list(result) == ["one", "two", "number"]
        assert result["number"] == 7
        np.testing.assert_array_equal(result["one"].numpy(), ramp(i).numpy() * 2)
        if i % 3:
            CHANGES[change](result)


PARTS = {"values": dict.values, "items": lambda d: iter(d.items()), "one": lambda d: d["one"], "copy": dict.copy}


@pytest.mark.parametrize("hold", PARTS)
def test_parts_of_a_dictionary_that_are_held_do_not_change(hold):
    f = settled(pf.compile(lambda x: {"one": x * 2}), ramp(0))
    held = [PARTS[hold](f(ramp(i))) for i in range(40)]
    for i, part in enumerate(held):
        found = part if isinstance(part, pf.Tensor) else next(iter(part.values() if type(part) is dict else part))
        found = found[1] if isinstance(found, tuple) else found
        np.testing.assert_array_equal(found.numpy(), ramp(i).numpy() * 2)


def test_wrappers_that_hand_on_no_names():
    f = settled(doubling(), ramp(0))

    def wrapper(*args, **kwargs):
        return f(*args, **kwargs)

    np.testing.assert_array_equal(wrapper(ramp(3)).numpy(), ramp(3).numpy() * 2)


def test_parts_of_a_tuple_that_are_held_do_not_change():
    f = settled(pf.compile(lambda x: (x * 2, x + 1)), ramp(0))
    held = [f(ramp(i))[i % 2] for i in range(30)]
    for i, part in enumerate(held):
        np.testing.assert_array_equal(part.numpy(), ramp(i).numpy() + 1 if i % 2 else ramp(i).numpy() * 2)


def test_no_results():
    state = pf.zeros(3)

    def add(x):
        state.add_(x)

    one = pf.from_numpy(np.ones(3, np.float32))
    f = settled(pf.compile(add), one)
    for _ in range(5):
        f(one)
    np.testing.assert_array_equal(state.numpy(), np.full(3, SETTLED + 5, np.float32))


def test_gradient_modes_count():
    weight = pf.ones(3).requires_grad_()
    f = pf.compile(lambda x: x * weight)
    x = pf.ones(3)
    with pf.no_grad():
        settled(f, x)
        assert not f(x).requires_grad
    assert f(x).requires_grad
    with pf.no_grad():
        assert not f(x).requires_grad
        with pf.enable_grad():
            assert f(x).requires_grad


def test_another_thread_has_modes_of_its_own():
    weight = pf.ones(3).requires_grad_()
    f = pf.compile(lambda x: x * weight)
    x, seen = pf.ones(3), []
    with pf.no_grad():
        settled(f, x)
        thread = threading.Thread(target=lambda: seen.append(f(x).requires_grad))
        thread.start()
        thread.join()
        f(x)
    assert seen == [True]


def test_switches_within_themselves():
    switch = pf.no_grad()
    with switch, pf.enable_grad(), switch:
        assert not pf.is_grad_enabled()
    assert pf.is_grad_enabled()
    with pytest.raises(ZeroDivisionError), switch:
        1 / 0  # noqa: B018
    assert pf.is_grad_enabled()


def test_calls_within_an_export_are_traced(tmp_path):
    inner = settled(doubling(), ramp(0))
    pf.export(pf.compile(lambda x: inner(x) + inner(x)), (ramp(0),), tmp_path / "model.onnx")
    session = pyflame_rt.InferenceSession(tmp_path / "model.onnx")
    feed = {session.get_inputs()[0].name: ramp(1).numpy()}
    np.testing.assert_array_equal(session.run(None, feed)[0], ramp(1).numpy() * 4)


def test_calls_within_a_trace_are_traced():
    inner = settled(doubling(), ramp(0))
    outer = pf.compile(lambda x: inner(x) + 1)
    for i in range(12):
        np.testing.assert_array_equal(outer(ramp(i)).numpy(), ramp(i).numpy() * 2 + 1)


def test_names_other_types_and_errors():
    f = settled(pf.compile(lambda x, scale=2: x * scale), ramp(0))
    np.testing.assert_array_equal(f(x=ramp(1)).numpy(), ramp(1).numpy() * 2)
    np.testing.assert_array_equal(f(ramp(1), scale=3).numpy(), ramp(1).numpy() * 3)
    np.testing.assert_array_equal(f(pf.ones(4)).numpy(), np.full(4, 2, np.float32))
    with pytest.raises(TypeError, match="argument"):
        f()
    with pytest.raises(TypeError, match="argument"):
        f(ramp(0), 1, 2)


def test_it_is_still_the_compiled_function():
    def scaled(x, by=2):
        """Scale."""
        return x * by

    f = settled(pf.compile(scaled), ramp(0))
    assert isinstance(f, CompiledFunction)
    assert type(f).__name__ == "CompiledFunction"
    assert f.__doc__ == "Scale."
    assert str(inspect.signature(f)) == "(x, by=2)"
    np.testing.assert_array_equal(f.__call__(ramp(1)).numpy(), ramp(1).numpy() * 2)
    assert settled(f, ramp(0)).trace_count == 1


@pytest.mark.parametrize("kind", [copy.copy, copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))])  # noqa: S301
def test_copies_start_afresh(kind):
    f = settled(pf.compile(pf.relu), ramp(-3))
    other = kind(f)
    assert other.trace_count == 0
    for _ in range(SETTLED):
        np.testing.assert_array_equal(other(ramp(-2)).numpy(), np.maximum(ramp(-2).numpy(), 0))


def test_a_dropped_function_is_freed_with_its_results():
    f = settled(doubling(), ramp(0))
    result = f(ramp(1))
    seen = weakref.ref(f)
    del f
    gc.collect()
    assert seen() is None
    np.testing.assert_array_equal(result.numpy(), ramp(1).numpy() * 2)


def test_many_threads_call_one_function():
    """Each gets its own result, whoever finds the tables taken goes another way."""
    f = settled(doubling(), ramp(0))
    wrong, start = [], threading.Barrier(4)

    def many(number):
        start.wait()
        held = []
        for i in range(200):
            held.append((i, f(ramp(number * 1000 + i))))
            held = held[-3:]
            for k, result in held:
                if not np.array_equal(result.numpy(), ramp(number * 1000 + k).numpy() * 2):
                    wrong.append((number, k))

    threads = [threading.Thread(target=many, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_keys_of_a_failed_run_are_given_back():
    table = pf.randn(4, 3)
    own = pf.Generator(1)
    f = pf.compile(lambda i: table[i] + pf.rand(3, generator=own))
    settled(f, pf.from_numpy(np.array([1])))
    before = own.get_state()
    with pytest.raises(InputError):
        f(pf.from_numpy(np.array([9]))).numpy()
    assert own.get_state() == (before[0], before[1] + 1)
    f(pf.from_numpy(np.array([2])))
    assert own.get_state() == (before[0], before[1] + 2)
