"""Files as memory."""

import mmap
import os

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt import DType, InputError, InvalidModelError, ModelNotFoundError
from pyflame_rt.cache import LazyTensor, MappedFile, MMapAdvice, MMapLoader, mapped
from pyflame_rt.graph.pages import file_of, root_of
from tests.unit.cache.test_binary import model


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(8) + np.arange(6, dtype=np.float32).tobytes())
    return path


def test_a_file_is_mapped(weights):
    file = MappedFile.open(weights)
    assert file
    assert file.is_valid()
    assert file.size() == 32
    assert bytes(file.data()) == weights.read_bytes()
    assert [file.advise(advice) for advice in MMapAdvice] == [True] * 5
    assert file.advise(MMapAdvice.WillNeed, 8, 4)
    assert file.lock()
    assert file.unlock()
    assert file.read(8, 4) == bytes(4)
    with pytest.raises(TypeError):
        file.data()[0] = 1
    file.close()
    file.close()
    assert not file
    with pytest.raises(InvalidModelError, match="was closed"):
        file.data()


def test_locking_is_refused_where_the_system_does(weights, monkeypatch):
    monkeypatch.setattr(mapped, "_system_call", lambda name: lambda address, size: -1)
    assert not MappedFile.open(weights).lock()
    monkeypatch.setattr(mapped, "_system_call", lambda name: None)
    assert not MappedFile.open(weights).lock()


def test_what_cannot_be_mapped_is_false(tmp_path):
    (tmp_path / "empty").touch()
    for name in ("none", "empty", "."):
        file = MappedFile.open(tmp_path / name)
        assert not file
        assert not file.is_valid()
        assert file.size() == 0
        assert "cannot be mapped" in file.error
        assert not MMapLoader.can_mmap(tmp_path / name)
        with pytest.raises(InvalidModelError, match="cannot be mapped"):
            file.data()
    assert MMapLoader.page_alignment() % 4096 == 0


def test_views_outlive_the_file(weights):
    with MappedFile.open(weights) as file:
        lazy = LazyTensor(file, 8, [2, 3], DType.Float32)
        tensor = lazy.materialize()
    assert tensor.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_lazy_tensors(weights):
    file = MappedFile.open(weights)
    lazy = LazyTensor(file, 8, [2, 3], DType.Float32)
    assert (lazy.shape(), lazy.dtype(), lazy.size_bytes(), lazy.is_loaded()) == ([2, 3], DType.Float32, 24, False)
    assert lazy.materialize() is lazy.materialize()
    assert not lazy.materialize().raw().flags.writeable
    lazy.release()
    assert not lazy.is_loaded()
    assert lazy.materialize().numpy().sum() == 15
    copy = lazy.materialize(copy=True)
    weights.write_bytes(bytes(32))
    assert copy.numpy().sum() == 15
    for offset, shape, dtype in ((-1, [1], DType.Int8), (12, [6], DType.Float32), (0, [None], DType.Int8)):
        with pytest.raises(InputError):
            LazyTensor(file, offset, shape, dtype)
    os.truncate(weights, 16)
    with pytest.raises(InvalidModelError, match="become shorter"):
        lazy.materialize(copy=True)


def test_a_model_out_of_a_mapped_file(tmp_path):
    path = tmp_path / "m.pfm"
    pyflame_rt.save_model(model(), path)
    assert MMapLoader.can_mmap(path)
    graph = MMapLoader.load(path)
    assert isinstance(root_of(graph.initializers["w"].raw()), mmap.mmap)
    assert file_of(graph.initializers["w"].raw())[0] == str(path)
    session = pyflame_rt.InferenceSession(graph)
    assert session.run(None, {"x": np.ones(1000, np.float32)})[0][-1] == 2
    with pytest.raises(ModelNotFoundError):
        MMapLoader.load(tmp_path / "none.pfm")
