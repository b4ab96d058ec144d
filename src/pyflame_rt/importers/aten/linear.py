"""Products of aten: linear maps, matrix products, Einstein sums, attention."""

from __future__ import annotations

import math
from typing import Any

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import UndeterminedError
from pyflame_rt.importers.aten.reduce import _logsumexp
from pyflame_rt.importers.aten.shaping import reshaped, swapped
from pyflame_rt.importers.aten.table import aten
from pyflame_rt.importers.aten.values import axis, cast, is_static, number, promoted, refuse, shape_value, sizes
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.microsoft.fused import Inverse
from pyflame_rt.ops.onnx.activation import Softmax
from pyflame_rt.ops.onnx.creation import Trilu
from pyflame_rt.ops.onnx.logic import Equal, Not, Where
from pyflame_rt.ops.onnx.math import IsNaN
from pyflame_rt.ops.onnx.matmul import Einsum, Gemm, MatMul
from pyflame_rt.ops.onnx.reduce import ReduceMax, ReduceMean, ReduceSum
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Transpose, Unsqueeze

__all__ = ["attended", "inverse", "linear"]


@aten("linear")
def linear(x: Value, weight: Value, bias: Value | None = None) -> Value:
    """``x @ weight.T + bias``."""
    if x.rank == 2 and weight.rank == 2:
        return Gemm(x, weight, bias, transB=1)
    product = MatMul(x, Transpose(weight, perm=[1, 0]) if weight.rank == 2 else weight)
    return product if bias is None else product + bias


@aten("matmul", "linalg_matmul", "mm", "bmm", "mv", "dot", "vdot")
def _matmul(x: Value, other: Value) -> Value:
    return MatMul(*promoted(x, other))


@aten("inner")
def _inner(x: Value, other: Value) -> Value:
    """Sums of products over the last axes, for every pair of the others."""
    left, right = promoted(x, other)
    if not left.rank or not right.rank:
        return left * right
    if right.rank < 3:
        return MatMul(left, swapped(right, 0, 1))
    rows = Reshape(right, shape_value([-1, sizes(right)[-1]]))
    return reshaped(MatMul(left, swapped(rows, 0, 1)), [*sizes(left)[:-1], *sizes(right)[:-1]])


@aten("addmm")
def _addmm(x: Value, mat1: Value, mat2: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    return Gemm(mat1, mat2, x, alpha=float(alpha), beta=float(beta))


@aten("baddbmm")
def _baddbmm(x: Value, batch1: Value, batch2: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    return _plus(x, MatMul(batch1, batch2), beta, alpha)


@aten("addbmm")
def _addbmm(x: Value, batch1: Value, batch2: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    return _plus(x, ReduceSum(MatMul(batch1, batch2), [0], keepdims=0), beta, alpha)


@aten("addmv")
def _addmv(x: Value, mat: Value, vec: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    return _plus(x, MatMul(mat, vec), beta, alpha)


def _plus(x: Value, product: Value, beta: Any, alpha: Any) -> Value:
    scaled = product if is_static(alpha) and alpha == 1 else product * number(alpha, product.dtype)
    if is_static(beta) and beta == 0:
        return scaled
    return scaled + (x if is_static(beta) and beta == 1 else x * number(beta, x.dtype))


@aten("outer", "ger")
def _outer(x: Value, vec2: Value) -> Value:
    left, right = promoted(x, vec2)
    return Unsqueeze(left, [1]) * right


@aten("einsum")
def _einsum(equation: str, tensors: list[Value], *, path: Any = None) -> Value:
    del path
    return Einsum(*promoted(*tensors), equation=equation)


@aten("bilinear")
def _bilinear(input1: Value, input2: Value, weight: Value, bias: Value | None = None) -> Value:
    made = Einsum(input1, weight, input2, equation="...i,oij,...j->...o")
    return made if bias is None else made + bias


@aten("tensordot")
def _tensordot(x: Value, other: Value, dims_self: Any, dims_other: Any) -> Value:
    left = [axis(d, x.rank) for d in dims_self]
    right = [axis(d, other.rank) for d in dims_other]
    keep, more = ([i for i in range(v.rank) if i not in used] for v, used in ((x, left), (other, right)))
    a = Transpose(x, perm=[*keep, *left])
    b = Transpose(other, perm=[*right, *more])
    inner = _size([sizes(x)[i] for i in left])
    product = MatMul(reshaped(a, [-1, inner]), reshaped(b, [inner, -1]))
    return reshaped(product, [*[sizes(x)[i] for i in keep], *[sizes(other)[i] for i in more]])


def _size(dims: list[Any]) -> Any:
    if not all(is_static(d) for d in dims):
        raise UndeterminedError("tensordot over axes of unknown size")
    return math.prod(dims)


@aten("linalg_inv", "inverse")
def inverse(x: Value) -> Value:
    """The matrix that undoes another."""
    return Inverse(x)


@aten("linalg_det", "det")
def _det(x: Value) -> Value:
    from pyflame_rt.ops.onnx.matmul import Det

    return Det(x)


# ---------------------------------------------------------------------- attention


def _causal(q: Value, k: Value) -> Value:
    """Which keys a query sees: those up to its own place."""
    rows, columns = sizes(q)[-2], sizes(k)[-2]
    ones = Expand(constant(True, DType.Bool), shape_value([rows, columns]))
    return Trilu(ones, constant(0, DType.Int64), upper=0)


def _bias(mask: Value, like: Value) -> Value:
    """A mask as numbers to add: nothing where it is true."""
    if mask.dtype is DType.Bool:
        return Where(mask, constant(0.0, like), constant(-math.inf, like))
    return cast(mask, like.dtype)


def _repeated(x: Value, times: int) -> Value:
    if times == 1:
        return x
    *lead, heads, length, width = sizes(x)
    wide = Expand(Unsqueeze(x, [x.rank - 2]), shape_value([*lead, heads, times, length, width]))
    return reshaped(wide, [*lead, heads * times, length, width])


def attended(q: Value, k: Value, v: Value, mask: Value | None, causal: bool, scale: Any) -> tuple[Value, Value, Value]:
    """softmax(q k' / sqrt(d)) v, the weights, and the scores they come from."""
    width = sizes(q)[-1]
    if scale is None and not is_static(width):
        raise UndeterminedError("attention over a width that is only known when running")
    factor = 1 / math.sqrt(width) if scale is None else float(scale)
    scores = MatMul(q * factor, swapped(k, -2, -1))
    if causal:
        scores = scores + _bias(_causal(q, k), scores)
    if mask is not None:
        scores = scores + _bias(mask, scores)
    weights = Softmax(scores, axis=-1)
    if mask is not None and mask.dtype is DType.Bool:
        weights = Where(Not(IsNaN(weights)), weights, constant(0.0, weights))  # a row that sees nothing gives zeros
    made = MatMul(weights, v)
    if mask is not None and mask.dtype is not DType.Bool:  # so it does where the mask is added
        hidden = Equal(ReduceMax(mask, [-1]), constant(-math.inf, mask))
        made, weights = (Where(hidden, constant(0.0, x), x) for x in (made, weights))
    return made, weights, scores


@aten("scaled_dot_product_attention")
def _sdpa(
    query: Value, key: Value, value: Value, attn_mask: Value | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: Any = None, enable_gqa: bool = False,
) -> Value:  # fmt: skip
    if dropout_p:
        raise refuse("attention with dropout; call eval() before saving")
    if enable_gqa:
        times = sizes(query)[-3] // sizes(key)[-3]
        key, value = _repeated(key, int(times)), _repeated(value, int(times))
    return attended(query, key, value, attn_mask, is_causal, scale)[0]


@aten("_scaled_dot_product_flash_attention_for_cpu")
def _flash(
    query: Value, key: Value, value: Value, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: Value | None = None, scale: Any = None,
) -> Any:  # fmt: skip
    made, _, scores = attended(query, key, value, attn_mask, is_causal, scale)
    if dropout_p:
        raise refuse("attention with dropout")
    return made, _logsumexp(scores, [-1])


@aten("_native_multi_head_attention")
def _native_mha(
    query: Value, key: Value, value: Value, embed_dim: int, num_head: int, qkv_weight: Value, qkv_bias: Value,
    proj_weight: Value, proj_bias: Value, mask: Value | None = None, need_weights: bool = True,
    average_attn_weights: bool = True, mask_type: int | None = None,
) -> Any:  # fmt: skip
    from pyflame_rt.importers.aten.shaping import sliced

    del embed_dim
    width = int(sizes(query)[-1])
    heads = []
    for i, x in enumerate((query, key, value)):
        rows = [sliced(w, 0, i * width, (i + 1) * width) for w in (qkv_weight, qkv_bias)]
        apart = reshaped(linear(x, *rows), [*sizes(x)[:-1], num_head, width // num_head])
        heads.append(Transpose(apart, perm=[0, 2, 1, 3]))
    seen = None if mask is None else _encoder_mask(mask, mask_type)
    made, weights, _ = attended(heads[0], heads[1], heads[2], seen, False, None)
    merged = Reshape(Transpose(made, perm=[0, 2, 1, 3]), constant([0, 0, width], DType.Int64))
    out = linear(merged, proj_weight, proj_bias)
    if not need_weights:
        return out, None
    return out, ReduceMean(weights, [1], keepdims=0) if average_attn_weights else weights


def _encoder_mask(mask: Value, kind: int | None) -> Value:
    """In the fast path a mask says what is hidden: 0 hides pairs, 1 keys, 2 is of four axes."""
    if mask.dtype is not DType.Bool:
        added = mask
    else:
        added = Not(mask)
    if kind == 1:
        return Unsqueeze(added, [1, 2])
    return added


@aten("_transformer_encoder_layer_fwd")
def _encoder_layer(
    src: Value, embed_dim: int, num_heads: int, qkv_weight: Value, qkv_bias: Value, proj_weight: Value,
    proj_bias: Value, use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Value, norm_bias_1: Value,
    norm_weight_2: Value, norm_bias_2: Value, ffn_weight_1: Value, ffn_bias_1: Value, ffn_weight_2: Value,
    ffn_bias_2: Value, mask: Value | None = None, mask_type: int | None = None,
) -> Value:  # fmt: skip
    from pyflame_rt.ops.onnx.activation import Gelu, Relu
    from pyflame_rt.ops.onnx.norm import LayerNormalization

    def norm(x: Value, weight: Value, bias: Value) -> Value:
        made = LayerNormalization(x, weight, bias, axis=-1, epsilon=float(eps))
        return made[0] if isinstance(made, tuple) else made

    def attention(x: Value) -> Value:
        return _native_mha(x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False,
                           True, mask_type)[0]  # fmt: skip

    def feed(x: Value) -> Value:
        inner = linear(x, ffn_weight_1, ffn_bias_1)
        return linear(Gelu(inner) if use_gelu else Relu(inner), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attention(norm(src, norm_weight_1, norm_bias_1))
        return x + feed(norm(x, norm_weight_2, norm_bias_2))
    x = norm(src + attention(src), norm_weight_1, norm_bias_1)
    return norm(x + feed(x), norm_weight_2, norm_bias_2)
