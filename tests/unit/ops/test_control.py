"""If, Loop and Scan: captures, early stops, no turns at all, older forms, types that settle."""

import numpy as np
import onnx
import onnx.parser
import pytest

import pyflame_rt
from pyflame_rt.graph import DType, Shape, TensorType, symbol
from pyflame_rt.graph.errors import MemoryLimitError, PyFlameRTError
from pyflame_rt.importers.onnx_importer import graph_from_proto
from pyflame_rt.ops import Context, Program, infer_types
from pyflame_rt.ops.core.evaluate import to_host, to_library

LIBRARIES = ("numpy", "torch", "mlx")
N, S = symbol("N"), symbol("S")


def read(text, opset=21):
    return graph_from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n{text}'))


def run(graph, *arrays, library="numpy"):
    context = Context.of(library)
    made = Program(graph).run([to_library(a, context.library) for a in arrays], context)
    return [to_host(value, context.library) for value in made]


def types(graph):
    assert infer_types(graph, strict=True) == []
    return [graph.value_type(info.name) for info in graph.outputs]


def kind(dtype, *dims):
    return TensorType(dtype, Shape(dims))


# ---------------------------------------------------------------------- If

CHOICE = """
g (bool c, float[N, 2] x, float[1] w) => (float[] y, int64[] n) {
  z = Add (x, w)
  y, n = If (c) <
    then_branch = a () => (float[] ya, int64[] na) { ya = Mul (z, w)  na = Shape (x) },
    else_branch = b () => (float[] yb, int64[] nb) {
      yb = Concat <axis = 0> (z, z)  nb = Constant <value_ints = [7, 7]> () }
  >
}
"""


@pytest.mark.parametrize("library", LIBRARIES)
def test_if_runs_one_branch_on_what_it_captures(library):
    graph = read(CHOICE)
    x, w = np.float32([[1, 2]]), np.float32([3])
    y, n = run(graph, np.array(True), x, w, library=library)
    assert (y.tolist(), n.tolist()) == ([[12, 15]], [1, 2])
    y, n = run(graph, np.array([False]), x, w, library=library)
    assert (y.tolist(), n.tolist()) == ([[4, 5], [4, 5]], [7, 7])


def test_if_joins_the_types_of_its_branches():
    graph = read(CHOICE)
    assert types(graph) == [kind(DType.Float32, None, 2), kind(DType.Int64, 2)]


def test_if_with_a_known_condition_has_the_type_of_its_branch():
    graph = read(CHOICE.replace("bool c, ", "").replace("z = Add", "c = Constant <value = bool {0}> ()  z = Add"))
    assert types(graph)[0] == kind(DType.Float32, 2 * N, 2)


def test_if_refuses_several_conditions():
    with pytest.raises(PyFlameRTError, match="one element"):
        run(read(CHOICE), np.array([True, False]), np.float32([[1, 2]]), np.float32([3]))


# ---------------------------------------------------------------------- Loop


def loop(inputs="M, c", condition="Less (sum, limit)"):
    return f"""
g (int64 M, bool c, float s, float[2] row, float limit) => (float total, float[] rows) {{
  total, rows = Loop ({inputs}, s) <body = b (int64 i, bool c_in, float s_in) => (bool c_out, float sum, float[] out) {{
    f = CastLike (i, s_in)
    sum = Add (s_in, f)
    out = Mul (row, sum)
    c_out = {condition}
  }}>
}}
"""


ARGS = [np.asarray(a) for a in (4, True, np.float32(1), np.float32([1, 10]), np.float32(3))]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("inputs", "total", "first_column"),
    [
        ("M, c", 4, [1, 2, 4]),
        ('"", c', 4, [1, 2, 4]),
        ('M, ""', 7, [1, 2, 4, 7]),
        ('"", ""', 4, [1, 2, 4]),
    ],
)
def test_loop_ends_by_count_or_condition(library, inputs, total, first_column):
    made, rows = run(read(loop(inputs)), *ARGS, library=library)
    assert made.tolist() == total
    assert rows[:, 0].tolist() == first_column
    np.testing.assert_array_equal(rows[:, 1], rows[:, 0] * 10)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("change", [{0: np.array(0)}, {0: np.array(-3)}, {1: np.array(False)}])
def test_no_turns_give_empty_outputs_of_the_right_type(library, change):
    args = [change.get(i, a) for i, a in enumerate(ARGS)]
    total, rows = run(read(loop()), *args, library=library)
    assert total.tolist() == 1
    assert rows.dtype == np.float32
    assert rows.shape == (0, 2)


def test_loop_types():
    assert types(read(loop())) == [kind(DType.Float32), kind(DType.Float32, None, 2)]
    fixed = loop('four, ""').replace("total, rows =", "four = Constant <value_int = 4> ()  total, rows =")
    assert types(read(fixed)) == [kind(DType.Float32), kind(DType.Float32, 4, 2)]
    always = loop("four, yes", "Identity (c_in)").replace(
        "total, rows =", "four = Constant <value_int = 4> ()  yes = Constant <value = bool {1}> ()  total, rows ="
    )
    assert types(read(always))[1] == kind(DType.Float32, 4, 2)


GROWING = """
g (int64 M, float[N, 2] x, float[3] y) => (float[] grown, float[] kept) {
  yes = Constant <value = bool {1}> ()
  grown, kept = Loop (M, yes, x, y) <body = b (int64 i, bool c, float[] a, float[] b)
    => (bool c_out, float[] a_out, float[] b_out) {
    c_out = Identity (c)
    a_out = Concat <axis = 0> (a, a)
    b_out = Add (b, b)
  }>
}
"""


def test_types_of_carried_values_widen_until_they_hold():
    graph = read(GROWING)
    assert types(graph) == [kind(DType.Float32, None, 2), kind(DType.Float32, 3)]
    # The body itself must be typed for every turn, not only for the first.
    body = graph.nodes[-1].get_attr("body")
    assert body.types["a_out"] == kind(DType.Float32, None, 2)
    grown, kept = run(graph, np.array(3), np.float32([[1, 2]]), np.float32([1, 2, 3]))
    assert grown.shape == (8, 2)
    assert kept.tolist() == [8, 16, 24]


NESTED = """
g (int64 M, float[2] x) => (float[] y) {
  zero = Constant <value_float = 0.0> ()
  y = Loop (M, , x) <body = outer (int64 i, bool c, float[] v) => (bool c_out, float[] w) {
    c_out = Identity (c)
    total = ReduceSum <keepdims = 0> (v)
    big = Greater (total, zero)
    w = If (big) <
      then_branch = t () => (float[] p) {
        p = Loop (M, , v) <body = inner (int64 j, bool d, float[] u) => (bool d_out, float[] q) {
        d_out = Identity (d)
        q = Add (u, x)
      }> },
      else_branch = e () => (float[] n) { n = Neg (v) }
    >
  }>
}
"""


@pytest.mark.parametrize("library", LIBRARIES)
def test_graphs_nest_and_capture_through_levels(library):
    graph = read(NESTED)
    (y,) = run(graph, np.array(2), np.float32([1, -3]), library=library)
    assert y.tolist() == [1, -3]
    (y,) = run(graph, np.array(2), np.float32([1, 3]), library=library)
    assert y.tolist() == [5, 15]
    assert types(read(NESTED)) == [kind(DType.Float32, 2)]


SEQUENCE = """
g (int64 M) => (seq(int64) y) {
  yes = Constant <value = bool {1}> ()
  none = SequenceEmpty <dtype = 7> ()
  y = Loop (M, yes, none) <body = b (int64 i, bool c, seq(int64) s) => (bool c_out, seq(int64) t) {
    c_out = Identity (c)
    t = SequenceInsert (s, i)
  }>
}
"""


@pytest.mark.parametrize("library", LIBRARIES)
def test_sequences_are_carried(library):
    (made,) = run(read(SEQUENCE), np.array(3), library=library)
    assert [int(v) for v in made] == [0, 1, 2]
    assert run(read(SEQUENCE), np.array(0), library=library) == [[]]
    assert str(types(read(SEQUENCE))[0]) == "seq(int64[*])"


def test_optionals_are_carried():
    graph = read("""
g (int64 M, optional(float[1]) start) => (float[1] y) {
  yes = Constant <value = bool {1}> ()
  o = Loop (M, yes, start) <body = b (int64 i, bool c, optional(float[1]) v) => (bool c_out, optional(float[1]) w) {
    c_out = Identity (c)
    has = OptionalHasElement (v)
    w = If (has) <
      then_branch = t () => (optional(float[1]) p) { e = OptionalGetElement (v)  d = Add (e, e)  p = Optional (d) },
      else_branch = f () => (optional(float[1]) q) { one = Constant <value_floats = [1.0]> ()  q = Optional (one) }
    >
  }>
  y = OptionalGetElement (o)
}
""")
    assert run(graph, np.array(3), None)[0].tolist() == [4]
    assert run(graph, np.array(1), np.float32([5]))[0].tolist() == [10]
    with pytest.raises(PyFlameRTError, match="optional is empty"):
        run(graph, np.array(0), None)


@pytest.mark.parametrize("opset", [1, 11, 13, 16])
def test_loops_of_every_opset(opset):
    graph = read(
        """
g (int64 M, bool c, float[1] x) => (float[1] y, float[K, 1] s) {
  y, s = Loop (M, c, x) <body = b (int64[1] i, bool[1] k, float[1] v) => (bool[1] k_out, float[1] w, float[1] o) {
    k_out = Identity (k)
    w = Add (v, v)
    o = Identity (v)
  }>
}
""",
        max(opset, 7),
    )
    y, s = run(graph, np.array([3]), np.array([True]), np.float32([1]))
    assert (y.tolist(), s.tolist()) == ([8], [[1], [2], [4]])


# ---------------------------------------------------------------------- Scan

SCAN = """
g (float[2] s, float[N, 2, S] x, float[S, 2] z, float w) => (float[] last, float[] a, float[] b) {
  last, a, b = Scan <num_scan_inputs = 2, scan_input_axes = [-1, 0], scan_input_directions = [0, 1],
                     scan_output_axes = [1, -1], scan_output_directions = [1, 0],
    body = step (float[2] h, float[N, 2] u, float[2] v) => (float[2] h_out, float[N, 2] p, float[2] q) {
      t = Mul (v, w)
      h_out = Add (h, t)
      p = Add (u, h_out)
      q = Identity (h_out)
    }> (s, x, z)
}
"""


@pytest.mark.parametrize("library", LIBRARIES)
def test_scan_axes_and_directions(library):
    rng = np.random.default_rng(0)
    x, z = rng.standard_normal((4, 2, 3)).astype(np.float32), np.arange(6, dtype=np.float32).reshape(3, 2)
    s, w = np.float32([1, 2]), np.asarray(np.float32(2))
    last, a, b = run(read(SCAN), s, x, z, w, library=library)
    states = s + 2 * np.cumsum(z[::-1], axis=0)
    np.testing.assert_array_equal(last, states[-1])
    np.testing.assert_array_equal(b, states.T)
    expected = np.stack([x[..., t] + states[t] for t in range(3)], axis=1)[:, ::-1]
    np.testing.assert_allclose(a, expected, rtol=1e-6)


def test_scan_types_and_empty_scans():
    assert types(read(SCAN)) == [kind(DType.Float32, 2), kind(DType.Float32, N, S, 2), kind(DType.Float32, 2, S)]
    args = [np.ones(2), np.ones((4, 2, 0)), np.ones((0, 2)), np.asarray(2.0)]
    last, a, b = run(read(SCAN), *[v.astype(np.float32) for v in args])
    assert (last.tolist(), a.shape, b.shape) == ([1, 1], (4, 0, 2), (2, 0))


def test_scan_refuses_inputs_of_different_lengths():
    args = [np.ones(2), np.ones((4, 2, 3)), np.ones((2, 2)), np.asarray(2.0)]
    with pytest.raises(PyFlameRTError, match=r"different lengths: \[2, 3\]"):
        run(read(SCAN), *[v.astype(np.float32) for v in args])


OLD_SCAN = """
g (LENGTHS float[2, 1] s, float[2, 3, 1] x, float[1] w) => (float[] last, float[] all) {
  last, all = Scan <num_scan_inputs = 1, directions = [1],
    body = step (float[1] h, float[1] u) => (float[1] h_out, float[1] o) {
      t = Mul (u, w)
      h_out = Add (h, t)
      o = Identity (h_out)
    }> (FIRST, s, x)
}
"""


@pytest.mark.parametrize("library", LIBRARIES)
def test_scan_of_opset_8_runs_over_a_batch(library):
    s, x = np.float32([[0], [100]]), np.arange(1, 7, dtype=np.float32).reshape(2, 3, 1)
    w = np.float32([2])
    graph = read(OLD_SCAN.replace("LENGTHS", "").replace("FIRST", '""'), 8)
    last, every = run(graph, s, x, w, library=library)
    assert last.tolist() == [[12], [130]]
    assert every[..., 0].tolist() == [[6, 10, 12], [112, 122, 130]]
    assert types(graph) == [kind(DType.Float32, 2, 1), kind(DType.Float32, 2, 3, 1)]
    graph = read(OLD_SCAN.replace("LENGTHS", "int64[2] n,").replace("FIRST", "n"), 8)
    last, every = run(graph, np.array([2, 0]), s, x, w, library=library)
    assert last.tolist() == [[6], [100]]
    assert every[..., 0].tolist() == [[4, 6, 0], [0, 0, 0]]


def test_onnxruntime_agrees_on_loops():
    ort = pytest.importorskip("onnxruntime")
    for text in (loop(), GROWING):
        proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 19]>\n{text}')
        session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        args = ARGS if text != GROWING else [np.array(3), np.float32([[1, 2]]), np.float32([1, 2, 3])]
        feeds = {info.name: a for info, a in zip(session.get_inputs(), args, strict=True)}
        for ours, theirs in zip(run(read(text), *args), session.run(None, feeds), strict=True):
            np.testing.assert_array_equal(ours, theirs)


ENDLESS = """
g (bool go, float[2] x) => (float[2] y, float[T, 2] all) {
    y, all = Loop ("", go, x) <body = b (int64 i, bool more, float[2] v) => (bool on, float[2] w, float[2] s) {
        on = Identity (more)
        w = Identity (v)
        s = Add (v, v)
    }>
}
"""


@pytest.mark.parametrize("provider", ["Reference", "CPU"])
def test_a_loop_that_never_ends_keeps_no_more_than_is_allowed(provider):
    options = pyflame_rt.SessionOptions(memory_limit=1 << 18, log_level="error")
    session = pyflame_rt.InferenceSession(read(ENDLESS), options, providers=[f"{provider}ExecutionProvider"])
    with pytest.raises(MemoryLimitError, match=r"Loop.*turns have collected"):
        session.run(None, {"go": np.array(True), "x": np.ones(2, np.float32)})
