"""Quantization-aware training: layers that compute as their int8 forms will, and the graph that comes of them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from pyflame.exporting import evaluation_graph
from pyflame.nn import functional as F
from pyflame.nn.conv import Conv1d, Conv2d, Conv3d
from pyflame.nn.linear import Linear
from pyflame.nn.module import Module
from pyflame.ops.linalg import matmul
from pyflame.quantization.fake import FakeQuantize, fake_quantize, weight_scale
from pyflame_rt import opt
from pyflame_rt.graph.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyflame.tensors import Tensor
    from pyflame_rt.graph import Graph

__all__ = ["QATConv", "QATLinear", "convert", "prepare_qat"]


class QATLinear(Module):
    """A linear layer whose data and weights are rounded to int8 steps; one scale for each output.

    Example:
        >>> import pyflame as pf
        >>> layer = QATLinear(pf.nn.Linear(3, 2))
        >>> layer(pf.ones([5, 3])).shape
        [5, 2]
    """

    def __init__(self, layer: Linear, momentum: float = 0.1) -> None:
        super().__init__()
        self.layer = layer
        self.data = FakeQuantize(momentum)

    def forward(self, input: Any) -> Tensor:
        """The product of rounded data and weights."""
        weight = self.layer.weight.t()
        y = matmul(self.data(input), fake_quantize(weight, *weight_scale(weight, 1), 1))
        return y if self.layer.bias is None else y + self.layer.bias


class QATConv(Module):
    """A convolution whose data and weights are rounded to int8 steps; one scale for each output channel.

    Example:
        >>> import pyflame as pf
        >>> QATConv(pf.nn.Conv2d(3, 4, 3))(pf.ones([1, 3, 5, 5])).shape
        [1, 4, 3, 3]
    """

    def __init__(self, layer: Conv1d | Conv2d | Conv3d, momentum: float = 0.1) -> None:
        super().__init__()
        if layer.padding_mode != "zeros":
            raise InputError(f"padding_mode {layer.padding_mode!r} is not supported in QAT, only 'zeros'")
        self.layer = layer
        self.data = FakeQuantize(momentum)

    def forward(self, input: Any) -> Tensor:
        """The convolution of rounded data and weights."""
        layer = self.layer
        weight = fake_quantize(layer.weight, *weight_scale(layer.weight, 0), 0)
        convolve = (F.conv1d, F.conv2d, F.conv3d)[layer.rank - 1]
        return convolve(self.data(input), weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups)


_FORMS: dict[type, Any] = {Linear: QATLinear, Conv1d: QATConv, Conv2d: QATConv, Conv3d: QATConv}


def prepare_qat(model: Module, exclude: Iterable[str] = (), momentum: float = 0.1) -> Module:
    """A copy of a model whose linear layers and convolutions compute as their int8 forms will; train it as ever.

    Args:
        model: left as it is.
        exclude: dotted names of layers that stay in float32.
        momentum: share of a batch in the running ranges of data.

    Raises:
        InputError: nothing is there to quantize, or ``exclude`` names a layer that is not there.

    Example:
        >>> import pyflame as pf
        >>> prepare_qat(pf.nn.Sequential(pf.nn.Linear(3, 4), pf.nn.ReLU()))[0].__class__.__name__
        'QATLinear'
    """
    left = {exclude} if isinstance(exclude, str) else set(exclude)
    known = {name for name, _ in model.named_modules()}
    if unknown := sorted(left - known):
        raise InputError(f"exclude: the model has no layer {unknown[0]!r}. Layers: {', '.join(sorted(known - {''}))}")
    twin = copy.deepcopy(model)
    if type(twin) in _FORMS:
        return _FORMS[type(twin)](twin, momentum)
    count = 0
    for path, module in list(twin.named_modules()):
        for name, child in list(module._modules.items()):
            where = f"{path}.{name}" if path else name
            if type(child) in _FORMS and where not in left:
                module._modules[name] = _FORMS[type(child)](child, momentum)  # in its place in the order
                count += 1
    if not count:
        raise InputError("the model has no linear layer or convolution to train in int8")
    return twin


def convert(model: Module, *example: Any) -> Graph:
    """The int8 graph of a model that was trained with :func:`prepare_qat`: QDQ, for sessions and for export.

    Args:
        model: the trained model.
        example: arguments, for their shapes and element types.

    Raises:
        InputError: the model was not prepared, or a layer never saw data.

    Example:
        >>> import pyflame as pf
        >>> x = pf.randn([8, 3])
        >>> model = prepare_qat(pf.nn.Linear(3, 2))
        >>> _ = model(x)
        >>> sorted({node.op_type for node in convert(model, x).nodes})
        ['Add', 'DequantizeLinear', 'MatMul', 'QuantizeLinear']
    """
    layers = [(name, m) for name, m in model.named_modules() if isinstance(m, FakeQuantize)]
    if not layers:
        raise InputError("the model has no layer that was trained in int8: use prepare_qat first")
    for name, layer in layers:
        if not layer.seen.item():
            raise InputError(f"layer {name!r} never saw data in training: its range is not known")
    graph = evaluation_graph(model, example)
    opt.fold_constants(graph, opt.ConstantFoldingConfig(max_tensor_bytes=2**40))
    opt.eliminate_dead_code(graph)
    return graph
