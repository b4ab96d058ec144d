"""Attention operators of com.microsoft against ONNX Runtime."""

import numpy as np
import pytest

from pyflame_rt.graph import DType, Node, Shape, TensorType
from pyflame_rt.graph.errors import PyFlameRTError, UnsupportedOperatorError
from pyflame_rt.ops import evaluate, get_op
from pyflame_rt.ops.core.trace import infer_outputs
from pyflame_rt.ops.core.value import Value
from tests.tolerances import within

rng = np.random.default_rng(1)
MS = "com.microsoft"
B, S, N, H = 2, 4, 2, 8
D = N * H


def f32(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def i32(*values):
    return np.array(values, np.int32)


def trimmed(arrays):
    while arrays[-1] is None:
        arrays.pop()
    return arrays


MASKS = {
    "none": None,
    "lengths": i32(4, 2),
    "ends and starts": i32(4, 3, 0, 1),
    "raw": i32([1, 1, 1, 0], [1, 0, 1, 1]),
    "per query": np.tril(np.ones((B, S, S), np.int32)),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_masks(agrees_with_onnxruntime, mask, causal):
    arrays = trimmed([f32(B, S, 6), f32(6, 3 * D), f32(3 * D), MASKS[mask]])
    agrees_with_onnxruntime("Attention", arrays, {"num_heads": N, "unidirectional": causal})


def run(name, arrays, attributes):
    """Our outputs of a node."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    return evaluate(Node("n", name, names, ["y"], attributes, MS), arrays)


def test_attention_with_a_square_mask_for_all_steps():
    arrays = [f32(B, S, 6), f32(6, 3 * D), f32(3 * D)]
    steps = np.tril(np.ones((B, 1, 6, 6), np.int32))
    attributes = {"num_heads": N, "mask_filter_value": -1e9}
    past = f32(2, B, N, 2, H)
    y = run("Attention", [*arrays, steps, past], attributes)[0]
    causal = run("Attention", [*arrays, None, past], {"num_heads": N, "unidirectional": 1})[0]
    np.testing.assert_allclose(y, causal, **within("elements"))


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_with_past(agrees_with_onnxruntime, causal):
    arrays = [f32(B, S, 6), f32(6, 3 * D), f32(3 * D), None, f32(2, B, N, 3, H)]
    attributes = {"num_heads": N, "unidirectional": causal}
    agrees_with_onnxruntime("Attention", arrays, attributes, outputs=["y", "present"])
    masked = [*arrays[:3], i32([1] * 7, [0, 0, 1, 1, 1, 1, 1]), arrays[4]]
    agrees_with_onnxruntime("Attention", masked, attributes, outputs=["y", "present"])


def test_attention_options(agrees_with_onnxruntime):
    arrays = [f32(B, S, 6), f32(6, 3 * D), f32(3 * D), MASKS["raw"], None, f32(1, N, S, S)]
    agrees_with_onnxruntime("Attention", arrays, {"num_heads": N, "scale": 0.3, "mask_filter_value": -50.0})


def test_attention_with_other_sizes_of_values(agrees_with_onnxruntime):
    arrays = [f32(B, S, 6), f32(6, 2 * D + 10), f32(2 * D + 10)]
    agrees_with_onnxruntime("Attention", arrays, {"num_heads": N, "qkv_hidden_sizes": [D, D, 10]})


def test_attention_refuses_what_it_cannot_do():
    arrays = [f32(B, S, 6), f32(6, 3 * D)]
    with pytest.raises(UnsupportedOperatorError, match="do_rotary"):
        run("Attention", arrays, {"num_heads": N, "do_rotary": 1})


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mask", [None, "lengths", "raw"])
@pytest.mark.parametrize("causal", [0, 1])
def test_multi_head_attention(agrees_with_onnxruntime, bias, mask, causal):
    arrays = [f32(B, S, D), f32(B, S, D), f32(B, S, D), f32(3 * D) if bias else None, MASKS[mask or "none"]]
    agrees_with_onnxruntime("MultiHeadAttention", trimmed(arrays), {"num_heads": N, "unidirectional": causal})


def test_multi_head_attention_across(agrees_with_onnxruntime):
    arrays = [f32(B, S, D), f32(B, 6, D), f32(B, 6, 10), f32(2 * D + 10), None, f32(B, N, S, 6)]
    agrees_with_onnxruntime("MultiHeadAttention", arrays, {"num_heads": N, "scale": 0.2})


def test_multi_head_attention_packed():
    q, k, v = f32(B, S, N, H), f32(B, S, N, H), f32(B, S, N, H)
    apart = run("MultiHeadAttention", [x.reshape(B, S, D) for x in (q, k, v)], {"num_heads": N})[0]
    keys = run("MultiHeadAttention", [q.reshape(B, S, D), np.stack([k, v], 3)], {"num_heads": N})[0]
    everything = run("MultiHeadAttention", [np.stack([q, k, v], 3)], {"num_heads": N})[0]
    np.testing.assert_array_equal(keys, apart)
    np.testing.assert_array_equal(everything, apart)


def test_multi_head_attention_keys_by_head(agrees_with_onnxruntime):
    arrays = [f32(B, S, D), f32(B, N, 6, H), f32(B, N, 6, H), f32(3 * D)]
    agrees_with_onnxruntime("MultiHeadAttention", arrays, {"num_heads": N})


@pytest.mark.parametrize("causal", [0, 1])
def test_multi_head_attention_with_past(agrees_with_onnxruntime, causal):
    arrays = [f32(B, S, D), f32(B, S, D), f32(B, S, D), None, None, None, f32(B, N, 3, H), f32(B, N, 3, H)]
    agrees_with_onnxruntime(
        "MultiHeadAttention", arrays, {"num_heads": N, "unidirectional": causal}, outputs=["y", "k", "v"]
    )


def test_multi_head_attention_scores(agrees_with_onnxruntime):
    arrays = [f32(B, S, D), f32(B, S, D), f32(B, S, D), None, None, f32(1, 1, S, S)]
    agrees_with_onnxruntime("MultiHeadAttention", arrays, {"num_heads": N}, outputs=["y", "k", "v", "qk"])


def test_decoder_masked_attention(agrees_with_onnxruntime):
    past = 3
    arrays = [
        f32(B, 1, D),
        f32(B, 1, D),
        f32(B, 1, D),
        None,
        None,
        f32(B, N, 6, H),
        f32(B, N, 6, H),
        i32(past),
        None,
        None,
        f32(3 * D),
    ]
    attributes = {"num_heads": N, "past_present_share_buffer": 1}
    ours = run("DecoderMaskedMultiHeadAttention", arrays, attributes)
    whole = [*arrays[:3], arrays[10], None, None, arrays[5][:, :, :past], arrays[6][:, :, :past]]
    y, k, _, _ = run("MultiHeadAttention", whole, {"num_heads": N})
    np.testing.assert_allclose(ours[0], y, **within("elements"))
    np.testing.assert_array_equal(ours[1][:, :, : past + 1], k)
    np.testing.assert_array_equal(ours[1][:, :, past + 1 :], arrays[5][:, :, past + 1 :])


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("positions", ["one", "each"])
def test_rotary_embedding(agrees_with_onnxruntime, interleaved, rank, positions):
    x = f32(B, S, D) if rank == 3 else f32(B, N, S, H)
    places = np.array([2]) if positions == "one" else np.array([[0, 1, 2, 3], [5, 6, 7, 8]])
    arrays = [x, places.astype(np.int64), f32(12, H // 2), f32(12, H // 2)]
    agrees_with_onnxruntime("RotaryEmbedding", arrays, {"interleaved": interleaved})


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding_of_part_of_a_head(agrees_with_onnxruntime, interleaved):
    arrays = [f32(B, S, D), np.array([1]), f32(12, 2), f32(12, 2)]
    attributes = {"num_heads": N, "rotary_embedding_dim": 4, "interleaved": interleaved}
    agrees_with_onnxruntime("RotaryEmbedding", arrays, attributes)


def t5_bucket(distance, buckets, furthest, both):
    """The bucket of one distance (key minus query), by the definition in T5's paper code."""
    first = 0
    if both:
        buckets //= 2
        first = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    far = exact + int(np.log(distance / exact) / np.log(furthest / exact) * (buckets - exact))
    return first + min(far, buckets - 1)


@pytest.mark.parametrize("both", [0, 1])
def test_relative_position_bias(both):
    table = f32(32, N)
    attributes = {"max_distance": 50, "is_bidirectional": both}
    (y,) = run("RelativePositionBias", [table, np.array([70]), np.array([65])], attributes)
    buckets = np.array([[t5_bucket(k - q, 32, 50, both) for k in range(65)] for q in range(70)])
    np.testing.assert_array_equal(y, table[buckets].transpose(2, 0, 1)[None])


QN, KN, GH = 4, 2, 16


def group_query(past, new, buffer, *, packed=False, rotary=False, lengths=None, extra=()):
    """Inputs of GroupQueryAttention: ``past`` entries in a buffer, ``new`` words."""
    total = past + new
    B = 1 if past and new > 1 else 2  # all ONNX Runtime takes
    if packed:
        qkv = [f32(B, new, (QN + 2 * KN) * GH), None, None]
    else:
        qkv = [f32(B, new, QN * GH), f32(B, new, KN * GH), f32(B, new, KN * GH)]
    caches = [f32(16, GH // 2), f32(16, GH // 2)] if rotary else [None, None]
    cache = [f32(B, KN, buffer, GH), f32(B, KN, buffer, GH)] if buffer else [None, None]
    lengths = [total] * B if lengths is None else lengths
    arrays = [*qkv, *cache, i32(*lengths) - 1, np.array(max(lengths), np.int32), *caches, *extra]
    return trimmed(arrays)


PRESENT = ["y", "k", "v"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize(("past", "new", "buffer"), [(0, 4, 0), (0, 4, 6), (3, 1, 3), (3, 1, 6), (3, 2, 6)])
def test_group_query_attention(agrees_with_onnxruntime, packed, rotary, past, new, buffer):
    arrays = group_query(past, new, buffer, packed=packed, rotary=rotary)
    attributes = {"num_heads": QN, "kv_num_heads": KN, "do_rotary": int(rotary)}
    agrees_with_onnxruntime("GroupQueryAttention", arrays, attributes, outputs=PRESENT)


def test_group_query_attention_rows_of_different_length(agrees_with_onnxruntime):
    arrays = group_query(3, 1, 6, rotary=True, lengths=[4, 2])
    attributes = {"num_heads": QN, "kv_num_heads": KN, "do_rotary": 1, "rotary_interleaved": 1}
    agrees_with_onnxruntime("GroupQueryAttention", arrays, attributes, outputs=PRESENT)


@pytest.mark.parametrize(
    "options",
    [
        {"local_window_size": 2},
        {"softcap": 5.0},
        {"smooth_softmax": 1},
        {"scale": 0.7},
        {"local_window_size": 3, "softcap": 2.0},
    ],
    ids=str,
)
@pytest.mark.parametrize(("past", "new"), [(0, 4), (4, 1)])
def test_group_query_attention_options(agrees_with_onnxruntime, options, past, new):
    arrays = group_query(past, new, 6 if past else 0)
    attributes = {"num_heads": QN, "kv_num_heads": KN, **options}
    agrees_with_onnxruntime("GroupQueryAttention", arrays, attributes, outputs=PRESENT)


def test_group_query_attention_sinks_bias_and_positions(agrees_with_onnxruntime):
    attributes = {"num_heads": QN, "kv_num_heads": KN}
    bias, sink = f32(1, QN, 4, 4), f32(QN)
    agrees_with_onnxruntime(
        "GroupQueryAttention", group_query(0, 4, 0, extra=[None, bias]), attributes, outputs=PRESENT
    )
    agrees_with_onnxruntime(
        "GroupQueryAttention", group_query(0, 4, 0, extra=[None, None, sink]), attributes, outputs=PRESENT
    )
    # ONNX Runtime reads only the first position of a prompt, and counts on from it.
    places = np.array([[4, 5, 6, 7], [4, 5, 6, 7]])
    turned = group_query(0, 4, 0, rotary=True, extra=[places])
    agrees_with_onnxruntime("GroupQueryAttention", turned, {**attributes, "do_rotary": 1}, outputs=PRESENT)


def test_group_query_attention_refuses_quantized_caches():
    attributes = {"num_heads": QN, "kv_num_heads": KN, "k_quant_type": "PER_TENSOR"}
    arrays = group_query(0, 4, 0)
    with pytest.raises(PyFlameRTError, match="quantized cache"):
        run("GroupQueryAttention", arrays, attributes)


def test_half_precision_is_computed_in_single():
    arrays = [a.astype(np.float16) for a in (f32(B, S, 6), f32(6, 3 * D), f32(3 * D))]
    attributes = {"num_heads": N, "unidirectional": 1}
    y = run("Attention", arrays, attributes)[0]
    exact = run("Attention", [a.astype(np.float32) for a in arrays], attributes)[0]
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, exact, atol=2e-2)


def test_symbolic_sizes_are_kept():
    def value(*dims, dtype=DType.Float32):
        return Value("x", TensorType(dtype, Shape(dims)))

    op = get_op("Attention", MS)
    inputs = [value("B", "S", 6), value(6, 3 * D), value(3 * D)]
    y, present = infer_outputs(op, inputs, op.signature.bind({"num_heads": N, "unidirectional": 1}, "n"))
    assert str(y.type) == f"float32[B, S, {D}]"
    assert present.type.shape[2] == N
    op = get_op("GroupQueryAttention", MS)
    inputs = [value("B", "S", QN * GH), value("B", "S", KN * GH), value("B", "S", KN * GH), value("B", KN, "P", GH)]
    inputs += [inputs[-1], value("B", dtype=DType.Int32), value(dtype=DType.Int32)]
    attributes = {"num_heads": QN, "kv_num_heads": KN}
    y, k, _ = infer_outputs(op, inputs, op.signature.bind(attributes, "n"))
    assert str(y.type) == f"float32[B, S, {QN * GH}]"
    assert (k.type.shape[1], k.type.shape[3]) == (KN, GH)


def test_group_query_attention_may_leave_out_inputs_in_the_middle():
    attributes = {"num_heads": QN, "kv_num_heads": KN}
    arrays = group_query(0, 4, 0, packed=True)
    assert arrays[1] is None
    assert run("GroupQueryAttention", arrays, attributes)[0].shape == (2, 4, QN * GH)
