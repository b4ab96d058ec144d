"""Inputs of elementwise, shape, index, reduction and quantization operators."""

from __future__ import annotations

import numpy as np

from tests.generated.draw import F32, I8, I32, I64, U8, Draw, S, Sample, sample

__all__: list[str] = []

_UNARY = [
    "Abs", "Atan", "Ceil", "Celu", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity",
    "LeakyRelu", "Mish", "Neg", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign",
    "Swish", "Tan", "Tanh", "ThresholdedRelu", "Asinh", "Cosh", "Sinh", "IsNaN",
]  # fmt: skip
_REDUCTIONS = [
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
]  # fmt: skip


@sample(*_UNARY)
def unary(r: Draw) -> Sample:
    return S(r.f(*r.dims(0, 4)))


@sample("Acos", "Asin", "Atanh")
def bounded(r: Draw) -> Sample:
    return S(r.unit(*r.dims()))


@sample("Log", "Sqrt", "Reciprocal")
def positive(r: Draw) -> Sample:
    return S(r.pos(*r.dims()))


@sample("Acosh")
def above_one(r: Draw) -> Sample:
    return S(r.pos(*r.dims()) + 1)


@sample("IsInf")
def infinite(r: Draw) -> Sample:
    x = r.f(*r.dims())
    x[x > 1] = np.inf
    return S(x, detect_negative=r.k(0, 1), detect_positive=r.k(0, 1))


@sample("Add", "Sub", "Mul")
def arithmetic(r: Draw) -> Sample:
    shape = r.dims(0, 4)
    x = r.numbers(*shape)
    return S(x, r.like(x, *r.spread(shape)))


@sample("Div", "Mod")
def division(r: Draw) -> Sample:
    shape = r.dims()
    x = r.i(-20, 20, *shape, dtype=r.pick([I32, I64, I8]))
    return S(x, r.i(1, 9, *r.spread(shape), dtype=x.dtype))


@sample("Pow")
def power(r: Draw) -> Sample:
    shape = r.dims()
    return S(r.pos(*shape), r.f(*r.spread(shape)))


@sample("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
def comparison(r: Draw) -> Sample:
    return arithmetic(r)


@sample("And", "Or", "Xor")
def logic(r: Draw) -> Sample:
    shape = r.dims()
    return S(r.b(*shape), r.b(*r.spread(shape)))


@sample("Not")
def negation(r: Draw) -> Sample:
    return S(r.b(*r.dims()))


@sample("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def bitwise(r: Draw) -> Sample:
    shape = r.dims()
    x = r.i(0, 100, *shape, dtype=r.pick([I32, U8, I64]))
    return S(x, r.i(0, 100, *r.spread(shape), dtype=x.dtype))


@sample("BitwiseNot")
def bitwise_not(r: Draw) -> Sample:
    return S(r.i(0, 100, *r.dims(), dtype=I32))


@sample("BitShift")
def shift(r: Draw) -> Sample:
    shape = r.dims()
    return S(
        r.i(0, 100, *shape, dtype=np.uint32),
        r.i(0, 8, *shape, dtype=np.uint32),
        direction=r.pick(["LEFT", "RIGHT"]),
    )


@sample("Max", "Min", "Sum", "Mean")
def several(r: Draw) -> Sample:
    shape = r.dims()
    return S(*[r.f(*(shape if i == 0 else r.spread(shape))) for i in range(r.k(1, 3))])


@sample("Clip")
def clip(r: Draw) -> Sample:
    x = r.f(*r.dims())
    return S(x, np.asarray(-0.5, F32), np.asarray(0.7, F32) if r.chance() else None)


@sample("PRelu")
def prelu(r: Draw) -> Sample:
    shape = r.dims()
    return S(r.f(*shape), r.f(*r.spread(shape)))


@sample("Where")
def where(r: Draw) -> Sample:
    shape = r.dims()
    x = r.numbers(*shape)
    return S(r.b(*r.spread(shape)), x, r.like(x, *r.spread(shape)))


@sample("Cast")
def cast(r: Draw) -> Sample:
    return S(r.numbers(*r.dims()), to=r.pick([1, 2, 3, 6, 7, 9, 10, 11]))


@sample("CastLike")
def cast_like(r: Draw) -> Sample:
    return S(r.f(*r.dims()), r.i(0, 3, 1))


@sample("BitCast")
def bit_cast(r: Draw) -> Sample:
    return S(r.f(*r.dims()), to=6)


@sample("SwiGLU")
def swiglu(r: Draw) -> Sample:
    shape = r.dims()
    return S(r.f(*shape), r.f(*shape))


@sample("Dropout")
def dropout(r: Draw) -> Sample:
    return S(r.f(*r.dims()), np.asarray(0.5, F32), outs=r.k(1, 2))


# ---------------------------------------------------------------------- shapes


@sample("Shape", "Size")
def shape_of(r: Draw) -> Sample:
    return S(r.f(*r.dims(0, 4)))


@sample("Reshape")
def reshape(r: Draw) -> Sample:
    shape = r.dims()
    return S(r.f(*shape), np.array([shape[0], -1] if r.chance() else [-1], I64))


@sample("Flatten")
def flatten(r: Draw) -> Sample:
    x = r.f(*r.dims())
    return S(x, axis=r.axis(x.ndim))


@sample("Squeeze")
def squeeze(r: Draw) -> Sample:
    return S(r.f(r.n(), 1, r.n()), np.array([1], I64))


@sample("Unsqueeze")
def unsqueeze(r: Draw) -> Sample:
    return S(r.f(*r.dims(1, 3)), np.array([r.k(0, 1)], I64))


@sample("Transpose")
def transpose(r: Draw) -> Sample:
    x = r.f(*r.dims())
    return S(x, perm=[int(v) for v in r.model.permutation(x.ndim)])


@sample("Expand")
def expand(r: Draw) -> Sample:
    shape = r.dims()
    return S(r.f(*r.spread(shape)), np.array(shape, I64))


@sample("Tile")
def tile(r: Draw) -> Sample:
    x = r.f(*r.dims(1, 3))
    return S(x, r.i(1, 4, x.ndim))


@sample("Concat")
def concat(r: Draw) -> Sample:
    rank = r.k(1, 4)
    axis = r.axis(rank)
    shape = [r.n() for _ in range(rank)]
    parts = []
    for _ in range(r.k(1, 3)):
        shape[axis] = r.n()
        parts.append(r.f(*shape))
    return S(*parts, axis=axis)


@sample("Split")
def split(r: Draw) -> Sample:
    rank = r.k(1, 3)
    axis, count = r.axis(rank), r.k(1, 3)
    parts = [r.n(0, 3) for _ in range(count)]
    shape = [r.n() for _ in range(rank)]
    shape[axis] = sum(parts)
    if r.chance(0.3):
        shape[axis] = 2 * count
        return S(r.f(*shape), axis=axis, num_outputs=count, outs=count)
    return S(r.f(*shape), np.array(parts, I64), axis=axis, outs=count)


@sample("Slice")
def slicing(r: Draw) -> Sample:
    x = r.f(*r.dims(1, 4, 6))
    axes = r.axes(x.ndim, 1)
    steps = [r.pick([1, 1, 2, -1, -2]) for _ in axes]
    starts = [r.run.integers(-8, 8) for _ in axes]
    ends = [r.run.integers(-8, 8) for _ in axes]
    return S(x, *(np.array(v, I64) for v in (starts, ends, axes, steps)))


@sample("Pad")
def pad(r: Draw) -> Sample:
    x = r.f(*(n + 2 for n in r.dims(1, 4)))
    mode = r.pick(["constant", "edge", "reflect", "wrap"])
    low = -1 if mode == "constant" else 0
    value = r.f() if mode == "constant" and r.chance() else None
    return S(x, r.i(low, 2, 2 * x.ndim), value, mode=mode)


@sample("CenterCropPad")
def center_crop_pad(r: Draw) -> Sample:
    x = r.f(*r.dims(1, 3))
    return S(x, r.i(1, 6, x.ndim))


@sample("DepthToSpace")
def depth_to_space(r: Draw) -> Sample:
    return S(r.f(r.n(), 4 * r.n(1, 2), r.n(), r.n()), blocksize=2, mode=r.pick(["DCR", "CRD"]))


@sample("SpaceToDepth")
def space_to_depth(r: Draw) -> Sample:
    return S(r.f(r.n(), r.n(), 2 * r.n(), 2 * r.n()), blocksize=2)


@sample("EyeLike")
def eye_like(r: Draw) -> Sample:
    return S(r.f(r.n(), r.n()), k=r.k(-1, 1))


@sample("Trilu")
def trilu(r: Draw) -> Sample:
    return S(r.f(*r.dims(2, 4)), np.asarray(r.run.integers(-3, 4), I64), upper=r.k(0, 1))


@sample("Constant")
def constant(r: Draw) -> Sample:
    return S(value_floats=[float(v) for v in r.model.standard_normal(r.k())])


@sample("ConstantOfShape")
def constant_of_shape(r: Draw) -> Sample:
    return S(np.array(r.dims(), I64))


@sample("Range")
def ranging(r: Draw) -> Sample:
    kind = r.pick([I64, I32, F32])
    return S(np.asarray(r.n(0, 3), kind), np.asarray(r.n(3, 12), kind), np.asarray(r.n(1, 3), kind))


@sample("AffineGrid")
def affine_grid(r: Draw) -> Sample:
    n = r.n()
    return S(r.f(n, 2, 3), np.array([n, r.n(), r.n(2, 4), r.n(2, 4)], I64), align_corners=r.k(0, 1))


# ---------------------------------------------------------------------- indices


@sample("Gather")
def gather(r: Draw) -> Sample:
    x = r.f(*r.dims(1, 4))
    axis = r.axis(x.ndim)
    return S(x, r.i(-x.shape[axis], x.shape[axis], *r.dims(0, 2), dtype=r.pick([I64, I32])), axis=axis)


@sample("GatherElements")
def gather_elements(r: Draw) -> Sample:
    x = r.f(*r.dims(1, 3))
    axis = r.axis(x.ndim)
    shape = [max(1, n - r.n(0, 1)) for n in x.shape]
    return S(x, r.i(-x.shape[axis], x.shape[axis], *shape), axis=axis)


def _tuples(r: Draw, sizes: tuple[int, ...], *lead: int) -> np.ndarray:
    return np.stack([r.i(0, n, *lead) for n in sizes], -1)


@sample("GatherND")
def gather_nd(r: Draw) -> Sample:
    x = r.f(*r.dims(2, 4))
    batch = r.k(0, 1)
    depth = r.k(1, x.ndim - batch)
    lead = (*x.shape[:batch], r.n())
    return S(x, _tuples(r, x.shape[batch : batch + depth], *lead), batch_dims=batch)


@sample("GatherND", domain="com.microsoft")
def gather_nd_old(r: Draw) -> Sample:
    x = r.f(*r.dims(2, 4))
    return S(x, _tuples(r, x.shape[: r.k(1, x.ndim)], r.n()))


@sample("ScatterElements")
def scatter_elements(r: Draw) -> Sample:
    x = r.f(*r.dims(1, 3))
    axis = r.axis(x.ndim)
    shape = list(x.shape)
    shape[axis] = r.n(1, x.shape[axis])
    order = np.argsort(r.run.random(x.shape), axis=axis)
    index = np.asarray(np.take(order, range(shape[axis]), axis=axis), I64)
    return S(x, index, r.f(*shape), axis=axis, reduction=r.pick(["none", "add", "mul", "max", "min"]))


@sample("Scatter")
def scatter(r: Draw) -> Sample:
    made = scatter_elements(r)
    made.attributes.pop("reduction")
    return made


@sample("ScatterND")
def scatter_nd(r: Draw) -> Sample:
    x = r.f(*r.dims(1, 3))
    depth = r.k(1, x.ndim)
    index = np.unique(_tuples(r, x.shape[:depth], r.n()), axis=0)
    return S(x, index, r.f(len(index), *x.shape[depth:]), reduction=r.pick(["none", "add", "mul"]))


@sample("TensorScatter")
def tensor_scatter(r: Draw) -> Sample:
    n, h, length, d = r.n(), r.n(), r.n(3, 6), r.n()
    new = r.n(1, 2)
    return S(r.f(n, h, length, d), r.f(n, h, new, d), r.i(0, length - new, n), mode=r.pick(["linear", "circular"]))


@sample("OneHot")
def one_hot(r: Draw) -> Sample:
    return S(r.i(-5, 6, *r.dims(0, 2)), np.asarray(r.n(1, 5), I64), np.array([0, 1], F32), axis=-1)


@sample("TopK")
def top_k(r: Draw) -> Sample:
    x = r.f(*r.dims(1, 3))
    axis = r.axis(x.ndim)
    return S(x, np.array([r.n(1, x.shape[axis])], I64), axis=axis, largest=r.k(0, 1), outs=2)


@sample("NonZero")
def non_zero(r: Draw) -> Sample:
    return S(r.i(0, 2, *r.dims(1, 3)))


@sample("Compress")
def compress(r: Draw) -> Sample:
    x = r.f(*r.dims(1, 3))
    axis = r.axis(x.ndim) if r.chance() else None
    return S(x, r.b(r.n(1, x.size if axis is None else x.shape[axis])), axis=axis)


@sample("Unique")
def unique(r: Draw) -> Sample:
    return S(r.i(0, 4, *r.dims(1, 2)), axis=0 if r.chance() else None, outs=4)


@sample("Unique", domain="com.microsoft")
def unique_old(r: Draw) -> Sample:
    return S(np.asarray(r.i(0, 4, r.n(1, 6)), F32), outs=3)


@sample("ReverseSequence")
def reverse_sequence(r: Draw) -> Sample:
    n, t = r.n(), r.n()
    return S(r.f(n, t, r.n()), r.i(0, t + 1, n), batch_axis=0, time_axis=1)


# ---------------------------------------------------------------------- reductions


@sample(*_REDUCTIONS)
def reduction(r: Draw) -> Sample:
    x = r.pos(*r.dims(1, 4))
    axes = np.array(r.axes(x.ndim), I64) if r.chance(0.7) else None
    return S(x, axes, keepdims=r.k(0, 1), noop_with_empty_axes=r.k(0, 1))


@sample("ArgMax", "ArgMin")
def arg(r: Draw) -> Sample:
    x = r.f(*r.dims())
    return S(x, axis=r.axis(x.ndim), keepdims=r.k(0, 1), select_last_index=r.k(0, 1))


@sample("CumSum", "CumProd")
def cumulative(r: Draw) -> Sample:
    x = r.f(*r.dims())
    return S(x, np.asarray(r.axis(x.ndim), I64), exclusive=r.k(0, 1), reverse=r.k(0, 1))


@sample("Softmax", "LogSoftmax", "Hardmax", "LpNormalization")
def along(r: Draw) -> Sample:
    x = r.f(*r.dims())
    return S(x, axis=r.axis(x.ndim))


# ---------------------------------------------------------------------- products


@sample("MatMul")
def matmul(r: Draw) -> Sample:
    k = r.n()
    lead = r.dims(0, 2)
    a, b = (r.f(*lead, r.n(), k), r.f(*r.spread(lead), k, r.n()))
    return S(r.f(k), b) if r.chance(0.2) else S(a, r.f(k)) if r.chance(0.2) else S(a, b)


@sample("Gemm")
def gemm(r: Draw) -> Sample:
    m, n, k = r.n(), r.n(), r.n()
    ta, tb = r.k(0, 1), r.k(0, 1)
    bias = r.f(*r.spread((m, n))) if r.chance(0.7) else None
    return S(r.f(*((k, m) if ta else (m, k))), r.f(*((n, k) if tb else (k, n))), bias, transA=ta, transB=tb)


@sample("Einsum")
def einsum(r: Draw) -> Sample:
    i, j, k = r.n(), r.n(), r.n()
    return S(r.f(i, j), r.f(j, k), equation="ij,jk->ik")


@sample("Det")
def det(r: Draw) -> Sample:
    n = r.n(1, 3)
    return S(r.f(*r.dims(0, 1), n, n))


@sample("MatMulInteger")
def matmul_integer(r: Draw) -> Sample:
    m, n, k = r.n(), r.n(), r.n()
    return S(r.u8(m, k), r.i8(k, n), np.asarray(3, U8), np.asarray(1, I8))


@sample("MatMulInteger16", domain="com.microsoft")
def matmul_integer16(r: Draw) -> Sample:
    m, n, k = r.n(), r.n(), r.n()
    return S(r.i(-99, 99, m, k, dtype=np.int16), r.i(-99, 99, k, n, dtype=np.int16))


# ---------------------------------------------------------------------- quantization


@sample("QuantizeLinear")
def quantize(r: Draw) -> Sample:
    shape = (r.n(), r.n(), r.n())
    if r.chance():
        return S(r.f(*shape), np.asarray(0.1, F32), np.asarray(3, U8))
    return S(r.f(*shape), r.pos(shape[1]), r.u8(shape[1]), axis=1)


@sample("DequantizeLinear")
def dequantize(r: Draw) -> Sample:
    shape = (r.n(), r.n(), r.n())
    if r.chance():
        return S(r.u8(*shape), np.asarray(0.1, F32), np.asarray(3, U8))
    return S(r.i8(*shape), r.pos(shape[1]), r.i8(shape[1]), axis=1)


@sample("QuantizeLinear", domain="com.microsoft")
def quantize_old(r: Draw) -> Sample:
    return S(r.f(r.n(), r.n()), np.asarray(0.1, F32), np.asarray(3, U8))


@sample("DequantizeLinear", domain="com.microsoft")
def dequantize_old(r: Draw) -> Sample:
    return S(r.u8(r.n(), r.n()), np.asarray(0.1, F32), np.asarray(3, U8))


@sample("DynamicQuantizeLinear")
def dynamic_quantize(r: Draw) -> Sample:
    return S(r.f(*r.dims()), outs=3)


# ---------------------------------------------------------------------- random, windows, losses


@sample("RandomNormal", "RandomUniform")
def random(r: Draw) -> Sample:
    return S(shape=[2, 3], seed=1.0)


@sample("RandomNormalLike", "RandomUniformLike")
def random_like(r: Draw) -> Sample:
    return S(r.f(*r.dims()), seed=1.0)


@sample("Bernoulli")
def bernoulli(r: Draw) -> Sample:
    return S(r.pos(*r.dims()) / 2, seed=1.0)


@sample("Multinomial")
def multinomial(r: Draw) -> Sample:
    return S(r.f(r.n(), r.n(2, 4)), sample_size=3, seed=1.0)


@sample("BlackmanWindow", "HammingWindow", "HannWindow")
def window(r: Draw) -> Sample:
    return S(np.asarray(r.n(1, 9), I64), periodic=r.k(0, 1))


@sample("MelWeightMatrix")
def mel(r: Draw) -> Sample:
    return S(
        np.asarray(r.n(2, 4), I64),
        np.asarray(32, I64),
        np.asarray(8000, I64),
        np.asarray(100.0, F32),
        np.asarray(3000.0, F32),
    )


@sample("DFT")
def dft(r: Draw) -> Sample:
    return S(r.f(r.n(), r.n(2, 6), 1), None, np.asarray(1, I64), onesided=r.k(0, 1))


@sample("STFT")
def stft(r: Draw) -> Sample:
    shape = (r.n(), r.n(12, 20), 1)
    return S(r.f(*shape[: 3 if r.chance() else 2]), np.asarray(4, I64), r.pos(8), np.asarray(8, I64))


@sample("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(r: Draw) -> Sample:
    n, c = r.n(), r.n(2, 4)
    rest = r.dims(0, 2)
    weight = r.pos(c) if r.chance() else None
    return S(r.f(n, c, *rest), r.i(0, c, n, *rest), weight, reduction=r.pick(["none", "mean", "sum"]))


@sample("Adagrad", domain="ai.onnx.preview.training")
def adagrad(r: Draw) -> Sample:
    shape = r.dims(1, 2)
    return S(np.asarray(0.1, F32), np.asarray(0, I64), r.f(*shape), r.f(*shape), r.pos(*shape), outs=2)


@sample("Adam", domain="ai.onnx.preview.training")
def adam(r: Draw) -> Sample:
    s = r.dims(1, 2)
    return S(np.asarray(0.1, F32), np.asarray(1, I64), r.f(*s), r.f(*s), r.f(*s), r.pos(*s), outs=3)


@sample("Momentum", domain="ai.onnx.preview.training")
def momentum(r: Draw) -> Sample:
    s = r.dims(1, 2)
    return S(
        np.asarray(0.1, F32), np.asarray(0, I64), r.f(*s), r.f(*s), r.f(*s),
        alpha=0.9, beta=0.9, mode="standard", norm_coefficient=0.001, outs=2,
    )  # fmt: skip
