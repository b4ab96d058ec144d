import mmap
import os
import subprocess
import sys
import textwrap
import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pyflame_rt.graph.errors import InvalidModelError
from pyflame_rt.importers.onnx_importer import graph_from_bytes, graph_from_file, graph_from_proto
from pyflame_rt.importers.onnx_scan import read_model


def weights_model(count=4, size=64):
    nodes, weights, last = [], [], "x"
    for i in range(count):
        # Names of different lengths move the data off its alignment.
        array = np.random.default_rng(i).standard_normal((size, size)).astype(np.float32)
        weights.append(numpy_helper.from_array(array, "w" * (i + 1)))
        nodes.append(helper.make_node("MatMul", [last, "w" * (i + 1)], [f"h{i}"]))
        last = f"h{i}"
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name in ("x", last)]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_weights_are_views_of_the_file_where_aligned(tmp_path):
    model = weights_model(8)
    onnx.save(model, tmp_path / "m.onnx")
    graph = graph_from_file(tmp_path / "m.onnx")
    arrays = [tensor.raw() for tensor in graph.initializers.values()]
    assert all(array.flags.aligned for array in arrays)
    views = [array for array in arrays if not array.flags.owndata]
    assert 1 <= len(views) < 8
    assert not any(view.flags.writeable for view in views)
    assert str(graph) == str(graph_from_proto(model))
    assert graph.fingerprint(weights=True) == graph_from_proto(model).fingerprint(weights=True)


def test_the_parsed_model_holds_no_weights(tmp_path):
    onnx.save(weights_model(), tmp_path / "m.onnx")
    views = [weight.raw_data for weight in read_model(tmp_path / "m.onnx").graph.initializer]
    assert len(views) == 4
    assert all(isinstance(view, memoryview) and isinstance(view.obj, mmap.mmap) for view in views)


def test_bytes_are_viewed_too():
    data = weights_model().SerializeToString()
    assert all(weight.raw_data.obj is data for weight in read_model(data).graph.initializer)
    assert graph_from_bytes(data).fingerprint(weights=True) == graph_from_proto(weights_model()).fingerprint(
        weights=True
    )


def test_small_types_and_strings_beside_large_data():
    model = weights_model(1)
    model.graph.initializer.append(helper.make_tensor("q", TensorProto.INT4, [3], [1, -2, 3]))
    model.graph.initializer.append(helper.make_tensor("p", TensorProto.INT4, [3], b"\x21\x03", raw=True))
    model.graph.initializer.append(helper.make_tensor("s", TensorProto.STRING, [1], [b"a"]))
    graph = graph_from_bytes(model.SerializeToString())
    assert graph.fingerprint(weights=True) == graph_from_proto(model).fingerprint(weights=True)
    assert graph.initializers["p"].raw().tolist() == [1, 2, 3]


def test_every_model_of_the_suite_reads_the_same():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tests.unit.exporters.roundtrip import cases, load_case

        for name in cases():
            model, _ = load_case(name)
            plain = graph_from_proto(model)
            scanned = graph_from_bytes(model.SerializeToString())
            assert str(scanned) == str(plain), name
            assert scanned.fingerprint(weights=True) == plain.fingerprint(weights=True), name


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 100,
        b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a graph of 2^64 bytes
        b"\x3a\x05\x2a\xff\xff\xff\x7f",  # an initializer longer than the graph
        b"\x3a" * 1000,
        b"\x80" * 1000,  # a varint that never ends
        b"\x3b\x3c" * 50,  # groups
    ],
)
def test_malformed_data_is_left_to_the_parser(data):
    with pytest.raises(InvalidModelError):
        graph_from_bytes(data)


def test_truncated_files_are_refused():
    data = weights_model(1, 8).SerializeToString()
    whole = graph_from_bytes(data)
    refused = 0
    for length in range(len(data)):
        try:
            part = graph_from_bytes(data[:length])
        except InvalidModelError:
            refused += 1
        else:  # cut between two fields of the model: what is there is read as it is
            assert [node.op_type for node in part.nodes] in ([], [node.op_type for node in whole.nodes])
    assert refused >= len(data) - 16  # a file may end after a field, of which the model has few


def test_unusual_but_valid_forms_fall_back():
    model = weights_model(1)
    data = model.SerializeToString()
    # Two parts of the graph field are merged by protobuf.
    more = onnx.ModelProto()
    more.graph.doc_string = "second"
    twice = graph_from_bytes(data + more.SerializeToString())
    assert (twice.doc, len(twice.nodes)) == ("second", 1)
    assert isinstance(read_model(data + more.SerializeToString()), onnx.ModelProto)


def test_raw_data_of_the_wrong_length_names_the_tensor():
    model = weights_model(1, 128)
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-3]
    with pytest.raises(InvalidModelError, match="tensor 'w'"):
        graph_from_bytes(model.SerializeToString())


MEASURE = """
    import sys
    from pyflame_rt.importers.onnx_importer import graph_from_file, graph_from_proto
    from pyflame_rt.ops.core.registry import find_op
    import onnx
    find_op("Relu")
    def peak():
        return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
    before = peak()
    graph = graph_from_file(sys.argv[1]) if sys.argv[2] == "ours" else onnx.load(sys.argv[1])
    print((peak() - before) // 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads /proc")
def test_a_200_megabyte_model_is_never_in_memory_twice(tmp_path):
    onnx.save(weights_model(50, 1024), tmp_path / "m.onnx")
    grown = {}
    for how in ("ours", "onnx"):
        command = [sys.executable, "-c", textwrap.dedent(MEASURE), str(tmp_path / "m.onnx"), how]
        grown[how] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert grown["ours"] < 210
    assert grown["ours"] < 0.6 * grown["onnx"]
