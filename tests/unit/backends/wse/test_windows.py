"""Convolution and pooling: windows from the host, products and reductions on the PEs."""

import numpy as np
import pytest

from pyflame_rt import InferenceSession
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
    check(graph_of("Conv", [x, w, (w[0],)], **attributes), grid, loose=1e-4)


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
