"""Models that look at images, and the smallest one of all."""

from __future__ import annotations

import numpy as np

from zoo.builder import Builder


def mlp(name: str = "mlp") -> Builder:
    """Two layers on one sample: what a call costs."""
    b = Builder(name)
    x = b.input("input", b.normal(1, 784))
    h = b.node("Relu", b.node("Gemm", x, b.weight(256, 784), b.constant(b.normal(256, scale=0.1)), transB=1))
    b.output(b.node("Gemm", h, b.weight(10, 256), b.constant(b.normal(10, scale=0.1)), transB=1), "output")
    return b


def _image(name: str, size: int) -> tuple[Builder, str]:
    b = Builder(name)
    return b, b.input("image", b.normal(1, 3, size, size))


def _classify(b: Builder, x: str, channels: int, classes: int = 1000) -> Builder:
    pooled = b.node("Flatten", b.node("GlobalAveragePool", x), axis=1)
    b.output(b.node("Gemm", pooled, b.weight(classes, channels), b.constant(b.normal(classes)), transB=1), "logits")
    return b


def resnet(name: str, blocks: tuple[int, ...], *, bottleneck: bool, size: int = 224, width: int = 64) -> Builder:
    """Residual networks: two 3x3 convolutions to a block, or 1x1, 3x3, 1x1."""
    b, x = _image(name, size)
    x = b.node("Relu", b.conv(x, 3, width, 7, stride=2))
    x = b.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels, grow = width, 4 if bottleneck else 1
    for stage, count in enumerate(blocks):
        inner = width * 2**stage
        for i in range(count):
            stride = 2 if stage and not i else 1
            skip = x
            if stride != 1 or channels != inner * grow:
                skip = b.conv(x, channels, inner * grow, 1, stride=stride, gain=1.0)
            if bottleneck:
                h = b.node("Relu", b.conv(x, channels, inner, 1))
                h = b.node("Relu", b.conv(h, inner, inner, 3, stride=stride))
                h = b.conv(h, inner, inner * grow, 1, gain=0.4)
            else:
                h = b.node("Relu", b.conv(x, channels, inner, 3, stride=stride))
                h = b.conv(h, inner, inner, 3, gain=0.4)
            x, channels = b.node("Relu", b.node("Add", h, skip)), inner * grow
    return _classify(b, x, channels)


def _clip6(b: Builder, x: str) -> str:
    return b.node("Clip", x, b.constant(0.0), b.constant(6.0))


def mobilenet_v2(name: str = "mobilenet_v2", size: int = 224, wide: float = 1.0) -> Builder:
    """Inverted residuals: widen, 3x3 in each channel, narrow."""
    b, x = _image(name, size)
    width = [max(8, int(c * wide)) for c in (32, 16, 24, 32, 64, 96, 160, 320, 1280)]
    x, channels = _clip6(b, b.conv(x, 3, width[0], 3, stride=2)), width[0]
    plan = ((1, 1, 1), (6, 2, 2), (6, 3, 2), (6, 4, 2), (6, 3, 1), (6, 3, 2), (6, 1, 1))
    for filters, (grow, count, first) in zip(width[1:8], plan, strict=True):
        for i in range(count):
            stride, inner = first if i == 0 else 1, channels * grow
            h = x if grow == 1 else _clip6(b, b.conv(x, channels, inner, 1))
            h = _clip6(b, b.conv(h, inner, inner, 3, stride=stride, groups=inner))
            h = b.conv(h, inner, filters, 1, gain=0.7)
            x = b.node("Add", x, h) if stride == 1 and channels == filters else h
            channels = filters
    return _classify(b, _clip6(b, b.conv(x, channels, width[8], 1)), width[8])


def _squeeze(b: Builder, x: str, channels: int, inner: int, *, hard: bool) -> str:
    """Weigh channels by what the whole image shows."""
    h = b.conv(b.node("GlobalAveragePool", x), channels, inner, 1)
    h = b.conv(b.node("Relu", h) if hard else b.silu(h), inner, channels, 1)
    gate = b.node("HardSigmoid", h, alpha=1 / 6, beta=0.5) if hard else b.node("Sigmoid", h)
    return b.node("Mul", x, gate)


_V3 = (  # kernel, inner, filters, squeeze, hard swish, stride
    (3, 16, 16, 0, 0, 1), (3, 64, 24, 0, 0, 2), (3, 72, 24, 0, 0, 1), (5, 72, 40, 1, 0, 2), (5, 120, 40, 1, 0, 1),
    (5, 120, 40, 1, 0, 1), (3, 240, 80, 0, 1, 2), (3, 200, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1),
    (3, 480, 112, 1, 1, 1), (3, 672, 112, 1, 1, 1), (5, 672, 160, 1, 1, 2), (5, 960, 160, 1, 1, 1),
    (5, 960, 160, 1, 1, 1),
)  # fmt: skip


def mobilenet_v3(name: str = "mobilenet_v3_large", size: int = 224) -> Builder:
    """Inverted residuals with squeezing and hard swishes."""
    b, x = _image(name, size)
    x, channels = b.node("HardSwish", b.conv(x, 3, 16, 3, stride=2)), 16
    for kernel, inner, filters, squeeze, hard, stride in _V3:
        act = "HardSwish" if hard else "Relu"
        h = x if inner == channels else b.node(act, b.conv(x, channels, inner, 1))
        h = b.node(act, b.conv(h, inner, inner, kernel, stride=stride, groups=inner))
        if squeeze:
            h = _squeeze(b, h, inner, max(8, inner // 4 // 8 * 8), hard=True)
        h = b.conv(h, inner, filters, 1, gain=0.7)
        x = b.node("Add", x, h) if stride == 1 and channels == filters else h
        channels = filters
    x = b.node("GlobalAveragePool", b.node("HardSwish", b.conv(x, channels, 960, 1)))
    h = b.node("Gemm", b.node("Flatten", x), b.weight(1280, 960), b.constant(b.normal(1280, scale=0.1)), transB=1)
    h = b.node("Gemm", b.node("HardSwish", h), b.weight(1000, 1280), b.constant(b.normal(1000, scale=0.1)), transB=1)
    b.output(h, "logits")
    return b


_B0 = (  # grow, kernel, stride, filters, count
    (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)  # fmt: skip


def efficientnet_b0(name: str = "efficientnet_b0", size: int = 224) -> Builder:
    """Inverted residuals with squeezing and swishes."""
    b, x = _image(name, size)
    x, channels = b.silu(b.conv(x, 3, 32, 3, stride=2)), 32
    for grow, kernel, first, filters, count in _B0:
        for i in range(count):
            stride, inner = first if i == 0 else 1, channels * grow
            h = x if grow == 1 else b.silu(b.conv(x, channels, inner, 1))
            h = b.silu(b.conv(h, inner, inner, kernel, stride=stride, groups=inner))
            h = b.conv(_squeeze(b, h, inner, max(4, channels // 4), hard=False), inner, filters, 1, gain=0.7)
            x = b.node("Add", x, h) if stride == 1 and channels == filters else h
            channels = filters
    return _classify(b, b.silu(b.conv(x, channels, 1280, 1)), 1280)


def convnext(
    name: str = "convnext_atto", size: int = 224, depths: tuple[int, ...] = (2, 2, 6, 2), width: int = 40
) -> Builder:
    """7x7 in each channel, then a wide layer on every pixel, channels last."""
    b, x = _image(name, size)

    def norm(value: str, channels: int) -> str:
        turned = b.layer_norm(b.node("Transpose", value, perm=[0, 2, 3, 1]), channels, 1e-6)
        return b.node("Transpose", turned, perm=[0, 3, 1, 2])

    def patches(value: str, before: int, after: int, side: int) -> str:
        weight, bias = b.weight(after, before, side, side), b.constant(b.normal(after, scale=0.1))
        return b.node("Conv", value, weight, bias, kernel_shape=[side] * 2, strides=[side] * 2)

    channels = width
    x = norm(patches(x, 3, width, 4), width)
    for stage, count in enumerate(depths):
        if stage:
            x, channels = patches(norm(x, channels), channels, width * 2**stage, 2), width * 2**stage
        for _ in range(count):
            h = b.node("Transpose", b.conv(x, channels, channels, 7, groups=channels), perm=[0, 2, 3, 1])
            h = b.dense(b.layer_norm(h, channels, 1e-6), channels, 4 * channels)
            h = b.dense(b.node("Gelu", h), 4 * channels, channels, gain=0.5)
            x = b.node("Add", x, b.node("Transpose", h, perm=[0, 3, 1, 2]))
    pooled = b.layer_norm(b.node("Flatten", b.node("GlobalAveragePool", x)), channels, 1e-6)
    b.output(b.node("Gemm", pooled, b.weight(1000, channels), b.constant(b.normal(1000)), transB=1), "logits")
    return b


def unet(name: str = "unet_small", size: int = 32, width: int = 64) -> Builder:
    """A denoiser: residual blocks with group normalisation, attention at the lowest resolution."""
    b, c = Builder(name), width
    x = b.input("x", b.normal(1, 3, size, size))
    t = b.input("t", np.array([500], np.int64))
    rates = np.exp(-np.log(1e4) * np.arange(c // 2) / (c // 2)).astype(np.float32)
    angles = b.node("Mul", b.node("Cast", b.node("Unsqueeze", t, b.ints(1)), to=1), b.constant(rates))
    e = b.node("Concat", b.node("Sin", angles), b.node("Cos", angles), axis=-1)
    e = b.silu(b.dense(b.silu(b.dense(e, c, 4 * c)), 4 * c, 4 * c))

    def norm(value: str, channels: int) -> str:
        scale, shift = b.constant(1 + b.normal(channels, scale=0.1)), b.constant(b.normal(channels, scale=0.1))
        grouped = b.node("Reshape", value, b.ints(0, 8, -1))
        ones, zeros = b.constant(np.ones(8, np.float32)), b.constant(np.zeros(8, np.float32))
        flat = b.node("InstanceNormalization", grouped, ones, zeros, epsilon=1e-5)
        back = b.node("Reshape", flat, b.node("Shape", value))
        shaped = [b.node("Reshape", p, b.ints(1, channels, 1, 1)) for p in (scale, shift)]
        return b.node("Add", b.node("Mul", back, shaped[0]), shaped[1])

    def residual(value: str, before: int, after: int) -> str:
        h = b.conv(b.silu(norm(value, before)), before, after, 3)
        h = b.node("Add", h, b.node("Unsqueeze", b.dense(e, 4 * c, after), b.ints(2, 3)))
        h = b.conv(b.silu(norm(h, after)), after, after, 3, gain=0.7)
        return b.node("Add", value if before == after else b.conv(value, before, after, 1), h)

    def attend(value: str, channels: int, heads: int = 4) -> str:
        side = size // 4
        qkv = b.node("Reshape", b.conv(norm(value, channels), channels, 3 * channels, 1), b.ints(3, heads, -1, side**2))
        q, k, v = (b.node("Squeeze", part, b.ints(0)) for part in b.split("Split", 3, qkv, axis=0, num_outputs=3))
        scores = b.node("MatMul", b.node("Transpose", q, perm=[0, 2, 1]), k)
        scores = b.node("Softmax", b.node("Mul", scores, b.constant((channels // heads) ** -0.5)), axis=-1)
        mixed = b.node("MatMul", v, b.node("Transpose", scores, perm=[0, 2, 1]))
        mixed = b.node("Reshape", mixed, b.ints(1, channels, side, side))
        return b.node("Add", value, b.conv(mixed, channels, channels, 1, gain=0.7))

    def larger(value: str) -> str:
        scales = b.constant([1, 1, 2, 2])
        return b.node("Resize", value, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric",
                      nearest_mode="floor")  # fmt: skip

    h0 = residual(b.conv(x, 3, c, 3), c, c)
    h1 = residual(b.conv(h0, c, c, 3, stride=2), c, 2 * c)
    h = residual(b.conv(h1, 2 * c, 2 * c, 3, stride=2), 2 * c, 4 * c)
    h = residual(attend(h, 4 * c), 4 * c, 4 * c)
    h = residual(b.node("Concat", larger(h), h1, axis=1), 6 * c, 2 * c)
    h = residual(b.node("Concat", larger(h), h0, axis=1), 3 * c, c)
    b.output(b.conv(b.silu(norm(h, c)), c, 3, 3), "eps")
    return b
