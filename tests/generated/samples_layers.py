"""Inputs of layers: convolutions, pools, normalisations, recurrences, attention, images."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.generated.draw import F32, I8, I32, I64, U8, Draw, S, Sample, sample

__all__: list[str] = []


def _window(r: Draw, rank: int) -> dict[str, Any]:
    kernel = [r.k(1, 3) for _ in range(rank)]
    return {
        "kernel_shape": kernel,
        "strides": [r.k(1, 2) for _ in range(rank)],
        "pads": [r.k(0, k // 2) for k in kernel] * 2,
    }


def _image(r: Draw, rank: int, channels: int, dtype: Any = F32) -> np.ndarray:
    shape = (r.n(1, 3), channels, *(r.n(4, 8) for _ in range(rank)))
    return r.f(*shape) if dtype is F32 else r.i(0, 20, *shape, dtype=dtype)


@sample("Conv")
def conv(r: Draw) -> Sample:
    rank, group = r.k(1, 3), r.k(1, 2)
    c, m = group * r.k(1, 3), group * r.k(1, 3)
    a = _window(r, rank)
    a["dilations"] = [r.k(1, 2) for _ in range(rank)]
    bias = r.f(m) if r.chance() else None
    return S(_image(r, rank, c), r.f(m, c // group, *a["kernel_shape"]), bias, group=group, **a)


@sample("FusedConv", domain="com.microsoft")
def fused_conv(r: Draw) -> Sample:
    made = conv(r)
    made.attributes["activation"] = "Relu"
    return made


@sample("ConvTranspose")
def conv_transpose(r: Draw) -> Sample:
    rank = r.k(1, 2)
    c, m = r.k(1, 3), r.k(1, 3)
    a = _window(r, rank)
    return S(_image(r, rank, c), r.f(c, m, *a["kernel_shape"]), r.f(m) if r.chance() else None, **a)


@sample("ConvInteger")
def conv_integer(r: Draw) -> Sample:
    c, m, a = r.k(1, 2), r.k(1, 3), _window(r, 2)
    return S(_image(r, 2, c, U8), r.i(0, 20, m, c, *a["kernel_shape"], dtype=U8), np.asarray(3, U8), **a)


@sample("QLinearConv")
def qlinear_conv(r: Draw) -> Sample:
    c, m, a = r.k(1, 2), r.k(1, 3), _window(r, 2)
    s, z = np.asarray(0.05, F32), np.asarray(7, U8)
    bias = r.i(-9, 9, m, dtype=I32) if r.chance() else None
    return S(_image(r, 2, c, U8), s, z, r.i(0, 20, m, c, *a["kernel_shape"], dtype=U8), s, z, s, z, bias, **a)


@sample("QLinearConv", domain="com.microsoft")
def qlinear_conv_ms(r: Draw) -> Sample:
    return qlinear_conv(r)


@sample("QLinearMatMul")
def qlinear_matmul(r: Draw) -> Sample:
    m, n, k = r.n(), r.n(), r.n()
    s, z = np.asarray(0.05, F32), np.asarray(7, U8)
    return S(r.u8(m, k), s, z, r.u8(k, n), s, z, np.asarray(1.5, F32), z)


@sample("DeformConv")
def deform_conv(r: Draw) -> Sample:
    n, h, w, c, m = r.n(1, 2), r.n(3, 5), r.n(3, 5), r.k(1, 2), r.k(1, 2)
    mask = r.pos(n, 4, h - 1, w - 1) if r.chance() else None
    return S(r.f(n, c, h, w), r.f(m, c, 2, 2), r.f(n, 8, h - 1, w - 1), r.f(m), mask, kernel_shape=[2, 2])


@sample("CausalConvWithState")
def causal_conv(r: Draw) -> Sample:
    n, c, t, k = r.n(), r.k(1, 3), r.n(), r.k(2, 3)
    return S(r.f(n, c, t), r.f(c, 1, k), r.f(c), r.f(n, c, k - 1), outs=2)


@sample("AveragePool")
def average_pool(r: Draw) -> Sample:
    rank = r.k(1, 3)
    return S(_image(r, rank, r.k(1, 3)), ceil_mode=r.k(0, 1), count_include_pad=r.k(0, 1), **_window(r, rank))


@sample("MaxPool")
def max_pool(r: Draw) -> Sample:
    rank = r.k(1, 3)
    return S(_image(r, rank, r.k(1, 3)), ceil_mode=r.k(0, 1), outs=r.k(1, 2), **_window(r, rank))


@sample("LpPool")
def lp_pool(r: Draw) -> Sample:
    rank = r.k(1, 2)
    return S(_image(r, rank, 2), p=r.k(1, 3), **_window(r, rank))


@sample("MaxPoolIndices", "MaxPoolValues", domain="pyflame")
def max_pool_parts(r: Draw) -> Sample:
    return S(_image(r, 2, 2), **_window(r, 2))


@sample("ReduceWindow", domain="pyflame")
def reduce_window(r: Draw) -> Sample:
    return S(
        _image(r, 2, 2), window=[1, 1, 2, 2], strides=[1, 1, 1, 2], dilations=[1, 1, 1, 1], pads=[0] * 8,
        kind=r.pick(["sum", "max"]),
    )  # fmt: skip


@sample("NhwcMaxPool", domain="com.microsoft")
def nhwc_max_pool(r: Draw) -> Sample:
    return S(r.u8(r.n(), r.n(3, 6), r.n(3, 6), r.n()), kernel_shape=[2, 2])


@sample("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(r: Draw) -> Sample:
    return S(_image(r, r.k(1, 3), 2))


@sample("MaxRoiPool")
def max_roi_pool(r: Draw) -> Sample:
    x = _image(r, 2, 2)
    rois = np.stack([np.array([r.n(0, x.shape[0] - 1), 0, 1, 3, 3], F32) for _ in range(r.n())])
    return S(x, rois, pooled_shape=[2, 2])


@sample("RoiAlign")
def roi_align(r: Draw) -> Sample:
    x, count = _image(r, 2, 2), r.n()
    rois = np.sort(r.pos(count, 2, 2) * 3, axis=1).reshape(count, 4)
    return S(x, rois, r.i(0, x.shape[0], count), output_height=2, output_width=2, sampling_ratio=r.k(0, 2))


@sample("MaxUnpool")
def max_unpool(r: Draw) -> Sample:
    n, c, h, w = r.n(), r.n(), r.n(), r.n()
    places = np.arange(n * c * 4 * h * w).reshape(n, c, 2 * h, 2 * w)[:, :, ::2, ::2]
    return S(r.f(n, c, h, w), np.ascontiguousarray(places, I64), kernel_shape=[2, 2], strides=[2, 2])


@sample("Col2Im")
def col2im(r: Draw) -> Sample:
    n, c, h, w = r.n(), r.n(), r.n(2, 5), r.n(2, 5)
    return S(r.f(n, 4 * c, (h - 1) * (w - 1)), np.array([h, w], I64), np.array([2, 2], I64))


@sample("GridSample")
def grid_sample(r: Draw) -> Sample:
    x = _image(r, 2, 2)
    return S(
        x, r.f(x.shape[0], r.n(), r.n(), 2), align_corners=r.k(0, 1), mode=r.pick(["linear", "nearest", "cubic"]),
        padding_mode=r.pick(["zeros", "border", "reflection"]),
    )  # fmt: skip


@sample("Resize")
def resize(r: Draw) -> Sample:
    x = _image(r, 2, 2)
    mode = r.pick(["nearest", "linear", "cubic"])
    transform = r.pick(["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
    if r.chance():
        return S(
            x, None, np.array([1, 1, r.n(2, 6) / 4, r.n(2, 6) / 3], F32), mode=mode,
            coordinate_transformation_mode=transform,
        )  # fmt: skip
    sizes = np.array([*x.shape[:2], r.n(1, 9), r.n(1, 9)], I64)
    return S(x, None, None, sizes, mode=mode, coordinate_transformation_mode=transform)


@sample("Upsample")
def upsample(r: Draw) -> Sample:
    return S(_image(r, 2, 2), np.array([1, 1, 2, 1.5], F32), mode=r.pick(["nearest", "linear"]))


@sample("NonMaxSuppression")
def nms(r: Draw) -> Sample:
    n, b, c = r.n(1, 2), r.n(1, 6), r.n(1, 2)
    corner = r.pos(n, b, 2)
    boxes = np.concatenate([corner, corner + r.pos(n, b, 2)], -1)
    limits = np.array([3], I64), np.array([0.4], F32), np.array([0.1], F32)
    return S(boxes, r.pos(n, c, b) / 2, *limits)


# ---------------------------------------------------------------------- normalisation


@sample("BatchNormalization")
def batch_norm(r: Draw) -> Sample:
    x = r.f(*(n for n in (r.n(), r.n(), *r.dims(0, 2))))
    c = x.shape[1]
    return S(x, r.pos(c), r.f(c), r.f(c), r.pos(c))


@sample("BatchNormalized", domain="pyflame")
def batch_normalized(r: Draw) -> Sample:
    return batch_norm(r)


@sample("BatchStatistics", domain="pyflame")
def batch_statistics(r: Draw) -> Sample:
    return S(_image(r, 2, 2), outs=2)


@sample("BatchNormSums", domain="pyflame")
def batch_norm_sums(r: Draw) -> Sample:
    x = _image(r, 2, 2)
    return S(r.f(*x.shape), x, r.f(2), outs=2)


@sample("InstanceNormalization")
def instance_norm(r: Draw) -> Sample:
    x = _image(r, r.k(1, 2), r.k(1, 3))
    c = x.shape[1]
    return S(x, r.f(c), r.f(c))


@sample("GroupNormalization")
def group_norm(r: Draw) -> Sample:
    return S(_image(r, 2, 4), r.f(4), r.f(4), num_groups=2)


@sample("LayerNormalization")
def layer_norm(r: Draw) -> Sample:
    x = r.f(*r.dims(1, 3))
    axis = r.axis(x.ndim)
    return S(x, r.f(*x.shape[axis:]), r.f(*x.shape[axis:]) if r.chance() else None, axis=axis)


@sample("LayerNormalization", domain="com.microsoft")
def layer_norm_ms(r: Draw) -> Sample:
    return layer_norm(r)


@sample("RMSNormalization", "SimplifiedLayerNormalization")
def rms_norm(r: Draw) -> Sample:
    x = r.f(*r.dims(1, 3))
    return S(x, r.f(x.shape[-1]))


@sample("SimplifiedLayerNormalization", domain="com.microsoft")
def rms_norm_ms(r: Draw) -> Sample:
    return rms_norm(r)


@sample("LayerNormGrad", domain="pyflame")
def layer_norm_grad(r: Draw) -> Sample:
    shape = r.dims(1, 3)
    return S(r.f(*shape), r.f(*shape), r.f(shape[-1]), outs=3)


@sample("LRN")
def lrn(r: Draw) -> Sample:
    return S(_image(r, 2, r.k(1, 4)), size=3)


@sample("MeanVarianceNormalization")
def mvn(r: Draw) -> Sample:
    return S(_image(r, 2, 2))


# ---------------------------------------------------------------------- recurrences


def _recurrent(r: Draw, gates: int, **extra: Any) -> Sample:
    t, n, i, h = r.n(1, 5), r.n(), r.k(), r.k()
    direction = r.pick(["forward", "reverse", "bidirectional"])
    d = 2 if direction == "bidirectional" else 1
    inputs: list[Any] = [r.f(t, n, i), r.f(d, gates * h, i), r.f(d, gates * h, h)]
    inputs.append(r.f(d, 2 * gates * h) if r.chance() else None)
    inputs.append(r.i(0, t + 1, n, dtype=I32) if r.chance(0.4) else None)
    inputs.append(r.f(d, n, h) if r.chance() else None)
    if gates == 4:
        inputs.append(r.f(d, n, h) if r.chance() else None)
        inputs.append(r.f(d, 3 * h) if r.chance(0.3) else None)
    return S(*inputs, hidden_size=h, direction=direction, outs=3 if gates == 4 else 2, **extra)


@sample("LSTM")
def lstm(r: Draw) -> Sample:
    return _recurrent(r, 4)


@sample("GRU")
def gru(r: Draw) -> Sample:
    return _recurrent(r, 3, linear_before_reset=r.k(0, 1))


@sample("RNN")
def rnn(r: Draw) -> Sample:
    return _recurrent(r, 1)


def _steps(r: Draw) -> tuple[int, int, int]:
    return r.n(1, 4), r.n(), r.k()


@sample("LSTMSteps", domain="pyflame")
def lstm_steps(r: Draw) -> Sample:
    t, n, h = _steps(r)
    return S(r.f(t, n, 4 * h), r.f(1, 4 * h, h), r.f(1, n, h), r.f(1, n, h), outs=3)


@sample("RoundedLSTMSteps", domain="pyflame")
def rounded_lstm_steps(r: Draw) -> Sample:
    t, n, h = _steps(r)
    return S(
        r.f(t, n, 4 * h), r.i8(1, h, 4 * h), r.pos(1) / 100, np.zeros(1, I8), r.unit(1, n, h), r.f(1, n, h), outs=3
    )


@sample("BlockRounded", domain="pyflame")
def block_rounded(r: Draw) -> Sample:
    return S(r.f(r.n(), r.k(1, 40)), block_size=16)


@sample("LSTMStepsGrad", domain="pyflame")
def lstm_steps_grad(r: Draw) -> Sample:
    t, n, h = _steps(r)
    return S(
        r.f(1, 4 * h, h), r.f(1, n, h), r.pos(t, n, 4 * h) / 2, r.f(t, n, h), r.f(t, n, h), r.f(1, n, h), r.f(1, n, h),
        outs=3,
    )  # fmt: skip


@sample("GRUSteps", domain="pyflame")
def gru_steps(r: Draw) -> Sample:
    t, n, h = _steps(r)
    return S(r.f(t, n, 3 * h), r.f(1, 3 * h, h), r.f(1, h), r.f(1, n, h), outs=2)


@sample("GRUResetSteps", domain="pyflame")
def gru_reset_steps(r: Draw) -> Sample:
    t, n, h = _steps(r)
    return S(r.f(t, n, 3 * h), r.f(1, 3 * h, h), r.f(1, n, h), outs=2)


@sample("ChipTransfer", domain="pyflame")
def chip_transfer(r: Draw) -> Sample:
    return S(r.f(*_steps(r)), source=0, target=1)


@sample("GRUStepsGrad", domain="pyflame")
def gru_steps_grad(r: Draw) -> Sample:
    t, n, h = _steps(r)
    return S(r.f(1, 3 * h, h), r.f(1, n, h), r.f(t, n, h), r.pos(t, n, 4 * h) / 2, r.f(t, n, h), r.f(1, n, h), outs=3)


@sample("RNNSteps", domain="pyflame")
def rnn_steps(r: Draw) -> Sample:
    t, n, h = _steps(r)
    return S(r.f(t, n, h), r.f(1, h, h), r.f(1, n, h), outs=2)


@sample("RNNStepsGrad", domain="pyflame")
def rnn_steps_grad(r: Draw) -> Sample:
    t, n, h = _steps(r)
    return S(r.f(1, h, h), r.f(t, n, h), r.f(t, n, h), r.f(1, n, h), outs=2)


# ---------------------------------------------------------------------- attention


@sample("Attention")
def attention(r: Draw) -> Sample:
    n, h, q, k, d = r.n(1, 2), r.k(1, 2), r.n(), r.n(), 2 * r.k(1, 2)
    mask = r.f(q, k) if r.chance() else None
    return S(r.f(n, h, q, d), r.f(n, h, k, d), r.f(n, h, k, d), mask, is_causal=r.k(0, 1))


@sample("FlexAttention", domain="ai.onnx.preview")
def flex_attention(r: Draw) -> Sample:
    n, h, q, k, d = r.n(1, 2), r.k(1, 2), r.n(), r.n(), 2 * r.k(1, 2)
    return S(r.f(n, h, q, d), r.f(n, h, k, d), r.f(n, h, k, d))


@sample("LinearAttention")
def linear_attention(r: Draw) -> Sample:
    n, t, h, d = r.n(1, 2), r.n(), 2, 2
    shape = (n, t, h * d)
    return S(
        r.f(*shape), r.f(*shape), r.f(*shape), r.f(n, h, d, d), -r.pos(n, t, h), r.pos(n, t, h) / 2,
        q_num_heads=h, kv_num_heads=h, outs=2,
    )  # fmt: skip


@sample("RotaryEmbedding")
def rotary(r: Draw) -> Sample:
    n, h, t, d, most = r.n(), r.k(1, 2), r.n(), 4, 8
    places = r.i(0, most, n, t)
    return S(r.f(n, h, t, d), r.f(most, d // 2), r.f(most, d // 2), places, interleaved=r.k(0, 1))


@sample("HeadsAttention", domain="pyflame")
def heads_attention(r: Draw) -> Sample:
    n, t, h, d = r.n(1, 2), r.n(), r.k(1, 2), 4
    shape = (n, h, t, d)
    return S(r.f(*shape), r.f(*shape), r.f(*shape), scale=0.5, causal=r.k(0, 1))


@sample("HeadsAttentionGrad", domain="pyflame")
def heads_attention_grad(r: Draw) -> Sample:
    made = heads_attention(r)
    return S(r.f(*made.inputs[0].shape), *made.inputs, outs=3, **made.attributes)
