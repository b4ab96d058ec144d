"""Collects the nodes, weights and inputs of one model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from pathlib import Path

OPSET = 20
TYPES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int64): TensorProto.INT64}


class Builder:
    """One model under construction; values are names."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rng = np.random.default_rng(1234)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.feeds: dict[str, np.ndarray] = {}
        self.infos: list[onnx.ValueInfoProto] = []
        self.outputs: list[str] = []
        self.kept: dict[bytes, str] = {}

    # ------------------------------------------------------------------ values

    def input(self, name: str, array: np.ndarray, shape: list[int | str] | None = None) -> str:
        """An input with the array to feed; names in the shape are sizes that may change."""
        self.feeds[name] = array
        self.infos.append(helper.make_tensor_value_info(name, TYPES[array.dtype], shape or list(array.shape)))
        return name

    def normal(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        """Random numbers."""
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def weight(self, *shape: int, fan: int | None = None, gain: float = 1.0) -> str:
        """A random weight that keeps the size of what it is multiplied with."""
        inner = int(np.prod(shape[1:])) if fan is None else fan
        return self.constant(self.normal(*shape, scale=gain * max(inner, 1) ** -0.5))

    def constant(self, value: object, dtype: type = np.float32) -> str:
        """A constant; small ones that are equal are kept once."""
        array = np.asarray(value, None if isinstance(value, np.ndarray) else dtype)
        key = array.tobytes() + str((array.dtype, array.shape)).encode() if array.size < 64 else b""
        if key and key in self.kept:
            return self.kept[key]
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        if key:
            self.kept[key] = name
        return name

    def ints(self, *values: int) -> str:
        """A constant list of int64."""
        return self.constant(list(values), np.int64)

    def output(self, value: str, name: str) -> None:
        """Hand a value out."""
        self.nodes.append(helper.make_node("Identity", [value], [name]))
        self.outputs.append(name)

    # ------------------------------------------------------------------ nodes

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        """A node with one output."""
        return self.split(op, 1, *inputs, **attributes)[0]

    def split(self, op: str, count: int, *inputs: str, **attributes: object) -> list[str]:
        """A node with several outputs."""
        outputs = [f"v{len(self.nodes)}_{k}" for k in range(count)]
        self.nodes.append(helper.make_node(op, list(inputs), outputs, f"n{len(self.nodes)}_{op}", **attributes))
        return outputs

    def conv(
        self, x: str, channels: int, filters: int, size: int, *, stride: int = 1, groups: int = 1, gain: float = 1.4
    ) -> str:
        """A convolution with a bias, as normalisation leaves it when it is folded in."""
        weight = self.weight(filters, channels // groups, size, size, gain=gain)
        bias = self.constant(self.normal(filters, scale=0.05))
        pads = [(size - 1) // 2] * 4
        return self.node(
            "Conv", x, weight, bias, kernel_shape=[size] * 2, strides=[stride] * 2, pads=pads, group=groups
        )

    def dense(self, x: str, inner: int, outer: int, *, bias: bool = True, gain: float = 1.0) -> str:
        """A product with weights, and a bias."""
        y = self.node("MatMul", x, self.weight(inner, outer, fan=inner, gain=gain))
        return self.node("Add", y, self.constant(self.normal(outer, scale=0.02))) if bias else y

    def layer_norm(self, x: str, width: int, epsilon: float = 1e-5) -> str:
        """Layer normalisation over the last axis."""
        scale, shift = 1 + self.normal(width, scale=0.1), self.normal(width, scale=0.05)
        return self.node("LayerNormalization", x, self.constant(scale), self.constant(shift), epsilon=epsilon)

    def silu(self, x: str) -> str:
        """A value times its sigmoid."""
        return self.node("Mul", x, self.node("Sigmoid", x))

    # ------------------------------------------------------------------ files

    def model(self) -> onnx.ModelProto:
        """The finished model."""
        outs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in self.outputs]
        graph = helper.make_graph(self.nodes, self.name, self.infos, outs, self.weights)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)

    def save(self, folder: Path) -> Path:
        """Write the model, and its inputs beside it."""
        path = folder / f"{self.name}.onnx"
        onnx.save(self.model(), path)
        np.savez(path.with_suffix(".npz"), **{f"in/{name}": array for name, array in self.feeds.items()})
        return path
