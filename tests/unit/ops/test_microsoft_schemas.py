"""Signatures of com.microsoft operators are those ONNX Runtime declares."""

import numpy as np
import pytest

from pyflame_rt.ops import all_ops
from pyflame_rt.ops.core.signature import REQUIRED

# Standard operators that models also carry under this domain; ONNX Runtime declares them elsewhere.
ALIASES = {"LayerNormalization", "SimplifiedLayerNormalization"}
OPS = [op for op in all_ops() if op.domain == "com.microsoft" and op.name not in ALIASES]


@pytest.fixture(scope="module")
def schemas():
    pytest.importorskip("onnxruntime")
    from onnxruntime.capi import onnxruntime_pybind11_state as ort

    return {s.name: s for s in ort.get_all_operator_schema() if s.domain == "com.microsoft"}


def default_of(attribute):
    """The default ONNX Runtime declares; None where it declares none."""
    onnx = pytest.importorskip("onnx")
    proto = onnx.AttributeProto()
    proto.ParseFromString(attribute._default_value)
    value = onnx.helper.get_attribute_value(proto) if proto.type else None
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_signature(op, schemas):
    schema = schemas[op.name]
    assert [i.name for i in op.signature.inputs] == [i.name for i in schema.inputs]
    assert set(op.signature.attributes) == set(schema.attributes)
    for name, ours in op.signature.attributes.items():
        attribute = schema.attributes[name]
        assert (ours is REQUIRED) == attribute.required, name
        if ours is not REQUIRED:
            theirs = default_of(attribute)
            same = ours == theirs or (isinstance(theirs, float) and np.float32(ours) == np.float32(theirs))
            assert same, (name, ours, theirs)
