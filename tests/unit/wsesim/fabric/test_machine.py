"""The machine by itself: bursts, back-pressure, deadlock, sequential vectors."""

import numpy as np
import pytest

from tests.unit.wsesim.fabric.machines import UNBLOCK, fabin, fabout, memory, op, row, starting, unit
from wsesim.fabric import Deadlock, MemoryOverflow, NoRoute, RoutingLoop, load
from wsesim.fabric.report import collect
from wsesim.host import HostSession

RAMP, EAST, WEST = ("RAMP",), ("EAST",), ("WEST",)


def session(program, data, **options):
    machine = load(program, **options)
    host = HostSession(machine)
    host.start()
    host.copy_in("a", data.view(np.uint32), (0, 0, machine.width, 1), 4)
    return machine, host


def fetch(host, n):
    out = np.zeros((1, host.machine.width, n), np.uint32)
    host.copy_out("a", out, (0, 0, host.machine.width, 1), 4)
    return out.view(np.float32)[0]


def ramp_up(width, n):
    return np.arange(width * n, dtype=np.float32).reshape(1, width, n)


@pytest.mark.parametrize("n", [1, 7, 100])
@pytest.mark.parametrize("bounded", [True, False])
def test_a_burst_reaches_every_receiver_and_is_counted(n, bounded):
    send = unit(starting("fmovs", fabout(n), memory(n)), n=n)
    receive = unit(op("fadds", memory(n), memory(n), fabin(n)), UNBLOCK, n=n)
    program = row([send, receive, receive], [{1: (RAMP, EAST)}, {1: (WEST, ("RAMP", "EAST"))}, {1: (WEST, RAMP)}])
    data = ramp_up(3, n)
    machine, host = session(program, data, bounded=bounded)
    host.call("main")
    got = fetch(host, n)
    host.stop()
    np.testing.assert_array_equal(got, data[0] + np.array([[0], [1], [1]]) * data[0, 0])
    report = collect(machine)
    assert (report.wavelets, report.hops) == (n, 2 * n)
    assert report.links[0] == [0, n, 0, 0]
    assert report.links[1] == [0, n, 0, 0]


def test_a_long_burst_costs_few_events():
    n = 5000
    send = unit(starting("fmovs", fabout(n), memory(n)), n=n)
    receive = unit(op("fmovs", memory(n), fabin(n)), UNBLOCK, n=n)
    program = row([send, receive], [{1: (RAMP, EAST)}, {1: (WEST, RAMP)}])
    machine, host = session(program, ramp_up(2, n))
    before = machine.events_run
    host.call("main")
    fetch(host, n)
    assert machine.events_run - before < 20
    assert machine.now >= n


def test_a_sender_without_receiver_fills_the_buffers_and_is_reported():
    send = unit(starting("fmovs", fabout(100), memory(100)))
    program = row([send, unit(UNBLOCK)], [{1: (RAMP, EAST)}, {1: (WEST, RAMP)}])
    _, host = session(program, ramp_up(2, 100))
    host.call("main")
    with pytest.raises(Deadlock, match="waits for room on colour 1") as e:
        host.stop()
    assert e.value.name == "deadlock"
    assert ((0, 0), (1, 0), "room on colour 1") in e.value.edges


def test_a_short_burst_without_receiver_stays_in_the_buffers():
    send = unit(starting("fmovs", fabout(8), memory(8)))
    program = row([send, unit(UNBLOCK)], [{1: (RAMP, EAST)}, {1: (WEST, RAMP)}])
    _, host = session(program, ramp_up(2, 100))
    host.call("main")
    host.stop()


def test_two_waiting_for_each_other_show_the_cycle():
    body = (op("fmovs", memory(5), fabin(5, color, 2 + color - 1)) for color in (1, 2))
    left, right = (unit(b, UNBLOCK, colors=(1, 2)) for b in body)
    program = row([left, right], [{2: (RAMP, EAST), 1: (("EAST",), RAMP)}, {1: (RAMP, WEST), 2: (WEST, RAMP)}])
    _, host = session(program, ramp_up(2, 100))
    host.call("main")
    with pytest.raises(Deadlock, match=r"cycle: PE \(0, 0\) -> PE \(1, 0\) -> PE \(0, 0\)"):
        host.stop()


def test_a_routing_loop_is_named():
    send = unit(starting("fmovs", fabout(4), memory(4)))
    loop = {1: (("RAMP", "EAST"), ("EAST",))}
    program = row([send, unit(UNBLOCK)], [loop, {1: (WEST, ("WEST",))}])
    _, host = session(program, ramp_up(2, 100))
    host.call("main")
    with pytest.raises(RoutingLoop, match="routing-loop"):
        host.stop()


def test_a_colour_without_route_is_named():
    program = row([unit(starting("fmovs", fabout(4), memory(4)))], [{}])
    _, host = session(program, ramp_up(1, 100))
    host.call("main")
    with pytest.raises(NoRoute, match="colour 1"):
        host.stop()


def test_a_program_over_48_kilobytes_is_refused():
    with pytest.raises(MemoryOverflow, match="49152"):
        load(row([unit(UNBLOCK, n=12500)], [{}]))


def test_relays_pass_a_sum_along_the_row():
    n = 40
    first = unit(starting("fmovs", fabout(n), memory(n)), n=n)
    middle = unit(starting("fadds", fabout(n, 2, 3), memory(n), fabin(n, 1, 2)), n=n, colors=(1, 2))
    last = unit(op("fadds", memory(n), memory(n), fabin(n, 2, 2)), UNBLOCK, n=n, colors=(2,))
    routes = [{1: (RAMP, EAST)}, {1: (WEST, RAMP), 2: (RAMP, EAST)}, {2: (WEST, RAMP)}]
    data = ramp_up(3, n)
    _, host = session(row([first, middle, last], routes), data)
    host.call("main")
    np.testing.assert_array_equal(fetch(host, n)[2], data[0].sum(axis=0, dtype=np.float32))


def test_repeated_destinations_accumulate_in_order():
    total, source = memory(20, stride=0), memory(20, offset=4)
    program = row([unit(op("fadds", total, total, source), UNBLOCK, n=40)], [{}])
    data = np.random.default_rng(0).standard_normal((1, 1, 40)).astype(np.float32)
    _, host = session(program, data)
    host.call("main")
    want = np.float32(data[0, 0, 0])
    for value in data[0, 0, 1:21]:
        want = np.float32(want + value)
    assert fetch(host, 40)[0, 0] == want


def test_overlapping_operands_read_what_was_just_written():
    program = row([unit(op("fadds", memory(10, offset=4), memory(10), memory(10, offset=4)), UNBLOCK, n=20)], [{}])
    data = np.ones((1, 1, 20), np.float32)
    _, host = session(program, data)
    host.call("main")
    np.testing.assert_array_equal(fetch(host, 20)[0, :11], np.arange(1, 12))
