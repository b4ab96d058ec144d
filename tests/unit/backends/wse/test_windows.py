"""Convolution and pooling: over tiles with edges of the neighbours, or windows from the host and products of them."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pyflame_rt import InferenceSession
from pyflame_rt.backends.wse.plan.kernels import Slide
from pyflame_rt.demo import model_path
from tests.unit.backends.wse.running import GRIDS, check, graph_of

CONVS = [
    ((2, 3, 6, 7), (4, 3, 3, 3), {}),
    ((1, 3, 6, 7), (4, 3, 3, 2), {"strides": [2, 1], "pads": [1, 0, 1, 1]}),
    ((1, 2, 7, 7), (2, 2, 3, 3), {"dilations": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 4, 5, 5), (6, 2, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    ((2, 3, 9), (4, 3, 3), {"strides": [2]}),
]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("x", "w", "attributes"), CONVS)
def test_convolution(x, w, attributes, grid):
    check(graph_of("Conv", [x, w, (w[0],)], **attributes), grid)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "ceil_mode": 1, "strides": [2, 2]},
    ],
)
def test_pooling(op, attributes, grid):
    check(graph_of(op, [(2, 3, 6, 7)], **attributes), grid)


def test_global_pooling_and_half_precision():
    check(graph_of("GlobalAveragePool", [(2, 3, 5, 4)], np.float16), (2, 2))
    check(graph_of("GlobalMaxPool", [(2, 3, 5, 4)]), (2, 2))


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_the_digits_are_found_as_on_the_cpu(count):
    data = np.load(model_path().parent / "digits_test.npz")
    images = data[data.files[0]][:count].astype(np.float32)
    wafer = InferenceSession(model_path(), providers=[("WSEExecutionProvider", {"rows": 8, "cols": 8})])
    cpu = InferenceSession(model_path())
    name = cpu.get_inputs()[0].name
    images = images.reshape(-1, *[int(d) for d in cpu.get_inputs()[0].shape[1:]])
    want = cpu.run(["probabilities"], {name: images})[0]
    parts = [wafer.run(["probabilities"], {name: part})[0] for part in np.split(images, count // 10)]
    got = np.concatenate(parts)
    assert np.array_equal(got.argmax(1), want.argmax(1))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)


# --- windows over tiles -----------------------------------------------------------------------------------------------

NEAR = [
    ("Conv", [(2, 3, 6, 7), (4, 3, 3, 3), (4,)], {"pads": [1, 1, 1, 1]}),
    ("Conv", [(1, 2, 9, 9), (2, 2, 3, 3)], {"dilations": [2, 2], "auto_pad": "SAME_UPPER"}),
    ("Conv", [(1, 2, 12, 12), (3, 2, 3, 4)], {"strides": [2, 1], "pads": [1, 2, 1, 1]}),
    ("MaxPool", [(2, 3, 12, 6)], {"kernel_shape": [2, 2], "strides": [2, 1], "pads": [0, 0, 0, 1]}),
    ("MaxPool", [(1, 3, 7, 6)], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ("AveragePool", [(2, 3, 6, 7)], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
]


@pytest.mark.parametrize(("dtype", "arch"), [(np.float32, "wse3"), (np.float16, "wse2")])
@pytest.mark.parametrize("grid", [(1, 1), (1, 3), (3, 1), (2, 3)])
@pytest.mark.parametrize(("op", "shapes", "attributes"), NEAR)
def test_neighbours_exchange_edges(op, shapes, attributes, grid, dtype, arch):
    plan = check(graph_of(op, shapes, dtype, **attributes), grid, arch=arch)
    assert any(isinstance(k, Slide) for k in plan.kernels)
    assert len(plan.phases) == 1


def test_layers_of_windows_stay_where_they_are():
    graph = graph_of("Conv", [(1, 2, 8, 8), (3, 2, 3, 3), (3,)], pads=[1, 1, 1, 1])
    graph.outputs.clear()
    graph.add_node("act", "Relu", ["y"], ["r"])
    graph.add_node("pool", "MaxPool", ["r"], ["p"], {"kernel_shape": [2, 2], "strides": [2, 2]})
    graph.add_initializer("v", np.random.default_rng(1).standard_normal((2, 3, 3, 3)).astype(np.float32))
    graph.add_node("again", "Conv", ["p", "v"], ["z"], {"pads": [1, 1, 1, 1]})
    graph.add_output("z", None)
    plan = check(graph, (2, 2))
    assert [type(k).__name__ for k in plan.kernels] == ["Slide", "MapKernel", "Slide", "Slide"]
    assert len(plan.phases) == 1


@pytest.mark.parametrize(
    ("op", "shapes", "attributes"),
    [
        ("Conv", [(1, 2, 8, 8), (2, 2, 3, 3)], {}),  # fewer results than elements: they would lie elsewhere
        ("Conv", [(1, 2, 8, 8), (2, 1, 3, 3)], {"group": 2, "pads": [1, 1, 1, 1]}),
        ("Conv", [(1, 1, 4, 4), (1, 1, 7, 7)], {"pads": [3, 3, 3, 3]}),  # more than a neighbour has
        ("MaxPool", [(1, 1, 2, 8)], {"kernel_shape": [2, 1], "strides": [1, 1]}),
    ],
)
def test_other_windows_go_the_long_way(op, shapes, attributes):
    plan = check(graph_of(op, shapes, **attributes), (2, 2))
    assert not any(isinstance(k, Slide) for k in plan.kernels)
    plan = check(graph_of(op, shapes, **attributes), (2, 2), optimize=False)
    assert not any(isinstance(k, Slide) for k in plan.kernels)


def test_a_maximum_that_is_not_a_number():
    graph = graph_of("MaxPool", [(1, 1, 4, 4)], kernel_shape=[2, 2], strides=[2, 2])
    data = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    data[0, 0, 0, 1] = np.nan
    check(graph, (2, 2), {"a": data})


@settings(max_examples=20, deadline=None)
@given(
    op=st.sampled_from(["Conv", "MaxPool"]),
    space=st.tuples(st.integers(2, 13), st.integers(2, 13)),
    window=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    pads=st.tuples(*[st.integers(0, 1)] * 4),
    grid=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    dtype=st.sampled_from([np.float32, np.float16]),
    arch=st.sampled_from(["wse2", "wse3"]),
)
def test_any_window(op, space, window, strides, pads, grid, dtype, arch):
    assume(all(n + p + q >= w for n, w, p, q in zip(space, window, pads[:2], pads[2:], strict=True)))
    assume(all(p < w for p, w in zip(pads, window * 2, strict=True)))
    shapes = [(1, 2, *space), (2, 2, *window)] if op == "Conv" else [(1, 2, *space)]
    more = {} if op == "Conv" else {"kernel_shape": list(window)}
    graph = graph_of(op, shapes, dtype, strides=list(strides), pads=list(pads), **more)
    check(graph, grid, arch=arch)
