"""Plans that do without threads where these come late: the same bits, whatever primitives they have."""

import ctypes

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from pyflame_rt import InferenceSession, SessionOptions
from pyflame_rt.backends.cpu.driver import native_driver as driver
from pyflame_rt.backends.cpu.driver.adaptive_threads import FIRST, LONG, LONG_PAUSE
from pyflame_rt.backends.cpu.onednn import library
from pyflame_rt.backends.cpu.onednn.memory import MemDesc
from pyflame_rt.backends.cpu.onednn.primitives import matmul

pytestmark = pytest.mark.skipif(not driver.clock(), reason="there is nothing to be watched")
RNG = np.random.default_rng(3)
CASES = {
    "first": ("Conv", (1, 3, 96, 96), (32, 3, 7, 7), {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
    "strided": ("Conv", (2, 64, 28, 28), (128, 64, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "pointwise": ("Conv", (1, 96, 28, 28), (192, 96, 1, 1), {"strides": [2, 2]}),
    "groups": ("Conv", (1, 64, 28, 28), (64, 16, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    "depthwise": ("Conv", (1, 96, 56, 56), (96, 1, 5, 5), {"group": 96, "pads": [2, 2, 2, 2], "strides": [2, 2]}),
    "volume": ("Conv", (1, 16, 12, 12, 12), (32, 16, 3, 3, 3), {"pads": [1] * 6}),
    "turned": ("ConvTranspose", (1, 64, 16, 16), (64, 32, 2, 2), {"strides": [2, 2]}),
    "turned and overlapping": ("ConvTranspose", (1, 32, 20, 20), (32, 16, 4, 4), {"strides": [2, 2]}),
}


def model(kind, shape, weights, settings):
    """A convolution between others, pooled and resized, so that primitives of several kinds take part."""
    nodes = [
        helper.make_node(kind, ["x", "w"], ["a"], **settings),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("AveragePool", ["b"], ["c"], kernel_shape=[2] * (len(shape) - 2)),
        helper.make_node("Softmax", ["c"], ["y"], axis=1),
    ]
    w = (RNG.standard_normal(weights) / np.sqrt(np.prod(weights[1:]))).astype(np.float32)
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", shape), ("y", None))]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [numpy_helper.from_array(w, "w")])
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", CASES)
def test_one_thread_gives_the_same_bits(case):
    kind, shape, weights, settings = CASES[case]
    session = InferenceSession(model(kind, shape, weights, settings), SessionOptions(num_threads=2))
    feeds = {"x": RNG.standard_normal(shape).astype(np.float32)}
    want = session.run(None, feeds)[0]
    (arena,) = session._compile(overrides=False).executable._last.made
    (plan,) = [track.plan for track in arena.tracks if track.plan.watched]
    if plan.watched != LONG:
        pytest.skip("so little work that it begins with one thread")
    assert plan.alone == 0
    plan.left = 2
    for left in (1, 0):
        np.testing.assert_array_equal(session.run(None, feeds)[0], want)
        assert (plan.left, plan.single, plan.failed) == (left, 1, 0)
    assert plan.alone > 0
    np.testing.assert_array_equal(session.run(None, feeds)[0], want)
    assert plan.single == 0
    session.close()


class Clock:
    """In the place of the system's clock: the next run takes ``milliseconds``."""

    def __init__(self):
        self.now, self.milliseconds, self.asked = 0, 0, 0
        self.read = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_int64))(self._read)

    def _read(self, _, stamp):
        self.asked += 1
        self.now += 0 if self.asked % 2 else self.milliseconds * 1_000_000
        stamp[0], stamp[1] = divmod(self.now, 1_000_000_000)
        return 0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("threads", "slower", "late"), [(2, 17, 19), (8, 69, 75)])
def test_the_more_threads_the_longer_a_run_may_take_before_one_is_tried(threads, slower, late):
    session = InferenceSession(model(*CASES["strided"]), SessionOptions(num_threads=2))
    feeds = {"x": RNG.standard_normal(CASES["strided"][1]).astype(np.float32)}
    session.run(None, feeds)
    (arena,) = session._compile(overrides=False).executable._last.made
    (plan,) = [track.plan for track in arena.tracks if track.plan.watched]
    assert plan.watched == LONG
    clock, usual, plan.best, plan.doubt = Clock(), plan.clock, 0, 0
    plan.num_threads, plan.clock = threads, ctypes.cast(clock.read, ctypes.c_void_p).value
    try:
        for milliseconds, left in ((10, 0), (slower, 0), (slower, 0), (10, 0), (late, 0), (late, FIRST)):
            clock.milliseconds = milliseconds
            session.run(None, feeds)
            assert plan.left == left, milliseconds
    finally:
        plan.num_threads, plan.clock = 2, usual
    session.close()


QUIET, NOISY = {"one": 4.0, "two": 2.0}, {"one": 8.0, "two": 16.0}  # milliseconds of a run on one thread and on two


class Machine:
    """A plan without steps, whose runs take what they would beside others that are busy at given times."""

    def __init__(self, busy, *, brief=False):
        self.busy, self.milliseconds, self.starts, self.asked = busy, 0.0, True, 0
        self.took = lambda threads: (NOISY if self.busy(self.milliseconds) else QUIET)[threads]
        self.quiet = {"one": 0.0, "two": 0.0}  # milliseconds spent while the others rest
        self.plan, self.budget = driver.NativePlan(), (ctypes.c_int64 * 2)(2, 0)
        driver.watch(self.plan, brief=brief)
        self.read = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_int64))(self._read)
        self.plan.num_threads, self.plan.budget = 2, ctypes.addressof(self.budget)
        self.plan.get_level = self.plan.set_level = None
        self.plan.clock = ctypes.cast(self.read, ctypes.c_void_p).value

    def _read(self, _, stamp):
        if not self.starts:
            busy, threads = self.busy(self.milliseconds), "one" if self.plan.single else "two"
            took = self.took(threads)
            self.asked += 1
            self.milliseconds += took
            self.quiet[threads] += 0 if busy else took
        self.starts = not self.starts
        stamp[0], stamp[1] = divmod(int(self.milliseconds * 1e6), 1_000_000_000)
        return 0

    def run(self, seconds):
        """The share of the quiet time that runs on one thread took."""
        end = self.milliseconds + 1000 * seconds
        self.quiet = {"one": 0.0, "two": 0.0}
        while self.milliseconds < end:
            driver.run()(ctypes.byref(self.plan), None)
        return self.quiet["one"] / max(sum(self.quiet.values()), 1)


@pytest.mark.parametrize(
    ("every", "busy", "most"), [(200, 20, 0.25), (400, 20, 0.12), (400, 50, 0.12), (1000, 50, 0.05)]
)
def test_bursts_of_noise_cost_little_of_the_time_between_them(every, busy, most):
    machine = Machine(lambda now: now > every / 2 and now % every < busy)
    assert machine.run(60) <= most


def test_noise_without_end_is_met_by_ever_longer_pauses():
    machine = Machine(lambda now: now > 100)
    machine.run(60)
    before = machine.plan.tried
    machine.run(60)
    assert machine.plan.tried - before <= 60 * 5
    machine.busy = lambda now: False
    machine.run(2)  # the last pause ends
    assert machine.run(1) == 0
    assert machine.plan.pause == LONG_PAUSE


@pytest.mark.parametrize(("short", "one", "two"), [(False, 0.072, 0.042), (True, 0.016, 0.009), (False, 2.0, 1.1)])
@pytest.mark.parametrize(("often", "most"), [(0.5, 1.4), (0.1, 1.8), (0.02, 1.8), (0.005, 1.4)])
def test_threads_that_wait_behind_others_for_milliseconds_cost_little(short, one, two, often, most):
    """One run in so many takes 2 to 4 ms more on two threads; the mean stays below so many times a run on one."""
    rng, machine = np.random.default_rng(1), Machine(lambda _: False, brief=short)
    machine.took = lambda threads: one if threads == "one" else two + (rng.random() < often) * rng.uniform(2, 4)
    machine.run(3)
    before, runs = machine.milliseconds, machine.asked
    machine.run(10 * one)
    assert (machine.milliseconds - before) / (machine.asked - runs) <= most * one


def test_runs_that_rarely_wait_for_milliseconds_stay_on_two_threads():
    rng, machine = np.random.default_rng(1), Machine(lambda _: False)
    machine.took = lambda threads: 0.072 if threads == "one" else 0.042 + (rng.random() < 0.0005) * 3
    machine.run(1)
    assert machine.run(10) <= 0.1


@pytest.mark.skipif(not library.available(), reason="about what oneDNN does")
def test_products_keep_the_threads_they_were_made_for():
    """The library's own gemm divides its work when it is made: with fewer threads a part of it would be left undone."""
    size = MemDesc((256, 256), "f32")
    with matmul(size, size, size) as product:
        assert not product.takes_fewer_threads
