"""Attention: against a plain NumPy form, caches, masks, rotation, recurrences, subgraphs."""

import ml_dtypes
import numpy as np
import pytest

from pyflame_rt.graph import AnyType, DType, Graph, Node, Shape, TensorInfo, TensorType, symbol
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.ops import Context, Value, evaluate, get_op
from pyflame_rt.ops.core.trace import infer_outputs
from tests.tolerances import within

RNG = np.random.default_rng(23)
N, S, P = symbol("N"), symbol("S"), symbol("P")
LIBRARIES = ("numpy", "torch", "mlx")
ALL = ("y", "k", "v", "qk")


def f32(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def run(op, *arrays, library="numpy", outputs=("y",), domain="", **attributes):
    context = Context.of(library)
    moved = [None if a is None else context.library.from_numpy(np.ascontiguousarray(a)) for a in arrays]
    results = evaluate(Node("n", op, ["x"] * len(arrays), outputs, attributes, domain), moved, context)
    return [context.library.to_numpy(r) for r in results]


def infer(op, *kinds, domain="", **attributes):
    found = get_op(op, domain)
    values = [
        None if k is None else Value("v", k if isinstance(k, TensorType) else TensorType(DType.Float32, Shape(k)))
        for k in kinds
    ]
    return [v.type for v in infer_outputs(found, values, found.signature.bind(attributes, op))]


def plain(q, k, v, allowed=None, bias=0.0, scale=None):
    """Attention as one writes it on paper; allowed says what may be seen."""
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x.astype(float), group, 1) for x in (k, v))
    scores = q.astype(float) @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale) + bias
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        e = np.exp(scores - scores.max(-1, keepdims=True))
        p = np.nan_to_num(e / e.sum(-1, keepdims=True))
    return p @ v, p


def close(got, want):
    np.testing.assert_allclose(got, want, **within("sums"))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
def test_shared_heads_in_both_layouts(library, heads):
    q, k, v = f32(2, heads[0], 3, 8), f32(2, heads[1], 5, 8), f32(2, heads[1], 5, 6)
    expected, _ = plain(q, k, v)
    y, *_ = run("Attention", q, k, v, library=library)
    close(y, expected)
    flat = [x.transpose(0, 2, 1, 3).reshape(2, x.shape[2], -1) for x in (q, k, v)]
    y3, *_ = run("Attention", *flat, q_num_heads=heads[0], kv_num_heads=heads[1], library=library)
    close(y3, expected.transpose(0, 2, 1, 3).reshape(2, 3, -1))


@pytest.mark.parametrize("library", LIBRARIES)
def test_cache_with_causal_frontier(library):
    q, k, v, past_k, past_v = f32(2, 2, 3, 4), f32(2, 2, 3, 4), f32(2, 2, 3, 4), f32(2, 2, 4, 4), f32(2, 2, 4, 4)
    y, present_k, present_v, qk = run("Attention", q, k, v, None, past_k, past_v, is_causal=1, library=library,
                                      outputs=ALL, qk_matmul_output_mode=3)  # fmt: skip
    whole_k, whole_v = np.concatenate([past_k, k], 2), np.concatenate([past_v, v], 2)
    expected, shares = plain(q, whole_k, whole_v, np.arange(7) <= np.arange(3)[:, None] + 4)
    close(y, expected)
    close(qk, shares)
    np.testing.assert_array_equal(present_k, whole_k)
    np.testing.assert_array_equal(present_v, whole_v)


def test_masks_windows_and_lengths_compose():
    q, k, v = f32(2, 2, 3, 4), f32(2, 2, 6, 4), f32(2, 2, 6, 4)
    lengths = np.array([6, 4])
    i, j = np.arange(3)[:, None], np.arange(6)
    place = i + lengths[:, None, None, None] - 3
    allowed = (j < lengths[:, None, None, None]) & (j <= place) & (j >= place - 2)
    mask = RNG.random((3, 6)) > 0.3
    y, *_ = run("Attention", q, k, v, mask, None, None, lengths, is_causal=1, left_window_size=2)
    close(y, plain(q, k, v, allowed & mask)[0])
    added = f32(2, 1, 3, 6)
    y, *_ = run("Attention", q, k, v, added, right_window_size=1, scale=0.3)
    close(y, plain(q, k, v, j <= i + 1, added, 0.3)[0])


@pytest.mark.parametrize("kind", [bool, np.float32])
def test_short_masks_hide_the_rest(kind):
    q, k, v = f32(1, 1, 2, 4), f32(1, 1, 5, 4), f32(1, 1, 5, 4)
    mask = np.ones((2, 3), bool) if kind is bool else np.zeros((2, 3), np.float32)
    y, *_ = run("Attention", q, k, v, mask)
    close(y, plain(q, k[:, :, :3], v[:, :, :3])[0])


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_query_that_sees_nothing_gives_zeros(library):
    q, k, v = f32(1, 1, 2, 4), f32(1, 1, 3, 4), f32(1, 1, 3, 4)
    mask = np.array([[False] * 3, [True] * 3])
    y, _, _, qk = run("Attention", q, k, v, mask, library=library, outputs=ALL, qk_matmul_output_mode=3)
    assert not y[0, 0, 0].any()
    assert not qk[0, 0, 0].any()
    close(y[0, 0, 1], plain(q, k, v)[0][0, 0, 1])


def test_what_the_scores_show():
    q, k, v, mask = f32(1, 1, 2, 4), f32(1, 1, 3, 4), f32(1, 1, 3, 4), f32(2, 3)
    raw = q @ k.swapaxes(-1, -2) / 2
    capped = 0.5 * np.tanh(raw / 0.5)
    for mode, expected in enumerate((raw, capped, capped + mask)):
        qk = run("Attention", q, k, v, mask, softcap=0.5, qk_matmul_output_mode=mode, outputs=ALL)[3]
        close(qk, expected)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("precision", [None, 1])
def test_element_types(dtype, precision):
    q, k, v = (f32(1, 2, 3, 4).astype(dtype) for _ in range(3))
    given = {} if precision is None else {"softmax_precision": precision}
    outputs = run("Attention", q, k, v, outputs=ALL, is_causal=1, qk_matmul_output_mode=3, **given)
    assert {o.dtype for o in outputs} == {np.dtype(dtype)}
    expected = plain(q, k, v, np.tri(3, dtype=bool))[0]
    np.testing.assert_allclose(outputs[0].astype(float), expected, rtol=0.05, atol=0.05)


def test_attention_shapes():
    kinds = infer("Attention", [N, 4, S, 8], [N, 2, S, 8], [N, 2, S, 6], None, [N, 2, P, 8], [N, 2, P, 6], is_causal=1)
    assert [k.shape for k in kinds[:3]] == [[N, 4, S, 6], [N, 2, P + S, 8], [N, 2, P + S, 6]]
    (y, *_) = infer("Attention", [N, S, 32], [N, P, 16], [N, P, 12], q_num_heads=4, kv_num_heads=2)
    assert y.rank == 3


@pytest.mark.parametrize(
    ("arrays", "attributes", "error"),
    [
        ([(1, 3, 8)] * 3, {}, InputError),
        ([(1, 3, 2, 4), (1, 2, 2, 4), (1, 2, 2, 4)], {}, ShapeMismatchError),
        ([(1, 2, 7)] * 3, {"q_num_heads": 2, "kv_num_heads": 2}, ShapeMismatchError),
        ([(1, 1, 2, 4)] * 3, {"qk_matmul_output_mode": 4}, InputError),
    ],
)
def test_attention_errors(arrays, attributes, error):
    with pytest.raises(error):
        run("Attention", *[f32(*s) for s in arrays], **attributes)


def test_caches_exclude_each_other():
    x = f32(1, 1, 2, 4)
    with pytest.raises(InputError, match="together"):
        run("Attention", x, x, x, None, x)
    with pytest.raises(InputError, match="excludes"):
        run("Attention", x, x, x, None, x, x, np.array([2]))


def test_attention_gradient(gradients_match):
    gradients_match(
        "Attention", [RNG.normal(size=s) for s in ((1, 2, 2, 3), (1, 1, 3, 3), (1, 1, 3, 2))], {"softcap": 2.0}
    )


# ---------------------------------------------------------------------- rotary


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotation_is_a_complex_product(library, interleaved):
    x, angles = f32(2, 3, 5, 8), RNG.uniform(0, 6, (9, 3)).astype(np.float32)
    ids = RNG.integers(0, 9, (2, 5))
    (y,) = run("RotaryEmbedding", x, np.cos(angles), np.sin(angles), ids, interleaved=interleaved,
               rotary_embedding_dim=6, library=library)  # fmt: skip
    pick = (slice(0, 6, 2), slice(1, 6, 2)) if interleaved else (slice(0, 3), slice(3, 6))
    turned = (x[..., pick[0]] + 1j * x[..., pick[1]]) * np.exp(1j * angles[ids])[:, None]
    expected = x.copy()
    expected[..., pick[0]], expected[..., pick[1]] = turned.real, turned.imag
    close(y, expected)
    flat = x.transpose(0, 2, 1, 3).reshape(2, 5, 24)
    (y3,) = run("RotaryEmbedding", flat, np.cos(angles)[ids], np.sin(angles)[ids], interleaved=interleaved,
                rotary_embedding_dim=6, num_heads=3, library=library)  # fmt: skip
    close(y3, expected.transpose(0, 2, 1, 3).reshape(2, 5, 24))


def test_rotary_shapes_and_errors():
    assert infer("RotaryEmbedding", [N, 4, S, 8], [N, S, 4], [N, S, 4])[0].shape == [N, 4, S, 8]
    with pytest.raises(ShapeMismatchError, match="angles"):
        run("RotaryEmbedding", f32(1, 1, 2, 8), f32(1, 2, 3), f32(1, 2, 3))
    with pytest.raises(InputError, match="num_heads"):
        run("RotaryEmbedding", f32(1, 2, 8), f32(1, 2, 4), f32(1, 2, 4))


# ---------------------------------------------------------------------- linear


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_linear_attention_step_by_step(library, rule):
    q, k, v = f32(1, 4, 8), f32(1, 4, 4), f32(1, 4, 6)  # 4 query heads of 2, 2 shared heads of 2 and 3
    decay = -np.abs(f32(1, 4, 2)) if "gated" in rule else None
    beta = np.abs(f32(1, 4, 2)) if "delta" in rule else None
    given = {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": rule, "library": library}
    whole, state = run("LinearAttention", q, k, v, None, decay, beta, **given)
    s = np.zeros((2, 2, 3))
    for t in range(4):
        for h in range(2):
            key, value = k[0, t, 2 * h : 2 * h + 2].astype(float), v[0, t, 3 * h : 3 * h + 3].astype(float)
            if decay is not None:
                s[h] *= np.exp(decay[0, t, h])
            if beta is not None:
                value = beta[0, t, h] * (value - key @ s[h])
            s[h] += np.outer(key, value)
        read = [q[0, t, 2 * g : 2 * g + 2] @ s[g // 2] / np.sqrt(2) for g in range(4)]
        close(whole[0, t], np.concatenate(read))
    close(state[0], s)


def test_linear_attention_goes_on_where_it_stopped():
    q, k, v = f32(2, 5, 4), f32(2, 5, 4), f32(2, 5, 4)
    given = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"}
    whole, state = run("LinearAttention", q, k, v, **given)
    first, kept = run("LinearAttention", q[:, :3], k[:, :3], v[:, :3], **given)
    second, last = run("LinearAttention", q[:, 3:], k[:, 3:], v[:, 3:], kept, **given)
    close(np.concatenate([first, second], 1), whole)
    close(last, state)
    shapes = [t.shape for t in infer("LinearAttention", [N, S, 8], [N, S, 4], [N, S, 6], q_num_heads=4, kv_num_heads=2)]
    assert shapes == [[N, S, 12], [N, 2, 2, 3]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"update_rule": "cubic"},
        {"update_rule": "gated"},
        {"update_rule": "linear", "q_num_heads": 3, "kv_num_heads": 2},
    ],
)
def test_linear_attention_errors(wrong):
    with pytest.raises(InputError):
        run(
            "LinearAttention",
            f32(1, 2, 4),
            f32(1, 2, 4),
            f32(1, 2, 4),
            **{"q_num_heads": 2, "kv_num_heads": 2, **wrong},
        )


# ---------------------------------------------------------------------- subgraphs


def modifier(op, *extra):
    """A subgraph that applies one operator to its input and to values from outside."""
    g = Graph("mod")
    g.add_input("s", None, DType.Float32)
    for name in extra:
        g.add_input(TensorInfo(name, type=AnyType()))
    g.add_initializer("two", np.array(2, np.float32))
    g.add_node("m", op, ["s", extra[0] if extra else "two"], ["o"])
    g.add_output("o", None, DType.Float32)
    return g


@pytest.mark.parametrize("library", LIBRARIES)
def test_flex_attention_runs_subgraphs(library):
    q, k, v, bias = f32(1, 4, 3, 4), f32(1, 2, 5, 4), f32(1, 2, 5, 6), f32(3, 5)
    (y,) = run("FlexAttention", q, k, v, bias, domain="ai.onnx.preview", library=library, captured=1,
               score_mod=modifier("Add", "outer"), prob_mod=modifier("Mul", "outer"))  # fmt: skip
    _, shares = plain(q, k, v, bias=bias)
    close(y, (shares * bias) @ np.repeat(v, 2, 1))
    (half,) = run("FlexAttention", q, k, v, domain="ai.onnx.preview", prob_mod=modifier("Div"), scale=0.2)
    close(half, plain(q, k, v, scale=0.2)[0] / 2)


def test_flex_attention_types():
    half = TensorType(DType.Float16, Shape([N, 4, S, 8]))
    (kind,) = infer("FlexAttention", half, half, half, domain="ai.onnx.preview", score_mod=modifier("Mul"))
    assert str(kind) == "float16[N, 4, S, 8]"
    with pytest.raises(ShapeMismatchError, match="four axes"):
        run("FlexAttention", f32(2, 3, 4), f32(2, 3, 4), f32(2, 3, 4), domain="ai.onnx.preview")
