"""Whole networks, traced and scripted."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.graph.errors import ShapeMismatchError
from tests.unit.importers.torchscript import networks
from tests.unit.importers.torchscript.saving import check, save_scripted, save_traced, torch

IDS = [[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]]


def _model(name):
    torch.manual_seed(3)
    ids = torch.tensor(IDS)
    inputs = {
        "ResNet18": (torch.randn(2, 3, 32, 32),),
        "BertLike": (ids, torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])),
        "GptLike": (ids,),
        "Tagger": (ids,),
        "Detector": (torch.randn(1, 3, 16, 16),),
    }[name]
    return getattr(networks, name)().eval(), inputs


@pytest.mark.parametrize("name", ["ResNet18", "BertLike", "GptLike", "Tagger"])
def test_traced_networks(name, tmp_path):
    model, inputs = _model(name)
    save_traced(model, inputs, tmp_path / "model.pt")
    session = check(tmp_path / "model.pt", model, inputs)
    assert "Script" not in {node.op_type for node in session.graph().nodes}


@pytest.mark.parametrize("name", ["ResNet18", "BertLike", "GptLike", "Tagger", "Detector"])
def test_scripted_networks(name, tmp_path):
    model, inputs = _model(name)
    save_scripted(model, tmp_path / "model.pt")
    check(tmp_path / "model.pt", model, inputs)


@pytest.mark.parametrize("limit", [1, 6])
def test_a_scripted_beam_search(limit, tmp_path):
    torch.manual_seed(5)
    model = networks.BeamSearch().eval()
    save_scripted(model, tmp_path / "model.pt")
    check(tmp_path / "model.pt", model, (torch.randn(1, 8), limit))


def test_sizes_stay_open_in_a_trace(tmp_path):
    model, inputs = _model("BertLike")
    save_traced(model, inputs, tmp_path / "model.pt")
    session = pyflame_rt.InferenceSession(tmp_path / "model.pt")
    ids, mask = torch.randint(0, 50, (3, 8)), torch.ones(3, 8, dtype=torch.long)
    want = model(ids, mask)[1].detach().numpy()
    np.testing.assert_allclose(
        session.run(None, {"ids": ids.numpy(), "mask": mask.numpy()})[1], want, rtol=1e-4, atol=1e-5
    )
    with pytest.raises(ShapeMismatchError, match="ids"):
        session.run(None, {"ids": ids.numpy()[0], "mask": mask.numpy()})


def test_shapes_that_are_given_open_a_script(tmp_path):
    model, inputs = _model("ResNet18")
    save_scripted(model, tmp_path / "model.pt")
    options = pyflame_rt.ImportOptions(input_shapes={"x": [None, 3, 32, 32]})
    result = pyflame_rt.import_module.TorchScriptImporter().import_model(tmp_path / "model.pt", options)
    assert result.success, result.error
    assert {node.op_type for node in result.graph.nodes} >= {"Conv", "BatchNormalization", "Relu"}
    assert result.stats.parameter_count > 10_000
    session = pyflame_rt.InferenceSession(result.graph)
    want = model(inputs[0]).detach().numpy()
    np.testing.assert_allclose(session.run(None, {"x": inputs[0].numpy()})[0], want, rtol=1e-4, atol=1e-5)


def test_scripts_are_converted_with_shapes(tmp_path):
    from typer.testing import CliRunner

    from pyflame_rt.cli.commands import app

    onnxruntime = pytest.importorskip("onnxruntime")
    model, inputs = _model("ResNet18")
    source, target = tmp_path / "model.pt", tmp_path / "model.onnx"
    save_scripted(model, source)
    refused = CliRunner().invoke(app, ["convert", str(source), str(target)])
    assert refused.exit_code != 0
    assert "shapes" in str(refused.exception)
    made = CliRunner().invoke(app, ["convert", str(source), str(target), "--shape", "x=?,3,32,32"])
    assert made.exit_code == 0, made.output
    got = onnxruntime.InferenceSession(target).run(None, {"x.1": inputs[0].numpy()})[0]
    np.testing.assert_allclose(got, model(*inputs).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_files_open_where_torch_is_not_installed(tmp_path):
    model, inputs = _model("GptLike")
    save_traced(model, inputs, tmp_path / "traced.pt")
    save_scripted(model, tmp_path / "scripted.pt")
    np.save(tmp_path / "want.npy", model(*inputs).detach().numpy())
    program = f"""
import sys
sys.modules["torch"] = None
import numpy as np, pyflame_rt
for name in ("traced", "scripted"):
    session = pyflame_rt.InferenceSession({str(tmp_path)!r} + "/" + name + ".pt")
    got = session.run(None, {{"ids": np.array({IDS})}})[0]
    np.testing.assert_allclose(got, np.load({str(tmp_path)!r} + "/want.npy"), rtol=1e-4, atol=1e-5)
print("done")
"""
    root = Path(__file__).parents[4]
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, check=False)
    assert run.stdout == "done\n", run.stderr
