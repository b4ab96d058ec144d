"""Layers are written as the operators that other runtimes know and fold."""

import numpy as np
import pytest

import pyflame as pf
from pyflame import nn
from pyflame.exporting import evaluation_graph

ort = pytest.importorskip("onnxruntime")


def run(model, x, tmp_path):
    path = pf.export(model, x, tmp_path / "model.onnx")
    (got,) = ort.InferenceSession(path).run(None, {"input": x.numpy()})
    np.testing.assert_allclose(got, model.eval()(x).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("affine", [True, False])
def test_batch_normalization_stays_one_operator(tmp_path, affine):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=affine), nn.ReLU())
    x = pf.randn([2, 3, 6, 6])
    for _ in range(3):
        model(x * 2 + 1).eval()
    graph = evaluation_graph(model, (x,))
    kinds = [node.op_type for node in graph.nodes if node.op_type not in ("ConstantOfShape", "Expand")]
    assert kinds == ["Conv", "BatchNormalization", "Relu"]
    run(model, x, tmp_path)


def test_statistics_that_nobody_reads_are_not_named(tmp_path):
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2))
    x = pf.randn([3, 4])
    normalization = evaluation_graph(model, (x,)).nodes[0]
    assert (normalization.op_type, len(normalization.outputs)) == ("LayerNormalization", 1)
    run(model, x, tmp_path)


def test_states_that_are_read_stay(tmp_path):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(4, 3)

        def forward(self, x):
            return self.lstm(x)[1][0]

    run(Last(), pf.randn([5, 2, 4]), tmp_path)
