"""Operators com.microsoft had before their ONNX forms, against ONNX Runtime."""

import numpy as np
import pytest

from pyflame_rt.graph import Node
from pyflame_rt.graph.errors import InputError
from pyflame_rt.ops import evaluate
from tests.tolerances import within

rng = np.random.default_rng(3)
MS = "com.microsoft"


def f32(*shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "arrays", "attributes"),
    [
        ("Trilu", [f32(2, 4, 5)], {"upper": 0}),
        ("Trilu", [f32(4, 5), np.array(1)], {}),
        ("Pad", [f32(2, 3), np.array([1, 0, 0, 2]), np.array([5.0], np.float32)], {}),
        ("Pad", [f32(4, 4), np.array([1, 1, 1, 1])], {"mode": "reflect"}),
        ("GatherND", [f32(3, 4), np.array([[0, 1], [2, 3]])], {}),
        ("GatherND", [f32(3, 4), np.array([[0], [2]], np.int32)], {}),
        ("Range", [np.array(1.0, np.float32), np.array(5.0, np.float32), np.array(1.5, np.float32)], {}),
        ("Range", [np.array([2]), np.array([6])], {}),
        ("ExpandDims", [f32(2, 3), np.array(1, np.int32)], {}),
        ("ExpandDims", [f32(2, 3), np.array(-1, np.int32)], {}),
        ("CDist", [f32(3, 4), f32(5, 4)], {}),
        ("CDist", [f32(3, 4), f32(5, 4)], {"metric": "euclidean"}),
    ],
)
def test_like_onnxruntime(agrees_with_onnxruntime, name, arrays, attributes):
    agrees_with_onnxruntime(name, arrays, attributes)


def test_unique_keeps_the_order(agrees_with_onnxruntime):
    x = np.array([3, 1, 3, 2, 1, 1], np.float32)
    agrees_with_onnxruntime("Unique", [x], outputs=["y", "index", "counts"])


def test_is_all_finite():
    fine, bad = f32(3), np.array([1, np.inf], np.float32)

    def ask(*arrays, **attributes):
        return bool(evaluate(Node("n", "IsAllFinite", ["x"] * len(arrays), ["y"], attributes, MS), arrays)[0])

    with np.errstate(invalid="ignore"):
        assert ask(fine)
        assert not ask(fine, bad)
        assert ask(bad, isnan_only=1)
        assert not ask(bad, isinf_only=1)
        with pytest.raises(InputError, match="exclude"):
            ask(bad, isinf_only=1, isnan_only=1)


def test_complex_products():
    a, b = f32(3, 4, 2), f32(3, 4, 2)
    ca, cb = a[..., 0] + 1j * a[..., 1], b[..., 0] + 1j * b[..., 1]
    for name, exact in (("ComplexMul", ca * cb), ("ComplexMulConj", ca * cb.conj())):
        (y,) = evaluate(Node("n", name, ["a", "b"], ["y"], {}, MS), [a, b])
        np.testing.assert_allclose(y[..., 0] + 1j * y[..., 1], exact, **within("elements"))
