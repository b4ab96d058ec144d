"""Values that ifs and loops change in place, under other names, or on some paths only; compared with torch."""

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt import UnsupportedOperatorError

torch = pytest.importorskip("torch")

from tests.unit.importers.torchscript import scripts  # noqa: E402  after torch
from tests.unit.importers.torchscript.saving import check, jit, save_scripted  # noqa: E402

X = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75], [1.0, 2.0, 3.0]])


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("model", [
    scripts.WrittenUnderTwoNames, scripts.ViewWrittenInLoop, scripts.AddedToOther, scripts.ReturnsFromLoop,
    scripts.Bits, scripts.Repeated, scripts.KeptNone, scripts.KeptBest, scripts.ListChanged,
])  # fmt: skip
def test_loops(model, count, tmp_path):
    scripted = save_scripted(model().eval(), tmp_path / "model.pt")
    check(tmp_path / "model.pt", scripted, [X, count])


@pytest.mark.parametrize("x", [X, -X])
@pytest.mark.parametrize("model", [
    scripts.NoneOnOnePath, scripts.ObjectChanged, scripts.GivesNamedTuple, scripts.TurnedInPlace,
    scripts.ListGrownUnderTwoNames, scripts.Reduction, scripts.Kept,
])  # fmt: skip
def test_ifs(model, x, tmp_path):
    scripted = save_scripted(model().eval(), tmp_path / "model.pt")
    check(tmp_path / "model.pt", scripted, [x])


def test_fields_of_a_named_tuple_name_outputs(tmp_path):
    save_scripted(scripts.GivesNamedTuple().eval(), tmp_path / "model.pt")
    session = pyflame_rt.InferenceSession(tmp_path / "model.pt")
    assert [info.name for info in session.get_outputs()] == ["low", "high"]


@pytest.mark.parametrize(("model", "words"), [
    (scripts.TensorOfTwo, "share memory"), (scripts.ListOfTwo, "share memory"),
    (scripts.CollectedThenWritten, "share memory"), (scripts.TurnedWithView, "without the underscore"),
    (scripts.TextOfSize, "looking into a text"), (scripts.ListOfModule, "a graph has no state"),
    (scripts.GivesMaybe, "gives back None on some"),
])  # fmt: skip
def test_what_only_running_tells_is_refused(model, words, tmp_path):
    save_scripted(model().eval(), tmp_path / "model.pt")
    session = pyflame_rt.InferenceSession(tmp_path / "model.pt")
    feed = {info.name: value for info, value in zip(session.get_inputs(), (X.numpy(), np.int64(3)), strict=False)}
    with pytest.raises(UnsupportedOperatorError, match=words):
        session.run(None, feed)


def test_a_refusal_names_the_line(tmp_path):
    save_scripted(scripts.TurnedWithView().eval(), tmp_path / "model.pt")
    session = pyflame_rt.InferenceSession(tmp_path / "model.pt")
    with pytest.raises(
        UnsupportedOperatorError, match=r"'.*t_\(y\).*', line \d+ of __torch__.*, written as scripts.py:"
    ):
        session.run(None, {"x": X.numpy()})


def test_sizes_times_numbers_in_a_branch(tmp_path):
    class Counted(torch.nn.Module):
        def forward(self, x):
            if x.sum() > 0 and x.numel() > 3:
                x = x * 2
            return x

    save_scripted(Counted(), tmp_path / "model.pt")
    options = pyflame_rt.ImportOptions(input_shapes={"x": [None, 3]})
    imported = pyflame_rt.importers.torchscript.importer.TorchScriptImporter().import_model(
        tmp_path / "model.pt", options
    )
    assert imported.success, imported.error
    session = pyflame_rt.InferenceSession(imported.graph)
    for x in (X, -X, X[:1]):
        np.testing.assert_array_equal(session.run(None, {"x": x.numpy()})[0], jit(Counted(), x).numpy())
