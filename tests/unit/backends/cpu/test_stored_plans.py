"""Plans from disk: the same answers without planning, and made anew when anything they need is gone."""

import gc
import os
import subprocess
import sys

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.backends.cpu.onednn import library, live_handles
from pyflame_rt.backends.cpu.run import plan as planning
from pyflame_rt.backends.cpu.run import plan_store as stored
from pyflame_rt.cache.answers import answering
from pyflame_rt.cache.blocks import table_size
from pyflame_rt.cache.store import HEADER, Store, current_store
from pyflame_rt.exporters import export_onnx
from tests.tolerances import within
from tests.unit.resting import at_rest

pytestmark = pytest.mark.usefixtures("unchecked")
RNG = np.random.default_rng(11)


def weight(*shape):
    return RNG.standard_normal(shape).astype(np.float32) / 8


def model():
    """A convolution, pooling, a normalisation, products, a recurrent layer and something only the host runs."""
    g = pyflame_rt.Graph("mixed")
    g.add_input("x", ["N", 3, 16, 16])
    g.add_initializer("k", weight(24, 3, 3, 3))
    g.add_node("conv", "Conv", ["x", "k"], ["c"], pads=[1, 1, 1, 1])
    g.add_node("relu", "Relu", ["c"], ["r"])
    g.add_node("pool", "MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2])
    g.add_initializer("shape", np.array([0, 24, 64], np.int64))
    g.add_node("reshape", "Reshape", ["p", "shape"], ["s"])
    g.add_initializer("w", weight(64, 200))
    g.add_node("mm", "MatMul", ["s", "w"], ["m"])
    g.add_node("soft", "Softmax", ["m"], ["t"], axis=-1)
    g.add_initializer("perm", weight(1, 4 * 32, 200))
    g.add_initializer("rec", weight(1, 4 * 32, 32))
    g.add_node("swap", "Transpose", ["t"], ["u"], perm=[1, 0, 2])
    g.add_node("lstm", "LSTM", ["u", "perm", "rec"], ["l"], hidden_size=32)
    g.add_node("det", "CumSum", ["l", "axis"], ["y"])
    g.add_initializer("axis", np.array(0, np.int64))
    g.add_output("y", None)
    return g


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("PYFLAME_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "m.onnx"
    export_onnx(model(), file)
    age = file.stat().st_mtime_ns - 60 * 10**9
    os.utime(file, ns=(age, age))
    return file


def feed(batch=2):
    return {"x": np.random.default_rng(batch).standard_normal((batch, 3, 16, 16)).astype(np.float32)}


def run(path, batch=2, **options):
    with pyflame_rt.InferenceSession(path, pyflame_rt.SessionOptions(**options)) as session:
        result = session.run(None, feed(batch))[0]
    current_store().flush()
    return result


def entries(kind):
    return [e.path for e in current_store().entries() if e.path.parts[-3] == kind]


@pytest.fixture
def planned(monkeypatch):
    """How often something was planned."""
    calls, original = [], planning.specialise

    def counting(*args, **kwargs):
        calls.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(planning, "specialise", counting)
    return calls


def test_a_plan_is_made_once(path, planned):
    first = run(path)
    assert len(planned) == 1
    assert len(entries("plan")) == 1
    np.testing.assert_array_equal(run(path), first)
    assert len(planned) == 1
    with pyflame_rt.InferenceSession(path, providers=["ReferenceExecutionProvider"]) as session:
        np.testing.assert_allclose(first, session.run(None, feed())[0], **within("sums"))


def test_shapes_and_threads_have_plans_of_their_own(path, planned):
    results = {(batch, threads): run(path, batch, num_threads=threads) for batch in (1, 3) for threads in (1, 2)}
    assert len(planned) == len(entries("plan")) == 4
    for (batch, threads), result in results.items():
        np.testing.assert_array_equal(run(path, batch, num_threads=threads), result)
    assert len(planned) == 4


def test_another_process_finds_everything(path, monkeypatch):
    monkeypatch.setenv("PYFLAME_QUICK_START", "0")  # else the full form may be made while we count
    code = (
        "import sys, numpy as np, pyflame_rt\n"
        "from pyflame_rt.backends.cpu.jit import compiler as jit\n"
        "from pyflame_rt.backends.cpu.run import plan\n"
        "made = []\n"
        "for module, name in ((jit, 'object_code'), (plan, 'specialise')):\n"
        "    def count(*a, _f=getattr(module, name), _n=name, **k):\n"
        "        made.append(_n)\n"
        "        return _f(*a, **k)\n"
        "    setattr(module, name, count)\n"
        "x = np.random.default_rng(2).standard_normal((2, 3, 16, 16)).astype(np.float32)\n"
        "y = pyflame_rt.InferenceSession(sys.argv[1]).run(None, {'x': x})[0]\n"
        "print(float(y.sum()), len(made))"
    )
    command = [sys.executable, "-c", code, str(path)]
    cold, warm = (subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(2))
    assert cold[0] == warm[0]
    assert int(cold[1]) > 1
    assert warm[1] == "0"


def test_two_processes_at_once_agree(path):
    code = (
        "import sys, numpy as np, pyflame_rt\n"
        "x = np.random.default_rng(2).standard_normal((2, 3, 16, 16)).astype(np.float32)\n"
        "for _ in range(5):\n"
        "    with pyflame_rt.InferenceSession(sys.argv[1]) as s:\n"
        "        print(float(s.run(None, {'x': x})[0].sum()))"
    )
    command = [sys.executable, "-c", code, str(path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    lines = [p.communicate(timeout=250)[0].split() for p in running]
    assert all(p.returncode == 0 for p in running)
    assert len({*lines[0], *lines[1]}) == 1
    assert [len(found) for found in lines] == [5, 5]


def damage(file, how):
    data = bytearray(file.read_bytes())
    if how == "missing":
        file.unlink()
    elif how == "changed":
        data[HEADER + (len(data) - HEADER) // 2] ^= 0x55
        data[-1] ^= 0x55
        file.write_bytes(data)
    else:
        file.write_bytes(data[: len(data) // 2] if how == "truncated" else b"")


@pytest.mark.parametrize("kind", ["weights", "plan", "model"])
@pytest.mark.parametrize("how", ["missing", "truncated", "changed", "empty"])
def test_what_is_damaged_or_gone_is_made_anew(path, kind, how):
    first = run(path)
    files = entries(kind)
    assert files
    for file in files:
        damage(file, how)
    gc.collect()
    for _ in range(2):
        np.testing.assert_array_equal(run(path), first)


@pytest.mark.parametrize("how", ["missing", "truncated", "changed", "empty"])
def test_object_code_that_is_damaged_or_gone_is_compiled_anew(path, how, monkeypatch):
    monkeypatch.setenv("PYFLAME_QUICK_START", "0")  # else the full form may come after the process has ended
    code = (
        "import sys, numpy as np, pyflame_rt\n"
        "from pyflame_rt.backends.cpu.jit import compiler as jit\n"
        "x = np.random.default_rng(2).standard_normal((2, 3, 16, 16)).astype(np.float32)\n"
        "print(float(pyflame_rt.InferenceSession(sys.argv[1]).run(None, {'x': x})[0].sum()))\n"
        "jit.settle()"
    )
    command = [sys.executable, "-c", code, str(path)]
    first = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    kept = entries("object")
    assert kept
    for file in kept:
        damage(file, how)
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == first
    assert sorted(entries("object")) == sorted(kept)


def test_weights_in_large_pages_stay_out_of_the_plan(tmp_path, monkeypatch):
    """One row times large weights: these are copied from their file, and the plan names that file."""
    monkeypatch.setenv("PYFLAME_CACHE_DIR", str(tmp_path / "cache"))
    g = pyflame_rt.Graph("row")
    g.add_input("x", [1, 2048])
    g.add_initializer("w", weight(2048, 1024))
    g.add_node("mm", "MatMul", ["x", "w"], ["y"])
    g.add_output("y", [1, 1024])
    file = tmp_path / "row.onnx"
    export_onnx(g, file)
    age = file.stat().st_mtime_ns - 60 * 10**9
    os.utime(file, ns=(age, age))
    x = RNG.standard_normal((1, 2048)).astype(np.float32)
    for _ in range(2):
        with pyflame_rt.InferenceSession(file) as session:
            got = session.run(None, {"x": x})[0]
        np.testing.assert_allclose(got, x @ g.initializers["w"].raw(), rtol=1e-3, atol=1e-3)
        current_store().flush()
    (plan,) = entries("plan")
    assert plan.stat().st_size < 50_000
    (packed,) = entries("weights")  # written once
    assert packed.stat().st_size == HEADER + 4 * 2048 * 1024 + table_size(4 * 2048 * 1024)


def test_packed_weights_are_written_after_the_first_answer(path, planned):
    with answering():
        with pyflame_rt.InferenceSession(path) as session:
            first = session.run(None, feed())[0]
            assert not entries("weights")
        # Closing the session waited for what the plan in the cache needs.
        assert entries("weights")
        assert entries("plan")
    np.testing.assert_array_equal(run(path), first)
    assert len(planned) == 1


def test_a_plan_whose_weights_could_not_be_written_is_still_right(path, planned, monkeypatch):
    monkeypatch.setattr(Store, "put_large", lambda *_: False)
    first = run(path)
    assert not entries("weights")
    np.testing.assert_array_equal(run(path), first)
    monkeypatch.undo()
    monkeypatch.setenv("PYFLAME_CACHE_DIR", str(path.parent / "cache"))
    np.testing.assert_array_equal(run(path), first)


def test_another_version_of_the_code_plans_anew(path, planned, monkeypatch):
    first = run(path)
    monkeypatch.setattr(stored, "_build", lambda: "another build")
    np.testing.assert_array_equal(run(path), first)
    assert len(planned) == 2
    assert len(entries("plan")) == 2


@pytest.mark.skipif(not library.available(), reason="about what oneDNN does")
def test_a_library_that_chooses_otherwise_is_noticed(path, planned, monkeypatch):
    first = run(path)

    def other(recipe, _make=stored.make_again):
        primitive = _make(recipe)
        primitive.impl = "another"
        return primitive

    monkeypatch.setattr(stored, "make_again", other)
    np.testing.assert_array_equal(run(path), first)
    assert len(planned) == 2


def test_stored_plans_are_explained_and_profiled(path, planned, tmp_path):
    run(path)
    options = pyflame_rt.SessionOptions(enable_profiling=True)
    options.profile_file_prefix = str(tmp_path / "profile")
    with pyflame_rt.InferenceSession(path, options) as session:
        session.run(None, feed())
        assert len(planned) <= 2  # what the steps stand for is found out when somebody asks
        text = str(session.explain())
    assert "Conv" in text
    assert "native" in text


def test_stored_plans_free_what_they_hold(path):
    run(path)
    at_rest()  # what other tests left behind is not counted
    before = live_handles()
    run(path)
    at_rest()
    assert live_handles() == before


def test_taps_and_a_switched_off_cache_plan_as_ever(path, planned, monkeypatch):
    run(path)
    with pyflame_rt.InferenceSession(path) as session:
        outputs = session.run(None, feed(), taps=["r"])
        assert outputs[1].shape == (2, 24, 16, 16)
    monkeypatch.setenv("PYFLAME_CACHE", "0")
    count = len(planned)
    run(path)
    assert len(planned) == count + 1
