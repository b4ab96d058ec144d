"""Choosing a library: by the arrays given, else by the backend."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from emberharmony import MixedArraysError, backend, get_backend, library, ops, set_backend, use_backend


@pytest.fixture(autouse=True)
def restored():
    before = str(get_backend())
    yield
    set_backend(before)


def run(code, **environment):
    import os

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_numpy_arrays_import_no_other_library():
    code = (
        "import sys, numpy as np\nfrom emberharmony import ops\n"
        "ops.add(np.ones(2), 1); ops.concatenate([np.ones(2)]); ops.softmax(np.ones(2))\n"
        "print('torch' in sys.modules, 'mlx' in sys.modules)"
    )
    assert run(code) == ["False", "False"]


def test_environment_variable_names_the_backend():
    code = "from emberharmony import get_backend\nprint(get_backend())"
    assert run(code, EMBERHARMONY_BACKEND="numpy") == ["numpy"]
    assert run(code, EMBERHARMONY_BACKEND="torch") == ["torch"]


def test_automatic_choice_prefers_mlx_then_torch(monkeypatch):
    monkeypatch.delenv(backend.VARIABLE, raising=False)
    for installed, chosen in (({"mlx.core", "torch"}, "mlx"), ({"torch"}, "torch"), (set(), "numpy")):
        monkeypatch.setattr(backend, "_installed", installed.__contains__)
        assert backend._default() == chosen
    assert backend._installed("numpy") is False


def test_missing_module_is_not_installed():
    assert not backend._installed("no_such_module.inner")


def test_arrays_decide(lib):
    x = lib.zeros((2,))
    for got in (
        ops.add(x, 1),
        ops.add(1, x),
        ops.stack([x, x]),
        ops.where(True, x, x),
        ops.full_like(x=x, fill_value=3),
    ):
        assert lib.is_array(got)


def test_backend_decides_without_arrays(lib):
    set_backend(lib.name)
    assert get_backend() == lib.name
    for got in (ops.zeros((2,)), ops.add(1, 2), ops.mean([1.0, 2.0]), ops.arange(3), ops.random_normal((2,))):
        assert lib.is_array(got)
    assert lib.is_array(ops.convert_to_tensor(np.ones(2)))
    for other in ("numpy", "torch", "mlx"):
        assert lib.is_array(ops.convert_to_tensor(library(other).ones((2,))))
    made = ops.convert_to_tensor([library("torch").ones((2,)), library("torch").ones((2,))])
    assert ops.shape(made) == (2, 2)


def test_backend_name_is_a_string_with_operations(lib):
    with use_backend(lib.name):
        chosen = get_backend()
    assert isinstance(chosen, str)
    assert chosen == lib.name
    assert lib.is_array(chosen.zeros((2,)))


def test_mixed_arrays_name_both_libraries():
    with pytest.raises(MixedArraysError, match=r"numpy and torch"):
        ops.add(np.ones(2), library("torch").ones((2,)))
    with pytest.raises(TypeError, match=r"torch and mlx"):
        ops.concatenate([library("torch").ones((2,)), library("mlx").ones((2,))])


def test_use_backend_nests_and_stays_in_its_thread():
    set_backend("numpy")
    seen = []
    with use_backend("torch"):
        thread = threading.Thread(target=lambda: seen.append(str(get_backend())))
        thread.start()
        thread.join()
        with use_backend("mlx"):
            assert get_backend() == "mlx"
        assert get_backend() == "torch"
        set_backend("mlx")
        assert get_backend() == "mlx"
    assert seen == ["numpy"]
    assert get_backend() == "numpy"


def test_torch_subclasses_are_torch_arrays():
    import torch

    weight = torch.nn.Parameter(torch.ones(2))
    assert torch.is_tensor(ops.multiply(weight, 2))
    assert ops.is_tensor(weight)


def test_numpy_subclasses_are_numpy_arrays(tmp_path):
    mapped = np.memmap(tmp_path / "weights", np.float32, "w+", shape=(4,))
    assert ops.add(mapped, 1).tolist() == [1, 1, 1, 1]


def test_results_of_constants():
    assert ops.pi == pytest.approx(3.14159265)
    assert ops.result_type(np.ones(1, np.float32), 2) == np.float32
