"""The parts of a batcher on their own: rows, the queue, the window."""

import numpy as np
import pytest

from pyflame_rt import BackendError, Graph, InputError, ShapeMismatchError
from pyflame_rt.batching import BatchConfig
from pyflame_rt.batching.layout import Layout, Piece
from pyflame_rt.batching.queueing import FairQueue
from pyflame_rt.batching.requests import Ticket
from pyflame_rt.batching.window import Costs, Window
from tests.unit.batching.scripted import doubling_graph, row

LAYOUT = Layout(doubling_graph(2), BatchConfig())


def masked_graph() -> Graph:
    """y = x * mask, a sum over what is not masked, and the state of a recurrent model beside it."""
    graph = Graph("masked")
    graph.add_input("x", ["batch", "length", 2])
    graph.add_input("attention_mask", ["batch", "length"])
    graph.add_input("state", [3, "batch", 4])
    graph.add_node("cut", "Unsqueeze", ["attention_mask", "last"], ["open"])
    graph.add_initializer("last", np.array([2], np.int64))
    graph.add_node("mul", "Mul", ["x", "open"], ["y"])
    graph.add_node("neg", "Neg", ["state"], ["state_out"])
    graph.add_output("y", ["batch", "length", 2])
    graph.add_output("state_out", [3, "batch", 4])
    return graph


def sequence(length: int, rows: int = 1, value: float = 1.0, *, mask: bool = True) -> dict[str, np.ndarray]:
    feed = {
        "x": np.full((rows, length, 2), value, np.float32),
        "attention_mask": np.ones((rows, length), np.float32),
        "state": np.full((3, rows, 4), value, np.float32),
    }
    return feed if mask else {name: array for name, array in feed.items() if name != "attention_mask"}


def test_axes_are_read_from_symbolic_sizes():
    layout = Layout(masked_graph(), BatchConfig())
    assert layout.inputs == {"x": 0, "attention_mask": 0, "state": 1}
    assert layout.outputs == {"y": 0, "state_out": 1}
    assert (layout.mask, layout.length_in, layout.length_out) == (
        "attention_mask",
        {"x": 1, "attention_mask": 1},
        {"y": 1},
    )


@pytest.mark.parametrize("mask", [True, False])
def test_sequences_are_padded_and_cut(mask):
    layout = Layout(masked_graph(), BatchConfig(pad_values={"x": 7}))
    first, second = layout.read(sequence(3, 1, 5.0, mask=mask)), layout.read(sequence(9, 2, 6.0, mask=mask))
    assert first.family == second.family
    assert (first.bucket, second.bucket) == (16, 16)
    pieces = [Piece(first, 0, 1), Piece(second, 1, 2)]
    feed = layout.gather(pieces, 4, 16)
    assert feed["x"].shape == (4, 16, 2)
    assert feed["x"][0, :4, 0].tolist() == [5, 5, 5, 7]
    assert feed["attention_mask"].sum(1).tolist() == [3, 9, 3, 3]
    assert feed["state"].shape == (3, 4, 4)
    assert feed["state"][0, :, 0].tolist() == [5, 6, 5, 5]
    parts = layout.scatter({"y": feed["x"], "state_out": -feed["state"]}, pieces, 4, 16)
    assert [part["y"].shape for part in parts] == [(1, 3, 2), (1, 9, 2)]
    assert [part["state_out"].shape for part in parts] == [(3, 1, 4), (3, 1, 4)]
    assert np.all(parts[1]["y"] == 6)
    assert np.all(parts[1]["state_out"] == -6)
    assert np.shares_memory(parts[0]["y"], feed["x"])


def test_without_a_mask_only_equal_lengths_share():
    graph = Graph("g")
    graph.add_input("x", ["N", "L"])
    graph.add_node("n", "Neg", ["x"], ["y"])
    graph.add_output("y", ["N", "L"])
    layout = Layout(graph, BatchConfig())
    lengths = [layout.read({"x": np.zeros((1, n), np.float32)}) for n in (3, 3, 4)]
    assert lengths[0].family == lengths[1].family != lengths[2].family
    assert lengths[0].bucket == 0


def test_buckets():
    automatic, given = (
        Layout(masked_graph(), BatchConfig()),
        Layout(masked_graph(), BatchConfig(length_buckets=[48, 20])),
    )
    assert [automatic.bucket(n) for n in (0, 1, 16, 17, 33, 300)] == [0, 16, 16, 24, 48, 384]
    assert [given.bucket(n) for n in (1, 20, 21, 48, 49)] == [20, 20, 48, 48, 49]


def test_a_request_without_batch_axis_is_stacked():
    rows = LAYOUT.read({"x": np.array([1, 2], np.float32)})
    assert (rows.count, rows.stacked, rows.feed["x"].shape) == (1, True, (1, 2))
    assert LAYOUT.read({"x": [1, 2]}).feed["x"].tolist() == [[1, 2]]
    joined = LAYOUT.joined([{"y": rows.feed["x"]}], stacked=True)
    assert joined["y"].tolist() == [1, 2]


def test_a_whole_run_of_one_request_is_not_copied():
    rows = LAYOUT.read(row(1, 4))
    assert LAYOUT.gather([Piece(rows, 0, 4)], 4, 0)["x"] is rows.feed["x"]


def test_requests_alike_are_read_alike():
    layout = Layout(masked_graph(), BatchConfig())
    for mask in (True, False, True, False):
        first, again = (layout.read(sequence(9, 2, value, mask=mask)) for value in (1.0, 2.0))
        assert (first.count, first.length, first.bucket) == (again.count, again.length, again.bucket) == (2, 9, 16)
        assert first.family == again.family
        assert again.feed["x"][0, 0, 0] == 2.0
        assert again.feed["attention_mask"].shape == (2, 9)
    for _ in range(2):
        with pytest.raises(ShapeMismatchError, match="equally many rows"):
            layout.read({**sequence(9, 2), "state": np.zeros((3, 1, 4), np.float32)})
        with pytest.raises(InputError, match="at least one row"):
            layout.read(sequence(3, 0))
        with pytest.raises(InputError, match="no input 'z'"):
            layout.read({**sequence(3), "z": np.zeros(3)})
    alone = {name: array[:, 0] if name == "state" else array[0] for name, array in sequence(4).items()}
    assert [layout.read(alone).stacked for _ in range(2)] == [True, True]
    given = sequence(9, 2)
    layout.read(given).feed.clear()
    assert len(given) == 3
    for length in range(1, 1100):
        layout.read(sequence(length))
    assert len(layout._read_before) <= 1024


def test_values_that_rows_share_are_part_of_the_family():
    graph = Graph("g")
    graph.add_input("x", ["N", 2])
    graph.add_input("scale", [2])
    graph.add_node("m", "Mul", ["x", "scale"], ["y"])
    graph.add_output("y", ["N", 2])
    layout = Layout(graph, BatchConfig())
    scales = [layout.read({**row(1), "scale": np.array([s, 1], np.float32)}).family for s in (1, 1, 2)]
    assert scales[0] == scales[1] != scales[2]


def test_requests_that_do_not_fit_are_refused():
    layout = Layout(masked_graph(), BatchConfig())
    with pytest.raises(ShapeMismatchError, match="equally many rows"):
        layout.read({**sequence(3, 2), "state": np.zeros((3, 1, 4), np.float32)})
    with pytest.raises(ShapeMismatchError, match="equally long"):
        layout.read({**sequence(3), "attention_mask": np.ones((1, 4), np.float32)})
    with pytest.raises(InputError, match="at least one row"):
        layout.read(sequence(3, 0))
    with pytest.raises(InputError, match="no input 'z'"):
        LAYOUT.read({"z": [1]})


def test_models_without_rows_say_why():
    fixed = doubling_graph(2)
    fixed.inputs[0].shape = [1, 2]
    assert "fixed first size" in Layout(fixed, BatchConfig()).problem
    summing = Graph("g")
    summing.add_input("x", ["N", 2])
    summing.add_node("s", "ReduceSum", ["x"], ["y"], attrs={"keepdims": 0})
    summing.add_output("y", [])
    assert "output 'y'" in Layout(summing, BatchConfig()).problem
    with pytest.raises(InputError, match="mask_input"):
        Layout(doubling_graph(2), BatchConfig(mask_input="m"))


def test_outputs_without_a_row_for_each_row_are_refused():
    rows = LAYOUT.read(row(1))
    with pytest.raises(BackendError, match="cannot be told apart"):
        LAYOUT.scatter({"y": np.zeros((3, 2))}, [Piece(rows, 0, 1)], 2, 0)


# ------------------------------------------------------------------ the queue


def ticket(caller, value=0.0, priority=0, rows=1) -> Ticket:
    return Ticket(int(value), LAYOUT.read(row(value, rows)), ["y"], caller, priority, None, lambda _: True)


def order(queue: FairQueue, at_once: int = 1) -> list:
    taken = []
    while (found := queue.first()) is not None:
        taken += [t.number for t, _, _ in queue.take(found[0], at_once)]
    return taken


def test_one_caller_is_first_in_first_out():
    queue = FairQueue(8)
    for i in range(5):
        queue.push(ticket("a", i))
    assert (len(queue), order(queue), len(queue)) == (5, [0, 1, 2, 3, 4], 0)


def test_a_flood_does_not_hold_others_up():
    queue = FairQueue(8)
    for i in range(100):
        queue.push(ticket("flood", i))
    for i in range(100, 103):
        queue.push(ticket("other", i))
    places = order(queue)
    assert [places.index(i) for i in range(100, 103)] == [1, 3, 5]


def test_callers_share_by_rows_not_by_requests():
    queue = FairQueue(8)
    for i in range(40):
        queue.push(ticket("wide", i, rows=4))
        queue.push(ticket("narrow", 100 + i))
    served = [t.number for _ in range(30) for t, _, _ in queue.take(queue.first()[0], 1)]
    narrow = sum(number >= 100 for number in served)
    assert 12 <= narrow <= 18


def test_priorities_go_first_and_starve_nobody():
    queue = FairQueue(priority_rows=4)
    queue.push(ticket("patient", 999))
    for i in range(3):
        queue.push(ticket("urgent", i, priority=2))
    served: list[int] = []
    for i in range(3, 60):  # there is always an urgent one
        served += [t.number for t, _, _ in queue.take(queue.first()[0], 1)]
        queue.push(ticket("urgent", i, priority=2))
    assert served[0] == 0
    assert 4 <= served.index(999) <= 20


def test_new_callers_starve_nobody():
    queue = FairQueue(priority_rows=4)
    queue.push(ticket("patient", 999))
    served: list[int] = []
    for i in range(200):
        queue.push(ticket(f"new {i}", i, priority=1))
        served += [t.number for t, _, _ in queue.take(queue.first()[0], 1)]
    assert 999 in served


def test_requests_are_taken_in_pieces():
    queue = FairQueue(8)
    queue.push(ticket("a", 1, rows=5))
    queue.push(ticket("b", 2, rows=2))
    group = queue.first()[0]
    assert queue.rows(group) == 7
    assert [(t.number, begin, end) for t, begin, end in queue.take(group, 3)] == [(1, 0, 3)]
    assert [(t.number, begin, end) for t, begin, end in queue.take(group, 9)] == [(2, 0, 2), (1, 3, 5)]  # their turn
    assert len(queue) == 0
    assert queue.first() is None


def test_a_large_request_does_not_hold_others_up():
    queue = FairQueue(8)
    queue.push(ticket("wide", 1, rows=1000))
    queue.push(ticket("narrow", 2))
    queue.push(ticket("narrow", 3))
    places = order(queue, at_once=8)
    assert max(places.index(2), places.index(3)) <= 4
    assert places.count(1) <= 127


def test_what_is_taken_back_is_not_run():
    queue = FairQueue(8)
    tickets = [ticket("a", i) for i in range(4)]
    for one in tickets:
        queue.push(one)
    queue.discard(tickets[0])
    queue.discard(tickets[2])
    queue.discard(tickets[2])
    assert len(queue) == 2
    assert queue.rows(queue.first()[0]) == 2
    assert order(queue) == [1, 3]


def test_draining_gives_what_waits():
    queue = FairQueue(8)
    for i in range(3):
        queue.push(ticket("a", i))
    assert sorted(t.number for t in queue.drain()) == [0, 1, 2]
    assert len(queue) == 0
    assert queue.first() is None


# ------------------------------------------------------------------ when, and how many


def costs(**seconds: float) -> Costs:
    table = Costs([1, 2, 4, 8])
    for size, value in seconds.items():
        for _ in range(2):
            table.saw(int(size[1:]), 0, value)
    return table


def test_sizes_are_chosen_by_what_runs_take():
    proportional = costs(_1=1.1, _2=2.1, _4=4.1, _8=8)
    assert proportional.choose(5, 0, padding=True) == (4, 4)
    assert proportional.choose(7, 0, padding=True) == (7, 8)  # a little padding is better than two runs
    flat = costs(_1=1, _2=1.1, _4=1.2, _8=1.4)
    assert flat.choose(5, 0, padding=True) == (5, 8)
    assert proportional.choose(7, 0, padding=True, busy=True) == (4, 4)  # more rows a second: others wait
    assert flat.choose(5, 0, padding=True, busy=True) == (5, 8)
    assert flat.choose(5, 0, padding=False) == (4, 4)
    assert flat.choose(8, 0, padding=True) == (8, 8)
    assert flat.choose(100, 0, padding=True) == (8, 8)
    few = Costs([4, 8])
    assert few.choose(1, 0, padding=True) == (1, 4)
    assert few.choose(1, 0, padding=False) == (1, 1)


def test_a_run_is_no_larger_than_it_need_be():
    assert costs(_1=1, _2=2, _4=4, _8=8).choose(100, 0, padding=True) == (1, 1)
    assert costs(_1=1.5, _2=2.1, _4=4.0, _8=8).choose(100, 0, padding=True) == (4, 4)
    assert costs(_1=0.01e-3, _2=0.02e-3, _4=0.04e-3, _8=0.08e-3).choose(100, 0, padding=True) == (8, 8)
    assert costs(_1=1, _2=2, _4=4).choose(100, 0, padding=True) == (8, 8)  # one was not timed


def test_a_size_that_was_slow_once_is_tried_again():
    table = costs(_1=1, _2=1.2, _4=100, _8=100)
    assert table.choose(100, 0, padding=True) == (2, 2)
    for _ in range(600):
        rows, size = table.choose(100, 0, padding=True)
        table.saw(size, 0, {1: 1, 2: 1.2, 4: 1.4, 8: 1.6}[size])
    assert (rows, size) == (8, 8)


def test_the_first_run_of_a_size_is_not_counted():
    table = Costs([1, 2])
    table.saw(1, 0, 100.0)
    assert not table.seen(1, 0)
    table.saw(1, 0, 1.0)
    assert table.seen(1, 0) == 1.0
    assert table.of(1, 0) == 1.0


def test_nobody_is_held_back_for_nobody():
    window, table = Window(longest=0.001, least=1), costs(_1=1.0)
    for second in range(0, 100, 10):  # one request now and then: a tenth of the load
        window.came(second, 1)
        assert window.hold(second, second, 1, 0, table) == 0.0
        window.answered(second + 1.0, 1.0)


def test_callers_that_come_back_are_waited_for():
    window, table = Window(longest=1.0, least=1), costs(_1=1.0, _2=1.1, _4=1.2, _8=1.3)
    for second in range(0, 40, 2):  # three callers ask again as soon as they are answered
        window.answered(second, 1.0)
        for i in range(3):
            window.came(second + 0.001 * (i + 1), 1)
    window.answered(40.0, 1.0)
    assert 0 < window.hold(40.0, 39.5, 1, 0, table) < 0.11
    for _ in range(3):
        window.came(40.002, 1)
    assert window.hold(40.002, 39.5, 4, 0, table) == 0.0
    assert window.hold(40.2, 40.2, 1, 0, table) == 0.0  # they did not come


def test_holding_back_must_pay():
    window, table = Window(longest=1.0, least=1), costs(_1=1.0, _2=2.0, _4=4.0, _8=8.0)
    for second in range(0, 40, 2):
        window.answered(second, 1.0)
        window.came(second + 0.09, 1)
    window.answered(40.0, 1.0)
    assert window.hold(40.0, 39.5, 1, 0, table) == 0.0


def test_the_least_size_is_waited_for_no_longer_than_allowed():
    window, table = Window(longest=0.5, least=4), costs(_1=1.0)
    assert window.hold(1.0, 1.0, 1, 0, table) == 0.5
    assert window.hold(1.4, 1.0, 1, 0, table) == pytest.approx(0.1)
    assert window.hold(1.4, 1.0, 4, 0, table) == 0.0
    assert window.hold(1.6, 1.0, 1, 0, table) == 0.0


def test_settings_are_checked():
    config = BatchConfig(
        max_batch_size=0, min_batch_size=2, when_full="ask", timeout_ms=0, length_buckets=[0], priority_rows=0
    )
    assert len(config.validate()) == 6
    with pytest.raises(InputError, match="max_batch_size must be at least 1, got 0"):
        config.checked()
    assert BatchConfig(max_batch_size=12).sizes() == [1, 2, 4, 8, 12]
