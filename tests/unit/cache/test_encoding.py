"""Documents of the cache: plain data of a fixed set of kinds, from which nothing can be run."""

import json
import pickle
import struct

import ml_dtypes
import numpy as np
import pytest

from pyflame_rt.cache.encoding import Codec, DecodeError, EncodeError, Kind, record
from pyflame_rt.cache.models import _CODEC as GRAPHS
from pyflame_rt.cache.places import MAKERS
from pyflame_rt.graph import DType, Graph, Tensor
from pyflame_rt.graph.records import dataclass


@dataclass(frozen=True)
class Point:
    x: int
    y: object = None


CODEC = Codec([record(Point)])


def document(value):
    text = json.dumps(value).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -(10**30),
        2.5e-308,
        float("inf"),
        "text \udc80 \u20ac" * 20,
        b"\x00\xff",
        (1, (2, [3, ()]), {}),
        {1: 2, (3, "k"): [None], "d": {"e": b""}},
        {1, 2},
        frozenset({(1, 2)}),
        slice(1, None, -2),
        DType.BFloat16,
        Point(1, [Point(2)]),
    ],
)
def test_values_come_back_as_they_were(value):
    again = CODEC.decode(CODEC.encode(value))
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.bool_, np.complex64, ml_dtypes.bfloat16, ml_dtypes.int4])
def test_arrays_keep_type_order_and_contents(dtype, order):
    array = np.asarray(np.arange(24).reshape(2, 3, 4) % 5).astype(dtype).copy(order)
    again = CODEC.decode(CODEC.encode([array, array[:0], array[0, 0, 0]]))
    for left, right in zip(again, [array, array[:0], array[0, 0, 0]], strict=True):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        np.testing.assert_array_equal(left, right)
    assert again[0].strides == array.strides


def test_texts_in_arrays_come_back():
    array = np.array([["a", "\udc80"], ["", "b" * 99]], object)
    np.testing.assert_array_equal(CODEC.decode(CODEC.encode(array)), array)


def test_an_object_used_twice_is_one_object():
    point, array, text = Point(1), np.arange(3), "t" * 100
    again = CODEC.decode(CODEC.encode([point, array, (point, {"k": array}, text), text, np.float32(1), point]))
    assert again[0] is again[2][0] is again[5]
    assert again[1] is again[2][1]["k"]
    assert len(CODEC.encode([text] * 50)) < 1000
    assert again[3] == text


def test_what_has_no_kind_is_refused():
    for value in (lambda: None, (i for i in range(3)), Graph("g"), print, np.ones((4, 4))[::2, ::2], type):
        with pytest.raises(EncodeError):
            CODEC.encode([value])
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(EncodeError, match="deep"):
        CODEC.encode(deep)


class Exploit:
    """What a pickle would run."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        import os

        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "system",
        "posix.system",
        "pyflame_rt.session.os.system",
        "pyflame_rt.cache.store.os.system",
        "subprocess.Popen",
        "builtins.eval",
        "eval",
        "__import__",
        "Graph.__init__.__globals__",
        "__class__",
        "Tensor.__reduce__",
    ],
)
def test_names_of_functions_are_not_looked_up(name, tmp_path):
    mark = tmp_path / "ran"
    for parts in ([f"touch {mark}"], [[f"touch {mark}"]], {"t": [f"touch {mark}"]}):
        for value in ({name: parts}, [{"Tensor": [{name: parts}]}], {"Point": {name: parts}}):
            with pytest.raises(DecodeError):
                GRAPHS.decode(document(value), MAKERS)
    assert not mark.exists()


def test_a_pickle_is_no_document(tmp_path):
    mark = tmp_path / "ran"
    for data in (pickle.dumps(Exploit(mark)), document(pickle.dumps(Exploit(mark), 0).decode("latin-1"))):
        try:
            found = GRAPHS.decode(data, MAKERS)
        except DecodeError:
            continue
        assert isinstance(found, str)
    assert not mark.exists()


@pytest.mark.parametrize(
    "value",
    [
        {"r": 0},
        {"r": -1},
        {"r": "0"},
        {"a": ["float32", [4], "C", 0]},
        {"a": ["float32", [-4], "C", 0]},
        {"a": ["float32", [1 << 40, 1 << 40], "C", 0]},
        {"a": ["string", [1], "C", 0]},
        {"a": ["float32", [0], "X", 0]},
        {"d": [1]},
        {"d": [[], 1]},
        {"type": ["float99"]},
        {"Point": [1], "t": []},
        {},
        {"entry": ["../../../etc/passwd", 0, "uint8", [1], [1]]},
        {"entry": ["weights/" + "0" * 40, 0, "uint8", [1], [1]]},
        {"file": ["/etc/passwd", [0, 0, 0, 0], 0, "uint8", [1], [1]]},
    ],
)
def test_odd_documents_are_refused(value):
    with pytest.raises(DecodeError):
        CODEC.decode(document(value), MAKERS)


@pytest.mark.parametrize("data", [b"", b"1234567", struct.pack("<Q", 1 << 60), struct.pack("<Q", 2) + b"{", b"\0" * 20])
def test_what_is_cut_short_is_refused(data):
    with pytest.raises(DecodeError):
        CODEC.decode(data)


def test_graphs_come_back_whole():
    g = Graph("g")
    g.doc, g.metadata, g.opsets = "d", {"k": "v"}, {"": 21}
    g.add_input("x", ["N", None, 3])
    g.add_initializer("w", Tensor(np.ones((3, 2), np.float32)))
    body = Graph("body")
    body.add_node("n", "Identity", ["x"], ["z"])
    g.add_node("if", "If", ["c"], ["y"], {"then_branch": body, "axes": [1, 2], "v": Tensor(np.zeros(2))})
    again = GRAPHS.decode(GRAPHS.encode(g))
    assert repr(again.nodes) == repr(g.nodes)
    assert (again.name, again.doc, again.metadata, again.opsets, again.inputs) == (
        "g",
        "d",
        {"k": "v"},
        {"": 21},
        g.inputs,
    )
    assert again.nodes[0].get_attr("then_branch").nodes[0].op_type == "Identity"
    assert again.inputs[0].shape[0].symbols() == {"N"}


def test_two_kinds_need_two_names():
    with pytest.raises(ValueError, match="one name"):
        Codec([record(Point), Kind("Point", Graph, tuple, Graph)])
