"""Arrays over the wire and back."""

import base64
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pyflame_rt.graph import DType
from pyflame_rt.serving.errors import RequestError
from pyflame_rt.serving.tensors import (
    decode_base64,
    decode_list,
    decode_raw,
    encode_base64,
    encode_list,
    encode_raw,
    kind_of,
)
from tests.unit.serving.scene import ask, identity, serving

KINDS = [k for k in DType if k is not DType.String and k.bits >= 8]
CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@CALM
@given(st.sampled_from(KINDS), SHAPES, st.integers(0, 2**32), st.booleans())
def test_bytes_come_back(kind, shape, seed, turned):
    size = int(np.prod(shape)) * kind.itemsize
    data = np.random.default_rng(seed).integers(0, 2 if kind is DType.Bool else 256, size, np.uint8).tobytes()
    array = np.frombuffer(data, kind.numpy).reshape(shape)
    given_ = array.T if turned else array
    raw = bytes(encode_raw(given_))
    assert raw == given_.tobytes()
    back = decode_raw(raw, kind, given_.shape, "x")
    assert back.dtype == kind.numpy
    assert back.tobytes() == given_.tobytes()
    text = encode_base64(given_)
    assert text == base64.b64encode(given_.tobytes()).decode()
    assert decode_base64(text, kind, given_.shape, "x").tobytes() == given_.tobytes()


@CALM
@given(
    arrays.arrays(st.sampled_from([np.float32, np.float64, np.int8, np.int64, np.uint64, np.bool_]), SHAPES),
    st.booleans(),
)
def test_lists_come_back(array, flat):
    data, lost = encode_list(array, flat=flat)
    assert lost == (0 if array.dtype.kind != "f" else int((~np.isfinite(array)).sum()))
    if lost or array.ndim == 0:
        return
    back = decode_list(data, DType.of(array.dtype), array.shape, "x")
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@CALM
@given(st.lists(st.text(max_size=4), max_size=6))
def test_words_come_back(words):
    array = np.array([*words, None], dtype=object)[:-1]
    raw = encode_raw(array)
    assert decode_raw(raw, DType.String, array.shape, "x").tolist() == words
    for cut in range(len(raw)):
        with pytest.raises(RequestError):
            decode_raw(raw[:cut], DType.String, array.shape, "x")


@pytest.mark.parametrize(
    ("data", "kind"),
    [([1.5], DType.Int32), ([300], DType.Int8), ([-1], DType.UInt8), ([2**64], DType.UInt64), ([1], DType.Bool),
     ([True], DType.Float32), ([1e39], DType.Float32), ([70000], DType.Float16), ([None], DType.Float32),
     (["1"], DType.Int32), ([[1], 2], DType.Int32), ([1], DType.String), ([["a"], "b"], DType.String)],
)  # fmt: skip
def test_no_value_is_changed_in_silence(data, kind):
    with pytest.raises(RequestError):
        decode_list(data, kind, None, "x")


def test_true_and_false_are_one_byte():
    with pytest.raises(RequestError, match="0 or 1"):
        decode_raw(b"\x02", DType.Bool, (1,), "x")


def test_bytes_at_odd_places_are_read():
    data = memoryview(b"?" + np.arange(3, dtype=np.float64).tobytes())[1:]
    found = decode_raw(data, DType.Float64, (3,), "x")
    assert found.flags.aligned
    np.testing.assert_array_equal(found, [0, 1, 2])


@pytest.mark.parametrize(
    "name", ["\u00ffM,\u00d1", "2i4, f8", "{'a': 1}", "", "i4,i4", "(", "V8", "M8[s]", 3, None, ["FP32"]]
)
def test_names_of_no_element_type_are_refused(name):
    with pytest.raises(RequestError, match="no element type"):
        kind_of(name, "input 'x'")


@pytest.mark.parametrize("path", ["/v1/models/same/infer", "/v2/models/same/infer"])
def test_strings_that_are_no_text_have_no_form_in_json(path):
    """They come as bytes, and leave as bytes."""
    data = b"\x02\0\0\0\xff\xfe"
    given = {"name": "x", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(data)}}
    body = {"inputs": {"x": {"shape": [1], "dtype": "string", "data": base64.b64encode(data).decode()}}}
    with serving({"same": identity(DType.String)}) as server:
        head = json.dumps({"inputs": [given]}).encode()
        if path.startswith("/v2"):
            length = {"Inference-Header-Content-Length": str(len(head))}
            status, _, found = ask(server, "POST", path, head + data, length)
            assert (status, found["error_code"]) == (400, "InvalidRequest")
            head = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
            length = {"Inference-Header-Content-Length": str(len(head))}
            status, _, found = ask(server, "POST", path, head + data, length)
            assert status == 200
            assert found.endswith(data)
        else:
            status, _, found = ask(server, "POST", path, body)
            assert status == 200
            assert base64.b64decode(found["outputs"]["y"]["data"]) == data
