"""Small ONNX models with seeded random weights, written with the onnx package alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OPSET = 17


class Builder:
    """Collects nodes and weights of one model."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rng = np.random.default_rng(1234)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """A random weight; returns its name."""
        fan = int(np.prod(shape[1:])) or 1
        data = self.rng.standard_normal(shape) * (fan**-0.5 if scale is None else scale)
        return self.constant(data.astype(np.float32))

    def constant(self, array: np.ndarray) -> str:
        """A constant; returns its name."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        """A node with one output; returns its name."""
        out = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [out], **attributes))
        return out

    def save(self, folder: Path, shape: list[int], output: str) -> Path:
        """Write the model and its input."""
        self.nodes.append(helper.make_node("Identity", [output], ["output"]))
        info = [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)]
        out = [helper.make_empty_tensor_value_info("output")]
        graph = helper.make_graph(self.nodes, self.name, info, out, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        onnx.save(onnx.shape_inference.infer_shapes(model), folder / f"{self.name}.onnx")
        np.savez(folder / f"{self.name}.npz", input=self.rng.standard_normal(shape).astype(np.float32))
        return folder / f"{self.name}.onnx"


def mlp(folder: Path) -> Path:
    """Two layers on one sample: what a call costs."""
    b = Builder("mlp_784_256_10")
    h = b.node("Relu", b.node("Gemm", "input", b.weight(256, 784), b.weight(256), transB=1))
    return b.save(folder, [1, 784], b.node("Gemm", h, b.weight(10, 256), b.weight(10), transB=1))


def convnet(folder: Path) -> Path:
    """Residual blocks of 3x3 convolutions at three resolutions."""
    b = Builder("resnet_small")
    x = b.node("Relu", b.node("Conv", "input", b.weight(64, 3, 7, 7), b.weight(64), strides=[2, 2], pads=[3, 3, 3, 3]))
    x, channels = b.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), 64
    for width in (64, 128, 256):
        stride = [1, 1] if width == channels else [2, 2]
        skip = x if width == channels else b.node("Conv", x, b.weight(width, channels, 1, 1), strides=stride)
        h = b.node("Conv", x, b.weight(width, channels, 3, 3), b.weight(width), strides=stride, pads=[1] * 4)
        h = b.node("Conv", b.node("Relu", h), b.weight(width, width, 3, 3), b.weight(width), pads=[1] * 4)
        x, channels = b.node("Relu", b.node("Add", h, skip)), width
    pooled = b.node("Flatten", b.node("GlobalAveragePool", x))
    return b.save(folder, [1, 3, 224, 224], b.node("Gemm", pooled, b.weight(1000, channels), transB=1))


def encoder(folder: Path) -> Path:
    """Four transformer layers of width 384 on 128 positions."""
    b, width, heads, length = Builder("encoder_4x384"), 384, 6, 128
    x = "input"
    split = b.constant(np.array([1, length, heads, width // heads], np.int64))
    join = b.constant(np.array([1, length, width], np.int64))
    scale = b.constant(np.float32((width // heads) ** -0.5))

    def dense(value: str, inner: int, outer: int) -> str:
        return b.node("Add", b.node("MatMul", value, b.weight(inner, outer, scale=inner**-0.5)), b.weight(outer))

    def head(value: str, perm: list[int]) -> str:
        return b.node("Transpose", b.node("Reshape", dense(value, width, width), split), perm=perm)

    def norm(value: str) -> str:
        return b.node("LayerNormalization", value, b.constant(np.ones(width, np.float32)), b.weight(width, scale=0.1))

    for _ in range(4):
        q, k, v = head(x, [0, 2, 1, 3]), head(x, [0, 2, 3, 1]), head(x, [0, 2, 1, 3])
        a = b.node("Softmax", b.node("Mul", b.node("MatMul", q, k), scale), axis=-1)
        a = b.node("Reshape", b.node("Transpose", b.node("MatMul", a, v), perm=[0, 2, 1, 3]), join)
        x = norm(b.node("Add", x, dense(a, width, width)))
        h = dense(x, width, 4 * width)
        h = b.node("Mul", h, b.node("Sigmoid", h))
        x = norm(b.node("Add", x, dense(h, 4 * width, width)))
    return b.save(folder, [1, length, width], x)


MODELS: dict[str, Callable[[Path], Path]] = {"mlp": mlp, "convnet": convnet, "encoder": encoder}
