import os

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyflame_rt.format import dumps_model, load_model, loads_model, save_model
from pyflame_rt.graph import DType, Graph, SequenceType, Shape, Tensor, TensorType
from pyflame_rt.graph.errors import InvalidModelError, ModelNotFoundError, PyFlameRTError, UnsupportedFormatError


def plain_model():
    graph = Graph("plain")
    graph.add_input("x", [None, 3], DType.Float32)
    graph.add_initializer("w", np.arange(12, dtype=np.float32).reshape(3, 4))
    graph.add_node("m", "MatMul", ["x", "w"], ["h"])
    graph.add_node("a", "LeakyRelu", ["h"], ["y"], {"alpha": 0.5, "k": 3, "s": "text", "l": [1, 2], "f": [0.5, 1.5]})
    graph.add_output("y", [None, 4], DType.Float32)
    return graph


def rich_model():
    graph = plain_model()
    graph.opsets, graph.metadata, graph.doc = {"": 23, "my": 1}, {"producer_name": "t"}, "a model"
    graph.add_input("seq", None)
    graph.inputs[-1] = type(graph.inputs[0])("seq", type=SequenceType(TensorType(DType.Int8, Shape(["N", None]))))
    body = Graph("body")
    body.add_initializer("k", np.ones(70, np.float64))
    body.add_node("i", "Identity", ["k"], ["o"])
    body.add_output("o", [70], DType.Float64)
    attrs = {"then_branch": body, "t": Tensor(np.array(["a", "ü"], dtype=object)), "ty": TensorType(DType.Bool, None)}
    graph.add_node("n", "Thing", ["x", ""], ["z"], {**attrs, "bodies": [body, body], "raw": b"\x00\xff"}, domain="my")
    for dtype in (ml_dtypes.int4, ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16, np.bool_, np.complex64, np.uint64):
        graph.add_initializer(f"c_{np.dtype(dtype).name}", np.array([0, 1, 1]).astype(dtype))
    graph.add_initializer("empty", np.zeros((0, 3), np.int16))
    graph.types["h"] = TensorType(DType.Float32, Shape(["N", 4]))
    return graph


@pytest.mark.parametrize("version", [1, 2])
def test_plain_models_come_back(version):
    graph = plain_model()
    again = loads_model(dumps_model(graph, version=version))
    assert again.fingerprint(weights=True) == graph.fingerprint(weights=True)
    assert [n.name for n in again.nodes] == ["m", "a"]
    assert again.name == "plain"


def test_everything_comes_back_in_version_2():
    graph = rich_model()
    again = loads_model(dumps_model(graph))
    assert str(again) == str(graph)
    assert again.fingerprint(weights=True) == graph.fingerprint(weights=True)
    assert (again.doc, again.opsets, again.metadata, again.types) == (
        graph.doc,
        graph.opsets,
        graph.metadata,
        graph.types,
    )


def test_version_1_bytes_are_the_documented_ones():
    data = dumps_model(plain_model(), version=1)
    assert data[:8] == b"PFM\0\x01\0\0\0"
    assert data[8:16] == (5).to_bytes(8, "little")
    assert data[16:21] == b"plain"
    assert data[21:29] == (1).to_bytes(8, "little")
    assert data[29:38] == (1).to_bytes(8, "little") + b"x"
    assert data[38:42] == (0).to_bytes(4, "little")
    assert data[50:58] == (-1).to_bytes(8, "little", signed=True)


def test_version_1_refuses_what_it_cannot_hold():
    graph = plain_model()
    graph.nodes[0].set_attr("t", Tensor(np.zeros(1)))
    with pytest.raises(UnsupportedFormatError, match="attribute 't'"):
        dumps_model(graph, version=1)
    graph = plain_model()
    graph.add_initializer("u", np.zeros(1, np.uint16))
    with pytest.raises(UnsupportedFormatError, match="uint16"):
        dumps_model(graph, version=1)
    graph = plain_model()
    graph.add_node("d", "Op", ["x"], ["q"], domain="my")
    with pytest.raises(UnsupportedFormatError, match="my::Op"):
        dumps_model(graph, version=1)


def test_weights_are_mapped_and_aligned(tmp_path):
    graph = plain_model()
    graph.add_initializer("big", np.random.default_rng(0).standard_normal((1000, 100)))
    save_model(graph, tmp_path / "m.pfm")
    again = load_model(tmp_path / "m.pfm")
    for tensor in again.initializers.values():
        assert not tensor.owns_data
        assert tensor.data_ptr() % 64 == 0
    np.testing.assert_array_equal(again.initializers["big"].raw(), graph.initializers["big"].raw())


def test_saving_is_all_or_nothing(tmp_path):
    path = tmp_path / "m.pfm"
    save_model(plain_model(), path)
    before = path.read_bytes()
    bad = plain_model()
    bad.nodes[0].set_attr("x", object())
    with pytest.raises(UnsupportedFormatError):
        save_model(bad, path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.pfm"]


def test_missing_and_empty_files(tmp_path):
    with pytest.raises(ModelNotFoundError):
        load_model(tmp_path / "no.pfm")
    with pytest.raises(FileNotFoundError):
        load_model(tmp_path / "no.pfm")
    (tmp_path / "empty.pfm").write_bytes(b"")
    with pytest.raises(InvalidModelError, match="empty"):
        load_model(tmp_path / "empty.pfm")


def test_damage_is_noticed_in_every_section():
    data = bytearray(dumps_model(rich_model()))
    for at in range(8, len(data), 11):
        changed = data.copy()
        changed[at] ^= 0x40
        with pytest.raises(InvalidModelError):
            loads_model(bytes(changed))


@pytest.mark.parametrize("version", [1, 2])
def test_every_truncation_is_refused(version):
    data = dumps_model(plain_model(), version=version)
    for length in range(len(data)):
        with pytest.raises(InvalidModelError):
            loads_model(data[:length])


def test_absurd_counts_cost_nothing():
    head = b"PFM\0\x01\0\0\0" + (1).to_bytes(8, "little") + b"g"
    with pytest.raises(InvalidModelError, match=r"cannot fit|at most"):
        loads_model(head + (2**63).to_bytes(8, "little"))


@settings(max_examples=200, deadline=None)
@given(st.integers(8, 10_000), st.binary(min_size=1, max_size=8))
def test_mutated_version_1_files_give_typed_errors(at, patch):
    data = bytearray(dumps_model(plain_model(), version=1))
    at %= len(data)
    data[at : at + len(patch)] = patch
    try:
        graph = loads_model(bytes(data))
    except PyFlameRTError:
        return
    # Version 1 has no checksum: what was read can be written and read again.
    again = loads_model(dumps_model(graph, version=2))
    assert [str(n) for n in again.nodes] == [str(n) for n in graph.nodes]
    contents = [{k: t.raw().tobytes() for k, t in g.initializers.items()} for g in (graph, again)]
    assert contents[0] == contents[1]
