"""An ONNX model as a function on torch tensors, so that torch can be measured on the same model, eager and compiled.

Each node becomes a call of torch when the model is loaded; running is a walk over those calls. It knows the operators
of the models here and says so when it meets another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper

if TYPE_CHECKING:
    from pathlib import Path


class NoTwinError(Exception):
    """The model has an operator that is not written here."""


class Twin:
    """A model as calls of torch."""

    def __init__(self, path: Path) -> None:
        model = onnx.load(path)
        graph = model.graph
        arrays = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        self.constants = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        self.inputs = [i.name for i in graph.input if i.name not in arrays]
        self.outputs = [o.name for o in graph.output]
        self.steps = [self._step(node, arrays) for node in graph.node]

    def _step(self, node: onnx.NodeProto, arrays: dict[str, np.ndarray]) -> tuple[Any, list[str], list[str]]:
        make = _MAKERS.get(node.op_type)
        if make is None:
            raise NoTwinError(f"torch has no twin of {node.op_type} here")
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        known = [arrays.get(name) for name in node.input]
        return make(attributes, known, len(node.output)), list(node.input), list(node.output)

    def __call__(self, *feeds: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run it on tensors in the order of ``inputs``."""
        values: dict[str, Any] = {**self.constants, **dict(zip(self.inputs, feeds, strict=True)), "": None}
        for call, inputs, outputs in self.steps:
            result = call(*[values[name] for name in inputs])
            if len(outputs) == 1:
                values[outputs[0]] = result
            else:
                values.update(zip(outputs, result, strict=False))
        return tuple(values[name] for name in self.outputs)


def _plain(call: Any) -> Any:
    """An operator without attributes."""
    return lambda _attributes, _known, _count: call


def _ints(known: np.ndarray | None) -> list[int]:
    if known is None:
        raise NoTwinError("a shape or axis that is not constant")
    return [int(v) for v in np.ravel(known)]


def _conv(attributes: dict[str, Any], _known: Any, _count: int) -> Any:
    pads = list(attributes.get("pads", [0, 0, 0, 0]))
    stride, groups = list(attributes.get("strides", [1, 1])), int(attributes.get("group", 1))
    assert pads[:2] == pads[2:]
    return lambda x, w, b=None: F.conv2d(x, w, b, stride, pads[:2], 1, groups)


def _pool(attributes: dict[str, Any], _known: Any, _count: int) -> Any:
    size, stride, pads = (list(attributes[name]) for name in ("kernel_shape", "strides", "pads"))
    return lambda x: F.max_pool2d(x, size, stride, pads[:2])


def _gemm(attributes: dict[str, Any], _known: Any, _count: int) -> Any:
    if attributes.get("transB"):
        return lambda a, b, c=None: F.linear(a, b, c)
    return lambda a, b, c=None: a @ b if c is None else torch.addmm(c, a, b)


def _norm(attributes: dict[str, Any], _known: Any, _count: int) -> Any:
    epsilon = float(attributes.get("epsilon", 1e-5))
    return lambda x, w, b: F.layer_norm(x, w.shape, w, b, epsilon)


def _instance(attributes: dict[str, Any], _known: Any, _count: int) -> Any:
    epsilon = float(attributes.get("epsilon", 1e-5))
    return lambda x, w, b: F.instance_norm(x, weight=w, bias=b, eps=epsilon)


def _reshape(_attributes: dict[str, Any], known: Any, _count: int) -> Any:
    if known[1] is None:
        return lambda x, shape: x.reshape(shape if isinstance(shape, torch.Size) else [int(s) for s in shape])
    sizes = _ints(known[1])
    return lambda x, _: x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(sizes)])


def _slice(_attributes: dict[str, Any], known: Any, _count: int) -> Any:
    (axis,), (start,) = _ints(known[3]), _ints(known[1])
    return lambda x, _start, end, *_: x.narrow(axis, start, int(end) - start)


def _split(attributes: dict[str, Any], _known: Any, count: int) -> Any:
    axis = int(attributes.get("axis", 0))
    return lambda x: x.chunk(count, axis)


def _gather(attributes: dict[str, Any], known: Any, _count: int) -> Any:
    axis = int(attributes.get("axis", 0))
    if known[1] is not None and known[1].ndim == 0:
        at = int(known[1])
        return lambda x, _: torch.tensor(x[at]) if isinstance(x, torch.Size) else x.select(axis, at)
    return lambda x, i: F.embedding(i, x) if axis == 0 and x.dim() == 2 else x.index_select(axis, i)


def _axes(call: Any) -> Any:
    def make(_attributes: dict[str, Any], known: Any, _count: int) -> Any:
        axes = _ints(known[1])
        return lambda x, _: call(x, axes)

    return make


def _unsqueeze(x: torch.Tensor, axes: list[int]) -> torch.Tensor:
    for axis in sorted(axes):
        x = x.unsqueeze(axis)
    return x


def _mean(attributes: dict[str, Any], known: Any, _count: int) -> Any:
    axes, keep = _ints(known[1]), bool(attributes.get("keepdims", 1))
    return lambda x, _: x.mean(axes, keep)


def _resize(_attributes: dict[str, Any], known: Any, _count: int) -> Any:
    factor = float(known[2][-1])
    return lambda x, *_: F.interpolate(x, scale_factor=factor, mode="nearest")


def _gelu(attributes: dict[str, Any], _known: Any, _count: int) -> Any:
    how = attributes.get("approximate", b"none").decode()
    return lambda x: F.gelu(x, approximate=how)


def _cast(attributes: dict[str, Any], _known: Any, _count: int) -> Any:
    kind = torch.float32 if attributes["to"] == onnx.TensorProto.FLOAT else torch.int64
    return lambda x: x.to(kind)


def _clip(_attributes: dict[str, Any], known: Any, _count: int) -> Any:
    low, high = (None if k is None else float(k) for k in (*known[1:], None, None)[:2])
    return lambda x, *_: x.clamp(low, high)


def _lstm(attributes: dict[str, Any], known: Any, _count: int) -> Any:
    """Gates are ordered i, o, f, c in ONNX and i, f, c, o in torch."""
    hidden, (w, r, bias) = int(attributes["hidden_size"]), known[1:4]
    ways = w.shape[0]
    layer = torch.nn.LSTM(w.shape[2], hidden, bidirectional=ways == 2)

    def ordered(array: np.ndarray) -> torch.Tensor:
        i, o, f, c = np.split(array, 4)
        return torch.from_numpy(np.concatenate([i, f, c, o]))

    with torch.no_grad():
        for k, suffix in enumerate(["", "_reverse"][:ways]):
            halves = np.split(bias[k], 2)
            parts = {"weight_ih": w[k], "weight_hh": r[k], "bias_ih": halves[0], "bias_hh": halves[1]}
            for name, array in parts.items():
                getattr(layer, f"{name}_l0{suffix}").copy_(ordered(array))
    layer.requires_grad_(False)

    def run(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        y, _ = layer(x)
        return y.reshape(*y.shape[:2], ways, hidden).permute(0, 2, 1, 3)

    return run


_MAKERS: dict[str, Any] = {
    "Add": _plain(torch.add),
    "Cast": _cast,
    "Clip": _clip,
    "Concat": lambda a, _k, _n: lambda *xs: torch.cat(xs, int(a["axis"])),
    "Conv": _conv,
    "Cos": _plain(torch.cos),
    "Div": _plain(torch.div),
    "Erf": _plain(torch.erf),
    "Expand": lambda _a, k, _n: lambda x, _: x.expand(_ints(k[1])),
    "Flatten": _plain(lambda x: x.flatten(1)),
    "Gather": _gather,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": _plain(lambda x: F.adaptive_avg_pool2d(x, 1)),
    "HardSigmoid": _plain(F.hardsigmoid),
    "HardSwish": _plain(F.hardswish),
    "Identity": _plain(lambda x: x),
    "InstanceNormalization": _instance,
    "LSTM": _lstm,
    "LayerNormalization": _norm,
    "MatMul": _plain(torch.matmul),
    "MaxPool": _pool,
    "Mul": _plain(torch.mul),
    "Pow": _plain(torch.pow),
    "Reciprocal": _plain(torch.reciprocal),
    "ReduceMean": _mean,
    "Relu": _plain(torch.relu),
    "Reshape": _reshape,
    "Resize": _resize,
    "Shape": _plain(lambda x: x.shape),
    "Sigmoid": _plain(torch.sigmoid),
    "Sin": _plain(torch.sin),
    "Slice": _slice,
    "Softmax": lambda a, _k, _n: lambda x: x.softmax(int(a.get("axis", -1))),
    "Split": _split,
    "Sqrt": _plain(torch.sqrt),
    "Squeeze": _axes(lambda x, axes: x.squeeze(axes)),
    "Sub": _plain(torch.sub),
    "Tanh": _plain(torch.tanh),
    "Transpose": lambda a, _k, _n: lambda x: x.permute(list(a["perm"])),
    "Unsqueeze": _axes(_unsqueeze),
}
