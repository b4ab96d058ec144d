import sys
import types

import numpy as np
import pytest

import pyflame as pf
from pyflame.integrations import JupyterConfig, ONNXExportConfig, ONNXExporter, ONNXImporter, setup_jupyter
from pyflame.integrations.jupyter import tensor_html
from pyflame_rt.graph.errors import MissingExtra, ModelNotFoundError, UnsupportedFormatError


def test_there_and_back(tmp_path):
    model = pf.nn.Sequential(pf.nn.Linear(3, 4), pf.nn.Tanh())
    config = ONNXExportConfig(opset_version=17, input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "n"}})
    path = ONNXExporter(config).export(model, pf.ones([1, 3]), tmp_path / "m.onnx")
    back = pf.integrations.import_onnx(path)
    assert (back.input_names, back.output_names) == (["x"], ["y"])
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    want = model(pf.tensor(x)).numpy()
    for got in (back(x), back(x=pf.tensor(x))):
        assert isinstance(got, pf.Tensor)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)
    with pytest.raises(TypeError, match="takes 1 inputs"):
        back(x, x)
    info = ONNXImporter().get_model_info(path)
    assert info["parameters"] >= 16
    assert info["operators"]["Tanh"] == 1


def test_mistakes_are_told(tmp_path):
    with pytest.raises(TypeError, match="no setting 'opset'"):
        pf.integrations.export_onnx(pf.nn.ReLU(), pf.ones([1]), tmp_path / "m.onnx", opset=17)
    with pytest.raises(UnsupportedFormatError, match="ONNX files end in"):
        pf.integrations.export_onnx(pf.nn.ReLU(), pf.ones([1]), tmp_path / "m.pfm")
    with pytest.raises(ModelNotFoundError):
        pf.integrations.import_onnx(tmp_path / "none.onnx")


class Formatter(dict):
    def for_type(self, kind, function):
        self[kind] = function


def shell():
    formatters = {"text/html": Formatter(), "image/svg+xml": Formatter()}
    return types.SimpleNamespace(display_formatter=types.SimpleNamespace(formatters=formatters))


def test_notebooks_show_tensors_and_graphs(monkeypatch):
    notebook = shell()
    config = setup_jupyter(JupyterConfig(max_rows=2, precision=1), shell=notebook)
    shown = notebook.display_formatter.formatters
    html = shown["text/html"][pf.Tensor](pf.ones([3, 2]))
    assert html.count("<tr>") == 2
    assert "<td>1.0</td>" in html
    assert "cut" in html
    graph = pf.get_graph(pf.relu(pf.ones([2]) + 1.0))
    assert shown["image/svg+xml"][type(graph)](graph).startswith("<svg")
    assert config.max_rows == 2
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: notebook
    monkeypatch.setitem(sys.modules, "IPython", module)
    setup_jupyter()
    module.get_ipython = lambda: None
    with pytest.raises(RuntimeError, match="no notebook"):
        setup_jupyter()
    monkeypatch.setitem(sys.modules, "IPython", None)
    with pytest.raises(MissingExtra, match="pip install ipython"):
        setup_jupyter()


def test_tensors_of_all_kinds_are_shown():
    config = JupyterConfig(evaluate=False)
    lazy = pf.ones([2]) + 1.0
    assert "lazy" in tensor_html(lazy, config)
    assert pf.is_lazy(lazy)
    assert "empty" in tensor_html(pf.zeros([0, 3]), JupyterConfig())
    assert "<td>7</td>" in tensor_html(pf.tensor(np.array(7)), JupyterConfig())
    assert "first along" in tensor_html(pf.ones([2, 2, 2]), JupyterConfig())
    assert "<td>True</td>" in tensor_html(pf.tensor(np.array([True])), JupyterConfig())
    with pytest.raises(ValueError, match="max_rows"):
        JupyterConfig(max_rows=0)
