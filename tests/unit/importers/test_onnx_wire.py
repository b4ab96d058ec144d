"""Our reader against protobuf: the same graph, or the same refusal, also for damaged files."""

import re
import subprocess
import sys
import textwrap
import warnings
from random import Random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.importers.base import ImportOptions
from pyflame_rt.importers.onnx_importer import ONNXImporter, graph_from_bytes, graph_from_proto
from pyflame_rt.importers.onnx_messages import Model
from pyflame_rt.importers.onnx_scan import read_model
from pyflame_rt.importers.onnx_wire import UnusualError, parse_model, unpack_varints
from tests.fuzz.corpus import onnx_seeds
from tests.fuzz.mutate import mutate_onnx


def outcome(read):
    try:
        graph = read()
    except PyFlameRTError as error:
        # Bytes that are no text appear in messages as protobuf hands them out.
        return type(error).__name__, re.sub(r"b?'[^']*'", "'...'", str(error))[:40]
    return "graph", str(graph), graph.fingerprint(weights=True), graph.metadata, graph.opsets


def by_protobuf(data):
    model = onnx.ModelProto()
    model.ParseFromString(data)
    return graph_from_proto(model)


def is_message(data):
    try:
        onnx.ModelProto.FromString(data)
    except Exception:  # noqa: BLE001 - protobuf's own
        return False
    return True


def test_all_seeds_are_read_without_protobuf():
    read = [parse_model(data) for data in onnx_seeds()]
    assert len(read) > 100
    assert all(isinstance(model, Model) for model in read)


def test_damaged_files_are_judged_as_protobuf_does():
    seeds, compared = onnx_seeds(), 0
    for number in range(1500):
        rng = Random(f"wire:{number}")
        data = mutate_onnx(rng, rng.choice(seeds), seeds)
        try:
            parse_model(data)
        except UnusualError:
            continue
        assert is_message(data), number
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert outcome(lambda data=data: graph_from_bytes(data)) == outcome(lambda data=data: by_protobuf(data)), (
                number
            )
        compared += 1
    assert compared > 500


def field(number, contents):
    head = bytearray([number << 3 | 2])
    length = len(contents)
    while length > 127:
        head.append(length & 127 | 128)
        length >>= 7
    head.append(length)
    return bytes(head) + contents


@pytest.mark.parametrize(
    "data",
    [
        b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a graph of 2^64 bytes
        b"\x3a\x05\x2a\xff\xff\xff\x7f",  # an initializer longer than the graph
        b"\x08",  # a number that is not there
        b"\x08" + b"\x80" * 20,
        b"\x08" + b"\xff" * 9 + b"\x7f",  # 70 bits
        b"\x3b\x3c",  # groups
        b"\x02\x00",  # field 0
        b"\x00\x00",
        b"\x12\x02\xff\xfe",  # no UTF-8
        field(7, b"") * 2,  # a message in two parts
        field(7, field(5, b"\x25\x00\x00\x80\x3f")),  # floats that are not packed
        field(7, field(5, field(3, b""))),  # a segment
        b"\x0d\x00\x00",  # a number that ends beyond the file
    ],
)
def test_unusual_forms_are_left_to_protobuf(data):
    with pytest.raises(UnusualError):
        parse_model(data)


def test_deep_nesting_neither_overflows_nor_takes_long():
    data = b""
    for _ in range(400):
        data = field(1, field(5, field(6, data)))  # graph > node > attribute > graph
    with pytest.raises(UnusualError, match="deep"):
        parse_model(field(7, data))


def test_fields_nobody_knows_are_skipped():
    unknown = b"\xf8\x07\x05" + b"\xf9\x07" + bytes(8) + b"\xfd\x07" + bytes(4) + b"\xfa\x07\x02ab"
    assert parse_model(unknown + b"\x08\x07" + unknown).ir_version == 7


@pytest.mark.parametrize("values", [[], [1], [127, 128], [-1, 0, 2**63 - 1, -(2**63)], list(range(0, 70000, 17))])
def test_packed_numbers(values):
    tensor = TensorProto(int64_data=values)
    packed = parse_model(field(7, field(5, tensor.SerializeToString()))).graph.initializer[0]
    assert unpack_varints(getattr(packed, "int64_data", b"")).tolist() == values


@pytest.mark.parametrize("data", [b"\x80", b"\x01\xff", b"\x80" * 11 + b"\x01"])
def test_packed_numbers_that_do_not_end(data):
    with pytest.raises(UnusualError):
        unpack_varints(data)


@pytest.mark.parametrize("kind", range(1, 27))
def test_tensors_of_all_types_without_raw_data(kind):
    if kind == TensorProto.STRING:
        tensor = helper.make_tensor("w", kind, [2], [b"a", b"\xff"])
    else:
        tensor = helper.make_tensor("w", kind, [2, 2], np.array([0, 1, 1, 0]))
    graph = helper.make_graph([], "g", [], [], [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    assert isinstance(read_model(model.SerializeToString()), Model)
    assert outcome(lambda: graph_from_bytes(model.SerializeToString())) == outcome(lambda: graph_from_proto(model))


def test_another_opset_on_request():
    node = helper.make_node("Softmax", ["x"], ["y"])
    infos = [helper.make_tensor_value_info(name, 1, [2, 3, 4]) for name in "xy"]
    model = helper.make_model(helper.make_graph([node], "g", infos[:1], infos[1:]), ir_version=8)
    options = ImportOptions(opset_version=11)
    ours = ONNXImporter().load(model.SerializeToString(), options)
    assert str(ours) == str(ONNXImporter().load(model, options))
    assert len(ours.nodes) > 1


WITHOUT = """
    import sys
    import numpy as np
    import pyflame_rt as rt
    session = rt.InferenceSession(sys.argv[1])
    print(session.run(None, {"x": np.ones((2, 2), np.float32)})[0].tolist())
    found = [name for name in ("onnx", "google.protobuf") if name in sys.modules]
    assert not found, found
"""


def test_sessions_do_not_import_onnx(tmp_path):
    infos = [helper.make_tensor_value_info(name, 1, [2, 2]) for name in "xy"]
    weight = helper.make_tensor("w", 1, [2, 2], [1.0, 2.0, 3.0, 4.0])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", infos[:1], infos[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    command = [sys.executable, "-c", textwrap.dedent(WITHOUT), str(tmp_path / "m.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[[4.0, 6.0], [4.0, 6.0]]"
