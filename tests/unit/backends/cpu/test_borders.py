"""Values copied with a border around them: one step where lines allow, equal to the reference in any case."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyflame_rt
from pyflame_rt.backends.cpu.jit.compiler import call
from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.borders import BorderKernel

TYPES = {"uint8": np.uint8, "int16": np.int16, "float32": np.float32, "float64": np.float64}


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(TYPES)),
    st.integers(1, 4),
    st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 2 * host().vector_bytes + 3)),
    st.tuples(*[st.integers(0, 3)] * 4),
    st.integers(0, 2**32 - 1),
)
def test_kernel_equals_numpy(dtype, planes, sizes, pads, seed):
    images, height, width = sizes
    top, under, before, after = pads
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 100, (images, planes, height, width)).astype(TYPES[dtype])
    border, shape = np.full(1, 7, TYPES[dtype]), (images, top + height + under, before + width + after, planes)
    y = np.zeros(shape, TYPES[dtype])
    wanted = np.pad(x, [(0, 0), (0, 0), (top, under), (before, after)], constant_values=7).transpose(0, 2, 3, 1)
    params = [shape[1], top, height, before, width, after, width, planes * height * width, height * width]
    middle = seed % (images * shape[1] + 1)
    for begin, end in ((0, middle), (middle, images * shape[1])):
        call(BorderKernel(dtype, planes), [a.ctypes.data for a in (x, border, y)], params, begin, end)
    assert np.array_equal(y, wanted)


def padded(shape, pads, dtype, order=None):
    """A session that pads what comes, after its axes were put in another order."""
    graph = pyflame_rt.Graph("padded")
    graph.add_input("x", list(shape), dtype)
    name = "x"
    if order is not None:
        graph.add_node("order", "Transpose", ["x"], ["turned"], perm=order)
        name = "turned"
    graph.add_initializer("pads", np.array(pads, np.int64))
    graph.add_initializer("value", np.array(5, dtype))
    graph.add_node("pad", "Pad", [name, "pads", "value"], ["y"])
    graph.add_output("y", None)
    return graph


@pytest.mark.parametrize("dtype", sorted(TYPES))
@pytest.mark.parametrize(
    ("shape", "pads", "order", "way"),
    [
        ((2, 3, 5, 7), [0, 0, 1, 2, 0, 0, 3, 1], None, "border"),
        ((2, 5, 7, 3), [0, 0, 1, 2, 0, 0, 3, 1], [0, 3, 1, 2], "border"),
        ((3, 9), [1, 0, 2, 0], None, "border"),
        ((9,), [2, 1], None, "border"),
        ((2, 3, 4, 5), [0, 1, 0, 1, 0, 1, 0, 0], None, "fill"),
        ((2, 3, 4, 5), [1, 1, 1, 1, 1, 1, 1, 1], None, "fill"),
    ],
)
def test_pad_equals_the_reference(dtype, shape, pads, order, way):
    graph, x = padded(shape, pads, TYPES[dtype], order), np.arange(np.prod(shape)).reshape(shape).astype(TYPES[dtype])
    session = pyflame_rt.InferenceSession(graph)
    (found,) = session.run(None, {"x": x})
    (wanted,) = pyflame_rt.InferenceSession(graph, providers=["ReferenceExecutionProvider"]).run(None, {"x": x})
    assert np.array_equal(found, wanted)
    (row,) = (row for row in session.explain().nodes if row.op_type == "Pad")
    assert row.runs_on == f"native: {way}"
