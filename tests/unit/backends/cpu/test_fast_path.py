"""Runs on the fast path: the same answers and errors as on the long one, and results that nobody shares."""

import gc
import multiprocessing
import threading

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import pyflame_rt
from pyflame_rt.backends.cpu.memory import output_pool as outputs
from pyflame_rt.graph.errors import DTypeMismatchError, InputError, SessionClosedError, ShapeMismatchError
from pyflame_rt.memory import global_pool

pytestmark = [
    pytest.mark.usefixtures("unchecked"),
]


def session(nodes, inputs, weights=(), outs=("y",), **options):
    infos = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outs]
    graph = helper.make_graph(nodes, "g", infos, results, list(weights))
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()
    return pyflame_rt.InferenceSession(data, **options)


def neg(shape=("N", 4)):
    return session([helper.make_node("Neg", ["x"], ["y"])], [("x", TensorProto.FLOAT, list(shape))])


def taken(s):
    """Whether the fast path is open."""
    return s._plain is not None and s._plain.fast_path is not None


def test_it_is_taken_and_right():
    s, x = neg(), np.arange(8, dtype=np.float32).reshape(2, 4)
    s.run(None, {"x": x})
    assert taken(s)
    assert np.array_equal(s._plain.fast_path({"x": x})[0], -x)
    first, second = s.run(None, {"x": x})[0], s.run(None, {"x": x + 1})[0]
    assert np.array_equal(first, -x)
    assert np.array_equal(second, -x - 1)
    assert first.flags.writeable


def test_what_differs_takes_the_long_way():
    s, x = neg(), np.arange(8, dtype=np.float32).reshape(2, 4)
    s.run(None, {"x": x})
    short = s._plain.fast_path
    wide = np.zeros((2, 8), np.float32)
    swapped = x.astype(x.dtype.newbyteorder())
    odd = [x.tolist(), x[:, ::-1], x.T.copy().T, wide[:, ::2], x[:1], x.astype(np.float64), swapped, None, "x"]
    assert all(short({"x": value}) is None for value in odd)
    assert short({}) is None
    assert short({"x": x, "z": x}) is None
    assert short([x]) is None
    assert short(None) is None
    for value in (x.tolist(), x[:, ::-1], x.T.copy().T, wide[:, ::2], x[:1], swapped):
        assert np.array_equal(s.run(None, {"x": value})[0], -np.asarray(value, np.float32))
    with pytest.raises(DTypeMismatchError):
        s.run(None, {"x": x.astype(np.float64)})
    with pytest.raises(ShapeMismatchError):
        s.run(None, {"x": np.zeros((2, 5), np.float32)})
    with pytest.raises(InputError):
        s.run(None, {"x": x, "z": x})
    with pytest.raises(InputError):
        s.run(None, [x])


def test_several_inputs_in_any_order():
    nodes = [helper.make_node("Sub", ["a", "b"], ["y"]), helper.make_node("Mul", ["a", "b"], ["z"])]
    s = session(nodes, [("a", TensorProto.FLOAT, [3]), ("b", TensorProto.FLOAT, [3])], outs=("y", "z"))
    a, b = np.float32([1, 2, 3]), np.float32([5, 5, 5])
    for feed in ({"a": a, "b": b}, {"b": b, "a": a}, {"a": a, "b": b}):
        y, z = s.run(None, feed)
        assert np.array_equal(y, a - b)
        assert np.array_equal(z, a * b)
    assert taken(s)


def test_a_bad_index_is_reported():
    table = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2), "t")
    s = session([helper.make_node("Gather", ["t", "i"], ["y"])], [("i", TensorProto.INT64, [2])], [table])
    good, bad = np.array([0, 2]), np.array([1, 3])
    s.run(None, {"i": good})
    assert taken(s)
    for _ in range(2):
        with pytest.raises(InputError, match="out of range"):
            s.run(None, {"i": bad})
        assert np.array_equal(s.run(None, {"i": good})[0], [[0, 1], [4, 5]])


def test_a_timeout_does_not_stop_later_runs():
    s, x = neg(), np.ones((2, 4), np.float32)
    options = pyflame_rt.RunOptions()
    options.terminate = True
    s.run(None, {"x": x})
    with pytest.raises(pyflame_rt.RunCancelledError):
        s.run(None, {"x": x}, options)
    assert np.array_equal(s.run(None, {"x": x})[0], -x)
    assert np.array_equal(s.run(["y"], {"x": x}, taps=["x"])[1], x)


def test_closing_ends_it():
    s, x = neg(), np.ones((2, 4), np.float32)
    s.run(None, {"x": x})
    short = s._plain.fast_path
    s.close()
    assert short({"x": x}) is None
    with pytest.raises(SessionClosedError):
        s.run(None, {"x": x})


def test_closing_under_many_runs():
    weights = [numpy_helper.from_array(np.ones((64, 64), np.float32), "w")]
    s = session([helper.make_node("MatMul", ["x", "w"], ["y"])], [("x", TensorProto.FLOAT, ["N", 64])], weights)
    x, faults = np.ones((1, 64), np.float32), []

    def work():
        try:
            while True:
                assert (s.run(None, {"x": x})[0] == 64).all()
        except (SessionClosedError, pyflame_rt.RunCancelledError):
            pass
        except BaseException as error:  # noqa: BLE001 - looked at below
            faults.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    timer = threading.Timer(0.3, s.close)
    timer.start()
    for thread in (*threads, timer):
        thread.join(120)
        assert not thread.is_alive()
    assert not faults


def _child(s, x, queue):
    queue.put(s.run(None, {"x": x})[0])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_take_the_parents():
    s, x = neg(), np.ones((2, 4), np.float32)
    s.run(None, {"x": x})
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(s, x, queue))
    child.start()
    assert np.array_equal(queue.get(timeout=120), -x)
    child.join(120)
    assert child.exitcode == 0


def test_large_results_reuse_memory_only_when_nothing_holds_it():
    s, x = neg((None, 1024)), np.ones((512, 1024), np.float32)
    outputs.release_outputs()
    kept = [s.run(None, {"x": x * k})[0] for k in range(3)]
    part, shaped = kept[1][3:5], kept[2].reshape(-1)[7:]
    assert len({k.__array_interface__["data"][0] for k in kept}) == 3
    del kept
    gc.collect()
    for _ in range(4):
        s.run(None, {"x": x * 9})
    assert (part == -1).all()
    assert (shaped == -2).all()
    assert 0 < outputs.held_bytes() <= 2 * x.nbytes
    del part, shaped
    again = s.run(None, {"x": x})[0]
    assert (again == -1).all()
    outputs.release_outputs()
    assert outputs.held_bytes() == 0


def test_several_results_reuse_memory_that_one_would_leave_to_the_c_library():
    names = [f"y{k}" for k in range(4)]
    nodes = [helper.make_node("Neg", ["x"], [name]) for name in names]
    s = session(nodes, [("x", TensorProto.FLOAT, [1 << 14])], outs=names)
    x = np.arange(1 << 14, dtype=np.float32)
    outputs.release_outputs()
    for _ in range(3):
        assert all(np.array_equal(y, -x) for y in s.run(None, {"x": x}))
    assert outputs.held_bytes() == 4 << 16
    kept = s.run(None, {"x": x})
    assert outputs.held_bytes() == 0
    assert len({y.ctypes.data for y in kept + s.run(None, {"x": x})}) == 8
    one = session(nodes[:1], [("x", TensorProto.FLOAT, [1 << 14])], outs=names[:1])
    outputs.release_outputs()
    one.run(None, {"x": x})
    assert outputs.held_bytes() == 0
    outputs.release_outputs()


def test_memory_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(global_pool().config, "max_cached_bytes", 3 << 20)
    outputs.release_outputs()
    arrays = [outputs.fresh((1 << 18,), np.dtype(np.float32)) for _ in range(8)]
    del arrays
    assert outputs.held_bytes() == 3 << 20
    outputs.release_outputs()


def test_bound_outputs_are_written_directly():
    s, x = neg((None, 4)), np.arange(8, dtype=np.float32).reshape(2, 4)
    y = np.zeros_like(x)
    binding = s.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "cpu", 0, np.float32, [2, 4], y.ctypes.data)
    for k in range(3):
        x += 1
        s.run_with_iobinding(binding)
        assert np.array_equal(y, -x), k
        assert np.array_equal(binding.copy_outputs_to_cpu()[0], -x)
    assert s._run_into(["y"], {"x": x}, [y])


def test_outputs_that_do_not_fit_take_the_long_way():
    s, x = neg((None, 4)), np.arange(8, dtype=np.float32).reshape(2, 4)
    s.run(None, {"x": x})
    fixed = np.zeros_like(x)
    fixed.flags.writeable = False
    odd = [x, x[:1], np.zeros((3, 4), np.float32), np.zeros((2, 4)), np.zeros((4, 2), np.float32).T, fixed]
    assert not any(s._run_into(["y"], {"x": x}, [out]) for out in odd)
    assert not s._run_into([], {"x": x}, [])
    binding = s.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "cpu", 0, np.float32, [2, 4], x.ctypes.data)  # in place
    want = -x
    s.run_with_iobinding(binding)
    assert np.array_equal(x, want)


def test_results_of_like_sizes_share_memory():
    s = neg((None, 1024))
    outputs.release_outputs()
    for rows in range(449, 513):  # all of them have room in 2 MB
        assert (s.run(None, {"x": np.full((rows, 1024), rows, np.float32)})[0] == -rows).all()
    assert outputs.held_bytes() == 2 << 20
    outputs.release_outputs()
