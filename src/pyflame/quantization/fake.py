"""Fake quantization: values rounded to the steps of an integer type, with straight-through gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.autograd.modes import no_grad
from pyflame.dtypes import DType
from pyflame.extend.function import AutogradFunction
from pyflame.nn.module import Module
from pyflame.ops import arithmetic as ar
from pyflame.ops import pointwise as pw
from pyflame.ops import reduction as red
from pyflame.ops.core import call
from pyflame.ops.creation import full, zeros
from pyflame_rt.ops.onnx.quantize import DequantizeLinear, QuantizeLinear

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["FakeQuantize", "fake_quantize", "weight_scale"]

LOW, HIGH = -128, 127


class _Rounded(AutogradFunction):
    """Steps and back; gradients pass where the value lies within the range (Bengio et al., 2013)."""

    @staticmethod
    def forward(ctx: Any, x: Any, scale: Any, zero: Any, axis: int) -> Any:
        ctx.save_for_backward(x, scale, zero)
        ctx.axis = axis
        steps = call(QuantizeLinear, x, scale, zero, axis=axis)
        return call(DequantizeLinear, steps, scale, zero, axis=axis)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        x, scale, zero = ctx.saved_tensors
        shift = zero.to(x.dtype)
        if len(scale.shape):
            form = [-1 if i == ctx.axis else 1 for i in range(len(x.shape))]
            scale, shift = scale.reshape(form), shift.reshape(form)
        place = x / scale + shift
        inside = ar.logical_and(ar.ge(place, LOW - 0.5), ar.le(place, HIGH + 0.5))
        return grad_outputs[0] * inside, None, None, None


def fake_quantize(x: Any, scale: Any, zero_point: Any, axis: int = 1) -> Tensor:
    """``x`` rounded to int8 steps and back, exactly as QuantizeLinear and DequantizeLinear do it.

    The gradient is that of ``x`` where it lies within the range of the integers, and nothing beyond.

    Args:
        x: a float tensor.
        scale: one number, or one for each index of ``axis``.
        zero_point: the integer that stands for zero, int8, as many.
        axis: the axis of the scales.

    Example:
        >>> import pyflame as pf
        >>> x = pf.tensor([0.12, -0.3, 99.0], requires_grad=True)
        >>> y = fake_quantize(x, pf.tensor(0.1), pf.tensor(0, dtype=pf.int8))
        >>> y.sum().backward()
        >>> [round(v, 3) for v in y.numpy().tolist()], x.grad.numpy().tolist()
        ([0.1, -0.3, 12.7], [1.0, 1.0, 0.0])
    """
    return _Rounded.apply(x, scale, zero_point, axis)


def weight_scale(weight: Any, axis: int) -> tuple[Tensor, Tensor]:
    """Scales and zero points of a weight, symmetric, one for each index of an axis; no gradient goes to them."""
    with no_grad():
        others = [i for i in range(len(weight.shape)) if i != axis]
        reach = red.amax(ar.abs(weight.detach()), dim=others)
        scale = ar.where(ar.gt(reach, 0), reach / HIGH, ar.mul(reach, 0) + 1)
        return scale, zeros([int(weight.shape[axis])], dtype=DType.int8)


class FakeQuantize(Module):
    """Rounds data to int8 steps by a running range, which moves on in training.

    Args:
        momentum: share of a batch in the running least and greatest values.

    Example:
        >>> import pyflame as pf
        >>> layer = FakeQuantize()
        >>> _ = layer(pf.tensor([-1.0, 3.0]))
        >>> layer.low.item(), layer.high.item()
        (-1.0, 3.0)
    """

    def __init__(self, momentum: float = 0.1) -> None:
        super().__init__()
        if not 0 < momentum <= 1:
            raise ValueError(f"momentum must be above 0 and at most 1. Received: {momentum!r}")
        self.momentum = momentum
        for name in ("low", "high", "seen"):
            self.register_buffer(name, full([], 0.0))

    def forward(self, input: Any) -> Tensor:
        """The rounded data."""
        if self.training:
            self._observe(input)
        return fake_quantize(input, *self.parameters_of_range())

    def _observe(self, x: Any) -> None:
        """The first batch sets the range, later ones move it."""
        with no_grad():
            data = x.detach()
            share = ar.where(ar.gt(self.seen, 0), ar.mul(self.seen, 0) + self.momentum, ar.mul(self.seen, 0) + 1)
            for name, value in (("low", red.amin(data)), ("high", red.amax(data))):
                running = getattr(self, name)
                running._renew(running * (1 - share) + value.to(running.dtype) * share)
            self.seen._renew(ar.mul(self.seen, 0) + 1)

    def parameters_of_range(self) -> tuple[Tensor, Tensor]:
        """Scale and zero point for the range so far, which always holds zero."""
        with no_grad():
            low, high = ar.clamp(self.low, max=0), ar.clamp(self.high, min=0)
            span = high - low
            scale = ar.where(ar.gt(span, 0), span / (HIGH - LOW), ar.mul(span, 0) + 1)
            zero = ar.clamp(pw.round(ar.sub(LOW, low / scale)), LOW, HIGH)
            return scale, zero.to(DType.int8)

    def extra_repr(self) -> str:
        """The momentum."""
        return f"momentum={self.momentum}"
