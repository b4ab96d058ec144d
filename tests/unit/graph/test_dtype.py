import ml_dtypes
import numpy as np
import pytest

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import DTypeMismatchError

DOCUMENTED = {
    "Float32": (0, 4), "Float16": (1, 2), "BFloat16": (2, 2), "Float64": (3, 8), "Int64": (4, 8),
    "Int32": (5, 4), "Int16": (6, 2), "Int8": (7, 1), "UInt8": (8, 1), "Bool": (9, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTED)
def test_documented_values_and_sizes(name):
    member = DType[name]
    assert (member.value, member.size) == DOCUMENTED[name]
    assert str(member) == f"DType.{name}"


@pytest.mark.parametrize("member", list(DType), ids=lambda m: m.name)
def test_round_trips(member):
    assert DType.of(member.numpy) is member
    assert DType.of(member.label) is member
    assert DType.from_onnx(member.onnx) is member
    assert getattr(DType, member.name.upper()) is member


def test_numbers_agree_with_onnx():
    onnx = pytest.importorskip("onnx")
    for member in DType:
        name = onnx.TensorProto.DataType.Name(member.onnx).lower()
        assert name in (member.label, {"float32": "float", "float64": "double"}.get(member.label))


@pytest.mark.parametrize("bad", [object(), "float7", np.dtype("datetime64[s]"), None])
def test_unknown_types_are_refused_by_name(bad):
    with pytest.raises(DTypeMismatchError, match="not supported"):
        DType.of(bad)


def test_byte_order_does_not_matter():
    assert DType.of(np.dtype(">f4")) is DType.Float32
    assert DType.of(ml_dtypes.bfloat16) is DType.BFloat16
