"""Files under torch's names and in its form: what one side writes, the other reads; open files; devices."""

import io
from collections import OrderedDict

import numpy as np
import pytest

import pyflame as pf
from pyflame_rt.graph.errors import PyFlameRTError, UnsupportedFormatError

torch = pytest.importorskip("torch")
KINDS = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


def checkpoint():
    shared = pf.arange(6).reshape(2, 3)
    return {
        "epoch": 3,
        "big": 2**70,
        "low": -(2**40),
        "loss": 0.25,
        "name": "é",
        "nothing": None,
        "flags": [True, False],
        "nested": ({"x": (1, 2.5)}, [], ()),
        "state": OrderedDict(w=pf.ones(2, 3), e=pf.zeros(0, 4), s=pf.tensor(2.5)),
        "kinds": {k: pf.tensor([0, 1, 1]).to(getattr(pf, k)) for k in KINDS},
        "shared": [shared, shared],
        "leaf": pf.ones(2, requires_grad=True),
        5: "five",
    }


def same(ours, theirs):
    if isinstance(ours, pf.Tensor):
        assert list(ours.shape) == list(theirs.shape)
        assert ours.dtype.name == str(theirs.dtype).rpartition(".")[2]
        assert ours.requires_grad == theirs.requires_grad
        assert ours.tolist() == theirs.tolist()
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs)
        for key in ours:
            same(ours[key], theirs[key])
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            same(a, b)
    else:
        assert ours == theirs
        assert type(ours) is type(theirs)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt"])
def test_torch_reads_what_is_saved(tmp_path, suffix):
    path, data = tmp_path / f"x{suffix}", checkpoint()
    pf.save(data, path)
    same(data, torch.load(path, weights_only=True))
    same(data, pf.load(path))


def test_torch_keeps_what_is_shared(tmp_path):
    pf.save(checkpoint(), tmp_path / "x.pt")
    first, second = torch.load(tmp_path / "x.pt")["shared"]
    assert first.data_ptr() == second.data_ptr()


@pytest.mark.parametrize("form", ["auto", "pf", "safetensors", "npz", "torch"])
def test_open_files(form):
    file = io.BytesIO()
    pf.save({"w": pf.ones(2), "v": pf.tensor([1, 2])}, file, form)
    file.seek(0)
    found = pf.load(file)
    assert found["w"].tolist() == [1.0, 1.0]
    assert found["v"].tolist() == [1, 2]


def test_what_torch_wrote_to_an_open_file():
    file = io.BytesIO()
    torch.save({"w": torch.ones(2)}, file)
    file.seek(0)
    assert pf.load(file, map_location="cpu", weights_only=True)["w"].tolist() == [1.0, 1.0]


def test_without_torch(tmp_path, monkeypatch):
    pf.save({"w": pf.ones(2), "n": (1, [2.5])}, tmp_path / "x.pt")
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    found = pf.load(tmp_path / "x.pt")
    assert found["w"].tolist() == [1.0, 1.0]
    assert found["n"] == (1, [2.5])


def test_devices(tmp_path):
    path = tmp_path / "x.pt"
    pf.save(pf.ones(1), path)
    for where in ("cpu", pf.device("cpu"), lambda storage, place: storage, {"cuda:0": "cpu"}):
        assert pf.load(path, map_location=where).tolist() == [1.0]
    assert pf.load(path, "cpu").tolist() == [1.0]
    assert pf.load(path, pf.device("cpu")).tolist() == [1.0]
    for wrong in ("cuda", {"cpu": "cuda:1"}):
        with pytest.raises(RuntimeError, match="cuda"):
            pf.load(path, map_location=wrong)


def test_a_model_and_its_optimizer(tmp_path):
    model = pf.nn.Linear(3, 2)
    optimizer = pf.optim.Adam(model.parameters())
    model(pf.ones(1, 3)).sum().backward()
    optimizer.step()
    pf.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "x.pt")
    theirs = torch.nn.Linear(3, 2)
    theirs.load_state_dict(torch.load(tmp_path / "x.pt")["model"])
    np.testing.assert_array_equal(theirs.weight.detach().numpy(), model.weight.numpy())
    again = pf.optim.Adam(model.parameters())
    again.load_state_dict(pf.load(tmp_path / "x.pt")["optimizer"])


def test_what_cannot_be_written_or_read(tmp_path):
    with pytest.raises(TypeError, match=r"ndarray cannot be saved in torch's form"):
        pf.save({"a": np.ones(2)}, tmp_path / "x.pt")
    assert not (tmp_path / "x.pt").exists()
    with pytest.raises(UnsupportedFormatError, match="says nothing"):
        pf.save(pf.ones(1), tmp_path / "x.unknown")
    (tmp_path / "y.unknown").write_bytes(b"nothing at all")
    with pytest.raises(UnsupportedFormatError, match="first bytes"):
        pf.load(tmp_path / "y.unknown")
    for damaged in (b"", b"PK\3\4 broken", b"\x80\2.", b"PYFLAME\1"):
        with pytest.raises(PyFlameRTError):
            pf.load(io.BytesIO(damaged))
