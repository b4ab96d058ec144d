"""Attention as one kernel: found in the forms exporters write, right for odd sizes, masks and shared heads."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import pyflame_rt
from pyflame_rt.backends.cpu.kernels.attention import AttentionKernel

FLOAT = TensorProto.FLOAT
node = helper.make_node


def constant(name, value, dtype=np.float32):
    return numpy_helper.from_array(np.asarray(value, dtype), name)


def build(nodes, inputs, weights=(), outputs=("y",)):
    infos = [helper.make_tensor_value_info(n, FLOAT, [None] * rank) for n, rank in inputs.items()]
    outs = [helper.make_tensor_value_info(n, FLOAT, None) for n in outputs]
    graph = helper.make_graph(nodes, "g", infos, outs, list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()


def run(data, feed, **options):
    chosen = pyflame_rt.SessionOptions()
    for name, value in options.items():
        setattr(chosen, name, value)
    session = pyflame_rt.InferenceSession(data, chosen)
    return session.run(None, feed), session.explain()


def assert_same(data, feed, *, fused=True, tolerance=2e-5):
    got, explanation = run(data, feed)
    want = pyflame_rt.InferenceSession(data, providers=["ReferenceExecutionProvider"]).run(None, feed)
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    assert any("Attention" in row.runs_on for row in explanation.rows) == fused
    assert explanation.host_step_count == 0


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


PLAIN = [
    node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
    node("MatMul", ["q", "kt"], ["s"]),
    node("Mul", ["s", "c"], ["t"]),
    node("Add", ["t", "mask"], ["m"]),
    node("Softmax", ["m"], ["p"], axis=-1),
    node("MatMul", ["p", "v"], ["y"]),
]


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(st.integers(1, 2), st.integers(1, 3)),
    st.integers(1, 11),
    st.integers(1, 40),
    st.integers(1, 19),
    st.integers(1, 37),
    st.integers(0, 1000),
)
def test_any_sizes(batch, queries, keys, depth, width, seed):
    q, k, v = numbers(seed, *batch, queries, depth), numbers(seed + 1, *batch, keys, depth), None
    v = numbers(seed + 2, *batch, keys, width)
    mask = np.where(numbers(seed, batch[0], 1, queries, keys) > 0.7, -np.inf, 0).astype(np.float32)
    mask[..., 0] = 0
    data = build(PLAIN, {"q": 4, "k": 4, "v": 4, "mask": 4}, [constant("c", 0.37)])
    assert_same(data, {"q": q, "k": k, "v": v, "mask": mask})


@pytest.mark.parametrize("queries", [1, 3, 6])
@pytest.mark.parametrize("keys", [AttentionKernel.TILE - 1, AttentionKernel.TILE + 5, 3 * AttentionKernel.TILE])
def test_more_keys_than_a_tile_holds(queries, keys):
    q, k, v = numbers(0, 1, 2, queries, 8) * 3, numbers(1, 1, 2, keys, 8), numbers(2, 1, 2, keys, 24)
    mask = np.zeros((1, 1, queries, keys), np.float32)
    mask[..., : keys // 2] = -np.inf  # whole tiles without any key
    data = build(PLAIN, {"q": 4, "k": 4, "v": 4, "mask": 4}, [constant("c", 0.5)])
    assert_same(data, {"q": q, "k": k, "v": v, "mask": mask})
    mask[..., 0, :] = -np.inf
    got = run(data, {"q": q, "k": k, "v": v, "mask": mask})[0][0]
    assert np.isnan(got[:, :, 0]).all()
    assert not np.isnan(got[:, :, 1:]).any()


def test_a_constant_mask_and_a_division():
    nodes = [
        node("MatMul", ["q", "k"], ["s"]),
        node("Div", ["s", "c"], ["t"]),
        node("Add", ["causal", "t"], ["m"]),
        node("Softmax", ["m"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    causal = np.triu(np.full((9, 9), -np.inf, np.float32), 1)
    data = build(nodes, {"q": 3, "k": 3, "v": 3}, [constant("c", 4), constant("causal", causal)])
    assert_same(data, {"q": numbers(0, 5, 9, 16), "k": numbers(1, 5, 16, 9), "v": numbers(2, 5, 9, 16)})


def test_heads_side_by_side_as_exporters_write_them():
    """One product for queries, keys and values, both scaled; heads are turned to and fro."""
    nodes = [
        node("Reshape", ["x", "five"], ["r"]),
        node("Transpose", ["r"], ["t"], perm=[2, 0, 3, 1, 4]),
        node("Split", ["t"], ["q5", "k5", "v5"], axis=0, num_outputs=3),
        node("Squeeze", ["q5", "zero"], ["q4"]),
        node("Squeeze", ["k5", "zero"], ["k4"]),
        node("Squeeze", ["v5", "zero"], ["v4"]),
        node("Mul", ["q4", "c"], ["q"]),
        node("Transpose", ["k4"], ["kt"], perm=[0, 1, 3, 2]),
        node("Mul", ["kt", "c"], ["k"]),
        node("MatMul", ["q", "k"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "v4"], ["o"]),
        node("Transpose", ["o"], ["b"], perm=[0, 2, 1, 3]),
        node("Reshape", ["b", "three"], ["y"]),
    ]
    weights = [constant("five", [0, 0, 3, 4, 8], np.int64), constant("three", [0, 0, 32], np.int64)]
    data = build(nodes, {"x": 3}, [*weights, constant("zero", [0], np.int64), constant("c", [0.6])])
    assert_same(data, {"x": numbers(0, 2, 13, 96)})


@pytest.mark.parametrize("queries", [1, 5])
def test_heads_of_keys_that_queries_share(queries):
    nodes = [
        node("Concat", ["past_k", "new_k"], ["k"], axis=2),
        node("Concat", ["past_v", "new_v"], ["v"], axis=2),
        *(
            made
            for n in "kv"
            for made in (
                node("Unsqueeze", [n, "two"], [f"{n}5"]),
                node("Expand", [f"{n}5", "wide"], [f"{n}w"]),
                node("Reshape", [f"{n}w", "heads"], [f"{n}r"]),
            )
        ),
        node("Transpose", ["kr"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["s"]),
        node("Mul", ["s", "c"], ["t"]),
        node("Softmax", ["t"], ["p"], axis=-1),
        node("MatMul", ["p", "vr"], ["y"]),
    ]
    weights = [constant("two", [2], np.int64), constant("wide", [1, 2, 3, 1, 1], np.int64)]
    weights += [constant("heads", [1, 6, -1, 8], np.int64), constant("c", 0.35)]
    names = ("q", "past_k", "new_k", "past_v", "new_v")
    data = build(nodes, dict.fromkeys(names, 4), weights, outputs=("y", "k", "v"))
    feed = {"q": numbers(0, 1, 6, queries, 8)}
    feed |= {n: numbers(i, 1, 2, 17 if "past" in n else queries, 8) for i, n in enumerate(names[1:])}
    assert_same(data, feed)


SHARED = [
    *(
        made
        for n in "kv"
        for made in (
            node("Unsqueeze", [n, "two"], [f"{n}5"]),
            node("Expand", [f"{n}5", "wide"], [f"{n}w"]),
            node("Reshape", [f"{n}w", "heads"], [f"{n}r"]),
        )
    ),
    node("Transpose", ["kr"], ["kt"], perm=[0, 1, 3, 2]),
    *PLAIN[1:4],
    node("Softmax", ["m"], ["p"], axis=-1),
    node("IsNaN", ["p"], ["n"]),
    node("Where", ["n", "zero", "p"], ["w"]),
    node("MatMul", ["w", "vr"], ["o"]),
    node("Transpose", ["o"], ["y"], perm=[0, 2, 1, 3]),
]


@pytest.mark.parametrize("repeat", [2, 3, 5, 8])
@pytest.mark.parametrize("keys", [1, 30, AttentionKernel.TILE + 7])
@pytest.mark.parametrize("masks", [1, "heads"])
def test_one_query_of_heads_that_share_keys(repeat, keys, masks):
    """They go together through the keys: each has its own mask, and one may see nothing."""
    batch, heads, depth = 2, 2 * repeat, 21
    weights = [constant("two", [2], np.int64), constant("wide", [batch, 2, repeat, 1, 1], np.int64)]
    weights += [constant("heads", [batch, heads, -1, depth], np.int64), constant("c", 0.35), constant("zero", 0)]
    feed = {"q": numbers(0, batch, heads, 1, depth), "k": numbers(1, batch, 2, keys, depth)}
    feed |= {"v": numbers(2, batch, 2, keys, depth)}
    mask = np.where(numbers(3, batch, heads if masks == "heads" else 1, 1, keys) > 1, -np.inf, 0.0)
    mask[1, -1] = -np.inf
    data = build(SHARED, dict.fromkeys((*feed, "mask"), 4), weights)
    assert_same(data, {**feed, "mask": mask.astype(np.float32)})


def test_what_only_looks_like_attention():
    """Weights that are an output, a mask that is scaled, a softmax over another axis."""
    q, k, v, mask = numbers(0, 1, 2, 5, 4), numbers(1, 1, 2, 6, 4), numbers(2, 1, 2, 6, 4), numbers(3, 1, 1, 5, 6)
    feed = {"q": q, "k": k, "v": v, "mask": mask}
    inputs = dict.fromkeys(feed, 4)
    c = [constant("c", 0.37)]
    assert_same(build(PLAIN, inputs, c, outputs=("y", "p")), feed, fused=False)
    scaled = [*PLAIN[:2], node("Add", ["s", "mask"], ["t"]), node("Mul", ["t", "c"], ["m"]), *PLAIN[4:]]
    assert_same(build(scaled, inputs, c), feed, fused=False)
    other = [*PLAIN[:4], node("Softmax", ["m"], ["p"], axis=-2), PLAIN[5]]
    assert_same(build(other, inputs, c), feed, fused=False)
    by_query = feed | {"mask": numbers(4, 1, 1, 5, 1)}  # the same for all keys: the steps run one by one
    assert_same(build(PLAIN, inputs, c), by_query, fused=False)


def test_threads_do_not_change_a_bit():
    feed = {"q": numbers(0, 2, 3, 70, 32), "k": numbers(1, 2, 3, 90, 32), "v": numbers(2, 2, 3, 90, 32)}
    feed["mask"] = numbers(3, 1, 1, 70, 90)
    data = build(PLAIN, dict.fromkeys(feed, 4), [constant("c", 0.2)])
    results = [run(data, feed, num_threads=threads)[0][0] for threads in (1, 2, 5)]
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


GUARDED = [
    *PLAIN[:5],
    node("IsNaN", ["p"], ["n"]),
    node("Where", ["n", "zero", "p"], ["w"]),
    node("MatMul", ["w", "v"], ["y"]),
]


@pytest.mark.parametrize("queries", [1, 3, 6])
@pytest.mark.parametrize("keys", [7, AttentionKernel.TILE + 5])
def test_shares_that_are_no_numbers_may_be_zeros(queries, keys):
    """As torch's exporter writes scaled_dot_product_attention: a query that sees nothing gives zeros."""
    q, k, v = numbers(0, 1, 2, queries, 8) * 3, numbers(1, 1, 2, keys, 8), numbers(2, 1, 2, keys, 24)
    mask = np.zeros((1, 1, queries, keys), np.float32)
    mask[..., 0, :] = -np.inf
    data = build(GUARDED, {"q": 4, "k": 4, "v": 4, "mask": 4}, [constant("c", 0.5), constant("zero", 0)])
    assert_same(data, {"q": q, "k": k, "v": v, "mask": mask})
    q[0, 1, -1] = np.nan
    assert_same(data, {"q": q, "k": k, "v": v, "mask": mask})
    v[0, 0, 2, 3] = np.inf  # zero times that is no number
    assert_same(data, {"q": q, "k": k, "v": v, "mask": mask})
    other = [n if n.op_type != "Where" else node("Where", ["n", "c", "p"], ["w"]) for n in GUARDED]
    plain = build(other, {"q": 4, "k": 4, "v": 4, "mask": 4}, [constant("c", 0.5)])
    assert_same(plain, {"q": q, "k": k, "v": v, "mask": mask}, fused=False)
