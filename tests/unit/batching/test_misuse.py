"""What is no setting and no request is refused at once, in words, and nothing of it stays behind."""

import threading

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.batching import BatchConfig, DynamicBatcher, InferenceRequest, PriorityBatcher
from pyflame_rt.graph.errors import InputError, RunTimeoutError
from pyflame_rt.memory import PoolConfig
from pyflame_rt.streaming import AsyncOptions, AsyncSession
from tests.unit.batching.scripted import Scripted, doubling_graph, row

NAN, INF = float("nan"), float("inf")
WAIT = 60

NO_COUNTS = [0, -1, 1.5, "a", None, NAN]
NO_SIZES = [-1, 1.5, "a", None, NAN]
STRANGE = {
    BatchConfig: {
        "max_batch_size": NO_COUNTS,
        "min_batch_size": NO_COUNTS,
        "num_workers": NO_COUNTS,
        "queue_capacity": NO_COUNTS,
        "priority_rows": NO_COUNTS,
        "max_latency_us": [-1, "a", None, NAN, INF],
        "preferred_sizes": [[0], [1.5], ["a"], None, 5],
        "length_buckets": [[0], [1.5], "ab", 5],
        "timeout_ms": [0, -1, NAN, "a"],
        "when_full": ["x", None],
        "pad_values": [5, None],
    },
    AsyncOptions: {"num_streams": NO_COUNTS, "callback_threads": NO_COUNTS, "max_pending": NO_COUNTS},
    PoolConfig: {
        "memory_limit": NO_SIZES,
        "max_blocks_per_class": NO_SIZES,
        "max_cached_bytes": NO_SIZES,
        "initial_pool_size": NO_SIZES,
        "alignment": [0, 3, 1.5, "a"],
        "size_classes": [[0], [1.5], ["a"]],
    },
}


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [(kind, name, v) for kind, names in STRANGE.items() for name, values in names.items() for v in values],
    ids=lambda v: getattr(v, "__name__", str(v)),
)
def test_what_is_no_setting_is_refused_by_name(kind, name, value):
    settings = kind()
    setattr(settings, name, value)
    with pytest.raises(InputError, match=name):
        settings.checked()


def test_numbers_of_numpy_are_settings():
    config = BatchConfig(np.int64(4), np.float32(100), preferred_sizes=[np.int64(2)], timeout_ms=np.float32(60_000))
    with DynamicBatcher(Scripted(), config) as batcher:
        assert batcher.infer(row(1))["y"].tolist() == [[2, 2]]


@pytest.mark.parametrize("values", [{"nope": 1}, {"x": "a"}, {"x": None}])
def test_what_pads_is_a_number_for_an_input(values):
    with pytest.raises(InputError, match="pad_values"):
        DynamicBatcher(Scripted(), BatchConfig(pad_values=values))


STRANGE_REQUESTS = [
    (None, {}, InputError, "maps input names"),
    ([1], {}, InputError, "maps input names"),
    ("x", {}, InputError, "maps input names"),
    (InferenceRequest(None), {}, InputError, "maps input names"),
    ({"x": [[1], [2, 3]]}, {}, InputError, "not rectangular"),
    ({"x": [[1, 2], None]}, {}, InputError, "x"),
    (row(1), {"timeout_ms": NAN}, InputError, "timeout_ms"),
    (row(1), {"timeout_ms": 0}, InputError, "timeout_ms"),
    (row(1), {"timeout_ms": -5}, InputError, "timeout_ms"),
    (row(1), {"timeout_ms": "a"}, InputError, "timeout_ms"),
    (row(1), {"output_names": "y"}, InputError, "list of names"),
    (row(1), {"caller": [1]}, TypeError, "hashable"),
    (InferenceRequest(row(1), caller=[1]), {}, TypeError, "hashable"),
]


@pytest.mark.parametrize(("inputs", "settings", "error", "said"), STRANGE_REQUESTS, ids=str)
def test_what_is_no_request_is_refused_and_forgotten(inputs, settings, error, said):
    with PriorityBatcher(Scripted()) as batcher:
        for ask in (batcher.submit, batcher.infer, lambda i, **s: batcher.submit_priority(i, 1, **s)):
            with pytest.raises(error, match=said):
                ask(inputs, **settings)
        assert not batcher._tickets
        assert batcher.get_stats().queue_depth == 0
        assert batcher.infer(row(3))["y"].tolist() == [[6, 6]]


@pytest.mark.parametrize("priority", ["a", 1.5, NAN, None])
def test_priorities_are_whole(priority):
    with PriorityBatcher(Scripted()) as batcher:
        with pytest.raises(TypeError, match="priority must be a whole number"):
            batcher.submit_priority(row(1), priority)
        assert not batcher._tickets


@pytest.mark.parametrize("for_ever", [INF, 1e300, 1e18, 1e12])
def test_those_who_wait_for_ever_keep_nobody_else_waiting(for_ever):
    """The thread that watches the clock could not sleep so long and died: no deadline was kept after that."""
    session = Scripted()
    with DynamicBatcher(session) as batcher:
        session.gate.clear()
        held = batcher.submit(row(1))
        assert session.entered.acquire(timeout=WAIT)
        patient = batcher.submit(row(2), timeout_ms=for_ever)
        hasty = batcher.submit(row(3), timeout_ms=5)
        assert isinstance(hasty.result(WAIT).error, RunTimeoutError)
        session.gate.set()
        assert [f.result(WAIT)["y"].tolist() for f in (held, patient)] == [[[2, 2]], [[4, 4]]]


def test_who_waits_for_room_may_wait_for_ever():
    session = Scripted()
    with DynamicBatcher(session, BatchConfig(queue_capacity=1, when_full="wait")) as batcher:
        session.gate.clear()
        futures = [batcher.submit(row(1))]
        assert session.entered.acquire(timeout=WAIT)
        futures.append(batcher.submit(row(2)))
        thread = threading.Thread(target=lambda: futures.append(batcher.submit(row(3), timeout_ms=INF)))
        thread.start()
        session.gate.set()
        thread.join(WAIT)
        assert [f.result(WAIT)["y"].tolist() for f in futures] == [[[2, 2]], [[4, 4]], [[6, 6]]]


def test_callbacks_can_be_called():
    with DynamicBatcher(Scripted()) as batcher, pytest.raises(TypeError, match="callback must be callable"):
        batcher.submit_with_callback(row(1), None)
    with AsyncSession(pyflame_rt.InferenceSession(doubling_graph(2))) as session:
        with pytest.raises(TypeError, match="callback must be callable"):
            session.run_async_callback(row(1), None)
        assert session.get_stats().total_requests == 0


def test_streams_are_numbered():
    with AsyncSession(pyflame_rt.InferenceSession(doubling_graph(2))) as session:
        for stream in (1.5, "a", None):
            with pytest.raises(TypeError, match="stream_id must be a whole number"):
                session.run_on_stream(stream, row(1))
            with pytest.raises(TypeError, match="stream_id must be a whole number"):
                session.synchronize(stream)
        with pytest.raises(InputError, match="list of names"):
            session.run_async(row(1), "y")
        assert session.run_async(row(1), ["y"]).result(WAIT)["y"].tolist() == [[2, 2]]
