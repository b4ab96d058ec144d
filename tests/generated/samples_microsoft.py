"""Inputs of the operators of com.microsoft."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tests.generated.draw import F32, I8, I32, I64, U8, Draw, S, Sample, sample
from tests.generated.samples_basic import gemm, matmul, pad, ranging, trilu

__all__: list[str] = []

ms = partial(sample, domain="com.microsoft")
N, H = 2, 8
D = N * H


def scale(value: float = 0.05) -> np.ndarray:
    return np.asarray(value, F32)


def zero(value: int = 3, dtype: Any = U8) -> np.ndarray:
    return np.asarray(value, dtype)


@ms("Gelu", "QuickGelu", "FastGelu")
def unary(r: Draw) -> Sample:
    return S(r.f(*r.dims()))


@ms("BiasGelu")
def bias_gelu(r: Draw) -> Sample:
    x = r.f(*r.dims())
    return S(x, r.f(x.shape[-1]))


@ms("BiasAdd")
def bias_add(r: Draw) -> Sample:
    x = r.f(r.n(), r.n(), r.n())
    return S(x, r.f(x.shape[-1]), r.f(*x.shape))


@ms("BiasSoftmax")
def bias_softmax(r: Draw) -> Sample:
    n, h, s = r.n(), r.n(), r.n()
    return S(r.f(n, h, s), r.f(n, h, s), axis=2, is_inner_broadcast=0)


@ms("BiasSplitGelu")
def bias_split_gelu(r: Draw) -> Sample:
    c = 2 * r.n()
    return S(r.f(r.n(), r.n(), c), r.f(c))


@ms("CDist")
def cdist(r: Draw) -> Sample:
    k = r.n()
    return S(r.f(r.n(), k), r.f(r.n(), k), metric=r.pick(["euclidean", "sqeuclidean"]))


@ms("ComplexMul", "ComplexMulConj")
def complex_mul(r: Draw) -> Sample:
    shape = r.dims(1, 2)
    return S(r.f(*shape, 2), r.f(*shape, 2))


@ms("ExpandDims")
def expand_dims(r: Draw) -> Sample:
    return S(r.f(*r.dims(1, 3)), np.asarray(r.k(0, 1), I32))


@ms("FusedGemm")
def fused_gemm(r: Draw) -> Sample:
    made = gemm(r)
    made.attributes["activation"] = "Relu"
    return made


@ms("FusedMatMul", "TransposeMatMul")
def fused_matmul(r: Draw) -> Sample:
    made = matmul(r)
    made.attributes["alpha"] = 0.5
    return made


@ms("FusedMatMulActivation")
def fused_matmul_activation(r: Draw) -> Sample:
    made = matmul(r)
    made.attributes["activation"] = "Relu"
    return made


@ms("GemmFastGelu")
def gemm_fast_gelu(r: Draw) -> Sample:
    k, n = r.n(), r.n()
    return S(r.f(r.n(), r.n(), k), r.f(k, n), r.f(n))


@ms("GroupNorm")
def group_norm(r: Draw) -> Sample:
    return S(r.f(r.n(), r.n(), r.n(), 4), r.f(4), r.f(4), activation=r.k(0, 1), groups=2)


@ms("SkipGroupNorm")
def skip_group_norm(r: Draw) -> Sample:
    shape = r.n(), r.n(), r.n(), 4
    return S(r.f(*shape), r.f(4), r.f(4), r.f(*shape), r.f(4), activation=0, groups=2)


@ms("Inverse")
def inverse(r: Draw) -> Sample:
    n = r.n(1, 3)
    return S(r.f(n, n) + 4 * np.eye(n, dtype=F32))


@ms("IsAllFinite")
def is_all_finite(r: Draw) -> Sample:
    return S(r.f(*r.dims()), r.f(*r.dims()))


@ms("MulInteger")
def mul_integer(r: Draw) -> Sample:
    shape = r.dims()
    return S(r.u8(*shape), zero(), r.u8(*shape), zero())


@ms("Pad")
def pad_old(r: Draw) -> Sample:
    made = pad(r)
    made.attributes["mode"] = "constant"
    return made


@ms("Range")
def range_old(r: Draw) -> Sample:
    return ranging(r)


@ms("Trilu")
def trilu_old(r: Draw) -> Sample:
    return trilu(r)


@ms("ReduceSumInteger")
def reduce_sum_integer(r: Draw) -> Sample:
    return S(r.i8(r.n(), r.n()), axes=[1], keepdims=r.k(0, 1))


@ms("SkipLayerNormalization")
def skip_layer_norm(r: Draw) -> Sample:
    shape, h = (r.n(), r.n()), r.n()
    return S(r.f(*shape, h), r.f(*shape, h), r.f(h), r.f(h), r.f(h))


@ms("SkipSimplifiedLayerNormalization")
def skip_rms_norm(r: Draw) -> Sample:
    shape, h = (r.n(), r.n()), r.n()
    return S(r.f(*shape, h), r.f(*shape, h), r.f(h), r.f(h))


@ms("RelativePositionBias")
def relative_position_bias(r: Draw) -> Sample:
    return S(r.f(8, N), np.array([r.n()], I64), np.array([r.n()], I64), max_distance=16, is_bidirectional=r.k(0, 1))


@ms("RotaryEmbedding")
def rotary(r: Draw) -> Sample:
    n, t, most = r.n(), r.n(), 8
    places = r.i(0, most, n, t) if r.chance() else np.array([r.n(0, 4)], I64)
    return S(r.f(n, N, t, H), places, r.f(most, H // 2), r.f(most, H // 2), interleaved=r.k(0, 1))


# ---------------------------------------------------------------------- attention


@ms("Attention")
def attention(r: Draw) -> Sample:
    n, t = r.n(1, 3), r.n()
    mask = r.pick([None, r.i(0, t + 1, n, dtype=I32), r.i(0, 2, n, t, dtype=I32)])
    return S(r.f(n, t, 6), r.f(6, 3 * D), r.f(3 * D), mask, num_heads=N, unidirectional=r.k(0, 1))


@ms("QAttention")
def qattention(r: Draw) -> Sample:
    n, t = r.n(1, 3), r.n()
    return S(
        r.u8(n, t, 6), r.i8(6, 3 * D), r.f(3 * D), scale(), scale(), None, zero(), zero(0, I8), num_heads=N,
    )  # fmt: skip


@ms("MultiHeadAttention")
def multi_head_attention(r: Draw) -> Sample:
    n, t, s = r.n(1, 3), r.n(), r.n()
    mask = r.i(0, s + 1, n, dtype=I32) if r.chance() else None
    return S(r.f(n, t, D), r.f(n, s, D), r.f(n, s, D), r.f(3 * D), mask, num_heads=N)


@ms("DecoderMaskedMultiHeadAttention")
def decoder_masked(r: Draw) -> Sample:
    n, most = r.n(1, 3), r.n(3, 6)
    cache = r.f(n, N, most, H), r.f(n, N, most, H)
    past = np.array([r.n(0, most - 1)], I32)
    return S(
        r.f(n, 1, D), r.f(n, 1, D), r.f(n, 1, D), None, None, *cache, past, None, None, r.f(3 * D), num_heads=N,
        past_present_share_buffer=1, outs=3,
    )  # fmt: skip


@ms("GroupQueryAttention")
def group_query_attention(r: Draw) -> Sample:
    first = r.chance()
    n = r.n(1, 2)
    past, new = (0, r.n()) if first else (r.n(1, 4), 1)
    lengths = np.full(n, past + new - 1, I32)
    cache = (None, None) if first else (r.f(n, 1, past, H), r.f(n, 1, past, H))
    turns = (r.f(16, H // 2), r.f(16, H // 2)) if r.chance() else (None, None)
    return S(
        r.f(n, new, D), r.f(n, new, H), r.f(n, new, H), *cache, lengths, np.asarray(past + new, I32), *turns,
        num_heads=N, kv_num_heads=1, do_rotary=int(turns[0] is not None), outs=3,
    )  # fmt: skip


@ms("EmbedLayerNormalization")
def embed_layer_norm(r: Draw) -> Sample:
    n, t, h = r.n(), r.n(), r.k()
    tables = r.f(9, h), r.f(6, h), r.f(2, h), r.f(h), r.f(h)
    return S(r.i(0, 9, n, t, dtype=I32), r.i(0, 2, n, t, dtype=I32), *tables, r.i(0, 2, n, t, dtype=I32), outs=2)


@ms("QEmbedLayerNormalization")
def qembed_layer_norm(r: Draw) -> Sample:
    n, t, h = r.n(), r.n(), r.k()
    tables = r.u8(9, h), r.u8(6, h), r.u8(2, h), r.u8(h), r.u8(h)
    return S(
        r.i(0, 9, n, t, dtype=I32), r.i(0, 2, n, t, dtype=I32), *tables, r.i(0, 2, n, t, dtype=I32),
        *[scale() for _ in range(5)], *[zero() for _ in range(5)], outs=2,
    )  # fmt: skip


# ---------------------------------------------------------------------- quantized


@ms("DynamicQuantizeLSTM")
def dynamic_quantize_lstm(r: Draw) -> Sample:
    t, n, i, h, d = r.n(), r.n(), r.k(), r.k(), 1
    lengths = r.i(0, t + 1, n, dtype=I32) if r.chance(0.3) else None
    return S(
        r.f(t, n, i), r.i8(d, i, 4 * h), r.i8(d, h, 4 * h), r.f(d, 8 * h), lengths, r.f(d, n, h), r.f(d, n, h), None,
        r.pos(d) / 100, np.zeros(d, I8), r.pos(d) / 100, np.zeros(d, I8), hidden_size=h, outs=3,
    )  # fmt: skip


@ms("DynamicQuantizeMatMul")
def dynamic_quantize_matmul(r: Draw) -> Sample:
    k, n = r.n(), r.n()
    return S(r.f(r.n(), k), r.i8(k, n), scale(), zero(0, I8), r.f(n))


@ms("MatMulIntegerToFloat")
def matmul_integer_to_float(r: Draw) -> Sample:
    k, n = r.n(), r.n()
    return S(r.u8(r.n(), k), r.i8(k, n), scale(), scale(), zero(), zero(0, I8), r.f(n))


@ms("MatMulNBits")
def matmul_nbits(r: Draw) -> Sample:
    n = r.k(1, 6)
    zeros = r.u8(n, 1) if r.chance() else None
    level = 4 if r.chance() else 0
    return S(r.f(r.n(), 32), r.u8(n, 2, 8), r.f(n, 2), zeros, K=32, N=n, bits=4, block_size=16, accuracy_level=level)


@ms("GatherBlockQuantized")
def gather_block_quantized(r: Draw) -> Sample:
    rows = r.n(2, 7)
    return S(r.u8(rows, 16), r.i(0, rows, r.n()), r.f(rows, 2), r.u8(rows, 1), bits=4, block_size=16)


@ms("QGemm")
def qgemm(r: Draw) -> Sample:
    m, n, k = r.n(), r.n(), r.n()
    return S(r.u8(m, k), scale(), zero(), r.u8(k, n), scale(), zero(), r.i(-9, 9, n, dtype=I32), scale(1.0), zero())


@ms("QLinearAdd", "QLinearMul")
def qlinear_binary(r: Draw) -> Sample:
    shape = r.dims()
    return S(r.u8(*shape), scale(), zero(), r.u8(*shape), scale(0.02), zero(7), scale(0.1), zero())


@ms("QLinearAveragePool")
def qlinear_average_pool(r: Draw) -> Sample:
    return S(r.u8(r.n(), r.n(), r.n(3, 6), r.n(3, 6)), scale(), zero(), scale(), zero(), kernel_shape=[2, 2])


@ms("QLinearGlobalAveragePool")
def qlinear_global_average_pool(r: Draw) -> Sample:
    return S(r.u8(r.n(), r.n(), r.n(3, 6), r.n(3, 6)), scale(), zero(), scale(), zero())


@ms("QLinearConcat")
def qlinear_concat(r: Draw) -> Sample:
    n = r.n()
    parts = [v for _ in range(2) for v in (r.u8(n, r.n()), scale(), zero())]
    return S(scale(), zero(), *parts, axis=1)


@ms("QLinearLeakyRelu", "QLinearSigmoid")
def qlinear_unary(r: Draw) -> Sample:
    return S(r.u8(*r.dims()), scale(), zero(), scale(), zero())


@ms("QLinearReduceMean")
def qlinear_reduce_mean(r: Draw) -> Sample:
    return S(r.u8(r.n(), r.n()), scale(), zero(), scale(), zero(), axes=[1], keepdims=r.k(0, 1))


@ms("QLinearSoftmax")
def qlinear_softmax(r: Draw) -> Sample:
    return S(r.u8(r.n(), r.n()), scale(), zero(), scale(1 / 256), zero(0), opset=13)


@ms("QLinearWhere")
def qlinear_where(r: Draw) -> Sample:
    shape = r.dims()
    return S(r.b(*shape), r.u8(*shape), scale(), zero(), r.u8(*shape), scale(), zero(), scale(), zero())
