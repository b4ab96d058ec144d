"""Files: round trips, other people's files, hostile ones."""

import json
import math
import os

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import pyflame as pf
import pyflame_rt
from pyflame_rt import FileWriteError, InvalidModelError, ModelNotFoundError, UnsupportedFormatError

TYPES = ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]
plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
keys = st.text() | st.integers(-5, 5)
trees = st.recursive(plain, lambda t: st.lists(t) | st.dictionaries(keys, t) | st.tuples(t, t), max_leaves=12)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees)
def test_nested_data_comes_back(tmp_path, tree):
    pf.save(tree, tmp_path / "x.pf")
    assert repr(pf.load(tmp_path / "x.pf")) == repr(tree)


@pytest.mark.parametrize("suffix", ["pf", "safetensors", "npz"])
def test_tensors_of_every_type(tmp_path, suffix):
    state = {n: (pf.arange(6).reshape(2, 3) % 2).to(n) for n in TYPES if suffix != "npz" or n != "bfloat16"}
    state |= {"nothing": pf.zeros([0, 3]), "number": pf.tensor(4.0)}
    pf.save(state, tmp_path / f"x.{suffix}")
    found = pf.load(tmp_path / f"x.{suffix}")
    assert list(found) == list(state)
    for name, t in state.items():
        assert found[name].dtype is t.dtype
        assert found[name].shape == t.shape
        np.testing.assert_array_equal(found[name].numpy(), t.numpy())


def test_shared_and_trained_tensors(tmp_path):
    w = pf.tensor([1.0], requires_grad=True)
    pf.save({"a": w, "opt": {0: (w, 3)}}, tmp_path / "x.pf")
    found = pf.load(tmp_path / "x.pf")
    assert found["a"].requires_grad
    assert found["opt"][0][1] == 3
    net = pf.nn.Linear(2, 1)
    pf.save(net, tmp_path / "net.safetensors")
    twin = pf.nn.Linear(2, 1)
    twin.load_state_dict(pf.load(tmp_path / "net.safetensors"))
    assert twin.weight.tolist() == net.weight.tolist()


def test_files_of_the_safetensors_library(tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    library.save_file({"w": np.arange(4, dtype=np.float32)}, tmp_path / "x.safetensors")
    assert pf.load(tmp_path / "x.safetensors")["w"].tolist() == [0, 1, 2, 3]
    pf.save({"v": pf.ones([2])}, tmp_path / "y.safetensors")
    assert library.load_file(tmp_path / "y.safetensors")["v"].tolist() == [1, 1]


def test_a_failed_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.pf"
    pf.save({"a": 1}, path)
    with pytest.raises(TypeError, match="object cannot be saved"):
        pf.save({"a": object()}, path)
    assert pf.load(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["x.pf"]


def test_what_cannot_be_saved_or_found(tmp_path):
    with pytest.raises(UnsupportedFormatError, match="suffix"):
        pf.save({}, tmp_path / "x.dat")
    with pytest.raises(ModelNotFoundError):
        pf.load(tmp_path / "none.pf")
    with pytest.raises(FileWriteError, match="folder"):
        pf.save({}, tmp_path / "no" / "x.pf")
    with pytest.raises(TypeError, match="names to tensors"):
        pf.save([pf.ones([1])], tmp_path / "x.safetensors")
    with pytest.raises(TypeError, match="bfloat16"):
        pf.save({"a": pf.ones([1], dtype=pf.bfloat16)}, tmp_path / "x.npz")
    endless = []
    endless.append(endless)
    with pytest.raises(ValueError, match="nested"):
        pf.save(endless, tmp_path / "x.pf")


@pytest.mark.parametrize("suffix", ["pf", "safetensors", "npz"])
def test_damaged_files_are_typed_errors(tmp_path, suffix):
    path = tmp_path / f"x.{suffix}"
    pf.save({"a": pf.ones([40]), "b": pf.zeros([3], dtype=pf.int64)}, path)
    good = path.read_bytes()
    rng, refused = np.random.default_rng(0), 0
    for _ in range(150):
        bad = bytearray(good[: rng.integers(0, len(good))] if rng.random() < 0.4 else good)
        for place in rng.integers(0, max(len(bad), 1), 3):
            if bad:
                bad[place % len(bad)] = rng.integers(0, 256)
        path.write_bytes(bytes(bad))
        try:
            found = pf.load(path)
        except InvalidModelError:
            refused += 1
            continue
        assert bytes(bad) != good[: len(bad)] or len(bad) == len(good)  # a part alone is never taken for the whole
        assert all(t.numel() == math.prod(t.shape) for t in found.values())
    assert refused > 60  # those that were cut, at least


def test_headers_that_lie(tmp_path):
    lies = [{"dtype": "float32", "shape": [10**12], "offset": 0}], [{"dtype": "x", "shape": [], "offset": 0}], 7
    for table in lies:
        header = json.dumps({"data": {"tensor": 0}, "tensors": table}).encode()
        path = tmp_path / "x.pf"
        path.write_bytes(b"PYFLAME\1" + len(header).to_bytes(8, "little") + header)
        with pytest.raises(InvalidModelError):
            pf.load(path)
    path.write_bytes(b"PYFLAME\1" + (2**63).to_bytes(8, "little"))
    with pytest.raises(InvalidModelError, match="header"):
        pf.load(path)


@pytest.fixture
def net():
    pf.manual_seed(0)
    return pf.nn.Sequential(
        pf.nn.Conv2d(3, 4, 3, padding=1), pf.nn.BatchNorm2d(4), pf.nn.GELU(), pf.nn.Flatten(), pf.nn.Linear(64, 5)
    )


@pytest.mark.parametrize("name", ["model.onnx", "model.pfm"])
def test_exported_models_run_elsewhere(tmp_path, net, name):
    x = pf.randn([2, 3, 4, 4])
    path = pf.export(net, x, tmp_path / name, input_names=["image"], output_names=["scores"])
    assert net.training
    expected = net.eval()(x).numpy()
    session = pyflame_rt.InferenceSession(path)
    np.testing.assert_allclose(session.run(["scores"], {"image": x.numpy()})[0], expected, rtol=1e-5, atol=1e-6)
    assert {"0.weight", "4.bias", "1.running_mean"} <= set(session.graph().initializers)
    if name.endswith("onnx"):
        ort = pytest.importorskip("onnxruntime")
        other = ort.InferenceSession(path)
        np.testing.assert_allclose(other.run(None, {"image": x.numpy()})[0], expected, rtol=1e-4, atol=1e-5)


def test_sessions_from_models(net):
    x = pf.randn([2, 3, 4, 4])
    session = pyflame_rt.from_pyflame(net, x)
    np.testing.assert_allclose(session.run(None, {"input": x.numpy()})[0], net.eval()(x).numpy(), rtol=1e-5, atol=1e-6)
    pair = pyflame_rt.from_pyflame(pf.compile(lambda a, b: (a + b, a)), (pf.ones([2]), pf.ones([2])))
    assert [r.tolist() for r in pair.run(None, {"input_0": [1.0, 2.0], "input_1": [1.0, 1.0]})] == [[2, 3], [1, 2]]
    with pytest.raises(TypeError, match="__runtime_graph__"):
        pyflame_rt.from_pyflame(print, x)


def test_export_refuses_what_it_cannot_name(tmp_path, net):
    with pytest.raises(UnsupportedFormatError, match="pfm"):
        pf.export(net, pf.ones([1, 3, 4, 4]), tmp_path / "x.txt")
    with pytest.raises(ValueError, match="input names"):
        pf.export(net, pf.ones([1, 3, 4, 4]), tmp_path / "x.onnx", input_names=["a", "b"])
    with pytest.raises(TypeError, match="no tensor"):
        pf.export(lambda x: None, pf.ones([1]), tmp_path / "x.onnx")


def test_checkpoints_of_torch(tmp_path):
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Linear(3, 2)
    torch.save({"model": theirs.state_dict(), "epoch": 4, "half": torch.ones(2).bfloat16()}, tmp_path / "x.pt")
    found = pf.load(tmp_path / "x.pt")
    ours = pf.nn.Linear(3, 2)
    ours.load_state_dict(found["model"])
    assert ours.weight.tolist() == theirs.weight.tolist()
    assert found["epoch"] == 4
    assert found["half"].dtype is pf.bfloat16


def test_checkpoints_with_code_or_damage_are_refused(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save(torch.nn.Linear(1, 1), tmp_path / "module.pt")
    (tmp_path / "damaged.pth").write_bytes(b"PK\x03\x04 and nothing more")
    (tmp_path / "empty.bin").write_bytes(b"")
    with pytest.raises(InvalidModelError, match="state_dict"):
        pf.load(tmp_path / "module.pt")
    for name in ("damaged.pth", "empty.bin"):
        with pytest.raises(InvalidModelError, match=name):
            pf.load(tmp_path / name)
