"""Messages over gRPC that come in part: counted before they are whole, and refused where they are too many."""

import contextlib
import sys

import pytest

from pyflame_rt.serving import GRPCConfig
from pyflame_rt.serving.messages import SERVICE
from tests.unit.serving.http2 import Connection
from tests.unit.serving.scene import serving
from tests.unit.serving.test_grpc import X, call, tensor
from tests.unit.serving.test_grpc_answers import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell what came")

PATH = f"/{SERVICE}/ModelInfer"
MB = 1 << 20
LONG = GRPCConfig(enabled=True, host="127.0.0.1", port=0, max_message_size=9 * MB)


@contextlib.contextmanager
def talking(limit):
    with serving(grpc=LONG, max_pending_bytes=limit) as server:
        yield server, server._rpc.messages


def coming(messages):
    return sum(one.size for one in list(messages._connections.values()))


def begun(server, messages, held):
    """A connection whose message the server waits for."""
    before = len(messages._connections)
    one = held.enter_context(Connection(server))
    number = one.begin(PATH, 8 * MB)
    until(lambda: len(messages._connections) > before)
    return one, number


def answered(server):
    return call(server, "ModelInfer", model_name="m", inputs=[tensor(X)], raw_input_contents=[X.tobytes()]).outputs


def test_parts_of_messages_have_a_budget():
    with talking(20 * MB) as (server, messages), contextlib.ExitStack() as held:
        for one, number in [begun(server, messages, held) for _ in range(6)]:
            one.upload(number, 7 * MB)
        until(lambda: len(messages._connections) < 6 and 0 < coming(messages) <= 20 * MB)
        assert answered(server)


def test_the_younger_half_of_one_connection_goes():
    with talking(20 * MB) as (server, messages), contextlib.ExitStack() as held:
        one, number = begun(server, messages, held)
        numbers = [number, *(one.begin(PATH, 8 * MB) for _ in range(5))]
        (watched,) = messages._connections.values()
        until(lambda: len(watched.readers) == 6)
        for number in numbers:
            one.upload(number, 7 * MB)
        until(lambda: 0 < len(watched.readers) < 6)
        assert one.upload(numbers[0], MB - 1)  # the oldest is still read
        assert answered(server)


def test_a_long_message_that_comes_slowly_is_read():
    """Where it is the only one, also one that is longer than all may be together."""
    with talking(2 * MB) as (server, messages), contextlib.ExitStack() as held:
        one, number = begun(server, messages, held)
        assert one.upload(number, 4 * MB)
        until(lambda: coming(messages) > 3 * MB)
        assert one.upload(number, 4 * MB)
        until(lambda: not messages._connections and not messages.pending)  # it was whole, and was answered
